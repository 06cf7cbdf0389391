"""`native.c` does what `JsonPlusSerializer` does or declines, and neither leaks nor crashes."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from typing import Any

import langchain_core.messages as lc
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_strategies import FAST, JSONPLUS, ORDINARY_MESSAGES, Mapping, Sequence, changed, messages, often, outcome
from message_strategies import payload_of

from tests.support.compiled import needs_compiled

from redis_saver._serde import messages as codec
from redis_saver._serde import msgpack as heads
from redis_saver._serde.fingerprint import Fingerprint
from redis_saver._serde.messages import state

native: Any = codec.native
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), needs_compiled]


PLAIN = [message for message in ORDINARY_MESSAGES if not message.model_extra]


def ordinary(value: Any) -> Any:
    """Return a value as LangGraph's serializer reads it."""
    return JSONPLUS.loads_typed(JSONPLUS.dumps_typed(value))


def states(found: list[Any]) -> list[Any]:
    return [state(message) for message in found]


def shown(message: Any) -> Any:
    """Return all of a message, with NaN equal to NaN."""
    inner = message.__pydantic_extra__, sorted(message.__pydantic_fields_set__), message.__pydantic_private__
    return type(message), repr(vars(message)), inner


def readable(cls: Any) -> bool:
    return codec.rule_of(cls) != codec.UNREADABLE


def test_every_message_class_is_known() -> None:
    assert codec.CLASSES == set(codec.CANDIDATES)
    assert {cls.__name__ for cls in codec.CLASSES if not readable(cls)} == {"AIMessageChunk", "RemoveMessage"}


@pytest.mark.parametrize("message", PLAIN, ids=lambda message: type(message).__name__)
def test_ordinary_messages_are_never_declined(message: Any) -> None:
    pair = [message, message]
    elements, kinds, fields = codec.pack(pair)
    payload, data = payload_of(message), JSONPLUS.dumps_typed(pair)[1]
    assert native.payload(message) == payload
    assert native.encode(pair) == data
    assert b"\x92" + b"".join(elements) == data
    assert native.unchanged(pair, kinds, fields) == 2
    assert states(native.make(kinds, fields)) == states(ordinary(pair))
    if readable(type(message)):
        assert states([native.read(payload)]) == states([ordinary(message)])


