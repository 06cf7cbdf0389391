"""Reading by hot, else by cold, and bringing back to hot what it lacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver import codec, config, names, reading, scripts, threads, writing
from redis_saver.context import Context
from redis_saver.errors import ThreadDamaged
from redis_saver.requests import Argument, Call
from redis_saver.tiers.adopting import all_in_cold, by_task, writes_of
from redis_saver.tiers.doubts import mend
from redis_saver.tiers.model import (
    LEAVE,
    MOST_NOTED,
    WRITER_GONE,
    Cold,
    HotFailed,
    Once,
    Tiered,
    Tiers,
    by_choice,
    for_cold,
)


def get_tuple(tiers: Tiers, given: RunnableConfig) -> Tiered[CheckpointTuple | None]:
    """The newest checkpoint, or the one a config names: of hot, else of cold, and then brought back."""
    where, waited = config.address(given), False
    while True:
        damage: ThreadDamaged | None = None
        try:
            found = yield from reading.get_tuple(tiers.hot, given, (tiers.hot.keyspace.doubts(where.thread_id),))
            if found is not None and (yield from _is_newest(tiers, where, found)):
                tiers.counts.hits += 1
                return found
            tiers.counts.misses += 1
        except reading.Doubtful:
            tiers.counts.doubts += 1
        except ThreadDamaged as damaged:
            damage = damaged
            tiers.counts.misses += 1
        except HotFailed:
            tiers.counts.bypasses += 1
            return (yield Cold("get_tuple", (for_cold(given),)))  # type: ignore[no-any-return]
        if damage:
            yield from by_choice(tiers, mend(tiers, where.thread_id, damage))
        if waited:  # what was found by the first of those who waited was not brought back
            fetched = yield from _fetch(tiers, where, given)
        else:
            fetched = yield Once((*where[:2], where.checkpoint_id or ""), lambda: _fetch(tiers, where, given))
        if fetched is not None:
            return fetched.found
        waited = True


def _is_newest(tiers: Tiers, where: config.Address, found: CheckpointTuple) -> Tiered[bool]:
    """Whether cold has no newer checkpoint, if that is to be asked; else hot gives the thread up."""
    place = where[:2]
    if where.checkpoint_id or tiers.verify == "never" or (tiers.verify == "on_open" and place in tiers.verified):
        return True
    newest = yield Cold("get_tuple", (for_cold(config.to_config(*place, "")),))
    if len(tiers.verified) >= MOST_NOTED:
        tiers.verified.clear()
    tiers.verified.add(place)
    if newest is not None and newest.checkpoint["id"] == found.checkpoint["id"]:
        return True
    yield from threads.delete_thread(tiers.hot, where.thread_id)
    return False


_HERE = 2


class _Fetched(NamedTuple):
    found: CheckpointTuple | None


def _fetch(tiers: Tiers, where: config.Address, given: RunnableConfig) -> Tiered[_Fetched | None]:
    """Read from cold, and bring what is there back to hot. None: by now hot has it."""
    thread, token = where.thread_id, uuid4().hex
    keyspace, leave = tiers.hot.keyspace, 0
    wanted = (
        names.component(where.checkpoint_ns),
        names.component(where.checkpoint_id) if where.checkpoint_id else b"",
    )
    keys = keyspace.keys(thread)
    try:
        everything = (*keys, keyspace.doubts(thread), keyspace.lease(thread))
        leave = yield Call(scripts.LEASE, everything, (token, WRITER_GONE, LEAVE, *wanted))
        if leave == _HERE:
            return None
    except HotFailed:
        tiers.counts.bypasses += 1
    found = yield Cold("get_tuple", (for_cold(given),))
    if found is None and leave and not where.checkpoint_id:
        if len(tiers.empty) >= MOST_NOTED:
            tiers.empty.clear()
        tiers.empty[thread] = (where.checkpoint_ns, token)
    if found is None or not leave:
        return _Fetched(found)

    def restore() -> Tiered[None]:
        arguments = _restored(tiers.hot, found, token, newest=not where.checkpoint_id)
        try:
            back = yield Call(scripts.RESTORE, (*keys, keyspace.lease(thread)), arguments)
        except ThreadDamaged:  # only just; the next to read mends it
            back = 0
        tiers.counts.rehydrations += back

    yield from by_choice(tiers, restore())
    return _Fetched(found)


def _restored(hot: Context, found: CheckpointTuple, token: str, *, newest: bool) -> list[Argument]:
    """What `lua/restore.lua` takes."""
    where = config.address(found.config)
    checkpoint_id = where.checkpoint_id or ""
    records: list[Argument] = []
    count = 0
    for order, (task, writes) in enumerate(by_task(found.pending_writes or ()).items()):
        # The path that gave this order is not known.
        regular, special = codec.encode_writes(hot, writes, f"{order:08}")
        member = names.task(where.checkpoint_ns, checkpoint_id, task)
        if regular:
            records += (member, b"".join(regular), len(regular))
        for index, record in special.items():
            records += (member + b"%d" % index, record, 1)
        count += bool(regular) + len(special)
    ns = names.component(where.checkpoint_ns) if newest else b""
    return [token, writes_of(where), ns, count, *records, *writing.whole(hot, found)]


def list_checkpoints(
    tiers: Tiers,
    given: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Tiered[list[CheckpointTuple]]:
    """What cold has, which is all."""
    options = {"filter": filter, "before": before, "limit": limit}
    yield from all_in_cold(tiers, None if given is None else config.thread_id(given))
    return (yield Cold("list", (given if given is None else for_cold(given, ns=False),), options))  # type: ignore[no-any-return]


def get_delta_channel_history(tiers: Tiers, given: RunnableConfig, channels: Sequence[str]) -> Tiered[Any]:
    """Seeds and writes of `DeltaChannel`s, by cold, which has all ancestors."""
    yield from all_in_cold(tiers, config.thread_id(given))
    return (yield Cold("get_delta_channel_history", (), {"config": for_cold(given), "channels": channels}))
