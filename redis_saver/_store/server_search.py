"""The server's own index of vectors (`search="server"`): RediSearch, and modules with the same commands.

An item with vectors has a *document*, a hash that the server indexes. The scripts that store, refresh or remove the
vectors of an item treat its document in the same way, whichever store calls them.

The server only ranks candidates. A search reads their vectors from the partitions, together with the records, and
compares them here, as other searches do. So an item that is gone is not found, and scores are the same. Filters run
here, too. The search asks for more candidates until no other document can lead to a better item. With `flat` the result
is that of the exact search, as far as the server's float32 tells vectors apart (`_highest_unseen`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_saver._common.display import shown
from redis_saver._common.store_names import PARTITION_LABELS, Partition, namespace_and_key
from redis_saver._engine.requests import Argument, Batch, Command, Operation, Sleep
from redis_saver._store import namespaces, reading, scripts
from redis_saver._store.context import StoreContext, document_tag
from redis_saver._store.index_config import ServerIndex
from redis_saver._store.items import Entry, Hit
from redis_saver._store.scripts import ask, together, windows
from redis_saver.errors import IndexNotBuilt, RedisSaverError, UnsupportedServer, reading_store

if TYPE_CHECKING:
    from redis_saver._store.vectors import Embedder, Floats, Rows

FIELDS_PER_CALL = 200
MAX_CANDIDATES = 1_000_000
"""Maximum number of results of FT.SEARCH."""
_MORE_CANDIDATES = 16
"""Number of candidates, beyond the wanted items, of the first request."""
_GROWTH = 4
"""Growth factor of the number of candidates per further request."""
_TIMEOUT = 60_000
"""Milliseconds after which the server returns only a part. Clients do not wait that long."""
_MIN_SHARE = 2
"""A reply with less than 1/2 of the requested candidates has all of them. Fuller ones may lack expired documents."""
_ROUNDING = 2.0**-24
_METRICS = {"cosine": "COSINE", "inner_product": "IP", "l2": "L2"}
_ZERO = b"zero"
"""Tag of documents with a vector of length 0 (`lua/lib/documents.lua`)."""


@contextmanager
def _asking_index() -> Iterator[None]:
    """Turn errors about a missing index into our own, and ignore that an index exists already.

    The text of the error decides, because clients and modules use different classes and words.
    """
    try:
        yield
    except RedisSaverError:
        raise
    except Exception as error:  # each client has classes of its own, which operations do not import
        if re.search(r"unknown command\W+FT\.", str(error), re.IGNORECASE):
            raise UnsupportedServer(
                "the server has no vector search (it does not know FT.SEARCH), which index={'search': 'server'} needs: "
                "load the module (RediSearch, which is part of Redis 8; valkey-search), or leave 'search' out, and the "
                "process compares vectors"
            ) from error
        if re.search(r"no such index|unknown index|index\b.*\bnot found", str(error), re.IGNORECASE):
            raise IndexNotBuilt("the server's index of vectors is missing: call setup() once to make it") from error
        if "already exists" not in str(error):
            raise


class _Index(NamedTuple):
    """The server's index of a store."""

    name: bytes
    settings: ServerIndex
    embedder: Embedder


def _index_of(context: StoreContext) -> _Index:
    embedder = context.embedder
    if embedder is None or embedder.server is None:
        raise ValueError("this store has no index={'search': 'server'}: there is nothing to build")
    return _Index(embedder.server.name(context.keyspace.prefix), embedder.server, embedder)


# -- making the index


def setup(context: StoreContext) -> Operation[None]:
    """Make the index, if it is missing, and wait until it is complete. Makes the documents of all items first.

    Raises:
        UnsupportedServer: The server has no vector search.
    """
    try:
        with _asking_index():
            yield from _wait(context)
    except IndexNotBuilt:
        yield from build_index(context, all_partitions=True)
        yield from _create(context)
        yield from _wait(context)


def _create(context: StoreContext) -> Operation[None]:
    name, index, _ = _index_of(context)
    vector = ("TYPE", "FLOAT32", "DIM", index.dims, "DISTANCE_METRIC", _METRICS[index.distance])
    attributes: list[Argument] = ["under", "TAG"]
    for number in range(1, index.vectors_per_item + 1):
        attributes += (f"v{number}", "VECTOR", index.algorithm.upper(), len(vector), *vector)
    with _asking_index():
        yield Command(("FT.CREATE", name, "ON", "HASH", "PREFIX", 1, context.keyspace.documents, "SCHEMA", *attributes))


def _wait(context: StoreContext) -> Operation[None]:
    """Wait until the server has indexed all documents that existed when the index was made."""
    name = _index_of(context).name
    while True:
        reply = yield Command(("FT.INFO", name))
        with reading_store(name):
            info = reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))
            is_working = any(int(info.get(field, 0)) for field in (b"indexing", b"backfill_in_progress"))
        if not is_working:
            return
        yield Sleep(0.05)


