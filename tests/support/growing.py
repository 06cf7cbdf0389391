"""Growing threads, and outcomes of calls."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.factories import checkpoint, config
from tests.support.uniform import Target, Uniform

from redis_saver._common.names import Keyspace

Step = Callable[[Uniform], Awaitable[Any]]


CONSTANT = "a value that is the same all along " * 20


def name(number: int) -> str:
    return f"c{number:06}"


def values(number: int, constant: int = 1) -> dict[str, Any]:
    return {"constant": f"{CONSTANT}{constant}", "n": f"value {number}"}


async def grow(
    uniform: Uniform, number: int, parent: int | None = None, *, thread: str = "thread", ns: str = "", constant: int = 1
) -> None:
    """Put checkpoint `number` on its parent with a new `n`. If `constant` equals `number`, `constant` is new, too."""
    versions = {"constant": f"{constant:032}", "n": f"{number:032}", "empty": f"{number:032}"}
    new = dict(versions) if parent is None or constant == number else {"n": versions["n"], "empty": versions["empty"]}
    made = checkpoint(values(number, constant), versions, name(number))
    run = "first" if number < 3 else "second" if number < 7 else "third"
    metadata = {"source": "loop", "step": number, "parents": {}, "run_id": run}
    where = config(thread, ns, name(parent) if parent else None)
    await uniform.put(where, made, metadata, new)


def keys(target: Target, thread: str = "thread") -> dict[str, bytes]:
    """Return the two keys of a thread, by their endings."""
    return dict(zip(("index", "data"), Keyspace(target.prefix).keys(thread), strict=True))


async def outcome(operation: Awaitable[Any]) -> Any:
    """Return the result of an operation, or its error."""
    try:
        return await operation
    except Exception as error:
        return error


async def until(holds: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until a condition holds. It may be an async function."""
    end = time.monotonic() + seconds
    while not (await found if inspect.isawaitable(found := holds()) else found):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def together(uniform: Uniform, *jobs: Coroutine[Any, Any, Any]) -> None:
    """Run jobs concurrently: each in an OS thread for a blocking saver, else each in a task."""
    if uniform.native_async:
        await asyncio.gather(*jobs)
    else:
        with ThreadPoolExecutor(len(jobs)) as pool:
            list(pool.map(asyncio.run, jobs))
