"""A value's bytes in pieces, cut between the elements of a list or dict.

The whole is encoded at once, and cut afterwards: where the pieces begin follows from the lengths of the elements, or the
elements are encoded once more, and compared with the whole.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import NoneType
from typing import Any, Final, NamedTuple

from redis_saver import columns, road
from redis_saver.columns import ext_header
from redis_saver.messages import ENCODERS

SHORTEST: Final = 2048
"""What is shorter stays whole."""
_MANY: Final = 12
"""From so many messages on it pays to look at columns."""
_SAMPLE: Final = 16
"""So many elements tell whether the elements of a container are small."""
_SMALL: Final = 32
"""Elements of fewer bytes than this on average share pieces."""
_BLOCK: Final = 1024
"""About as many bytes make a piece then."""
_SCALARS: Final = frozenset({bool, int, float, NoneType})
_SIZED: Final = frozenset({str, list, dict})


class Proof(NamedTuple):
    """What shows that messages are still what they were: their classes, and all their fields as bytes."""

    kinds: list[type]
    fields: bytes
    ends: list[int]
    """Where in `fields` each message ends."""

    @property
    def size(self) -> int:
        """About as many bytes of memory."""
        return len(self.fields) + 48 * len(self.kinds)


class Pieces(NamedTuple):
    """An encoded value."""

    type: str
    pieces: list[bytes]
    """The header of the list or dict, then its elements; or one piece. Joined they are what `dumps_typed` answers, but for
    the elements that are the same as before."""
    same: int = 0
    """So many elements behind the header are what they were in `last`, and not among the pieces."""
    proof: Proof | None = None

    @property
    def size(self) -> int:
        """About as many bytes of memory as keeping it takes besides the pieces."""
        return self.proof.size if self.proof is not None else 0


def encode(value: Any) -> bytes:
    """The bytes of a value."""
    if type(value) is list and len(value) > 1 and type(value[0]) in ENCODERS:
        # Without an Ext per message, and its copy, it is faster.
        value = value[:]
        found = _of_messages(value, None) if len(value) >= _MANY else None
        return _joined(found.pieces if found is not None else [_header(value, list), *_list_elements(value)])
    return road.encode(value)


def cut(value: Any, last: Pieces | None) -> Pieces:
    """The pieces of a value.

    Args:
        value: The value.
        last: What was answered for an earlier version of it.

    Raises:
        MsgpackEncodeError: It cannot be encoded.
        RuntimeError: Another thread is changing it.
    """
    snapshot = type(value) is road.delta_snapshot
    inner = value.value if snapshot else value
    found = None
    if type(inner) is list and len(inner) > 1:
        # A copy: another thread may append to the list meanwhile.
        inner = inner[:]
        if type(inner[0]) in ENCODERS:
            # The head of a snapshot says how long all of it is, so all of it is needed.
            found = _of_messages(inner, None if snapshot else last)
            if found is None:
                found = Pieces("msgpack", [_header(inner, list), *_list_elements(inner)])
    if found is None:
        found = Pieces("msgpack", _cut(inner))
    size = sum(map(len, found.pieces))
    if snapshot:
        if size <= 16 or len(found.pieces) == 1:
            # So short an Ext may have one of the headers for fixed lengths.
            return Pieces("msgpack", [road.encode(value)])
        found.pieces[0] = ext_header(7, size) + found.pieces[0]
    return found if found.same or size >= SHORTEST else Pieces("msgpack", [_joined(found.pieces)])


_joined = b"".join


# -- messages


def _of_messages(messages: list[Any], last: Pieces | None) -> Pieces | None:
    """The pieces of a list of messages, those of `last` where they are the same; None if not all are known and plain."""
    try:
        known = columns.known(messages)
        if known is None:
            return None
        kinds, fields = known
        proof = None if last is None else last.proof
        same = 0 if proof is None else _unchanged(kinds, fields, proof)
        rest = kinds[same:]
        bodies = columns.pack(rest, fields[same:]) if len(rest) >= _MANY else columns.pack_each(rest, messages[same:])
    except columns.FAILURES:
        return None
    if bodies is None:
        return None
    pieces = [_header(messages, list)]
    before, ends = b"", []
    if last is not None and proof is not None and same:
        ends = proof.ends[:same]
        before = proof.fields[: ends[-1]]
    pieces += columns.elements(rest, bodies)
    ends += list(accumulate(map(len, bodies), initial=len(before)))[1:]
    return Pieces("msgpack", pieces, same, Proof(kinds, _joined([before, *bodies]), ends))


def _unchanged(kinds: list[type], fields: list[dict[str, Any]], proof: Proof) -> int:
    """How many messages at the front are what they were.

    They have no more than their fields, and what those are is what the packed bytes tell: types, order and all.
    """
    alike = list(map(operator.is_, kinds, proof.kinds))
    count = len(alike) if all(alike) else alike.index(False)
    packed = columns.pack_all(fields)
    ends = proof.ends

    def differ(count: int) -> bool:
        return not packed.startswith(proof.fields[: ends[count - 1]])

    if count and differ(count):
        count = bisect_left(range(1, count), True, key=differ)
    return count


# -- lists and dicts


def _cut(value: Any) -> list[bytes]:
    """The pieces of a value; one if it is to stay whole."""
    elements: list[Any]
    encode_run: Callable[[list[Any]], bytes]
    encode_each: Callable[[list[Any]], list[bytes]]
    sizes: Callable[[list[Any]], list[int] | None]
    if type(value) is list and len(value) > 1:
        elements, encode_run, encode_each, sizes = value, road.encode, _list_elements, _list_sizes
    elif type(value) is dict and len(value) > 1 and set(map(type, value)) == {str}:
        elements, encode_run, encode_each, sizes = list(value.items()), _encode_items, _dict_elements, _dict_sizes
    else:
        return [road.encode(value)]
    count, sample = len(elements), elements[:_SAMPLE]
    start = _header_length(count)
    if count > SHORTEST // _SMALL and all(map(_slight, sample)):
        # They may well be small, and many: it takes no look at the whole.
        data = b""
    else:
        data = encode_run(elements)
        if len(data) < SHORTEST:
            return [data]
    size = len(encode_run(sample)) - _header_length(len(sample))
    if size < _SMALL * len(sample):
        # A power of two, so that what the sample holds changes it seldom.
        length = 1 << (_BLOCK * len(sample) // size).bit_length() - 1
        runs = (elements[begin : begin + length] for begin in range(0, count, length))
        return [_header(elements, type(value)), *(encode_run(run)[_header_length(len(run)) :] for run in runs)]
    data = data or encode_run(elements)
    found = sizes(elements)
    if found is not None:
        ends = list(accumulate(found, initial=start))
        if ends[-1] == len(data):
            return [data[:start], *(data[begin:end] for begin, end in zip(ends, ends[1:]))]  # noqa: B905, RUF007 - Python 3.10's is in C
    pieces = [data[:start], *encode_each(elements)]
    return pieces if _joined(pieces) == data else [data]


def _slight(element: Any) -> bool:
    """Whether an element of a list, or a key with its value, is hardly more than small."""
    if type(element) is tuple and len(element) == 2:
        key, element = element
        if type(key) is not str or len(key) > 2 * _SMALL:
            return False
    kind = type(element)
    return kind in _SCALARS or (kind in _SIZED and len(element) <= (2 * _SMALL if kind is str else 0))


def _list_elements(elements: list[Any]) -> list[bytes]:
    """The elements of a list, each encoded."""
    encoder_of = ENCODERS.get
    pieces = []
    for element in elements:
        encode = encoder_of(type(element))
        data = None if encode is None else encode(element)
        if data is None:
            # In a list, as it is no deeper nested then than it is in the whole.
            pieces.append(road.encode([element])[1:])
        else:
            size = len(data)
            pieces.append((_MESSAGE_HEADERS[size] if size < 2048 else ext_header(5, size)) + data)
    return pieces


def _dict_elements(items: list[tuple[str, Any]]) -> list[bytes]:
    """The items of a dict, each encoded."""
    keys, values = zip(*items, strict=True)
    return list(map(operator.add, map(road.encode, keys), map(road.encode, values)))


def _encode_items(items: list[tuple[str, Any]]) -> bytes:
    return road.encode(dict(items))


def _list_sizes(elements: Sequence[Any]) -> list[int] | None:
    """How many bytes strings, or bytes, are in msgpack, each; None for anything else."""
    kinds = set(map(type, elements))
    if kinds == {str}:
        if not all(map(str.isascii, elements)):
            try:
                elements = list(map(str.encode, elements))
            except UnicodeEncodeError:
                return None
        shortest = 32
    elif kinds == {bytes}:
        shortest = 0
    else:
        return None
    return [
        size + (1 if size < shortest else 2 if size < 0x100 else 3 if size < 0x10000 else 5)
        for size in map(len, elements)
    ]


def _dict_sizes(items: list[tuple[str, Any]]) -> list[int] | None:
    """How many bytes the items of a dict are, each, if its values are strings, or bytes."""
    keys, values = map(_list_sizes, zip(*items, strict=True))
    return None if keys is None or values is None else list(map(operator.add, keys, values))


def _header(elements: Sequence[Any], kind: type) -> bytes:
    """The header of an array or a map."""
    count = len(elements)
    short, medium, long = (0x90, b"\xdc", b"\xdd") if kind is list else (0x80, b"\xde", b"\xdf")
    if count < 16:
        return bytes([short | count])
    return medium + count.to_bytes(2, "big") if count < 0x10000 else long + count.to_bytes(4, "big")


def _header_length(count: int) -> int:
    return 1 if count < 16 else 3 if count < 0x10000 else 5


_MESSAGE_HEADERS: Final = tuple(ext_header(5, size) for size in range(2048))
"""The headers of messages by their length: to look one up takes a fraction of the time of making it."""
