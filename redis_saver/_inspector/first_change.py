"""Where a value became what it is: the ancestors of a checkpoint, back to the one in which it was another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint.delta import unstored
from redis_saver._common.config import Address, address
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import At, elements

STEPS = 10_000
"""Ancestors that are looked at."""
SECONDS = 10.0
"""How long they are."""
_PAGE = 200


@dataclass(frozen=True, slots=True)
class FirstChange:
    """Where a value became what it is."""

    where: Address
    """The oldest checkpoint in a row that has it."""
    parent: Address | None
    """Its parent, in which the value was another, or not there; None: it has none."""
    step: int | None
    source: str | None
    looked: int
    """How many checkpoints were looked at."""
    is_partial: bool
    """Whether it may be older: time was over, or an ancestor is gone, or does not store the value."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A checkpoint in a row of ancestors."""

    id: str
    parent: str | None
    version: Any
    step: int | None
    source: str | None


def find(source: Source, found: CheckpointTuple, channel: str, names: Sequence[Any], at: At) -> FirstChange:
    """Walk back from a checkpoint. Versions tell where a channel changed; values are read there alone, and only for a part of one."""
    start, end = address(found.config), time.monotonic() + SECONDS
    rows, looked = _Ancestors(source, start, channel, end), 0
    value = found.checkpoint["channel_values"][channel]
    steps = _steps(value, names)
    part, is_partial = _at(value, steps), False
    here = rows.take(start.checkpoint_id or "")
    first = here
    while here is not None:
        looked += 1
        first = here
        if here.parent is None:
            break
        above = rows.take(here.parent)
        if above is None or looked >= STEPS or time.monotonic() > end:
            is_partial = True
            break
        if above.version != here.version:
            if not at:
                break
            older = source.find(start._replace(checkpoint_id=above.id))
            if older is None or _is_unstored(older, channel):
                is_partial = True
                break
            if not source.same(_at(older.checkpoint["channel_values"].get(channel), steps), part):
                break
        here = above
    made = first or _Link(start.checkpoint_id or "", None, None, None, None)
    parent = start._replace(checkpoint_id=made.parent) if made.parent else None
    return FirstChange(
        start._replace(checkpoint_id=made.id), parent, made.step, made.source, looked, is_partial or first is None
    )


def _is_unstored(found: CheckpointTuple, channel: str) -> bool:
    """Whether a channel has a value that is not stored: a `DeltaChannel` between two snapshots."""
    return channel not in found.checkpoint["channel_values"] and channel in unstored(found.metadata)


class _Message(NamedTuple):
    """A step to a message, which may stand somewhere else in another version of the list."""

    id: str
    position: int


class _Nothing:
    """What stands for a part that is not there."""


_NOTHING = _Nothing()


def _steps(value: Any, names: Sequence[Any]) -> list[Any]:
    """The steps to a part of a value, by which it is found in other versions of it, too. That of a set is the set, as its elements have no places."""
    steps = list[Any]()
    for name in names:
        if isinstance(value, (set, frozenset)):
            break
        inner = _inside(value, name)
        is_named = isinstance(value, (list, tuple)) and isinstance(inner, BaseMessage) and isinstance(inner.id, str)
        steps.append(_Message(inner.id, name) if is_named else name)
        value = inner
    return steps


def _at(value: Any, steps: Sequence[Any]) -> Any:
    """What is at the end of some steps."""
    for step in steps:
        value = _inside(value, step)
    return value


def _inside(value: Any, step: Any) -> Any:
    found = elements(value) or ()
    if isinstance(step, _Message):
        named = {at: one for at, one in found if isinstance(one, BaseMessage) and one.id == step.id}
        return named.get(step.position, next(iter(named.values()), _NOTHING))
    return next((one for name, one in found if type(name) is type(step) and (name is step or name == step)), _NOTHING)


class _Ancestors:
    """The checkpoints of a namespace below one of them, read in pages until time is over."""

    def __init__(self, source: Source, start: Address, channel: str, end: float) -> None:
        self._source, self._start, self._channel, self._end = source, start, channel, end
        self._known: dict[str, _Link] = {}
        self._before: str | None = None
        self._has_begun = self._is_over = False

    def take(self, checkpoint_id: str) -> _Link | None:
        """A checkpoint; None: it is gone, or time is over."""
        while checkpoint_id not in self._known and not self._is_over:
            self._read()
            self._is_over |= time.monotonic() > self._end
        return self._known.pop(checkpoint_id, None)

    def _read(self) -> None:
        start = self._start
        before = self._before if self._has_begun else f"{start.checkpoint_id}\0"  # the least id above it
        self._has_begun = True
        found = self._source.entries(start.thread_id, start.checkpoint_ns, before, _PAGE, cold=False)
        self._is_over = len(found) < _PAGE
        self._before = found[-1].id if found else None
        for one in found:
            self._known[one.id] = _Link(one.id, one.parent, one.versions.get(self._channel), one.step, one.source)
