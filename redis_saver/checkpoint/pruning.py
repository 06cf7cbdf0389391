"""Removing checkpoints: prune, delete_for_runs.

A plan is made from the links of all checkpoints of a thread, then carried out in steps, each one a script that removes
some checkpoints, their writes, and the values nobody else holds. A step is done only while nothing was put or removed
since the plan was made; else the plan is made anew. So a value that a put has just come to rely on never goes, and a
removal that dies in the middle leaves a sound thread that the next one goes on with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from langgraph.checkpoint.base.id import UUID

from redis_saver import names
from redis_saver.checkpoint.listing import THREADS_PER_BATCH, collect, scan_threads
from redis_saver.checkpoint.reading import walk
from redis_saver.checkpoint.references import (
    STRAY,
    CheckpointKey,
    ReachableChunks,
    References,
    reachable_chunks,
    read_references,
    write_members,
)
from redis_saver.config import Address
from redis_saver.display import shown
from redis_saver.engine import scripts
from redis_saver.engine.requests import Batch, Call, Operation
from redis_saver.errors import ThreadBusy, ThreadDamaged, decoding, from_text
from redis_saver.storage import chunks as chunked
from redis_saver.storage import header as headers
from redis_saver.storage.context import Context

NAMES_PER_STEP = 125
WRITES_WITH_A_HEADER = 500
"""How many records of a checkpoint's writes `lua/checkpoint/remove.lua` takes with its header."""
ATTEMPTS = 20


