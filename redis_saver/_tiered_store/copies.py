"""Copies of cold's items in hot: reads from hot, or on a miss from cold, which then fills hot.

Hot answers a search if it has copies of all items of the partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from langgraph.store.base import InvalidNamespaceError, Item, Op, Result, SearchItem, SearchOp

from redis_saver import errors
from redis_saver._common import filters
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog, log_text
from redis_saver._common.store_names import PARTITION_LABELS, Partition, namespace_and_key, with_notes
from redis_saver._engine.requests import Argument, Batch, Command, Operation, T
from redis_saver._engine.stats import CopyStats, Live
from redis_saver._store import namespaces, reading, scripts
from redis_saver._store.context import Place, StoreContext, check_labels
from redis_saver._store.index_config import Texts
from redis_saver._store.items import Entry, encode_value
from redis_saver._store.scripts import ask, together, windows
from redis_saver._store.writing import DELETION, clean, put, split
from redis_saver._tiered.requests import ColdCall, HotFailed, Tiered, best_effort, is_out_of_memory

_LOG = ThrottledLog("redis_saver.tiered_store")
MAX_COMPLETE = 2000
"""Maximum number of items in a complete partition."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_UPDATED_DIGITS = 14
"""Number of hex digits of cold's `updated_at` in a copy. An item of a `RedisStore` has 16 digits there, for its put."""


class LiveCopies(Live, CopyStats):
    """The live counts."""

    kind = "store_tier"


class StoreTiers:
    """The state of a store over two tiers."""

    def __init__(self, hot: StoreContext, ttl: int) -> None:
        self.hot_context: StoreContext = hot
        """The hot store."""
        self.ttl: int = ttl
        """Lifetime of a copy in milliseconds. 0: until it is evicted or written."""
        self.counts: LiveCopies = LiveCopies()


def ask_each(
    tiers: StoreTiers, operations: Sequence[tuple[Partition, Callable[[], Operation[T]]]]
) -> Operation[list[T]]:
    """Run operations over partitions of hot together. Drops damaged partitions, then the directory, and retries."""
    try:
        return (yield from together(tiers.hot_context, [make() for _, make in operations]))
    except errors.StoreDamaged:
        pass
    results = []
    for partition, make in operations:
        results.append((yield from _repaired(tiers, partition, make)))
    return results


def _repaired(tiers: StoreTiers, partition: Partition, make: Callable[[], Operation[T]]) -> Operation[T]:
    try:
        return (yield from make())
    except errors.StoreDamaged as damage:
        _note_repair(tiers, damage)
    try:
        yield from clean(tiers.hot_context, partition, 0, "all")
        return (yield from make())
    except errors.StoreDamaged as damage:
        _note_repair(tiers, damage)
    yield Command(("UNLINK", *tiers.hot_context.keyspace.directory))  # no read of hot uses it
    return (yield from make())


def _note_repair(tiers: StoreTiers, damage: errors.StoreDamaged) -> None:
    tiers.counts.repairs += 1
    _LOG.warning("a part of hot was damaged; hot drops it and is filled from cold: %s", log_text(damage))


def if_hot_can(operation: Operation[T]) -> Tiered[T | None]:
    """Store copies in hot. Returns None if its server is out of memory, or lacks replicas (`min_replicas`)."""
    try:
        return (yield from operation)
    except Exception as error:  # each client has its own class for a full server
        if is_out_of_memory(error) or isinstance(error, errors.ReplicationTimeout):
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
    except (errors.EncodeError, errors.LimitExceeded):
        return None
    updated = b"%0*x" % (_UPDATED_DIGITS, _micros(item.updated_at))
    return Copy(field, _micros(item.created_at), ttl, updated, value)


