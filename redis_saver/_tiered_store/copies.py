"""Copies in hot of what cold has: as records, and as items again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from langgraph.store.base import Item, SearchItem

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition, with_notes
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry, encode_value
from redis_saver._store.places import namespace_and_key
from redis_saver._store.writing import MAX_BYTES, MAX_PUTS
from redis_saver.errors import EncodeError, KeyConflict, LimitExceeded, reading_store

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
UPDATED_DIGITS = 14
"""A copy has cold's `updated_at` where an item of a `RedisStore` has 16 hex digits that name its put."""


class Copy(NamedTuple):
    """A copy, as scripts take it."""

    field: bytes
    created: int = 0
    ttl: int = 0
    updated: bytes = b"0"
    value: bytes = b""
    """Nothing: there is none to store."""


def aware(item: Item) -> Item:
    """An item with times that say UTC: some stores answer naive ones."""
    for name in ("created_at", "updated_at"):
        if getattr(item, name).tzinfo is None:
            setattr(item, name, getattr(item, name).replace(tzinfo=timezone.utc))
    return item


def copy_of(context: StoreContext, field: bytes, item: Item, ttl: int) -> Copy | None:
    """A copy of what cold answered. None if hot cannot have one: its serializer does not know the value, or its limits do not allow it."""
    aware(item)
    try:
        value = encode_value(context.values, item.namespace, item.key, item.value)
    except (EncodeError, LimitExceeded):
        return None
    updated = b"%0*x" % (UPDATED_DIGITS, _micros(item.updated_at))
    return Copy(field, _micros(item.created_at), ttl, updated, value)


def _micros(moment: datetime) -> int:
    return max(0, (moment - _EPOCH) // _MICROSECOND)


def updated_of(entry: Entry, partition: Partition) -> int:
    """Cold's `updated_at` of a copy, in microseconds.

    Raises:
        KeyConflict: It is no copy.
    """
    if len(entry.made_by) != UPDATED_DIGITS:
        namespace, key = namespace_and_key(partition, entry.field)
        raise KeyConflict(
            f"item {shown(key)} of namespace {shown(namespace)} in hot is no copy of what cold has: it was put into the RedisStore itself. Nothing was changed. "
            "Give the RedisStore in front of another store a prefix= of its own; put into cold what only this one has"
        )
    return int(entry.made_by, 16)


def item_of(context: StoreContext, partition: Partition, entry: Entry) -> Item:
    """The item that a copy is of, as cold answered it.

    Raises:
        KeyConflict: It is no copy.
        DecodeError: It cannot be decoded.
    """
    updated = _EPOCH + updated_of(entry, partition) * _MICROSECOND
    namespace, key = namespace_and_key(partition, entry.field)
    value = entry.decoded(context.values, namespace, key)
    created = _EPOCH + entry.created * _MICROSECOND
    return Item(value=value, key=key, namespace=namespace, created_at=created, updated_at=updated)


def search_item_of(context: StoreContext, partition: Partition, entry: Entry) -> SearchItem:
    """`item_of`, as `search` answers it."""
    item = item_of(context, partition, entry)
    return SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at)


class Read(NamedTuple):
    """What hot has of some items."""

    miss: bytes
    """What names the miss, for fills; nothing if hot has all of them, or does not answer."""
    entries: dict[bytes, Entry]


def read(context: StoreContext, partition: Partition, fields: Sequence[bytes]) -> Operation[Read]:
    """Read copies. One round trip."""
    asked = with_notes(partition, writing=False)
    miss, *records = yield from ask(context, asked, scripts.GET_COPIES, fields)
    with reading_store(partition.keys[0]):
        found = zip(fields, records, strict=True)
        return Read(miss, {field: Entry(field, record) for field, record in found if record is not None})


def fill(context: StoreContext, partition: Partition, miss: bytes, copies: Sequence[Copy]) -> Operation[int]:
    """Store copies of what cold answered after a miss. Answers how many were stored. One round trip for a thousand (8 MB), three if they are the first of a partition."""
    stored, asked = 0, with_notes(partition, writing=False)
    for some in steps(copies):
        arguments: list[Argument] = [argument for copy in some for argument in copy]
        (text,) = yield from ask(context, asked, scripts.FILL_COPIES, (miss, *arguments))
        with reading_store(partition.keys[0]):
            stored += int(text)
    return stored


def steps(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """As many copies as one script takes, and so on."""
    some: list[Copy] = []
    size = 0
    for copy in copies:
        size += len(copy.field) + len(copy.value)
        if some and (len(some) >= MAX_PUTS or size > MAX_BYTES):
            yield some
            some, size = [], len(copy.field) + len(copy.value)
        some.append(copy)
    if some:
        yield some
