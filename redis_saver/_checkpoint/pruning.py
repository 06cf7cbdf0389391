"""Removing checkpoints: prune, delete_for_runs, and the trim that follows a put over its history limit.

A removal reads the links of all checkpoints of a thread, makes a plan, and carries it out in steps. Each step is a
script that removes some checkpoints, their writes, and the values that no other checkpoint holds. If something was put
or removed since the plan was made, the step does nothing, and the removal makes a new plan. So no step removes a value
that a new put relies on. A removal that dies leaves a sound thread, and the next removal continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from langgraph.checkpoint.base.id import UUID

from redis_saver._checkpoint import delta, guards, listing, retention, scripts
from redis_saver._checkpoint.retention import CheckpointKey, Checkpoints, ReachableChunks, References, Retention
from redis_saver._common import config, limits, names, times
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog, log_text
from redis_saver._engine.requests import Call, Command, Operation
from redis_saver._storage import chunks, header
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import keyed
from redis_saver._storage.skipping import Skipping
from redis_saver.errors import KeyUnavailable, StillNeeded, ThreadBusy, ThreadDamaged, decoding, from_text

NAMES_PER_STEP, WEIGHT_OF_HEADER = 500, 9
CALLS_PER_PAGE = 200
FORGET_PARENT = b"^"
"""Prefix of a header in the arguments of `lua/checkpoint/remove.lua`: remove only the name of its parent."""
WRITES_WITH_A_HEADER = 500
"""Maximum number of records of writes that `lua/checkpoint/remove.lua` removes with a header."""
ATTEMPTS, ATTEMPTS_OF_TRIM = 20, 5
ROOTS_PER_CHECKPOINT, BYTES_PER_ROOT = 128, 1024
"""Thresholds for a trim that also removes chunks, for which it reads all lists of chunks.

The roots of removed values must take at least 128 bytes per checkpoint, and one byte per 1,024 bytes of the thread. So
the cost is spread over many puts.
"""
_LOG = ThrottledLog("redis_saver.checkpoint")


class Pruned(NamedTuple):
    """Counts of prune's removals: done or, with `dry_run`, planned."""

    checkpoints: int = 0
    """Number of checkpoints."""
    writes: int = 0
    """Number of pending writes."""
    blobs: int = 0
    """Number of channel values."""
    bytes: int = 0
    """Size of the removed headers, values and writes as stored."""


def added(total: Pruned, more: Iterable[int]) -> Pruned:
    """Return the sum of two counts."""
    return Pruned(*(first + second for first, second in zip(total, more, strict=True)))


def prune(context: Context, thread_ids: Sequence[str], kept: Retention | None, dry_run: bool) -> Operation[Pruned]:
    """Prune threads, one after the other. If `kept` is None, delete them."""
    total = Pruned()
    with Skipping(context.data_keys, names_one=len(thread_ids) == 1) as skipping:
        for thread in thread_ids:
            if kept is None:
                counted = yield deletion(context, thread, b"count" if dry_run else b"sound")
                with decoding("the counters of thread {!r}", thread):
                    total = added(total, counted)
            else:
                writer = guards.writer_of(context, thread)
                pruned = _prune_thread(context, thread, kept, writer, dry_run=dry_run)
                total = added(total, (yield from skipping.each(thread, pruned)) or Pruned())
    return total


def deletion(context: Context, thread: str, mode: bytes) -> Call:
    """Return the request that deletes a thread. The modes are those of `lua/checkpoint/delete_thread.lua`."""
    keys = context.keyspace.keys(thread)
    context.chunk_cache.forget(keys.data_key)
    writer = guards.writer_of(context, thread, deletes=True)
    return guards.GuardedScript(scripts.DELETE_THREAD, keys, writer).call(mode)


class Limit(NamedTuple):
    """A history limit that a put exceeded, and the checkpoints that its trim must keep."""

    keep_last: int
    written: frozenset[CheckpointKey]
    """The new checkpoint, and its parent, to which tasks may still write."""
    dirty: bytes = b""
    """Over two tiers: the key with the records that cold lacks."""
    writer: bytes = guards.ANYBODY
    """The writer of the put."""


