"""Values of every kind, other serializers, encryption, and names of any characters come back as they were put.

If LangGraph's `InMemorySaver` can do the same, its result is expected.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
import itertools
import pickle
import re
import tracemalloc
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import numpy as np
import ormsgpack
import pytest
from tests.support.factories import chain, checkpoint, config, ids, put
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, ChatMessageChunk, FunctionMessage
from langchain_core.messages import FunctionMessageChunk, HumanMessage, HumanMessageChunk, RemoveMessage, SystemMessage
from langchain_core.messages import SystemMessageChunk, ToolMessage, ToolMessageChunk
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED, _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, SecretStr
from tests.support.raw import raw_bytes
from tests.support.servers import url_of
from tests.support.uniform import Target, Uniform
from tests.support.values import KEY, Point
from tests.support.wrappers import noted, script_of

from redis_saver import DecodeError, EncodeError, Limits, TieredSaver
from redis_saver._checkpoint import scripts
from redis_saver._common import names
from redis_saver._common.limits import Allowance
from redis_saver._common.names import Keyspace
from redis_saver._storage import codec
from redis_saver._storage.chunks import in_chunks, join, typed_bytes

pytestmark = pytest.mark.also_on(cluster="async")

# -- values


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    left: Any
    right: Any


class Address(BaseModel):
    street: str
    zip: int | None = None


class Person(BaseModel):
    name: str
    addresses: list[Address] = []
    born: date | None = None


class Equal:
    """An object that equals others of its class with the same fields."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.fields == other.fields  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class OldModel(Equal):
    """A class that the serializer takes for a pydantic v1 model."""

    def dict(self) -> dict[str, Any]:
        return self.fields


CALL = {"name": "search", "args": {"q": "MARKER of a call", "n": 1}, "id": "call-1", "type": "tool_call"}
USAGE: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1}}
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BLOCKS: Any = [{"type": "text", "text": "look"}, IMAGE, "plain"]

MESSAGES: dict[str, Any] = {
    "human": HumanMessage("hi", id="1", name="Ann", additional_kwargs={"a": [1]}, response_metadata={"b": 2}),
    "human blocks": HumanMessage(BLOCKS),
    "system": SystemMessage("be nice"),
    "ai": AIMessage("", id="2", tool_calls=[CALL], usage_metadata=USAGE, response_metadata={"model": "m"}),
    "ai invalid call": AIMessage(BLOCKS, invalid_tool_calls=[{"name": "x", "args": "{", "id": "c", "error": "cut"}]),
    "tool": ToolMessage("22°", tool_call_id="call-1", artifact={"raw": b"\0\xff"}, status="error", name="search"),
    "tool artifact": ToolMessage(["a", "b"], tool_call_id="call-2", artifact={"rows": [[1, None]], "set": {1}}),
    "function": FunctionMessage(content="42", name="f"),
    "chat": ChatMessage(content="psst", role="whisperer"),
    "remove": RemoveMessage("2"),
    "human chunk": HumanMessageChunk(content="h"),
    "system chunk": SystemMessageChunk(content="s"),
    "ai chunk": AIMessageChunk(
        content="par", tool_call_chunks=[{"name": "s", "args": '{"q', "id": "c", "index": 0}], usage_metadata=USAGE
    ),
    "tool chunk": ToolMessageChunk(content="t", tool_call_id="call-1", artifact=[1.5]),
    "function chunk": FunctionMessageChunk(content="f", name="f"),
    "chat chunk": ChatMessageChunk(content="c", role="whisperer"),
    "document": Document("text", metadata={"page": 1}, id="d"),
}

PLAIN: dict[str, Any] = {
    "none": None, "true": True, "zero": 0, "int64": [2**63 - 1, -(2**63), 2**64 - 1], "inf": float("inf"), "nan": float("nan"),
    "floats": [0.0, -0.0, 1e308, 5e-324, float("inf"), float("-inf")],
    "empty str": "", "str": "a\0b ö \U0001f600 MARKER of a str", "long str": "x" * 70_000,
    "empty bytes": b"", "bytes": b"3:abc\0\xff\r\n MARKER of bytes", "bytearray": bytearray(b"MARKER of a bytearray"),
    "empty list": [], "empty dict": {}, "keys": {1: "int", 2.5: "float", None: "none", True: "bool"},
    "nested": {"a": [{"b": [[], {}, None, {"c": [1, "2", b"3", 4.5, True]}]}], "": {"": ""}},
    "deep": [[[[[[[[[["MARKER of a deep list"]]]]]]]]]],
}  # fmt: skip

