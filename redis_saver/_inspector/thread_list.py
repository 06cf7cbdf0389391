"""The list of threads: which are asked for, in which order, and a page of those."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._common import times
from redis_saver._inspector.source import Source
from redis_saver._tiered.thread_info import Damaged

ROWS = 50
MAX_PAGES = 20
"""Pages of an order: more threads are not kept in memory. Filters find the others."""
SECONDS = 5.0
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
        return self.count > self.page * ROWS and self.page < MAX_PAGES

    @property
    def is_limited(self) -> bool:
        """True if there are more threads than pages show."""
        return self.count > MAX_PAGES * ROWS and self.page == MAX_PAGES


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
    """Make a page of threads.

    Each match is read. Memory holds those of the pages up to this one, and the names of all.
    """
    found = Found([], filters.page)
    best = heapq.nlargest(filters.page * ROWS, _drawn(source, filters, found), key=_ORDERS[filters.order])
    found.threads = best[(filters.page - 1) * ROWS :]
    return found


def _drawn(source: Source, filters: Filters, found: Found) -> Iterator[Any]:
    """The threads, until time is over. Damaged ones are noted, and left out."""
    end = time.monotonic() + SECONDS

    def is_over() -> bool:
        found.is_partial = time.monotonic() >= end
        return found.is_partial

    for one in source.threads(filters.asked, is_over):
        if isinstance(one, Damaged):
            found.damaged += 1
            if len(found.named) < MAX_NAMED:
                found.named.append(one)
            continue
        found.count += 1
        found.bytes += one.bytes
        yield one
