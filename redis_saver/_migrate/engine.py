"""The engine of migrations. It compares source and target, writes missing data, and compares again.

So it skips data that the target has already, and you can run an interrupted migration again to continue it.

Each thread is moved alone: the engine compares outlines of source and target, and writes missing checkpoints, oldest
first. If the target has more than the source, or other data, the thread is a conflict and is not changed. Items are
moved in batches. A write names the item that it replaces, so no other writer's item is lost. Memory holds the names of
all threads and the outline of one, or a batch of items.
"""

from __future__ import annotations

import random
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
from redis_saver._common.display import counted, shown
from redis_saver._migrate.endpoints import (
    BOTH_TIERS,
    Endpoint,
    Entry,
    ItemOrError,
    Items,
    Source,
    Target,
    ThreadOutline,
    item_name,
)
from redis_saver._migrate.foreign import ForeignSource
from redis_saver._migrate.savers import as_endpoint, check_empty
from redis_saver._migrate.stores import as_items, same_value
from redis_saver._storage.opaque import Opaque, fingerprint
from redis_saver._store.store import Store
from redis_saver._store.writing import StoredItem
from redis_saver.errors import EndpointError, RedisSaverError, ThreadMigrationError

SAMPLE = 2
"""Default number of checkpoints per thread that are compared in full."""
ROUNDS = 4
"""Maximum number of attempts per thread or item while someone else writes to it."""
ITEMS_PER_BATCH, BYTES_PER_BATCH = 200, 4_000_000
MAX_PROBLEMS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_Lacking = dict[CheckpointKey, tuple[bool, set[Task]]]
"""By checkpoint: True if the target lacks the checkpoint itself, and the tasks whose writes it lacks."""


@dataclass
class Report:
    """Progress and result of `migrate`."""

    threads: int = 0
    """Threads examined so far."""
    total: int = 0
    """Total number of threads to examine."""
    moved: int = 0
    """Threads that the target lacked."""
    completed: int = 0
    """Threads that were incomplete in the target."""
    unchanged: int = 0
    """Threads that were complete in the target."""
    checkpoints: int = 0
    """Written checkpoints. With `dry_run`: checkpoints to write."""
    writes: int = 0
    """Written groups of pending writes: the regular writes of a task, or one write to a special channel."""
    compared: int = 0
    """Checkpoints that were read again and compared in full."""
    seconds: float = 0.0
    conflicts: list[str] = field(default_factory=list)
    """Threads that differ in the target, each with the difference. They were not changed."""
    failed: list[str] = field(default_factory=list)
    """Threads that could not be moved unchanged, each with the reason. First, if the source is the hot tier of a
    `TieredSaver` and no threads were named: that threads may be missing."""


