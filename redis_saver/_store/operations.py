"""The operations behind a store's methods: `batch`, and `get` and `put` of one item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, Result, SearchOp

from redis_saver._common import config as configs
from redis_saver._common import ttl as ttls
from redis_saver._common.display import kind_of, shown
from redis_saver._common.store_names import PARTITION_LABELS, Partition
from redis_saver._engine.requests import Operation
from redis_saver._store import namespaces, searching
from redis_saver._store.calling import together
from redis_saver._store.context import StoreContext
from redis_saver._store.items import VersionedItem, encode_value
from redis_saver._store.reading import read
from redis_saver._store.texts import Texts
from redis_saver._store.writing import ANY_VERSION, DELETION, Write, put
from redis_saver.errors import reading_store

ITEMS_PER_GET = 500


def get(context: StoreContext, namespace: tuple[str, ...], key: str, refresh: bool) -> Operation[VersionedItem | None]:
    """One item; one round trip."""
    place = context.places.of(namespace)
    field = place.field(context.places.key(key))
    return _get(context, place.partition, field, namespace, key, refresh)


def _get(
    context: StoreContext, partition: Partition, field: bytes, namespace: tuple[str, ...], key: str, refresh: bool
) -> Operation[VersionedItem | None]:
    (entry,) = yield from read(context, partition, (field,), refresh=refresh)
    if entry is None:
        return None
    with reading_store(partition.keys[0]):
        return entry.item(context.values, tuple(namespace), key)


def put_one(context: StoreContext, op: PutOp, if_version: int | None, texts: Texts) -> Operation[None]:
    """Store an item; one round trip. The call itself notes the texts that have to be embedded first."""
    partition, field, write = _as_write(context, op, if_version)
    texts.note(write.texts)
    return put(context, partition, {field: write}, texts)


def delete(context: StoreContext, namespace: tuple[str, ...], key: str) -> Operation[None]:
    """Delete an item, if it is there; one round trip."""
    place = context.places.of(namespace)
    return put(context, place.partition, {place.field(context.places.key(key)): DELETION}, Texts())


def _as_write(context: StoreContext, op: PutOp, if_version: int | None = None) -> tuple[Partition, bytes, Write]:
    """What a put does, checked and encoded."""
    places = context.places
    place = places.of(op.namespace) if op.value is None else places.to_put(op.namespace)
    key = places.key(op.key)
    if op.value is None:
        return place.partition, place.field(key), DELETION
    value = encode_value(context.values, op.namespace, key, op.value)
    expected = ANY_VERSION if if_version is None else b"%d" % _checked_version(if_version)
    texts = context.embedder.texts_of(context.values, op.namespace, key, op.value, op.index) if context.embedder else ()
    return place.partition, place.field(key), Write(value, _milliseconds(op.ttl), expected, texts)


def _checked_version(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(
            f"if_version={shown(given)}: write the version of the item that get() returned, or 0 if there must be none"
        )
    if given < 0:
        raise ValueError(
            f"if_version={shown(given)}: a version is not negative; 0 means that there must be no such item"
        )
    configs.number("if_version", given, 0, whole=True)
    return given


def _milliseconds(minutes: Any) -> int:
    """The TTL of an item; 0: none.

    Raises:
        TypeError, ValueError: It is no number of minutes, or out of range.
    """
    if minutes is None:
        return 0
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)):
        raise TypeError(f"ttl={shown(minutes)}: the TTL of an item is a number of minutes, or None for none")
    return ttls.parse({"default_ttl": minutes}).milliseconds or 0


def batch(context: StoreContext, ops: Iterable[Op], texts: Texts) -> Operation[list[Result]]:
    """Many operations. The call itself checks the arguments, encodes the values, and notes the texts that have to be embedded, before anything is sent.

    Raises:
        TypeError, ValueError: An operation makes no sense.
    """
    given = list(ops)
    collected = _Batch(context, len(given), texts)
    for position, op in enumerate(given):
        collected.add(position, op)
    collected.note_texts()
    return collected.run()


class _Batch:
    """Operations, by what they have in common: gets and puts by partition."""

    def __init__(self, context: StoreContext, length: int, texts: Texts) -> None:
        self._context, self._texts = context, texts
        self._results: list[Result] = [None] * length
        self._gets: dict[tuple[Partition, bool], dict[bytes, list[tuple[int, GetOp]]]] = {}
        self._puts: dict[Partition, dict[bytes, Write]] = {}
        self._searches: list[Operation[None]] = []
        self._read: set[Partition] = set()
        """The partitions that are read, as far as operations name them."""
        self._looks_at_several = False
        """Whether operations also read partitions that only the directory names."""

    def add(self, position: int, op: Op) -> None:
        """Take an operation, whose result has this position."""
        if isinstance(op, GetOp):
            place = self._context.places.of(op.namespace)
            self._read.add(place.partition)
            fields = self._gets.setdefault((place.partition, bool(op.refresh_ttl)), {})
            fields.setdefault(place.field(self._context.places.key(op.key)), []).append((position, op))
        elif isinstance(op, PutOp):
            partition, field, write = _as_write(self._context, op)
            writes = self._puts.setdefault(partition, {})
            writes.pop(field, None)  # the last put of an item gives it its place in the order
            writes[field] = write
        elif isinstance(op, SearchOp):
            self._searches.append(self._into(position, searching.search(self._context, op, self._texts)))
            if len(op.namespace_prefix) < PARTITION_LABELS:
                self._looks_at_several = True
            else:
                self._read.add(self._context.places.of(op.namespace_prefix).partition)
        elif isinstance(op, ListNamespacesOp):
            self._searches.append(self._into(position, namespaces.list_namespaces(self._context, op)))
            self._looks_at_several = True
        else:
            raise TypeError(f"{kind_of(op)} is no operation of a store: GetOp, PutOp, SearchOp or ListNamespacesOp")

    def note_texts(self) -> None:
        """Note the texts of those puts that count."""
        for writes in self._puts.values():
            for write in writes.values():
                self._texts.note(write.texts)

    def run(self) -> Operation[list[Result]]:
        """Reads see what was there before the puts: they go first, or beside puts to other partitions."""
        reads = [*self._searches, *self._all_gets()]
        puts = [put(self._context, partition, writes, self._texts) for partition, writes in self._puts.items()]
        if reads and puts and (self._looks_at_several or not self._read.isdisjoint(self._puts)):
            yield from together(self._context, reads)
            yield from together(self._context, puts)
        else:
            yield from together(self._context, [*reads, *puts])
        return self._results

    def _all_gets(self) -> Iterator[Operation[None]]:
        for (partition, refresh), fields in self._gets.items():
            names = list(fields)
            for start in range(0, len(names), ITEMS_PER_GET):
                some = {name: fields[name] for name in names[start : start + ITEMS_PER_GET]}
                yield self._get(partition, some, refresh)

    def _get(
        self, partition: Partition, fields: dict[bytes, list[tuple[int, GetOp]]], refresh: bool
    ) -> Operation[None]:
        entries = yield from read(self._context, partition, tuple(fields), refresh=refresh)
        for asked, entry in zip(fields.values(), entries, strict=True):
            if entry is not None:
                with reading_store(partition.keys[0]):
                    for position, op in asked:
                        self._results[position] = entry.item(self._context.values, tuple(op.namespace), op.key)

    def _into(self, position: int, operation: Operation[Any]) -> Operation[None]:
        self._results[position] = yield from operation
