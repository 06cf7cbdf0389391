"""The live counts of events between the tiers."""

from __future__ import annotations

import math
import time
from typing import Any

from redis_saver._engine.stats import Live, TierStats, instruments

KNOWN_FOR = 30.0
"""Seconds for which a process without a flusher exports the result of a scan that it heard of."""
HANGS_AFTER = 10.0
"""Seconds after which a flush that waits for cold counts as not answered, again and again."""
GAUGES = frozenset(
    name for instrument, names in instruments(TierStats).items() if instrument.kind == "gauge" for name in names
)
"""Fields that cover all processes."""


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
        self._scanned_at, self._oldest_at, self._scanned_threads = -math.inf, math.inf, 0

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
        """Compute the ages. The oldest record of the last scan may still wait, so its age grows until the next scan."""
        now = time.monotonic()
        self.seconds_since_scan = now - self._scanned_at if self._scan else None
        self.oldest_seconds = max(0.0, now - self._oldest_at)

    def set_backlog(self, records: int) -> None:
        """Set the number of records that cold lacks. Only a scan finds threads, records set aside and the age.

        The number may be too low, because others flush records before their writers report them. So if it is 0, a
        process that scans keeps the age and the records set aside until the next scan. Other processes set them to 0.
        """
        self.backlog = max(0, records)
        self.dirty_threads = min(max(1, self._scanned_threads), self.backlog)
        if self.backlog:
            self._oldest_at = min(self._oldest_at, time.monotonic())
        elif not self.scans:
            self.set_aside, self._oldest_at = 0, math.inf

    def learn(self, result: str, age: float = 0.0) -> None:
        """Use the result of a scan `age` seconds ago (form: `BacklogCount.scan`). A known result changes nothing."""
        scan, *numbers = result.split()
        if scan != self._scan:
            self._scan, self._scanned_at = scan, time.monotonic() - age
            self._scanned_threads, records, oldest, self.set_aside = map(int, numbers)
            self._oldest_at = self._scanned_at - oldest / 1000 if records else math.inf
            self.set_backlog(records)


def what_is_left(stats: TierStats) -> str:
    """Return the message about records that a drain left, with the numbers of the last scan."""
    return (
        f"{stats.backlog} records of {stats.dirty_threads} threads could not be brought to cold in time. They stay in "
        "Redis until the flusher of another process, or redis-saver flush, brings them to cold. The oldest is "
        f"{stats.oldest_seconds:.0f} seconds old"
        + (f"; flushing is paused for another {stats.paused_seconds:.0f} seconds" if stats.paused_seconds else "")
        + (f"; last error: {stats.last_error}" if stats.last_error else "")
    )
