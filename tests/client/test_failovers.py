"""Random rounds of failovers and moving slots: no unexpected error, no hanging call, and no avoidable loss."""

from __future__ import annotations

import asyncio

import pytest
from failovers import KINDS, MODES, History
from tests.support.seeds import seeds

from redis_saver._client.base import CLUSTER_TIMEOUT

MAX_SECONDS = CLUSTER_TIMEOUT + 10
"""Time limit of a call in seconds: the retries, a last try, and a margin for a busy machine."""
SHORT = {"sentinel-redis": ["pause"], "cluster-redis": ["kill", "by hand"]}
"""Disturbances of the ordinary suite. The long rounds use all."""


@pytest.mark.random
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "seed", "names"),
    [
        *((kind, seed, SHORT[kind]) for kind in KINDS if "valkey" not in kind for seed in seeds([1])),
        *(pytest.param(kind, seed, None, marks=pytest.mark.slow) for kind in KINDS for seed in seeds(range(100, 104))),
    ],
)
def test_failovers_cause_no_avoidable_loss(kind: str, seed: int, names: list[str] | None) -> None:
    history = History(kind, seed, tasks=22 if names else 50)
    try:
        found = asyncio.run(history.run(len(names) if names else 16, names))
    finally:
        history.stop()
    said = "\n".join(one.line() for one in found)
    assert not [wrong for one in found for wrong in one.wrong], said
    assert len(found) == (len(names) if names else 16)
    assert max(max(one.longest.values()) for one in found) < MAX_SECONDS, said
    for one in found:
        assert all(one.acknowledged[mode] for mode in MODES), said
