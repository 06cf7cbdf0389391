"""The header of a checkpoint: everything except its values.

A header is a list of frames:

- the parent's id, the time, the run;
- the links: names, flags, slots, tokens, retained entries. They are not encoded, so scripts can follow them;
- `versions_seen`;
- the type and bytes of the rest of the checkpoint, then of the metadata, as the serializer gave them.

The names of channels and nodes are a chunk, which later checkpoints share. Each version is in the header once, as a
token. `channel_versions` and `versions_seen` are positions in these lists, of one or two bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._common import names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._storage.chunks import PLAIN, digest
from redis_saver._storage.context import Context
from redis_saver._storage.framing import pack, take, unpack
from redis_saver._storage.sealing import ENCRYPTED, SEALED, SEALED_2, Cipher, OpenedHeader, split
from redis_saver.errors import IsEncrypted, RedisSaverError, decoding, encoding

PRESENT, ABSENT = b"1", b"0"
"""Flags of a header's channels. The first means that the channel has a value."""
NEW, UNCHANGED, EMPTIED, EMPTY = b"v", b"u", b"e", b"x"
"""Flags of the channels in a `put`: its value is sent; is stored already; was removed; never existed."""
_MAX_NAMES = 65535
_SEEN, _SEEN_SHORT = b"=", b"~"
RETAINED = b"-"
"""Flag of an entry whose value the checkpoint retains, but does not use (see `lua/checkpoint/put.lua`)."""

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
    """The links of a header, which scripts can read."""

    parent: str
    time: str
    run: bytes
    """The run's member of the index. Empty if no run made the checkpoint."""
    names_chunk: bytes
    """The field of the chunk with its names."""
    entries: list[bytes]
    """For each channel version: a flag, the channel (a component), the version."""
    raw: bytes
    """The header's bytes up to the end of the links."""


def encode(
    context: Context,
    parent: str | None,
    run: bytes,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    table: VersionTable,
    retained: bytes,
) -> bytes:
    """Encode a header as `lua/checkpoint/put.lua` takes it.

    Args:
        context: The saver.
        parent: The parent's id.
        run: The run's member of the index, or empty.
        checkpoint: The checkpoint.
        metadata: Its metadata.
        table: Its version table.
        retained: Frames of the retained entries.
    """
    time = checkpoint.get("ts")
    rest: dict[str, Any] = dict(checkpoint)
    for key in _OPEN_KEYS:
        rest.pop(key, None)
    if not table.seen and "versions_seen" in checkpoint:
        rest["versions_seen"] = checkpoint["versions_seen"]
    if "ts" in checkpoint and (not isinstance(time, str) or not time):
        rest["ts"] = time
    what = "checkpoint {!r}"
    try:
        kind, body = context.serde.dumps_typed(rest)
        what = "the metadata of checkpoint {!r}"
        about_kind, about = context.serde.dumps_typed(metadata)
    except RedisSaverError:
        raise
    except Exception as error:
        raise encoding(what, checkpoint["id"]).of(error) from error
    return pack((
        names.component(parent) if parent else b"", b"" if time is None else names.encode(str(time)), run,
        table.names_chunk, table.present, table.slots, table.tokens, retained, table.seen,
        names.encode(kind), body, names.encode(about_kind), about,
    ))  # fmt: skip


def decode(context: Context, header: bytes, checkpoint_id: str, chunks: Mapping[bytes, bytes], owner: object) -> Header:
    """Decode a header. `owner` is its checkpoint, for error messages."""
    try:
        frames = take(header, 0)[0]
        parent, time, _, names_chunk, flags, slots, tokens, _, seen, kind, body, about_kind, about = frames
        if kind.endswith((SEALED, SEALED_2)):
            raise IsEncrypted(ENCRYPTED)
        rest = _loaded(context, kind, body)
        if not _NEVER_IN_BODY.isdisjoint(rest):
            raise ValueError("the rest of the checkpoint holds keys that belong to its header")
        metadata = _loaded(context, about_kind, about)
        listed = _NAMES.get(chunks[names_chunk]) or names_in(chunks[names_chunk])
        versions = list(map(names.version_from, take(tokens, 0)[0]))
        numbers = struct.unpack(f">{len(flags)}H", slots)
        checkpoint: dict[str, Any] = {"v": rest.pop("v"), "id": checkpoint_id} if "v" in rest else {"id": checkpoint_id}
        if time and "ts" not in rest:
            checkpoint["ts"] = names.decode(time)
        if len(numbers) > len(listed):
            raise ValueError(f"it has {len(numbers)} versions, and its chunk {len(listed)} names")
        checkpoint["channel_versions"] = dict(zip(listed, map(versions.__getitem__, numbers)))  # noqa: B905
        if seen:
            checkpoint["versions_seen"] = versions_seen(seen, listed, versions)
        checkpoint.update(rest)
        parent_id = names.name_of(parent) if parent else None
        return Header(parent_id, cast("Checkpoint", checkpoint), cast("CheckpointMetadata", metadata), names_chunk)
    except RedisSaverError:
        raise
    except Exception as error:
        raise decoding("the header of {}", owner).of(error) from error


