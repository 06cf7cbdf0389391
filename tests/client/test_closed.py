"""After `close()` or the end of its `with` block, every method raises `Closed`. Nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import re
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from tests.support.factories import chain, config, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from tests.support.methods import GIVEN, KEY, NAMESPACE, VERSIONS, methods_of
from tests.support.servers import url_of
from tests.support.uniform import Uniform

from redis_saver import AsyncRedisCache, AsyncRedisSaver, AsyncRedisStore, AsyncTieredSaver, AsyncTieredStore, Closed
from redis_saver import RedisCache, RedisLLMCache, RedisSaver, RedisStore, TieredSaver, TieredStore
from redis_saver._client import loops

KINDS = (RedisSaver, AsyncRedisSaver, RedisStore, AsyncRedisStore, RedisCache, AsyncRedisCache)
ALONE = {"new_thread", "anew_thread"}
"""Methods that send no request without a cold tier."""


@pytest.fixture
def prefix() -> str:
    return f"c{random.getrandbits(64):x}"


async def outcome(thing: Any, method: str) -> object:
    """Result or error of a call. Iterators are drained, and `own` is entered."""
    arguments, options = methods_of(type(thing))[method][:2]
    call = getattr(thing, method)

    def in_thread() -> object:
        answer = call(*arguments, **options)
        if method == "own":
            with answer:
                return None
        return list(answer) if isinstance(answer, Iterator) else answer

    try:
        if inspect.iscoroutinefunction(call) or method.startswith("a"):
            answer = call(*arguments, **options)
            answer = await answer if inspect.isawaitable(answer) else answer
            return [one async for one in answer] if isinstance(answer, AsyncIterator) else answer
        return await asyncio.to_thread(in_thread)
    except Exception as error:
        return error


def methods(thing: object) -> list[str]:
    left_out = set() if hasattr(thing, "cold") else ALONE
    return [name for name, each in methods_of(type(thing)).items() if each.raises_closed and name not in left_out]


async def check_closed(thing: Any) -> None:
    names = methods(thing)
    assert len(names) >= 6
    error = await outcome(thing, "get")
    assert re.match(
        r"the (saver|store|cache) (on (redis|memory|over)|over two tiers).* was closed in this process", str(error)
    )
    wrong = {name: answer for name in names if type(answer := await outcome(thing, name)) is not Closed}
    assert not wrong
    assert repr(thing)
    if hasattr(thing, "stats"):
        thing.stats()


async def opened(kind: Any, url: str, **settings: Any) -> tuple[Any, Any]:
    """An open object, and a function that leaves its block."""
    made = kind.from_conn_string(url, **settings)
    if kind.__name__.startswith("Async"):
        return await made.__aenter__(), lambda: made.__aexit__(None, None, None)

    async def leave() -> None:
        made.__exit__(None, None, None)

    return made.__enter__(), leave


@asynccontextmanager
async def within(saver: Any) -> AsyncIterator[None]:
    """The block of a saver, in its flavour."""
    if hasattr(saver, "aclose"):
        async with saver:
            yield
    else:
        with saver:
            yield


async def closed(saver: Any) -> int:
    """Close a saver over two tiers. Return the number of records left."""
    return int(await (saver.aclose() if hasattr(saver, "aclose") else asyncio.to_thread(saver.close)))


@pytest.mark.parametrize("server", ["redis", "cluster", "memory"])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_method_raises_closed_after_the_with_block(kind: Any, server: str, prefix: str) -> None:
    thing, leave = await opened(kind, "memory://" if server == "memory" else url_of(server), prefix=prefix)
    llm = RedisLLMCache(thing) if "Cache" in kind.__name__ else None
    for name in ("setup", "get"):
        assert not isinstance(await outcome(thing, name), Exception)
    await leave()
    await check_closed(thing)
    if hasattr(thing, "with_allowlist"):
        assert isinstance(await outcome(thing.with_allowlist([("os", "path")]), "put"), Closed)
    for name in methods(llm) if llm else ():
        assert isinstance(await outcome(llm, name), Closed), name


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
@pytest.mark.parametrize("by", ["close", "with"])
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_closing_a_tiered_saver_leaves_its_tiers_open(flavour: str, by: str, mode: Any, prefix: str) -> None:
    cold = InMemorySaver()
    kind, over = (RedisSaver, TieredSaver) if flavour == "sync" else (AsyncRedisSaver, AsyncTieredSaver)
    hot, leave = await opened(kind, url_of("redis"), prefix=prefix)
    saver: Any = over(hot, cold, mode=mode)
    clone = saver.with_allowlist([("os", "path")])
    if by == "close":
        stored = await put(Uniform(saver), config(), {"n": 1})
        assert await closed(saver) == 0
    else:
        async with within(saver):
            stored = await put(Uniform(saver), config(), {"n": 1})
    assert cold.get_tuple(stored)
    await check_closed(saver)
    await check_closed(clone)
    await Uniform(hot).get_tuple(stored)
    assert await closed(saver) == 0  # a second time
    async with within(saver):
        assert await Uniform(saver).get_tuple(stored)
    await leave()


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_tiers_over_a_closed_hot_raise_closed(flavour: str, prefix: str) -> None:
    savers, stores = ((RedisSaver, TieredSaver), (RedisStore, TieredStore)) if flavour == "sync" else (
        (AsyncRedisSaver, AsyncTieredSaver), (AsyncRedisStore, AsyncTieredStore),
    )  # fmt: skip
    for (kind, over), cold in ((savers, InMemorySaver()), (stores, InMemoryStore())):
        hot, leave = await opened(kind, url_of("redis"), prefix=prefix)
        await leave()
        for bypass in ("raise", "bypass"):
            await check_closed(over(hot, cold, on_hot_error=bypass))


async def test_the_callers_client_stays_open_after_a_with_block(prefix: str) -> None:
    blocking, asynchronous = redis.Redis.from_url(url_of("redis")), redis.asyncio.Redis.from_url(url_of("redis"))
    for kind in (RedisSaver, RedisStore, RedisCache):
        with kind(blocking, prefix=prefix) as made:
            assert isinstance(made, kind)
        assert not isinstance(await outcome(made, "get"), Exception)
    for kind in (AsyncRedisSaver, AsyncRedisStore, AsyncRedisCache):
        async with kind(asynchronous, prefix=prefix) as amade:
            assert isinstance(amade, kind)
        assert not isinstance(await outcome(amade, "aget"), Exception)
    with TieredStore(RedisStore(blocking, prefix=prefix), InMemoryStore()) as tiers:
        pass
    assert tiers.get(NAMESPACE, "k") is None
    blocking.close()
    await asynchronous.aclose()


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_running_iterator_ends_with_closed(flavour: str, prefix: str) -> None:
    saver, leave = await opened(RedisSaver if flavour == "sync" else AsyncRedisSaver, url_of("redis"), prefix=prefix)
    await chain(Uniform(saver), "thread", 120)
    if flavour == "sync":
        pages = saver.list(config())
        next(pages)
        await leave()
        with pytest.raises(Closed):
            list(pages)
    else:
        apages = saver.alist(config())
        await anext(apages)
        await leave()
        with pytest.raises(Closed):
            async for _ in apages:
                pass


@pytest.mark.parametrize("server", ["redis", "memory"])
async def test_calls_of_other_threads_get_an_answer_or_closed(server: str, prefix: str) -> None:
    url = "memory://" if server == "memory" else url_of(server)
    raw = redis.Redis.from_url(url_of("redis"), decode_responses=True)
    errors, acknowledged = list[BaseException](), list[Any]()
    with RedisSaver.from_conn_string(url, prefix=prefix, client_options={"client_name": prefix}) as saver:

        def write(thread: str) -> None:
            try:
                while True:
                    acknowledged.append(saver.put(config(thread), GIVEN, {}, VERSIONS))
                    assert saver.get_tuple(config(thread)) is not None
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 100:
            await asyncio.sleep(0.01)
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    assert [type(error) for error in errors] == [Closed] * 8
    del threads
    errors.clear()  # their tracebacks hold the client
    while server == "redis" and any(one["name"] == prefix for one in raw.client_list()):
        await asyncio.sleep(0.01)
    raw.close()


class InThreads(Uniform):
    """A saver whose blocking calls run in worker threads."""

    async def put(self, *arguments: Any) -> Any:
        return await asyncio.to_thread(self.saver.put, *arguments)


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_writes_acknowledged_during_a_close_reach_cold(flavour: str, prefix: str) -> None:
    class Slow(InMemorySaver):
        def put(self, *arguments: Any) -> Any:
            time.sleep(0.002)
            return super().put(*arguments)

    for turn in range(5):
        cold, stored, errors = Slow(), list[Any](), list[Exception]()
        kind, over = (RedisSaver, TieredSaver) if flavour == "sync" else (AsyncRedisSaver, AsyncTieredSaver)
        hot, leave = await opened(kind, url_of("redis"), prefix=f"{prefix}{turn}")
        saver: Any = over(hot, cold, mode="write-behind", flush_interval=0.05, max_backlog=5, backlog_timeout=60)

        async def write(thread: str, uniform: Uniform, stored: list[Any], errors: list[Exception]) -> None:
            last = config(thread)
            try:
                for number in range(10_000):
                    last = await put(uniform, last, {"n": number}, versions={"n": f"{number + 1:032}.1"})
                    stored.append(last)
            except Closed as error:
                errors.append(error)

        uniform = InThreads(saver) if flavour == "sync" else Uniform(saver)
        writers = [asyncio.ensure_future(write(f"t{number}", uniform, stored, errors)) for number in range(6)]
        while len(stored) < 20:
            await asyncio.sleep(0.01)
        assert await closed(saver) == 0
        await asyncio.gather(*writers)
        assert len(errors) == 6
        assert [one for one in stored if cold.get_tuple(one) is None] == []
        await leave()


async def test_a_closed_store_embeds_nothing(prefix: str) -> None:
    embedded = list[Any]()

    def embed(texts: Any) -> Any:
        embedded.append(texts)
        return [[0.0, 1.0] for _ in texts]

    for kind in (RedisStore, AsyncRedisStore):
        store, leave = await opened(kind, "memory://", index={"dims": 2, "embed": embed})
        await leave()
        for call in (store.aput(NAMESPACE, "k", {"text": "a"}), store.asearch(NAMESPACE, query="a")):
            with pytest.raises(Closed):
                await call
        with pytest.raises(Closed):
            await asyncio.to_thread(store.put, NAMESPACE, "k", {"text": "a"})
    assert embedded == []


def test_a_cache_in_its_skip_pause_raises_closed() -> None:
    with RedisCache.from_conn_string("redis://127.0.0.1:1?retry_on_timeout=no") as cache:
        assert cache.get([KEY]) == {}
        skipped = cache.stats().skipped
        assert cache.get([KEY]) == {} and cache.stats().skipped == skipped + 1  # no request is sent
    with pytest.raises(Closed):
        cache.get([KEY])
    with pytest.raises(Closed):
        cache.set({KEY: (1, None)})


def test_a_child_inherits_a_close_only_from_before_the_fork(prefix: str) -> None:
    made = RedisSaver.from_conn_string(url_of("redis"), prefix=prefix)
    saver = made.__enter__()

    def in_child() -> int:
        reads, writes = os.pipe()
        if not (pid := os.fork()):
            os.close(writes)
            os.read(reads, 1)  # wait for the parent
            try:
                saver.get_tuple(config())
            except Closed:
                os._exit(1)
            os._exit(0)
        os.close(reads)
        made.__exit__(None, None, None) if not saver._driver._is_closed else None
        os.close(writes)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_child() == 0
    assert in_child() == 1


def test_memory_in_a_forked_process_warns() -> None:
    for kind in ("sync", "async"):
        saver: Any = (
            RedisSaver(fakeredis.FakeRedis()) if kind == "sync" else AsyncRedisSaver(fakeredis.FakeAsyncRedis())
        )
        assert saver.get_tuple(config()) is None
        if not (pid := os.fork()):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                saver.get_tuple(config())
            os._exit(sum("memory:// is used in a forked process" in str(one.message) for one in caught))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert loops.running() is None
