"""A supervisor with two workers, whose messages it adds to its own, and one of which it forwards."""

from typing import Any

from langchain.agents import create_agent
from langgraph_supervisor import create_handoff_tool, create_supervisor
from langgraph_supervisor.handoff import create_forward_message_tool
from scripted import asking, call, model, thread


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def search(query: str) -> str:
    """Search the web."""
    return f"Found: {query}"


def run(saver: Any, store: Any, cache: Any) -> Any:
    maths = create_agent(model(call("add", a=1.5, b=2), "3.5", call("add", a=3.5, b=2), "5.5"), [add], name="maths")
    web = create_agent(model(call("search", query="tea"), "About tea"), [search], name="web")
    forward = call("forward_message", from_agent="maths")
    chief = model(call("transfer_to_maths"), call("ask_web"), "3.5, and tea", call("transfer_to_maths"), forward)
    tools: Any = [create_handoff_tool(agent_name="maths"), create_handoff_tool(agent_name="web", name="ask_web")]
    tools.append(create_forward_message_tool("chief"))
    settings: Any = {"output_mode": "full_history", "supervisor_name": "chief"}
    builder = create_supervisor([maths, web], model=chief, tools=tools, **settings)
    graph, config = builder.compile(checkpointer=saver, store=store), thread()
    return graph, [config], [graph.invoke(asking(text), config) for text in ("1.5 + 2, and tea?", "2 more?")]
