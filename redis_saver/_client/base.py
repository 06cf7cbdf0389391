"""What the drivers over blocking and asyncio clients share: the settings of how they ask a server."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from redis_saver._client import clients, clusters, servers
from redis_saver._client.link import Rules
from redis_saver._common import config as configs
from redis_saver._engine.requests import Request
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
        repeats_late: bool = True,
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
            repeats_late: Send the requests of a pipeline that timed out again, each alone. If false, all of them fail.

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
        is_guarded = require_primary and not clients.is_cluster(client)  # a cluster's replica answers MOVED
        guard = ("UNLINK", f"{prefix}:primary") if is_guarded else None
        self._rules = Rules(self.traffic, cluster_timeout, guard, min_replicas, replica_timeout, repeats_late)
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
