"""Reads of partitions without TTLs, which use a plain command instead of a script, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import GetOp

from redis_saver import KeyConflict, StoreDamaged, UnsupportedFormat
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._store.context import LocalCache
from tests.support.counting import Counted
from tests.support.stores import check_sound, later
from tests.support.uniform import Target, Uniform

NS = ("memories", "ada")
MINUTE = 60_000


def items_key(target: Target) -> bytes:
    return StoreKeyspace(target.prefix).partition(b"memories\0ada\0").keys[0]


async def warm(target: Target, **options: Any) -> tuple[Uniform, Counted]:
    """Return a store that has read an item of a partition without TTLs, and its client's counter."""
    client = target.client()
    store = target.store(client=client, **options)
    await store.put(NS, "k", {"n": 1})
    assert (await store.get(NS, "k")).value == {"n": 1}
    return store, Counted(client)


@pytest.mark.everywhere
async def test_a_second_read_uses_a_plain_command(target: Target) -> None:
    store, counted = await warm(target)
    await target.store().put(NS, "l", {"n": 2})
    found = await store.get(NS, "l")
    assert found.value == {"n": 2} and await store.get(NS, "none") is None
    in_cluster = target.name == "cluster"
    assert counted.take() == ["EVALSHA" if in_cluster else "hmget"] * 2
    ops = [GetOp(NS, "k"), GetOp(NS, "none"), GetOp(NS, "l"), GetOp((*NS, "deep"), "k")]
    assert [item and item.value["n"] for item in await store.batch(ops)] == [1, None, 2, None]
    assert await store.get(("other", "user"), "k") is None
    await target.store().delete_namespace(NS)
    assert await store.get(NS, "k") is None
    await store.put(NS, "k", {"n": 3})
    assert (await store.get(NS, "k")).value == {"n": 3}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_new_ttl_is_noticed_at_once(target: Target) -> None:
    """The first read after it costs one more round trip."""
    store, counted = await warm(target)
    await target.store().put(NS, "short", {"n": 2}, ttl=10)
    for refresh in (True, False):
        counted.take()
        assert (await store.get(NS, "short", refresh_ttl=refresh)).value == {"n": 2}
        assert counted.take() == (["hmget", "EVALSHA"] if refresh else ["EVALSHA"])
        later(target, 6 * MINUTE)
    assert await store.get(NS, "short") is None, "the second read did not restart the TTL"
    check_sound(target)
    await store.get(NS, "k")
    counted.take()
    assert (await store.get(NS, "k")).value == {"n": 1}
    assert counted.take() == ["hmget"], "nothing has a TTL any more"


@pytest.mark.parametrize("target_name", ["redis", "fakeredis"])
async def test_damaged_and_foreign_keys_raise_the_same_errors(target: Target) -> None:
    store, _ = await warm(target)
    items = items_key(target)
    state = target.raw.hget(items, "@state")
    for changed, error in (
        (b"3" + state[1:] + b" new", UnsupportedFormat),
        (b"1 x" + state[3:], StoreDamaged),
        (None, StoreDamaged),
    ):
        await store.get(NS, "k")
        target.raw.hdel(items, "@state") if changed is None else target.raw.hset(items, "@state", changed)
        with pytest.raises(error):
            await store.get(NS, "k")
        target.raw.hset(items, "@state", state)
    await store.get(NS, "k")
    target.raw.hset(items, b"k\0", b"no record")
    with pytest.raises(StoreDamaged):
        await store.get(NS, "k")
    target.raw.delete(items)
    target.raw.set(items, "of another program")
    with pytest.raises(KeyConflict, match="memories/ada"):
        await store.get(NS, "k")
    with pytest.raises(KeyConflict):
        await store.batch([GetOp(NS, "k"), GetOp(("other", "user"), "k")])


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("options", [{"require_primary": True}, {"cache_bytes": 0}])
async def test_a_script_reads_if_a_plain_command_may_be_wrong(target: Target, options: Any) -> None:
    """A replica would answer a plain command. A store without a cache does not know which partitions have no TTLs."""
    store, counted = await warm(target, **options)
    await store.get(NS, "k")
    assert counted.take() == ["EVALSHA"]


# -- the bounded memory of a process


def test_least_recently_used_entries_are_evicted_first() -> None:
    cache = LocalCache(100)
    for name in "abc":
        cache.put(name, name.upper(), 30)
    assert cache.get("a") == "A"
    cache.put("d", "D", 30)
    assert [cache.get(name) for name in "abcd"] == ["A", None, "C", "D"]
    cache.put("c", "C2", 90)
    assert [cache.get(name) for name in "acd"] == [None, "C2", None]
    cache.put("huge", "H", 101)
    assert [cache.get("huge"), cache.get("c")] == [None, "C2"]
    cache.put("c", "C3", 101)
    assert cache.get("c") is None, "an outdated value is kept"
    cache.put("e", "E", 1)
    cache.forget("e")
    cache.forget("e")
    assert (cache.get("e"), cache.numbers()["cache_bytes"]) == (None, 0)


def test_cache_bytes_0_remembers_nothing() -> None:
    cache = LocalCache(0)
    cache.put("a", "A", 1)
    assert cache.get("a") is None
    for mistake in (-1, True, "1"):
        with pytest.raises(ValueError, match="cache_bytes"):
            LocalCache(mistake)  # type: ignore[arg-type]
