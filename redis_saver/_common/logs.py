"""What the log says of errors, and lines about what may happen to many calls in a row: the first at once, then one each so many seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from redis_saver._common.display import error_text, printable
from redis_saver.errors import DecodeError, EncodeError

SECONDS = 10.0
"""How long after a line nothing more is said of the same."""


def log_text(error: BaseException) -> str:
    """`error_text` without what may quote values: the words of a serializer, of which the class is told, and the details of an error of Postgres."""
    if isinstance(error, (DecodeError, EncodeError)):
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        return f"{type(error).__name__}: {printable(str(error).partition(': ')[0])}{cause}"
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    return f"{type(error).__name__}: {printable(said)}" if isinstance(said, str) else error_text(error)


class ThrottledLog:
    """A logger that says the same once in `SECONDS`, and how often it happened meanwhile.

    OS threads share it without a lock. At worst two of them say the same.
    """

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        """Use the logger of this name."""
        self._logger, self._now = logging.getLogger(name), now
        self._said: dict[str, tuple[float, int]] = {}

    def info(self, text: str, *arguments: object) -> None:
        """Log a line, unless one of this text was logged lately."""
        self._log(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        """As `info`, of the level WARNING."""
        self._log(logging.WARNING, text, arguments)

    def _log(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now = self._now()
        said, left_out = self._said.get(text, (-SECONDS, 0))
        if now - said < SECONDS:
            self._said[text] = said, left_out + 1
            return
        self._said[text] = now, 0
        if left_out:
            text += f" ({left_out:,} more since the last such line)"
        self._logger.log(level, text, *arguments)
