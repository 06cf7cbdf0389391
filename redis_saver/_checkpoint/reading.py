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
"""How many chunks `get_tuple` says it has; the server answers those it does not know of."""
BYTES_PER_PAGE = 4_000_000
"""A reading script ends its page behind the checkpoint with which it holds so many bytes, so that the server is not held."""


class HasIntents(Exception):
    """The thread is being written where this server does not see it."""


class Nowhere(Exception):
    """There is no such checkpoint in the other tier either."""


def get_tuple(context: Context, given: RunnableConfig) -> Operation[CheckpointTuple | None]:
    """The newest checkpoint of a namespace, or the one a config names."""
    where = config.address(given)
    return read(context, where, context.keyspace.keys(where.thread_id))


def read(context: Context, where: config.Address, keys: Sequence[bytes]) -> Operation[CheckpointTuple | None]:
    """`get_tuple`.

    Args:
        context: The saver.
        where: The checkpoint; without an id, the newest.
        keys: The two of the thread; behind them, of a thread in front of a cold saver, those that say so if it is not to be believed, and
            if cold is not.

    Raises:
        HasIntents: The thread is not.
        Nowhere: Cold has no such checkpoint.
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
            had = {}  # another version of these lists, which the server believed to be known: ask for all of it
            continue
        context.chunk_cache.remember(data, {**dict.fromkeys(had), **used})
        return found
