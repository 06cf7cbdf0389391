"""Where random tests get their seeds and servers from: their own, or what the environment says, by which a failure is repeated.

    REDIS_SAVER_SEED     the seed of all random tests, those of Hypothesis too; else a fresh one where a test wants one
    REDIS_SAVER_TARGETS  the servers they run on, with commas between; else those that a test names for the ordinary suite

`tests/soak.py` sets both, and prints them where a test fails.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

SEED, ON = "REDIS_SAVER_SEED", "REDIS_SAVER_TARGETS"


def given() -> int | None:
    """The seed of the environment."""
    return int(os.environ[SEED]) if os.environ.get(SEED) else None


def seed() -> int:
    """The seed of the environment, else a fresh one. A test says which it was where it fails."""
    found = given()
    return random.SystemRandom().randrange(10**9) if found is None else found


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
    from servers import TARGETS  # not for programs that need a seed alone

    if not os.environ.get(ON):
        return [name for name in ordinary if name in TARGETS]
    return [name for name in os.environ[ON].split(",") if name in TARGETS and name not in never]
