"""Write-behind: hot acknowledges a write before cold has it.

The scripts do that only if they know that hot lacks nothing (`lua/lib/write_behind.lua`): it has all of the thread, or the
newest checkpoint of the namespace and the parent. If it does not, cold is read once, which fills hot. If the script refuses the write again, it goes to cold
first, as with write-through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._checkpoint import writing
from redis_saver._checkpoint.writing import Variant
from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Operation
from redis_saver._engine.scripts import Script
from redis_saver._tiered import reading
from redis_saver._tiered.cold_calls import writes_of
from redis_saver._tiered.context import Queue, Tiers
from redis_saver._tiered.flush import run as flushing
from redis_saver._tiered.requests import Tiered
from redis_saver.errors import ThreadDamaged

Store: TypeAlias = Callable[[Variant], Operation[bool]]
"""An operation that stores a record in hot, by a variant of its script. It returns False if the script refused."""


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

    def store(variant: Variant) -> Operation[bool]:
        return writing.store(tiers.hot, where, given, checkpoint, metadata, new_versions, variant)

    return (yield from _store(tiers, queue, where, store, scripts.PUT_BEHIND, parent))


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

    def store(variant: Variant) -> Operation[bool]:
        return writing.store_writes(tiers.hot, where, given, writes, task_id, task_path, variant)

    return (yield from _store(tiers, queue, where, store, scripts.PUT_WRITES_BEHIND, writes_of(where)))


def _store(
    tiers: Tiers, queue: Queue, where: config.Address, store: Store, script: Script, last: bytes
) -> Tiered[bool]:
    """Store a record in hot, by a script that also notes that cold lacks it.

    Args:
        tiers: The saver.
        queue: Its flush queue.
        where: The checkpoint.
        store: The operation.
        script: The variant of its script.
        last: The last argument of that.
    """
    yield from queue.wait_for_capacity()
    try:
        is_stored = yield from _fill_and_try(tiers, where, store, script, last)
    except BaseException:
        queue.note(where.thread_id)  # hot may have it in spite of the error
        raise
    finally:
        tiers.negative_cache.pop(where.thread_id, None)
    if is_stored:
        queue.note(where.thread_id)
    else:
        tiers.backlog.wrote(-1)
        tiers.counts.written_through += 1
    return is_stored


def _fill_and_try(tiers: Tiers, where: config.Address, store: Store, script: Script, last: bytes) -> Tiered[bool]:
    """As `_try`. If the script refuses, fill hot from cold and try once more."""
    if (yield from _try(tiers, where, store, script, last)):
        return True
    wanted = [config.to_config(*where[:2], "")] if script is scripts.PUT_BEHIND else []
    if where.checkpoint_id:
        wanted.append(config.to_config(*where[:2], where.checkpoint_id))
    for one in wanted:
        yield from reading.get_tuple(tiers, one)
    return (yield from _try(tiers, where, store, script, last))


def _try(tiers: Tiers, where: config.Address, store: Store, script: Script, last: bytes) -> Tiered[bool]:
    """Whether hot takes the record."""
    known_empty = tiers.negative_cache.get(where.thread_id)
    more: tuple[Argument, ...] = ("", "", last)
    if known_empty and known_empty.holds_for(where.checkpoint_ns):
        more = (known_empty.token, known_empty.field, last)
    try:
        return (yield from store(Variant(script, tiers.hot.keyspace.tier_keys(where.thread_id).writing, more)))
    except ThreadDamaged:  # cold may have it
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
