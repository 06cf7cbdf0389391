"""Queries: the writes of a thread, the versions of a channel, one channel of many threads.

For the first two, the server sends the sizes of values instead of the values. It only sends `Send`s, because these name
the nodes of tasks. For previews, `entries` also reads short pending writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, cast

from langgraph.checkpoint.serde.types import TASKS, SendProtocol

from redis_saver._checkpoint import delta, listing, reading, scripts
from redis_saver._common import config, limits, names, times
from redis_saver._engine.requests import Batch, Call, Operation, Page, Stream, T
from redis_saver._engine.runner import Pump
from redis_saver._storage import chunks as chunked, codec, header
from redis_saver._storage.context import Context
from redis_saver._storage.framing import take
from redis_saver._storage.keyed import keyed
from redis_saver._storage.skipping import Skipping
from redis_saver.errors import decoding

VersionText: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class WriteInfo:
    """A write to a channel, as `writes()` returns it."""

    channel: str
    """The channel. It may be one of LangGraph's own, such as for interrupts and errors."""
    checkpoint_ns: str
    """The namespace, empty for the root."""
    checkpoint_id: str | None
    """The checkpoint that the task started from. None if the thread or the subgraph's call began with this write."""
    step: int | None
    """The superstep of the write, or None if the metadata do not name it."""
    source: str | None
    """Source of the first checkpoint with the write: `input`, `loop`, `update` or `fork`. None if none has it yet."""
    task_id: str | None
    """The task, from its pending write. None if the write is inferred from the channel's version."""
    node: str | None
    """The node of the task, from the task's path or from the `Send` that started it. None if neither names it."""
    candidates: tuple[str, ...]
    """Nodes that ran in the superstep (from `versions_seen`), if `node` is None. One of them, or the caller, made the
    write."""
    bytes: int | None
    """Size of the pending write as stored (compressed and encrypted). None if there is no pending write.

    A long `Send` is stored in chunks. Only its list of chunks counts here."""
    applied_in: tuple[str, ...]
    """Next checkpoints that have a new version of the channel: one, or several after a fork. Empty if the write is
    still pending, or if its channel is not part of the state."""

    @property
    def inferred(self) -> bool:
        """True if there is no pending write, so that the write is inferred from the channel's versions."""
        return self.task_id is None


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A version of a channel, as `channel_history()` returns it."""

    version: VersionText
    """The version."""
    checkpoint_ns: str
    """The namespace, empty for the root."""
    checkpoint_id: str
    """The first checkpoint of its branch that has the version. If its parent is gone, the version may be older."""
    created_at: datetime | None
    """That checkpoint's `ts`, or None if that is missing or not a time."""
    step: int | None
    """The superstep of that checkpoint, from its metadata."""
    source: str | None
    """The source of that checkpoint: `input`, `loop`, `update` or `fork`."""
    bytes: int
    """Size of the value as stored, with its chunks. 0 if there is no value: the channel was emptied, or is a
    `DeltaChannel`."""
    shared_bytes: int
    """Bytes of the value in chunks that the previous version has too. Redis stores these once."""
    writes: tuple[WriteInfo, ...]
    """The writes that made the version. Empty if the checkpoint's parent is gone, or if the channel was emptied."""

    @property
    def new_bytes(self) -> int:
        """Bytes that this version added."""
        return self.bytes - self.shared_bytes


class WriteHead(NamedTuple):
    """A pending write without its value."""

    task_id: str
    path: str
    channel: str
    size: int
    """Size as stored, in bytes, with its chunks."""
    value: Any = None
    """The value if it was asked for, is short, and could be decoded. Else None."""
    chunks: Mapping[bytes, int] = {}
    """Sizes of its chunks, by field. Values and other writes may share them."""


class StoredSize(NamedTuple):
    """Size of a value as stored, in bytes."""

    root: int
    """Size of its field."""
    chunks: Mapping[bytes, int]
    """Sizes of its chunks, by field."""


