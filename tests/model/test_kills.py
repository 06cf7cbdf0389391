"""Repeated SIGKILL of writers, flushers, Redis and Postgres: both tiers keep everything acknowledged.

A seed repeats the victims, the pauses and the writes, but not what a kill interrupts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from crash_harness import arena
from tests.support.seeds import seeds

from bench.servers import Postgres, a_postgres


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A Postgres that may be killed."""
    with a_postgres() as server:
        yield server


@pytest.fixture
def say(capfd: Any) -> Any:
    """Print progress during the test."""

    def tell(text: str) -> None:
        with capfd.disabled():
            print(text, file=sys.stderr, flush=True)

    return tell


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds([1]))
def test_kills_lose_no_acknowledged_write(own_postgres: Postgres, seed: int) -> None:
    with arena(seed, own_postgres, print) as made:
        made.run(kills=12, rounds=2)
    assert len(made.kills) >= 10
    assert made.counts["acknowledged"] > 150


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds(range(100, 108)))
def test_many_kills_lose_no_acknowledged_write(own_postgres: Postgres, seed: int, say: Any) -> None:
    with arena(seed, own_postgres, say) as made:
        made.run(kills=51, rounds=10)
    assert len(made.kills) >= 51
