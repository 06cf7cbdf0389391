"""Descriptions of threads in two tiers, and `check`, which compares the tiers. Writes nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from langgraph.checkpoint.base import CheckpointTuple, get_serializable_checkpoint_metadata

from redis_saver import errors
from redis_saver._checkpoint import checking, comparing, delta, listing, scripts, threads
from redis_saver._checkpoint.checking import CheckReport, Findings, Inventory, State, cut_off, describe
from redis_saver._checkpoint.ownership import Owner
from redis_saver._checkpoint.reading import BYTES_PER_PAGE
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._checkpoint.threads import ThreadInfo, ThreadQuery
from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Batch, Call, Command, Operation, Page, Stream
from redis_saver._storage import codec
from redis_saver._storage.context import Context
from redis_saver._tiered.context import Tiers, newest_of
from redis_saver._tiered.listing import Held
from redis_saver._tiered.postgres import info_of
from redis_saver._tiered.requests import ColdCall, Tiered, TieredStream

NAMES_PER_PAGE = 200
CANNOT_BE_READ = (errors.ThreadDamaged, errors.KeyConflict, errors.UnsupportedFormat)
"""Errors that concern one thread and not the server."""
Errors: TypeAlias = tuple[type[errors.RedisSaverError], ...]
Describe: TypeAlias = Callable[[Sequence[str]], Generator[Any, Any, list[Any]]]


@dataclass(frozen=True)
class Damaged:
    """A thread that cannot be read."""

    thread_id: str
    error: errors.RedisSaverError


class TieredThreadInfo(NamedTuple):
    """A thread in two tiers, as `threads()` and `get_thread` describe it."""

    thread_id: str
    """Its name."""
    hot: ThreadInfo | None
    """The thread in Redis. None if Redis does not have it. Then the next read copies it back."""
    cold: ThreadInfo | None
    """The thread in cold. None if cold does not have it yet, or was not asked. `bytes` is 0 unless cold is LangGraph's
    Postgres saver."""
    lacking: int
    """Number of records that cold lacks, including deletions."""
    asked_cold: bool = True
    """False: `get_thread` did not ask cold, because hot has the whole thread."""

    @property
    def in_cold(self) -> bool | None:
        """True if cold has the thread, False if it does not, None if it was not asked."""
        return self.cold is not None if self.asked_cold else None

    @property
    def tier(self) -> Literal["hot", "cold", "both"]:
        """The tier that has the thread, or both. If cold was not asked, `both` means that it lacks no record."""
        has_cold = self.cold is not None if self.asked_cold else not self.lacking
        return "both" if self.hot and has_cold else "hot" if self.hot else "cold"

    @property
    def _newest(self) -> ThreadInfo:
        """The tier with the newer checkpoint, or hot if both are equal."""
        return max(self._tiers, key=lambda info: info.checkpoint_id or "")

    @property
    def _tiers(self) -> list[ThreadInfo]:
        return [info for info in (self.hot, self.cold) if info is not None]

    @property
    def checkpoint_id(self) -> str | None:
        """Id of the newest checkpoint over all namespaces."""
        return self._newest.checkpoint_id

    @property
    def updated_at(self) -> datetime | None:
        """The `ts` of that checkpoint."""
        return self._newest.updated_at

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints in the tier that has more of them."""
        return max(info.checkpoints for info in self._tiers)

    @property
    def bytes(self) -> int:
        """Total size in both tiers in bytes. If cold was not asked, the size in hot."""
        return sum(info.bytes for info in self._tiers)

    @property
    def interrupted(self) -> bool:
        """True if the newest checkpoint of the root namespace has a pending `interrupt()`."""
        return self._newest.interrupted

    @property
    def failed(self) -> bool:
        """True if that checkpoint has a pending error of a task."""
        return self._newest.failed

    @property
    def ttl(self) -> timedelta | None:
        """Time until the thread expires in hot. None if it does not expire or is not in hot. Cold keeps it."""
        return self.hot.ttl if self.hot else None

    @property
    def expires(self) -> str:
        """Text that says when it expires in hot: `in 6d23h`, `never` or `pinned`."""
        return self.hot.expires if self.hot else "never"

    @property
    def pinned(self) -> bool:
        """True if hot keeps the thread until `unpin`."""
        return self.hot is not None and self.hot.pinned

    @property
    def owner(self) -> Owner | None:
        """The owner, if hot has the thread."""
        return self.hot.owner if self.hot else None

    @property
    def orphaned(self) -> bool:
        """True if the owner's lease ended before the owner released the thread."""
        return self.owner is not None and self.owner.orphaned


