"""Check that a thread is whole: headers, digests, references, deadlines, counters. Nothing is written.

A finding counts only if nobody wrote to the thread meanwhile. Otherwise the check starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.inventory import FOREIGN, MAX_FINDINGS, RESTORE, Finding, Findings, Inventory, describe
from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Call, Operation
from redis_saver._storage.context import Context
from redis_saver.errors import KeyConflict, ThreadBusy, ThreadDamaged, ThreadNotFound, decoding

ATTEMPTS = 5
APART = 100
"""Milliseconds by which the two deadlines may seem to differ, because older servers read the clock for each."""
WRITER_GONE = 300_000
"""Milliseconds after which a writer with an open intent counts as dead. Writing to cold must not take longer."""


class CheckReport(NamedTuple):
    """The result of `check` for a thread."""

    thread_id: str
    """Its name."""
    checkpoints: int = 0
    """Number of checkpoints."""
    values: int = 0
    """Number of channel values."""
    chunks: int = 0
    """Number of chunks of long values."""
    writes: int = 0
    """Number of pending writes."""
    bytes: int = 0
    """Size of headers, values, chunks and writes as stored."""
    compared: int = 0
    """Number of checkpoints that were compared with cold."""
    lacking: int = 0
    """Records (checkpoints, pending writes of a task) that cold does not have yet. If any, nothing is compared."""
    findings: tuple[Finding, ...] = ()
    """The problems found, up to 100."""
    more: int = 0
    """Number of further findings."""

    @property
    def sound(self) -> bool:
        """True if there are no findings, except those that repair themselves."""
        return not self.more and all(finding.severity == "info" for finding in self.findings)


class State(NamedTuple):
    """A thread as a whole, as `lua/checkpoint/check.lua` returns it."""

    counters: bytes
    index_deadline: int
    data_deadline: int
    members: int
    fields: int
    lacking: int
    note_deadline: int
    oldest_writer: int
    marks: Sequence[bytes]
    refused: Sequence[bytes]

    @property
    def has_cold(self) -> bool:
        """True if the thread is `@cold_backed`: cold has all of it except the dirty records."""
        return bool(self.marks[0])

    @property
    def is_whole(self) -> bool:
        """True if the thread is `@complete`: hot has all that cold has."""
        return bool(self.marks[1])

    @property
    def has_gaps(self) -> bool:
        """True if checkpoints were coalesced, so that cold lacks them."""
        return bool(self.marks[2])

    def like(self, other: State | None) -> bool:
        """True if nobody wrote to the thread between these two states."""
        return other is not None and _lasting(self) == _lasting(other)


def _lasting(now: State) -> tuple[Any, ...]:
    """Return the parts of a state that only writes change."""
    return now.counters, now.members, now.fields, now.lacking, now.oldest_writer < 0, now.marks


Compare: TypeAlias = Callable[[State, Inventory, Findings], Generator[Any, Any, int]]
"""Compares the checkpoints of a thread with another saver, and returns how many were compared."""


def _nothing_to_compare(_: State, __: Inventory, ___: Findings) -> Operation[int]:
    """Compare nothing, as there is no cold saver."""
    yield from ()
    return 0


def check(
    context: Context, thread: str, *, values: bool, compare: Compare = _nothing_to_compare
) -> Generator[Any, Any, CheckReport]:
    """Check everything that a thread holds.

    Args:
        context: The saver.
        thread: The thread.
        values: True to decode values, writes and metadata too.
        compare: Compares with the cold saver.

    Raises:
        ThreadNotFound: There is no such thread.
        ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
    """
    for _ in range(ATTEMPTS):
        try:
            before = yield from _state(context, thread)
        except (ThreadDamaged, KeyConflict) as error:
            remedy = FOREIGN if isinstance(error, KeyConflict) else RESTORE
            return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", str(error), remedy),))
        if before is None:
            raise ThreadNotFound(f"thread {thread!r} is not there: it was never written, was deleted, or has expired")
        findings = Findings()
        _check_state(thread, before, findings)
        inventory = Inventory(context, thread, findings, values=values)
        yield from inventory.take()
        yield from inventory.compare(before.counters)
        compared = yield from compare(before, inventory, findings)
        try:
            after = yield from _state(context, thread)
        except (ThreadDamaged, KeyConflict):
            continue  # it was damaged just now; the next attempt says so
        if not findings or before.like(after):
            counts = (
                len(inventory.headers),
                len(inventory.roots),
                len(inventory.chunks),
                sum(inventory.records.values()),
                inventory.bytes,
            )
            return CheckReport(thread, *counts, compared, before.lacking, tuple(findings), findings.more)
    raise ThreadBusy(f"thread {thread!r} was written to during each of {ATTEMPTS} attempts to check it; try again")


def _state(context: Context, thread: str) -> Operation[State | None]:
    """Read the state of a thread; None if there is no such thread."""
    keys = context.keyspace.tier_keys(thread)
    wanted = (keys.index_key, keys.data_key, keys.intents, keys.dirty, keys.flush)
    reply = yield Call(scripts.CHECK, wanted, (MAX_FINDINGS,))
    if reply is None:
        return None
    with decoding("the state of thread {!r}", thread):
        now = State(*reply)
        lists = now.marks, now.refused
        if [*map(type, now)] != _STATE or {type(item) for each in lists for item in each} - {bytes}:
            raise TypeError(f"it is {shown(reply)}")
        if len(now.marks) != _MARKS or len(now.refused) % 2:
            raise ValueError(
                f"it has {len(now.marks)} marks, and {len(now.refused)} names and notes of refused records"
            )
    return now


_STATE, _MARKS = [bytes, *[int] * 7, list, list], 4
"""Types of the reply of `lua/checkpoint/check.lua`, and the number of its marks."""


def _check_state(thread: str, now: State, findings: Findings) -> None:
    """Check that the parts of the thread's state agree with each other."""
    where, deadlines = f"thread {thread!r}", (now.index_deadline, now.data_deadline)
    if (min(deadlines) < 0 and deadlines[0] != deadlines[1]) or abs(deadlines[0] - deadlines[1]) > APART:
        index, data = ("never" if left < 0 else f"in {left} ms" for left in deadlines)
        remedy = "set_thread_ttl(), or pin() and unpin(), give both the same"
        findings.add("error", where, f"its index expires {index} and its data {data}: half of it will be gone", remedy)
    if now.lacking and max(*deadlines, now.note_deadline) >= 0:
        remedy = "bring it to cold before: flush(), or redis-saver flush"
        findings.add("error", where, f"cold lacks {now.lacking} of its records, and yet it expires", remedy)
    if now.lacking and not now.marks[3]:
        remedy = "flush(), or redis-saver flush, brings it there"
        findings.add("warning", where, f"cold lacks {now.lacking} of its records, and its data do not say so", remedy)
    if now.marks[3] and not now.lacking:
        text = "its data say that cold lacks some of it, and the list of what is gone"
        remedy = (
            "redis-saver migrate from Redis to cold brings there what it lacks; "
            "after the next write the thread expires again"
        )
        findings.add("error", where, text, remedy)
    if now.oldest_writer >= WRITER_GONE:
        text = f"a writer that began {now.oldest_writer // 1000} s ago did not say whether cold has what it wrote"
        findings.add("info", where, text, "the next read through a TieredSaver asks cold, and repairs it")
    for member, noted in zip(now.refused[::2], now.refused[1::2], strict=True):
        with findings.reading(describe(member)):
            tries, _, error = noted.split(b" ", 2)
            text = f"cold refused it {int(tries)} times: {names.decode(error)!r}"
            findings.add("warning", describe(member), text, "repair what cold says; the flusher tries again by itself")
