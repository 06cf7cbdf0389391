"""Changes of whole threads: cold is changed, and hot gives them up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import listing
from redis_saver._checkpoint import threads as hot_threads
from redis_saver._checkpoint.guards import writer_of
from redis_saver._checkpoint.pruning import Pruned, added, threads_with_runs
from redis_saver._checkpoint.retention import Retention
from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Operation
from redis_saver._tiered import postgres as statements
from redis_saver._tiered.context import Tiers, calls_for, task_paths_in_hot
from redis_saver._tiered.flushing import put_tombstone
from redis_saver._tiered.intents import (
    ALL,
    Intent,
    begin_intent,
    change,
    change_cold,
    end,
    erased,
    given_up,
    release_all,
)
from redis_saver._tiered.listing import list_checkpoints
from redis_saver._tiered.reading import get_tuple
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver._tiered.thread_info import get_thread
from redis_saver.errors import ThreadBusy

_ATTEMPTS = 5


def delete_thread(tiers: Tiers, thread: str) -> Tiered[None]:
    """Delete a thread."""
    writer = writer_of(tiers.hot, thread, deletes=True)
    if (queue := tiers.flush_queue) is not None:
        try:
            is_deleted = yield from put_tombstone(tiers, thread, writer)
        except BaseException:
            queue.note(thread)  # hot may have done it in spite of the error
            raise
        if is_deleted:
            tiers.backlog.wrote(1)
            queue.note(thread)
            return
    intent = yield from begin_intent(tiers, thread, ALL, writer, need="nothing")
    yield from change_cold(tiers, {thread: intent}, ColdCall("delete_thread", (thread,)))
    yield from end(tiers, thread, intent, erased(tiers, thread, intent))


def copy_thread(tiers: Tiers, source: str, target: str) -> Tiered[None]:
    """Copy the source to the target in cold; hot gives the target up."""
    if source == target:
        return
    stream: Any = list_checkpoints(tiers, {"configurable": {"thread_id": source}}, None, None, None)
    checkpoints: list[CheckpointTuple] = yield from listing.collect(stream)
    if not checkpoints:
        return
    paths = yield from task_paths_in_hot(tiers.hot, source, checkpoints)
    if tiers.cold_is_postgres:
        paths = {**paths, **(yield ColdCall("task_paths", (source,)))}
    intent = yield from begin_intent(tiers, target, ALL, writer_of(tiers.hot, target, deletes=True), need="nothing")
    yield from change_cold(tiers, {target: intent}, ColdCall("delete_thread", (target,)))
    for saved in reversed(checkpoints):
        yield from calls_for(saved, target, paths)
    yield from end(tiers, target, intent, given_up(tiers, target, intent))


def delete_for_runs(tiers: Tiers, run_ids: Sequence[str]) -> Tiered[None]:
    """Delete the checkpoints of some runs in cold; hot gives up the threads that have any.

    Raises:
        ThreadBusy: Cold could not get coalesced checkpoints of such a thread first: others wrote it all the time.
        NotImplementedError: Cold cannot delete by run. Nothing was deleted.
    """
    members, intents, concerned = [names.run(run) for run in run_ids], dict[str, Intent](), set[str]()
    for run in run_ids:  # also in threads that a reader may be filling hot with
        of_run = yield ColdCall("list", (None,), {"filter": {"run_id": run}})
        concerned.update(config.thread_id(saved.config) for saved in of_run)
    # A thread that hot cannot read is repaired, or raises.
    concerned.update(*(yield from threads_with_runs(tiers.hot, members)))
    try:
        for thread in sorted(concerned):
            # What is left may be what was coalesced.
            writer = writer_of(tiers.hot, thread)
            intents[thread] = yield from begin_intent(tiers, thread, ALL, writer, need="all")
    except Exception:
        yield from release_all(tiers, intents)
        raise
    except BaseException:  # the caller was cancelled, so no request works; the next writer of this process ends them
        for thread, intent in intents.items():
            tiers.leases.keep(tiers.hot.keyspace.tier_keys(thread).intents, intent.token)
        raise
    yield from change_cold(tiers, intents, ColdCall("delete_for_runs", (run_ids,)))
    for thread, intent in intents.items():
        yield from end(tiers, thread, intent, given_up(tiers, thread, intent))


def prune(tiers: Tiers, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Tiered[Pruned]:
    """Prune threads in cold; hot gives them up. Returns what cold removed, as far as that is known.

    Raises:
        NotImplementedError: Cold cannot prune that. The thread was not changed.
    """
    total = Pruned()
    if not tiers.cold_is_postgres:
        yield from _prune_as_cold_does(tiers, thread_ids, kept, dry_run)
        return total
    if kept is not None and (refused := (yield ColdCall("threads_with_delta_channels", (thread_ids,)))):
        raise statements.uses_delta_channel(refused[0])
    for thread in thread_ids:
        if kept is None:
            total = added(total, (yield ColdCall("count_thread", (thread,))))
            if not dry_run:
                yield from delete_thread(tiers, thread)
        elif dry_run:
            total = added(total, (yield ColdCall("prune_thread", (thread, kept), {"dry_run": True})))
        else:
            writer, call = writer_of(tiers.hot, thread), ColdCall("prune_thread", (thread, kept))
            total = added(total, (yield from change(tiers, thread, writer, call)))
    return total


def _prune_as_cold_does(tiers: Tiers, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Tiered[None]:
    """Prune by a cold saver of which only LangGraph's interface is known."""
    if dry_run or (kept is not None and kept != Retention()):
        raise NotImplementedError(
            "keep_last, older_than and dry_run of prune need LangGraph's PostgresSaver as cold. Nothing was removed. "
            "With this cold saver write strategy='delete', or strategy='keep_latest' if it can prune"
        )
    if kept is None:
        for thread in thread_ids:
            yield from delete_thread(tiers, thread)
        return
    latest = {"strategy": "keep_latest"}
    yield ColdCall("prune", ([],), latest)  # if cold cannot prune, this raises before anything is done
    for thread in thread_ids:
        yield from change(tiers, thread, writer_of(tiers.hot, thread), ColdCall("prune", ([thread],), latest))


