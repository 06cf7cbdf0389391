"""A value's bytes in pieces, cut between the elements of a list or dict.

The whole is encoded at once, and cut afterwards: where the pieces begin follows from the lengths of the elements, or the
elements are encoded once more, and compared with the whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
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
_TOGETHER: Final = 32
"""So many messages are compared at a time: a list that grew shares the blocks with its last version."""
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
    blocks: list[bytes]
    """The packed fields, of `_TOGETHER` messages in each block, of up to as many in the last."""

    @property
    def size(self) -> int:
        """About as many bytes of memory."""
        return sum(map(len, self.blocks)) + 10 * len(self.kinds)


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
        return _joined([_header(value, list), *(_columns(value) or _list_elements(value))])
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
    kind = type(value)
    snapshot = kind is road.delta_snapshot
    if not snapshot and kind is not list and kind is not dict:
        return Pieces("msgpack", [road.encode(value)])
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


def _columns(messages: list[Any]) -> list[bytes] | None:
    """The elements of a list of messages; None if they are few, or not all known and plain."""
    if len(messages) < _MANY:
        return None
    try:
        known = columns.known(messages)
        bodies = known and columns.pack(*known)
    except columns.FAILURES:
        return None
    return columns.elements(known[0], bodies) if known and bodies else None


def _of_messages(messages: list[Any], last: Pieces | None) -> Pieces | None:
    """The pieces of a list of messages, without those at the front that are as in `last`; None if not all are known and plain."""
    try:
        known = columns.known(messages)
        if known is None:
            return None
        kinds, fields = known
        same, blocks = (0, []) if last is None or last.proof is None else _unchanged(kinds, fields, last.proof)
        rest = kinds[same:]
        bodies = columns.pack(rest, fields[same:]) if len(rest) >= _MANY else columns.pack_each(rest, messages[same:])
    except columns.FAILURES:
        return None
    if bodies is None:
        return None
    pieces = [_header(messages, list), *columns.elements(rest, bodies)]
    if room := -same % _TOGETHER:
        blocks[-1] = _joined([blocks[-1], *bodies[:room]])
    return Pieces("msgpack", pieces, same, Proof(kinds, blocks + _blocks(bodies[room:])))


def _blocks(bodies: list[bytes]) -> list[bytes]:
    return [_joined(bodies[begin : begin + _TOGETHER]) for begin in range(0, len(bodies), _TOGETHER)]


def _unchanged(kinds: list[type], fields: list[dict[str, Any]], proof: Proof) -> tuple[int, list[bytes]]:
    """How many messages at the front are what they were, and the blocks of these.

    They have no more than their fields, and what those are is what the packed bytes tell: types, order and all.
    """
    most = len(proof.kinds)
    if kinds[:most] != proof.kinds:
        alike = list(map(operator.is_, kinds, proof.kinds))
        most = len(alike) if all(alike) else alike.index(False)
    blocks = []
    for begin, block in zip(range(0, most, _TOGETHER), proof.blocks):  # noqa: B905 - those up to the first of another class
        some = fields[begin : min(begin + _TOGETHER, most)]
        if columns.pack_all(some) == block:
            blocks.append(block)
            continue
        same, end = begin, 0
        for one in some:
            packed = columns.pack_all([one])
            if not block.startswith(packed, end):
                break
            same, end = same + 1, end + len(packed)
        # Even if all are alike now, as another thread is changing one: what follows was not looked at.
        return same, [*blocks, block[:end]] if end else blocks
    return most, blocks


def loaded(value: Any, payloads: list[bytes], data: bytes) -> tuple[list[int], Pieces] | None:
    """What `cut` answers for messages that were just read, with the pieces' sizes in place of the pieces.

    None where they are not all known, plain and written just as here.

    Args:
        value: What was read.
        payloads: What its messages were made of, those that took the short road.
        data: The bytes that were read.
    """
    if type(value) is not list or len(value) < 2 or len(payloads) != len(value):
        return None
    kinds = list(map(type, value))
    if not columns.CLASSES.keys() >= set(kinds):
        return None
    bodies = columns.bodies(kinds, payloads)
    pieces = [_header(value, list), *columns.elements(kinds, bodies)]
    if _joined(pieces) != data:
        return None
    return list(map(len, pieces)), Pieces("msgpack", [], 0, Proof(kinds, _blocks(bodies)))


# -- lists and dicts


def _cut(value: Any) -> list[bytes]:
    """The pieces of a value; one if it is to stay whole."""
    elements: list[Any]
    encode_each: Callable[[list[Any]], list[bytes]]
    sizes: Callable[[list[Any]], list[int] | None]
    if type(value) is list and len(value) > 1:
        elements, encode_each, sizes = value, _encode_each, _sizes
    elif type(value) is dict and len(value) > 1 and set(map(type, value)) == {str}:
        elements, encode_each, sizes = list(value.items()), _encode_items, _item_sizes
    else:
        return [road.encode(value)]
    kind, count, sample = type(value), len(elements), elements[:_SAMPLE]
    if count > SHORTEST // _SMALL and all(map(_slight, sample)):
        # They may well be small, and many: neither the whole nor each element is to be encoded to see that.
        size = len(road.encode(kind(sample))) - _header_length(len(sample))
        if size < _SMALL * len(sample):
            return _runs(kind, elements, size)
    data = road.encode(value)
    if len(data) < SHORTEST:
        return [data]
    start = _header_length(count)
    found = sizes(elements)
    ends = [] if found is None else list(accumulate(found, initial=start))
    if ends and ends[-1] == len(data):
        pieces = [data[begin:end] for begin, end in zip(ends, ends[1:])]  # noqa: B905, RUF007 - the second is shorter
    else:
        pieces = encode_each(elements)
        if _joined([data[:start], *pieces]) != data:
            return [data]
    size = sum(map(len, pieces[:_SAMPLE]))
    return [data[:start], *pieces] if size >= _SMALL * len(sample) else _runs(kind, elements, size)


def _runs(kind: type, elements: list[Any], size: int) -> list[bytes]:
    """Pieces of many small elements each, where those of the sample have this size together."""
    # A power of two, so that what the sample holds changes it seldom.
    length = 1 << (_BLOCK * min(_SAMPLE, len(elements)) // size).bit_length() - 1
    runs: Iterable[Any] = (elements[begin : begin + length] for begin in range(0, len(elements), length))
    if kind is dict:
        runs = map(dict, runs)
    return [_header(elements, kind), *(road.encode(run)[_header_length(len(run)) :] for run in runs)]


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


def _encode_each(elements: Sequence[Any]) -> list[bytes]:
    """The elements of a list, each encoded: one level less deep than in the list, so it takes one that can be encoded."""
    return list(map(road.encode, elements))


def _encode_items(items: list[tuple[str, Any]]) -> list[bytes]:
    """The items of a dict, each encoded."""
    keys, values = zip(*items, strict=True)
    return list(map(operator.add, _encode_each(keys), _encode_each(values)))


def _sizes(elements: Sequence[Any]) -> list[int] | None:
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
    sizes = list(map(len, elements))
    header = _string_header(min(sizes), shortest)
    if header == _string_header(max(sizes), shortest):
        return [size + header for size in sizes]
    return [size + _string_header(size, shortest) for size in sizes]


def _string_header(size: int, shortest: int) -> int:
    return 1 if size < shortest else 2 if size < 0x100 else 3 if size < 0x10000 else 5


def _item_sizes(items: list[tuple[str, Any]]) -> list[int] | None:
    """How many bytes the items of a dict are, each, if its values are strings, or bytes."""
    keys, values = map(_sizes, zip(*items, strict=True))
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
