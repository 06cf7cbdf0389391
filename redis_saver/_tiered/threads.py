"""New threads, changes of whole threads, which are made in cold while hot drops its copy, and ownership."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import index
from typing import Any
from uuid import uuid4

from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import listing, ownership, pruning, threads as hot_threads
from redis_saver._checkpoint.guards import GuardedScript, writer_of
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._checkpoint.pruning import Pruned, added
from redis_saver._checkpoint.retention import Retention
from redis_saver._common import config, limits, names
from redis_saver._common.display import shown
from redis_saver._engine.replies import RollBackReply
from redis_saver._engine.requests import Call, Command, Operation, Sleep
from redis_saver._tiered import context, intents, postgres as statements, scripts
from redis_saver._tiered.context import Tiers, calls_for, task_paths_in_hot
from redis_saver._tiered.flushing import DELETIONS_KEPT, busy, flush_now, put_tombstone, until_busy
from redis_saver._tiered.intents import Intent, begin_intent, change, change_cold
from redis_saver._tiered.listing import list_checkpoints
from redis_saver._tiered.reading import get_tuple
from redis_saver._tiered.requests import ColdCall, Tiered, newest_in_cold
from redis_saver._tiered.thread_info import get_thread
from redis_saver.errors import StillNeeded, ThreadBusy, ThreadDamaged, decoding, not_owner

_ATTEMPTS = 5
NEW_KEPT = 24 * 3600 * 1000
"""Milliseconds for which hot remembers that a thread is new. After that, its first turn asks cold, as for any name."""


def new_thread(tiers: Tiers, remembered: int | None, prefix: str) -> Operation[str]:
    """Make a name for a new thread, and let hot remember for some milliseconds that cold has nothing of it."""
    for _ in range(_ATTEMPTS):
        thread, nonce = prefix + names.new_thread(), uuid4().hex
        limits.check_name(tiers.hot_context.limits, thread, "a thread")
        keys = tiers.hot_context.keyspace.tier_keys(thread)
        reply = yield Call(scripts.NEW_THREAD, keys, (nonce, remembered or NEW_KEPT, DELETIONS_KEPT))
        if reply == 1:
            return thread
    raise decoding("the mark of a new thread").of(ValueError(f"{shown(reply)} for {_ATTEMPTS} names that nobody has"))


def delete_thread(tiers: Tiers, thread: str) -> Tiered[None]:
    """Delete a thread."""
    writer = writer_of(tiers.hot_context, thread, deletes=True)
    if (queue := tiers.flush_queue) is not None:
        try:
            is_deleted = yield from put_tombstone(tiers, thread, writer)
        finally:
            queue.note(thread)  # hot may have done it in spite of an error
        if is_deleted:
            tiers.backlog_count.wrote(1)
            return
    intent = yield from begin_intent(tiers, thread, writer, need="nothing")
    yield from change_cold([intent], ColdCall("delete_thread", (thread,)))
    yield from intents.end(tiers, intent, intents.erased(tiers, intent))


def copy_thread(tiers: Tiers, source: str, target: str) -> Tiered[None]:
    """Copy the source to the target in cold. Hot drops its copy of the target."""
    if source == target:
        return
    stream: Any = list_checkpoints(tiers.packed(), {"configurable": {"thread_id": source}}, None, None, None)
    checkpoints: list[CheckpointTuple] = yield from listing.collect(stream)
    if not checkpoints:
        return
    paths = yield from task_paths_in_hot(tiers.hot_context, source, checkpoints)
    if tiers.cold_is_postgres:
        paths = {**paths, **(yield ColdCall("task_paths", (source,)))}
    if (data_keys := tiers.hot_context.data_keys) is not None:
        yield from data_keys.copy(source, tiers.hot_context.keyspace.keys(source).data_key, target)
    writer = writer_of(tiers.hot_context, target, deletes=True)
    intent = yield from begin_intent(tiers, target, writer, need="nothing")
    yield from change_cold([intent], ColdCall("delete_thread", (target,)))
    for saved in reversed(checkpoints):
        for call in calls_for(tiers.for_cold(saved), target, paths):
            yield call._replace(is_packed=True)
    yield from intents.give_up(tiers, intent)


def delete_for_runs(tiers: Tiers, run_ids: Sequence[str], *, force: bool = False) -> Tiered[None]:
    """Delete the checkpoints of some runs in cold. Hot drops the threads that have such checkpoints.

    Raises:
        StillNeeded: A remaining checkpoint is rebuilt from one of them. Over Postgres, nothing was deleted. Not raised
            with `force`.
        ThreadBusy: Others kept writing such a thread, so its coalesced checkpoints could not be flushed first.
        NotImplementedError: Cold cannot delete by run. Nothing was deleted.
    """
    run_ids = [run.replace("\0", "") for run in run_ids]  # as LangGraph stores them
    concerned, begun = set[str](), list[Intent]()
    for run in run_ids:  # also threads that a reader may be bringing to hot
        of_run = yield ColdCall("list", (None,), {"filter": {"run_id": run}}, is_sealed=True)
        concerned.update(config.thread_id(saved.config) for saved in of_run)
    # A thread that hot cannot read is repaired, or raises.
    concerned.update(*(yield from pruning.threads_with_runs(tiers.hot_context, [names.run(run) for run in run_ids])))
    try:
        for thread in sorted(concerned):
            # A coalesced checkpoint may become the newest one.
            writer = writer_of(tiers.hot_context, thread)
            begun.append((yield from begin_intent(tiers, thread, writer, need="all")))
        if tiers.cold_is_postgres and not force:
            yield ColdCall("check_unneeded", (sorted(concerned), run_ids))
    except Exception:  # whatever it is, cold was not changed
        yield from intents.release_all(begun)
        raise
    except BaseException:  # cancelled: no request works any more, so this process's next writer ends the intents
        for intent in begun:
            tiers.leases.keep(intent.keys.intents, intent.token)
        raise
    refused: StillNeeded | None = None
    forced = {"force": True} if force and tiers.cold_is_redis else {}
    try:
        yield from change_cold(begun, ColdCall("delete_for_runs", (run_ids,), forced))
    except StillNeeded as error:  # of a `RedisSaver`, which may have changed other threads before
        refused = error
    for intent in begun:
        yield from intents.give_up(tiers, intent)
    if refused is not None:
        raise refused


def prune(tiers: Tiers, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Tiered[Pruned]:
    """Prune threads in cold. Hot drops those that may have changed, or may have checkpoints that cold lacks.

    Returns the removed amounts, which only Postgres reports.

    Raises:
        NotImplementedError: Cold cannot prune such a thread. The thread was not changed.
    """
    total = Pruned()
    if not tiers.cold_is_postgres and (kept is not None or dry_run):
        yield from _keep_latest(tiers, thread_ids, kept, dry_run)
        return total
    if kept is not None and (refused := (yield ColdCall("threads_with_delta_channels", (thread_ids,)))):
        raise statements.uses_delta_channel(refused[0])
    for thread in thread_ids:
        if kept is None:
            if tiers.cold_is_postgres:
                total = added(total, (yield ColdCall("count_thread", (thread,))))
            if not dry_run:
                yield from delete_thread(tiers, thread)
        elif dry_run:
            removed, _ = yield ColdCall("prune_thread", (thread, kept), {"dry_run": True})
            total = added(total, removed)
        else:
            intent = yield from begin_intent(tiers, thread, writer_of(tiers.hot_context, thread))
            removed, changed = yield from change_cold([intent], ColdCall("prune_thread", (thread, kept)))
            # Without `has_all`, hot may have coalesced checkpoints, which cold lacks.
            is_kept = intent.has_all and not changed
            yield from intents.release_all([intent]) if is_kept else intents.give_up(tiers, intent)
            total = added(total, removed)
    return total


def _keep_latest(tiers: Tiers, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Tiered[None]:
    """Prune with the `prune` method of a cold saver other than Postgres."""
    if dry_run or kept != Retention():
        raise NotImplementedError(
            "keep_last, older_than and dry_run of prune need LangGraph's PostgresSaver as cold. Nothing was removed. "
            "With this cold saver write strategy='delete', or strategy='keep_latest' if it can prune"
        )
    latest = {"strategy": "keep_latest"}
    yield ColdCall("prune", ([],), latest)  # raises before anything is done if cold cannot prune
    for thread in thread_ids:
        yield from change(tiers, thread, writer_of(tiers.hot_context, thread), ColdCall("prune", ([thread],), latest))


def expire(tiers: Tiers, thread: str, action: str, own: int | None = None) -> Tiered[None]:
    """Change when a thread expires in hot. If only cold has the thread, hot is filled first.

    Raises:
        ThreadNotFound: Neither tier has the thread.
        ThreadBusy: Hot could not be filled, because others wrote the thread or because hot cannot store it.
    """
    for _ in range(_ATTEMPTS):
        if (yield hot_threads.expiring(tiers.hot_context, thread, action, own)) is not None:
            return
        if (yield from get_thread(tiers, thread)) is None:
            raise hot_threads.not_there(thread)
        if action in ("unpin", "clear"):  # only cold has it, and nothing expires or is pinned there
            return
        for newest in (yield newest_in_cold(thread)):
            ns = config.namespace(newest.config) or ""
            yield from get_tuple(tiers, {"configurable": {"thread_id": thread, "checkpoint_ns": ns}})
        # If cold has none, the thread was just written to hot or deleted. The next attempt sees that.
    raise ThreadBusy(
        f"thread {shown(thread)} is only in cold, and could not be brought back to Redis in {_ATTEMPTS} attempts: "
        "others write or delete it, or Redis is full or cannot store one of its values (its limits, its serializer). "
        "Nothing was changed; try again"
    )


# -- ownership


_PAUSE = 0.02
_DIGITS, _TOKEN_AT = 15, 32
"""Format of an intent: number of digits of its start in milliseconds, and position of its writer's token."""


