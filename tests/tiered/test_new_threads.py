"""`new_thread`: hot knows that cold has nothing of a new thread, so a conversation begins while cold is down."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command as Resume, StateSnapshot

from redis_saver import DecodeError, ThreadNotFound
from redis_saver._tiered import scripts, threads
from redis_saver.errors import LimitExceeded
from tests.support import attacking
from tests.support.factories import chain, config
from tests.support.talking import call_graph
from tests.support.tiering import BEHIND, DEAD, FlakySaver, Tiers, both_histories, both_modes, drained, keys_of, put_new
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, asked, requests_of, script_of

pytestmark = pytest.mark.also_on(cluster="sync")


def seen(state: Any) -> Any:
    """Return a state without random ids. A history names the configs of subgraphs instead of their states."""
    tasks = [(one.name, [each.value for each in one.interrupts]) for one in state.tasks]
    inside = [seen(one.state) for one in state.tasks if isinstance(one.state, StateSnapshot)]
    return state.values, state.next, state.metadata and state.metadata["step"], tasks, inside


class Conversation:
    """A graph with a `DeltaChannel`, a subgraph and interrupts, over a saver, and the same over LangGraph's in memory."""

    def __init__(self, thread: str) -> None:
        self.where, self.model = config(thread, None), attacking.graph(InMemorySaver())

    async def state(self, graph: Any) -> Any:
        return seen(await call_graph(graph, "get_state", self.where, subgraphs=True))

    async def history(self, graph: Any) -> list[Any]:
        return list(map(seen, await call_graph(graph, "get_state_history", self.where)))

    async def turn(self, saver: Any, number: int) -> None:
        graph = attacking.graph(saver)
        for given in ({"log": [f"turn {number}"], "turn": number, "long": [], "done": []}, Resume(resume="yes")):
            for each in (graph, self.model):
                await call_graph(each, "invoke", given, self.where)
            assert await self.state(graph) == await self.state(self.model)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="interrupt() in asyncio tasks needs Python 3.11, says LangGraph")
@pytest.mark.encrypted_too
@both_histories
async def test_a_conversation_begins_and_goes_on_without_cold(tiers: Tiers, behind: dict[str, Any]) -> None:
    first, second = [await tiers.uniform(cold=await tiers.dead_cold(), **behind) for _ in range(2)]
    thread = await first.new_thread()
    talk = Conversation(thread)
    assert await second.get_tuple(talk.where) is None, "another process knows it, too"
    for number, uniform in enumerate((second, first, second)):
        await talk.turn(uniform.saver, number)
    assert await talk.history(attacking.graph(second.saver)) == (wanted := await talk.history(talk.model))
    found = await first.get_thread(thread)
    assert (found.in_cold, found.tier, found.interrupted) == (None, "hot", False)
    assert found.lacking > 0

    back = await tiers.uniform(**behind)
    await drained(back)
    graph = attacking.graph(back.saver)
    assert await talk.history(graph) == wanted, "hot has it all"
    tiers.evict(thread=thread)
    assert await talk.state(graph) == await talk.state(talk.model)
    if behind is BEHIND:
        assert await talk.history(graph) == wanted
        await talk.turn(back.saver, 3)


