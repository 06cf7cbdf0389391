"""Listing checkpoints of cold, and of hot if only hot has them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import listing
from redis_saver._common import config as configs, names, postgres
from redis_saver._engine.requests import Batch, Call, Command, Operation, Page
from redis_saver._engine.runner import Pump
from redis_saver._storage.skipping import Skipping
from redis_saver._tiered.context import WHOLE, Tiers, for_cold
from redis_saver._tiered.flushing import flush_what_goes
from redis_saver._tiered.intents import enroll, repair
from redis_saver._tiered.requests import ColdCall, HotFailed, Tiered, TieredRequest, TieredStream
from redis_saver._tiered.sealing import IN_THE_OPEN
from redis_saver.errors import PlainValueRefused, ThreadBusy, ThreadDamaged


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
    return _list(tiers, listing.query(config, filter, before, limit), before, _understood(tiers, filter))


def _list(
    tiers: Tiers, query: listing.Query, before: RunnableConfig | None, filter: Mapping[str, Any] | None
) -> TieredStream[CheckpointTuple]:
    if query.limit == 0:
        return
    config, listed = query.config, _Listed(tiers, query, before)
    thread = None if config is None else configs.thread_id(config)
    lagging: list[str] = []
    has_all = tiers.flush_queue is None or tiers.flush_queue.history == "all"
    yield from enroll(tiers, thread)  # first: a thread that another process enrolls is dirty afterwards
    try:
        lacking = yield from dirty(tiers, thread)
        alone = thread if lacking or tiers.verify == "never" else None
        if alone is not None and (yield from _list_by_hot_or_repair(tiers, alone, query, listed)):
            return
        for name in lacking:
            if not (yield from flush_what_goes(tiers, name)):
                has_all = False
                lagging.append(name)
    except HotFailed:  # the next request to hot counts it
        pass
    is_sealed = tiers.hot_context.data_keys is not None  # `_list_by_cold` opens what cold returns
    about = (config and for_cold(config, ns=False),), {"filter": filter}
    call = ColdCall("list", *about, tiers.carries, is_sealed)
    if has_all:
        yield from _list_by_cold(tiers, call, query, listed)
        return
    of_cold = copy.copy(listed)
    if lagging:
        of_cold.left = None
    stream: Any = _list_by_cold(tiers, call, query, of_cold)
    in_cold = yield from listing.collect(stream)
    with_intents = yield from _with_intents(tiers, thread)
    try:
        in_hot = yield from listing.collect(listing.list_checkpoints(tiers.hot_context, listed.rest_of(query)))
    except ThreadDamaged:  # the next reader repairs it
        in_hot = []
    believed = yield from _not_removed(tiers, in_cold, lagging)
    believed = yield from _not_changed(tiers, query, believed, {*lagging} - with_intents)
    believed += [saved for saved in listed.unread(in_hot) if configs.thread_id(saved.config) not in with_intents]
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
        keys, checkpoints = tiers.hot_context.keyspace.tier_keys(thread), by_thread.pop(thread)
        if (yield Command(("ZSCORE", keys.dirty, "d"))) is None:  # else hot has deleted it, and cold has not
            members = [
                names.removal(configs.namespace(saved.config) or "", saved.checkpoint["id"]) for saved in checkpoints
            ]
            noted = yield Batch([Command(("ZSCORE", keys.dirty, member)) for member in members])
            by_thread[thread] = [saved for saved, score in zip(checkpoints, noted, strict=True) if score is None]
    return [saved for of_thread in by_thread.values() for saved in of_thread]


def _not_changed(
    tiers: Tiers, query: listing.Query, in_cold: list[CheckpointTuple], lagging: Collection[str]
) -> Operation[list[CheckpointTuple]]:
    """Leave out checkpoints that were put again, with metadata that no longer match. Cold still has the older ones."""
    if query.matches is None:
        return in_cold
    changed = set[configs.Address]()
    for thread in lagging:
        wanted = [address for saved in in_cold if (address := configs.address(saved.config)).thread_id == thread]
        with suppress(ThreadDamaged):  # the next reader repairs it
            in_hot = yield from listing.loaded(tiers.hot_context, thread, wanted)
            changed |= {configs.address(saved.config) for saved in in_hot if not query.matches(saved.metadata)}
    return [saved for saved in in_cold if configs.address(saved.config) not in changed]


class _Listed:
    """Position in a list, from which either tier can continue: the last id, and the checkpoints read with this id."""

    def __init__(self, tiers: Tiers, query: listing.Query, before: RunnableConfig | None) -> None:
        self._tiers, self.before, self.left = tiers, before, query.limit
        self._has_namespace = query.config is not None and configs.namespace(query.config) is not None
        self._last_id: str | None = None
        self._at_last = set[configs.Address]()

    @property
    def more(self) -> int:
        """Number of checkpoints on the next page that may have been read already."""
        return len(self._at_last)

    def unread(self, rows: Sequence[CheckpointTuple]) -> list[CheckpointTuple]:
        """Return the checkpoints that were not read before."""
        return [saved for saved in rows if configs.address(saved.config) not in self._at_last]

    def move(self, rows: Sequence[CheckpointTuple]) -> None:
        """Move below checkpoints that were read."""
        at_last = set(self._at_last)  # a copy of this position may share the other one
        for saved in rows:
            if (checkpoint_id := saved.checkpoint["id"]) != self._last_id:
                if self._last_id is not None:
                    self.before = configs.to_config("", "", self._last_id)
                self._last_id = checkpoint_id
                at_last.clear()
            at_last.add(configs.address(saved.config))
        if rows and self._has_namespace:  # its ids are unique, so nothing is read again
            self.before, self._last_id = configs.to_config("", "", rows[-1].checkpoint["id"]), None
            at_last.clear()
        self._at_last = at_last

    def page(self, results: Sequence[CheckpointTuple]) -> Page[CheckpointTuple]:
        """Return a page with as many of these results as are left to list."""
        results = results[: self.left]
        for saved in results:
            thread, ns, checkpoint_id = configs.address(saved.config)
            self._tiers.saw(thread, ns, checkpoint_id or "")
        if self.left is not None:
            self.left -= len(results)
        return Page(results)

    def rest_of(self, query: listing.Query) -> listing.Query:
        """Return the query for the rest, including the `more` checkpoints that may have been read already."""
        before = None if self.before is None else configs.checkpoint_id(self.before)
        return query._replace(before=before, limit=None if self.left is None else self.left + self.more)


def _list_by_hot_or_repair(
    tiers: Tiers, thread: str, query: listing.Query, listed: _Listed
) -> Generator[TieredRequest | Page[CheckpointTuple], Any, bool]:
    """List a thread from hot alone. Returns False if hot lacks a part of it, or dropped it because it was damaged.

    Raises:
        ThreadBusy: Another process has replaced the thread with records that cold lacks.
        ThreadDamaged: Hot cannot read the thread, and cold lacks a part of it.
    """
    try:
        return (yield from _list_by_hot_alone(tiers, thread, query, listed))
    except PlainValueRefused:  # a setting is wrong, not the thread
        raise
    except ThreadDamaged as damage:
        yield from repair(tiers, thread, damage)
        if (yield from dirty(tiers, thread)):  # cold lacks what hot cannot read
            raise
        return False
    except ThreadBusy:  # with another data key: hot lost the thread, and another process filled it from cold
        if (yield from dirty(tiers, thread)):  # or wrote it anew
            raise
        return False


def _list_by_hot_alone(
    tiers: Tiers, thread: str, query: listing.Query, listed: _Listed
) -> Generator[TieredRequest | Page[CheckpointTuple], Any, bool]:
    """List a thread from hot alone. Returns False as soon as hot lacks a part of it."""
    keys = tiers.hot_context.keyspace.tier_keys(thread)
    if not (yield from _is_whole(keys)):
        return False
    pump = Pump(listing.list_checkpoints(tiers.hot_context, query))
    while (page := (yield from pump.next_page())) is not None:
        if not (yield from _is_whole(keys)):
            return False
        results = listed.unread(page)
        listed.move(results)
        yield listed.page(results)
    return (yield from _is_whole(keys))


PER_PAGE = 100
"""Maximum number of checkpoints per call of cold."""


def _understood(tiers: Tiers, filter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the conditions of a filter that Postgres answers as this process does.

    These are texts and small integers. True equals 1 here and not in JSON, and larger integers may equal floats there
    that are others here. With `encryption=` Postgres knows only some keys.
    """
    if not (tiers.cold_is_postgres and filter):
        return None
    known = filter if tiers.hot_context.data_keys is None else IN_THE_OPEN
    return {key: wanted for key, wanted in filter.items() if key in known and _is_alike(key, wanted)}


