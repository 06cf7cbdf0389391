"""Expiry of items. None is returned after its deadline, and nothing of it stays."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.support.counting import Counted, load_scripts
from langgraph.store.base import GetOp, PutOp
from tests.support.stores import check_sound, directory, later, members, state_of
from tests.support.uniform import Target, Uniform

from redis_saver._common.store_names import StoreKeyspace

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async", fakeredis="sync")

NS, MINUTE = ("memories", "user-1"), 60_000


async def seen(store: Uniform) -> set[Any]:
    """Return the keys of all items, and check that every way of reading agrees."""
    ways = [
        {item.key for item in await store.search((), limit=100, refresh_ttl=False)},
        {item.key for item in await store.search(NS, limit=100, refresh_ttl=False)},
        {item.key for item in await store.search(NS, filter={"n": {"$gte": 0}}, limit=100, refresh_ttl=False)},
        {item.key for item in await store.batch([GetOp(NS, f"k{n}", False) for n in range(10)]) if item},
    ]
    assert all(way == ways[0] for way in ways), ways
    assert await store.count() == len(ways[0])
    assert await store.list_namespaces() == ([NS] if ways[0] else [])
    return ways[0]


async def test_no_read_returns_an_expired_item(target: Target) -> None:
    store, other = target.store(ttl="10m"), target.store()
    await store.put(NS, "k0", {"n": 0})
    await store.put(NS, "k1", {"n": 1}, ttl=30)
    await store.put(NS, "k2", {"n": 2}, ttl=None)
    await other.put(NS, "k3", {"n": 3})
    for minutes, left in (
        (5, {"k0", "k1", "k2", "k3"}),
        (6, {"k1", "k2", "k3"}),
        (20, {"k2", "k3"}),
        (1e6, {"k2", "k3"}),
    ):
        later(target, int(minutes * MINUTE))
        assert await seen(store) == await seen(other) == left
        check_sound(target)


async def test_items_expire_in_real_time(store: Uniform, target: Target) -> None:
    """Expiry needs no sweep, even on servers without TTLs of hash fields."""
    began = time.monotonic()
    await store.put(NS, "k0", {"n": 0}, ttl=0.2 / 60)
    await store.put(NS, "k1", {"n": 1}, ttl=60)
    assert len(await store.search(NS)) == 2 or time.monotonic() - began > 0.2
    await asyncio.sleep(0.25)
    assert await seen(store) == {"k1"}


async def test_puts_and_reads_restart_the_ttl(target: Target) -> None:
    store = target.store(ttl={"default_ttl": 10})
    for key in ("k0", "k1", "k2", "k3", "k4"):
        await store.put(NS, key, {"n": int(key[1])})
    later(target, 6 * MINUTE)
    await store.put(NS, "k0", {"n": 0})
    assert await store.get(NS, "k1")
    assert [one.key for one in await store.search(NS, filter={"n": 2})] == ["k2"]
    assert await store.get(NS, "k3", refresh_ttl=False)
    await store.search(NS, limit=1, refresh_ttl=True)
    later(target, 6 * MINUTE)
    assert await seen(store) == {"k0", "k1", "k2"}
    assert [one.key for one in await store.search((), limit=2)] == ["k0", "k2"]
    later(target, 6 * MINUTE)
    assert await seen(store) == {"k0", "k2"}
    check_sound(target)


async def test_an_unchanged_cached_page_restarts_the_ttl(target: Target) -> None:
    store = target.store(ttl="10m")
    await store.put(NS, "k0", {"n": 0})
    for _ in range(5):
        later(target, 6 * MINUTE)
        assert len(await store.search(NS)) == 1


async def test_refresh_on_read_false_applies_to_gets_and_searches(target: Target) -> None:
    store = target.store(
        ttl={"default_ttl": 10, "refresh_on_read": False, "omit_expired": False, "sweep_interval_minutes": 5}
    )
    await store.put(NS, "k0", {"n": 0})
    await store.put(NS, "k1", {"n": 1})
    later(target, 6 * MINUTE)
    assert await store.get(NS, "k0") and await store.search(NS)
    assert await store.get(NS, "k1", refresh_ttl=True)
    later(target, 6 * MINUTE)
    assert await seen(store) == {"k1"}


async def test_each_put_sets_or_removes_the_ttl(store: Uniform, target: Target) -> None:
    await store.put(NS, "k0", {"n": 0}, ttl=10)
    await store.put(NS, "k1", {"n": 1})
    check_sound(target)
    await store.put(NS, "k0", {"n": 0})
    await store.put(NS, "k1", {"n": 1}, ttl=10)
    check_sound(target)
    later(target, 11 * MINUTE)
    assert await seen(store) == {"k0"}


@pytest.mark.parametrize("ttl", ["10m", timedelta(minutes=10), {"default_ttl": 10}])
async def test_every_key_expires_if_every_item_has_a_ttl(target: Target, ttl: Any) -> None:
    store = target.store(ttl=ttl)
    for ns in (NS, (*NS, "deep"), ("one",)):
        for key in ("a", "b"):
            await store.put(ns, key, {"n": 1})
            await store.get(ns, key)
            await store.search(ns[:1])
            await store.search(ns, filter={"n": 1})
    await store.delete(("one",), "a")
    await store.delete_namespace((*NS, "deep"))
    left = {key: target.raw.pttl(key) for key in target.keys()}
    assert all(0 < one for one in left.values()), left
    items = [left[key] for key in left if b"%" not in key and not key.endswith(b":retired")]
    assert max(items) <= 12 * MINUTE
    of_directory = {one for key, one in left.items() if b"%" in key}
    assert max(of_directory) <= 30 * MINUTE
    check_sound(target)


async def test_refreshed_items_are_announced_again_now_and_then(target: Target) -> None:
    """Reads keep extending the item's life, and the directory lists it throughout."""
    client = target.client()
    store, counter = target.store(client=client, ttl="60m"), Counted(client)
    load_scripts(target.raw)
    await store.put(NS, "k0", {"n": 0})
    trips = []
    for number in range(20):
        later(target, 30 * MINUTE)
        counter.take()
        if number % 3 == 0:
            assert await store.get(NS, "k0")
        elif number % 3 == 1:
            assert await store.search(NS)
        else:
            assert await store.search(NS, filter={"n": 0})
        trips.append(len([one for one in counter.take() if "EVAL" in one or one == "PIPELINE"]))
        assert directory(target) == [b"memories\0user-1\0"]
        check_sound(target)
    # A filtered search refreshes in a second trip, and an announcement takes two more.
    # On a slow run there may be one more announcement.
    assert sum(trips) <= 20 + 7 + 2 * 9, trips


