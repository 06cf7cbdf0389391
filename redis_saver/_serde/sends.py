"""Where an encoded `Send`, or a list of them, can be cut.

A `Send` carries its node's input, often the whole state. As one element, each would be stored whole. So it is cut
before each long list or dict of its argument, between the elements of that, and after it. A channel's value is cut
between the same elements (`redis_saver._serde.elements`), so the two share chunks. Only the bytes are looked at, so an
object that is not decoded (`opaque.py`) is cut too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import ormsgpack

from redis_saver._serde.msgpack import ext_start

MIN_BYTES: Final = 2048
"""A list or dict of fewer bytes is not cut."""
SAMPLE: Final = 16
"""How many elements are looked at to find out whether the elements of a container are small."""
SMALL: Final = 32
"""If elements have fewer bytes than this on average, several are taken together."""
BLOCK: Final = 1024
"""About how many bytes are taken together then."""
MAX_PIECES: Final = 50_000
"""Maximum number of pieces. A value may have twice as many chunks (`limits.FIXED`)."""
_CODE: Final = 1
"""The code of the Ext that a `Send` is: a class, called with positional arguments."""
_CLASS: Final = b"\x93\xaflanggraph.types\xa4Send"
"""The beginning of its data."""
_DEPTH: Final = 12
"""How deep lists and dicts are looked for."""
_ARRAYS: Final = 2
"""How many levels of an object's data are its fields and arguments, and no list of the user's."""


class CutSend(NamedTuple):
    """An encoded value, cut."""

    head: bytes
    """The head of a list; empty for a `Send` by itself."""
    pieces: list[bytes]
    """What follows. Joined with the head, it is the value."""
    runs: tuple[int, ...]
    """How many pieces belong together: each long list or dict is a run, and so is what lies between two of them."""


def may_be(value: Any) -> bool:
    """True if a value looks like a `Send`, decoded or not."""
    kind = type(value)
    return kind is ormsgpack.Ext or kind.__name__ == "Send"


def cut(data: bytes) -> CutSend | None:
    """Cut an encoded `Send`, or a list that begins with one. None if it is something else, or short.

    Args:
        data: What an encoder made. It is not checked.
    """
    if len(data) < MIN_BYTES:
        return None
    kind, count, start = _head(data, 0)
    if kind is not list:
        start, count = 0, 1
    if not _is_send(data, start):
        return None
    try:
        found = _cut(data, start, count)
    except IndexError:  # forged: an Ext whose data is no msgpack
        return None
    return found if len(found.pieces) <= MAX_PIECES else None


def _cut(data: bytes, start: int, count: int) -> CutSend:
    cuts, begin = _Cuts(data, start), start
    for end in _ends(data, start, count):
        if end - begin >= MIN_BYTES and _is_send(data, begin):
            cuts.border()
            cuts.descend(begin, end, 0, _DEPTH)
            cuts.mark(end)
            cuts.border()
        else:
            cuts.mark(end)
        begin = end
    cuts.border()
    return CutSend(data[:start], cuts.pieces, tuple(cuts.runs))


def _is_send(data: bytes, start: int) -> bool:
    length = ext_start(_CODE, data[start : start + 6])
    return bool(length) and data.startswith(_CLASS, start + length)


class _Cuts:
    """The cuts of a value, from its front to its end."""

    def __init__(self, data: bytes, start: int) -> None:
        self.pieces: list[bytes] = []
        self.runs: list[int] = []
        self._data, self._at, self._counted = data, start, 0

    def mark(self, end: int) -> None:
        """End a piece."""
        if end > self._at:
            self.pieces.append(self._data[self._at : end])
            self._at = end

    def border(self) -> None:
        """End a run."""
        if new := len(self.pieces) - self._counted:
            self.runs.append(new)
            self._counted += new

    def descend(self, begin: int, end: int, arrays: int, depth: int) -> None:
        """Cut a long list, dict or object; `arrays` levels of lists are fields of an object."""
        data = self._data
        kind, count, start = _head(data, begin)
        if kind is ormsgpack.Ext:
            self._item(start, end, _ARRAYS, depth)
            return
        step = 2 if kind is dict else 1
        ends = [*_ends(data, start, step * count - 1), end]
        values = list(zip([start, *ends][step - 1 :: step], ends[step - 1 :: step], strict=False))
        if (kind is list and not arrays) or not any(_is_long(data, *value) for value in values):
            self._elements(start, [last for _, last in values])
            return
        for first, last in values:
            self._item(first, last, arrays - 1 if kind is list else 0, depth)

    def _item(self, begin: int, end: int, arrays: int, depth: int) -> None:
        if depth and _is_long(self._data, begin, end):
            self.descend(begin, end, arrays, depth - 1)
        self.mark(end)

    def _elements(self, start: int, ends: Sequence[int]) -> None:
        """Cut between elements, as `elements.cut` does in the value of a channel."""
        self.mark(start)
        self.border()
        size = ends[:SAMPLE][-1] - start
        if size < SMALL * min(SAMPLE, len(ends)):
            length = run_length(size, len(ends))
            ends = [*ends[length - 1 : -1 : length], ends[-1]]
        for end in ends:
            self.mark(end)
        self.border()


def run_length(size: int, count: int) -> int:
    """Number of small elements that are taken together; `size` is that of the sample.

    It is a power of two, so that the contents of the sample seldom change it.
    """
    return 1 << (BLOCK * min(SAMPLE, count) // size).bit_length() - 1


# -- msgpack


def _is_long(data: bytes, begin: int, end: int) -> bool:
    """True for a list, dict or object that is long enough to be cut."""
    return end - begin >= MIN_BYTES and _head(data, begin)[0] is not None


def _head(data: bytes, begin: int) -> tuple[type | None, int, int]:
    """Return the kind of a list, dict or Ext, the number of its elements or items, and the start of its contents.

    The kind of any other value is None.
    """
    first = data[begin]
    if first & 0xF0 == 0x90:
        return list, first & 15, begin + 1
    if first & 0xF0 == 0x80:
        return dict, first & 15, begin + 1
    if first in _LENGTHS:
        kind, size = _LENGTHS[first]
        return kind, int.from_bytes(data[begin + 1 : begin + 1 + size], "big"), begin + 1 + size
    if first in _OBJECTS and data[begin + _OBJECTS[first] - 1] in _CODES:
        return ormsgpack.Ext, 1, begin + _OBJECTS[first]
    return None, 0, begin


_LENGTHS: Final = {0xDC: (list, 2), 0xDD: (list, 4), 0xDE: (dict, 2), 0xDF: (dict, 4)}
"""The heads of long lists and dicts: how many bytes the length has."""
_OBJECTS: Final = {0xC8: 4, 0xC9: 6}
"""The heads of long Exts, and their sizes. The last byte is the code."""
_CODES: Final = frozenset(range(6))
"""Exts whose data is msgpack: a class and its arguments."""


def _table() -> tuple[list[int], list[int], list[int]]:
    """Return three tables by an object's first byte.

    They hold the object's fixed size, the number of bytes of its length, and the number of objects in it (of one with
    a length: per unit of that).
    """
    sizes, lengths, inside = [1] * 256, [0] * 256, [0] * 256
    for first in range(16):
        inside[0x80 + first], inside[0x90 + first] = 2 * first, first
    for first in range(32):
        sizes[0xA0 + first] = 1 + first
    for first, size in {
        0xCA: 5,
        0xCB: 9,
        0xCC: 2,
        0xCD: 3,
        0xCE: 5,
        0xCF: 9,
        0xD0: 2,
        0xD1: 3,
        0xD2: 5,
        0xD3: 9,
    }.items():
        sizes[first] = size
    for first, size in {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}.items():
        sizes[first] = size
    for first, length in {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}.items():
        sizes[first], lengths[first] = 1 + length, length
    for first, length in {0xC7: 1, 0xC8: 2, 0xC9: 4}.items():
        sizes[first], lengths[first] = 2 + length, length
    for first, (kind, length) in _LENGTHS.items():
        sizes[first], lengths[first], inside[first] = 1 + length, length, 2 if kind is dict else 1
    return sizes, lengths, inside


_SIZES, _LENGTH_BYTES, _INSIDE = _table()


def _ends(data: bytes, start: int, count: int) -> list[int]:
    """Where each of `count` objects ends, the first of which begins at `start`."""
    ends, at = list[int](), start
    for _ in range(count):
        left = 1
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
        ends.append(at)
    return ends
