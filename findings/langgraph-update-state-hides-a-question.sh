#!/usr/bin/env bash
# One would expect: update_state adds a note to a thread that waits for an answer, and the question still shows, as it
# still waits.
#
# What happens: get_state shows no interrupt any more, neither in `interrupts` nor in its tasks. The node is still the
# next one, and Command(resume=...) still answers the question that nobody sees.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/main.py (bulk_update_state): the new checkpoint has none of the pending writes of its
# parent, and a question is one of them.
#
# Output seen:
#   before: next ('ask',), questions ['send the mail?']
#   after update_state: next ('ask',), questions []
#   answered all the same: yes
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


def shown():
    state = graph.get_state(WHERE)
    return state.next, [each.value for each in state.interrupts]


graph.invoke({"note": ""}, WHERE)
before = shown()
graph.update_state(WHERE, {"note": "seen by the support"})
after = shown()
answer = graph.invoke(Command(resume="yes"), WHERE)["answer"]
print(f"before: next {before[0]}, questions {before[1]}")
print(f"after update_state: next {after[0]}, questions {after[1]}")
print("answered all the same:", answer)
assert before == (("ask",), ["send the mail?"]), before
assert after == (("ask",), []), after
assert answer == "yes", answer
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
