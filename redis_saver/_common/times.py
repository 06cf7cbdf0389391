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
"""A smaller number of one unit is not split: `90m`, not `1h30m`."""


def parse(text: str, *, name: str) -> timedelta:
    """Parse a duration: numbers with units (`w d h m s ms`), such as `7d`, `90m`, `1h30m`, `0.5s`.

    Raises:
        ValueError: The text is not a duration. The message names and quotes the argument.
    """
    parts = _PART.findall(text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        raise ValueError(f"{name}={quoted(text)}: write a duration as 7d, 90m or 1h30m (units: {', '.join(_UNITS)})")
    try:
        return sum((float(amount) * _UNITS[unit] for amount, unit in parts), timedelta())
    except OverflowError:
        pass
    raise ValueError(f"{name}={quoted(text)}: write at most 2,700,000 years")


def of(duration: timedelta | str, *, name: str) -> timedelta:
    """Return an argument as a duration.

    Raises:
        TypeError: It is neither a `timedelta` nor a str.
        ValueError: It is a str, but not a duration.
    """
    if isinstance(duration, timedelta):
        return duration
    if isinstance(duration, str):
        return parse(duration, name=name)
    raise TypeError(f"{name}={quoted(duration)}: write a timedelta, or a duration such as '7d' or '90m'")


def shown(span: timedelta) -> str:
    """Return a duration as text: in one unit if that is exact (`7d`), else the two largest, rounded down (`6d23h`)."""
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
    """Parse an ISO 8601 text. Without a time zone it is UTC. None for any other text."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


_FIRST_DAY = datetime(1582, 10, 15, tzinfo=timezone.utc)


def id_at(at: datetime) -> str:
    """Return the smallest id that LangGraph makes at a moment or later. Its ids are UUIDs of version 6 (RFC 9562)."""
    ticks = f"{max(0, (at - _FIRST_DAY) // timedelta(microseconds=1)) * 10:015x}"
    return f"{ticks[:8]}-{ticks[8:12]}-6{ticks[12:]}"
