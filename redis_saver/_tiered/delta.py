"""Histories of `DeltaChannel`s over two tiers: hot answers if it has the ancestors; else cold answers and fills hot."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig

from redis_saver._checkpoint import delta, reading
from redis_saver._common import config, names
from redis_saver._engine.replies import FillLeaseReply
from redis_saver._engine.requests import Argument, Batch, Call
from redis_saver._tiered import context, scripts
from redis_saver._tiered.context import (
    FILL_LEASE,
    HOT_CANNOT_HAVE,
    Tiers,
    best_effort,
    for_cold,
)
from redis_saver._tiered.flushing import flush_now
from redis_saver._tiered.intents import enroll, repair
from redis_saver._tiered.listing import dirty
from redis_saver._tiered.reading import fill_arguments
from redis_saver._tiered.requests import (
    Attempt,
    ColdCall,
    HotFailed,
    Tiered,
    is_out_of_memory,
)
from redis_saver.errors import ThreadDamaged


def get_delta_channel_history(tiers: Tiers, given: RunnableConfig, channels: Sequence[str]) -> Tiered[Any]:
    """Read seeds and writes of `DeltaChannel`s from hot, if it has the ancestors.

    If not, flush the thread and ask cold.

    This process remembers cold's answer. The ancestors fill hot for other processes, up to `ANCESTORS_FILLED` and
    `BYTES_FILLED`.
    """
    where, damage, basis = config.address(given), None, None
    keys = tiers.hot.keyspace.reading_keys(where.thread_id)
    try:
        if tiers.verify == "never" or where.checkpoint_id is not None:
            return (yield from delta.histories(tiers.hot, where, channels, keys))
    except reading.HasIntents:
        pass
    except delta.Partial as partial:
        basis = partial.basis
    except ThreadDamaged as damaged:
        damage = damaged
    except HotFailed:
        tiers.counts.bypasses += 1
        return (yield ColdCall("get_delta_channel_history", (), {"config": for_cold(given), "channels": channels}))
    if damage:
        yield from best_effort(tiers, repair(tiers, where.thread_id, damage))
    yield from enroll(tiers, where.thread_id)
    try:
        if (yield from dirty(tiers, where.thread_id)):
            yield from flush_now(tiers, where.thread_id)
            basis = None  # cold may still lack what it refused
    except HotFailed:  # the next call that asks hot counts it
        basis = None
    found = yield ColdCall("get_delta_channel_history", (), {"config": for_cold(given), "channels": channels})
    if basis is not None:
        with contextlib.suppress(*HOT_CANNOT_HAVE):  # then cold is asked the next time, too
            delta.remember(tiers.hot, where, keys[1], basis, found)
        yield from best_effort(tiers, _fill_ancestors(tiers, where, basis, channels))
    return found


ANCESTORS_FILLED, BYTES_FILLED = 200, 4_000_000
"""Maximum number of ancestors, and of bytes, with which a history fills hot. By default LangGraph takes a snapshot
every 50 writes."""
_ANCESTORS_PER_CALL = 20
"""Number of ancestors for which cold is asked at a time, as each comes with all its values."""


def _fill_ancestors(tiers: Tiers, where: config.Address, basis: delta.Basis, channels: Sequence[str]) -> Tiered[None]:
    """Fill hot with the ancestors of a history, from the first that is missing to the last channel's value.

    Hot needs all of them to answer. So if they are too many or too large, nothing is stored.
    """
    thread, ns, _ = where
    keys, token = tiers.hot.keyspace.tier_keys(thread), uuid4().hex
    lease = (token, context.WRITER_GONE, FILL_LEASE, names.component(ns), basis.missing)
    if not (basis.missing and tiers.lists_by_id):
        return
    if (yield Call(scripts.FILL_LEASE, keys.writing, lease)) != FillLeaseReply.GRANTED:
        return
    cold = ColdCall("list", (for_cold(config.to_config(thread, ns, "")),), {"limit": _ANCESTORS_PER_CALL})
    remaining, wanted, before = set(channels), names.name_of(basis.missing), names.name_of(basis.target)
    fills, size = list[list[Argument]](), 0
    while wanted and remaining:
        page = {one.checkpoint["id"]: one for one in (yield cold.with_options(before=config.to_config("", "", before)))}
        if wanted not in page:
            return  # it was removed, or its clock was ahead
        before = min(page)
        while wanted in page and remaining:
            found = page[wanted]
            try:
                fills.append(fill_arguments(tiers.hot, found, token, newest=False, is_last=False))
            except HOT_CANNOT_HAVE:
                return
            size += sum([len(one) for one in fills[-1] if isinstance(one, (bytes, str))])
            if len(fills) > ANCESTORS_FILLED or size > BYTES_FILLED:
                return
            remaining.difference_update(found.checkpoint["channel_values"])
            wanted = (config.checkpoint_id(found.parent_config) if found.parent_config else None) or ""
    fills[-1] = fill_arguments(tiers.hot, found, token, newest=False)
    calls = [Call(scripts.FILL, (keys.index_key, keys.data_key, keys.lease), arguments) for arguments in fills]
    filled, error = yield Attempt(Batch(calls))
    if error is None:
        tiers.counts.rehydrations += filled.count(1)
    elif not isinstance(error, ThreadDamaged) and not is_out_of_memory(error):
        raise error  # as `_fetch` does
