"""Names, times, sizes and values as texts for a page."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from redis_saver._common import times
from redis_saver._common.display import shown

_KEPT = "\n\t"
_HIDDEN = {
    *(code for code in range(0x20) if chr(code) not in _KEPT),
    *range(0x7F, 0xA0),
    *range(0xD800, 0xE000),  # lone surrogates, which have no UTF-8
    *range(0x202A, 0x202F),  # marks that turn the direction of a text
    *range(0x2066, 0x206A),
    0x200E, 0x200F, 0x061C, 0x2028, 0x2029, 0xFEFF,
}  # fmt: skip
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _HIDDEN}


def visible(text: str) -> str:
    """A text in which nothing hides: control characters, marks that turn its direction, and lone surrogates are escaped as Python does."""
    return text.translate(_ESCAPES)


def named(name: object) -> str:
    """A name as it is, or as `repr` writes it, if it is empty or has anything in it that does not print."""
    if name is None:
        return "-"
    if not isinstance(name, str):
        return visible(shown(name))
    plain = name.isprintable() and name.strip() == name and name[:1] not in ("", "'", '"') and len(name) <= 200
    return name if plain else shown(name)


def ago(at: datetime | None) -> str:
    """How long ago a moment is."""
    if at is None:
        return "-"
    past = datetime.now(timezone.utc) - at
    return f"{times.shown(timedelta(seconds=int(max(past, timedelta()).total_seconds())))} ago"


def moment(at: datetime | None) -> str:
    """A moment, in UTC."""
    return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at else "-"


def left(info: Any) -> str:
    """When a thread expires."""
    if info.pinned:
        return "pinned"
    return "never" if info.ttl is None else f"in {times.shown(timedelta(seconds=int(info.ttl.total_seconds())))}"


def size(amount: int | None) -> str:
    """A number of bytes, with three digits."""
    if amount is None:
        return "-"
    if amount < 1000:
        return f"{amount} B"
    if amount < 999_500:
        return f"{amount / 1000:,.3g} kB"
    return f"{amount / 1e6:,.3g} MB" if amount < 999.5e6 else f"{amount / 1e6:,.0f} MB"


def state_of(info: Any) -> str:
    """A thread's state, in a word."""
    return "failed" if info.failed else "interrupted" if info.interrupted else "active"