VALUES = ["\ud800", 2**64, -(2**63) - 1, (1,), bytearray(b"b"), {1: 2}, {"\ud800": 1}, type("S", (str,), {})("s")]
VALUES += [True, 0, -1, None, 1.5, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
VALUES += [n for k in (5, 7, 8, 16, 32) for n in (2**k, -(2**k), -(2**k) - 1)]
VALUES += [b"b" * size for size in (0, 255, 256, 65_536)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_values_that_are_not_plain_are_declined(value: Any) -> None:
    message = lc.HumanMessage("x", additional_kwargs={"a": [value]})
    plain = type(value) in (type(None), bytes, float) or (isinstance(value, int) and -(2**63) <= value < 2**64)
    payload = native.payload(message)
    assert (payload is not None) == plain
    if plain:
        assert payload == payload_of(message)
        assert states([native.read(payload)]) == states([ordinary(message)])
    assert (native.encode([message]) is not None) == plain
    assert (native.pack([message]) is not None) == plain
    assert native.payload(lc.HumanMessage("x", extra=1)) is None
    assert native.payload(value) is None


@pytest.mark.parametrize(("depth", "plain"), [(60, True), (70, False), (100_000, False)])
def test_values_nested_too_deep_are_declined(depth: int, plain: bool) -> None:
    value: Any = []
    for _ in range(depth):
        value = [value]
    message = lc.HumanMessage("x")
    message.additional_kwargs["a"] = value
    payload = native.payload(message)
    assert (payload is not None) == plain
    if plain:
        assert states([native.read(payload)]) == states([ordinary(message)])
    ends = ormsgpack.packb({"a": None})[:-1] + b"\x91" * depth + b"\xc0"
    short = payload_of(lc.HumanMessage("x"))
    deep = short.replace(b"\xb1additional_kwargs\x80", b"\xb1additional_kwargs" + ends)
    assert deep != short
    assert (native.read(deep) is not None) == plain
    del value, message  # must not recurse


@often
@given(st.lists(messages(), min_size=1, max_size=40), st.data())
def test_unchanged_counts_the_unchanged_front(value: list[Any], data: Any) -> None:
    packed = outcome(native.pack, value)
    if packed is None:
        return
    kinds, before = list(map(type, value)), list(map(payload_of, value))
    contents = [repr(vars(message)) for message in value]  # in a repr, NaN equals NaN
    fingerprint = Fingerprint().with_more(packed[0], kinds, packed[1], read=True)
    step = data.draw(st.sampled_from(["nothing", "change", "drop", "longer", "shorter"]))
    where = data.draw(st.integers(0, len(value) - 1))
    if step == "change":
        outcome(changed, value[where], data)
    elif step == "drop":
        del value[where]
    elif step == "longer":
        value += value[:2]
    elif step == "shorter":
        del value[where:]
    found = native.unchanged(value, fingerprint.kinds, fingerprint.fields)
    same = 0
    for message, kind, payload in zip(value, kinds, before):
        if type(message) is not kind or native.payload(message) is None or payload_of(message) != payload:
            break
        same += 1
    assert found == same
    assert step not in ("nothing", "longer", "shorter") or found == min(len(value), len(kinds))
    count = data.draw(st.integers(0, len(kinds)))
    front = fingerprint.front(count)
    kept = packed[0][:count], kinds[:count], fingerprint.fields[:count]
    assert front == Fingerprint().with_more(*kept, read=True)
    made = front.made()
    assert [repr(vars(message)) for message in made] == contents[:count]
    assert all(message.__pydantic_fields_set__ == set(vars(message)) for message in made)
    assert all((message.__pydantic_extra__, message.__pydantic_private__) == ({}, None) for message in made)
    assert native.pack(made) == (packed[0][:count], front.fields)


LEAVES = [None, True, False, 1, 0, 2**63, 0.0, -0.0, 1.0, float("nan"), b"", b"1", "", "1", "\u00e4", {}, []]
NESTED = st.recursive(
    st.sampled_from(LEAVES).map(copy.deepcopy),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def edited(value: Any, data: Any) -> Any:
    """Return the value with one part replaced, reversed or added."""
    if isinstance(value, (dict, list)) and value and data.draw(st.integers(0, 5)):
        where = data.draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
        value[where] = edited(value[where], data)
    elif isinstance(value, dict) and data.draw(st.booleans()):
        more = {"new": 1} if data.draw(st.booleans()) else {}
        return dict(reversed({**more, **value}.items()))
    elif isinstance(value, list) and data.draw(st.booleans()):
        return [*value[::-1], *data.draw(st.sampled_from([[], [None]]))]
    else:
        return data.draw(NESTED)
    return value


@often
@given(NESTED, st.data())
def test_a_value_is_unchanged_if_its_bytes_are(value: Any, data: Any) -> None:
    one = lc.AIMessage("", response_metadata={"of": value})
    bodies, fields = native.pack([one])
    other = one.model_copy(deep=True)
    assert native.unchanged([other], (lc.AIMessage,), fields) == 1
    rebuilt = lc.AIMessage("", response_metadata={"of": ormsgpack.unpackb(ormsgpack.packb(value))})
    assert native.unchanged([rebuilt], (lc.AIMessage,), fields) == 1
    other.response_metadata["of"] = edited(other.response_metadata["of"], data)
    same, packed = native.unchanged([other], (lc.AIMessage,), fields), native.pack([other])[0]
    assert same == (packed == bodies)


@often
@given(NESTED, st.data())
def test_remembered_fields_are_never_shared(value: Any, data: Any) -> None:
    calls = [{"name": "f", "args": {"a": value}, "id": "1", "type": "tool_call"}]
    one = lc.AIMessage("", response_metadata={"of": value}, additional_kwargs={"a": [value]}, tool_calls=calls)
    packed = native.pack([one])
    for _ in range(2):
        made = native.make((lc.AIMessage,), packed[1])[0]
        assert native.pack([made]) == packed
        assert repr(made) == repr(lc.AIMessage.model_validate(one.model_dump()))
        for message in (one, made):
            fields = vars(message)
            fields["response_metadata"] = edited(fields["response_metadata"], data)
            fields["additional_kwargs"]["a"] = edited(fields["additional_kwargs"]["a"], data)
            fields["tool_calls"][0]["args"] = edited(fields["tool_calls"][0]["args"], data)
            fields["invalid_tool_calls"].append(1)
        one = made = native.make((lc.AIMessage,), packed[1])[0]
    assert native.pack(native.make((lc.AIMessage,), packed[1])) == packed


@often
@given(messages(), st.data())
def test_damaged_payloads_are_declined_or_match_jsonplus(message: Any, data: Any) -> None:
    payload = payload_of(message)
    for _ in range(20):
        damaged = bytearray(payload)
        for _ in range(data.draw(st.integers(0, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        end = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
        given_ = bytes(damaged[:end]) + data.draw(st.sampled_from([b"", b"x"]))
        found = native.read(given_)
        if found is not None:
            wanted = JSONPLUS.loads_typed(("msgpack", ormsgpack.packb(ormsgpack.Ext(5, given_))))
            assert shown(found) == shown(wanted)


def test_wrong_fields_are_declined() -> None:
    value = [lc.HumanMessage(str(n), id=str(n)) for n in range(5)]
    kinds, (bodies, fields) = (lc.HumanMessage,) * 5, native.pack(value)
    assert states(native.make(kinds, fields)) == states(ordinary(value))
    cut, empty = ((*fields[:2], broken, *fields[3:]) for broken in (fields[2][:-1], ()))
    for broken in ((), fields[:2], tuple(bodies), cut, empty, (None,) * 5):
        assert native.make(kinds, broken) is None
        assert native.unchanged(value, kinds, broken) == (2 if len(broken) and broken[0] is fields[0] else 0)
    assert len(native.make(kinds[:4], fields)) == 4
    assert native.make((str,) * 5, fields) is None
    assert native.unchanged(["x"], (str,), ((),)) == 0
    assert native.unchanged(["x"], kinds, fields) == 0


def test_a_message_that_is_not_plain_ends_remembering() -> None:
    """The list is then encoded completely, and nothing is remembered of it."""
    value = [lc.HumanMessage(str(n) * 99, id=str(n)) for n in range(40)]
    odd = lc.AIMessage("more", extra=1)
    first, read = FAST.dumps_rest(value), FAST.loads_rest(*FAST.dumps_typed(value))[1]
    for last in (first.fingerprint, read):
        longer = FAST.dumps_rest([*value, odd], last)
        assert longer == (*JSONPLUS.dumps_typed([*value, odd]), 0, None)
        assert FAST.dumps_rest([odd, *value], last)[2:] == (0, None)
        assert FAST.dumps_rest(value, longer.fingerprint) == first
    rest = heads.header(41, list) + JSONPLUS.dumps_typed(odd)[1]
    assert FAST.loads_rest("msgpack", rest, read) == ([*value, odd], None)


@pytest.mark.parametrize("name", ["cut", "encode", "payload", "pack", "unchanged", "read", "make", "forget"])
def test_arguments_of_wrong_types_are_harmless(name: str) -> None:
    for arguments in ((), (1,), (None, None), ([], [], []), ([None], [None], [None]), ([], [None]), ([None], [None])):
        try:
            found = getattr(native, name)(*arguments)
        except TypeError:
            continue
        assert not found or found == ([], []) or (name, found) == ("encode", b"\x90"), found


def test_nothing_is_leaked() -> None:
    value = [one for one in PLAIN for _ in range(3)]
    strange = [*value, lc.HumanMessage("x", additional_kwargs={"a": "\ud800"})]
    kinds, fields, payloads = tuple(map(type, value)), native.pack(value)[1], list(map(native.payload, value))
    payloads += [payload[:end] for payload in payloads for end in (70, 150, -1)]
    payloads += [payload.replace(b"content", b"tnetnoc") for payload in payloads]

    def all_of_it() -> None:
        for given_ in (value, strange):
            native.encode(given_)
            native.pack(given_)
            native.unchanged(given_, kinds, fields)
            for one in given_:
                native.payload(one)
        native.make(kinds, fields)
        native.make(kinds, (*fields[:-1], ()))
        native.snapshot({"a": [*value, (1, {2: [3]})], 3: OrderedDict(a=[1]), "b": [Mapping({4: []})]}, id)
        native.snapshot([OrderedDict(a=[1], b=({},)), Sequence([[1]])], id)
        for payload in payloads:
            native.read(payload)

    all_of_it()
    nones = sys.getrefcount(None)
    tracemalloc.start()
    try:
        all_of_it()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            all_of_it()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 5000
    assert abs(sys.getrefcount(None) - nones) < 50


@pytest.mark.parametrize("meddle", ["clear", "append", "copy"])
def test_garbage_collection_during_a_call_is_harmless(meddle: str) -> None:
    """Python 3.10 and 3.11 collect garbage at allocations, and then run other code."""
    value = [one for one in PLAIN if type(one) is not lc.RemoveMessage] * 5
    kinds, fields = tuple(map(type, value)), native.pack(value)[1]
    value = [kind.__new__(kind) for kind in kinds] if meddle == "append" else value
    lists: list[Any] = []

    def collecting(phase: str, info: Any) -> None:
        for each in lists:
            each.clear() if meddle == "clear" else each.append(each[0])
        if meddle == "copy":
            [found.copy() for found in gc.get_objects() if type(found) is list]

    def filled(one: Any) -> Any:
        for name, field in PLAIN[0].__dict__.items():
            object.__setattr__(one, name, field)
        for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
            object.__setattr__(one, name, None)
        return one

    payload = native.payload(lc.AIMessage("x", additional_kwargs={"a": [[[{"b": []}]] * 3] * 3}))
    wanted = states([native.read(payload)])
    threshold = gc.get_threshold()
    gc.freeze()  # look only at objects made here, as ormsgpack 1.12 leaves halves of unread lists
    gc.callbacks.append(collecting)
    try:
        for every in range(1, 60):
            given_ = list(map(filled, value)) if meddle == "append" else value[:]
            fresh = value[:]
            gc.set_threshold(every)
            lists[:] = [given_] if meddle != "copy" else []
            data = native.encode(given_)
            packed = native.pack(given_)
            lists.clear()
            made = native.make(kinds, fields)
            native.unchanged(fresh, kinds, fields)
            found = native.read(payload)
            lists.clear()
            gc.set_threshold(0)
            assert data is None or len(JSONPLUS.loads_typed(("msgpack", data))) >= len(value)
            # A collection just before the call may have cleared the list. During the call there is none.
            assert packed is None or len(packed[0]) in ((0, len(value)) if meddle == "clear" else (len(value),))
            assert made is None or len(made) == len(kinds)
            assert states([found]) == wanted
    finally:
        gc.callbacks.remove(collecting)
        gc.set_threshold(*threshold)
        gc.unfreeze()


@pytest.mark.parametrize("found", ["nothing", "another machine's"])
def test_the_compiled_module_is_optional(found: str) -> None:
    code = f"""
import sys, logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")
class Broken:
    def find_spec(self, name, path, target=None):
        if name == "redis_saver._serde.native":
            raise {"ModuleNotFoundError" if found == "nothing" else "ImportError"}("wrong ELF class")
sys.meta_path.insert(0, Broken())
from langchain_core.messages import HumanMessage
from redis_saver._serde import messages
from redis_saver._serde.serializer import FastSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
assert messages.native is None and not messages.CLASSES
value = [HumanMessage("x")] * 99
fast, stored = FastSerializer(), JsonPlusSerializer().dumps_typed(value)
assert fast.dumps_typed(value) == stored and fast.loads_typed(stored) == value
assert fast.dumps_rest(value) == (*stored, 0, None)
assert fast.loads_rest(*stored) == (value, None)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert ("wrong ELF class" in said) == (found != "nothing")
