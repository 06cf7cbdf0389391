"""Counts of what happens between the tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from redis_saver._engine.stats import Counting, OperationStats


@dataclass
class Stats:
    """Counts of what happened between the tiers, in this process.

    The backlog (`dirty_threads` to `set_aside`) is that of all processes, as last seen in hot.
    """

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold answered, because hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that filled hot."""
    intents: int = 0
    """Reads that cold answered, because the thread had a write intent."""
    bypasses: int = 0
    """Reads and writes that went on without hot, because it failed."""
    repairs: int = 0
    """Damaged threads that hot dropped, because cold has them."""
    enrolled: int = 0
    """Threads that only hot had, and that cold got."""
    written_through: int = 0
    """Write-behind: writes that went to cold first, because hot did not have enough of the thread."""
    flushed: int = 0
    """Records (checkpoints, pending writes of a task, deletions) that cold got."""
    coalesced: int = 0
    """Records that were skipped for newer ones, with `cold_history="latest"`."""
    flushes: int = 0
    """Claims of threads that were flushed."""
    flush_seconds: float = 0.0
    """Total duration of these, in seconds."""
    refused: int = 0
    """Records that cold refused although it answered. Each refusal counts."""
    unreachable: int = 0
    """Times that a flusher stopped because cold did not answer."""
    worker_errors: int = 0
    """Workers of the flusher that failed outside of a flush, or ended and were replaced. stderr has the errors."""
    dirty_threads: int = 0
    """Threads of which cold lacks something."""
    backlog: int = 0
    """Records that cold lacks."""
    oldest_seconds: float = 0.0
    """Age of the oldest of them, in seconds."""
    set_aside: int = 0
    """Records of the backlog that cold refused although it answered. They are tried again with pauses."""
    last_error: str = ""
    """The last error of the flusher, without any text that may quote values."""
    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """The calls by method. `saver.hot.stats()` has the requests to Redis, also those of the flusher."""


BACKLOG = frozenset(("dirty_threads", "backlog", "oldest_seconds", "set_aside"))
"""The fields about all processes."""


class Counts(Stats):
    """The numbers of a process while they change. Users get copies (`snapshot`)."""

    kind: ClassVar[str] = "tier"
    _scan: str = ""

    def after_fork(self) -> None:
        """In the child, begin with zero."""
        vars(self).clear()
        vars(self).update(vars(Stats()))

    def snapshot(self, counting: Counting) -> Stats:
        """Return a copy of the numbers so far, with those of the calls."""
        numbers = {stat.name: getattr(self, stat.name) for stat in fields(Stats)}
        return Stats(**numbers | {"operations": counting.snapshot()})

    def numbers(self) -> Mapping[str, Any]:
        """Return the numbers so far, without the backlog if this process does not know it: 0 would be wrong."""
        names = [stat.name for stat in fields(Stats) if self.knows_backlog or stat.name not in BACKLOG]
        return {name: getattr(self, name) for name in names}

    def set_backlog(self, records: int) -> None:
        """Set the number of records that cold lacks, and limit the numbers of the last scan by it."""
        self.backlog = max(0, records)
        self.dirty_threads = min(max(1, self.dirty_threads), self.backlog)
        self.set_aside = min(self.set_aside, self.backlog)
        self.oldest_seconds = self.oldest_seconds if self.backlog else 0.0

    @property
    def knows_backlog(self) -> bool:
        """True if this process has scanned for the backlog, or read another one's result.

        If not, it counts only what it wrote itself.
        """
        return bool(self._scan)

    def learn(self, result: str) -> None:
        """Take over the result of a scan, once, as `BacklogCount.scan` publishes it."""
        scan, *numbers = result.split()
        if scan != self._scan:
            self._scan = scan
            self.dirty_threads, self.backlog, oldest, self.set_aside = map(int, numbers)
            self.oldest_seconds = oldest / 1000
