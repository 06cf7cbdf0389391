"""Reading a checkpoint: hot first; on a miss cold, and then hot is filled."""

from __future__ import annotations

import time
from typing import NamedTuple
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import reading
from redis_saver._checkpoint.writing import whole
from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.replies import FillLeaseReply, FillReply
from redis_saver._engine.requests import Argument, Call
from redis_saver._engine.scripts import Script
from redis_saver._storage import codec
from redis_saver._storage.context import Context
from redis_saver._tiered import context
from redis_saver._tiered.context import (
    FILL_LEASE,
    HOT_CANNOT_HAVE,
    WHOLE,
    Fill,
    Tiers,
    best_effort,
    by_task,
    for_cold,
    newest_of,
    writes_of,
)
from redis_saver._tiered.flushing import busy, flush_now, until_busy
from redis_saver._tiered.intents import change, repair
from redis_saver._tiered.requests import (
    Attempt,
    ColdCall,
    HotFailed,
    SingleFlight,
    Tiered,
    is_out_of_memory,
)
from redis_saver.errors import ThreadDamaged

_ATTEMPTS = 3
TOKEN = 16
"""Hexadecimal digits of a fill lease's token, which each put sends."""


def get_tuple(tiers: Tiers, given: RunnableConfig) -> Tiered[CheckpointTuple | None]:
    """The newest checkpoint, or the one that a config names. Reads hot first; on a miss it reads cold and fills hot."""
    where, waited, repaired = config.address(given), False, 0
    keys = tiers.hot.keyspace.reading_keys(where.thread_id)
    is_believed = tiers.verify == "never" or where.checkpoint_id is not None

    def hear(token: bytes) -> None:
        tiers.fills.hear(where.thread_id, where.checkpoint_ns, token)

    while True:
        damage: ThreadDamaged | None = None
        try:
            found = yield from reading.read(tiers.hot, where, keys, hear)
            if found is not None and (is_believed or (yield from _is_newest(tiers, where, found))):
                tiers.counts.hits += 1
                return found
            tiers.counts.misses += 1
        except reading.Nowhere:
            if is_believed or (yield from _is_newest(tiers, where, None)):
                tiers.counts.hits += 1
                return None
            tiers.counts.misses += 1
        except reading.HasIntents:
            tiers.counts.intents += 1
        except ThreadDamaged as damaged:
            if repaired == _ATTEMPTS:
                raise
            damage, repaired = damaged, repaired + 1
            tiers.counts.misses += 1
        except HotFailed:
            tiers.counts.bypasses += 1
            return (yield ColdCall("get_tuple", (for_cold(given),)))  # type: ignore[no-any-return]
        if damage:
            yield from best_effort(tiers, repair(tiers, where.thread_id, damage))
        if waited:  # another caller read it from cold, and did not fill hot
            fetched = yield from _fetch(tiers, where, given)
        else:
            fetched = yield fetching(tiers, where, given)
        if fetched is not None:
            return fetched.found
        waited = True


def _is_newest(tiers: Tiers, where: config.Address, found: CheckpointTuple | None) -> Tiered[bool]:
    """For `verify="on_open"`: False if cold has a newer checkpoint than hot, which then drops the thread."""
    place = where[:2]
    if place in tiers.verified:
        return True
    newest = yield ColdCall("get_tuple", (for_cold(config.to_config(*place, "")),))
    tiers.verified.store(place, True, sum(map(len, place)))
    ours, its = found and found.checkpoint["id"], newest and newest.checkpoint["id"]
    if ours == its or (tiers.flush_queue and (its is None or (ours is not None and its < ours))):  # cold may lag behind
        return True
    yield from change(tiers, where.thread_id, None)
    return False


class _Fetched(NamedTuple):
    found: CheckpointTuple | None


