"""Log lines, and the place where errors of logging and telemetry end.

Neither changes the result of a call, or ends a worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from typing_extensions import Self

from redis_saver._common.display import error_text, printable
from redis_saver.errors import DecodeError, EncodeError

SECONDS = 10.0
"""Seconds for which a line that was logged is not repeated."""


def log_text(error: BaseException) -> str:
    """Return `error_text` without what may quote values.

    Of a serializer's error only the class is told. Of an error of Postgres the details are left out.
    """
    if isinstance(error, (DecodeError, EncodeError)):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        return f"{type(error).__name__}: {printable(str(error).partition(': ')[0])}{cause}"
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    return f"{type(error).__name__}: {printable(said)}" if isinstance(said, str) else error_text(error)


class _Throttle:
    """Lets a text pass once in `SECONDS`. OS threads share it without a lock: at worst two of them pass."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._passed: dict[str, tuple[float, int]] = {}

    def repeats(self, text: str) -> int | None:
        """Return how often the text was held back since it last passed. None: it is held back now."""
        now = self._now()
        passed, repeats = self._passed.get(text, (-SECONDS, 0))
        if now - passed < SECONDS:
            self._passed[text] = passed, repeats + 1
            return None
        self._passed[text] = now, 0
        return repeats


class ignoring:  # noqa: N801 - used like a function
    """A context that ends errors of what the program plugged in, such as a log handler or a span processor.

    `sys.unraisablehook` gets the error, each kind once in `SECONDS`. By default it prints the error to stderr. Whatever
    stops the caller itself (KeyboardInterrupt, a cancelled task) passes.
    """

    def __init__(self, source: str) -> None:
        """Name what may raise."""
        self._source = source
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        if _ignored.repeats(f"{self._source} {type(error)}") is not None:
            _IgnoredByRedisSaver(error)
        return True


_ignored = _Throttle()


class _IgnoredByRedisSaver:
    """Raises an error where nobody can catch it. Only Python can make the argument of `sys.unraisablehook`."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


class Log:
    """A logger of this package. An error of the program's handlers, filters and record factory is ignored."""

    def __init__(self, name: str) -> None:
        """Use the logger of this name."""
        self._logger = logging.getLogger(name)

    def info(self, text: str, *arguments: object) -> None:
        """Log a line of level INFO."""
        self._log(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        """Log a line of level WARNING."""
        self._log(logging.WARNING, text, arguments)

    def _log(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        with ignoring("logging"):
            self._logger.log(level, text, *arguments, stacklevel=3)


class ThrottledLog(Log):
    """A logger that logs the same text once in `SECONDS`, and says how often it was held back."""

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        """Use the logger of this name."""
        super().__init__(name)
        self._throttle = _Throttle(now)

    def _log(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        with ignoring("logging"):
            if self._logger.isEnabledFor(level) and (repeats := self._throttle.repeats(text)) is not None:
                text += f" ({repeats:,} more since the last such line)" if repeats else ""
                self._logger.log(level, text, *arguments, stacklevel=3)
