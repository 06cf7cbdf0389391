"""`RedisCache`: the cache over a blocking client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._cache.cache import Cache, CacheSettings, ValueT
from redis_saver._client import clients
from redis_saver._client.base import Block, NeedsWith, SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper

SOCKET_TIMEOUT = 1.0
"""Seconds that the client of a cache waits for its server by default. A slower cache is no use."""


def client_options_of(options: Mapping[str, Any] | None, *, asynchronous: bool) -> dict[str, Any]:
    """The options of a cache's own client. By default it sends each request once."""
    return {"socket_timeout": SOCKET_TIMEOUT, "retry": clients.no_retry(asynchronous=asynchronous), **(options or {})}


class RedisCache(Cache[SyncClient, ValueT], Block):
    """What a graph's nodes and tasks wrote, on plain Redis or Valkey, over a blocking client: LangGraph's `BaseCache`.

    Its `a...` methods run in worker threads, so the event loop is never blocked. For a service on asyncio, `AsyncRedisCache` does without these. Any number
    of OS threads may share a cache, before and after a fork.
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
        return NeedsWith(cls, url, client_options_of(client_options, asynchronous=False), settings)
