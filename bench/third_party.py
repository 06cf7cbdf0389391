"""Other people's benchmarks, with our saver beside those that they ship with: `python -m bench third-party`.

Nothing of theirs is in this repository. Each workload is loaded from the user's checkout. The saver is passed as
`graph.checkpointer`, or as the argument that their functions take.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import importlib.util
import operator
import runpy
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from typing_extensions import TypedDict

from bench.contestants import MEMORY, OURS, POSTGRES, Contestant
from bench.measuring import Run, WrongResult
from bench.meters import PostgresMeter, SqliteMeter

SQLITE = "SqliteSaver"
SAVERS = (OURS, MEMORY, POSTGRES, SQLITE)
"""Ours, and the savers that LangGraph and DeerFlow ship with."""
LARGEST = 2_000_000_000
"""Bytes. A saver that has stored more stops."""
TURNS = 200
"""Turns of the coding agent."""
SOURCES = """\
LangGraph's libs/langgraph/bench (13 graphs with a checkpointer) and tests/test_delta_channel_benchmark.py:
  git clone https://github.com/langchain-ai/langgraph
  python -m bench third-party --langgraph langgraph
  The checkout must be of the langgraph that is installed. The second one imports pytest.
DeerFlow's backend/scripts/benchmark/checkpoint/bench_channels.py and bench_production.py:
  git clone https://github.com/bytedance/deer-flow
  pip install deer-flow/backend/packages/extension-api deer-flow/backend/packages/harness  # Python 3.12
  python -m bench third-party --deerflow deer-flow
  pip install fastapi httpx python-multipart sse-starlette bcrypt pyjwt email-validator  # for bench_production.py
LangChain's coding agent of 200 turns:
  python -m bench third-party --coding-agent
  There is no published code. It is built here from the description in langchain-ai/deepagents, pull request 2910.
"""


def measure(run: Run, langgraph: Path | None, deerflow: Path | None, coding_agent: bool) -> None:
    """Run the selected workloads."""
    chosen: dict[str, Callable[[], None]] = {}
    if langgraph:
        chosen["langgraph"] = lambda: graphs(run, langgraph / "libs" / "langgraph")
        chosen["langgraph-delta"] = lambda: delta(run, langgraph / "libs" / "langgraph" / "tests")
    if deerflow:
        chosen["deerflow-channels"] = lambda: channels(run, deerflow / "backend")
        chosen["deerflow-production"] = lambda: production(run, deerflow / "backend")
    if coding_agent:
        chosen["coding-agent"] = lambda: agent(run)
    for name, workload in chosen.items():
        workload()
        run.finish(name)


@contextlib.contextmanager
def importable(*folders: Path) -> Iterator[None]:
    """Put folders before all others on the path, and this package out of the way of one with its name."""
    ours = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "bench"}
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
            del sys.modules[name]
        sys.modules.update(ours)
        for folder in folders:
            sys.path.remove(str(folder))


def load(file: Path) -> Any:
    """Load a file as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graphs(run: Run, folder: Path) -> None:
    """LangGraph's graphs with a checkpointer, with its benchmark's durability and the default one."""
    found: dict[str, tuple[Any, Any]] = {}

    class Runner:
        """Collects the benchmarks instead of running them, as pyperf's does."""

        def bench_async_func(self, *_: Any, **__: Any) -> None:
            pass

        def bench_func(self, name: str, _: Any, *arguments: Any) -> None:
            if name.endswith("_checkpoint_sync"):
                found[name.removesuffix("_checkpoint_sync")] = arguments[0], arguments[1]

    runner, loops = types.ModuleType("pyperf._runner"), types.ModuleType("uvloop")
    runner.Runner, loops.new_event_loop = Runner, None  # type: ignore[attr-defined]
    stubs = {"pyperf": types.ModuleType("pyperf"), "pyperf._runner": runner, "uvloop": loops}
    before = {name: sys.modules.get(name) for name in stubs}
    with importable(folder):
        sys.modules.update(stubs)
        runpy.run_path(str(folder / "bench" / "__main__.py"))
    for name, module in before.items():
        sys.modules.pop(name)
        sys.modules.update({name: module} if module else {})
    for name, (graph, given) in found.items():
        for durability in ("exit", "async"):
            case = {"graph": name, "durability": durability}

            def act(contestant: Contestant, repetition: int) -> None:
                graph.checkpointer = contestant.saver
                config = {"configurable": {"thread_id": contestant.thread()}, "recursion_limit": 10**9}
                stream = graph.stream(given, config, durability=durability)
                seconds, _ = run.timed(lambda: collections.deque(stream, 0))
                if repetition or run.smallest:
                    run.sample(contestant, case, "run", "ms", seconds * 1000)

            run.readmit()
            run.rotate(f"langgraph: {name}, {durability}", run.size(4, 2, 1), act)


