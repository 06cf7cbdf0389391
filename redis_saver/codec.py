"""Checkpoints, values and writes as the bytes that are stored, and back.

A header is packed frames: parent id, time, run id, entries; then type and bytes of the checkpoint without its values and
channel versions, then type and bytes of the metadata. The entries are the channel versions: a flag, the channel, the
version. They lie in the open so that a script can follow them; the rest is what the serializer gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver import names
from redis_saver.config import Address, to_config
from redis_saver.errors import decoding, encoding
from redis_saver.frames import pack, unpack

ABSENT, HELD = b"0", b"-"
"""Flags of entries in a header: no value was stored; a value that is held but not the checkpoint's (see `lua/put.lua`)."""


class Links(NamedTuple):
    """What a header says in the open."""

    parent: str
    time: str
    run: bytes
    """The run's member of the index, nothing where no run made the checkpoint."""
    entries: list[bytes]


class Write(NamedTuple):
    """A pending write as it is stored."""

    task_path: str
    task_id: str
    idx: int
    channel: str
    type: str
    data: bytes


def encode_value(serde: SerializerProtocol, value: Any, what: str) -> bytes:
    """A channel's value as it is stored: the type, packed, then the serializer's bytes as they are."""
    with encoding(what):
        kind, data = serde.dumps_typed(value)
    return pack([names.encode(kind)]) + data


def decode_value(serde: SerializerProtocol, stored: bytes, what: str) -> Any:
    """The inverse of `encode_value`."""
    with decoding(what):
        start = stored.index(b":") + 1
        end = start + int(stored[: start - 1])
        return serde.loads_typed((names.decode(stored[start:end]), stored[end:]))


def encode_head(parent: str | None, time: str, run: bytes) -> bytes:
    """The frames in front of the entries."""
    return pack([names.component(parent) if parent else b"", names.encode(time), run])


