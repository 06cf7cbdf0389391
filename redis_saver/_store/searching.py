"""Searches by order, filter or similarity, in one partition or in many."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import NamedTuple

from langgraph.store.base import SearchOp

from redis_saver._common import config, filters
from redis_saver._common.display import shown
from redis_saver._common.filters import Predicate
from redis_saver._common.store_names import PARTITION_LABELS, namespace_and_key
from redis_saver._engine.requests import Operation
from redis_saver._storage.skipping import Skipping
from redis_saver._store import namespaces, reading, server_search
from redis_saver._store.context import Place, StoreContext, check_labels
from redis_saver._store.index_config import Texts
from redis_saver._store.items import Entry, Hit, VersionedSearchItem
from redis_saver._store.scripts import refresh_ttls, together, windows
from redis_saver._store.writing import clean
from redis_saver.errors import reading_store

_MANY = 10**15
"""Maximum of `limit` and `offset`: more items than any store has, and few enough for Redis."""


class _Search(NamedTuple):
    """Arguments of a search with a query or a filter, or of several partitions."""

    matches: Predicate | None
    """The filter."""
    query: str | None
    texts: Texts
    """Holds the query's vector once the operation runs."""
    most: int
    """Maximum number of hits, including those that `offset` skips."""


def check(op: SearchOp) -> tuple[tuple[str, ...], Predicate | None]:
    """Check the arguments of a search. Returns the labels of its namespace, and its filter.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """
    labels, matches = check_labels(op.namespace_prefix, "namespace_prefix"), filters.of_items(op.filter)
    for name, number in (("limit", op.limit), ("offset", op.offset)):
        config.number(name, number, 0, whole=True)
    return labels, matches


def search(context: StoreContext, op: SearchOp, texts: Texts) -> Operation[list[VersionedSearchItem]]:
    """Search a namespace and its children, by similarity if there is a query, else newest first.

    The call checks the arguments and adds the query to the texts, which must be embedded before the operation runs.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """
    labels, matches = check(op)
    op = op._replace(limit=min(op.limit, _MANY), offset=min(op.offset, _MANY))
    query = (op.query or None) if context.embedder else None
    if query is not None:
        if not isinstance(query, str):
            raise TypeError(f"query={shown(query)}: a query is a text, or None")
        texts.queries.setdefault(query)
    elif matches is None and len(labels) >= PARTITION_LABELS:
        return _page(context, context.places.of(labels), op)
    return _search(context, labels, op, _Search(matches, query, texts, op.offset + op.limit))


def _page(context: StoreContext, place: Place, op: SearchOp) -> Operation[list[VersionedSearchItem]]:
    page = yield from reading.page(context, place, op.offset, op.limit, refresh=bool(op.refresh_ttl))
    with reading_store(place.partition.keys[0]):
        return [entry.search_item(context.values, place.partition) for entry in page.entries]


def _search(
    context: StoreContext, labels: tuple[str, ...], op: SearchOp, wanted: _Search
) -> Operation[list[VersionedSearchItem]]:
    by_server = wanted.query is not None and context.has_documents
    hits = yield from (_by_server if by_server else _best)(context, labels, wanted)
    hits = hits[op.offset :]
    if op.refresh_ttl:
        yield from refresh_ttls(context, hits)
    items = []
    for hit in hits:
        with reading_store(hit.partition.keys[0]):
            items.append(hit.entry.search_item(context.values, hit.partition, hit.score))
    return items


