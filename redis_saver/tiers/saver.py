"""`TieredSaver` and `AsyncTieredSaver`: a saver of ours that answers, in front of one that remembers."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from redis_saver import clients, drivers
from redis_saver import config as configs
from redis_saver.aio import AsyncRedisSaver
from redis_saver.interface import Interface, Operations
from redis_saver.requests import T
from redis_saver.sync import RedisSaver
from redis_saver.tiers import operations, postgres_runs, threads
from redis_saver.tiers.carrying import carriers
from redis_saver.tiers.flusher import AsyncFlusher, Flusher, noting
from redis_saver.tiers.lag import Lag
from redis_saver.tiers.model import (
    Cold,
    ColdHistory,
    HotFailed,
    Leave,
    Mode,
    Once,
    OnHotError,
    Pause,
    Stats,
    Tiered,
    Try,
    Verify,
)

Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)


class _Tiered(Interface, Generic[Hot]):
    """What both flavours share.

    Reading is up to `hot`. All is written to `cold` before `hot` (`mode="write-through"`), or to `hot`, and a flusher brings it to `cold`
    (`mode="write-behind"`): see `redis_saver.tiers` for what is guaranteed. All writers of a thread must go through tiers with the same
    two stores, or `verify` must be other than "never".
    """

    _operations: ClassVar[Operations] = operations
    _hot_class: ClassVar[type[Any]]

    def __init__(
        self,
        hot: Hot,
        cold: BaseCheckpointSaver[Any],
        *,
        mode: Mode = "write-through",
        on_hot_error: OnHotError = "raise",
        verify: Verify = "never",
        flusher: bool = True,
        flush_every: float = 1.0,
        flush_workers: int = 4,
        cold_history: ColdHistory = "all",
        max_backlog: int = 100_000,
        backlog_wait: float = 5.0,
        min_replicas: int = 0,
        replica_wait: float = 1.0,
    ) -> None:
        """Put a saver in front of another. Both stay the caller's.

        Args:
            hot: A saver of ours of the same flavour; give it a TTL.
            cold: Any saver with the methods that are used, such as a `PostgresSaver` that was set up. It decides what can be stored, and
                how metadata come back.
            mode: `"write-through"`: a write returns when both have it. `"write-behind"`: when hot has it; until cold has it too, the thread
                does not expire.
            on_hot_error: With write-through, what to do where hot cannot be reached: `"raise"` its error, or `"bypass"` it: read from cold alone, and
                end in cold alone the writes that are under way. A write that hot could not even be told of raises in any case,
                and cold has not got it: another process may still see hot, and would go on believing it.
            verify: Whether a newest checkpoint that hot answers is compared with cold's, for writers that go straight to cold:
                `"never"`, `"on_open"` (once for each thread and namespace in this process), `"always"`.
            flusher: With write-behind, as are all that follow: whether this process brings to cold what only hot has, its own and what
                others left. False: others do (`redis-saver flush`).
            flush_every: Seconds that a thread's records are gathered before they are brought to cold.
            flush_workers: How many threads (conversations) are brought there at once.
            cold_history: `"all"` checkpoints go to cold, or `"latest"`: of those that were gathered only the newest of each namespace, with its
                pending writes. (All go where a `DeltaChannel` needs them.)
            max_backlog: How many records (checkpoints, pending writes of a task, deletions) may wait, over all processes. What a process
                knows of the others is some seconds old.
            backlog_wait: Seconds that a write waits while it is more, before it raises `BacklogFull`.
            min_replicas: How many replicas of hot must have a write before it is acknowledged (WAIT); one more round trip a write. 0: none.
            replica_wait: Seconds that they may take, before the write raises `NotReplicated`.

        Raises:
            TypeError, ValueError: An argument makes no sense.
        """
        if not isinstance(hot, self._hot_class):
            raise TypeError(f"hot={hot!r}: {type(self).__name__} takes a {self._hot_class.__name__}")
        if not isinstance(cold, BaseCheckpointSaver) or cold is hot:
            raise TypeError(f"cold={cold!r}: takes another checkpoint saver, such as PostgresSaver")
        if on_hot_error not in ("raise", "bypass"):
            raise ValueError(f'on_hot_error={on_hot_error!r}: "raise" or "bypass"')
        if verify not in ("never", "on_open", "always"):
            raise ValueError(f'verify={verify!r}: "never", "on_open" or "always"')
        if mode not in ("write-through", "write-behind"):
            raise ValueError(f'mode={mode!r}: "write-through" or "write-behind"')
        if cold_history not in ("all", "latest"):
            raise ValueError(f'cold_history={cold_history!r}: "all" or "latest"')
        if mode == "write-behind" and on_hot_error == "bypass":
            raise ValueError(
                'on_hot_error="bypass" goes with mode="write-through": with write-behind cold does not have what was written last'
            )
        for name, number in (
            ("flush_every", flush_every),
            ("flush_workers", flush_workers),
            ("max_backlog", max_backlog),
        ):
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
                raise ValueError(f"{name}={number!r}: a number above 0")
        super().__init__(serde=hot.serde)
        self.hot, self.cold, self.on_hot_error, self.verify = hot, cold, on_hot_error, verify
        self.carrier, self._carrier_of_cold = carriers(hot, cold)
        self.counts = Stats()
        self.verified: set[tuple[str, str]] = set()
        self.empty: dict[str, Leave] = {}
        self.flush_workers, self.flushes = flush_workers, flusher and mode == "write-behind"
        self.behind: Lag | None = None
        if mode == "write-behind":
            self.behind = Lag(
                self,
                history=cold_history,
                flush_every=flush_every,
                most=max_backlog,
                patience=backlog_wait,
                flushes=flusher,
                min_replicas=min_replicas,
                replica_wait=replica_wait,
            )

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A clone whose savers allow these types, too."""
        clone = copy.copy(self)
        clone.hot = self.hot.with_allowlist(extra_allowlist)
        clone.cold = self.cold.with_allowlist(extra_allowlist)
        clone.serde = clone.hot.serde
        return clone

    def stats(self) -> Stats:
        """A copy of what was counted so far, in this process."""
        return copy.copy(self.counts)

    def _stream(self, stream: Tiered[list[T]]) -> Iterator[T]:
        yield from self._run(stream)

    async def _astream(self, stream: Tiered[list[T]]) -> AsyncIterator[T]:
        for one in await self._arun(stream):
            yield one

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads as cold does."""
        self._run(threads.prune(self, configs.names(thread_ids, "thread_id"), strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune` for asyncio."""
        await self._arun(threads.prune(self, configs.names(thread_ids, "thread_id"), strategy))


