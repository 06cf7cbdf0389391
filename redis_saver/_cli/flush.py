"""The command `flush`: flushes to Postgres what write-behind savers of other processes left in Redis.

It runs until SIGTERM or SIGINT, and outlives outages of both servers.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from redis_saver._checkpoint.saver import driver_of
from redis_saver._cli.arguments import Prefix, count, redis_option
from redis_saver._cli.health import Cold, Hot, Reachable, Refused
from redis_saver._cli.progress import Teller, warn
from redis_saver._common import times
from redis_saver._common.display import shown
from redis_saver._tiered.context import ColdHistory
from redis_saver._tiered.sync import TieredSaver

ASKED_EVERY = 5.0
"""How often, in seconds, it looks whether the servers can be reached."""
TO_STOP, AT_ONCE = 10.0, 600.0
"""Default seconds: for the drain after a signal; and for all of it with `--once`."""
_MAX_PAUSE = 5.0
_STEP = 0.1
_TURN = 1.0
"""Seconds of a drain after which it looks at servers and signals."""


_CODES = (
    "Exit code: 0, nothing is left; 1, records are left (stderr says how many); 2, a URL, a login, a missing package or a missing table is at "
    "fault. With LANGGRAPH_AES_KEY set, encrypted values are read, and all values are written encrypted."
)


def _seconds(text: str | float) -> float:
    """Read a number of seconds, or a duration such as `90s` or `10m`."""
    if isinstance(text, float):
        return text
    try:
        seconds = float(text) if text[-1:].isdigit() else times.parse(text, name="").total_seconds()
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise typer.BadParameter(f"{shown(text)} is no number of seconds, and no duration such as 90s or 10m.")
    return seconds


def _above_zero(text: str | float) -> float:
    if not (seconds := _seconds(text)):
        raise typer.BadParameter(f"{shown(text)}: write more than 0 seconds.")
    return seconds


@dataclass(frozen=True)
class Options:
    """What the command was given."""

    redis: str
    postgres: str
    prefix: str
    interval: float
    cold_history: ColdHistory
    workers: int
    once: bool
    timeout: float | None
    setup: bool
    quiet: bool


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("flush", epilog=_CODES)(_flush)


def _flush(
    *,
    redis: Annotated[str | None, redis_option("The hot tier, such as redis://host:6379.")] = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=["POSTGRES_URL", "DATABASE_URL"],
            help="The cold tier, such as postgresql://user@host/database.",
        ),
    ] = None,
    prefix: Prefix = "langgraph",
    interval: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=_above_zero,
            show_default="1s",
            help="How often to look for records that others left; one flusher at a time looks, at least 5s apart.",
        ),
    ] = 1.0,
    cold_history: Annotated[ColdHistory, typer.Option(help="Which checkpoints Postgres gets.")] = "all",
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            parser=count("workers", 1),
            help="Threads (conversations) to flush at once; each takes a connection to Postgres.",
        ),
    ] = 4,
    once: Annotated[bool, typer.Option("--once", help="Flush what is there now, and end.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=_seconds,
            show_default=f"{TO_STOP:.0f}s; with --once {AT_ONCE:.0f}s",
            help="How long to flush after a signal; with --once, how long in all.",
        ),
    ] = None,
    setup: Annotated[
        bool, typer.Option("--setup", help="Create LangGraph's tables first, or bring them up to date.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
) -> int:
    """Flush to Postgres what write-behind TieredSavers left in Redis.

    It runs until SIGTERM or SIGINT, flushes the rest, and ends. It outlives outages of both servers. Run as many as you like: they share the work.
    """
    for option, url, variables in (
        ("redis", redis, "REDIS_URL"),
        ("postgres", postgres, "POSTGRES_URL or DATABASE_URL"),
    ):
        if not url:
            raise Refused(f"--{option} URL is missing, and there is no {variables} in the environment")
    given = Options(redis or "", postgres or "", prefix, interval, cold_history, workers, once, timeout, setup, quiet)
    with (
        closing(Hot(given.redis, given.prefix)) as hot,
        closing(Cold(given.postgres, given.workers, setup=given.setup)) as cold,
        _asked_to_stop() as stop,
    ):
        return _Run(given, hot, cold, stop).run()


class _Stop:
    """Whether a signal asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until a signal comes. Returns whether one came."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _STEP))
        return self.asked


@contextmanager
def _asked_to_stop() -> Iterator[_Stop]:
    """A context in which the first signal asks to stop. A second one has its usual effect."""
    stop, before = _Stop(), dict[signal.Signals, Any]()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(*_: object) -> None:
        stop.asked = True
        restore()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


