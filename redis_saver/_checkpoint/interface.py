"""The interface of all our savers. Each method is one operation, which the saver's driver runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from redis_saver._checkpoint import guards, retention
from redis_saver._checkpoint.checking import CheckReport
from redis_saver._checkpoint.comparing import CheckpointDiff, diff
from redis_saver._checkpoint.ownership import OnBusy, Ownership, Record, Terms
from redis_saver._checkpoint.pruning import Pruned
from redis_saver._checkpoint.threads import ThreadQuery, ThreadState
from redis_saver._common import config as configs, names, ttl
from redis_saver._common.ttl import TTL
from redis_saver._engine.counting import Counting
from redis_saver._engine.requests import R, Request, T
from redis_saver._engine.runner import Driver
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import with_key

InfoT = TypeVar("InfoT")
"""A saver's description of a thread."""
P = ParamSpec("P")
OperationT = TypeVar("OperationT", bound=Generator[Any, Any, Any])
Operates: TypeAlias = Callable[..., Generator[Any, Any, T]]
"""A method that turns a call's arguments into an operation."""


def as_method(function: Callable[Concatenate[Any, P], OperationT]) -> Callable[Concatenate[Any, P], OperationT]:
    """Turn a function whose first argument is a saver's context into a method."""

    def method(saver: Interface[Any], /, *args: P.args, **kwargs: P.kwargs) -> OperationT:
        return function(saver._context, *args, **kwargs)  # noqa: SLF001 - it is a method

    return method


