"""Nodes of valkey-py's asyncio `ValkeyCluster` that give back each connection.

valkey-py 6.2 loses a connection if its command cannot be sent, or if a pipeline is cancelled. After `max_connections`
of these, the node refuses all calls, also those that ask for the cluster's slots. redis-py loses none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from valkey.asyncio.cluster import ClusterNode, NodesManager


class _Node(ClusterNode):
    """A node that gives back its connections, also after an error or a cancellation."""

    __slots__ = ()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        return await self._given_back(super().execute_command, *args, **options)

    async def execute_pipeline(self, commands: Any) -> Any:
        return await self._given_back(super().execute_pipeline, commands)

    async def _given_back(self, send: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        connection = self.acquire_connection()
        self._free.appendleft(connection)  # `send` takes it from there before it waits for anything
        try:
            return await send(*args, **options)
        except BaseException:  # also a cancellation
            if connection not in self._free:
                self._free.append(connection)  # valkey-py has disconnected it
            raise


class _Nodes(NodesManager):
    """The nodes of a client, those that it finds later too. It asks all that it knew for their slots.

    The client forgets each node that fails, so it would have none to ask after an outage of all.
    """

    __slots__ = ()

    async def initialize(self) -> None:
        for name, node in self.nodes_cache.items():
            self.startup_nodes.setdefault(name, node)
        await super().initialize()

    def set_nodes(self, old: dict[str, Any], new: dict[str, Any], remove_old: bool = False) -> None:
        _mend(new)
        super().set_nodes(old, new, remove_old)


def give_back_connections(client: Any) -> None:
    """Let the nodes of an asyncio `ValkeyCluster` give back their connections, now and when it finds others."""
    manager = client.nodes_manager
    if type(manager) is NodesManager:
        manager.__class__ = _Nodes
        _mend({**manager.startup_nodes, **manager.nodes_cache})


def _mend(nodes: Mapping[str, Any]) -> None:
    for node in nodes.values():
        if type(node) is ClusterNode:
            node.__class__ = _Node
