"""Long values in chunks. The versions of a value share the chunks that did not change.

The serializer's `dumps_elements` says where the elements of a list or dict end, and `cut` makes chunks of them. A
chunk's field is its kind and a digest of its bytes, so a thread stores equal chunks once. The digests of a value's
chunks form a list, and a long list is cut into chunks again. So a value is a tree, and its field holds the root.
`docs/storage-format.md` shows the format. Threads share no chunks.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from hashlib import sha256
from itertools import accumulate, chain, repeat
from typing import NamedTuple, TypeAlias
from zlib import crc32

from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._serde.elements import EncodedElements
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


Chunk: TypeAlias = tuple[bytes, bytes, int]
"""A chunk of a level: its field, its bytes, and its number of elements or of chunks of the level below."""


class Level(NamedTuple):
    """Chunks in order: the leaves of a value, or the lists of the chunks of the level below.

    Python's garbage collector stops tracking tuples of plain values. So the chunk cache hardly slows a collection.
    """

    fields: tuple[bytes, ...] = ()
    bytes: tuple[bytes, ...] = ()
    counts: tuple[int, ...] = ()
    """Number of elements, or of chunks of the level below, in each chunk. Empty for leaves that were read."""
    closed: bool = False
    """True if the last chunk ends at the same element in any longer value."""

    def with_more(self, same: int, more: Sequence[Chunk], *, closed: bool) -> Level:
        """Return the first `same` chunks of this level, with more after them."""
        fields, chunks, counts = zip(*more, strict=True) if more else ((), (), ())
        return Level(self.fields[:same] + fields, self.bytes[:same] + chunks, self.counts[:same] + counts, closed)


class Stored(NamedTuple):
    """A value as it is stored."""

    value: bytes
    """Contents of the value's field: the value, or the root of its chunks."""
    chunks: dict[bytes, bytes]
    """Its chunks by field, not compressed."""
    levels: tuple[Level, ...] = ()
    """The chunks in order, level by level, the leaves first."""
    new: tuple[bytes, ...] = ()
    """Fields of the chunks that the earlier version may lack."""
    elements: EncodedElements | None = None
    """The serializer's result, to compare the next version with."""
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


NO_LEVEL = Level(closed=True)
"""Placeholder for a missing level of an earlier version."""


def digest(chunk: bytes) -> bytes:
    """Return the digest that names a chunk: 128 bits of SHA-256."""
    return sha256(chunk).digest()[:DIGEST]


Digests: TypeAlias = Callable[[bytes], bytes]
"""Names chunks: `digest`, or the keyed digest of a thread's cipher."""


