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
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._checkpoint import writing
from redis_saver._checkpoint.guards import ANYBODY, GuardedScript, NewCheckpoint, remember_loop, with_parent, writer_of
from redis_saver._common import config as configs, names
from redis_saver._common.config import Address
from redis_saver._engine.requests import Argument, Operation
from redis_saver._engine.scripts import Script
from redis_saver._storage.chunks import digest
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import with_key
from redis_saver._tiered import context, scripts
from redis_saver._tiered.context import Tiers, for_cold, writes_of
from redis_saver._tiered.intents import Intent, Written, begin_intent, drop, end, enrolled
from redis_saver._tiered.reading import fetching
from redis_saver._tiered.requests import ColdCall, Tiered, attempt
from redis_saver.errors import ThreadDamaged

_NO_CONFIG: RunnableConfig = {"configurable": {}}
"""Its metadata are in those of the checkpoint already."""
_Store: TypeAlias = Callable[[GuardedScript], Operation[bool]]
"""Operation that writes to hot with a script. It returns False if the script refused."""


class _Write(NamedTuple):
    """A write of one record."""

    address: Address
    """The parent of a checkpoint to put, or the checkpoint of pending writes."""
    writer: bytes
    store: _Store
    member: bytes
    """Member of the index: the checkpoint, or the task."""
    behind: Script
    """Script of the operation that also records what cold lacks."""
    last: bytes
    """Last argument of that script."""
    lacked: Sequence[Address]
    """Checkpoints that hot may lack."""
    through: Script
    """Script of the operation that also ends the writer's intent."""
    checkpoint_id: str | None = None
    """The id of a checkpoint to put."""
    needed: bytes = b""
    """Field without which hot lacks something after a write through. Not needed if the thread was empty."""
    more: Sequence[Argument] = ()
    """First extra arguments of both scripts."""


