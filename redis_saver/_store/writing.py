"""Operations that store and delete items of a partition, or move items between stores.

Items that move keep their own times and the rest of their TTLs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from langgraph.store.base import PutOp

from redis_saver._common import config, ttl as ttls
from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition, namespace_and_key
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Call, Operation, T
from redis_saver._store import scripts
from redis_saver._store.context import StoreContext
from redis_saver._store.index_config import Texts
from redis_saver._store.items import Entry, dump_value, encode_value, entry_maker, seal, unseal
from redis_saver._store.reading import list_fields
from redis_saver._store.scripts import ask, item_at, keyed, windows, with_partition_key
from redis_saver.errors import Conflict, DecodeError, decoding_item, reading_store

MAX_PUTS, MAX_BYTES = 1000, 8_000_000
"""Maximum number of items, and approximate maximum of bytes, that one script stores."""
FIELDS_PER_READ = 500
_LATEST = 7_258_118_400_000
"""The year 2200, in milliseconds. No stored time is later, so that sums of them stay exact in scripts."""
ANY_VERSION = b""
KEEP = b"keep"
"""Vectors of a put that leaves those of the item as they are."""


class Write(NamedTuple):
    """New state of an item."""

    value: bytes
    """Value as a record has it. Empty to delete the item."""
    ttl: int = 0
    """Milliseconds, or 0 for none."""
    expected: bytes = ANY_VERSION
    """Version that the item must have; `0` if it must not exist."""
    texts: Sequence[str] = ()
    """Texts whose vectors it gets."""
    keeps_vectors: bool = False
    """True if its vectors stay as they are."""


DELETION = Write(b"")


def as_write(context: StoreContext, op: PutOp, if_version: int | None = None) -> tuple[Partition, bytes, Write]:
    """Check and encode a put. Returns its partition, field and write."""
    places = context.places
    place, key = places.of(op.namespace), places.key(op.key)
    if op.value is None:
        return place.partition, place.field(key), DELETION
    value = encode_value(context.values, op.namespace, key, op.value)
    expected = ANY_VERSION
    if if_version is not None:
        config.number("if_version", if_version, 0, whole=True)
        expected = b"%d" % if_version
    texts = context.embedder.texts_of(context.values, op.namespace, key, op.value, op.index) if context.embedder else ()
    return place.partition, place.field(key), Write(value, item_ttl(op.ttl), expected, texts, op.index is False)


def item_ttl(minutes: Any) -> int:
    """Convert the TTL of an item to milliseconds. 0 for none.

    Raises:
        TypeError, ValueError: It is not a number of minutes, or out of range.
    """
    if minutes is None:
        return 0
    rule = "the TTL of an item is a number of minutes, or None for none"
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)):
        raise TypeError(f"ttl={shown(minutes)}: {rule}")
    if not 1 <= minutes * 60_000 <= ttls.MAX_TTL:  # also NaN
        raise ValueError(f"ttl={shown(minutes)}: {rule}, from a millisecond to a hundred years")
    return timedelta(minutes=minutes) // timedelta(milliseconds=1)


def put(context: StoreContext, partition: Partition, writes: Mapping[bytes, Write], texts: Texts) -> Operation[None]:
    """Store and delete items of a partition, by their fields. A script takes up to 1,000 items or 8 MB.

    Deleting needs no data key, so items whose key was destroyed can be deleted.

    Args:
        context: The store.
        partition: The partition of the items.
        writes: New states of the items.
        texts: The embedded texts of these writes.

    Raises:
        Conflict: An item has another version than expected.
    """
    if any(write.value for write in writes.values()):
        yield from with_partition_key(context, partition, lambda of: _put(of, partition, writes, texts), creates=True)
    else:
        yield from _put(context, partition, writes, texts)


def _put(context: StoreContext, partition: Partition, writes: Mapping[bytes, Write], texts: Texts) -> Operation[None]:
    of_vector = 4 * context.embedder.dims if context.embedder else 0

    def size_of(field: bytes) -> int:
        value, _, _, own_texts, keeps_vectors = writes[field]
        return len(field) + len(value) + of_vector * (len(own_texts) + keeps_vectors)

    for fields in split(writes, size_of):
        while not (yield from _put_together(context, partition, {field: writes[field] for field in fields}, texts)):
            pass  # others put an item between the read of its vectors and the put


def _put_together(
    context: StoreContext, partition: Partition, writes: Mapping[bytes, Write], texts: Texts
) -> Operation[bool]:
    """Run the script once. False if it stored nothing, because an item changed after its vectors were read."""
    values, fields = context.values, list(writes)
    kept = yield from _read_kept(context, partition, writes)
    arguments: list[Argument] = [_key_argument(context)]
    digits = os.urandom(8 * len(fields)).hex()  # by its digits the script recognizes a put that is sent twice
    for position, (field, (value, ttl, expected, own_texts, keeps_vectors)) in enumerate(writes.items()):
        name, vectors = digits[16 * position : 16 * position + 16].encode(), KEEP if keeps_vectors else b""
        known = kept.get(field)
        if own_texts and context.embedder:
            vectors = context.embedder.encode(values, partition, field, name, texts.rows(own_texts))
        elif known is not None:
            vectors = known.plain and b"%b %b" % (known.dims, seal(values, field, name, known.plain, b"vectors"))
        wanted = expected or (known.version if known else ANY_VERSION)
        sealed = value and seal(values, field, name, value)
        arguments += scripts.PutItemsArguments(
            field=field, expected=wanted, ttl=ttl, put=name, value=sealed, vectors=vectors
        )
    reply = yield from ask(context, partition, scripts.PUT_ITEMS, arguments, fields)
    if reply.code == StoreReply.CONFLICT:
        with reading_store(partition.keys[0]):
            other, version = fields[item_at(reply.values[0], len(fields))], int(reply.values[1])
        if other in kept and writes[other].expected == ANY_VERSION:
            return False
        raise _conflict(partition, other, version, writes)
    if reply.code == StoreReply.EMPTIED:
        yield Call(scripts.WITHDRAW, context.keyspace.directory, (partition.member, reply.values[0]))
    return True


class _Kept(NamedTuple):
    """Vectors of an item that a put leaves as they are."""

    version: bytes = b"0"
    """Version of the item, `0` if there is none."""
    dims: bytes = b""
    plain: bytes = b""
    """The opened vectors, empty if there are none."""


def _read_kept(
    context: StoreContext, partition: Partition, writes: Mapping[bytes, Write]
) -> Operation[dict[bytes, _Kept]]:
    """Read and open the vectors that are to stay. They are sealed with the name of a put, so each put seals them anew.

    Without `encryption=` the script keeps them, and nothing is read. Else one round trip per 500 items.

    Raises:
        DecodeError: Vectors do not open.
    """
    kept = dict[bytes, _Kept]()
    fields = [field for field, write in writes.items() if write.keeps_vectors]
    for window in windows(fields if context.values.cipher is not None else [], FIELDS_PER_READ):
        found = (yield from ask(context, partition, scripts.READ_ITEMS, ("vectors", *window))).values[2:]
        pairs = zip(found[::2], found[1::2], strict=True) if found else [(b"", b"")] * len(window)
        for field, (record, stored) in zip(window, pairs, strict=True):
            kept[field] = _opened_vectors(context, partition, field, record, stored) if record else _Kept()
    return kept


def _opened_vectors(context: StoreContext, partition: Partition, field: bytes, record: bytes, stored: bytes) -> _Kept:
    with reading_store(partition.keys[0]):
        entry, (namespace, key) = Entry(field, record), namespace_and_key(partition, field)
    dims, _, framed = stored.partition(b" ")
    with decoding_item("the vectors of item {!r} of namespace {!r}", key, namespace):
        plain = framed and unseal(context.values, field, entry.made_by, framed, b"vectors")
    return _Kept(b"%d" % entry.version, dims, plain)


def _key_argument(context: StoreContext) -> bytes:
    """Return the data key as scripts take it, or empty."""
    cipher = context.values.cipher
    return b"" if cipher is None else cipher.argument


def split(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of items that one script takes, by their sizes in bytes."""
    batch: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        size += own
        if batch and (len(batch) >= MAX_PUTS or size > MAX_BYTES):
            yield batch
            batch, size = [], own
        batch.append(item)
    if batch:
        yield batch