def _loaded(context: Context, kind: bytes, data: bytes) -> dict[str, Any]:
    value = context.serde.loads_typed((names.decode(kind), data))
    if not isinstance(value, dict):
        raise TypeError(f"it decodes to a {type(value).__name__} instead of a dict")
    return value


def names_chunk_of(header: bytes) -> bytes:
    """Return the field of the chunk with a header's names."""
    return take(header, 0, 4)[0][3]


def flags_of(header: bytes) -> bytes:
    """Return the flags of a header's channels: `PRESENT` or `ABSENT`."""
    return take(header, 0, 5)[0][4]


def decode_time(links: bytes, thread: str) -> str:
    """Return the time (`ts`) of a header."""
    with decoding("the header of a checkpoint of thread {!r}", thread):
        return names.decode(take(links, 0, 2)[0][1])


def decode_links(links: bytes, chunks: Mapping[bytes, bytes], thread: str, allowance: Allowance) -> Links:
    """Decode the links of a header, or of the part that `list_references` returns.

    `chunks` has the chunk with the header's names.

    Raises:
        LimitExceeded: The entries are larger than allowed. A version is stored once and is part of many entries.
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
        parent_id = names.name_of(parent) if parent else ""
        return Links(parent_id, names.decode(time), run, names_chunk, entries, links[:end])


def own_entries(entries: Iterable[bytes]) -> list[bytes]:
    """Return the entries that a checkpoint uses, without those that it only retains."""
    return [entry for entry in entries if entry[:1] != RETAINED]


def fields(header: bytes, chunks: Mapping[bytes, bytes], prefix: bytes) -> list[bytes]:
    """Return the fields of the values of a header's channels. `chunks` has its names chunk, `prefix` its namespace."""
    names_chunk, flags, slots, tokens = take(header, 0, 7)[0][3:]
    channels, versions = chunks[names_chunk].split(b"\0"), unpack(tokens)
    numbers = struct.unpack(f">{len(flags)}H", slots)
    return [b"%b%b\0%b" % (prefix, channels[place], versions[slot]) for place, slot in enumerate(numbers)]


def opened(context: Context, member: bytes, header: bytes) -> bytes:
    """Return a header as it was before it was sealed. `member` is its checkpoint's."""
    cipher = context.opener()
    return header if cipher is None else cipher.open_header(member, header).header


def open_known(context: Context, cipher: Cipher, member: bytes, header: bytes) -> OpenedHeader:
    """Open a header, and note the tasks with writes at its parent that it names."""
    of = cipher.open_header(member, header)
    if of.known_writes and context.data_keys is not None:
        ns, _ = names.components(member[1:])
        context.data_keys.note_writes(cipher, ns, names.name_of(of.parent), split(of.known_writes))
    return of


def metadata(context: Context, header: bytes, address: Address) -> dict[str, Any]:
    """Decode the metadata of a stored header alone."""
    with decoding("the metadata of {}", address):
        member = names.checkpoint(address.checkpoint_ns, address.checkpoint_id or "")
        *_, kind, data = unpack(opened(context, member, header))
        return _loaded(context, kind, data)


def copied(context: Context, header: bytes, source: Address, target: str) -> bytes:
    """Return the opened header for the copy of a thread.

    It has no run, and its metadata name the target as their thread.
    """
    with decoding("a header of {}", source):
        chunks = unpack(header)
        if len(chunks) != FRAMES:
            raise ValueError(f"it has {len(chunks)} frames instead of {FRAMES}")
        about = _loaded(context, *chunks[_ABOUT:])
    chunks[_RUN] = b""
    if about.get("thread_id") == source.thread_id:
        with encoding("the metadata of a checkpoint"):
            kind, chunks[_ABOUT + 1] = context.serde.dumps_typed({**about, "thread_id": target})
        chunks[_ABOUT] = names.encode(kind)
    return pack(chunks)


# -- version tables


class VersionTable(NamedTuple):
    """The channels of a checkpoint and their versions."""

    names_chunk: bytes
    """Field of the chunk with the names of channels, then of nodes."""
    names: bytes
    """The chunk."""
    fields: tuple[bytes, ...]
    """Fields of the channels' values. This, `present`, `flags` and `slots` have the order of `channel_versions`."""
    present: bytes
    """A flag for each channel: `PRESENT` or `ABSENT`."""
    flags: bytes
    """A flag for each channel, as `put.lua` takes it."""
    slots: bytes
    """The position of each channel's version among the tokens, in two bytes."""
    tokens: bytes
    """Frames of the versions, each once."""
    seen: bytes
    """`versions_seen` as positions in names and tokens. Empty if it has another form than LangGraph's."""
    written: int
    """Number of channels whose version is among the new versions of `put`."""


