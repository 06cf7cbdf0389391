"""Where a value became what it is: the ancestors of a checkpoint, back to the one in which it was another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._common.config import Address, address
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import At

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
    """Whether time was over, or an ancestor is gone, so that it may be older."""


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
    start = address(found.config)
    rows, looked, end = _Ancestors(source, start, channel), 0, time.monotonic() + SECONDS
    here, tuple_here, is_partial = rows.take(start.checkpoint_id or ""), found, False
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
            other = source.find(start._replace(checkpoint_id=above.id))
            if other is None or _differs(source, other, tuple_here, channel, names):
                is_partial = other is None
                break
            tuple_here = other
        here = above
    made = first or _Link(start.checkpoint_id or "", None, None, None, None)
    parent = start._replace(checkpoint_id=made.parent) if made.parent else None
    return FirstChange(
        start._replace(checkpoint_id=made.id), parent, made.step, made.source, looked, is_partial or first is None
    )


def _differs(
    source: Source, older: CheckpointTuple, newer: CheckpointTuple, channel: str, names: Sequence[Any]
) -> bool:
    """Whether a part of a channel's value is another one in an older checkpoint."""
    if channel not in older.checkpoint["channel_values"]:
        return True
    path = _steps(newer.checkpoint["channel_values"][channel], names)
    for one in source.compare(older, newer).channels:
        if one.channel == channel:
            return any(change.path[: len(path)] == path[: len(change.path)] for change in one.changes)
    return False


def _steps(value: Any, names: Sequence[Any]) -> tuple[Any, ...]:
    """The steps of a path as a comparison writes them: messages by their ids."""
    steps = []
    for name in names:
        is_list = isinstance(value, (list, tuple))
        if is_list and all(isinstance(one, BaseMessage) and isinstance(one.id, str) for one in value):
            steps.append(value[name].id)
        else:
            steps.append(name)
        value = _inside(value, name)
    return tuple(steps)


def _inside(value: Any, name: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value[name] if isinstance(name, int) else getattr(value, name)
    return value.get(name) if isinstance(value, dict) else getattr(value, str(name), None)


class _Ancestors:
    """The checkpoints of a namespace below one of them, read in pages."""

    def __init__(self, source: Source, start: Address, channel: str) -> None:
        self._source, self._start, self._channel = source, start, channel
        self._known: dict[str, _Link] = {}
        self._before: str | None = None
        self._has_begun = self._is_over = False

    def take(self, checkpoint_id: str) -> _Link | None:
        """A checkpoint; None: it is gone."""
        while checkpoint_id not in self._known and not self._is_over:
            self._read()
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
