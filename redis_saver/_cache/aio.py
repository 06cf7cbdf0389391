"""`AsyncRedisCache`: the cache over an asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver._cache.cache import CLUSTER_TIMEOUT, Cache, ValueT
from redis_saver._cache.health import OnError
from redis_saver._cache.sync import connect
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.protocols import AsyncClient
from redis_saver._common.limits import Limits
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper


class AsyncRedisCache(Cache[AsyncClient, ValueT]):
    """What a graph's nodes and tasks wrote, on plain Redis or Valkey, over an asyncio client: LangGraph's `BaseCache`.

    Build it anywhere, also where no event loop runs. Any number of event loops and OS threads may share it, before and after a fork. Its methods without
    an `a` work on any OS thread that runs no event loop; on one that does they raise `CalledOnEventLoop`.
    """

    _driver: AsyncDriver | DriverWrapper[Request]
    _driver_class = AsyncDriver

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        url: str,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: timedelta | str | None = None,
        on_error: OnError = "skip",
        single_flight: timedelta | str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = CLUSTER_TIMEOUT,
        client_options: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Self]:
        """A cache with a client of its own, which is closed at the end of the `async with`.

        The arguments are those of `RedisCache.from_conn_string`.
        """
        cache = cls(
            connect(url, client_options, asynchronous=True),
            serde=serde,
            prefix=prefix,
            ttl=ttl,
            on_error=on_error,
            single_flight=single_flight,
            limits=limits,
            require_encryption=require_encryption,
            strict=strict,
            cluster_timeout=cluster_timeout,
        )
        try:
            yield cache
        finally:
            await cache._driver.aclose()
