from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import graphs
from bench.contestants import Contestant
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter

AGENTS: dict[str, Callable[..., Any]] = {
    "create_react_agent v1": lambda saver, calls: graphs.react(saver, calls, "v1"),
    "create_react_agent v2": lambda saver, calls: graphs.react(saver, calls, "v2"),
    "tools by Send": graphs.sender,
}
"""In the first agent an edge leads to the tools; in the others each tool call is a `Send` of the whole state."""


def run(run: Run) -> None:
    """An agent that calls a tool 10 to 80 times in one run, by an edge or by `Send`s with the whole state: time, bytes sent and stored."""
    repetitions = run.size(3, 2, 1)
    for calls in run.size((10, 20, 40, 80), (10, 40), (4,)):
        for name, agent in AGENTS.items():
            case = {"agent": name, "calls": calls, "flavour": "sync", "durability": "sync"}

            def act(
                contestant: Contestant, _: int, agent: Callable[..., Any] = agent, case: dict[str, Any] = case
            ) -> None:
                work(run, contestant, agent, case)

            run.rotate(f"sends: {name}, {calls} calls", repetitions, act)


def work(run: Run, contestant: Contestant, agent: Callable[..., Any], case: dict[str, Any]) -> None:
    """Run an agent in a new thread."""
    meter = contestant.meter if isinstance(contestant.meter, RedisMeter) else None
    graph, config = agent(contestant.saver, case["calls"]), {"configurable": {"thread_id": contestant.thread()}}
    traffic, stored = (meter.traffic(), meter.keys()[1]) if meter else (None, 0)
    asked = {"messages": [graphs.question()]}
    seconds, state = run.timed(lambda: graph.invoke(asked, {**config, "recursion_limit": 1000}, durability="sync"))
    run.sample(contestant, case, "run", "ms", seconds * 1000)
    if meter and traffic:
        run.sample(contestant, case, "sent", "kB", meter.between(traffic, meter.traffic()).sent / 1000)
        run.sample(contestant, case, "stored", "kB", (meter.keys()[1] - stored) / 1000)
    wanted = 2 * case["calls"] + 2
    for found in (state, contestant.saver.get_tuple(config).checkpoint["channel_values"]):
        if len(found["messages"]) != wanted:
            raise WrongResult(f"{len(found['messages'])} messages of {wanted}")
