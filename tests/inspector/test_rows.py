"""The rows of a thread that the tree command, the inspector and the demo show: turns, previews, questions."""

from __future__ import annotations

import asyncio
import random
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

import fakeredis
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from redis_saver import RedisSaver, TieredSaver
from redis_saver._checkpoint import auditing
from redis_saver._common.config import address
from redis_saver._common.times import id_at
from redis_saver._inspector import thread_pages
from redis_saver._inspector.rows import PREVIEWED, TreeRow, page_of, text_tree, turns
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import ago, hiding
from tests.support.factories import chain, checkpoint, config, put
from tests.support.inspecting import SECRET, browser, check_markup, embedded, links, make_failed, make_thread, writer
from tests.support.uniform import Target, Uniform, encryption
from tests.support.wrappers import Around, requests_of

USAGE: Any = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}


def calls(state: Any) -> dict[str, Any]:
    call = {"name": "cancel", "args": {"order": "4711", "token": SECRET}, "id": "c"}
    return {"messages": [AIMessage("Let me see.", tool_calls=[call], usage_metadata=USAGE)]}


def page(**arguments: Any) -> str:
    return f"/thread?{urlencode(arguments)}"


def agent(saver: Any) -> Any:
    def asks(state: Any) -> dict[str, Any]:
        answer = interrupt({"question": "May I?"})
        return {"messages": [ToolMessage(f"the human said {answer}", tool_call_id="c")]}

    graph = StateGraph(MessagesState).add_node("model", calls).add_node("tool", asks).add_edge(START, "model")
    return graph.add_edge("model", "tool").compile(checkpointer=saver)


def rows_of(saver: Any, thread: str, hides: Any = lambda _: False, **options: Any) -> list[TreeRow]:
    """Return the rows of a thread, oldest first."""
    entries = Source(saver).entries(thread, None, None, 1000, longest=PREVIEWED, **options)
    return [row for turn in reversed(turns(entries, hides)) for row in reversed(turn.rows)]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s ago"), (119, "119 s ago"), (543, "9 min ago"), (7199, "119 min ago"), (7200, "2 h ago"), (9e5, "10 days ago"),
    ],
)  # fmt: skip
def test_ages_are_told_as_people_say_them(seconds: float, said: str) -> None:
    assert ago(datetime.now(timezone.utc) - timedelta(seconds=seconds + 0.3)) == said


async def test_rows_tell_what_happened_in_turns(target: Target) -> None:
    """A resume belongs to the turn that asked."""
    saver, where = writer(target.url, target.prefix), config("t")
    graph = agent(saver)
    for said, answer in (("first", "yes"), ("second", "no"), ("third", None)):
        graph.invoke({"messages": [HumanMessage(f"the {said} question")]}, where)
        if answer:
            graph.invoke(Command(resume=answer), where)
    source = Source(target.uniform().saver)
    entries = await asyncio.to_thread(source.entries, "t", None, None, 100, longest=PREVIEWED)
    newest, middle, oldest = turns(entries)
    assert [turn.number for turn in (newest, middle, oldest)] == [-1, -2, -3]
    assert [turn.states for turn in (newest, middle, oldest)] == [["interrupted"], ["answered"], ["answered"]]
    assert all(turn.is_whole and turn.tokens == 120 for turn in (newest, middle, oldest))
    shown = [(list(row.ran), list(row.next), row.preview, row.notice) for row in reversed(middle.rows)]
    question = "ai: Let me see. calls cancel(order: 4711, token: hunter2)"
    assert shown == [
        ([], ["__start__"], "human: the second question", ""),
        (["__start__"], ["model"], "", ""),
        (["model"], ["tool"], question, "asked: question: May I?, answered: no"),
        (["tool"], [], "tool: the human said no", ""),
    ]
    assert newest.rows[0].notice == "waits: question: May I?"
    assert newest.answer == question and middle.answer == "tool: the human said no"
    written = {one.checkpoint_id: 0 for one in saver.writes("t")}
    for one in saver.writes("t"):
        if one.applied_in:
            written[one.applied_in[0]] = written.get(one.applied_in[0], 0) + (one.bytes or 0)
    ran_tool = middle.rows[0]
    assert ran_tool.bytes == written[ran_tool.entry.id] > 0
    assert ran_tool.has("SAID NO", lambda _: False) and not ran_tool.has("first", lambda _: False)


