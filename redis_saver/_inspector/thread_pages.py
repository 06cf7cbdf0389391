"""The list of threads, and the pages about one. Each has a function that makes the values of its template."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._common import times
from redis_saver._common.config import Address
from redis_saver._inspector.pages import NO_CONTENT, Query, Values, address_text, needed, number, read_address
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import state_of
from redis_saver._tiered.thread_info import Damaged

ROWS = 100
"""Checkpoints on a page."""
COLD_ROWS = 30
"""Page size for a cold saver, which also sends values."""
_STOP_ASKING = 286
"""The status with which htmx asks no more."""


class ThreadPages:
    """The list of threads, and the pages about one."""

    def __init__(self, source: Source) -> None:
        """Show what a saver has."""
        self._source = source

    def threads(self, arguments: Query) -> Values:
        """List the threads."""
        try:
            filters = read_filters(arguments)
        except ValueError as error:
            return {"status": 400, "found": None, "wrong": str(error)}
        return {"found": found_threads(self._source, filters), "wrong": ""}

    def thread(self, arguments: Query) -> Values:
        """Show a thread as a tree of checkpoints."""
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
        seen = hot and _mark(hot)
        return {
            "name": name, "info": info, "lines": lines, "older": older, "cold": cold, "chosen": chosen, "seen": seen,
        }  # fmt: skip

    def newer(self, arguments: Query) -> Values:
        """Answer htmx whether a thread has changed since its page was made.

        Without a change the answer is empty, and the page stays.
        """
        name, seen = needed(arguments, "id"), needed(arguments, "seen")
        info = self._source.in_redis(name)
        if _mark(info) == seen or (info is None and self._source.tiers is not None):  # Redis lets go what cold has
            return {"status": NO_CONTENT}
        return {"status": _STOP_ASKING, "name": name, "info": info}

    def cost(self, arguments: Query) -> Values:
        """Show what a thread costs."""
        name = needed(arguments, "thread")
        info = self._source.thread(name)
        seconds = MORE_SECONDS if arguments.get("long") == "yes" else FIRST_SECONDS
        found = measured(self._source, name, seconds)
        in_redis = getattr(info, "hot", info)
        return {"name": name, "info": info, "in_redis": in_redis, "found": found, "seconds": MORE_SECONDS}

    def channel(self, arguments: Query) -> Values:
        """Show the versions of a channel."""
        name, channel, ns = needed(arguments, "thread"), needed(arguments, "channel"), arguments.get("ns", "")
        info = self._source.thread(name)
        found = self._source.history(name, channel, ns, ROWS + 1)
        most, more = max((one.bytes for one in found), default=0), len(found) > ROWS
        return {
            "name": name, "info": info, "channel": channel, "ns": ns, "found": found[:ROWS], "most": most, "more": more,
        }  # fmt: skip

    def writes(self, arguments: Query) -> Values:
        """Show the writes of a thread."""
        name = needed(arguments, "thread")
        info, limit = self._source.thread(name), min(max(number(arguments, "limit"), ROWS), 20 * ROWS)
        found = self._source.writes(name, arguments.get("ns"), limit + 1)
        more = min(limit * 2, 20 * ROWS) if len(found) > limit < 20 * ROWS else None
        return {"name": name, "info": info, "found": found[:limit], "more": more}


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
    channels, tasks = {write.channel for write in one.writes}, {write.task_id for write in one.writes}
    state = "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""
    ran = auditing.ran_between(parent, one) if parent or one.parent is None else ()
    return {"state": state, "tasks": len(tasks), "ran": ran, "place": address_text(Address(thread, one.ns, one.id))}


def _mark(info: Any) -> str:
    """Mark of a thread that changes with its newest checkpoint and its state. Empty if Redis has no such thread."""
    return "" if info is None else f"{state_of(info)} {info.checkpoint_id}"


MAX_LANES = 12
"""Lanes that are drawn; those beyond lie on the last one."""


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
    by_name: dict[tuple[str, str], ChannelCost] = {}

    def is_over() -> bool:
        found.is_partial = found.looked > 0 and time.monotonic() >= end
        return found.is_partial

    def cost_of(one: Entry, channel: str) -> ChannelCost:
        path = "|".join(level.partition(":")[0] for level in one.ns.split("|"))
        cost = by_name.setdefault((path, channel), ChannelCost(path, channel, one.ns))
        if cost.ns != one.ns:
            cost.ns = None
        return cost

    def checkpoints() -> Iterator[CheckpointCost]:
        for one, sizes in source.costs(thread, is_over):
            found.looked += 1
            added = {channel: size.new for channel, size in sizes.items()}
            for channel, size in sizes.items():
                if size.new:
                    cost = cost_of(one, channel)
                    cost.versions += 1
                    cost.new += size.new
                    cost.shared += size.shared
            new = sum(added.values())
            for write in one.writes:
                cost_of(one, write.channel).written += write.size
                added[write.channel] = added.get(write.channel, 0) + write.size
            most = max(added, key=added.__getitem__, default=None)
            yield CheckpointCost(Address(thread, one.ns, one.id), one.step, new, sum(added.values()) - new, most)

    found.largest = heapq.nlargest(LARGEST, checkpoints(), key=lambda one: one.stored)
    found.channels = sorted(by_name.values(), key=lambda one: -one.stored)
    return found


# -- the list of threads

LISTED = 50
"""Threads on a page of the list."""
MAX_PAGES = 20
"""Pages of an order: more threads are not kept in memory. Filters find the others."""
SEARCH_SECONDS = 5.0
"""Time limit in seconds of a search. The page shows what was found until then."""
MAX_NAMED = 20
"""The most damaged threads that are named."""
_NEVER = datetime.min.replace(tzinfo=timezone.utc)
_ORDERS: dict[str, Callable[[Any], Any]] = {
    "updated": lambda info: info.updated_at or _NEVER,
    "bytes": lambda info: info.bytes,
    "checkpoints": lambda info: info.checkpoints,
    "expires": lambda info: -(timedelta.max if info.ttl is None else info.ttl).total_seconds(),
    "name": lambda info: [-ord(letter) for letter in info.thread_id] + [1],
}
"""Sort keys. The greatest comes first."""
_EITHER = {"": None, "yes": True, "no": False}


class Filters(NamedTuple):
    """The query, the order and the page of a list of threads."""

    asked: ThreadQuery
    order: str
    page: int


@dataclass(slots=True)
class Found:
    """A page of threads."""

    threads: list[Any]
    page: int
    count: int = 0
    """Number of matches so far."""
    bytes: int = 0
    is_partial: bool = False
    """True if time ran out before all threads were read."""
    damaged: int = 0
    """Number of threads with the prefix that cannot be read, whether or not they match the other filters."""
    named: list[Damaged] = field(default_factory=list)
    """The first of those."""

    @property
    def has_more(self) -> bool:
        """True if there is another page."""
        return self.count > self.page * LISTED and self.page < MAX_PAGES

    @property
    def is_limited(self) -> bool:
        """True if there are more threads than pages show."""
        return self.count > MAX_PAGES * LISTED and self.page == MAX_PAGES


def read_filters(fields: Mapping[str, str]) -> Filters:
    """Read the fields of the form.

    Raises:
        ValueError: One makes no sense. The message names it, and says what to write.
    """
    least = fields.get("min_bytes", "").strip() or "0"
    if not (least.isascii() and least.isdigit()):
        raise ValueError(f"at least {least!r} bytes: write a number")
    order, page = fields.get("sort") or "updated", fields.get("page") or "1"
    if order not in _ORDERS:
        raise ValueError(f"sort={order!r}: write {', '.join(_ORDERS)}")
    if not (page.isascii() and page.isdigit() and 1 <= int(page[:9]) <= MAX_PAGES):
        raise ValueError(f"page={page[:20]!r}: write a number from 1 to {MAX_PAGES}")
    state = fields.get("state") or None
    if state not in (None, "active", "interrupted", "failed"):
        raise ValueError(f"state={state!r}: write active, interrupted or failed")
    asked = ThreadQuery(
        prefix=fields.get("prefix", ""),
        state=state,  # type: ignore[arg-type]
        updated_after=_moment(fields.get("after", ""), "updated after"),
        updated_before=_moment(fields.get("until", ""), "not updated since"),
        min_bytes=int(least[:18]),
        expires_within=_span(fields.get("expires", "").strip()),
        pinned=_either(fields, "pinned"),
        dirty=_either(fields, "dirty"),
        owned=_either(fields, "owned"),
    )
    return Filters(asked, order, int(page))


def _span(text: str) -> timedelta | None:
    try:
        return times.parse(text, name="expires within") if text else None
    except OverflowError:
        return timedelta.max


def _either(fields: Mapping[str, str], name: str) -> bool | None:
    if (text := fields.get(name, "")) not in _EITHER:
        raise ValueError(f"{name}={text!r}: write yes, no, or nothing")
    return _EITHER[text]


def _moment(text: str, name: str) -> datetime | None:
    """A time: how long ago, or ISO 8601."""
    if not (text := text.strip()):
        return None
    if text[-1:].upper() == "Z" or "-" in text:
        if (found := times.moment(text)) is not None:
            return found
        raise ValueError(f"{name} {text!r}: write how long ago (2h), or a time such as 2026-11-25T03:00:00Z")
    try:
        return datetime.now(timezone.utc) - times.parse(text, name=name)
    except OverflowError:
        return _NEVER


def found_threads(source: Source, filters: Filters) -> Found:
    """Make a page of threads, of those that are found until time is over.

    Each match is read. Memory holds those of the pages up to this one, and the names of all.
    """
    found, end = Found([], filters.page), time.monotonic() + SEARCH_SECONDS

    def is_over() -> bool:
        found.is_partial = time.monotonic() >= end
        return found.is_partial

    def readable() -> Iterator[Any]:
        for one in source.threads(filters.asked, is_over):
            if isinstance(one, Damaged):
                found.damaged += 1
                if len(found.named) < MAX_NAMED:
                    found.named.append(one)
            else:
                found.count += 1
                found.bytes += one.bytes
                yield one

    best = heapq.nlargest(filters.page * LISTED, readable(), key=_ORDERS[filters.order])
    found.threads = best[(filters.page - 1) * LISTED :]
    return found
