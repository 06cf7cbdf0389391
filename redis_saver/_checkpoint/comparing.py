"""Compare a checkpoint of one saver with the same checkpoint of any other saver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint, CheckpointMetadata, CheckpointTuple

from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common import config
from redis_saver._common.display import shown
from redis_saver._storage.opaque import Opaque, same

Task: TypeAlias = tuple[str, int]
"""The regular writes of a task (its id and 0), or its write to a special channel (its id and the channel's index)."""


class Writes(NamedTuple):
    """Pending writes for one call of `put_writes`."""

    task: Task
    path: str
    writes: list[tuple[str, Any]]


class Record(NamedTuple):
    """A checkpoint with its pending writes grouped by task."""

    key: CheckpointKey
    parent: str | None
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    writes: list[Writes]

    def __str__(self) -> str:
        """Return the checkpoint's name for messages."""
        return f"checkpoint {shown(self.key[1])} of namespace {shown(self.key[0])}"


def task_of(task_id: str, channel: str) -> Task:
    """Return the `Task` that a write to a channel belongs to."""
    return task_id, WRITES_IDX_MAP.get(channel, 0)


def record(saved: CheckpointTuple, paths: Mapping[Task, str | None]) -> Record:
    """Turn a saver's answer into a `Record`. A task without a known path gets one that keeps the order of the tasks."""
    checkpoint: Any = saved.checkpoint
    if isinstance(checkpoint, Opaque):
        checkpoint = checkpoint.as_checkpoint()
    groups: dict[Task, Writes] = {}
    for position, (task_id, channel, value) in enumerate(saved.pending_writes or ()):
        task = task_of(task_id, channel)
        if task not in groups:
            path = paths.get(task)
            groups[task] = Writes(task, f"{position:08}" if path is None else path, [])
        groups[task].writes.append((channel, value))
    _, ns, checkpoint_id = config.address(saved.config)
    parent = config.checkpoint_id(saved.parent_config) if saved.parent_config else None
    return Record((ns, checkpoint_id or checkpoint["id"]), parent, checkpoint, saved.metadata, [*groups.values()])


def difference(written: Record, stored: Record, as_stored: Callable[[Mapping[str, Any]], Any]) -> str:
    """Name the first difference between two checkpoints, in words. The text is empty if they are the same.

    Args:
        written: The checkpoint as it should be.
        stored: The checkpoint as the other saver has it.
        as_stored: Turns metadata into the form in which the other saver returns them.
    """
    if written.parent != stored.parent:
        return f"its parent is {shown(written.parent)}, and {shown(stored.parent)} there"
    mine, theirs = dict(written.checkpoint), dict(stored.checkpoint)
    values, others = mine.pop("channel_values"), theirs.pop("channel_values")
    if (name := _differing(values, others)) is not None:
        return f"the value of channel {shown(name)}"
    if (name := _differing(mine, theirs)) is not None:
        return f"the field {shown(name)}"
    if not same(as_stored(written.metadata), as_stored(stored.metadata)):
        return "the metadata"
    return "" if same(_pending(written), _pending(stored)) else "its pending writes"


def _differing(mine: Any, theirs: Any) -> str | None:
    """Return the first key at which two dicts differ. A damaged checkpoint may have keys that are no texts."""
    for name in sorted(mine.keys() | theirs.keys(), key=str):
        if name not in mine or name not in theirs or not same(mine[name], theirs[name]):
            return str(name)
    return None


def _pending(saved: Record) -> list[list[Any]]:
    return [[writes.task[0], *write] for writes in saved.writes for write in writes.writes]
