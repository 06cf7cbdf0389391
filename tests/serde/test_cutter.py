"""Cutting bytes: equal contents give equal pieces wherever they stand, and a change leaves most pieces."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import langchain_core.messages as lc
import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send
from pydantic import BaseModel
from tests.support.compiled import compiled_left_out, needs_compiled
from tests.support.seeds import seeds_and_slow

from redis_saver._serde import cutter
from redis_saver._serde.cutter import PUBLIC, gear_of
from redis_saver._serde.serializer import FastSerializer

SERDE = FastSerializer()


class Model(BaseModel):
    """A state of a user."""

    name: str
    entries: list[Any] = []  # noqa: RUF012 - pydantic copies it


@dataclasses.dataclass
class Record:
    """A state of a user."""

    name: str
    entries: Any


def words(chance: random.Random, size: int) -> str:
    return " ".join(map(str, chance.choices(range(10**6), k=size // 6)))[:size]


def leaf(chance: random.Random) -> Any:
    size = chance.choice([0, 1, 20, 200, 700, 2500, 9000])
    kinds: list[Callable[[], Any]] = [
        lambda: words(chance, size), lambda: chance.randbytes(size), lambda: "x" * size, lambda: list(range(size // 4)),
        lambda: chance.choice([None, True, 1.5, 2**63, -(2**40), -5, 300, -70000]),
        lambda: lc.AIMessage(words(chance, size), id=str(size)),
        lambda: set(chance.choices(range(10**9), k=size // 9)),
        lambda: Model(name="m", entries=[words(chance, size)] * 2),
    ]  # fmt: skip
    return chance.choice(kinds)()


def anything(chance: random.Random, depth: int = 0) -> Any:
    if depth > 3 or (depth and chance.random() < 0.4):
        return leaf(chance)
    inner = [anything(chance, depth + 1) for _ in range(chance.choice([1, 2, 3, 12][: 4 - depth // 2]))]
    kinds: list[Callable[[], Any]] = [
        lambda: inner, lambda: tuple(inner), lambda: Record("r", inner), lambda: Send("node", inner),
        lambda: {f"key {number}": one for number, one in enumerate(inner)}, lambda: dict(enumerate(inner)),
        lambda: _DeltaSnapshot(inner) if not depth else inner,
    ]  # fmt: skip
    return chance.choice(kinds)()


@pytest.mark.random
@needs_compiled
@pytest.mark.parametrize("seed", seeds_and_slow(range(20), range(20, 400)))
def test_the_compiled_part_and_python_agree(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(15):
        kind, data = SERDE.dumps_typed(anything(chance))
        damaged = bytearray(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.5 else data)
        for _ in range(chance.choice([0, 1, 5]) if damaged else 0):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        for each in {data: 0, bytes(damaged): 0, chance.randbytes(3000): 0}:
            coarse = chance.choice([0, 0, 3])
            found = cutter.cut(kind, each, PUBLIC, coarse)
            with compiled_left_out():
                assert cutter.cut(kind, each, PUBLIC, coarse) == found
            if len(each) < cutter.OPENED:
                assert found is None
            else:
                assert found
                assert found.head + b"".join(found.pieces) == each
                assert len(found.pieces) <= len(each) / 32


def chat(chance: random.Random) -> list[Any]:
    return [lc.HumanMessage(words(chance, chance.choice([50, 300, 1500, 4000])), id=str(n)) for n in range(20)]


CONTENTS: dict[str, Callable[[random.Random], Any]] = {
    "text": lambda chance: words(chance, 9000),
    "bytes": lambda chance: chance.randbytes(9000),
    "chat": chat,
    "rows": lambda chance: [{"id": n, "name": words(chance, 20)} for n in range(200)],
    "numbers": lambda chance: chance.choices(range(10**6), k=3000),
    "dict": lambda chance: {f"key {n}": words(chance, 300) for n in range(40)},
    "files": lambda chance: {f"{n}.py": words(chance, 3000) for n in range(4)},
    "objects": lambda chance: [Record(str(n), words(chance, 100)) for n in range(60)],
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "in a dict": lambda value: {"a": 1, "b": value, "c": "more"},
    "in a list": lambda value: ["before", value, "after"],
    "in a tuple in a dict": lambda value: {"a": (1, value)},
    "in a model": lambda value: Model(name="m", entries=[value]),
    "in a dataclass": lambda value: Record("r", value),
    "in a Send": lambda value: Send("node", {"messages": value, "steps": 4}),
    "in a tool's Send": lambda value: Send("tools", {"tool_call": {"id": "1"}, "state": {"messages": value}}),
    "in a snapshot": lambda value: _DeltaSnapshot([value, 1]),
}


def pieces(value: Any) -> list[bytes]:
    found = cutter.cut(*SERDE.dumps_typed(value))
    assert found
    return found.pieces


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("contents", CONTENTS)
def test_equal_contents_give_equal_pieces_wherever_they_stand(contents: str, place: str) -> None:
    if place == "in a model" and contents in ("chat", "objects"):
        return  # pydantic makes dicts of the objects in a model
    value = CONTENTS[contents](random.Random(1))
    assert set(pieces(value)) <= set(pieces(PLACES[place](value)))


def grown(value: Any, chance: random.Random) -> Any:
    """Return a value with more at its end, of the same kind as its contents."""
    if isinstance(value, list):
        return [*value, value[chance.randrange(len(value))]]
    if isinstance(value, dict):
        return {**value, "more": words(chance, 300)}
    return value + type(value)(value[:300])


def edited(value: Any, chance: random.Random) -> Any:
    """Return a value with a small change in its middle."""
    at = len(value) // 2
    if isinstance(value, list):
        return [*value[:at], value[0], *value[at + 1 :]]
    if isinstance(value, dict):
        name = list(value)[at]
        return {**value, name: words(chance, 300) if len(value) > 10 else edited(value[name], chance)}
    return value[:at] + type(value)(value[:20]) + value[at + 30 :]


@pytest.mark.parametrize("change", [grown, edited])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("contents", CONTENTS)
def test_a_change_leaves_most_pieces(contents: str, place: str, change: Callable[..., Any]) -> None:
    chance = random.Random(2)
    value = CONTENTS[contents](chance)
    before = set(pieces(PLACES[place](value)))
    new = set(pieces(PLACES[place](change(value, chance)))) - before
    assert sum(map(len, new)) < 3000 + 4000 * (contents == "chat")


@pytest.mark.parametrize("seed", range(5))
def test_pieces_have_about_half_a_kilobyte(seed: int) -> None:
    chance = random.Random(seed)
    for contents in ("text", "bytes", "rows", "numbers", "dict", "objects"):
        value = [CONTENTS[contents](chance) for _ in range(5)]
        sizes = list(map(len, pieces(value)))
        assert 350 < sum(sizes) / len(sizes) < 750, contents
        assert max(sizes) < 2048 + 512


@needs_compiled
def test_a_long_string_has_few_pieces() -> None:
    for size in (400_000, 3_000_000, 64 * 2**20):
        found = cutter.cut("bytes", random.Random(4).randbytes(size))
        assert found
        assert 400 < len(found.pieces) < 1500


def test_only_msgpack_and_bytes_are_cut() -> None:
    for kind in ("bytes", "bytearray", "pickle", "json", "msgpack+aes"):
        assert (cutter.cut(kind, b"x" * 9000) is not None) == kind.startswith("byte")


def test_with_other_numbers_strings_are_cut_elsewhere() -> None:
    """So the sizes of the chunks of a known text do not show that an encrypted thread has it."""
    kind, data = SERDE.dumps_typed(words(random.Random(3), 30_000))
    ends = [cutter.cut(kind, data, gear) for gear in (PUBLIC, gear_of(b"one"), gear_of(b"two"))]
    shared = set(ends[0].pieces) & set(ends[1].pieces), set(ends[1].pieces) & set(ends[2].pieces)  # type: ignore[union-attr]
    assert max(map(len, shared)) < 4
