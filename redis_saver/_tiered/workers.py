"""The flusher's workers: OS threads of the process.

Each worker takes a thread (a conversation) that is due, flushes some of its records, and takes the next thread. So a
slow thread does not hold up the others. One worker flushes nothing. Every few seconds it scans for threads that other
processes left dirty, so what it tells of the backlog is true while cold hangs. No caller waits for a worker: errors go
to `TierStats.last_error`, and the worker tries again. If cold is bound to an event loop, the workers send their cold
calls to that loop.

A worker survives any `Exception`. If another error ends it, such as a cold saver's SystemExit, a new worker replaces
it. `TierStats.worker_errors` counts both.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable

from redis_saver._common import forks
from redis_saver._common.display import shown
from redis_saver._common.logs import Log, ignoring
from redis_saver._engine.requests import Batch, Call, Command, Sleep
from redis_saver._tiered import backlog, scripts
from redis_saver._tiered.backlog import Scanned
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.drivers import AsyncTieredDriver, SyncTieredDriver
from redis_saver._tiered.flush_queue import FlushQueue
from redis_saver._tiered.flushing import flush
from redis_saver._tiered.requests import Parallel, Tiered, attempt
from redis_saver.errors import ColdTimeout, LoopEnded

_LOG = Log("redis_saver.tiered")
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
    key, is_scanning = tiers.hot_context.keyspace.scanning, False
    token = tiers.leases.token(key)
    try:
        is_scanning = bool((yield Call(scripts.PUBLISH, (key,), (token, backlog.SCAN_LEASE, b"1"))))
        if not is_scanning:
            yield from tiers.backlog_count.report()
            return []
        scanned = yield from tiers.backlog_count.scan(renews_lease=True)
        pause = max(backlog.SCAN_INTERVAL, 20 * scanned.seconds)
        yield Call(scripts.PUBLISH, (key,), (b"", int(1000 * pause), b""))
    except BaseException as error:  # also a cancellation: this process may hold the scan lease
        tiers.leases.keep(key, token)
        if is_scanning and isinstance(error, Exception):
            yield from attempt(Command(("UNLINK", key)))
        raise
    return scanned.threads


def _scan_step(tiers: Tiers, queue: FlushQueue) -> Tiered[bool]:
    """Scan if a scan is due, and find out whether cold hangs, or hot lost the backlog. Returns False: it is done."""
    if seconds := tiers.counts.note_hang():
        text = f"cold has not answered a flush for {seconds:.0f} seconds; it may wait for a lock"
        tiers.counts.last_error = f"{ColdTimeout.__name__}: {text}"
        _LOG.warning("%s", text)
    try:
        for thread in (yield from scan_in_turn(tiers)):
            queue.note(thread, 0.0)
        if tiers.backlog_count.suspected:
            yield from _count_losses(tiers, queue)
    except Exception as error:  # noqa: BLE001 - the next scan may succeed
        tiers.counts.last_error = tiers.log_text(error)
    else:
        queue.remember_witnesses()
    return False


def _count_losses(tiers: Tiers, queue: FlushQueue) -> Tiered[None]:
    """Count the records that hot lost, if one of the threads that were dirty is gone.

    A thread that was flushed or deleted leaves keys in hot. So if all are there, only the count was lost.
    """
    keyspace, count, suspected = tiers.hot_context.keyspace, tiers.backlog_count, tiers.backlog_count.suspected
    of_threads = [keyspace.tier_keys(thread) for thread in queue.witnesses]
    kept = [(keys.index_key, keys.data_key, keys.dirty, keys.flush) for keys in of_threads]
    found = (yield Batch([Command(("EXISTS", *keys), keys) for keys in kept])) if kept else []
    gone = [thread for thread, number in zip(queue.witnesses, found, strict=True) if not number]
    if gone and suspected:
        generation, before = suspected
        lost = max(len(gone), before - (yield from count.scan()).records)
        is_first = yield Command(("HSET", keyspace.unflushed, b"lost " + generation, 1))
        if is_first:  # else another process has counted them
            tiers.counts.lost_records += lost
            yield Command(("HSET", keyspace.unflushed, b"lost", b"%d %d" % (lost, time.time())))
            text = "hot lost its data, and with it about %s records that cold did not have, such as those of thread %s"
            _LOG.warning(text, f"{lost:,}", shown(gone[0]))
    count.suspected = None


def _flush_step(tiers: Tiers, queue: FlushQueue) -> Tiered[bool]:
    """Flush some records of a due thread. Returns False if no thread is due."""
    if (thread := queue.due()) is None:
        return False
    yield from flush_some(tiers, thread)
    return True


def flush_some(tiers: Tiers, thread: str, *, at_once: bool = False, seconds: float = math.inf) -> Tiered[int]:
    """Flush some records of a thread, as `flush` does, but not in a pause unless `at_once`.

    Returns the number of records that were flushed or coalesced.
    """
    flushed, failed = None, None
    try:
        if at_once or not (yield from tiers.backlog_count.pause()):
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

    while (
        (scanned := (yield from _scan(tiers, left))).records and left() and not (yield from tiers.backlog_count.pause())
    ):
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
            return (yield from tiers.backlog_count.scan())
        except Exception as error:  # of hot: the next scan may succeed
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
        self._threads: dict[int, threading.Thread] = {}
        """The workers. Number 0 scans."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the missing workers, unless the flusher was stopped."""
        if len(self._threads) == self.workers + 1 or self._stopped.is_set():
            return
        with self._lock:
            for number in range(self.workers + 1):
                if self._is_used and number not in self._threads:
                    arguments = (number, self._threads, self._stopped)
                    thread = threading.Thread(
                        target=self._work, args=arguments, name="redis_saver flusher", daemon=True
                    )
                    thread.start()
                    self._threads[number] = thread

    def again(self) -> None:
        """Start, even if the flusher was stopped."""
        with self._lock:
            if self._stopped.is_set():
                self._stopped, self._threads = threading.Event(), {}
        self.start()

    def stop(self, timeout: float) -> None:
        """Stop, and wait up to `timeout` seconds (and `TO_END`) for calls under way."""
        deadline = time.monotonic() + timeout + TO_END
        self._stopped.set()
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._tiers.counts.scans = False

    @property
    def _is_used(self) -> bool:
        """True if somebody may still write: the saver exists, and the process is not ending."""
        return self._saver() is not None and threading.main_thread().is_alive()

    def _work(self, number: int, threads: dict[int, threading.Thread], stopped: threading.Event) -> None:
        step, counts = _flush_step if number else _scan_step, self._tiers.counts
        try:
            while not stopped.is_set() and self._is_used and (queue := self._tiers.flush_queue):
                counts.scans, is_idle = True, True
                with ignoring("a worker of the flusher"):
                    try:
                        is_idle = not self._driver.run_beside(step(self._tiers, queue))
                    except LoopEnded:  # cold may have another loop next
                        pass
                    except BaseException as error:  # also a SystemExit of cold: operators see that a worker ended
                        counts.worker_errors += 1
                        counts.last_error = type(error).__name__
                        raise
                if is_idle:
                    stopped.wait(queue.flush_interval / (_STEPS if number else 1))
        finally:
            with self._lock:
                del threads[number]
                counts.scans = bool(threads)
            self.start()  # does nothing if the flusher was stopped or the saver is no longer used
