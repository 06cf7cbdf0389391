"""The list of threads, and the pages about one. Each has a function that makes the values of its template."""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from redis_saver._checkpoint.auditing import Entry
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._common import times
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._inspector.pages import NO_CONTENT, Query, Values, needed, number, read_address
from redis_saver._inspector.rows import ORDERS, drawn, list_threads, read_moment, tree_row
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import state_of

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
            query, order, page = read_filters(arguments)
        except ValueError as error:
            return {"status": 400, "listing": None, "wrong": str(error)}
        end = time.monotonic() + SEARCH_SECONDS
        listing = list_threads(self._source, query, order, page * LISTED, lambda: time.monotonic() >= end)
        return {
            "listing": listing, "rows": listing.threads[(page - 1) * LISTED :], "named": listing.damaged[:MAX_NAMED],
            "page": page, "is_last": page == MAX_PAGES, "has_more": listing.count > page * LISTED, "wrong": "",
        }  # fmt: skip

    def thread(self, arguments: Query) -> Values:
        """Show a thread as a tree of checkpoints."""
        name = needed(arguments, "id")
        info = self._source.thread(name)
        hot = getattr(info, "hot", info)
        cold = arguments.get("tier") == "cold" or hot is None
        rows = COLD_ROWS if cold else ROWS
        found = self._source.entries(name, arguments.get("ns"), arguments.get("before"), rows + 1, cold=cold)
        by_id = {(entry.ns, entry.id): entry for entry in found}
        entries, older = _page(found, rows)
        chosen = read_address(arguments["a"]) if "a" in arguments else None
        lines = [
            (tree_row(entry, by_id.get((entry.ns, entry.parent or ""))), drawing, Address(name, entry.ns, entry.id))
            for entry, drawing in zip(entries, drawn(entries), strict=True)
        ]
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


def _mark(info: Any) -> str:
    """Mark of a thread that changes with its newest checkpoint and its state. Empty if Redis has no such thread."""
    return "" if info is None else f"{state_of(info)} {info.checkpoint_id}"


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
"""Maximum number of damaged threads that are named."""
_STATES = ("", "active", "interrupted", "failed")
_EITHER = {"": None, "yes": True, "no": False}


def read_filters(fields: Query) -> tuple[ThreadQuery, str, int]:
    """Read the query, the order and the page from the fields of the form.

    Raises:
        ValueError: A field makes no sense. The message names it, and says what to write.
    """
    page = number(fields, "page") if "page" in fields else 1
    if not 1 <= page <= MAX_PAGES:
        raise ValueError(f"page={page}: write a number from 1 to {MAX_PAGES}")
    query = ThreadQuery(
        prefix=fields.get("prefix", ""),
        state=_choice(fields, "state", _STATES) or None,  # type: ignore[arg-type]
        updated_after=_moment(fields, "after"),
        updated_before=_moment(fields, "until"),
        min_bytes=number(fields, "min_bytes"),
        expires_within=_span(fields, "expires"),
        pinned=_EITHER[_choice(fields, "pinned", _EITHER)],
        dirty=_EITHER[_choice(fields, "dirty", _EITHER)],
        owned=_EITHER[_choice(fields, "owned", _EITHER)],
    )
    return query, _choice(fields, "sort", ("", *ORDERS)) or "updated", page


def _choice(fields: Query, name: str, choices: Collection[str]) -> str:
    if (text := fields.get(name, "")) not in choices:
        raise ValueError(f"{name}={shown(text)}: write {', '.join(filter(None, choices))}, or nothing")
    return text


def _span(fields: Query, name: str) -> timedelta | None:
    text = fields.get(name, "").strip()
    return times.parse(text, name=name) if text else None


def _moment(fields: Query, name: str) -> datetime | None:
    text = fields.get(name, "").strip()
    return read_moment(text) if text else None
