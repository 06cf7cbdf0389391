"""`on_fork="raise"`: a run is refused if another one wrote the thread meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.factories import checkpoint, config, ids
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform

from redis_saver._checkpoint import guards
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver.errors import StaleParent

pytestmark = pytest.mark.also_on(cluster="sync")


class State(TypedDict):
    n: int


def graph(saver: Any) -> Any:
    """Make a graph of two subgraphs, so that a namespace begins in the middle of a run."""
    inner = StateGraph(State).add_node("more", lambda state: {"n": state["n"] + 1}).add_edge(START, "more").compile()
    builder = StateGraph(State).add_node("one", inner).add_node("two", inner)
    return builder.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver)


async def meanwhile(uniform: Uniform, ns: str | None) -> str:
    """Continue from the newest checkpoint, as another process."""
    found = await uniform.get_tuple(config(ns=ns))
    made = checkpoint({"n": 50})
    await uniform.put(found.config, made, {"source": "loop", "step": found.metadata["step"] + 1}, {"n": "1"})
    return str(made["id"])


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_run_is_refused_if_another_run_continued_the_thread(target: Target, is_first: bool) -> None:
    uniform, other = target.uniform(on_fork="raise"), target.uniform()
    compiled = graph(uniform.saver)
    if not is_first:
        await run(compiled, uniform, [])
    seen: list[Any] = []

    async def step(part: Any) -> None:
        if not seen:
            seen.append(await meanwhile(other, ""))

    with pytest.raises(StaleParent):
        await run(compiled, uniform, [step])
    assert ids(await uniform.list(config()))[0] == seen[0]


async def run(compiled: Any, uniform: Uniform, steps: list[Any]) -> None:
    """Run a graph with actions between its steps. The output of a step is stored before the actions."""
    more: Any = {"stream_mode": "updates", "durability": "sync"}
    if uniform.native_async:
        async for part in compiled.astream({"n": 0}, config(), **more):
            for step in steps:
                await step(part)
        return
    for part in compiled.stream({"n": 0}, config(), **more):
        for step in steps:
            await step(part)


async def test_a_namespace_is_tracked_by_its_last_checkpoint(target: Target) -> None:
    uniform, other = target.uniform(on_fork="raise"), target.uniform()
    first, second, late, past = (checkpoint({"n": n}) for n in range(4))
    begun = await uniform.put(config(ns="sub:1"), first, {"source": "input", "step": -1}, {"n": "1"})
    gone_on = await uniform.put(begun, second, {"source": "loop", "step": 0}, {"n": "1"})
    await uniform.put(begun, past, {"source": "fork", "step": 0}, {"n": "1"})  # a fork on purpose
    await meanwhile(other, "sub:1")
    with pytest.raises(StaleParent):
        await uniform.put(gone_on, late, {"source": "loop", "step": 1}, {"n": "1"})
    # The same as if the caller had named the parent.
    explicit = await uniform.put(gone_on, late, {"source": "input", "step": 1}, {"n": "1"})
    assert explicit["configurable"]["checkpoint_id"] == late["id"]


@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_only_the_latest_loops_are_remembered(target: Target, monkeypatch: Any) -> None:
    monkeypatch.setattr(guards, "_begun", BoundedCache(3))
    uniform = target.uniform(on_fork="raise")
    for number in range(5):
        await uniform.put(config(f"t{number}"), checkpoint({"n": 1}), {"source": "input", "step": -1}, {"n": "1"})
    assert [thread for _, thread, _ in guards._begun] == ["t2", "t3", "t4"]
