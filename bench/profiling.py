"""Processor time of a chat turn by category, and the rest of the elapsed time.

The serializer, the saver's methods and the client's are wrapped. Each moment of an OS thread counts for the innermost
wrapper; all other processor time counts for LangGraph. Coroutines are timed step by step, so waiting does not count.
Other load on the machine disturbs processor time least.
"""

from __future__ import annotations

import asyncio
import cProfile
import inspect
import pstats
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import wraps
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from bench import graphs
from bench.contestants import Contestant
from bench.history import following
from bench.measuring import Run
from bench.prepared import Prepared, chat_recording, check_chat

ENCODE, DECODE = "encode: serializer.dumps_typed", "decode: serializer.loads_typed"
OWN, CLIENT, LANGGRAPH = "the saver's own code", "the client library", "LangGraph, nodes and the rest"
WARM, FUNCTIONS, REPLAYS = 5, 25, 100


class Ledger:
    """Processor seconds by category."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._lock, self._local = threading.Lock(), threading.local()

    def enter(self, kind: str) -> None:
        stack = self._local.__dict__.setdefault("stack", [])
        stack.append([kind, time.thread_time(), 0.0])

    def leave(self) -> None:
        stack = self._local.stack
        kind, start, inside = stack.pop()
        spent = time.thread_time() - start
        if stack:
            stack[-1][2] += spent
        with self._lock:
            self.seconds[kind] += spent - inside

    def wrap(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function or a coroutine function, so that its time is counted."""

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.enter(kind)
            try:
                result = function(*args, **kwargs)
            finally:
                self.leave()
            with self._lock:
                self.calls[kind] += 1
            return self._steps(kind, result) if inspect.isawaitable(result) else result

        if not inspect.iscoroutinefunction(function):
            return wrapped

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await wrapped(*args, **kwargs)

        return awaited

    def _steps(self, kind: str, awaitable: Any) -> Any:
        ledger = self

        class Steps:
            def __await__(self) -> Generator[Any, Any, Any]:
                steps = awaitable.__await__()
                resume, value = steps.send, None
                while True:
                    ledger.enter(kind)
                    try:
                        waited_for = resume(value)
                    except StopIteration as end:
                        return end.value
                    finally:
                        ledger.leave()
                    try:
                        resume, value = steps.send, (yield waited_for)
                    except BaseException as error:  # a timeout inside the call cancels what it waits for
                        resume, value = steps.throw, error

        return Steps()


def hooks(contestant: Contestant, asynchronous: bool) -> list[tuple[str, Any, str]]:
    """Return what to wrap: category, object and attribute."""
    saver, prefix = (contestant.asaver, "a") if asynchronous else (contestant.saver, "")
    found = [(OWN, saver, f"{prefix}{name}") for name in ("get_tuple", "put", "put_writes")]
    found += [(ENCODE, saver.serde, "dumps_typed"), (DECODE, saver.serde, "loads_typed")]
    if contestant.raw:
        client = contestant.raw[asynchronous]
        connection = client.connection_pool.connection_class
        found.append((CLIENT, client, "execute_command"))
        found += [(CLIENT, connection, name) for name in ("send_packed_command", "read_response")]
    return found


