"""Writing: to cold, then to hot (write-through); or to hot, while cold lags behind (write-behind)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._checkpoint import writing
from redis_saver._checkpoint.writing import Variant
from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.requests import Operation
from redis_saver._engine.scripts import Script
from redis_saver._storage.chunks import digest
from redis_saver._tiered import write_behind
from redis_saver._tiered.cold_calls import versions_of_values, writes_of
from redis_saver._tiered.context import HOT_CANNOT_HAVE, WHOLE, Fill, Tiers, for_cold, known_fill
from redis_saver._tiered.intents import NOWHERE, begin_intent, end, end_intent
from redis_saver._tiered.reading import fetching
from redis_saver._tiered.requests import Attempt, ColdCall, Tiered
from redis_saver.errors import ThreadDamaged


def put(
    tiers: Tiers,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Tiered[RunnableConfig]:
    """Store a checkpoint."""
    where = config.address(given)
    config.check_ours(given)  # before cold is written
    stored = config.to_config(where.thread_id, where.checkpoint_ns, checkpoint["id"])
    if tiers.flush_queue and (
        yield from write_behind.put(tiers, tiers.flush_queue, given, checkpoint, metadata, new_versions)
    ):
        return stored
    in_it = versions_of_values(checkpoint)

    def cold(*, has_all: bool) -> ColdCall:
        # Of a thread that hot does not know, and of one of which checkpoints were coalesced, cold may lack anything.
        return ColdCall(
            "put", (for_cold(given), checkpoint, metadata, new_versions if has_all else {**in_it, **new_versions})
        )

    def hot(variant: Variant) -> Operation[bool]:
        return writing.store(tiers.hot, where, given, checkpoint, metadata, new_versions, variant)

    field = names.checkpoint(where.checkpoint_ns, checkpoint["id"])
    parent = names.checkpoint(where.checkpoint_ns, where.checkpoint_id) if where.checkpoint_id else WHOLE
    fill = known_fill(tiers, where, checkpoint["id"])
    is_in_hot = yield from _write(tiers, where, cold, hot, scripts.PUT_THROUGH, field, fill, needed=parent)
    if tiers.flush_queue and not is_in_hot:
        # Hot can acknowledge the next put then. If the fill fails, the next reader raises the error.
        yield Attempt(fetching(tiers, where._replace(checkpoint_id=None)))
    return stored


def put_writes(
    tiers: Tiers, given: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Tiered[None]:
    """Store the pending writes of a task."""
    where = writing.address_of_writes(given)
    if not writes:
        return
    if tiers.flush_queue and (
        yield from write_behind.put_writes(tiers, tiers.flush_queue, given, writes, task_id, task_path)
    ):
        return
    cold = ColdCall("put_writes", (for_cold(given), writes, task_id, task_path))

    def hot(variant: Variant) -> Operation[bool]:
        return writing.store_writes(tiers.hot, where, given, writes, task_id, task_path, variant)

    record = names.task(where.checkpoint_ns, where.checkpoint_id or "", task_id)
    fill = known_fill(tiers, where)
    yield from _write(
        tiers, where, lambda **_: cold, hot, scripts.PUT_WRITES_THROUGH, record, fill, writes=writes_of(where)
    )


def _write(
    tiers: Tiers,
    where: config.Address,
    cold: Callable[..., ColdCall],
    hot: Callable[[Variant], Operation[bool]],
    script: Script,
    record: bytes,
    fill: Fill | None,
    *,
    needed: bytes = b"",
    writes: bytes = b"",
) -> Tiered[bool]:
    """Write to cold, then to hot. Meanwhile the thread has a write intent in hot, which stays if something fails.

    Args:
        tiers: The saver.
        where: The checkpoint that is written, or its parent.
        cold: Makes the call of cold; it is told whether cold `has_all` of the thread.
        hot: Makes the operation over hot, by a variant of its script.
        script: That variant, which also ends the intent.
        record: Names what is written.
        fill: The last fill that may be relied on.
        needed: The field that hot must have so that it has after this all that cold has, unless the thread was empty.
        writes: For pending writes: the beginning of the members of the checkpoint's writes.

    Returns:
        True if hot stored it.
    """
    thread, is_in_hot = where.thread_id, False
    intent = yield from begin_intent(tiers, thread, digest(record), writes, fill)
    yield cold(has_all=intent.has_all)

    def then() -> Operation[None]:
        nonlocal is_in_hot
        # If hot gave up the parent, it may lack values. If writes came back by a fill, hot does not know the task paths that order them.
        if not (intent.is_pathless or (needed and not intent.is_here and not intent.newest)):
            keys = tiers.hot.keyspace.tier_keys(thread)
            more = (intent.token, intent.newest, b"" if intent.newest else needed, intent.fill)
            try:
                is_in_hot = yield from hot(Variant(script, (*keys.writing, keys.flush), more))
            except (ThreadDamaged, *HOT_CANNOT_HAVE):  # what hot cannot have is in cold alone
                pass
            else:
                return
        yield from end_intent(tiers, thread, intent, NOWHERE)

    yield from end(tiers, thread, intent, then())
    return is_in_hot
