#!/usr/bin/env bash
# One would expect: a key of the state with UntrackedValue is never stored, so a token can be passed in it.
#
# What happens: a node's write to it is not stored. But the input of the run is stored as it was given, in the channel
# __start__ of the first checkpoint, with the token.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/channels/untracked_value.py ("never checkpointed") and langgraph/pregel/_loop.py (_first): the
# input is one value of __start__. A context (context_schema) is not stored.
#
# Output seen:
#   stored of the input: {'token': 'from the caller', 'answer': ''}
#   stored of the node's write: nothing
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
from typing import Annotated

from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

WHERE = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    token: Annotated[str, UntrackedValue(str)]
    answer: str


def node(state):
    return {"answer": state["token"][:4], "token": "from the node"}


saver = InMemorySaver()
graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)
graph.invoke({"token": "from the caller", "answer": ""}, WHERE)
stored = [(each.checkpoint["channel_values"], each.pending_writes) for each in saver.list(WHERE)]
inputs = [values["__start__"] for values, _ in stored if "__start__" in values]
print("stored of the input:", *inputs)
assert inputs == [{"token": "from the caller", "answer": ""}], inputs
assert "from the node" not in repr(stored), stored
print("stored of the node's write: nothing")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
