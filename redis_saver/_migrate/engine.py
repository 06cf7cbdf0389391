"""Moving threads from a source to a target: what the target lacks is stored there, oldest first, and then compared.

Both are asked for the outline of each thread: its checkpoints, their parents, and which tasks have pending writes. The source's checkpoints and writes that
the target lacks are read and stored. When nothing is lacking the thread is done. So a thread that was moved before is
skipped, one that was moved in part is completed, and one that was written to meanwhile is looked at again. If the target
has what the source lacks, the thread is left as it is there: a conflict.

In memory are the names of the threads, the outline of one thread, and one checkpoint at a time (of a file of threads: one thread).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._common.display import shown
from redis_saver._migrate import diff, key_patterns
from redis_saver._migrate.adapters import as_endpoint
from redis_saver._migrate.diff import Lacking
from redis_saver._migrate.endpoints import Source, Target
from redis_saver._migrate.foreign import ForeignSource
from redis_saver._migrate.records import Entry, Key, Record, ThreadOutline
from redis_saver._migrate.versions import Versions
from redis_saver.errors import EndpointError, RedisSaverError, ThreadMigrationError

SAMPLE = 2
"""Checkpoints of each thread that are compared in full, unless told otherwise."""
ROUNDS = 4
"""How often a thread is looked at before it counts as failed: somebody writes to it all the time, or it does not arrive."""


@dataclass
class Report:
    """What `migrate` has moved so far."""

    threads: int = 0
    """Threads that were looked at."""
    total: int = 0
    """Threads to look at in all."""
    moved: int = 0
    """Threads of which the target had nothing."""
    completed: int = 0
    """Threads of which it had a part."""
    unchanged: int = 0
    """Threads of which it had all."""
    checkpoints: int = 0
    """Checkpoints that were written; with dry_run: that would be."""
    writes: int = 0
    """Pending writes of a task, or to a special channel, that were written."""
    compared: int = 0
    """Checkpoints that were read again and compared in full."""
    seconds: float = 0.0
    conflicts: list[str] = field(default_factory=list)
    """Threads that are different in the target, each with what differs. They were not changed."""
    failed: list[str] = field(default_factory=list)
    """Threads that could not be moved, or did not arrive as they were, each with the reason."""


def migrate(
    source: BaseCheckpointSaver[Any] | Source,
    target: BaseCheckpointSaver[Any] | Target,
    *,
    threads: Collection[str] | None = None,
    thread_prefix: str = "",
    sample: int = SAMPLE,
    dry_run: bool = False,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Copy threads: all, those that are named, or those whose names begin with a prefix. What the target has already is not written again.

    The source is not changed. A thread that is written to meanwhile arrives as it was at some moment: run it again when nobody writes. Nobody may use the
    threads at the target meanwhile.

    Args:
        source: A saver with synchronous methods, or what `opened` gives. Of a saver, values go through its serializer and the target's; what `opened`
            gives leaves their bytes as they are. Of the savers of `langgraph-checkpoint-redis`, and of a `ValkeySaver`, the keys are read as they are.
        target: A saver, or what `opened` gives.
        threads: Move only these threads. One that the source lacks has failed.
        thread_prefix: Move only threads whose names begin so.
        sample: How many checkpoints of each moved thread are read again and compared in full: its newest, and others at random.
        dry_run: Write nothing, and count what would be written.
        progress: Called with the report as it grows, after each checkpoint and each thread.

    Returns:
        What was moved, and what was not: conflicts, and threads that failed.

    Raises:
        ValueError: `sample` is negative, or both `threads` and `thread_prefix` are given. Nothing was read.
        TypeError: Source or target is neither a saver nor what `opened` gives, or a name in `threads` is no text.
        EndpointError: Source or target failed; or the source has no thread, but its server has some under another prefix, or of another package's saver. What
            was moved so far stays; run it again.
    """
    if sample < 0:
        raise ValueError(
            f"sample={shown(sample)}: write how many checkpoints of each thread to compare; 0 compares none"
        )
    there, here = as_endpoint("source", source), as_endpoint("target", target)
    if isinstance(there, ForeignSource):
        there.decode(objects=isinstance(target, BaseCheckpointSaver))
    names = _threads_of(there, thread_prefix) if threads is None else _named(threads, thread_prefix)
    report, started = Report(total=len(names)), time.monotonic()
    for thread in names:
        move = _Move(there, here, thread, report, progress or (lambda _: None))
        try:
            move.run(sample, dry_run=dry_run, is_named=threads is not None)
        except EndpointError:
            raise
        except RedisSaverError as error:
            here.abandon(thread)
            report.failed.append(f"thread {shown(thread)}: {error}")
        report.threads += 1
        report.seconds = time.monotonic() - started
        move.progress(report)
    return report


