"""A list of messages in pieces, and what shows later that those at its front are still what they were.

A chat's list grows at its end, so a new version is compared with the last instead of being encoded again. Any doubt answers
None, and the list is cut as any other (`redis_saver.pieces`).
"""

from __future__ import annotations

import operator
from typing import Any, Final, NamedTuple

from redis_saver import columns, compiled
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
    read: int = 0
    """So many messages at the front were read, and are what these bytes say: they can be made of them without any checks."""

    @property
    def size(self) -> int:
        """About as many bytes of memory."""
        return sum(map(len, self.blocks)) + 10 * len(self.kinds)

    def with_more(self, kinds: list[type], bodies: list[bytes], *, read: bool) -> Proof:
        """The proof of these messages, and of others behind them."""
        blocks, room = self.blocks, -len(self.kinds) % _TOGETHER
        if room:
            blocks = [*blocks[:-1], _joined([blocks[-1], *bodies[:room]])]
        more = [_joined(bodies[begin : begin + _TOGETHER]) for begin in range(room, len(bodies), _TOGETHER)]
        known = len(kinds) if read and self.read == len(self.kinds) else 0
        return Proof(self.kinds + kinds, blocks + more, self.read + known)

    def front(self, count: int, end: int) -> Proof:
        """The proof of so many messages at the front, where that is so many bytes of the last block, unless it is all of it."""
        if count == len(self.kinds):
            return self
        whole, rest = divmod(count, _TOGETHER)
        blocks = [*self.blocks[:whole], self.blocks[whole][:end]] if rest else self.blocks[:whole]
        return Proof(self.kinds[:count], blocks, min(self.read, count))


_joined = b"".join
_NONE: Final = Proof([], [])


def encode(messages: list[Any]) -> bytes | None:
    """A list of messages; None if not all are known and plain, or they are few and there is no compiled module."""
    native = compiled.native
    data = native.encode(messages) if native is not None else None
    if data is not None or len(messages) < _MANY:
        return data
    try:
        known = columns.known(messages)
        bodies = known and columns.pack(*known)
    except columns.FAILURES:
        return None
    return _joined([header(len(messages), list), *columns.elements(known[0], bodies)]) if known and bodies else None


def cut(messages: list[Any], last: Proof | None) -> tuple[list[bytes], int, Proof] | None:
    """The header of a list of messages and its elements; None if not all are known and plain.

    Those at the front that are what `last` shows are left out, and counted. The proof that is answered is of all.
    """
    found = _compared(messages, last or _NONE)
    if found is None:
        return None
    front, kinds, bodies = found
    pieces = [header(len(messages), list), *columns.elements(kinds, bodies)]
    return pieces, len(front.kinds), front.with_more(kinds, bodies, read=False)


def _compared(messages: list[Any], last: Proof) -> tuple[Proof, list[type], list[bytes]] | None:
    """The proof of the messages at the front that are what `last` shows; classes and packed fields of the others."""
    native = compiled.native
    front = native.unchanged(messages, last.kinds, last.blocks, _TOGETHER) if native is not None else None
    if native is not None and front is not None:
        same, end = front
        others = messages[same:]
        bodies = native.pack(others)
        if bodies is not None:
            return last.front(same, end), list(map(type, others)), bodies
    try:
        known = columns.known(messages)
        if known is None:
            return None
        kinds, fields = known
        same, end = _unchanged(kinds, fields, last)
        bodies = _pack(kinds[same:], messages[same:], fields[same:])
    except columns.FAILURES:
        return None
    return None if bodies is None else (last.front(same, end), kinds[same:], bodies)


def _pack(kinds: list[type], messages: list[Any], fields: list[dict[str, Any]]) -> list[bytes] | None:
    """The packed fields of each message; None if some are not plain."""
    return columns.pack(kinds, fields) if len(kinds) >= _MANY else columns.pack_each(kinds, messages)


def _unchanged(kinds: list[type], fields: list[dict[str, Any]], proof: Proof) -> tuple[int, int]:
    """How many messages at the front are what they were, and how many bytes that is of the last block, 0 if it is all of one.

    They have no more than their fields, and what those are is what the packed bytes tell: types, order and all.
    """
    most = len(proof.kinds)
    if kinds[:most] != proof.kinds:
        alike = list(map(operator.is_, kinds, proof.kinds))
        most = len(alike) if all(alike) else alike.index(False)
    for begin, block in zip(range(0, most, _TOGETHER), proof.blocks):  # noqa: B905 - those up to the first of another class
        some = fields[begin : min(begin + _TOGETHER, most)]
        if columns.pack_all(some) == block:
            continue
        same, end = begin, 0
        for one in some:
            packed = columns.pack_all([one])
            if not block.startswith(packed, end):
                break
            same, end = same + 1, end + len(packed)
        # Even if all are alike now, as another thread is changing one: what follows was not looked at.
        return same, end
    return most, len(proof.blocks[-1]) if most % _TOGETHER else 0


def loaded(messages: list[Any], data: bytes, front: Proof = _NONE) -> tuple[list[int], Proof] | None:
    """The sizes of the pieces that `cut` makes of messages that were just read; and the proof of these.

    None where they are not all known, plain and written just as here.

    Args:
        messages: The messages.
        data: The list that was read.
        front: The proof of the messages in front of these.
    """
    found = _compared(messages, _NONE)
    if found is None:
        return None
    _, kinds, bodies = found
    pieces = [header(len(messages), list), *columns.elements(kinds, bodies)]
    if _joined(pieces) != data:
        return None
    return list(map(len, pieces)), front.with_more(kinds, bodies, read=True)


def again(proof: Proof, count: int) -> tuple[list[Any], Proof]:
    """So many messages at the front of those that a proof shows, all of which were read, as new objects; and their proof."""
    native = compiled.native
    made = native.make(proof.kinds, proof.blocks, _TOGETHER, count) if native is not None else None
    if made is not None:
        return made[0], proof.front(count, made[1])
    fields = list[dict[str, Any]]()
    for block in proof.blocks[: -(-count // _TOGETHER)]:
        fields += columns.unpack_all(block, min(_TOGETHER, len(proof.kinds) - len(fields)))
    messages = columns.make(proof.kinds[:count], fields)  # the last block may have more
    end = len(columns.pack_all(fields[count - count % _TOGETHER : count])) if count < len(proof.kinds) else 0
    return messages, proof.front(count, end)
