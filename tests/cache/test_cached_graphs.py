"""Graphs with a cache: a cached node or task does not run again."""

from __future__ import annotations

import asyncio
import operator
import time
from collections import Counter
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.func import entrypoint, task
from langgraph.graph import StateGraph
from langgraph.types import CachePolicy, interrupt
from test_single_flight import together
from typing_extensions import TypedDict

from tests.support.caching import UniformCache, cache_of
from tests.support.talking import call_graph
from tests.support.uniform import Target

pytestmark = pytest.mark.parametrize("target_name", ["redis"])


class State(TypedDict):
    n: int
    seen: Annotated[list[Any], operator.add]


class Graphs:
    """Builds graphs with two cached nodes, and counts the runs of each."""

    def __init__(self, target: Target, **settings: Any) -> None:
        self.target, self.settings, self.ran = target, settings, Counter[str]()

    def cache(self) -> UniformCache:
        return cache_of(self.target, **self.settings)

    def graph(self, cache: UniformCache, seconds: float = 0, ttl: Any = None) -> Any:
        def node(state: State) -> Any:
            self.ran["node"] += 1
            time.sleep(seconds)
            return {"seen": [AIMessage(f"answer {state['n']}", id="1")]}

        def other(_: State) -> Any:
            self.ran["other"] += 1
            return {"seen": ["other"]}

        builder = StateGraph(State)
        builder.add_node("node", node, cache_policy=CachePolicy(ttl=ttl))
        builder.add_node("other", other, cache_policy=CachePolicy(key_func=lambda _: "always"))
        builder.set_entry_point("node")
        builder.add_edge("node", "other")
        return builder.compile(cache=cache.cache)

    async def run(self, graph: Any, n: int = 1) -> Any:
        if self.target.flavour == "async":
            return await graph.ainvoke({"n": n, "seen": []})
        return graph.invoke({"n": n, "seen": []})


async def test_a_cached_node_runs_once(target: Target) -> None:
    graphs = Graphs(target)
    first, second = graphs.cache(), graphs.cache()
    answer = await graphs.run(graphs.graph(first))
    assert [getattr(one, "content", one) for one in answer["seen"]] == ["answer 1", "other"]
    assert await graphs.run(graphs.graph(second)) == answer
    assert graphs.ran == {"node": 1, "other": 1}
    await graphs.run(graphs.graph(second), 2)
    assert graphs.ran == {"node": 2, "other": 1}
    assert second.stats().hits == 3


async def test_entries_of_a_node_expire_and_are_cleared_separately(target: Target) -> None:
    graphs = Graphs(target)
    graph = graphs.graph(graphs.cache(), ttl=100)
    await graphs.run(graph)
    (with_ttl,) = [key for key in target.keys() if b":entry:" in key and target.raw.pttl(key) > 90_000]
    for cleared, node, other in ((["other"], 1, 2), (None, 2, 3)):
        await call_graph(graph, "clear_cache", *([cleared] if cleared else []))
        await graphs.run(graph)
        assert graphs.ran == {"node": node, "other": other}
    target.raw.pexpire(with_ttl, 1)
    await asyncio.sleep(0.05)
    await graphs.run(graph)
    assert graphs.ran == {"node": 3, "other": 3}


async def test_a_graph_runs_while_the_server_is_down(target: Target) -> None:
    graphs = Graphs(target)
    cache = cache_of(target, client=target.client(url="redis://127.0.0.1:1", retry=None))
    for _ in range(3):
        assert len((await graphs.run(graphs.graph(cache)))["seen"]) == 2
    assert graphs.ran == {"node": 3, "other": 3}
    assert cache.stats().errors > 0
    assert cache.stats().skipped > 0


async def test_concurrent_graphs_compute_a_node_once(target: Target) -> None:
    """The graphs run in OS threads or in tasks."""
    graphs = Graphs(target, single_flight="2m")
    cache = graphs.cache()
    given: Any = {"n": 1, "seen": []}
    answers = await together(*(call_graph(graphs.graph(cache, seconds=0.2), "invoke", given) for _ in range(6)))
    assert graphs.ran == {"node": 1, "other": 1}
    assert all(answer == answers[0] for answer in answers)


