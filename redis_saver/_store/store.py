"""What `RedisStore` and `AsyncRedisStore` share: the settings, LangGraph's interface, and what we do beyond it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    ListNamespacesOp,
    MatchCondition,
    NamespacePath,
    NotProvided,
    Op,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from redis_saver._client import clusters
from redis_saver._client.base import RedisDriver
from redis_saver._client.protocols import AsyncClient, SyncClient
from redis_saver._common import keywords, times
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._common.ttl import TTL, Expiry
from redis_saver._engine.requests import Operation, Request, T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._serde.serializer import FastSerializer, StrictSerializer, safe
from redis_saver._storage import compression as compressions
from redis_saver._storage import encryption
from redis_saver._storage.chunk_cache import CACHE_BYTES, ChunkCache
from redis_saver._storage.compression import Compression
from redis_saver._storage.context import Context
from redis_saver._store import directory, operations, searching
from redis_saver._store.context import StoreContext
from redis_saver._store.items import VersionedItem
from redis_saver._store.places import Places
from redis_saver._store.remembered import Remembered
from redis_saver._store.ttl_config import to_config

ClientT = TypeVar("ClientT", SyncClient, AsyncClient)


class Store(BaseStore, Generic[ClientT]):
    """A store on one Redis or Valkey. Every method has a twin with an `a` in front, for asyncio."""

    supports_ttl: bool = True
    ttl_config: TTLConfig | None
    _driver: RedisDriver | DriverWrapper[Request]
    _driver_class: ClassVar[type[Any]]
    _takes: ClassVar[str] = ""
    """What its constructor takes, for messages."""
    __signature__: ClassVar[inspect.Signature]

    if not TYPE_CHECKING:  # a type checker looks at `__init__`

        def __new__(cls, *arguments, **settings):  # noqa: ANN002, ANN003, ANN204, ARG004
            """Refuse arguments that other stores take, and misspelled ones, by their names."""
            keywords.check(cls, settings, cls._takes)
            return super().__new__(cls)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Have `help` and notebooks show the constructor's settings, and not those of `__new__`."""
        super().__init_subclass__(**settings)
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __init__(
        self,
        client: ClientT,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: TTL | TTLConfig = None,
        compression: Compression | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = clusters.CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
    ) -> None:
        """Use a client of yours. The store does not close it.

        Args:
            client: As a saver of the same flavour takes it; savers and stores may share one.
            serde: The serializer of the values. Default: `FastSerializer`.
            prefix: The beginning of all keys. A saver and a store may have the same.
            ttl: How long after it was put, or read, an item expires that is put without a `ttl` of its own: a `timedelta`, a text such as `"30d"`, or LangGraph's
                `TTLConfig`. `refresh_on_read` is True by default. Expired items are never answered, so `omit_expired` changes nothing. None: items
                stay until they are deleted.
            compression: `"zstd"` compresses values of a kilobyte and more (extra `zstd`). Every store reads them.
            cache_bytes: Memory for the pages and partitions that were read last, in bytes. 0: remember nothing.
            limits: The longest names and values (`name_bytes`, `value_bytes`). More raises `LimitExceeded`.
            require_encryption: As a saver takes it.
            strict: As a saver takes it.
            cluster_timeout: As a saver takes it.
            require_primary: As a saver takes it.
            min_replicas: As a saver takes it. With it, puts to several partitions are sent one after the other.
            replica_timeout: As a saver takes it.

        Raises:
            ImportError: `compression` without its extra.
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        super().__init__()
        keyspace = StoreKeyspace(prefix)
        self._driver = self._driver_class(
            client,
            prefix=prefix,
            cluster_timeout=cluster_timeout,
            require_primary=require_primary,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
            taker="Store",
        )
        if strict:
            if serde is not None:
                raise ValueError(
                    f"strict=True chooses the serializer, and serde={serde!r} was given, too: leave one out. To encrypt strictly, pass "
                    "serde=EncryptedSerializer.from_pycryptodome_aes(redis_saver.StrictSerializer())"
                )
            serde = StrictSerializer()
        serde = FastSerializer() if serde is None else safe(serde)
        self.ttl_config = to_config(ttl)
        values = Context(
            serde=serde,
            keyspace=Keyspace(prefix),
            expiry=Expiry(),
            compression=compressions.check(compression, type(self)),
            require_encryption=encryption.check(require_encryption, serde),
            chunk_cache=ChunkCache(0),
            limits=limits,
        )
        self._context = StoreContext(
            values, keyspace, Places(keyspace, limits), Remembered(cache_bytes), min_replicas > 0
        )

    def __repr__(self) -> str:
        """The class, the server without its login, the prefix and the default TTL."""
        minutes = (self.ttl_config or {}).get("default_ttl")
        ttl = "none" if minutes is None else times.shown(timedelta(minutes=minutes))
        return f"{type(self).__name__}({self._driver.server}, prefix={shown(self._context.keyspace.prefix)}, ttl={ttl})"

    def _run(self, operation: Operation[T]) -> T:
        return self._driver.run(operation)

    def _arun(self, operation: Operation[T]) -> Awaitable[T]:
        return self._driver.arun(operation)

    def _refresh(self, asked: bool | None) -> bool:
        return bool((self.ttl_config or {}).get("refresh_on_read", True)) if asked is None else bool(asked)

    def _ttl(self, asked: float | NotProvided | None) -> float | None:
        return (self.ttl_config or {}).get("default_ttl") if isinstance(asked, NotProvided) else asked

    # -- LangGraph's interface

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
            InvalidNamespaceError: A namespace is none, as in the methods. Nothing was sent.
        """
        return self._run(operations.batch(self._context, ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for asyncio."""
        return await self._arun(operations.batch(self._context, ops))

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
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Store an item; it keeps its `created_at`. One round trip, three for the first item of a partition.

        Args:
            namespace: Its namespace.
            key: Its key.
            value: A dict whose keys are strings, of values that the serializer knows.
            index: Not used yet: there is no vector search.
            ttl: Minutes after which it expires; None: never. Not given: as the store's `ttl` says.
            if_version: Store it only if the item has this `version`; 0: only if there is no such item. None: in any case.

        Raises:
            Conflict: It has another version. Nothing was written.
            EncodeError: The serializer does not know a value. Nothing was written.
        """
        self._run(self._put(namespace, key, value, index, ttl, if_version))

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """`put` for asyncio."""
        await self._arun(self._put(namespace, key, value, index, ttl, if_version))

    def _put(
        self, namespace: Any, key: Any, value: Any, _index: Any, ttl: float | NotProvided | None, if_version: int | None
    ) -> Operation[None]:
        if value is None:
            raise TypeError("value=None: the value of an item is a dict; to delete the item there is delete()")
        return operations.put_one(self._context, namespace, str(key), value, self._ttl(ttl), if_version)

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Delete an item, if it is there. One round trip, two for the last item of a partition."""
        self._run(operations.put_one(self._context, namespace, str(key), None, None, None))

    async def adelete(self, namespace: tuple[str, ...], key: str) -> None:
        """`delete` for asyncio."""
        await self._arun(operations.put_one(self._context, namespace, str(key), None, None, None))

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
            query: Not used yet: there is no vector search, so the newest items are found.
            filter: What the value has to have: `{"key": value}`, or operators `{"key": {"$gte": 1, "$lt": 5}}`: `$eq $ne $gt $gte $lt $lte`.
            limit: How many to return, at the most.
            offset: How many to pass over. While others put items, those that were not touched move on by as many as were put.
            refresh_ttl: Whether the TTLs of the items that are returned begin anew. None: as `ttl` says.

        Returns:
            Items, with their `version`.

        Raises:
            ValueError: An operator is unknown.
        """
        op = SearchOp(namespace_prefix, filter, limit, offset, query, self._refresh(refresh_ttl))
        return list(self._run(searching.search(self._context, op)))

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
        return list(await self._arun(searching.search(self._context, op)))

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
        return searching.list_namespaces(self._context, ListNamespacesOp(tuple(conditions), max_depth, limit, offset))

    # -- beyond it

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self._driver.check_version()

    async def asetup(self) -> None:
        """`setup` for asyncio."""
        await self._driver.acheck_version()

    def count(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """Count the items of a namespace and of those below it. No item is read."""
        return self._run(searching.count(self._context, namespace_prefix))

    async def acount(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """`count` for asyncio."""
        return await self._arun(searching.count(self._context, namespace_prefix))

    def delete_namespace(self, namespace_prefix: tuple[str, ...]) -> int:
        """Delete all items of a namespace and of those below it, such as all that is remembered of a user.

        A namespace of two labels goes in one step. One of one label goes by its partitions, a longer one by a thousand items: what somebody puts meanwhile may
        stay.

        Returns:
            How many items were deleted.
        """
        return self._run(searching.delete_namespace(self._context, namespace_prefix))

    async def adelete_namespace(self, namespace_prefix: tuple[str, ...]) -> int:
        """`delete_namespace` for asyncio."""
        return await self._arun(searching.delete_namespace(self._context, namespace_prefix))

    def sweep_ttl(self) -> int:
        """Remove what has expired, in all partitions, now. Nobody has to call it: whoever uses a partition does that there, and unused ones expire.

        Returns:
            How many items were removed.
        """
        return self._run(searching.sweep(self._context))

    async def asweep_ttl(self) -> int:
        """`sweep_ttl` for asyncio."""
        return await self._arun(searching.sweep(self._context))

    def rebuild_directory(self) -> int:
        """Make the directory of partitions anew, after `StoreDamaged` says that a part of it is gone. It looks at all keys of the server (SCAN).

        Call it while nobody puts the first item of a partition, or once more when that is over.

        Returns:
            How many partitions there are.
        """
        return self._run(directory.rebuild(self._context))

    async def arebuild_directory(self) -> int:
        """`rebuild_directory` for asyncio."""
        return await self._arun(directory.rebuild(self._context))


def context_of(store: Store[Any]) -> StoreContext:
    """What operations are given of a store: for rooms that run more of them. It is private to users."""
    return store._context  # noqa: SLF001