def get_thread(tiers: Tiers, thread: str) -> Tiered[TieredThreadInfo | None]:
    """Describe one thread. Asks cold unless hot has the whole thread, or knows that there is none."""
    if tiers.verify == "never":
        keys = tiers.hot_context.keyspace.tier_keys(thread)
        described = threads.described(tiers.hot_context, thread), Command(("ZCARD", keys.dirty))
        *replies, reply, lacking = yield Batch([*Held.requests(keys), *described])
        held = Held._make(replies)
        if held.is_whole and reply is not None:
            return TieredThreadInfo(thread, threads.info(thread, reply), None, lacking, asked_cold=False)
        if held.is_whole and not held.is_here:  # else it has just expired
            return None
    return (yield from in_both(tiers, thread))


def in_both(tiers: Tiers, thread: str) -> Tiered[TieredThreadInfo | None]:
    """Describe one thread in both tiers."""
    infos = yield from _joined(tiers, [thread], None)
    return infos[0] if infos else None


def stream_threads(tiers: Tiers, query: ThreadQuery, caught: Errors = ()) -> Generator[Any, Any, None]:
    """Describe each thread that matches a query: first those of hot, then those that only cold has."""
    in_cold = yield from _all_in_cold(tiers)

    def describe(page: Sequence[str]) -> Tiered[list[TieredThreadInfo]]:
        return [info for info in (yield from _joined(tiers, page, in_cold)) if _matches(info, query)]

    yield from _each_once(_stream_names(tiers, in_cold), query, describe, caught)


def tiered_threads(tiers: Tiers, query: ThreadQuery) -> TieredStream[TieredThreadInfo | Damaged]:
    """Describe the threads that match a query, and all damaged threads. `stream_threads` would raise for these."""
    return stream_threads(tiers, query, CANNOT_BE_READ)


def threads_of(context: Context, query: ThreadQuery) -> Stream[ThreadInfo | Damaged]:
    """Describe the threads of one server that match a query, and all damaged threads. Reads no values."""

    def describe(page: Sequence[str]) -> Operation[list[ThreadInfo]]:
        replies = yield Batch([threads.described(context, thread, query) for thread in page])
        pairs = zip(page, replies, strict=True)
        infos = [threads.info(thread, reply) for thread, reply in pairs if reply is not None]
        return [info for info in infos if query.is_updated(info.updated_at)]

    return _each_once(listing.scan_threads(context), query, describe, CANNOT_BE_READ)


def thread_names(tiers: Tiers) -> TieredStream[str]:
    """Yield the names of all threads of both tiers. Some are yielded twice."""
    yield from _stream_names(tiers, (yield from _all_in_cold(tiers)))


def _all_in_cold(tiers: Tiers) -> Tiered[dict[str, ThreadInfo] | None]:
    """Describe all threads of cold. None if it is Postgres: only that can list threads by pages."""
    return None if tiers.cold_is_postgres else _described((yield ColdCall("list", (None,), is_sealed=True)))


def _stream_names(tiers: Tiers, in_cold: Mapping[str, ThreadInfo] | None) -> TieredStream[str]:
    """Yield the names of all threads of hot, then of cold. Some are yielded twice."""
    yield from listing.scan_threads(tiers.hot_context)
    if in_cold is not None:
        yield Page(sorted(in_cold))
        return
    after: str | None = None
    while page := (yield ColdCall("thread_names", (after, NAMES_PER_PAGE))):
        yield Page(page)
        after = page[-1]


def _each_once(
    stream: Generator[Any, Any, None], query: ThreadQuery, describe: Describe, caught: Errors
) -> Generator[Any, Any, None]:
    """Describe each streamed thread once, page by page."""
    seen = set[str]()

    def of_page(page: Sequence[str]) -> Generator[Any, Any, list[Any]]:
        new = [thread for thread in page if thread not in seen and thread.startswith(query.prefix)]
        seen.update(new)
        return _described_by(describe, new, caught)

    return listing.mapped(stream, of_page)


def _described_by(describe: Describe, page: Sequence[str], caught: Errors) -> Generator[Any, Any, list[Any]]:
    """Describe a page of threads. If one of them cannot be read, describe them one by one."""
    try:
        return (yield from describe(page)) if page else []
    except caught as error:
        if len(page) == 1:
            return [Damaged(page[0], error)]
    infos = list[Any]()
    for thread in page:
        infos += yield from _described_by(describe, [thread], caught)
    return infos


