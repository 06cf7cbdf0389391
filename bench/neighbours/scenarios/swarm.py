"""Two agents hand over to each other; the next turn goes to the one that is active."""

from typing import Any

from langchain.agents import create_agent
from langgraph_swarm import create_handoff_tool, create_swarm
from scripted import asking, call, model, thread


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def run(saver: Any, store: Any, cache: Any) -> Any:
    alice = model(call("add", a=1, b=2), "3, says Alice", call("transfer_to_bob"), "Here is Alice again")
    bob = model("Ahoy, Bob here", "Still Bob", call("transfer_to_alice"))
    agents = [
        create_agent(alice, [add, create_handoff_tool(agent_name="Bob")], name="Alice"),
        create_agent(bob, [create_handoff_tool(agent_name="Alice")], name="Bob"),
    ]
    graph = create_swarm(agents, default_active_agent="Alice").compile(checkpointer=saver, store=store)
    config = thread()
    seen = [graph.invoke(asking(text), config) for text in ("1 + 2?", "Get Bob", "Who is it?", "Get Alice")]
    return graph, [config], seen
