"""Drivers over two tiers: hot's driver answers requests to hot, and the cold saver's methods answer cold calls."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from typing_extensions import Self

from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver
from redis_saver._client import loops
from redis_saver._common import forks, postgres
from redis_saver._common.display import kind_of
from redis_saver._engine.counting import Counting, Measured
from redis_saver._engine.requests import Ask, Call, Request, Sleep, T
from redis_saver._engine.runner import BlockingDriver, Driver
from redis_saver._tiered import postgres as statements
from redis_saver._tiered.carrying import Direct, Way
from redis_saver._tiered.connections import arenewed, renewed
from redis_saver._tiered.requests import (
    ColdCall,
    HotFailed,
    Parallel,
    SingleFlight,
    Tiered,
    TieredRequest,
    TimeLimited,
    setup,
)
from redis_saver._tiered.timeouts import ColdTimeouts
from redis_saver._tiered.twins import with_own_lock
from redis_saver.errors import ColdTimeout, LoopEnded

Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)


class _Flights:
    """The single flights of this process."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        self._lock, self._under_way = threading.Lock(), dict[tuple[Any, ...], Future[None]]()

    def join(self, key: tuple[Any, ...]) -> Future[None] | None:
        """Return the future of a flight under way. None: the caller begins one (`flying`)."""
        with self._lock:
            if (under_way := self._under_way.get(key)) is None:
                self._under_way[key] = Future()
            return under_way

    @contextlib.contextmanager
    def flying(self, key: tuple[Any, ...]) -> Iterator[None]:
        """Return the context of a flight. If cold does not answer it, nobody who joined it asks cold again."""
        late: ColdTimeout | None = None
        try:
            yield
        except ColdTimeout as error:
            late = error
            raise
        finally:
            with self._lock:
                flight = self._under_way.pop(key)
            flight.set_result(None) if late is None else flight.set_exception(ColdTimeout(*late.args))


class TieredDriver(Driver[TieredRequest], Generic[Hot]):
    """A driver over two tiers."""

    def __init__(
        self, hot: Hot, cold: Any, carrier: Direct, *, bypasses: bool, cold_timeout: float | None = None
    ) -> None:
        """Make a driver.

        Args:
            hot: The hot saver or store. A request goes to the driver that it has at that moment.
            cold: The cold saver or store.
            carrier: How values are carried between them.
            bypasses: True: operations get `HotFailed` instead of hot's own error.
            cold_timeout: Limit of reads of cold in seconds. None: no limit.
        """
        self.hot: Hot = hot
        self.cold: Any = cold
        self._carrier, self._bypasses = carrier, bypasses
        self._failures = hot._driver.failures  # noqa: SLF001 - it is of ours
        self._flights, self._timeouts = _Flights(), ColdTimeouts(cold, cold_timeout)
        self._generation = forks.generation

    def over(self, hot: Hot, cold: Any, carrier: Direct) -> Self:
        clone = copy.copy(self)
        clone.hot, clone.cold, clone._carrier = hot, cold, carrier  # noqa: SLF001 - it is of this class
        return clone

    def _run_all(self, request: Parallel, run: Callable[[Tiered[Any]], Any]) -> list[Any]:
        """Run operations in new OS threads. At the deadline the caller stops waiting, and unfinished ones continue."""
        results = list[Any]()

        def work() -> None:
            with contextlib.suppress(LoopEnded):
                while (operation := request.take()) is not None:
                    results.append(run(operation))

        workers = [threading.Thread(target=work, daemon=True) for _ in range(request.workers)]
        try:
            for worker in workers:
                worker.start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            work()
        for worker in workers:
            if worker.ident is not None:
                worker.join(None if math.isinf(request.until) else max(0.0, request.until - time.monotonic()))
        return results

    @contextlib.contextmanager
    def _reading(self, way: Way) -> Iterator[None]:
        """Context of a call of cold. Names the method that cold lacks, because LangGraph's error has no text."""
        try:
            with way.reading:
                yield
        except NotImplementedError as error:
            if error.args:
                raise
            raise NotImplementedError(f"cold={type(self.cold).__name__} has no {way.request.method}()") from error

    @property
    def _is_forked(self) -> bool:
        """True in a child of the process that made the driver."""
        forks.check()
        return self._generation != forks.generation