DAYS = datetime(2026, 1, 1), datetime(2026, 1, 2)
RICH: dict[str, Any] = {
    "dataclass": Point(1, "x", Point(2, inner={"deep": Point(3)})),
    "pydantic": Person(name="MARKER of a model", addresses=[Address(street="s", zip=1)], born=date(2000, 2, 29)),
    "pydantic v1": OldModel(a=1, b=[2]),
    "secret": SecretStr("MARKER of a secret"),
    "enum": [Colour.RED, Level.HIGH],
    **{"set": {1, "a", None, (1)}, "empty set": set(), "frozenset": frozenset({b"x", 2.5})},
    "deque": deque([1, "b", None]),
    **{"naive": datetime(2026, 11, 21, 10, 0, 0, 123456), "utc": datetime(2026, 11, 21, tzinfo=timezone.utc)},
    "offset": datetime(1969, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    "zone": datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")),
    "zoneinfo": ZoneInfo("Europe/Berlin"),
    "timezone": timezone(timedelta(hours=5, minutes=30), "here"),
    "date": date(1, 1, 1),
    "time": [time(23, 59, 59, 999999), time(1, 2, tzinfo=timezone.utc), time(1, fold=1)],
    "timedelta": [timedelta(days=-1, microseconds=1), timedelta.max],
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "decimal": [Decimal("1.10"), Decimal("-Infinity"), Decimal("1E+30")],
    "path": Path("/a/b c/ü"),
    "pattern": re.compile(r"^MARKER of a pattern\d+$", re.IGNORECASE | re.MULTILINE),
    "ip": [IPv4Address("1.2.3.4"), IPv4Interface("1.2.3.4/24"), IPv4Network("10.0.0.0/8")],
    "ip6": [IPv6Address("::1"), IPv6Interface("::1/64"), IPv6Network("fe80::/10")],
    "array": np.arange(24, dtype="<f4").reshape(2, 3, 4),
    "array F": np.asfortranarray(np.arange(12).reshape(3, 4)),
    **{"array big-endian": np.array([1, 2], dtype=">i8"), "array empty": np.zeros((0, 3))},
    "array bool": np.array([[True], [False]]),
    "namedtuple": [Pair(1, Pair("a", [None]))],
    "send": [Send("node", {"arg": [1]}), Send("node", HumanMessage("hi"), timeout=3)],
    "interrupt": (Interrupt("MARKER of an interrupt", id="i"),)[0],
    "command": Command(update={"a": 1}, resume={"b": [2]}, goto=[Send("n", 1)], graph="g"),
    "overwrite": Overwrite([1]),
    "item": Item(value={"v": 1}, key="k", namespace=("a", "b"), created_at=DAYS[0], updated_at=DAYS[1]),
    "snapshot": _DeltaSnapshot({"a": [HumanMessage("x", id="1")]}),
}

LOSSY: dict[str, Any] = {
    "tuple": (1, (2, [3])),
    "surrogate": "a\ud800b",
    "surrogate in a list": ["\udfff"],
    "tool artifact of a class": ToolMessage("x", tool_call_id="c", artifact=Point(1)),
    "error": ValueError("no"),
    "array strided": np.arange(10)[::2],
    "str subclass": type("Name", (str,), {})("name"),
}
"""Values that the serializer itself changes."""

EXACT = {**MESSAGES, **PLAIN, **RICH}
EVERYTHING = {**EXACT, **LOSSY}


def alike(one: Any, two: Any) -> bool:
    """True if both are equal and of the same types at every level. NaN equals NaN."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        layouts = [(each.dtype, each.shape, each.flags.f_contiguous) for each in (one, two)]
        return layouts[0] == layouts[1] and one.tobytes() == two.tobytes()
    if isinstance(one, float):
        return repr(one) == repr(two)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, dict):
        return alike(list(one.items()), list(two.items()))
    if dataclasses.is_dataclass(one):
        return all(alike(getattr(one, field.name), getattr(two, field.name)) for field in dataclasses.fields(one))
    return bool(one == two)


def test_alike_tells_values_apart() -> None:
    assert alike(float("nan"), float("nan"))
    assert not alike(0.0, -0.0)
    assert not alike([1], [True])
    assert not alike(HumanMessage("a"), HumanMessageChunk(content="a"))
    assert not alike(np.zeros(2), np.zeros(2, dtype="f4"))
    assert not alike(Point(1), Point(2))
    for (name, one), (other, two) in itertools.combinations(EVERYTHING.items(), 2):
        assert not alike(one, two), f"{name} and {other} could be mixed up"


def wrong(wanted: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Names of values that differ from the wanted ones."""
    common = {name for name in got.keys() & wanted.keys() if alike(wanted[name], got[name])}
    return [name for name in {**wanted, **got} if name not in common]


async def stored_everywhere(uniform: Any, values: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Store values as channels, as writes, in special writes and in metadata.

    Returns:
        The results of `get_tuple` and `list`: first the channels and writes, then the special writes and metadata.
    """
    where = await put(uniform, config(), values, metadata={"source": "loop", "step": 0, **values}, checkpoint_id="id")
    await uniform.put_writes(where, list(values.items()), "task", "path")
    for special in (ERROR, SCHEDULED, INTERRUPT, RESUME):
        await uniform.put_writes(where, [(special, values)], f"special {special}", "z")
    found = [await uniform.get_tuple(config()), await uniform.get_tuple(where), *await uniform.list(config())]
    assert len(found) == 3
    single, nested = [], []
    for one in found:
        metadata = {key: value for key, value in one.metadata.items() if key in values}
        regular = {channel: value for task, channel, value in one.pending_writes if task == "task"}
        special_writes = [value for task, _, value in one.pending_writes if task != "task"]
        assert len(special_writes) == 4
        single += [one.checkpoint["channel_values"], regular]
        nested += [metadata, *special_writes]
    return single, nested


@pytest.mark.parametrize("kind", ["messages", "plain", "rich", "lossy"])
async def test_values_come_back_as_from_inmemorysaver(saver: Uniform, kind: str) -> None:
    values = {"messages": MESSAGES, "plain": PLAIN, "rich": RICH, "lossy": LOSSY}[kind]
    single, nested = await stored_everywhere(saver, values)
    memory = Uniform(InMemorySaver())  # type: ignore[arg-type]
    for got, wanted in zip([*single, *nested], itertools.chain(*await stored_everywhere(memory, values)), strict=True):
        assert wrong(wanted, got) == [], "not what InMemorySaver answers"
    for got in single:
        assert kind == "lossy" or wrong(values, got) == [], "not what was put"


def split(stored: bytes) -> tuple[str, bytes]:
    """Split a stored value into type and bytes."""
    length, _, rest = stored.partition(b":")
    return rest[: int(length)].decode(), rest[int(length) :]


@pytest.mark.plain("the stored bytes are encrypted")
async def test_stored_bytes_are_the_serializers_output(saver: Uniform, target: Target) -> None:
    """A channel version's field holds the type and the serializer's bytes, unchanged."""
    await put(saver, config(), EVERYTHING, versions=dict.fromkeys(EVERYTHING, "7.x"))
    _, data = saver.saver._context.keyspace.keys("thread")
    fields = target.raw.hgetall(data)
    for name, value in EVERYTHING.items():
        kind, raw = saver.saver.serde.dumps_typed(value)
        stored = fields.pop(names.blob("", names.component(name) + names.version_text(name, "7.x")))
        if in_chunks(stored):
            found = typed_bytes(join(stored, fields, Allowance(Limits(), name)))
        else:
            found = split(stored)
        assert found == (kind, raw), name
        assert stored == codec.encode_value(saver.saver._context, value, name).value
        assert alike(JsonPlusSerializer().loads_typed(found), saver.saver.serde.loads_typed((kind, raw))), name
    assert [field for field in fields if field[:1] == b"b"] == []


@pytest.mark.parametrize("size", ["bytes", "list"])
async def test_values_of_twenty_megabytes_come_back(size: str) -> None:
    big: Any = b"\0\xff:7" * 5_000_000 if size == "bytes" else [f"{number:0100}" for number in range(200_000)]
    for server, flavour in (("redis", "async"), ("redis62", "sync")):
        target = Target(server, flavour, url_of(server), f"big-{uuid4().hex}")
        uniform = target.uniform()
        where = await put(uniform, config(), {"big": big, "small": 1})
        await uniform.put_writes(where, [("big", big)], "task")
        found = await uniform.get_tuple(config())
        assert found.checkpoint["channel_values"] == {"big": big, "small": 1}
        assert found.pending_writes == [("task", "big", big)]
        await uniform.delete_thread("thread")
        await target.close()


async def test_later_changes_of_a_value_are_not_stored(saver: Uniform) -> None:
    """This also holds for a value that was read."""
    value, raw = {"list": [1]}, bytearray(b"x")
    where = await put(saver, config(), {"value": value, "raw": raw})
    await saver.put_writes(where, [("value", value), ("raw", raw)], "task")
    value["list"].append(2)
    raw.append(0)
    for _ in range(2):
        found = await saver.get_tuple(config())
        assert found.checkpoint["channel_values"] == {"value": {"list": [1]}, "raw": bytearray(b"x")}
        assert [write[2] for write in found.pending_writes] == [{"list": [1]}, bytearray(b"x")]
        found.checkpoint["channel_values"]["value"]["list"].append(3)


# -- other serializers


class Strange(Equal):
    """A value that only pickle can encode."""


STRANGE = {"object": Strange(text="MARKER of a pickle"), "complex": 1 + 2j, "big int": 2**200, "type": Strange}
REFUSED = {**STRANGE, "array of times": np.array(["2026-01-01"], dtype="datetime64[s]"), "surrogate key": {"\ud800": 1}}


async def test_pickle_fallback_stores_any_object(target: Target) -> None:
    serde = JsonPlusSerializer(pickle_fallback=True)
    uniform = target.uniform(serde=serde)
    values = {**STRANGE, "plain": [1]}
    for got in itertools.chain(*await stored_everywhere(uniform, values)):
        assert got == values
    _, data = uniform.saver._context.keyspace.keys("thread")
    kinds = {split(raw)[0].removesuffix("+siv") for field, raw in target.raw.hgetall(data).items() if field[:1] == b"b"}
    assert kinds == {"pickle", "msgpack"}
    with pytest.raises(DecodeError, match="Unknown serialization type: pickle"):
        await target.uniform().get_tuple(config())


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.by_turns
async def test_values_that_the_serializer_refuses_raise_encode_error(saver: Uniform, target: Target, name: str) -> None:
    """Nothing is written then."""
    bad = {"good": 1, "bad": [REFUSED[name]]}
    with pytest.raises(EncodeError, match="channel 'bad'"):
        await put(saver, config(), bad)
    with pytest.raises(EncodeError, match="metadata"):
        await put(saver, config(), {"good": 1}, metadata=bad)
    with pytest.raises(EncodeError, match="channel 'bad'"):
        await saver.put_writes(config(checkpoint_id="id"), list(bad.items()), "task")
    assert target.keys() == []


class Odd:
    """A serializer that gives values odd type names in turn, and must get the same names back."""

    KINDS = ("", ":", "5:", "0:0:", "\0", "é\U0001f600", "\ud800", "msgpack+x", "empty", "null", " ", "x" * 300)

    def __init__(self) -> None:
        self.kinds = itertools.cycle(enumerate(self.KINDS))

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        position, kind = next(self.kinds)
        return kind, b"" if value is None else ormsgpack.packb([position, value])

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, raw = data
        if raw == b"":
            assert kind in self.KINDS
            return None
        position, value = ormsgpack.unpackb(raw)
        assert kind == self.KINDS[position]
        return value


async def test_odd_type_names_come_back(target: Target) -> None:
    uniform = target.uniform(serde=Odd())
    for _ in range(2):
        values = {f"channel {number}": None if number % 5 == 0 else [number] for number in range(25)}
        for got in itertools.chain(*await stored_everywhere(uniform, values)):
            assert got == values
        await uniform.copy_thread("thread", "copy")
        assert (await uniform.get_tuple(config("copy"))).checkpoint["channel_values"] == values
        await uniform.delete_thread("thread")


class Untyped:
    """A serializer without types: only `dumps` and `loads`."""

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


async def test_a_serializer_without_types_works(target: Target) -> None:
    for got in itertools.chain(*await stored_everywhere(target.uniform(serde=Untyped()), STRANGE)):
        assert got == STRANGE


@pytest.mark.parametrize("encrypted", [False, True])
async def test_with_allowlist_returns_a_clone_that_loads_more_types(target: Target, encrypted: bool) -> None:
    """The clone shares the client, and the original still refuses the types."""
    serde: Any = JsonPlusSerializer(allowed_msgpack_modules=None)
    if encrypted:
        serde = EncryptedSerializer.from_pycryptodome_aes(serde, key=b"0123456789abcdef")
    uniform = target.uniform(serde=serde)
    clone = Uniform(uniform.saver.with_allowlist([(Point.__module__, "Point")]))  # type: ignore[arg-type]
    assert type(clone.saver) is type(uniform.saver)
    assert clone.saver is not uniform.saver
    assert clone.saver._driver is uniform.saver._driver
    await put(uniform, config(), {"point": Point(1)})
    fields = {"x": 1, "label": "MARKER of a dataclass", "inner": None}
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"point": fields}
    assert (await clone.get_tuple(config())).checkpoint["channel_values"] == {"point": Point(1)}
    await put(clone, config(), {"point": Point(2)})
    assert len(await uniform.list(config())) == 2
    permissive = target.uniform().saver
    assert permissive.with_allowlist([("x", "Y")]) is permissive, "a saver that allows all types stays the same"


# -- encryption


@pytest.mark.plain("it compares with a thread that is not encrypted")
async def test_encrypted_threads_hold_no_plain_values(target: Target) -> None:
    """Values come back, but no value, metadata value or write can be found in Redis."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    uniform = target.uniform(serde=serde)
    values = {name: value for name, value in EVERYTHING.items() if name != "long str"}
    marked = {**values, "dict": {"MARKER of a key": "MARKER of a value"}, "list": ["MARKER 1", [b"MARKER 2"]]}
    memory = Uniform(InMemorySaver())  # type: ignore[arg-type]
    theirs = itertools.chain(*await stored_everywhere(memory, marked))
    for got, wanted in zip(itertools.chain(*await stored_everywhere(uniform, marked)), theirs, strict=True):
        assert wrong(wanted, got) == []
    user = {**config(who="MARKER of a user"), "metadata": {"tag": "MARKER of a tag"}}
    await put(uniform, user, {"n": 1})
    by_tag = {"tag": {"$in": ["MARKER of a tag"]}}
    for wanted in ({"who": "MARKER of a user"}, by_tag, {"str": PLAIN["str"].replace("\0", "")}):
        assert len(await uniform.list(config(), filter=wanted)) == 1
    assert await uniform.list(config(), filter={"who": "nobody"}) == []
    assert len(await uniform.list(None, filter={"who": "MARKER of a user"})) == 1
    await uniform.copy_thread("thread", "copy")
    await uniform.prune(["copy"], keep_last=1)

    everything = raw_bytes(target)
    assert len(everything) > 10_000
    assert b"msgpack+aes" in everything, "the scan looks at the stored bytes"
    found = re.findall(rb"MARKER.{0,20}", everything, re.DOTALL)
    assert found == []
    plainly = target.uniform(prefix=f"{target.prefix}-plain")
    await put(plainly, user, marked)
    assert len(re.findall(rb"MARKER", raw_bytes(target))) > 15, "without encryption the scan finds them"


async def test_another_key_cannot_decode(target: Target) -> None:
    where = await put(target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY)), config(), {"n": 1})
    stranger = target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY[::-1]))
    with pytest.raises(DecodeError):
        await stranger.get_tuple(where)
    with pytest.raises(DecodeError):
        await target.uniform().get_tuple(where)


