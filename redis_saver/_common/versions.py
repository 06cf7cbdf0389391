"""Channel versions: a counter, and bits that no other branch of a thread draws."""

from __future__ import annotations

import os
import struct

_MANY = struct.Struct("256Q")
_drawn: list[int] = []
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_drawn.clear)


def following(current: str | None) -> str:
    """The version after `current`: sorts above it, and no other branch makes the same one.

    The counter has 32 digits, as LangGraph's other savers write it, so that threads can move between savers.
    """
    counter = 0 if current is None else int(str(current).partition(".")[0])
    return f"{counter + 1:032}.{_random():020}"


def _random() -> int:
    """64 bits from the operating system; asked for many at a time, as each call lets another thread take the interpreter."""
    try:
        return _drawn.pop()
    except IndexError:
        first, *others = _MANY.unpack(os.urandom(_MANY.size))
        _drawn.extend(others)
        return int(first)
