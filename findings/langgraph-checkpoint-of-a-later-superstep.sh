#!/usr/bin/env bash
# One would expect: each checkpoint holds the state of its superstep, so a replay from it does what the run did then.
#
# What happens: under the default durability ("async") a checkpoint is stored in the background while the next
# superstep runs. A join (add_edge with a list) and a Topic channel hand out the very set or list that the next
# superstep changes. So a saver that is slower than the graph stores their later values in the earlier checkpoint. A
# replay then runs the join before its second node has ended, and a Topic has the values of the steps that the replay
# repeats twice. With durability="sync" both are right.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, with InMemorySaver; any checkpointer gives the same, as the
# container is changed before the saver is called.
# Source: https://github.com/langchain-ai/langgraph/issues/8748 (open), langgraph/channels/named_barrier_value.py and
# topic.py (checkpoint).
#
# Output seen:
#   sync: after the first of the two nodes comes ('b',)
#   sync: a replayed Topic has ['in', 'a', 'b']
#   async: after the first of the two nodes comes ('b', 'join')
#   async: a replayed Topic has ['in', 'a', 'b', 'b']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import operator
import time
from typing import Annotated

from langgraph.channels import Topic
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

WHERE = {"configurable": {"thread_id": "1"}}


class Slow(InMemorySaver):
    """A saver that takes 50 ms, as over a network."""

    def put(self, *args):
        time.sleep(0.05)
        return super().put(*args)


class Logged(TypedDict, total=False):
    log: Annotated[list, operator.add]


class Topical(TypedDict, total=False):
    topic: Annotated[list, Topic(str, accumulate=True)]


def joined(durability):
    """Return the nodes that follow where one of the two nodes before a join has run."""
    builder = StateGraph(Logged)
    for name in ("a", "c", "b", "join"):
        builder.add_node(name, lambda _, name=name: {"log": [name]})
    builder.add_edge(START, "a").add_edge(START, "c").add_edge("c", "b").add_edge(["a", "b"], "join")
    graph = builder.compile(checkpointer=Slow())
    graph.invoke({"log": []}, WHERE, durability=durability)
    (found,) = [each for each in graph.get_state_history(WHERE) if each.metadata["step"] == 1]
    return found.next


def replayed(durability):
    """Return a Topic after a replay of the last of two nodes."""
    builder = StateGraph(Topical)
    for name in ("a", "b"):
        builder.add_node(name, lambda _, name=name: {"topic": name})
    graph = builder.add_edge(START, "a").add_edge("a", "b").compile(checkpointer=Slow())
    graph.invoke({"topic": "in"}, WHERE, durability=durability)
    (found,) = [each for each in graph.get_state_history(WHERE) if each.next == ("b",)]
    return graph.invoke(None, found.config, durability=durability)["topic"]


seen = {each: (joined(each), replayed(each)) for each in ("sync", "async")}
for durability, (following, topic) in seen.items():
    print(f"{durability}: after the first of the two nodes comes {following}")
    print(f"{durability}: a replayed Topic has {topic}")
assert seen["sync"] == (("b",), ["in", "a", "b"]), seen
assert seen["async"] == (("b", "join"), ["in", "a", "b", "b"]), seen
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
