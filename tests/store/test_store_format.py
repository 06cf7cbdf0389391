"""Keys and bytes of a store, as in `docs/storage-format.md`. A test that fails shows a change of the format."""

from __future__ import annotations

import re

import pytest
from tests.support.stores import STATE, state_of
from tests.support.uniform import Target, Uniform

from redis_saver._common.store_names import StoreKeyspace

pytestmark = [pytest.mark.plain("the format of plain items"), pytest.mark.parametrize("target_name", ["redis"])]


async def test_keys_and_bytes_match_the_documented_format(target: Target, store: Uniform) -> None:
    await store.put(("a/b", "{c}"), "k", {"n": 1})
    await store.put(("a/b", "{c}", "deep\1"), "l", {"n": 2}, ttl=1)
    stem = f"{target.prefix}:store:".encode()
    of_partition = stem + b"{a%2Fb/%7Bc%7D}:"
    assert target.keys() == sorted(
        [of_partition + ending for ending in (b"items", b"order", b"expiring", b"namespaces")]
        + [stem + b"{%}:" + ending for ending in (b"partitions", b"tokens")]
    )
    fields = target.raw.hgetall(of_partition + b"items")
    assert fields.keys() == {b"@state", b"k\0", b"deep\1\2\0l\0"}
    state = state_of(target, b"a/b\0{c}\0")
    assert re.fullmatch(rb"\d+( \d+){11}", fields[b"@state"]) and len(state) == len(STATE)
    assert (state["format"], state["count"], state["ttls"], state["spaces"], state["deep"]) == (1, 2, 1, 1, 1)
    item = await store.get(("a/b", "{c}"), "k")
    head = rb"%d %d 0 [0-9a-f]{16} 7:msgpack" % (item.version, item.version)
    assert re.fullmatch(head + re.escape(b"\x81\xa1n\x01"), fields[b"k\0"])
    assert re.match(rb"\d{16} \d{16} 60000 [0-9a-f]{16} 7:msgpack", fields[b"deep\1\2\0l\0"])
    assert target.raw.zrange(of_partition + b"order", 0, -1) == [b"k\0", b"deep\1\2\0l\0"]
    assert target.raw.zrange(of_partition + b"expiring", 0, -1) == [b"deep\1\2\0l\0"]
    assert target.raw.hgetall(of_partition + b"namespaces") == {b"deep\1\2\0": b"1"}
    assert target.raw.zrange(stem + b"{%}:partitions", 0, -1) == [b"a/b\0{c}\0"]
    assert target.raw.hgetall(stem + b"{%}:tokens") == {
        b"a/b\0{c}\0": b"%d" % state["token"], b"@last": b"%d" % state["token"], b"@lasting": b"1",
    }  # fmt: skip


@pytest.mark.parametrize("flavour", ["sync"])
def test_partitions_have_distinct_keys_with_one_hash_tag(target: Target) -> None:
    labels = ["a", "a/b", "%", "%2F", "{", "}", "a}:items", "*", "\1", "\ud800", "é"]
    keyspace = StoreKeyspace("p")
    members = [one.encode("utf-8", "surrogatepass").replace(b"\1", b"\1\2") + b"\0" for one in labels]
    members += [one + other for one in members for other in members]
    keys = {}
    for member in members:
        partition = keyspace.partition(member)
        assert keyspace.member_of(partition.keys[0]) == member
        for key in partition.keys:
            assert key.count(b"{") == key.count(b"}") == 1, "one hash tag"
            assert keys.setdefault(key, member) == member
    assert not set(keys) & set(keyspace.directory)
    for foreign in (
        b"p:store:{a}:order",
        b"p:store:{a%zz}:items",
        b"p:store:{\xff}:items",
        b"q:store:{a}:items",
        b"p:store:{}:items",
    ):
        assert keyspace.member_of(foreign) is None
