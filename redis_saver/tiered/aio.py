"""`AsyncTieredSaver`: over two savers for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver.checkpoint.aio import AsyncRedisSaver
from redis_saver.client import loops
from redis_saver.engine import drivers
from redis_saver.engine.requests import Call, T
from redis_saver.errors import LoopEnded
from redis_saver.tiered import cold_connections, postgres_runs
from redis_saver.tiered.flusher import AsyncFlusher, noting
from redis_saver.tiered.model import Cold, HotFailed, Once, Pause, Tiered, Tried, Try
from redis_saver.tiered.saver import CLOSE_TIMEOUT, TwoTiers, own_error


class AsyncTieredSaver(TwoTiers[AsyncRedisSaver]):
    """An `AsyncRedisSaver` in front of any saver with `a...` methods.

    Used by any number of loops and OS threads, before and after a fork, as far as `cold` can be. One that is bound to a loop (it has a `loop`, as an
    `AsyncPostgresSaver`) answers the calls of that loop. All other calls, and those of a child, run on the background loop (`redis_saver.client.loops`), with connections of their
    own to Postgres, with the same settings. A cold saver of another kind answers them on its loop, and they raise `LoopEnded` where that does not run.

    With write-behind the flusher is a few tasks of the loop on which `cold` answers. `await aclose()` at the end, or use it in an `async with`. In the child of a fork
    it starts with the first call on the saver.
    """

    _hot_class = AsyncRedisSaver

    def __init__(self, hot: AsyncRedisSaver, cold: BaseCheckpointSaver[Any], **settings: Any) -> None:
        """As `TwoTiers`."""
        super().__init__(hot, cold, **settings)
        self._failures = hot.failures
        self._under_way = dict[tuple[Any, ...], asyncio.Future[None]]()
        self._flusher = AsyncFlusher(self)

    async def aflush(self, timeout: float | None = None) -> int:
        """Bring to cold all that only hot has, of all processes, as `TieredSaver.flush`."""
        return await self._on_its_loop(lambda: self._flusher.drain(self, timeout))

    async def aclose(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Stop the flusher, as `TieredSaver.close`."""
        deadline = time.monotonic() + timeout
        await self._flusher.stop(timeout)
        return self._closed(await self.aflush(max(0.0, deadline - time.monotonic())) if self.flushes else 0)

    async def __aenter__(self) -> Self:
        """Return the saver itself; its flusher is at work from now on."""
        self._flusher.entered.enter()
        if self.flushes:
            self._flusher.again()
            await self._on_its_loop(self._flusher.run)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another `async with` of this process is open. Where something is left, a `BacklogWarning` says so."""
        left, is_last = 0, self._flusher.entered.leave()
        with noting() as noted:
            left = await (self.aclose() if is_last else self.aflush(CLOSE_TIMEOUT))
        self._leave(left, noted.error, error)

    def _run(self, operation: Tiered[T]) -> T:
        loop = self._elsewhere()
        return loops.call(self._operate(operation), loop)

    async def _arun(self, operation: Tiered[T]) -> T:
        return await self._on_its_loop(lambda: self._operate(operation))

    async def _operate(self, operation: Tiered[T]) -> T:
        """Run an operation where cold answers."""
        if self.flushes:
            await self._flusher.run()
        try:
            return await drivers.arun(operation, self._aexchange)
        except HotFailed as failed:
            raise own_error(failed) from None

    async def _on_its_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on this loop, if cold answers here, or where it does."""
        if self._is_home(asyncio.get_running_loop()):
            return await make()
        loop = self._elsewhere()
        return await loops.acall(make(), loop)

    def _is_home(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the cold saver that was given answers on a loop."""
        bound = getattr(self.cold, "loop", None)
        return bound is None or (bound is loop and not self._is_forked)

    def _elsewhere(self) -> asyncio.AbstractEventLoop | None:
        """Where it answers the others; None: on the background loop."""
        bound: asyncio.AbstractEventLoop | None = getattr(self.cold, "loop", None)
        if bound is None or cold_connections.is_renewable(self.cold):
            return None
        if self._is_forked:
            raise LoopEnded(
                f"cold={type(self.cold).__name__} is bound to an event loop of the process that this one was forked from; make it, and the saver in front of it, in this process"
            )
        return bound

    def _aexchange(self, request: Any) -> Awaitable[Any]:
        return self._ask_hot(request) if type(request) is Call else self._answer(request)

    async def _answer(self, request: Any) -> Any:
        if isinstance(request, Cold):
            return await self._ask_cold(request, self.cold)
        if isinstance(request, Try):
            reply = None
            with noting() as noted:
                reply = await (
                    self._ask_cold(request.request, self._carrier_of_cold)
                    if isinstance(request.request, Cold)
                    else self._aexchange(request.request)
                )
            return Tried(reply, noted.error)
        if isinstance(request, Once):
            return await self._once(request)
        if isinstance(request, Pause):
            return await asyncio.sleep(request.seconds)
        return await self._ask_hot(request)

    async def _ask_hot(self, request: Any) -> Any:
        try:
            return await self.hot._aexchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    async def _ask_cold(self, request: Cold, cold: BaseCheckpointSaver[Any]) -> Any:
        if not self._is_home(asyncio.get_running_loop()) and cold_connections.is_renewable(cold):
            cold = await cold_connections.arenewed(cold)
        if request.method == "delete_for_runs" and (delete := postgres_runs.adeleting(cold)):
            return await delete(*request.arguments)
        answer = getattr(cold, "a" + request.method)(*request.arguments, **request.options)
        return [one async for one in answer] if request.method == "list" else await answer

    async def _once(self, request: Once) -> Any:
        loop = asyncio.get_running_loop()
        key = (loop, *request.key)
        if (under_way := self._under_way.get(key)) is not None:
            return await asyncio.shield(under_way)
        mine = self._under_way[key] = loop.create_future()
        try:
            return await drivers.arun(request.make(), self._aexchange)
        finally:
            del self._under_way[key]
            mine.set_result(None)
