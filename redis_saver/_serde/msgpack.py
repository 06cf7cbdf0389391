"""Heads, sizes and nesting of msgpack objects.

https://github.com/msgpack/msgpack/blob/master/spec.md has the format.
"""

from __future__ import annotations

from typing import Final

import ormsgpack

SNAPSHOT: Final = 7
"""Extension code of a `_DeltaSnapshot`, which holds a value. A lower code holds a list of a class and arguments."""
_FIRST: Final = 0xC4
"""From this first byte of an object on, its size and length follow no rule."""
_SIZES: Final = bytes(
    [*[1] * 0xA0, *range(1, 33), *[1] * (_FIRST - 0xC0)]
    + [2, 3, 5, 3, 4, 6, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18, 2, 3, 5, 3, 5, 3, 5]
    + [1] * 32
)
"""By an object's first byte: its fixed size. For an object with a length, the size up to its contents."""
_LENGTH_BYTES: Final = bytes([0] * _FIRST + [1, 2, 4, 1, 2, 4, *[0] * 15, 1, 2, 4, 2, 4, 2, 4] + [0] * 32)
"""By an object's first byte: the size of its length."""
_INSIDE: Final = bytes([0] * 0x80 + [*range(0, 32, 2), *range(16)] + [0] * (0xDC - 0xA0) + [1, 1, 2, 2] + [0] * 32)
"""By an object's first byte: the number of objects in it. For an object with a length, the number per unit."""
SCALARS: Final = bytes(
    0 if length or inside else size for size, length, inside in zip(_SIZES, _LENGTH_BYTES, _INSIDE, strict=True)
)
"""By an object's first byte: its size, or 0 if it has a length or contains objects."""
_EXTENSIONS: Final = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})


def ext_header(code: int, size: int) -> bytes:
    """Return the head of an extension of more than 16 bytes."""
    if size < 0x100:
        return bytes([0xC7, size, code])
    if size < 0x10000:
        return b"\xc8" + size.to_bytes(2, "big") + bytes([code])
    return b"\xc9" + size.to_bytes(4, "big") + bytes([code])


def ext_start(code: int, data: bytes) -> int:
    """Return the start of the data of an extension of more than 16 bytes.

    Return 0 if the bytes do not begin with the head of such an extension with this code.
    """
    length = _SIZES[data[0]] if data and 0xC7 <= data[0] <= 0xC9 else 0
    return length if length and len(data) >= length and data[length - 1] == code else 0


def header(count: int, kind: type) -> bytes:
    """Return the head of an array (list) or a map (dict) of `count` elements."""
    short, medium, long = (0x90, b"\xdc", b"\xdd") if kind is list else (0x80, b"\xde", b"\xdf")
    if count < 16:
        return bytes([short | count])
    return medium + count.to_bytes(2, "big") if count < 0x10000 else long + count.to_bytes(4, "big")


def header_length(count: int) -> int:
    """Return the length of the head for `count` elements."""
    return 1 if count < 16 else 3 if count < 0x10000 else 5


def list_length(data: bytes) -> int | None:
    """Return the number of elements of the list at the start of the bytes. None if there is no list."""
    first = data[0]
    if 0x90 <= first < 0xA0:
        return first & 15
    if first not in (0xDC, 0xDD):
        return None
    count = int.from_bytes(data[1 : _SIZES[first]], "big")
    return count if data.startswith(header(count, list)) else None


def head(data: bytes, begin: int) -> tuple[type | None, int]:
    """Return the kind of a list, dict or long Ext, and the start of the object's contents.

    An Ext counts only if its data is msgpack: a class and its arguments. The kind of any other object is None.
    """
    first = data[begin]
    start = begin + _SIZES[first]
    if 0x80 <= first < 0xA0:
        return (dict if first < 0x90 else list), start
    if 0xDC <= first <= 0xDF:
        return (list if first < 0xDE else dict), start
    return (ormsgpack.Ext if first in (0xC8, 0xC9) and data[start - 1] < 6 else None), start


def end_of(data: bytes, begin: int) -> int:
    """Return the end of the object at `begin`. It may lie after the end of the data, if that is not valid msgpack.

    Raises:
        IndexError: The data ends within the object.
    """
    at, left = begin, 1
    while left:
        first = data[at]
        length, inside = _LENGTH_BYTES[first], _INSIDE[first]
        if not length:
            left += inside
        else:
            size = int.from_bytes(data[at + 1 : at + 1 + length], "big")
            if inside:
                left += inside * size
            else:
                at += size
        at += _SIZES[first]
        left -= 1
    return at


def is_deeper(data: bytes, most: int) -> bool:
    """True if lists, dicts and extensions nest deeper than `most`.

    Invalid msgpack counts up to the point where it is invalid. The data of each extension counts as msgpack, as all
    extensions of `JsonPlusSerializer` hold msgpack.
    """
    if len(data) <= most:
        return False
    # For each container around a value: the number of values left in it, or -1 if unknown, and its end.
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
        first = data[at]
        length, inside, next_at = _LENGTH_BYTES[first], _INSIDE[first], at + _SIZES[first]
        size = int.from_bytes(data[at + 1 : at + 1 + length], "big")
        if first in _EXTENSIONS:
            at += 2 + length
            around.append([-1, min(next_at + size, end)])
        elif inside or 0x80 <= first < 0xA0:
            at = next_at
            around.append([inside * size if length else inside, end])
        else:
            at = next_at + size
    return False