def trim(context: Context, thread: str, limit: Limit) -> Operation[None]:
    """Prune a thread to its history limit, after a put that went over it.

    The put is stored already, so an error is only counted and logged. A later put tries again.
    """
    try:
        trimmed = _prune_thread(context, thread, Retention(limit.keep_last), limit.writer, limit=limit)
        yield from context.counted(trimmed, "trim")
    except Exception as error:  # noqa: BLE001 - the put is stored, and the error is logged
        text = "thread %s is over its history limit, and old checkpoints could not be removed; a put tries again: %s"
        _LOG.warning(text, shown(thread), log_text(error, is_encrypted=context.data_keys is not None))


def delete_for_runs(context: Context, run_ids: Sequence[str], *, force: bool = False) -> Operation[None]:
    """Remove the checkpoints of some runs, with their writes, in all threads.

    Raises:
        StillNeeded: A remaining checkpoint is rebuilt from one of them. Nothing was removed. Not raised with `force`.
    """
    if not run_ids:
        return
    members, plans = [names.run(run) for run in run_ids], dict[str, Removal]()
    threads, unread = yield from threads_with_runs(context, members)
    unavailable: KeyUnavailable | None = None
    with Skipping(context.data_keys) as skipping:
        for thread in threads:
            removal = removal_of_runs(context, thread, set(members), force=force)
            try:
                plan = yield from skipping.each(thread, removal)
            except KeyUnavailable as raised:  # the other threads come first
                unavailable = unavailable or raised
            else:
                plans |= {} if plan is None else {thread: plan}
    for thread, planned in plans.items():
        writer = guards.writer_of(context, thread)
        yield from remove_runs(context, thread, set(members), writer, plan=planned, force=force)
    for thread, text in unread.items():
        error = from_text(text.decode("utf-8", "backslashreplace"), context.keyspace.keys(thread))
        raise error or ThreadDamaged(f"thread {shown(thread)} cannot be read")
    if unavailable is not None:
        raise unavailable


def threads_with_runs(context: Context, members: Sequence[bytes]) -> Operation[tuple[list[str], dict[str, bytes]]]:
    """Find the threads that have checkpoints of some runs, named by their members of the index.

    Returns these threads, and the text of the error for each thread that cannot be read.
    """
    threads, keys = (yield from listing.all_threads(context)), context.keyspace.keys
    replies = yield from listing.ask_each(threads, lambda thread: Call(scripts.HAS_RUNS, keys(thread), members))
    having = [(thread, has_some) for thread, has_some in zip(threads, replies, strict=True) if has_some]
    unread = {thread: text for thread, text in having if isinstance(text, bytes)}
    return [thread for thread, _ in having if thread not in unread], unread


@keyed
def _prune_thread(
    context: Context, thread: str, kept: Retention, writer: bytes, *, dry_run: bool = False, limit: Limit | None = None
) -> Operation[Pruned]:
    total, keys = Pruned(), context.keyspace.keys(thread)
    attempts, written, dirty = (ATTEMPTS_OF_TRIM, limit.written, limit.dirty) if limit else (ATTEMPTS, frozenset(), b"")
    for _ in range(attempts):
        references = yield from retention.read_references(context, thread)
        if references is None:
            return total
        checkpoints = references.checkpoints
        lacking = (yield from _lacking_in_cold(thread, dirty)) if dirty else set()
        keep = kept.kept({key: links.time for key, links in checkpoints.items()})
        keep |= (written | lacking) & checkpoints.keys()
        keep = yield from _needed(context, thread, checkpoints, keep, lacking)
        with decoding("the contents of thread {!r}", thread):
            victims = set(checkpoints) - keep
            strays = [member for member in _stray_writes(references) if _key_of(member) not in lacking]
            sweeps = limit is None or _is_sweep_due(references, victims)
        if limit and not victims and not sweeps:
            return total
        reachable = ReachableChunks({}, [], {})
        if sweeps:
            reachable = yield from retention.reachable_chunks(context, thread, references)
        with decoding("the contents of thread {!r}", thread):
            # Over two tiers cold has the parents and all victims. Hot keeps the newest ones until the end.
            plan = _plan(references, reachable, sorted(victims, key=_by_age, reverse=not dirty), strays)
            if not dirty:
                plan.names[:0] = _orphaned(checkpoints, victims)
        script_keys = (*keys, dirty) if dirty else keys
        removed, done = yield from carry_out(thread, script_keys, writer, plan, dry_run=dry_run)
        total = removed if dry_run else added(total, removed)
        if done:
            return total
    if limit:
        # Makes each put of other writers try again. While these writers are busy trimming, one of them succeeds.
        yield Command(("HDEL", keys.data_key, *{retention.OVER_AT + names.component(ns) for ns, _ in written}))
    raise busy(thread, attempts)


