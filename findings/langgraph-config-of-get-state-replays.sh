#!/usr/bin/env bash
# One would expect: invoke(None, graph.get_state(config).config) goes on with a thread as invoke(None, config) does,
# as the config that get_state returns names the newest checkpoint.
#
# What happens: a config with a checkpoint_id is a replay, also of the newest checkpoint. Two nodes asked in parallel,
# and one was answered. With the thread's own config only the other one asks again. With the config of get_state both
# do: the answer that was given is dropped, and the node that had finished runs once more.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_loop.py (is_replaying).
#
# Output seen:
#   config of the thread: asks ['b?'], runs ['b']
#   config of get_state: asks ['a?', 'b?'], runs ['a', 'b']
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


seen = {}
for name in ("the thread", "get_state"):
    where = half_answered(name)
    config = where if name == "the thread" else graph.get_state(where).config
    asked = sorted(each.value for each in graph.invoke(None, config)["__interrupt__"])
    seen[name] = asked, sorted(ran)
    print(f"config of {name}: asks {asked}, runs {sorted(ran)}")
assert seen == {"the thread": (["b?"], ["b"]), "get_state": (["a?", "b?"], ["a", "b"])}, seen
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
