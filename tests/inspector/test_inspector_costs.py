"""The inspector's cost page, its notices of changed threads, and its filter by owner."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any
from urllib.parse import urlencode

import fakeredis
import pytest
from tests.support.factories import chain, config, put
from tests.support.inspecting import browser, check_markup, links, make_thread, writer
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

from redis_saver import RedisSaver, TieredSaver
from redis_saver._checkpoint import auditing
from redis_saver._common.config import address
from redis_saver._inspector import thread_pages
from redis_saver._inspector.source import Source


def embedded() -> RedisSaver:
    return RedisSaver(fakeredis.FakeRedis(version=(7,)))


def counted(saver: RedisSaver) -> list[Any]:
    """Return a list that collects the saver's requests from now on."""
    calls = list[Any]()

    def around(request: Any) -> Any:
        calls.append(request)
        return (yield request)

    Around(saver, around)
    return calls


async def test_costs_equal_those_of_each_channels_history(target: Target) -> None:
    saver = writer(target.url, target.prefix)
    make_thread(saver, "t")
    texts = [f"text {at} " * 40 for at in range(60)]
    for at in range(25):
        where = config("t", "long", f"{at - 1:03}" if at else None)
        values, version = {"texts": texts[: 30 + at], "n": at}, f"{at + 1:032}.x"
        await put(Uniform(saver), where, values, versions=dict.fromkeys(values, version), checkpoint_id=f"{at:03}")
    found = await asyncio.to_thread(thread_pages.measured, Source(target.uniform().saver), "t", 600)
    assert not found.is_partial and found.looked == saver.get_thread("t").checkpoints  # type: ignore[union-attr]
    places = set[tuple[str, str]]()
    for checkpoint in saver.list({"configurable": {"thread_id": "t"}}):
        ns = checkpoint.config["configurable"]["checkpoint_ns"]
        places.update((ns, channel) for channel in checkpoint.checkpoint["channel_versions"])
    assert len({ns for ns, _ in places}) >= 4
    wanted = dict[tuple[str, str], list[int]]()
    for ns, channel in places:
        sums = [0, 0]
        for one in saver.channel_history("t", channel, checkpoint_ns=ns):
            for at, more in enumerate((one.bytes > 0, one.new_bytes)):
                sums[at] += more
        if any(sums):
            before = wanted.setdefault((ns.partition(":")[0], channel), [0, 0])
            before[:] = map(sum, zip(before, sums, strict=True))
    stored = {(one.path, one.channel): [one.versions, one.new] for one in found.channels if one.versions}
    assert stored == wanted
    written = sum(one.bytes or 0 for one in saver.writes("t"))
    assert sum(one.written for one in found.channels) == written > 0
    assert [one.stored for one in found.largest] == sorted((one.stored for one in found.largest), reverse=True)
    with_names = {one.where.checkpoint_id: one for one in found.largest}
    assert with_names["000"].channel == "texts", "in the first checkpoint the whole list is new"


async def test_a_result_that_is_a_write_and_a_value_costs_once(target: Target) -> None:
    uniform, result = target.uniform(), random.Random(0).randbytes(20_000)
    first = await put(uniform, config("t"), {"v": [b"1"]})
    await uniform.put_writes(first, [("v", [result])], "task")
    await uniform.put_writes(first, [("v", [result])], "other task")
    pending = await asyncio.to_thread(thread_pages.measured, Source(uniform.saver), "t", 600)
    assert 20_000 < sum(one.stored for one in pending.channels) < 22_000
    await put(uniform, first, {"v": [b"1", result]}, versions={"v": "2"})
    found = await asyncio.to_thread(thread_pages.measured, Source(uniform.saver), "t", 600)
    (channel,) = found.channels
    assert channel.new > 20_000 and channel.written < 1_000
    assert sum(one.stored for one in found.largest) == channel.stored < 22_000


async def test_checkpoint_sizes_equal_those_of_each_channels_history(target: Target) -> None:
    """One round trip reads the sizes of all channels."""
    saver = target.uniform()
    texts = [f"text {at} " * 40 for at in range(60)]
    values = {f"n{at}": at for at in range(30)}
    first = await put(saver, config("t"), {"texts": texts[:50], **values})
    versions = dict.fromkeys(("texts", *values), "1") | {"texts": "2", "n1": "2"}
    second = await put(saver, first, {"texts": texts, **values, "n1": "other"}, versions=versions)
    source = Source(saver.saver)
    calls = counted(saver.saver)
    entry, sizes = await asyncio.to_thread(lambda: source.measured(address(second), -1) or pytest.fail("none"))
    assert len(calls) == 1 and entry.id == second["configurable"]["checkpoint_id"]
    found = await asyncio.to_thread(source.history, "t", "texts", "", 10)
    history = {one.checkpoint_id: one for one in found}
    one = history[second["configurable"]["checkpoint_id"]]
    assert (sizes["texts"].bytes, sizes["texts"].new) == (one.bytes, one.new_bytes) and 0 < one.new_bytes < one.bytes
    assert sizes["n1"].shared == 0 and sizes["n2"].new == 0
    _, sizes = await asyncio.to_thread(lambda: source.measured(address(first), -1) or pytest.fail("none"))
    assert sizes["texts"].shared == 0
    fork = await put(saver, first, {"texts": texts[:50], **values}, versions=dict.fromkeys(versions, "1"))
    calls.clear()
    _, sizes = await asyncio.to_thread(lambda: source.measured(address(fork), -1) or pytest.fail("none"))
    assert len(calls) == 2 and all(size.new == 0 for size in sizes.values())
    for missing in (config("none"), config("t", checkpoint_id="0"), config("t", "other")):
        assert await asyncio.to_thread(source.measured, address(missing), -1) is None


