"""Threads that a run owns, and the server's record of the owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.uniform import Target, Uniform

from redis_saver._common.names import Keyspace

THREAD = "thread"


async def begin(uniform: Uniform, stack: AsyncExitStack, thread: str = THREAD, **options: Any) -> Any:
    """Enter a block of `own` that ends with the stack."""
    return await enter(uniform, stack, uniform.saver.own(thread, **options))


async def enter(uniform: Uniform, stack: AsyncExitStack, owned: Any) -> Any:
    return await stack.enter_async_context(owned) if uniform.native_async else stack.enter_context(owned)


@asynccontextmanager
async def owning(uniform: Uniform, thread: str = THREAD, **options: Any) -> AsyncIterator[Any]:
    """`own` in the saver's flavour."""
    async with AsyncExitStack() as stack:
        yield await begin(uniform, stack, thread, **options)


def owner_key(target: Target) -> bytes:
    return Keyspace(target.prefix).owner_key(THREAD)


def waiters_key(target: Target) -> bytes:
    return Keyspace(target.prefix).owner_keys(THREAD)[1]


def set_lease(target: Target, until: int = 1) -> None:
    """Let the lease end at a time in milliseconds, by default long ago."""
    token, _, rest = target.raw.get(owner_key(target)).split(b" ", 2)
    target.raw.set(owner_key(target), b" ".join([token, b"%d" % until, rest]), keepttl=True)


def server_time(target: Target) -> float:
    """Return the server's clock in milliseconds."""
    named = {"target_nodes": target.raw.get_random_node()} if target.name == "cluster" else {}
    seconds, micros = target.raw.time(**named)
    return float(seconds * 1000 + micros / 1000)


def epoch(given: Any) -> int:
    """Return the epoch in the token of a config."""
    return int(given["configurable"]["thread_owner"].split("-")[0])
