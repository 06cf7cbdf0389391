"""Enrolling: threads that only hot has, from before there were tiers, are noted as dirty, and flushed."""

from __future__ import annotations

from redis_saver._checkpoint import listing
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call
from redis_saver._tiered.context import Tiers, best_effort
from redis_saver._tiered.flush.run import flush_now
from redis_saver._tiered.requests import Tiered


def enroll(tiers: Tiers, thread: str | None) -> Tiered[None]:
    """Enroll a thread, if it is from before there were tiers; None: enroll all such threads."""

    def bring() -> Tiered[None]:
        found = [thread] if thread is not None else (yield from listing.collect(listing.scan_threads(tiers.hot)))
        for each in dict.fromkeys(found):
            keys = tiers.hot.keyspace.tier_keys(each)
            if (yield Call(scripts.ENROLL, (keys.index_key, keys.data_key, keys.intents, keys.dirty, keys.flush), ())):
                yield from bring_enrolled(tiers, each)

    yield from best_effort(tiers, bring())


def bring_enrolled(tiers: Tiers, thread: str) -> Tiered[None]:
    """Flush a thread, all of which was just noted."""
    yield from flush_now(tiers, thread)
    tiers.counts.enrolled += 1
