"""TTLs of threads, and default TTLs of items, in all their forms. `_store/writing.py` has the TTL of one item."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from redis_saver._common import times
from redis_saver._common.display import shown

TTL: TypeAlias = timedelta | str | Mapping[str, Any] | None
"""A `timedelta`, a str such as `"7d"` or `"90m"`, LangGraph's `{"default_ttl": minutes, "refresh_on_read": bool}`, or
None for no TTL."""

MAX_TTL = 100 * 365 * 24 * 3600 * 1000
"""A hundred years in milliseconds."""


class Expiry(NamedTuple):
    """TTL of a saver or store."""

    milliseconds: int | None = None
    refresh_on_read: bool = False
    """True if a read renews the TTL."""


def milliseconds(ttl: timedelta, argument: object, name: str) -> int:
    """Return a TTL in whole milliseconds.

    Raises:
        ValueError: The TTL is below a millisecond or above a hundred years. The message has the argument and its name.
    """
    amount = ttl // timedelta(milliseconds=1)
    if not 1 <= amount <= MAX_TTL:
        raise ValueError(f"{name}={shown(argument)}: write a TTL from one millisecond to a hundred years, or use pin()")
    return amount


def parse(ttl: TTL, *, name: str = "ttl", refresh_allowed: bool = True) -> Expiry:
    """Parse a TTL in any of its forms.

    Args:
        ttl: The TTL. `default_ttl` is in minutes, including fractions, as in LangGraph's configuration.
        name: Name of the argument, for messages.
        refresh_allowed: True to accept `refresh_on_read`.

    Raises:
        TypeError: It is a number without a unit, or has another type.
        ValueError: It has an unknown key, or is out of range.
    """
    if ttl is None:
        return Expiry()
    if isinstance(ttl, timedelta | str):
        return Expiry(milliseconds(times.of(ttl, name=name), ttl, name))
    if not isinstance(ttl, Mapping):
        raise TypeError(f"{name}={shown(ttl)}: a bare {type(ttl).__name__} has no unit; write '90m' or a timedelta")
    known = {"default_ttl", "refresh_on_read"} if refresh_allowed else {"default_ttl"}
    if unknown := set(ttl) - known:
        raise ValueError(f"{name}={shown(ttl)}: unknown key {shown(min(map(str, unknown)))}; write {sorted(known)}")
    minutes, refresh = ttl.get("default_ttl"), ttl.get("refresh_on_read", False)
    if not isinstance(refresh, bool):
        raise TypeError(f"{name}={shown(ttl)}: refresh_on_read is True or False")
    if minutes is None:
        return Expiry(None, refresh)
    is_number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
    if not is_number or not abs(minutes) <= MAX_TTL / 60_000:  # NaN is neither less nor more
        raise ValueError(f"{name}={shown(ttl)}: default_ttl is a number of minutes, at most a hundred years")
    return Expiry(milliseconds(timedelta(minutes=minutes), ttl, name), refresh)