@pytest.mark.parametrize("answer", [None, "yes"])
@pytest.mark.parametrize("place", ["redis", "encrypted", "cold"])
def test_a_tool_that_failed_before_a_question_is_still_a_failure(answer: str | None, place: str) -> None:
    """The question is of the checkpoint that the tool made."""
    wrong = ToolMessage("it is **locked**", tool_call_id="1", name="find", status="error")
    hot, where = embedded(encryption=encryption() if place == "encrypted" else None), config("t")
    saver: Any = TieredSaver(hot, InMemorySaver()) if place == "cold" else hot
    graph = StateGraph(MessagesState).add_node("tools", lambda _: {"messages": [wrong]})
    graph.add_node("ask", lambda _: {"messages": [interrupt("Go on?")]}).add_edge(START, "tools").add_edge(
        "tools", "ask"
    )
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke({"messages": [HumanMessage("hi")]}, where)
    said, states = "waits: Go on?", ["interrupted", "tool failed"]
    if answer:
        compiled.invoke(Command(resume=answer), where)
        said, states = "asked: Go on?, answered: yes", ["tool failed"]
    if place == "cold":
        hot.delete_thread("t")
    (turn,) = turns(Source(saver).entries_of_both("t", None, None, 100, longest=PREVIEWED))
    (failed,) = [row for row in turn.rows if row.has_failed]
    assert failed.notice == f"tool find failed: it is **locked**, {said}"
    assert turn.states == states and turn.has_failed and failed.state == states[0]


async def test_the_answer_of_a_turn_is_the_last_that_was_said() -> None:
    """A node that says nothing may run last."""
    graph = StateGraph(MessagesState).add_node("model", calls).add_node("audit", lambda _: {}).add_edge(START, "model")
    saver = embedded()
    graph.add_edge("model", "audit").compile(checkpointer=saver).invoke({"messages": [HumanMessage("hi")]}, config("t"))
    (turn,) = turns(Source(saver).entries("t", None, None, 100, longest=PREVIEWED))
    assert not turn.rows[0].preview and turn.answer.startswith("ai: Let me see.")


async def test_previews_need_no_further_round_trip_and_read_no_long_value() -> None:
    saver, requests = embedded(), list[Any]()
    where = await put(Uniform(saver), config("t"), {"messages": []}, checkpoint_id="1")
    long = AIMessage(random.Random(1).randbytes(2_500_000).hex())
    await Uniform(saver).put_writes(where, [("messages", [long]), ("n", 1)], "task", "~__pregel_pull, bot")
    await put(Uniform(saver), where, {"messages": [long]}, versions={"messages": "2"}, checkpoint_id="2")

    def around(request: Any) -> Any:
        reply = yield request
        requests.append(reply)
        return reply

    Around(saver, around)
    (_, row) = rows_of(saver, "t")
    assert row.preview == "messages (5.01 MB)" and row.bytes > 5_000_000
    assert len(requests) == 1 and len(repr(requests)) < 100_000


def test_previews_of_an_encrypted_thread_are_read_with_its_key() -> None:
    saver, where = embedded(encryption=encryption()), config("t")
    agent(saver).invoke({"messages": [HumanMessage("a secret question")]}, where)
    rows = rows_of(saver, "t")
    assert rows[0].preview == "human: a secret question" and rows[-1].notice == "waits: question: May I?"
    assert rows[0].bytes > len("a secret question")


def test_the_nodes_of_sends_and_branches_of_a_fork_are_told_apart() -> None:
    saver, where = embedded(), config("t")
    graph = StateGraph(MessagesState).add_node("plan", lambda _: {}).add_edge(START, "plan")
    graph.add_node("work", lambda state: {"messages": [AIMessage(f"did {state['n']}", usage_metadata=USAGE)]})
    graph.add_conditional_edges("plan", lambda _: [Send("work", {"n": at}) for at in range(2)], ["work"])
    compiled = graph.compile(checkpointer=saver)
    compiled.invoke({"messages": [HumanMessage("go")]}, where)
    rows = rows_of(saver, "t")
    assert (list(rows[-1].ran), rows[-1].preview) == (["work"], "ai: did 1") and list(rows[-2].next) == ["work"]
    assert sum(rows[-1].tokens.values()) == 240, "messages without ids are told apart"
    planned = next(one for one in compiled.get_state_history(where) if one.next == ("work", "work"))
    compiled.update_state(planned.config, {"messages": [AIMessage("a human wrote")]}, as_node="plan")
    forked = rows_of(saver, "t")[-1]
    assert forked.entry.source == "update" and forked.preview == "messages changed"
    (turn,) = turns(Source(saver).entries("t", None, None, 100, longest=PREVIEWED))
    assert len({lane for lane, *_ in text_tree([turn])}) == 3, "a straight lane, then one for each branch"


