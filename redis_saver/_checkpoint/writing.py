"""Operations that write a checkpoint or its pending writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.delta import COUNTERS
from redis_saver._checkpoint.guards import GuardedScript, NewCheckpoint, remember_loop, with_parent, writer_of
from redis_saver._checkpoint.pruning import Limit, trim
from redis_saver._common import config as configs, limits, names
from redis_saver._common.config import Address, ThreadSettings
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.replies import PutReply
from redis_saver._engine.requests import Argument, Operation, Sleep
from redis_saver._storage import codec, compression, header as headers
from redis_saver._storage.chunk_cache import NOTHING, ChannelKey, KnownCheckpoint, KnownThread, Update, Version
from redis_saver._storage.chunks import LIST, ZSTD, Stored
from redis_saver._storage.context import Context
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.header import EMPTIED, NEW, UNCHANGED, VersionTable, version_table
from redis_saver._storage.sealing import SpecialCall
from redis_saver.errors import decoding

_LOG = ThrottledLog("redis_saver.checkpoint")
_NO_LIMIT = b"-"
"""History limit of a checkpoint that is copied to hot. It ignores the limits of the saver and of the thread."""
_POLL, _POLLS = 0.001, 50
"""Pause in seconds, and number, of a put's looks whether the pending writes that it overtook are stored."""
_NEW, _UNCHANGED, _EMPTIED = NEW[0], UNCHANGED[0], EMPTIED[0]


