"""A cluster whose slots move, or one of whose primaries is replaced: how long a request is repeated, and where it goes.

Meanwhile its clients raise many things: the errors of the nodes (MOVED, ASK, TRYAGAIN, CLUSTERDOWN), those of connections to a node that is gone, and
what their own state gives rise to as it changes under a call. (redis-py 8.1 closes connections in use when it learns the slots anew, so a call
finds none: `AttributeError: 'NoneType' object has no attribute 'writelines'`.) Every request of ours may be sent twice, so each is repeated after any of these.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis_saver._client import clients
from redis_saver._common.display import error_text, shown
from redis_saver.errors import ClusterMoving, RedisSaverError

CLUSTER_TIMEOUT = 20.0
"""Seconds that a request is repeated by default. A failover takes `cluster-node-timeout` (by default 15 seconds) and one or two more."""
_MIN_PAUSE, _MAX_PAUSE = 0.01, 0.5
"""Seconds between two tries, about: they grow from the first to the second."""
_jitter = random.Random()  # noqa: S311 - no secret; apart from `random`, which a graph may seed


class Patience:
    """How long, and after which errors, requests over one client of a cluster are repeated."""

    def __init__(self, client: Any, seconds: float) -> None:
        self._client, self._seconds = client, seconds
        module = self._module = clients.exceptions_of(client)
        of_the_client = ("RedisClusterException", "ValkeyClusterException")
        kinds = (getattr(module, name) for name in of_the_client if hasattr(module, name))
        # LookupError and RuntimeError: tables of nodes and slots that another call is changing.
        self.errors: tuple[type[Exception], ...] = (
            OSError, module.ConnectionError, module.TimeoutError, module.ClusterError, module.AskError, module.TryAgainError, *kinds,
            AttributeError, LookupError, RuntimeError,
        )  # fmt: skip
        """What is raised where slots move; something among it is no reason to try again (`Tries.pause`)."""
        final = ("AuthenticationError", "AuthorizationError", "MaxConnectionsError", "ExternalAuthProviderError")
        self._final: tuple[type[Exception], ...] = (
            RedisSaverError,
            *(getattr(module, name) for name in final if hasattr(module, name)),
        )
        self.gives_up: tuple[type[Exception], ...] = (module.ClusterError, AttributeError)
        """What a client raises that does not find the node an ASK names, or goes round between two."""

    def tries(self, key: bytes | None) -> Tries:
        """Those of a request that begins now, about a key; None: about all nodes."""
        return Tries(self, key)

    def is_final(self, error: Exception) -> bool:
        """Whether the same would be raised again: no connection is free, or a password is wrong."""
        return isinstance(error, self._final)

    def has_given_up(self, error: Exception) -> bool:
        """Whether the node that has the slot is to be asked itself."""
        return type(error) in self.gives_up

    def failed(self, key: bytes | None, seconds: float, tries: int, error: Exception) -> ClusterMoving:
        """The error to raise when the time is up."""
        what = "the nodes of the cluster were not all there"
        if key is not None:
            what = f"slot {self._client.keyslot(key)} of the cluster (key {shown(key)}) was not served"
        why = "Its slots move, or a primary is lost and no replica has taken its place"
        if isinstance(error, (self._module.AskError, self._module.TryAgainError)):
            why = "The slot is open, as some of its keys are on another node: where nobody moves it any more, close it (redis-cli --cluster fix)"
        return ClusterMoving(
            f"{what} for {seconds:.1f} seconds, in {tries} tries; the last one ended with {error_text(error)}. {why}. To call again is safe; "
            f"cluster_timeout={self._seconds:g} is how long is tried"
        )

    @property
    def seconds(self) -> float:
        """After which no try begins any more."""
        return self._seconds


class Tries:
    """The tries of one request."""

    def __init__(self, patience: Patience, key: bytes | None) -> None:
        self._patience, self._key = patience, key
        self._began, self._count = time.monotonic(), 0

    def pause(self, error: Exception) -> float:
        """The seconds to wait after an error, before the next try.

        Raises:
            ClusterMoving: The time is up.
            Exception: The error itself, where trying again does not help.
        """
        if self._patience.is_final(error):
            raise error
        self._count += 1
        pause: float = min(_MAX_PAUSE, _MIN_PAUSE * 2 ** min(self._count - 1, 10)) * _jitter.uniform(0.5, 1.0)
        elapsed = time.monotonic() - self._began
        if elapsed + pause > self._patience.seconds:
            raise self._patience.failed(self._key, elapsed, self._count, error) from error
        return pause


# -- where the client gives up: to the node itself, and to the one its slot is moving to
#
# A node answers ASK where it has given away a key of a slot that it still has; the next is to be told ASKING, which holds for the command behind it on the
# same connection (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/). redis-py's asyncio client (8.1) sends each of the two on whatever
# connection is free, and with an even number of these goes round between the nodes until it raises a ClusterError. Neither of its clients knows a node that
# has no slot yet, and both raise an AttributeError.


def ask(cluster: Any, key: bytes, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Send a command to the node that has a key's slot, by a blocking client, and to the node the slot is moving to where that has the key."""
    module: Any = clients.exceptions_of(cluster)
    node = cluster.get_node_from_key(key)
    try:
        return clients.of_node(cluster, node).execute_command(*arguments, **options)
    except module.MovedError:  # all of the slot has moved meanwhile
        return cluster.execute_command(*arguments, **options)
    except module.AskError as asked:
        known = cluster.get_node(asked.host, asked.port)
        client = clients.of_node(cluster, known) if known else _newcomer(cluster, asked)
        try:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.execute_command("ASKING")
                pipeline.execute_command(*arguments, **options)
                reply = pipeline.execute(raise_on_error=False)[1]
        finally:
            if not known:
                clients.close(client)
        if isinstance(reply, Exception):
            raise reply from asked
        return reply


def _newcomer(cluster: Any, asked: Any) -> Any:
    """A blocking client of a node that the cluster's client does not know."""
    manager = cluster.nodes_manager
    create = getattr(manager, "create_redis_node", None) or manager.create_valkey_node
    return create(asked.host, asked.port, **manager.connection_kwargs)


async def aask(cluster: Any, key: bytes, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """`ask`, by an asyncio client."""
    module: Any = clients.exceptions_of(cluster)
    node = cluster.get_node_from_key(key)
    try:
        return await node.execute_command(*arguments, **options)
    except module.MovedError:
        return await cluster.execute_command(*arguments, **options)
    except module.AskError as asked:
        known = cluster.get_node(asked.host, asked.port)
        to = known or type(node)(asked.host, asked.port, **cluster.connection_kwargs)
        try:
            _, reply = await together(to, [("ASKING",), tuple(arguments)], options)
        finally:
            if not known:
                await to.disconnect()
        if isinstance(reply, Exception):
            raise reply from asked
        return reply


async def together(node: Any, commands: Sequence[Sequence[Any]], options: Mapping[str, Any]) -> list[Any]:
    """Send commands to a node of a cluster on one connection, by an asyncio client; the replies, with errors among them.

    A pipeline of the cluster's client would send those again that were refused or lost, each on another connection.
    """
    kind = sys.modules[type(node).__module__].PipelineCommand
    sent = [kind(position, *command, **options) for position, command in enumerate(commands)]
    await node.execute_pipeline(sent)
    return [each.result for each in sent]
