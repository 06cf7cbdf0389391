"""Search by the server's own index of vectors (`search="server"`): FT.SEARCH of RediSearch, and of modules with the same commands.

The server decides which items are candidates, and nothing else. Their vectors are read from the partitions, together with the records, and compared here, as
those of other searches are. So what is gone is not found, and scores are the same. Filters are evaluated here, too; then more candidates are asked for, until
no other document can lead to a better item. By `flat` the result is that of the exact search, as far as the server's float32 tells vectors apart (`_highest`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_saver._common.display import shown
from redis_saver._common.store_names import PARTITION_LABELS, Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Batch, Command, Operation
from redis_saver._store import documents
from redis_saver._store.calling import ask, together
from redis_saver._store.context import StoreContext
from redis_saver._store.filters import Matches
from redis_saver._store.index_config import ServerIndex
from redis_saver._store.items import Entry
from redis_saver._store.places import namespace_and_key
from redis_saver._store.server_index import (
    FIELDS_PER_CALL,
    AskingIndex,
    decoded,
    embedder_of,
    index_of,
    name_of,
    problem_of,
)
from redis_saver.errors import IndexNotBuilt, reading_store

if TYPE_CHECKING:
    from redis_saver._store.vectors import Floats, Rows

_MORE = 16
"""So many candidates more than items that are wanted are asked for at first."""
_FACTOR = 4
"""So many times as many each further time."""
MAX_CANDIDATES = 1_000_000
"""RediSearch answers no more."""
_TIMEOUT = 60_000
"""Milliseconds after which the server would break off, and answer a part: longer than clients wait."""
_FEW = 2
"""A server may leave documents out that have just expired. If it answers less than one in so many that were asked for, there are no others."""
_ROUNDING = 2.0**-24


class Scored(NamedTuple):
    """An item that was found."""

    partition: Partition
    entry: Entry
    score: float

    @property
    def order(self) -> tuple[float, tuple[str, ...], str]:
        """By score, then by namespace and key."""
        return (-self.score, *namespace_and_key(self.partition, self.entry.field))


def nearest(
    context: StoreContext, labels: tuple[str, ...], query: Floats, most: int, matches: Matches | None
) -> Operation[list[Scored]]:
    """The items with vectors of a namespace and of those below it that are nearest to a query, best first.

    Two round trips; two more for each time that more candidates are asked for. With two labels and more it looks whether all items of the partition have documents; with fewer, only in partitions of candidates.

    Raises:
        UnsupportedServer: The server has no vector search.
        IndexNotBuilt: The index is not there, or some items are not in it.
        ValueError: The query's vector has the length 0, and the score is the cosine.
        TimeoutError: The server broke the search off.
    """
    index = index_of(context)
    length = math.sqrt(float(query @ query))
    if length == 0 and index.distance == "cosine":
        raise ValueError("the query's vector has the length 0: the server cannot compare the angle to others")
    found: list[Scored] = []
    known: dict[Partition, set[bytes]] = {}
    checked = [context.places.of(labels).partition] if len(labels) >= PARTITION_LABELS else []
    longest, count = 0.0, min(most + _MORE, MAX_CANDIDATES)
    while most:
        replies = yield from _ask(context, labels, query, count)
        with reading_store(context.keyspace.documents):
            hits = [list(_hits(reply)) for reply in replies]
            new = _new(context, hits, known)
        while checked:
            new.setdefault(checked.pop(), [])
        for partition, entry, rows in (yield from _read(context, new)):
            longest = max(longest, float((rows.astype("f8") ** 2).sum(axis=1).max()) ** 0.5)
            if _is_below(partition, entry, labels) and (
                matches is None or matches(entry.known or entry.value(context.values, partition))
            ):
                found.append(Scored(partition, entry, _score(context, partition, entry, rows, query)))
        found.sort(key=lambda one: one.order)
        unseen = [
            _highest(index, [distance for _, distance in some], length, longest)
            for some in hits
            if _FEW * len(some) >= count
        ]
        if not unseen or count == MAX_CANDIDATES or (len(found) >= most and found[most - 1].score > max(unseen)):
            break
        count = min(count * _FACTOR, MAX_CANDIDATES)
    return found[:most]


def _ask(context: StoreContext, labels: tuple[str, ...], query: Floats, count: int) -> Operation[list[Any]]:
    """The nearest documents by each of their vectors, then those with a vector of length 0, which is the same distance from the query in all of them."""
    index, name = index_of(context), name_of(context)
    where = b"@under:{%b}" % documents.tag(labels) if labels else b""
    behind = ("LIMIT", 0, count, "TIMEOUT", _TIMEOUT, "DIALECT", 2)
    asked = [
        Command(
            (
                "FT.SEARCH", name, b"%b=>[KNN %d @v%d $query AS distance]" % (where or b"*", count, number),
                "PARAMS", 2, "query", query.astype("<f4").tobytes(), "RETURN", 1, "distance", *behind,
            )
        )
        for number in range(1, index.vectors_per_item + 1)
    ]  # fmt: skip
    zero = Command(("FT.SEARCH", name, b"%b @under:{%b}" % (where, documents.ZERO), "NOCONTENT", *behind))
    replies: list[Any] = []
    with AskingIndex():
        replies = yield Batch([*asked, zero])
    for reply in replies:
        if isinstance(reply, Mapping) and (said := reply.get(b"warning")):
            raise TimeoutError(
                f"the server broke off a search by its index of vectors, and answered a part of it: {shown(said)}"
            )
    return replies


def _hits(reply: Any) -> Iterator[tuple[bytes, float | None]]:
    """The documents of a reply of FT.SEARCH, with their distances where it has them. RESP3 answers dicts, RESP2 lists."""
    if isinstance(reply, Mapping):
        for one in reply[b"results"]:
            distance = one.get(b"extra_attributes", {}).get(b"distance")
            yield one[b"id"], None if distance is None else float(distance)
        return
    rest = iter(reply[1:])
    behind = next(rest, None)
    while behind is not None:
        document, behind = behind, next(rest, None)
        if isinstance(behind, list):
            yield document, float(dict(zip(behind[::2], behind[1::2], strict=True))[b"distance"])
            behind = next(rest, None)
        else:
            yield document, None


def _new(
    context: StoreContext, hits: Sequence[Sequence[tuple[bytes, float | None]]], known: dict[Partition, set[bytes]]
) -> dict[Partition, list[bytes]]:
    """The items of documents that were not found before. From now on they are known."""
    new: dict[Partition, list[bytes]] = {}
    for some in hits:
        for document, _ in some:
            partition, field = context.keyspace.item_of(document)
            if field not in (fields := known.setdefault(partition, set())):
                fields.add(field)
                new.setdefault(partition, []).append(field)
    return new


def _highest(index: ServerIndex, distances: Sequence[float | None], length: float, longest: float) -> float:
    """What no document behind these has a greater score than.

    The server computes in float32. How wrong it is at the most is known for the cosine and for l2; for the inner product it is taken for vectors as long as
    the longest that was seen.
    """
    error = 2 * (index.dims + 8) * _ROUNDING
    if None in distances:  # those of the zero vector
        return -length if index.distance == "l2" else 0.0
    last = max(distance for distance in distances if distance is not None)
    if index.distance == "l2":  # the server answers squares
        return -math.sqrt(max(0.0, last * (1 - error)))
    if index.distance == "inner_product":
        return 1 - last + error * (length * longest + abs(last))
    return 1 - last + error


def _read(
    context: StoreContext, fields: Mapping[Partition, Sequence[bytes]]
) -> Operation[list[tuple[Partition, Entry, Rows]]]:
    """The items of these that are there and have vectors.

    Raises:
        IndexNotBuilt: Other items of their partitions have no documents.
    """
    index = index_of(context)
    asked = [
        (partition, some[start : start + FIELDS_PER_CALL])
        for partition, some in fields.items()
        for start in range(0, max(len(some), 1), FIELDS_PER_CALL)
    ]
    replies = yield from together(
        context, [ask(context, partition, scripts.GET_VECTORS, some) for partition, some in asked]
    )
    found = []
    for (partition, some), reply in zip(asked, replies, strict=True):
        if reply and reply[1] and (problem := problem_of(index, partition, reply[0])) is not None:
            raise IndexNotBuilt(problem)
        found += [(partition, entry, rows) for entry, rows in decoded(context, partition, some, reply)]
    return found


def _is_below(partition: Partition, entry: Entry, labels: tuple[str, ...]) -> bool:
    namespace, _ = namespace_and_key(partition, entry.field)
    return namespace[: len(labels)] == labels


def _score(context: StoreContext, partition: Partition, entry: Entry, rows: Rows, query: Floats) -> float:
    """As that of the exact search, which computes it."""
    embedder = embedder_of(context)
    alone = embedder.nothing.changed((), {entry.field: rows})
    (one,) = alone.search(query, 1, embedder.distance, partial(namespace_and_key, partition))
    return one.score
