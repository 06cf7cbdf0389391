"""Base class of `TieredStore` and `AsyncTieredStore`: a `RedisStore` that answers, in front of another store."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    ListNamespacesOp,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
)

from redis_saver._client.base import AsyncBlock, Block
from redis_saver._common import config as configs
from redis_saver._common import keywords
from redis_saver._common.display import kind_of, shown
from redis_saver._common.store_names import Partition
from redis_saver._engine.requests import T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import Counting, Measured, name_of
from redis_saver._store.namespaces import check as check_listing
from redis_saver._store.searching import check as check_search
from redis_saver._store.store import AsyncRedisStore, RedisStore, context_of, method_of
from redis_saver._store.writing import milliseconds
from redis_saver._tiered.context import OnHotError
from redis_saver._tiered.drivers import AsyncTieredDriver, SyncTieredDriver, TieredDriver
from redis_saver._tiered.requests import Tiered, TieredRequest, setup, with_own_errors
from redis_saver._tiered_store import reading, writing
from redis_saver._tiered_store.copies import StoreTiers, TieredStoreStats

Hot = TypeVar("Hot", RedisStore, AsyncRedisStore)


class TwoTierStore(BaseStore, Generic[Hot]):
    """Base class of the sync and the async store.

    Writes go to `cold`, and return when it has them. `hot` has copies of recently read or written items, and answers
    reads of these. `docs/tiered-store.md` explains it. All writers must use tiers over the same two stores.
    """

    _driver: TieredDriver[Any] | DriverWrapper[TieredRequest]
    _hot_class: ClassVar[type[Any]]
    _driver_class: ClassVar[type[Any]]
    ttl_config: TTLConfig | None

    @keywords.checked
    def __init__(self, hot: Hot, cold: BaseStore, *, on_hot_error: OnHotError = "raise") -> None:
        """Put a store in front of another. Both stay yours.

        Args:
            hot: A `RedisStore` (for `AsyncTieredStore` an `AsyncRedisStore`), with a prefix of its own. Give it a TTL,
                which is the lifetime of a copy, read or not. For as long hot may answer an item that others changed in
                cold, or that has expired there.
            cold: Any other LangGraph store, such as a `PostgresStore` on which `setup()` was called. It decides which
                values can be stored, and returns them as JSON. `AsyncTieredStore` calls a blocking one in worker
                threads.
            on_hot_error: If hot cannot be reached, `"raise"` its error, or `"bypass"` it: reads go to cold alone, and
                so do writes that have begun. A new write raises in any case, and cold does not get it, because other
                processes may still reach hot and read old copies.

        Raises:
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        super().__init__()
        self._counting = Counting()
        if not isinstance(hot, self._hot_class):
            raise TypeError(f"{type(self).__name__}: hot is {kind_of(hot)}; it has to be of {self._hot_class.__name__}")
        if not isinstance(cold, BaseStore) or cold is hot:
            raise TypeError(
                f"{type(self).__name__}: cold is {kind_of(cold)}; it has to be another store, such as PostgresStore"
            )
        configs.one_of(type(self), "on_hot_error", on_hot_error, "raise", "bypass")
        self.hot: Hot = hot
        """The store in front."""
        self.cold: BaseStore = cold
        """The store behind it."""
        self.supports_ttl: bool = cold.supports_ttl
        self.ttl_config: TTLConfig | None = getattr(cold, "ttl_config", None)
        self._tiers = StoreTiers(context_of(hot), _ttl_of_copies(hot, self.ttl_config))
        self._driver = self._driver_class(hot, cold, cold, bypasses=on_hot_error == "bypass")

    def __repr__(self) -> str:
        """Return the class, hot, and the class of cold."""
        return f"{type(self).__name__}(hot={self.hot!r}, cold={type(self.cold).__name__})"

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        self._driver.check_open()
        return self._driver.run(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    def _arun(self, operation: Tiered[T], name: str = "") -> Awaitable[T]:
        self._driver.check_open()
        return self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    # LangGraph's own, by `batch`. They say so if an argument is not known, as `if_version`, which a `RedisStore` has.
    @keywords.checked
    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store an item in cold, then a copy in hot. Costs what `batch` says.

        Args:
            namespace: Its namespace.
            key: Its key.
            value: A value that cold can store. None deletes the item.
            index: As cold takes it.
            ttl: Minutes after which it expires in cold; None: never. Not given: as cold's `TTLConfig` says.

        Raises:
            TypeError: `if_version` was given, which only a `RedisStore` has: cold has no versions to compare. Nothing
                was written.
            ValueError: `ttl` was given, and hot has no TTL.
        """
        super().put(namespace, key, value, index, ttl=ttl)

    @keywords.checked
    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """`put` for asyncio."""
        await super().aput(namespace, key, value, index, ttl=ttl)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations. All reads see the state before the puts; of several puts of an item the last counts.

        Cost: reads take one round trip to hot, two with a search that hot answers. If hot lacks something, they also
        take one call of cold, and one or two more round trips. Puts take two round trips to hot and two calls of cold;
        deletions alone take one call.

        Args:
            ops: `GetOp`, `PutOp`, `SearchOp` and `ListNamespacesOp` of `langgraph.store.base`.

        Returns:
            The results, in the order of the operations. Each `Item` has cold's times, and no version.

        Raises:
            InvalidNamespaceError: A namespace is not valid. Nothing was sent.
            ValueError: A put has a `ttl`, and hot has no TTL. Nothing was sent.
            Exception: Any error of cold. Cold may have stored the puts all the same. Reads of these items go to cold
                until the write intents expire (5 minutes).
        """
        ops = list(ops)
        return self._run(batch(self._tiers, ops), method_of(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for asyncio."""
        ops = list(ops)
        return await self._arun(batch(self._tiers, ops), method_of(ops))

    def warm(self, namespace_prefix: tuple[str, ...]) -> bool:
        """Bring copies of all items under a prefix of two labels to hot, so that it answers searches, too.

        Cost: one call of cold, three round trips to hot; one or two round trips if it has them.

        Args:
            namespace_prefix: Two labels, such as `("memories", "user-1")`.

        Returns:
            True if hot has all of them. False if another writer wrote one of them meanwhile, if there are more than
            2,000, or if hot could not store one.
        """
        return self._run(reading.warm(self._tiers, namespace_prefix))

    async def awarm(self, namespace_prefix: tuple[str, ...]) -> bool:
        """`warm` for asyncio."""
        return await self._arun(reading.warm(self._tiers, namespace_prefix))

    async def asetup(self) -> None:
        """Set up both: check hot's server, and call `setup` of cold, which creates its tables. Some have none.

        Call it when you deploy rather than in each worker: it may need more rights than a worker has.

        Raises:
            UnsupportedServer: Hot's server is too old.
        """
        await self.hot.asetup()
        await self._arun(setup(self.cold))

    def stats(self) -> TieredStoreStats:
        """Return a copy of this process's counters."""
        return self._tiers.counts.snapshot(self._counting)

    def _measured(self) -> Measured:
        of_hot: Measured = self.hot._measured()  # noqa: SLF001 - it is of ours
        return of_hot._replace(counting=self._counting, sources=(self._tiers.counts, *of_hot.sources))


def batch(tiers: StoreTiers, ops: list[Op]) -> Tiered[list[Result]]:
    """Check the arguments; return the operation, whose reads see what was there before the puts.

    Raises:
        TypeError, ValueError: An operation makes no sense.
    """
    places, reads = tiers.hot.places, reading.Reads(ops)
    puts: list[PutOp] = []
    writes: dict[Partition, dict[bytes, PutOp]] = {}
    for position, op in enumerate(ops):
        if isinstance(op, GetOp):
            place = places.of(op.namespace)
            fields = reads.gets.setdefault(place.partition, {})
            fields.setdefault(place.field(places.key(op.key)), []).append(position)
        elif isinstance(op, PutOp):
            place = places.of(op.namespace) if op.value is None else places.to_put(op.namespace)
            _check_ttl(tiers, op)
            puts.append(op)
            writes.setdefault(place.partition, {})[place.field(places.key(op.key))] = op
        elif isinstance(op, SearchOp):
            labels, _ = check_search(op)
            if reading.may_be_hot(op):
                reads.searches[position] = places.of(labels)
            else:
                reads.others.append(position)
        elif isinstance(op, ListNamespacesOp):
            check_listing(op)
            reads.others.append(position)
        else:
            raise TypeError(f"{kind_of(op)} is no operation of a store: GetOp, PutOp, SearchOp or ListNamespacesOp")
    return _batch(tiers, reads, puts, writes)


def _batch(tiers: StoreTiers, reads: reading.Reads, puts: list[PutOp], writes: writing.Writes) -> Tiered[list[Result]]:
    yield from reading.run(tiers, reads)
    if puts:
        yield from writing.write(tiers, puts, writes)
    return reads.results


def _check_ttl(tiers: StoreTiers, op: PutOp) -> None:
    if op.ttl is None:
        return
    if isinstance(op.ttl, bool) or not isinstance(op.ttl, (int, float)) or not 0 < op.ttl < float("inf"):
        raise ValueError(f"ttl={shown(op.ttl)}: the TTL of an item is a positive number of minutes, or None for none")
    milliseconds(op.ttl)
    if not tiers.ttl:
        raise ValueError(
            f"ttl={shown(op.ttl)}: hot has no TTL, so it might answer the item when cold has let it expire. Give the "
            "RedisStore a ttl=, of at most half of the shortest TTL in cold"
        )


def _ttl_of_copies(hot: RedisStore | AsyncRedisStore, of_cold: TTLConfig | None) -> int:
    """Return the lifetime of copies in milliseconds; 0 if they do not expire.

    Raises:
        ValueError: Items of cold expire, and hot would keep copies for longer.
    """
    minutes, cold_minutes = (hot.ttl_config or {}).get("default_ttl"), (of_cold or {}).get("default_ttl")
    if cold_minutes is not None and (minutes is None or minutes > cold_minutes / 2):
        kept = "has no TTL" if minutes is None else f"keeps copies for {minutes:g} minutes"
        raise ValueError(
            f"hot {kept}, and items of cold expire after {cold_minutes:g} minutes without a read. A read that hot "
            "answers does not begin that time anew: give the RedisStore a ttl= of half of it at the most, such as "
            f"timedelta(minutes={cold_minutes / 2:g})"
        )
    return 0 if minutes is None else max(1, round(minutes * 60_000))


class TieredStore(TwoTierStore[RedisStore], Block):
    """A `RedisStore` in front of any store. Its `a...` methods run in worker threads.

    It works before and after a fork, if `cold` does. A `PostgresStore` does: the child opens its own connections, with
    the same settings.
    """

    _hot_class, _driver_class = RedisStore, SyncTieredDriver
    _driver: SyncTieredDriver | DriverWrapper[TieredRequest]

    def setup(self) -> None:
        """Set up both, as `asetup`."""
        self.hot.setup()
        self._run(setup(self.cold))


class AsyncTieredStore(TwoTierStore[AsyncRedisStore], AsyncBlock):
    """An `AsyncRedisStore` in front of any store.

    Any number of event loops and OS threads may share it, before and after a fork, as far as `cold` can be shared. An
    `AsyncPostgresStore` is bound to its loop, and answers the calls of that loop. Calls from other loops, OS threads
    and children run on a loop in the background, with their own connections to Postgres.
    """

    _hot_class, _driver_class = AsyncRedisStore, AsyncTieredDriver
    _driver: AsyncTieredDriver | DriverWrapper[TieredRequest]

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
        await self.asetup()