def _matches(info: TieredThreadInfo, query: ThreadQuery) -> bool:
    """True if a thread matches the query except for its name. No server can check this without the other tier."""
    state = {"interrupted": info.interrupted, "failed": info.failed, "orphaned": info.orphaned}
    return (
        (query.state is None or state.get(query.state, not any(state.values())))
        and info.bytes >= query.min_bytes
        and query.pinned in (None, info.pinned)
        and query.dirty in (None, info.lacking > 0)
        and query.owned in (None, info.owner is not None and info.owner.lease_left > timedelta())
        and (query.expires_within is None or (info.ttl is not None and info.ttl <= query.expires_within))
        and query.is_updated(info.updated_at)
    )


def _joined(
    tiers: Tiers, page: Sequence[str], in_cold: Mapping[str, ThreadInfo] | None
) -> Tiered[list[TieredThreadInfo]]:
    """Describe some threads in both tiers. Ignores data of cold if cold must still delete the thread.

    Args:
        tiers: The saver.
        page: The threads.
        in_cold: All threads of cold. None: cold is read after hot, so that a thread that is flushed in between is not
            missed.
    """
    requests: list[Call | Command] = []
    for thread in page:
        dirty = tiers.hot_context.keyspace.tier_keys(thread).dirty
        requests += (
            threads.described(tiers.hot_context, thread),
            Command(("ZCARD", dirty)),
            Command(("ZSCORE", dirty, "d")),
        )
    replies = yield Batch(requests)
    if in_cold is None:
        in_cold = yield from _in_cold(tiers, page)
    infos = []
    for at, thread in enumerate(page):
        reply, lacking, tombstone = replies[3 * at : 3 * at + 3]
        hot = None if reply is None else threads.info(thread, reply)
        cold = None if tombstone is not None else in_cold.get(thread)
        if hot or cold:
            infos.append(TieredThreadInfo(thread, hot, cold, lacking))
    return infos


def _in_cold(tiers: Tiers, page: Sequence[str]) -> Tiered[dict[str, ThreadInfo]]:
    """Describe some threads in cold."""
    if tiers.cold_is_postgres:
        return {info.thread_id: info for info in (yield ColdCall("describe_threads", (page,)))}
    checkpoints = list[CheckpointTuple]()
    for thread in page:
        checkpoints += yield ColdCall("list", ({"configurable": {"thread_id": thread}},), is_sealed=True)
    return _described(checkpoints)


def _described(checkpoints: Iterable[CheckpointTuple]) -> dict[str, ThreadInfo]:
    """Describe threads by all their checkpoints."""
    by_thread = defaultdict[str, list[CheckpointTuple]](list)
    for saved in checkpoints:
        by_thread[config.thread_id(saved.config)].append(saved)
    infos = {}
    for thread, of_thread in by_thread.items():
        of_thread.sort(key=lambda saved: saved.checkpoint["id"])
        newest = of_thread[-1].checkpoint
        roots = [saved for saved in of_thread if not config.namespace(saved.config)]
        pending = {channel for saved in roots[-1:] for _, channel, _ in saved.pending_writes or ()}
        infos[thread] = info_of(thread, newest["id"], newest.get("ts"), len(of_thread), 0, pending)
    return infos


# -- `check`


_OUTSIDE = (
    "somebody wrote to one of the two tiers without a TieredSaver. If cold is right, UNLINK the two keys of the "
    "thread, and the next read fills Redis from cold. If Redis is right, delete the thread in cold, and copy it with "
    "redis-saver migrate"
)
_LACKS_ANCESTORS = "restore the thread from a backup, or delete it with delete_thread()"
_LACKS = (
    "somebody removed it there, or wrote to Redis, without a TieredSaver. redis-saver migrate from Redis to cold "
    "copies it"
)


def check(tiers: Tiers, thread: str, *, values: bool) -> Tiered[CheckReport]:
    """Check a thread in hot. If it is clean, compare each of its checkpoints with cold.

    Raises:
        errors.ThreadNotFound: Hot does not have the thread. The message says whether cold has it.
        ThreadBusy: Several attempts each found a problem, but the thread was written during each of them.
    """
    try:
        return (yield from checking.check(tiers.hot_context, thread, values=values, compare=partial(_compare, tiers)))
    except errors.ThreadNotFound:
        if (yield from get_thread(tiers, thread)) is None:
            raise
        raise errors.ThreadNotFound(
            f"only cold has thread {shown(thread)}, so there is nothing to check in hot. get_tuple() copies it to hot"
        ) from None


