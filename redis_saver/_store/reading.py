"""Reads of a partition: items by their fields, pages in order, and mirrors of all items.

A *mirror* has all items of a partition, for searches that look at all of them. A process remembers it, and each call
that uses it checks it with the server. Scripts only raise versions, so a mirror lacks only items above its newest
version. The server also returns the number of items and the sum of their versions. If both match after the newer items
were added, the mirror is exact. Otherwise some of its items are gone, and all versions are listed. An import may store
lower versions, but gives the partition another token. The vectors of an item change only with its record. So they are
exact if the records are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Batch, Command, Operation
from redis_saver._store import scripts
from redis_saver._store.context import Place, StoreContext
from redis_saver._store.items import CHECKSUM, Entry, Hit, entry_maker
from redis_saver._store.scripts import ask, keyed, refresh_ttls, together, windows
from redis_saver.errors import StoreBusy, reading_store

if TYPE_CHECKING:
    from redis_saver._store.vectors import VectorIndex

FIELDS_PER_GET = 500
ITEMS_PER_PAGE = 1000
MAX_ATTEMPTS = 5
"""Maximum number of attempts to list versions while others remove items, or empty the partition."""
_HINT_BYTES = 300
"""Approximate memory for remembering that nothing in a partition has a TTL."""
_WITHOUT_TTLS = re.compile(rb"[12] 0 [0-9]+ [0-9]+ [0-9]+ [0-9]+ ")
"""Beginning of a partition's state if nothing in it has a TTL. `get_items.lua` has the same pattern."""


# -- by fields


def read(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], *, refresh: bool
) -> Operation[list[Entry | None]]:
    """Read items of a partition. None for each missing item. One round trip.

    Args:
        context: The store.
        partition: The partition of the items.
        fields: Their fields, each once.
        refresh: True to restart their TTLs.
    """
    reads = [_read(context, partition, window, refresh) for window in windows(fields, FIELDS_PER_GET)]
    return [entry for entries in (yield from together(context, reads)) for entry in entries]


@keyed
def _read(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], refresh: bool
) -> Operation[list[Entry | None]]:
    """Read up to `FIELDS_PER_GET` items.

    If nothing in the partition had a TTL at the last read, one HMGET reads the state and the records. It takes the
    server half the time of the script. If the state says that an item has a TTL now, the script runs, too. That costs a
    second round trip, once.
    """
    hint = "without TTLs", partition.member
    records: Sequence[bytes | None]
    if context.reads_plain and context.local_cache.get(hint):
        # Lower case keeps redis-py's CacheConfig from caching the reply of HMGET.
        state, *records = yield Command(("hmget", partition.keys[0], "@state", *fields), partition.keys[:1])
        if state and _WITHOUT_TTLS.match(state):
            return _entries(context, partition, fields, records)
        context.local_cache.forget(hint)
    arguments: list[Argument] = [int(refresh), *fields]
    reply = yield from ask(context, partition, scripts.GET_ITEMS, arguments, fields if refresh else ())
    if not (records := reply.values):
        return [None] * len(fields)
    if len(records) > len(fields):
        context.local_cache.put(hint, True, _HINT_BYTES)
        records = records[:-1]
    return _entries(context, partition, fields, records)


def _entries(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], records: Sequence[bytes | None]
) -> list[Entry | None]:
    make = entry_maker(context.values, partition)
    with reading_store(partition.keys[0]):
        if len(records) != len(fields):
            raise ValueError(f"the reply has {len(records)} of {len(fields)} records")
        pairs = zip(fields, records, strict=True)
        return [None if record is None else make(field, record) for field, record in pairs]


class _Listing(NamedTuple):
    """Reply of `list_items.lua`."""

    token: bytes
    total: int
    checksum: bytes
    is_last: int
    items: list[bytes]
    """Field, record or version, and vectors if asked for, of each item."""


def _list(context: StoreContext, partition: Partition, above: int, what: str) -> Operation[_Listing | None]:
    """List items above a version, oldest first. None if there is no such partition. One round trip."""
    values = (yield from ask(context, partition, scripts.LIST_ITEMS, (above, what))).values
    if not values:
        return None
    token, total, checksum, is_last, *items = values
    return _Listing(token, total, checksum, is_last, items)


def all_versions(context: StoreContext, partition: Partition) -> Operation[dict[bytes, int]]:
    """Return the versions of all items by field, oldest first. One round trip per 4,000 items."""
    return {name: version for name, (version, *_) in (yield from _numbers(context, partition, "versions")).items()}


def all_sizes(context: StoreContext, partition: Partition) -> Operation[dict[bytes, int]]:
    """Return the stored bytes of all items by field, with their vectors. One round trip per 4,000 items."""
    return {name: size for name, (_, size) in (yield from _numbers(context, partition, "sizes")).items()}