def build_index(context: StoreContext, *, all_partitions: bool = False) -> Operation[int]:
    """Make the documents of items that have none, or of all items. Returns the number of documents.

    Raises:
        DecodeError: The vectors of an item are of another model, or are not vectors.
    """
    _index_of(context)
    builds = namespaces.sum_each(context, (), lambda partition, _: _build(context, partition, all_partitions))
    return (yield from builds)


def _build(context: StoreContext, partition: Partition, is_all: bool) -> Operation[int]:
    index = _index_of(context).settings
    vectors = yield from _read(context, partition, ())
    if not vectors.indexed or not (is_all or _problem_of(index, partition, vectors.mark)):
        return 0
    yield from ask(context, partition, scripts.DOCUMENT_ITEMS, ("0", index.dims))
    made, most = 0, 1
    for window in windows((yield from reading.list_fields(context, partition)), FIELDS_PER_CALL):
        reply = yield from ask(context, partition, scripts.DOCUMENT_ITEMS, ("", index.dims, *window), window)
        count, vectors_per_item, *refused = reply.values
        with reading_store(partition.keys[4]):
            made, most = made + int(count), max(most, int(vectors_per_item))
        if refused:  # decoding their vectors raises the error
            vectors = yield from _read(context, partition, refused)
            most = max([most, *(len(rows) for _, rows in _decoded(context, partition, refused, vectors))])
    yield from ask(context, partition, scripts.DOCUMENT_ITEMS, (f"{index.dims} {most}", index.dims))
    return made


def _problem_of(index: ServerIndex, partition: Partition, mark: bytes) -> str | None:
    """Describe why the index does not have all items of a partition. None if it has."""
    subject = f"items of {shown(partition.labels)}"
    dims, _, most = mark.partition(b" ")
    if not mark:
        return f"{subject} were stored before the store had this index, and are not in it: call build_index()"
    if dims != b"%d" % index.dims or not most.isdigit():
        return (
            f"{subject} are not all in the server's index, or have vectors of other dimensions: "
            "call build_index(), which says more"
        )
    if int(most) > index.vectors_per_item:
        return (
            f"{subject} have up to {int(most)} vectors each, and the server's index has room for "
            f"{index.vectors_per_item}: set index['vectors_per_item'] higher, and call setup()"
        )
    return None


class _Vectors(NamedTuple):
    """Reply of `read_items.lua`."""

    mark: bytes
    """State of the partition's documents."""
    indexed: int
    """Number of items with vectors."""
    records: list[bytes]
    """Record and vectors of each asked item; both empty if it is not there."""


def _read(context: StoreContext, partition: Partition, fields: Sequence[bytes]) -> Operation[_Vectors]:
    """Read items with their vectors. One round trip."""
    values = (yield from ask(context, partition, scripts.READ_ITEMS, ("vectors", *fields))).values
    return _Vectors(values[0], values[1], values[2:]) if values else _Vectors(b"", 0, [])


def _decoded(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], vectors: _Vectors
) -> Iterator[tuple[Entry, Rows]]:
    """Yield the asked items that are there and have vectors."""
    embedder = _index_of(context).embedder
    with reading_store(partition.keys[0]):
        for field, record, stored in zip(
            fields, vectors.records[::2], vectors.records[1::2], strict=bool(vectors.records)
        ):
            if record and stored:
                entry = Entry(field, record)
                yield entry, embedder.decode(context.values, partition, field, entry.made_by, stored)


# -- searching


def nearest(
    context: StoreContext, labels: tuple[str, ...], query: Floats, most: int, matches: Callable[[Any], bool] | None
) -> Operation[list[Hit]]:
    """Return the items with vectors of a namespace and its children that are nearest to a query, best first.

    Two round trips, and two more each time that it asks for more candidates. It checks that all items have documents:
    in the partition if there are two labels or more, else in the partitions of the candidates.

    Raises:
        UnsupportedServer: The server has no vector search.
        IndexNotBuilt: The index is missing, or some items are not in it.
        ValueError: The query's vector has the length 0, and scores are cosines.
        TimeoutError: The server answered only a part.
    """
    _, index, embedder = _index_of(context)
    length = math.sqrt(float(query @ query))
    if length == 0 and index.distance == "cosine":
        raise ValueError("the query's vector has the length 0: the server cannot compare the angle to others")
    result: list[Hit] = []
    known: dict[Partition, set[bytes]] = {}
    unchecked = [context.places.of(labels).partition] if len(labels) >= PARTITION_LABELS else []
    longest, count = 0.0, min(most + _MORE_CANDIDATES, MAX_CANDIDATES)
    while most:
        replies = yield from _candidates(context, labels, query, count)
        with reading_store(context.keyspace.documents):
            ranked = [list(_documents(reply)) for reply in replies]
            new = _unknown(context, ranked, known)
        while unchecked:
            new.setdefault(unchecked.pop(), [])
        for partition, entry, rows in (yield from _read_all(context, new)):
            longest = max(longest, float((rows.astype("f8") ** 2).sum(axis=1).max()) ** 0.5)
            namespace, _ = namespace_and_key(partition, entry.field)
            if namespace[: len(labels)] == labels and (
                matches is None or matches(entry.known or entry.value(context.values, partition))
            ):
                result.append(Hit(partition, entry, embedder.score(rows, query)))
        result.sort(key=lambda hit: hit.order)
        unseen = [
            _highest_unseen(index, [distance for _, distance in documents], length, longest)
            for documents in ranked
            if _MIN_SHARE * len(documents) >= count
        ]
        worst = result[most - 1].score if len(result) >= most else None
        if not unseen or count == MAX_CANDIDATES or (worst is not None and worst > max(unseen)):
            break
        count = min(count * _GROWTH, MAX_CANDIDATES)
    return result[:most]


