from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench import graphs
from bench.contestants import Contestant
from bench.history import following
from bench.measuring import Run
from bench.meters import SCRIPTS, RedisMeter, Traffic
from bench.prepared import Prepared, chat_recording, check_chat

MESSAGES = 100
WINDOW = 10
WATCHED = 2


@dataclass
class Account:
    """Cost of one contestant's thread so far."""

    prepared: Prepared
    graph: Any
    last: Any
    """The newest message."""
    memory: int | None
    keys: tuple[int, int] | None
    traffic: list[Traffic] = field(default_factory=list)


def run(run: Run) -> None:
    """100 turns with the whole history kept, from 100 messages on: memory of the server, bytes, commands, server time."""
    turns = run.size(100, 30, 10)
    case = {"messages": MESSAGES, "turns": turns, "flavour": "sync", "durability": "sync"}
    accounts: dict[str, Account] = {}

    def prepare(contestant: Contestant, _: int) -> None:
        accounts[contestant.name] = opened(contestant)

    def window(contestant: Contestant, repetition: int) -> None:
        account, meter = accounts[contestant.name], contestant.meter
        before = meter.traffic() if isinstance(meter, RedisMeter) else None
        for _ in range(WINDOW):
            run.sample(contestant, case, "turn", "ms", turn(run, account) * 1000)
        so_far = {**case, "turns": (repetition + 1) * WINDOW}
        if isinstance(meter, RedisMeter) and before:
            account.traffic.append(meter.between(before, meter.traffic()))
            run.sample(contestant, so_far, "sent a turn", "kB", account.traffic[-1].sent / WINDOW / 1000)
            run.sample(contestant, so_far, "received a turn", "kB", account.traffic[-1].received / WINDOW / 1000)
        if meter is not None and account.memory is not None:
            if isinstance(meter, RedisMeter) and so_far["turns"] == turns:
                meter.disconnect()
            grown = meter.memory() - account.memory
            run.sample(contestant, so_far, "memory grown", "MB", grown / 1e6)

    def close(contestant: Contestant, _: int) -> None:
        account, meter = accounts[contestant.name], contestant.meter
        with run.judging(contestant):
            check_chat(account.prepared.stored(), MESSAGES + 4 * turns)
        if isinstance(meter, RedisMeter):
            report(run, contestant.name, account, meter, case)

    run.rotate("cost: preparing", 1, prepare)
    run.rotate("cost: ten turns", turns // WINDOW, window)
    run.rotate("cost: looking", 1, close)


def opened(contestant: Contestant) -> Account:
    """Prepare a thread, and read the counters before the first turn. A turn on another thread warms up."""
    meter, recording = contestant.meter, chat_recording(contestant, MESSAGES)
    graph = graphs.chat(contestant.saver)
    newest = recording.puts[-1][0]["channel_values"]["messages"][-1]
    warm = recording.play()
    graph.invoke({"messages": [following(newest)]}, warm.config, durability="sync")
    contestant.saver.delete_thread(warm.thread)
    prepared = recording.play()
    if meter is not None and not isinstance(meter, RedisMeter):
        meter.prepare()
    keys = memory = None
    if isinstance(meter, RedisMeter):
        meter.disconnect()
        keys = meter.keys()
    if meter is not None:
        memory = meter.memory()
    contestant.saver.get_tuple(prepared.config)  # reconnects
    return Account(prepared, graph, newest, memory, keys)


def turn(run: Run, account: Account) -> float:
    question = {"messages": [following(account.last)]}
    seconds, state = run.timed(lambda: account.graph.invoke(question, account.prepared.config, durability="sync"))
    account.last = state["messages"][-1]
    return seconds


def report(run: Run, name: str, account: Account, meter: RedisMeter, case: dict[str, Any]) -> None:
    """Sample the counters of a Redis server at the end."""
    turns = case["turns"]
    keys, size = meter.keys()
    if account.keys:
        run.sample(name, case, "keys grown", "keys", keys - account.keys[0])
        run.sample(name, case, "MEMORY USAGE of keys grown", "MB", (size - account.keys[1]) / 1e6)
    run.sample(name, case, "sent on average", "kB", sum(each.sent for each in account.traffic) / turns / 1000)
    run.sample(name, case, "received on average", "kB", sum(each.received for each in account.traffic) / turns / 1000)
    total: dict[str, tuple[int, int]] = {}
    for each in account.traffic:
        for command, (calls, usec) in each.commands.items():
            before = total.get(command, (0, 0))
            total[command] = (before[0] + calls, before[1] + usec)
    turn(run, account)  # reconnects
    with meter.watch() as seen:
        for _ in range(WATCHED):
            turn(run, account)
    run.sample(name, case, "commands a turn", "commands", sum(seen.outer.values()) / WATCHED)
    run.sample(name, case, "commands in scripts a turn", "commands", sum(seen.inner.values()) / WATCHED)
    scripts = {command: counts for command, counts in total.items() if command in SCRIPTS}
    calls, usec = (sum(each) for each in zip(*(scripts or total).values(), strict=True))
    run.sample(name, case, "server time a call", "us", usec / calls)
    run.sample(name, case, "server time a turn", "us", usec / turns)
    for what, names in (("sent by the client", seen.outer), ("called by scripts", seen.inner)):
        if names:
            listed = ", ".join(f"{command} {count / WATCHED:g}" for command, count in names.most_common())
            run.notes.append({"workload": "cost", "saver": name, "note": f"commands a turn, {what}: {listed}"})
