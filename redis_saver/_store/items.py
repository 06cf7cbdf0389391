"""Items, as callers get them and as records.

A record begins with numbers of the script: the time of the item's creation, its version, its TTL, and the name of the
put that stored it. The value follows: a frame of the serializer's type, and the serializer's bytes.

With `encryption=`, the value and the vectors of an item are sealed with their partition, their field, and the name of
the put, which is random. So they open at no other item, and only together. The numbers stay open, because the server
chooses them. Not detected: an older value of the same item that is put back together with the name of its put, other
times, and an item or vectors that are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from langgraph.store.base import Item, SearchItem

from redis_saver._common import limits, names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._common.store_names import Partition, namespace_and_key
from redis_saver._storage import compression
from redis_saver._storage.context import Context
from redis_saver._storage.framing import first, pack
from redis_saver._storage.sealing import ENCRYPTED, SEALED
from redis_saver.errors import IsEncrypted, decoding_item, encoding

_HEAD = re.compile(rb"([0-9]{1,16}) ([0-9]{1,16}) ([0-9]{1,15}) ([0-9a-f]+) ")
_PLAIN = b"7:msgpack"
CHECKSUM = 2**50
"""Modulus of sums of versions, as in the scripts (`lib/partition.lua`)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class VersionedItem(Item):
    """An item of a `RedisStore`, with its version."""

    __slots__ = ("version",)
    version: int
    """`updated_at` in microseconds since 1970, for `put(..., if_version=)`. Each put of the item raises it."""


class VersionedSearchItem(SearchItem):
    """An item that `search` of a `RedisStore` found, with its version."""

    __slots__ = ("version",)
    version: int
    """Version of the item, see `VersionedItem`."""


class Entry:
    """An item as the server returned it. It is cached, so only filters change it: they add the decoded value.

    Caches compare the version alone. So a record gets a new version even if only its TTL (`has_ttl`) changes.
    """

    __slots__ = ("created", "data", "field", "has_ttl", "known", "made_by", "size", "version")

    def __init__(self, field: bytes, record: bytes) -> None:
        """Take a record apart.

        Raises:
            ValueError: It is not a record.
        """
        if (head := _HEAD.match(record)) is None:
            raise ValueError(f"the record of {shown(field)} begins with {shown(record[:40])}")
        created, version, ttl, self.made_by = head.groups()
        self.data = record[head.end() :]
        self.field, self.created, self.version, self.has_ttl = field, int(created), int(version), ttl != b"0"
        self.known: dict[str, Any] | None = None
        """The value, once a filter has decoded it."""
        self.size = 400 + len(field) + 3 * len(record)
        """Approximate memory in bytes, with the value."""

    def value(self, context: Context, partition: Partition) -> dict[str, Any]:
        """Return the value for filters. It is cached, so no caller of the store gets it."""
        if self.known is None:
            self.known = self.decoded(context, *namespace_and_key(partition, self.field))
        return self.known

    def decoded(self, context: Context, namespace: tuple[str, ...], key: str) -> dict[str, Any]:
        """Decode the value anew.

        Raises:
            DecodeError: The serializer does not know the bytes.
            PlainValueRefused: They are not encrypted, but must be.
        """
        with decoding_item("item {!r} of namespace {!r}", key, namespace):
            value = self.loaded(context)
            if not isinstance(value, dict):
                raise ValueError(  # noqa: TRY004 - it becomes a DecodeError
                    f"it is a {type(value).__name__}, and the value of an item is a dict"
                )
            return value

    def loaded(self, context: Context) -> Any:
        """Decode the bytes with the serializer, whose errors pass through."""
        data = self.data
        if data.startswith(_PLAIN):  # most are
            return context.serde.loads_typed(("msgpack", data[len(_PLAIN) :]))
        kind, start = first(data)
        if kind.endswith(SEALED):
            raise IsEncrypted(ENCRYPTED)
        kind, data = compression.original(kind, data[start:], Allowance(context.limits, "a store"))
        return context.serde.loads_typed((names.decode(kind), data))

    def item(self, context: Context, namespace: tuple[str, ...], key: str) -> VersionedItem:
        """Return the item as `get` returns it."""
        value, (created, updated) = self.decoded(context, namespace, key), self.moments()
        item = VersionedItem(value=value, key=key, namespace=namespace, created_at=created, updated_at=updated)
        item.version = self.version
        return item

    def search_item(self, context: Context, partition: Partition, score: float | None = None) -> VersionedSearchItem:
        """Return the item as `search` returns it."""
        namespace, key = namespace_and_key(partition, self.field)
        item = VersionedSearchItem(namespace, key, self.decoded(context, namespace, key), *self.moments(), score)
        item.version = self.version
        return item

    def moments(self) -> tuple[datetime, datetime]:
        """Return the times of its creation and of its last put."""
        updated = _EPOCH + timedelta(microseconds=self.version)
        if self.created == self.version:
            return updated, updated
        return _EPOCH + timedelta(microseconds=self.created), updated


