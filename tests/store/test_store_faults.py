"""Evicted and foreign keys, flushed scripts, lost replies, a full server, killed writers, failovers."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
import redis
from langgraph.store.base import GetOp, PutOp

from redis_saver import Conflict, KeyConflict, RedisStore, StoreDamaged, UnsupportedFormat
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._store import scripts
from redis_saver._store.index_config import Texts
from redis_saver._store.items import encode_value
from redis_saver._store.writing import StoredItem, Write, as_import, import_items, new_put, put
from tests.support.methods import NAMESPACE, calls_of
from tests.support.raw import contents
from tests.support.proxy import Proxy, proxy, retrying  # noqa: F401
from tests.support.servers import TARGETS
from tests.support.stores import check_sound, members
from tests.support.uniform import Target, Uniform, encryption
from tests.support.wrappers import Around, ran

NS, MEMBER = NAMESPACE, b"a\0b\0"
SINGLE = [name for name in TARGETS if name not in ("fakeredis", "cluster", "lua54")]


async def furnish(store: Uniform) -> None:
    for number in range(3):
        await store.put(NS, f"k{number}", {"n": number})
    await store.put((*NS, "deep"), "k", {"n": 1}, ttl=100)


def partition(target: Target) -> tuple[bytes, ...]:
    return StoreKeyspace(target.prefix).partition(MEMBER).keys


ALL = calls_of(
    RedisStore,
    "key_status",  # needs no item
    "rebuild_directory",  # needs no item
    get_stored=lambda store: store.get(NS, "k0"),
    put_stored=lambda store: store.put(NS, "k0", {"n": 5}),
    delete=lambda store: store.delete(NS, "k0"),
    search_all=lambda store: store.search(()),
    filter=lambda store: store.search(NS, filter={"n": 1}),
    delete_namespace=lambda store: store.delete_namespace((*NS, "deep")),
)


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("call", ALL)
@pytest.mark.by_turns
async def test_every_call_raises_if_a_key_is_missing(target: Target, position: int, call: str) -> None:
    """Cached pages and mirrors do not hide it. The call changes nothing, and `delete_namespace` still works."""
    store = target.store()
    await furnish(store)
    await store.search(NS)
    await store.search(NS, filter={"n": 1})
    target.raw.delete(partition(target)[position])
    left = {key: target.raw.dump(key) for key in target.keys()}
    with pytest.raises(StoreDamaged, match="delete_namespace"):
        await ALL[call](store)
    assert {key: target.raw.dump(key) for key in target.keys()} == left
    await store.delete_namespace(NS)
    assert await store.list_namespaces() == []
    await store.put(NS, "k0", {"n": 1})
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("position", [0, 1, 3])
async def test_without_ttls_calls_raise_if_they_need_a_missing_key(
    target: Target, store: Uniform, position: int
) -> None:
    """In the common case `get` and `put` read fewer keys."""
    await store.batch([PutOp(NS, f"k{number}", {"n": number}) for number in range(3)])
    await store.put((*NS, "deep"), "k", {"n": 1})
    target.raw.delete(partition(target)[position])
    for call in ("search", "filter", "count", "list_namespaces", "delete"):
        with pytest.raises(StoreDamaged):
            await ALL[call](store)
    for key, number in (("k0", 0), ("k1", 7)):
        try:
            if number:
                await store.put(NS, key, {"n": number})
            assert (await store.get(NS, key)).value == {"n": number}
        except StoreDamaged:
            assert position < 3


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_partition_without_keys_is_empty(target: Target, store: Uniform) -> None:
    await furnish(store)
    await store.search(NS)
    await store.search(NS, filter={"n": 1})
    target.raw.delete(*partition(target))
    assert await store.get(NS, "k0") is None
    assert await store.search(NS) == await store.search(NS, filter={"n": 1}) == await store.search(()) == []
    await store.put(NS, "k0", {"n": 1})
    assert [one.key for one in await store.search(NS, filter={"n": 1})] == ["k0"]
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_recreated_partition_is_not_mistaken_for_the_old_one(target: Target, store: Uniform) -> None:
    """It has as many items as before, with the same keys."""
    other = target.store()
    await furnish(store)
    for read in (store.search(NS), store.search(NS, filter={"n": {"$gte": 0}})):
        assert len(await read) == 4
    await other.delete_namespace(NS)
    for number in range(3):
        await other.put(NS, f"k{number}", {"n": number + 10})
    await other.put((*NS, "deep"), "k", {"n": 11})
    for read in (store.search(NS), store.search(NS, filter={"n": {"$gte": 0}})):
        assert [one.value["n"] for one in await read] == [11, 12, 11, 10]


@pytest.mark.parametrize("target_name", ["redis"])
async def test_cached_reads_notice_a_failover_that_lost_writes(target: Target, store: Uniform) -> None:
    """The server returns to an earlier state, and then has as many items as before."""
    await furnish(store)
    saved = {key: target.raw.dump(key) for key in target.keys()}
    await store.put(NS, "k1", {"n": 100})
    await store.put(NS, "lost", {"n": 100})
    for read in (store.search(NS), store.search(NS, filter={"n": {"$gte": 0}})):
        assert len(await read) == 5
    target.raw.unlink(*target.keys())
    for key, dump in saved.items():
        target.raw.restore(key, 0, dump)
    await target.store().put(NS, "won", {"n": 7})
    for read in (store.search(NS), store.search(NS, filter={"n": {"$gte": 0}})):
        assert [one.value["n"] for one in await read] == [7, 1, 2, 1, 0]


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_error_about_a_foreign_key_names_it(target: Target, store: Uniform) -> None:
    """It advises to remove that key, so it must not name only others."""
    target.raw.hset(partition(target)[-1], "theirs", "x")
    with pytest.raises(KeyConflict, match=":retired'"):
        await store.put(NS, "k", {})


@pytest.mark.parametrize("target_name", ["redis"])
async def test_foreign_keys_and_newer_formats_raise(target: Target, store: Uniform) -> None:
    items, order, *_ = partition(target)
    target.raw.set(items, "x")
    for call in ("get", "put", "search", "filter", "count"):
        with pytest.raises(KeyConflict):
            await ALL[call](store)
    assert target.raw.get(items) == b"x"
    target.raw.delete(items)
    target.raw.hset(items, "theirs", "x")
    with pytest.raises(StoreDamaged):
        await store.put(NS, "k", {})
    target.raw.delete(items)
    await store.put(NS, "k", {})
    state = target.raw.hget(items, "@state")
    target.raw.hset(items, "@state", b"3 " + state[2:] + b" new")
    for call in ("get", "put", "search", "filter", "count"):
        with pytest.raises(UnsupportedFormat):
            await ALL[call](store)
    with pytest.raises(UnsupportedFormat):
        await store.delete_namespace(NS)
    assert target.raw.exists(items, order) == 2
    for garbage in (b"", b"x", b"1 2 3", b"1 " + b"9" * 400, state.replace(b" ", b"  ")):
        target.raw.hset(items, "@state", garbage)
        with pytest.raises(StoreDamaged):
            await store.search(NS)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_an_item_that_cannot_be_read_is_not_replaced(target: Target, store: Uniform) -> None:
    await furnish(store)
    one = as_import(store.saver._context, StoredItem(NS, "k0", {"n": 5}, 1, 1, 0, 0, 1), 0)
    target.raw.hset(one.partition.keys[0], one.field, "junk")
    left = contents(target)
    for call in (
        store.put(NS, "k0", {"n": 5}),
        ran(store, import_items(store.saver._context, one.partition, [one], new_put())),
    ):
        with pytest.raises(StoreDamaged, match="a record cannot be read"):
            await call
    assert contents(target) == left


@pytest.mark.everywhere
async def test_flushed_scripts_are_sent_again(target: Target, store: Uniform) -> None:
    for call in ALL.values():
        await furnish(store)
        if target.name != "fakeredis":
            target.raw.script_flush()
        await call(store)
    check_sound(target)


def through(proxy: Proxy, target: Target, retries: int) -> Uniform:
    beyond = target.elsewhere(proxy.url)
    return beyond.store(client=beyond.client(retry=retrying(target.flavour, retries)))


@pytest.mark.parametrize("target_name", SINGLE[:2])
@pytest.mark.parametrize("script", ["PUT_ITEMS", "ANNOUNCE"])
async def test_a_request_sent_twice_counts_once(target: Target, proxy: Proxy, script: str) -> None:
    """The second copy of a compare-and-set does not conflict with the first."""
    store = through(proxy, target, 2)
    await target.store().put(("other",), "k", {})
    proxy.lose_reply(getattr(scripts, script).sha.encode())
    await store.put(NS, "k", {"n": 1}, if_version=0)
    assert proxy.lost == 1
    check_sound(target)
    first = await store.get(NS, "k")
    assert first.created_at == first.updated_at
    proxy.lose_reply(scripts.PUT_ITEMS.sha.encode())
    await store.put(NS, "k", {"n": 2}, if_version=first.version)
    assert proxy.lost == 1
    proxy.lose_reply(scripts.PUT_ITEMS.sha.encode())
    await store.delete(NS, "k")
    assert await store.list_namespaces() == [("other",)]
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_an_unreachable_server_raises(target: Target, proxy: Proxy) -> None:
    store = through(proxy, target, 0)
    await furnish(store)
    proxy.close()
    for call in ALL.values():
        with pytest.raises((redis.ConnectionError, OSError)):
            await call(store)


def write_for_ever(number: int, url: str, prefix: str, is_encrypted: bool) -> None:
    setting = encryption() if is_encrypted else None
    options = {"client_name": prefix}
    with RedisStore.from_conn_string(url, prefix=prefix, encryption=setting, client_options=options) as store:
        turn = 0
        while True:
            turn += 1
            ns = ("users", f"{number}-{turn % 3}")
            store.batch([PutOp(ns, key, {"turn": turn}) for key in "abc"])
            if turn % 2:
                store.batch([PutOp(ns, key, None) for key in "abc"])


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_killed_writers_leave_each_batch_whole_and_reachable(target: Target) -> None:
    context, given = multiprocessing.get_context("spawn"), (target.url, target.prefix, target.is_encrypted)
    writers = [context.Process(target=write_for_ever, args=(number, *given)) for number in range(4)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 60
    while len(members(target)) < 3 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    for writer in writers:
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
    while any(one["name"] == target.prefix for one in target.raw.client_list()):  # their last requests may still run
        await asyncio.sleep(0.01)
    store = target.store()
    found: dict[Any, list[Any]] = {}
    for one in await store.search((), limit=1000):
        found.setdefault(one.namespace, []).append((one.value["turn"], one.key))
    assert found
    for items in found.values():
        assert sorted(items) == [(items[0][0], key) for key in "abc"]
    check_sound(target)
    await store.delete_namespace(("users",))
    assert members(target) == []


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_store_works_in_a_forked_child(target: Target) -> None:
    """The child starts with an empty cache."""
    store = target.store().saver
    store.put(NS, "k", {"n": 1})
    assert len(store.search(NS, filter={"n": 1})) == 1
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        is_empty, was = store.stats().cache_bytes == 0, store.get(NS, "k").value
        store.put(NS, "k", {"n": 2})
        found = store.search(NS, filter={"n": 2})
        os.write(write, b"ok" if is_empty and was == {"n": 1} and found else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 2) == b"ok"
    assert store.get(NS, "k").value == {"n": 2}


# -- puts with if_version that are sent twice


def sent_twice(store: Uniform, meanwhile: Any) -> None:
    """Send a store's next put twice, and call `meanwhile` in between."""
    left = [meanwhile]

    def around(request: Any) -> Any:
        reply = yield request
        if left and getattr(request, "script", None) is scripts.PUT_ITEMS and reply == 0:
            left.pop()()
            reply = yield request
        return reply

    Around(store.saver, around)


