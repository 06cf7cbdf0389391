"""Random operations of several processes, compared with a model of a store in a dict."""

from __future__ import annotations

import random
from typing import Any

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from redis_saver import Conflict, RedisStore
from redis_saver._common import filters
from tests.support.methods import calls_of
from tests.support.seeds import seeds, seeds_and_slow, targets, targets_and_slow
from tests.support.stores import check_sound, later
from tests.support.uniform import Target

LABELS = ["a", "b", "a/b", "%2F", "{x}", "*", "\1", "é", "a\1"]
KEYS = ["k", "l", "", "@state", "a\0b", "\ud800", "{k}", "10", "1"]
MINUTE = 60_000
UNSEEN = {"sweep_ttl", "rebuild_directory", "key_status"}
"""Methods that change nothing in the model. For each other method, `Play` has one of the same name."""


class Model:
    """Items by namespace and key, each with its value, first and last version, TTL and deadline."""

    def __init__(self) -> None:
        self.items: dict[tuple[tuple[str, ...], str], dict[str, Any]] = {}
        self.now = 0

    def put(self, ns: Any, key: str, value: Any, ttl: float | None, version: int) -> None:
        before = self.items.get((ns, key))
        self.items[ns, key] = {
            "value": value, "created": before["created"] if before else version, "version": version, "ttl": ttl,
            "deadline": ttl and self.now + ttl,
        }  # fmt: skip

    def later(self, minutes: float) -> None:
        self.now += minutes
        self.items = {name: one for name, one in self.items.items() if not one["ttl"] or one["deadline"] > self.now}

    def read(self, name: Any, refresh: bool) -> Any:
        one = self.items.get(name)
        if one and refresh and one["ttl"]:
            one["deadline"] = self.now + one["ttl"]
        return one and self.shown(name)

    def shown(self, name: Any) -> Any:
        one = self.items[name]
        return (*name, one["value"], one["created"], one["version"])

    def search(self, op: SearchOp) -> list[Any]:
        matches = filters.of_items(op.filter) or (lambda _: True)
        prefix = op.namespace_prefix
        found = [n for n, one in self.items.items() if n[0][: len(prefix)] == prefix and matches(one["value"])]
        found.sort(key=lambda name: (-self.items[name]["version"], name))
        return [self.read(name, op.refresh_ttl) for name in found[op.offset : op.offset + op.limit]]

    def namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        def fits(ns: tuple[str, ...], condition: MatchCondition) -> bool:
            path = condition.path
            part = ns[: len(path)] if condition.match_type == "prefix" else ns[-len(path) :]
            return len(part) == len(path) and all(want in ("*", have) for want, have in zip(path, part, strict=True))

        found = {ns for ns, _ in self.items if all(fits(ns, one) for one in op.match_conditions or ())}
        return sorted({ns[: op.max_depth] for ns in found})[op.offset : op.offset + op.limit]


def micros(moment: Any) -> int:
    return round(moment.timestamp() * 1_000_000)


def shown(item: Any) -> Any:
    """Convert an item to the model's form."""
    if item is None:
        return None
    assert micros(item.updated_at) == item.version
    return item.namespace, item.key, item.value, micros(item.created_at), item.version


