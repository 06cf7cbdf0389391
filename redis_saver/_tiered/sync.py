"""`TieredSaver`: over two blocking savers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from typing_extensions import Self

from redis_saver._checkpoint.sync import RedisSaver
from redis_saver._engine.requests import T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import name_of
from redis_saver._tiered.capturing import capturing
from redis_saver._tiered.drivers import SyncTieredDriver
from redis_saver._tiered.flush.workers import Flusher
from redis_saver._tiered.requests import Tiered, TieredRequest, TieredStream
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

    def flush(self, timeout: float | None = None) -> int:
        """Flush: bring to cold all that only hot has, of all processes.

        Args:
            timeout: Seconds; None: as long as it takes, also while cold is down.

        Returns:
            How many records are left: 0, unless the time was up.
        """
        return self._flusher.drain(self, timeout)

    async def aflush(self, timeout: float | None = None) -> int:
        """`flush` for asyncio."""
        return await asyncio.to_thread(self.flush, timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Stop the flusher of this process, and flush what it can in so many seconds. Answers how many records are left, as `flush`.

        Records that are left stay in hot, for the flusher of another process, or of the next one; the log says how many (`redis_saver.tiered`, WARNING).
        With `flusher=False`, or write-through, it flushes nothing and answers 0.
        """
        deadline = time.monotonic() + timeout
        self._flusher.stop(timeout)
        return self._closed(self.flush(max(0.0, deadline - time.monotonic())) if self._flushes else 0)

    def __enter__(self) -> Self:
        """Return the saver itself; after `close` its flusher is at work again."""
        self._flusher.entered.enter()
        if self._flushes:
            self._flusher.again()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another `with` of this process is open. Where something is left, a `BacklogWarning` says so."""
        left, is_last = 0, self._flusher.entered.leave()
        with capturing() as captured:
            left = self.close() if is_last else self.flush(CLOSE_TIMEOUT)
        self._leave(left, captured.error, error)

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        if self._flushes:
            self._flusher.start()
        return self._driver.run(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        if self._flushes:
            self._flusher.start()
        if self._flush_queue and name in ("put", "put_writes"):  # waits here, where that keeps no worker thread
            await self._driver.arun_sleeping(self._flush_queue.wait_for_capacity(is_writing=False))
        return await self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    def _stream(self, operation: TieredStream[T], name: str = "") -> Iterator[T]:
        if self._flushes:
            self._flusher.start()
        return self._driver.stream(self._counting.stream(with_own_errors(operation), name))

    def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        if self._flushes:
            self._flusher.start()
        return self._driver.astream(self._counting.stream(with_own_errors(operation), name))
