"""`SyncDriver`: runs operations over a blocking client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis_saver._client import clients, clusters
from redis_saver._client.base import RedisDriver
from redis_saver._client.connections import ProcessClient
from redis_saver._engine import wire
from redis_saver._engine.requests import (
    KEYS_PER_SCAN,
    Argument,
    Batch,
    Call,
    Command,
    Replicated,
    Request,
    Scan,
    Sleep,
    T,
    key_of,
)
from redis_saver._engine.runner import BlockingDriver


class SyncDriver(BlockingDriver[Request], RedisDriver):
    """A driver over a blocking client. OS threads may share it, as they may its client, before and after a fork.

    For asyncio each operation runs in a worker thread.
    """

    is_async = False

    def __init__(self, client: Any, **settings: Any) -> None:
        """As `RedisDriver`."""
        super().__init__(client, **settings)
        self.connection: ProcessClient = ProcessClient(client, self._what)
        self._cluster = clients.is_cluster(client)
        self._exceptions: Any = clients.exceptions_of(client)
        self._options = clients.raw_options(client)
        self._patience = clusters.Patience(client, self._cluster_timeout)
        self._learns_by: tuple[type[Exception], ...] = self._patience.errors if self._cluster else ()

    @property
    def client(self) -> Any:
        """The client of this process."""
        return self.connection.client

    def close(self) -> None:
        """Close the connections of this process. From now on each request raises `Closed`."""
        self.connection.close()

    def check_open(self) -> None:
        """As `Driver.check_open`."""
        self.connection.check_open()

    def check_version(self) -> None:
        """As `RedisDriver.check_version`."""
        self._repeated(self._check_version, None)

    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""
        await asyncio.to_thread(self.check_version)

    def _check_version(self) -> None:
        for name in clients.nodes(self.client):
            clients.check_version(self._send("HELLO", **clients.target(clients.node_named(self.client, name))))

    def request(self, request: Request) -> Any:
        """Answer a request."""
        if isinstance(request, Scan):
            return self._scan(request)
        if isinstance(request, Sleep):
            return time.sleep(request.seconds)
        request = self._as_set(request)
        return (
            self._repeated(lambda: self._answer(request), key_of(request)) if self._cluster else self._answer(request)
        )

    def _repeated(self, attempt: Callable[[], T], key: bytes | None) -> T:
        """What an attempt returns. With a cluster, whose slots may be moving, it is repeated for a while."""
        if not self._cluster:
            return attempt()
        tries = self._patience.tries(key)
        while True:
            try:
                return attempt()
            except self._patience.errors as error:
                pause = tries.pause(error)
            self.traffic.retries += 1
            time.sleep(pause)

    def _answer(self, request: Call | Command | Batch | Replicated) -> Any:
        if isinstance(request, (Call, Command)):
            return self._alone(request)
        if isinstance(request, Batch):
            return self._batch(request.requests)
        return self._replicated(request)

    def _alone(self, request: Call | Command) -> Any:
        """The reply to one request. If the server does not know its script, the text is sent."""
        try:
            return self._send_to_slot(request, wire.as_command(request))
        except self._exceptions.ResponseError as reply:
            if not isinstance(request, Call) or not isinstance(reply, self._exceptions.NoScriptError):
                return wire.of_script(request, reply, self._exceptions)
        self.traffic.loads += 1
        try:
            return self._send_to_slot(request, wire.as_command_with_source(request))
        except self._exceptions.ResponseError as reply:
            return wire.of_script(request, reply, self._exceptions)

    def _send_to_slot(self, request: Call | Command, arguments: Sequence[Argument]) -> Any:
        """Send one command. If its cluster slot is moving and redis-py gives up, ask the node itself."""
        if not self._cluster:
            return self._execute(*arguments) if isinstance(request, Call) else self._send(*arguments)
        try:
            return self._execute(*arguments)
        except self._patience.gives_up as error:
            if not self._patience.has_given_up(error):
                raise
            self.traffic.retries += 1
            self.traffic.sending(arguments)
            return self.traffic.receive(clusters.ask(self.client, key_of(request), arguments, self._options))

    def _send(self, *arguments: Argument, **options: Any) -> Any:
        if self._guard:
            return wire.of_guarded(self._together(self.client, (self._guard, arguments)))
        return self._execute(*arguments, **options)

    def _execute(self, *arguments: Argument, **options: Any) -> Any:
        self.traffic.sending(arguments)
        return self.traffic.receive(self.client.execute_command(*arguments, **self._options, **options))

    def _batch(self, requests: Sequence[Call | Command]) -> list[Any]:
        """Answer requests in one round trip (a node). A request that is refused, such as one whose script is not known, is sent again alone.

        In a cluster each node has its own pipeline: redis-py's cluster pipeline asks the server for the keys of each script
        call before it sends it.
        """
        clients_of_nodes: dict[Any, list[int]] = {}
        for position, request in enumerate(requests):
            clients_of_nodes.setdefault(self._client_for(request), []).append(position)
        replies: list[Any] = [None] * len(requests)
        for client, positions in clients_of_nodes.items():
            try:
                answers = self._together(client, [wire.as_command(requests[position]) for position in positions])
            except self._learns_by as error:
                answers = [error] * len(positions)
            for position, reply in zip(positions, answers, strict=True):
                replies[position] = reply
        for position, again in wire.refused(replies, (self._exceptions.ResponseError, *self._learns_by)):
            known = [one for one in (position, *again) if not isinstance(replies[one], self._exceptions.NoScriptError)]
            self.traffic.retries += len(known)
            replies[position] = self.request(requests[position])
            for other, reply in zip(again, self._batch([requests[other] for other in again]), strict=True):
                replies[other] = reply
        return replies

    def _replicated(self, request: Replicated) -> Any:
        try:
            replies: list[Any] = []
            for command in (wire.as_command, wire.as_command_with_source):
                replies = self._together(self._client_for(request.call), (command(request.call), *request.behind))
                if not isinstance(replies[0], self._exceptions.NoScriptError):
                    break
                self.traffic.loads += 1
            return wire.of_replicated(request, replies, self._exceptions)
        except self._learns_by:
            self._alone(request.call)  # by the cluster's client, which learns from it where the slot is
            raise

    def _together(self, client: Any, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands to one server on one connection. Returns the replies, with errors among them."""
        self.traffic.sending_together(commands)
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command, **self._options)
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return self.traffic.receive(replies)

    def _client_for(self, request: Call | Command) -> Any:
        if not self._cluster:
            return self.client
        return clients.of_node(self.client, self.client.get_node_from_key(key_of(request)))

    def _scan(self, request: Scan) -> tuple[Any, list[bytes]]:
        """One page of SCAN. The position is the names of the nodes left to ask, and the cursor in the first of them."""
        position = request.position

        def page() -> tuple[Any, list[bytes]]:
            nonlocal position
            nodes, cursor = position or (clients.nodes(self.client), 0)
            position = None  # if it fails the nodes may have changed, so it begins again
            command = ("SCAN", cursor, "MATCH", request.pattern, "COUNT", KEYS_PER_SCAN)
            node = clients.node_named(self.client, nodes[0])
            return clients.next_position(nodes, self._send(*command, **clients.target(node)))

        return self._repeated(page, None)
