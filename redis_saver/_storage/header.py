"""The header of a checkpoint: what it is made of, without its values.

Frames: parent id, time, run; the links (names, flags, slots, tokens, retained), which lie in the open so that scripts can follow
them; seen; then type and bytes of the rest of the checkpoint, and of the metadata, as the serializer gave them.

Channels and nodes are named again and again, and so are versions. So the names of a checkpoint are a chunk of their own,
which its successors share; each version is in the header once, as a token; and `channel_versions` and `versions_seen` are
positions in these, of two bytes (or one, where that is enough).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._storage import encryption
from redis_saver._storage.context import Context
from redis_saver._storage.framing import pack, take, unpack
from redis_saver._storage.version_table import VersionTable, names_in, versions_seen
from redis_saver.errors import decoding, encoding

RETAINED = b"-"
"""Beside `ABSENT` and `PRESENT` the flag of an entry whose value is held, but is not the checkpoint's (see `lua/checkpoint/put.lua`)."""

_RUN, _ABOUT, FRAMES = 2, 11, 13
_OPEN_KEYS = frozenset({"channel_values", "channel_versions", "versions_seen", "id", "ts"})
_NEVER_IN_BODY = frozenset({"channel_values", "channel_versions", "id"})


class Header(NamedTuple):
    """A header, decoded."""

    parent: str | None
    checkpoint: Checkpoint
    """Without values."""
    metadata: CheckpointMetadata
    names_chunk: bytes
    """The field of the chunk with its names."""


class Links(NamedTuple):
    """What a header says in the open."""

    parent: str
    time: str
    run: bytes
    """The run's member of the index, nothing where no run made the checkpoint."""
    names_chunk: bytes
    """The field of the chunk with its names."""
    entries: list[bytes]
    """One a channel version: a flag, the channel (a component), the version."""
    raw: bytes
    """The header's bytes up to here."""


def encode(
    context: Context,
    parent: str | None,
    run: bytes,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    table: VersionTable,
    retained: bytes,
) -> bytes:
    """A header as `lua/checkpoint/put.lua` takes it.

    Args:
        context: The saver.
        parent: The parent's id.
        run: The run's member of the index, or nothing.
        checkpoint: The checkpoint.
        metadata: Its metadata.
        table: Its version table.
        retained: Frames of what it holds beside its own.
    """
    time = checkpoint.get("ts")
    rest = {key: value for key, value in checkpoint.items() if key not in _OPEN_KEYS}
    if not table.seen and "versions_seen" in checkpoint:
        rest["versions_seen"] = checkpoint["versions_seen"]
    if "ts" in checkpoint and (not isinstance(time, str) or not time):
        rest["ts"] = time
    with encoding("checkpoint {!r}", checkpoint["id"]):
        kind, body = context.serde.dumps_typed(rest)
        encryption.check_written(context, kind)
    with encoding("the metadata of checkpoint {!r}", checkpoint["id"]):
        about_kind, about = context.serde.dumps_typed(metadata)
        encryption.check_written(context, about_kind)
    return pack(
        (
            names.component(parent) if parent else b"",
            b"" if time is None else names.encode(str(time)),
            run,
            table.names_chunk,
            table.present,
            table.slots,
            table.tokens,
            retained,
            table.seen,
            names.encode(kind),
            body,
            names.encode(about_kind),
            about,
        )
    )


