"""Savers that only keep references. No real saver can be faster."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.base import CheckpointTuple as Tuple


def _own(checkpoint: Checkpoint) -> Checkpoint:
    """Copy a checkpoint's bookkeeping, which LangGraph changes later; the values stay the same objects."""
    seen = {node: dict(versions) for node, versions in checkpoint["versions_seen"].items()}
    return {**checkpoint, "channel_versions": dict(checkpoint["channel_versions"]), "versions_seen": seen}


class NothingSaver(BaseCheckpointSaver[str]):
    """A saver that keeps checkpoints and pending writes by reference."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[tuple[str, str], dict[str, Tuple]] = defaultdict(dict)
        self.pending: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
        """Writes by thread, namespace and checkpoint. They may come before the checkpoint."""

    def travel(self, *, writes: bool) -> None:
        """Do nothing; subclasses add a call."""

    async def atravel(self, *, writes: bool) -> None:
        """Async `travel`."""

    def get_tuple(self, config: RunnableConfig) -> Tuple | None:
        self.travel(writes=False)
        return self._found(config)

    def _found(self, config: RunnableConfig) -> Tuple | None:
        where = config["configurable"]
        held = self.threads[where["thread_id"], where.get("checkpoint_ns", "")]
        wanted = where.get("checkpoint_id") or (next(reversed(held)) if held else None)
        found = held.get(wanted) if wanted else None
        return found._replace(checkpoint=_own(found.checkpoint)) if found else None

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self.travel(writes=True)
        return self._keep(config, checkpoint, metadata, new_versions)

    def _keep(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        where = config["configurable"]
        thread, ns = where["thread_id"], where.get("checkpoint_ns", "")
        mine: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint["id"]}}
        parent = config if where.get("checkpoint_id") else None
        writes = self.pending[thread, ns, checkpoint["id"]]
        self.threads[thread, ns][checkpoint["id"]] = Tuple(mine, _own(checkpoint), metadata, parent, writes)
        return mine

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.travel(writes=True)
        self._add(config, writes, task_id)

    def _add(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str) -> None:
        where = config["configurable"]
        pending = self.pending[where["thread_id"], where.get("checkpoint_ns", ""), where["checkpoint_id"]]
        pending.extend((task_id, channel, value) for channel, value in writes)

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[Tuple]:
        raise NotImplementedError

    def delete_thread(self, thread_id: str) -> None:
        held: Any
        for held in (self.threads, self.pending):
            for key in [key for key in held if key[0] == thread_id]:
                del held[key]

    async def aget_tuple(self, config: RunnableConfig) -> Tuple | None:
        await self.atravel(writes=False)
        return self._found(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        await self.atravel(writes=True)
        return self._keep(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self.atravel(writes=True)
        self._add(config, writes, task_id)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[Tuple]:
        raise NotImplementedError
        yield

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version in the form of `InMemorySaver`."""
        return f"{1 + int((current or '0').split('.')[0]):032}.{random.random():016}"


class RawSaver(NothingSaver):
    """A saver that sends or receives a kilobyte per call, with the cheapest command, and keeps references."""

    KEY, VALUE = "bench-raw-saver", b"x" * 1000

    def __init__(self, client: Any, aclient: Any) -> None:
        super().__init__()
        self.client, self.aclient = client, aclient
        client.set(self.KEY, self.VALUE)

    def travel(self, *, writes: bool) -> None:
        if writes:
            self.client.set(self.KEY, self.VALUE)
        else:
            self.client.get(self.KEY)

    async def atravel(self, *, writes: bool) -> None:
        if writes:
            await self.aclient.set(self.KEY, self.VALUE)
        else:
            await self.aclient.get(self.KEY)

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Any:
        """Make one call, instead of one per ancestor as the base class does."""
        self.travel(writes=False)
        return self._still().get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Any:
        await self.atravel(writes=False)
        return self._still().get_delta_channel_history(config=config, channels=channels)

    def _still(self) -> NothingSaver:
        """Return a saver with the same threads that makes no calls."""
        still = NothingSaver()
        still.threads = self.threads
        return still


class Recorder(NothingSaver):
    """A saver that records puts in order, with a contestant's channel versions, for a replay."""

    def __init__(self, contestant: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self.get_next_version = contestant.get_next_version  # type: ignore[method-assign]
        self.puts: list[tuple[Checkpoint, CheckpointMetadata, ChannelVersions]] = []
        self.writes: dict[str | None, list[tuple[Sequence[tuple[str, Any]], str]]] = defaultdict(list)
        """Writes of each checkpoint, with the ids of their tasks."""

    def _keep(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self.puts.append((checkpoint, metadata, new_versions))
        return super()._keep(config, checkpoint, metadata, new_versions)

    def _add(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str) -> None:
        self.writes[config["configurable"]["checkpoint_id"]].append((writes, task_id))
        super()._add(config, writes, task_id)
