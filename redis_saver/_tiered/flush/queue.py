"""The flush queue: what this process knows of the backlog. Which threads are due, and when a writer has to wait."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple
from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._common.display import shown
from redis_saver._common.logs import Log, log_text
from redis_saver._engine import scripts
from redis_saver._engine.requests import Batch, Call, Command, Operation, Scan, Sleep
from redis_saver._tiered.backlog import publish
from redis_saver._tiered.context import MAX_NOTED, ColdHistory, Tiers
from redis_saver._tiered.requests import Attempt, Tiered
from redis_saver._tiered.stats import Stats
from redis_saver.errors import BacklogFull, decoding

SCAN_INTERVAL = 5.0
"""Seconds between two scans of all keys, over all processes. If a scan takes long, the pause is twenty times as long."""
SCAN_LEASE = 20_000
"""Milliseconds after which another process may scan, if the one that scans has died. While it lives it renews this."""
MAX_BACKOFF = 10.0
"""The longest pause between two tries, in seconds, while cold takes nothing at all."""
CATCH_UP = MAX_BACKOFF + SCAN_INTERVAL
"""Once both servers answer again, and if flushers are alive, cold has everything after this many seconds plus three times `flush_interval`. The time of the calls
themselves comes on top: calls that hang until their client gives up, calls for a long backlog, and scans of very many keys."""
TAKE_OVER = 30.0
"""Seconds more if a process died during a claim or a scan: the longest of their leases."""
THREADS_PER_BATCH = 500
SHARES = 1000
"""A process asks hot before it has more unreported records than `max_backlog` divided by this."""


class FlushQueue:
    """The flush queue of a saver (`context.Queue`)."""

    def __init__(
        self,
        tiers: Tiers,
        *,
        history: ColdHistory,
        flush_interval: float,
        most: int,
        backlog_timeout: float,
        flushes: bool,
    ) -> None:
        """Take the arguments of `saver.TwoTiers`."""
        self.history: ColdHistory = history
        self.flush_interval: float = flush_interval
        self._tiers, self._flushes = tiers, flushes
        self._most, self._share, self._backlog_timeout = most, most // SHARES, backlog_timeout
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, begin with nothing. The parent flushes what it wrote, or whoever finds it."""
        self._waiting: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self._versions: OrderedDict[tuple[str, str], tuple[str, Mapping[str, Any]]] = OrderedDict()
        self._refused: set[str] = set()
        self._bytes = 0
        self._lock = threading.RLock()  # a log handler may write by this saver
        self._outages, self._not_before, self._scanned = 0, 0.0, -math.inf

    def note(self, thread: str) -> None:
        """Note that a thread may have records that cold lacks. It is due `flush_interval` seconds after the first note."""
        with self._lock:
            if self._flushes:
                self._wait(thread, time.monotonic() + self.flush_interval)

    def found(self, threads: Sequence[str]) -> None:
        """Note dirty threads that a scan found, whoever wrote them."""
        with self._lock:
            for thread in threads:
                self._wait(thread, 0.0)

    def due(self) -> str | None:
        """Take a thread that is due, if there is one, out of the queue."""
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
        """Whether to scan for what other processes left. Yes for one caller in each `flush_interval` seconds."""
        now = time.monotonic()
        with self._lock:
            if now - self._scanned < self.flush_interval:
                return False
            self._scanned = now
            return True

    def after_claim(
        self, thread: str, acked: int, left: int, failed: Exception | None, *, is_refused: bool = False
    ) -> None:
        """Note that a claim of a thread is over.

        After three claims in a row that failed because a server did not answer, it counts as down, and the pauses grow. The log gets the start and the
        end of such an outage, and each thread of which cold refuses a record, once.
        """
        now = time.monotonic()
        with self._lock:
            if left:
                self._wait(thread, now + 2 * self.flush_interval if failed or not acked else 0.0)
            else:
                self._refused.discard(thread)
            if failed and is_refused and thread not in self._refused:
                if len(self._refused) >= MAX_NOTED:
                    self._refused.clear()
                self._refused.add(thread)
                _LOG.warning(
                    "cold does not take a record of thread %s, which is tried again: %s",
                    shown(thread),
                    log_text(failed),
                )
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
        backlog, counts, limit = self._tiers.backlog, self._tiers.counts, self._most
        if backlog.admit(limit, self._share) if is_writing else counts.backlog < limit:
            return
        deadline = time.monotonic() + self._backlog_timeout
        while True:
            admitted, _ = yield from backlog.report(self._tiers.hot.keyspace, limit if is_writing else 0)
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

    def versions(self, place: tuple[str, str], checkpoint_id: str) -> Mapping[str, Any] | None:
        """The channel versions of the checkpoint that cold got last in a namespace of a thread, if they are known here."""
        with self._lock:
            last = self._versions.get(place)
        return last[1] if last and last[0] == checkpoint_id else None

    def remember(self, place: tuple[str, str], checkpoint_id: str, versions: Mapping[str, Any]) -> None:
        """Remember the versions that `versions` answers."""
        with self._lock:
            if (last := self._versions.pop(place, None)) is not None:
                self._bytes -= _size(last[1])
            if sum(map(len, place)) <= names.MAX_CACHED_NAME:
                self._versions[place] = (checkpoint_id, versions)
                self._bytes += _size(versions)
            while len(self._versions) > MAX_NOTED or self._bytes > _MAX_BYTES:
                self._bytes -= _size(self._versions.popitem(last=False)[1][1])


