"""Who wrote what: the writes of a thread, and the versions of a channel.

Values are measured where they are stored, and not read, except `Send`s, which name the nodes of their tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.types import TASKS, SendProtocol

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.listing import Query, bounds
from redis_saver._checkpoint.reading import BYTES_PER_PAGE
from redis_saver._common import names, times
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._engine.requests import Batch, Call, Operation, Page, Stream, T
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec
from redis_saver._storage import header as headers
from redis_saver._storage.context import Context
from redis_saver._storage.header import PRESENT
from redis_saver.errors import decoding

VersionText: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class WriteInfo:
    """A write to a channel, as `writes()` tells of it."""

    channel: str
    """The channel; LangGraph's own are among them: interrupts, errors, answers to interrupts, branches to nodes."""
    checkpoint_ns: str
    """The namespace; empty for the root."""
    checkpoint_id: str | None
    """The checkpoint that the task began from. None: the thread, or the call of the subgraph, began with this write."""
    step: int | None
    """The superstep that it belongs to; None where the metadata do not say."""
    source: str | None
    """What made the first checkpoint that has it: `input`, `loop`, `update` or `fork`. None: no checkpoint has it (yet)."""
    task_id: str | None
    """The task, by its pending write. None: no pending write says so. That the channel was written is inferred from its version."""
    node: str | None
    """The node whose task it was, by the task's path, or by the `Send` that started it. None: neither says so, or there is no task."""
    candidates: tuple[str, ...]
    """Where `node` is None: the nodes that ran in that superstep, inferred from `versions_seen`. One of them wrote, if not the caller."""
    bytes: int | None
    """Size of the pending write as stored: compressed or encrypted, if the saver does that. None if there is none.

    A long `Send` is stored in chunks, of which only the list counts."""
    applied_in: tuple[str, ...]
    """The checkpoints behind it in which the channel has another version: one, or several after a fork. Empty: it is pending, or is of no channel of the state."""

    @property
    def inferred(self) -> bool:
        """Whether no pending write says so, and it follows from the versions of the channel alone."""
        return self.task_id is None


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A version of a channel, as `channel_history()` tells of it."""

    version: VersionText
    """The version."""
    checkpoint_ns: str
    """The namespace; empty for the root."""
    checkpoint_id: str
    """The first checkpoint of its branch that has it. If that one's parent is gone, the version may be older."""
    created_at: datetime | None
    """That checkpoint's `ts`; None where it has none, or one that is no time."""
    step: int | None
    """The superstep that made it, by its metadata."""
    source: str | None
    """What made it: `input`, `loop`, `update` or `fork`."""
    bytes: int
    """Size of the value as stored, with its chunks; 0: the channel has no value there (it was emptied, or is a `DeltaChannel`)."""
    shared_bytes: int
    """How many of those are in chunks that the version before it has, too, so that they are stored once."""
    writes: tuple[WriteInfo, ...]
    """The writes that it was made of. Empty: the checkpoint has no parent, or that is gone, and the writes with it; or nobody wrote, and the channel was emptied."""

    @property
    def new_bytes(self) -> int:
        """How many bytes this version added."""
        return self.bytes - self.shared_bytes


class WriteHead(NamedTuple):
    """A pending write without its value."""

    task_id: str
    path: str
    channel: str
    size: int


class StoredSize(NamedTuple):
    """How large a value is where it is stored, in bytes."""

    root: int
    """What its field holds."""
    chunks: Mapping[bytes, int]
    """Its chunks, by field."""


class Size(NamedTuple):
    """What the value of a channel takes in a checkpoint, in bytes as stored."""

    bytes: int
    shared: int
    """How many of those the parent has, too: all where the version is the same, else the chunks that the values have in common."""

    @property
    def new(self) -> int:
        """How many bytes the checkpoint added."""
        return self.bytes - self.shared


class Entry(NamedTuple):
    """A checkpoint without its values, for this package and others."""

    ns: str
    id: str
    parent: str | None
    created_at: datetime | None
    step: int | None
    source: str | None
    versions: Mapping[str, VersionText]
    seen: Mapping[str, Mapping[str, VersionText]]
    present: frozenset[str]
    """The channels that have a value."""
    writes: Sequence[WriteHead]
    sizes: Mapping[str, StoredSize] = {}
    """How large values are, by channel, where that was asked for."""
    parents: Mapping[str, str] = {}
    """The checkpoints of the namespaces around its own that it belongs to, by namespace."""
    sends: Sequence[str] = ()
    """The nodes of the `Send`s that the next superstep runs, in their order; read only if the checkpoint has writes of such tasks."""


