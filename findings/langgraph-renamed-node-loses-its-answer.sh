#!/usr/bin/env bash
# One would expect: after a deployment in which the node that waits for a human has another name, the thread still
# waits, or the answer raises an error that names the missing node.
#
# What happens: the thread looks finished. get_state has no next node and no interrupts, and Command(resume=...) returns
# the old state without an error: the answer is lost. A release with the old name still finds the question, and can be
# answered.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_algo.py (prepare_next_tasks) makes tasks of the nodes that the graph has now.
#
# Output seen:
#   old release: next ('approve',), 1 question
#   new release: next (), 0 questions
#   new release answers: {'note': 'ready'}
#   old release answers: {'note': 'yes'}
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

SAVER, WHERE = InMemorySaver(), {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    note: str


def release(name):
    builder = StateGraph(State).add_node("prepare", lambda state: {"note": "ready"})
    builder.add_node(name, lambda state: {"note": interrupt("send it?")})
    return builder.add_edge(START, "prepare").add_edge("prepare", name).compile(checkpointer=SAVER)


old, new = release("approve"), release("approve_mail")
old.invoke({}, WHERE)
for name, graph, waits in (("old", old, True), ("new", new, False)):
    state = graph.get_state(WHERE)
    print(f"{name} release: next {state.next}, {len(state.interrupts)} question{'s' * (not waits)}")
    assert (state.next, len(state.interrupts)) == ((("approve",), 1) if waits else ((), 0))
for name, graph, note in (("new", new, "ready"), ("old", old, "yes")):
    answered = graph.invoke(Command(resume="yes"), WHERE)
    print(f"{name} release answers: {answered}")
    assert answered == {"note": note}
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
