"""`check_values` names exactly the values that come back from the server as something else."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import logging
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pydantic.v1
import pytest
from tests.support.factories import checkpoint, config, put
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send, interrupt
from pydantic import BaseModel, ConfigDict, PrivateAttr, TypeAdapter
from tests.support.raw import contents
from tests.support.tiering import Tiers
from tests.support.uniform import Target

from redis_saver import EncodeError, ValueChanged
from redis_saver._serde import comparing
from redis_saver._serde.comparing import compared

pytestmark = pytest.mark.also_on(cluster="async")


class Status(str, enum.Enum):
    OPEN = "open"


class Level(enum.IntEnum):
    LOW = 1


class Pair(enum.Enum):
    ONE = (1, 2)


@dataclasses.dataclass
class Point:
    x: Any


class Inner(BaseModel):
    value: Any = None


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    inner: Inner | None = None
    anything: Any = None
    _cached: int = PrivateAttr(0)


class Old(pydantic.v1.BaseModel):
    value: Any = None


@dataclasses.dataclass
class Started:
    count: dataclasses.InitVar[int] = 0

    def __post_init__(self, count: int) -> None:
        self.counted = count


class Outer:
    @dataclasses.dataclass
    class Nested:
        x: int = 1


class Slotted:
    __slots__ = ("x",)


class Instant(datetime):
    """A time with nanoseconds, as that of pandas: they are lost on the way."""

    nanosecond = 0


class Items(list[Any]):
    pass


class Fields(dict[str, Any]):
    pass


class Text(str):
    pass


class Number(int):
    pass


Named = namedtuple("Named", "a b")  # noqa: PYI024 - as users write it


def instant() -> Instant:
    made = Instant(2026, 1, 2, 3, 4, 5)
    made.nanosecond = 7
    return made


def private() -> Order:
    made = Order()
    made._cached = 5
    return made


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
UNCHANGED: dict[str, Any] = {
    "none": None, "true": True, "nan": {"x": [float("nan")]}, "zero": [-0.0, 0.0], "large": 2**63, "text": "\ud7ff é",
    "array": np.arange(6).reshape(2, 3), "nans": np.array([float("nan"), -0.0]), "status": Status.OPEN, "level": Level.LOW,
    "dataclass": Point(1), "models": Order(inner=Inner(value=1), extra=2), "status_in_model": Order(anything=Status.OPEN),
    "time_in_model": Order(anything=MOMENT), "old_model": Old(value=1), "keys": {1: "a", "1": "b"},
    "other_keys": {1.5: "a", None: "b", True: "c"}, "keys_of_a_model": Inner(value={1: "a", "1": "b"}),
    "set": {1, "a", None}, "set_of_enums": {Status.OPEN}, "frozenset": frozenset("ab"), "utc": MOMENT,
    "clock": time(1, 2, tzinfo=timezone.utc), "date": date(2026, 1, 2), "span": timedelta(days=1, microseconds=2),
    "decimal": [Decimal("1.00"), Decimal("NaN")], "uuid": UUID(int=7), "path": Path("/a/b"),
    "pattern": re.compile("a", re.IGNORECASE), "addresses": [ip_address("::1"), ip_network("10.0.0.0/8")],
    "messages": [HumanMessage("hi", id="1"), AIMessage("x", tool_calls=[{"name": "f", "args": {}, "id": "c"}])],
}  # fmt: skip
CHANGED: dict[str, tuple[Any, list[str]]] = {
    "bytes": ([b"\0", bytearray(b"x")], ["[1]: bytearray → bytes"]),
    "tuple": ((1, (2,)), [": tuple → list"]),
    "tuple_within": ({"order": {"pair": (1, 2)}}, ['["order"]["pair"]: tuple → list']),
    "named": (Named(1, (2,)), ["[1]: tuple → list"]),
    "objects": (np.array([1, "a"], dtype=object), [": ndarray → NoneType"]),
    "masked": (np.ma.masked_equal([1, 1001], 1001), [": MaskedArray → ndarray"]),
    "structured": (np.array([(1,)], dtype=[("a", "i4")]), [": ndarray of [('a', '<i4')] → ndarray of |V4"]),
    "memory": (memoryview(b"x"), [": memoryview → bytes"]),
    "init_var": (Started(1), [".counted: int → another int"]),
    "pair": (Pair.ONE, [": Pair → list"]),
    "status_key": ({Status.OPEN: 1}, ["[key <Status 0>]: Status → str"]),
    "tuple_in_dataclass": (Point((1,)), [".x: tuple → list"]),
    "nested": (Outer.Nested(), [": Outer.Nested → dict"]),
    "model_in_any": (Order(anything=Inner(value=1)), [".anything: Inner → dict"]),
    "private": (private(), ["._cached: int → another int"]),
    "old_tuple": (Old(value=(1,)), [".value: tuple → list"]),
    "items": (Items([1]), [": Items → list"]),
    "fields": (Fields(a=1), [": Fields → dict"]),
    "texts": ([Text("x"), Number(3)], ["[0]: Text → str", "[1]: Number → int"]),
    "collapsing": ({UUID(int=7): 1, str(UUID(int=7)): 2}, [": dict of 2 → dict of 1"]),
    "set_of_tuples": ({(1, 2)}, [": set → list"]),
    "deque": (deque([1], maxlen=3), [": deque of 1, maxlen 3 → deque of 1, maxlen None"]),
    "ordered": (OrderedDict(a=1), [": OrderedDict → dict"]),
    "default": (defaultdict(list, a=[1]), [": defaultdict → dict"]),
    "counter": (Counter("aab"), [": Counter → dict"]),
    "naive": (datetime(2026, 1, 2, fold=1), [": datetime → another datetime"]),
    "zone": (datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Lisbon")), [".tzinfo: ZoneInfo → timezone"]),
    "instant": (instant(), [": Instant → str"]),
    "more_fields": ([AIMessage("y", foo=(3,))], ["[0].foo: tuple → list"]),
    "artifact": ([ToolMessage("a", tool_call_id="1", artifact=[Document("d")])], ["[0].artifact[0]: Document → dict"]),
    "tuple_artifact": ([ToolMessage("a", tool_call_id="1", artifact=(1,))], ["[0].artifact: tuple → list"]),
    "document": (Document("d", metadata={"x": (1,)}), ['.metadata["x"]: tuple → list']),
    "send": ([Send("node", {"x": (1,)}), Interrupt("why", id="i")], ['[0].arg["x"]: tuple → list']),
    "error": (ValueError("x"), [": ValueError → str"]),
}
VALUES = {**{name: (value, list[str]()) for name, value in UNCHANGED.items()}, **CHANGED}
PUT = {name: value for name, (value, _) in VALUES.items() if name != "none"}
SAYS = {name: [f'state["{name}"]{said}' for said in saids] for name, (_, saids) in VALUES.items()}
"""What `check_values` says of each value."""


def content(value: Any) -> Any:
    """Return the classes and contents of a value as texts, independent of the code under test."""
    kind = type(value).__qualname__
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, dict):
        return kind, [(content(key), content(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(content, value)))
    if isinstance(value, (list, tuple, deque)):
        return kind, [content(item) for item in value], getattr(value, "maxlen", "")
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.shape, content(value.tolist())
    if isinstance(value, (datetime, time)):
        return kind, value.isoformat(), value.fold, repr(value.tzinfo)
    if isinstance(value, BaseModel):
        more = value.__pydantic_extra__ or {}, value.__pydantic_private__ or {}
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return kind, [sorted((name, content(part)) for name, part in parts.items()) for parts in (fields, *more)]
    if isinstance(value, (pydantic.v1.BaseModel, Point, Started, Outer.Nested, Send, Interrupt)):
        names = getattr(value, "__slots__", None) or vars(value)
        return kind, [(name, content(getattr(value, name))) for name in names]
    return kind, repr(value)


def said_by(caplog: pytest.LogCaptureFixture) -> dict[str, list[str]]:
    """Return the changes that were logged, by channel."""
    found: dict[str, list[str]] = {name: [] for name in VALUES}
    for record in caplog.records:
        if record.name == "redis_saver.serde":
            assert record.levelno == logging.WARNING
            change = record.getMessage().removeprefix("a value will not come back equal: ").removesuffix(LEADS_TO)
            found[change.split('"')[1]].append(change)
    return found


LEADS_TO = " (redis-saver docs changing-state)"


@pytest.mark.parametrize("writes", [False, True])
async def test_it_says_what_comes_back_as_something_else(target: Target, writes: bool, caplog: Any) -> None:
    uniform = target.uniform(check_values="warn")
    if writes:
        await uniform.put_writes(await put(uniform, config()), [*PUT.items()], "task")
    else:
        await put(uniform, config(), PUT)
    said, saved = said_by(caplog), await target.uniform().get_tuple(config())
    read = {channel: value for _, channel, value in saved.pending_writes} or saved.checkpoint["channel_values"]
    for name, value in PUT.items():
        assert said[name] == SAYS[name]
        assert bool(said[name]) == (content(value) != content(read[name])), name


async def test_it_says_a_change_once_for_each_channel_and_type(target: Target, caplog: Any) -> None:
    uniform = target.uniform(check_values="warn")
    for value in ((1,), (2,), [(3,)], [4, (5,)], Items([1])):
        await put(uniform, config(), {"tuple": value, "items": (1,)})
    said = said_by(caplog)
    assert said["tuple"] == [
        'state["tuple"]: tuple → list', 'state["tuple"][0]: tuple → list', 'state["tuple"]: Items → list',
    ]  # fmt: skip
    assert said["items"] == ['state["items"]: tuple → list']


async def test_what_langgraph_itself_writes_raises_nothing(target: Target) -> None:
    """A question, an answer, tasks, a subgraph, errors, and messages as most examples write them."""

    def ask(_: Any) -> dict[str, Any]:
        return {"messages": ("ai", str(interrupt({"question": "May I?"})))}

    inner = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    builder = StateGraph(MessagesState).add_node("inner", inner).add_node("each", lambda _: {"messages": [("ai", "x")]})
    builder.add_conditional_edges(START, lambda _: [Send("each", {}), Send("each", {"n": 1})])
    graph = builder.add_edge("each", "inner").compile(checkpointer=target.blocking(check_values="raise"))
    where: Any = {"configurable": {"thread_id": "t"}}
    for durability in ("sync", "async", "exit"):
        graph.invoke({"messages": [("user", "hi"), {"role": "user", "content": "ho"}]}, where, durability=durability)
        state = graph.invoke(Command(resume="yes"), where, durability=durability)
        assert state["messages"][-1].content == "yes"
    graph.update_state(where, {"messages": [("user", "hi")]}, as_node="each")
    said = [message.content for message in graph.get_state(where).values["messages"]]
    assert said == ["hi", "ho", "x", "x", "yes"] * 3 + ["hi"]
    with pytest.raises(ValueChanged, match=re.escape('state["messages"][0]: tuple → list')):
        graph.update_state(where, {"messages": [("nobody", "hi")]}, as_node="each")


async def test_a_command_as_input_and_a_time_that_pydantic_read_raise_nothing(target: Target) -> None:
    builder = StateGraph(MessagesState).add_node("n", lambda _: {"messages": ("ai", "x")}).add_edge(START, "n")
    graph = builder.compile(checkpointer=target.blocking(check_values="raise"))
    for number, command in enumerate((Command(update={"messages": []}), Command(resume="x"), Command(goto=("n",)))):
        graph.invoke(command, {"configurable": {"thread_id": f"{number}"}})
    times = [TypeAdapter(datetime).validate_json(f'"2026-11-29T12:00:00{zone}"') for zone in ("Z", "+05:30")]
    assert type(times[0].tzinfo) is not timezone
    uniform = target.uniform(check_values="raise")
    await put(uniform, config("times"), {"at": times, "in": {"a": times[0]}})
    with pytest.raises(ValueChanged, match="ZoneInfo"):
        await put(uniform, config("times"), {"at": times[0].astimezone(ZoneInfo("Europe/Lisbon"))})


class Chat(BaseModel):
    messages: Annotated[list[Any], add_messages] = []


async def test_deferred_nodes_and_messages_of_a_model_raise_nothing(target: Target) -> None:
    """LangGraph's channels of deferred nodes hold tuples, and a state may be a model."""
    builder = StateGraph(Chat).add_node("one", lambda _: {"messages": ("ai", "one")})
    builder.add_node("two", lambda _: {"messages": [("ai", "two")]}).add_node(
        "late", lambda _: {"messages": ("ai", "late")}, defer=True
    )
    builder.add_node("joined", lambda _: {"messages": ("ai", "joined")}, defer=True)
    builder.add_edge(START, "one").add_edge(START, "two").add_edge(["one", "two"], "joined").add_edge("one", "late")
    serde = JsonPlusSerializer(allowed_msgpack_modules=[Chat])
    graph = builder.compile(checkpointer=target.blocking(check_values="raise", serde=serde))
    where: Any = {"configurable": {"thread_id": "t"}}
    state = graph.invoke(Chat(messages=[("user", "hi")]), where)
    assert sorted(message.content for message in state["messages"]) == ["hi", "joined", "late", "one", "two"]


