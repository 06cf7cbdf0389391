"""Commands that look at threads: `threads`, `show`, `tree`, `diff`, `writes`, `history`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import typer
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from rich.text import Text

from redis_saver._checkpoint.auditing import WriteInfo
from redis_saver._checkpoint.delta import unstored
from redis_saver._checkpoint.threads import ANY, ThreadInfo, ThreadQuery, ThreadState
from redis_saver._cli import screen
from redis_saver._cli.options import JSON, MAX_NUMBER, command, past, span
from redis_saver._cli.servers import Servers
from redis_saver._common import times
from redis_saver._common.config import Address
from redis_saver._common.display import counted, printable, shown
from redis_saver._inspector import picture
from redis_saver._inspector.health import OTHER_PREFIX
from redis_saver._inspector.rows import PREVIEWED, Order, TreeRow, Turn, is_routine, list_threads, page_of, text_tree
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import ago, gist, moment, named, nothing, owner_text, state_of
from redis_saver._migrate.files import new_file
from redis_saver.errors import EndpointError, ThreadNotFound

STATES = {"orphaned": "red", "interrupted": "yellow", "failed": "red", "tool failed": "red", "active": ""}
"""Styles of states."""
MARKS = {"interrupted": "◆", "answered": "◇", "failed": "✗", "tool failed": "✗", "": "●"}
_DELTA = (
    "These DeltaChannels have no snapshot here, only changes, which redis-saver writes and tree --find show. "
    "Your graph makes the values"
)
_LIMIT: Any = typer.Option(100, min=1, max=MAX_NUMBER)
_TREE, _SEARCHED = 100, 2_000
"""Number of checkpoints that `tree` reads by default, and when it looks for a turn or a text."""
_UUID = 36
"""Length of a UUID. Longer names of runs are cut on a narrow terminal."""
_GIST = 60
"""Maximum number of characters of a shortened value."""

# -- threads


def thread_json(info: Any) -> dict[str, Any]:
    """Return the information about a thread for JSON."""
    more = {name: getattr(info, name) for name in ("tier", "lacking") if hasattr(info, name)}
    return {**{name: getattr(info, name) for name in ThreadInfo._fields}, "state": state_of(info), **more}


def _thread_table(infos: Sequence[Any], before: Mapping[str, int], *, has_cold: bool) -> None:
    """Print threads as a table, with the checkpoints that came since `before`, a number of each thread."""
    is_owned = any(info.owner is not None for info in infos)
    columns = ["thread", "state", "updated", "checkpoints", "bytes", "expires"]
    columns += [*(["tier", "lacking"] if has_cold else []), *(["owner"] if is_owned else [])]
    rows: list[list[str | Text]] = []
    for info in infos:
        state, owner = state_of(info), "" if info.owner is None else owner_text(info.owner)
        row: list[str | Text] = [named(info.thread_id), Text(state, STATES[state]), ago(info.updated_at)]
        grown = info.checkpoints - before[info.thread_id]
        row += [f"{info.checkpoints:,}{f' ({grown:+,})' if grown else ''}", size(info.bytes), info.expires]
        row += [info.tier, f"{info.lacking:,}"] if has_cold else []
        rows.append([*row, *([owner] if is_owned else [])])
    screen.table(columns, rows, right=("checkpoints", "bytes", "lacking"))


def _orphan_table(infos: Sequence[Any]) -> None:
    """Print orphaned threads as a table. The run, and since when, come first, because narrow terminals cut the rest."""
    rows = []
    for info in infos:
        owner = info.owner
        row = [named(info.thread_id), named(owner.run_id), ago(owner.lease_until), named(owner.by)]
        rows.append([*row, ago(info.updated_at), f"{info.checkpoints:,}", size(info.bytes), info.expires])
    columns = ("thread", "run", "lease ended", "owner", "updated", "checkpoints", "bytes", "expires")
    whole = ("run", "lease ended") if all(len(row[1]) <= _UUID for row in rows) else ("lease ended",)
    screen.table(columns, rows, right=("checkpoints", "bytes"), whole=whole)


def size(amount: int | None) -> str:
    """Return a number of bytes as text."""
    return "-" if amount is None else f"{amount:,}"


# -- checkpoints


def tree_cells(lane: str, turn: str, row: TreeRow) -> list[str | Text]:
    """Return a checkpoint of a tree as cells of the table."""
    entry = row.entry
    said = Text(row.notice or row.preview, STATES.get(row.state, ""))
    ran = " / ".join([*map(named, row.levels), names(row.ran or [entry.source or "-"])])
    cells: list[str | Text] = [lane + MARKS[row.state], turn, named(entry.id), ran, said]
    return [*cells, moment(entry.created_at), size(row.bytes or None), names(row.next)]


def tree_json(thread: str, turn: Turn, row: TreeRow) -> dict[str, Any]:
    """Return a checkpoint of a tree for JSON."""
    entry = row.entry
    return {
        "thread_id": thread,
        "turn": turn.number,
        "checkpoint_ns": entry.ns,
        "checkpoint_id": entry.id,
        **{name: getattr(entry, name) for name in ("parent", "step", "source", "created_at")},
        **{name: getattr(row, name) for name in ("ran", "next", "state", "preview", "notice", "bytes")},
        "tokens": sum(row.tokens.values()),
        "pending": sorted({write.channel for write in entry.writes}),
    }


def step(number: int | None) -> str:
    """Return the number of a step as text."""
    return "-" if number is None else str(number)


def names(values: Sequence[str]) -> str:
    """Return names as text."""
    return ", ".join(map(named, values)) or "-"


def writer(write: WriteInfo) -> str:
    """Return the node that wrote. If that is not known: the nodes that may have, or the source of the checkpoint."""
    if write.node is not None:
        return named(write.node)
    if write.candidates:
        return f"{' or '.join(map(named, write.candidates))}?"
    return f"({write.source})" if write.inferred and write.source else "-"


# -- values


def short(value: Any) -> str:
    """Return a value as a short line."""
    text = gist(value)
    cut = text if len(text) <= _GIST else f"{text[:_GIST]}..."
    return cut if cut.isprintable() else shown(cut)


_CODES = """Exit codes:
    0: success.
{}    2: there is no such thread or checkpoint, a URL or a login is wrong, or a package is missing.

