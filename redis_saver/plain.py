"""What annotations say of plain values, as statements of generated code: each check of a message's fields is inline.

A value is plain if pydantic's serializer and validator, going by the annotation, would leave it as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, combinations
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict


class UnknownError(Exception):
    """Something about a class that this module does not know."""


class Source:
    """The statements that return None unless a class's values are plain, and the names they use."""

    def __init__(self, names: dict[str, Any], *, shapes_only: bool) -> None:
        self.names = names
        self.shapes_only = shapes_only
        """Whether to check the keys of `TypedDict`s only, and not the types of values."""

    def name(self, value: Any = None) -> str:
        """A new name in the generated code, for a value or to be assigned there."""
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, argument: str, body: Iterable[str]) -> Any:
        """Compile a function of one argument."""
        made: dict[str, Any] = {}
        source = "\n".join([f"def made({argument}):", *indented(body)])
        exec(source, self.names, made)  # noqa: S102 - made of this module's text, of identifiers and of literals
        return made["made"]

    def checks(self, annotation: Any, value: str) -> list[str]:
        """The statements that return None unless a variable holds a plain value of an annotation.

        Raises:
            UnknownError: If the annotation is not known.
        """
        if annotation is Any:
            return []
        test = expression(annotation, value)
        if test:
            return [] if self.shapes_only else [f"if not ({test}): return None"]
        if get_origin(annotation) in (Union, UnionType):
            tests = {arg: expression(arg, value) for arg in get_args(annotation)}
            others = [arg for arg, test in tests.items() if not test]
            if len(others) == 1 and others[0] is not Any:
                known = " or ".join(test for test in tests.values() if test)
                return _block(f"if not ({known}):", self.checks(others[0], value))
        elif get_origin(annotation) is list:
            element = self.name()
            each = _block(f"for {element} in {value}:", self.checks(get_args(annotation)[0], element))
            return each if self.shapes_only else [f"if type({value}) is not list: return None", *each]
        elif is_typeddict(annotation):
            return self.typed_dict(annotation, value)
        raise UnknownError(annotation)

    def typed_dict(self, annotation: Any, value: str) -> list[str]:
        """The statements that return None unless a variable holds a plain `TypedDict`, its keys in validation's order."""
        kinds, optional = typed_dict_keys(annotation)
        known = self.name(orders(tuple(kinds), optional))
        lines = [f"if type({value}) is not dict or tuple({value}) not in {known}: return None"]
        for key, kind in kinds.items():
            item = self.name()
            checks = self.checks(kind, item)
            if checks:
                checks = [f"{item} = {value}[{key!r}]", *checks]
            lines += _block(f"if {key!r} in {value}:", checks) if key in optional else checks
        return lines


def _block(head: str, lines: list[str]) -> list[str]:
    """Statements under a head, nothing if there are none."""
    return [head, *indented(lines)] if lines else []


def expression(annotation: Any, value: str) -> str:
    """An expression that is true for plain values of an annotation only; nothing if it takes more than an expression."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in (None, NoneType):
        return f"{value} is None"
    if annotation in (str, int, dict):
        return f"type({value}) is {annotation.__name__}"
    if origin is dict and args in ((Any, Any), (str, Any)):
        return f"type({value}) is dict"
    if origin is Literal and all(type(arg) is str for arg in args):
        return "(" + " or ".join(f"{value} == {arg!r}" for arg in args) + ")"
    if origin in (Union, UnionType):
        tests = [expression(arg, value) for arg in args]
        # None first, as most of what may be None is.
        return " or ".join(sorted(tests, key=lambda test: not test.endswith("None"))) if all(tests) else ""
    return ""


def indented(lines: Iterable[str]) -> list[str]:
    """Statements one level deeper."""
    return ["    " + line for line in lines]


def typed_dict_keys(annotation: Any) -> tuple[dict[str, Any], set[str]]:
    """The keys of a `TypedDict` with their annotations, and those of them that may be missing."""
    kinds, optional = {}, set()
    for key, hint in get_type_hints(annotation, include_extras=True).items():
        origin: Any = get_origin(hint)
        kinds[key] = get_args(hint)[0] if origin in (NotRequired, Required) else hint
        # What tells the kinds of tool calls apart is optional to declare, but LangChain always sets it.
        if key not in annotation.__required_keys__ and get_origin(kinds[key]) is not Literal:
            optional.add(key)
    return kinds, optional


def orders(keys: tuple[str, ...], optional: Collection[str]) -> frozenset[tuple[str, ...]]:
    """Each way in which some of the optional keys may be there, in the order of the keys."""
    if len(optional) > 6:
        raise UnknownError(keys)
    chosen = chain.from_iterable(combinations(optional, count) for count in range(len(optional) + 1))
    return frozenset(tuple(key for key in keys if key not in optional or key in some) for some in chosen)
