"""Rows of lists of threads and of trees of checkpoints, as pages and commands show them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry
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
    "bytes": lambda info: info.bytes,
    "checkpoints": lambda info: info.checkpoints,
    "expires": lambda info: -(timedelta.max if info.ttl is None else info.ttl).total_seconds(),
    "name": lambda info: [-ord(letter) for letter in info.thread_id] + [1],
}
"""Sort keys. The greatest comes first."""


@dataclass(slots=True)
class Listing:
    """The first threads of an order, and counts of all that match."""

    threads: list[Any] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    """Threads with the prefix that cannot be read, whether or not they match the other filters."""
    is_partial: bool = False
    """True if time ran out before all threads were read."""


def list_threads(
    source: Source, query: ThreadQuery, order: str, limit: int, is_over: Callable[[], bool] = lambda: False
) -> Listing:
    """Read the information about each thread that matches, until time is over. Keep the first of an order."""
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
    """State of its tasks: failed, interrupted, or empty."""
    tasks: int
    """Number of tasks with pending writes."""
    ran: Sequence[str]
    """Nodes that ran after its parent; none if the parent is missing."""


def tree_row(entry: Entry, parent: Entry | None) -> TreeRow:
    """Make a row of a checkpoint and its parent, if that was read."""
    channels = {write.channel for write in entry.writes}
    state = "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""
    ran = auditing.ran_between(parent, entry) if parent else ()
    return TreeRow(entry, state, len({write.task_id for write in entry.writes}), ran)


def lanes(history: Sequence[tuple[str, str, T]]) -> Iterator[tuple[str, str, str, T]]:
    """Draw checkpoints from the oldest on: a chain runs straight down, and a fork opens a lane for each branch.

    Args:
        history: Id, parent's id (or an empty text) and value of each checkpoint, newest first. A checkpoint whose
            parent is missing starts a branch.

    Yields:
        The lines to print before a checkpoint, and its id, parent and value.
    """
    ids, children = {here for here, _, _ in history}, dict[str, list[tuple[str, T]]]()
    for here, parent, value in history:
        children.setdefault(parent if parent in ids else "", []).append((here, value))
    stack, seen = [("", "", "", here, value) for here, value in children.get("", ())], set[str]()
    rest = iter([("", "", parent, here, value) for here, parent, value in history])  # for each other's ancestors
    while stack or (stack := list(islice(rest, 1))):
        lane, below, parent, here, value = stack.pop()
        if here in seen:
            continue
        seen.add(here)
        yield lane, here, parent, value
        branches = children.get(here, ())
        for position, branch in enumerate(branches):  # newest first, so that the oldest is on top of the stack
            fork, past = ("", "") if len(branches) == 1 else ("├─", "│ ") if position else ("└─", "  ")
            stack.append((below + fork, below + past, here, *branch))


MAX_LANES = 12
"""Maximum number of lanes. The last one has all further ones, too."""


class Line(NamedTuple):
    """A line inside a row. `x` counts lanes, `y` is in percent: top 0, middle 50, bottom 100."""

    x1: int
    y1: int
    x2: int
    y2: int
    is_dashed: bool


class Row(NamedTuple):
    """A checkpoint in a drawing."""

    lane: int
    lines: Sequence[Line]
    width: int
    """Width in lanes."""


class _Lane(NamedTuple):
    """A lane that goes down to a checkpoint."""

    wanted: tuple[str, str] | None
    """Its namespace and id; None: the lane is free."""
    is_dashed: bool


_FREE = _Lane(None, is_dashed=False)


def drawn(found: Sequence[Entry]) -> list[Row]:
    """The rows of some checkpoints, newest first."""
    lanes, rows = list[_Lane](), list[Row]()
    for one in found:
        here = (one.ns, one.id)
        coming = [at for at, lane in enumerate(lanes) if lane.wanted == here]
        passing = [at for at, lane in enumerate(lanes) if lane.wanted not in (here, None)]
        mine = next((at for at in coming if not lanes[at].is_dashed), [*lanes, _FREE].index(_FREE))
        lines = [_line(at, 0, mine, 50, lanes[at]) for at in coming]
        lines += [_line(at, 0, at, 100, lanes[at]) for at in passing]
        for at in coming:
            lanes[at] = _FREE
        below = _below(one)
        lanes[mine : mine + 1] = [below]
        if below is not _FREE:
            lines.append(_line(mine, 50, mine, 100, below))
        while lanes and lanes[-1] is _FREE:
            lanes.pop()
        widest = max([mine, *(end for line in lines for end in (line.x1, line.x2))])
        rows.append(Row(min(mine, MAX_LANES - 1), list(dict.fromkeys(lines)), min(widest, MAX_LANES - 1) + 1))
    return rows


def _below(one: Entry) -> _Lane:
    """The lane below a checkpoint: to its parent, or from a subgraph's first one to the checkpoint that called it."""
    if one.parent is not None:
        return _Lane((one.ns, one.parent), is_dashed=False)
    outer = one.ns.rpartition("|")[0]
    return _Lane((outer, one.parents[outer]), is_dashed=True) if one.ns and outer in one.parents else _FREE


def _line(x1: int, y1: int, x2: int, y2: int, lane: _Lane) -> Line:
    return Line(min(x1, MAX_LANES - 1), y1, min(x2, MAX_LANES - 1), y2, lane.is_dashed)
