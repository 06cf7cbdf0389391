from __future__ import annotations

import dataclasses
import operator
import random
from collections.abc import Callable
from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from bench.contestants import Contestant
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter


class Notes(BaseModel):
    """A state in a pydantic model."""

    entries: list[str] = []  # noqa: RUF012 - pydantic copies it


@dataclasses.dataclass
class Record:
    """A state in a dataclass."""

    entries: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A state that grows: its start, what a turn adds, and how both are joined."""

    start: Any
    more: Callable[[random.Random, int], Any]
    join: Callable[[Any, Any], Any] = operator.add


def text(chance: random.Random, size: int) -> str:
    return " ".join(f"{chance.randrange(10**7):x}" for _ in range(size // 5))[:size]


def parts(chance: random.Random) -> list[str]:
    return [text(chance, 1000) for _ in range(4)]


def named(chance: random.Random, turn: int) -> dict[str, str]:
    return {f"{turn} {number}": part for number, part in enumerate(parts(chance))}


def edited(before: str, chance: random.Random, _: int = 0) -> str:
    """Return a file with three other lines."""
    lines = before.split("\n")
    for _ in range(3):
        lines[chance.randrange(len(lines))] = text(chance, 60)
    return "\n".join(lines)


FILE = "\n".join(text(random.Random(number), 60) for number in range(320))
SHAPES = {
    "a dict": Shape({}, named, operator.or_),
    "a dict in a dict": Shape({"in": {}}, named, lambda old, new: {"in": {**old["in"], **new}}),
    "a list in a list": Shape([[]], lambda chance, _: parts(chance), lambda old, new: [old[0] + new]),
    "a tuple in a dict": Shape(
        {"in": ()}, lambda chance, _: tuple(parts(chance)), lambda old, new: {"in": (*old["in"], *new)}
    ),
    "a pydantic model": Shape(
        Notes(), lambda chance, _: parts(chance), lambda old, new: Notes(entries=[*old.entries, *new])
    ),
    "a dataclass": Shape(Record(), lambda chance, _: parts(chance), lambda old, new: Record([*old.entries, *new])),
    "a text": Shape("", lambda chance, _: text(chance, 4000)),
    "bytes": Shape(b"", lambda chance, _: chance.randbytes(4000)),
    "an edited file of 20 kB": Shape(FILE, edited, lambda _, new: new),
}
RETURNS = REDUCED, WHOLE = "what is new", "the whole value"


def run(run: Run) -> None:
    """40 turns that add 4 kB each to a state of some shape, or edit a file in it: bytes sent and kept."""
    turns = run.size(40, 10, 2)
    for name, shape in list(SHAPES.items())[: run.size(None, None, 1)]:
        for returns in (REDUCED, WHOLE):
            case = {"shape": name, "returns": returns, "turns": turns, "flavour": "sync", "durability": "sync"}

            def act(contestant: Contestant, _: int, shape: Shape = shape, case: dict[str, Any] = case) -> None:
                if isinstance(contestant.meter, RedisMeter):
                    play(run, contestant, contestant.meter, shape, case)

            run.rotate(f"shapes: {name}, nodes return {returns}", 1, act)


def play(run: Run, contestant: Contestant, meter: RedisMeter, shape: Shape, case: dict[str, Any]) -> None:
    """Play the turns in a new thread."""
    chance, wanted, added = random.Random(1), shape.start, list[Any]()
    is_reduced = case["returns"] == REDUCED
    state: Any = TypedDict("State", {"value": Annotated[Any, shape.join] if is_reduced else Any, "turn": int})

    def work(values: Any) -> dict[str, Any]:
        return {"value": added[-1] if is_reduced else shape.join(values["value"], added[-1])}

    graph = StateGraph(state).add_node("work", work).add_edge(START, "work").compile(checkpointer=contestant.saver)
    config: Any = {"configurable": {"thread_id": contestant.thread()}}
    graph.update_state(config, {"value": shape.start, "turn": 0}, as_node="work")
    before, kept = meter.traffic(), meter.keys()[1]
    for turn in range(case["turns"]):
        added.append(shape.more(wanted, chance) if shape.start == FILE else shape.more(chance, turn))
        wanted = shape.join(wanted, added[-1])
        found = graph.invoke({"turn": turn}, config, durability="sync")["value"]
        if found != wanted:
            raise WrongResult(f"the value after turn {turn} is not what was added")
    run.sample(contestant, case, "sent", "kB", meter.between(before, meter.traffic()).sent / 1000)
    run.sample(contestant, case, "kept", "kB", (meter.keys()[1] - kept) / 1000)
