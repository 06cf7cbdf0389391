"""How deep msgpack nests, extensions counted: bytes that nest too deep overflow the stack, and end the process.

ormsgpack counts the lists and dicts around each other, up to a thousand. But it begins anew in each extension, which `JsonPlusSerializer`
decodes by itself: twenty extensions with a thousand lists around each, 20 kB, end the interpreter.
"""

from __future__ import annotations

import threading

DEEP = 6
"""Extensions around each other, from which on it is looked how deep the rest is. Hardly any value has so many."""
DEEPEST = 4000
"""Lists, dicts and extensions around each other that may follow. With the thousand lists of each of the first six, a stack of 8 MB has room."""

_STRINGS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONTAINERS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Tags of msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md): of how many bytes is the length behind them, or the number."""


class Open(threading.local):
    """The extensions around each other that are being read in this OS thread.

    Counted where they are read (`fallback.py`), as a function for it would be one more Python frame for each.
    """

    depth = 0
    too_deep = False
    """Noted, as `JsonPlusSerializer` answers None for an extension in which there is an error."""

    def error(self) -> ValueError:
        """What to raise for the outermost extension."""
        return ValueError(f"its values nest too deep: over {DEEPEST} lists, dicts and objects around each other")


reading: Open = Open()


def is_deeper(data: bytes, most: int) -> bool:
    """Whether lists, dicts and extensions nest deeper than so many; what is no msgpack nests no deeper than to where it goes wrong.

    An extension is entered as if it held msgpack, which all that `JsonPlusSerializer` looks into do.
    """
    if len(data) <= most:
        return False
    # Of what is around a value: how many are left in it, -1 where that is not known, and where it ends.
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
