"""Splices: what of a long value is new, against the one before.

A splice is text and bytes: `=`, the name of the put that stored the base, a blank, the base's length, a blank; then regions, one behind the other: where one
begins in the base, a blank, how many bytes of the base stay, a blank, how many new ones follow, a colon, and these. `lua/store/put_items.lua` puts the value
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_BLOCK = 32
"""So many bytes have to be the same for two places to be taken for one."""
_NEAR, _WINDOW = 2**9, 2**15
"""How far a place is looked for in the base beyond as many bytes as are new: what is deleted at once may be so long. First nearby."""
_MAX_REGIONS = 100
"""So many edits are told apart. It bounds the time for values that are similar all over."""


class Region(NamedTuple):
    """A part of a value: bytes of the base, and new ones behind them."""

    start: int
    kept: int
    added: bytes


def splice(made_by: bytes, base: bytes, value: bytes) -> bytes | None:
    """What makes a value of its base, which this put has stored. None if that is more than half of the value: then it is sent whole.

    Some edits of a value cost comparing its bytes, and a search for where it goes on. A value that has nothing in common with the base costs searching half of it.
    """
    parts = [b"=%b %d " % (made_by, len(base))]
    size = len(parts[0])
    for region in _regions(base, value, len(value) // 2):
        parts.append(b"%d %d %d:%b" % (region.start, region.kept, len(region.added), region.added))
        size += len(parts[-1])
        if 2 * size > len(value):
            return None
    return b"".join(parts)


def _regions(base: bytes, value: bytes, most: int) -> Iterator[Region]:
    """The regions of a value, in order. If one has more than `most` new bytes, its new bytes are all that is left."""
    tail = _same_end(base, value)
    base_end, end = len(base) - tail, len(value) - tail
    start = position = 0
    for _ in range(_MAX_REGIONS):
        kept = _same(base, start, value, position, min(base_end - start, end - position))
        start_behind, position = start + kept, position + kept
        if position == end:
            yield Region(start, kept, b"")
            break
        next_start, next_position = _next_place(base, start_behind, base_end, value, position, end, most)
        yield Region(start, kept, value[position:next_position])
        start, position = next_start, next_position
        if position == end:
            break
    else:
        yield Region(0, 0, value[position:end])
    yield Region(base_end, tail, b"")


def _next_place(
    base: bytes, start: int, base_end: int, value: bytes, position: int, end: int, most: int
) -> tuple[int, int]:
    """Where both go on alike; the ends if that is not found. Near places are tried first, as most edits are small."""
    for window, farthest in ((_NEAR, _NEAR), (_WINDOW, most)):
        distance = 0
        while position + distance + _BLOCK <= end and distance <= farthest:
            at = position + distance
            found = base.find(value[at : at + _BLOCK], start, min(base_end, start + distance + window))
            if found >= 0:
                while at > position and found > start and value[at - 1] == base[found - 1]:
                    at, found = at - 1, found - 1
                return found, at
            distance = max(_BLOCK // 2, 2 * distance)
    return base_end, end


def _same(base: bytes, start: int, value: bytes, position: int, most: int) -> int:
    """How many bytes are the same from these places on, at the most. By doubling, then by halves."""
    count, step, grows = 0, _BLOCK, True
    while step and count < most:
        width = min(step, most - count)
        if base[start + count : start + count + width] == value[position + count : position + count + width]:
            count += width
        else:
            grows = False
        step = 2 * step if grows else step // 2
    return count


def _same_end(base: bytes, value: bytes) -> int:
    """How many bytes are the same at the end."""
    most = min(len(base), len(value))
    count, step, grows = 0, _BLOCK, True
    while step and count < most:
        width = min(step, most - count)
        if base.endswith(value[len(value) - count - width : len(value) - count], 0, len(base) - count):
            count += width
        else:
            grows = False
        step = 2 * step if grows else step // 2
    return count
