"""Items of a store and entries of caches under a prefix, as commands and pages show them."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from langgraph.cache.base import Namespace
from langgraph.store.base import Item

from redis_saver._cache import cache as caches, llm, sizes
from redis_saver._cache.entries import MODELS, CacheKeyspace
from redis_saver._checkpoint import saver as savers
from redis_saver._checkpoint.saver import Saver
from redis_saver._common.display import kind_of, printable, shown
from redis_saver._store import namespaces, reading, searching, store as stores
from redis_saver._store.context import check_labels
from redis_saver._store.items import Entry
from redis_saver._tiered_store import copies
from redis_saver.errors import DecodeError, EndpointError, KeyUnavailable, PlainValueRefused

_UNREADABLE = DecodeError, KeyUnavailable, PlainValueRefused
Labels: TypeAlias = tuple[str, ...]
_MAX_SIMILAR = 5


class Branch(NamedTuple):
    """A namespace in a tree, with the items of its children."""

    namespace: Labels
    items: int
    bytes: int | None
    """Stored bytes. None if the time was up."""


class ItemRow(NamedTuple):
    """An item. Without its key, it has no value."""

    namespace: Labels
    key: str
    value: dict[str, Any] | None
    unreadable: str
    """The reason why there is no value. Empty if there is one."""
    score: float | None
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    bytes: int


class CacheRow(NamedTuple):
    """Valid entries of a namespace of a cache."""

    namespace: Namespace | None
    """None for models' answers."""
    entries: int
    bytes: int


