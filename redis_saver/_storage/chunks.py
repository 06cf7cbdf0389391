"""Long values in chunks. The versions of a value share the chunks that did not change.

`_serde/cutter.py` says where the serializer's bytes are cut, and `cut` makes chunks of the pieces. A chunk's field is
its kind and a digest of its bytes, so a thread stores equal chunks once. The digests of a value's chunks form a list,
and a long list is cut into chunks again. So a value is a tree, and its field holds the root.
`docs/storage-format.md` shows the format. Threads share no chunks.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from hashlib import sha256
from itertools import accumulate, chain, repeat
from typing import NamedTuple, TypeAlias

from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._serde import cutter
from redis_saver._serde.cutter import PUBLIC, Gear
from redis_saver._serde.fingerprint import EncodedValue, Fingerprint
from redis_saver._storage.framing import pack, take

LIST, PLAIN, ZSTD = b"n", b"p", b"z"
"""Kinds of chunks: a list of chunks, bytes, compressed bytes."""
DIGEST = 16
"""Size of a digest in bytes."""
_DIGEST_OF = operator.itemgetter(slice(1, None))
_FRAMES = 1 + DIGEST
"""Position of the frames in a root, after its kind and a digest of the rest."""

KINDS = frozenset((LIST, PLAIN, ZSTD))


class ChunkMissing(LookupError):
    """A value was read without one of its chunks."""


class Level(NamedTuple):
    """Chunks in order: the leaves of a value, or the lists of the chunks of the level below.

    Python's garbage collector stops tracking tuples of plain values. So the chunk cache hardly slows a collection.
    """

    fields: tuple[bytes, ...] = ()
    chunks: tuple[bytes, ...] = ()

    def with_more(self, same: int, fields: Sequence[bytes], chunks: Sequence[bytes]) -> Level:
        """Return the first `same` chunks of this level, with more after them."""
        return Level((*self.fields[:same], *fields), (*self.chunks[:same], *chunks))


class Stored(NamedTuple):
    """A value as it is stored."""

    value: bytes
    """Contents of the value's field: the value, or the root of its chunks."""
    chunks: dict[bytes, bytes]
    """Its chunks by field, not compressed."""
    levels: tuple[Level, ...] = ()
    """The chunks in order, level by level, the leaves first."""
    new: tuple[bytes, ...] = ()
    """Fields of the chunks after those that it shares with the front of the earlier version. Without one: all."""
    fingerprint: Fingerprint | None = None
    """The fingerprint of a list of messages, to compare the next version with."""
    size: int = 0
    """Bytes of the chunks."""


IN_CHUNKS = b"\xffchunks"
"""The type of a pending write that is stored in chunks. No UTF-8 begins with this byte."""


class Write(NamedTuple):
    """A pending write as it is stored."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    type: bytes
    """`IN_CHUNKS` if the bytes are the root of its chunks."""
    data: bytes


NO_LEVEL = Level()
"""Placeholder for a missing level of an earlier version."""


def digest(chunk: bytes) -> bytes:
    """Return the digest that names a chunk: 128 bits of SHA-256."""
    return sha256(chunk).digest()[:DIGEST]


Digests: TypeAlias = Callable[[bytes], bytes]
"""Names chunks: `digest`, or the keyed digest of a thread's cipher."""


def shared(stored: Stored, last: Stored) -> int:
    """Return the size of the leaves, in bytes, that another version has at its front, too."""
    same = _alike(stored.levels[0].fields, last.levels[0].fields)
    return sum(map(len, stored.levels[0].chunks[:same]))


def digests_of(fields: Sequence[bytes]) -> bytes:
    """Return the digests of chunks, as a list of chunks or a root holds them."""
    return b"".join(map(_DIGEST_OF, fields))


def in_chunks(value: bytes) -> bool:
    """True if a stored value is the root of chunks. Other values begin with a digit, or are empty."""
    return value[:1] in KINDS


