"""What is counted between the tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from redis_saver._engine.stats import Counting, OperationStats


@dataclass
class Stats:
    """What happened between the tiers, in this process. The backlog (`dirty_threads` to `set_aside`) is that of all processes, as last seen in hot."""

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold answered, as hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that filled hot."""
    intents: int = 0
    """Reads that cold answered, as the thread had a write intent."""
    bypasses: int = 0
    """Reads and writes that went on without hot, as it failed."""
    repairs: int = 0
    """Threads of which a part was gone in hot, and that hot dropped, as cold has them."""
    enrolled: int = 0
    """Threads that only hot had, and that cold got."""
    written_through: int = 0
    """Write-behind: writes that went to cold first, as hot did not have enough of the thread."""
    flushed: int = 0
    """Records (checkpoints, pending writes of a task, deletions) that cold got."""
    coalesced: int = 0
    """Records that were skipped for newer ones, with `cold_history="latest"`."""
    flushes: int = 0
    """Times that a thread was flushed."""
    flush_seconds: float = 0.0
    """Seconds that those took in all."""
    refused: int = 0
    """Records that cold refused although it answered, each time."""
    unreachable: int = 0
    """Times that a flusher stopped because cold did not answer."""
    worker_errors: int = 0
    """Times that a worker of the flusher failed outside of a flush, or ended and was replaced. stderr has the error."""
    dirty_threads: int = 0
    """Threads of which cold does not have all."""
    backlog: int = 0
    """Records that cold does not have."""
    oldest_seconds: float = 0.0
    """Age of the oldest of them, in seconds."""
    set_aside: int = 0
    """Those of them that cold refused although it answered. They are tried again with pauses."""
    last_error: str = ""
    """The last error of the flusher, without what may quote values."""
    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """The calls by method. `saver.hot.stats()` has what they, and the flusher, sent to Redis."""


BACKLOG = frozenset(("dirty_threads", "backlog", "oldest_seconds", "set_aside"))
"""The fields that speak of all processes."""


class Counts(Stats):
    """The numbers of a process while they change. Users get copies (`snapshot`)."""

    kind: ClassVar[str] = "tier"
    _look: str = ""

    def after_fork(self) -> None:
        """In the child, begin with zero."""
        vars(self).clear()
        vars(self).update(vars(Stats()))

    def snapshot(self, counting: Counting) -> Stats:
        """A copy of the numbers so far, with those of the calls."""
        numbers = {each.name: getattr(self, each.name) for each in fields(Stats)}
        return Stats(**numbers | {"operations": counting.snapshot()})

    def numbers(self) -> Mapping[str, Any]:
        """The numbers so far, without those of the backlog where this process does not know it: it would tell 0 while others wait."""
        found = {each.name: getattr(self, each.name) for each in fields(Stats)}
        return found if self.knows_backlog else {name: found[name] for name in found.keys() - BACKLOG}

    def set_backlog(self, records: int) -> None:
        """Set the number of records that cold lacks, and limit the numbers of the last scan by it."""
        self.backlog = max(0, records)
        self.dirty_threads = min(max(1, self.dirty_threads), self.backlog)
        self.set_aside = min(self.set_aside, self.backlog)
        self.oldest_seconds = self.oldest_seconds if self.backlog else 0.0

    @property
    def knows_backlog(self) -> bool:
        """Whether this process has scanned for the backlog, or read what another one found. If not, the backlog here is only what it wrote itself."""
        return bool(self._look)

    def learn(self, found: str) -> None:
        """Take over the result of a scan, as `scan` in `flush/queue.py` publishes it, once."""
        which, *numbers = found.split()
        if which != self._look:
            self._look = which
            self.dirty_threads, self.backlog, oldest, self.set_aside = map(int, numbers)
            self.oldest_seconds = oldest / 1000