def delta(run: Run, folder: Path) -> None:
    """LangGraph's scenarios of several `DeltaChannel`s."""
    theirs = load(folder / "test_delta_channel_benchmark.py")
    for scenario, frequencies in theirs.SCENARIOS:
        for turns in run.size(theirs.TURN_COUNTS, theirs.TURN_COUNTS[:1], [2]):
            case = {"scenario": scenario, "turns": turns}

            def act(contestant: Contestant, _: int) -> None:
                contestant.clear()
                reclaim(contestant)
                before = stored(contestant)
                found = theirs._run_scenario(frequencies, turns, contestant.saver, contestant.thread())
                run.sample(contestant, case, "write", "ms", found["write_per_invoke_ms"])
                run.sample(contestant, case, "read", "ms", found["read_avg_ms"])
                if contestant.meter:
                    run.sample(contestant, case, "stored", "MB", (stored(contestant) - before) / 1e6)

            run.readmit()
            run.rotate(f"langgraph-delta: {scenario}, {turns} turns", 1, act)


def channels(run: Run, folder: Path) -> None:
    """DeerFlow's messages in a list (full) and in a `DeltaChannel` (delta), checked by its own digests."""
    with importable(folder / "packages" / "harness"):
        theirs = load(folder / "scripts" / "benchmark" / "checkpoint" / "bench_channels.py")
    for updates in run.size((100, 1000), (100,), (3,)):
        for mode in ("full", "delta"):
            case = {"mode": mode, "updates": updates}
            messages = [theirs._message_for_update(index, 128) for index in range(updates)]

            def act(contestant: Contestant, repetition: int) -> None:
                # The backend of a case only names it, as the saver is an argument.
                of_theirs = theirs.BenchmarkCase(mode, "memory", updates, 128, repetition, len(contestant.threads))
                contestant.threads.append(theirs._config(of_theirs)["configurable"]["thread_id"])
                metrics, warm = theirs._write_and_read(of_theirs, contestant.saver, messages)
                cold_ms, cold = theirs._cold_read(of_theirs, contestant.unacquainted())
                theirs._validate_materialized(of_theirs, messages, warm, cold)
                for metric, value in (("write", metrics["write_p50_ms"]), ("cold read", cold_ms)):
                    run.sample(contestant, case, metric, "ms", value)

            run.readmit()
            run.rotate(f"deerflow-channels: {mode}, {updates} updates", run.size(2, 1, 1), act)


def production(run: Run, folder: Path) -> None:
    """DeerFlow's agent with a scripted model, and its Gateway's routes for the state and the history."""
    with importable(folder, folder / "packages" / "harness"):
        theirs = load(folder / "scripts" / "benchmark" / "checkpoint" / "bench_production.py")
        mode_of_process = vars(importlib.import_module("deerflow.runtime.checkpoint_mode"))
        for mode in ("full", "delta"):
            # DeerFlow fixes the mode until its process ends, but the servers here outlive that.
            mode_of_process.update(_frozen_checkpoint_channel_mode=None, _frozen_checkpoint_snapshot_frequency=None)
            turns = run.size(100, 20, 3)
            states = dict[int, str]()

            def act(contestant: Contestant, repetition: int) -> None:
                frequency = 10 if mode == "delta" else None
                of_theirs = theirs.ProductionCase(
                    mode, turns, 128, frequency, (50,), run.size(25, 5, 1), repetition, len(contestant.threads)
                )
                contestant.threads.append(theirs._thread_id(of_theirs))
                timing = theirs._TimingSaver(contestant.asaver)

                async def both() -> tuple[Any, Any]:
                    with TemporaryDirectory() as work:
                        ran = await theirs._run_phase(of_theirs, contestant.asaver, timing, Path(work))
                    return ran, await theirs._read_phase(of_theirs, contestant.asaver, timing)

                ran, read = run.wait(both())
                if states.setdefault(repetition, read["state_wire_sha256"]) != read["state_wire_sha256"]:
                    raise WrongResult("the messages of the state are not those of the other savers")
                case = {"mode": mode, "turns": turns}
                run.sample(contestant, case, "turn", "ms", statistics.median(ran["turn_ms"]))
                for metric, name in (("state", "state"), ("history of 50", "history_limit_50")):
                    run.sample(contestant, case, metric, "ms", read[f"{name}_warm_p50_ms"])

            run.readmit()
            run.rotate(f"deerflow-production: {mode}, {turns} turns", run.size(2, 1, 1), act)


