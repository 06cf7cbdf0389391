"""The interface of all our savers. Each method is one operation, which the saver's driver runs."""

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

from redis_saver._checkpoint.guards import marked
from redis_saver._checkpoint.thread_interface import InfoT, Operates, ThreadInterface
from redis_saver._common import config as configs
from redis_saver._common import names
from redis_saver._engine.requests import T
from redis_saver._engine.runner import Driver
from redis_saver._engine.stats import Counting


# LangGraph's `prune` returns None, and its callers rely on no more.
class Interface(ThreadInterface[InfoT], BaseCheckpointSaver[str]):  # type: ignore[misc]
    """Interface of all our savers. Every method also has an asyncio form with the prefix `a`.

    A `config` argument is `{"configurable": {"thread_id", "checkpoint_ns", "checkpoint_id"}}`. Without a namespace it
    means the root. Every method raises the client's own errors if the server cannot be reached or refuses a command. It
    raises `ThreadDamaged` if a part of the thread is gone. None and empty results mean that there is nothing.
    """

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
        return marked(saved, config) if self._refuses_forks else saved

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` for asyncio."""
        saved = await self._arun(self._get_tuple_gen(config), "get_tuple")
        return marked(saved, config) if self._refuses_forks else saved

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
            ValueError, TypeError: An argument makes no sense. Raised by the call itself.
            ThreadDamaged: As `get_tuple`, while iterating. With `config=None` one damaged thread ends the listing. The
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

        Only the values of `new_versions` are sent. If the server lacks one of the others, all are sent. That happens if
        the thread expired or was deleted during the run. So a checkpoint is never stored with less than it had.

        Args:
            config: The thread, the namespace, the parent. `configurable["thread_ttl"]` gives the thread a TTL of its
                own from now on: a `timedelta`, a text such as `"30d"`, or `{"default_ttl": minutes}`.
                `configurable["thread_history"]` gives it a history limit of its own: `"all"` or `{"keep_last": n}`
                (`docs/threads.md`).
            checkpoint: The checkpoint with its values.
            metadata: Its metadata; merged with the config's by `get_checkpoint_metadata`.
            new_versions: The channels that changed since the parent.

        Returns:
            The config of the stored checkpoint.

        Raises:
            EncodeError: The serializer does not know a value. Nothing was written.
            NotOwner: `configurable["thread_owner"]` is not the token of the thread's owner. Or it is missing with
                `ownership="required"`. Nothing was written.
            StaleParent: With `on_fork="raise"`: the parent is not the newest checkpoint any more. Nothing was written.
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
        return self._run(self._get_delta_channel_history_gen(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history` for asyncio."""
        return await self._arun(self._get_delta_channel_history_gen(config, channels))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Return a version that sorts above `current` and that no other branch of the thread ever gets.

        Its random part comes from the operating system, so `random.seed()` or a fork of the process repeats none.
        """
        return names.next_version(current)

    # -- threads

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

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata have one of these run ids, with their writes, in all threads.

        Checkpoints that `copy_thread` made stay, because a copy is not the work of its source's runs. Over two tiers
        they are deleted too, as cold knows runs only by their metadata. A remaining checkpoint may name a parent that
        is gone.

        Cost: a SCAN over the server's keys and one small lookup per thread, with 500 lookups in a round trip. Redis has
        no index over threads in different cluster slots. In threads that have the runs, all links are read. Then each
        step removes up to 500 names.

        Raises:
            TypeError: `run_ids` is one str instead of a list.
            ThreadBusy: A thread was written to during each of many attempts.
            ThreadDamaged, KeyConflict: A thread could not be read. Raised after all others are done. Over two tiers,
                raised before anything is deleted.
            NotImplementedError: Over two tiers, if the cold saver cannot delete by run. Nothing was deleted.
        """
        return self._run(self._delete_for_runs_gen(configs.names(run_ids, "run_id")), "delete_for_runs")

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs` for asyncio."""
        return await self._arun(self._delete_for_runs_gen(configs.names(run_ids, "run_id")), "delete_for_runs")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Make a thread an exact copy of another: all checkpoints with their ids, in all namespaces, and their writes.

        The complete copy replaces the target's old contents in one step. So nobody sees a mixture, and a copy that
        fails leaves the target as it was. If the source does not exist, or is the target itself, nothing changes.

        Metadata that name the source as `thread_id` name the target instead. Metadata keep their `run_id`;
        `delete_for_runs` explains what it does to copies. The target gets the saver's TTL. The source's own TTL or pin
        is not copied. If somebody else owns the target (`own`), the owner's next write raises `NotOwner`. With
        `ownership="required"` the copy raises it instead.

        Over two tiers cold gets the copy checkpoint by checkpoint. If that fails, cold's target has only a part of the
        copy. Run it again. A checkpoint that is put during the copy is in it as a whole, or not at all.

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
