"""The list of threads, and the pages about one thread. A method for each page returns the values of its template."""

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
from redis_saver._inspector import health
from redis_saver._inspector.pages import NO_CONTENT, Query, Refused, Values, needed, number, read_address
from redis_saver._inspector.rows import (
    ORDERS,
    PREVIEWED,
    Order,
    Turn,
    drawn,
    is_own,
    list_threads,
    page_of,
    read_moment,
    tokens_of,
)
from redis_saver._inspector.source import Limit, Source
from redis_saver._inspector.values import STATES, Hides, state_of, unmarked
from redis_saver.errors import DecodeError, KeyUnavailable, ThreadNotFound

ROWS = 100
"""Page size for checkpoints, versions and writes."""
COLD_ROWS = 30
"""Page size for checkpoints of a cold saver, which also sends their values."""
SEARCHED = 300
"""Number of checkpoints that a search for a text reads."""
MAX_WRITES = 20 * ROWS
"""Maximum number of writes on a page."""
SAID, SAID_SECONDS = 6, 0.5
"""Number of checkpoints that the list reads of each thread, and its time limit in seconds for all of them."""
_UNREADABLE = (DecodeError, KeyUnavailable, ThreadNotFound)
_STOP_ASKING = 286
"""Status that stops htmx from polling."""


class ThreadPages:
    """The list of threads, and the pages about one thread."""

    def __init__(self, source: Source, hides: Hides) -> None:
        """Show the threads of a saver. `hides` hides values by names."""
        self._source, self._hides = source, hides

    def threads(self, arguments: Query) -> Values:
        """List the threads."""
        try:
            query, order, page = read_filters(arguments)
        except ValueError as error:
            return {"status": 400, "listing": None, "orders": ORDERS, "wrong": str(error)}
        limit = Limit(SEARCH_SECONDS)
        listing = list_threads(self._source, query, order, page * LISTED, limit)
        rows, opened = listing.threads[(page - 1) * LISTED :], _moment(arguments, "opened")
        return {
            "listing": listing, "is_partial": limit.is_over, "rows": rows, "said": self._said(rows), "opened": opened,
            "named": listing.damaged[:MAX_NAMED], "orders": ORDERS,
            "page": page, "is_last": page == MAX_PAGES, "has_more": listing.count > page * LISTED, "wrong": "",
        }  # fmt: skip

    def _said(self, infos: Sequence[Any]) -> dict[str, tuple[str, str]]:
        """Return the state and the text of the newest message, question or error, by thread.

        Cost: a round trip for each thread, with writes of up to 16 kB. After `SAID_SECONDS` the others are left out.
        """
        said, end = dict[str, tuple[str, str]](), time.monotonic() + SAID_SECONDS
        for info in infos:
            if time.monotonic() >= end or getattr(info, "hot", info) is None:
                continue
            try:
                entries = self._source.entries(info.thread_id, "", None, SAID, longest=PREVIEWED)
            except _UNREADABLE:  # its page says why
                continue
            rows = [row for turn in page_of(entries, SAID, self._hides)[0] for row in turn.rows]
            if (newest := next((row for row in rows if row.notice or row.preview), None)) is not None:
                said[info.thread_id] = newest.state if newest.notice else "", newest.notice or unmarked(newest.preview)
        return said

    def server(self, _: Query) -> Values:
        """Show the numbers of all threads, the memory by prefix, and what `doctor` finds."""
        return health.look(self._source, SEARCH_SECONDS, KEYS_SECONDS)

    def thread(self, arguments: Query) -> Values:
        """Show the checkpoints of a thread by turn, or the turns with a text."""
        name, text, newer = needed(arguments, "id"), arguments.get("q", ""), number(arguments, "turns")
        only_failed = arguments.get("failed") == "yes"
        is_search = bool(text) or only_failed
        info = self._source.thread(name)
        hot = getattr(info, "hot", info)
        cold = arguments.get("tier") == "cold" or hot is None
        limit = COLD_ROWS if cold else SEARCHED if is_search else ROWS
        where = name, arguments.get("ns"), _before(arguments), limit + 1
        entries = self._source.entries(*where, cold=cold, longest=PREVIEWED)
        turns, older = page_of(entries, limit, self._hides, newer)
        found = self._found(turns, text, only_failed=only_failed) if is_search else set()
        shown_turns = [turn for turn in turns if not is_search or any(row.entry[:2] in found for row in turn.rows)]
        rows = [row for turn in shown_turns for row in turn.rows]
        drawings = {row.entry[:2]: each for row, each in zip(rows, drawn([row.entry for row in rows]), strict=True)}
        chosen = read_address(arguments["a"]) if "a" in arguments else None
        return {
            "name": name, "info": info, "turns": shown_turns, "drawings": drawings, "found": found, "older": older,
            "newer": newer + len(turns), "looked": len(entries[:limit]), "cold": cold, "chosen": chosen, "text": text,
            "is_search": is_search,
            "address": Address, "newest": next((row.entry.id for row in rows if not row.entry.ns), None),
            "seen": hot and _mark(hot),
        }  # fmt: skip

    def _found(self, turns: Sequence[Turn], text: str, *, only_failed: bool) -> set[tuple[str, str]]:
        """Return namespace and id of each checkpoint that has a text and, with `only_failed`, failed."""
        rows = [row for turn in turns for row in turn.rows if row.has_failed or not only_failed]
        return {row.entry[:2] for row in rows if not text or row.has(text, self._hides)}

    def newer(self, arguments: Query) -> Values:
        """Tell htmx if a thread has changed since its page was made. Otherwise the answer is empty."""
        name, seen = needed(arguments, "id"), needed(arguments, "seen")
        info = self._source.in_redis(name)
        has_left_redis = info is None and self._source.tiers is not None  # cold may still have it
        if has_left_redis or _mark(info) == seen:
            return {"status": NO_CONTENT}
        return {"status": _STOP_ASKING, "name": name, "info": info}

    def cost(self, arguments: Query) -> Values:
        """Show how many bytes the channels and checkpoints of a thread take."""
        name = needed(arguments, "thread")
        info = self._source.thread(name)
        cost = measured(self._source, name, MORE_SECONDS if arguments.get("long") == "yes" else FIRST_SECONDS)
        return {"name": name, "info": info, "in_redis": getattr(info, "hot", info), "cost": cost, "more": MORE_SECONDS}

    def channel(self, arguments: Query) -> Values:
        """Show the versions of a channel."""
        name, channel, ns = needed(arguments, "thread"), needed(arguments, "channel"), arguments.get("ns", "")
        info = self._source.thread(name)
        versions = self._source.history(name, channel, ns, ROWS + 1)
        return {
            "name": name, "info": info, "channel": channel, "ns": ns, "versions": versions[:ROWS],
            "most": max((version.bytes for version in versions), default=0), "has_more": len(versions) > ROWS,
        }  # fmt: skip

    def writes(self, arguments: Query) -> Values:
        """Show the writes of a thread."""
        name = needed(arguments, "thread")
        info, limit = self._source.thread(name), min(max(number(arguments, "limit"), ROWS), MAX_WRITES)
        writes = self._source.writes(name, arguments.get("ns"), limit + 1)
        more = min(limit * 2, MAX_WRITES) if len(writes) > limit < MAX_WRITES else None
        rows = [write for write in writes[:limit] if arguments.get("own") == "yes" or not is_own(write.channel)]
        folded = len(writes[:limit]) - len(rows)
        return {"name": name, "info": info, "writes": rows, "folded": folded, "more": more}


