"""Keys and requests of a cache, including lost keys and lost replies."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from redis_saver._cache.cache import ENTRIES_PER_REQUEST
from redis_saver._cache.entries import SHARDS, CacheKeyspace
from redis_saver._engine.requests import Batch
from tests.support import seeds
from tests.support.caching import LABELS, UniformCache, cache_of, keys_of
from tests.support.counting import Counted
from tests.support.proxy import Proxy, proxy, retrying  # noqa: F401
from tests.support.uniform import Target
from tests.support.wrappers import Meanwhile, fails_on, requests_of

pytestmark = pytest.mark.also_on(cluster="async", fakeredis="sync")

A, B = ("a",), ("b",)


@pytest.fixture
def cache(target: Target) -> UniformCache:
    return cache_of(target)


def keyspace(target: Target) -> CacheKeyspace:
    return CacheKeyspace(target.prefix)


def without_deadline(target: Target) -> list[bytes]:
    return [key for key in keys_of(target) if target.raw.pttl(key) == -1]


def index_sizes(target: Target) -> int:
    return sum(target.raw.zcard(key) for key in keyspace(target).indexes)


# -- stored keys


async def test_generations_expire_after_all_entries_if_each_has_a_ttl(target: Target, cache: UniformCache) -> None:
    longest = 0
    for ttl in (100, 1, 5000, 7):
        longest = max(longest, 1000 * ttl)
        await cache.set({(A, str(ttl)): (1, ttl), (B, str(ttl)): (1, 10 * ttl)})
        assert without_deadline(target) == []
        entries = [target.raw.pttl(key) for key in target.keys() if b":entry:1:a" in key]
        place = keyspace(target).address((A, "x"))
        generations = (place.generation, keyspace(target).generations[place.shard])
        assert all(max(entries) <= target.raw.pttl(key) + 100 <= 2 * longest + 100 for key in generations)
    assert index_sizes(target) == 0


async def test_an_entry_without_a_ttl_keeps_its_generations(target: Target, cache: UniformCache) -> None:
    place = keyspace(target).address((A, "k"))
    await cache.set({(A, "k"): (1, 1)})
    await cache.set({(A, "other"): (1, None)})
    shard = keyspace(target).generations[place.shard]
    assert target.raw.pttl(place.generation) == target.raw.pttl(shard) == -1
    await cache.set({(A, "k"): (1, 1)})
    assert target.raw.pttl(place.generation) == target.raw.pttl(shard) == -1
    assert 0 < target.raw.pttl(place.entry) <= 1000


async def test_clearing_a_namespace_deletes_entries_without_a_ttl(target: Target, cache: UniformCache) -> None:
    """They are deleted in pages. Entries with a TTL are invalid at once, and expire later."""
    many = 2 * ENTRIES_PER_REQUEST + 7
    await cache.set({(A, str(number)): (number, None) for number in range(many)})
    await cache.set({(("a", "x"), "k"): (1, None), (A, "0"): (1, 100)})
    assert index_sizes(target) == many
    await cache.clear([A])
    left = [key for key in target.keys() if b":entry:1:a" in key]
    assert left == [keyspace(target).address((A, "0")).entry]
    assert target.raw.exists(keyspace(target).address((A, "0")).generation) == 0
    assert index_sizes(target) == 1
    assert await cache.get([(A, "0"), (A, "1"), (("a", "x"), "k")]) == {(("a", "x"), "k"): 1}


async def test_every_key_expires_after_clearing_everything(target: Target, cache: UniformCache) -> None:
    await cache.set({((f"{number % 50}",), str(number)): (number, None) for number in range(700)})
    await cache.clear()
    assert without_deadline(target) == []
    assert not [key for key in target.keys() if b":entry:" in key]
    assert index_sizes(target) == 0


async def test_an_entry_that_gets_a_ttl_leaves_the_index(target: Target, cache: UniformCache) -> None:
    await cache.set({(A, "k"): (1, None), (A, "other"): (1, None)})
    await cache.set({(A, "k"): (2, 100)})
    assert index_sizes(target) == 1
    await cache.set({(A, "k"): (2, None)})
    assert index_sizes(target) == 2


async def test_an_index_forgets_evicted_entries(target: Target, cache: UniformCache) -> None:
    """If the server evicts entries while new ones come, the index must not grow forever."""
    largest = 0
    for turn in range(30):
        names = [(A, f"{turn}-{number}") for number in range(64)]
        await cache.set({name: (1, None) for name in names})
        if turn != 29:
            target.raw.unlink(*(keyspace(target).address(name).entry for name in names))
        largest = max(largest, index_sizes(target))
    assert largest < 500, "the index forgets evicted entries: 1,920 were set"
    assert len(await cache.get(names)) == 64


# -- missing keys


@pytest.mark.parametrize("lost", ["shard", "namespace"])
async def test_an_evicted_generation_causes_misses(target: Target, cache: UniformCache, lost: str) -> None:
    names = [(A, "1"), (A, "2")]
    await cache.set({name: (1, None) for name in names})
    place = keyspace(target).address(names[0])
    target.raw.unlink(place.generation if lost == "namespace" else keyspace(target).generations[place.shard])
    assert await cache.get(names) == {}
    await cache.set({names[0]: (2, None)})
    assert await cache.get(names) == {names[0]: 2}
    assert cache.stats().errors == 0


async def test_an_evicted_index_does_not_affect_get_and_clear(target: Target, cache: UniformCache) -> None:
    await cache.set({(A, "k"): (1, None)})
    target.raw.unlink(*keyspace(target).indexes)
    assert await cache.get([(A, "k")]) == {(A, "k"): 1}
    await cache.clear()
    assert await cache.get([(A, "k")]) == {}


async def test_a_new_generation_does_not_revive_old_entries(target: Target, cache: UniformCache) -> None:
    await cache.set({(A, "k"): (1, None)})
    entry = keyspace(target).address((A, "k")).entry
    old = target.raw.get(entry)
    for namespaces in ([A], None):
        await cache.clear(namespaces)
        await cache.set({(A, "other"): (1, None)})
        target.raw.set(entry, old)
        assert await cache.get([(A, "k"), (A, "other")]) == {(A, "other"): 1}


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
async def test_flushed_scripts_are_sent_again(target: Target, cache: UniformCache) -> None:
    await cache.set({(A, "k"): (1, None)})
    flush = {"target_nodes": "all"} if target.name == "cluster" else {}
    target.raw.execute_command("SCRIPT FLUSH", **flush)
    await cache.set({((label,), "k"): (1, None) for label in "abcdefgh"})
    target.raw.execute_command("SCRIPT FLUSH", **flush)
    await cache.clear()
    assert await cache.get([(A, "k")]) == {}


# -- interrupted and concurrent clears


@pytest.mark.parametrize("namespaces", [[A], None])
async def test_an_interrupted_clear_invalidates_all_entries(target: Target, namespaces: Any) -> None:
    """The first round trip invalidates them. The next clear deletes what is left."""
    names = [(A, str(number)) for number in range(20)]
    cache, dying = cache_of(target), cache_of(target)
    await cache.set({name: (1, None) for name in names})
    asked = requests_of(dying.cache)
    fails_on(dying.cache, lambda _: asked, ConnectionError("died"))
    with pytest.raises(ConnectionError):
        await dying.clear(namespaces)
    assert await cache.get(names) == {}
    assert index_sizes(target) == 20
    await cache.set({names[0]: (2, None)})
    await cache.clear(namespaces)
    assert await cache.get(names) == {}
    assert not [key for key in target.keys() if b":entry:" in key]
    assert index_sizes(target) == 0


@pytest.mark.parametrize("namespaces", [[A], None])
async def test_an_entry_set_during_a_clear_stays(target: Target, namespaces: Any) -> None:
    names = [(A, str(number)) for number in range(20)]
    cache, clearing, asked = cache_of(target), cache_of(target), list[Any]()
    await cache.set({name: (1, None) for name in names})

    def before(request: Any) -> Any:
        asked.append(request)
        return (lambda: cache.set({names[3]: (2, None)})) if len(asked) == 2 else None

    Meanwhile(clearing.cache, before)
    await clearing.clear(namespaces)
    assert len(asked) >= 2
    assert await cache.get(names) == {names[3]: 2}


# -- requests


@pytest.mark.parametrize("target_name", ["redis"])
async def test_each_call_takes_one_round_trip(target: Target) -> None:
    client = target.client()
    cache = cache_of(target, client=client)
    await cache.set({(A, "warm"): (1, None)})
    await cache.clear()
    counter = Counted(client)
    names = [(A, str(number)) for number in range(100)]
    everywhere = [((str(number),), "k") for number in range(100)]
    for call, expected in (
        (lambda: cache.get([]), []),
        (lambda: cache.set({}), []),
        (lambda: cache.clear([]), []),
        (lambda: cache.set({name: (1, 60) for name in names}), ["EVALSHA"]),
        (lambda: cache.get(names), ["MGET"]),
        (lambda: cache.set({name: (1, 60) for name in everywhere}), ["PIPELINE"]),
        (lambda: cache.get(everywhere), ["PIPELINE"]),
        (lambda: cache.clear([A]), ["PIPELINE"]),
        (lambda: cache.clear(), ["PIPELINE"]),
    ):
        answer = await call()
        assert counter.take() == expected
        assert answer is None or len(answer) == (100 if expected else 0)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_get_sends_one_mget_per_shard(target: Target, cache: UniformCache) -> None:
    names = [((str(number),), "k") for number in range(100)]
    await cache.get(names)  # with encryption, it also asks once for the data key
    asked = requests_of(cache.cache)
    await cache.get([*names, *names])
    (batch,) = asked
    assert isinstance(batch, Batch) and len(batch.requests) == SHARDS
    keys = [key for command in batch.requests for key in command.arguments[1:]]
    assert len(keys) == SHARDS + 2 * len(names), "each generation and each entry is read once"


async def test_clear_leaves_foreign_keys_alone(target: Target, cache: UniformCache) -> None:
    others = [f"{target.prefix}:cache", f"{target.prefix}:cache:x", f"{target.prefix}:cache:{{1}}:other"]
    for key in others:
        target.raw.set(key, "1")
    await cache.set({((str(number),), "k"): (1, None) for number in range(40)})
    await cache.clear()
    assert all(target.raw.exists(key) for key in others)


def test_namespaces_spread_over_shards_and_shards_over_cluster_slots() -> None:
    from redis.crc import key_slot

    keys = CacheKeyspace("p")
    shards = [keys.address(((f"user-{number}",), "k")).shard for number in range(1600)]
    assert min(shards.count(shard) for shard in range(SHARDS)) > 50
    slots = sorted(key_slot(b"%d" % shard) for shard in range(SHARDS))
    assert max(high - low for low, high in zip(slots, slots[1:], strict=False)) < 16384 / 4


# -- against a model


def known(rng: random.Random) -> Any:
    spaces = [(), A, B, ("a", "b"), ("a\0",), ("a:b",), *((label,) for label in rng.sample(LABELS, 4))]
    return rng.choice(spaces), rng.choice(["", "k", "b", "\0", "a:b"])


@pytest.mark.by_turns
@pytest.mark.random
@pytest.mark.parametrize("seed", seeds.seeds(range(3)))
@pytest.mark.parametrize("target_name", seeds.targets_and_slow(("redis", "cluster"), ("fakeredis",)))
@pytest.mark.parametrize("steps", [150, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_random_operations_against_a_model(target: Target, seed: int, steps: int) -> None:
    """Compare several caches with a dict. After an eviction an entry may be missing, but is never wrong."""
    rng, model, unsure = random.Random(seed), dict[Any, Any](), set[Any]()
    caches = [cache_of(target) for _ in range(3)]
    for step in range(steps):
        cache, act = rng.choice(caches), rng.random()
        if act < 0.4:
            pairs = {known(rng): (step * 10 + each, rng.choice([None, 1000])) for each in range(rng.randrange(1, 5))}
            await cache.set(pairs)
            model.update({name: value for name, (value, _) in pairs.items()})
            unsure -= pairs.keys()
        elif act < 0.8:
            names = [known(rng) for _ in range(rng.randrange(1, 8))]
            found = await cache.get(names)
            expected = {name: model[name] for name in names if name in model}
            assert found.items() <= expected.items(), (seed, step)
            assert expected.keys() - found.keys() <= unsure, (seed, step)
        elif act < 0.93:
            gone = {known(rng)[0] for _ in range(2)}
            await cache.clear(list(gone))
            model = {name: value for name, value in model.items() if name[0] not in gone}
        elif act < 0.96:
            await cache.clear()
            model = {}
        elif keys := keys_of(target):
            target.raw.unlink(rng.choice(keys))
            unsure |= model.keys()
    for cache in caches:
        assert cache.stats().errors == 0
    await caches[0].clear()
    assert [key for key in target.keys() if b":entry:" in key and target.raw.pttl(key) == -1] == [] or unsure


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds.seeds(range(2)))
@pytest.mark.parametrize("target_name", seeds.targets("redis", "cluster"))
async def test_concurrent_callers_see_only_their_own_changes(target: Target, seed: int, steps: int = 40) -> None:
    """Each caller sets and clears a namespace of its own, and all namespaces share a shard."""
    keys = keyspace(target)
    spaces = [(f"{number}",) for number in range(400) if keys.address(((f"{number}",), "k")).shard == 3][:8]
    caches = [cache_of(target) for _ in range(2)]

    async def work(space: Any, rng: random.Random) -> None:
        model = dict[Any, Any]()
        for step in range(steps):
            cache, act, names = rng.choice(caches), rng.random(), [(space, str(each)) for each in range(6)]
            if act < 0.5:
                pairs = {name: (f"{space}{step}", rng.choice([None, 100])) for name in rng.sample(names, 3)}
                await cache.in_thread("set", pairs)
                model |= {name: value for name, (value, _) in pairs.items()}
            elif act < 0.7:
                await cache.in_thread("clear", [space])
                model = {}
            assert await cache.in_thread("get", names) == model, (seed, step)

    await asyncio.gather(*(work(space, random.Random(seed * 100 + number)) for number, space in enumerate(spaces)))
    assert [cache.stats().errors for cache in caches] == [0, 0]


@pytest.mark.parametrize("target_name", ["redis"])
async def test_calls_survive_lost_requests_and_replies(target: Target, proxy: Proxy) -> None:
    there = target.elsewhere(proxy.url)
    cache = cache_of(there, client=there.client(retry=retrying(target.flavour, 1)), on_error="raise")
    await cache.set({(A, "warm"): (1, None)})
    await cache.clear()
    for lose in (proxy.lose_reply, proxy.drop_request):
        lose(b"EVALSHA")
        await cache.set({(A, "k"): (1, None)})
        lose(b"MGET")
        assert await cache.get([(A, "k")]) == {(A, "k"): 1}
        lose(b"UNLINK")
        await cache.clear([A])
        assert proxy.lost == 1
        assert await cache.get([(A, "k")]) == {}
        assert index_sizes(target) == 0
    await there.close()
