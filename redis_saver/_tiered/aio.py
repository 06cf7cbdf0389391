"""`AsyncTieredSaver`: over two savers for asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

from typing_extensions import Self

from redis_saver._checkpoint.aio import AsyncRedisSaver
from redis_saver._engine.requests import T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import name_of
from redis_saver._tiered.capturing import capturing
from redis_saver._tiered.drivers import AsyncTieredDriver
from redis_saver._tiered.flush.workers import AsyncFlusher
from redis_saver._tiered.requests import Tiered, TieredRequest, TieredStream
from redis_saver._tiered.saver import CLOSE_TIMEOUT, TwoTiers, with_own_errors


class AsyncTieredSaver(TwoTiers[AsyncRedisSaver]):
    """An `AsyncRedisSaver` in front of any saver with `a...` methods.

    Any number of event loops and OS threads may share it, before and after a fork, as far as `cold` can be shared. An `AsyncPostgresSaver`
    is bound to its loop, and answers the calls of that loop. Calls from other loops, OS threads and children run on a loop in the
    background, with connections of their own to Postgres. Another cold saver that is bound to a loop answers them there; where that loop
    does not run, they raise `LoopEnded`.

    With write-behind, flushers are tasks of the loop on which `cold` answers. `await aclose()` at the end, or use it in an `async with`.
    Flushers start in a forked child with its first call on the saver.
    """

    _hot_class, _driver_class = AsyncRedisSaver, AsyncTieredDriver
    _driver: AsyncTieredDriver | DriverWrapper[TieredRequest]

    def _make_flusher(self, workers: int) -> None:
        self._flusher = AsyncFlusher(self, self._flush_queue, workers)

    async def aflush(self, timeout: float | None = None) -> int:
        """Bring to cold all that only hot has, of all processes, as `TieredSaver.flush`."""
        return await self._driver.on_loop_of_cold(lambda: self._flusher.drain(self, timeout))

    async def aclose(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Stop the flusher, as `TieredSaver.close`."""
        deadline = time.monotonic() + timeout
        await self._flusher.stop(timeout)
        return self._closed(await self.aflush(max(0.0, deadline - time.monotonic())) if self._flushes else 0)

    async def __aenter__(self) -> Self:
        """Return the saver itself; its flusher is at work from now on."""
        self._flusher.entered.enter()
        if self._flushes:
            self._flusher.again()
            await self._driver.on_loop_of_cold(self._flusher.run)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another `async with` of this process is open. Where something is left, a `BacklogWarning` says so."""
        left, is_last = 0, self._flusher.entered.leave()
        with capturing() as captured:
            left = await (self.aclose() if is_last else self.aflush(CLOSE_TIMEOUT))
        self._leave(left, captured.error, error)

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        if self._flushes and not self._flusher.is_at_work:
            self._driver.call(self._flusher.run)
        return self._driver.run(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        if self._flushes and not self._flusher.is_at_work:
            await self._driver.on_loop_of_cold(self._flusher.run)
        return await self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    def _stream(self, operation: TieredStream[T], name: str = "") -> Iterator[T]:
        if self._flushes and not self._flusher.is_at_work:
            self._driver.call(self._flusher.run)
        return self._driver.stream(self._counting.stream(with_own_errors(operation), name))

    async def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        if self._flushes and not self._flusher.is_at_work:
            await self._driver.on_loop_of_cold(self._flusher.run)
        async for one in self._driver.astream(self._counting.stream(with_own_errors(operation), name)):
            yield one
