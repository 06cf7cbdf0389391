"""`RedisCache` and `AsyncRedisCache`: the cache over a blocking client, and over an asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._cache.cache import Cache, CacheSettings, ValueT
from redis_saver._client import clients
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.base import AsyncBlock, AsyncClient, Block, NeedsAsyncWith, NeedsWith, SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper

SOCKET_TIMEOUT = 1.0
"""Default time in seconds that the client of a cache waits for its server. A slower cache is no use."""


def _client_options(options: Mapping[str, Any] | None, *, asynchronous: bool) -> dict[str, Any]:
    """The options of a cache's own client. By default it sends each request once."""
    return {"socket_timeout": SOCKET_TIMEOUT, "retry": clients.no_retry(asynchronous=asynchronous), **(options or {})}


class RedisCache(Cache[SyncClient, ValueT], Block):
    """Results of a graph's nodes and tasks, on plain Redis or Valkey, over a blocking client: LangGraph's `BaseCache`.

    Its `a...` methods run in worker threads, so they never block the event loop. For a service on asyncio,
    `AsyncRedisCache` needs no worker threads. Any number of OS threads may share a cache, before and after a fork.
    """

    _driver: SyncDriver | DriverWrapper[Request]
    _driver_class = SyncDriver

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self._driver.check_version()

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[CacheSettings]
    ) -> AbstractContextManager[Self]:
        """Open a cache with a client of its own. The end of the `with` closes both.

            with RedisCache.from_conn_string("redis://localhost:6379", ttl="1d") as cache:
                graph = builder.compile(cache=cache)

        After the block each method raises `Closed`. The client waits a second for the server, not five as that of a
        saver, and sends each request once.

        Args:
            url: As that of `RedisSaver.from_conn_string`.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 0.2}`. They may
                also stand after the `?` of the URL.
            settings: The keywords of the constructor.

        Raises:
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        return NeedsWith(cls, url, _client_options(client_options, asynchronous=False), settings)


class AsyncRedisCache(Cache[AsyncClient, ValueT], AsyncBlock):
    """Results of a graph's nodes and tasks, on plain Redis or Valkey, over an asyncio client: LangGraph's `BaseCache`.

    Build it anywhere, also where no event loop runs. Any number of event loops and OS threads may share it, before and
    after a fork. Its methods without an `a` raise `CalledOnEventLoop` on an OS thread that runs an event loop.
    """

    _driver: AsyncDriver | DriverWrapper[Request]
    _driver_class = AsyncDriver

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
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
        return NeedsAsyncWith(cls, url, _client_options(client_options, asynchronous=True), settings)
