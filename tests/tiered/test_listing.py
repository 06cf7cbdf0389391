"""`list` over two tiers: page by page, each checkpoint once, from either tier."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from redis_saver import ThreadBusy, ThreadDamaged, TieredSaver
from redis_saver._checkpoint import listing, scripts as checkpoint_scripts
from redis_saver._tiered import listing as tiered_listing
from tests.support.factories import checkpoint, config, ids, late_id
from tests.support.tiering import BEHIND, FlakySaver, Tiers, both_modes, drained, keys_of, only_in_cold
from tests.support.uniform import Uniform
from tests.support.wrappers import Meanwhile, requests_of, script_of

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)
CHEAP = {"n": "1"}


async def filled(uniform: Any, count: int, thread: str = "thread", *, reads: bool = False) -> list[str]:
    """Put `count` checkpoints, perhaps after a read, so that hot may answer. Return their ids, newest first."""
    where = config(thread)
    assert not reads or await uniform.get_tuple(where) is None
    for number in range(count):
        one = checkpoint({"n": number}, CHEAP, checkpoint_id=late_id(number))
        where = await uniform.put(where, one, {"step": number}, CHEAP if number == 0 else {})
    return [late_id(number) for number in reversed(range(count))]


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
    assert ids(await drawn(uniform, 3, config())) == newest_first[:3]
    assert flaky.calls == ["list"]
    assert ids(await uniform.list(config())) == newest_first
    assert flaky.calls == ["list"] * 6
    assert ids(await uniform.list(config(), limit=17)) == newest_first[:17]
    assert ids(await uniform.list(config(), before=config("thread", "", newest_first[20]))) == newest_first[21:]
    assert ids(await uniform.list(config(), filter={"step": 30})) == [late_id(30)]
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
    assert ids(found) == sorted(ids(found), reverse=True)
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
        seen, newest_first = [], await filled(Uniform(saver), 5)
        for one in saver.list(config()):
            tiers.evict()
            found = saver.get_tuple(one.config)
            seen.append(found and found.checkpoint["id"])
        assert seen == newest_first


@pytest.mark.parametrize("asked", [1, 2])
async def test_list_continues_from_cold_if_hot_loses_the_thread(tiers: Tiers, monkeypatch: Any, asked: int) -> None:
    """Each checkpoint is listed once. Cold has received all of them meanwhile."""
    monkeypatch.setattr(listing, "CHECKPOINTS_PER_PAGE", 4)
    monkeypatch.setattr(tiered_listing, "PER_PAGE", 3)
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    newest_first, seen, is_lost = await filled(uniform, 15, reads=True), list[str](), False
    pages = requests_of(uniform.saver.hot, lambda request: getattr(script_of(request), "name", "") == "list" or None)

    async def see(one: Any) -> None:
        nonlocal is_lost
        seen.append(one.checkpoint["id"])
        if len(pages) == asked and not is_lost:
            is_lost = True
            await only_in_cold(tiers, other)

    if uniform.native_async:
        async for one in uniform.saver.alist(config()):
            await see(one)
    else:
        for one in uniform.saver.list(config()):
            await see(one)
    assert seen == newest_first
    assert len(pages) >= asked


def damage_hot(tiers: Tiers, damage: str) -> None:
    raw, data = tiers.target.raw, keys_of(tiers).data_key
    if damage == "a header":
        raw.hdel(data, next(field for field in raw.hkeys(data) if field[:2] == b"c\0"))
    else:
        tiers.evict(damage)


@both_modes
@pytest.mark.parametrize("damage", ["index", "data", "a header"])
async def test_list_repairs_a_damaged_thread_that_cold_has(tiers: Tiers, mode: Any, damage: str) -> None:
    uniform = await tiers.uniform(**mode)
    newest_first = await filled(uniform, 3, reads=True)
    await drained(uniform)
    damage_hot(tiers, damage)
    assert ids(await uniform.list(config())) == newest_first


@pytest.mark.parametrize("damage", ["index", "a header"])
async def test_list_raises_if_only_hot_had_the_thread(tiers: Tiers, damage: str) -> None:
    uniform = await tiers.uniform(**BEHIND)
    await filled(uniform, 3, reads=True)
    damage_hot(tiers, damage)
    with pytest.raises(ThreadDamaged):
        await uniform.list(config())
    assert tiers.target.raw.exists(keys_of(tiers).data_key)


@pytest.mark.encrypted_too
@both_modes
@pytest.mark.parametrize("how", ["filled", "written"])
async def test_a_list_whose_thread_is_replaced_in_hot_between_two_pages(
    tiers: Tiers, monkeypatch: Any, mode: dict[str, Any], how: str
) -> None:
    """It goes on in cold, unless another process wrote the encrypted thread anew, and cold lacks that."""
    monkeypatch.setattr(listing, "CHECKPOINTS_PER_PAGE", 2)
    uniform, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    expected = await filled(uniform, 6, reads=True)
    await drained(uniform)
    pages = list[Any]()

    async def replace() -> None:
        if how == "filled":
            tiers.evict()
            await other.get_tuple(config(checkpoint_id=expected[-1]))
            await other.get_tuple(config())
        else:
            await other.delete_thread("thread")
            await filled(other, 1)

    def before(request: Any) -> Any:
        is_page = script_of(request) is checkpoint_scripts.LIST
        pages.extend([request] * is_page)
        return replace if is_page and len(pages) == 2 else None

    Meanwhile(uniform.saver.hot, before)
    is_refused = how == "written" and mode and tiers.target.is_encrypted
    with pytest.raises(ThreadBusy, match="replaced between two pages") if is_refused else nullcontext():
        found = ids(await uniform.list(config()))
        assert found == (expected if how == "filled" else [*expected[:2], expected[-1]])
    assert len(pages) == 2
