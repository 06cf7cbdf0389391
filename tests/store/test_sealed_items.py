"""A store with `encryption=`: values and vectors are sealed with their place, under a data key of their partition."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from tests.support.embedding import DIMS, Model
from tests.support.stores import check_sound, import_items, later, members, state_of
from tests.support.tenants import Noting
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Meanwhile, ran, requests_of, script_of

from redis_saver import AsyncTieredStore, RedisStore, TieredStore
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._engine.requests import Command
from redis_saver._store import scripts, writing
from redis_saver._store.writing import StoredItem
from redis_saver._storage.keys import FIELD
from redis_saver.encryption import Encryption, Keyset, KeyStatus
from redis_saver.errors import Conflict, DecodeError, KeyMismatch, KeyUnavailable, PlainValueRefused, RedisSaverError
from redis_saver.errors import UnsupportedFormat

pytestmark = [
    pytest.mark.plain("each of its tests sets encryption= itself"),
    pytest.mark.also_on(cluster="async", redis62="sync", valkey="async", fakeredis="sync"),
]
on_redis = pytest.mark.parametrize("target_name", ["redis"])

NS, DEEP, OTHER = ("memories", "user-1"), ("memories", "user-1", "deep"), ("memories", "user/2")
MARKER = "a marker that nobody may read"
SECRETS = {"new": b"n" * 32, "old": b"o" * 32, "tenant": b"t" * 32}
KEYS = Keyset(SECRETS)
INDEX = {"dims": DIMS, "embed": Model(), "fields": ["text"]}


def encrypted(target: Target, keys: Keyset = KEYS, **options: Any) -> Uniform:
    settings = {name: options.pop(name) for name in ("key_for", "cache_seconds") if name in options}
    return target.store(encryption=Encryption(keys, **settings), **options)


def items_of(target: Target, *namespace: str) -> bytes:
    place = RedisStore(target.raw, prefix=target.prefix)._context.places.of(namespace or NS)
    return place.partition.keys[0]


def raw_data(target: Target) -> dict[bytes, Any]:
    """Return all data of the partitions."""
    raw, keyspace = target.raw, StoreKeyspace(target.prefix)
    found = dict[bytes, Any]()
    for member in members(target):
        for key in keyspace.partition(member).keys:
            kind = raw.type(key)
            if kind == b"hash":
                found[key] = raw.hgetall(key)
            elif kind == b"zset":
                found[key] = raw.zrange(key, 0, -1, withscores=True)
    return found


# -- behaviour


async def test_an_encrypted_store_answers_as_a_plain_one_and_another_process_reads_it(target: Target) -> None:
    keys = Noting(SECRETS)
    store, plain = encrypted(target, keys), InMemoryStore()
    ops: list[Any] = [
        PutOp(namespace, f"k{number}", {"text": MARKER, "n": number, "list": [number, None, {"b": b"\0"}]})
        for number in range(6)
        for namespace in (NS, DEEP, OTHER, ("alone",))
    ]
    await store.batch(ops)
    plain.batch(ops)
    asked: list[Any] = [
        *(GetOp(NS, "k1"), GetOp(NS, "missing"), GetOp(("nobody", "there"), "k")),
        SearchOp(NS, {"n": {"$gte": 2}}, 3, 1),
        SearchOp(DEEP, None, 10, 0),
        SearchOp(("memories",), {"n": 3}, 10, 0),
        SearchOp((), {"text": MARKER}, 100, 0),
    ]
    for again in (store, encrypted(target), encrypted(target, cache_bytes=0)):
        for _ in range(2):
            found = await again.batch(asked)
            for one, other in zip(found, plain.batch(asked), strict=True):
                values = [
                    sorted((i.namespace, i.key, str(i.value)) for i in x) if isinstance(x, list) else x and x.value
                    for x in (one, other)
                ]
                if not isinstance(one, list) or len(one) > 3:
                    assert values[0] == values[1]
                else:
                    assert len(one) == len(other)
    assert await store.count() == 24
    assert sorted(await store.list_namespaces()) == sorted([NS, DEEP, OTHER, ("alone",)])
    assert {context.name for _, context in keys.asked} >= {"memories/user-1", "memories/user%2F2", "alone"}
    assert {(context.prefix, context.kind) for _, context in keys.asked} == {(target.prefix, "store")}
    assert [what for what, _ in keys.asked].count("wrap") == 3
    check_sound(target)
    assert MARKER.encode() not in repr(raw_data(target)).encode()
    assert all(state_of(target, member)["format"] == 2 for member in members(target))


@on_redis
async def test_vectors_are_encrypted_and_searches_find_the_same(target: Target) -> None:
    index = {**INDEX, "embed": Model()}
    store, plain = encrypted(target, index=index), target.store(prefix=target.prefix + "-plain", index=index)
    for number in range(20):
        for each in (store, plain):
            text = f"{'tea' if number % 3 else 'rain'} {number}"
            await each.put((*NS, f"d{number % 2}"), f"k{number}", {"text": text, "n": number})
    queries: list[Any] = [{"query": "rain 0", "filter": {"n": {"$lt": 12}}}, {"query": "tea 5", "limit": 3}]
    for reader in (store, encrypted(target, index=index)):
        for query in ({"query": "tea 1"}, *queries):
            for prefix in (NS, (*NS, "d1"), ("memories",)):
                found, wanted = await reader.search(prefix, **query), await plain.search(prefix, **query)
                shown = [[(one.key, one.score, one.value) for one in some] for some in (found, wanted)]
                assert shown[0] == shown[1]
    vectors = target.raw.hgetall(items_of(target).replace(b":items", b":vectors"))
    assert len(vectors) == 20 and all(stored.startswith(b"16 9:bytes+siv") for stored in vectors.values())
    embedded = Model()(["tea 1"])
    assert all(np.float32(embedded[0]).tobytes() not in stored for stored in vectors.values())
    target.raw.unlink(*target.raw.scan_iter(match=f"{target.prefix}-plain*"))


@on_redis
async def test_versions_times_ttls_and_namespaces_work(target: Target) -> None:
    store = encrypted(target)
    await store.put(NS, "k", {"n": 1}, if_version=0)
    first = await store.get(NS, "k")
    await store.put(NS, "k", {"n": 2}, if_version=first.version)
    with pytest.raises(Conflict):
        await store.put(NS, "k", {"n": 3}, if_version=first.version)
    second = await store.get(NS, "k")
    assert second.value == {"n": 2} and second.created_at == first.created_at < second.updated_at
    await store.put(DEEP, "short", {"n": 1}, ttl=1)
    await store.put(OTHER, "short", {"n": 1}, ttl=1)
    assert (await encrypted(target).get(OTHER, "short")).value == {"n": 1}
    check_sound(target)
    later(target, 61_000)
    assert await store.get(DEEP, "short") is None
    assert await target.store().sweep_ttl() == 1  # needs no key
    assert not target.raw.exists(items_of(target, *OTHER))
    await store.put(OTHER, "k", {"n": 5})
    assert await store.count(("memories",)) == 2
    assert await target.store().delete_namespace(OTHER) == 1
    await store.put(DEEP, "k", {"n": 5})
    assert await store.delete_namespace(DEEP) == 1
    assert await store.delete_namespace(("memories",)) == 1
    assert not members(target)


@on_redis
async def test_the_same_value_looks_different_in_each_put(target: Target) -> None:
    store, seen = encrypted(target), set[bytes]()
    for key in ("a", "b", "a", "a"):
        await store.put(NS, key, {"text": MARKER})
        records = [one for field, one in target.raw.hgetall(items_of(target)).items() if field[:1] != b"@"]
        seen |= {record.split(b" ", 4)[4] for record in records}
    assert len(seen) == 4


@on_redis
async def test_long_values_are_compressed_before_they_are_encrypted(target: Target) -> None:
    store = encrypted(target, compression="zstd")
    value = {"text": "tea " * 5000}
    await store.put(NS, "k", value)
    assert (await encrypted(target).get(NS, "k")).value == value
    assert target.raw.hstrlen(items_of(target), b"k\0") < 2000


@on_redis
async def test_imported_items_are_encrypted_and_a_migration_reads_them(target: Target) -> None:
    store = encrypted(target)
    some = [StoredItem(NS, f"k{n}", {"text": MARKER, "n": n}, 1000, 2000 + n, 0, 0, 10) for n in range(3)]
    assert await import_items(store, *some) == []
    places = [writing.find_place(store.saver._context, one) for one in some]
    partition, fields = places[0][0], [field for _, field in places]
    other = encrypted(target)
    found = await ran(other, writing.read_items(other.saver._context, partition, fields))
    assert [(one.value["n"], one.updated_at) for one in found] == [(0, 2000), (1, 2001), (2, 2002)]
    assert MARKER.encode() not in repr(raw_data(target)).encode()
    # Another process makes the partition anew.
    await target.store().delete_namespace(NS)
    third = encrypted(target)
    for n in range(3):
        await third.put(NS, f"k{n}", {"n": -n})
    found = await ran(other, writing.read_items(other.saver._context, partition, fields))
    assert [one.value["n"] for one in found] == [0, -1, -2]
    target.raw.hset(items_of(target), b"k1\0", target.raw.hget(items_of(target), b"k0\0"))
    found = await ran(other, writing.read_items(other.saver._context, partition, fields))
    assert found[0].value == {"n": 0} and isinstance(found[1], DecodeError)


# -- keys


@on_redis
async def test_key_for_gets_the_name_of_the_partition(target: Target) -> None:
    asked = list[Any]()

    def key_for(name: str, config: Any) -> str:
        asked.append((name, config))
        return "tenant" if name == "memories/user-1" else "old"

    store = encrypted(target, key_for=key_for)
    await store.batch([PutOp(namespace, "k", {"n": 1}) for namespace in (NS, DEEP, OTHER, ("alone",))])
    assert sorted(asked) == [("alone", None), ("memories/user%2F2", None), ("memories/user-1", None)]
    without = encrypted(target, Keyset({"new": b"n" * 32, "old": b"o" * 32}))
    assert (await without.get(OTHER, "k")).value == {"n": 1}
    for call in (without.get(NS, "k"), without.search(NS), without.search(()), without.put(NS, "k", {"n": 2})):
        with pytest.raises(KeyUnavailable, match="tenant"):
            await call
    with pytest.raises(KeyUnavailable):
        await without.batch([GetOp(NS, "k"), GetOp(OTHER, "k"), GetOp(("alone",), "k")])
    await without.delete(NS, "k")  # deleting needs no key
    assert await without.count() == 3
    assert await without.delete_namespace(("memories",)) == 2
    named = encrypted(target, key_for="tenant")
    await named.put(NS, "k", {"n": 1})
    assert set((await named.key_status()).partitions) == {"tenant", "old"}
    await named.delete_namespace(NS)
    none = encrypted(target, key_for=lambda *_: "nobody")
    with pytest.raises(KeyUnavailable):
        await none.put(NS, "k", {"n": 1})
    assert members(target) == [b"alone\0"]


@on_redis
async def test_calls_are_counted_by_their_names(target: Target) -> None:
    counted = []
    for store in (encrypted(target), target.store(prefix=f"{target.prefix}-plain")):
        await store.put(NS, "k", {"n": 1})
        await store.get(NS, "k")
        await store.search(NS)
        await store.delete(NS, "k")
        counted.append({name: one.calls for name, one in store.saver.stats().operations.items()})
    assert counted[0] == counted[1] and counted[0]["put"]


@on_redis
async def test_a_known_key_costs_no_round_trip_and_a_plain_store_pays_none(target: Target) -> None:
    async def counted(store: Uniform, call: Any) -> int:
        driver = store.saver._driver
        requests = requests_of(store.saver)
        await call(store)
        store.saver._driver, driver.in_front = driver, None
        return len(requests)

    keys = Noting(SECRETS)
    first, plain = encrypted(target, keys), target.store(prefix=target.prefix + "-plain")
    for store in (first, plain):
        await store.batch([PutOp(namespace, "k", {"n": 1}) for namespace in (NS, OTHER)])
    fresh = encrypted(target, keys)
    gets = [GetOp(namespace, "k") for namespace in (NS, OTHER)]
    keys.asked.clear()
    assert await counted(fresh, lambda store: store.batch(gets)) == 2 + 1  # HGETs, the questions, the reads
    assert [what for what, _ in keys.asked] == ["unwrap", "unwrap"]
    for store in (first, fresh, plain):
        assert await counted(store, lambda store: store.batch(gets)) == 1
        assert await counted(store, lambda store: store.batch([PutOp(ns, "k", {"n": 2}) for ns in (NS, OTHER)])) == 1
        assert await counted(store, lambda store: store.get(NS, "k")) == 1
        assert await counted(store, lambda store: store.put(NS, "k", {"n": 3})) == 1
        assert await counted(store, lambda store: store.search(NS)) == 1
        assert await counted(store, lambda store: store.search(NS, filter={"n": 3})) in (1, 2)
    assert len(keys.asked) == 2
    target.raw.unlink(*target.raw.scan_iter(match=f"{target.prefix}-plain*"))


@on_redis
async def test_a_data_key_is_asked_for_again_after_a_while(target: Target) -> None:
    keys = Noting(SECRETS)
    store = encrypted(target, keys, cache_seconds=0)
    await store.put(NS, "k", {"n": 1})
    keys.asked.clear()
    for _ in range(2):
        assert (await store.get(NS, "k")).value == {"n": 1}
    assert len(keys.asked) == 2


@on_redis
async def test_of_two_first_writers_one_stores_the_key_and_the_other_learns_it(target: Target) -> None:
    one, other = encrypted(target), encrypted(target)
    happened = list[str]()

    def before(request: Any) -> Any:
        if script_of(request) is scripts.PUT_ITEMS and not happened:
            happened.append("put")
            return lambda: other.put(NS, "other", {"n": 2})
        return None

    Meanwhile(one.saver, before)
    await one.put(NS, "one", {"n": 1})
    for store in (one, other, encrypted(target)):
        assert {item.key: item.value["n"] for item in await store.search(NS)} == {"one": 1, "other": 2}
    check_sound(target)


@on_redis
async def test_callers_of_one_store_make_one_key(target: Target) -> None:
    keys, happened = Noting(SECRETS), list[str]()
    store = encrypted(target, keys)

    def after(request: Any) -> Any:  # another caller puts between the question for the key and its use
        if isinstance(request, Command) and not happened:
            happened.append("put")
            return lambda: store.put(NS, "other", {"n": 2})
        return None

    Meanwhile(store.saver, lambda _: None, after)
    await store.put(NS, "one", {"n": 1})
    assert len(await store.search(NS)) == 2
    assert [what for what, _ in keys.asked] == ["wrap", "wrap"], "both used the first one"


async def test_many_writers_at_once_agree_on_the_keys(target: Target) -> None:
    stores = [encrypted(target, cache_bytes=0) for _ in range(4)]
    spaces = [("race", f"p{number}") for number in range(5)]
    await asyncio.gather(
        *(
            store.batch([PutOp(space, f"k{number}", {"n": number}) for space in random.sample(spaces, 5)])
            for number, store in enumerate(stores)
        )
    )
    for store in (*stores, encrypted(target)):
        found = await store.search(("race",), limit=100)
        assert sorted((item.namespace, item.value["n"]) for item in found) == [
            (space, n) for space in spaces for n in range(4)
        ]


@pytest.mark.by_turns
@on_redis
@pytest.mark.parametrize("call", ["get", "search", "filter", "query", "all", "put", "batch", "import"])
async def test_a_partition_that_another_process_made_anew_is_read_and_written_with_its_new_key(
    target: Target, call: str
) -> None:
    store, other = (encrypted(target, index={**INDEX, "embed": Model()}) for _ in range(2))
    for space in (NS, OTHER):
        for name in ("k", "gone"):
            await store.put(space, name, {"text": "old"})
    for _ in range(2):
        await store.search(NS, query="old")
        await store.search(())
    await other.delete_namespace(NS)
    await other.put(NS, "k", {"text": "new"})
    if call == "get":
        found = [await store.get(NS, "k")]
    elif call == "search":
        found = await store.search(NS)
    elif call == "filter":
        found = await store.search(NS, filter={"text": {"$ne": "x"}})
    elif call == "query":
        found = await store.search(NS, query="old")
    elif call == "all":
        found = [item for item in await store.search((), filter={"text": "new"})]
    elif call == "batch":
        *found, last = await store.batch([GetOp(NS, "k"), GetOp(NS, "gone"), GetOp(OTHER, "k")])
        assert last.value == {"text": "old"}
        assert found.pop() is None
    elif call == "import":
        assert await import_items(store, StoredItem(NS, "more", {"text": "new"}, 1000, 2000, 0, 0, 10)) == []
        found = await other.search(NS)
        assert len(found) == 2
    else:
        await store.batch([PutOp(NS, "more", {"text": "new"}), PutOp(OTHER, "more", {"text": "new"})])
        found = await other.search(NS)
        assert len(found) == 2
    assert [item.value for item in found] == [{"text": "new"}] * len(found) and found


# -- plain and encrypted


@pytest.mark.by_turns
@pytest.mark.parametrize("call", ["get", "search", "filter", "query", "put", "if_version", "vectors", "import"])
@on_redis
async def test_a_plain_store_refuses_an_encrypted_partition_and_the_reverse(target: Target, call: str) -> None:
    index = {**INDEX, "embed": Model()}
    stores = [target.store(index=index), encrypted(target, index=index)]
    for writer, reader in (stores, reversed(stores)):
        await writer.put(NS, "k", {"text": MARKER})
        before = raw_data(target)
        with pytest.raises((KeyMismatch, DecodeError), match="encryption=") as raised:
            if call == "get":
                await reader.get(NS, "k")
            elif call == "search":
                await reader.search(NS)
            elif call == "filter":
                await reader.search(("memories",), filter={"text": "x"})
            elif call == "query":
                await reader.search(NS, query="x")
            elif call == "import":
                await import_items(reader, StoredItem(NS, "more", {"text": "new"}, 1000, 2000, 0, 0, 10))
            else:
                options = {"if_version": {"if_version": 0}, "put": {"index": False}, "vectors": {}}[call]
                await reader.put(NS, "new", {"text": "x"}, **options)
        if call in ("put", "if_version", "vectors", "import"):
            assert isinstance(raised.value, KeyMismatch)
        elif reader is stores[1]:
            assert isinstance(raised.value, PlainValueRefused)
        assert raw_data(target) == before
        assert await reader.delete_namespace(NS) == 1


@on_redis
async def test_older_releases_refuse_an_encrypted_partition(target: Target) -> None:
    """They know format 1, and no script of theirs takes a partition of another format."""
    await encrypted(target).put(NS, "k", {"n": 1})
    items = items_of(target)
    state = target.raw.hget(items, "@state")
    assert state.startswith(b"2 ")
    target.raw.hset(items, "@state", b"3" + state[1:])  # as this release sees a newer one
    with pytest.raises(UnsupportedFormat):
        await encrypted(target).get(NS, "k")
    with pytest.raises(UnsupportedFormat):
        await encrypted(target).put(NS, "k", {"n": 1})


@on_redis
async def test_two_tiers_and_the_servers_index_are_refused(target: Target) -> None:
    encryption = Encryption(KEYS)
    with pytest.raises(ValueError, match="encryption="):
        target.store(encryption=encryption, index={**INDEX, "search": "server"})
    hot = encrypted(target, ttl="1m").saver
    kind = TieredStore if isinstance(hot, RedisStore) else AsyncTieredStore
    with pytest.raises(ValueError, match="hot has encryption="):
        kind(hot, InMemoryStore())
    await encrypted(target).put(NS, "k", {"n": 1})
    before = raw_data(target), target.keys()
    tiers = Uniform(kind(target.store(ttl="1m").saver, InMemoryStore()))
    for call in (
        lambda: tiers.get(NS, "missing"),
        lambda: tiers.get(NS, "k"),
        lambda: tiers.put(NS, "new", {"n": 1}),
        lambda: tiers.warm(NS),
        lambda: tiers.search(NS),
    ):
        with pytest.raises((KeyMismatch, RedisSaverError), match="encrypt"):
            await call()
    assert (raw_data(target), target.keys()) == before


async def test_vectors_that_stay_are_sealed_for_each_put(target: Target) -> None:
    """`index=False` leaves them, also if others put the item between the read of its vectors and the put."""
    store, other = encrypted(target, index=INDEX), encrypted(target, index=INDEX)
    vectors = items_of(target)[: -len("items")] + b"vectors"
    await store.put(NS, "k", {"text": "apple"})
    await store.put((*NS, "deep"), "bare", {"n": 0}, index=False)
    before = target.raw.hgetall(vectors)
    await store.put(NS, "k", {"n": 1}, index=False)
    assert target.raw.hgetall(vectors).keys() == before.keys() and target.raw.hgetall(vectors) != before
    for reader in (store, other, encrypted(target, index=INDEX)):
        (found, bare) = await reader.search(NS, query="apple")
        assert (found.key, round(found.score, 9), found.value) == ("k", 1.0, {"n": 1}) and bare.score is None

    puts = [(NS, "k", "pear"), ((*NS, "deep"), "bare", "plum"), ((*NS, "deep"), "new", "zero")]

    def meanwhile(request: Any) -> Any:
        if script_of(request) is not scripts.PUT_ITEMS or not puts:
            return None
        namespace, key, text = puts.pop()
        return lambda: other.put(namespace, key, {"text": text})

    ours = encrypted(target, index=INDEX)
    Meanwhile(ours.saver, meanwhile)
    await ours.batch([PutOp(namespace, key, {"n": 2}, index=False) for namespace, key, _ in list(puts)])
    assert not puts
    for query, key in (("pear", "k"), ("plum", "bare")):
        best, *rest = await encrypted(target, index=INDEX).search(NS, query=query)
        assert (best.key, round(best.score, 9), best.value) == (key, 1.0, {"n": 2})
        assert all(item.value == {"n": 2} and item.score is not None for item in rest)
    puts.append((NS, "k", "apple"))
    with pytest.raises(Conflict):
        await ours.put(NS, "k", {"n": 3}, index=False, if_version=(await store.get(NS, "k")).version)
    check_sound(target)

    target.raw.hset(vectors, b"k\0", before[b"k\0"])  # of another put
    value = (await store.get(NS, "k")).value
    with pytest.raises(DecodeError, match="the vectors of item 'k'"):
        await store.put(NS, "k", {"n": 4}, index=False)
    assert (await store.get(NS, "k")).value == value
    await store.put(NS, "k", {"n": 4}, index=[])
    assert [item.key for item in await store.search(NS, query="pear")][-1] == "k"
    await target.store(prefix=target.prefix + "-p", index=INDEX).put(NS, "k", {"text": "apple"})
    with pytest.raises((KeyMismatch, PlainValueRefused)):
        await encrypted(target, prefix=target.prefix + "-p", index=INDEX).put(NS, "k", {"n": 1}, index=False)


# -- attacks


@on_redis
async def test_a_marker_appears_nowhere(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    store = encrypted(target, index={**INDEX, "embed": Model()})
    await store.put(NS, "k", {"text": MARKER})
    await store.put(NS, "k", {"text": MARKER + "!"}, ttl=5)
    await store.put(OTHER, "k", {"text": [MARKER]}, index=False)
    dump = b"".join(target.raw.dump(key) or b"" for key in target.keys())
    assert MARKER.encode() not in dump + repr(raw_data(target)).encode()
    target.raw.hset(items_of(target), b"k\0", b"1 1 0 ab 7:msgpack\x80")
    with pytest.raises(PlainValueRefused) as raised:
        await store.get(NS, "k")
    assert MARKER not in str(raised.value) + caplog.text


ATTACKS = int(os.environ.get("ATTACKS", "3000"))


@pytest.mark.parametrize("flavour", ["sync"])
@on_redis
async def test_random_attacks_on_raw_data_never_give_another_value(target: Target) -> None:
    """Each read of an attacked partition raises our error, or returns what was put at its item once."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    index = {**INDEX, "embed": Model()}
    writer = encrypted(target, index=index)
    plain = target.store(prefix=target.prefix + "-p", index=index)
    foreign = encrypted(target, Keyset({"new": b"x" * 32}), prefix=target.prefix + "-f", index=index)
    spaces = [NS, DEEP, ("memories", "user-3")]
    written: dict[tuple[Any, str], set[str]] = {}
    history = list[dict[bytes, dict[bytes, bytes]]]()

    def snapshot(prefix: str) -> dict[bytes, dict[bytes, bytes]]:
        store = RedisStore(target.raw, prefix=prefix)
        keys = [key for space in spaces for key in store._context.places.of(space).partition.keys]
        return {
            key.replace(prefix.encode(), target.prefix.encode(), 1): target.raw.hgetall(key)
            for key in dict.fromkeys(keys)
            if target.raw.type(key) == b"hash"
        }

    for generation in range(3):
        if generation == 2:
            await writer.delete_namespace(NS)
            del history[:1]
        for space in spaces:
            for number in range(4):
                value = {"text": f"tea {generation} {number} {space[-1]}", "n": chance.random()}
                written.setdefault((space, f"k{number}"), set()).add(repr(value))
                for store in (writer, plain, foreign):
                    await store.put(space, f"k{number}", value if store is writer else {"text": "forged", "n": 0})
        history.append(snapshot(target.prefix))
    history += [snapshot(target.prefix + "-p"), snapshot(target.prefix + "-f")]
    truth = history[-3]
    pool = [
        (key, field, stored)
        for one in history
        for key, fields in one.items()
        for field, stored in fields.items()
        if key.endswith((b":items", b":vectors")) and field != b"@state"
    ]

    def attacked(stored: bytes, key: bytes, field: bytes) -> bytes:
        kind = chance.randrange(8)
        other = chance.choice([each for each in pool if each[0].rpartition(b":")[2] == key.rpartition(b":")[2]])[2]
        if kind == 0:
            return other
        if kind == 1:  # the same item at another time, with or without its head
            older = [each[2] for each in pool if each[:2] == (key, field)]
            other = chance.choice(older)
        if kind in (1, 2) and key.endswith(b":items") and field != FIELD:
            cut = chance.choice([1, 2, 3, 4])
            return b" ".join(stored.split(b" ", 4)[:cut] + other.split(b" ", 4)[cut:])
        if kind == 3:
            return stored[: chance.randrange(len(stored))]
        if kind == 4:
            return stored + chance.randbytes(chance.randrange(1, 20))
        if kind == 5:
            return stored.replace(b"+siv", b"", 1).replace(b"11:", b"7:").replace(b"9:", b"5:")
        place = chance.randrange(len(stored))
        return stored[:place] + bytes([stored[place] ^ 1 << chance.randrange(8)]) + stored[place + 1 :]

    warm = encrypted(target, index=index, cache_bytes=0)  # it has the data keys
    await warm.search((), query="tea")
    outcomes = {"raised": 0, "answered": 0}
    pipe = target.raw.pipeline(transaction=False)
    for number in range(ATTACKS):
        key = chance.choice([key for key in truth if key.endswith((b":items", b":items", b":vectors"))])
        fields = [field for field in truth[key] if field != b"@state"]
        changed = {
            field: attacked(truth[key][field], key, field)
            for field in chance.sample(fields, chance.choice([1, 1, 1, 2]))
        }
        if chance.random() < 0.2 and len(changed) == 1:  # swap two
            a, b = chance.sample(fields, 2)
            changed = {a: truth[key][b], b: truth[key][a]}
        if chance.random() < 0.05:  # all of another moment, partition, or store
            there = chance.choice(history)
            changed = there[chance.choice([other for other in there if other[-5:] == key[-5:]])]
            changed = {field: stored for field, stored in changed.items() if field != b"@state"}
        pipe.hset(key, mapping=changed)
        pipe.execute()
        known = chance.random() < 0.5
        reader = warm if known else encrypted(target, client=target.raw, index=index)
        if number % 4 == 0:
            asked: Any = reader.search(chance.choice([(), NS, DEEP]), query="tea", limit=20)
        elif number % 4 == 1:
            asked = reader.search(chance.choice(spaces), limit=20)
        elif number % 4 == 2:
            asked = reader.search(chance.choice(spaces), filter={"n": {"$gte": 0}}, limit=20)
        else:
            asked = reader.batch([GetOp(space, f"k{chance.randrange(4)}") for space in spaces])
        try:
            for item in await asked:
                if item is not None:
                    assert repr(item.value) in written[item.namespace, item.key], (seed, number, changed)
            outcomes["answered"] += 1
        except RedisSaverError:
            outcomes["raised"] += 1
        pipe.delete(key)
        pipe.hset(key, mapping=truth[key])
    pipe.execute()
    found = await encrypted(target, index=index).search((), limit=50)
    assert len(found) == 12, "the attacks were not undone"
    assert outcomes["raised"] > ATTACKS / 10 and outcomes["answered"] > ATTACKS / 10, outcomes
    target.raw.unlink(*target.raw.scan_iter(match=f"{target.prefix}-*"))