@pytest.mark.plain("encryption= refuses require_encryption=False")
async def test_an_encrypting_saver_can_read_older_plain_values(target: Target) -> None:
    """With `require_encryption=False` it reads plain values and writes encrypted ones."""
    before = await put(target.uniform(), config(), {"n": 1, "s": "MARKER"}, versions={"n": "1", "s": "1"})
    uniform = target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY), require_encryption=False)
    assert (await uniform.get_tuple(before)).checkpoint["channel_values"] == {"n": 1, "s": "MARKER"}
    after = checkpoint({"n": 2, "s": "MARKER"}, {"n": "2", "s": "1"})
    where = await uniform.put(before, after, {"step": 1}, {"n": "2"})
    assert (await uniform.get_tuple(where)).checkpoint["channel_values"] == {"n": 2, "s": "MARKER"}
    assert len(await uniform.list(config())) == 2


# -- names

NAMES = [
    "", "*", ":", "{", "}", "{}", "a}b{c", "|", "\0", "\1", "a\0b", " ", "é", "\U0001f600", "\ud800", "%", "%7D", "x" * 1000,
    "?", "[a-z]", "\\", "\\*", "a\1b", "ab", "\0\0", "\0\1", "\1\0", "\1\1", "\1\2", "\2", "\n", "%25", "%7B", "}:index",
    "{x}:data", "\uffff", "e\u0301", "\udfff", "A", "a",
]  # fmt: skip
"""Names of every kind, all different."""

