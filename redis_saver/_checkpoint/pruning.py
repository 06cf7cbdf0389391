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

from redis_saver._checkpoint.delta import walk
from redis_saver._checkpoint.listing import THREADS_PER_BATCH, collect, scan_threads
from redis_saver._checkpoint.references import (
    STRAY,
    ReachableChunks,
    References,
    call_members,
    reachable_chunks,
    read_references,
    run_members,
    write_members,
)
from redis_saver._checkpoint.retention import CheckpointKey, Retention, finished_calls, is_call, root_of
from redis_saver._common import names
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Batch, Call, Command, Operation
from redis_saver._storage import chunks as chunked
from redis_saver._storage import header as headers
from redis_saver._storage.context import Context
from redis_saver._storage.header import ABSENT
from redis_saver.errors import ThreadBusy, ThreadDamaged, decoding, from_text

NAMES_PER_STEP = 125
CALLS_PER_PAGE = 200
FORGET_PARENT = b"^"
"""In front of a header's name among what `lua/checkpoint/remove.lua` is to remove: its parent alone."""
WRITES_WITH_A_HEADER = 500
"""How many records of a checkpoint's writes `lua/checkpoint/remove.lua` takes with its header."""
ATTEMPTS = 20


class Pruned(NamedTuple):
    """What prune removed (or, with dry_run, would remove)."""

    checkpoints: int = 0
    """How many checkpoints."""
    writes: int = 0
    """How many pending writes."""
    blobs: int = 0
    """How many values of channels."""
    bytes: int = 0
    """What these took: headers, values and writes as stored."""


def added(one: Pruned, other: Iterable[int]) -> Pruned:
    """The sum of two."""
    return Pruned(*(mine + theirs for mine, theirs in zip(one, other, strict=True)))


