"""Run operations. The pump takes each request from an operation, and gives it the reply or the error of the driver."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic

from redis_saver._engine.requests import Page, R, Sleep, T


class Pump(Generic[R, T]):
    """A running operation. Iterate over its requests, and answer each in a `with` block.

        for request in pump:
            with pump:
                pump.reply = answer(request)
        return pump.result

    An error in the block is raised in the operation, at the `yield`. So the operation can handle it and release what it
    holds. If the caller itself is stopped (KeyboardInterrupt, a cancelled task), the operation is closed and can make
    no more requests.
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
        """Start to answer the last request."""

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self._error = error
            return True
        if error is not None:
            self.close()
        return False

    def next_page(self) -> Generator[Any, Any, Sequence[Any] | None]:
        """Pass requests on until the operation yields a page. Returns the page's items, or None at the end."""
        for request in self:
            if isinstance(request, Page):
                return request.items
            with self:
                self.reply = yield request
        return None

    def close(self) -> None:
        """Close the operation at its current `yield`. If it has ended, do nothing."""
        self._operation.close()


def run(operation: Generator[R, Any, T], answer: Callable[[R], Any]) -> T:
    """Run an operation and return its result. Errors of `answer` are raised in the operation, as by a `Pump`."""
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

    def check_open(self) -> None:
        """Check that the driver is open. Each request that needs a connection does so, too.

        Raises:
            Closed: This process closed it.
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
        """Run an operation and return its result."""
        return run(operation, self.request)

    def arun(self, operation: Generator[R, Any, T]) -> Coroutine[Any, Any, T]:
        """`run` for asyncio."""
        return arun(operation, self.arequest)

    async def arun_sleeping(self, operation: Generator[R, Any, T]) -> T:
        """`arun` for an operation that mostly sleeps. Only its requests may use a worker thread."""
        return await arun(operation, self._answered_apart)

    async def _answered_apart(self, request: R) -> Any:
        """Answer a request in a task of its own, so that a cancellation always ends the caller.

        Before Python 3.12, `asyncio.wait_for` swallows one that arrives just as a command was sent, and redis-py uses
        it. A short call then ends with its reply, but one that polls would go on for ever.
        """
        answering = asyncio.ensure_future(self.arequest(request))
        try:
            await asyncio.wait([answering])
        except asyncio.CancelledError:
            answering.cancel()
            raise
        return answering.result()

    def stream(self, operation: Generator[R | Page[T], Any, None]) -> Iterator[T]:
        """Yield the items of an operation that streams. Closing the iterator closes the operation."""
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
    """A driver that blocks. For asyncio it runs in worker threads."""

    async def arequest(self, request: R) -> Any:
        """`request` for asyncio. Sleeping uses no worker thread."""
        if isinstance(request, Sleep):
            return await asyncio.sleep(request.seconds)
        return await asyncio.to_thread(self.request, request)

    async def arun(self, operation: Generator[R, Any, T]) -> T:
        """`run` for asyncio. The whole operation runs in one worker thread."""
        return await asyncio.to_thread(self.run, operation)

    async def astream(self, operation: Generator[R | Page[T], Any, None]) -> AsyncIterator[T]:
        """`stream` for asyncio. Each page is read in a worker thread."""
        pages = self._pages(operation)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for item in page:
                yield item
