#!/usr/bin/env bash
# One would expect: what get_state shows as values is stored, and update_state adds to it.
#
# What happens: get_state applies the writes of tasks that have finished, although their superstep has not, as another
# node still waits for its answer. update_state begins at the checkpoint below, without these writes. So the result of
# the first answer, which get_state showed, is gone. A new input does the same.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/main.py (_prepare_state_snapshot, bulk_update_state).
#
# Output seen:
#   get_state, one of two questions answered: ['a: yes']
#   after update_state: ['note']
#   after a new input: ['note']
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


class State(TypedDict, total=False):
    log: Annotated[list, operator.add]


ran = []


def asking(name):
    def ask(state):
        ran.append(name)
        return {"log": [f"{name}: {interrupt(f'{name}?')}"]}

    return ask


builder = StateGraph(State)
for name in ("a", "b"):
    builder.add_node(name, asking(name)).add_edge(START, name)
graph = builder.compile(checkpointer=InMemorySaver())


def half_answered(thread):
    """Return the config of a thread in which one of two questions, asked in parallel, was answered."""
    where = {"configurable": {"thread_id": thread}}
    first, _ = graph.invoke({"log": []}, where)["__interrupt__"]
    graph.invoke(Command(resume={first.id: "yes"}), where)
    ran.clear()
    return where

updated, continued = half_answered("updated"), half_answered("continued")
shown = graph.get_state(updated).values["log"]
graph.update_state(updated, {"log": ["note"]}, as_node="b")
after = graph.get_state(updated).values["log"]
new = graph.invoke({"log": ["note"]}, continued)["log"]
print("get_state, one of two questions answered:", shown)
print("after update_state:", after)
print("after a new input:", new)
assert (shown, after, new) == (["a: yes"], ["note"], ["note"]), (shown, after, new)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
