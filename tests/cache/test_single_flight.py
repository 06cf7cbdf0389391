"""Of many that miss the same entry one computes it; nobody waits for ever, and nobody for itself."""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest
from caching import UniformCache, cache_of
from uniform import Target
from wrappers import Around

from redis_saver._cache import flights
from redis_saver._cache.keys import CacheKeyspace
from redis_saver._engine.requests import Call, Sleep

A, K, L = ("a",), (("a",), "k"), (("b",), "l")
LONG = "100s"
"""Longer than any test takes."""


def alone(call: Any) -> asyncio.Task[Any]:
    """A task whose context begins empty, as that of an unrelated caller."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, call)


class Computing:
    """Callers, each as if in a process of its own, who compute what they miss."""

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

    async def together(self, *calls: Any) -> list[Any]:
        """Calls of unrelated callers: each has a context of its own, which begins empty."""
        return await asyncio.wait_for(asyncio.gather(*(alone(call) for call in calls)), 60)


async def test_one_computes(target: Target) -> None:
    caches, computing = [cache_of(target, single_flight=LONG) for _ in range(4)], Computing()
    answers = await computing.together(*(computing.call(cache, K, L) for cache in caches for _ in range(3)))
    assert computing.computed == {K: 1, L: 1}
    assert answers == [{K: repr(K), L: repr(L)}] * 12
    assert 0 < sum(cache.stats().waits for cache in caches) <= 22
    assert sum(cache.stats().errors for cache in caches) == 0
    assert not [key for key in target.keys() if b":lease:" in key]


async def test_without_the_option_nobody_waits(target: Target) -> None:
    caches = [cache_of(target) for _ in range(3)]
    for cache in caches:
        assert await cache.get([K]) == {}
    assert target.keys() == []
    assert await Computing().call(caches[0], K) == await caches[1].get([K])


@pytest.mark.parametrize("in_one_shard", [False, True])
@pytest.mark.parametrize("target_name", ["redis", "cluster"])
async def test_overlapping_calls_in_any_order(target: Target, in_one_shard: bool) -> None:
    """No deadlock: who waits holds no lease. So nothing is computed twice either."""
    caches, computing = [cache_of(target, single_flight=LONG) for _ in range(6)], Computing(0.02)
    names = [(A if in_one_shard else (f"{number}",), f"{number}") for number in range(6)]
    calls = [
        computing.call(cache, *(names[(turn + step) % 6] for step in range(3))) for turn, cache in enumerate(caches)
    ]
    calls += [computing.call(cache, *reversed(names)) for cache in caches]
    await computing.together(*calls)
    assert computing.computed == dict.fromkeys(names, 1)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_who_dies_is_replaced_by_one(target: Target) -> None:
    dying, caches = cache_of(target, single_flight="1s"), [cache_of(target, single_flight=LONG) for _ in range(4)]
    computing, began = Computing(), time.monotonic()
    assert await dying.in_thread("get", [K]) == {}
    await computing.together(*(computing.call(cache, K) for cache in caches))
    assert computing.computed == {K: 1}
    assert time.monotonic() - began > 0.2


PROGRAM = """
import sys, time, redis
from redis_saver import RedisCache
cache = RedisCache(redis.Redis.from_url(sys.argv[1]), prefix=sys.argv[2], single_flight="1s")
assert cache.get([(("a",), "k")]) == {}
print("computing", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_process_that_is_killed_while_it_computes(target: Target) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, target.url, target.prefix], stdout=subprocess.PIPE, cwd=os.getcwd()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"computing\n"
        process.send_signal(signal.SIGKILL)
    computing = Computing()
    caches = [cache_of(target, single_flight=LONG) for _ in range(3)]
    await computing.together(*(computing.call(cache, K) for cache in caches))
    assert computing.computed == {K: 1}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_who_waits_gives_up(target: Target) -> None:
    """After twice the time that a computation may take it computes, too, and tells nobody to wait for it."""
    holding, waiting = cache_of(target, single_flight=LONG), cache_of(target, single_flight="200ms")
    await holding.in_thread("get", [K])

    async def wait() -> float:
        began = time.monotonic()
        assert await waiting.in_thread("get", [K]) == {}
        return time.monotonic() - began

    (took,) = await Computing().together(wait())
    assert 0.35 < took < 50, "it does not wait until the other's lease has run out"
    lease = CacheKeyspace(target.prefix).lease(CacheKeyspace(target.prefix).place(K))
    assert target.raw.pttl(lease) > 1000, "it is still the other one's"


