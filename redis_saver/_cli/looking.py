"""Commands that look at threads: `threads`, `show`, `tree`, `diff`, `writes`, `history`. `rows` makes their rows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import typer
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from rich.text import Text

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.delta import unstored
from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._checkpoint.threads import ANY, ThreadQuery, ThreadState
from redis_saver._cli import rows, screen
from redis_saver._cli.options import (
    AN_ID,
    ANY_NAMESPACE,
    JSON,
    NAMESPACE,
    POSTGRES,
    PREFIX,
    REDIS,
    WATCH,
    OneOfTwo,
    Savers,
    Thread,
    app,
    count,
    flag,
    limit,
    opened_savers,
    option,
    span,
)
from redis_saver._common import display, times
from redis_saver._common.config import Address
from redis_saver._common.display import counted, printable
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import ago, state_of
from redis_saver._tiered.thread_info import Damaged
from redis_saver.errors import EndpointError, ThreadNotFound

OTHER_PREFIX = "see whether --prefix, and the database in --redis, are those of the saver"
"""Remedy if there is no thread at all."""
_Order: TypeAlias = Literal["updated", "bytes", "checkpoints", "ttl", "name"]
_NEVER = datetime.min.replace(tzinfo=timezone.utc)
_ORDERS: dict[_Order, Callable[[Any], Any]] = {
    "updated": lambda info: info.updated_at or _NEVER,
    "bytes": lambda info: info.bytes,
    "checkpoints": lambda info: info.checkpoints,
    "ttl": lambda info: -(timedelta.max if info.ttl is None else info.ttl).total_seconds(),
    "name": lambda info: [-ord(letter) for letter in info.thread_id] + [1],
}
"""Sort keys. The greatest comes first."""
_THREADS_CODES = (
    "Exit code: 0; 1, some threads are damaged (stderr names them, and the others are shown); 2, the words, a URL, "
    "a login or a missing package is at fault."
)
_CODES = (
    "Exit code: 0; 2, there is no such thread or checkpoint, or a URL, a login or a missing package is at fault. With "
    "LANGGRAPH_AES_KEY set, values are decrypted. Objects are made only of classes that LangGraph calls safe."
)
_KINDS = {"added": "green", "removed": "red", "changed": "yellow"}


def _moment(text: str | datetime) -> datetime:
    """Read a time: how long ago, or ISO 8601."""
    if isinstance(text, datetime):
        return text
    try:
        return datetime.now(timezone.utc) - times.parse(text, name="")
    except (ValueError, OverflowError):
        pass
    if (moment := times.moment(text)) is None:
        raise typer.BadParameter(f"{screen.named(text)} is no time: write how long ago (2h), or 2026-11-25T03:00:00Z.")
    return moment


@app.command("threads", cls=OneOfTwo, epilog=_THREADS_CODES)
def _threads(
    name_prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only threads whose names begin with PREFIX.")
    ] = "",
    *,
    state: ThreadState | None = option(
        "Only threads that wait for an answer to interrupt() (interrupted), failed in a task, or neither (active)."
    ),
    updated_after: datetime | None = option(
        "Only threads updated after TIME: how long ago (2h), or ISO 8601.", "TIME", parser=_moment
    ),
    updated_before: datetime | None = option("Only threads last updated before TIME.", "TIME", parser=_moment),
    min_bytes: int = option("Only threads of N bytes or more.", "N", 0, parser=count("bytes", 0)),
    expires_within: timedelta | None = option(
        "Only threads that expire within this time, such as 1h.", "DURATION", parser=span
    ),
    pinned: bool | None = option("Only threads that are pinned, or that are not.", None, None, "--pinned/--not-pinned"),
    dirty: bool | None = option(
        "Only threads of which the cold tier lacks something, or of which it has all.", None, None, "--dirty/--clean"
    ),
    owned: bool | None = option(
        "Only threads that somebody owns by a lease that lasts, or only others.", None, None, "--owned/--free"
    ),
    sort: _Order = option(
        "Newest, largest, or with the most checkpoints first; first to expire first; or by name.", None, "updated"
    ),
    limit: int = limit(50, "threads", "Show N threads."),
    watch: bool = WATCH,
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Show which threads there are: their state, age, size and deadline.

    It looks at all keys of the server with SCAN, and reads no values.
    """
    query = ThreadQuery(
        name_prefix, state, updated_after, updated_before, min_bytes, expires_within, pinned, dirty, owned
    )
    with opened_savers(url, prefix, postgres) as savers:
        for _ in screen.looks(watch=watch, cleared=not as_json):
            tally = _Tally()
            infos = heapq.nlargest(limit, tally.sound(savers.threads(query)), key=_ORDERS[sort])
            if as_json:
                for info in infos:
                    screen.emit(rows.thread_json(info))
                continue
            rows.thread_table(infos, has_cold=savers.has_cold)
            more = f", {tally.threads - len(infos):,} of them not shown" if tally.threads > len(infos) else ""
            screen.note(f"{counted(tally.threads, 'thread')}, {counted(tally.bytes, 'byte')}{more}")
            if query == ANY and not tally.threads and not tally.damaged:
                screen.note(f"none under prefix {screen.named(prefix)}: {OTHER_PREFIX}")
    return 1 if tally.damaged else 0