def put(
    context: Context,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Operation[RunnableConfig]:
    """Store a checkpoint."""
    new = NewCheckpoint(*configs.address_and_settings(config), config, checkpoint, metadata, new_versions)
    thread = new.address.thread_id
    writer = writer_of(context, thread, new.settings.owner)
    if context.refuses_forks:
        writer = with_parent(writer, context, new)
    if context.check_values is not None:
        context.check_values.check(context.serde, new_values(new))
    yield from store(context, new, GuardedScript(scripts.PUT, context.keyspace.keys(thread), writer))
    if context.refuses_forks:
        remember_loop(context, new)
    return configs.to_config(thread, new.address.checkpoint_ns, checkpoint["id"])


def new_values(new: NewCheckpoint) -> Iterator[tuple[str, Any]]:
    """Yield the channels of a checkpoint that were written, with their values."""
    values = new.checkpoint["channel_values"]
    return ((channel, values[channel]) for channel in new.new_versions if channel in values)


def store(context: Context, new: NewCheckpoint, by: GuardedScript, *, attempts: int = 3) -> Operation[bool]:
    """Store a checkpoint. If the server lacks values that were not sent, send it again with all of them.

    A value whose version had none at the parent is left out, as LangGraph's savers store only new versions.
    If the script answers that the thread is over its history limit, remove old checkpoints (`pruning.trim`).

    Args:
        context: The saver.
        new: The checkpoint.
        by: `put.lua`, or a script that replaces it.
        attempts: Maximum number of attempts to find the parent that the checkpoint keeps over two tiers.

    Returns:
        False if the script refused the checkpoint.
    """
    data_key, cache, (thread, ns, parent) = by.keys[1], context.chunk_cache, new.address
    stored = encoded(context, new, cache.of(data_key))
    reply = yield by.call(*stored.arguments)
    if without := _valueless(new, _lacked(reply)):
        new = _leaving_out(new, without)
        stored = encoded(context, new, cache.of(data_key))
        reply = yield by.call(*stored.arguments)
    if (lacked := _lacked(reply)) and cache.of(data_key).wrote(lacked):
        # It overtook pending writes with which it shares chunks. LangGraph does not wait for them.
        polls = 0
        while (known := cache.of(data_key)).sent and polls < _POLLS:
            yield Sleep(_POLL)
            polls += 1
        came = polls > 0 and not known.sent
        stored = encoded(context, new, known if came else known.without_writes())
        reply = yield by.call(*stored.arguments)
    if _lacked(reply):
        _LOG.info(
            "the server no longer has values of thread %s, which expired or was deleted, pruned or restored; "
            "they are sent again",
            shown(thread),
        )
        cache.forget(data_key)
        stored = encoded(context, new, sends_all=True)
        reply = yield by.call(*stored.arguments)
    if reply == PutReply.REFUSED:
        return False
    if isinstance(reply, bytes) and attempts > 1:  # the parent of the first put, which cold keeps
        with decoding("the parent of checkpoint {!r}", new.checkpoint["id"]):
            address = new.address._replace(checkpoint_id=names.name_of(reply) or None)
        return (yield from store(context, new._replace(address=address), by, attempts=attempts - 1))
    if not isinstance(reply, list) or list(map(type, reply)) != [bytes, bytes, int]:
        wrong = ValueError(f"{shown(reply)} is neither a put's answer, nor a list of what was not sent")
        raise decoding("what put answered about thread {!r}", thread).of(wrong)
    before, tag, keep_last = reply
    cache.remember(data_key, stored.seen, ns, stored.checkpoint, before, tag)
    if keep_last:
        written = frozenset(((ns, str(new.checkpoint["id"])), (ns, parent or "")))
        dirty = b"" if by.script is scripts.PUT else context.keyspace.tier_keys(thread).dirty
        yield from trim(context, thread, Limit(keep_last, written, dirty, by.writer))
    return True


def _lacked(reply: Any) -> Sequence[Any]:
    """Return the names of what the server lacks, according to `lua/checkpoint/put.lua`."""
    return reply[3:] if isinstance(reply, list) else ()


def _valueless(new: NewCheckpoint, missing: Sequence[Any]) -> list[str]:
    """Return the channels whose version had no value at the parent, according to `lua/checkpoint/put.lua`."""
    channels = [*new.checkpoint["channel_versions"]]
    return [channels[-1 - place] for place in missing if isinstance(place, int) and -len(channels) <= place < 0]


def _leaving_out(new: NewCheckpoint, channels: Collection[str]) -> NewCheckpoint:
    """Return a checkpoint without the values of some channels."""
    values = {name: value for name, value in new.checkpoint["channel_values"].items() if name not in channels}
    return new._replace(checkpoint={**new.checkpoint, "channel_values": values})


class Encoded(NamedTuple):
    """A checkpoint to put, and the process's memory of it once it is stored."""

    arguments: list[Argument]
    """The arguments of `lua/checkpoint/put.lua`."""
    seen: Update
    """The versions of the thread's values."""
    checkpoint: KnownCheckpoint
    """The checkpoint as it is stored."""


def encoded(context: Context, new: NewCheckpoint, known: KnownThread = NOTHING, *, sends_all: bool = False) -> Encoded:
    """Encode a checkpoint, without the values and chunks that the server should have.

    If the process put or read all of these under the thread's tag, the arguments name the tag. Then the script does not
    check them.

    Args:
        context: The saver.
        new: The checkpoint.
        known: The process's memory of the thread.
        sends_all: True: send all values, even those that the server has.

    Raises:
        LimitExceeded: A name is too long, or there are too many channels.
        EncodeError: The serializer does not know a value.
    """
    checkpoint, ns, parent = new.checkpoint, new.address.checkpoint_ns, new.address.checkpoint_id
    checkpoint_id, prefix = configs.name(checkpoint["id"], "checkpoint id"), names.blob(ns)
    table = version_table(checkpoint, new.new_versions, prefix)
    _check_sizes(context, new.address, checkpoint_id, table, len(prefix))
    retained = {} if table.written == len(new.new_versions) else _retained(new, prefix)
    # A checkpoint without a parent is most likely the first of its thread.
    sending = _Sending(context, ns, known, table, has_all=sends_all or not parent)
    flags = table.flags.replace(UNCHANGED, NEW) if sends_all else table.flags
    sending.find_values(checkpoint, flags)
    if sending.valueless:  # LangGraph puts a value for a version that never had one
        return encoded(context, _leaving_out(new, sending.valueless), known, sends_all=sends_all)
    values = checkpoint["channel_values"]
    stored = {field: sending.add(channel, field, values[channel]) for channel, field in sending.sent.items()}
    sending.contents.update(stored)
    stored |= {field: sending.add(channel, field, values[channel]) for channel, field in retained.items()}

    merged, run = _merged(context, new)
    entries = pack([field[len(prefix) :] for field in retained.values()]) if retained else b""
    header = headers.encode(context, parent, run, checkpoint, merged, table, entries)
    member, by_age = names.checkpoint(ns, checkpoint_id), names.by_age(ns, checkpoint_id) if ns else b""
    own = new.settings.history
    limit = b"" if context.keep_last is None and not own else _history(context, own)
    sealed, key, contents = header, b"", list(stored.values())
    if (cipher := context.cipher) is not None:
        sealed, key = cipher.seal_header(member, header, _known_writes(context, new.address, merged)), cipher.argument
        contents = [cipher.seal_value(*value) for value in stored.items()]
    fixed = scripts.PutArguments(
        checkpoint=member, by_age=by_age, run=run, header=sealed, flags=flags,
        default=context.expiry.milliseconds or b"", own=new.settings.ttl or b"", history=limit,
        tag=known.newest_tag if sending.is_proven else b"", random=b"%016x" % names.random(),
        n=len(stored), p=len(sending.chunks), q=len(sending.emptied), key=key,
    )  # fmt: skip
    chunks = _packed(context, sending.chunks, table.names_chunk)
    arguments: list[Argument] = [*fixed, *stored, *sending.chunks, *sending.emptied, *contents, *chunks]
    return Encoded(arguments, sending.seen, KnownCheckpoint(member, header, table.names_chunk, sending.contents))


class _Sending:
    """The values and chunks that a put sends. Also knows whether the thread's tag proves the others."""

    def __init__(self, context: Context, ns: str, known: KnownThread, table: VersionTable, *, has_all: bool) -> None:
        """Begin with the names of the channels and nodes. With `has_all`, nothing else is expected on the server."""
        self.seen: dict[ChannelKey, Version | None] = {}
        """The versions of the thread's values."""
        self.chunks: dict[bytes, bytes] = {}
        """The chunks that are sent, by field."""
        self.contents: dict[bytes, bytes | None] = {}
        """The contents of the fields of all values. None: the field has no value. Empty: not known."""
        self.sent: dict[str, bytes] = {}
        """The fields whose values are sent, by channel."""
        self.emptied: list[bytes] = []
        self.valueless: list[str] = []
        """Channels whose version had no value at the parent."""
        self.is_proven: bool = known.newest_tag != b""
        """True if the thread's newest tag proves what is left out."""
        self._context, self._ns, self._known, self._table = context, ns, known, table
        last = known.versions.get((ns, None))
        self._knows_all = has_all or last is not None
        if last is not None and last.field == table.names_chunk:
            self._rely_on(last)
            self.seen[ns, None] = last
        else:
            self.chunks[table.names_chunk] = table.names
            if self._knows_all:
                self.seen[ns, None] = Version.of_names(table.names_chunk, table.names)

    def _rely_on(self, version: Version) -> None:
        self.is_proven = self.is_proven and version.chain == self._known.chain

    def find_values(self, checkpoint: Checkpoint, flags: bytes) -> None:
        """Find the fields of the checkpoint's values. Those of the parent are expected on the server."""
        last = self._known.checkpoints.get(self._ns)
        unchanged = last.values if last and last.chain == self._known.chain else {}
        for flag, channel, field in zip(flags, checkpoint["channel_versions"], self._table.fields, strict=True):
            value: bytes | None = None
            if flag == _NEW:
                self.sent[channel] = field
            elif flag == _UNCHANGED:
                known = unchanged.get(field)
                self.is_proven = self.is_proven and known is not None
                value = known or b""
                if known is None and field in unchanged:
                    self.valueless.append(channel)
            elif flag == _EMPTIED:
                self.emptied.append(field)
            else:
                self.is_proven = self.is_proven and unchanged.get(field, b"") is None
            self.contents[field] = value

    def add(self, channel: str, field: bytes, value: Any) -> bytes:
        """Encode a value, and send the chunks that the server may lack. Returns the contents of its field."""
        last = self._known.versions.get((self._ns, channel))
        stored = codec.encode_value(self._context, value, channel, last.stored if last else None)
        self.seen[self._ns, channel] = Version(field, stored) if stored.chunks else None
        if not stored.chunks:
            return stored.value
        self.is_proven = self.is_proven and (last is not None or self._knows_all)
        if last is not None:
            self._rely_on(last)
        for chunk in stored.new if last or self._knows_all else _likely_new(stored):
            # Pending writes and other channels may have it, too.
            holder = last if last and chunk in last.stored.chunks else self._known.holder(chunk)
            if holder is None:
                self.chunks[chunk] = stored.chunks[chunk]
            else:
                self._rely_on(holder)
        return stored.value


def _merged(context: Context, new: NewCheckpoint) -> tuple[CheckpointMetadata, bytes]:
    """Return the metadata with what the config adds, and the run's member of the index or nothing."""
    merged, run = get_checkpoint_metadata(new.config, new.metadata), b""
    for ours in configs.OURS:
        merged.pop(ours, None)  # type: ignore[misc]  # LangGraph merges all strings of `configurable`
    if (run_id := merged.get("run_id")) is not None:
        run = names.run(str(run_id))
        limits.check_names(context.limits, [run], "a run")
    return merged, run


def _known_writes(context: Context, address: Address, metadata: Mapping[str, Any]) -> bytes:
    """Return the known tasks with writes at a parent, from which a graph with a `DeltaChannel` rebuilds the child."""
    if not address.checkpoint_id or COUNTERS not in metadata or context.data_keys is None or context.cipher is None:
        return b""
    return context.data_keys.writes_of(context.cipher, address.checkpoint_ns, address.checkpoint_id)


def _packed(context: Context, chunks: Mapping[bytes, bytes], names_chunk: bytes = b"") -> list[bytes]:
    """Return the chunks as they are stored: compressed and sealed, as the saver is set. Names stay open."""
    packed = list(chunks.values())
    if context.compression is not None:
        packed = [compression.compress(chunk) if field[:1] == ZSTD else chunk for field, chunk in chunks.items()]
    if (cipher := context.cipher) is not None:
        pairs = zip(chunks, packed, strict=True)
        packed = [chunk if field == names_chunk else cipher.seal_chunk(field, chunk) for field, chunk in pairs]
    return packed


def _likely_new(stored: Stored) -> list[bytes]:
    """Return the chunks of a value to send if this process does not know its earlier versions.

    The value has probably grown by its last chunk, so this one is sent. The lists of chunks are sent, too, so the
    script can name all missing chunks in one reply.
    """
    last = stored.levels[0].fields[-1]
    return [field for field in stored.chunks if field[:1] == LIST or field == last]


def _history(context: Context, own: bytes) -> bytes:
    """Return the history limits of the saver and of the thread as `lua/checkpoint/put.lua` takes them."""
    if own == _NO_LIMIT:
        return own
    return (b"" if context.keep_last is None else b"%d" % context.keep_last) + b"/" + own


def _retained(new: NewCheckpoint, prefix: bytes) -> dict[str, bytes]:
    """Return the fields of new values whose version differs from that in `channel_versions`."""
    values, versions = new.checkpoint["channel_values"], new.checkpoint["channel_versions"]
    return {
        channel: prefix + names.entry(channel, version)
        for channel, version in new.new_versions.items()
        if channel in values and versions.get(channel) != version
    }


def _check_sizes(context: Context, address: Address, checkpoint_id: str, table: VersionTable, prefix: int) -> None:
    """Check the number of channels, and the length of all names and versions.

    Raises:
        LimitExceeded: There are too many channels, or a name or version is too long.
    """
    check_names(context, address, checkpoint_id, "a checkpoint")
    most = context.limits.name_bytes
    if len(table.fields) > limits.FIXED["channels"]:
        limits.check(context.limits, "channels", len(table.fields), "checkpoint {!r} has {} channels", checkpoint_id)
    if len(table.names) > most:
        limits.check_names(context.limits, table.names.split(b"\0"), "a channel or node")
    if max(map(len, table.fields), default=0) - prefix > most:
        limits.check_names(context.limits, [field[prefix:] for field in table.fields], "a channel with its version")
    if len(table.tokens) > most:
        limits.check_names(context.limits, unpack(table.tokens), "a version that a node has seen")


def whole(context: Context, saved: CheckpointTuple) -> list[Argument]:
    """Return the arguments of `lua/checkpoint/put.lua` for a checkpoint with all its values."""
    address = configs.address(saved.config)
    config = saved.parent_config or configs.to_config(address.thread_id, address.checkpoint_ns, "")
    values, channel_versions = saved.checkpoint["channel_values"], saved.checkpoint["channel_versions"]
    new = {channel: version for channel, version in channel_versions.items() if channel in values}
    parent, settings = address._replace(checkpoint_id=configs.checkpoint_id(config)), ThreadSettings(history=_NO_LIMIT)
    copied = NewCheckpoint(parent, settings, config, saved.checkpoint, saved.metadata, new)
    return encoded(context, copied, sends_all=True).arguments


def check_names(context: Context, address: Address, name: str, what: str) -> None:
    """Check the names of an address and one more name, which an error calls `what`.

    Raises:
        LimitExceeded: A name is too long.
    """
    thread, ns, checkpoint_id = address
    if 4 * max(len(thread), len(ns), len(checkpoint_id or ""), len(name)) > context.limits.name_bytes:
        limits.check_name(context.limits, thread, "a thread")
        limits.check_name(context.limits, ns, "a namespace")
        limits.check_name(context.limits, checkpoint_id or "", "a checkpoint")
        limits.check_name(context.limits, name, what)


class TaskWrites(NamedTuple):
    """Pending writes of a task to put."""

    address: Address
    """Their checkpoint."""
    settings: ThreadSettings
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str

    @classmethod
    def of(cls, config: RunnableConfig, *arguments: Any) -> TaskWrites:
        """Return the arguments of `put_writes` as a record.

        Raises:
            TypeError, ValueError: The config names no checkpoint, or has another wrong entry.
        """
        address, settings = configs.address_and_settings(config)
        if not address.checkpoint_id:
            raise ValueError(
                'config["configurable"] has no "checkpoint_id": '
                "pass the config of the checkpoint that the pending writes belong to"
            )
        return cls(address, settings, *arguments)


def put_writes(
    context: Context, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Operation[None]:
    """Store the pending writes of a task."""
    new = TaskWrites.of(config, writes, task_id, task_path)
    if writes:
        thread = new.address.thread_id
        writer = writer_of(context, thread, new.settings.owner)
        if context.check_values is not None:
            context.check_values.check(context.serde, writes)
        yield from store_writes(context, new, GuardedScript(scripts.PUT_WRITES, context.keyspace.keys(thread), writer))


def store_writes(context: Context, new: TaskWrites, by: GuardedScript) -> Operation[bool]:
    """Store a non-empty list of pending writes. The result is that of `store`."""
    (thread, ns, checkpoint_id), settings, writes, task_id, task_path = new
    check_names(context, new.address, task_id, "a task")
    chunks: dict[bytes, bytes] = {}
    regular, special = codec.encode_writes(context, writes, task_path, chunks)
    member, key = names.task(ns, checkpoint_id or "", task_id), b""
    if (cipher := context.cipher) is not None:
        regular, key = cipher.seal_writes(member, regular), cipher.argument
        if special:
            special = cipher.seal_special(member, special, SpecialCall.new(special, regular))
    cache, data_key = context.chunk_cache, by.keys[1]
    lacked, before, end = dict[bytes, bytes](), b"", b""
    if chunks:
        (lacked, before), end = _lacking(cache.of(data_key), chunks), b"%016x" % names.random()
        cache.note_sent(data_key, ns, chunks, before, end)
    fixed = scripts.PutWritesArguments(
        member=member, regular=b"".join(regular), count=len(regular),
        default=context.expiry.milliseconds or b"", own=settings.ttl or b"", key=key,
        tags=before + b" " + end if chunks else b"",
    )  # fmt: skip
    arguments: list[Argument] = [*fixed]
    for index, record in special.items():
        arguments += (index, record)
    tag = b""
    try:
        reply = yield by.call(*arguments, *_pairs(context, lacked))
        if isinstance(reply, list) and len(reply) > 2 and len(lacked) < len(chunks):
            cache.forget(data_key)
            reply = yield by.call(*arguments, *_pairs(context, chunks))
        if reply == PutReply.REFUSED:
            return False
        if chunks:
            with decoding("what put_writes answered about thread {!r}", thread):
                if not isinstance(reply, list) or list(map(type, reply)) != [int, bytes]:
                    raise ValueError(f"{shown(reply)} is neither a number and a tag, nor a list of what was not sent")
            tag = reply[1]
    finally:
        if chunks:
            cache.note_stored(data_key, ns, before, end, tag)
    if cipher is not None:
        context.note_writes(ns, checkpoint_id or "", [(task_id, channel) for channel, _ in writes])
    return True


def _lacking(known: KnownThread, chunks: Mapping[bytes, bytes]) -> tuple[dict[bytes, bytes], bytes]:
    """Return the chunks that the server may lack. Also return the tag that proves the others, if there is one."""
    holders = {field: known.holder(field) for field in chunks}
    lacked = {field: chunks[field] for field, holder in holders.items() if holder is None}
    is_proven = all(holder.chain == known.chain for holder in holders.values() if holder)
    return lacked, known.newest_tag if is_proven else b""


def _pairs(context: Context, chunks: Mapping[bytes, bytes]) -> list[bytes]:
    """Return chunks as `lua/checkpoint/put_writes.lua` takes them: field, bytes, field, bytes, ..."""
    return [part for pair in zip(chunks, _packed(context, chunks), strict=True) for part in pair]
