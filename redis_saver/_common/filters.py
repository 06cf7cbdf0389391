"""Filters on metadata for `list`: equality on any key, and a few operators.

The process that lists compares, in Python, on the decoded metadata. So values may have any type, and may be encrypted in Redis.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from redis_saver._common import config
from redis_saver._common.display import shown

_ABSENT = object()


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def matches(stored: Any, wanted: Any) -> bool:
        if stored is _ABSENT:
            return False
        try:
            return bool(compare(stored, wanted))
        except TypeError:  # these two types cannot be ordered, so neither is below the other
            return False

    return matches


def _or_none(stored: Any) -> Any:
    return None if stored is _ABSENT else stored


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda stored, wanted: bool(_or_none(stored) == wanted),
    "$ne": lambda stored, wanted: bool(_or_none(stored) != wanted),
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
    "$in": lambda stored, wanted: any(_or_none(stored) == one for one in wanted),
    "$nin": lambda stored, wanted: all(_or_none(stored) != one for one in wanted),
    "$exists": lambda stored, wanted: (stored is not _ABSENT) == wanted,
}


def _operators(key: str, wanted: Any) -> dict[str, Any]:
    """The operators in `wanted`, with their operands. A plain value means `$eq`."""
    if not isinstance(wanted, Mapping) or not any(isinstance(name, str) and name.startswith("$") for name in wanted):
        return {"$eq": wanted}
    for name, operand in wanted.items():
        if name not in _OPERATORS:
            raise ValueError(f"filter[{shown(key)}]: unknown operator {shown(name)}; known are {' '.join(_OPERATORS)}")
        if name in ("$in", "$nin") and (isinstance(operand, (str, bytes)) or not isinstance(operand, Collection)):
            raise ValueError(f"filter[{shown(key)}]: {name} takes a list of values, not {shown(operand)}")
        if name == "$exists" and not isinstance(operand, bool):
            raise ValueError(f"filter[{shown(key)}]: $exists takes True or False, not {shown(operand)}")
    return dict(wanted)


def compile_filter(filter: Mapping[str, Any] | None) -> Callable[[Mapping[str, Any]], bool] | None:
    """Make a predicate on metadata from a filter of `list`; None if the filter is empty.

    A missing key equals None, as in `InMemorySaver`; `$exists` tells the two apart. Values that cannot be ordered
    against each other match none of `$gt $gte $lt $lte`.

    Raises:
        TypeError: The filter is no mapping.
        ValueError: An unknown operator, or an operand it cannot take, or the filter is nested too deep.
    """
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"filter={shown(filter)}: a filter is a dict of metadata keys")
    if not filter:
        return None
    config.check_nesting("filter", filter)
    tests = [
        (key, _OPERATORS[name], operand)
        for key, wanted in filter.items()
        for name, operand in _operators(key, wanted).items()
    ]

    def matches(metadata: Mapping[str, Any]) -> bool:
        return all(test(metadata.get(key, _ABSENT), operand) for key, test, operand in tests)

    return matches
