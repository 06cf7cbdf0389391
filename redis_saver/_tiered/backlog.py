"""The backlog: the number of records that cold lacks, over all processes.

A record is stored with its thread, and a Cluster keeps threads on different nodes. So no script can count all records
while it writes one. Hot keeps a count instead: each process reports the records that it wrote and flushed, and a scan
of all keys corrects the count every few seconds. Flushers scan, and so do `flush`, `close` and a `list` of all threads.

Between two scans the count lacks what processes have not reported yet. It also lacks a few records in three rare cases:
a write was reported, but not stored yet when a scan read its thread; a script added a record again; or the client sent
a report of flushed records twice.
"""

from __future__ import annotations

import math
import re
import threading
import time
from operator import index
from typing import NamedTuple
from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Batch, Call, Command, Operation, Scan, Sleep
from redis_saver._tiered import scripts
from redis_saver._tiered.counts import LiveTiers
from redis_saver.errors import BacklogFull, decoding

SCAN_INTERVAL = 5.0
"""Seconds between two scans, over all processes. After a long scan the pause is 20 times its duration."""
SCAN_LEASE = 20_000
"""Length of the scan lease in milliseconds. The scanning process renews it. If it dies, another one scans then."""
THREADS_PER_BATCH = 500
KEPT_FOR = 3_600_000
"""Milliseconds for which hot keeps the count after the last report."""
PAUSE, LONGEST_PAUSE = 3600.0, 86_400.0
"""Default and maximum length of a pause of flushing, in seconds."""
_PAUSE_AGE = 1.0
"""Age in seconds up to which a report says whether flushing is paused."""
SHARES = 1000
"""A process reports to hot before it has more than `max_backlog / SHARES` unreported records."""
_ASK_AGAIN = 0.05
"""Seconds between two reports of a write that waits."""
_RESULT = re.compile(rb"[0-9a-f]{32}(?: [0-9]{1,15}){4}")
_GENERATION = re.compile(rb"[0-9a-f]{32}")
"""Format of a scan's result, and of a generation. Anything else comes from another program and is ignored."""


class Scanned(NamedTuple):
    """The result of a scan: dirty threads and their records."""

    threads: list[str]
    records: int
    oldest_ms: int
    """Age of the oldest record in milliseconds."""
    set_aside: int
    """Records that cold refused."""
    seconds: float
    """Duration of its requests, except the slowest one: hot may have hung, which must not delay the next scan."""


