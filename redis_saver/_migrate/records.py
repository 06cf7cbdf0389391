"""What is moved: checkpoints with their pending writes; and outlines, which say what a thread has without its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from redis_saver._common import config
from redis_saver._common.display import shown
from redis_saver._storage.opaque import Opaque

Key: TypeAlias = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""
Task: TypeAlias = tuple[str, int]
"""Writes that are stored as one: the regular writes of a task (its id and 0), or one write to a special channel (its id, and the index)."""


class TaskInfo(NamedTuple):
    """What an outline says of a task's writes."""

    path: str | None = None
    """The task's path; None if the saver does not give it."""
    digest: bytes = b""
    """A digest of the value of a write to a special channel, as such a value may change."""


class Entry(NamedTuple):
    """What an outline says of a checkpoint."""

    parent: str | None
    tasks: Mapping[Task, TaskInfo]


ThreadOutline: TypeAlias = dict[Key, Entry]


class Writes(NamedTuple):
    """Pending writes of a task, for one `put_writes`."""

    task: Task
    path: str
    writes: list[tuple[str, Any]]


class Record(NamedTuple):
    """A checkpoint that is being moved."""

    key: Key
    parent: str | None
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    writes: list[Writes]

    def __str__(self) -> str:
        """As messages say it."""
        return f"checkpoint {shown(self.key[1])} of namespace {shown(self.key[0])}"


def task(task_id: str, channel: str) -> Task:
    """The `Task` of a write to a channel, as outlines have it."""
    return task_id, WRITES_IDX_MAP.get(channel, 0)


def record(found: CheckpointTuple, told: Mapping[Task, TaskInfo]) -> Record:
    """A checkpoint of a saver, with the paths of its tasks. Paths that the saver does not give are made up, in the same order."""
    checkpoint: Any = found.checkpoint
    if isinstance(checkpoint, Opaque):
        checkpoint = checkpoint.as_checkpoint()
    groups: dict[Task, Writes] = {}
    for position, (task_id, channel, value) in enumerate(found.pending_writes or ()):
        key = task(task_id, channel)
        if key not in groups:
            path = told.get(key, TaskInfo()).path
            groups[key] = Writes(key, f"{position:08}" if path is None else path, [])
        groups[key].writes.append((channel, value))
    _, ns, checkpoint_id = config.address(found.config)
    parent = config.checkpoint_id(found.parent_config) if found.parent_config else None
    return Record((ns, checkpoint_id or checkpoint["id"]), parent, checkpoint, found.metadata, [*groups.values()])


def is_sound(checkpoint: Any, metadata: object) -> bool:
    """Whether the metadata are a dict, and the checkpoint's values and versions have the form that LangGraph gives them."""
    if not isinstance(checkpoint, dict) or not isinstance(metadata, dict):
        return False
    values, seen = checkpoint.get("channel_values"), checkpoint.get("versions_seen") or {}
    if not isinstance(values, dict) or not isinstance(seen, dict):
        return False
    return all(isinstance(channel, str) for channel in values) and all(
        isinstance(versions, dict)
        and all(isinstance(channel, str) and _is_version(version) for channel, version in versions.items())
        for versions in (checkpoint.get("channel_versions"), *seen.values())
    )


def _is_version(found: Any) -> bool:
    if isinstance(found, float):
        return math.isfinite(found)
    return isinstance(found, str | int) and not isinstance(found, bool)


def with_text_versions(one: Record) -> Record:
    """The same checkpoint with channel versions as texts that sort in the same order, for a saver that continues them as texts.

    LangGraph takes the greatest of a checkpoint's versions, and an int cannot be compared with a text.
    """
    versions = one.checkpoint["channel_versions"]
    seen = one.checkpoint.get("versions_seen") or {}
    if all(isinstance(version, str) for some in (versions, *seen.values()) for version in some.values()):
        return one
    checkpoint = one.checkpoint.copy()
    checkpoint["channel_versions"] = _texts(versions)
    checkpoint["versions_seen"] = {node: _texts(some) for node, some in seen.items()}
    return one._replace(checkpoint=checkpoint)


def with_versions(one: Record, others: Mapping[str, str]) -> Record:
    """The same checkpoint with other versions of some channels. Nodes that had seen the old ones have seen the new ones."""
    checkpoint, versions = one.checkpoint.copy(), one.checkpoint["channel_versions"]
    seen = one.checkpoint.get("versions_seen") or {}
    checkpoint["channel_versions"] = {**versions, **others}
    checkpoint["versions_seen"] = {
        node: {
            channel: others[channel] if channel in others and version == versions[channel] else version
            for channel, version in some.items()
        }
        for node, some in seen.items()
    }
    return one._replace(checkpoint=checkpoint)


def _texts(versions: ChannelVersions) -> ChannelVersions:
    return {channel: _text(version) for channel, version in versions.items()}


def _text(version: str | float) -> str:
    if isinstance(version, str):
        return version
    whole, _, fraction = format(Decimal(repr(version)), "f").partition(".")
    return f"{int(whole):032}.{fraction or '0'}"