CHECKPOINTS_PER_PAGE, VERSIONS_PER_PAGE = 50, 20
"""How many checkpoints are read at once; fewer where the chunks of a value are looked at, which takes the server longer."""
_NOTHING, _EVERYTHING = b"", b"*"
"""Which channels are measured. (The name of one ends with NUL.)"""
_EVERY = Query(None, None, None, None)
_PULLED = "~__pregel_pull, "
"""What the path of a task begins with that a channel triggered; its node follows."""
_PUSHED = re.compile(r"~__pregel_push, (\d+)(?:,|$)")
"""The path of a task that a `Send` started: the position of the `Send` in the channel `TASKS`, which names the node."""
_SENDS_PER_BATCH = 10
"""Number of values of `TASKS` to read in one round trip. One may hold a state for each of its `Send`s."""
_NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of what a caller wrote: `Command(resume=...)`, `Command(update=...)`."""
_START = "__start__"
_LOOP = "loop"
"""The source of a checkpoint that a superstep made."""
_FIRST_STEP = -1
"""The step of the checkpoint with which a thread, or the call of a subgraph, begins."""


class _Family(NamedTuple):
    """A checkpoint with those that were made of it. Without a parent: one checkpoint that has none, or whose parent is gone."""

    parent: Entry | None
    children: Sequence[Entry]


def writes(context: Context, thread: str, ns: str | None) -> Stream[WriteInfo]:
    """The writes of a thread, those that began from its newest checkpoint first."""
    return _walk(context, thread, ns, _NOTHING, lambda family: [*_known(family), *_inferred(family)])


def channel_history(context: Context, thread: str, channel: str, ns: str) -> Stream[VersionInfo]:
    """The versions of a channel, newest first."""
    return _walk(context, thread, ns, names.component(channel), lambda family: list(_versions(family, channel)))


def entries(context: Context, thread: str, ns: str | None, before: str | None = None) -> Stream[Entry]:
    """The checkpoints of a thread without their values, newest first; those with lower ids than `before`."""
    return _walk(context, thread, ns, _NOTHING, lambda family: [family.parent] if family.parent else [], before)


def costs(context: Context, thread: str) -> Stream[tuple[Entry, Mapping[str, Size]]]:
    """The checkpoints of a thread with what each of their values takes. One comes when its parent was read, or is known to be gone."""
    return _walk(
        context,
        thread,
        None,
        _EVERYTHING,
        lambda family: [(one, _sizes(family.parent, one)) for one in family.children],
    )


def sizes(context: Context, where: Address, parent: Address | None) -> Operation[Mapping[str, Size]]:
    """What each value of a checkpoint takes. Nothing where it is not there. One round trip."""
    found = [where, parent] if parent else [where]
    ranges = [bounds(_EVERY, one.checkpoint_ns, one.checkpoint_id) for one in found]
    keys = context.keyspace.keys(where.thread_id)
    answers = yield Batch([Call(scripts.AUDIT, keys, (*some, 1, BYTES_PER_PAGE, _EVERYTHING)) for some in ranges])
    here, *above = [
        [] if answer is None else _page(context, where.thread_id, answer, upper)[1]
        for answer, (upper, _) in zip(answers, ranges, strict=True)
    ]
    return _sizes(above[0][0] if above and above[0] else None, here[0]) if here else {}


def ran_between(parent: Entry | None, child: Entry) -> tuple[str, ...]:
    """The nodes that ran between a checkpoint and its child, inferred from what they have seen."""
    return _ran(parent, [child])


def _walk(
    context: Context,
    thread: str,
    ns: str | None,
    measured: bytes,
    describe: Callable[[_Family], list[T]],
    before: str | None = None,
) -> Stream[T]:
    """Read all checkpoints, newest first, and describe each with its children, which wait in memory until it comes: one of each branch."""
    keys, (upper, lower) = context.keyspace.keys(thread), bounds(_EVERY._replace(before=before), ns, None)
    size, waiting = VERSIONS_PER_PAGE if measured else CHECKPOINTS_PER_PAGE, _Waiting()
    while upper > b"(":
        answer = yield Call(scripts.AUDIT, keys, (upper, lower, size, BYTES_PER_PAGE, measured))
        if answer is None:  # also of a thread that was deleted meanwhile: what waits is not known to be a beginning
            return
        following, entries = _page(context, thread, answer, upper)
        families = list(waiting.families((yield from _with_sends(context, thread, entries))))
        yield Page([one for family in families for one in describe(family)])
        upper = b"(" + following
    yield Page([one for family in waiting.rest() for one in describe(family)])


def _with_sends(context: Context, thread: str, entries: Sequence[Entry]) -> Operation[list[Entry]]:
    """Add the nodes of their `Send`s to the checkpoints that have writes of such tasks."""
    found, keys = list(entries), context.keyspace.keys(thread)
    pushing = [at for at, entry in enumerate(found) if any(_PUSHED.match(write.path) for write in entry.writes)]
    for first in range(0, len(pushing), _SENDS_PER_BATCH):
        some = pushing[first : first + _SENDS_PER_BATCH]
        asked = [(names.component(found[at].ns), names.component(TASKS), names.component(found[at].id)) for at in some]
        answers = yield Batch([Call(scripts.GET_CHANNEL, keys, arguments) for arguments in asked])
        for at, answer in zip(some, answers, strict=True):
            found[at] = found[at]._replace(sends=_nodes(context, thread, found[at], answer))
    return found


def _nodes(context: Context, thread: str, entry: Entry, answer: Sequence[Any] | None) -> Sequence[str]:
    """The nodes of the `Send`s in a value of `TASKS`; none if the checkpoint was removed meanwhile."""
    if answer is None:
        return ()
    address = Address(thread, entry.ns, entry.id)
    with decoding("the sends of {}", address):
        _, _, _, stored, flat = answer
        if not stored:
            return ()
        chunks = codec.as_chunks(context, flat, thread)
        return nodes_of(codec.decode_value(context, stored, chunks, TASKS, address, Allowance(context.limits, address)))


def nodes_of(value: object) -> Sequence[str]:
    """The nodes that a value of `TASKS` starts tasks of."""
    sends = value if isinstance(value, list) else ()
    return tuple(str(send.node) if isinstance(send, SendProtocol) else "" for send in sends)


def _node(parent: Entry, write: WriteHead) -> str | None:
    """The node whose task wrote, if the task's path or its `Send` names it."""
    if write.path.startswith(_PULLED):
        return write.path.removeprefix(_PULLED)
    pushed = _PUSHED.match(write.path)
    position = int(pushed[1]) if pushed else len(parent.sends)
    return parent.sends[position] or None if position < len(parent.sends) else None