class BacklogCount:
    """This process's part of the count. Admits its writes while the backlog is below `limit`."""

    def __init__(self, keyspace: Keyspace, counts: LiveTiers) -> None:
        """Start with nothing to report."""
        self._keyspace = keyspace
        self.counts: LiveTiers = counts
        self.limit: int = 0
        """The saver's `max_backlog`."""
        self.timeout: float = 0.0
        """The saver's `backlog_timeout`: seconds for which a write waits."""
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._written, self._reporting, self._flushed = 0, 0, 0
        self.scan_id, self._generation, self._total = b"", b"", 0
        self.suspected: tuple[bytes, int] | None = None
        """The generation that hot had before it may have lost data, and the number of records that cold lacked then."""
        self._reported, self._paused_until = -math.inf, -math.inf

    def wrote(self, records: int) -> None:
        """Count records that this process wrote. A negative number takes back an earlier count."""
        with self._lock:
            self._written += records
            self.counts.set_backlog(self.counts.backlog + records)

    def flushed(self, records: int, scan_id: bytes) -> None:
        """Count records that this process flushed. Any process may have written them.

        Args:
            records: Their number.
            scan_id: The value of `scan_id` before hot removed them. They are not counted if it has changed, because the
                later scan may not have found them.
        """
        with self._lock:
            if scan_id == self.scan_id:
                self._flushed += records
                self.counts.set_backlog(self.counts.backlog - records)

    def admit_write(self) -> Operation[None]:
        """Count a record that the caller writes next. Waits while the backlog is full.

        It sends a request only near the limit, and after many writes.

        Raises:
            BacklogFull: It was full for `timeout` seconds.
        """
        with self._lock:
            if self._written + self._reporting < self.limit // SHARES and self.counts.backlog < self.limit:
                self._written += 1
                self.counts.set_backlog(self.counts.backlog + 1)
                return
        yield from self._wait(writes=True)

    def wait_for_room(self) -> Operation[None]:
        """Wait while the backlog is full. Counts nothing, and raises the same error as `admit_write`."""
        if self.counts.backlog >= self.limit:
            yield from self._wait(writes=False)

    def _wait(self, *, writes: bool) -> Operation[None]:
        deadline = time.monotonic() + self.timeout
        while True:
            is_admitted, _ = yield from self.report(writes=writes)
            if is_admitted or (not writes and self.counts.backlog < self.limit):
                return
            if time.monotonic() >= deadline:
                paused = "Flushing is paused: resume it. " if self.counts.paused_seconds else ""
                raise BacklogFull(
                    f"{self.counts.backlog} records wait to be flushed to cold, and the backlog did not fall below "
                    f"max_backlog={self.limit} within {self.timeout:g} seconds (backlog_timeout). Nothing was written. "
                    f"{paused}Check that cold is up, and that a flusher runs (flusher=True, or redis-saver flush). The "
                    "flusher's process has the error: in stats().tiers.last_error, or in the output of that command"
                )
            yield Sleep(_ASK_AGAIN)

    def report(self, *, writes: bool = False) -> Operation[tuple[bool, int]]:
        """Report this process's counts to hot, and learn the count of all processes.

        Args:
            writes: True to also admit and count a write, if fewer than `limit` records are left.

        Returns:
            True if the write is admitted, and the number of records that all processes have written so far.
        """
        with self._lock:
            written, flushed, scan_id = self._written, self._flushed, self.scan_id
            generation, total = self._generation, self._total
            self._reporting += written
            self._written = self._flushed = 0
        is_reported = False
        try:
            arguments = scripts.ReportBacklogArguments(
                written=written, flushed=flushed, scan=scan_id, limit=self.limit if writes else 0, length=KEPT_FOR,
                generation=generation, known=total, new=uuid4().hex,
            )  # fmt: skip
            reply = yield Call(scripts.REPORT_BACKLOG, (self._keyspace.unflushed,), arguments)
            with decoding("the size of the backlog"):
                *numbers, result, generation = reply
                left, admitted, total, age, pause = map(index, numbers)
                result, generation = bytes(memoryview(result)), bytes(memoryview(generation))
            is_reported = True
        finally:
            with self._lock:
                self._reporting -= written
                if not is_reported:
                    self._written += written  # counted twice until the next scan if only the reply was lost
        with self._lock:
            self._compare(generation, total)
            self._reported, self.counts.paused_seconds = time.monotonic(), pause / 1000
            self._paused_until = self._reported + pause / 1000
            if (latest := result.partition(b" ")[0]) != self.scan_id:
                if self.scan_id != scan_id:  # this process has learned another one meanwhile, which may be later
                    return bool(admitted), total
                # It may not have found what was flushed since the request.
                self.scan_id, self._flushed = latest, 0
            if _RESULT.fullmatch(result):
                self.counts.learn(result.decode(), age / 1000)
            self.counts.set_backlog(left + self._written + self._reporting - self._flushed)
        return bool(admitted), total

    def _compare(self, generation: bytes, total: int) -> None:
        """Note a generation of hot. If it changed while records were waiting, hot may have lost them."""
        if generation != self._generation and _GENERATION.fullmatch(generation):
            if self._generation and self.counts.backlog:
                self.suspected = self.suspected or (self._generation, self.counts.backlog)
            self._generation, self._total = generation, 0
        self._total = max(self._total, total)

    def set_pause(self, seconds: float) -> Operation[None]:
        """Pause flushing, as `pause_flushing` does. This process knows it at once."""
        yield from pause_flushing(self._keyspace, seconds)
        self._reported = -math.inf

    def pause(self) -> Operation[float]:
        """Return the seconds for which flushing is still paused. Reports first if the last report is not recent."""
        if time.monotonic() - self._reported > _PAUSE_AGE:
            yield from self.report()
        return max(0.0, self._paused_until - time.monotonic())

    def scan(self, *, renews_lease: bool = False) -> Operation[Scanned]:
        """Scan all keys for dirty threads, and correct the count in hot.

        Args:
            renews_lease: True: renew the scan lease, which keeps other processes from scanning.
        """
        keyspace, position, renewed = self._keyspace, None, time.monotonic()
        _, written_before = yield from self.report()
        dirty, took = dict[str, None](), list[float]()
        while True:
            if renews_lease and time.monotonic() - renewed > SCAN_LEASE / 4000:
                yield Command(("PEXPIRE", keyspace.scanning, SCAN_LEASE))
                renewed = time.monotonic()
            began = time.monotonic()
            position, keys = yield Scan(keyspace.dirty_pattern, position)
            took.append(time.monotonic() - began)
            dirty.update((thread, None) for key in keys if (thread := keyspace.thread_of(key, names.DIRTY)) is not None)
            if position is None:
                break
        threads, records, oldest, aside = list(dirty), 0, 0, 0
        for first in range(0, len(threads), THREADS_PER_BATCH):
            batch = [keyspace.tier_keys(thread) for thread in threads[first : first + THREADS_PER_BATCH]]
            began = time.monotonic()
            replies = yield Batch([Call(scripts.BACKLOG_STATS, (keys.dirty, keys.flush), ()) for keys in batch])
            took.append(time.monotonic() - began)
            for reply in replies:
                with decoding("the backlog of a thread"):
                    count, age, refused = map(index, reply)
                records, oldest, aside = records + count, max(oldest, age), aside + refused
        scan_id = uuid4().hex
        result = f"{scan_id} {len(threads)} {records} {oldest} {aside}"
        yield Call(scripts.PUBLISH_BACKLOG, (keyspace.unflushed,), (result, records, written_before, KEPT_FOR))
        with self._lock:
            self.scan_id, self._flushed = scan_id.encode(), 0  # else hot ignores what is flushed until the next report
            self.counts.learn(result)
        return Scanned(threads, records, oldest, aside, sum(took) - max(took))


def pause_flushing(keyspace: Keyspace, seconds: float) -> Operation[None]:
    """Pause the flushers of all processes for some seconds. 0 ends a pause."""
    yield Call(scripts.PAUSE_FLUSHING, (keyspace.unflushed,), (math.ceil(seconds * 1000), KEPT_FOR))
