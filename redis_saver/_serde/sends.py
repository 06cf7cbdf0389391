"""Cut an encoded `Send`, or a list of `Send`s.

A `Send` has its node's input, often the whole state. It is cut around each long list or dict of its argument, and
between the elements of these. A channel's value is cut between the same elements (`elements.py`), so both share chunks.
Cutting needs only the bytes, so it also works for objects that are not decoded (`opaque.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import ormsgpack

from redis_saver._serde.msgpack import ends, ext_start, head

MIN_BYTES: Final = 2048
"""A list or dict of fewer bytes is not cut."""
SAMPLE: Final = 16
"""Number of elements in the sample that shows whether elements are small."""
SMALL: Final = 32
"""Average size in bytes below which several elements are encoded together."""
BLOCK: Final = 1024
"""Approximate size of elements encoded together, in bytes."""
MAX_PIECES: Final = 50_000
"""Maximum number of pieces. A value may have twice as many chunks (`limits.FIXED`)."""
_CODE: Final = 1
"""Extension code of a `Send`: a class that is called with positional arguments."""
_CLASS: Final = b"\x93\xaflanggraph.types\xa4Send"
"""Beginning of the extension's data."""
_DEPTH: Final = 12
"""Maximum depth of the lists and dicts that are cut."""
_ARRAYS: Final = 2
"""Number of levels of an object's data that are its fields and arguments instead of the user's lists."""


class CutSend(NamedTuple):
    """An encoded value, cut."""

    head: bytes
    """The head of a list. Empty for a single `Send`."""
    pieces: list[bytes]
    """The rest. Joined with the head, it is the value."""
    runs: tuple[int, ...]
    """Length of each run of pieces. A run is a long list or dict, or the bytes between two of them."""


def may_be(value: Any) -> bool:
    """True if a value looks like a `Send`, decoded or not."""
    kind = type(value)
    return kind is ormsgpack.Ext or kind.__name__ == "Send"


def cut(data: bytes) -> CutSend | None:
    """Cut an encoded `Send`, or a list that begins with one. Return None if it is something else, or short.

    Args:
        data: Valid msgpack. It is not checked.
    """
    if len(data) < MIN_BYTES:
        return None
    kind, count, start = head(data, 0)
    if kind is not list:
        start, count = 0, 1
    if not _is_send(data, start):
        return None
    try:
        pieces = _cut(data, start, count)
    except IndexError:  # the data of a forged extension is not msgpack
        return None
    return pieces if len(pieces.pieces) <= MAX_PIECES else None


def _cut(data: bytes, start: int, count: int) -> CutSend:
    cuts, begin = _Cuts(data, start), start
    for end in ends(data, start, count):
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
    """The pieces and runs of a value, filled from its front to its end."""

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
        """Cut a long list, dict or object. The outer `arrays` levels of lists are fields of an object."""
        data = self._data
        kind, count, start = head(data, begin)
        if kind is ormsgpack.Ext:
            self._item(start, end, _ARRAYS, depth)
            return
        step = 2 if kind is dict else 1
        stops = [*ends(data, start, step * count - 1), end]
        values = list(zip([start, *stops][step - 1 :: step], stops[step - 1 :: step], strict=False))
        if (kind is list and not arrays) or not any(_is_long(data, *value) for value in values):
            self._elements(start, [last for _, last in values])
            return
        for first, last in values:
            self._item(first, last, arrays - 1 if kind is list else 0, depth)

    def _item(self, begin: int, end: int, arrays: int, depth: int) -> None:
        if depth and _is_long(self._data, begin, end):
            self.descend(begin, end, arrays, depth - 1)
        self.mark(end)

    def _elements(self, start: int, stops: Sequence[int]) -> None:
        """Cut between elements, as `elements.cut` does in a channel's value."""
        self.mark(start)
        self.border()
        size = stops[:SAMPLE][-1] - start
        if size < SMALL * min(SAMPLE, len(stops)):
            length = run_length(size, len(stops))
            stops = [*stops[length - 1 : -1 : length], stops[-1]]
        for end in stops:
            self.mark(end)
        self.border()


def run_length(size: int, count: int) -> int:
    """Return the number of small elements to encode together. `size` is the size of the sample in bytes.

    It is a power of two, so the contents of the sample rarely change it.
    """
    return 1 << (BLOCK * min(SAMPLE, count) // size).bit_length() - 1


def _is_long(data: bytes, begin: int, end: int) -> bool:
    """True for a list, dict or object that is long enough to be cut."""
    return end - begin >= MIN_BYTES and head(data, begin)[0] is not None
