"""Byte strings packed one after the other as `<length>:<bytes>`: what a script can follow without decoding msgpack."""

from __future__ import annotations

from collections.abc import Iterable

_SHORT = [b"%d:" % length for length in range(512)]


def pack(parts: Iterable[bytes]) -> bytes:
    """Pack byte strings into one; each is copied once, as one of them may be long."""
    frames: list[bytes] = []
    for part in parts:
        length = len(part)
        frames += (_SHORT[length] if length < 512 else b"%d:" % length, part)
    return b"".join(frames)


def unpack(packed: bytes) -> list[bytes]:
    """The byte strings that `pack` was given.

    Raises:
        ValueError: `packed` is not what `pack` made.
    """
    parts = []
    position, end = 0, len(packed)
    while position < end:
        start = packed.index(b":", position) + 1
        position = start + int(packed[position : start - 1])
        parts.append(packed[start:position])
    if position != end:
        raise ValueError(f"packed record of {end} bytes ends in the middle of a part")
    return parts


def first(packed: bytes) -> tuple[bytes, int]:
    """The first byte string, and the position behind it.

    Raises:
        ValueError: There is none.
    """
    start = packed.index(b":") + 1
    end = start + int(packed[: start - 1])
    if end > len(packed):
        raise ValueError(f"packed record of {len(packed)} bytes ends in the middle of a part")
    return packed[start:end], end


def take(packed: bytes, position: int, count: int) -> tuple[list[bytes], int]:
    """The first `count` byte strings from a position on, and the position behind them.

    Raises:
        ValueError: There are fewer.
    """
    parts = []
    for _ in range(count):
        start = packed.index(b":", position) + 1
        position = start + int(packed[position : start - 1])
        if position > len(packed):
            raise ValueError(f"packed record of {len(packed)} bytes ends in the middle of a part")
        parts.append(packed[start:position])
    return parts, position
