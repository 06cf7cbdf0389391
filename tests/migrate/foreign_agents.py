"""Agents whose threads other savers stored, as in `tests/migrate/foreign`.

They also run with older releases of LangGraph, so this module imports nothing from the project. Stored data refers to
the classes here by the name of this module.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

LEFT_OUT: set[str] = set()
"""Parts that a release cannot keep.

"raw" is bytes in a state with messages (0.1 to 0.3). "answers" is a run that continues after an `interrupt()` (0.1).
"""
HOSTILE = "a:{b}:c_ü*[%"
THREADS = [HOSTILE, "user-chat", "user-nested", "user-sends"]


@dataclass
class Line:
    sku: str
    count: int


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)


class Profile(BaseModel):
    name: str
    tags: list[str] = []


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    orders: Annotated[list[Order], operator.add]
    profile: Profile
    seen: set[str]
    raw: bytes
    facts: dict[str, Any]


def chat(saver: Any) -> Any:
    """An assistant that calls a tool, and keeps objects, sets and bytes."""

    def bot(state: Chat) -> dict[str, Any]:
        number = len(state["messages"])
        call = {"name": "look_up", "args": {"n": number}, "id": f"call-{number}", "type": "tool_call"}
        return {"messages": [AIMessage("let me see", id=f"ai-{number}", tool_calls=[call])]}

    def tool(state: Chat) -> dict[str, Any]:
        number = len(state["messages"])
        update: dict[str, Any] = {
            "messages": [
                ToolMessage(f"found {number}", tool_call_id=f"call-{number - 1}", id=f"tool-{number}"),
                AIMessage([{"type": "text", "text": "You said ä"}], id=f"said-{number}"),
            ],
            "orders": [Order(number, [Line("x", number)])],
            "profile": Profile(name="Ada", tags=["a", "b"]),
            "seen": {f"n{number}"},  # one item, because the order of several is undefined
            "raw": b"\x00\x80\xff",
            "facts": {"none": None, "float": 1.5, "whole": 1.0, "big": 2**53 + 1, "deep": [{"x": [True, "\u2028"]}]},
        }
        return {name: value for name, value in update.items() if name not in LEFT_OUT}

    graph = StateGraph(Chat).add_node("bot", bot).add_node("tool", tool)
    return graph.add_edge(START, "bot").add_edge("bot", "tool").compile(checkpointer=saver)


class Asked(TypedDict):
    answers: Annotated[list[str], operator.add]


def nested(saver: Any) -> Any:
    """A subgraph with two interrupts in one node."""
    child = StateGraph(Asked)
    child.add_node("before", lambda _: {"answers": ["before"]})
    child.add_node("ask", lambda _: {"answers": [interrupt("first?"), interrupt({"question": "second?"})]})
    child.add_edge(START, "before").add_edge("before", "ask")
    return StateGraph(Asked).add_node("child", child.compile()).add_edge(START, "child").compile(checkpointer=saver)


class Sent(TypedDict):
    items: Annotated[list[str], operator.add]


def sends(saver: Any) -> Any:
    """Parallel tasks by Send. One waits, and the others have pending writes."""

    def work(given: Mapping[str, Any]) -> dict[str, Any]:
        if given["n"] == 1:
            return {"items": [f"asked {interrupt(Order(7))}"]}
        return {"items": [f"done {given['n']}"]}

    graph = StateGraph(Sent).add_node("plan", lambda _: {"items": ["plan"]}).add_node("work", work)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda _: [Send("work", {"n": n}) for n in range(3)], ["work"])
    return graph.compile(checkpointer=saver)


def of(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def steps() -> Iterator[tuple[Any, Any, Any]]:
    """Yield graphs with their inputs and threads. At the end, two threads wait for an answer."""
    for thread, turns in (("user-chat", 2), (HOSTILE, 1)):
        for turn in range(turns):
            yield chat, {"messages": [HumanMessage(f"hello {turn}", id=f"human-{turn}")]}, of(thread)
    yield nested, {"answers": ["start"]}, of("user-nested")
    if "answers" not in LEFT_OUT:
        yield nested, Command(resume="one"), of("user-nested")
    yield sends, {"items": ["go"]}, of("user-sends")


def live(saver: Any) -> None:
    """Run all steps on a saver."""
    for graph, given, config in steps():
        graph(saver).invoke(given, config)


async def alive(saver: Any) -> None:
    """Async version of `live`."""
    for graph, given, config in steps():
        await graph(saver).ainvoke(given, config)


def go_on(saver: Any, *, lines: bool = True) -> None:
    """Continue all threads. Without `lines`, nested dataclasses are expected to be dicts."""
    chat_goes_on(saver, lines=lines)
    waiting = nested(saver).get_state(of("user-nested"), subgraphs=True)
    assert [task.value for task in waiting.interrupts] == [{"question": "second?"}]
    assert waiting.tasks[0].state.values == {"answers": ["start", "before"]}
    nested_goes_on(saver)
    waiting = sends(saver).get_state(of("user-sends"))
    assert [task.value for task in waiting.interrupts] == [Order(7)] and len(waiting.tasks) == 3
    sends_go_on(saver)


def chat_goes_on(saver: Any, *, lines: bool = True) -> None:
    said = chat(saver).invoke({"messages": [HumanMessage("again", id="human-2")]}, of("user-chat"))
    assert [message.id for message in said["messages"][-4:]] == ["human-2", "ai-9", "tool-10", "said-10"]
    orders = [Order(2 + 4 * turn, [Line("x", 2 + 4 * turn)]) for turn in range(3)]
    if not lines:
        orders[:2] = [Order(order.number, [{"sku": "x", "count": order.number}]) for order in orders[:2]]  # type: ignore[list-item]
    assert said["orders"] == orders
    assert said["facts"]["big"] == 2**53 + 1 and said["raw"] == b"\x00\x80\xff" and said["seen"] == {"n10"}


def nested_goes_on(saver: Any) -> None:
    """Answer the second question."""
    said = nested(saver).invoke(Command(resume="two"), of("user-nested"))
    assert said["answers"] == ["start", "start", "before", "one", "two"]


def sends_go_on(saver: Any) -> None:
    said = sends(saver).invoke(Command(resume="yes"), of("user-sends"))
    assert said["items"] == ["go", "plan", "done 0", "asked yes", "done 2"]
