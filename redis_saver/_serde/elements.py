"""A value's bytes, cut between the elements of a list or dict.

The whole value is encoded at once. Then its elements are encoded one by one, and compared with the whole: nothing is
cut of a value that changed meanwhile.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, Final, NamedTuple

from redis_saver._serde import fallback, message_fields, message_list, sends
from redis_saver._serde.message_codec import ENCODERS
from redis_saver._serde.message_list import Fingerprint
from redis_saver._serde.msgpack import ext_header, ext_start, header, header_length
from redis_saver._serde.sends import MIN_BYTES, run_length
from redis_saver._serde.sends import SAMPLE as _SAMPLE
from redis_saver._serde.sends import SMALL as _SMALL

_SNAPSHOT: Final = 7
"""The code of the Ext that a `_DeltaSnapshot` is."""
_SCALARS: Final = frozenset({bool, int, float, NoneType})
_SIZED: Final = frozenset({str, list, dict})


class EncodedElements(NamedTuple):
    """An encoded value."""

    type: str
    elements: list[bytes]
    """The head of the list or dict, then its elements; for any other value one element with all of it. Joined, they are
    what `dumps_typed` returns, without the elements that are the same as before."""
    same: int = 0
    """Number of elements after the head that are the same as in `last`, and left out of `elements`."""
    fingerprint: Fingerprint | None = None
    runs: tuple[int, ...] = ()
    """Lengths of the runs of elements after the head. No chunk spans two runs. Empty if all elements are one run."""


def snapshot_start(data: bytes) -> int:
    """The start of the value of a `_DeltaSnapshot`, after its header. 0 if the bytes are not of one that was cut."""
    return ext_start(_SNAPSHOT, data)


def encode(value: Any) -> bytes:
    """The bytes of a value."""
    if type(value) is list and value and type(value[0]) in ENCODERS:
        # This is faster than making an Ext for each message, and its copy.
        value = value[:]
        return message_list.encode(value) or _joined([header(len(value), list), *_list_elements(value)])
    return fallback.encode(value)


def cut(value: Any, last: EncodedElements | None) -> EncodedElements:
    """The encoded elements of a value.

    Args:
        value: The value.
        last: The result for an earlier version of it.

    Raises:
        MsgpackEncodeError: It cannot be encoded.
        RuntimeError: Another thread is changing it.
    """
    kind = type(value)
    snapshot = kind is fallback.delta_snapshot
    if not snapshot and kind is not list and kind is not dict:
        return _cut_sends(value) if sends.may_be(value) else EncodedElements("msgpack", [fallback.encode(value)])
    inner = value.value if snapshot else value
    found = None
    if type(inner) is list and inner:
        # A copy, because another OS thread may append to the list meanwhile.
        inner = inner[:]
        if len(inner) < 2 or type(inner[0]) not in ENCODERS:
            if not snapshot and any(map(sends.may_be, inner[:1])):
                return _cut_sends(inner)
        else:
            # The head of a snapshot says how long all of it is, so no element may be left out.
            known = message_list.cut(inner, None if snapshot or last is None else last.fingerprint)
            encoded, same, fingerprint = known or ([header(len(inner), list), *_list_elements(inner)], 0, None)
            found = EncodedElements("msgpack", encoded, same, None if snapshot else fingerprint)
    if found is None:
        found = EncodedElements("msgpack", _cut(inner))
    size = sum(map(len, found.elements))
    if snapshot:
        if size <= 16 or len(found.elements) == 1:
            # An Ext this short may have one of the heads for fixed lengths.
            return EncodedElements("msgpack", [fallback.encode(value)])
        found.elements[0] = ext_header(_SNAPSHOT, size) + found.elements[0]
    return found if found.same or size >= MIN_BYTES else EncodedElements("msgpack", [_joined(found.elements)])


_joined = b"".join


def _cut_sends(value: Any) -> EncodedElements:
    """The elements of a `Send`, or of a list that begins with one."""
    data = fallback.encode(value)
    found = sends.cut(data)
    if found is None:
        return EncodedElements("msgpack", _cut(value) if len(data) >= MIN_BYTES else [data])
    return EncodedElements("msgpack", [found.head, *found.pieces], runs=found.runs)


# -- lists and dicts


def _cut(value: Any) -> list[bytes]:
    """The encoded elements of a value; a single one if it stays whole."""
    elements: list[Any]
    encode_each: Callable[[list[Any]], list[bytes]]
    if type(value) is list and len(value) > 1:
        elements, encode_each = value, _encode_each
    elif type(value) is dict and len(value) > 1 and set(map(type, value)) == {str}:
        elements, encode_each = list(value.items()), _encode_items
    else:
        return [encode(value)]
    kind, count, sample = type(value), len(elements), elements[:_SAMPLE]
    if count > MIN_BYTES // _SMALL and all(map(_slight, sample)):
        # They may be small, and many. A sample shows that without encoding the whole, or each of them.
        size = len(fallback.encode(kind(sample))) - header_length(len(sample))
        if size < _SMALL * len(sample):
            return _runs(kind, elements, size)
    data = fallback.encode(value)
    if len(data) < MIN_BYTES:
        return [data]
    start = header_length(count)
    encoded = encode_each(elements)
    if _joined([data[:start], *encoded]) != data:
        return [data]
    size = sum(map(len, encoded[:_SAMPLE]))
    return [data[:start], *encoded] if size >= _SMALL * len(sample) else _runs(kind, elements, size)


def _runs(kind: type, elements: list[Any], size: int) -> list[bytes]:
    """The elements, several encoded together; `size` is the size of the sample."""
    length = run_length(size, len(elements))
    runs: Iterable[Any] = (elements[begin : begin + length] for begin in range(0, len(elements), length))
    if kind is dict:
        runs = map(dict, runs)
    return [header(len(elements), kind), *(fallback.encode(run)[header_length(len(run)) :] for run in runs)]


def _slight(element: Any) -> bool:
    """True if an element of a list, or a key with its value, may count as small."""
    if type(element) is tuple and len(element) == 2:
        key, element = element
        if type(key) is not str or len(key) > 2 * _SMALL:
            return False
    kind = type(element)
    return kind in _SCALARS or (kind in _SIZED and len(element) <= (2 * _SMALL if kind is str else 0))


def _list_elements(elements: list[Any]) -> list[bytes]:
    """The elements of a list, each encoded."""
    encoder_of = ENCODERS.get
    encoded = []
    for element in elements:
        encode = encoder_of(type(element))
        data = None if encode is None else message_fields.payload(element, encode)
        if data is None:
            # Encoded in a list, so that it is nested as deep as in the whole.
            encoded.append(fallback.encode([element])[1:])
        else:
            size = len(data)
            encoded.append((_MESSAGE_HEADERS[size] if size < 2048 else ext_header(5, size)) + data)
    return encoded


def _encode_each(elements: Sequence[Any]) -> list[bytes]:
    """The elements of a list, each encoded by itself.

    That is one level less deep than in the list, so the list has to be encodable.
    """
    return list(map(fallback.encode, elements))


def _encode_items(items: list[tuple[str, Any]]) -> list[bytes]:
    """The items of a dict, each encoded."""
    keys, values = zip(*items, strict=True)
    return list(map(operator.add, _encode_each(keys), _encode_each(values)))


_MESSAGE_HEADERS: Final = tuple(ext_header(5, size) for size in range(2048))
"""The heads of messages' Exts, by length. Looking one up is much faster than making it."""
