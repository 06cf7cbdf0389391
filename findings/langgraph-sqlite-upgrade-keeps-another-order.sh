#!/usr/bin/env bash
# One would expect: get_state returns what invoke returned. And after an upgrade that puts this right, it does so for
# all threads.
#
# What happens: a DeltaChannel is computed from the stored writes. SqliteSaver 3.1.1 returns the writes of parallel
# nodes in the order of their task ids, which are hashes. So a list that six nodes append to has another order in
# get_state. Since 3.1.2 the saver stores the path of each task and sorts by it. But rows that an older version wrote
# have an empty path, so old threads keep the other order. An Annotated[list, operator.add] is not affected, as its
# value is in the checkpoint.
#
# Versions: langgraph-checkpoint-sqlite 3.1.1 and 3.1.2, langgraph 1.2.24, langgraph-checkpoint 4.3.2.
# Source: langgraph/checkpoint/sqlite/__init__.py (get_tuple, setup) and utils.py (pending_writes_sql).
#
# Output seen (eight threads each):
#   threads of 3.1.1, read by 3.1.1: in another order
#   threads of 3.1.1, read by 3.1.2: in another order
#   threads of 3.1.2, read by 3.1.2: as they were
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-checkpoint-sqlite==3.1.1 langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import sys
from importlib.metadata import version
from typing import Annotated

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

EXPECTED = {"log": ["in", *"abcdef"]}


def add(state, writes):
    return [*(state or []), *(each for write in writes for each in write)]


class State(TypedDict, total=False):
    log: Annotated[list, DeltaChannel(add)]


builder = StateGraph(State)
for name in "abcdef":
    builder.add_node(name, lambda _, name=name: {"log": [name]}).add_edge(START, name)
used = version("langgraph-checkpoint-sqlite")
file, *written = sys.argv[1:]
with SqliteSaver.from_conn_string(file) as saver:
    graph = builder.compile(checkpointer=saver)
    for each in (*written, used):
        wheres = [{"configurable": {"thread_id": f"{each}-{number}"}} for number in range(8)]
        if each == used:
            returned = [graph.invoke({"log": ["in"]}, where) for where in wheres]
            assert returned == [EXPECTED] * 8, returned
        states = [graph.get_state(where).values for where in wheres]
        assert all(sorted(state["log"]) == sorted(EXPECTED["log"]) for state in states), states
        same = all(state == EXPECTED for state in states)
        print(f"threads of {each}, read by {used}:", "as they were" if same else "in another order")
        assert same == (each == "3.1.2"), states
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder/file.db"
"$folder/venv/bin/pip" install -q langgraph-checkpoint-sqlite==3.1.2
"$folder/venv/bin/python" "$folder/try.py" "$folder/file.db" 3.1.1
