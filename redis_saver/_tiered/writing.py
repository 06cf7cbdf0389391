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
from redis_saver._checkpoint.guards import ANYBODY, remember_loop, writer_of, writer_of_put
from redis_saver._checkpoint.writing import StoringScript
from redis_saver._common import config as configs, names
from redis_saver._common.config import Address
from redis_saver._engine.requests import Operation
from redis_saver._engine.scripts import Script
from redis_saver._storage.chunks import digest
from redis_saver._tiered import context, scripts
from redis_saver._tiered.backlog import FlushQueue
from redis_saver._tiered.context import Tiers, for_cold, known_fill, writes_of
from redis_saver._tiered.intents import NOWHERE, Intent, begin_intent, end, end_intent
from redis_saver._tiered.reading import fetching
from redis_saver._tiered.requests import ColdCall, Tiered, attempt
from redis_saver.errors import ThreadDamaged

_Store: TypeAlias = Callable[[StoringScript], Operation[bool]]
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
    writer = writer_of_put(tiers.hot, address, settings, checkpoint, metadata)
    thread, ns, parent_id = address
    stored = configs.to_config(thread, ns, checkpoint["id"])
    parent = names.checkpoint(ns, parent_id) if parent_id else b""
    store = partial(writing.store, tiers.hot, address, settings, config, checkpoint, metadata, new_versions)
    if tiers.flush_queue:
        # A fill of an older id says nothing about writes of this checkpoint. So only the parent may be missing.
        lacked = [address] if parent_id and known_fill(tiers, address, checkpoint["id"]) else []
        by = partial(_behind, tiers, writer, address, scripts.PUT_BEHIND, parent, checkpoint["id"])
        if (yield from _store_behind(tiers, tiers.flush_queue, thread, store, by, lacked)):
            remember_loop(tiers.hot, address, checkpoint, metadata)
            return stored
    fill = known_fill(tiers, address, checkpoint["id"])
    intent = yield from begin_intent(tiers, thread, digest(names.checkpoint(ns, checkpoint["id"])), writer, fill=fill)
    # If hot does not know the thread, or if checkpoints were coalesced, cold may lack any value.
    versions = new_versions if intent.has_all else {**context.versions_of_values(checkpoint), **new_versions}
    yield ColdCall("put", (for_cold(config), checkpoint, metadata, versions))
    through = _store_through(tiers, thread, intent, store, scripts.PUT_THROUGH, parent or context.WHOLE)
    is_in_hot = yield from end(tiers, thread, intent, through)
    remember_loop(tiers.hot, address, checkpoint, metadata)
    if tiers.flush_queue and not is_in_hot:
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
    thread, ns, checkpoint_id = address
    writer = writer_of(tiers.hot, thread, settings.owner)
    store = partial(writing.store_writes, tiers.hot, address, settings, writes, task_id, task_path)
    if tiers.flush_queue:
        # Writes may come before their checkpoint. Hot takes them if it has the newest checkpoint.
        lacked = [address._replace(checkpoint_id=None), address]
        by = partial(_behind, tiers, writer, address, scripts.PUT_WRITES_BEHIND, writes_of(address))
        if (yield from _store_behind(tiers, tiers.flush_queue, thread, store, by, lacked)):
            return
    record = digest(names.task(ns, checkpoint_id or "", task_id))
    intent = yield from begin_intent(tiers, thread, record, writer, writes_of(address), known_fill(tiers, address))
    yield ColdCall("put_writes", (for_cold(config), writes, task_id, task_path))
    through = _store_through(tiers, thread, intent, store, scripts.PUT_WRITES_THROUGH)
    yield from end(tiers, thread, intent, through)


def _behind(
    tiers: Tiers, writer: bytes, address: Address, script: Script, last: bytes, checkpoint_id: str | None = None
) -> StoringScript:
    """Return the script that also records what cold lacks, with the fill that this process knows now."""
    fill = known_fill(tiers, address, checkpoint_id)
    more = (fill.token, fill.field, last) if fill else ("", "", last)
    return StoringScript(script, tiers.hot.keyspace.tier_keys(address.thread_id).writing, writer, more)


def _store_behind(
    tiers: Tiers,
    queue: FlushQueue,
    thread: str,
    store: _Store,
    by: Callable[[], StoringScript],
    lacked: Sequence[Address],
) -> Tiered[bool]:
    """Store a record only in hot.

    Args:
        tiers: The saver.
        queue: Its flush queue.
        thread: The thread.
        store: The operation.
        by: Returns the script, once per attempt.
        lacked: Checkpoints that hot may lack. Each further attempt begins with a fill of one of them.

    Returns:
        False if the write has to go to cold first.
    """
    yield from queue.wait_for_capacity()
    try:
        for missing in (None, *lacked):
            if missing:
                yield fetching(tiers, missing)
            with suppress(ThreadDamaged):  # the write goes to cold first, and repairs it
                if (yield from store(by())):
                    queue.note(thread)
                    return True
    except BaseException:
        queue.note(thread)  # hot may have the record in spite of the error
        raise
    tiers.backlog.wrote(-1)
    tiers.counts.written_through += 1
    return False


def _store_through(
    tiers: Tiers, thread: str, intent: Intent, store: _Store, script: Script, needed: bytes = b""
) -> Operation[bool]:
    """Store in hot what cold has just stored, and end the intent. Returns False if hot did not store it.

    Args:
        tiers: The saver.
        thread: The thread.
        intent: The writer's intent.
        store: The operation.
        script: Its script, which also ends the intent.
        needed: Field without which hot lacks something after this write. Not needed if the thread was empty.
    """
    # Without the parent hot may lack values, and after a fill it lacks the task paths that order writes.
    if not (intent.is_pathless or (needed and not intent.is_here and not intent.newest)):
        keys = tiers.hot.keyspace.tier_keys(thread)
        more = (intent.token, intent.newest, b"" if intent.newest else needed, intent.fill)
        with suppress(ThreadDamaged, *context.HOT_CANNOT_HAVE):  # then only cold has it
            return (yield from store(StoringScript(script, (*keys.writing, keys.flush), ANYBODY, more)))
    yield from end_intent(tiers, thread, intent, NOWHERE)
    return False
