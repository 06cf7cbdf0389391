"""`TieredSaver` and `AsyncTieredSaver`: a Redis saver that answers, over another saver that keeps everything."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
import warnings
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver._checkpoint import threads as hot_threads
from redis_saver._checkpoint.interface import Interface, as_method
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver, context_of, driver_of
from redis_saver._common import config as configs, forks
from redis_saver._common.logs import Log
from redis_saver._engine.counting import Counting
from redis_saver._engine.requests import Operation, Sleep, T
from redis_saver._engine.runner import Driver
from redis_saver._engine.stats import Stats
from redis_saver._serde.serializer import safe
from redis_saver._storage.context import Context
from redis_saver._storage.envelopes import EnvelopeSerializer
from redis_saver._storage.rewrapping import Rotates
from redis_saver._tiered import listing, reading, sealing, thread_info, threads, writing
from redis_saver._tiered.backlog import LONGEST_PAUSE, PAUSE
from redis_saver._tiered.context import Mode, OnHotError, Tiers, Verify
from redis_saver._tiered.counts import what_is_left
from redis_saver._tiered.drivers import AsyncTiers, HotAndCold, SyncTiers, TieredDriver
from redis_saver._tiered.flush_queue import ColdHistory, FlushQueue
from redis_saver._tiered.guarding import carrier_between
from redis_saver._tiered.in_cold import InCold
from redis_saver._tiered.requests import WAITS, Tiered, TieredStream, with_own_errors
from redis_saver._tiered.thread_info import TieredThreadInfo
from redis_saver._tiered.workers import Flusher, drain
from redis_saver.encryption import KeyStatus, Rotated
from redis_saver.errors import BacklogWarning, closed

CLOSE_TIMEOUT = 10.0
"""Default timeout of `close`, and of the end of a `with`, for the last flush, in seconds."""
_BETWEEN_FLUSHES = 0.1
"""Seconds between two flushes while a closing saver waits for calls under way."""
Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)
_LOG = Log("redis_saver.tiered")


class TwoTiers(HotAndCold, Rotates, Interface[TieredThreadInfo], Generic[Hot]):
    """Base class of both savers.

    Reads go to `hot`. With `mode="write-through"` each write goes to `cold`, then to `hot`. With `mode="write-behind"`
    it goes to `hot`, and a flusher writes it to `cold`. `docs/tiered.md` explains both modes. All writers of a thread
    must use a `TieredSaver` with the same hot and cold. If some do not, set `verify`.
    """

    _driver: TieredDriver[Any]

    def __init__(
        self,
        hot: Hot,
        cold: BaseCheckpointSaver[Any],
        *,
        mode: Mode = "write-through",
        on_hot_error: OnHotError = "raise",
        verify: Verify = "never",
        flusher: bool = True,
        flush_interval: float = 1.0,
        flush_workers: int = 4,
        cold_history: ColdHistory = "all",
        max_backlog: int = 100_000,
        backlog_timeout: float = 5.0,
        cold_timeout: float | None = 10.0,
    ) -> None:
        """Combine two savers. It closes neither of them.

        Args:
            hot: A `RedisSaver` (for `AsyncTieredSaver` an `AsyncRedisSaver`). Give it a TTL. With its `min_replicas`,
                writes wait for replicas if cold does not have them yet.
            cold: Any other checkpoint saver, such as a `PostgresSaver` after its `setup()`. It decides which values can
                be stored. Its `serde` is replaced by a copy that is safe for values that other OS threads change. If
                hot encrypts, cold must be a saver of LangGraph for Postgres, SQLite or memory, or say by
                `decodes_only_by_serde = True` that it stores and reads all values by its `serde`. Other savers fill hot
                only with what this process surely decoded in full (`docs/tiered.md`).
            mode: `"write-through"`: a write returns when cold has it, and hot, too, if hot has the thread.
                `"write-behind"`: it returns when hot has it, and the thread does not expire until cold has it, too.
            on_hot_error: What to do if hot cannot be reached (write-through only). `"raise"`: raise hot's error.
                `"bypass"`: reads use cold alone, and so do writes that have begun. A new write raises in both cases,
                and does not reach cold, because other processes may still reach hot and read old data.
            verify: For threads that others write to cold directly. `"on_open"`: compare hot's newest checkpoint with
                cold's, once per thread and namespace in this process. `"never"`: trust hot.
            flusher: True: this process flushes its own records and those that other processes left. False: others flush
                (`redis-saver flush`). This and the arguments below are for write-behind.
            flush_interval: Seconds for which the records of a thread are gathered before a flush.
            flush_workers: Number of threads (conversations) that are flushed at once.
            cold_history: `"all"`: flush all checkpoints. `"latest"`: flush only the newest gathered checkpoint of each
                namespace, with its pending writes. A `DeltaChannel` needs all checkpoints, and gets them.
            max_backlog: Maximum number of records (checkpoints, pending writes of a task, deletions) that wait for
                cold, over all processes. Each process may exceed it by 0.1 %.
            backlog_timeout: Seconds for which a write waits while the backlog is full. Then it raises `BacklogFull`,
                and nothing was written.
            cold_timeout: Seconds for which a read waits for cold, and any call for a flush, before it raises
                `ColdTimeout`. Writes and flushers wait until cold answers. None: reads wait, too. With a limit a
                `TieredSaver` reads cold on other OS threads, so a connection to SQLite needs `check_same_thread=False`.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        self._check_tiers(hot, cold, BaseCheckpointSaver, "checkpoint saver, such as PostgresSaver")
        configs.one_of(type(self), "on_hot_error", on_hot_error, "raise", "bypass")
        configs.one_of(type(self), "verify", verify, "never", "on_open")
        configs.one_of(type(self), "mode", mode, "write-through", "write-behind")
        configs.one_of(type(self), "cold_history", cold_history, "all", "latest")
        if mode == "write-behind" and on_hot_error == "bypass":
            raise ValueError(
                'on_hot_error="bypass" works only with mode="write-through": with write-behind, cold lacks the last '
                'writes. Write on_hot_error="raise", or change the mode'
            )
        configs.number("flush_workers", flush_workers, 1, whole=True)
        configs.number("max_backlog", max_backlog, 1, whole=True)
        configs.number("flush_interval", flush_interval, 0.001)
        configs.number("backlog_timeout", backlog_timeout, 0)
        super().__init__(serde=hot.serde)
        self._counting = Counting(with_own_errors if on_hot_error == "bypass" else None, WAITS)
        self._refuses_forks = context_of(hot).refuses_forks
        self._origin: TwoTiers[Hot] | None = None
        cold.serde = safe(cold.serde)  # in place, because a copy would later make its own connections
        self.hot: Hot = hot
        """The hot saver."""
        self.cold: BaseCheckpointSaver[Any] = cold
        """The cold saver."""
        in_cold = InCold()
        carrier = carrier_between(context_of(hot), cold, in_cold)
        self._driver = driver = self._driver_class(
            hot, cold, carrier, bypasses=on_hot_error == "bypass", cold_timeout=cold_timeout
        )
        self._context: Tiers = Tiers(hot, cold, carrier, in_cold, verify)
        self._context.cold_timeout = cold_timeout
        self._flushes = flusher and mode == "write-behind"
        if mode == "write-behind":
            self._context.flush_queue = FlushQueue(cold_history, flush_interval, flushes=flusher)
            self._context.backlog_count.limit, self._context.backlog_count.timeout = max_backlog, backlog_timeout
        self._flusher = Flusher(self, self._context, driver, flush_workers)
        self._lifetime = Lifetime(self._flusher if self._flushes else None)
        if self._flushes and self._hot_class is RedisSaver:  # an asyncio client waits for the loop of the first call
            self._flusher.start()

    # -- operations that `Interface` needs

    _get_tuple_gen = as_method(reading.get_tuple)
    _put_gen = as_method(writing.put)
    _put_writes_gen = as_method(writing.put_writes)
    _list_checkpoints_gen = as_method(listing.list_checkpoints)
    _get_delta_channel_history_gen = as_method(reading.get_delta_channel_history)
    _new_thread_gen = as_method(threads.new_thread)
    _delete_thread_gen = as_method(threads.delete_thread)
    _delete_for_runs_gen = as_method(threads.delete_for_runs)
    _copy_thread_gen = as_method(threads.copy_thread)
    _prune_gen = as_method(threads.prune)
    _stream_threads_gen = as_method(thread_info.stream_threads)
    _get_thread_gen = as_method(thread_info.get_thread)
    _expire_gen = as_method(threads.expire)
    _check_gen = as_method(thread_info.check)

    def _key_status_gen(self) -> Tiered[KeyStatus]:
        return sealing.key_status(self._context, EnvelopeSerializer(self.cold.serde))

    def _rotate_keys_gen(self) -> Tiered[Rotated]:
        return sealing.rotate_keys(self._context, EnvelopeSerializer(self.cold.serde))

    def _get_ttl_gen(self, thread_id: str) -> Operation[timedelta | None]:
        return hot_threads.get_ttl(self._context.hot_context, thread_id)

    @property
    def _rules(self) -> Context:
        return context_of(self.hot)

    @property
    def _owner_driver(self) -> Driver[Any]:
        return driver_of(self.hot)

    def _take(self, terms: Terms, nonce: str) -> Tiered[Record]:
        with self._lifetime:
            return threads.take(self._context, terms, nonce)

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        with self._lifetime:
            return self._driver.run(self._counting.call(operation, name))

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        if self._context.flush_queue and name in ("put", "put_writes"):
            with self._lifetime:  # this wait blocks no worker thread and no close()
                waiting = self._context.backlog_count.wait_for_room()
            await self._driver.arun_sleeping(waiting)
        with self._lifetime:
            return await self._driver.arun(self._counting.call(operation, name))

    def _stream(self, operation: TieredStream[T], name: str = "") -> Iterator[T]:
        with self._lifetime:
            return super()._stream(operation, name)

    def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        with self._lifetime:
            return super()._astream(operation, name)

    def _drain(self, timeout: float | None) -> Tiered[int]:
        return drain(self._context, self._flusher.workers, timeout)

    def _flush_last(self, deadline: float) -> Tiered[int]:
        """Flush until no call is under way or the time is up. Logs and returns the number of records that are left."""
        while True:
            is_busy = self._lifetime.calls > 0
            left = yield from self._drain(max(0.0, deadline - time.monotonic()))
            if not is_busy or time.monotonic() >= deadline:
                break
            yield Sleep(_BETWEEN_FLUSHES)
        if left:
            _LOG.warning("%s", what_is_left(self.stats().tiers))
        return left

    def _flush_block(self) -> Tiered[int]:
        """Flush at the end of a block, if this process flushes. Returns the number of records left, else 0."""
        return (yield from self._drain(CLOSE_TIMEOUT)) if self._flushes else 0

    def __repr__(self) -> str:
        """Return the class, hot, the class of cold, and the mode."""
        mode = "write-through" if self._context.flush_queue is None else "write-behind"
        return f"{type(self).__name__}(hot={self.hot!r}, cold={type(self.cold).__name__}, mode={mode!r})"

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a clone whose savers also allow these types."""
        clone = copy.copy(self)
        clone._origin = self  # noqa: SLF001 - it shares the flusher
        clone.hot = cast("Hot", self.hot.with_allowlist(extra_allowlist))
        clone.cold = self.cold.with_allowlist(extra_allowlist)
        carrier = carrier_between(context_of(clone.hot), clone.cold, self._context.in_cold)
        clone._driver = self._driver.over(clone.hot, clone.cold, carrier)  # noqa: SLF001 - it is of this class
        clone._context = self._context.over(clone.hot, carrier)  # noqa: SLF001 - the same
        clone.serde = clone.hot.serde
        return clone

    async def aflush(self, timeout: float | None = None) -> int:
        """Flush the backlog of all processes: write every record that cold lacks to cold.

        Args:
            timeout: Limit in seconds. None: no limit, even while cold is down.

        Returns:
            The number of records that are left. It is 0 unless the time was up, or flushing is paused.
        """
        with self._lifetime:
            return await self._driver.arun(self._drain(timeout))

    def pause_flushing(self, seconds: float = PAUSE) -> None:
        """Pause the flushers of all processes, such as while Postgres is under maintenance. Cost: one round trip.

        Flushers begin no further flush, from at most one second on. Turns go on, and the backlog grows up to
        `max_backlog`. A call that needs a flush raises `FlushPaused`, or answers from hot. `flush` and `close` flush
        nothing. The pause is in hot, and ends by itself.

        Args:
            seconds: Length of the pause from now, up to a day. It replaces the one of a pause under way.
        """
        self._run(self._pause(seconds), "pause_flushing")

    async def apause_flushing(self, seconds: float = PAUSE) -> None:
        """`pause_flushing` for asyncio."""
        await self._arun(self._pause(seconds), "pause_flushing")

    def resume_flushing(self) -> None:
        """End a pause of flushing. Flushers go on within a second or their `flush_interval`."""
        self._run(self._context.backlog_count.set_pause(0), "resume_flushing")

    async def aresume_flushing(self) -> None:
        """`resume_flushing` for asyncio."""
        await self._arun(self._context.backlog_count.set_pause(0), "resume_flushing")

    def _pause(self, seconds: float) -> Operation[None]:
        configs.number("seconds", seconds, 0.001)
        if seconds > LONGEST_PAUSE:
            raise ValueError(f"seconds={seconds}: a pause may last up to {LONGEST_PAUSE:.0f} seconds")
        return self._context.backlog_count.set_pause(seconds)

    def stats(self) -> Stats:
        """Return a copy of this process's counts: calls of this saver, requests of hot, events between the tiers."""
        of_hot = self.hot.stats()
        operations = {**of_hot.operations, **self._counting.snapshot()}
        return replace(of_hot, operations=operations, tiers=self._context.counts.snapshot())

    def _entered(self) -> Self:
        self._lifetime.enter_block()
        return self

    @contextmanager
    def _leaving(self, error: BaseException | None) -> Iterator[None]:
        """Raise an error of `close` at the end of a `with`, or log it if the body raised an error itself."""
        try:
            yield
        except Exception as failed:  # of hot or cold
            if error is None:
                raise
            _LOG.warning("it is not known whether cold has everything: %s", self._context.log_text(failed))

    def _warn_of(self, left: int, error: BaseException | None) -> None:
        """Warn at the end of a `with` about records that are left in hot, unless the body raised an error."""
        if left and error is None:
            warnings.warn(what_is_left(self.stats().tiers), BacklogWarning, stacklevel=3)