def encode_tail(serde: SerializerProtocol, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> bytes:
    """The frames behind the entries."""
    rest = {key: value for key, value in checkpoint.items() if key not in ("channel_values", "channel_versions")}
    with encoding(f"checkpoint {checkpoint['id']!r}"):
        body = serde.dumps_typed(rest)
    with encoding(f"the metadata of checkpoint {checkpoint['id']!r}"):
        about = serde.dumps_typed(metadata)
    return pack([names.encode(body[0]), body[1], names.encode(about[0]), about[1]])


def decode_links(head: bytes, thread: str) -> Links:
    """The links of a header, or of as much of it as `survey` answers."""
    with decoding(f"the header of a checkpoint of thread {thread!r}"):
        parent, time, run, entries = unpack(head)[:4]
        return Links(names.components(parent)[0] if parent else "", names.decode(time), run, unpack(entries))


def header_metadata(serde: SerializerProtocol, header: bytes, where: str) -> dict[str, Any]:
    """The metadata of a header alone; `where` says whose, for the message."""
    with decoding(f"the metadata of {where}"):
        *_, kind, data = unpack(header)
        return cast("dict[str, Any]", serde.loads_typed((names.decode(kind), data)))


def copied_header(serde: SerializerProtocol, header: bytes, source: str, target: str) -> bytes:
    """A header for a copy of its thread, made by no run; where the metadata name the source, they name the target instead."""
    with decoding(f"a header of thread {source!r}"):
        parts = unpack(header)
    parts[2] = b""
    metadata = header_metadata(serde, header, f"a checkpoint of thread {source!r}")
    if metadata.get("thread_id") == source:
        with encoding("the metadata of a checkpoint"):
            kind, parts[7] = serde.dumps_typed({**metadata, "thread_id": target})
        parts[6] = names.encode(kind)
    return pack(parts)


def version_entries(
    checkpoint: Checkpoint, new_versions: ChannelVersions, again: Iterable[str] = ()
) -> Iterator[tuple[bytes, str | None]]:
    """The entries of a checkpoint that is put, flagged as `lua/put.lua` takes them, each with the channel whose value follows.

    Args:
        checkpoint: The checkpoint, with its values.
        new_versions: The channels to store.
        again: Unchanged channels to store too, as the server does not have them.
    """
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    for channel, version in versions.items():
        new = channel in new_versions and new_versions[channel] == version
        has_value = channel in values
        flag = b"v" if has_value and (new or channel in again) else b"e" if new else b"u" if has_value else b"x"
        yield flag + _entry(channel, version), channel if flag == b"v" else None
    for channel, version in new_versions.items():
        if channel in values and versions.get(channel) != version:
            yield b"s" + _entry(channel, version), channel


def _entry(channel: str, version: object) -> bytes:
    return names.component(channel) + names.version_text(channel, version)


def own_entries(entries: Sequence[bytes]) -> list[bytes]:
    """The entries a checkpoint has, without those it only holds."""
    return [entry for entry in entries if entry[:1] != HELD]


def channel_of(entry: bytes) -> tuple[str, str | int | float]:
    """The channel and the version of an entry."""
    end = entry.index(b"\0") + 1
    return names.components(entry[1:end])[0], names.version_from(entry[end:])


def decode_writes(stored: Sequence[bytes | None], what: str) -> list[Write]:
    """The writes in a flat list of (task and kind, record), in `writes_sort_key` order."""
    writes = []
    with decoding(what):
        for position in range(0, len(stored), 2):
            suffix, record = stored[position], stored[position + 1]
            if suffix is None or record is None:
                raise ValueError("a record of pending writes is gone")
            task_id = names.components(suffix[: suffix.index(b"\0") + 1])[0]
            parts = unpack(record)
            for first in range(0, len(parts), 5):
                index, path, channel, kind, data = parts[first : first + 5]
                writes.append(
                    Write(names.decode(path), task_id, int(index), names.decode(channel), names.decode(kind), data)
                )
    return sorted(writes, key=lambda write: writes_sort_key(write.task_path, write.task_id, write.idx))


def count_writes(record: bytes, thread: str) -> int:
    """How many writes are in a record."""
    with decoding(f"pending writes of thread {thread!r}"):
        return len(unpack(record)) // 5


def load_write(serde: SerializerProtocol, write: Write, what: str) -> PendingWrite:
    """A pending write as LangGraph takes it."""
    with decoding(f"a write to channel {write.channel!r} of task {write.task_id!r} of {what}"):
        return write.task_id, write.channel, serde.loads_typed((write.type, write.data))


def encode_writes(
    serde: SerializerProtocol, writes: Sequence[tuple[str, Any]], task_path: str
) -> tuple[bytes, dict[int, bytes]]:
    """The record of a task's regular writes, and one record for each special write (`WRITES_IDX_MAP`) by its index."""
    path = names.encode(task_path)
    regular, special = [], {}
    for position, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, position)
        with encoding(f"a write to channel {channel!r}"):
            kind, data = serde.dumps_typed(value)
        record = pack([b"%d" % index, path, names.encode(channel), names.encode(kind), data])
        if index >= 0:
            regular.append(record)
        else:
            special[index] = record
    return b"".join(regular), special


def decode_tuple(serde: SerializerProtocol, thread_id: str, stored: Sequence[Any]) -> CheckpointTuple:
    """A checkpoint as `lua/get.lua` answers it, as LangGraph takes it."""
    raw_id, raw_ns, header, values, writes = stored
    where = Address(thread_id, names.components(raw_ns)[0], names.components(raw_id)[0])
    place = said(where)
    with decoding(f"the header of {place}"):
        raw_parent, _, _, packed, body_kind, body, about_kind, about = unpack(header)
        entries = own_entries(unpack(packed))
        versions = dict(channel_of(entry) for entry in entries)
        parent = names.components(raw_parent)[0] if raw_parent else ""
        checkpoint = serde.loads_typed((names.decode(body_kind), body))
        metadata = serde.loads_typed((names.decode(about_kind), about))
    checkpoint["channel_versions"] = versions
    checkpoint["channel_values"] = {
        channel: decode_value(serde, value, f"the value of channel {channel!r} of {place}")
        for channel, value in zip(versions, values, strict=True)
        if value
    }
    return CheckpointTuple(
        config=to_config(*cast("tuple[str, str, str]", where)),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=to_config(thread_id, where.checkpoint_ns, parent) if parent else None,
        pending_writes=[load_write(serde, write, place) for write in decode_writes(writes, f"the writes of {place}")],
    )


def said(where: Address) -> str:
    """An address, for a message."""
    return f"checkpoint {where.checkpoint_id!r} of namespace {where.checkpoint_ns!r} of thread {where.thread_id!r}"
