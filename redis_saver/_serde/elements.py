"""Encode a value, and cut its bytes between the elements of a list or dict.

The whole value is encoded first. Then each element is encoded, and the result is compared with the whole. So a value
that changed in between is not cut.

The messages of a chat grow at the end of their list. So the compiled module compares a list of messages with its last
version (`Fingerprint`), and encodes only the new ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage

from redis_saver._serde import fallback, sends
from redis_saver._serde.messages import CLASSES, native, pack
from redis_saver._serde.msgpack import ends, ext_header, ext_start, header, header_length
from redis_saver._serde.sends import MIN_BYTES, SAMPLE as _SAMPLE, SMALL as _SMALL, run_length

_SNAPSHOT: Final = 7
"""Extension code of a `_DeltaSnapshot`."""
_SCALARS: Final = frozenset({bool, int, float, NoneType})
_SIZED: Final = frozenset({str, list, dict})
_joined = b"".join


_SIZE = operator.itemgetter(-1)


class Fingerprint(NamedTuple):
    """The classes and fields of the messages of a list. A later version of the list is compared with it."""

    kinds: tuple[type, ...] = ()
    fields: tuple[tuple[Any, ...], ...] = ()
    """The fields of each message: their frozen values, and their memory in bytes. A message that was encoded, or made
    of these fields, has the same string objects, so comparing is fast. (`chunks.Level` says why these are tuples.)"""
    size: int = 0
    """Estimated memory in bytes."""
    read: int = 0
    """Number of messages at the front that were decoded. They can be made again from their fields without checks."""

    def with_more(self, kinds: Sequence[type], fields: Sequence[Any], *, read: bool) -> Fingerprint:
        """Return the fingerprint of these messages and more after them."""
        known = len(kinds) if read and self.read == len(self.kinds) else 0
        size = self.size + sum(map(_SIZE, fields))
        return Fingerprint((*self.kinds, *kinds), (*self.fields, *fields), size, self.read + known)

    def front(self, count: int) -> Fingerprint:
        """Return the fingerprint of the first `count` messages."""
        if count == len(self.kinds):
            return self
        size = self.size - sum(map(_SIZE, self.fields[count:]))
        return Fingerprint(self.kinds[:count], self.fields[:count], size, min(self.read, count))

    def made(self) -> list[Any]:
        """Return the messages as new objects. All of them must have been decoded (`read`)."""
        return native.make(self.kinds, self.fields)  # type: ignore[no-any-return]


_NONE: Final = Fingerprint()


class EncodedElements(NamedTuple):
    """An encoded value."""

    type: str
    elements: list[bytes]
    """The head of the list or dict, then its elements. Any other value is one element. Joined, they are the result of
    `dumps_typed`, without the elements that are the same as before."""
    same: int = 0
    """Number of elements after the head that are the same as before, and left out of `elements`."""
    fingerprint: Fingerprint | None = None
    runs: tuple[int, ...] = ()
    """Length of each run of elements after the head. No chunk spans two runs. Empty if all elements are one run."""


def snapshot_start(data: bytes) -> int:
    """Return the start of a `_DeltaSnapshot`'s value. Return 0 if it is something else, or too short to cut."""
    return ext_start(_SNAPSHOT, data)


def encode(value: Any) -> bytes:
    """Encode a value."""
    if type(value) is list and value and type(value[0]) in CLASSES:
        # A copy, because another OS thread may change the list.
        data: bytes | None = native.encode(list(value))
        if data is not None:
            return data
    return fallback.encode(value)


