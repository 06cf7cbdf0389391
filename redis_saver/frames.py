"""Byte strings packed one after the other as `<length>:<bytes>`: what a script can follow without decoding msgpack."""

from __future__ import annotations

from collections.abc import Iterable


def pack(parts: Iterable[bytes]) -> bytes:
    """Pack byte strings into one."""
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])


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