def _conflict(partition: Partition, field: bytes, version: int, writes: Mapping[bytes, Write]) -> Conflict:
    namespace, key = namespace_and_key(partition, field)
    expected = int(writes[field].expected)
    there = f"has version {version}" if version else "is not there"
    was = f"version {expected}" if expected else "that it is not there"
    return Conflict(
        f"item {shown(key)} of namespace {shown(namespace)} {there}, and if_version expects {was}. Nothing was written "
        "now. Read the item again, apply the change to its new value, and put it with its new version. It may have "
        "been written before only if the client sent it twice after a lost reply, and 16 other puts with if_version or "
        "a deletion of all items came in between",
        version,
    )


def delete_below(context: StoreContext, partition: Partition, prefix: bytes) -> Operation[int]:
    """Delete the items of a partition whose fields begin with a prefix. Returns the number of deleted items."""
    fields = yield from list_fields(context, partition, prefix)
    yield from put(context, partition, dict.fromkeys(fields, DELETION), Texts())
    return len(fields)


class _Swept(NamedTuple):
    """Reply of `sweep_items.lua`."""

    more: int
    """1 if more has expired than one call removes, or a code."""
    gone: int
    left: int
    refused: bytes
    """Entries with tokens up to this one may be removed from the directory."""


def clean(context: StoreContext, partition: Partition, token: Any, what: str = "expired") -> Operation[int]:
    """Remove expired items of a partition, or `all`. Returns the number of removed items.

    An empty partition is removed from the directory.

    Args:
        context: The store.
        partition: The partition.
        token: Token of its entry in the directory, or 0 if unknown.
        what: `expired` or `all`.
    """
    removed, more = 0, 1
    while more:
        reply = yield Call(scripts.SWEEP_ITEMS, partition.keys, (token, what))
        more, gone, left, refused = _Swept(*scripts.checked(scripts.SWEEP_ITEMS, partition.keys[0], reply).values)
        if more == StoreReply.DOCUMENTED and what == "all":
            gone, what = (yield from delete_below(context, partition, b"")), "expired"
        elif more and not gone:
            with reading_store(partition.keys[2]):
                raise ValueError("more items have expired, and none was removed")
        removed += gone
    if not left and refused != b"0":
        yield Call(scripts.WITHDRAW, context.keyspace.directory, (partition.member, refused))
    return removed


