"""LangGraph's cache interface: entries, names, TTLs and clearing."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from datetime import timedelta
from typing import Any

import fakeredis
import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import Generation
from langgraph.cache.memory import InMemoryCache

from redis_saver import AsyncRedisCache, EncodeError, LimitExceeded, Limits, RedisCache
from redis_saver._cache.entries import CacheKeyspace
from tests.support.caching import LABELS, UniformCache, cache_of, llm_cache_of
from tests.support.factories import config, put
from tests.support.uniform import Block, Target

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async", valkey="sync", fakeredis="async", lua54="sync")

A, B, K = ("a",), ("b",), (("a",), "k")


@pytest.fixture
def cache(target: Target) -> UniformCache:
    return cache_of(target)


async def test_get_returns_entries_in_request_order(cache: UniformCache) -> None:
    names = [(A, "1"), (B, "1"), ((), "1"), (("a", "b"), "1"), (A, "2")]
    await cache.set({name: (number, None) for number, name in enumerate(names)})
    asked = [names[4], (A, "absent"), names[0], *reversed(names)]
    found = await cache.get(asked)
    assert found == {name: number for number, name in enumerate(names)}
    assert list(found) == [names[4], names[0], names[3], names[2], names[1]]


async def test_values_round_trip_as_in_langgraphs_in_memory_cache(cache: UniformCache) -> None:
    values = {
        "none": None,
        "writes": deque([("messages", [AIMessage("hi", id="1")]), ("n", 1.5)]),
        "bytes": b"\0\xff",
        "set": {1, 2},
        "tuple": (1, (2,)),
        "large": "x" * 2_000_000,
        "time": timedelta(seconds=1),
    }
    pairs: Any = {(A, name): (value, None) for name, value in values.items()}
    memory: Any = InMemoryCache()
    await cache.set(pairs)
    memory.set(pairs)
    found = await cache.get([*pairs])
    assert found == memory.get([*pairs])
    assert found[A, "writes"][0][1][0].id == "1"


async def test_a_later_set_replaces_an_earlier_one(cache: UniformCache) -> None:
    for value, ttl in ((1, None), (2, 100), (3, None)):
        await cache.set({K: (value, ttl)})
        assert await cache.get([K]) == {K: value}


async def test_hostile_names_are_separate_entries(cache: UniformCache) -> None:
    """Some labels join to the same text, and some keys look like labels. Clearing a namespace keeps all others."""
    labels = list(dict.fromkeys(LABELS))
    spaces = [(), *((label,) for label in labels), *itertools.product(labels[:12], labels[:6])]
    names = [(space, key) for space in spaces for key in labels[:9]]
    await cache.set({name: (repr(name), None) for name in names})
    assert await cache.get(names) == {name: repr(name) for name in names}
    gone = {(), ("a",), ("\0",), ("a", "b"), ("1",)}
    await cache.clear(list(gone))
    assert await cache.get(names) == {name: repr(name) for name in names if name[0] not in gone}


async def test_names_with_colons_are_separate_entries(cache: UniformCache) -> None:
    """LangGraph's own cache joins names by colons, and clears by prefix."""
    one, other, third = (("a", "b"), "c"), (A, "b:c"), (("users", "10"), "k")
    await cache.set({one: (1, None), other: (2, None), third: (3, None)})
    assert await cache.get([other]) == {other: 2}
    await cache.clear([A, ("users", "1"), ("*",), ()])
    assert await cache.get([one, other, third]) == {one: 1, third: 3}


async def test_a_namespace_given_as_a_list_is_returned_as_a_tuple(cache: UniformCache) -> None:
    await cache.set({K: (1, None)})
    assert await cache.get([[["a"], "k"]]) == {K: 1}


async def test_each_entry_has_its_own_ttl_or_that_of_the_cache(target: Target, cache: UniformCache) -> None:
    names, expiring = [(A, "short"), (A, "long"), (A, "none")], cache_of(target, ttl="200ms")
    await cache.set({names[0]: (1, 0.2), names[1]: (2, 100), names[2]: (3, None)})
    await expiring.set({(B, "default"): (1, None), (B, "own"): (2, 100)})
    keys = CacheKeyspace(target.prefix)
    short, long, none = (target.raw.pttl(keys.address(name).entry) for name in names)
    assert short <= 200 < 90_000 < long <= 100_000
    assert none == -1
    await asyncio.sleep(0.25)
    assert await cache.get(names) == {names[1]: 2, names[2]: 3}
    assert await expiring.get([(B, "default"), (B, "own")]) == {(B, "own"): 2}


async def test_clear_removes_the_given_namespaces_or_all(target: Target, cache: UniformCache) -> None:
    other = cache_of(target, prefix=target.prefix + "x")
    names = [(A, "1"), (A, "2"), (B, "1"), ((), "1"), (("a", "x"), "1")]
    for one in (cache, other):
        await one.set({name: (1, ttl) for name, ttl in zip(names, (None, 100, None, 100, None), strict=True)})
    await cache.clear([])
    assert len(await cache.get(names)) == 5
    await cache.clear([A, A, ("absent",)])
    assert list(await cache.get(names)) == names[2:]
    await cache.set({(A, "1"): (2, None)})
    assert await cache.get([(A, "1"), (A, "2")]) == {(A, "1"): 2}
    await cache.clear()
    assert await cache.get(names) == {}
    await cache.set({(A, "1"): (3, None)})
    assert await cache.get(names) == {(A, "1"): 3}
    assert len(await other.get(names)) == 5, "entries of another prefix stay"


