"""`create_agent` with todos, a human who edits, rejects and approves calls, and a summary of old messages."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware, TodoListMiddleware
from langgraph.types import Command
from scripted import asking, call, model, thread

EDITED = {"name": "send", "args": {"to": "ada", "text": "edited"}}
DECISIONS: Any = [
    {"type": "edit", "edited_action": EDITED},
    {"type": "reject", "message": "not now"},
    {"type": "approve"},
]


def send(to: str, text: str) -> dict[str, Any]:
    """Send a text."""
    return {"sent": text, "to": to}


def run(saver: Any, store: Any, cache: Any) -> Any:
    todos = [{"content": "write", "status": "in_progress"}, {"content": "rest", "status": "pending"}]
    says, summaries = [call("write_todos", todos=todos)], model("Summary 1", "Summary 2", "Summary 3")
    for n in range(len(DECISIONS)):
        says += [call("send", to="bob", text=f"text {n}"), f"Done with {n}"]
    agent = create_agent(
        model(*says),
        [send],
        middleware=[
            TodoListMiddleware(),
            SummarizationMiddleware(summaries, trigger=("messages", 8), keep=("messages", 4)),
            HumanInTheLoopMiddleware(interrupt_on={"send": True}),
        ],
        checkpointer=saver,
        store=store,
    )
    config, seen = thread(), []
    for n, decision in enumerate(DECISIONS):
        seen += [agent.invoke(asking(f"Send text {n}"), config)]
        seen += [agent.invoke(Command(resume={"decisions": [decision]}), config)]
    return agent, [config], seen
