"""Threads in two tiers: which exist, and in which tier."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint import listing, threads
from redis_saver._checkpoint.listing import mapped, scan_threads
from redis_saver._checkpoint.ownership import Owner
from redis_saver._checkpoint.threads import ThreadInfo, ThreadQuery
from redis_saver._common import config, times
from redis_saver._engine.requests import Batch, Call, Command, Operation, Page, Stream
from redis_saver._storage.context import Context
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.requests import ColdCall, Tiered, TieredStream
from redis_saver.errors import KeyConflict, RedisSaverError, ThreadDamaged, UnsupportedFormat

NAMES_PER_PAGE = 200


class TieredThreadInfo(NamedTuple):
    """A thread in two tiers: what each of them has of it."""

    thread_id: str
    """Its name."""
    hot: ThreadInfo | None
    """What Redis has; None where it has nothing: the next read brings the thread back."""
    cold: ThreadInfo | None
    """What the cold saver has; None where it has nothing (yet). Of a saver that is not LangGraph's Postgres saver `bytes` is 0."""
    lacking: int
    """Records that cold still has to get, or a deletion."""

    @property
    def tier(self) -> Literal["hot", "cold", "both"]:
        """Where it is."""
        return "both" if self.hot and self.cold else "hot" if self.hot else "cold"

    @property
    def _newest(self) -> ThreadInfo:
        """The tier with the newer checkpoint; hot if both have the same."""
        found = [one for one in (self.hot, self.cold) if one is not None]
        return max(found, key=lambda one: one.checkpoint_id or "")

    @property
    def checkpoint_id(self) -> str | None:
        """The newest checkpoint over all namespaces."""
        return self._newest.checkpoint_id

    @property
    def updated_at(self) -> datetime | None:
        """That checkpoint's `ts`."""
        return self._newest.updated_at

    @property
    def checkpoints(self) -> int:
        """How many the tier has that has more of them."""
        return max(one.checkpoints for one in (self.hot, self.cold) if one is not None)

    @property
    def bytes(self) -> int:
        """What both store of it, in all."""
        return sum(one.bytes for one in (self.hot, self.cold) if one is not None)

    @property
    def interrupted(self) -> bool:
        """Whether the newest checkpoint of the root namespace has a pending `interrupt()`."""
        return self._newest.interrupted

    @property
    def failed(self) -> bool:
        """Whether that checkpoint has a pending error of a task."""
        return self._newest.failed

    @property
    def ttl(self) -> timedelta | None:
        """Time left in hot; None: it does not expire there, or is not there. Cold keeps it in any case."""
        return self.hot.ttl if self.hot else None

    @property
    def pinned(self) -> bool:
        """Whether hot keeps it until `unpin`."""
        return self.hot is not None and self.hot.pinned

    @property
    def owner(self) -> Owner | None:
        """Who owns it, as far as hot has the thread."""
        return self.hot.owner if self.hot else None


def get_thread(tiers: Tiers, thread: str) -> Tiered[TieredThreadInfo | None]:
    """Describe one thread."""
    found = yield from _joined(tiers, [thread], None)
    return found[0] if found else None


def stream_threads(tiers: Tiers, asked: ThreadQuery) -> TieredStream[TieredThreadInfo]:
    """Describe the threads that are looked for, each once: those of hot, then those that only cold has."""
    in_cold = yield from gathered(tiers)
    seen = set[str]()

    def describe(found: Sequence[str]) -> Tiered[list[TieredThreadInfo]]:
        names = [name for name in found if name.startswith(asked.prefix) and name not in seen]
        seen.update(names)
        return described(tiers, names, asked, in_cold)

    yield from listing.mapped(stream_names(tiers, in_cold), describe)


def stream_names(tiers: Tiers, in_cold: Mapping[str, ThreadInfo] | None = None) -> TieredStream[str]:
    """The names of all threads, some of them twice: those of hot, then those of cold, which is Postgres or has what is given."""
    yield from listing.scan_threads(tiers.hot)
    if in_cold is not None:
        yield Page(sorted(in_cold))
        return
    after: str | None = None
    while page := (yield ColdCall("thread_names", (after, NAMES_PER_PAGE))):
        yield Page(page)
        after = page[-1]


def described(
    tiers: Tiers, names: Sequence[str], asked: ThreadQuery, in_cold: Mapping[str, ThreadInfo] | None = None
) -> Tiered[list[TieredThreadInfo]]:
    """Describe those of some threads that are looked for; `in_cold` as `_joined` takes it."""
    return [one for one in (yield from _joined(tiers, names, in_cold)) if _is_wanted(one, asked)]


def _is_wanted(found: TieredThreadInfo, asked: ThreadQuery) -> bool:
    """Whether a thread is one of those that are looked for, but for its name. What one tier has does not tell, so no server is asked to leave any out."""
    state = {"interrupted": found.interrupted, "failed": found.failed, None: True}
    return (
        state.get(asked.state, not (found.interrupted or found.failed))
        and found.bytes >= asked.min_bytes
        and asked.pinned in (None, found.pinned)
        and asked.dirty in (None, found.lacking > 0)
        and asked.owned in (None, found.owner is not None and found.owner.lease_left > timedelta())
        and (asked.expires_within is None or (found.ttl is not None and found.ttl <= asked.expires_within))
        and asked.is_updated(found.updated_at)
    )


