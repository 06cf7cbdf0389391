"""Search by the server's own index of vectors (`search="server"`): FT.SEARCH of RediSearch, and of modules with the same commands.

The server decides which items are candidates, and nothing else. Their vectors are read from the partitions, together with the records, and compared here, as
those of other searches are. So what is gone is not found, and scores are the same. Filters are evaluated here, too; then more candidates are asked for, until
no other document can lead to a better item. By `flat` the result is that of the exact search, as far as the server's float32 tells vectors apart (`_highest`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_saver._common.display import shown
from redis_saver._common.store_names import PARTITION_LABELS, Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Batch, Command, Operation, Sleep
from redis_saver._store import directory, documents, transfer
from redis_saver._store.calling import ask, together
from redis_saver._store.context import StoreContext
from redis_saver._store.filters import Matches
from redis_saver._store.index_config import ServerIndex
from redis_saver._store.items import Entry
from redis_saver._store.places import namespace_and_key
from redis_saver.errors import IndexNotBuilt, RedisSaverError, UnsupportedServer, decoding_item, reading_store

if TYPE_CHECKING:
    from redis_saver._store.embedding import Embedder
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
_FIELDS_PER_CALL = 200
_METRICS = {"cosine": "COSINE", "inner_product": "IP", "l2": "L2"}
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


# -- the index


class _Asking:
    """A context in which the server is asked for its index: errors that say it has none become ours. An index that is to be made may be there already.

    Each client has a class of its own for what a server answers, and each module its own words, so they are told by those.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, RedisSaverError):
            return False
        if re.search(r"unknown command\W+FT\.", str(error), re.IGNORECASE):
            raise UnsupportedServer(
                "the server has no vector search (it does not know FT.SEARCH), which index={'search': 'server'} needs: load the module (RediSearch, which "
                "is part of Redis 8; valkey-search), or leave 'search' out, and the process compares vectors"
            ) from error
        if re.search(r"no such index|unknown index|index\b.*\bnot found", str(error), re.IGNORECASE):
            raise IndexNotBuilt(
                "the server's index of vectors is not there: call setup() once, which makes it"
            ) from error
        return "already exists" in str(error)


def _name(context: StoreContext) -> bytes:
    return _index(context).name(context.keyspace.prefix)


def _index(context: StoreContext) -> ServerIndex:
    index = _embedder(context).server
    if index is None:
        raise ValueError("this store has no index={'search': 'server'}: there is nothing to build")
    return index


def _embedder(context: StoreContext) -> Embedder:
    if context.embedder is None:
        raise ValueError("this store has no index={'search': 'server'}: there is nothing to build")
    return context.embedder


def setup(context: StoreContext) -> Operation[None]:
    """Make the index, if it is not there: first the documents of all items, then the index itself, so that one that is there is whole. Waits until it is.

    Raises:
        UnsupportedServer: The server has no vector search.
    """
    try:
        with _Asking():
            yield from _wait(context)
    except IndexNotBuilt:
        yield from build(context, all_partitions=True)
        yield from _create(context)
        yield from _wait(context)


def _create(context: StoreContext) -> Operation[None]:
    index = _index(context)
    vector = ("TYPE", "FLOAT32", "DIM", index.dims, "DISTANCE_METRIC", _METRICS[index.distance])
    attributes: list[Argument] = ["under", "TAG"]
    for number in range(1, index.vectors_per_item + 1):
        attributes += (f"v{number}", "VECTOR", index.algorithm.upper(), len(vector), *vector)
    command = (
        "FT.CREATE",
        _name(context),
        "ON",
        "HASH",
        "PREFIX",
        1,
        context.keyspace.documents,
        "SCHEMA",
        *attributes,
    )
    with _Asking():
        yield Command(command)


def _wait(context: StoreContext) -> Operation[None]:
    """Wait until the server has indexed all documents that were there when the index was made."""
    while True:
        info = yield Command(("FT.INFO", _name(context)))
        said = info if isinstance(info, Mapping) else dict(zip(info[::2], info[1::2], strict=True))
        working = (said.get(name, 0) for name in (b"indexing", b"backfill_in_progress"))
        if all(int(one) == 0 for one in working):
            return
        yield Sleep(0.05)


# -- documents of items that have none


