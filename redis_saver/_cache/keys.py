"""The keys of a cache. `docs/storage-format.md` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.names import Keyspace, component, encode, new_component

Namespace = tuple[str, ...]
FullKey = tuple[Namespace, str]

SHARDS = 16
"""A part of the format: it says in which shard a namespace lies."""


class Address(NamedTuple):
    """An entry, and its keys."""

    name: FullKey
    shard: int
    generation: bytes
    """The key of its namespace's generation."""
    entry: bytes
    """Its own key."""
    member: bytes
    """Its member of the shard's index: its namespace and its key."""


class Range(NamedTuple):
    """A part of a shard's index, as ZRANGEBYLEX takes it, and the key of the generation of all entries in it."""

    shard: int
    generation: bytes
    low: bytes
    high: bytes


class _Space(NamedTuple):
    """A namespace: its shard, its name in keys, and the beginnings of its keys."""

    shard: int
    raw: bytes
    generation: bytes
    entry: bytes


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
        self._spaces: BoundedCache[Namespace, _Space] = BoundedCache(1024, 2**19)
        """Namespaces used lately. They can be computed again."""

    def _space(self, namespace: Namespace) -> _Space:
        if (space := self._spaces.get(namespace)) is None:
            # The number of labels, then the labels. So no namespace begins with another one.
            raw = b"%d:%b" % (len(namespace), b"".join(map(component, namespace)))
            shard = crc32(raw) % SHARDS
            stem = self._stems[shard]
            space = _Space(shard, raw, stem + b"generation:" + raw, stem + b"entry:" + raw)
            self._spaces.store(namespace, space, 4 * len(raw))
        return space

    def address(self, name: FullKey) -> Address:
        """The address of an entry."""
        shard, raw, generation, entry = self._space(name[0])
        key = new_component(name[1])
        return Address(name, shard, generation, entry + key, raw + key)

    def ranges(self, namespaces: Iterable[Namespace] | None) -> list[Range]:
        """The ranges of these namespaces, each once. None: of all shards."""
        if namespaces is None:
            return [Range(shard, generation, b"-", b"+") for shard, generation in enumerate(self.generations)]
        spaces = [self._space(namespace) for namespace in dict.fromkeys(namespaces)]
        # UTF-8 has no byte 0xff, so this bound is above all members that begin with `raw`, and below all later ones.
        return [Range(each.shard, each.generation, b"[" + each.raw, b"(" + each.raw + b"\xff") for each in spaces]

    def listed(self, shard: int, member: bytes) -> tuple[bytes, bytes]:
        """The keys of a member of a shard's index: its namespace's generation, and the entry."""
        end = member.rfind(b"\0", 0, -1) + 1 or member.find(b":") + 1
        stem = self._stems[shard]
        return stem + b"generation:" + member[:end], stem + b"entry:" + member
