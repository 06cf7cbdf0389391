"""Hot is never ahead of cold or stale, in any order of writers, readers and cold, and wherever one of them dies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from redis_saver import TieredStore
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._store import namespaces
from redis_saver._tiered_store import copies
from redis_saver._tiered_store.store import batch
from tests.support.store_tiering import Recording, all_of, compare_copies, later, partition_of
from tests.support.turns import Turn, schedules
from tests.support.uniform import Target

NS = ("a", "b")
INTENT = 300_000
NAMES = [(NS, "k"), ((*NS, "deep"), "l")]
pytestmark = [pytest.mark.parametrize("target_name", ["redis"]), pytest.mark.parametrize("flavour", ["sync"])]


def batching(*ops: Any) -> Callable[[Any], Any]:
    return lambda tiers: batch(tiers, list(ops))


DEEP = (*NS, "deep")
ACTORS: dict[str, Callable[[Any], Any]] = {
    "writer": batching(PutOp(NS, "k", {"n": 1})),
    "other writer": batching(PutOp(NS, "k", {"n": 2})),
    "writer of both": batching(PutOp(NS, "k", {"n": 3}), PutOp(DEEP, "l", {"n": 3})),
    "writer of another": batching(PutOp(DEEP, "l", {"n": 4})),
    "deleter": batching(PutOp(NS, "k", None)),
    "reader": batching(GetOp(NS, "k"), GetOp(DEEP, "l")),
    "searcher": batching(SearchOp(NS, limit=100)),
    "cleaner": lambda tiers: namespaces.count(tiers.hot_context, ()),
    "warmer": lambda tiers: copies.warm(tiers, NS),
}
BEFORE = ["nothing", "in cold", "in both", "all in both"]


class Scene:
    """A hot store of several processes, and a cold store in memory."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.checked: Any = None
        """What was stored when it was checked last."""
        self.hots = [target.store(cache_bytes=size).saver for size in (0, 100_000, 0, 100_000, 0)]

    def prepare(self, before: str, processes: int = 2) -> None:
        self.target.raw.unlink(*self.target.keys(), "none")
        self.cold, self.checked = InMemoryStore(), None
        self.stores: list[Any] = [TieredStore(hot, self.cold) for hot in self.hots[:processes]]  # type: ignore[arg-type]
        if before in ("in both", "all in both"):
            self.stores[0].put(NS, "k", {"n": 0})
        if before == "in cold":
            self.cold.put(NS, "k", {"n": 0})
        if before == "all in both":
            assert self.stores[0].warm(NS)

    def check(self) -> None:
        """Check what is stored, unless it is as when it was checked last."""
        partition, raw = partition_of(self.target, *NS), self.target.raw.pipeline(transaction=False)
        raw.hgetall(partition.keys[0]).hget(partition.keys[6], "@complete")
        raw.zrange(StoreKeyspace(self.target.prefix).directory[0], 0, -1)
        in_cold, stored = all_of(self.cold, *NS), raw.execute()
        now = {name: (item.value, item.updated_at) for name, item in in_cold.items()}, stored
        if now != self.checked:
            self.checked = now
            compare_copies(partition, *stored[:2], in_cold)
            assert not stored[0] or b"a\0b\0" in stored[2], "hot's directory leads to all copies"

    def play(self, names: list[str], choose: Callable[[int], int], dies: tuple[int, int] | None = None) -> None:
        """Run all operations interleaved. One of them may die before a step."""
        turns = [Turn(store, ACTORS[name]) for store, name in zip(self.stores, names, strict=False)]
        while running := [one for one in turns if not one.is_over]:
            one = running[choose(len(running))]
            if dies and one is turns[dies[0]] and one.steps == dies[1]:
                one.is_over = True
                continue
            one.step()
            self.check()

    def check_end(self, *, has_died: bool = False) -> None:
        """Check that each process answers as cold, also after the intents of the dead expire. Then hot fills again."""
        there = {(item.namespace, item.key): item.value for item in all_of(self.cold, *NS).values()}
        for passed in (0, INTENT + 1) if has_died else (0,):
            if passed:
                later(self.target, passed)
            for store in self.stores[1:2]:
                items = store.batch([GetOp(*name) for name in NAMES])
                assert [item and item.value for item in items] == [there.get(name) for name in NAMES]
                assert {(one.namespace, one.key): one.value for one in store.search(NS, limit=100)} == there
                self.check()
        before = self.stores[1].stats().copies.hits
        self.stores[1].search(NS)
        assert self.stores[1].stats().copies.hits == before + 1, "a fill is possible again"


