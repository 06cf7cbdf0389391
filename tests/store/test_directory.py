"""The directory lists every partition with items, in any order of steps and after any crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import PutOp
from tests.support.stores import check_sound, directory, members
from tests.support.turns import Turn, schedules
from tests.support.uniform import Target, Uniform

from redis_saver import RedisStore, StoreDamaged
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._engine.requests import Ask, Command
from redis_saver._store import namespaces, scripts
from redis_saver._store.index_config import Texts
from redis_saver._store.writing import as_write, put

NS = ("memories", "user")
pytestmark = pytest.mark.parametrize("target_name", ["redis"])


class Clock:
    """A fake clock for writers."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def begun(store: RedisStore, make: Callable[[Any], Any]) -> Turn:
    """Take the steps for a data key, which a store that encrypts takes first."""
    turn = Turn(store, make)
    while isinstance(turn.request, (Ask, Command)):
        turn.step()
    return turn


def putting(key: str, value: Any) -> Callable[[Any], Any]:
    def make(context: Any) -> Any:
        partition, field, write = as_write(context, PutOp(NS, key, value))
        return put(context, partition, {field: write}, Texts())

    return make


ACTORS: dict[str, Callable[[Any], Any]] = {
    "writer": putting("a", {"n": 1}),
    "other writer": putting("b", {"n": 1}),
    "deleter": putting("a", None),
    "cleaner": lambda context: namespaces.count(context, ()),
    "wiper": lambda context: namespaces.delete_namespace(context, NS),
}


def play(
    target: Target, stores: list[RedisStore], actors: list[str], before: str, choose: Callable[[int], int]
) -> None:
    """Run the actors in one order of steps. After each step the directory lists every partition with keys."""
    keyspace = StoreKeyspace(target.prefix)
    partition = keyspace.partition(b"memories\0user\0")
    target.raw.unlink(*target.keys(), "none")
    if before != "nothing":
        stores[0].put(NS, "a", {"n": 0})
    if before == "a crash":  # after the announcement of the first item
        target.raw.unlink(*partition.keys)
    for store in stores if target.is_encrypted else ():
        store._context.values.data_keys._ciphers.after_fork()  # type: ignore[union-attr]  # each order begins in the same way
    turns = [begun(store, ACTORS[name]) for store, name in zip(stores, actors, strict=False)]
    while running := [one for one in turns if not one.is_over]:
        running[choose(len(running))].step()
        pipeline = target.raw.pipeline(transaction=False)
        is_there, listed = pipeline.exists(partition.keys[0]).zrange(keyspace.directory[0], 0, -1).execute()
        assert not is_there or listed == [partition.member]


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("before", ["nothing", pytest.param("an item", marks=pytest.mark.slow), "a crash"])
@pytest.mark.parametrize(
    "actors",
    [["writer", "deleter", "cleaner"], ["writer", "other writer", "deleter"], ["writer", "wiper"]],
    ids=" and ".join,
)
async def test_every_order_of_steps_leaves_a_sound_directory(target: Target, actors: list[str], before: str) -> None:
    stores = [target.store(cache_bytes=0).saver for _ in actors]
    count = 0
    for choose in schedules():
        play(target, stores, actors, before, choose)  # type: ignore[arg-type]
        count += 1
        check_reached(target, stores[0])  # type: ignore[arg-type]
    assert count > 3


@pytest.mark.parametrize("flavour", ["sync"])
async def test_random_orders_of_six_actors_leave_a_sound_directory(target: Target) -> None:
    actors = ["writer", "other writer", "deleter", "cleaner", "wiper", "cleaner"]
    stores = [target.store(cache_bytes=0).saver for _ in actors]
    for seed in range(150):
        chance = random.Random(seed)
        before = chance.choice(["nothing", "an item", "a crash"])
        play(target, stores, chance.sample(actors, 6), before, chance.randrange)  # type: ignore[arg-type]
        check_reached(target, stores[0])  # type: ignore[arg-type]
        check_sound(target)