REAL = [name for name in NAMES if name]
"""Names of checkpoints. LangGraph takes an empty checkpoint id for none."""


def test_names_do_not_collide() -> None:
    space = Keyspace("p")
    keys = [space.keys(name) for name in NAMES]
    assert len({key for pair in keys for key in pair}) == 2 * len(NAMES)
    for pair in keys:
        for key in pair:
            assert b"{}" not in key, "with an empty hash tag the keys would be in different slots"
            assert key.count(b"{") == key.count(b"}") == 1
    for one, two in itertools.product(NAMES, NAMES):
        assert names.components(names.component(one) + names.component(two)) == [one, two]
        assert (names.component(one) < names.component(two)) == (one < two), "the order of names is the order of bytes"
        assert names.component(two).startswith(names.component(one)) == (one == two)


async def everything_in(uniform: Any, thread: str) -> list[Any]:
    return [await uniform.get_tuple(config(thread)), *await uniform.list(config(thread, None))]


async def test_threads_of_any_name_are_independent(saver: Uniform, target: Target) -> None:
    """Reading, listing, writing, pinning and deleting affect only the named thread."""
    wanted = {}
    for position, name in enumerate(NAMES):
        where = await put(saver, config(name), {"n": position}, metadata={"step": position, "of": position})
        assert where == config(name, "", where["configurable"]["checkpoint_id"])
        await saver.put_writes(where, [("n", -position)], "task")
    for position, name in enumerate(NAMES):
        found = wanted[name] = await everything_in(saver, name)
        assert [one.config["configurable"]["thread_id"] for one in found] == [name] * 2
        assert [one.checkpoint["channel_values"] for one in found] == [{"n": position}] * 2
        assert found[0].pending_writes == [("task", "n", -position)]
    assert {one.thread_id for one in await saver.threads()} == set(NAMES)
    assert [one.thread_id for one in await saver.threads(thread_prefix="a}")] == ["a}b{c"]
    assert {one.thread_id for one in await saver.threads(thread_prefix="\1")} == {"\1", "\1\0", "\1\1", "\1\2"}
    listed = await saver.list(None)
    assert [one.config["configurable"]["thread_id"] for one in listed] == NAMES[::-1]
    assert [one.metadata["of"] for one in await saver.list(None, filter={"of": {"$lt": 3}})] == [2, 1, 0]

    await saver.pin("*")
    assert [one.thread_id for one in await saver.threads() if one.pinned] == ["*"]
    await saver.set_thread_ttl("[a-z]", timedelta(hours=1))
    assert [one.thread_id for one in await saver.threads() if one.ttl] == ["[a-z]"]

    left = list(NAMES)
    for name in ["*", "?", "[a-z]", "", *NAMES]:
        await saver.delete_thread(name)
        left = [one for one in left if one != name]
        assert await everything_in(saver, name) == [None]
        assert {one.thread_id for one in await saver.threads()} == set(left)
        for other in left[:1] + left[-1:]:
            assert await everything_in(saver, other) == wanted[other]
    assert target.keys() == []


