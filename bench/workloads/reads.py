from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.contestants import OURS, Contestant
from bench.measuring import Run, WrongResult
from bench.prepared import MAX_STEPS, chat_recording
from bench.workloads.operations import small_thread, times, times_async

PAIRS = 20
MESSAGES = 100
THREADS: dict[str, Callable[[Contestant, int], Any]] = {
    "small": lambda contestant, _: small_thread(contestant),
    f"{MESSAGES} messages": lambda contestant, steps: chat_recording(contestant, MESSAGES, steps).play().config,
}


def run(run: Run) -> None:
    """get_tuple through two tiers and by ours alone, by turns call by call, on one Redis; microseconds."""
    for checkpoint in THREADS:
        for flavour in ("sync", "async"):
            read(run, checkpoint, flavour)


def read(run: Run, checkpoint: str, flavour: str) -> None:
    """Measure reads of one kind of checkpoint. Each saver reads a thread that it wrote itself."""
    configs: dict[str, list[Any]] = {}
    first: dict[str, Any] = {}

    def ask(saver: Any, config: Any) -> Any:
        return saver.aget_tuple(config) if flavour == "async" else saver.get_tuple(config)

    def act(tiers: Contestant, repetition: int) -> None:
        if tiers.alone is None:
            return
        both = [tiers.alone, tiers]
        if not repetition:
            configs[tiers.name] = [THREADS[checkpoint](each, run.size(MAX_STEPS, MAX_STEPS, 2)) for each in both]
        savers: list[Any] = [each.asaver if flavour == "async" else each.saver for each in both]
        turn = list(zip((OURS, tiers.name), savers, configs[tiers.name], strict=True))
        if repetition % 2:
            turn.reverse()
        calls, before = [each[1:] for each in turn] * PAIRS, savers[1].stats().tiers.hits
        taken, found = run.wait(times_async(ask, calls)) if flavour == "async" else times(ask, calls)
        if not repetition:  # warms up: after a write-through, hot cannot know that its checkpoint is the newest
            first[tiers.name] = found.checkpoint["channel_values"]
            return
        if savers[1].stats().tiers.hits != before + PAIRS:
            raise WrongResult("cold was asked")
        if found.checkpoint["channel_values"] != first[tiers.name]:  # the other saver's, if the repetition is odd
            raise WrongResult("get_tuple gave other values through tiers than alone")
        case = {"checkpoint": checkpoint, "flavour": flavour, "server": tiers.name}
        for position, (name, *_) in enumerate(turn):
            for seconds in taken[position::2]:
                run.sample(name, case, "get_tuple", "us", seconds * 1e6)

    run.rotate(f"reads: {checkpoint}, {flavour}", run.size(30, 10, 1) + 1, act)