def tiers_of(saver: TwoTiers[Any]) -> Tiers:
    """Return a saver's context. For other modules of this package only."""
    return saver._context  # noqa: SLF001


def driver_over(saver: TwoTiers[Any]) -> TieredDriver[Any]:
    """Return the saver's current driver."""
    return saver._driver  # noqa: SLF001


class Lifetime:
    """The lifetime of a saver and its clones. Each call runs in a `with` block of it, and `close` waits for these.

    Raises:
        Closed: The saver was closed. Raised at the beginning of a block.
    """

    def __init__(self, flusher: Flusher | None) -> None:
        """Begin. Calls start the flusher, if any, and a `with` block of the saver starts it again."""
        self._flusher, self._is_closed = flusher, False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        self._blocks, self._lock = 0, threading.RLock()  # a signal handler may close the saver that it interrupts
        self.calls: int = 0
        """Number of calls under way."""

    def close(self) -> None:
        """Refuse further calls. Calls under way continue."""
        with self._lock:
            self._is_closed = True

    def __enter__(self) -> None:
        """Begin a call."""
        if self._flusher:
            self._flusher.start()
        with self._lock:
            if self._is_closed:
                raise closed("the saver over two tiers")
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        """End a call."""
        with self._lock:
            self.calls = max(0, self.calls - 1)  # the call may have begun before the fork

    def enter_block(self) -> None:
        """Begin a `with` block of the saver, which opens a closed saver again."""
        with self._lock:
            self._blocks, self._is_closed = self._blocks + 1, False
        if self._flusher:
            self._flusher.again()

    def leave_block(self) -> bool:
        """End a block. Returns True for the last one, after which the saver has to be closed."""
        with self._lock:
            self._blocks = max(0, self._blocks - 1)
            return not self._blocks


