"""The command `tree`: the checkpoints of a thread, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import typer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from rich.text import Text

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.audit_records import Entry
from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._cli import screen
from redis_saver._cli.arguments import LOOKING, AnyNamespace, Json, Limit, Prefix, Redis, Thread
from redis_saver._cli.lanes import lanes
from redis_saver._cli.opening import opened_savers
from redis_saver._common.display import counted

_MARKS = {"interrupted": "◆", "failed": "✗", "": "●"}


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tree", epilog=LOOKING)(_tree)


def _tree(
    thread: Thread,
    *,
    ns: AnyNamespace = None,
    limit: Limit = 1000,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Draw the checkpoints of a thread, the oldest first: namespaces, forks, who ran, what waits or failed.

    It shows what Redis has, and reads no values except Sends.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        stream = driver_of(savers.hot).stream(auditing.entries(context_of(savers.hot), thread, ns))
        found: list[Entry] = list(islice(stream, limit))
    by_id = {(one.ns, one.id): one for one in found}
    by_ns: dict[str, list[Entry]] = {}
    for one in found:
        by_ns.setdefault(one.ns, []).append(one)
    for name in sorted(by_ns):
        if not as_json:
            screen.line(f"namespace {screen.named(name)}" if name else "root")
        rows = list[Sequence[str | Text]]()
        for drawn, one in lanes([(each.id, each.parent or "", each) for each in by_ns[name]]):
            parent = by_id.get((name, one.parent or ""))
            told = _Told(one, auditing.ran_between(parent, one) if parent else ())
            if as_json:
                screen.emit(told.as_json(thread))
            else:
                rows.append([drawn.lane + told.mark, *told.row()])
        if not as_json:
            screen.table(
                ("", "checkpoint", "step", "source", "ran", "pending", "created"),
                rows,
                right=("step",),
                ids=("checkpoint",),
                whole=("", "created"),
            )
    if not found:
        screen.note(f"no checkpoint{'' if ns is None else f' in namespace {screen.named(ns)}'}")
    if len(found) == limit:
        screen.note(f"only the newest {counted(limit, 'checkpoint')}; --limit shows more")
    return 0


class _Told:
    """What is told of a checkpoint in a tree."""

    def __init__(self, entry: Entry, ran: Sequence[str]) -> None:
        self._entry, self._ran = entry, ran
        channels = {write.channel for write in entry.writes}
        self._state = "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""
        self.mark = _MARKS[self._state]

    def row(self) -> list[str | Text]:
        """Its columns."""
        entry, tasks = self._entry, len({write.task_id for write in self._entry.writes})
        pending = self._state or (f"{tasks:,} task{'s' * (tasks > 1)} wrote" if tasks else "")
        created = entry.created_at.strftime("%Y-%m-%d %H:%M:%S") if entry.created_at else "-"
        return [
            screen.named(entry.id),
            "-" if entry.step is None else str(entry.step),
            screen.named(entry.source),
            ", ".join(map(screen.named, self._ran)) or "-",
            screen.styled(pending, screen.STATES.get(self._state, "dim")),
            created,
        ]

    def as_json(self, thread: str) -> dict[str, Any]:
        """The same, for JSON."""
        entry = self._entry
        return {
            "thread_id": thread,
            "checkpoint_ns": entry.ns,
            "checkpoint_id": entry.id,
            "parent": entry.parent,
            "step": entry.step,
            "source": entry.source,
            "created_at": screen.plain(entry.created_at),
            "ran": list(self._ran),
            "pending": sorted({write.channel for write in entry.writes}),
        }