class _Watch:
    """Looks now and then whether a server can be reached. Says once that it cannot, and once that it can again."""

    def __init__(self, server: Reachable) -> None:
        self._server, self._is_up, self.why = server, True, ""

    def is_up(self) -> bool:
        """Look whether the server can be reached, and say so if that has changed.

        Raises:
            RedisSaverError: Trying again would not help.
        """
        why = self._server.trouble()
        if why and self._is_up:
            warn(f"{self._server.name}: {why}; it is tried again until it answers")
        if not why and not self._is_up:
            warn(f"{self._server.name}: it answers again")
        self._is_up, self.why = not why, f"{self._server.name}: {why}" if why else ""
        return self._is_up


class _Run:
    """One run of the command."""

    def __init__(self, given: Options, hot: Hot, cold: Cold, stop: _Stop) -> None:
        self._given, self._hot, self._cold, self._stop = given, hot, cold, stop
        self._watches = (_Watch(hot), _Watch(cold))
        self._teller = Teller(given)

    def run(self) -> int:
        given = self._given
        patience = AT_ONCE if given.once else TO_STOP
        patience = patience if given.timeout is None else given.timeout
        deadline = time.monotonic() + patience if given.once else math.inf
        if not self._wait_for_servers(deadline):
            why = "; ".join(watch.why for watch in self._watches if watch.why)
            warn(f"ended before both servers answered, so nothing was brought to cold: {why or 'asked to stop'}")
            return 1
        saver = TieredSaver(
            self._hot.saver,
            self._cold.saver,
            mode="write-behind",
            flusher=not given.once,
            flush_interval=given.interval,
            flush_workers=given.workers,
            cold_history=given.cold_history,
        )
        _instrument(saver)
        self._teller.begin(self._hot.name, self._cold.name)
        if given.once:
            left = self._drain(saver, deadline)
        else:
            self._go_on(saver)
            left = self._attempt(saver, lambda: saver.close(patience))
        return self._teller.end(saver.stats(), left)

    def _wait_for_servers(self, deadline: float) -> bool:
        """Wait until both servers can be reached. Returns False if the time is up, or a signal asks to stop."""
        pause = _STEP
        while not self._are_up():
            left = deadline - time.monotonic()
            if left <= 0 or self._stop.wait(min(pause, left)):
                return False
            pause = min(2 * pause, _MAX_PAUSE)
        return not self._stop.asked

    def _are_up(self) -> bool:
        up = [watch.is_up() for watch in self._watches]  # both, so that each says what is wrong
        return all(up)

    def _attempt(self, saver: TieredSaver, act: Callable[[], int]) -> int | None:
        """Run something, and return how many records are left then; None if Redis does not answer."""
        try:
            return act()
        except driver_of(saver.hot).failures:
            return None

    def _go_on(self, saver: TieredSaver) -> None:
        """Watch the flusher until a signal asks to stop."""
        self._catch_up(saver)  # with what another flusher met an outage
        asked, were_up = time.monotonic(), True
        while not self._stop.wait(_STEP):
            self._teller.tell(saver.stats())
            if time.monotonic() - asked < ASKED_EVERY:
                continue
            are_up = self._are_up()
            if are_up and not were_up:
                self._catch_up(saver)
            asked, were_up = time.monotonic(), are_up

    def _catch_up(self, saver: TieredSaver) -> None:
        """After an outage of Postgres, flush at once the records that would be tried again only later."""
        before: float = math.inf
        while not self._stop.asked:
            left = self._attempt(saver, lambda: saver.flush(_TURN))
            if not left or left >= before:
                return
            before = left
            self._teller.tell(saver.stats())

    def _drain(self, saver: TieredSaver, deadline: float) -> int | None:
        """Flush all that is left now. Ends early if Postgres is up and refuses the rest."""
        while True:
            before = saver.stats()
            seconds = max(0.0, min(_TURN, deadline - time.monotonic()))
            left = self._attempt(saver, lambda seconds=seconds: saver.flush(seconds))  # type: ignore[misc]
            now = saver.stats()
            self._teller.tell(now)
            if left == 0 or self._stop.asked or time.monotonic() >= deadline:
                return left
            brought = now.flushed + now.coalesced - before.flushed - before.coalesced
            if not brought and self._are_up() and left == now.set_aside and now.refused > before.refused:
                return left


def _instrument(saver: TieredSaver) -> None:
    """Export the saver's stats if OpenTelemetry was loaded before, as `opentelemetry-instrument redis-saver flush` does."""
    if sys.modules.get("opentelemetry.metrics"):
        from redis_saver import telemetry  # noqa: PLC0415

        telemetry.instrument(saver)