class Size(NamedTuple):
    """Size of a channel's value in a checkpoint, in bytes as stored."""

    bytes: int
    shared: int
    """Bytes that the parent has, too: all if the version is the same, else the common chunks."""

    @property
    def new(self) -> int:
        """Bytes that the checkpoint added."""
        return self.bytes - self.shared


class Entry(NamedTuple):
    """A checkpoint without its values."""

    ns: str
    id: str
    parent: str | None
    created_at: datetime | None
    metadata: Mapping[str, Any]
    versions: Mapping[str, VersionText]
    seen: Mapping[str, Mapping[str, VersionText]]
    present: frozenset[str]
    """The channels that have a value."""
    writes: Sequence[WriteHead]
    sizes: Mapping[str, StoredSize] = {}
    """Sizes of the measured values, by channel."""
    sends: Sequence[str] = ()
    """Nodes of the `Send`s that the next superstep runs, in order. Empty unless tasks of these `Send`s have written."""

    @property
    def step(self) -> int | None:
        """The superstep that made it."""
        return step if type(step := self.metadata.get("step")) is int else None

    @property
    def source(self) -> str | None:
        """`input`, `loop`, `update` or `fork`."""
        return source if isinstance(source := self.metadata.get("source"), str) else None

    @property
    def parents(self) -> Mapping[str, str]:
        """Checkpoints of the enclosing namespaces to which it belongs, by namespace."""
        parents = self.metadata.get("parents")
        return {ns: id_ for ns, id_ in parents.items() if type(id_) is str} if isinstance(parents, dict) else {}


CHECKPOINTS_PER_PAGE, VERSIONS_PER_PAGE, FIRST_VERSIONS = 50, 20, 3
"""Page sizes: without and with the sizes of values, which take longer; and of the first page with all sizes, as it may
be the last for which there is time. Each page is twice as long as the one before."""
_NONE = -1
"""Maximum size of a write to read, if none is to be read."""
_UNPACKED = 16
"""Maximum ratio of a value's size to its compressed size, for previews."""
_NOTHING, _EVERYTHING = b"", b"*"
"""Channels to measure, instead of a single one, whose escaped name ends with NUL."""
_PULLED = "~__pregel_pull, "
"""Beginning of the path of a task that a channel triggered. The node's name follows."""
_PUSHED = re.compile(r"~__pregel_push, (\d{1,18})(?:,|$)")
"""The path of a task that a `Send` started: the position of the `Send` in the channel `TASKS`, which names the node."""
_SENDS_PER_BATCH = 10
"""Number of values of `TASKS` to read in one round trip. They are long: each `Send` may carry a state."""
_NO_TASK = "00000000-0000-0000-0000-000000000000"
"""Task id of the caller's own writes: `Command(resume=...)`, `Command(update=...)`."""
_START = "__start__"
_LOOP = "loop"
"""Source of a checkpoint that a superstep made."""
_FIRST_STEP = -1
"""Step of the first checkpoint of a thread or of a subgraph call."""


class _Family(NamedTuple):
    """A checkpoint with its children. `parent` is None if the parent of the children is gone or never existed."""

    parent: Entry | None
    children: Sequence[Entry]


@keyed
def writes(context: Context, thread: str, ns: str | None) -> Stream[WriteInfo]:
    """Stream the writes of a thread, newest checkpoint first."""
    return _walk(_Reader(context, thread), ns, lambda family: [*_known(family), *_inferred(family)])


@keyed
def channel_history(context: Context, thread: str, channel: str, ns: str) -> Stream[VersionInfo]:
    """Stream the versions of a channel, newest first."""
    reader = _Reader(context, thread, names.component(channel))
    return _walk(reader, ns, lambda family: list(_versions(family, channel)))


