from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from bench.contestants import Contestant
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter, Traffic

HALVES = ("first", "second")


@dataclass
class Session:
    """An agent at work in one thread, and the cost of its turns so far."""

    graph: Any
    config: Any
    turns: int = 0
    seconds: list[float] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)

    def turn(self, run: Run) -> float:
        """Play a turn; return its seconds."""
        from bench.deep_agents import question

        asked = question(self.turns)
        seconds, _ = run.timed(lambda: self.graph.invoke(asked, self.config, durability="sync"))
        self.turns += 1
        return seconds

    def halves(self, values: list[float]) -> list[tuple[str, list[float]]]:
        middle = len(values) // 2
        return list(zip(HALVES, (values[:middle], values[middle:]), strict=True))


def run(run: Run) -> None:
    """100 turns of a Deep Agent with todos, files and a subagent: time and bytes of a turn, second half against the first."""
    if find_spec("deepagents") is None:
        note = "did not run: the package deepagents is not installed (it takes Python 3.11)"
        run.notes.append({"workload": "deep-agent", "saver": "all", "note": note})
        return
    turns, window = run.size(100, 20, 2), run.size(10, 10, 1)
    sessions: dict[str, Session] = {}

    def prepare(contestant: Contestant, _: int) -> None:
        sessions[contestant.name] = opened(run, contestant)

    def work(contestant: Contestant, _: int) -> None:
        session, meter = sessions[contestant.name], contestant.meter
        for _ in range(window):
            before = meter.traffic() if isinstance(meter, RedisMeter) else None
            session.seconds.append(session.turn(run))
            if isinstance(meter, RedisMeter) and before:
                session.traffic.append(meter.between(before, meter.traffic()))

    def close(contestant: Contestant, _: int) -> None:
        with run.judging(contestant):
            check(sessions[contestant.name])
        report(run, contestant, sessions[contestant.name])

    run.rotate("deep-agent: preparing", 1, prepare)
    run.rotate(f"deep-agent: {window} turns", turns // window, work)
    run.rotate("deep-agent: looking", 1, close)


def opened(run: Run, contestant: Contestant) -> Session:
    """Start a session after the turns in which the agent writes its files; later turns edit them."""
    from bench.deep_agents import FILES, agent

    session = Session(agent(contestant.saver), {"configurable": {"thread_id": contestant.thread()}})
    for _ in range(FILES):
        session.turn(run)
    return session


def check(session: Session) -> None:
    """Check that the state is what the agent made.

    Raises:
        WrongResult: It is not.
    """
    from bench.deep_agents import FILES, MESSAGES, document, path, todos

    state = session.graph.get_state(session.config).values
    if len(state["messages"]) != MESSAGES * session.turns:
        raise WrongResult(f"{len(state['messages'])} messages of {session.turns} turns")
    if {name: file["content"] for name, file in state["files"].items()} != {
        path(turn): document(turn) for turn in range(session.turns - FILES, session.turns)
    }:
        raise WrongResult("the files are not what was written")
    if state["todos"] != todos(session.turns - 1):
        raise WrongResult("the todos are not the last ones")


def report(run: Run, contestant: Contestant, session: Session) -> None:
    """Sample both halves, and the ratio of the second to the first."""
    case = {"turns": len(session.seconds), "flavour": "sync", "durability": "sync"}

    def grown(metric: str, values: list[float]) -> None:
        first, second = (statistics.mean(half) for _, half in session.halves(values))
        run.sample(contestant, case, f"{metric}, second half: x first half", "ratio", second / first)

    for half, seconds in session.halves(session.seconds):
        for each in seconds:
            run.sample(contestant, {**case, "half": half}, "turn", "ms", each * 1000)
    grown("turn", session.seconds)
    if not session.traffic:
        return
    sent, received = (
        [each.sent / 1000 for each in session.traffic],
        [each.received / 1000 for each in session.traffic],
    )
    both = [sum(each) for each in zip(sent, received, strict=True)]
    for metric, values in (("sent on average", sent), ("received on average", received)):
        for half, some in session.halves(values):
            run.sample(contestant, {**case, "half": half}, metric, "kB", statistics.mean(some))
    grown("bytes both ways", both)
    run.sample(contestant, case, "worst turn, both ways", "kB", max(both))
