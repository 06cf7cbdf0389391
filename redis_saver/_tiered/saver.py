"""`TieredSaver` and `AsyncTieredSaver`: a saver of ours that answers, in front of one that remembers."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
import warnings
from collections.abc import AsyncIterator, Collection, Generator, Iterator
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver._checkpoint import threads as hot_threads
from redis_saver._checkpoint.checking import CheckReport
from redis_saver._checkpoint.interface import Interface, as_method
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver, context_of, driver_of
from redis_saver._common import config as configs, forks, keywords
from redis_saver._common.display import kind_of
from redis_saver._common.logs import Log, log_text
from redis_saver._engine.requests import Operation, Sleep, T
from redis_saver._engine.runner import Driver, DriverWrapper
from redis_saver._engine.stats import Counting, Measured, name_of
from redis_saver._serde.serializer import safe
from redis_saver._storage.context import Context
from redis_saver._tiered import listing, reading, thread_info, threads, writing
from redis_saver._tiered.backlog import ColdHistory, FlushQueue, what_is_left
from redis_saver._tiered.context import Mode, OnHotError, Tiers, Verify
from redis_saver._tiered.drivers import AsyncTieredDriver, SyncTieredDriver, TieredDriver
from redis_saver._tiered.flushers import Flusher, drain
from redis_saver._tiered.flushing import opaque_pair
from redis_saver._tiered.requests import Tiered, TieredRequest, TieredStream, capturing, setup, with_own_errors
from redis_saver._tiered.stats import Stats
from redis_saver._tiered.thread_info import TieredThreadInfo
from redis_saver.errors import BacklogWarning, closed

CLOSE_TIMEOUT = 10.0
"""Seconds that `close`, and the end of a `with`, may take to bring to cold what only hot has."""
_BETWEEN_FLUSHES = 0.1
"""Seconds between the flushes of a saver that closes while calls are under way."""
Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)
_LOG = Log("redis_saver.tiered")


class TwoTiers(Interface[TieredThreadInfo], Generic[Hot]):
    """Base class of both savers.

    Reads go to `hot`. With `mode="write-through"` each write goes to `cold`, then to `hot`. With `mode="write-behind"`
    it goes to `hot`, and a flusher brings it to `cold`. `docs/tiered.md` explains both. All writers of a thread must
    use tiers over the same two stores; else set `verify`.
    """

    _driver: TieredDriver[Any] | DriverWrapper[TieredRequest]
    _hot_class: ClassVar[type[Any]]
    _driver_class: ClassVar[type[Any]]

    @keywords.checked
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
    ) -> None:
        """Put a saver in front of another. Both stay yours.

        Args:
            hot: A `RedisSaver` (for `AsyncTieredSaver` an `AsyncRedisSaver`). Give it a TTL. With its `min_replicas`,
                writes that are acknowledged before cold has them wait for replicas.
            cold: Any other checkpoint saver, such as a `PostgresSaver` on which `setup()` was called. It decides what
                can be stored, and how metadata come back. Its `serde` is replaced by a copy for which other OS threads
                may change values meanwhile.
            mode: `"write-through"`: a write returns when both have it. `"write-behind"`: it returns when hot has it,
                and the thread does not expire until cold has it, too.
            on_hot_error: For write-through, if hot cannot be reached: `"raise"` its error, or `"bypass"` hot. Then
                reads and writes under way go to cold alone. A new write raises in any case, and cold does not get it:
                other processes may still see hot, and would believe it.
            verify: For writers that go straight to cold. `"on_open"`: compare the newest checkpoint in hot with cold's,
                once per thread and namespace in this process. `"never"`: trust hot.
            flusher: For write-behind, as all that follow. True: this process flushes its own records, and those that
                others left. False: others flush (`redis-saver flush`).
            flush_interval: Seconds for which records of a thread are gathered before they are flushed.
            flush_workers: Number of threads (conversations) that are flushed at once.
            cold_history: Flush `"all"` checkpoints, or the `"latest"`: the newest gathered one of each namespace, with
                its pending writes. (All of them, if a `DeltaChannel` needs them.)
            max_backlog: Maximum number of records (checkpoints, pending writes of a task, deletions) that wait for
                cold, over all processes. Each process may exceed it by a thousandth of it.
            backlog_timeout: Seconds that a write waits above that. Then it raises `BacklogFull`, and nothing was
                written.

        Raises:
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        if not isinstance(hot, self._hot_class):
            raise TypeError(f"{type(self).__name__}: hot is {kind_of(hot)}; it has to be of {self._hot_class.__name__}")
        if not isinstance(cold, BaseCheckpointSaver) or cold is hot:
            raise TypeError(
                f"{type(self).__name__}: cold is {kind_of(cold)}; it has to be another checkpoint saver, such as "
                "PostgresSaver"
            )
        configs.one_of(type(self), "on_hot_error", on_hot_error, "raise", "bypass")
        configs.one_of(type(self), "verify", verify, "never", "on_open")
        configs.one_of(type(self), "mode", mode, "write-through", "write-behind")
        configs.one_of(type(self), "cold_history", cold_history, "all", "latest")
        if mode == "write-behind" and on_hot_error == "bypass":
            raise ValueError(
                'on_hot_error="bypass" works only with mode="write-through": with write-behind cold does not have what '
                'was written last. Write on_hot_error="raise", or change the mode'
            )
        configs.number("flush_workers", flush_workers, 1, whole=True)
        configs.number("max_backlog", max_backlog, 1, whole=True)
        configs.number("flush_interval", flush_interval, 0.001)
        configs.number("backlog_timeout", backlog_timeout, 0)
        super().__init__(serde=hot.serde)
        self._counting = Counting()
        self._refuses_forks = context_of(hot).refuses_forks
        self._lifetime = Lifetime()
        self._origin: TwoTiers[Hot] | None = None
        cold.serde = safe(cold.serde)  # in place: of a copy the connections that it makes later would be its own
        self.hot: Hot = hot
        """The saver in front."""
        self.cold: BaseCheckpointSaver[Any] = cold
        """The saver behind it."""
        opaque_hot, opaque_cold = opaque_pair(context_of(hot), cold)
        self._driver = driver = self._driver_class(hot, cold, opaque_cold, bypasses=on_hot_error == "bypass")
        self._context: Tiers = Tiers(hot, opaque_hot, cold, verify)
        self._flushes = flusher and mode == "write-behind"
        if mode == "write-behind":
            self._context.flush_queue = FlushQueue(
                self._context.backlog, cold_history, flush_interval, max_backlog, backlog_timeout, flushes=flusher
            )
        self._flusher = Flusher(self, self._context, driver, flush_workers)
        if self._flushes and self._hot_class is RedisSaver:  # else the first call shows which loop the client is for
            self._flusher.start()

    # -- operations, as `Interface` calls them

    _get_tuple_gen = as_method(reading.get_tuple)
    _put_gen = as_method(writing.put)
    _put_writes_gen = as_method(writing.put_writes)
    _list_checkpoints_gen = as_method(listing.list_checkpoints)
    _get_delta_channel_history_gen = as_method(reading.get_delta_channel_history)
    _delete_thread_gen = as_method(threads.delete_thread)
    _delete_for_runs_gen = as_method(threads.delete_for_runs)
    _copy_thread_gen = as_method(threads.copy_thread)
    _prune_gen = as_method(threads.prune)
    _stream_threads_gen = as_method(thread_info.stream_threads)
    _get_thread_gen = as_method(thread_info.get_thread)
    _expire_gen = as_method(threads.expire)

    def _get_ttl_gen(self, thread_id: str) -> Operation[timedelta | None]:
        return hot_threads.get_ttl(self._context.hot, thread_id)

    @property
    def _rules(self) -> Context:
        return context_of(self.hot)

    @property
    def _owner_driver(self) -> Driver[Any]:
        return driver_of(self.hot)

    def _take(self, terms: Terms, nonce: str) -> Tiered[Record]:
        self._lifetime.check_open()
        return threads.take(self._context, terms, nonce)

    def _counted(self, operation: Tiered[T], name: str) -> Generator[Any, Any, T]:
        return self._counting.call(with_own_errors(operation), name or name_of(operation))

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        with self._lifetime:
            self._begin()
            return self._driver.run(self._counted(operation, name))

    async def _arun(self, operation: Tiered[T], name: str = "") -> T:
        queue = self._context.flush_queue
        if queue and name in ("put", "put_writes"):  # a wait here holds up no worker thread, and no close()
            self._lifetime.check_open()
            self._begin()
            await self._driver.arun_sleeping(queue.wait_for_capacity(is_writing=False))
        with self._lifetime:
            self._begin()
            return await self._driver.arun(self._counted(operation, name))

    def _stream(self, operation: TieredStream[T], name: str = "") -> Iterator[T]:
        self._lifetime.check_open()
        self._begin()
        return self._driver.stream(self._counting.stream(with_own_errors(operation), name))

    def _astream(self, operation: TieredStream[T], name: str = "") -> AsyncIterator[T]:
        self._lifetime.check_open()
        self._begin()
        return self._driver.astream(self._counting.stream(with_own_errors(operation), name))

    def _begin(self) -> None:
        """Check that hot is open, and start the flusher if it is not at work."""
        self._driver.check_open()
        if self._flushes:
            self._flusher.start()

    def _drain(self, timeout: float | None) -> Tiered[int]:
        return drain(self._context, self._flusher.workers, timeout)

    def _flush_last(self, deadline: float) -> Tiered[int]:
        """Flush until no call is under way, which may write more, or the time is up. Log and return what is left."""
        while True:
            is_busy = self._lifetime.calls > 0
            left = yield from self._drain(max(0.0, deadline - time.monotonic()))
            if not is_busy or time.monotonic() >= deadline:
                break
            yield Sleep(_BETWEEN_FLUSHES)
        if left:
            _LOG.warning("%s", what_is_left(self.stats()))
        return left

    def __repr__(self) -> str:
        """The class, hot, the class of cold, and the mode."""
        mode = "write-through" if self._context.flush_queue is None else "write-behind"
        return f"{type(self).__name__}(hot={self.hot!r}, cold={type(self.cold).__name__}, mode={mode!r})"

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a clone whose savers allow these types, too."""
        clone = copy.copy(self)
        clone._origin = self  # noqa: SLF001 - whose flusher it shares
        clone.hot = cast("Hot", self.hot.with_allowlist(extra_allowlist))
        clone.cold = self.cold.with_allowlist(extra_allowlist)
        clone._driver = self._driver.over(clone.hot, clone.cold)  # noqa: SLF001 - it is of this class
        clone._context = self._context.over(clone.hot)  # noqa: SLF001 - the same
        clone.serde = clone.hot.serde
        return clone

    async def asetup(self) -> None:
        """Set up both: check hot's server, and call `setup` of cold, which creates its tables. Some have none.

        Call it when you deploy rather than in each worker: it may need more rights than a worker has.

        Raises:
            UnsupportedServer: Hot's server is too old.
        """
        await self.hot.asetup()
        await self._arun(setup(self.cold))

    async def aflush(self, timeout: float | None = None) -> int:
        """Flush: bring to cold all that only hot has, of all processes.

        Args:
            timeout: Seconds. None: no limit, even while cold is down.

        Returns:
            The number of records that are left: 0, unless the time was up.
        """
        with self._lifetime:
            return await self._driver.arun(self._drain(timeout))

    def stats(self) -> Stats:
        """Return a copy of the numbers so far, of this process."""
        return self._context.counts.snapshot(self._counting)

    def _measured(self) -> Measured:
        of_hot: Measured = self.hot._measured()  # noqa: SLF001 - it is of ours
        return of_hot._replace(counting=self._counting, sources=(self._context.counts, *of_hot.sources))

    def _leave(self, left: int, failed: Exception | None, error: BaseException | None) -> None:
        """At the end of a `with`, warn of what `close` has left in hot, or raise its error.

        If the body raised an error, that one goes on, and the error of `close` is logged.
        """
        if error is None and failed is not None:
            raise failed
        if failed is not None:
            _LOG.warning("it is not known whether cold has everything: %s", log_text(failed))
        elif left and error is None:
            warnings.warn(what_is_left(self.stats()), BacklogWarning, stacklevel=3)

    def check(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """Check a thread in Redis, as `RedisSaver.check`, and compare it with cold. Writes nothing.

        Each checkpoint is read from cold. If cold lacks some of the thread, nothing is compared.

        Args:
            thread_id: The thread.
            values: As there. It is about Redis; what is compared with cold is decoded in any case.

        Raises:
            ThreadNotFound: Redis does not have the thread.
            ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
        """
        return self._run(thread_info.check(self._context, configs.name(thread_id, "thread_id"), values=values))

    async def acheck(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """`check` for asyncio."""
        return await self._arun(thread_info.check(self._context, configs.name(thread_id, "thread_id"), values=values))


def tiers_of(saver: TwoTiers[Any]) -> Tiers:
    """Return the context of a saver over two tiers, for the rest of the package. Not for users."""
    return saver._context  # noqa: SLF001


def driver_over(saver: TwoTiers[Any]) -> TieredDriver[Any] | DriverWrapper[TieredRequest]:
    """Return the driver that runs the saver's operations now."""
    return saver._driver  # noqa: SLF001


