"""Frames: byte strings one after another, each as `<length>:<bytes>`. Scripts read them without decoding msgpack.

Stored frames may be damaged or forged. So a length is only digits, although `int` also takes signs, blanks and
underscores. Then each step goes forward, and unpacking never returns more bytes than were packed.
"""

from __future__ import annotations

from collections.abc import Iterable

from redis_saver._common.display import shown

_SHORT = [b"%d:" % length for length in range(512)]
_MAX_LENGTH = 20
"""Maximum number of characters of a length with its colon. No string that fits into memory needs more."""


def pack(parts: Iterable[bytes]) -> bytes:
    """Pack byte strings into one. Each is copied only once, as one of them may be long."""
    frames: list[bytes] = []
    for part in parts:
        length = len(part)
        frames += (_SHORT[length] if length < 512 else b"%d:" % length, part)
    return b"".join(frames)


def unpack(packed: bytes) -> list[bytes]:
    """Return the byte strings that `pack` was given.

    Raises:
        ValueError: `packed` is not a result of `pack`.
    """
    return take(packed, 0)[0]


def first(packed: bytes) -> tuple[bytes, int]:
    """Return the first byte string, and the position after it.

    Raises:
        ValueError: There is none.
    """
    (part,), end = take(packed, 0, 1)
    return part, end


def take(packed: bytes, position: int, count: int | None = None) -> tuple[list[bytes], int]:
    """Return `count` byte strings from a position on, and the position after them.

    Args:
        packed: The frames.
        position: The start of the first.
        count: The number of byte strings. None means all to the end.

    Raises:
        ValueError: There are fewer, or they are damaged.
    """
    parts: list[bytes] = []
    size = len(packed)
    while position < size if count is None else len(parts) < count:
        colon = packed.index(b":", position, position + _MAX_LENGTH)
        if not (length := packed[position:colon]).isdigit():
            raise ValueError(f"a frame has {shown(length)} instead of a length")
        start = colon + 1
        position = start + int(length)
        if position > size:
            raise ValueError(f"the frames, {size} bytes, end in the middle of one")
        parts.append(packed[start:position])
    return parts, position
