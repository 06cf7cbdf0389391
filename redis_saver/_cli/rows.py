"""Rows of the commands that look: how a thread, a checkpoint and a value are shown in a line, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from rich.text import Text

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry, WriteInfo
from redis_saver._cli import screen
from redis_saver._common import times
from redis_saver._common.display import shown
from redis_saver._inspector.values import ago, state_of

STATES = {"interrupted": "yellow", "failed": "red", "active": ""}
"""Styles of threads' states."""
_MARKS = {"interrupted": "◆", "failed": "✗", "": "●"}
_IN_JSON = (
    "thread_id",
    "checkpoint_id",
    "updated_at",
    "checkpoints",
    "bytes",
    "ttl",
    "pinned",
    "interrupted",
    "failed",
)
_GIST = 60
"""Maximum number of characters of a shortened value."""
T = TypeVar("T")

# -- threads


def thread_json(info: Any) -> dict[str, Any]:
    """Return a thread for JSON. A thread of two tiers has two fields more."""
    more = {name: getattr(info, name) for name in ("tier", "lacking") if hasattr(info, name)}
    return {**{name: getattr(info, name) for name in _IN_JSON}, "state": state_of(info), **more}


def thread_table(infos: Sequence[Any], *, has_cold: bool) -> None:
    """Print threads as a table."""
    is_owned = any(info.owner is not None for info in infos)
    columns = ["thread", "state", "updated", "checkpoints", "bytes", "expires"]
    columns += [*(["tier", "lacking"] if has_cold else []), *(["owner"] if is_owned else [])]
    rows: list[list[str | Text]] = []
    for info in infos:
        state, owner = state_of(info), ""
        if info.owner is not None:
            owner = screen.named(info.owner.by) + ("" if info.owner.lease_left else " (late)")
        row: list[str | Text] = [screen.named(info.thread_id), Text(state, STATES[state]), ago(info.updated_at)]
        row += [f"{info.checkpoints:,}", size(info.bytes), left(info.ttl, pinned=info.pinned)]
        row += [info.tier, f"{info.lacking:,}"] if has_cold else []
        rows.append([*row, *([owner] if is_owned else [])])
    screen.table(columns, rows, right=("checkpoints", "bytes", "lacking"))


def left(ttl: timedelta | None, *, pinned: bool = False) -> str:
    """Return when a thread expires."""
    if pinned:
        return "pinned"
    return "never" if ttl is None else f"in {times.shown(timedelta(seconds=int(ttl.total_seconds())))}"


def size(amount: int | None) -> str:
    """Return a number of bytes."""
    return "-" if amount is None else f"{amount:,}"


# -- checkpoints


class Drawn(NamedTuple):
    """A checkpoint of a drawing."""

    lane: str
    """Lines to print before it."""
    id: str
    parent: str


def lanes(history: Sequence[tuple[str, str, T]]) -> Iterator[tuple[Drawn, T]]:
    """Draw checkpoints from the oldest on: a chain runs straight down, and a fork opens a lane for each branch.

    Args:
        history: Id, parent's id (or an empty text) and value of each checkpoint, newest first. A checkpoint whose
            parent is missing starts a branch.
    """
    ids, children = {here for here, _, _ in history}, dict[str, list[tuple[str, T]]]()
    for here, parent, value in history:
        children.setdefault(parent if parent in ids else "", []).append((here, value))
    stack, seen = [("", "", "", here, value) for here, value in children.get("", ())], set[str]()
    rest = iter([("", "", parent, here, value) for here, parent, value in history])  # for each other's ancestors
    while stack or (stack := list(islice(rest, 1))):
        lane, below, parent, here, value = stack.pop()
        if here in seen:
            continue
        seen.add(here)
        yield Drawn(lane, here, parent), value
        branches = children.get(here, ())
        for position, branch in enumerate(branches):  # newest first, so that the oldest is on top of the stack
            fork, past = ("", "") if len(branches) == 1 else ("├─", "│ ") if position else ("└─", "  ")
            stack.append((below + fork, below + past, here, *branch))


class TreeRow(NamedTuple):
    """A checkpoint of a tree."""

    lane: str
    entry: Entry
    ran: Sequence[str]
    """Nodes that ran between its parent and it."""

    def cells(self) -> list[str | Text]:
        """Return its columns in the table."""
        entry, channels = self.entry, {write.channel for write in self.entry.writes}
        state = "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""
        tasks = len({write.task_id for write in entry.writes})
        pending = state or (f"{tasks:,} task{'s' * (tasks > 1)} wrote" if tasks else "")
        return [
            self.lane + _MARKS[state],
            screen.named(entry.id),
            step(entry.step),
            screen.named(entry.source),
            names(self.ran),
            Text(pending, STATES.get(state, "dim")),
            time(entry.created_at),
        ]

    def as_json(self, thread: str) -> dict[str, Any]:
        """Return it for JSON."""
        entry = self.entry
        return {
            "thread_id": thread,
            "checkpoint_ns": entry.ns,
            "checkpoint_id": entry.id,
            "parent": entry.parent,
            "step": entry.step,
            "source": entry.source,
            "created_at": entry.created_at,
            "ran": list(self.ran),
            "pending": sorted({write.channel for write in entry.writes}),
        }


def tree(entries: Sequence[Entry]) -> Iterator[tuple[str, list[TreeRow]]]:
    """Draw a thread's checkpoints by namespace."""
    by_ns: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        by_ns.setdefault(entry.ns, {})[entry.id] = entry
    for ns, by_id in sorted(by_ns.items()):
        rows = list[TreeRow]()
        for drawn, entry in lanes([(each.id, each.parent or "", each) for each in by_id.values()]):
            parent = by_id.get(entry.parent or "")
            rows.append(TreeRow(drawn.lane, entry, auditing.ran_between(parent, entry) if parent else ()))
        yield ns, rows


def step(number: int | None) -> str:
    """Return a step's number."""
    return "-" if number is None else str(number)


def time(at: datetime | None) -> str:
    """Return a moment."""
    return at.strftime("%Y-%m-%d %H:%M:%S") if at else "-"


def names(values: Sequence[str]) -> str:
    """Return a list of names."""
    return ", ".join(map(screen.named, values)) or "-"


def writer(write: WriteInfo) -> str:
    """Return the node that wrote, or those that may have, or the caller."""
    if write.node is not None:
        return screen.named(write.node)
    if write.candidates:
        return f"{' or '.join(map(screen.named, write.candidates))}?"
    return f"({write.source})" if write.inferred and write.source else "-"


# -- values


def gist(value: Any) -> str:
    """Return a value, shortened to a line."""
    if isinstance(value, BaseMessage):
        calls = ", ".join(str(call["name"]) for call in getattr(value, "tool_calls", ()))
        text = f"{value.type}: {value.content or (f'calls {calls}' if calls else '')}"
    elif isinstance(value, _interrupts()):
        return gist(value.value)
    elif isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes"
    elif isinstance(value, (list, tuple)) and value:
        text = f"{'1 element' if len(value) == 1 else f'{len(value):,} elements, the last'}: {gist(value[-1])}"
    elif isinstance(value, Mapping) and len(value) > 3:
        text = f"{len(value):,} keys: {', '.join(map(str, list(value)[:10]))}"
    else:
        text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= _GIST else f"{text[:_GIST]}..."
    return cut if cut.isprintable() else shown(cut)


def _interrupts() -> tuple[type[Any], ...]:
    """Return LangGraph's `Interrupt`, if a value can be one. Importing it takes as long as the rest of a command."""
    types = sys.modules.get("langgraph.types")
    return () if types is None else (types.Interrupt,)
