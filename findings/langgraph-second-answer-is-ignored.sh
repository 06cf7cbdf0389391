#!/usr/bin/env bash
# One would expect: a question that was answered with "yes" is answered once more, with "no", on its own checkpoint.
# The graph runs again with "no" (a fork), or the call fails because the question is no longer open.
#
# What happens: neither. The call returns the state that the first answer gave, without an error and without running
# the node with the new answer. This holds for an answer by the id of the interrupt and for a plain one.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_loop.py (_first) and _algo.py (_scratchpad): the answer that is stored with the checkpoint
# comes first.
#
# Output seen:
#   first answer: yes
#   then, by id: yes
#   then, plain: yes
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

(question,) = graph.invoke({"note": ""}, WHERE)["__interrupt__"]
asked = graph.get_state(WHERE).config
answers = [
    graph.invoke(Command(resume="yes"), WHERE)["answer"],
    graph.invoke(Command(resume={question.id: "no"}), asked)["answer"],
    graph.invoke(Command(resume="no"), asked)["answer"],
]
print("first answer:", answers[0])
print("then, by id:", answers[1])
print("then, plain:", answers[2])
assert answers == ["yes", "yes", "yes"], answers
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
