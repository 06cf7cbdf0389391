#!/usr/bin/env bash
# One would expect: invoke(None) on a thread that waits asks its question again, and the thread still has one question.
#
# What happens: the node runs again and its task writes the question again, under the same task and index. Most savers
# keep one write for these. SurrealSaver adds a record to its table each time. So each invoke(None) adds the same
# question, with the same id, to the interrupts of get_state. A page that shows one form for each interrupt shows as
# many as there were tries.
#
# Versions: langgraph-checkpoint-surrealdb 3.0.0, surrealdb 2.0.0 (embedded, in a temporary folder), langgraph 1.2.24,
# langgraph-checkpoint 4.3.2.
# Source: langgraph_checkpoint_surrealdb/__init__.py (put_writes).
#
# Output seen:
#   InMemorySaver: 1 question, then 1, then 1; ids: 1
#   SurrealSaver: 1 question, then 2, then 3; ids: 1
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-checkpoint-surrealdb==3.0.0 surrealdb==2.0.0 langgraph==1.2.24 \
  langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import sys

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from langgraph_checkpoint_surrealdb import SurrealSaver
from surrealdb import Surreal
from typing_extensions import TypedDict

WHERE = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    answer: str


def ask(state):
    return {"answer": interrupt("sure?")}


builder = StateGraph(State).add_node("ask", ask).add_edge(START, "ask")


def questions(saver):
    """Return how many questions a thread shows after one, two and three runs, and how many ids they have."""
    graph = builder.compile(checkpointer=saver)
    found = []
    for given in ({"answer": ""}, None, None):
        assert len(graph.invoke(given, WHERE)["__interrupt__"]) == 1
        found.append(graph.get_state(WHERE).interrupts)
    return [len(each) for each in found], len({each.id for each in found[-1]})


url = f"surrealkv://{sys.argv[1]}"
with Surreal(url) as database:
    database.use("namespace", "database")
    database.query("DEFINE USER root ON ROOT PASSWORD 'root' ROLES OWNER")
savers = InMemorySaver(), SurrealSaver(url, "namespace", "database", "root", "root")
seen = {type(saver).__name__: questions(saver) for saver in savers}
for name, (counts, ids) in seen.items():
    print(f"{name}: {counts[0]} question, then {counts[1]}, then {counts[2]}; ids: {ids}")
assert seen == {"InMemorySaver": ([1, 1, 1], 1), "SurrealSaver": ([1, 2, 3], 1)}, seen
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder/database"
