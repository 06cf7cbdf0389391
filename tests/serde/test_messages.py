"""Known classes of messages: a plain value is one that pydantic leaves unchanged, and unknown classes are refused."""

from __future__ import annotations

import datetime
from typing import Any, Literal, NotRequired, Optional

import langchain_core.messages as lc
import ormsgpack
import pytest
from langchain_core.messages import human
from message_strategies import JSONPLUS, MyMessage, payload_of
from pydantic import TypeAdapter, create_model
from tests.support.compiled import needs_compiled
from typing_extensions import TypedDict

from redis_saver._serde import messages
from redis_saver._serde.messages import DICT, LIST, NONE, STR, Kind, UnknownError, kind_of, state


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Inner(TypedDict, total=False):
    a: int


class Outer(TypedDict):
    kind: NotRequired[Literal["o"]]  # required all the same, as it tells the kinds of tool calls apart
    name: str | None
    inner: NotRequired[Inner]


ANNOTATIONS: list[Any] = [
    *(Any, None, str, int, dict, dict[str, Any], Literal["a", "b"], str | int | None, list[Any], list[str]),
    *(str | list[str | dict], Inner, Outer | None, list[Outer], list[Outer] | None, list[list[Inner]]),
    Optional[Literal["a"]],  # noqa: UP045 - as langchain-core has it
    TypedDict("Many", dict.fromkeys("abcdefg", int), total=False),  # type: ignore[operator]
]
# All keys are strings: the packer and the unpacker refuse others.
VALUES: list[Any] = [
    None, True, 0, 1.5, "", "a", "o", b"a", [], ["a"], ["a", 1], [{}], ["a", {"a": 1}], [None], [[{}], []], [[{"a": 1}]], [[{"b": 1}]],
    {}, {"a": 1}, {"a": "1"}, {"a": True}, {"b": 1}, {"kind": "o", "name": None}, {"name": None}, {"kind": "p", "name": "n"},
    {"kind": "o", "name": "n", "inner": {}}, {"kind": "o", "name": "n", "inner": {"a": 1}}, {"kind": "o", "name": 1, "inner": {"a": 1}},
    {"name": "n", "kind": "o"}, {"kind": "o", "name": "n", "x": 1}, [{"kind": "o", "name": "n"}] * 2, [{"kind": "o", "name": "n"}, {}],
    [{"name": "n", "kind": "o"}], (), ("a",),
]  # fmt: skip


def like_langchains(kind: Any, default: Any) -> Any:
    """Return a message class with one more field, as langchain-core may have it one day."""
    return create_model("Typed", __base__=lc.HumanMessage, __module__=human.__name__, more=(kind, default))


@needs_compiled
@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_pydantic_leaves_plain_values_unchanged(annotation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields with other values are written and read by pydantic."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    default = next(value for value in VALUES if stays(adapter, value))
    cls = like_langchains(annotation, default)
    monkeypatch.setattr(human, "Typed", cls, raising=False)
    messages.learn(cls)
    read = []
    try:
        for value in VALUES:
            message = cls(content="x", id="1")
            vars(message)["more"] = value
            wanted = payload_of(message)
            assert messages.native.payload(message) in (None, wanted)
            found = messages.native.read(wanted)
            if found is not None:
                read.append(value)
                ordinary = JSONPLUS.loads_typed(("msgpack", ormsgpack.packb(ormsgpack.Ext(5, wanted))))
                assert state(found) == state(ordinary)
                assert repr(found) == repr(ordinary)
    finally:
        messages.native.forget(cls)
    assert read


def stays(adapter: TypeAdapter[Any], value: Any) -> bool:
    """True if pydantic leaves a value as it is."""
    try:
        return repr(adapter.validate_python(value)) == repr(value) == repr(adapter.dump_python(value))
    except ValueError:
        return False


def test_kind_of_describes_annotations() -> None:
    inner = Kind(0, keys={"a": (kind_of(int), False)})
    assert kind_of(Any) is None
    assert kind_of(Inner) == inner
    assert kind_of(str | list[str | dict]) == Kind(STR | LIST, element=Kind(STR | DICT))
    assert kind_of(Literal["a"] | str | None) == Kind(STR | NONE, frozenset("a"))
    outer = {"kind": (Kind(0, frozenset("o")), True), "name": (Kind(STR | NONE), True), "inner": (inner, False)}
    assert kind_of(list[Outer] | None) == Kind(LIST | NONE, element=Kind(0, keys=outer, required=2))


@pytest.mark.parametrize(
    "annotation",
    [
        *(float, bytes, bool, list, set[str], tuple[int], dict[int, str], datetime.date, Literal[1], str | Any),
        *(list[str] | list[int], Inner | Outer, Inner | dict, Inner | list[str], list[float], str | float),
        TypedDict("Bytes", {"a": bytes}),  # type: ignore[operator]
    ],
    ids=str,
)
def test_unknown_annotations_are_refused(annotation: Any) -> None:
    with pytest.raises(UnknownError):
        kind_of(annotation)


def test_classes_with_unknown_parts_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(messages.is_plain, messages.CANDIDATES))

    class Serialized(lc.HumanMessage):
        def model_dump(self, **kwargs: Any) -> Any:
            return {}

    Serialized.__module__ = human.__name__
    typed = like_langchains(datetime.datetime, None)
    for cls in (MyMessage, Serialized, typed):
        with pytest.raises(UnknownError):
            messages.learn(cls)
    monkeypatch.setattr(messages, "_RULES", {})
    with pytest.raises(KeyError):
        messages.learn(lc.HumanMessage)


@needs_compiled
@pytest.mark.parametrize("name", ["encode", "payload", "pack", "unchanged", "read", "make"])
def test_classes_that_the_compiled_module_gets_wrong_are_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = messages.native
    other = {
        "encode": lambda pair: b"",
        "payload": lambda message: native.payload(message) + b"x",
        "pack": lambda pair: ([body + b"x" for body in native.pack(pair)[0]], native.pack(pair)[1]),
        "unchanged": lambda pair, kinds, fields: 1,
        "read": lambda payload: None,
        "make": lambda kinds, fields: native.make(kinds, fields)[:1] * 3,
    }[name]

    class Wrong:
        def __getattr__(self, asked: str) -> Any:
            return other if asked == name else getattr(native, asked)

    cls = like_langchains(str, "")
    monkeypatch.setattr(human, "Typed", cls, raising=False)
    assert messages._learned(cls)
    native.forget(cls)
    monkeypatch.setattr(messages, "native", Wrong())
    assert not messages._learned(cls)
    assert native.payload(cls(content="x")) is None