class TieredSaver(SyncTiers, TwoTiers[RedisSaver]):
    """A `RedisSaver` over any other saver. Its `a...` methods run in worker threads.

    In write-behind mode, call `close()` at the end, or use the saver in a `with`.

    The saver survives a fork if `cold` does. A `PostgresSaver` does: the child opens its own connections with the same
    settings. The child's flusher starts with its first call of the saver.
    """

    _hot_class = RedisSaver

    def flush(self, timeout: float | None = None) -> int:
        """Flush, as `aflush` does."""
        with self._lifetime:
            return self._driver.run(self._drain(timeout))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Close the saver in this process: stop its flusher, then flush as much as possible. Hot and cold stay open.

        After that, all other methods raise `Closed`. A `with` opens the saver again. Records that are left stay in hot
        until another process, or the next one, flushes them. The log says how many (`redis_saver.tiered`, WARNING).

        Args:
            timeout: Limit in seconds.

        Returns:
            The number of records that are left. 0 with write-through and with `flusher=False`, because then nothing is
            flushed.
        """
        deadline = time.monotonic() + timeout
        self._lifetime.close()
        self._flusher.stop(timeout)
        return self._driver.run(self._flush_last(deadline)) if self._flushes else 0

    def __enter__(self) -> Self:
        """Return the saver itself. A closed saver opens again."""
        return self._entered()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close, or flush while another block of this process is open. Warns about records left (`BacklogWarning`)."""
        is_last = self._lifetime.leave_block()
        with self._leaving(error):
            left = self.close() if is_last else self._driver.run(self._flush_block())
            self._warn_of(left, error)


