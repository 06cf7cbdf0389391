"""Failing servers and malformed entries: the cache is skipped, and errors are counted and logged once."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import time
from typing import Any

import pytest
import redis
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver import AsyncRedisCache, CalledOnEventLoop, DecodeError, KeyConflict
from redis_saver import PlainValueRefused, RedisCache, UnsupportedFormat
from redis_saver._cache.entries import CacheKeyspace
from redis_saver._cache.health import Health
from tests.support.caching import UniformCache, cache_of, keys_of
from tests.support.servers import Server
from tests.support.uniform import Block, Target
from tests.support.wrappers import fails_on

A, K = ("a",), (("a",), "k")
LOGGER = "redis_saver.cache"


@pytest.fixture
def target_name() -> str:
    """Redis alone, unless a test says otherwise."""
    return "redis"


def failing(cache: UniformCache, error: Exception) -> list[Any]:
    """Make all requests fail until the returned list is emptied."""
    on = [error]
    fails_on(cache.cache, lambda _: on, error)
    return on


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records if record.name == LOGGER]


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
    (first, get), (second, set_), (third, used), (fourth, _) = logged(caplog)
    assert [first, second, third, fourth] == ["WARNING", "WARNING", "INFO", "INFO"]
    assert "get failed: ConnectionError" in get and f"127.0.0.1:{server.port}" in get
    assert "set failed" in set_ and "used again" in used
    await there.close()
    server.stop()


@pytest.mark.parametrize(
    ("error", "on_error", "counted"),
    [(redis.ConnectionError("gone"), "raise", 2), (AttributeError("a mistake"), "skip", 0)],
    ids=["on_error=raise", "programming error"],
)
async def test_errors_are_raised(target: Target, error: Exception, on_error: str, counted: int) -> None:
    """`on_error` does not apply to programming errors."""
    cache = cache_of(target, on_error=on_error)
    failing(cache, error)
    for call in (cache.get([K]), cache.set({K: (1, None)}), cache.clear()):
        with pytest.raises(type(error), match=str(error)):
            await call
    assert cache.stats().errors == counted


async def test_a_failed_clear_always_raises(target: Target) -> None:
    """Otherwise the cache would return entries that the caller meant to remove."""
    cache = cache_of(target)
    await cache.set({K: (1, None)})
    on = failing(cache, redis.ConnectionError("gone"))
    with pytest.raises(redis.ConnectionError):
        await cache.clear([A])
    on.clear()
    assert await cache.get([K]) == {K: 1}


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
    assert (stats.hits, stats.skipped) == (60, 0) and 0 < stats.errors == 60 - stats.sets
    assert stats.last_error.startswith("OutOfMemoryError")
    assert [level for level, _ in logged(caplog)] == ["WARNING"]
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
    cache, strict, other = cache_of(target, **options), cache_of(target, on_error="raise", **options), (A, "other")
    await cache.set({K: (1, None), other: (2, None)})
    target.raw.set(entry(target), raw.replace(b"STAMP", target.raw.get(entry(target))[:17]))
    before = cache.stats()
    assert await cache.get([K, other]) == {other: 2}
    assert (cache.stats().errors, cache.stats().misses) == (before.errors + 1, before.misses + 1)
    assert cache.stats().last_error.startswith((error.__name__, *(each.__name__ for each in error.__subclasses__())))
    with pytest.raises(error):
        await strict.get([K, other])
    await cache.set({K: (3, None)})
    assert await strict.get([K, other]) == {K: 3, other: 2}


UNREADABLE = {
    **dict.fromkeys([b"STAMP", b"STAMP7:msgpack\xc1", b"STAMP9:msgpack\x01", b"STAMP-1:x"], DecodeError),
    **dict.fromkeys([b"STAMP3:abcx", b"STAMP7:\xff\xff"], DecodeError),
    **dict.fromkeys([b"of another program", b"\2STAMP7:msgpack\x01"], UnsupportedFormat),
}


@pytest.mark.parametrize("single_flight", [None, "1s"])
@pytest.mark.parametrize("raw", UNREADABLE)
@pytest.mark.by_turns
async def test_undecodable_foreign_and_newer_entries_are_a_counted_miss(
    target: Target, raw: bytes, single_flight: Any
) -> None:
    await unreadable(target, raw, UNREADABLE[raw], single_flight=single_flight)


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
@pytest.mark.by_turns
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


async def test_the_log_never_shows_an_entrys_value(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    class Telling(JsonPlusSerializer):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            raise ValueError(f"cannot read {data!r}")

    cache = cache_of(target, serde=Telling())
    await cache.set({K: ("the secret", None)})
    assert [await cache.get([K]) for _ in range(3)] == [{}] * 3
    ((_, message),) = logged(caplog)
    assert "entry 'k' of namespace ('a',)" in message and "ValueError" in message
    assert "secret" not in message + cache.stats().last_error
    assert cache.stats().errors == 3


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


@pytest.mark.parametrize("options", [{}, {"strict": True}])
async def test_stored_bytes_run_no_code(target: Target, options: dict[str, Any]) -> None:
    await unreadable(target, b"STAMP6:pickle" + pickle.dumps(Gadget()), DecodeError, **options)


async def test_a_hundred_callers_each_wait_once_for_a_hanging_server(target: Target) -> None:
    """A client from a URL sends each request once, and a request from a shared pipeline is not sent again either."""
    server, seconds, is_async = Server(), 0.5, target.flavour == "async"
    kind: Any = AsyncRedisCache if is_async else RedisCache
    made = kind.from_conn_string(server.url, client_options={"socket_timeout": seconds})
    async with Block(made, is_async) as entered:
        cache = UniformCache(entered, native_async=is_async)
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
        assert stats.round_trips - sent == (1 if is_async else stats.errors)
        assert time.monotonic() - began < 6 * seconds
        os.kill(server.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
    server.stop()