def _candidates(context: StoreContext, labels: tuple[str, ...], query: Floats, count: int) -> Operation[list[Any]]:
    """Ask for the nearest documents by each of their vectors, and for documents with a vector of length 0.

    All vectors of length 0 have the same distance from the query.
    """
    name, index, _ = _index_of(context)
    below = b"@under:{%b}" % document_tag(labels) if labels else b""
    options = ("LIMIT", 0, count, "TIMEOUT", _TIMEOUT, "DIALECT", 2)
    commands = [
        Command(
            (
                "FT.SEARCH", name, b"%b=>[KNN %d @v%d $query AS distance]" % (below or b"*", count, number),
                "PARAMS", 2, "query", query.astype("<f4").tobytes(), "RETURN", 1, "distance", *options,
            )
        )
        for number in range(1, index.vectors_per_item + 1)
    ]  # fmt: skip
    zero = Command(("FT.SEARCH", name, b"%b @under:{%b}" % (below, _ZERO), "NOCONTENT", *options))
    replies: list[Any] = []
    with _asking_index():
        replies = yield Batch([*commands, zero])
    for reply in replies:
        if isinstance(reply, Mapping) and (warning := reply.get(b"warning")):
            raise TimeoutError(f"the server answered only a part of a search by its index of vectors: {shown(warning)}")
    return replies


def _documents(reply: Any) -> Iterator[tuple[bytes, float | None]]:
    """Yield the documents of a reply of FT.SEARCH, a dict with RESP3 and a list with RESP2, with their distances."""
    if isinstance(reply, Mapping):
        for document in reply[b"results"]:
            distance = document.get(b"extra_attributes", {}).get(b"distance")
            yield document[b"id"], None if distance is None else float(distance)
        return
    values = iter(reply[1:])
    following = next(values, None)
    while following is not None:
        name, following = following, next(values, None)
        if isinstance(following, list):
            yield name, float(dict(zip(following[::2], following[1::2], strict=True))[b"distance"])
            following = next(values, None)
        else:
            yield name, None


def _unknown(
    context: StoreContext,
    ranked: Iterable[Iterable[tuple[bytes, float | None]]],
    known: dict[Partition, set[bytes]],
) -> dict[Partition, list[bytes]]:
    """Return the items of newly ranked documents, and add them to the known ones."""
    new: dict[Partition, list[bytes]] = {}
    for documents in ranked:
        for document, _ in documents:
            partition, field = context.keyspace.item_of(document)
            if field not in (fields := known.setdefault(partition, set())):
                fields.add(field)
                new.setdefault(partition, []).append(field)
    return new


def _highest_unseen(index: ServerIndex, distances: Sequence[float | None], length: float, longest: float) -> float:
    """Return the maximum score of documents that are ranked after these.

    The server computes in float32. Its greatest error is known for the cosine and for l2. For the inner product it is
    estimated for vectors as long as the longest that was seen.
    """
    error = 2 * (index.dims + 8) * _ROUNDING
    if None in distances:  # documents with a vector of length 0
        return -length if index.distance == "l2" else 0.0
    last = max(distance for distance in distances if distance is not None)
    if index.distance == "l2":  # the server answers squares
        return -math.sqrt(max(0.0, last * (1 - error)))
    if index.distance == "inner_product":
        return 1 - last + error * (length * longest + abs(last))
    return 1 - last + error


def _read_all(
    context: StoreContext, fields: Mapping[Partition, Sequence[bytes]]
) -> Operation[list[tuple[Partition, Entry, Rows]]]:
    """Read items of several partitions with their vectors.

    Raises:
        IndexNotBuilt: A partition has items that are not in the index.
    """
    index = _index_of(context).settings
    asked = [
        (partition, window) for partition, names in fields.items() for window in windows(names, FIELDS_PER_CALL) or [()]
    ]
    replies = yield from together(context, [_read(context, partition, window) for partition, window in asked])
    result = []
    for (partition, window), vectors in zip(asked, replies, strict=True):
        if vectors.indexed and (problem := _problem_of(index, partition, vectors.mark)) is not None:
            raise IndexNotBuilt(problem)
        result += [(partition, entry, rows) for entry, rows in _decoded(context, partition, window, vectors)]
    return result
