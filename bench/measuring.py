"""Measuring side by side: each repetition runs all contestants, in rotating order."""

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
"""The fields of a row that hold a ratio, and to whom."""
Case = dict[str, Any]
Row = dict[str, Any]


class WrongResult(Exception):
    """A contestant's state is not what it has to be."""


@dataclass
class Run:
    """One run of the benchmark: who takes part, and what was measured."""

    contestants: list[Contestant]
    """The savers."""
    loop: asyncio.AbstractEventLoop
    quick: bool = False
    smallest: bool = False
    """As little as still runs everything once, for the tests."""
    open_stores: Callable[..., AbstractContextManager[Sequence[Any]]] = lambda *_: nullcontext(())
    """Opens the stores of these names that take part, with a setting for what of their items is embedded, for the length of a `with`."""
    advance: Callable[[str], None] = lambda _: None
    """Shows what goes on."""
    rows: list[Row] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    processor: float = 0
    """Processor seconds of this process in the last call that was timed."""
    _samples: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    _metrics: dict[str, tuple[Case, str, str]] = field(default_factory=dict)
    _out: set[str] = field(default_factory=set)

    def size(self, full: Any, quick: Any, smallest: Any) -> Any:
        """How much to do."""
        return smallest if self.smallest else quick if self.quick else full

    def sample(self, who: Contestant | str, case: Case, metric: str, unit: str, value: float) -> None:
        """Note one measurement. Less is better, save where the unit is 'per second'."""
        key = json.dumps([metric, case])
        self._metrics[key] = (case, metric, unit)
        self._samples[key, who if isinstance(who, str) else who.name].append(value)

    def finish(self, workload: str) -> None:
        """Turn what was sampled into rows, and the threads made into nothing."""
        for contestant in self.contestants:
            contestant.clear()
        self._out.clear()
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
        """Let all contestants act, repetition by repetition, each time beginning with another.

        Who fails is out for the rest of the workload.

        Args:
            what: The workload, and what of it.
            repetitions: How often.
            act: What a contestant does in a repetition.
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
        """Note that a contestant failed, or gave a wrong result."""
        reason = f"{type(error).__name__}: {error}"[:300]
        self.failures.append({"workload": what, "saver": name, "reason": reason})

    @contextmanager
    def judging(self, contestant: Contestant) -> Iterator[None]:
        """A context that looks at what a contestant did. If that is wrong, nothing counts that was measured of it in this workload."""
        try:
            yield
        except WrongResult:
            for key in [key for key in self._samples if key[1] == contestant.name]:
                del self._samples[key]
            raise

    def readmit(self) -> None:
        """Let those go on who have failed: what comes next is another thing."""
        self._out.clear()

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Run something asynchronous on the loop of the run."""

        async def waiting() -> Any:
            return await awaitable

        return self.loop.run_until_complete(waiting())

    def timed(self, act: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds that a call takes, and its result."""
        with settled():
            used, start = time.process_time(), time.perf_counter()
            result = act()
            seconds = time.perf_counter() - start
            self.processor = time.process_time() - used
        return seconds, result

    def atimed(self, act: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
        """`timed`, asynchronously; the clock runs inside the loop."""

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
    """The garbage collector on, as in production, and nobody paying for objects that others made before."""
    gc.collect(1)
    gc.freeze()
    yield


def ratio(values: list[float], base: list[float]) -> float | None:
    """The median of the ratios of measurements made side by side, which what else the machine does distorts least."""
    if not base or not all(base):
        return None
    if len(values) != len(base):  # one of them fell out
        return round(statistics.median(values) / statistics.median(base), 3)
    return round(statistics.median(value / other for value, other in zip(values, base, strict=True)), 3)


def summary(values: Iterable[float]) -> Row:
    """Median and percentiles; also the fastest, which the machine's other work disturbed least."""
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
