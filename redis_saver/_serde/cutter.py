"""Cut the bytes of a value into pieces, so that equal contents give equal pieces wherever they stand.

The rule depends only on the bytes, so it is the same for channels, pending writes and the inputs of `Send`s:

- A list, dict, string or extension (an object of a class) of `OPENED` bytes or more is *opened*: no piece reaches from
  its contents to the bytes around it. So the contents give the same pieces in every value.
- Within it, a piece may end between two elements, and anywhere in a string. A hash of the last `_WINDOW` bytes decides
  that, as in FastCDC (Xia et al., USENIX ATC 2016). So a change does not move the ends after it.
- An element of `_LONG` bytes or more begins a piece.

`native.c` has the same rule, and `tests/serde/test_cutter.py` compares both.
"""

from __future__ import annotations

import sys
from array import array
from hashlib import shake_256
from typing import Final, NamedTuple

import ormsgpack

from redis_saver._serde.messages import native
from redis_saver._serde.msgpack import SCALARS, SNAPSHOT, end_of, ext_start, head

OPENED: Final = 2048
"""Size of an object in bytes from which it is opened."""
_LEAST, _NORMAL, _MOST = 128, 512, 2048
"""Sizes in bytes: no piece ends below the first one by its contents, few below the second, each at the third."""
_RARE, _OFTEN = 2**32 // 1024, 2**32 // 256
"""Share of the places where a piece below and from `_NORMAL` ends, as a number of hashes."""
_LONG: Final = 512
_WINDOW: Final = 64
_SHORT: Final = 2**19
"""Size of a string in bytes from which its pieces are larger: at each doubling twice as large, so it has few."""
_DEEPEST: Final = 64
"""Number of levels that are opened. What lies deeper is cut like a string."""
_MASK: Final = 2**64 - 1


class Gear(NamedTuple):
    """A random number for each byte, from which places are chosen. With encryption each thread has its own."""

    numbers: tuple[int, ...]
    packed: bytes
    """The numbers for `native.c`."""


def gear_of(secret: bytes) -> Gear:
    """Return the numbers that a secret chooses."""
    numbers = array("Q", shake_256(secret).digest(8 * 256))
    if sys.byteorder == "big":
        numbers.byteswap()
    return Gear(tuple(numbers), numbers.tobytes())


PUBLIC: Final = gear_of(b"redis_saver")


class Cut(NamedTuple):
    """A value in pieces. Joined with the head, they are its bytes."""

    head: bytes
    """The head of its list, dict, text or snapshot, which changes whenever the value grows."""
    pieces: list[bytes]


def cut(kind: str, data: bytes, gear: Gear = PUBLIC, coarse: int = 0) -> Cut | None:
    """Cut a value. Return None if a value of this type, or of this size, is stored whole.

    Args:
        kind: The type that the serializer gave.
        data: The bytes that it gave, of any kind.
        gear: The numbers of the thread.
        coarse: Binary digits by which pieces of strings are larger.
    """
    if len(data) < OPENED or kind not in ("msgpack", "bytes", "bytearray"):
        return None
    if kind == "msgpack":
        start, step = _opening(data)
        if (pieces := pieces_of(data, gear, coarse, start, step)) is not None:
            return Cut(data[:start], pieces)
    return Cut(b"", pieces_of(data, gear, coarse, 0, 0) or [])


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return the head of an encoded value, as `Cut` has it, and the rest. The rest may lack elements."""
    start = _opening(data)[0]
    return data[:start], data[start:]


def pieces_of(data: bytes, gear: Gear, coarse: int, start: int = 0, step: int = 1) -> list[bytes] | None:
    """Return the pieces of the bytes from `start` on. Return None if they are not valid msgpack.

    Args:
        data: The bytes.
        gear: The numbers of the thread.
        coarse: As `cut` takes it.
        start: Where an element begins at which a piece begins.
        step: The number of objects in an element: 1 in a list, 2 in a dict. 0 if the bytes are those of a string.
    """
    if native is not None:
        return native.cut(data, gear.packed, coarse, start, step)  # type: ignore[no-any-return]
    cutter = _Cutter(data, gear, coarse, start)
    try:
        cutter.elements(start, len(data), step, 0, _DEEPEST) if step else cutter.string(len(data))
    except (IndexError, ValueError):
        return None
    cutter.border(len(data))
    return cutter.pieces


def _opening(data: bytes) -> tuple[int, int]:
    """Return `start` and `step` of a whole value, as `pieces_of` takes them."""
    start = ext_start(SNAPSHOT, data)
    kind, begin = head(data, start)
    if kind is ormsgpack.Ext:
        return start, 1  # as in a list of one
    return begin, 2 if kind is dict else 1 if kind is list else 0


def _fields_of(code: int) -> int:
    """Return how many levels of lists and dicts in an extension are its fields and arguments, not the user's values."""
    return 1 if code in (0, 3) else 2