@keyed
def entries(context: Context, thread: str, ns: str | None, before: str | None, longest: int) -> Stream[Entry]:
    """Stream the checkpoints of a thread without their values, newest first.

    Args:
        context: The saver.
        thread: The thread.
        ns: A namespace; None: all.
        before: An exclusive upper bound of the ids, if any.
        longest: Maximum size in bytes of a pending write whose value is read. -1: no values are read.
    """

    def describe(family: _Family) -> list[Entry]:
        return [family.parent] if family.parent else []

    return _walk(_Reader(context, thread, longest=longest), ns, describe, before)


@keyed
def costs(context: Context, thread: str, longest: int) -> Stream[tuple[Entry, Mapping[str, Size]]]:
    """Stream the checkpoints of a thread with the sizes of their values.

    A checkpoint comes after its parent was read, or is known to be gone.
    """

    def describe(family: _Family) -> list[tuple[Entry, Mapping[str, Size]]]:
        return [(child, _sizes(family.parent, child)) for child in family.children]

    return _walk(_Reader(context, thread, _EVERYTHING, longest), None, describe)


@keyed
def measured(
    context: Context, thread: str, address: config.Address, longest: int = _NONE
) -> Operation[tuple[Entry, Mapping[str, Size]] | None]:
    """Read a checkpoint, or the newest of its namespace, without values. Also return their sizes.

    Cost: one round trip, and a second one if another checkpoint lies between it and its parent.
    """
    ns, wanted = address.checkpoint_ns, address.checkpoint_id
    reader, before = _Reader(context, thread, _EVERYTHING, longest), f"{wanted}\0" if wanted else None
    _, found = yield from reader.page(*listing.bounds(ns, None, before), 2)  # `before` is the smallest greater id
    if not found or wanted not in (None, found[0].id):
        return None
    here = found[0]
    parent = next((other for other in found[1:] if other.id == here.parent), None)
    if parent is None and here.parent:
        _, found = yield from reader.page(*listing.bounds(ns, here.parent, None), 1)
        parent = found[0] if found else None
    return here, _sizes(parent, here)


@keyed
def channel_value(context: Context, thread: str, address: config.Address, channel: str) -> Operation[Any]:
    """Read the value of a channel in a checkpoint. None if there is none. Cost: one round trip."""
    ns, checkpoint_id = names.component(address.checkpoint_ns), names.component(address.checkpoint_id or "")
    arguments = (ns, names.component(channel), checkpoint_id)
    answer = yield Call(scripts.GET_CHANNEL, context.keyspace.keys(thread), arguments)
    return None if answer is None else _decoded(context, address, channel, answer)


def _walk(
    reader: _Reader, ns: str | None, describe: Callable[[_Family], list[T]], before: str | None = None
) -> Stream[T]:
    """Read all checkpoints, newest first, and describe each with its children.

    Children stay in memory until their parent arrives, one for each branch.
    """
    (upper, lower), waiting = listing.bounds(ns, None, before), dict[tuple[str, str], list[Entry]]()
    size = VERSIONS_PER_PAGE if reader.measured else CHECKPOINTS_PER_PAGE
    first = FIRST_VERSIONS if reader.measured == _EVERYTHING else size
    while upper > b"(":
        following, entries = yield from reader.page(upper, lower, first)
        first = min(2 * first, size)
        if following is None:  # if it was deleted just now, the waiting checkpoints may have had parents
            return
        families = list(_families(waiting, (yield from _with_sends(reader.context, reader.thread, entries))))
        yield Page([item for family in families for item in describe(family)])
        upper = b"(" + following
    rest = [_Family(None, [entry]) for children in waiting.values() for entry in children]
    yield Page([item for family in rest for item in describe(family)])