@dataclass
class ItemsReport:
    """Progress and result of `migrate_items`."""

    items: int = 0
    """Items examined so far."""
    written: int = 0
    """Written items that the target lacked. With `dry_run`: items to write."""
    replaced: int = 0
    """Items that replaced others in the target. With `dry_run`: items to replace."""
    unchanged: int = 0
    """Items that the target has with the same value."""
    expired: int = 0
    """Expired items. They were not written."""
    conflicts: int = 0
    """Items with another value in the target. They were not written."""
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
    plain: bool = False,
    dry_run: bool = False,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Copy all threads, named threads, or threads whose names begin with a prefix. The source is not changed.

    Data that the target has already is not written again. If someone writes to a thread during the copy, the target
    gets its state at some moment. Run the migration again when nobody writes. Nobody may use the threads in the target
    during the copy.

    It blocks. On an event loop, write `await asyncio.to_thread(migrate, source, target)`. If `progress` raises an
    error, the migration ends after the current checkpoint.

    Args:
        source: A saver with synchronous methods, or a source from `opened`. In a worker thread these methods must work
            on any OS thread, as ours do. A saver's values pass through its serializer and the target's. `opened` keeps
            their bytes. For savers of `langgraph-checkpoint-redis`, and for a `ValkeySaver`, the engine reads the keys
            directly. Of two tiers, pass the saver over both: of its hot tier alone, threads that have only a part
            there fail, and others may be missing.
        target: A saver, or a target from `opened`. Of two tiers, the saver over both.
        threads: Names of the threads to copy. A thread that the source lacks counts as failed.
        thread_prefix: Beginning of the names of the threads to copy.
        sample: Number of checkpoints per copied thread to read again and compare in full: the newest one, and others at
            random.
        plain: True to copy threads that are encrypted with keys of ours to a target that stores them plain. By default
            that raises `EndpointError`.
        dry_run: True to count the threads and checkpoints to copy, and write nothing.
        progress: Called with the report after each checkpoint and each thread.

    Returns:
        The counts, and the threads that conflict or failed.

    Raises:
        ValueError: `sample` is negative, or both `threads` and `thread_prefix` are given. Nothing was read.
        TypeError: Source or target is neither a saver nor from `opened`, or `threads` is not a collection of str.
        EndpointError: Source or target failed. Or the source has no thread, but its server has threads under another
            prefix, or of another package's saver. Run the migration again to continue. Or an encrypted thread would
            become plain, without `plain`. Then nothing was written.
    """
    if sample < 0:
        raise ValueError(f"sample={shown(sample)}: write a number of checkpoints per thread; 0 compares none")
    reader, writer = as_endpoint("source", source), as_endpoint("target", target)
    if isinstance(reader, ForeignSource):
        reader.decode(objects=isinstance(target, BaseCheckpointSaver))
    if threads is None:
        all_names = set(reader.threads())
        if not all_names:
            check_empty(reader)
        names = sorted(name for name in all_names if name.startswith(thread_prefix))
    else:
        names = _checked_names(threads, thread_prefix)
    _check_keys(reader, writer, "thread", partial(reader.first_encrypted, names), plain=plain)
    report = Report(total=len(names))
    if threads is None and (count := reader.in_cold()):
        report.failed.append(
            f"threads that only a cold tier has: {reader.name} has {counted(count, 'thread')} that a cold tier has, "
            f"too. That may have others, which are missing. {BOTH_TIERS}"
        )
    show = progress or (lambda _: None)
    moves = (_Move(reader, writer, name, report, show, sample, dry_run, threads is not None).run for name in names)
    return _run(moves, report, show)


def migrate_items(
    source: Store[Any] | Items,
    target: Store[Any] | Items,
    *,
    namespace: tuple[str, ...] = (),
    replace: Replace | None = None,
    ttl: timedelta | None = None,
    plain: bool = False,
    dry_run: bool = False,
    progress: Callable[[ItemsReport], None] | None = None,
) -> ItemsReport:
    """Copy all items of a store, or those of a namespace and its children. The source is not changed.

    The copies keep `created_at`, `updated_at` and their remaining TTL. An item that the target has with the same value
    is not written. Vectors are not copied.

    Args:
        source: A `RedisStore` or `AsyncRedisStore`, or a source from `opened_store`. A store's values pass through its
            serializer and the target's. `opened_store` keeps their bytes. With an asyncio store, call this on an OS
            thread that runs no event loop.
        target: A store, or a target from `opened_store`.
        namespace: First labels of the namespaces to copy.
        replace: What to do if the target has another value. None keeps the target's item and reports a conflict.
            `"older"` replaces it if it was put before the source's item. `"all"` always replaces it.
        ttl: New TTL of the copies, instead of their remaining TTL.
        plain: True to copy items that are encrypted with keys of ours to a target that stores them plain. By default
            that raises `EndpointError`.
        dry_run: True to count the items to write, and write nothing.
        progress: Called with the report after each batch.

    Returns:
        The counts, the conflicts and the failures.

    Raises:
        ValueError: `replace` has another value. Nothing was read.
        TypeError: Source or target is neither a `RedisStore` nor from `opened_store`.
        EndpointError: Source or target failed. Run the migration again to continue. Or an encrypted item would become
            plain, without `plain`. Then nothing was written.
    """
    if replace not in (None, "older", "all"):
        raise ValueError(f"replace={shown(replace)}: write 'older', 'all', or None")
    reader, writer = as_items("source", source), as_items("target", target)
    reader.refuse_copies(namespace)
    writer.refuse_copies(namespace)
    _check_keys(reader, writer, "partition", partial(reader.first_encrypted, namespace), plain=plain)
    report = ItemsReport()
    move = _ItemsMove(writer, replace, ttl, dry_run, report)
    batches = _batches(move.readable(reader.items(namespace)))
    return _run((partial(move.run, batch) for batch in batches), report, progress or (lambda _: None))


def _check_keys(
    source: Endpoint, target: Endpoint, what: str, first_encrypted: Callable[[], str | None], *, plain: bool
) -> None:
    """Refuse a migration that lacks the keys for what is encrypted, or would store it plain.

    Raises:
        EndpointError: There is something encrypted.
    """
    if source.has_keys and (plain or target.encrypts):
        return
    if (encrypted := first_encrypted()) is not None:
        if not source.has_keys:
            raise EndpointError(
                f"{what} {shown(encrypted)} of {source.name} is encrypted, and there are no keys. Nothing was written. "
                "Write --keys-file FILE or set REDIS_SAVER_KEYS, in Python encryption="
            )
        raise EndpointError(
            f"{what} {shown(encrypted)} of {source.name} is encrypted, and {target.name} would store it plain. Nothing "
            "was written. If that is wanted, add --plain, in Python plain=True. A target in Redis encrypts with keys"
        )


def _run(moves: Iterable[Callable[[], None]], report: _R, progress: Callable[[_R], None]) -> _R:
    """Run the moves one after the other, and report after each."""
    started = time.monotonic()
    for move in moves:
        move()
        report.seconds = time.monotonic() - started
        progress(report)
    return report


# -- threads


def _checked_names(threads: Collection[str], prefix: str) -> list[str]:
    names = set(threads)
    if isinstance(threads, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"threads={shown(threads)}: write a list of thread names, such as ['user-1']")
    if prefix:
        raise ValueError(f"threads= and thread_prefix={shown(prefix)}: pass only one of them")
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
    """True if the caller named the thread. Then it must exist."""

    def __post_init__(self) -> None:
        self._versions = Versions(texts=self.target.text_versions)
        self._seen: set[CheckpointKey] = set()
        """Checkpoints whose channel versions were read."""
        self._sample: dict[CheckpointKey, Record] = {}
        """Written checkpoints to compare in full."""

    def run(self) -> None:
        """Move the thread. A failure goes into the report."""
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
            if not self.source.tier(self.thread).is_whole:
                raise ThreadMigrationError(f"{self.source.name} has only a part, a cold tier the rest. {BOTH_TIERS}")
            has = self.target.outline(self.thread)
            if conflict := _conflict(self.source.name, there, self.target.name, has):
                report.conflicts.append(f"thread {shown(self.thread)}: {conflict}")
                return
            lacking = _lacking_of(there, has, specials=not attempt)
            if has and lacking and self.target.tier(self.thread).in_cold:
                raise ThreadMigrationError(
                    f"{self.target.name} has it, and so has a cold tier, which would not get the rest. In Python, make "
                    "the saver over both tiers the target: migrate(source, TieredSaver(hot, cold))"
                )
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
                f"{self.target.name} still lacks a part of checkpoint {shown(checkpoint_id)}: run it again later"
            )
        self._compare()
        report.unchanged += not lacked
        report.completed += lacked and had
        report.moved += lacked and not had

    def _copy(self, there: ThreadOutline, lacking: _Lacking, chosen: set[CheckpointKey]) -> None:
        """Write missing data. Earlier checkpoints are also read, because they show which values the target has."""
        known = self._seen if any(whole for whole, _ in lacking.values()) else there.keys()
        wanted = {key: there[key] for key in sorted(there, key=_age) if key in lacking or key not in known}
        for stored in self.source.records(self.thread, wanted):
            saved, new = self._versions.seen(stored)
            self._seen.add(saved.key)
            if saved.key not in lacking:
                continue
            if (own_id := saved.checkpoint.get("id")) != saved.key[1]:  # the target would store it under this id
                raise ThreadMigrationError(f"{saved} of {self.source.name} is damaged: its id is {shown(own_id)}")
            whole, tasks = lacking[saved.key]
            self.target.write(self.thread, saved, new if whole else None, tasks)
            if saved.key in chosen:
                self._sample[saved.key] = saved
            self.report.checkpoints += whole
            self.report.writes += len(tasks)
            self.progress(self.report)

    def _compare(self) -> None:
        """Read the sample from the target, and compare it with the source."""
        entries = {key: Entry(saved.parent, {}) for key, saved in self._sample.items()}
        for stored in self.target.records(self.thread, entries) if entries else ():
            saved = self._sample.pop(stored.key)
            if differs := difference(saved, stored, self.target.as_stored):
                raise ThreadMigrationError(
                    f"{saved} differs in {self.target.name}: {differs}. Delete the thread there, and move it again"
                )
            self.report.compared += 1
        for saved in self._sample.values():
            raise ThreadMigrationError(f"{saved} was written to {self.target.name}, and is gone there. Run it again")


def _age(key: CheckpointKey) -> tuple[str, str]:
    """Sort key of checkpoints, oldest first."""
    return key[1], key[0]


def _conflict(source: str, there: ThreadOutline, target: str, has: ThreadOutline) -> str:
    """Describe how the target contradicts the source. Empty if it has only a part of the source."""
    if more := sorted(has.keys() - there.keys(), key=_age):
        lacked = f"{len(more)} checkpoints that {source} lacks, such as {shown(more[-1][1])}"
        return f"{target} has {lacked}. To copy the thread again, delete it there first"
    for key, entry in has.items():
        name, parent = f"checkpoint {shown(key[1])}", there[key].parent
        if entry.parent != parent:
            return f"the parent of {name} is {shown(parent)} in {source}, {shown(entry.parent)} in {target}"
        if tasks := entry.tasks.keys() - there[key].tasks.keys():
            return f"{target} has pending writes on {name} that {source} lacks, of task {shown(min(tasks)[0])}"
    return ""


def _lacking_of(there: ThreadOutline, has: ThreadOutline, *, specials: bool) -> _Lacking:
    """List missing data of the target, oldest first. With `specials`, also list changed values of special channels."""
    lacking: _Lacking = {}
    for key in sorted(there, key=_age):
        had, infos = has[key].tasks if key in has else {}, there[key].tasks.items()
        tasks = {task for task, info in infos if task not in had or (specials and info.digest != had[task].digest)}
        if key not in has or tasks:
            lacking[key] = (key not in has, tasks)
    return lacking


def _chosen(lacking: _Lacking, sample: int) -> set[CheckpointKey]:
    """Choose the checkpoints to compare in full: the newest one, and others at random."""
    *others, newest = lacking
    return {newest, *random.sample(others, min(sample - 1, len(others)))} if sample else set()


class Versions:
    """Channel versions of a thread, from its oldest checkpoint on.

    Most savers store each version of a channel once per thread. `SqliteSaver` stores all values with each checkpoint.
    So one version may have several values: a node changed the state in place, or two branches made the same version.
    All values except the first get a new version, just above the old one.
    """

    def __init__(self, *, texts: bool) -> None:
        """Start without versions. With `texts`, the target's versions are texts, so numbers become texts."""
        self._texts = texts
        self._values: dict[tuple[str, str, str | float], bytes] = {}
        """Fingerprints of values, by namespace, channel and version."""

    def seen(self, stored: Record) -> tuple[Record, ChannelVersions]:
        """Return the checkpoint for the target, and its versions whose values are new.

        Raises:
            ThreadMigrationError: A value has no version.
        """
        saved = with_text_versions(stored) if self._texts else stored
        versions, others, new = saved.checkpoint["channel_versions"], dict[str, str](), ChannelVersions()
        for channel, value in saved.checkpoint["channel_values"].items():
            if channel not in versions:
                raise ThreadMigrationError(f"{saved} has a value of channel {shown(channel)} without a version")
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
    """Turn channel versions into texts in the same order, because LangGraph cannot compare a number with a text."""
    return _with_versions(saved, lambda _, version: _text(version))


