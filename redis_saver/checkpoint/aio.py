"""`AsyncRedisSaver`: the saver over an asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver.checkpoint.saver import Saver
from redis_saver.client import clients, clusters, loops
from redis_saver.client.batching import Batcher
from redis_saver.client.connections import LoopClients
from redis_saver.engine import drivers
from redis_saver.engine.requests import Call, Command, Operation, Replicated, Request, Scan, Stream, T
from redis_saver.expiry import TTL
from redis_saver.limits import Limits
from redis_saver.storage.known import CACHE_BYTES


class AsyncRedisSaver(Saver):
    """Checkpoints on plain Redis or Valkey, over an asyncio client.

    It can be built where no event loop runs, and used by any number of loops and OS threads at once, before and after a fork
    (`connections.LoopClients` tells which loop has connections of its own). Its methods without an `a` work from any OS thread that runs no event loop, such
    as the worker threads of `graph.invoke`; on a loop's own thread they raise `CalledOnEventLoop`, as they would block that loop. In a program without
    asyncio they work too, on a loop in the background; there `RedisSaver` is faster.
    """

    asynchronous = True

    def _use(self, client: Any) -> None:
        guard = drivers.guard(self.keyspace.prefix) if self.require_primary else None
        self._connections = LoopClients(client, partial(Batcher, cluster_timeout=self.cluster_timeout, guard=guard))

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
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
    ) -> AsyncIterator[Self]:
        """A saver with a client of its own, which is closed at the end of the `async with`.

        The arguments are those of `RedisSaver.from_conn_string`.
        """
        client = clients.connect(url, asynchronous=True, **options)
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
            await saver._connections.aclose()

    async def asetup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        await self._on_a_loop(self._check_version)

    def setup(self) -> None:
        """`asetup`, from a thread that runs no event loop."""
        loops.call(self._check_version())

    def _run(self, operation: Operation[T]) -> T:
        return drivers.run(operation, self._exchange)

    def _arun(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        return drivers.arun(operation, self._aexchange)

    def _stream(self, stream: Stream[T]) -> Iterator[T]:
        for page in drivers.pages(stream, self._exchange):
            yield from page

    async def _astream(self, stream: Stream[T]) -> AsyncIterator[T]:
        async for page in drivers.apages(stream, self._aexchange):
            for item in page:
                yield item

    def _exchange(self, request: Request) -> Any:
        return loops.call(self._answer_here(request))

    def _aexchange(self, request: Request) -> Awaitable[Any]:
        batcher = self._connections.batcher()
        return loops.acall(self._answer_here(request)) if batcher is None else self._answer(batcher, request)

    async def _on_a_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the running loop, or on the background loop where the former has no connections."""
        return await (make() if self._connections.batcher() is not None else loops.acall(make()))

    async def _answer_here(self, request: Request) -> Any:
        return await self._answer(self._batcher(), request)

    def _batcher(self) -> Batcher:
        """What sends on the running loop, which has connections."""
        batcher = self._connections.batcher()
        assert batcher is not None  # noqa: S101 - the background loop has, and so has one that was asked before
        return batcher

    def _answer(self, batcher: Batcher, request: Request) -> Awaitable[Any]:
        """The reply to a request; to be called on the batcher's loop."""
        request = self._as_set(request)
        if isinstance(request, Call | Command):
            return batcher.answer(request)
        if isinstance(request, Replicated):
            return batcher.replicated(request)
        return batcher.scan(request) if isinstance(request, Scan) else batcher.answer_all(request.requests)

    async def _check_version(self) -> None:
        batcher = self._batcher()
        await batcher.open()

        async def check() -> None:
            for name in clients.nodes(batcher.client):
                clients.check_version(await batcher.send_in_turn(name, "HELLO"))

        await batcher.repeated(check, None)