If LANGGRAPH_AES_KEY is set, values are decrypted. Only objects of classes that LangGraph calls safe are made.
"""
_OF_REDIS, _CODES = _CODES.format(""), _CODES.format("    1: Postgres did not answer, and what Redis has is shown.\n")
_KINDS = {"added": "green", "removed": "red", "changed": "yellow"}


@command("threads", reads=True)
def _threads(
    servers: Servers,
    name_prefix: str = "",
    *,
    state: ThreadState | None = None,
    updated_after: datetime | None = typer.Option(None, parser=past),
    updated_before: datetime | None = typer.Option(None, parser=past),
    min_bytes: int = typer.Option(0, min=0, max=MAX_NUMBER),
    expires_within: timedelta | None = typer.Option(None, parser=span),
    pinned: bool | None = typer.Option(None, "--pinned/--not-pinned"),
    dirty: bool | None = typer.Option(None, "--dirty/--clean"),
    owned: bool | None = typer.Option(None, "--owned/--free"),
    sort: Order = "updated",
    limit: int = typer.Option(50, min=1, max=MAX_NUMBER),
    watch: bool = False,
    as_json: bool = JSON,
) -> int:
    """List threads with their state, age, size and expiry.

    It scans all keys of the server, and reads no values.
    With --watch it repeats that, and shows how many checkpoints came since the first time.

    Options:
        name_prefix PREFIX: Only threads whose names begin with PREFIX.
        state: Only threads that wait for an answer to interrupt() (interrupted), that failed in a task (failed),
            whose owner's lease ended during a run (orphaned), or others (active).
        updated_after TIME: Only threads updated after TIME: how long ago (2h), or ISO 8601.
        updated_before TIME: Only threads last updated before TIME.
        min_bytes N: Only threads of N bytes or more.
        expires_within DURATION: Only threads that expire within this time, such as 1h.
        pinned: Only pinned threads, or only others.
        dirty: Only threads that the cold tier lacks records of, or only others.
        owned: Only threads with an owner whose lease lasts, or only others.
        sort: Most or least recently updated, largest, most checkpoints, or first to expire first; or by name.
        limit N: Show N threads.

    Exit codes:
        0: success.
        1: some threads are damaged. Their names are on stderr, and the others are shown. Or Postgres did not answer,
            and what Redis has is shown.
        2: an argument, a URL or a login is wrong, or a package is missing.
    """
    between = updated_after, updated_before
    query = ThreadQuery(name_prefix, state, *between, min_bytes, expires_within, pinned, dirty, owned)
    before, has_seen_all = dict[str, int](), False
    with servers.savers() as savers:
        for clear in screen.looks(watch=watch):
            listing = list_threads(savers.source, query, sort, limit)
            if not as_json:
                clear()
            for info in listing.damaged:
                screen.note(f"damaged: {named(info.thread_id)}: {printable(str(info.error))}")
            if as_json:
                for info in listing.threads:
                    screen.emit(thread_json(info))
                continue
            now = {info.thread_id: info.checkpoints for info in listing.threads}
            before = (dict.fromkeys(now, 0) if has_seen_all else now) | before
            has_seen_all = has_seen_all or (query == ThreadQuery(name_prefix) and listing.count == len(now))
            if state == "orphaned":
                _orphan_table(listing.threads)
            else:
                _thread_table(listing.threads, before, has_cold=savers.has_cold)
            more = listing.count - len(listing.threads)
            not_shown = f", {more:,} of them not shown" if more else ""
            screen.note(f"{counted(listing.count, 'thread')}, {counted(listing.bytes, 'byte')}{not_shown}")
            if query == ANY and not listing.count and not listing.damaged:
                screen.note(f"none under prefix {named(servers.prefix)}: {OTHER_PREFIX}")
            elif "://" in name_prefix and not listing.count:
                screen.note("PREFIX is the beginning of thread names: write the URL of the server after --redis")
    return 1 if listing.damaged else 0


@command("show", _CODES, reads=True)
def _show(
    servers: Servers,
    thread: str,
    checkpoint: str | None = None,
    *,
    ns: str = "",
    values: bool = False,
    as_json: bool = JSON,
) -> int:
    """Show a thread and one of its checkpoints: channels, metadata and pending writes.

    Options:
        checkpoint CHECKPOINT: Id of a checkpoint, or the beginning or end of one. Default: the newest checkpoint.
        values: Show whole values.
    """
    with servers.savers() as savers:
        info = savers.thread(thread)
        address = Address(thread, ns, checkpoint)
        saved = savers.source.search(address) if checkpoint else savers.source.find(address)
        if saved is None and ns:
            namespace = f"namespace {shown(ns)} of thread {shown(thread)}"
            raise ThreadNotFound(f"{namespace} is not there: redis-saver tree lists all namespaces and checkpoints")
        if as_json:
            screen.emit({**thread_json(info), "checkpoint": saved and _checkpoint_json(saved)})
            return 0
        for name, text in _about_thread(info):
            screen.line(f"{name:12}{text}")
        if saved:
            _show_checkpoint(saved, savers.source, whole=values)
    return 0


def _about_thread(info: Any) -> Iterator[tuple[str, str]]:
    yield "thread", named(info.thread_id)
    yield "state", state_of(info)
    yield "updated", f"{info.updated_at.isoformat() if info.updated_at else '-'} ({ago(info.updated_at)})"
    yield "checkpoints", f"{info.checkpoints:,}"
    yield "bytes", size(info.bytes)
    yield "expires", info.expires
    if (owner := info.owner) is not None:
        lease = f", {times.shown(owner.lease_left)} of the lease left" if owner.lease_left else ""
        yield "owner", f"{owner_text(owner)}, since {owner.since.isoformat()}{lease}"
    if hasattr(info, "tier"):
        yield "tier", f"{info.tier}, cold lacks {info.lacking:,} records"


def _show_checkpoint(saved: CheckpointTuple, source: Source, *, whole: bool) -> None:
    """Print a checkpoint with its channels and pending writes."""
    metadata: Any = saved.metadata
    by, parent = named(str(metadata.get("source", "-"))), named(_parent(saved))
    screen.line(f"checkpoint  {named(saved.checkpoint['id'])}")
    screen.line(f"  step {metadata.get('step', '-')}, {by}, parent {parent}")
    if run := metadata.get("run_id"):
        screen.line(f"  run {named(str(run))}")
    stored = saved.checkpoint["channel_values"]
    missing = sorted(unstored(saved.metadata) - stored.keys())
    values = {**stored, **source.chats(saved, missing)}
    screen.line("channels" if values else "no channel has a value")
    _print_values([(name, type(value).__name__, value) for name, value in values.items()], whole=whole)
    if missing := [name for name in missing if name not in values]:
        screen.note(f"not shown: {names(missing)}. {_DELTA}")
    if saved.pending_writes:
        screen.line("pending writes")
        _print_values(saved.pending_writes, whole=whole)


def _print_values(values: Sequence[tuple[str, str, Any]], *, whole: bool) -> None:
    """Print values, each with two names: in one line, or whole, with a line for each message."""
    if not whole:
        screen.table(("", "", ""), [(named(one), named(other), short(of)) for one, other, of in values])
        return
    for one, other, value in values:
        head = f"{named(one)} ({named(other)}):"
        each = value if isinstance(value, list) and any(isinstance(item, BaseMessage) for item in value) else [value]
        texts = [repr(screen.plain(item)) for item in each]
        screen.line("\n  ".join([head, *texts]) if len(texts) > 1 else f"{head} {texts[0]}")


def _checkpoint_json(saved: CheckpointTuple) -> Any:
    """Return a checkpoint for JSON."""
    writes = saved.pending_writes or ()
    return {
        "id": saved.checkpoint["id"],
        "ts": saved.checkpoint.get("ts"),
        "parent": _parent(saved),
        "metadata": saved.metadata,
        "channels": saved.checkpoint["channel_values"],
        "not_stored": sorted(unstored(saved.metadata)),
        "pending_writes": [{"task_id": task, "channel": name, "value": value} for task, name, value in writes],
    }


def _parent(saved: CheckpointTuple) -> str | None:
    return saved.parent_config["configurable"]["checkpoint_id"] if saved.parent_config else None


@command("tree", _CODES, reads=True)
def _tree(
    servers: Servers,
    thread: str,
    *,
    ns: str | None = None,
    turn: int | None = None,
    find: str | None = None,
    failed: bool = False,
    before: datetime | None = typer.Option(None, parser=past),
    limit: int | None = typer.Option(None, min=1, max=MAX_NUMBER),
    svg: Path | None = None,
    as_json: bool = JSON,
) -> int:
    """Draw the newest turns of a thread, oldest first: what each node said, forks, questions to humans, and failures.

    A turn is an input with the checkpoints up to the end of its run, also after a resume. Turn -1 is the newest.

    Bytes are those of the writes that made a checkpoint. They are unknown (-) if only Postgres has it.
    It shows the checkpoints in Redis. Of their values it reads only Sends and pending writes of up to 16 kB.
    With --postgres it also shows those that only Postgres has. Postgres sends them with all their values.

    Options:
        ns NAMESPACE: Only this namespace, empty for the root. Default: all.
        turn N: Only this turn: -1 for the newest, -2 for the one before.
        find TEXT: Only turns with this text in an id, a node, a preview, a value that was read, or a time, such as
            "2026-11-24 19:".
        failed: Only turns in which a task or a tool failed.
        before TIME: Only what was before TIME, by the ids of checkpoints: how long ago (2h), or ISO 8601. Turn -1 is
            then the newest one before.
        limit N: Read the newest N checkpoints, 50 in a round trip. Default: 100, or 2,000 with --turn, --find or
            --failed.
        svg FILE: Write these turns as a picture to this new file instead.
    """
    is_search = turn is not None or bool(find) or failed
    most = limit or (_SEARCHED if is_search else _TREE)
    with servers.savers() as savers:
        savers.thread(thread)
        until = times.id_at(before) if before else None
        entries = savers.source.entries_of_both(thread, ns, until, most + 1, longest=PREVIEWED)
        where = " that Redis has: --postgres URL reads the cold tier, too" if savers.lacks_cold(thread) else ""
    grouped, older = page_of(entries, most)
    shown = [one for one in grouped if _is_wanted(one, turn, find, failed=failed)]
    _show_tree(thread, shown, svg, as_json=as_json)
    if not entries:
        there = "" if ns is None else f" in namespace {named(ns)}"
        screen.note(f"no checkpoint{there}{' before that time' if before else ''}")
    elif not shown:
        whose = "the newest" if older else "the" if where else "its"
        screen.note(f"not found in {whose} {counted(len(grouped), 'turn')}{where}")
    if older:
        more = "--find, --failed and --turn look further back" if most == _TREE else "--limit reads more"
        screen.note(f"only the newest {counted(len(grouped), 'turn')}: {more}")
    return 0


def _is_wanted(turn: Turn, number: int | None, text: str | None, *, failed: bool) -> bool:
    is_found = not text or any(row.has(text, nothing) for row in turn.rows)
    return number in (None, turn.number) and is_found and (turn.has_failed or not failed)


def _show_tree(thread: str, turns: Sequence[Turn], svg: Path | None, *, as_json: bool) -> None:
    if svg is not None:
        _draw(svg, picture.svg(thread, turns), sum(len(one.rows) for one in turns), as_json=as_json)
    elif as_json:
        for _, turn, row in text_tree(turns):
            screen.emit(tree_json(thread, turn, row))
    else:
        _print_tree(turns)


def _print_tree(turns: Sequence[Turn]) -> None:
    cells, last = list[list[str | Text]](), 0
    for lane, turn, row in text_tree(turns):
        cells.append(tree_cells(lane, "" if turn.number == last else str(turn.number), row))
        last = turn.number
    columns = ("", "turn", "checkpoint", "ran", "says", "created (UTC)", "bytes", "next")
    if cells:
        screen.table(columns, cells, right=("turn", "bytes"), ids=("checkpoint",), whole=("", "created (UTC)"))


def _draw(svg: Path, drawing: str, checkpoints: int, *, as_json: bool) -> None:
    """Write a picture to a new file.

    Raises:
        EndpointError: There is such a file, or it cannot be written.
    """
    name = named(str(svg))
    if svg.exists() or svg.is_symlink():
        raise EndpointError(f"--svg {name}: it exists already; write another name, or remove it. Nothing was written")
    try:
        with new_file(svg) as file:
            file.write(drawing.encode())
    except OSError as error:
        raise EndpointError(f"--svg {name}: {printable(str(error))}") from error
    report = {"file": str(svg), "checkpoints": checkpoints}
    screen.show(report, f"{name}: {counted(checkpoints, 'checkpoint')}", as_json=as_json)


@command("diff", _CODES, reads=True)
def _diff(
    servers: Servers, thread: str, before: str, after: str | None = None, *, ns: str = "", as_json: bool = JSON
) -> int:
    """Compare two checkpoints: channels, elements of lists and dicts, and messages by their ids.

    Options:
        before BEFORE: Id of a checkpoint, or the beginning or end of one.
        after AFTER: The other checkpoint. Default: the newest.
    """
    with servers.savers() as savers:
        saved = [savers.source.search(Address(thread, ns, name)) for name in (before, after)]
        compared = savers.source.compare(*saved)
    if as_json:
        screen.emit(compared)
        return 0
    changes: list[Sequence[str | Text]] = [
        [
            Text(change.kind, _KINDS[change.kind]),
            ".".join(named(str(part)) for part in (channel.channel, *change.path)),
            "" if change.kind == "added" else short(change.before),
            "" if change.kind == "removed" else short(change.after),
        ]
        for channel in sorted(compared.channels, key=lambda one: is_routine(one.channel))
        for change in channel.changes
    ]
    if changes:
        screen.table(("", "what", "before", "after"), changes)
    elif not compared.not_compared:
        screen.line("no channel differs")
    if compared.not_compared:
        screen.note(f"not compared: {names(compared.not_compared)}. {_DELTA}")
    return 0


@command("writes", _OF_REDIS, has_postgres=False)
def _writes(
    servers: Servers,
    thread: str,
    *,
    ns: str | None = None,
    channel: str | None = None,
    limit: int = _LIMIT,
    as_json: bool = JSON,
) -> int:
    """List the writes of a thread, newest first, with their node, task, channel and size.

    It shows the writes in Redis, and reads no values except Sends.
    A node with a question mark is inferred, and so is a write without a task.

    Options:
        ns NAMESPACE: Only this namespace, empty for the root. Default: all.
        channel NAME: Only writes to this channel.
    """
    with servers.savers() as savers:
        savers.thread(thread)
        stream = savers.hot.writes(thread, checkpoint_ns=ns)
        writes = list(islice((write for write in stream if channel in (None, write.channel)), limit))
    if not writes:
        screen.note("no such write: check --channel and --ns")
    if as_json:
        for write in writes:
            screen.emit({**screen.plain(write), "inferred": write.inferred})
        return 0
    columns = ["step", "node", "channel", "bytes", "began from", "applied in", "task"]
    in_subgraphs = any(write.checkpoint_ns for write in writes)
    cells = []
    for write in writes:
        row = [step(write.step), writer(write), named(write.channel), size(write.bytes)]
        row += [named(write.checkpoint_id), names(write.applied_in), named(write.task_id)]
        row += [named(write.checkpoint_ns) if write.checkpoint_ns else ""] if in_subgraphs else []
        cells.append(row)
    columns += ["namespace"] if in_subgraphs else []
    screen.table(columns, cells, right=("step", "bytes"), ids=("began from", "applied in", "task"))
    return 0


@command("history", _OF_REDIS, has_postgres=False)
def _history(
    servers: Servers, thread: str, channel: str, *, ns: str = "", limit: int = _LIMIT, as_json: bool = JSON
) -> int:
    """List the versions of a channel, newest first, with their node, and how many bytes are new or shared.

    It shows the versions in Redis, and reads no values except Sends. Shared bytes are those of the version before.

    Options:
        channel CHANNEL: The channel.
    """
    with servers.savers() as savers:
        savers.thread(thread)
        versions = list(islice(savers.hot.channel_history(thread, channel, checkpoint_ns=ns), limit))
    if not versions:
        place = f"namespace {named(ns)}" if ns else "the root"
        raise EndpointError(f"channel {named(channel)} never had a value in {place}: redis-saver show lists all")
    if as_json:
        for version in versions:
            screen.emit({**screen.plain(version), "new_bytes": version.new_bytes})
        return 0
    cells = []
    for version in versions:
        writers = ", ".join(dict.fromkeys(map(writer, version.writes))) or "-"
        row = [named(version.checkpoint_id), step(version.step), named(version.source), writers]
        sizes = map(size, (version.bytes, version.new_bytes, version.shared_bytes))
        cells.append([*row, *sizes, moment(version.created_at)])
    columns = ("checkpoint", "step", "source", "node", "bytes", "new", "shared", "created")
    screen.table(columns, cells, right=("step", "bytes", "new", "shared"), ids=("checkpoint",), whole=("created",))
    return 0
