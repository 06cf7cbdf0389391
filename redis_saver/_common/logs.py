"""Log lines, and a context that ignores errors of logging and telemetry, so that these do not affect calls."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis_saver._common.display import error_text, printable
from redis_saver.errors import DecodeError, EncodeError, KeyUnavailable, RedisSaverError, StoreDamaged

SECONDS = 10.0
"""Seconds for which a log line is not repeated."""


_OF_CONNECTIONS = (
    *(("redis", "RedisError"), ("redis", "RedisClusterException")),
    *(("valkey", "ValkeyError"), ("valkey", "ValkeyClusterException"), ("psycopg", "OperationalError")),
)
"""Packages with the classes of errors whose messages are about a server, and quote no value."""


def log_text(error: BaseException, *, is_encrypted: bool = False) -> str:
    """Return `error_text` without parts that may quote values or keys.

    These are the messages of serializers and of providers of keys, and the details of Postgres.

    Args:
        error: The error.
        is_encrypted: True if the values are encrypted. Then an error that is neither ours nor about a server is only
            named by its class, and by the code of Postgres.
    """
    if is_encrypted and not _is_about_a_server(error):
        code = getattr(error, "sqlstate", None)
        return type(error).__name__ + (f" {code}" if isinstance(code, str) else "")
    if isinstance(error, (DecodeError, EncodeError, StoreDamaged)) or _quotes_a_provider(error):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        return f"{type(error).__name__}: {printable(str(error).partition(': ')[0])}{cause}"
    message = getattr(getattr(error, "diag", None), "message_primary", None)  # of psycopg
    return f"{type(error).__name__}: {printable(message)}" if isinstance(message, str) else error_text(error)


def _quotes_a_provider(error: BaseException) -> bool:
    """True if the message has that of a provider of keys, which may quote a data key."""
    cause = error.__cause__ if isinstance(error, KeyUnavailable) else None
    return cause is not None and not _is_about_a_server(cause)


def _is_about_a_server(error: BaseException) -> bool:
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    return isinstance(error, (RedisSaverError, OSError)) or any(kind in kinds for kind in _OF_CONNECTIONS)


class _Throttle:
    """Passes a text once in `SECONDS`, or only once. OS threads share it without a lock, so in rare cases two pass."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, only_once: bool = False) -> None:
        self._now, self._only_once = now, only_once
        self._passed: dict[str, tuple[float, int]] = {}

    def repeats(self, text: str) -> int | None:
        """Return how often the text was suppressed since it last passed, or None if it is suppressed now."""
        now = self._now()
        passed, repeats = self._passed.get(text, (-math.inf, 0))
        if now - passed < (math.inf if self._only_once else SECONDS):
            self._passed[text] = passed, repeats + 1
            return None
        self._passed[text] = now, 0
        return repeats


@contextmanager
def ignoring(source: str) -> Iterator[None]:
    """Ignore errors of the program's plug-ins, such as log handlers and span processors. `source` names the plug-in.

    This passes each kind of error to `sys.unraisablehook` once in `SECONDS`, which prints it to stderr by default.
    KeyboardInterrupt and the cancellation of a task are raised.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - plug-ins raise any
        if _ignored.repeats(f"{source} {type(error)}") is not None:
            _IgnoredByRedisSaver(error)


_ignored = _Throttle()


class _IgnoredByRedisSaver:
    """Object that raises an error in `__del__`. Only the interpreter can make an argument for `sys.unraisablehook`."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


class Log:
    """Logger of this package. It ignores errors of the program's handlers, filters and record factory."""

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
    """Logger that logs the same text once in `SECONDS`, with the number of suppressed repetitions."""

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic, *, only_once: bool = False) -> None:
        """Use the logger of this name. With `only_once`, each text is logged once per process."""
        super().__init__(name)
        self._throttle = _Throttle(now, only_once=only_once)

    def _log(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        with ignoring("logging"):
            if self._logger.isEnabledFor(level) and (repeats := self._throttle.repeats(text)) is not None:
                text += f" ({repeats:,} more since the last such line)" if repeats else ""
                self._logger.log(level, text, *arguments, stacklevel=3)
