"""The pages about checkpoints and their values, each with the function that answers it, in a worker thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS, SendProtocol
from starlette.requests import Request
from starlette.responses import Response

from redis_saver._checkpoint.delta import unstored
from redis_saver._common.config import Address, address
from redis_saver._inspector.pages import Pages, Refused, address_in, asked, needed, number, position_in, read_address
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import CHILDREN, At, Mask, Trees, chat, elements, is_chat, part, unpacked

_OWN = ("__", "branch:", "join:")
"""Prefixes of the names of LangGraph's own channels."""


class _Part(NamedTuple):
    """The part of a channel's value that a page is about."""

    found: CheckpointTuple
    channel: str
    at: At
    names: list[Any]
    """The steps that lead there."""
    value: Any
    is_hidden: bool

    @property
    def said(self) -> dict[str, Any]:
        """Template values that locate the part. If a name on the way is hidden, all names are."""
        return {
            "where": address(self.found.config),
            "channel": self.channel,
            "at": self.at,
            "names": ["…" if self.is_hidden else one for one in self.names],
        }


class CheckpointPages:
    """The pages about checkpoints."""

    def __init__(self, source: Source, pages: Pages, mask: Mask) -> None:
        """Show what a saver has, masked."""
        self._source, self._pages, self._mask = source, pages, mask

    def checkpoint(self, request: Request) -> Response:
        """Show a checkpoint with its values, pending writes and costs."""
        arguments = asked(request)
        place = address_in(arguments)
        found = self._source.get(place) if "ns" in arguments else self._newest(place)
        where = address(found.config)
        parent = address(found.parent_config) if found.parent_config else None
        values = found.checkpoint["channel_values"]
        sizes = self._source.sizes(where, parent)
        ordered = sorted(values, key=lambda one: (one.startswith(_OWN), one))
        trees = Trees(self._mask)
        channels = [self._channel(trees, name, values[name]) for name in ordered]
        costs = sorted(sizes.items(), key=lambda one: -one[1].bytes)
        return self._pages.page(
            request,
            "checkpoint.html",
            where=where,
            parent=parent,
            found=found,
            created=found.checkpoint.get("ts") or "-",
            channels=channels,
            unreduced=self._unreduced(trees, found),
            costs=costs,
            most=max((size.bytes for _, size in costs), default=0),
            metadata=[trees.tree(name, one) for name, one in _about(found).items()],
            next=next_nodes(found),
            written=self._written(trees, found),
        )

    def _newest(self, where: Address) -> CheckpointTuple:
        """A checkpoint of the root; the newest of any namespace where the root has none."""
        found = self._source.find(where)
        others = (
            [] if found or where.checkpoint_id else self._source.entries(where.thread_id, None, None, 1, cold=False)
        )
        return found or self._source.get(
            where._replace(checkpoint_ns=others[0].ns, checkpoint_id=others[0].id) if others else where
        )

    def _channel(self, trees: Trees, name: str, value: Any) -> dict[str, Any]:
        """Show a channel as a chat, if it is a list or a snapshot of messages, else as a tree."""
        made: dict[str, Any] = {"name": name, "tree": None, "chat": None, "first": 0, "at": ()}
        at, said = unpacked(value)
        if self._mask.hides(name) or not is_chat(said):
            return {**made, "tree": trees.tree(name, value)}
        first = max(0, len(said) - CHILDREN)
        return {**made, "chat": chat(trees, self._mask, said, first, at), "first": first, "at": at}

    def _unreduced(self, trees: Trees, found: CheckpointTuple) -> list[dict[str, Any]]:
        """Show the last snapshot and later writes of channels without a value. Only the graph can reduce them."""
        have = found.checkpoint["channel_values"]
        asked = [one for one in found.checkpoint["channel_versions"] if one not in have and not one.startswith(_OWN)]
        shown = []
        for name, history in sorted(self._source.histories(address(found.config), asked).items()):
            writes = [value for _, _, value in history["writes"]]
            if not writes:
                continue  # it was emptied
            parts = [*([unpacked(history["seed"])[1]] if "seed" in history else ()), *writes]
            flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
            made = self._channel(trees, name, flat if is_chat(flat) else {**history, "writes": writes})
            shown.append({**made, "writes": len(writes)})
        return shown

    def _written(self, trees: Trees, found: CheckpointTuple) -> Sequence[Any]:
        """Pending writes by task, interrupts and errors among them."""
        return [
            {
                "task": one.task_id,
                "state": one.state,
                "writes": [(name, trees.tree(name, value), name in (INTERRUPT, ERROR)) for name, value in one.writes],
            }
            for one in written(found)
        ]

    def value(self, request: Request) -> Response:
        """Show a part of a channel's value, in pages."""
        arguments = asked(request)
        one, first, trees = self._part(arguments), number(arguments, "first"), Trees(self._mask)
        said, tree = None, None
        if one.is_hidden:
            tree = trees.masked(one.channel, one.value, one.at)
        elif is_chat(one.value):
            said = chat(trees, self._mask, one.value, first, one.at)
        else:
            tree = trees.tree((one.channel, *one.names)[-1], one.value, one.at, first, whole=True)
        count = len(one.value) if tree is None else tree.count
        return self._pages.page(
            request, "value.html", **one.said, first=first, length=CHILDREN, count=count, tree_=tree, said=said
        )

    def first(self, request: Request) -> Response:
        """Show since which checkpoint a value, or a part of it, is what it is."""
        one = self._part(asked(request))
        change = first_change(self._source, one.found, one.channel, one.names, one.at)
        return self._pages.page(request, "first.html", **one.said, change=change)

    def _part(self, arguments: dict[str, str]) -> _Part:
        """The part of a value that a URL names.

        Raises:
            Refused: The checkpoint has no such part.
        """
        where, channel, at = address_in(arguments), needed(arguments, "channel"), position_in(arguments)
        found = self._source.get(where)
        values = found.checkpoint["channel_values"]
        if channel not in values:
            raise Refused("this checkpoint has no value in that channel")
        try:
            names, value = part(values[channel], at)
        except LookupError as error:
            raise Refused(str(error)) from None
        return _Part(found, channel, at, names, value, any(self._mask.hides(one) for one in (channel, *names)))

    def diff(self, request: Request) -> Response:
        """Show the differences between two checkpoints."""
        arguments = asked(request)
        first, second = (self._source.get(read_address(needed(arguments, name))) for name in ("a", "b"))
        found, trees = self._source.compare(first, second), Trees(self._mask)
        channels = [
            {
                "name": one.channel,
                "kind": one.kind,
                "changes": [self._change(trees, one.channel, change) for change in one.changes[:CHILDREN]],
                "more": max(0, len(one.changes) - CHILDREN),
            }
            for one in found.channels
        ]
        places = address(first.config), address(second.config)
        return self._pages.page(
            request, "diff.html", name=places[1].thread_id, places=places, channels=channels,
            not_compared=found.not_compared,
        )  # fmt: skip

    def _change(self, trees: Trees, channel: str, change: Any) -> dict[str, Any]:
        steps = (channel, *change.path)
        hidden = next((at for at, step in enumerate(steps) if self._mask.hides(step)), None)
        make, name, path = (trees.tree if hidden is None else trees.masked), steps[-1], change.path
        if hidden is not None:  # under a name that is hidden, no other one is shown
            path = (*path[:hidden], *(["…"] if len(path) > hidden else ()))
        return {
            "kind": change.kind,
            "path": path,
            "before": None if change.kind == "added" else make(name, change.before),
            "after": None if change.kind == "removed" else make(name, change.after),
        }


