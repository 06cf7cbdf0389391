"""The engine of migrations. It looks up what the target has, writes what the target lacks, and looks again.

So whatever was moved before is skipped, and an interrupted migration goes on when it is run again. Nothing else records
its state.

A thread is moved alone: outlines of source and target are compared, and missing checkpoints are written, oldest first.
A thread of which the target has more, or something else, is a conflict, and stays as it is there. Items are moved in
batches. A write names the item that it replaces, so no other writer's item is lost. In memory are the names of all
threads and the outline of one, or a batch of items.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions

from redis_saver._checkpoint.comparing import Record, Task, difference
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common.display import shown
from redis_saver._migrate.endpoints import Entry, ItemOrError, Items, Source, Target, ThreadOutline, item_name
from redis_saver._migrate.foreign import ForeignSource
from redis_saver._migrate.savers import as_endpoint, check_empty
from redis_saver._migrate.stores import same_value
from redis_saver._storage.opaque import Opaque, fingerprint
from redis_saver._store.transfer import StoredItem
from redis_saver.errors import EndpointError, RedisSaverError, ThreadMigrationError

SAMPLE = 2
"""Default number of checkpoints per thread that are compared in full."""
ROUNDS = 4
"""Maximum number of attempts per thread or item while someone else writes to it."""
ITEMS_PER_BATCH, BYTES_PER_BATCH = 200, 4_000_000
MAX_PROBLEMS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_Lacking = dict[CheckpointKey, tuple[bool, set[Task]]]
"""What a target lacks, by checkpoint: True if it lacks the checkpoint itself, and the tasks whose writes it lacks."""


@dataclass
class Report:
    """Progress and result of `migrate`."""

    threads: int = 0
    """Threads examined so far."""
    total: int = 0
    """Threads to examine in all."""
    moved: int = 0
    """Threads of which the target had nothing."""
    completed: int = 0
    """Threads of which the target had a part."""
    unchanged: int = 0
    """Threads of which the target had everything."""
    checkpoints: int = 0
    """Checkpoints that were written, or would be with `dry_run`."""
    writes: int = 0
    """Written groups of pending writes: the regular ones of a task, or one to a special channel."""
    compared: int = 0
    """Checkpoints that were read again and compared in full."""
    seconds: float = 0.0
    conflicts: list[str] = field(default_factory=list)
    """Threads that differ in the target, each with the difference. They were not changed."""
    failed: list[str] = field(default_factory=list)
    """Threads that could not be moved, or did not arrive as they were, each with the reason."""


@dataclass
class ItemsReport:
    """Progress and result of `migrate_items`."""

    items: int = 0
    """Items examined so far."""
    written: int = 0
    """Items that the target did not have. With `dry_run` these, and the next, would be written."""
    replaced: int = 0
    """Items that replaced others in the target, as `replace` allows."""
    unchanged: int = 0
    """Items that the target had with the same value."""
    expired: int = 0
    """Items whose deadline has passed. They were not written."""
    conflicts: int = 0
    """Items that have another value in the target. They were not written."""
    failed: int = 0
    """Items that cannot be read or stored."""
    problems: list[str] = field(default_factory=list)
    """The first 1,000 conflicts and the first 1,000 failures, each with the reason."""
    seconds: float = 0.0


Replace = Literal["older", "all"]
_R = TypeVar("_R", Report, ItemsReport)


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
    """Copy threads: all, those that are named, or those whose names begin with a prefix. The source is not changed.

    What the target already has is not written again. If someone writes to a thread during the copy, the thread arrives
    as it was at some moment; run the migration again when nobody writes. Nobody may use the threads in the target
    during the copy.

    Args:
        source: A saver with synchronous methods, or a source from `opened`. A saver's values pass through its
            serializer and the target's. `opened` leaves their bytes as they are. For savers of
            `langgraph-checkpoint-redis`, and for a `ValkeySaver`, the keys themselves are read.
        target: A saver, or a target from `opened`.
        threads: Names of the threads to move. A thread that the source lacks counts as failed.
        thread_prefix: Beginning of the names of the threads to move.
        sample: Number of checkpoints of each moved thread to read again and compare in full: the newest, and others at
            random.
        dry_run: True to write nothing, and count what would be written.
        progress: Called with the report after each checkpoint and each thread.

    Returns:
        The counts, with the threads that conflict and those that failed.

    Raises:
        ValueError: `sample` is negative, or both `threads` and `thread_prefix` are given. Nothing was read.
        TypeError: Source or target is neither a saver nor from `opened`, or `threads` is not a collection of texts.
        EndpointError: Source or target failed; or the source has no thread, but its server has some under another
            prefix, or of another package's saver. What was moved stays; run it again.
    """
    if sample < 0:
        raise ValueError(
            f"sample={shown(sample)}: write how many checkpoints of each thread to compare; 0 compares none"
        )
    there, here = as_endpoint("source", source), as_endpoint("target", target)
    if isinstance(there, ForeignSource):
        there.decode(objects=isinstance(target, BaseCheckpointSaver))
    if threads is None:
        every = set(there.threads())
        if not every:
            check_empty(there)
        names = sorted(name for name in every if name.startswith(thread_prefix))
    else:
        names = _named(threads, thread_prefix)
    report = Report(total=len(names))
    tell = progress or (lambda _: None)
    moves = (_Move(there, here, name, report, tell, sample, dry_run, threads is not None).run for name in names)
    return _run(moves, report, tell)


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
    """Run `migrate` in a worker thread, so that the event loop goes on.

    Savers for asyncio are used on the loop that they belong to. If the caller is cancelled, the migration ends after
    the current checkpoint, and then the cancellation goes on.

    Args:
        source: As in `migrate`. A saver for asyncio must have synchronous methods that work in other OS threads, as
            ours have.
        target: As in `migrate`, with the same condition.
        threads: As in `migrate`.
        thread_prefix: As in `migrate`.
        sample: As in `migrate`.
        dry_run: As in `migrate`.
        progress: As in `migrate`. It is called in the worker thread.

    Returns:
        The same as `migrate`.

    Raises:
        ValueError, TypeError, EndpointError: As in `migrate`.
    """
    stopped = threading.Event()

    def watched(report: Report) -> None:
        if progress is not None:
            progress(report)
        if stopped.is_set():
            raise _Stopped

    options = {"threads": threads, "thread_prefix": thread_prefix, "sample": sample, "dry_run": dry_run}
    work = partial(migrate, source, target, **options, progress=watched)  # type: ignore[arg-type]
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait([running])
        running.exception()  # retrieved, so that asyncio does not log it
        raise


class _Stopped(BaseException):
    """Ends a migration whose caller was cancelled."""


def migrate_items(
    source: Items,
    target: Items,
    *,
    namespace: tuple[str, ...] = (),
    replace: Replace | None = None,
    ttl: timedelta | None = None,
    dry_run: bool = False,
    progress: Callable[[ItemsReport], None] | None = None,
) -> ItemsReport:
    """Copy the items of a store: all, or those of a namespace and its children. The source is not changed.

    The copies keep `created_at`, `updated_at` and the rest of their TTL. An item that the target has with the same
    value is not written. Vectors are not copied.

    Args:
        source: A source from `opened_store`.
        target: A target from `opened_store`.
        namespace: Labels that the namespaces of the items begin with.
        replace: Decides about an item of which the target has another value. None leaves the target's item, and reports
            a conflict. `"older"` replaces an item that was put earlier than the source's. `"all"` replaces it.
        ttl: TTL of the copies from now on, instead of the rest of their own.
        dry_run: True to write nothing, and count what would be written.
        progress: Called with the report after each batch.

    Returns:
        The counts, with the conflicts and the failures.

    Raises:
        ValueError: `replace` has another value. Nothing was read.
        EndpointError: Source or target failed. What was moved stays; run it again.
    """
    if replace not in (None, "older", "all"):
        raise ValueError(f"replace={shown(replace)}: write 'older', 'all', or None")
    report = ItemsReport()
    move = _ItemsMove(target, replace, ttl, dry_run, report)
    batches = _batches(move.readable(source.items(namespace)))
    return _run((partial(move.run, batch) for batch in batches), report, progress or (lambda _: None))


def _run(moves: Iterable[Callable[[], None]], report: _R, progress: Callable[[_R], None]) -> _R:
    """Run the moves one after the other, and report after each."""
    started = time.monotonic()
    for move in moves:
        move()
        report.seconds = time.monotonic() - started
        progress(report)
    return report


# -- threads


def _named(threads: Collection[str], prefix: str) -> list[str]:
    names = set(threads)
    if isinstance(threads, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"threads={shown(threads)}: write a list of the names of threads, such as ['user-1']")
    if prefix:
        raise ValueError(f"threads= and thread_prefix={shown(prefix)}: give one of the two")
    return sorted(names)


@dataclass
class _Move:
    """The move of one thread."""

    source: Source
    target: Target
    thread: str
    report: Report
    progress: Callable[[Report], None]
    sample: int
    dry_run: bool
    is_named: bool
    """True if the caller named the thread, so that it has to exist."""

    def __post_init__(self) -> None:
        self._versions = Versions(texts=self.target.text_versions)
        self._seen: set[CheckpointKey] = set()
        """Checkpoints whose channel versions are known."""
        self._sample: dict[CheckpointKey, Record] = {}
        """Written checkpoints to compare."""

    def run(self) -> None:
        """Move the thread. The report names it if that fails."""
        try:
            self._move()
        except EndpointError:
            raise
        except RedisSaverError as error:
            self.target.abandon(self.thread)
            self.report.failed.append(f"thread {shown(self.thread)}: {error}")
        self.report.threads += 1

    def _move(self) -> None:
        report, had, lacked = self.report, False, False
        for attempt in range(ROUNDS):
            there = self.source.outline(self.thread)
            if not there and self.is_named:
                raise ThreadMigrationError(f"{self.source.name} has no such thread")
            has = self.target.outline(self.thread)
            if conflict := _conflict(self.source.name, there, self.target.name, has):
                report.conflicts.append(f"thread {shown(self.thread)}: {conflict}")
                return
            lacking = _lacking_of(there, has, specials=not attempt)
            if not attempt:
                had, lacked = bool(has), bool(lacking)
            if self.dry_run:
                report.checkpoints += sum(whole for whole, _ in lacking.values())
                report.writes += sum(len(tasks) for _, tasks in lacking.values())
            if self.dry_run or not lacking:
                break
            self._copy(there, lacking, _chosen(lacking, self.sample))
        else:
            (_, checkpoint_id), *_ = lacking
            raise ThreadMigrationError(
                f"after {ROUNDS} attempts {self.target.name} still lacks {len(lacking)} of its checkpoints, or their "
                f"writes, such as {shown(checkpoint_id)}; run it again when nothing writes to the thread"
            )
        self._compare()
        report.unchanged += not lacked
        report.completed += lacked and had
        report.moved += lacked and not had

    def _copy(self, there: ThreadOutline, lacking: _Lacking, chosen: set[CheckpointKey]) -> None:
        """Write what is lacking. Earlier checkpoints are read, too, because they show which values the target has."""
        known = self._seen if any(whole for whole, _ in lacking.values()) else there.keys()
        wanted = {key: there[key] for key in sorted(there, key=_age) if key in lacking or key not in known}
        for stored in self.source.records(self.thread, wanted):
            saved, new = self._versions.seen(stored)
            self._seen.add(saved.key)
            if saved.key not in lacking:
                continue
            if (own := saved.checkpoint.get("id")) != saved.key[1]:  # the target would store it under that
                raise ThreadMigrationError(
                    f"{saved} of {self.source.name} is damaged: it has the id {shown(own)} in itself"
                )
            whole, tasks = lacking[saved.key]
            self.target.write(self.thread, saved, new if whole else None, tasks)
            if saved.key in chosen:
                self._sample[saved.key] = saved
            self.report.checkpoints += whole
            self.report.writes += len(tasks)
            self.progress(self.report)

    def _compare(self) -> None:
        """Read the sample again, and compare it with what was written."""
        entries = {key: Entry(saved.parent, {}) for key, saved in self._sample.items()}
        for stored in self.target.records(self.thread, entries) if entries else ():
            saved = self._sample.pop(stored.key)
            if differs := difference(saved, stored, self.target.as_stored):
                raise ThreadMigrationError(
                    f"{saved} is not the same in {self.target.name}: {differs}. What is there is kept; delete the "
                    "thread there before you move it again"
                )
            self.report.compared += 1
        for saved in self._sample.values():
            raise ThreadMigrationError(
                f"{saved} was written to {self.target.name}, and is not there any more: somebody removed it, or it "
                "expired. Run it again"
            )


def _age(key: CheckpointKey) -> tuple[str, str]:
    """Sort checkpoints from the oldest to the newest."""
    return key[1], key[0]


def _conflict(source: str, there: ThreadOutline, target: str, has: ThreadOutline) -> str:
    """Describe where a target contradicts the source. The text is empty if the target has a part of the source."""
    if more := sorted(has.keys() - there.keys(), key=_age):
        return (
            f"{target} has {len(more)} checkpoints that {source} lacks, the newest is {shown(more[-1][1])}; "
            "to copy the thread anew, delete it in the target first"
        )
    for key, entry in has.items():
        name, parent = f"checkpoint {shown(key[1])}", there[key].parent
        if entry.parent != parent:
            return f"the parent of {name} is {shown(parent)} in {source}, {shown(entry.parent)} in {target}"
        if tasks := entry.tasks.keys() - there[key].tasks.keys():
            return f"{target} has pending writes on {name} that {source} lacks, of task {shown(min(tasks)[0])}"
    return ""


def _lacking_of(there: ThreadOutline, has: ThreadOutline, *, specials: bool) -> _Lacking:
    """List what the target lacks, oldest first; with `specials`, also other values in special channels."""
    lacking: _Lacking = {}
    for key in sorted(there, key=_age):
        had, infos = has[key].tasks if key in has else {}, there[key].tasks.items()
        tasks = {task for task, info in infos if task not in had or (specials and info.digest != had[task].digest)}
        if key not in has or tasks:
            lacking[key] = (key not in has, tasks)
    return lacking


def _chosen(lacking: _Lacking, sample: int) -> set[CheckpointKey]:
    """Choose the checkpoints to compare in full: the newest, and others at random."""
    *others, newest = lacking
    return {newest, *random.sample(others, min(sample - 1, len(others)))} if sample else set()


class Versions:
    """The channel versions of a thread, from its oldest checkpoint on. Most savers store each version once in a thread.

    A saver that stores all values with each checkpoint, such as `SqliteSaver`, may have several values of one version:
    a node changed the state in place, or two branches made the same version. All values except the first get a version
    of their own, just above.
    """

    def __init__(self, *, texts: bool) -> None:
        """Start without versions. They become texts if `texts` is True, because the target continues them as texts."""
        self._texts = texts
        self._values: dict[tuple[str, str, str | float], bytes] = {}
        """Fingerprints of values, by namespace, channel and version."""

    def seen(self, stored: Record) -> tuple[Record, ChannelVersions]:
        """Return the checkpoint as the target stores it, and its versions whose values are new.

        Raises:
            ThreadMigrationError: A value has no version.
        """
        saved = with_text_versions(stored) if self._texts else stored
        versions, others, new = saved.checkpoint["channel_versions"], dict[str, str](), ChannelVersions()
        for channel, value in saved.checkpoint["channel_values"].items():
            if channel not in versions:
                raise ThreadMigrationError(
                    f"{saved} has a value of channel {shown(channel)} without a version, so other savers cannot "
                    "store it"
                )
            version, digest = versions[channel], fingerprint(value) if self._texts else b""
            if self._values.get((saved.key[0], channel, version), digest) != digest:
                version = others[channel] = f"{version}.~{digest.hex()}"
            if (saved.key[0], channel, version) not in self._values:
                self._values[saved.key[0], channel, version] = digest
                new[channel] = version

        def replaced(channel: str, version: str | float) -> str | float:
            return others[channel] if channel in others and version == versions[channel] else version

        return (_with_versions(saved, replaced) if others else saved), new


def with_text_versions(saved: Record) -> Record:
    """Turn channel versions into texts that sort in the same order. LangGraph cannot compare a number with a text."""
    return _with_versions(saved, lambda _, version: _text(version))


def _with_versions(saved: Record, changed: Callable[[str, str | float], Any]) -> Record:
    """Change the versions of a checkpoint, also those that its nodes have seen."""

    def each(versions: Mapping[str, str | float]) -> dict[str, Any]:
        return {channel: changed(channel, version) for channel, version in versions.items()}

    checkpoint, seen = saved.checkpoint.copy(), saved.checkpoint.get("versions_seen") or {}
    checkpoint["channel_versions"] = each(checkpoint["channel_versions"])
    checkpoint["versions_seen"] = {node: each(versions) for node, versions in seen.items()}
    return saved._replace(checkpoint=checkpoint)


def _text(version: str | float) -> str:
    if isinstance(version, str):
        return version
    whole, _, fraction = format(Decimal(repr(version)), "f").partition(".")
    return f"{int(whole):032}.{fraction or '0'}"


# -- items


def _batches(items: Iterator[StoredItem]) -> Iterator[list[StoredItem]]:
    """Group items into batches without repetitions, because a forged file may have an item twice."""
    batch: dict[tuple[tuple[str, ...], str], StoredItem] = {}
    size = 0
    for item in items:
        name = item.namespace, item.key
        if name in batch or len(batch) >= ITEMS_PER_BATCH or size > BYTES_PER_BATCH:
            yield list(batch.values())
            batch, size = {}, 0
        batch[name] = item
        size += item.size
    if batch:
        yield list(batch.values())


@dataclass
class _ItemsMove:
    """The move of items to a target."""

    target: Items
    replace: Replace | None
    ttl: timedelta | None
    dry_run: bool
    report: ItemsReport

    def readable(self, items: Iterable[ItemOrError]) -> Iterator[StoredItem]:
        """Iterate over the items that can be read. The report names the others."""
        for item in items:
            self.report.items += 1
            if isinstance(item, RedisSaverError):
                self._fail(str(item))
            elif isinstance(item.value, Opaque) or (
                isinstance(item.value, dict) and all(isinstance(key, str) for key in item.value)
            ):
                yield item
            else:
                self._fail(
                    f"{item_name(item)}: its value is no dict whose keys are str, so no store can read it. "
                    "Other items are moved all the same"
                )

    def run(self, batch: Sequence[StoredItem]) -> None:
        """Move a batch."""
        now = int(time.time() * 1000)
        if self.ttl is not None:
            ttl = self.ttl // timedelta(milliseconds=1)
            batch = [item._replace(ttl=ttl, expires_at=now + ttl) for item in batch]
        left = [item for item in batch if not item.expires_at or item.expires_at > now]
        self.report.expired += len(batch) - len(left)
        for _ in range(ROUNDS):
            pairs = zip(left, self.target.look_up(left), strict=True)
            left = self._write([(item, stored) for item, stored in pairs if self._is_wanted(item, stored)])
            if not left:
                return
        for item in left:
            self._fail(f"{item_name(item)}: somebody writes it in {self.target.name} all the time; run it again later")

    def _write(self, wanted: Sequence[tuple[StoredItem, Any]]) -> list[StoredItem]:
        """Write items over what the target has of them, and count them. Return those to look up again."""
        rows = [(item, stored.updated_at if stored else 0) for item, stored in wanted]
        changed, failed = ([], []) if self.dry_run or not rows else self.target.write(rows)
        for _, error in failed:
            self._fail(str(error))
        left = {(item.namespace, item.key) for item in (*changed, *(item for item, _ in failed))}
        expected = [number for item, number in rows if (item.namespace, item.key) not in left]
        self.report.replaced += sum(map(bool, expected))
        self.report.written += expected.count(0)
        return changed

    def _is_wanted(self, item: StoredItem, stored: ItemOrError | None) -> bool:
        """True if the item should be written. Otherwise the report says why not."""
        if stored is None:
            return True
        if isinstance(stored, RedisSaverError):
            self._fail(str(stored))
        elif same_value(item.value, stored.value):
            self.report.unchanged += 1
        elif self.replace == "all" or (self.replace == "older" and stored.updated_at < item.updated_at):
            return True
        else:
            self.report.conflicts += 1
            times = f"put at {_time(stored.updated_at)}, and this one at {_time(item.updated_at)}"
            text = f"conflict: {item_name(item)}: {self.target.name} has another value, {times}"
            self.report.problems += [text] if self.report.conflicts <= MAX_PROBLEMS else []
        return False

    def _fail(self, text: str) -> None:
        self.report.failed += 1
        self.report.problems += [f"failed: {text}"] if self.report.failed <= MAX_PROBLEMS else []


def _time(microseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        return f"{microseconds} microseconds since 1970"
