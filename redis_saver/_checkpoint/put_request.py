"""What `put` sends: a checkpoint as `lua/checkpoint/put.lua` takes it, without what the server is believed to have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.types import TASKS

from redis_saver._checkpoint.retention import is_call, root_of
from redis_saver._common import config, limits, names
from redis_saver._common.config import Address
from redis_saver._engine.requests import Argument
from redis_saver._storage import codec, compression
from redis_saver._storage import header as headers
from redis_saver._storage.chunk_cache import (
    MAX_KNOWN_FIELDS,
    WRITTEN,
    Cached,
    ChannelKey,
    KnownTable,
    Update,
    Version,
    fields_in,
    names_version,
)
from redis_saver._storage.chunks import DIGEST, LIST, ZSTD, Stored
from redis_saver._storage.context import Context, default_ttl
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.header import NEW, UNCHANGED, VersionTable, version_table

NEVER = b"-"
"""In place of how much is to be kept: nothing is to be removed by this put, whatever the thread says."""
_NEW, _UNCHANGED = NEW[0], UNCHANGED[0]


class PutRequest:
    """A checkpoint that is put, as `lua/checkpoint/put.lua` takes it: its names, its header, and of its values what is to be sent."""

    def __init__(
        self,
        context: Context,
        where: Address,
        given: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        cached: Cached,
        *,
        knows_all: bool = False,
    ) -> None:
        """Look at a checkpoint.

        Args:
            context: The saver.
            where: The parent.
            given: The config, for what it adds to the metadata, and for a TTL.
            checkpoint: The checkpoint.
            metadata: Its metadata.
            new_versions: The versions of the channels that were written.
            cached: What the chunk cache has of the thread.
            knows_all: Whether nothing else is to be expected on the server.

        Raises:
            LimitExceeded: A name is too long, or there are too many channels.
            EncodeError: The serializer does not know a value.
        """
        self._context, self._ns, self._cached = context, where.checkpoint_ns, cached
        self._values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        limits.check(context.limits, "channels", len(versions), "checkpoint {!r} has {} channels", checkpoint["id"])
        prefix = names.blob(self._ns)
        self._table = table = version_table(checkpoint, new_versions, prefix)
        _check_table(context, table, len(prefix))
        # Without a parent the thread has nothing yet, most likely.
        self._knows_all, self._was_wrong = knows_all or not where.checkpoint_id or (self._ns, None) in cached, False
        self._fields = dict(zip(versions, table.fields, strict=True))
        """Where each channel's version is stored."""
        self._flags = bytearray(table.flags)
        """What the script is told of each of them."""
        self._retained = {} if table.written == len(new_versions) else _retained(checkpoint, new_versions, prefix)
        """Values that are stored without being the checkpoint's."""
        self._encoded: dict[str, Stored] = {}
        # A Send shares chunks with other channels and with the pending write that it was. No stored version proves them.
        has_sends = (self._ns, WRITTEN) in cached or (TASKS in new_versions and TASKS in self._values)
        self._shared: Collection[bytes] = fields_in(cached) if has_sends else ()
        """Chunks that the server is believed to have of any channel; only if there are `Send`s."""
        self._in_full: set[str] = set()
        """Channels all of whose chunks are to be sent."""
        self._wanted: set[bytes] = set()
        """Chunks to be sent whatever the cache says."""
        checkpoint_id = config.name(checkpoint["id"], "checkpoint id")
        merged = get_checkpoint_metadata(given, metadata)
        for key in config.OURS:
            merged.pop(key, None)  # type: ignore[misc]  # which is about the thread; LangGraph takes texts along
        run_id = merged.get("run_id")
        run = b"" if run_id is None else names.run(str(run_id))
        limits.check_names(context.limits, [run], "a run")
        by_age = names.by_age(self._ns, checkpoint_id) if self._ns else b""
        header = headers.encode(
            context,
            where.checkpoint_id,
            run,
            checkpoint,
            merged,
            table,
            pack([field[len(prefix) :] for field in self._retained.values()]),
        )
        self._names = (names.checkpoint(self._ns, checkpoint_id), by_age, run, header, self._table.names_chunk)
        self._ttls = (default_ttl(context), config.thread_ttl(given) or b"")
        self._history = NEVER if knows_all else _history(context, self._ns, given, merged)

    def arguments(self) -> list[Argument]:
        """What `lua/checkpoint/put.lua` takes; the names of channels only where they are not believed to be stored."""
        sent, others, unchanged = dict[str, bytes](), list[bytes](), list[bytes]()
        for flag, (channel, field) in zip(self._flags, self._fields.items(), strict=True):
            if flag == _NEW:
                sent[channel] = field
            elif flag == _UNCHANGED:
                unchanged.append(field)
            else:
                others.append(field)
        fields = [*sent.values(), *self._retained.values()]
        values, bases, fingerprints, chunks = list[bytes](), list[bytes](), list[bytes](), dict[bytes, bytes]()
        for channel in (*sent, *self._retained):
            stored = self._encode(channel)
            values.append(stored.value)
            if stored.chunks:
                relies_on_base = not self._shared and channel not in self._in_full
                last = self._cached.get((self._ns, channel)) if relies_on_base else None
                bases.append(last.field if last else b"")
                fingerprints.append(last.stored.value[1 : 1 + DIGEST] if last else b"")
                for chunk in self._chunks_to_send(channel, stored):
                    chunks[chunk] = stored.chunks[chunk]
        names_chunk = self._table.names_chunk
        chunks.pop(names_chunk, None)
        is_cached = names_chunk in self._cached_chunks(None) and names_chunk not in self._wanted
        packed: Iterable[bytes] = chunks.values()
        if self._context.compression is not None:
            packed = [compression.compress(chunk) if field[:1] == ZSTD else chunk for field, chunk in chunks.items()]
        counts = (len(values), len(bases), len(chunks), len(others), len(unchanged))
        listed = b"" if is_cached else self._table.names
        return [
            *self._names, listed, bytes(self._flags), *self._ttls, *counts, self._history,
            *fields, *bases, *chunks, *others, *unchanged, *values, *fingerprints, *packed,
        ]  # fmt: skip

    def _encode(self, channel: str) -> Stored:
        if (stored := self._encoded.get(channel)) is None:
            last = self._cached.get((self._ns, channel))
            before = last.stored if last else None
            stored = codec.encode_value(self._context, self._values[channel], channel, before)
            self._encoded[channel] = stored
        return stored

    def _cached_chunks(self, channel: str | None) -> Mapping[bytes, bytes]:
        """The chunks that the server is believed to have, of the last version seen."""
        last = self._cached.get((self._ns, channel))
        return last.stored.chunks if last else {}

    def _chunks_to_send(self, channel: str, stored: Stored) -> Iterable[bytes]:
        """The chunks to send of a value: those the server is not believed to have.

        Where nothing is known of a thread that has checkpoints, because another process wrote them, the guess is that a
        value has grown by its last chunk. The lists above are sent, so that the server can tell in one answer what it lacks.
        """
        if channel in self._in_full:
            return stored.chunks
        cached = self._shared or self._cached_chunks(channel)
        if cached or self._knows_all:
            fields = stored.chunks if self._wanted else stored.new
            return [field for field in fields if field not in cached or field in self._wanted]
        last = stored.levels[0].fields[-1]
        return [field for field in stored.chunks if field[:1] == LIST or field == last or field in self._wanted]

    def include(self, missing: Sequence[int | bytes]) -> None:
        """Send what the server lacks, too.

        Raises:
            ValueError: It names nothing that could be sent and was not yet: then it would go on asking for ever.
        """
        before = len(self._wanted), len(self._in_full), self._flags.copy()
        known = {self._table.names_chunk}.union(*[stored.chunks for stored in self._encoded.values()])
        self._wanted.update(one for one in missing if isinstance(one, bytes) and one in known)
        again = {one - 1 for one in missing if isinstance(one, int)}
        if self._table.names_chunk in self._wanted:  # nothing is as it was believed to be
            again.update(position for position, flag in enumerate(self._flags) if flag == _UNCHANGED)
            self._in_full.update(self._values)
        lists = {field for field in self._wanted if field[:1] == LIST}
        self._in_full.update(channel for channel, stored in self._encoded.items() if lists & stored.chunks.keys())
        for position, channel in enumerate(self._fields):
            if position in again and channel in self._values:
                self._flags[position] = _NEW
                self._in_full.add(channel)
        if (len(self._wanted), len(self._in_full), self._flags) == before:
            raise ValueError(f"the server asks again for {len(missing)} values or chunks that were sent to it")
        self._was_wrong = True

    def known_table(self) -> KnownTable | None:
        """The checkpoint's version table, for who reads it next."""
        if len(self._fields) > MAX_KNOWN_FIELDS:
            return None
        table = self._table
        links = (table.names_chunk, table.slots, table.tokens)
        return KnownTable(self._names[0], links, tuple(self._fields.values()))

    def stored(self) -> Update:
        """What is known of the thread once all this is stored."""
        seen: dict[ChannelKey, Version | None] = {}
        for channel, stored in self._encoded.items():
            field = self._retained.get(channel) or self._fields[channel]
            seen[self._ns, channel] = Version(field, stored) if stored.chunks else None
        if self._knows_all and not self._was_wrong:
            names_chunk, last = self._table.names_chunk, self._cached.get((self._ns, None))
            seen[self._ns, None] = (
                last if last and last.field == names_chunk else names_version(names_chunk, self._table.names)
            )
        return seen


