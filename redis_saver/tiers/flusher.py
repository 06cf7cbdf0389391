"""Who brings to cold what only hot has: a thread of the process, or a task of its event loop.

Every so often it asks for what other processes left, and brings to cold what is due, several conversations at a time. What goes wrong is
counted (`Stats.last_error`) and tried again: nobody waits for it whom an error could be raised to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING

from typing_extensions import Self

from redis_saver import drivers
from redis_saver.tiers import lag
from redis_saver.tiers.flushing import Flushed, flush
from redis_saver.tiers.model import Stats

if TYPE_CHECKING:
    from redis_saver.tiers.aio import AsyncTieredSaver
    from redis_saver.tiers.sync import TieredSaver

_STEP = 0.05
"""Seconds between two tries, while all is waited for."""
_STEPS = 4
"""How often the flusher looks at what is due in the time for which it gathers records."""


class noting:  # noqa: N801 - used like a function
    """A context that keeps the error it ends with, instead of raising it.

    A cold saver may be anybody's and raise anything, and one conversation that cannot be brought to it must not keep the others.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


def _settle(behind: lag.Lag | None, counts: Stats, thread: str, done: Flushed | None, error: Exception | None) -> None:
    """Note what came of a turn at a thread."""
    failed = [error] if error else list(done.failed) if done else []
    if failed:
        counts.last_error = f"{type(failed[0]).__name__}: {failed[0]}"
    if behind:
        settled = done.brought + done.spared if done else 0
        behind.settled(thread, settled, done.left if done else 1, failed=bool(failed))


def _after(timeout: float | None) -> Callable[[], bool]:
    """Whether so many seconds are over from now on."""
    deadline = None if timeout is None else time.monotonic() + timeout
    return lambda: deadline is not None and time.monotonic() >= deadline


class Flusher:
    """A thread of the process, and workers of its."""

    def __init__(self, saver: TieredSaver) -> None:
        """Begin with `start`. Ends by itself when the saver is no longer used."""
        self._saver = weakref.ref(saver)
        self._thread: threading.Thread | None = None
        self._process = 0
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start, unless it is at work or was stopped; after a fork it starts anew."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process != os.getpid() and not self._stopped.is_set():
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._work, name="redis_saver flusher", daemon=True)
                self._thread.start()

    def stop(self, timeout: float) -> None:
        """End, after what is under way, if that is over in so many seconds."""
        self._stopped.set()
        if self._thread and self._process == os.getpid():
            self._thread.join(timeout)

    def _work(self) -> None:
        looked = 0.0
        with ThreadPoolExecutor(self._workers(), thread_name_prefix="redis_saver flusher") as pool:
            while (
                (saver := self._saver()) is not None
                and saver.behind
                and not self._stopped.wait(saver.behind.every / _STEPS)
            ):
                if time.monotonic() - looked >= saver.behind.every:
                    looked = time.monotonic()
                    with noting() as noted:
                        saver.behind.found(drivers.run(lag.look_in_turn(saver), saver._exchange))  # noqa: SLF001
                    if noted.error:
                        saver.counts.last_error = f"{type(noted.error).__name__}: {noted.error}"
                list(pool.map(lambda thread, saver=saver: self._brings(saver, thread), saver.behind.due()))
                del saver

    def _brings(self, saver: TieredSaver, thread: str) -> int:
        return 0 if self._stopped.is_set() else self._bring(saver, thread)

    def _workers(self) -> int:
        saver = self._saver()
        return saver.flush_workers if saver else 1

    def _bring(self, saver: TieredSaver, thread: str, *, at_once: bool = False) -> int:
        """Bring some of a thread to cold; answers how many records."""
        done = None
        with noting() as noted:
            done = drivers.run(flush(saver, thread, at_once=at_once), saver._exchange)  # noqa: SLF001
        _settle(saver.behind, saver.counts, thread, done, noted.error)
        return done.brought + done.spared if done else 0

    def drain(self, timeout: float | None) -> int:
        """Bring all threads to cold; answers how many records are left when the time is up."""
        saver = self._saver()
        if saver is None:
            return 0
        late, is_late = _after(timeout), False

        def bring(thread: str) -> int:
            return 0 if late() else self._bring(saver, thread, at_once=True)

        with ThreadPoolExecutor(saver.flush_workers, thread_name_prefix="redis_saver flush") as pool:
            while True:
                found = drivers.run(lag.look(saver), saver._exchange)  # noqa: SLF001
                if not found.records or is_late:
                    return found.records
                brought = sum(pool.map(bring, found.threads))
                is_late = late()
                if not (brought or is_late):
                    time.sleep(_STEP)


class AsyncFlusher:
    """A task of the event loop."""

    def __init__(self, saver: AsyncTieredSaver) -> None:
        """Begin with `start`. Ends by itself when the saver is no longer used, and with its loop."""
        self._saver = weakref.ref(saver)
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Event | None = None
        self._stopped = False

    def start(self) -> None:
        """Start on the running loop, unless it is at work or was stopped; where its loop is over, it starts anew."""
        task = self._task
        if self._stopped or (task and not task.done() and not task.get_loop().is_closed()):
            return
        self._task = asyncio.get_running_loop().create_task(self._work(), name="redis_saver flusher")

    async def stop(self, timeout: float) -> None:
        """End, after what is under way, if that is over in so many seconds."""
        self._stopped = True
        if self._stopping:
            self._stopping.set()
        if self._task and not self._task.done() and self._task.get_loop() is asyncio.get_running_loop():
            _, running = await asyncio.wait([self._task], timeout=timeout)
            for task in running:
                task.cancel()

    async def _work(self) -> None:
        looked, self._stopping = 0.0, asyncio.Event()
        while (saver := self._saver()) is not None and saver.behind and not self._stopped:
            if time.monotonic() - looked >= saver.behind.every:
                looked = time.monotonic()
                with noting() as noted:
                    saver.behind.found(await drivers.arun(lag.look_in_turn(saver), saver._aexchange))  # noqa: SLF001
                if noted.error:
                    saver.counts.last_error = f"{type(noted.error).__name__}: {noted.error}"
            await self._bring_all(saver, saver.behind.due(), lambda: self._stopped)
            pause = saver.behind.every / _STEPS
            del saver
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _bring_all(
        self, saver: AsyncTieredSaver, threads: list[str], ended: Callable[[], bool], *, at_once: bool = False
    ) -> int:
        """Bring some of each thread to cold, until that is ended; answers how many records."""
        left = takewhile(lambda _: not ended(), threads)

        async def work() -> int:
            return sum([await self._bring(saver, thread, at_once=at_once) for thread in left])

        return sum(await asyncio.gather(*(work() for _ in range(min(saver.flush_workers, len(threads))))))

    async def _bring(self, saver: AsyncTieredSaver, thread: str, *, at_once: bool) -> int:
        done = None
        with noting() as noted:
            done = await drivers.arun(flush(saver, thread, at_once=at_once), saver._aexchange)  # noqa: SLF001
        _settle(saver.behind, saver.counts, thread, done, noted.error)
        return done.brought + done.spared if done else 0

    async def drain(self, timeout: float | None) -> int:
        """Bring all threads to cold; answers how many records are left when the time is up."""
        saver = self._saver()
        if saver is None:
            return 0
        late, is_late = _after(timeout), False
        while True:
            found = await drivers.arun(lag.look(saver), saver._aexchange)  # noqa: SLF001
            if not found.records or is_late:
                return found.records
            brought = await self._bring_all(saver, found.threads, late, at_once=True)
            is_late = late()
            if not (brought or is_late):
                await asyncio.sleep(_STEP)