async def test_nested_tasks_do_not_wait_for_their_own_run(target: Target) -> None:
    """LangGraph looks up all running tasks again whenever one of them calls another."""
    ran, cache, policy = Counter[str](), cache_of(target, single_flight="2m"), CachePolicy()

    if target.flavour == "async":

        @task(cache_policy=policy)
        async def inner(n: int) -> int:
            ran["inner"] += 1
            await asyncio.sleep(0.05)
            return n + 1

        @task(cache_policy=policy)
        async def outer(n: int) -> int:
            ran["outer"] += 1
            return sum(await asyncio.gather(inner(n), inner(n + 1)))

        @entrypoint(cache=cache.cache)
        async def flow(n: int) -> int:
            return sum(await asyncio.gather(outer(n), outer(n + 10)))
    else:

        @task(cache_policy=policy)
        def inner(n: int) -> int:
            ran["inner"] += 1
            time.sleep(0.05)
            return n + 1

        @task(cache_policy=policy)
        def outer(n: int) -> int:
            ran["outer"] += 1
            return sum(call.result() for call in [inner(n), inner(n + 1)])

        @entrypoint(cache=cache.cache)
        def flow(n: int) -> int:
            return sum(call.result() for call in [outer(n), outer(n + 10)])

    began = time.monotonic()
    for _ in range(2):
        assert await call_graph(flow, "invoke", 1) == 2 + 3 + 12 + 13
    assert ran == {"inner": 4, "outer": 2}
    assert time.monotonic() - began < 60, "nobody waited for a flight to expire"


async def test_parallel_nodes_with_tasks_do_not_wait_for_their_own_run(target: Target) -> None:
    """The nodes have no cache policy, so their tasks look up first. A graph inside a node belongs to the same run."""
    ran, cache, policy = Counter[str](), cache_of(target, single_flight="2m"), CachePolicy()

    def slow(state: State) -> Any:
        ran["slow"] += 1
        time.sleep(0.05)
        return {"seen": [state["n"]]}

    inside: Any = StateGraph(State).add_node("slow", slow, cache_policy=policy).set_entry_point("slow")
    inside = inside.compile(cache=cache.cache)
    if target.flavour == "async":

        @task(cache_policy=policy)
        async def double(n: int) -> int:
            ran["double"] += 1
            await asyncio.sleep(0.05)
            return 2 * n

        async def node(state: State) -> Any:
            doubled = await asyncio.gather(*(double(state["n"] + each) for each in range(3)))
            return {"seen": [sum(doubled), *(await inside.ainvoke({"n": 7, "seen": []}))["seen"]]}

        async def other(state: State) -> Any:
            return {"seen": await asyncio.gather(*(double(100 + each) for each in range(3)))}
    else:

        @task(cache_policy=policy)
        def double(n: int) -> int:
            ran["double"] += 1
            time.sleep(0.05)
            return 2 * n

        def node(state: State) -> Any:
            doubled = [double(state["n"] + each) for each in range(3)]
            return {"seen": [sum(one.result() for one in doubled), *inside.invoke({"n": 7, "seen": []})["seen"]]}

        def other(state: State) -> Any:
            return {"seen": [one.result() for one in [double(100 + each) for each in range(3)]]}

    builder: Any = StateGraph(State).add_node("node", node).add_node("other", other)
    graph = builder.set_entry_point("node").set_entry_point("other").compile(cache=cache.cache)
    began = time.monotonic()
    for _ in range(2):
        assert (await Graphs(target).run(graph))["seen"] == [12, 7, 200, 202, 204]
    assert ran == {"double": 6, "slow": 1}
    assert time.monotonic() - began < 60, "nobody waited for a flight to expire"


async def test_a_failed_or_interrupted_node_is_not_cached_and_reruns_at_once(target: Target) -> None:
    cache, ran, graphs = cache_of(target, single_flight="2m"), Counter[str](), Graphs(target)

    def node(_: State) -> Any:
        ran["node"] += 1
        if ran["node"] < 3:
            raise ValueError("fails")
        return {"seen": ["fine"]}

    builder = StateGraph(State).add_node("node", node, cache_policy=CachePolicy()).set_entry_point("node")
    graph = builder.compile(cache=cache.cache)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(ValueError, match="fails"):
            await graphs.run(graph)
    for _ in range(2):
        assert (await graphs.run(graph))["seen"] == ["fine"]
    assert time.monotonic() - began < 60, "a repeated run does not wait for its own flight"
    assert ran["node"] == 3
    builder = StateGraph(State).add_node("ask", lambda _: {"seen": [interrupt("?")]}, cache_policy=CachePolicy())
    asking = builder.set_entry_point("ask").compile(cache=cache.cache)
    for _ in range(2):
        assert "__interrupt__" in await graphs.run(asking)
