"""LangGraph's interface of a store: each method is one operation, which the store's driver runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    ListNamespacesOp,
    MatchCondition,
    NamespacePath,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from redis_saver._common.display import shown
from redis_saver._engine.requests import Operation, T
from redis_saver._engine.runner import Driver
from redis_saver._engine.stats import Counting
from redis_saver._store import namespaces, operations, searching
from redis_saver._store.context import StoreContext
from redis_saver._store.items import VersionedItem
from redis_saver._store.texts import Texts


class Interface(BaseStore):
    """LangGraph's methods. Every one also has a form with an `a` in front, for asyncio."""

    supports_ttl: bool = True
    ttl_config: TTLConfig | None
    _context: StoreContext
    _driver: Driver[Any]
    """What runs the operations."""
    _counting: Counting
    """What counts the calls."""

    def _run(self, operation: Operation[T], texts: Texts | None = None, *, name: str = "") -> T:
        """Run an operation, after what it noted was embedded."""
        if texts and (embedder := self._context.embedder) is not None:
            self._driver.check_open()
            embedder.embed(texts)
        return self._driver.run(self._counting.call(operation, name))

    async def _arun(self, operation: Operation[T], texts: Texts | None = None, *, name: str = "") -> T:
        """`_run` for asyncio. Texts are embedded on the caller's event loop, as that is where an asynchronous client of a model works."""
        if texts and (embedder := self._context.embedder) is not None:
            self._driver.check_open()
            await embedder.aembed(texts)
        return await self._driver.arun(self._counting.call(operation, name))

    def _refresh(self, asked: bool | None) -> bool:
        return bool((self.ttl_config or {}).get("refresh_on_read", True)) if asked is None else bool(asked)

    def _ttl(self, asked: float | NotProvided | None) -> float | None:
        return (self.ttl_config or {}).get("default_ttl") if isinstance(asked, NotProvided) else asked

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations. All reads see what was there before the puts; of several puts of an item the last one counts.

        The puts of one partition (namespaces with the same first two labels) are stored together or not at all: up to 1,000, or 8 MB.

        Cost: one round trip; two if it reads and writes the same partition; two more for each kind that looks at several partitions, and for the first item
        of a partition.

        Args:
            ops: `GetOp`, `PutOp`, `SearchOp` and `ListNamespacesOp` of `langgraph.store.base`.

        Returns:
            The results, in the order of the operations.

        Raises:
            InvalidNamespaceError: A namespace is not valid. Nothing was sent.
        """
        texts = Texts()
        return self._run(operations.batch(self._context, ops, texts), texts, name="batch")

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for asyncio."""
        texts = Texts()
        return await self._arun(operations.batch(self._context, ops, texts), texts, name="batch")

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> VersionedItem | None:
        """Read an item. One round trip.

        Args:
            namespace: Its namespace.
            key: Its key.
            refresh_ttl: Whether its TTL begins anew. None: as `ttl` says, which means True if it says nothing.

        Returns:
            The item, with its `version`; None if there is none.
        """
        return self._run(operations.get(self._context, namespace, str(key), self._refresh(refresh_ttl)))

    async def aget(
        self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None
    ) -> VersionedItem | None:
        """`get` for asyncio."""
        return await self._arun(operations.get(self._context, namespace, str(key), self._refresh(refresh_ttl)))

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any] | None,
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Store an item; it keeps its `created_at`. One round trip, three for the first item of a partition.

        Args:
            namespace: Its namespace.
            key: Its key.
            value: A dict with string keys and values that the serializer knows. None deletes the item.
            index: What of it is embedded: None: the `fields` of the store's `index`; False: nothing; or a list of paths. Not used by a store without `index`.
            ttl: Minutes after which it expires; None: never. Not given: as the store's `ttl` says.
            if_version: Store it only if the item has this `version`; 0: only if there is no such item. None: in any case.

        Raises:
            Conflict: It has another version. Nothing was written.
            EncodeError: The serializer does not know a value. Nothing was written.
        """
        texts = Texts()
        self._run(self._put(namespace, key, value, index, ttl, if_version, texts), texts)

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any] | None,
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """`put` for asyncio."""
        texts = Texts()
        await self._arun(self._put(namespace, key, value, index, ttl, if_version, texts), texts)

    def _put(
        self,
        namespace: Any,
        key: Any,
        value: Any,
        index: Any,
        ttl: float | NotProvided | None,
        if_version: int | None,
        texts: Texts,
    ) -> Operation[None]:
        if value is None and if_version is not None:
            raise TypeError(
                f"if_version={shown(if_version)}: value=None deletes the item whatever its version is; leave if_version out"
            )
        op = PutOp(namespace, str(key), value, index, self._ttl(ttl))
        return operations.put_one(self._context, op, if_version, texts)

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Delete an item, if it is there. One round trip, two for the last item of a partition."""
        self._run(operations.delete(self._context, namespace, str(key)), name="delete")

    async def adelete(self, namespace: tuple[str, ...], key: str) -> None:
        """`delete` for asyncio."""
        await self._arun(operations.delete(self._context, namespace, str(key)), name="delete")

    def search(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Find items of a namespace and of those below it, newest first: those that were put last; then by namespace and key.

        Cost: see `docs/store.md`. A prefix of two labels or more is one partition, and one round trip, in which only what this process does not know yet is
        sent. A filter makes the process keep all of the partition, in `cache_bytes`.

        Args:
            namespace_prefix: What the namespaces begin with, label by label; `()` for all.
            query: A text. The items are those whose vectors are nearest to its own, nearest first, with their `score`; then those without vectors, newest
                first. Not used by a store without `index`.
            filter: What the value has to have: `{"key": value}`, or operators `{"key": {"$gte": 1, "$lt": 5}}`: `$eq $ne $gt $gte $lt $lte`.
            limit: How many to return, at the most.
            offset: How many to pass over. While others put items, those that were not touched move on by as many as were put.
            refresh_ttl: Whether the TTLs of the items that are returned begin anew. None: as `ttl` says.

        Returns:
            Items, with their `version`.

        Raises:
            ValueError: An operator is unknown.
            StoreBusy: With a filter or a query: others emptied a namespace each time it was read.
        """
        op = SearchOp(namespace_prefix, filter, limit, offset, query, self._refresh(refresh_ttl))
        texts = Texts()
        return list(self._run(searching.search(self._context, op, texts), texts, name="search"))

    async def asearch(
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """`search` for asyncio."""
        op = SearchOp(namespace_prefix, filter, limit, offset, query, self._refresh(refresh_ttl))
        texts = Texts()
        return list(await self._arun(searching.search(self._context, op, texts), texts, name="search"))

    def list_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """List the namespaces that have items, in order, each once.

        Args:
            prefix: What they begin with; `"*"` stands for any label.
            suffix: What they end with.
            max_depth: Longer ones are cut off behind so many labels.
            limit: How many to return, at the most.
            offset: How many to pass over.
        """
        return self._run(self._list_namespaces(prefix, suffix, max_depth, limit, offset))

    async def alist_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """`list_namespaces` for asyncio."""
        return await self._arun(self._list_namespaces(prefix, suffix, max_depth, limit, offset))

    def _list_namespaces(
        self, prefix: Any, suffix: Any, max_depth: int | None, limit: int, offset: int
    ) -> Operation[list[tuple[str, ...]]]:
        conditions = []
        if prefix:
            conditions.append(MatchCondition("prefix", prefix))
        if suffix:
            conditions.append(MatchCondition("suffix", suffix))
        return namespaces.list_namespaces(self._context, ListNamespacesOp(tuple(conditions), max_depth, limit, offset))
