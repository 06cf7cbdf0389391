"""`RedisSaver`: the saver over a blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver._checkpoint.saver import OnFork, OwnershipRule, Saver
from redis_saver._client import clients, clusters
from redis_saver._client.protocols import SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common import keywords
from redis_saver._common.history import History
from redis_saver._common.limits import Limits
from redis_saver._common.ttl import TTL
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper
from redis_saver._storage.chunk_cache import CACHE_BYTES
from redis_saver._storage.compression import Compression


class RedisSaver(Saver[SyncClient]):
    """Checkpoints on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so the event loop is never blocked. For a service on asyncio, `AsyncRedisSaver` does without
    these. Any number of OS threads may share a saver, as they may share its client. It works before and after a fork: the child makes a
    client of its own, with the same settings.
    """

    _driver: SyncDriver | DriverWrapper[Request]
    _driver_class = SyncDriver
    _takes = "a blocking client, such as redis.Redis or redis.RedisCluster"

    @classmethod
    @keywords.checked
    @contextmanager
    def from_conn_string(
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
    ) -> Iterator[Self]:
        """A saver with a client of its own, which is closed at the end of the `with`.

        Args:
            url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service`,
                `redis+cluster://host:port`, or `memory://` (`docs/connections.md` has all forms).
            serde: As in the constructor.
            prefix: As in the constructor.
            ttl: As in the constructor.
            history: As in the constructor.
            compression: As in the constructor.
            cache_bytes: As in the constructor.
            limits: As in the constructor.
            require_encryption: As in the constructor.
            strict: As in the constructor.
            cluster_timeout: As in the constructor.
            require_primary: As in the constructor.
            min_replicas: As in the constructor.
            replica_timeout: As in the constructor.
            ownership: As in the constructor.
            on_fork: As in the constructor.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 2.0}`; they may also stand behind the `?` of the URL.
        """
        client = clients.connect(url, asynchronous=False, **(client_options or {}))
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
            saver._driver.close()
