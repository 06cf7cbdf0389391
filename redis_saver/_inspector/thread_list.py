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
"""How long threads are looked for; what was found by then is shown."""
MAX_NAMED = 20
"""The most damaged threads that are named."""
_NEVER = datetime.min.replace(tzinfo=timezone.utc)
_ORDERS: dict[str, Callable[[Any], Any]] = {
    "updated": lambda one: one.updated_at or _NEVER,
    "bytes": lambda one: one.bytes,
    "checkpoints": lambda one: one.checkpoints,
    "expires": lambda one: -(timedelta.max if one.ttl is None else one.ttl).total_seconds(),
    "name": lambda one: [-ord(letter) for letter in one.thread_id] + [1],
}
"""What comes first is the greatest of these."""
_EITHER = {"": None, "yes": True, "no": False}


class Filters(NamedTuple):
    """What a list of threads is asked for."""

    asked: ThreadQuery
    order: str
    page: int


@dataclass(slots=True)
class Found:
    """A page of threads."""

    threads: list[Any]
    page: int
    count: int = 0
    """How many match, as far as was looked."""
    bytes: int = 0
    is_partial: bool = False
    """Whether time was over before all were looked at."""
    damaged: int = 0
    """How many cannot be read, whatever is asked for but a prefix."""
    named: list[Damaged] = field(default_factory=list)
    """The first of those."""

    @property
    def has_more(self) -> bool:
        """Whether there is another page."""
        return self.count > self.page * ROWS and self.page < MAX_PAGES

    @property
    def is_limited(self) -> bool:
        """Whether there are more, which no page shows."""
        return self.count > MAX_PAGES * ROWS and self.page == MAX_PAGES


def read_filters(given: Mapping[str, str]) -> Filters:
    """Read the fields of the form.

    Raises:
        ValueError: One makes no sense. The message names it, and says what to write.
    """
    least = given.get("min_bytes", "").strip() or "0"
    if not (least.isascii() and least.isdigit()):
        raise ValueError(f"at least {least!r} bytes: write a number")
    order, page = given.get("sort") or "updated", given.get("page") or "1"
    if order not in _ORDERS:
        raise ValueError(f"sort={order!r}: write {', '.join(_ORDERS)}")
    if not (page.isascii() and page.isdigit() and 1 <= int(page[:9]) <= MAX_PAGES):
        raise ValueError(f"page={page[:20]!r}: write a number from 1 to {MAX_PAGES}")
    state = given.get("state") or None
    if state not in (None, "active", "interrupted", "failed"):
        raise ValueError(f"state={state!r}: write active, interrupted or failed")
    asked = ThreadQuery(
        prefix=given.get("prefix", ""),
        state=state,  # type: ignore[arg-type]
        updated_after=_moment(given.get("after", ""), "updated after"),
        updated_before=_moment(given.get("until", ""), "not updated since"),
        min_bytes=int(least[:18]),
        expires_within=_span(given.get("expires", "").strip()),
        pinned=_either(given, "pinned"),
        dirty=_either(given, "dirty"),
        owned=_either(given, "owned"),
    )
    return Filters(asked, order, int(page))


def _span(text: str) -> timedelta | None:
    try:
        return times.parse(text, name="expires within") if text else None
    except OverflowError:
        return timedelta.max


def _either(given: Mapping[str, str], name: str) -> bool | None:
    if (text := given.get(name, "")) not in _EITHER:
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
    """A page of threads. All that match are looked at; in memory are those of the pages up to this one, and the names of all."""
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
