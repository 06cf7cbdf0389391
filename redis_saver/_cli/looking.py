"""The commands that ask what a thread did: `diff`, `writes`, `history`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from redis_saver._checkpoint.audit_records import WriteInfo
from redis_saver._cli import screen
from redis_saver._cli.arguments import (
    AN_ID,
    LOOKING,
    AnyNamespace,
    Json,
    Limit,
    Namespace,
    Postgres,
    Prefix,
    Redis,
    Thread,
)
from redis_saver._cli.opening import opened_savers
from redis_saver._common.config import Address
from redis_saver._inspector.source import Source
from redis_saver.errors import EndpointError


def add(app: typer.Typer) -> None:
    """Add the commands."""
    for name, command in (("diff", _diff), ("writes", _writes), ("history", _history)):
        app.command(name, epilog=LOOKING)(command)


def _diff(
    thread: Thread,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=f"A checkpoint: {AN_ID}.")],
    after: Annotated[str | None, typer.Argument(metavar="AFTER", help="Another one; by default the newest.")] = None,
    *,
    ns: Namespace = "",
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show what is different between two checkpoints: channels, elements of lists and dicts, messages by their ids."""
    with opened_savers(url, prefix, postgres) as savers:
        source = Source(savers.saver)
        found = source.compare(*(source.search(Address(thread, ns, name)) for name in (before, after)))
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
    elif not found.not_compared:
        screen.line("no channel differs")
    if found.not_compared:
        named = ", ".join(map(screen.named, found.not_compared))
        screen.note(
            f"changed, but not compared, as a snapshot is missing: {named}; redis-saver writes tells what was written"
        )
    return 0


def _writes(
    thread: Thread,
    *,
    ns: AnyNamespace = None,
    channel: Annotated[str | None, typer.Option(metavar="NAME", help="Only writes to this channel.")] = None,
    limit: Limit = 100,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show which task of which node wrote which channel, and how large.

    It shows what Redis has, newest first, and reads no values except Sends. A node with a question mark is inferred, and so is a write without a task.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        stream = savers.hot.writes(thread, checkpoint_ns=ns)
        found = list(islice((one for one in stream if channel in (None, one.channel)), limit))
    if not found:
        screen.note("no such write: see whether --channel and --ns are right")
    if as_json:
        for one in found:
            screen.emit({**screen.plain(one), "inferred": one.inferred})
        return 0
    in_subgraphs = any(one.checkpoint_ns for one in found)
    rows = [
        [
            "-" if one.step is None else str(one.step),
            _node(one),
            screen.named(one.channel),
            screen.size(one.bytes),
            screen.named(one.checkpoint_id),
            ", ".join(map(screen.named, one.applied_in)) or "-",
            screen.named(one.task_id),
            *([screen.named(one.checkpoint_ns) if one.checkpoint_ns else ""] if in_subgraphs else []),
        ]
        for one in found
    ]
    columns = ("step", "node", "channel", "bytes", "began from", "applied in", "task")
    screen.table(
        (*columns, "namespace") if in_subgraphs else columns,
        rows,
        right=("step", "bytes"),
        ids=("began from", "applied in", "task"),
    )
    return 0


def _node(one: WriteInfo) -> str:
    """Who wrote: the node, or those that it may have been, or the caller."""
    if one.node is not None:
        return screen.named(one.node)
    if one.candidates:
        return f"{' or '.join(map(screen.named, one.candidates))}?"
    return f"({one.source})" if one.inferred and one.source else "-"


def _history(
    thread: Thread,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel.")],
    *,
    ns: Namespace = "",
    limit: Limit = 100,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show the versions of a channel: when, by whom, and how many bytes are new or shared with the version before.

    It shows what Redis has, newest first, and reads no values except Sends.
    """
    with opened_savers(url, prefix) as savers:
        savers.thread(thread)
        found = list(islice(savers.hot.channel_history(thread, channel, checkpoint_ns=ns), limit))
    if not found:
        raise EndpointError(
            f"channel {screen.named(channel)} never had a value in {f'namespace {screen.named(ns)}' if ns else 'the root'} of thread "
            f"{screen.named(thread)}: redis-saver show names the channels"
        )
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
    screen.table(columns, rows, right=("step", "bytes", "new", "shared"), ids=("checkpoint",), whole=("created",))
    return 0
