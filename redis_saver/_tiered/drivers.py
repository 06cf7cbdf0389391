"""Drivers over two tiers: hot's driver answers requests to hot, the cold saver's methods answer those to cold.

A connection of psycopg cannot be used in the child of a fork, nor an asynchronous one on another loop. LangGraph's
Postgres savers and stores keep theirs in `conn`. So in a child, and on another loop, the driver uses a copy of the
saver or store, with connections made from the same settings (`_common/postgres.py`). Other savers are used as they are.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import copy
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver, driver_of
from redis_saver._client import loops
from redis_saver._common import forks, postgres
from redis_saver._engine.requests import Call, Request, Sleep, T
from redis_saver._engine.runner import BlockingDriver, Driver
from redis_saver._tiered import postgres as statements
from redis_saver._tiered.requests import (
    Attempt,
    ColdCall,
    HotFailed,
    Outcome,
    Parallel,
    SingleFlight,
    Tiered,
    TieredRequest,
    capturing,
)
from redis_saver.errors import LoopEnded

C = TypeVar("C")
Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)


class _Flights:
    """Single flights of this process: work that others wait for."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, forget them: the OS threads and loops at work are the parent's."""
        self._lock, self._under_way = threading.Lock(), dict[tuple[Any, ...], Future[None]]()

    def join(self, key: tuple[Any, ...]) -> Future[None] | None:
        """Return what to wait for if somebody is at work; if not, the caller is now, until it calls `end`."""
        with self._lock:
            if (under_way := self._under_way.get(key)) is None:
                self._under_way[key] = Future()
            return under_way

    def end(self, key: tuple[Any, ...]) -> None:
        """Let the others go on."""
        with self._lock:
            flight = self._under_way.pop(key)
        flight.set_result(None)


class TieredDriver(Driver[TieredRequest], Generic[Hot]):
    """A driver over two tiers."""

    def __init__(
        self, hot: Hot, cold: BaseCheckpointSaver[Any], opaque_cold: BaseCheckpointSaver[Any], *, bypasses: bool
    ) -> None:
        """Drive both.

        Args:
            hot: The saver in front. A request goes to the driver that hot has at that moment.
            cold: The saver behind it.
            opaque_cold: Cold with the serializer that flushers write with (`flushing.opaque_pair`).
            bypasses: Raise `HotFailed` in operations in place of hot's own error.
        """
        self.hot: Hot = hot
        self.cold: BaseCheckpointSaver[Any] = cold
        self._opaque_cold, self._bypasses = opaque_cold, bypasses
        self._failures = driver_of(hot).failures
        self._flights = _Flights()
        self._generation = forks.generation

    def over(self, hot: Hot, cold: BaseCheckpointSaver[Any]) -> Self:
        """Return the same driver over clones of both."""
        clone = copy.copy(self)
        clone.in_front = None
        clone.hot, clone.cold = hot, cold
        return clone

    def check_open(self) -> None:
        """Check that hot was not closed: without it, cold's answers may be old.

        Raises:
            Closed: It was closed.
        """
        driver_of(self.hot).check_open()

    def _run_all(self, request: Parallel, run: Callable[[Tiered[Any]], Any]) -> list[Any]:
        """Run operations in OS threads of their own. What is not done in time goes on without the caller."""
        results = list[Any]()

        def work() -> None:
            with contextlib.suppress(LoopEnded):
                while (operation := request.take()) is not None:
                    results.append(run(operation))

        workers = [threading.Thread(target=work, daemon=True) for _ in range(request.workers)]
        try:
            for worker in workers:
                worker.start()
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            work()
        for worker in workers:
            if worker.ident is not None:
                worker.join(None if math.isinf(request.until) else max(0.0, request.until - time.monotonic()))
        return results

    @property
    def _is_forked(self) -> bool:
        """True if this process was forked from the one that made the driver."""
        forks.check()
        return self._generation != forks.generation


