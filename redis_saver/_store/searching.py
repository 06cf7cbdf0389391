"""`search`: by order, by a filter, by meaning; in one partition or in many."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from langgraph.store.base import SearchOp

from redis_saver._common import config as configs
from redis_saver._common.display import shown
from redis_saver._common.store_names import PARTITION_LABELS, Partition
from redis_saver._engine.requests import Operation
from redis_saver._store import directory, mirrors, pages, server_search
from redis_saver._store.calling import refresh, together
from redis_saver._store.context import StoreContext
from redis_saver._store.filters import Matches, compile_filter
from redis_saver._store.items import Entry, VersionedSearchItem
from redis_saver._store.mirrors import Mirror
from redis_saver._store.places import Place, check_labels, namespace_and_key
from redis_saver._store.texts import Texts
from redis_saver._store.writing import clean
from redis_saver.errors import reading_store

_MANY = 10**15
"""More than any store has items; Redis takes no larger numbers than some thousand times that."""


class Found(NamedTuple):
    """An item that was found, and its score if it was compared with a query."""

    partition: Partition
    entry: Entry
    score: float | None = None

    @property
    def order(self) -> tuple[bool, float, int, tuple[str, ...], str]:
        """By score, then those without one, newest first; then by namespace and key: scores may be the same, and versions in two partitions."""
        namespace, key = namespace_and_key(self.partition, self.entry.field)
        if self.score is None:
            return True, 0.0, -self.entry.version, namespace, key
        return False, -self.score, 0, namespace, key


class Search(NamedTuple):
    """What is searched for."""

    matches: Matches | None
    """The filter."""
    query: str | None
    """What items are compared with; None if they are not compared."""
    texts: Texts
    """Where the query's vector will be."""
    most: int
    """How many are found, at the most: with those that are passed over."""

    @property
    def looks_at_all(self) -> bool:
        """Whether it needs a mirror."""
        return self.matches is not None or self.query is not None


def check(op: SearchOp) -> tuple[tuple[str, ...], Matches | None]:
    """Check the arguments of a search. Returns the labels of its namespace, and its filter.

    Raises:
        TypeError, ValueError: An argument makes no sense.
    """
    labels, matches = check_labels(op.namespace_prefix, "namespace_prefix"), compile_filter(op.filter)
    for name, given in (("limit", op.limit), ("offset", op.offset)):
        configs.number(name, given, 0, whole=True)
    return labels, matches


def search(context: StoreContext, op: SearchOp, texts: Texts) -> Operation[list[VersionedSearchItem]]:
    """Items of a namespace and of those below it, nearest to the query first; without one, newest first.

    The call itself checks the arguments, and notes the query, which has to be embedded before the operation runs.

    Raises:
        TypeError, ValueError: An argument makes no sense.
    """
    labels, matches = check(op)
    op = op._replace(limit=min(op.limit, _MANY), offset=min(op.offset, _MANY))
    query = (op.query or None) if context.embedder else None
    if query is not None:
        if not isinstance(query, str):
            raise TypeError(f"query={shown(query)}: a query is a text, or None")
        texts.queries.setdefault(query)
    wanted = Search(matches, query, texts, op.offset + op.limit)
    if query is not None and context.has_documents:
        return _by_server(context, labels, op, wanted)
    if len(labels) >= PARTITION_LABELS:
        return _in_partition(context, context.places.of(labels), op, wanted)
    return _in_all(context, labels, op, wanted)


def _in_partition(
    context: StoreContext, place: Place, op: SearchOp, wanted: Search
) -> Operation[list[VersionedSearchItem]]:
    if not wanted.looks_at_all:
        page = yield from pages.read(context, place, op.offset, op.limit, op.refresh_ttl)
        with reading_store(place.partition.keys[0]):
            return [entry.search_item(context.values, place.partition) for entry in page.entries]
    found, _ = yield from _best(context, place, wanted)
    return (yield from _answer(context, op, found, place.partition.keys[0]))


def _in_all(
    context: StoreContext, labels: tuple[str, ...], op: SearchOp, wanted: Search
) -> Operation[list[VersionedSearchItem]]:
    best = yield from _best_of_all(context, labels, wanted)
    return (yield from _answer(context, op, best, context.keyspace.directory[0]))


def _best_of_all(context: StoreContext, labels: tuple[str, ...], wanted: Search) -> Operation[list[Found]]:
    """Search partition after partition, some at a time. The best of each are kept until all were asked."""
    best: list[Found] = []
    for some in directory.windows((yield from directory.partitions(context, labels))):
        asked = [_best(context, Place(partition, b""), wanted) for partition, _ in some]
        answers = yield from together(context, asked)
        empty = []
        for (partition, token), (found, found_token) in zip(some, answers, strict=True):
            best += found
            if found_token == b"0":
                empty.append(clean(context, partition, token))
        yield from together(context, empty)
        with reading_store(context.keyspace.directory[0]):
            best = heapq.nsmallest(wanted.most, best, key=lambda one: one.order)
    return best


