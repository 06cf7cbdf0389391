"""A Deep Agent (package `deepagents`) with a scripted model: todos, files, a subagent."""

from __future__ import annotations

from typing import Any

from deepagents import create_deep_agent
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from bench import graphs
from bench.history import text

FILES = 10
TODOS = 6
CONTEXT_WINDOW = 10_000_000
"""Tokens. The agent never summarizes a context this large, so all turns are alike."""
MESSAGES = 8
"""Messages per turn: the question, three tool calls with their results, and the answer."""


def _call(name: str, turn: int, args: dict[str, Any]) -> AIMessage:
    return AIMessage(text(f"{name} {turn}"), tool_calls=[{"name": name, "args": args, "id": f"{name}-{turn}"}])


def path(turn: int) -> str:
    return graphs.path(turn % FILES)


def _mark(turn: int) -> str:
    """Text that a turn writes into its file."""
    return f"turn {turn}: {text(f'change {turn}')}"


def document(turn: int) -> str:
    """Return the content of a turn's file after the turn."""
    return f"{graphs.document(turn % FILES, 0)}\n\n{_mark(turn)}"


def todos(turn: int) -> list[dict[str, str]]:
    """Return the todo list of a turn: each turn adds one todo and completes one."""
    states = ["completed"] * (TODOS - 2) + ["in_progress", "pending"]
    return [{"content": text(f"todo {turn + n}"), "status": state} for n, state in enumerate(states)]


def _write(turn: int) -> AIMessage:
    """Write a file in the first turns, and edit it in later ones."""
    if turn < FILES:
        return _call("write_file", turn, {"file_path": path(turn), "content": document(turn)})
    changed = {"old_string": _mark(turn - FILES), "new_string": _mark(turn)}
    return _call("edit_file", turn, {"file_path": path(turn), **changed})


class ScriptedModel(BaseChatModel):
    """A model that answers at once. Its answer depends only on the messages, so it is the same with every saver."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        asked = [message for message in messages if isinstance(message, HumanMessage)]
        answered = 0
        for message in reversed(messages):
            if isinstance(message, HumanMessage):
                break
            answered += isinstance(message, ToolMessage)
        said = self._next(str(asked[-1].content), answered)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _next(self, question: str, answered: int) -> AIMessage:
        who, number = question.split(":")[0].split(" ")
        turn = int(number)
        if who == "research":
            return (
                AIMessage(text(f"finding {turn}")) if answered else _call("read_file", turn, {"file_path": path(turn)})
            )
        script = [
            lambda: _call("write_todos", turn, {"todos": todos(turn)}),
            lambda: _write(turn),
            lambda: _call("task", turn, {"description": f"research {turn}: {text(f'task {turn}')}", "subagent_type": "researcher"}),
            lambda: AIMessage(text(f"answer {turn}")),
        ]  # fmt: skip
        return script[answered]()


def question(turn: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"turn {turn}: {text(f'question {turn}')}")]}


def agent(saver: Any) -> Any:
    """Make an agent with todos, files in its state, and a subagent that reads one of them."""
    model = ScriptedModel(profile={"max_input_tokens": CONTEXT_WINDOW})
    researcher: Any = {"name": "researcher", "description": "Looks things up.", "system_prompt": "Look it up."}
    return create_deep_agent(model, middleware=[TodoListMiddleware()], subagents=[researcher], checkpointer=saver)
