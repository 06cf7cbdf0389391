"""Base class of `RedisStore` and `AsyncRedisStore`: settings, LangGraph's interface, and the methods beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store import base
from langgraph.store.base import NOT_PROVIDED, BaseStore, IndexConfig, NotProvided, Op, Result, TTLConfig
from typing_extensions import Self, TypedDict, Unpack

from redis_saver._client import clients
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.base import (
    CLUSTER_TIMEOUT,
    AsyncBlock,
    AsyncClient,
    Block,
    NeedsAsyncWith,
    NeedsWith,
    RedisDriver,
    SyncClient,
)
from redis_saver._client.sync import SyncDriver
from redis_saver._common import times, ttl as ttls
from redis_saver._common.display import kind_of, shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._common.store_names import PARTITION_LABELS, Partition, StoreKeyspace
from redis_saver._common.ttl import TTL, Expiry
from redis_saver._engine import probe
from redis_saver._engine.counting import Counting, Measured, stats_of
from redis_saver._engine.requests import Operation, T
from redis_saver._engine.stats import Stats
from redis_saver._serde.serializer import FastSerializer, chosen
from redis_saver._storage import compression as compressions
from redis_saver._storage.chunk_cache import CACHE_BYTES, ChunkCache
from redis_saver._storage.compression import Compression
from redis_saver._storage.context import Context
from redis_saver._storage.encryption import guarded
from redis_saver._storage.keys import DataKeys, skip_counts
from redis_saver._storage.rewrapping import Rotates, rotate, status
from redis_saver._store import namespaces, searching, server_search
from redis_saver._store.context import LocalCache, Places, StoreContext
from redis_saver._store.embedding import embedder_of
from redis_saver._store.index_config import RedisIndexConfig, Texts
from redis_saver._store.items import VersionedItem
from redis_saver._store.reading import read
from redis_saver._store.scripts import together
from redis_saver._store.writing import Write, as_write, put
from redis_saver.encryption import Encryption, KeyStatus, Rotated
from redis_saver.errors import reading_store

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

INDEXED_CACHE_BYTES = 2**29
"""Default of `cache_bytes` with `index`: a little over 50,000 vectors of 1,536 dimensions."""
ClientT = TypeVar("ClientT", SyncClient, AsyncClient)
_METHODS = {base.GetOp: "get", base.SearchOp: "search", base.ListNamespacesOp: "list_namespaces"}
_OF_STORES = ("omit_expired", "sweep_interval_minutes")
"""Keys of LangGraph's `TTLConfig` that savers do not have."""


def method_of(ops: list[Op]) -> str:
    """Return the name of the method that made a batch: LangGraph's methods are batches of one operation."""
    if len(ops) != 1:
        return "batch"
    if isinstance(ops[0], base.PutOp):
        return "delete" if ops[0].value is None else "put"
    return _METHODS.get(type(ops[0]), "batch")


class StoreSettings(TypedDict, total=False):
    """Settings of a store, for `from_conn_string`. The constructor of `Store` explains them."""

    serde: SerializerProtocol | None
    encryption: Encryption | None
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


