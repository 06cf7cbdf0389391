#!/usr/bin/env bash
# One would expect: a node that asks a human is never answered from a cache, as the answer is no part of its input.
#
# What happens: when a question is answered, the node ends, and its result is cached by the node's input alone. The next
# thread with an equal input gets the first human's answer, and nobody is asked. A task of the functional API does the
# same.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver and InMemoryCache; any pair gives the same.
# Source: langgraph/pregel/_loop.py (match_cached_writes, put_writes).
#
# Output seen:
#   node: alice is asked ['approve?'] and gets yes; bob is asked [] and gets yes
#   task: alice is asked ['approve?'] and gets yes; bob is asked [] and gets yes
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Command, interrupt
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    amount: int
    answer: str


def approve(state):
    return {"answer": interrupt("approve?")}


builder = StateGraph(State).add_node("approve", approve, cache_policy=CachePolicy()).add_edge(START, "approve")
graph = builder.compile(checkpointer=InMemorySaver(), cache=InMemoryCache())


@task(cache_policy=CachePolicy())
def approved(amount):
    return interrupt("approve?")


@entrypoint(checkpointer=InMemorySaver(), cache=InMemoryCache())
def flow(state):
    return {"answer": approved(state["amount"]).result()}


for name, runs in (("node", graph), ("task", flow)):
    alice, bob = ({"configurable": {"thread_id": user}} for user in ("alice", "bob"))
    asked = [each.value for each in runs.invoke({"amount": 100}, alice)["__interrupt__"]]
    first = runs.invoke(Command(resume="yes"), alice)["answer"]
    state = runs.invoke({"amount": 100}, bob)
    found = [each.value for each in state.get("__interrupt__", ())]
    print(f"{name}: alice is asked {asked} and gets {first}; bob is asked {found} and gets {state.get('answer')}")
    assert (asked, first, found, state["answer"]) == (["approve?"], "yes", [], "yes")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