def version_table(checkpoint: Checkpoint, new_versions: ChannelVersions, prefix: bytes = b"") -> VersionTable:
    """Return the version table of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        new_versions: The versions of the channels that were written.
        prefix: Prefix of the fields of its namespace.

    Raises:
        TypeError: A version is not a str, int or float.
        ValueError: There are more than 65,535 names or versions.
    """
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    places = dict(zip(versions, range(len(versions)), strict=True))
    tokens: dict[bytes, int] = {}
    texts, slots, present, flags, written = list[bytes](), list[int](), list[bytes](), list[bytes](), 0
    for channel, version in versions.items():
        token = names.version_text(channel, version)
        texts.append(token)
        slots.append(tokens.setdefault(token, len(tokens)))
        is_there, is_new = channel in values, channel in new_versions and new_versions[channel] == version
        present.append(PRESENT if is_there else ABSENT)
        flags.append((NEW if is_new else UNCHANGED) if is_there else EMPTIED if is_new else EMPTY)
        written += is_new
    seen = _seen(checkpoint.get("versions_seen"), places, tokens)
    if len(places) > _MAX_NAMES or len(tokens) > _MAX_NAMES:
        raise ValueError(
            f"checkpoint {shown(checkpoint['id'])} has {len(places)} names of channels and nodes, with {len(tokens)} "
            f"versions. The limit is {_MAX_NAMES} of each. Nothing was written. Store fewer channels"
        )
    packed = b""
    if seen is not None:
        short = max(len(places), len(tokens)) < 256
        packed = _SEEN_SHORT + bytes(seen) if short else _SEEN + struct.pack(f">{len(seen)}H", *seen)
    listed = tuple(places)
    chunk = _CHUNKS.get(listed) or _names_chunk(listed)
    fields = [prefix + component + text for component, text in zip(chunk.components, texts)]  # noqa: B905
    packed_slots = struct.pack(f">{len(slots)}H", *slots)
    return VersionTable(
        chunk.field, chunk.content, tuple(fields),
        b"".join(present), b"".join(flags), packed_slots, pack(tokens), packed, written,
    )  # fmt: skip


def _seen(seen: Any, places: dict[str, int], tokens: dict[bytes, int]) -> list[int] | None:
    """Return `versions_seen` as positions. A node is its name and the number of pairs; a pair is channel and version.

    None if its form is not LangGraph's. Then it stays in the rest of the checkpoint.
    """
    if type(seen) is not dict:
        return None
    numbers: list[int] = []
    for node, channels in seen.items():
        if type(node) is not str or type(channels) is not dict:
            return None
        numbers += (places.setdefault(node, len(places)), len(channels))
        for channel, version in channels.items():
            if type(channel) is not str or type(version) not in (str, int, float):
                return None
            numbers.append(places.setdefault(channel, len(places)))
            numbers.append(tokens.setdefault(names.version_text(channel, version), len(tokens)))
    return numbers


class _NamesChunk(NamedTuple):
    field: bytes
    content: bytes
    components: tuple[bytes, ...]


_CHUNKS: BoundedCache[tuple[str, ...], _NamesChunk] = BoundedCache(512, 2**20)
"""Chunks by their names. Most checkpoints of a graph share them."""
_NAMES: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(512, 2**20)
"""Names by their chunk."""


def _names_chunk(listed: tuple[str, ...]) -> _NamesChunk:
    """Make the chunk with these names. It is never empty."""
    components = tuple(map(names.component, listed))
    content = b"".join(components) or b"\0"
    made = _NamesChunk(PLAIN + digest(content), content, components)
    _CHUNKS.store(listed, made, 3 * len(content))
    return made


def names_in(chunk: bytes) -> tuple[str, ...]:
    """Return the names in a chunk."""
    if (listed := _NAMES.get(chunk)) is None:
        listed = tuple(names.components(chunk))
        _NAMES.store(chunk, listed, 2 * len(chunk))
    return listed


def versions_seen(packed: bytes, listed: tuple[str, ...], versions: list[Any]) -> dict[str, dict[str, Any]]:
    """Decode `versions_seen` with the header's names and versions."""
    short = packed[:1] == _SEEN_SHORT
    numbers = packed[1:] if short else struct.unpack(f">{len(packed) // 2}H", packed[1:])
    seen, at = {}, 0
    while at < len(numbers):
        node, start = listed[numbers[at]], at + 2
        at = start + 2 * numbers[at + 1]
        channels = map(listed.__getitem__, numbers[start:at:2])
        seen[node] = dict(zip(channels, map(versions.__getitem__, numbers[start + 1 : at : 2]), strict=True))
    return seen
