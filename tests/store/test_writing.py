"""Imports of items with timestamps: what the server holds, and what other processes see."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.support.embedding import Model
from tests.support.stores import check_sound, import_items, later, members, state_of
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, ran

from redis_saver._store import scripts
from redis_saver._engine.requests import Call
from redis_saver._store import writing
from redis_saver._store.writing import StoredItem

pytestmark = pytest.mark.also_on(cluster="async", redis62="sync")

NS = ("memories", "user")
DAY = 86_400_000_000


def now() -> int:
    return int(time.time() * 1_000_000)


def item(key: str, value: Any = 1, *, namespace: Any = NS, age: int = DAY, ttl: int = 0, left: int = 0) -> StoredItem:
    put = now() - age
    return StoredItem(namespace, key, {"n": value}, put - DAY, put, ttl, now() // 1000 + left if ttl else 0, 10)


async def read_back(store: Uniform, items: list[StoredItem]) -> Any:
    context = store.saver._context
    places = [writing.find_place(context, one) for one in items]
    return await ran(store, writing.read_items(context, places[0][0], [field for _, field in places]))


async def test_an_import_keeps_timestamps_and_deadlines(target: Target, store: Uniform) -> None:
    some = [
        item("a"),
        item("b", age=2 * DAY, ttl=3_600_000, left=3_000_000),
        item("c", namespace=(*NS, "deep\1er", "%*"), ttl=60_000, left=50_000),
    ]
    assert await import_items(store, *some) == []
    check_sound(target)
    assert await read_back(store, some) == [
        one._replace(size=found.size) for one, found in zip(some, await read_back(store, some), strict=True)
    ]
    found = await store.get(NS, "a", refresh_ttl=False)
    assert (found.value, found.version) == ({"n": 1}, some[0].updated_at)
    assert found.created_at.timestamp() * 1e6 == pytest.approx(some[0].created_at, abs=1)
    later(target, 50_000)
    assert [one.key for one in await store.search(NS, refresh_ttl=False)] == ["a", "b"]
    check_sound(target)


async def test_a_partition_expires_with_its_last_item(target: Target, store: Uniform) -> None:
    await import_items(store, item("a", ttl=60_000, left=1_000), item("b", ttl=60_000, left=500))
    check_sound(target)
    (member,) = members(target)
    assert 0 < state_of(target, member)["deadline"] < now() // 1000 + 70_000
    later(target, 1_100)
    assert await store.count(NS) == 0
    check_sound(target)


async def test_an_item_that_expired_before_its_import_is_gone(target: Target, store: Uniform) -> None:
    await store.put(NS, "stays", {})
    await import_items(store, item("late", ttl=60_000, left=-3_600_000))
    time.sleep(0.005)
    assert await store.get(NS, "late") is None and await store.count(()) == 1
    check_sound(target)


async def test_an_import_sent_twice_stores_once(target: Target, store: Uniform) -> None:
    some = [item("a"), item("b", ttl=60_000, left=60_000)]
    await import_items(store, *some)

    def twice(request: Any) -> Any:
        first = yield request
        if isinstance(request, Call) and request.script is scripts.IMPORT_ITEMS and first in (0, []):
            before = state_of(target, members(target)[0])
            assert (yield request) == first and state_of(target, members(target)[0]) == before
        return first

    Around(store.saver, twice)
    replaced = [one._replace(value={"n": 2}, updated_at=one.updated_at + 1_000_000) for one in some]
    assert await import_items(store, *replaced, expected=[one.updated_at for one in some]) == []
    assert [(one.value, one.updated_at) for one in await read_back(store, some)] == [
        ({"n": 2}, one.updated_at) for one in replaced
    ]
    check_sound(target)


async def test_an_import_skips_changed_items_and_stores_the_rest(target: Target, store: Uniform) -> None:
    await store.put(NS, "mine", {"n": "mine"})
    left = await import_items(store, item("a"), item("mine"), item("b"), item("gone"), expected=[0, 0, 0, 7])
    assert [one.item.key for one in left] == ["mine", "gone"]
    assert (await store.get(NS, "mine")).value == {"n": "mine"} and await store.count(NS) == 3
    assert [one.item.key for one in await import_items(store, item("gone"), expected=7)] == ["gone"]
    check_sound(target)


async def test_an_import_that_stores_nothing_announces_nothing(target: Target, store: Uniform) -> None:
    assert len(await import_items(store, item("a"), expected=7)) == 1
    assert target.keys() == []


async def test_equal_timestamps_become_distinct_versions(target: Target, store: Uniform) -> None:
    """A Postgres transaction gives all its rows one timestamp."""
    same = item("0")
    first = [same._replace(key=f"{number}") for number in range(1500)]
    await import_items(store, *first)
    await import_items(store, same._replace(key="x"), same._replace(key="y"))
    versions = sorted(one.version for one in await store.search(NS, limit=2000))
    assert versions == list(range(same.updated_at, same.updated_at + 1502))
    check_sound(target)


async def test_a_timestamp_in_the_future_counts_as_now(target: Target, store: Uniform) -> None:
    """Otherwise the next puts would look older."""
    await import_items(
        store, item("future", age=-3650 * DAY), item("wild")._replace(updated_at=2**62, created_at=2**62)
    )
    await store.put(NS, "later", {})
    found = await store.search(NS)
    assert found[0].key == "later" and {one.key for one in found[1:]} == {"future", "wild"}
    assert all(one.updated_at.timestamp() < time.time() + 5 for one in found)
    check_sound(target)


async def test_an_imported_value_gets_a_new_version(target: Target, store: Uniform) -> None:
    """Otherwise processes that cached the item by its version would miss the change."""
    old = item("a", "old")
    await import_items(store, old)
    assert [one.value for one in await store.search(NS)] == [{"n": "old"}]
    await import_items(store, old._replace(value={"n": "new"}), expected=old.updated_at)
    assert (await store.get(NS, "a")).value == {"n": "new"}
    assert [one.value for one in await store.search(NS)] == [{"n": "new"}]
    assert [one.value for one in await store.search(NS, filter={"n": "new"})] == [{"n": "new"}]


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("began_anew", [False, True])
async def test_reads_show_the_new_value_of_a_reused_version(target: Target, store: Uniform, began_anew: bool) -> None:
    """An import can bring back an earlier version. It gives the partition another token, as making it anew does."""
    other, imported = target.store(), item("f")
    await other.put(NS, "other", {"n": -1})
    for number in range(3):
        assert await import_items(other, imported._replace(value={"n": number})) == []
        for _ in range(3):
            found = await store.get(NS, "f")
            assert (found.value, found.version) == ({"n": number}, imported.updated_at)
            for query in ({}, {"filter": {"n": number}}):
                values = {one.key: one.value for one in await store.search(NS, **query)}
                assert values["f"] == {"n": number}
        await other.delete(NS, "f")
        assert await store.get(NS, "f") is None
        if began_anew:
            await other.delete_namespace(NS)
            await other.put(NS, "other", {"n": -1})


async def test_cached_reads_show_imported_older_items(target: Target, store: Uniform) -> None:
    for number in range(5):
        await store.put(NS, f"{number}", {"n": number, "kind": "x"})
    seen = [await store.search(NS, limit=3), await store.search(NS, filter={"kind": "x"}, limit=100)]
    assert [len(found) for found in seen] == [3, 5]
    other = target.store()
    await import_items(
        other, item("old")._replace(value={"kind": "x"}), item("older", age=9 * DAY)._replace(value={"kind": "y"})
    )
    assert [one.key for one in await store.search(NS, limit=100)] == [*"43210", "old", "older"]
    assert [one.key for one in await store.search(NS, filter={"kind": "x"}, limit=100)] == [*"43210", "old"]
    assert [one.key for one in await store.search(NS, limit=3)] == ["4", "3", "2"]


async def test_an_import_invalidates_cached_pages_and_mirrors(target: Target, store: Uniform) -> None:
    """The number, sum and bounds of the versions stay the same. A page or a mirror compares nothing else."""
    base = now() - DAY
    some = [item(f"{shift}")._replace(updated_at=base + shift) for shift in (0, 10, 20, 30)]
    await import_items(store, *some)
    keys = ["30", "20", "10", "0"]
    assert [one.key for one in await store.search(NS)] == keys
    assert [one.key for one in await store.search(NS, filter={"n": 1})] == keys
    other = target.store()
    for key in ("10", "20"):
        await other.delete(NS, key)
    await import_items(other, item("a")._replace(updated_at=base + 12), item("b")._replace(updated_at=base + 18))
    assert [one.key for one in await store.search(NS)] == ["30", "b", "a", "0"]
    assert [one.key for one in await store.search(NS, filter={"n": 1})] == ["30", "b", "a", "0"]


async def test_an_import_sets_and_removes_ttls(target: Target, store: Uniform) -> None:
    await store.put(NS, "a", {}, ttl=10)
    await store.put(NS, "b", {})
    versions = [(await store.get(NS, key)).version for key in "ab"]
    await import_items(store, item("a"), item("b", ttl=60_000, left=60_000), expected=versions)
    check_sound(target)
    assert state_of(target, members(target)[0])["ttls"] == 1
    later(target, 61_000)
    assert [one.key for one in await store.search(NS)] == ["a"]
    check_sound(target)


async def test_an_import_of_longer_lived_items_extends_the_announcement(target: Target, store: Uniform) -> None:
    """The directory keeps a partition as long as its items live."""
    await import_items(store, item("short", ttl=60_000, left=1_000))
    await import_items(store, item("long", ttl=60_000, left=86_400_000))
    check_sound(target)
    later(target, 3_600_000)
    assert await store.list_namespaces() == [NS]
    await import_items(store, item("ever"))
    later(target, 1_000 * 86_400_000)
    assert await store.list_namespaces() == [NS]


async def test_a_full_reply_returns_only_the_first_items(target: Target, store: Uniform) -> None:
    some = [item(f"{number}", "x" * 400_000) for number in range(4)]
    await import_items(store, *some)
    first = await read_back(store, some)
    assert len(first) == 3 and [one.key for one in first] == ["0", "1", "2"]
    missing = item("missing")
    assert await read_back(store, [missing]) == [None]
    await store.delete_namespace(NS)
    assert await read_back(store, some) == [None] * 4


@pytest.mark.parametrize("target_name", ["redis"])
async def test_an_import_takes_three_round_trips(target: Target, store: Uniform) -> None:
    await store.put(NS, "there", {})
    counted = 0

    def count(request: Any) -> Any:
        nonlocal counted
        counted += 1
        return (yield request)

    Around(store.saver, count)
    await import_items(store, *(item(f"{number}") for number in range(200)))
    assert counted == 3, "three requests: ask, announce, store"


async def test_flushed_scripts_are_sent_again(target: Target, store: Uniform) -> None:
    target.raw.script_flush()
    await import_items(store, item("a"))
    target.raw.script_flush()
    assert (await read_back(store, [item("a")]))[0].key == "a"


async def test_an_import_removes_the_vectors_of_replaced_items(target: Target) -> None:
    """They belong to the old value. The new one gets vectors with its next put."""
    model = Model()
    store, other = (target.store(index=model.index(fields=["n"])) for _ in range(2))
    await store.put(NS, "a", {"n": "apple"})
    await store.put(NS, "b", {"n": "pear"})
    found = {one.key: one for one in await other.search(NS, query="apple")}
    assert await import_items(store, item("a", "grape"), expected=found["a"].version) == []
    check_sound(target)
    scores = {one.key: one.score for one in await other.search(NS, query="apple")}
    assert scores["a"] is None
    assert scores["b"] is not None
