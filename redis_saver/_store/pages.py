"""Pages of a partition's items in order, which the server makes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import ask
from redis_saver._store.calling import refresh as refreshing
from redis_saver._store.context import StoreContext
from redis_saver._store.items import CHECKSUM, Entry
from redis_saver._store.places import Place
from redis_saver.errors import reading_store

ITEMS_PER_CALL = 1000


class Page(NamedTuple):
    """What a search read. Nobody changes it."""

    token: bytes
    """That of the partition in the directory; `0` if there is no such partition."""
    entries: Sequence[Entry]
    """The items, newest first: all that there are between the first one and the last one."""


class _Reply(NamedTuple):
    """As much of a page as one reply holds."""

    token: bytes
    below: bytes
    """The version to go on below; nothing at the end."""
    passed: int
    """How many items were passed over before it."""
    entries: Sequence[Entry]


NOTHING = Page(b"", ())


def read(context: StoreContext, place: Place, offset: int, limit: int, refresh: bool) -> Operation[Page]:
    """Items of a namespace and of those below it, newest first.

    One round trip for a thousand items, or a megabyte that this process does not know: an item is not sent again if its version is the same as when this
    process read the same page.
    """
    name = "page", place, offset, limit
    known: Page = context.remembered.get(name) or NOTHING
    entries: list[Entry] = []
    tokens: list[bytes] = []
    below = b""
    moves = refresh and not context.has_documents
    while True:
        size = min(limit - len(entries), ITEMS_PER_CALL)
        reply = yield from _read(context, place, below, offset, size, moves, known)
        if reply is None:
            moves = False
            continue
        entries += reply.entries
        tokens.append(reply.token)
        below, offset = reply.below, max(0, offset - reply.passed)
        if not below and len(reply.entries) == ITEMS_PER_CALL:
            below = b"%d" % entries[-1].version
        if not below or len(entries) >= limit:
            break
    page = Page(tokens[-1], tuple(entries))
    if entries and page != known and len(set(tokens)) == 1:
        context.remembered.put(name, page, sum([entry.size for entry in entries]))
    if refresh and not moves and (fields := [entry.field for entry in entries if entry.has_ttl]):
        yield from refreshing(context, {place.partition: fields})
    return page


def _read(
    context: StoreContext, place: Place, below: bytes, offset: int, limit: int, refresh: bool, known: Page
) -> Operation[_Reply | None]:
    """A part of a page. None: the items have documents, so it cannot begin their TTLs anew."""
    had = _part(known, below, limit)
    while True:
        about = (known.token, *_about(had)) if had else (b"", 0, 0, 0, 0)
        asked = (int(refresh), place.prefix, below, offset, limit, *about)
        reply = yield from ask(context, place.partition, scripts.SEARCH_ITEMS, asked)
        if reply == StoreReply.SAME and had:
            return _Reply(known.token, b"", offset, had)
        if reply == StoreReply.DOCUMENTED and refresh:
            return None
        with reading_store(place.partition.keys[0]):
            if isinstance(reply, int):
                raise ValueError(f"its page is answered by the code {reply}, which makes no sense here")  # noqa: TRY004 - it becomes a StoreDamaged
            token, next_below, passed, *flat = reply
            entries = _entries(flat, had)
            if not had and None in entries:
                raise ValueError("the record of an item is empty")
            if next_below and int(next_below) >= (int(below) if below else math.inf):
                raise ValueError(f"the page below version {shown(below)} goes on below {shown(next_below)}")
        if None not in entries:
            return _Reply(token, next_below, passed, entries)  # type: ignore[arg-type]
        had = ()  # the server left out what is not as this process knows it (behind a failover): ask for all of it


def _part(page: Page, below: bytes, limit: int) -> Sequence[Entry]:
    """So many entries of a page below a version; nothing: from the first one."""
    start = bisect_right(page.entries, -int(below), key=lambda entry: -entry.version) if below else 0
    return page.entries[start : start + limit]


def _about(entries: Sequence[Entry]) -> tuple[int, int, int, int]:
    """By what the server knows these entries again: how many, the newest version, the oldest one, the sum."""
    versions = [entry.version for entry in entries]
    return len(versions), versions[0], versions[-1], sum(versions) % CHECKSUM


def _entries(flat: list[bytes], had: Sequence[Entry]) -> list[Entry | None]:
    """The items of a reply: fields, versions, and records of those that are not known. None for one that is not known either."""
    known = {(entry.field, entry.version): entry for entry in had}
    entries: list[Entry | None] = []
    for each in range(0, len(flat), 3):
        field, version, record = flat[each : each + 3]
        entries.append(Entry(field, record) if record else known.get((field, int(float(version)))))
    return entries