def take(tiers: Tiers, terms: Terms, nonce: str) -> Tiered[Record]:
    """Take a thread as on one server, then wait for writers that had begun to write it to cold.

    Once the thread is taken, nobody else begins a write. But earlier writes may still reach cold.

    Raises:
        NotImplementedError: A rollback needs Postgres as cold. The thread was not taken.
    """
    if terms.on_busy == "rollback" and not tiers.cold_is_postgres:
        raise NotImplementedError(
            "on_busy='rollback' needs LangGraph's PostgresSaver as cold. The thread was not taken. Write "
            "on_busy='take', which removes nothing"
        )
    record = yield from ownership.taken(tiers.hot_context, terms, nonce)
    yield from _wait_for_writers(tiers, terms, record)
    if run := ownership.to_roll_back(terms, record):
        yield from _roll_back(tiers, terms.thread, writer_of(tiers.hot_context, terms.thread, record.token), run)
        yield from _renew(tiers, terms, record)  # cold may have been slower than the lease
    return record


def _renew(tiers: Tiers, terms: Terms, record: Record) -> Operation[None]:
    if not (yield from ownership.renew(tiers.hot_context, terms.thread, record.token, terms.lease)):
        raise not_owner("0", "", tiers.hot_context.keyspace.owner_key(terms.thread))


