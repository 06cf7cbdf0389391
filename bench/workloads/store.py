from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langgraph.store.base import BaseStore

from bench import store
from bench.measuring import Run, WrongResult, settled
from bench.store import StoreContestant

CALLS = 5
"""Consecutive calls of each store."""
Calls = Callable[[BaseStore], Iterator[tuple[Any, ...]]]


def run(run: Run) -> None:
    """Stores: get, put, batches and searches of namespaces of 100, 1,000 and 10,000 items; microseconds."""
    sizes = run.size(store.SIZES, (100, 1_000), (20,))
    with run.open_stores(store.STORES, None) as stores:
        compare(run, "store", stores, lambda each: store.furnish(each, sizes), lambda each: store.calls(each, sizes))


def compare(
    run: Run, workload: str, stores: Sequence[StoreContestant], furnish: Callable[[BaseStore], None], calls: Calls
) -> None:
    """Measure each call of all stores in turn.

    A store that fails, or returns a wrong result, is out for that call only.
    """
    taking_part = []
    for each in stores:
        run.advance(f"{workload}: furnishing {each.name}")
        try:
            furnish(each.store)
        except Exception as error:
            run.failed(workload, each.name, error)
        else:
            taking_part.append((each, calls(each.store)))
    while True:
        ready: dict[str, tuple[Any, ...]] = {}
        for each, of_store in list(taking_part):
            try:
                ready[each.name] = next(of_store)
            except StopIteration:
                return
            except Exception as error:
                run.failed(workload, each.name, error)
                taking_part.remove((each, of_store))
        if not ready:
            return
        what, often, *_ = next(iter(ready.values()))
        measure(run, workload, what, run.size(often, often // 3, 1), [each for each, _ in taking_part], ready)
        run.readmit()


def measure(
    run: Run, workload: str, what: str, often: int, stores: Sequence[StoreContestant], ready: dict[str, tuple[Any, ...]]
) -> None:
    """Measure one call of all stores; the first repetition warms up."""

    def act(contestant: StoreContestant, repetition: int) -> None:
        _, _, call, *checks = ready[contestant.name]
        with settled():
            for _ in range(min(CALLS, often)):
                began = time.perf_counter()
                found = call()
                seconds = time.perf_counter() - began
                if repetition:
                    run.sample(contestant.name, {}, what, "us", seconds * 1e6)
                if any(check is not None and not check(found) for check in checks):
                    raise WrongResult(f"not what was put: {str(found)[:100]}")

    run.rotate(f"{workload}: {what}", max(1, often // CALLS) + 1, act, stores)
