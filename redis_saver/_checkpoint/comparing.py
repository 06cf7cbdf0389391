"""Comparison of checkpoints: the same checkpoint in two savers, and two checkpoints of a thread.

A general library (`deepdiff`) does not fit. It runs the `__eq__` of values, takes 1 for True, recurses as deeply as a
value is nested, and does not match messages by their ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._checkpoint.delta import unstored
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common import config
from redis_saver._common.display import shown
from redis_saver._engine.requests import R
from redis_saver._storage import codec
from redis_saver._storage.opaque import Opaque, same
from redis_saver.errors import ThreadNotFound, encoding

Task: TypeAlias = tuple[str, int]
"""A task's id, and a number: 0 for its regular writes, else the index of the special channel that it wrote to."""


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
        """Return the checkpoint's name, for messages."""
        return f"checkpoint {shown(self.key[1])} of namespace {shown(self.key[0])}"


def task_of(task_id: str, channel: str) -> Task:
    """Return the `Task` of a write to a channel."""
    return task_id, WRITES_IDX_MAP.get(channel, 0)


def record(saved: CheckpointTuple, paths: Mapping[Task, str | None]) -> Record:
    """Make a `Record` of a saver's answer. A task without a known path gets one that keeps the order of tasks."""
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
    """Describe the first difference between two checkpoints. Returns an empty text if they are equal.

    Args:
        written: The checkpoint as it should be.
        stored: The checkpoint as the other saver has it.
        as_stored: Turns metadata into the form that the other saver returns.
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
    """Return the first key at which two dicts differ. In a damaged checkpoint it may not be a str."""
    for name in sorted(mine.keys() | theirs.keys(), key=str):
        if name not in mine or name not in theirs or not same(mine[name], theirs[name]):
            return str(name)
    return None


def _pending(saved: Record) -> list[list[Any]]:
    return [[writes.task[0], *write] for writes in saved.writes for write in writes.writes]


Kind: TypeAlias = Literal["added", "removed", "changed"]
Step: TypeAlias = Hashable
"""A step of a path: a key of a dict, an element of a set, a field or the id of a message, or a position in a list."""
_SCALARS = (str, bytes, int, bool, type(None))


@dataclass(frozen=True, slots=True)
class Change:
    """A difference inside a value."""

    kind: Kind
    """`added`: only the second checkpoint has it. `removed`: only the first has it. `changed`: both have it."""
    path: tuple[Step, ...]
    """Path to the difference: keys of dicts, elements of sets, positions in lists, ids and fields of messages.

    Empty for the whole value."""
    before: Any
    """The part in the first checkpoint, or None if it was added."""
    after: Any
    """The part in the second checkpoint, or None if it was removed."""


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """A channel whose value differs between two checkpoints."""

    channel: str
    """The channel."""
    kind: Kind
    """`added`: only the second checkpoint has a value. `removed`: only the first has one. `changed`: both have one."""
    changes: tuple[Change, ...]
    """The differences of the two values, in order. An added or removed channel has a single one, which is the whole
    value."""


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """The differences of two checkpoints, as `diff()` returns them."""

    thread_id: str
    """The thread."""
    checkpoint_ns: str
    """The namespace, empty for the root."""
    before: str
    """The id of the first checkpoint."""
    after: str
    """The id of the second checkpoint."""
    channels: tuple[ChannelDiff, ...]
    """The channels whose values differ, by name."""
    not_compared: tuple[str, ...] = ()
    """Each `DeltaChannel` with different versions that has no value in one of the checkpoints, or in both.

    A `DeltaChannel` stores a value only in snapshots. `get_state` of the graph rebuilds the value, and `writes()` lists
    the writes.
    """


def diff(
    read: Callable[[RunnableConfig], Generator[R, Any, CheckpointTuple | None]],
    serde: SerializerProtocol,
    *addresses: config.Address,
) -> Generator[R, Any, CheckpointDiff]:
    """Read two checkpoints with `read`, and compare them.

    Raises:
        ThreadNotFound: One of them does not exist.
    """
    tuples = []
    for thread, ns, checkpoint_id in addresses:
        saved = yield from read(config.to_config(thread, ns, checkpoint_id or ""))
        if saved is None:
            address = config.Address(thread, ns, checkpoint_id)
            raise ThreadNotFound(f"{address} is not there: it was never written, was removed, or has expired")
        tuples.append(saved)
    return compare(serde, tuples[0], tuples[1])


def compare(serde: SerializerProtocol, first: CheckpointTuple, second: CheckpointTuple) -> CheckpointDiff:
    """Compare two checkpoints of a thread. Channels with the same version in both are equal, so they are skipped."""
    thread, ns, before_id = config.address(first.config)
    before, after = first.checkpoint, second.checkpoint
    old, new = ({name: codec.held(value) for name, value in of["channel_values"].items()} for of in (before, after))
    channels = list[ChannelDiff]()
    rebuilt = (unstored(first.metadata) | unstored(second.metadata)) - (old.keys() & new.keys())
    not_compared = list[str]()
    for channel in sorted(old.keys() | new.keys() | rebuilt):
        versions = before["channel_versions"].get(channel), after["channel_versions"].get(channel)
        if channel in rebuilt:
            not_compared += [channel] if versions[0] != versions[1] else []
        elif versions[0] != versions[1] or channel not in old or channel not in new:
            kind: Kind = "added" if channel not in old else "removed" if channel not in new else "changed"
            with encoding("channel {!r}, to compare it", channel):
                changes = tuple(_Comparison(serde).changes(old.get(channel, _GONE), new.get(channel, _GONE)))
            if changes:
                channels.append(ChannelDiff(channel, kind, changes))
    ids = before_id or "", config.address(second.config).checkpoint_id or ""
    return CheckpointDiff(thread, ns, *ids, tuple(channels), tuple(not_compared))


class _Comparison:
    """The comparison of two values. It uses a list instead of recursion, as values may be nested deeply."""

    def __init__(self, serde: SerializerProtocol) -> None:
        # The same value, encrypted twice, gives different bytes.
        self._serde = serde.serde if isinstance(serde, EncryptedSerializer) else serde
        self._left: list[tuple[tuple[Step, ...], Any, Any]] = []

    def changes(self, before: Any, after: Any) -> Iterator[Change]:
        """Iterate over the differences of two values, in order."""
        self._left.append(((), before, after))
        while self._left:
            path, old, new = self._left.pop()
            if old is _GONE:
                yield Change("added", path, None, new)
            elif new is _GONE:
                yield Change("removed", path, old, None)
            elif isinstance(old, Mapping) and isinstance(new, Mapping):
                self._add(path, old, new)
            elif isinstance(old, (set, frozenset)) and type(old) is type(new):
                self._add(path, {element: element for element in old}, {element: element for element in new})
            elif isinstance(old, BaseMessage) and type(old) is type(new):
                self._add(path, _fields(old), _fields(new))
            elif type(old) is type(new) and isinstance(old, (list, tuple)):
                if (old_by_id := _by_id(old)) is not None and (new_by_id := _by_id(new)) is not None:
                    self._add(path, old_by_id, new_by_id)
                else:
                    self._add_elements(path, old, new)
            elif not self._same(old, new):
                yield Change("changed", path, old, new)

    def _add(self, path: tuple[Step, ...], old: Mapping[Any, Any], new: Mapping[Any, Any]) -> None:
        """Compare two mappings by key: the old keys first, then the new ones."""
        old, new = ({_NAN if _is_nan(key) else key: value for key, value in of.items()} for of in (old, new))
        keys = dict.fromkeys((*old, *new))
        self._left += [((*path, key), old.get(key, _GONE), new.get(key, _GONE)) for key in reversed(keys)]

    def _add_elements(self, path: tuple[Step, ...], old: Sequence[Any], new: Sequence[Any]) -> None:
        """Compare two lists without their common beginning and end."""
        short = min(len(old), len(new))
        front = next((at for at in range(short) if not self._same(old[at], new[at])), short)
        back = next((at for at in range(short - front) if not self._same(old[-1 - at], new[-1 - at])), short - front)
        old, new = old[: len(old) - back], new[: len(new) - back]
        pairs = [
            ((*path, at), old[at] if at < len(old) else _GONE, new[at] if at < len(new) else _GONE)
            for at in range(front, max(len(old), len(new)))
        ]
        self._left += reversed(pairs)

    def _same(self, one: Any, other: Any) -> bool:
        """True if two values are equal as stored: NaN equals NaN, and 1 differs from True. Runs no user's `__eq__`."""
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        if isinstance(one, _SCALARS):
            return bool(one == other)
        return self._serde.dumps_typed(one) == self._serde.dumps_typed(other)


_GONE: Any = object()
"""Placeholder of a missing value."""
_NAN = math.nan
"""Replaces each NaN among keys and elements, as no NaN equals another one."""


def _is_nan(key: object) -> bool:
    return isinstance(key, float) and math.isnan(key)


def _fields(message: BaseMessage) -> Mapping[str, Any]:
    return {**vars(message), **(message.__pydantic_extra__ or {})}


def _by_id(elements: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return messages by id. None if an element is not a message or has no id, or if two have the same id."""
    if not all(isinstance(element, BaseMessage) and isinstance(element.id, str) for element in elements):
        return None
    by_id = {message.id: message for message in elements}
    return by_id if len(by_id) == len(elements) else None
