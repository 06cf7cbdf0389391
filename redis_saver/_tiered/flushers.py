"""The workers of the flusher: OS threads of the process, or tasks of its event loop.

Each worker takes a thread (a conversation) that is due, flushes some of it, and takes the next. So a thread that takes
long does not hold up the others. Every few seconds one worker also scans for what other processes left. No caller is
waiting, so errors go to `Stats.last_error`, and the worker tries again.

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

from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver
from redis_saver._client import loops
from redis_saver._common import forks
from redis_saver._common.logs import ignoring, log_text
from redis_saver._engine.requests import Call, Command, Sleep
from redis_saver._tiered import backlog, scripts
from redis_saver._tiered.backlog import FlushQueue, Scanned
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.flushing import flush
from redis_saver._tiered.requests import Attempt, Tiered, capturing
from redis_saver._tiered.saver import TwoTiers, driver_over, tiers_of
from redis_saver._tiered.stats import Counts
from redis_saver.errors import LoopEnded

_STEPS = 4
"""Number of times per `flush_interval` that a worker looks for a thread that is due."""
_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""Shortest and longest pause between two tries of a drain, in seconds. It doubles with each try."""
TO_END = 1.0
"""Seconds for which a call that has begun may go on when the time is up."""
BETWEEN_FLUSHES = 0.1
"""Seconds between the flushes of a saver that closes while calls are under way."""
_SCANS = 3
"""Failed scans in a row after which a drain gives up."""


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


def scan_in_turn(tiers: Tiers) -> Tiered[list[str]]:
    """Scan for dirty threads, if it is time for a scan and no other process scans.

    After an error the scan lease is given up. If hot does not answer, this process may scan when it asks again.
    """
    key, began = tiers.hot.keyspace.scanning, time.monotonic()
    token, is_scanning = tiers.leases.token(key), False
    try:
        is_scanning = bool((yield Call(scripts.PUBLISH, (key,), (token, backlog.SCAN_LEASE, b"1"))))
        if not is_scanning:
            yield from tiers.backlog.report()
            return []
        scanned = yield from tiers.backlog.scan(renews_lease=True)
        pause = max(backlog.SCAN_INTERVAL, 20 * (time.monotonic() - began))
        yield Call(scripts.PUBLISH, (key,), (b"", int(1000 * pause), b""))
    except BaseException as error:
        tiers.leases.keep(key, token)
        if is_scanning and isinstance(error, Exception):
            yield Attempt(Command(("UNLINK", key)))
        raise
    return scanned.threads


def _step(tiers: Tiers, queue: FlushQueue) -> Tiered[bool]:
    """Scan if it is time, and flush some of a thread that is due. Returns True if one was due."""
    if queue.is_time_to_scan():
        with capturing() as captured:
            queue.add_dirty((yield from scan_in_turn(tiers)))
        if captured.error:
            tiers.counts.last_error = log_text(captured.error)
    if (thread := queue.due()) is None:
        return False
    yield from flush_some(tiers, queue, thread)
    return True


def flush_some(
    tiers: Tiers, queue: FlushQueue | None, thread: str, *, at_once: bool = False, seconds: float = math.inf
) -> Tiered[int]:
    """Flush some of a thread. Returns the number of records that are done: flushed or coalesced.

    Args:
        tiers: The saver.
        queue: Its flush queue. None for a saver without one, which only flushes what others left.
        thread: The thread.
        at_once: As for `flush`.
        seconds: As for `flush`.
    """
    flushed = None
    with capturing() as captured:
        flushed = yield from flush(tiers, thread, at_once=at_once, seconds=seconds)
    failed = captured.error or (flushed.failed[0] if flushed and flushed.failed else None)
    if failed:
        tiers.counts.last_error = log_text(failed)
    acked = flushed.brought + flushed.coalesced if flushed else 0
    if queue:
        left, is_refused = (flushed.left, flushed.is_refused) if flushed else (1, False)
        queue.after_claim(thread, acked, left, failed, is_refused=is_refused)
    return acked


def _scan(tiers: Tiers, left: Callable[[], float], pauses: Iterator[float]) -> Tiered[Scanned]:
    """Scan for a drain, again after a failure.

    Raises:
        Exception: It failed three times in a row, or the time is up.
    """
    failures = 0
    while True:
        try:
            return (yield from tiers.backlog.scan())
        except Exception as error:
            failures += 1
            tiers.counts.last_error = log_text(error)
            if failures == _SCANS or not left():
                raise
        yield Sleep(min(left(), next(pauses)))


