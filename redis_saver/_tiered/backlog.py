"""The backlog: the number of records that cold lacks, over all processes, and the threads this process flushes next.

A record is stored with its thread, and a Cluster keeps threads on different nodes. So no script can count all records
while it writes one. Hot keeps a count instead: each process reports the records that it wrote and flushed, and a scan
of all keys corrects the count every few seconds.
"""

from __future__ import annotations

import heapq
import math
import re
import threading
import time
from collections.abc import Mapping
from itertools import chain, islice
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._common.names import Keyspace
from redis_saver._engine.counters import Live, instruments
from redis_saver._engine.requests import Batch, Call, Command, Operation, Scan, Sleep
from redis_saver._engine.stats import TierStats
from redis_saver._tiered import scripts
from redis_saver._tiered.requests import Tiered
from redis_saver.errors import BacklogFull, decoding

SCAN_INTERVAL = 5.0
"""Seconds between two scans, over all processes. After a long scan the pause is 20 times its duration."""
SCAN_LEASE = 20_000
"""Length of the scan lease in milliseconds. The scanning process renews it. If it dies, another one scans then."""
MAX_BACKOFF = 10.0
"""Maximum pause between two tries while cold accepts nothing, in seconds."""
CATCH_UP = MAX_BACKOFF + SCAN_INTERVAL
"""Time in seconds until cold has everything, after both servers answer again and flushers run. Add three times
`flush_interval`.

Calls may add to this: those that hang until the client gives up, those for a long backlog, and scans of very many
keys."""
TAKE_OVER = 30.0
"""Additional time if a process died during a claim or a scan, in seconds: the longer of the two leases."""
THREADS_PER_BATCH = 500
KEPT_FOR = 3_600_000
"""Milliseconds for which hot keeps the count after the last report."""
KNOWN_FOR = 30.0
"""Seconds for which a process without a flusher exports the result of a scan that it heard of."""
HANGS_AFTER = 10.0
"""Seconds after which a flush that waits for cold counts as not answered, again and again."""
WITNESSES = 100
"""Number of dirty threads that a process remembers, to find out whether hot lost the backlog."""
PAUSE, LONGEST_PAUSE = 3600.0, 86_400.0
"""Default and maximum length of a pause of flushing, in seconds."""
_PAUSE_AGE = 1.0
"""Age in seconds up to which a report says whether flushing is paused."""
SHARES = 1000
"""A process reports to hot before it has more than `max_backlog / SHARES` unreported records."""
_RESULT = re.compile(rb"[0-9a-f]{32}(?: [0-9]{1,15}){4}")
_GENERATION = re.compile(rb"[0-9a-f]{32}")
"""Format of a scan's result, and of a generation. Anything else comes from another program and is ignored."""
_MAX_ITEMS, _MAX_BYTES = 10_000, 32 * 2**20
"""Bounds of the caches of channel versions in cold, and of threads whose refusal was logged."""
_OUTAGE, _DOUBLINGS = 3, 10
_ASK_AGAIN = 0.05
_LOG = Log("redis_saver.tiered")

ColdHistory: TypeAlias = Literal["all", "latest"]