class _Cutter:
    """The pieces of a value, from its front to its end."""

    def __init__(self, data: bytes, gear: Gear, coarse: int, start: int) -> None:
        self.pieces: list[bytes] = []
        self._data, self._numbers, self._coarse = data, gear.numbers, coarse
        self._start = self._at = start  # of the piece, and of the element
        self._hash, self._hashed = 0, -1

    def _end(self, place: int) -> None:
        self.pieces.append(self._data[self._start : place])
        self._start = place

    def border(self, place: int) -> None:
        """End an element and a piece."""
        self.place(place)
        if place > self._start:
            self._end(place)

    def place(self, place: int) -> None:
        """End an element. The piece may end, too."""
        length = place - self._at
        if length >= _LONG and self._at > self._start:
            self._end(self._at)
        self._at = place
        size = place - self._start
        if length and (size >= _MOST or (size >= _LEAST and self._chosen(place, size, length))):
            self._end(place)

    def _chosen(self, place: int, size: int, length: int) -> bool:
        value, first, numbers = self._hash, self._hashed, self._numbers
        if first < place - _WINDOW:
            value, first = 0, place - _WINDOW
        for byte in self._data[first:place]:
            value = (value << 1) + numbers[byte]
        self._hash, self._hashed = value & _MASK, place
        return self._hash >> 32 < length * (_RARE if size < _NORMAL else _OFTEN)

    def string(self, end: int) -> None:
        """Cut a string, which begins where a piece begins."""
        data, numbers = self._data, self._numbers
        coarse = self._coarse + ((end - self._start) // _SHORT).bit_length()
        while end - self._start > _LEAST << coarse:
            begin, value = self._start + (_LEAST << coarse), 0
            normal, most = self._start + (_NORMAL << coarse), min(self._start + (_MOST << coarse), end)
            for byte in data[begin - _WINDOW : begin]:
                value = (value << 1) + numbers[byte]
            value, limit, place = value & _MASK, _RARE << 32 >> coarse, begin
            for place in range(begin, most):
                if place == normal:
                    limit = _OFTEN << 32 >> coarse
                if value < limit:
                    break
                value = ((value << 1) + numbers[data[place]]) & _MASK
            else:
                place = most
            self._end(place)
        self._at = end

    def elements(self, begin: int, end: int, step: int, fields: int, depth: int) -> None:
        """Cut between the elements in a range, and within long ones.

        Args:
            begin: The start of the range.
            end: Its end.
            step: As `pieces_of` takes it.
            fields: The levels of lists and dicts in the elements that are fields of an object. They are not opened, but
                their long contents are.
            depth: The number of levels that may be opened.

        Raises:
            IndexError, ValueError: They are not valid msgpack.
        """
        data = self._data
        while begin < end:
            if step > 1:
                begin = end_of(data, begin)
            size = SCALARS[data[begin]]
            stop = begin + size if size else end_of(data, begin)
            if stop > end:
                raise ValueError(f"an element ends at {stop}, and what contains it at {end}")
            if stop - begin >= OPENED:
                self._open(begin, stop, fields, depth)
            if stop - self._start < _LEAST:  # as `place` does, without a call
                self._at = stop
            else:
                self.place(stop)
            begin = stop

    def _open(self, begin: int, end: int, fields: int, depth: int) -> None:
        kind, start = head(self._data, begin)
        if kind is ormsgpack.Ext and depth:
            self.border(begin)
            self.elements(start, end, 1, _fields_of(self._data[start - 1]), depth - 1)
            self.border(end)
        elif fields and kind is not None and depth:
            self.elements(start, end, 2 if kind is dict else 1, fields - 1, depth - 1)
        else:
            self.border(start)
            if kind is None or not depth:
                self.string(end)
            else:
                self.elements(start, end, 2 if kind is dict else 1, 0, depth - 1)
            self.border(end)
