"""The operation that reads one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import scripts
from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.replies import GetReply
from redis_saver._engine.requests import Argument, Call, Operation
from redis_saver._storage import chunks as chunked, codec, header as headers
from redis_saver._storage.chunk_cache import ChannelKey, KnownCheckpoint, KnownThread, Version
from redis_saver._storage.context import Context
from redis_saver.errors import DecodeError, decoding

MAX_TOLD = 100
"""Maximum number of chunks that `get_tuple` names as known. The server does not send these."""
WALK, MAX_WALKS = 10, 100
"""Number of ancestors in a row, each read by its id, that gives a warning, and maximum number of such walks."""
_walks: dict[config.Address, int] = {}
"""For a parent of a checkpoint that was read by its id: how many in a row were."""
_LOG = ThrottledLog("redis_saver.checkpoint", only_once=True)
BYTES_PER_PAGE = 4_000_000
"""Size at which a reading script ends its page, in bytes. It keeps a script from blocking the server for long."""


class HasIntents(Exception):
    """The thread has write intents, so cold may be newer than hot."""


class Nowhere(Exception):
    """Hot does not have the checkpoint, and knows that cold does not have it either."""


class Reply(NamedTuple):
    """The reply of `lua/checkpoint/get.lua`."""

    id: bytes
    ns: bytes
    header: bytes
    """Empty if the checkpoint is the one that the request expects. Then there are no values."""
    values: list[bytes | None]
    writes: list[bytes | None]
    chunks: list[bytes]
    tag: bytes
    fill: bytes


def get_tuple(context: Context, requested: RunnableConfig) -> Operation[CheckpointTuple | None]:
    """Read the newest checkpoint of a namespace, or the one that a config names."""
    address = config.address(requested)
    return read(context, address, context.keyspace.keys(address.thread_id))


def read(
    context: Context, address: config.Address, keys: Sequence[bytes], on_fill: Callable[[bytes], None] | None = None
) -> Operation[CheckpointTuple | None]:
    """Read a checkpoint.

    Args:
        context: The saver.
        address: The checkpoint; without an id, the newest.
        keys: The thread's two keys. Over two tiers also the keys of the write intents and of the dirty records.
        on_fill: Receives the token of the fill that stored the newest checkpoint in hot.

    Raises:
        HasIntents: The thread has write intents.
        Nowhere: Cold does not have the checkpoint either.
    """
    cache, (thread, ns, wanted) = context.chunk_cache, address
    known = cache.of(keys[1])
    had, known_chunks = known.of_namespace(ns)
    expected = _expected(known, ns)
    while True:
        stored = yield Call(scripts.GET, keys, _arguments(context, address, had, known.tag, expected))
        if stored is None:
            return None
        reply = _reply(thread, stored, on_fill, in_tiers=len(keys) > 2)
        if reply.header:
            expected = None
        elif expected:
            reply = reply._replace(header=expected.header, values=list(expected.values.values()))
        # An older checkpoint that somebody looks at is not cached.
        used = None if wanted or not cache.is_on else dict[ChannelKey, Version]()
        chunks = {**known_chunks, **codec.as_chunks(context, reply.chunks, thread)}
        if context.data_keys is not None and not expected:
            reply = Reply(*codec.opened(context, thread, reply, chunks))
        try:
            saved = codec.decode_tuple(context, thread, reply, chunks, had, used)
        except DecodeError as error:
            if not had or not isinstance(error.__cause__, chunked.ChunkMissing):
                raise
            # The server left out chunks that this process lacks, so ask for everything.
            had, known_chunks, expected = {}, {}, None
            continue
        if context.cipher is not None:
            context.note_writes(ns, saved.checkpoint["id"], saved.pending_writes or ())
        if wanted:
            _note_walk(address, saved)
        if used is not None:
            stored = expected or _known(ns, saved, reply)
            cache.remember(keys[1], {**dict.fromkeys(had), **used}, ns, stored, reply.tag, reply.tag)
        if on_fill and reply.fill:
            on_fill(reply.fill)
        return saved


def _expected(known: KnownThread, ns: str) -> KnownCheckpoint | None:
    """Return the newest checkpoint as this process knows it, or None if this process cannot decode it.

    If it is still the newest, the reply lacks its header and values. The header is decoded with the chunk of its names,
    so this process must know that chunk, too.
    """
    expected, its_names = known.checkpoints.get(ns), known.versions.get((ns, None))
    if expected is None or not expected.header or expected.chain != known.chain or its_names is None:
        return None
    return expected if its_names.field == expected.names_chunk else None


def _note_walk(address: config.Address, saved: CheckpointTuple) -> None:
    """Warn once if a caller reads ancestors one by one, as `BaseCheckpointSaver.get_delta_channel_history` does."""
    steps = _walks.pop(address, 0) + 1
    if steps == WALK:
        _LOG.warning(
            "%d ancestors of a checkpoint were read one by one, with a round trip each. If the saver is wrapped, the "
            "wrapper must pass on get_delta_channel_history and aget_delta_channel_history",
            steps,
        )
    if len(_walks) >= MAX_WALKS:
        _walks.clear()
    if saved.parent_config is not None:
        _walks[config.address(saved.parent_config)] = steps


def _arguments(
    context: Context,
    address: config.Address,
    had: Mapping[ChannelKey, Version],
    tag: bytes,
    expected: KnownCheckpoint | None,
) -> tuple[Argument, ...]:
    """Return the arguments of `lua/checkpoint/get.lua`."""
    roots, told = list[bytes](), list[bytes]()
    for version in had.values():
        told += version.right_edge()
        if version.stored.levels:
            roots.append(version.stored.value[1 : 1 + chunked.DIGEST])
    return scripts.GetArguments(
        ns=names.component(address.checkpoint_ns),
        id=names.component(address.checkpoint_id) if address.checkpoint_id else b"",
        refresh=b"1" if context.expiry.refresh_on_read else b"0",
        default=context.expiry.milliseconds or b"",
        roots=b"".join(roots),
        told=b"".join(told[:MAX_TOLD]),
        tag=tag if expected else b"",
        known=expected.field if expected else b"",
    )


def _reply(thread: str, stored: Any, on_fill: Callable[[bytes], None] | None, *, in_tiers: bool) -> Reply:
    """Return the reply of the script.

    Raises:
        HasIntents, Nowhere: As `read`.
        DecodeError: It is not a reply of the script.
    """
    if in_tiers and stored == GetReply.INTENTS:
        raise HasIntents
    if in_tiers and isinstance(stored, list) and stored[:1] == [GetReply.NOWHERE]:
        if on_fill and len(stored) > 1:
            on_fill(stored[1])
        raise Nowhere
    try:
        reply = Reply(*stored)
        if not (isinstance(reply.tag, bytes) and isinstance(reply.fill, bytes)):
            raise TypeError(f"{shown(reply.tag)} is not a tag, or {shown(reply.fill)} is not a token")
    except TypeError as error:
        raise decoding("a checkpoint of thread {!r}", thread).of(error) from error
    return reply


def _known(ns: str, saved: CheckpointTuple, reply: Reply) -> KnownCheckpoint:
    """Return the checkpoint that was read, as it is stored."""
    prefix = names.blob(ns)
    fields = [prefix + names.entry(*entry) for entry in saved.checkpoint["channel_versions"].items()]
    values = dict(zip(fields, [value or None for value in reply.values], strict=True))
    member = names.checkpoint(ns, saved.checkpoint["id"])
    return KnownCheckpoint(member, reply.header, headers.names_chunk_of(reply.header), values)