@both_modes
async def test_a_new_thread_is_a_mark_and_no_thread(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(hot={"ttl": "1h"}, cold=await tiers.dead_cold(), **mode)
    requests = requests_of(uniform.saver.hot)
    thread = await uniform.new_thread()
    assert [script_of(request) for request in requests] == [scripts.NEW_THREAD]
    keys, raw, where = keys_of(tiers, thread), tiers.target.raw, config(thread)
    assert set(tiers.target.keys()) == {keys.lease, keys.flush}
    assert 0 < raw.pttl(keys.flush) <= 3600_000 < raw.pttl(keys.lease) <= threads.NEW_KEPT

    for one in (where, config(thread, "sub"), config(thread, "", "id")):
        assert await uniform.get_tuple(one) is None
        assert await uniform.list(one) == []
        history = await uniform.get_delta_channel_history(config=one, channels=["log"])
        assert dict(history) == {"log": {"writes": []}}
    assert await uniform.get_thread(thread) is None and await uniform.get_thread_ttl(thread) is None
    assert await Uniform(uniform.saver.hot).threads() == [] and await Uniform(uniform.saver.hot).list(None) == []
    for call in (uniform.pin, uniform.unpin, uniform.check):
        with pytest.raises(ThreadNotFound):
            await call(thread)
    await uniform.copy_thread(thread, "copy")
    assert set(tiers.target.keys()) == {keys.lease, keys.flush}, "reading changes nothing"


@both_modes
async def test_a_deletion_leaves_nothing_of_a_new_thread(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    thread = await uniform.new_thread()
    assert await uniform.threads() == [] and await uniform.list(None) == [], "it is not listed"
    await uniform.delete_thread(thread)
    assert not tiers.target.raw.exists(keys_of(tiers, thread).lease)
    await uniform.flush()
    left = {keys_of(tiers, thread).flush} if mode else set()  # for an hour, as after each deletion
    assert set(tiers.target.keys()) & {*keys_of(tiers, thread)} == left
    assert await uniform.get_tuple(config(thread)) is None and await uniform.get_thread(thread) is None


@both_modes
async def test_a_repeated_request_changes_nothing(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform, requests = await tiers.uniform(**mode), list[Any]()
    hot = Uniform(uniform.saver.hot)

    def twice(request: Any) -> Any:
        if script_of(request) is scripts.NEW_THREAD:
            requests.append(request)
            assert (yield request) == 1
        return (yield request)

    Around(uniform.saver.hot, twice)
    thread = await uniform.new_thread()
    (request,) = requests
    stored = await put_new(uniform, config(thread))
    assert await asked(hot, request) == 1
    assert not tiers.target.raw.exists(keys_of(tiers, thread).lease)
    await uniform.flush()
    tiers.evict(thread=thread)  # now only cold has it, and a mark would hide it
    assert await asked(hot, request) == 1
    assert (await uniform.get_tuple(config(thread))).config == stored
    await uniform.delete_thread(thread)
    await uniform.flush()
    assert await uniform.get_tuple(config(thread)) is None


async def test_a_name_that_is_taken_is_made_anew(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = await tiers.uniform(**BEHIND)
    made = ["marked", "written", "free"]
    await put_new(uniform, config("written"))
    monkeypatch.setattr(threads.names, "new_thread", lambda: made[0])
    assert await uniform.new_thread() == "marked"
    monkeypatch.setattr(threads.names, "new_thread", lambda: made.pop(0))
    assert await uniform.new_thread() == "free"
    monkeypatch.setattr(threads.names, "new_thread", lambda: "written")
    with pytest.raises(DecodeError):  # a call ends, whatever the server answers
        await uniform.new_thread()


async def test_write_through_reads_nothing_of_a_new_thread_from_cold(tiers: Tiers) -> None:
    flaky = FlakySaver(await tiers.cold())
    writer, reader = await tiers.uniform(cold=flaky.wrap()), await tiers.uniform(cold=await tiers.dead_cold())
    thread = await writer.new_thread()
    assert await writer.get_tuple(config(thread)) is None
    await writer.put_writes(config(thread, "", "later"), [("n", 0)], "task")
    configs = await chain(writer, thread, 2)
    assert set(flaky.calls) == {"put", "put_writes"}
    assert tiers.target.raw.hget(keys_of(tiers, thread).data_key, "@complete") == b"1"
    assert (await reader.get_tuple(config(thread))).config == configs[-1]
    assert [saved.config for saved in await reader.list(config(thread))] == configs[::-1]


@both_modes
async def test_a_thread_asks_cold_if_its_mark_is_gone(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform, dead = await tiers.uniform(**mode), await tiers.uniform(cold=await tiers.dead_cold(), **mode)
    thread = await dead.new_thread({"configurable": {"thread_ttl": "2h", "thread_id": "of its parent"}})
    lease = keys_of(tiers, thread).lease
    assert 0 < tiers.target.raw.pttl(lease) <= 2 * 3600_000
    tiers.target.raw.delete(lease)
    with pytest.raises(DEAD):
        await dead.get_tuple(config(thread))
    assert await uniform.get_tuple(config(thread)) is None
    stored = await put_new(uniform, config(thread))
    assert (await dead.get_tuple(config(thread))).config == stored


async def test_a_rollback_of_a_new_thread_needs_no_cold(tiers: Tiers) -> None:
    dead = await tiers.uniform(cold=await tiers.dead_cold(), **BEHIND)
    thread = await dead.new_thread()
    async with dead.own(thread, run_id="run"), dead.own(thread, on_busy="rollback"):
        pass
    assert await dead.get_tuple(config(thread)) is None, "it is still new"


async def test_a_write_that_may_have_reached_cold_ends_the_mark(tiers: Tiers) -> None:
    dead = await tiers.uniform(cold=await tiers.dead_cold())
    thread = await dead.new_thread()
    for write in (put_new(dead, config(thread)), dead.get_tuple(config(thread))):
        with pytest.raises(DEAD):
            await write


async def test_a_thread_that_began_without_the_tiers_is_not_new(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    thread = await uniform.new_thread()
    stored = await put_new(Uniform(uniform.saver.hot), config(thread))
    assert [saved.config for saved in await uniform.list(config(thread))] == [stored], "it is enrolled"
    tiers.evict(thread=thread)
    assert (await uniform.get_tuple(config(thread))).config == stored


@pytest.mark.plain("names are not encrypted")
async def test_without_tiers_it_is_only_a_name(target: Target) -> None:
    saver = target.uniform()
    made = [await saver.new_thread() for _ in range(100)]
    assert made == sorted(made) and len(set(made)) == 100
    assert {UUID(name).version for name in made} == {6}
    assert await saver.new_thread({"tags": ["no configurable"]}) > made[-1]
    assert saver.saver.stats().round_trips == 0 and target.keys() == []
    for wrong in ({"configurable": {"thread_ttl": "soon"}}, {"configurable": 1}, "thread"):
        with pytest.raises((TypeError, ValueError)):
            await saver.new_thread(wrong)


@pytest.mark.plain("names are not encrypted")
async def test_a_name_begins_with_a_prefix(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    for saver in (uniform, Uniform(uniform.saver.hot)):
        made = [await saver.new_thread(prefix="acme:é*{") for _ in range(2)]
        assert made == sorted(made) and all(name.startswith("acme:é*{") and UUID(name[8:]) for name in made)
        before = tiers.target.keys()
        with pytest.raises(LimitExceeded, match="a thread that begins with"):
            await saver.new_thread(prefix="x" * 16_384)
        assert tiers.target.keys() == before
    await put_new(uniform, config(made[0]))
    assert [info.thread_id for info in await uniform.threads(thread_prefix="acme:")] == made[:1]
