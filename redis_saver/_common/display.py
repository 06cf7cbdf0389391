"""Names, values and texts of other programs in errors, logs and the terminal: printable, and not too long.

A user's name may hold a line break that forges a line of a log, an escape sequence that a terminal obeys, a mark that
turns the direction of a line, or a megabyte. What is not printable (`str.isprintable`) is escaped as Python escapes it.
"""

from __future__ import annotations

import re
from string import Formatter
from typing import Any

MAX_NAME = 200
"""The most characters of a name that are shown. Of a longer name the beginning and the end are shown."""
MAX_TEXT = 2000
"""The most characters that are shown of an error of a server, a serializer or a cold saver."""


def shown(value: object) -> str:
    """Quote a value that a caller passed, as `repr` does. Of a long one: the beginning, the end, and the length."""
    if isinstance(value, (str, bytes)):
        unit = "characters" if isinstance(value, str) else "bytes"
        if len(value) <= MAX_NAME:
            return repr(value)
        return f"{value[: MAX_NAME // 2]!r}...{value[-MAX_NAME // 4 :]!r} ({len(value):,} {unit})"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits, or what is nested too deep
        text = f"<{type(value).__name__}>"
    return printable(text, MAX_NAME)


def printable(text: str, longest: int = MAX_TEXT) -> str:
    """Another program's text in one line; of a long text the beginning, the end, and its length."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}...{text[-longest // 4 :]} ({len(text):,} characters)"
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)


def error_text(error: BaseException) -> str:
    """The class of an error, and its message."""
    return f"{type(error).__name__}: {printable(str(error))}"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 thread`, `2,000 threads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def kind_of(given: object) -> str:
    """The class of what a caller passed.

    Its `repr` is not shown: that of a client (redis-py 6), or a URL, has a password in it.
    """
    module = re.sub(r"^(redis_saver)\._.*", r"\1", type(given).__module__)  # where users find ours
    return f"a {module}.{type(given).__qualname__}".replace("builtins.", "")


class _Sentence(Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        return shown(value) if conversion == "r" else super().convert_field(value, conversion)


def sentence(template: str, *named: object) -> str:
    """Fill a template as `str.format` does. `{!r}` shows a value as `shown` does, `{}` a text as it is."""
    return _Sentence().format(template, *named)
