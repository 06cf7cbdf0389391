"""What the drivers over blocking and asyncio clients share: the settings of how they ask a server."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from redis_saver._client import clients, clusters, servers
from redis_saver._common import config as configs
from redis_saver._engine import scripts, wire
from redis_saver._engine.requests import Call, R, Replicated, Request
from redis_saver._engine.runner import Driver
from redis_saver._engine.stats import Traffic
from redis_saver.errors import ClusterMoving


class RedisDriver(Driver[Request]):
    """A driver over one Redis or Valkey."""

    is_async: ClassVar[bool]
    """Whether the client is one for asyncio."""

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "langgraph",
        cluster_timeout: float = clusters.CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
        taker: str = "Saver",
    ) -> None:
        """Use a client. The caller closes it.

        Args:
            client: As a saver takes it.
            prefix: The beginning of all keys.
            cluster_timeout: Seconds for which a request to a cluster is repeated while its slot moves. Then `ClusterMoving` is raised.
            require_primary: Whether reads from a replica raise an error.
            min_replicas: How many replicas must have a write before it is acknowledged.
            replica_timeout: Seconds to wait for them. Then `ReplicationTimeout` is raised.
            taker: Who holds the driver, for messages: a `Saver`, a `Store` or a `Cache`.

        Raises:
            TypeError, ValueError: An argument makes no sense; the message says which and why.
        """
        clients.check(client, asynchronous=self.is_async, taker=taker)
        configs.number("cluster_timeout", cluster_timeout, 0)
        configs.number("min_replicas", min_replicas, 0, whole=True)
        configs.number("replica_timeout", replica_timeout, 0.001)
        self.server: str = servers.described(client)
        """The server as a URL without login and options, for messages."""
        self._what = f"the {taker.lower()} on {self.server}"
        self.traffic: Traffic = Traffic()
        """What it sent and received in this process."""
        self._cluster_timeout = cluster_timeout
        self._min_replicas, self._replica_timeout = min_replicas, replica_timeout
        require_primary = require_primary and not clients.is_cluster(client)  # a cluster's replica answers MOVED
        self._guard = wire.guard(prefix) if require_primary else None
        self.failures: tuple[type[Exception], ...] = (*clients.failures_of(client), ClusterMoving)
        """What the client raises when the server or the network fails. (`ClusterMoving` is an error of redis-py, so with valkey-py it is not among the client's.)"""

    @abstractmethod
    def check_version(self) -> None:
        """Ask every server for its version.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """

    @abstractmethod
    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""

    def _as_set(self, request: R) -> R | Replicated:
        """The request in the form that the settings ask for: on a primary, or waiting for replicas."""
        if self._guard is not None:
            request = wire.on_primary(request)
        if self._min_replicas and isinstance(request, Call) and request.script in scripts.ACKNOWLEDGED:
            return Replicated(request, self._min_replicas, self._replica_timeout)
        return request
