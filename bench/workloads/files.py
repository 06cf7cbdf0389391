from __future__ import annotations

from bench import graphs
from bench.contestants import Contestant
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter
from bench.prepared import Prepared, Recording


def run(run: Run) -> None:
    """A turn that changes one of 200 documents of some 2 kB in a dict; milliseconds, and bytes the server gets and gives."""
    repetitions, count = run.size(20, 4, 1), run.size(200, 200, 20)
    prepared: dict[str, Prepared] = {}

    def prepare(contestant: Contestant, _: int) -> None:
        written = [{"files": {graphs.path(n): graphs.document(n, 0)}} for n in range(count)]
        tenths = [written[first : first + count // 10] for first in range(0, count, count // 10)]
        updates = [{"files": {name: value for one in part for name, value in one["files"].items()}} for part in tenths]
        prepared[contestant.name] = Recording(contestant, graphs.files, updates, "edit").play()

    run.rotate("files: preparing", 1, prepare)
    for flavour in ("sync", "async"):

        def act(contestant: Contestant, repetition: int, flavour: str = flavour) -> None:
            thread, changed = prepared[contestant.name], repetition * 7 % count
            thread.reset()
            meter = contestant.meter if isinstance(contestant.meter, RedisMeter) else None
            before = meter.traffic() if meter else None
            if flavour == "async":
                graph = graphs.files(contestant.asaver, asynchronous=True)
                seconds, state = run.atimed(
                    lambda: graph.ainvoke({"change": changed}, thread.config, durability="sync")
                )
            else:
                graph = graphs.files(contestant.saver)
                seconds, state = run.timed(lambda: graph.invoke({"change": changed}, thread.config, durability="sync"))
            traffic = meter.between(before, meter.traffic()) if meter and before else None
            wanted = {graphs.path(n): graphs.document(n, int(n == changed)) for n in range(count)}
            if not wanted == state["files"] == thread.stored()["files"]:
                raise WrongResult(f"the files are not the {count} that were written")
            if not repetition and not run.smallest:  # the first warms up
                return
            case = {"documents": count, "flavour": flavour, "durability": "sync"}
            run.sample(contestant, case, "turn", "ms", seconds * 1000)
            if traffic:
                run.sample(contestant, case, "sent", "kB", traffic.sent / 1000)
                run.sample(contestant, case, "received", "kB", traffic.received / 1000)

        run.rotate(f"files: {flavour}", repetitions + (not run.smallest), act)
