"""`cache_key`: equal inputs have equal keys, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import date
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.func import entrypoint, task
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import CachePolicy
from pydantic import BaseModel

from redis_saver import EncodeError, cache_key
from tests.support.caching import cache_of
from tests.support.talking import call_graph
from tests.support.uniform import Target


class Profile(BaseModel):
    tags: set[str]
    more: dict[str, Any]


def call(**args: Any) -> AIMessage:
    return AIMessage("", id="1", tool_calls=[{"name": "f", "args": args, "id": "c"}])


MIXED = {"x": 1, (2, 3): 4, UUID(int=1): 5, date(2026, 1, 1): 6, None: 7}
EQUAL: dict[str, tuple[Any, Any]] = {
    "messages": (HumanMessage("hi", id="1"), HumanMessage(content="hi", id="1", name=None)),
    "arguments of a tool call": (call(a=1, b={"c": 1, "d": 2}), call(b={"d": 2, "c": 1}, a=1)),
    "a dict": ({"a": 1, "b": [{"c": 1, "d": 2}]}, {"b": [{"d": 2, "c": 1}], "a": 1}),
    "a dict with keys of several types": (MIXED, dict(reversed(MIXED.items()))),
    "sets": ({"a", "b", ("c", frozenset("de"))}, {("c", frozenset("ed")), "b", "a"}),
    "a pydantic model": (
        Profile(tags=set("abc"), more={"d": 1, "e": 2}),
        Profile(tags=set("cba"), more={"e": 2, "d": 1}),
    ),
}
DIFFERENT: list[Any] = [
    None, 0, 1, "1", b"1", True, [], {}, [1], [[1]], ["a", "b"], ["b", "a"], {"a", "b"}, {"a": None}, {"a": {}},
    HumanMessage("hi"), HumanMessage("hi", id="1"), HumanMessage("hi", id="2"), AIMessage("hi", id="1"), call(a=1),
    call(a=2), Profile(tags={"a"}, more={}), {"tags": {"a"}, "more": {}},
]  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_inputs_have_equal_keys(name: str) -> None:
    one, other = EQUAL[name]
    assert one == other and cache_key(one) == cache_key(other)


def test_different_inputs_have_different_keys() -> None:
    keys = [cache_key(value) for value in DIFFERENT]
    keys += [cache_key(), cache_key(1, 2), cache_key([1, 2]), cache_key(1, a=2), cache_key(1, {"a": 2}), cache_key(a=1)]
    keys += [cache_key(1, closure=1), cache_key(1, closure="v2"), cache_key(1, closure=("v2",))]
    assert len(set(keys)) == len(keys) == len(DIFFERENT) + 9


def test_what_cannot_be_encoded_is_an_error_with_a_remedy() -> None:
    with pytest.raises(EncodeError, match=r"the input of a cached node: .*The node did not run.*only the parts"):
        cache_key({"question": "hi", "client": object()})


PROGRAM = """
import sys
import redis
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import CachePolicy
from redis_saver import RedisCache, cache_key

def answer(state):
    print("ran")
    return {"messages": [AIMessage("a", id="2", additional_kwargs={"set": {"x", "y", "z"}})]}

policy = CachePolicy(key_func=cache_key)
builder = StateGraph(MessagesState).add_node("one", answer, cache_policy=policy)
builder = builder.add_node("two", answer, cache_policy=policy).add_edge("one", "two").set_entry_point("one")
client = redis.Redis.from_url(sys.argv[1])
graph = builder.compile(cache=RedisCache(client, prefix=sys.argv[2], on_error="raise"))
print(len(graph.invoke({"messages": HumanMessage("hi", id="1")})["messages"]), cache_key({"q", "r", "s"}))
"""


@pytest.mark.plain("programs of their own write the entries")
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_processes_share_what_they_computed(target: Target) -> None:
    """Strings have other hashes in each process, so sets have another order."""
    command, outputs = [sys.executable, "-c", PROGRAM, target.url, target.prefix], []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        outputs.append(done.stdout.split())
    assert outputs == [["ran", "ran", "2", cache_key({"q", "r", "s"})], ["2", cache_key({"q", "r", "s"})]]


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_closure_makes_keys_of_its_own_and_edges_are_cached(target: Target) -> None:
    ran = Counter[str]()

    def graph_of(model: str, policy: CachePolicy[Any]) -> Any:
        def answer(_: Any) -> Any:
            ran[model] += 1
            return {"messages": [AIMessage(model)]}

        def choose(_: Any) -> str:
            ran["edge"] += 1
            return "end"

        builder = StateGraph(MessagesState).add_node("answer", answer, cache_policy=policy)
        builder = builder.add_node("end", lambda _: None).set_entry_point("answer")
        return builder.add_conditional_edges("answer", choose, ["end"]).compile(cache=cache_of(target).cache)

    async def answer_of(graph: Any) -> str:
        found = await call_graph(graph, "invoke", {"messages": HumanMessage("hi", id="1")})
        return str(found["messages"][-1].content)

    for model in ("small", "large", "small"):
        assert await answer_of(graph_of(model, CachePolicy(key_func=partial(cache_key, closure=model)))) == model
    assert ran == {"small": 1, "large": 1, "edge": 2}
    for model in ("small", "large"):  # without the argument they share an entry, as LangGraph names it
        assert await answer_of(graph_of(model, CachePolicy(key_func=cache_key))) == "small"


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_tasks_take_positions_and_keywords(target: Target) -> None:
    ran = list[Any]()

    @task(cache_policy=CachePolicy(key_func=cache_key))
    async def add(a: int, *, b: int = 0) -> int:
        ran.append((a, b))
        return a + b

    @entrypoint(cache=cache_of(target).cache)
    async def work(n: int) -> int:
        return await add(n) + await add(n, b=1)

    assert [await work.ainvoke(n) for n in (1, 1, 2)] == [3, 3, 5]
    assert ran == [(1, 0), (1, 1), (2, 0), (2, 1)]