async def test_measuring_a_long_thread_has_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It measures at least one page, which takes one round trip. A link then measures the whole thread."""
    monkeypatch.setattr(thread_pages, "FIRST_SECONDS", 0)
    saver = embedded()
    await chain(Uniform(saver), "t", 4 * auditing.VERSIONS_PER_PAGE)
    calls = counted(saver)
    async with browser(saver) as client:
        text = (await client.get("/cost?thread=t")).text
        assert f"the newest {auditing.FIRST_VERSIONS - 1} of {4 * auditing.VERSIONS_PER_PAGE} checkpoints" in text
        assert len(calls) == 2, "one call for the thread, one for a page"
        check_markup(text)
        (longer,) = [one for one in links(text) if "long=yes" in one]
        text = (await client.get(longer)).text
        assert f"all {4 * auditing.VERSIONS_PER_PAGE} checkpoints" in text and "long=yes" not in text
        assert (await client.get("/cost?thread=nobody")).status_code == 404


async def test_a_thread_page_polls_until_the_thread_changes() -> None:
    saver, name = embedded(), "a&<b>"
    uniform = Uniform(saver)
    where = await put(uniform, config(name), {"n": 1})
    async with browser(saver) as client:
        text = (await client.get("/thread?" + urlencode({"id": name}))).text
        (asks,) = re.findall(r'hx-get="([^"]*)" hx-trigger="every 5s"', text)
        asks = asks.replace("&amp;", "&")
        calls = counted(saver)
        same = await client.get(asks)
        assert (same.status_code, same.text, len(calls)) == (204, "", 1)
        await uniform.put_writes(where, [("__interrupt__", "may I?")], "task")
        waits = await client.get(asks)
        assert waits.status_code == 286 and "1 checkpoint, interrupted" in waits.text
        await put(uniform, where, {"n": 2})
        more = await client.get(asks)
        assert more.status_code == 286 and "2 checkpoints, active" in more.text
        assert links(more.text) == ["/thread?" + urlencode({"id": name})]
        saver.delete_thread(name)
        gone = await client.get(asks)
        assert gone.status_code == 286 and "is gone" in gone.text
        assert (await client.get("/newer?id=x")).status_code == 400
        for one in (waits, more, gone):
            check_markup(one.text)


async def test_a_thread_that_hot_evicted_is_not_reported_as_gone() -> None:
    hot = fakeredis.FakeRedis(version=(7,))
    tiers = TieredSaver(RedisSaver(hot), InMemorySaver())
    await put(Uniform(tiers), config("t"), {"n": 1})
    tiers.get_tuple(config("t"))  # fills hot
    async with browser(tiers) as client:
        text = (await client.get("/thread?id=t")).text
        (asks,) = re.findall(r'hx-get="([^"]*)" hx-trigger="every 5s"', text)
        hot.flushall()
        assert (await client.get(asks.replace("&amp;", "&"))).status_code == 204
        assert "every 5s" not in (await client.get("/thread?id=t")).text, "a thread that only cold has is not refreshed"


@pytest.mark.parametrize("tiers", [False, True])
async def test_the_list_is_filtered_by_owners(tiers: bool) -> None:
    saver: Any = embedded()
    saver = TieredSaver(saver, InMemorySaver()) if tiers else saver
    for name in ("mine", "free"):
        await put(Uniform(saver), config(name), {"n": 1})
        saver.get_tuple(config(name))  # fills hot
    async with browser(saver) as client:
        with saver.own("mine", by="worker <1>"):
            for asked, wanted in (("yes", {"mine"}), ("no", {"free"}), ("", {"mine", "free"})):
                text = (await client.get(f"/?owned={asked}")).text
                assert set(re.findall(r'href="/thread\?id=([^"]*)"', text)) == wanted, asked
                assert f'<option selected value="{asked}">' in text.partition("Owned")[2]
            assert "worker &lt;1&gt;" in (await client.get("/thread?id=mine")).text
        assert (await client.get("/?owned=x")).status_code == 400
