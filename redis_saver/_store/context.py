"""Settings and caches of a store, and the places of its namespaces: everything that operations share."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from langgraph.store.base import InvalidNamespaceError

from redis_saver._common import config, forks, limits
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.logs import Log
from redis_saver._common.names import MAX_CACHED_NAME, component
from redis_saver._common.store_names import PARTITION_LABELS, Partition, StoreKeyspace, member, namespace_and_key
from redis_saver._storage.context import Context

if TYPE_CHECKING:
    from redis_saver._store.vectors import Embedder

_LOG = Log("redis_saver.store")
_MAX_CACHED_PLACES = 4096


class StoreContext(NamedTuple):
    """A store on one server, as its operations see it."""

    values: Context
    """Settings that savers have, too: values, limits and encryption."""
    keyspace: StoreKeyspace
    places: Places
    local_cache: LocalCache
    """Mirrors, and partitions without TTLs."""
    reads_plain: bool
    """True if a command may replace a script that only reads. False with `require_primary`, because only scripts check
    it. False in a cluster, because its client may send commands to replicas."""
    is_replicated: bool
    """True if writes wait for replicas (`lockstep.together`)."""
    embedder: Embedder | None = None
    """Embeds texts and compares vectors, if the store has an `index`."""

    @property
    def has_documents(self) -> bool:
        """True if items get documents, for the server's own index of vectors."""
        return self.embedder is not None and self.embedder.server is not None


class Place(NamedTuple):
    """Partition of a namespace, and beginning of the fields of its items."""

    partition: Partition
    prefix: bytes
    """Beginning of the fields: the labels that do not name the partition."""

    def field(self, key: str) -> bytes:
        """Return the field of an item."""
        return self.prefix + component(key)


class Places:
    """Finds the place of a namespace. Short names are cached, because checking a namespace would dominate a call."""

    def __init__(self, keyspace: StoreKeyspace, limits: Limits) -> None:
        """Use these keys and limits."""
        self._keyspace, self._limits = keyspace, limits
        self._cached: BoundedCache[tuple[str, ...], Place] = BoundedCache(_MAX_CACHED_PLACES)

    def of(self, namespace: tuple[str, ...]) -> Place:
        """Return the place of a namespace.

        Raises:
            InvalidNamespaceError: The namespace is empty or not valid.
        """
        try:
            return self._cached[namespace]
        except (KeyError, TypeError):
            pass
        namespace = check_labels(namespace)
        if not namespace:
            raise InvalidNamespaceError("the namespace is empty: an item has a namespace of at least one label")
        for label in namespace:
            limits.check_name(self._limits, label, "a label of a namespace")
        partition = self._keyspace.partition(member(namespace[:PARTITION_LABELS]))
        place = Place(partition, member(namespace[PARTITION_LABELS:]))
        if sum(map(len, namespace)) <= MAX_CACHED_NAME:
            self._cached.store(namespace, place)
        return place

    def key(self, key: Any) -> str:
        """Check a key.

        Raises:
            TypeError: It is not a str.
            LimitExceeded: It is too long.
        """
        if not isinstance(key, str):
            raise TypeError(f"key={shown(key)}: a key is a str, not a {type(key).__name__}")
        limits.check_name(self._limits, key, "a key")
        return key


def check_labels(namespace: Any, what: str = "namespace") -> tuple[str, ...]:
    """Check a namespace, or a part of one, and return it as a tuple.

    Raises:
        InvalidNamespaceError: It is not a tuple or list, or a label is not valid.
    """
    if not isinstance(namespace, (tuple, list)):
        raise InvalidNamespaceError(
            f"{what}={shown(namespace)}: a namespace is a tuple of labels, such as ('memories', 'user-1')"
        )
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidNamespaceError(
                f"{what}={shown(namespace)}: the label {shown(label)} is a {type(label).__name__}; a label is a str"
            )
        if not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"{what}={shown(namespace)}: the label {shown(label)} is empty, or has a period or NUL in it, "
                "which LangGraph allows in no store"
            )
    return tuple(namespace)


def document_tag(labels: Sequence[str]) -> bytes:
    """Return the tag of a namespace in documents. It is a digest, so a query cannot read a label as syntax."""
    return hashlib.sha256(member(tuple(labels))).hexdigest()[:32].encode()


def document_tags(partition: Partition, field: bytes) -> bytes:
    """Return the tags of an item's namespace and of its parents."""
    namespace, _ = namespace_and_key(partition, field)
    return b",".join([document_tag(namespace[:length]) for length in range(1, len(namespace) + 1)])


class LocalCache:
    """Cache of mirrors, limited in bytes. The least recently used are evicted first.

    OS threads share the values, so a value is never changed. It may be evicted at any time. Each call checks with the
    server that the value is still valid.
    """

    kind: ClassVar[str] = "local_cache"

    def __init__(self, limit: int) -> None:
        """Hold up to `limit` bytes.

        Raises:
            ValueError: The limit is not a number of bytes.
        """
        config.number("cache_bytes", limit, 0, whole=True)
        self._limit, self._has_warned = limit, False
        self._values: BoundedCache[Hashable, Any] = BoundedCache(max_bytes=limit)
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, count from zero."""
        self._hits = self._misses = 0

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        value = self._values.get(key)
        if value is None:
            self._misses += 1
        else:
            self._hits += 1
            self._values.renew(key)
        return value

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Hold a value of `size` bytes. One that is larger than the limit is dropped, with one warning per store."""
        self._values.store(key, value, size)
        if size > self._limit > 0 and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "A store read %s bytes of items and vectors that cache_bytes=%s cannot hold: each further call "
                "reads them again. Set cache_bytes higher, or search smaller partitions",
                f"{size:,}",
                f"{self._limit:,}",
            )

    def forget(self, key: Hashable) -> None:
        """Drop the value of a key, if there is one."""
        self._values.forget(key)

    def numbers(self) -> dict[str, Any]:
        """Return the fields of `Stats` for this cache."""
        return {"cache_bytes": self._values.bytes, "cache_hits": self._hits, "cache_misses": self._misses}
