"""The workers of the flusher: OS threads of the process.

Each worker takes a thread (a conversation) that is due, flushes some of it, and takes the next. So a thread that takes
long does not hold up the others. Every few seconds one worker also scans for what other processes left. No caller is
waiting, so errors go to `Stats.last_error`, and the worker tries again. If cold is bound to an event loop, the workers
send it their calls there.

A worker survives any error. If it ends all the same (a cold saver raised SystemExit), another one takes its place.
`Stats.worker_errors` counts both.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType

from redis_saver._common import forks
from redis_saver._common.logs import ignoring, log_text
from redis_saver._engine.requests import Call, Command, Sleep
from redis_saver._tiered import backlog, scripts
from redis_saver._tiered.backlog import FlushQueue, Scanned
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.drivers import AsyncTieredDriver, SyncTieredDriver
from redis_saver._tiered.flushing import flush
from redis_saver._tiered.requests import Attempt, Parallel, Tiered, capturing
from redis_saver._tiered.stats import Counts
from redis_saver.errors import LoopEnded

_STEPS = 4
"""Number of times per `flush_interval` that a worker looks for a thread that is due."""
_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""Shortest and longest pause between two tries of a drain, in seconds. It doubles with each try."""
TO_END = 1.0
"""Seconds for which a call that has begun may go on when the time is up."""
_SCANS = 3
"""Failed scans in a row after which a drain gives up."""


class _surviving(ignoring):  # noqa: N801 - used like a function
    """A context in which a worker survives an error, and counts it."""

    def __init__(self, counts: Counts) -> None:
        super().__init__("a worker of the flusher")
        self._counts = counts

    def __exit__(self, _: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is not None:
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
    yield from flush_some(tiers, thread)
    return True


def flush_some(tiers: Tiers, thread: str, *, at_once: bool = False, seconds: float = math.inf) -> Tiered[int]:
    """Flush some of a thread, as `flush` does. Returns the number of records that are done: flushed or coalesced."""
    flushed = None
    with capturing() as captured:
        flushed = yield from flush(tiers, thread, at_once=at_once, seconds=seconds)
    failed = captured.error or (flushed.failed[0] if flushed and flushed.failed else None)
    if failed:
        tiers.counts.last_error = log_text(failed)
    acked = flushed.brought + flushed.coalesced if flushed else 0
    if tiers.flush_queue:
        left, is_refused = (flushed.left, flushed.is_refused) if flushed else (1, False)
        tiers.flush_queue.after_claim(thread, acked, left, failed, is_refused=is_refused)
    return acked


def drain(tiers: Tiers, workers: int, timeout: float | None) -> Tiered[int]:
    """Flush all threads until the time is up. Returns the number of records that are left."""
    deadline, pause = math.inf if timeout is None else time.monotonic() + timeout, _MIN_PAUSE

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    while (scanned := (yield from _scan(tiers, left))).records and left():
        waiting = iter(scanned.threads)

        def take() -> Tiered[int] | None:
            thread = next(waiting, None) if left() else None  # noqa: B023 - a late worker finds that the time is up
            return None if thread is None else flush_some(tiers, thread, at_once=True, seconds=left())

        try:
            done = yield Parallel(take, min(workers, len(scanned.threads)), deadline + TO_END)
        finally:
            scanned.threads.clear()  # if the caller is cancelled, flushes under way end, and no more begin
        if any(done):
            pause = _MIN_PAUSE
        else:
            yield Sleep(min(left(), pause))
            pause = min(_MAX_PAUSE, 2 * pause)
    return scanned.records


def _scan(tiers: Tiers, left: Callable[[], float]) -> Tiered[Scanned]:
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
        yield Sleep(min(left(), failures * _MIN_PAUSE))


class Flusher:
    """The flusher of a saver in this process."""

    def __init__(self, saver: object, tiers: Tiers, driver: SyncTieredDriver | AsyncTieredDriver, workers: int) -> None:
        """Begin with `start`. Ends by itself when the saver is no longer used."""
        self._saver, self._tiers, self._driver = weakref.ref(saver), tiers, driver
        self.workers: int = workers
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
        if len(self._threads) == self.workers or self._stopped.is_set():
            return
        with self._lock:
            while self._is_used and len(self._threads) < self.workers:
                arguments = (self._threads, self._stopped)
                thread = threading.Thread(target=self._work, args=arguments, name="redis_saver flusher", daemon=True)
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
        deadline = time.monotonic() + timeout + TO_END
        self._stopped.set()
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def _is_used(self) -> bool:
        """True if somebody may still write by the saver: it exists, and the process does not end."""
        return self._saver() is not None and threading.main_thread().is_alive()

    def _work(self, threads: list[threading.Thread], stopped: threading.Event) -> None:
        try:
            while not stopped.is_set() and self._is_used and (queue := self._tiers.flush_queue):
                is_idle = True
                with _surviving(self._tiers.counts), contextlib.suppress(LoopEnded):  # cold may have another loop next
                    is_idle = not self._driver.run_beside(_step(self._tiers, queue))
                if is_idle:
                    stopped.wait(queue.flush_interval / _STEPS)
        finally:
            with self._lock:
                threads.remove(threading.current_thread())
            self.start()  # does nothing if it was stopped, or the saver is no longer used
