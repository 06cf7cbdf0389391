"""What is told of writes, versions and checkpoints, without their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

VersionText: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class WriteInfo:
    """A write to a channel, as `writes()` tells of it."""

    channel: str
    """The channel; LangGraph's own are among them: interrupts, errors, answers to interrupts, branches to nodes."""
    checkpoint_ns: str
    """The namespace; empty for the root."""
    checkpoint_id: str | None
    """The checkpoint that the task began from. None: the thread, or the call of the subgraph, began with this write."""
    step: int | None
    """The superstep that it belongs to; None where the metadata do not say."""
    source: str | None
    """What made the first checkpoint that has it: `input`, `loop`, `update` or `fork`. None: no checkpoint has it (yet)."""
    task_id: str | None
    """The task, by its pending write. None: no pending write says so. That the channel was written is inferred from its version."""
    node: str | None
    """The node whose task it was, by the task's path, or by the `Send` that started it. None: neither says so, or there is no task."""
    candidates: tuple[str, ...]
    """Where `node` is None: the nodes that ran in that superstep, inferred from `versions_seen`. One of them wrote, if not the caller."""
    bytes: int | None
    """Size of the pending write as stored: compressed or encrypted, if the saver does that. None if there is none.

    A long `Send` is stored in chunks, of which only the list counts."""
    applied_in: tuple[str, ...]
    """The checkpoints behind it in which the channel has another version: one, or several after a fork. Empty: it is pending, or is of no channel of the state."""

    @property
    def inferred(self) -> bool:
        """Whether no pending write says so, and it follows from the versions of the channel alone."""
        return self.task_id is None


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A version of a channel, as `channel_history()` tells of it."""

    version: VersionText
    """The version."""
    checkpoint_ns: str
    """The namespace; empty for the root."""
    checkpoint_id: str
    """The first checkpoint of its branch that has it. If that one's parent is gone, the version may be older."""
    created_at: datetime | None
    """That checkpoint's `ts`; None where it has none, or one that is no time."""
    step: int | None
    """The superstep that made it, by its metadata."""
    source: str | None
    """What made it: `input`, `loop`, `update` or `fork`."""
    bytes: int
    """Size of the value as stored, with its chunks; 0: the channel has no value there (it was emptied, or is a `DeltaChannel`)."""
    shared_bytes: int
    """How many of those are in chunks that the version before it has, too, so that they are stored once."""
    writes: tuple[WriteInfo, ...]
    """The writes that it was made of. Empty: the checkpoint has no parent, or that is gone, and the writes with it; or nobody wrote, and the channel was emptied."""

    @property
    def new_bytes(self) -> int:
        """How many bytes this version added."""
        return self.bytes - self.shared_bytes


class WriteHead(NamedTuple):
    """A pending write without its value."""

    task_id: str
    path: str
    channel: str
    size: int


class StoredSize(NamedTuple):
    """How large a value is where it is stored, in bytes."""

    root: int
    """What its field holds."""
    chunks: Mapping[bytes, int]
    """Its chunks, by field."""


class Size(NamedTuple):
    """What the value of a channel takes in a checkpoint, in bytes as stored."""

    bytes: int
    shared: int
    """How many of those the parent has, too: all where the version is the same, else the chunks that the values have in common."""

    @property
    def new(self) -> int:
        """How many bytes the checkpoint added."""
        return self.bytes - self.shared


class Entry(NamedTuple):
    """A checkpoint without its values, for this package and others."""

    ns: str
    id: str
    parent: str | None
    created_at: datetime | None
    step: int | None
    source: str | None
    versions: Mapping[str, VersionText]
    seen: Mapping[str, Mapping[str, VersionText]]
    present: frozenset[str]
    """The channels that have a value."""
    writes: Sequence[WriteHead]
    sizes: Mapping[str, StoredSize] = {}
    """How large values are, by channel, where that was asked for."""
    parents: Mapping[str, str] = {}
    """The checkpoints of the namespaces around its own that it belongs to, by namespace."""
    sends: Sequence[str] = ()
    """The nodes of the `Send`s that the next superstep runs, in their order; read only if the checkpoint has writes of such tasks."""
