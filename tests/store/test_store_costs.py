"""Costs of store operations that can be counted: round trips, bytes and keys."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.counting import Bytes, Counted
from tests.support.embedding import Model
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp
from tests.support.uniform import Target, Uniform

NS = ("memories", "user-1")
pytestmark = pytest.mark.parametrize("target_name", ["redis"])


@pytest.fixture
async def counted(target: Target) -> tuple[Uniform, Counted]:
    """A store with one item and loaded scripts, and the counter of its client."""
    client = target.client()
    store = target.store(client=client)
    await store.put(("warm", "up"), "k", {"n": 1})
    reads = [GetOp(("warm", "up"), "k"), SearchOp(("warm", "up")), SearchOp(("warm",), {"n": 1}), ListNamespacesOp()]
    await store.batch(reads)
    await store.delete(("warm", "up"), "k")
    await store.put(NS, "k", {"n": 1})
    await store.delete_namespace(("none", "there"))
    return store, Counted(client)


async def test_calls_take_one_to_three_round_trips(counted: tuple[Uniform, Counted], is_encrypted: bool) -> None:
    """With encryption, a process also asks once for the data key of a partition."""
    (store, counter), once = counted, int(is_encrypted)
    trips = counter.trips
    assert await trips(store.put(NS, "k", {"n": 2})) == 1
    assert await trips(store.put(NS, "l", {"n": 2}, ttl=5, if_version=0)) == 1
    assert await trips(store.put(NS, "k", {"n": 2}, index=False)) == 1 + once, "the script keeps only plain vectors"
    assert await trips(store.get(NS, "k")) == 1
    assert await trips(store.get(NS, "none")) == 1
    assert await trips(store.get(("nobody",), "k")) == 1 + once
    assert await trips(store.delete(NS, "l")) == 1
    assert await trips(store.search(NS)) == 1
    assert await trips(store.search((*NS, "deeper"))) == 1
    assert await trips(store.search(NS, filter={"n": 2})) == 1
    assert await trips(store.count(NS)) == 1
    assert await trips(store.list_namespaces(prefix=NS)) == 1
    assert await trips(store.search(("memories",))) == 2
    assert await trips(store.search((), filter={"n": 2})) == 2
    assert await trips(store.list_namespaces()) == 2
    assert await trips(store.count()) == 2
    announced = await trips(store.put(("memories", "new"), "k", {}))
    assert announced == 3 + once, "the put is refused, announced, and repeated"
    assert await trips(store.put(("memories", "new"), "l", {})) == 1
    assert await trips(store.delete_namespace(("memories", "new"))) == 2
    assert await trips(store.delete(NS, "k")) == 2, "after the last item the partition is withdrawn"


async def test_reads_of_a_replicated_store_share_a_round_trip(target: Target, is_encrypted: bool) -> None:
    """Only writes wait for replicas, and are sent one by one."""
    users = [("memories", f"user-{number}") for number in range(20)]
    await target.store().batch([PutOp(ns, "k", {"n": 1}) for ns in users])
    client = target.client()
    store, counter = target.store(client=client, min_replicas=1, replica_timeout=0.01), Counted(client)
    reads = [GetOp(ns, "k") for ns in users]
    await store.batch(reads)
    counter.take()
    assert [item.value for item in await store.batch(reads)] == [{"n": 1}] * 20
    assert len(counter.take()) == 1


async def test_a_batch_takes_one_to_three_round_trips(counted: tuple[Uniform, Counted], is_encrypted: bool) -> None:
    """With encryption, it also asks once for the data keys of all its partitions."""
    store, counter = counted
    users = [("memories", f"user-{number}") for number in range(50)]
    puts = [PutOp(ns, f"k{number}", {"n": number}) for ns in users for number in range(3)]
    await store.batch(puts)

    async def trips(ops: list[Any]) -> int:
        counter.take()
        await store.batch(ops)
        return len(counter.take())

    assert await trips(puts) == 1
    assert await trips([GetOp(ns, f"k{number}") for ns in users for number in range(3)]) == 1
    assert await trips([SearchOp(ns) for ns in users]) == 1
    assert await trips([GetOp(users[0], "k0"), PutOp(users[1], "k0", {})]) == 1, (
        "a get and a put of different partitions share a round trip"
    )
    assert await trips([GetOp(users[0], "k0"), PutOp(users[0], "k0", {})]) == 2, "reads come before puts"
    filtered = SearchOp(users[0], {"n": 1})
    await store.batch([filtered])
    assert await trips([filtered, PutOp(users[1], "k0", {})]) == 1, (
        "a put in another partition does not concern the mirror"
    )
    assert await trips([filtered, PutOp(users[0], "k0", {})]) == 2
    assert await trips([PutOp((f"new-{number}",), "k", {}) for number in range(50)]) == 3 + is_encrypted


@pytest.mark.parametrize("flavour", ["async"])
async def test_concurrent_gets_share_one_round_trip(counted: tuple[Uniform, Counted]) -> None:
    import asyncio

    store, counter = counted
    counter.take()
    await asyncio.gather(*(store.get(NS, "k") for _ in range(50)))
    assert len(counter.take()) == 1


async def test_repeated_filtered_searches_transfer_only_changes(target: Target) -> None:
    writer, store = target.store(), target.store()
    await writer.batch([PutOp(NS, f"/file-{number}", {"content": "x" * 1000, "n": number}) for number in range(500)])
    counted = Bytes(store)

    async def filtered() -> Any:
        return await store.search(NS, filter={"n": {"$lt": 100}}, limit=100)

    await filtered()
    sent, received = counted.take()
    assert received > 500_000 and sent < 400
    for _ in range(3):
        assert len(await filtered()) == 100
        sent, received = counted.take()
        assert sent < 400 and received < 100, (sent, received)
    await writer.put(NS, "/file-7", {"content": "y" * 1000, "n": 7})
    assert len(await filtered()) == 100
    sent, received = counted.take()
    assert sent < 400 and 1000 < received < 1300
    await writer.delete(NS, "/file-3")
    assert len(await filtered()) == 99
    sent, received = counted.take()
    assert received < 500 * 40, "the versions of all, without values"


async def test_a_page_of_several_replies_has_each_item_once(target: Target) -> None:
    store = target.store()
    for start in range(0, 1500, 500):
        await store.batch([PutOp(NS, f"/file-{n}", {"content": "x" * 2000}) for n in range(start, start + 500)])
    counted = Bytes(store)
    found = await store.search(NS, limit=1400)
    assert [item.version for item in found] == sorted((item.version for item in found), reverse=True)
    assert {item.key for item in found} == {f"/file-{n}" for n in range(100, 1500)}
    assert 1400 * 2000 < counted.take()[1] < 1400 * 2200


async def test_a_partition_has_at_most_four_keys_and_the_directory_three(target: Target, store: Uniform) -> None:
    for number in range(20):
        await store.put(NS, f"k{number}", {"n": number})
    assert len(target.keys()) == 2 + 2
    await store.put((*NS, "deep"), "k", {}, ttl=10)
    await store.put(("other",), "k", {}, ttl=10)
    assert len(target.keys()) == 4 + 3 + 3


async def test_a_repeated_query_transfers_only_changes(target: Target) -> None:
    """Another store puts vectors of 4 KB.

    The searches have a filter with or without a query, a deeper namespace, or two partitions.
    """
    model = Model(1024)
    writer, store = target.store(index=model.index()), target.store(index=model.index())
    await writer.batch([PutOp(NS, f"k{number}", {"n": number}) for number in range(300)])
    await writer.put(("memories", "user-2"), "k", {"n": 1})
    counted = Bytes(store)
    searches: list[Any] = [
        lambda: store.search(NS, query="x", limit=20),
        lambda: store.search(NS, query="x", filter={"n": {"$lt": 9}}, limit=20),
        lambda: store.search((*NS, "deep"), query="x"),
        lambda: store.search(NS, filter={"n": 5}),
    ]
    await searches[0]()
    assert counted.take()[1] > 300 * 4096
    for search in searches:
        await search()
        sent, received = counted.take()
        assert sent < 400 and received < 100, (sent, received)
    await writer.put(NS, "k7", {"n": -1})
    await searches[0]()
    sent, received = counted.take()
    assert sent < 400 and 4096 < received < 5000, "the new item with its vector"
    await writer.delete(NS, "k8")
    await searches[0]()
    sent, received = counted.take()
    assert sent < 1000 and received < 300 * 40, "the versions of all, but no vectors"
    await store.search((), query="x")
    counted.take()
    await store.search((), query="x")
    sent, received = counted.take()
    assert sent < 1000 and received < 300, "one reply of the directory, and one of each partition"


async def test_a_query_takes_one_or_two_round_trips(target: Target) -> None:
    client, model = target.client(), Model()
    store = target.store(client=client, index=model.index())
    for namespace in (NS, ("memories", "user-2")):
        await store.put(namespace, "k", {"n": 1}, ttl=5)
    await store.search((), query="x")
    trips = Counted(client).trips
    assert await trips(store.search(NS, query="x", refresh_ttl=False)) == 1
    assert await trips(store.search(NS, query="x")) == 2, "a second round trip restarts the TTLs of the found items"
    assert await trips(store.search((), query="x", refresh_ttl=False)) == 2
    assert await trips(store.put(NS, "k", {"n": 2}, ttl=5)) == 1
    assert await trips(store.put(NS, "l", {"n": 2}, ttl=5)) == 1
    assert await trips(store.search(NS, query="x", refresh_ttl=False)) == 1, (
        "the search gets the new vectors in the same round trip"
    )
    ops = [SearchOp(NS, query=query, refresh_ttl=False) for query in ("x", "y")]
    assert await trips(store.batch(ops)) == 1
    assert await trips(store.batch([*ops, PutOp(NS, "k", {}, ttl=5)])) == 2, "reads come before puts"


async def test_a_put_without_an_index_sends_no_extra_bytes(target: Target) -> None:
    store = target.store()
    await store.put(NS, "k", {"n": 1})
    counted = Bytes(store)
    await store.put(NS, "k", {"n": 1}, index=["n"])
    assert counted.take()[0] < (430 if target.is_encrypted else 330)  # the data key comes with each put
