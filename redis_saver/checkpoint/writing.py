"""Operations that write a checkpoint or its pending writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)

from redis_saver import config, names
from redis_saver.engine import scripts
from redis_saver.engine.requests import Argument, Call, Operation
from redis_saver.errors import decoding
from redis_saver.storage import codec, compression
from redis_saver.storage import header as headers
from redis_saver.storage.chunk_cache import Cached, ChannelKey, Update, Version, names_version
from redis_saver.storage.chunks import DIGEST, LIST, ZSTD, Stored
from redis_saver.storage.context import Context, default_ttl
from redis_saver.storage.framing import pack, unpack


def put(
    context: Context,
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Operation[RunnableConfig]:
    """Store a checkpoint; sends again, with them, the values and chunks that the server turns out not to have."""
    thread, ns, parent = config.address(given)
    keys = context.keyspace.keys(thread)
    check_names(context, thread, ns, parent or "", str(checkpoint["id"]))
    update = _Update(context, checkpoint, new_versions, ns, context.chunk_cache.of(keys.data_key), parent is None)
    place = _place(context, given, checkpoint, metadata, update)
    while True:
        missing = yield Call(scripts.PUT, keys, update.arguments(place))
        if not missing:
            context.chunk_cache.remember(keys.data_key, update.seen_now())
            return config.to_config(thread, ns, checkpoint["id"])
        context.chunk_cache.forget(keys.data_key)
        with decoding("what put lacks of thread {!r}", thread):
            update.take(missing)


def check_names(context: Context, thread: str, ns: str, *checkpoint_ids: str) -> None:
    """Check where something is to be written.

    Raises:
        LimitExceeded: A name is too long.
    """
    limits = context.limits
    limits.check_name(thread, "a thread")
    limits.check_name(ns, "a namespace")
    for checkpoint_id in checkpoint_ids:
        limits.check_name(checkpoint_id, "a checkpoint")


def whole(context: Context, found: CheckpointTuple) -> list[Argument]:
    """What `lua/put.lua` takes for a checkpoint with all its values, whatever the server may have."""
    where = config.address(found.config)
    given = found.parent_config or config.to_config(where.thread_id, where.checkpoint_ns, "")
    values, versions = found.checkpoint["channel_values"], found.checkpoint["channel_versions"]
    new = {channel: version for channel, version in versions.items() if channel in values}
    update = _Update(context, found.checkpoint, new, where.checkpoint_ns, {}, is_root=True)
    return update.arguments(_place(context, given, found.checkpoint, found.metadata, update))


def _place(
    context: Context, given: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, update: _Update
) -> tuple[tuple[bytes, ...], tuple[Argument, Argument]]:
    """Where a checkpoint goes and its header, and the TTLs, as `lua/put.lua` takes them."""
    _, ns, parent = config.address(given)
    checkpoint_id = config.name(checkpoint["id"], "checkpoint id")
    merged = get_checkpoint_metadata(given, metadata)
    run_id = merged.get("run_id")
    run = b"" if run_id is None else names.run(str(run_id))
    context.limits.check_names([run], "a run")
    packed = headers.encode(context, parent, run, checkpoint, merged, update.version_table, update.retained)
    by_age = names.by_age(ns, checkpoint_id) if ns else b""
    ttl = (default_ttl(context), config.thread_ttl(given) or b"")
    return (names.checkpoint(ns, checkpoint_id), by_age, run, packed, update.version_table.names_chunk), ttl


class _Update:
    """The values of a checkpoint that is put: which are sent, and in which chunks."""

    def __init__(
        self,
        context: Context,
        checkpoint: Checkpoint,
        new_versions: ChannelVersions,
        ns: str,
        seen: Cached,
        is_root: bool,
    ) -> None:
        """Collect the channels; `is_root`: the checkpoint has no parent, and its thread, most likely, nothing yet."""
        self._context, self._ns, self._seen = context, ns, seen
        self._values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        limits = context.limits
        limits.check("channels", len(versions), "checkpoint {!r} has {} channels", checkpoint["id"])
        self.version_table = version_table = headers.version_table(checkpoint)
        self._complete, self._mistaken = is_root or (ns, None) in seen, False
        prefix = names.blob(ns)
        if len(version_table.names) > limits.name_bytes:
            limits.check_names(version_table.names.split(b"\0"), "a channel or node")
        limits.check_names(version_table.entries, "a channel with its version")
        if len(version_table.tokens) > limits.name_bytes:
            limits.check_names(unpack(version_table.tokens), "a version that a node has seen")
        self._fields: dict[str, bytes] = {}
        """Where each channel's version is stored, in the order of the entries."""
        self._flags: list[bytes] = []
        """What `lua/put.lua` is told of each of them."""
        aside: dict[str, bytes] = {}
        for (channel, version), entry in zip(versions.items(), version_table.entries, strict=True):
            self._fields[channel] = prefix + entry
            new = channel in new_versions and new_versions[channel] == version
            self._flags.append((b"v" if new else b"u") if channel in self._values else (b"e" if new else b"x"))
        if not new_versions.items() <= versions.items():
            aside = {
                channel: names.entry(channel, version)
                for channel, version in new_versions.items()
                if channel in self._values and versions.get(channel) != version
            }
        self._aside = {channel: prefix + entry for channel, entry in aside.items()}
        self.retained = pack(aside.values())
        """Frames of the entries that are stored without being the checkpoint's."""
        self._encoded: dict[str, Stored] = {}
        self._whole: set[str] = set()
        """Channels all of whose chunks are to be sent."""
        self._asked: set[bytes] = set()
        """Chunks to be sent whatever is believed."""

    def arguments(self, place: tuple[tuple[bytes, ...], tuple[Argument, Argument]]) -> list[Argument]:
        """What `lua/put.lua` takes, with what `_place` answered; the names only where they are not believed to be stored."""
        sent, others, unchanged = list[tuple[str, bytes]](), list[bytes](), list[bytes]()
        for flag, (channel, field) in zip(self._flags, self._fields.items(), strict=True):
            if flag == b"v":
                sent.append((channel, field))
            else:
                (unchanged if flag == b"u" else others).append(field)
        sent += self._aside.items()
        values, bases, fingerprints, chunks = list[bytes](), list[bytes](), list[bytes](), dict[bytes, bytes]()
        for channel, _ in sent:
            stored = self._stored(channel)
            values.append(stored.value)
            if stored.chunks:
                last = self._seen.get((self._ns, channel)) if channel not in self._whole else None
                bases.append(last.field if last else b"")
                fingerprints.append(last.stored.value[1 : 1 + DIGEST] if last else b"")
                for chunk in self._chosen(channel, stored):
                    chunks[chunk] = stored.chunks[chunk]
        names_chunk = self.version_table.names_chunk
        chunks.pop(names_chunk, None)
        listed = (
            b"" if names_chunk in self._believed(None) and names_chunk not in self._asked else self.version_table.names
        )
        fields = [field for _, field in sent]
        packed = [compression.compress(chunk) if field[:1] == ZSTD else chunk for field, chunk in chunks.items()]
        counts = (len(values), len(bases), len(chunks))
        where, ttl = place
        lists = (fields, bases, chunks, others, unchanged, values, fingerprints, packed)
        return [*where, listed, b"".join(self._flags), *ttl, *counts, *chain.from_iterable(lists)]

    def _stored(self, channel: str) -> Stored:
        if (stored := self._encoded.get(channel)) is None:
            last = self._seen.get((self._ns, channel))
            before = last.stored if last else None
            stored = codec.encode_value(self._context, self._values[channel], channel, before)
            self._encoded[channel] = stored
        return stored

    def _believed(self, channel: str | None) -> Mapping[bytes, bytes]:
        """The chunks that the server is believed to have, of the last version seen."""
        last = self._seen.get((self._ns, channel))
        return last.stored.chunks if last else {}

    def _chosen(self, channel: str, stored: Stored) -> Iterable[bytes]:
        """The chunks to send of a value: those the server is not believed to have.

        Where nothing is known of a thread that has checkpoints, because another process wrote them, the guess is that a
        value has grown by its last chunk. The lists above are sent, so that the server can tell in one answer what it lacks.
        """
        if channel in self._whole:
            return stored.chunks
        believed = self._believed(channel)
        if believed or self._complete:
            fields = stored.chunks if self._asked else stored.new
            return [field for field in fields if field not in believed or field in self._asked]
        last = stored.levels[0].fields[-1]
        return [field for field in stored.chunks if field[:1] == LIST or field == last or field in self._asked]

    def take(self, missing: Sequence[int | bytes]) -> None:
        """Note what the server lacks.

        Raises:
            ValueError: It names nothing that could be sent and was not yet: then it would go on asking for ever.
        """
        before = len(self._asked), len(self._whole), self._flags.copy()
        known = {self.version_table.names_chunk}.union(*[stored.chunks for stored in self._encoded.values()])
        self._asked.update(one for one in missing if isinstance(one, bytes) and one in known)
        again = {one - 1 for one in missing if isinstance(one, int)}
        if self.version_table.names_chunk in self._asked:  # nothing is as it was believed to be
            again.update(position for position, flag in enumerate(self._flags) if flag == b"u")
            self._whole.update(self._values)
        lists = {field for field in self._asked if field[:1] == LIST}
        self._whole.update(channel for channel, stored in self._encoded.items() if lists & stored.chunks.keys())
        for position, channel in enumerate(self._fields):
            if position in again:
                self._flags[position] = b"v"
                self._whole.add(channel)
        if (len(self._asked), len(self._whole), self._flags) == before:
            raise ValueError(f"the server asks for {len(missing)} values or chunks, all of which it was sent")
        self._mistaken = True

    def seen_now(self) -> Update:
        """What is known of the thread once all this is stored."""
        seen: dict[ChannelKey, Version | None] = {}
        for channel, stored in self._encoded.items():
            field = self._aside.get(channel) or self._fields[channel]
            seen[self._ns, channel] = Version(field, stored) if stored.chunks else None
        if self._complete and not self._mistaken:
            names_chunk, last = self.version_table.names_chunk, self._seen.get((self._ns, None))
            seen[self._ns, None] = (
                last if last and last.field == names_chunk else names_version(names_chunk, self.version_table.names)
            )
        return seen


def put_writes(
    context: Context, given: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Operation[None]:
    """Store the pending writes of a task."""
    thread, ns, checkpoint_id = config.address(given)
    if not checkpoint_id:
        raise ValueError('config["configurable"] has no "checkpoint_id"; pending writes belong to a checkpoint')
    check_names(context, thread, ns, checkpoint_id)
    context.limits.check_name(task_id, "a task")
    if not writes:
        return
    regular, special = codec.encode_writes(context, writes, task_path)
    arguments: list[Argument] = [names.task(ns, checkpoint_id, task_id), b"".join(regular), len(regular)]
    arguments += (default_ttl(context), config.thread_ttl(given) or b"")
    for index, record in special.items():
        arguments += (index, record)
    yield Call(scripts.PUT_WRITES, context.keyspace.keys(thread), arguments)
