"""The pages about a thread, each with the function that answers it: its tree, costs, channels and writes."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from starlette.requests import Request
from starlette.responses import Response

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry
from redis_saver._common.config import Address
from redis_saver._inspector.pages import Pages, address_text, asked, needed, number, read_address
from redis_saver._inspector.source import Source
from redis_saver._inspector.thread_list import found_threads, read_filters
from redis_saver._inspector.values import state_of

ROWS = 100
"""Checkpoints on a page."""
COLD_ROWS = 30
"""Page size for a cold saver, which also sends values."""
_STOP_ASKING = 286
"""The status with which htmx asks no more."""


class ThreadPages:
    """The list of threads, and the pages about one."""

    def __init__(self, source: Source, pages: Pages) -> None:
        """Show what a saver has."""
        self._source, self._pages = source, pages

    def threads(self, request: Request) -> Response:
        """List the threads."""
        arguments = asked(request)
        try:
            filters = read_filters(arguments)
        except ValueError as error:
            return self._pages.page(request, "threads.html", status=400, found=None, wrong=str(error))
        return self._pages.page(request, "threads.html", found=found_threads(self._source, filters), wrong="")

    def thread(self, request: Request) -> Response:
        """Show a thread as a tree of checkpoints."""
        arguments = asked(request)
        name = needed(arguments, "id")
        info = self._source.thread(name)
        hot = getattr(info, "hot", info)
        cold = arguments.get("tier") == "cold" or hot is None
        rows = COLD_ROWS if cold else ROWS
        found = self._source.entries(name, arguments.get("ns"), arguments.get("before"), rows + 1, cold=cold)
        by_place = {(one.ns, one.id): one for one in found}
        shown, older = _page(found, rows)
        chosen = read_address(arguments["a"]) if "a" in arguments else None
        told = [_told(name, one, by_place.get((one.ns, one.parent or ""))) for one in shown]
        lines = list(zip(shown, drawn(shown), told, strict=True))
        return self._pages.page(
            request, "thread.html", name=name, info=info, lines=lines, older=older, cold=cold, chosen=chosen,
            seen=hot and _mark(hot),
        )  # fmt: skip

    def newer(self, request: Request) -> Response:
        """Answer htmx whether a thread has changed since its page was made.

        Without a change the answer is empty, and the page stays.
        """
        arguments = asked(request)
        name, seen = needed(arguments, "id"), needed(arguments, "seen")
        info = self._source.in_redis(name)
        if _mark(info) == seen or (info is None and self._source.tiers is not None):  # Redis lets go what cold has
            return Response(status_code=204)
        return self._pages.page(request, "newer.html", status=_STOP_ASKING, name=name, info=info)

    def cost(self, request: Request) -> Response:
        """Show what a thread costs."""
        arguments = asked(request)
        name = needed(arguments, "thread")
        info = self._source.thread(name)
        seconds = MORE_SECONDS if arguments.get("long") == "yes" else FIRST_SECONDS
        found = measured(self._source, name, seconds)
        in_redis = getattr(info, "hot", info)
        return self._pages.page(
            request, "cost.html", name=name, info=info, in_redis=in_redis, found=found, seconds=MORE_SECONDS
        )

    def channel(self, request: Request) -> Response:
        """Show the versions of a channel."""
        arguments = asked(request)
        name, channel, ns = needed(arguments, "thread"), needed(arguments, "channel"), arguments.get("ns", "")
        info = self._source.thread(name)
        found = self._source.history(name, channel, ns, ROWS + 1)
        most = max((one.bytes for one in found), default=0)
        return self._pages.page(
            request, "channel.html", name=name, info=info, channel=channel, ns=ns, found=found[:ROWS], most=most,
            more=len(found) > ROWS,
        )  # fmt: skip

    def writes(self, request: Request) -> Response:
        """Show the writes of a thread."""
        arguments = asked(request)
        name = needed(arguments, "thread")
        info, limit = self._source.thread(name), min(max(number(arguments, "limit"), ROWS), 20 * ROWS)
        found = self._source.writes(name, arguments.get("ns"), limit + 1)
        more = min(limit * 2, 20 * ROWS) if len(found) > limit < 20 * ROWS else None
        return self._pages.page(request, "writes.html", name=name, info=info, found=found[:limit], more=more)


def _page(found: Sequence[Entry], rows: int) -> tuple[Sequence[Entry], str | None]:
    """Cut a page of checkpoints, and give the id below which the next page begins.

    Checkpoints of several namespaces that share an id stay together.
    """
    if len(found) <= rows:
        return found, None
    end = next((at for at in range(rows, 0, -1) if found[at].id != found[at - 1].id), rows)
    return found[:end], found[end - 1].id


def _told(thread: str, one: Entry, parent: Entry | None) -> dict[str, Any]:
    """Template values of a row."""
    channels = {write.channel for write in one.writes}
    state = "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""
    place = Address(thread, one.ns, one.id)
    ran = auditing.ran_between(parent, one) if parent or one.parent is None else ()
    return {
        "state": state,
        "tasks": len({write.task_id for write in one.writes}),
        "ran": ran,
        "place": address_text(place),
    }


def _mark(info: Any) -> str:
    """Mark of a thread that changes with its newest checkpoint and its state. Empty if Redis has no such thread."""
    return "" if info is None else f"{state_of(info)} {info.checkpoint_id}"


MAX_LANES = 12
"""Lanes that are drawn; those beyond lie on the last one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line inside a row. `x` counts lanes, `y` is in percent: top 0, middle 50, bottom 100."""

    x1: int
    y1: int
    x2: int
    y2: int
    is_dashed: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint in a drawing."""

    lane: int
    lines: tuple[Line, ...]
    width: int
    """Width in lanes."""


