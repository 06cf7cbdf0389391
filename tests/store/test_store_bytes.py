"""Random bytes in a store's keys. Every call ends, and raises no errors except ours."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support.embedding import Model
from tests.support.seeds import seeds_and_slow, targets
from tests.support.uniform import Target

from redis_saver import DecodeError, KeyConflict, StoreBusy, StoreDamaged, UnsupportedFormat
from redis_saver._common.store_names import StoreKeyspace

NS = ("memories", "user")
OURS = (DecodeError, KeyConflict, StoreBusy, StoreDamaged, UnsupportedFormat)
BYTES = [
    b"",
    b" ",
    b"0",
    b"-1",
    b"1e9",
    b"9" * 17,
    b"9" * 400,
    b"\0",
    b"\1",
    b"\xff",
    b"nan",
    b"inf",
    b"7:msgpack",
    b"1_0",
]


def mutated(chance: random.Random, raw: bytes) -> bytes:
    position = chance.randrange(len(raw) + 1)
    kind = chance.randrange(5)
    if kind == 0:
        return raw[:position]
    if kind == 1:
        return raw[:position] + chance.choice(BYTES) + raw[position:]
    if kind == 2:
        return raw[:position] + bytes([chance.randrange(256)]) + raw[position + 1 :]
    if kind == 3:
        parts = raw.split(b" ")
        parts[chance.randrange(len(parts))] = chance.choice(BYTES)
        return b" ".join(parts)
    return chance.choice(BYTES)


def damage(chance: random.Random, target: Target) -> str:
    """Change a random key, and return a description of the change."""
    keyspace, raw = StoreKeyspace(target.prefix), target.raw
    items, order, expiring, namespaces, vectors, retired = keyspace.partition(b"memories\0user\0").keys
    key = chance.choice([items, items, items, order, expiring, namespaces, vectors, vectors, *keyspace.directory])
    kind = raw.type(key)
    if kind == b"hash":
        field = chance.choice(sorted(raw.hkeys(key)))
        value = mutated(chance, raw.hget(key, field))
        if chance.random() < 0.3:
            raw.hdel(key, field)
            field = mutated(chance, field)
        raw.hset(key, field, value)
        return f"{key!r} {field!r} {value!r}"
    if kind == b"zset":
        member = chance.choice(raw.zrange(key, 0, -1))
        score = chance.choice([raw.zscore(key, member), 0, -5, 1.5, 1e300, float("inf"), float("-inf")])
        if chance.random() < 0.5:
            raw.zrem(key, member)
            member = mutated(chance, member)
        raw.zadd(key, {member: score})
        return f"{key!r} {member!r} {score!r}"
    return "nothing"


@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", targets("redis", "fakeredis"))
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 2)))
async def test_damaged_bytes_raise_only_our_errors(target: Target, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(25):
        target.raw.unlink(*target.keys(), "none")
        index = Model(2).index(fields=["n"])
        store: Any = target.store(index=index).saver
        for number in range(4):
            store.put(NS, f"k{number}", {"n": number}, ttl=chance.choice([None, 5]))
            store.put((*NS, "deep"), f"k{number}", {"n": number})
        store.put(NS, "long", {"n": 1, "text": "a long text " * 300})
        store.search(NS, filter={"n": 1})
        store.search(NS)
        if chance.random() < 0.5:
            store.search(NS, query="1")
        said = [damage(chance, target) for _ in range(chance.choice([1, 1, 3]))]
        calls = [
            lambda: store.get(NS, "k1"),
            lambda: store.search(NS),
            lambda: store.search((*NS, "deep")),
            lambda: store.search((), limit=100),
            lambda: store.search(NS, filter={"n": {"$gt": 0}}),
            lambda: store.search(NS, query="1"),
            lambda: store.search((), query="1", filter={"n": {"$gt": 0}}),
            lambda: target.store(index=index).saver.search((*NS, "deep"), query="1"),
            lambda: store.list_namespaces(),
            lambda: store.count(),
            lambda: store.put(NS, "k2", {"n": 5}, ttl=chance.choice([None, 1000])),
            lambda: store.put(("new",), "k", {"n": 5}),
            lambda: store.get(NS, "long"),
            lambda: store.put(NS, "long", {"n": 2, "text": "a long text " * 290}),
            lambda: store.delete(NS, "k3"),
            lambda: store.sweep_ttl(),
            lambda: target.store().saver.search(NS, filter={"n": 1}),
        ]
        chance.shuffle(calls)
        for call in calls:
            try:
                call()
            except OURS:
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}, turn {turn}: {error!r} after {said}") from error
