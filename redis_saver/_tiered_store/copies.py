"""Shared by operations of tiered stores: counters, failures of hot, and copies of cold's items in hot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, NamedTuple

from langgraph.store.base import Item

from redis_saver._common import forks
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog, log_text
from redis_saver._common.store_names import Partition, with_notes
from redis_saver._engine.requests import Argument, Batch, Command, Operation, T
from redis_saver._engine.stats import Counting, OperationStats
from redis_saver._store import namespaces, scripts
from redis_saver._store.context import StoreContext, namespace_and_key
from redis_saver._store.items import Entry, encode_value
from redis_saver._store.scripts import ask, together, windows
from redis_saver._store.writing import clean, split
from redis_saver._tiered.requests import HotFailed, Tiered, is_out_of_memory
from redis_saver.errors import EncodeError, KeyConflict, LimitExceeded, StoreDamaged, reading_store

_LOG = ThrottledLog("redis_saver.tiered_store")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_UPDATED_DIGITS = 14
"""Number of hex digits of cold's `updated_at` in a copy. An item of a `RedisStore` has 16 digits there, for its put."""


@dataclass
class TieredStoreStats:
    """Counts of events between the tiers of a store, in this process."""

    hits: int = 0
    """Gets and searches that hot answered."""
    misses: int = 0
    """Gets and searches that cold answered because hot did not have everything."""
    fills: int = 0
    """Copies that were stored in hot after a miss or a write."""
    refused: int = 0
    """Copies that were not stored: somebody else wrote the item, hot is full, or its serializer or limits refuse the
    value."""
    repairs: int = 0
    """Partitions that hot dropped because a part was evicted, and copies that could not be decoded."""
    bypasses: int = 0
    """Reads and writes that continued without hot because it failed."""
    errors: int = 0
    """Writes to cold that could not be read back. The log has the last reason (`redis_saver.tiered_store`,
    WARNING)."""
    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """Calls by method. `store.hot.stats()` has their requests to Redis."""


class Counts(TieredStoreStats):
    """The live counters. Users get copies (`snapshot`)."""

    kind: ClassVar[str] = "store_tier"

    def numbers(self) -> Mapping[str, Any]:
        """Return the counters."""
        return vars(self)

    def after_fork(self) -> None:
        """Start at zero in a child."""
        vars(self).update(vars(TieredStoreStats()))

    def snapshot(self, counting: Counting) -> TieredStoreStats:
        """Return a copy of the counters, with those of the calls."""
        return replace(TieredStoreStats(), **vars(self) | {"operations": counting.snapshot()})


class StoreTiers:
    """The state of a store over two tiers."""

    def __init__(self, hot: StoreContext, ttl: int) -> None:
        self.hot: StoreContext = hot
        """The hot store."""
        self.ttl: int = ttl
        """Lifetime of a copy in milliseconds. 0: until it is evicted or written."""
        self.counts: Counts = Counts()
        forks.watch(self.counts)


def ask_each(
    tiers: StoreTiers, operations: Sequence[tuple[Partition, Callable[[], Operation[T]]]]
) -> Operation[list[T]]:
    """Run operations over partitions of hot together. Drops damaged partitions, then the directory, and retries."""
    try:
        return (yield from together(tiers.hot, [make() for _, make in operations]))
    except StoreDamaged:
        pass
    results = []
    for partition, make in operations:
        results.append((yield from _repaired(tiers, partition, make)))
    return results


def _repaired(tiers: StoreTiers, partition: Partition, make: Callable[[], Operation[T]]) -> Operation[T]:
    try:
        return (yield from make())
    except StoreDamaged as damage:
        _note_repair(tiers, damage)
    try:
        yield from clean(tiers.hot, partition, 0, "all")
        return (yield from make())
    except StoreDamaged as damage:
        _note_repair(tiers, damage)
    yield Command(("UNLINK", *tiers.hot.keyspace.directory))  # no read of hot uses it
    return (yield from make())


def _note_repair(tiers: StoreTiers, damage: StoreDamaged) -> None:
    tiers.counts.repairs += 1
    _LOG.warning("a part of hot was damaged; hot drops it and is filled from cold: %s", log_text(damage))


def best_effort(tiers: StoreTiers, operation: Tiered[Any]) -> Tiered[None]:
    """Run an operation over hot. If hot fails and may be bypassed, ignore that, because cold has the data."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


def unless_full(operation: Operation[T]) -> Tiered[T | None]:
    """Run an operation over hot. Returns None if the server is out of memory."""
    try:
        return (yield from operation)
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise


# -- copies


class Copy(NamedTuple):
    """A copy of an item, as scripts take it."""

    field: bytes
    created: int = 0
    ttl: int = 0
    updated: bytes = b"0"
    value: bytes = b""
    """Encoded value. Empty if there is nothing to store."""


def aware(item: Item) -> Item:
    """Give an item's times the timezone UTC, because some stores return naive ones."""
    for name in ("created_at", "updated_at"):
        if getattr(item, name).tzinfo is None:
            setattr(item, name, getattr(item, name).replace(tzinfo=timezone.utc))
    return item