def others(target: Target) -> RedisStore:
    """Return a store with a client of its own."""
    made = target.elsewhere(flavour="sync").store().saver
    assert isinstance(made, RedisStore)
    return made


async def put_amid(target: Target, puts: int, value: Any = None, ttl: Any = None) -> Uniform:
    """Put with `if_version`, and put the item in between as often. Returns the store."""
    store, other = target.store(), others(target)
    await store.put(NS, "k", {"n": 0})

    def build() -> None:
        for number in range(puts):
            other.put(NS, "k", {"n": 10 + number}, if_version=other.get(NS, "k").version)  # type: ignore[union-attr]

    sent_twice(store, build)
    await store.put(NS, "k", value or {"n": 1}, ttl=ttl, if_version=(await store.get(NS, "k")).version)
    return store


@pytest.mark.parametrize("value", [{"n": 1}, {"text": "x" * 5000}])
@pytest.mark.parametrize("ttl", [None, 100])
@pytest.mark.parametrize("puts", [1, 15])
@pytest.mark.by_turns
async def test_a_resent_compare_and_set_succeeds_after_up_to_15_puts(
    target: Target, value: Any, ttl: Any, puts: int
) -> None:
    store = await put_amid(target, puts, value, ttl)
    assert (await store.get(NS, "k")).value == {"n": 9 + puts}
    check_sound(target)