def _with_sends(context: Context, thread: str, entries: Sequence[Entry]) -> Operation[list[Entry]]:
    """Add the nodes of tasks that a `Send` started, to the checkpoints with writes of these tasks."""
    keys, sends = context.keyspace.keys(thread), dict[tuple[str, str], Sequence[str]]()
    pushing = [entry for entry in entries if any(_PUSHED.match(write.path) for write in entry.writes)]
    for first in range(0, len(pushing), _SENDS_PER_BATCH):
        batch = pushing[first : first + _SENDS_PER_BATCH]
        arguments = [(names.component(entry.ns), names.component(TASKS), names.component(entry.id)) for entry in batch]
        answers = yield Batch([Call(scripts.GET_CHANNEL, keys, of_entry) for of_entry in arguments])
        for entry, answer in zip(batch, answers, strict=True):
            if answer is not None:  # else the checkpoint was removed meanwhile
                value = _decoded(context, config.Address(thread, entry.ns, entry.id), TASKS, answer)
                sends[entry.ns, entry.id] = nodes_of(value)
    return [entry._replace(sends=sends.get((entry.ns, entry.id), ())) for entry in entries]


def _decoded(context: Context, address: config.Address, channel: str, answer: Sequence[Any]) -> Any:
    """Decode the value in a reply of `lua/checkpoint/get_channel.lua`. None if there is no value."""
    with decoding("channel {!r} of {}", channel, address):
        raw_id, head, version, stored, flat = answer
        chunks, allowance = codec.as_chunks(context, flat, address.thread_id), limits.Allowance(context.limits, address)
        if (cipher := context.opener()) is not None:
            ns = names.component(address.checkpoint_ns)
            prefix = names.blob(address.checkpoint_ns) + names.component(channel)
            of = cipher.open_header(b"c" + ns + raw_id, head)
            fields = zip(header.fields(of.header, chunks, b"b" + ns), of.flags, strict=True)
            its_fields = {field: flag for field, flag in fields if field.startswith(prefix)}
            if [*its_fields] != ([prefix + version] if version else []):
                raise ValueError("it has another version")
            if not stored and ord(header.PRESENT) in its_fields.values():
                raise ValueError("its value was removed")
            stored = cipher.open_value(prefix + version, stored) if stored else stored
        if not stored:
            return None
        return codec.Decoder(context, chunks, allowance).value(stored, channel)[0]


def nodes_of(value: object) -> Sequence[str]:
    """Return the nodes whose tasks a value of `TASKS` starts."""
    sends = value if isinstance(value, list) else ()
    return tuple(str(send.node) if isinstance(send, SendProtocol) else "" for send in sends)


def node_of(parent: Entry, write: WriteHead) -> str | None:
    """Return the node of a write's task, if the task's path or its `Send` names it."""
    if write.path.startswith(_PULLED):
        return write.path.removeprefix(_PULLED)
    pushed = _PUSHED.match(write.path)
    position = int(pushed[1]) if pushed else len(parent.sends)
    return parent.sends[position] or None if position < len(parent.sends) else None


def _families(waiting: dict[tuple[str, str], list[Entry]], entries: Sequence[Entry]) -> Iterator[_Family]:
    """Iterate over the checkpoints of a page, each with its children, which were read before.

    Args:
        waiting: The checkpoints whose parents have not been read yet, by parent.
        entries: The page, newest first.
    """
    for entry in entries:
        yield _Family(entry, waiting.pop((entry.ns, entry.id), ()))
        if entry.parent is None:
            yield _Family(None, [entry])
        else:
            waiting.setdefault((entry.ns, entry.parent), []).append(entry)
    lowest = names.component(entries[-1].id) if entries else b"\xff"
    for parent in [parent for parent in waiting if names.component(parent[1]) > lowest]:
        yield from (_Family(None, [entry]) for entry in waiting.pop(parent))


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


