"""The command `show`: a thread, and one of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint.delta import unstored
from redis_saver._cli import screen
from redis_saver._cli.arguments import AN_ID, LOOKING, Json, Namespace, Postgres, Prefix, Redis, Thread
from redis_saver._cli.opening import Savers, opened_savers
from redis_saver._cli.overview import about, state_of
from redis_saver._common import display, times
from redis_saver._common.config import Address
from redis_saver._inspector.source import Source
from redis_saver.errors import ThreadNotFound


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show", epilog=LOOKING)(_show)


def _show(
    thread: Thread,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help=f"A checkpoint: {AN_ID}; by default the newest.")
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
        source, address = Source(savers.saver), Address(thread, ns, checkpoint)
        found = source.search(address) if checkpoint else source.find(address)
        if found is None and ns:
            namespace = f"namespace {display.shown(ns)} of thread {display.shown(thread)}"
            raise ThreadNotFound(f"{namespace} is not there: redis-saver tree names all namespaces and checkpoints")
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
        rows = [[screen.named(name), type(value).__name__, *self._texts(value)] for name, value in channels.items()]
        screen.line("channels" if rows else "no channel has a value")
        self._print(rows)
        if missing := sorted(unstored(found.metadata)):
            named = ", ".join(map(screen.named, missing))
            screen.note(
                f"not shown, as this checkpoint has no snapshot of it: {named}; redis-saver writes tells what was written"
            )
        pending = [
            [screen.named(task), screen.named(channel), *self._texts(value)]
            for task, channel, value in found.pending_writes or ()
        ]
        if pending:
            screen.line("pending writes")
            self._print(pending)

    def _print(self, rows: Sequence[Sequence[str]]) -> None:
        if not (self._whole or self._raw):
            screen.table(("", "", ""), rows)
            return
        for name, kind, *texts in rows:
            screen.line(f"{name} ({kind}):" if len(texts) > 1 else f"{name} ({kind}): {texts[0]}")
            for text in texts if len(texts) > 1 else ():
                screen.line(f"  {text}")

    def _texts(self, value: Any) -> Sequence[str]:
        """A value as lines: one line, but a line for each message of a list shown as a whole."""
        if self._raw:
            kind, data = self._serde.dumps_typed(value)
            return [f"{screen.named(kind)} {data!r}"]
        if not self._whole:
            return [screen.gist(value)]
        each = value if isinstance(value, list) and any(isinstance(item, BaseMessage) for item in value) else [value]
        return [repr(screen.plain(item)) for item in each]

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
            "not_stored": sorted(unstored(found.metadata)),
            "pending_writes": writes,
        }
