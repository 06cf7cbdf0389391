"""Drivers that wrap a saver's own: to fail, to repeat, or to let something happen in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis_saver._engine.runner import Driver


def script_of(request: Any) -> Any:
    """Return the script that a request runs, or None."""
    return getattr(request, "script", None)


class DriverWrapper(Driver[Any]):
    """A driver around another one. A subclass counts, delays, drops or fails requests.

        class Counting(DriverWrapper):
            count = 0

            def around(self, request):
                self.count += 1
                return (yield request)

        saver._driver = Counting(saver._driver)

    Operations that the wrapped driver runs for a request take the way of all others, through the outermost wrapper.
    All other attributes are those of the wrapped driver.
    """

    in_front: DriverWrapper | None = None

    def __init__(self, wrapped: Any) -> None:
        """Wrap a driver."""
        self.wrapped = wrapped
        if isinstance(wrapped, DriverWrapper):
            wrapped.in_front = self
        else:
            wrapped.run = lambda operation: self.front.run(operation)
            wrapped.arun = lambda operation: self.front.arun(operation)

    @property
    def front(self) -> DriverWrapper:
        return self if self.in_front is None else self.in_front.front

    def around(self, request: Any) -> Generator[Any, Any, Any]:
        """Operation that answers a request. The wrapped driver runs it."""
        return (yield request)

    def check_open(self) -> None:
        self.wrapped.check_open()

    def over(self, *tiers: Any) -> Any:
        """A driver of two tiers over others is not wrapped."""
        clone = self.wrapped.over(*tiers)
        for name in ("run", "arun"):
            clone.__dict__.pop(name, None)
        return clone

    def request(self, request: Any) -> Any:
        return type(self.wrapped).run(self.wrapped, self.around(request))

    def arequest(self, request: Any) -> Any:
        return type(self.wrapped).arun(self.wrapped, self.around(request))

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # `copy` asks before there is one
            raise AttributeError(name)
        return getattr(self.wrapped, name)


class Around(DriverWrapper):
    """A driver that runs a generator for each request, which yields it, or others, and returns the reply."""

    def __init__(self, saver: Any, around: Callable[[Any], Generator[Any, Any, Any]]) -> None:
        super().__init__(saver._driver)
        self.around = around  # type: ignore[method-assign]
        saver._driver = self


def noted(saver: Any) -> list[tuple[Any, Any]]:
    """Return a list that collects a saver's requests and their replies from now on."""
    found = list[tuple[Any, Any]]()

    def around(request: Any) -> Any:
        reply = yield request
        found.append((request, reply))
        return reply

    Around(saver, around)
    return found


def before_each(saver: Any, script: Any, act: Callable[[int], object]) -> None:
    """Call a function before each run of a script, with the number of that run, from 1 on."""
    numbers = itertools.count(1)

    def around(request: Any) -> Any:
        if script_of(request) is script:
            act(next(numbers))
        return (yield request)

    Around(saver, around)


def requests_of(saver: Any, of: Callable[[Any], Any] = lambda request: request) -> list[Any]:
    """Return a list that collects the requests of a saver, or of a store, from now on: what `of` returns, except None."""
    found: list[Any] = []

    def around(request: Any) -> Any:
        if (one := of(request)) is not None:
            found.append(one)
        return (yield request)

    Around(saver, around)
    return found


def fail(saver: Any, error: Exception) -> None:
    """Let each request of a saver fail from now on."""

    def around(request: Any) -> Generator[Any, Any, Any]:
        raise error
        yield

    Around(saver, around)


class Meanwhile(DriverWrapper):
    """A driver that runs something before or after a request: what `before` or `after` returns for it, if anything.

    A blocking driver runs it on another OS thread.
    """

    def __init__(self, saver: Any, before: Callable[[Any], Any], after: Callable[[Any], Any] = lambda _: None) -> None:
        super().__init__(saver._driver)
        self._before, self._after = before, after
        saver._driver = self

    def request(self, request: Any) -> Any:
        elsewhere(self._before(request))
        answer = self.wrapped.request(request)
        elsewhere(self._after(request))
        return answer

    async def arequest(self, request: Any) -> Any:
        if act := self._before(request):
            await act()
        answer = await self.wrapped.arequest(request)
        if act := self._after(request):
            await act()
        return answer


def elsewhere(act: Any) -> None:
    """Run an async function on its own OS thread; do nothing for None."""

    async def drive() -> None:
        await act()

    if act is not None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: asyncio.run(drive())).result()


def fails_on(saver: Any, is_wrong: Callable[[Any], Any], error: Exception) -> None:
    """Let some requests of a saver fail, such as all calls of cold."""

    def around(request: Any) -> Any:
        if is_wrong(request):
            raise error
        return (yield request)

    Around(saver, around)


async def asked(uniform: Any, request: Any) -> Any:
    """Return the reply of a saver's driver."""
    return (
        await uniform.saver._driver.arequest(request)
        if uniform.native_async
        else uniform.saver._driver.request(request)
    )


async def ran(uniform: Any, operation: Any) -> Any:
    """Return the result of an operation."""
    if uniform.native_async:
        return await uniform.saver._driver.arun(operation)
    return await asyncio.to_thread(uniform.saver._driver.run, operation)
