"""A store over two tiers on each supported server, and with the least rights, in several partitions."""

from __future__ import annotations

import pytest
from tests.support.acl import acl_rule
from langgraph.store.base import GetOp, PutOp, SearchOp
from tests.support.servers import Server
from tests.support.store_tiering import Recording, StoreTiers, all_of, check_copies
from tests.support.uniform import Target, Uniform

PARTITIONS = [("memories", f"user-{number}") for number in range(6)]


async def test_a_store_uses_partitions_in_several_slots(target: Target) -> None:
    await everything(target, target)


@pytest.mark.parametrize("flavour", ["sync", pytest.param("async", marks=pytest.mark.slow)])
async def test_the_documented_rights_of_a_store_suffice(flavour: str) -> None:
    server = Server()
    for section in ("standalone", "store"):
        server.client().execute_command(*acl_rule(section).split())
    url = f"redis://checkpoints:secret@127.0.0.1:{server.port}"
    target = Target("redis", flavour, url, "langgraph:copies")
    every_right = Target("redis", "sync", server.url, target.prefix)
    store = await everything(target, every_right)
    for ending in ("noted", "order"):
        keys = [key for key in every_right.keys() if key.endswith(b":" + ending.encode())]
        assert keys
        every_right.raw.unlink(*keys)
        for labels in PARTITIONS:
            await store.search(labels)
            await store.put(labels, "k", {"n": 1})
            assert (await store.get(labels, "k")).value == {"n": 1}
    denied = {entry["object"] for entry in server.client().acl_log()}
    assert denied <= {"client", "client|setinfo"}
    await target.close()
    await every_right.close()
    server.stop()


async def everything(target: Target, every_right: Target) -> Uniform:
    """Use all features of the hot store, and check the answers. Return one of the stores."""
    tiers = StoreTiers(target, "")
    cold = Recording()
    one, other = tiers.over(cold, {"ttl": "10m"}), tiers.over(cold, {"ttl": "10m"})
    names = [((*labels, *deeper), key) for labels in PARTITIONS for deeper in ((), ("deep",)) for key in "kl"]
    await one.batch([PutOp(*name, {"at": number}) for number, name in enumerate(names)])
    cold.calls.clear()
    items = await other.batch([GetOp(*name) for name in names])
    assert [item.value["at"] for item in items] == list(range(24)) and cold.calls == [], "hot has all that was written"
    for labels in PARTITIONS:
        assert await other.warm(labels)
    cold.calls.clear()
    found = await one.batch([SearchOp(labels) for labels in PARTITIONS])
    assert [len(page) for page in found] == [4] * 6 and cold.calls == [], "hot answers for all of them"
    await one.batch([PutOp(*name, None) for name in names[:6]] + [PutOp(*names[6], {"at": 0})])
    found = await other.batch([SearchOp(labels) for labels in PARTITIONS])
    assert [len(page) for page in found] == [0, 2, 4, 4, 4, 4]
    for labels in PARTITIONS:
        check_copies(every_right, cold.store, *labels)
        assert len(all_of(cold.store, *labels)) == len(await one.search(labels))
    return other
