"""The keys of a cache. `docs/storage-format.md` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from redis_saver._common.names import Keyspace, component, encode

Namespace = tuple[str, ...]
FullKey = tuple[Namespace, str]

SHARDS = 16
"""A part of the format: it says in which shard a namespace lies."""


class Place(NamedTuple):
    """Where an entry lies."""

    name: FullKey
    shard: int
    generation: bytes
    """The key of its namespace's generation."""
    entry: bytes
    """Its key."""
    member: bytes
    """What stands for it in the shard's index: its namespace and its key."""


class Range(NamedTuple):
    """A part of a shard's index, as ZRANGEBYLEX takes it: the entries of a namespace, or all; and the generation that they have in common."""

    shard: int
    generation: bytes
    low: bytes
    high: bytes


class CacheKeyspace:
    """The keys of the caches with one prefix. Different rooms have different keys: nodes and models do not meet."""

    def __init__(self, prefix: str, room: bytes = b"cache") -> None:
        """Check the prefix.

        Raises:
            TypeError, ValueError: As `Keyspace`.
        """
        self.prefix: str = Keyspace(prefix).prefix
        self._stems = [b"%b:%b:{%d}:" % (encode(prefix), room, shard) for shard in range(SHARDS)]
        self.generations: list[bytes] = [stem + b"generation" for stem in self._stems]
        """The key of each shard's generation."""
        self.indexes: list[bytes] = [stem + b"index" for stem in self._stems]
        """The key of each shard's index."""

    def place(self, name: FullKey) -> Place:
        """Where an entry lies."""
        namespace, key = name
        raw = _namespace(namespace)
        shard = crc32(raw) % SHARDS
        stem, member = self._stems[shard], raw + component(key)
        return Place(name, shard, stem + b"generation:" + raw, stem + b"entry:" + member, member)

    def lease(self, place: Place) -> bytes:
        """The key of an entry's lease."""
        return self._stems[place.shard] + b"lease:" + place.member

    def ranges(self, namespaces: Iterable[Namespace] | None) -> list[Range]:
        """What to clear: these namespaces, each once; None: all shards."""
        if namespaces is None:
            return [Range(shard, generation, b"-", b"+") for shard, generation in enumerate(self.generations)]
        found = []
        for namespace in dict.fromkeys(namespaces):
            raw = _namespace(namespace)
            shard = crc32(raw) % SHARDS
            # UTF-8 has no byte 0xff, so this is above all members that begin with `raw`, and below all others behind them.
            found.append(Range(shard, self._stems[shard] + b"generation:" + raw, b"[" + raw, b"(" + raw + b"\xff"))
        return found

    def listed(self, shard: int, member: bytes) -> tuple[bytes, bytes]:
        """The keys of a member of a shard's index: its namespace's generation, and the entry."""
        end = member.rfind(b"\0", 0, -1) + 1 or member.find(b":") + 1
        stem = self._stems[shard]
        return stem + b"generation:" + member[:end], stem + b"entry:" + member


def _namespace(namespace: Namespace) -> bytes:
    """The number of labels, then the labels. So no namespace begins with another one."""
    return b"%d:%b" % (len(namespace), b"".join(map(component, namespace)))
