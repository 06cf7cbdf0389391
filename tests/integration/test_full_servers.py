"""A full server refuses whatever stores values, before its first write, and accepts removals and the flush."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from tests.support.factories import config, put
from tests.support.growing import outcome
from tests.support.servers import TARGETS, a_server, releases
from tests.support.stores import later
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Meanwhile, ran, script_of

from redis_saver import AsyncRedisCache, AsyncTieredSaver, AsyncTieredStore, RedisCache, TieredSaver, TieredStore
from redis_saver._store import scripts, writing

NS, MARK = ("m", "u"), "a value that must not be stored"
SINGLE = [target for target in TARGETS if target in ("redis", "redis62", "valkey")]
pytestmark = [pytest.mark.by_turns, pytest.mark.parametrize("target_name", [*SINGLE, *releases()])]


@pytest.fixture
async def target(target_name: str, flavour: str) -> AsyncIterator[Target]:
    """A server for one test."""
    server = a_server(target_name, "--maxmemory-policy", "noeviction")
    made = Target(target_name, flavour, server.url, "full")
    yield made
    await made.close()
    server.stop()


def tiered(target: Target, store: Any = None, **settings: Any) -> Uniform:
    """A saver over two tiers, or a store over two tiers if one is given."""
    is_async = target.flavour == "async"
    if store is not None:
        return Uniform((AsyncTieredStore if is_async else TieredStore)(store.saver, InMemoryStore(), **settings))
    return Uniform((AsyncTieredSaver if is_async else TieredSaver)(target.uniform().saver, InMemorySaver(), **settings))


def is_stored(target: Target) -> bool:
    """True if the server has the marked value anywhere."""
    return any(MARK.encode() in (target.raw.dump(key) or b"") for key in target.keys())


async def check_refused(target: Target, *calls: Callable[[], Awaitable[Any]]) -> None:
    for number, call in enumerate(calls):
        keys = target.keys()
        assert isinstance(await outcome(call()), redis.OutOfMemoryError), number
        assert not is_stored(target) and {*target.keys()} <= {*keys}, number


async def test_a_saver(target: Target) -> None:
    saver, caches = target.uniform(), {"sync": RedisCache, "async": AsyncRedisCache}
    cache: Any = caches[target.flavour](target.client(), prefix="full-cache", on_error="raise")
    newest = await put(saver, config(), {"n": 1})
    target.raw.config_set("maxmemory", 1)
    await check_refused(
        target,
        lambda: put(saver, newest, {"n": MARK}),
        lambda: put(saver, config("new"), {"n": MARK}),
        lambda: saver.put_writes(newest, [("n", MARK)], "task"),
        lambda: saver.put_writes(newest, [("__interrupt__", MARK)], "task"),
        lambda: saver.copy_thread("thread", "new"),
        lambda: cache.aset({(("ns",), "key"): (MARK, 60)}),
    )
    assert (await saver.get_tuple(config())).config == newest
    await saver.prune(["thread"])
    await saver.delete_thread("thread")
    assert target.keys() == []


async def test_a_store_whose_items_have_expired(target: Target) -> None:
    """A script removes these first, after which the server would accept the rest of it."""
    store, other = target.store(), target.store()
    for key, ttl in (("new", 1), ("lasting", None), ("import", 1)):
        await store.put(NS, key, {"n": 1}, ttl=ttl)

    async def expire() -> None:
        target.raw.config_set("maxmemory", 0)
        await other.put(NS, "old", {"n": 1}, ttl=1)
        later(target, 61_000)
        target.raw.config_set("maxmemory", 1)

    async def expired(call: Callable[[], Awaitable[Any]]) -> Any:
        await expire()
        return await call()

    # An import announces the partition in between, and then an item expires again.
    Meanwhile(store.saver, lambda request: expire if script_of(request) is scripts.IMPORT_ITEMS else None)

    context = store.saver._context
    item = writing.StoredItem(NS, "import", {"n": MARK}, 1, 1, 0, 0, 1)
    one = writing.as_import(context, item, 0)
    bring: Any = lambda: ran(store, writing.import_items(context, one.partition, [one], writing.new_put()))  # noqa: E731
    for call in (lambda: store.put(NS, "new", {"n": MARK}), lambda: store.put((*NS, "deep"), "k", {"n": MARK}), bring):
        await check_refused(target, lambda call=call: expired(call))
        assert target.raw.zcard(one.partition.keys[1]) == 1, "expired items are gone"
    with pytest.raises(redis.ResponseError, match="used memory"):
        target.raw.eval(scripts.DOCUMENT_ITEMS.text, 6, *one.partition.keys[:6], "", "2")
    await expired(lambda: store.delete(NS, "lasting"))
    assert await store.get(NS, "lasting") is None
    target.raw.config_set("maxmemory", 0)
    await store.put(NS, "read", {"n": 1}, ttl=10)
    target.raw.config_set("maxmemory", 1)
    assert (await store.get(NS, "read")).value == {"n": 1}, "it also restarts the TTL"
    for search in (store.search(NS), store.search(NS, filter={"n": 1}), store.list_namespaces()):
        assert len(await search) == 1
    assert await store.delete_namespace(NS) == 1


async def test_a_tiered_store(target: Target) -> None:
    hot = target.store(require_primary=True)
    store = tiered(target, hot)
    await store.put(NS, "k", {"n": 1})
    await store.saver.cold.aput(NS, "cold", {"n": MARK})
    await hot.put(("other", "u"), "old", {"n": 1}, ttl=1)
    later(target, 61_000)
    target.raw.config_set("maxmemory", 1)
    await store.put(NS, "k", {"n": MARK})
    assert (await store.get(NS, "k")).value == (await store.get(NS, "cold")).value == {"n": MARK}
    assert len(await store.search(NS)) == 2
    assert not is_stored(target)
    await store.delete(NS, "k")
    assert await store.get(NS, "k") is None


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
async def test_two_tiers(target: Target, mode: Any) -> None:
    saver = tiered(target, mode=mode, **({"flusher": False} if mode == "write-behind" else {}))
    assert await saver.get_tuple(config()) is None
    newest = await put(saver, config(), {"n": 1})
    await put(Uniform(saver.saver.cold), config("cold"), {"n": MARK})
    target.raw.config_set("maxmemory", 1)
    assert (await saver.get_tuple(config("cold"))).checkpoint["channel_values"] == {"n": MARK}
    assert not is_stored(target) and saver.saver.stats().tiers.rehydrations == 0
    await check_refused(
        target, lambda: put(saver, newest, {"n": MARK}), lambda: saver.put_writes(newest, [("n", MARK)], "task")
    )
    if mode == "write-behind":
        assert await saver.flush() == 0
    await saver.delete_thread("thread")
    assert await saver.get_tuple(config()) is None
