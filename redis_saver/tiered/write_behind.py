"""Write-behind: what hot acknowledges before cold has it.

That is done only where the scripts know that nothing is missing (`lua/lib_write_behind.lua`): hot has all of the thread, or what is
newest in the namespace and the parent. Where it has not, cold is read once, which brings that back; what is refused then, too, goes to cold
first, as write-through does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver import config, names
from redis_saver.checkpoint import writing
from redis_saver.engine import scripts
from redis_saver.engine.requests import Argument, Operation
from redis_saver.engine.scripts import Script
from redis_saver.errors import ThreadDamaged
from redis_saver.tiered import instead, reading
from redis_saver.tiered.cold_calls import writes_of
from redis_saver.tiered.context import Queue, Tiers
from redis_saver.tiered.flush import run as flushing
from redis_saver.tiered.requests import Tiered

_REFUSED = {scripts.PUT_BEHIND: 0, scripts.PUT_WRITES_BEHIND: -1}


def put(
    tiers: Tiers,
    queue: Queue,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Tiered[bool]:
    """Store a checkpoint in hot; False where it has to go to cold first."""
    where = config.address(given)
    parent = names.checkpoint(where.checkpoint_ns, where.checkpoint_id) if where.checkpoint_id else b""
    operation = lambda: writing.put(tiers.hot, given, checkpoint, metadata, new_versions)  # noqa: E731
    return (yield from _store(tiers, queue, where, operation, scripts.PUT_BEHIND, parent))


def put_writes(
    tiers: Tiers,
    queue: Queue,
    given: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> Tiered[bool]:
    """Store the pending writes of a task in hot; False where they have to go to cold first."""
    where = config.address(given)
    operation = lambda: writing.put_writes(tiers.hot, given, writes, task_id, task_path)  # noqa: E731
    return (yield from _store(tiers, queue, where, operation, scripts.PUT_WRITES_BEHIND, writes_of(where)))


def _store(
    tiers: Tiers,
    queue: Queue,
    where: config.Address,
    operation: Callable[[], Operation[Any]],
    script: Script,
    last: bytes,
) -> Tiered[bool]:
    """Run an operation that stores a record, by the script that notes it, too."""
    yield from queue.wait_for_capacity()
    try:
        stored = yield from _brought_back_and_tried(tiers, where, operation, script, last)
    except BaseException:
        queue.note(where.thread_id, 0)  # it may be there all the same
        raise
    finally:
        tiers.negative_cache.pop(where.thread_id, None)
    if stored is None:
        tiers.counts.written_through += 1
        return False
    queue.note(where.thread_id, stored)
    return True


def _brought_back_and_tried(
    tiers: Tiers, where: config.Address, operation: Callable[[], Operation[Any]], script: Script, last: bytes
) -> Tiered[int | None]:
    """As `_tried`; where that is refused, once more after what hot lacks was brought back."""
    if (stored := (yield from _tried(tiers, where, operation(), script, last))) is None:
        wanted = [config.to_config(*where[:2], "")] if script is scripts.PUT_BEHIND else []
        if where.checkpoint_id:
            wanted.append(config.to_config(*where[:2], where.checkpoint_id))
        for one in wanted:
            yield from reading.get_tuple(tiers, one)
        stored = yield from _tried(tiers, where, operation(), script, last)
    return stored


def _tried(
    tiers: Tiers, where: config.Address, operation: Operation[Any], script: Script, last: bytes
) -> Tiered[int | None]:
    """How many records were stored; None: it was refused."""
    keys = tiers.hot.keyspace.tier_keys(where.thread_id).writing
    known_empty = tiers.negative_cache.get(where.thread_id)
    more: tuple[Argument, ...] = ("", "", last)
    if known_empty and known_empty.holds_for(where.checkpoint_ns):
        more = (known_empty.token, known_empty.field, last)
    try:
        reply = yield from instead.by(operation, script, keys, more)
    except ThreadDamaged:  # cold may have it
        return None
    if reply == _REFUSED[script]:
        return None
    return 0 if reply is None else 1


def delete_thread(tiers: Tiers, queue: Queue, thread: str) -> Tiered[bool]:
    """Delete a thread in hot; False where it has to be deleted in cold first."""
    try:
        if not (yield from flushing.put_tombstone(tiers, thread)):
            return False
    except BaseException:
        queue.note(thread, 0)  # it may be so all the same
        raise
    queue.note(thread, 1)
    return True
