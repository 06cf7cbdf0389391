"""Filters of savers and stores: predicates on metadata, and on the values of items.

A filter has keys with a wanted value or with operators, and all of them must hold. A missing key equals None. Values of
types without an order match none of `$gt $gte $lt $lte`. The rest differs as LangGraph's own savers and stores do:

| | Savers, as `InMemorySaver` | Stores, as `InMemoryStore` |
|---|---|---|
| True and 1 | equal, as in Python | different, as in JSON (`InMemoryStore` takes them for equal) |
| a dict | equals the same dict | matches a dict that has at least these keys, each of which may have operators |
| a list | equals the same list | matches a list or tuple of this length, element by element |
| an order | between all values that Python orders | between numbers, and between texts |
| `$in $nin $exists` | known | unknown |

`$exists` tells a missing key from None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

from redis_saver._common import config
from redis_saver._common.display import shown

Predicate: TypeAlias = Callable[[Any], bool]
_INCOMPARABLE = (TypeError, ValueError, ArithmeticError)
"""Errors of comparisons: of two types, of arrays, of decimals that are no numbers."""


class _Meaning(NamedTuple):
    """Differences between savers and stores."""

    operators: Collection[str]
    equal: Callable[[Any, Any], bool]
    order: Callable[[Any], object]
    """Returns a mark of a value, or None. Only values with the same mark are ordered."""
    has_parts: bool
    """True if dicts and lists match part by part."""


def of_metadata(filter: Mapping[str, Any] | None) -> Predicate | None:
    """Make a predicate on metadata from a filter of `list`. None if the filter is empty.

    Raises:
        TypeError: The filter is no mapping.
        ValueError: An operator is unknown or has a wrong operand, or the filter is nested too deeply.
    """
    return _compiled(filter, _OF_SAVERS, "metadata keys")


def of_items(filter: Mapping[str, Any] | None) -> Predicate | None:
    """Make a predicate on the values of items from a filter of `search`. None if the filter is empty.

    Raises:
        TypeError, ValueError: As `of_metadata`.
    """
    return _compiled(filter, _OF_STORES, "keys of the value")


def _compiled(filter: Mapping[str, Any] | None, meaning: _Meaning, keys: str) -> Predicate | None:
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"filter={shown(filter)}: a filter is a dict of {keys}")
    if not filter:
        return None
    config.check_nesting("filter", filter)
    tests = [_of_key(key, wanted, meaning) for key, wanted in filter.items()]
    return tests[0] if len(tests) == 1 else lambda values: all(test(values) for test in tests)


def _of_key(key: Any, wanted: Any, meaning: _Meaning) -> Predicate:
    """Turn the part of a filter for a key into a predicate on the whole mapping."""
    if type(wanted) is str:  # the most frequent filter saves a call
        return lambda values: isinstance(value := values.get(key), str) and value == wanted
    test = _test(wanted, meaning, key)
    if _has_operators(wanted) and _EXISTS in wanted:
        return lambda values: (key in values) is wanted[_EXISTS] and test(values.get(key))
    return lambda values: test(values.get(key))


def _test(wanted: Any, meaning: _Meaning, key: Any) -> Predicate:
    """Turn a part of a filter into a predicate on the same part of a value. `key` is its last key."""
    if _has_operators(wanted):
        for name, operand in wanted.items():
            _check_operator(name, operand, meaning, key)
        operations = [_OPERATORS[name](meaning, operand) for name, operand in wanted.items() if name != _EXISTS]
        return operations[0] if len(operations) == 1 else lambda value: all(test(value) for test in operations)
    if meaning.has_parts and isinstance(wanted, Mapping):
        parts = [(key, _test(part, meaning, key)) for key, part in wanted.items()]
        return lambda value: isinstance(value, Mapping) and all(test(value.get(key)) for key, test in parts)
    if meaning.has_parts and isinstance(wanted, (list, tuple)):
        tests = [_test(item, meaning, key) for item in wanted]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(tests)
            and all(test(item) for test, item in zip(tests, value, strict=True))
        )
    return _OPERATORS["$eq"](meaning, wanted)


def _has_operators(wanted: Any) -> bool:
    return isinstance(wanted, Mapping) and any(isinstance(name, str) and name.startswith("$") for name in wanted)


def _check_operator(name: Any, operand: Any, meaning: _Meaning, key: Any) -> None:
    if name not in meaning.operators:
        known = " ".join(meaning.operators)
        raise ValueError(f"filter[{shown(key)}]: unknown operator {shown(name)}; known are {known}")
    if name in ("$in", "$nin") and (isinstance(operand, (str, bytes)) or not isinstance(operand, Collection)):
        raise ValueError(f"filter[{shown(key)}]: {name} takes a list of values, not {shown(operand)}")
    if name == _EXISTS and not isinstance(operand, bool):
        raise ValueError(f"filter[{shown(key)}]: {_EXISTS} takes True or False, not {shown(operand)}")


def _equal(value: Any, other: Any) -> bool:
    """True if Python takes two values for equal. Those that it cannot compare, such as arrays, are not."""
    try:
        return bool(value == other)
    except _INCOMPARABLE:
        return False


def _equal_in_json(value: Any, other: Any) -> bool:
    """True if two values are the same in JSON: a bool is not a number, a tuple is a list."""
    if (kind := type(value)) is type(other) and (kind is str or kind is int or kind is float):  # most are
        return bool(value == other)
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_equal_in_json(part, other[key]) for key, part in value.items())
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(_equal_in_json, value, other))
    return _equal(value, other)


def _number_or_text(value: Any) -> type | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float
    return str if isinstance(value, str) else None


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[_Meaning, Any], Predicate]:
    """Make an operator that compares two values of one order. Others match nothing."""

    def of(meaning: _Meaning, operand: Any) -> Predicate:
        order = meaning.order
        if (wanted := order(operand)) is None:
            return lambda _: False

        def test(value: Any) -> bool:
            try:
                return order(value) is wanted and bool(compare(value, operand))
            except _INCOMPARABLE:
                return False

        return test

    return of


_EXISTS = "$exists"
"""Operator on a key instead of its value."""
_OPERATORS: dict[str, Callable[[_Meaning, Any], Predicate]] = {
    "$eq": lambda meaning, operand: lambda value: meaning.equal(value, operand),
    "$ne": lambda meaning, operand: lambda value: not meaning.equal(value, operand),
    "$gt": _ordering(operator.gt),
    "$gte": _ordering(operator.ge),
    "$lt": _ordering(operator.lt),
    "$lte": _ordering(operator.le),
    "$in": lambda meaning, operands: lambda value: any(meaning.equal(value, operand) for operand in operands),
    "$nin": lambda meaning, operands: lambda value: not any(meaning.equal(value, operand) for operand in operands),
}
_OF_SAVERS = _Meaning((*_OPERATORS, _EXISTS), _equal, lambda _: object, has_parts=False)
_OF_STORES = _Meaning(("$eq", "$ne", "$gt", "$gte", "$lt", "$lte"), _equal_in_json, _number_or_text, has_parts=True)
