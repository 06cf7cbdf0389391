"""Items that move between stores, with their own times and the rest of their TTLs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis_saver._common.store_names import Partition
from redis_saver._engine.requests import Argument, Operation
from redis_saver._store import scripts
from redis_saver._store.context import StoreContext, namespace_and_key
from redis_saver._store.items import Entry, dump_value
from redis_saver._store.scripts import ask, item_at
from redis_saver.errors import DecodeError, decoding_item, reading_store

FIELDS_PER_CALL = 500
_LATEST = 7_258_118_400_000
"""The year 2200, in milliseconds. No stored time is later, so that sums of them stay exact in scripts."""


class StoredItem(NamedTuple):
    """An item that one store has and another is to get."""

    namespace: tuple[str, ...]
    key: str
    value: Any
    """The decoded value: a dict, or bytes that stay packed (`OpaqueSerializer`)."""
    created_at: int
    """Microseconds since 1970."""
    updated_at: int
    """Time of the last put, in microseconds since 1970."""
    ttl: int
    """Lifetime after each put or read, in milliseconds; 0 if it does not expire."""
    expires_at: int
    """Deadline in milliseconds since 1970; 0 if it does not expire."""
    size: int
    """Approximate size of the value, in bytes."""


def read_items(
    context: StoreContext, partition: Partition, fields: Sequence[bytes]
) -> Operation[list[StoredItem | DecodeError | None]]:
    """Read the first items, as many as one reply holds; None for one that is gone, an error for one that is damaged."""
    asked: list[Argument] = ["deadlines", *fields[:FIELDS_PER_CALL]]
    values = (yield from ask(context, partition, scripts.READ_ITEMS, asked)).values
    if not values:
        return [None] * len(fields)
    answered = zip(fields, values[2::2], values[3::2], strict=False)
    return [_stored(context, partition, field, record, deadline) for field, record, deadline in answered]


def _stored(
    context: StoreContext, partition: Partition, field: bytes, record: bytes, deadline: bytes
) -> StoredItem | DecodeError | None:
    if not record:
        return None
    with reading_store(partition.keys[0]):
        namespace, key = namespace_and_key(partition, field)
    try:
        with decoding_item("item {!r} of namespace {!r}", key, namespace):
            entry = Entry(field, record)
            value = entry.loaded(context.values)
            moments = entry.created, entry.version, int(record.split(b" ", 3)[2]), int(float(deadline))
    except DecodeError as error:
        return error
    return StoredItem(namespace, key, value, *moments, len(entry.data))


def find_place(context: StoreContext, item: StoredItem) -> tuple[Partition, bytes]:
    """Return the partition and the field of an item.

    Raises:
        InvalidNamespaceError, LimitExceeded: It cannot be stored.
    """
    place = context.places.to_put(item.namespace)
    return place.partition, place.field(context.places.key(item.key))


class Import(NamedTuple):
    """An item that is to be stored, checked and encoded."""

    item: StoredItem
    expected: int
    """Version that the item must have; 0 if it must not exist."""
    partition: Partition
    field: bytes
    value: bytes


def as_import(context: StoreContext, item: StoredItem, expected: int) -> Import:
    """Check and encode an item.

    Raises:
        InvalidNamespaceError, LimitExceeded, EncodeError: It cannot be stored.
    """
    partition, field = find_place(context, item)
    return Import(item, expected, partition, field, dump_value(context.values, item.namespace, item.key, item.value))


def new_put() -> str:
    """Return a random name for a put, by which scripts recognize one that is sent twice."""
    return os.urandom(8).hex()


def import_items(
    context: StoreContext, partition: Partition, some: Sequence[Import], made_by: str
) -> Operation[list[Import]]:
    """Store some items of a partition in one step; return those that did not have the expected version.

    Three round trips. It may run again with the same `made_by`: items that it stored before are neither stored again
    nor returned.
    """
    arguments: list[Argument] = []
    for item, expected, _, field, value in some:
        created, updated = (min(max(moment, 1), 1000 * _LATEST) for moment in (item.created_at, item.updated_at))
        ttl, deadline = (min(max(item.ttl, 1), _LATEST), min(item.expires_at, _LATEST)) if item.expires_at else (0, 0)
        arguments += (field, expected, created, updated, ttl, deadline, made_by, value)
    reply = yield from ask(
        context, partition, scripts.IMPORT_ITEMS, arguments, [item_import.field for item_import in some]
    )
    with reading_store(partition.keys[0]):
        return [some[item_at(position, len(some))] for position in reply.values]
