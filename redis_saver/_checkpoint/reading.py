"""Operations that read one checkpoint or walk its ancestors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._engine import scripts
from redis_saver._engine.replies import GetReply
from redis_saver._engine.requests import Argument, Call, Operation
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec
from redis_saver._storage.chunk_cache import ChannelKey, Version
from redis_saver._storage.context import Context, refresh_arguments
from redis_saver.errors import DecodeError, decoding

ANCESTORS_PER_PAGE = 200
MAX_TOLD = 100
"""How many chunks `get_tuple` says it has; the server answers those it does not know of."""
BYTES_PER_PAGE = 4_000_000
"""A reading script ends its page behind the checkpoint with which it holds so many bytes, so that the server is not held."""


class Ancestor(NamedTuple):
    """What one ancestor holds of the channels of a walk."""

    checkpoint_id: str
    seeds: dict[str, bytes]
    writes: list[codec.Write]


class Walk(NamedTuple):
    """The ancestors of a checkpoint, nearest first, and the chunks of their seeds."""

    ancestors: list[Ancestor]
    chunks: dict[bytes, bytes]


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


def walk(
    context: Context,
    where: config.Address,
    channels: Sequence[str],
    refresh: tuple[bytes, int | bytes] = (b"0", b""),
) -> Operation[Walk]:
    """The ancestors of a checkpoint, nearest first, until each channel has met its nearest stored value (or the root).

    Args:
        context: The saver.
        where: The checkpoint; without an id, the newest.
        channels: The channels.
        refresh: Whether this moves the deadline, as `refresh_arguments` says it.
    """
    thread, ns, checkpoint_id = where
    keys = context.keyspace.keys(thread)
    seen = {names.component(checkpoint_id)} if checkpoint_id else set[bytes]()
    found, chunks = list[Ancestor](), dict[bytes, bytes]()
    remaining = {names.component(channel): channel for channel in channels}
    position, target = names.component(checkpoint_id) if checkpoint_id else b"", b"1"
    while remaining:
        arguments: list[Argument] = [names.component(ns), position, target, ANCESTORS_PER_PAGE, BYTES_PER_PAGE]
        arguments += refresh
        for escaped, channel in remaining.items():
            arguments += (names.encode(channel), escaped)
        answer = yield Call(scripts.HISTORY, keys, arguments)
        with decoding("the ancestors of a checkpoint of thread {!r}", thread):
            position, of_page, *page = answer
            chunks.update(codec.as_chunks(context, of_page, thread))
            if not isinstance(position, bytes) or (position and not page):
                raise ValueError(f"{len(page)} ancestors, and others from {shown(position)} on")
            for raw_id, raw_seeds, raw_writes in page:
                if raw_id in seen:
                    position = (
                        b""  # a caller put an ancestor again, below its own descendant: all behind it was collected
                    )
                    break
                seen.add(raw_id)
                pairs = zip(raw_seeds[::2], raw_seeds[1::2], strict=True)
                wanted = set(remaining.values())
                seeds = {remaining.pop(escaped): value for escaped, value in pairs}
                writes = codec.decode_writes(raw_writes, f"an ancestor in thread {shown(thread)}")
                writes = [write for write in writes if write.channel in wanted]
                found.append(Ancestor(names.name_of(raw_id), seeds, writes))
        if not position:
            break
        target = b"0"
    return Walk(found, chunks)


def get_delta_channel_history(
    context: Context, given: RunnableConfig, channels: Sequence[str]
) -> Operation[Mapping[str, DeltaChannelHistory]]:
    """Seeds and writes of channels, as `BaseCheckpointSaver.get_delta_channel_history` defines them."""
    where = config.address(given)
    ancestors, chunks = yield from walk(context, where, channels, refresh_arguments(context))
    place = f"thread {shown(where.thread_id)}"
    allowance = Allowance(context.limits, place)
    writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    for ancestor in reversed(ancestors):
        for write in ancestor.writes:
            writes[write.channel].append(codec.load_write(context, write, place, allowance))
        for channel, value in ancestor.seeds.items():
            seeds[channel] = codec.decode_value(context, value, chunks, channel, place, allowance)
    histories: dict[str, DeltaChannelHistory] = {channel: {"writes": writes[channel]} for channel in channels}
    for channel, seed in seeds.items():
        histories[channel]["seed"] = seed
    return histories