def _history(context: Context, ns: str, given: RunnableConfig, metadata: CheckpointMetadata) -> bytes:
    """How much is to be kept, as `lua/checkpoint/put.lua` takes it.

    Of a subgraph's call the root checkpoint is always told: the thread may have a limit of its own.
    """
    own, root = config.thread_history(given), root_of(metadata) if is_call(ns) else None
    if context.keep_last is None and not own and not root:
        return b""
    default = b"" if context.keep_last is None else b"%d" % context.keep_last
    return b"%s/%s/%s" % (default, own, names.component(root) if root else b"")


def _retained(checkpoint: Checkpoint, new_versions: ChannelVersions, prefix: bytes) -> dict[str, bytes]:
    """Where values are stored that have another version than the checkpoint says."""
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    return {
        channel: prefix + names.entry(channel, version)
        for channel, version in new_versions.items()
        if channel in values and versions.get(channel) != version
    }


def _check_table(context: Context, table: VersionTable, prefix: int) -> None:
    """Check the names of channels and nodes, and the versions.

    Raises:
        LimitExceeded: One is too long.
    """
    if len(table.names) > context.limits.name_bytes:
        limits.check_names(context.limits, table.names.split(b"\0"), "a channel or node")
    if max(map(len, table.fields), default=0) - prefix > context.limits.name_bytes:
        limits.check_names(context.limits, [field[prefix:] for field in table.fields], "a channel with its version")
    if len(table.tokens) > context.limits.name_bytes:
        limits.check_names(context.limits, unpack(table.tokens), "a version that a node has seen")


def whole(context: Context, found: CheckpointTuple) -> list[Argument]:
    """What `lua/checkpoint/put.lua` takes for a checkpoint with all its values, whatever the server may have."""
    where = config.address(found.config)
    given = found.parent_config or config.to_config(where.thread_id, where.checkpoint_ns, "")
    values, versions = found.checkpoint["channel_values"], found.checkpoint["channel_versions"]
    new = {channel: version for channel, version in versions.items() if channel in values}
    parent = where._replace(checkpoint_id=config.checkpoint_id(given))
    return PutRequest(context, parent, given, found.checkpoint, found.metadata, new, {}, knows_all=True).arguments()