class Play:
    """Make random calls from several processes, and compare each result with the model's."""

    def __init__(self, target: Target, seed: int, processes: int = 3) -> None:
        self.target, self.chance, self.model = target, random.Random(seed), Model()
        memories = [{}, {"cache_bytes": 0}, {"cache_bytes": 5000}]
        self.stores = [target.store(**memories[number % 3]) for number in range(processes)]
        self.onlooker = target.store(cache_bytes=0)
        self.text = "".join(self.chance.choice("ab= 0:\n") for _ in range(3000))

    async def run(self, length: int) -> None:
        kinds = ["put"] * 5 + ["get", "search"] * 3 + ["delete", "batch", "later", "compare"]
        kinds += calls_of(RedisStore, "delete_namespace")
        unknown = [kind for kind in {*kinds} - UNSEEN if not hasattr(Play, kind)]
        assert not unknown, f"write a method of Play, or an entry of UNSEEN: {unknown}"
        for number in range(length):
            self.store = self.chance.choice(self.stores)
            kind = self.chance.choice([*kinds, "delete_namespace"] if number % 5 == 0 else kinds)
            await (getattr(self.store, kind) if kind in UNSEEN else getattr(self, kind))()

    def namespace(self) -> tuple[str, ...]:
        few = LABELS if self.chance.random() < 0.2 else LABELS[:3]
        return tuple(self.chance.choice(few) for _ in range(self.chance.choice([1, 2, 2, 2, 3, 3, 4])))

    def name(self) -> tuple[tuple[str, ...], str]:
        if self.model.items and self.chance.random() < 0.5:
            return self.chance.choice(list(self.model.items))
        return self.namespace(), self.chance.choice(KEYS)

    def value(self) -> dict[str, Any]:
        return {
            "n": self.chance.randrange(5),
            "s": self.chance.choice("xyz"),
            "d": {"m": self.chance.choice([1, None])},
            **({"text": self.edited()} if self.chance.random() < 0.3 else {}),
        }

    def edited(self) -> str:
        """Return a long text that resembles the previous one."""
        at = self.chance.randrange(len(self.text))
        gone, new = self.chance.choice([0, 1, 50, 800]), self.chance.choice(["", "=", "é" * 30, "0 5 7:" * 150])
        self.text = (self.text[:at] + new + self.text[at + gone :])[:6000].ljust(2500, "z")
        return self.text

    def ttl(self) -> float | None:
        return self.chance.choice([None, 10, 1000])

    def search_op(self) -> SearchOp:
        filters = [
            None,
            None,
            {"n": 2},
            {"n": {"$gte": 1, "$lt": 4}},
            {"s": {"$ne": "x"}, "d": {"m": 1}},
            {"none": None},
        ]
        prefix = self.namespace()[: self.chance.randrange(5)]
        limit, offset = self.chance.choice([1, 3, 10, 100]), self.chance.choice([0, 0, 1, 4])
        return SearchOp(prefix, self.chance.choice(filters), limit, offset, None, self.chance.random() < 0.5)

    def namespaces_op(self) -> ListNamespacesOp:
        conditions = []
        for kind in ("prefix", "suffix"):
            if self.chance.random() < 0.5:
                path = tuple(self.chance.choice([*LABELS[:3], "*"]) for _ in range(self.chance.choice([1, 2, 3])))
                conditions.append(MatchCondition(kind, path))  # type: ignore[arg-type]
        depth = self.chance.choice([None, 1, 2, 3])
        return ListNamespacesOp(tuple(conditions), depth, self.chance.choice([3, 100]), self.chance.choice([0, 2]))

    async def noted(self, ns: Any, key: str, value: Any, ttl: Any) -> None:
        item = await self.onlooker.get(ns, key, refresh_ttl=False)
        assert item and item.value == value
        self.model.put(ns, key, value, ttl, item.version)

    async def put(self) -> None:
        (ns, key), value, ttl = self.name(), self.value(), self.ttl()
        await self.store.put(ns, key, value, ttl=ttl)
        await self.noted(ns, key, value, ttl)

    async def compare(self) -> None:
        (ns, key), value = self.name(), self.value()
        there = self.model.items.get((ns, key))
        version = there["version"] if there else 0
        expected = self.chance.choice([version, version, 0, 17])
        try:
            await self.store.put(ns, key, value, if_version=expected)
        except Conflict as conflict:
            assert conflict.version == version != expected
        else:
            assert version == expected
            await self.noted(ns, key, value, None)

    async def get(self) -> None:
        name, refresh = self.name(), self.chance.random() < 0.5
        assert shown(await self.store.get(*name, refresh_ttl=refresh)) == self.model.read(name, refresh)

    async def delete(self) -> None:
        name = self.name()
        await self.store.delete(*name)
        self.model.items.pop(name, None)

    async def search(self) -> None:
        op = self.search_op()
        found = await self.store.search(
            op.namespace_prefix, filter=op.filter, limit=op.limit, offset=op.offset, refresh_ttl=op.refresh_ttl
        )
        assert list(map(shown, found)) == self.model.search(op), op

    async def list_namespaces(self) -> None:
        op = self.namespaces_op()
        (found,) = await self.store.batch([op])
        assert found == self.model.namespaces(op), op

    async def count(self) -> None:
        prefix = self.namespace()[: self.chance.randrange(5)]
        expected = sum(ns[: len(prefix)] == prefix for ns, _ in self.model.items)
        assert await self.store.count(prefix) == expected

    async def delete_namespace(self) -> None:
        prefix = self.namespace()
        gone = [name for name in self.model.items if name[0][: len(prefix)] == prefix]
        assert await self.store.delete_namespace(prefix) == len(gone)
        for name in gone:
            del self.model.items[name]

    async def batch(self) -> None:
        """Check that reads see the state before the puts, and that the last put of an item wins."""
        ops: list[Any] = []
        for _ in range(self.chance.choice([1, 3, 8])):
            kind = self.chance.choice(["get", "put", "put", "search", "namespaces"])
            if kind == "put":
                value = self.chance.choice([self.value(), self.value(), None])
                ops.append(PutOp(*self.name(), value, None, self.ttl()))
            elif kind == "get":
                ops.append(GetOp(*self.name(), False))
            else:
                ops.append(self.search_op()._replace(refresh_ttl=False) if kind == "search" else self.namespaces_op())
        expected = [self.expected(op) for op in ops]
        answers = await self.store.batch(ops)
        for op, answer, known in zip(ops, answers, expected, strict=True):
            if not isinstance(op, ListNamespacesOp):
                answer = list(map(shown, answer)) if isinstance(answer, list) else shown(answer)
            assert answer == known, op
        last = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        for name, op in last.items():
            if op.value is None:
                self.model.items.pop(name, None)
            else:
                await self.noted(*name, op.value, op.ttl)

    def expected(self, op: Any) -> Any:
        if isinstance(op, GetOp):
            return self.model.read((op.namespace, op.key), False)
        if isinstance(op, SearchOp):
            return self.model.search(op)
        return self.model.namespaces(op) if isinstance(op, ListNamespacesOp) else None

    async def later(self) -> None:
        minutes = self.chance.choice([3, 3, 20, 2000])
        later(self.target, minutes * MINUTE)
        self.model.later(minutes)


@pytest.mark.by_turns
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets_and_slow(("redis", "redis62", "cluster", "valkey"), ("fakeredis",)))
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 2)))
async def test_random_operations_match_the_model(target: Target, seed: int) -> None:
    print("seed", seed)
    await Play(target, seed).run(250)
    check_sound(target)


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", targets("redis"))
@pytest.mark.parametrize("seed", seeds(range(10)))
async def test_fifty_thousand_operations_match_the_model(target: Target, seed: int) -> None:
    print("seed", seed)
    play = Play(target, seed)
    for _ in range(50):
        await play.run(100)
        check_sound(target)
