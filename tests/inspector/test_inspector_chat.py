"""The checkpoint page: the chat, its Markdown, tokens, JSON, children, and the lines of Python."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from tests.support.factories import chain, config, put
from tests.support.inspecting import SECRET, browser, check_markup, embedded, Longest, links, make_thread, opened
from tests.support.inspecting import talking
from tests.support.wrappers import requests_of
from tests.support.uniform import Target, Uniform

from redis_saver import RedisSaver
from redis_saver._inspector import checkpoint_pages, values
from redis_saver._inspector.pages import markdown
from redis_saver.encryption import Encryption, Keyset

PAYLOADS = (
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "[click](https://evil.example/)",
    "![pixel](https://evil.example/p.png)",
    "<https://evil.example/>",
    '```js" onload="alert(1)\ncode\n```',
    "[ref]\n\n[ref]: javascript:alert(1)",
    "&#x202e;gnp.exe &lt;b&gt;",
    "# head\n\n> quote\n\n- `<b>`\n\n<b onclick=alert(1)>x</b>",
)


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_markdown_of_messages_is_harmless(payload: str) -> None:
    saver = embedded()
    call = {"name": payload, "args": {payload: payload}, "id": payload}
    said = [HumanMessage(payload, name=payload), AIMessage(payload, tool_calls=[call])]
    await put(Uniform(saver), config("t"), {"messages": [*said, ToolMessage(payload, tool_call_id="c")]})
    text = await opened(saver, "/checkpoint?thread=t")
    assert not re.search(r'(?:href|src)="[^"]*(?:evil|javascript)', text) and "\u202e" not in text
    assert "evil.example" in text or "evil" not in payload, "nothing is hidden"


def test_markdown_shows_lists_and_code() -> None:
    assert markdown("**a**\n\n- b\n\n```\nc <d>\n```\n\n# e") == (
        "<p><strong>a</strong></p>\n<ul>\n<li>b</li>\n</ul>\n<pre><code>c &lt;d&gt;\n</code></pre>\n<h4>e</h4>\n"
    )


async def test_a_page_renders_a_limited_number_of_characters() -> None:
    saver = embedded()
    await put(Uniform(saver), config("t"), {"messages": [AIMessage(f"**{at}** " * 1000) for at in range(20)]})
    text = await opened(saver, "/checkpoint?thread=t")
    assert text.count('class="markdown"') == values.MARKDOWN // 6000 and text.count('<p class="text"') == 14


async def test_a_failed_tool_is_red_on_every_page() -> None:
    saver, call = embedded(), {"name": "find", "args": {}, "id": "c"}
    builder = StateGraph(MessagesState).add_node("tools", lambda _: {"messages": [failed]}).add_edge(START, "tools")
    failed = ToolMessage("it is locked", name="find", tool_call_id="c", status="error")
    graph = builder.compile(checkpointer=saver)
    for thread in ("t", "other"):
        graph.invoke({"messages": [AIMessage("", tool_calls=[call])]}, config(thread))
        failed = ToolMessage("it is **there**", tool_call_id="c")
    async with browser(saver) as client:
        pages = {page: (await client.get(page)).text for page in ("/", "/thread?id=t", "/checkpoint?thread=t")}
        found = [(await client.get(f"/thread?id={name}&failed=yes")).text for name in ("t", "other")]
        parent = re.search(r'href="([^"]+)">Parent<', pages["/checkpoint?thread=t"])
        pages["before"] = (await client.get(unescape(parent[1]))).text if parent else ""
    red = '<span class="badge tool failed">tool failed</span>'
    assert 'class="line badge tool failed" dir="auto">tool find failed: it is locked' in pages["/"]
    assert "tool: it is there" in pages["/"], "the list shows no marks of Markdown"
    assert red in pages["/thread?id=t"] and "said tool failed" in pages["/checkpoint?thread=t"]
    assert red in pages["before"]
    assert "tool find failed" in found[0] and "Not found in the newest 3 checkpoints" in found[1]


async def test_messages_are_shown_however_they_are_written() -> None:
    saver = embedded()
    written = [("user", "first"), {"role": "assistant", "content": "second"}, HumanMessage("third")]
    await put(Uniform(saver), config("t"), {"input": written, "labels": ["user", "ai", "tool"], "role": {"role": "ai"}})
    text = await opened(saver, "/checkpoint?thread=t")
    said = re.findall(r'<li class="said (\w+)">.*?<p>(\w+)</p>', text, re.DOTALL)
    assert said == [("human", "first"), ("ai", "second"), ("human", "third")]


async def test_channels_of_langgraph_itself_are_folded() -> None:
    saver, builder = embedded(), StateGraph(MessagesState)
    builder.add_node("one", lambda _: {"messages": "a text"}).add_node("two", lambda _: {"messages": []})
    graph = builder.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver, interrupt_after=["one"])
    graph.invoke({"messages": "hello"}, config("t"))
    async with browser(saver) as client:
        every = (await client.get("/checkpoint?thread=t")).text
        parent = re.search(r'href="([^"]+)">Parent<', every)
        before = (await client.get(unescape(parent[1]))).text if parent else ""
        few, more = [(await client.get(f"/writes?thread=t{own}")).text for own in ("", "&own=yes")]
        tree = (await client.get("/thread?id=t")).text
        first = (await client.get(re.findall(r'href="(/checkpoint[^"]+)"', unescape(tree))[-1])).text
        child = re.search(r'href="([^"]+)"[^>]*>Child<', first)
        diff = re.search(
            r'href="([^"]+)">Diff to parent<', (await client.get(unescape(child[1]))).text if child else ""
        )
        differences = (await client.get(unescape(diff[1]))).text if diff else ""
    folded = re.compile(
        r"<details class=\"fold\"><summary>LangGraph's own channels</summary>(.*?)</details>", re.DOTALL
    )
    for text, its_own in ((every, "branch:to:two"), (before, "branch:to:two")):
        assert any(its_own in part for part in folded.findall(text))
        assert its_own not in folded.sub("", text).partition('id="cost"')[0] and "messages" in folded.sub("", text)
    (of_diff,) = folded.findall(differences)
    assert "__start__" in of_diff and "messages" in folded.sub("", differences)
    assert "branch:to:two" not in few and "branch:to:two" in more
    assert "writes to LangGraph's own channels are left out" in few and "left out" not in more
    assert "human: a text" in tree, "the reducer makes a text a message of a human"


async def test_no_fold_hides_an_input_or_the_argument_of_a_send() -> None:
    """A function's input and a `Send`'s argument are nowhere else."""
    saver = embedded()
    entrypoint(checkpointer=saver)(lambda given: interrupt("more?")).invoke({"given": "an input"}, config("f"))
    builder = StateGraph(MessagesState).add_node("each", lambda _: {"messages": [("ai", "done")]})
    builder.add_node("plan", lambda _: {}).add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("each", {"about": "an argument"})])
    builder.compile(checkpointer=saver, interrupt_before=["each"]).invoke({"messages": "hello"}, config("s"))
    pages = await opened(saver, "/checkpoint?thread=f", "/checkpoint?thread=s", "/writes?thread=s")
    for page, text in zip(pages, ("an input", "an argument", "__pregel_tasks"), strict=True):
        assert text in re.sub(r'<details class="fold">.*?</details>', "", page, flags=re.DOTALL)


def ask(saver: RedisSaver, question: Any, thread: str = "t", **options: Any) -> Any:
    """Run a graph that waits for an answer; return it."""
    graph = StateGraph(MessagesState).add_node("ask", lambda _: {"messages": [interrupt(question, **options)]})
    compiled = graph.add_edge(START, "ask").compile(checkpointer=saver)
    compiled.invoke({"messages": []}, config(thread))
    return compiled


async def test_a_question_reads_as_its_text() -> None:
    saver = embedded()
    ask(saver, {"question": "refund?"})
    text = await opened(saver, "/checkpoint?thread=t")
    shown = re.search(r"Waits for an answer.*?</div>\n", text, re.DOTALL)
    assert shown and "refund?" in shown[0] and "Interrupt" not in shown[0] and "list" not in shown[0]


async def test_a_question_shows_its_schema_apart() -> None:
    saver = embedded()
    ask(saver, "refund?", response_schema={"type": "object", "properties": {"amount": {"type": "number"}}})
    text = await opened(saver, "/checkpoint?thread=t")
    shown = re.search(r'<div class="notice interrupted">.*?<h2 id="state">', text, re.DOTALL)
    assert shown
    question, _, its_schema = shown[0].partition("schema")
    assert "refund?" in question and "amount" in its_schema and "amount" not in question


async def test_tokens_are_shown_by_message_and_channel() -> None:
    saver = embedded()
    usage: Any = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
    hostile = AIMessage("b", usage_metadata=usage)
    hostile.usage_metadata["total_tokens"] = "<b>"  # type: ignore[index,typeddict-item]
    said = [AIMessage("a", usage_metadata=usage), AIMessage("c", usage_metadata=usage), HumanMessage("d"), hostile]
    await put(Uniform(saver), config("t"), {"messages": said})
    text = await opened(saver, "/checkpoint?thread=t")
    assert text.count("1,200 tokens") == 2 and "2,400 tokens" in text and "<b> tokens" not in text


async def test_values_are_downloaded_as_json_without_what_is_masked() -> None:
    saver = embedded()
    make_thread(saver, "t")
    async with browser(saver, mask=["password", "token"]) as client:
        text = (await client.get("/checkpoint?thread=t&ns=")).text
        found = [one for one in links(text) if one.startswith("/json?")]
        assert len(found) > 3
        for url in found:
            answer = await client.get(url)
            assert answer.headers["content-type"] == "application/json"
            assert SECRET not in answer.text and "<" not in answer.text
            answer.json()
        whole = (await client.get(found[0])).json()
        assert whole["channels"]["messages"][0]["content"] == "What is the weather?"
        assert whole["channels"]["facts"]["password"] == "masked" and whole["thread_id"] == "t"
        (message,) = {one for one in found if "at=0" in one.split("&")}
        assert (await client.get(message)).json()["content"] == "What is the weather?"


@pytest.mark.parametrize(("asked", "shown", "folded"), [(30, 30, 0), (95, 90, 5), (2, 50, 0)])
async def test_a_checkpoint_shows_the_newest_turn(asked: int, shown: int, folded: int) -> None:
    """Messages before it are folded, or on another page."""
    saver = embedded()
    chat = [HumanMessage(f"said-{at}.") if at == asked else AIMessage(f"said-{at}.") for at in range(100)]
    await put(Uniform(saver), config("t"), {"messages": chat})
    async with browser(saver) as client:
        text = (await client.get("/checkpoint?thread=t")).text
        found = [int(at) for at in re.findall(r"<p>said-(\d+)\.</p>", text)]
        first = max(shown, 50)
        assert found == list(range(first, 100)) and f"{first} earlier messages" in text
        assert (f"{folded} messages before this turn" in text) is bool(folded)
        (earlier,) = [one for one in links(text) if "&first=" in one]
        text = (await client.get(earlier)).text
        assert f"said-{first - 1}." in text and f"said-{first - 50}." in text


async def test_values_that_json_lacks_become_texts() -> None:
    saver = embedded()
    strange = {"nan": float("nan"), "bytes": b"\0\1", "set": {1}, 5: "key", "deep": [[[{}]]], "text": "</script>"}
    await put(Uniform(saver), config("t"), {"n": strange})
    async with browser(saver) as client:
        got = json.loads((await client.get("/json?thread=t&channel=n")).text)
    shown = {"nan": "nan", "bytes": "2 bytes: 00 01", "set": [1], "5": "key"}
    assert got == {**shown, "deep": [[[{}]]], "text": "</script>"}


async def test_a_checkpoint_links_to_all_its_children_nearby() -> None:
    saver = embedded()
    made = await chain(Uniform(saver), "t", 200)
    old = made[100]["configurable"]["checkpoint_id"]
    fork = await put(Uniform(saver), made[199] | {}, {"n": 1}, versions={"n": "f1"})
    other = await put(Uniform(saver), made[199], {"n": 2}, versions={"n": "f2"})

    calls = requests_of(saver)
    async with browser(saver) as client:
        text = (await client.get(f"/checkpoint?thread=t&ns=&id={old}")).text
        assert made[101]["configurable"]["checkpoint_id"] in re.findall(r'title="([^"]*)">Child</a>', text)
        assert len(calls) == 4, "the sizes, the checkpoint, and two for the children"
        newest = made[199]["configurable"]["checkpoint_id"]
        text = (await client.get(f"/checkpoint?thread=t&ns=&id={newest}")).text
        found = set(re.findall(r'title="([^"]*)">Child \d</a>', text))
        assert found == {one["configurable"]["checkpoint_id"] for one in (fork, other)}


@pytest.mark.parametrize(
    "settings", [{}, {"compression": "zstd"}, {"encryption": Encryption(Keyset({"k": bytes(32)}))}]
)
@pytest.mark.parametrize("parts", [1, 60])
async def test_pages_read_no_large_values(
    monkeypatch: pytest.MonkeyPatch, target: Target, settings: Any, parts: int
) -> None:
    """They show the other values, and a download has all."""
    monkeypatch.setattr(checkpoint_pages, "LARGE", 50_000)
    uniform = target.uniform(**settings)
    texts = [f"{at:05}{'x' * (60_000 // parts)}" for at in range(parts)]
    where = await put(uniform, config("t"), {"big": texts, "small": ["question"], "bytes": b"b" * 20_000})
    await uniform.put_writes(where, [("small", "short"), ("big", "w" * 17_000)], "task")
    id_ = where["configurable"]["checkpoint_id"]

    longest = Longest(uniform.saver)
    async with browser(uniform.saver) as client:
        text = (await client.get("/checkpoint?thread=t")).text
        check_markup(text)
        assert "question" in text and "short" in text and "20,000 bytes: 62" in text
        assert "Too large for a page" in text and "00000x" not in text and longest.bytes < 30_000
        of_this = f"thread=t&ns=&id={id_}"
        text = (await client.get(f"/value?{of_this}&channel=small")).text
        assert "question" in text and longest.bytes < 30_000
        diff = f"a=thread%3Dt%26id%3D{id_}"
        for url in (f"/diff?{diff}&b={diff[2:]}", f"/value?{of_this}&channel=big"):
            text = (await client.get(url)).text
            check_markup(text)
            assert "Large values" in text and longest.bytes < 30_000, url
        (download,) = [one for one in links(text) if one.startswith("/json?")]
        assert json.loads((await client.get(download)).text) == texts
        whole = json.loads((await client.get(f"/json?{of_this}")).text)
        assert whole["channels"]["big"] == texts and len(whole["pending_writes"]) == 2


async def test_pages_read_no_long_histories(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    """A DeltaChannel is read as its last snapshot and the writes since, if both are short."""
    monkeypatch.setattr(checkpoint_pages, "LARGE", 50_000)
    saver, large = target.blocking(), set[bool]()
    talk = talking(saver)
    for said in ("x" * 60_000, "again", "and again"):
        talk.invoke({"messages": [HumanMessage(said)]}, config("t"))

    longest = Longest(saver)
    ids = [one.config["configurable"]["checkpoint_id"] for one in saver.list(config("t"))]
    async with browser(saver) as client:
        for one, other in zip(ids, ids[1:], strict=False):
            longest.bytes = 0
            text = (await client.get(f"/checkpoint?thread=t&ns=&id={one}")).text
            check_markup(text)
            large.add("Too large for a page" in text)
            assert "xxxxx" not in text and longest.bytes < 40_000
            a, b = (f"thread%3Dt%26id%3D{each}" for each in (one, other))
            text = (await client.get(f"/diff?a={a}&b={b}")).text
            check_markup(text)
            assert "x" * 2_000 not in text and longest.bytes < 40_000
    assert True in large


async def test_the_page_has_the_lines_that_resume() -> None:
    saver = embedded()
    compiled = ask(saver, "May I?", "a'</pre>")
    text = await opened(saver, "/checkpoint?thread=a'%3C/pre%3E")
    (code,) = re.findall(r'<pre class="code" tabindex="0">(.*?)</pre>', text, re.DOTALL)
    lines = unescape(code).splitlines()
    scope = {"graph": compiled, "Command": Command}
    exec(lines[0], scope)
    exec(lines[1], scope)
    (said,) = compiled.get_state(config("a'</pre>")).values["messages"]
    assert said.content == "yes" and lines[3].startswith("new = graph.update_state(config, ")
    assert "as_node='ask'" in lines[3] and lines[4] == "graph.invoke(None, new)"


async def test_a_checkpoint_of_a_subgraph_leads_to_its_caller() -> None:
    """Only the caller can be resumed."""
    saver = embedded()
    make_thread(saver, "t")
    inner = next(one for one in saver.list(config("t", None)) if one.config["configurable"]["checkpoint_ns"])
    caller = inner.metadata["parents"][""]
    async with browser(saver) as client:
        ns = inner.config["configurable"]["checkpoint_ns"]
        text = (await client.get("/checkpoint", params={"thread": "t", "ns": ns})).text
        (link,) = re.findall(r'<a href="([^"]*)">its caller</a>', text)
        assert 'class="code"' not in text and caller in link
        root = (await client.get(link.replace("&amp;", "&"))).text
        assert 'class="code"' in root and "its caller" not in root
