"""`prune` leaves the same of LangGraph's threads as `PostgresSaver.prune`, and they continue alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AnyMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from redis_saver import RedisSaver
from redis_saver._migrate.engine import migrate


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    asks: bool


class Part(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    asks: bool
    count: int


def graph(saver: Any) -> Any:
    """Make a graph with nested subgraphs, whose calls are forgotten, and one with memory (`checkpointer=True`)."""

    def answer(state: Part) -> Any:
        said = interrupt("may I?") if state.get("asks") else "unasked"
        return {"messages": [("ai", f"done {said}")]}

    def think(state: Part) -> Any:
        return {"messages": [("ai", "thinking")]}

    def count(state: Part) -> Any:
        return {"count": state.get("count", 0) + 1, "messages": [("ai", f"seen {state.get('count', 0) + 1}")]}

    def child(**nodes: Any) -> StateGraph[Any]:
        built: Any = StateGraph(Part)
        built.add_sequence(list(nodes.items()))
        return built.add_edge(START, next(iter(nodes)))  # type: ignore[no-any-return]

    inner = child(think=think, answer=answer).compile()
    outer = child(before=think, inner=inner).compile()
    built: Any = StateGraph(State)
    built.add_node("memory", child(count=count).compile(checkpointer=True))
    built.add_node("outer", outer)
    built.add_node("end", lambda _: {"messages": [("ai", "bye")]})
    built.add_edge(START, "memory").add_edge("memory", "outer").add_edge("outer", "end")
    return built.compile(checkpointer=saver)


@pytest.fixture
def both(database: str, target: Any) -> Iterator[tuple[RedisSaver, PostgresSaver]]:
    with PostgresSaver.from_conn_string(database) as cold:
        cold.setup()
        yield target.uniform().saver, cold


def left(saver: Any) -> dict[Any, Any]:
    """Parent, values and pending writes of each checkpoint."""
    return {
        (one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]): (
            (one.parent_config or {}).get("configurable", {}).get("checkpoint_id"),
            one.checkpoint["channel_values"],
            one.pending_writes,
        )
        for one in saver.list(HERE)
    }


def shown(state: Any) -> Any:
    """Return a state with those of its subgraphs, without generated message ids."""
    return (
        [one.content for one in state.values.get("messages", [])],
        state.next,
        [one.value for one in state.interrupts],
        [(one.name, shown(one.state) if hasattr(one.state, "values") else None) for one in state.tasks],
    )


HERE: Any = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
@pytest.mark.parametrize("asks", [[False], [False, False], [True], [False, True], [False, False, True]])
def test_a_pruned_graph_continues_as_on_postgres(both: Any, asks: list[bool]) -> None:
    hot, cold = both
    cold.delete_thread("t")
    for turn, one in enumerate(asks):
        graph(hot).invoke({"messages": [("user", f"turn {turn}")], "asks": one}, HERE)
    assert not migrate(hot, cold, thread_prefix="t").failed
    before = left(hot)
    assert left(cold).keys() == before.keys()
    cold.prune(["t"])
    hot.prune(["t"])
    assert left(hot) == left(cold)
    namespaces = {ns for ns, _ in left(hot)}
    assert len(namespaces) == (4 if asks[-1] else 2)
    assert len(left(hot)) == len(namespaces)
    assert {parent for parent, *_ in left(hot).values()} == {None}
    assert shown(graph(hot).get_state(HERE, subgraphs=True)) == shown(graph(cold).get_state(HERE, subgraphs=True))
    given = Command(resume="yes") if asks[-1] else {"messages": [("user", "again")]}
    states = []
    for saver in both:
        graph(saver).invoke(given, HERE)
        states.append(shown(graph(saver).get_state(HERE, subgraphs=True)))
    assert states[0] == states[1]
    assert states[0][0][-1] == "bye"
    memory = [text for text in states[0][0] if text.startswith("seen")]
    assert memory == [f"seen {turn + 1}" for turn in range(len(asks) + (not asks[-1]))]
    assert hot.check("t").sound
