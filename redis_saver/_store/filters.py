"""Filters of `search`. They compare typed values.

The operators are those of LangGraph's `SearchOp`. Where it leaves their meaning open, filters do as `InMemoryStore`
does: a missing key equals None, a dict without operators matches a dict that has at least these keys, and a list
matches one of the same length, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from redis_saver._common import config
from redis_saver._common.display import shown

Matches: TypeAlias = Callable[[Any], bool]


def compile_filter(filter: Any) -> Matches | None:
    """Make a predicate on values from a filter; None if the filter is empty.

    Raises:
        TypeError: The filter is no mapping.
        ValueError: An operator is unknown, or the filter is nested too deep.
    """
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"filter={shown(filter)}: a filter is a dict of keys of the value")
    if not filter:
        return None
    config.check_nesting("filter", filter)
    tests = [(key, _test(wanted, key)) for key, wanted in filter.items()]
    if len(tests) == 1:
        ((only, test),) = tests
        if type(wanted := filter[only]) is str:  # the most frequent filter: one call less
            return lambda value: type(actual := value.get(only)) is str and actual == wanted
        return lambda value: test(value.get(only))
    return lambda value: all(test(value.get(key)) for key, test in tests)


def _test(wanted: Any, path: Any) -> Matches:
    """Make a predicate on a part of a value from a part of a filter."""
    if isinstance(wanted, Mapping):
        return _of_mapping(wanted, path)
    if isinstance(wanted, (list, tuple)):
        tests = [_test(item, path) for item in wanted]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(tests)
            and all(test(item) for test, item in zip(tests, value, strict=True))
        )
    return _equals(wanted)


def _of_mapping(wanted: Mapping[Any, Any], path: Any) -> Matches:
    if any(isinstance(name, str) and name.startswith("$") for name in wanted):
        for name in wanted:
            if name not in _OPERATORS:
                raise ValueError(
                    f"filter[{shown(path)}]: unknown operator {shown(name)}; known are {' '.join(_OPERATORS)}"
                )
        operations = [_OPERATORS[name](operand) for name, operand in wanted.items()]
        return operations[0] if len(operations) == 1 else lambda value: all(test(value) for test in operations)
    tests = [(key, _test(part, key)) for key, part in wanted.items()]
    return lambda value: isinstance(value, Mapping) and all(test(value.get(key)) for key, test in tests)


def _equals(wanted: Any) -> Matches:
    return lambda value: equal(value, wanted)


def equal(value: Any, other: Any) -> bool:
    """True if two values are the same in JSON: a bool is not a number, a tuple is a list.

    Values whose comparison is not a bool, such as arrays, are never equal.
    """
    if (kind := type(value)) is type(other) and (kind is str or kind is int or kind is float):  # most are
        return bool(value == other)
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(equal(part, other[key]) for key, part in value.items())
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(equal(left, right) for left, right in zip(value, other, strict=True))
    return (value == other) is True


def _compares(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Matches]:
    """Make an operator that compares numbers with numbers, and texts with texts. Other values match nothing."""

    def of(operand: Any) -> Matches:
        kind = _ordered_kind(operand)
        if kind is None:
            return lambda _: False
        return lambda value: _ordered_kind(value) is kind and compare(value, operand)

    return of


def _ordered_kind(value: Any) -> type | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float
    return str if isinstance(value, str) else None


_OPERATORS: dict[str, Callable[[Any], Matches]] = {
    "$eq": _equals,
    "$ne": lambda operand: lambda value: not equal(value, operand),
    "$gt": _compares(lambda value, operand: value > operand),
    "$gte": _compares(lambda value, operand: value >= operand),
    "$lt": _compares(lambda value, operand: value < operand),
    "$lte": _compares(lambda value, operand: value <= operand),
}
