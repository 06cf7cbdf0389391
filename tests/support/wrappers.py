"""Drivers that wrap a saver's own: to fail, to repeat, or to let something happen in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis_saver._engine.runner import DriverWrapper


def script_of(request: Any) -> Any:
    """Return the script that a request runs, or None."""
    return getattr(request, "script", None)


class Around(DriverWrapper[Any]):
    """A driver that runs a generator for each request, which yields it, or others, and returns the reply."""

    def __init__(self, saver: Any, around: Callable[[Any], Generator[Any, Any, Any]]) -> None:
        super().__init__(saver._driver)
        self.around = around  # type: ignore[method-assign]
        saver._driver = self


class Meanwhile(DriverWrapper[Any]):
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