def test_sends_that_have_not_run_are_next() -> None:
    """As in the copy of a thread up to the checkpoint before a tool call."""
    saver = embedded()
    graph = StateGraph(MessagesState).add_node("model", lambda _: {}).add_node("tools", lambda _: {})
    graph.add_conditional_edges("model", lambda _: [Send("tools", {}), Send("tools", {})], ["tools"])
    compiled = graph.add_edge(START, "model").compile(checkpointer=saver, interrupt_before=["tools"])
    compiled.invoke({"messages": []}, config("t"))
    assert rows_of(saver, "t")[-1].next == ["tools"] == list(dict.fromkeys(compiled.get_state(config("t")).next))
    compiled.invoke(None, config("t"))
    assert rows_of(saver, "t")[-1].next == []


def test_subgraphs_failures_and_masked_values() -> None:
    saver = embedded()
    make_thread(saver, "t")
    make_failed(saver, "fails")
    drawn = [(lane, row) for lane, _, row in text_tree(turns(Source(saver).entries("t", None, None, 100)))]
    assert {bool(row.entry.ns) for lane, row in drawn if "┊" in lane} == {True}
    assert [row.notice for row in rows_of(saver, "fails")][-1].startswith("bot failed: ValueError")
    for patterns, hidden, kept in (
        (["token", "password"], [SECRET], "search(q: <script>, token: masked)"),
        (["content", "args", "password"], [SECRET, "weather"], "ai: masked calls search(masked)"),
        (["messages", "__*"], ["weather", "May I"], "messages: masked"),
        (["*"], [SECRET, "weather", "May I"], "masked"),
    ):
        hides = hiding(patterns)
        rows = rows_of(saver, "t", hides)
        shown = " ".join(f"{row.preview} {row.notice}" for row in rows)
        assert not any(text in shown for text in hidden) and kept in shown, patterns
        assert not any(row.has(text, hides) for text in hidden for row in rows), patterns


def test_hostile_values_make_one_short_printable_line() -> None:
    saver = embedded()
    uniform = Uniform(saver)
    deep: Any = "end"
    for _ in range(200):
        deep = [deep]
    strange = {
        "lines": "a\nb\x1b[31m\u202e" + "z" * 3000, "deep": deep, "empty": [], "bytes": b"\0" * 3000,
        "wide": {f"k{at}": at for at in range(400)}, "number": 2**63,
    }  # fmt: skip

    async def fill() -> None:
        where = await put(uniform, config("t"), {}, checkpoint_id="1")
        await uniform.put_writes(where, list(strange.items()), "task", "~__pregel_pull, \x1bnode")
        await uniform.put_writes(where, [("__interrupt__", "\n" * 500 + "?")], "other", f"~__pregel_push, {'9' * 5000}")
        await put(uniform, where, {}, versions=dict.fromkeys(strange, "2"), checkpoint_id="2")

    asyncio.run(fill())
    for row in rows_of(saver, "t"):
        for text in (row.preview, row.notice):
            assert text.isprintable() and len(text) <= 201
    assert "lines: a ↵ b\\x1b[31m" in row.preview


def test_an_entrypoint_shows_what_it_returns() -> None:
    saver = embedded()

    @entrypoint(checkpointer=saver)
    def flow(number: int) -> dict[str, Any]:
        return {"sum": number + 1, "approved": interrupt("ok?")}

    flow.invoke(3, config("t"))
    flow.invoke(Command(resume="yes"), config("t"))
    first, last = rows_of(saver, "t")
    assert (list(first.next), first.notice) == (["__start__", "flow"], "asked: ok?, answered: yes")
    assert (list(last.ran), last.preview) == (["flow"], "returns: sum: 4, approved: yes")