def shared(stored: Stored, last: Stored) -> tuple[int, ...]:
    """Return the counts of the leaves at the front of a value that need not be decoded again.

    Another version, which was read, has the same leaves.
    """
    if not (last.elements and last.elements.fingerprint and last.elements.fingerprint.read):
        return ()
    leaves, before = stored.levels[0], last.levels[0]
    # Only decoding shows whether the last leaf would end at the same element in a longer value.
    fields = leaves.fields if stored is last else leaves.fields[:-1]
    counts = before.counts[: _alike(fields, before.fields)]
    return counts[: bisect_right(list(accumulate(counts)), last.elements.fingerprint.read)]


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
            contents = (*before.bytes[:same], *map(chunks.__getitem__, fields[same:]))
            kept.append(same)
            count += len(fields)
            if fields[0][:1] != LIST:
                break
            counts = tuple([len(chunk) // DIGEST for chunk in contents])
            levels.append(Level(fields, contents, counts))
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


def by_field(
    levels: Sequence[Level], kept: Sequence[int] = (), before: Stored | None = None
) -> tuple[dict[bytes, bytes], int]:
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
            chunks.update(zip(level.fields, level.bytes, strict=True))
        return chunks, sum(map(len, chunks.values()))
    chunks, size = before.chunks.copy(), before.size
    for level, same in zip(before.levels, chain(kept, repeat(0))):  # noqa: B905 - there may be fewer levels now
        for field in level.fields[same:]:
            size -= len(chunks.pop(field))
    for level, same in zip(levels, kept, strict=True):
        more = dict(zip(level.fields[same:], level.bytes[same:], strict=True))
        size += sum(map(len, map(more.__getitem__, more.keys() - chunks.keys())))
        chunks.update(more)
    return chunks, size


def head_of(stored: Stored) -> bytes:
    """Return the bytes that the serializer gave before the elements."""
    return take(stored.value, _FRAMES, 2)[0][1]


def typed_bytes(stored: Stored, skipped: int = 0) -> tuple[str, bytes]:
    """Return the type and bytes that the serializer gave, without the bytes of the first `skipped` leaves."""
    (serializer_type, head), _ = take(stored.value, _FRAMES, 2)
    return names.decode(serializer_type), b"".join([head, *stored.levels[0].bytes[skipped:]])


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
        fields += below.fields[-lists.counts[-1] :]
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


BYTES_PER_CHUNK = 512
"""Average size of a chunk. With smaller chunks a change stores less, but everything else costs more."""
MAX_CHUNK = 4 * BYTES_PER_CHUNK
"""Size at which a chunk ends. A longer element is one chunk."""
MIN_CHUNK = BYTES_PER_CHUNK // 4
MIN_VALUE = 4 * BYTES_PER_CHUNK
"""Shorter values, in bytes, are stored whole."""
CHUNKS_PER_LIST, MAX_LIST, MAX_ROOT = 6, 24, 10

MAX_BELOW = 4000
"""Maximum size of a root in bytes. Scripts never take a longer value for a root."""

_CUT = 2**32 // BYTES_PER_CHUNK
_CUT_LIST = 256 // CHUNKS_PER_LIST


def cut(encoded: EncodedElements, kind: bytes, before: Stored | None = None, digest: Digests = digest) -> Stored | None:
    """Cut a value into chunks.

    Args:
        encoded: The serializer's result. It may leave out elements at the front that are the same as in `before`.
        kind: `PLAIN` or `ZSTD`.
        before: The earlier version that the serializer compared with. It only saves work.
        digest: Names chunks.

    Returns:
        None if the value has to be stored whole, or if the elements that were left out are needed.
    """
    elements, same = encoded.elements, encoded.same
    if same == 0 and (len(elements) < 3 or sum(map(len, elements)) < MIN_VALUE):
        return None
    lower = before.levels if before is not None and not encoded.runs else ()
    if lower and not same and kind != lower[0].fields[0][:1]:
        lower = ()  # compression was turned on or off, so no chunk is shared
    if lower and not same:
        lower, same = _recognised(elements, lower)
        elements = [elements[0], *elements[1 + same :]]
    if lower and (kind != lower[0].fields[0][:1] or same != sum(lower[0].counts)):
        return None  # the first new leaf may begin within the elements that were left out
    if encoded.runs:
        level = _cut_runs(elements, encoded.runs, kind, digest)
    else:
        level, same = _cut(elements, kind, lower[0] if lower else NO_LEVEL, digest)
    if len(level.fields) < 2 or (len(level.fields) <= MAX_ROOT and sum(map(len, level.bytes)) < MIN_VALUE):
        return None
    levels, kept = [level], [same]
    while len(level.fields) > MAX_ROOT:
        upper = lower[len(levels)] if len(levels) < len(lower) else NO_LEVEL
        level, same = _list(level.fields, upper, same, digest)
        levels.append(level)
        kept.append(same)
    below = pack([names.encode(encoded.type), elements[0]]) + digests_of(level.fields)
    root = level.fields[0][:1]
    if len(below) > MAX_BELOW:
        return None
    new: tuple[bytes, ...] = ()
    for each, same in zip(levels, kept, strict=True):
        new += each.fields[same:]
    chunks, size = by_field(levels, kept, before if lower else None)
    return Stored(root + digest(root + below) + below, chunks, tuple(levels), new, encoded._replace(elements=[]), size)


def with_counts(stored: Stored, sizes: Sequence[int], elements: EncodedElements, front: Sequence[int] = ()) -> Stored:
    """Add the counts of elements in the leaves to a value that was read, as `cut` returns them.

    Args:
        stored: The value.
        sizes: The sizes of its elements in bytes, the head's first.
        elements: The elements without their bytes.
        front: The counts of leaves at the front whose elements are not in `sizes`.
    """
    if stored.elements is elements:
        return stored
    level = _counted(stored.levels[0], sizes, front)
    return stored._replace(levels=(level, *stored.levels[1:]), elements=elements) if level else stored


def _counted(leaves: Level, sizes: Sequence[int], front: Sequence[int] = ()) -> Level | None:
    """Return leaves that were read, with the number of elements in each.

    Return None if they do not end where elements of these sizes end. (The head's size comes first.)
    """
    if len(front) == len(leaves.bytes):
        return leaves
    position_of = dict(zip(accumulate(sizes[1:]), range(1, len(sizes)), strict=True))
    ends = list(map(position_of.get, accumulate(map(len, leaves.bytes[len(front) :])), repeat(0)))
    if 0 in ends:
        return None
    counts = map(operator.sub, ends, [0, *ends])
    last = leaves.bytes[-1]
    return leaves._replace(counts=(*front, *counts), closed=_ends_chunk(len(last), last[-sizes[ends[-1]] :]))


def _recognised(elements: Sequence[bytes], before: tuple[Level, ...]) -> tuple[tuple[Level, ...], int]:
    """Return the levels of an earlier version, and its number of elements, if the new elements begin with its bytes.

    The same bytes may be cut into other elements now, because small elements are encoded together.
    """
    leaves, sizes = before[0], list(map(len, elements))
    if not b"".join(elements[1:]).startswith(b"".join(leaves.bytes)):
        return (), 0
    level = leaves if leaves.counts and _end_together(leaves, sizes) else _counted(leaves, sizes)
    return ((level, *before[1:]), sum(level.counts)) if level else ((), 0)


def _end_together(leaves: Level, sizes: Sequence[int]) -> bool:
    """True if each leaf ends where its last element ends. `sizes` are those of the elements, the head's first."""
    places, ends = list(accumulate(leaves.counts)), list(accumulate(sizes[1:]))
    return places[-1] <= len(ends) and [ends[place - 1] for place in places] == list(accumulate(map(len, leaves.bytes)))


def _ends_chunk(size: int, element: bytes) -> bool:
    """True if a chunk of this size ends with this element, whatever follows."""
    return size >= MAX_CHUNK or (size >= MIN_CHUNK and crc32(element) < len(element) * _CUT)


def _cut(elements: Sequence[bytes], kind: bytes, before: Level, digest: Digests) -> tuple[Level, int]:
    """Return the leaves: those that are the same as before, then those of the elements. Also return the first number.

    If the last leaf is short because the value ended there, the first new elements are added to it.
    """
    leaves, kept = list[Chunk](), len(before.fields) - (not before.closed)
    held, count = (b"", 0) if before.closed else (before.bytes[kept], before.counts[kept])
    start, size, ends = 1, len(held), list[int]()
    for position in range(1, len(elements)):
        element = elements[position]
        length = len(element)
        if size and length >= BYTES_PER_CHUNK:
            ends.append(position)
            size = 0
        size += length
        if _ends_chunk(size, element):
            ends.append(position + 1)
            size = 0
    if size:
        ends.append(len(elements))
    for end in ends:
        leaf = b"".join([held, *elements[start:end]])
        leaves.append((kind + digest(leaf), leaf, count + end - start))
        held, count, start = b"", 0, end
    return before.with_more(kept, leaves, closed=not size), kept


def _cut_runs(elements: Sequence[bytes], runs: Sequence[int], kind: bytes, digest: Digests) -> Level:
    """Return the leaves of a value whose runs of elements are cut separately."""
    levels, start = list[Level](), 1
    for count in runs:
        levels.append(_cut([b"", *elements[start : start + count]], kind, NO_LEVEL, digest)[0])
        start += count
    fields, leaves, counts, _closed = zip(*levels, strict=True)
    return Level(tuple(chain(*fields)), tuple(chain(*leaves)), tuple(chain(*counts)))


def _list(below: Sequence[bytes], before: Level, same: int, digest: Digests) -> tuple[Level, int]:
    """Return the lists of chunks above a level: those that are the same as before, then new ones.

    Also return the first number. A list has at least two chunks. It ends after a chunk whose digest says so.

    Args:
        below: The fields of the level.
        before: The lists above the earlier version of that level.
        same: Number of chunks at the front of the level that are the same as in that version.
        digest: Names chunks.
    """
    ends = list(accumulate(before.counts))
    kept = bisect_right(ends, same)
    if kept == len(ends) and not before.closed:
        kept -= 1
    lists, start, closed = list[Chunk](), sum(before.counts[:kept]), True
    for position in range(start, len(below)):
        length = position + 1 - start
        last = position + 1 == len(below)
        closed = length == MAX_LIST or (length > 1 and below[position][1] < _CUT_LIST)
        if closed or last:
            chunk = below[0][:1] + digests_of(below[start : position + 1])
            lists.append((LIST + digest(chunk), chunk, length))
            start = position + 1
    return before.with_more(kept, lists, closed=closed), kept
