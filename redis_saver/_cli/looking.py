"""The commands that look into a thread: `show`, `tree`, `diff`, `writes`, `history`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, TypeAlias

import typer
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from rich.text import Text

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry
from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, Namespace, Postgres, Prefix, Redis, count
from redis_saver._cli.lanes import lanes
from redis_saver._cli.opening import Savers, opened_savers
from redis_saver._cli.overview import about, state_of
from redis_saver._common import times
from redis_saver._common.config import Address
from redis_saver.errors import ThreadNotFound

_CODES = (
    "Exit code: 0; 2, there is no such thread or checkpoint, or a URL, a login or a missing package is at fault. With LANGGRAPH_AES_KEY set, values "
    "are decrypted. Objects are made only of classes that LangGraph calls safe."
)
_Thread: TypeAlias = Annotated[str, typer.Argument(metavar="THREAD", help="The name of the thread.")]
_Limit: TypeAlias = Annotated[
    int, typer.Option(metavar="N", parser=count("lines", 1), help="Show so many, the newest.")
]
_AnyNamespace: TypeAlias = Annotated[
    str | None, typer.Option("--ns", metavar="NAMESPACE", help="One namespace; empty: the root. Default: all.")
]
_MARKS = {"interrupted": "◆", "failed": "✗", "": "●"}


def add(app: typer.Typer) -> None:
    """Add the commands."""
    for name, command in (
        ("show", _show),
        ("tree", _tree),
        ("diff", _diff),
        ("writes", _writes),
        ("history", _history),
    ):
        app.command(name, epilog=_CODES)(command)


# -- show


def _show(
    thread: _Thread,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="[CHECKPOINT]", help="The id of a checkpoint; by default the newest.")
    ] = None,
    *,
    ns: Namespace = "",
    values: Annotated[bool, typer.Option("--values", help="Show values as a whole.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Show values as the serializer's type and bytes.")] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show a thread and its newest checkpoint, or another one: its channels, metadata and pending writes."""
    with opened_savers(url, prefix, postgres, readable=not raw) as savers:
        info = savers.thread(thread)
        found = savers.saver.get_tuple(_config(thread, ns, checkpoint))
        if found is None and (checkpoint or ns):
            raise ThreadNotFound(
                f"{Address(thread, ns, checkpoint)} is not there: redis-saver tree names all checkpoints"
            )
        shown = _Values(savers, whole=values, raw=raw)
        if as_json:
            screen.emit({**about(info), "checkpoint": found and shown.as_json(found)})
            return 0
        for name, text in _about_thread(info):
            screen.line(f"{name:12}{text}")
        for text in _about_checkpoint(found) if found else ():
            screen.line(text)
        if found:
            shown.show(found)
    return 0


def _config(thread: str, ns: str, checkpoint: str | None) -> Any:
    more = {"checkpoint_id": checkpoint} if checkpoint else {}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **more}}


def _about_thread(info: Any) -> Iterator[tuple[str, str]]:
    yield "thread", screen.named(info.thread_id)
    yield "state", state_of(info)
    yield "updated", f"{info.updated_at.isoformat() if info.updated_at else '-'} ({screen.ago(info.updated_at)})"
    yield "checkpoints", f"{info.checkpoints:,}"
    yield "bytes", screen.size(info.bytes)
    yield "expires", screen.left(info.ttl, pinned=info.pinned)
    if info.owner is not None:
        lease = (
            f"{times.shown(info.owner.lease_left)} of the lease left"
            if info.owner.lease_left
            else "its lease has run out"
        )
        yield "owner", f"{screen.named(info.owner.by)}, since {info.owner.since.isoformat()}, {lease}"
    if hasattr(info, "tier"):
        yield "tier", f"{info.tier}, cold lacks {info.lacking:,} records"


def _about_checkpoint(found: CheckpointTuple) -> Iterator[str]:
    about: Any = found.metadata
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    yield f"checkpoint  {screen.named(found.checkpoint['id'])}"
    yield f"  step {about.get('step', '-')}, {screen.named(str(about.get('source', '-')))}, parent {screen.named(parent)}"
    run = about.get("run_id")
    if run:
        yield f"  run {screen.named(str(run))}"


class _Values:
    """How the values of a checkpoint are shown."""

    def __init__(self, savers: Savers, *, whole: bool, raw: bool) -> None:
        self._whole, self._raw = whole, raw
        serde: Any = savers.hot.serde
        self._serde = getattr(serde, "serde", serde)  # without encryption

    def show(self, found: CheckpointTuple) -> None:
        """Print channels and pending writes."""
        channels = found.checkpoint["channel_values"]
        rows = [[screen.named(name), type(value).__name__, self._text(value)] for name, value in channels.items()]
        screen.line("channels" if rows else "no channel has a value")
        self._print(rows)
        pending = [
            [screen.named(task), screen.named(channel), self._text(value)]
            for task, channel, value in found.pending_writes or ()
        ]
        if pending:
            screen.line("pending writes")
            self._print(pending)

    def _print(self, rows: Sequence[Sequence[str]]) -> None:
        if not (self._whole or self._raw):
            screen.table(("", "", ""), rows)
            return
        for name, kind, text in rows:
            screen.line(f"{name} ({kind}): {text}")

    def _text(self, value: Any) -> str:
        if self._raw:
            kind, data = self._serde.dumps_typed(value)
            return f"{screen.named(kind)} {data!r}"
        return repr(screen.plain(value)) if self._whole else screen.gist(value)

    def as_json(self, found: CheckpointTuple) -> Any:
        """The checkpoint, for JSON."""

        def one(value: Any) -> Any:
            if not self._raw:
                return screen.plain(value)
            kind, data = self._serde.dumps_typed(value)
            return {"type": kind, "hex": data.hex()}

        channels = {name: one(value) for name, value in found.checkpoint["channel_values"].items()}
        writes = [
            {"task_id": task, "channel": name, "value": one(value)} for task, name, value in found.pending_writes or ()
        ]
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
        return {
            "id": found.checkpoint["id"],
            "ts": found.checkpoint.get("ts"),
            "parent": parent,
            "metadata": screen.plain(found.metadata),
            "channels": channels,
            "pending_writes": writes,
        }


