"""Tools that manage and search memories, a manager that extracts them, and a summary in the state."""

from typing import Any

from langchain.agents import create_agent
from langgraph.graph import START, MessagesState, StateGraph
from langmem import create_manage_memory_tool, create_memory_store_manager, create_search_memory_tool
from langmem.short_term import RunningSummary, SummarizationNode
from scripted import asking, call, model, thread

NOTES, FACTS = ("notes", "{user}"), ("facts", "{user}")


class State(MessagesState):
    summarized_messages: list[Any]
    context: dict[str, RunningSummary]


def run(saver: Any, store: Any, cache: Any) -> Any:
    says = model(
        call("manage_memory", content="Ada drinks tea", action="create"),
        "Noted",
        call("manage_memory", content="Ada has a zebra", action="create"),
        "Noted, too",
        call("search_memory", query="zebra", limit=1),
        "A zebra",
    )
    agent = create_agent(says, [create_manage_memory_tool(NOTES), create_search_memory_tool(NOTES)], store=store)
    extract = model(*(call("Memory", content=f"Ada lives in {city}") for city in ("Lisbon", "Porto", "Quito")))
    manager = create_memory_store_manager(extract, namespace=FACTS, store=store)
    summary = model("Summary 1", "Summary 2", "Summary 3")
    summarize = SummarizationNode(model=summary, max_tokens=60, max_tokens_before_summary=40, max_summary_tokens=20)

    def remember(state: State) -> None:
        manager.invoke({"messages": state["messages"][-2:], "max_steps": 1})

    builder = StateGraph(State).add_node("agent", agent).add_node("remember", remember).add_node("summarize", summarize)
    builder.add_edge(START, "agent").add_edge("agent", "remember").add_edge("remember", "summarize")
    graph = builder.compile(checkpointer=saver, store=store)
    config = thread(user="ada")
    seen = [graph.invoke(asking(text), config) for text in ("I drink tea", "I have a zebra", "What do I have?")]
    return graph, [config], seen
