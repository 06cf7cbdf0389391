"""Encode values and pending writes to their stored bytes. Decode values, pending writes and whole checkpoints.

A stored value is a frame with the serializer's type, then the serializer's bytes. Long lists and dicts are the same
bytes in chunks (`chunks.py`). `header.py` encodes headers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite, writes_sort_key

from redis_saver._common import limits, names
from redis_saver._common.config import Address, to_config
from redis_saver._common.display import shown
from redis_saver._serde import fallback
from redis_saver._serde.cutter import OPENED
from redis_saver._serde.fingerprint import NONE, EncodedValue
from redis_saver._serde.serializer import takes_views
from redis_saver._storage import chunk_cache, chunks as chunked, compression, header as headers
from redis_saver._storage.context import Context
from redis_saver._storage.framing import pack, take, unpack
from redis_saver._storage.sealing import SpecialCall, check_special
from redis_saver.errors import RedisSaverError, decoding, encoding

Chunks = Mapping[bytes, bytes]
"""Bytes of chunks by field."""
NOTHING: Mapping[chunk_cache.ChannelKey, chunk_cache.Version] = {}

_VALUE, _WRITE = "the value of channel {!r}", "a write to channel {!r}"
_A_WRITE = _WRITE + " of task {!r} of {}"
_LONG = 64_000
"""Size in bytes from which a value is decoded without a copy, if the serializer can do that."""


# -- values


def encode_value(context: Context, value: Any, channel: str, before: chunked.Stored | None = None) -> chunked.Stored:
    """Encode a channel's value. Passing its last version makes this faster."""
    try:
        # Of the class: a serializer that wraps another one must not pass on the attribute of that one.
        if (dumps_rest := getattr(type(context.serde), "dumps_rest", None)) is None:
            encoded = EncodedValue(*_dumped(context, value))
        else:
            encoded = dumps_rest(context.serde, value, before.fingerprint if before else None)
        is_long = _size(context, encoded, _VALUE, channel) >= OPENED
        if is_long and (stored := _cut(context, encoded, _VALUE, channel, before)) is not None:
            return stored
        if encoded.front:
            return encode_value(context, value, channel)
    except RedisSaverError:
        raise
    except Exception as error:
        raise encoding("channel {!r}", channel).of(error) from error
    kind, data = _whole(context, encoded)
    return chunked.Stored(b"%d:%b%b" % (len(kind), kind, data), {})


def _dumped(context: Context, value: Any) -> tuple[str, bytes]:
    """Return the type and bytes of a value. A serializer of the user may return a `bytearray`."""
    kind, data = context.serde.dumps_typed(value)
    return kind, bytes(data)


def _whole(context: Context, encoded: EncodedValue) -> tuple[bytes, bytes]:
    """Return the type and bytes of a value or pending write that is stored whole, compressed if that is set."""
    kind, data = names.encode(encoded.type), encoded.data
    return compression.smaller(kind, data) if context.compression is not None else (kind, data)


def _size(context: Context, encoded: EncodedValue, what: str, channel: str) -> int:
    """Return the size of a value or a pending write, as `what` names it, before the work of cutting it.

    Raises:
        LimitExceeded: It is too long.
    """
    if (size := encoded.front + len(encoded.data)) > context.limits.value_bytes:
        limits.check(context.limits, "value_bytes", size, f"{what} has {{}} bytes", channel)
    return size


def _cut(
    context: Context, encoded: EncodedValue, what: str, channel: str, before: chunked.Stored | None = None
) -> chunked.Stored | None:
    """Cut a value or a pending write into chunks, as `what` names it. Return None if it is stored whole.

    Raises:
        LimitExceeded: It has too many chunks, or too many levels of lists of chunks.
    """
    kind = chunked.PLAIN if context.compression is None else chunked.ZSTD
    if (stored := chunked.cut(encoded, kind, before, context.digest, context.gear)) is None:
        return None
    levels, count = stored.levels, 0
    for level in levels:
        count += len(level.fields)
    if count > limits.FIXED["chunks"]:
        limits.check(context.limits, "chunks", count, f"{what} has {{}} chunks", channel)
    if len(levels) > limits.FIXED["depth"]:
        limits.check(context.limits, "depth", len(levels) - 1, f"{what} has {{}} levels of lists of chunks", channel)
    return stored


