#!/usr/bin/env bash
# One would expect: a question that a node of a subgraph asks can be answered, as with any other checkpointer.
#
# What happens: the saver looks for the newest checkpoint of the root among all keys of the thread that start with the
# root's empty namespace. These are the keys of all namespaces. So if a subgraph wrote last, the root gets the
# subgraph's checkpoint. get_state then shows no question and no next node. invoke(Command(resume=...)) returns at once,
# without an error, and the node never gets its answer. Graphs without subgraphs work.
#
# Versions: langgraph-dynamodb-checkpoint 0.5.0, moto 5.2.5 (in place of DynamoDB), langgraph 1.2.24,
# langgraph-checkpoint 4.3.2.
# Source: langgraph_dynamodb_checkpoint/dynamodbSaver.py (_get_checkpoint_key).
#
# Output seen:
#   InMemorySaver: shows ['sure?'], next ('sub',); got ['yes']
#   DynamoDBSaver: shows [], next (); got []
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-dynamodb-checkpoint==0.5.0 moto==5.2.5 boto3==1.44.8 langgraph==1.2.24 \
  langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import logging
import os

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from moto import mock_aws
from typing_extensions import TypedDict

os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
logging.disable()
WHERE = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    text: str


answers = []


def ask(state):
    answers.append(interrupt("sure?"))
    return {"text": "asked"}


sub = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
builder = StateGraph(State).add_node("sub", sub).add_edge(START, "sub")


def asked_and_answered(saver):
    """Return the questions and next nodes that a waiting thread shows, and the answers that its node got."""
    answers.clear()
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"text": "in"}, WHERE)
    state = graph.get_state(WHERE)
    graph.invoke(Command(resume="yes"), WHERE)
    return [each.value for each in state.interrupts], state.next, [*answers]


with mock_aws():
    from langgraph_dynamodb_checkpoint import DynamoDBSaver

    seen = {type(saver).__name__: asked_and_answered(saver) for saver in (InMemorySaver(), DynamoDBSaver("table"))}
for name, (shown, following, got) in seen.items():
    print(f"{name}: shows {shown}, next {following}; got {got}")
assert seen == {"InMemorySaver": (["sure?"], ("sub",), ["yes"]), "DynamoDBSaver": ([], (), [])}, seen
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
