"""Reading: hot first; on a miss cold, and then hot is filled."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import delta, listing, reading, writing
from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.replies import FillLeaseReply
from redis_saver._engine.requests import Argument, Batch, Call, Command, Operation, Page, Scan
from redis_saver._engine.runner import Pump
from redis_saver._storage import codec
from redis_saver._storage.context import Context
from redis_saver._tiered import context
from redis_saver._tiered.cold_calls import by_task, writes_of
from redis_saver._tiered.context import (
    FILL_LEASE,
    MAX_NOTED,
    WHOLE,
    NegativeEntry,
    Tiers,
    best_effort,
    for_cold,
    newest_of,
)
from redis_saver._tiered.enrolling import enroll
from redis_saver._tiered.flush.queue import scan
from redis_saver._tiered.flush.run import flush_now, flush_what_goes
from redis_saver._tiered.intents import change, repair
from redis_saver._tiered.requests import (
    Attempt,
    ColdCall,
    HotFailed,
    SingleFlight,
    Tiered,
    TieredRequest,
    TieredStream,
    is_out_of_memory,
)
from redis_saver.errors import EncodeError, LimitExceeded, ThreadDamaged


def get_tuple(tiers: Tiers, given: RunnableConfig) -> Tiered[CheckpointTuple | None]:
    """The newest checkpoint, or the one that a config names. Reads hot first; on a miss it reads cold and fills hot."""
    where, waited, repaired = config.address(given), False, 0
    keys = tiers.hot.keyspace.reading_keys(where.thread_id)
    is_believed = tiers.verify == "never" or where.checkpoint_id is not None
    while True:
        damage: ThreadDamaged | None = None
        try:
            found = yield from reading.read(tiers.hot, where, keys)
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
            fetched = yield SingleFlight((*where[:2], where.checkpoint_id or ""), lambda: _fetch(tiers, where, given))
        if fetched is not None:
            return fetched.found
        waited = True


def _is_newest(tiers: Tiers, where: config.Address, found: CheckpointTuple | None) -> Tiered[bool]:
    """For `verify`: whether cold has no newer checkpoint than hot. If it has, hot gives the thread up."""
    place = where[:2]
    if tiers.verify == "on_open" and place in tiers.verified:
        return True
    newest = yield ColdCall("get_tuple", (for_cold(config.to_config(*place, "")),))
    if sum(map(len, place)) <= names.MAX_CACHED_NAME:
        if len(tiers.verified) >= MAX_NOTED:
            tiers.verified.clear()
        tiers.verified.add(place)
    ours, its = found and found.checkpoint["id"], newest and newest.checkpoint["id"]
    if ours == its or (tiers.flush_queue and (its is None or (ours is not None and its < ours))):  # cold may lag behind
        return True
    yield from change(tiers, where.thread_id, None)
    return False


class _Fetched(NamedTuple):
    found: CheckpointTuple | None


def _fetch(tiers: Tiers, where: config.Address, given: RunnableConfig) -> Tiered[_Fetched | None]:
    """Read from cold, and fill hot. None: hot has it by now."""
    thread, token = where.thread_id, uuid4().hex
    keys = tiers.hot.keyspace.tier_keys(thread)
    wanted = (
        names.component(where.checkpoint_ns),
        names.component(where.checkpoint_id) if where.checkpoint_id else b"",
    )
    try:
        while (
            leased := (yield Call(scripts.FILL_LEASE, keys.writing, (token, context.WRITER_GONE, FILL_LEASE, *wanted)))
        ) == FillLeaseReply.BEHIND:
            yield from flush_now(tiers, thread)
        if leased == FillLeaseReply.HERE:
            return None
    except HotFailed:
        leased = 0
        tiers.counts.bypasses += 1
    found = yield ColdCall("get_tuple", (for_cold(given),))
    if found is None and leased and not where.checkpoint_id:
        others = yield ColdCall("list", ({"configurable": {"thread_id": thread}},), {"limit": 1})
        if len(thread) + len(where.checkpoint_ns) <= names.MAX_CACHED_NAME:
            if len(tiers.negative_cache) >= MAX_NOTED:
                tiers.negative_cache.clear()
            tiers.negative_cache[thread] = NegativeEntry(token, newest_of(where.checkpoint_ns) if others else WHOLE)
    if found is None or not leased:
        return _Fetched(found)

    def restore() -> Tiered[None]:
        try:
            arguments = _restored(tiers.hot, found, token, newest=not where.checkpoint_id)
        except LimitExceeded:  # it is too large for hot, so cold alone has it
            return
        back, error = yield Attempt(Call(scripts.FILL, (keys.index_key, keys.data_key, keys.lease), arguments))
        if error is None:
            tiers.counts.rehydrations += back
        elif not isinstance(error, ThreadDamaged) and not is_out_of_memory(error):
            raise error  # damaged: the next reader repairs it; out of memory: it does not fit into hot

    yield from best_effort(tiers, restore())
    return _Fetched(found)


def _restored(
    hot: Context, found: CheckpointTuple, token: str, *, newest: bool, is_last: bool = True
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
    return [token, writes_of(where), ns, b"1" if is_last else b"0", count, *records, *writing.whole(hot, found)]


def list_checkpoints(
    tiers: Tiers,
    given: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> TieredStream[CheckpointTuple]:
    """What both have, newest first, in pages. Of a thread that cold does not have all of: what hot has, if that is all; else cold gets it first.

    What was coalesced is in hot alone. If both have to be asked, all results are gathered first, and hot's are left out for a thread with a write intent.
    """
    return _list(tiers, listing.query(given, filter, before, limit), filter, _Listed(before, limit))


def _list(
    tiers: Tiers, asked: listing.Query, filter: Mapping[str, Any] | None, listed: _Listed
) -> TieredStream[CheckpointTuple]:
    if asked.limit == 0:
        return
    given, thread = asked.config, None if asked.config is None else config.thread_id(asked.config)
    has_all, tombstones = tiers.flush_queue is None or tiers.flush_queue.history == "all", set[str]()
    yield from enroll(tiers, thread)  # first, because a thread that another process enrolls is dirty then
    try:
        for each in (yield from _dirty(tiers, thread)):
            if thread is not None and (yield from _list_by_hot_alone(tiers, thread, asked, listed)):
                return
            if not (yield from flush_what_goes(tiers, each)):
                has_all = False
                if (yield from _has_tombstone(tiers.hot.keyspace.tier_keys(each))):
                    tombstones.add(each)
    except HotFailed:  # counted by whoever asks hot next
        pass
    cold = ColdCall("list", (given if given is None else for_cold(given, ns=False),), {"filter": filter})
    if has_all:
        yield from _list_by_cold(tiers, cold, listed)
        return
    enough = None if listed.left is None or tombstones else listed.left + listed.more
    in_cold = yield cold.with_options(before=listed.before, limit=enough)
    with_intents = yield from _with_intents(tiers, thread)
    try:
        in_hot = yield from listing.collect(listing.list_checkpoints(tiers.hot, listed.rest_of(asked)))
    except ThreadDamaged:  # the next reader repairs it
        in_hot = []
    believed = [one for one in in_cold if config.thread_id(one.config) not in tombstones]
    believed += [one for one in in_hot if config.thread_id(one.config) not in with_intents]
    both = {config.address(one.config): one for one in believed}
    yield listed.page(sorted(both.values(), key=lambda one: one.checkpoint["id"], reverse=True))


class _Listed:
    """How far a list has got, so that the other store can go on with it: below the last id, without what was already listed of that id."""

    def __init__(self, before: RunnableConfig | None, limit: int | None) -> None:
        self.before, self.left = before, limit
        self._last_id: str | None = None
        self._at_last = set[config.Address]()

    @property
    def more(self) -> int:
        """How many of the next results may have been listed already."""
        return len(self._at_last)

    @property
    def is_done(self) -> bool:
        """Whether the limit is reached."""
        return self.left is not None and self.left <= 0

    def page(self, found: Sequence[CheckpointTuple]) -> Page[CheckpointTuple]:
        """A page of those results that were not listed yet."""
        new = [one for one in found if config.address(one.config) not in self._at_last][: self.left]
        for one in new:
            if (checkpoint_id := one.checkpoint["id"]) != self._last_id:
                if self._last_id is not None:
                    self.before = config.to_config("", "", self._last_id)
                self._last_id = checkpoint_id
                self._at_last.clear()
            self._at_last.add(config.address(one.config))
        if self.left is not None:
            self.left -= len(new)
        return Page(new)

    def rest_of(self, asked: listing.Query) -> listing.Query:
        """The query for what is still wanted, and for the `more` that may have been listed already."""
        before = None if self.before is None else config.checkpoint_id(self.before)
        return asked._replace(before=before, limit=None if self.left is None else self.left + self.more)


def _list_by_hot_alone(
    tiers: Tiers, thread: str, asked: listing.Query, listed: _Listed
) -> Generator[TieredRequest | Page[CheckpointTuple], Any, bool]:
    """List a dirty thread by hot, as long as hot has all of it. Returns whether it had to the end."""
    keys = tiers.hot.keyspace.tier_keys(thread)
    if not (yield from _is_whole(keys)):
        return False
    pump = Pump(listing.list_checkpoints(tiers.hot, asked))
    for step in pump:
        if not isinstance(step, Page):
            with pump:
                pump.reply = yield step
        elif (yield from _is_whole(keys)):
            yield listed.page(step.items)
        else:
            return False
    return (yield from _is_whole(keys))


PER_PAGE = 100
"""How many checkpoints cold is asked for in one call."""


def _list_by_cold(tiers: Tiers, cold: ColdCall, listed: _Listed) -> TieredStream[CheckpointTuple]:
    """List by cold, with a call for each page: an open call would hold a connection of cold while the caller works.

    A page goes on below the last id. So this is done only if cold is known to list by id.
    """
    while not listed.is_done:
        limit = listed.left
        if tiers.lists_by_id:
            limit = PER_PAGE if limit is None else min(PER_PAGE, limit)
        if limit is not None:
            limit += listed.more
        found = yield cold.with_options(before=listed.before, limit=limit)
        yield listed.page(found)
        if not tiers.lists_by_id or len(found) < (limit or 0):
            return


def _with_intents(tiers: Tiers, thread: str | None) -> Operation[set[str]]:
    """The threads that have write intents, so that hot is not to be believed; with `thread`, that one if it has. Ask before hot is read."""
    keyspace, position, found = tiers.hot.keyspace, None, set[str]()
    if thread is not None:
        return {thread} if (yield Command(("EXISTS", keyspace.tier_keys(thread).intents))) else found
    while True:
        position, keys = yield Scan(keyspace.intents_pattern, position)
        found.update(name for key in keys if (name := keyspace.thread_of(key, names.INTENTS)) is not None)
        if position is None:
            return found


def get_delta_channel_history(tiers: Tiers, given: RunnableConfig, channels: Sequence[str]) -> Tiered[Any]:
    """Seeds and writes of `DeltaChannel`s: from hot, if it has all ancestors that are needed; if not, from cold, after the thread was flushed.

    What cold answers is remembered by this process, and fills hot for the others: with the ancestors that it takes, if they are not too many or too
    large (`ANCESTORS_FILLED`, `BYTES_FILLED`).
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
        if (yield from _dirty(tiers, where.thread_id)):
            yield from flush_now(tiers, where.thread_id)
            basis = None  # cold may still lack what it refused
    except HotFailed:  # counted by whoever asks hot next
        basis = None
    found = yield ColdCall("get_delta_channel_history", (), {"config": for_cold(given), "channels": channels})
    if basis is not None:
        with contextlib.suppress(EncodeError, LimitExceeded):  # then cold is asked the next time, too
            delta.remember(tiers.hot, where, keys[1], basis, found)
        yield from best_effort(tiers, _fill_ancestors(tiers, where, basis, channels))
    return found