class Decoder(NamedTuple):
    """Decodes the values and pending writes of a checkpoint or a thread."""

    context: Context
    chunks: Chunks
    """Their chunks, and possibly others."""
    allowance: limits.Allowance
    """The size that they may have, with their owner for error messages."""

    def value(
        self, stored: bytes, channel: str, last: chunked.Stored | None = None, *, remembers: bool = False
    ) -> tuple[Any, chunked.Stored | None]:
        """Decode a value. Also return its chunks, if it is stored in chunks.

        Args:
            stored: The contents of the value's field.
            channel: The channel, for error messages.
            last: The version that was read last. The front that both share is not decoded again.
            remembers: True if the caller remembers the second result. Then it has more details.
        """
        context, chunks, allowance = self
        try:
            if stored[:1] not in chunked.KINDS:
                (kind,), start = take(stored, 0, 1)
                in_place = len(stored) >= _LONG and kind == b"msgpack" and takes_views(context.serde)
                data = memoryview(stored)[start:] if in_place else stored[start:]
                return _loads(context, kind, data, allowance), None
            last = last if last and last.levels else None
            is_last = last is not None and last.value == stored
            whole = last if is_last and last else chunked.join(stored, chunks, allowance, last, context.digest)
            loads_rest = getattr(type(context.serde), "loads_rest", None)
            if loads_rest is None or not remembers:
                return context.serde.loads_typed(chunked.typed_bytes(whole)), whole
            front = last.fingerprint.read_within(chunked.shared(whole, last)) if last and last.fingerprint else NONE
            decoded = loads_rest(context.serde, *chunked.typed_bytes(whole, front.bytes), front)
            value, known = decoded or loads_rest(context.serde, *chunked.typed_bytes(whole))
            return value, whole if known is None or known is whole.fingerprint else whole._replace(fingerprint=known)
        except RedisSaverError:
            raise
        except Exception as error:
            raise decoding("the value of channel {!r} of {}", channel, allowance.owner).of(error) from error

    def write(self, write: chunked.Write) -> PendingWrite:
        """Decode a pending write, which may be stored in chunks."""
        write = self.whole(write) if write.type == chunked.IN_CHUNKS else write
        try:
            return write.task_id, write.channel, _loads(self.context, write.type, write.data, self.allowance)
        except RedisSaverError:
            raise
        except Exception as error:
            named = write.channel, write.task_id, self.allowance.owner
            raise decoding(_A_WRITE, *named).of(error) from error

    def whole(self, write: chunked.Write) -> chunked.Write:
        """Join a pending write that is stored in chunks."""
        with decoding(_A_WRITE, write.channel, write.task_id, self.allowance.owner):
            joined = chunked.join(write.data, self.chunks, self.allowance, digest=self.context.digest)
            kind, data = chunked.typed_bytes(joined)
            return write._replace(type=names.encode(kind), data=data)


def _loads(context: Context, kind: bytes, data: Any, allowance: limits.Allowance) -> Any:
    """Decode a value from its type and bytes. They may be compressed, independent of the saver's setting."""
    if kind.startswith(compression.MARK):
        kind, data = compression.original(kind, data, allowance)
    return context.serde.loads_typed((names.decode(kind), data))


def opened(context: Context, thread: str, stored: Sequence[Any], chunks: Chunks) -> Sequence[Any]:
    """Open the header and the values of a checkpoint from a script's reply. Its pending writes stay sealed.

    Args:
        context: The saver.
        thread: The thread.
        stored: Id, namespace, header, values, and more.
        chunks: The chunks of its names, and possibly others.
    """
    with decoding("a checkpoint of thread {!r}", thread):
        if (cipher := context.opener()) is None:
            return stored
        raw_id, raw_ns, header, values, *others = stored
        address = Address(thread, names.name_of(raw_ns), names.name_of(raw_id))
        with decoding("the header of {}", address):
            of = headers.open_known(context, cipher, b"c" + raw_ns + raw_id, header)
            fields = headers.fields(of.header, chunks, b"b" + raw_ns)
        plain = list[bytes | None]()
        for field, flag, value in zip(fields, of.flags, values, strict=True):
            try:
                if flag == ord(headers.PRESENT) and not value:
                    raise ValueError("it was removed")
                plain.append(cipher.open_value(field, value) if value else value)
            except Exception as error:  # noqa: PERF203 - a `with` for each value would cost more
                channel = names.components(field[1:])[1]
                raise decoding("the value of channel {!r} of {}", channel, address).of(error) from error
    return [raw_id, raw_ns, of.header, plain, *others]


