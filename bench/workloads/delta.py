from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench import graphs
from bench.contestants import Contestant
from bench.history import following, history
from bench.measuring import Case, Run
from bench.meters import RedisMeter, Traffic
from bench.prepared import check_chat

LENGTHS = (100, 1000)
CHANNELS = {"plain list": False, f"DeltaChannel({graphs.SNAPSHOT_EVERY})": True}
PLAIN, DELTA = CHANNELS
NEW = 3
"""Messages per turn, each a write to the channel."""
WARM = -(-graphs.SNAPSHOT_EVERY // NEW)
"""Turns before the first one that counts, until there is a snapshot."""
WINDOW = 10


@dataclass
class Chat:
    """A running chat, and the cost of its turns so far."""

    graph: Any
    config: Any
    last: Any
    """The newest message."""
    traffic: list[Traffic] = field(default_factory=list)

    def turn(self, run: Run) -> float:
        """Play a turn; return its seconds."""
        question = {"messages": [following(self.last)]}
        seconds, state = run.timed(lambda: self.graph.invoke(question, self.config, durability="sync"))
        self.last = state["messages"][-1]
        return seconds


def run(run: Run) -> None:
    """A turn of three new messages, in a plain list and in a DeltaChannel with a snapshot each 50 writes: time, and bytes."""
    turns = run.size(50, 20, WINDOW)
    for length in run.size(LENGTHS, LENGTHS, (60,)):
        measure(run, length, turns)
        for contestant in run.contestants:
            contestant.clear()


def measure(run: Run, length: int, turns: int) -> None:
    """Measure both kinds of channels at one length, in alternating turns."""
    chats: dict[tuple[str, str], Chat] = {}

    def case(channel: str) -> Case:
        return {"messages": length, "channel": channel, "turns": turns, "flavour": "sync", "durability": "sync"}

    def prepare(contestant: Contestant, _: int) -> None:
        for channel in CHANNELS:
            chats[contestant.name, channel] = opened(run, contestant, channel, length)

    def window(contestant: Contestant, repetition: int) -> None:
        meter, taken, processor = contestant.meter, dict.fromkeys(CHANNELS, 0.0), dict.fromkeys(CHANNELS, 0.0)
        for number in range(WINDOW):
            for channel in (PLAIN, DELTA) if number % 2 else (DELTA, PLAIN):
                chat = chats[contestant.name, channel]
                before = meter.traffic() if isinstance(meter, RedisMeter) else None
                seconds = chat.turn(run)
                taken[channel] += seconds
                processor[channel] += run.processor
                if isinstance(meter, RedisMeter) and before:
                    chat.traffic.append(meter.between(before, meter.traffic()))
                run.sample(contestant, case(channel), "turn", "ms", seconds * 1000)
        run.sample(contestant, case(DELTA), f"turns: x {PLAIN}", "ratio", taken[DELTA] / taken[PLAIN])
        metric = f"turns, processor time of this process: x {PLAIN}"
        run.sample(contestant, case(DELTA), metric, "ratio", processor[DELTA] / processor[PLAIN])

    def close(contestant: Contestant, _: int) -> None:
        for channel in CHANNELS:
            chat = chats[contestant.name, channel]
            with run.judging(contestant):
                check_chat(chat.graph.get_state(chat.config).values, length + NEW * turns)
            if chat.traffic:
                report(run, contestant, case(channel), chat.traffic)

    run.rotate(f"delta: preparing {length} messages", 1, prepare)
    run.rotate(f"delta: {length} messages, ten turns", turns // WINDOW, window)
    run.rotate(f"delta: {length} messages, looking", 1, close)


def opened(run: Run, contestant: Contestant, channel: str, length: int) -> Chat:
    """Start a chat of `length` messages; the saver served the last of its turns."""
    before = history(length)[: length - NEW * WARM]
    graph = graphs.short(contestant.saver, delta=CHANNELS[channel])
    chat = Chat(graph, {"configurable": {"thread_id": contestant.thread()}}, before[-1])
    graph.update_state(chat.config, {"messages": before}, as_node="answer")
    for _ in range(WARM):
        chat.turn(run)
    return chat


def report(run: Run, contestant: Contestant, case: Case, traffic: list[Traffic]) -> None:
    """Sample the bytes sent and received, including snapshots."""
    sent, received = ([each.sent / 1000 for each in traffic], [each.received / 1000 for each in traffic])
    run.sample(contestant, case, "sent on average", "kB", sum(sent) / len(traffic))
    run.sample(contestant, case, "received on average", "kB", sum(received) / len(traffic))
    worst = max(both for both in map(sum, zip(sent, received, strict=True)))
    run.sample(contestant, case, "worst turn, both ways", "kB", worst)