def as_keyed_method(
    function: Callable[Concatenate[Context, RunnableConfig, P], Generator[R, Any, T]], *, creates: bool = False
) -> Callable[Concatenate[Any, RunnableConfig, P], Generator[R | Request, Any, T]]:
    """Turn an operation on a config's thread into a method. With `encryption=` it runs as by `with_key`."""

    def method(saver: Interface[Any], config: RunnableConfig, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        context: Context = saver._context  # noqa: SLF001 - it is a method
        if context.data_keys is None:
            return function(context, config, *args, **kwargs)
        thread = configs.thread_id(config)
        return with_key(
            context, thread, lambda of: function(of, config, *args, **kwargs), creates=creates, config=config
        )

    return method


class Interface(BaseCheckpointSaver[str], Generic[InfoT]):
    """Interface of all our savers. Every method also has an asyncio form with the prefix `a`.

    A `config` argument is `{"configurable": {"thread_id", "checkpoint_ns", "checkpoint_id"}}`. Without a namespace it
    means the root. Every method raises the client's own errors if the server cannot be reached or refuses a command. It
    raises `ThreadDamaged` if a part of the thread is gone. None and empty results mean that there is nothing.
    """

    _context: Any
    """The saver as its operations see it."""
    _driver: Driver[Any]
    """Driver that runs the operations."""
    _counting: Counting
    """Counter of the calls."""
    _refuses_forks: bool
    """True for `on_fork="raise"`."""
    # The operations behind the methods: on one server (`Saver`), or over two tiers (`TwoTiers`).
    _put_gen: Operates[RunnableConfig]
    _put_writes_gen: Operates[None]
    _list_checkpoints_gen: Operates[None]
    """It checks its arguments at once, and returns a stream."""
    _get_delta_channel_history_gen: Operates[Mapping[str, DeltaChannelHistory]]
    _new_thread_gen: Operates[str]
    _delete_thread_gen: Operates[None]
    _delete_for_runs_gen: Operates[None]
    _copy_thread_gen: Operates[None]
    _get_tuple_gen: Operates[CheckpointTuple | None]
    _prune_gen: Operates[Pruned]
    _stream_threads_gen: Operates[None]
    _get_thread_gen: Operates[InfoT | None]
    _get_ttl_gen: Operates[timedelta | None]
    _expire_gen: Operates[None]
    _check_gen: Operates[CheckReport]
    _take: Operates[Record]
    """Takes a thread (`ownership.take`)."""

    @property
    def _rules(self) -> Context:
        """The settings of the saver on the server that holds the owners of threads."""
        context: Context = self._context
        return context

    @property
    def _owner_driver(self) -> Driver[Any]:
        """Driver that runs operations on that server."""
        return self._driver

    def _run(self, operation: Generator[Any, Any, T], name: str = "") -> T:
        return self._driver.run(self._counting.call(operation, name))

    def _arun(self, operation: Generator[Any, Any, T], name: str = "") -> Awaitable[T]:
        return self._driver.arun(self._counting.call(operation, name))

    def _stream(self, operation: Generator[Any, Any, None], name: str = "") -> Iterator[Any]:
        return self._driver.stream(self._counting.stream(operation, name))

    def _astream(self, operation: Generator[Any, Any, None], name: str = "") -> AsyncIterator[Any]:
        return self._driver.astream(self._counting.stream(operation, name))

    # -- checkpoints

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read the newest checkpoint of a namespace (the one with the greatest id), or the one with `checkpoint_id`.

        Returns:
            The checkpoint with its values, metadata, parent and pending writes (in `writes_sort_key` order); its config
            always carries the `checkpoint_id`. None if there is no such checkpoint.

        Raises:
            ThreadDamaged: A key or a value of the thread is gone, or cannot be decoded.
        """
        saved = self._run(self._get_tuple_gen(config), "get_tuple")
        return guards.marked(saved, config) if self._refuses_forks else saved

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` for asyncio."""
        saved = await self._arun(self._get_tuple_gen(config), "get_tuple")
        return guards.marked(saved, config) if self._refuses_forks else saved

    async def aget_iter(self, config: RunnableConfig) -> AsyncIterator[CheckpointTuple]:
        """Return an iterator over the result of `aget_tuple`. LangGraph's Agent Server calls this."""
        saved = await self.aget_tuple(config)

        async def iterate() -> AsyncIterator[CheckpointTuple]:
            if saved is not None:
                yield saved

        return iterate()

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest (greatest id) first. The iterator reads page by page.

        Args:
            config: A thread, and optionally a namespace and a checkpoint id. `""` is the root namespace; without
                `checkpoint_ns` all are listed. None lists all threads. This scans all keys of the server (SCAN), with
                one step per thread.
            filter: Metadata keys with their required value, or with operators: `{"step": {"$gte": 2}}`. Known operators
                are `$eq $ne $gt $gte $lt $lte $in $nin $exists`. Values of checkpoints that do not match are not
                loaded.
            before: Only checkpoints with an id below this config's.
            limit: Maximum number of checkpoints; 0 lists none.

        Raises:
            ValueError, TypeError: An argument is invalid. Raised by the call itself.
            ThreadDamaged: As `get_tuple`. Raised by the iterator. With `config=None` one damaged thread ends it. The
                message names it.
            KeyUnavailable: The key of a thread was destroyed. With `config=None` such threads may be skipped
                (`Encryption.on_unavailable`).
        """
        return self._stream(self._list_checkpoints_gen(config, filter, before, limit), "list")

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list` for asyncio."""
        return self._astream(self._list_checkpoints_gen(config, filter, before, limit), "list")

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, all or nothing. The config's `checkpoint_id` is its parent.

        Only the values of `new_versions` are sent. If the server lacks one of the others, all are sent. That happens if
        the thread expired or was deleted during the run. So a checkpoint is always stored with all its values. As in
        LangGraph's savers, a value of an unchanged version that had no value at the parent is left out. LangGraph puts
        one if a `DeltaChannel` became a plain list.

        Args:
            config: The thread, the namespace, the parent. `configurable["thread_ttl"]` changes the thread's TTL: a
                `timedelta`, a text such as `"30d"`, or `{"default_ttl": minutes}`. `configurable["thread_history"]`
                changes its history limit: `"all"` or `{"keep_last": n}` (`docs/threads.md`).
            checkpoint: The checkpoint with its values.
            metadata: Its metadata; merged with the config's by `get_checkpoint_metadata`.
            new_versions: The channels that changed since the parent.

        Returns:
            The config of the stored checkpoint.

        Raises:
            EncodeError: The serializer does not know a value. Nothing was written.
            NotOwner: `configurable["thread_owner"]` is not the token of the thread's owner. Or it is missing with
                `ownership="required"`. Nothing was written.
            StaleParent: With `on_fork="raise"`: the parent is no longer the newest checkpoint. Nothing was written.
        """
        return self._run(self._put_gen(config, checkpoint, metadata, new_versions), "put")

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put` for asyncio."""
        return await self._arun(self._put_gen(config, checkpoint, metadata, new_versions), "put")

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store pending writes of a task on a checkpoint, all or nothing. The checkpoint need not exist yet.

        A write is identified by its task and its index in `writes`. If it is sent again, its first value stays. A write
        to a special channel (`WRITES_IDX_MAP`) takes the newest value.

        Raises:
            EncodeError: The serializer does not know a value. Nothing was written.
            ValueError: The config has no `checkpoint_id`.
            NotOwner: As in `put`.
        """
        return self._run(self._put_writes_gen(config, writes, task_id, task_path), "put_writes")

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes` for asyncio."""
        return await self._arun(self._put_writes_gen(config, writes, task_id, task_path), "put_writes")

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Collect the nearest stored value of `DeltaChannel` channels, and the ancestors' writes since.

        Cost: one round trip for each 200 ancestors or 4 MB.

        Args:
            config: The checkpoint to rebuild the channels for; without an id, the newest.
            channels: Their names.

        Returns:
            For each channel `writes`, oldest first, and `seed` if an ancestor has a value.
        """
        return self._run(self._get_delta_channel_history_gen(config, channels), "get_delta_channel_history")

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history` for asyncio."""
        return await self._arun(self._get_delta_channel_history_gen(config, channels), "get_delta_channel_history")

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Return a version that sorts above `current` and that no other branch of the thread ever gets.

        Its random part comes from the operating system. So it differs after a fork, or after the same `random.seed()`.
        """
        return names.next_version(current)

    # -- threads

    def new_thread(self, config: RunnableConfig | None = None, *, prefix: str = "") -> str:
        """Return a name for a new thread. Nobody has used it. Names sort by time.

        Over two tiers, hot remembers that cold has nothing of the thread, so its first turn does not ask cold
        (`docs/tiered.md`). The thread begins with its first write. Until then no method shows it.

        Cost: nothing is sent; over two tiers one round trip.

        Args:
            config: A config of the thread's runs. Only its `thread_ttl` counts: hot remembers for this time. Default: a
                day.
            prefix: Beginning of the name, such as that of a tenant: `acme:`.

        Raises:
            LimitExceeded: The name would be too long.
            TypeError, ValueError: An argument is invalid.
        """
        return self._run(self._new_thread_gen(configs.ttl_of(config), configs.name(prefix, "prefix")), "new_thread")

    async def anew_thread(self, config: RunnableConfig | None = None, *, prefix: str = "") -> str:
        """`new_thread` for asyncio."""
        return await self._arun(
            self._new_thread_gen(configs.ttl_of(config), configs.name(prefix, "prefix")), "new_thread"
        )

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints, values and writes in all namespaces, in one step.

        A damaged thread is deleted too. Keys of another program stay (`KeyConflict`). A missing thread is no error. If
        somebody else owns the thread (`own`), the owner's next write raises `NotOwner`. With `ownership="required"` the
        deletion raises it instead.
        """
        return self._run(self._delete_thread_gen(configs.name(thread_id, "thread_id")), "delete_thread")

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` for asyncio."""
        return await self._arun(self._delete_thread_gen(configs.name(thread_id, "thread_id")), "delete_thread")

    def delete_for_runs(self, run_ids: Sequence[str], *, force: bool = False) -> None:
        """Delete the checkpoints whose metadata have one of these run ids, with their writes, in all threads.

        Checkpoints that `copy_thread` made stay, because a copy is not the work of its source's runs. Over two tiers
        they are deleted too, as cold knows runs only by their metadata. A remaining checkpoint may name a parent that
        is gone.

        Cost: a SCAN over the server's keys and one small lookup per thread, with 500 lookups in a round trip. In
        threads with checkpoints of these runs, all links are read, and the metadata of the checkpoints that follow
        them. Then each step removes up to 500 names.

        Args:
            run_ids: The runs. Runs without checkpoints, and an empty list, change nothing.
            force: True: delete also checkpoints from which later ones are rebuilt (`DeltaChannel`). The later ones, up
                to the next snapshot of the channel, lose its updates for good. With `encryption=` reading such a
                channel raises `ThreadDamaged`. Without, the channel is shorter than it was. `check` names the
                first such checkpoint.

        Raises:
            StillNeeded: A later checkpoint of another run is rebuilt from such a checkpoint. Nothing was deleted,
                unless that checkpoint was put during the call.
            TypeError: `run_ids` is one str instead of a list.
            ThreadBusy: A thread was written to during each of many attempts.
            ThreadDamaged, KeyConflict, KeyUnavailable: A thread could not be read. Raised when all other threads are
                done. Over two tiers, raised before anything is deleted.
            NotImplementedError: Over two tiers, if the cold saver cannot delete by run. Nothing was deleted.
        """
        runs = configs.names(run_ids, "run_id")
        return self._run(self._delete_for_runs_gen(runs, force=force), "delete_for_runs")

    async def adelete_for_runs(self, run_ids: Sequence[str], *, force: bool = False) -> None:
        """`delete_for_runs` for asyncio."""
        runs = configs.names(run_ids, "run_id")
        return await self._arun(self._delete_for_runs_gen(runs, force=force), "delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make a thread an exact copy of another: all checkpoints with their ids, in all namespaces, and their writes.

        The complete copy replaces the target's old contents in one step. So nobody sees a mixture, and a copy that
        fails leaves the target as it was. If the source does not exist, or is the target itself, nothing changes.

        Metadata that name the source as `thread_id` name the target instead. Metadata keep their `run_id`;
        `delete_for_runs` explains what it does to copies. The target gets the saver's TTL. The source's own TTL or pin
        is not copied. If somebody else owns the target (`own`), the owner's next write raises `NotOwner`. With
        `ownership="required"` the copy raises it instead.

        Over two tiers the copy is written to cold checkpoint by checkpoint. If that fails, the target in cold has only
        a part of the copy. Then copy again. A checkpoint that is put during the copy is in it as a whole, or not at
        all.

        Cost: the whole thread travels to this process and back, in pages of about 4 MB.

        Raises:
            ThreadBusy: Checkpoints of the source were removed during each of many attempts.
        """
        source, target = configs.name(source_thread_id, "thread_id"), configs.name(target_thread_id, "thread_id")
        return self._run(self._copy_thread_gen(source, target), "copy_thread")

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` for asyncio."""
        source, target = configs.name(source_thread_id, "thread_id"), configs.name(target_thread_id, "thread_id")
        return await self._arun(self._copy_thread_gen(source, target), "copy_thread")

    # -- beyond LangGraph's interface: whole threads

    def prune(  # type: ignore[override]  # LangGraph's returns None, and its callers rely on no more
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove old checkpoints of some threads, with their writes, and with values that nothing else refers to.

        The rule is that of `PostgresSaver.prune` (3.2). A subgraph call is removed with the root checkpoint that
        started it. So finished calls are removed, and a call that waits for an interrupt stays. The namespace of a
        subgraph with `checkpointer=True` is pruned like the root. If the parent of a kept checkpoint is removed, its
        `parent_config` is None.

        A kept checkpoint keeps its values and its pending writes. It also keeps the ancestors that rebuild a
        `DeltaChannel`. `list` still returns these.

        Args:
            thread_ids: The threads. Missing threads, and an empty list, change nothing.
            strategy: `"keep_latest"` keeps the newest checkpoint of each namespace. `"delete"` removes the threads, and
                so does `"delete_all"`, the word of LangGraph's Agent Server.
            keep_last: Number of checkpoints to keep in each namespace. Default: 1.
            older_than: Remove only checkpoints older than this `timedelta`, or text such as `"30d"`, by their `ts`. The
                newest of a namespace always stays.
            dry_run: Remove nothing, and return what would be removed.

        Returns:
            The numbers of removed checkpoints, writes, values (blobs) and bytes over all threads. They are too low if
            the client sent a step again after a lost reply. Over two tiers, they are cold's numbers. They are 0 if cold
            is not LangGraph's Postgres saver, as other savers do not return them.

        Raises:
            ValueError: The strategy is unknown, or arguments contradict each other. Nothing was removed.
            ThreadBusy: A thread was written to during each of many attempts. Some checkpoints may be removed already,
                each as a whole.
            KeyUnavailable: The key of a thread was destroyed. Of several threads, such ones may be skipped
                (`Encryption.on_unavailable`). Over two tiers no keys are needed.
            NotImplementedError: Over two tiers, the cold saver cannot do this: Postgres with a `DeltaChannel`, or
                another saver with `keep_last`, `older_than` or `dry_run`. Nothing was removed. But if a thread began to
                use a `DeltaChannel` meanwhile, the threads before it were pruned.
        """
        threads, kept = configs.names(thread_ids, "thread_id"), retention.retention(strategy, keep_last, older_than)
        return self._run(self._prune_gen(threads, kept, dry_run), "prune")

    async def aprune(  # type: ignore[override]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """`prune` for asyncio."""
        threads, kept = configs.names(thread_ids, "thread_id"), retention.retention(strategy, keep_last, older_than)
        return await self._arun(self._prune_gen(threads, kept, dry_run), "prune")

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

        The block runs the graph with that config, or one merged with it: `graph.invoke(input, config)`. Its
        `configurable["thread_owner"]` is a token, a str. Subgraphs get it too, and other processes that write for this
        run may use it. A write with a token raises `NotOwner` unless the token belongs to the current owner. So a run
        whose thread was taken can never write again, even if it was stopped for a long time. Inside the block,
        `delete_thread`, `prune` and other methods of this saver also write as the owner.

        The thread need not exist. Ownership is not part of the thread, so `copy_thread` does not copy it. It ends if
        somebody else deletes the thread, or copies another thread onto it.

        Cost: one round trip to take the thread, one to release it, and one in the background for each third of the
        lease. Writes need no more round trips. The first waiter of a process polls, up to 100 times a second.

        Args:
            thread_id: The thread.
            lease: Time after which others may take the thread if this process dies: between a second and a day. The
                block renews it. An owner that was stopped, or could not reach the server, may go on for up to a day,
                unless somebody else took the thread.
            on_busy: Rule for a thread that somebody else owns, with a lease that has not run out.
                `"raise"`: raise `NotOwner`.
                `"wait"`: wait until the owner gives it back, or the lease runs out. Waiters get it in order of arrival.
                `"take"`: take the thread. Later writes of the other owner are refused.
                `"rollback"`: take it, and remove the checkpoints of the other owner's `run_id`, if it had one. Other
                threads stay as they are.
            wait: Maximum time to wait, with `"wait"`. Then the block raises `NotOwner`. None: no limit.
            by: Description of the owner for people. Errors, logs and `threads()` show it. Default: the host and the
                process.
            run_id: The run's id. Its checkpoints get it as their metadata's `run_id`.

        Raises:
            NotOwner: Somebody else owns the thread when the block begins.
            StillNeeded: With `"rollback"`, a later checkpoint of another run is rebuilt from one of the run to remove
                (`DeltaChannel`). Nothing was removed.
            ValueError, TypeError: An argument is invalid.
        """
        terms = Terms.of(thread_id, lease, on_busy, wait, by, run_id)

        def taking(terms: Terms, nonce: str) -> Generator[Any, Any, Record]:
            return self._counting.call(self._take(terms, nonce), "own")

        return Ownership(terms, self._rules, self._owner_driver, self._driver, taking)

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
        """List threads in any order. The iterator finds them with SCAN, page by page.

        Cost: a SCAN of all keys of the server, with one page in memory. The server applies all filters except
        `updated_after` and `updated_before`, which this process applies. SCAN can return a thread twice while the
        server resizes its tables.

        Over two tiers, the threads of hot come first, with their names in memory. This process checks all conditions,
        on the data of both tiers. A cold saver other than LangGraph's Postgres saver is read completely.

        Args:
            thread_prefix: Only threads whose name begins with this.
            state: `"interrupted"`: the newest checkpoint of the root namespace has a pending `interrupt()`. `"failed"`:
                it has a pending error of a task. `"orphaned"`: the lease of its owner (`own`) ended before the owner
                released it, less than a day ago. `"active"`: none of these, so it runs, is done, or was stopped.
            updated_after: Only threads whose newest checkpoint has a later time (`ts`) than this `datetime`, which
                needs a time zone.
            updated_before: Only threads whose newest checkpoint has an earlier time.
            min_bytes: Only threads of at least this size.
            expires_within: Only threads that expire within this `timedelta`, or text such as `"1h"`.
            pinned: True: only pinned threads. False: only others.
            dirty: True: only threads with records that cold still lacks. False: only others. Without a cold saver no
                thread is dirty.
            owned: True: only threads with an owner (`own`) whose lease has not expired. False: only others. Over two
                tiers, only hot's threads have owners.

        Raises:
            TypeError, ValueError: An argument is invalid. Raised by the call itself.
            ThreadDamaged, KeyConflict: A thread cannot be read. Raised by the iterator. The message names the thread.
        """
        asked = ThreadQuery(thread_prefix, state, updated_after, updated_before, min_bytes, None, pinned, dirty, owned)
        return self._stream(self._stream_threads_gen(asked.checked(expires_within)), "threads")

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
        asked = ThreadQuery(thread_prefix, state, updated_after, updated_before, min_bytes, None, pinned, dirty, owned)
        return self._astream(self._stream_threads_gen(asked.checked(expires_within)), "threads")

    def get_thread(self, thread_id: str) -> InfoT | None:
        """Describe one thread as `threads()` does. Returns None if there is no such thread.

        Cost: one round trip; over two tiers one to cold, too, unless hot has the whole thread. A cold saver that is not
        LangGraph's Postgres saver returns all checkpoints of the thread.
        """
        return self._run(self._get_thread_gen(configs.name(thread_id, "thread_id")))

    async def aget_thread(self, thread_id: str) -> InfoT | None:
        """`get_thread` for asyncio."""
        return await self._arun(self._get_thread_gen(configs.name(thread_id, "thread_id")))

    def check(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """Check that a thread is whole: headers, digests, references, deadlines and counters. Nothing is written.

        Over two tiers hot is checked, and each of its checkpoints is compared with cold unless the thread is dirty.

        Cost: the whole thread is read once, in pages of about half a megabyte. A longer value has a page of its own.
        Values in chunks are read a second time. Memory holds all names and links, and one value at a time.

        Args:
            thread_id: The thread.
            values: True: also decode values, writes and metadata. False: no serializer is needed, and values in chunks
                are read only once. The comparison with cold decodes values in any case.

        Returns:
            The report. Its `findings` name each problem, its place, and its repair.

        Raises:
            ThreadNotFound: There is no such thread, or only cold has it. The message says which.
            ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
        """
        return self._run(self._check_gen(configs.name(thread_id, "thread_id"), values=values), "check")

    async def acheck(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """`check` for asyncio."""
        return await self._arun(self._check_gen(configs.name(thread_id, "thread_id"), values=values), "check")

    def diff(self, thread_id: str, before: str, after: str | None = None, *, checkpoint_ns: str = "") -> CheckpointDiff:
        """Compare two checkpoints of a thread: their channels, and the inside of their values.

        Dicts are compared by key, and sets by element. Lists are compared by element, without their common beginning
        and end. Messages are compared by id, in any order, and by field. All other values are compared by their
        serialized bytes. A `DeltaChannel` has a value only in a snapshot. If one of the two checkpoints is not a
        snapshot, `CheckpointDiff.not_compared` names the channel.

        Cost: two `get_tuple`, which count as reads for a TTL with `refresh_on_read`. Both checkpoints are in memory.
        Only channels with different versions are compared.

        Args:
            thread_id: The thread.
            before: The id of the first checkpoint.
            after: The id of the second one; None: the newest.
            checkpoint_ns: The namespace of both, empty for the root.

        Raises:
            ThreadNotFound: One of them does not exist.
        """
        return self._run(self._diff(thread_id, before, after, checkpoint_ns))

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
        return diff(self._get_tuple_gen, self.serde, *(configs.Address(thread, ns, id_) for id_ in ids))

    def get_thread_ttl(self, thread_id: str) -> timedelta | None:
        """Return the time until a thread expires, over two tiers the time until it expires in hot.

        None means that it does not expire, or does not exist. `get_thread` distinguishes these.
        """
        return self._run(self._get_ttl_gen(configs.name(thread_id, "thread_id")), "get_thread_ttl")

    async def aget_thread_ttl(self, thread_id: str) -> timedelta | None:
        """`get_thread_ttl` for asyncio."""
        return await self._arun(self._get_ttl_gen(configs.name(thread_id, "thread_id")), "get_thread_ttl")

    def set_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """Set the thread's own TTL. It starts now, and again with each later write. This unpins the thread.

        Over two tiers it is lost if hot drops its copy: in a prune, a conflict of writers, or an eviction.

        Args:
            thread_id: The thread.
            ttl: A `timedelta`, a text such as `"90m"`, or `{"default_ttl": minutes}`. None restores the saver's TTL.

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadBusy: Over two tiers, only cold has the thread, and it could not be brought back to Redis.
        """
        self._run(self._set_ttl(thread_id, ttl), "set_thread_ttl")

    async def aset_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """`set_thread_ttl` for asyncio."""
        await self._arun(self._set_ttl(thread_id, ttl), "set_thread_ttl")

    def _set_ttl(self, thread_id: str, requested: TTL) -> Generator[Any, Any, None]:
        own = ttl.parse(requested, refresh_allowed=False).milliseconds
        return self._expire_gen(configs.name(thread_id, "thread_id"), "clear" if own is None else "set", own)

    def pin(self, thread_id: str) -> None:
        """Keep a thread until `unpin`, regardless of the saver's TTL and of a later `configurable["thread_ttl"]`.

        Over two tiers a pin is lost as a TTL is (`set_thread_ttl`).

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadBusy: As `set_thread_ttl`.
        """
        self._run(self._expire_gen(configs.name(thread_id, "thread_id"), "pin"), "pin")

    async def apin(self, thread_id: str) -> None:
        """`pin` for asyncio."""
        await self._arun(self._expire_gen(configs.name(thread_id, "thread_id"), "pin"), "pin")

    def unpin(self, thread_id: str) -> None:
        """End a pin. The saver's TTL counts from now; without one the thread stays. An unpinned thread does not change.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(self._expire_gen(configs.name(thread_id, "thread_id"), "unpin"), "unpin")

    async def aunpin(self, thread_id: str) -> None:
        """`unpin` for asyncio."""
        await self._arun(self._expire_gen(configs.name(thread_id, "thread_id"), "unpin"), "unpin")
