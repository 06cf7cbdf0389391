"""Mirrors: a partition's items as a process knows them, for searches that look at all of them.

A script changes no version but to a greater one, so what a mirror lacks are the items above its newest version. And the server says how many items the
partition has, and the sum of their versions: with these, a mirror that has all that is newer is exact, or it has items that are gone. Then all versions are
listed. A mirror is believed only if both numbers agree in the call that asks. (An import brings older versions, and gives the partition another token.)

The vectors of an item come and go with its record, in the same call. So the vectors of a mirror are exact where its records are. A mirror has them once a
search needed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import CHECKSUM, Entry
from redis_saver._store.listing import checked_progress, list_versions
from redis_saver._store.places import namespace_and_key
from redis_saver.errors import StoreBusy, decoding_item, reading_store

if TYPE_CHECKING:
    from redis_saver._store.vectors import VectorIndex

MAX_ATTEMPTS = 5
"""How often versions are listed while others remove items all the time, and a partition is read anew while others empty it."""


@dataclass(frozen=True)
class Mirror:
    """The items of a partition at one moment. Nobody changes it: a later one is another."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    """By field, oldest first."""
    token: bytes = b""
    """That of the partition in the directory: one that begins anew has another."""
    checksum: int = 0
    """The sum of the versions."""
    entry_bytes: int = 0
    """Bytes of memory of the entries, about."""
    vectors: VectorIndex | None = None
    """The vectors of the items that have some; None if no search has needed them."""

    @property
    def newest(self) -> int:
        """The greatest version, 0 for none."""
        return next(reversed(self.entries.values())).version if self.entries else 0

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return self.entry_bytes + (self.vectors.size if self.vectors else 0)


NOTHING = Mirror()


def synced(context: StoreContext, partition: Partition, *, with_vectors: bool = False) -> Operation[Mirror]:
    """A partition's items as they are now.

    One round trip where nothing or little is new, of some bytes where nothing is. More for each thousand items, or megabyte, that is; and where items went, one
    more for each four thousand that the partition has. If others remove items during each of some attempts, the last one counts: it has each item that is there
    all the time.
    """
    name = "mirror", partition.member
    before: Mirror = context.remembered.get(name) or NOTHING
    if with_vectors and before.vectors is None:
        before = _empty(context)
    found, is_exact = yield from _with_newer(context, partition, before)
    for _ in range(MAX_ATTEMPTS):
        if is_exact:
            break
        found = yield from _without_removed(context, partition, found)
        found, is_exact = yield from _with_newer(context, partition, found)
    if not found.entries:
        context.remembered.forget(name)
    elif found is not before:
        context.remembered.put(name, found, found.size)
    return found


def _empty(context: StoreContext) -> Mirror:
    """A mirror of nothing, that is to have vectors."""
    return replace(NOTHING, vectors=context.embedder.nothing if context.embedder else None)


def _with_newer(context: StoreContext, partition: Partition, before: Mirror) -> Operation[tuple[Mirror, bool]]:
    """A mirror with what is newer than it; and whether it is exact, or also has items that are gone.

    Raises:
        StoreBusy: Others emptied the partition while it was read, time and again.
    """
    found, is_last, is_exact, restarts = before, 0, False, 0
    what = "records" if before.vectors is None else "vectors"
    while not is_last:
        reply = yield from ask(context, partition, scripts.LIST_ITEMS, (found.newest, what))
        if not reply:
            return NOTHING, True
        token, count, checksum, is_last, *flat = reply
        above = found.newest
        if token != found.token and found.entries:  # it began anew, or goes on behind a failover
            if (restarts := restarts + 1) > MAX_ATTEMPTS:
                raise StoreBusy(
                    f"the items of {shown(partition.labels)} could not be read in {MAX_ATTEMPTS} attempts: each time others emptied them, and put new ones. "
                    "Nothing was written. Try again later"
                )
            found, is_last = NOTHING if found.vectors is None else _empty(context), 0
            continue
        with reading_store(partition.keys[0]):
            if flat:
                found = _added(context, partition, found, flat)
            if not is_last:
                checked_progress(above, found.newest)
            is_exact = len(found.entries) == count and found.checksum == int(checksum)
        if token != found.token:
            found = replace(found, token=token)
    return found, is_exact


def _added(context: StoreContext, partition: Partition, before: Mirror, flat: list[bytes]) -> Mirror:
    """A mirror with newer items, which come oldest first."""
    entries, checksum, size, vectors = dict(before.entries), before.checksum, before.entry_bytes, before.vectors
    width = 2 if vectors is None else 3
    for position in range(0, len(flat), width):
        entry = Entry(flat[position], flat[position + 1])
        if (old := entries.pop(entry.field, None)) is not None:
            checksum, size = checksum - old.version, size - old.size
        entries[entry.field] = entry
        checksum, size = checksum + entry.version, size + entry.size
    if vectors is not None and (embedder := context.embedder) is not None:
        given = {}
        for position in range(0, len(flat), width):
            namespace, key = namespace_and_key(partition, flat[position])
            with decoding_item("the vectors of item {!r} of namespace {!r}", key, namespace):
                given[flat[position]] = embedder.decode(context.values, flat[position + 2])
        vectors = vectors.changed((), given)
    return Mirror(entries, before.token, checksum % CHECKSUM, size, vectors)


def _without_removed(context: StoreContext, partition: Partition, before: Mirror) -> Operation[Mirror]:
    """A mirror without what is gone; and without what is newer than something that it lacks, so that all it lacks is newer than it."""
    page = yield from list_versions(context, partition)
    versions = dict(page.found)
    while page.above:
        page = yield from list_versions(context, partition, page.above)
        versions.update(page.found)
    known = before.entries
    lacking = [version for name, version in versions.items() if name not in known or known[name].version != version]
    most = min(lacking, default=before.newest + 1)
    entries = {name: entry for name, entry in known.items() if versions.get(name) == entry.version < most}
    vectors = before.vectors
    if vectors is not None:
        vectors = vectors.changed([name for name in vectors if name not in entries], {})
    checksum = sum([entry.version for entry in entries.values()]) % CHECKSUM
    return Mirror(entries, before.token, checksum, sum([entry.size for entry in entries.values()]), vectors)