class Pruned(NamedTuple):
    """What prune removed (or, with dry_run, would remove). `bytes` counts headers, values and writes as stored."""

    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0
    bytes: int = 0

    def plus(self, other: Iterable[int]) -> Pruned:
        """The sum."""
        return Pruned(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Retention(NamedTuple):
    """What prune keeps, checked: the newest `keep_last` of each namespace, and all younger than `older_than`."""

    keep_last: int
    older_than: timedelta | None


def retention(strategy: str, keep_last: int | None, older_than: timedelta | None) -> Retention | None:
    """Check prune's arguments; None where all is to go.

    Raises:
        TypeError, ValueError: an argument makes no sense; the message says which and why.
    """
    if strategy in {"delete", "delete_all"}:
        if keep_last is not None or older_than is not None:
            raise ValueError(
                f"strategy={shown(strategy)} removes whole threads; keep_last and older_than go with 'keep_latest'"
            )
        return None
    if strategy != "keep_latest":
        raise ValueError(f"strategy={shown(strategy)} is unknown; known are 'keep_latest' and 'delete'")
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise ValueError(
            f"keep_last={shown(keep_last)}: a number of checkpoints, 1 or more; strategy='delete' removes all"
        )
    if older_than is not None and not isinstance(older_than, timedelta):
        raise TypeError(f"older_than={shown(older_than)}: a timedelta")
    return Retention(keep_last or 1, older_than)


def prune(context: Context, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Operation[Pruned]:
    """Prune some threads, one after the other."""
    total = Pruned()
    for thread in thread_ids:
        if kept is None:
            keys = context.keyspace.keys(thread)
            context.chunk_cache.forget(keys.data_key)
            counted = yield Call(scripts.DELETE_THREAD, keys, (b"count" if dry_run else b"sound",))
            with decoding("the counters of thread {!r}", thread):
                total = total.plus(counted)
        else:
            total = total.plus((yield from _prune_thread(context, thread, kept, dry_run)))
    return total


def delete_for_runs(context: Context, run_ids: Sequence[str]) -> Operation[None]:
    """Remove the checkpoints of some runs, with their writes, in every thread."""
    if not run_ids:
        return
    members, unread = [names.run(run) for run in run_ids], list[tuple[str, bytes]]()
    threads = list(dict.fromkeys((yield from collect(scan_threads(context)))))
    for start in range(0, len(threads), THREADS_PER_BATCH):
        batch = threads[start : start + THREADS_PER_BATCH]
        replies = yield Batch([Call(scripts.HAS_RUNS, context.keyspace.keys(thread), members) for thread in batch])
        for thread, has_some in zip(batch, replies, strict=True):
            if isinstance(has_some, bytes):
                unread.append((thread, has_some))
            elif has_some:
                yield from _remove_runs(context, thread, set(members))
    for thread, text in unread:
        error = from_text(text.decode("utf-8", "backslashreplace"), context.keyspace.keys(thread))
        raise error or ThreadDamaged(f"thread {shown(thread)} cannot be read")


def _prune_thread(context: Context, thread: str, kept: Retention, dry_run: bool) -> Operation[Pruned]:
    total = Pruned()
    for _ in range(ATTEMPTS):
        seen = yield from read_references(context, thread)
        if seen is None:
            return total
        with decoding("the names of the checkpoints of thread {!r}", thread):
            keep = _kept(seen, kept)
        needed = keep
        while needed:  # what is kept for others stays in the lists, so it is to be whole too
            needed = (yield from _needed_by_delta_channels(context, thread, seen, needed)) - keep
            keep |= needed
        writes = yield from write_members(context, thread)
        reachable = yield from reachable_chunks(context, thread, seen)
        with decoding("what thread {!r} holds", thread):
            plan = _plan(seen, reachable, set(seen.links) - keep, writes)
            plan += [[stray] for stray in _stray_writes(seen, writes)]
        removed, done = yield from _carry_out(context, thread, seen.revision, plan, dry_run)
        total = removed if dry_run else total.plus(removed)
        if done:
            return total
    raise _busy(thread)


def _remove_runs(context: Context, thread: str, runs: set[bytes]) -> Operation[None]:
    for _ in range(ATTEMPTS):
        seen = yield from read_references(context, thread)
        if seen is None:
            return
        victims = {place for place, links in seen.links.items() if links.run in runs}
        reachable = yield from reachable_chunks(context, thread, seen)
        writes = yield from write_members(context, thread)
        with decoding("what thread {!r} holds", thread):
            plan = _plan(seen, reachable, victims, writes)
        if (yield from _carry_out(context, thread, seen.revision, plan, dry_run=False))[1]:
            return
    raise _busy(thread)


def _busy(thread: str) -> ThreadBusy:
    return ThreadBusy(
        f"thread {shown(thread)} changed during each of {ATTEMPTS} attempts; what is done stays done, try again"
    )


def _kept(seen: References, kept: Retention) -> set[CheckpointKey]:
    by_namespace: dict[str, list[str]] = defaultdict(list)
    for ns, checkpoint_id in seen.links:
        by_namespace[ns].append(checkpoint_id)
    keep = {(ns, one) for ns, ids in by_namespace.items() for one in sorted(ids)[-kept.keep_last :]}
    if kept.older_than is not None:
        horizon = datetime.now(timezone.utc) - kept.older_than
        keep |= {place for place, links in seen.links.items() if not _is_before(links.time, horizon)}
    return keep


def _is_before(time: str, horizon: datetime) -> bool:
    """Whether an ISO 8601 time is before a horizon; a checkpoint that does not tell its time is kept."""
    try:
        moment = datetime.fromisoformat(time.replace("Z", "+00:00"))
    except ValueError:
        return False
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) < horizon


def _needed_by_delta_channels(
    context: Context, thread: str, seen: References, keep: set[CheckpointKey]
) -> Operation[set[CheckpointKey]]:
    """The ancestors without which a channel of one of these checkpoints could not be rebuilt.

    A `DeltaChannel` stores no value in most checkpoints: its value is the nearest ancestor's stored one and the writes
    since. From here it looks like any channel that is empty now; but a channel that was emptied has no writes between
    its last value and now, for they would have given it a value. So: what is needed of a channel without a value reaches
    back to its nearest stored value, if there are writes to it on the way (or at that ancestor).
    """
    needed: set[CheckpointKey] = set()
    for ns, checkpoint_id in sorted(keep):
        links = seen.links[ns, checkpoint_id]
        if not links.parent or (ns, links.parent) in keep:
            continue  # what the parent needs is found from the parent
        with decoding("the channels of a checkpoint of thread {!r}", thread):
            own = headers.own_entries(links.entries)
            empty = [headers.channel_of(entry) for entry in own if entry[:1] == headers.ABSENT]
        if not empty:
            continue
        ancestors, _ = yield from walk(context, Address(thread, ns, checkpoint_id), empty)
        for channel in empty:
            written = [i for i, ancestor in enumerate(ancestors) if any(w.channel == channel for w in ancestor.writes)]
            if not written:
                continue
            seeded = [i for i, ancestor in enumerate(ancestors) if channel in ancestor.seeds]
            needed.update((ns, ancestor.checkpoint_id) for ancestor in ancestors[: max(written + seeded) + 1])
    return needed & set(seen.links)


def _stray_writes(seen: References, writes: Sequence[bytes]) -> list[bytes]:
    """Writes of checkpoints that are not there and are older than their namespace's newest: nothing will ever read them.

    Those of a checkpoint newer than that, or made within the last hour, may belong to one whose put is still on its way.
    """
    newest: dict[str, str] = {}
    for ns, checkpoint_id in seen.links:
        newest[ns] = max(newest.get(ns, ""), checkpoint_id)
    strays = []
    for member in writes:
        ns, checkpoint_id = names.components(member[1:])[:2]
        if (
            (ns, checkpoint_id) not in seen.links
            and checkpoint_id < newest.get(ns, "")
            and not _is_recent(checkpoint_id)
        ):
            strays.append(member)
    return strays


def _is_recent(checkpoint_id: str) -> bool:
    """Whether an id, where it is a UUIDv6 as LangGraph makes them, was made within the last hour."""
    try:
        made = UUID(checkpoint_id)
    except ValueError:
        return False
    since_1582 = datetime.now(timezone.utc) - datetime(1582, 10, 15, tzinfo=timezone.utc)
    return made.version == 6 and made.time / 10 > (since_1582 - timedelta(hours=1)) / timedelta(microseconds=1)


def _plan(
    seen: References, reachable: ReachableChunks, victims: set[CheckpointKey], writes: Sequence[bytes]
) -> list[list[bytes]]:
    """What to remove for each victim, oldest first: the header, and the values and the run it is the last to hold.

    Each is removed in one step, so that a removal that dies leaves nothing that the next one does not find. `remove` takes
    a checkpoint's writes with its header; of more than it takes at once, the rest follow, which nothing reads any more.
    The chunks of values, of which there may be any number, come last; until they are gone, `@gc_roots` tells of them.
    """
    of_checkpoint: dict[CheckpointKey, list[bytes]] = defaultdict(list)
    for member in writes:
        ns, checkpoint_id = names.components(member[1:])[:2]
        of_checkpoint[ns, checkpoint_id].append(member)
    order = sorted(victims, key=lambda place: place[1])
    last_holder: dict[bytes, CheckpointKey] = {}
    for place in [*order, *(place for place in seen.links if place not in victims)]:
        links = seen.links[place]
        last_holder.update((names.blob(place[0], entry[1:]), place) for entry in links.entries)
        last_holder[links.names_chunk] = place
        if links.run:
            last_holder[links.run] = place
    freed: dict[CheckpointKey, list[bytes]] = defaultdict(list)
    live = {name for name, place in last_holder.items() if place not in victims}
    live |= reachable.chunks(live)
    dead = reachable.chunks(name for name, place in last_holder.items() if place in victims)
    dead |= chunked.reachable(reachable.strays, reachable.lists)
    for name, place in last_holder.items():
        if place in victims:
            freed[place].append(name)
    for names_of in freed.values():
        names_of[:] = [name for name in names_of if name not in live]
    heights = _heights(dead - live, reachable.lists)
    gone = sorted(dead - live, key=lambda chunk: -heights[chunk])

    plan: list[list[bytes]] = []
    for place in order:
        plan.append([names.checkpoint(*place), *freed[place]])
        plan += [[member] for member in of_checkpoint[place][WRITES_WITH_A_HEADER:]]
    plan += [[chunk] for chunk in gone]
    return [*plan, [STRAY]] if dead or reachable.strays else plan


def _heights(chunks: Iterable[bytes], lists: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """How many levels of lists each chunk has. A list goes before what is below it, so that one that is there is whole."""
    heights: dict[bytes, int] = {}
    for chunk in chunks:
        path, below = list[bytes](), chunk
        while below in lists and below not in heights:
            path.append(below)
            below = lists[below][: 1 + chunked.DIGEST]
        height = heights.setdefault(below, 0)
        for one in reversed(path):
            height += 1
            heights[one] = height
    return heights


def _steps(plan: Sequence[list[bytes]]) -> Iterator[list[bytes]]:
    """The plan in steps of some hundred names, none of whose chunks is divided."""
    step: list[bytes] = []
    for chunk in plan:
        if step and len(step) + len(chunk) > NAMES_PER_STEP:
            yield step
            step = []
        step = step + chunk
    if step:
        yield step


def _carry_out(
    context: Context, thread: str, revision: bytes, plan: Sequence[list[bytes]], dry_run: bool
) -> Operation[tuple[Pruned, bool]]:
    """Remove what is planned, step by step. Answers what was removed, and whether all is: not where the thread changed."""
    keys, total = context.keyspace.keys(thread), Pruned()
    for step in _steps(plan):
        removed = yield Call(scripts.REMOVE, keys, (revision, b"1" if dry_run else b"0", *step))
        if removed is None:
            return total, False
        with decoding("what was removed of thread {!r}", thread):
            *counted, revision = removed
            total = total.plus(counted)
            if not isinstance(revision, bytes):
                raise TypeError(f"{shown(revision)} is no revision")
    return total, True