def _about(found: CheckpointTuple) -> dict[str, Any]:
    about: Any = found.metadata
    return dict(about or {})


STEPS = 10_000
"""Maximum number of ancestors that are read."""
SECONDS = 10.0
"""Time limit in seconds."""
_PAGE = 200


@dataclass(frozen=True, slots=True)
class FirstChange:
    """The checkpoint that gave a value its present state."""

    where: Address
    """The oldest checkpoint in a row that has it."""
    parent: Address | None
    """Its parent, in which the value was another, or not there; None: it has none."""
    step: int | None
    source: str | None
    looked: int
    """Number of checkpoints that were read."""
    is_partial: bool
    """True if the change may be older: time ran out, or an ancestor is gone or does not store the value."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A checkpoint in a row of ancestors."""

    id: str
    parent: str | None
    version: Any
    step: int | None
    source: str | None


def first_change(source: Source, found: CheckpointTuple, channel: str, names: Sequence[Any], at: At) -> FirstChange:
    """Walk back from a checkpoint to the one that changed a value.

    Versions tell where a channel changed. Values are read only there, and only for a part of a value.
    """
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
    """True if a channel has a value that is not stored: a `DeltaChannel` between two snapshots."""
    return channel not in found.checkpoint["channel_values"] and channel in unstored(found.metadata)


class _Message(NamedTuple):
    """A step to a message, which may stand somewhere else in another version of the list."""

    id: str
    position: int


class _Nothing:
    """Placeholder for a part that is not there."""


_NOTHING = _Nothing()


def _steps(value: Any, names: Sequence[Any]) -> list[Any]:
    """The steps to a part of a value, which also lead to it in other versions of the value.

    They end at a set, as its elements have no positions.
    """
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
    """Follow steps into a value."""
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


_BRANCH, _JOIN, _START = "branch:to:", "join:", "__start__"
_CALLER = "00000000-0000-0000-0000-000000000000"


class Written(NamedTuple):
    """The pending writes of a task."""

    task_id: str
    state: str
    """`interrupted`, `failed`, or `done`; `caller`: it is no task, but what a caller wrote."""
    writes: Sequence[tuple[str, Any]]
    """Channels and values."""


def next_nodes(found: CheckpointTuple) -> list[str]:
    """The nodes that run next, inferred from channels that they wait for and have not seen.

    If a graph has triggers of its own, some may be missing.
    """
    checkpoint = found.checkpoint
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    seen: Mapping[str, Any] = checkpoint.get("versions_seen") or {}
    nodes = []
    for channel, value in values.items():
        if channel == TASKS:
            nodes += [one.node for one in value if isinstance(one, SendProtocol)] if isinstance(value, list) else []
        elif (node := _waiting(channel, value)) and (seen.get(node) or {}).get(channel) != versions.get(channel):
            nodes.append(node)
    return sorted(str(node) for node in nodes)


def _waiting(channel: str, value: Any) -> str | None:
    """The node that a channel triggers, if it is ready to."""
    if channel == _START:
        return _START
    if channel.startswith(_BRANCH):
        return channel.removeprefix(_BRANCH).partition("::")[0]
    if channel.startswith(_JOIN):
        awaited, _, node = channel.removeprefix(_JOIN).rpartition(":")
        return node if isinstance(value, (set, frozenset)) and set(awaited.split("+")) <= value else None
    return None


def written(found: CheckpointTuple) -> list[Written]:
    """The pending writes by task."""
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in found.pending_writes or ():
        by_task.setdefault(task, []).append((channel, value))
    return [Written(task, _state(task, {name for name, _ in some}), some) for task, some in by_task.items()]


def _state(task: str, channels: set[str]) -> str:
    if task == _CALLER:
        return "caller"
    return "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else "done"