def held(value: Any) -> Any:
    """Return the contents of a `DeltaChannel`'s snapshot, or any other value unchanged."""
    kind: Any = fallback.delta_snapshot
    return value.value if kind is not None and isinstance(value, kind) else value


def as_chunks(context: Context, flat: Sequence[bytes], thread: str) -> dict[bytes, bytes]:
    """Return chunks by field, decompressed, from a script's flat reply (field, bytes, field, bytes, ...).

    Each chunk is compared with the digest in its field, which takes about 2 microseconds. A sealed chunk is opened.

    Raises:
        DecodeError: A chunk was changed or cannot be decompressed.
    """
    allowance: limits.Allowance | None = None
    try:
        chunks = dict(zip(flat[::2], flat[1::2], strict=True))
        cipher = None if context.data_keys is None or not chunks else context.opener()
        for field, sealed in chunks.items():
            is_sealed, stored = cipher is not None and field[:1] != chunked.LIST, sealed
            if cipher is not None and is_sealed and field != chunked.PLAIN + chunked.digest(sealed):  # names stay open
                stored = chunks[field] = cipher.open_chunk(field, sealed)
            if field[:1] == chunked.ZSTD:
                allowance = allowance or limits.Allowance(context.limits, f"thread {shown(thread)}")
                chunks[field] = compression.decompress(stored, allowance)
            if not is_sealed and field[1:] != context.digest(chunks[field]):
                why = (
                    ""
                    if cipher
                    else ", or the thread is encrypted, and this saver has no encryption= (commands: --keys-file)"
                )
                raise ValueError(f"its bytes do not match the digest in its name: they were changed{why}")
    except RedisSaverError:
        raise
    except Exception as error:
        raise decoding("a chunk of a value of thread {!r}", thread).of(error) from error
    return chunks


# -- pending writes


def encode_writes(
    context: Context, writes: Sequence[tuple[str, Any]], task_path: str, chunks: dict[bytes, bytes] | None = None
) -> tuple[list[bytes], dict[int, bytes]]:
    """Return the records of a task's regular writes, and its special writes (`WRITES_IDX_MAP`) by index.

    Args:
        context: The saver.
        writes: The writes.
        task_path: The task's path.
        chunks: Receives the chunks of long regular writes by field. If None, these are stored whole.

    Raises:
        EncodeError: The serializer cannot encode a value.
        LimitExceeded: There are too many writes, or one is too long.
    """
    path = names.encode(task_path)
    if len(writes) > limits.FIXED["writes"]:
        limits.check(context.limits, "writes", len(writes), "put_writes got {} writes")
    if len(path) > context.limits.name_bytes:
        limits.check_names(context.limits, [path], "a task path")
    regular, special = [], {}
    for position, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, position)
        kind, data = _encode_write(context, channel, value, chunks if index >= 0 else None)
        channel_name = names.encode(channel)
        if len(channel_name) > context.limits.name_bytes:
            limits.check_names(context.limits, [channel_name], "a channel")
        record = pack([b"%d" % index, path, channel_name, kind, data])
        if index >= 0:
            regular.append(record)
        else:
            special[index] = record
    return regular, special


def encode_write(context: Context, write: PendingWrite) -> chunked.Write:
    """Encode a pending write, without its index. `Decoder` decodes it."""
    task_id, channel, value = write
    return chunked.Write("", task_id, 0, channel, *_encode_write(context, channel, value))


def _encode_write(
    context: Context, channel: str, value: Any, chunks: dict[bytes, bytes] | None = None
) -> tuple[bytes, bytes]:
    """Return the type and bytes of a pending write. Its chunks are added to `chunks`."""
    try:
        encoded = EncodedValue(*_dumped(context, value))
        is_long = _size(context, encoded, _WRITE, channel) >= OPENED
        if is_long and chunks is not None and (stored := _cut(context, encoded, _WRITE, channel)) is not None:
            chunks |= stored.chunks
            return chunked.IN_CHUNKS, stored.value
    except RedisSaverError:
        raise
    except Exception as error:
        raise encoding(_WRITE, channel).of(error) from error
    return _whole(context, encoded)


