"""Removing checkpoints: prune, delete_for_runs.

A plan is made from the links of all checkpoints of a thread, then carried out in steps, each one a script that removes
some checkpoints, their writes, and the values nobody else holds. A step is done only while the thread has not been put to
since the plan was made; else the plan is made anew. So a value that a put has just come to rely on never goes, and a prune
that dies in the middle leaves a sound thread that the next prune goes on with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from redis_saver import codec, names, scripts
from redis_saver.context import Context
from redis_saver.errors import ThreadBusy
from redis_saver.listing import collect, scan_threads
from redis_saver.reading import walk
from redis_saver.requests import Batch, Call, Command, Operation

LINKS_A_PAGE = 500
REMOVED_A_STEP = 50
ATTEMPTS = 20
THREADS_A_BATCH = 500

Place = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""


class Pruned(NamedTuple):
    """What prune removed (or, with dry_run, would remove). `bytes` counts headers, values and writes as stored."""

    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0
    bytes: int = 0

    def plus(self, other: Iterable[int]) -> Pruned:
        """The sum."""
        return Pruned(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Survey(NamedTuple):
    """The links of a thread's checkpoints, in the order of (namespace, id), at a revision."""

    revision: bytes
    links: dict[Place, codec.Links]


class Retention(NamedTuple):
    """What prune keeps, checked: the newest `keep_last` of each namespace, and all younger than `older_than`."""

    keep_last: int
    older_than: timedelta | None


def retention(strategy: str, keep_last: int | None, older_than: timedelta | None) -> Retention | None:
    """Check prune's arguments; None where all is to go.

    Raises:
        TypeError, ValueError: an argument makes no sense; the message says which and why.
    """
    if strategy == "delete":
        if keep_last is not None or older_than is not None:
            raise ValueError("strategy='delete' removes whole threads; keep_last and older_than go with 'keep_latest'")
        return None
    if strategy != "keep_latest":
        raise ValueError(f"strategy={strategy!r} is unknown; known are 'keep_latest' and 'delete'")
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise ValueError(f"keep_last={keep_last!r}: a number of checkpoints, 1 or more; strategy='delete' removes all")
    if older_than is not None and not isinstance(older_than, timedelta):
        raise TypeError(f"older_than={older_than!r}: a timedelta")
    return Retention(keep_last or 1, older_than)


