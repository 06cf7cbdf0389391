"""Threads in two tiers: which exist, and in which tier."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint import listing, threads
from redis_saver._checkpoint.ownership import Owner
from redis_saver._checkpoint.threads import ThreadInfo, ThreadQuery
from redis_saver._common import config, times
from redis_saver._engine.requests import Batch, Call, Command, Operation, Page, Stream
from redis_saver._storage.context import Context
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.requests import ColdCall, Tiered, TieredStream
from redis_saver.errors import KeyConflict, RedisSaverError, ThreadDamaged, UnsupportedFormat

NAMES_PER_PAGE = 200
CANNOT_BE_READ = (ThreadDamaged, KeyConflict, UnsupportedFormat)
"""Errors that are about one thread, and not about the server."""
Errors: TypeAlias = tuple[type[RedisSaverError], ...]
Describe: TypeAlias = Callable[[Sequence[str]], Generator[Any, Any, list[Any]]]


@dataclass(frozen=True)
class Damaged:
    """A thread that cannot be read."""

    thread_id: str
    error: RedisSaverError


class TieredThreadInfo(NamedTuple):
    """A thread in two tiers, as `threads()` describes it."""

    thread_id: str
    """Its name."""
    hot: ThreadInfo | None
    """The thread in Redis; None if Redis has nothing of it. The next read brings it back."""
    cold: ThreadInfo | None
    """The thread in cold; None if cold has nothing yet. `bytes` is 0 unless cold is LangGraph's Postgres saver."""
    lacking: int
    """Records that cold still has to get, or a deletion."""

    @property
    def tier(self) -> Literal["hot", "cold", "both"]:
        """The tier that has it, or both."""
        return "both" if self.hot and self.cold else "hot" if self.hot else "cold"

    @property
    def _newest(self) -> ThreadInfo:
        """The tier with the newer checkpoint; hot if both have the same."""
        return max(self._tiers, key=lambda info: info.checkpoint_id or "")

    @property
    def _tiers(self) -> list[ThreadInfo]:
        return [info for info in (self.hot, self.cold) if info is not None]

    @property
    def checkpoint_id(self) -> str | None:
        """The newest checkpoint over all namespaces."""
        return self._newest.checkpoint_id

    @property
    def updated_at(self) -> datetime | None:
        """The `ts` of that checkpoint."""
        return self._newest.updated_at

    @property
    def checkpoints(self) -> int:
        """The number of its checkpoints in the tier that has more of them."""
        return max(info.checkpoints for info in self._tiers)

    @property
    def bytes(self) -> int:
        """The bytes that both tiers store of it, in all."""
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
        """Time left in hot; None if it does not expire there, or is not there. Cold keeps it in any case."""
        return self.hot.ttl if self.hot else None

    @property
    def pinned(self) -> bool:
        """True if hot keeps it until `unpin`."""
        return self.hot is not None and self.hot.pinned

    @property
    def owner(self) -> Owner | None:
        """Its owner, if hot has the thread."""
        return self.hot.owner if self.hot else None


def get_thread(tiers: Tiers, thread: str) -> Tiered[TieredThreadInfo | None]:
    """Describe one thread."""
    infos = yield from _joined(tiers, [thread], None)
    return infos[0] if infos else None


def stream_threads(tiers: Tiers, query: ThreadQuery) -> TieredStream[TieredThreadInfo]:
    """Describe the threads that match a query, each once: those of hot, then those that only cold has."""
    return _stream_threads(tiers, query, ())


def tiered_threads(tiers: Tiers, query: ThreadQuery) -> TieredStream[TieredThreadInfo | Damaged]:
    """Describe the threads that match a query, and all that are damaged, where `stream_threads` raises."""
    return _stream_threads(tiers, query, CANNOT_BE_READ)


def threads_of(context: Context, query: ThreadQuery) -> Stream[ThreadInfo | Damaged]:
    """Describe the threads of one server that match a query, each once, and all that are damaged. Reads no values."""

    def describe(page: Sequence[str]) -> Operation[list[ThreadInfo]]:
        replies = yield Batch([threads.described(context, name, query) for name in page])
        pairs = zip(page, replies, strict=True)
        infos = [threads.info(name, reply) for name, reply in pairs if reply is not None]
        return [info for info in infos if query.is_updated(info.updated_at)]

    return _each_once(listing.scan_threads(context), query, describe, CANNOT_BE_READ)


def _stream_threads(tiers: Tiers, query: ThreadQuery, caught: Errors) -> Generator[Any, Any, None]:
    # A cold saver that is not Postgres cannot be asked for some threads, so all are read at once.
    in_cold = None if tiers.cold_is_postgres else _described((yield ColdCall("list", (None,))))

    def describe(page: Sequence[str]) -> Tiered[list[TieredThreadInfo]]:
        return [info for info in (yield from _joined(tiers, page, in_cold)) if _matches(info, query)]

    yield from _each_once(_stream_names(tiers, in_cold), query, describe, caught)


