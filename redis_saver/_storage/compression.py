"""Compression of stored values. It is off by default, and every saver reads compressed values."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any, Literal, TypeAlias

from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance

Compression: TypeAlias = Literal["zstd"]
"""Algorithms for the setting `compression`."""
NAMES = ("zstd",)
MIN_BYTES = 1024
"""Size in bytes from which a value is compressed."""

MARK = b"\xffzstd:"
"""Prefix of the type of compressed bytes. No UTF-8 begins with this byte."""
_of_thread = threading.local()


def check(name: Compression | None, of: type) -> Compression | None:
    """Return the setting `compression` of a saver of the class `of`.

    Raises:
        ValueError: The algorithm is unknown.
        ImportError: Its extra is not installed.
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
    """Compress bytes to a zstd frame."""
    if (compressor := getattr(_of_thread, "compressor", None)) is None:
        compressor = _of_thread.compressor = _zstandard().ZstdCompressor(write_checksum=True)
    return compressor.compress(data)  # type: ignore[no-any-return]


def decompress(data: bytes, allowance: Allowance) -> bytes:
    """Decompress a zstd frame. The size of the result is checked before its memory is allocated.

    Raises:
        LimitExceeded: The result would be too long.
        ValueError: The frame lacks the size of the result, so `compress` did not make it.
    """
    if (size := _zstandard().frame_content_size(data)) < 0:
        raise ValueError("its zstd frame lacks the size of its contents, which every frame of redis_saver has")
    allowance.unfold("value_bytes", size)
    if (decompressor := getattr(_of_thread, "decompressor", None)) is None:
        decompressor = _of_thread.decompressor = _zstandard().ZstdDecompressor()
    return decompressor.decompress(data)  # type: ignore[no-any-return]


def smaller(kind: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return a type and bytes, compressed if that makes them shorter."""
    if len(data) >= MIN_BYTES and len(short := compress(data)) + len(MARK) < len(data):
        return MARK + kind, short
    return kind, data


def original(kind: bytes, data: bytes, allowance: Allowance) -> tuple[bytes, bytes]:
    """Return a type and bytes as they were before `smaller`."""
    return (kind[len(MARK) :], decompress(data, allowance)) if kind.startswith(MARK) else (kind, data)