async def test_a_partition_is_announced_until_its_last_deadline(target: Target, store: Uniform) -> None:
    await store.put(NS, "k0", {"n": 0}, ttl=10)
    member = b"memories\0user-1\0"
    deadlines = StoreKeyspace(target.prefix).directory[1]
    for ttl in (11, 1000, None, 5):
        await store.put(NS, "k1", {"n": 1}, ttl=ttl)
        announced, deadline = state_of(target, member)["announced"], target.raw.zscore(deadlines, member)
        assert announced == (deadline or 0)
        check_sound(target)
    assert announced == 0


@pytest.mark.also_on(cluster="sync")
async def test_items_that_expire_together_are_all_removed(target: Target, store: Uniform) -> None:
    ops = [PutOp(NS, f"x{number}", {"n": number}, None, 10) for number in range(2500)]
    await store.batch([*ops, PutOp(NS, "k1", {"n": 1})])
    later(target, 11 * MINUTE)
    assert await seen(store) == {"k1"}
    check_sound(target)


async def test_sweep_ttl_removes_expired_items_that_no_one_reads(target: Target, store: Uniform) -> None:
    for user in ("1", "2", "3"):
        await store.put(("users", user), "short", {}, ttl=10)
    await store.put(("users", "3"), "long", {}, ttl=100)
    assert await store.sweep_ttl() == 0
    later(target, 11 * MINUTE)
    assert len(members(target)) == 3
    assert await store.sweep_ttl() == 3
    assert members(target) == directory(target) == [b"users\x003\0"]
    check_sound(target)


async def test_new_partitions_remove_expired_ones_from_the_directory(target: Target, store: Uniform) -> None:
    """No one lists namespaces, and the keys of the partitions have expired."""
    keyspace = StoreKeyspace(target.prefix)
    for number in range(30):
        await store.put(("users", f"{number:02}"), "k", {}, ttl=10)
    for member in members(target):
        target.raw.unlink(*keyspace.partition(member).keys)
    later(target, 60 * MINUTE)
    for number in range(100, 103):
        await store.put(("users", str(number)), "k", {}, ttl=10)
    assert len(directory(target)) == 3
    check_sound(target)