def put(
    tiers: Tiers,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Tiered[RunnableConfig]:
    """Store a checkpoint."""
    address, settings = configs.address_and_settings(config)
    new = NewCheckpoint(address, settings, _NO_CONFIG, checkpoint, metadata, new_versions)
    hot, (thread, ns, parent_id), checkpoint_id = tiers.hot_context, address, checkpoint["id"]
    writer = writer_of(hot, thread, settings.owner)
    if hot.refuses_forks:
        writer = with_parent(writer, hot, new)
    if hot.check_values is not None:
        hot.check_values.check(hot.serde, writing.new_values(new))
    metadata = context.metadata_of(tiers, config, metadata)
    store = _keyed(hot, config, writing.store, new._replace(metadata=metadata))
    # A fill of an older id says nothing about writes of this checkpoint. So only the parent may be missing.
    lacked = [address] if parent_id and tiers.fills.of(thread, ns, checkpoint_id) else []
    parent, member = names.checkpoint(ns, parent_id) if parent_id else b"", names.checkpoint(ns, checkpoint_id)
    write = _Write(address, writer, store, member, scripts.PUT_BEHIND, parent, lacked, scripts.PUT_THROUGH)
    keeps_parent = b"1" if tiers.cold_is_postgres else b""
    write = write._replace(checkpoint_id=checkpoint_id, needed=parent or context.WHOLE, more=(keeps_parent,))

    is_in_hot: bool | None = yield from _store_behind(tiers, write)
    if not is_in_hot:
        intent = yield from _begin(tiers, write)
        # If hot does not know the thread, or if checkpoints were coalesced, cold may lack any value.
        versions = new_versions if intent.has_all else {**context.versions_of_values(checkpoint), **new_versions}
        yield ColdCall("put", (for_cold(config), checkpoint, metadata, versions))
        is_in_hot = yield from end(tiers, intent, _store_through(intent, write))
    if hot.refuses_forks:
        remember_loop(hot, new)
    if tiers.flush_queue and not is_in_hot:
        # After a fill, hot can acknowledge the next put. If the fill fails, the next reader raises the error.
        yield from attempt(fetching(tiers, address._replace(checkpoint_id=None)))
    return configs.to_config(thread, ns, checkpoint_id)


def put_writes(
    tiers: Tiers, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Tiered[None]:
    """Store the pending writes of a task."""
    new = writing.TaskWrites.of(config, writes, task_id, task_path)
    if not writes:
        return
    hot, address, prefix = tiers.hot_context, new.address, writes_of(new.address)
    writer, member = writer_of(hot, address.thread_id, new.settings.owner), prefix + names.component(task_id)
    if hot.check_values is not None:
        hot.check_values.check(hot.serde, writes)
    store = _keyed(hot, config, writing.store_writes, new)
    # Writes may come before their checkpoint. Hot takes them if it has the newest checkpoint.
    lacked = [address._replace(checkpoint_id=None), address]
    behind, through = scripts.PUT_WRITES_BEHIND, scripts.PUT_WRITES_THROUGH
    write = _Write(address, writer, store, member, behind, prefix, lacked, through)
    if not (yield from _store_behind(tiers, write)):
        intent = yield from _begin(tiers, write)
        yield ColdCall("put_writes", (for_cold(config), writes, task_id, task_path))
        yield from end(tiers, intent, _store_through(intent, write))


def _keyed(hot: Context, config: RunnableConfig, store: Callable[..., Operation[bool]], *arguments: Any) -> _Store:
    """Return the operation that writes to hot, with the thread's data key if hot encrypts."""
    if hot.data_keys is None:
        return partial(store, hot, *arguments)
    thread = configs.thread_id(config)
    return lambda by: with_key(hot, thread, lambda of: store(of, *arguments, by), creates=True, config=config)


def _store_behind(tiers: Tiers, write: _Write) -> Tiered[bool]:
    """Store a record only in hot. Returns False if the write has to go to cold first.

    Each further attempt begins with a fill of a checkpoint that hot may lack. The last one enrolls a thread that is
    older than the tiers.
    """
    if (queue := tiers.flush_queue) is None:
        return False
    thread, ns, _ = write.address
    by = GuardedScript(write.behind, tiers.hot_context.keyspace.tier_keys(thread).writing, write.writer)
    yield from tiers.backlog_count.admit_write()
    try:
        for attempts, missing in enumerate((None, *write.lacked, None)):
            with suppress(ThreadDamaged):  # the write goes to cold first, and repairs it
                if missing:
                    yield fetching(tiers, missing)
                elif attempts and not (yield from enrolled(tiers, thread)):
                    break
                fill = tiers.fills.of(thread, ns, write.checkpoint_id)
                token, field = (fill.token, fill.field) if fill else (b"", b"")
                if (yield from write.store(by._replace(more=(*write.more, token, field, write.last)))):
                    queue.note(thread)
                    return True
    except BaseException:
        queue.note(thread)  # hot may have the record in spite of the error, or of a cancellation
        raise
    tiers.backlog_count.wrote(-1)
    tiers.counts.written_through += 1
    return False


def _begin(tiers: Tiers, write: _Write) -> Tiered[Intent]:
    """Begin the intent of a write to cold."""
    fill = tiers.fills.of(*write.address[:2], write.checkpoint_id)
    written = Written(digest(write.member), b"" if write.checkpoint_id else write.last, fill)
    return begin_intent(tiers, write.address.thread_id, write.writer, written)


def _store_through(intent: Intent, write: _Write) -> Operation[bool]:
    """Store in hot what cold has just stored, and end the intent. Returns False if hot did not store it."""
    # Without the parent hot may lack values, and after a fill it lacks the task paths that order writes.
    if not (intent.is_pathless or (write.needed and not intent.is_here and not intent.newest)):
        more = (*write.more, intent.token, intent.newest, b"" if intent.newest else write.needed, intent.fill)
        with suppress(ThreadDamaged, *context.HOT_CANNOT_HAVE):  # then only cold has it
            return (yield from write.store(GuardedScript(write.through, intent.keys, ANYBODY, more)))
    yield from drop(intent)
    return False