def fetching(tiers: Tiers, where: config.Address, given: RunnableConfig | None = None) -> SingleFlight:
    """The request that fills hot with a checkpoint, or with the newest, unless hot has it."""
    asked = given or config.to_config(*where[:2], where.checkpoint_id or "")
    return SingleFlight((*where[:2], where.checkpoint_id or ""), lambda: _fetch(tiers, where, asked))


def _fetch(tiers: Tiers, where: config.Address, given: RunnableConfig) -> Tiered[_Fetched | None]:
    """Read from cold, and fill hot. None: hot has it by now.

    Raises:
        ThreadBusy: Hot had something that cold lacked, again after each flush.
    """
    thread, token, deadline = where.thread_id, uuid4().hex[:TOKEN].encode(), until_busy()
    keys = tiers.hot.keyspace.tier_keys(thread)
    wanted = (
        names.component(where.checkpoint_ns),
        names.component(where.checkpoint_id) if where.checkpoint_id else b"",
    )
    try:
        while (
            leased := (yield Call(scripts.FILL_LEASE, keys.writing, (token, context.WRITER_GONE, FILL_LEASE, *wanted)))
        ) == FillLeaseReply.BEHIND:
            if time.monotonic() >= deadline:
                raise busy(thread)
            yield from flush_now(tiers, thread)
        if leased == FillLeaseReply.HERE:
            return None
    except HotFailed:
        leased = 0
        tiers.counts.bypasses += 1
    fill = Fill(token, tiers.fills.now())
    found = yield ColdCall("get_tuple", (for_cold(given),))
    if leased and (found or not where.checkpoint_id):
        yield from best_effort(tiers, _restore(tiers, where, fill, found))
    return _Fetched(found)


def _restore(tiers: Tiers, where: config.Address, fill: Fill, found: CheckpointTuple | None) -> Tiered[None]:
    """Fill hot with what cold answered. If the namespace is empty in cold, note that in hot, or in this process."""
    thread, ns, _ = where
    try:
        if found:
            arguments = fill_arguments(tiers.hot, found, fill.token, newest=not where.checkpoint_id)
            script: Script = scripts.FILL
        else:
            arguments, script = [fill.token, names.component(ns)], scripts.FILL_NOTHING
    except HOT_CANNOT_HAVE:  # so cold alone has it
        return
    keys = tiers.hot.keyspace.tier_keys(thread)
    back, error = yield Attempt(Call(script, (keys.index_key, keys.data_key, keys.lease), arguments))
    if error is not None and not isinstance(error, ThreadDamaged) and not is_out_of_memory(error):
        raise error  # damaged: the next reader repairs it; out of memory: it does not fit into hot
    if back == FillReply.FILLED:
        tiers.counts.rehydrations += found is not None
        if not where.checkpoint_id:
            tiers.fills.learn(thread, ns, fill)
    elif back == FillReply.ABSENT:
        others = yield ColdCall("list", ({"configurable": {"thread_id": thread}},), {"limit": 1})
        tiers.fills.learn(thread, ns, fill._replace(field=newest_of(ns) if others else WHOLE))


def fill_arguments(
    hot: Context, found: CheckpointTuple, token: str | bytes, *, newest: bool, is_last: bool = True
) -> list[Argument]:
    """The arguments of `lua/tiered/fill.lua`."""
    where = config.address(found.config)
    checkpoint_id = where.checkpoint_id or ""
    records: list[Argument] = []
    count = 0
    for order, (task, writes) in enumerate(by_task(found.pending_writes or ()).items()):
        # Cold does not say by which task paths this order came, so the order itself stands for them.
        regular, special = codec.encode_writes(hot, writes, f"{order:08}")
        member = names.task(where.checkpoint_ns, checkpoint_id, task)
        if regular:
            records += (member, b"".join(regular), len(regular))
        for index, record in special.items():
            records += (member + b"%d" % index, record, 1)
        count += bool(regular) + len(special)
    ns = names.component(where.checkpoint_ns) if newest else b""
    return [token, writes_of(where), ns, b"1" if is_last else b"0", count, *records, *whole(hot, found)]
