"""Type annotations of plain values.

They are kept as data (`Kind`), and as statements of generated code, so that each check is inline.

A value is *plain* if pydantic's serializer and validator, following the annotation, would leave it as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from functools import reduce
from itertools import chain, combinations
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

NONE, STR, INT, DICT, LIST = (1 << bit for bit in range(5))
"""Types of values, numbered as in `native.c`."""
_TYPES: Final = {None: NONE, NoneType: NONE, str: STR, int: INT, dict: DICT}


class UnknownError(Exception):
    """A class, or an annotation, is of a kind that this module does not know."""


class Kind(NamedTuple):
    """The plain values of an annotation. None in place of a `Kind` stands for any value."""

    types: int
    """Types, added up. A value whose type is exactly one of these is plain."""
    literals: frozenset[str] = frozenset()
    """Strings that are plain."""
    element: Kind | None = None
    """The kind of a list's elements."""
    keys: dict[str, tuple[Kind | None, bool]] | None = None
    """The keys of a `TypedDict` in the order of its declaration: the kind of each value, and whether the key is
    required. None: it is no `TypedDict`."""
    required: int = 0
    """Number of required keys."""

    @property
    def nested(self) -> bool:
        """True if the contents of a value have to be checked, too."""
        return self.keys is not None or bool(self.types & LIST)


def kind_of(annotation: Any) -> Kind | None:
    """The `Kind` of an annotation; None if it allows any value.

    Raises:
        UnknownError: The annotation is not known, or says more than a `Kind` can.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return None
    if origin in (Union, UnionType):
        return reduce(_either, map(kind_of, args))
    if is_typeddict(annotation):
        return _typed_dict(annotation)
    if origin is list:
        return Kind(LIST, element=kind_of(args[0]))
    if origin is Literal and all(type(arg) is str for arg in args):
        return Kind(0, frozenset(args))
    if origin is dict and args in ((Any, Any), (str, Any)):
        annotation = dict
    if annotation not in _TYPES:
        raise UnknownError(annotation)
    return Kind(_TYPES[annotation])


def _either(one: Kind | None, other: Kind | None) -> Kind | None:
    if one is None or other is None or (one.nested and other.nested):
        raise UnknownError(one, other)
    nested, types = one if one.nested else other, one.types | other.types
    if nested.keys is not None and types & DICT:
        raise UnknownError(one, other)
    return nested._replace(types=types, literals=one.literals | other.literals)


def _typed_dict(annotation: Any) -> Kind:
    keys = {}
    for key, hint in get_type_hints(annotation, include_extras=True).items():
        origin: Any = get_origin(hint)
        inner = get_args(hint)[0] if origin in (NotRequired, Required) else hint
        # The key that tells kinds of tool calls apart is declared as optional, but LangChain always sets it.
        needed = origin is Required or (origin is not NotRequired and key in annotation.__required_keys__)
        needed = needed or get_origin(inner) is Literal
        keys[sys.intern(key)] = kind_of(inner), needed
    return Kind(0, keys=keys, required=sum(needed for _, needed in keys.values()))


class Source:
    """Makes statements that return None unless a class's values are plain, and collects the names that they use."""

    def __init__(self, names: dict[str, Any], *, shapes_only: bool) -> None:
        self.names = names
        self.shapes_only = shapes_only
        """True if only the keys of `TypedDict`s are checked, and not the types of values."""

    def name(self, value: Any = None) -> str:
        """A new name in the generated code: bound to a value, or a variable."""
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, argument: str, body: Iterable[str]) -> Any:
        """Compile a function of one argument."""
        made: dict[str, Any] = {}
        source = "\n".join([f"def made({argument}):", *indented(body)])
        exec(source, self.names, made)  # noqa: S102 - made of this module's text, identifiers and literals
        return made["made"]

    def checks(self, kind: Kind | None, value: str) -> list[str]:
        """The statements that return None unless a variable holds a plain value.

        Raises:
            UnknownError: A `TypedDict` has too many keys that may be missing.
        """
        if kind is None or (self.shapes_only and not kind.nested):
            return []
        test = _simple_test(kind, value)
        if not kind.nested:
            return [f"if not ({test}): return None"]
        nested = self._list(kind.element, value) if kind.keys is None else self._typed_dict(kind.keys, value)
        return _block(f"if not ({test}):", nested) if test else nested

    def _list(self, element: Kind | None, value: str) -> list[str]:
        one = self.name()
        each = _block(f"for {one} in {value}:", self.checks(element, one))
        return each if self.shapes_only else [f"if type({value}) is not list: return None", *each]

    def _typed_dict(self, keys: dict[str, tuple[Kind | None, bool]], value: str) -> list[str]:
        """Return the statements that return None unless a variable holds a `TypedDict`.

        Its keys have to be in the order that validation gives them.
        """
        known = self.name(orders(tuple(keys), {key for key, (_, needed) in keys.items() if not needed}))
        lines = [f"if type({value}) is not dict or tuple({value}) not in {known}: return None"]
        for key, (kind, needed) in keys.items():
            item = self.name()
            checks = self.checks(kind, item)
            if checks:
                checks = [f"{item} = {value}[{key!r}]", *checks]
            lines += checks if needed else _block(f"if {key!r} in {value}:", checks)
        return lines


def _block(head: str, lines: list[str]) -> list[str]:
    """Statements under a head; empty if there are none."""
    return [head, *indented(lines)] if lines else []


def _simple_test(kind: Kind, value: str) -> str:
    """An expression that is true for the plain values of a kind without contents to check; empty if there are none."""
    # None first, as most of what may be None is.
    tests = [f"{value} is None"] * bool(kind.types & NONE)
    tests += [f"type({value}) is {one.__name__}" for one in (str, int, dict) if kind.types & _TYPES[one]]
    return " or ".join([*tests, *(f"{value} == {literal!r}" for literal in sorted(kind.literals))])


def indented(lines: Iterable[str]) -> list[str]:
    """Statements one level deeper."""
    return ["    " + line for line in lines]


def orders(keys: tuple[str, ...], optional: Collection[str]) -> frozenset[tuple[str, ...]]:
    """All key tuples that a dict may have, with any of the optional keys left out, in the order of the keys."""
    if len(optional) > 6:
        raise UnknownError(keys)
    chosen = chain.from_iterable(combinations(optional, count) for count in range(len(optional) + 1))
    return frozenset(tuple(key for key in keys if key not in optional or key in some) for some in chosen)