async def test_the_keys_of_partitions_are_rotated(target: Target) -> None:
    def rule(partition: str, _config: Any) -> str | None:
        return "tenant" if "%2F" in partition else None

    old = Keyset({"old": b"o" * 32, "tenant": b"t" * 32})
    store = encrypted(target, old, key_for=rule)
    for namespace in (NS, DEEP, OTHER):
        await store.put(namespace, "k", {"text": MARKER})
    await target.store(encryption=None).put(("plain",), "k", {})
    target.raw.set(f"{target.prefix}:store:{{foreign}}:items", "of another program")
    target.raw.delete(*StoreKeyspace(target.prefix).directory)
    before = {name: value for name, value in target.raw.hgetall(items_of(target)).items() if name != b"@key"}
    status = await store.key_status()
    assert status._replace(failed={}) == KeyStatus({}, 1, {}, partitions={"old": 1, "tenant": 1})
    assert list(status.failed) == ["store foreign"]
    renewed = encrypted(target, KEYS)
    assert (await renewed.rotate_keys())[:3] == (1, 1, 1)
    assert (await renewed.rotate_keys())[:3] == (0, 2, 1)
    assert (await renewed.key_status()).partitions == {"new": 1, "tenant": 1}
    after = target.raw.hgetall(items_of(target))
    assert {name: value for name, value in after.items() if name != b"@key"} == before
    alone = encrypted(target, Keyset({"new": b"n" * 32, "tenant": b"t" * 32}))
    for namespace in (NS, DEEP, OTHER):
        assert (await alone.get(namespace, "k")).value == {"text": MARKER}
    state = target.raw.hget(items_of(target), "@state")
    target.raw.hset(items_of(target), "@state", b"9" + state[1:])
    assert "is of format 9" in (await renewed.rotate_keys()).failed["store memories/user-1"]
    with pytest.raises(ValueError, match="no encryption="):
        await target.store(encryption=None).rotate_keys()
