"""Measurements side by side: each repetition runs all contestants, in rotating order."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from bench.contestants import MEMORY, NOTHING, OURS, RAW_CALLS, Contestant

RAW = "raw SET / GET"
BASES = {"of_memory": MEMORY, "of_nothing": NOTHING, "of_raw": RAW, "of_raw_calls": RAW_CALLS, "of_ours": OURS}
"""Fields of a row that hold a ratio, each with the saver that it is relative to."""
Case = dict[str, Any]
Row = dict[str, Any]


class WrongResult(Exception):
    """A contestant returned a wrong state."""


@dataclass
class Run:
    """One run of the benchmark: its contestants and measurements."""

    contestants: list[Contestant]
    """The savers."""
    loop: asyncio.AbstractEventLoop
    quick: bool = False
    smallest: bool = False
    """Do the minimum that runs everything once, for the tests."""
    open_stores: Callable[..., AbstractContextManager[Sequence[Any]]] = lambda *_: nullcontext(())
    """Opens the stores with these names for a `with` block. The second argument configures their index."""
    advance: Callable[[str], None] = lambda _: None
    """Shows the progress."""
    rows: list[Row] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    processor: float = 0
    """Processor seconds of this process in the last timed call."""
    _samples: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    _metrics: dict[str, tuple[Case, str, str]] = field(default_factory=dict)
    _out: set[str] = field(default_factory=set)

    def size(self, full: Any, quick: Any, smallest: Any) -> Any:
        """Return the amount of work for this kind of run."""
        return smallest if self.smallest else quick if self.quick else full

    def sample(self, who: Contestant | str, case: Case, metric: str, unit: str, value: float) -> None:
        """Record a measurement. Less is better, except with the unit 'per second'."""
        key = json.dumps([metric, case])
        self._metrics[key] = (case, metric, unit)
        self._samples[key, who if isinstance(who, str) else who.name].append(value)

    def finish(self, workload: str) -> None:
        """Turn the samples into rows, and delete the threads."""
        for contestant in self.contestants:
            contestant.clear()
        self._out.clear()
        if not self.smallest:
            gc.unfreeze()
            gc.collect()
        for (key, name), values in self._samples.items():
            case, metric, unit = self._metrics[key]
            row: Row = {"workload": workload, **case, "metric": metric, "unit": unit, "saver": name}
            row |= summary(values)
            for field_name, other in BASES.items():
                row[field_name] = ratio(values, self._samples.get((key, other), []))
            self.rows.append(row)
        self._samples.clear()
        self._metrics.clear()

    def rotate(
        self, what: str, repetitions: int, act: Callable[[Any, int], None], among: Sequence[Any] | None = None
    ) -> None:
        """Let all contestants act in each repetition, in rotating order.

        A contestant that fails is out for the rest of the workload.

        Args:
            what: The workload, and a detail for the progress bar.
            repetitions: Number of repetitions.
            act: Called with a contestant and the number of the repetition.
            among: The contestants; by default the savers.
        """
        workload = what.partition(":")[0]
        alive = [
            contestant
            for contestant in (self.contestants if among is None else among)
            if contestant.name not in self._out and (not contestant.only or workload in contestant.only)
        ]
        for repetition in range(repetitions):
            self.advance(f"{what}, {repetition + 1} of {repetitions}")
            first = repetition % len(alive) if alive else 0
            for contestant in alive[first:] + alive[:first]:
                try:
                    act(contestant, repetition)
                    contestant.rest()
                except Exception as error:
                    self.failed(what, contestant.name, error)
                    alive.remove(contestant)
                    self._out.add(contestant.name)

    def failed(self, what: str, name: str, error: Exception) -> None:
        """Record that a contestant failed, or returned a wrong result."""
        reason = f"{type(error).__name__}: {error}"[:300]
        self.failures.append({"workload": what, "saver": name, "reason": reason})

    @contextmanager
    def judging(self, contestant: Contestant) -> Iterator[None]:
        """Discard a contestant's samples of this workload if the block finds a wrong result."""
        try:
            yield
        except WrongResult:
            for key in [key for key in self._samples if key[1] == contestant.name]:
                del self._samples[key]
            raise

    def readmit(self) -> None:
        """Let contestants that failed take part again, as another measurement begins."""
        self._out.clear()

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable on the loop of the run."""

        async def waiting() -> Any:
            return await awaitable

        return self.loop.run_until_complete(waiting())

    def timed(self, act: Callable[[], Any]) -> tuple[float, Any]:
        """Return the seconds that a call takes, and its result."""
        with settled():
            used, start = time.process_time(), time.perf_counter()
            result = act()
            seconds = time.perf_counter() - start
            self.processor = time.process_time() - used
        return seconds, result

    def atimed(self, act: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
        """Async `timed`; the clock runs inside the loop."""

        async def timing() -> tuple[float, Any]:
            used, start = time.process_time(), time.perf_counter()
            result = await act()
            seconds = time.perf_counter() - start
            self.processor = time.process_time() - used
            return seconds, result

        with settled():
            return self.loop.run_until_complete(timing())


@contextmanager
def settled() -> Iterator[None]:
    """Keep the garbage collector on, as in production, but exclude objects that exist already."""
    gc.collect(1)
    gc.freeze()
    yield


def ratio(values: list[float], base: list[float]) -> float | None:
    """Return the median ratio of measurements made side by side, which other load on the machine distorts least."""
    if not base or not all(base):
        return None
    if len(values) != len(base):  # one of them failed
        return round(statistics.median(values) / statistics.median(base), 3)
    return round(statistics.median(value / other for value, other in zip(values, base, strict=True)), 3)


def summary(values: Iterable[float]) -> Row:
    """Return the median, percentiles, and the minimum, which other load on the machine disturbs least."""
    ordered = sorted(values)
    percentiles = {
        f"p{percent}": round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 4)
        for percent in (25, 75, 90, 99)
    }
    return {
        "median": round(statistics.median(ordered), 4),
        **percentiles,
        "min": round(ordered[0], 4),
        "samples": len(ordered),
    }