class _Waiting:
    """Checkpoints whose parents did not come yet."""

    def __init__(self) -> None:
        self._children: dict[tuple[str, str], list[Entry]] = {}

    def families(self, entries: Sequence[Entry]) -> Iterator[_Family]:
        """The families of a page of checkpoints, each newer than the next."""
        for entry in entries:
            yield _Family(entry, self._children.pop((entry.ns, entry.id), ()))
            if entry.parent is None:
                yield _Family(None, [entry])
            else:
                self._children.setdefault((entry.ns, entry.parent), []).append(entry)
        if entries:
            lowest = names.component(entries[-1].id)
            for place in [place for place in self._children if names.component(place[1]) > lowest]:
                yield from (_Family(None, [entry]) for entry in self._children.pop(place))

    def rest(self) -> Iterator[_Family]:
        """Those whose parents are gone."""
        return (_Family(None, [entry]) for children in self._children.values() for entry in children)


def _page(context: Context, thread: str, answer: Sequence[Any], upper: bytes) -> tuple[bytes, list[Entry]]:
    """A page as `lua/checkpoint/audit.lua` answers it: the bound of the next one (empty at the end), and the checkpoints."""
    with decoding("a page of the checkpoints of thread {!r}", thread):
        following, flat, of_chunks, of_values, *stored = answer
        if not isinstance(following, bytes) or (following and (b"(" + following >= upper or not stored)):
            raise ValueError(f"the page after the one below {shown(upper)} begins at {shown(following)}")
        chunks, known = codec.as_chunks(context, flat, thread), {field: int(size) for field, size in _pairs(of_chunks)}
        values = {
            place: StoredSize(int(size), {field: known[field] for field in chunked.reachable([root], chunks)})
            for place, (size, root) in enumerate(_pairs(of_values))
        }
        entries = []
        for raw_id, raw_ns, header, raw_writes, measured in stored:
            where = Address(thread, names.name_of(raw_ns), names.name_of(raw_id))
            sizes = {place: values[value] for place, value in _pairs(measured)}
            entries.append(_entry(context, where, header, chunks, raw_writes, sizes))
    return following, entries


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _entry(
    context: Context,
    where: Address,
    header: bytes,
    chunks: codec.Chunks,
    raw_writes: Sequence[bytes],
    sizes: Mapping[int, StoredSize],
) -> Entry:
    """A checkpoint; `sizes` has those of its values by the place of their channel."""
    checkpoint_id = where.checkpoint_id or ""
    decoded = headers.decode(context, header, checkpoint_id, chunks, where)
    found, about = decoded.checkpoint, decoded.metadata
    step, source, time = about.get("step"), about.get("source"), found.get("ts")
    flags, channels = headers.flags_of(header), dict(enumerate(found["channel_versions"]))
    present = frozenset(channel for channel, flag in zip(channels.values(), flags, strict=True) if flag == PRESENT[0])
    return Entry(
        ns=where.checkpoint_ns,
        id=checkpoint_id,
        parent=decoded.parent,
        created_at=times.moment(time) if isinstance(time, str) else None,
        step=step if type(step) is int else None,
        source=source if isinstance(source, str) else None,
        versions=found["channel_versions"],
        seen=found.get("versions_seen") or {},
        present=present,
        writes=_writes(raw_writes),
        sizes=dict(zip(map(channels.__getitem__, sizes), sizes.values(), strict=True)),
        parents=_parents(about.get("parents")),
    )


