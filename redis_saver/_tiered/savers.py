"""`TieredSaver` over two blocking savers, `AsyncTieredSaver` over two for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from typing_extensions import Self

from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver
from redis_saver._engine.requests import T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import name_of
from redis_saver._tiered.drivers import AsyncTieredDriver, SyncTieredDriver
from redis_saver._tiered.flushers import BETWEEN_FLUSHES, AsyncFlusher, Flusher
from redis_saver._tiered.requests import Tiered, TieredRequest, TieredStream, capturing, setup, with_own_errors
from redis_saver._tiered.saver import CLOSE_TIMEOUT, TwoTiers


class TieredSaver(TwoTiers[RedisSaver]):
    """A `RedisSaver` in front of any saver. Its `a...` methods run in worker threads.

    With write-behind, call `close()` at the end, or use it in a `with`.

    It works before and after a fork, if `cold` does. A `PostgresSaver` does: the child makes connections of its own,
    with the same settings. Flushers start in the child with its first call on the saver.
    """

    _hot_class, _driver_class = RedisSaver, SyncTieredDriver
    _driver: SyncTieredDriver | DriverWrapper[TieredRequest]

    def _make_flusher(self, workers: int) -> None:
        self._flusher = Flusher(self, self._flush_queue, workers)
        if self._flushes:
            self._flusher.start()

    def setup(self) -> None:
        """Set up both, as `asetup`."""
        self.hot.setup()
        self._run(setup(self.cold))

    def flush(self, timeout: float | None = None) -> int:
        """Flush: bring to cold all that only hot has, of all processes.

        Args:
            timeout: Seconds. None: no limit, even while cold is down.

        Returns:
            The number of records that are left: 0, unless the time was up.
        """
        with self._lifetime:
            return self._flusher.drain(self, timeout)

    async def aflush(self, timeout: float | None = None) -> int:
        """`flush` for asyncio."""
        return await asyncio.to_thread(self.flush, timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Close the saver in this process: stop its flusher, then flush what it can. Hot and cold stay open.

        From now on each other method raises `Closed`. A `with` opens the saver again. Records that are left stay in
        hot, for the flusher of another process or of the next one. The log says how many (`redis_saver.tiered`,
        WARNING).

        Args:
            timeout: Seconds.

        Returns:
            The number of records that are left. 0 with `flusher=False`, and with write-through: then it flushes
            nothing.
        """
        deadline = time.monotonic() + timeout
        self._lifetime.close()
        self._flusher.stop(timeout)
        return self._closed(self._flush_last(deadline) if self._flushes else 0)

    def _flush_last(self, deadline: float) -> int:
        """Flush until no call is under way, which may write more, or the time is up."""
        while True:
            is_busy = self._lifetime.calls > 0
            left = self._flusher.drain(self, max(0.0, deadline - time.monotonic()))
            if not is_busy or time.monotonic() >= deadline:
                return left
            self._driver.run(self._lifetime.until_idle(BETWEEN_FLUSHES))

    def __enter__(self) -> Self:
        """Return the saver itself. After `close` it is open again."""
        self._lifetime.enter_block()
        if self._flushes:
            self._flusher.again()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another block of this process is open. Warn of what is left (`BacklogWarning`)."""
        left, is_last = 0, self._lifetime.leave_block()
        with capturing() as captured:
            left = self.close() if is_last else self._flusher.drain(self, CLOSE_TIMEOUT)
        self._leave(left, captured.error, error)

    def _begin(self) -> None:
        """Check that hot is open, and start the flusher if it is not at work."""
        self._driver.check_open()
        if self._flushes:
            self._flusher.start()

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        if self._flush_queue and name in ("put", "put_writes"):  # a wait here holds up no worker thread, and no close()
            self._lifetime.check_open()
            self._begin()
            await self._driver.arun_sleeping(self._flush_queue.wait_for_capacity(is_writing=False))
        with self._lifetime:
            self._begin()
            return await self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        self._lifetime.check_open()
        self._begin()
        return self._driver.astream(self._counting.stream(with_own_errors(operation), name))


class AsyncTieredSaver(TwoTiers[AsyncRedisSaver]):
    """An `AsyncRedisSaver` in front of any saver with `a...` methods.

    Any number of event loops and OS threads may share it, before and after a fork, if `cold` can be shared so. An
    `AsyncPostgresSaver` is bound to its loop, and answers the calls of that loop. Calls from other loops, OS threads
    and children run on a background loop, with connections of their own to Postgres. Another cold saver that is bound
    to a loop answers them on its loop. If that loop does not run, they raise `LoopEnded`.

    With write-behind, flushers are tasks of the loop on which `cold` answers. `await aclose()` at the end, or use it in
    an `async with`. Flushers start in a forked child with its first call on the saver.
    """

    _hot_class, _driver_class = AsyncRedisSaver, AsyncTieredDriver
    _driver: AsyncTieredDriver | DriverWrapper[TieredRequest]

    def _make_flusher(self, workers: int) -> None:
        self._flusher = AsyncFlusher(self, self._flush_queue, workers)

    async def setup(self) -> None:
        """The same as `asetup`, so await it."""
        await self.asetup()

    async def aflush(self, timeout: float | None = None) -> int:
        """Bring to cold all that only hot has, of all processes, as `TieredSaver.flush`."""
        with self._lifetime:
            return await self._drain(timeout)

    async def _drain(self, timeout: float | None) -> int:
        return await self._driver.on_loop_of_cold(lambda: self._flusher.drain(self, timeout))

    async def aclose(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Close the saver in this process, as `TieredSaver.close`. An `async with` opens it again."""
        deadline = time.monotonic() + timeout
        self._lifetime.close()
        await self._flusher.stop(timeout)
        return self._closed(await self._flush_last(deadline) if self._flushes else 0)

    async def _flush_last(self, deadline: float) -> int:
        """Flush until no call is under way, which may write more, or the time is up."""
        while True:
            is_busy = self._lifetime.calls > 0
            left = await self._drain(max(0.0, deadline - time.monotonic()))
            if not is_busy or time.monotonic() >= deadline:
                return left
            await self._driver.arun(self._lifetime.until_idle(BETWEEN_FLUSHES))

    async def __aenter__(self) -> Self:
        """Return the saver itself. Its flusher is at work from now on, also after `aclose`."""
        self._lifetime.enter_block()
        if self._flushes:
            self._flusher.again()
            await self._driver.on_loop_of_cold(self._flusher.run)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another block of this process is open. Warn of what is left (`BacklogWarning`)."""
        left, is_last = 0, self._lifetime.leave_block()
        with capturing() as captured:
            left = await (self.aclose() if is_last else self._drain(CLOSE_TIMEOUT))
        self._leave(left, captured.error, error)

    def _begin(self) -> None:
        """Check that hot is open, and start the flusher if it is not at work."""
        self._driver.check_open()
        if self._flushes and not self._flusher.is_at_work:
            self._driver.call(self._flusher.run)

    async def _abegin(self) -> None:
        """`_begin` for asyncio."""
        self._driver.check_open()
        if self._flushes and not self._flusher.is_at_work:
            await self._driver.on_loop_of_cold(self._flusher.run)

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        with self._lifetime:
            await self._abegin()
            return await self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    async def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        self._lifetime.check_open()
        await self._abegin()
        async for item in self._driver.astream(self._counting.stream(with_own_errors(operation), name)):
            yield item
