"""Reading: hot first; on a miss cold, and then hot is filled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from langgraph.store.base import GetOp, Item, Op, Result, SearchOp

from redis_saver._common.logs import ThrottledLog
from redis_saver._common.store_names import Partition
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import together
from redis_saver._store.mirrors import Mirror
from redis_saver._store.operations import ITEMS_PER_GET
from redis_saver._store.places import Place
from redis_saver._store.texts import Texts
from redis_saver._store.writing import DELETION, put
from redis_saver._tiered.requests import ColdCall, HotFailed, Tiered
from redis_saver._tiered_store import searching
from redis_saver._tiered_store.context import StoreTiers, ask_each, best_effort, unless_full
from redis_saver._tiered_store.copies import Copy, Read, aware, copy_of, fill, item_of, read
from redis_saver.errors import DecodeError, StoreBusy, StoreDamaged

_LOG = ThrottledLog("redis_saver.tiered_store")


class Get(NamedTuple):
    """A `GetOp`, and where it stands in its batch."""

    position: int
    op: GetOp


class Search(NamedTuple):
    """A `SearchOp` that hot may answer, and where it stands in its batch."""

    position: int
    op: SearchOp
    place: Place


class Reads:
    """The reads of a batch."""

    def __init__(self) -> None:
        self.gets: dict[Partition, dict[bytes, list[Get]]] = {}
        """By partition and field."""
        self.searches: list[Search] = []
        self.others: list[tuple[int, Op]] = []
        """What cold answers in any case."""


class _Left:
    """What hot has not answered."""

    def __init__(self, others: Sequence[tuple[int, Op]]) -> None:
        self.ops: list[tuple[int, Op]] = list(others)
        self.gets: list[tuple[Partition, bytes, bytes, int]] = []
        """Partition, what names the miss, field, and position, of gets that may be filled."""
        self.searches: list[tuple[Search, bytes]] = []
        """Searches for all of a partition, and what names the miss."""


def run(tiers: StoreTiers, reads: Reads, results: list[Result]) -> Tiered[None]:
    """Read, and put the results into their places.

    One round trip to hot, two where it answers a search; for all that it does not have together a call of cold, and a round trip to hot or two.
    """
    left = _Left(reads.others)
    if reads.gets or reads.searches:
        try:
            yield from _by_hot(tiers, reads, results, left)
        except HotFailed:
            tiers.counts.bypasses += 1
            left = _everything(reads)
    if not left.ops:
        return
    answers = yield ColdCall("batch", ([op for _, op in left.ops],))
    for (position, _), answer in zip(left.ops, answers, strict=True):
        results[position] = answer
        for one in answer if isinstance(answer, list) else (answer,):
            if isinstance(one, Item):
                aware(one)
    yield from _fill(tiers, left, results)
    for search, miss in left.searches:
        found: Any = results[search.position]
        if len(found) < min(search.op.limit, searching.MAX_COMPLETE + 1):
            yield from searching.fill_found(tiers, search.place.partition, miss, found)


def _everything(reads: Reads) -> _Left:
    """All reads, for cold."""
    left = _Left(reads.others)
    left.ops += [(get.position, get.op) for fields in reads.gets.values() for gets in fields.values() for get in gets]
    left.ops += [(search.position, search.op) for search in reads.searches]
    return left


def _by_hot(tiers: StoreTiers, reads: Reads, results: list[Result], left: _Left) -> Tiered[None]:
    asked: list[tuple[Partition, Callable[[], Operation[Any]]]] = []
    chunks = []
    for partition, gets in reads.gets.items():
        names = iter(gets)
        while some := list(islice(names, ITEMS_PER_GET)):
            chunks.append((partition, some))
            asked.append((partition, partial(read, tiers.hot, partition, some)))
    partitions = list(dict.fromkeys(search.place.partition for search in reads.searches))
    asked += [(partition, partial(searching.complete, tiers, partition)) for partition in partitions]
    answers = yield from ask_each(tiers, asked)
    for (partition, fields), answer in zip(chunks, answers[: len(chunks)], strict=True):
        yield from _take_items(tiers, partition, fields, reads.gets[partition], answer, results, left)
    mirrors = dict(zip(partitions, answers[len(chunks) :], strict=True))
    for search in reads.searches:
        yield from _take_page(tiers, search, mirrors[search.place.partition], results, left)


def _take_items(
    tiers: StoreTiers,
    partition: Partition,
    fields: Sequence[bytes],
    gets: Mapping[bytes, Sequence[Get]],
    answer: Read,
    results: list[Result],
    left: _Left,
) -> Tiered[None]:
    unreadable: set[bytes] = set()
    for field in fields:
        entry, miss = answer.entries.get(field), answer.miss
        for get in gets[field]:
            if entry is not None:
                try:
                    results[get.position] = item_of(tiers.hot, partition, entry)
                    tiers.counts.hits += 1
                    continue
                except DecodeError:
                    unreadable.add(field)
                    entry, miss = None, b""
            tiers.counts.misses += 1
            left.ops.append((get.position, get.op))
            if miss:
                left.gets.append((partition, miss, field, get.position))
                miss = b""  # one fill is enough
    yield from _forget(tiers, partition, unreadable)


def _take_page(
    tiers: StoreTiers, search: Search, mirror: Mirror | bytes, results: list[Result], left: _Left
) -> Tiered[None]:
    miss = b"" if isinstance(mirror, Mirror) else mirror
    if isinstance(mirror, Mirror):
        try:
            results[search.position] = searching.found(tiers, search.place, search.op, mirror)
        except DecodeError:
            yield from _forget(tiers, search.place.partition, mirror.entries)
        else:
            tiers.counts.hits += 1
            return
    tiers.counts.misses += 1
    left.ops.append((search.position, search.op))
    if miss and searching.is_whole(search.op):
        left.searches.append((search, miss))


def _forget(tiers: StoreTiers, partition: Partition, fields: Collection[bytes]) -> Operation[None]:
    """Remove copies that cannot be decoded, as of another serializer or key. A later read fills hot anew. One round trip, none for none."""
    tiers.counts.repairs += len(fields)
    if fields:
        _LOG.warning(
            "copies in hot cannot be decoded, as of another serializer or key; they are removed, and read from cold"
        )
    removal = partial(put, tiers.hot, partition, dict.fromkeys(fields, DELETION), Texts())
    yield from ask_each(tiers, [(partition, removal)])


def _fill(tiers: StoreTiers, left: _Left, results: list[Result]) -> Tiered[None]:
    """Store copies of what gets have missed, and cold has."""
    copies: dict[tuple[Partition, bytes], list[Copy]] = {}
    for partition, miss, field, position in left.gets:
        item = results[position]
        if isinstance(item, Item):
            copy = copy_of(tiers.hot, field, item, tiers.ttl)
            tiers.counts.refused += copy is None
            if copy is not None:
                copies.setdefault((partition, miss), []).append(copy)
    if copies:
        yield from best_effort(tiers, _filled(tiers, copies))


def _filled(tiers: StoreTiers, copies: Mapping[tuple[Partition, bytes], Sequence[Copy]]) -> Tiered[None]:
    asked = [fill(tiers.hot, partition, miss, some) for (partition, miss), some in copies.items()]
    wanted = sum(map(len, copies.values()))
    try:
        stored = sum((yield from unless_full(together(tiers.hot, asked))) or ())
    except (StoreDamaged, StoreBusy):  # the next reader repairs it, or fills
        stored = 0
    tiers.counts.fills += stored
    tiers.counts.refused += wanted - stored
