"""Long values in parts, so that the versions of a value share what did not change.

A serializer that offers `dumps_pieces` says where the elements of a list or dict end. Elements are joined to parts of about
a kilobyte, cut where the bytes of an element say so, not where it stands: an edit changes the part around it, and all
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

from redis_saver import compression, names
from redis_saver.frames import pack, take

BYTES_A_PART = 1024
"""The size to aim at. Smaller parts store less for each change, and cost more of everything else."""
LONGEST_PART = 4 * BYTES_A_PART
"""Where no element says so, a part ends here. (An element longer than that is one part.)"""
SHORTEST_PART = BYTES_A_PART // 4
SHORTEST_VALUE = 2 * BYTES_A_PART
"""Values below are stored whole."""
PARTS_A_LIST, LONGEST_LIST, LONGEST_ROOT = 12, 48, 20

LIST, PLAIN, ZSTD = b"n", b"p", b"z"
"""Kinds of parts: a list of parts, bytes, compressed bytes."""
DIGEST = 16

_KINDS = frozenset((LIST, PLAIN, ZSTD))
_CUT = 2**32 // BYTES_A_PART
_CUT_LIST = 256 // PARTS_A_LIST


class Stored(NamedTuple):
    """A value as it is stored."""

    value: bytes
    """What the value's field holds: the value, or the root of its parts."""
    parts: dict[bytes, bytes]
    """Its parts by field, not compressed yet."""
    last: bytes = b""
    """The field of its last part, the likeliest to be new."""


def digest(part: bytes) -> bytes:
    """What names a part in its thread: 128 bits of SHA-256."""
    return sha256(part).digest()[:DIGEST]


def cut(serializer_type: str, pieces: Sequence[bytes], kind: bytes) -> Stored | None:
    """A value in parts; None where it is to be stored whole.

    Args:
        serializer_type: The first half of what the serializer gave.
        pieces: The second half: the container's head, then its elements.
        kind: PLAIN or ZSTD.
    """
    if len(pieces) < 3 or sum(map(len, pieces)) < SHORTEST_VALUE:
        return None
    leaves = _leaves(pieces)
    if len(leaves) < 2:
        return None
    digests = [digest(leaf) for leaf in leaves]
    parts = {kind + name: leaf for name, leaf in zip(digests, leaves, strict=True)}
    last = kind + digests[-1]
    while len(digests) > LONGEST_ROOT:
        lists = [kind + b"".join(group) for group in _groups(digests)]
        digests, kind = [digest(one) for one in lists], LIST
        parts.update((LIST + name, one) for name, one in zip(digests, lists, strict=True))
    root = kind + pack([names.encode(serializer_type), pieces[0]]) + b"".join(digests)
    return Stored(root, parts, last)


def _leaves(pieces: Sequence[bytes]) -> list[bytes]:
    leaves, start, size = [], 1, 0
    for position in range(1, len(pieces)):
        piece = pieces[position]
        length = len(piece)
        if size and length >= BYTES_A_PART:
            leaves.append(b"".join(pieces[start:position]))
            start, size = position, 0
        size += length
        if size >= LONGEST_PART or (size >= SHORTEST_PART and crc32(piece) < length * _CUT):
            leaves.append(b"".join(pieces[start : position + 1]))
            start, size = position + 1, 0
    if size:
        leaves.append(b"".join(pieces[start:]))
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


def join(value: bytes, parts: Mapping[bytes, bytes], used: set[bytes]) -> tuple[str, bytes]:
    """What the serializer gave, from a root and the parts below it.

    Args:
        value: The root.
        parts: Parts by field, these among them.
        used: Takes the fields of the parts of this value.

    Raises:
        KeyError: A part is missing.
    """
    (serializer_type, head), start = take(value, 1, 2)
    leaves = [head]
    for field in _walk(value[:1], value[start:], parts, used):
        leaf = parts[field]
        leaves.append(compression.decompress(leaf) if field[:1] == ZSTD else leaf)
    return names.decode(serializer_type), b"".join(leaves)


def _walk(kind: bytes, digests: bytes, lists: Mapping[bytes, bytes], used: set[bytes]) -> Iterator[bytes]:
    """The fields of the leaves, in order; those of all parts go to used."""
    fields = [kind + digests[start : start + DIGEST] for start in range(0, len(digests), DIGEST)]
    used.update(fields)
    if kind != LIST:
        yield from fields
        return
    for field in fields:
        below = lists[field]
        yield from _walk(below[:1], below[1:], lists, used)


def holdings(value: bytes, lists: Mapping[bytes, bytes]) -> set[bytes]:
    """The fields of all parts of a stored value. Where a list is not in `lists`, those below it are left out."""
    found: set[bytes] = set()
    if in_parts(value):
        open_lists = [value[:1] + value[take(value, 1, 2)[1] :]]
        while open_lists:
            one = open_lists.pop()
            below = {one[:1] + one[start : start + DIGEST] for start in range(1, len(one), DIGEST)} - found
            found |= below
            open_lists += [lists[field] for field in below if field[:1] == LIST and field in lists]
    return found