async def test_pages_hold_whole_turns_and_a_search_finds_text() -> None:
    saver, where = embedded(), config("t")
    graph = agent(saver)
    for at in range(30):
        graph.invoke({"messages": [HumanMessage(f"question <{at}>")]}, where)
        graph.invoke(Command(resume="yes"), where)
    entries = Source(saver).entries("t", None, None, 1000, longest=PREVIEWED)
    got, older = page_of(entries[:51], 50)
    assert [turn.number for turn in got] == [*range(-1, -13, -1)]
    assert all(turn.is_whole for turn in got) and older == got[-1].first.entry.id
    async with browser(saver) as client:
        text = (await client.get("/thread?id=t")).text
        check_markup(text)
        assert text.count('<details class="turn"') == 25 and text.count('<details class="turn" open') == 1
        (more,) = [one for one in links(text) if "before=" in one]
        text = (await client.get(more)).text
        assert ">-26</b>" in text and ">-30</b>" in text and ">-25</b>" not in text
        found = (await client.get("/thread?in=id%3Dt&q=question+%3C7%3E")).text
        assert found.count('<details class="turn" open') == 1 == found.count('class="found"')
        assert "question &lt;7&gt;" in found and ">-23</b>" in found
        assert "Not found in the newest" in (await client.get("/thread?id=t&q=nothing+like+it")).text


async def test_forks_of_old_turns_stay_on_a_page() -> None:
    """A turn whose beginning is on an older page is shown as long as it has newer checkpoints than others."""
    saver = embedded()
    uniform = Uniform(saver)
    made = await chain(uniform, "t", 150)
    old = made[3]["configurable"]["checkpoint_id"]
    for at in range(3):
        await put(uniform, config("t", "", old), {"n": at}, versions={"n": f"f{at}"})
    seen, url = list[str](), "/thread?id=t"
    async with browser(saver) as client:
        while url:
            text = (await client.get(url)).text
            seen += [one.partition("&id=")[2] for one in links(text) if one.startswith("/checkpoint?thread=t&ns=&id=")]
            url = next((one for one in links(text) if "before=" in one), "")
    assert len(seen) == len(set(seen)) == 153


async def test_a_page_begins_at_a_time() -> None:
    """The ids that LangGraph makes are in the order of time."""
    saver = embedded()
    uniform = Uniform(saver)
    for day in range(20, 26):
        made = checkpoint({"n": day}, {"n": f"{day}"}, id_at(datetime(2026, 11, day, 12, tzinfo=timezone.utc)))
        await uniform.put(config("t"), made, {"source": "input", "step": 1, "parents": {}}, {"n": f"{day}"})
    async with browser(saver) as client:
        found = {}
        for until in ("", "2026-11-23T12:00", "2026-11-23T12:01", "2026-11-19"):
            text = (await client.get(page(id="t", until=until))).text
            check_markup(text)
            found[until] = len(re.findall("<summary>", text)), '<b class="number">' in text
        assert found == {
            "": (6, True),
            "2026-11-23T12:00": (3, False),
            "2026-11-23T12:01": (4, False),
            "2026-11-19": (0, False),
        }, "a turn has no number if newer ones were not counted"
        assert (await client.get(page(id="t", until="<b>"))).status_code == 400
    before, made, after = datetime.now(timezone.utc), str(uuid6()), datetime.now(timezone.utc) + timedelta(seconds=1)
    assert id_at(before) <= made < id_at(after)


async def test_agents_have_their_names_and_threads_their_tokens() -> None:
    saver = embedded()
    where: Any = {"source": "loop", "step": 1, "parents": {}, "lc_agent_name": "research <b>"}
    made = checkpoint({"n": 1}, {"n": "1"})
    await Uniform(saver).put(config("t", "main:1|tools:2"), made, where, {"n": "1"})
    assert [row.levels for row in rows_of(saver, "t")] == [["main", "research <b>"]]
    graph = agent(saver)
    for _ in range(2):
        graph.invoke({"messages": [HumanMessage("Cancel it.")]}, config("t"))
        graph.invoke(Command(resume="yes"), config("t"))
    async with browser(saver) as client:
        text = (await client.get(page(id="t"))).text
        check_markup(text)
        assert "research &lt;b&gt;" in text
        assert "<b>240 tokens</b>" in (await client.get("/cost?thread=t")).text


# -- costs, notices of changed threads, and the filter by owner


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
    calls = requests_of(saver.saver)
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


async def test_measuring_a_long_thread_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures at least one page, which takes one round trip. A link then measures the whole thread."""
    monkeypatch.setattr(thread_pages, "FIRST_SECONDS", 0)
    saver = embedded()
    await chain(Uniform(saver), "t", 4 * auditing.VERSIONS_PER_PAGE)
    calls = requests_of(saver)
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
        calls = requests_of(saver)
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
