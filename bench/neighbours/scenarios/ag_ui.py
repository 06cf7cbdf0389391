"""A client of the AG-UI protocol: events of a run, an interrupt, and an edited message that forks the thread."""

import asyncio
from typing import Any

from ag_ui.core import ResumeEntry, RunAgentInput, UserMessage
from ag_ui_langgraph import LangGraphAgent
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from scripted import model, thread


def run(saver: Any, store: Any, cache: Any) -> Any:
    says = model("Hello there Ada", "You said yes", "Hello again", disable_streaming=False)

    async def bot(state: MessagesState) -> Any:
        return {"messages": [await says.ainvoke(state["messages"])]}

    def approve(state: MessagesState) -> Any:
        sure = "sure" in state["messages"][-2].text
        return {"messages": [("user", interrupt({"question": "Sure?"}))] if sure else []}

    builder = StateGraph(MessagesState).add_node("bot", bot).add_node("approve", approve)
    graph = builder.add_edge(START, "bot").add_edge("bot", "approve").compile(checkpointer=saver, store=store)
    agent = LangGraphAgent(name="bot", graph=graph, emit_interrupt_outcome=True, emit_raw_events=False)
    history: list[Any] = []

    async def ask(run_id: str, *messages: UserMessage, resume: Any = None) -> list[Any]:
        said: Any = {"thread_id": "1", "run_id": run_id, "messages": [*history, *messages], "resume": resume}
        asked = RunAgentInput(**said, state={}, tools=[], context=[], forwarded_props={})
        events = [event async for event in agent.run(asked)]
        history[:] = [event.messages for event in events if event.type == "MESSAGES_SNAPSHOT"][-1]
        return [event.model_dump(exclude={"timestamp"}) for event in events]

    async def chat() -> list[Any]:
        seen = [await ask("a", UserMessage(id="m1", content="Hi"))]
        seen += [await ask("b", UserMessage(id="m2", content="Are you sure?"))]
        found = (await graph.aget_state(thread())).interrupts
        seen += [await ask("c", resume=[ResumeEntry(interrupt_id=found[0].id, status="resolved", payload="yes")])]
        history[:] = []
        return [*seen, await ask("d", UserMessage(id="m1", content="Hi, edited"))]

    return graph, [thread()], asyncio.run(chat())
