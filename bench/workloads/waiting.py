from __future__ import annotations

import asyncio
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from bench.contestants import OURS, Contestant
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter

WORK = 0.02
"""Seconds that each waiter keeps the thread."""
WAITERS = (20, 50)
BEHIND_ONE = 100
"""Number of waiters while the owner keeps the thread."""


@dataclass
class Turns:
    """Waiters of one thread, and the times at which they had it."""

    saver: Any
    thread: str
    ends: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Note the time since the last owner left."""
        if self.ends:
            self.handovers.append(time.perf_counter() - self.ends[-1])

    def end(self) -> None:
        self.ends.append(time.perf_counter())

    async def turn(self) -> None:
        async with self.saver.own(self.thread, on_busy="wait"):
            self.begin()
            await asyncio.sleep(WORK)
            self.end()

    def blocking_turn(self) -> None:
        with self.saver.own(self.thread, on_busy="wait"):
            self.begin()
            time.sleep(WORK)
            self.end()

    async def all(self, waiters: int) -> None:
        await asyncio.gather(*(self.turn() for _ in range(waiters)))

    def all_blocking(self, waiters: int) -> None:
        workers = [threading.Thread(target=self.blocking_turn) for _ in range(waiters)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def run(run: Run) -> None:
    """Waiters for one thread (own, on_busy="wait"), 20 ms of work each: until all had it, a handover, the server's share."""
    ours = [contestant for contestant in run.contestants if contestant.name == OURS]
    for flavour in ("sync", "async"):
        for waiters in run.size(WAITERS, WAITERS, (2,)):

            def act(contestant: Contestant, repetition: int, flavour: str = flavour, waiters: int = waiters) -> None:
                take_turns(run, contestant, flavour, waiters, warm=bool(repetition) or run.smallest)

            run.rotate(f"waiting: {waiters} {flavour}", run.size(6, 3, 1), act, ours)
    seconds = run.size(5, 2, 0.1)
    run.rotate("waiting: behind one owner", run.size(3, 2, 1), lambda who, _: stay_behind(run, who, seconds), ours)


def take_turns(run: Run, contestant: Contestant, flavour: str, waiters: int, *, warm: bool) -> None:
    """Let all waiters have the thread once."""
    is_async = flavour == "async"
    turns = Turns(contestant.asaver if is_async else contestant.saver, contestant.thread())
    if is_async:
        seconds, _ = run.atimed(lambda: turns.all(waiters))
    else:
        seconds, _ = run.timed(lambda: turns.all_blocking(waiters))
    if len(turns.ends) != waiters or min(turns.handovers) < 0:
        raise WrongResult(f"{len(turns.ends)} of {waiters} waiters had the thread, or two at once")
    if warm:
        case = {"waiters": waiters, "flavour": flavour}
        run.sample(contestant, case, "all had the thread", "s", seconds)
        run.sample(contestant, case, "handover", "ms", statistics.median(turns.handovers) * 1000)


def stay_behind(run: Run, contestant: Contestant, seconds: float) -> None:
    """Keep the thread while many wait."""
    meter, saver, thread = contestant.meter, contestant.asaver, contestant.thread()
    assert isinstance(meter, RedisMeter)

    async def wait() -> None:
        async with saver.own(thread, on_busy="wait"):
            raise WrongResult("a waiter got the thread from its owner")

    async def keep() -> float:
        async with saver.own(thread):
            waiters = [asyncio.ensure_future(wait()) for _ in range(BEHIND_ONE)]
            await asyncio.sleep(seconds / 5)
            used = meter.main_thread()
            await asyncio.sleep(seconds)
            used = meter.main_thread() - used
            for waiter in waiters:
                waiter.cancel()
            await asyncio.wait(waiters)
            return used

    _, used = run.atimed(keep)
    run.sample(contestant, {"waiters": BEHIND_ONE}, "server's share of a core", "%", 100 * used / seconds)
