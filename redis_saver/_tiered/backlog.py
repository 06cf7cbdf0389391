"""The backlog: how many records cold lacks, over all processes, and which threads this process flushes next.

The records lie beside their threads, which a Cluster keeps on different nodes, so no script can count them all while it
writes one. Hot keeps a count instead: each process reports what it wrote and flushed, and a scan of all keys corrects
the count every few seconds.
"""

from __future__ import annotations

import heapq
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.logs import Log, log_text
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Batch, Call, Command, Operation, Scan, Sleep
from redis_saver._tiered import scripts
from redis_saver._tiered.requests import Tiered
from redis_saver._tiered.stats import Counts, Stats
from redis_saver.errors import BacklogFull, decoding

SCAN_INTERVAL = 5.0
"""Seconds between two scans of all keys, over all processes. After a long scan the pause is 20 times its length."""
SCAN_LEASE = 20_000
"""Milliseconds after which another process may scan if the scanning one died. A living one renews this lease."""
MAX_BACKOFF = 10.0
"""Longest pause between two tries while cold takes nothing, in seconds."""
CATCH_UP = MAX_BACKOFF + SCAN_INTERVAL
"""Seconds, plus three `flush_interval`s, after which cold has everything once both servers answer and flushers run.

The calls themselves take more: those that hang until their client gives up, those of a long backlog, and scans of very
many keys."""
TAKE_OVER = 30.0
"""Additional seconds if a process died during a claim or a scan: the longest of their leases."""
THREADS_PER_BATCH = 500
KEPT_FOR = 3_600_000
"""Milliseconds for which hot keeps the count after the last report."""
SHARES = 1000
"""A process asks hot before it has more unreported records than `max_backlog` divided by this."""
_RESULT = re.compile(rb"[0-9a-f]{32}(?: [0-9]{1,15}){4}")
"""Format of a scan's result. Anything else was written by another program, and is ignored."""
_MAX_ITEMS, _MAX_BYTES = 10_000, 32 * 2**20
"""Bounds of what is remembered of threads: channel versions of checkpoints in cold, and which refusals were logged."""
_OUTAGE, _DOUBLINGS = 3, 10
_ASK_AGAIN = 0.05
_LOG = Log("redis_saver.tiered")

ColdHistory: TypeAlias = Literal["all", "latest"]


class Scanned(NamedTuple):
    """The result of a scan: the dirty threads, and their records."""

    threads: list[str]
    records: int
    oldest_ms: int
    """Age of the oldest record."""
    set_aside: int
    """Records that cold refused."""