def cut(value: Any, last: EncodedElements | None) -> EncodedElements:
    """Encode a value, and cut it into its elements.

    Args:
        value: The value.
        last: The result for an earlier version of the value.

    Raises:
        MsgpackEncodeError: It cannot be encoded.
        RuntimeError: Another OS thread is changing it.
    """
    kind = type(value)
    snapshot = kind is fallback.delta_snapshot
    if not snapshot and kind is not list and kind is not dict:
        return _cut_sends(value) if sends.may_be(value) else EncodedElements("msgpack", [fallback.encode(value)])
    inner = value.value if snapshot else value
    encoded = None
    if type(inner) is list:
        # A copy, because another OS thread may change the list.
        inner = list(inner)
        if len(inner) > 1 and isinstance(inner[0], BaseMessage):
            # The head of a snapshot has the size of the whole, so no element may be left out.
            encoded = _cut_messages(inner, None if snapshot or last is None else last.fingerprint)
        elif inner and not snapshot and sends.may_be(inner[0]):
            return _cut_sends(inner)
    if encoded is None:
        encoded = EncodedElements("msgpack", _cut(inner))
    size = sum(map(len, encoded.elements))
    if snapshot:
        if size <= 16 or len(encoded.elements) == 1:
            # A short extension may have one of the heads for fixed sizes.
            return EncodedElements("msgpack", [fallback.encode(value)])
        encoded = encoded._replace(fingerprint=None)
        encoded.elements[0] = ext_header(_SNAPSHOT, size) + encoded.elements[0]
    return encoded if encoded.same or size >= MIN_BYTES else EncodedElements("msgpack", [_joined(encoded.elements)])


def _cut_sends(value: Any) -> EncodedElements:
    """Cut a `Send`, or a list that begins with one."""
    data = fallback.encode(value)
    pieces = sends.cut(data)
    if pieces is None:
        return EncodedElements("msgpack", _cut(value) if len(data) >= MIN_BYTES else [data])
    return EncodedElements("msgpack", [pieces.head, *pieces.pieces], runs=pieces.runs)


# -- lists of messages


def _cut_messages(messages: list[Any], last: Fingerprint | None) -> EncodedElements:
    """Cut a list of messages. Messages at the front that are the same as in `last` are left out."""
    if type(messages[0]) in CLASSES:
        front = last.front(native.unchanged(messages, last.kinds, last.fields)) if last else _NONE
        others = messages[len(front.kinds) :]
        if packed := pack(others):
            encoded, kinds, fields = packed
            fingerprint = front.with_more(kinds, fields, read=False)
            return EncodedElements("msgpack", [header(len(messages), list), *encoded], len(front.kinds), fingerprint)
    data, start = fallback.encode(messages), header_length(len(messages))
    borders = pairwise([0, start, *ends(data, start, len(messages))])
    return EncodedElements("msgpack", [data[begin:end] for begin, end in borders])


def read_elements(value: list[Any], data: bytes, front: Fingerprint = _NONE) -> tuple[list[int], Fingerprint] | None:
    """Return the sizes of the elements of a list of messages that was just decoded, and its fingerprint.

    Args:
        value: The list.
        data: Its bytes.
        front: The fingerprint of the messages that precede these.

    Returns:
        None unless all messages are known, plain, and encoded in the way of this module.
    """
    packed = pack(value) if type(value[0]) in CLASSES else None
    if packed is None:
        return None
    encoded, kinds, fields = packed
    encoded = [header(len(value), list), *encoded]
    if _joined(encoded) != data:
        return None
    return list(map(len, encoded)), front.with_more(kinds, fields, read=True)


# -- other lists, and dicts


def _cut(value: Any) -> list[bytes]:
    """Encode the elements of a value. A value that stays whole is one element."""
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
        # There may be many small ones. A sample shows that without encoding all of them.
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
    """Encode several elements together. `size` is the size of the sample in bytes."""
    length = run_length(size, len(elements))
    runs: Iterable[Any] = (elements[begin : begin + length] for begin in range(0, len(elements), length))
    if kind is dict:
        runs = map(dict, runs)
    return [header(len(elements), kind), *(fallback.encode(run)[header_length(len(run)) :] for run in runs)]


def _slight(element: Any) -> bool:
    """True if an element of a list, or a key with its value, may be small."""
    if type(element) is tuple and len(element) == 2:
        key, element = element
        if type(key) is not str or len(key) > 2 * _SMALL:
            return False
    kind = type(element)
    return kind in _SCALARS or (kind in _SIZED and len(element) <= (2 * _SMALL if kind is str else 0))


def _encode_each(elements: Sequence[Any]) -> list[bytes]:
    """Encode each element of a list, which is known to be encodable.

    The list is one level deeper than its elements, so their success alone would not prove that.
    """
    return list(map(fallback.encode, elements))


def _encode_items(items: list[tuple[str, Any]]) -> list[bytes]:
    """Encode each item of a dict."""
    keys, values = zip(*items, strict=True)
    return list(map(operator.add, _encode_each(keys), _encode_each(values)))