def profile(
    contestant: Contestant,
    loop: asyncio.AbstractEventLoop,
    messages: int,
    asynchronous: bool,
    seconds: float,
    console: Console,
) -> None:
    """Print the categories of a turn's time, and the saver's slowest functions."""
    run, prepared = Run([contestant], loop), chat_recording(contestant, messages).play()
    graph = graphs.chat(contestant.asaver if asynchronous else contestant.saver, asynchronous=asynchronous)
    question = {"messages": [following(prepared.recording.puts[-1][0]["channel_values"]["messages"][-1])]}

    def turn(ledger: Ledger | None = None) -> tuple[float, float]:
        prepared.reset()
        with ExitStack() as stack:
            for kind, owner, name in hooks(contestant, asynchronous) if ledger else []:
                stack.enter_context(patch.object(owner, name, ledger.wrap(kind, getattr(owner, name))))
            if asynchronous:
                taken, state = run.atimed(lambda: graph.ainvoke(question, prepared.config, durability="sync"))
            else:
                taken, state = run.timed(lambda: graph.invoke(question, prepared.config, durability="sync"))
        check_chat(state, messages + 4)
        return taken, run.processor

    for _ in range(WARM):
        turn()
    plain, looked_at, ledger = list[tuple[float, float]](), list[float](), Ledger()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        plain.append(turn())
        looked_at.append(turn(ledger)[1])
    show_shares(contestant.name, plain, ledger, looked_at, console)
    show_functions(run, contestant, prepared, asynchronous, console)
    contestant.clear()


def show_shares(
    name: str, plain: list[tuple[float, float]], ledger: Ledger, looked_at: list[float], console: Console
) -> None:
    wall, used = (statistics.median(each) * 1000 for each in zip(*plain, strict=True))
    total, count = sum(looked_at), len(looked_at)
    ledger.seconds[LANGGRAPH] = total - sum(ledger.seconds.values())
    table = Table("processor time of a turn", "share", "ms", "calls a turn", title_justify="left")
    table.title = f"{name}: a turn takes {wall:.2f} ms, {used:.2f} ms of processor time"
    for kind, spent in ledger.seconds.most_common():
        calls = f"{ledger.calls[kind] / count:g}" if ledger.calls[kind] else ""
        table.add_row(kind, f"{spent / total:.1%}", f"{spent / total * used:.3f}", calls)
    table.add_row("waiting: the clock less the processor time", "", f"{wall - used:.3f}", "")
    console.print(table)


def show_functions(run: Run, contestant: Contestant, prepared: Prepared, asynchronous: bool, console: Console) -> None:
    """Profile the saver's part of a turn, without LangGraph: one get_tuple, and puts of one more message each."""
    saver, profiler = contestant.saver, cProfile.Profile()
    new = prepared.recording.contestant.saver.get_next_version
    for _ in range(REPLAYS):
        prepared.reset()
        profiler.enable()
        found: Any = (
            run.wait(contestant.asaver.aget_tuple(prepared.config))
            if asynchronous
            else saver.get_tuple(prepared.config)
        )
        profiler.disable()
        config, checkpoint = found.config, found.checkpoint
        for step in range(4):
            messages = checkpoint["channel_values"]["messages"]
            versions = {"messages": new(checkpoint["channel_versions"]["messages"], None)}
            checkpoint = {
                **checkpoint,
                "id": prepared.new_id(),
                "channel_values": {**checkpoint["channel_values"], "messages": [*messages, following(messages[-1])]},
                "channel_versions": {**checkpoint["channel_versions"], **versions},
            }
            metadata: Any = {"source": "loop", "step": step, "parents": {}}
            profiler.enable()
            if asynchronous:
                config = run.wait(contestant.asaver.aput(config, checkpoint, metadata, versions))
            else:
                config = saver.put(config, checkpoint, metadata, versions)
            profiler.disable()
    stats: Any = pstats.Stats(profiler)
    table = Table("function", "calls", "ms", "ms with what it calls", title_justify="left")
    table.title = "get_tuple and four puts, without LangGraph, by cProfile (Python functions look slower than they are)"
    by_own_time = sorted(stats.stats.items(), key=lambda each: -each[1][2])
    for (file, line, function), (_, calls, own, inclusive, _) in by_own_time[:FUNCTIONS]:
        where = f"{'/'.join(file.split('/')[-2:])}:{line} {function}" if line else function
        table.add_row(where, f"{calls / REPLAYS:g}", f"{own / REPLAYS * 1000:.3f}", f"{inclusive / REPLAYS * 1000:.3f}")
    console.print(table)
