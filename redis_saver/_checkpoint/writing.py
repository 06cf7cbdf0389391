"""Operations that write a checkpoint or its pending writes."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._checkpoint.pruning import Limit, trim
from redis_saver._checkpoint.put_request import PutRequest
from redis_saver._common import config, limits, names
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine import scripts
from redis_saver._engine.replies import PutReply
from redis_saver._engine.requests import Argument, Call, Operation
from redis_saver._engine.scripts import Script
from redis_saver._storage import codec, compression
from redis_saver._storage.chunk_cache import WRITTEN, fields_in, written_version
from redis_saver._storage.chunks import ZSTD
from redis_saver._storage.context import Context, default_ttl
from redis_saver.errors import decoding

_LOG = ThrottledLog("redis_saver.checkpoint")


class Variant(NamedTuple):
    """A script that does what an operation's own does, and then more; for who runs the operation by it."""

    script: Script
    keys: Sequence[bytes]
    more: Sequence[Argument] = ()
    """What it takes behind the arguments of the operation's own."""

    def call(self, arguments: Sequence[Argument]) -> Call:
        """The call with the operation's arguments."""
        return Call(self.script, self.keys, (*arguments, *self.more))


def put(
    context: Context,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Operation[RunnableConfig]:
    """Store a checkpoint."""
    where = config.address(given)
    yield from store(context, where, given, checkpoint, metadata, new_versions)
    return config.to_config(where.thread_id, where.checkpoint_ns, checkpoint["id"])


def store(
    context: Context,
    where: Address,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    variant: Variant | None = None,
) -> Operation[bool]:
    """Store a checkpoint. If the server turns out not to have some values and chunks, send it again with them.

    If the thread is over its history limit, the script says so, and old checkpoints are removed (`pruning.trim`).

    Args:
        context: The saver.
        where: The parent, as the config says.
        given: The config.
        checkpoint: The checkpoint.
        metadata: Its metadata.
        new_versions: The versions of the channels that were written.
        variant: What stores it, in place of `lua/checkpoint/put.lua`.

    Returns:
        False where the variant refused that.
    """
    check_names(context, where, str(checkpoint["id"]))
    keys = context.keyspace.keys(where.thread_id)
    cached = context.chunk_cache.of(keys.data_key)
    request = PutRequest(context, where, given, checkpoint, metadata, new_versions, cached)
    by = variant or Variant(scripts.PUT, keys)
    while isinstance(missing := (yield by.call(request.arguments())), list) and missing:
        _LOG.info(
            "the server no longer has values of thread %s, which expired or was deleted, pruned or restored; they are sent again",
            shown(where.thread_id),
        )
        context.chunk_cache.forget(keys.data_key)
        with decoding("what put lacks of thread {!r}", where.thread_id):
            request.include(missing)
    if missing == PutReply.REFUSED:
        return False
    context.chunk_cache.remember(keys.data_key, request.stored(), where.checkpoint_ns, request.known_table())
    with decoding("what put answered about thread {!r}", where.thread_id):
        keep_last = operator.index(missing or 0)
    if keep_last:
        ns = where.checkpoint_ns
        written = frozenset(((ns, str(checkpoint["id"])), (ns, where.checkpoint_id or "")))
        dirty = context.keyspace.tier_keys(where.thread_id).dirty if variant else b""
        yield from trim(context, where.thread_id, Limit(keep_last, written, dirty))
    return True


def check_names(context: Context, where: Address, checkpoint_id: str = "") -> None:
    """Check where something is to be written.

    Raises:
        LimitExceeded: A name is too long.
    """
    limits.check_name(context.limits, where.thread_id, "a thread")
    limits.check_name(context.limits, where.checkpoint_ns, "a namespace")
    for one in (where.checkpoint_id or "", checkpoint_id):
        limits.check_name(context.limits, one, "a checkpoint")


def put_writes(
    context: Context, given: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Operation[None]:
    """Store the pending writes of a task."""
    where = address_of_writes(given)
    if writes:
        yield from store_writes(context, where, given, writes, task_id, task_path)


def address_of_writes(given: RunnableConfig) -> Address:
    """The checkpoint of a task's writes.

    Raises:
        TypeError, ValueError: The config names none, or what else it says makes no sense.
    """
    where = config.address(given)
    if not where.checkpoint_id:
        raise ValueError(
            'config["configurable"] has no "checkpoint_id": pass the config of the checkpoint that the pending writes belong to'
        )
    config.check_ours(given)  # also what only the next put takes
    return where


def store_writes(
    context: Context,
    where: Address,
    given: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    variant: Variant | None = None,
) -> Operation[bool]:
    """Store a non-empty list of pending writes; as `store`, by `lua/checkpoint/put_writes.lua` or a variant of it."""
    check_names(context, where)
    limits.check_name(context.limits, task_id, "a task")
    chunks: dict[bytes, bytes] = {}
    regular, special = codec.encode_writes(context, writes, task_path, chunks)
    member = names.task(where.checkpoint_ns, where.checkpoint_id or "", task_id)
    arguments: list[Argument] = [member, b"".join(regular), len(regular)]
    arguments += (default_ttl(context), config.thread_ttl(given) or b"")
    for index, record in special.items():
        arguments += (index, record)
    keys = context.keyspace.keys(where.thread_id)
    by = variant or Variant(scripts.PUT_WRITES, keys)
    if not chunks:
        return (yield by.call(arguments)) != PutReply.REFUSED  # type: ignore[no-any-return]
    stored = fields_in(context.chunk_cache.of(keys.data_key))
    while isinstance(missing := (yield by.call([*arguments, *_packed(chunks, stored)])), list):
        with decoding("what put_writes lacks of thread {!r}", where.thread_id):
            if not stored:
                raise ValueError(f"the server asks again for {len(missing)} chunks that were sent to it")
        context.chunk_cache.forget(keys.data_key)
        stored = frozenset()
    if missing == PutReply.REFUSED:
        return False
    # The put that follows need not send them.
    key = where.checkpoint_ns, WRITTEN
    last = context.chunk_cache.of(keys.data_key).get(key)
    context.chunk_cache.remember(keys.data_key, {key: written_version(chunks, last)})
    return True


def _packed(chunks: Mapping[bytes, bytes], stored: Collection[bytes]) -> list[Argument]:
    """The chunks as `lua/checkpoint/put_writes.lua` takes them, without those that are believed to be stored."""
    pairs: list[Argument] = []
    for field, chunk in chunks.items():
        if field not in stored:
            pairs += (field, compression.compress(chunk) if field[:1] == ZSTD else chunk)
    return pairs
