"""Random rounds of failovers and moving slots: no unexpected error, no hanging call, and no avoidable loss."""

from __future__ import annotations

import asyncio

import pytest
from failovers import KINDS, MODES, History
from tests.support.seeds import seeds

from redis_saver._client.base import CLUSTER_TIMEOUT

MAX_SECONDS = CLUSTER_TIMEOUT + 10
"""Time limit of a call in seconds: the retries, a last try, and a margin for a busy machine."""
SHORT = {
    "sentinel-redis": ["pause"],
    "sentinel-valkey": ["planned by sentinels"],
    "cluster-redis": ["kill", "by hand"],
    "cluster-valkey": ["at once", "nodes"],
}
"""Disturbances of the ordinary suite. The long rounds use all."""


def look(history: History, rounds: int, names: list[str] | None) -> None:
    try:
        found = asyncio.run(history.run(rounds, names))
    finally:
        history.stop()
    said = "\n".join(one.line() for one in found)
    assert not [wrong for one in found for wrong in one.wrong], said
    assert len(found) == rounds
    assert max(max(one.longest.values()) for one in found) < MAX_SECONDS, said
    for one in found:
        assert all(one.acknowledged[mode] for mode in MODES), said


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds([1]))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "valkey" not in kind])  # the slow suite has all
def test_failovers_cause_no_avoidable_loss(kind: str, seed: int) -> None:
    look(History(kind, seed), len(SHORT[kind]), SHORT[kind])


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds(range(100, 104)))
@pytest.mark.parametrize("kind", KINDS)
def test_many_failovers_cause_no_avoidable_loss(kind: str, seed: int) -> None:
    look(History(kind, seed), 16, None)