LOOKERS = ("reader", "searcher", "warmer", "cleaner")
PAIRS = [list(pair) for pair in itertools.combinations_with_replacement(ACTORS, 2) if not set(pair) <= set(LOOKERS)]


FEW = [["writer", "other writer"], ["writer", "deleter"], ["writer", "reader"], ["deleter", "reader"]]
FEW += [["writer", "searcher"], ["writer", "cleaner"], ["deleter", "cleaner"]]


@pytest.mark.parametrize(
    ("before", "pairs"),
    [
        ("in cold", FEW),
        ("all in both", FEW[::2]),
        *(pytest.param(one, PAIRS, marks=pytest.mark.slow) for one in BEFORE),
    ],
)
async def test_hot_agrees_with_cold_in_every_order_of_two(target: Target, before: str, pairs: list[list[str]]) -> None:
    scene, count = Scene(target), 0
    for names in pairs:
        for choose in schedules():
            scene.prepare(before)
            scene.play(names, choose)
            scene.check_end()
            count += 1
    assert count > 10 * len(pairs)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 3000), marks=pytest.mark.slow)])
async def test_hot_agrees_with_cold_in_some_orders_of_many(target: Target, seeds: range) -> None:
    scene = Scene(target)
    for seed in seeds:
        chance = random.Random(seed)
        names = [chance.choice(list(ACTORS)) for _ in range(5)]
        scene.prepare(chance.choice(BEFORE), 5)
        dies = (chance.randrange(5), chance.randrange(6)) if chance.random() < 0.5 else None
        print(seed, names, dies)
        scene.play(names, chance.randrange, dies)
        scene.check_end(has_died=bool(dies))


OTHERS = {"other writer": "in cold", "reader": "all in both", "writer of another": "all in both", "searcher": "in both"}


@pytest.mark.parametrize(
    "who", ["writer", *(pytest.param(who, marks=pytest.mark.slow) for who in ("writer of both", "deleter"))]
)
async def test_a_writer_may_die_before_any_step(target: Target, who: str) -> None:
    scene = Scene(target)
    for other, before in OTHERS.items():
        for step in range(1, 4):
            for choose in schedules():
                scene.prepare(before)
                scene.play([who, other], choose, (0, step))
                scene.check_end(has_died=True)


async def test_a_late_writer_leaves_nothing_stale(target: Target) -> None:
    """Its intent expires between two of its steps, and a reader fills hot meanwhile."""
    scene = Scene(target)
    for name in ("writer", "deleter"):
        for stops_before in range(1, 5):
            scene.prepare("in both")
            turn = Turn(scene.stores[0], ACTORS[name])
            for _ in range(stops_before):
                if not turn.is_over:
                    turn.step()
            later(target, INTENT + 1)
            scene.stores[1].get(NS, "k")
            scene.stores[1].search(NS)
            turn.finish()
            scene.check()
            scene.check_end(has_died=True)


async def test_warm_notices_a_write_that_ended_meanwhile(target: Target) -> None:
    """The write left no copy and no intent, and the counts agree. Only the last change's number (`@last`) tells."""
    scene = Scene(target)
    scene.prepare("in both")
    turn = Turn(scene.stores[0], ACTORS["warmer"])
    turn.step()
    turn.step()
    assert not turn.is_over, "cold has answered"
    cold = Recording(scene.cold)
    cold.fails = lambda ops: TimeoutError("cold is slow") if isinstance(ops[0], GetOp) else None
    other = TieredStore(scene.hots[1], cold)  # type: ignore[arg-type]
    other.put((*NS, "deep"), "l", {"n": 1})
    turn.finish(scene.check)
    assert target.raw.hget(partition_of(target, *NS).keys[6], "@complete") is None
    scene.check_end()


async def test_evicted_notes_do_not_hide_a_writer(target: Target) -> None:
    """Hot is not marked complete while a process writes an item that hot never had."""
    scene = Scene(target)
    for position in (6, 7):
        scene.prepare("in both")
        turn = Turn(scene.stores[0], ACTORS["writer of another"])
        turn.step()
        target.raw.delete(partition_of(target, *NS).keys[position])
        scene.stores[1].warm(NS)
        turn.finish(scene.check if position == 7 else lambda: None)  # without the note, the writer is unknown
        scene.check()
        scene.check_end()
