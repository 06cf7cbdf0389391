"""`AsyncRedisSaver`: the saver over an asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver._checkpoint.saver import OnFork, OwnershipRule, Saver
from redis_saver._client import clients, clusters
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.protocols import AsyncClient
from redis_saver._common import keywords
from redis_saver._common.history import History
from redis_saver._common.limits import Limits
from redis_saver._common.ttl import TTL
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper
from redis_saver._storage.chunk_cache import CACHE_BYTES
from redis_saver._storage.compression import Compression


class AsyncRedisSaver(Saver[AsyncClient]):
    """Checkpoints on plain Redis or Valkey, over an asyncio client.

    Build it anywhere, also where no event loop runs. Any number of event loops and OS threads may share it, before and after a fork. Its
    methods without an `a` work on any OS thread that runs no event loop, such as the worker threads of `graph.invoke`. On the OS thread of a
    running loop they would block that loop, and raise `CalledOnEventLoop`. A program without asyncio does better with `RedisSaver`.
    """

    _driver: AsyncDriver | DriverWrapper[Request]
    _driver_class = AsyncDriver
    _takes = "an asyncio client, such as redis.asyncio.Redis or redis.asyncio.RedisCluster"

    @classmethod
    @keywords.checked
    @asynccontextmanager
    async def from_conn_string(
        cls,
        url: str,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: TTL = None,
        history: History = "all",
        compression: Compression | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = clusters.CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
        ownership: OwnershipRule = "optional",
        on_fork: OnFork = "allow",
        client_options: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Self]:
        """A saver with a client of its own, which is closed at the end of the `async with`.

        The arguments are those of `RedisSaver.from_conn_string`.
        """
        client = clients.connect(url, asynchronous=True, **(client_options or {}))
        saver = cls(
            client,
            serde=serde,
            prefix=prefix,
            ttl=ttl,
            history=history,
            compression=compression,
            cache_bytes=cache_bytes,
            limits=limits,
            require_encryption=require_encryption,
            strict=strict,
            cluster_timeout=cluster_timeout,
            require_primary=require_primary,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
            ownership=ownership,
            on_fork=on_fork,
        )
        try:
            yield saver
        finally:
            await saver._driver.aclose()