def _is_alike(key: object, wanted: object) -> bool:
    is_number = type(wanted) is int and wanted not in (0, 1) and abs(wanted) <= 2**53
    return (is_number or _is_text(wanted)) and _is_text(key)


def _is_text(value: object) -> bool:
    return type(value) is str and postgres.is_text(value)


def _list_by_cold(tiers: Tiers, call: ColdCall, query: listing.Query, listed: _Listed) -> TieredStream[CheckpointTuple]:
    """List from cold with one call per page, because an open call would hold a connection while the caller works.

    A page ends where cold ends it, whatever matches here, and the next one continues below its last id. If many do not
    match, pages grow. Unless cold is known to list by id there is a single page: if too few rows match, cold is asked
    again, for twice as many.
    """
    size = listed.left
    with Skipping(tiers.hot_context.data_keys, names_one=query.config is not None) as skipping:
        while listed.left is None or listed.left > 0:
            if tiers.lists_by_id:
                size = min(size or PER_PAGE, PER_PAGE)
            limit = None if size is None else size + listed.more
            rows = yield call._replace(options={**call.options, "before": listed.before, "limit": limit})
            is_last = limit is None or len(rows) < limit
            rows = listed.unread(rows)
            results = (yield ColdCall("opened", (rows, skipping), {}, call.is_packed)) if call.is_sealed else rows
            if query.matches is not None:
                results = [saved for saved in results if query.matches(saved.metadata)]
            if not (is_last or tiers.lists_by_id) and len(results) < (listed.left or 0):
                size = size and 2 * size
                continue
            listed.move(rows)
            yield listed.page(results)
            if is_last or not tiers.lists_by_id:
                return
            size = (size and 2 * size) if len(results) < len(rows) else listed.left


def _with_intents(tiers: Tiers, thread: str | None) -> Operation[set[str]]:
    """Return the threads with write intents: hot may lack a part of them. Call it before reading hot.

    With `thread`, checks only this thread.
    """
    keyspace = tiers.hot_context.keyspace
    if thread is not None:
        return {thread} if (yield Command(("EXISTS", keyspace.tier_keys(thread).intents))) else set()
    keys = yield from listing.collect(listing.scan_keys(keyspace.intents_pattern))
    return {name for key in keys if (name := keyspace.thread_of(key, names.INTENTS)) is not None}


def dirty(tiers: Tiers, thread: str | None) -> Tiered[list[str]]:
    """Return the thread if it is dirty. For None, scan for all dirty threads, which also corrects the count in hot."""
    if thread is None:
        return (yield from tiers.backlog_count.scan()).threads
    return [thread] if (yield Command(("EXISTS", tiers.hot_context.keyspace.tier_keys(thread).dirty))) else []


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
