"""A cluster whose slots move, or whose primary is replaced: how long a request is repeated, and where it goes.

Meanwhile clients raise many errors: those of the nodes (MOVED, ASK, TRYAGAIN, CLUSTERDOWN), those of connections to a node that is gone, and
others because the client's own state changes during a call. (When redis-py 8.1 learns the slots anew it closes connections in use, and a call then
raises `AttributeError: 'NoneType' object has no attribute 'writelines'`.) Every request of ours may be sent twice, so it is repeated after any of these.
"""

from __future__ import annotations

import random
import time
from typing import Any

from redis_saver._client import clients
from redis_saver._common.display import error_text, shown
from redis_saver._common.logs import ThrottledLog
from redis_saver.errors import ClusterMoving, RedisSaverError

CLUSTER_TIMEOUT = 20.0
"""Seconds for which a request is repeated by default. A failover takes `cluster-node-timeout` (by default 15 seconds) and one or two more."""
_MIN_PAUSE, _MAX_PAUSE = 0.01, 0.5
"""Seconds between two tries, about. The pause grows from the first value to the second."""
_LOG = ThrottledLog("redis_saver.client")
_jitter = random.Random()  # noqa: S311 - no secret; apart from `random`, which a graph may seed


class Patience:
    """How long, and after which errors, requests over one client of a cluster are repeated."""

    def __init__(self, client: Any, seconds: float) -> None:
        # Of a single server nothing is asked, and a client that was closed must not live on here.
        self._client: Any = client if clients.is_cluster(client) else None
        self._seconds = seconds
        module = self._module = clients.exceptions_of(client)
        of_the_client = ("RedisClusterException", "ValkeyClusterException")
        kinds = (getattr(module, name) for name in of_the_client if hasattr(module, name))
        # LookupError and RuntimeError: another call is changing the client's tables of nodes and slots.
        self.errors: tuple[type[Exception], ...] = (
            OSError, module.ConnectionError, module.TimeoutError, module.ClusterError, module.AskError, module.TryAgainError, *kinds,
            AttributeError, LookupError, RuntimeError,
        )  # fmt: skip
        """What clients raise while slots move. After some of these it does not help to try again (`is_final`)."""
        final = ("AuthenticationError", "AuthorizationError", "MaxConnectionsError", "ExternalAuthProviderError")
        self._final: tuple[type[Exception], ...] = (
            RedisSaverError,
            *(getattr(module, name) for name in final if hasattr(module, name)),
        )
        self.gives_up: tuple[type[Exception], ...] = (module.ClusterError, AttributeError)
        """What a client raises if it does not find the node that an ASK names, or goes back and forth between two nodes."""

    def tries(self, key: bytes | None) -> Tries:
        """The tries of a request that begins now and is about a key. None: it is about all nodes."""
        return Tries(self, key)

    def is_final(self, error: Exception) -> bool:
        """Whether a next try would raise the same: no connection is free, or a password is wrong."""
        return isinstance(error, self._final)

    def has_given_up(self, error: Exception) -> bool:
        """Whether the client has given up, so that the node with the slot has to be asked directly."""
        return type(error) in self.gives_up

    def failed(self, key: bytes | None, seconds: float, tries: int, error: Exception) -> ClusterMoving:
        """The error to raise when the time is up."""
        what = "the nodes of the cluster were not all there"
        if key is not None:
            what = f"slot {self._client.keyslot(key)} of the cluster (key {shown(key)}) was not served"
        why = "Its slots move, or a primary is lost and no replica has taken its place"
        if isinstance(error, (self._module.AskError, self._module.TryAgainError)):
            why = "The slot is open: some of its keys are on another node. If nobody is moving it any more, close it with redis-cli --cluster fix"
        return ClusterMoving(
            f"{what} for {seconds:.1f} seconds, in {tries} tries; the last one ended with {error_text(error)}. {why}. Calling again is safe. "
            f"Calls are tried for cluster_timeout={self._seconds:g} seconds"
        )

    @property
    def seconds(self) -> float:
        """The seconds after which no try begins any more, but the second."""
        return self._seconds


class Tries:
    """The tries of one request."""

    def __init__(self, patience: Patience, key: bytes | None) -> None:
        self._patience, self._key = patience, key
        self._began, self._count = time.monotonic(), 0

    def pause(self, error: Exception) -> float:
        """The seconds to wait after an error, before the next try.

        A second try comes however long the first one took, unless the time is 0: a client learns the nodes anew by an error, and the first try may have spent
        all the time on those that it knew.

        Raises:
            ClusterMoving: The time is up.
            Exception: The error itself, if trying again does not help.
        """
        if self._patience.is_final(error):
            raise error
        self._count += 1
        pause: float = min(_MAX_PAUSE, _MIN_PAUSE * 2 ** min(self._count - 1, 10)) * _jitter.uniform(0.5, 1.0)
        elapsed = time.monotonic() - self._began
        if elapsed + pause > self._patience.seconds and (self._count > 1 or not self._patience.seconds):
            raise self._patience.failed(self._key, elapsed, self._count, error) from error
        if self._count == 1:
            _LOG.info("requests to the cluster are tried again, as slots move or a node is gone: %s", error_text(error))
        return pause
