"""`TieredSaver`: over two blocking savers."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver import forks
from redis_saver.checkpoint.sync import RedisSaver
from redis_saver.engine import drivers
from redis_saver.engine.requests import Call, T
from redis_saver.tiered import cold_connections, postgres_runs
from redis_saver.tiered.flusher import Flusher, noting
from redis_saver.tiered.model import Cold, HotFailed, Once, Pause, Tiered, Tried, Try
from redis_saver.tiered.saver import CLOSE_TIMEOUT, TwoTiers, own_error


class _SingleFlight:
    """What OS threads of this process do at this moment, which others wait for."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Whoever was at work is not in the child."""
        self.lock, self.under_way = threading.Lock(), dict[tuple[str, ...], Future[None]]()


class TieredSaver(TwoTiers[RedisSaver]):
    """A `RedisSaver` in front of any saver. Its `a...` methods run in worker threads.

    With write-behind, `close` it at the end, or use it in a `with`.

    It is fit for use before and after a fork, if `cold` is. A `PostgresSaver` is: in the child it gets connections of its own, with the settings of those it
    had. The flusher starts with the first call on the saver in the child.
    """

    _hot_class = RedisSaver

    def __init__(self, hot: RedisSaver, cold: BaseCheckpointSaver[Any], **settings: Any) -> None:
        """As `TwoTiers`."""
        super().__init__(hot, cold, **settings)
        self._failures = hot.failures
        self._single_flight = _SingleFlight()
        self._flusher = Flusher(self)
        if self.flushes:
            self._flusher.start()

    def flush(self, timeout: float | None = None) -> int:
        """Bring to cold all that only hot has, of all processes.

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
        """Stop the flusher, after it has brought to cold what it can in so many seconds. Answers what is left, as `flush`.

        What is left is in hot, and any other process, or the next one, brings it to cold. How much that is is logged (`redis_saver`, WARNING).
        """
        deadline = time.monotonic() + timeout
        self._flusher.stop(timeout)
        return self._closed(self.flush(max(0.0, deadline - time.monotonic())) if self.flushes else 0)

    def __enter__(self) -> Self:
        """Return the saver itself; after `close` its flusher is at work again."""
        self._flusher.entered.enter()
        if self.flushes:
            self._flusher.again()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another `with` of this process is open. Where something is left, a `BacklogWarning` says so."""
        left, is_last = 0, self._flusher.entered.leave()
        with noting() as noted:
            left = self.close() if is_last else self.flush(CLOSE_TIMEOUT)
        self._leave(left, noted.error, error)

    def _run(self, operation: Tiered[T]) -> T:
        if self.flushes:
            self._flusher.start()
        try:
            return drivers.run(operation, self._exchange)
        except HotFailed as failed:
            raise own_error(failed) from None

    async def aput(self, *arguments: Any, **options: Any) -> RunnableConfig:
        """`put` for asyncio. Waits for room in the backlog without a worker thread."""
        await self._wait_for_room()
        return await super().aput(*arguments, **options)

    async def aput_writes(self, *arguments: Any, **options: Any) -> None:
        """`put_writes` for asyncio. Waits for room in the backlog without a worker thread."""
        await self._wait_for_room()
        await super().aput_writes(*arguments, **options)

    async def _wait_for_room(self) -> None:
        async def exchange(request: Any) -> Any:
            if isinstance(request, Pause):
                return await asyncio.sleep(request.seconds)
            return await asyncio.to_thread(self._exchange, request)

        if self.behind:
            await drivers.arun(self.behind.room(), exchange)

    async def _arun(self, operation: Tiered[T]) -> T:
        return await asyncio.to_thread(self._run, operation)

    def _exchange(self, request: Any) -> Any:
        if type(request) is Call:
            return self._ask_hot(request)
        if isinstance(request, Cold):
            return self._ask_cold(request, self.cold)
        if isinstance(request, Try):
            reply = None
            with noting() as noted:
                reply = (
                    self._ask_cold(request.request, self._carrier_of_cold)
                    if isinstance(request.request, Cold)
                    else self._exchange(request.request)
                )
            return Tried(reply, noted.error)
        if isinstance(request, Once):
            return self._once(request)
        if isinstance(request, Pause):
            return time.sleep(request.seconds)
        return self._ask_hot(request)

    def _ask_hot(self, request: Any) -> Any:
        try:
            return self.hot._exchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    def _ask_cold(self, request: Cold, cold: BaseCheckpointSaver[Any]) -> Any:
        if self._is_forked and cold_connections.is_renewable(cold):
            cold = cold_connections.renewed(cold)
        if request.method == "delete_for_runs" and (delete := postgres_runs.deleting(cold)):
            return delete(*request.arguments)
        answer = getattr(cold, request.method)(*request.arguments, **request.options)
        return list(answer) if request.method == "list" else answer

    def _once(self, request: Once) -> Any:
        flight = self._single_flight
        with flight.lock:
            under_way = flight.under_way.get(request.key)
            if under_way is None:
                mine = flight.under_way[request.key] = Future()
        if under_way is not None:
            return under_way.result()
        try:
            return drivers.run(request.make(), self._exchange)
        finally:
            with flight.lock:
                del flight.under_way[request.key]
            mine.set_result(None)
