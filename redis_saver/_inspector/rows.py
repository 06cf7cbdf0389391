"""Rows of lists of threads and of trees of checkpoints, as pages and commands show them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint.auditing import Entry, ran_between
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._common import times
from redis_saver._common.display import shown
from redis_saver._inspector.source import Source
from redis_saver._tiered.thread_info import Damaged

T = TypeVar("T")

# -- threads

_NEVER = datetime.min.replace(tzinfo=timezone.utc)
ORDERS: dict[str, Callable[[Any], Any]] = {
    "updated": lambda info: info.updated_at or _NEVER,
    "oldest": lambda info: -(info.updated_at or _NEVER).timestamp(),
    "bytes": lambda info: info.bytes,
    "checkpoints": lambda info: info.checkpoints,
    "expires": lambda info: -(timedelta.max if info.ttl is None else info.ttl).total_seconds(),
    "name": lambda info: [-ord(letter) for letter in info.thread_id] + [1],
}
"""Sort keys. The greatest comes first."""


@dataclass(slots=True)
class Listing:
    """The matching threads that come first in the chosen order, and counts of all that match."""

    threads: list[Any] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    """Damaged threads with the prefix. The other filters do not apply to them."""
    is_partial: bool = False
    """True if the search ended before all threads were read."""


def list_threads(
    source: Source, query: ThreadQuery, order: str, limit: int, is_over: Callable[[], bool] = lambda: False
) -> Listing:
    """Read the information about all threads that match, and keep the first ones of an order.

    Args:
        source: Saver to ask.
        query: Filters.
        order: A name in `ORDERS`.
        limit: Maximum number of threads to keep.
        is_over: Checked before each request. True ends the search.
    """
    listing = Listing()

    def looks_over() -> bool:
        listing.is_partial = is_over()
        return listing.is_partial

    def readable() -> Iterator[Any]:
        for info in source.threads(query, looks_over):
            if isinstance(info, Damaged):
                listing.damaged.append(info)
                continue
            listing.count += 1
            listing.bytes += info.bytes
            yield info

    listing.threads = heapq.nlargest(limit, readable(), key=ORDERS[order])
    return listing


def read_moment(text: str) -> datetime:
    """Read a moment: how long ago it was, or ISO 8601.

    Raises:
        ValueError: The text is neither.
    """
    try:
        return datetime.now(timezone.utc) - times.parse(text, name="")
    except OverflowError:
        return _NEVER
    except ValueError:
        if (at := times.moment(text)) is not None:
            return at
    raise ValueError(f"{shown(text)} is no time: write how long ago (2h), or 2026-11-25T03:00:00Z")


# -- trees


class TreeRow(NamedTuple):
    """A checkpoint in a tree."""

    entry: Entry
    state: str
    """State of its tasks: `failed`, `interrupted`, or empty."""
    tasks: int
    """Number of tasks with pending writes."""
    ran: Sequence[str]
    """Nodes that ran between its parent and this checkpoint. Empty if the parent was not read."""


def tree_row(entry: Entry, parent: Entry | None) -> TreeRow:
    """Return a checkpoint as a row of a tree."""
    ran = ran_between(parent, entry) if parent else ()
    tasks = {write.task_id for write in entry.writes}
    return TreeRow(entry, task_state({write.channel for write in entry.writes}), len(tasks), ran)


def task_state(channels: Collection[str]) -> str:
    """Return the state of tasks that wrote to channels: `failed`, `interrupted`, or empty."""
    return "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""


def lanes(history: Sequence[tuple[str, str, T]]) -> Iterator[tuple[str, T]]:
    """Draw checkpoints as text, oldest first. A chain runs straight down, and a fork opens a lane for each branch.

    Args:
        history: Id, parent's id (or an empty text) and value of each checkpoint, newest first. A checkpoint without
            its parent starts a branch.

    Yields:
        The lines to print before a checkpoint, and its value.
    """
    values = {name: value for name, _, value in history}
    children: dict[str, list[str]] = {}
    for name, parent, _ in history:
        children.setdefault(parent if parent in values else "", []).append(name)
    stack = [("", "", name) for name in children.get("", ())]
    circular = [("", "", name) for name in reversed(values)]  # for checkpoints that are each other's ancestors
    while values:
        lane, below, name = (stack or circular).pop()
        if name not in values:
            continue
        yield lane, values.pop(name)
        branches = children.get(name, ())
        for position, branch in enumerate(branches):  # newest first, so that the oldest is on top of the stack
            fork, past = ("", "") if len(branches) == 1 else ("├─", "│ ") if position else ("└─", "  ")
            stack.append((below + fork, below + past, branch))


MAX_LANES = 12
"""Maximum number of lanes in a drawing. Further branches share the last lane."""


class Line(NamedTuple):
    """A line in a row of a drawing. `x` counts lanes; `y` is in percent, from 0 at the top to 100 at the bottom."""

    x1: int
    y1: int
    x2: int
    y2: int
    is_dashed: bool


class Drawing(NamedTuple):
    """A row of a drawing: a checkpoint and the lines around it."""

    lane: int
    lines: Sequence[Line]
    width: int
    """Number of lanes."""


class _Lane(NamedTuple):
    """A lane that runs down to a checkpoint."""

    target: tuple[str, str] | None
    """Namespace and id of the checkpoint. None if the lane is free."""
    is_dashed: bool


_FREE = _Lane(None, is_dashed=False)


def drawn(entries: Sequence[Entry]) -> list[Drawing]:
    """Draw checkpoints for SVG, newest first."""
    lanes, drawings = list[_Lane](), list[Drawing]()
    for entry in entries:
        key = (entry.ns, entry.id)
        ending = [at for at, lane in enumerate(lanes) if lane.target == key]
        passing = [at for at, lane in enumerate(lanes) if lane.target not in (key, None)]
        own = next((at for at in ending if not lanes[at].is_dashed), [*lanes, _FREE].index(_FREE))
        lines = [_line(at, 0, own, 50, lanes[at]) for at in ending]
        lines += [_line(at, 0, at, 100, lanes[at]) for at in passing]
        for at in ending:
            lanes[at] = _FREE
        below = _lane_below(entry)
        lanes[own : own + 1] = [below]
        if below is not _FREE:
            lines.append(_line(own, 50, own, 100, below))
        while lanes and lanes[-1] is _FREE:
            lanes.pop()
        widest = max([own, *(end for line in lines for end in (line.x1, line.x2))])
        drawings.append(Drawing(min(own, MAX_LANES - 1), list(dict.fromkeys(lines)), min(widest, MAX_LANES - 1) + 1))
    return drawings


def _lane_below(entry: Entry) -> _Lane:
    """Return the lane to the parent. From the first checkpoint of a subgraph it leads to the checkpoint that called."""
    if entry.parent is not None:
        return _Lane((entry.ns, entry.parent), is_dashed=False)
    outer = entry.ns.rpartition("|")[0]
    return _Lane((outer, entry.parents[outer]), is_dashed=True) if entry.ns and outer in entry.parents else _FREE


def _line(x1: int, y1: int, x2: int, y2: int, lane: _Lane) -> Line:
    return Line(min(x1, MAX_LANES - 1), y1, min(x2, MAX_LANES - 1), y2, lane.is_dashed)
