#!/usr/bin/env bash
# One would expect: Command(update=...) as the input of a new thread updates its state once, as the dict alone does.
#
# What happens: with a reducer it is applied twice. A chat begins with its first message two times, unless messages have
# ids. A thread that exists gets it once.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: langgraph/pregel/_loop.py (_first).
#
# Output seen:
#   a dict: ['hi'], a Command on a new thread: ['hi', 'hi'], on one that exists: ['hi', 'ho']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

builder = StateGraph(MessagesState).add_node("bot", lambda _: {}).add_edge(START, "bot")
graph = builder.compile(checkpointer=InMemorySaver())


def said(given, thread):
    state = graph.invoke(given, {"configurable": {"thread_id": thread}})
    return [message.content for message in state["messages"]]


alone = said({"messages": [("user", "hi")]}, "dict")
new = said(Command(update={"messages": [("user", "hi")]}), "new")
old = said(Command(update={"messages": [("user", "ho")]}), "dict")
print(f"a dict: {alone}, a Command on a new thread: {new}, on one that exists: {old}")
assert (alone, new, old) == (["hi"], ["hi", "hi"], ["hi", "ho"])
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
