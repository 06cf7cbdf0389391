"""Cutting long values into chunks (`chunks.py`).

Elements are joined to chunks of about half a kilobyte. Where a chunk ends depends on the bytes of its last element, not on its position. So an edit
changes the chunk around it, and all other chunks stay the same. Lists of chunks are cut in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from zlib import crc32

from redis_saver._common import names
from redis_saver._serde.elements import EncodedElements
from redis_saver._storage.chunks import LIST, NO_LEVEL, Chunk, Level, Stored, by_field, digest, digests_of
from redis_saver._storage.framing import pack

BYTES_PER_CHUNK = 512
"""The size to aim at. With smaller chunks a change stores less, and everything else costs more."""
MAX_CHUNK = 4 * BYTES_PER_CHUNK
"""A chunk ends here if no element ends it before. (An element that is longer is one chunk.)"""
MIN_CHUNK = BYTES_PER_CHUNK // 4
MIN_VALUE = 4 * BYTES_PER_CHUNK
"""Values of fewer bytes are stored whole."""
CHUNKS_PER_LIST, MAX_LIST, MAX_ROOT = 6, 24, 10

MAX_BELOW = 4000
"""The most bytes of a root. Scripts never take a longer value for a root. (The head of a list or dict is never that long.)"""

_CUT = 2**32 // BYTES_PER_CHUNK
_CUT_LIST = 256 // CHUNKS_PER_LIST


def cut(encoded: EncodedElements, kind: bytes, before: Stored | None = None) -> Stored | None:
    """A value in chunks; None if it has to be stored whole, or (with `before`) if it cannot be cut without the elements that are the same.

    Args:
        encoded: What the serializer gave. Elements that are the same as before are only counted in it.
        kind: PLAIN or ZSTD.
        before: The earlier version that it was compared with. It saves work, and changes nothing else.
    """
    elements, same = encoded.elements, encoded.same
    if same == 0 and (len(elements) < 3 or sum(map(len, elements)) < MIN_VALUE):
        return None
    lower = before.levels if before is not None and not encoded.runs else ()
    if lower and not same and kind != lower[0].fields[0][:1]:
        lower = ()  # from now on compressed, or not any more: no chunk is shared
    if lower and not same:
        lower, same = _recognised(elements, lower)
        elements = [elements[0], *elements[1 + same :]]
    if lower and (kind != lower[0].fields[0][:1] or same != sum(lower[0].counts)):
        return None  # where a leaf ends may depend on what follows
    if encoded.runs:
        level = _cut_runs(elements, encoded.runs, kind)
    else:
        level, same = _cut(elements, kind, lower[0] if lower else NO_LEVEL)
    if len(level.fields) < 2 or (len(level.fields) <= MAX_ROOT and sum(map(len, level.bytes)) < MIN_VALUE):
        return None
    levels, kept = [level], [same]
    while len(level.fields) > MAX_ROOT:
        upper = lower[len(levels)] if len(levels) < len(lower) else NO_LEVEL
        same = upper.whole(same)
        level = _list(level.fields, upper, same)
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
    """A value that was read, in the form that `cut` would give it: with the counts of elements in its leaves.

    Args:
        stored: The value.
        sizes: The sizes of the elements that the serializer would make of it.
        elements: Those without their bytes.
        front: The counts of the leaves whose elements are not among them.
    """
    if stored.elements is elements:
        return stored
    level = _counted(stored.levels[0], sizes, front)
    return stored._replace(levels=(level, *stored.levels[1:]), elements=elements) if level else stored


def _counted(leaves: Level, sizes: Sequence[int], front: Sequence[int] = ()) -> Level | None:
    """Leaves that were read, with counts; None if they do not end where elements of these sizes end (the head's size comes first)."""
    if len(front) == len(leaves.bytes):
        return leaves
    position_of = dict(zip(accumulate(sizes[1:]), range(1, len(sizes)), strict=True))
    ends = [position_of.get(end, 0) for end in accumulate(map(len, leaves.bytes[len(front) :]))]
    if 0 in ends:
        return None
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    last = leaves.bytes[-1]
    return leaves._replace(counts=(*front, *counts), closed=_ends_chunk(len(last), last[-sizes[ends[-1]] :]))


def _recognised(elements: Sequence[bytes], before: tuple[Level, ...]) -> tuple[tuple[Level, ...], int]:
    """The levels of an earlier version, if the elements begin with all of it; and how many elements it has.

    The same bytes may be other elements now: small ones are encoded several together, and the last few of a list with what is added to it.
    """
    leaves, sizes = before[0], list(map(len, elements))
    if not b"".join(elements[1:]).startswith(b"".join(leaves.bytes)):
        return (), 0
    level = leaves if leaves.counts and _end_together(leaves, sizes) else _counted(leaves, sizes)
    return ((level, *before[1:]), sum(level.counts)) if level else ((), 0)


def _end_together(leaves: Level, sizes: Sequence[int]) -> bool:
    """True if each leaf ends where its last element ends, by the sizes of the elements (the head's comes first)."""
    places, ends = list(accumulate(leaves.counts)), list(accumulate(sizes[1:]))
    return places[-1] <= len(ends) and [ends[place - 1] for place in places] == list(accumulate(map(len, leaves.bytes)))


def _ends_chunk(size: int, element: bytes) -> bool:
    """True if a chunk of this size ends with its last element, whatever comes behind."""
    return size >= MAX_CHUNK or (size >= MIN_CHUNK and crc32(element) < len(element) * _CUT)


def _cut(elements: Sequence[bytes], kind: bytes, before: Level) -> tuple[Level, int]:
    """The leaves that are the same as before, then those of the elements; and how many are the same.

    A leaf that only ended because the value ended goes on with the first elements.
    """
    leaves, kept = list[Chunk](), len(before.fields) - (not before.closed)
    held, count = (b"", 0) if before.closed else (before.bytes[kept], before.counts[kept])
    start, size = 1, len(held)

    def end_at(end: int) -> None:
        nonlocal held, count
        leaf = b"".join([held, *elements[start:end]])
        leaves.append((kind + digest(leaf), leaf, count + end - start))
        held, count = b"", 0

    for position in range(1, len(elements)):
        element = elements[position]
        length = len(element)
        if size and length >= BYTES_PER_CHUNK:
            end_at(position)
            start, size = position, 0
        size += length
        if _ends_chunk(size, element):
            end_at(position + 1)
            start, size = position + 1, 0
    if size:
        end_at(len(elements))
    return before.with_more(kept, leaves, closed=not size), kept


def _cut_runs(elements: Sequence[bytes], runs: Sequence[int], kind: bytes) -> Level:
    """The leaves of a value of which each run of elements is cut as if it were a value of its own."""
    levels, start = list[Level](), 1
    for count in runs:
        levels.append(_cut([b"", *elements[start : start + count]], kind, NO_LEVEL)[0])
        start += count
    fields, leaves, counts, _closed = zip(*levels, strict=True)
    return Level(tuple(chain(*fields)), tuple(chain(*leaves)), tuple(chain(*counts)))


def _list(below: Sequence[bytes], before: Level, same: int) -> Level:
    """The lists of chunks above a level: `same` of those before, then new ones. A digest decides where a list ends, after at least two chunks."""
    lists, start, closed = list[Chunk](), sum(before.counts[:same]), True
    for position in range(start, len(below)):
        length = position + 1 - start
        last = position + 1 == len(below)
        closed = length == MAX_LIST or (length > 1 and below[position][1] < _CUT_LIST)
        if closed or last:
            one = below[0][:1] + digests_of(below[start : position + 1])
            lists.append((LIST + digest(one), one, length))
            start = position + 1
    return before.with_more(same, lists, closed=closed)