def decode_writes(
    context: Context, stored: Sequence[bytes | None], address: Address, *, is_whole: bool = True
) -> list[chunked.Write]:
    """Return a checkpoint's writes in a flat list (task and kind, record, ...), in `writes_sort_key` order.

    Args:
        context: The saver.
        stored: The list.
        address: The checkpoint.
        is_whole: False if the list may lack records of a task. Then its special writes are not compared.
    """
    writes = list[chunked.Write]()
    if not stored:
        return writes
    try:
        cipher = None if context.data_keys is None else context.opener()
        calls = defaultdict[str, dict[int, SpecialCall]](dict)
        for suffix, record in zip(stored[::2], stored[1::2], strict=True):
            if suffix is None or record is None:
                raise ValueError("the index names a record of pending writes that the data lacks")
            end = suffix.index(b"\0") + 1
            task_id, frames = names.name_of(suffix[:end]), take(record, 0)[0]
            if cipher is not None:
                task = names.task(address.checkpoint_ns, address.checkpoint_id or "", task_id)
                frames, call = cipher.open_writes(task, suffix[end:], frames)
                if call is not None:
                    calls[task_id][int(suffix[end:])] = call
            for begin in range(0, len(frames), 5):
                index, path, channel, kind, data = frames[begin : begin + 5]
                writes.append(chunked.Write(names.decode(path), task_id, int(index), names.decode(channel), kind, data))
        for task_id, of_task in calls.items() if is_whole else ():
            check_special(task_id, of_task)
    except Exception as error:
        raise decoding("the writes of {}", address).of(error) from error
    return sorted(writes, key=lambda write: writes_sort_key(write.task_path, write.task_id, write.idx))


def roots_in(record: bytes) -> list[bytes]:
    """Return the roots of the writes in a record that are stored in chunks.

    Raises:
        ValueError: The record is damaged.
    """
    if chunked.IN_CHUNKS not in record:
        return []
    frames = unpack(record)
    return [data for kind, data in zip(frames[3::5], frames[4::5], strict=True) if kind == chunked.IN_CHUNKS]


def count_writes(record: bytes, thread: str) -> int:
    """Return the number of writes in a record."""
    with decoding("pending writes of thread {!r}", thread):
        return len(unpack(record)) // 5


# -- checkpoints


def decode_tuple(
    context: Context,
    thread_id: str,
    stored: Sequence[Any],
    chunks: Chunks,
    had: Mapping[chunk_cache.ChannelKey, chunk_cache.Version] = NOTHING,
    used: dict[chunk_cache.ChannelKey, chunk_cache.Version] | None = None,
) -> CheckpointTuple:
    """Decode a checkpoint from a script's reply.

    Args:
        context: The saver.
        thread_id: The thread.
        stored: Id, namespace, header, values, writes.
        chunks: The chunks of its names, values and writes.
        had: Versions that this process knows.
        used: Receives the names and the values that are in chunks, if the caller remembers them.
    """
    try:
        raw_id, raw_ns, header, values, writes = stored[:5]
        checkpoint_id, ns = names.name_of(raw_id), names.name_of(raw_ns)
        address = Address(thread_id, ns, checkpoint_id)
        decoder = Decoder(context, chunks, limits.Allowance(context.limits, address))
        parent, checkpoint, metadata, names_chunk = headers.decode(context, header, checkpoint_id, chunks, address)
        checkpoint["channel_values"] = channel_values = {}
        for (channel, version), value in zip(checkpoint["channel_versions"].items(), values, strict=True):
            if not value:
                continue
            seen = had.get((ns, channel))
            last = seen.stored if seen else None
            channel_values[channel], in_chunks = decoder.value(value, channel, last, remembers=used is not None)
            if in_chunks and used is not None:
                field = names.blob(ns, names.entry(channel, version))
                unchanged = seen and seen.field == field and seen.stored is in_chunks
                used[ns, channel] = seen if seen and unchanged else chunk_cache.Version(field, in_chunks)
        if used is not None:
            last_names = had.get((ns, None))
            if last_names is None or last_names.field != names_chunk:
                last_names = chunk_cache.Version.of_names(names_chunk, chunks[names_chunk])
            used[ns, None] = last_names
        pending = list[PendingWrite]()
        for write in decode_writes(context, writes, address):
            pending.append(decoder.write(write))
        return CheckpointTuple(
            config=to_config(thread_id, ns, checkpoint_id),
            checkpoint=checkpoint,
            metadata=metadata,
            parent_config=to_config(thread_id, ns, parent) if parent else None,
            pending_writes=pending,
        )
    except RedisSaverError:
        raise
    except Exception as error:
        raise decoding("a checkpoint of thread {!r}", thread_id).of(error) from error
