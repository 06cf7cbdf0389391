"""Bringing checkpoints to cold as they are: threads that only hot has, and copies."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint, CheckpointTuple, PendingWrite

from redis_saver import config, listing, names, scripts
from redis_saver.requests import Call, Command
from redis_saver.tiers.model import Cold, Tiered, Tiers, by_choice


def all_in_cold(tiers: Tiers, thread: str | None) -> Tiered[None]:
    """See to it that cold has all of a thread, or of all threads."""

    def bring() -> Tiered[None]:
        found = [thread] if thread is not None else (yield from listing.collect(listing.scan_threads(tiers.hot)))
        for each in dict.fromkeys(found):
            keys = tiers.hot.keyspace.tier_keys(each)
            if (yield Command(("EXISTS", keys.doubts))):
                continue  # it is being written through tiers
            is_there, is_home = yield Command(("HMGET", keys.data_key, "@state", "@home"))
            if is_there and not is_home:
                yield from adopt(tiers, each)

    yield from by_choice(tiers, bring())


def adopt(tiers: Tiers, thread: str) -> Tiered[None]:
    """Bring a thread to cold that only hot has."""
    yield from fill(tiers, thread)
    yield Call(scripts.HOME, (tiers.hot.keyspace.keys(thread).data_key,), ())
    tiers.counts.adopted += 1


def fill(tiers: Tiers, thread: str) -> Tiered[None]:
    """Bring all to cold that hot has of a thread, parents before children."""
    asked = listing.query({"configurable": {"thread_id": thread}}, None, None, None)
    found = yield from listing.collect(listing.list_checkpoints(tiers.hot, asked))
    for one in reversed(found):
        yield from copy_to_cold(one, thread)


def copy_to_cold(one: CheckpointTuple, thread: str) -> Tiered[None]:
    """Put a checkpoint with its writes into a thread of cold."""
    yield from calls_for(one, thread)


def calls_for(one: CheckpointTuple, thread: str) -> Generator[Cold, Any, None]:
    """What puts a checkpoint with its writes into a thread of cold."""
    where = config.address(one.config)
    stored = config.to_config(thread, where.checkpoint_ns, where.checkpoint_id or "")
    yield to_put(one, thread, versions_of_values(one.checkpoint))
    for order, (task, writes) in enumerate(by_task(one.pending_writes or ()).items()):
        special = [write for write in writes if write[0] in WRITES_IDX_MAP]
        regular = [write for write in writes if write[0] not in WRITES_IDX_MAP]
        for some in filter(None, (regular, special)):
            yield Cold("put_writes", (stored, some, task, f"{order:08}"))


def to_put(one: CheckpointTuple, thread: str, new_versions: ChannelVersions) -> Cold:
    """What puts a checkpoint into a thread of cold."""
    where = config.address(one.config)
    parent = config.address(one.parent_config).checkpoint_id if one.parent_config else ""
    target = config.to_config(thread, where.checkpoint_ns, parent or "")
    if not parent:
        del target["configurable"]["checkpoint_id"]
    metadata = dict(one.metadata)
    if metadata.get("thread_id") == where.thread_id:
        metadata["thread_id"] = thread
    return Cold("put", (target, one.checkpoint, metadata, new_versions))


def by_task(pending: Sequence[PendingWrite]) -> dict[str, list[tuple[str, Any]]]:
    """Writes by task, in the order of their tasks; of each task the special ones last."""
    of_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in sorted(pending, key=lambda write: write[1] in WRITES_IDX_MAP):
        of_task.setdefault(task, []).append((channel, value))
    order = dict.fromkeys(task for task, _, _ in pending)
    return {task: of_task[task] for task in order}


def versions_of_values(checkpoint: Checkpoint) -> ChannelVersions:
    """The versions of the channels that have a value."""
    versions = checkpoint["channel_versions"]
    return {channel: versions[channel] for channel in checkpoint["channel_values"] if channel in versions}


def writes_of(where: config.Address) -> bytes:
    """The beginning of the members of a checkpoint's pending writes."""
    return names.task(where.checkpoint_ns, where.checkpoint_id or "", "")[:-1]
