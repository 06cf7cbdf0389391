"""Caches with `encryption=`: what they store, and entries that do not open."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from langchain_core.outputs import Generation

from redis_saver import RedisCache
from redis_saver._cache.entries import CacheKeyspace
from redis_saver._engine.requests import Command
from redis_saver._storage.framing import pack, unpack
from redis_saver.encryption import Encryption, KeyContext, Keyset, KeyStatus, WrappedKey
from redis_saver.errors import DecodeError, KeyUnavailable, PlainValueRefused
from tests.support.caching import UniformCache, cache_of, llm_cache_of
from tests.support.tenants import Noting
from tests.support.uniform import Target
from tests.support.wrappers import Around

pytestmark = pytest.mark.plain("each of its tests sets encryption= itself")

A, B = (("a",), "k"), (("b",), "k")
KEYS = {"2026-11": b"n" * 32, "2026-05": b"o" * 32}


@pytest.fixture
def target_name() -> str:
    """Redis alone, unless a test says otherwise."""
    return "redis"


def encrypting(target: Target, keys: Keyset | None = None, **options: Any) -> UniformCache:
    """Make a cache that encrypts, with its own memory of keys, as in another process."""
    encryption = Encryption(keys or Keyset(KEYS), key_for=lambda *_: pytest.fail("asked for a cache"))
    return cache_of(target, encryption=encryption, **options)


def entry(target: Target, name: Any = A, room: bytes = b"cache") -> bytes:
    return CacheKeyspace(target.prefix, room).address(name).entry


def data_key(target: Target) -> bytes:
    return CacheKeyspace(target.prefix).data_key


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
@pytest.mark.by_turns
async def test_values_are_sealed_and_other_processes_read_them(target: Target) -> None:
    keys, other = Noting(KEYS), Noting(KEYS)
    cache = encrypting(target, keys, on_error="raise")
    values = {A: "the secret", B: None, (("a",), "bytes"): b"\0", (("a",), "list"): ["the secret"] * 1000}
    await cache.set({name: (value, None) for name, value in values.items()})
    models = llm_cache_of(cache)
    await models.update("prompt", "model", [Generation(text="the secret")])
    assert await cache.get(list(values)) == values
    assert await models.lookup("prompt", "model") == [Generation(text="the secret")]
    context = KeyContext(target.prefix, "cache", "")
    assert keys.asked == [("wrap", context), ("unwrap", context)]
    stored = [target.raw.get(key) for key in target.keys() if b":entry:" in key]
    assert len(stored) == 5 and not any(b"secret" in value for value in stored)
    assert b"+siv" in target.raw.get(entry(target))
    assert await encrypting(target, other, on_error="raise").get(list(values)) == values
    assert other.asked == [("unwrap", context)]
    assert target.raw.hkeys(data_key(target)) == [b"@key"] and target.raw.ttl(data_key(target)) == -1


def flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


CHANGES: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "flipped": lambda mine, _, __: flipped(mine),
    "truncated": lambda mine, _, __: mine[:-1],
    "empty": lambda mine, _, __: mine[:17],
    "of another entry": lambda mine, other, _: mine[:17] + other[17:],
    "of another type": lambda mine, _, __: mine.replace(b"11:msgpack+siv", b"9:bytes+siv"),
    "plain": lambda mine, _, plain: mine[:17] + plain[17:],
    "plain, said to be sealed": lambda mine, _, plain: mine[:17] + plain[17:].replace(b"7:msgpack", b"11:msgpack+siv"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.by_turns
async def test_an_entry_that_does_not_open_is_a_counted_miss(target: Target, change: str) -> None:
    cache, strict = encrypting(target), encrypting(target, on_error="raise")
    await cache_of(target).set({A: ("plain", None)})
    plain = target.raw.get(entry(target))
    await cache.set({A: ("mine", None), B: ("other", None)})
    mine, other = target.raw.get(entry(target)), target.raw.get(entry(target, B))
    target.raw.set(entry(target), CHANGES[change](mine, other, plain))
    assert await cache.get([A, B]) == {B: "other"}
    assert (cache.stats().misses, cache.stats().errors) == (1, 1)
    with pytest.raises(PlainValueRefused if change == "plain" else DecodeError, match="entry 'k' of namespace"):
        await strict.get([A, B])
    await cache.set({A: ("again", None)})
    assert await strict.get([A]) == {A: "again"}


async def test_a_models_answer_does_not_open_as_a_nodes_result(target: Target) -> None:
    cache = encrypting(target)
    models = llm_cache_of(cache)
    await cache.set({A: (1, None)})
    await models.update("prompt", "model", [Generation(text="x")])
    (answer,) = [target.raw.get(key) for key in target.keys() if b":llm_cache:" in key and b":entry:" in key]
    target.raw.set(entry(target), target.raw.get(entry(target))[:17] + answer[17:])
    assert await cache.get([A]) == {}
    assert cache.stats().errors == 1


async def test_a_plain_cache_has_a_counted_miss_for_a_sealed_entry(target: Target) -> None:
    cache, plain = encrypting(target), cache_of(target)
    await cache.set({A: (1, None)})
    assert (await plain.get([A]), plain.stats().misses, plain.stats().errors) == ({}, 1, 1)


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
@pytest.mark.by_turns
async def test_a_lost_data_key_is_replaced_and_old_entries_are_misses(target: Target) -> None:
    """A process that still has the lost key reads the new one when it meets an entry that does not open."""
    cache, other = encrypting(target), encrypting(target)
    await cache.set({A: (1, None), B: (1, None)})
    target.raw.unlink(data_key(target))
    assert (await other.get([A]), other.stats().errors) == ({}, 1)
    await other.set({A: (2, None)})
    assert await cache.get([A, B]) == {B: 1}
    assert await cache.get([A, B]) == {A: 2}
    await cache.set({B: (3, None)})
    assert await other.get([A, B]) == {A: 2, B: 3}


def before_hsetnx(cache: UniformCache, act: Callable[[], object]) -> None:
    """Do something once, before a cache sends HSETNX. An error of it is raised there."""
    left = [act]

    def around(request: Any) -> Generator[Any, Any, Any]:
        if left and isinstance(request, Command) and request.arguments[0] == "HSETNX":
            left.pop()()
        return (yield request)

    Around(cache.cache, around)


async def test_who_loses_the_race_uses_the_other_data_key(target: Target) -> None:
    cache, other = encrypting(target), RedisCache(target.raw, prefix=target.prefix, encryption=Encryption(Keyset(KEYS)))
    before_hsetnx(cache, lambda: other.set({B: (2, None)}))
    await cache.set({A: (1, None)})
    assert other.get([A, B]) == await cache.get([A, B]) == {A: 1, B: 2}
    assert (cache.stats().errors, other.stats().errors) == (0, 0)


async def test_a_data_key_that_was_not_stored_is_not_used(target: Target) -> None:
    def fail() -> None:
        raise ConnectionError("lost")

    cache = encrypting(target, on_error="raise")
    before_hsetnx(cache, fail)
    with pytest.raises(ConnectionError, match="lost"):
        await cache.set({A: (1, None)})
    await cache.set({A: (2, None)})
    assert await encrypting(target, on_error="raise").get([A]) == {A: 2}


class Unreachable(Noting):
    """A provider whose service does not answer."""

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.asked.append(("unwrap", context))
        raise TimeoutError(f"no answer about {wrapped.key_id}")


@pytest.mark.parametrize("provider", [Noting, Unreachable])
async def test_without_its_key_a_cache_is_skipped(target: Target, provider: type[Noting]) -> None:
    await encrypting(target).set({A: (1, None)})
    keys = provider({"2026-05": KEYS["2026-05"]})
    cache = encrypting(target, keys)
    for _ in range(3):
        assert await cache.get([A]) == {}
        await cache.set({A: (2, None)})
    assert (cache.stats().errors, cache.stats().skipped, len(keys.asked)) == (1, 5, 1)
    assert cache.stats().last_error.startswith("KeyUnavailable")
    with pytest.raises(KeyUnavailable, match="2026-11"):
        await encrypting(target, keys, on_error="raise").get([A])
    assert await encrypting(target).get([A]) == {A: 1}


@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_changed_data_key_is_an_error(target: Target) -> None:
    await encrypting(target).set({A: (1, None)})
    stored = target.raw.hget(data_key(target), "@key")
    key_id, wrapped, *others = unpack(stored[16:])
    target.raw.hset(data_key(target), "@key", stored[:16] + pack([key_id, flipped(wrapped), *others]))
    with pytest.raises(DecodeError, match="the data key of cache"):
        await encrypting(target, on_error="raise").get([A])
    cache = encrypting(target)
    assert (await cache.get([A]), cache.stats().errors) == ({}, 1)


async def test_the_data_key_costs_one_round_trip(target: Target) -> None:
    await encrypting(target).set({A: (1, None)})
    trips = []
    for cache in (cache_of(target), encrypting(target)):
        for _ in range(3):
            await cache.get([A])
        await cache.set({B: (1, None)})
        trips.append(cache.stats().round_trips)
    assert trips[1] == trips[0] + 1


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
@pytest.mark.by_turns
async def test_the_key_is_rotated(target: Target) -> None:
    cache = encrypting(target, Keyset({"old": b"o" * 32}), on_error="raise").cache
    assert await cache.akey_status() == KeyStatus({}, 0, {})
    await cache.aset({A: ("value", None)})
    assert await cache.akey_status() == KeyStatus({}, 0, {}, caches={"old": 1})
    both = encrypting(target, Keyset({"new": b"n" * 32, "old": b"o" * 32})).cache
    assert [(await both.arotate_keys())[:2] for _ in range(2)] == [(1, 0), (0, 1)]
    assert (await both.akey_status()).caches == {"new": 1}
    assert await encrypting(target, Keyset({"new": b"n" * 32}), on_error="raise").get([A]) == {A: "value"}
    assert list((await encrypting(target, Keyset({"other": b"x" * 32})).cache.arotate_keys()).failed) == ["cache"]


async def test_a_cache_uses_the_key_that_key_for_names(target: Target) -> None:
    """A command, which knows no `key_for`, rotates it to the next key of that name, not to the primary key."""
    keys = Keyset({"primary": b"p" * 32, "acme/1": b"a" * 32})
    cache = cache_of(target, encryption=Encryption(keys, key_for="acme"), on_error="raise")
    await cache.set({A: ("value", None)})
    assert (await cache.cache.akey_status()).caches == {"acme/1": 1}
    both = Keyset({"primary": b"p" * 32, "acme/2": b"b" * 32, "acme/1": b"a" * 32})
    assert (await encrypting(target, both).cache.arotate_keys()).rotated == 1
    assert (await cache_of(target, encryption=Encryption(both)).cache.akey_status()).caches == {"acme/2": 1}
    later = Encryption(Keyset({"primary": b"p" * 32, "acme/2": b"b" * 32}), key_for="acme")
    assert await cache_of(target, encryption=later, on_error="raise").get([A]) == {A: "value"}


async def test_a_cache_moves_from_the_primary_key_to_a_named_one(target: Target) -> None:
    keys = Keyset({"primary": b"p" * 32, "acme": b"a" * 32})
    await encrypting(target, keys).set({A: ("value", None)})
    named = cache_of(target, encryption=Encryption(keys, key_for="acme"), on_error="raise")
    assert (await named.cache.arotate_keys()).rotated == 1
    assert (await named.cache.akey_status()).caches == {"acme": 1}
    assert await named.get([A]) == {A: "value"}


async def test_a_cache_whose_named_key_is_missing_is_skipped(target: Target) -> None:
    encryption = Encryption(Keyset({"primary": b"p" * 32}), key_for="acme")
    cache = cache_of(target, encryption=encryption)
    await cache.set({A: ("value", None)})
    assert (cache.stats().errors, target.keys()) == (1, [])
    with pytest.raises(KeyUnavailable, match="no key of the name 'acme'"):
        await cache_of(target, encryption=encryption, on_error="raise").set({A: ("value", None)})
