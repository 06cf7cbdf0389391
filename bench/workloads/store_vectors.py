from __future__ import annotations

from bench.measuring import Run
from bench.store import LANGGRAPH_REDIS, OURS
from bench.workloads.store import compare

STORES = (OURS, "memory", "postgres", LANGGRAPH_REDIS)
DIMS = 1536


def run(run: Run) -> None:
    """Search by meaning: the nearest 10 of 100, 1,000 and 10,000 vectors, also with a filter; beside numpy's product; microseconds."""
    try:
        from bench import store_vectors
    except ImportError as missing:
        run.notes.append({"workload": "store-vectors", "saver": OURS, "note": str(missing)})
        return
    sizes, dims = run.size((100, 1_000, 10_000), (100, 1_000), (20,)), run.size(DIMS, DIMS, 8)
    model = store_vectors.Model(dims, max(sizes))
    index = {"dims": dims, "embed": model, "fields": ["vector"]}
    with run.open_stores(STORES, index) as stores:
        compare(run, "store-vectors", stores, store_vectors.furnish(sizes), store_vectors.calls(sizes, model))
