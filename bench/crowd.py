"""Callers in their own processes, which load a server more than one Python process can."""

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
    """LangGraph's calls in one superstep: the pending writes of a checkpoint, and the next checkpoint."""

    writes: Sequence[tuple[Sequence[tuple[str, Any]], str]]
    """Writes and id of each task."""
    checkpoint: Any
    metadata: Any
    new_versions: Any


class Talk:
    """A chat recorded with a saver's channel versions, to be replayed in any number of threads."""

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
        """Put the first checkpoint; return its config."""
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        return await self.saver.aput(config, self.first.checkpoint.copy(), self.first.metadata, self.first.new_versions)

    async def go_on(self, config: Any) -> int:
        """Replay all steps as LangGraph does: it puts the next checkpoint without waiting for pending writes.

        Returns:
            Number of calls made.
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
        """Check that the thread has all messages.

        Raises:
            WrongResult: It does not.
        """
        where = {key: config["configurable"][key] for key in ("thread_id", "checkpoint_ns")}
        found = await self.saver.aget_tuple({"configurable": where})
        check_chat(found.checkpoint["channel_values"] if found else {}, self.messages)


class Callers:
    """Callers of one process, each with its own chat."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stack: ExitStack) -> None:
        self._loop, self._stack = loop, stack
        self._talks: dict[str, Talk] = {}
        self._configs: list[Any] = []

    def open(self, name: str, url: str, messages: int, turns: int) -> None:
        """Open a contestant's saver on a running server, and record the chat to replay."""
        setting = Setting(self._loop, self._stack, url, url, url, raw_calls_url=url)
        self._talks[name] = Talk(OPENERS[name](setting), messages, turns)

    def prepare(self, name: str, threads: list[str]) -> None:
        """Begin a chat for each caller."""
        self._configs = self._together([self._talks[name].begin(thread) for thread in threads])

    def serve(self, name: str) -> int:
        """Continue all chats concurrently.

        Returns:
            Number of calls made.
        """
        with settled():
            return sum(self._together([self._talks[name].go_on(config) for config in self._configs]))

    def check(self, name: str) -> None:
        """Check that all threads have their messages."""
        self._together([self._talks[name].check(config) for config in self._configs])

    def _together(self, asked: list[Any]) -> list[Any]:
        async def gathered() -> list[Any]:
            return await asyncio.gather(*asked)

        return self._loop.run_until_complete(gathered())


def _follow(orders: Connection) -> None:
    """Run a process of callers: execute orders until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    warnings.filterwarnings("ignore", module="langgraph|langchain")
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        callers = Callers(loop, stack)
        with suppress(EOFError, BrokenPipeError):  # the parent is gone
            while True:
                method, arguments = orders.recv()
                try:
                    reply = True, getattr(callers, method)(*arguments)
                except Exception as error:
                    reply = False, f"{type(error).__name__}: {error}"
                orders.send(reply)


class CrowdFailed(Exception):
    """A process of callers failed."""


class Crowd:
    """Processes of callers that execute the same orders at the same time."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # so the imports are done once
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
        """Call a method in each process, with the same arguments or with its own.

        Raises:
            CrowdFailed: A process failed.
        """
        each = arguments if len(arguments) > 1 else arguments * len(self._running)
        for (_, orders), given in zip(self._running, each, strict=True):
            orders.send((method, given))
        replies = [orders.recv() for _, orders in self._running]
        for worked, reply in replies:
            if not worked:
                raise CrowdFailed(reply)
        return [reply for _, reply in replies]