_MAX_BYTES = 32 * 2**20
"""About how many bytes of memory the remembered channel versions may take."""
_OUTAGE, _DOUBLINGS = 3, 10
_ASK_AGAIN = 0.05
_LOG = Log("redis_saver.tiered")


def what_is_left(stats: Stats) -> str:
    """The message after a drain that ended before cold had everything, from the numbers of the last scan."""
    return (
        f"{stats.backlog} records of {stats.dirty_threads} threads could not be brought to cold in time. They stay in Redis until the flusher of another "
        f"process, or redis-saver flush, brings them to cold. The oldest is {stats.oldest_seconds:.0f} seconds old"
        + (f"; last error: {stats.last_error}" if stats.last_error else "")
    )


def _size(versions: Mapping[str, Any]) -> int:
    """About as many bytes of memory as channel versions take."""
    return sum(map(len, versions)) + 200 * len(versions)


class Backlog(NamedTuple):
    """What a scan found."""

    threads: list[str]
    records: int
    oldest_ms: int
    set_aside: int


def scan(tiers: Tiers, *, is_in_turn: bool = False) -> Operation[Backlog]:
    """Scan all keys for dirty threads, and tell the other processes how much cold lacks.

    Args:
        tiers: The saver.
        is_in_turn: Whether to keep other processes from scanning meanwhile.
    """
    keyspace, position, told = tiers.hot.keyspace, None, time.monotonic()
    _, written_before = yield from tiers.backlog.report(keyspace)
    threads: dict[str, None] = {}
    while True:
        if is_in_turn and time.monotonic() - told > SCAN_LEASE / 4000:
            yield Command(("PEXPIRE", keyspace.scanning, SCAN_LEASE))
            told = time.monotonic()
        position, keys = yield Scan(keyspace.dirty_pattern, position)
        threads.update((thread, None) for key in keys if (thread := keyspace.thread_of(key, names.DIRTY)) is not None)
        if position is None:
            break
    found, records, oldest, aside = list(threads), 0, 0, 0
    for first in range(0, len(found), THREADS_PER_BATCH):
        keys_of = [keyspace.tier_keys(thread) for thread in found[first : first + THREADS_PER_BATCH]]
        for of_thread in (yield Batch([Call(scripts.BACKLOG_STATS, (keys.dirty, keys.flush), ()) for keys in keys_of])):
            with decoding("how much of a thread cold lacks"):
                count, age, refused = map(index, of_thread)
            records, oldest, aside = records + count, max(oldest, age), aside + refused
    text = f"{uuid4().hex} {len(found)} {records} {oldest} {aside}"
    yield from publish(keyspace, text, records, written_before)
    tiers.counts.learn(text)
    return Backlog(found, records, oldest, aside)


def scan_in_turn(tiers: Tiers) -> Tiered[list[str]]:
    """As `scan`, if it is time for one and no other process scans. After an error this process lets others scan, and may scan itself when it asks again."""
    keyspace, began = tiers.hot.keyspace, time.monotonic()
    token, is_looking = tiers.leases.token(keyspace.scanning), False
    try:
        is_looking = bool((yield Call(scripts.PUBLISH, (keyspace.scanning,), (token, SCAN_LEASE, b"1"))))
        if not is_looking:
            yield from tiers.backlog.report(keyspace)
            return []
        found = yield from scan(tiers, is_in_turn=True)
        pause = max(SCAN_INTERVAL, 20 * (time.monotonic() - began))
        yield Call(scripts.PUBLISH, (keyspace.scanning,), (b"", int(1000 * pause), b""))
    except BaseException as error:
        tiers.leases.keep(keyspace.scanning, token)
        if is_looking and isinstance(error, Exception):
            yield Attempt(Command(("UNLINK", keyspace.scanning)))
        raise
    return found.threads
