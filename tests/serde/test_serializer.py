"""`FastSerializer` writes and reads any value like `JsonPlusSerializer`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import pickle
import subprocess
import sys
import warnings
from collections import deque
from typing import Any

import langchain_core.messages as lc
import numpy as np
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langgraph.checkpoint.serde import _msgpack, jsonplus
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send
from message_strategies import FAST, JSONPLUS, ORDINARY_MESSAGES, anything, calls, changed, dicts, messages, odd
from message_strategies import Color, Inner, Mapping, MyAIMessage, MyMessage, Named, Number, Pair, Point, Sequence, Text
from message_strategies import odd_dicts, often, outcome, plain, usage
from pydantic import BaseModel
from tests.support.compiled import compiled_left_out

from redis_saver._serde import cutter
from redis_saver._serde import messages as codec
from redis_saver._serde import msgpack as heads
from redis_saver._serde.fingerprint import EncodedValue, Fingerprint
from redis_saver._serde.serializer import FastSerializer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True, scope="module", params=["with", "without"])
def _compiled_part(request: pytest.FixtureRequest) -> Any:
    """Run each test with the compiled part, and without."""
    if request.param == "with" and codec.native is None:
        pytest.skip("redis_saver._serde.native was not built: there was no C compiler when redis_saver was installed")
    with compiled_left_out(FAST) if request.param == "without" else contextlib.nullcontext():
        yield


@pytest.fixture
def remembers() -> None:
    """Skip a test without the compiled part, which remembers earlier versions of lists of messages."""
    if not codec.CLASSES:
        pytest.skip("nothing is remembered of messages")


# -- values of every kind


class Holder(BaseModel):
    messages: list[Any]


def chunks(value: Any) -> Any:
    """Take a value apart into all that distinguishes it: types, order, and a message's inner state."""
    if isinstance(value, BaseModel):
        slots = "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"
        return type(value), chunks(value.__dict__), chunks({slot: getattr(value, slot) for slot in slots})
    if isinstance(value, dict):
        return type(value), [(chunks(key), chunks(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return type(value), [chunks(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, value.tolist()
    if dataclasses.is_dataclass(value):
        return type(value), [chunks(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Send):
        return type(value), value.node, chunks(value.arg)
    return type(value), repr(value)


def assert_reads_alike(stored: tuple[str, bytes]) -> Any:
    wanted, found = outcome(JSONPLUS.loads_typed, stored), outcome(FAST.loads_typed, stored)
    assert chunks(found) == chunks(wanted)
    again = outcome(FAST.loads_rest, *stored)
    if isinstance(wanted, type) and issubclass(wanted, Exception):
        assert again is wanted
    else:
        assert chunks(again[0]) == chunks(wanted)
        if again[1]:
            assert completed(FAST.dumps_rest(*again), stored[1]) == FAST.dumps_typed(again[0])
    return found


def completed(encoded: EncodedValue, earlier: bytes) -> tuple[str, bytes]:
    """Return type and bytes of an encoded value, with the messages that it leaves out, from an earlier version."""
    head, rest = cutter.split(encoded.data)
    front = cutter.split(earlier)[1][: encoded.front] if encoded.front else b""
    return encoded.type, head + front + rest


def assert_same(value: Any) -> None:
    """Check that both serializers write the same or fail alike, and read alike."""
    wanted = outcome(JSONPLUS.dumps_typed, value)
    assert outcome(FAST.dumps_typed, value) == wanted
    found = outcome(FAST.dumps_rest, value)
    if not isinstance(wanted, tuple):
        assert found == wanted
        return
    assert found[:2] == wanted
    assert_reads_alike(wanted)


@often
@given(messages())
def test_messages_match_jsonplus(message: Any) -> None:
    assert_same(message)
    assert_same([message, message])


@often
@given(messages(odd_values=True))
def test_messages_with_values_of_every_kind_match_jsonplus(message: Any) -> None:
    assert_same([message, lc.HumanMessage("after")])


@often
@given(messages(), st.data())
def test_messages_with_fields_set_to_anything_match_jsonplus(message: Any, data: Any) -> None:
    field = data.draw(st.sampled_from(sorted(message.__dict__)))
    value = data.draw(anything | usage | st.lists(calls | odd_dicts | plain, max_size=2))
    message.__dict__[field] = value
    assert_same(message)


@often
@given(messages(), st.data())
def test_messages_with_changed_inner_state_match_jsonplus(message: Any, data: Any) -> None:
    names = data.draw(st.permutations(sorted(message.__dict__)))
    kept = names[data.draw(st.integers(0, 2)) :]
    fields = dict(message.__dict__)
    message.__dict__.clear()
    message.__dict__.update({name: fields[name] for name in kept})
    if data.draw(st.booleans()):
        message.__dict__["foreign"] = 1
    extra = data.draw(st.sampled_from([None, {}, {"content": "other"}, {"a": {1}}, {1: 2}, {"b": Text("x")}]))
    object.__setattr__(message, "__pydantic_extra__", extra)
    assert_same(message)


@often
@given(st.lists(messages(), max_size=4), plain, odd)
def test_messages_inside_other_values_match_jsonplus(found: list[Any], value: Any, strange: Any) -> None:
    for wrapped in (
        {"messages": found, "n": value}, (*found, value), Send("node", {"messages": found}), Pair(found, value),
        [Send("node", found), Send("node", value)], Command(update={"messages": found}, goto="x"), deque(found),
        Interrupt(value=found, id="i"), Point(found, Point(found)), Holder(messages=found), _DeltaSnapshot(found),
        _DeltaSnapshot({"a": found, "b": value}), [Document(page_content="p", metadata={"a": 1}), *found],
        [*found, strange, *found], {"a": strange, "b": found},
    ):  # fmt: skip
        assert_same(wrapped)


@often
@given(anything)
def test_other_values_match_jsonplus(value: Any) -> None:
    assert_same(value)
    assert_same(_DeltaSnapshot(value))


def test_none_and_bytes_match_jsonplus() -> None:
    for value in (None, b"", b"x", bytearray(b"x")):
        assert_same(value)


@pytest.mark.parametrize("depth", [*range(245, 258), 400])
def test_deep_values_match_jsonplus(depth: int) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    message = lc.AIMessage("x", additional_kwargs={"a": nested})
    call = lc.AIMessage("x", tool_calls=[{"name": "f", "args": {"a": nested}, "id": "1"}])
    for value in (nested, message, call, [message, call], {"a": nested, "b": 1}, [1, nested], _DeltaSnapshot(nested)):
        assert_same(value)


def test_nested_exts_match_jsonplus() -> None:
    for depth in (50, 200):
        value: Any = [lc.HumanMessage("x")]
        for _ in range(depth):
            value = Point(value)
        assert_same(value)


def test_long_messages_match_jsonplus() -> None:
    for size in [*range(100, 300), *range(1900, 2100), 65400, 65500, 65536, 70000]:
        value = [lc.HumanMessage("x" * size), lc.HumanMessage("x")]
        assert FAST.dumps_typed(value) == JSONPLUS.dumps_typed(value)
        assert FAST.dumps_rest(value)[:2] == JSONPLUS.dumps_typed(value)


# -- the short path


for number, one in enumerate(ORDINARY_MESSAGES):
    one.id = one.id or f"id-{number}"


@pytest.fixture
def ordinary_road(monkeypatch: Any) -> list[str]:
    """Calls that went through pydantic."""
    passed: list[str] = []
    dump, init = BaseModel.model_dump, BaseModel.__init__

    def model_dump(self: Any, *args: Any, **kwargs: Any) -> Any:
        passed.append("dump")
        return dump(self, *args, **kwargs)

    def __init__(self: Any, /, **data: Any) -> None:
        passed.append("init")
        init(self, **data)

    monkeypatch.setattr(BaseModel, "model_dump", model_dump)
    monkeypatch.setattr(BaseModel, "__init__", __init__)
    return passed


@pytest.mark.parametrize("message", ORDINARY_MESSAGES, ids=lambda message: type(message).__name__)
def test_ordinary_messages_take_the_short_path(message: Any, ordinary_road: list[str]) -> None:
    snapshot = [_DeltaSnapshot([message]), Send("n", {"m": [message]}), Command(update=[message])]
    kind = type(message)
    written = kind in codec.CLASSES and not message.model_extra
    read = written and codec.rule_of(kind) != codec.UNREADABLE
    for value in (message, [message, message], {"m": [message]}, Point([message]), Pair(message, 1), *snapshot):
        del ordinary_road[:]
        stored = FAST.dumps_typed(value)
        FAST.dumps_rest(value)
        assert (ordinary_road == []) == written
        del ordinary_road[:]
        FAST.loads_typed(stored)
        assert (ordinary_road == []) == read
        assert JSONPLUS.dumps_typed(value) == stored
        assert "dump" in ordinary_road
        JSONPLUS.loads_typed(stored)
        assert "init" in ordinary_road


@pytest.mark.parametrize(
    "message",
    [
        MyMessage("x"),
        lc.HumanMessage("x", additional_kwargs={"a": Inner()}),
        lc.HumanMessage("x", additional_kwargs={"a": Mapping()}),
        lc.HumanMessage("x", additional_kwargs={1: 2}),
        lc.ToolMessage("x", tool_call_id="1", artifact={1, 2}),
        lc.AIMessage("x").model_copy(update={"tool_calls": [{"name": "f", "args": {}, "id": "1", "more": 1}]}),
    ],
    ids=range(6),
)
def test_other_messages_take_the_ordinary_path(message: Any, ordinary_road: list[str]) -> None:
    stored = FAST.dumps_typed(message)
    assert "dump" in ordinary_road
    assert stored == JSONPLUS.dumps_typed(message)
    assert_reads_alike(stored)


# -- payloads of another form


def stored_message(module: str, name: str, fields: Any, *rest: Any) -> tuple[str, bytes]:
    payload = ormsgpack.packb((module, name, fields, *(rest or ("model_validate_json",))), option=jsonplus._option)
    return "msgpack", ormsgpack.packb(ormsgpack.Ext(5, payload))


@often
@given(messages(odd_values=False), st.data())
def test_payloads_of_other_forms_match_jsonplus(message: Any, data: Any) -> None:
    fields = message.model_dump()
    for _ in range(data.draw(st.integers(1, 3))):
        change = data.draw(st.sampled_from(["drop", "set", "add", "order", "nest"]))
        if change == "drop" and fields:
            fields.pop(data.draw(st.sampled_from(sorted(fields))))
        elif change == "set" and fields:
            value = data.draw(plain | usage | st.lists(calls | dicts, max_size=2) | st.lists(plain, max_size=2))
            fields[data.draw(st.sampled_from(sorted(fields)))] = value
        elif change == "add":
            names = ["self", "cls", "content_blocks", "tool_calls", "tool_call_chunks", "example", "text", "type", "lc"]
            names += ["invalid_tool_calls", "args", "data", "model_config", "__dict__", "name", "id"]
            fields[data.draw(st.sampled_from(names))] = data.draw(plain | st.lists(calls, max_size=2))
        elif change == "order":
            fields = {name: fields[name] for name in data.draw(st.permutations(sorted(fields)))}
        elif change == "nest":
            for key in ("usage_metadata", "tool_calls"):
                if isinstance(fields.get(key), dict):
                    fields[key] = dict(reversed(fields[key].items()))
                elif isinstance(fields.get(key), list):
                    fields[key] = [dict(reversed(one.items())) if isinstance(one, dict) else one for one in fields[key]]
    cls = type(message)
    assert_reads_alike(stored_message(cls.__module__, cls.__name__, fields))


@pytest.mark.parametrize("cls", [lc.AIMessage, lc.AIMessageChunk])
def test_tool_calls_only_in_additional_kwargs_are_read(cls: Any) -> None:
    for arguments in ('{"a": 1}', "{"):
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}, "type": "function"}
        fields = {**cls("x").model_dump(), "additional_kwargs": {"tool_calls": [call]}}
        found = assert_reads_alike(stored_message(cls.__module__, cls.__name__, fields))
        assert found.tool_calls or found.invalid_tool_calls


@pytest.mark.parametrize("position", [None, "last"])
def test_chunks_that_validators_change_match_jsonplus(position: Any) -> None:
    module, name = lc.AIMessageChunk.__module__, lc.AIMessageChunk.__name__
    call = {"name": "f", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    chunk = {"name": "f", "args": '{"a": 1}', "id": "1", "index": 0, "type": "tool_call_chunk"}
    wrong = {"name": "f", "args": "{", "id": "1", "error": None, "type": "invalid_tool_call"}
    blocks = [{"type": "server_tool_call_chunk", "args": '{"a": 1}', "id": "1"}, {"type": "tool_call_chunk", "id": "1"}]
    plain_fields = {**lc.AIMessageChunk("").model_dump(), "chunk_position": position}
    in_blocks = {"content": blocks, "response_metadata": {"output_version": "v1"}}
    for changes in (
        *({"tool_calls": [call]}, {"tool_call_chunks": [chunk]}, {"invalid_tool_calls": [wrong]}, {"content": blocks}),
        {**in_blocks, "tool_call_chunks": [chunk]},
        in_blocks,
    ):
        found = assert_reads_alike(stored_message(module, name, {**plain_fields, **changes}))
    assert (found.content[0]["type"] == "server_tool_call") == (position == "last")


def test_payloads_that_are_no_message_match_jsonplus() -> None:
    human, fields = ("langchain_core.messages.human", "HumanMessage"), lc.HumanMessage("x").model_dump()
    remove, of_remove = ("langchain_core.messages.modifier", "RemoveMessage"), lc.RemoveMessage(id="1").model_dump()
    for payload in (
        *((*human, content) for content in ({"content": "x"}, {}, {1: 2}, [], None)),
        *((*human, fields, *methods) for methods in (("other method",), ("a", "b"))),
        *((human[0], name, fields) for name in ("NoMessage1234", "HumanMessaga")),
        *((module, human[1], fields) for module in ("langchain_core.messages", "langchain.schema", "nowhere")),
        (__name__, "MyMessage", fields),
        ("langchain_core.messages.ai", "AIMessageX", fields),
        *((*remove, {**of_remove, "content": content}) for content in ("", "x", [], ["a"])),
    ):
        assert_reads_alike(stored_message(*payload))
    for data in (
        *(ormsgpack.packb(ormsgpack.Ext(*ext)) for ext in ((5, b"\x94\xbd"), (5, b""), (99, b"x"))),
        JSONPLUS.dumps_typed(lc.HumanMessage("x"))[1][:-1],
    ):
        assert_reads_alike(("msgpack", data))
    constructed = (
        b'{"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "args": ["00000000000000000000000000000005"]}'
    )
    for stored in (("json", constructed), ("pickle", b"")):
        assert_reads_alike(stored)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_of_any_type_can_be_read(wrap: Any) -> None:
    stored = JSONPLUS.dumps_typed([lc.HumanMessage("x")])
    assert FAST.loads_typed((stored[0], wrap(stored[1]))) == [lc.HumanMessage("x")]


# -- behaviour of a read message


@pytest.mark.parametrize("message", ORDINARY_MESSAGES, ids=lambda message: type(message).__name__)
def test_a_read_message_behaves_like_an_ordinary_one(message: Any) -> None:
    stored = JSONPLUS.dumps_typed(message)
    found, wanted = FAST.loads_typed(stored), JSONPLUS.loads_typed(stored)
    for act in (
        lambda one: one, repr, str, copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)),
        lambda one: one.model_dump(), lambda one: one.model_dump_json(), lambda one: one.model_dump(exclude_unset=True),
        lambda one: sorted(one.model_fields_set), lambda one: one.model_extra, lambda one: one.model_copy(),
        lambda one: one.model_copy(deep=True, update={"content": "other"}),
        lambda one: one.pretty_repr(), lambda one: str(one.text), lambda one: one.to_json(),
        lambda one: outcome(lambda: one.content_blocks), lambda one: outcome(hash, one), lambda one: outcome(lambda: one + one),
        lambda one: outcome(add_messages, [one], [one.model_copy(update={"content": "new"})]),
        lambda one: outcome(setattr, one, "brand_new", 1), lambda one: one,
        lambda one: outcome(setattr, one, "content", "changed"), lambda one: one,
        lambda one: outcome(delattr, one, "name"), lambda one: chunks(one),
    ):  # fmt: skip
        assert chunks(act(found)) == chunks(act(wanted))


def test_read_messages_share_nothing() -> None:
    for message in ORDINARY_MESSAGES:
        stored = FAST.dumps_typed([message, message])
        one, two = FAST.loads_typed(stored)
        (again, _) = FAST.loads_typed(stored)
        before = chunks(two)
        one.additional_kwargs["new"] = 1
        one.response_metadata["new"] = 1
        one.new_field = 1
        one.__pydantic_fields_set__.discard("content")
        one.__pydantic_extra__["x"] = 2
        one.__dict__["id"] = "other"
        if "tool_calls" in one.__dict__:
            one.tool_calls.append({})
        assert chunks(two) == chunks(again) == before


# -- allowlists, warnings, events


@contextlib.contextmanager
def fresh_warnings(caplog: Any) -> Any:
    """Record the events and the log of reads."""
    seen: list[Any] = []
    for known in (jsonplus._warned_unregistered_types, jsonplus._warned_blocked_types):
        known.clear()
    jsonplus._warned_unreconstructable_types.clear()
    caplog.clear()
    unregister = register_serde_event_listener(seen.append)
    try:
        yield seen
    finally:
        unregister()


def read(serde: Any, stored: tuple[str, bytes], caplog: Any) -> Any:
    with fresh_warnings(caplog) as seen:
        found = outcome(serde.loads_typed, stored)
        return chunks(found), list(seen), [record.getMessage() for record in caplog.records]


MIXED = [
    lc.HumanMessage("x"),
    MyMessage("x"),
    Point([lc.HumanMessage("y"), Point(MyAIMessage("z"))]),
    Inner(),
    Pair(1, [lc.AIMessage("x")]),
    Color.RED,
    lc.ToolMessage("x", tool_call_id="1", artifact={"a": Named.A, "b": {Color.RED}, "c": Pair(1, 2)}),
    lc.HumanMessage("x", additional_kwargs={"a": Color.RED}),
    Send("n", {"messages": [lc.HumanMessage("x"), MyMessage("y")]}),
]

ALLOWED = (None, True, [Point, (Inner.__module__, "Inner")])
SETTINGS: list[dict[str, Any]] = [
    {},
    *({"allowed_msgpack_modules": allowed} for allowed in ALLOWED),
    {"allowed_json_modules": [("a", "b")]},
    {"allowed_json_modules": True, "pickle_fallback": True},
]


@pytest.mark.parametrize("given_settings", SETTINGS, ids=range(len(SETTINGS)))
def test_allowlists_warnings_and_events_match_jsonplus(given_settings: dict[str, Any], caplog: Any) -> None:
    stored = JSONPLUS.dumps_typed(MIXED)
    assert FAST.dumps_typed(MIXED) == stored
    ours, theirs = FastSerializer(**given_settings), JsonPlusSerializer(**given_settings)
    wanted = read(theirs, stored, caplog)
    assert read(ours, stored, caplog) == wanted
    more_ours, more_theirs = (one.with_msgpack_allowlist([MyMessage, Color]) for one in (ours, theirs))
    assert type(more_ours) is FastSerializer
    assert (more_ours is ours) == (more_theirs is theirs)
    assert more_ours._allowed_msgpack_modules == more_theirs._allowed_msgpack_modules
    assert read(more_ours, stored, caplog) == read(more_theirs, stored, caplog)
    assert read(ours, stored, caplog) == wanted
    if theirs._allowed_msgpack_modules is not True:
        assert read(more_theirs, stored, caplog) != wanted


@pytest.mark.usefixtures("remembers")
def test_a_longer_allowlist_keeps_the_short_path(ordinary_road: list[str]) -> None:
    serde = FastSerializer(allowed_msgpack_modules=None).with_msgpack_allowlist([Point])
    value = [lc.HumanMessage("x"), Point([lc.HumanMessage("y")])]
    stored = JSONPLUS.dumps_typed(value)
    del ordinary_road[:]
    assert serde.loads_typed(stored) == value
    assert ordinary_road == []


def test_strict_mode_can_be_set_by_the_environment(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", True)
    stored = JSONPLUS.dumps_typed(MIXED)
    assert read(FastSerializer(), stored, caplog) == read(JsonPlusSerializer(), stored, caplog)
    assert FastSerializer()._allowed_msgpack_modules is None


def test_an_unsafe_message_is_blocked(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(_msgpack, "SAFE_MSGPACK_TYPES", frozenset())
    stored = JSONPLUS.dumps_typed([lc.HumanMessage("x")])
    ours, theirs = (kind(allowed_msgpack_modules=None) for kind in (FastSerializer, JsonPlusSerializer))
    wanted = read(theirs, stored, caplog)
    assert wanted[1]
    assert read(ours, stored, caplog) == wanted


def test_a_custom_hook_is_called() -> None:
    def hook(code: int, data: bytes) -> Any:
        return code, len(data)

    stored = FAST.dumps_typed([lc.HumanMessage("x")])
    ours = FastSerializer(allowed_msgpack_modules=None, __unpack_ext_hook__=hook)
    theirs = JsonPlusSerializer(allowed_msgpack_modules=None, __unpack_ext_hook__=hook)
    assert ours.loads_typed(stored) == theirs.loads_typed(stored) != [lc.HumanMessage("x")]
    assert ours.with_msgpack_allowlist([Point]).loads_typed(stored) == theirs.loads_typed(stored)


def test_pickle_fallback_matches_jsonplus() -> None:
    ours, theirs = FastSerializer(pickle_fallback=True), JsonPlusSerializer(pickle_fallback=True)
    for value in (1j, [lc.HumanMessage("x"), 2**70], [1, 1j], {"a": 1j, "b": 2}, _DeltaSnapshot([1, 1j]), {1: 1j}):
        stored = theirs.dumps_typed(value)
        assert stored[0] == "pickle"
        assert ours.dumps_typed(value) == stored
        assert ours.dumps_rest(value)[:2] == stored
        assert ours.loads_typed(stored) == value
        assert outcome(FAST.dumps_typed, value) is outcome(FAST.dumps_rest, value) is TypeError


def test_pydantics_warnings_are_kept() -> None:
    message = lc.AIMessage("x")
    message.__dict__["tool_calls"] = "no list"
    for serde in (JSONPLUS, FAST):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            serde.dumps_typed(message)
        assert caught


def test_large_and_small_elements_match_jsonplus() -> None:
    message = lc.HumanMessage("x")
    for value in (
        [1] * 16 + ["x" * 5000] * 20, ["x" * 5000] * 16 + [1] * 50, [message, 1, None, Color.RED, message], [1, message],
        [("a", 1)] * 3, [("x" * 100, 1)] * 3, [(Color.RED, 1)] * 3, [["x" * 70]] * 2, (1, 2), [], {}, [1], {"a": 1},
        {"a": message, "b": 1}, {"": [], "b": {}}, {"x" * 300: 1, "b": 2}, {Text("a"): 1, "b": 2}, {1: "a", "b": 2},
        Mapping(a=1, b=2), Sequence([1, 2]), _DeltaSnapshot(_DeltaSnapshot([message] * 3)), _DeltaSnapshot(None),
        *(_DeltaSnapshot(list(range(size))) for size in (0, 2, 14, 15, 300)), _DeltaSnapshot(["x" * 40000] * 2),
    ):  # fmt: skip
        assert_same(value)


def test_ext_headers_match_ormsgpack() -> None:
    for size in [*range(17, 300), 65535, 65536]:
        data = b"x" * size
        assert heads.ext_header(7, size) + data == ormsgpack.packb(ormsgpack.Ext(7, data))
    assert len(set(itertools.starmap(heads.ext_header, itertools.product((5, 7), range(17, 70_000, 7))))) > 9000


# -- growing lists


def assert_encoded(value: Any, last: EncodedValue | None, earlier: bytes) -> EncodedValue | None:
    """Check that a value has the same bytes with and without an earlier version."""
    wanted = outcome(JSONPLUS.dumps_typed, value)
    found = outcome(lambda: FAST.dumps_rest(value, last.fingerprint if last else None))
    if not isinstance(wanted, tuple):
        assert found == wanted
        return None
    assert completed(found, earlier) == FAST.dumps_rest(value)[:2] == wanted
    if found.fingerprint:
        assert len(found.fingerprint.kinds) == len(found.fingerprint.ends)
        assert found.fingerprint.bytes == len(cutter.split(wanted[1])[1])
    return found  # type: ignore[no-any-return]


def assert_reads_the_rest(stored: tuple[str, bytes], last: Fingerprint, earlier: bytes, data: Any) -> None:
    """Check that a list with a known front is read like one without."""
    head, contents = cutter.split(stored[1])
    before = cutter.split(earlier)[1]
    count = sum(contents[:end] == before[:end] for end in last.ends[: last.read])
    front = last.front(data.draw(st.integers(0, count)))
    assert front == last.read_within(front.bytes)
    found = FAST.loads_rest("msgpack", head + contents[front.bytes :], front)
    if front.kinds and found is None:
        return
    assert chunks(found[0]) == chunks(JSONPLUS.loads_typed(stored))
    _, fresh = FAST.loads_rest(*stored)
    assert repr(found[1]) == repr(fresh)  # in a repr, NaN equals NaN


def test_versions_of_a_list_match_jsonplus() -> None:
    @often
    @given(st.lists(messages(), min_size=2, max_size=6), st.data())
    def check(value: list[Any], data: Any) -> None:
        last, earlier = None, b""
        for _ in range(4):
            if found := assert_encoded(value, last, earlier):
                last, earlier = found, JSONPLUS.dumps_typed(value)[1]
            assert_encoded(_DeltaSnapshot(value), last, earlier)
            stored = outcome(FAST.dumps_typed, value)
            if last and last.fingerprint and last.fingerprint.read and isinstance(stored, tuple):
                assert_reads_the_rest(stored, last.fingerprint, earlier, data)
            if last and isinstance(stored, tuple) and data.draw(st.booleans()):
                value, read = FAST.loads_rest(*stored)
                if read:
                    assert last.fingerprint is None or repr(last.fingerprint._replace(read=len(value))) == repr(read)
                    last = last._replace(fingerprint=read)
            step = data.draw(st.sampled_from(["change", "append", "drop", "insert", "swap", "nothing", "other"]))
            where = data.draw(st.integers(0, len(value) - 1))
            if step == "change":
                with contextlib.suppress(AttributeError, TypeError, ValueError):
                    changed(value[where], data)
            elif step == "append":
                value += data.draw(st.lists(messages(), min_size=1, max_size=2))
            elif step == "drop" and len(value) > 2:
                del value[where]
            elif step == "insert":
                value.insert(where, data.draw(messages()))
            elif step == "swap":
                value[0], value[where] = value[where], value[0]
            elif step == "other":
                value[where] = data.draw(odd)

    check()


@pytest.mark.usefixtures("remembers")
@pytest.mark.parametrize("count", [16, 100])
def test_the_front_of_a_growing_list_is_not_encoded_again(count: int, ordinary_road: list[str]) -> None:
    value = [lc.HumanMessage(str(n) * 99, id=str(n)) for n in range(count)]

    def kept(value: Any, last: EncodedValue) -> int:
        """Number of messages that are left out."""
        front = FAST.dumps_rest(value, last.fingerprint).front
        return (0, *last.fingerprint.ends).index(front) if last.fingerprint else front

    last = FAST.dumps_rest(value)
    assert (last.front, len(last.fingerprint.kinds)) == (0, count)
    assert last.fingerprint.size > len(last.data) * 0.5
    assert kept(value, last) == count
    value += [lc.AIMessage("more"), lc.ToolMessage("more", tool_call_id="1")]
    more = FAST.dumps_rest(value, last.fingerprint)
    assert more.front == last.fingerprint.bytes
    assert completed(more, last.data) == FAST.dumps_rest(value)[:2]
    snapshot = _DeltaSnapshot(value)
    assert FAST.dumps_rest(snapshot, last.fingerprint)[2:] == more[2:]
    value[7].additional_kwargs["a"] = 1
    assert kept(value, more) == 7
    value[5] = lc.SystemMessage(value[5].content, id="5")
    assert kept(value, more) == 5
    assert "dump" not in ordinary_road
    object.__setattr__(value[3], "__pydantic_extra__", {"a": 1})
    assert FAST.dumps_rest(value, more.fingerprint)[2:] == (0, None)
    assert kept([value[0]] * 2, more) == 1
    assert kept(["x"] * 9999, more) == 0
    assert kept(value[:3] * 9, FAST.dumps_rest(["x"] * 9999)) == 0


@pytest.mark.usefixtures("remembers")
@pytest.mark.parametrize("count", [2, 31, 32, 33, 100])
def test_a_list_that_was_read_is_not_encoded_again(count: int, ordinary_road: list[str]) -> None:
    kinds = (lc.HumanMessage, lc.AIMessage, lc.SystemMessage)
    value = [kinds[n % 3](str(n) * 999, id=str(n), response_metadata={"a": [1]}) for n in range(count)]
    found, read = FAST.loads_rest(*FAST.dumps_typed(value))
    assert found == value
    fresh = FAST.dumps_rest(value)
    assert read == fresh.fingerprint._replace(read=count)
    found.append(lc.AIMessage("more"))
    assert FAST.dumps_rest(found, read).front == len(cutter.split(fresh.data)[1])
    found[1].response_metadata["a"].append(2)
    assert FAST.dumps_rest(found, read).front == read.ends[0]
    assert "dump" not in ordinary_road


def test_only_lists_of_ordinary_messages_are_remembered_when_read() -> None:
    message = JSONPLUS.dumps_typed(lc.HumanMessage("x"))[1]
    assert bool(FAST.loads_rest("msgpack", b"\x92" + 2 * message)[1]) == bool(codec.CLASSES)
    for data in (
        b"\xdc\x00\x02" + 2 * message,  # a longer header than needed
        b"\x92" + message + message.replace(b"model_validate_json", b"model_validate_JSON"),
        b"\x92" + message + b"\xc8\x00" + message[1:],
        b"\x92" + message + b"\x91" + message,
        b"\x91" + message,
        b"\x93" + 2 * message + b"\x01",
    ):
        value, read = FAST.loads_rest("msgpack", data)
        assert (chunks(value), read) == (chunks(JSONPLUS.loads_typed(("msgpack", data))), None)


def test_a_subclass_reads_with_its_own_methods() -> None:
    class Whispering(FastSerializer):
        """A serializer that changes what it reads."""

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return str(super().loads_typed(data)).lower()

    stored = FAST.dumps_typed([lc.HumanMessage("X")] * 9)
    assert Whispering().loads_rest(*stored) == (Whispering().loads_typed(stored), None)
    hooked = FastSerializer(__unpack_ext_hook__=lambda code, data: (code, data))
    assert hooked.loads_rest(*stored) == (hooked.loads_typed(stored), None)


def test_values_with_equal_bytes_but_other_types_match_jsonplus() -> None:
    value = [lc.AIMessage("x" * 99, additional_kwargs={"a": [1, 2]}) for _ in range(30)]
    last, earlier = assert_encoded(value, None, b""), FAST.dumps_typed(value)[1]
    for other in ((1, 2), [True, 2], [1.0, 2], [1, Number(2)], Sequence([1, 2]), {1, 2}, Pair(1, 2), deque([1, 2])):
        value[3].additional_kwargs["a"] = other
        assert_encoded(value, last, earlier)


# -- another langgraph-checkpoint


RELIED_ON = ["_msgpack_default", "_msgpack_enc", "_option", "_DeltaSnapshot", "EXT_PYDANTIC_V2", "Interior"]
WITHOUT_ONE = """
import os, langgraph.store.base, redis.asyncio.cluster, redis.asyncio.sentinel  # not once per child
from langgraph.checkpoint.serde import jsonplus
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

def without(name):
    if name == "Interior":
        jsonplus._msgpack_default = lambda value, more: more
    else:
        kept = vars(jsonplus).pop(name)
    from redis_saver._serde.serializer import FastSerializer
    from redis_saver._serde import fallback
    assert not fallback.KNOWN
    if name != "Interior":
        vars(jsonplus)[name] = kept
        value = [HumanMessage("x" * 99) for _ in range(99)]
        stored = JsonPlusSerializer().dumps_typed(value)
        assert FastSerializer().dumps_typed(value) == stored
        found = FastSerializer(allowed_msgpack_modules=None).with_msgpack_allowlist([("a", "b")])
        assert found.dumps_rest(value) == (*stored, 0, None)
        assert found.loads_typed(stored) == value

for name in NAMES:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, name
    else:
        without(name)
        break
"""


@pytest.mark.parametrize("_compiled_part", ["without" if codec.native is None else "with"], indirect=True)
def test_missing_names_of_langgraph_disable_the_short_path() -> None:
    """Each runs in its own process, as the names are looked up when the serializer is imported."""
    subprocess.run([sys.executable, "-c", f"NAMES = {RELIED_ON}\n{WITHOUT_ONE}"], check=True)