def seal(context: Context, field: bytes, put: bytes, plain: bytes, what: bytes = b"item") -> bytes:
    """Seal the value of an item, or its `vectors`, if the store encrypts. `put` is the name of its put."""
    cipher = context.cipher
    return plain if cipher is None else cipher.seal_value(pack([what, cipher.thread, field, put]), plain)


def unseal(context: Context, field: bytes, put: bytes, stored: bytes, what: bytes = b"item") -> bytes:
    """Open what `seal` sealed.

    Raises:
        ValueError: It was not sealed for this item and put with the data key of the partition.
    """
    cipher = context.opener()
    return stored if cipher is None else cipher.open_value(pack([what, cipher.thread, field, put]), stored)


def entry_maker(context: Context, partition: Partition) -> Callable[[bytes, bytes], Entry]:
    """Return what makes entries of the fields and records of a partition. It opens them if the store encrypts."""
    return Entry if context.data_keys is None else partial(_opened, context, partition)


def _opened(context: Context, partition: Partition, field: bytes, record: bytes) -> Entry:
    entry = Entry(field, record)
    namespace, key = namespace_and_key(partition, field)
    with decoding_item("item {!r} of namespace {!r}", key, namespace):
        entry.data = unseal(context, field, entry.made_by, entry.data)
    return entry


class Hit(NamedTuple):
    """An item that a search found, with its score if there is a query."""

    partition: Partition
    entry: Entry
    score: float | None = None

    @property
    def name(self) -> tuple[tuple[str, ...], str]:
        """Namespace and key of the item."""
        return namespace_and_key(self.partition, self.entry.field)

    @property
    def order(self) -> tuple[bool, float, int, tuple[str, ...], str]:
        """Sort by score, then by namespace and key. Items without a score come last, newest first."""
        namespace, key = self.name
        if self.score is None:
            return True, 0.0, -self.entry.version, namespace, key
        return False, -self.score, 0, namespace, key


def encode_value(context: Context, namespace: tuple[str, ...], key: str, value: Any) -> bytes:
    """Encode the value of an item for its record.

    Raises:
        TypeError: The value is not a mapping with string keys.
        EncodeError: The serializer does not know a part of it.
        LimitExceeded: It is too long.
    """
    if not isinstance(value, (dict, Mapping)) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"value={shown(value)}: the value of an item is a dict whose keys are str")
    return dump_value(context, namespace, key, value if type(value) is dict else dict(value))


def dump_value(context: Context, namespace: tuple[str, ...], key: str, value: Any) -> bytes:
    """Encode a value as `encode_value` does, without its check. The value is a dict, or one that stays packed.

    Raises:
        EncodeError, LimitExceeded: As `encode_value`.
    """
    with encoding("item {!r} of namespace {!r}", key, namespace):
        type_name, data = context.serde.dumps_typed(value)
    limits.check(context.limits, "value_bytes", len(data), "the value of item {!r} has {} bytes", key)
    kind = names.encode(type_name)
    if context.compression is not None:
        kind, data = compression.smaller(kind, data)
    return b"%d:%b%b" % (len(kind), kind, data)
