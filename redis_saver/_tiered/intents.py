"""Steps before a write to cold: write intents, repair of damaged threads, and enrolling.

A writer begins a write intent in hot before it writes a thread to cold, and ends it afterwards. A thread that is older
than the tiers is only in hot. Enrolling marks all its data as dirty, and flushes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import index
from typing import Any, Literal, NamedTuple, TypeAlias

from redis_saver._checkpoint import listing, threads
from redis_saver._checkpoint.guards import GuardedScript
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._common.names import TierKeys
from redis_saver._engine.replies import IntentReply, RepairReply
from redis_saver._engine.requests import Call, Command, Operation, Sleep, T
from redis_saver._storage.skipping import Skipping
from redis_saver._tiered import context, flushing, scripts
from redis_saver._tiered.context import Fill, Tiers, release
from redis_saver._tiered.flushing import DELETIONS_KEPT, busy, flush_now
from redis_saver._tiered.requests import ColdCall, HotFailed, Tiered, attempt, newest_in_cold
from redis_saver.errors import FlushPaused, RedisSaverError, ThreadDamaged, decoding

ALL, NOWHERE = b"*" * 16, b"?"
"""Record of an intent on a whole thread, and a field that never exists."""
_LOG = ThrottledLog("redis_saver.tiered")
IS_NEW = 2
"""Part of the answer to a writer: nobody has written the thread since `new_thread` made its name."""
REPAIRS = 3
"""Maximum number of repairs per write. A repair may not fix the damage."""
_WITHOUT_INTENT = (IntentReply.BEHIND, IntentReply.UNNOTED, IntentReply.WAIT)
"""Answers after which the writer flushes or waits, and asks again."""
Need: TypeAlias = Literal["", "all", "nothing"]
"""Precondition of a write. "all": coalesced checkpoints are flushed, too. "nothing": no flush, as the write deletes the
thread."""


class Intent(NamedTuple):
    """A write intent with hot's answer."""

    keys: TierKeys
    """Keys of its thread."""
    token: str
    is_here: bool
    """True if hot has the thread."""
    has_all: bool
    """True if cold is known to have all values of the thread."""
    is_pathless: bool
    """True if hot has writes of the checkpoint without their task paths, from a fill."""
    newest: bytes
    """Field that `lua/tiered/end_intent.lua` sets after this write: `@complete`, or `@has_latest` and a namespace."""
    fill: bytes
    """Token of the fill that the writer knows, or empty. `1` for a new thread."""


class Written(NamedTuple):
    """Part of a thread that a writer writes."""

    record: bytes = ALL
    """Digest of the written field, or `ALL`."""
    writes: bytes = b""
    """For pending writes: the prefix of their index members (`context.writes_of`)."""
    fill: Fill | None = None
    """The last known fill, if the write may rely on it."""


_WHOLE_THREAD = Written()


def begin_intent(
    tiers: Tiers, thread: str, writer: bytes, written: Written = _WHOLE_THREAD, *, need: Need = ""
) -> Tiered[Intent]:
    """Begin a write intent. Records that cold lacks are flushed first. Until then reads still use hot.

    Args:
        tiers: The saver.
        thread: The thread.
        writer: The writer (`guards.writer_of`). Hot refuses a writer who does not own the thread.
        written: What it writes. By default the whole thread.
        need: "all": coalesced checkpoints are flushed first, too. "nothing": the thread will be deleted, so nothing is
            flushed, and a damaged thread is removed.

    Raises:
        ThreadBusy: Others kept flushing or writing the thread.
    """
    record, writes, fill = written
    hot, granted = tiers.hot_context, fill.token if fill else b""
    keys = hot.keyspace.tier_keys(thread)
    token = tiers.leases.token(keys.intents)
    arguments = scripts.BeginIntentArguments(
        token=token, default=hot.expiry.milliseconds or b"", writes=writes, fill_token=granted, record=record,
        need=need, gone=context.WRITER_GONE,
    )  # fmt: skip
    begin = GuardedScript(scripts.BEGIN_INTENT, keys, writer).call(*arguments)
    repairs, deadline = iter(range(REPAIRS)), 0.0
    while True:
        try:
            in_cold, is_pathless, still, records = yield from _answer(tiers, thread, begin, need, repairs)
        except Exception:  # any error of hot or cold: the write does not happen, and cold got nothing
            yield from release(keys, token)
            raise
        if in_cold not in _WITHOUT_INTENT:
            break
        tiers.backlog_count.wrote(records)
        deadline = deadline or flushing.until_busy()
        if time.monotonic() >= deadline:
            raise busy(thread)
        if in_cold == IntentReply.WAIT:
            yield Sleep(0.02)
        else:
            tiers.counts.enrolled += in_cold == IntentReply.UNNOTED
            yield from _flush_first(tiers, thread, writer, need)
    is_here, has_all = in_cold != IntentReply.ABSENT, in_cold == IntentReply.COMPLETE
    newest = context.WHOLE if still == IS_NEW else fill.field if fill and still else b""
    return Intent(keys, token, is_here, has_all, bool(is_pathless), newest, b"1" if still == IS_NEW else granted)


def _answer(tiers: Tiers, thread: str, begin: Call, need: Need, repairs: Iterator[int]) -> Tiered[Sequence[Any]]:
    """Return hot's answer to a writer. A damaged thread is repaired first, or removed if the write deletes it.

    `repairs` has an element for each repair that is left to the writer.
    """
    while True:
        try:
            answer = yield begin
            if isinstance(answer, (list, tuple)) and len(answer) == 4 and isinstance(answer[3], int):
                return answer
            wrong = ValueError(f"{shown(answer)} is no answer to a writer")
            raise decoding("the write intents of thread {!r}", thread).of(wrong)
        except ThreadDamaged as damage:  # noqa: PERF203 - few are damaged
            if next(repairs, None) is None:
                raise
            is_unwanted = need == "nothing"
            yield from (
                threads.delete_thread(tiers.hot_context, thread) if is_unwanted else repair(tiers, thread, damage)
            )


