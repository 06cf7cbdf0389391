#!/usr/bin/env bash
# One would expect: a form without fields is answered with {}, as [], "", 0 and False are answers, too.
#
# What happens: Command(resume={}) counts as a table of answers by the ids of interrupts, with no entry. So nothing is
# answered, without an error, and the same question waits again.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_loop.py (_first): all keys of an empty dict are ids.
#
# Output seen:
#   [] '' 0 False {'a': 1}: answered
#   {}: asks again
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

WHERE = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    answer: object
    note: str


def ask(state):
    return {"answer": interrupt("send the mail?")}


graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())


def answered(value, thread):
    where = {"configurable": {"thread_id": thread}}
    graph.invoke({"note": ""}, where)
    state = graph.invoke(Command(resume=value), where)
    return "__interrupt__" not in state and state["answer"] == value


values = [[], "", 0, False, {"a": 1}]
assert all(answered(value, repr(value)) for value in values)
print(*map(repr, values), end=": answered\n")
assert not answered({}, "empty")
print("{}: asks again")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