def _numbers(context: StoreContext, partition: Partition, what: str) -> Operation[dict[bytes, list[int]]]:
    """Return the version of each item by field, oldest first, and with `sizes` also its bytes."""
    numbers: dict[bytes, list[int]] = {}
    above, is_last = 0, 0
    while not is_last:
        listing = yield from _list(context, partition, above, what)
        if listing is None:
            break
        is_last = listing.is_last
        with reading_store(partition.keys[1]):
            pairs = zip(listing.items[::2], listing.items[1::2], strict=True)
            page = {name: [int(number) for number in text.split(b" ")] for name, text in pairs}
            if not is_last:
                above = _checked_progress(above, max((version for version, *_ in page.values()), default=0))
        numbers.update(page)
    return numbers


def list_fields(context: StoreContext, partition: Partition, prefix: bytes = b"") -> Operation[list[bytes]]:
    """Return the fields that begin with a prefix, sorted. One round trip per 4,000 items of the partition."""
    return sorted([field for field in (yield from all_versions(context, partition)) if field.startswith(prefix)])


def _checked_progress(above: int, newest: int) -> int:
    if newest <= above:
        raise ValueError(f"the items above version {above} end at version {newest}, and more are to follow")
    return newest


class Detail(NamedTuple):
    """Stored bytes of an item, with its vectors, and the time at which it expires, if it does."""

    bytes: int
    expires_at: datetime | None


def details(context: StoreContext, items: Sequence[tuple[tuple[str, ...], str]]) -> Operation[list[Detail]]:
    """Return the details of items, by namespace and key. One round trip per 500 items. No key is needed."""
    result: list[Detail] = []
    for window in windows(items, FIELDS_PER_GET):
        requests: list[Command] = []
        for namespace, key in window:
            place = context.places.of(namespace)
            records, _, expiring, _, vectors, _ = place.partition.keys
            pairs = ("HSTRLEN", records), ("HSTRLEN", vectors), ("ZSCORE", expiring)
            requests += [Command((name, of, place.field(key)), (of,)) for name, of in pairs]
        replies = yield Batch(requests)
        for record, vector, deadline in zip(replies[::3], replies[1::3], replies[2::3], strict=True):
            until = None if deadline is None else datetime.fromtimestamp(float(deadline) / 1000, timezone.utc)
            result.append(Detail(record + vector, until))
    return result


# -- pages


class Page(NamedTuple):
    """Consecutive items, newest first."""

    token: bytes
    """Token of the partition in the directory; `0` if there is no such partition."""
    entries: list[Entry]


def page(context: StoreContext, place: Place, offset: int, limit: int, *, refresh: bool) -> Operation[Page]:
    """Read items of a namespace and its children, newest first. One round trip per thousand items or megabyte."""
    entries: list[Entry] = []
    token, below, refreshes = b"", b"", refresh and not context.has_documents
    while True:
        size = min(limit - len(entries), ITEMS_PER_PAGE)
        arguments = scripts.SearchItemsArguments(
            refresh=int(refreshes), prefix=place.prefix, below=below, offset=offset, limit=size
        )
        part = yield from _page_part(context, place.partition, arguments)
        if part is None:
            refreshes = False
            continue
        entries += part.entries
        token, below, offset = part.token, part.below, max(0, offset - part.passed)
        if not below and len(part.entries) == ITEMS_PER_PAGE:
            below = b"%d" % entries[-1].version
        if not below or len(entries) >= limit:
            break
    if refresh and not refreshes:
        yield from refresh_ttls(context, [Hit(place.partition, entry) for entry in entries])
    return Page(token, entries)


class _PagePart(NamedTuple):
    """Reply of `search_items.lua`."""

    token: bytes
    below: bytes
    """Version below which to continue; empty at the end."""
    passed: int
    """Number of items that were skipped."""
    entries: list[Entry]


@keyed
def _page_part(
    context: StoreContext, partition: Partition, wanted: scripts.SearchItemsArguments
) -> Operation[_PagePart | None]:
    """Read as much of a page as one reply holds. None if a refresh is impossible here, as the items have documents."""
    reply = yield from ask(context, partition, scripts.SEARCH_ITEMS, wanted)
    if reply.code == StoreReply.DOCUMENTED and wanted.refresh:
        return None
    make = entry_maker(context.values, partition)
    with reading_store(partition.keys[0]):
        if reply.code:
            raise ValueError(f"the reply has the code {reply.code}, which this call does not allow")
        token, next_below, passed, *items = reply.values
        if next_below and int(next_below) >= (int(wanted.below) if wanted.below else math.inf):
            raise ValueError(f"the page below version {shown(wanted.below)} goes on below {shown(next_below)}")
        return _PagePart(token, next_below, passed, list(map(make, items[::2], items[1::2])))


# -- mirrors


