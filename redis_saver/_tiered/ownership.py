"""Ownership of a thread over two tiers: hot knows who owns it."""

from __future__ import annotations

import time

from redis_saver._checkpoint import guards, ownership
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._engine import scripts
from redis_saver._engine.requests import Command, Operation, Sleep
from redis_saver._tiered.context import WRITER_GONE, Tiers
from redis_saver._tiered.intents import ALL, begin_intent, end, given_up
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver.errors import decoding

_PAUSE = 0.02
_TOKEN_AT = 32
"""Where an intent names its writer (`lua/tiered/begin_intent.lua`)."""


def take(tiers: Tiers, terms: Terms, nonce: str) -> Tiered[Record]:
    """Take a thread, as on one server; then wait until whoever was writing it to cold is done.

    From when the thread is taken nobody else begins to write it. What was begun before may still reach cold; so the block begins behind that.
    """
    record = yield from ownership.taken(tiers.hot, terms, nonce)
    yield from _wait_for_writers(tiers, terms.thread)
    if run := ownership.to_roll_back(terms, record):
        guard = guards.guard_of(tiers.hot, scripts.GUARDED_TIERED, record.token)
        yield from guards.guarded(_roll_back(tiers, terms.thread, run), guard)
    return record


def _wait_for_writers(tiers: Tiers, thread: str) -> Operation[None]:
    began, first = time.monotonic(), None
    while True:
        found = yield Command(("ZRANGEBYLEX", tiers.hot.keyspace.tier_keys(thread).intents, "-", "+"))
        with decoding("what is being written of thread {!r}", thread):
            writers = {intent[_TOKEN_AT:] for intent in found}
        first = writers if first is None else first & writers
        if not first or time.monotonic() - began > WRITER_GONE / 1000:
            return
        yield Sleep(_PAUSE)


def _roll_back(tiers: Tiers, thread: str, run_id: str) -> Tiered[None]:
    """Remove what a run has written to a thread, in cold; hot gives it up."""
    intent = yield from begin_intent(tiers, thread, ALL, need="all")
    yield ColdCall("delete_for_runs", ([run_id],))
    yield from end(tiers, thread, intent, given_up(tiers, thread, intent))