def _before(arguments: Query) -> str | None:
    """Return the id below which a page begins: that of the last page, or of a moment."""
    until = _moment(arguments, "until")
    return arguments.get("before") or (times.id_at(until) if until else None)


def _mark(info: Any) -> str:
    """Return a text that changes if the newest checkpoint or the state changes. Empty if there is no thread."""
    return "" if info is None else f"{state_of(info)} {info.checkpoint_id}"


# -- costs

FIRST_SECONDS, MORE_SECONDS = 0.05, 20.0
"""Time limits in seconds: the default, and the one if the user asks for more."""
LARGEST = 20
"""Maximum number of checkpoints in the list of the largest ones."""


@dataclass(slots=True)
class ChannelCost:
    """Bytes of a channel, as stored."""

    path: str
    """Nodes whose subgraph has the channel, joined by `|`. Empty for the root."""
    channel: str
    ns: str | None
    """The namespace. None if there are several, one for each call of the subgraph."""
    versions: int = 0
    """Number of versions with a value."""
    new: int = 0
    """Total of the bytes that each version added to the previous one."""
    written: int = 0
    """Bytes of pending writes that no value has, too."""

    @property
    def stored(self) -> int:
        """Bytes of values and pending writes."""
        return self.new + self.written


class CheckpointCost(NamedTuple):
    """Bytes that a checkpoint added."""

    where: Address
    step: int | None
    new: int
    """Bytes of values."""
    written: int
    """Bytes of pending writes that no value has, too."""
    channel: str | None
    """The channel that added most."""

    @property
    def stored(self) -> int:
        """Bytes of values and pending writes."""
        return self.new + self.written


