"""What all our savers do with whole threads, beyond LangGraph's interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._checkpoint import guards
from redis_saver._checkpoint.diff import CheckpointDiff, diff
from redis_saver._checkpoint.owned_thread import Ownership
from redis_saver._checkpoint.ownership import OnBusy, Record, Terms
from redis_saver._checkpoint.pruning import Pruned
from redis_saver._checkpoint.retention import Retention, retention
from redis_saver._checkpoint.threads import ThreadState, thread_query
from redis_saver._common import config as configs
from redis_saver._common import keywords
from redis_saver._common import ttl as ttls
from redis_saver._common.ttl import TTL
from redis_saver._engine import scripts
from redis_saver._engine.requests import T
from redis_saver._engine.runner import Driver
from redis_saver._engine.scripts import Script
from redis_saver._storage.context import Context

InfoT = TypeVar("InfoT")
"""How a saver describes a thread."""
Operates: TypeAlias = Callable[..., Generator[Any, Any, T]]
"""A method that makes an operation of a call's arguments."""


class ThreadInterface(Generic[InfoT]):
    """Threads as a whole: which there are, how much is kept of them, when they expire."""

    _guarded: ClassVar[Mapping[Script, Script]] = scripts.GUARDED
    """The scripts that look who may write, in place of those that do not."""
    _driver: Driver[Any]
    """What runs the operations."""
    serde: SerializerProtocol
    _get_tuple_gen: Operates[CheckpointTuple | None]
    _prune_gen: Operates[Pruned]
    _stream_threads_gen: Operates[None]
    _get_thread_gen: Operates[InfoT | None]
    _get_ttl_gen: Operates[timedelta | None]
    _expire_gen: Operates[None]

    @property
    @abstractmethod
    def _context(self) -> Any:
        """The saver as its operations see it."""

    @property
    @abstractmethod
    def _rules(self) -> Context:
        """The saver on the server that knows who owns threads: its settings."""

    @abstractmethod
    def _take(self, terms: Terms, nonce: str) -> Generator[Any, Any, Record]:
        """Take a thread (`ownership.take`)."""

    @property
    @abstractmethod
    def _owner_driver(self) -> Driver[Any]:
        """What runs operations on that server."""

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
        return self._run(self._prune(thread_ids, retention(strategy, keep_last, older_than), dry_run), "prune")

    def _prune(self, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Generator[Any, Any, Pruned]:
        prune = self._prune_gen(configs.names(thread_ids, "thread_id"), kept, dry_run)
        return guards.of_change(self._rules, self._guarded, prune, deletes=kept is None)

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
        return await self._arun(self._prune(thread_ids, retention(strategy, keep_last, older_than), dry_run), "prune")

    @keywords.checked
    def own(
        self,
        thread_id: str,
        *,
        lease: timedelta | str = "30s",
        on_busy: OnBusy = "raise",
        wait: timedelta | str | None = None,
        by: str | None = None,
        run_id: str | None = None,
    ) -> Ownership:
        """Own a thread while a block runs: `with saver.own(thread_id) as config:`, or `async with`.

        The block runs the graph with that config (or one merged with it): `graph.invoke(input, config)`. Its `configurable["thread_owner"]` is a token,
        a str, which also subgraphs get, and which may be handed to other processes that write for this run. Each write with a token is refused
        (`NotOwner`) unless it is the one of who owns the thread now. So a run whose thread was taken cannot write any more, however late it
        wakes up. Inside of the block, also `delete_thread`, `prune` and other methods of this saver write as the owner.

        The thread need not exist. Ownership is no part of it: `copy_thread` does not copy it. A deletion by anybody else ends it, and so does a
        copy onto the thread.

        Cost: one round trip to take the thread, one to give it back, and one in the background for each third of the
        lease. Writes need no more round trips. The first waiter of a process polls, up to 100 times a second.

        Args:
            thread_id: The thread.
            lease: How long it is owned if this process dies: between a second and a day. While the block runs it is renewed. Who is late (because the
                process was stopped, or could not reach the server) may go on as long as nobody took the thread, for a day.
            on_busy: Rule for a thread that somebody else owns by a lease that lasts.
                `"raise"`: raise `NotOwner`.
                `"wait"`: wait until the owner gives it back, or the lease runs out. Waiters get it in order of arrival.
                `"take"`: take the thread. What the other owner still writes is refused.
                `"rollback"`: take it, and remove the checkpoints of the other owner's `run_id`, if it had one. Other
                threads stay as they are.
            wait: Longest time to wait, with `"wait"`. After it, the block raises `NotOwner`. None: no limit.
            by: Who the owner is, for people: errors, logs and `threads()` show it. Default: the host and the process.
            run_id: The run's id. Its checkpoints get it as their metadata's `run_id`.

        Raises:
            NotOwner: When the block begins: somebody else owns the thread.
            ValueError, TypeError: An argument makes no sense.
        """
        terms = Terms.of(thread_id, lease, on_busy, wait, by, run_id)
        return Ownership(terms, self._rules, self._owner_driver, self._driver, self._take)

    @keywords.checked
    def threads(
        self,
        thread_prefix: str = "",
        *,
        state: ThreadState | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        min_bytes: int = 0,
        expires_within: timedelta | str | None = None,
        pinned: bool | None = None,
        dirty: bool | None = None,
        owned: bool | None = None,
    ) -> Iterator[InfoT]:
        """The threads there are, in no order, found with SCAN while you draw from the iterator.

        Cost: a look at all keys of the server, in pages; one page is in memory. The server itself leaves out threads that do not match, but for
        `updated_after` and `updated_before`, which this process compares. As SCAN may, it can name a thread twice while the server resizes its
        tables. Over two tiers, the threads of hot come first, then those that only cold has; the names of hot's threads are in memory, and all
        conditions are looked at in this process, on what both tiers have together. A cold saver that is not LangGraph's Postgres saver is read whole.

        Args:
            thread_prefix: Only threads whose name begins so.
            state: `"interrupted"`: the newest checkpoint of the root namespace has a pending `interrupt()`. `"failed"`: it has a pending error of
                a task. `"active"`: neither; the thread runs, is done, or was broken off.
            updated_after: Only threads whose newest checkpoint has a later time (`ts`) than this `datetime`, which has a zone.
            updated_before: Only those whose newest checkpoint has an earlier one.
            min_bytes: Only threads of at least so many bytes.
            expires_within: Only threads that expire within this `timedelta`, or text such as `"1h"`.
            pinned: Only threads that are pinned, or only others.
            dirty: Only threads of which cold does not have all yet, or only others. Without a cold saver none is dirty.
            owned: Only threads that somebody owns (`own`) by a lease that lasts, or only others. Over two tiers, as far as hot has them.

        Raises:
            TypeError, ValueError: An argument makes no sense. Raised by the call itself.
            ThreadDamaged, KeyConflict: A thread cannot be read, while iterating; the message names it.
        """
        asked = thread_query(
            thread_prefix, state, updated_after, updated_before, min_bytes, expires_within, pinned, dirty, owned
        )
        return self._stream(self._stream_threads_gen(asked), "threads")

    @keywords.checked
    def athreads(
        self,
        thread_prefix: str = "",
        *,
        state: ThreadState | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        min_bytes: int = 0,
        expires_within: timedelta | str | None = None,
        pinned: bool | None = None,
        dirty: bool | None = None,
        owned: bool | None = None,
    ) -> AsyncIterator[InfoT]:
        """`threads` for asyncio."""
        asked = thread_query(
            thread_prefix, state, updated_after, updated_before, min_bytes, expires_within, pinned, dirty, owned
        )
        return self._astream(self._stream_threads_gen(asked), "threads")

    def get_thread(self, thread_id: str) -> InfoT | None:
        """One thread, as `threads()` describes it; None: there is no such thread.

        Cost: one round trip; over two tiers one to each. A cold saver that is not LangGraph's Postgres saver is asked for all checkpoints of the thread.
        """
        found: InfoT | None = self._run(self._get_thread_gen(configs.name(thread_id, "thread_id")))
        return found

    async def aget_thread(self, thread_id: str) -> InfoT | None:
        """`get_thread` for asyncio."""
        return await self._arun(self._get_thread_gen(configs.name(thread_id, "thread_id")))

    @keywords.checked
    def diff(self, thread_id: str, before: str, after: str | None = None, *, checkpoint_ns: str = "") -> CheckpointDiff:
        """What differs between two checkpoints of a thread: channels, and inside of their values.

        Dicts are compared by key, sets by element, lists by element between what is the same at the front and at the end of both, messages by id (whatever
        their order) and field, all else by the bytes that the serializer makes of it. A `DeltaChannel` has a value only where a snapshot was taken; where
        one of the two has none, it is named in `CheckpointDiff.not_compared`.

        Cost: two `get_tuple`, which count as reads for a TTL with `refresh_on_read`. Both checkpoints are in memory. Only channels with another
        version are compared.

        Args:
            thread_id: The thread.
            before: The id of the first checkpoint.
            after: The id of the second one; None: the newest.
            checkpoint_ns: The namespace of both; empty for the root.

        Raises:
            ThreadNotFound: One of them is not there.
        """
        return self._run(self._diff(thread_id, before, after, checkpoint_ns))

    @keywords.checked
    async def adiff(
        self, thread_id: str, before: str, after: str | None = None, *, checkpoint_ns: str = ""
    ) -> CheckpointDiff:
        """`diff` for asyncio."""
        return await self._arun(self._diff(thread_id, before, after, checkpoint_ns))

    def _diff(
        self, thread_id: str, before: str, after: str | None, checkpoint_ns: str
    ) -> Generator[Any, Any, CheckpointDiff]:
        thread, ns = configs.name(thread_id, "thread_id"), configs.name(checkpoint_ns, "checkpoint_ns")
        ids = configs.name(before, "before"), None if after is None else configs.name(after, "after")
        return diff(self._get_tuple_gen, self.serde, thread, ns, *ids)

    def get_thread_ttl(self, thread_id: str) -> timedelta | None:
        """The time a thread has left; None: it does not expire, or is not there (`get_thread` tells which). Over two tiers, in hot."""
        return self._run(self._get_ttl_gen(configs.name(thread_id, "thread_id")), "get_thread_ttl")

    async def aget_thread_ttl(self, thread_id: str) -> timedelta | None:
        """`get_thread_ttl` for asyncio."""
        return await self._arun(self._get_ttl_gen(configs.name(thread_id, "thread_id")), "get_thread_ttl")

    def set_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """Give a thread a TTL of its own: it expires so long after now, and after each write from now on. Ends a pin.

        Args:
            thread_id: The thread.
            ttl: A `timedelta`, a text such as `"90m"`, or `{"default_ttl": minutes}`; None goes back to the saver's TTL.

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadBusy: Over two tiers, only cold has the thread, and it could not be brought back to Redis.
        """
        self._run(
            self._expire_gen(configs.name(thread_id, "thread_id"), *_own_ttl(ttl)),
            "set_thread_ttl",
        )

    async def aset_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """`set_thread_ttl` for asyncio."""
        await self._arun(
            self._expire_gen(configs.name(thread_id, "thread_id"), *_own_ttl(ttl)),
            "set_thread_ttl",
        )

    def pin(self, thread_id: str) -> None:
        """Keep a thread until `unpin`, whatever TTL its saver, or a later `configurable["thread_ttl"]`, has.

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadBusy: As `set_thread_ttl`.
        """
        self._run(self._expire_gen(configs.name(thread_id, "thread_id"), "pin"), "pin")

    async def apin(self, thread_id: str) -> None:
        """`pin` for asyncio."""
        await self._arun(self._expire_gen(configs.name(thread_id, "thread_id"), "pin"), "pin")

    def unpin(self, thread_id: str) -> None:
        """End a pin: the saver's TTL counts from now; without one the thread stays. Not pinned: nothing happens.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(self._expire_gen(configs.name(thread_id, "thread_id"), "unpin"), "unpin")

    async def aunpin(self, thread_id: str) -> None:
        """`unpin` for asyncio."""
        await self._arun(self._expire_gen(configs.name(thread_id, "thread_id"), "unpin"), "unpin")


def _own_ttl(ttl: TTL) -> tuple[str, int | None]:
    """What `expire` is to do."""
    own = ttls.parse(ttl, refresh_allowed=False).milliseconds
    return ("clear" if own is None else "set"), own
