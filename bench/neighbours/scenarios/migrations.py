"""A thread and items of an older schema, which are migrated when they are read, and written back."""

from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from langmigrate import MigrationRegistry, migration, setup_langmigrate, setup_langmigrate_store
from scripted import thread


class Old(TypedDict):
    said: Annotated[list[str], list.__add__]
    count: str


class New(TypedDict):
    texts: Annotated[list[str], list.__add__]
    count: int
    context: dict[str, Any]


@migration("1", down_revision=None, slug="rename")
def rename(state: Any) -> Any:
    return state.rename_field("said", "texts")


@migration("2", down_revision="1", slug="types")
def types(state: Any) -> Any:
    return state.coerce_field("count", int).add_field("context", factory=dict)


def ask(state: Any) -> Any:
    return {"texts" if "texts" in state else "said": [interrupt("What next?")]}


def run(saver: Any, store: Any, cache: Any) -> Any:
    config, item = thread(), ("items", "ada")
    old = StateGraph(Old).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)
    old.invoke({"said": ["hello"], "count": "7"}, config)
    store.put(item, "old", {"count": "8"})
    store.put(item, "older", {"count": "9"})
    revisions = MigrationRegistry([rename, types])
    migrated = setup_langmigrate_store(store, revisions)
    builder = StateGraph(New).add_node("ask", ask).add_edge(START, "ask")
    graph = builder.compile(checkpointer=setup_langmigrate(saver, revisions), store=migrated)
    seen = [
        graph.get_state(config),
        graph.invoke(Command(resume="tea"), config),
        graph.invoke({"texts": ["a"]}, config),
    ]
    seen += [migrated.get(item, "old").value, [each.value for each in migrated.search(item, filter={"count": "9"})]]
    graph.update_state(config, {"context": {"by": "hand"}})
    return graph, [config], seen
