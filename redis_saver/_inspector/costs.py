"""What a thread costs: by channel, and the checkpoints that added most."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from redis_saver._checkpoint.auditing import Entry
from redis_saver._common.config import Address
from redis_saver._inspector.source import Source

FIRST_SECONDS, MORE_SECONDS = 0.3, 20.0
"""How long a thread is looked at: at first, and if somebody asks for more."""
LARGEST = 20
"""Checkpoints that are named."""


@dataclass(slots=True)
class ChannelCost:
    """What a channel takes, in bytes as stored."""

    path: str
    """Where in the graph it is: the nodes whose subgraph has it; empty for the root."""
    channel: str
    ns: str | None
    """The namespace; None: several, one for each call of the subgraph."""
    versions: int = 0
    """Versions that have a value."""
    new: int = 0
    """Bytes that the versions added, each to the one before."""
    shared: int = 0
    """Bytes that they have in common with the one before, and that are stored once."""
    written: int = 0
    """Bytes of pending writes."""

    @property
    def stored(self) -> int:
        """What is stored in all."""
        return self.new + self.written


class CheckpointCost(NamedTuple):
    """What a checkpoint added."""

    where: Address
    step: int | None
    new: int
    """Bytes of values."""
    written: int
    """Bytes of pending writes."""
    channel: str | None
    """The channel that added most."""

    @property
    def stored(self) -> int:
        """What it added in all."""
        return self.new + self.written


@dataclass(slots=True)
class ThreadCost:
    """What a thread takes, as far as it was looked at."""

    channels: list[ChannelCost] = field(default_factory=list)
    """Those that take most first."""
    largest: list[CheckpointCost] = field(default_factory=list)
    """Those that added most, most first."""
    looked: int = 0
    """Checkpoints that were looked at, the newest."""
    is_partial: bool = False
    """Whether there are more, as time was over."""


def measured(source: Source, thread: str, seconds: float) -> ThreadCost:
    """Add up what the newest checkpoints of a thread take; at least a page of them, whatever the time."""
    found, end = ThreadCost(), time.monotonic() + seconds

    def is_over() -> bool:
        found.is_partial = found.looked > 0 and time.monotonic() >= end
        return found.is_partial

    by_name: dict[tuple[str, str], ChannelCost] = {}
    checkpoints = _added(source, thread, is_over, by_name, found)
    found.largest = heapq.nlargest(LARGEST, checkpoints, key=lambda one: one.stored)
    found.channels = sorted(by_name.values(), key=lambda one: -one.stored)
    return found


def _added(
    source: Source,
    thread: str,
    is_over: Callable[[], bool],
    by_name: dict[tuple[str, str], ChannelCost],
    found: ThreadCost,
) -> Iterator[CheckpointCost]:
    """What each checkpoint added; it is noted by channel, too."""
    for one, sizes in source.costs(thread, is_over):
        found.looked += 1
        added = dict.fromkeys(sizes, 0)
        for channel, size in sizes.items():
            if size.new:
                cost = _of(by_name, one, channel)
                cost.versions += 1
                cost.new += size.new
                cost.shared += size.shared
                added[channel] = size.new
        for write in one.writes:
            _of(by_name, one, write.channel).written += write.size
            added[write.channel] = added.get(write.channel, 0) + write.size
        written = sum(write.size for write in one.writes)
        most = max(added, key=added.__getitem__, default=None)
        yield CheckpointCost(Address(thread, one.ns, one.id), one.step, sum(added.values()) - written, written, most)


def _of(by_name: dict[tuple[str, str], ChannelCost], one: Entry, channel: str) -> ChannelCost:
    path = "|".join(level.partition(":")[0] for level in one.ns.split("|"))
    cost = by_name.setdefault((path, channel), ChannelCost(path, channel, one.ns))
    if cost.ns != one.ns:
        cost.ns = None
    return cost
