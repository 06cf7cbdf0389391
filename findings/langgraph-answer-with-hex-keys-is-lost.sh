#!/usr/bin/env bash
# One would expect: a dict that answers a question is the answer, whatever its keys are. A table of answers by interrupt
# id would have to name an interrupt of the thread.
#
# What happens: if all keys are 32 hexadecimal digits, such as uuid4().hex, the dict counts as a table of answers by
# interrupt id, although no interrupt has these ids. Nothing is answered, nothing is raised, and the same question waits
# again. One other key makes it an answer, as do ids with hyphens.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_loop.py (_first), langgraph/pregel/_utils.py (is_xxh3_128_hexdigest).
#
# Output seen:
#   order-1                              answered
#   uuid with hyphens                    answered
#   uuid4().hex and another key          answered
#   uuid4().hex                          asks again
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import uuid

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    decisions: dict


def ask(state):
    return {"decisions": interrupt("which orders may be sent?")}


graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())
order = uuid.UUID("3c3402d2-f7f6-47db-bd36-acd9b1bbdfd1")
found = {}
for name, decisions in {
    "order-1": {"order-1": "send"},
    "uuid with hyphens": {str(order): "send"},
    "uuid4().hex and another key": {order.hex: "send", "by": "anna"},
    "uuid4().hex": {order.hex: "send"},
}.items():
    where = {"configurable": {"thread_id": name}}
    graph.invoke({}, where)
    state = graph.invoke(Command(resume=decisions), where)
    found[name] = "asks again" if "__interrupt__" in state else "answered"
    if found[name] == "answered":
        assert state == {"decisions": decisions}, state
    print(f"{name:36} {found[name]}")
assert list(found.values()) == ["answered", "answered", "answered", "asks again"], found
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