class SyncTieredDriver(BlockingDriver[TieredRequest], TieredDriver[RedisSaver]):
    """A driver of two blocking savers. For asyncio, each operation runs in a worker thread."""

    def run_beside(self, operation: Tiered[T]) -> T:
        return self.run(operation)

    def request(self, request: TieredRequest) -> Any:
        if isinstance(request, ColdCall):
            return self._ask_cold(request)
        if isinstance(request, SingleFlight):
            return self._once(request)
        if isinstance(request, TimeLimited):
            return self._timeouts.run(request.what, lambda: self.run(request.make()))
        if isinstance(request, Parallel):
            return self._run_all(request, self.run)
        if isinstance(request, Sleep):
            return time.sleep(request.seconds)
        try:
            return self.hot._driver.request(request)  # noqa: SLF001 - it is of ours
        except self._failures as error:
            if self._bypasses and not isinstance(request, Ask):  # the provider of keys failed, not hot
                raise HotFailed from error
            raise

    def _ask_cold(self, request: ColdCall) -> Any:
        self.hot._driver.check_open()  # noqa: SLF001 - without hot, cold's answers may be old
        way = self._carrier.way(request)
        if way.sealed is not None:
            return way.marked(self.run(way.sealed))
        return self._timeouts.run(request.method, lambda: self._call(way)) if request.is_read else self._call(way)

    def _call(self, way: Way) -> Any:
        cold, request = with_own_lock(renewed(way.cold) if self._is_forked else way.cold), way.request
        call = request.method in statements.METHODS and statements.method_of(cold, request.method)
        with self._reading(way):
            answer = (call or getattr(cold, request.method))(*request.arguments, **request.options)
            answer = list(answer) if request.method == "list" else answer
        return way.marked(self._carrier.checked(request, answer))

    def _once(self, request: SingleFlight) -> Any:
        if (under_way := self._flights.join(request.key)) is not None:
            return under_way.result()
        with self._flights.flying(request.key):
            return self.run(request.make())


