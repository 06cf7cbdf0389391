"""Seeds and servers of random tests: their own, or those in the environment, which repeat a failure.

    REDIS_SAVER_SEED     seed of all random tests, including Hypothesis; by default it follows from the code
    REDIS_SAVER_TARGETS  servers, separated by commas; by default those that a test names for the ordinary suite

Each change of the code gets other seeds, and a commit always gets its own, so a repeated run fails in the same way.
`tests/soak.py` sets both variables, with new seeds, and prints them if a test fails.
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
    """Return the seed in the environment, if any."""
    return int(os.environ[SEED]) if os.environ.get(SEED) else None


def seed() -> int:
    """Return the seed in the environment, else one of the code and the current test. A failed test must name it."""
    found = given()
    if found is not None:
        return found
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return crc32(test.encode(), of_code())


@cache
def of_code() -> int:
    """Return a number that changes with the package, its scripts and its tests."""
    found = 0
    for folder, ending in (("redis_saver", "*.py"), ("redis_saver", "*.c"), ("lua", "*.lua"), ("tests", "*.py")):
        for path in sorted((ROOT / folder).rglob(ending)):
            found = crc32(path.read_bytes(), found)
    return found


def seeds(ordinary: Iterable[int]) -> list[int]:
    """Return seeds for `parametrize`: these, or as many from the environment's seed on."""
    first, own = given(), list(ordinary)
    return own if first is None else list(range(first, first + len(own)))


def seeds_and_slow(ordinary: Iterable[int], more: Iterable[int]) -> list[Any]:
    """Return the seeds of `seeds`, and more for the slow suite."""
    import pytest  # programs that only need a seed need not import it

    of_slow = [] if given() is not None else [pytest.param(seed, marks=pytest.mark.slow) for seed in more]
    return [*seeds(ordinary), *of_slow]


def targets(*ordinary: str, never: Iterable[str] = ()) -> list[str]:
    """Return servers for `parametrize`: these, or those in the environment, except those in `never`."""
    from tests.support.servers import TARGETS  # programs that only need a seed need not import it

    if not os.environ.get(ON):
        return [name for name in ordinary if name in TARGETS]
    return [name for name in os.environ[ON].split(",") if name in TARGETS and name not in never]


def targets_and_slow(ordinary: Iterable[str], more: Iterable[str]) -> list[Any]:
    """Return the servers of `targets`, and more for the slow suite."""
    import pytest  # programs that only need a seed need not import it

    of_slow = [] if os.environ.get(ON) else [pytest.param(name, marks=pytest.mark.slow) for name in targets(*more)]
    return [*targets(*ordinary), *of_slow]
