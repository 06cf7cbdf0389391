"""Operations on whole threads: list them, change when they expire, delete one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint import listing, ownership, pruning, scripts
from redis_saver._common import config, limits, names, times
from redis_saver._common.display import shown
from redis_saver._engine.requests import Argument, Batch, Call, Operation, Stream
from redis_saver._storage import header
from redis_saver._storage.context import Context, default_ttl
from redis_saver.errors import ThreadNotFound, decoding

_ROOT = names.component("")
_INTERRUPT, _ERROR = b"\0%d" % WRITES_IDX_MAP[INTERRUPT], b"\0%d" % WRITES_IDX_MAP[ERROR]

ThreadState: TypeAlias = Literal["active", "interrupted", "failed", "orphaned"]
"""State of a thread, from its owner and the pending writes of its newest root checkpoint. It may be in several.

`interrupted`: there is an `interrupt()`. `failed`: there is an error of a task. `orphaned`: the lease of its owner
(`own`) ended before the owner released it. `active`: none of these, so the thread runs, is done, or was stopped."""


class ThreadInfo(NamedTuple):
    """A thread, as `threads()` returns it."""

    thread_id: str
    """Its name."""
    checkpoint_id: str | None
    """The newest checkpoint over all namespaces, or None if there are only writes of a missing checkpoint."""
    updated_at: datetime | None
    """That checkpoint's `ts`, or None if that is missing or not a time."""
    checkpoints: int
    """Number of checkpoints in all namespaces."""
    bytes: int
    """Size of headers, values and writes as stored, without the overhead of Redis."""
    ttl: timedelta | None
    """Time left, or None if it does not expire."""
    pinned: bool
    """True if the thread stays until `unpin`."""
    interrupted: bool
    """True if the newest checkpoint of the root namespace has a pending `interrupt()`."""
    failed: bool = False
    """True if that checkpoint has a pending error: a task raised, and has not succeeded since."""
    owner: ownership.Owner | None = None
    """The owner (`own`), also for a day after its lease, until somebody else takes the thread. None: nobody owns it."""

    @property
    def expires(self) -> str:
        """Text that says when it expires, as commands show it: `in 6d23h`, `never` or `pinned`."""
        if self.pinned:
            return "pinned"
        return "never" if self.ttl is None else f"in {times.shown(timedelta(seconds=int(self.ttl.total_seconds())))}"

    @property
    def orphaned(self) -> bool:
        """True if the owner's lease ended before the owner released the thread. So its run ended in the middle."""
        return self.owner is not None and self.owner.orphaned


class ThreadQuery(NamedTuple):
    """The arguments of a `threads` call."""

    prefix: str = ""
    state: ThreadState | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    min_bytes: int = 0
    expires_within: timedelta | None = None
    pinned: bool | None = None
    dirty: bool | None = None
    owned: bool | None = None

    def is_updated(self, at: datetime | None) -> bool:
        """True if the time of a thread's newest checkpoint matches. None only matches a query without times."""
        after, before = self.updated_after, self.updated_before
        if at is None:
            return after is None and before is None
        return (after is None or at > after) and (before is None or at < before)

    def checked(self, expires_within: timedelta | str | None) -> ThreadQuery:
        """Check the arguments of a `threads` call. Returns them with `expires_within`.

        Raises:
            TypeError, ValueError: An argument is invalid. The message says which one and why.
        """
        if not isinstance(self.prefix, str):
            raise TypeError(f"thread_prefix={shown(self.prefix)}: write a str")
        if self.state not in (None, "active", "interrupted", "failed", "orphaned"):
            raise ValueError(f"state={shown(self.state)}: write 'active', 'interrupted', 'failed' or 'orphaned'")
        for name, at in (("updated_after", self.updated_after), ("updated_before", self.updated_before)):
            if at is not None and not (isinstance(at, datetime) and at.tzinfo):
                raise TypeError(f"{name}={shown(at)}: write a datetime with a tzinfo, like datetime.now(timezone.utc)")
        config.number("min_bytes", self.min_bytes, 0, whole=True)
        within = None if expires_within is None else times.of(expires_within, name="expires_within")
        if within is not None and within < timedelta():
            raise ValueError(f"expires_within={shown(expires_within)}: write a time that is not negative")
        for name, flag in (("pinned", self.pinned), ("dirty", self.dirty), ("owned", self.owned)):
            if flag is not None and not isinstance(flag, bool):
                raise TypeError(f"{name}={shown(flag)}: write True, False, or None for both")
        return self._replace(expires_within=within)


ANY = ThreadQuery()


