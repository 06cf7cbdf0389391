"""The contract of LangGraph's `BaseStore` and our additions to it, on every server, sync and async."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timezone
from typing import Any

import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, Item, ListNamespacesOp, MatchCondition, PutOp, SearchItem
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from tests.support.stores import check_sound, import_items
from tests.support.uniform import Target, Uniform

from redis_saver import Conflict, DecodeError, EncodeError, LimitExceeded, Limits, PlainValueRefused, RedisStore
from redis_saver import ReplicationTimeout, StoreDamaged, VersionedItem, VersionedSearchItem
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._store.writing import StoredItem

pytestmark = pytest.mark.also_on(cluster="async", redis62="sync", valkey="async", fakeredis="sync", lua54="async")

NS = ("memories", "user-1")


def keys(items: list[Any]) -> list[str]:
    return [item.key for item in items]


async def test_the_reads_of_a_batch_wait_for_no_replica(target: Target) -> None:
    """A batch with a write does. No replica is there."""
    users = [(*NS[:1], f"user-{number}") for number in range(5)]
    await target.store().batch([PutOp(ns, "k", {"n": 1}) for ns in users])
    lonely, reads = target.store(min_replicas=1, replica_timeout=0.01), [GetOp(ns, "k") for ns in users]
    assert [item.value for item in await lonely.batch(reads)] == [{"n": 1}] * 5
    for ns in (users[0], (*NS[:1], "new")):
        with pytest.raises(ReplicationTimeout):
            await lonely.batch([*reads, PutOp(ns, "k", {"n": 2})])


async def test_imported_items_and_longer_ttls_are_stored(target: Target, store: Uniform) -> None:
    """Their scripts compare numbers that arrive as texts, which Lua 5.4 refuses."""
    imported = StoredItem(NS, "k", {"n": 1}, 1, 2, 3_600_000, int(time.time() * 1000) + 3_600_000, 10)
    assert await import_items(store, imported) == []
    assert await import_items(store, imported._replace(key="forever", ttl=0, expires_at=0)) == []
    for ttl in (1, 10, 100):
        await store.put(("short", "lived"), "k", {"n": ttl}, ttl=ttl)
    assert (await store.get(("short", "lived"), "k")).value == {"n": 100}
    assert sorted(keys(await store.search(NS))) == ["forever", "k"]


@pytest.mark.parametrize("name", [b"", b"\0", b"unterminated"])
async def test_a_directory_with_a_partition_without_a_name_raises(target: Target, store: Uniform, name: bytes) -> None:
    """In a cluster, its keys would be on several nodes."""
    await store.put(NS, "k", {"n": 1})
    partitions, _, tokens = StoreKeyspace(target.prefix).directory
    target.raw.zadd(partitions, {name: 0})
    target.raw.hset(tokens, name, 1)
    target.raw.hincrby(tokens, "@lasting", 1)
    for call in (store.search(()), store.count(), store.list_namespaces()):
        with pytest.raises(StoreDamaged, match="has no name"):
            await call
    assert (await store.get(NS, "k")).value == {"n": 1}
    assert await store.rebuild_directory() == 1
    assert len(await store.search(())) == 1


# -- items


async def test_get_returns_the_item_that_was_put(store: Uniform) -> None:
    value = {"text": "tea", "n": 1, "f": 0.5, "b": True, "none": None, "list": [1, [2]], "d": {"e": {}}}
    value["bytes"] = b"\0\xff"
    before = datetime.now(timezone.utc)
    await store.put(NS, "k", value)
    item = await store.get(NS, "k")
    assert type(item) is VersionedItem and isinstance(item, Item)
    assert (item.namespace, item.key, item.value) == (NS, "k", value)
    assert item.created_at == item.updated_at and item.created_at.tzinfo is not None
    assert abs((item.created_at - before).total_seconds()) < 60
    assert await store.get(NS, "other") is None
    assert await store.get(("memories", "user-2"), "k") is None


async def test_an_update_keeps_created_at_and_moves_updated_at(store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    first = await store.get(NS, "k")
    await store.put(NS, "k", {"n": 2})
    second = await store.get(NS, "k")
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at and second.version > first.version
    assert second.value == {"n": 2}
    await store.delete(NS, "k")
    await store.put(NS, "k", {"n": 3})
    third = await store.get(NS, "k")
    assert third.created_at > first.created_at, "an item that was deleted and put again has a new created_at"


async def test_mutating_a_put_or_returned_value_changes_no_result(store: Uniform) -> None:
    given = {"list": [1]}
    await store.put(NS, "k", given)
    given["list"].append(2)
    for _ in range(2):
        for item in (await store.get(NS, "k"), *await store.search(NS), *await store.search(NS, filter={"list": [1]})):
            assert item.value == {"list": [1]}
            item.value["list"].append(2)


async def test_delete_is_final_and_may_be_repeated(target: Target, store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    await store.put(NS, "l", {"n": 1})
    for _ in range(2):
        await store.delete(NS, "k")
    await store.delete(("memories", "nobody"), "k")
    assert await store.get(NS, "k") is None
    assert keys(await store.search(NS)) == ["l"]
    check_sound(target)


async def test_a_prefix_matches_whole_labels(store: Uniform) -> None:
    """The label `1` does not match `10`, and a label with a slash is one label."""
    names = [("users", "1"), ("users", "10"), ("users", "1", "2"), ("users", "1/2"), ("users1",), ("users",)]
    names.append(("user", "s"))
    for ns in names:
        await store.put(ns, "k", {"n": "/".join(ns)})
    for prefix in [*names, ("users", "1", "2", "3"), ("u",), ()]:
        expected = sorted(ns for ns in names if ns[: len(prefix)] == prefix)
        assert sorted(one.namespace for one in await store.search(prefix)) == expected
        assert sorted(one.namespace for one in await store.search(prefix, filter={"n": {"$ne": ""}})) == expected
        assert await store.count(prefix) == len(expected)
        if prefix:
            assert await store.list_namespaces(prefix=prefix) == expected


HOSTILE = ["", "\0", "\1", "\1\1", "a\0b", "@state", "a\nb", "é", "\ud800", "😀", "k" * 300, "{k}", *"}%/:*"]


async def test_hostile_keys_and_labels_round_trip(target: Target, store: Uniform) -> None:
    labels = [one for one in HOSTILE if one and "\0" not in one]
    ops = [PutOp(("x", "y"), key, {"key": ascii(key)}) for key in HOSTILE]
    ops += [PutOp((label, "y", label), "k", {"key": ascii(label)}) for label in labels]
    await store.batch(ops)
    for key in HOSTILE:
        assert (await store.get(("x", "y"), key)).value == {"key": ascii(key)}
    for label in labels:
        assert [one.namespace for one in await store.search((label,))] == [(label, "y", label)]
    assert sorted(keys(await store.search(("x", "y"), limit=100))) == sorted(HOSTILE)
    found = await store.list_namespaces(limit=1000)
    assert found == sorted([("x", "y"), *((label, "y", label) for label in labels)])
    check_sound(target)
    for op in ops:
        await store.delete(op.namespace, op.key)
    assert await store.list_namespaces() == []


async def test_a_saver_and_a_store_with_one_prefix_stay_separate(target: Target, store: Uniform) -> None:
    from tests.support.factories import config, put

    saver = target.uniform()
    for thread in ("store", "memories/user-1", "%", "x}:items"):
        await put(saver, config(thread), {"n": 1})
    await store.put(NS, "k", {"n": 1})
    assert len(await saver.threads()) == 4
    assert await store.list_namespaces() == [NS]
    for thread in ("store", "memories/user-1", "%", "x}:items"):
        await saver.delete_thread(thread)
    assert (await store.get(NS, "k")).value == {"n": 1}


# -- order and pages


async def test_search_pages_are_newest_first(store: Uniform) -> None:
    for number in range(25):
        await store.put(NS, f"k{number}", {"n": number})
    await store.put(NS, "k3", {"n": 3})
    expected = ["k3", *(f"k{number}" for number in range(24, -1, -1) if number != 3)]
    for filter in (None, {"n": {"$gte": 0}}):
        pages = [await store.search(NS, filter=filter, limit=10, offset=offset) for offset in (0, 10, 20, 30)]
        assert [keys(page) for page in pages] == [expected[:10], expected[10:20], expected[20:], []]
        assert keys(await store.search((), filter=filter, limit=7, offset=5)) == expected[5:12]
    assert {type(one) for one in pages[0]} == {VersionedSearchItem} and issubclass(VersionedSearchItem, SearchItem)
    assert all(one.score is None for one in pages[0])
    assert await store.search(NS, limit=0) == []
    assert keys(await store.search(NS)) == expected[:10], "the default limit is 10"


async def test_paging_misses_no_item_while_others_put(store: Uniform) -> None:
    """A put between two pages moves its item to the front, so later items shift by one."""
    for number in range(20):
        await store.put(NS, f"k{number}", {"n": number})
    first = keys(await store.search(NS, limit=10))
    await store.put(NS, "new", {"n": 0})
    await store.put(NS, "k15", {"n": 0})
    second, third = [keys(await store.search(NS, limit=10, offset=offset)) for offset in (10, 20)]
    assert set(first) | set(second) | set(third) == {f"k{number}" for number in range(20)}
    assert (first[-1], second[0], third) == ("k10", "k10", ["k0"])
    assert keys(await store.search(NS, limit=2)) == ["k15", "new"]


async def test_a_repeated_page_shows_each_change(store: Uniform, target: Target) -> None:
    """Cached pages show puts and deletions, also those of other clients."""
    other = target.store()
    for number in range(30):
        await store.put(NS, f"k{number}", {"n": number})

    async def both() -> None:
        pages = []
        for one in (store, other, target.store(cache_bytes=0)):
            found = [await one.search(NS, limit=10, offset=offset) for offset in (0, 10, 20)]
            pages.append([[(item.key, item.value, item.version) for item in page] for page in found])
        assert pages[0] == pages[1] == pages[2]

    for change in (
        other.put(NS, "k5", {"n": 50}),
        other.delete(NS, "k29"),
        store.put(NS, "x", {}),
        other.delete(NS, "k15"),
        other.put(NS, "k15", {}),
    ):
        await both()
        await change
    await both()


async def test_a_prefix_below_a_partition_finds_only_its_items(store: Uniform) -> None:
    for number in range(60):
        await store.put((*NS, "notes" if number % 3 else "tasks"), f"k{number}", {"n": number})
    assert keys(await store.search((*NS, "tasks"), limit=3, offset=2)) == ["k51", "k48", "k45"]
    assert len(await store.search((*NS, "tasks"), limit=100)) == 20
    assert keys(await store.search((*NS, "tasks"), filter={"n": {"$lt": 9}})) == ["k6", "k3", "k0"]
    assert await store.search((*NS, "task")) == []


@pytest.mark.also_on(cluster="async", redis62="sync")
async def test_a_search_may_span_several_replies(store: Uniform) -> None:
    await store.batch([PutOp((*NS, "a"), f"k{number}", {"n": number, "text": "x" * 600}) for number in range(2100)])
    for prefix in (NS, (*NS, "a"), ("memories",)):
        found = await store.search(prefix, limit=5000)
        assert [one.value["n"] for one in found] == list(range(2099, -1, -1))
    assert [one.value["n"] for one in await store.search((*NS, "a"), limit=3, offset=2095)] == [4, 3, 2]
    assert len(await store.search(NS, filter={"n": {"$gte": 0}}, limit=5000)) == 2100
    assert await store.delete_namespace((*NS, "a")) == 2100
    assert await store.search(NS, filter={}) == []


# -- batches


async def test_batch_reads_precede_its_puts_and_the_last_put_wins(store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1})
    ops = [PutOp(NS, "k", {"n": 2}), GetOp(NS, "k"), PutOp(NS, "new", {"n": 1}), GetOp(NS, "new")]
    ops += [SearchOp(("memories",)), ListNamespacesOp(), PutOp(("other",), "k", {"n": 1}), PutOp(NS, "k", None)]
    results = await store.batch([*ops, PutOp(NS, "k", {"n": 3}), PutOp(NS, "new", None), GetOp(NS, "k")])
    assert results[0] is results[2] is results[3] is results[6] is None
    assert results[1].value == results[10].value == {"n": 1}
    assert keys(results[4]) == ["k"] and results[5] == [NS]
    assert (await store.get(NS, "k")).value == {"n": 3}
    assert await store.get(NS, "new") is None
    assert await store.batch([]) == []


async def test_a_batch_may_span_many_partitions(store: Uniform, target: Target) -> None:
    names = [(("users", str(number % 40)), f"k{number}") for number in range(400)]
    await store.batch([PutOp(*name, {"n": name[1]}) for name in names])
    found = await store.batch([GetOp(*name) for name in names])
    assert [(one.namespace, one.key) for one in found] == names
    assert await store.count(("users",)) == 400
    await store.batch([PutOp(*name, None) for name in names])
    assert await store.list_namespaces() == []
    check_sound(target)


async def test_putting_none_deletes_the_item(store: Uniform, target: Target) -> None:
    await store.put(NS, "k", {"n": 1})
    with pytest.raises(TypeError, match="if_version=1: value=None deletes"):
        await store.put(NS, "k", None, if_version=1)
    assert await store.get(NS, "k")
    await store.put(NS, "k", None)
    await store.put(NS, "k", None)
    assert await store.get(NS, "k") is None
    check_sound(target)


async def test_an_item_put_twice_in_a_batch_counts_as_newest(store: Uniform) -> None:
    await store.batch([PutOp(NS, "k1", {"n": 1}), PutOp(NS, "k2", {"n": 2}), PutOp(NS, "k1", {"n": 3})])
    assert [(item.key, item.value["n"]) for item in await store.search(NS)] == [("k1", 3), ("k2", 2)]


async def test_an_invalid_batch_sends_nothing(store: Uniform, target: Target) -> None:
    good = PutOp(NS, "k", {"n": 1})
    mistakes: list[tuple[Any, type[Exception]]] = [
        (PutOp((), "k", {}), InvalidNamespaceError),
        (PutOp(("a.b",), "k", {}), InvalidNamespaceError),
        (PutOp(("a", ""), "k", {}), InvalidNamespaceError),
        (PutOp("memories", "k", {}), InvalidNamespaceError),  # type: ignore[arg-type]
        (GetOp(("a", 1), "k"), InvalidNamespaceError),  # type: ignore[arg-type]
        (GetOp(("a",), 1), TypeError),  # type: ignore[arg-type]
        (PutOp(("a",), "k", [1]), TypeError),  # type: ignore[arg-type]
        (PutOp(("a",), "k", {1: 2}), TypeError),  # type: ignore[dict-item]
        (PutOp(("a",), "k", {"x": object()}), EncodeError),
        (PutOp(("a",), "k", {}, ttl=-1), ValueError),
        (PutOp(("a",), "k", {}, ttl=True), TypeError),
        (SearchOp(("a",), limit=-1), ValueError),
        (SearchOp(("a",), {"k": {"$in": [1]}}), ValueError),
        (ListNamespacesOp(max_depth=0), ValueError),
        (ListNamespacesOp((MatchCondition("infix", ("a",)),)), ValueError),  # type: ignore[arg-type]
        ("get", TypeError),
    ]
    for op, error in mistakes:
        with pytest.raises(error):
            await store.batch([good, op])
    assert target.keys() == []


async def test_what_differs_from_langgraphs_sqlite_store(store: Uniform, target: Target) -> None:
    """`docs/coming-from.md` says so: dots in filters, and which reads restart a TTL."""
    value = {"a": {"b": 1}, "a.b": 2}
    with SqliteStore.from_conn_string(":memory:", ttl={"default_ttl": 60}) as theirs:
        theirs.setup()
        theirs.put(NS, "k", value)
        assert [len(theirs.search(NS, filter={"a.b": wanted})) for wanted in (1, 2)] == [1, 0]
        assert not theirs.ttl_config.get("refresh_on_read", False)
    await store.put(NS, "k", value)
    assert [len(await store.search(NS, filter={"a.b": wanted})) for wanted in (1, 2)] == [0, 1]
    assert len(await store.search(NS, filter={"a": {"b": 1}})) == 1
    assert target.store(ttl={"default_ttl": 60}).saver.ttl_config["refresh_on_read"]


# -- namespaces


async def test_a_batch_may_use_the_namespace_that_put_reserves(store: Uniform, target: Target) -> None:
    """So it is in LangGraph's stores."""
    reserved, theirs = ("langgraph", "x"), InMemoryStore()
    for call in (lambda: store.put(reserved, "k", {}), lambda: asyncio.to_thread(theirs.put, reserved, "k", {})):
        with pytest.raises(InvalidNamespaceError):
            await call()
    assert target.keys() == []
    for some in (store.batch, lambda ops: asyncio.to_thread(theirs.batch, ops)):
        await some([PutOp(reserved, "k", {"n": 1})])
        (item,) = await some([GetOp(reserved, "k")])
        assert item.value == {"n": 1}
    assert [item.key for item in await store.search(("langgraph",))] == ["k"]
    await store.delete(reserved, "k")
    assert await store.search(("langgraph",)) == []


