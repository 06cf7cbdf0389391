"""Callers in processes of their own, so that a server has more to do than one Python process can ask of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench import graphs
from bench.contestants import OPENERS, Contestant, Setting
from bench.history import following, history
from bench.measuring import settled
from bench.noop import Recorder
from bench.prepared import check_chat

SECONDS_TO_END = 10


class Step(NamedTuple):
    """What LangGraph asks of its saver in a superstep: the pending writes of a checkpoint, and the next checkpoint."""

    writes: Sequence[tuple[Sequence[tuple[str, Any]], str]]
    """Of each task, and the task's id."""
    checkpoint: Any
    metadata: Any
    new_versions: Any


class Talk:
    """A chat as it goes on, recorded with a saver's channel versions, to be had again in any number of threads."""

    def __init__(self, contestant: Contestant, messages: int, turns: int) -> None:
        recorder = Recorder(contestant.asaver)
        graph = graphs.chat(recorder)
        config: Any = {"configurable": {"thread_id": "recording"}}
        last = history(messages)[-1]
        graph.update_state(config, {"messages": history(messages)}, as_node="agent")
        for _ in range(turns):
            state = graph.invoke({"messages": [following(last)]}, config, durability="sync")
            last = state["messages"][-1]
        parents = [None, *(checkpoint["id"] for checkpoint, _, _ in recorder.puts)]
        steps = [Step(recorder.writes[parent], *put) for parent, put in zip(parents, recorder.puts, strict=False)]
        self.first, self.steps, self.messages = steps[0], steps[1:], messages + 4 * turns
        self.saver = contestant.asaver

    async def begin(self, thread: str) -> Any:
        """Put the first checkpoint; its config."""
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        return await self.saver.aput(config, self.first.checkpoint.copy(), self.first.metadata, self.first.new_versions)

    async def go_on(self, config: Any) -> int:
        """All steps, each as LangGraph does it: it does not wait for pending writes before it puts the next checkpoint.

        Returns:
            How many calls these were.
        """
        calls = 0
        for writes, checkpoint, metadata, new_versions in self.steps:
            asked = [self.saver.aput_writes(config, each, task) for each, task in writes]
            *_, config = await asyncio.gather(
                *asked, self.saver.aput(config, checkpoint.copy(), metadata, new_versions)
            )
            calls += len(asked) + 1
        return calls

    async def check(self, config: Any) -> None:
        """Check that the thread has what it was given.

        Raises:
            WrongResult: It has not.
        """
        where = {key: config["configurable"][key] for key in ("thread_id", "checkpoint_ns")}
        found = await self.saver.aget_tuple({"configurable": where})
        check_chat(found.checkpoint["channel_values"] if found else {}, self.messages)


class Callers:
    """The callers of one process: each has a chat of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stack: ExitStack) -> None:
        self._loop, self._stack = loop, stack
        self._talks: dict[str, Talk] = {}
        self._configs: list[Any] = []

    def open(self, name: str, url: str, messages: int, turns: int) -> None:
        """Open a contestant's saver on a server that runs, and record what it will be asked."""
        setting = Setting(self._loop, self._stack, url, url, url, raw_calls_url=url)
        self._talks[name] = Talk(OPENERS[name](setting), messages, turns)

    def prepare(self, name: str, threads: list[str]) -> None:
        """Begin a chat for each caller."""
        self._configs = self._together([self._talks[name].begin(thread) for thread in threads])

    def serve(self, name: str) -> int:
        """Let all callers go on at once.

        Returns:
            How many calls these were.
        """
        with settled():
            return sum(self._together([self._talks[name].go_on(config) for config in self._configs]))

    def check(self, name: str) -> None:
        """Check that all threads have what they were given."""
        self._together([self._talks[name].check(config) for config in self._configs])

    def _together(self, asked: list[Any]) -> list[Any]:
        async def gathered() -> list[Any]:
            return await asyncio.gather(*asked)

        return self._loop.run_until_complete(gathered())


def _follow(orders: Connection) -> None:
    """What a process of callers does: what it is told, until it is told no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    warnings.filterwarnings("ignore", module="langgraph|langchain")
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        callers = Callers(loop, stack)
        with suppress(EOFError, BrokenPipeError):  # nobody is left to tell it more, or to hear of it
            while True:
                method, arguments = orders.recv()
                try:
                    reply = True, getattr(callers, method)(*arguments)
                except Exception as error:
                    reply = False, f"{type(error).__name__}: {error}"
                orders.send(reply)


class CrowdFailed(Exception):
    """What went wrong in a process of callers."""


class Crowd:
    """Some processes of callers, which do the same at the same time."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._running: list[tuple[Any, Connection]] = []
        for _ in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=_follow, args=(there,), daemon=True)
            process.start()
            there.close()
            self._running.append((process, here))

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for _, orders in self._running:
            orders.close()
        for process, _ in self._running:
            process.join(SECONDS_TO_END)

    def tell(self, method: str, *arguments: tuple[Any, ...]) -> list[Any]:
        """Let each process do something, with arguments of its own or with the same ones.

        Raises:
            CrowdFailed: One of them could not.
        """
        each = arguments if len(arguments) > 1 else arguments * len(self._running)
        for (_, orders), given in zip(self._running, each, strict=True):
            orders.send((method, given))
        replies = [orders.recv() for _, orders in self._running]
        for worked, reply in replies:
            if not worked:
                raise CrowdFailed(reply)
        return [reply for _, reply in replies]
