"""The pages about checkpoints and their values. Each has a function that makes the values of its template."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS, SendProtocol

from redis_saver._checkpoint.auditing import Entry
from redis_saver._checkpoint.delta import unstored
from redis_saver._common.config import Address, address
from redis_saver._inspector.pages import Query, Refused, Values, address_in, needed, number, position_in, read_address
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
    def said(self) -> Values:
        """Template values that locate the part. If a name on the way is hidden, all names are."""
        names = ["…"] * len(self.names) if self.is_hidden else self.names
        return {"where": address(self.found.config), "channel": self.channel, "at": self.at, "names": names}


class CheckpointPages:
    """The pages about checkpoints."""

    def __init__(self, source: Source, mask: Mask) -> None:
        """Show what a saver has, masked."""
        self._source, self._mask = source, mask

    def checkpoint(self, arguments: Query) -> Values:
        """Show a checkpoint with its values, pending writes and costs."""
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
        return {
            "where": where, "parent": parent, "found": found, "created": found.checkpoint.get("ts") or "-",
            "channels": channels, "unreduced": self._unreduced(trees, found),
            "costs": costs, "most": max((size.bytes for _, size in costs), default=0),
            "metadata": [trees.tree(name, one) for name, one in (found.metadata or {}).items()],
            "next": next_nodes(found), "written": self._written(trees, found),
        }  # fmt: skip

    def _newest(self, where: Address) -> CheckpointTuple:
        """A checkpoint of the root; the newest of any namespace where the root has none."""
        if (found := self._source.find(where)) is not None:
            return found
        if not where.checkpoint_id:
            for other in self._source.entries(where.thread_id, None, None, 1, cold=False):
                where = where._replace(checkpoint_ns=other.ns, checkpoint_id=other.id)
        return self._source.get(where)

    def _channel(self, trees: Trees, name: str, value: Any) -> Values:
        """Show a channel as a chat, if it is a list or a snapshot of messages, else as a tree."""
        at, said = unpacked(value)
        if self._mask.hides(name) or not is_chat(said):
            return {"name": name, "chat": None, "tree": trees.tree(name, value)}
        first = max(0, len(said) - CHILDREN)
        return {"name": name, "chat": chat(trees, said, first, at), "first": first, "at": at}

    def _unreduced(self, trees: Trees, found: CheckpointTuple) -> list[Values]:
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

    def _written(self, trees: Trees, found: CheckpointTuple) -> list[Values]:
        """Pending writes by task, interrupts and errors among them."""
        by_task: dict[str, list[tuple[str, Any, bool]]] = {}
        for task, channel, value in found.pending_writes or ():
            is_special = channel in (INTERRUPT, ERROR)
            by_task.setdefault(task, []).append((channel, trees.tree(channel, value), is_special))
        states = {task: _state(task, {channel for channel, *_ in writes}) for task, writes in by_task.items()}
        return [{"task": task, "state": states[task], "writes": writes} for task, writes in by_task.items()]

    def value(self, arguments: Query) -> Values:
        """Show a part of a channel's value, in pages."""
        one, first, trees = self._part(arguments), number(arguments, "first"), Trees(self._mask)
        tree, said = None, None
        if one.is_hidden:
            tree = trees.masked(one.channel, one.value, one.at)
        elif is_chat(one.value):
            said = chat(trees, one.value, first, one.at)
        else:
            tree = trees.tree((one.channel, *one.names)[-1], one.value, one.at, first, whole=True)
        count = len(one.value) if tree is None else tree.count
        return {**one.said, "first": first, "length": CHILDREN, "count": count, "tree_": tree, "said": said}

    def first(self, arguments: Query) -> Values:
        """Show since which checkpoint a value, or a part of it, is what it is."""
        one = self._part(arguments)
        return {**one.said, "change": first_change(self._source, one.found, one.channel, one.names, one.at)}

    def _part(self, arguments: Query) -> _Part:
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

    def diff(self, arguments: Query) -> Values:
        """Show the differences between two checkpoints."""
        first, second = (self._source.get(read_address(needed(arguments, name))) for name in ("a", "b"))
        found, trees = self._source.compare(first, second), Trees(self._mask)
        channels = []
        for one in found.channels:
            changes = [self._change(trees, one.channel, change) for change in one.changes[:CHILDREN]]
            more = max(0, len(one.changes) - CHILDREN)
            channels.append({"name": one.channel, "kind": one.kind, "changes": changes, "more": more})
        places = address(first.config), address(second.config)
        name = places[1].thread_id
        return {"name": name, "places": places, "channels": channels, "not_compared": found.not_compared}

    def _change(self, trees: Trees, channel: str, change: Any) -> Values:
        steps = (channel, *change.path)
        hidden = next((at for at, step in enumerate(steps) if self._mask.hides(step)), None)
        make, name, path = (trees.tree if hidden is None else trees.masked), steps[-1], change.path
        if hidden is not None:  # under a name that is hidden, no other one is shown
            path = (*path[:hidden], *(["…"] if len(path) > hidden else ()))
        before = None if change.kind == "added" else make(name, change.before)
        after = None if change.kind == "removed" else make(name, change.after)
        return {"kind": change.kind, "path": path, "before": before, "after": after}