async def test_list_namespaces_filters_by_prefix_suffix_and_depth(store: Uniform) -> None:
    names = [tuple(labels) for labels in ("abc", "abde", "abdi", "abf", "acf", "baf", "a")]
    for ns in names:
        await store.put(ns, "k", {})
        await store.put(ns, "l", {})
    assert await store.list_namespaces() == sorted(names)
    assert await store.list_namespaces(prefix=("a", "b"), max_depth=3) == [("a", "b", last) for last in "cdf"]
    assert await store.list_namespaces(suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f"), ("b", "a", "f")]
    assert await store.list_namespaces(prefix=("a", "*", "f")) == [("a", "b", "f"), ("a", "c", "f")]
    assert await store.list_namespaces(prefix=("*", "a"), suffix=("*", "f")) == [("b", "a", "f")]
    assert await store.list_namespaces(prefix=("a",), suffix=("a",)) == [("a",)]
    by_text = ListNamespacesOp((MatchCondition("suffix", "af"),))  # type: ignore[arg-type]
    assert await store.batch([by_text]) == [[("b", "a", "f")]], "LangGraph's stores take a str as its characters"
    assert await store.list_namespaces(max_depth=1) == [("a",), ("b",)]
    assert await store.list_namespaces(limit=2, offset=1) == sorted(names)[1:3]
    assert await store.list_namespaces(prefix=("x",)) == []


@pytest.mark.also_on(cluster="async", redis62="sync")
async def test_list_namespaces_finds_a_thousand_namespaces(store: Uniform) -> None:
    names = sorted(
        [("users", f"{number:03}") for number in range(300)]
        + [("one", "user", f"{number:03}") for number in range(700)]
    )
    await store.batch([PutOp(ns, "k", {}) for ns in names])
    assert await store.list_namespaces(limit=5000) == names
    assert await store.list_namespaces(prefix=("one",), limit=5000) == names[:700]
    assert await store.list_namespaces(suffix=("007",)) == [("one", "user", "007"), ("users", "007")]
    for prefix, count in (((), 1000), (("one", "user"), 700), (("one", "user", "007"), 1)):
        assert await store.count(prefix) == count


async def test_delete_namespace_deletes_its_children_and_nothing_else(store: Uniform, target: Target) -> None:
    names = [("m", "1"), ("m", "1", "x"), ("m", "1", "y"), ("m", "10"), ("m",), ("n", "1")]
    await store.batch([PutOp(ns, key, {}) for ns in names for key in "ab"])
    assert await store.delete_namespace(("m", "1", "x")) == 2
    assert await store.delete_namespace(("m", "1")) == 4
    assert await store.delete_namespace(("m", "1")) == 0
    assert await store.list_namespaces() == [("m",), ("m", "10"), ("n", "1")]
    assert await store.delete_namespace(("m",)) == 4
    with pytest.raises(ValueError, match="whole store"):
        await store.delete_namespace(())
    check_sound(target)


# -- compare and set


async def test_compare_and_set_refuses_another_version(store: Uniform) -> None:
    await store.put(NS, "k", {"n": 1}, if_version=0)
    first = await store.get(NS, "k")
    with pytest.raises(Conflict, match="expects that it is not there") as raised:
        await store.put(NS, "k", {"n": 2}, if_version=0)
    assert raised.value.version == first.version
    await store.put(NS, "k", {"n": 2}, if_version=first.version)
    with pytest.raises(Conflict, match="Read the item again"):
        await store.put(NS, "k", {"n": 3}, if_version=first.version)
    (second,) = await store.search(NS)
    assert second.value == {"n": 2}
    await store.delete(NS, "k")
    with pytest.raises(Conflict, match="is not there") as raised:
        await store.put(NS, "k", {"n": 3}, if_version=second.version)
    assert raised.value.version == 0
    for mistake in (True, "1", -1):
        with pytest.raises(ValueError, match="if_version=.*: write an int of at least 0"):
            await store.put(NS, "k", {}, if_version=mistake)


async def test_concurrent_compare_and_set_loses_no_increment(store: Uniform) -> None:
    await store.put(NS, "n", {"n": 0})

    async def count_up() -> None:
        for _ in range(5):
            while True:
                item = await store.get(NS, "n")
                try:
                    await store.put(NS, "n", {"n": item.value["n"] + 1}, if_version=item.version)
                except Conflict:
                    await asyncio.sleep(0)
                else:
                    break

    await asyncio.gather(*(count_up() for _ in range(4)))
    assert (await store.get(NS, "n")).value == {"n": 20}


async def test_sixteen_concurrent_puts_leave_one_item(store: Uniform, target: Target) -> None:
    await store.put(NS, "k", {"n": -1})
    created = (await store.get(NS, "k")).created_at
    await asyncio.gather(*(target.store().put(NS, "k", {"n": number}) for number in range(16)))
    (item,) = await store.search(NS)
    assert item.created_at == created and item.value["n"] in range(16)
    assert await store.count(NS) == 1
    check_sound(target)


# -- values


async def test_an_encrypting_store_refuses_plain_values(target: Target) -> None:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    secret = target.store(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16))
    plain = target.store()
    await secret.put(NS, "k", {"text": "a secret"})
    assert (await secret.get(NS, "k")).value == {"text": "a secret"}
    assert keys(await secret.search(NS, filter={"text": "a secret"})) == ["k"]
    assert all(b"a secret" not in bytes(value) for value in target.raw.hgetall(target.keys()[-3]).values())
    await plain.put(NS, "l", {"text": "plain"})
    for call in (secret.get(NS, "l"), secret.search(NS), secret.search(NS, filter={"n": 1})):
        with pytest.raises(PlainValueRefused, match="'l' of namespace"):
            await call
    with pytest.raises(DecodeError, match="delete"):
        await plain.get(NS, "k")


