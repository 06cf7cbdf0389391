"""The entries of a cache: their names, keys and bytes. `docs/storage-format.md` shows the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from langgraph.cache.base import FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common import limits
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace, component, encode as encode_text
from redis_saver._storage import encryption, framing
from redis_saver.errors import DecodeError, UnsupportedFormat, decoding, encoding

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
        self._stems = [b"%b:%b:{%d}:" % (encode_text(prefix), room, shard) for shard in range(SHARDS)]
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
        key = component(name[1])
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


FORMAT = b"\1"
"""First byte of each entry. The generations of its namespace and shard, a framed type, and the bytes follow."""
GENERATION = 8
"""Bytes of a generation, which are random."""

_ENTRY = "the cache's entry {!r} of namespace {!r}"
_MSGPACK = framing.pack([b"msgpack"])
_MAX_SECONDS = 100 * 365 * 24 * 3600


class Context(NamedTuple):
    """A cache, as its entries see it."""

    serde: SerializerProtocol
    keyspace: CacheKeyspace
    ttl: int | None
    """TTL in milliseconds of an entry that is set without one. None: no deadline."""
    require_encryption: bool
    limits: Limits


class Found:
    """The result of a read."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.values: dict[FullKey, Any] = {}
        self.unreadable: dict[FullKey, Exception] = {}
        """Entries that are there, but cannot be decoded."""
        self.waits = 0
        """Number of values that were stored while the reader waited."""

    def take(self, context: Context, name: FullKey, raw: bytes, stamp: bytes) -> None:
        """Take an entry as it is stored. One that was written under other generations than the stamp's is left out."""
        try:
            if raw[:1] != FORMAT:
                raise UnsupportedFormat(
                    "an entry of a cache begins with a byte that this release does not know: a newer release, or "
                    "another program, stored it. It was not decoded, and a set() replaces it"
                )
            if raw.startswith(stamp, 1):
                self.values[name] = decode(context, name, raw, stamp)
        except (DecodeError, UnsupportedFormat) as error:
            self.unreadable[name] = error

    def add(self, other: Found) -> None:
        """Add the result of a later read of missing entries."""
        self.values |= other.values
        self.unreadable |= other.unreadable

    def missing(self, addresses: Iterable[Address]) -> list[Address]:
        """The entries that are not there."""
        return [each for each in addresses if each.name not in self.values and each.name not in self.unreadable]


def encode(context: Context, name: FullKey, value: Any) -> bytes:
    """A value as it is stored after its stamp.

    Raises:
        EncodeError: The serializer cannot encode it.
        LimitExceeded: It is too large.
        ValueError: Encryption is required, and the serializer did not encrypt it.
    """
    namespace, key = name
    with encoding(_ENTRY, key, namespace):
        kind, data = context.serde.dumps_typed(value)
        packed = framing.pack([kind.encode()])
    encryption.check_written(context, kind)
    limits.check(context.limits, "value_bytes", len(data), _ENTRY + " has {} bytes", key, namespace)
    return packed + data


def decode(context: Context, name: FullKey, raw: bytes, stamp: bytes) -> Any:
    """The value of a valid entry.

    Raises:
        DecodeError: The serializer cannot decode it.
        PlainValueRefused: It is not encrypted, and the cache reads only encrypted values.
    """
    namespace, key = name
    with decoding(_ENTRY, key, namespace, remedy="It counts as a miss, and a set() replaces it."):
        kind, start = b"msgpack", 1 + len(stamp) + len(_MSGPACK)
        if not raw.startswith(_MSGPACK, 1 + len(stamp)):  # the type of the default serializer
            (kind,), start = framing.take(raw, 1 + len(stamp), 1)
        return encryption.loads(context, kind, raw[start:])


# -- arguments


def names(context: Context, keys: Sequence[FullKey]) -> list[FullKey]:
    """Check the names of entries. Each name is in the result once.

    Raises:
        TypeError: It is no sequence of pairs of a namespace and a key.
        LimitExceeded: A label or key is too long.
    """
    return list(dict.fromkeys(_name(context, key) for key in keys))


def _name(context: Context, name: FullKey) -> FullKey:
    if isinstance(name, (str, bytes)) or not isinstance(name, Sequence) or len(name) != 2:
        raise TypeError(f"key={shown(name)}: an entry is named by a pair (namespace, key), such as (('label',), 'key')")
    labels, key = name
    if not isinstance(key, str):
        raise TypeError(f"key={shown(name)}: its key {shown(key)} is a {type(key).__name__}, and has to be a str")
    limits.check_name(context.limits, key, "a cache's key")
    return _namespace(context, labels), key


def _namespace(context: Context, namespace: Namespace) -> Namespace:
    if isinstance(namespace, (str, bytes)) or not isinstance(namespace, Sequence):
        raise TypeError(f"namespace={shown(namespace)}: a namespace is a tuple of str, such as ('label',)")
    for label in namespace:
        if not isinstance(label, str):
            raise TypeError(f"namespace={shown(namespace)}: its label {shown(label)} is no str")
        limits.check_name(context.limits, label, "a cache's namespace")
    return tuple(namespace)


def namespaces(context: Context, namespaces: Sequence[Namespace] | None) -> list[Namespace] | None:
    """Check the namespaces to clear. None: all.

    Raises:
        TypeError: It is no sequence of sequences of str.
        LimitExceeded: A label is too long.
    """
    return None if namespaces is None else [_namespace(context, namespace) for namespace in namespaces]


def pairs(context: Context, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> list[tuple[FullKey, int | bytes, Any]]:
    """Check the entries to store: name, TTL in milliseconds (`b""`: none), and value.

    Raises:
        TypeError, ValueError, LimitExceeded: A name or TTL makes no sense.
    """
    if not isinstance(pairs, Mapping):
        raise TypeError(f"pairs={shown(pairs)}: pass a dict of {{(namespace, key): (value, ttl)}}")
    default = b"" if context.ttl is None else context.ttl
    checked = []
    for key, pair in pairs.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"the entry {shown(key)} has no pair (value, ttl); write None as ttl for the cache's own")
        value, ttl = pair
        checked.append((_name(context, key), default if ttl is None else _milliseconds(key, ttl), value))
    return checked


def _milliseconds(key: FullKey, ttl: object) -> int:
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"the entry {shown(key)} has the ttl {shown(ttl)}: a TTL is a number of seconds, or None")
    if not 0.001 <= ttl <= _MAX_SECONDS:
        raise ValueError(
            f"the entry {shown(key)} has the ttl {shown(ttl)}: a TTL lies between 0.001 seconds and a hundred years. "
            "To keep a node out of the cache, give it no cache_policy"
        )
    return round(ttl * 1000)
