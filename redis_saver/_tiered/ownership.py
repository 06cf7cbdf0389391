"""Ownership of a thread over two tiers: hot knows who owns it."""

from __future__ import annotations

import time

from redis_saver._checkpoint import guards, ownership
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._common import config
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Command, Operation, Sleep
from redis_saver._tiered import context
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.intents import ALL, begin_intent, change_cold, end, given_up
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver.errors import decoding, not_owner

_PAUSE = 0.02
_DIGITS, _TOKEN_AT = 15, 32
"""Where an intent says since when it is, in milliseconds, and names its writer (`lua/tiered/begin_intent.lua`)."""


def take(tiers: Tiers, terms: Terms, nonce: str) -> Tiered[Record]:
    """Take a thread, as on one server; then wait until whoever was writing it to cold is done.

    From when the thread is taken nobody else begins to write it. What was begun before may still reach cold; so the block begins behind that.
    """
    record = yield from ownership.taken(tiers.hot, terms, nonce)
    yield from _wait_for_writers(tiers, terms, record)
    if run := ownership.to_roll_back(terms, record):
        guard = guards.guard_of(tiers.hot, scripts.GUARDED_TIERED, record.token)
        yield from guards.guarded(_roll_back(tiers, terms.thread, run), guard)
    return record


def _wait_for_writers(tiers: Tiers, terms: Terms, record: Record) -> Operation[None]:
    """Wait for whoever was writing when the thread was taken, until it is done or gone. Meanwhile the lease is renewed.

    Raises:
        NotOwner: Somebody else took the thread meanwhile.
    """
    key, taken_at = tiers.hot.keyspace.tier_keys(terms.thread).intents, record.since // 1000
    began = renewed = time.monotonic()
    first: set[bytes] | None = None
    while True:
        found = yield Command(("ZRANGEBYLEX", key, "-", "+"))
        now = time.monotonic()
        oldest = taken_at + (now - began) * 1000 - context.WRITER_GONE
        with decoding("what is being written of thread {!r}", terms.thread):
            writers = {one[_TOKEN_AT:] for one in found if min(int(one[:_DIGITS]), taken_at) > oldest}
        first = writers if first is None else first & writers
        if not first:
            return
        if now - renewed > terms.renewal_interval:
            renewed = now
            if not (yield from ownership.renew(tiers.hot, terms.thread, record.token, terms.lease)):
                raise not_owner("0", "", tiers.hot.keyspace.owner_key(terms.thread))
        yield Sleep(_PAUSE)


def _roll_back(tiers: Tiers, thread: str, run_id: str) -> Tiered[None]:
    """Remove what a run has written to a thread, in cold; hot gives it up. Other threads that the run wrote stay, and so do copies.

    Raises:
        NotImplementedError: Cold cannot delete by run, or only in all threads, and the run is in others, too. Nothing was removed.
    """
    if tiers.cold_is_postgres:
        removal = ColdCall("delete_runs_of_thread", (thread, [run_id]))
    else:
        removal = ColdCall("delete_for_runs", ([run_id],))
        found = yield ColdCall("list", (None,), {"filter": {"run_id": run_id}})
        if others := sorted({config.thread_id(one.config) for one in found} - {thread}):
            raise NotImplementedError(
                f"run {shown(run_id)} also has checkpoints in thread {shown(others[0])} (it wrote that, too, or that is a copy), and this cold saver can only "
                "remove a run from all threads at once. Nothing was removed. Write on_busy='take', which removes nothing, or take LangGraph's PostgresSaver as cold"
            )
    intent = yield from begin_intent(tiers, thread, ALL, need="all")
    yield from change_cold(tiers, {thread: intent}, removal)
    yield from end(tiers, thread, intent, given_up(tiers, thread, intent))
