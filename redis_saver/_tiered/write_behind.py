"""Write-behind: hot acknowledges a write before cold has it.

The scripts do that only if they know that hot lacks nothing (`lua/lib/write_behind.lua`). Hot has all of the thread, or
the newest checkpoint of the namespace and the parent; and cold has no pending writes of the checkpoint that hot lost.
If the script refuses, hot is filled with what may be missing. If it refuses again, the write goes to cold first, as
with write-through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._checkpoint import writing
from redis_saver._checkpoint.writing import Variant
from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.scripts import Script
from redis_saver._tiered.cold_calls import writes_of
from redis_saver._tiered.context import Queue, Tiers, known_fill
from redis_saver._tiered.flush import run as flushing
from redis_saver._tiered.reading import fetching
from redis_saver._tiered.requests import Tiered
from redis_saver.errors import ThreadDamaged


def put(
    tiers: Tiers,
    queue: Queue,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Tiered[bool]:
    """Store a checkpoint in hot. Returns False if it has to go to cold first."""
    where = config.address(given)
    parent = names.checkpoint(where.checkpoint_ns, where.checkpoint_id) if where.checkpoint_id else b""

    def store() -> Tiered[bool]:
        variant = _variant(tiers, where, scripts.PUT_BEHIND, parent, checkpoint["id"])
        return writing.store(tiers.hot, where, given, checkpoint, metadata, new_versions, variant)

    # A fill tells nothing of this checkpoint's writes, as its id is older. So only the parent may be missing.
    is_helped = where.checkpoint_id and known_fill(tiers, where, checkpoint["id"])
    return (yield from _store(tiers, queue, where, store, [where] if is_helped else []))


def put_writes(
    tiers: Tiers,
    queue: Queue,
    given: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> Tiered[bool]:
    """Store the pending writes of a task in hot. Returns False if they have to go to cold first."""
    where = config.address(given)

    def store() -> Tiered[bool]:
        variant = _variant(tiers, where, scripts.PUT_WRITES_BEHIND, writes_of(where))
        return writing.store_writes(tiers.hot, where, given, writes, task_id, task_path, variant)

    # The checkpoint may not be there yet: then hot takes them if it has the newest.
    return (yield from _store(tiers, queue, where, store, [where._replace(checkpoint_id=None), where]))


def _variant(
    tiers: Tiers, where: config.Address, script: Script, last: bytes, checkpoint_id: str | None = None
) -> Variant:
    """The script that also notes that cold lacks a record, with what this process knows of the thread."""
    fill = known_fill(tiers, where, checkpoint_id)
    more = (fill.token, fill.field, last) if fill else ("", "", last)
    return Variant(script, tiers.hot.keyspace.tier_keys(where.thread_id).writing, more)


def _store(
    tiers: Tiers,
    queue: Queue,
    where: config.Address,
    store: Callable[[], Tiered[bool]],
    lacked: Sequence[config.Address],
) -> Tiered[bool]:
    """Store a record in hot.

    Args:
        tiers: The saver.
        queue: Its flush queue.
        where: The checkpoint.
        store: The operation. It returns False if the script refused.
        lacked: The checkpoints to fill hot with, one after the other, before it is tried again.
    """
    yield from queue.wait_for_capacity()
    try:
        is_stored = yield from _attempt(store)
        for address in lacked:
            if not is_stored:
                yield fetching(tiers, address)
                is_stored = yield from _attempt(store)
    except BaseException:
        queue.note(where.thread_id)  # hot may have it in spite of the error
        raise
    if is_stored:
        queue.note(where.thread_id)
    else:
        tiers.backlog.wrote(-1)
        tiers.counts.written_through += 1
    return is_stored


def _attempt(store: Callable[[], Tiered[bool]]) -> Tiered[bool]:
    """Store a record, unless hot's thread is damaged: cold may have it."""
    try:
        return (yield from store())
    except ThreadDamaged:
        return False


def delete_thread(tiers: Tiers, queue: Queue, thread: str) -> Tiered[bool]:
    """Delete a thread in hot. Returns False if it has to be deleted in cold first."""
    try:
        if not (yield from flushing.put_tombstone(tiers, thread)):
            return False
    except BaseException:
        queue.note(thread)  # hot may have done it in spite of the error
        raise
    tiers.backlog.wrote(1)
    queue.note(thread)
    return True