def prune(context: Context, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Operation[Pruned]:
    """Prune some threads, one after the other."""
    total = Pruned()
    for thread in thread_ids:
        if kept is None:
            keys = context.keyspace.keys(thread)
            total = total.plus((yield Call(scripts.WIPE, keys, (b"1" if dry_run else b"0",))))
        else:
            total = total.plus((yield from _prune_thread(context, thread, kept, dry_run)))
    return total


def delete_for_runs(context: Context, run_ids: Sequence[str]) -> Operation[None]:
    """Remove the checkpoints of some runs, with their writes, in every thread."""
    if not run_ids:
        return
    runs = set(run_ids)
    members = [names.run(run) for run in run_ids]
    threads = list(dict.fromkeys((yield from collect(scan_threads(context)))))
    for start in range(0, len(threads), THREADS_A_BATCH):
        batch = threads[start : start + THREADS_A_BATCH]
        indexes = [context.keyspace.keys(thread).index_key for thread in batch]
        replies = yield Batch([Command(("ZMSCORE", index, *members)) for index in indexes])
        for thread, scores in zip(batch, replies, strict=True):
            if any(score is not None for score in scores):
                yield from _remove(context, thread, lambda survey: _of_runs(survey, runs))


def _of_runs(survey: Survey, runs: set[str]) -> set[Place]:
    return {place for place, links in survey.links.items() if links.run in runs}


def survey(context: Context, thread: str) -> Operation[Survey | None]:
    """Read the links of a thread; None where there is no such thread."""
    keys = context.keyspace.keys(thread)
    links: dict[Place, codec.Links] = {}
    lower, revision = b"[c", None
    while True:
        page = yield Call(scripts.SURVEY, keys, (lower, LINKS_A_PAGE))
        if page is None:
            return None
        revision = revision or page[0]
        for member, head in zip(page[1::2], page[2::2], strict=True):
            ns, checkpoint_id = names.components(member[1:])
            links[ns, checkpoint_id] = codec.decode_links(head)
            lower = b"(" + member
        if len(page) < 1 + 2 * LINKS_A_PAGE:
            return Survey(revision, links)


def write_members(context: Context, thread: str) -> Operation[list[bytes]]:
    """The members of all pending writes of a thread."""
    index, found, lower = context.keyspace.keys(thread).index_key, list[bytes](), b"[w"
    while True:
        page = yield Command(("ZRANGEBYLEX", index, lower, b"(x", "LIMIT", 0, LINKS_A_PAGE))
        found += page
        if len(page) < LINKS_A_PAGE:
            return found
        lower = b"(" + page[-1]


def _prune_thread(context: Context, thread: str, kept: Retention, dry_run: bool) -> Operation[Pruned]:
    for _ in range(ATTEMPTS):
        seen = yield from survey(context, thread)
        if seen is None:
            return Pruned()
        keep = _kept(seen, kept)
        keep |= yield from _needed_by_delta_channels(context, thread, seen, keep)
        strays = yield from _stray_writes(context, thread, seen)
        done = yield from _carry_out(context, thread, seen, set(seen.links) - keep, strays, dry_run)
        if done is not None:
            return done
    raise _busy(thread)


def _remove(context: Context, thread: str, choose: Callable[[Survey], set[Place]]) -> Operation[None]:
    for _ in range(ATTEMPTS):
        seen = yield from survey(context, thread)
        if seen is None or (yield from _carry_out(context, thread, seen, choose(seen), (), False)) is not None:
            return
    raise _busy(thread)


def _busy(thread: str) -> ThreadBusy:
    return ThreadBusy(
        f"thread {thread!r} was put to during each of {ATTEMPTS} attempts; what is done stays done, try again"
    )


def _kept(seen: Survey, kept: Retention) -> set[Place]:
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


def _needed_by_delta_channels(context: Context, thread: str, seen: Survey, keep: set[Place]) -> Operation[set[Place]]:
    """The ancestors without which a channel of a kept checkpoint could not be rebuilt.

    A `DeltaChannel` stores no value in most checkpoints: its value is the nearest ancestor's stored one and the writes
    since. From here it looks like any channel that is empty now; but a channel that was emptied has no writes between
    its last value and now, for they would have given it a value. So: what is needed of a channel without a value reaches
    back to its nearest stored value, if there are writes to it on the way (or at that ancestor).
    """
    needed: set[Place] = set()
    for ns, checkpoint_id in sorted(keep):
        links = seen.links[ns, checkpoint_id]
        if not links.parent or (ns, links.parent) in keep:
            continue  # what the parent needs is found from the parent
        empty = [codec.channel_of(entry)[0] for entry in codec.own_entries(links.entries) if entry[:1] == codec.ABSENT]
        if not empty:
            continue
        ancestors = yield from walk(context, thread, ns, checkpoint_id, empty)
        for channel in empty:
            written = [i for i, ancestor in enumerate(ancestors) if any(w.channel == channel for w in ancestor.writes)]
            if not written:
                continue
            seeded = [i for i, ancestor in enumerate(ancestors) if channel in ancestor.seeds]
            needed.update((ns, ancestor.checkpoint_id) for ancestor in ancestors[: max(written + seeded) + 1])
    return needed & set(seen.links)


def _stray_writes(context: Context, thread: str, seen: Survey) -> Operation[list[bytes]]:
    """Writes of checkpoints that are not there and are older than what is kept: nothing will ever read them.

    Those of a checkpoint newer than its namespace's newest belong to one whose put is still on its way.
    """
    newest: dict[str, str] = {}
    for ns, checkpoint_id in seen.links:
        newest[ns] = max(newest.get(ns, ""), checkpoint_id)
    strays = []
    for member in (yield from write_members(context, thread)):
        ns, checkpoint_id = names.components(member[1:])[:2]
        if (ns, checkpoint_id) not in seen.links and checkpoint_id < newest.get(ns, ""):
            strays.append(member)
    return strays


def _carry_out(
    context: Context, thread: str, seen: Survey, victims: set[Place], strays: Sequence[bytes], dry_run: bool
) -> Operation[Pruned | None]:
    """Remove the victims step by step, oldest first; None as soon as the thread turns out to have been put to."""
    held = {
        names.blob(ns, entry)
        for (ns, one), links in seen.links.items()
        if (ns, one) not in victims
        for entry in links.entries
    }
    runs = {links.run for place, links in seen.links.items() if place not in victims}
    gone = {links.run for place, links in seen.links.items() if place in victims} - runs - {""}
    order = sorted(victims, key=lambda place: place[1])
    last_holder = {
        names.blob(place[0], entry): position
        for position, place in enumerate(order)
        for entry in seen.links[place].entries
    }
    freed: dict[int, list[bytes]] = defaultdict(list)
    for blob, position in last_holder.items():
        if blob not in held:
            freed[position // REMOVED_A_STEP].append(blob)

    keys, total = context.keyspace.keys(thread), Pruned()
    steps = max(-(-len(order) // REMOVED_A_STEP), 1 if strays else 0)
    for step in range(steps):
        checkpoints = [names.checkpoint(*place) for place in order[step * REMOVED_A_STEP : (step + 1) * REMOVED_A_STEP]]
        last = step == steps - 1
        writes = list(strays) if last else []
        members = [names.run(run) for run in gone] if last else []
        head = (seen.revision, b"1" if dry_run else b"0", len(checkpoints), len(freed[step]), len(writes))
        removed = yield Call(scripts.REMOVE, keys, (*head, *checkpoints, *freed[step], *writes, *members))
        if removed is None:
            return None
        total = total.plus(removed)
    return total
