"""Copies of threads over two tiers keep the order of pending writes."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Annotated, Any

import psycopg
import pytest
from tests.support.factories import checkpoint, config
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from tests.support.tiering import BEHIND, Tiers, drained, written
from typing_extensions import TypedDict

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


def extend(state: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *(word for one in writes for word in one)]


class State(TypedDict):
    seen: Annotated[list[str], DeltaChannel(extend)]
    """Rebuilt from pending writes in their order."""


def fan_out() -> Any:
    """Build a graph with three parallel nodes. The first interrupts."""
    builder = StateGraph(State)

    def waits(_: State) -> Any:
        interrupt("go on?")
        return {"seen": ["a"]}

    builder.add_node("in", lambda _: {"seen": ["in"]})
    builder.add_node("a", waits)
    for name in ("b", "c", "end"):
        builder.add_node(name, lambda _, name=name: {"seen": [name]})  # type: ignore[misc]
    builder.add_edge(START, "in")
    for name in ("a", "b", "c"):
        builder.add_edge("in", name)
        builder.add_edge(name, "end")
    builder.add_edge("end", END)
    return builder


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
@pytest.mark.parametrize("is_evicted", [False, True])
@pytest.mark.parametrize("kind", ["postgres", "memory"])
async def test_a_copy_of_an_interrupted_superstep_resumes_in_order(
    tiers: Tiers, mode: str, is_evicted: bool, kind: str
) -> None:
    if kind == "memory" and is_evicted:
        pytest.skip("InMemorySaver does not tell the paths, and hot has forgotten them")
    cold = InMemorySaver() if kind == "memory" else None
    settings = BEHIND if mode == "write-behind" else {}
    uniform = await tiers.uniform(cold=cold, **settings)
    graph, source, copy = fan_out().compile(checkpointer=uniform.saver), config("source"), config("copy")
    await graph.ainvoke({"seen": []}, source)
    await uniform.flush()
    if is_evicted:
        tiers.evict(thread="source")
        await graph.aget_state(source)  # fills hot, without the paths
    await uniform.copy_thread("source", "copy")
    assert (await graph.ainvoke(Command(resume="yes"), copy))["seen"] == ["in", "a", "b", "c", "end"]
    assert (await graph.aget_state(copy)).values["seen"] == ["in", "a", "b", "c", "end"]
    await uniform.flush()
    tiers.evict(thread="copy")
    assert (await graph.aget_state(copy)).values["seen"] == ["in", "a", "b", "c", "end"]


@pytest.mark.parametrize("saver", [RedisSaver, AsyncRedisSaver, TieredSaver, AsyncTieredSaver])
def test_put_writes_declares_task_path(target_name: str, saver: Any) -> None:
    """LangGraph inspects the signature, and passes no paths without the parameter."""
    for method in (saver.put_writes, saver.aput_writes):
        assert "task_path" in signature(method).parameters


def paths(tiers: Tiers, thread: str) -> list[Any]:
    with psycopg.connect(tiers.url) as connection:
        query = (
            "SELECT checkpoint_id, task_id, idx, task_path FROM checkpoint_writes WHERE thread_id = %s ORDER BY 1, 2, 3"
        )
        return connection.execute(query, (thread,)).fetchall()


@pytest.mark.parametrize("settings", [{}, BEHIND, {**BEHIND, "cold_history": "latest"}])
async def test_a_copy_keeps_the_task_paths(tiers: Tiers, settings: Any) -> None:
    uniform = await tiers.uniform(**settings)
    made = await written(uniform)
    await uniform.put_writes(made[0], [("n", [1])], "task-z", "path-0")  # the checkpoint may be coalesced
    await uniform.copy_thread("thread", "copy")
    await drained(uniform)
    expected = {task: f"path-{number}" for number, task in enumerate(("task-c", "task-b", "task-a"))}
    expected["task-z"] = "path-0"
    assert {row[1]: row[3] for row in paths(tiers, "copy")} == expected


async def test_a_coalesced_checkpoint_reaches_cold_with_its_paths(tiers: Tiers) -> None:
    """A `DeltaChannel` needs all ancestors, so cold gets the checkpoints that it skipped."""
    uniform = await tiers.uniform(**BEHIND, cold_history="latest")
    made = await written(uniform)
    await uniform.put_writes(made[0], [("n", [1])], "task-z", "path-9")
    await uniform.put_writes(made[0], [("n", [2])], "task-y", "path-8")
    await drained(uniform)
    assert "task-z" not in {row[1] for row in paths(tiers, "thread")}
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    await uniform.put(made[-1], new, {"counters_since_delta_snapshot": {"log": (1, 1)}}, new["channel_versions"])
    await drained(uniform)
    found = {row[1]: row[3] for row in paths(tiers, "thread")}
    assert (found["task-z"], found["task-y"]) == ("path-9", "path-8")