class Store(Rotates, BaseStore, Generic[ClientT]):
    """A store on one Redis or Valkey. Each method has an asyncio form, whose name begins with `a`."""

    supports_ttl: bool = True
    ttl_config: TTLConfig | None
    index_config: RedisIndexConfig | None
    """The `index`, with `fields`. None without one."""
    embeddings: Embeddings | None
    """The embedding model of `index`."""
    _driver: RedisDriver
    _driver_class: ClassVar[type[Any]]

    def __init__(
        self,
        client: ClientT,
        *,
        serde: SerializerProtocol | None = None,
        encryption: Encryption | None = None,
        prefix: str = "langgraph",
        ttl: TTL | TTLConfig = None,
        index: RedisIndexConfig | IndexConfig | None = None,
        compression: Compression | None = None,
        cache_bytes: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
    ) -> None:
        """Use your own client. The store does not close it.

        Args:
            client: For `RedisStore`, a blocking client of redis-py or valkey-py, also of a cluster or Sentinel. For
                `AsyncRedisStore`, one for asyncio. Savers and stores may share a client.
            serde: Serializer of the values. Default: `FastSerializer`.
            encryption: Encrypts values and vectors with keys of yours (`redis_saver.encryption`, `docs/encryption.md`).
                Each partition (the first two labels of a namespace) has a data key, so each process needs one more
                round trip for each partition. None: nothing is encrypted, except by `serde`.
            prefix: Beginning of all keys. Savers and stores may share one.
            ttl: Default TTL of items, from their last put or read: a `timedelta`, a text such as `"30d"`, or
                LangGraph's `TTLConfig`. `refresh_on_read` is True by default. Expired items are never answered, so
                `omit_expired` changes nothing. None: items do not expire.
            index: Paths to the texts to embed, and the model, for `search(..., query=)`: LangGraph's `IndexConfig`, or
                `RedisIndexConfig`. None: nothing is embedded. Needs numpy (extra `vectors`).
            compression: `"zstd"` compresses values of a kilobyte and more (extra `zstd`). Every store reads them.
            cache_bytes: Memory for the partitions that searches with a filter or query read, in bytes. 0 disables
                the cache. None: 64 MB, or 512 MB with `index`.
            limits: Longest names and values (`name_bytes`, `value_bytes`). Longer ones raise `LimitExceeded`.
            require_encryption: True: reading a value that is not encrypted raises `PlainValueRefused` before it is
                decoded. None: True if `serde` is an `EncryptedSerializer`.
            strict: True: decode with a `StrictSerializer`, which makes only objects of safe classes
                (`docs/security.md`).
            cluster_timeout: Seconds for which a request to a cluster is repeated while its slot moves or its primary is
                replaced. Then it raises `ClusterMoving`.
            require_primary: True: reads from a replica raise the client's `ReadOnlyError`. This costs no round trip.
            min_replicas: Number of replicas that must confirm a write (WAIT, in the same round trip). With it, puts to
                several partitions are sent one by one.
            replica_timeout: Seconds to wait for the replicas. Then the write raises `ReplicationTimeout`.

        Raises:
            ImportError: The extra for `compression` or `index` is not installed.
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
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
        embedder = embedder_of(index)
        serde = chosen(serde, strict=strict) or FastSerializer()
        self.index_config = None if embedder is None else embedder.config
        self.embeddings = None if embedder is None else embedder.embeddings
        if embedder is not None and embedder.server is not None:
            _check_server_search(client, prefix, serde, encryption)
        self.ttl_config = _ttl_config(ttl)
        values = Context(
            serde=guarded(serde, require_encryption),
            keyspace=Keyspace(prefix),
            expiry=Expiry(),
            compression=compressions.check(compression, type(self)),
            chunk_cache=ChunkCache(0),
            limits=limits,
            data_keys=None if encryption is None else DataKeys(encryption, prefix, "store"),
        )
        if cache_bytes is None:
            cache_bytes = CACHE_BYTES if index is None else INDEXED_CACHE_BYTES
        self._context = StoreContext(
            values,
            keyspace,
            Places(keyspace, limits),
            LocalCache(cache_bytes),
            reads_plain=not require_primary and not clients.is_cluster(client),
            is_replicated=min_replicas > 0,
            embedder=embedder,
        )

    def __repr__(self) -> str:
        """Return the class, the server without its login, the prefix and the default TTL."""
        minutes = (self.ttl_config or {}).get("default_ttl")
        ttl = "none" if minutes is None else times.shown(timedelta(minutes=minutes))
        return f"{type(self).__name__}({self._driver.server}, prefix={shown(self._context.keyspace.prefix)}, ttl={ttl})"

    def _run(self, operation: Operation[T], texts: Texts | None = None, name: str = "") -> T:
        """Embed the texts, then run the operation."""
        if texts and (embedder := self._context.embedder) is not None:
            self._driver.check_open()
            embedder.embed(texts)
        return self._driver.run(self._counting.call(operation, name))

    async def _arun(self, operation: Operation[T], texts: Texts | None = None, name: str = "") -> T:
        """Embed the texts on the caller's event loop, where asynchronous models work, then run the operation."""
        if texts and (embedder := self._context.embedder) is not None:
            self._driver.check_open()
            await embedder.aembed(texts)
        return await self._driver.arun(self._counting.call(operation, name))

    # -- LangGraph's interface. `search`, `delete` and `list_namespaces` of BaseStore are batches of one operation.

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations. All reads see the state before the puts. Of several puts of an item, the last counts.

        The puts of one partition (namespaces with the same first two labels) are stored together or not at all: up to
        1,000, or 8 MB.

        Cost: one round trip, or two if it reads and writes the same partition. Each kind of operation that looks at
        several partitions adds two, and so does the first item of a partition.

        Args:
            ops: `GetOp`, `PutOp`, `SearchOp` and `ListNamespacesOp` of `langgraph.store.base`.

        Returns:
            The results, in the order of the operations.

        Raises:
            InvalidNamespaceError: A namespace is not valid. Nothing was sent.
        """
        return self._run(*self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for asyncio."""
        return await self._arun(*self._batch(list(ops)))

    def _batch(self, ops: list[Op]) -> tuple[Operation[list[Result]], Texts, str]:
        """Check the arguments and encode the values. Returns the operation, the texts to embed, and the method's name.

        Raises:
            TypeError, ValueError: An operation is invalid.
        """
        context, texts = self._context, Texts()
        gets: dict[tuple[Partition, bool], dict[bytes, list[int]]] = {}
        puts: dict[Partition, dict[bytes, Write]] = {}
        results: list[Result] = [None] * len(ops)
        reads: list[Operation[None]] = []
        read_partitions: set[Partition] = set()
        reads_several = False
        for position, op in enumerate(ops):
            if isinstance(op, base.GetOp):
                place = context.places.of(op.namespace)
                read_partitions.add(place.partition)
                fields = gets.setdefault((place.partition, bool(op.refresh_ttl)), {})
                fields.setdefault(place.field(context.places.key(op.key)), []).append(position)
            elif isinstance(op, base.PutOp):
                partition, field, write = as_write(context, op)
                writes = puts.setdefault(partition, {})
                writes.pop(field, None)  # the last put of an item gives it its place in the order
                writes[field] = write
            elif isinstance(op, base.SearchOp):
                reads.append(_into(results, position, searching.search(context, op, texts)))
                if len(op.namespace_prefix) < PARTITION_LABELS:
                    reads_several = True
                else:
                    read_partitions.add(context.places.of(op.namespace_prefix).partition)
            elif isinstance(op, base.ListNamespacesOp):
                reads.append(_into(results, position, namespaces.list_namespaces(context, op)))
                reads_several = True
            else:
                raise TypeError(f"{kind_of(op)} is no operation of a store: GetOp, PutOp, SearchOp or ListNamespacesOp")
        for writes in puts.values():
            for write in writes.values():
                texts.note(write.texts)
        reads += [self._gets(asked, ops, positions, results) for asked, positions in gets.items()]
        changes: list[Operation[None]] = [put(context, partition, writes, texts) for partition, writes in puts.items()]
        must_read_first = reads and (reads_several or not read_partitions.isdisjoint(puts))
        steps = [reads, changes] if must_read_first else [[*reads, *changes]]
        return self._run_batch(steps, results), texts, method_of(ops)

    def _run_batch(self, steps: list[list[Operation[None]]], results: list[Result]) -> Operation[list[Result]]:
        for operations in steps:
            yield from together(self._context, operations)
        return results

    def _gets(
        self, asked: tuple[Partition, bool], ops: list[Op], positions: Mapping[bytes, list[int]], results: list[Result]
    ) -> Operation[None]:
        partition, refresh = asked
        entries = yield from read(self._context, partition, list(positions), refresh=refresh)
        for entry, of_item in zip(entries, positions.values(), strict=True):
            if entry is not None:
                with reading_store(partition.keys[0]):
                    for position in of_item:
                        op: Any = ops[position]
                        results[position] = entry.item(self._context.values, tuple(op.namespace), op.key)

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> VersionedItem | None:
        """Read an item. One round trip.

        Args:
            namespace: Its namespace.
            key: Its key.
            refresh_ttl: True to restart its TTL. None: the `refresh_on_read` of the store's `ttl`, True by default.

        Returns:
            The item, with its `version`, or None if there is none.
        """
        return self._run(self._get(namespace, str(key), refresh_ttl))

    async def aget(
        self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None
    ) -> VersionedItem | None:
        """`get` for asyncio."""
        return await self._arun(self._get(namespace, str(key), refresh_ttl))

    def _get(self, namespace: tuple[str, ...], key: str, refresh_ttl: bool | None) -> Operation[VersionedItem | None]:
        if refresh_ttl is None:
            refresh_ttl = (self.ttl_config or {}).get("refresh_on_read", True)
        place = self._context.places.of(namespace)
        field = place.field(self._context.places.key(key))
        (entry,) = yield from read(self._context, place.partition, (field,), refresh=bool(refresh_ttl))
        if entry is None:
            return None
        with reading_store(place.partition.keys[0]):
            return entry.item(self._context.values, tuple(namespace), key)

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
        """Store an item. An older one keeps its `created_at`. One round trip; three for the first item of a partition.

        Args:
            namespace: Its namespace.
            key: Its key.
            value: A dict with string keys and values that the serializer knows. None deletes the item.
            index: Texts to embed: None for the `fields` of the store's `index`, or a list of paths. The vectors of the
                item are replaced. False embeds nothing, and leaves its vectors as they are. With `encryption=` that
                takes one more round trip.
            ttl: TTL in minutes; None: it does not expire. Default: the store's `ttl`.
            if_version: Store it only if the item has this `version`, or, for 0, if there is no such item. None: store
                it in any case.

        Raises:
            Conflict: It has another version. Nothing was written.
            EncodeError: The serializer does not know a value. Nothing was written.
        """
        self._run(*self._put(base.PutOp(namespace, str(key), value, index, self._minutes(ttl)), if_version))

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
        await self._arun(*self._put(base.PutOp(namespace, str(key), value, index, self._minutes(ttl)), if_version))

    def _minutes(self, ttl: float | NotProvided | None) -> float | None:
        return (self.ttl_config or {}).get("default_ttl") if isinstance(ttl, NotProvided) else ttl

    def _put(self, op: base.PutOp, if_version: int | None) -> tuple[Operation[None], Texts]:
        if op.value is None and if_version is not None:
            raise TypeError(
                f"if_version={shown(if_version)}: value=None deletes the item whatever its version is; "
                "leave if_version out"
            )
        partition, field, write = as_write(self._context, op, if_version)
        if op.value is not None and op.namespace[0] == "langgraph":  # as in LangGraph's stores, `batch` allows it
            raise base.InvalidNamespaceError(
                f"the first label of {shown(op.namespace)} is 'langgraph', which LangGraph keeps for itself"
            )
        texts = Texts()
        texts.note(write.texts)
        return put(self._context, partition, {field: write}, texts), texts

    # -- beyond LangGraph's interface

    async def asetup(self) -> None:
        """Check the server's version, and try what the scripts rely on, as `RedisSaver.setup` does.

        With `index={"search": "server"}` it also makes the server's index of vectors, if it is missing: it stores the
        documents of all items, makes the index, and waits until the server has indexed them.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2, something does not work, or the vector search
                that `index` needs is missing.
        """
        await self._driver.acheck_version()
        await self._driver.arun(probe.check(self._driver.prefix))
        if self._context.has_documents:
            await self._arun(server_search.setup(self._context))

    def build_index(self) -> int:
        """Add items to the server's index of vectors (`index={"search": "server"}`) that were stored without it.

        It looks at all partitions. The server copies the vectors, so none is sent. Items that are put meanwhile are
        indexed, too.

        Returns:
            The number of items that were missing in the index.

        Raises:
            DecodeError: The vectors of an item are of another model.
            ValueError: The store has no such index.
        """
        return self._run(server_search.build_index(self._context))

    async def abuild_index(self) -> int:
        """`build_index` for asyncio."""
        return await self._arun(server_search.build_index(self._context))

    def stats(self) -> Stats:
        """Return a copy of this process's counters. Nothing is sent."""
        return stats_of(Stats, self._counting, *self._measured().sources)

    def _measured(self) -> Measured:
        sources: Any = self._driver.traffic, self._context.local_cache, *skip_counts(self._context.values.data_keys)
        return Measured(self._counting, self._driver.server, "items", sources)

    def _key_status_gen(self) -> Operation[KeyStatus]:
        return (yield from status("store", (yield from namespaces.key_holders(self._context))))

    def _rotate_keys_gen(self) -> Operation[Rotated]:
        holders = yield from namespaces.key_holders(self._context)
        return (yield from rotate(self._context.values.data_keys, holders))

    def count(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """Count the items of a namespace and of those below it. No item is read."""
        return self._run(namespaces.count(self._context, namespace_prefix))

    async def acount(self, namespace_prefix: tuple[str, ...] = ()) -> int:
        """`count` for asyncio."""
        return await self._arun(namespaces.count(self._context, namespace_prefix))

    def delete_namespace(self, namespace_prefix: tuple[str, ...]) -> int:
        """Delete all items of a namespace and its children, such as everything about a user.

        A namespace of two labels is deleted atomically. A shorter one is deleted partition by partition, and a longer
        one in steps of a thousand items. Then items that others put meanwhile may stay.

        Returns:
            The number of deleted items. After a lost reply the client sends a request again, which then counts fewer.
        """
        return self._run(namespaces.delete_namespace(self._context, namespace_prefix))

    async def adelete_namespace(self, namespace_prefix: tuple[str, ...]) -> int:
        """`delete_namespace` for asyncio."""
        return await self._arun(namespaces.delete_namespace(self._context, namespace_prefix))

    def sweep_ttl(self) -> int:
        """Remove expired items of all partitions now. This is optional, because each call does so in its partition.

        Returns:
            The number of removed items.
        """
        return self._run(namespaces.sweep_ttl(self._context))

    async def asweep_ttl(self) -> int:
        """`sweep_ttl` for asyncio."""
        return await self._arun(namespaces.sweep_ttl(self._context))

    def rebuild_directory(self) -> int:
        """Make the directory of partitions again, after `StoreDamaged` says that a part of it is gone.

        It looks at all keys of the server (SCAN). Call it while nobody puts the first item of a partition, or call it
        again afterwards.

        Returns:
            The number of partitions.
        """
        return self._run(namespaces.rebuild_directory(self._context))

    async def arebuild_directory(self) -> int:
        """`rebuild_directory` for asyncio."""
        return await self._arun(namespaces.rebuild_directory(self._context))


def _into(results: list[Result], position: int, operation: Operation[Any]) -> Operation[None]:
    results[position] = yield from operation


def _ttl_config(ttl: TTL | TTLConfig) -> TTLConfig | None:
    """Convert a TTL in our form or LangGraph's to LangGraph's form.

    Raises:
        TypeError, ValueError: The TTL is invalid.
    """
    if ttl is None:
        return None
    config: dict[str, Any] = {}
    expiry: Any = ttl
    if isinstance(ttl, Mapping):
        expiry = {"refresh_on_read": True, **ttl}
        config = {name: expiry.pop(name) for name in _OF_STORES if name in expiry}
        if not isinstance(config.get("omit_expired", True), bool):
            raise TypeError(f"ttl={shown(ttl)}: omit_expired is True or False")
        interval = config.get("sweep_interval_minutes")
        is_number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
        if interval is not None and not (is_number and interval > 0):
            raise ValueError(f"ttl={shown(ttl)}: sweep_interval_minutes is a positive number of minutes, or None")
    milliseconds = ttls.parse(expiry).milliseconds
    config["refresh_on_read"] = not isinstance(ttl, Mapping) or ttl.get("refresh_on_read", True)
    config["default_ttl"] = None if milliseconds is None else milliseconds / 60_000
    return config  # type: ignore[return-value]


def _check_server_search(client: Any, prefix: str, serde: SerializerProtocol, encryption: Encryption | None) -> None:
    """Check that the server can see what its own index of vectors needs.

    Raises:
        ValueError: It cannot.
    """
    name = "index={'search': 'server'}"
    if clients.is_cluster(client):
        raise ValueError(
            f"{name} takes no cluster, because each node would search only its own items. Leave 'search' out, and the "
            "process compares vectors"
        )
    if "\0" in prefix:
        raise ValueError(
            f"prefix={shown(prefix)}: {name} takes no prefix with NUL, because the server's index ends it there"
        )
    if encryption is not None or (kind := serde.dumps_typed(b"x")) != ("bytes", b"x"):
        reason = (
            "encryption= is set" if encryption else f"serde={type(serde).__name__} gives them the type {shown(kind[0])}"
        )
        raise ValueError(
            f"{name}: the server has to see the vectors, and {reason}. A store that encrypts lets the process compare "
            "vectors: leave 'search' out"
        )


def context_of(store: Store[Any]) -> StoreContext:
    """Return the context of a store. For other modules of this package only."""
    return store._context  # noqa: SLF001


def use_values(store: Store[Any], **changes: Any) -> None:
    """Change settings of a store's values. For other modules of this package only."""
    store._context = store._context._replace(values=store._context.values._replace(**changes))  # noqa: SLF001


def driver_of(store: Store[Any]) -> RedisDriver:
    """Return the driver of a store. For other modules of this package only."""
    return store._driver  # noqa: SLF001


class RedisStore(Store[SyncClient], Block):
    """LangGraph's long-term store on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so the event loop is never blocked. A service on asyncio should use
    `AsyncRedisStore`, which needs no worker threads. Any number of OS threads may share a store and its client, before
    and after a fork.
    """

    _driver: SyncDriver
    _driver_class = SyncDriver

    def setup(self) -> None:
        """Check the server, and make its own index of vectors, as `asetup` says."""
        self._driver.check_version()
        self._driver.run(probe.check(self._driver.prefix))
        if self._context.has_documents:
            self._run(server_search.setup(self._context))

    @classmethod
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[StoreSettings]
    ) -> AbstractContextManager[Self]:
        """Open a store with its own client. The end of the `with` closes both.

            with RedisStore.from_conn_string("redis://localhost:6379", ttl="30d") as store:
                graph = builder.compile(store=store)

        After the block, each method raises `Closed`.

        Args:
            url: As that of `RedisSaver.from_conn_string`.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 2.0}`.
            settings: The keywords of the constructor.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        return NeedsWith(cls, url, client_options, settings)


class AsyncRedisStore(Store[AsyncClient], AsyncBlock):
    """LangGraph's long-term store on plain Redis or Valkey, over an asyncio client.

    Calls that tasks make at the same time share their round trips. Any number of event loops and OS threads may share
    a store, before and after a fork. Its methods without an `a` work on any OS thread that runs no event loop. On the
    OS thread of a running loop they raise `CalledOnEventLoop`.
    """

    _driver: AsyncDriver
    _driver_class = AsyncDriver

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
        await self.asetup()

    @classmethod
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[StoreSettings]
    ) -> AbstractAsyncContextManager[Self]:
        """Open a store with its own client. The end of the `async with` closes both.

            async with AsyncRedisStore.from_conn_string("redis://localhost:6379", ttl="30d") as store:
                graph = builder.compile(store=store)

        The arguments are those of `RedisStore.from_conn_string`.
        """
        return NeedsAsyncWith(cls, url, client_options, settings)