class _Reader(NamedTuple):
    """Reads checkpoints of a thread, page by page."""

    context: Context
    thread: str
    measured: bytes = _NOTHING
    """The channels whose values are measured."""
    longest: int = _NONE
    """Maximum size in bytes of a pending write whose value is read."""

    def page(self, upper: bytes, lower: bytes, limit: int) -> Operation[tuple[bytes | None, list[Entry]]]:
        """Read a page. Returns the next page's bound (empty at the end, None without a thread) and the entries."""
        arguments = scripts.AuditArguments(
            upper=upper, lower=lower, limit=limit, budget=reading.BYTES_PER_PAGE, channel=self.measured,
            longest=self.longest,
        )  # fmt: skip
        answer = yield Call(scripts.AUDIT, self.context.keyspace.keys(self.thread), arguments)
        if answer is None:
            return None, []
        with decoding("a page of the checkpoints of thread {!r}", self.thread):
            following, flat, of_chunks, of_values, *stored = answer
            listing.check_next(following, upper, stored)
            chunks = codec.as_chunks(self.context, flat, self.thread)
            lengths = {field: len(chunk) for field, chunk in chunks.items()}
            lengths |= {field: int(size) for field, size in _pairs(of_chunks)}
            values = [
                StoredSize(int(size), {field: lengths[field] for field in chunked.reachable([root], chunks)})
                for size, root in _pairs(of_values)
            ]
            return following, [self._entry(checkpoint, chunks, lengths, values) for checkpoint in stored]

    def _entry(
        self, stored: Sequence[Any], chunks: codec.Chunks, lengths: Mapping[bytes, int], values: Sequence[StoredSize]
    ) -> Entry:
        """Decode a checkpoint. `lengths` holds the sizes of all chunks of its page, `values` those of all values."""
        raw_id, raw_ns, raw_header, raw_writes, measured = stored
        ns, checkpoint_id = names.name_of(raw_ns), names.name_of(raw_id)
        address = config.Address(self.thread, ns, checkpoint_id)
        opened = header.opened(self.context, b"c" + raw_ns + raw_id, raw_header)
        decoded = header.decode(self.context, opened, checkpoint_id, chunks, address)
        checkpoint = decoded.checkpoint
        time, channels = checkpoint.get("ts"), list(checkpoint["channel_versions"])
        flags = zip(channels, header.flags_of(raw_header), strict=True)
        return Entry(
            ns=ns,
            id=checkpoint_id,
            parent=decoded.parent,
            created_at=times.moment(time) if isinstance(time, str) else None,
            metadata=cast("Mapping[str, Any]", decoded.metadata),
            versions=checkpoint["channel_versions"],
            seen=checkpoint.get("versions_seen") or {},
            present=frozenset(channel for channel, flag in flags if flag == header.PRESENT[0]),
            writes=self._writes(address, raw_writes, chunks, lengths),
            sizes={channels[i]: values[j] for i, j in _pairs(measured)},
        )

    def _writes(
        self, address: config.Address, flat: Sequence[Any], chunks: codec.Chunks, lengths: Mapping[bytes, int]
    ) -> list[WriteHead]:
        """Decode the pending writes of a checkpoint, with short values. An encrypted thread has them whole."""
        if self.context.cipher is not None:
            opened = {(write.task_id, write.idx): write for write in codec.decode_writes(self.context, flat, address)}
            of_each = [
                (suffix, frames[at : at + 5])
                for suffix, frames in ((suffix, take(record, 0)[0]) for suffix, record in _pairs(flat))
                for at in range(0, len(frames), 5)
            ]
            flat = []
            for suffix, (*place, _kind, sealed) in of_each:
                write = opened[names.name_of(suffix[: suffix.index(b"\0") + 1]), int(place[0])]
                has_value = len(write.data) <= self.longest or write.type == chunked.IN_CHUNKS
                flat += (suffix, *place, write.type, len(sealed), write.data if has_value else b"")
        heads = []
        for at in range(0, len(flat), 7):
            suffix, index, path, channel, kind, size, data = flat[at : at + 7]
            task_id = names.name_of(suffix[: suffix.index(b"\0") + 1])
            write = chunked.Write(names.decode(path), task_id, int(index), names.decode(channel), kind, data)
            value = self._preview(write, address, chunks) if data else None
            below = chunked.reachable([data], chunks) if kind == chunked.IN_CHUNKS else ()
            sizes = {field: lengths[field] for field in below}
            total = int(size) + sum(sizes.values())
            heads.append(WriteHead(task_id, write.task_path, write.channel, total, value, sizes))
        return heads

    def _preview(self, write: chunked.Write, owner: object, chunks: codec.Chunks) -> Any:
        """Decode a short write. None if it unfolds to many times its size, is long, or cannot be decoded."""
        try:
            most = replace(self.context.limits, value_bytes=_UNPACKED * self.longest)
            return codec.Decoder(self.context, chunks, limits.Allowance(most, owner)).write(write)[2]
        except Exception:  # noqa: BLE001 - other pages show the error
            return None


