"""Make names, values and texts printable and short, for errors, logs and the terminal.

A user's name may contain a line break that forges a log line, an escape sequence for the terminal, a mark that reverses
the line, or a megabyte. Characters that are not printable (`str.isprintable`) are escaped as in Python.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from string import Formatter
from typing import Any

MAX_NAME = 200
"""Maximum characters of a name. A longer one is shortened to its beginning and end."""
MAX_TEXT = 2000
"""Maximum characters of an error of a server, a serializer or a cold saver."""


def shown(value: object) -> str:
    """Quote a value as `repr` does. A long one is shortened to its beginning, end and length."""
    if isinstance(value, (str, bytes)):
        unit = "characters" if isinstance(value, str) else "bytes"
        if len(value) <= MAX_NAME:
            return repr(value)
        return f"{value[: MAX_NAME // 2]!r}...{value[-MAX_NAME // 4 :]!r} ({len(value):,} {unit})"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits, or deep nesting
        text = f"<{type(value).__name__}>"
    return printable(text, MAX_NAME)


def printable(text: str, longest: int = MAX_TEXT) -> str:
    """Return a text in one line. A long one is shortened to its beginning, end and length."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}...{text[-longest // 4 :]} ({len(text):,} characters)"
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def error_text(error: BaseException) -> str:
    """Return the class and message of an error."""
    return f"{type(error).__name__}: {printable(str(error))}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 thread`, `2,000 threads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of a message that suggests the most similar known name, or an empty text."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def kind_of(value: object) -> str:
    """Return the class of an argument. The `repr` of a client (redis-py 6) or a URL may contain a password."""
    module = re.sub(r"^(redis_saver)\._.*", r"\1", type(value).__module__)  # the public path of our classes
    return f"a {module}.{type(value).__qualname__}".replace("builtins.", "")


class _Sentence(Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return shown(value) if conversion == "r" else super().convert_field(value, conversion)


def sentence(template: str, *named: object) -> str:
    """Fill a template as `str.format` does. `{!r}` quotes a value as `shown` does; `{}` inserts it unchanged."""
    return _Sentence().format(template, *named)