class LiveTiers(Live, TierStats):
    """The live counts of a process."""

    kind = "tier"

    def __init__(self) -> None:
        """Start without a scan."""
        super().__init__()
        self.after_fork()

    def after_fork(self) -> None:
        super().after_fork()
        self.scans: bool = False
        """True while this process scans again and again."""
        self.waiting: dict[object, float] = {}
        """Times (`time.monotonic`) since which flushes have been waiting for a call of cold."""
        self._hung_at = -math.inf
        self._scan = ""
        self._scanned_at, self._measured, self._moved_at = -math.inf, 0.0, -math.inf

    def note_hang(self) -> float:
        """Count cold as unreachable if a flush has waited long for it. Returns the seconds, or 0 if it was counted."""
        now = time.monotonic()
        seconds = now - min(self.waiting.copy().values(), default=now)
        if seconds < HANGS_AFTER or now - self._hung_at < HANGS_AFTER:
            return 0.0
        self._hung_at = now
        self.unreachable += 1
        return seconds

    def snapshot(self) -> TierStats:
        """Return a copy of all counts, with the records of this process as long as it knows no others."""
        self._tell_times()
        return TierStats(**super().numbers())

    def numbers(self) -> dict[str, Any]:
        """Return the counts. The backlog is left out unless this process knows it, because 0 would be wrong."""
        self._tell_times()
        since = self.seconds_since_scan
        is_known = since is not None and (self.scans or since < KNOWN_FOR)
        return {name: number for name, number in super().numbers().items() if is_known or name not in GAUGES}

    def _tell_times(self) -> None:
        """Compute the ages of now.

        The age grows from what the last scan found. If records were flushed since then, the oldest may be among them.
        Then the age stays, and at least the time since the last flush counts.
        """
        now = time.monotonic()
        self.seconds_since_scan = now - self._scanned_at if self._scan else None
        is_moving = self._moved_at > self._scanned_at
        since = self._moved_at if is_moving else self._scanned_at - self._measured
        self.oldest_seconds = max(self._measured, now - since) if self.backlog else 0.0

    def set_backlog(self, records: int) -> None:
        """Set the number of records that cold lacks. The results of the last scan cannot exceed it."""
        if not self.backlog or records < self.backlog:
            self._moved_at = time.monotonic()
        self.backlog = max(0, records)
        self.dirty_threads = min(max(1, self.dirty_threads), self.backlog)
        self.set_aside = min(self.set_aside, self.backlog)
        self._measured = self._measured if self.backlog else 0.0

    def learn(self, result: str, age: float = 0.0) -> None:
        """Use the result of a scan `age` seconds ago (form: `BacklogCount.scan`). A known result changes nothing."""
        scan, *numbers = result.split()
        if scan != self._scan:
            self._scan, self._scanned_at = scan, time.monotonic() - age
            self.dirty_threads, self.backlog, oldest, self.set_aside = map(int, numbers)
            self._measured = oldest / 1000


GAUGES = frozenset(
    name for instrument, names in instruments(TierStats).items() if instrument.kind == "gauge" for name in names
)
"""Fields that cover all processes."""


class Scanned(NamedTuple):
    """The result of a scan: dirty threads and their records."""

    threads: list[str]
    records: int
    oldest_ms: int
    """Age of the oldest record in milliseconds."""
    set_aside: int
    """Records that cold refused."""


class BacklogCount:
    """This process's part of the count."""

    def __init__(self, keyspace: Keyspace, counts: LiveTiers) -> None:
        """Start with nothing to report."""
        self._keyspace = keyspace
        self.counts: LiveTiers = counts
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._written, self._reporting, self._flushed = 0, 0, 0
        self._scan, self._generation, self._total = b"", b"", 0
        self.suspected: tuple[bytes, int] | None = None
        """The generation that hot had before it may have lost data, and the number of records that cold lacked then."""
        self._reported, self._paused_until = -math.inf, -math.inf

    def wrote(self, records: int) -> None:
        """Count records that this process wrote. A negative number takes back an earlier count."""
        with self._lock:
            self._written += records
            self.counts.set_backlog(self.counts.backlog + records)

    def flushed(self, records: int) -> None:
        """Count records that this process flushed. Any process may have written them."""
        with self._lock:
            self._flushed += records
            self.counts.set_backlog(self.counts.backlog - records)

    def admit(self, limit: int) -> bool:
        """Count a write without a request. Returns False near the limit and after many writes. Then call `report`."""
        with self._lock:
            if self._written + self._reporting >= limit // SHARES or self.counts.backlog >= limit:
                return False
            self._written += 1
            self.counts.set_backlog(self.counts.backlog + 1)
            return True

    def report(self, limit: int = 0) -> Operation[tuple[bool, int]]:
        """Report this process's counts to hot, and learn the count of all processes.

        Args:
            limit: Admit and count a write if fewer than `limit` records are left. 0: report only, without a write.

        Returns:
            True if the write is admitted, and the number of records that all processes have written so far.
        """
        with self._lock:
            written, flushed, scan = self._written, self._flushed, self._scan
            generation, total = self._generation, self._total
            self._reporting += written
            self._written = self._flushed = 0
        is_reported = False
        try:
            arguments = (written, flushed, scan, limit, KEPT_FOR, generation, total, uuid4().hex)
            reply = yield Call(scripts.REPORT_BACKLOG, (self._keyspace.unflushed,), arguments)
            with decoding("the size of the backlog"):
                left, admitted, total, age, pause = map(index, (*reply[:3], *reply[5:7]))
                result, generation = (bytes(memoryview(part)) for part in reply[3:5])
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
            if _RESULT.fullmatch(result):
                self.counts.learn(result.decode(), age / 1000)
            if (latest := result.partition(b" ")[0]) != self._scan:
                self._scan, self._flushed = latest, 0  # this scan may have seen what was flushed since the request
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
        dirty: dict[str, None] = {}
        while True:
            if renews_lease and time.monotonic() - renewed > SCAN_LEASE / 4000:
                yield Command(("PEXPIRE", keyspace.scanning, SCAN_LEASE))
                renewed = time.monotonic()
            position, keys = yield Scan(keyspace.dirty_pattern, position)
            dirty.update((thread, None) for key in keys if (thread := keyspace.thread_of(key, names.DIRTY)) is not None)
            if position is None:
                break
        threads, records, oldest, aside = list(dirty), 0, 0, 0
        for first in range(0, len(threads), THREADS_PER_BATCH):
            batch = [keyspace.tier_keys(thread) for thread in threads[first : first + THREADS_PER_BATCH]]
            replies = yield Batch([Call(scripts.BACKLOG_STATS, (keys.dirty, keys.flush), ()) for keys in batch])
            for reply in replies:
                with decoding("the backlog of a thread"):
                    count, age, refused = map(index, reply)
                records, oldest, aside = records + count, max(oldest, age), aside + refused
        result = f"{uuid4().hex} {len(threads)} {records} {oldest} {aside}"
        yield Call(scripts.PUBLISH_BACKLOG, (keyspace.unflushed,), (result, records, written_before, KEPT_FOR))
        self.counts.learn(result)
        return Scanned(threads, records, oldest, aside)


