"""Comparison of checkpoints: of one saver with the same checkpoint of any other saver, and of two of a thread.

For values, a general library (`deepdiff`) does not fit. It runs the `__eq__` of their classes, takes 1 for True, and
recurses as deeply as a value is nested. It also knows nothing of messages, which are most of what is compared here.
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


Kind: TypeAlias = Literal["added", "removed", "changed"]
Step: TypeAlias = Hashable
"""One step of a path: a key of a dict, an element of a set, a field or the id of a message, or a position in a list."""
_SCALARS = (str, bytes, int, bool, type(None))


@dataclass(frozen=True, slots=True)
class Change:
    """A difference inside a value."""

    kind: Kind
    """`added`: only the second checkpoint has it. `removed`: only the first has it. `changed`: both have it."""
    path: tuple[Step, ...]
    """Path to it: keys of dicts, elements of sets, positions in lists, ids and fields of messages. Empty: the value."""
    before: Any
    """The first checkpoint's part of the value; None if it was added."""
    after: Any
    """The second checkpoint's part of the value; None if it was removed."""


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """A channel that has another value in the second checkpoint."""

    channel: str
    """The channel."""
    kind: Kind
    """`added`: only the second checkpoint has a value. `removed`: only the first has one. `changed`: both have one."""
    changes: tuple[Change, ...]
    """The differences of the two values, in order. For an added or removed channel, the whole value."""


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """The differences of two checkpoints, as `diff()` returns them."""

    thread_id: str
    """The thread."""
    checkpoint_ns: str
    """The namespace; empty for the root."""
    before: str
    """The id of the first checkpoint."""
    after: str
    """The id of the second one."""
    channels: tuple[ChannelDiff, ...]
    """The channels whose values differ, by name."""
    not_compared: tuple[str, ...] = ()
    """Each `DeltaChannel` with another version in the second checkpoint and without a value in at least one of the two.

    Such a channel stores values only in snapshots. The graph's `get_state` rebuilds it; `writes()` lists its writes.
    """


def diff(
    read: Callable[[RunnableConfig], Generator[R, Any, CheckpointTuple | None]],
    serde: SerializerProtocol,
    *addresses: config.Address,
) -> Generator[R, Any, CheckpointDiff]:
    """Read two checkpoints, with `read`, and compare them.

    Raises:
        ThreadNotFound: One of them is not there.
    """
    tuples = []
    for thread, ns, checkpoint_id in addresses:
        saved = yield from read(config.to_config(thread, ns, checkpoint_id or ""))
        if saved is None:
            place = config.Address(thread, ns, checkpoint_id)
            raise ThreadNotFound(f"{place} is not there: it was never written, was removed, or has expired")
        tuples.append(saved)
    return compare(serde, tuples[0], tuples[1])


def compare(serde: SerializerProtocol, first: CheckpointTuple, second: CheckpointTuple) -> CheckpointDiff:
    """Compare two checkpoints of a thread. A channel with the same version in both is equal, so it is skipped."""
    thread, ns, before_id = config.address(first.config)
    before, after = first.checkpoint, second.checkpoint
    old, new = ({name: codec.held(value) for name, value in one["channel_values"].items()} for one in (before, after))
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


def differs(serde: SerializerProtocol, one: object, other: object) -> bool:
    """True if two values differ by the rules of `compare`."""
    with encoding("a value, to compare it"):
        return any(True for _ in _Comparison(serde).changes(one, other))


class _Comparison:
    """The comparison of two values. It uses a list instead of recursion, as values may be nested deeply."""

    def __init__(self, serde: SerializerProtocol) -> None:
        # Encrypting a value twice gives different bytes.
        self._serde = serde.serde if isinstance(serde, EncryptedSerializer) else serde
        self._left: list[tuple[tuple[Step, ...], Any, Any]] = []

    def changes(self, before: Any, after: Any) -> Iterator[Change]:
        """Iterate over the differences of two values, in their order."""
        self._left.append(((), before, after))
        while self._left:
            path, one, other = self._left.pop()
            if one is _GONE:
                yield Change("added", path, None, other)
            elif other is _GONE:
                yield Change("removed", path, one, None)
            elif isinstance(one, Mapping) and isinstance(other, Mapping):
                self._add(path, one, other)
            elif isinstance(one, (set, frozenset)) and type(one) is type(other):
                self._add(path, {each: each for each in one}, {each: each for each in other})
            elif isinstance(one, BaseMessage) and type(one) is type(other):
                self._add(path, _fields(one), _fields(other))
            elif type(one) is type(other) and isinstance(one, (list, tuple)):
                if (old := _by_id(one)) is not None and (new := _by_id(other)) is not None:
                    self._add(path, old, new)
                else:
                    self._add_elements(path, one, other)
            elif not self._same(one, other):
                yield Change("changed", path, one, other)

    def _add(self, path: tuple[Step, ...], old: Mapping[Any, Any], new: Mapping[Any, Any]) -> None:
        """Compare two mappings by key: the old keys first, then the new ones."""
        old, new = ({_NAN if _is_nan(key) else key: each for key, each in one.items()} for one in (old, new))
        keys = dict.fromkeys((*old, *new))
        self._left += [((*path, key), old.get(key, _GONE), new.get(key, _GONE)) for key in reversed(keys)]

    def _add_elements(self, path: tuple[Step, ...], old: Sequence[Any], new: Sequence[Any]) -> None:
        """Compare two lists, without their common beginning and their common end."""
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
        """True if two values are equal as stored. NaN equals NaN, 1 differs from True. No class's `__eq__` runs."""
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
"""Replacement of each NaN among keys and elements, because no NaN equals another one."""


def _is_nan(key: object) -> bool:
    return isinstance(key, float) and math.isnan(key)


def _fields(message: BaseMessage) -> Mapping[str, Any]:
    """Return all fields of a message."""
    return {**vars(message), **(message.__pydantic_extra__ or {})}


def _by_id(elements: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return messages by their ids. None if an element is no message, or has no id or one that another has too."""
    if not all(isinstance(element, BaseMessage) and isinstance(element.id, str) for element in elements):
        return None
    by_id = {message.id: message for message in elements}
    return by_id if len(by_id) == len(elements) else None