@dataclass(slots=True)
class ThreadCost:
    """Bytes of the checkpoints of a thread that were read."""

    channels: list[ChannelCost] = field(default_factory=list)
    """Channels, largest first."""
    largest: list[CheckpointCost] = field(default_factory=list)
    """The checkpoints that added most, largest first."""
    looked: int = 0
    """Number of checkpoints that were read, newest first."""
    is_partial: bool = False
    """True if the time was up before all checkpoints were read."""
    tokens: int = 0
    """Total tokens of the messages in their pending writes, each once."""


def measured(source: Source, thread: str, seconds: float) -> ThreadCost:
    """Add up the bytes of a thread's checkpoints, newest first. Stops after `seconds`, but reads at least one page."""
    total, end = ThreadCost(), time.monotonic() + seconds
    by_name, tokens, counted = dict[tuple[str, str], ChannelCost](), dict[str, int](), set[bytes]()

    def is_over() -> bool:
        total.is_partial = total.looked > 0 and time.monotonic() >= end
        return total.is_partial

    def cost_of(entry: Entry, channel: str) -> ChannelCost:
        path = "|".join(level.partition(":")[0] for level in entry.ns.split("|"))
        cost = by_name.setdefault((path, channel), ChannelCost(path, channel, entry.ns))
        if cost.ns != entry.ns:
            cost.ns = None
        return cost

    def checkpoints() -> Iterator[CheckpointCost]:
        for entry, sizes in source.costs(thread, is_over, PREVIEWED):
            total.looked += 1
            tokens.update(tokens_of(entry, [write.value for write in entry.writes]))
            added = {channel: size.new for channel, size in sizes.items()}
            for channel, size in sizes.items():
                if size.new:
                    cost = cost_of(entry, channel)
                    cost.versions += 1
                    cost.new += size.new
            new = sum(added.values())
            for stored in entry.sizes.values():
                counted.update(stored.chunks)
            for write in entry.writes:  # a value of a child, which came before, may have its chunks
                shared = sum(size for chunk, size in write.chunks.items() if chunk in counted)
                counted.update(write.chunks)
                cost_of(entry, write.channel).written += write.size - shared
                added[write.channel] = added.get(write.channel, 0) + write.size - shared
            most = max(added, key=added.__getitem__, default=None)
            where = Address(thread, entry.ns, entry.id)
            yield CheckpointCost(where, entry.step, new, sum(added.values()) - new, most)

    total.largest = heapq.nlargest(LARGEST, checkpoints(), key=lambda cost: cost.stored)
    total.channels, total.tokens = sorted(by_name.values(), key=lambda cost: -cost.stored), sum(tokens.values())
    return total


# -- the list of threads

LISTED = 50
"""Page size of the list of threads."""
MAX_PAGES = 20
"""Maximum number of pages. It limits how many threads are kept in memory. Filters find the others."""
SEARCH_SECONDS = 5.0
"""Time limit in seconds of a search. The page shows the threads found until then."""
KEYS_SECONDS = 2.0
"""Time limit in seconds for counting all keys of the server."""
MAX_NAMED = 20
"""Maximum number of damaged threads that are named."""
_EITHER = {"": None, "yes": True, "no": False}


def read_filters(fields: Query) -> tuple[ThreadQuery, Order, int]:
    """Read the query, the order and the page number from the fields of the form.

    Raises:
        ValueError: A field is invalid. The message names the field, and says what to write.
    """
    page = number(fields, "page") if "page" in fields else 1
    if not 1 <= page <= MAX_PAGES:
        raise ValueError(f"page={page}: write a number from 1 to {MAX_PAGES}")
    query = ThreadQuery(
        prefix=fields.get("prefix", ""),
        state=_choice(fields, "state", ("", *STATES)) or None,  # type: ignore[arg-type]
        updated_after=_moment(fields, "after"),
        updated_before=_moment(fields, "until"),
        min_bytes=number(fields, "min_bytes"),
        expires_within=_span(fields, "expires"),
        pinned=_EITHER[_choice(fields, "pinned", _EITHER)],
        dirty=_EITHER[_choice(fields, "dirty", _EITHER)],
        owned=_EITHER[_choice(fields, "owned", _EITHER)],
    )
    return query, _choice(fields, "sort", ("", *ORDERS)) or "updated", page  # type: ignore[return-value]


def _choice(fields: Query, name: str, choices: Collection[str]) -> str:
    if (text := fields.get(name, "")) not in choices:
        raise ValueError(f"{name}={shown(text)}: write {', '.join(filter(None, choices))}, or nothing")
    return text


def _span(fields: Query, name: str) -> timedelta | None:
    text = fields.get(name, "").strip()
    return times.parse(text, name=name) if text else None


def _moment(fields: Query, name: str) -> datetime | None:
    """Read a moment from a field.

    Raises:
        Refused: It is none.
    """
    text = fields.get(name, "").strip()
    try:
        return read_moment(text) if text else None
    except ValueError as error:
        raise Refused(f"{name}= {error}") from None