def _known(family: _Family) -> Iterator[WriteInfo]:
    """Iterate over the pending writes of a checkpoint."""
    if (parent := family.parent) is None:
        return
    for write in parent.writes:
        version = parent.versions.get(write.channel)
        applied = [child for child in family.children if child.versions.get(write.channel) != version]
        node = node_of(parent, write)
        step, source = None if parent.step is None else parent.step + 1, applied[-1].source if applied else None
        candidates = () if node is not None or write.task_id == _NO_TASK else ran_between(parent, *applied)
        ids = tuple(child.id for child in applied)
        yield WriteInfo(
            write.channel, parent.ns, parent.id, step, source, write.task_id, node, candidates, write.size, ids
        )


def _inferred(family: _Family) -> Iterator[WriteInfo]:
    """Infer a write for each channel that changed without a pending write, except channels that lost their value."""
    parent = family.parent
    written = {write.channel for write in parent.writes} if parent else set[str]()
    for child in family.children:
        if parent is None and (child.parent is not None or child.step != _FIRST_STEP):
            continue  # a prune removed its parent, so the changes are not known
        for channel, version in child.versions.items():
            is_changed = parent is None or parent.versions.get(channel) != version
            is_emptied = parent is not None and channel in parent.present and channel not in child.present
            if is_changed and not is_emptied and channel not in written:
                ran, ids = ran_between(parent, child), (child.id,)
                yield WriteInfo(channel, child.ns, child.parent, child.step, child.source, None, None, ran, None, ids)


def ran_between(parent: Entry | None, *children: Entry) -> tuple[str, ...]:
    """Return the nodes that ran between a checkpoint and its children: a new version or a `Send` triggered them."""
    before = parent.seen if parent else {}
    ran = {node for child in children for node, seen in child.seen.items() if seen != before.get(node)}
    if parent and any(child.source == _LOOP for child in children):
        ran.update(node for node in parent.sends if node)
    return tuple(sorted(node for node in ran if node == _START or not node.startswith("__")))


def _versions(family: _Family, channel: str) -> Iterator[VersionInfo]:
    """Iterate over the versions of a channel that a checkpoint's children have but not the checkpoint itself."""
    parent = family.parent
    before = parent.versions.get(channel) if parent else None
    made = [write for write in (*_known(family), *_inferred(family)) if write.channel == channel]
    for child in family.children:
        version = child.versions.get(channel)
        if version is None or version == before:
            continue
        size, its_writes = _size(parent, child, channel), tuple(write for write in made if child.id in write.applied_in)
        yield VersionInfo(
            version, child.ns, child.id, child.created_at, child.step, child.source, size.bytes, size.shared, its_writes
        )


def _sizes(parent: Entry | None, child: Entry) -> Mapping[str, Size]:
    return {channel: _size(parent, child, channel) for channel in child.sizes}