async def test_saver_cache_and_models_share_a_client_and_a_prefix(target: Target) -> None:
    client = target.client()
    saver, cache = target.uniform(client=client), cache_of(target, client=client)
    models, answer = llm_cache_of(cache), [Generation(text="answer")]
    await put(saver, config("t"), {"n": 1})
    await cache.set({K: (1, None)})
    await models.update("prompt", "model", answer)
    assert [info.thread_id for info in await saver.threads()] == ["t"]
    await cache.clear()
    assert await models.lookup("prompt", "model") == answer
    await cache.set({K: (1, None)})
    await models.clear()
    assert await models.lookup("prompt", "model") is None
    assert await cache.get([K]) == {K: 1}
    await cache.clear()
    assert (await saver.get_tuple(config("t"))).checkpoint["channel_values"] == {"n": 1}


class Unknown:
    __slots__ = ()


@pytest.mark.parametrize(
    ("pairs", "error", "said"),
    [
        ({K: (1, 0)}, ValueError, r"ttl 0: a TTL is between"),
        ({K: (1, -5)}, ValueError, r"ttl -5"),
        ({K: (1, float("nan"))}, ValueError, r"ttl nan"),
        ({K: (1, 10**12)}, ValueError, r"ttl 1000000000000"),
        ({K: (1, "1h")}, TypeError, r"ttl '1h': a TTL is a number of seconds"),
        ({K: (1, True)}, TypeError, r"ttl True"),
        ({K: 1}, TypeError, r"no pair \(value, ttl\)"),
        ({"ak": (1, None)}, TypeError, r"pair \(namespace, key\)"),
        ({("a", "k"): (1, None)}, TypeError, r"namespace='a': a namespace is a tuple"),
        ({(A, b"k"): (1, None)}, TypeError, r"its key b'k' is a bytes"),
        ({((1,), "k"): (1, None)}, TypeError, r"label 1 is not a str"),
        ({(A, "k" * 20000): (1, None)}, LimitExceeded, r"20,000"),
        ({K: (b"x" * 2000, None)}, LimitExceeded, r"entry 'k' of namespace \('a',\) has 2,000 bytes"),
        ({K: (Unknown(), None)}, EncodeError, r"cannot encode the cache's entry 'k'"),
    ],
)
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.by_turns
async def test_invalid_entries_are_refused_before_any_write(
    target: Target, pairs: Any, error: type[Exception], said: str
) -> None:
    cache = cache_of(target, limits=Limits(value_bytes=1000))
    with pytest.raises(error, match=said):
        await cache.set({(A, "fine"): (1, None), **pairs})
    assert target.keys() == []
    assert cache.stats().errors == 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_invalid_names_are_refused(target: Target) -> None:
    cache = cache_of(target)
    for keys in ("ak", ["ak"], [(A, 1)], [("a", "k")], [(A, "k", "x")]):
        with pytest.raises(TypeError, match=r"pair|namespace|str"):
            await cache.get(keys)
    for namespaces in ("a", ["a"], [(1,)]):
        with pytest.raises(TypeError, match=r"namespace"):
            await cache.clear(namespaces)


def test_invalid_settings_are_refused() -> None:
    for settings, said in (
        ({"ttl": 60}, "a bare int has no unit"),
        ({"ttl": {"default_ttl": 1, "refresh_on_read": True}}, "unknown key"),
        ({"on_error": "ignore"}, "RedisCache: on_error='ignore': write 'skip' or 'raise'"),
        ({"single_flight": "1ms"}, "from 10ms to a day"),
        ({"single_flight": True}, "write a timedelta"),
        ({"prefix": "{x}"}, "prefix"),
        ({"strict": True, "serde": InMemoryCache.serde}, "leave one out"),
        ({"require_encryption": True}, "does not encrypt"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            RedisCache(fakeredis.FakeRedis(), **settings)  # type: ignore[arg-type]
    for client, said in (
        ("redis://localhost", "RedisCache takes a client of redis.*RedisCache.from_conn_string"),
        (fakeredis.FakeAsyncRedis(), "RedisCache takes .* Use AsyncRedisCache for this one"),
    ):
        with pytest.raises(TypeError, match=said):
            RedisCache(client)  # type: ignore[arg-type]


async def test_a_client_with_decode_responses_works(target: Target) -> None:
    cache = cache_of(target, client=target.client(decode_responses=True))
    await cache.set({(("\xff",), "k"): (b"\xff\0", None)})
    assert await cache.get([(("\xff",), "k")]) == {(("\xff",), "k"): b"\xff\0"}
    await cache.clear()
    assert await cache.get([(("\xff",), "k")]) == {}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_from_conn_string_makes_a_working_cache(target: Target) -> None:
    is_async = target.flavour == "async"
    kind: Any = AsyncRedisCache if is_async else RedisCache
    async with Block(kind.from_conn_string(target.url, prefix=target.prefix, ttl="1h"), is_async) as made:
        cache = UniformCache(made, native_async=is_async)
        await cache.setup()
        await cache.set({K: (1, None)})
        assert await cache.get([K]) == await made.aget([K]) == await asyncio.to_thread(made.get, [K]) == {K: 1}
        if not is_async:  # its async methods work, too
            await made.aset({K: (2, None)})
            await made.aclear([B])
            assert made.get([K]) == {K: 2}
    assert "ttl=1h" in repr(made) and "127.0.0.1" in repr(made)
