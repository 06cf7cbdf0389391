"""Random operations of several processes, while hot loses keys and items expire: each answer agrees with cold."""

from __future__ import annotations

import random
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from redis_saver import AsyncTieredStore, Limits, TieredStore
from tests.support.seeds import seeds, seeds_and_slow, targets, targets_and_slow
from tests.support.store_tiering import Recording, StoreTiers, check_copies, later, plain
from tests.support.stores import later as items_later
from tests.support.uniform import Target, Uniform

PARTITIONS = [("a",), ("a", "b"), ("a", "c"), ("%/{", "*")]
DEEPER = [(), ("x",), ("x", "y")]
KEYS = ["k", "l", "m", "@complete", ""]


class Play:
    """Random operations of several processes over one hot and one cold store."""

    def __init__(self, target: Target, cold: Recording, seed: int) -> None:
        print("seed", seed)
        self.target, self.cold, self.chance = target, cold, random.Random(seed)
        self.keys = KEYS[:4] if isinstance(cold.store, InMemoryStore) else KEYS[:3]
        kind: Any = AsyncTieredStore if target.flavour == "async" else TieredStore
        few = Limits(value_bytes=100)
        settings: list[dict[str, Any]] = [{}, {"cache_bytes": 0}, {"ttl": "10m"}, {"limits": few}]
        self.stores = [Uniform(kind(target.store(**options).saver, cold)) for options in settings]

    async def run(self, length: int) -> None:
        kinds = ["read"] * 6 + ["write"] * 3 + ["mixed", "warm", "evict", "later", "fail"]
        for _ in range(length):
            self.store = self.chance.choice(self.stores)
            await getattr(self, self.chance.choice(kinds))()
            if isinstance(self.cold.store, InMemoryStore):
                for labels in PARTITIONS[1:]:
                    check_copies(self.target, self.cold.store, *labels)

    def place(self) -> tuple[tuple[str, ...], str]:
        labels = self.chance.choice(PARTITIONS)
        deeper = self.chance.choice(DEEPER) if len(labels) > 1 else ()
        return (*labels, *deeper), self.chance.choice(self.keys)

    def read_op(self) -> Any:
        if self.chance.random() < 0.6:
            return GetOp(*self.place())
        prefix, _ = self.place()
        return SearchOp(prefix, self.chance.choice([None, None, {"s": "x"}, {"n": 1}]), 1000)

    def put_op(self) -> Any:
        value = {"n": self.chance.randrange(3), "s": self.chance.choice(["x", "y", "x" * 200])}
        return PutOp(*self.place(), None if self.chance.random() < 0.3 else value)

    def some(self, make: Any) -> list[Any]:
        return [make() for _ in range(self.chance.choice([1, 1, 1, 2, 5]))]

    async def direct(self, ops: list[Any]) -> list[Any]:
        return await self.cold.abatch(ops) if self.target.flavour == "async" else self.cold.batch(ops)

    async def read(self) -> None:
        ops = self.some(self.read_op)
        expected = await self.direct(ops)
        assert list(map(shown, await self.store.batch(ops))) == list(map(shown, expected)), ops

    async def write(self) -> None:
        await self.store.batch(self.some(self.put_op))

    async def mixed(self) -> None:
        reads = self.some(self.read_op)
        expected = await self.direct(reads)
        answers = await self.store.batch([*self.some(self.put_op), *reads])
        assert list(map(shown, answers[-len(reads) :])) == list(map(shown, expected)), reads

    async def warm(self) -> None:
        await self.store.warm(self.chance.choice(PARTITIONS[1:]))

    async def evict(self) -> None:
        if keys := [key for key in self.target.keys() if b"{%}" not in key]:
            self.target.raw.delete(self.chance.choice(keys))

    async def later(self) -> None:
        later(self.target, 150_000)
        if all(self.target.raw.hexists(key, "@state") for key in self.target.keys() if key.endswith(b"}:items")):
            items_later(self.target, 150_000)

    async def fail(self) -> None:
        """Let a write fail in cold, before or after it is done."""
        self.cold.fails, self.cold.then = self.chance.choice([(fails, quiet), (quiet, fails)])
        with pytest.raises(OSError, match="on purpose"):
            await self.store.batch(self.some(self.put_op))
        self.cold.fails = self.cold.then = quiet


def fails(ops: list[Any]) -> Any:
    return OSError("on purpose") if isinstance(ops[0], PutOp) else None


def quiet(_: Any) -> None:
    return None


def shown(answer: Any) -> Any:
    return sorted(map(plain, answer)) if isinstance(answer, list) else plain(answer)


@pytest.mark.random
@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", targets_and_slow(("redis", "redis62", "cluster", "valkey"), ("fakeredis",)))
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 20)))
async def test_random_operations_agree_with_cold(target: Target, seed: int) -> None:
    play = Play(target, Recording(), seed)
    await play.run(200 if seed == 0 else 500)
    assert sum(one.saver.stats().copies.hits for one in play.stores) > 20


@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"))
@pytest.mark.parametrize("seed", seeds(range(1)))
async def test_random_operations_agree_with_postgres(store_tiers: StoreTiers, seed: int) -> None:
    await Play(store_tiers.target, Recording(await store_tiers.postgres()), seed).run(200)
