"""A list of messages in pieces, and what shows later that those at its front are still what they were.

A chat's list grows at its end, so a new version is compared with the last instead of being encoded again. Any doubt answers
None, and the list is cut as any other (`redis_saver.pieces`).
"""

from __future__ import annotations

import operator
from typing import Any, Final, NamedTuple

from redis_saver import columns
from redis_saver.columns import header

_MANY: Final = 12
"""From so many messages on it pays to look at columns."""
_TOGETHER: Final = 32
"""So many messages are compared at a time: a list that grew shares the blocks with its last version."""


class Proof(NamedTuple):
    """What shows that messages are still what they were: their classes, and all their fields as bytes."""

    kinds: list[type]
    blocks: list[bytes]
    """The packed fields, of `_TOGETHER` messages in each block, of up to as many in the last."""

    @property
    def size(self) -> int:
        """About as many bytes of memory."""
        return sum(map(len, self.blocks)) + 10 * len(self.kinds)


_joined = b"".join


def elements(messages: list[Any]) -> list[bytes] | None:
    """The elements of a list of messages; None if they are few, or not all known and plain."""
    if len(messages) < _MANY:
        return None
    try:
        known = columns.known(messages)
        bodies = known and columns.pack(*known)
    except columns.FAILURES:
        return None
    return columns.elements(known[0], bodies) if known and bodies else None


def cut(messages: list[Any], last: Proof | None) -> tuple[list[bytes], int, Proof] | None:
    """The header of a list of messages and its elements; None if not all are known and plain.

    Those at the front that are what `last` shows are left out, and counted. The proof that is answered is of all.
    """
    try:
        known = columns.known(messages)
        if known is None:
            return None
        kinds, fields = known
        same, blocks = (0, []) if last is None else _unchanged(kinds, fields, last)
        rest = kinds[same:]
        bodies = columns.pack(rest, fields[same:]) if len(rest) >= _MANY else columns.pack_each(rest, messages[same:])
    except columns.FAILURES:
        return None
    if bodies is None:
        return None
    pieces = [header(messages, list), *columns.elements(rest, bodies)]
    if room := -same % _TOGETHER:
        blocks[-1] = _joined([blocks[-1], *bodies[:room]])
    return pieces, same, Proof(kinds, blocks + _blocks(bodies[room:]))


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


def loaded(value: Any, payloads: list[bytes], data: bytes) -> tuple[list[int], Proof] | None:
    """The sizes of the pieces that `cut` makes of messages that were just read, and the proof of these.

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
    pieces = [header(value, list), *columns.elements(kinds, bodies)]
    if _joined(pieces) != data:
        return None
    return list(map(len, pieces)), Proof(kinds, _blocks(bodies))
