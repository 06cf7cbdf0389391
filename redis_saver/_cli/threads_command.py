"""The command `threads`: which threads there are."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.text import Text

from redis_saver._checkpoint.ownership import Owner
from redis_saver._checkpoint.threads import ANY, ThreadQuery, ThreadState
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, OneOfTwo, Postgres, Prefix, Redis, count, span
from redis_saver._cli.opening import opened_savers
from redis_saver._cli.overview import OTHER_PREFIX, about, state_of
from redis_saver._common import times
from redis_saver._common.display import counted, printable
from redis_saver._tiered.all_threads import Damaged

Order: TypeAlias = Literal["updated", "bytes", "checkpoints", "ttl", "name"]
_NEVER = datetime.min.replace(tzinfo=timezone.utc)
_ORDERS: dict[Order, Callable[[Any], Any]] = {
    "updated": lambda one: one.updated_at or _NEVER,
    "bytes": lambda one: one.bytes,
    "checkpoints": lambda one: one.checkpoints,
    "ttl": lambda one: -(timedelta.max if one.ttl is None else one.ttl).total_seconds(),
    "name": lambda one: [-ord(letter) for letter in one.thread_id] + [1],
}
"""What comes first is the greatest of these."""
_CODES = "Exit code: 0; 1, some threads are damaged (stderr names them, and the others are shown); 2, the words, a URL, a login or a missing package is at fault."


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("threads", cls=OneOfTwo, epilog=_CODES)(_threads)


def _moment(text: str | datetime) -> datetime:
    """Read a time: how long ago, or ISO 8601."""
    if isinstance(text, datetime):
        return text
    try:
        return datetime.now(timezone.utc) - times.parse(text, name="")
    except (ValueError, OverflowError):
        pass
    if (found := times.moment(text)) is None:
        raise typer.BadParameter(f"{screen.named(text)} is no time: write how long ago (2h), or 2026-11-25T03:00:00Z.")
    return found


def _threads(
    prefix_of_names: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only threads whose names begin with PREFIX.")
    ] = "",
    *,
    state: Annotated[
        ThreadState | None,
        typer.Option(
            help="Only threads that wait for an answer to interrupt() (interrupted), failed in a task, or neither (active)."
        ),
    ] = None,
    updated_after: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME", parser=_moment, help="Only threads updated after TIME: how long ago (2h), or ISO 8601."
        ),
    ] = None,
    updated_before: Annotated[
        datetime | None, typer.Option(metavar="TIME", parser=_moment, help="Only threads last updated before TIME.")
    ] = None,
    min_bytes: Annotated[
        int, typer.Option(metavar="N", parser=count("bytes", 0), help="Only threads of N bytes or more.")
    ] = 0,
    expires_within: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=span, help="Only threads that expire within this time, such as 1h."),
    ] = None,
    pinned: Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Only threads that are pinned, or that are not.")
    ] = None,
    dirty: Annotated[
        bool | None,
        typer.Option(
            "--dirty/--clean", help="Only threads of which the cold tier lacks something, or of which it has all."
        ),
    ] = None,
    owned: Annotated[
        bool | None,
        typer.Option("--owned/--free", help="Only threads that somebody owns by a lease that lasts, or only others."),
    ] = None,
    sort: Annotated[
        Order,
        typer.Option(help="Newest, largest, or with the most checkpoints first; first to expire first; or by name."),
    ] = "updated",
    limit: Annotated[int, typer.Option(metavar="N", parser=count("threads", 1), help="Show N threads.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show which threads there are: their state, age, size and deadline.

    It looks at all keys of the server with SCAN, and reads no values.
    """
    asked = ThreadQuery(
        prefix_of_names, state, updated_after, updated_before, min_bytes, expires_within, pinned, dirty, owned
    )
    with opened_savers(url, prefix, postgres) as savers:
        for _ in screen.looks(watch=watch, cleared=not as_json):
            counts = _Counts()
            found = heapq.nlargest(limit, counts.counted(savers.threads(asked)), key=_ORDERS[sort])
            if as_json:
                for one in found:
                    screen.emit(about(one))
            else:
                _show(found, has_cold=savers.has_cold)
                more = f", {counts.threads - len(found):,} of them not shown" if counts.threads > len(found) else ""
                screen.note(f"{counted(counts.threads, 'thread')}, {counted(counts.bytes, 'byte')}{more}")
                if asked == ANY and not counts.threads and not counts.damaged:
                    screen.note(f"none under prefix {screen.named(prefix)}: {OTHER_PREFIX}")
    return 1 if counts.damaged else 0


class _Counts:
    """How many threads went by."""

    def __init__(self) -> None:
        self.threads = self.bytes = self.damaged = 0

    def counted(self, found: Iterator[Any]) -> Iterator[Any]:
        """The same threads. Damaged ones are named, and left out."""
        for one in found:
            if isinstance(one, Damaged):
                self.damaged += 1
                screen.note(f"damaged: {screen.named(one.thread_id)}: {printable(str(one.error))}")
                continue
            self.threads += 1
            self.bytes += one.bytes
            yield one


def _owner(owner: Owner | None) -> str:
    """Who owns a thread; one whose lease has run out is late."""
    if owner is None:
        return ""
    return screen.named(owner.by) if owner.lease_left else f"{screen.named(owner.by)} (late)"


def _show(found: list[Any], *, has_cold: bool) -> None:
    is_owned = any(one.owner is not None for one in found)
    columns = [
        "thread",
        "state",
        "updated",
        "checkpoints",
        "bytes",
        "expires",
        *(["tier", "lacking"] if has_cold else []),
        *(["owner"] if is_owned else []),
    ]
    rows: list[list[str | Text]] = []
    for one in found:
        state = state_of(one)
        row: list[str | Text] = [
            screen.named(one.thread_id),
            screen.styled(state, screen.STATES[state]),
            screen.ago(one.updated_at),
            f"{one.checkpoints:,}",
            screen.size(one.bytes),
            screen.left(one.ttl, pinned=one.pinned),
        ]
        row += [one.tier, f"{one.lacking:,}"] if has_cold else []
        rows.append([*row, *([_owner(one.owner)] if is_owned else [])])
    screen.table(columns, rows, right=("checkpoints", "bytes", "lacking"))
