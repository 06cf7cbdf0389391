"""Stores shared by OS threads, tasks and event loops, and settings in common with savers."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
import redis
from tests.support.servers import Server
from tests.support.stores import check_sound
from tests.support.uniform import Target, Uniform

from redis_saver import CalledOnEventLoop, ReplicationTimeout

NS = ("memories", "user")
pytestmark = pytest.mark.parametrize("target_name", ["redis"])


async def test_concurrent_workers_find_exactly_their_own_items(target: Target, store: Uniform) -> None:
    """The workers use pages and filters, and share one cache."""

    async def work(number: int) -> None:
        chance, mine = random.Random(number), dict[str, int]()
        for turn in range(25):
            key = f"{number}-{chance.randrange(5)}"
            if chance.random() < 0.7:
                mine[key] = turn
                await store.put(NS, key, {"of": number, "turn": turn})
            elif mine.pop(key, None) is not None:
                await store.delete(NS, key)
            found = await store.search(NS, filter={"of": number}, limit=100)
            assert {one.key: one.value["turn"] for one in found} == mine
            newest = await store.search(NS, limit=100)
            assert {one.key: one.value["turn"] for one in newest if one.value["of"] == number} == mine

    if store.native_async:
        await asyncio.gather(*(work(number) for number in range(6)))
    else:
        errors: list[BaseException] = []

        def run(number: int) -> None:
            try:
                asyncio.run(work(number))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert not errors, errors
    check_sound(target)


async def test_both_stores_have_sync_and_async_methods(target: Target, store: Uniform) -> None:
    made = store.saver
    await made.aput(NS, "k", {"n": 1})
    assert (await made.aget(NS, "k")).value == {"n": 1}
    assert (await asyncio.to_thread(made.get, NS, "k")).value == {"n": 1}
    assert len(await asyncio.to_thread(made.search, ("memories",))) == len(await made.asearch(())) == 1
    assert await made.acount() == 1
    if store.native_async:
        with pytest.raises(CalledOnEventLoop):
            made.get(NS, "k")


async def test_missing_replicas_raise_replication_timeout(target: Target) -> None:
    store = target.store(min_replicas=1, replica_timeout=0.01)
    for call in (store.put(NS, "k", {"n": 1}), store.put(("other", "user"), "k", {"n": 1})):
        with pytest.raises(ReplicationTimeout):
            await call


@pytest.mark.parametrize("flavour", ["sync"])
async def test_require_primary_refuses_a_replica(target: Target) -> None:
    primary = Server("--repl-diskless-sync-delay", "0")
    replica = Server("--replicaof", "127.0.0.1", str(primary.port))
    writer = Target("redis", "sync", primary.url, "replicated").store()
    await writer.put(NS, "k", {"n": 1})
    there = Target("redis", "sync", replica.url, "replicated")
    reader = there.store()
    for _ in range(200):
        try:
            if await reader.get(NS, "k"):
                break
        except redis.RedisError:
            pass
        await asyncio.sleep(0.05)
    assert (await reader.get(NS, "k")).value == {"n": 1}
    assert len(await reader.search(NS, filter={"n": 1})) == len(await reader.search(())) == await reader.count() == 1
    strict = there.store(require_primary=True)
    calls: list[Any] = [
        strict.get(NS, "k"),
        strict.search(NS),
        strict.search(()),
        strict.count(NS),
        strict.search(NS, filter={"n": 1}),
        # Writes that find nothing to change
        *(
            each
            for store in (strict, reader)
            for each in (
                store.delete(NS, "absent"),
                store.delete(("absent",), "k"),
                store.put(NS, "k", {"n": 2}, if_version=5),
                store.put(NS, "new", {"n": 2}, if_version=5),
            )
        ),
    ]
    for call in calls:
        with pytest.raises(redis.exceptions.ReadOnlyError):
            await call
    assert (await Target("redis", "sync", primary.url, "replicated").store(require_primary=True).get(NS, "k")).value
    replica.stop()
    primary.stop()
