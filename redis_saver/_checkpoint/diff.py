"""What differs between two checkpoints of a thread.

The comparison is our own: a general one (`deepdiff`) asks the code of the values' classes whether they are equal, takes 1 for True, recurses as
deeply as a value is nested, and would have to be taught messages, which are most of what is compared here.
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
    """A difference inside of a value."""

    kind: Kind
    """Whether something is there in the second checkpoint alone, in the first alone, or is another one."""
    path: tuple[Step, ...]
    """Where: keys of dicts, elements of sets, positions in lists, ids and fields of messages. Empty: the value as a whole."""
    before: Any
    """What the first checkpoint has there; None where it is added."""
    after: Any
    """What the second one has there; None where it is removed."""


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """A channel that has another value in the second checkpoint."""

    channel: str
    """The channel."""
    kind: Kind
    """Whether it has a value in the second checkpoint alone, in the first alone, or another one."""
    changes: tuple[Change, ...]
    """Where its values differ, in order; of a channel that was added or removed the value as a whole."""


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """What differs between two checkpoints, as `diff()` tells of it."""

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
    """Each `DeltaChannel` that has another version in the second checkpoint, and a value in one of the two at the most: in between two snapshots none is
    stored. The graph's `get_state` rebuilds it, and `writes()` tells what was written."""


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
    found = []
    for checkpoint_id in (before, after):
        one = yield from read(to_config(thread, ns, checkpoint_id or ""))
        if one is None:
            raise ThreadNotFound(
                f"{Address(thread, ns, checkpoint_id)} is not there: it was never written, was removed, or has expired"
            )
        found.append(one)
    return compare(serde, found[0], found[1])


def compare(serde: SerializerProtocol, first: CheckpointTuple, second: CheckpointTuple) -> CheckpointDiff:
    """Compare two checkpoints of a thread. Channels that have the same version in both are equal, and are not looked at."""
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
    """Whether two values are different, as `compare` says of those of a channel."""
    with encoding("a value, to compare it"):
        return any(True for _ in _Comparison(serde).changes(one, other))


class _Comparison:
    """The comparison of two values. It keeps what is left to compare in a list of its own, as values may be nested deeply."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = (
            serde.serde if isinstance(serde, EncryptedSerializer) else serde
        )  # encrypted, nothing is the same twice
        self._left: list[tuple[tuple[Step, ...], Any, Any]] = []

    def changes(self, before: Any, after: Any) -> Iterator[Change]:
        """Where two values differ, from the first place on."""
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
        """Compare by key: what was there first, and then what came."""
        old, new = ({_NAN if _is_nan(key) else key: each for key, each in one.items()} for one in (old, new))
        keys = dict.fromkeys((*old, *new))
        self._left += [((*path, key), old.get(key, _GONE), new.get(key, _GONE)) for key in reversed(keys)]

    def _add_elements(self, path: tuple[Step, ...], old: Sequence[Any], new: Sequence[Any]) -> None:
        """Compare lists between what is the same at the front and at the end of both."""
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
        """Whether two values are equal as they are stored: NaN is, and 1 and True are not. No code of their classes is asked."""
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        if isinstance(one, _SCALARS):
            return bool(one == other)
        return self._serde.dumps_typed(one) == self._serde.dumps_typed(other)


class _Gone:
    """What stands for a value that is not there."""


_GONE = _Gone()
_NAN = math.nan
"""What stands for each NaN among keys and elements: to Python no two of them are one."""


def _is_nan(key: object) -> bool:
    return isinstance(key, float) and math.isnan(key)


def _fields(message: BaseMessage) -> Mapping[str, Any]:
    """All that a message holds."""
    return {**vars(message), **(message.__pydantic_extra__ or {})}


def _by_id(found: Sequence[Any]) -> Mapping[str, Any] | None:
    """Messages by their ids; None where some are no messages, have no id, or share one."""
    if not all(isinstance(one, BaseMessage) and isinstance(one.id, str) for one in found):
        return None
    by_id = {one.id: one for one in found}
    return by_id if len(by_id) == len(found) else None