class BacklogCount:
    """This process's part of the count."""

    def __init__(self, keyspace: Keyspace, counts: Counts) -> None:
        """Start with nothing to report."""
        self._keyspace = keyspace
        self.counts: Counts = counts
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Leave to the parent what it has to report."""
        self._lock = threading.Lock()
        self._written, self._reporting, self._flushed = 0, 0, 0
        self._scan = b""

    def wrote(self, records: int) -> None:
        """Count records that this process wrote."""
        with self._lock:
            self._written += records
            self.counts.set_backlog(self.counts.backlog + records)

    def flushed(self, records: int) -> None:
        """Count records that this process flushed, whoever wrote them."""
        with self._lock:
            self._flushed += records
            self.counts.set_backlog(self.counts.backlog - records)

    def admit(self, limit: int) -> bool:
        """Count a write without asking hot. False if hot has to be asked: near the limit, or after many writes."""
        with self._lock:
            if self._written + self._reporting >= limit // SHARES or self.counts.backlog >= limit:
                return False
            self._written += 1
            self.counts.set_backlog(self.counts.backlog + 1)
            return True

    def report(self, limit: int = 0) -> Operation[tuple[bool, int]]:
        """Report to hot, and learn the count of all processes.

        Args:
            limit: Admit a write, and count it, if fewer records are left than this; 0 if there is no write.

        Returns:
            True if the write is admitted, and the number of records that all processes have written so far.
        """
        with self._lock:
            written, flushed, scan = self._written, self._flushed, self._scan
            self._reporting += written
            self._written = self._flushed = 0
        is_reported = False
        try:
            arguments = (written, flushed, scan, limit, KEPT_FOR)
            reply = yield Call(scripts.REPORT_BACKLOG, (self._keyspace.unflushed,), arguments)
            with decoding("the count of what cold lacks"):
                left, admitted, total = map(index, reply[:3])
                result = bytes(reply[3])
            is_reported = True
        finally:
            with self._lock:
                self._reporting -= written
                if not is_reported:
                    self._written += written  # twice, if only the reply was lost, until the next scan
        with self._lock:
            if _RESULT.fullmatch(result):
                self.counts.learn(result.decode())
            if (latest := result.partition(b" ")[0]) != self._scan:
                self._scan, self._flushed = latest, 0  # this scan may have seen what was flushed since the request
            self.counts.set_backlog(left + self._written + self._reporting - self._flushed)
        return bool(admitted), total

    def scan(self, *, renews_lease: bool = False) -> Operation[Scanned]:
        """Scan all keys for dirty threads, and correct the count in hot by the result.

        Args:
            renews_lease: Renew the scan lease, which keeps other processes from scanning.
        """
        keyspace, position, renewed = self._keyspace, None, time.monotonic()
        _, written_before = yield from self.report()
        found: dict[str, None] = {}
        while True:
            if renews_lease and time.monotonic() - renewed > SCAN_LEASE / 4000:
                yield Command(("PEXPIRE", keyspace.scanning, SCAN_LEASE))
                renewed = time.monotonic()
            position, keys = yield Scan(keyspace.dirty_pattern, position)
            found.update((thread, None) for key in keys if (thread := keyspace.thread_of(key, names.DIRTY)) is not None)
            if position is None:
                break
        threads, records, oldest, aside = list(found), 0, 0, 0
        for first in range(0, len(threads), THREADS_PER_BATCH):
            batch = [keyspace.tier_keys(thread) for thread in threads[first : first + THREADS_PER_BATCH]]
            replies = yield Batch([Call(scripts.BACKLOG_STATS, (keys.dirty, keys.flush), ()) for keys in batch])
            for reply in replies:
                with decoding("how much of a thread cold lacks"):
                    count, age, refused = map(index, reply)
                records, oldest, aside = records + count, max(oldest, age), aside + refused
        result = f"{uuid4().hex} {len(threads)} {records} {oldest} {aside}"
        yield Call(scripts.PUBLISH_BACKLOG, (keyspace.unflushed,), (result, records, written_before, KEPT_FOR))
        self.counts.learn(result)
        return Scanned(threads, records, oldest, aside)


class FlushQueue:
    """Threads that this process flushes, by the time they are due; and the wait of writers for a full backlog."""

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
        """In the child, start empty. The parent, or whoever scans, flushes what the parent wrote."""
        self._waiting: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self._lock = threading.RLock()  # a log handler may write by this saver
        self._outages, self._not_before, self._scanned = 0, 0.0, -math.inf

    def note(self, thread: str) -> None:
        """Note that cold may lack records of a thread. It is due `flush_interval` seconds after the first note."""
        if self._flushes:
            with self._lock:
                self._wait(thread, time.monotonic() + self.flush_interval)

    def add_dirty(self, threads: Sequence[str]) -> None:
        """Note dirty threads that a scan found, whoever wrote them. They are due at once."""
        with self._lock:
            for thread in threads:
                self._wait(thread, 0.0)

    def due(self) -> str | None:
        """Take a thread that is due out of the queue, if there is one."""
        now = time.monotonic()
        with self._lock:
            while self._order and now >= self._not_before and self._order[0][0] <= now:
                at, thread = heapq.heappop(self._order)
                if self._waiting.get(thread) == at:
                    del self._waiting[thread]
                    return thread
            return None

    def _wait(self, thread: str, at: float) -> None:
        """Let a thread be due at a time, unless it is due sooner already."""
        if at < self._waiting.get(thread, math.inf):
            self._waiting[thread] = at
            heapq.heappush(self._order, (at, thread))

    def is_time_to_scan(self) -> bool:
        """True for one caller in each `flush_interval`, who scans for what other processes left."""
        now = time.monotonic()
        with self._lock:
            if now - self._scanned < self.flush_interval:
                return False
            self._scanned = now
            return True

    def after_claim(self, thread: str, acked: int, left: int, failed: Exception | None, is_refused: bool) -> None:
        """Note that a claim of a thread is over.

        After three claims in a row that failed because a server did not answer, the server counts as down, and the
        pauses grow. The log gets the start and the end of such an outage, and once each thread of which cold refuses a
        record.
        """
        now = time.monotonic()
        with self._lock:
            if left:
                self._wait(thread, now + 2 * self.flush_interval if failed or not acked else 0.0)
            else:
                self._refused.forget(thread)
            if failed and is_refused and thread not in self._refused:
                self._refused.store(thread, True, len(thread))
                text = "cold does not take a record of thread %s, which is tried again: %s"
                _LOG.warning(text, shown(thread), log_text(failed))
            if acked or is_refused:
                if self._outages >= _OUTAGE:
                    _LOG.warning("the flusher reaches cold again")
                self._outages = 0
            elif failed:
                self._outages += 1
                if self._outages == _OUTAGE:
                    _LOG.warning("the flusher does not reach both servers, and goes on trying: %s", log_text(failed))
            if self._outages >= _OUTAGE:
                self._not_before = now + min(MAX_BACKOFF, 0.5 * 2 ** min(self._outages - _OUTAGE, _DOUBLINGS))

    def wait_for_capacity(self, *, is_writing: bool = True) -> Tiered[None]:
        """Wait until the backlog is below `max_backlog`.

        Args:
            is_writing: Count a record that the caller writes next. If false, only wait until there seems to be room.

        Raises:
            BacklogFull: It still is at `max_backlog` after `backlog_timeout` seconds.
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
                raise BacklogFull(
                    f"{counts.backlog} records wait to be flushed to cold, and max_backlog={limit} was not free again "
                    f"within {self._backlog_timeout:g} seconds (backlog_timeout). Nothing was written. Look whether "
                    "cold is up, whether somebody flushes (flusher=True, or redis-saver flush), and what "
                    "stats().last_error says"
                )
            yield Sleep(_ASK_AGAIN)

    def versions(self, namespace: tuple[str, str], checkpoint_id: str) -> Mapping[str, Any] | None:
        """The channel versions of the checkpoint that cold got last in a thread's namespace, if they are known here."""
        last = self._versions.get(namespace)
        return last[1] if last and last[0] == checkpoint_id else None

    def remember(self, namespace: tuple[str, str], checkpoint_id: str, versions: Mapping[str, Any]) -> None:
        """Remember the channel versions of the checkpoint that cold got last in a thread's namespace."""
        size = sum(map(len, namespace)) + sum(map(len, versions)) + 200 * len(versions)
        self._versions.store(namespace, (checkpoint_id, versions), size)


def what_is_left(stats: Stats) -> str:
    """The message after a drain that ended before cold had everything, from the numbers of the last scan."""
    return (
        f"{stats.backlog} records of {stats.dirty_threads} threads could not be brought to cold in time. They stay in "
        "Redis until the flusher of another process, or redis-saver flush, brings them to cold. The oldest is "
        f"{stats.oldest_seconds:.0f} seconds old" + (f"; last error: {stats.last_error}" if stats.last_error else "")
    )
