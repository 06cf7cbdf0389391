"""Changed replies in stores, tiers and caches: a call returns a value or raises an error of ours.

For savers see `tests/storage/test_hostile_bytes.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.support import seeds
from hostile_stores import CALLS, NS, PREFIX, changed_replies, record
from langgraph.store.base import GetOp
from tests.support.servers import has_modules
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

from redis_saver import StoreBusy, StoreDamaged
from redis_saver._store import scripts
from redis_saver._store.store import context_of
from redis_saver._store.reading import list_fields

STACK = pytest.mark.skipif(not has_modules(), reason="no server with vector search")
KINDS = [kind for kind in CALLS if kind != "server"]


def noted(url: str, kind: str) -> dict[tuple[str, str], Any]:
    return {(kind, what): record(url, kind, what) for what in CALLS[kind]}


@pytest.mark.plain("its stores are those of hostile_stores.py, without encryption=")
@pytest.mark.random
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_a_changed_reply_gives_a_value_or_our_error(target: Target, kind: str) -> None:
    notes = noted(target.url, kind)
    for seed in (17, seeds.seed()):
        came = changed_replies(notes, seed, 40)
        damaged = came["StoreDamaged"] + came["DecodeError"]
        assert came["value"] and (damaged or kind == "tiers"), came  # the hot tier repairs itself


@pytest.mark.plain("its stores are those of hostile_stores.py, without encryption=")
@STACK
@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["search"])
def test_a_changed_index_reply_gives_a_value_or_our_error(target: Target) -> None:
    came = changed_replies(noted(target.url, "server"), seeds.seed(), 40)
    assert came["value"] and came["StoreDamaged"], came
    for name in target.raw.execute_command("FT._LIST"):
        if name.startswith(PREFIX.encode()):
            target.raw.execute_command("FT.DROPINDEX", name)


@pytest.mark.plain("its stores are those of hostile_stores.py, without encryption=")
@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_twenty_thousand_changed_replies_per_call(target: Target, kind: str) -> None:
    seed = seeds.seed()
    print(f"seed {seed}: {changed_replies(noted(target.url, kind), seed, 20_000)}")


def answering(script: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def around(request: Any) -> Any:
        reply = yield request
        return change(reply) if getattr(request, "script", None) is script else reply

    return around


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_record_missing_from_a_reply_raises(store: Uniform, target: Target) -> None:
    await store.put(NS, "a", {"n": 1}, ttl=100)
    await store.put(NS, "b", {"n": 1}, ttl=100)
    Around(store.saver, answering(scripts.GET_ITEMS, lambda reply: reply[:1]))
    with pytest.raises(StoreDamaged, match="the reply has 1 of 2 records"):
        await store.batch([GetOp(NS, "a"), GetOp(NS, "b")])


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_a_listing_without_progress_raises(target: Target) -> None:
    store: Any = target.store().saver
    store.put(NS, "a", {"n": 1})
    Around(store, answering(scripts.LIST_ITEMS, lambda reply: [*reply[:3], 0, *reply[4:]]))
    partition = context_of(store).places.of(NS).partition
    for call in (
        lambda: store.search(NS, filter={"n": 1}),
        lambda: store._driver.run(list_fields(context_of(store), partition)),
        lambda: store.delete_namespace((*NS, "deep")),
    ):
        with pytest.raises(StoreDamaged, match="more are to follow"):
            call()


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_search_of_a_constantly_emptied_partition_raises_busy(store: Uniform, target: Target) -> None:
    await store.put(NS, "a", {"n": 1})
    tokens = itertools.count(1)
    Around(store.saver, answering(scripts.LIST_ITEMS, lambda reply: [b"%d" % next(tokens), *reply[1:3], 0, *reply[4:]]))
    with pytest.raises(StoreBusy, match="emptied"):
        await store.search(NS, filter={"n": 1})
    assert next(tokens) < 20


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.plain("the server cannot search in vectors that are sealed")
def test_delete_namespace_raises_on_a_malformed_field(target: Target) -> None:
    """Another program added the field to the partition's keys."""
    store: Any = target.store(index={"dims": 1, "embed": lambda texts: [[1.0]] * len(texts), "search": "server"}).saver
    store.put(NS, "a", {"text": "x"})
    items, order, *_ = context_of(store).places.of(NS).partition.keys
    target.raw.hset(items, b"\xff", b"1 2 0 0123456789abcdef 7:msgpack\x80")
    target.raw.zadd(order, {b"\xff": 2})
    state = target.raw.hget(items, "@state").split()
    state[3], state[4] = b"2", b"%d" % ((int(state[4]) + 2) % 2**50)
    target.raw.hset(items, "@state", b" ".join(state))
    with pytest.raises(StoreDamaged, match="delete_namespace"):
        store.delete_namespace(NS)
