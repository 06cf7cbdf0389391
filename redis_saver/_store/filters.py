"""Filters of `search`: what they match, typed as the values are.

The operators are those of LangGraph's `SearchOp`. Where it leaves open what they mean, `InMemoryStore` decides: a key that is missing equals None, a dict
without operators matches a dict that has at least these keys, and a list matches one of the same length, element by element.
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
        if type(wanted := filter[only]) is str:  # one call less for what is asked most
            return lambda value: type(found := value.get(only)) is str and found == wanted
        return lambda value: test(value.get(only))
    return lambda value: all(test(value.get(key)) for key, test in tests)


def _test(wanted: Any, path: Any) -> Matches:
    """What a part of a filter says of a part of a value."""
    if isinstance(wanted, Mapping):
        return _of_mapping(wanted, path)
    if isinstance(wanted, (list, tuple)):
        tests = [_test(one, path) for one in wanted]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(tests)
            and all(test(one) for test, one in zip(tests, value, strict=True))
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
    tests = [(key, _test(one, key)) for key, one in wanted.items()]
    return lambda value: isinstance(value, Mapping) and all(test(value.get(key)) for key, test in tests)


def _equals(wanted: Any) -> Matches:
    return lambda value: equal(value, wanted)


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, as JSON sees it: a bool is no number, a tuple is a list. What does not compare to a bool (arrays) is not."""
    if (kind := type(one)) is type(other) and (kind is str or kind is int or kind is float):  # most are
        return bool(one == other)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(equal(left, right) for left, right in zip(one, other, strict=True))
    return (one == other) is True


def _compares(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Matches]:
    """An operator that orders: numbers among numbers, texts among texts. Anything else matches nothing, and raises nothing."""

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
