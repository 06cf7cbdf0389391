"""When a thread expires: the forms a TTL may be given in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from redis_saver._common import times
from redis_saver._common.display import shown

TTL: TypeAlias = timedelta | str | Mapping[str, Any] | None
"""A `timedelta`; a text such as `"7d"` or `"90m"`; or LangGraph's `{"default_ttl": minutes, "refresh_on_read": bool}`.
None: no TTL."""

MAX_TTL = 100 * 365 * 24 * 3600 * 1000
"""Milliseconds: a hundred years."""


class Expiry(NamedTuple):
    """A saver's TTL in milliseconds (None: none), and whether reading moves the deadline too."""

    milliseconds: int | None = None
    refresh_on_read: bool = False


def milliseconds(ttl: timedelta, said: object, name: str) -> int:
    """A TTL in whole milliseconds.

    Raises:
        ValueError: it is under a millisecond or over a hundred years. The message quotes `said`, what the caller wrote
            as `name`.
    """
    amount = ttl // timedelta(milliseconds=1)
    if not 1 <= amount <= MAX_TTL:
        raise ValueError(
            f"{name}={shown(said)}: a TTL lies between one millisecond and a hundred years; to keep a thread, pin() it"
        )
    return amount


def parse(ttl: TTL, *, name: str = "ttl", refresh_allowed: bool = True) -> Expiry:
    """Understand a TTL in any of its forms.

    Args:
        ttl: The TTL. `default_ttl` counts minutes, fractions allowed, as in LangGraph's own configuration.
        name: What the argument is called, for the message.
        refresh_allowed: Whether `refresh_on_read` may be given here.

    Raises:
        TypeError: A bare number (of seconds? of minutes?), or another type.
        ValueError: An unknown key, or an amount out of range.
    """
    if ttl is None:
        return Expiry()
    if isinstance(ttl, timedelta):
        return Expiry(milliseconds(ttl, ttl, name))
    if isinstance(ttl, str):
        return Expiry(milliseconds(times.parse(ttl, name=name), ttl, name))
    if not isinstance(ttl, Mapping):
        raise TypeError(
            f"{name}={shown(ttl)}: a bare {type(ttl).__name__} does not say its unit; write '7d', '90m', "
            'timedelta(minutes=...) or {"default_ttl": minutes}'
        )
    known = {"default_ttl", "refresh_on_read"} if refresh_allowed else {"default_ttl"}
    if unknown := set(ttl) - known:
        raise ValueError(f"{name}={shown(ttl)}: unknown key {shown(min(map(str, unknown)))}; known are {sorted(known)}")
    minutes, refresh = ttl.get("default_ttl"), ttl.get("refresh_on_read", False)
    if not isinstance(refresh, bool):
        raise TypeError(f"{name}={shown(ttl)}: refresh_on_read is True or False")
    if minutes is None:
        return Expiry(None, refresh)
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)):
        raise TypeError(f"{name}={shown(ttl)}: default_ttl is a number of minutes")
    if not abs(minutes) <= MAX_TTL / 60_000:  # NaN is neither less nor more
        raise ValueError(f"{name}={shown(ttl)}: default_ttl is a finite number of minutes, a hundred years at the most")
    return Expiry(milliseconds(timedelta(minutes=minutes), ttl, name), refresh)
