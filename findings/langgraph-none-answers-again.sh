#!/usr/bin/env bash
# One would expect: a node asks two questions in turn. The first was answered with Command(resume="yes"), and the second
# one waits. Invoking the graph again with None, as one does to go on after a crash, asks the second question again.
#
# What happens: the answer to the first question answers the second one, too, and the node ends. The answer is a pending
# write of the null task, which stays on the checkpoint when a task has used it. The next run finds it there, takes it
# as unused, and hands it to the next question. So a person who approved one step has approved the next one unasked.
# Command(resume=...) replaces the old answer, so only runs with None show this. A resume by the id of the interrupt
# (Command(resume={id: answer})) stores no such write, and asks again.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same.
# Source: https://github.com/langchain-ai/langgraph/issues/8837 (open), langgraph/pregel/_algo.py (_scratchpad), and
# langgraph/pregel/_loop.py (put_writes).
#
# Output seen:
#   resumed with None, after a plain answer: ['yes', 'yes']
#   resumed with None, after an answer by id: asks 'delete everything?'
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/ask.py" <<'PYTHON'
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    answers: list


def ask(state):
    return {"answers": [interrupt("delete the draft?"), interrupt("delete everything?")]}


graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())


def answered(thread, answer):
    """Answer the first question, and invoke the graph with None while the second one waits."""
    where = {"configurable": {"thread_id": thread}}
    (first,) = graph.invoke({"answers": []}, where)["__interrupt__"]
    (second,) = graph.invoke(Command(resume=answer(first)), where)["__interrupt__"]
    assert second.value == "delete everything?", second
    return graph.invoke(None, where)


plain = answered("plain", lambda question: "yes")
assert plain == {"answers": ["yes", "yes"]}, plain
print("resumed with None, after a plain answer:", plain["answers"])

by_id = answered("by id", lambda question: {question.id: "yes"})
assert [question.value for question in by_id["__interrupt__"]] == ["delete everything?"], by_id
print("resumed with None, after an answer by id: asks", repr(by_id["__interrupt__"][0].value))
PYTHON
"$folder/venv/bin/python" "$folder/ask.py"
