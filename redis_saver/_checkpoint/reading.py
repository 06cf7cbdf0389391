"""The operation that reads one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.replies import GetReply
from redis_saver._engine.requests import Call, Operation
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec
from redis_saver._storage import header as headers
from redis_saver._storage.chunk_cache import ChannelKey, KnownCheckpoint, Version
from redis_saver._storage.chunks import DIGEST
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


def read(
    context: Context, where: config.Address, keys: Sequence[bytes], hear: Callable[[bytes], None] | None = None
) -> Operation[CheckpointTuple | None]:
    """`get_tuple`.

    Args:
        context: The saver.
        where: The checkpoint; without an id, the newest.
        keys: The thread's two keys. In front of a cold saver also those of the write intents and of the dirty records.
        hear: Takes the token of the fill by which hot learned that it has what is newest.

    Raises:
        HasIntents: The thread has write intents.
        Nowhere: Cold has no such checkpoint either.
    """
    thread, ns, checkpoint_id = where
    wanted = names.component(checkpoint_id) if checkpoint_id else b""
    arguments = (names.component(ns), wanted, *refresh_arguments(context))
    data = keys[1]
    known = context.chunk_cache.of(data)
    had = {place: version for place, version in known.versions.items() if place[0] == ns}
    expected, its_names = known.checkpoints.get(ns), had.get((ns, None))
    if expected and not (expected.header and expected.chain == known.chain and _names(its_names, expected)):
        expected = None
    while True:
        roots = b"".join([version.stored.value[1 : 1 + DIGEST] for version in had.values() if version.stored.levels])
        told = [field for version in had.values() for field in version.right_edge()]
        named = (known.tag, expected.field) if expected else (b"", b"")
        stored = yield Call(scripts.GET, keys, (*arguments, roots, b"".join(told[:MAX_TOLD]), *named))
        if stored is None:
            return None
        if len(keys) > 2 and stored == GetReply.INTENTS:
            raise HasIntents
        if len(keys) > 2 and isinstance(stored, list) and stored[:1] == [GetReply.NOWHERE]:
            if hear and len(stored) > 1:
                hear(stored[1])
            raise Nowhere
        chunks: dict[bytes, bytes] = {}
        for version in had.values():
            chunks.update(version.stored.chunks)
        used: dict[ChannelKey, Version] = {}
        try:
            with decoding("a checkpoint of thread {!r}", thread):
                *reply, flat, tag, fill = stored
                if not (isinstance(tag, bytes) and isinstance(fill, bytes)):
                    raise TypeError(f"{shown(tag)} is not a tag, or {shown(fill)} is not a token")
                is_known = expected is not None and reply[2] == b""
                if expected is not None and is_known:
                    reply[2], reply[3] = expected.header, list(expected.values.values())
                chunks.update(codec.as_chunks(context, flat, thread))
                found = codec.decode_tuple(context, thread, reply, chunks, had, used)
        except DecodeError as error:
            if not had or not isinstance(error.__cause__, chunked.ChunkMissing):
                raise
            had, expected = {}, None  # the server left out chunks of another version of these lists: ask for all of it
            continue
        # Of older checkpoints that somebody looks at none is remembered.
        newest = None if checkpoint_id else expected if is_known else _known(ns, found, reply)
        context.chunk_cache.remember(data, {**dict.fromkeys(had), **used}, ns, newest, tag, tag)
        if hear and fill:
            hear(fill)
        return found


def _names(names_chunk: Version | None, checkpoint: KnownCheckpoint) -> bool:
    """Whether a chunk with names is that of a checkpoint."""
    return names_chunk is not None and names_chunk.field == checkpoint.names_chunk


def _known(ns: str, found: CheckpointTuple, reply: Sequence[Any]) -> KnownCheckpoint:
    """The checkpoint that was read, as it is stored."""
    prefix = names.blob(ns)
    fields = [prefix + names.entry(*entry) for entry in found.checkpoint["channel_versions"].items()]
    values = [value or None for value in reply[3]]
    its_values = dict(zip(fields, values, strict=True))
    member = names.checkpoint(ns, found.checkpoint["id"])
    return KnownCheckpoint(member, reply[2], headers.names_chunk_of(reply[2]), its_values)
