"""Encode a list of messages without those at its front that have not changed.

The messages of a chat grow at the end of their list. So the compiled module compares a list of messages with its last
version (`Fingerprint`), and encodes only the new ones.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from redis_saver._serde import fallback
from redis_saver._serde.messages import CLASSES, native, pack
from redis_saver._serde.msgpack import SNAPSHOT, ext_header, header

_SIZE = operator.itemgetter(-1)


class Fingerprint(NamedTuple):
    """The classes and fields of the messages of a list. A later version of the list is compared with it."""

    kinds: tuple[type, ...] = ()
    fields: tuple[tuple[Any, ...], ...] = ()
    """The fields of each message: their frozen values, and their memory in bytes. A message that was encoded, or made
    of these fields, has the same string objects, so comparing is fast. (`chunks.Level` says why these are tuples.)"""
    ends: tuple[int, ...] = ()
    """The end of each message, in bytes after the head of the list."""
    size: int = 0
    """Estimated memory in bytes."""
    read: int = 0
    """Number of messages at the front that were decoded. They can be made again from their fields without checks."""

    def with_more(self, encoded: Sequence[bytes], kinds: Sequence[type], fields: Any, *, read: bool) -> Fingerprint:
        """Return the fingerprint of these messages and more after them, which were encoded so."""
        known = len(kinds) if read and self.read == len(self.kinds) else 0
        ends = accumulate(map(len, encoded), initial=self.bytes)
        next(ends)
        size = self.size + sum(map(_SIZE, fields))
        return Fingerprint((*self.kinds, *kinds), (*self.fields, *fields), (*self.ends, *ends), size, self.read + known)

    @property
    def bytes(self) -> int:
        """Size of the encoded messages in bytes."""
        return self.ends[-1] if self.ends else 0

    def front(self, count: int) -> Fingerprint:
        """Return the fingerprint of the first `count` messages."""
        if count == len(self.kinds):
            return self
        size = self.size - sum(map(_SIZE, self.fields[count:]))
        return Fingerprint(self.kinds[:count], self.fields[:count], self.ends[:count], size, min(self.read, count))

    def read_within(self, size: int) -> Fingerprint:
        """Return the fingerprint of the messages that were decoded and end within the first `size` bytes."""
        return self.front(bisect_right(self.ends, size, hi=self.read))

    def made(self) -> list[Any]:
        """Return the messages as new objects. All of them must have been decoded (`read`)."""
        return native.make(self.kinds, self.fields)  # type: ignore[no-any-return]


NONE: Final = Fingerprint()


class EncodedValue(NamedTuple):
    """An encoded value."""

    type: str
    data: bytes
    """The result of `dumps_typed`, without the messages at the front that are the same as before."""
    front: int = 0
    """Size in bytes of these messages, which follow the heads of list and snapshot."""
    fingerprint: Fingerprint | None = None
    """None if the value is no list of plain messages."""


def encode(value: Any) -> bytes:
    """Encode a value."""
    if type(value) is list and value and type(value[0]) in CLASSES:
        # A copy, because another OS thread may change the list.
        data: bytes | None = native.encode(list(value))
        if data is not None:
            return data
    return fallback.encode(value)


def encode_rest(value: Any, last: Fingerprint | None) -> EncodedValue:
    """Encode a value without the messages at its front that are the same as in `last`.

    Raises:
        MsgpackEncodeError: It cannot be encoded.
        RuntimeError: Another OS thread is changing it.
    """
    is_snapshot = type(value) is fallback.delta_snapshot
    inner = value.value if is_snapshot else value
    if type(inner) is list and len(inner) > 1 and type(inner[0]) in CLASSES:
        # A copy, because another OS thread may change the list.
        messages = list(inner)
        front = last.front(native.unchanged(messages, last.kinds, last.fields)) if last else NONE
        if packed := pack(messages[len(front.kinds) :]):
            data = header(len(messages), list) + b"".join(packed[0])
            if is_snapshot:
                data = ext_header(SNAPSHOT, front.bytes + len(data)) + data
            return EncodedValue("msgpack", data, front.bytes, front.with_more(*packed, read=False))
    return EncodedValue("msgpack", encode(value))


def of_read(value: list[Any], data: bytes, front: Fingerprint = NONE) -> Fingerprint | None:
    """Return the fingerprint of a list of messages that was just decoded.

    Args:
        value: The list.
        data: Its bytes.
        front: The fingerprint of the messages that precede these.

    Returns:
        None unless all messages are known, plain, and encoded in the way of this module.
    """
    packed = pack(value) if type(value[0]) in CLASSES else None
    if packed is None or header(len(value), list) + b"".join(packed[0]) != data:
        return None
    return front.with_more(*packed, read=True)
