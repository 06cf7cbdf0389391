"""Compression of what is stored: off unless a saver asks for it, read back by every saver."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any, Literal, TypeAlias

from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance

Compression: TypeAlias = Literal["zstd"]
"""The algorithms that a saver may compress with."""
NAMES = ("zstd",)
MIN_BYTES = 1024
"""Bytes below which a value is not compressed."""

MARK = b"\xffzstd:"
"""Stands in front of the type of compressed bytes. No UTF-8 begins like that."""
_of_thread = threading.local()


def check(name: Compression | None, of: type) -> Compression | None:
    """Check a setting of a class of savers.

    Raises:
        ValueError: it is unknown.
        ImportError: what it needs is not installed.
    """
    if name is not None and name not in NAMES:
        raise ValueError(
            f"{of.__name__}: compression={shown(name)} is unknown; write {' or '.join(map(repr, NAMES))}, or None"
        )
    if name is not None:
        _zstandard()
    return name


def _zstandard() -> Any:
    try:
        return import_module("zstandard")
    except ImportError as error:
        raise ImportError("values compressed with zstd need the extra: pip install 'redis-saver[zstd]'") from error


def compress(data: bytes) -> bytes:
    """A zstd frame."""
    if (compressor := getattr(_of_thread, "compressor", None)) is None:
        compressor = _of_thread.compressor = _zstandard().ZstdCompressor(write_checksum=True)
    return compressor.compress(data)  # type: ignore[no-any-return]


def decompress(data: bytes, allowance: Allowance) -> bytes:
    """The inverse of `compress`.

    It compares the size of the result with what is allowed before it allocates the memory.

    Raises:
        LimitExceeded: The result would be too long.
        ValueError: The frame does not say how long the result is, as every frame of `compress` does.
    """
    if (size := _zstandard().frame_content_size(data)) < 0:
        raise ValueError("its zstd frame does not say what size it becomes, as every frame of redis_saver does")
    allowance.unfold("value_bytes", size)
    if (decompressor := getattr(_of_thread, "decompressor", None)) is None:
        decompressor = _of_thread.decompressor = _zstandard().ZstdDecompressor()
    return decompressor.decompress(data)  # type: ignore[no-any-return]


def is_compressed(kind: bytes) -> bool:
    """True if a type is that of compressed bytes."""
    return kind.startswith(MARK)


def smaller(kind: bytes, data: bytes) -> tuple[bytes, bytes]:
    """A type and bytes, compressed if that makes them shorter."""
    if len(data) >= MIN_BYTES and len(short := compress(data)) + len(MARK) < len(data):
        return MARK + kind, short
    return kind, data


def original(kind: bytes, data: bytes, allowance: Allowance) -> tuple[bytes, bytes]:
    """The inverse of `smaller`. Bytes that were never compressed stay as they are."""
    return (kind[len(MARK) :], decompress(data, allowance)) if is_compressed(kind) else (kind, data)