async def test_a_resent_batch_of_compare_and_sets_succeeds(target: Target) -> None:
    store, other = target.store(), others(target)
    for key in "abc":
        await store.put(NS, key, {"n": 0})
    sent_twice(store, lambda: (other.put(NS, "b", {"n": 7}), other.delete(NS, "c")))
    # `batch` takes no versions, so call the operation directly.
    versions = {key: (await store.get(NS, key)).version for key in "abc"}
    place = store.saver._context.places.of(NS)
    writes = {
        place.field(store.saver._context.places.key(key)): Write(
            encode_value(store.saver._context.values, NS, key, {"n": 1}), expected=b"%d" % versions[key]
        )
        for key in "abc"
    }
    await ran(store, put(store.saver._context, place.partition, writes, Texts()))
    assert (await store.get(NS, "a")).value == {"n": 1}
    assert (await store.get(NS, "b")).value == {"n": 7}
    assert await store.get(NS, "c") is None
    check_sound(target)


async def test_a_resent_compare_and_set_raises_conflict_after_16_puts(target: Target) -> None:
    with pytest.raises(Conflict, match="may have been written before"):
        await put_amid(target, 16)
    check_sound(target)


async def test_a_put_without_if_version_is_not_recorded(target: Target) -> None:
    store = target.store()
    await store.put(NS, "k", {"n": 0})
    await store.put(NS, "k", {"n": 1}, ttl=100)
    assert not target.raw.hexists(partition(target)[0], "@compared")