def _wait_for_writers(tiers: Tiers, terms: Terms, record: Record) -> Operation[None]:
    """Wait until all writers that began before this owner are done or gone. Renews the lease meanwhile.

    Raises:
        NotOwner: Somebody else took the thread meanwhile.
    """
    key, taken_at = tiers.hot_context.keyspace.tier_keys(terms.thread).intents, record.since // 1000
    began = renewed = time.monotonic()
    first: set[bytes] | None = None
    while True:
        noted = yield Command(("ZRANGEBYLEX", key, "-", "+"))
        now = time.monotonic()
        oldest = taken_at + (now - began) * 1000 - context.WRITER_GONE
        with decoding("the write intents of thread {!r}", terms.thread):
            writers = {intent[_TOKEN_AT:] for intent in noted if min(int(intent[:_DIGITS]), taken_at) > oldest}
        first = writers if first is None else first & writers
        if not first:
            return
        if now - renewed > terms.renewal_interval:
            renewed = now
            yield from _renew(tiers, terms, record)
        yield Sleep(_PAUSE)


def _roll_back(tiers: Tiers, thread: str, writer: bytes, run_id: str) -> Tiered[None]:
    """Remove the checkpoints that a run wrote to a thread. The run's checkpoints in other threads and copies stay.

    One script removes them in hot and records their ids, and the flusher removes these ids in cold. So the new owner
    does not wait for cold, and a late removal is harmless. If hot lacks a part of the thread, the owner first asks cold
    for the ids.

    Raises:
        NotOwner: Somebody else took the thread. Nothing was removed.
        StillNeeded: A later checkpoint is rebuilt from one of the run. Nothing was removed.
        ThreadBusy: Others kept writing the thread.
    """
    keys, deadline, repairs, asked = tiers.hot_context.keyspace.tier_keys(thread), until_busy(), 0, False
    while True:
        try:
            removal = yield from pruning.removal_of_runs(tiers.hot_context, thread, {names.run(run_id)})
        except ThreadDamaged as damage:
            if repairs == intents.REPAIRS:
                raise
            repairs += 1
            yield from intents.repair(tiers, thread, damage)
            continue
        if asked:  # hot lacks a part of the thread
            yield ColdCall("check_unneeded", ([thread], [run_id]))
        in_cold = (yield ColdCall("checkpoints_of_run", (thread, run_id))) if asked else []
        arguments = (
            removal.revision,
            b"1" if asked else b"",
            len(in_cold),
            *(names.checkpoint(ns, checkpoint_id) for ns, checkpoint_id in in_cold),
            *(name for step in removal.names for name in step),
        )
        answer = yield GuardedScript(scripts.ROLL_BACK, keys, writer).call(*arguments)
        if answer == RollBackReply.UNKNOWN:
            asked = True
        elif answer not in (RollBackReply.CHANGED, RollBackReply.WRITING):
            break
        elif time.monotonic() >= deadline:
            raise busy(thread)
        elif answer == RollBackReply.WRITING:
            yield Sleep(_PAUSE)
            yield from get_tuple(tiers, config.to_config(thread, "", ""))  # ends intents of dead writers
    with decoding("what was removed of thread {!r}", thread):
        *_, revision, records = answer
        tiers.backlog_count.wrote(index(records))
    rest = removal._replace(revision=revision, names=[])
    yield from pruning.carry_out(thread, tiers.hot_context.keyspace.keys(thread), writer, rest)
    if tiers.flush_queue:
        tiers.flush_queue.note(thread)
    else:
        yield from flush_now(tiers, thread)