async def test_savers_see_only_threads_of_their_prefix(target: Target) -> None:
    """Prefixes may have any characters."""
    prefixes = [target.prefix + end for end in ("", "*", "?", "[a]", "a", "\\", ":", ":x", "^", "é", "\0", "%", "**")]
    client = target.client()
    for prefix in prefixes:
        await put(target.uniform(prefix=prefix, client=client), config(prefix), {"n": 1})
    for prefix in prefixes:
        uniform = target.uniform(prefix=prefix, client=client)
        assert [one.thread_id for one in await uniform.threads()] == [prefix]
        assert [one.config["configurable"]["thread_id"] for one in await uniform.list(None)] == [prefix]
    await target.uniform(prefix=prefixes[1], client=client).delete_thread(prefixes[1])
    left = [len(await target.uniform(prefix=prefix, client=client).threads()) for prefix in prefixes]
    assert left == [1, 0, *[1] * 11]


async def test_namespaces_may_have_any_name(saver: Uniform) -> None:
    made = {name: await chain(saver, "thread", 2, name) for name in NAMES}
    for name in NAMES:
        await saver.put_writes(made[name][-1], [("n", name.encode("utf-8", "surrogatepass"))], "task")
    for name in NAMES:
        old, new = made[name]
        found = await saver.get_tuple(config("thread", name))
        assert found.config == new == config("thread", name, new["configurable"]["checkpoint_id"])
        assert found.parent_config == old
        assert found.pending_writes == [("task", "n", name.encode("utf-8", "surrogatepass"))]
        assert [one.config for one in await saver.list(config("thread", name))] == [new, old]
        assert await saver.get_tuple(config("thread", name, old["configurable"]["checkpoint_id"])) is not None
        assert await saver.get_tuple(config("thread", name, "no such id")) is None
    assert await saver.get_tuple(config("thread", "a*")) is None
    assert len(await saver.list(config("thread", None))) == 2 * len(NAMES)
    done = await saver.prune(["thread"])
    assert done.checkpoints == len(NAMES)
    left = await saver.list(config("thread", None))
    assert {one.config["configurable"]["checkpoint_ns"] for one in left} == set(NAMES)


