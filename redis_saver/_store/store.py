"""What `RedisStore` and `AsyncRedisStore` share: the settings, and what we do beyond LangGraph's interface (`interface.py`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import (
    IndexConfig,
    TTLConfig,
)
from typing_extensions import TypedDict

from redis_saver._client import clients, clusters
from redis_saver._client.base import RedisDriver
from redis_saver._client.protocols import AsyncClient, SyncClient
from redis_saver._common import keywords, times
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._common.ttl import TTL, Expiry
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import Counting, Measured, RedisStats
from redis_saver._serde.serializer import FastSerializer, chosen
from redis_saver._storage import compression as compressions
from redis_saver._storage import encryption
from redis_saver._storage.chunk_cache import CACHE_BYTES, ChunkCache
from redis_saver._storage.compression import Compression
from redis_saver._storage.context import Context
from redis_saver._store import directory, index_config, namespaces, server_index
from redis_saver._store.context import StoreContext
from redis_saver._store.index_config import RedisIndexConfig
from redis_saver._store.interface import Interface
from redis_saver._store.places import Places
from redis_saver._store.remembered import Remembered
from redis_saver._store.ttl_config import to_config

INDEXED_CACHE_BYTES = 2**29
"""Memory for what was read last, where it has vectors: some more than 50,000 vectors of 1,536 dimensions."""
ClientT = TypeVar("ClientT", SyncClient, AsyncClient)


class StoreSettings(TypedDict, total=False):
    """The settings of a store, for `from_conn_string`. The constructor of `Store` explains them."""

    serde: SerializerProtocol | None
    prefix: str
    ttl: TTL | TTLConfig
    index: RedisIndexConfig | IndexConfig | None
    compression: Compression | None
    cache_bytes: int | None
    limits: Limits
    require_encryption: bool | None
    strict: bool
    cluster_timeout: float
    require_primary: bool
    min_replicas: int
    replica_timeout: float


class Store(Interface, Generic[ClientT]):
    """A store on one Redis or Valkey. Every method also has a form with an `a` in front, for asyncio."""

    _driver: RedisDriver | DriverWrapper[Request]
    _driver_class: ClassVar[type[Any]]

    @keywords.checked
    def __init__(
        self,
        client: ClientT,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: TTL | TTLConfig = None,
        index: RedisIndexConfig | IndexConfig | None = None,
        compression: Compression | None = None,
        cache_bytes: int | None = None,
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
            index: What of each item is embedded, and by what, for `search(..., query=)`: LangGraph's `IndexConfig`, or `RedisIndexConfig`. None: nothing.
                Needs numpy (extra `vectors`).
            compression: `"zstd"` compresses values of a kilobyte and more (extra `zstd`). Every store reads them.
            cache_bytes: Memory for the pages and partitions that were read last, in bytes. 0: remember nothing. None: 64 MB; 512 MB with `index`.
            limits: The longest names and values (`name_bytes`, `value_bytes`). More raises `LimitExceeded`.
            require_encryption: As a saver takes it.
            strict: As a saver takes it.
            cluster_timeout: As a saver takes it.
            require_primary: As a saver takes it.
            min_replicas: As a saver takes it. With it, puts to several partitions are sent one after the other.
            replica_timeout: As a saver takes it.

        Raises:
            ImportError: `compression` or `index` without its extra.
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        super().__init__()
        self._counting = Counting()
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
        embedder = index_config.load(index)
        serde = chosen(serde, strict=strict) or FastSerializer()
        if embedder is not None and embedder.server is not None:
            _check_server_search(client, prefix, serde)
        self.ttl_config: TTLConfig | None = to_config(ttl)
        values = Context(
            serde=serde,
            keyspace=Keyspace(prefix),
            expiry=Expiry(),
            compression=compressions.check(compression, type(self)),
            require_encryption=encryption.check(require_encryption, serde),
            chunk_cache=ChunkCache(0),
            limits=limits,
        )
        if cache_bytes is None:
            cache_bytes = CACHE_BYTES if index is None else INDEXED_CACHE_BYTES
        self._context = StoreContext(
            values,
            keyspace,
            Places(keyspace, limits),
            Remembered(cache_bytes),
            not require_primary and not clients.is_cluster(client),
            min_replicas > 0,
            embedder,
        )

    def __repr__(self) -> str:
        """The class, the server without its login, the prefix and the default TTL."""
        minutes = (self.ttl_config or {}).get("default_ttl")
        ttl = "none" if minutes is None else times.shown(timedelta(minutes=minutes))
        return f"{type(self).__name__}({self._driver.server}, prefix={shown(self._context.keyspace.prefix)}, ttl={ttl})"

    async def asetup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        With `index={"search": "server"}` it also makes the server's index of vectors, if that is not there: it makes the documents of all items first, and
        waits until the server has indexed them.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2; or it has no vector search, and is to search.
        """
        await self._driver.acheck_version()
        if self._context.has_documents:
            await self._arun(server_index.setup(self._context))

    def build_index(self) -> int:
        """Bring items into the server's index of vectors (`index={"search": "server"}`) that were stored without it, as before there was one.

        It looks at all partitions, and reads no vector: the server copies them. What is put meanwhile is indexed, too.

        Returns:
            How many items were brought there; 0: none lacked.

        Raises:
            DecodeError: The vectors of an item are of another model.
            ValueError: The store has no such index.
        """
        return self._run(server_index.build(self._context))

    async def abuild_index(self) -> int:
        """`build_index` for asyncio."""
        return await self._arun(server_index.build(self._context))

    def stats(self) -> RedisStats:
        """A copy of what was counted so far, in this process. Nothing is sent."""
        traffic, remembered = self._driver.traffic.numbers(), self._context.remembered.numbers()
        return RedisStats(self._counting.snapshot(), **traffic, **remembered)

    def _measured(self) -> Measured:
        sources = self._driver.traffic, self._context.remembered
        return Measured(self._counting, self._driver.server, "items", sources)

    def count(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """Count the items of a namespace and of those below it. No item is read."""
        return self._run(namespaces.count(self._context, namespace_prefix))

    async def acount(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """`count` for asyncio."""
        return await self._arun(namespaces.count(self._context, namespace_prefix))

    def delete_namespace(self, namespace_prefix: tuple[str, ...]) -> int:
        """Delete all items of a namespace and of those below it, such as all that is remembered of a user.

        A namespace of two labels goes in one step. One of one label goes by its partitions, a longer one by a thousand items: what somebody puts meanwhile may
        stay.

        Returns:
            How many items were deleted.
        """
        return self._run(namespaces.delete_namespace(self._context, namespace_prefix))

    async def adelete_namespace(self, namespace_prefix: tuple[str, ...]) -> int:
        """`delete_namespace` for asyncio."""
        return await self._arun(namespaces.delete_namespace(self._context, namespace_prefix))

    def sweep_ttl(self) -> int:
        """Remove what has expired, in all partitions, now. Nobody has to call it: whoever uses a partition does that there, and unused ones expire.

        Returns:
            How many items were removed.
        """
        return self._run(namespaces.sweep(self._context), name="sweep_ttl")

    async def asweep_ttl(self) -> int:
        """`sweep_ttl` for asyncio."""
        return await self._arun(namespaces.sweep(self._context), name="sweep_ttl")

    def rebuild_directory(self) -> int:
        """Make the directory of partitions anew, after `StoreDamaged` says that a part of it is gone. It looks at all keys of the server (SCAN).

        Call it while nobody puts the first item of a partition, or once more when that is over.

        Returns:
            How many partitions there are.
        """
        return self._run(directory.rebuild(self._context), name="rebuild_directory")

    async def arebuild_directory(self) -> int:
        """`rebuild_directory` for asyncio."""
        return await self._arun(directory.rebuild(self._context), name="rebuild_directory")


def _check_server_search(client: Any, prefix: str, serde: SerializerProtocol) -> None:
    """Check what the server has to see for its own index of vectors.

    Raises:
        ValueError: It cannot see it.
    """
    name = "index={'search': 'server'}"
    if clients.is_cluster(client):
        raise ValueError(
            f"{name} takes no cluster: each node would search its own items only. Leave 'search' out, and the process compares vectors"
        )
    if "\0" in prefix:
        raise ValueError(
            f"prefix={shown(prefix)}: {name} takes no prefix with NUL, at which the server's index ends it"
        )
    if (kind := serde.dumps_typed(b"x")) != ("bytes", b"x"):
        raise ValueError(
            f"{name}: the server has to see the vectors, and serde={type(serde).__name__} gives them the type {shown(kind[0])}. A store that encrypts lets "
            "the process compare vectors: leave 'search' out"
        )


def context_of(store: Store[Any]) -> StoreContext:
    """What operations are given of a store: for packages that run more of them. It is private to users."""
    return store._context  # noqa: SLF001


def driver_of(store: Store[Any]) -> RedisDriver | DriverWrapper[Request]:
    """What runs a store's operations at this moment, for the same packages."""
    return store._driver  # noqa: SLF001
