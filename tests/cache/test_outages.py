"""Failing servers and malformed entries: the cache is skipped, and errors are counted and logged once."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis
from tests.support.caching import UniformCache, cache_of, keys_of
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.support.servers import Server
from tests.support.uniform import Target
from tests.support.wrappers import Around

from redis_saver import (
    AsyncRedisCache,
    CalledOnEventLoop,
    DecodeError,
    KeyConflict,
    PlainValueRefused,
    RedisCache,
    UnsupportedFormat,
)
from redis_saver._cache.health import Health
from redis_saver._cache.entries import CacheKeyspace

A, K = ("a",), (("a",), "k")
LOGGER = "redis_saver.cache"


def failing(cache: UniformCache, error: Exception) -> list[Any]:
    """Make all requests fail until the returned list is emptied."""
    on = [error]

    def around(request: Any) -> Any:
        if on:
            raise on[0]
        return (yield request)

    Around(cache.cache, around)
    return on


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_server_that_is_down_is_skipped_and_used_again(
    target: Target, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_saver._cache.health.MIN_PAUSE", 0.0)
    monkeypatch.setattr("redis_saver._cache.health.PATIENCE", 0)
    server = Server()
    there = target.elsewhere(server.url)
    cache = cache_of(there, client=there.client(retry=None))
    await cache.set({K: (1, None)})
    server.kill()
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(3):
            assert await cache.get([K]) == {}
            await cache.set({K: (2, None)})
        with pytest.raises(redis.ConnectionError):
            await cache.clear()
        server.start()
        assert await cache.get([K]) == {}, "the server restarted without data"
        await cache.set({K: (3, None)})
        assert await cache.get([K]) == {K: 3}
    stats = cache.stats()
    assert (stats.errors, stats.hits, stats.misses, stats.sets, stats.skipped) == (6, 1, 4, 2, 0)
    assert stats.last_error.startswith("ConnectionError: ")
    said = [(record.levelname, record.message) for record in caplog.records if record.name == LOGGER]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO", "INFO"]
    assert "get failed: ConnectionError" in said[0][1]
    assert f"127.0.0.1:{server.port}" in said[0][1]
    assert "set failed" in said[1][1]
    assert "used again" in said[2][1]
    await there.close()
    server.stop()


@pytest.mark.parametrize("target_name", ["redis"])
async def test_on_error_raise_raises_errors(target: Target) -> None:
    cache = cache_of(target, on_error="raise")
    failing(cache, redis.ConnectionError("gone"))
    for call in (lambda: cache.get([K]), lambda: cache.set({K: (1, None)}), cache.clear):
        with pytest.raises(redis.ConnectionError, match="gone"):
            await call()
    assert cache.stats().errors == 2


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_failed_clear_always_raises(target: Target) -> None:
    """Otherwise the cache would return entries that the caller meant to remove."""
    cache = cache_of(target)
    await cache.set({K: (1, None)})
    on = failing(cache, redis.ConnectionError("gone"))
    with pytest.raises(redis.ConnectionError):
        await cache.clear([A])
    on.clear()
    assert await cache.get([K]) == {K: 1}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_full_server_still_answers_gets(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """It refuses new entries, and no call is skipped."""
    server = Server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    there = target.elsewhere(server.url)
    cache = cache_of(there)
    with caplog.at_level(logging.INFO, LOGGER):
        for number in range(60):
            await cache.set({(A, str(number)): (b"x" * 100_000, 100)})
            assert len(await cache.get([(A, "0")])) == 1
    stats = cache.stats()
    assert stats.hits == 60
    assert stats.skipped == 0
    assert 0 < stats.errors == 60 - stats.sets
    assert stats.last_error.startswith("OutOfMemoryError")
    assert [record.levelname for record in caplog.records if record.name == LOGGER] == ["WARNING"]
    assert there.raw.info("memory")["used_memory"] < 2 * 3_000_000
    await there.close()
    server.stop()


def test_a_hanging_server_costs_a_tenth_of_the_time(caplog: pytest.LogCaptureFixture) -> None:
    """After a failure, calls are skipped for ten times as long as it took, at least 1 s. Then one call tries."""
    now = [0.0]
    health = Health("redis://h", "skip", (redis.RedisError, OSError), redis.ResponseError, lambda: now[0])

    def request(seconds: float, error: Exception | None) -> Any:
        now[0] += seconds
        if error is not None:
            raise error
        return "answer"
        yield

    def waiting() -> Any:
        yield "a request"

    def call(seconds: float = 0, error: Exception | None = None, what: str = "get") -> Any:
        operation = health.guarded(what, request(seconds, error))
        try:
            next(operation)
        except StopIteration as end:
            return end.value
        raise AssertionError

    hang = redis.TimeoutError("hangs")
    assert call(2.0, hang) is None
    now[0] += 19.9
    assert call() is None
    assert health.counts.skipped == 1
    now[0] += 0.2
    trying = health.guarded("get", waiting())
    next(trying)
    now[0] += 5
    assert call() is None, "other callers do not try while one does"
    with pytest.raises(StopIteration):
        trying.throw(hang)
    assert health.counts.skipped == 2
    now[0] += 49.9
    assert call() is None
    now[0] += 0.2
    cancelled = health.guarded("get", waiting())
    next(cancelled)
    cancelled.close()
    assert call(0.001) == "answer"
    assert call() == "answer"
    assert call(0.001, redis.TimeoutError("x")) is None
    now[0] += 1.1
    assert call(0, redis.ResponseError("OOM")) is None, "after an error reply the next call asks the server again"
    assert call() == "answer"
    assert health.counts.skipped == 3


@pytest.mark.parametrize("target_name", ["redis"])
async def test_programming_errors_are_always_raised(target: Target) -> None:
    """`on_error` does not apply to them."""
    cache = cache_of(target)
    failing(cache, AttributeError("a mistake"))
    with pytest.raises(AttributeError):
        await cache.get([K])
    with pytest.raises(AttributeError):
        await cache.set({K: (1, None)})
    assert cache.stats().errors == 0


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("flavour", ["async"])
async def test_a_call_that_would_block_its_event_loop_raises(target: Target) -> None:
    cache = cache_of(target).cache
    for call in (lambda: cache.get([K]), lambda: cache.set({K: (1, None)}), cache.clear):
        with pytest.raises(CalledOnEventLoop):
            call()
    assert cache.stats().errors == 0


# -- malformed entries


def entry(target: Target) -> bytes:
    return CacheKeyspace(target.prefix).address(K).entry


async def unreadable(target: Target, raw: bytes, error: type[Exception], **options: Any) -> None:
    """Overwrite an entry with `raw`. Check that it is a counted miss or an error, and that a set replaces it."""
    cache = cache_of(target, **options)
    other = (A, "other")
    await cache.set({K: (1, None), other: (2, None)})
    stamp = target.raw.get(entry(target))[:17]
    target.raw.set(entry(target), raw.replace(b"STAMP", stamp))
    before = cache.stats()
    assert await cache.get([K, other]) == {other: 2}
    assert cache.stats().errors == before.errors + 1
    assert cache.stats().misses == before.misses + 1
    assert cache.stats().last_error.startswith((error.__name__, *(each.__name__ for each in error.__subclasses__())))
    strict = cache_of(target, on_error="raise", **options)
    with pytest.raises(error):
        await strict.get([K, other])
    await cache.set({K: (3, None)})
    assert await strict.get([K, other]) == {K: 3, other: 2}


@pytest.mark.parametrize("single_flight", [None, "1s"])
@pytest.mark.parametrize(
    "raw", [b"STAMP", b"STAMP7:msgpack\xc1", b"STAMP9:msgpack\x01", b"STAMP-1:x", b"STAMP3:abcx", b"STAMP7:\xff\xff"]
)
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.by_turns
async def test_undecodable_bytes_are_a_counted_miss(target: Target, raw: bytes, single_flight: Any) -> None:
    await unreadable(target, raw, DecodeError, single_flight=single_flight)


@pytest.mark.parametrize("raw", [b"of another program", b"\2STAMP7:msgpack\x01"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_foreign_and_newer_entries_are_a_counted_miss(target: Target, raw: bytes) -> None:
    await unreadable(target, raw, UnsupportedFormat)


async def test_a_foreign_key_is_a_miss_and_stops_a_set(target: Target) -> None:
    cache, strict = cache_of(target), cache_of(target, on_error="raise")
    index = CacheKeyspace(target.prefix).indexes[CacheKeyspace(target.prefix).address(K).shard]
    target.raw.hset(index, "f", "1")
    await cache.set({K: (1, None)})
    assert (await cache.get([K]), cache.stats().errors, cache.stats().sets) == ({}, 1, 0)
    with pytest.raises(KeyConflict, match="another program"):
        await strict.set({K: (1, None)})
    assert keys_of(target) == [index], "nothing was written"
    target.raw.unlink(index)
    target.raw.hset(entry(target), "f", "1")
    assert await cache.get([K]) == {}


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_log_never_shows_an_entrys_value(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    class Telling(JsonPlusSerializer):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            raise ValueError(f"cannot read {data!r}")

    cache = cache_of(target, serde=Telling())
    await cache.set({K: ("the secret", None)})
    for _ in range(3):
        assert await cache.get([K]) == {}
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert "entry 'k' of namespace ('a',)" in record.message
    assert "ValueError" in record.message
    assert "secret" not in record.message + cache.stats().last_error
    assert cache.stats().errors == 3


@pytest.mark.parametrize("target_name", ["redis"])
async def test_an_encrypting_cache_refuses_plain_values(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "k" * 32)
    serde = EncryptedSerializer.from_pycryptodome_aes()
    cache, plain = cache_of(target, serde=serde), cache_of(target)
    await cache.set({K: ("the secret", None)})
    assert b"secret" not in target.raw.get(entry(target))
    assert await cache.get([K]) == {K: "the secret"}
    await plain.set({K: ("plain", None)})
    assert (await cache.get([K]), cache.stats().errors) == ({}, 1)
    with pytest.raises(PlainValueRefused, match="not decoded"):
        await cache_of(target, serde=serde, on_error="raise").get([K])
    assert await cache_of(target, serde=serde, require_encryption=False).get([K]) == {K: "plain"}


class Gadget:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("code ran",))


@pytest.mark.parametrize("target_name", ["redis"])
async def test_stored_bytes_run_no_code(target: Target) -> None:
    for options in ({}, {"strict": True}):
        packed = pickle.dumps(Gadget())
        await unreadable(target, b"STAMP6:pickle" + packed, DecodeError, **options)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_hundred_callers_each_wait_once_for_a_hanging_server(target: Target) -> None:
    """A client from a URL sends each request once, and a request from a shared pipeline is not sent again either."""
    server, seconds = Server(), 0.5
    kind: Any = AsyncRedisCache if target.flavour == "async" else RedisCache
    made = kind.from_conn_string(server.url, client_options={"socket_timeout": seconds})
    async with AsyncExitStack() as stack:
        enter: Any = stack.enter_async_context if target.flavour == "async" else stack.enter_context
        entered = enter(made)
        cache = UniformCache(
            await entered if target.flavour == "async" else entered, native_async=target.flavour == "async"
        )
        await cache.get([K])
        os.kill(server.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
        began = time.monotonic()
        assert await cache.in_thread("get", [K]) == {}
        assert time.monotonic() - began < 4 * seconds, "the call was retried"
        for each in (cache.cache._health, cache.cache._health.counts):
            each.after_fork()  # as if nothing had failed yet
        sent, began = cache.stats().round_trips, time.monotonic()
        answers = await asyncio.gather(*(cache.in_thread("get", [(A, str(number))]) for number in range(100)))
        assert answers == [{}] * 100
        stats = cache.stats()
        assert stats.errors + stats.skipped == 100
        assert stats.round_trips - sent == (1 if target.flavour == "async" else stats.errors)
        assert time.monotonic() - began < 6 * seconds
        os.kill(server.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
    server.stop()
