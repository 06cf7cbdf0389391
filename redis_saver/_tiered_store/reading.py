"""Reads: hot first; on a miss cold, and then hot is filled.

Hot answers a search if it has copies of all items of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from langgraph.store.base import InvalidNamespaceError, Item, Op, Result, SearchItem, SearchOp

from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._common.store_names import PARTITION_LABELS, Partition, with_notes
from redis_saver._engine.requests import Operation
from redis_saver._store import scripts
from redis_saver._store.calling import ask, together
from redis_saver._store.context import Place, check_labels
from redis_saver._store.index_config import Texts
from redis_saver._store.reading import EMPTY, FIELDS_PER_GET, Mirror
from redis_saver._store.reading import mirror as read_mirror
from redis_saver._store.searching import compile_filter
from redis_saver._store.writing import DELETION, put
from redis_saver._tiered.requests import ColdCall, HotFailed, Tiered
from redis_saver._tiered_store.context import StoreTiers, ask_each, best_effort, unless_full
from redis_saver._tiered_store.copies import (
    Copy,
    Read,
    aware,
    copy_of,
    fill,
    item_of,
    read,
    search_item_of,
    updated_of,
)
from redis_saver.errors import DecodeError, LimitExceeded, StoreBusy, StoreDamaged, reading_store

MAX_COMPLETE = 2000
"""Maximum number of items of a partition that hot answers searches for."""
_LOG = ThrottledLog("redis_saver.tiered_store")


class Reads:
    """The reads of a batch."""

    def __init__(self, ops: Sequence[Op]) -> None:
        """Start empty.

        Args:
            ops: All operations of the batch. Reads are kept by their positions in it.
        """
        self.ops = ops
        self.gets: dict[Partition, dict[bytes, list[int]]] = {}
        self.searches: dict[int, Place] = {}
        """Searches that hot may answer."""
        self.others: list[int] = []
        """Reads that cold answers in any case."""


class _GetMiss(NamedTuple):
    partition: Partition
    name: bytes
    field: bytes
    position: int


class _SearchMiss(NamedTuple):
    partition: Partition
    name: bytes
    position: int


class _Missed:
    """Reads that hot has not answered."""

    def __init__(self, positions: Sequence[int]) -> None:
        self.positions = list(positions)
        self.gets: list[_GetMiss] = []
        """Gets whose items may be filled."""
        self.searches: list[_SearchMiss] = []
        """Searches for whole partitions, which may be filled."""


def may_be_hot(op: SearchOp) -> bool:
    """Return True if every store answers a search alike.

    It is of a partition or a part of it, without a query, and its page and filter mean the same everywhere.
    """
    has_plain_filter = all(
        isinstance(key, str) and isinstance(wanted, str) and "." not in key for key, wanted in (op.filter or {}).items()
    )
    in_partition = len(op.namespace_prefix) >= PARTITION_LABELS
    return in_partition and not op.query and has_plain_filter and min(op.limit, op.offset) >= 0


def run(tiers: StoreTiers, reads: Reads, results: list[Result]) -> Tiered[None]:
    """Read, and put the results into their places.

    One round trip to hot, two if it answers a search. What it lacks takes one call of cold, and a round trip or two.
    """
    missed = _Missed(reads.others)
    if reads.gets or reads.searches:
        try:
            yield from _by_hot(tiers, reads, results, missed)
        except HotFailed:
            tiers.counts.bypasses += 1
            gets = [position for fields in reads.gets.values() for some in fields.values() for position in some]
            missed = _Missed([*reads.others, *gets, *reads.searches])
    if not missed.positions:
        return
    answers = yield ColdCall("batch", ([reads.ops[position] for position in missed.positions],))
    for position, answer in zip(missed.positions, answers, strict=True):
        results[position] = answer
        for item in answer if isinstance(answer, list) else (answer,):
            if isinstance(item, Item):
                aware(item)
    yield from _fill_gets(tiers, missed.gets, results)
    for miss in missed.searches:
        op, items = reads.ops[miss.position], results[miss.position]
        if isinstance(op, SearchOp) and isinstance(items, list) and len(items) < min(op.limit, MAX_COMPLETE + 1):
            yield from best_effort(tiers, _fill_search(tiers, miss, items))


def _by_hot(tiers: StoreTiers, reads: Reads, results: list[Result], missed: _Missed) -> Tiered[None]:
    asked: list[tuple[Partition, Callable[[], Operation[Any]]]] = []
    gets = []
    for partition, fields in reads.gets.items():
        names = iter(fields)
        while some := list(islice(names, FIELDS_PER_GET)):
            gets.append((partition, some))
            asked.append((partition, partial(read, tiers.hot, partition, some)))
    partitions = list(dict.fromkeys(place.partition for place in reads.searches.values()))
    asked += [(partition, partial(complete, tiers, partition)) for partition in partitions]
    answers = yield from ask_each(tiers, asked)
    for (partition, some), answer in zip(gets, answers[: len(gets)], strict=True):
        positions = {field: reads.gets[partition][field] for field in some}
        yield from _take_items(tiers, partition, positions, answer, results, missed)
    mirrors = dict(zip(partitions, answers[len(gets) :], strict=True))
    for position, place in reads.searches.items():
        op: Any = reads.ops[position]
        yield from _take_page(tiers, position, op, place, mirrors[place.partition], results, missed)


def _take_items(
    tiers: StoreTiers,
    partition: Partition,
    positions: Mapping[bytes, Sequence[int]],
    answer: Read,
    results: list[Result],
    missed: _Missed,
) -> Tiered[None]:
    unreadable: set[bytes] = set()
    for field, of_field in positions.items():
        entry, miss = answer.entries.get(field), answer.miss
        for position in of_field:
            if entry is not None:
                try:
                    results[position] = item_of(tiers.hot, partition, entry)
                    tiers.counts.hits += 1
                    continue
                except DecodeError:
                    unreadable.add(field)
                    entry, miss = None, b""
            tiers.counts.misses += 1
            missed.positions.append(position)
            if miss:
                missed.gets.append(_GetMiss(partition, miss, field, position))
                miss = b""  # one fill is enough
    yield from _forget(tiers, partition, unreadable)


def _take_page(
    tiers: StoreTiers,
    position: int,
    op: SearchOp,
    place: Place,
    answer: Mirror | bytes,
    results: list[Result],
    missed: _Missed,
) -> Tiered[None]:
    if isinstance(answer, Mirror):
        try:
            results[position] = _search(tiers, place, op, answer)
        except DecodeError:
            yield from _forget(tiers, place.partition, answer.entries)
        else:
            tiers.counts.hits += 1
            return
        answer = b""
    tiers.counts.misses += 1
    missed.positions.append(position)
    is_whole = len(op.namespace_prefix) == PARTITION_LABELS and not op.filter and not op.query and not op.offset
    if answer and is_whole:
        missed.searches.append(_SearchMiss(place.partition, answer, position))


def _search(tiers: StoreTiers, place: Place, op: SearchOp, mirror: Mirror) -> list[SearchItem]:
    """Search a complete partition: newest first, as cold says, then by namespace and key."""
    matches, partition = compile_filter(op.filter), place.partition
    entries = [
        entry
        for entry in mirror.entries.values()
        if entry.field.startswith(place.prefix)
        and (matches is None or matches(entry.value(tiers.hot.values, partition)))
    ]
    entries.sort(key=lambda entry: (-updated_of(entry, partition), entry.field))
    return [search_item_of(tiers.hot, partition, entry) for entry in entries[op.offset : op.offset + op.limit]]


def _forget(tiers: StoreTiers, partition: Partition, fields: Collection[bytes]) -> Operation[None]:
    """Remove copies that cannot be decoded, as of another serializer or key. A later read fills hot again."""
    tiers.counts.repairs += len(fields)
    if fields:
        _LOG.warning(
            "copies in hot cannot be decoded, as of another serializer or key; they are removed, and read from cold"
        )
    removal = partial(put, tiers.hot, partition, dict.fromkeys(fields, DELETION), Texts())
    yield from ask_each(tiers, [(partition, removal)])


def _fill_gets(tiers: StoreTiers, misses: Sequence[_GetMiss], results: list[Result]) -> Tiered[None]:
    """Store copies of the items that gets have missed, and cold has."""
    copies: dict[tuple[Partition, bytes], list[Copy]] = {}
    for partition, miss, field, position in misses:
        item = results[position]
        if isinstance(item, Item):
            copy = copy_of(tiers.hot, field, item, tiers.ttl)
            tiers.counts.refused += copy is None
            if copy is not None:
                copies.setdefault((partition, miss), []).append(copy)
    if copies:
        yield from best_effort(tiers, _filled(tiers, copies))


def _filled(tiers: StoreTiers, copies: Mapping[tuple[Partition, bytes], Sequence[Copy]]) -> Tiered[None]:
    fills = [fill(tiers.hot, partition, miss, some) for (partition, miss), some in copies.items()]
    stored = 0
    with suppress(StoreDamaged, StoreBusy):  # the next reader repairs it, or fills
        stored = sum((yield from unless_full(together(tiers.hot, fills))) or ())
    tiers.counts.fills += stored
    tiers.counts.refused += sum(map(len, copies.values())) - stored


def _fill_search(tiers: StoreTiers, miss: _SearchMiss, items: Sequence[Any]) -> Tiered[None]:
    with suppress(StoreDamaged, StoreBusy):  # the next reader repairs it, or fills
        yield from _fill_all(tiers, miss.partition, miss.name, items)


# -- complete partitions


def complete(tiers: StoreTiers, partition: Partition) -> Operation[Mirror | bytes]:
    """Return all items of a partition if hot has copies of all; else the name of the miss.

    Two round trips, one if it is not complete. What this process knows is not sent again.
    """
    reply = yield from ask(tiers.hot, with_notes(partition, writing=False), scripts.GET_COPIES, ())
    token, *state = reply.values
    if not state:
        return token  # type: ignore[no-any-return]
    with reading_store(partition.keys[0]):
        count, checksum = map(int, state)
    mirror = (yield from read_mirror(tiers.hot, partition)) if count else EMPTY
    is_same = (mirror.token, len(mirror.entries), mirror.checksum) == (token, count, checksum)
    return mirror if is_same else b""  # it changed in between: cold answers


def _fill_all(tiers: StoreTiers, partition: Partition, miss: bytes, items: Sequence[SearchItem]) -> Tiered[bool]:
    """Store copies of all items of a partition, and mark it complete unless somebody wrote meanwhile.

    Return True if it is complete. Two round trips.
    """
    copies = [copy for item in items if (copy := _copy_in(tiers, partition, item)) is not None]
    stored = yield from unless_full(fill(tiers.hot, partition, miss, copies))
    tiers.counts.fills += stored or 0
    tiers.counts.refused += len(items) - len(copies) if stored is not None else len(items)
    if stored is None or len(copies) < len(items):
        return False
    arguments = (miss, *(copy.field for copy in copies))
    with_keys = with_notes(partition, writing=True)
    reply = yield from unless_full(ask(tiers.hot, with_keys, scripts.MARK_COMPLETE, arguments))
    return reply is not None and reply.values == [b"1"]


def _copy_in(tiers: StoreTiers, partition: Partition, item: SearchItem) -> Copy | None:
    """Return a copy of an item that cold found in a partition; None if hot cannot have it.

    Some stores find items of other partitions, too: for them `user-1` is a prefix of `user-10`.
    """
    places = tiers.hot.places
    try:
        place, key = places.of(tuple(item.namespace)), places.key(item.key)
    except (InvalidNamespaceError, LimitExceeded):
        return None
    return copy_of(tiers.hot, place.field(key), item, tiers.ttl) if place.partition == partition else None


def warm(tiers: StoreTiers, namespace_prefix: Any) -> Tiered[bool]:
    """Bring copies of all items of a partition to hot; return True if they are there."""
    labels = check_labels(namespace_prefix, "namespace_prefix")
    if len(labels) != PARTITION_LABELS:
        raise ValueError(
            f"namespace_prefix={shown(labels)}: hot can have all of a prefix of two labels, "
            "such as ('memories', 'user-1')"
        )
    partition = tiers.hot.places.of(labels).partition
    for _ in range(2):  # if the partition loses a key meanwhile, hot drops the rest of it, and it starts again
        (known,) = yield from ask_each(tiers, [(partition, lambda: complete(tiers, partition))])
        if isinstance(known, Mirror):
            return True
        op = SearchOp(partition.labels, None, MAX_COMPLETE + 1, 0, None, refresh_ttl=False)
        (items,) = yield ColdCall("batch", ([op],))
        if not known or len(items) > MAX_COMPLETE:
            return False
        with suppress(StoreDamaged):
            return (yield from _fill_all(tiers, partition, known, items))
    return False
