"""`stats()` counts each call under its method's name, round trips and bytes, from any number of OS threads."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from math import inf
from typing import Any

import pytest
import redis
from tests.support.caching import cache_of
from tests.support.counting import Counted
from tests.support.factories import chain, config, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from tests.support.methods import methods_of
from tests.support.servers import Server
from tests.support.uniform import Target, Uniform, over
from tests.support.wrappers import Around, fail

from redis_saver import AsyncRedisSaver, AsyncTieredStore, EncodeError, OperationStats, RedisLLMCache, RedisSaver, Stats
from redis_saver import TieredStore
from redis_saver._client.clients import connect
from redis_saver._engine import counting as counted
from redis_saver._engine.requests import Page, Sleep
from redis_saver._engine.counting import Counting, Traffic
from redis_saver._engine.stats import BOUNDS


def calls(stats: Any) -> dict[str, tuple[int, int]]:
    return {name: (one.calls, one.errors) for name, one in stats.operations.items()}


async def call_each(uniform: Uniform) -> set[str]:
    """Call each method that has an async form and is counted. Return their names."""
    counted = {name: each for name, each in methods_of(type(uniform.saver), twins=False).items() if each.is_counted}
    for name, method in counted.items():
        with suppress(NotImplementedError, ValueError):  # the cold saver cannot do it; there are no keys
            if method.has_twin:
                await getattr(uniform, name)(*method.arguments, **method.options)
    return {name for name, method in counted.items() if method.has_twin}


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("tiers", [0, 1])
async def test_every_method_of_a_saver_counts_under_its_name(flavour: str, tiers: int) -> None:
    kind: Any = AsyncRedisSaver if flavour == "async" else RedisSaver
    uniform = Uniform(kind(connect("memory://", asynchronous=flavour == "async")))
    saver: Any = (over(uniform, InMemorySaver()) if tiers else uniform).saver
    names = await call_each(Uniform(saver))
    found = calls(saver.stats())
    assert {name: count for name, (count, _) in found.items()} == dict.fromkeys(names, 1)
    failed = {name for name, (_, errors) in found.items() if errors}
    assert failed == ({"rotate_keys", "key_status", "prune", "delete_for_runs"} if tiers else {"rotate_keys"})


def check_operations(stats: Any) -> None:
    for one in stats.operations.values():
        assert type(one) is OperationStats
        assert list(one.histogram) == [*map(str, BOUNDS), "+Inf"]
        assert sum(one.histogram.values()) == one.calls >= one.errors
        assert one.seconds > 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_every_method_of_a_store_counts_under_its_name(target: Target) -> None:
    store = target.store()
    tiered = AsyncTieredStore if target.flavour == "async" else TieredStore
    both = Uniform(tiered(target.store(prefix=f"{target.prefix}-hot").saver, InMemoryStore()))
    for each in (store, both):
        names = await call_each(each)
        await each.search(())
        found = each.saver.stats()
        assert {name: one.calls for name, one in found.operations.items()} == {**dict.fromkeys(names, 1), "search": 2}
        check_operations(found)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_every_method_of_a_cache_counts_under_its_name(target: Target) -> None:
    cache = cache_of(target)
    key = (("a",), "k")
    await cache.set({key: (1, None)})
    await cache.get([key])
    await cache.get([])
    await cache.clear()
    found = cache.stats()
    assert calls(found) == {"set": (1, 0), "get": (1, 0), "clear": (1, 0)}
    assert (found.hits, found.sets) == (1, 1)
    assert found.round_trips >= 3 and found.bytes_sent > 0
    check_operations(found)
    assert RedisLLMCache(cache.cache).stats() == found, "they share the counts"


@pytest.mark.everywhere
async def test_counted_traffic_is_what_the_client_sends(target: Target) -> None:
    """The reference is a client that notes all requests."""
    client = target.client()
    saver = target.uniform(client=client, cache_bytes=0)  # it does not remember what it put
    where = await put(saver, config(), {"a": "x" * 1000})
    for _ in range(2):  # then the server has the scripts, and a cluster's client knows the nodes
        await saver.get_tuple(where)
        await saver.put_writes(where, [("a", 1)], "before")
    noted, before = Counted(client), saver.saver.stats()
    found = await saver.get_tuple(config(checkpoint_id=where["configurable"]["checkpoint_id"]))
    await saver.put_writes(where, [("a", "y" * 100)], "task")
    after = saver.saver.stats()
    sent = sum(len(each if isinstance(each, bytes) else each.encode()) for one in noted.sent for each in one if type(each) is not int)  # fmt: skip
    assert len(noted.sent) == after.round_trips - before.round_trips == 2
    assert after.bytes_sent - before.bytes_sent == sent > 100
    assert 1000 < after.bytes_received - before.bytes_received < 3000
    assert (after.retries, after.script_loads) == (before.retries, before.script_loads)
    assert found.checkpoint["channel_values"] == {"a": "x" * 1000}
    assert saver.saver.stats() == after, "reading the counts changes none"
    check_operations(after)


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("target_name", ["redis", "cluster"])
async def test_calls_sent_together_count_as_one_round_trip(saver: Uniform) -> None:
    where = await put(saver, config(), {"a": 1})
    await saver.get_tuple(where)
    before = saver.saver.stats()
    await asyncio.gather(*(saver.get_tuple(where) for _ in range(5)))
    after = saver.saver.stats()
    assert after.round_trips - before.round_trips == 1
    assert after.operations["get_tuple"].calls - before.operations["get_tuple"].calls == 5
    one = (after.bytes_sent - before.bytes_sent) / 5
    await saver.get_tuple(where)
    assert saver.saver.stats().bytes_sent - after.bytes_sent == one


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_missing_script_counts_as_a_script_load(target: Target) -> None:
    server = Server()  # a server of its own, so that others keep their scripts
    there = Target("redis", target.flavour, server.url, "scripts")
    saver = there.uniform()
    where = await put(saver, config(), {"a": 1})
    await saver.get_tuple(where)
    before = saver.saver.stats()
    assert (before.script_loads, before.retries) == (2, 0)
    there.raw.script_flush()
    await saver.get_tuple(where)
    after = saver.saver.stats()
    assert (after.script_loads, after.retries, after.round_trips) == (3, 0, before.round_trips + 2)
    if saver.native_async:
        there.raw.script_flush()
        await asyncio.gather(saver.get_tuple(where), saver.get_tuple(where))
        last = saver.saver.stats()
        assert (last.script_loads, last.retries, last.round_trips) == (4, 0, after.round_trips + 2)
    await there.close()
    server.stop()


@pytest.mark.parametrize("target_name", ["cluster"])
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_repeated_request_counts_as_a_retry(target: Target) -> None:
    client = target.client()
    saver = target.uniform(client=client)
    where = await put(saver, config(), {"a": 1})
    await saver.get_tuple(where)
    before, real = saver.saver.stats(), client.execute_command
    open_slot = [redis.exceptions.TryAgainError("TRYAGAIN Multiple keys request during rehashing of slot")]

    def execute(*arguments: Any, **options: Any) -> Any:
        if open_slot:
            raise open_slot.pop()
        return real(*arguments, **options)

    client.execute_command = execute
    assert await saver.get_tuple(where)
    after = saver.saver.stats()
    assert (after.retries, after.script_loads) == (before.retries + 1, before.script_loads)
    assert after.round_trips == before.round_trips + 2
    assert calls(after)["get_tuple"] == (2, 0), "the caller sees one call"


@pytest.mark.parametrize("target_name", ["redis"])
async def test_failed_calls_count_as_errors(saver: Uniform) -> None:

    class Unknown:
        __slots__ = ()

        def __reduce__(self) -> Any:
            raise TypeError("no")

    with pytest.raises(EncodeError):
        await put(saver, config(), {"a": Unknown()})
    fail(saver.saver, ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await saver.get_tuple(config())
    with pytest.raises(ConnectionResetError):
        await saver.list(config())
    assert calls(saver.saver.stats()) == {"put": (1, 1), "get_tuple": (1, 1), "list": (1, 1)}


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_cancelled_call_counts_as_an_error(target: Target) -> None:
    saver, asked = target.uniform(), asyncio.Event()

    def hanging(request: Any) -> Generator[Any, Any, Any]:
        asked.set()
        yield Sleep(3600)

    Around(saver.saver, hanging)
    kinds = list[Any]()

    def noting(name: str, is_stream: bool) -> Any:
        return lambda seconds, kind, key: kinds.append((name, is_stream, kind))

    saver.saver._counting.observers = {noting: noting}
    for asking in (saver.get_tuple(config()), saver.list(config())):
        asked.clear()
        task = asyncio.ensure_future(asking)
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert calls(saver.saver.stats()) == {"get_tuple": (1, 1), "list": (1, 1)}
    assert kinds == [("get_tuple", False, "cancelled"), ("list", True, "cancelled")]


@pytest.mark.parametrize("target_name", ["redis"])
async def test_closing_a_stream_early_counts_as_success(saver: Uniform) -> None:
    await chain(saver, "a", 3)
    if saver.native_async:
        stream = saver.saver.alist(config("a"))
        async for _ in stream:
            break
        await stream.aclose()
    else:
        listed = saver.saver.list(config("a"))
        next(listed)
        listed.close()
    assert calls(saver.saver.stats())["list"] == (1, 0)


def test_a_stream_counts_only_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that the caller spends on a page is not counted."""
    now = 0.0

    def listing() -> Generator[Any, Any, None]:
        nonlocal now
        for _ in range(3):
            now += 1
            yield Page([1])
        now += 0.5

    monkeypatch.setattr(counted, "perf_counter", lambda: now)
    counting = Counting()
    for _ in counting.stream(listing(), "list"):
        now += 1000
    (found,) = counting.snapshot().values()
    assert (found.calls, found.seconds, found.histogram["5.0"]) == (1, 3.5, 1)


