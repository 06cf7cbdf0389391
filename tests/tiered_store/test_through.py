"""A store over two tiers: its answers, its costs, and its behavior when a part fails."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from langgraph.store.base import GetOp, InvalidNamespaceError, Item, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore

from redis_saver import (
    AsyncTieredStore,
    ColdTimeout,
    EncodeError,
    KeyConflict,
    Limits,
    RedisStore,
    ReplicationTimeout,
    TieredStore,
)
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._store import scripts
from redis_saver._tiered.carrying import Direct
from redis_saver.serde import FastSerializer
from tests.support.counting import Counted
from tests.support.growing import until
from tests.support.programs import Program
from tests.support.servers import Server
from tests.support.store_tiering import Recording, StoreTiers, check_copies, later, partition_of, plain
from tests.support.stores import check_sound, later as items_later
from tests.support.tiering import locked, named, wait_for_the_dead
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, elsewhere, fails_on, requests_of, script_of

NS = ("memories", "user")
DEEP = (*NS, "deep")
WARM = ("warm", "up")
pytestmark = pytest.mark.parametrize("target_name", ["redis"])


@pytest.fixture
def store(target: Target) -> Uniform:
    """A store over a cold store in memory that records its calls."""
    return over(target)


def kind_of(target: Target) -> Any:
    return AsyncTieredStore if target.flavour == "async" else TieredStore


def over(target: Target, cold: Recording | None = None, hot: dict[str, Any] | None = None, **settings: Any) -> Uniform:
    return Uniform(kind_of(target)(target.store(**(hot or {})).saver, cold or Recording(), **settings))


def copies(store: Uniform) -> Any:
    return store.saver.stats().copies


async def test_a_read_needs_no_replica_of_hot(target: Target) -> None:
    """It goes without the copy. A put is refused before cold gets it, as its copies could come back."""
    cold = Recording()
    cold.put(NS, "k", {"n": 1})
    store = over(target, cold, hot={"min_replicas": 1, "replica_timeout": 0.01})
    for _ in range(2):
        assert (await store.get(NS, "k")).value == {"n": 1}
        assert [item.value for item in await store.search(NS)] == [{"n": 1}]
    with pytest.raises(ReplicationTimeout):
        await store.put(NS, "k", {"n": 2})
    assert cold.get(NS, "k").value == {"n": 1}


def calls(store: Uniform) -> list[list[str]]:
    """Take the calls of cold since the last time."""
    found = list(store.saver.cold.calls)
    store.saver.cold.calls.clear()
    return found


def check(target: Target, store: Uniform, *labels: str) -> None:
    check_copies(target, store.saver.cold.store, *(labels or NS))


# -- answers


async def test_an_item_from_hot_equals_the_one_in_postgres(store_tiers: StoreTiers) -> None:
    store = await store_tiers.store()
    value = {"t": (1, 2), "b": 1, "a": {"1": 100.0, "n": None}, "s": "é"}
    await store.put(NS, "k", value)
    first = await store.get(NS, "k")
    await store.put(NS, "k", value)
    calls(store)
    item = await store.get(NS, "k")
    assert calls(store) == [] and copies(store).hits == 2
    assert item.value == {**value, "t": [1, 2]}, "values come back as from JSON"
    (in_cold,) = await ask_cold(store, GetOp(NS, "k"))
    assert plain(item) == plain(in_cold) and list(item.value) == list(in_cold.value)
    assert item.created_at == first.created_at and item.updated_at > first.updated_at
    assert item == in_cold


async def ask_cold(store: Uniform, *ops: Any) -> Any:
    cold = store.saver.cold
    return await cold.abatch(ops) if store.native_async else cold.batch(ops)


async def test_a_search_in_hot_equals_the_one_in_postgres(store_tiers: StoreTiers) -> None:
    store = await store_tiers.store()
    for number in range(7):
        ns, kind = (NS, "odd") if number % 2 else (DEEP, "even")
        await store.put(ns, f"k{number}", {"n": number, "kind": kind})
    searches = [
        SearchOp(NS, limit=100),
        SearchOp(NS, limit=3, offset=2),
        SearchOp(DEEP, limit=100),
        SearchOp(NS, {"kind": "odd"}, 100),
        SearchOp(NS, {"kind": "odd", "none": "x"}, 100),
    ]
    by_cold = await ask_cold(store, *searches)
    assert await store.warm(NS)
    calls(store)
    for op, expected in zip(searches, by_cold, strict=True):
        found = await store.search(op.namespace_prefix, filter=op.filter, limit=op.limit, offset=op.offset)
        assert list(map(plain, found)) == list(map(plain, expected)) and found == expected
    assert calls(store) == []
    for prefix, given in (
        (NS, {"filter": {"n": {"$gt": 2}}}),
        (NS, {"filter": {"n": 2}}),
        (NS, {"query": "words"}),
        (NS[:1], {}),
    ):
        await store.search(prefix, **given)
    assert calls(store) == [["SearchOp"]] * 4, "cold answers searches that hot may answer differently"
    assert await store.list_namespaces() == [NS, DEEP]


async def test_reads_of_a_batch_do_not_see_its_puts(store: Uniform) -> None:
    await store.put(NS, "k", {"n": 0})
    ops = [PutOp(NS, "k", {"n": 1}), GetOp(NS, "k"), PutOp(NS, "k", {"n": 2}), GetOp(NS, "none"), SearchOp(NS), PutOp(DEEP, "l", {"n": 3})]  # fmt: skip
    _, item, _, none, found, _ = await store.batch(ops)
    assert item.value == {"n": 0} and none is None and [one.value for one in found] == [{"n": 0}]
    assert (await store.get(NS, "k")).value == {"n": 2}
    calls(store)
    items = await store.batch([GetOp(NS, "k"), GetOp(DEEP, "l"), GetOp(NS, "k")])
    assert [one.value["n"] for one in items] == [2, 3, 2] and calls(store) == []


async def test_hostile_names_work_in_both_tiers(target: Target, store: Uniform) -> None:
    labels = ["a/b", "%", "{x}", "*", "@born", "\1", "é"]
    keys = ["", "@complete", "a\0b", "{k}", "@state"]
    names = [
        ((one, other, *more), key) for one in labels[:4] for other in labels for more in ((), ("x",)) for key in keys
    ]
    for ns, key in names:
        await store.put(ns, key, {"at": [*ns, key]})
    calls(store)
    items = await store.batch([GetOp(ns, key) for ns, key in names])
    assert [one.value["at"] for one in items] == [[*ns, key] for ns, key in names] and calls(store) == []
    for one in labels[:4]:
        for other in labels:
            check(target, store, one, other)
    check_sound_but_notes(target)


def check_sound_but_notes(target: Target) -> None:
    for key in target.keys():
        if key.endswith((b"}:notes", b"}:noted")):
            assert 0 < target.raw.pttl(key) <= 86_400_000
            target.raw.delete(key)
    check_sound(target)


async def test_invalid_operations_are_refused_before_a_request(store: Uniform) -> None:
    for ops, error in (
        ([PutOp((), "k", {})], InvalidNamespaceError),
        ([PutOp(NS, "ok", {"n": 1}), GetOp(("a.b",), "k")], InvalidNamespaceError),
        ([PutOp(NS, "k", {}, None, 5)], ValueError),
        ([SearchOp(NS, {"n": {"$like": 1}})], ValueError),
        (["put"], TypeError),
    ):
        with pytest.raises(error):
            await store.batch(ops)
    with pytest.raises(ValueError, match="two labels"):
        await store.warm(("memories",))
    with pytest.raises(InvalidNamespaceError):
        await store.put(("langgraph", "x"), "k", {})
    assert calls(store) == []
    await store.batch([PutOp(("langgraph", "x"), "k", {"n": 1})])  # as in LangGraph's stores
    assert (await store.get(("langgraph", "x"), "k")).value == {"n": 1}


async def test_options_of_redis_stores_alone_are_refused(store: Uniform) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'if_version'"):
        await store.put(NS, "k", {"n": 1}, if_version=0)
    for name in ("count", "delete_namespace", "sweep_ttl"):
        assert not hasattr(store.saver, name) and not hasattr(store.saver, f"a{name}")
    assert calls(store) == []


def test_invalid_tiers_are_refused_with_a_remedy(target: Target) -> None:
    hot, cold, kind, expires = target.store().saver, InMemoryStore(), kind_of(target), Recording()
    expires.ttl_config = {"default_ttl": 60}
    for arguments, words in (
        ((cold, cold), "hot is a .*InMemoryStore"),
        ((hot, hot), "another store"),
        ((hot, None), "another store"),
        ((hot, expires), "at most half of it"),
        ((target.store(ttl="31m").saver, expires), "at most half of it"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            kind(*arguments)
    with pytest.raises(ValueError, match="bypass"):
        kind(hot, cold, on_hot_error="ignore")
    assert "InMemoryStore" in repr(kind(hot, cold)) and kind(target.store(ttl="30m").saver, expires).ttl_config
    store = over(target).saver
    assert store.supports_ttl == store.cold.supports_ttl


# -- costs


async def test_operations_cost_the_documented_round_trips(target: Target) -> None:
    client = target.client()
    store, warm_up = over(target, hot={"client": client}), over(target)
    for _ in range(2):
        await warm_up.put(WARM, "k", {"n": 1})
        await warm_up.search(WARM)
        await warm_up.get(WARM, "none")
        await warm_up.delete(WARM, "k")
    counter = Counted(client)

    async def costs(call: Any) -> tuple[int, list[list[str]]]:
        counter.take()
        await call
        return len([one for one in counter.take() if one != "EVAL"]), calls(store)

    put, read_back, search = ["PutOp"], ["GetOp"], ["SearchOp"]
    many = [PutOp(NS, f"m{number}", {"n": number}) for number in range(100)]
    for call, trips, of_cold in (
        (lambda: store.put(NS, "k", {"n": 1}), 4, [put, read_back]),  # begin, which is refused, announce, begin, end
        (lambda: store.put(NS, "k", {"n": 2}), 2, [put, read_back]),  # a lone item costs the same
        (lambda: store.put(DEEP, "l", {"n": 2}), 2, [put, read_back]),
        (lambda: store.get(NS, "k"), 1, []),
        (lambda: store.get(NS, "none"), 1, [["GetOp"]]),
        (lambda: store.batch([GetOp(NS, "k"), GetOp(("other", "user"), "k")]), 1, [["GetOp"]]),
        (lambda: store.delete(NS, "k"), 2, [put]),
        (lambda: store.search(NS, filter={"a": "b"}), 1, [search]),
        (lambda: store.search(NS), 3, [search]),  # a search by cold also fills hot
        (lambda: store.search(NS), 2, []),
        (lambda: store.put(NS, "k", {"n": 3}), 2, [put, read_back]),
        (lambda: store.search(NS, filter={"a": "b"}), 2, []),  # hot also has the written item
        (lambda: store.warm(NS), 2, []),
        (lambda: store.batch(many), 2, [put * 100, read_back * 100]),
        (lambda: store.batch([GetOp(NS, f"m{number}") for number in range(100)]), 1, []),
        (lambda: store.batch([*many, PutOp(WARM, "k", {"n": 1})]), 4, [put * 101, read_back * 101]),
        (lambda: store.list_namespaces(), 0, [["ListNamespacesOp"]]),
    ):
        assert await costs(call()) == (trips, of_cold)


async def test_a_write_counts_one_fill_and_no_hit(store: Uniform) -> None:
    """A put reads the item back from cold once, and stores the copy in hot."""
    await store.put(NS, "k", {"n": 1})
    assert (copies(store).hits, copies(store).misses, copies(store).fills, copies(store).refused) == (0, 0, 1, 0)
    await store.get(NS, "k")
    await store.get(NS, "none")
    assert (copies(store).hits, copies(store).misses, copies(store).fills, copies(store).refused) == (1, 1, 1, 0)


async def test_deleted_items_leave_only_notes_for_a_day(target: Target, store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    await store.put(DEEP, "l", {"n": 1})
    await store.search(NS)
    await store.delete(NS, "k")
    await store.delete(DEEP, "l")
    left = [key for key in target.keys() if not key.endswith((b"}:notes", b"}:noted", b"}:retired"))]
    assert left == [] and all(0 < target.raw.pttl(key) <= 86_400_000 for key in target.keys())
    assert await store.search(NS) == [] and await store.get(NS, "k") is None


async def test_old_notes_are_removed(target: Target, store: Uniform) -> None:
    for number in range(120):
        await store.put(NS, f"k{number}", {"n": 1})
    later(target, 300_001)
    await store.put(NS, "k", {"n": 1})
    await store.put(NS, "k", {"n": 1})
    (noted,) = [key for key in target.keys() if key.endswith(b"}:noted")]
    assert target.raw.zrange(noted, 0, -1) == [b"k\0"]
    assert len(target.raw.hkeys(noted[:-1] + b"s")) <= 4


# -- TTL


async def test_reading_a_copy_does_not_extend_its_ttl(target: Target) -> None:
    store = over(target, hot={"ttl": "10m"})
    await store.put(NS, "k", {"n": 1})
    await store.search(NS)
    items_later(target, 6 * 60_000)
    assert (await store.get(NS, "k")).value == {"n": 1} and len(await store.search(NS)) == 1
    calls(store)
    items_later(target, 5 * 60_000)
    assert (await store.get(NS, "k")).value == {"n": 1}
    assert calls(store) == [["GetOp"]], "the read restarts the TTL in cold"
    assert len(await store.search(NS, filter={"x": "y"})) == 0
    check(target, store)


async def test_an_expired_copy_ends_completeness(target: Target) -> None:
    store = over(target, hot={"ttl": "10m"})
    await store.put(NS, "old", {"n": 1})
    items_later(target, 6 * 60_000)
    await store.put(NS, "new", {"n": 1})
    assert len(await store.search(NS)) == 2
    calls(store)
    items_later(target, 5 * 60_000)
    await store.put(NS, "newest", {"n": 1})
    calls(store)
    assert len(await store.search(NS)) == 3
    assert calls(store) == [["SearchOp"]]
    check(target, store)
    assert len(await store.search(NS)) == 3 and calls(store) == []


async def test_a_copy_lives_at_most_half_the_ttl_of_its_item(store_tiers: StoreTiers) -> None:
    """Cold gets the TTL unchanged."""
    cold = Recording(await store_tiers.postgres(ttl={"default_ttl": 60}))
    store = store_tiers.over(cold, {"ttl": timedelta(minutes=30)})
    await store.put(NS, "short", {"n": 1}, ttl=10)
    await store.put(NS, "default", {"n": 1})
    await store.put(NS, "never", {"n": 1}, ttl=None)
    records = store_tiers.target.raw.hgetall(partition_of(store_tiers.target, *NS).keys[0])
    del records[b"@state"]
    ttls = {field: int(record.split(b" ", 3)[2]) for field, record in records.items()}
    assert ttls == {b"short\0": 300_000, b"default\0": 1_800_000, b"never\0": 1_800_000}


# -- failures


@contextmanager
def failing(store: Uniform, script: Any = None) -> Iterator[None]:
    """Let hot fail, from the start or from the first call of `script`."""
    hot, has_failed = store.saver.hot, script is None
    works = hot._driver

    def fails(request: Any) -> bool:
        nonlocal has_failed
        has_failed |= script_of(request) is script
        return has_failed

    fails_on(hot, fails, redis.ConnectionError("on purpose"))
    yield
    hot._driver = works


async def test_hot_failures_are_raised_or_bypassed(target: Target) -> None:
    strict = over(target)
    loose = over(target, strict.saver.cold, on_hot_error="bypass")
    await strict.put(NS, "k", {"n": 1})
    for store in (strict, loose):
        with failing(store), pytest.raises(redis.ConnectionError, match="on purpose"):
            await store.put(NS, "k", {"n": 2})
    assert (await loose.get(NS, "k")).value == {"n": 1}, "nothing was written"
    with failing(strict):
        for call in (strict.get(NS, "k"), strict.search(NS)):
            with pytest.raises(redis.ConnectionError):
                await call
    with failing(loose):
        assert (await loose.get(NS, "k")).value == {"n": 1} and len(await loose.search(NS)) == 1
        assert await loose.list_namespaces() == [NS]
    assert copies(loose).bypasses == 2
    check(target, strict)


async def test_a_write_to_many_partitions_stops_at_the_first_failure(target: Target) -> None:
    """Each request may take seconds until it fails."""
    store = over(target)
    fails_on(store.saver.hot, lambda _: True, redis.TimeoutError("on purpose"))
    asked = requests_of(store.saver.hot)
    with pytest.raises(redis.TimeoutError):
        await store.batch([PutOp(("memories", str(number)), "k", {"n": 1}) for number in range(20)])
    assert len(asked) == 2 and calls(store) == [], "one request begins the intents, one ends them"


async def test_a_hot_failure_during_a_write_leaves_no_copy(target: Target) -> None:
    strict = over(target)
    loose = over(target, strict.saver.cold, on_hot_error="bypass")
    await strict.put(NS, "k", {"n": 1})
    with failing(strict, scripts.END_WRITES), pytest.raises(redis.ConnectionError):
        await strict.put(NS, "k", {"n": 2})
    with failing(loose, scripts.END_WRITES):
        await loose.put(NS, "k", {"n": 3})
    assert copies(loose).bypasses == 1
    for _ in range(2):
        calls(strict)
        assert (await strict.get(NS, "k")).value == {"n": 3} and calls(strict) == [["GetOp"]], "hot has no copy"
    later(target, 300_001)
    assert [(await strict.get(NS, "k")).value["n"] for _ in range(2)] == [3, 3] and calls(strict) == [["GetOp"]]


async def test_a_hot_failure_before_a_fill_is_bypassed(target: Target) -> None:
    store = over(target, on_hot_error="bypass")
    await ask_cold(store, PutOp(NS, "k", {"n": 1}))
    with failing(store, scripts.FILL_COPIES):
        assert (await store.get(NS, "k")).value == {"n": 1}
        assert len(await store.search(NS)) == 1
    assert copies(store).fills == 0 and copies(store).bypasses >= 2


@pytest.mark.parametrize("does_it", [False, True])
async def test_reads_go_to_cold_after_a_failed_write(target: Target, store: Uniform, does_it: bool) -> None:
    """Cold may have stored the item, or store it later. Reads return to hot when the intent has expired."""
    await store.put(NS, "k", {"n": 1})
    await store.search(NS)
    cold = store.saver.cold
    setattr(cold, "then" if does_it else "fails", lambda ops: isinstance(ops[0], PutOp) and OSError("lost"))
    with pytest.raises(OSError, match="lost"):
        await store.put(NS, "k", {"n": 2})
    cold.then = cold.fails = lambda _: None
    for _ in range(2):
        calls(store)
        assert (await store.get(NS, "k")).value == {"n": 1 + does_it} and len(await store.search(NS)) == 1
        assert calls(store) == [["GetOp"], ["SearchOp"]]
    later(target, 300_001)
    await store.get(NS, "k")
    calls(store)
    assert (await store.get(NS, "k")).value == {"n": 1 + does_it} and calls(store) == []
    check(target, store)


async def test_hot_answers_while_cold_is_down(target: Target, store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    store.saver.cold.fails = lambda _: OSError("down")
    assert (await store.get(NS, "k")).value == {"n": 1}, "hot has it"
    for call in (store.get(NS, "none"), store.search(NS), store.warm(NS)):
        with pytest.raises(OSError, match="down"):
            await call
    check(target, store)


async def test_a_hanging_cold_stops_no_reader(store_tiers: StoreTiers) -> None:
    """Nor does a put that waits for a row: each call has a connection and a lock of its own."""
    store = store_tiers.over(await store_tiers.postgres(), cold_timeout=0.3)
    await store.put(NS, "copied", {"n": 1})
    with locked(store_tiers.url, "store"):
        for call in (store.get(NS, "other"), store.search(NS), store.list_namespaces(), store.warm(("a", "b"))):
            with pytest.raises(ColdTimeout, match="batch did not end within 0.3 seconds"):
                await call
        assert (await store.get(NS, "copied")).value == {"n": 1}
    with psycopg.connect(store_tiers.url) as other:
        other.execute("UPDATE store SET updated_at = now() WHERE key = 'copied'")
        put = asyncio.ensure_future(store.saver.aput(NS, "copied", {"n": 2}))
        await asyncio.sleep(0.1)
        assert await store.get(NS, "other") is None and not put.done()
    await put
    assert (await store.get(NS, "copied")).value == {"n": 2}


async def test_a_put_succeeds_if_its_item_cannot_be_read_back(target: Target, store: Uniform, caplog: Any) -> None:
    store.saver.cold.fails = lambda ops: isinstance(ops[0], GetOp) and OSError("down")
    await store.put(NS, "k", {"n": 1})
    assert copies(store).errors == 1 and "read back" in caplog.text
    store.saver.cold.fails = lambda _: None
    assert [(await store.get(NS, "k")).value for _ in range(2)] == [{"n": 1}] * 2
    assert copies(store).hits == 1 and copies(store).fills == 1


@pytest.mark.parametrize("ending", ["items", "order", "namespaces", "notes", "noted", "expiring"])
@pytest.mark.parametrize("ttl", [None, "10m"])
@pytest.mark.by_turns
async def test_answers_survive_the_eviction_of_any_key(target: Target, ending: str, ttl: Any) -> None:
    store = over(target, hot={"ttl": ttl})
    changes: dict[str, Any] = {"put": (NS, "k", {"n": 2}), "delete": (NS, "k"), "search": (NS,), "warm": (NS,)}
    for change in ("nothing", *changes):
        await store.put(NS, "k", {"n": 1})
        await store.put(DEEP, "l", {"n": 1})
        await store.search(NS)
        for key in target.keys():
            if key.endswith(b"}:" + ending.encode()) and b"{%}" not in key:
                target.raw.delete(key)
        if change in changes:
            await getattr(store, change)(*changes[change])
        items = await store.batch([GetOp(NS, "k"), GetOp(DEEP, "l")])
        assert [one and one.value["n"] for one in items] == [{"put": 2, "delete": None}.get(change, 1), 1]
        assert len(await store.search(NS)) == 2 - (change == "delete")
        check(target, store)


async def test_notes_evicted_during_a_write_leave_no_stale_copy(target: Target, store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    await store.search(NS)
    other = over(target, store.saver.cold)

    def lose(ops: Any) -> None:
        if isinstance(ops[0], PutOp):
            target.raw.delete(*[key for key in target.keys() if key.endswith((b"}:notes", b"}:noted"))], "none")

    store.saver.cold.fails = lose
    await store.put(NS, "k", {"n": 2})
    store.saver.cold.fails = lambda _: None
    check(target, store)
    assert (await other.get(NS, "k")).value == {"n": 2} and len(await other.search(NS)) == 1
    check(target, store)


async def test_a_late_fill_is_refused(target: Target, store: Uniform) -> None:
    await ask_cold(store, PutOp(NS, "k", {"n": 1}))

    def around(request: Any) -> Any:
        if script_of(request) is scripts.FILL_COPIES:
            token, announced, miss, *rest = request.arguments
            born, last, at = miss.split()
            late = b"%s %s %d" % (born, last, int(at) - 150_001)
            request = request._replace(arguments=(token, announced, late, *rest))
        return (yield request)

    Around(store.saver.hot, around)
    await store.get(NS, "k")
    await store.search(NS)
    assert (copies(store).fills, copies(store).refused) == (0, 1)
    check(target, store)


@pytest.mark.parametrize("on_hot_error", ["raise", "bypass"])
@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_full_hot_store_deletes_and_answers_from_cold(target: Target, on_hot_error: Any) -> None:
    server = Server("--maxmemory-policy", "noeviction")
    full = Target("redis", "sync", server.url, "full")
    store = over(full, on_hot_error=on_hot_error)
    for key in "kl":
        await store.put(NS, key, {"n": 1})
    await ask_cold(store, PutOp(NS, "m", {"n": 1}))
    assert len(await store.search(NS)) == 3, "hot has all"
    full.raw.config_set("maxmemory", 1)
    await store.put(NS, "k", {"n": 2})
    assert len(full.raw.hget(partition_of(full, *NS).keys[6], "k\0").split()) == 1, "the write has ended"
    check(full, store)
    assert [(await store.get(NS, key)).value["n"] for key in "klm"] == [2, 1, 1]
    assert len(await store.search(NS)) == 3
    await store.delete(NS, "l")
    assert await store.get(NS, "l") is None
    check(full, store)
    full.raw.config_set("maxmemory", 0)
    assert [len(await store.search(NS)) for _ in range(2)] == [2, 2]
    assert copies(store).hits >= 2 and copies(store).refused >= 3 and copies(store).bypasses == 0
    check(full, store)
    server.stop()


async def test_a_value_that_hot_refuses_is_in_cold_alone(target: Target) -> None:
    store = over(target, hot={"limits": Limits(value_bytes=1000)})
    await store.put(NS, "big", {"text": "x" * 2000})
    await store.put(NS, "object", {"o": object()})
    assert len((await store.get(NS, "big")).value["text"]) == 2000
    assert type((await store.get(NS, "object")).value["o"]) is object
    assert len(await store.search(NS)) == 2 and not await store.warm(NS)
    assert copies(store).hits == copies(store).fills == 0
    with pytest.raises(EncodeError):
        await target.store().put(NS, "object", {"o": object()})


class Unreadable(FastSerializer):
    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise ValueError("another key")


async def test_an_undecodable_copy_is_replaced_from_cold(target: Target, store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    await store.search(NS)
    other = over(target, store.saver.cold, hot={"serde": Unreadable()})
    assert (await other.get(NS, "k")).value == {"n": 1} and copies(other).repairs == 1
    assert len(await store.search(NS)) == 1
    assert (await other.search(NS))[0].value == {"n": 1}
    check(target, store)


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("ttl", [None, timedelta(hours=1)])
async def test_a_damaged_directory_of_copies_is_repaired(target: Target, lost: tuple[int, ...], ttl: Any) -> None:
    store = over(target, hot={"ttl": ttl})
    await store.put(NS, "k", {"n": 1})
    directory = StoreKeyspace(target.prefix).directory
    for act, arguments in (("put", ("k", {"n": 2})), ("get", ("k",)), ("warm", ())):
        if lost == (0, 2) and ttl is None and target.raw.zcard(directory[1]) == 0:
            target.raw.zadd(directory[1], {"x\0": 2**50})  # as if another entry had an expiry
        target.raw.delete(*(directory[each] for each in lost))
        new = ("memories", f"new-{act}")
        if act != "put":
            store.saver.cold.store.put(new, "k", {"n": 2})
        await getattr(store, act)(new, *arguments)
        assert (await store.get(new, "k")).value == {"n": 2}
        check(target, store, *new)


@pytest.mark.by_turns
@pytest.mark.parametrize("part", [0, 1, 3])
async def test_warm_fills_a_partition_that_loses_a_key_meanwhile(target: Target, part: int) -> None:
    """Cold has everything, so hot drops the rest and is filled again."""
    store, keys = over(target), StoreKeyspace(target.prefix).partition(b"memories\0user\0").keys
    for key in "abc":
        await store.put(DEEP, key, {"n": 1})
    cold = store.saver.cold

    def evicts(_: Any) -> None:
        target.raw.delete(keys[part])
        cold.then = lambda _: None

    cold.then = evicts
    assert await store.warm(NS)
    assert len(await store.search(NS)) == 3
    check(target, store)


async def test_many_undecodable_copies_are_removed_together(target: Target) -> None:
    store, client = over(target), target.client()
    other = over(target, store.saver.cold, hot={"serde": Unreadable(), "client": client})
    for read in ([GetOp(NS, f"k{number}") for number in range(20)], [SearchOp(NS, limit=100)]):
        await store.batch([PutOp(NS, f"k{number}", {"n": number}) for number in range(20)])
        assert await store.warm(NS)
        counter = Counted(client)
        found = await other.batch(read)
        assert len(found if len(read) > 1 else found[0]) == 20
        assert len([one for one in counter.take() if one != "EVAL"]) <= 4
    assert copies(other).repairs == 40


async def test_a_leaking_prefix_in_cold_exposes_no_other_namespace(target: Target, store: Uniform) -> None:
    """Some LangGraph stores take `user` for a prefix of `user-2`."""
    cold, works = store.saver.cold, store.saver.cold._done

    def leak(ops: Any, results: Any) -> Any:
        for number, op in enumerate(ops):
            if isinstance(op, SearchOp):
                prefix, everything = ".".join(op.namespace_prefix), cold.store.search((), limit=100)
                results[number] = [one for one in everything if ".".join(one.namespace).startswith(prefix)]
        return works(ops, results)

    cold._done = leak
    await ask_cold(store, PutOp(NS, "own", {"n": 1}), PutOp(("memories", "user-2"), "secret", {"n": 2}))
    await store.search(NS)
    assert not await store.warm(NS)
    assert await store.get(NS, "secret") is None
    assert (await store.get(NS, "own")).value == {"n": 1} and copies(store).hits == 1
    check(target, store)


async def test_a_name_that_hot_refuses_is_read_from_cold(target: Target) -> None:
    store, long = over(target, hot={"limits": Limits(name_bytes=50)}), "x" * 60
    await ask_cold(store, PutOp((*NS, long), "k", {"n": 1}), PutOp(NS, long, {"n": 2}), PutOp(NS, "k", {"n": 3}))
    for _ in range(2):
        assert sorted(one.value["n"] for one in await store.search(NS)) == [1, 2, 3]
    assert not await store.warm(NS) and copies(store).hits == 0
    assert (await store.get(NS, "k")).value == {"n": 3} and copies(store).hits == 1


async def test_items_stored_without_tiers_are_not_copies(target: Target, store: Uniform) -> None:
    alone = target.store()
    await alone.put(NS, "k", {"n": 1})
    for call in (store.get(NS, "k"), store.put(NS, "k", {"n": 2}), store.delete(NS, "k")):
        with pytest.raises(KeyConflict, match="(no|not a) copy"):
            await call
    assert (await alone.get(NS, "k")).value == {"n": 1} and calls(store) == []


async def test_a_search_notices_a_concurrent_item_that_hot_refuses(target: Target) -> None:
    limits = {"limits": Limits(value_bytes=1000)}
    store = over(target, hot=limits)
    cold = store.saver.cold
    other = over(target, Recording(cold.store), hot=limits)
    await store.put(NS, "k", {"n": 1})

    def meanwhile(ops: Any) -> None:
        if isinstance(ops[0], SearchOp):
            cold.then = lambda _: None
            elsewhere(lambda: other.put(NS, "big", {"text": "x" * 2000}))

    cold.then = meanwhile
    assert len(await store.search(NS)) == 1
    assert len(await store.search(NS)) == 2
    check(target, store)


async def test_an_item_requested_twice_is_filled_once(target: Target, store: Uniform) -> None:
    await ask_cold(store, PutOp(NS, "k", {"n": 1}), PutOp(NS, "l", {"n": 1}))
    items = await store.batch([GetOp(NS, "k"), GetOp(NS, "k"), GetOp(NS, "l"), GetOp(NS, "k")])
    assert [one.value for one in items] == [{"n": 1}] * 4
    assert copies(store).fills == 2
    check(target, store)
    check_sound_but_notes(target)


# -- processes


@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_forked_child_has_its_own_connections(store_tiers: StoreTiers) -> None:
    store: Any = (await store_tiers.store()).saver
    store.cold = store.cold.store  # Postgres itself, whose connections can be renewed
    store._driver = store._driver.over(store.hot, store.cold, Direct(store.cold))
    store.put(NS, "k", {"n": 1})
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            store.put(NS, "child", {"n": 2})
            os.write(write, b"ok" if store.get(NS, "none") is None and len(store.search(NS)) == 2 else b"no")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 2) == b"ok"
    assert store.get(NS, "child").value == {"n": 2} and len(store.search(NS)) == 2


@pytest.mark.parametrize("flavour", ["async"])
async def test_event_loops_and_os_threads_share_a_store(store_tiers: StoreTiers) -> None:
    hot = store_tiers.target.store().saver
    store: Any = AsyncTieredStore(hot, await store_tiers.postgres())  # type: ignore[arg-type]
    await store.aput(NS, "k", {"n": 1})

    async def elsewhere() -> Any:
        await store.aput(NS, "l", {"n": 2})
        return await store.aget(NS, "k"), await store.aget(NS, "none")

    found, none = await asyncio.to_thread(asyncio.run, elsewhere())
    assert found.value == {"n": 1} and none is None
    assert (await asyncio.to_thread(store.get, NS, "l")).value == {"n": 2}
    assert len(await store.asearch(NS)) == 2


@pytest.mark.parametrize("flavour", ["async"])
async def test_a_blocking_store_may_be_cold(store_tiers: StoreTiers) -> None:
    blocking = StoreTiers(Target("redis", "sync", store_tiers.target.url, "none"), store_tiers.url)
    store = store_tiers.over(await blocking.postgres())
    await asyncio.gather(*[store.put(NS, f"k{number}", {"n": number}) for number in range(20)])
    assert sorted([one.value["n"] for one in await store.search(NS, limit=100)]) == list(range(20))
    await blocking.close()


async def test_sixteen_concurrent_writers_leave_one_value_everywhere(store_tiers: StoreTiers) -> None:
    stores = [await store_tiers.store() for _ in range(4)]
    first = stores[0]
    await first.put(NS, "k", {"n": -1})
    created = (await first.get(NS, "k")).created_at

    async def some(number: int) -> None:
        await stores[number % 4].put(NS, "k", {"n": number})
        await stores[(number + 1) % 4].get(NS, "k")

    await asyncio.gather(*[some(number) for number in range(16)])
    (in_cold,) = await ask_cold(first, GetOp(NS, "k"))
    for store in stores:
        assert plain(await store.get(NS, "k")) == plain(in_cold)
    assert in_cold.created_at == created


@pytest.mark.parametrize("flavour", ["async"])
async def test_a_cancelled_write_leaves_nothing_stale(target: Target, store: Uniform) -> None:
    """Cold may store the item later, so reads go to cold."""
    await store.put(NS, "k", {"n": 0})
    cold, begun = store.saver.cold, asyncio.Event()
    works = cold.abatch

    async def slow(ops: Any) -> Any:
        begun.set()
        await asyncio.sleep(60)

    cold.abatch = slow
    task = asyncio.ensure_future(store.put(NS, "k", {"n": 1}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cold.abatch = works
    await cold.aput(NS, "k", {"n": 1})  # the late write
    assert [(await store.get(NS, "k")).value for _ in range(2)] == [{"n": 1}] * 2
    check(target, store)
    later(target, 300_001)
    await store.put(NS, "k", {"n": 2})
    calls(store)
    assert (await store.get(NS, "k")).value == {"n": 2} and calls(store) == []


def write_for_ever(redis_url: str, prefix: str, postgres_url: str, seed: str) -> None:
    """Write until this process is killed."""
    chance = random.Random(seed)
    with PostgresStore.from_conn_string(postgres_url) as cold:
        store = TieredStore(RedisStore(redis.Redis.from_url(redis_url), prefix=prefix), cold)
        while True:
            name = NS if chance.random() < 0.5 else DEEP, chance.choice("klm")
            value = None if chance.random() < 0.2 else {"by": seed, "n": chance.random()}
            store.batch([PutOp(*name, value), PutOp(NS, f"own-{seed}", value)])
            store.batch([GetOp(*name), SearchOp(NS, limit=100)])


@pytest.mark.parametrize("flavour", ["sync"])
async def test_killed_processes_leave_hot_as_postgres(store_tiers: StoreTiers) -> None:
    target, store = store_tiers.target, await store_tiers.store()
    given = target.url, target.prefix, named(store_tiers.url, target.prefix)
    options: Any = {"environment": os.environ, "folder": Path(__file__).parents[2], "err": sys.__stderr__}
    with open(os.devnull, "wb") as out:
        processes = [Program(__file__, *given, str(seed), out=out, **options) for seed in range(3)]

    async def has_all() -> bool:
        return len(await store.search(NS)) >= 3

    await until(has_all, 60)
    await asyncio.sleep(0.5)
    for one in processes:
        one.kill()
        one.wait()
    wait_for_the_dead(store_tiers.url, target.prefix)
    names = [(ns, key) for ns in (NS, DEEP) for key in ("k", "l", "m", "own-0", "own-1", "own-2")]
    for passed in (0, 300_001):
        later(target, passed)
        for _ in range(2):
            items = await store.batch([GetOp(*name) for name in names])
            assert list(map(plain, items)) == list(map(plain, await ask_cold(store, *[GetOp(*name) for name in names])))
            (found,) = await ask_cold(store, SearchOp(NS, limit=100))
            assert sorted(map(plain, await store.search(NS, limit=100))) == sorted(map(plain, found))
    assert copies(store).hits > 0
    check_sound_but_notes(target)


async def test_a_directory_that_refuses_a_partition_blocks_no_answer(target: Target, store: Uniform) -> None:
    await ask_cold(store, PutOp(NS, "l", {"n": 0}))

    def around(request: Any) -> Any:
        reply = yield request
        return [b"1", b"0"] if script_of(request) is scripts.ANNOUNCE else reply

    target.raw.set(partition_of(target, *NS).keys[5], "9 9")
    Around(store.saver.hot, around)
    assert (await store.get(NS, "l")).value == {"n": 0} and len(await store.search(NS)) == 1
    await store.put(NS, "k", {"n": 1})
    assert (await store.get(NS, "k")).value == {"n": 1}
    assert copies(store).fills == 0 and copies(store).refused >= 3


async def test_naive_times_of_cold_become_utc(store: Uniform) -> None:
    """`SqliteStore` returns naive times."""
    cold = store.saver.cold
    works = cold._done

    def naive(ops: Any, results: Any) -> Any:
        for one in itertools.chain.from_iterable(each if isinstance(each, list) else [each] for each in results):
            if isinstance(one, Item):
                one.created_at, one.updated_at = datetime(2026, 1, 1), datetime(2026, 1, 2, 3, 4, 5, 6)
        return works(ops, results)

    cold._done = naive
    await ask_cold(store, PutOp(NS, "k", {"n": 1}))
    missed, found = await store.get(NS, "k"), (await store.search(NS, filter={"n": 1}))[0]
    hit, page = await store.get(NS, "k"), [await store.search(NS) for _ in range(2)]
    assert copies(store).hits == 2
    for one in (missed, found, hit, page[0][0], page[1][0]):
        assert one.created_at == datetime(2026, 1, 1, tzinfo=timezone.utc)
        assert one.updated_at == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)


if __name__ == "__main__":
    write_for_ever(*sys.argv[1:])
