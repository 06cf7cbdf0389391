"""Facts that are extracted, updated and skipped by similarity, and recalled by a node."""

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_memory import ConsolidationDecision, ExtractedFact, MemoryConfig, MemoryEngine
from scripted import asking, call, model, thread


class State(MessagesState):
    memory: str


def facts(*texts: str) -> Any:
    found = [{"content": text, "importance": 0.7, "categories": ["home"]} for text in texts]
    return call("ExtractedFacts", facts=found)


def run(saver: Any, store: Any, cache: Any) -> Any:
    user = ("memories", "ada")
    says = model(facts("Ada drinks tea", "Ada has a zebra"), facts("Ada drinks tea"), facts("Ada has two zebras"))

    def consolidate(fact: ExtractedFact, similar: Any) -> ConsolidationDecision:
        return ConsolidationDecision(action="update", target_key=similar[0][0].key, content=fact.content)

    settings = MemoryConfig(consolidation_threshold=0.95)
    engine = MemoryEngine(store, says, consolidator=consolidate, config=settings)
    seen: list[Any] = [engine.remember(text, user) for text in ("tea, a zebra", "tea", "two zebras")]
    seen += [engine.remember("Ada had a very young fox", user, extract=False, metadata={"sure": True})]
    # InMemoryStore finds the oldest first, ours and PostgresStore the newest first.
    seen += [engine.recall("zebra", user, limit=2), sorted(engine.list(user), key=lambda record: record.content)]

    def recall(state: State, config: RunnableConfig) -> Any:
        return engine.recall_node(limit=2)(state, config)

    def forget(state: State) -> Any:
        return {"messages": [("ai", f"{engine.forget(user, categories=['home'])} forgotten")]}

    builder = StateGraph(State).add_node("recall", recall).add_node("forget", forget)
    graph = builder.add_edge(START, "recall").add_edge("recall", "forget").compile(checkpointer=saver, store=store)
    config = thread(memory_namespace=user)
    return graph, [config], [*seen, graph.invoke(asking("Which zebra?"), config), engine.recall("zebra", user)]
