"""The drivers over two tiers: they answer requests to hot by hot's driver, and those to cold by the cold saver's methods."""

from __future__ import annotations

import asyncio
import atexit
import copy
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver._checkpoint.aio import AsyncRedisSaver
from redis_saver._checkpoint.saver import driver_of
from redis_saver._checkpoint.sync import RedisSaver
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
    SingleFlight,
    Tiered,
    TieredRequest,
    capturing,
)
from redis_saver.errors import LoopEnded

Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)


class TieredDriver(Driver[TieredRequest], Generic[Hot]):
    """A driver over two tiers."""

    def __init__(
        self,
        hot: Hot,
        cold: BaseCheckpointSaver[Any],
        opaque_cold: BaseCheckpointSaver[Any],
        *,
        bypasses: bool,
    ) -> None:
        """Drive both.

        Args:
            hot: The saver in front. A request goes to the driver that hot has at that moment.
            cold: The saver behind it.
            opaque_cold: Cold with the serializer that flushers write with (`opaque_copy.opaque_pair`).
            bypasses: Whether `HotFailed` is raised in an operation in place of hot's own error.
        """
        self.hot: Hot = hot
        self.cold: BaseCheckpointSaver[Any] = cold
        self._opaque_cold, self._bypasses = opaque_cold, bypasses
        self._failures = driver_of(hot).failures
        self._generation = forks.generation

    def over(self, hot: Hot, cold: BaseCheckpointSaver[Any]) -> Self:
        """The same driver over clones of both."""
        clone = copy.copy(self)
        clone.in_front = None
        clone.hot, clone.cold = hot, cold
        return clone

    def check_open(self) -> None:
        """Check that hot was not closed: without it, what cold says may be old.

        Raises:
            Closed: It was closed.
        """
        driver_of(self.hot).check_open()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from the one in which the driver was made."""
        forks.check()
        return self._generation != forks.generation


class _Flights:
    """The single flights of this process: work of OS threads that others wait for."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, forget them: the OS threads at work are the parent's."""
        self.lock, self.under_way = threading.Lock(), dict[tuple[str, ...], Future[None]]()


class SyncTieredDriver(BlockingDriver[TieredRequest], TieredDriver[RedisSaver]):
    """A driver over two blocking savers. For asyncio each operation runs in a worker thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As `TieredDriver`."""
        super().__init__(*arguments, **options)
        self._single_flight = _Flights()

    def request(self, request: TieredRequest) -> Any:
        """Answer a request."""
        if type(request) is Call:
            return self._ask_hot(request)
        if isinstance(request, ColdCall):
            return self._ask_cold(request, self.cold)
        if isinstance(request, Attempt):
            reply = None
            with capturing() as captured:
                reply = (
                    self._ask_cold(request.request, self._opaque_cold)
                    if isinstance(request.request, ColdCall)
                    else self.request(request.request)
                )
            return Outcome(reply, captured.error)
        if isinstance(request, SingleFlight):
            return self._once(request)
        if isinstance(request, Sleep):
            return time.sleep(request.seconds)
        return self._ask_hot(request)

    def _ask_hot(self, request: Request) -> Any:
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
        flight = self._single_flight
        with flight.lock:
            under_way = flight.under_way.get(request.key)
            if under_way is None:
                mine = flight.under_way[request.key] = Future()
        if under_way is not None:
            return under_way.result()
        try:
            return self.front.run(request.make())
        finally:
            with flight.lock:
                del flight.under_way[request.key]
            mine.set_result(None)