def decode(context: Context, header: bytes, checkpoint_id: str, chunks: Mapping[bytes, bytes], place: object) -> Header:
    """The inverse of all of that; `place` says whose header it is, for the message."""
    with decoding("the header of {}", place):
        parent, time, _, names_chunk, flags, slots, tokens, _, seen, kind, body, about_kind, about = unpack(header)
        encryption.check_read(context, kind)
        encryption.check_read(context, about_kind)
        rest = _mapping(context.serde.loads_typed((names.decode(kind), body)))
        if not _NEVER_IN_BODY.isdisjoint(rest):
            raise ValueError("the rest of the checkpoint holds keys that belong to its header")
        metadata = _mapping(context.serde.loads_typed((names.decode(about_kind), about)))
        listed, versions = names_in(chunks[names_chunk]), [names.version_from(token) for token in unpack(tokens)]
        numbers = struct.unpack(f">{len(flags)}H", slots)
        checkpoint: dict[str, Any] = {"v": rest.pop("v"), "id": checkpoint_id} if "v" in rest else {"id": checkpoint_id}
        if time and "ts" not in rest:
            checkpoint["ts"] = names.decode(time)
        checkpoint["channel_versions"] = {listed[at]: versions[slot] for at, slot in enumerate(numbers)}
        if seen:
            checkpoint["versions_seen"] = versions_seen(seen, listed, versions)
        checkpoint.update(rest)
        of = names.name_of(parent) if parent else None
        return Header(of, cast("Checkpoint", checkpoint), cast("CheckpointMetadata", metadata), names_chunk)


def _mapping(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"it decodes to a {type(found).__name__}, and a dict was stored")
    return found


def names_chunk_of(header: bytes) -> bytes:
    """The field of the chunk with a header's names."""
    return take(header, 0, 4)[0][3]


def flags_of(header: bytes) -> bytes:
    """The flags of a header's entries: `PRESENT` or `ABSENT`."""
    return take(header, 0, 5)[0][4]


def decode_time(links: bytes, thread: str) -> str:
    """The time (`ts`) in a header's links."""
    with decoding("the header of a checkpoint of thread {!r}", thread):
        return names.decode(take(links, 0, 2)[0][1])


def decode_links(links: bytes, chunks: Mapping[bytes, bytes], thread: str, allowance: Allowance) -> Links:
    """The links of a header, or of as much of it as `list_references` answers; the chunk with its names is among the chunks.

    Raises:
        LimitExceeded: The entries, each with a version that is there once, become more than is allowed.
    """
    with decoding("the header of a checkpoint of thread {!r}", thread):
        (parent, time, run, names_chunk, flags, slots, tokens, retained), end = take(links, 0, 8)
        channels, versions = chunks[names_chunk].split(b"\0"), unpack(tokens)
        numbers = struct.unpack(f">{len(flags)}H", slots)
        allowance.unfold("value_bytes", len(chunks[names_chunk]) + sum([len(versions[slot]) for slot in numbers]))
        entries = [
            flags[place : place + 1] + channels[place] + b"\0" + versions[slot] for place, slot in enumerate(numbers)
        ]
        if retained:
            entries += [RETAINED + entry for entry in unpack(retained)]
        of = names.name_of(parent) if parent else ""
        return Links(of, names.decode(time), run, names_chunk, entries, links[:end])


def own_entries(entries: Iterable[bytes]) -> list[bytes]:
    """The entries a checkpoint has, without those it only holds."""
    return [entry for entry in entries if entry[:1] != RETAINED]


def metadata(context: Context, header: bytes, where: object) -> dict[str, Any]:
    """The metadata of a header alone; `where` says whose, for the message."""
    with decoding("the metadata of {}", where):
        *_, kind, data = unpack(header)
        encryption.check_read(context, kind)
        return _mapping(context.serde.loads_typed((names.decode(kind), data)))


def copied(context: Context, header: bytes, source: str, target: str) -> bytes:
    """A header for a copy of its thread, made by no run; where the metadata name the source, they name the target instead."""
    with decoding("a header of thread {!r}", source):
        chunks = unpack(header)
        if len(chunks) != FRAMES:
            raise ValueError(f"a header has {FRAMES} frames, and this one {len(chunks)}")
    chunks[_RUN] = b""
    about = metadata(context, header, f"a checkpoint of thread {shown(source)}")
    if about.get("thread_id") == source:
        with encoding("the metadata of a checkpoint"):
            kind, chunks[_ABOUT + 1] = context.serde.dumps_typed({**about, "thread_id": target})
            encryption.check_written(context, kind)
        chunks[_ABOUT] = names.encode(kind)
    return pack(chunks)
