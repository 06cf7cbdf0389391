"""Writes, in both modes: to hot with a later flush (write-behind), or to cold and then to hot (write-through).

In write-behind mode a script checks that hot has everything that the write needs (`lua/lib/write_behind.lua`). Hot must
have all of the thread, or the newest checkpoint of the namespace and the parent, and all pending writes of the
checkpoint. If the script refuses, a fill copies the missing checkpoints to hot. If the script refuses again, the write
goes to cold first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._checkpoint import writing
from redis_saver._checkpoint.guards import ANYBODY, GuardedScript, remember_loop, with_parent, writer_of
from redis_saver._common import config as configs, names
from redis_saver._common.config import Address
from redis_saver._engine.requests import Operation
from redis_saver._engine.scripts import Script
from redis_saver._storage.chunks import digest
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import with_key
from redis_saver._tiered import context, scripts
from redis_saver._tiered.context import Tiers, for_cold, writes_of
from redis_saver._tiered.flush_queue import FlushQueue
from redis_saver._tiered.intents import Intent, begin_intent, drop, end, enrolled
from redis_saver._tiered.reading import fetching
from redis_saver._tiered.requests import ColdCall, Tiered, attempt
from redis_saver.errors import ThreadDamaged

_NO_CONFIG: RunnableConfig = {"configurable": {}}
"""Its metadata are in those of the checkpoint already."""
_Store: TypeAlias = Callable[[GuardedScript], Operation[bool]]
"""Operation that writes to hot with a script. It returns False if the script refused."""


def put(
    tiers: Tiers,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Tiered[RunnableConfig]:
    """Store a checkpoint."""
    address, settings = configs.address_and_settings(config)
    hot, (thread, ns, parent_id) = tiers.hot_context, address
    writer = writer_of(hot, thread, settings.owner)
    if hot.refuses_forks:
        writer = with_parent(writer, hot, address, settings, checkpoint, metadata)
    if hot.check_values is not None:
        hot.check_values.check(hot.serde, writing.new_values(checkpoint, new_versions))
    stored, metadata = configs.to_config(thread, ns, checkpoint["id"]), context.metadata_of(tiers, config, metadata)
    parent = names.checkpoint(ns, parent_id) if parent_id else b""
    stores = _keyed(hot, config, writing.store, address, settings, _NO_CONFIG, checkpoint, metadata, new_versions)
    keeps_parent = b"1" if tiers.cold_is_postgres else b""

    def store(by: GuardedScript) -> Operation[bool]:
        return stores(by._replace(more=(keeps_parent, *by.more)))

    is_in_hot: bool | None = False
    if queue := tiers.flush_queue:
        # A fill of an older id says nothing about writes of this checkpoint. So only the parent may be missing.
        lacked = [address] if parent_id and tiers.fills.of(thread, ns, checkpoint["id"]) else []
        by = GuardedScript(scripts.PUT_BEHIND, hot.keyspace.tier_keys(thread).writing, writer)
        is_in_hot = yield from _store_behind(tiers, queue, address, store, by, parent, lacked, checkpoint["id"])
    if not is_in_hot:
        fill = tiers.fills.of(thread, ns, checkpoint["id"])
        intent = yield from begin_intent(
            tiers, thread, digest(names.checkpoint(ns, checkpoint["id"])), writer, fill=fill
        )
        # If hot does not know the thread, or if checkpoints were coalesced, cold may lack any value.
        versions = new_versions if intent.has_all else {**context.versions_of_values(checkpoint), **new_versions}
        yield ColdCall("put", (for_cold(config), checkpoint, metadata, versions))
        through = _store_through(intent, store, scripts.PUT_THROUGH, parent or context.WHOLE)
        is_in_hot = yield from end(tiers, intent, through)
    if hot.refuses_forks:
        remember_loop(hot, address, checkpoint, metadata)
    if queue and not is_in_hot:
        # After a fill, hot can acknowledge the next put. If the fill fails, the next reader raises the error.
        yield from attempt(fetching(tiers, address._replace(checkpoint_id=None)))
    return stored


def put_writes(
    tiers: Tiers, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Tiered[None]:
    """Store the pending writes of a task."""
    address, settings = writing.address_of_writes(config)
    if not writes:
        return
    hot, (thread, ns, _), prefix = tiers.hot_context, address, writes_of(address)
    writer = writer_of(hot, thread, settings.owner)
    if hot.check_values is not None:
        hot.check_values.check(hot.serde, writes)
    store = _keyed(hot, config, writing.store_writes, address, settings, writes, task_id, task_path)
    if queue := tiers.flush_queue:
        # Writes may come before their checkpoint. Hot takes them if it has the newest checkpoint.
        by = GuardedScript(scripts.PUT_WRITES_BEHIND, hot.keyspace.tier_keys(thread).writing, writer)
        lacked = [address._replace(checkpoint_id=None), address]
        if (yield from _store_behind(tiers, queue, address, store, by, prefix, lacked)):
            return
    record, fill = digest(prefix + names.component(task_id)), tiers.fills.of(thread, ns)
    intent = yield from begin_intent(tiers, thread, record, writer, prefix, fill)
    yield ColdCall("put_writes", (for_cold(config), writes, task_id, task_path))
    yield from end(tiers, intent, _store_through(intent, store, scripts.PUT_WRITES_THROUGH))


def _keyed(hot: Context, config: RunnableConfig, store: Callable[..., Operation[bool]], *arguments: Any) -> _Store:
    """Return the operation that writes to hot, with the thread's data key if hot encrypts."""
    if hot.data_keys is None:
        return partial(store, hot, *arguments)
    thread = configs.thread_id(config)
    return lambda by: with_key(hot, thread, lambda of: store(of, *arguments, by), creates=True, config=config)