@dataclass(frozen=True)
class Mirror:
    """All items of a partition at one moment. A mirror is never changed."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    """The items by field, oldest first."""
    token: bytes = b""
    """Token of the partition in the directory. It changes if the partition was emptied and filled again."""
    vectors: VectorIndex | None = None
    """Vectors of the items that have some. None until a search needs them."""

    @property
    def newest(self) -> int:
        """Greatest version, or 0 without items."""
        return next(reversed(self.entries.values())).version if self.entries else 0

    @cached_property
    def checksum(self) -> int:
        """Sum of the versions, as the scripts compute it."""
        return sum([entry.version for entry in self.entries.values()]) % CHECKSUM

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return sum([entry.size for entry in self.entries.values()]) + (self.vectors.size if self.vectors else 0)


EMPTY = Mirror()


def mirror(context: StoreContext, partition: Partition, *, with_vectors: bool = False) -> Operation[Mirror]:
    """Return all items of a partition as they are now.

    One round trip of a few bytes if nothing is new, else one per thousand new items or megabyte. If items are gone, one
    more per 4,000 items of the partition. If others remove items during `MAX_ATTEMPTS` attempts, the result of the last
    one is used. It has each item that existed all the time.
    """
    name = "mirror", partition.member
    known: Mirror = context.local_cache.get(name) or EMPTY
    if with_vectors and known.vectors is None:
        known = _without_items(context)
    current, is_exact = yield from _with_newer(context, partition, known)
    for _ in range(MAX_ATTEMPTS):
        if is_exact:
            break
        current = yield from _without_removed(context, partition, current)
        current, is_exact = yield from _with_newer(context, partition, current)
    if not current.entries:
        context.local_cache.forget(name)
    elif current is not known:
        context.local_cache.put(name, current, current.size)
    return current


def _without_items(context: StoreContext) -> Mirror:
    """Return an empty mirror that collects vectors, too."""
    return Mirror(vectors=context.embedder.nothing if context.embedder else None)


@keyed
def _with_newer(context: StoreContext, partition: Partition, before: Mirror) -> Operation[tuple[Mirror, bool]]:
    """Add newer items. The second result is False if the mirror also has items that are gone.

    Raises:
        StoreBusy: Others emptied the partition again and again while it was read.
    """
    current, is_last, is_exact, restarts = before, 0, False, 0
    what = "records" if before.vectors is None else "vectors"
    while not is_last:
        above = current.newest
        listing = yield from _list(context, partition, above, what)
        if listing is None:
            return EMPTY, True
        is_last = listing.is_last
        if listing.token != current.token and current.entries:  # emptied and filled again, or a failover lost writes
            if (restarts := restarts + 1) > MAX_ATTEMPTS:
                raise StoreBusy(
                    f"the items of {shown(partition.labels)} could not be read in {MAX_ATTEMPTS} attempts: each time "
                    "others emptied them, and put new ones. Nothing was written. Try again later"
                )
            current, is_last = EMPTY if current.vectors is None else _without_items(context), 0
            continue
        with reading_store(partition.keys[0]):
            if listing.items:
                current = _added(context, partition, current, listing.items)
            if not is_last:
                _checked_progress(above, current.newest)
            is_exact = len(current.entries) == listing.total and current.checksum == int(listing.checksum)
        if listing.token != current.token:
            current = replace(current, token=listing.token)
    return current, is_exact


def _added(context: StoreContext, partition: Partition, before: Mirror, items: list[bytes]) -> Mirror:
    """Add newer items, oldest first."""
    entries, vectors = dict(before.entries), before.vectors
    width, make = 2 if vectors is None else 3, entry_maker(context.values, partition)
    for name, record in zip(items[::width], items[1::width], strict=True):
        entries.pop(name, None)  # the newest is the last
        entries[name] = make(name, record)
    if vectors is not None and (embedder := context.embedder) is not None:
        rows = {
            name: embedder.decode(context.values, partition, name, entries[name].made_by, stored)
            for name, stored in zip(items[::3], items[2::3], strict=True)
        }
        vectors = vectors.changed((), rows)
    return Mirror(entries, before.token, vectors)


def _without_removed(context: StoreContext, partition: Partition, before: Mirror) -> Operation[Mirror]:
    """Drop items that are gone, and all above the oldest item that the mirror lacks. Then it lacks only newer ones."""
    versions = yield from all_versions(context, partition)
    known = before.entries
    lacking = [version for name, version in versions.items() if name not in known or known[name].version != version]
    end = min(lacking, default=before.newest + 1)
    entries = {name: entry for name, entry in known.items() if versions.get(name) == entry.version < end}
    vectors = before.vectors
    if vectors is not None:
        vectors = vectors.changed([name for name in vectors if name not in entries], {})
    return Mirror(entries, before.token, vectors)
