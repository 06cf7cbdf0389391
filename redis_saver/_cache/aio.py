"""`AsyncRedisCache`: the cache over an asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._cache.cache import Cache, CacheSettings, ValueT
from redis_saver._cache.sync import client_options_of
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.base import AsyncBlock, AsyncClient, NeedsAsyncWith
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper


class AsyncRedisCache(Cache[AsyncClient, ValueT], AsyncBlock):
    """What a graph's nodes and tasks wrote, on plain Redis or Valkey, over an asyncio client: LangGraph's `BaseCache`.

    Build it anywhere, also where no event loop runs. Any number of event loops and OS threads may share it, before and after a fork. Its methods without
    an `a` work on any OS thread that runs no event loop; on one that does they raise `CalledOnEventLoop`.
    """

    _driver: AsyncDriver | DriverWrapper[Request]
    _driver_class = AsyncDriver

    async def setup(self) -> None:
        """The same as `asetup`, so await it."""
        await self.asetup()

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[CacheSettings]
    ) -> AbstractAsyncContextManager[Self]:
        """Open a cache with a client of its own. The end of the `async with` closes both.

            async with AsyncRedisCache.from_conn_string("redis://localhost:6379", ttl="1d") as cache:
                graph = builder.compile(cache=cache)

        The arguments are those of `RedisCache.from_conn_string`.
        """
        return NeedsAsyncWith(cls, url, client_options_of(client_options, asynchronous=True), settings)
