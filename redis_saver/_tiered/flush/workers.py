"""The workers of the flusher: OS threads of the process, or tasks of its event loop.

Each worker takes a thread (a conversation) that is due, flushes it, and takes the next. So a thread that takes long does not keep the others. Now and then one
of them also scans for what other processes left. No caller is waiting, so errors go to `Stats.last_error`, and the worker tries again.

A worker survives any error. If it ends all the same (a cold saver raised SystemExit, a task was cancelled), another one
takes its place: an OS thread at once, a task with the next call on the saver. `Stats.worker_errors` counts both.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from itertools import takewhile
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis_saver._client import loops
from redis_saver._common import forks
from redis_saver._common.logs import ignoring, log_text
from redis_saver._tiered.capturing import capturing
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.flush.queue import Backlog, FlushQueue, scan, scan_in_turn
from redis_saver._tiered.flush.run import Flushed, flush
from redis_saver._tiered.saver import driver_over, tiers_of
from redis_saver._tiered.stats import Counts
from redis_saver.errors import LoopEnded

if TYPE_CHECKING:
    from redis_saver._tiered.aio import AsyncTieredSaver
    from redis_saver._tiered.sync import TieredSaver

_STEPS = 4
"""How often in each `flush_interval` a worker looks whether a thread is due."""
_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""Seconds between two tries of a drain; the pause grows from the first to the second."""


TO_END = 1.0
"""Seconds for which a call that has begun may go on when the time is up."""
BETWEEN_FLUSHES = 0.1
"""Seconds between the flushes of a saver that closes while calls are under way."""
_SCANS = 3
"""How many scans in a row may fail before a drain gives up."""


