"""Long values in parts, so that the versions of a value share what did not change.

A serializer that offers `dumps_pieces` says where the elements of a list or dict end. Elements are joined to parts of about
half a kilobyte, cut where the bytes of an element say so, not where it stands: an edit changes the part around it, and all
others stay what they were. A part's field is its kind and a digest of its bytes, so that equal parts are stored once. The
digests of a value are a list of parts; while that is long it is cut in the same way, and becomes a tree whose root is what
the value's field holds. `lua/README.md` shows the form.

Parts are shared within a thread: nothing of one thread is named by, or found from, another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple
from zlib import crc32

from redis_saver import names
from redis_saver.frames import pack, take

BYTES_A_PART = 512
"""The size to aim at. Smaller parts store less for each change, and cost more of everything else."""
LONGEST_PART = 4 * BYTES_A_PART
"""Where no element says so, a part ends here. (An element longer than that is one part.)"""
SHORTEST_PART = BYTES_A_PART // 4
SHORTEST_VALUE = 4 * BYTES_A_PART
"""Values below are stored whole."""
PARTS_A_LIST, LONGEST_LIST, LONGEST_ROOT = 6, 24, 10

LIST, PLAIN, ZSTD = b"n", b"p", b"z"
"""Kinds of parts: a list of parts, bytes, compressed bytes."""
DIGEST = 16
_FRAMES = 1 + DIGEST
"""Where the frames begin in a root, behind its kind and a digest of the rest."""

_KINDS = frozenset((LIST, PLAIN, ZSTD))
_CUT = 2**32 // BYTES_A_PART
_CUT_LIST = 256 // PARTS_A_LIST


class PartMissing(LookupError):
    """A part was not read along with the value that is made of it."""


class Leaf(NamedTuple):
    """A part that is no list."""

    field: bytes
    bytes: bytes
    pieces: int
    """Of how many elements it is made."""


class Stored(NamedTuple):
    """A value as it is stored."""

    value: bytes
    """What the value's field holds: the value, or the root of its parts."""
    parts: dict[bytes, bytes]
    """Its parts by field, not compressed."""
    leaves: Sequence[Leaf] = ()
    """Those that are no lists, in order, where it was cut here."""


def digest(part: bytes) -> bytes:
    """What names a part in its thread: 128 bits of SHA-256."""
    return sha256(part).digest()[:DIGEST]


def cut(serializer_type: str, pieces: Sequence[bytes], kind: bytes, before: Sequence[Leaf] = ()) -> Stored | None:
    """A value in parts; None where it is to be stored whole.

    Args:
        serializer_type: The first half of what the serializer gave.
        pieces: The second half: the container's head, then its elements.
        kind: PLAIN or ZSTD.
        before: The leaves of an earlier version, which saves work where they are the same. They change nothing else.
    """
    if len(pieces) < 3 or sum(map(len, pieces)) < SHORTEST_VALUE:
        return None
    leaves = _same(pieces, kind, before)
    leaves += _leaves(pieces, 1 + sum(leaf.pieces for leaf in leaves), kind)
    if len(leaves) < 2:
        return None
    parts = {leaf.field: leaf.bytes for leaf in leaves}
    digests = [leaf.field[1:] for leaf in leaves]
    while len(digests) > LONGEST_ROOT:
        lists = [kind + b"".join(group) for group in _groups(digests)]
        digests, kind = [digest(one) for one in lists], LIST
        parts.update((LIST + name, one) for name, one in zip(digests, lists, strict=True))
    below = pack([names.encode(serializer_type), pieces[0]]) + b"".join(digests)
    return Stored(kind + digest(kind + below) + below, parts, leaves)


def _same(pieces: Sequence[bytes], kind: bytes, before: Sequence[Leaf]) -> list[Leaf]:
    """The first leaves, as far as they are those of an earlier version: where one ends, the next begins in any case.

    The last leaf ended with the value, not by a rule, so it does not count.
    """
    same, start = [], 1
    for leaf in before[:-1]:
        end = start + leaf.pieces
        if leaf.field[:1] != kind or b"".join(pieces[start:end]) != leaf.bytes:
            break
        same.append(leaf)
        start = end
    return same


def _leaves(pieces: Sequence[bytes], start: int, kind: bytes) -> list[Leaf]:
    """Cut pieces from a position on."""
    leaves, size = [], 0

    def end_at(end: int) -> None:
        leaf = b"".join(pieces[start:end])
        leaves.append(Leaf(kind + digest(leaf), leaf, end - start))

    for position in range(start, len(pieces)):
        piece = pieces[position]
        length = len(piece)
        if size and length >= BYTES_A_PART:
            end_at(position)
            start, size = position, 0
        size += length
        if size >= LONGEST_PART or (size >= SHORTEST_PART and crc32(piece) < length * _CUT):
            end_at(position + 1)
            start, size = position + 1, 0
    if size:
        end_at(len(pieces))
    return leaves


def _groups(digests: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut a list of digests where one says so, so that each list holds at least two (but the last)."""
    start = 0
    for position, name in enumerate(digests):
        length = position + 1 - start
        if length == LONGEST_LIST or (length > 1 and name[0] < _CUT_LIST):
            yield digests[start : position + 1]
            start = position + 1
    if start < len(digests):
        yield digests[start:]


def in_parts(value: bytes) -> bool:
    """Whether a stored value is the root of parts; others begin with a digit, or are empty."""
    return value[:1] in _KINDS


def join(value: bytes, parts: Mapping[bytes, bytes], used: dict[bytes, bytes]) -> tuple[str, bytes]:
    """What the serializer gave, from a root and the parts below it.

    Args:
        value: The root.
        parts: Parts by field, these among them, not compressed.
        used: Takes the parts of this value.

    Raises:
        PartMissing: A part is not among them.
    """
    (serializer_type, head), start = take(value, _FRAMES, 2)
    leaves = [head]
    try:
        _collect(value[:1], value[start:], parts, used, leaves)
    except KeyError as error:
        raise PartMissing(error.args[0]) from error
    return names.decode(serializer_type), b"".join(leaves)


def _collect(
    kind: bytes, digests: bytes, parts: Mapping[bytes, bytes], used: dict[bytes, bytes], leaves: list[bytes]
) -> None:
    for field in children(kind, digests):
        part = used[field] = parts[field]
        if kind == LIST:
            _collect(part[:1], part[1:], parts, used, leaves)
        else:
            leaves.append(part)


def children(kind: bytes, digests: bytes) -> list[bytes]:
    """The fields in a list of parts."""
    return [kind + digests[start : start + DIGEST] for start in range(0, len(digests), DIGEST)]


def spine(value: bytes, parts: Mapping[bytes, bytes]) -> list[bytes]:
    """The fields in a root, in the last list below it, in the last below that, ...: where a list that grows changes."""
    kind, digests = value[:1], value[take(value, _FRAMES, 2)[1] :]
    fields = children(kind, digests)
    while kind == LIST:
        last = parts[fields[-1]]
        kind, digests = last[:1], last[1:]
        fields += children(kind, digests)
    return fields


def holdings(value: bytes, lists: Mapping[bytes, bytes]) -> set[bytes]:
    """The fields of all parts of a stored value. Where a list is not in `lists`, those below it are left out."""
    found: set[bytes] = set()
    if in_parts(value):
        open_lists = [value[:1] + value[take(value, _FRAMES, 2)[1] :]]
        while open_lists:
            one = open_lists.pop()
            below = {one[:1] + one[start : start + DIGEST] for start in range(1, len(one), DIGEST)} - found
            found |= below
            open_lists += [lists[field] for field in below if field[:1] == LIST and field in lists]
    return found