def copy_of(context: StoreContext, field: bytes, item: Item, ttl: int) -> Copy | None:
    """Return a copy of cold's item. None if hot's serializer or limits refuse the value."""
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
    """Return cold's `updated_at` of a copy in microseconds.

    Raises:
        KeyConflict: The entry is not a copy.
    """
    if len(entry.made_by) != _UPDATED_DIGITS:
        namespace, key = namespace_and_key(partition, entry.field)
        raise KeyConflict(
            f"item {shown(key)} of namespace {shown(namespace)} in hot is not a copy of an item of cold: it was put "
            "into the RedisStore directly. Nothing was changed. Give the hot RedisStore its own prefix=, and put the "
            "items that only this RedisStore has into cold"
        )
    return int(entry.made_by, 16)


def item_of(context: StoreContext, partition: Partition, entry: Entry, kind: type[Item] = Item) -> Any:
    """Return the item of a copy as cold returned it: an `Item` or a `SearchItem`.

    Raises:
        KeyConflict: The entry is not a copy.
        DecodeError: The copy cannot be decoded.
    """
    updated = _EPOCH + updated_of(entry, partition) * _MICROSECOND
    namespace, key = namespace_and_key(partition, entry.field)
    value = entry.decoded(context.values, namespace, key)
    created = _EPOCH + entry.created * _MICROSECOND
    return kind(value=value, key=key, namespace=namespace, created_at=created, updated_at=updated)


class Read(NamedTuple):
    """Copies of items, as read from hot."""

    miss: bytes
    """Name of the miss, for fills. Empty if hot has all of the items."""
    entries: dict[bytes, Entry]


def read(context: StoreContext, partition: Partition, fields: Sequence[bytes]) -> Operation[Read]:
    """Read copies. One round trip."""
    reply = yield from ask(context, with_notes(partition, writing=False), scripts.GET_COPIES, fields)
    miss, *records = reply.values
    with reading_store(partition.keys[0]):
        pairs = zip(fields, records, strict=True)
        return Read(miss, {field: Entry(field, record) for field, record in pairs if record is not None})


def fill(context: StoreContext, partition: Partition, miss: bytes, copies: Sequence[Copy]) -> Operation[int]:
    """Store copies of cold's items after a miss. Returns the number of stored copies.

    One round trip per thousand copies (8 MB). The first copies of a partition take two more.
    """
    stored, with_keys = 0, with_notes(partition, writing=False)
    for some in batches(copies):
        arguments: list[Argument] = [argument for copy in some for argument in copy]
        (count,) = (yield from ask(context, with_keys, scripts.FILL_COPIES, (miss, *arguments))).values
        with reading_store(partition.keys[0]):
            stored += int(count)
    return stored


def batches(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Split copies by the size of a script's arguments."""
    return split(copies, lambda copy: len(copy.field) + len(copy.value))


# -- for `redis-saver forget`, which deletes items in cold and in hot


def holds_copies(context: StoreContext, labels: tuple[str, ...]) -> Operation[bool]:
    """True if a store has copies in the partitions of these labels, or had some within a day.

    A store with copies has nothing else, so one item per partition is enough. Up to three round trips per 256
    partitions.
    """
    for some in windows((yield from namespaces.partitions(context, labels))):
        keys = [with_notes(partition, writing=False).keys for partition, _ in some]
        if any((yield Batch([Command(("EXISTS", notes)) for *_, notes in keys]))):
            return True
        oldest = yield Batch([Command(("ZRANGE", order, 0, 0)) for _, order, *_ in keys])
        first = [(items, fields[0]) for (items, *_), fields in zip(keys, oldest, strict=True) if fields]
        records = (yield Batch([Command(("HMGET", *names)) for names in first])) if first else []
        for (items, name), (record,) in zip(first, records, strict=True):
            with reading_store(items):
                if record is not None and len(Entry(name, record).made_by) == _UPDATED_DIGITS:
                    return True
    return False


def forget_misses(context: StoreContext, labels: tuple[str, ...]) -> Operation[None]:
    """Remove the notes of the partitions of these labels, so that hot refuses fills after earlier misses.

    Call it after cold has deleted the items, and delete the copies afterwards. Writers treat it as an eviction of the
    notes. One round trip per 256 partitions.
    """
    for some in windows((yield from namespaces.partitions(context, labels))):
        yield Batch([Command(("UNLINK", *with_notes(partition, writing=True).keys[-2:])) for partition, _ in some])