@pytest.mark.also_on()
@pytest.mark.parametrize("seen", [None, {"node": 1}, {"node": {"a": None}}, {1: {}}], ids=str)
async def test_unusual_versions_seen_come_back(saver: Uniform, seen: Any) -> None:
    await saver.put(config(), {**checkpoint({"n": 1}), "versions_seen": seen}, {}, {"n": "1"})
    assert (await saver.get_tuple(config())).checkpoint["versions_seen"] == seen


async def test_channels_may_have_any_name(saver: Uniform) -> None:
    """Covers values, versions, writes and delta histories."""
    values = {name: f"value {position}" for position, name in enumerate(NAMES)}
    versions = {name: f"{position:032}.{name}" for position, name in enumerate(NAMES)}
    root = await put(saver, config(), {}, versions={})
    # LangGraph's serializer refuses keys with lone surrogates.
    made = {**checkpoint(values, versions), "versions_seen": {}}
    old = await saver.put(root, made, {"step": 1}, versions)
    await saver.put_writes(old, [(name, [name == one for one in NAMES]) for name in NAMES], "task")
    other = {name: f"{version}+" for name, version in versions.items()}
    new = await put(saver, old, {}, versions=other)
    found = await saver.get_tuple(old)
    assert found.checkpoint["channel_values"] == values
    assert found.checkpoint["channel_versions"] == versions
    assert found.pending_writes == [("task", name, [name == one for one in NAMES]) for name in NAMES]
    assert (await saver.get_tuple(new)).checkpoint["channel_versions"] == other
    assert (await saver.get_tuple(new)).checkpoint["channel_values"] == {}
    histories = await saver.get_delta_channel_history(config=new, channels=NAMES)
    for name in NAMES:
        assert histories[name] == {"writes": [("task", name, [name == one for one in NAMES])], "seed": values[name]}
        alone = await saver.get_delta_channel_history(config=new, channels=[name])
        assert alone == {name: histories[name]}
    assert await saver.get_delta_channel_history(config=new, channels=["b"]) == {"b": {"writes": []}}


