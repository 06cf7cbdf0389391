"""A Deep Agent with todos, files in the state and in the store, a subagent, and calls that wait for approval."""

from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from langchain.agents.middleware import TodoListMiddleware
from langgraph.types import Command
from scripted import asking, call, model, thread

PATH, MEMORY = "/notes.md", "/memories/user.md"


def run(saver: Any, store: Any, cache: Any) -> Any:
    todos = [{"content": "take notes", "status": "in_progress"}, {"content": "check them", "status": "pending"}]
    chief = model(
        call("write_todos", todos=todos),
        call("write_file", file_path=PATH, content="tea\nmilk\n"),
        call("task", description="Check the notes", subagent_type="reader"),
        call("write_file", file_path=MEMORY, content="drinks tea"),
        "The notes are checked",
        call("edit_file", file_path=PATH, old_string="milk", new_string="lemon"),
        call("read_file", file_path=MEMORY),
        call("edit_file", file_path=MEMORY, old_string="tea", new_string="tea with lemon"),
        "With lemon",
    )
    reader: Any = {
        "name": "reader",
        "description": "Reads files.",
        "system_prompt": "Read.",
        "model": model(call("read_file", file_path=PATH), "The notes say tea"),
    }
    agent = create_deep_agent(
        chief,
        middleware=[TodoListMiddleware()],
        subagents=[reader],
        backend=CompositeBackend(StateBackend(), {"/memories/": StoreBackend(namespace=lambda _: ("files", "ada"))}),
        interrupt_on={"edit_file": True},
        checkpointer=saver,
        store=store,
    )
    config = thread()
    seen = [agent.invoke(asking(text), config) for text in ("Take notes", "Lemon, please")]
    seen += [agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config) for _ in range(2)]
    return agent, [config], seen
