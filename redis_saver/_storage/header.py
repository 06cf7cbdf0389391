"""The header of a checkpoint: what it is made of, without its values.

Frames: parent id, time, run; the links (names, flags, slots, tokens, retained), which lie in the open so that scripts
can follow them; seen; then type and bytes of the rest of the checkpoint, and of the metadata, as the serializer gave
them.

Channels and nodes are named again and again, and so are versions. So the names of a checkpoint are a chunk of their
own, which its successors share; each version is in the header once, as a token; and `channel_versions` and
`versions_seen` are positions in these, of two bytes (or one, where that is enough).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from redis_saver._common import names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._storage import encryption
from redis_saver._storage.chunks import PLAIN, digest
from redis_saver._storage.context import Context
from redis_saver._storage.framing import pack, take, unpack
from redis_saver.errors import RedisSaverError, decoding, encoding

PRESENT, ABSENT = b"1", b"0"
"""Flags of the channels of a header: with a value, without one."""
NEW, UNCHANGED, EMPTIED, EMPTY = b"v", b"u", b"e", b"x"
"""Flags of the channels of a `put`: the value is sent; it is stored already; there is none any more; there was none."""
_MAX_NAMES = 65535
_SEEN, _SEEN_SHORT = b"=", b"~"
RETAINED = b"-"
"""Beside `ABSENT` and `PRESENT` the flag of an entry whose value is held, but is not the checkpoint's (see
`lua/checkpoint/put.lua`)."""

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
    rest: dict[str, Any] = dict(checkpoint)
    for key in _OPEN_KEYS:
        rest.pop(key, None)
    if not table.seen and "versions_seen" in checkpoint:
        rest["versions_seen"] = checkpoint["versions_seen"]
    if "ts" in checkpoint and (not isinstance(time, str) or not time):
        rest["ts"] = time
    what = "checkpoint {!r}"
    try:
        kind, body = encryption.dumps(context, rest)
        what = "the metadata of checkpoint {!r}"
        about_kind, about = encryption.dumps(context, metadata)
    except RedisSaverError:
        raise
    except Exception as error:
        raise encoding(what, checkpoint["id"]).of(error) from error
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
    try:
        frames = take(header, 0)[0]
        parent, time, _, names_chunk, flags, slots, tokens, _, seen, kind, body, about_kind, about = frames
        rest = _mapping(encryption.loads(context, kind, body))
        if not _NEVER_IN_BODY.isdisjoint(rest):
            raise ValueError("the rest of the checkpoint holds keys that belong to its header")
        metadata = _mapping(encryption.loads(context, about_kind, about))
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
        of = names.name_of(parent) if parent else None
        return Header(of, cast("Checkpoint", checkpoint), cast("CheckpointMetadata", metadata), names_chunk)
    except RedisSaverError:
        raise
    except Exception as error:
        raise decoding("the header of {}", place).of(error) from error


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
    """Return the links of a header, or of as much of it as `list_references` answers.

    The chunk with its names is among the chunks.

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
        return _mapping(encryption.loads(context, kind, data))


def copied(context: Context, header: bytes, source: str, target: str) -> bytes:
    """Return a header for a copy of its thread, made by no run.

    If the metadata name the source, they name the target instead.
    """
    with decoding("a header of thread {!r}", source):
        chunks = unpack(header)
        if len(chunks) != FRAMES:
            raise ValueError(f"a header has {FRAMES} frames, and this one {len(chunks)}")
    chunks[_RUN] = b""
    about = metadata(context, header, f"a checkpoint of thread {shown(source)}")
    if about.get("thread_id") == source:
        with encoding("the metadata of a checkpoint"):
            kind, chunks[_ABOUT + 1] = encryption.dumps(context, {**about, "thread_id": target})
        chunks[_ABOUT] = names.encode(kind)
    return pack(chunks)


# -- version tables