def _parents(found: object) -> Mapping[str, str]:
    """What the metadata say of the checkpoints around, as far as they are names."""
    return {ns: one for ns, one in found.items() if isinstance(one, str)} if isinstance(found, dict) else {}


def _writes(flat: Sequence[Any]) -> list[WriteHead]:
    found = []
    for at in range(0, len(flat), 6):
        suffix, _index, path, channel, _kind, size = flat[at : at + 6]
        task_id = names.name_of(suffix[: suffix.index(b"\0") + 1])
        found.append(WriteHead(task_id, names.decode(path), names.decode(channel), int(size)))
    return found


def _known(family: _Family) -> Iterator[WriteInfo]:
    """The pending writes of a checkpoint."""
    if (parent := family.parent) is None:
        return
    for write in parent.writes:
        having = [
            one for one in family.children if one.versions.get(write.channel) != parent.versions.get(write.channel)
        ]
        node = _node(parent, write)
        is_of_caller = write.task_id == _NO_TASK
        yield WriteInfo(
            channel=write.channel,
            checkpoint_ns=parent.ns,
            checkpoint_id=parent.id,
            step=None if parent.step is None else parent.step + 1,
            source=having[-1].source if having else None,
            task_id=write.task_id,
            node=node,
            candidates=() if node is not None or is_of_caller else _ran(parent, having),
            bytes=write.size,
            applied_in=tuple(one.id for one in having),
        )


def _inferred(family: _Family) -> Iterator[WriteInfo]:
    """The channels that changed without a pending write, checkpoint by checkpoint. A channel that lost its value was not written."""
    parent = family.parent
    written = {write.channel for write in parent.writes} if parent else set[str]()
    for child in family.children:
        if parent is None and (child.parent is not None or child.step != _FIRST_STEP):
            continue  # its parent is gone (prune makes it one without a parent), so nobody knows what changed
        for channel, version in child.versions.items():
            is_changed = parent is None or parent.versions.get(channel) != version
            is_emptied = parent is not None and channel in parent.present and channel not in child.present
            if is_changed and not is_emptied and channel not in written:
                yield WriteInfo(
                    channel=channel,
                    checkpoint_ns=child.ns,
                    checkpoint_id=child.parent,
                    step=child.step,
                    source=child.source,
                    task_id=None,
                    node=None,
                    candidates=_ran(parent, [child]),
                    bytes=None,
                    applied_in=(child.id,),
                )


def _ran(parent: Entry | None, children: Sequence[Entry]) -> tuple[str, ...]:
    """The nodes that ran between a checkpoint and others: those that have seen something new, and those of its `Send`s."""
    before = parent.seen if parent else {}
    ran = {node for child in children for node, seen in child.seen.items() if seen != before.get(node)}
    if parent and any(child.source == _LOOP for child in children):
        ran.update(node for node in parent.sends if node)
    return tuple(sorted(node for node in ran if node == _START or not node.startswith("__")))


def _versions(family: _Family, channel: str) -> Iterator[VersionInfo]:
    """The versions of a channel that a checkpoint's children have, and it has not."""
    parent = family.parent
    before = parent.versions.get(channel) if parent else None
    made = [one for one in (*_known(family), *_inferred(family)) if one.channel == channel]
    for child in family.children:
        version = child.versions.get(channel)
        if version is None or version == before:
            continue
        size = _size(parent, child, channel)
        yield VersionInfo(
            version=version,
            checkpoint_ns=child.ns,
            checkpoint_id=child.id,
            created_at=child.created_at,
            step=child.step,
            source=child.source,
            bytes=size.bytes,
            shared_bytes=size.shared,
            writes=tuple(one for one in made if child.id in one.applied_in),
        )


def _sizes(parent: Entry | None, child: Entry) -> Mapping[str, Size]:
    """What each value of a checkpoint takes."""
    return {channel: _size(parent, child, channel) for channel in child.sizes}


def _size(parent: Entry | None, child: Entry, channel: str) -> Size:
    """What the value of a channel takes; nothing where it has none."""
    if (stored := child.sizes.get(channel)) is None:
        return Size(0, 0)
    total = stored.root + sum(stored.chunks.values())
    if parent is None:
        return Size(total, 0)
    if parent.versions.get(channel) == child.versions.get(channel):
        return Size(total, total)
    before = parent.sizes[channel].chunks if channel in parent.sizes else {}
    return Size(total, sum(size for field, size in stored.chunks.items() if field in before))