ANCESTORS_FILLED, BYTES_FILLED = 200, 4_000_000
"""A history fills hot with so many ancestors, and about so many bytes, at the most. (LangGraph takes a snapshot each 50 writes, if not told otherwise.)"""
_ANCESTORS_PER_CALL = 20
"""Cold is asked for so many at a time, as each comes with all its values."""


def _fill_ancestors(tiers: Tiers, where: config.Address, basis: delta.Basis, channels: Sequence[str]) -> Tiered[None]:
    """Bring back to hot the ancestors that a history takes: from the first that is missing to the one where the last channel has its value.

    Without one of them hot cannot answer, so nothing is stored if they are too many or too large; cold is not asked for more then.
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
                fills.append(_restored(tiers.hot, found, token, newest=False, is_last=False))
            except (EncodeError, LimitExceeded):  # hot cannot have it
                return
            size += sum([len(one) for one in fills[-1] if isinstance(one, (bytes, str))])
            if len(fills) > ANCESTORS_FILLED or size > BYTES_FILLED:
                return
            remaining.difference_update(found.checkpoint["channel_values"])
            wanted = (config.checkpoint_id(found.parent_config) if found.parent_config else None) or ""
    fills[-1] = _restored(tiers.hot, found, token, newest=False)
    calls = [Call(scripts.FILL, (keys.index_key, keys.data_key, keys.lease), arguments) for arguments in fills]
    filled, error = yield Attempt(Batch(calls))
    if error is None:
        tiers.counts.rehydrations += sum(filled)
    elif not isinstance(error, ThreadDamaged) and not is_out_of_memory(error):
        raise error  # as `_fetch` does


def _dirty(tiers: Tiers, thread: str | None) -> Tiered[list[str]]:
    """The thread, if it is dirty; for None all dirty threads."""
    if thread is None:
        return (yield from scan(tiers)).threads
    return [thread] if (yield Command(("EXISTS", tiers.hot.keyspace.tier_keys(thread).dirty))) else []


_ATTEMPTS = 3


def _is_whole(keys: names.TierKeys) -> Operation[bool]:
    """Whether hot has all of a thread, or knows that it was deleted, though cold does not know yet."""
    if (yield Command(("EXISTS", keys.intents))):
        return False
    if (yield Command(("EXISTS", keys.data_key))):
        return bool((yield Command(("HEXISTS", keys.data_key, WHOLE))))
    return (yield from _has_tombstone(keys))


def _has_tombstone(keys: names.TierKeys) -> Operation[bool]:
    """Whether the thread has a tombstone: it was deleted, and cold does not know yet."""
    return (yield Command(("ZSCORE", keys.dirty, "d"))) is not None
