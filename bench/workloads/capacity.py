from __future__ import annotations

import time
from collections import Counter

from bench.contestants import Contestant
from bench.crowd import Crowd
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter

MESSAGES = 50
PROCESSES, CALLERS, TURNS = 2, 30, 20
CALLS_PER_TURN = 10
SECONDS = 90
"""Time limit. A contestant that took longer does no more repetitions, as one takes some savers minutes."""


def run(run: Run) -> None:
    """How many turns a second one core of a Redis can serve: processor time of the server's main thread, under load."""
    repetitions, callers, turns = run.size(10, 3, 1), run.size(CALLERS, CALLERS, 2), run.size(TURNS, TURNS, 1)
    case = {"messages": MESSAGES, "callers": PROCESSES * callers, "flavour": "async"}

    spent: Counter[str] = Counter()

    with Crowd(PROCESSES) as crowd:

        def act(contestant: Contestant, repetition: int) -> None:
            meter = contestant.meter
            if not isinstance(meter, RedisMeter) or spent[contestant.name] > SECONDS:
                return
            if not repetition:
                crowd.tell("open", (contestant.name, meter.url, MESSAGES, turns))
            threads = [[contestant.thread() for _ in range(callers)] for _ in range(PROCESSES)]
            crowd.tell("prepare", *((contestant.name, each) for each in threads))
            before, begun = meter.main_thread(), time.perf_counter()
            calls = sum(crowd.tell("serve", (contestant.name,)))
            seconds, used = time.perf_counter() - begun, meter.main_thread() - before
            crowd.tell("check", (contestant.name,))
            contestant.clear()
            if calls != PROCESSES * callers * turns * (CALLS_PER_TURN - 1):
                raise WrongResult(f"{calls} calls, not {CALLS_PER_TURN - 1} a turn")  # the tenth call reads
            spent[contestant.name] += seconds if repetition else 0
            if repetition or run.smallest:  # the first warms up
                call = used / calls * 1e6
                run.sample(contestant, case, "server time a call", "us", call)
                run.sample(contestant, case, "turns that fill a core", "per second", 1e6 / call / CALLS_PER_TURN)
                run.sample(contestant, case, "calls made", "per second", calls / seconds)

        run.rotate(f"capacity: {PROCESSES * callers} callers", repetitions + (not run.smallest), act)
