from __future__ import annotations

import asyncio
from typing import Any

from bench import graphs
from bench.contestants import Contestant
from bench.history import following, history
from bench.measuring import Run
from bench.prepared import Prepared, chat_recording, check_chat

MESSAGES = 50
LEVELS = {1: (25, 5), 10: (50, 5), 100: (100, 5), 500: (500, 2)}
"""Number of turns, each in its own thread, and of repetitions, by number of concurrent callers."""


def run(run: Run) -> None:
    """Turns a second of many callers at once on one event loop, each in threads of its own, 50 messages of history."""
    quick = {1: (10, 2), 10: (20, 2), 100: (100, 2)}
    levels: dict[int, tuple[int, int]] = run.size(LEVELS, quick, {2: (2, 1)})
    prepared: dict[str, list[Prepared]] = {}

    def prepare(contestant: Contestant, _: int) -> None:
        recording = chat_recording(contestant, MESSAGES, most_steps=5)
        prepared[contestant.name] = [recording.play() for _ in range(max(turns for turns, _ in levels.values()))]

    run.rotate("throughput: preparing", 1, prepare)
    for callers, (turns, repetitions) in levels.items():

        def act(
            contestant: Contestant, repetition: int, callers: int = callers, turns: int = turns, last: int = repetitions
        ) -> None:
            threads = prepared[contestant.name][:turns]
            for thread in threads:
                thread.reset()
            graph = graphs.chat(contestant.asaver, asynchronous=True)
            seconds, _ = run.atimed(lambda: serve(graph, threads, callers))
            for thread in threads if repetition in (0, last) else threads[:1]:
                check_chat(thread.stored(), MESSAGES + 4)
            if repetition or run.smallest:  # the first warms up
                case = {"callers": callers, "flavour": "async", "durability": "sync"}
                run.sample(contestant, case, "turns", "per second", turns / seconds)

        run.rotate(f"throughput: {callers} callers", repetitions + (not run.smallest), act)


async def serve(graph: Any, threads: list[Prepared], callers: int) -> None:
    """Let concurrent callers do one turn in each thread; no thread has two callers at once."""
    waiting = iter(threads)
    question = {"messages": [following(history(MESSAGES)[-1])]}

    async def caller() -> None:
        for thread in waiting:
            await graph.ainvoke(question, thread.config, durability="sync")

    await asyncio.gather(*(caller() for _ in range(callers)))