STEPS = 10_000
"""Maximum number of ancestors that are read."""
SECONDS = 10.0
"""Time limit in seconds."""
_PAGE = 200


class FirstChange(NamedTuple):
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


def first_change(source: Source, found: CheckpointTuple, channel: str, names: Sequence[Any], at: At) -> FirstChange:
    """Walk back from a checkpoint to the one that changed a value.

    Versions tell where a channel changed. Values are read only there, and only for a part of a value.
    """
    start, end = address(found.config), time.monotonic() + SECONDS
    value = found.checkpoint["channel_values"][channel]
    steps = _steps(value, names)
    part = _at(value, steps)
    first: Entry | None = None
    looked, is_partial = 0, True
    for entry in _ancestors(source, start, end):
        if first is not None:
            if looked >= STEPS or time.monotonic() > end:
                break
            if entry.versions.get(channel) != first.versions.get(channel):
                older = source.find(start._replace(checkpoint_id=entry.id)) if at else None
                if at and (older is None or _is_unstored(older, channel)):
                    break
                if older is None or not source.same(_at(older.checkpoint["channel_values"].get(channel), steps), part):
                    is_partial = False
                    break
        first, looked, is_partial = entry, looked + 1, entry.parent is not None
    if first is None:
        return FirstChange(start, None, None, None, looked, is_partial)
    parent = start._replace(checkpoint_id=first.parent) if first.parent else None
    return FirstChange(start._replace(checkpoint_id=first.id), parent, first.step, first.source, looked, is_partial)


def _ancestors(source: Source, start: Address, end: float) -> Iterator[Entry]:
    """A checkpoint and its ancestors, read in pages. It ends early if one is gone, or if time is over."""
    known: dict[str, Entry] = {}
    wanted: str | None = start.checkpoint_id
    before: str | None = f"{start.checkpoint_id}\0"  # the least id above it
    while wanted is not None:
        while wanted not in known:
            if before is None:
                return
            page = source.entries(start.thread_id, start.checkpoint_ns, before, _PAGE, cold=False)
            known.update((one.id, one) for one in page)
            before = page[-1].id if len(page) == _PAGE and time.monotonic() <= end else None
        entry = known.pop(wanted)
        yield entry
        wanted = entry.parent


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


_BRANCH, _JOIN, _START = "branch:to:", "join:", "__start__"
_CALLER = "00000000-0000-0000-0000-000000000000"


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


def _state(task: str, channels: set[str]) -> str:
    """The state of a task that wrote to channels; `caller`: it is no task, but what a caller wrote."""
    if task == _CALLER:
        return "caller"
    return "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else "done"
