"""Differences between a checkpoint and the target's copy of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.factories import checkpoint

from redis_saver._checkpoint.comparing import Record, difference


def record(values: dict[Any, Any], parent: str | None = None, **fields: Any) -> Record:
    made: Any = {**checkpoint(values, {}, "1"), **fields}
    return Record(("", "1"), parent, made, {}, [])


@pytest.mark.parametrize(
    ("one", "found", "said"),
    [
        (record({"n": 1}), record({"n": 1}), ""),
        (record({"": 1}), record({"": 2}), "the value of channel ''"),
        (record({"": 1}), record({}), "the value of channel ''"),
        (record({7: 1, "a": 1}), record({"a": 1}), "the value of channel '7'"),
        (record({"n": 1}, v=4), record({"n": 1}, v=5), "the field 'v'"),
        (record({"n": 1}, "0"), record({"n": 1}), "its parent is '0', and None there"),
    ],
)
def test_difference_names_what_differs(one: Record, found: Record, said: str) -> None:
    """A damaged checkpoint may have channel names that are not strings."""
    assert difference(one, found, dict) == said
