"""Copies in hot of what cold has: as records, and as items again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from langgraph.store.base import Item, SearchItem

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition, with_notes
from redis_saver._engine.requests import Argument, Batch, Command, Operation
from redis_saver._store import namespaces, scripts
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext, namespace_and_key
from redis_saver._store.items import Entry, encode_value
from redis_saver._store.writing import split
from redis_saver.errors import EncodeError, KeyConflict, LimitExceeded, reading_store

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_UPDATED_DIGITS = 14
"""A copy has cold's `updated_at` where an item of a `RedisStore` has 16 hex digits that name its put."""


class Copy(NamedTuple):
    """A copy, as scripts take it."""

    field: bytes
    created: int = 0
    ttl: int = 0
    updated: bytes = b"0"
    value: bytes = b""
    """Empty if there is nothing to store."""


def aware(item: Item) -> Item:
    """Make the times of an item say UTC: some stores answer naive ones."""
    for name in ("created_at", "updated_at"):
        if getattr(item, name).tzinfo is None:
            setattr(item, name, getattr(item, name).replace(tzinfo=timezone.utc))
    return item


def copy_of(context: StoreContext, field: bytes, item: Item, ttl: int) -> Copy | None:
    """Return a copy of cold's item; None if hot's serializer or limits refuse the value."""
    aware(item)
    try:
        value = encode_value(context.values, item.namespace, item.key, item.value)
    except (EncodeError, LimitExceeded):
        return None
    updated = b"%0*x" % (_UPDATED_DIGITS, _micros(item.updated_at))
    return Copy(field, _micros(item.created_at), ttl, updated, value)


def _micros(moment: datetime) -> int:
    return max(0, (moment - _EPOCH) // _MICROSECOND)


def updated_of(entry: Entry, partition: Partition) -> int:
    """Return cold's `updated_at` of a copy, in microseconds.

    Raises:
        KeyConflict: It is not a copy.
    """
    if len(entry.made_by) != _UPDATED_DIGITS:
        namespace, key = namespace_and_key(partition, entry.field)
        raise KeyConflict(
            f"item {shown(key)} of namespace {shown(namespace)} in hot is no copy of what cold has: it was put into "
            "the RedisStore itself. Nothing was changed. Give the RedisStore in front of another store a prefix= of "
            "its own; put into cold what only this one has"
        )
    return int(entry.made_by, 16)


def item_of(context: StoreContext, partition: Partition, entry: Entry) -> Item:
    """Return the item of a copy, as cold answered it.

    Raises:
        KeyConflict: It is not a copy.
        DecodeError: It cannot be decoded.
    """
    updated = _EPOCH + updated_of(entry, partition) * _MICROSECOND
    namespace, key = namespace_and_key(partition, entry.field)
    value = entry.decoded(context.values, namespace, key)
    created = _EPOCH + entry.created * _MICROSECOND
    return Item(value=value, key=key, namespace=namespace, created_at=created, updated_at=updated)


def search_item_of(context: StoreContext, partition: Partition, entry: Entry) -> SearchItem:
    """Return `item_of` as `search` answers it."""
    item = item_of(context, partition, entry)
    return SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at)


class Read(NamedTuple):
    """Copies of some items."""

    miss: bytes
    """Name of the miss, for fills; empty if hot has all of the items."""
    entries: dict[bytes, Entry]


def read(context: StoreContext, partition: Partition, fields: Sequence[bytes]) -> Operation[Read]:
    """Read copies. One round trip."""
    reply = yield from ask(context, with_notes(partition, writing=False), scripts.GET_COPIES, fields)
    miss, *records = reply.values
    with reading_store(partition.keys[0]):
        pairs = zip(fields, records, strict=True)
        return Read(miss, {field: Entry(field, record) for field, record in pairs if record is not None})


def fill(context: StoreContext, partition: Partition, miss: bytes, copies: Sequence[Copy]) -> Operation[int]:
    """Store copies of what cold answered after a miss; return how many were stored.

    One round trip for a thousand (8 MB), three if they are the first of a partition.
    """
    stored, with_keys = 0, with_notes(partition, writing=False)
    for some in batches(copies):
        arguments: list[Argument] = [argument for copy in some for argument in copy]
        (count,) = (yield from ask(context, with_keys, scripts.FILL_COPIES, (miss, *arguments))).values
        with reading_store(partition.keys[0]):
            stored += int(count)
    return stored


def batches(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Split copies into as many as one script takes."""
    return split(copies, lambda copy: len(copy.field) + len(copy.value))


# -- for `redis-saver forget`, which deletes items in cold and in hot itself


def holds_copies(context: StoreContext, labels: tuple[str, ...]) -> Operation[bool]:
    """Return True if a store has copies in the partitions of these labels, or had some within a day.

    A store that has copies has nothing else, so one item of each partition tells. Two round trips per 256 partitions.
    """
    for some in namespaces.windows((yield from namespaces.partitions(context, labels))):
        keys = [with_notes(partition, writing=False).keys for partition, _ in some]
        if any((yield Batch([Command(("EXISTS", notes)) for *_, notes in keys]))):
            return True
        oldest = yield Batch([Command(("ZRANGE", order, 0, 0)) for _, order, *_ in keys])
        first = [(items, fields[0]) for (items, *_), fields in zip(keys, oldest, strict=True) if fields]
        records = (yield Batch([Command(("HMGET", *names)) for names in first])) if first else []
        for (items, field), (record,) in zip(first, records, strict=True):
            with reading_store(items):
                if record is not None and len(Entry(field, record).made_by) == _UPDATED_DIGITS:
                    return True
    return False


def forget_misses(context: StoreContext, labels: tuple[str, ...]) -> Operation[None]:
    """Remove the notes of the partitions of these labels, so that no earlier miss is filled any more.

    Call it when cold has deleted the items, and delete the copies then. For writers it is as if the notes were
    evicted. One round trip per 256 partitions.
    """
    for some in namespaces.windows((yield from namespaces.partitions(context, labels))):
        yield Batch([Command(("UNLINK", *with_notes(partition, writing=True).keys[-2:])) for partition, _ in some])
