"""Operations on whole threads: list them, change when they expire, delete one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver._checkpoint.listing import mapped, scan_threads
from redis_saver._common import names, times
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Batch, Call, Operation, Stream
from redis_saver._storage import header as headers
from redis_saver._storage.context import Context, default_ttl
from redis_saver.errors import ThreadNotFound, decoding

_ROOT = names.component("")
_INTERRUPT = b"\0%d" % WRITES_IDX_MAP[INTERRUPT]


class ThreadInfo(NamedTuple):
    """A thread, as `threads()` tells of it."""

    thread_id: str
    """Its name."""
    checkpoint_id: str | None
    """The newest checkpoint over all namespaces; None where there are only writes of one that is not there yet."""
    updated_at: datetime | None
    """That checkpoint's `ts`; None where it has none, or one that is no time."""
    checkpoints: int
    """How many it has, in all namespaces."""
    bytes: int
    """Headers, values and writes as stored; Redis's own overhead comes on top."""
    ttl: timedelta | None
    """Time left, or None where it does not expire."""
    pinned: bool
    """Whether it stays until `unpin`."""
    interrupted: bool
    """Whether the newest checkpoint of the root namespace has a pending `interrupt()`."""


def delete_thread(context: Context, thread: str) -> Operation[None]:
    """Remove a thread, a damaged one too: both of its keys, at once."""
    keys = context.keyspace.keys(thread)
    context.chunk_cache.forget(keys.data_key)
    yield Call(scripts.DELETE_THREAD, keys, (b"any",))


def stream_threads(context: Context, thread_prefix: str) -> Stream[ThreadInfo]:
    """Describe all threads whose names begin with a prefix."""

    def describe(found: Sequence[str]) -> Operation[list[ThreadInfo]]:
        threads = [thread for thread in found if thread.startswith(thread_prefix)]
        answers = (yield Batch([described(context, thread) for thread in threads])) if threads else []
        pairs = zip(threads, answers, strict=True)
        return [info(thread, answer) for thread, answer in pairs if answer is not None]

    return mapped(scan_threads(context), describe)


def get_thread(context: Context, thread: str) -> Operation[ThreadInfo | None]:
    """Describe one thread."""
    answer = yield described(context, thread)
    return None if answer is None else info(thread, answer)


def described(context: Context, thread: str) -> Call:
    """The request that describes a thread."""
    return Call(scripts.THREAD_INFO, context.keyspace.keys(thread), (_ROOT, _INTERRUPT))


def info(thread: str, answer: Sequence[Any]) -> ThreadInfo:
    """The `ThreadInfo` in the reply to that request."""
    with decoding("what there is of thread {!r}", thread):
        newest, head, checkpoints, size, left, waits, pinned = answer
        return ThreadInfo(
            thread_id=thread,
            checkpoint_id=names.name_of(newest) if newest else None,
            updated_at=times.moment(headers.decode_time(head, thread)) if head else None,
            checkpoints=checkpoints,
            bytes=size,
            ttl=_time_left(left),
            pinned=pinned == 1,
            interrupted=waits == 1,
        )


_MAX_TTL = timedelta.max // timedelta(milliseconds=1)


def _time_left(amount: int) -> timedelta | None:
    return None if amount < 0 else timedelta(milliseconds=min(amount, _MAX_TTL))


def get_ttl(context: Context, thread: str) -> Operation[timedelta | None]:
    """The time that a thread has left; None if it does not expire, or does not exist."""
    left = yield expiring(context, thread, "get", None)
    with decoding("the deadline of thread {!r}", thread):
        return None if left is None else _time_left(left)


def expire(context: Context, thread: str, action: str, own: int | None = None) -> Operation[None]:
    """Change when a thread expires.

    Args:
        context: The saver.
        thread: The thread.
        action: `set`, `clear`, `pin` or `unpin`, as in `lua/checkpoint/set_ttl.lua`.
        own: The TTL to set, in milliseconds.

    Raises:
        ThreadNotFound: there is no such thread.
    """
    if (yield expiring(context, thread, action, own)) is None:
        raise not_there(thread)


def not_there(thread: str) -> ThreadNotFound:
    """The error for a thread that does not exist."""
    return ThreadNotFound(f"thread {shown(thread)} is not there: it was never written, was deleted, or has expired")


def expiring(context: Context, thread: str, action: str, own: int | None) -> Call:
    """The request that reads or changes when a thread expires. Reply: the milliseconds left, None if there is no such thread."""
    arguments: tuple[Argument, ...] = (action, default_ttl(context) if own is None else own)
    return Call(scripts.SET_TTL, context.keyspace.keys(thread), arguments)
