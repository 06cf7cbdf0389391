"""Hypothesis strategies for ordinary and unusual messages."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from collections import deque
from typing import Any, NamedTuple

import langchain_core.messages as lc
import numpy as np
import ormsgpack
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel, SecretStr

from redis_saver._serde.messages import CANDIDATES
from redis_saver._serde.serializer import FastSerializer

JSONPLUS, FAST = JsonPlusSerializer(), FastSerializer()


often = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Color(enum.Enum):
    RED = "red"


class Named(str, enum.Enum):
    A = "a"


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Mapping(dict):
    pass


class Sequence(list):
    pass


class Inner(BaseModel):
    a: int = 1


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 2


class Pair(NamedTuple):
    a: Any
    b: Any


class MyMessage(lc.HumanMessage):
    extra_field: int = 3


class MyAIMessage(lc.AIMessage):
    pass


CLASSES = list(CANDIDATES)
NEEDED = {"role": "r", "tool_call_id": "t"}
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=8))

ODD = [
    "\ud800", 2**70, b"bytes", bytearray(b"array"), (1, "a"), (1, {2}), {1, 2}, Color.RED, Named.A, Text("t"), Number(3),
    Real(1.5), Mapping(a=1), Sequence([1]), Inner(), Point(1), Pair(1, [2]), datetime.datetime(2020, 1, 1),
    datetime.date(2020, 1, 1), uuid.UUID(int=5), decimal.Decimal("1.5"), pathlib.Path("/tmp/x"), deque([1]),
    np.float64(2.5), np.arange(3), SecretStr("s"), lc.HumanMessage("inner"), {1: 2}, {None: 1}, {(1, 2): 3},
    {Text("k"): 1}, {Named.A: 1}, {"\ud800": 1}, object(), 1j, float("nan"),
]  # fmt: skip
odd = st.sampled_from(ODD)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)

anything = st.recursive(
    scalars | odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)

dicts = st.dictionaries(st.text(max_size=5), plain, max_size=3)

odd_dicts = st.dictionaries(st.text(max_size=5), anything, max_size=3)

calls = st.fixed_dictionaries(
    {"name": st.text(max_size=5), "args": dicts, "id": st.none() | st.text(max_size=5)},
    optional={"type": st.just("tool_call")},
)

counts = st.integers(0, 10**6)

details = [
    st.fixed_dictionaries({}, optional=dict.fromkeys(names, counts))
    for names in (("cache_read", "audio", "cache_creation", "flex"), ("reasoning", "audio"))
]
usage = st.fixed_dictionaries(
    dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), counts),
    optional={"input_token_details": details[0], "output_token_details": details[1], "more": counts},
)

blocks = st.lists(st.text(max_size=8) | st.fixed_dictionaries({"type": st.just("text"), "text": plain}), max_size=3)

arguments = st.sampled_from(['{"a": 1}', "{", "[]", ""])
functions = st.fixed_dictionaries({"name": st.text(max_size=3), "arguments": arguments})
openai_calls = st.lists(st.fixed_dictionaries({"id": st.text(max_size=3), "function": functions}), max_size=2)


@st.composite
def messages(draw: Any, odd_values: bool = False) -> Any:
    """Draw a message of any class, as an application makes it."""
    cls = draw(st.sampled_from([*CLASSES, lc.AIMessage, lc.AIMessage, MyMessage, MyAIMessage]))
    maps = odd_dicts if odd_values else dicts
    given_: dict[str, Any] = {key: draw(st.text(max_size=4)) for key in NEEDED if key in cls.model_fields}
    optional: dict[str, Any] = {
        "name": st.text(max_size=4),
        "id": st.text(max_size=4) | st.integers(0, 9),
        "additional_kwargs": maps | st.fixed_dictionaries({"tool_calls": openai_calls}),
        "response_metadata": maps | st.just({"output_version": "v1"}),
        "stamp": anything if odd_values else plain,
        "example": st.booleans(),
    }
    if "tool_calls" in cls.model_fields:
        optional["tool_calls"] = st.lists(calls, max_size=2)
        optional["usage_metadata"] = usage
        optional["invalid_tool_calls"] = st.just([{"name": "f", "args": "{", "id": None, "error": "e"}])
    if "tool_call_chunks" in cls.model_fields:
        chunk = {"name": "f", "args": '{"a":', "id": "1", "index": 0}
        optional["tool_call_chunks"] = st.just([chunk])
        optional["chunk_position"] = st.just("last")
    if "artifact" in cls.model_fields:
        optional["artifact"] = anything if odd_values else plain
        optional["status"] = st.sampled_from(["success", "error"])
    for key, strategy in optional.items():
        if draw(st.integers(0, 2)) == 0:
            given_[key] = draw(strategy)
    if cls is lc.RemoveMessage:
        given_.setdefault("id", "1")
    else:
        given_["content"] = draw(st.text(max_size=20) | blocks)
    if cls in (lc.FunctionMessage, lc.FunctionMessageChunk):
        given_.setdefault("name", "f")
    return cls(**given_)


def payload_of(message: Any) -> bytes:
    """The contents of a message's Ext as `JsonPlusSerializer` writes it."""
    found: bytes = ormsgpack.unpackb(JSONPLUS.dumps_typed(message)[1], ext_hook=lambda _, data: data)
    return found