def _compare(tiers: Tiers, hot: Context, thread: str, now: State, held: Inventory, findings: Findings) -> Tiered[int]:
    """Compare both tiers of a clean thread. Returns the number of compared checkpoints.

    Objects are compared as bytes, so their classes are not needed.
    """
    hot = hot._replace(serde=tiers.carrier.hot_serde)
    if now.lacking or not now.has_cold:
        return 0
    newest: dict[str, str] = {}
    for ns, checkpoint_id in held.headers:
        newest[ns] = max(newest.get(ns, ""), checkpoint_id)
    for ns, checkpoint_id in newest.items():
        if now.is_whole or newest_of(ns) in held.marks:
            newest_in = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
            in_cold = yield ColdCall("get_tuple", (newest_in,), is_packed=True)
            if in_cold is not None and (newer := in_cold.checkpoint["id"]) > checkpoint_id:
                text = f"it is the newest here, but cold has a newer one, {newer!r}"
                findings.add("error", describe(names.checkpoint(ns, checkpoint_id)), text, _OUTSIDE)
    compared = 0
    for key in held.headers:
        compared += yield from _compare_checkpoint(tiers, hot, config.Address(thread, *key), now, findings)
    if not now.is_whole:  # else the check of hot has seen the whole history
        with errors.decoding("the links of thread {!r}", thread):
            cut = held.cut()
        for ns, checkpoint_id in cut:
            yield from _check_history(thread, ns, checkpoint_id, held, findings)
    return compared


def _check_history(thread: str, ns: str, checkpoint_id: str, held: Inventory, findings: Findings) -> Tiered[None]:
    """Check that cold has the ancestors of a checkpoint that hot lacks, as far as a `DeltaChannel` needs them."""
    seen = set[str]()
    saved = yield ColdCall("get_tuple", (config.to_config(thread, ns, checkpoint_id),), is_sealed=True)
    while saved is not None and saved.parent_config is not None and saved.checkpoint["id"] not in seen:
        seen.add(saved.checkpoint["id"])  # a caller may have put a checkpoint as its own ancestor
        parent = config.checkpoint_id(saved.parent_config) or ""
        needed = delta.rebuilt(dict(saved.metadata)) & saved.checkpoint["channel_versions"].keys()
        if (ns, parent) in held.headers or not (needed := needed - saved.checkpoint["channel_values"].keys()):
            return
        above = yield ColdCall("get_tuple", (config.to_config(thread, ns, parent),), is_sealed=True)
        if above is None:
            where = describe(names.checkpoint(ns, saved.checkpoint["id"])) + " in cold"
            findings.add("error", where, cut_off(parent, needed), _LACKS_ANCESTORS)
        saved = above


def _compare_checkpoint(
    tiers: Tiers, hot: Context, address: config.Address, now: State, findings: Findings
) -> Tiered[int]:
    """Compare a checkpoint. Returns 1 if that was possible. Differences due to a concurrent write are no findings."""
    thread, key = address.thread_id, (address.checkpoint_ns, address.checkpoint_id or "")
    described = describe(names.checkpoint(*key))
    try:
        stored, in_hot = yield from _read(hot, thread, key)
    except (errors.ThreadDamaged, errors.LimitExceeded) as error:
        findings.add("warning", described, f"it could not be compared with cold: {error}", "repair it here first")
        return 0
    in_cold = yield ColdCall("get_tuple", (config.to_config(thread, *key),), is_packed=True)
    if in_cold is None:
        if not now.has_gaps:
            findings.add("error", described, "cold does not have it", _LACKS)
    elif in_hot and (
        difference := comparing.difference(
            comparing.record(tiers.for_cold(in_hot), {}), comparing.record(in_cold, {}), _as_stored
        )
    ):
        stored_now, _ = yield from _read(hot, thread, key)
        if stored_now == stored:
            findings.add("error", described, f"cold has a different version: {difference}", _OUTSIDE)
    return 1


def _read(hot: Context, thread: str, key: CheckpointKey) -> Tiered[tuple[Any, CheckpointTuple | None]]:
    """Return a checkpoint as hot stores it, and decoded."""
    arguments = (BYTES_PER_PAGE, names.component(key[0]), names.component(key[1]))
    flat, stored = yield Call(scripts.GET_MANY, hot.keyspace.keys(thread), arguments)
    if not stored:
        return stored, None
    chunks = codec.as_chunks(hot, flat, thread)
    return stored, codec.decode_tuple(hot, thread, codec.opened(hot, thread, stored, chunks), chunks)


def _as_stored(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON without `writes`, as some savers store them."""
    serializable = get_serializable_checkpoint_metadata({}, metadata)  # type: ignore[arg-type]
    return json.dumps(serializable, sort_keys=True, default=repr)