class AsyncTieredSaver(AsyncTiers, TwoTiers[AsyncRedisSaver]):
    """An `AsyncRedisSaver` over any other saver with `a...` methods.

    Any number of event loops and OS threads may share it, before and after a fork, if `cold` can be shared as well. An
    `AsyncPostgresSaver` is bound to its loop and answers the calls of that loop. Calls from other loops, OS threads and
    children run on a background loop with their own connections to Postgres. Any other cold saver that is bound to a
    loop answers these calls on its loop. If that loop does not run, they raise `LoopEnded`.

    In write-behind mode, `await aclose()` at the end, or use the saver in an `async with`. The flusher starts with the
    first call of the saver, also in a forked child, and sends its cold calls to the loop on which `cold` answers.
    """

    _hot_class = AsyncRedisSaver

    async def aclose(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Close the saver in this process, as `TieredSaver.close` does. An `async with` opens it again."""
        deadline = time.monotonic() + timeout
        self._lifetime.close()
        await asyncio.to_thread(self._flusher.stop, timeout)
        return await self._driver.arun(self._flush_last(deadline)) if self._flushes else 0

    async def __aenter__(self) -> Self:
        """Return the saver itself, and start its flusher. A closed saver opens again."""
        return self._entered()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close, or flush while another block of this process is open. Warns about records left (`BacklogWarning`)."""
        is_last = self._lifetime.leave_block()
        with self._leaving(error):
            left = await (self.aclose() if is_last else self._driver.arun(self._flush_block()))
            self._warn_of(left, error)