async def amigrate(
    source: BaseCheckpointSaver[Any] | Source,
    target: BaseCheckpointSaver[Any] | Target,
    *,
    threads: Collection[str] | None = None,
    thread_prefix: str = "",
    sample: int = SAMPLE,
    dry_run: bool = False,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """`migrate` for asyncio: it runs in a worker thread, while the event loop goes on.

    Savers for asyncio are used on the loop that they belong to. If the caller is cancelled, the migration ends after the checkpoint that it is at, and then the
    cancellation goes on.

    Args:
        source: As `migrate` takes it; a saver for asyncio may be one whose synchronous methods work in other OS threads, as ours and LangGraph's do.
        target: The same.
        threads: As for `migrate`.
        thread_prefix: As for `migrate`.
        sample: As for `migrate`.
        dry_run: As for `migrate`.
        progress: As for `migrate`. It is called in the worker thread.

    Returns:
        As `migrate`.

    Raises:
        ValueError, TypeError, EndpointError: As `migrate`.
    """
    stopped = threading.Event()

    def watched(report: Report) -> None:
        if progress is not None:
            progress(report)
        if stopped.is_set():
            raise _Stopped

    work = partial(
        migrate, source, target, threads=threads, thread_prefix=thread_prefix, sample=sample, dry_run=dry_run
    )
    running = asyncio.ensure_future(asyncio.to_thread(work, progress=watched))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait([running])
        running.exception()  # it was retrieved: asyncio has nothing to complain about
        raise


class _Stopped(BaseException):
    """Ends a migration whose caller was cancelled."""


def _threads_of(source: Source, prefix: str) -> list[str]:
    """The names of a source's threads that begin with a prefix.

    Raises:
        EndpointError: It has none at all, and its server has threads elsewhere.
    """
    found = set(source.threads())
    if not found:
        key_patterns.check_empty(source)
    return sorted(name for name in found if name.startswith(prefix))


def _named(threads: Collection[str], prefix: str) -> list[str]:
    """The names that the caller gave."""
    names = set(threads)
    if isinstance(threads, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"threads={shown(threads)}: write a list of the names of threads, such as ['user-1']")
    if prefix:
        raise ValueError(f"threads= and thread_prefix={shown(prefix)}: give one of the two")
    return sorted(names)


class _Move:
    """The move of one thread."""

    def __init__(
        self, source: Source, target: Target, thread: str, report: Report, progress: Callable[[Report], None]
    ) -> None:
        self.source, self.target, self.thread, self.report, self.progress = source, target, thread, report, progress
        self._versions = Versions(texts=target.text_versions)
        self._seen: set[Key] = set()
        """Checkpoints whose channel versions are known."""
        self._kept: dict[Key, Record] = {}
        """Checkpoints to compare."""

    def run(self, sample: int, *, dry_run: bool, is_named: bool) -> None:
        """Move the thread.

        Raises:
            ThreadMigrationError: It did not arrive as it is in the source.
        """
        had, lacked = False, False
        for again in range(ROUNDS):
            there = self.source.outline(self.thread)
            if not there and is_named:
                raise ThreadMigrationError(f"{self.source.name} has no such thread")
            has = self.target.outline(self.thread)
            if other := diff.conflict(self.source.name, there, self.target.name, has):
                self.report.conflicts.append(f"thread {shown(self.thread)}: {other}")
                return
            lacking = diff.lacking_of(there, has, specials=not again)
            if not again:
                had, lacked = bool(has), bool(lacking)
            if dry_run:
                self.report.checkpoints += sum(whole for whole, _ in lacking.values())
                self.report.writes += sum(len(tasks) for _, tasks in lacking.values())
            if dry_run or not lacking:
                break
            self._copy(there, lacking, diff.chosen(lacking, sample))
        else:
            (_, checkpoint_id), *_ = lacking
            raise ThreadMigrationError(
                f"after {ROUNDS} attempts {self.target.name} still lacks {len(lacking)} of its checkpoints, or their writes, "
                f"such as {shown(checkpoint_id)}; run it again when nothing writes to the thread"
            )
        self._compare()
        self._count(had, lacked)

    def _count(self, had: bool, lacks: bool) -> None:
        if not lacks:
            self.report.unchanged += 1
        elif had:
            self.report.completed += 1
        else:
            self.report.moved += 1

    def _copy(self, there: ThreadOutline, lacking: Lacking, chosen: set[Key]) -> None:
        """Write what is lacking. The checkpoints before it are read, too, as they say which values the target has."""
        known = self._seen if any(whole for whole, _ in lacking.values()) else there.keys()
        wanted = {key: there[key] for key in sorted(there, key=diff.age) if key in lacking or key not in known}
        for found in self.source.records(self.thread, wanted):
            one, new = self._versions.seen(found)
            self._seen.add(one.key)
            if one.key not in lacking:
                continue
            if (own := one.checkpoint.get("id")) != one.key[1]:  # the target would store it under that
                raise ThreadMigrationError(
                    f"{one} of {self.source.name} is damaged: it has the id {shown(own)} in itself"
                )
            whole, tasks = lacking[one.key]
            self.target.write(self.thread, one, new if whole else None, tasks)
            if one.key in chosen:
                self._kept[one.key] = one
            self.report.checkpoints += whole
            self.report.writes += len(tasks)
            self.progress(self.report)

    def _compare(self) -> None:
        """Read the chosen checkpoints again, and compare them with what was written."""
        if not (kept := self._kept):
            return
        entries = {key: Entry(one.parent, {}) for key, one in kept.items()}
        for found in self.target.records(self.thread, entries):
            one = kept.pop(found.key)
            if differs := diff.difference(self.target, one, found):
                raise ThreadMigrationError(
                    f"{one} is not the same in {self.target.name}: {differs}. What is there is kept; delete the thread there "
                    "before you move it again"
                )
            self.report.compared += 1
        if kept:
            raise ThreadMigrationError(
                f"{next(iter(kept.values()))} was written to {self.target.name}, and is not there any more: somebody removed it, or it expired. Run it again"
            )