def prune(context: Context, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Operation[Pruned]:
    """Prune some threads, one after the other."""
    total = Pruned()
    for thread in thread_ids:
        if kept is None:
            keys = context.keyspace.keys(thread)
            context.chunk_cache.forget(keys.data_key)
            counted = yield Call(scripts.DELETE_THREAD, keys, (b"count" if dry_run else b"sound",))
            with decoding("the counters of thread {!r}", thread):
                total = added(total, counted)
        else:
            total = added(total, (yield from _prune_thread(context, thread, kept, dry_run)))
    return total


def delete_for_runs(context: Context, run_ids: Sequence[str]) -> Operation[None]:
    """Remove the checkpoints of some runs, with their writes, in every thread."""
    if not run_ids:
        return
    members = [names.run(run) for run in run_ids]
    found, unread = yield from threads_with_runs(context, members)
    for thread in found:
        yield from remove_runs(context, thread, set(members))
    for thread, text in unread.items():
        error = from_text(text.decode("utf-8", "backslashreplace"), context.keyspace.keys(thread))
        raise error or ThreadDamaged(f"thread {shown(thread)} cannot be read")


def threads_with_runs(context: Context, members: Sequence[bytes]) -> Operation[tuple[list[str], dict[str, bytes]]]:
    """The threads that have checkpoints of some runs, by their members of the index; and those that cannot be read, with the text of the error."""
    found, unread = list[str](), dict[str, bytes]()
    threads = list(dict.fromkeys((yield from collect(scan_threads(context)))))
    for start in range(0, len(threads), THREADS_PER_BATCH):
        batch = threads[start : start + THREADS_PER_BATCH]
        replies = yield Batch([Call(scripts.HAS_RUNS, context.keyspace.keys(thread), members) for thread in batch])
        for thread, has_some in zip(batch, replies, strict=True):
            if isinstance(has_some, bytes):
                unread[thread] = has_some
            elif has_some:
                found.append(thread)
    return found, unread


def _prune_thread(context: Context, thread: str, kept: Retention, dry_run: bool) -> Operation[Pruned]:
    total = Pruned()
    for _ in range(ATTEMPTS):
        seen = yield from read_references(context, thread)
        if seen is None:
            return total
        keep = kept.kept({place: links.time for place, links in seen.links.items()})
        keep |= yield from _with_ancestors(context, thread, seen, {place for place in keep if not place[0]})
        finished = yield from _finished_calls(context, thread, seen, keep)
        keep = {place for place in keep if place[0] not in finished}
        keep = yield from _with_ancestors(context, thread, seen, keep)
        writes = yield from write_members(context, thread)
        reachable = yield from reachable_chunks(context, thread, seen, writes)
        calls, runs = (yield from call_members(context, thread)), (yield from run_members(context, thread))
        with decoding("what thread {!r} holds", thread):
            victims = set(seen.links) - keep
            plan = _orphaned(seen, victims)
            plan += _plan(seen, reachable, victims, writes, _stray_writes(seen, writes))
            plan += _over(seen, victims, calls, runs)
        removed, done = yield from carry_out(context, thread, seen.revision, plan, dry_run)
        total = removed if dry_run else added(total, removed)
        if done:
            return total
    raise busy(thread)


def remove_runs(context: Context, thread: str, runs: set[bytes]) -> Operation[None]:
    """Remove the checkpoints of some runs, by their members of the index, in one thread."""
    for _ in range(ATTEMPTS):
        removal = yield from removal_of_runs(context, thread, runs)
        if removal is None or (yield from carry_out(context, thread, removal.revision, removal.plan))[1]:
            return
    raise busy(thread)


class Removal(NamedTuple):
    """A plan that holds while the thread is at that revision."""

    revision: bytes
    plan: list[list[bytes]]
    """The names to remove. Each list goes in one step."""


def removal_of_runs(context: Context, thread: str, runs: set[bytes]) -> Operation[Removal | None]:
    """Plan to remove the checkpoints of some runs. Returns None if the thread does not exist."""
    seen = yield from read_references(context, thread)
    if seen is None:
        return None
    victims = {place for place, links in seen.links.items() if links.run in runs}
    writes = yield from write_members(context, thread)
    reachable = yield from reachable_chunks(context, thread, seen, writes)
    calls, noted = (yield from call_members(context, thread)), (yield from run_members(context, thread))
    with decoding("what thread {!r} holds", thread):
        plan = _plan(seen, reachable, victims, writes) + _over(seen, victims, calls, noted)
    return Removal(seen.revision, plan)


def divided(plan: Sequence[list[bytes]]) -> tuple[list[bytes], list[list[bytes]]]:
    """Divide a plan into all names that a reader may notice, and the steps that remove chunks."""
    kinds = (b"n", b"p", b"z", STRAY[:1])
    names_of = [name for step in plan if step[0][:1] not in kinds for name in step]
    return names_of, [step for step in plan if step[0][:1] in kinds]


def busy(thread: str) -> ThreadBusy:
    return ThreadBusy(
        f"others wrote to thread {shown(thread)} during each of {ATTEMPTS} attempts to remove checkpoints. What was removed stays removed; try again"
    )


def _with_ancestors(
    context: Context, thread: str, seen: References, keep: set[CheckpointKey]
) -> Operation[set[CheckpointKey]]:
    """What is kept, and the ancestors it needs; those stay in the list, so they are to be whole, too."""
    keep = set(keep)
    needed = keep
    while needed:
        needed = (yield from _needed_by_delta_channels(context, thread, seen, needed)) - keep
        keep |= needed
    return keep


def _finished_calls(context: Context, thread: str, seen: References, keep: set[CheckpointKey]) -> Operation[set[str]]:
    """The namespaces of subgraph calls whose root checkpoint goes. The newest checkpoint of each call says which that is."""
    newest: dict[str, str] = {}
    for ns, checkpoint_id in seen.links:
        if is_call(ns):
            newest[ns] = max(newest.get(ns, ""), checkpoint_id)
    calls, roots, data = list(newest.items()), dict[str, str | None](), context.keyspace.keys(thread).data_key
    for start in range(0, len(calls), CALLS_PER_PAGE):
        page = calls[start : start + CALLS_PER_PAGE]
        found = yield Command(("HMGET", data, *(names.checkpoint(*call) for call in page)))
        with decoding("the subgraph calls of thread {!r}", thread):
            for (ns, checkpoint_id), header in zip(page, found, strict=True):
                if header is not None:  # else it went meanwhile, and the plan is void
                    where = f"checkpoint {shown(checkpoint_id)} of thread {shown(thread)}"
                    roots[ns] = root_of(headers.metadata(context, header, where))
    return finished_calls(roots, seen.links.keys(), keep)


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
            empty = [headers.channel_of(entry) for entry in own if entry[:1] == ABSENT]
        if not empty:
            continue
        ancestors = (yield from walk(context, Address(thread, ns, checkpoint_id), empty)).ancestors
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


def _over(
    seen: References, victims: set[CheckpointKey], calls: Mapping[bytes, str], runs: Sequence[bytes]
) -> list[list[bytes]]:
    """The members of subgraph calls of which no checkpoint stays, and those of runs that had none before (`lua/lib/trim.lua`)."""
    left = {ns for ns, _ in seen.links.keys() - victims}
    over = [member for member, ns in calls.items() if ns not in left]
    over += set(runs) - {links.run for links in seen.links.values()}
    return [[member] for member in over]


def _orphaned(seen: References, victims: set[CheckpointKey]) -> list[list[bytes]]:
    """The headers of those that stay and whose parent goes: before it does, they lose it, so none names a parent that this removes.

    Also of those whose parent was gone before, with its run (`delete_for_runs`), as `PostgresSaver.prune` does.
    """
    stay = seen.links.keys() - victims
    return [
        [FORGET_PARENT + names.checkpoint(ns, checkpoint_id)]
        for ns, checkpoint_id in stay
        if (parent := seen.links[ns, checkpoint_id].parent) and (ns, parent) not in stay
    ]


def _plan(
    seen: References,
    reachable: ReachableChunks,
    victims: set[CheckpointKey],
    writes: Sequence[bytes],
    stray_writes: Sequence[bytes] = (),
) -> list[list[bytes]]:
    """Plan the removal of each victim: its header, and the values and the run that it is the last to hold.

    The stray writes follow.

    The oldest come first, and subgraph calls before the root checkpoints that say they are over.

    Each is removed in one step, so that a removal that dies leaves nothing that the next one does not find. `remove` takes
    a checkpoint's writes with its header; of more than it takes at once, the rest follow, which nothing reads any more.
    The chunks of values, of which there may be any number, come last; until they are gone, `@gc_roots` tells of them.
    """
    of_checkpoint: dict[CheckpointKey, list[bytes]] = defaultdict(list)
    for member in writes:
        ns, checkpoint_id = names.components(member[1:])[:2]
        of_checkpoint[ns, checkpoint_id].append(member)
    removed = {member for place in victims for member in of_checkpoint[place]}.union(stray_writes)
    order = sorted(victims, key=lambda place: (not place[0], place[1]))
    last_holder: dict[bytes, CheckpointKey] = {}
    for place in [*order, *(place for place in seen.links if place not in victims)]:
        links = seen.links[place]
        last_holder.update((names.blob(place[0], entry[1:]), place) for entry in links.entries)
        last_holder[links.names_chunk] = place
        if links.run:
            last_holder[links.run] = place
    freed: dict[CheckpointKey, list[bytes]] = defaultdict(list)
    live = {name for name, place in last_holder.items() if place not in victims}
    live |= reachable.chunks([*live, *(member for member in writes if member not in removed)])
    dead = reachable.chunks([*(name for name, place in last_holder.items() if place in victims), *removed])
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
    plan += [[member] for member in stray_writes]
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


def carry_out(
    context: Context, thread: str, revision: bytes, plan: Sequence[list[bytes]], dry_run: bool = False
) -> Operation[tuple[Pruned, bool]]:
    """Remove what is planned, step by step. Answers what was removed, and whether all is: not where the thread changed."""
    keys, total = context.keyspace.keys(thread), Pruned()
    for step in _steps(plan):
        removed = yield Call(scripts.REMOVE, keys, (revision, b"1" if dry_run else b"0", *step))
        if removed is None:
            return total, False
        with decoding("what was removed of thread {!r}", thread):
            *counted, revision = removed
            total = added(total, counted)
            if not isinstance(revision, bytes):
                raise TypeError(f"{shown(revision)} is not a revision")
    return total, True
