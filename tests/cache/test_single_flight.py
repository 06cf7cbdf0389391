"""Single flight: one of a process's callers computes a missing entry. No caller waits forever or for itself."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from redis_saver import EncodeError
from redis_saver._cache import flights
from redis_saver._engine.requests import Sleep
from tests.support.caching import UniformCache, cache_of
from tests.support.growing import until
from tests.support.uniform import Target
from tests.support.wrappers import fails_on, requests_of

pytestmark = pytest.mark.also_on(cluster="sync", redis62="sync", valkey="async")

A, K, L = ("a",), (("a",), "k"), (("b",), "l")
LONG = "100s"
"""Longer than any test takes."""


def alone(call: Any) -> asyncio.Task[Any]:
    """Start a task with an empty context, like an unrelated caller."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, call)


class Computing:
    """Callers that compute missing entries."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds, self.computed = seconds, Counter[Any]()

    async def call(self, cache: UniformCache, *names: Any) -> dict[Any, Any]:
        found = await cache.in_thread("get", list(names))
        missing = [name for name in names if name not in found]
        self.computed.update(missing)
        if missing:
            await asyncio.sleep(self.seconds)
            await cache.in_thread("set", {name: (repr(name), None) for name in missing})
        return {**found, **{name: repr(name) for name in missing}}


async def together(*calls: Any) -> list[Any]:
    """Run calls concurrently, each in an empty context of its own."""
    return await asyncio.wait_for(asyncio.gather(*(alone(call) for call in calls)), 60)


async def get(cache: UniformCache, *names: Any) -> Any:
    """Look up entries as an unrelated caller."""
    return (await together(cache.in_thread("get", list(names))))[0]


async def test_one_of_twelve_callers_computes(target: Target) -> None:
    cache, computing = cache_of(target, single_flight=LONG), Computing()
    answers = await together(*(computing.call(cache, K, L) for _ in range(12)))
    assert computing.computed == {K: 1, L: 1}
    assert answers == [{K: repr(K), L: repr(L)}] * 12
    assert 0 < cache.stats().waits <= 22
    assert cache.stats().errors == 0


async def test_no_caller_waits_by_default(target: Target) -> None:
    cache = cache_of(target)
    for _ in range(3):
        assert await get(cache, K) == {}
    assert await Computing().call(cache, K) == await cache.get([K])


async def test_different_processes_may_compute_twice(target: Target) -> None:
    """Redis stores nothing about flights. Each cache, like a process of its own, computes its misses."""
    caches, computing = [cache_of(target, single_flight=LONG) for _ in range(3)], Computing()
    await together(*(computing.call(cache, K) for cache in caches for _ in range(4)))
    assert 1 <= computing.computed[K] <= 3
    held = cache_of(target, single_flight=LONG)
    assert await held.in_thread("get", [L]) == {}
    before = target.keys()
    assert await get(caches[0], L) == {}, "it does not wait for the other cache"
    assert target.keys() == before


@pytest.mark.parametrize("in_one_shard", [False, True])
@pytest.mark.parametrize("target_name", ["redis", "cluster"])
async def test_overlapping_calls_do_not_deadlock(target: Target, in_one_shard: bool) -> None:
    """A caller computes nothing while it waits, so no entry is computed twice either."""
    cache, computing = cache_of(target, single_flight=LONG), Computing(0.02)
    names = [(A if in_one_shard else (f"{number}",), f"{number}") for number in range(6)]
    calls = [computing.call(cache, *(names[(turn + step) % 6] for step in range(3))) for turn in range(6)]
    calls += [computing.call(cache, *reversed(names)) for _ in range(6)]
    await together(*calls)
    assert computing.computed == dict.fromkeys(names, 1)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_one_caller_replaces_a_caller_that_never_stores(target: Target) -> None:
    cache, computing, began = cache_of(target, single_flight="500ms"), Computing(), time.monotonic()
    assert await get(cache, K) == {}
    await together(*(computing.call(cache, K) for _ in range(4)))
    assert computing.computed == {K: 1}
    assert time.monotonic() - began > 0.4


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_value_that_cannot_be_stored_ends_the_flight(target: Target) -> None:
    cache = cache_of(target, single_flight=LONG)
    assert await get(cache, K) == {}
    with pytest.raises(EncodeError):
        await cache.set({K: (object(), None)})
    assert await get(cache, K) == {}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_all_callers_compute_at_once_while_the_server_fails(target: Target) -> None:
    """No value can be stored, so waiting callers would compute one after the other."""
    cache, computing = cache_of(target, single_flight=LONG), Computing(0.3)
    calls = [alone(computing.call(cache, K)) for _ in range(8)]
    await until(lambda: computing.computed)  # on a busy machine it takes a while
    assert computing.computed == {K: 1}
    fails_on(cache.cache, lambda request: not isinstance(request, Sleep), redis.ConnectionError("gone"))
    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert computing.computed == {K: 8}
    assert time.monotonic() - began < 2.1, "eight in a row would take 2.4 seconds"


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_waiting_caller_gives_up(target: Target) -> None:
    """After twice the time of `single_flight` it computes the entry itself, and no other caller waits for it."""
    cache = cache_of(target, single_flight="300ms")

    async def take_over_and_over() -> None:
        for _ in range(20):
            await cache.in_thread("get", [K])
            await asyncio.sleep(0.1)

    holding = alone(take_over_and_over())
    await asyncio.sleep(0.05)
    assert await get(cache, K) == {}
    holding.cancel()
    await asyncio.wait([holding])


async def test_a_caller_does_not_wait_for_itself(target: Target) -> None:
    """LangGraph looks up all unfinished tasks again when a node calls another one.

    A run that is repeated after an error does the same.
    """
    cache, began = cache_of(target, single_flight=LONG), time.monotonic()
    assert await cache.get([K]) == {}
    assert await cache.get([K, L]) == {}
    if target.flavour == "async":  # like a node: in a task or an OS thread with a copy of the context
        assert await asyncio.create_task(cache.get([L, K])) == {}
    else:
        assert await asyncio.to_thread(cache.cache.get, [L, K]) == {}
    assert time.monotonic() - began < 50, "nobody waited for a flight to expire"
    await cache.set({K: (1, None), L: (2, None)})
    assert await get(cache, K, L) == {K: 1, L: 2}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_child_tasks_of_one_task_are_separate_callers(target: Target) -> None:
    """After its own computation a task starts several others, and one of these computes."""
    cache, computing = cache_of(target, single_flight=LONG), Computing()
    await computing.call(cache, L)
    await cache.get([L])
    await asyncio.gather(*(asyncio.create_task(computing.call(cache, K)) for _ in range(5)))
    assert computing.computed == {L: 1, K: 1}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_child_tasks_of_a_task_whose_flight_expired_are_separate_callers(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, computing, expired = cache_of(target, single_flight=LONG), Computing(), time.monotonic() + 101
    await cache.get([L])
    monkeypatch.setattr(flights, "time", SimpleNamespace(monotonic=lambda: expired))
    assert await get(cache, L) == {}, "another caller has its flight now"
    await asyncio.gather(*(asyncio.create_task(computing.call(cache, K)) for _ in range(5)))
    assert computing.computed == {K: 1}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_ending_one_flight_of_a_task_keeps_its_others(target: Target) -> None:
    cache = cache_of(target, single_flight=LONG)
    assert await cache.get([K, L]) == {}
    await cache.set({K: (1, None)})
    assert await asyncio.wait_for(cache.get([K, L]), 60) == {K: 1}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_cancelled_waiter_holds_no_flight(target: Target) -> None:
    cache = cache_of(target, single_flight=LONG)
    await get(cache, K)
    task = alone(cache.cache.aget([K, L]))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await get(cache, L) == {}


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_waiting_callers_take_no_worker_thread(target: Target) -> None:
    """`aget` of a blocking cache sleeps on the event loop, so the worker threads stay free."""
    cache = cache_of(target, single_flight=LONG)
    await get(cache, K)
    tasks = [alone(cache.cache.aget([K])) for _ in range(200)]
    await asyncio.sleep(0.3)
    await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.01), 10)
    await cache.set({K: (1, None)})
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [{K: 1}] * 200


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_a_forked_child_does_not_wait_for_its_parent(target: Target) -> None:
    context, cache = contextvars.Context(), cache_of(target, single_flight=LONG).cache
    assert context.run(cache.get, [K]) == {}
    if (child := os.fork()) == 0:
        began = time.monotonic()
        found = contextvars.Context().run(cache.get, [K])
        os._exit(0 if found == {} and time.monotonic() - began < 50 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_expired_flights_are_forgotten(target: Target) -> None:
    cache = cache_of(target, single_flight="10ms")
    for number in range(20):
        await cache.get([(A, str(number))])
        await asyncio.sleep(0.012)
    assert len(cache.cache._flights._computing) < 5


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_miss_costs_the_same_after_thousands_of_misses(target: Target) -> None:
    """One caller misses all entries. Late misses take one request each, and no more Python calls than early ones."""
    cache, calls = cache_of(target, single_flight=LONG), [0]
    requests = requests_of(cache.cache, lambda request: request.arguments[0])

    def called(_: Any, event: str, __: Any) -> None:
        calls[0] += event in ("call", "c_call")

    def cost(number: int) -> int:
        calls[0] = 0
        sys.setprofile(called)
        try:
            assert cache.cache.get([(A, f"{number:05}")]) == {}
        finally:
            sys.setprofile(None)
        return calls[0]

    cost(0)
    early = [cost(number) for number in range(1, 10)]
    for number in range(10, 2000):
        cache.cache.get([(A, f"{number:05}")])
    late = [cost(number) for number in range(2000, 2010)]
    assert requests.count("MGET") == 2010
    assert max(late) <= max(early)
