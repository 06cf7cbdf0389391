"""A list of messages cut between them, and what shows later that those at its front are still what they were.

A chat's list grows at its end, so a new version is compared with the last instead of being encoded again. Any uncertainty answers
None, and the list is cut as any other (`redis_saver._serde.elements`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis_saver._serde import message_fields, native_bridge
from redis_saver._serde.msgpack import header

_OVERHEAD: Final = 60
"""Bytes that Python takes for the packed fields of a message beside their own."""
_TOGETHER: Final = 32
"""So many messages are compared at a time."""


class Fingerprint(NamedTuple):
    """What shows that messages are still what they were: their classes, and all their fields."""

    kinds: tuple[type, ...] = ()
    fields: tuple[Any, ...] = ()
    """Of each message, packed. With the compiled module a tuple of their values, frozen, and of how much memory that takes: a message that was
    made of these, or is the one that was encoded, has the same strings, which need not be looked at. (Tuples as in `chunks.Level`.)"""
    size: int = 0
    """About as many bytes of memory."""
    read: int = 0
    """So many messages at the front were read, and are what these fields say: they can be made of them without any checks."""

    def with_more(self, kinds: Sequence[type], fields: Sequence[Any], *, read: bool) -> Fingerprint:
        """The fingerprint of these messages, and of others behind them."""
        known = len(kinds) if read and self.read == len(self.kinds) else 0
        return Fingerprint((*self.kinds, *kinds), (*self.fields, *fields), self.size + _size(fields), self.read + known)

    def front(self, count: int) -> Fingerprint:
        """The fingerprint of so many messages at the front."""
        if count == len(self.kinds):
            return self
        size = self.size - _size(self.fields[count:])
        return Fingerprint(self.kinds[:count], self.fields[:count], size, min(self.read, count))


def _size(fields: Sequence[Any]) -> int:
    return sum([len(of) + _OVERHEAD if type(of) is bytes else of[-1] for of in fields])


_joined = b"".join
_NONE: Final = Fingerprint()


def encode(messages: list[Any]) -> bytes | None:
    """A list of messages; None if not all are known and plain, or there is no compiled module: then it is encoded message by message."""
    native = native_bridge.native
    return native.encode(messages) if native is not None else None


def cut(messages: list[Any], last: Fingerprint | None) -> tuple[list[bytes], int, Fingerprint] | None:
    """The header of a list of messages and its elements; None if not all are known and plain.

    Those at the front that are what `last` shows are left out, and counted. The fingerprint that is answered is of all.
    """
    found = _compared(messages, last or _NONE)
    if found is None:
        return None
    front, kinds, bodies, fields = found
    encoded = [header(len(messages), list), *message_fields.elements(kinds, bodies)]
    return encoded, len(front.kinds), front.with_more(kinds, fields, read=False)


def _compared(
    messages: list[Any], last: Fingerprint
) -> tuple[Fingerprint, list[type], list[bytes], Sequence[Any]] | None:
    """The fingerprint of the messages at the front that are what `last` shows; classes and fields of the others, packed and as in a fingerprint."""
    native = native_bridge.native
    if native is not None and not _is_packed(last):  # then there was a message that only Python knows
        front = last.front(native.unchanged(messages, last.kinds, last.fields))
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
    """How many messages at the front are what they were.

    They have no more than their fields, and what those are is what the packed bytes tell: types, order and all. With a fingerprint of the
    compiled module, none.
    """
    if not _is_packed(fingerprint):
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
        # Even if all are alike now, as another thread is changing one: what follows was not looked at.
        return begin + (len(alike) if all(alike) else alike.index(False))
    return most


def _is_packed(fingerprint: Fingerprint) -> bool:
    """Whether the fields of a fingerprint are bytes."""
    return bool(fingerprint.fields) and type(fingerprint.fields[0]) is bytes


def loaded(messages: list[Any], data: bytes, front: Fingerprint = _NONE) -> tuple[list[int], Fingerprint] | None:
    """The sizes of what `cut` makes of messages that were just read; and the fingerprint of these.

    None where they are not all known, plain and written just as here; or where it takes Python to tell, but did not for those in front.

    Args:
        messages: The messages.
        data: The list that was read.
        front: The fingerprint of the messages in front of these.
    """
    found = _compared(messages, _NONE)
    if found is None:
        return None
    _, kinds, bodies, fields = found
    if _is_packed(front):
        fields = bodies
    elif front.fields and fields is bodies:
        return None
    encoded = [header(len(messages), list), *message_fields.elements(kinds, bodies)]
    if _joined(encoded) != data:
        return None
    return list(map(len, encoded)), front.with_more(kinds, fields, read=True)


def again(fingerprint: Fingerprint, count: int) -> tuple[list[Any], Fingerprint]:
    """So many messages at the front of those that a fingerprint shows, all of which were read, as new objects; and their fingerprint."""
    front, native = fingerprint.front(count), native_bridge.native
    made = native.make(front.kinds, front.fields) if native is not None else None
    if made is None:
        made = message_fields.make(front.kinds, message_fields.unpack_all(_joined(front.fields), count))
    return made, front