# -- tree


def _tree(
    thread: _Thread,
    *,
    ns: _AnyNamespace = None,
    limit: _Limit = 1000,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Draw the checkpoints of a thread, the oldest first: namespaces, forks, who ran, what waits or failed.

    Of what Redis has; no values are read.
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
            screen.table(("", "checkpoint", "step", "source", "ran", "pending", "created"), rows, right=("step",))
    if len(found) == limit:
        screen.note(f"the newest {limit:,} checkpoints; --limit shows more")
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


# -- diff, writes, history


def _diff(
    thread: _Thread,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="The id of a checkpoint.")],
    after: Annotated[
        str | None, typer.Argument(metavar="[AFTER]", help="The id of another one; by default the newest.")
    ] = None,
    *,
    ns: Namespace = "",
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show what differs between two checkpoints: channels, elements of lists and dicts, messages by their ids."""
    with opened_savers(url, prefix, postgres) as savers:
        found = savers.saver.diff(thread, before, after, checkpoint_ns=ns)
    if as_json:
        screen.emit(found)
        return 0
    rows: list[Sequence[str | Text]] = [
        [
            screen.styled(change.kind, screen.KINDS[change.kind]),
            ".".join(screen.named(str(step)) for step in (channel.channel, *change.path)),
            "" if change.kind == "added" else screen.gist(change.before),
            "" if change.kind == "removed" else screen.gist(change.after),
        ]
        for channel in found.channels
        for change in channel.changes
    ]
    if rows:
        screen.table(("", "what", "before", "after"), rows)
    else:
        screen.line("no channel differs")
    return 0


def _writes(
    thread: _Thread,
    *,
    ns: _AnyNamespace = None,
    channel: Annotated[str | None, typer.Option(metavar="NAME", help="Only writes to this channel.")] = None,
    limit: _Limit = 100,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show which task of which node wrote which channel, and how large.

    Of what Redis has, the newest first; no values are read. A node with a question mark is inferred, and so is a write without a task.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        stream = savers.hot.writes(thread, checkpoint_ns=ns)
        found = list(islice((one for one in stream if channel in (None, one.channel)), limit))
    if as_json:
        for one in found:
            screen.emit({**screen.plain(one), "inferred": one.inferred})
        return 0
    rows = [
        [
            "-" if one.step is None else str(one.step),
            _node(one),
            screen.named(one.channel),
            screen.size(one.bytes),
            screen.named(one.task_id),
            screen.named(one.checkpoint_id),
            ", ".join(map(screen.named, one.applied_in)) or "-",
            screen.named(one.checkpoint_ns) if one.checkpoint_ns else "",
        ]
        for one in found
    ]
    columns = ("step", "node", "channel", "bytes", "task", "began from", "applied in", "namespace")
    screen.table(columns, rows, right=("step", "bytes"))
    return 0


def _node(one: auditing.WriteInfo) -> str:
    """Who wrote: the node, or those that it may have been, or the caller."""
    if one.node is not None:
        return screen.named(one.node)
    if one.candidates:
        return f"{' or '.join(map(screen.named, one.candidates))}?"
    return f"({one.source})" if one.inferred and one.source else "-"


def _history(
    thread: _Thread,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel.")],
    *,
    ns: Namespace = "",
    limit: _Limit = 100,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show the versions of a channel: when, by whom, and how many bytes are new or shared with the version before.

    Of what Redis has, the newest first; no values are read.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        found = list(islice(savers.hot.channel_history(thread, channel, checkpoint_ns=ns), limit))
    if as_json:
        for one in found:
            screen.emit({**screen.plain(one), "new_bytes": one.new_bytes})
        return 0
    rows = [
        [
            screen.named(one.checkpoint_id),
            "-" if one.step is None else str(one.step),
            screen.named(one.source),
            ", ".join(dict.fromkeys(map(_node, one.writes))) or "-",
            screen.size(one.bytes),
            screen.size(one.new_bytes),
            screen.size(one.shared_bytes),
            one.created_at.strftime("%Y-%m-%d %H:%M:%S") if one.created_at else "-",
        ]
        for one in found
    ]
    columns = ("checkpoint", "step", "source", "node", "bytes", "new", "shared", "created")
    screen.table(columns, rows, right=("step", "bytes", "new", "shared"))
    return 0
