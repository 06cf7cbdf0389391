"""Queries of `DeltaChannel`s. Between two snapshots no value is stored, and each result says so."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from tests.support.factories import config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict
from tests.support.talking import joined
from tests.support.uniform import Uniform, called

from redis_saver import VersionInfo


_messages: Any = DeltaChannel(joined, snapshot_frequency=4)


class State(TypedDict):
    messages: Annotated[list[Any], _messages]
    count: int


def model(state: State) -> Any:
    return {"messages": [AIMessage("answer", id=f"a{len(state['messages'])}")], "count": len(state["messages"])}


async def chat(uniform: Uniform, turns: int) -> list[Any]:
    """The states of a chat, newest first."""
    graph: Any = StateGraph(State).add_node(model).add_edge(START, "model").compile(checkpointer=uniform.saver)
    for turn in range(turns):
        given = {"messages": [HumanMessage("question", id=f"h{turn}")]}
        await called(uniform, graph, "invoke", given, config())
    if uniform.native_async:
        return [one async for one in graph.aget_state_history(config())]
    return list(graph.get_state_history(config()))


async def test_each_result_says_which_values_are_not_stored(saver: Uniform) -> None:
    states = await chat(saver, 5)
    tuples = await saver.list(config())
    stored = {one.checkpoint["id"]: "messages" in one.checkpoint["channel_values"] for one in tuples}
    assert {*stored.values()} == {True, False}
    by_id = {one.config["configurable"]["checkpoint_id"]: one for one in states}

    first, *others = list(stored)[::-1]
    pairs = [(one, other) for one in (first, *others) for other in others]
    for one, other in pairs:
        found = await saver.diff("thread", one, other)
        values = [by_id[each].values.get("messages", []) for each in (one, other)]
        named = [channel.channel for channel in found.channels]
        if stored[one] and stored[other]:
            assert found.not_compared == () and ("messages" in named) == (values[0] != values[1])
            changes = [change for one in found.channels if one.channel == "messages" for change in one.changes]
            assert all(isinstance(change.path[0], str) for change in changes), "snapshots are compared by message"
        else:
            assert "messages" not in named, "the channel is in both checkpoints"
            assert found.not_compared == (("messages",) if values[0] != values[1] else ()), (one, other)

    (newest,) = await saver.latest_values("messages", thread_prefix="")
    assert (newest.stored, newest.value, newest.bytes) == (False, None, 0)
    assert newest.checkpoint_id == states[0].config["configurable"]["checkpoint_id"]
    assert [one.stored for one in await saver.latest_values("count", thread_prefix="")] == [True]
    assert await saver.latest_values("branch:to:model", thread_prefix="") == [], "the channel was emptied"


async def test_a_snapshot_is_returned_with_its_value(saver: Uniform) -> None:
    for turns in range(1, 5):
        states = await chat(saver, 1)
        (newest,) = await saver.latest_values("messages", thread_ids=["thread"])
        assert newest.stored == (turns % 2 == 0)
        assert newest.value == (states[0].values["messages"] if newest.stored else None)
    assert newest.stored and len(newest.value) == 8 and newest.bytes > 100


@pytest.mark.parametrize("target_name", ["redis"])
async def test_writes_since_a_snapshot_are_listed(saver: Uniform) -> None:
    states = await chat(saver, 5)
    versions: list[VersionInfo] = await saver.channel_history("thread", "messages")
    assert len(versions) >= 10 and {one.bytes > 0 for one in versions} == {True, False}
    for one in versions:
        assert one.writes and all(write.task_id and write.bytes for write in one.writes), "by task and size"
    assert {write.node for one in versions for write in one.writes} >= {"model"}
    told = [one for one in await saver.writes("thread") if one.channel == "messages"]
    assert len(told) == len(states[0].values["messages"])
