"""Listing checkpoints: what cold has, and what only hot has."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import listing
from redis_saver._common import config, names
from redis_saver._engine.requests import Batch, Command, Operation, Page, Scan
from redis_saver._engine.runner import Pump
from redis_saver._tiered.context import (
    WHOLE,
    Tiers,
    for_cold,
)
from redis_saver._tiered.flushing import flush_what_goes
from redis_saver._tiered.intents import enroll
from redis_saver._tiered.requests import (
    ColdCall,
    HotFailed,
    Tiered,
    TieredRequest,
    TieredStream,
)
from redis_saver.errors import ThreadDamaged


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
    lagging: list[str] = []
    has_all = tiers.flush_queue is None or tiers.flush_queue.history == "all"
    yield from enroll(tiers, thread)  # first, because a thread that another process enrolls is dirty then
    try:
        for each in (yield from dirty(tiers, thread)):
            if thread is not None and (yield from _list_by_hot_alone(tiers, thread, asked, listed)):
                return
            if not (yield from flush_what_goes(tiers, each)):
                has_all = False
                lagging.append(each)
    except HotFailed:  # counted by whoever asks hot next
        pass
    cold = ColdCall("list", (given if given is None else for_cold(given, ns=False),), {"filter": filter})
    if has_all:
        yield from _list_by_cold(tiers, cold, listed)
        return
    enough = None if listed.left is None or lagging else listed.left + listed.more
    in_cold = yield cold.with_options(before=listed.before, limit=enough)
    with_intents = yield from _with_intents(tiers, thread)
    try:
        in_hot = yield from listing.collect(listing.list_checkpoints(tiers.hot, listed.rest_of(asked)))
    except ThreadDamaged:  # the next reader repairs it
        in_hot = []
    believed = yield from _not_removed(tiers, in_cold, lagging)
    believed += [one for one in in_hot if config.thread_id(one.config) not in with_intents]
    both = {config.address(one.config): one for one in believed}
    yield listed.page(sorted(both.values(), key=lambda one: one.checkpoint["id"], reverse=True))


def _not_removed(
    tiers: Tiers, in_cold: Sequence[CheckpointTuple], lagging: Sequence[str]
) -> Operation[list[CheckpointTuple]]:
    """Leave out what cold still has to remove: deleted threads, and checkpoints that were rolled back."""
    by_thread: dict[str, list[CheckpointTuple]] = {}
    for each in in_cold:
        by_thread.setdefault(config.thread_id(each.config), []).append(each)
    for thread in by_thread.keys() & set(lagging):
        keys, there = tiers.hot.keyspace.tier_keys(thread), by_thread.pop(thread)
        if not (yield from _has_tombstone(keys)):
            members = [names.removal(config.namespace(each.config) or "", each.checkpoint["id"]) for each in there]
            noted = yield Batch([Command(("ZSCORE", keys.dirty, member)) for member in members])
            by_thread[thread] = [each for each, score in zip(there, noted, strict=True) if score is None]
    return [each for found in by_thread.values() for each in found]


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


def dirty(tiers: Tiers, thread: str | None) -> Tiered[list[str]]:
    """The thread, if it is dirty; for None all dirty threads."""
    if thread is None:
        return (yield from tiers.backlog.scan()).threads
    return [thread] if (yield Command(("EXISTS", tiers.hot.keyspace.tier_keys(thread).dirty))) else []


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