def _left_of(timeout: float | None) -> Callable[[], float]:
    """Return a function that returns the seconds that are left."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    return lambda: max(0.0, deadline - time.monotonic())


def _pauses() -> Iterator[float]:
    """Yield the pauses between tries that flushed nothing, in seconds."""
    pause = _MIN_PAUSE
    while True:
        yield pause
        pause = min(_MAX_PAUSE, 2 * pause)


class Flusher:
    """A flusher whose workers are OS threads of the process."""

    def __init__(self, saver: TwoTiers[RedisSaver], queue: FlushQueue | None, workers: int) -> None:
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
        """Stop. Wait at most `timeout` seconds for calls under way."""
        left = _left_of(timeout)
        self._stopped.set()
        for thread in list(self._threads):
            thread.join(left() + TO_END)

    def _work(self, threads: list[threading.Thread], stopped: threading.Event) -> None:
        try:
            while not stopped.is_set() and (saver := self._saver()) is not None and (queue := self._queue):
                is_idle = True
                with _surviving(tiers_of(saver).counts):
                    is_idle = not driver_over(saver).run(_step(tiers_of(saver), queue))
                del saver
                if is_idle:
                    stopped.wait(queue.flush_interval / _STEPS)
        finally:
            with self._lock:
                threads.remove(threading.current_thread())
            self.start()  # does nothing if it was stopped, or the saver is no longer used

    def drain(self, saver: TwoTiers[RedisSaver], timeout: float | None) -> int:
        """Flush all threads until the time is up. Returns the number of records that are left."""
        left, pauses = _left_of(timeout), _pauses()
        while (scanned := driver_over(saver).run(_scan(tiers_of(saver), left, pauses))).records and left():
            if self._flush_all(saver, scanned.threads, left):
                pauses = _pauses()
            else:
                time.sleep(min(left(), next(pauses)))
        return scanned.records

    def _flush_all(self, saver: TwoTiers[RedisSaver], threads: list[str], left: Callable[[], float]) -> int:
        """Flush some of each thread, in OS threads of its own. Returns the number of records that are done."""
        tiers, driver = tiers_of(saver), driver_over(saver)
        waiting, done = SimpleQueue[str](), list[int]()
        for thread in threads:
            waiting.put(thread)

        def work() -> None:
            with contextlib.suppress(Empty):
                while left():
                    operation = flush_some(tiers, self._queue, waiting.get_nowait(), at_once=True, seconds=left())
                    done.append(driver.run(operation))

        helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(self._workers, len(threads)))]
        try:
            for helper in helpers:
                helper.start()
        except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
            work()
        for helper in helpers:
            if helper.ident is not None:
                helper.join(None if math.isinf(left()) else left() + TO_END)
        return sum(done)


class AsyncFlusher:
    """A flusher whose workers are tasks of an event loop."""

    def __init__(self, saver: TwoTiers[AsyncRedisSaver], queue: FlushQueue | None, workers: int) -> None:
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
        """Stop. Wait at most `timeout` seconds for calls under way."""
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
                is_idle = not await driver_over(saver).arun(_step(tiers_of(saver), queue))
            del saver
            if is_idle:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stopping.wait(), queue.flush_interval / _STEPS)

    async def drain(self, saver: TwoTiers[AsyncRedisSaver], timeout: float | None) -> int:
        """Flush all threads until the time is up. Returns the number of records that are left."""
        left, pauses = _left_of(timeout), _pauses()
        while (scanned := await driver_over(saver).arun(_scan(tiers_of(saver), left, pauses))).records and left():
            if await self._flush_all(saver, scanned.threads, left):
                pauses = _pauses()
            else:
                await asyncio.sleep(min(left(), next(pauses)))
        return scanned.records

    async def _flush_all(self, saver: TwoTiers[AsyncRedisSaver], threads: list[str], left: Callable[[], float]) -> int:
        """Flush some of each thread, in tasks of its own. Returns the number of records that are done."""
        tiers, driver = tiers_of(saver), driver_over(saver)
        waiting, done = takewhile(lambda _: left() > 0, threads), list[int]()

        async def work() -> None:
            for thread in waiting:
                operation = flush_some(tiers, self._queue, thread, at_once=True, seconds=left())
                done.append(await driver.arun(operation))

        workers = [asyncio.ensure_future(work()) for _ in range(min(self._workers, len(threads)))]
        try:
            await _in_time(workers, None if math.isinf(left()) else left() + TO_END)
        finally:
            threads.clear()  # if the caller is cancelled, flushes under way end by themselves, and no more begin
        return sum(done)


async def _in_time(tasks: Collection[asyncio.Task[None]], timeout: float | None) -> None:
    """Wait for tasks, and cancel those that are not done in time."""
    _, running = await asyncio.wait(tasks, timeout=timeout)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
