"""Listing checkpoints of cold, and of hot if only hot has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import listing
from redis_saver._common import config as configs, names
from redis_saver._engine.requests import Batch, Call, Command, Operation, Page
from redis_saver._engine.runner import Pump
from redis_saver._tiered.context import WHOLE, Tiers, for_cold
from redis_saver._tiered.flushing import flush_what_goes
from redis_saver._tiered.intents import enroll
from redis_saver._tiered.requests import ColdCall, HotFailed, Tiered, TieredRequest, TieredStream
from redis_saver.errors import ThreadDamaged


def list_checkpoints(
    tiers: Tiers,
    config: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> TieredStream[CheckpointTuple]:
    """List the checkpoints of both tiers, newest first, in pages.

    A thread is listed from hot if hot has all of it. Otherwise it is flushed first. Coalesced checkpoints are only in
    hot. If both tiers are needed, all results are gathered first. Hot's results are ignored for threads with a write
    intent.
    """
    return _list(tiers, listing.query(config, filter, before, limit), filter, _Listed(tiers, before, limit))


def _list(
    tiers: Tiers, query: listing.Query, filter: Mapping[str, Any] | None, listed: _Listed
) -> TieredStream[CheckpointTuple]:
    if query.limit == 0:
        return
    config = query.config
    thread = None if config is None else configs.thread_id(config)
    lagging: list[str] = []
    has_all = tiers.flush_queue is None or tiers.flush_queue.history == "all"
    yield from enroll(tiers, thread)  # first: a thread that another process enrolls is dirty afterwards
    try:
        lacking = yield from dirty(tiers, thread)
        alone = thread if lacking or tiers.verify == "never" else None
        if alone is not None and (yield from _list_by_hot_alone(tiers, alone, query, listed)):
            return
        for name in lacking:
            if not (yield from flush_what_goes(tiers, name)):
                has_all = False
                lagging.append(name)
    except HotFailed:  # the next request to hot counts it
        pass
    cold = ColdCall("list", (config and for_cold(config, ns=False),), {"filter": filter})
    if has_all:
        yield from _list_by_cold(tiers, cold, listed)
        return
    enough = None if listed.left is None or lagging else listed.left + listed.more
    in_cold = yield cold.with_options(before=listed.before, limit=enough)
    with_intents = yield from _with_intents(tiers, thread)
    try:
        in_hot = yield from listing.collect(listing.list_checkpoints(tiers.hot, listed.rest_of(query)))
    except ThreadDamaged:  # the next reader repairs it
        in_hot = []
    believed = yield from _not_removed(tiers, in_cold, lagging)
    believed += [saved for saved in in_hot if configs.thread_id(saved.config) not in with_intents]
    both = {configs.address(saved.config): saved for saved in believed}
    yield listed.page(sorted(both.values(), key=lambda saved: saved.checkpoint["id"], reverse=True))


def _not_removed(
    tiers: Tiers, in_cold: Sequence[CheckpointTuple], lagging: Sequence[str]
) -> Operation[list[CheckpointTuple]]:
    """Leave out deleted threads and rolled-back checkpoints that cold still has to remove."""
    by_thread = defaultdict[str, list[CheckpointTuple]](list)
    for saved in in_cold:
        by_thread[configs.thread_id(saved.config)].append(saved)
    for thread in by_thread.keys() & set(lagging):
        keys, checkpoints = tiers.hot.keyspace.tier_keys(thread), by_thread.pop(thread)
        if not (yield from _has_tombstone(keys)):
            members = [
                names.removal(configs.namespace(saved.config) or "", saved.checkpoint["id"]) for saved in checkpoints
            ]
            noted = yield Batch([Command(("ZSCORE", keys.dirty, member)) for member in members])
            by_thread[thread] = [saved for saved, score in zip(checkpoints, noted, strict=True) if score is None]
    return [saved for of_thread in by_thread.values() for saved in of_thread]


class _Listed:
    """Position of a list, from which either tier can continue: the last id, and the results listed with that id."""

    def __init__(self, tiers: Tiers, before: RunnableConfig | None, limit: int | None) -> None:
        self._tiers, self.before, self.left = tiers, before, limit
        self._last_id: str | None = None
        self._at_last = set[configs.Address]()

    @property
    def more(self) -> int:
        """Number of results on the next page that this listing may have returned already."""
        return len(self._at_last)

    def page(self, results: Sequence[CheckpointTuple]) -> Page[CheckpointTuple]:
        """Return a page without the results that were already listed."""
        new = [saved for saved in results if configs.address(saved.config) not in self._at_last][: self.left]
        for saved in new:
            if (checkpoint_id := saved.checkpoint["id"]) != self._last_id:
                if self._last_id is not None:
                    self.before = configs.to_config("", "", self._last_id)
                self._last_id = checkpoint_id
                self._at_last.clear()
            thread, ns, _ = address = configs.address(saved.config)
            self._at_last.add(address)
            self._tiers.saw(thread, ns, checkpoint_id)
        if self.left is not None:
            self.left -= len(new)
        return Page(new)

    def rest_of(self, query: listing.Query) -> listing.Query:
        """Return the query for the rest, including the `more` results that may have been listed already."""
        before = None if self.before is None else configs.checkpoint_id(self.before)
        return query._replace(before=before, limit=None if self.left is None else self.left + self.more)


def _list_by_hot_alone(
    tiers: Tiers, thread: str, query: listing.Query, listed: _Listed
) -> Generator[TieredRequest | Page[CheckpointTuple], Any, bool]:
    """List a thread from hot alone. Returns False as soon as hot lacks a part of it."""
    keys = tiers.hot.keyspace.tier_keys(thread)
    if not (yield from _is_whole(keys)):
        return False
    pump = Pump(listing.list_checkpoints(tiers.hot, query))
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
"""Maximum number of checkpoints per call of cold."""


def _list_by_cold(tiers: Tiers, cold: ColdCall, listed: _Listed) -> TieredStream[CheckpointTuple]:
    """List from cold with one call per page, because an open call would hold a connection while the caller works.

    A page continues below the last id. So there is only one page unless cold is known to list by id.
    """
    while listed.left is None or listed.left > 0:
        limit = listed.left
        if tiers.lists_by_id:
            limit = PER_PAGE if limit is None else min(PER_PAGE, limit)
        if limit is not None:
            limit += listed.more
        results = yield cold.with_options(before=listed.before, limit=limit)
        yield listed.page(results)
        if not tiers.lists_by_id or len(results) < (limit or 0):
            return


def _with_intents(tiers: Tiers, thread: str | None) -> Operation[set[str]]:
    """Return the threads with write intents: hot may lack a part of them. Call it before reading hot.

    With `thread`, checks only this thread.
    """
    keyspace = tiers.hot.keyspace
    if thread is not None:
        return {thread} if (yield Command(("EXISTS", keyspace.tier_keys(thread).intents))) else set()
    keys = yield from listing.collect(listing.scan_keys(keyspace.intents_pattern))
    return {name for key in keys if (name := keyspace.thread_of(key, names.INTENTS)) is not None}


def dirty(tiers: Tiers, thread: str | None) -> Tiered[list[str]]:
    """Return the thread if it is dirty. For None, return all dirty threads."""
    if thread is None:
        return (yield from tiers.backlog.scan()).threads
    return [thread] if (yield Command(("EXISTS", tiers.hot.keyspace.tier_keys(thread).dirty))) else []


def _is_whole(keys: names.TierKeys) -> Operation[bool]:
    """True if hot has all of a thread, or knows that there is none."""
    return Held._make((yield Batch(Held.requests(keys)))).is_whole


class Held(NamedTuple):
    """The part of a thread that hot has: the replies to `requests`."""

    intents: int
    is_here: int
    has_all: int
    is_new: int
    tombstone: object

    @staticmethod
    def requests(keys: names.TierKeys) -> list[Call | Command]:
        """Return the requests."""
        return [
            Command(("EXISTS", keys.intents)),
            Command(("EXISTS", keys.data_key)),
            Command(("HEXISTS", keys.data_key, WHOLE)),
            Command(("HEXISTS", keys.lease, "new")),
            Command(("ZSCORE", keys.dirty, "d")),
        ]

    @property
    def is_whole(self) -> bool:
        """True if hot has all of the thread, or knows that there is none: it is new, or cold has still to delete it."""
        return not self.intents and bool(self.has_all if self.is_here else self.is_new or self.tombstone is not None)


def _has_tombstone(keys: names.TierKeys) -> Operation[bool]:
    """True if the thread has a tombstone: hot has deleted it, and cold has not."""
    return (yield Command(("ZSCORE", keys.dirty, "d"))) is not None
