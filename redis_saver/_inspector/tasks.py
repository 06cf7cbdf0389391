"""What comes next on a checkpoint: its tasks, as far as its channels tell without the graph, and what they have written already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS, SendProtocol

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
    """The nodes that run next, inferred from channels that they wait for and have not seen. Of graphs with triggers of their own some may be missing."""
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
