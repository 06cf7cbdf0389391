"""The inspector's page about the server, and pictures of trees."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from tests.support.acl import acl_rule
from tests.support.factories import chain, config, put
from tests.support.inspecting import HOSTILE, browser, check_markup, embedded, links, make_failed, make_thread, orphan
from tests.support.inspecting import writer
from tests.support.servers import Server
from tests.support.uniform import Target, Uniform

from redis_saver import RedisCache, RedisSaver, RedisStore, TieredSaver
from redis_saver._client.clients import connect
from redis_saver._cli.main import main
from redis_saver._inspector import health, picture, thread_pages
from redis_saver._inspector.rows import PREVIEWED, turns
from redis_saver._inspector.source import Source

SVG = "{http://www.w3.org/2000/svg}"
pytestmark = pytest.mark.also_on(cluster="async", valkey="sync", fakeredis="async")


def counts(page: str) -> dict[str, tuple[int, str]]:
    """Return the counts of a page, and the links of these counts, by name."""
    found = re.findall(r'<dt>([^<]*)</dt><dd><a href="([^"]*)"[^>]*>([\d,]+)</a>', page)
    return {name: (int(number), link.replace("&amp;", "&")) for name, link, number in found}


async def test_each_count_links_to_the_threads_that_it_counts(target: Target) -> None:
    saver = writer(target.url, target.prefix)
    make_thread(saver, "waits")
    make_failed(saver, "fails")
    for number in range(3):
        await chain(Uniform(saver), f"chain-{number}", 2)
    saver.pin("chain-0")
    saver.set_thread_ttl("chain-1", "3h")
    with saver.own("chain-2", by="alive"), saver.own("waits", run_id="run <1>"), saver.own("chain-0"):
        for thread in ("waits", "chain-0"):
            orphan(saver, thread)
        async with browser(target.uniform().saver) as client:
            text = (await client.get("/server")).text
            check_markup(text)
            found = counts(text)
            assert {name: number for name, (number, _) in found.items()} == {
                **{"Orphaned": 2, "Failed": 1, "Interrupted": 1, "Active": 2, "Owned": 1, "Pinned": 1},
                **{"Expire within a day": 1, "Cannot be read": 0, "All": 5},
            }
            for name, (number, link) in found.items():
                listed = (await client.get(link)).text
                assert name == "Cannot be read" or f'<p class="quiet">{number} thread' in listed, name
            assert "2 of 5 are orphaned: chain-0, waits" in text or "2 of 5 are orphaned: waits, chain-0" in text
            assert "run &#39;run" not in text and f'<td class="name">{target.prefix}</td><td>threads' in text
            orphans = (await client.get(found["Orphaned"][1])).text
            assert "run run &lt;1&gt;, lease ended " in orphans


async def test_the_page_covers_both_tiers() -> None:
    hot, cold = embedded(), InMemorySaver()
    make_thread(cold, "only-cold")
    saver = TieredSaver(hot, cold, mode="write-behind", flusher=False)
    saver.get_tuple(config("dirty"))
    await put(Uniform(saver), config("dirty"), {"n": 1})
    async with browser(saver) as client:
        text = (await client.get("/server")).text
        found = {name: number for name, (number, _) in counts(text).items()}
        assert (found["Interrupted"], found["Cold lacks records"], found["All"]) == (1, 1, 2)
        assert "<dt>Records</dt><dd>1</dd>" in text and "1 of 2 never expire" in text, "cold keeps all of its threads"
    saver.close()


async def test_redis_alone_shows_that_it_is_the_hot_tier(target: Target) -> None:
    """The backlog is empty, but a writer died between cold and hot."""

    class Dies(InMemorySaver):
        def put(self, *_: Any) -> Any:
            raise SystemExit

    saver = writer(target.url, target.prefix)
    await put(Uniform(saver), config("t"), {"n": 1})
    async with browser(saver) as client:
        assert "Backlog for the cold tier" not in (await client.get("/server")).text
        tiered = TieredSaver(writer(target.url, target.prefix), Dies())
        with pytest.raises(SystemExit):
            await put(Uniform(tiered), config("u"), {"n": 1})
        text = (await client.get("/server")).text
        assert "<dt>Records</dt><dd>0</dd>" in text
        assert "<dt>Threads being written to cold</dt><dd>1</dd>" in text
        number, link = counts(text)["Cold lacks records"]
        assert number == 0 and 'class="quiet">0 threads' in (await client.get(link)).text


async def test_the_page_has_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = embedded()
    await put(Uniform(saver), config("t"), {"n": 1})
    async with browser(saver) as client:
        text = (await client.get("/server")).text
        assert "so all numbers are too small" not in text and "found in 2 seconds" not in text
        monkeypatch.setattr(thread_pages, "SEARCH_SECONDS", 0)
        monkeypatch.setattr(thread_pages, "KEYS_SECONDS", 0)
        text = (await client.get("/server")).text
    assert "so all numbers are too small" in text and "found in 2 seconds" in text
    assert counts(text)["All"][0] == 0


async def test_a_user_without_rights_sees_what_it_may() -> None:
    server = Server()
    raw = server.client()
    await put(Uniform(writer(server.url)), config("t"), {"n": 1})
    await put(Uniform(writer(server.url, "other")), config("t"), {"n": 1})
    raw.execute_command(*acl_rule("reader", "docs/queries.md").split())
    saver = RedisSaver(connect(f"redis://reader:secret@127.0.0.1:{server.port}", asynchronous=False))
    async with browser(saver) as client:
        text = (await client.get("/server")).text
        for right in ("INFO", "ACL WHOAMI", "SLOWLOG GET", "MEMORY USAGE"):
            assert f"this user may not call {right}, so" in text
        assert "A dash: the server does not" in text and counts(text)["All"][0] == 1
        raw.execute_command("ACL", "SETUSER", "reader", "+memory|usage")
        text = (await client.get("/server")).text
    assert "may not call MEMORY USAGE, so" not in text and "A dash: the server does not" in text
    memory = dict(re.findall(r'<td class="name">(\w+)</td><td>threads</td><td[^>]*>2</td><td[^>]*>([^<]*)<', text))
    assert memory["other"] == "-" and re.fullmatch(r"[\d.]+ k?B", memory["langgraph"])
    server.stop()


def test_memory_is_shown_by_prefix_and_kind() -> None:
    server = Server()
    raw, saver = server.client(), writer(server.url)
    for number in range(100):
        asyncio.run(put(Uniform(saver), config(f"t{number}"), {"n": "x" * 1000}))
    asyncio.run(put(Uniform(writer(server.url, "p:store")), config(HOSTILE[0]), {"n": 1}))
    RedisStore(raw).put(("a", "b"), "k", {"v": 1})
    cache: BaseCache[Any] = RedisCache(raw)
    cache.set({(("a",), "k"): (1, None)})
    raw.set("foreign", "x" * 100_000)
    source = Source(saver)
    found = {(part.prefix, part.kind): part for part in health.parts(health.Answers(saver), source, lambda: False)}
    assert set(found) == {
        *(("langgraph", kind) for kind in ("threads", "store", "cache")),
        ("p:store", "threads"),
        ("", "other"),
    }
    threads = found["langgraph", "threads"]
    exact = sum(raw.memory_usage(key) for key in raw.scan_iter("langgraph:{*}:*"))
    assert threads.keys == 200 and threads.memory is not None and abs(threads.memory - exact) < exact / 2
    assert found["", "other"].memory == raw.memory_usage("foreign")
    server.stop()


async def test_hostile_names_are_escaped() -> None:
    saver = embedded()
    for name in HOSTILE:
        await put(Uniform(saver), config(name), {"n": "x" * 1000})
    saver._driver.client.set(b"<img src=x>\xff:{a}:data", "x")
    with saver.own(HOSTILE[0], by=HOSTILE[1], run_id=HOSTILE[1]):
        orphan(saver, HOSTILE[0])
        async with browser(saver) as client:
            for url in ("/server", "/?state=orphaned"):
                text = (await client.get(url)).text
                check_markup(text)
                assert "&lt;img src=x onerror=alert(1)&gt;" in text and not [one for one in links(text) if "<" in one]


# -- pictures


async def test_a_picture_shows_each_checkpoint_and_escapes_all_names() -> None:
    saver = embedded()
    make_thread(saver, "waits")
    entries = Source(saver).entries("waits", None, None, 100, cold=False)
    root = ElementTree.fromstring(picture.svg("waits", turns(entries)))
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert texts[0] == f"thread waits, {len(entries)} checkpoints, newest first"
    assert {"plan", "tool", "research", "research: ask", "-1", *(entry.id for entry in entries)} <= {*texts}
    circles = [one.attrib["class"].split() for one in root.iter(f"{SVG}circle")]
    assert len(circles) == len(entries) and len({lane for lane, *_ in circles}) > 1
    waits = sum(text is not None and text.startswith("waits: ") for text in texts)
    assert sum("interrupted" in one for one in circles) == waits > 0

    for name in HOSTILE:
        metadata: Any = {"source": name, "step": 1, "parents": {}}
        await put(Uniform(saver), config("t", name), {name: 1}, checkpoint_id=name or "-", metadata=metadata)
    drawing = picture.svg(HOSTILE[0], turns(Source(saver).entries("t", None, None, 100, cold=False)))
    root = ElementTree.fromstring(drawing)
    tags = {one.tag.removeprefix(SVG) for one in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "text", "line", "circle"}
    without_text = re.sub(r"<text.*?</text>", "", drawing)
    assert not re.search(r"url\(|href|import|on\w+=\"", without_text), "it needs no other file"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\ud800]", drawing)


async def test_a_picture_shows_failures_in_red(place_of_failures: RedisSaver) -> None:
    for thread, why in (("fails", "bot failed: "), ("tools", "tool find failed: ")):
        entries = Source(place_of_failures).entries(thread, None, None, 100, cold=False, longest=PREVIEWED)
        root = ElementTree.fromstring(picture.svg(thread, turns(entries)))
        red = [one for one in root.iter(f"{SVG}circle") if "failed" in one.attrib["class"].split()]
        said = [one.text for one in root.iter(f"{SVG}text") if (one.text or "").startswith(why)]
        assert len(red) == len(said) == 1, thread
        style = next(root.iter(f"{SVG}style")).text
        assert style and "circle.failed { stroke: var(--bad); }" in style


@pytest.fixture
def place_of_failures() -> RedisSaver:
    """Return a saver with a task that failed (`fails`), and with a tool that gave an error (`tools`)."""
    saver = embedded()
    make_failed(saver, "fails")
    failed = ToolMessage("it is locked", name="find", tool_call_id="c", status="error")
    builder = StateGraph(MessagesState).add_node("tools", lambda _: {"messages": [failed]}).add_edge(START, "tools")
    called = AIMessage("", tool_calls=[{"name": "find", "args": {}, "id": "c"}])
    builder.compile(checkpointer=saver).invoke({"messages": [called]}, config("tools"))
    return saver


def test_tree_writes_a_new_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, target = Server(), tmp_path / "tree.svg"
    make_thread(writer(server.url), "waits")
    words = ["tree", "waits", "--redis", server.url, "--svg", str(target)]
    assert main([*words, "--limit", "3"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{target}: 3 checkpoints\n" and "--limit reads more" in told.err
    first = target.read_text(encoding="utf-8")
    assert first.count("<circle") == 3 and not target.stat().st_mode & 0o077, "it quotes what was said"
    assert main(words) == 2 and target.read_text(encoding="utf-8") == first, "it overwrites no file"
    assert "it exists already" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "missing" / "tree.svg")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    server.stop()