@dataclass(slots=True)
class _Lane:
    """A lane that goes down to a checkpoint: its namespace and id."""

    wanted: tuple[str, str]
    is_dashed: bool


def drawn(found: Sequence[Entry]) -> list[Row]:
    """The rows of some checkpoints, newest first."""
    lanes, rows = list[_Lane | None](), list[Row]()
    for one in found:
        here = (one.ns, one.id)
        coming = [at for at, lane in enumerate(lanes) if lane is not None and lane.wanted == here]
        solid = [at for at in coming if not _is_dashed(lanes[at])]
        mine = (solid or [_free(lanes)])[0]
        lines = [_line(at, 0, mine, 50, dashed=_is_dashed(lanes[at])) for at in coming]
        lines += [
            _line(at, 0, at, 100, dashed=lane.is_dashed)
            for at, lane in enumerate(lanes)
            if lane is not None and at not in coming
        ]
        for at in coming:
            lanes[at] = None
        if (below := _below(one)) is not None:
            if mine == len(lanes):
                lanes.append(None)
            lanes[mine] = below
            lines.append(_line(mine, 50, mine, 100, dashed=below.is_dashed))
        while lanes and lanes[-1] is None:
            lanes.pop()
        widest = max([mine, *(end for line in lines for end in (line.x1, line.x2))])
        rows.append(Row(min(mine, MAX_LANES - 1), tuple(dict.fromkeys(lines)), min(widest, MAX_LANES - 1) + 1))
    return rows


def _below(one: Entry) -> _Lane | None:
    """The lane below a checkpoint: to its parent, or from a subgraph's first one to the checkpoint that called it."""
    if one.parent is not None:
        return _Lane((one.ns, one.parent), is_dashed=False)
    if not one.ns:
        return None
    outer = one.ns.rpartition("|")[0]
    return _Lane((outer, one.parents[outer]), is_dashed=True) if outer in one.parents else None


def _free(lanes: Sequence[_Lane | None]) -> int:
    return next((at for at, lane in enumerate(lanes) if lane is None), len(lanes))


def _is_dashed(lane: _Lane | None) -> bool:
    return lane is not None and lane.is_dashed


def _line(x1: int, y1: int, x2: int, y2: int, *, dashed: bool) -> Line:
    return Line(min(x1, MAX_LANES - 1), y1, min(x2, MAX_LANES - 1), y2, dashed)


FIRST_SECONDS, MORE_SECONDS = 0.3, 20.0
"""Time limits in seconds of a first look, and of a longer one."""
LARGEST = 20
"""Checkpoints that are named."""


@dataclass(slots=True)
class ChannelCost:
    """Size of a channel, in bytes as stored."""

    path: str
    """Its path in the graph: the nodes whose subgraph has it; empty for the root."""
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
        """All bytes that are stored."""
        return self.new + self.written


class CheckpointCost(NamedTuple):
    """Bytes that a checkpoint added."""

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
        """All bytes that it added."""
        return self.new + self.written


@dataclass(slots=True)
class ThreadCost:
    """Size of a thread, of the checkpoints that were read."""

    channels: list[ChannelCost] = field(default_factory=list)
    """Channels, largest first."""
    largest: list[CheckpointCost] = field(default_factory=list)
    """The checkpoints that added most, largest first."""
    looked: int = 0
    """Number of checkpoints that were read, newest first."""
    is_partial: bool = False
    """True if time ran out before all were read."""


def measured(source: Source, thread: str, seconds: float) -> ThreadCost:
    """Add up the costs of a thread's newest checkpoints, at least a page of them whatever the time."""
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
    """Yield the costs of each checkpoint, and add them to those of its channels."""
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
