"""A list of messages, cut between the messages.

Its fingerprint shows later whether the messages at its front are unchanged.

The list of a chat grows at its end. So a new version is compared with the last one instead of being encoded again. In
any doubtful case the functions return None, and the list is cut like any other (`redis_saver._serde.elements`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis_saver._serde import message_fields
from redis_saver._serde.msgpack import header

_OVERHEAD: Final = 60
"""Bytes of Python's overhead for the packed fields of a message."""
_TOGETHER: Final = 32
"""Number of messages that are compared at a time."""


class Fingerprint(NamedTuple):
    """The classes and all fields of messages, to compare with later."""

    kinds: tuple[type, ...] = ()
    fields: tuple[Any, ...] = ()
    """The fields of each message, packed. With the compiled module a tuple instead: their values, frozen, and how much
    memory they take. A message that was made of these, or that was encoded itself, has the same string objects, which
    need not be compared. (Tuples for the reason given in `chunks.Level`.)"""
    size: int = 0
    """About how many bytes of memory it takes."""
    read: int = 0
    """Number of messages at the front that were read, so that they can be made of these fields again without any
    checks."""

    def with_more(self, kinds: Sequence[type], fields: Sequence[Any], *, read: bool) -> Fingerprint:
        """The fingerprint of these messages and of more behind them."""
        known = len(kinds) if read and self.read == len(self.kinds) else 0
        return Fingerprint((*self.kinds, *kinds), (*self.fields, *fields), self.size + _size(fields), self.read + known)

    def front(self, count: int) -> Fingerprint:
        """The fingerprint of the first `count` messages."""
        if count == len(self.kinds):
            return self
        size = self.size - _size(self.fields[count:])
        return Fingerprint(self.kinds[:count], self.fields[:count], size, min(self.read, count))


def _size(fields: Sequence[Any]) -> int:
    size = 0
    for of in fields:
        size += len(of) + _OVERHEAD if type(of) is bytes else of[-1]
    return size


_joined = b"".join
_NONE: Final = Fingerprint()


def encode(messages: list[Any]) -> bytes | None:
    """The bytes of a list of messages.

    None if not all are known and plain, or if there is no compiled module: then the messages are encoded one by one.
    """
    native = message_fields.native
    return native.encode(messages) if native is not None else None


def cut(messages: list[Any], last: Fingerprint | None) -> tuple[list[bytes], int, Fingerprint] | None:
    """The head of a list of messages and its elements; None if not all are known and plain.

    Messages at the front that `last` shows to be unchanged are left out, and counted. The returned fingerprint is that
    of all messages.
    """
    found = _compared(messages, last or _NONE)
    if found is None:
        return None
    front, kinds, bodies, fields = found
    encoded = [header(len(messages), list), *message_fields.elements(kinds, bodies)]
    return encoded, len(front.kinds), front.with_more(kinds, fields, read=False)


def _compared(
    messages: list[Any], last: Fingerprint
) -> tuple[Fingerprint, Sequence[type], list[bytes], Sequence[Any]] | None:
    """Return the fingerprint of the unchanged messages at the front.

    Also return of the others the classes, the packed fields, and the fields as in a fingerprint.
    """
    native = message_fields.native
    # Packed fields come from a list with a message that only Python knows.
    if native is not None and not (last.fields and type(last.fields[0]) is bytes):
        front = last.front(native.unchanged(messages, last.kinds, last.fields)) if last.kinds else last
        others = messages[len(front.kinds) :]
        packed = native.pack(others)
        if packed is not None:
            return front, list(map(type, others)), *packed
    try:
        known = message_fields.known(messages)
        if known is None:
            return None
        kinds, fields = known
        front = last.front(_unchanged(kinds, fields, last))
        same = len(front.kinds)
        bodies = message_fields.pack(kinds[same:], messages[same:])
    except message_fields.FAILURES:
        return None
    return None if bodies is None else (front, kinds[same:], bodies, bodies)


def _unchanged(kinds: list[type], fields: list[dict[str, Any]], fingerprint: Fingerprint) -> int:
    """Return the number of unchanged messages at the front.

    Messages are no more than their fields, and packed bytes show everything of these: values, types, order. For a
    fingerprint of the compiled module the answer is 0.
    """
    if not fingerprint.fields or type(fingerprint.fields[0]) is not bytes:
        return 0
    most = len(fingerprint.kinds)
    if tuple(kinds[:most]) != fingerprint.kinds:
        alike = list(map(operator.is_, kinds, fingerprint.kinds))
        most = len(alike) if all(alike) else alike.index(False)
    for begin in range(0, most, _TOGETHER):
        some, before = (
            fields[begin : min(begin + _TOGETHER, most)],
            fingerprint.fields[begin : min(begin + _TOGETHER, most)],
        )
        if message_fields.pack_all(some) == _joined(before):
            continue
        alike = [message_fields.pack_all([one]) == packed for one, packed in zip(some, before, strict=True)]
        # Even if all are equal now, because another OS thread is changing one: what follows was not compared.
        return begin + (len(alike) if all(alike) else alike.index(False))
    return most


def loaded(messages: list[Any], data: bytes, front: Fingerprint = _NONE) -> tuple[list[int], Fingerprint] | None:
    """The sizes of the elements that `cut` would make of messages that were just read; and their fingerprint.

    None if they are not all known, plain, and written as this module writes them; or if these need Python, and those in
    front had a fingerprint of the compiled module.

    Args:
        messages: The messages.
        data: The list that was read.
        front: The fingerprint of the messages in front of these.
    """
    found = _compared(messages, _NONE)
    if found is None:
        return None
    _, kinds, bodies, fields = found
    if front.fields and type(front.fields[0]) is bytes:
        fields = bodies
    elif front.fields and fields is bodies:
        return None
    encoded = [header(len(messages), list), *message_fields.elements(kinds, bodies)]
    if _joined(encoded) != data:
        return None
    return list(map(len, encoded)), front.with_more(kinds, fields, read=True)


def again(fingerprint: Fingerprint, count: int) -> tuple[list[Any], Fingerprint]:
    """The first `count` messages of a fingerprint, all of which were read, as new objects; and their fingerprint."""
    front, native = fingerprint.front(count), message_fields.native
    made = native.make(front.kinds, front.fields) if native is not None else None
    if made is None:
        made = message_fields.make(front.kinds, message_fields.unpack_all(_joined(front.fields), count))
    return made, front