def new_thread(context: Context, remembered: int | None, prefix: str) -> Operation[str]:  # noqa: ARG001 - for two tiers
    """Return a name for a new thread. Sends nothing."""
    yield from ()
    thread = prefix + names.new_thread()
    limits.check_name(context.limits, thread, "a thread")
    return thread


def delete_thread(context: Context, thread: str) -> Operation[None]:
    """Delete a thread, even a damaged one."""
    yield pruning.deletion(context, thread, b"any")


def stream_threads(context: Context, asked: ThreadQuery) -> Stream[ThreadInfo]:
    """Stream the threads that match the query. The server filters by everything except times, which are texts there."""

    def describe(page: Sequence[str]) -> Operation[list[ThreadInfo]]:
        threads = [thread for thread in page if thread.startswith(asked.prefix)]
        answers = (yield Batch([described(context, thread, asked) for thread in threads])) if threads else []
        pairs = zip(threads, answers, strict=True)
        infos = [info(thread, answer) for thread, answer in pairs if answer is not None]
        return [thread for thread in infos if asked.is_updated(thread.updated_at)]

    return listing.mapped(listing.scan_threads(context), describe)


def get_thread(context: Context, thread: str) -> Operation[ThreadInfo | None]:
    """Describe a thread. None if it does not exist."""
    answer = yield described(context, thread)
    return None if answer is None else info(thread, answer)


def described(context: Context, thread: str, asked: ThreadQuery = ANY) -> Call:
    """Return the request that describes a thread if it matches the query."""
    within: Argument = b"" if asked.expires_within is None else asked.expires_within // _MILLISECOND
    pinned, dirty, owned = [b"" if flag is None else b"%d" % flag for flag in (asked.pinned, asked.dirty, asked.owned)]
    arguments = scripts.ThreadInfoArguments(
        root=_ROOT, interrupt=_INTERRUPT, failure=_ERROR, state=asked.state or b"", least=asked.min_bytes,
        within=within, pinned=pinned, dirty=dirty, owned=owned,
    )  # fmt: skip
    keys = (*context.keyspace.keys(thread), context.keyspace.owner_key(thread))
    return Call(scripts.THREAD_INFO, keys, arguments)


def info(thread: str, answer: Sequence[Any]) -> ThreadInfo:
    """Decode the reply to `described`."""
    with decoding("the description of thread {!r}", thread):
        newest, head, checkpoints, size, left, waits, pinned, failed, owner, lease = answer
        return ThreadInfo(
            thread_id=thread,
            checkpoint_id=names.name_of(newest) if newest else None,
            updated_at=times.moment(header.decode_time(head, thread)) if head else None,
            checkpoints=index(checkpoints),
            bytes=index(size),
            ttl=_time_left(left),
            pinned=pinned == 1,
            interrupted=waits == 1,
            failed=failed == 1,
            owner=ownership.Record.of(owner).owner(lease) if owner else None,
        )


_MILLISECOND = timedelta(milliseconds=1)
_MAX_TTL = timedelta.max // _MILLISECOND


def _time_left(amount: int) -> timedelta | None:
    return None if amount < 0 else timedelta(milliseconds=min(amount, _MAX_TTL))


def get_ttl(context: Context, thread: str) -> Operation[timedelta | None]:
    """Return the time until a thread expires. None if it does not expire, or does not exist."""
    left = yield Call(scripts.GET_TTL, context.keyspace.keys(thread), ())
    with decoding("the deadline of thread {!r}", thread):
        return None if left is None else _time_left(left)


def expire(context: Context, thread: str, action: str, own: int | None = None) -> Operation[None]:
    """Change when a thread expires.

    Args:
        context: The saver.
        thread: The thread.
        action: `set`, `clear`, `pin` or `unpin`, as in `lua/checkpoint/set_ttl.lua`.
        own: The TTL for `set`, in milliseconds.

    Raises:
        ThreadNotFound: There is no such thread.
    """
    if (yield expiring(context, thread, action, own)) is None:
        raise not_there(thread)


def not_there(thread: str) -> ThreadNotFound:
    """Return the error about a missing thread."""
    return ThreadNotFound(f"thread {shown(thread)} is not there: it was never written, was deleted, or has expired")


def expiring(context: Context, thread: str, action: str, own: int | None) -> Call:
    """Return the request that changes a thread's deadline.

    It is answered with the milliseconds left, or None if there is no such thread.
    """
    arguments: tuple[Argument, ...] = (action, default_ttl(context) if own is None else own)
    return Call(scripts.SET_TTL, context.keyspace.keys(thread), arguments)
