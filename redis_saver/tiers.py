"""Operations over two tiers: a saver of ours that answers (hot), and any saver that remembers (cold).

All is written to cold first, so cold is complete and hot may always be given up. What keeps hot from answering with less:

- **Doubts.** Before cold is written, the thread is marked in hot (`lua/doubt.lua`); when hot has it too, the mark goes (`lua/trust.lua`).
  A reader that finds a mark asks cold. So a writer that dies in between, or that hot fails, leaves no stale answer. After
  `WRITER_GONE` the next reader gives the thread up in hot, and it is brought back from cold. Two marks about one record, or a deletion
  and anything, spoil each other: cold and hot may get such writes in different orders. A thread whose mark was spoiled, or is gone, is given up.
- **What is newest.** A thread that was brought back by an old id is not whole. Hot answers what is newest in a namespace only where it knows that it has
  that (`lua/lib_tiers.lua`).
- **Leave.** A reader that misses asks hot for leave to bring the checkpoint back (`lua/lease.lua`), and then cold. Every write and
  deletion ends the leave, so nothing that is older than what happened meanwhile comes back (`lua/restore.lua`).

So a write that hot cannot even be told of is not begun: other processes might see hot, and would go on believing it. With
`on_hot_error="bypass"` reads go on without hot, and so do writes that are under way.

A thread that was written to hot by itself, before there were tiers, is not in cold. It is brought there whole (`_adopt`) before
anything else is done with it but reading its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
)

from redis_saver import codec, config, listing, names, reading, scripts, threads, writing
from redis_saver.context import Context, default_ttl
from redis_saver.errors import ThreadDamaged
from redis_saver.parts import digest
from redis_saver.requests import Argument, Call, Command, Operation, Request, T

WRITER_GONE = 300_000
"""Milliseconds after which a writer that has not ended its doubt is gone. Writing to cold must not take longer."""
DOUBTS_KEPT = 30 * 24 * 3600 * 1000
"""Milliseconds that a doubt is kept longer than its thread would be."""
MOST_NOTED = 10_000
"""Threads of which something is noted in this process, at the most: what is forgotten is asked again."""
LEAVE = 60_000
"""Milliseconds that a reader may take to bring a checkpoint back."""

OnHotError: TypeAlias = Literal["raise", "bypass"]
Verify: TypeAlias = Literal["never", "on_open", "always"]


class Cold(NamedTuple):
    """A call of the cold saver, by its method's name without an `a` in front. Reply: what it returns; of `list`, a list."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = {}


class Once(NamedTuple):
    """Something that all who ask for it at the same time wait for together. Reply: its result to the first, None to the others."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


Tiered: TypeAlias = "Generator[Request | Cold | Once, Any, T]"


class HotFailed(Exception):
    """Hot failed, and is to be bypassed; else its own error is raised instead."""


@dataclass
class Stats:
    """What happened between the tiers, in this process."""

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold was asked for, as hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that were brought back to hot."""
    doubts: int = 0
    """Reads that cold was asked for, as the thread was being written, or its writer was gone."""
    bypasses: int = 0
    """Reads and writes that were done without hot, which failed."""
    adopted: int = 0
    """Threads that only hot had, and that were brought to cold."""


class Tiers(Protocol):
    """What operations see of the saver."""

    hot: Context
    verify: Verify
    empty: dict[str, tuple[str, str]]
    """Threads in which nothing was found: in which namespace, and by which leave. The first checkpoint there is the newest."""
    verified: set[tuple[str, str]]
    """Threads and namespaces whose newest checkpoint was compared with cold's."""
    counts: Stats


# -- reading


def get_tuple(tiers: Tiers, given: RunnableConfig) -> Tiered[CheckpointTuple | None]:
    """The newest checkpoint, or the one a config names: of hot, else of cold, and then brought back."""
    where, waited = config.address(given), False
    while True:
        damage: ThreadDamaged | None = None
        try:
            found = yield from reading.get_tuple(tiers.hot, given, (tiers.hot.keyspace.doubts(where.thread_id),))
            if found is not None and (yield from _is_newest(tiers, where, found)):
                tiers.counts.hits += 1
                return found
            tiers.counts.misses += 1
        except reading.Doubtful:
            tiers.counts.doubts += 1
        except ThreadDamaged as damaged:
            damage = damaged
            tiers.counts.misses += 1
        except HotFailed:
            tiers.counts.bypasses += 1
            return (yield _cold("get_tuple", given))  # type: ignore[no-any-return]
        if damage:
            yield from _by_choice(tiers, _mend(tiers, where.thread_id, damage))
        if waited:  # what was found by the first of those who waited was not brought back
            fetched = yield from _fetch(tiers, where, given)
        else:
            fetched = yield Once((*where[:2], where.checkpoint_id or ""), lambda: _fetch(tiers, where, given))
        if fetched is not None:
            return fetched.found
        waited = True


