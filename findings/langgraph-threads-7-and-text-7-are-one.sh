#!/usr/bin/env bash
# One would expect: InMemorySaver keys threads by what it is given, so thread 7 and thread "7" are two, in a graph as
# in the saver's own calls.
#
# What happens: a graph turns each thread id into a text before it calls the saver. So the two are one thread through
# a graph, and two in calls of the saver: code that asks the saver for thread 7 finds nothing.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2.
# Source: langgraph/pregel/main.py (get_state) and _loop.py.
#
# Output seen:
#   through a graph, thread "7" has ['by number']
#   the saver has nothing of thread 7
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
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    log: Annotated[list, operator.add]


saver = InMemorySaver()
graph = StateGraph(State).add_node("node", lambda _: {}).add_edge(START, "node").compile(checkpointer=saver)
graph.invoke({"log": ["by number"]}, {"configurable": {"thread_id": 7}})
by_text = graph.get_state({"configurable": {"thread_id": "7"}}).values
of_saver = saver.get_tuple({"configurable": {"thread_id": 7}})
print('through a graph, thread "7" has', by_text["log"])
assert by_text == {"log": ["by number"]}, by_text
assert of_saver is None, of_saver
print("the saver has nothing of thread 7")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
