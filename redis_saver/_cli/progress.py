"""What the command `flush` prints about its progress."""

from __future__ import annotations

import math
import sys
import time
from typing import Protocol

from redis_saver._client.urls import without_password
from redis_saver._common.display import printable
from redis_saver._tiered.stats import Stats

TOLD_EVERY = 10.0
"""The shortest time between two lines with numbers, in seconds."""


class Settings(Protocol):
    """What of the command's options it is about."""

    @property
    def redis(self) -> str: ...

    @property
    def postgres(self) -> str: ...

    @property
    def prefix(self) -> str: ...

    @property
    def interval(self) -> float: ...

    @property
    def workers(self) -> int: ...

    @property
    def cold_history(self) -> str: ...

    @property
    def once(self) -> bool: ...

    @property
    def quiet(self) -> bool: ...


class Teller:
    """Prints the progress to stdout, and at the end what is left."""

    def __init__(self, given: Settings) -> None:
        self._given = given
        self._said = self._error = ""
        self._at = -math.inf

    def begin(self, hot: str, cold: str) -> None:
        """Say what the command is about to do."""
        given = self._given
        often = "once" if given.once else f"every {given.interval:g} s"
        self._say(
            f"from {hot} (prefix {printable(given.prefix)}) to {cold}, {often}, {given.workers} threads at a time, history: {given.cold_history}"
        )

    def tell(self, stats: Stats) -> None:
        """Print the numbers, if they have changed, and the last ones were not printed just now."""
        if time.monotonic() - self._at >= TOLD_EVERY:
            self._tell(stats)

    def _tell(self, stats: Stats) -> None:
        numbers = (
            f"backlog {stats.backlog} records of {stats.dirty_threads} threads, oldest {stats.oldest_seconds:.0f} s, "
            f"flushed {stats.flushed}, "
            + (f"coalesced {stats.coalesced}, " if stats.coalesced else "")
            + f"set aside {stats.set_aside}"
        )
        error = self._shown(stats.last_error)
        if numbers == self._said and error == self._error:
            return
        self._say(numbers + (f", last error: {error}" if error != self._error else ""))
        self._said, self._error, self._at = numbers, error, time.monotonic()

    def end(self, stats: Stats, left: int | None) -> int:
        """Say what is left, and return the exit code."""
        self._tell(stats)
        if left == 0:
            self._say("ended: nothing is left")
            return 0
        met = f"; last error: {self._shown(stats.last_error)}" if stats.last_error else ""
        if left is None:
            warn(f"ended: Redis does not answer, so it is not known how many records are left there{met}")
        else:
            warn(f"ended: {left} records are left in Redis, for the next flusher{met}")
        return 1

    def _shown(self, error: str) -> str:
        for url in (self._given.redis, self._given.postgres):
            error = without_password(error, url)
        return printable(error)

    def _say(self, text: str) -> None:
        if not self._given.quiet:
            sys.stdout.write(f"flush: {text}\n")
            sys.stdout.flush()


def warn(text: str) -> None:
    """Say on stderr what is wrong."""
    sys.stderr.write(f"redis-saver: {text}\n")
    sys.stderr.flush()