def build(context: StoreContext, *, all_partitions: bool = False) -> Operation[int]:
    """Make the documents of items that were stored without; of all items, where `all_partitions` is set. Returns how many.

    Raises:
        DecodeError: The vectors of an item are of another model, or are none.
    """
    _index(context)
    made = 0
    for some in directory.windows((yield from directory.partitions(context, ()))):
        made += sum((yield from together(context, [_build(context, one, all_partitions) for one, _ in some])))
    return made


def _build(context: StoreContext, partition: Partition, is_all: bool) -> Operation[int]:
    index = _index(context)
    reply = yield from ask(context, partition, scripts.GET_VECTORS, ())
    if not reply or not reply[1] or (not is_all and _missing(index, partition, reply[0]) is None):
        return 0
    yield from ask(context, partition, scripts.DOCUMENT_ITEMS, ("0", index.dims))
    made, most = 0, 1
    fields = yield from transfer.list_fields(context, partition, ())
    for start in range(0, len(fields), _FIELDS_PER_CALL):
        some = fields[start : start + _FIELDS_PER_CALL]
        reply = yield from ask(context, partition, scripts.DOCUMENT_ITEMS, ("", index.dims, *some), some)
        count, many, *refused = reply
        made, most = made + int(count), max(most, int(many))
        if refused:
            reply = yield from ask(context, partition, scripts.GET_VECTORS, refused)
            for _, rows in _decoded(context, partition, refused, reply):  # raises what is wrong with them
                most = max(most, len(rows))
    yield from ask(context, partition, scripts.DOCUMENT_ITEMS, (f"{index.dims} {most}", index.dims))
    return made


def _missing(index: ServerIndex, partition: Partition, mark: bytes) -> str | None:
    """What is wrong with the documents of a partition, by what it says of them; None if nothing is."""
    where = f"items of {shown(partition.labels)}"
    dims, _, most = mark.partition(b" ")
    if not mark:
        return f"{where} were stored before the store had this index, and are not in it: call build_index()"
    if dims != b"%d" % index.dims or not most.isdigit():
        return f"{where} are not all in the server's index, or have vectors of other dimensions: call build_index(), which says more"
    if int(most) > index.vectors_per_item:
        return (
            f"{where} have up to {int(most)} vectors each, and the server's index has room for {index.vectors_per_item}: set "
            "index['vectors_per_item'] higher, and call setup()"
        )
    return None


# -- search


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
    index = _index(context)
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
    index, name = _index(context), _name(context)
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
    with _Asking():
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
    index = _index(context)
    asked = [
        (partition, some[start : start + _FIELDS_PER_CALL])
        for partition, some in fields.items()
        for start in range(0, max(len(some), 1), _FIELDS_PER_CALL)
    ]
    replies = yield from together(
        context, [ask(context, partition, scripts.GET_VECTORS, some) for partition, some in asked]
    )
    found = []
    for (partition, some), reply in zip(asked, replies, strict=True):
        if reply and reply[1] and (problem := _missing(index, partition, reply[0])) is not None:
            raise IndexNotBuilt(problem)
        found += [(partition, entry, rows) for entry, rows in _decoded(context, partition, some, reply)]
    return found


def _decoded(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], reply: Sequence[Any]
) -> Iterator[tuple[Entry, Rows]]:
    for field, record, stored in zip(fields, reply[2::2], reply[3::2], strict=False):
        if not record or not stored:
            continue
        with reading_store(partition.keys[0]):
            entry = Entry(field, record)
            namespace, key = namespace_and_key(partition, field)
        with decoding_item("the vectors of item {!r} of namespace {!r}", key, namespace):
            rows = _embedder(context).decode(context.values, stored)
        yield entry, rows


def _is_below(partition: Partition, entry: Entry, labels: tuple[str, ...]) -> bool:
    namespace, _ = namespace_and_key(partition, entry.field)
    return namespace[: len(labels)] == labels


def _score(context: StoreContext, partition: Partition, entry: Entry, rows: Rows, query: Floats) -> float:
    """As that of the exact search, which computes it."""
    embedder = _embedder(context)
    alone = embedder.nothing.changed((), {entry.field: rows})
    (one,) = alone.search(query, 1, embedder.distance, partial(namespace_and_key, partition))
    return one.score
