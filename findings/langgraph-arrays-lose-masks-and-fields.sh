#!/usr/bin/env bash
# One would expect: since LangGraph's serializer stores arrays of numpy, an array comes back as it was, or is refused,
# as arrays of dates are.
#
# What happens: a masked array comes back without its mask, so what was masked counts as data. A structured array comes
# back without its fields, as raw bytes. Nothing is raised or logged.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, numpy 2.2.6, with InMemorySaver; any checkpointer with
# JsonPlusSerializer gives the same.
# Source: langgraph/checkpoint/serde/jsonplus.py (_msgpack_default, _msgpack_ext_hook): only dtype.str, shape, order and
# the bytes are stored.
#
# Output seen:
#   mean of the masked array: 2.0, after a checkpoint: 335.0
#   fields of the structured array: ('id', 'price'), after a checkpoint: None
#   an array of dates: TypeError
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2 numpy==2.2.6

cat >"$folder/try.py" <<'PYTHON'
import numpy as np
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    array: object


def stored(array):
    builder = StateGraph(State).add_node("make", lambda state: {"array": array}).add_edge(START, "make")
    graph, where = builder.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}}
    graph.invoke({}, where)
    return graph.get_state(where).values["array"]


readings = np.ma.masked_equal([1, 3, 1001], 1001)
back = stored(readings)
print(f"mean of the masked array: {readings.mean()}, after a checkpoint: {back.mean()}")
assert type(back) is np.ndarray and (readings.mean(), back.mean()) == (2.0, 335.0)

orders = np.array([(1, 2.5)], dtype=[("id", "i4"), ("price", "f8")])
back = stored(orders)
print(f"fields of the structured array: {orders.dtype.names}, after a checkpoint: {back.dtype.names}")
assert back.dtype.str == "|V12" and back.tobytes() == orders.tobytes()

try:
    stored(np.array(["2026-11-29"], dtype="M8[D]"))
except TypeError:
    print("an array of dates: TypeError")
else:
    raise AssertionError("an array of dates was stored")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