class AsyncTieredDriver(TieredDriver[AsyncRedisSaver]):
    """A driver of two asyncio savers. It runs operations on the loop where cold answers."""

    def run(self, operation: Tiered[T]) -> T:
        """Run an operation to its result, called on an OS thread without an event loop."""
        loop = self._loop_of_others()
        return loops.call(super().arun(operation), loop)

    def run_beside(self, operation: Tiered[T]) -> T:
        """Run an operation, called on an OS thread of the flusher. Uses cold's own connections if cold's loop runs.

        Raises:
            LoopEnded: The loop does not run, or ended meanwhile.
        """
        bound: asyncio.AbstractEventLoop | None = getattr(self.cold, "loop", None)
        if bound is None or not bound.is_running() or self._is_forked:
            bound = self._loop_of_others()
        return loops.call(self.arun(operation), bound)

    async def arun(self, operation: Tiered[T]) -> T:
        return await self.on_loop_of_cold(lambda: super(AsyncTieredDriver, self).arun(operation))

    async def on_loop_of_cold(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop where cold answers: this one, or another."""
        if self._is_loop_of_cold():
            return await make()
        loop = self._loop_of_others()
        return await loops.acall(make(), loop)

    def _is_loop_of_cold(self) -> bool:
        """True if the cold saver answers on the running loop with its own connections."""
        bound = getattr(self.cold, "loop", None)
        return bound is None or (bound is asyncio.get_running_loop() and not self._is_forked)

    def _loop_of_others(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which cold answers calls from other loops. None: the background loop."""
        bound: asyncio.AbstractEventLoop | None = getattr(self.cold, "loop", None)
        if bound is None or postgres.is_renewable(self.cold):
            return None
        if self._is_forked:
            raise LoopEnded(
                f"cold={type(self.cold).__name__} is bound to an event loop of the process that forked this one. Make "
                "the cold saver and the saver over both tiers in this process, after the fork"
            )
        return bound

    def request(self, request: TieredRequest) -> Any:
        loop = self._loop_of_others()
        return loops.call(self._answer(request), loop)

    def arequest(self, request: TieredRequest) -> Awaitable[Any]:
        if type(request) is Call:
            return self._ask_hot(request)
        return self.on_loop_of_cold(lambda: self._answer(request))

    async def _answer(self, request: TieredRequest) -> Any:
        if isinstance(request, ColdCall):
            return await self._ask_cold(request)
        if isinstance(request, SingleFlight):
            return await self._once(request)
        if isinstance(request, TimeLimited):
            return await self._timeouts.arun(request.what, lambda: self.arun(request.make()), cancels=False)
        if isinstance(request, Parallel):
            here = asyncio.get_running_loop()
            return await asyncio.to_thread(
                self._run_all, request, lambda operation: loops.call(self.arun(operation), here)
            )
        if isinstance(request, Sleep):
            return await asyncio.sleep(request.seconds)
        return await self._ask_hot(request)

    async def _ask_hot(self, request: Request) -> Any:
        try:
            return await self.hot._driver.arequest(request)  # noqa: SLF001 - it is of ours
        except self._failures as error:
            if self._bypasses and not isinstance(request, Ask):  # the provider of keys failed, not hot
                raise HotFailed from error
            raise

    async def _ask_cold(self, request: ColdCall) -> Any:
        self.hot._driver.check_open()  # noqa: SLF001 - without hot, cold's answers may be old
        way = self._carrier.way(request)
        if way.sealed is not None:
            return way.marked(await self.arun(way.sealed))
        if request.is_read:
            return await self._timeouts.arun(request.method, lambda: self._call(way))
        return await self._call(way)

    async def _call(self, way: Way) -> Any:
        request, cold = way.request, with_own_lock(way.cold if self._is_loop_of_cold() else await arenewed(way.cold))
        call: Any = request.method in statements.METHODS and statements.amethod_of(cold, request.method)
        with self._reading(way):
            answer = (call or _amethod(cold, request.method))(*request.arguments, **request.options)
            answer = [item async for item in answer] if request.method == "list" else await answer
        return way.marked(self._carrier.checked(request, answer))

    async def _once(self, request: SingleFlight) -> Any:
        key = (asyncio.get_running_loop(), *request.key)
        if (under_way := self._flights.join(key)) is not None:
            return await asyncio.shield(asyncio.wrap_future(under_way))
        with self._flights.flying(key):
            return await self.arun(request.make())


def _amethod(cold: Any, method: str) -> Callable[..., Any]:
    """Return a method for asyncio. `setup` may have no `a`, and is a coroutine function then, or blocks."""
    if method != "setup" or hasattr(cold, "asetup"):
        return getattr(cold, "a" + method)  # type: ignore[no-any-return]
    return cold.setup if inspect.iscoroutinefunction(cold.setup) else partial(asyncio.to_thread, cold.setup)


class HotAndCold:
    """Base class of the savers and stores over two tiers."""

    hot: Any
    cold: Any
    _context: Any
    _counting: Counting
    _hot_class: ClassVar[type[Any]]
    _driver_class: ClassVar[type[Any]]
    _run: Callable[..., Any]
    _arun: Callable[..., Awaitable[Any]]

    @classmethod
    def _check_tiers(cls, hot: object, cold: object, kind: type[Any], wanted: str) -> None:
        if not isinstance(hot, cls._hot_class):
            raise TypeError(f"{cls.__name__}: hot is {kind_of(hot)}; it has to be of {cls._hot_class.__name__}")
        if not isinstance(cold, kind) or cold is hot:
            raise TypeError(f"{cls.__name__}: cold is {kind_of(cold)}; it has to be another {wanted}")

    async def asetup(self) -> None:
        """Set up both tiers: check hot's server, and create cold's tables by its `setup`, if it has one.

        Call it when you deploy rather than in each worker, because it may need more rights than a worker has.

        Raises:
            UnsupportedServer: Hot's server is too old.
        """
        await self.hot.asetup()
        await self._arun(setup(self.cold))

    def _measured(self) -> Measured:
        of_hot: Measured = self.hot._measured()  # noqa: SLF001 - it is of ours
        return of_hot._replace(counting=self._counting, sources=(self._context.counts, *of_hot.sources))


class SyncTiers(HotAndCold):
    """A blocking saver or store over two tiers."""

    _driver_class = SyncTieredDriver

    def setup(self) -> None:
        """Set up both tiers, as `asetup` does."""
        self.hot.setup()
        self._run(setup(self.cold))


class AsyncTiers(HotAndCold):
    """An asyncio saver or store over two tiers."""

    _driver_class = AsyncTieredDriver

    async def setup(self) -> None:
        """Set up both tiers, as `asetup` does."""
        await self.asetup()
