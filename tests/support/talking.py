"""Graphs with a `DeltaChannel`, whose turns are runs of their own."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from tests.support.factories import config
from tests.support.uniform import Uniform
from typing_extensions import TypedDict


def joined(values: list[str], updates: list[Any]) -> list[str]:
    """The reducer of the channel."""
    return [*values, *(text for update in updates for text in update)]


def plainly_joined(values: list[str], update: Any) -> list[str]:
    """The same for a plain list."""
    return joined(values, [update])


def graph(saver: Any, *, snapshots: int = 1000, is_plain: bool = False) -> Any:
    """Return a graph of one node that answers.

    Args:
        saver: Its saver.
        snapshots: Number of updates after which the `DeltaChannel` is stored as a whole.
        is_plain: True: the channel is a plain list.
    """
    channel: Any = plainly_joined if is_plain else DeltaChannel(joined, snapshot_frequency=snapshots)
    state: Any = TypedDict("State", {"log": Annotated[list[str], channel]})  # type: ignore[misc]

    def answer(state: Any) -> Any:
        return {"log": [f"to {state['log'][-1]}"]}

    builder = StateGraph(state)
    return builder.add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


async def call_graph(graph: Any, method: str, *given: Any, **options: Any) -> Any:
    """Call a method of a graph in the flavour of its saver or cache. A blocking one runs on an OS thread."""
    if not type(graph.checkpointer or graph.cache).__name__.startswith("Async"):
        answer = await asyncio.to_thread(getattr(graph, method), *given, **options)
        return list(answer) if method.endswith("history") else answer
    answer = getattr(graph, f"a{method}")(*given, **options)
    return [one async for one in answer] if method.endswith("history") else await answer


async def talk(uniform: Uniform, turns: int, thread: str = "thread", first: int = 1, **options: Any) -> list[str]:
    """Take turns, each in a run of its own: run-1, run-2, .... Returns the channel."""
    compiled, log = graph(uniform.saver, **options), list[str]()
    for number in range(first, first + turns):
        where = {**config(thread, None), "metadata": {"run_id": f"run-{number}"}}
        log = (await call_graph(compiled, "invoke", {"log": [f"{number}"]}, where))["log"]
    return log


async def state(uniform: Uniform, thread: str = "thread", **options: Any) -> Any:
    """Return the state of a thread."""
    return await call_graph(graph(uniform.saver, **options), "get_state", config(thread, None))


async def of_run(uniform: Uniform, number: int, thread: str = "thread") -> list[str]:
    """Return the ids of a run's checkpoints, oldest first."""
    found = await uniform.list(config(thread), filter={"run_id": f"run-{number}"})
    return [one.checkpoint["id"] for one in reversed(found)]
