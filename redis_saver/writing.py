"""Operations that write a checkpoint or its pending writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, get_checkpoint_metadata

from redis_saver import codec, config, names, scripts
from redis_saver.context import Context, default_ttl
from redis_saver.requests import Argument, Call, Operation


def put(
    context: Context,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Operation[RunnableConfig]:
    """Store a checkpoint; sends again, with them, the unchanged values that the server turns out not to have."""
    thread, ns, parent = config.address(given)
    checkpoint_id = config.name(checkpoint["id"], "checkpoint id")
    merged = get_checkpoint_metadata(given, metadata)
    run_id = merged.get("run_id")
    run = b"" if run_id is None else names.run(str(run_id))
    head = (
        names.component(ns),
        names.component(checkpoint_id),
        codec.encode_head(parent, str(checkpoint.get("ts", "")), run),
        codec.encode_tail(context.serde, checkpoint, merged),
        run,
        default_ttl(context),
        config.thread_ttl(given) or b"",
    )
    keys = context.keyspace.keys(thread)
    channels = list(checkpoint["channel_versions"])
    missing: list[str] = []
    while True:
        entries = list(codec.version_entries(checkpoint, new_versions, missing))
        arguments: list[Argument] = [*head, len(entries), *(entry for entry, _ in entries)]
        for _, channel in entries:
            if channel is not None:
                value = checkpoint["channel_values"][channel]
                arguments.append(codec.encode_value(context.serde, value, f"channel {channel!r}"))
        positions = yield Call(scripts.PUT, keys, arguments)
        if not positions:
            return config.to_config(thread, ns, checkpoint_id)
        missing += [channels[position - 1] for position in positions]


def put_writes(
    context: Context, given: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Operation[None]:
    """Store the pending writes of a task."""
    thread, ns, checkpoint_id = config.address(given)
    if not checkpoint_id:
        raise ValueError('config["configurable"] has no "checkpoint_id"; pending writes belong to a checkpoint')
    if not writes:
        return
    regular, special = codec.encode_writes(context.serde, writes, task_path)
    arguments: list[Argument] = [names.task(ns, checkpoint_id, task_id), regular, default_ttl(context)]
    arguments.append(config.thread_ttl(given) or b"")
    for index, record in special.items():
        arguments += (index, record)
    yield Call(scripts.PUT_WRITES, context.keyspace.keys(thread), arguments)
