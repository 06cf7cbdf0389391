"""`AsyncRedisSaver`: the saver over an asyncio client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self

from redis_saver import clients, drivers
from redis_saver.batching import Batcher
from redis_saver.errors import WrongThread
from redis_saver.expiry import TTL
from redis_saver.known import CACHE_BYTES
from redis_saver.requests import Call, Command, Operation, Replicas, Request, Scan, Stream, T
from redis_saver.saver import Saver
from redis_saver.sync import KEYS_A_SCAN


class Home:
    """An asyncio client and the event loop its connections live on, which all other threads and loops send to.

    The loop is the first that uses the client. When that one is over, the next to come takes the client with it. Where
    there is no loop at all, as in a program without asyncio, one is started in a thread of its own.
    """

    def __init__(self, client: Any) -> None:
        self.batcher = Batcher(client)
        self._lock = threading.Lock()
        self._loop = _running_loop()

    @property
    def client(self) -> Any:
        """The client in use."""
        return self.batcher.client

    def loop_for(self, caller: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
        """The loop to send on, for a caller on a loop or (None) on none."""
        if caller is not None and caller is self._loop:
            return caller
        with self._lock:
            if self._loop is None or not self._loop.is_running():
                if self._loop is not None and self._loop is not caller:
                    self.batcher = Batcher(clients.renewed(self.client))
                self._loop = caller or _start_loop()
            return self._loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    started = threading.Event()
    loop.call_soon(started.set)
    threading.Thread(target=loop.run_forever, name="redis_saver", daemon=True).start()
    started.wait()
    return loop


class AsyncRedisSaver(Saver):
    """Checkpoints on plain Redis or Valkey, over an asyncio client.

    It can be built where no event loop runs, and used in one `asyncio.run` after another. Its methods without an `a` work
    from any thread that runs no event loop, such as the worker threads of `graph.invoke`; on a loop's own thread they
    raise `WrongThread`, as they would block that loop. In a program without asyncio they work too, on a loop in a
    background thread; there `RedisSaver` is faster.
    """

    asynchronous = True

    def _use(self, client: Any) -> None:
        self._home = Home(client)

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
        **options: Any,
    ) -> AsyncIterator[Self]:
        """A saver with a client of its own, which is closed at the end of the `async with`.

        The arguments are those of `RedisSaver.from_conn_string`.
        """
        client = clients.connect(url, asynchronous=True, **options)
        saver = cls(client, serde=serde, prefix=prefix, ttl=ttl, compression=compression, cache_bytes=cache_bytes)
        try:
            yield saver
        finally:
            await saver._home.client.aclose()

    async def asetup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            ServerTooOld: It is older than Redis 6.2 or Valkey 7.2.
        """
        await self._at_home(self._check_version())

    def setup(self) -> None:
        """`asetup`, from a thread that runs no event loop."""
        self._from_outside(self._check_version())

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
        return self._from_outside(self._answer_at_home(request))

    def _from_outside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the home loop, for a thread that runs no loop."""
        if _running_loop() is not None:
            coroutine.close()
            raise WrongThread(
                "a synchronous method of AsyncRedisSaver was called on the thread of a running event loop, which it would "
                "block; await the method with an 'a' in front (graph.ainvoke instead of graph.invoke), or call it in a "
                "worker thread (asyncio.to_thread)"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._home.loop_for(None)).result()

    def _aexchange(self, request: Request) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        if self._home.loop_for(loop) is loop:
            return self._answer(request)
        return self._at_home(self._answer_at_home(request))

    def _at_home(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a coroutine on the home loop, for a caller on any loop."""
        loop = asyncio.get_running_loop()
        home = self._home.loop_for(loop)
        return coroutine if home is loop else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, home))

    async def _answer_at_home(self, request: Request) -> Any:
        return await self._answer(request)

    def _answer(self, request: Request) -> Awaitable[Any]:
        """The reply to a request; to be called on the home loop."""
        if isinstance(request, Call | Command):
            return self._home.batcher.answer(request)
        if isinstance(request, Replicas):
            return self._home.batcher.replicas(request)
        return self._scan(request) if isinstance(request, Scan) else self._batch(request.requests)

    async def _batch(self, requests: Sequence[Call | Command]) -> list[Any]:
        return await self._home.batcher.answer_all(requests)

    async def _check_version(self) -> None:
        batcher = self._home.batcher
        await batcher.open()
        for node in batcher.nodes():
            clients.check_version(await batcher.send_in_turn(node, "HELLO"))

    async def _scan(self, request: Scan) -> tuple[Any, list[bytes]]:
        """One page of SCAN; the position is (nodes left to ask, cursor in the first of them)."""
        batcher = self._home.batcher
        await batcher.open()
        nodes, cursor = request.position or (batcher.nodes(), 0)
        page = ("SCAN", cursor, "MATCH", request.pattern, "COUNT", KEYS_A_SCAN)
        return clients.next_position(nodes, await batcher.send_in_turn(nodes[0], *page))
