"""The heads of msgpack's arrays, maps and extensions (https://github.com/msgpack/msgpack/blob/master/spec.md)."""

from __future__ import annotations


def ext_header(code: int, size: int) -> bytes:
    """The head of an Ext of more than 16 bytes."""
    if size < 0x100:
        return bytes([0xC7, size, code])
    if size < 0x10000:
        return b"\xc8" + size.to_bytes(2, "big") + bytes([code])
    return b"\xc9" + size.to_bytes(4, "big") + bytes([code])


def ext_start(code: int, data: bytes) -> int:
    """Where the data of an Ext of more than 16 bytes begins; 0 where bytes do not begin with the header of one with that code."""
    length = {0xC7: 3, 0xC8: 4, 0xC9: 6}.get(data[0], 0) if data else 0
    return length if length and len(data) >= length and data[length - 1] == code else 0


def header(count: int, kind: type) -> bytes:
    """The head of an array (list) or a map (dict) of `count` elements."""
    short, medium, long = (0x90, b"\xdc", b"\xdd") if kind is list else (0x80, b"\xde", b"\xdf")
    if count < 16:
        return bytes([short | count])
    return medium + count.to_bytes(2, "big") if count < 0x10000 else long + count.to_bytes(4, "big")


def header_length(count: int) -> int:
    """The length of the head for `count` elements."""
    return 1 if count < 16 else 3 if count < 0x10000 else 5


def list_length(data: bytes) -> int | None:
    """The number of elements in the list that these bytes begin with; None if they do not begin with a list."""
    first = data[0]
    count = first & 15 if first & 0xF0 == 0x90 else int.from_bytes(data[1 : 3 if first == 0xDC else 5], "big")
    return count if data.startswith(header(count, list)) else None
