"""Loads what an index of vectors needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.store.base import IndexConfig

from redis_saver._store.index_config import RedisIndexConfig, checked

if TYPE_CHECKING:
    from redis_saver._store.vectors import Embedder


def embedder_of(index: RedisIndexConfig | IndexConfig | None) -> Embedder | None:
    """Check the configuration of an index, and load what it needs. None without an index.

    Raises:
        ImportError: numpy is not installed.
        TypeError, ValueError: The configuration is invalid.
    """
    if index is None:
        return None
    settings = checked(index)
    try:
        from redis_saver._store.vectors import Embedder  # noqa: PLC0415 - it imports numpy
    except ImportError as error:
        raise ImportError("index= needs the extra: pip install 'redis-saver[vectors]'") from error
    return Embedder(settings)