async def test_pairs_under_messages_of_another_channel_are_a_change(target: Target) -> None:
    """There LangGraph makes no messages of them."""
    uniform = target.uniform(check_values="raise")
    pair = ("user", "hi")
    for value in ({"messages": pair}, {"messages": [pair]}, [Send("x", {"messages": pair})]):
        with pytest.raises(ValueChanged, match="tuple → list"):
            await put(uniform, config(), {"other": value})


@pytest.mark.parametrize("setting", [{}, {"compression": "zstd"}, {"serde": JsonPlusSerializer()}, {"strict": True}])
async def test_it_raises_before_anything_is_written(target: Target, setting: dict[str, Any]) -> None:
    uniform = target.uniform(check_values="raise", **setting)
    first = await put(uniform, config(), {"order": {"lines": [1]}})
    keys = contents(target)
    said = re.escape('state["order"]["lines"]: tuple → list. Nothing was written. Store')
    with pytest.raises(ValueChanged, match=said):
        await put(uniform, first, {"order": {"lines": (1,)}})
    said = re.escape("channel 'order' would not come back equal: state[\"order\"]: tuple")
    with pytest.raises(EncodeError, match=said):
        await uniform.put_writes(first, [("order", (1,)), ("n", 1)], "task")
    assert contents(target) == keys
    of_langgraph = [(ERROR, ValueError("the node's own")), (INTERRUPT, [Interrupt("why", id="i")])]
    await uniform.put_writes(first, of_langgraph, "t")
    made = checkpoint({"order": (1,), "n": 1}, {"order": "1", "n": "2"})
    await uniform.put(first, made, {"source": "loop", "step": 2}, {"n": "2"})  # the tuple is not new


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
async def test_over_two_tiers_neither_gets_a_value_that_would_change(tiers: Tiers, mode: str) -> None:
    made = await tiers.uniform(mode=mode, hot={"check_values": "raise"})
    first = await put(made, config(), {"order": [1]})
    with pytest.raises(ValueChanged):
        await put(made, first, {"order": (1,)})
    with pytest.raises(ValueChanged):
        await made.put_writes(first, [("order", (1,))], "task")
    saved = await made.get_tuple(config())
    assert saved.config == first and not saved.pending_writes