def stored(contestant: Contestant) -> int:
    return contestant.meter.memory() if contestant.meter else 0


def reclaim(contestant: Contestant) -> None:
    """Reclaim the space of deleted rows, which would hide growth."""
    if isinstance(contestant.meter, PostgresMeter | SqliteMeter):
        contestant.meter.prepare()


def agent(run: Run) -> None:
    """A coding agent: a turn writes two files of 30 kB, and has a tool result of 4 kB and an answer of 20 kB."""
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph import START, StateGraph, add_messages
    from langgraph.graph.message import _messages_delta_reducer

    merge: Any = operator.or_
    every_write: Any = lambda files, writes: {name: text for each in [files, *writes] for name, text in each.items()}
    lists = Annotated[list[Any], add_messages], Annotated[dict[str, str], merge]
    deltas = (
        Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=50)],
        Annotated[dict[str, str], DeltaChannel(every_write, dict, snapshot_frequency=50)],
    )

    def code(turn: int, size: int) -> str:
        """Return text that does not repeat itself, and compresses as code does."""
        lines = (
            f"def step_{turn}_{n}(state): return state[{n * 7919 % 1009}] + {turn * n}\n" for n in range(size // 40)
        )
        return "".join(lines)[:size]

    def built(kinds: tuple[Any, Any], saver: Any) -> Any:
        def act(state: Any) -> Any:
            turn = len(state["messages"]) // 4
            files = {f"/src/{turn}_{n}.py": code(2 * turn + n, 30_000) for n in range(2)}
            calls = [
                {"name": "write_file", "args": {"file_path": name, "content": text}, "id": f"{turn}{name}"}
                for name, text in files.items()
            ]
            if turn % 10 == 9:
                files[f"/results/{turn}"] = code(turn, 80_000)
            called = AIMessage("", id=f"call-{turn}", tool_calls=calls)
            result = ToolMessage(code(turn, 4_000), id=f"result-{turn}", tool_call_id=f"{turn}")
            return {"messages": [called, result], "files": files}

        def answer(state: Any) -> Any:
            turn = len(state["messages"]) // 4
            return {"messages": [AIMessage(code(turn, 20_000), id=f"answer-{turn}")]}

        state: Any = TypedDict("State", {"messages": kinds[0], "files": kinds[1]})
        builder = StateGraph(state).add_node(act).add_node(answer)
        return builder.add_edge(START, "act").add_edge("act", "answer").compile(checkpointer=saver)

    for channel, kinds in (("list", lists), ("DeltaChannel", deltas)):

        def act(contestant: Contestant, _: int) -> None:
            if not contestant.meter:  # it has no count of what it keeps
                return
            contestant.clear()
            reclaim(contestant)
            graph, config = built(kinds, contestant.saver), {"configurable": {"thread_id": contestant.thread()}}
            before, seconds = stored(contestant), list[float]()
            for turn in range(1, run.size(TURNS, 50, 2) + 1):
                asked = {"messages": [HumanMessage(f"Change {turn}", id=f"question-{turn}")]}
                seconds.append(run.timed(lambda: graph.invoke(asked, config))[0] * 1000)
                if turn in (2, 50, TURNS) or turn % 10 == 0:
                    grown = stored(contestant) - before
                    if turn in (2, 50, TURNS):
                        run.sample(contestant, {"channel": channel, "turns": turn}, "stored", "MB", grown / 1e6)
                    if grown > LARGEST:
                        run.notes.append(
                            {
                                "workload": "coding-agent",
                                "saver": contestant.name,
                                "note": f"{channel}: stopped after {turn} turns with {grown / 1e6:,.0f} MB",
                            }
                        )
                        break
            run.sample(
                contestant,
                {"channel": channel, "turns": turn},
                "turn, the last ten",
                "ms",
                statistics.median(seconds[-10:]),
            )
            if len(graph.get_state(config).values["messages"]) != 4 * turn:
                raise WrongResult("messages are missing")

        run.readmit()
        run.rotate(f"coding-agent: {channel}", 1, act)