async def test_a_checkpoint_may_have_thousands_of_channels(saver: Uniform) -> None:
    """New and unchanged channels, with and without a value: more of each than one call of a script takes."""
    count, whole = 4500, ["x" * 1200, "y" * 1200]
    values: dict[str, Any] = {f"c{n:04}": whole if n % 1500 == 0 else n for n in range(count)}
    versions = dict.fromkeys(values, "1")
    first = await saver.put(config(), checkpoint(values, versions), {"step": 1}, versions)
    changed = {name: "2" for n, name in enumerate(values) if n % 3 == 0}
    later = {name: [value, "new"] if name in changed else value for name, value in values.items()}
    for name in list(values)[::6]:
        del later[name]  # new and empty
    made = checkpoint(later, {**versions, **changed})
    second = await saver.put(first, made, {"step": 2}, changed)
    for _ in range(2):
        found = await saver.get_tuple(config())
        assert found.checkpoint["channel_values"] == later
        assert found.checkpoint["channel_versions"] == {**versions, **changed}
        assert (await saver.get_tuple(first)).checkpoint["channel_values"] == values
        await saver.put(first, made, {"step": 2}, changed)
    last = checkpoint(later, {**versions, **changed, "c0001": "3"})
    await saver.delete_thread("thread")
    await saver.put(second, last, {"step": 3}, {"c0001": "3"})
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == later
    assert len(await saver.list(config())) == 1


async def test_tasks_and_paths_may_have_any_name(saver: Uniform) -> None:
    """Each task has its own writes, ordered by path and task."""
    where = await put(saver, config(), {"n": 0})
    writes = {}
    for path, task in [("", name) for name in NAMES] + [(name, f"in {name}") for name in REAL]:
        writes[path, task] = [("a", path.encode("utf-8", "surrogatepass")), ("b", len(task))]
        await saver.put_writes(where, writes[path, task], task, path)
        await saver.put_writes(where, [(INTERRUPT, [len(writes)])], task, path)
        await saver.put_writes(where, [("a", "again"), ("b", "again"), ("c", "third")], task, path)
    wanted = []
    for position, (path, task) in sorted(enumerate(writes), key=lambda item: item[1]):
        a, b = writes[path, task]
        wanted += [(task, INTERRUPT, [position + 1]), (task, *a), (task, *b), (task, "c", "third")]
    assert (await saver.get_tuple(where)).pending_writes == wanted


async def test_checkpoint_ids_may_be_any_text(saver: Uniform) -> None:
    """Ids are ordered by code points."""
    order = sorted(REAL)
    parents = dict(zip(REAL[1:], REAL, strict=False))
    for name in REAL:
        where = await put(saver, config("thread", "", parents.get(name)), {"n": 1}, checkpoint_id=name)
        assert where == config("thread", "", name)
        await saver.put_writes(where, [("n", len(name))], f"task of {name}")
    assert ids(await saver.list(config())) == order[::-1]
    assert ids([await saver.get_tuple(config())]) == [order[-1]]
    for position, name in enumerate(order):
        found = await saver.get_tuple(config("thread", "", name))
        assert found.config == config("thread", "", name)
        assert found.checkpoint["id"] == name
        parent = parents.get(name)
        assert found.parent_config == (config("thread", "", parent) if parent else None)
        assert found.pending_writes == [(f"task of {name}", "n", len(name))]
        assert ids(await saver.list(config("thread", "", name))) == [name]
        assert ids(await saver.list(config(), before=config("thread", "", name), limit=2)) == order[:position][::-1][:2]
    assert (await saver.prune(["thread"], keep_last=3)).checkpoints == len(REAL) - 3
    assert ids(await saver.list(config())) == order[:-4:-1]


@pytest.mark.parametrize("source", ["config", "metadata"])
async def test_runs_may_have_any_name(saver: Uniform, source: str) -> None:
    """`delete_for_runs` removes only checkpoints whose metadata name the run."""
    runs = [name for name in REAL if "\0" not in name]
    await started(saver, runs, source)
    assert {one.thread_id: one.checkpoints for one in await saver.threads()} == {f"thread {name}": 2 for name in runs}
    for position, name in enumerate(runs):
        await saver.delete_for_runs([name])
        left = {f"thread {one}": 1 if one in runs[: position + 1] else 2 for one in runs}
        assert {one.thread_id: one.checkpoints for one in await saver.threads()} == left, f"after deleting {name!r}"


async def started(saver: Uniform, runs: list[str], source: str) -> None:
    """Make a thread for each run, with a checkpoint of the run and one of no run."""
    for name in runs:
        said = {"run_id": name}
        where = {**config(f"thread {name}"), "metadata": said if source == "config" else {}}
        metadata = {"source": "loop", **(said if source == "metadata" else {})}
        first = await put(saver, where, {"n": 1}, metadata=metadata)
        await put(saver, first, {"n": 2}, metadata={"source": "loop", "step": 1})