class Hostile:
    """An object whose methods raise, change it, or give an array."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]
    __bool__ = __len__ = __iter__ = __repr__ = __getattr__ = __reduce__ = __eq__  # type: ignore[assignment]


class HostileList(list[Any]):
    __eq__ = __iter__ = __len__ = __getitem__ = Hostile.__eq__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def slotted(x: Any) -> Slotted:
    made = Slotted()
    made.x = x
    return made


def nested(depth: int, leaf: Any) -> list[Any]:
    made: Any = leaf
    for _ in range(depth):
        made = [made]
    return made


def looped(leaf: Any) -> list[Any]:
    made = [leaf]
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("one", "another", "says"),
    [
        (Hostile(1), Hostile(1), []),
        (Hostile((1,)), Hostile([1]), ["x.x: tuple → list"]),
        (HostileList([1]), HostileList([1]), []),
        (HostileList([1]), HostileList([2]), ["x[0]: int → another int"]),
        (slotted(1), slotted(True), ["x.x: int → bool"]),
        (slotted(1), Slotted(), ["x.x: int → missing"]),
        (instant(), Instant(2026, 1, 2, 3, 4, 5), ["x.nanosecond: int → missing"]),
        (nested(50_000, (1,)), nested(50_000, [1]), []),  # beyond `MAX_PARTS`
        (nested(10_000, (1,)), nested(10_000, [1]), None),
        (looped(1), looped(1), []),
        (looped((1,)), looped([1]), ["x[0]: tuple → list"]),
        ([*range(10**6)], [*range(10**6)], []),
        ([1, 2], [1], ["x: list of 2 → list of 1"]),
        (float("nan"), float("nan"), []),
        (0.0, -0.0, ["x: float → another float"]),
        ([1], [True], ["x[0]: int → bool"]),
        (Decimal("1.0"), Decimal("1.00"), ["x: Decimal → another Decimal"]),
        ({1, 2}, {1, "2"}, ["x[member]: int → str"]),
        ({Status.OPEN}, {"open"}, ["x[member]: Status → str"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a  b": 1, "a b": 2}, {"a  b": (), "a b": 2}, ['x["a b"]: int → tuple']),
        ({"a": 1}, {"b": 1}, ['x["a"]: int → missing', 'x["b"]: missing → int']),
        (np.array([1]), np.array([1.0]), ["x: ndarray of int64 → ndarray of float64"]),
        (np.array([1, 2]), np.array([1, 3]), ["x: ndarray → another ndarray"]),
        (np.array([1, "a"], object), np.array([True, "a"], object), ["x.flat[0]: int → bool"]),
        (np.float64("nan"), np.float64("nan"), []),
        (np.int64(1), np.int64(2), ["x: int64 → another int64"]),
        ([(1,)] * 50, [[1]] * 50, [f"x[{index}]: tuple → list" for index in range(comparing.MAX_CHANGES)]),
    ],
    ids=itertools.count(),
)
def test_the_comparison_runs_no_code_of_values(one: Any, another: Any, says: list[str] | None) -> None:
    found = [str(change) for change in compared(one, another, "x")]
    if says is None:
        assert [change.endswith(": tuple → list") and len(change) < 300 for change in found] == [True]
    else:
        assert found == says


def test_a_saver_without_the_check_decodes_nothing(target: Target) -> None:
    assert target.uniform().saver._context.check_values is None


@pytest.mark.parametrize("value", ["yes", True, None])
def test_other_settings_are_refused(target: Target, value: Any) -> None:
    with pytest.raises(ValueError, match="check_values=.*: write 'never' or 'warn' or 'raise'"):
        target.uniform(check_values=value)
