"""The server's own index of vectors (`search="server"`): how it is made, and documents of items that have none. `server_search` asks it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Command, Operation, Sleep
from redis_saver._store import directory, transfer
from redis_saver._store.calling import ask, together
from redis_saver._store.context import StoreContext
from redis_saver._store.index_config import ServerIndex
from redis_saver._store.items import Entry
from redis_saver._store.places import namespace_and_key
from redis_saver.errors import IndexNotBuilt, RedisSaverError, UnsupportedServer, decoding_item, reading_store

if TYPE_CHECKING:
    from redis_saver._store.embedding import Embedder
    from redis_saver._store.vectors import Rows

FIELDS_PER_CALL = 200
_METRICS = {"cosine": "COSINE", "inner_product": "IP", "l2": "L2"}


class AskingIndex:
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


def name_of(context: StoreContext) -> bytes:
    return index_of(context).name(context.keyspace.prefix)


def index_of(context: StoreContext) -> ServerIndex:
    index = embedder_of(context).server
    if index is None:
        raise ValueError("this store has no index={'search': 'server'}: there is nothing to build")
    return index


def embedder_of(context: StoreContext) -> Embedder:
    if context.embedder is None:
        raise ValueError("this store has no index={'search': 'server'}: there is nothing to build")
    return context.embedder


def setup(context: StoreContext) -> Operation[None]:
    """Make the index, if it is not there: first the documents of all items, then the index itself, so that one that is there is whole. Waits until it is.

    Raises:
        UnsupportedServer: The server has no vector search.
    """
    try:
        with AskingIndex():
            yield from _wait(context)
    except IndexNotBuilt:
        yield from build(context, all_partitions=True)
        yield from _create(context)
        yield from _wait(context)


def _create(context: StoreContext) -> Operation[None]:
    index = index_of(context)
    vector = ("TYPE", "FLOAT32", "DIM", index.dims, "DISTANCE_METRIC", _METRICS[index.distance])
    attributes: list[Argument] = ["under", "TAG"]
    for number in range(1, index.vectors_per_item + 1):
        attributes += (f"v{number}", "VECTOR", index.algorithm.upper(), len(vector), *vector)
    command = (
        "FT.CREATE",
        name_of(context),
        "ON",
        "HASH",
        "PREFIX",
        1,
        context.keyspace.documents,
        "SCHEMA",
        *attributes,
    )
    with AskingIndex():
        yield Command(command)


def _wait(context: StoreContext) -> Operation[None]:
    """Wait until the server has indexed all documents that were there when the index was made."""
    while True:
        info = yield Command(("FT.INFO", name_of(context)))
        with reading_store(name_of(context)):
            said = info if isinstance(info, Mapping) else dict(zip(info[::2], info[1::2], strict=True))
            is_working = any(int(said.get(name, 0)) for name in (b"indexing", b"backfill_in_progress"))
        if not is_working:
            return
        yield Sleep(0.05)


# -- documents of items that have none


def build(context: StoreContext, *, all_partitions: bool = False) -> Operation[int]:
    """Make the documents of items that were stored without; of all items, where `all_partitions` is set. Returns how many.

    Raises:
        DecodeError: The vectors of an item are of another model, or are none.
    """
    index_of(context)
    made = 0
    for some in directory.windows((yield from directory.partitions(context, ()))):
        made += sum((yield from together(context, [_build(context, one, all_partitions) for one, _ in some])))
    return made


def _build(context: StoreContext, partition: Partition, is_all: bool) -> Operation[int]:
    index = index_of(context)
    reply = yield from ask(context, partition, scripts.GET_VECTORS, ())
    if not reply or not reply[1] or (not is_all and problem_of(index, partition, reply[0]) is None):
        return 0
    yield from ask(context, partition, scripts.DOCUMENT_ITEMS, ("0", index.dims))
    made, most = 0, 1
    fields = yield from transfer.list_fields(context, partition, ())
    for start in range(0, len(fields), FIELDS_PER_CALL):
        some = fields[start : start + FIELDS_PER_CALL]
        reply = yield from ask(context, partition, scripts.DOCUMENT_ITEMS, ("", index.dims, *some), some)
        count, many, *refused = reply
        with reading_store(partition.keys[4]):
            made, most = made + int(count), max(most, int(many))
        if refused:
            reply = yield from ask(context, partition, scripts.GET_VECTORS, refused)
            for _, rows in decoded(context, partition, refused, reply):  # raises what is wrong with them
                most = max(most, len(rows))
    yield from ask(context, partition, scripts.DOCUMENT_ITEMS, (f"{index.dims} {most}", index.dims))
    return made


def problem_of(index: ServerIndex, partition: Partition, mark: bytes) -> str | None:
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


def decoded(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], reply: Sequence[Any]
) -> Iterator[tuple[Entry, Rows]]:
    """The items of a reply of `get_vectors.lua` to these fields that are there and have vectors."""
    with reading_store(partition.keys[0]):
        answered = list(zip(fields, reply[2::2], reply[3::2], strict=True)) if reply else []
    for field, record, stored in answered:
        if not record or not stored:
            continue
        with reading_store(partition.keys[0]):
            entry = Entry(field, record)
            namespace, key = namespace_and_key(partition, field)
        with decoding_item("the vectors of item {!r} of namespace {!r}", key, namespace):
            rows = embedder_of(context).decode(context.values, stored)
        yield entry, rows
