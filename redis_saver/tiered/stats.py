"""What is counted between the tiers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stats:
    """What happened between the tiers, in this process; the last four are as the last look at hot found them."""

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold was asked for, as hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that were brought back to hot."""
    intents: int = 0
    """Reads that cold was asked for, as the thread was being written, or its writer was gone."""
    bypasses: int = 0
    """Reads and writes that were done without hot, which failed."""
    enrolled: int = 0
    """Threads that only hot had, and that were brought to cold."""
    written_through: int = 0
    """Write-behind: writes that went to cold first all the same, as hot did not have enough of the thread."""
    flushed: int = 0
    """Records (checkpoints, pending writes of a task, deletions) that were brought to cold."""
    coalesced: int = 0
    """Checkpoints and pending writes that cold need not get, with `cold_history="latest"`."""
    flushes: int = 0
    """Times that a thread was brought to cold."""
    flush_seconds: float = 0.0
    """How long those took in all."""
    refused: int = 0
    """Records that cold would not take, each time."""
    dirty_threads: int = 0
    """Threads of which cold does not have all."""
    backlog: int = 0
    """Records that cold does not have."""
    oldest_seconds: float = 0.0
    """Age of the oldest of them."""
    set_aside: int = 0
    """Those of them that cold would not take, and that are tried again with growing pauses."""
    last_error: str = ""
    """What the flusher met last."""
    _look: str = field(default="", repr=False)

    def after_fork(self) -> None:
        """Begin anew: what the parent counted is the parent's."""
        vars(self).update(vars(Stats()))

    def learn(self, found: str) -> None:
        """Take over what a look at hot found, as `flush/queue.py`'s `scan` publishes it, once."""
        which, *numbers = found.split()
        if which != self._look:
            self._look = which
            self.dirty_threads, self.backlog, oldest, self.set_aside = map(int, numbers)
            self.oldest_seconds = oldest / 1000
