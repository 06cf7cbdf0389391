"""The calls that store checkpoints in cold."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint, CheckpointTuple, PendingWrite

from redis_saver._common import config, names
from redis_saver._engine.requests import Command, Operation
from redis_saver._storage import codec
from redis_saver._storage.context import Context
from redis_saver._storage.framing import unpack
from redis_saver._tiered.requests import ColdCall
from redis_saver.errors import decoding

Paths: TypeAlias = Mapping[tuple[str, str, str], str]
"""Paths of tasks by namespace, checkpoint id and task id. They order pending writes, and LangGraph's interface to read does not tell them."""


def paths_in_hot(hot: Context, thread: str, checkpoints: Iterable[CheckpointTuple]) -> Operation[Paths]:
    """Read the paths that hot knows of the tasks with pending writes."""
    data, paths = hot.keyspace.keys(thread).data_key, dict[tuple[str, str, str], str]()
    filled = yield Command(("HGET", data, "@no_task_path"))
    with decoding("what hot knows of the tasks of thread {!r}", thread):
        pathless = unpack(filled or b"")
    for checkpoint_tuple in checkpoints:
        address = config.address(checkpoint_tuple.config)
        ns, checkpoint_id = address.checkpoint_ns, address.checkpoint_id or ""
        tasks = dict.fromkeys(task for task, _, _ in checkpoint_tuple.pending_writes or ())
        if not tasks or writes_of(address) in pathless:
            continue
        suffixes = [names.component(task) + b"%d" % index for task in tasks for index in WRITES_IDX_MAP.values()]
        suffixes += map(names.component, tasks)
        fields = [writes_of(address) + suffix for suffix in suffixes]
        records = yield Command(("HMGET", data, *fields))
        for suffix, record in zip(suffixes, records, strict=True):
            if record is not None:
                for write in codec.decode_writes((suffix, record), address):
                    paths[ns, checkpoint_id, write.task_id] = write.task_path
    return paths


def calls_for(one: CheckpointTuple, thread: str, paths: Paths) -> Generator[ColdCall, Any, None]:
    """The calls that store a checkpoint with its writes in a thread of cold.

    Args:
        one: The checkpoint.
        thread: The thread.
        paths: The paths of its tasks. The writes of a task without a path keep their place among the others.
    """
    where = config.address(one.config)
    stored = config.to_config(thread, where.checkpoint_ns, where.checkpoint_id or "")
    yield to_put(one, thread, versions_of_values(one.checkpoint))
    for order, (task, writes) in enumerate(by_task(one.pending_writes or ()).items()):
        special = [write for write in writes if write[0] in WRITES_IDX_MAP]
        regular = [write for write in writes if write[0] not in WRITES_IDX_MAP]
        path = paths.get((where.checkpoint_ns, where.checkpoint_id or "", task), f"{order:08}")
        for some in filter(None, (regular, special)):
            yield ColdCall("put_writes", (stored, some, task, path))


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