def _by_server(
    context: StoreContext, labels: tuple[str, ...], op: SearchOp, wanted: Search
) -> Operation[list[VersionedSearchItem]]:
    """Those that the server's index leads to; then, newest first, those without vectors."""
    assert wanted.query is not None  # noqa: S101
    vector = wanted.texts.vector(wanted.query)
    scored = yield from server_search.nearest(context, labels, vector, wanted.most, wanted.matches)
    found, key = [Found(*one) for one in scored], context.keyspace.directory[0]
    if len(found) < wanted.most:
        newest = wanted._replace(query=None)
        if len(labels) >= PARTITION_LABELS:
            others, _ = yield from _best(context, context.places.of(labels), newest)
        else:
            others = yield from _best_of_all(context, labels, newest)
        known = {(one.partition, one.entry.field) for one in found}
        unscored = (one for one in others if (one.partition, one.entry.field) not in known)
        found += list(islice(unscored, wanted.most - len(found)))
    return (yield from _answer(context, op, found, key))


def _answer(
    context: StoreContext, op: SearchOp, best: Sequence[Found], key: bytes
) -> Operation[list[VersionedSearchItem]]:
    """The items that were found, behind those that are passed over; they were read by this key."""
    found = best[op.offset :]
    if op.refresh_ttl:
        yield from _refresh(context, found)
    with reading_store(key):
        return [one.entry.search_item(context.values, one.partition, one.score) for one in found]


def _best(context: StoreContext, place: Place, wanted: Search) -> Operation[tuple[list[Found], bytes]]:
    """The best items of a namespace and of those below it, and the partition's token, `0` if there is none."""
    partition = place.partition
    if not wanted.looks_at_all:
        page = yield from pages.read(context, place, 0, wanted.most, refresh=False)
        return [Found(partition, entry) for entry in page.entries], page.token
    mirror = yield from mirrors.synced(context, partition, with_vectors=wanted.query is not None)
    with reading_store(partition.keys[0]):
        if wanted.query is None:
            entries = filter(_test(context, partition, wanted), _below(place, reversed(mirror.entries.values())))
            found = [Found(partition, entry) for entry in islice(entries, wanted.most)]
        else:
            found = _nearest(context, place, mirror, wanted)
    return found, mirror.token or b"0"


def _test(context: StoreContext, partition: Partition, wanted: Search) -> Callable[[Entry], bool] | None:
    """Whether the filter matches an item; None if there is none, which `filter` takes, too."""
    if (matches := wanted.matches) is None:
        return None
    values = context.values
    return lambda entry: matches(entry.known or entry.value(values, partition))


def _below(place: Place, entries: Iterator[Entry]) -> Iterator[Entry]:
    """Those of some items that are in the namespace, or below it."""
    if not (prefix := place.prefix):
        return entries
    return (entry for entry in entries if entry.field.startswith(prefix))


def _nearest(context: StoreContext, place: Place, mirror: Mirror, wanted: Search) -> list[Found]:
    """The items that are nearest to the query; then, newest first, those without vectors."""
    partition, vectors, query, entries = place.partition, mirror.vectors, wanted.query, mirror.entries
    if vectors is None or context.embedder is None or query is None:  # there is no such partition
        return []
    test, among = _test(context, partition, wanted), None
    if test is not None or place.prefix:
        some = _below(place, iter(entries.values()))
        among = [entry.field for entry in (filter(test, some) if test else some)]
    scored = vectors.search(
        wanted.texts.vector(query),
        wanted.most,
        context.embedder.distance,
        partial(namespace_and_key, partition),
        among,
    )
    found = [Found(partition, entries[one.field], one.score) for one in scored]
    if len(found) < wanted.most and len(vectors) < len(entries):
        others = (entry for entry in reversed(entries.values()) if entry.field not in vectors)
        unscored = filter(test, _below(place, others))
        found += [Found(partition, entry) for entry in islice(unscored, wanted.most - len(found))]
    return found


def _refresh(context: StoreContext, found: Sequence[Found]) -> Operation[None]:
    """Begin the TTLs of items anew. A round trip, if one has a TTL."""
    fields: dict[Partition, list[bytes]] = {}
    for partition, entry, _ in found:
        if entry.has_ttl:
            fields.setdefault(partition, []).append(entry.field)
    yield from refresh(context, fields)
