"""The keys of a cache. `docs/storage-format.md` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from redis_saver._common.names import Keyspace, component, encode, new_component

Namespace = tuple[str, ...]
FullKey = tuple[Namespace, str]

_MAX_REMEMBERED = 1024
_MAX_NAME = 256
"""The most namespaces that are remembered, and the most characters that one of these may have."""
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


class Space(NamedTuple):
    """A namespace: its shard, its name as keys have it, and what its keys begin with."""

    shard: int
    raw: bytes
    generation: bytes
    entry: bytes


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
        self._spaces: dict[Namespace, Space] = {}
        self.indexes: list[bytes] = [stem + b"index" for stem in self._stems]
        """The key of each shard's index."""

    def space(self, namespace: Namespace) -> Space:
        """Where the entries of a namespace lie."""
        if (known := self._spaces.get(namespace)) is not None:
            return known
        # The number of labels, then the labels. So no namespace begins with another one.
        raw = b"%d:%b" % (len(namespace), b"".join(map(component, namespace)))
        shard = crc32(raw) % SHARDS
        stem = self._stems[shard]
        space = Space(shard, raw, stem + b"generation:" + raw, stem + b"entry:" + raw)
        if len(raw) <= _MAX_NAME:
            if len(self._spaces) >= _MAX_REMEMBERED:
                self._spaces.clear()
            self._spaces[namespace] = space
        return space

    def is_known(self, namespace: tuple[object, ...]) -> bool:
        """Whether this was a namespace shortly before, and so is one."""
        try:
            return namespace in self._spaces
        except TypeError:  # it holds something that is no str, and has no hash
            return False

    def place(self, name: FullKey) -> Place:
        """Where an entry lies."""
        shard, raw, generation, entry = self.space(name[0])
        key = new_component(name[1])
        return Place(name, shard, generation, entry + key, raw + key)

    def ranges(self, namespaces: Iterable[Namespace] | None) -> list[Range]:
        """What to clear: these namespaces, each once; None: all shards."""
        if namespaces is None:
            return [Range(shard, generation, b"-", b"+") for shard, generation in enumerate(self.generations)]
        spaces = [self.space(namespace) for namespace in dict.fromkeys(namespaces)]
        # UTF-8 has no byte 0xff, so this is above all members that begin with `raw`, and below all others behind them.
        return [Range(each.shard, each.generation, b"[" + each.raw, b"(" + each.raw + b"\xff") for each in spaces]

    def listed(self, shard: int, member: bytes) -> tuple[bytes, bytes]:
        """The keys of a member of a shard's index: its namespace's generation, and the entry."""
        end = member.rfind(b"\0", 0, -1) + 1 or member.find(b":") + 1
        stem = self._stems[shard]
        return stem + b"generation:" + member[:end], stem + b"entry:" + member
