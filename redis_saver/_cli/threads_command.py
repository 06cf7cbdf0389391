"""The command `threads`: which threads there are."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal, TypeAlias

import typer

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._checkpoint.threads import ThreadQuery, ThreadState
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, Postgres, Prefix, Redis, count
from redis_saver._cli.opening import Savers, opened_savers
from redis_saver._cli.overview import Damaged, about, some_threads, state_of
from redis_saver._common import times
from redis_saver._common.display import printable

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
_CODES = (
    "Exit code: 0; 2, a URL, a login or a missing package is at fault, or a thread is damaged (the message names it)."
)


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("threads", epilog=_CODES)(_threads)


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


def _span(text: str | timedelta) -> timedelta:
    """Read a duration."""
    try:
        return text if isinstance(text, timedelta) else times.parse(text, name="")
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("=")) from error


def _threads(
    prefix_of_names: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only threads whose names begin so.")] = "",
    *,
    state: Annotated[
        ThreadState | None, typer.Option(help="Waiting for an answer to interrupt(), failed in a task, or neither.")
    ] = None,
    updated_after: Annotated[
        datetime | None,
        typer.Option(metavar="TIME", parser=_moment, help="Updated after: how long ago (2h), or an ISO 8601 time."),
    ] = None,
    updated_before: Annotated[
        datetime | None, typer.Option(metavar="TIME", parser=_moment, help="Not updated since then.")
    ] = None,
    min_bytes: Annotated[int, typer.Option(metavar="N", parser=count("bytes", 0), help="At least so large.")] = 0,
    expires_within: Annotated[
        timedelta | None, typer.Option(metavar="DURATION", parser=_span, help="Gone so soon, such as 1h.")
    ] = None,
    pinned: Annotated[bool | None, typer.Option("--pinned/--not-pinned", help="Pinned, or not.")] = None,
    dirty: Annotated[
        bool | None, typer.Option("--dirty/--clean", help="Whether the cold tier still has to get some of it.")
    ] = None,
    sort: Annotated[
        Order, typer.Option(help="The newest, largest, longest first; those that expire first; by name.")
    ] = "updated",
    limit: Annotated[int, typer.Option(metavar="N", parser=count("threads", 1), help="Show so many.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show which threads there are: their state, age, size and deadline.

    It looks at all keys of the server with SCAN, and reads no values.
    """
    asked = ThreadQuery(prefix_of_names, state, updated_after, updated_before, min_bytes, expires_within, pinned, dirty)
    with opened_savers(url, prefix, postgres) as savers:
        for _ in _again(watch=watch):
            counts = _Counts()
            found = heapq.nlargest(limit, counts.counted(_all(savers, asked)), key=_ORDERS[sort])
            if as_json:
                for one in found:
                    screen.emit(about(one))
            else:
                _show(found, has_cold=savers.has_cold)
                more = f", {counts.threads - len(found):,} of them not shown" if counts.threads > len(found) else ""
                screen.note(f"{counts.threads:,} threads, {counts.bytes:,} bytes{more}")
    return 1 if counts.damaged else 0


def _all(savers: Savers, asked: ThreadQuery) -> Iterator[Any]:
    """The threads that are looked for; of one server also the damaged ones, as `Damaged`."""
    if savers.has_cold:
        conditions = asked._asdict()
        found: Iterator[Any] = savers.saver.threads(conditions.pop("prefix"), **conditions)
        return found
    return driver_of(savers.hot).stream(some_threads(context_of(savers.hot), asked))


def _again(*, watch: bool) -> Iterator[None]:
    """Once, or every two seconds on a cleared screen."""
    yield
    while watch:
        time.sleep(2)
        screen.console().clear()
        yield


class _Counts:
    """How many threads went by, each once: SCAN may name one twice."""

    def __init__(self) -> None:
        self.threads = self.bytes = self.damaged = 0
        self._seen = set[str]()

    def counted(self, found: Iterator[Any]) -> Iterator[Any]:
        """The same threads. Damaged ones are named, and left out."""
        for one in found:
            if isinstance(one, Damaged):
                self.damaged += 1
                screen.note(f"damaged: {screen.named(one.thread_id)}: {printable(str(one.error))}")
            elif one.thread_id not in self._seen:
                self._seen.add(one.thread_id)
                self.threads += 1
                self.bytes += one.bytes
                yield one


def _show(found: list[Any], *, has_cold: bool) -> None:
    columns = [
        "thread",
        "state",
        "updated",
        "checkpoints",
        "bytes",
        "expires",
        *(["tier", "lacking"] if has_cold else []),
    ]
    rows = []
    for one in found:
        state = state_of(one)
        row = [
            screen.named(one.thread_id),
            screen.styled(state, screen.STATES[state]),
            screen.ago(one.updated_at),
            f"{one.checkpoints:,}",
            screen.size(one.bytes),
            screen.left(one.ttl, pinned=one.pinned),
        ]
        rows.append([*row, *([one.tier, f"{one.lacking:,}"] if has_cold else [])])
    screen.table(columns, rows, right=("checkpoints", "bytes", "lacking"))