@pytest.mark.parametrize("name", ["a\0b", "\0a", ""])
async def test_runs_whose_id_metadata_cannot_hold_are_found(saver: Uniform, name: str) -> None:
    """LangGraph removes NUL from metadata. The run is found by its original id."""
    await started(saver, [name], "config")
    await saver.delete_for_runs([name])
    assert [one.checkpoints for one in await saver.threads()] == [1]


async def test_delete_for_runs_keeps_checkpoints_without_a_run(saver: Uniform) -> None:
    first = await put(saver, config(), {"n": 1})
    run = {**config(checkpoint_id=first["configurable"]["checkpoint_id"]), "metadata": {"run_id": "run"}}
    second = await put(saver, run, {"n": 2})
    await saver.delete_for_runs(["", "None", "*"])
    assert [one.config for one in await saver.list(config())] == [second, first]
    await saver.delete_for_runs(["", "run"])
    assert [one.config for one in await saver.list(config())] == [first]


async def test_a_copy_changes_only_its_target(saver: Uniform) -> None:
    """Threads may have any name."""
    content = {}
    for position, name in enumerate(NAMES):
        made = await chain(saver, name, 2, of=position)
        await saver.put_writes(made[-1], [("n", position)], "task")
        content[name] = [one._replace(config={}, parent_config=None) for one in await everything_in(saver, name)]
    for position, (source, onto) in enumerate(zip(NAMES[:20], NAMES[:-21:-1], strict=True)):
        await saver.copy_thread(source, onto)
        content[onto] = content[source]
        for name in (source, onto, NAMES[position - 1], NAMES[position + 1], "*"):
            found = await everything_in(saver, name)
            assert {one.config["configurable"]["thread_id"] for one in found} == {name}
            assert [one._replace(config={}, parent_config=None) for one in found] == content[name]
    assert len(await saver.threads()) == len(NAMES)
    assert sorted(one.metadata["of"] for one in await saver.list(None)) == sorted([*range(20)] * 4)


async def test_prune_changes_only_the_named_thread(saver: Uniform) -> None:
    for name in NAMES:
        await chain(saver, name, 3)
    left = dict.fromkeys(NAMES, 3)
    for position, name in enumerate(NAMES):
        await saver.prune([name], strategy="delete" if position % 2 else "keep_latest")
        if position % 2:
            del left[name]
        else:
            left[name] = 1
        assert {one.thread_id: one.checkpoints for one in await saver.threads()} == left


# -- memory for names


class Nothing(BaseCheckpointSaver[str]):
    """A cold saver that is always empty."""

    def get_tuple(self, config: Any) -> None:
        return None

    def list(self, config: Any, **options: Any) -> Any:
        return iter(())


@pytest.mark.parametrize("target_name", ["redis62"])
@pytest.mark.parametrize("flavour", ["sync"])
async def test_memory_for_long_names_is_bounded(target: Target) -> None:
    """Forty names of half a megabyte each, of threads, namespaces, ids and channels."""
    limits = Limits(name_bytes=2**21)
    uniform = target.uniform(cache_bytes=0, limits=limits)
    tiers = Uniform(TieredSaver(target.uniform(limits=limits).saver, Nothing(), verify="on_open"))

    async def use(number: int) -> None:
        name = f"{number} " + "x" * 2**19
        await uniform.get_tuple(config(name, name, name))
        await tiers.get_tuple(config(name, name))
        if number % 10 == 0:
            await put(uniform, config(), {name: 1}, versions={name: "1" + name})
            assert name in (await uniform.get_tuple(config())).checkpoint["channel_values"]

    await use(0)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, 41):
            await use(number)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 5 * 2**20


@pytest.mark.encrypted_too
@pytest.mark.parametrize("knows", [True, False])
async def test_a_value_of_a_version_without_one_is_left_out(target: Target, knows: bool) -> None:
    """As InMemorySaver does. A process that knows that the version has none needs one round trip, another two."""
    model, uniform = InMemorySaver(), target.uniform()
    other = uniform if knows else target.uniform()
    values: dict[str, Any] = {"log": ["a"] * 1000, "n": [1]}

    where, in_model = config(), config()
    for step, given in enumerate(({}, {"n": [1]}, values, values)):
        new = {0: {"log": "1", "x": "1"}, 1: {"n": "1"}}.get(step, {})
        made = checkpoint(given, {"log": "1", "x": "1", **({"n": "1"} if step else {})})
        if step == 2:
            calls = noted(other.saver)
        where = await (other if step > 1 else uniform).put(where, made, {"step": step}, new)
        in_model = model.put(in_model, made, {"step": step}, new)
        if step == 2:
            assert sum(script_of(request) is scripts.PUT for request, _ in calls) == (1 if knows else 2)
    found, expected = await target.uniform().list(config()), list(model.list(config()))
    assert [one.checkpoint for one in found] == [one.checkpoint for one in expected]
    assert found[0].checkpoint["channel_values"] == {"n": [1]}
    assert (await uniform.check("thread")).sound
