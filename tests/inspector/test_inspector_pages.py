"""The pages of the inspector, over every kind of saver."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import fakeredis
import httpx
import pytest
import redis
from factories import chain, checkpoint, config, put
from fakeredis import FakeAsyncRedis
from inspecting import (
    HOSTILE,
    SECRET,
    TOKEN,
    browser,
    builder,
    check_markup,
    crawled,
    links,
    make_failed,
    make_thread,
    talking,
    writer,
)
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from starlette.applications import Starlette
from starlette.routing import Mount
from uniform import Target, Uniform
from wrappers import Around

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver, inspector
from redis_saver._checkpoint.auditing import Entry
from redis_saver._inspector import graph, thread_list


def embedded() -> RedisSaver:
    return RedisSaver(fakeredis.FakeRedis(version=(7,)))


def page(name: str, **arguments: Any) -> str:
    return f"/{name}?{urlencode(arguments, errors='surrogatepass')}"


@pytest.fixture(scope="module")
def looked_at() -> RedisSaver:
    """A saver with threads in each state."""
    saver = embedded()
    make_thread(saver, "waits")
    make_failed(saver, "fails")
    for at in range(3):
        asyncio.run(chain(Uniform(saver), f"many-{at}", at + 1))
    return saver


async def test_all_links_lead_to_pages_on_every_server_in_each_flavour(target: Target) -> None:
    make_thread(writer(target.url, target.prefix), "user-1:chat")
    async with browser(target.uniform().saver) as client:
        found = await crawled(client, limit=80)
    views = {url.partition("?")[0] for url in found}
    assert views >= {"/", "/thread", "/checkpoint", "/diff", "/channel", "/writes", "/first"}
    for text in found.values():
        check_markup(text)


async def test_the_list_has_threads_with_their_states(looked_at: RedisSaver) -> None:
    async with browser(looked_at) as client:
        text = (await client.get("/")).text
        assert all(f">{name}</a>" in text for name in ("waits", "fails", "many-0", "many-1", "many-2"))
        assert "5 threads" in text
        for asked, names in (
            ({"state": "interrupted"}, {"waits"}),
            ({"state": "failed"}, {"fails"}),
            ({"prefix": "many-", "sort": "checkpoints"}, {"many-0", "many-1", "many-2"}),
            ({"pinned": "yes"}, set()),
            ({"expires": "99999999999d", "min_bytes": "9" * 30, "until": "99999999999d"}, set()),
            ({"after": "1000000d"}, {"waits", "fails", "many-0", "many-1", "many-2"}),
            ({"until": "2026-11-22T00:00:00Z", "prefix": "many"}, {"many-0", "many-1", "many-2"}),
        ):
            text = (await client.get(page("", **asked))).text
            assert set(re.findall(r'href="/thread\?id=[^"]*">([^<]*)</a>', text)) == names, asked


@pytest.mark.parametrize(
    "asked",
    [
        {"state": "x"},
        {"sort": "x"},
        {"min_bytes": "x"},
        {"after": "x"},
        {"expires": "x"},
        {"page": "0"},
        {"pinned": "x"},
    ],
)
async def test_a_filter_that_makes_no_sense_is_named(looked_at: RedisSaver, asked: dict[str, str]) -> None:
    async with browser(looked_at) as client:
        answer = await client.get(page("", **asked))
    assert answer.status_code == 400 and 'role="alert"' in answer.text
    check_markup(answer.text)


async def test_a_search_ends_in_time_also_where_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_list, "SECONDS", 0)
    saver, calls = embedded(), list[Any]()
    await put(Uniform(saver), config("t"), {"n": 1})

    def around(request: Any) -> Any:
        calls.append(request)
        return (yield request)

    Around(saver, around)
    async with browser(saver) as client:
        text = (await client.get(page("", state="failed"))).text
    assert "those found in 5 seconds" in text and calls == []


async def test_threads_come_in_pages_each_once() -> None:
    saver, names = embedded(), list[str]()
    for at in range(120):
        await put(Uniform(saver), config(f"t{at:03}"), {"n": at})
    async with browser(saver) as client:
        url: str | None = "/?sort=name"
        while url:
            text = (await client.get(url)).text
            names += re.findall(r'href="/thread\?id=([^"]*)"', text)
            url = (
                next((one for one in links(text) if f"page={len(names) // 50 + 1}" in one), None)
                if len(names) % 50 == 0
                else None
            )
    assert names == [f"t{at:03}" for at in range(120)]


async def test_a_tree_comes_in_pages_that_cost_the_same_whatever_the_length() -> None:
    """And each checkpoint is on one of them."""
    costs = []
    for length in (150, 600):
        saver, calls = embedded(), list[Any]()
        made = await chain(Uniform(saver), "t", length)

        def around(request: Any, calls: list[Any] = calls) -> Any:
            calls.append(request)
            return (yield request)

        Around(saver, around)
        async with browser(saver) as client:
            text = (await client.get(page("thread", id="t"))).text
            costs.append(len(calls))
            found = re.findall(r'class="id" [^>]*title="([^"]*)"', text)
            while older := next((one for one in links(text) if "before=" in one), None):
                text = (await client.get(older)).text
                found += re.findall(r'class="id" [^>]*title="([^"]*)"', text)
        assert found == [one["configurable"]["checkpoint_id"] for one in reversed(made)]
    assert costs[0] == costs[1] <= 4


async def test_checkpoints_of_two_namespaces_with_one_id_are_on_one_page() -> None:
    saver, made = embedded(), set[tuple[str, str]]()
    for at in range(120):
        for ns in ("", "sub"):
            await put(Uniform(saver), config("t", ns), {"n": at}, checkpoint_id=f"{at:05}{'' if at % 2 else ns}")
            made.add((ns, f"{at:05}{'' if at % 2 else ns}"))
    found, url = list[tuple[str, str]](), page("thread", id="t")
    async with browser(saver) as client:
        while url:
            text = (await client.get(url)).text
            places = [
                dict(parse_qsl(urlsplit(one).query))
                for one in links(text)
                if one.startswith("/checkpoint?") and "id=" in one.partition("thread=t")[2]
            ]
            found += [(one.get("ns", ""), one["id"]) for one in places]
            url = next((one for one in links(text) if "before=" in one), "")
    assert len(found) == len(made) and set(found) == made


async def test_a_checkpoint_shows_state_interrupt_next_task_and_costs(looked_at: RedisSaver) -> None:
    async with browser(looked_at) as client:
        text = (await client.get(page("checkpoint", thread="waits", ns=""))).text
    for part in (
        "What is the weather?",
        "Let me &lt;b&gt;see&lt;/b&gt;.",
        "21 degrees",
        "Waits for an answer",
        "May I send it?",
        "search",
    ):
        assert part in text, part
    assert '<span class="badge">research</span>' in text
    assert "Cost by channel" in text and "New here" in text and "100 bytes: 00 00" in text
    async with browser(looked_at) as client:
        text = (await client.get(page("checkpoint", thread="fails", ns=""))).text
    assert "Failed" in text and "the model said &lt;no&gt;" in text


async def test_a_delta_channel_is_shown_as_a_snapshot_or_as_what_was_written_since() -> None:
    saver = embedded()
    talk = talking(saver)
    seen = []
    for at in range(3):
        talk.invoke({"messages": [HumanMessage(f"question {at}")]}, config("t"))
        newest = saver.get_tuple(config("t"))
        assert newest
        async with browser(saver) as client:
            text = (await client.get(page("checkpoint", thread="t"))).text
            check_markup(text)
            await crawled(client, limit=60)
        assert all(f">question {n}</p>" in text for n in range(at + 1)) and text.count(">an answer</p>") == at + 1
        seen.append("messages" in newest.checkpoint["channel_values"])
        assert ("has no value here" in text) != seen[-1]
    assert set(seen) == {True, False}
    async with browser(saver, mask=["messages"]) as client:
        assert ">question " not in "".join((await crawled(client)).values())


async def test_a_comparison_names_what_is_different(looked_at: RedisSaver) -> None:
    newest = looked_at.get_tuple(config("waits"))
    assert newest and newest.parent_config
    places = [
        {"thread": "waits", "id": one["configurable"]["checkpoint_id"]} for one in (newest.parent_config, newest.config)
    ]
    async with browser(looked_at) as client:
        text = (await client.get(page("diff", a=urlencode(places[0]), b=urlencode(places[1])))).text
        same = (await client.get(page("diff", a=urlencode(places[1]), b=urlencode(places[1])))).text
    assert "messages" in text and "21 degrees" in text and "facts" not in re.findall(r"<h3>(\w+)", text)
    assert "No channel differs" in same


async def test_since_when_names_the_checkpoint_that_made_a_part_of_a_value() -> None:
    saver = embedded()
    uniform, where, ids = Uniform(saver), config("t"), list[str]()
    for at in range(6):
        value = {"kept": "old" if at < 2 else "new", "count": at}
        made = checkpoint({"facts": value, "still": 1}, {"facts": f"{at:032}.1", "still": "1"})
        where = await uniform.put(where, made, {"source": "loop", "step": at, "parents": {}}, made["channel_versions"])
        ids.append(made["id"])
    async with browser(saver) as client:

        async def since(**asked: Any) -> str:
            text = (await client.get(page("first", thread="t", id=ids[-1], **asked))).text
            return re.findall(r'class="id"[^>]*>([^<]*)</a>', text)[0]

        assert await since(channel="facts") == ids[5]
        assert await since(channel="facts", at="1") == ids[5]
        assert await since(channel="facts", at="0") == ids[2]
        assert await since(channel="still") == ids[0]


async def test_a_long_value_comes_in_pages() -> None:
    saver = embedded()
    messages = [AIMessage(f"said-{at}.", id=str(at)) for at in range(120)]
    await put(
        Uniform(saver),
        config("t"),
        {"messages": messages, "list": [f"e-{at}." for at in range(120)], "text": "x" * 9000},
    )
    async with browser(saver) as client:
        first = (await client.get(page("checkpoint", thread="t"))).text
        assert "said-119." in first and "said-69." not in first and "70 earlier messages" in first
        assert "e-49." in first and "e-50." not in first and "x" * 2001 not in first
        for channel, mark in (("messages", "said-{}."), ("list", "e-{}.")):
            seen, url = list[int](), page("value", thread="t", channel=channel)
            while url:
                text = (await client.get(url)).text
                check_markup(text)
                seen += [
                    at
                    for at in range(120)
                    if f">{mark.format(at)}<" in text
                    and f'value str">{mark.format(at)}' in text
                    or f'dir="auto">{mark.format(at)}<' in text
                ]
                url = (
                    next((one for one in links(text) if f"first={len(set(seen))}" in one), "")
                    if len(set(seen)) < 120
                    else ""
                )
            assert sorted(set(seen)) == list(range(120)), channel
        assert "x" * 9000 in (await client.get(page("value", thread="t", channel="text"))).text


@pytest.mark.parametrize("mask", [["password", "TOK*"], ["*"]])
async def test_what_is_masked_is_on_no_page(looked_at: RedisSaver, mask: list[str]) -> None:
    async with browser(looked_at, mask=mask) as client:
        found = await crawled(client)
    together = "".join(found.values())
    assert SECRET not in together and "masked" in together
    assert ("21 degrees" in together) == ("May I send it?" in together) == (mask != ["*"])


async def test_hostile_names_and_values_are_shown_as_text_and_lead_back() -> None:
    saver = embedded()
    uniform = Uniform(saver)
    for name in HOSTILE:
        text = name.replace("\ud800", "")  # the serializer refuses these; names may have them
        values = {name: {text: [text, {"x": text}]}, "messages": [AIMessage(text, name=text, id=text)]}
        metadata = {"source": text, "step": text, "parents": {"": text}, text: text}
        where = await put(uniform, config(name, name), values, metadata=metadata)
        await uniform.put_writes(where, [(name, text), ("__interrupt__", text)], name, name)
    async with browser(saver) as client:
        found = await crawled(client, limit=400)
    for url, text in found.items():
        check_markup(text)
        assert "<img src=x" not in text and "<script>alert" not in text and ">49" not in text, url
        assert "\u202e" not in text and "\x1b" not in text
    for view in ("thread", "checkpoint", "value", "channel", "first"):
        assert sum(url.startswith(f"/{view}?") for url in found) >= len(HOSTILE), view


async def test_a_damaged_thread_is_named_and_what_was_found_before_is_shown() -> None:
    raw = fakeredis.FakeRedis(version=(7,))
    saver = RedisSaver(raw)
    await put(Uniform(saver), config("broken"), {"n": 1})
    raw.delete(*raw.scan_iter("*:data"))
    async with browser(saver) as client:
        listed, shown = await client.get("/"), await client.get(page("thread", id="broken"))
    assert listed.status_code == 200 and "cannot be read" in listed.text and "{broken}" in listed.text
    assert shown.status_code == 500 and "{broken}" in shown.text


async def test_what_is_not_there_or_makes_no_sense_is_said(looked_at: RedisSaver) -> None:
    asked = {
        page("thread", id="nobody"): 404,
        page("checkpoint", thread="waits", id="none"): 404,
        page("diff", a="thread=waits&id=1", b="thread=waits&id=2"): 404,
        page("diff", a="x", b="y"): 400,
        "/thread": 400,
        page("value", thread="waits", channel="none"): 400,
        page("value", thread="waits", channel="facts", at="7.8"): 400,
        page("value", thread="waits", channel="facts", first="x"): 400,
        page("first", thread="waits", channel="facts", at="-1"): 400,
    }
    async with browser(looked_at) as client:
        for url, status in asked.items():
            answer = await client.get(url)
            assert answer.status_code == status, url
            check_markup(answer.text)


async def test_a_server_that_cannot_be_reached_is_said_without_its_password() -> None:
    saver = RedisSaver(redis.Redis(host="127.0.0.1", port=1, password=SECRET, socket_connect_timeout=1))
    async with browser(saver) as client:
        answer = await client.get("/")
    assert answer.status_code == 503 and SECRET not in answer.text


async def test_over_two_tiers_what_cold_alone_has_is_shown_and_not_brought_back() -> None:
    hot, cold = fakeredis.FakeRedis(version=(7,)), InMemorySaver()
    tiers = TieredSaver(RedisSaver(hot), cold)
    make_thread(tiers, "both")
    make_thread(tiers, "cold")
    hot.delete(*[key for key in hot.scan_iter("*{cold}*")])
    keys = sorted(hot.scan_iter())
    async with browser(tiers) as client:
        found = await crawled(client, limit=200)
        assert "21 degrees" in (await client.get(page("checkpoint", thread="cold"))).text
        assert "the cold tier" in (await client.get(page("thread", id="cold"))).text
    assert len(found) > 50 and sorted(hot.scan_iter()) == keys


async def test_over_postgres_what_it_alone_has_is_shown(database: str) -> None:
    hot = fakeredis.FakeRedis(version=(7,))
    with PostgresSaver.from_conn_string(database) as cold:
        tiers, name = TieredSaver(RedisSaver(hot), cold), "over-postgres"
        make_thread(tiers, name)
        hot.flushall()
        async with browser(tiers) as client:
            found = await crawled(client, page("thread", id=name), limit=60)
        assert any("21 degrees" in text for text in found.values()) and not hot.keys()
        cold.delete_thread(name)


async def test_over_postgres_for_asyncio_the_loop_of_the_service_is_used(database: str) -> None:
    with PostgresSaver.from_conn_string(database) as made:
        make_thread(made, "of-asyncio")
    async with AsyncPostgresSaver.from_conn_string(database) as cold:
        async with browser(AsyncTieredSaver(AsyncRedisSaver(FakeAsyncRedis(version=(7,))), cold)) as client:
            found = await crawled(client, page("thread", id="of-asyncio"), limit=20)
        assert any("21 degrees" in text for text in found.values())
        await cold.adelete_thread("of-asyncio")


async def test_over_two_tiers_for_asyncio() -> None:
    cold = InMemorySaver()
    make_thread(cold, "cold")
    async with browser(AsyncTieredSaver(AsyncRedisSaver(FakeAsyncRedis(version=(7,))), cold)) as client:
        assert len(await crawled(client, limit=30)) == 30


async def test_a_saver_that_blocks_does_not_block_the_event_loop() -> None:
    saver, asked, free = embedded(), threading.Event(), threading.Event()

    def around(request: Any) -> Any:
        asked.set()
        assert free.wait(60)
        return (yield request)

    Around(saver, around)
    async with browser(saver) as client:
        waiting = asyncio.create_task(client.get("/thread?id=t"))
        assert await asyncio.to_thread(asked.wait, 60)
        assert (await client.get("/static/style.css")).status_code == 200 and not waiting.done()
        free.set()
        assert (await waiting).status_code == 404


async def test_mounted_under_a_path_all_links_stay_below_it(looked_at: RedisSaver) -> None:
    outer = Starlette(routes=[Mount("/ops/inspect", inspector.app(looked_at, token=TOKEN))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://localhost") as client:
        entered = await client.get(f"/ops/inspect/thread?id=waits&token={TOKEN}")
        assert entered.status_code == 303 and entered.headers["location"] == "/ops/inspect/thread?id=waits"
        assert "Path=/ops/inspect" in entered.headers["set-cookie"]
        found = await crawled(client, "/ops/inspect/", limit=40)
    assert len(found) == 40 and all(url.startswith("/ops/inspect/") for url in found)


def test_each_line_of_a_drawing_leads_from_a_checkpoint_to_its_parent() -> None:
    """Forks, calls of subgraphs, parents that are gone: followed as an eye does, from the circle down."""
    parents = {"9": "7", "8": "6", "7": "5", "6": "5", "5": "3", "4": "2", "3": "2", "2": "gone", "1": None}
    made = [entry("", name, parent) for name, parent in parents.items()]
    made.insert(1, entry("sub:1", "85", None, {"": "7"}))
    rows = graph.drawn(made)
    at = {(one.ns, one.id): number for number, one in enumerate(made)}
    for number, one in enumerate(made):
        target = at.get(("", one.parent)) if one.parent else at.get(("", one.parents.get("", "?")))
        if target is not None:
            assert leads_to(rows, number, target), one.id
    assert any(line.is_dashed for line in rows[1].lines) and rows[8].lines[-1].y2 == 100
    assert all((line.y1, line.y2) == (0, 100) for line in rows[-1].lines), (
        "the last one has neither children nor a parent"
    )


def leads_to(rows: list[graph.Row], number: int, target: int) -> bool:
    lane = rows[number].lane
    assert any((line.x1, line.y1, line.y2) == (lane, 50, 100) for line in rows[number].lines)
    for row in rows[number + 1 : target]:
        assert any((line.x1, line.y1, line.x2, line.y2) == (lane, 0, lane, 100) for line in row.lines)
    return any((line.x1, line.y1, line.x2, line.y2) == (lane, 0, rows[target].lane, 50) for line in rows[target].lines)


def entry(ns: str, name: str, parent: str | None, parents: dict[str, str] | None = None) -> Entry:
    return Entry(ns, name, parent, None, 1, "loop", {}, {}, frozenset(), (), 0, {}, parents or {})
