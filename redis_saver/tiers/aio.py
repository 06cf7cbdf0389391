"""`AsyncTieredSaver`: over two savers for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver import drivers
from redis_saver.aio import AsyncRedisSaver
from redis_saver.requests import Call, T
from redis_saver.tiers import postgres_runs
from redis_saver.tiers.flusher import AsyncFlusher, noting
from redis_saver.tiers.model import Cold, HotFailed, Once, Pause, Tiered, Tried, Try
from redis_saver.tiers.saver import TwoTiers, own_error


class AsyncTieredSaver(TwoTiers[AsyncRedisSaver]):
    """An `AsyncRedisSaver` in front of any saver with `a...` methods.

    Its methods without an `a` work from threads that run no event loop, as far as those of `cold` do. With write-behind the flusher is a
    task of the loop on which the saver is used; `await aclose()` at the end, or use it in an `async with`.
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
        return await self._flusher.drain(self, timeout)

    async def aclose(self, timeout: float = 10.0) -> int:
        """Stop the flusher, as `TieredSaver.close`."""
        deadline = time.monotonic() + timeout
        await self._flusher.stop(timeout)
        return await self.aflush(max(0.0, deadline - time.monotonic())) if self.flushes else 0

    async def __aenter__(self) -> Self:
        """Return the saver itself; its flusher is at work from now on."""
        if self.flushes:
            self._flusher.again()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()

    def _run(self, operation: Tiered[T]) -> T:
        if self.flushes:
            self.hot._home.loop_for(None).call_soon_threadsafe(self._flusher.start)  # noqa: SLF001
        try:
            return drivers.run(operation, self._exchange)
        except HotFailed as failed:
            raise own_error(failed) from None

    async def _arun(self, operation: Tiered[T]) -> T:
        if self.flushes:
            self._flusher.start()
        try:
            return await drivers.arun(operation, self._aexchange)
        except HotFailed as failed:
            raise own_error(failed) from None

    def _exchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            return self._ask_cold_from_outside(request, self.cold)
        if isinstance(request, Try):
            reply = None
            with noting() as noted:
                reply = (
                    self._ask_cold_from_outside(request.request, self._carrier_of_cold)
                    if isinstance(request.request, Cold)
                    else self._exchange(request.request)
                )
            return Tried(reply, noted.error)
        if isinstance(request, Once):
            return drivers.run(request.make(), self._exchange)
        if isinstance(request, Pause):
            return time.sleep(request.seconds)
        try:
            return self.hot._exchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    def _ask_cold_from_outside(self, request: Cold, cold: Any) -> Any:
        if request.method == "delete_for_runs" and (delete := postgres_runs.adeleting(cold)):
            return asyncio.run_coroutine_threadsafe(delete(*request.arguments), cold.loop).result()
        answer = getattr(cold, request.method)(*request.arguments, **request.options)
        return list(answer) if request.method == "list" else answer

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
