"""The bounded memory that a process has of a store."""

from __future__ import annotations

import pytest

from redis_saver._store.context import Remembered


def test_least_recently_used_entries_are_evicted_first() -> None:
    remembered = Remembered(100)
    for name in "abc":
        remembered.put(name, name.upper(), 30)
    assert remembered.get("a") == "A"
    remembered.put("d", "D", 30)
    assert [remembered.get(name) for name in "abcd"] == ["A", None, "C", "D"]
    remembered.put("c", "C2", 90)
    assert [remembered.get(name) for name in "acd"] == [None, "C2", None]
    remembered.put("huge", "H", 101)
    assert [remembered.get("huge"), remembered.get("c")] == [None, "C2"]
    remembered.put("c", "C3", 101)
    assert remembered.get("c") is None, "an outdated value is kept"
    remembered.put("e", "E", 1)
    remembered.forget("e")
    remembered.forget("e")
    assert (remembered.get("e"), remembered.numbers()["cache_bytes"]) == (None, 0)


def test_cache_bytes_0_remembers_nothing() -> None:
    remembered = Remembered(0)
    remembered.put("a", "A", 1)
    assert remembered.get("a") is None
    for mistake in (-1, True, "1"):
        with pytest.raises(ValueError, match="cache_bytes"):
            Remembered(mistake)  # type: ignore[arg-type]
