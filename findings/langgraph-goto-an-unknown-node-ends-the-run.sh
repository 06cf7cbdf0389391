#!/usr/bin/env bash
# One would expect: Command(goto="...") with a node that does not exist raises, as a conditional edge does whose
# function returns a name that its table lacks.
#
# What happens: the run ends there as if it were done. The update is stored, no node is next, and invoke(None) does
# nothing. The same holds for a Send to such a node, and for a conditional edge without a table. Only a logger of
# LangGraph has a warning.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/graph/state.py (_control_branch), langgraph/pregel/_algo.py (apply_writes).
#
# Output seen:
#   goto send                    {'step': 'sent'} ()
#   goto sned                    {'step': 'paid'} () and a warning
#   goto Send(sned)              {'step': 'paid'} () and a warning
#   conditional edge             {'step': 'paid'} () and a warning
#   conditional edge with table  KeyError
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import logging

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    step: str


def run(goto=None, **edges):
    def pay(state):
        return Command(update={"step": "paid"}, goto=goto or ())

    builder = StateGraph(State).add_node("pay", pay).add_node("send", lambda state: {"step": "sent"})
    builder.add_edge(START, "pay")
    if edges:
        builder.add_conditional_edges("pay", **edges)
    graph, where = builder.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}}
    warnings.clear()
    graph.invoke({}, where)
    graph.invoke(None, where)
    state = graph.get_state(where)
    return state.values, state.next


warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("langgraph").addHandler(handler)

assert run("send") == ({"step": "sent"}, ()) and not warnings
print("goto send                   ", *run("send"))
for name, found in {
    "goto sned": lambda: run("sned"),
    "goto Send(sned)": lambda: run([Send("sned", {})]),
    "conditional edge": lambda: run(path=lambda state: "sned"),
}.items():
    assert found() == ({"step": "paid"}, ()), name
    assert any("sned" in warning for warning in warnings), warnings
    print(f"{name:28}", *found(), "and a warning")
try:
    run(path=lambda state: "sned", path_map={"sent": "send"})
except KeyError:
    print("conditional edge with table  KeyError")
else:
    raise AssertionError("a name that the table lacks was taken")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
