"""Durations as people write them (`7d`, `90m`, `1h30m`), and the times in checkpoints."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from redis_saver._common.display import shown as quoted

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_SHOWN = {unit: span for unit, span in _UNITS.items() if unit != "w"}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(w|d|h|ms|m|s)", re.ASCII)
_LONGEST_EXACT = 1000
"""Below this, a number of one unit is shown as it is: `90m`, not `1h30m`."""


def parse(text: str, *, name: str) -> timedelta:
    """Read a duration: numbers with units (`w d h m s ms`), such as `7d`, `90m`, `1h30m`, `0.5s`.

    Raises:
        ValueError: It is no duration. The message names the argument and quotes it.
    """
    parts = _PART.findall(text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        raise ValueError(
            f"{name}={quoted(text)}: write a duration as 7d, 90m, 1h30m or 30s (units: {', '.join(_UNITS)})"
        )
    try:
        return sum((float(amount) * _UNITS[unit] for amount, unit in parts), timedelta())
    except OverflowError:
        pass
    raise ValueError(f"{name}={quoted(text)}: too long, a timedelta ends at about 2,700,000 years")


def of(given: timedelta | str, *, name: str) -> timedelta:
    """A duration that a caller passed.

    Raises:
        TypeError: It is neither a `timedelta` nor a text.
        ValueError: It is a text, and not one of a duration.
    """
    if isinstance(given, timedelta):
        return given
    if isinstance(given, str):
        return parse(given, name=name)
    raise TypeError(f"{name}={quoted(given)}: write a timedelta, or a duration such as '7d' or '90m'")


def shown(span: timedelta) -> str:
    """Return a duration for people.

    It has one unit if that is exact (`7d`, `90m`), else the two largest units (`6d23h`), rounded down.
    """
    if span < timedelta():
        return f"-{shown(-span)}"
    for unit, size in _SHOWN.items():
        if span and not span % size and span // size < _LONGEST_EXACT:
            return f"{span // size}{unit}"
    parts = list[str]()
    for unit, size in _SHOWN.items():
        count, span = divmod(span, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def moment(text: str) -> datetime | None:
    """The time in an ISO 8601 text, in UTC if it names no zone; None if it is no such text."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