def _is_newest(tiers: Tiers, where: config.Address, found: CheckpointTuple) -> Tiered[bool]:
    """Whether cold has no newer checkpoint, if that is to be asked; else hot gives the thread up."""
    place = where[:2]
    if where.checkpoint_id or tiers.verify == "never" or (tiers.verify == "on_open" and place in tiers.verified):
        return True
    newest = yield _cold("get_tuple", config.to_config(*place, ""))
    if len(tiers.verified) >= MOST_NOTED:
        tiers.verified.clear()
    tiers.verified.add(place)
    if newest is not None and newest.checkpoint["id"] == found.checkpoint["id"]:
        return True
    yield from threads.delete_thread(tiers.hot, where.thread_id)
    return False


_HERE = 2


class _Fetched(NamedTuple):
    found: CheckpointTuple | None


def _fetch(tiers: Tiers, where: config.Address, given: RunnableConfig) -> Tiered[_Fetched | None]:
    """Read from cold, and bring what is there back to hot. None: by now hot has it."""
    thread, token = where.thread_id, uuid4().hex
    keyspace, leave = tiers.hot.keyspace, 0
    wanted = (
        names.component(where.checkpoint_ns),
        names.component(where.checkpoint_id) if where.checkpoint_id else b"",
    )
    keys = keyspace.keys(thread)
    try:
        everything = (*keys, keyspace.doubts(thread), keyspace.lease(thread))
        leave = yield Call(scripts.LEASE, everything, (token, WRITER_GONE, LEAVE, *wanted))
        if leave == _HERE:
            return None
    except HotFailed:
        tiers.counts.bypasses += 1
    found = yield _cold("get_tuple", given)
    if found is None and leave and not where.checkpoint_id:
        if len(tiers.empty) >= MOST_NOTED:
            tiers.empty.clear()
        tiers.empty[thread] = (where.checkpoint_ns, token)
    if found is None or not leave:
        return _Fetched(found)

    def restore() -> Tiered[None]:
        arguments = _restored(tiers.hot, found, token, newest=not where.checkpoint_id)
        try:
            back = yield Call(scripts.RESTORE, (*keys, keyspace.lease(thread)), arguments)
        except ThreadDamaged:  # only just; the next to read mends it
            back = 0
        tiers.counts.rehydrations += back

    yield from _by_choice(tiers, restore())
    return _Fetched(found)


def _restored(hot: Context, found: CheckpointTuple, token: str, *, newest: bool) -> list[Argument]:
    """What `lua/restore.lua` takes."""
    where = config.address(found.config)
    checkpoint_id = where.checkpoint_id or ""
    records: list[Argument] = []
    count = 0
    for order, (task, writes) in enumerate(_by_task(found.pending_writes or ()).items()):
        # The path that gave this order is not known.
        regular, special = codec.encode_writes(hot, writes, f"{order:08}")
        member = names.task(where.checkpoint_ns, checkpoint_id, task)
        if regular:
            records += (member, b"".join(regular), len(regular))
        for index, record in special.items():
            records += (member + b"%d" % index, record, 1)
        count += bool(regular) + len(special)
    ns = names.component(where.checkpoint_ns) if newest else b""
    return [token, _writes_of(where), ns, count, *records, *writing.whole(hot, found)]


def _writes_of(where: config.Address) -> bytes:
    """The beginning of the members of a checkpoint's pending writes."""
    return names.task(where.checkpoint_ns, where.checkpoint_id or "", "")[:-1]