class _surviving(ignoring):  # noqa: N801 - used like a function
    """A context in which a worker survives an error, and counts it."""

    def __init__(self, counts: Counts) -> None:
        super().__init__("a worker of the flusher")
        self._counts = counts

    def __exit__(self, _: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is not None and not isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self._counts.worker_errors += 1
            self._counts.last_error = type(error).__name__
        return super().__exit__(None, error, traceback)


def _after_claim(
    tiers: Tiers, queue: FlushQueue | None, thread: str, done: Flushed | None, error: Exception | None
) -> int:
    """Note the result of a claim of a thread. Returns how many records are done: flushed or coalesced."""
    failed = error or (done.failed[0] if done and done.failed else None)
    if failed:
        tiers.counts.last_error = log_text(failed)
    acked = done.brought + done.coalesced if done else 0
    if queue:  # a saver without a queue flushes what others left, when it is asked to
        queue.after_claim(thread, acked, done.left if done else 1, failed, is_refused=bool(done and done.is_refused))
    return acked


class _Scans:
    """The scans of a drain, some of which may fail."""

    def __init__(self, tiers: Tiers, left: Callable[[], float]) -> None:
        self._tiers, self._left, self._failed = tiers, left, 0

    def have_failed(self, error: Exception | None) -> bool:
        """Whether this scan failed and is to be tried again.

        Raises:
            Exception: It is the third failure in a row, or the time is up.
        """
        self._failed = self._failed + 1 if error else 0
        if error:
            self._tiers.counts.last_error = log_text(error)
            if self._failed == _SCANS or not self._left():
                raise error
        return bool(error)


def _left_of(timeout: float | None) -> Callable[[], float]:
    """A function that says how many of these seconds are left."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    return lambda: max(0.0, deadline - time.monotonic())


def _pauses() -> Iterator[float]:
    """The pauses, in seconds, between tries that flushed nothing."""
    pause = _MIN_PAUSE
    while True:
        yield pause
        pause = min(_MAX_PAUSE, 2 * pause)


class Flusher:
    """A flusher whose workers are OS threads of the process."""

    def __init__(self, saver: TieredSaver, queue: FlushQueue | None, workers: int) -> None:
        """Begin with `start`. Ends by itself when the saver is no longer used."""
        self._saver, self._queue, self._workers = weakref.ref(saver), queue, workers
        self._stopped = threading.Event()
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Start with the next call on the saver, unless it was stopped."""
        stopped, self._stopped = self._stopped.is_set(), threading.Event()
        if stopped:
            self._stopped.set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the workers that are not at work, unless it was stopped."""
        if len(self._threads) == self._workers or self._stopped.is_set():
            return
        with self._lock:
            while self._saver() is not None and len(self._threads) < self._workers:
                thread = threading.Thread(
                    target=self._work, args=(self._threads, self._stopped), name="redis_saver flusher", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def again(self) -> None:
        """Start after it was stopped, too."""
        with self._lock:
            if self._stopped.is_set():
                self._stopped, self._threads = threading.Event(), []
        self.start()

    def stop(self, timeout: float) -> None:
        """Stop. Wait `timeout` seconds at the most for what is under way."""
        left = _left_of(timeout)
        self._stopped.set()
        for thread in list(self._threads):
            thread.join(left() + TO_END)

    def _work(self, threads: list[threading.Thread], stopped: threading.Event) -> None:
        try:
            while not stopped.is_set() and (saver := self._saver()) is not None and (queue := self._queue):
                is_idle = True
                with _surviving(tiers_of(saver).counts):
                    is_idle = not self._step(saver, queue)
                del saver
                if is_idle:
                    stopped.wait(queue.flush_interval / _STEPS)
        finally:
            with self._lock:
                threads.remove(threading.current_thread())
            self.start()  # does nothing if it was stopped, or the saver is no longer used

    def _step(self, saver: TieredSaver, queue: FlushQueue) -> bool:
        """Scan if it is time, and flush some of a thread that is due. Returns whether one was due."""
        if queue.is_time_to_scan():
            with capturing() as captured:
                queue.found(driver_over(saver).run(scan_in_turn(tiers_of(saver))))
            if captured.error:
                tiers_of(saver).counts.last_error = log_text(captured.error)
        if (thread := queue.due()) is not None:
            self._bring(saver, thread)
        return thread is not None

    def _bring(self, saver: TieredSaver, thread: str, **how: Any) -> int:
        """Flush some of a thread. Returns how many records are done."""
        done = None
        with capturing() as captured:
            done = driver_over(saver).run(flush(tiers_of(saver), thread, **how))
        return _after_claim(tiers_of(saver), self._queue, thread, done, captured.error)

    def drain(self, saver: TieredSaver, timeout: float | None) -> int:
        """Flush all threads. Returns how many records are left when the time is up; after that nothing is claimed."""
        left, pauses = _left_of(timeout), _pauses()
        scans, found = _Scans(tiers_of(saver), left), Backlog([], 0, 0, 0)
        while True:
            with capturing() as captured:
                found = driver_over(saver).run(scan(tiers_of(saver)))
            if not scans.have_failed(captured.error) and (not found.records or not left()):
                return found.records
            if not captured.error and self._bring_all(saver, found.threads, left):
                pauses = _pauses()
            else:
                time.sleep(min(left(), next(pauses)))

    def _bring_all(self, saver: TieredSaver, threads: list[str], left: Callable[[], float]) -> int:
        """Flush some of each thread, with helpers. Returns how many records are done."""
        waiting, brought = SimpleQueue[str](), []
        for thread in threads:
            waiting.put(thread)

        def work() -> None:
            with contextlib.suppress(Empty):
                while left():
                    brought.append(self._bring(saver, waiting.get_nowait(), at_once=True, seconds=left()))

        helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(self._workers, len(threads)))]
        try:
            for helper in helpers:
                helper.start()
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            work()
        for helper in helpers:
            if helper.ident is not None:
                helper.join(None if math.isinf(left()) else left() + TO_END)
        return sum(brought)


class AsyncFlusher:
    """A flusher whose workers are tasks of an event loop."""

    def __init__(self, saver: AsyncTieredSaver, queue: FlushQueue | None, workers: int) -> None:
        """Begin with `run`. Ends by itself when the saver is no longer used, and with its loop."""
        self._saver, self._queue, self._workers = weakref.ref(saver), queue, workers
        self._stopped = False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Start with the next call on the saver, unless it was stopped."""
        self._lock = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_at_work(self) -> bool:
        """True if there is nothing to start: all workers are at work on a loop that runs, or it was stopped."""
        return self._stopped or (self._is_running and not any(task.done() for task in self._tasks))

    @property
    def _is_running(self) -> bool:
        return self._loop is not None and self._loop.is_running()

    async def run(self) -> None:
        """Start on the running loop, unless it works on one that runs, or was stopped.

        If cold answers on every loop, start on the background loop, because other loops may end soon.
        """
        if self.is_at_work:
            return
        if (saver := self._saver()) is None:
            return
        if getattr(saver.cold, "loop", None) is None:
            await loops.acall(self._start())
        else:
            await self._start()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.is_at_work or (saver := self._saver()) is None:
                return
            if self._loop is not loop or self._stopping is None:
                self._loop, self._stopping, self._tasks = loop, asyncio.Event(), []
            living = [task for task in self._tasks if not task.done()]
            tiers_of(saver).counts.worker_errors += len(self._tasks) - len(living)
            self._tasks = living + [
                loop.create_task(self._work(self._stopping), name="redis_saver flusher")
                for _ in range(self._workers - len(living))
            ]

    async def stop(self, timeout: float) -> None:
        """Stop. Wait `timeout` seconds at the most for what is under way."""
        self._stopped = True
        if self._is_running:
            with contextlib.suppress(LoopEnded):  # and the flusher has ended with it
                await loops.acall(self._stop(timeout), self._loop)

    async def _stop(self, timeout: float) -> None:
        if self._stopping is not None and self._tasks:
            self._stopping.set()
            await _in_time(self._tasks, timeout + TO_END)

    def again(self) -> None:
        """Let it start after it was stopped, too."""
        with self._lock:
            if self._stopped:
                self._stopped, self._loop = False, None

    async def _work(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set() and (saver := self._saver()) is not None and (queue := self._queue):
            is_idle = True
            with _surviving(tiers_of(saver).counts):
                is_idle = not await self._step(saver, queue)
            del saver
            if is_idle:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stopping.wait(), queue.flush_interval / _STEPS)

    async def _step(self, saver: AsyncTieredSaver, queue: FlushQueue) -> bool:
        """Scan if it is time, and flush some of a thread that is due. Returns whether one was due."""
        if queue.is_time_to_scan():
            with capturing() as captured:
                queue.found(await driver_over(saver).arun(scan_in_turn(tiers_of(saver))))
            if captured.error:
                tiers_of(saver).counts.last_error = log_text(captured.error)
        if (thread := queue.due()) is not None:
            await self._bring(saver, thread)
        return thread is not None

    async def _bring(self, saver: AsyncTieredSaver, thread: str, **how: Any) -> int:
        """Flush some of a thread. Returns how many records are done."""
        done = None
        with capturing() as captured:
            done = await driver_over(saver).arun(flush(tiers_of(saver), thread, **how))
        return _after_claim(tiers_of(saver), self._queue, thread, done, captured.error)

    async def drain(self, saver: AsyncTieredSaver, timeout: float | None) -> int:
        """Flush all threads. Returns how many records are left when the time is up; after that nothing is claimed."""
        left, pauses = _left_of(timeout), _pauses()
        scans, found = _Scans(tiers_of(saver), left), Backlog([], 0, 0, 0)
        while True:
            with capturing() as captured:
                found = await driver_over(saver).arun(scan(tiers_of(saver)))
            if not scans.have_failed(captured.error) and (not found.records or not left()):
                return found.records
            if not captured.error and await self._bring_all(saver, found.threads, left):
                pauses = _pauses()
            else:
                await asyncio.sleep(min(left(), next(pauses)))

    async def _bring_all(self, saver: AsyncTieredSaver, threads: list[str], left: Callable[[], float]) -> int:
        """Flush some of each thread. Returns how many records are done."""
        waiting, brought = takewhile(lambda _: left() > 0, threads), list[int]()

        async def work() -> None:
            for thread in waiting:
                brought.append(await self._bring(saver, thread, at_once=True, seconds=left()))

        workers = [asyncio.ensure_future(work()) for _ in range(min(self._workers, len(threads)))]
        try:
            await _in_time(workers, None if math.isinf(left()) else left() + TO_END)
        finally:
            threads.clear()  # where the caller is cancelled, what is under way ends by itself, and nothing more is claimed
        return sum(brought)


async def _in_time(tasks: Collection[asyncio.Task[None]], timeout: float | None) -> None:
    """Wait for tasks, and cancel those that are not done in time."""
    _, running = await asyncio.wait(tasks, timeout=timeout)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