def _best(context: StoreContext, labels: tuple[str, ...], wanted: _Search) -> Operation[list[Hit]]:
    """Return the best hits of one partition, or of all with this prefix. Removes empty ones from the directory."""
    if len(labels) >= PARTITION_LABELS:
        return (yield from _best_of_partition(context, context.places.of(labels), wanted)) or []
    best: list[Hit] = []
    with Skipping(context.values.data_keys) as skipping:
        for window in windows((yield from namespaces.partitions(context, labels))):
            searches = [
                skipping.each(partition.name, _best_of_partition(context, Place(partition, b""), wanted))
                for partition, _ in window
            ]
            empty = []
            for (partition, token), hits in zip(window, (yield from together(context, searches)), strict=True):
                best += hits or ()
                if hits is None and partition.name not in skipping:
                    empty.append(clean(context, partition, token))
            yield from together(context, empty)
            with reading_store(context.keyspace.directory[0]):
                best = heapq.nsmallest(wanted.most, best, key=lambda hit: hit.order)
    return best


def stored(context: StoreContext, labels: tuple[str, ...], limit: int, offset: int) -> Operation[list[Hit]]:
    """Return the newest items of a namespace and its children as they are stored, which needs no key."""
    plain = context._replace(values=context.values._replace(data_keys=None))
    hits = yield from _best(plain, labels, _Search(None, None, Texts(), offset + limit))
    return hits[offset:]


def _by_server(context: StoreContext, labels: tuple[str, ...], wanted: _Search) -> Operation[list[Hit]]:
    """Return items ranked by the server's index, followed by items without vectors, newest first."""
    assert wanted.query is not None  # noqa: S101
    vector = wanted.texts.vector(wanted.query)
    hits = yield from server_search.nearest(context, labels, vector, wanted.most, wanted.matches)
    if len(hits) < wanted.most:
        known = {(hit.partition, hit.entry.field) for hit in hits}
        others = yield from _best(context, labels, wanted._replace(query=None))
        unscored = (hit for hit in others if (hit.partition, hit.entry.field) not in known)
        hits += islice(unscored, wanted.most - len(hits))
    return hits


def _best_of_partition(context: StoreContext, place: Place, wanted: _Search) -> Operation[list[Hit] | None]:
    """Return the best hits of a partition, or None if there is no such partition."""
    partition = place.partition
    if wanted.matches is None and wanted.query is None:
        page = yield from reading.page(context, place, 0, wanted.most, refresh=False)
        return None if page.token == b"0" else [Hit(partition, entry) for entry in page.entries]
    mirror = yield from reading.mirror(context, partition, with_vectors=wanted.query is not None)
    if not mirror.token:
        return None
    with reading_store(partition.keys[0]):
        if wanted.query is not None:
            return _nearest(context, place, mirror, wanted)
        newest = _matching(context, place, wanted, reversed(mirror.entries.values()))
        return [Hit(partition, entry) for entry in islice(newest, wanted.most)]


def _matching(context: StoreContext, place: Place, wanted: _Search, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Keep the items that are in the namespace or below it, and match the filter."""
    if prefix := place.prefix:
        entries = (entry for entry in entries if entry.field.startswith(prefix))
    if (matches := wanted.matches) is None:
        return entries
    values, partition = context.values, place.partition
    return (entry for entry in entries if matches(entry.known or entry.value(values, partition)))


def _nearest(context: StoreContext, place: Place, mirror: reading.Mirror, wanted: _Search) -> list[Hit]:
    """Return the items nearest to the query, followed by items without vectors, newest first."""
    partition, vectors, entries = place.partition, mirror.vectors, mirror.entries
    if vectors is None or context.embedder is None or wanted.query is None:  # there is no such partition
        return []
    among = None
    if place.prefix or wanted.matches is not None:
        among = [entry.field for entry in _matching(context, place, wanted, entries.values())]
    order = partial(namespace_and_key, partition)
    scored = vectors.search(wanted.texts.vector(wanted.query), wanted.most, context.embedder.distance, order, among)
    hits = [Hit(partition, entries[each.field], each.score) for each in scored]
    if len(hits) < wanted.most and len(vectors) < len(entries):
        others = (entry for entry in reversed(entries.values()) if entry.field not in vectors)
        unscored = islice(_matching(context, place, wanted, others), wanted.most - len(hits))
        hits += [Hit(partition, entry) for entry in unscored]
    return hits