class SyncTieredDriver(BlockingDriver[TieredRequest], TieredDriver[RedisSaver]):
    """A driver over two blocking savers. For asyncio each operation runs in a worker thread."""

    def run_beside(self, operation: Tiered[T]) -> T:
        """Run an operation in an OS thread of the flusher."""
        return self.front.run(operation)

    def request(self, request: TieredRequest) -> Any:
        """Answer a request."""
        if isinstance(request, ColdCall):
            return self._ask_cold(request, self.cold)
        if isinstance(request, Attempt):
            asked, reply = request.request, None
            with capturing() as captured:
                reply = self._ask_cold(asked, self._opaque_cold) if isinstance(asked, ColdCall) else self.request(asked)
            return Outcome(reply, captured.error)
        if isinstance(request, SingleFlight):
            return self._once(request)
        if isinstance(request, Parallel):
            return self._run_all(request, self.front.run)
        if isinstance(request, Sleep):
            return time.sleep(request.seconds)
        try:
            return driver_of(self.hot).request(request)
        except self._failures as error:
            if self._bypasses:
                raise HotFailed from error
            raise

    def _ask_cold(self, request: ColdCall, cold: BaseCheckpointSaver[Any]) -> Any:
        if self._is_forked and postgres.is_renewable(cold):
            cold = renewed(cold)
        if ours := statements.method_of(cold, request.method):
            return ours(*request.arguments, **request.options)
        answer = getattr(cold, request.method)(*request.arguments, **request.options)
        return list(answer) if request.method == "list" else answer

    def _once(self, request: SingleFlight) -> Any:
        if (under_way := self._flights.join(request.key)) is not None:
            return under_way.result()
        try:
            return self.front.run(request.make())
        finally:
            self._flights.end(request.key)