# -- items that move between stores


class StoredItem(NamedTuple):
    """An item that a migration reads or writes."""

    namespace: tuple[str, ...]
    key: str
    value: Any
    """The decoded value: a dict, or bytes that stay packed (`OpaqueSerializer`)."""
    created_at: int
    """Microseconds since 1970."""
    updated_at: int
    """Time of the last put, in microseconds since 1970."""
    ttl: int
    """Lifetime after each put or read, in milliseconds, or 0 if it does not expire."""
    expires_at: int
    """Deadline in milliseconds since 1970, or 0 if it does not expire."""
    size: int
    """Approximate size of the value, in bytes."""


@keyed
def read_items(
    context: StoreContext, partition: Partition, fields: Sequence[bytes]
) -> Operation[list[StoredItem | DecodeError | None]]:
    """Read the first items, as many as fit into one reply. None for a missing item, an error for a damaged one."""
    asked: list[Argument] = ["deadlines", *fields[:FIELDS_PER_READ]]
    values = (yield from ask(context, partition, scripts.READ_ITEMS, asked)).values
    if not values:
        return [None] * len(fields)
    answered = zip(fields, values[2::2], values[3::2], strict=False)
    items = [_stored(context, partition, field, record, deadline) for field, record, deadline in answered]
    error = next((item for item in items if isinstance(item, DecodeError)), None)
    if error is not None and (data_keys := context.values.data_keys) is not None:
        cipher = yield from data_keys.load(partition.name, partition.keys[0], context.values.cipher)
        if cipher is not context.values.cipher:
            raise error  # another process has replaced the partition: `with_key` reads again
    return items


def _stored(
    context: StoreContext, partition: Partition, field: bytes, record: bytes, deadline: bytes
) -> StoredItem | DecodeError | None:
    if not record:
        return None
    with reading_store(partition.keys[0]):
        namespace, key = namespace_and_key(partition, field)
    try:
        with decoding_item("item {!r} of namespace {!r}", key, namespace):
            entry = entry_maker(context.values, partition)(field, record)
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
    place = context.places.of(item.namespace)
    return place.partition, place.field(context.places.key(item.key))


class Import(NamedTuple):
    """A checked and encoded item that is to be stored."""

    item: StoredItem
    expected: int
    """Version that the item must have, or 0 if it must not exist."""
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
    """Return a random name for a put, so that scripts recognize a put that is sent twice."""
    return os.urandom(8).hex()


def import_items(
    context: StoreContext, partition: Partition, imports: Sequence[Import], made_by: str
) -> Operation[list[Import]]:
    """Store items of a partition atomically. Returns those that did not have the expected version.

    Three round trips. It may run again with the same `made_by`. Then items that it stored before are neither stored
    again nor returned.
    """
    make = partial(_import_items, partition=partition, imports=imports, made_by=made_by)
    return with_partition_key(context, partition, make, creates=True)


def _import_items(
    context: StoreContext, *, partition: Partition, imports: Sequence[Import], made_by: str
) -> Operation[list[Import]]:
    arguments: list[Argument] = [_key_argument(context)]
    for item, expected, _, field, value in imports:
        created, updated = (min(max(moment, 1), 1000 * _LATEST) for moment in (item.created_at, item.updated_at))
        ttl, deadline = (min(max(item.ttl, 1), _LATEST), min(item.expires_at, _LATEST)) if item.expires_at else (0, 0)
        sealed = seal(context.values, field, made_by.encode(), value)
        arguments += scripts.ImportItemsArguments(
            field=field, expected=expected, created=created, updated=updated, ttl=ttl, deadline=deadline, put=made_by,
            value=sealed,
        )  # fmt: skip
    reply = yield from ask(context, partition, scripts.IMPORT_ITEMS, arguments, [each.field for each in imports])
    with reading_store(partition.keys[0]):
        return [imports[item_at(position, len(imports))] for position in reply.values]