def _with_versions(saved: Record, changed: Callable[[str, str | float], Any]) -> Record:
    """Change the versions of a checkpoint, including `versions_seen`."""

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
    """Group items into batches. A batch has an item only once, but a forged file may repeat it."""
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
        """Iterate over readable items. Others go into the report."""
        for item in items:
            self.report.items += 1
            if isinstance(item, RedisSaverError):
                self._fail(str(item))
            elif isinstance(item.value, Opaque) or (
                isinstance(item.value, dict) and all(isinstance(key, str) for key in item.value)
            ):
                yield item
            else:
                self._fail(f"{item_name(item)}: its value is not a dict with str keys. Other items are still moved")

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
            self._fail(f"{item_name(item)}: somebody keeps writing it in {self.target.name}; run it again later")

    def _write(self, wanted: Sequence[tuple[StoredItem, Any]]) -> list[StoredItem]:
        """Write and count items. Return those that changed in the target, to look them up again."""
        rows = [(item, stored.updated_at if stored else 0) for item, stored in wanted]
        not_stored = [] if self.dry_run or not rows else self.target.write(rows)
        for error in [error for _, error in not_stored if error is not None]:
            self._fail(str(error))
        left = {(item.namespace, item.key) for item, _ in not_stored}
        expected = [number for item, number in rows if (item.namespace, item.key) not in left]
        self.report.replaced += sum(map(bool, expected))
        self.report.written += expected.count(0)
        return [item for item, error in not_stored if error is None]

    def _is_wanted(self, item: StoredItem, stored: ItemOrError | None) -> bool:
        """True if the item should be written. Otherwise the reason goes into the report."""
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
            times = f"put at {_time(stored.updated_at)}; the source's was put at {_time(item.updated_at)}"
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
