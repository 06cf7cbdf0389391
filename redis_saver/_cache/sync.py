"""`RedisCache`: the cache over a blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver._cache.cache import CLUSTER_TIMEOUT, Cache, ValueT
from redis_saver._cache.health import OnError
from redis_saver._client import clients
from redis_saver._client.protocols import SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common.limits import Limits
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper

SOCKET_TIMEOUT = 1.0
"""Seconds that the client of a cache waits for its server by default. A slower cache is no use."""


def connect(url: str, options: Mapping[str, Any] | None, *, asynchronous: bool) -> Any:
    """Make the client of a cache from a URL. By default it sends each request once."""
    defaults = {"socket_timeout": SOCKET_TIMEOUT, "retry": clients.no_retry(asynchronous=asynchronous)}
    return clients.connect(url, asynchronous=asynchronous, **{**defaults, **(options or {})})


class RedisCache(Cache[SyncClient, ValueT]):
    """What a graph's nodes and tasks wrote, on plain Redis or Valkey, over a blocking client: LangGraph's `BaseCache`.

    Its `a...` methods run in worker threads, so the event loop is never blocked. For a service on asyncio, `AsyncRedisCache` does without these. Any number
    of OS threads may share a cache, before and after a fork.
    """

    _driver: SyncDriver | DriverWrapper[Request]
    _driver_class = SyncDriver

    @classmethod
    @contextmanager
    def from_conn_string(
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
    ) -> Iterator[Self]:
        """Make a cache with a client of its own, and close that at the end of the `with`.

        The client waits a second for the server, not five as a saver's, and sends each request once.

        Args:
            url: As savers take it (`docs/connections.md`).
            serde: As in the constructor.
            prefix: As in the constructor.
            ttl: As in the constructor.
            on_error: As in the constructor.
            single_flight: As in the constructor.
            limits: As in the constructor.
            require_encryption: As in the constructor.
            strict: As in the constructor.
            cluster_timeout: As in the constructor.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 0.2}`; they may also stand behind the `?` of the URL.
        """
        cache = cls(
            connect(url, client_options, asynchronous=False),
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
            cache._driver.close()
