"""Filters, which match like `InMemoryStore` except where it raises or treats a bool as a number."""

from __future__ import annotations

import random
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from tests.support.uniform import Uniform

from redis_saver._common import filters

pytestmark = pytest.mark.also_on(cluster="sync", fakeredis="async")

MISSING: Any = object()


MATCHING = [
    (2, 2), (2, 2.0), (True, True), (None, None), (MISSING, None), (2, {"$eq": 2}), (2, {"$ne": 3}), (MISSING, {"$ne": 3}),
    (True, {"$ne": 1}), (10, {"$gt": 9}), ("b", {"$gt": "a"}), ("2026-11-24", {"$gte": "2026-11-01", "$lt": "2026-12-01"}),
    (4.99, {"$gte": 4.99}), ({"b": 1, "c": 2}, {"b": 1}), ({"b": {"c": 5}}, {"b": {"c": {"$gte": 5}}}),
    ({"b": 1}, {"$eq": {"b": 1}}), ([1, {"b": 2}], [1, {"b": 2}]), ((1, 2), [1, 2]), ({}, {}),
]  # fmt: skip
"""Values, and filters that they pass. As texts, "10" is less than "9"."""
OTHERS = [
    (2, "2"), (True, 1), (1, True), (False, 0), (MISSING, 1), ("10", {"$gt": 9}), (4.99, {"$gt": 4.99}), (3, {"$gt": 1, "$lt": 3}),
    (True, {"$gt": 0}), (1, {"$gt": False}), (None, {"$lt": 5}), (MISSING, {"$lte": 5}), ([1], {"$lt": 5}), (5, {"$lt": [1]}),
    (float("nan"), {"$lte": 1}), ({"b": 1}, {"b": 1, "c": 2}), (1, {"b": 1}), ({"b": 1, "c": 2}, {"$eq": {"b": 1}}), ([1, 2], [1]),
    ([True], [1]), ("abc", ["a", "b", "c"]),
]  # fmt: skip


@pytest.mark.parametrize("expected", [True, False])
def test_a_filter_compares_by_type_and_operator(expected: bool) -> None:
    for value, wanted in MATCHING if expected else OTHERS:
        matches = filters.of_items({"a": wanted})
        assert matches is not None
        assert matches({} if value is MISSING else {"a": value}) is expected, (value, wanted)


@pytest.mark.parametrize("compiled", [filters.of_items, filters.of_metadata])
def test_incomparable_values_do_not_match_and_do_not_raise(compiled: Any) -> None:
    import numpy

    for value in (numpy.array([1, 2]), Decimal("NaN"), object()):
        for wanted in (1, "x", [1, 2], {"$gt": Decimal(1)}, {"$lt": 1}, {"b": 1}, {"$eq": "x"}):
            assert not compiled({"a": wanted})({"a": value})


def test_equal_values_of_other_types_match() -> None:
    import numpy

    class Kind(str, Enum):
        X = "x"

    for compiled in (filters.of_items, filters.of_metadata):
        for value, wanted in ((numpy.float64(1), 1), (Kind.X, "x"), ("x", Kind.X)):
            for filter in ({"a": wanted}, {"a": wanted, "b": None}):
                matches = compiled(filter)
                assert matches is not None and matches({"a": value})


def test_an_empty_filter_is_none_and_an_invalid_one_raises() -> None:
    assert filters.of_items(None) is filters.of_items({}) is None
    for mistake in ({"a": {"$in": [1]}}, {"a": {"$gt": 1, "b": 2}}, {"a": {"b": {"$like": "x"}}}, {"a": [{"$x": 1}]}):
        with pytest.raises(ValueError, match=r"unknown operator .*known are \$eq"):
            filters.of_items(mistake)
    with pytest.raises(TypeError, match="a filter is a dict"):
        filters.of_items([("a", 1)])


def some(chance: random.Random, depth: int = 2) -> Any:
    kinds = [lambda: chance.randrange(4), lambda: chance.choice("xyz"), lambda: None, lambda: chance.random()]
    if depth:
        kinds += [
            lambda: {key: some(chance, depth - 1) for key in chance.sample("abc", chance.randrange(4))},
            lambda: [some(chance, depth - 1) for _ in range(chance.randrange(3))],
        ]
    return chance.choice(kinds)()


def some_filter(chance: random.Random, value: Any) -> dict[str, Any]:
    def wanted(there: Any) -> Any:
        if isinstance(there, dict) and chance.random() < 0.5:
            return {key: wanted(one) for key, one in there.items() if chance.random() < 0.7}
        operand = there if chance.random() < 0.7 else some(chance)
        is_number = isinstance(there, (int, float))
        operators = ["$eq", "$ne", *(["$gt", "$gte", "$lt", "$lte"] if is_number else [])]
        if chance.random() < 0.5:
            operator = chance.choice(operators)
            return {operator: operand if operator in ("$eq", "$ne") else chance.randrange(4)}
        return operand

    return {key: wanted(value.get(key)) for key in chance.sample("abc", chance.randrange(1, 3))}


@pytest.mark.parametrize("seed", range(3))
def test_random_filters_match_like_in_memory_store(seed: int) -> None:
    chance, matched = random.Random(seed), 0
    for _ in range(1000):
        value = {key: some(chance) for key in chance.sample("abc", chance.randrange(4))}
        filter = some_filter(chance, value)
        memory = InMemoryStore()
        memory.put(("a",), "k", value)
        matches = filters.of_items(filter)
        found = bool(memory.search(("a",), filter=filter))
        assert matches is None or matches(value) == found, (value, filter)
        matched += found
    assert 100 < matched < 900


async def test_filters_apply_before_limit_and_offset(store: Uniform) -> None:
    for number in range(40):
        await store.put(("m", "u"), f"k{number}", {"n": number, "even": number % 2 == 0})
    found = await store.search(("m", "u"), filter={"even": True}, limit=5, offset=2)
    assert [one.value["n"] for one in found] == [34, 32, 30, 28, 26]
    assert [one.value["n"] for one in await store.search(("m",), filter={"even": False, "n": {"$lt": 4}})] == [3, 1]
