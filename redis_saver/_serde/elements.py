"""A value's bytes, cut between the elements of a list or dict.

The whole value is encoded at once. Then its elements are encoded one by one, and compared with the whole: nothing is
cut of a value that changed meanwhile.

As the list of a chat grows at its end, the compiled module compares a new version of a list of messages with the last
one (`Fingerprint`), and encodes what is new.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage

from redis_saver._serde import fallback, sends
from redis_saver._serde.messages import CLASSES, message_elements, native
from redis_saver._serde.msgpack import ends, ext_header, ext_start, header, header_length
from redis_saver._serde.sends import MIN_BYTES, SAMPLE as _SAMPLE, SMALL as _SMALL, run_length

_SNAPSHOT: Final = 7
"""The code of the Ext that a `_DeltaSnapshot` is."""
_SCALARS: Final = frozenset({bool, int, float, NoneType})
_SIZED: Final = frozenset({str, list, dict})
_joined = b"".join


_SIZE = operator.itemgetter(-1)


class Fingerprint(NamedTuple):
    """The classes and all fields of messages, to compare with later."""

    kinds: tuple[type, ...] = ()
    fields: tuple[tuple[Any, ...], ...] = ()
    """The fields of each message: their values, frozen, and how much memory they take. A message that was made of
    these, or that was encoded itself, has the same string objects, which need not be compared. (Tuples for the reason
    given in `chunks.Level`.)"""
    size: int = 0
    """About how many bytes of memory it takes."""
    read: int = 0
    """Number of messages at the front that were read, so that they can be made of these fields again without any
    checks."""

    def with_more(self, kinds: Sequence[type], fields: Sequence[Any], *, read: bool) -> Fingerprint:
        """The fingerprint of these messages and of more behind them."""
        known = len(kinds) if read and self.read == len(self.kinds) else 0
        size = self.size + sum(map(_SIZE, fields))
        return Fingerprint((*self.kinds, *kinds), (*self.fields, *fields), size, self.read + known)

    def front(self, count: int) -> Fingerprint:
        """The fingerprint of the first `count` messages."""
        if count == len(self.kinds):
            return self
        size = self.size - sum(map(_SIZE, self.fields[count:]))
        return Fingerprint(self.kinds[:count], self.fields[:count], size, min(self.read, count))

    def made(self) -> list[Any]:
        """The messages as new objects, if all of them were read."""
        return native.make(self.kinds, self.fields)  # type: ignore[no-any-return]


_NONE: Final = Fingerprint()


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
    if type(value) is list and value and type(value[0]) in CLASSES:
        # Of a copy, because another OS thread may change the list meanwhile.
        data: bytes | None = native.encode(list(value))
        if data is not None:
            return data
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
    if type(inner) is list:
        # A copy, because another OS thread may change the list meanwhile.
        inner = list(inner)
        if len(inner) > 1 and isinstance(inner[0], BaseMessage):
            # The head of a snapshot says how long all of it is, so no element may be left out.
            found = _cut_messages(inner, None if snapshot or last is None else last.fingerprint)
        elif inner and not snapshot and sends.may_be(inner[0]):
            return _cut_sends(inner)
    if found is None:
        found = EncodedElements("msgpack", _cut(inner))
    size = sum(map(len, found.elements))
    if snapshot:
        if size <= 16 or len(found.elements) == 1:
            # An Ext this short may have one of the heads for fixed lengths.
            return EncodedElements("msgpack", [fallback.encode(value)])
        found = found._replace(fingerprint=None)
        found.elements[0] = ext_header(_SNAPSHOT, size) + found.elements[0]
    return found if found.same or size >= MIN_BYTES else EncodedElements("msgpack", [_joined(found.elements)])


def _cut_sends(value: Any) -> EncodedElements:
    """The elements of a `Send`, or of a list that begins with one."""
    data = fallback.encode(value)
    found = sends.cut(data)
    if found is None:
        return EncodedElements("msgpack", _cut(value) if len(data) >= MIN_BYTES else [data])
    return EncodedElements("msgpack", [found.head, *found.pieces], runs=found.runs)


# -- lists of messages


def _cut_messages(messages: list[Any], last: Fingerprint | None) -> EncodedElements:
    """The elements of a list of messages. Those at the front that `last` shows to be unchanged are left out."""
    if type(messages[0]) in CLASSES:
        front = last.front(native.unchanged(messages, last.kinds, last.fields)) if last else _NONE
        others = messages[len(front.kinds) :]
        if packed := _packed(others):
            encoded, kinds, fields = packed
            fingerprint = front.with_more(kinds, fields, read=False)
            return EncodedElements("msgpack", [header(len(messages), list), *encoded], len(front.kinds), fingerprint)
    data, start = fallback.encode(messages), header_length(len(messages))
    borders = pairwise([0, start, *ends(data, start, len(messages))])
    return EncodedElements("msgpack", [data[begin:end] for begin, end in borders])


def _packed(messages: list[Any]) -> tuple[list[bytes], list[type], Sequence[Any]] | None:
    """The encoded elements of a list of messages, with their classes and their fields as in a fingerprint.

    None if not all are known and plain.
    """
    packed = native.pack(messages)
    if packed is None:
        return None
    bodies, fields = packed
    kinds = list(map(type, messages))
    return message_elements(kinds, bodies), kinds, fields


def read_elements(value: list[Any], data: bytes, front: Fingerprint = _NONE) -> tuple[list[int], Fingerprint] | None:
    """The sizes of the elements that `cut` would make of a list that was just read; and its fingerprint.

    None if it holds anything but messages that are known, plain, and written as this module writes them.

    Args:
        value: The list.
        data: Its bytes.
        front: The fingerprint of the messages before these.
    """
    packed = _packed(value) if type(value[0]) in CLASSES else None
    if packed is None:
        return None
    encoded, kinds, fields = packed
    encoded = [header(len(value), list), *encoded]
    if _joined(encoded) != data:
        return None
    return list(map(len, encoded)), front.with_more(kinds, fields, read=True)


# -- other lists, and dicts


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


def _encode_each(elements: Sequence[Any]) -> list[bytes]:
    """The elements of a list, each encoded by itself.

    That is one level less deep than in the list, so the list has to be encodable.
    """
    return list(map(fallback.encode, elements))


def _encode_items(items: list[tuple[str, Any]]) -> list[bytes]:
    """The items of a dict, each encoded."""
    keys, values = zip(*items, strict=True)
    return list(map(operator.add, _encode_each(keys), _encode_each(values)))
