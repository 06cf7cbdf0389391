"""What is made of annotations: nothing is taken for plain that pydantic would change, and what is not known is refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Literal, NotRequired, Optional

import pytest
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from redis_saver._serde.annotations import (
    DICT,
    LIST,
    NONE,
    STR,
    Kind,
    Source,
    UnknownError,
    kind_of,
)


class Inner(TypedDict, total=False):
    a: int


class Outer(TypedDict):
    kind: NotRequired[Literal["o"]]  # needed all the same: it tells the kinds of tool calls apart
    name: str | None
    inner: NotRequired[Inner]


ANNOTATIONS: list[Any] = [
    Any,
    None,
    str,
    int,
    dict,
    dict[str, Any],
    Literal["a", "b"],
    str | int | None,
    Optional[Literal["a"]],  # noqa: UP045 - as langchain-core has it
    list[Any],
    list[str],
    str | list[str | dict],
    Inner,
    Outer | None,
    list[Outer],
    list[Outer] | None,
    list[list[Inner]],
]
# No keys that are no strings: these the packer refuses, and the unpacker.
VALUES: list[Any] = [
    None, True, 0, 1.5, "", "a", "o", b"a", [], ["a"], ["a", 1], [{}], ["a", {"a": 1}], [None], [[{}], []], [[{"a": 1}]], [[{"b": 1}]],
    {}, {"a": 1}, {"a": "1"}, {"a": True}, {"b": 1}, {"kind": "o", "name": None}, {"name": None}, {"kind": "p", "name": "n"},
    {"kind": "o", "name": "n", "inner": {}}, {"kind": "o", "name": "n", "inner": {"a": 1}}, {"kind": "o", "name": 1, "inner": {"a": 1}},
    {"name": "n", "kind": "o"}, {"kind": "o", "name": "n", "x": 1}, [{"kind": "o", "name": "n"}] * 2, [{"kind": "o", "name": "n"}, {}],
    [{"name": "n", "kind": "o"}], (), ("a",),
]  # fmt: skip


def check_of(annotation: Any, *, shapes_only: bool) -> Callable[[Any], bool | None]:
    source = Source({}, shapes_only=shapes_only)
    made: Callable[[Any], bool | None] = source.function(
        "value", [*source.checks(kind_of(annotation), "value"), "return True"]
    )
    return made


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_pydantic_leaves_what_is_plain_as_it_is(annotation: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    check, plain = check_of(annotation, shapes_only=False), list[Any]()
    for value in VALUES:
        if check(value):
            plain.append(value)
            assert repr(adapter.validate_python(value)) == repr(value) == repr(adapter.dump_python(value))
    assert plain


def test_what_an_annotation_says() -> None:
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
def test_annotations_that_are_not_known(annotation: Any) -> None:
    with pytest.raises(UnknownError):
        kind_of(annotation)


def test_a_typed_dict_of_which_much_may_be_missing() -> None:
    many: Any = TypedDict("many", dict.fromkeys("abcdefg", str), total=False)  # type: ignore[operator]
    with pytest.raises(UnknownError):
        check_of(many, shapes_only=False)
