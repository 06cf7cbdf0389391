"""The threads that this process flushes next."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any, Literal, TypeAlias

from redis_saver._common import forks
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._tiered.backlog import SCAN_INTERVAL

MAX_BACKOFF = 10.0
"""Maximum pause between two tries while cold accepts nothing, in seconds."""
CATCH_UP = MAX_BACKOFF + SCAN_INTERVAL
"""Time in seconds until cold has everything, after both servers answer again and flushers run. Add three times
`flush_interval`.

Calls may add to this: those that hang until the client gives up, those for a long backlog, and scans of very many
keys."""
TAKE_OVER = 30.0
"""Additional time if a process died during a claim or a scan, in seconds: the longer of the two leases."""
WITNESSES = 100
"""Number of dirty threads that a process remembers, to find out whether hot lost the backlog."""
_MAX_ITEMS, _MAX_BYTES = 10_000, 32 * 2**20
"""Bounds of the caches of channel versions in cold, and of threads whose refusal was logged."""
_OUTAGE, _DOUBLINGS = 3, 10
_LOG = Log("redis_saver.tiered")

ColdHistory: TypeAlias = Literal["all", "latest"]


class FlushQueue:
    """The threads that this process flushes next, by due time."""

    def __init__(self, history: ColdHistory, flush_interval: float, *, flushes: bool) -> None:
        """Start empty. The arguments are those of `saver.TwoTiers`."""
        self.history: ColdHistory = history
        self.flush_interval: float = flush_interval
        self._flushes = flushes
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

    def versions(self, namespace: tuple[str, str], checkpoint_id: str) -> Mapping[str, Any] | None:
        """Return the channel versions of a checkpoint, if it is the one that cold stored last in this namespace."""
        last = self._versions.get(namespace)
        return last[1] if last and last[0] == checkpoint_id else None

    def remember(self, namespace: tuple[str, str], checkpoint_id: str, versions: Mapping[str, Any]) -> None:
        """Remember the channel versions of the checkpoint that cold stored last in a namespace of a thread."""
        size = sum(map(len, namespace)) + sum(map(len, versions)) + 200 * len(versions)
        self._versions.store(namespace, (checkpoint_id, versions), size)