def _lacking_in_cold(thread: str, dirty: bytes) -> Operation[set[CheckpointKey]]:
    """Return the checkpoints that cold lacks, or whose writes it lacks."""
    members = yield Command(("ZRANGE", dirty, 0, -1))
    with decoding("the dirty records of thread {!r}", thread):
        return {_key_of(member) for member in members if member[:1] in (b"c", b"w")}


def _key_of(member: bytes) -> CheckpointKey:
    """Return the checkpoint in a member of the index, of a checkpoint or of its writes."""
    ns, checkpoint_id, *_ = names.components(member[1:])
    return ns, checkpoint_id


def _is_sweep_due(references: References, victims: set[CheckpointKey]) -> bool:
    """True if a trim should remove chunks: enough values were removed, or a names chunk becomes unused."""
    left = {links.names_chunk for key, links in references.checkpoints.items() if key not in victims}
    frees_names = any(references.checkpoints[key].names_chunk not in left for key in victims)
    enough = max(ROOTS_PER_CHECKPOINT * len(references.checkpoints), references.size // BYTES_PER_ROOT)
    return frees_names or references.strays >= enough


@keyed
def remove_runs(
    context: Context, thread: str, runs: set[bytes], writer: bytes, *, plan: Removal | None = None, force: bool = False
) -> Operation[None]:
    """Remove the checkpoints of some runs, named by their members of the index, in one thread.

    Args:
        context: The saver.
        thread: The thread.
        runs: The runs.
        writer: The writer.
        plan: The removal, if it is planned already.
        force: As for `removal_of_runs`.
    """
    for _ in range(ATTEMPTS):
        removal = plan or (yield from removal_of_runs(context, thread, runs, force=force))
        plan = None
        _, done = yield from carry_out(thread, context.keyspace.keys(thread), writer, removal)
        if done:
            return
    raise busy(thread)


class Removal(NamedTuple):
    """A plan of removals. Each list of names is removed in one step."""

    revision: bytes
    """The thread's revision for which the plan is valid."""
    names: list[list[bytes]]
    """Headers, writes, values and the like."""
    chunks: list[list[bytes]]
    """Chunks that nothing uses once these are removed, and possibly `@gc_roots`."""


@keyed
def removal_of_runs(context: Context, thread: str, runs: set[bytes], *, force: bool = False) -> Operation[Removal]:
    """Plan the removal of the checkpoints of some runs. The plan is empty if the thread does not exist.

    Raises:
        StillNeeded: A remaining checkpoint is rebuilt from one of them. Not raised with `force`.
    """
    references = yield from retention.read_references(context, thread)
    if references is None:
        return Removal(b"", [], [])
    victims = {key for key, links in references.checkpoints.items() if links.run in runs}
    if not force:
        yield from _check_unneeded(context, thread, references.checkpoints, victims)
    reachable = yield from retention.reachable_chunks(context, thread, references)
    with decoding("the contents of thread {!r}", thread):
        return _plan(references, reachable, sorted(victims, key=_by_age, reverse=True))


def _check_unneeded(
    context: Context, thread: str, checkpoints: Checkpoints, victims: set[CheckpointKey]
) -> Operation[None]:
    """Check that no remaining checkpoint is rebuilt from a victim. Reads nothing if each channel has a value.

    Only children of victims may be. A descendant whose parent remains needs the same of it, or nothing. The checkpoint
    that wrote a version without a value counts the updates of its `DeltaChannel`s.

    Raises:
        StillNeeded: One is.
    """
    with decoding("the channels of thread {!r}", thread):
        valueless = _valueless(checkpoints, victims)
    metadata = yield from _metadata(context, thread, list(dict.fromkeys(each.written_by for each in valueless)))
    with decoding("the metadata of thread {!r}", thread):
        rebuilt = {key: delta.rebuilt(of_key) for key, of_key in metadata.items()}
    for child, channel, at in valueless:
        if channel in rebuilt.get(at, ()):
            removed = child[0], checkpoints[child].parent
            raise still_needed(thread, names.decode(checkpoints[removed].run[1:]), removed, child, channel)


def _metadata(
    context: Context, thread: str, wanted: Sequence[CheckpointKey]
) -> Operation[dict[CheckpointKey, Mapping[str, Any]]]:
    """Read the metadata of checkpoints, except those removed meanwhile. Such a removal makes a plan void anyway."""
    data, read = context.keyspace.keys(thread).data_key, dict[CheckpointKey, Mapping[str, Any]]()
    for start in range(0, len(wanted), CALLS_PER_PAGE):
        page = wanted[start : start + CALLS_PER_PAGE]
        stored = yield Command(("HMGET", data, *(names.checkpoint(*key) for key in page)))
        with decoding("the metadata of thread {!r}", thread):
            found = [(key, raw) for key, raw in zip(page, stored, strict=True) if raw is not None]
            read |= {key: header.metadata(context, raw, config.Address(thread, *key)) for key, raw in found}
    return read


class _Valueless(NamedTuple):
    """A channel without a stored value in a checkpoint whose parent is removed."""

    child: CheckpointKey
    channel: str
    written_by: CheckpointKey
    """The checkpoint that wrote the channel's version."""


def _valueless(checkpoints: Checkpoints, victims: set[CheckpointKey]) -> list[_Valueless]:
    """Return the channels without a stored value in the children that victims leave behind, oldest child first."""
    parents = {key: (key[0], links.parent) for key, links in checkpoints.items() if links.parent}
    children = sorted((key for key in parents if key not in victims and parents[key] in victims), key=_by_age)
    if not children:
        return []
    own = {key: {entry[1:] for entry in header.own_entries(links.entries)} for key, links in checkpoints.items()}
    stored = {
        names.blob(ns, entry[1:])
        for (ns, _), links in checkpoints.items()
        for entry in links.entries
        if entry[:1] != header.ABSENT
    }
    found = list[_Valueless]()
    for child in children:
        ns, entries = child[0], {names.name_of(entry[: entry.index(b"\0") + 1]): entry for entry in own[child]}
        having = {name for name, entry in entries.items() if names.blob(ns, entry) in stored}
        for name in delta.lacking(entries, having):
            entry = entries[name]
            is_in: Callable[[CheckpointKey], bool] = lambda at: entry in own.get(at, ())  # noqa: B023, E731
            found.append(_Valueless(child, name, delta.first_with(child, parents.get, is_in)))
    return found


def still_needed(thread: str, run: str, removed: CheckpointKey, child: CheckpointKey, channel: str) -> StillNeeded:
    """Return the error for a run with a checkpoint from which its child is rebuilt."""
    return StillNeeded(
        f"run {shown(run)} wrote checkpoint {shown(removed[1])} of thread {shown(thread)}, and the later checkpoint "
        f"{shown(child[1])} is rebuilt from it (DeltaChannel {shown(channel)}). Nothing was removed. Delete "
        "the later runs with it, or continue the thread until the next snapshots. delete_for_runs(..., force=True) "
        "removes it anyway, and what later checkpoints have of it is lost for good"
    )


def busy(thread: str, attempts: int = ATTEMPTS) -> ThreadBusy:
    return ThreadBusy(f"others wrote to thread {shown(thread)} in {attempts} attempts to remove checkpoints: try again")


def _needed(
    context: Context, thread: str, checkpoints: Checkpoints, keep: set[CheckpointKey], lacking: set[CheckpointKey]
) -> Operation[set[CheckpointKey]]:
    """Return the checkpoints that stay: those to keep, without finished calls, and the ancestors that they need.

    A call stays if cold lacks a part of it. So does its root checkpoint, which shows later that the call is finished.
    """
    roots = yield from _roots_of_calls(context, thread, checkpoints)
    of_lacking = {("", root) for ns, _ in lacking if (root := roots.get(ns))} & checkpoints.keys()
    of_root = {key for key in keep if not key[0]} | of_lacking
    of_root = yield from _with_ancestors(context, thread, checkpoints, of_root)
    finished = retention.finished_calls(roots, checkpoints.keys(), of_root)
    others = {key for key in keep if key[0] and key[0] not in finished}
    return of_root | (yield from _with_ancestors(context, thread, checkpoints, others))


def _roots_of_calls(context: Context, thread: str, checkpoints: Checkpoints) -> Operation[dict[str, str | None]]:
    """Return the root checkpoint of each subgraph call by namespace. The newest checkpoint of the call names it."""
    calls = [newest for newest in dict(sorted(checkpoints)).items() if retention.is_call(newest[0])]
    metadata = yield from _metadata(context, thread, calls)
    return {ns: retention.root_of(of_call) for (ns, _), of_call in metadata.items()}


def _with_ancestors(
    context: Context, thread: str, checkpoints: Checkpoints, keep: set[CheckpointKey]
) -> Operation[set[CheckpointKey]]:
    """Return checkpoints with the ancestors that their `DeltaChannel`s need.

    Most checkpoints store no value of a `DeltaChannel`. LangGraph rebuilds it from the nearest ancestor's value and the
    writes since. In a header the channel looks like one that was emptied. But any write to an emptied channel would
    have given it a value. So a channel that has writes and no value needs the ancestors back to its nearest stored
    value.
    """
    keep, added, covered = set(keep), keep, set[tuple[CheckpointKey, bytes]]()
    while added:
        needed = set[CheckpointKey]()
        for key in sorted(added):
            parent = key[0], checkpoints[key].parent
            if not parent[1]:
                continue
            with decoding("the channels of a checkpoint of thread {!r}", thread):
                empty = _to_rebuild(checkpoints, key, parent if parent in keep else None, covered)
            if not empty:
                continue
            channels = {names.name_of(channel): channel for channel in empty}
            ancestors = (yield from delta.walk(context, config.Address(thread, *key), list(channels))).ancestors
            for channel, escaped in channels.items():
                written = [i for i, of in enumerate(ancestors) if any(write.channel == channel for write in of.writes)]
                if not written:
                    continue
                seeded = [i for i, ancestor in enumerate(ancestors) if channel in ancestor.seeds]
                needed.update((key[0], of.checkpoint_id) for of in ancestors[: max(written + seeded) + 1])
                covered.add((key, escaped))
        added = (needed & checkpoints.keys()) - keep
        keep |= added
    return keep


def _to_rebuild(
    checkpoints: Checkpoints,
    key: CheckpointKey,
    parent: CheckpointKey | None,
    covered: set[tuple[CheckpointKey, bytes]],
) -> list[bytes]:
    """Return the channels without a value for which the checkpoint's ancestors must be read.

    Args:
        checkpoints: The links of the thread's checkpoints.
        key: The checkpoint.
        parent: Its parent, unless that is removed.
        covered: Pairs of a checkpoint and a channel whose needed ancestors are all kept. The function adds the channels
            that the parent covers.
    """
    inherited, empty = _entries(checkpoints, parent), list[bytes]()
    for channel, entry in _entries(checkpoints, key).items():
        before = inherited.get(channel)
        if entry[:1] != header.ABSENT:
            continue
        if before and (before[:1] != header.ABSENT or (parent, channel) in covered):
            covered.add((key, channel))
        elif before != entry and _was_written(checkpoints, key, entry):
            empty.append(channel)
    return empty


def _was_written(checkpoints: Checkpoints, key: CheckpointKey, entry: bytes) -> bool:
    """True if a channel was written since the first known ancestor: each write gives it a new version.

    So channels that were always empty cost no round trip.
    """
    for _ in checkpoints:  # bounds the loop, as a caller may have put a checkpoint as its own ancestor
        key = key[0], checkpoints[key].parent
        if key not in checkpoints:
            return False
        if entry not in checkpoints[key].entries:
            return True
    return False


def _entries(checkpoints: Checkpoints, key: CheckpointKey | None) -> dict[bytes, bytes]:
    """Return the entries of a checkpoint, by channel."""
    if key is None:
        return {}
    return {entry[1 : entry.index(b"\0") + 1]: entry for entry in header.own_entries(checkpoints[key].entries)}


def _stray_writes(references: References) -> list[bytes]:
    """Return the writes of missing checkpoints that nobody will ever read.

    Writes stay if their checkpoint may still arrive: it is newer than the newest of its namespace, or less than an hour
    old.
    """
    newest, strays = dict(sorted(references.checkpoints)), list[bytes]()
    for member in references.writes:
        ns, checkpoint_id = key = _key_of(member)
        if key not in references.checkpoints and checkpoint_id < newest.get(ns, "") and not _is_recent(checkpoint_id):
            strays.append(member)
    return strays


def _is_recent(checkpoint_id: str) -> bool:
    """True if an id is a UUIDv6 (as LangGraph's are) from the last hour."""
    try:
        made = UUID(checkpoint_id)
    except ValueError:
        return False
    return made.version == 6 and str(made) > times.id_at(datetime.now(timezone.utc) - timedelta(hours=1))


def _orphaned(checkpoints: Checkpoints, victims: set[CheckpointKey]) -> list[list[bytes]]:
    """Return the steps that clear the parent id in kept headers whose parent is removed.

    Like `PostgresSaver.prune`, this includes headers whose parent was removed earlier (`delete_for_runs`). These steps
    come first, so that no header ever names a removed parent.
    """
    stay = checkpoints.keys() - victims
    return [
        [FORGET_PARENT + names.checkpoint(ns, checkpoint_id)]
        for ns, checkpoint_id in stay
        if (parent := checkpoints[ns, checkpoint_id].parent) and (ns, parent) not in stay
    ]


def _by_age(key: CheckpointKey) -> str:
    return key[1]


def _plan(
    references: References, reachable: ReachableChunks, order: Sequence[CheckpointKey], strays: Sequence[bytes] = ()
) -> Removal:
    """Plan the removal of each victim: its header, and the values and the run that no other checkpoint holds.

    Args:
        references: The links of the thread.
        reachable: Its chunks.
        order: The victims, newest first. So if the removal dies, no checkpoint is left without its ancestors. Subgraph
        calls come before root checkpoints, which show that calls are finished.
        strays: Members of other writes to remove.

    Each victim is removed in one step, so the next removal finds all that a dead one has left. `remove.lua` removes up
    to 500 records of writes with a header. The others follow, as nobody reads them any more. Chunks come last:
    `@gc_roots` keeps their roots until then.
    """
    order, victims = sorted(order, key=lambda key: not key[0]), set(order)
    writes: dict[CheckpointKey, list[bytes]] = defaultdict(list)
    for member in references.writes:
        writes[_key_of(member)].append(member)
    gone = {member for key in victims for member in writes[key]}.union(strays)
    holders = _last_holders(references.checkpoints, order)
    live = {name for name, key in holders.items() if key not in victims}
    live |= reachable.chunks([*live, *(member for member in references.writes if member not in gone)])
    freed: dict[CheckpointKey, list[bytes]] = defaultdict(list)
    for name, key in holders.items():
        if key in victims and name not in live:  # a names chunk may also be a chunk of a value
            freed[key].append(name)
    plan: list[list[bytes]] = []
    for key in order:
        plan.append([names.checkpoint(*key), *freed[key]])
        plan += [[member] for member in writes[key][WRITES_WITH_A_HEADER:]]
    plan += [[member] for member in strays]
    return Removal(references.revision, plan, _chunks_of(reachable, gone.union(*freed.values()), live))


def _last_holders(checkpoints: Checkpoints, order: Sequence[CheckpointKey]) -> dict[bytes, CheckpointKey]:
    """Return the last checkpoint to hold each value, names chunk, run, and mark of a namespace.

    Victims hold them until their turn in `order`. The checkpoints that stay come last.
    """
    holders: dict[bytes, CheckpointKey] = {}
    for key in [*order, *(checkpoints.keys() - order)]:
        ns, links = names.component(key[0]), checkpoints[key]
        holders.update((names.blob(key[0], entry[1:]), key) for entry in links.entries)
        others = (links.names_chunk, links.run, *(field + ns for field in retention.OF_NAMESPACE))
        holders.update((name, key) for name in others if name)
    return holders


def _chunks_of(reachable: ReachableChunks, gone: set[bytes], live: set[bytes]) -> list[list[bytes]]:
    """Return the steps that remove the chunks of removed values and writes, and possibly `@gc_roots`.

    Lists come before their children, because a put assumes that a stored list has all its children.
    """
    dead = sorted(reachable.unused(gone, live), key=lambda chunk: -_height(chunk, reachable.lists))
    if reachable.strays or not reachable.roots.keys().isdisjoint(gone):
        dead.append(retention.STRAY)
    return [[chunk] for chunk in dead]


def _height(chunk: bytes, lists: Mapping[bytes, bytes]) -> int:
    """Return the number of levels below a chunk. Deeper than any value only damaged lists are, in any order."""
    height = 0
    while chunk in lists and height <= limits.FIXED["depth"]:
        chunk, height = lists[chunk][: 1 + chunks.DIGEST], height + 1
    return height


def _steps(plan: Sequence[list[bytes]]) -> Iterator[list[bytes]]:
    """Join the lists of a plan to steps of up to 500 names. A header counts as ten, because its writes go with it."""
    step, size = list[bytes](), 0
    for part in plan:
        weight = len(part) + (WEIGHT_OF_HEADER if part[0][:1] == b"c" else 0)
        if step and size + weight > NAMES_PER_STEP:
            yield step
            step, size = [], 0
        step += part
        size += weight
    if step:
        yield step


def carry_out(
    thread: str, keys: Sequence[bytes], writer: bytes, plan: Removal, *, dry_run: bool = False
) -> Operation[tuple[Pruned, bool]]:
    """Carry out a plan, step by step. Returns the removed amounts, and False if the thread changed meanwhile.

    Args:
        thread: The thread.
        keys: Its keys. Over two tiers the third is that of its dirty records.
        writer: The writer.
        plan: The plan.
        dry_run: True to only count.
    """
    total, revision, script = Pruned(), plan.revision, guards.GuardedScript(scripts.REMOVE, keys, writer)
    for step in _steps([*plan.names, *plan.chunks]):
        removed = yield script.call(revision, b"1" if dry_run else b"0", *step)
        if removed is None:
            return total, False
        with decoding("the reply to a removal from thread {!r}", thread):
            *counted, revision = removed
            total = added(total, counted)
            if not isinstance(revision, bytes):
                raise TypeError(f"{shown(revision)} is not a revision")
    return total, True
