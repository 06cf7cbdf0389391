"""Measures how deep msgpack nests, with extensions: bytes that nest too deep would overflow the stack, and end the process.

ormsgpack allows a thousand lists and dicts around each other. But it begins anew in each extension, which `JsonPlusSerializer`
decodes by itself. So twenty extensions with a thousand lists around each, 20 kB, end the interpreter.
"""

from __future__ import annotations

import threading

DEEP = 6
"""With this many extensions around each other, the depth of the rest is measured. Hardly any value has so many."""
DEEPEST = 4000
"""How many more lists, dicts and extensions around each other are allowed then. Together with a thousand lists in each of the first six, they fit into a stack of 8 MB."""

_STRINGS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONTAINERS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Tags of msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md), and how many bytes the length, or the number, behind them has."""


class Open(threading.local):
    """How many extensions around each other this OS thread is reading.

    `fallback.py` counts them where it reads them, because a function for that would add a Python frame to each.
    """

    depth = 0
    too_deep = False
    """Set if they nest too deep, because `JsonPlusSerializer` answers None for an extension with an error in it."""

    def error(self) -> ValueError:
        """The error to raise for the outermost extension."""
        return ValueError(f"its values nest too deep: over {DEEPEST} lists, dicts and objects around each other")


reading: Open = Open()


def is_deeper(data: bytes, most: int) -> bool:
    """Whether lists, dicts and extensions nest deeper than `most`. Bytes that are not valid msgpack count up to the point where they go wrong.

    An extension is read as if it held msgpack, as all those do that `JsonPlusSerializer` decodes.
    """
    if len(data) <= most:
        return False
    # For each container around a value: how many values are left in it (-1: not known), and where it ends.
    at, around = 0, [[1, len(data)]]
    while around:
        inner = around[-1]
        left, end = inner
        if not left or at >= end:
            around.pop()
            at = end if left < 0 else at
            continue
        if len(around) > most:
            return True
        inner[0] -= left > 0
        tag = data[at]
        at += 1
        if 0x80 <= tag < 0xA0:
            around.append([(tag & 15) * (1 if tag & 0x10 else 2), end])
        elif 0xA0 <= tag < 0xC0:
            at += tag & 31
        elif size := _CONTAINERS.get(tag):
            around.append([int.from_bytes(data[at : at + size], "big") * (1 if tag < 0xDE else 2), end])
            at += size
        elif size := _STRINGS.get(tag):
            at += size + int.from_bytes(data[at : at + size], "big")
        elif size := _EXTENSIONS.get(tag):
            length, at = int.from_bytes(data[at : at + size], "big"), at + size + 1
            around.append([-1, min(at + length, end)])
        elif size := _FIXED_EXTENSIONS.get(tag):
            at += 1
            around.append([-1, min(at + size, end)])
        else:
            at += _NUMBERS.get(tag, 0)
    return False
