"""`TieredSaver` and `AsyncTieredSaver`: a saver of ours that answers, in front of one that remembers."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
)
from typing_extensions import Self

from redis_saver import clients, drivers
from redis_saver import config as configs
from redis_saver.aio import AsyncRedisSaver
from redis_saver.interface import Interface, Operations
from redis_saver.requests import T
from redis_saver.sync import RedisSaver
from redis_saver.tiers import operations, postgres_runs, threads
from redis_saver.tiers.model import Cold, HotFailed, Once, OnHotError, Stats, Tiered, Verify

Hot = TypeVar("Hot", RedisSaver, AsyncRedisSaver)


class _Tiered(Interface, Generic[Hot]):
    """What both flavours share.

    All is written to `cold` before `hot`, and reading is up to hot: see `redis_saver.tiers` for what is guaranteed. All writers of
    a thread must go through tiers with the same two stores, or `verify` must be other than "never".
    """

    _operations: ClassVar[Operations] = operations
    _hot_class: ClassVar[type[Any]]

    def __init__(
        self,
        hot: Hot,
        cold: BaseCheckpointSaver[Any],
        *,
        on_hot_error: OnHotError = "raise",
        verify: Verify = "never",
    ) -> None:
        """Put a saver in front of another. Both stay the caller's.

        Args:
            hot: A saver of ours of the same flavour; give it a TTL.
            cold: Any saver with the methods that are used, such as a `PostgresSaver` that was set up. It decides what can be stored, and
                how metadata come back.
            on_hot_error: What to do where hot cannot be reached: `"raise"` its error, or `"bypass"` it: read from cold alone, and
                end in cold alone the writes that are under way. A write that hot could not even be told of raises in any case,
                and cold has not got it: another process may still see hot, and would go on believing it.
            verify: Whether a newest checkpoint that hot answers is compared with cold's, for writers that go straight to cold:
                `"never"`, `"on_open"` (once for each thread and namespace in this process), `"always"`.

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
        super().__init__(serde=hot.serde)
        self.hot, self.cold, self.on_hot_error, self.verify = hot, cold, on_hot_error, verify
        self.counts = Stats()
        self.verified: set[tuple[str, str]] = set()
        self.empty: dict[str, tuple[str, str]] = {}

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
    """A `RedisSaver` in front of any saver, write-through. Its `a...` methods run in worker threads."""

    _hot_class = RedisSaver

    def __init__(self, hot: RedisSaver, cold: BaseCheckpointSaver[Any], **settings: Any) -> None:
        """As `_Tiered`."""
        super().__init__(hot, cold, **settings)
        self._failures = clients.failures_of(hot._client)  # noqa: SLF001
        self._lock, self._under_way = threading.Lock(), dict[tuple[str, ...], Future[None]]()

    def _run(self, operation: Tiered[T]) -> T:
        with _own_error():
            return drivers.run(operation, self._exchange)

    async def _arun(self, operation: Tiered[T]) -> T:
        return await asyncio.to_thread(self._run, operation)

    def _exchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            if request.method == "delete_for_runs" and (delete := postgres_runs.deleting(self.cold)):
                return delete(*request.arguments)
            answer = getattr(self.cold, request.method)(*request.arguments, **request.options)
            return list(answer) if request.method == "list" else answer
        if isinstance(request, Once):
            return self._once(request)
        try:
            return self.hot._exchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

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
    """An `AsyncRedisSaver` in front of any saver with `a...` methods, write-through.

    Its methods without an `a` work from threads that run no event loop, as far as those of `cold` do.
    """

    _hot_class = AsyncRedisSaver

    def __init__(self, hot: AsyncRedisSaver, cold: BaseCheckpointSaver[Any], **settings: Any) -> None:
        """As `_Tiered`."""
        super().__init__(hot, cold, **settings)
        self._failures = clients.failures_of(hot._home.client)  # noqa: SLF001
        self._under_way = dict[tuple[Any, ...], asyncio.Future[None]]()

    def _run(self, operation: Tiered[T]) -> T:
        with _own_error():
            return drivers.run(operation, self._exchange)

    async def _arun(self, operation: Tiered[T]) -> T:
        with _own_error():
            return await drivers.arun(operation, self._aexchange)

    def _exchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            if request.method == "delete_for_runs" and (delete := postgres_runs.adeleting(self.cold)):
                home = self.cold.loop  # type: ignore[attr-defined]
                return asyncio.run_coroutine_threadsafe(delete(*request.arguments), home).result()
            answer = getattr(self.cold, request.method)(*request.arguments, **request.options)
            return list(answer) if request.method == "list" else answer
        if isinstance(request, Once):
            return drivers.run(request.make(), self._exchange)
        try:
            return self.hot._exchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

    async def _aexchange(self, request: Any) -> Any:
        if isinstance(request, Cold):
            if request.method == "delete_for_runs" and (delete := postgres_runs.adeleting(self.cold)):
                return await delete(*request.arguments)
            answer = getattr(self.cold, "a" + request.method)(*request.arguments, **request.options)
            return [one async for one in answer] if request.method == "list" else await answer
        if isinstance(request, Once):
            return await self._once(request)
        try:
            return await self.hot._aexchange(request)  # noqa: SLF001
        except self._failures as error:
            if self.on_hot_error == "bypass":
                raise HotFailed from error
            raise

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
