"""Caches for tests, with one interface to both flavours, as `uniform.py` has one for savers."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.uniform import Target

from redis_saver import AsyncRedisCache, RedisCache, RedisLLMCache
from redis_saver._cache.entries import CacheKeyspace

LABELS = (
    "", "a", "b", "a:b", "a\0b", "a\0", "\0", "\1", "\1\1", "a\1", "{1}", "}{", "*", "a*", "[ab]", "?", "\\", "\n", " ", "ä", "\U0001f600",
    "\ud800", "1", "2:a", "generation", "index", "a" * 300, "users", "1", "10",
)  # fmt: skip

_THREADS = ThreadPoolExecutor(64)
"""Enough threads that waiting calls leave one to the call that computes."""


class UniformCache:
    """Adapter that calls a cache in its flavour.

    `await uniform.get(...)` calls `get` of a RedisCache, or `aget` of an AsyncRedisCache.
    """

    def __init__(self, cache: Any, *, native_async: bool) -> None:
        self.cache, self.native_async = cache, native_async

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self.native_async:
            return getattr(self.cache, "a" + name)

        async def plain(*args: Any, **kwargs: Any) -> Any:
            return getattr(self.cache, name)(*args, **kwargs)

        return plain

    async def in_thread(self, name: str, *args: Any) -> Any:
        """Call a method, on an OS thread if the cache blocks, so that several calls can wait for one another."""
        if self.native_async:
            return await getattr(self.cache, "a" + name)(*args)
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(_THREADS, context.run, getattr(self.cache, name), *args)

    def stats(self) -> Any:
        return self.cache.stats()


def cache_of(target: Target, *, client: Any = None, **options: Any) -> UniformCache:
    """Make a cache on a target with its own client, as in another process."""
    kind: Any = AsyncRedisCache if target.flavour == "async" else RedisCache
    made = kind(client or target.client(), **target.settings(options))
    return UniformCache(made, native_async=target.flavour == "async")


def keys_of(target: Target) -> list[bytes]:
    """Return the cache's keys, except that of its data key, which has no deadline and stays."""
    return [key for key in target.keys() if key != CacheKeyspace(target.prefix).data_key]


def llm_cache_of(cache: UniformCache, **options: Any) -> UniformCache:
    return UniformCache(RedisLLMCache(cache.cache, **options), native_async=cache.native_async)