async def test_a_caller_does_not_wait_for_itself(target: Target) -> None:
    """LangGraph looks again for all tasks that have not written, whenever a node calls one more; and so does a run that is repeated after an error."""
    cache, other = cache_of(target, single_flight=LONG), cache_of(target, single_flight=LONG)
    began = time.monotonic()
    assert await cache.get([K]) == {}
    assert await cache.get([K, L]) == {}
    if target.flavour == "async":  # as nodes do: in tasks and OS threads with a copy of the context
        assert await asyncio.create_task(cache.get([L, K])) == {}
    else:
        assert await asyncio.to_thread(cache.cache.get, [L, K]) == {}
    assert time.monotonic() - began < 50, "nobody waited for a lease to run out"
    held = {
        target.raw.get(CacheKeyspace(target.prefix).lease(CacheKeyspace(target.prefix).place(name))) for name in (K, L)
    }
    assert len(held) == 2, "each lease is still the first one"
    await cache.set({K: (1, None), L: (2, None)})
    assert await other.get([K, L]) == {K: 1, L: 2}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_calls_from_one_task_are_not_taken_for_one_caller(target: Target) -> None:
    """After its own computation has ended, a task begins several: of these one computes."""
    cache, computing = cache_of(target, single_flight=LONG), Computing()
    await computing.call(cache, L)
    await cache.get([L])
    await asyncio.gather(*(asyncio.create_task(computing.call(cache, K)) for _ in range(5)))
    assert computing.computed == {L: 1, K: 1}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_of_several_leases_that_a_task_holds_the_first_to_end_ends_only_itself(target: Target) -> None:
    cache = cache_of(target, single_flight=LONG)
    assert await cache.get([K, L]) == {}
    await cache.set({K: (1, None)})
    assert await asyncio.wait_for(cache.get([K, L]), 60) == {K: 1}


async def test_a_lost_reply_is_asked_for_again(target: Target) -> None:
    """The lease that it granted is the caller's own."""
    cache, lost = cache_of(target, single_flight=LONG), list[Any]()

    def twice(request: Any) -> Any:
        assert not isinstance(request, Sleep), "it waits for itself"
        if isinstance(request, Call):
            lost.append((yield request))
        return (yield request)

    Around(cache.cache, twice)
    assert await cache.in_thread("get", [K]) == {}
    assert len(lost) == 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_waiting_task_that_is_cancelled_holds_nothing(target: Target) -> None:
    holding, waiting = cache_of(target, single_flight=LONG), cache_of(target, single_flight=LONG)
    names = [((f"{number}",), "k") for number in range(8)]
    last = max(names, key=lambda name: CacheKeyspace(target.prefix).place(name).shard)
    await holding.in_thread("get", [last])
    task = alone(waiting.cache.aget(names))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        if len(leases := [key for key in target.keys() if b":lease:" in key]) == 1:
            break
        await asyncio.sleep(0.05)
    assert len(leases) == 1


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_waiting_takes_no_worker_thread(target: Target) -> None:
    """`aget` of a blocking cache sleeps on the event loop: many that wait leave worker threads to others."""
    holding, waiting = cache_of(target, single_flight=LONG), cache_of(target, single_flight=LONG)
    await holding.in_thread("get", [K])
    tasks = [alone(waiting.cache.aget([K])) for _ in range(200)]
    await asyncio.sleep(0.3)
    await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.01), 10)
    await holding.set({K: (1, None)})
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [{K: 1}] * 200


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_the_child_of_a_fork_is_somebody_else(target: Target) -> None:
    """It does not compute what its parent computes."""
    context, cache = contextvars.Context(), cache_of(target, single_flight=LONG).cache
    assert context.run(cache.get, [K]) == {}
    threading.Timer(0.5, cache.set, [{K: (1, None)}]).start()
    if (child := os.fork()) == 0:
        os._exit(0 if context.run(cache.get, [K]) == {K: 1} and cache.stats().misses == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_what_a_process_remembers_of_leases_is_bounded(target: Target) -> None:
    cache = cache_of(target, single_flight="10ms")
    for number in range(20):
        await cache.get([(A, str(number))])
        await asyncio.sleep(0.012)
    assert len([key for key in flights._callers if key.startswith(target.prefix.encode() + b":")]) < 5


WORKER = """
import random, sys, time, redis
from redis_saver import RedisCache
client = redis.Redis.from_url(sys.argv[1])
cache = RedisCache(client, prefix=sys.argv[2], single_flight="1s")
rng = random.Random(int(sys.argv[3]))
print("ready", flush=True)
for step in range(60):
    names = [((f"{rng.randrange(3)}",), f"{step}-{rng.randrange(4)}") for _ in range(rng.randrange(1, 4))]
    missing = [name for name in dict.fromkeys(names) if name not in cache.get(names)]
    for name in missing:
        client.rpush(sys.argv[2] + "-computed", repr(name))
    time.sleep(0.02 * len(missing))
    cache.set({name: (repr(name), None) for name in missing})
assert cache.stats().errors == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_processes_that_are_killed(target: Target, seed: int) -> None:
    """Whatever is computed twice was computed by one that was killed: three entries at the most."""
    rng = random.Random(seed)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, target.url, target.prefix, str(seed)],
            stdout=subprocess.PIPE,
            cwd=os.getcwd(),
        )
        for _ in range(6)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    victims = rng.sample(workers, 2)
    for victim in victims:
        time.sleep(rng.uniform(0.1, 0.6))
        victim.send_signal(signal.SIGKILL)
    codes = [worker.wait(60) for worker in workers]
    assert [code for worker, code in zip(workers, codes, strict=True) if worker not in victims] == [0] * 4
    for worker in workers:
        worker.stdout.close()  # type: ignore[union-attr]
    computed = Counter(target.raw.lrange(f"{target.prefix}-computed", 0, -1))
    assert sum(count - 1 for count in computed.values()) <= 3 * len(victims), seed
