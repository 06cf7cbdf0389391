"""Channel versions: a counter, and random bits, so that no two branches of a thread make the same version."""

from __future__ import annotations

import os
import struct

_MANY = struct.Struct("256Q")
_drawn: list[int] = []
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_drawn.clear)


def following(current: str | None) -> str:
    """The version after `current`. It sorts above it, and no other branch makes the same one.

    The counter has 32 digits, as LangGraph's other savers write it, so that threads can move between savers.
    """
    counter = 0 if current is None else int(str(current).partition(".")[0])
    return f"{counter + 1:032}.{_random():020}"


def random_tag() -> bytes:
    """A name that nothing else has: 16 hexadecimal digits."""
    return b"%016x" % _random()


def _random() -> int:
    """64 bits from the operating system. Many are drawn at a time, because each call to the system lets another OS thread take the interpreter."""
    try:
        return _drawn.pop()
    except IndexError:
        first, *others = _MANY.unpack(os.urandom(_MANY.size))
        _drawn.extend(others)
        return int(first)
