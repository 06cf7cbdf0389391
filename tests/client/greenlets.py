"""A worker whose threads are greenlets: `greenlets.py gevent|eventlet URL PREFIX`. Prints `done` if all is well."""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    if sys.argv[1] == "gevent":
        import_module("gevent.monkey").patch_all()
    else:
        import_module("eventlet").monkey_patch()

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
import redis.asyncio
from langgraph.checkpoint.memory import InMemorySaver

from redis_saver import AsyncRedisCache, AsyncRedisSaver, AsyncTieredSaver, NotOwner, RedisSaver, ThreadsPatched
from redis_saver import TieredSaver


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def checkpoint() -> Any:
    return {"v": 1, "id": "1", "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}


def refused(call: Any) -> None:
    try:
        call()
    except ThreadsPatched as error:
        assert "Use RedisSaver" in str(error)
    else:
        raise AssertionError("an asyncio call went through")


def asyncio_is_refused(url: str, prefix: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    saver, cache = AsyncRedisSaver(client, prefix=prefix), AsyncRedisCache(client, prefix=prefix)
    tiers = AsyncTieredSaver(saver, InMemorySaver())

    async def owning() -> None:
        async with saver.own("t"):
            pass

    for _ in range(2):
        for make in (
            lambda: saver.aget_tuple(config("t")),
            lambda: saver.asetup(),
            lambda: cache.aget([(("a",), "key")]),
            lambda: tiers.aget_tuple(config("t")),
            owning,
        ):
            refused(lambda make=make: asyncio.run(make()))
        refused(lambda: saver.get_tuple(config("t")))


def blocking_calls_work(url: str, prefix: str) -> None:
    client = redis.Redis.from_url(url)
    saver = RedisSaver(client, prefix=prefix)

    def turn(number: int) -> None:
        saver.put(config(str(number)), checkpoint(), {}, {})
        assert saver.get_tuple(config(str(number))) is not None

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(turn, range(100)))
    assert asyncio.run(saver.aget_tuple(config("1"))) is not None
    with saver.own("1", lease="1s") as owned:
        owner = saver.get_thread("1").owner
        while (renewed := saver.get_thread("1").owner).lease_until == owner.lease_until:
            time.sleep(0.02)
        assert renewed.since == owner.since
        saver.put({"configurable": {**owned["configurable"], "checkpoint_ns": ""}}, checkpoint(), {}, {})
        try:
            with saver.own("1"):
                raise AssertionError("two owners")
        except NotOwner:
            pass
    assert saver.get_thread("1").owner is None
    cold = InMemorySaver()
    with TieredSaver(saver, cold, mode="write-behind") as tiers:
        tiers.put(config("behind"), checkpoint(), {}, {})
        assert tiers.get_tuple(config("behind")) is not None
    assert cold.get_tuple(config("behind")) is not None, "the flushers are greenlets, too"


if __name__ == "__main__":
    asyncio_is_refused(*sys.argv[2:])
    blocking_calls_work(*sys.argv[2:])
    print("done")
