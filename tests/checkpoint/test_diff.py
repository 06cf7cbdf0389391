"""Differences between two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, put
from langchain_core.messages import AIMessage, HumanMessage
from tests.support.uniform import Uniform

from redis_saver import Change, ChannelDiff, RedisSaver, ThreadNotFound
from redis_saver._checkpoint.comparing import Record, difference

pytestmark = pytest.mark.also_on(cluster="sync")


@dataclass
class Point:
    x: int
    y: int


async def differing(saver: Uniform, before: Any, after: Any) -> tuple[Change, ...]:
    """The changes of one channel."""
    first = await put(saver, config("t"), {"n": before}, versions={"n": "1"})
    second = await put(saver, first, {"n": after}, versions={"n": "2"})
    ids = [where["configurable"]["checkpoint_id"] for where in (first, second)]
    found = await saver.diff("t", *ids)
    assert (found.thread_id, found.checkpoint_ns, found.before, found.after) == ("t", "", *ids)
    assert await saver.diff("t", ids[0]) == found, "the default is the newest checkpoint"
    assert (await saver.diff("t", ids[1], ids[0])).channels == () or found.channels
    assert (await saver.diff("t", ids[1], ids[1])).channels == ()
    return found.channels[0].changes if found.channels else ()


def human(text: str, name: str | None, **more: Any) -> HumanMessage:
    return HumanMessage(text, id=name, **more)


CASES: list[tuple[str, Any, Any, list[tuple[Any, ...]]]] = [
    ("equal", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, []),
    ("scalars", 1, 2, [("changed", (), 1, 2)]),
    ("types", 1, True, [("changed", (), 1, True)]),
    ("int and float", 1, 1.0, [("changed", (), 1, 1.0)]),
    ("nan", float("nan"), float("nan"), []),
    ("nan in a set, and as a key", [{float("nan")}, {float("nan"): 1}], [{float("nan")}, {float("nan"): 1}], []),
    ("None is a value", None, 0, [("changed", (), None, 0)]),
    (
        "dicts",
        {"a": 1, "b": {"c": 1, "d": 2}, "e": 0},
        {"a": 1, "b": {"c": 3, "d": 2}, "f": 9},
        [("changed", ("b", "c"), 1, 3), ("removed", ("e",), 0, None), ("added", ("f",), None, 9)],
    ),
    ("keys of other types", {1: "a"}, {1: "b", "1": "c"}, [("changed", (1,), "a", "b"), ("added", ("1",), None, "c")]),
    ("a longer list", [1, 2], [1, 2, 3, 4], [("added", (2,), None, 3), ("added", (3,), None, 4)]),
    ("in front of a list", [{"a": 1}, 2], [9, {"a": 1}, 2], [("added", (0,), None, 9)]),
    ("in the middle of a list", [1, 2, 3, 4], [1, 4], [("removed", (1,), 2, None), ("removed", (2,), 3, None)]),
    ("an element of a list", [1, {"a": [1, 2]}, 3], [1, {"a": [1, 5]}, 3], [("changed", (1, "a", 1), 2, 5)]),
    ("the same element twice", ["a", "a"], ["a", "a", "a"], [("added", (2,), None, "a")]),
    ("an empty list", [], [1], [("added", (0,), None, 1)]),
    ("objects", Point(1, 2), Point(1, 3), [("changed", (), Point(1, 2), Point(1, 3))]),
    ("equal objects", [Point(1, 2)], [Point(1, 2)], []),
    ("sets", {"a", "b", "c"}, {"c", "d", "b"}, [("removed", ("a",), "a", None), ("added", ("d",), None, "d")]),
    ("equal sets", {0, 8}, {8, 0}, []),
    ("sets of other types", {1}, {True}, [("changed", (1,), 1, True)]),
    ("bytes", b"a", b"b", [("changed", (), b"a", b"b")]),
    (
        "messages by id",
        [human("one", "1"), human("two", "2")],
        [human("new", "0"), human("two!", "2"), human("three", "3")],
        [("removed", ("1",), human("one", "1"), None), ("changed", ("2", "content"), "two", "two!"),
         ("added", ("0",), None, human("new", "0")), ("added", ("3",), None, human("three", "3"))],
    ),
    ("the first message", [], [human("one", "1")], [("added", ("1",), None, human("one", "1"))]),
    ("moved messages", [human("a", "1"), human("b", "2")], [human("b", "2"), human("a", "1")], []),
    ("messages without ids", [human("a", None)], [human("b", None)], [("changed", (0, "content"), "a", "b")]),
    (
        "a message of another kind",
        [human("a", "1")], [AIMessage("a", id="1")], [("changed", ("1",), human("a", "1"), AIMessage("a", id="1"))],
    ),
    (
        "inside of a message",
        [AIMessage("a", id="1", additional_kwargs={"k": [1]})],
        [AIMessage("a", id="1", additional_kwargs={"k": [2]}, name="bot")],
        [("changed", ("1", "additional_kwargs", "k", 0), 1, 2), ("changed", ("1", "name"), None, "bot")],
    ),
]  # fmt: skip


@pytest.mark.parametrize("target_name", ["redis"])
async def test_values_are_compared_by_element(saver: Uniform) -> None:
    for name, before, after, expected in CASES:
        found = [(one.kind, one.path, one.before, one.after) for one in await differing(saver, before, after)]
        assert repr(found) == repr(expected), name


async def test_channels_are_added_removed_and_changed(saver: Uniform) -> None:
    name = "line\nbreak\0"
    for ns in ("", name):
        first = await put(saver, config(name, ns), {"a": 1, name: 2, "same": 3, "equal": [1]}, checkpoint_id="1")
        versions = {"b": "1", name: "2", "same": "1", "equal": "2"}
        await put(saver, first, {"b": 1, name: 9, "same": 3, "equal": [1]}, checkpoint_id="2", versions=versions)
        found = await saver.diff(name, "1", "2", checkpoint_ns=ns)
        assert found.channels == (
            ChannelDiff("a", "removed", (Change("removed", (), 1, None),)),
            ChannelDiff("b", "added", (Change("added", (), None, 1),)),
            ChannelDiff(name, "changed", (Change("changed", (), 2, 9),)),
        )
        back = await saver.diff(name, "2", "1", checkpoint_ns=ns)
        kinds = [(one.channel, one.kind) for one in back.channels]
        assert kinds == [("a", "added"), ("b", "removed"), (name, "changed")]


async def test_deeply_nested_values_are_compared(saver: Uniform) -> None:
    def nested(value: Any) -> Any:
        for _ in range(200):
            value = {"k": value}
        return value

    (change,) = await differing(saver, nested(1), nested(2))
    assert (change.path, change.before, change.after) == (("k",) * 200, 1, 2)


async def test_a_missing_checkpoint_is_named(saver: Uniform) -> None:
    await put(saver, config("t"), {"n": 1}, checkpoint_id="1")
    for arguments in (("t", "1", "2"), ("t", "2"), ("nobody", "1"), ("nobody", "1", "1")):
        with pytest.raises(ThreadNotFound, match=f"of thread '{arguments[0]}' is not there"):
            await saver.diff(*arguments)
    with pytest.raises(ThreadNotFound, match="'sub'"):
        await saver.diff("t", "1", checkpoint_ns="sub")


def test_wrong_arguments_are_refused() -> None:
    with RedisSaver.from_conn_string("redis://127.0.0.1:1") as saver:
        with pytest.raises(TypeError, match="before=b'1'"):
            saver.diff("t", b"1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="checkpoint_ns=None"):
            saver.diff("t", "1", checkpoint_ns=None)  # type: ignore[arg-type]


# -- differences between a checkpoint and the target's copy of it


def record(values: dict[Any, Any], parent: str | None = None, **fields: Any) -> Record:
    made: Any = {**checkpoint(values, {}, "1"), **fields}
    return Record(("", "1"), parent, made, {}, [])


def test_difference_names_what_differs() -> None:
    """A damaged checkpoint may have channel names that are not strings."""
    for one, found, said in (
        (record({"n": 1}), record({"n": 1}), ""),
        (record({"": 1}), record({"": 2}), "the value of channel ''"),
        (record({"": 1}), record({}), "the value of channel ''"),
        (record({7: 1, "a": 1}), record({"a": 1}), "the value of channel '7'"),
        (record({"n": 1}, v=4), record({"n": 1}, v=5), "the field 'v'"),
        (record({"n": 1}, "0"), record({"n": 1}), "its parent is '0', and None there"),
    ):
        assert difference(one, found, dict) == said