def _store_behind(
    tiers: Tiers,
    queue: FlushQueue,
    address: Address,
    store: _Store,
    by: GuardedScript,
    last: bytes,
    lacked: Sequence[Address],
    checkpoint_id: str | None = None,
) -> Tiered[bool]:
    """Store a record only in hot.

    Args:
        tiers: The saver.
        queue: Its flush queue.
        address: The parent of a checkpoint to put, or the checkpoint of pending writes.
        store: The operation.
        by: Its script, which also records what cold lacks.
        last: The last argument of the script.
        lacked: Checkpoints that hot may lack. Each further attempt begins with a fill of one of them. The last attempt
            enrolls a thread that is older than the tiers.
        checkpoint_id: The id of a checkpoint to put.

    Returns:
        False if the write has to go to cold first.
    """
    thread, ns, _ = address
    yield from queue.wait_for_capacity()
    try:
        for attempts, missing in enumerate((None, *lacked, None)):
            with suppress(ThreadDamaged):  # the write goes to cold first, and repairs it
                if missing:
                    yield fetching(tiers, missing)
                elif attempts and not (yield from enrolled(tiers, thread)):
                    break
                fill = tiers.fills.of(thread, ns, checkpoint_id)
                more = (fill.token, fill.field, last) if fill else ("", "", last)
                if (yield from store(by._replace(more=more))):
                    queue.note(thread)
                    return True
    except BaseException:
        queue.note(thread)  # hot may have the record in spite of the error
        raise
    tiers.backlog_count.wrote(-1)
    tiers.counts.written_through += 1
    return False


def _store_through(intent: Intent, store: _Store, script: Script, needed: bytes = b"") -> Operation[bool]:
    """Store in hot what cold has just stored, and end the intent. Returns False if hot did not store it.

    Args:
        intent: The writer's intent.
        store: The operation.
        script: Its script, which also ends the intent.
        needed: Field without which hot lacks something after this write. Not needed if the thread was empty.
    """
    # Without the parent hot may lack values, and after a fill it lacks the task paths that order writes.
    if not (intent.is_pathless or (needed and not intent.is_here and not intent.newest)):
        more = (intent.token, intent.newest, b"" if intent.newest else needed, intent.fill)
        with suppress(ThreadDamaged, *context.HOT_CANNOT_HAVE):  # then only cold has it
            return (yield from store(GuardedScript(script, intent.keys, ANYBODY, more)))
    yield from drop(intent)
    return False