def _flush_first(tiers: Tiers, thread: str, writer: bytes, need: Need) -> Tiered[None]:
    """Flush a thread, or its deletion, before a write to cold.

    If that fails, write-behind of the thread is allowed again at once.
    """
    if need == "nothing":
        yield from flushing.put_tombstone(tiers, thread, writer)
    try:
        yield from flush_now(tiers, thread)
    except Exception:  # of hot or cold
        yield from attempt(Command(("HDEL", tiers.hot_context.keyspace.tier_keys(thread).lease, "barrier")))
        raise


def repair(tiers: Tiers, thread: str, damage: ThreadDamaged) -> Tiered[None]:
    """Repair a damaged thread: hot drops its rest if cold has the thread. Otherwise raises the damage."""
    keys = tiers.hot_context.keyspace.tier_keys(thread)
    tiers.hot_context.chunk_cache.forget(keys.data_key)
    script_keys = (keys.index_key, keys.data_key, keys.intents, keys.dirty)
    answer = yield Call(scripts.REPAIR, script_keys, (b"0",))
    if answer == RepairReply.ASK_COLD:
        if tiers.cold_is_postgres:  # also counts writes without a checkpoint
            in_cold = any((yield ColdCall("count_thread", (thread,))))
        else:
            in_cold = bool((yield newest_in_cold(thread)))
        answer = yield Call(scripts.REPAIR, script_keys, (b"1" if in_cold else b"0",))
        if answer == RepairReply.ASK_COLD:  # else somebody deleted it meanwhile
            raise damage
    if answer == RepairReply.GIVEN_UP:
        tiers.counts.repairs += 1
        text = "thread %s was damaged in hot; hot drops it, and the next read fills it from cold: %s"
        _LOG.warning(text, shown(thread), tiers.log_text(damage))


def end(tiers: Tiers, intent: Intent, operation: Operation[T]) -> Tiered[T | None]:
    """Run an operation of hot that ends an intent. Returns its result, or None if hot fails and is bypassed.

    If the operation fails but hot answers the next request, hot drops the thread. Otherwise the intent would stay,
    because no other process knows that cold has the write.
    """
    try:
        return (yield from operation)
    except Exception as error:  # of any client: the intent must not stay
        if not isinstance(error, RedisSaverError):
            with suppress(Exception):  # `error` is the one to raise or to count
                yield from drop(intent)
        if not isinstance(error, HotFailed):
            raise
    tiers.counts.bypasses += 1
    return None


def drop(intent: Intent) -> Operation[None]:
    """End an intent: hot drops the thread."""
    yield Call(scripts.END_INTENT, intent.keys.writing, (intent.token, b"", NOWHERE, b""))


def change(tiers: Tiers, thread: str, writer: bytes, cold: ColdCall | None) -> Tiered[Any]:
    """Change a thread in cold, and drop it in hot. Returns cold's result.

    Raises:
        NotImplementedError: Cold does not support the call. Nothing was changed.
    """
    intent = yield from begin_intent(tiers, thread, writer)
    answer = (yield from change_cold([intent], cold)) if cold else None
    yield from give_up(tiers, intent)
    return answer


def change_cold(intents: Iterable[Intent], call: ColdCall) -> Tiered[Any]:
    """Call cold, with an intent on each thread that it may change. Returns cold's result.

    Raises:
        NotImplementedError: Cold does not support the call. Nothing was changed, and the intents are released.
    """
    try:
        return (yield call)
    except NotImplementedError:
        yield from release_all(intents)
        raise


def release_all(intents: Iterable[Intent]) -> Tiered[None]:
    """Release intents of writes that did not begin in cold."""
    for intent in intents:
        yield from release(intent.keys, intent.token)


def give_up(tiers: Tiers, intent: Intent) -> Tiered[None]:
    """End an intent: hot drops the thread. If it is dirty, the next reader flushes it first."""
    tiers.hot_context.chunk_cache.forget(intent.keys.data_key)
    yield from end(tiers, intent, drop(intent))


def erased(tiers: Tiers, intent: Intent) -> Operation[None]:
    """End an intent: hot deletes the thread, which cold has deleted."""
    tiers.hot_context.chunk_cache.forget(intent.keys.data_key)
    yield Call(scripts.ERASE, intent.keys, (intent.token, DELETIONS_KEPT))


def enroll(tiers: Tiers, thread: str | None) -> Tiered[None]:
    """Enroll a thread that is older than the tiers. None: enroll all such threads."""
    try:
        names = (
            [thread] if thread is not None else (yield from listing.collect(listing.scan_threads(tiers.hot_context)))
        )
        with Skipping(tiers.hot_context.data_keys, names_one=thread is not None) as skipping:
            for name in dict.fromkeys(names):
                if (yield from enrolled(tiers, name)):
                    yield from skipping.each(name, flush_now(tiers, name))
    except HotFailed:
        tiers.counts.bypasses += 1
    except FlushPaused:  # the threads are dirty now, and flushed after the pause
        pass


def enrolled(tiers: Tiers, thread: str) -> Operation[bool]:
    """Enroll a thread without a flush. Returns False if cold has the thread."""
    reply = yield Call(scripts.ENROLL, tiers.hot_context.keyspace.tier_keys(thread), ())
    with decoding("the backlog of thread {!r}", thread):
        records = index(reply)
    tiers.backlog_count.wrote(records)
    tiers.counts.enrolled += records > 0
    return records > 0