class VersionTable(NamedTuple):
    """The channels of a checkpoint and their versions."""

    names_chunk: bytes
    """The field of the chunk with the names: of channels, then of nodes."""
    names: bytes
    """The chunk."""
    fields: tuple[bytes, ...]
    """The field of each channel's value, in the order of `channel_versions`, as the next ones."""
    present: bytes
    """Which channels have a value."""
    flags: bytes
    """The flags of `put`."""
    slots: bytes
    """The position of each version among the tokens, of two bytes."""
    tokens: bytes
    """Frames: the versions, each once."""
    seen: bytes
    """`versions_seen` as positions in names and tokens; nothing if it is of another form than LangGraph's."""
    written: int
    """Number of channels whose version is among the new versions of `put`."""


def version_table(checkpoint: Checkpoint, new_versions: ChannelVersions, prefix: bytes = b"") -> VersionTable:
    """The version table of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        new_versions: The versions of the channels that were written.
        prefix: What the fields of its namespace begin with.

    Raises:
        TypeError: A version is none.
        ValueError: There are more names or versions than a header can tell apart.
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
            f"checkpoint {shown(checkpoint['id'])} has {len(places)} names of channels and nodes with {len(tokens)} "
            "versions; "
            f"the limit is {_MAX_NAMES}. Nothing was written. Store fewer channels"
        )
    packed = b""
    if seen is not None:
        short = max(len(places), len(tokens)) < 256
        packed = _SEEN_SHORT + bytes(seen) if short else _SEEN + struct.pack(f">{len(seen)}H", *seen)
    listed = tuple(places)
    chunk = _CHUNKS.get(listed) or _names_chunk(listed)
    fields = [prefix + component + text for component, text in zip(chunk.components, texts)]  # noqa: B905
    return VersionTable(
        chunk.field,
        chunk.content,
        tuple(fields),
        b"".join(present),
        b"".join(flags),
        struct.pack(f">{len(slots)}H", *slots),
        pack(tokens),
        packed,
        written,
    )


def _seen(seen: Any, places: dict[str, int], tokens: dict[bytes, int]) -> list[int] | None:
    """`versions_seen` as positions: of each node its name and how many, then pairs of channel and version.

    None where it is of another form than LangGraph's; it is then left in the body.
    """
    if type(seen) is not dict:
        return None
    numbers: list[int] = []
    for node, of in seen.items():
        if type(node) is not str or type(of) is not dict:
            return None
        numbers += (places.setdefault(node, len(places)), len(of))
        for channel, version in of.items():
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
"""Chunks by their names, which most checkpoints of a graph share. They can be made again."""
_NAMES: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(512, 2**20)
"""The inverse."""


def _names_chunk(listed: tuple[str, ...]) -> _NamesChunk:
    """Make the chunk with some names. It is never empty."""
    components = tuple(map(names.component, listed))
    content = b"".join(components) or b"\0"
    made = _NamesChunk(PLAIN + digest(content), content, components)
    _CHUNKS.store(listed, made, 3 * len(content))
    return made


def names_in(chunk: bytes) -> tuple[str, ...]:
    """The names in a chunk."""
    if (listed := _NAMES.get(chunk)) is None:
        listed = tuple(names.components(chunk))
        _NAMES.store(chunk, listed, 2 * len(chunk))
    return listed


def versions_seen(packed: bytes, listed: tuple[str, ...], versions: list[Any]) -> dict[str, dict[str, Any]]:
    """The inverse: `versions_seen`, from names and versions."""
    short = packed[:1] == _SEEN_SHORT
    numbers = packed[1:] if short else struct.unpack(f">{len(packed) // 2}H", packed[1:])
    seen, at = {}, 0
    while at < len(numbers):
        node, start = listed[numbers[at]], at + 2
        at = start + 2 * numbers[at + 1]
        channels, of = (
            map(listed.__getitem__, numbers[start:at:2]),
            map(versions.__getitem__, numbers[start + 1 : at : 2]),
        )
        seen[node] = dict(zip(channels, of, strict=True))
    return seen