def _joined(
    tiers: Tiers, names: Sequence[str], in_cold: Mapping[str, ThreadInfo] | None
) -> Tiered[list[TieredThreadInfo]]:
    """What both tiers have of some threads. Cold is not believed about a thread that it still has to delete.

    Args:
        tiers: The saver.
        names: The threads.
        in_cold: What cold has, if that is known. If not, cold is asked after hot, so that what is flushed in between is seen twice rather than never.
    """
    if not names:
        return []
    asked: list[Call | Command] = []
    for name in names:
        dirty = tiers.hot.keyspace.tier_keys(name).dirty
        asked += (threads.described(tiers.hot, name), Command(("ZCARD", dirty)), Command(("ZSCORE", dirty, "d")))
    answers = yield Batch(asked)
    if in_cold is None:
        in_cold = yield from _in_cold(tiers, names)
    found = []
    for at, name in enumerate(names):
        answer, lacking, tombstone = answers[3 * at : 3 * at + 3]
        hot = None if answer is None else threads.info(name, answer)
        cold = None if tombstone is not None else in_cold.get(name)
        if hot or cold:
            found.append(TieredThreadInfo(name, hot, cold, lacking))
    return found


def _in_cold(tiers: Tiers, names: Sequence[str]) -> Tiered[dict[str, ThreadInfo]]:
    """What cold has of some threads."""
    if tiers.cold_is_postgres:
        found = yield ColdCall("describe_threads", (names,))
        return {one.thread_id: one for one in found}
    infos: dict[str, ThreadInfo] = {}
    for name in names:
        infos.update(_described((yield ColdCall("list", ({"configurable": {"thread_id": name}},)))))
    return infos


def gathered(tiers: Tiers) -> Tiered[dict[str, ThreadInfo] | None]:
    """What cold has of all threads, all of which is read; None: cold is Postgres, which can be asked for some."""
    return None if tiers.cold_is_postgres else _described((yield ColdCall("list", (None,))))


def _described(found: Iterable[CheckpointTuple]) -> dict[str, ThreadInfo]:
    """The threads of some checkpoints, described by these."""
    by_thread: dict[str, list[CheckpointTuple]] = {}
    for one in found:
        by_thread.setdefault(config.thread_id(one.config), []).append(one)
    return {thread: _of_checkpoints(thread, checkpoints) for thread, checkpoints in by_thread.items()}


def _of_checkpoints(thread: str, found: Sequence[CheckpointTuple]) -> ThreadInfo:
    newest = max(found, key=lambda one: one.checkpoint["id"])
    of_root = [one for one in found if not config.namespace(one.config)]
    root = max(of_root, key=lambda one: one.checkpoint["id"], default=None)
    pending = {channel for _, channel, _ in (root and root.pending_writes) or ()}
    return ThreadInfo(
        thread_id=thread,
        checkpoint_id=newest.checkpoint["id"],
        updated_at=times.moment(newest.checkpoint.get("ts") or ""),
        checkpoints=len(found),
        bytes=0,
        ttl=None,
        pinned=False,
        interrupted=INTERRUPT in pending,
        failed=ERROR in pending,
    )


CANNOT_BE_READ = (ThreadDamaged, KeyConflict, UnsupportedFormat)
"""The errors that are about one thread, and not about the server."""


@dataclass(frozen=True)
class Damaged:
    """A thread that cannot be read."""

    thread_id: str
    error: RedisSaverError


def threads_of(context: Context, asked: ThreadQuery) -> Stream[ThreadInfo | Damaged]:
    """The threads of one server that are looked for, each once, and all that are damaged; with SCAN, a page at a time. No values are read."""

    def describe(names: Sequence[str]) -> Operation[list[ThreadInfo]]:
        answers = yield Batch([threads.described(context, name, asked) for name in names])
        pairs = zip(names, answers, strict=True)
        found = [threads.info(name, answer) for name, answer in pairs if answer is not None]
        return [one for one in found if asked.is_updated(one.updated_at)]

    return _each_once(scan_threads(context), asked, describe)


def tiered_threads(tiers: Tiers, asked: ThreadQuery) -> TieredStream[TieredThreadInfo | Damaged]:
    """Those of two tiers."""
    in_cold = yield from gathered(tiers)

    def describe(names: Sequence[str]) -> Tiered[list[TieredThreadInfo]]:
        return described(tiers, names, asked, in_cold)

    yield from _each_once(stream_names(tiers, in_cold), asked, describe)


def _each_once(
    names: Generator[Any, Any, None],
    asked: ThreadQuery,
    describe: Callable[[Sequence[str]], Generator[Any, Any, list[Any]]],
) -> Generator[Any, Any, None]:
    """Describe threads, a page at once; one by one where some of the page cannot be read."""
    seen = set[str]()

    def each(page: Sequence[str]) -> Generator[Any, Any, list[Any]]:
        new = [name for name in page if name not in seen and name.startswith(asked.prefix)]
        seen.update(new)
        try:
            return (yield from describe(new)) if new else []
        except CANNOT_BE_READ:
            pass
        found = list[Any]()
        for name in new:
            found += yield from _alone(name, describe)
        return found

    return mapped(names, each)


def _alone(
    name: str, describe: Callable[[Sequence[str]], Generator[Any, Any, list[Any]]]
) -> Generator[Any, Any, list[Any]]:
    try:
        return (yield from describe([name]))
    except CANNOT_BE_READ as error:
        return [Damaged(name, error)]