def outcome(act: Any, *args: Any) -> Any:
    """Return a call's result, or the type of its error."""
    try:
        return act(*args)
    except Exception as error:
        return type(error)


ORDINARY_MESSAGES = [
    *[cls(**{key: "x" for key in NEEDED if key in cls.model_fields}, id="1", name="n", content="") for cls in CLASSES],
    lc.HumanMessage([{"type": "text", "text": "a"}, "b"], additional_kwargs={"a": {"b": [1]}}),
    lc.HumanMessage("with more", example=False),
    lc.AIMessage(
        "hello",
        id="run-1",
        tool_calls=[{"name": "f", "args": {"a": {"b": 1}}, "id": "1"}, {"name": "g", "args": {}, "id": None}],
        usage_metadata={
            **{"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            **{"input_token_details": {"audio": 0, "cache_read": 1}, "output_token_details": {"reasoning": 1}},
        },
        response_metadata={"model_name": "m", "logprobs": None, "token_usage": {"n": 1.5}},
        additional_kwargs={"refusal": None},
    ),
    lc.ToolMessage("result", tool_call_id="1", artifact={"rows": [1, 2]}, status="error"),
    *([lc.AIMessageChunk("", chunk_position="last")] if "chunk_position" in lc.AIMessageChunk.model_fields else []),
]


def changed(message: Any, data: Any) -> None:
    """Change a message in place, as user code may.

    Raises:
        TypeError: It is none. A member of an enum, for example, is shared by all tests.
    """
    if not isinstance(message, lc.BaseMessage):
        raise TypeError(type(message))
    which = data.draw(st.integers(0, 6))
    if which == 0:
        message.content = data.draw(st.text(max_size=5) | blocks) if type(message) is not lc.RemoveMessage else ""
    elif which == 1:
        message.additional_kwargs["new"] = data.draw(anything)
    elif which == 2:
        message.response_metadata = dict(reversed({"a": 1, "b": 2, **message.response_metadata}.items()))
    elif which == 3:
        message.__dict__[data.draw(st.sampled_from(sorted(message.__dict__)))] = data.draw(anything | usage)
    elif which == 4:
        object.__setattr__(message, "__pydantic_extra__", data.draw(st.sampled_from([None, {}, {"a": 1}])))
    elif which == 5:
        message.__dict__["foreign"] = 1
    else:
        message.__class__ = data.draw(st.sampled_from([lc.HumanMessage, lc.SystemMessage, MyMessage]))
