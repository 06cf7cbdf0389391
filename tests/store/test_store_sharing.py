"""Stores shared by OS threads, tasks and event loops, and settings in common with savers."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from tests.support.growing import until
from tests.support.servers import Server
from tests.support.stores import check_sound, import_items
from tests.support.uniform import Target, Uniform

from redis_saver import AsyncTieredStore, CalledOnEventLoop, ReplicationTimeout, TieredStore
from redis_saver._store.writing import StoredItem

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


CLIENTS = [("redis", False, "sync"), ("redis", True, "async"), ("valkey", True, "sync"), ("valkey", False, "async")]


@pytest.mark.parametrize(("package", "encrypts", "flavour"), CLIENTS)
async def test_a_replica_refuses_writes_and_what_requires_a_primary(
    target_name: str, package: str, encrypts: bool, flavour: str
) -> None:
    primary = Server("--repl-diskless-sync-delay", "0")
    replica = Server("--replicaof", "127.0.0.1", str(primary.port))
    writer = Target("redis", flavour, primary.url, "replicated", is_encrypted=encrypts)
    await writer.store().put(NS, "k", {"n": 1})
    there = Target("redis", flavour, replica.url, "replicated", is_encrypted=encrypts)
    module: Any = {"redis": redis, "valkey": valkey}[package]
    kind = getattr(module if flavour == "sync" else module.asyncio, package.capitalize())
    clients = [kind.from_url(replica.url) for _ in range(2)]
    reader, strict = there.store(client=clients[0]), there.store(client=clients[1], require_primary=True)
    await until(lambda: there.raw.info("replication")["master_link_status"] == "up" and there.keys() == writer.keys())
    assert (await reader.get(NS, "k")).value == {"n": 1}
    assert len(await reader.search(NS, filter={"n": 1})) == len(await reader.search(())) == await reader.count() == 1
    tiered: Any = TieredStore if flavour == "sync" else AsyncTieredStore
    hot = there.store(client=clients[0], prefix="copies", encryption=None)
    over = Uniform(tiered(hot.saver, InMemoryStore()))

    def calls() -> Iterator[Any]:
        yield strict.get(NS, "k")
        yield strict.search(NS)
        yield strict.search(())
        yield strict.count(NS)
        yield strict.search(NS, filter={"n": 1})
        for store in (strict, reader):  # they have nothing to write
            yield store.delete(NS, "absent")
            yield store.delete(("absent",), "k")
            yield store.put(NS, "k", {"n": 2}, if_version=5)
            yield store.put(NS, "new", {"n": 2}, if_version=5)
            yield import_items(store, StoredItem(NS, "k", {"n": 2}, 1, 1, 0, 0, 10))
            yield store.batch([GetOp(NS, "k"), PutOp(NS, "absent", None)])
        yield over.put(NS, "k", {"n": 2})
        yield over.delete(NS, "absent")
        yield over.delete(("absent",), "k")

    for call in calls():
        with pytest.raises(module.ReadOnlyError):
            await call
    assert over.saver.cold.search(()) == []
    assert (await writer.store(require_primary=True).get(NS, "k")).value == {"n": 1}
    for client in clients:
        await client.aclose() if flavour == "async" else client.close()
    for each in (writer, there):
        await each.close()
    replica.stop()
    primary.stop()
