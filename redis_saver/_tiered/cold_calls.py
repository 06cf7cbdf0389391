"""The calls that store checkpoints in cold."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint, CheckpointTuple, PendingWrite

from redis_saver._common import config, names
from redis_saver._tiered.requests import ColdCall


def calls_for(one: CheckpointTuple, thread: str) -> Generator[ColdCall, Any, None]:
    """The calls that store a checkpoint with its writes in a thread of cold."""
    where = config.address(one.config)
    stored = config.to_config(thread, where.checkpoint_ns, where.checkpoint_id or "")
    yield to_put(one, thread, versions_of_values(one.checkpoint))
    for order, (task, writes) in enumerate(by_task(one.pending_writes or ()).items()):
        special = [write for write in writes if write[0] in WRITES_IDX_MAP]
        regular = [write for write in writes if write[0] not in WRITES_IDX_MAP]
        for some in filter(None, (regular, special)):
            yield ColdCall("put_writes", (stored, some, task, f"{order:08}"))


def to_put(one: CheckpointTuple, thread: str, new_versions: ChannelVersions) -> ColdCall:
    """The call that stores a checkpoint in a thread of cold."""
    where = config.address(one.config)
    parent = config.address(one.parent_config).checkpoint_id if one.parent_config else ""
    target = config.to_config(thread, where.checkpoint_ns, parent or "")
    if not parent:
        del target["configurable"]["checkpoint_id"]
    metadata = dict(one.metadata)
    if metadata.get("thread_id") == where.thread_id:
        metadata["thread_id"] = thread
    return ColdCall("put", (target, one.checkpoint, metadata, new_versions))


def by_task(pending: Sequence[PendingWrite]) -> dict[str, list[tuple[str, Any]]]:
    """Writes by task, in the order of the tasks. A task's special writes come last."""
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