def check_reached(target: Target, store: RedisStore) -> None:
    there = bool(members(target))
    assert bool(store.count(())) == there == bool(store.search(("memories",)))
    assert not there or directory(target) == [b"memories\0user\0"]
    assert there or directory(target) == [], "a search withdraws an empty partition"


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("stops_before", [1, 2])
async def test_a_writer_whose_announcement_token_expired_announces_again(
    target: Target, stops_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was withdrawn meanwhile, and the key that refuses old tokens is gone."""
    clock = Clock()
    monkeypatch.setattr(scripts, "time", clock)
    store, other = target.store().saver, target.store().saver
    turn = begun(store, putting("a", {"n": 1}))  # type: ignore[arg-type]
    for _ in range(stops_before):
        turn.step()
    other.count(())
    assert directory(target) == []
    target.raw.unlink(StoreKeyspace(target.prefix).partition(b"memories\0user\0").keys[4])
    clock.now += 61
    turn.finish()
    check_sound(target)
    assert other.count(()) == 1


async def test_listing_withdraws_the_announcement_of_a_dead_writer(target: Target) -> None:
    store = target.store()
    turn = begun(target.elsewhere(flavour="sync").store().saver, putting("a", {"n": 1}))  # type: ignore[arg-type]
    turn.step()
    turn.step()
    assert directory(target) == [b"memories\0user\0"]
    assert await store.list_namespaces() == []
    assert directory(target) == []
    await store.put(NS, "a", {"n": 1})
    assert await store.list_namespaces() == [NS]
    check_sound(target)


async def test_an_emptied_store_leaves_only_tokens_for_a_minute(target: Target) -> None:
    store = target.store()
    for ns in (("one",), ("two", "labels"), ("two", "labels", "deep"), ("some", "other")):
        for key in ("a", "b"):
            await store.put(ns, key, {"n": 1}, ttl=5)
    for ns in (("one",), ("two", "labels"), ("two", "labels", "deep"), ("some", "other")):
        for key in ("a", "b"):
            await store.delete(ns, key)
    left = target.keys()
    assert left and all(key.endswith(b":retired") and 0 < target.raw.pttl(key) <= 60_000 for key in left)


CALLS = {
    "search": lambda store: store.search(()),
    "list": lambda store: store.list_namespaces(),
    "put": lambda store: store.put(("new",), "k", {"n": 1}),
    "delete": lambda store: store.delete(("c",), "k"),
    "count": lambda store: store.count(("a",)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("is_expiring", [False, True])
@pytest.mark.by_turns
async def test_a_directory_that_lost_a_key_repairs_itself(
    target: Target, position: int, call: str, is_expiring: bool
) -> None:
    store = target.store()
    await store.put(("a", "b"), "k", {"n": 1}, ttl=200 if is_expiring else None)
    await store.put(("c",), "k", {"n": 1}, ttl=100)
    target.raw.delete(StoreKeyspace(target.prefix).directory[position])
    await CALLS[call](store)
    left = {"put": {("a", "b"), ("c",), ("new",)}, "delete": {("a", "b")}}.get(call, {("a", "b"), ("c",)})
    assert set(await store.list_namespaces()) == left
    check_sound(target)


async def test_a_directory_of_expiring_items_is_restored_from_its_deadlines(target: Target) -> None:
    store = target.store()
    await store.put(("a", "b"), "k", {"n": 1}, ttl=200)
    await store.put(("c",), "k", {"n": 1}, ttl=100)
    partitions, deadlines, tokens = StoreKeyspace(target.prefix).directory
    before = dict(target.raw.zrange(deadlines, 0, -1, withscores=True))
    target.raw.delete(partitions, tokens)
    assert set(await store.list_namespaces()) == {("a", "b"), ("c",)}
    assert dict(target.raw.zrange(deadlines, 0, -1, withscores=True)) == before
    check_sound(target)


async def test_a_directory_that_lost_partitions_raises_until_rebuilt(target: Target) -> None:
    store = target.store()
    await store.put(("a", "b"), "k", {"n": 1})
    await store.put(("c",), "k", {"n": 1}, ttl=100)
    partitions, _, tokens = StoreKeyspace(target.prefix).directory
    target.raw.delete(partitions, tokens)
    for call in CALLS.values():
        if call is not CALLS["delete"]:
            with pytest.raises(StoreDamaged, match="rebuild_directory"):
                await call(store)
    assert (await store.get(("a", "b"), "k")).value == {"n": 1}, "the items are still there"
    assert await store.rebuild_directory() == 2
    assert await store.list_namespaces() == [("a", "b"), ("c",)]
    await store.put(("new",), "k", {"n": 1})
    check_sound(target)


@pytest.mark.everywhere
async def test_rebuild_directory_finds_hostile_names_on_every_node(store: Uniform) -> None:
    labels = ["a/b", "%", "{x}", "*", "[a]", "é", "%2F", "\ud800"]
    namespaces = [(one,) for one in labels] + [(one, other) for one in labels[:3] for other in labels[:3]]
    for ns in namespaces:
        await store.put(ns, "k", {"n": 1})
    assert await store.rebuild_directory() == len(namespaces)
    assert await store.list_namespaces() == sorted(namespaces)
