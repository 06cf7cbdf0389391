"""Entries of a cache: their names, keys and bytes. `docs/storage-format.md` shows the keys.

`__init__.py` explains generations and stamps.
"""

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
from redis_saver._common.names import Keyspace, component, components, encode as encode_text, glob
from redis_saver._storage import framing
from redis_saver._storage.keys import DataKeys
from redis_saver._storage.sealing import Cipher
from redis_saver.errors import DecodeError, UnsupportedFormat, decoding, encoding

MODELS = b"llm_cache"
"""Name in keys of the cache of models' answers."""
SHARDS = 16
"""Number of shards. It is a part of the format, because it decides the shard of a namespace."""


class Address(NamedTuple):
    """Name and keys of an entry."""

    name: FullKey
    shard: int
    generation: bytes
    """Key of its namespace's generation."""
    entry: bytes
    """Key of the entry."""
    member: bytes
    """Member of the shard's index: its namespace and its key."""


class Range(NamedTuple):
    """A range of a shard's index (for ZRANGEBYLEX), and the key of the generation of its entries."""

    shard: int
    generation: bytes
    low: bytes
    high: bytes


class Spot(NamedTuple):
    """Namespace of an entry, found by the entry's key."""

    namespace: Namespace
    shard: int
    generation: bytes
    """Key of the namespace's generation."""


class _Space(NamedTuple):
    """Shard of a namespace, its name in keys, and the prefixes of its keys."""

    shard: int
    raw: bytes
    generation: bytes
    entry: bytes


class CacheKeyspace:
    """Makes the keys of the caches with one prefix. The caches of nodes and of models have different keys (`room`)."""

    def __init__(self, prefix: str, room: bytes = b"cache") -> None:
        """Check the prefix.

        Raises:
            TypeError, ValueError: As `Keyspace`.
        """
        self.prefix: str = Keyspace(prefix).prefix
        self._stems = [b"%b:%b:{%d}:" % (encode_text(prefix), room, shard) for shard in range(SHARDS)]
        self.generations: list[bytes] = [stem + b"generation" for stem in self._stems]
        """Key of each shard's generation."""
        self.indexes: list[bytes] = [stem + b"index" for stem in self._stems]
        """Key of each shard's index."""
        self.data_key: bytes = encode_text(prefix) + b":cache:key"
        """Key of the data key of all rooms, with `encryption=`."""
        self.pattern: bytes = glob(b"%b:%b:{" % (encode_text(prefix), room)) + b"*}:entry:*"
        """SCAN pattern of the entries."""
        self._spaces: BoundedCache[Namespace, _Space] = BoundedCache(1024, 2**19)
        """Recently used namespaces. They can be computed again."""

    def _space(self, namespace: Namespace) -> _Space:
        if (space := self._spaces.get(namespace)) is None:
            # The number of labels comes first, so no namespace is a prefix of another.
            raw = b"%d:%b" % (len(namespace), b"".join(map(component, namespace)))
            shard = crc32(raw) % SHARDS
            stem = self._stems[shard]
            space = _Space(shard, raw, stem + b"generation:" + raw, stem + b"entry:" + raw)
            self._spaces.store(namespace, space, 4 * len(raw))
        return space

    def address(self, name: FullKey) -> Address:
        """Return the address of an entry."""
        shard, raw, generation, entry = self._space(name[0])
        key = component(name[1])
        return Address(name, shard, generation, entry + key, raw + key)

    def ranges(self, namespaces: Iterable[Namespace] | None) -> list[Range]:
        """Return the range of each namespace once; for None, the ranges of all shards."""
        if namespaces is None:
            return [Range(shard, generation, b"-", b"+") for shard, generation in enumerate(self.generations)]
        spaces = [self._space(namespace) for namespace in dict.fromkeys(namespaces)]
        # UTF-8 has no byte 0xff, so this bound is above all members that begin with `raw`, and below all later ones.
        return [Range(space.shard, space.generation, b"[" + space.raw, b"(" + space.raw + b"\xff") for space in spaces]

    def spot(self, key: bytes) -> Spot | None:
        """Return the namespace of an entry by its key, or None for another program's key."""
        tag, _, member = key.partition(b"}:entry:")
        shard = tag.rpartition(b"{")[2]
        count, _, labels = member.partition(b":")
        try:
            *namespace, _ = components(labels)
            space = self._space(tuple(namespace))
        except (UnicodeDecodeError, ValueError):
            return None
        is_ours = (shard, count) == (b"%d" % space.shard, b"%d" % len(namespace)) and key.startswith(space.entry)
        return Spot(tuple(namespace), space.shard, space.generation) if is_ours else None

    def listed(self, shard: int, member: bytes) -> tuple[bytes, bytes]:
        """Return the keys of a member of a shard's index: the generation of its namespace, and the entry."""
        end = member.rfind(b"\0", 0, -1) + 1 or member.find(b":") + 1
        stem = self._stems[shard]
        return stem + b"generation:" + member[:end], stem + b"entry:" + member


FORMAT = b"\1"
"""First byte of each entry. The generations of its namespace and shard, a framed type, and the bytes follow."""
GENERATION = 8
"""Length of a generation in bytes."""

_ENTRY = "the cache's entry {!r} of namespace {!r}"
_MSGPACK = framing.pack([b"msgpack"])
_MAX_SECONDS = 100 * 365 * 24 * 3600


