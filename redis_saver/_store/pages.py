"""Pages of a partition's items in order, which the server makes."""

from __future__ import annotations

from typing import NamedTuple

from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry
from redis_saver._store.places import Place
from redis_saver.errors import reading_store

ITEMS_PER_CALL = 1000
_CHECKSUM = 2**50


class Page(NamedTuple):
    """As much of a page as one reply holds. Nobody changes it."""

    token: bytes
    """That of the partition in the directory; `0` if there is no such partition."""
    below: bytes
    """The version to go on below; nothing at the end."""
    passed: int
    """How many items were passed over before it."""
    entries: tuple[Entry, ...]


def read(
    context: StoreContext, place: Place, offset: int, limit: int, refresh: bool
) -> Operation[tuple[list[Entry], bytes]]:
    """Items of a namespace and of those below it, newest first; and the token of the partition, `0` if there is none.

    One round trip for a thousand items, or a megabyte. What is unchanged since this process read the same page is not sent again.
    """
    entries: list[Entry] = []
    below, token = b"", b"0"
    while True:
        page = yield from _read(context, place, below, offset, min(limit - len(entries), ITEMS_PER_CALL), refresh)
        entries += page.entries
        below, token, offset = page.below, page.token, max(0, offset - page.passed)
        if not below and len(page.entries) == ITEMS_PER_CALL and len(entries) < limit:
            below = b"%d" % page.entries[-1].version
        if not below or len(entries) >= limit:
            return entries, token


def _read(context: StoreContext, place: Place, below: bytes, offset: int, limit: int, refresh: bool) -> Operation[Page]:
    name = "page", place, below, offset, limit
    known: Page | None = context.remembered.get(name)
    while True:
        about = _about(known) if known else (b"", 0, 0, 0, 0)
        asked = (int(refresh), place.prefix, below, offset, limit, *about)
        reply = yield from ask(context, place.partition, scripts.SEARCH_ITEMS, asked)
        if reply == StoreReply.SAME and known:
            return known
        token, next_below, passed, *flat = reply
        with reading_store(place.partition.keys[0]):
            entries = _entries(flat, known)
            if known is None and None in entries:
                raise ValueError("the record of an item is empty")
        if None not in entries:
            page = Page(token, next_below, passed, tuple(entries))  # type: ignore[arg-type]
            if entries:
                context.remembered.put(name, page, sum([entry.size for entry in page.entries]))
            return page
        known = None  # the server left out what is not as this process knows it (behind a failover): ask for all of it


def _entries(flat: list[bytes], known: Page | None) -> list[Entry | None]:
    """The items of a reply: fields, versions, and records of those that are not known. None for one that is not known either."""
    had = {(entry.field, entry.version): entry for entry in known.entries} if known else {}
    return [
        Entry(flat[each], flat[each + 2]) if flat[each + 2] else had.get((flat[each], int(float(flat[each + 1]))))
        for each in range(0, len(flat), 3)
    ]


def _about(page: Page) -> tuple[bytes, int, int, int, int]:
    versions = [entry.version for entry in page.entries]
    if page.below or not versions:  # only a whole page is known by its bounds
        return b"", 0, 0, 0, 0
    return page.token, len(versions), versions[0], versions[-1], sum(versions) % _CHECKSUM