def get_ttl(tiers: Tiers, thread: str) -> Operation[timedelta | None]:
    """Return the time that a thread has left in hot; None if it does not expire there, or hot lacks it."""
    return hot_threads.get_ttl(tiers.hot, thread)


def expire(tiers: Tiers, thread: str, action: str, own: int | None = None) -> Tiered[None]:
    """Change when a thread expires in hot. If only cold has it, hot is filled first.

    Raises:
        ThreadNotFound: Neither tier has it.
        ThreadBusy: Hot could not be filled, because others wrote the thread, or because hot cannot have it.
    """
    for _ in range(_ATTEMPTS):
        if (yield hot_threads.expiring(tiers.hot, thread, action, own)) is not None:
            return
        if (yield from get_thread(tiers, thread)) is None:
            raise hot_threads.not_there(thread)
        if action in ("unpin", "clear"):  # only cold has it, where nothing expires or is pinned
            return
        for newest in (yield ColdCall("list", ({"configurable": {"thread_id": thread}},), {"limit": 1})):
            ns = config.namespace(newest.config) or ""
            yield from get_tuple(tiers, {"configurable": {"thread_id": thread, "checkpoint_ns": ns}})
        # If cold has none, the thread was just written to hot, or deleted: the next attempt finds that.
    raise ThreadBusy(
        f"thread {shown(thread)} is in cold alone, and could not be brought back to Redis in {_ATTEMPTS} attempts: "
        "others write or delete it, or Redis is full, or cannot have a value of it (its limits, its serializer). "
        "Nothing was changed; try again"
    )
