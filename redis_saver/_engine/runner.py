"""Running operations: the pump carries their requests out, and replies and errors in; the drivers answer requests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic

from redis_saver._engine.requests import Page, R, Sleep, T


class Pump(Generic[R, T]):
    """One operation while it runs. Iterating gives its requests; the body of a `with` answers one of them.

        for request in pump:
            with pump:
                pump.reply = answer(request)
        return pump.result

    Every error of the body is raised in the operation, at the `yield`. So the operation can repair what the error is
    about, and release what it holds. Only if the caller itself is stopped (KeyboardInterrupt, a cancelled task), the
    operation is closed, and can ask for nothing any more.
    """

    result: T

    def __init__(self, operation: Generator[R, Any, T]) -> None:
        self._operation = operation
        self._error: Exception | None = None
        self.reply: Any = None

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        reply, error = self.reply, self._error
        self.reply = self._error = None
        try:
            return self._operation.send(reply) if error is None else self._operation.throw(error)
        except StopIteration as end:
            self.result = end.value
            raise

    def __enter__(self) -> None:
        """Begin to answer the last request."""

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self._error = error
            return True
        if error is not None:
            self.close()
        return False

    def close(self) -> None:
        """Close the operation at the `yield` where it waits. Nothing happens if it has ended."""
        self._operation.close()


def run(operation: Generator[R, Any, T], answer: Callable[[R], Any]) -> T:
    """Run an operation to its result. It treats errors of `answer` as a `Pump` does."""
    try:
        request = operation.send(None)
        while True:
            try:
                reply = answer(request)
            except Exception as error:  # noqa: BLE001, PERF203 - it is raised in the operation
                request = operation.throw(error)
            else:
                request, reply = operation.send(reply), None  # so that no two replies are in memory at once
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        operation.close()


async def arun(operation: Generator[R, Any, T], answer: Callable[[R], Awaitable[Any]]) -> T:
    """`run` for asyncio."""
    try:
        request = operation.send(None)
        while True:
            try:
                reply = await answer(request)
            except Exception as error:  # noqa: BLE001, PERF203 - it is raised in the operation
                request = operation.throw(error)
            else:
                request, reply = operation.send(reply), None  # so that no two replies are in memory at once
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        operation.close()


class Driver(ABC, Generic[R]):
    """Runs operations. A saver, the flusher and the migration each hold one.

    A subclass answers requests, for callers that block (`request`) and for tasks of an event loop (`arequest`).
    """

    in_front: Driver[R] | None = None
    """A `DriverWrapper` that stands in front of this one."""

    @property
    def front(self) -> Driver[R]:
        """Return the outermost wrapper of this driver, or the driver itself. Operations of requests run there."""
        return self if self.in_front is None else self.in_front.front

    def check_open(self) -> None:
        """Check that its connections were not closed. Each request that needs one does so too.

        Raises:
            Closed: They were closed, in this process.
        """

    @abstractmethod
    def request(self, request: R) -> Any:
        """Answer a request.

        Raises:
            Exception: The server could not be reached, or its reply is an error.
        """

    @abstractmethod
    def arequest(self, request: R) -> Awaitable[Any]:
        """`request` for asyncio."""

    def run(self, operation: Generator[R, Any, T]) -> T:
        """Run an operation to its result."""
        return run(operation, self.request)

    def arun(self, operation: Generator[R, Any, T]) -> Coroutine[Any, Any, T]:
        """`run` for asyncio."""
        return arun(operation, self.arequest)

    async def arun_sleeping(self, operation: Generator[R, Any, T]) -> T:
        """`arun` for an operation that mostly sleeps: only its requests may take a worker thread."""
        return await arun(operation, self.arequest)

    def stream(self, operation: Generator[R | Page[T], Any, None]) -> Iterator[T]:
        """Run an operation that answers in pages, and give their items. Closing the iterator closes the operation."""
        for page in self._pages(operation):
            yield from page

    async def astream(self, operation: Generator[R | Page[T], Any, None]) -> AsyncIterator[T]:
        """`stream` for asyncio."""
        pump = Pump(operation)
        try:
            for request in pump:
                if isinstance(request, Page):
                    for item in request.items:
                        yield item
                    continue
                with pump:
                    pump.reply = await self.arequest(request)
        finally:
            pump.close()

    def _pages(self, operation: Generator[R | Page[T], Any, None]) -> Iterator[Sequence[T]]:
        pump = Pump(operation)
        try:
            for request in pump:
                if isinstance(request, Page):
                    yield request.items
                    continue
                with pump:
                    pump.reply = self.request(request)
        finally:
            pump.close()


class BlockingDriver(Driver[R]):
    """A driver whose answers block: for asyncio it runs in worker threads."""

    async def arequest(self, request: R) -> Any:
        """`request` for asyncio. Sleeping takes no worker thread."""
        if isinstance(request, Sleep):
            return await asyncio.sleep(request.seconds)
        return await asyncio.to_thread(self.request, request)

    async def arun(self, operation: Generator[R, Any, T]) -> T:
        """`run` for asyncio, the whole operation in one worker thread."""
        return await asyncio.to_thread(self.run, operation)

    async def astream(self, operation: Generator[R | Page[T], Any, None]) -> AsyncIterator[T]:
        """`stream` for asyncio, each page in a worker thread."""
        pages = self._pages(operation)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for item in page:
                yield item


class DriverWrapper(Driver[R]):
    """A driver in front of another, for tests and measurements: a subclass counts, delays, drops or fails what passes.

        class Counting(DriverWrapper):
            count = 0

            def around(self, request):
                self.count += 1
                return (yield request)

        saver._driver = Counting(saver._driver)

    All other attributes are those of the wrapped driver.
    """

    def __init__(self, wrapped: Driver[R]) -> None:
        """Stand in front of a driver."""
        self.wrapped: Driver[R] = wrapped
        wrapped.in_front = self

    def around(self, request: R) -> Generator[R, Any, Any]:
        """Return the reply to a request. The wrapped driver runs this small operation."""
        return (yield request)

    def check_open(self) -> None:
        """As the wrapped driver."""
        self.wrapped.check_open()

    def request(self, request: R) -> Any:
        """Answer a request, as `around` does."""
        return self.wrapped.run(self.around(request))

    def arequest(self, request: R) -> Awaitable[Any]:
        """`request` for asyncio."""
        return self.wrapped.arun(self.around(request))

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # `copy` asks before there is one
            raise AttributeError(name)
        return getattr(self.wrapped, name)
