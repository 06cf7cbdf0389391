"""Repeated SIGKILL of writers, flushers, Redis and Postgres: both tiers keep everything acknowledged.

A seed repeats the victims, the pauses and the writes, but not what a kill interrupts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from crash_harness import arena

from bench.servers import Postgres, a_postgres
from tests.support.seeds import seeds


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A Postgres that may be killed."""
    with a_postgres() as server:
        yield server


MANY = [
    pytest.param(seed, 51, 10, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]) for seed in seeds(range(100, 108))
]


@pytest.mark.random
@pytest.mark.parametrize(("seed", "kills", "rounds"), [*((seed, 12, 2) for seed in seeds([1])), *MANY])
def test_kills_lose_no_acknowledged_write(
    own_postgres: Postgres, seed: int, kills: int, rounds: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def say(text: str) -> None:
        """Print progress during the test."""
        with capfd.disabled():
            print(text, file=sys.stderr, flush=True)

    with arena(seed, own_postgres, say if kills > 12 else print) as made:
        made.run(kills, rounds)
    assert len(made.kills) >= (kills if kills > 12 else 10)
    assert made.counts["acknowledged"] > 150
