"""`TieredSaver`: over two blocking savers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from typing_extensions import Self

from redis_saver._checkpoint.saver import RedisSaver
from redis_saver._engine.requests import T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import name_of
from redis_saver._tiered.capturing import capturing
from redis_saver._tiered.drivers import SyncTieredDriver
from redis_saver._tiered.flush.workers import BETWEEN_FLUSHES, Flusher
from redis_saver._tiered.requests import Tiered, TieredRequest, TieredStream, setup
from redis_saver._tiered.saver import CLOSE_TIMEOUT, TwoTiers, with_own_errors


class TieredSaver(TwoTiers[RedisSaver]):
    """A `RedisSaver` in front of any saver. Its `a...` methods run in worker threads.

    With write-behind, call `close()` at the end, or use it in a `with`.

    It works before and after a fork, if `cold` does. A `PostgresSaver` does: the child makes connections of its own, with the same
    settings. Flushers start in the child with its first call on the saver.
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
            timeout: Seconds; None: as long as it takes, also while cold is down.

        Returns:
            How many records are left: 0, unless the time was up.
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
            How many records are left. 0 with `flusher=False`, and with write-through: then it flushes nothing.
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
        """Check that hot is open, and see to it that the flusher is at work."""
        self._driver.check_open()
        if self._flushes:
            self._flusher.start()

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        with self._lifetime:
            self._begin()
            return self._driver.run(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        if self._flush_queue and name in ("put", "put_writes"):  # here a wait keeps no worker thread, and no close()
            self._lifetime.check_open()
            self._begin()
            await self._driver.arun_sleeping(self._flush_queue.wait_for_capacity(is_writing=False))
        with self._lifetime:
            self._begin()
            return await self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    def _stream(self, operation: TieredStream[T], name: str = "") -> Iterator[T]:
        self._lifetime.check_open()
        self._begin()
        return self._driver.stream(self._counting.stream(with_own_errors(operation), name))

    def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        self._lifetime.check_open()
        self._begin()
        return self._driver.astream(self._counting.stream(with_own_errors(operation), name))