class Context(NamedTuple):
    """Settings of a cache."""

    serde: SerializerProtocol
    keyspace: CacheKeyspace
    ttl: int | None
    """Default TTL in milliseconds, or None for no deadline."""
    limits: Limits
    data_keys: DataKeys | None
    """The data key, with `encryption=`."""
    cipher: Cipher | None = None
    """The cipher of a read. None: entries are plain."""


class ReadResult:
    """Result of a read."""

    def __init__(self) -> None:
        """Start empty."""
        self.values: dict[FullKey, Any] = {}
        self.unreadable: dict[FullKey, Exception] = {}
        """Entries that are there, but cannot be decoded."""
        self.waits = 0
        """Number of values that were stored while the reader waited."""

    def take(self, context: Context, name: FullKey, raw: bytes, stamp: bytes) -> None:
        """Add an entry as it is stored. An entry with another stamp is not valid, and is left out."""
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

    def add(self, other: ReadResult) -> None:
        """Add the result of a later read."""
        self.values |= other.values
        self.unreadable |= other.unreadable

    def missing(self, addresses: Iterable[Address]) -> list[Address]:
        """Return the addresses of the missing entries."""
        return [each for each in addresses if each.name not in self.values and each.name not in self.unreadable]


def encode(context: Context, name: FullKey, value: Any) -> bytes:
    """Encode a value, as it is stored after its stamp.

    Raises:
        EncodeError: The serializer cannot encode it.
        LimitExceeded: It is too large.
        ValueError: Encryption is required, and the serializer did not encrypt it.
    """
    namespace, key = name
    with encoding(_ENTRY, key, namespace):
        kind, data = context.serde.dumps_typed(value)
        packed = framing.pack([kind.encode()])
    limits.check(context.limits, "value_bytes", len(data), _ENTRY + " has {} bytes", key, namespace)
    return packed + data


def decode(context: Context, name: FullKey, raw: bytes, stamp: bytes) -> Any:
    """Decode the value of a valid entry.

    Raises:
        DecodeError: The serializer cannot decode it, or it was sealed with another data key or for another entry.
        PlainValueRefused: It is not encrypted, and the cache reads only encrypted values.
    """
    namespace, key = name
    with decoding(_ENTRY, key, namespace, remedy="It counts as a miss, and a set() replaces it."):
        start = 1 + len(stamp)
        if context.cipher is not None:
            raw, start = context.cipher.open_value(context.keyspace.address(name).entry, raw[start:]), 0
        if raw.startswith(_MSGPACK, start):  # the type of the default serializer
            return context.serde.loads_typed(("msgpack", raw[start + len(_MSGPACK) :]))
        (kind,), start = framing.take(raw, start, 1)
        return context.serde.loads_typed((kind.decode(), raw[start:]))


# -- arguments


def names(context: Context, keys: Sequence[FullKey]) -> list[FullKey]:
    """Check the names of entries, and return each once.

    Raises:
        TypeError: A name is not a pair of a namespace and a key.
        LimitExceeded: A label or key is too long.
    """
    return list(dict.fromkeys(_name(context, key) for key in keys))


def _name(context: Context, name: FullKey) -> FullKey:
    if isinstance(name, (str, bytes)) or not isinstance(name, Sequence) or len(name) != 2:
        raise TypeError(f"key={shown(name)}: an entry is named by a pair (namespace, key), such as (('label',), 'key')")
    labels, key = name
    if not isinstance(key, str):
        raise TypeError(f"key={shown(name)}: its key {shown(key)} is a {type(key).__name__}; a key is a str")
    limits.check_name(context.limits, key, "a cache's key")
    return _namespace(context, labels), key


def _namespace(context: Context, namespace: Namespace) -> Namespace:
    if isinstance(namespace, (str, bytes)) or not isinstance(namespace, Sequence):
        raise TypeError(f"namespace={shown(namespace)}: a namespace is a tuple of str, such as ('label',)")
    for label in namespace:
        if not isinstance(label, str):
            raise TypeError(f"namespace={shown(namespace)}: its label {shown(label)} is not a str")
        limits.check_name(context.limits, label, "a cache's namespace")
    return tuple(namespace)


def namespaces(context: Context, namespaces: Sequence[Namespace] | None) -> list[Namespace] | None:
    """Check the namespaces to clear. None means all.

    Raises:
        TypeError: A namespace is not a sequence of str.
        LimitExceeded: A label is too long.
    """
    return None if namespaces is None else [_namespace(context, namespace) for namespace in namespaces]


def pairs(context: Context, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> list[tuple[FullKey, int | bytes, Any]]:
    """Check the entries to store. Returns the name, TTL in milliseconds (`b""` for none) and value of each.

    Raises:
        TypeError, ValueError, LimitExceeded: A name or TTL is invalid.
    """
    if not isinstance(pairs, Mapping):
        raise TypeError(f"pairs={shown(pairs)}: pass a dict of {{(namespace, key): (value, ttl)}}")
    default = b"" if context.ttl is None else context.ttl
    checked = []
    for key, pair in pairs.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"the entry {shown(key)} has no pair (value, ttl). For the cache's own TTL write None")
        value, ttl = pair
        checked.append((_name(context, key), default if ttl is None else _milliseconds(key, ttl), value))
    return checked


def _milliseconds(key: FullKey, ttl: object) -> int:
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"the entry {shown(key)} has the ttl {shown(ttl)}: a TTL is a number of seconds, or None")
    if not 0.001 <= ttl <= _MAX_SECONDS:
        raise ValueError(
            f"the entry {shown(key)} has the ttl {shown(ttl)}: a TTL is between 0.001 seconds and a hundred years. "
            "To keep a node out of the cache, give it no cache_policy"
        )
    return round(ttl * 1000)