def pause_flushing(keyspace: Keyspace, seconds: float) -> Operation[None]:
    """Pause the flushers of all processes for some seconds. 0 ends a pause."""
    yield Call(scripts.PAUSE_FLUSHING, (keyspace.unflushed,), (math.ceil(seconds * 1000), KEPT_FOR))


class FlushQueue:
    """The threads that this process flushes next, by due time. Writers also wait here while the backlog is full."""

    def __init__(
        self,
        backlog: BacklogCount,
        history: ColdHistory,
        flush_interval: float,
        max_backlog: int,
        backlog_timeout: float,
        *,
        flushes: bool,
    ) -> None:
        """Start empty. The arguments are those of `saver.TwoTiers`."""
        self.history: ColdHistory = history
        self.flush_interval: float = flush_interval
        self._backlog, self._flushes = backlog, flushes
        self._max_backlog, self._backlog_timeout = max_backlog, backlog_timeout
        self._versions = BoundedCache[tuple[str, str], tuple[str, Mapping[str, Any]]](_MAX_ITEMS, _MAX_BYTES)
        self._refused = BoundedCache[str, bool](_MAX_ITEMS, _MAX_BYTES)
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Start empty in the child. The parent, or the next scan, takes care of the parent's threads."""
        self._waiting: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self._lock = threading.RLock()  # a log handler may write by this saver
        self._outages, self._not_before = 0, 0.0
        self._claiming: set[str] = set()
        self.witnesses: list[str] = []
        """Some threads that were dirty when this process last heard from hot."""

    def note(self, thread: str, at: float | None = None) -> None:
        """Queue a thread that may be dirty. It is due in `flush_interval` seconds, or `at` a time, unless sooner."""
        at = time.monotonic() + self.flush_interval if at is None else at
        with self._lock:
            if self._flushes and at < self._waiting.get(thread, math.inf):
                self._waiting[thread] = at
                heapq.heappush(self._order, (at, thread))

    def due(self) -> str | None:
        """Take a due thread out of the queue. Returns None if no thread is due."""
        now = time.monotonic()
        with self._lock:
            while self._order and now >= self._not_before and self._order[0][0] <= now:
                at, thread = heapq.heappop(self._order)
                if self._waiting.get(thread) == at:
                    del self._waiting[thread]
                    self._claiming.add(thread)
                    return thread
            return None

    def remember_witnesses(self) -> None:
        """Remember some of the threads that are dirty now."""
        with self._lock:
            self.witnesses = [*islice(chain(self._claiming, self._waiting), WITNESSES)]

    def after_claim(self, thread: str, acked: int, left: int, failed: str | None, is_refused: bool) -> None:
        """Handle the result of a claim.

        After three failed claims in a row, a server counts as down, and the pauses grow. The log gets the start and the
        end of such an outage. It also gets each thread with a refused record, once.

        Args:
            thread: The thread.
            acked: Number of records that were flushed or coalesced.
            left: Number of records that are left.
            failed: The text of the first error, or None.
            is_refused: True if a server answered, but refused a record.
        """
        now = time.monotonic()
        with self._lock:
            self._claiming.discard(thread)
            if left:
                self.note(thread, now + 2 * self.flush_interval if failed or not acked else 0.0)
            else:
                self._refused.forget(thread)
            if failed and is_refused and thread not in self._refused:
                self._refused.store(thread, True, len(thread))
                text = "cold refused a record of thread %s, which is retried: %s"
                _LOG.warning(text, shown(thread), failed)
            if acked or is_refused:
                if self._outages >= _OUTAGE:
                    _LOG.warning("the flusher reaches both servers again")
                self._outages = 0
            elif failed:
                self._outages += 1
                if self._outages == _OUTAGE:
                    _LOG.warning("the flusher does not reach both servers, and keeps trying: %s", failed)
            if self._outages >= _OUTAGE:
                self._not_before = now + min(MAX_BACKOFF, 0.5 * 2 ** min(self._outages - _OUTAGE, _DOUBLINGS))

    def wait_for_capacity(self, *, is_writing: bool = True) -> Tiered[None]:
        """Wait until the backlog is below `max_backlog`.

        Args:
            is_writing: True: count a record that the caller writes next. False: only wait until the known backlog is
                below the limit.

        Raises:
            BacklogFull: The backlog still is at `max_backlog` after `backlog_timeout` seconds.
        """
        counts, limit = self._backlog.counts, self._max_backlog
        if self._backlog.admit(limit) if is_writing else counts.backlog < limit:
            return
        deadline = time.monotonic() + self._backlog_timeout
        while True:
            admitted, _ = yield from self._backlog.report(limit if is_writing else 0)
            if admitted or (not is_writing and counts.backlog < limit):
                return
            if time.monotonic() >= deadline:
                paused = "Flushing is paused: resume it. " if counts.paused_seconds else ""
                raise BacklogFull(
                    f"{counts.backlog} records wait to be flushed to cold, and the backlog did not fall below "
                    f"max_backlog={limit} within {self._backlog_timeout:g} seconds (backlog_timeout). Nothing was "
                    f"written. {paused}Check that cold is up, that a flusher runs (flusher=True, or redis-saver "
                    "flush), and stats().tiers.last_error"
                )
            yield Sleep(_ASK_AGAIN)

    def versions(self, namespace: tuple[str, str], checkpoint_id: str) -> Mapping[str, Any] | None:
        """Return the channel versions of a checkpoint, if it is the one that cold stored last in this namespace."""
        last = self._versions.get(namespace)
        return last[1] if last and last[0] == checkpoint_id else None

    def remember(self, namespace: tuple[str, str], checkpoint_id: str, versions: Mapping[str, Any]) -> None:
        """Remember the channel versions of the checkpoint that cold stored last in a namespace of a thread."""
        size = sum(map(len, namespace)) + sum(map(len, versions)) + 200 * len(versions)
        self._versions.store(namespace, (checkpoint_id, versions), size)


def what_is_left(stats: TierStats) -> str:
    """Return the message about records that a drain left, with the numbers of the last scan."""
    return (
        f"{stats.backlog} records of {stats.dirty_threads} threads could not be brought to cold in time. They stay in "
        "Redis until the flusher of another process, or redis-saver flush, brings them to cold. The oldest is "
        f"{stats.oldest_seconds:.0f} seconds old"
        + (f"; flushing is paused for another {stats.paused_seconds:.0f} seconds" if stats.paused_seconds else "")
        + (f"; last error: {stats.last_error}" if stats.last_error else "")
    )
