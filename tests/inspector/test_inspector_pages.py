"""The pages of the inspector, over every kind of saver."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

import fakeredis
import httpx
import pytest
from fakeredis import FakeAsyncRedis
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from starlette.applications import Starlette
from starlette.routing import Mount

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver, inspector
from redis_saver._checkpoint.auditing import Entry
from redis_saver._inspector import app, rows, thread_pages
from redis_saver._inspector.rows import ORDERS, Order
from redis_saver._inspector.source import Source
from tests.support.factories import chain, config, put
from tests.support.inspecting import HOSTILE, SECRET, TOKEN, browser, check_markup, crawled, embedded, links
from tests.support.inspecting import make_failed, make_thread, opened, talking, writer
from tests.support.tiering import FlakySaver
from tests.support.uniform import Target, Uniform, encryption
from tests.support.values import Quoting
from tests.support.wrappers import Around, requests_of


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


async def test_all_links_work_on_every_server(target: Target) -> None:
    make_thread(writer(target.url, target.prefix), "user-1:chat")
    async with browser(target.uniform().saver) as client:
        found = await crawled(client, limit=80)
    views = {url.partition("?")[0] for url in found}
    assert views >= {"/", "/thread", "/checkpoint", "/diff", "/channel", "/writes"}
    for text in found.values():
        check_markup(text)


async def test_the_list_shows_and_filters_threads(looked_at: RedisSaver) -> None:
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


async def test_an_invalid_filter_is_refused(looked_at: RedisSaver) -> None:
    async with browser(looked_at) as client:
        for name in ("state", "sort", "min_bytes", "after", "expires", "page", "pinned"):
            answer = await client.get(page("", **{name: "0" if name == "page" else "x"}))
            assert answer.status_code == 400 and 'role="alert"' in answer.text, name
            check_markup(answer.text)


async def test_filters_are_folded_until_they_are_used(looked_at: RedisSaver) -> None:
    async with browser(looked_at) as client:
        for asked, is_open in (({}, False), ({"sort": "name", "page": "1"}, False), ({"state": "failed"}, True)):
            text = (await client.get(page("", **asked))).text
            (found,) = re.findall(r'<details class="fold"( open)?><summary>Filter', text)
            assert bool(found) == is_open


async def test_the_list_says_what_it_can_read_in_time(looked_at: RedisSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    async with browser(looked_at) as client:
        text = (await client.get("/")).text
        assert "waits: question: May I send it?" in text and "bot failed: ValueError" in text
        monkeypatch.setattr(thread_pages, "SAID_SECONDS", 0)
        text = (await client.get("/")).text
        assert "what was said last: 0 of 5" in text and "May I send it?" not in text


async def test_a_list_without_keys_says_nothing_of_what_was_said(target: Target) -> None:
    make_thread(RedisSaver(target.raw, prefix=target.prefix, encryption=encryption()), "secret")
    for options, is_shown in (({}, False), ({"encryption": encryption()}, True)):
        async with browser(RedisSaver(target.raw, prefix=target.prefix, **options)) as client:
            answer = await client.get("/")
        assert answer.status_code == 200 and ">secret</a>" in answer.text
        assert ("May I send it?" in answer.text) == is_shown == ("what was said last: 0 of 1" not in answer.text)


async def test_a_live_list_marks_what_changed_since_it_was_opened(looked_at: RedisSaver) -> None:
    marked = 'class="found" title="Changed since the page was opened"'
    async with browser(looked_at) as client:
        first = (await client.get(page("", live="yes"))).text
        opened = re.search(r'hx-get="[^"]*opened=([^&"]+)', first)
        assert opened and marked not in first
        moments = ("2020-01-01 00:00:00", "2126-01-01 00:00:00")
        before, after = [(await client.get(page("", live="yes", opened=moment))).text for moment in moments]
    assert before.count(marked) > 0 == after.count(marked)


async def test_a_search_without_results_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pages, "SEARCH_SECONDS", 0)
    saver = embedded()
    await put(Uniform(saver), config("t"), {"n": 1})
    calls = requests_of(saver)
    text = await opened(saver, page("", state="failed"))
    assert "found in 5 seconds" in text and calls == []


async def test_threads_have_the_orders_of_the_command() -> None:
    text = await opened(embedded(), page("", sort="bytes"))
    (select,) = re.findall(r'<select name="sort">(.*?)</select>', text)
    assert re.findall(r"<option[^>]*>(\w+)</option>", select) == [*get_args(Order)] == [*ORDERS]


async def test_pages_list_each_thread_once() -> None:
    saver, names = embedded(), list[str]()
    for at in range(120):
        await put(Uniform(saver), config(f"t{at:03}"), {"n": at})
    async with browser(saver) as client:
        url: str | None = "/?sort=name"
        while url:
            text = (await client.get(url)).text
            assert "<option selected>name</option>" in text
            names += re.findall(r'href="/thread\?id=([^"]*)"', text)
            following = f"page={len(names) // 50 + 1}" if len(names) % 50 == 0 else "no such link"
            url = next((one for one in links(text) if following in one), None)
    assert names == [f"t{at:03}" for at in range(120)]


async def test_a_tree_page_costs_the_same_for_any_length() -> None:
    """Each checkpoint is on exactly one page."""
    costs = []
    for length in (150, 250):
        saver = embedded()
        made = await chain(Uniform(saver), "t", length)
        calls = requests_of(saver)
        async with browser(saver) as client:
            text = (await client.get(page("thread", id="t"))).text
            costs.append(len(calls))
            found = re.findall(r'class="id" [^>]*title="([^"]*)"', text)
            while older := next((one for one in links(text) if "before=" in one), None):
                text = (await client.get(older)).text
                found += re.findall(r'class="id" [^>]*title="([^"]*)"', text)
        assert found == [one["configurable"]["checkpoint_id"] for one in reversed(made)]
    assert costs[0] == costs[1] <= 4


async def test_pages_list_equal_ids_of_two_namespaces_once() -> None:
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


async def test_a_checkpoint_page_shows_state_interrupt_tasks_and_costs(looked_at: RedisSaver) -> None:
    text, failed = await opened(looked_at, *(page("checkpoint", thread=name, ns="") for name in ("waits", "fails")))
    said = ("What is the weather?", "Let me &lt;b&gt;see&lt;/b&gt;.", "21 degrees", "search")
    for part in (*said, "Waits for an answer", "May I send it?"):
        assert part in text, part
    assert '<span class="badge">research</span>' in text
    assert "Cost by channel" in text and "New here" in text and "100 bytes: 00 00" in text
    assert "Failed" in failed and "the model said &lt;no&gt;" in failed


async def test_a_delta_channel_shows_a_snapshot_or_later_writes() -> None:
    saver = embedded()
    talk = talking(saver)
    seen = []
    for at in range(3):
        talk.invoke({"messages": [HumanMessage(f"question {at}")]}, config("t"))
        newest = saver.get_tuple(config("t"))
        assert newest
        text = await opened(saver, page("checkpoint", thread="t"))
        assert all(f">question {n}</p>" in text for n in range(at + 1)) and text.count(">an answer</p>") == at + 1
        seen.append("messages" in newest.checkpoint["channel_values"])
        assert ("without a snapshot here" in text) != seen[-1]
    assert set(seen) == {True, False}
    ids = [one.config["configurable"]["checkpoint_id"] for one in saver.list(config("t"))]
    compared = [(one, other) for one in ids for other in ids if one < other]
    async with browser(saver) as client:
        await crawled(client, limit=60)
        for one, other in compared:
            a, b = (urlencode({"thread": "t", "id": each}) for each in (one, other))
            text = (await client.get(page("diff", a=a, b=b))).text
            check_markup(text)
            states = [talk.get_state(config("t", checkpoint_id=each)).values for each in (one, other)]
            said = [len(state.get("messages", ())) for state in states]
            assert text.count('<div class="change">') >= abs(said[1] - said[0]), "each message that came or went"
            assert "not compared" not in text and ("No channel differs" not in text or said[0] == said[1])
    assert any(saver.diff("t", one, other).not_compared for one, other in compared)
    async with browser(saver, mask=["messages"]) as client:
        assert ">question " not in "".join((await crawled(client, limit=80)).values())


async def test_a_comparison_shows_only_changed_channels(looked_at: RedisSaver) -> None:
    newest = looked_at.get_tuple(config("waits"))
    assert newest and newest.parent_config
    places = [
        {"thread": "waits", "id": one["configurable"]["checkpoint_id"]} for one in (newest.parent_config, newest.config)
    ]
    a, b = map(urlencode, places)
    text, same = await opened(looked_at, page("diff", a=a, b=b), page("diff", a=b, b=b))
    assert "messages" in text and "21 degrees" in text and "facts" not in re.findall(r"<h3>(\w+)", text)
    assert "No channel differs" in same


async def test_checkpoints_on_different_pages_can_be_compared() -> None:
    saver = embedded()
    made = await chain(Uniform(saver), "t", 150)
    newest, oldest = (one["configurable"]["checkpoint_id"] for one in (made[-1], made[0]))
    async with browser(saver) as client:
        text = (await client.get(page("checkpoint", thread="t", id=newest))).text
        (first,) = [one for one in links(text) if one.startswith("/thread?") and "a=" in one]
        (older,) = [one for one in links((await client.get(first)).text) if "before=" in one]
        text = (await client.get(older)).text
        check_markup(text)
        (compare,) = {one for one in links(text) if one.startswith("/diff?") and oldest in one}
        text = (await client.get(compare)).text
    assert newest in text and oldest in text and "changed" in text


async def test_long_values_are_shown_in_pages() -> None:
    saver = embedded()
    messages = [AIMessage(f"said-{at}.", id=str(at)) for at in range(120)]
    values = {"messages": messages, "list": [f"e-{at}." for at in range(120)], "text": "x" * 9000}
    await put(Uniform(saver), config("t"), values)
    async with browser(saver) as client:
        first = (await client.get(page("checkpoint", thread="t"))).text
        assert "said-119." in first and "said-69." not in first and "70 earlier messages" in first
        assert "e-49." in first and "e-50." not in first and "x" * 2001 not in first
        for channel, mark in (("messages", r"<p>said-(\d+)\.</p>"), ("list", r'value str">e-(\d+)\.<')):
            seen, url = set[int](), page("value", thread="t", channel=channel)
            while url:
                text = (await client.get(url)).text
                check_markup(text)
                seen |= {int(at) for at in re.findall(mark, text)}
                following = f"first={len(seen)}" if len(seen) < 120 else "no such link"
                url = next((one for one in links(text) if following in one), "")
            assert seen == {*range(120)}, channel
        assert "x" * 9000 in (await client.get(page("value", thread="t", channel="text"))).text


async def test_every_part_of_a_large_container_is_reachable() -> None:
    """All siblings are shown before any is expanded. Each one that is not expanded has a page of its own."""
    saver = embedded()
    value = {
        f"k{at}": {f"j{below}": [f"{at}-{below}-{end}" for end in range(45)] for below in range(45)} for at in range(60)
    }
    await put(Uniform(saver), config("t"), {"nested": value})
    async with browser(saver) as client:
        text = (await client.get(page("value", thread="t", channel="nested"))).text
        assert all(f">k{at}<" in text for at in range(50)) and ">k50<" not in text
        (following,) = {link for link in links(text) if "first=50" in link}
        rest = (await client.get(following)).text
        assert all(f">k{at}<" in rest for at in range(50, 60))
        for at in ("49", "49.44"):
            (url,) = {link for link in links(text) if f"at={at}" in link.split("&")}
            text = (await client.get(url)).text
        assert len(set(re.findall(r"49-44-\d+", text))) == 45


async def test_concurrent_reads_of_values_are_limited(looked_at: RedisSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, most, find = set[object](), 0, Source.find

    def counted(source: Source, address: Any) -> Any:
        nonlocal most
        mine = object()
        reading.add(mine)
        most = max(most, len(reading))
        time.sleep(0.02)
        reading.remove(mine)
        return find(source, address)

    monkeypatch.setattr(Source, "find", counted)
    async with browser(looked_at) as client:
        answers = await asyncio.gather(*(client.get(page("checkpoint", thread="waits")) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200} and most == app.VALUES_AT_ONCE


async def test_an_unknown_thread_suggests_similar_names(looked_at: RedisSaver) -> None:
    async with browser(looked_at) as client:
        for name, near in {"many-7": "many-1", "wait": "waits", "ANY-2": "many-2"}.items():
            answer = await client.get(page("thread", id=name))
            assert answer.status_code == 404 and page("thread", id=near) in links(answer.text), name
        for name in ("nothing like it", "x" * 10_000):
            assert "a similar name" not in (await client.get(page("thread", id=name))).text


async def test_errors_quote_no_masked_values() -> None:
    client = fakeredis.FakeRedis(version=(7,))
    await put(Uniform(RedisSaver(client)), config("t"), {"a": SECRET}, metadata={"source": SECRET, "parents": {}})
    for mask, is_quoted in (([], True), (["*"], False)):
        async with browser(RedisSaver(client, serde=Quoting()), mask=mask) as pages:
            for url in ("/checkpoint?thread=t", "/thread?id=t", "/writes?thread=t"):
                answer = await pages.get(url)
                assert answer.status_code == 500 and "cannot decode" in answer.text
                assert ("is that JSON" in answer.text) == is_quoted
            assert (await pages.get("/")).status_code == 200


@pytest.mark.parametrize(("changes", "said"), [(3, ""), (53, "and 3 more changes")])
async def test_a_diff_shows_fifty_changes_and_counts_the_others(changes: int, said: str) -> None:
    saver, places, where = embedded(), list[str](), config("t")
    for at in (1, 2):
        found = {"facts": {f"fact {number}": at for number in range(changes)}}
        versions = {"facts": f"{at:032}.x"}
        where = await put(Uniform(saver), where, found, versions=versions, checkpoint_id=str(at))
        places.append(urlencode({"thread": "t", "id": str(at)}))
    async with browser(saver) as client:
        text = (await client.get(page("diff", a=places[0], b=places[1]))).text
    assert text.count('<div class="change">') == min(changes, 50)
    assert said in text and ("more changes" in text) == bool(said)


async def test_a_diff_hides_names_below_a_masked_name() -> None:
    saver, places = embedded(), list[str]()
    uniform, where = Uniform(saver), config("t")
    for at, found in enumerate(
        ({"a": {"password": {}}, "vault": {}}, {"a": {"password": {SECRET: 1}}, "vault": {SECRET: 1}})
    ):
        versions = dict.fromkeys(found, f"{at + 1:032}.x")
        where = await put(uniform, where, found, versions=versions, checkpoint_id=str(at))
        places.append(urlencode({"thread": "t", "id": str(at)}))
    diff = page("diff", a=places[0], b=places[1])
    assert SECRET in await opened(saver, diff)
    text = await opened(saver, diff, mask=["password", "vault"])
    assert SECRET not in text and '<div class="path">password › …</div>' in text and text.count("masked") >= 2


@pytest.mark.parametrize(("mask", "hidden"), [(["args"], "&lt;script&gt;"), (["name"], 'class="key">search<')])
async def test_tool_calls_are_masked_by_field_name(looked_at: RedisSaver, mask: list[str], hidden: str) -> None:
    of_waits = page("checkpoint", thread="waits", ns="")
    assert hidden in await opened(looked_at, of_waits)
    assert hidden not in await opened(looked_at, of_waits, mask=mask)


@pytest.mark.parametrize("mask", [["password", "TOK*"], ["*"]])
async def test_masked_values_are_on_no_page(looked_at: RedisSaver, mask: list[str]) -> None:
    async with browser(looked_at, mask=mask) as client:
        found = await crawled(client)
    together = "".join(found.values())
    assert SECRET not in together and "masked" in together
    assert ("21 degrees" in together) == ("May I send it?" in together) == (mask != ["*"])


async def test_hostile_names_and_values_are_escaped_and_linked() -> None:
    saver = embedded()
    uniform = Uniform(saver)
    for name in HOSTILE:
        text = name.replace("\ud800", "")  # allowed in names, refused by the serializer
        values = {name: {text: [text, {"x": text}]}, "messages": [AIMessage(text, name=text, id=text)]}
        metadata = {"source": text, "step": text, "parents": {"": text}, text: text}
        where = await put(uniform, config(name, name), values, metadata=metadata)
        await uniform.put_writes(where, [(name, text), ("__interrupt__", text)], name, name)
    async with browser(saver) as client:
        found = await crawled(client, limit=400)
    for url, text in found.items():
        check_markup(text)
        assert "<img src=x" not in text and "<script>alert" not in text, url
        assert str(1234567 * 7654321) not in text, f"{url}: a name was taken for a template"
        assert "\u202e" not in text and "\x1b" not in text
    for view in ("thread", "checkpoint", "value", "channel"):
        assert sum(url.startswith(f"/{view}?") for url in found) >= len(HOSTILE), view


@pytest.mark.parametrize("tiers", [False, True])
async def test_the_list_names_damaged_threads_and_shows_the_others(
    tiers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pages, "MAX_NAMED", 2)
    raw = fakeredis.FakeRedis(version=(7,))
    saver: Any = TieredSaver(RedisSaver(raw), InMemorySaver()) if tiers else RedisSaver(raw)
    broken = ["a <b>", "b", "c\n"]
    for name in (*broken, *(f"sound-{at}" for at in range(5))):
        await put(Uniform(saver), config(name), {"n": 1})
        saver.get_tuple(config(name))  # fills hot
    raw.delete(*(key for name in broken for key in raw.scan_iter("*:data") if f"{{{name}}}".encode() in key))
    async with browser(saver) as client:
        text = (await client.get("/?live=yes")).text
        check_markup(text)
        assert set(re.findall(r'href="/thread\?id=([^"]*)"', text)) == {f"sound-{at}" for at in range(5)}
        assert "3 threads cannot be read, the first 2 of them:" in text and 'hx-trigger="every 5s"' in text
        named = re.findall(r'<summary><b class="name">(.*?)</b>', text)
        assert len(named) == 2 and set(named) <= {"a &lt;b&gt;", "b", "&#39;c\\n&#39;"}
        text = (await client.get("/?prefix=b&sort=name")).text
        assert "1 thread cannot be read:" in text and '<b class="name">b</b>' in text and "{b}" in text
        shown = await client.get(page("thread", id="b"))
    assert shown.status_code == 500 and "{b}" in shown.text


async def test_unknown_pages_and_invalid_arguments_get_an_error_page(looked_at: RedisSaver) -> None:
    asked = {
        page("thread", id="nobody"): 404,
        page("checkpoint", thread="waits", id="none"): 404,
        page("diff", a="thread=waits&id=1", b="thread=waits&id=2"): 404,
        page("diff", a="x", b="y"): 400,
        "/thread": 400,
        page("value", thread="waits", channel="none"): 400,
        page("value", thread="waits", channel="facts", at="7.8"): 400,
        page("value", thread="waits", channel="facts", first="x"): 400,
        page("value", thread="waits", channel="facts", at="-1"): 400,
    }
    async with browser(looked_at) as client:
        for url, status in asked.items():
            answer = await client.get(url)
            assert answer.status_code == status, url
            check_markup(answer.text)


@pytest.mark.parametrize("package", ["redis", "valkey"])
async def test_an_unreachable_server_is_reported_without_its_password(package: str) -> None:
    client_of: Any = pytest.importorskip(package)
    made = getattr(client_of, package.capitalize())
    saver = RedisSaver(made(host="127.0.0.1", port=1, password=SECRET, socket_connect_timeout=1))
    async with browser(saver) as client:
        answer = await client.get("/")
    assert answer.status_code == 503 and SECRET not in answer.text and "ConnectionError" in answer.text


COLD_FAILS = "The cold tier fails, so this page shows only the data in Redis"


async def test_pages_show_redis_data_and_no_cold_data_if_postgres_is_unreachable(database: str) -> None:
    hot = embedded()
    with PostgresSaver.from_conn_string(database) as cold:
        tiers = TieredSaver(hot, cold)
    make_thread(hot, "waits")
    async with browser(tiers) as client:  # its connection is closed
        found = await crawled(client, limit=60)
        assert len(found) > 40 and "waits" in found["/"]
        assert any("21 degrees" in text for text in found.values())
        with_notice = {url.partition("?")[0] for url, text in found.items() if COLD_FAILS in text}
        assert {"/", "/thread", "/cost", "/channel", "/writes"} <= with_notice, with_notice
        newest = (await client.get(page("checkpoint", thread="waits"))).text
        assert COLD_FAILS in newest, "the newest checkpoint may be in cold"
        for text in found.values():
            assert ("the connection is closed" in text) == (COLD_FAILS in text)
            check_markup(text)
        live = (await client.get("/?live=yes")).text
        assert COLD_FAILS in live[live.index('id="found"') : live.index("</section>")], "the live list hides it"
        for url in (
            *(
                page("thread", id="other"),
                page("checkpoint", thread="other"),
                page("checkpoint", thread="waits", id="1"),
            ),
            *(page("thread", id="waits", tier="cold"), "/?dirty=yes", "/?dirty=no"),
        ):
            answer = await client.get(url)
            assert answer.status_code == 503 and "the connection is closed" in answer.text, url
            check_markup(answer.text)
        assert (await client.get("/?state=none")).status_code == 400


def with_both_and_cold(cold: Any, **options: Any) -> TieredSaver:
    """Make two tiers with a thread in both, and one only in cold.

    A run writes from several threads. A write that overlaps another one may leave the thread out of hot, until a reader
    brings it back.
    """
    tiers = TieredSaver(embedded(), cold, **options)
    for thread in ("both", "cold"):
        tiers.get_tuple(make_thread(tiers, thread))
    raw = tiers.hot._driver.client
    raw.delete(*raw.scan_iter("*{cold}*"))
    return tiers


async def test_pages_skip_a_slow_failing_cold_tier_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = FlakySaver(InMemorySaver())
    tiers = with_both_and_cold(flaky.wrap())
    flaky.fail, read = {"list", "get_tuple"}, page("checkpoint", thread="both")
    monkeypatch.setattr(app, "SLOW", 0.0)
    async with browser(tiers) as client:
        assert COLD_FAILS in (await client.get(read)).text
        flaky.calls.clear()
        assert COLD_FAILS in (await client.get(read)).text and not flaky.calls
        assert (await client.get(page("checkpoint", thread="cold"))).status_code == 503 and flaky.calls
        flaky.fail = set()
        assert COLD_FAILS in (await client.get(read)).text
        monkeypatch.setattr(app, "ASK_AGAIN", 0.0)
        found = (await client.get(read)).text
        assert COLD_FAILS not in found and "21 degrees" in found
        monkeypatch.undo()
        assert COLD_FAILS not in (await client.get(read)).text, "it is over"
        flaky.fail = {"list", "get_tuple"}
        assert COLD_FAILS in (await client.get(read)).text
        flaky.fail = set()
        assert COLD_FAILS not in (await client.get(read)).text, "after a quick failure the next page asks again"


async def test_a_failing_cold_tier_is_always_asked_for_cold_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SLOW", 0.0)
    flaky = FlakySaver(InMemorySaver())
    tiers = with_both_and_cold(flaky.wrap())
    flaky.fail = {"get_tuple", "list"}
    async with browser(tiers) as client:
        assert (await client.get(page("checkpoint", thread="both"))).status_code == 200
        flaky.fail = set()
        answer = await client.get(page("checkpoint", thread="cold"))
        assert answer.status_code == 200 and "21 degrees" in answer.text and "The cold tier fails" not in answer.text


async def test_cold_threads_are_shown_without_filling_hot(database: str) -> None:
    with PostgresSaver.from_conn_string(database) as cold:
        tiers = with_both_and_cold(cold)
        hot = tiers.hot._driver.client
        keys = sorted(hot.scan_iter())
        async with browser(tiers) as client:
            for name in ("both", "cold"):
                found = await crawled(client, page("thread", id=name), limit=60)
                assert len(found) > 40 and any("21 degrees" in text for text in found.values())
            assert "21 degrees" in (await client.get(page("checkpoint", thread="cold"))).text
            assert "the cold tier" in (await client.get(page("thread", id="cold"))).text
        assert sorted(hot.scan_iter()) == keys
        for name in ("both", "cold"):
            cold.delete_thread(name)


async def test_a_deleted_thread_is_hidden_while_cold_still_has_it() -> None:
    tiers = TieredSaver(embedded(), InMemorySaver(), mode="write-behind", flusher=False)
    where = await put(Uniform(tiers), config("t"), {"n": 1})
    tiers.flush()
    tiers.delete_thread("t")
    assert tiers.cold.get_tuple(where), "cold still has the thread"
    async with browser(tiers) as client:
        for more in ({}, {"ns": "", "id": where["configurable"]["checkpoint_id"]}):
            assert (await client.get(page("checkpoint", thread="t", **more))).status_code == 404


async def test_async_postgres_is_read_on_the_services_event_loop(database: str) -> None:
    with PostgresSaver.from_conn_string(database) as made:
        make_thread(made, "of-asyncio")
    async with AsyncPostgresSaver.from_conn_string(database) as cold:
        async with browser(AsyncTieredSaver(AsyncRedisSaver(FakeAsyncRedis(version=(7,))), cold)) as client:
            found = await crawled(client, page("thread", id="of-asyncio"), limit=20)
        assert any("21 degrees" in text for text in found.values())
        await cold.adelete_thread("of-asyncio")


async def test_a_blocking_saver_does_not_block_the_event_loop() -> None:
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


async def test_links_stay_below_the_mount_path(looked_at: RedisSaver) -> None:
    outer = Starlette(routes=[Mount("/ops/inspect", inspector.app(looked_at, token=TOKEN))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://localhost") as client:
        entered = await client.get(f"/ops/inspect/thread?id=waits&token={TOKEN}")
        assert entered.status_code == 303 and entered.headers["location"] == "/ops/inspect/thread?id=waits"
        assert "Path=/ops/inspect" in entered.headers["set-cookie"]
        found = await crawled(client, "/ops/inspect/", limit=40)
    assert len(found) == 40 and all(url.startswith("/ops/inspect/") for url in found)


def test_tree_lines_lead_from_each_checkpoint_to_its_parent() -> None:
    """The tree has forks, a subgraph call and a missing parent."""
    parents = {"9": "7", "8": "6", "7": "5", "6": "5", "5": "3", "4": "2", "3": "2", "2": "gone", "1": None}
    made = [entry("", name, parent) for name, parent in parents.items()]
    made.insert(1, entry("sub:1", "85", None, {"": "7"}))
    drawing = rows.drawn(made)
    at = {(one.ns, one.id): number for number, one in enumerate(made)}
    for number, one in enumerate(made):
        target = at.get(("", one.parent)) if one.parent else at.get(("", one.parents.get("", "?")))
        if target is not None:
            assert leads_to(drawing, number, target), one.id
    assert any(line.is_dashed for line in drawing[1].lines) and drawing[8].lines[-1].y2 == 100
    passing = [(line.y1, line.y2) == (0, 100) for line in drawing[-1].lines]
    assert all(passing), "the last row has neither children nor a parent"


def leads_to(rows: list[Any], number: int, target: int) -> bool:
    lane = rows[number].lane
    assert any((line.x1, line.y1, line.y2) == (lane, 50, 100) for line in rows[number].lines)
    for row in rows[number + 1 : target]:
        assert any((line.x1, line.y1, line.x2, line.y2) == (lane, 0, lane, 100) for line in row.lines)
    return any((line.x1, line.y1, line.x2, line.y2) == (lane, 0, rows[target].lane, 50) for line in rows[target].lines)


def entry(ns: str, name: str, parent: str | None, parents: dict[str, str] | None = None) -> Entry:
    metadata = {"step": 1, "source": "loop", "parents": parents or {}}
    return Entry(ns, name, parent, None, metadata, {}, {}, frozenset(), ())


class HangingSaver(InMemorySaver):
    """A cold saver that hangs while `lets_go` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.lets_go, self.reads = threading.Event(), 0

    def hang(self) -> None:
        self.reads += 1
        self.lets_go.wait()

    def get_tuple(self, config: Any) -> Any:
        self.hang()
        return super().get_tuple(config)

    def list(self, *arguments: Any, **options: Any) -> Any:
        self.hang()
        return super().list(*arguments, **options)


async def test_pages_do_not_wait_for_a_hanging_cold_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = HangingSaver()
    cold.lets_go.set()
    tiers = with_both_and_cold(cold, cold_timeout=0.6)
    cold.lets_go.clear()
    async with browser(tiers) as client:
        read = page("checkpoint", thread="both")
        cold.reads = 0
        answers = await asyncio.gather(*[client.get(read) for _ in range(app.VALUES_AT_ONCE + 3)])
        assert all(COLD_FAILS in answer.text and "cold_timeout" in answer.text for answer in answers)
        assert 1 <= cold.reads <= app.VALUES_AT_ONCE, "pages that waited for their turn ask cold again"
        for url in ("/", "/server", page("thread", id="both")):
            assert COLD_FAILS in (await client.get(url)).text
        answer = await client.get(page("thread", id="cold"))
        assert answer.status_code == 503 and "does not answer" in answer.text
        cold.lets_go.set()
        monkeypatch.setattr(app, "ASK_AGAIN", 0.0)
        assert COLD_FAILS not in (await client.get("/")).text
