#!/usr/bin/env bash
# One would expect: an answer to a thread that expired, was deleted or is misspelt raises an error.
#
# What happens: the graph runs from its start with an empty state. Nothing is raised. Its first nodes run once more
# without their input, it asks again, and the answer is lost.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_loop.py (_first).
#
# Output seen:
#   a thread that waits: ran ['plan'], then ['plan', 'ask'] with the answer yes
#   a deleted thread: ran ['plan'] with no input, asks again ['send?'], answer None
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import operator
from typing import Annotated

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

inputs = []


class State(TypedDict, total=False):
    order: int
    ran: Annotated[list, operator.add]
    answer: str


def plan(state):
    inputs.append(state.get("order"))
    return {"ran": ["plan"]}


def ask(state):
    return {"ran": ["ask"], "answer": interrupt("send?")}


saver = InMemorySaver()
builder = StateGraph(State).add_node("plan", plan).add_node("ask", ask).add_edge(START, "plan").add_edge("plan", "ask")
graph = builder.compile(checkpointer=saver)
where = {"configurable": {"thread_id": "1"}}

before = graph.invoke({"order": 7}, where)
after = graph.invoke(Command(resume="yes"), where)
print(f"a thread that waits: ran {before['ran']}, then {after['ran']} with the answer {after['answer']}")
assert (before["ran"], after["ran"], after["answer"], inputs) == (["plan"], ["plan", "ask"], "yes", [7])

graph.invoke({"order": 8}, {"configurable": {"thread_id": "2"}})
saver.delete_thread("2")
state = graph.invoke(Command(resume="yes"), {"configurable": {"thread_id": "2"}})
asked = [each.value for each in state["__interrupt__"]]
print(f"a deleted thread: ran {state['ran']} with no input, asks again {asked}, answer {state.get('answer')}")
assert (state["ran"], asked, state.get("answer"), inputs) == (["plan"], ["send?"], None, [7, 8, None])
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
