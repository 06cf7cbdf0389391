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
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias
from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Batch, Call, Command, Operation, Scan, Sleep
from redis_saver._engine.stats import Counting, OperationStats
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
PAUSE, LONGEST_PAUSE = 3600.0, 86_400.0
"""Default and maximum length of a pause of flushing, in seconds."""
_PAUSE_AGE = 1.0
"""Age in seconds up to which a report says whether flushing is paused."""
SHARES = 1000
"""A process reports to hot before it has more than `max_backlog / SHARES` unreported records."""
_RESULT = re.compile(rb"[0-9a-f]{32}(?: [0-9]{1,15}){4}")
"""Format of a scan's result. Anything else comes from another program and is ignored."""
_MAX_ITEMS, _MAX_BYTES = 10_000, 32 * 2**20
"""Bounds of the caches of channel versions in cold, and of threads whose refusal was logged."""
_OUTAGE, _DOUBLINGS = 3, 10
_ASK_AGAIN = 0.05
_LOG = Log("redis_saver.tiered")

ColdHistory: TypeAlias = Literal["all", "latest"]


@dataclass
class Stats:
    """Counts of events between the tiers, in this process.

    The backlog (`dirty_threads` to `set_aside`) covers all processes, as last seen in hot.
    """

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold answered because hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that filled hot."""
    intents: int = 0
    """Reads that cold answered because the thread had a write intent."""
    bypasses: int = 0
    """Reads and writes that continued without hot because it failed."""
    repairs: int = 0
    """Damaged threads that hot dropped because cold has them."""
    enrolled: int = 0
    """Threads that only hot had and that were written to cold."""
    written_through: int = 0
    """Writes of `mode="write-behind"` that went to cold first because hot lacked a part of the thread."""
    flushed: int = 0
    """Records (checkpoints, pending writes of a task, deletions) that were written to cold."""
    coalesced: int = 0
    """Records that were skipped in favour of newer ones, with `cold_history="latest"`."""
    flushes: int = 0
    """Claims of threads by the flusher."""
    flush_seconds: float = 0.0
    """Total duration of these claims, in seconds."""
    refused: int = 0
    """Refusals of records by a cold saver that was reachable. Each refusal counts."""
    unreachable: int = 0
    """Number of claims that ended because cold did not answer."""
    worker_errors: int = 0
    """Failures of flusher workers outside of a flush, including workers that were replaced. stderr has the errors."""
    dirty_threads: int = 0
    """Threads with records that cold lacks."""
    backlog: int = 0
    """Records that cold lacks."""
    oldest_seconds: float = 0.0
    """Age of the oldest such record, in seconds."""
    set_aside: int = 0
    """Records of the backlog that cold refused. They are retried with pauses."""
    paused_seconds: float = 0.0
    """Seconds for which `pause_flushing` still keeps flushers from their work, as of this process's last report."""
    last_error: str = ""
    """The flusher's last error, without any text that may quote values."""
    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """Calls by method. `saver.hot.stats()` has the requests to Redis, including those of the flusher."""


BACKLOG = frozenset(("dirty_threads", "backlog", "oldest_seconds", "set_aside"))
"""Fields that cover all processes."""


class Counts(Stats):
    """The live counts of a process. Users get copies (`snapshot`)."""

    kind: ClassVar[str] = "tier"
    _scan: str = ""

    def after_fork(self) -> None:
        vars(self).clear()
        vars(self).update(vars(Stats()))

    def snapshot(self, counting: Counting) -> Stats:
        numbers = {stat.name: getattr(self, stat.name) for stat in fields(Stats)}
        return Stats(**numbers | {"operations": counting.snapshot()})

    def numbers(self) -> Mapping[str, Any]:
        """Return the counts. The backlog is left out until this process knows it, because 0 would be wrong."""
        names = [stat.name for stat in fields(Stats) if self.knows_backlog or stat.name not in BACKLOG]
        return {name: getattr(self, name) for name in names}

    def set_backlog(self, records: int) -> None:
        """Set the number of records that cold lacks. The results of the last scan cannot exceed it."""
        self.backlog = max(0, records)
        self.dirty_threads = min(max(1, self.dirty_threads), self.backlog)
        self.set_aside = min(self.set_aside, self.backlog)
        self.oldest_seconds = self.oldest_seconds if self.backlog else 0.0

    @property
    def knows_backlog(self) -> bool:
        """True if this process has the result of a scan, its own or another process's.

        If False, the count has only the records of this process.
        """
        return bool(self._scan)

    def learn(self, result: str) -> None:
        """Use the result of a scan, as `BacklogCount.scan` publishes it. A known result changes nothing."""
        scan, *numbers = result.split()
        if scan != self._scan:
            self._scan = scan
            self.dirty_threads, self.backlog, oldest, self.set_aside = map(int, numbers)
            self.oldest_seconds = oldest / 1000


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

    def __init__(self, keyspace: Keyspace, counts: Counts) -> None:
        """Start with nothing to report."""
        self._keyspace = keyspace
        self.counts: Counts = counts
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._written, self._reporting, self._flushed = 0, 0, 0
        self._scan = b""
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
            self._reporting += written
            self._written = self._flushed = 0
        is_reported = False
        try:
            arguments = (written, flushed, scan, limit, KEPT_FOR)
            reply = yield Call(scripts.REPORT_BACKLOG, (self._keyspace.unflushed,), arguments)
            with decoding("the size of the backlog"):
                left, admitted, total = map(index, reply[:3])
                result, paused = bytes(reply[3]), index(reply[4]) / 1000
            is_reported = True
        finally:
            with self._lock:
                self._reporting -= written
                if not is_reported:
                    self._written += written  # counted twice until the next scan if only the reply was lost
        with self._lock:
            self._reported, self.counts.paused_seconds = time.monotonic(), paused
            self._paused_until = self._reported + paused
            if _RESULT.fullmatch(result):
                self.counts.learn(result.decode())
            if (latest := result.partition(b" ")[0]) != self._scan:
                self._scan, self._flushed = latest, 0  # this scan may have seen what was flushed since the request
            self.counts.set_backlog(left + self._written + self._reporting - self._flushed)
        return bool(admitted), total

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
        self._outages, self._not_before, self._scanned = 0, 0.0, -math.inf

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
                    return thread
            return None

    def is_time_to_scan(self) -> bool:
        """True for one caller per `flush_interval`. That caller then scans."""
        now = time.monotonic()
        with self._lock:
            if now - self._scanned < self.flush_interval:
                return False
            self._scanned = now
            return True

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
                raise BacklogFull(
                    f"{counts.backlog} records wait to be flushed to cold, and the backlog did not fall below "
                    f"max_backlog={limit} within {self._backlog_timeout:g} seconds (backlog_timeout). Nothing was "
                    f"written. {'Flushing is paused: resume it. ' if counts.paused_seconds else ''}Check that cold is up, that a flusher runs (flusher=True, or redis-saver flush), and "
                    "stats().last_error"
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


def what_is_left(stats: Stats) -> str:
    """Return the message about records that a drain left, with the numbers of the last scan."""
    return (
        f"{stats.backlog} records of {stats.dirty_threads} threads could not be brought to cold in time. They stay in "
        "Redis until the flusher of another process, or redis-saver flush, brings them to cold. The oldest is "
        f"{stats.oldest_seconds:.0f} seconds old"
        + (f"; flushing is paused for another {stats.paused_seconds:.0f} seconds" if stats.paused_seconds else "")
        + (f"; last error: {stats.last_error}" if stats.last_error else "")
    )