async def test_any_store_reads_compressed_values(target: Target) -> None:
    value = {"text": "tea " * 5000}
    await target.store(compression="zstd").put(NS, "k", value)
    assert (await target.store().get(NS, "k")).value == value
    (items,) = (key for key in target.keys() if key.endswith(b":items"))
    assert sum(map(len, target.raw.hgetall(items).values())) < 1000


async def test_limits_are_checked_before_sending(target: Target) -> None:
    store = target.store(limits=Limits(name_bytes=50, value_bytes=500))
    for ns, key, value in ((NS, "k" * 51, {}), (("m", "é" * 26), "k", {}), (NS, "k", {"x": "y" * 600})):
        with pytest.raises(LimitExceeded):
            await store.put(ns, key, value)
    assert target.keys() == []
    await store.put(NS, "k" * 50, {"x": "y" * 400})


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_invalid_settings_are_refused(target: Target) -> None:
    client = target.client()
    for settings, words in (
        ({"ttl": 5}, "bare int"),
        ({"ttl": {"default_ttl": 5, "refresh": True}}, "unknown key 'refresh'"),
        ({"ttl": {"omit_expired": 1}}, "omit_expired"),
        ({"ttl": {"sweep_interval_minutes": 0}}, "sweep_interval_minutes"),
        ({"prefix": "a{b"}, "no '{'"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"index_config": {}}, "unexpected keyword argument 'index_config'"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            RedisStore(client, **settings)
    assert repr(RedisStore(client, ttl="30d")).endswith("prefix='langgraph', ttl=30d)")
