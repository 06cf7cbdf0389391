"""A chat that needs no model: the last message decides what happens next."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from langchain_core.messages import AnyMessage
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import NotRequired, TypedDict


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: NotRequired[int]


def route(state: State) -> str:
    said = str(state["messages"][-1].content)
    return said if said in ("ask", "slow", "remember") else "reply"


async def reply(state: State) -> dict[str, Any]:
    return {"messages": [("ai", f"echo: {state['messages'][-1].content}")], "turns": state.get("turns", 0) + 1}


async def ask(state: State) -> dict[str, Any]:
    return {"messages": [("ai", f"answer: {interrupt({'question': 'sure?'})}")]}


async def remember(state: State) -> dict[str, Any]:
    store = get_store()
    await store.aput(("memories", "chat"), "last", {"said": str(state["messages"][0].content)})
    return {"messages": [("ai", f"I know {len(await store.asearch(('memories',)))}")]}


async def slow(state: State) -> dict[str, Any]:
    await asyncio.sleep(60)
    return {"messages": [("ai", "too late")]}


builder = StateGraph(State)
for node in (reply, ask, remember, slow):
    builder.add_node(node.__name__, node)
    builder.add_edge(node.__name__, END)
builder.add_conditional_edges(START, route, ["reply", "ask", "remember", "slow"])
graph = builder.compile()