def _by_task(pending: Sequence[PendingWrite]) -> dict[str, list[tuple[str, Any]]]:
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in sorted(pending, key=lambda write: write[1] in WRITES_IDX_MAP):
        by_task.setdefault(task, []).append((channel, value))
    order = dict.fromkeys(task for task, _, _ in pending)
    return {task: by_task[task] for task in order}


def list_checkpoints(tiers: Tiers, given: RunnableConfig | None, **options: Any) -> Tiered[list[CheckpointTuple]]:
    """What cold has, which is all."""
    yield from _all_in_cold(tiers, None if given is None else config.thread_id(given))
    return (yield Cold("list", (given if given is None else _for_cold(given, ns=False),), options))  # type: ignore[no-any-return]


def history(tiers: Tiers, given: RunnableConfig, channels: Sequence[str]) -> Tiered[Any]:
    """Seeds and writes of `DeltaChannel`s, by cold, which has all ancestors."""
    yield from _all_in_cold(tiers, config.thread_id(given))
    return (yield Cold("get_delta_channel_history", (), {"config": _for_cold(given), "channels": channels}))


# -- writing


def put(
    tiers: Tiers,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Tiered[RunnableConfig]:
    """Store a checkpoint in cold, then in hot."""
    where = config.address(given)
    stored = config.to_config(where.thread_id, where.checkpoint_ns, checkpoint["id"])
    in_it = _versions_of_values(checkpoint)

    def cold(*, has_all: bool) -> Cold:
        # Of a thread that hot does not know, cold may lack anything.
        return Cold(
            "put", (_for_cold(given), checkpoint, metadata, new_versions if has_all else {**in_it, **new_versions})
        )

    hot = lambda: writing.put(tiers.hot, given, checkpoint, metadata, new_versions)  # noqa: E731
    field = names.checkpoint(where.checkpoint_ns, checkpoint["id"])
    parent = names.checkpoint(where.checkpoint_ns, where.checkpoint_id) if where.checkpoint_id else NOWHERE
    yield from _write(tiers, where.thread_id, cold, hot, field, needed=parent)
    return stored


def _versions_of_values(checkpoint: Checkpoint) -> ChannelVersions:
    versions = checkpoint["channel_versions"]
    return {channel: versions[channel] for channel in checkpoint["channel_values"] if channel in versions}


def put_writes(
    tiers: Tiers, given: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Tiered[None]:
    """Store the pending writes of a task in cold, then in hot."""
    where = config.address(given)
    cold = Cold("put_writes", (_for_cold(given), writes, task_id, task_path))
    hot = lambda: writing.put_writes(tiers.hot, given, writes, task_id, task_path)  # noqa: E731
    record = names.task(where.checkpoint_ns, where.checkpoint_id or "", task_id)
    yield from _write(tiers, where.thread_id, lambda **_: cold, hot, record, writes=_writes_of(where))


def delete_thread(tiers: Tiers, thread: str) -> Tiered[None]:
    """Delete a thread in cold, then in hot."""
    yield from _change(tiers, thread, Cold("delete_thread", (thread,)), unseen=True)


def _write(
    tiers: Tiers,
    thread: str,
    cold: Callable[..., Cold],
    hot: Callable[[], Operation[Any]],
    record: bytes,
    *,
    needed: bytes = b"",
    writes: bytes = b"",
) -> Tiered[None]:
    """Write to cold, then to hot; what hot has is in doubt meanwhile, and stays so where something fails.

    Args:
        tiers: The saver.
        thread: The thread.
        cold: The call of cold, given whether cold `has_all` of the thread.
        hot: The operation over hot.
        record: What is written.
        needed: What hot must have for this to be all it is in cold, unless the thread was empty.
        writes: The beginning of the members of the checkpoint's pending writes, if it is one.
    """
    doubt = yield from _doubt(tiers, thread, digest(record), writes)
    yield cold(has_all=doubt.has_all)

    def then() -> Operation[None]:
        # Where hot has forgotten the parent, it may have forgotten values. Where writes were brought back, their order is by paths that
        # are not known.
        lacks = doubt.is_pathless or (needed and not doubt.has_all and not doubt.newest)
        if not lacks:
            try:
                yield from hot()
            except ThreadDamaged:
                lacks = True
        yield from _trust(tiers, thread, doubt, NOWHERE if lacks else b"" if doubt.newest else needed)

    yield from _by_choice(tiers, then())


def _change(tiers: Tiers, thread: str, cold: Cold, *, unseen: bool = False) -> Tiered[None]:
    """Change a thread in cold, and give it up in hot; unseen: whatever it is."""
    doubt = yield from _doubt(tiers, thread, ALL, unseen=unseen)
    yield cold
    yield from _by_choice(tiers, _given_up(tiers, thread, doubt))


def _given_up(tiers: Tiers, thread: str, doubt: _Doubt) -> Operation[None]:
    yield from threads.delete_thread(tiers.hot, thread)
    yield from _trust(tiers, thread, doubt, NOWHERE)


def _by_choice(tiers: Tiers, operation: Tiered[None]) -> Tiered[None]:
    """Do something with hot, or, where it fails and is to be bypassed, leave it: cold has it."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


ALL, NOWHERE = b"*" * 16, b"?"
"""A record that is all of a thread; a field that there never is."""
_UNKNOWN, _NOT_YET = 0, 1
"""What is in cold of a thread: hot does not have it; hot has it from before there were tiers."""


class _Doubt(NamedTuple):
    token: str
    has_all: bool
    """Whether cold is known to have all of the thread."""
    is_pathless: bool
    """Whether writes of the checkpoint were brought back without their paths."""
    newest: bytes
    """Of which namespace hot will have what is newest, as `lua/trust.lua` takes it."""


def _doubt(tiers: Tiers, thread: str, record: bytes, writes: bytes = b"", *, unseen: bool = False) -> Tiered[_Doubt]:
    """Say in hot that the thread is being written. One that only hot has is brought to cold first, and believed until then.

    Unseen: it is going to be deleted, so what is only in hot, or damaged there, goes first.
    """
    token, keyspace = uuid4().hex, tiers.hot.keyspace
    keys = (*keyspace.keys(thread), keyspace.doubts(thread), keyspace.lease(thread))
    ns, leave = tiers.empty.pop(thread, ("", ""))
    arguments = (token, default_ttl(tiers.hot), DOUBTS_KEPT, writes, leave, record)
    while True:
        try:
            in_cold, is_pathless, nothing_since = yield Call(scripts.DOUBT, keys, arguments)
        except ThreadDamaged as damage:
            if unseen:
                yield from threads.delete_thread(tiers.hot, thread)
            else:
                yield from _mend(tiers, thread, damage)
            continue
        if in_cold != _NOT_YET:
            newest = b"@newest" + names.component(ns) if nothing_since else b""
            return _Doubt(token, in_cold != _UNKNOWN, bool(is_pathless), newest)
        if unseen:
            yield from threads.delete_thread(tiers.hot, thread)
        else:
            yield from _adopt(tiers, thread)


def _mend(tiers: Tiers, thread: str, damage: ThreadDamaged) -> Tiered[None]:
    """Give up what hot has left of a thread that cold has; what it does not have is lost, and that is the error it is."""
    data = tiers.hot.keyspace.keys(thread).data_key
    if (yield Command(("EXISTS", data))):
        in_cold = yield Command(("HEXISTS", data, "@home"))
    else:
        in_cold = yield Cold("list", ({"configurable": {"thread_id": thread}},), {"limit": 1})
    if not in_cold:
        raise damage
    yield from threads.delete_thread(tiers.hot, thread)


def _trust(tiers: Tiers, thread: str, doubt: _Doubt, needed: bytes) -> Operation[None]:
    keyspace = tiers.hot.keyspace
    keys = (*keyspace.keys(thread), keyspace.doubts(thread), keyspace.lease(thread))
    yield Call(scripts.TRUST, keys, (doubt.token, doubt.newest, needed))


# -- what only hot has


def _all_in_cold(tiers: Tiers, thread: str | None) -> Tiered[None]:
    """See to it that cold has all of a thread, or of all threads."""

    def bring() -> Tiered[None]:
        found = [thread] if thread is not None else (yield from listing.collect(listing.scan_threads(tiers.hot)))
        for each in dict.fromkeys(found):
            keys = tiers.hot.keyspace.keys(each)
            if (yield Command(("EXISTS", tiers.hot.keyspace.doubts(each)))):
                continue  # it is being written through tiers
            if (yield Command(("EXISTS", keys.data_key))) and not (yield Command(("HEXISTS", keys.data_key, "@home"))):
                yield from _adopt(tiers, each)

    yield from _by_choice(tiers, bring())


def _adopt(tiers: Tiers, thread: str) -> Tiered[None]:
    """Bring a whole thread from hot to cold, parents before children."""
    asked = listing.query({"configurable": {"thread_id": thread}}, None, None, None)
    found = yield from listing.collect(listing.list_checkpoints(tiers.hot, asked))
    for one in reversed(found):
        yield from _copy_to_cold(one, thread)
    yield Call(scripts.HOME, (tiers.hot.keyspace.keys(thread).data_key,), ())
    tiers.counts.adopted += 1


def _copy_to_cold(one: CheckpointTuple, thread: str) -> Tiered[None]:
    """Put a checkpoint with its writes into a thread of cold."""
    where = config.address(one.config)
    parent = config.address(one.parent_config).checkpoint_id if one.parent_config else ""
    target = config.to_config(thread, where.checkpoint_ns, parent or "")
    if not parent:
        del target["configurable"]["checkpoint_id"]
    metadata = dict(one.metadata)
    if metadata.get("thread_id") == where.thread_id:
        metadata["thread_id"] = thread
    stored = yield Cold("put", (target, one.checkpoint, metadata, _versions_of_values(one.checkpoint)))
    for order, (task, writes) in enumerate(_by_task(one.pending_writes or ()).items()):
        special = [write for write in writes if write[0] in WRITES_IDX_MAP]
        regular = [write for write in writes if write[0] not in WRITES_IDX_MAP]
        for some in filter(None, (regular, special)):
            yield Cold("put_writes", (stored, some, task, f"{order:08}"))


def copy_thread(tiers: Tiers, source: str, target: str) -> Tiered[None]:
    """Make the target what the source is, in cold; hot gives the target up."""
    if source == target:
        return
    yield from _all_in_cold(tiers, source)
    found = yield Cold("list", ({"configurable": {"thread_id": source}},))
    if not found:
        return
    doubt = yield from _doubt(tiers, target, ALL, unseen=True)
    yield Cold("delete_thread", (target,))
    for one in reversed(found):
        yield from _copy_to_cold(one, target)
    yield from _by_choice(tiers, _given_up(tiers, target, doubt))


def delete_for_runs(tiers: Tiers, run_ids: Sequence[str]) -> Tiered[None]:
    """Delete the checkpoints of some runs in cold; hot gives up the threads in which it has them."""
    members, doubts, concerned = [names.run(run) for run in run_ids], list[tuple[str, _Doubt]](), set[str]()
    for run in run_ids:  # of threads, too, that may be on their way back to hot
        found = yield Cold("list", (None,), {"filter": {"run_id": run}})
        concerned.update(config.thread_id(one.config) for one in found)
    for thread in (yield from listing.collect(listing.scan_threads(tiers.hot))):
        if thread not in concerned and (yield Call(scripts.RUNS, tiers.hot.keyspace.keys(thread), members)):
            concerned.add(thread)
    for thread in sorted(concerned):
        doubts.append((thread, (yield from _doubt(tiers, thread, ALL))))
    yield Cold("delete_for_runs", (run_ids,))
    for thread, doubt in doubts:
        yield from _by_choice(tiers, _given_up(tiers, thread, doubt))


def prune(tiers: Tiers, thread_ids: Sequence[str], strategy: str) -> Tiered[None]:
    """Prune threads in cold; hot gives them up."""
    for thread in thread_ids:
        if strategy != "delete":
            yield from _all_in_cold(tiers, thread)
        yield from _change(tiers, thread, Cold("prune", ([thread],), {"strategy": strategy}))


def _cold(method: str, given: RunnableConfig) -> Cold:
    return Cold(method, (_for_cold(given),))


def _for_cold(given: RunnableConfig, *, ns: bool = True) -> RunnableConfig:
    """A config as other savers take it: the namespace is always there; names are strings."""
    where, more = config.address(given), dict(config.configurable(given))
    more["thread_id"] = where.thread_id
    if ns:
        more["checkpoint_ns"] = where.checkpoint_ns
    if where.checkpoint_id is None:
        more.pop("checkpoint_id", None)
    return {**given, "configurable": more}