@contextmanager
def _own_error() -> Iterator[None]:
    """Raise hot's own error where it cannot be bypassed."""
    try:
        yield
    except HotFailed as failed:
        if failed.__cause__ is None:
            raise
        raise failed.__cause__ from None


class TieredSaver(_Tiered[RedisSaver]):
    """A `RedisSaver` in front of any saver. Its `a...` methods run in worker threads.

    With write-behind, `close` it at the end, or use it in a `with`.
    """

    _hot_class = RedisSaver

    def __init__(self, hot: RedisSaver, cold: BaseCheckpointSaver[Any], **settings: Any) -> None:
        """As `_Tiered`."""
        super().__init__(hot, cold, **settings)
        self._failures = clients.failures_of(hot._client)  # noqa: SLF001
        self._lock, self._under_way = threading.Lock(), dict[tuple[str, ...], Future[None]]()
        self._flusher = Flusher(self)
        if self.flushes:
            self._flusher.start()

    def flush(self, timeout: float | None = None) -> int:
        """Bring to cold all that only hot has, of all processes.

        Args:
            timeout: Seconds; None: as long as it takes, also while cold is down.

        Returns:
            How many records are left: 0, unless the time was up.
        """
        return self._flusher.drain(timeout)

    async def aflush(self, timeout: float | None = None) -> int:
        """`flush` for asyncio."""
        return await asyncio.to_thread(self.flush, timeout)

    def close(self, timeout: float = 10.0) -> int:
        """Stop the flusher, after it has brought to cold what it can in so many seconds. Answers what is left, as `flush`.

        What is left is in hot, and any other process, or the next one, brings it to cold.
        """
        deadline = time.monotonic() + timeout
        self._flusher.stop(timeout)
        return self.flush(max(0.0, deadline - time.monotonic())) if self.flushes else 0

    def __enter__(self) -> Self:
        """Return the saver itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _run(self, operation: Tiered[T]) -> T:
        if self.flushes:
            self._flusher.start()
        with _own_error():
            return drivers.run(operation, self._exchange)

    async def _arun(self, operation: Tiered[T]) -> T:
        return await asyncio.to_thread(self._run, operation)

    def _exchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            return self._ask_cold(request, self.cold)
        if isinstance(request, Try):
            with noting() as noted:
                self._ask_cold(request.cold, self._carrier_of_cold)
            return noted.error
        if isinstance(request, Once):
            return self._once(request)
        if isinstance(request, Pause):
            return time.sleep(request.seconds)
        try:
            return self.hot._exchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    def _ask_cold(self, request: Cold, cold: BaseCheckpointSaver[Any]) -> Any:
        if request.method == "delete_for_runs" and (delete := postgres_runs.deleting(cold)):
            return delete(*request.arguments)
        answer = getattr(cold, request.method)(*request.arguments, **request.options)
        return list(answer) if request.method == "list" else answer

    def _once(self, request: Once) -> Any:
        with self._lock:
            under_way = self._under_way.get(request.key)
            if under_way is None:
                mine = self._under_way[request.key] = Future()
        if under_way is not None:
            return under_way.result()
        try:
            return drivers.run(request.make(), self._exchange)
        finally:
            with self._lock:
                del self._under_way[request.key]
            mine.set_result(None)


class AsyncTieredSaver(_Tiered[AsyncRedisSaver]):
    """An `AsyncRedisSaver` in front of any saver with `a...` methods.

    Its methods without an `a` work from threads that run no event loop, as far as those of `cold` do. With write-behind the flusher is a
    task of the loop on which the saver is used; `await aclose()` at the end, or use it in an `async with`.
    """

    _hot_class = AsyncRedisSaver

    def __init__(self, hot: AsyncRedisSaver, cold: BaseCheckpointSaver[Any], **settings: Any) -> None:
        """As `_Tiered`."""
        super().__init__(hot, cold, **settings)
        self._failures = clients.failures_of(hot._home.client)  # noqa: SLF001
        self._under_way = dict[tuple[Any, ...], asyncio.Future[None]]()
        self._flusher = AsyncFlusher(self)

    async def aflush(self, timeout: float | None = None) -> int:
        """Bring to cold all that only hot has, of all processes, as `TieredSaver.flush`."""
        return await self._flusher.drain(timeout)

    async def aclose(self, timeout: float = 10.0) -> int:
        """Stop the flusher, as `TieredSaver.close`."""
        deadline = time.monotonic() + timeout
        await self._flusher.stop(timeout)
        return await self.aflush(max(0.0, deadline - time.monotonic())) if self.flushes else 0

    async def __aenter__(self) -> Self:
        """Return the saver itself; its flusher is at work from now on."""
        if self.flushes:
            self._flusher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()

    def _run(self, operation: Tiered[T]) -> T:
        if self.flushes:
            self.hot._home.loop_for(None).call_soon_threadsafe(self._flusher.start)  # noqa: SLF001
        with _own_error():
            return drivers.run(operation, self._exchange)

    async def _arun(self, operation: Tiered[T]) -> T:
        if self.flushes:
            self._flusher.start()
        with _own_error():
            return await drivers.arun(operation, self._aexchange)

    def _exchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            return self._ask_cold_from_outside(request, self.cold)
        if isinstance(request, Try):
            with noting() as noted:
                self._ask_cold_from_outside(request.cold, self._carrier_of_cold)
            return noted.error
        if isinstance(request, Once):
            return drivers.run(request.make(), self._exchange)
        if isinstance(request, Pause):
            return time.sleep(request.seconds)
        try:
            return self.hot._exchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    def _ask_cold_from_outside(self, request: Cold, cold: Any) -> Any:
        if request.method == "delete_for_runs" and (delete := postgres_runs.adeleting(cold)):
            return asyncio.run_coroutine_threadsafe(delete(*request.arguments), cold.loop).result()
        answer = getattr(cold, request.method)(*request.arguments, **request.options)
        return list(answer) if request.method == "list" else answer

    async def _aexchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            return await self._ask_cold(request, self.cold)
        if isinstance(request, Try):
            with noting() as noted:
                await self._ask_cold(request.cold, self._carrier_of_cold)
            return noted.error
        if isinstance(request, Once):
            return await self._once(request)
        if isinstance(request, Pause):
            return await asyncio.sleep(request.seconds)
        try:
            return await self.hot._aexchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    async def _ask_cold(self, request: Cold, cold: BaseCheckpointSaver[Any]) -> Any:
        if request.method == "delete_for_runs" and (delete := postgres_runs.adeleting(cold)):
            return await delete(*request.arguments)
        answer = getattr(cold, "a" + request.method)(*request.arguments, **request.options)
        return [one async for one in answer] if request.method == "list" else await answer

    async def _once(self, request: Once) -> Any:
        loop = asyncio.get_running_loop()
        key = (loop, *request.key)
        if (under_way := self._under_way.get(key)) is not None:
            return await asyncio.shield(under_way)
        mine = self._under_way[key] = loop.create_future()
        try:
            return await drivers.arun(request.make(), self._aexchange)
        finally:
            del self._under_way[key]
            mine.set_result(None)
