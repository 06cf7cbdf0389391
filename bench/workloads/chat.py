from __future__ import annotations

from typing import Any

from bench import graphs
from bench.contestants import Contestant
from bench.history import following
from bench.measuring import Run
from bench.prepared import Prepared, chat_recording, check_chat

REPETITIONS = {1: 40, 10: 40, 100: 40, 400: 20, 1000: 10}
PROCESSOR = "turn, processor time of this process"
MODES = [(flavour, durability) for flavour in ("sync", "async") for durability in ("sync", "async")]


COLD_LENGTHS, COLD_REPETITIONS = (10, 100, 400), 15


def run(run: Run) -> None:
    """A turn of an agent with one tool call, five checkpoints, on histories of several lengths; milliseconds."""
    lengths = run.size(list(REPETITIONS), [10, 100, 400], [10])
    for length in lengths:
        prepared: dict[str, Prepared] = {}

        def prepare(contestant: Contestant, _: int, length: int = length, prepared: Any = prepared) -> None:
            prepared[contestant.name] = chat_recording(contestant, length).play()

        run.rotate(f"chat: preparing {length} messages", 1, prepare)
        repetitions = run.size(REPETITIONS[length], 6, 1)
        for flavour, durability in MODES:
            case = {"messages": length, "flavour": flavour, "durability": durability}
            measure(run, prepared, {**case, "start": "warm"}, repetitions)
            if (flavour, durability) == MODES[0] and length in COLD_LENGTHS:
                measure(run, prepared, {**case, "start": "cold"}, min(repetitions, COLD_REPETITIONS))
        for contestant in run.contestants:
            contestant.clear()


def measure(run: Run, prepared: dict[str, Prepared], case: dict[str, Any], repetitions: int) -> None:
    """Measure one case: warm, with a saver that has served the thread; cold, with a new saver."""
    length, durability, asynchronous = case["messages"], case["durability"], case["flavour"] == "async"

    def act(contestant: Contestant, repetition: int) -> None:
        thread = prepared[contestant.name]
        thread.reset()
        saver = contestant.saver if case["start"] == "warm" else contestant.unacquainted()
        graph = graphs.chat(contestant.asaver if asynchronous else saver, asynchronous=asynchronous)
        question = {"messages": [following(thread.recording.puts[-1][0]["channel_values"]["messages"][-1])]}
        if asynchronous:
            seconds, state = run.atimed(lambda: graph.ainvoke(question, thread.config, durability=durability))
        else:
            seconds, state = run.timed(lambda: graph.invoke(question, thread.config, durability=durability))
        processor = run.processor
        check_chat(state, length + 4)
        if repetition in (0, 1, repetitions):
            check_chat(thread.stored(), length + 4)
        if repetition or run.smallest:  # the first warms up
            run.sample(contestant, case, "turn", "ms", seconds * 1000)
            run.sample(contestant, case, PROCESSOR, "ms", processor * 1000)

    what = f"chat: {length} messages, {case['flavour']}, durability {durability}, {case['start']}"
    run.rotate(what, repetitions + (not run.smallest), act)
