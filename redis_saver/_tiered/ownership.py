"""Ownership of a thread over two tiers. Hot knows its owner."""

from __future__ import annotations

import time

from redis_saver._checkpoint import ownership, pruning
from redis_saver._checkpoint.guards import owned_call, writer_of
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._engine.replies import RollBackReply
from redis_saver._engine.requests import Command, Operation, Sleep
from redis_saver._tiered import context, reading, scripts
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.flushing import busy, flush_now, until_busy
from redis_saver._tiered.intents import ALL, REPAIRS, begin_intent, change_cold, end, given_up, repair
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver.errors import ThreadDamaged, decoding, not_owner

_PAUSE = 0.02
_DIGITS, _TOKEN_AT = 15, 32
"""Parts of an intent: its start in milliseconds, and its writer's token (`lua/tiered/begin_intent.lua`)."""


def take(tiers: Tiers, terms: Terms, nonce: str) -> Tiered[Record]:
    """Take a thread, as on one server; then wait until writers that had begun to write it to cold are done.

    Once the thread is taken, nobody else begins to write it. Earlier writes may still reach cold, so the block waits.
    """
    record = yield from ownership.taken(tiers.hot, terms, nonce)
    yield from _wait_for_writers(tiers, terms, record)
    if run := ownership.to_roll_back(terms, record):
        yield from _roll_back(tiers, terms.thread, writer_of(tiers.hot, terms.thread, record.token), run)
        yield from _renew(tiers, terms, record)  # cold may have taken longer than the lease
    return record


def _renew(tiers: Tiers, terms: Terms, record: Record) -> Operation[None]:
    if not (yield from ownership.renew(tiers.hot, terms.thread, record.token, terms.lease)):
        raise not_owner("0", "", tiers.hot.keyspace.owner_key(terms.thread))


def _wait_for_writers(tiers: Tiers, terms: Terms, record: Record) -> Operation[None]:
    """Wait for writers from before the thread was taken, until they are done or gone. Meanwhile renew the lease.

    Raises:
        NotOwner: Somebody else took the thread meanwhile.
    """
    key, taken_at = tiers.hot.keyspace.tier_keys(terms.thread).intents, record.since // 1000
    began = renewed = time.monotonic()
    first: set[bytes] | None = None
    while True:
        intents = yield Command(("ZRANGEBYLEX", key, "-", "+"))
        now = time.monotonic()
        oldest = taken_at + (now - began) * 1000 - context.WRITER_GONE
        with decoding("what is being written of thread {!r}", terms.thread):
            writers = {intent[_TOKEN_AT:] for intent in intents if min(int(intent[:_DIGITS]), taken_at) > oldest}
        first = writers if first is None else first & writers
        if not first:
            return
        if now - renewed > terms.renewal_interval:
            renewed = now
            yield from _renew(tiers, terms, record)
        yield Sleep(_PAUSE)


def _roll_back(tiers: Tiers, thread: str, writer: bytes, run_id: str) -> Tiered[None]:
    """Remove the checkpoints that a run wrote to a thread. Other threads that the run wrote, and copies, stay.

    One script removes them in hot, and notes the ids for the flusher, which removes them in cold. So the thread's new
    owner never waits for that, and a late removal harms nobody. If hot lacks some of the thread, cold is asked for ids.

    Raises:
        NotOwner: Somebody else took the thread. Nothing was removed.
        ThreadBusy: Others wrote the thread all the time.
        NotImplementedError: Cold is not Postgres, and cannot delete by run, or only in all threads that the run wrote.
            Nothing was removed.
    """
    if not tiers.cold_is_postgres:
        yield from _roll_back_by_run(tiers, thread, writer, run_id)
        return
    keys, deadline, repairs = tiers.hot.keyspace.tier_keys(thread), until_busy(), 0
    asked = False
    while True:
        try:
            removal = yield from pruning.removal_of_runs(tiers.hot, thread, {names.run(run_id)})
        except ThreadDamaged as damage:
            if repairs == REPAIRS:
                raise
            repairs += 1
            yield from repair(tiers, thread, damage)
            continue
        in_cold = (yield ColdCall("checkpoints_of_run", (thread, run_id))) if asked else []
        first, rest = pruning.divided(removal.plan) if removal else ([], [])
        arguments = (
            removal.revision if removal else b"",
            b"1" if asked else b"",
            len(in_cold),
            *(names.checkpoint(ns, checkpoint_id) for ns, checkpoint_id in in_cold),
            *first,
        )
        answer = yield owned_call(scripts.ROLL_BACK, (*keys.writing, keys.flush), writer, arguments)
        if answer == RollBackReply.UNKNOWN:
            asked = True
        elif answer not in (RollBackReply.CHANGED, RollBackReply.WRITING):
            break
        elif time.monotonic() >= deadline:
            raise busy(thread)
        elif answer == RollBackReply.WRITING:
            yield Sleep(_PAUSE)
            yield from reading.get_tuple(tiers, config.to_config(thread, "", ""))  # ends intents of dead writers
    if removal:
        with decoding("what was removed of thread {!r}", thread):
            *_, revision = answer
        # Remove the chunks that nothing refers to any more.
        yield from pruning.carry_out(thread, tiers.hot.keyspace.keys(thread), writer, revision, rest)
    if tiers.flush_queue:
        tiers.flush_queue.note(thread)
    else:
        yield from flush_now(tiers, thread)


def _roll_back_by_run(tiers: Tiers, thread: str, writer: bytes, run_id: str) -> Tiered[None]:
    """Remove a run in a cold saver that can only delete by run; hot gives the thread up."""
    of_run = yield ColdCall("list", (None,), {"filter": {"run_id": run_id}})
    if others := sorted({config.thread_id(saved.config) for saved in of_run} - {thread}):
        raise NotImplementedError(
            f"run {shown(run_id)} also has checkpoints in thread {shown(others[0])} (it wrote that, too, or that is a "
            "copy), and this cold saver can only remove a run from all threads at once. Nothing was removed. Write "
            "on_busy='take', which removes nothing, or take LangGraph's PostgresSaver as cold"
        )
    intent = yield from begin_intent(tiers, thread, ALL, writer, need="all")
    yield from change_cold(tiers, {thread: intent}, ColdCall("delete_for_runs", ([run_id],)))
    yield from end(tiers, thread, intent, given_up(tiers, thread, intent))
