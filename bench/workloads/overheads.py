from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from bench import graphs
from bench.contestants import OURS, Contestant
from bench.history import following, message
from bench.measuring import Run, WrongResult
from bench.meters import RedisMeter
from bench.options import OPTIONS, Option
from bench.prepared import Prepared, Recording, chat_recording, check_chat

MESSAGES = 100
CALLS = 20
"""Calls per block of puts or of pending writes."""
BLOCKS = 60


def run(run: Run) -> None:
    """What an option of ours costs: a turn, a put and a put_writes with it and without, by turns, on one Redis; ratios of work."""
    for ours in run.contestants:
        if ours.name == OURS:
            chat = chat_recording(ours, run.size(MESSAGES, MESSAGES, 8))
            for name, option in OPTIONS.items():
                act = partial(compare, run, name, option, chat)
                run.rotate(f"overheads: {name}", 1, lambda who, _, act=act: act(who), [ours])
                run.readmit()


def compare(run: Run, name: str, option: Option, chat: Recording, contestant: Contestant) -> None:
    """Compare both savers of an option, in alternating blocks."""
    try:
        with opened(run, contestant, option, chat) as sides:
            for what, rounds in (("turn", option.turns), ("put", BLOCKS), ("put_writes", BLOCKS)):
                for number in range(run.size(rounds, rounds // 10, 1) + 1):
                    one_round(
                        run, contestant, {"option": name}, what, sides if number % 2 else sides[::-1], warm=bool(number)
                    )
            with run.judging(contestant):
                for side in sides:
                    side.check()
    except ImportError as missing:
        run.notes.append({"workload": "overheads", "saver": OURS, "note": f"{name} is not measured: {missing}"})


def one_round(run: Run, contestant: Contestant, case: Any, what: str, sides: list[Side], *, warm: bool) -> None:
    """Run a block of each side, and sample both."""
    meter = contestant.meter
    assert isinstance(meter, RedisMeter)
    passed, work = dict[bool, float](), dict[bool, float]()
    for side in sides:
        count, act = side.block(what)
        in_scripts = meter.in_scripts()
        seconds, _ = run.timed(lambda act=act, side=side: side.context.run(act))
        work[side.has_option] = (run.processor * 1e6 + meter.in_scripts() - in_scripts) / count
        passed[side.has_option] = seconds * 1e6 / count
    if not warm:
        return
    run.sample(contestant, case, f"{what}: work", "us", work[True])
    run.sample(contestant, case, f"{what}: work, x without", "ratio", work[True] / work[False])
    run.sample(contestant, case, f"{what}: time, x without", "ratio", passed[True] / passed[False])


class Side:
    """A saver with one chat for turns and one for puts. It acts in its own context, which may own both threads."""

    def __init__(self, saver: Any, contestant: Contestant, chat: Recording, calls: int, *, has_option: bool) -> None:
        self.saver, self.calls, self.has_option, self.context = saver, calls, has_option, copy_context()
        # The contestant deletes the threads that it knows.
        self.prepared: Prepared = chat.of(Contestant(OURS, saver, saver, threads=contestant.threads)).play()
        self.base = chat.puts[-1][0]["channel_values"]["messages"]
        self.question = {"messages": [following(self.base[-1])]}
        self.graph, self.count = graphs.chat(saver), 0
        self.where: Any = {"configurable": {"thread_id": contestant.thread(), "checkpoint_ns": ""}}

    def threads(self) -> list[str]:
        return [self.prepared.thread, self.where["configurable"]["thread_id"]]

    def block(self, what: str) -> tuple[int, Callable[[], object]]:
        """Return the number of calls in a block, and a function that makes them.

        Preparations are made first, unmeasured.
        """
        if what == "turn":
            self.context.run(self.prepared.reset)
            return 1, self.turn
        if what == "put":
            return self.calls, self.puts
        return self.calls, self.writes

    def turn(self) -> None:
        self.graph.invoke(self.question, self.prepared.config, durability="sync")

    def puts(self) -> None:
        """Put checkpoints with one new message each."""
        for _ in range(self.calls):
            self.count += 1
            versions: Any = {"messages": f"{self.count:032}.{0:016}"}
            made: Any = {
                "v": 4, "id": Prepared.new_id(), "ts": "2026-11-25T00:00:00+00:00",
                "channel_values": {"messages": [*self.base, message(10**6 + self.count)]},
                "channel_versions": versions, "versions_seen": {"agent": versions},
            }  # fmt: skip
            self.where = self.saver.put(
                self.where, made, {"source": "loop", "step": self.count, "parents": {}}, versions
            )

    def writes(self) -> None:
        """Put pending writes of one task each on the newest checkpoint."""
        for _ in range(self.calls):
            self.count += 1
            self.saver.put_writes(self.where, [("messages", [self.count])], f"task {self.count}")

    def check(self) -> None:
        """Check both chats.

        Raises:
            WrongResult: One is wrong.
        """
        check_chat(self.prepared.stored(), len(self.base) + 4)
        found = self.saver.get_tuple(self.where)
        if (
            found is None
            or len(found.checkpoint["channel_values"]["messages"]) != len(self.base) + 1
            or not found.pending_writes
        ):
            raise WrongResult("the last checkpoint, or its pending writes, are not what was put")


@contextmanager
def opened(run: Run, contestant: Contestant, option: Option, chat: Recording) -> Iterator[list[Side]]:
    """Open the saver with the option, and the one without it."""
    if contestant.raw is None:
        raise WrongResult("it has no client")
    client = contestant.raw[0]
    calls = run.size(CALLS, CALLS, 2)
    with_it = Side(option.with_it(client), contestant, chat, calls, has_option=True)
    without = Side(option.without(client), contestant, chat, calls, has_option=False)
    with ExitStack() as stack:
        if option.owns:
            owning = ExitStack()
            stack.callback(lambda: with_it.context.run(owning.close))
            for thread in with_it.threads():
                with_it.context.run(owning.enter_context, with_it.saver.own(thread, lease="1h"))
        yield [with_it, without]
