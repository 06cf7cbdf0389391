"""The flusher's workers: OS threads of the process.

Each worker takes a thread (a conversation) that is due, flushes some of its records, and takes the next thread. So a
slow thread does not hold up the others. Every few seconds one worker also scans for threads that other processes left
dirty. No caller waits for a worker: errors go to `Stats.last_error`, and the worker tries again. If cold is bound to an
event loop, the workers send their cold calls to that loop.

A worker survives any `Exception`. If another error ends it, such as a cold saver's SystemExit, a new worker replaces
it. `Stats.worker_errors` counts both.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable

from redis_saver._common import forks
from redis_saver._common.logs import ignoring
from redis_saver._engine.requests import Call, Command, Sleep
from redis_saver._tiered import backlog, scripts
from redis_saver._tiered.backlog import FlushQueue, Scanned
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.drivers import AsyncTieredDriver, SyncTieredDriver
from redis_saver._tiered.flushing import flush
from redis_saver._tiered.requests import Parallel, Tiered, attempt
from redis_saver.errors import LoopEnded

_STEPS = 4
"""Number of checks for a due thread per `flush_interval`."""
_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""Minimum and maximum pause between two tries of a drain, in seconds. The pause doubles with each try."""
TO_END = 1.0
"""Extra seconds for a call that is under way when the time is up."""
_SCANS = 3
"""Number of failed scans in a row after which a drain gives up."""


def scan_in_turn(tiers: Tiers) -> Tiered[list[str]]:
    """Scan for dirty threads, if a scan is due and no other process scans.

    After an error this process releases the scan lease. If hot does not answer, it keeps the lease's token and may scan
    at the next attempt.
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
            yield from attempt(Command(("UNLINK", key)))
        raise
    return scanned.threads


def _step(tiers: Tiers, queue: FlushQueue) -> Tiered[bool]:
    """Scan if a scan is due, then flush some records of a due thread. Returns False if no thread is due."""
    if queue.is_time_to_scan():
        try:
            for dirty in (yield from scan_in_turn(tiers)):
                queue.note(dirty, 0.0)
        except Exception as error:  # noqa: BLE001 - due threads are flushed all the same
            tiers.counts.last_error = tiers.log_text(error)
    if (thread := queue.due()) is None:
        return False
    is_paused = True
    try:
        is_paused = (yield from tiers.backlog.pause()) > 0
    finally:
        if is_paused:  # or hot does not answer
            queue.note(thread)
    if is_paused:
        return False
    yield from flush_some(tiers, thread)
    return True


def flush_some(tiers: Tiers, thread: str, *, at_once: bool = False, seconds: float = math.inf) -> Tiered[int]:
    """Flush some records of a thread, as `flush` does. Returns the number of records that were flushed or coalesced."""
    flushed, failed = None, None
    try:
        flushed = yield from flush(tiers, thread, at_once=at_once, seconds=seconds)
        failed = flushed.failed[0] if flushed and flushed.failed else None
    except Exception as error:  # noqa: BLE001 - it must not hold up other threads
        failed = error
    text = None if failed is None else tiers.log_text(failed)
    if text:
        tiers.counts.last_error = text
    acked = flushed.brought + flushed.coalesced if flushed else 0
    if tiers.flush_queue:
        left, is_refused = (flushed.left, flushed.is_refused) if flushed else (1, False)
        tiers.flush_queue.after_claim(thread, acked, left, text, is_refused=is_refused)
    return acked


def drain(tiers: Tiers, workers: int, timeout: float | None) -> Tiered[int]:
    """Flush all threads until nothing is left or the time is up. Returns the number of records that are left.

    Flushes nothing while flushing is paused.
    """
    deadline, pause = math.inf if timeout is None else time.monotonic() + timeout, _MIN_PAUSE

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    while (scanned := (yield from _scan(tiers, left))).records and left() and not (yield from tiers.backlog.pause()):
        waiting = iter(scanned.threads)

        def take() -> Tiered[int] | None:
            thread = next(waiting, None) if left() else None  # noqa: B023 - a late worker sees that the time is up
            return None if thread is None else flush_some(tiers, thread, at_once=True, seconds=left())

        try:
            done = yield Parallel(take, min(workers, len(scanned.threads)), deadline + TO_END)
        finally:
            scanned.threads.clear()  # after a cancellation no more flushes begin
        if any(done):
            pause = _MIN_PAUSE
        else:
            yield Sleep(min(left(), pause))
            pause = min(_MAX_PAUSE, 2 * pause)
    return scanned.records


def _scan(tiers: Tiers, left: Callable[[], float]) -> Tiered[Scanned]:
    """Scan for a drain, and retry a failed scan.

    Raises:
        Exception: Three scans in a row failed, or the time is up.
    """
    failures = 0
    while True:
        try:
            return (yield from tiers.backlog.scan())
        except Exception as error:
            failures += 1
            tiers.counts.last_error = tiers.log_text(error)
            if failures == _SCANS or not left():
                raise
        yield Sleep(min(left(), failures * _MIN_PAUSE))


class Flusher:
    """A saver's flusher in this process."""

    def __init__(self, saver: object, tiers: Tiers, driver: SyncTieredDriver | AsyncTieredDriver, workers: int) -> None:
        """Make a flusher. It runs from `start` until the saver is no longer used."""
        self._saver, self._tiers, self._driver = weakref.ref(saver), tiers, driver
        self.workers: int = workers
        self._stopped = threading.Event()
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Keep a stopped flusher stopped in the child. Otherwise the saver's next call starts the flusher."""
        stopped, self._stopped = self._stopped.is_set(), threading.Event()
        if stopped:
            self._stopped.set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the missing workers, unless the flusher was stopped."""
        if len(self._threads) == self.workers or self._stopped.is_set():
            return
        with self._lock:
            while self._is_used and len(self._threads) < self.workers:
                arguments = (self._threads, self._stopped)
                thread = threading.Thread(target=self._work, args=arguments, name="redis_saver flusher", daemon=True)
                thread.start()
                self._threads.append(thread)

    def again(self) -> None:
        """Start, even if the flusher was stopped."""
        with self._lock:
            if self._stopped.is_set():
                self._stopped, self._threads = threading.Event(), []
        self.start()

    def stop(self, timeout: float) -> None:
        """Stop, and wait up to `timeout` seconds (and `TO_END`) for calls under way."""
        deadline = time.monotonic() + timeout + TO_END
        self._stopped.set()
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def _is_used(self) -> bool:
        """True if somebody may still write: the saver exists, and the process is not ending."""
        return self._saver() is not None and threading.main_thread().is_alive()

    def _work(self, threads: list[threading.Thread], stopped: threading.Event) -> None:
        try:
            while not stopped.is_set() and self._is_used and (queue := self._tiers.flush_queue):
                is_idle = True
                with ignoring("a worker of the flusher"):
                    try:
                        is_idle = not self._driver.run_beside(_step(self._tiers, queue))
                    except LoopEnded:  # cold may have another loop next
                        pass
                    except BaseException as error:
                        self._tiers.counts.worker_errors += 1
                        self._tiers.counts.last_error = type(error).__name__
                        raise
                if is_idle:
                    stopped.wait(queue.flush_interval / _STEPS)
        finally:
            with self._lock:
                threads.remove(threading.current_thread())
            self.start()  # does nothing if the flusher was stopped or the saver is no longer used