class _Tally:
    """Counts of threads."""

    def __init__(self) -> None:
        self.threads = self.bytes = self.damaged = 0

    def sound(self, infos: Iterator[Any]) -> Iterator[Any]:
        """Count threads. Name the damaged ones, and yield the others."""
        for info in infos:
            if isinstance(info, Damaged):
                self.damaged += 1
                screen.note(f"damaged: {screen.named(info.thread_id)}: {printable(str(info.error))}")
                continue
            self.threads += 1
            self.bytes += info.bytes
            yield info


@app.command("show", epilog=_CODES)
def _show(
    thread: Thread,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help=f"A checkpoint: {AN_ID}; by default the newest.")
    ] = None,
    *,
    ns: str = NAMESPACE,
    values: bool = flag("--values", "Show values as a whole."),
    raw: bool = flag("--raw", "Show values as the serializer's type and bytes."),
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Show a thread and its newest checkpoint, or another one: its channels, metadata and pending writes."""
    with opened_savers(url, prefix, postgres, readable=not raw) as savers:
        info = savers.thread(thread)
        source, address = Source(savers.saver), Address(thread, ns, checkpoint)
        saved = source.search(address) if checkpoint else source.find(address)
        if saved is None and ns:
            namespace = f"namespace {display.shown(ns)} of thread {display.shown(thread)}"
            raise ThreadNotFound(f"{namespace} is not there: redis-saver tree names all namespaces and checkpoints")
        shown = _Values(savers, whole=values, raw=raw)
        if as_json:
            screen.emit({**rows.thread_json(info), "checkpoint": saved and shown.as_json(saved)})
            return 0
        for name, text in _about_thread(info):
            screen.line(f"{name:12}{text}")
        if saved:
            shown.show(saved)
    return 0


def _about_thread(info: Any) -> Iterator[tuple[str, str]]:
    yield "thread", screen.named(info.thread_id)
    yield "state", state_of(info)
    yield "updated", f"{info.updated_at.isoformat() if info.updated_at else '-'} ({ago(info.updated_at)})"
    yield "checkpoints", f"{info.checkpoints:,}"
    yield "bytes", rows.size(info.bytes)
    yield "expires", rows.left(info.ttl, pinned=info.pinned)
    if (owner := info.owner) is not None:
        left = owner.lease_left
        lease = f"{times.shown(left)} of the lease left" if left else "its lease has run out"
        yield "owner", f"{screen.named(owner.by)}, since {owner.since.isoformat()}, {lease}"
    if hasattr(info, "tier"):
        yield "tier", f"{info.tier}, cold lacks {info.lacking:,} records"


class _Values:
    """The presentation of a checkpoint with its values."""

    def __init__(self, savers: Savers, *, whole: bool, raw: bool) -> None:
        self._whole, self._raw = whole, raw
        serde: Any = savers.hot.serde
        self._serde = getattr(serde, "serde", serde)  # without encryption

    def show(self, saved: CheckpointTuple) -> None:
        """Print a checkpoint with its channels and pending writes."""
        metadata: Any = saved.metadata
        source, parent = screen.named(str(metadata.get("source", "-"))), screen.named(_parent(saved))
        screen.line(f"checkpoint  {screen.named(saved.checkpoint['id'])}")
        screen.line(f"  step {metadata.get('step', '-')}, {source}, parent {parent}")
        if run := metadata.get("run_id"):
            screen.line(f"  run {screen.named(str(run))}")
        values = saved.checkpoint["channel_values"]
        channels = [[screen.named(name), type(value).__name__, *self._texts(value)] for name, value in values.items()]
        screen.line("channels" if channels else "no channel has a value")
        self._print(channels)
        if missing := sorted(unstored(saved.metadata)):
            screen.note(
                f"not shown, as this checkpoint has no snapshot of it: {rows.names(missing)}; redis-saver writes tells "
                "what was written"
            )
        writes = saved.pending_writes or ()
        if pending := [[screen.named(task), screen.named(name), *self._texts(value)] for task, name, value in writes]:
            screen.line("pending writes")
            self._print(pending)

    def _print(self, lines: Sequence[Sequence[str]]) -> None:
        if not (self._whole or self._raw):
            screen.table(("", "", ""), lines)
            return
        for name, kind, *texts in lines:
            screen.line(f"{name} ({kind}):" if len(texts) > 1 else f"{name} ({kind}): {texts[0]}")
            for text in texts if len(texts) > 1 else ():
                screen.line(f"  {text}")

    def _texts(self, value: Any) -> Sequence[str]:
        """Return a value as one line, or a whole list of messages as a line for each."""
        if self._raw:
            kind, data = self._serde.dumps_typed(value)
            return [f"{screen.named(kind)} {data!r}"]
        if not self._whole:
            return [rows.gist(value)]
        each = value if isinstance(value, list) and any(isinstance(item, BaseMessage) for item in value) else [value]
        return [repr(screen.plain(item)) for item in each]

    def as_json(self, saved: CheckpointTuple) -> Any:
        """Return the checkpoint for JSON."""

        def plain(value: Any) -> Any:
            if not self._raw:
                return screen.plain(value)
            kind, data = self._serde.dumps_typed(value)
            return {"type": kind, "hex": data.hex()}

        writes = saved.pending_writes or ()
        return {
            "id": saved.checkpoint["id"],
            "ts": saved.checkpoint.get("ts"),
            "parent": _parent(saved),
            "metadata": saved.metadata,
            "channels": {name: plain(value) for name, value in saved.checkpoint["channel_values"].items()},
            "not_stored": sorted(unstored(saved.metadata)),
            "pending_writes": [
                {"task_id": task, "channel": name, "value": plain(value)} for task, name, value in writes
            ],
        }


def _parent(saved: CheckpointTuple) -> str | None:
    return saved.parent_config["configurable"]["checkpoint_id"] if saved.parent_config else None


@app.command("tree", epilog=_CODES)
def _tree(
    thread: Thread,
    *,
    ns: str | None = ANY_NAMESPACE,
    limit: int = limit(1000),
    url: str | None = REDIS,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Draw the checkpoints of a thread, the oldest first: namespaces, forks, who ran, what waits or failed.

    It shows what Redis has, and reads no values except Sends.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        entries = list(
            islice(driver_of(savers.hot).stream(auditing.entries(context_of(savers.hot), thread, ns)), limit)
        )
    columns = ("", "checkpoint", "step", "source", "ran", "pending", "created")
    for name, drawn in rows.tree(entries):
        if as_json:
            for row in drawn:
                screen.emit(row.as_json(thread))
            continue
        screen.line(f"namespace {screen.named(name)}" if name else "root")
        cells = [row.cells() for row in drawn]
        screen.table(columns, cells, right=("step",), ids=("checkpoint",), whole=("", "created"))
    if not entries:
        screen.note(f"no checkpoint{'' if ns is None else f' in namespace {screen.named(ns)}'}")
    if len(entries) == limit:
        screen.note(f"only the newest {counted(limit, 'checkpoint')}; --limit shows more")
    return 0


@app.command("diff", epilog=_CODES)
def _diff(
    thread: Thread,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=f"A checkpoint: {AN_ID}.")],
    after: Annotated[str | None, typer.Argument(metavar="AFTER", help="Another one; by default the newest.")] = None,
    *,
    ns: str = NAMESPACE,
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Show what is different between two checkpoints: channels, elements of lists and dicts, messages by their ids."""
    with opened_savers(url, prefix, postgres) as savers:
        source = Source(savers.saver)
        compared = source.compare(*(source.search(Address(thread, ns, name)) for name in (before, after)))
    if as_json:
        screen.emit(compared)
        return 0
    changes: list[Sequence[str | Text]] = [
        [
            Text(change.kind, _KINDS[change.kind]),
            ".".join(screen.named(str(part)) for part in (channel.channel, *change.path)),
            "" if change.kind == "added" else rows.gist(change.before),
            "" if change.kind == "removed" else rows.gist(change.after),
        ]
        for channel in compared.channels
        for change in channel.changes
    ]
    if changes:
        screen.table(("", "what", "before", "after"), changes)
    elif not compared.not_compared:
        screen.line("no channel differs")
    if compared.not_compared:
        screen.note(
            f"changed, but not compared, as a snapshot is missing: {rows.names(compared.not_compared)}; redis-saver "
            "writes tells what was written"
        )
    return 0


