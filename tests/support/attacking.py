"""Attacks on encrypted threads: a graph that writes all kinds of records, and what a reader may answer after an attack."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.graph import StateGraph
from langgraph.types import Command, Send, interrupt
from tests.support.factories import config
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(lambda state, writes: state + sum(writes, []), snapshot_frequency=3)]
    long: Annotated[list[str], lambda before, more: before + more]
    done: Annotated[list[str], lambda before, more: before + more]
    turn: int


def graph(saver: Any) -> Any:
    """A graph with a `DeltaChannel`, a value in chunks, long `Send`s, a subgraph with a namespace, and interrupts."""
    inner = StateGraph(State)
    inner.add_node("think", lambda state: {"log": [f"thought {state['turn']}"]})
    inner.set_entry_point("think")

    def plan(state: State) -> dict[str, Any]:
        more = [f"{state['turn']}.{number} " * 60 for number in range(5)]
        return {"log": [f"planned {state['turn']}"], "long": more}

    def fan_out(state: State) -> list[Send]:
        return [Send("work", {"what": number, "long": state["long"]}) for number in range(2)]

    def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt("go on?")], "turn": state["turn"] + 1}

    builder = StateGraph(State)
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_node("plan", plan)
    builder.add_node("work", lambda part: {"done": [f"did {part['what']}"], "log": [f"worked {part['what']}"]})
    builder.add_node("ask", ask)
    builder.set_entry_point("inner")
    builder.add_edge("inner", "plan")
    builder.add_conditional_edges("plan", fan_out, ["work"])
    builder.add_edge("work", "ask")
    return builder.compile(checkpointer=saver)


def turn(saver: Any, thread: str, number: int, word: str) -> None:
    graph(saver).invoke({"log": [f"{word} {number}"], "turn": number, "long": [], "done": []}, config(thread, None))
    graph(saver).invoke(Command(resume=f"{word} yes"), config(thread, None))


class Honest(NamedTuple):
    """What is answered about a thread without an attack."""

    tuples: dict[tuple[str, str], list[CheckpointTuple]]
    """By namespace and id: all that was ever written there."""
    histories: dict[tuple[str, str], Any]
    writes: list[Any]


def key_of(saved: CheckpointTuple) -> tuple[str, str]:
    where = saved.config["configurable"]
    return where["checkpoint_ns"], where["checkpoint_id"]


def records_of(writes: Any) -> dict[tuple[str, str], list[Any]]:
    """Return writes by their record: those of a task, or a special one."""
    found: dict[tuple[str, str], list[Any]] = {}
    for task, channel, value in writes:
        found.setdefault((task, channel if channel in WRITES_IDX_MAP else ""), []).append((channel, value))
    return found


def check_tuple(saved: CheckpointTuple, honest: Honest, thread: str, *, hides: bool) -> None:
    variants = honest.tuples[key_of(saved)]
    assert saved.config["configurable"]["thread_id"] == thread
    heads = [(one.checkpoint, one.metadata) for one in variants]
    assert (saved.checkpoint, saved.metadata) in heads, "another checkpoint"
    assert saved.parent_config is None or saved.parent_config in [one.parent_config for one in variants]
    records = records_of(saved.pending_writes)
    for key, writes in records.items():
        assert writes in [records_of(one.pending_writes).get(key) for one in variants], "other writes"
    assert hides or records.keys() == records_of(variants[0].pending_writes).keys()
    asked = [records_of(one.pending_writes) for one in variants]
    for task in {task for task, _ in records}:
        pair = [(task, "__interrupt__"), (task, "__resume__")]
        if set(pair) <= records.keys():  # else one is hidden
            together = [[one.get(key) for key in pair] for one in asked]
            assert [records[key] for key in pair] in together, "never together"


def check_history(history: Any, honest: Any, target: CheckpointTuple, *, hides: bool) -> None:
    for channel, wanted in honest.items():
        found = history[channel]
        if found == {"writes": []} and (hides or channel in target.checkpoint["channel_values"]):
            continue  # the target itself is hidden, or it has a value, so that prune could have cut off its parent
        assert found.get("seed") == wanted.get("seed") and ("seed" in found) == ("seed" in wanted), "another seed"
        tasks = {task for task, *_ in found["writes"]}
        kept = [write for write in wanted["writes"] if not hides or write[0] in tasks]
        assert found["writes"] == kept, "other writes"
        if channel not in target.checkpoint["channel_values"]:  # else no child relies on them
            assert len(kept) == len(wanted["writes"]), "writes are hidden that the writer of the child had seen"
