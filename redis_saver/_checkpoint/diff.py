"""Comparison of two checkpoints of a thread.

A general library (`deepdiff`) does not fit. It runs the `__eq__` of the values' classes, takes 1 for True, and recurses
as deeply as a value is nested. It also knows nothing of messages, which are most of what is compared here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._checkpoint.delta import unstored
from redis_saver._common.config import Address, address, to_config
from redis_saver._engine.requests import R
from redis_saver._storage import codec
from redis_saver.errors import ThreadNotFound, encoding

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
    thread: str,
    ns: str,
    before: str,
    after: str | None,
) -> Generator[R, Any, CheckpointDiff]:
    """Read two checkpoints, with `read`, and compare them.

    Raises:
        ThreadNotFound: One of them is not there.
    """
    tuples = []
    for checkpoint_id in (before, after):
        saved = yield from read(to_config(thread, ns, checkpoint_id or ""))
        if saved is None:
            raise ThreadNotFound(
                f"{Address(thread, ns, checkpoint_id)} is not there: it was never written, was removed, or has expired"
            )
        tuples.append(saved)
    return compare(serde, tuples[0], tuples[1])


def compare(serde: SerializerProtocol, first: CheckpointTuple, second: CheckpointTuple) -> CheckpointDiff:
    """Compare two checkpoints of a thread. A channel with the same version in both is equal, so it is skipped."""
    thread, ns, before_id = address(first.config)
    before, after = first.checkpoint, second.checkpoint
    old, new = ({name: codec.held(value) for name, value in one["channel_values"].items()} for one in (before, after))
    channels = list[ChannelDiff]()
    rebuilt = (unstored(first.metadata) | unstored(second.metadata)) - (old.keys() & new.keys())
    not_compared = list[str]()
    for channel in sorted(old.keys() | new.keys() | rebuilt):
        versions = before["channel_versions"].get(channel), after["channel_versions"].get(channel)
        if channel in rebuilt:
            not_compared += [channel] if versions[0] != versions[1] else []
        elif channel not in old:
            channels.append(ChannelDiff(channel, "added", (Change("added", (), None, new[channel]),)))
        elif channel not in new:
            channels.append(ChannelDiff(channel, "removed", (Change("removed", (), old[channel], None),)))
        elif versions[0] != versions[1]:
            with encoding("channel {!r}, to compare it", channel):
                changes = tuple(_Comparison(serde).changes(old[channel], new[channel]))
            if changes:
                channels.append(ChannelDiff(channel, "changed", changes))
    ids = before_id or "", address(second.config).checkpoint_id or ""
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
            if isinstance(one, _Gone):
                yield Change("added", path, None, other)
            elif isinstance(other, _Gone):
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


class _Gone:
    """Placeholder of a missing value."""


_GONE = _Gone()
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
