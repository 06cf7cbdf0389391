"""`AsyncDriver`: runs operations over an asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from redis_saver._client import clients, loops
from redis_saver._client.base import RedisDriver
from redis_saver._client.batching import Batcher
from redis_saver._client.connections import LoopClients
from redis_saver._engine.requests import Call, Command, Replicated, Request, Scan, Sleep, T


class AsyncDriver(RedisDriver):
    """A driver over an asyncio client, for any number of loops and OS threads at once, before and after a fork (`connections.LoopClients`).

    OS threads that run no loop may also call the blocking methods. The background loop answers these.
    """

    is_async = True

    def __init__(self, client: Any, **settings: Any) -> None:
        """As `RedisDriver`. No loop but the running one may have used the client."""
        super().__init__(client, **settings)
        self.connections: LoopClients = LoopClients(
            client,
            self._what,
            partial(Batcher, traffic=self.traffic, cluster_timeout=self._cluster_timeout, guard=self._guard),
        )

    async def aclose(self) -> None:
        """Close the connections (`LoopClients.aclose`). From now on each request raises `Closed`."""
        await self.connections.aclose()

    def check_open(self) -> None:
        """As `Driver.check_open`."""
        self.connections.check_open()

    def check_version(self) -> None:
        """As `RedisDriver.check_version`, from an OS thread that runs no event loop."""
        loops.call(self._check_version())

    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""
        await self._on_a_loop(self._check_version)

    def request(self, request: Request) -> Any:
        """Answer a request."""
        return loops.call(self._answer_here(request))

    def arequest(self, request: Request) -> Awaitable[Any]:
        """`request` for asyncio."""
        batcher = self.connections.batcher()
        return loops.acall(self._answer_here(request)) if batcher is None else self._answer(batcher, request)

    async def _on_a_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the running loop; on the background loop if the running one has no connections."""
        return await (make() if self.connections.batcher() is not None else loops.acall(make()))

    async def _answer_here(self, request: Request) -> Any:
        return await self._answer(self._batcher(), request)

    def _batcher(self) -> Batcher:
        """The batcher of the running loop, which has connections."""
        batcher = self.connections.batcher()
        assert batcher is not None  # noqa: S101 - the background loop has, and so has one that was asked before
        return batcher

    def _answer(self, batcher: Batcher, request: Request) -> Awaitable[Any]:
        """The reply to a request. Call it on the batcher's loop."""
        if isinstance(request, Sleep):
            return asyncio.sleep(request.seconds)
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
