"""Where random tests get their seeds and servers from: their own, or what the environment says, by which a failure is repeated.

    REDIS_SAVER_SEED     the seed of all random tests, those of Hypothesis too; else one that follows from the code
    REDIS_SAVER_TARGETS  the servers they run on, with commas between; else those that a test names for the ordinary suite

Each change of the code is tested with other seeds, and a commit always with its own: whoever repeats a failed run sees the failure.
`tests/soak.py` sets both variables, with fresh seeds, and prints them where a test fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]
SEED, ON = "REDIS_SAVER_SEED", "REDIS_SAVER_TARGETS"


def given() -> int | None:
    """The seed of the environment."""
    return int(os.environ[SEED]) if os.environ.get(SEED) else None


def seed() -> int:
    """The seed of the environment, else that of the code and the test that asks. A test says which it was where it fails."""
    found = given()
    if found is not None:
        return found
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return crc32(test.encode(), of_code())


@cache
def of_code() -> int:
    """A number that is another one after each change of the package, its scripts and its tests."""
    found = 0
    for folder, ending in (("redis_saver", "*.py"), ("redis_saver", "*.c"), ("lua", "*.lua"), ("tests", "*.py")):
        for path in sorted((ROOT / folder).rglob(ending)):
            found = crc32(path.read_bytes(), found)
    return found


def seeds(ordinary: Iterable[int]) -> list[int]:
    """Seeds for `parametrize`: these, or as many from that of the environment on."""
    first, own = given(), list(ordinary)
    return own if first is None else list(range(first, first + len(own)))


def seeds_and_slow(ordinary: Iterable[int], more: Iterable[int]) -> list[Any]:
    """As `seeds`, and more for the slow suite."""
    import pytest  # not for programs that need a seed alone

    of_slow = [] if given() is not None else [pytest.param(seed, marks=pytest.mark.slow) for seed in more]
    return [*seeds(ordinary), *of_slow]


def targets(*ordinary: str, never: Iterable[str] = ()) -> list[str]:
    """Servers for `parametrize`: these, or those of the environment, but for those on which a test makes no sense."""
    from tests.support.servers import TARGETS  # not for programs that need a seed alone

    if not os.environ.get(ON):
        return [name for name in ordinary if name in TARGETS]
    return [name for name in os.environ[ON].split(",") if name in TARGETS and name not in never]
