"""The command `flush`: writes what write-behind left in Redis to Postgres, until a signal, and watches both servers."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import typer
from typing_extensions import Self

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._cli import screen
from redis_saver._cli.options import MAX_NUMBER, command, encryption_of, note_url
from redis_saver._cli.servers import postgres_url, redis_url
from redis_saver._cli.watched import Cold, Hot, warn
from redis_saver._client.urls import without_password
from redis_saver._common import times
from redis_saver._common.display import printable, shown
from redis_saver._engine.stats import TierStats
from redis_saver._migrate.opening import opened
from redis_saver._tiered.backlog import LONGEST_PAUSE, PAUSE, pause_flushing
from redis_saver._tiered.flush_queue import ColdHistory
from redis_saver._tiered.saver import TieredSaver
from redis_saver.errors import EndpointError

CHECK_EVERY = 5.0
"""Seconds between two checks of the servers."""
PRINT_EVERY = 10.0
"""Minimum seconds between two progress lines."""
STUCK_AFTER = 30.0
"""Seconds without a flushed record after which the run counts as stuck, if a record waits that long."""
TO_STOP, AT_ONCE = 10.0, 600.0
_TIMEOUTS = f"{TO_STOP:.0f}s; with --once {AT_ONCE:.0f}s"
"""Default timeouts: for the drain after a signal, and for the whole run with `--once`."""
_MAX_PAUSE = 5.0
_STEP = 0.1
_TURN = 1.0
"""Seconds of a drain between two checks of servers and signals."""


def _seconds(text: str) -> float:
    """Read a number of seconds, or a duration such as `90s` or `10m`."""
    try:
        seconds = float(text) if text[-1:].isdigit() else times.parse(text, name="").total_seconds()
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise typer.BadParameter(f"{shown(text)} is no number of seconds, and no duration such as 90s or 10m.")
    return seconds


def _above_zero(text: str) -> float:
    if not (seconds := _seconds(text)):
        raise typer.BadParameter(f"{shown(text)}: write more than 0 seconds.")
    return seconds


@command("flush")
def _flush(
    *,
    redis: str | None = typer.Option(None, envvar="REDIS_URL", callback=note_url),
    postgres: str | None = typer.Option(None, envvar=["POSTGRES_URL", "DATABASE_URL"]),
    prefix: str = typer.Option("langgraph", envvar="REDIS_SAVER_PREFIX"),
    keys_file: str | None = None,
    interval: float = typer.Option("1s", parser=_above_zero),
    cold_history: ColdHistory = "all",
    workers: int = typer.Option(4, min=1, max=MAX_NUMBER),
    once: bool = False,
    pause: bool = False,
    length: float | None = typer.Option(None, "--for", parser=_above_zero, show_default="1h"),
    resume: bool = False,
    timeout: float | None = typer.Option(None, parser=_seconds, show_default=_TIMEOUTS),
    setup: bool = False,
    quiet: bool = False,
) -> int:
    """Flush the records of write-behind TieredSavers from Redis to Postgres.

    It runs until SIGTERM or SIGINT, then flushes the rest and ends. It survives outages of both servers.
    Several flushers share the work.

    Options:
        redis URL: The hot tier, such as redis://host:6379.
        postgres URL: The cold tier, such as postgresql://user@host/database.
        interval DURATION: Time between scans for records of other processes. All flushers together scan at most once
            every 5s.
        cold_history: Which checkpoints Postgres gets.
        workers N: Number of threads (conversations) to flush at once. Each takes a connection to Postgres.
        once: Flush the present records, and end.
        pause: Pause the flushers of all processes, such as for maintenance of Postgres, and end. Needs only Redis.
        length DURATION: Length of the pause, up to 24h. Then it ends by itself.
        resume: End the pause, and end.
        timeout DURATION: Time limit after a signal; with --once, of the whole run.
        setup: First create LangGraph's tables, or update them.
        quiet: Print errors only.

    Exit codes:
        0: nothing is left.
        1: records are left. Their number is on stderr.
        2: a URL or a login is wrong, or a package or a table is missing.

    If LANGGRAPH_AES_KEY is set, encrypted values are read, and all values are written encrypted. Encrypted threads need
    their keys, and are encrypted in Postgres, too.
    """
    if length is not None and not pause:
        raise typer.BadParameter("it is the length of a --pause.", param_hint="--for")
    if pause or resume:
        if pause and resume:
            raise typer.BadParameter("--pause and --resume: give one of the two.")
        return _pause(redis_url(redis), prefix, (PAUSE if length is None else length) if pause else 0)
    redis, postgres = redis_url(redis), postgres_url(postgres)
    if not postgres:
        raise EndpointError("write --postgres URL, or set POSTGRES_URL or DATABASE_URL in the environment")
    timeout = (AT_ONCE if once else TO_STOP) if timeout is None else timeout
    deadline = time.monotonic() + timeout if once else math.inf

    hot = Hot(redis, prefix, encryption_of(keys_file))
    with closing(hot), closing(Cold(postgres, workers, setup=setup)) as cold, _Stop() as stop:
        run = _Run(hot, cold, stop, quiet=quiet)
        if not run.wait_for_servers(deadline):
            why = "; ".join(server.why for server in (hot, cold) if server.why) or "asked to stop"
            warn(f"ended before both servers answered, so nothing was flushed: {why}")
            return 1
        saver = TieredSaver(
            hot.saver,
            cold.saver,
            mode="write-behind",
            flusher=not once,
            flush_interval=interval,
            flush_workers=workers,
            cold_history=cold_history,
        )
        if sys.modules.get("opentelemetry.metrics"):  # `opentelemetry-instrument redis-saver flush` loads it
            from redis_saver import telemetry  # noqa: PLC0415

            telemetry.instrument(saver)
        often = "once" if once else f"every {interval:g} s"
        run.say(f"from {hot.name} ({prefix!r}) to {cold.name}, {often}, {workers} workers, {cold_history} history")
        if once:
            left = run.drain(saver, deadline)
        else:
            run.go_on(saver)
            left = run.attempt(lambda: saver.close(timeout))
        return run.end(saver.stats().tiers, left)


def _pause(redis: str, prefix: str, seconds: float) -> int:
    """Pause flushing for some seconds. 0 ends a pause."""
    if seconds > LONGEST_PAUSE:
        raise typer.BadParameter(f"a pause may last up to {LONGEST_PAUSE / 3600:.0f}h.", param_hint="--for")
    with opened(redis, target=False, prefix=prefix) as endpoint:
        driver_of(endpoint.saver).run(pause_flushing(context_of(endpoint.saver).keyspace, seconds))
    how = f"paused for {times.shown(timedelta(seconds=seconds))}" if seconds else "goes on"
    screen.line(f"flush: {how}, in all processes with prefix {prefix!r}")
    return 0


class _Stop:
    """A block in which the first signal only asks to stop. A second one has its usual effect."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True
        self.__exit__()

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds`, or until a signal comes. Return True if one came."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _STEP))
        return self.asked


@dataclass
class _Run:
    """A run of `flush`. It watches the servers, and prints progress."""

    hot: Hot
    cold: Cold
    stop: _Stop
    quiet: bool
    _numbers: str = ""
    _error: str = ""
    _printed_at: float = -math.inf
    _flushed: int = -1
    _backlog: int = 0
    _flushed_at: float = 0.0
    _lost: int = 0

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if not self.quiet:
            screen.line(f"flush: {text}")

    def tell(self, stats: TierStats, *, at_once: bool = False) -> None:
        """Print a progress line, unless its numbers are unchanged or the last one is recent. Warn if it is stuck."""
        self._warn_if_stuck(stats)
        if stats.lost_records > self._lost:
            lost, self._lost = stats.lost_records - self._lost, stats.lost_records
            warn(f"Redis lost its data, and with it about {lost} records that Postgres does not have")
        if not at_once and time.monotonic() - self._printed_at < PRINT_EVERY:
            return
        numbers = f"backlog {stats.backlog} records of {stats.dirty_threads} threads, "
        numbers += f"oldest {stats.oldest_seconds:.0f} s, flushed {stats.flushed}"
        numbers += (f", coalesced {stats.coalesced}" if stats.coalesced else "") + f", set aside {stats.set_aside}"
        numbers += ", paused" if stats.paused_seconds else ""
        error = self._without_passwords(stats.last_error)
        if (numbers, error) != (self._numbers, self._error):
            self.say(numbers + (f", last error: {error}" if error != self._error else ""))
            self._numbers, self._error, self._printed_at = numbers, error, time.monotonic()

    def _warn_if_stuck(self, stats: TierStats) -> None:
        """Warn if nobody flushes although both servers answer. Outages are reported by the checks of the servers."""
        now, flushed = time.monotonic(), stats.flushed + stats.coalesced
        goes_on = flushed != self._flushed or stats.backlog < self._backlog or stats.oldest_seconds < STUCK_AFTER
        self._backlog = stats.backlog
        if goes_on or not stats.backlog or stats.paused_seconds or self.hot.why or self.cold.why:
            self._flushed, self._flushed_at = flushed, now
        elif now - self._flushed_at >= STUCK_AFTER:
            self._flushed_at = now
            error = f"; last error: {self._without_passwords(stats.last_error)}" if stats.last_error else ""
            locks = "Look for locks on the tables of Postgres (pg_locks)"
            warn(
                f"nothing was flushed for {STUCK_AFTER:g} s. {stats.backlog} records of {stats.dirty_threads} threads "
                f"wait, the oldest for {stats.oldest_seconds:.0f} s. "
                f"{f'{stats.set_aside} are refused again and again' if stats.set_aside else locks}{error}"
            )

    def _without_passwords(self, error: str) -> str:
        for server in (self.hot, self.cold):
            error = without_password(error, server.url)
        return printable(error)

    def end(self, stats: TierStats, left: int | None) -> int:
        """Print how many records are left, and return the exit code."""
        self.tell(stats, at_once=True)
        if left == 0:
            self.say("ended: nothing is left")
            return 0
        error = f"; last error: {self._without_passwords(stats.last_error)}" if stats.last_error else ""
        if stats.paused_seconds:
            error = f"; flushing is paused for another {stats.paused_seconds:.0f} s: --resume ends the pause{error}"
        if left is None:
            warn(f"ended: Redis does not answer, so it is not known how many records are left there{error}")
        else:
            warn(f"ended: {left} records are left in Redis, for the next flusher{error}")
        return 1

    def wait_for_servers(self, deadline: float) -> bool:
        """Wait until both servers can be reached. Return False at the deadline, or after a signal."""
        pause = _STEP
        while not self._are_up():
            left = deadline - time.monotonic()
            if left <= 0 or self.stop.wait(min(pause, left)):
                return False
            pause = min(2 * pause, _MAX_PAUSE)
        return not self.stop.asked

    def _are_up(self) -> bool:
        return all([self.hot.is_up(), self.cold.is_up()])  # a list, so that both are checked and print their errors

    def attempt(self, act: Callable[[], int]) -> int | None:
        """Call `act`, and return its number of remaining records. None if Redis does not answer."""
        try:
            return act()
        except driver_of(self.hot.saver).failures:
            return None

    def go_on(self, saver: TieredSaver) -> None:
        """Watch the flusher and the servers until a signal arrives."""
        self.attempt(lambda: saver.flush(_TURN))
        checked_at = time.monotonic()
        while not self.stop.wait(_STEP):
            self.tell(saver.stats().tiers)
            if time.monotonic() - checked_at >= CHECK_EVERY:
                self._are_up()
                checked_at = time.monotonic()

    def drain(self, saver: TieredSaver, deadline: float) -> int | None:
        """Flush all records. End early if Postgres is up and refuses the rest."""
        while True:
            before = saver.stats().tiers
            seconds = max(0.0, min(_TURN, deadline - time.monotonic()))
            left = self.attempt(lambda seconds=seconds: saver.flush(seconds))  # type: ignore[misc]
            now = saver.stats().tiers
            self.tell(now)
            if left == 0 or now.paused_seconds or self.stop.asked or time.monotonic() >= deadline:
                return left
            flushed = now.flushed + now.coalesced - before.flushed - before.coalesced
            if not flushed and self._are_up() and left == now.set_aside and now.refused > before.refused:
                return left