class Lifetime:
    """The lifetime of a saver and its clones. A `with` over it is a call, which `close` waits for."""

    def __init__(self) -> None:
        """Begin open."""
        self._is_closed = False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, begin without blocks and calls: the parent's are the parent's."""
        self._blocks, self._lock = 0, threading.RLock()  # a signal's handler may close what it interrupts
        self.calls: int = 0
        """Calls under way."""

    def check_open(self) -> None:
        """Check that it is open.

        Raises:
            Closed: It was closed.
        """
        if self._is_closed:
            raise closed("the saver over two tiers")

    def close(self) -> None:
        """Refuse each further call. Those that were let through are counted."""
        with self._lock:
            self._is_closed = True

    def __enter__(self) -> None:
        """Begin a call."""
        with self._lock:
            if self._is_closed:
                self.check_open()
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        """End a call."""
        with self._lock:
            self.calls = max(0, self.calls - 1)  # it may have begun before the fork

    def enter_block(self) -> None:
        """Begin a block, also after the saver was closed."""
        with self._lock:
            self._blocks, self._is_closed = self._blocks + 1, False

    def leave_block(self) -> bool:
        """End a block. Returns True if it was the last one, so that the saver has to be closed."""
        with self._lock:
            self._blocks = max(0, self._blocks - 1)
            return not self._blocks


class TieredSaver(TwoTiers[RedisSaver]):
    """A `RedisSaver` in front of any saver. Its `a...` methods run in worker threads.

    With write-behind, call `close()` at the end, or use it in a `with`.

    It works before and after a fork, if `cold` does. A `PostgresSaver` does: the child makes connections of its own,
    with the same settings. Flushers start in the child with its first call on the saver.
    """

    _hot_class, _driver_class = RedisSaver, SyncTieredDriver
    _driver: SyncTieredDriver | DriverWrapper[TieredRequest]

    def setup(self) -> None:
        """Set up both, as `asetup`."""
        self.hot.setup()
        self._run(setup(self.cold))

    def flush(self, timeout: float | None = None) -> int:
        """Flush, as `aflush`."""
        with self._lifetime:
            return self._driver.run(self._drain(timeout))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Close the saver in this process: stop its flusher, then flush what it can. Hot and cold stay open.

        From now on each other method raises `Closed`. A `with` opens the saver again. Records that are left stay in
        hot, for the flusher of another process or of the next one. The log says how many (`redis_saver.tiered`,
        WARNING).

        Args:
            timeout: Seconds.

        Returns:
            The number of records that are left. 0 with `flusher=False`, and with write-through: then it flushes
            nothing.
        """
        deadline = time.monotonic() + timeout
        self._lifetime.close()
        self._flusher.stop(timeout)
        return self._driver.run(self._flush_last(deadline)) if self._flushes else 0

    def __enter__(self) -> Self:
        """Return the saver itself. After `close` it is open again."""
        self._lifetime.enter_block()
        if self._flushes:
            self._flusher.again()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another block of this process is open. Warn of what is left (`BacklogWarning`)."""
        left, is_last = 0, self._lifetime.leave_block()
        with capturing() as captured:
            left = self.close() if is_last else self._driver.run(self._drain(CLOSE_TIMEOUT))
        self._leave(left, captured.error, error)


class AsyncTieredSaver(TwoTiers[AsyncRedisSaver]):
    """An `AsyncRedisSaver` in front of any saver with `a...` methods.

    Any number of event loops and OS threads may share it, before and after a fork, if `cold` can be shared so. An
    `AsyncPostgresSaver` is bound to its loop, and answers the calls of that loop. Calls from other loops, OS threads
    and children run on a background loop, with connections of their own to Postgres. Another cold saver that is bound
    to a loop answers them on its loop. If that loop does not run, they raise `LoopEnded`.

    With write-behind, `await aclose()` at the end, or use it in an `async with`. Flushers start with the first call on
    the saver, also in a forked child, and send their calls to the loop on which `cold` answers.
    """

    _hot_class, _driver_class = AsyncRedisSaver, AsyncTieredDriver
    _driver: AsyncTieredDriver | DriverWrapper[TieredRequest]

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
        await self.asetup()

    async def aclose(self, timeout: float = CLOSE_TIMEOUT) -> int:
        """Close the saver in this process, as `TieredSaver.close`. An `async with` opens it again."""
        deadline = time.monotonic() + timeout
        self._lifetime.close()
        await asyncio.to_thread(self._flusher.stop, timeout)
        return await self._driver.arun(self._flush_last(deadline)) if self._flushes else 0

    async def __aenter__(self) -> Self:
        """Return the saver itself. Its flusher is at work from now on, also after `aclose`."""
        self._lifetime.enter_block()
        if self._flushes:
            self._flusher.again()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; or flush, while another block of this process is open. Warn of what is left (`BacklogWarning`)."""
        left, is_last = 0, self._lifetime.leave_block()
        with capturing() as captured:
            left = await (self.aclose() if is_last else self._driver.arun(self._drain(CLOSE_TIMEOUT)))
        self._leave(left, captured.error, error)
