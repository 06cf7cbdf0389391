"""The interface of all our savers: each method is one operation, which the saver's driver runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Generator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from redis_saver._checkpoint import guards
from redis_saver._checkpoint.thread_interface import InfoT, Operates, ThreadInterface
from redis_saver._common import config as configs
from redis_saver._common import names
from redis_saver._engine.requests import T
from redis_saver._engine.runner import Driver
from redis_saver._engine.stats import Counting


class Interface(ThreadInterface[InfoT], BaseCheckpointSaver[str]):  # type: ignore[misc]  # LangGraph's prune returns None, which is all its callers rely on
    """What all our savers share. Every method also has a form with an `a` in front, for asyncio.

    Where a method names `config`, it takes `{"configurable": {"thread_id", "checkpoint_ns", "checkpoint_id"}}`; without a
    namespace it means the root. Every method raises the client's own errors where the server cannot be reached or refuses,
    and `ThreadDamaged` where a part of the thread is gone; None and empty answers mean that there is nothing.
    """

    _driver: Driver[Any]
    """What runs the operations."""
    _counting: Counting
    """What counts the calls."""
    # The operations behind the methods: on one server (`Saver`), or over two tiers (`TwoTiers`).
    _put_gen: Operates[RunnableConfig]
    _put_writes_gen: Operates[None]
    _list_checkpoints_gen: Operates[None]
    """It checks its arguments at once, and returns a stream."""
    _get_delta_channel_history_gen: Operates[Mapping[str, DeltaChannelHistory]]
    _delete_thread_gen: Operates[None]
    _delete_for_runs_gen: Operates[None]
    _copy_thread_gen: Operates[None]

    def _run(self, operation: Generator[Any, Any, T], name: str = "") -> T:
        return self._driver.run(self._counting.call(operation, name))

    def _arun(self, operation: Generator[Any, Any, T], name: str = "") -> Awaitable[T]:
        return self._driver.arun(self._counting.call(operation, name))

    def _stream(self, operation: Generator[Any, Any, None], name: str = "") -> Iterator[Any]:
        return self._driver.stream(self._counting.stream(operation, name))

    def _astream(self, operation: Generator[Any, Any, None], name: str = "") -> AsyncIterator[Any]:
        return self._driver.astream(self._counting.stream(operation, name))

    # -- operations, guarded where ownership or forks are looked at

    def _get_tuple(self, config: RunnableConfig) -> Generator[Any, Any, CheckpointTuple | None]:
        found = self._get_tuple_gen(config)
        return guards.marked(found, config) if self._rules.refuses_forks else found

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Generator[Any, Any, RunnableConfig]:
        put = self._put_gen(config, checkpoint, metadata, new_versions)
        return guards.of_put(self._rules, self._guarded, put, config, checkpoint, metadata)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Generator[Any, Any, None]:
        put = self._put_writes_gen(config, writes, task_id, task_path)
        return guards.of_write(self._rules, self._guarded, put, config)

    def _delete_thread(self, thread_id: str) -> Generator[Any, Any, None]:
        delete = self._delete_thread_gen(configs.name(thread_id, "thread_id"))
        return guards.of_change(self._rules, self._guarded, delete, deletes=True)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Generator[Any, Any, None]:
        delete = self._delete_for_runs_gen(configs.names(run_ids, "run_id"))
        return guards.of_change(self._rules, self._guarded, delete)

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Generator[Any, Any, None]:
        source, target = configs.name(source_thread_id, "thread_id"), configs.name(target_thread_id, "thread_id")
        copy = self._copy_thread_gen(source, target)
        return guards.of_change(self._rules, self._guarded, copy, deletes=True)

    # -- checkpoints

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read the newest checkpoint of a namespace (the one with the greatest id), or the one with `checkpoint_id`.

        Returns:
            The checkpoint with its values, metadata, parent and pending writes (in `writes_sort_key` order); its config
            always carries the `checkpoint_id`. None where there is no such checkpoint.

        Raises:
            ThreadDamaged: A key or a value of the thread is gone, or cannot be decoded.
        """
        return self._run(self._get_tuple(config), "get_tuple")

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` for asyncio."""
        return await self._arun(self._get_tuple(config), "get_tuple")

    async def aget_iter(self, config: RunnableConfig) -> AsyncIterator[CheckpointTuple]:
        """An iterator over what `aget_tuple` finds: LangGraph's Agent Server asks in this form."""
        found = await self.aget_tuple(config)

        async def iterate() -> AsyncIterator[CheckpointTuple]:
            if found is not None:
                yield found

        return iterate()

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest (greatest id) first. Reads in pages, as the iterator is drawn from.

        Args:
            config: A thread, and maybe a namespace (`""` is the root; without `checkpoint_ns`: all) and a checkpoint id.
                None: all threads; then all keys of the server are looked at (SCAN), at one step per thread.
            filter: Metadata keys with the value they must have, or with operators: `{"step": {"$gte": 2}}`. Known are
                `$eq $ne $gt $gte $lt $lte $in $nin $exists`. Values of what does not match are not loaded.
            before: Only checkpoints with an id below this config's.
            limit: How many at the most; 0 gives none.

        Raises:
            ValueError, TypeError: An argument makes no sense. Raised by the call itself.
            ThreadDamaged: As `get_tuple`, while iterating. With config=None one damaged thread ends the listing; the
                message names it.
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

        Only the values of `new_versions` are sent. Where the server turns out not to have one of the others (the thread
        expired or was deleted while the run went on), they are sent too: a checkpoint is never stored with less than it had.

        Args:
            config: The thread, the namespace, the parent. `configurable["thread_ttl"]` (a `timedelta`, a text such as `"30d"`, or
                `{"default_ttl": minutes}`) gives the thread a TTL of its own from now on, and `configurable["thread_history"]` (`"all"` or
                `{"keep_last": n}`) a limit of its own (`docs/threads.md`).
            checkpoint: The checkpoint with its values.
            metadata: Its metadata; merged with the config's by `get_checkpoint_metadata`.
            new_versions: The channels that changed since the parent.

        Returns:
            The config of the stored checkpoint.

        Raises:
            EncodeError: The serializer does not know a value. Nothing was written.
            NotOwner: `configurable["thread_owner"]` is not the token of who owns the thread; or it is missing, and `ownership="required"`.
                Nothing was written.
            StaleParent: The parent is not the newest checkpoint any more, and `on_fork="raise"`. Nothing was written.
        """
        return self._run(self._put(config, checkpoint, metadata, new_versions), "put")

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put` for asyncio."""
        return await self._arun(self._put(config, checkpoint, metadata, new_versions), "put")

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store pending writes of a task on a checkpoint, which need not be there yet; all or nothing.

        A write is known by its task and its index in `writes`. Sent again, it keeps its first value; those to the special
        channels of `WRITES_IDX_MAP` take the newest.

        Raises:
            EncodeError: The serializer does not know a value. Nothing was written.
            ValueError: The config has no `checkpoint_id`.
            NotOwner: As in `put`.
        """
        return self._run(self._put_writes(config, writes, task_id, task_path), "put_writes")

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes` for asyncio."""
        return await self._arun(self._put_writes(config, writes, task_id, task_path), "put_writes")

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Collect what rebuilds the value of `DeltaChannel` channels: writes of the ancestors, and the nearest stored value.

        One round trip for chains of up to 200 ancestors and 4 MB, then one for each so many more.

        Args:
            config: The checkpoint to rebuild the channels for; without an id, the newest.
            channels: Their names.

        Returns:
            For each channel `writes`, oldest first, and `seed` where an ancestor has a value.
        """
        return self._run(self._get_delta_channel_history_gen(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history` for asyncio."""
        return await self._arun(self._get_delta_channel_history_gen(config, channels))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """The version after `current`: sorts above it, and no other branch of the thread ever makes the same one.

        What makes it unlike any other comes from the operating system: `random.seed()` in a graph, or a fork of the process,
        repeats nothing.
        """
        return names.next_version(current)

    # -- threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints, values and writes in all namespaces, at once.

        A damaged thread goes too; keys of another program are left alone (`KeyConflict`). No such thread: nothing happens. If somebody else owns it
        (`own`), its next write raises `NotOwner`; with `ownership="required"`, the deletion does.
        """
        return self._run(self._delete_thread(thread_id), "delete_thread")

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` for asyncio."""
        return await self._arun(self._delete_thread(thread_id), "delete_thread")

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata have one of these run ids, with their writes, in all threads.

        What `copy_thread` made stays: a copy is not the work of its source's runs. Over two tiers it goes, too, as cold knows runs by their
        metadata alone. A checkpoint that stays may name a parent that is gone.

        Cost: a SCAN over the server's keys and one small lookup per thread (500 of them a round trip), as Redis has no
        index over threads in different cluster slots; then, in the threads that have the runs, their links are read and some hundred names removed a step.

        Raises:
            TypeError: `run_ids` is one str instead of a list.
            ThreadBusy: A thread was written to during each of many attempts.
            ThreadDamaged, KeyConflict: A thread could not be read. Raised when all others are done; over two tiers before anything is deleted.
            NotImplementedError: Over two tiers, where the cold saver cannot delete by run. Nothing was deleted.
        """
        return self._run(self._delete_for_runs(run_ids), "delete_for_runs")

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs` for asyncio."""
        return await self._arun(self._delete_for_runs(run_ids), "delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make a thread an exact copy of another: all checkpoints with their ids, in all namespaces, and their writes.

        What the target held before is replaced, in one step, when the copy is complete: nobody sees a mixture, and a copy
        that fails (or loses its connection) leaves the target as it was. Metadata that name the source as `thread_id` name
        the target instead. Metadata keep their `run_id`; `delete_for_runs` says what it does to copies. The target gets the
        saver's TTL; a TTL or pin of the source's own is not copied. If somebody else owns the target (`own`), its next write
        raises `NotOwner`; with `ownership="required"`, the copy does. A source that does not exist, or is the target itself,
        changes nothing.
        Over two tiers cold gets the copy checkpoint by checkpoint: one that fails there leaves a part of it as the target. Run it again.

        Checkpoints that are put while the copy is made may be in it or not, but never in part.

        Cost: the whole thread travels to this process and back, in pages of some 4 MB.

        Raises:
            ThreadBusy: Checkpoints of the source were removed during each of many attempts.
        """
        return self._run(self._copy_thread(source_thread_id, target_thread_id), "copy_thread")

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` for asyncio."""
        return await self._arun(self._copy_thread(source_thread_id, target_thread_id), "copy_thread")
