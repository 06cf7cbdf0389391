"""What `TieredStore` and `AsyncTieredStore` share: a store of ours that answers, in front of one that remembers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from langgraph.store.base import NOT_PROVIDED, BaseStore, NotProvided, Op, Result, TTLConfig

from redis_saver._common import config as configs
from redis_saver._common import forks, keywords
from redis_saver._common.display import kind_of
from redis_saver._engine.requests import T
from redis_saver._engine.runner import DriverWrapper
from redis_saver._engine.stats import Counting, Measured, name_of
from redis_saver._store.aio import AsyncRedisStore
from redis_saver._store.store import context_of
from redis_saver._store.sync import RedisStore
from redis_saver._tiered.context import OnHotError
from redis_saver._tiered.drivers import TieredDriver
from redis_saver._tiered.requests import Tiered, TieredRequest, setup, with_own_errors
from redis_saver._tiered_store import operations, searching
from redis_saver._tiered_store.context import StoreTiers
from redis_saver._tiered_store.stats import TieredStoreStats

Hot = TypeVar("Hot", RedisStore, AsyncRedisStore)


class TwoTierStore(BaseStore, Generic[Hot]):
    """What both flavours share.

    Writes go to `cold`, and return when it has them. `hot` has copies of what was read or written lately, and answers reads of these. `docs/tiered-store.md`
    explains it. All writers must use tiers over the same two stores.
    """

    _driver: TieredDriver[Any] | DriverWrapper[TieredRequest]
    _hot_class: ClassVar[type[Any]]
    _driver_class: ClassVar[type[Any]]
    ttl_config: TTLConfig | None

    @keywords.checked
    def __init__(self, hot: Hot, cold: BaseStore, *, on_hot_error: OnHotError = "raise") -> None:
        """Put a store in front of another. Both stay yours.

        Args:
            hot: A `RedisStore` (for `AsyncTieredStore` an `AsyncRedisStore`), with a prefix that nothing else puts items into. Give it a TTL: so long a copy lives,
                read or not; so long an item may be answered that was changed in cold by others, or has expired there.
            cold: Any other store of LangGraph's, such as a `PostgresStore` on which `setup()` was called. It decides what can be stored, and how values come back
                (as JSON). A blocking one is called in worker threads by `AsyncTieredStore`.
            on_hot_error: Where hot cannot be reached: `"raise"` its error, or `"bypass"` it. Then reads go to cold alone, and so do writes that are under way. A new
                write raises in any case, and cold does not get it: other processes may still see hot, and would believe it.

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
        forks.watch(self._tiers.counts)

    def __repr__(self) -> str:
        """The class, hot, and the class of cold."""
        return f"{type(self).__name__}(hot={self.hot!r}, cold={type(self.cold).__name__})"

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        self._driver.check_open()
        return self._driver.run(self._counting.call(with_own_errors(operation), name or name_of(operation)))

    def _arun(self, operation: Tiered[T], name: str = "") -> Awaitable[T]:
        self._driver.check_open()
        return self._driver.arun(self._counting.call(with_own_errors(operation), name or name_of(operation)))

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
            TypeError: There is an `if_version`, which a `RedisStore` has: cold has no versions to compare. Nothing was written.
            ValueError: There is a `ttl`, and hot has none.
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
        """Execute operations. All reads see what was there before the puts; of several puts of an item the last one counts.

        Cost: for reads one round trip to hot, two with a search that it answers; what it does not have takes one call of cold, and another round trip or two. Puts
        take two round trips to hot and two calls of cold; deletions alone take one call.

        Args:
            ops: `GetOp`, `PutOp`, `SearchOp` and `ListNamespacesOp` of `langgraph.store.base`.

        Returns:
            The results, in the order of the operations. Each `Item` is without a version, with the times that cold has.

        Raises:
            InvalidNamespaceError: A namespace is not valid. Nothing was sent.
            Exception: Whatever cold raises. It may have stored the puts all the same; until their write intents expire (5 minutes), reads of these items go to cold.
        """
        given = list(ops)
        return self._run(operations.batch(self._tiers, given), operations.method_of(given))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for asyncio."""
        given = list(ops)
        return await self._arun(operations.batch(self._tiers, given), operations.method_of(given))

    def warm(self, namespace_prefix: tuple[str, ...]) -> bool:
        """Bring copies of all items under a prefix of two labels to hot, so that it answers searches, too.

        Cost: one call of cold, three round trips to hot; one or two round trips if it has them.

        Args:
            namespace_prefix: Two labels, such as `("memories", "user-1")`.

        Returns:
            Whether hot has all of them. If not, somebody wrote one of them meanwhile, or there are more than 2,000, or hot could not take one.
        """
        return self._run(searching.warm(self._tiers, namespace_prefix))

    async def awarm(self, namespace_prefix: tuple[str, ...]) -> bool:
        """`warm` for asyncio."""
        return await self._arun(searching.warm(self._tiers, namespace_prefix))

    async def asetup(self) -> None:
        """Set up both: check hot's server, and call `setup` of cold, which creates its tables. Some have none.

        Call it when you deploy rather than in each worker: it may need more rights than a worker has.

        Raises:
            UnsupportedServer: Hot's server is too old.
        """
        await self.hot.asetup()
        await self._arun(setup(self.cold))

    def stats(self) -> TieredStoreStats:
        """A copy of what was counted so far, in this process."""
        return self._tiers.counts.snapshot(self._counting)

    def _measured(self) -> Measured:
        of_hot: Measured = self.hot._measured()  # noqa: SLF001 - it is of ours
        return of_hot._replace(counting=self._counting, sources=(self._tiers.counts, *of_hot.sources))


def _ttl_of_copies(hot: RedisStore | AsyncRedisStore, of_cold: TTLConfig | None) -> int:
    """How long copies live, in milliseconds; 0: for ever.

    Raises:
        ValueError: Items of cold expire, and hot would keep copies for longer.
    """
    minutes, cold_minutes = (hot.ttl_config or {}).get("default_ttl"), (of_cold or {}).get("default_ttl")
    if cold_minutes is not None and (minutes is None or minutes > cold_minutes / 2):
        kept = "has no TTL" if minutes is None else f"keeps copies for {minutes:g} minutes"
        raise ValueError(
            f"hot {kept}, and items of cold expire after {cold_minutes:g} minutes without a read. A read that hot answers does not begin that time anew: give the "
            f"RedisStore a ttl= of half of it at the most, such as timedelta(minutes={cold_minutes / 2:g})"
        )
    return 0 if minutes is None else max(1, round(minutes * 60_000))
