"""Counts of a cache, and pauses after its server has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from redis_saver._common import forks
from redis_saver._common.logs import Log, ThrottledLog, log_text
from redis_saver._engine.requests import Operation, T
from redis_saver._engine.stats import CacheStats, Live
from redis_saver.errors import KeyConflict, KeyUnavailable, ThreadDamaged, UnsupportedFormat

LOG = Log("redis_saver.cache")
OnError: TypeAlias = Literal["skip", "raise"]
"""If the server fails, `get` and `set` answer as if the cache were empty, or raise."""
MIN_PAUSE = 1.0
"""Shortest pause after a connection failure, in seconds. During a pause the cache sends nothing."""
PATIENCE = 10
"""Length of the pause, as a multiple of the time that the failed call took. So callers wait at most a tenth of the
time."""
ERRORS = (KeyConflict, ThreadDamaged, UnsupportedFormat)
"""Our errors for stored bytes that are not a cache's. Our other errors are the caller's mistakes, and always raised."""

_NEVER = float("-inf")


class LiveCache(Live, CacheStats):
    """The live counts of a cache."""

    kind = "cache"


class Health:
    """Counts what a cache does, and skips its server while it fails."""

    def __init__(
        self,
        server: str,
        on_error: OnError,
        failures: tuple[type[Exception], ...],
        replies: type[Exception],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count from zero.

        Args:
            server: Name of the server in log lines.
            on_error: The cache's setting.
            failures: The client's exceptions for a failing server.
            replies: Exceptions for error replies. As the server does answer, no pause follows.
            now: Clock in seconds.
        """
        self._server, self._on_error, self._replies, self._now = server, on_error, replies, now
        self._throttled = ThrottledLog("redis_saver.cache", now)
        self._failures: tuple[type[Exception], ...] = (*failures, *ERRORS, KeyUnavailable)
        self.counts: LiveCache = LiveCache()
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, ask the server again."""
        self._asks_again = _NEVER
        self._is_trying = False
        self._failing: dict[str, float] = {}

    def guarded(self, what: str, operation: Operation[T]) -> Operation[T | None]:
        """Run an operation. If the server fails, count the error, then return None (`on_error="skip"`) or raise it."""
        began, is_trying = self._now(), self._asks_again > _NEVER
        if is_trying:
            if self._is_trying or began < self._asks_again:
                operation.close()
                self.counts.skipped += 1
                return None
            self._is_trying = True  # one call tries the server for all others
        try:
            result = yield from operation
        except self._failures as error:
            self._failed(what, error, began)
            if self._on_error == "raise":
                raise
            return None
        finally:
            if is_trying:
                self._is_trying = False
        if self._failing:
            self._works(what)
        return result

    def unreadable(self, error: Exception) -> None:
        """Count an entry that cannot be decoded.

        Raises:
            Exception: The error, with `on_error="raise"`.
        """
        self._count(error)
        if self._on_error == "raise":
            raise error
        self._throttled.warning(
            "the cache at %s has an entry that counts as a miss: %s", self._server, self.counts.last_error
        )

    def _failed(self, what: str, error: Exception, began: float) -> None:
        self._count(error)
        now = self._now()
        if self._on_error == "skip":
            answered = isinstance(error, (self._replies, *ERRORS))
            self._asks_again = _NEVER if answered else now + max(PATIENCE * (now - began), MIN_PAUSE)
            if what not in self._failing:
                LOG.warning("the cache at %s is skipped, as %s failed: %s", self._server, what, self.counts.last_error)
            self._failing.setdefault(what, now)

    def _works(self, what: str) -> None:
        self._asks_again = _NEVER
        if (since := self._failing.pop(what, None)) is not None:
            LOG.info("the cache at %s is used again, %s works after %.0f s", self._server, what, self._now() - since)

    def _count(self, error: Exception) -> None:
        self.counts.errors += 1
        self.counts.last_error = log_text(error)
