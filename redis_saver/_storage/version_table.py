"""The version table of a checkpoint: where the values of its channels are stored, and which versions its nodes have seen.

A header holds it (`header.py`), and `put` tells the server of it.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from langgraph.checkpoint.base import ChannelVersions, Checkpoint

from redis_saver._common import names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._storage.chunks import PLAIN, digest
from redis_saver._storage.framing import pack

PRESENT, ABSENT = b"1", b"0"
"""Of the channels of a header: a value was stored; none was."""
NEW, UNCHANGED, EMPTIED, EMPTY = b"v", b"u", b"e", b"x"
"""What `put` says of a channel: its value is sent; it is stored already; it has no value any more; it had none."""
_MAX_NAMES = 65535
_SEEN, _SEEN_SHORT = b"=", b"~"


class VersionTable(NamedTuple):
    """The channels of a checkpoint and their versions."""

    names_chunk: bytes
    """The field of the chunk with the names: of channels, then of nodes."""
    names: bytes
    """The chunk."""
    fields: tuple[bytes, ...]
    """Where the value of each channel is stored, in the order of `channel_versions`; so are the next ones."""
    present: bytes
    """Which channels have a value."""
    flags: bytes
    """What `put` says of each."""
    slots: bytes
    """The position of each version among the tokens, of two bytes."""
    tokens: bytes
    """Frames: the versions, each once."""
    seen: bytes
    """`versions_seen` as positions in names and tokens; nothing if it is of another form than LangGraph's."""
    written: int
    """How many channels have the version that `put` was told as new."""


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
    fields, slots, present, flags, written = list[bytes](), list[int](), list[bytes](), list[bytes](), 0
    for channel, version in versions.items():
        token = names.version_text(channel, version)
        fields.append(prefix + names.component(channel) + token)
        slots.append(tokens.setdefault(token, len(tokens)))
        is_there, is_new = channel in values, channel in new_versions and new_versions[channel] == version
        present.append(PRESENT if is_there else ABSENT)
        flags.append((NEW if is_new else UNCHANGED) if is_there else EMPTIED if is_new else EMPTY)
        written += is_new
    seen = _seen(checkpoint.get("versions_seen"), places, tokens)
    if len(places) > _MAX_NAMES or len(tokens) > _MAX_NAMES:
        raise ValueError(
            f"checkpoint {shown(checkpoint['id'])} has {len(places)} names of channels and nodes with {len(tokens)} versions; "
            f"the limit is {_MAX_NAMES}. Nothing was written. Store fewer channels"
        )
    packed = b""
    if seen is not None:
        short = max(len(places), len(tokens)) < 256
        packed = _SEEN_SHORT + bytes(seen) if short else _SEEN + struct.pack(f">{len(seen)}H", *seen)
    return VersionTable(
        *_names_chunk(tuple(places)),
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


_CHUNKS: BoundedCache[tuple[str, ...], tuple[bytes, bytes]] = BoundedCache(512, 2**20)
"""Chunks by their names, which most checkpoints of a graph share. They can be made again."""
_NAMES: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(512, 2**20)
"""The inverse."""


def _names_chunk(listed: tuple[str, ...]) -> tuple[bytes, bytes]:
    """The field and the bytes of the chunk with some names. It is never empty."""
    if (made := _CHUNKS.get(listed)) is None:
        chunk = b"".join(map(names.component, listed)) or b"\0"
        made = PLAIN + digest(chunk), chunk
        _CHUNKS.store(listed, made, 2 * len(chunk))
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
        pairs = zip(numbers[start:at:2], numbers[start + 1 : at : 2], strict=True)
        seen[node] = {listed[channel]: versions[version] for channel, version in pairs}
    return seen