def _size(parent: Entry | None, child: Entry, channel: str) -> Size:
    """Return the size of a channel's value, or 0 if it has none."""
    if (stored := child.sizes.get(channel)) is None:
        return Size(0, 0)
    total = stored.root + sum(stored.chunks.values())
    if parent is None:
        return Size(total, 0)
    if parent.versions.get(channel) == child.versions.get(channel):
        return Size(total, total)
    before = parent.sizes[channel].chunks if channel in parent.sizes else {}
    return Size(total, sum(size for field, size in stored.chunks.items() if field in before))


FIRST_BATCH, MAX_BATCH = 10, 200
"""Number of threads in the first batch, and maximum number in a later one."""
BYTES_PER_BATCH = 4_000_000
"""Target size of a batch's values, in bytes."""


@dataclass(frozen=True, slots=True)
class ChannelValue:
    """The newest value of a channel of a thread, as `latest_values()` returns it."""

    thread_id: str
    """The thread."""
    checkpoint_id: str
    """Its newest checkpoint in the namespace."""
    updated_at: datetime | None
    """That checkpoint's `ts`, or None if that is missing or not a time."""
    version: VersionText
    """The channel's version."""
    bytes: int
    """Size of the value as stored, with its chunks."""
    value: Any
    """The value. For a snapshot of a `DeltaChannel`, the value inside it."""
    stored: bool = True
    """False for a `DeltaChannel` without a snapshot here. `value` is then None; the graph's `get_state` rebuilds it."""


def latest_values(
    context: Context, channel: str, thread_ids: Sequence[str] | None, thread_prefix: str, ns: str
) -> Stream[ChannelValue]:
    """Stream a channel's newest values, either of these threads in this order, or of all threads with a prefix."""
    arguments, size = (names.component(ns), names.component(channel), ""), FIRST_BATCH
    keys, names_one = context.keyspace.keys, thread_ids is not None and len(thread_ids) == 1
    pump = Pump(listing.scan_threads(context) if thread_ids is None else _given(thread_ids))
    with Skipping(context.data_keys, names_one=names_one) as skipping:
        while (page := (yield from pump.next_page())) is not None:
            wanted = [thread for thread in page if thread.startswith(thread_prefix)]
            while wanted:
                batch, wanted = wanted[:size], wanted[size:]
                replies = yield Batch([Call(scripts.GET_CHANNEL, keys(thread), arguments) for thread in batch])
                answers = {thread: reply for thread, reply in zip(batch, replies, strict=True) if reply is not None}
                yield from skipping.load({thread: keys(thread).data_key for thread in answers})
                values = list[ChannelValue]()
                for thread, answer in answers.items():
                    read = _value(context, thread, ns, channel, answer)
                    if value := (yield from skipping.each(thread, read)):
                        values.append(value)
                yield Page(values)
                length = 1 + sum(value.bytes for value in values)
                size = max(1, min(MAX_BATCH, 4 * size, len(batch) * BYTES_PER_BATCH // length))


def _given(thread_ids: Sequence[str]) -> Stream[str]:
    yield Page(thread_ids)


@keyed
def _value(
    context: Context, thread: str, ns: str, channel: str, answer: Sequence[Any]
) -> Operation[ChannelValue | None]:
    """Decode a reply. Returns None if the channel has no value and is no `DeltaChannel`."""
    with decoding("the newest value of channel {!r} of thread {!r}", channel, thread):
        raw_id, head, version, stored, flat = answer
        address = config.Address(thread, ns, names.name_of(raw_id))
        value = codec.held(_decoded(context, address, channel, answer))
        its_names = header.names_chunk_of(head) if context.cipher is not None else b""
        if not stored and (not version or channel not in delta.unstored(header.metadata(context, head, address))):
            return None
        return ChannelValue(
            thread_id=thread,
            checkpoint_id=address.checkpoint_id or "",
            updated_at=times.moment(header.decode_time(head, thread)),
            version=names.version_from(version),
            bytes=len(stored) + sum(len(chunk) for field, chunk in _pairs(flat) if field != its_names),
            value=value,
            stored=bool(stored),
        )
    yield  # makes it an operation