@pytest.mark.parametrize(("seconds", "bound"), [(0.0, 0.0001), (0.0001, 0.0001), (0.00011, 0.00025), (10, 10.0), (11, inf)])  # fmt: skip
def test_durations_fall_into_their_bucket(monkeypatch: pytest.MonkeyPatch, seconds: float, bound: float) -> None:
    now = iter((0.0, seconds))
    monkeypatch.setattr(counted, "perf_counter", lambda: next(now))
    counting = Counting()
    list(counting.call(iter_of(), "x"))
    filled = {at for at, count in counting.snapshot()["x"].histogram.items() if count}
    assert filled == {"+Inf" if bound == inf else str(bound)}


def iter_of() -> Generator[Any, Any, None]:
    yield from ()


@pytest.fixture
def impatient() -> Iterator[None]:
    """Make OS threads switch as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_os_threads_lose_no_counts(impatient: None) -> None:
    """No lock is needed, as nothing is called between reading a number and storing the sum."""
    counting, traffic = Counting(), Traffic()
    arguments = [b"x"] * 20

    def work() -> None:
        for _ in range(3_000):
            for _ in counting.call(iter_of(), "x"):
                pass
            traffic.sending(arguments)
            traffic.receive([b"abc", [b"d"], "é", 7, None])

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counting.snapshot()["x"].calls == 18_000
    wanted = {"round_trips": 18_000, "bytes_sent": 360_000, "bytes_received": 90_000, "retries": 0, "script_loads": 0}
    assert traffic.numbers() == wanted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_begins_with_zero() -> None:
    saver = RedisSaver(connect("memory://", asynchronous=False))
    saver.get_tuple(config())
    assert saver.stats().round_trips > 0
    if (child := os.fork()) == 0:
        os._exit(0 if saver.stats() == Stats() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert saver.stats().round_trips > 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_cache_hits_and_misses_are_counted(target: Target) -> None:
    texts = {"a": [f"text {number} " * 20 for number in range(100)]}
    saver, forgetful = target.uniform(), target.uniform(cache_bytes=0)
    for each in (saver, forgetful):
        where = await put(each, config("t"), texts)
        await each.get_tuple(where)
    found, other = saver.saver.stats(), forgetful.saver.stats()
    assert (found.cache_hits, found.cache_misses) == (1, 1)
    assert 20_000 < found.cache_bytes < 200_000
    assert (other.cache_hits, other.cache_misses, other.cache_bytes) == (0, 2, 0)
    assert other.bytes_received > found.bytes_received + 15_000
    store = target.store()
    await store.put(("m", "a"), "k", {"a": 1})
    for _ in range(3):
        await store.search(("m", "a"), filter={"a": 1})
    found = store.saver.stats()
    assert (found.cache_hits, found.cache_misses) == (2, 1)
    assert found.cache_bytes > 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_tiers_count_calls_and_hot_counts_traffic(target: Target) -> None:
    uniform = target.uniform()
    hot, saver = uniform.saver, over(uniform, InMemorySaver())
    where = await put(saver, config(), {"a": 1})
    await saver.get_tuple(where)
    assert calls(saver.saver.stats()) == {"put": (1, 0), "get_tuple": (1, 0)}
    assert hot.stats().operations == {}, "nobody called it"
    assert hot.stats().round_trips == saver.saver.stats().round_trips >= 3
    clone = Uniform(saver.saver.with_allowlist([]))
    await clone.get_tuple(where)
    assert calls(saver.saver.stats()) == calls(clone.saver.stats()) == {"put": (1, 0), "get_tuple": (2, 0)}
