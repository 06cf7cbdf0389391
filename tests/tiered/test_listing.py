"""`list` over two tiers: page by page, each checkpoint once, from either tier."""

from __future__ import annotations

from itertools import islice
from typing import Any

import psycopg
import pytest
from tests.support.factories import checkpoint, config, late_id
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row
from tests.support.tiering import BEHIND, FlakySaver, Tiers, drained, keys_of
from tests.support.uniform import Uniform
from tests.support.wrappers import Around

from redis_saver import ThreadDamaged, TieredSaver
from redis_saver._checkpoint import listing
from redis_saver._tiered import listing as tiered_listing

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)
CHEAP = {"n": "1"}


async def filled(uniform: Any, count: int, thread: str = "thread", ns: str = "") -> list[str]:
    """Put `count` checkpoints. Return their ids, newest first."""
    where = config(thread, ns)
    for number in range(count):
        one = checkpoint({"n": number}, CHEAP, checkpoint_id=late_id(number))
        where = await uniform.put(where, one, {"step": number}, CHEAP if number == 0 else {})
    return [late_id(number) for number in reversed(range(count))]


def ids_of(found: Any) -> list[str]:
    return [one.checkpoint["id"] for one in found]


async def drawn(uniform: Uniform, count: int, *args: Any, **options: Any) -> list[Any]:
    """The first `count` results of a list, without reading on."""
    if not uniform.native_async:
        return list(islice(uniform.saver.list(*args, **options), count))
    found = []
    async for one in uniform.saver.alist(*args, **options):
        found.append(one)
        if len(found) == count:
            break
    return found


async def test_list_reads_cold_page_by_page(tiers: Tiers, monkeypatch: Any) -> None:
    monkeypatch.setattr(tiered_listing, "PER_PAGE", 10)
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap())
    newest_first = await filled(uniform, 45)
    flaky.calls.clear()
    assert ids_of(await drawn(uniform, 3, config())) == newest_first[:3]
    assert flaky.calls == ["list"]
    assert ids_of(await uniform.list(config())) == newest_first
    assert flaky.calls == ["list"] * 6
    assert ids_of(await uniform.list(config(), limit=17)) == newest_first[:17]
    assert ids_of(await uniform.list(config(), before=config("thread", "", newest_first[20]))) == newest_first[21:]
    assert ids_of(await uniform.list(config(), filter={"step": 30})) == [late_id(30)]
    assert await uniform.list(config(), limit=0) == []


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_list_pages_through_equal_ids_of_several_threads(tiers: Tiers, monkeypatch: Any, size: int) -> None:
    """Copies share ids, so a page may end between two equal ones."""
    monkeypatch.setattr(tiered_listing, "PER_PAGE", size)
    uniform = await tiers.uniform()
    for thread in ("one", "two", "three"):
        await filled(uniform, 4, thread)
    found = await uniform.list(None)
    addresses = [tuple(one.config["configurable"].values()) for one in found]
    assert len(addresses) == len(set(addresses)) == 12
    assert ids_of(found) == sorted(ids_of(found), reverse=True)
    assert len(await uniform.list(None, limit=7)) == 7


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_list_reads_a_cold_saver_with_another_order_once(tiers: Tiers, monkeypatch: Any) -> None:
    """It may list thread by thread, so the next page would not continue after the last."""
    monkeypatch.setattr(tiered_listing, "PER_PAGE", 2)
    saver = TieredSaver(tiers.target.uniform().saver, InMemorySaver())
    for thread in ("b", "a", "c"):
        await filled(Uniform(saver), 3, thread)
    assert sorted(one.config["configurable"]["thread_id"] for one in saver.list(None)) == sorted("aaabbbccc")
    assert len(list(saver.list(None, limit=5))) == 5


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_the_saver_is_usable_during_a_list(tiers: Tiers) -> None:
    """No cursor stays open, which would lock a PostgresSaver on one connection."""
    with psycopg.connect(tiers.url, autocommit=True, prepare_threshold=0, row_factory=dict_row) as connection:
        saver = TieredSaver(tiers.target.uniform().saver, PostgresSaver(connection))  # type: ignore[arg-type]
        await filled(Uniform(saver), 5)
        seen = []
        for one in saver.list(config()):
            tiers.evict()
            found = saver.get_tuple(one.config)
            seen.append(found and found.checkpoint["id"])
        assert len(seen) == 5 and None not in seen


@pytest.mark.parametrize("asked", [1, 2])
async def test_list_continues_from_cold_if_hot_loses_the_thread(tiers: Tiers, monkeypatch: Any, asked: int) -> None:
    """Each checkpoint is listed once. Cold has received all of them meanwhile."""
    monkeypatch.setattr(listing, "CHECKPOINTS_PER_PAGE", 4)
    monkeypatch.setattr(tiered_listing, "PER_PAGE", 3)
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    assert await uniform.get_tuple(config()) is None
    newest_first = await filled(uniform, 15)
    pages = []

    def around(request: Any) -> Any:
        if getattr(getattr(request, "script", None), "name", "") == "list":
            pages.append(request)
            if len(pages) == asked:
                flushed.append(True)
        return (yield request)

    flushed: list[bool] = []
    Around(uniform.saver.hot, around)
    seen: list[str] = []

    async def meanwhile() -> None:
        if flushed and flushed.pop():
            await drained(other)
            tiers.evict()

    if uniform.native_async:
        async for one in uniform.saver.alist(config()):
            seen.append(one.checkpoint["id"])
            await meanwhile()
    else:
        for one in uniform.saver.list(config()):
            seen.append(one.checkpoint["id"])
            await meanwhile()
    assert seen == newest_first
    assert len(pages) >= asked


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
@pytest.mark.parametrize("damage", ["index", "data", "a header"])
async def test_list_repairs_a_damaged_thread_that_cold_has(tiers: Tiers, mode: Any, damage: str) -> None:
    settings = {} if mode == "write-through" else BEHIND
    uniform = await tiers.uniform(**settings)
    assert await uniform.get_tuple(config()) is None
    newest_first = await filled(uniform, 3)
    await drained(uniform) if settings else None
    data = keys_of(tiers).data_key
    if damage == "a header":
        tiers.target.raw.hdel(data, next(field for field in tiers.target.raw.hkeys(data) if field[:2] == b"c\0"))
    else:
        tiers.evict(damage)
    assert ids_of(await uniform.list(config())) == newest_first


@pytest.mark.parametrize("damage", ["index", "a header"])
async def test_list_raises_if_only_hot_had_the_thread(tiers: Tiers, damage: str) -> None:
    uniform = await tiers.uniform(**BEHIND)
    assert await uniform.get_tuple(config()) is None
    await filled(uniform, 3)
    data = keys_of(tiers).data_key
    if damage == "index":
        tiers.evict("index")
    else:
        tiers.target.raw.hdel(data, next(field for field in tiers.target.raw.hkeys(data) if field[:2] == b"c\0"))
    with pytest.raises(ThreadDamaged):
        await uniform.list(config())
    assert tiers.target.raw.exists(data)