def _micros(moment: datetime) -> int:
    return max(0, (moment - _EPOCH) // _MICROSECOND)


def updated_of(entry: Entry, partition: Partition) -> int:
    """Return the `updated_at` that a copy has from cold, in microseconds.

    Raises:
        errors.KeyConflict: The entry is not a copy.
    """
    if len(entry.made_by) != _UPDATED_DIGITS:
        namespace, key = namespace_and_key(partition, entry.field)
        raise errors.KeyConflict(
            f"item {shown(key)} of namespace {shown(namespace)} in hot is not a copy of an item of cold: it was put "
            "into the RedisStore directly. Nothing was changed. Give the hot RedisStore its own prefix=, and put the "
            "items that only this RedisStore has into cold"
        )
    return int(entry.made_by, 16)


def item_of(context: StoreContext, partition: Partition, entry: Entry, kind: type[Item] = Item) -> Any:
    """Return the item of a copy as cold returned it: an `Item` or a `SearchItem`.

    Raises:
        errors.KeyConflict: The entry is not a copy.
        errors.DecodeError: The copy cannot be decoded.
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
    with errors.reading_store(partition.keys[0]):
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
        with errors.reading_store(partition.keys[0]):
            stored += int(count)
    return stored


def batches(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Split copies by the size of a script's arguments."""
    return split(copies, lambda copy: len(copy.field) + len(copy.value))


# -- reads: from hot, or on a miss from cold, which then fills hot


class Reads:
    """The reads of a batch and their results."""

    def __init__(self, ops: Sequence[Op]) -> None:
        """Start empty.

        Args:
            ops: All operations of the batch. Reads are identified by their position.
        """
        self.ops = ops
        self.results: list[Result] = [None] * len(ops)
        self.gets: dict[Partition, dict[bytes, list[int]]] = {}
        self.searches: dict[int, Place] = {}
        """Searches that hot may be able to answer."""
        self.others: list[int] = []
        """Reads that cold answers: always, or after a miss."""
        self.missed: list[tuple[Partition, bytes, bytes, int]] = []
        """Gets that may fill hot: partition, name of the miss, field, position."""
        self.whole: list[tuple[Partition, bytes, int]] = []
        """Searches for whole partitions that may fill hot: partition, name of the miss, position."""


def may_be_hot(op: SearchOp) -> bool:
    """True if all stores return the same result for a search.

    The search is within a partition and has no query, and its page and filter mean the same everywhere.
    """
    has_plain_filter = all(
        isinstance(key, str) and isinstance(wanted, str) and "." not in key for key, wanted in (op.filter or {}).items()
    )
    in_partition = len(op.namespace_prefix) >= PARTITION_LABELS
    return in_partition and not op.query and has_plain_filter and min(op.limit, op.offset) >= 0


def read_all(tiers: StoreTiers, reads: Reads) -> Tiered[None]:
    """Read, and set the results.

    One round trip to hot, or two if hot answers a search. A miss takes one call of cold and up to two more round trips.
    """
    others = list(reads.others)
    if reads.gets or reads.searches:
        try:
            yield from _by_hot(tiers, reads)
        except HotFailed:
            tiers.counts.bypasses += 1
            gets = [position for fields in reads.gets.values() for some in fields.values() for position in some]
            reads.others, reads.missed, reads.whole = [*others, *gets, *reads.searches], [], []
    if not reads.others:
        return
    answers = yield ColdCall("batch", ([reads.ops[position] for position in reads.others],))
    for position, answer in zip(reads.others, answers, strict=True):
        reads.results[position] = answer
        for item in answer if isinstance(answer, list) else (answer,):
            if isinstance(item, Item):
                aware(item)
    yield from best_effort(tiers, _fill_gets(tiers, reads))
    for partition, miss, position in reads.whole:
        op, items = reads.ops[position], reads.results[position]
        if isinstance(op, SearchOp) and isinstance(items, list) and len(items) < min(op.limit, MAX_COMPLETE + 1):
            with suppress(errors.StoreDamaged, errors.StoreBusy):  # the next reader repairs it, or fills
                yield from best_effort(tiers, _fill_all(tiers, partition, miss, items))


def _by_hot(tiers: StoreTiers, reads: Reads) -> Tiered[None]:
    gets = [
        (partition, some)
        for partition, fields in reads.gets.items()
        for some in windows(list(fields), reading.FIELDS_PER_GET)
    ]
    partitions = list(dict.fromkeys(place.partition for place in reads.searches.values()))
    operations: list[tuple[Partition, Callable[[], Operation[Any]]]]
    operations = [(partition, partial(read, tiers.hot_context, partition, fields)) for partition, fields in gets]
    operations += [(partition, partial(complete, tiers, partition)) for partition in partitions]
    answers = yield from ask_each(tiers, operations)
    for (partition, fields), answer in zip(gets, answers[: len(gets)], strict=True):
        yield from _take_items(tiers, reads, partition, fields, answer)
    mirrors = dict(zip(partitions, answers[len(gets) :], strict=True))
    for position, place in reads.searches.items():
        yield from _take_page(tiers, reads, position, place, mirrors[place.partition])


def _take_items(
    tiers: StoreTiers, reads: Reads, partition: Partition, fields: Sequence[bytes], answer: Read
) -> Tiered[None]:
    unreadable: set[bytes] = set()
    for field in fields:
        entry, miss = answer.entries.get(field), answer.miss
        for position in reads.gets[partition][field]:
            if entry is not None:
                try:
                    reads.results[position] = item_of(tiers.hot_context, partition, entry)
                    tiers.counts.hits += 1
                    continue
                except errors.DecodeError:
                    unreadable.add(field)
                    entry, miss = None, b""
            tiers.counts.misses += 1
            reads.others.append(position)
            if miss:
                reads.missed.append((partition, miss, field, position))
                miss = b""  # one fill is enough
    yield from _forget(tiers, partition, unreadable)


def _take_page(
    tiers: StoreTiers, reads: Reads, position: int, place: Place, answer: reading.Mirror | bytes
) -> Tiered[None]:
    op: Any = reads.ops[position]
    if isinstance(answer, reading.Mirror):
        try:
            reads.results[position] = _search(tiers, place, op, answer)
        except errors.DecodeError:
            yield from _forget(tiers, place.partition, answer.entries)
            answer = b""
        else:
            tiers.counts.hits += 1
            return
    tiers.counts.misses += 1
    reads.others.append(position)
    is_whole = len(op.namespace_prefix) == PARTITION_LABELS and not op.filter and not op.query and not op.offset
    if answer and is_whole:
        reads.whole.append((place.partition, answer, position))


def _search(tiers: StoreTiers, place: Place, op: SearchOp, mirror: reading.Mirror) -> list[SearchItem]:
    """Search a complete partition, newest first by cold's times, then by namespace and key."""
    matches, partition = filters.of_items(op.filter), place.partition
    entries = [
        entry
        for entry in mirror.entries.values()
        if entry.field.startswith(place.prefix)
        and (matches is None or matches(entry.value(tiers.hot_context.values, partition)))
    ]
    entries.sort(key=lambda entry: (-updated_of(entry, partition), entry.field))
    page = entries[op.offset : op.offset + op.limit]
    return [item_of(tiers.hot_context, partition, entry, SearchItem) for entry in page]


def _forget(tiers: StoreTiers, partition: Partition, fields: Collection[bytes]) -> Operation[None]:
    """Remove copies that cannot be decoded (another serializer or key). A later read fills hot again."""
    tiers.counts.repairs += len(fields)
    if fields:
        _LOG.warning(
            "copies in hot cannot be decoded (another serializer or key?); they are removed and read from cold"
        )
    removal = partial(put, tiers.hot_context, partition, dict.fromkeys(fields, DELETION), Texts())
    yield from ask_each(tiers, [(partition, removal)])


def _fill_gets(tiers: StoreTiers, reads: Reads) -> Tiered[None]:
    """Store copies of items that gets missed in hot and found in cold."""
    new_copies = defaultdict[tuple[Partition, bytes], list[Copy]](list)
    for partition, miss, field, position in reads.missed:
        if isinstance(item := reads.results[position], Item):
            copy = copy_of(tiers.hot_context, field, item, tiers.ttl)
            tiers.counts.refused += copy is None
            if copy is not None:
                new_copies[partition, miss].append(copy)
    stored, fills = (
        0,
        [fill(tiers.hot_context, partition, miss, some) for (partition, miss), some in new_copies.items()],
    )
    with suppress(errors.StoreDamaged, errors.StoreBusy):  # the next reader repairs it, or fills
        stored = sum((yield from if_hot_can(together(tiers.hot_context, fills))) or ())
    tiers.counts.fills += stored
    tiers.counts.refused += sum(map(len, new_copies.values())) - stored


# -- complete partitions


def complete(tiers: StoreTiers, partition: Partition) -> Operation[reading.Mirror | bytes]:
    """Return all items of a complete partition, or else the name of the miss.

    Two round trips, or one if the partition is not complete. Items that this process knows are not sent again.
    """
    reply = yield from ask(tiers.hot_context, with_notes(partition, writing=False), scripts.GET_COPIES, ())
    token, *state = reply.values
    if not state:
        return token  # type: ignore[no-any-return]
    with errors.reading_store(partition.keys[0]):
        count, checksum = map(int, state)
    mirror = (yield from reading.mirror(tiers.hot_context, partition)) if count else reading.EMPTY
    is_same = (mirror.token, len(mirror.entries), mirror.checksum) == (token, count, checksum)
    return mirror if is_same else b""  # the partition changed in between: cold answers


def _fill_all(tiers: StoreTiers, partition: Partition, miss: bytes, items: Sequence[Any]) -> Tiered[bool]:
    """Store copies of all items of a partition, and mark it complete unless another writer wrote to it meanwhile.

    Returns True if the partition is complete. Two round trips.
    """
    new_copies = [copy for item in items if (copy := _copy_in(tiers, partition, item)) is not None]
    stored = yield from if_hot_can(fill(tiers.hot_context, partition, miss, new_copies))
    tiers.counts.fills += stored or 0
    tiers.counts.refused += len(items) - len(new_copies) if stored is not None else len(items)
    if stored is None or len(new_copies) < len(items):
        return False
    arguments = (miss, *(copy.field for copy in new_copies))
    with_keys = with_notes(partition, writing=True)
    reply = yield from if_hot_can(ask(tiers.hot_context, with_keys, scripts.MARK_COMPLETE, arguments))
    return reply is not None and reply.values == [b"1"]


def _copy_in(tiers: StoreTiers, partition: Partition, item: SearchItem) -> Copy | None:
    """Return a copy of an item that cold found in a partition. None if hot cannot store it.

    Some stores also find items of other partitions, because `user-10` begins with `user-1`.
    """
    places = tiers.hot_context.places
    try:
        place, key = places.of(tuple(item.namespace)), places.key(item.key)
    except (InvalidNamespaceError, errors.LimitExceeded):
        return None
    return copy_of(tiers.hot_context, place.field(key), item, tiers.ttl) if place.partition == partition else None


def warm(tiers: StoreTiers, namespace_prefix: Any) -> Tiered[bool]:
    """Copy all items of a partition to hot. Returns True if hot has them."""
    labels = check_labels(namespace_prefix, "namespace_prefix")
    if len(labels) != PARTITION_LABELS:
        raise ValueError(f"namespace_prefix={shown(labels)}: it has to have two labels, such as ('memories', 'user-1')")
    partition = tiers.hot_context.places.of(labels).partition
    for _ in range(2):  # again if the partition loses a key meanwhile and hot drops it
        (known,) = yield from ask_each(tiers, [(partition, lambda: complete(tiers, partition))])
        if isinstance(known, reading.Mirror):
            return True
        op = SearchOp(partition.labels, None, MAX_COMPLETE + 1, 0, None, refresh_ttl=False)
        (items,) = yield ColdCall("batch", ([op],))
        if not known or len(items) > MAX_COMPLETE:
            return False
        with suppress(errors.StoreDamaged):
            return (yield from _fill_all(tiers, partition, known, items))
    return False


# -- for `redis-saver forget`, which deletes items in cold and in hot


def holds_copies(context: StoreContext, labels: tuple[str, ...]) -> Operation[bool]:
    """True if the partitions that begin with these labels hold copies, or held some in the last day.

    A store never mixes copies and other items, so reading one item per partition is enough. Up to three round trips
    per 256 partitions.
    """
    for some in windows((yield from namespaces.partitions(context, labels))):
        keys = [with_notes(partition, writing=False).keys for partition, _ in some]
        if any((yield Batch([Command(("EXISTS", notes)) for *_, notes in keys]))):
            return True
        oldest = yield Batch([Command(("ZRANGE", order, 0, 0)) for _, order, *_ in keys])
        first = [(items, fields[0]) for (items, *_), fields in zip(keys, oldest, strict=True) if fields]
        records = (yield Batch([Command(("HMGET", *names)) for names in first])) if first else []
        for (items, name), (record,) in zip(first, records, strict=True):
            with errors.reading_store(items):
                if record is not None and len(Entry(name, record).made_by) == _UPDATED_DIGITS:
                    return True
    return False


def forget_misses(context: StoreContext, labels: tuple[str, ...]) -> Operation[None]:
    """Remove the notes of the partitions that begin with these labels. So hot refuses fills for earlier misses.

    Call it after cold has deleted the items, and delete the copies afterwards. Writers treat it as an eviction of the
    notes. One round trip per 256 partitions.
    """
    for some in windows((yield from namespaces.partitions(context, labels))):
        yield Batch([Command(("UNLINK", *with_notes(partition, writing=True).keys[-2:])) for partition, _ in some])