class AsyncTieredDriver(TieredDriver[AsyncRedisSaver]):
    """A driver over two savers for asyncio, which runs operations on the loop where cold answers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As `TieredDriver`."""
        super().__init__(*arguments, **options)
        self._under_way = dict[tuple[Any, ...], asyncio.Future[None]]()

    def run(self, operation: Tiered[T]) -> T:
        """Run an operation to its result, for an OS thread that runs no event loop."""
        return self.call(lambda: super(AsyncTieredDriver, self).arun(operation))

    async def arun(self, operation: Tiered[T]) -> T:
        """`run` for asyncio."""
        return await self.on_loop_of_cold(lambda: super(AsyncTieredDriver, self).arun(operation))

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine where cold answers, for an OS thread that runs no event loop."""
        loop = self._loop_of_others()
        return loops.call(make(), loop)

    async def on_loop_of_cold(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on this loop if cold answers here; if not, on the loop where cold answers."""
        if self._is_loop_of_cold(asyncio.get_running_loop()):
            return await make()
        loop = self._loop_of_others()
        return await loops.acall(make(), loop)

    def _is_loop_of_cold(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the cold saver that was given answers on a loop."""
        bound = getattr(self.cold, "loop", None)
        return bound is None or (bound is loop and not self._is_forked)

    def _loop_of_others(self) -> asyncio.AbstractEventLoop | None:
        """The loop on which cold answers callers of other loops; None for the background loop."""
        bound: asyncio.AbstractEventLoop | None = getattr(self.cold, "loop", None)
        if bound is None or postgres.is_renewable(self.cold):
            return None
        if self._is_forked:
            raise LoopEnded(
                f"cold={type(self.cold).__name__} is bound to an event loop of the process that this one was forked from. Make the cold saver, and the saver over "
                "both tiers, in this process"
            )
        return bound

    def request(self, request: TieredRequest) -> Any:
        """Answer a request."""
        return self.call(lambda: self._answer(request))

    def arequest(self, request: TieredRequest) -> Awaitable[Any]:
        """`request` for asyncio."""
        if type(request) is Call:
            return self._ask_hot(request)
        return self.on_loop_of_cold(lambda: self._answer(request))

    async def _answer(self, request: TieredRequest) -> Any:
        if isinstance(request, ColdCall):
            return await self._ask_cold(request, self.cold)
        if isinstance(request, Attempt):
            reply = None
            with capturing() as captured:
                reply = await (
                    self._ask_cold(request.request, self._opaque_cold)
                    if isinstance(request.request, ColdCall)
                    else self.arequest(request.request)
                )
            return Outcome(reply, captured.error)
        if isinstance(request, SingleFlight):
            return await self._once(request)
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
        return [one async for one in answer] if request.method == "list" else await answer

    async def _once(self, request: SingleFlight) -> Any:
        key = (asyncio.get_running_loop(), *request.key)
        if (under_way := self._under_way.get(key)) is not None:
            return await asyncio.shield(under_way)
        mine = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.front.arun(request.make())
        finally:
            del self._under_way[key]
            mine.set_result(None)


async def _setup(cold: Any) -> None:
    """Call `setup` of a saver or store, whether it is for asyncio or blocks."""
    if inspect.iscoroutinefunction(cold.setup):
        await cold.setup()
    else:
        await asyncio.to_thread(cold.setup)


C = TypeVar("C")


class _Renewed:
    """The connections made in this process, each together with the connection that it replaces, by the id of the latter."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[Any, Any]] = {}
        self.ending: list[loops.Ending] = []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, do not touch the parent's connections."""
        forks.keep((self.of, self.ending))
        self.of, self.ending = {}, []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()

    def close(self) -> None:
        """Close the blocking connections at the end of the process. The background loop closes the others."""
        for _, made in self.of.values():
            if not asyncio.iscoroutinefunction(made.close):
                made.close()


_renewed = _Renewed()
atexit.register(_renewed.close)


def renewed(cold: C) -> C:
    """A blocking saver with connections of this process."""
    given: Any = cold.conn  # type: ignore[attr-defined]
    with _renewed.lock:
        if id(given) not in _renewed.of:
            made = (
                postgres.pool_like(given, opened=True)
                if postgres.is_pool(given)
                else type(given).connect(**postgres.settings_of(given))
            )
            _renewed.of[id(given)] = (given, made)
        made = _renewed.of[id(given)][1]
    return _on(cold, conn=made, pipe=None, lock=threading.Lock())


async def arenewed(cold: C) -> C:
    """An asynchronous saver with connections of the background loop. Call it on that loop."""
    given: Any = cold.conn  # type: ignore[attr-defined]
    async with _renewed.alock:
        if id(given) not in _renewed.of:
            if postgres.is_pool(given):
                made = postgres.pool_like(given, opened=False)
                await made.open()
            else:
                made = await type(given).connect(**postgres.settings_of(given))
            _renewed.of[id(given)] = (given, made)
            _renewed.ending.append(loops.Ending(made.close))
        made = _renewed.of[id(given)][1]
    return _on(cold, conn=made, pipe=None, lock=asyncio.Lock(), loop=asyncio.get_running_loop())


def _on(cold: C, **connected: Any) -> C:
    made = copy.copy(cold)
    if postgres.is_known_store(cold):  # when it is collected, it would end what the store that was given still does
        connected.update(_task=None, _ttl_sweeper_thread=None)
    for name, value in connected.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made