@app.command("writes", epilog=_CODES)
def _writes(
    thread: Thread,
    *,
    ns: str | None = ANY_NAMESPACE,
    channel: str | None = option("Only writes to this channel.", "NAME"),
    limit: int = limit(100),
    url: str | None = REDIS,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Show which task of which node wrote which channel, and how large.

    It shows what Redis has, newest first, and reads no values except Sends.
    A node with a question mark is inferred, and so is a write without a task.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        stream = savers.hot.writes(thread, checkpoint_ns=ns)
        writes = list(islice((write for write in stream if channel in (None, write.channel)), limit))
    if not writes:
        screen.note("no such write: see whether --channel and --ns are right")
    if as_json:
        for write in writes:
            screen.emit({**screen.plain(write), "inferred": write.inferred})
        return 0
    columns = ["step", "node", "channel", "bytes", "began from", "applied in", "task"]
    in_subgraphs = any(write.checkpoint_ns for write in writes)
    cells = []
    for write in writes:
        row = [rows.step(write.step), rows.writer(write), screen.named(write.channel), rows.size(write.bytes)]
        row += [screen.named(write.checkpoint_id), rows.names(write.applied_in), screen.named(write.task_id)]
        row += [screen.named(write.checkpoint_ns) if write.checkpoint_ns else ""] if in_subgraphs else []
        cells.append(row)
    columns += ["namespace"] if in_subgraphs else []
    screen.table(columns, cells, right=("step", "bytes"), ids=("began from", "applied in", "task"))
    return 0


@app.command("history", epilog=_CODES)
def _history(
    thread: Thread,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel.")],
    *,
    ns: str = NAMESPACE,
    limit: int = limit(100),
    url: str | None = REDIS,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Show the versions of a channel: when, by whom, and how many bytes are new or shared with the version before.

    It shows what Redis has, newest first, and reads no values except Sends.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        versions = list(islice(savers.hot.channel_history(thread, channel, checkpoint_ns=ns), limit))
    if not versions:
        place = f"namespace {screen.named(ns)}" if ns else "the root"
        raise EndpointError(
            f"channel {screen.named(channel)} never had a value in {place} of thread {screen.named(thread)}: "
            "redis-saver show names the channels"
        )
    if as_json:
        for version in versions:
            screen.emit({**screen.plain(version), "new_bytes": version.new_bytes})
        return 0
    cells = []
    for version in versions:
        writers = ", ".join(dict.fromkeys(map(rows.writer, version.writes))) or "-"
        row = [screen.named(version.checkpoint_id), rows.step(version.step), screen.named(version.source), writers]
        sizes = map(rows.size, (version.bytes, version.new_bytes, version.shared_bytes))
        cells.append([*row, *sizes, rows.time(version.created_at)])
    columns = ("checkpoint", "step", "source", "node", "bytes", "new", "shared", "created")
    screen.table(columns, cells, right=("step", "bytes", "new", "shared"), ids=("checkpoint",), whole=("created",))
    return 0
