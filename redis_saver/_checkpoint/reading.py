"""The operation that reads one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.replies import GetReply
from redis_saver._engine.requests import Call, Operation
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec
from redis_saver._storage.chunk_cache import ChannelKey, Version
from redis_saver._storage.context import Context, refresh_arguments
from redis_saver.errors import DecodeError, decoding

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
    while True:
        told = [field for version in had.values() for field in version.right_edge()]
        stored = yield Call(scripts.GET, keys, (*arguments, *told[:MAX_TOLD]))
        if stored is None:
            return None
        if len(keys) > 2 and stored == GetReply.INTENTS:
            raise HasIntents
        if len(keys) > 2 and stored == GetReply.NOWHERE:
            raise Nowhere
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
            had = {}  # the server left out chunks of another version of these lists: ask for all of it
            continue
        context.chunk_cache.remember(data, {**dict.fromkeys(had), **used})
        return found
