"""Searching: hot answers for a partition of which it has copies of all items, and that is filled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from langgraph.store.base import InvalidNamespaceError, SearchItem, SearchOp

from redis_saver._common.display import shown
from redis_saver._common.store_names import PARTITION_LABELS, Partition, with_notes
from redis_saver._engine import scripts
from redis_saver._engine.requests import Operation
from redis_saver._store import mirrors
from redis_saver._store.calling import ask
from redis_saver._store.filters import compile_filter
from redis_saver._store.mirrors import Mirror
from redis_saver._store.places import Place, check_labels
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver._tiered_store.context import StoreTiers, ask_each, best_effort, unless_full
from redis_saver._tiered_store.copies import Copy, copy_of, fill, search_item_of, updated_of
from redis_saver.errors import LimitExceeded, StoreBusy, StoreDamaged, reading_store

MAX_COMPLETE = 2000
"""The most items of a partition that hot answers searches for."""


def may_be_hot(op: SearchOp) -> bool:
    """Whether hot may answer a search: of a partition or a part of it, without a query, and with a page and a filter that mean the same to every store."""
    has_plain_filter = all(
        isinstance(key, str) and isinstance(wanted, str) and "." not in key for key, wanted in (op.filter or {}).items()
    )
    return (
        len(op.namespace_prefix) >= PARTITION_LABELS
        and not op.query
        and has_plain_filter
        and min(op.limit, op.offset) >= 0
    )


def is_whole(op: SearchOp) -> bool:
    """Whether a search is for all items of a partition, as far as its limit goes."""
    return len(op.namespace_prefix) == PARTITION_LABELS and not op.filter and not op.query and not op.offset


def complete(tiers: StoreTiers, partition: Partition) -> Operation[Mirror | bytes]:
    """All items of a partition, if hot has copies of all; else what names the miss.

    Two round trips, one if it is not complete. Of what this process knows nothing is sent again.
    """
    asked = with_notes(partition, writing=False)
    token, *state = yield from ask(tiers.hot, asked, scripts.CHECK_COMPLETE, ())
    if not state:
        return token  # type: ignore[no-any-return]
    with reading_store(partition.keys[0]):
        count, checksum = map(int, state)
    mirror = (yield from mirrors.synced(tiers.hot, partition)) if count else mirrors.NOTHING
    is_same = (mirror.token, len(mirror.entries), mirror.checksum) == (token, count, checksum)
    return mirror if is_same else b""  # if not, it changed in between: cold answers


def found(tiers: StoreTiers, place: Place, op: SearchOp, mirror: Mirror) -> list[SearchItem]:
    """What a search finds in a complete partition: the newest first, as cold says, then by namespace and key."""
    matches, partition = compile_filter(op.filter), place.partition
    entries = [
        entry
        for entry in mirror.entries.values()
        if entry.field.startswith(place.prefix)
        and (matches is None or matches(entry.value(tiers.hot.values, partition)))
    ]
    entries.sort(key=lambda entry: (-updated_of(entry, partition), entry.field))
    return [search_item_of(tiers.hot, partition, entry) for entry in entries[op.offset : op.offset + op.limit]]


def fill_all(tiers: StoreTiers, partition: Partition, miss: bytes, items: Sequence[SearchItem]) -> Tiered[bool]:
    """Store copies of all items of a partition, and note that these are all, unless somebody wrote meanwhile. Answers whether it is so. Two round trips."""
    copies = [copy for item in items if (copy := _copy_in(tiers, partition, item)) is not None]
    stored = yield from unless_full(fill(tiers.hot, partition, miss, copies))
    tiers.counts.fills += stored or 0
    tiers.counts.refused += len(items) - len(copies) if stored is not None else len(items)
    if stored is None or len(copies) < len(items):
        return False
    asked = with_notes(partition, writing=True)
    answer = yield from unless_full(
        ask(tiers.hot, asked, scripts.MARK_COMPLETE, (miss, *(copy.field for copy in copies)))
    )
    return answer == [b"1"]


def _copy_in(tiers: StoreTiers, partition: Partition, item: SearchItem) -> Copy | None:
    """A copy of an item that cold found in a partition. None if hot cannot have it; also if it is of another partition: to some stores `user-1` is a prefix of `user-10`."""
    places = tiers.hot.places
    try:
        place, key = places.of(tuple(item.namespace)), places.key(item.key)
    except (InvalidNamespaceError, LimitExceeded):
        return None
    return copy_of(tiers.hot, place.field(key), item, tiers.ttl) if place.partition == partition else None


def warm(tiers: StoreTiers, namespace_prefix: Any) -> Tiered[bool]:
    """Bring copies of all items of a partition to hot; answers whether they are there. The call itself checks the argument."""
    labels = check_labels(namespace_prefix, "namespace_prefix")
    if len(labels) != PARTITION_LABELS:
        raise ValueError(
            f"namespace_prefix={shown(labels)}: hot can have all of a prefix of two labels, such as ('memories', 'user-1')"
        )
    return _warm(tiers, tiers.hot.places.of(labels).partition)


def _warm(tiers: StoreTiers, partition: Partition) -> Tiered[bool]:
    """Warm a partition. If it loses a key meanwhile, start again once; hot then drops what is left of it."""
    for _ in range(2):
        (known,) = yield from ask_each(tiers, [(partition, lambda: complete(tiers, partition))])
        if isinstance(known, Mirror):
            return True
        op = SearchOp(partition.labels, None, MAX_COMPLETE + 1, 0, None, refresh_ttl=False)
        (items,) = yield ColdCall("batch", ([op],))
        if not known or len(items) > MAX_COMPLETE:
            return False
        with suppress(StoreDamaged):
            return (yield from fill_all(tiers, partition, known, items))
    return False


def fill_found(tiers: StoreTiers, partition: Partition, miss: bytes, items: Sequence[SearchItem]) -> Tiered[None]:
    """`fill_all` by the way: the search is answered already."""

    def fills() -> Tiered[None]:
        with suppress(StoreDamaged, StoreBusy):  # the next reader repairs it, or fills
            yield from fill_all(tiers, partition, miss, items)

    yield from best_effort(tiers, fills())
