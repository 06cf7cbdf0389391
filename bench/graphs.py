"""Graphs of the workloads: agents with a tool, a fan-out, and an editor of files."""

from __future__ import annotations

import operator
import warnings
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent
from langgraph.types import Send
from typing_extensions import TypedDict

from bench.history import following, text

Saver = BaseCheckpointSaver[Any]
SNAPSHOT_EVERY = 50
"""Writes to a `DeltaChannel` per snapshot, as in Deep Agents."""


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _next(state: Chat) -> dict[str, Any]:
    """Return the next message of the chat: the model's or the tool's."""
    return {"messages": [following(state["messages"][-1])]}


def _route(state: Chat) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


async def _anext(state: Chat) -> dict[str, Any]:
    return _next(state)


def chat(saver: Saver, *, asynchronous: bool = False) -> Any:
    """An agent that calls one tool and answers: five checkpoints per turn, four of them with a new message."""
    act = _anext if asynchronous else _next
    graph = StateGraph(Chat)
    graph.add_node("agent", act)
    graph.add_node("tools", act)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", _route, ["tools", END])
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=saver)


def short(saver: Saver, *, delta: bool) -> Any:
    """A model that answers twice: three messages per turn with the input, in a list or a `DeltaChannel`."""
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph.message import _messages_delta_reducer

    channel: Any = DeltaChannel(_messages_delta_reducer, snapshot_frequency=SNAPSHOT_EVERY) if delta else add_messages

    def say(state: Any) -> dict[str, Any]:
        return _next(state)

    graph = StateGraph(TypedDict("Short", {"messages": Annotated[list[AnyMessage], channel]}))
    graph.add_node("think", say)
    graph.add_node("answer", say)
    graph.add_edge(START, "think")
    graph.add_edge("think", "answer")
    return graph.compile(checkpointer=saver)


class Fan(TypedDict):
    width: int
    results: Annotated[list[str], operator.add]


def _spread(state: Fan) -> list[Send]:
    return [Send("work", {"n": n}) for n in range(state["width"])]


def _work(task: dict[str, int]) -> dict[str, Any]:
    return {"results": [f"{task['n']}: {text(str(task['n']))}"]}


async def _awork(task: dict[str, int]) -> dict[str, Any]:
    return _work(task)


def fan_out(saver: Saver, *, asynchronous: bool = False) -> Any:
    """A superstep with `width` parallel tasks."""
    graph = StateGraph(Fan)
    graph.add_node("work", _awork if asynchronous else _work)  # type: ignore[type-var]
    graph.add_conditional_edges(START, _spread, ["work"])
    return graph.compile(checkpointer=saver)


def _merge(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    return {**old, **new}


class Files(TypedDict):
    change: int
    files: Annotated[dict[str, str], _merge]


def document(n: int, version: int) -> str:
    """Return a document of about 2 kB."""
    return f"# Document {n}, version {version}\n\n" + "\n\n".join(text(f"{n} {version} {part}") for part in range(7))


def path(n: int) -> str:
    return f"/notes/document-{n:04}.md"


def _edit(state: Files) -> dict[str, Any]:
    return {"files": {path(state["change"]): document(state["change"], 1)}}


async def _aedit(state: Files) -> dict[str, Any]:
    return _edit(state)


def files(saver: Saver, *, asynchronous: bool = False) -> Any:
    """An editor that changes one of many files: three checkpoints per turn."""
    graph = StateGraph(Files)
    graph.add_node("edit", _aedit if asynchronous else _edit)
    graph.add_edge(START, "edit")
    return graph.compile(checkpointer=saver)


def question() -> AnyMessage:
    """Return the first message to an agent of `react` or `sender`."""
    return HumanMessage("What about my order?", id="question")


def look_up(query: str) -> str:
    """Look something up."""
    return text(f"tool {query}")


class _Caller(BaseChatModel):
    """A model that makes `calls` tool calls, then answers."""

    calls: int

    @property
    def _llm_type(self) -> str:
        return "caller"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.next(len(messages) // 2))])

    def next(self, step: int) -> AIMessage:
        """Return the message after `step` tool calls."""
        call = {"name": "look_up", "args": {"query": f"{step}"}, "id": f"call-{step:06}"}
        return AIMessage(text(f"step {step}"), id=f"answer-{step:06}", tool_calls=[call] if step < self.calls else [])


def react(saver: Saver, calls: int, version: Any) -> Any:
    """LangGraph's prebuilt agent, whose model makes `calls` tool calls.

    In version v2, each is a `Send` of the whole state.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but the most used agent
        return create_react_agent(_Caller(calls=calls), [look_up], version=version, checkpointer=saver)


def sender(saver: Saver, calls: int) -> Any:
    """The same agent with an explicit `Send` of the whole state."""
    model = _Caller(calls=calls)

    def think(state: Chat) -> dict[str, Any]:
        return {"messages": [model.next(len(state["messages"]) // 2)]}

    def act(state: Chat) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage(look_up(**call["args"]), id=f"result-{call['id']}", tool_call_id=call["id"])]}

    def route(state: Chat) -> Any:
        return [Send("tools", state)] if getattr(state["messages"][-1], "tool_calls", None) else END

    graph = StateGraph(Chat)
    graph.add_node("agent", think)
    graph.add_node("tools", act)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", route, ["tools", END])
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=saver)
