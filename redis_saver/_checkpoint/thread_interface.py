"""What all our savers do with whole threads, beyond LangGraph's interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from redis_saver._checkpoint.pruning import Pruned
from redis_saver._checkpoint.retention import retention
from redis_saver._common import config as configs
from redis_saver._common import keywords
from redis_saver._common import ttl as ttls
from redis_saver._common.ttl import TTL
from redis_saver._engine.requests import T

InfoT = TypeVar("InfoT")
"""How a saver describes a thread."""
Made: TypeAlias = Callable[..., Generator[Any, Any, T]]
"""What makes an operation, of a saver's context and a method's arguments."""


class ThreadOperations(Protocol):
    """What these methods are made of."""

    prune: Made[Pruned]
    stream_threads: Made[None]
    get_thread: Made[Any]
    get_ttl: Made[timedelta | None]
    expire: Made[None]


class ThreadInterface(Generic[InfoT]):
    """Threads as a whole: which there are, how much is kept of them, when they expire."""

    _operations: ClassVar[ThreadOperations]

    @property
    @abstractmethod
    def _context(self) -> Any:
        """The saver as its operations see it."""

    @abstractmethod
    def _run(self, operation: Generator[Any, Any, T], name: str = "") -> T: ...

    @abstractmethod
    def _arun(self, operation: Generator[Any, Any, T], name: str = "") -> Awaitable[T]: ...

    @abstractmethod
    def _stream(self, operation: Generator[Any, Any, None], name: str = "") -> Iterator[Any]: ...

    @abstractmethod
    def _astream(self, operation: Generator[Any, Any, None], name: str = "") -> AsyncIterator[Any]: ...

    @keywords.checked
    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove old checkpoints of some threads, with their writes and with the values nothing refers to any more.

        What is kept is what `PostgresSaver.prune` (3.2) keeps. The namespace of a subgraph's call goes with the root checkpoint that the
        call started from: so calls that are finished go, and the call that an interrupt waits in stays. The namespace of a subgraph with
        `checkpointer=True` is kept like the root's. A kept checkpoint whose parent goes has no parent (`parent_config` is None).

        What is kept stays whole: its values, its pending writes, and the ancestors a `DeltaChannel` is rebuilt from, which stay in the list.

        Args:
            thread_ids: The threads. Those that do not exist, and an empty list, change nothing.
            strategy: `"keep_latest"` keeps the newest checkpoint of each namespace; `"delete"` removes the threads
                (`"delete_all"` too, which is what LangGraph's Agent Server says).
            keep_last: Keep this many of each namespace instead of one.
            older_than: Remove only what is older than this `timedelta`, or text such as `"30d"` (by the checkpoint's `ts`); the newest of a namespace stays in any case.
            dry_run: Remove nothing, and return what would be removed.

        Returns:
            How many checkpoints, writes, values (blobs) and bytes were removed, over all threads. Too low where the client
            had to send a step again after a lost reply. Over two tiers, what cold removed; zeros where cold is not LangGraph's Postgres
            saver, as others do not tell.

        Raises:
            ValueError: An unknown strategy, or arguments that contradict each other. Nothing was removed.
            ThreadBusy: A thread was written to during each of many attempts; what was removed so far is whole checkpoints.
            NotImplementedError: Over two tiers, where the cold saver cannot do it: a `DeltaChannel` in Postgres, or `keep_last`, `older_than` or
                `dry_run` with another saver. Nothing was removed, unless a thread began to use a `DeltaChannel` meanwhile: then those before it
                were pruned.
        """
        kept = retention(strategy, keep_last, older_than)
        return self._run(self._operations.prune(self._context, configs.names(thread_ids, "thread_id"), kept, dry_run))

    @keywords.checked
    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """`prune` for asyncio."""
        kept = retention(strategy, keep_last, older_than)
        return await self._arun(
            self._operations.prune(self._context, configs.names(thread_ids, "thread_id"), kept, dry_run)
        )

    @keywords.checked
    def threads(self, thread_prefix: str = "") -> Iterator[InfoT]:
        """The threads there are, in no order, found with SCAN while you draw from the iterator.

        Cost: a look at all keys of the server, in pages; one page is in memory. As SCAN may, it can name a thread twice while the server resizes
        its tables. Over two tiers, the threads of hot come first, then those that only cold has; the names of hot's threads are in memory. A
        cold saver that is not LangGraph's Postgres saver is read whole.

        Args:
            thread_prefix: Only threads whose name begins so.

        Raises:
            ThreadDamaged, KeyConflict: A thread cannot be read, while iterating; the message names it.
        """
        return self._stream(self._operations.stream_threads(self._context, thread_prefix), "threads")

    @keywords.checked
    def athreads(self, thread_prefix: str = "") -> AsyncIterator[InfoT]:
        """`threads` for asyncio."""
        return self._astream(self._operations.stream_threads(self._context, thread_prefix), "threads")

    def get_thread(self, thread_id: str) -> InfoT | None:
        """One thread, as `threads()` describes it; None: there is no such thread.

        Cost: one round trip; over two tiers one to each. A cold saver that is not LangGraph's Postgres saver is asked for all checkpoints of the thread.
        """
        found: InfoT | None = self._run(
            self._operations.get_thread(self._context, configs.name(thread_id, "thread_id"))
        )
        return found

    async def aget_thread(self, thread_id: str) -> InfoT | None:
        """`get_thread` for asyncio."""
        return await self._arun(self._operations.get_thread(self._context, configs.name(thread_id, "thread_id")))

    def get_thread_ttl(self, thread_id: str) -> timedelta | None:
        """The time a thread has left; None: it does not expire, or is not there (`get_thread` tells which). Over two tiers, in hot."""
        return self._run(
            self._operations.get_ttl(self._context, configs.name(thread_id, "thread_id")), "get_thread_ttl"
        )

    async def aget_thread_ttl(self, thread_id: str) -> timedelta | None:
        """`get_thread_ttl` for asyncio."""
        return await self._arun(
            self._operations.get_ttl(self._context, configs.name(thread_id, "thread_id")), "get_thread_ttl"
        )

    def set_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """Give a thread a TTL of its own: it expires so long after now, and after each write from now on. Ends a pin.

        Args:
            thread_id: The thread.
            ttl: A `timedelta`, a text such as `"90m"`, or `{"default_ttl": minutes}`; None goes back to the saver's TTL.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(
            self._operations.expire(self._context, configs.name(thread_id, "thread_id"), *_own_ttl(ttl)),
            "set_thread_ttl",
        )

    async def aset_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """`set_thread_ttl` for asyncio."""
        await self._arun(
            self._operations.expire(self._context, configs.name(thread_id, "thread_id"), *_own_ttl(ttl)),
            "set_thread_ttl",
        )

    def pin(self, thread_id: str) -> None:
        """Keep a thread until `unpin`, whatever TTL its saver, or a later `configurable["thread_ttl"]`, has.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(self._operations.expire(self._context, configs.name(thread_id, "thread_id"), "pin"), "pin")

    async def apin(self, thread_id: str) -> None:
        """`pin` for asyncio."""
        await self._arun(self._operations.expire(self._context, configs.name(thread_id, "thread_id"), "pin"), "pin")

    def unpin(self, thread_id: str) -> None:
        """End a pin: the saver's TTL counts from now; without one the thread stays. Not pinned: nothing happens.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(self._operations.expire(self._context, configs.name(thread_id, "thread_id"), "unpin"), "unpin")

    async def aunpin(self, thread_id: str) -> None:
        """`unpin` for asyncio."""
        await self._arun(self._operations.expire(self._context, configs.name(thread_id, "thread_id"), "unpin"), "unpin")


def _own_ttl(ttl: TTL) -> tuple[str, int | None]:
    """What `expire` is to do."""
    own = ttls.parse(ttl, refresh_allowed=False).milliseconds
    return ("clear" if own is None else "set"), own
