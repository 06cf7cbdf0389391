from __future__ import annotations

from bench import graphs
from bench.contestants import Contestant
from bench.measuring import Run, WrongResult


def run(run: Run) -> None:
    """One superstep of 100 parallel tasks (Send) in a new thread; milliseconds."""
    repetitions, width = run.size(20, 2, 1), run.size(100, 100, 4)
    for flavour in ("sync", "async"):
        case = {"tasks": width, "flavour": flavour, "durability": "sync"}

        def act(contestant: Contestant, repetition: int, flavour: str = flavour, case: dict = case) -> None:
            config = {"configurable": {"thread_id": contestant.thread()}}
            if flavour == "async":
                graph = graphs.fan_out(contestant.asaver, asynchronous=True)
                seconds, state = run.atimed(
                    lambda: graph.ainvoke({"width": width, "results": []}, config, durability="sync")
                )
            else:
                graph = graphs.fan_out(contestant.saver)
                seconds, state = run.timed(
                    lambda: graph.invoke({"width": width, "results": []}, config, durability="sync")
                )
            stored = contestant.saver.get_tuple(config).checkpoint["channel_values"]
            for found in (state, stored):
                if [line.partition(":")[0] for line in found["results"]] != [str(n) for n in range(width)]:
                    raise WrongResult(f"{len(found['results'])} results of {width} tasks, or in another order")
            if repetition or run.smallest:  # the first warms up
                run.sample(contestant, case, "superstep", "ms", seconds * 1000)

        run.rotate(f"fan-out: {flavour}", repetitions + (not run.smallest), act)
