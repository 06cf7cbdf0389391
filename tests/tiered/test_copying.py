"""Copies of threads over two tiers keep the order of pending writes."""

from __future__ import annotations

from inspect import signature
from typing import Annotated, Any

import pytest
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver
from tests.support.factories import config
from tests.support.talking import joined
from tests.support.tiering import BEHIND, LATEST, Tiers, both_modes, drained, put_new, written

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


class State(TypedDict):
    seen: Annotated[list[str], DeltaChannel(joined)]
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


@both_modes
@pytest.mark.parametrize(("kind", "is_evicted"), [("postgres", False), ("postgres", True), ("memory", False)])
async def test_a_copy_of_an_interrupted_superstep_resumes_in_order(
    tiers: Tiers, mode: dict[str, Any], is_evicted: bool, kind: str
) -> None:
    """But InMemorySaver does not tell the paths of what hot has lost."""
    uniform = await tiers.uniform(cold=InMemorySaver() if kind == "memory" else None, **mode)
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


def paths(tiers: Tiers, thread: str) -> dict[str, str]:
    """Return the path of each task in cold."""
    return dict(tiers.sql("SELECT task_id, task_path FROM checkpoint_writes WHERE thread_id = %s", thread))


@pytest.mark.parametrize("settings", [{}, BEHIND, LATEST])
async def test_a_copy_keeps_the_task_paths(tiers: Tiers, settings: Any) -> None:
    uniform = await tiers.uniform(**settings)
    made = await written(uniform)
    await uniform.put_writes(made[0], [("n", [1])], "task-z", "path-0")  # the checkpoint may be coalesced
    await uniform.copy_thread("thread", "copy")
    await drained(uniform)
    expected = {"task-c": "path-0", "task-b": "path-1", "task-a": "path-2", "task-z": "path-0"}
    assert paths(tiers, "copy") == expected


async def test_a_coalesced_checkpoint_reaches_cold_with_its_paths(tiers: Tiers) -> None:
    """A `DeltaChannel` needs all ancestors, so cold gets the checkpoints that it skipped."""
    uniform = await tiers.uniform(**LATEST)
    made = await written(uniform)
    for task, path in (("task-z", "path-9"), ("task-y", "path-8")):
        await uniform.put_writes(made[0], [("n", [1])], task, path)
    await drained(uniform)
    assert "task-z" not in paths(tiers, "thread")
    await put_new(uniform, made[-1], counters_since_delta_snapshot={"log": (1, 1)})
    await drained(uniform)
    assert {"task-z": "path-9", "task-y": "path-8"}.items() <= paths(tiers, "thread").items()