class AsyncTieredDriver(TieredDriver[AsyncRedisSaver]):
    """A driver over two savers for asyncio, which runs operations on the loop where cold answers."""

    def run(self, operation: Tiered[T]) -> T:
        """Run an operation to its result, for an OS thread that runs no event loop."""
        loop = self._loop_of_others()
        return loops.call(super().arun(operation), loop)

    def run_beside(self, operation: Tiered[T]) -> T:
        """Run an operation for an OS thread of the flusher, with cold's own connections if its loop runs.

        Raises:
            LoopEnded: The loop does not run, or ended meanwhile.
        """
        bound: asyncio.AbstractEventLoop | None = getattr(self.cold, "loop", None)
        is_there = bound is not None and bound.is_running() and not self._is_forked
        loop = bound if is_there else self._loop_of_others()
        return loops.call(self.front.arun(operation), loop)

    async def arun(self, operation: Tiered[T]) -> T:
        """`run` for asyncio."""
        return await self.on_loop_of_cold(lambda: super(AsyncTieredDriver, self).arun(operation))

    async def on_loop_of_cold(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on this loop if cold answers here; if not, on the loop where cold answers."""
        if self._is_loop_of_cold(asyncio.get_running_loop()):
            return await make()
        loop = self._loop_of_others()
        return await loops.acall(make(), loop)

    def _is_loop_of_cold(self, loop: asyncio.AbstractEventLoop) -> bool:
        """True if the cold saver answers on this loop, with its own connections."""
        bound = getattr(self.cold, "loop", None)
        return bound is None or (bound is loop and not self._is_forked)

    def _loop_of_others(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which cold answers callers of other loops; None for the background loop."""
        bound: asyncio.AbstractEventLoop | None = getattr(self.cold, "loop", None)
        if bound is None or postgres.is_renewable(self.cold):
            return None
        if self._is_forked:
            raise LoopEnded(
                f"cold={type(self.cold).__name__} is bound to an event loop of the process that this one was forked "
                "from. Make the cold saver, and the saver over both tiers, in this process"
            )
        return bound

    def request(self, request: TieredRequest) -> Any:
        """Answer a request."""
        loop = self._loop_of_others()
        return loops.call(self._answer(request), loop)

    def arequest(self, request: TieredRequest) -> Awaitable[Any]:
        """`request` for asyncio."""
        if type(request) is Call:
            return self._ask_hot(request)
        return self.on_loop_of_cold(lambda: self._answer(request))

    async def _answer(self, request: TieredRequest) -> Any:
        if isinstance(request, ColdCall):
            return await self._ask_cold(request, self.cold)
        if isinstance(request, Attempt):
            asked, reply = request.request, None
            with capturing() as captured:
                if isinstance(asked, ColdCall):
                    reply = await self._ask_cold(asked, self._opaque_cold)
                else:
                    reply = await self.arequest(asked)
            return Outcome(reply, captured.error)
        if isinstance(request, SingleFlight):
            return await self._once(request)
        if isinstance(request, Parallel):
            here = asyncio.get_running_loop()
            return await asyncio.to_thread(
                self._run_all, request, lambda operation: loops.call(self.front.arun(operation), here)
            )
        if isinstance(request, Sleep):
            return await asyncio.sleep(request.seconds)
        return await self._ask_hot(request)

    async def _ask_hot(self, request: Request) -> Any:
        try:
            return await driver_of(self.hot).arequest(request)
        except self._failures as error:
            if self._bypasses:
                raise HotFailed from error
            raise

    async def _ask_cold(self, request: ColdCall, cold: BaseCheckpointSaver[Any]) -> Any:
        if not self._is_loop_of_cold(asyncio.get_running_loop()) and postgres.is_renewable(cold):
            cold = await arenewed(cold)
        if ours := statements.amethod_of(cold, request.method):
            return await ours(*request.arguments, **request.options)
        if request.method == "setup" and not hasattr(cold, "asetup"):
            return await _setup(cold)
        answer = getattr(cold, "a" + request.method)(*request.arguments, **request.options)
        return [item async for item in answer] if request.method == "list" else await answer

    async def _once(self, request: SingleFlight) -> Any:
        key = (asyncio.get_running_loop(), *request.key)
        if (under_way := self._flights.join(key)) is not None:
            return await asyncio.shield(asyncio.wrap_future(under_way))
        try:
            return await self.front.arun(request.make())
        finally:
            self._flights.end(key)


async def _setup(cold: Any) -> None:
    """Call `setup` of a saver or store, which may be a coroutine function or block."""
    if inspect.iscoroutinefunction(cold.setup):
        await cold.setup()
    else:
        await asyncio.to_thread(cold.setup)


class _Connections:
    """Connections made in this process, each with the one it replaces, by the id of that."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Any, Any]] = {}
        self.ending: list[loops.Ending] = []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, keep the parent's connections alive without using them."""
        forks.keep((self.made, self.ending))
        self.made, self.ending = {}, []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()

    def close(self) -> None:
        """Close the blocking connections at the end of the process. The background loop closes the others."""
        for _, made in self.made.values():
            if not asyncio.iscoroutinefunction(made.close):
                made.close()


_connections = _Connections()
atexit.register(_connections.close)


def renewed(cold: C) -> C:
    """Return a copy of a blocking saver, with connections of this process."""
    connection: Any = cold.conn  # type: ignore[attr-defined]
    with _connections.lock:
        if id(connection) not in _connections.made:
            made = (
                postgres.pool_like(connection, opened=True)
                if postgres.is_pool(connection)
                else type(connection).connect(**postgres.settings_of(connection))
            )
            _connections.made[id(connection)] = (connection, made)
        made = _connections.made[id(connection)][1]
    return _copy_with(cold, conn=made, pipe=None, lock=threading.Lock())


async def arenewed(cold: C) -> C:
    """Return a copy of an asynchronous saver, with connections of the background loop. Call it on that loop."""
    connection: Any = cold.conn  # type: ignore[attr-defined]
    async with _connections.alock:
        if id(connection) not in _connections.made:
            if postgres.is_pool(connection):
                made = postgres.pool_like(connection, opened=False)
                await made.open()
            else:
                made = await type(connection).connect(**postgres.settings_of(connection))
            _connections.made[id(connection)] = (connection, made)
            _connections.ending.append(loops.Ending(made.close))
        made = _connections.made[id(connection)][1]
    return _copy_with(cold, conn=made, pipe=None, lock=asyncio.Lock(), loop=asyncio.get_running_loop())


def _copy_with(cold: C, **connected: Any) -> C:
    made = copy.copy(cold)
    if postgres.is_known_store(cold):  # else collecting the copy would stop the tasks of the store
        connected.update(_task=None, _ttl_sweeper_thread=None)
    for name, value in connected.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made