def _stream_names(tiers: Tiers, in_cold: Mapping[str, ThreadInfo] | None) -> TieredStream[str]:
    """Yield the names of all threads, some of them twice: those of hot, then those of cold."""
    yield from listing.scan_threads(tiers.hot)
    if in_cold is not None:
        yield Page(sorted(in_cold))
        return
    after: str | None = None
    while page := (yield ColdCall("thread_names", (after, NAMES_PER_PAGE))):
        yield Page(page)
        after = page[-1]


def _each_once(
    names: Generator[Any, Any, None], query: ThreadQuery, describe: Describe, caught: Errors
) -> Generator[Any, Any, None]:
    """Describe threads by pages. If a thread of a page cannot be read, describe that page thread by thread."""
    seen = set[str]()

    def of_page(page: Sequence[str]) -> Generator[Any, Any, list[Any]]:
        new = [name for name in page if name not in seen and name.startswith(query.prefix)]
        seen.update(new)
        try:
            return (yield from describe(new)) if new else []
        except caught:
            pass
        infos = list[Any]()
        for name in new:
            infos += yield from _describe_alone(name, describe)
        return infos

    return listing.mapped(names, of_page)


def _describe_alone(name: str, describe: Describe) -> Generator[Any, Any, list[Any]]:
    try:
        return (yield from describe([name]))
    except CANNOT_BE_READ as error:
        return [Damaged(name, error)]


def _matches(info: TieredThreadInfo, query: ThreadQuery) -> bool:
    """True if a thread matches all of a query but the name. One tier alone does not know, so neither can filter."""
    state = {"interrupted": info.interrupted, "failed": info.failed, None: True}
    return (
        state.get(query.state, not (info.interrupted or info.failed))
        and info.bytes >= query.min_bytes
        and query.pinned in (None, info.pinned)
        and query.dirty in (None, info.lacking > 0)
        and query.owned in (None, info.owner is not None and info.owner.lease_left > timedelta())
        and (query.expires_within is None or (info.ttl is not None and info.ttl <= query.expires_within))
        and query.is_updated(info.updated_at)
    )


def _joined(
    tiers: Tiers, names: Sequence[str], in_cold: Mapping[str, ThreadInfo] | None
) -> Tiered[list[TieredThreadInfo]]:
    """Describe some threads in both tiers. Cold is not believed about a thread that it still has to delete.

    Args:
        tiers: The saver.
        names: The threads.
        in_cold: All threads of cold, if they are known. If not, cold is asked after hot. So a thread that is flushed in
            between is seen twice rather than never.
    """
    if not names:
        return []
    requests: list[Call | Command] = []
    for name in names:
        dirty = tiers.hot.keyspace.tier_keys(name).dirty
        requests += (threads.described(tiers.hot, name), Command(("ZCARD", dirty)), Command(("ZSCORE", dirty, "d")))
    replies = yield Batch(requests)
    if in_cold is None:
        in_cold = yield from _in_cold(tiers, names)
    infos = []
    for at, name in enumerate(names):
        reply, lacking, tombstone = replies[3 * at : 3 * at + 3]
        hot = None if reply is None else threads.info(name, reply)
        cold = None if tombstone is not None else in_cold.get(name)
        if hot or cold:
            infos.append(TieredThreadInfo(name, hot, cold, lacking))
    return infos


def _in_cold(tiers: Tiers, names: Sequence[str]) -> Tiered[dict[str, ThreadInfo]]:
    """Describe some threads in cold."""
    if tiers.cold_is_postgres:
        return {info.thread_id: info for info in (yield ColdCall("describe_threads", (names,)))}
    infos: dict[str, ThreadInfo] = {}
    for name in names:
        infos.update(_described((yield ColdCall("list", ({"configurable": {"thread_id": name}},)))))
    return infos


def _described(checkpoints: Iterable[CheckpointTuple]) -> dict[str, ThreadInfo]:
    """Describe the threads of some checkpoints by these."""
    by_thread: dict[str, list[CheckpointTuple]] = {}
    for saved in checkpoints:
        by_thread.setdefault(config.thread_id(saved.config), []).append(saved)
    return {thread: _of_checkpoints(thread, of_thread) for thread, of_thread in by_thread.items()}


def _of_checkpoints(thread: str, checkpoints: Sequence[CheckpointTuple]) -> ThreadInfo:
    newest = max(checkpoints, key=_id)
    root = max((saved for saved in checkpoints if not config.namespace(saved.config)), key=_id, default=None)
    pending = {channel for _, channel, _ in (root and root.pending_writes) or ()}
    return ThreadInfo(
        thread_id=thread,
        checkpoint_id=newest.checkpoint["id"],
        updated_at=times.moment(newest.checkpoint.get("ts") or ""),
        checkpoints=len(checkpoints),
        bytes=0,
        ttl=None,
        pinned=False,
        interrupted=INTERRUPT in pending,
        failed=ERROR in pending,
    )


def _id(saved: CheckpointTuple) -> str:
    return saved.checkpoint["id"]
