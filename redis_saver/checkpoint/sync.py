"""`RedisSaver`: the saver over a blocking client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver.checkpoint.saver import Saver
from redis_saver.client import clients, clusters
from redis_saver.client.connections import ProcessClient
from redis_saver.engine import drivers
from redis_saver.engine.requests import (
    KEYS_A_SCAN,
    Argument,
    Batch,
    Call,
    Command,
    Operation,
    Replicated,
    Request,
    Scan,
    Stream,
    T,
    key_of,
)
from redis_saver.expiry import TTL
from redis_saver.limits import Limits
from redis_saver.storage.known import CACHE_BYTES


class RedisSaver(Saver):
    """Checkpoints on plain Redis or Valkey, over a blocking client.

    Its `a...` methods work too: each runs in a worker thread, so the event loop is never blocked. For a service on
    asyncio, `AsyncRedisSaver` does without the threads. Safe to share between threads, as its client is, and fit for use before
    and after a fork: the child has a client of its own, with the same settings.
    """

    asynchronous = False

    def _use(self, client: Any) -> None:
        self._connection = ProcessClient(client)
        self._cluster = clients.is_cluster(client)
        self._exceptions: Any = clients.exceptions_of(client)
        self._options = clients.raw_options(client)
        self._guard = drivers.guard(self.keyspace.prefix) if self.require_primary else None
        self._patience = clusters.Patience(client, self.cluster_timeout)
        self._learns_by: tuple[type[Exception], ...] = self._patience.errors if self._cluster else ()

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        url: str,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: TTL = None,
        compression: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = clusters.CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
        **options: Any,
    ) -> Iterator[Self]:
        """A saver with a client of its own, which is closed at the end of the `with`.

        Args:
            url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service`,
                `redis+cluster://host:port`, or `memory://` (see `redis_saver.client.clients.connect`).
            serde: As in the constructor.
            prefix: As in the constructor.
            ttl: As in the constructor.
            compression: As in the constructor.
            cache_bytes: As in the constructor.
            limits: As in the constructor.
            require_encryption: As in the constructor.
            strict: As in the constructor.
            cluster_timeout: As in the constructor.
            require_primary: As in the constructor.
            min_replicas: As in the constructor.
            replica_timeout: As in the constructor.
            options: Options of the client, such as `socket_timeout=2.0`.
        """
        client = clients.connect(url, asynchronous=False, **options)
        saver = cls(
            client,
            serde=serde,
            prefix=prefix,
            ttl=ttl,
            compression=compression,
            cache_bytes=cache_bytes,
            limits=limits,
            require_encryption=require_encryption,
            strict=strict,
            cluster_timeout=cluster_timeout,
            require_primary=require_primary,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
        )
        try:
            yield saver
        finally:
            saver._connection.close()

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self._repeated(self._check_version, None)

    def _check_version(self) -> None:
        for name in clients.nodes(self._client):
            clients.check_version(self._send("HELLO", **clients.target(clients.node_named(self._client, name))))

    async def asetup(self) -> None:
        """`setup` for asyncio."""
        await asyncio.to_thread(self.setup)

    @property
    def _client(self) -> Any:
        """The client of this process."""
        return self._connection.client

    def _run(self, operation: Operation[T]) -> T:
        return drivers.run(operation, self._exchange)

    async def _arun(self, operation: Operation[T]) -> T:
        return await asyncio.to_thread(drivers.run, operation, self._exchange)

    def _stream(self, stream: Stream[T]) -> Iterator[T]:
        for page in drivers.pages(stream, self._exchange):
            yield from page

    async def _astream(self, stream: Stream[T]) -> AsyncIterator[T]:
        pages = drivers.pages(stream, self._exchange)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for item in page:
                yield item

    def _exchange(self, request: Request) -> Any:
        if isinstance(request, Scan):
            return self._scan(request)
        request = self._as_set(request)
        return (
            self._repeated(lambda: self._answer(request), key_of(request)) if self._cluster else self._answer(request)
        )

    def _repeated(self, attempt: Callable[[], T], key: bytes | None) -> T:
        """What an attempt returns; at a cluster, the slots of which may be moving, it is repeated for a while."""
        if not self._cluster:
            return attempt()
        tries = self._patience.tries(key)
        while True:
            try:
                return attempt()
            except self._patience.errors as error:
                pause = tries.pause(error)
            time.sleep(pause)

    def _answer(self, request: Call | Command | Batch | Replicated) -> Any:
        if isinstance(request, (Call, Command)):
            return self._alone(request)
        if isinstance(request, Batch):
            return self._batch(request.requests)
        return self._replicated(request)

    def _alone(self, request: Call | Command) -> Any:
        """The reply to one request; the server learns a script that it does not know."""
        try:
            return self._send_to_slot(request, drivers.wire(request))
        except self._exceptions.ResponseError as reply:
            if not isinstance(request, Call) or not isinstance(reply, self._exceptions.NoScriptError):
                return drivers.of_script(request, reply, self._exceptions)
        try:
            return self._send_to_slot(request, drivers.wire_with_text(request))
        except self._exceptions.ResponseError as reply:
            return drivers.of_script(request, reply, self._exceptions)

    def _send_to_slot(self, request: Call | Command, arguments: Sequence[Argument]) -> Any:
        """Send one command, also where its slot of a cluster is moving and redis-py gives up."""
        if not self._cluster:
            return (
                self._client.execute_command(*arguments, **self._options)
                if isinstance(request, Call)
                else self._send(*arguments)
            )
        try:
            return self._client.execute_command(*arguments, **self._options)
        except self._patience.gives_up as error:
            if not self._patience.has_given_up(error):
                raise
            return clusters.ask(self._client, key_of(request), arguments, self._options)

    def _send(self, *arguments: Argument, **options: Any) -> Any:
        if self._guard:
            return drivers.of_guarded(self._together(self._client, (self._guard, arguments)))
        return self._client.execute_command(*arguments, **self._options, **options)

    def _batch(self, requests: Sequence[Call | Command]) -> list[Any]:
        """Answer requests in one round trip (a node). What is refused, as a script not known, is sent again by itself.

        In a cluster each node has its own pipeline: redis-py's cluster pipeline asks the server for the keys of each script
        call before it sends it.
        """
        clients_of_nodes: dict[Any, list[int]] = {}
        for position, request in enumerate(requests):
            clients_of_nodes.setdefault(self._client_for(request), []).append(position)
        replies: list[Any] = [None] * len(requests)
        for client, positions in clients_of_nodes.items():
            try:
                answers = self._together(client, [drivers.wire(requests[position]) for position in positions])
            except self._learns_by as error:
                answers = [error] * len(positions)
            for position, reply in zip(positions, answers, strict=True):
                replies[position] = reply
        for position, again in drivers.refused(replies, (self._exceptions.ResponseError, *self._learns_by)):
            replies[position] = self._exchange(requests[position])
            for other, reply in zip(again, self._batch([requests[other] for other in again]), strict=True):
                replies[other] = reply
        return replies

    def _replicated(self, request: Replicated) -> Any:
        try:
            replies: list[Any] = []
            for wire in (drivers.wire, drivers.wire_with_text):
                replies = self._together(self._client_for(request.call), (wire(request.call), *request.behind))
                if not isinstance(replies[0], self._exceptions.NoScriptError):
                    break
            return drivers.of_replicated(request, replies, self._exceptions)
        except self._learns_by:
            self._alone(request.call)  # by the cluster's client, which learns from it where the slot is
            raise

    def _together(self, client: Any, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands to one server, on one connection; the replies, with errors among them."""
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command, **self._options)
            return pipeline.execute(raise_on_error=False)  # type: ignore[no-any-return]

    def _client_for(self, request: Call | Command) -> Any:
        if not self._cluster:
            return self._client
        return clients.of_node(self._client, self._client.get_node_from_key(key_of(request)))

    def _scan(self, request: Scan) -> tuple[Any, list[bytes]]:
        """One page of SCAN; the position is (names of the nodes left to ask, cursor in the first of them)."""
        position = request.position

        def page() -> tuple[Any, list[bytes]]:
            nonlocal position
            nodes, cursor = position or (clients.nodes(self._client), 0)
            position = None  # where this fails, the nodes may be others
            command = ("SCAN", cursor, "MATCH", request.pattern, "COUNT", KEYS_A_SCAN)
            node = clients.node_named(self._client, nodes[0])
            return clients.next_position(nodes, self._send(*command, **clients.target(node)))

        return self._repeated(page, None)