def check(value: bytes, digest: Digests) -> None:
    """Compare a root with the digest in it.

    Raises:
        ValueError: They differ.
    """
    if value[1:_FRAMES] != digest(value[:1] + value[_FRAMES:]):
        raise ValueError("its root does not match its digest: the stored bytes were changed")


def join(
    value: bytes,
    chunks: Mapping[bytes, bytes],
    allowance: Allowance,
    last: Stored | None = None,
    digest: Digests = digest,
) -> Stored:
    """Join a value from its root and its chunks.

    A few small lists can name the same chunks many times. So each level is counted before it is made.

    Args:
        value: The root.
        chunks: The value's chunks by field, not compressed, and possibly others. Each matches its digest
            (`codec.as_chunks`), so no list contains itself.
        allowance: The size that the value may have.
        last: Another version of the value. It makes joining faster.
        digest: Names chunks.

    Raises:
        ChunkMissing: A chunk is missing.
        LimitExceeded: The value is too long, or has too many chunks.
        ValueError: The root or a list of chunks is damaged.
    """
    check(value, digest)
    start = take(value, _FRAMES, 2)[1]
    fields, same, count = tuple(children(value[:1], value[start:])), 0, 0
    levels, kept = list[Level](), list[int]()
    others = chain(reversed(last.levels if last else ()), repeat(NO_LEVEL))
    before = next(others)
    try:
        while True:
            same += _alike(fields[same:], before.fields[same:])
            contents = (*before.chunks[:same], *map(chunks.__getitem__, fields[same:]))
            kept.append(same)
            count += len(fields)
            if fields[0][:1] != LIST:
                break
            levels.append(Level(fields, contents))
            counts = [len(chunk) // DIGEST for chunk in contents]
            allowance.unfold("chunks", count + sum(counts))
            allowance.unfold("depth", len(levels))
            lists, same, before = same, sum(counts[:same]), next(others)
            # Equal lists have equal chunks.
            below = list(before.fields[:same])
            for chunk in contents[lists:]:
                below += children(chunk[:1], chunk[1:])
            fields = tuple(below)
    except KeyError as error:
        raise ChunkMissing(error.args[0]) from error
    allowance.unfold("value_bytes", sum(map(len, contents)))
    all_levels = (Level(fields, contents), *levels[::-1])
    used, size = by_field(all_levels, kept[::-1], last)
    return Stored(value, used, all_levels, size=size)


def _alike(some: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Return the number of equal items at the front of both."""
    same = list(map(operator.eq, some, others))
    return len(same) if all(same) else same.index(False)


def by_field(levels: Sequence[Level], kept: Sequence[int], before: Stored | None) -> tuple[dict[bytes, bytes], int]:
    """Return the chunks of all levels by field, and their size in bytes.

    Args:
        levels: The levels, starting with the leaves.
        kept: For each level, the number of its first chunks that an earlier version also has.
        before: That version. Copying and changing its table is faster than making a new one.
    """
    places = 0
    for level in before.levels if before else ():
        places += len(level.fields)
    if before is None or len(before.chunks) != places:
        # There is no earlier version, or it has a chunk in two places: it may lose one of them and keep the other.
        chunks = dict[bytes, bytes]()
        for level in levels:
            chunks.update(zip(level.fields, level.chunks, strict=True))
        return chunks, sum(map(len, chunks.values()))
    chunks, size = before.chunks.copy(), before.size
    for level, same in zip(before.levels, chain(kept, repeat(0))):  # noqa: B905 - there may be fewer levels now
        for field in level.fields[same:]:
            size -= len(chunks.pop(field))
    for level, same in zip(levels, kept, strict=True):
        more = dict(zip(level.fields[same:], level.chunks[same:], strict=True))
        size += sum(map(len, map(more.__getitem__, more.keys() - chunks.keys())))
        chunks.update(more)
    return chunks, size


def head_of(stored: Stored) -> bytes:
    """Return the bytes that the serializer gave before the elements."""
    return take(stored.value, _FRAMES, 2)[0][1]


def typed_bytes(stored: Stored, skipped: int = 0) -> tuple[str, bytes]:
    """Return the type and bytes that the serializer gave, without the first `skipped` bytes after the head."""
    (serializer_type, head), _ = take(stored.value, _FRAMES, 2)
    leaves = stored.levels[0].chunks
    whole = bisect_right(list(accumulate(map(len, leaves))), skipped) if skipped else 0
    begun = [leaf[skipped - sum(map(len, leaves[:whole])) :] for leaf in leaves[whole : whole + 1]]
    return names.decode(serializer_type), b"".join([head, *begun, *leaves[whole + 1 :]])


def children(kind: bytes, digests: bytes) -> list[bytes]:
    """Return the fields in a list of chunks.

    Raises:
        ValueError: The list is damaged.
    """
    if kind not in KINDS or not digests or len(digests) % DIGEST:
        raise ValueError(
            f"a list of chunks is damaged: {len(digests)} bytes after the kind {shown(kind)} are not a number of "
            "digests"
        )
    return [kind + digests[start : start + DIGEST] for start in range(0, len(digests), DIGEST)]


def right_edge(levels: Sequence[Level]) -> list[bytes]:
    """Return the fields in the root, in its last list, in that list's last list, and so on.

    These change when a list grows.
    """
    fields = list(levels[-1].fields)
    for lists, below in zip(levels[:0:-1], levels[-2::-1], strict=True):
        fields += below.fields[-(len(lists.chunks[-1]) // DIGEST) :]
    return fields


def reachable(
    values: Iterable[bytes], lists: Mapping[bytes, bytes], known: AbstractSet[bytes] = frozenset()
) -> set[bytes]:
    """Return the fields of all chunks of stored values. The chunks of a list that is not in `lists` are left out.

    The walk visits shared chunks once. It leaves out the chunks in `known` with everything below them.
    """
    visited = set(known)
    for value in values:
        if in_chunks(value):
            open_lists = [value[:1] + value[take(value, _FRAMES, 2)[1] :]]
            while open_lists:
                chunk = open_lists.pop()
                below = set(children(chunk[:1], chunk[1:])) - visited
                visited |= below
                open_lists += [lists[field] for field in below if field[:1] == LIST and field in lists]
    return visited - known


CHUNKS_PER_LIST, MAX_LIST, MAX_ROOT = 6, 24, 10

MAX_BELOW = 4000
"""Maximum size of a root in bytes. Scripts never take a longer value for a root."""

_CUT_LIST = 256 // CHUNKS_PER_LIST
_COARSE = 3
"""With compression pieces of strings are eight times as large, as small ones compress badly."""


def in_pieces(kind: str, data: bytes) -> list[bytes]:
    """Return a value's bytes in pieces. Versions of the value share most of them."""
    whole = cutter.cut(kind, data)
    return [data] if whole is None else [whole.head, *whole.pieces]


def cut(
    encoded: EncodedValue, kind: bytes, before: Stored | None = None, digest: Digests = digest, gear: Gear = PUBLIC
) -> Stored | None:
    """Cut a value into chunks.

    Args:
        encoded: The serializer's result, of `OPENED` bytes or more. If it lacks messages at the front, they are those
            of `before`.
        kind: `PLAIN` or `ZSTD`.
        before: An earlier version. Without messages that were left out, it only saves work.
        digest: Names chunks.
        gear: Says where strings and lists are cut.

    Returns:
        None if the value has to be stored whole.
    """
    last = before.levels[0] if before is not None and before.levels else NO_LEVEL
    front = before.fingerprint.bytes if before is not None and before.fingerprint else 0
    whole = _pieces(encoded, last, front, kind, gear)
    if whole is None:
        return None
    head, pieces, kept = whole
    if last.fields and last.fields[0][:1] != kind:
        last = NO_LEVEL
    known = dict(zip(last.chunks[kept:], last.fields[kept:], strict=True))
    fields = [known.get(piece) or kind + digest(piece) for piece in pieces]
    levels, same = [last.with_more(kept, fields, pieces)], [kept]
    if len(levels[0].fields) < 2:
        return None
    lower = before.levels if before is not None and last.fields else ()
    while len(levels[-1].fields) > MAX_ROOT:
        upper = lower[len(levels)] if len(levels) < len(lower) else NO_LEVEL
        level, kept = _list(levels[-1].fields, upper, kept, digest)
        levels.append(level)
        same.append(kept)
    below = pack([names.encode(encoded.type), head]) + digests_of(levels[-1].fields)
    root = levels[-1].fields[0][:1]
    if len(below) > MAX_BELOW:
        return None
    new: tuple[bytes, ...] = ()
    for each, kept in zip(levels, same, strict=True):
        new += each.fields[kept:]
    chunks, size = by_field(levels, same, before if last.fields else None)
    return Stored(root + digest(root + below) + below, chunks, tuple(levels), new, encoded.fingerprint, size)


def _pieces(
    encoded: EncodedValue, last: Level, end: int, kind: bytes, gear: Gear
) -> tuple[bytes, list[bytes], int] | None:
    """Return the head of a value, its pieces without those at the front that are chunks of `last`, and their number.

    `end` is the size of the chunks of `last` in bytes, if these are messages. Return None if the value has to be stored
    whole.
    """
    # If compression was turned on or off, no chunk is shared.
    coarse, shares = _COARSE if kind == ZSTD else 0, bool(last.fields) and last.fields[0][:1] == kind
    if not encoded.front or encoded.fingerprint is None:
        whole = cutter.cut(encoded.type, encoded.data, gear, coarse)
        if whole is None:
            return None
        kept = _alike(whole.pieces, last.chunks) if shares else 0
        return whole.head, whole.pieces[kept:], kept
    # The first new piece begins with a message, so the same pieces come out as of the whole value. A chunk that ends
    # with the front may have ended because the value did.
    ends, kept, start = encoded.fingerprint.ends, len(last.chunks), end
    while kept and (not shares or start >= encoded.front or ends[bisect_left(ends, start)] != start):
        kept -= 1
        start -= len(last.chunks[kept])
    head, rest = cutter.split(encoded.data)
    pieces = cutter.pieces_of(b"".join(last.chunks[kept:])[: encoded.front - start] + rest, gear, coarse)
    if pieces is None:
        raise ValueError("messages were encoded to bytes that are not msgpack")
    return head, pieces, kept


def _list(below: Sequence[bytes], before: Level, same: int, digest: Digests) -> tuple[Level, int]:
    """Return the lists of chunks above a level: those that are the same as before, then new ones.

    Also return the first number. A list has at least two chunks. It ends after a chunk whose digest says so.

    Args:
        below: The fields of the level.
        before: The lists above the earlier version of that level.
        same: Number of chunks at the front of the level that are the same as in that version.
        digest: Names chunks.
    """
    kept = len(before.chunks)
    start = (sum(map(len, before.chunks)) - kept) // DIGEST  # after each list's kind
    # The last list may have ended because the value did.
    while kept and (start > same or kept == len(before.chunks)):
        kept -= 1
        start -= len(before.chunks[kept]) // DIGEST
    fields, lists = list[bytes](), list[bytes]()
    for position in range(start, len(below)):
        length = position + 1 - start
        if length == MAX_LIST or (length > 1 and below[position][1] < _CUT_LIST) or position + 1 == len(below):
            lists.append(below[0][:1] + digests_of(below[start : position + 1]))
            fields.append(LIST + digest(lists[-1]))
            start = position + 1
    return before.with_more(kept, fields, lists), kept
