"""Workloads by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from bench.measuring import Run
from bench.workloads import (
    calls,
    capacity,
    chat,
    cost,
    deep_agent,
    delta,
    fan_out,
    files,
    fleet,
    growth,
    inspector,
    operations,
    overheads,
    reads,
    sends,
    shapes,
    store,
    store_vectors,
    throughput,
    tiers,
    waiting,
)

WORKLOADS: dict[str, Callable[[Run], None]] = {
    module.__name__.rpartition(".")[2].replace("_", "-"): module.run
    for module in (
        chat,
        fleet,
        throughput,
        capacity,
        operations,
        calls,
        fan_out,
        files,
        shapes,
        sends,
        delta,
        deep_agent,
        cost,
        growth,
        tiers,
        reads,
        overheads,
        waiting,
        inspector,
        store,
        store_vectors,
    )
}
OF_STORES = ("store", "store-vectors")
"""Workloads of stores, without savers."""
DESCRIPTIONS = {name: (run.__doc__ or "").split("\n")[0] for name, run in WORKLOADS.items()}
