"""The operation that reads one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.replies import GetReply
from redis_saver._engine.requests import Call, Operation
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec
from redis_saver._storage import header as headers
from redis_saver._storage.chunk_cache import MAX_KNOWN_FIELDS, ChannelKey, KnownTable, Version
from redis_saver._storage.chunks import DIGEST
from redis_saver._storage.context import Context, refresh_arguments
from redis_saver._storage.header import PRESENT
from redis_saver.errors import DecodeError, decoding

_PRESENT = PRESENT[0]
MAX_TOLD = 100
"""How many chunks `get_tuple` names as known, at the most; the server does not send these."""
BYTES_PER_PAGE = 4_000_000
"""A reading script ends its page after the checkpoint with which it has this many bytes, so that it does not block the server for long."""


class HasIntents(Exception):
    """The thread has write intents, so hot is not to be believed: cold may be newer."""


class Nowhere(Exception):
    """Hot has no such checkpoint, and knows that cold has none either."""


def get_tuple(context: Context, given: RunnableConfig) -> Operation[CheckpointTuple | None]:
    """The newest checkpoint of a namespace, or the one a config names."""
    where = config.address(given)
    return read(context, where, context.keyspace.keys(where.thread_id))


def read(context: Context, where: config.Address, keys: Sequence[bytes]) -> Operation[CheckpointTuple | None]:
    """`get_tuple`.

    Args:
        context: The saver.
        where: The checkpoint; without an id, the newest.
        keys: The thread's two keys. In front of a cold saver also those of the write intents and of the dirty records.

    Raises:
        HasIntents: The thread has write intents.
        Nowhere: Cold has no such checkpoint either.
    """
    thread, ns, checkpoint_id = where
    wanted = names.component(checkpoint_id) if checkpoint_id else b""
    arguments = (names.component(ns), wanted, *refresh_arguments(context))
    data = keys[1]
    had = {place: version for place, version in context.chunk_cache.of(data).items() if place[0] == ns}
    known = context.chunk_cache.table_of(data, ns)
    if known and not _is_expected(known, had.get((ns, None)), ns, checkpoint_id):
        known = None
    while True:
        roots = b"".join([version.stored.value[1 : 1 + DIGEST] for version in had.values() if version.stored.levels])
        told = [field for version in had.values() for field in version.right_edge()]
        expected = (known.checkpoint, *known.fields) if known else (b"",)
        stored = yield Call(scripts.GET, keys, (*arguments, roots, b"".join(told[:MAX_TOLD]), *expected))
        if stored is None:
            return None
        if len(keys) > 2 and stored == GetReply.INTENTS:
            raise HasIntents
        if len(keys) > 2 and stored == GetReply.NOWHERE:
            raise Nowhere
        with decoding("a checkpoint of thread {!r}", thread):
            is_as_known = known is not None and len(stored) > 6 and _is_as_known(known, stored)
            if known and len(stored) > 6 and not is_as_known:
                known = None  # it was put again, or a value is gone: the script is to look
                continue
        chunks: dict[bytes, bytes] = {}
        for version in had.values():
            chunks.update(version.stored.chunks)
        used: dict[ChannelKey, Version] = {}
        try:
            with decoding("a checkpoint of thread {!r}", thread):
                chunks.update(codec.as_chunks(context, stored[5], thread))
                found = codec.decode_tuple(context, thread, stored, chunks, had, used)
        except DecodeError as error:
            if not had or not isinstance(error.__cause__, chunked.ChunkMissing):
                raise
            had, known = {}, None  # the server left out chunks of another version of these lists: ask for all of it
            continue
        # Of older checkpoints that somebody looks at none is remembered.
        table = known if is_as_known or checkpoint_id else _table(ns, found, stored)
        context.chunk_cache.remember(data, {**dict.fromkeys(had), **used}, ns, table)
        return found


def _is_expected(known: KnownTable, its_names: Version | None, ns: str, checkpoint_id: str | None) -> bool:
    """Whether a checkpoint whose table is known may be the one that is asked for, and the chunk with its names is known, too."""
    is_asked = not checkpoint_id or known.checkpoint == names.checkpoint(ns, checkpoint_id)
    return is_asked and its_names is not None and its_names.field == known.links[0]


def _is_as_known(known: KnownTable, stored: Sequence[Any]) -> bool:
    """Whether values that were read by their fields are those that the header tells of, and all of them are there."""
    flags, *links = headers.table_of(stored[2])
    is_whole = all(value is not None for flag, value in zip(flags, stored[3], strict=False) if flag == _PRESENT)
    return tuple(links) == known.links and len(flags) == len(stored[3]) and is_whole


def _table(ns: str, found: CheckpointTuple, stored: Sequence[Any]) -> KnownTable | None:
    """The version table of a checkpoint that was read."""
    versions = found.checkpoint["channel_versions"]
    if len(versions) > MAX_KNOWN_FIELDS:
        return None
    _, *links = headers.table_of(stored[2])
    fields = [names.blob(ns, names.entry(channel, version)) for channel, version in versions.items()]
    return KnownTable(names.checkpoint(ns, found.checkpoint["id"]), (links[0], links[1], links[2]), tuple(fields))