class Memory:
    """Reader of a store and of the caches with its prefix. Reads move no deadline."""

    def __init__(self, store: Any, cache: Any) -> None:
        """Read from a `RedisStore` and a `RedisCache`, or their asyncio forms."""
        self.store, self.cache = store, cache
        self._context, self._run = stores.context_of(store), stores.driver_of(store).run

    # -- items

    @property
    def has_index(self) -> bool:
        """True if the store can search by similarity."""
        return self._context.embedder is not None

    def tree(self, labels: Labels = (), seconds: float = math.inf) -> list[Branch]:
        """Return a namespace and those below it, each with the items of its children. It measures for `seconds`."""
        measured = self._run(namespaces.sizes(self._context, labels, time.monotonic() + seconds))
        items, known = defaultdict[Labels, int](int), defaultdict[Labels, list[int | None]](list)
        for name, size in measured.items():
            for length in range(max(len(labels), 1), len(name) + 1):
                items[name[:length]] += size.items
                known[name[:length]].append(size.bytes)
        return [
            Branch(name, items[name], None if None in known[name] else sum(size or 0 for size in known[name]))
            for name in sorted(items)
        ]

    def similar(self, labels: Labels) -> list[Labels]:
        """Return up to 5 namespaces with a label that contains the last of these, for somebody who guessed."""
        part = labels[-1].lower()
        found = [branch.namespace for branch in self.tree(seconds=0) if part in branch.namespace[-1].lower()]
        return found[:_MAX_SIMILAR]

    def items(
        self,
        labels: Labels,
        query: str | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> list[ItemRow]:
        """Return items of a namespace and its children as `search` does. If they cannot be read, without values.

        Raises:
            EndpointError: There is a query, and no index.
        """
        if query and not self.has_index:
            raise EndpointError("this store has no index, so it cannot search by similarity")
        page: Any = {"limit": limit, "offset": offset, "refresh_ttl": False}
        try:
            found = self.store.search(labels, query=query or None, filter=dict(where) if where else None, **page)
        except _UNREADABLE as error:
            if query or where:
                raise
            hits = self._run(searching.stored(self._context, labels, limit, offset))
            return self._rows([self._opened(hit.entry, *hit.name, error) for hit in hits])
        return self._rows([_row(item, item.score) for item in found])

    def item(self, labels: Labels, key: str) -> ItemRow | None:
        """Return an item, without its value if that cannot be read. None if there is none."""
        try:
            item = self.store.get(labels, key, refresh_ttl=False)
        except _UNREADABLE as error:
            place = self._context.places.of(labels)
            plain = self._context._replace(values=self._context.values._replace(data_keys=None))
            (entry,) = self._run(reading.read(plain, place.partition, (place.field(key),), refresh=False))
            rows = [self._opened(entry, labels, key, error)] if entry else []
        else:
            rows = [_row(item, None)] if item else []
        return next(iter(self._rows(rows)), None)

    def delete(self, labels: Labels, key: str) -> None:
        """Delete an item.

        Raises:
            EndpointError: It is a copy of a cold store's, and would come back.
        """
        if self._run(copies.holds_copies(self._context, labels)):
            raise EndpointError(
                f"the items of {shown(labels)} are copies of a cold store's, so they would come back. Nothing was "
                "deleted. Call delete() of the TieredStore, or redis-saver forget with --postgres"
            )
        self.store.delete(labels, key)

    def _opened(self, entry: Entry, labels: Labels, key: str, error: Exception) -> ItemRow:
        """Decode an entry. If that fails, or if the store has keys, the error says why there is no value."""
        row = ItemRow(labels, key, None, printable(str(error)), None, *entry.moments(), None, 0)
        if self._context.values.data_keys is not None:
            return row
        try:
            return row._replace(value=entry.decoded(self._context.values, labels, key), unreadable="")
        except _UNREADABLE as of_item:
            return row._replace(unreadable=printable(str(of_item)))

    def _rows(self, rows: Sequence[ItemRow]) -> list[ItemRow]:
        """Add the bytes and deadlines."""
        details = self._run(reading.details(self._context, [row[:2] for row in rows])) if rows else []
        return [row._replace(**detail._asdict()) for row, detail in zip(rows, details, strict=True)]

    # -- caches

    def entries(self, seconds: float = math.inf) -> tuple[list[CacheRow], bool]:
        """Measure the caches, and return True if the time was up. It scans all keys of the server."""
        end, prefix, run = time.monotonic() + seconds, self._context.keyspace.prefix, caches.driver_of(self.cache).run
        nodes, is_partial = run(sizes.sizes(CacheKeyspace(prefix), end))
        answers, is_late = run(sizes.sizes(CacheKeyspace(prefix, MODELS), end))
        rows = [CacheRow(name, *size) for name, size in nodes.items()]
        if answers:
            rows.append(CacheRow(None, *map(sum, zip(*answers.values(), strict=True))))
        return rows, is_partial or is_late

    def clear(self, rows: Sequence[CacheRow]) -> None:
        """Clear these namespaces, and models' answers if they are among them."""
        if names := [row.namespace for row in rows if row.namespace is not None]:
            self.cache.clear(names)
        if len(names) < len(rows):
            llm.RedisLLMCache(self.cache).clear()


def _row(item: Item, score: float | None) -> ItemRow:
    return ItemRow(item.namespace, item.key, item.value, "", score, item.created_at, item.updated_at, None, 0)


def read_labels(words: Sequence[str]) -> Labels:
    """Return a namespace from its labels. A label cannot have a point, so points in a word separate labels, too.

    Raises:
        InvalidNamespaceError: A label is empty, or has NUL.
    """
    return check_labels(tuple(label for word in words for label in word.split(".")))


def memory_of(saver: Saver[Any], store: Any = None) -> Memory:
    """Return the memory beside a saver in Redis: its client, prefix, serializer and keys, or those of the store.

    Raises:
        TypeError: The store is not a `RedisStore` or `AsyncRedisStore`.
    """
    if not isinstance(store, (stores.Store, type(None))):
        raise TypeError(f"store is {kind_of(store)}: pass a RedisStore or an AsyncRedisStore")
    driver: Any = savers.driver_of(saver) if store is None else stores.driver_of(store)
    client = driver.given if driver.is_async else driver.client
    if store is None:
        values = savers.context_of(saver)
        encryption = values.data_keys and values.data_keys.encryption
        options: Any = {"serde": saver.serde, "encryption": encryption, "limits": values.limits, "cache_bytes": 0}
        kind: Any = stores.AsyncRedisStore if driver.is_async else stores.RedisStore
        store = kind(client, prefix=values.keyspace.prefix, **options)
        stores.use_values(store, reads_plain_threads=values.reads_plain_threads)
    cache_kind: Any = caches.AsyncRedisCache if driver.is_async else caches.RedisCache
    cache = cache_kind(client, prefix=stores.context_of(store).keyspace.prefix)
    store._driver = cache._driver = driver  # noqa: SLF001 - an asyncio client belongs to one driver
    return Memory(store, cache)
