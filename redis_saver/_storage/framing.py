"""Frames: byte strings one after the other, each as `<length>:<bytes>`. A script can read them without decoding msgpack.

Stored frames may be damaged, or forged by an attacker. So a length is digits and nothing else (`int` also takes a sign, blanks and
underscores). Then each step goes forward, and what is unpacked is never more than what was packed.
"""

from __future__ import annotations

from collections.abc import Iterable

from redis_saver._common.display import shown
from redis_saver._storage import native_bridge

_SHORT = [b"%d:" % length for length in range(512)]
_MAX_LENGTH = 20
"""The most characters of a length with its colon. No string that fits into memory needs more."""


def pack(parts: Iterable[bytes]) -> bytes:
    """Pack byte strings into one. Each is copied only once, because one of them may be long."""
    if native_bridge.native is not None:
        parts = tuple(parts)
        if (packed := native_bridge.native.pack(parts)) is not None:
            return packed  # type: ignore[no-any-return]
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
    if native_bridge.native is not None and (found := native_bridge.native.take(packed, 0, -1)) is not None:
        return found[0]  # type: ignore[no-any-return]
    parts = []
    position, end = 0, len(packed)
    while position < end:
        colon = packed.index(b":", position, position + _MAX_LENGTH)
        if not (length := packed[position:colon]).isdigit():
            raise _no_length(length)
        start = colon + 1
        position = start + int(length)
        parts.append(packed[start:position])
    if position != end:
        raise _too_short(packed)
    return parts


def first(packed: bytes) -> tuple[bytes, int]:
    """The first byte string, and the position behind it.

    Raises:
        ValueError: There is none.
    """
    colon = packed.index(b":", 0, _MAX_LENGTH)
    if not (length := packed[:colon]).isdigit():
        raise _no_length(length)
    start = colon + 1
    end = start + int(length)
    if end > len(packed):
        raise _too_short(packed)
    return packed[start:end], end


def take(packed: bytes, position: int, count: int) -> tuple[list[bytes], int]:
    """The first `count` byte strings from a position on, and the position behind them.

    Raises:
        ValueError: There are fewer.
    """
    if native_bridge.native is not None and (found := native_bridge.native.take(packed, position, count)) is not None:
        return found  # type: ignore[no-any-return]
    parts = []
    for _ in range(count):
        colon = packed.index(b":", position, position + _MAX_LENGTH)
        if not (length := packed[position:colon]).isdigit():
            raise _no_length(length)
        start = colon + 1
        position = start + int(length)
        if position > len(packed):
            raise _too_short(packed)
        parts.append(packed[start:position])
    return parts, position


def _no_length(found: bytes) -> ValueError:
    return ValueError(f"a frame has {shown(found)} in place of its length")


def _too_short(packed: bytes) -> ValueError:
    return ValueError(f"the frames, {len(packed)} bytes, end in the middle of one")
