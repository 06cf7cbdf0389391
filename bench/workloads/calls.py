from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

from bench import graphs
from bench.contestants import Contestant
from bench.history import following
from bench.measuring import Run
from bench.prepared import Prepared, chat_recording, check_chat
from bench.profiling import Ledger

METHODS = ("put", "put_writes", "get_tuple")


def run(run: Run) -> None:
    """Processor time of a call within a turn, on histories of several lengths; microseconds."""
    for length in run.size([10, 100], [10], [10]):
        prepared: dict[str, Prepared] = {}

        def prepare(contestant: Contestant, _: int, length: int = length, prepared: dict = prepared) -> None:
            prepared[contestant.name] = chat_recording(contestant, length).play()

        run.rotate(f"calls: preparing {length} messages", 1, prepare)
        repetitions = run.size(200, 40, 1)
        for flavour in ("sync", "async"):
            case = {"messages": length, "flavour": flavour, "durability": "sync"}

            def act(
                contestant: Contestant,
                repetition: int,
                case: dict = case,
                prepared: dict[str, Prepared] = prepared,
                length: int = length,
            ) -> None:
                measure(
                    run, contestant, prepared[contestant.name], case, length, counts=repetition >= 3 or run.smallest
                )

            run.rotate(f"calls: {length} messages, {flavour}", repetitions + 3 * (not run.smallest), act)


def measure(run: Run, contestant: Contestant, thread: Prepared, case: dict, length: int, *, counts: bool) -> None:
    """Play a turn, and sample the mean processor time per call of each method."""
    asynchronous, ledger = case["flavour"] == "async", Ledger()
    saver, prefix = (contestant.asaver, "a") if asynchronous else (contestant.saver, "")
    thread.reset()
    question = {"messages": [following(thread.recording.puts[-1][0]["channel_values"]["messages"][-1])]}
    with ExitStack() as stack:
        for name in METHODS:
            method = ledger.wrap(name, getattr(saver, prefix + name))
            stack.enter_context(patch.object(saver, prefix + name, method))
        graph = graphs.chat(saver, asynchronous=asynchronous)
        if asynchronous:
            state = run.atimed(lambda: graph.ainvoke(question, thread.config, durability="sync"))[1]
        else:
            state = run.timed(lambda: graph.invoke(question, thread.config, durability="sync"))[1]
    check_chat(state, length + 4)
    for name in METHODS if counts else ():
        run.sample(contestant, case, name, "µs", ledger.seconds[name] / ledger.calls[name] * 1e6)
