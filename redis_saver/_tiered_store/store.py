"""`TieredStore` and `AsyncTieredStore`: a `RedisStore` that answers, over another store that keeps everything."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
)

from redis_saver._client.base import AsyncBlock, Block
from redis_saver._common import config
from redis_saver._common.display import kind_of, shown
from redis_saver._common.logs import Log, log_text
from redis_saver._common.store_names import Partition, with_notes
from redis_saver._engine.counting import Counting
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Batch, Call, Operation, T
from redis_saver._engine.stats import CopyStats, Stats
from redis_saver._store import namespaces, scripts, searching
from redis_saver._store.scripts import NO_ANNOUNCEMENT, ask, windows
from redis_saver._store.store import AsyncRedisStore, RedisStore, context_of, method_of
from redis_saver._store.writing import MAX_PUTS, item_ttl
from redis_saver._tiered.carrying import Direct
from redis_saver._tiered.context import OnHotError
from redis_saver._tiered.drivers import AsyncTiers, HotAndCold, SyncTiers, TieredDriver
from redis_saver._tiered.requests import WAITS, ColdCall, Tiered, attempt, best_effort, with_own_errors
from redis_saver._tiered_store import copies
from redis_saver._tiered_store.copies import Copy, StoreTiers
from redis_saver.errors import StoreBusy, reading_store

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

Hot = TypeVar("Hot", RedisStore, AsyncRedisStore)
Writes: TypeAlias = Mapping[Partition, Mapping[bytes, PutOp]]
Items: TypeAlias = Mapping[tuple[tuple[str, ...], str], Item | None]
_LOG = Log("redis_saver.tiered_store")


class TwoTierStore(HotAndCold, BaseStore, Generic[Hot]):
    """Base class of the sync and the async store.

    A write returns when `cold` has it. `hot` has copies of recently read or written items and answers their reads.
    `docs/tiered-store.md` explains it. All writers must use a `TieredStore` with the same hot and cold.

    `put` and `aput` raise `TypeError` for `if_version`, because cold has no versions to compare. `batch` documents
    their cost and their other errors.
    """

    _context: StoreTiers
    _driver: TieredDriver[Any]
    ttl_config: TTLConfig | None

    def __init__(
        self, hot: Hot, cold: BaseStore, *, on_hot_error: OnHotError = "raise", cold_timeout: float | None = 10.0
    ) -> None:
        """Combine two stores. It closes neither of them.

        Args:
            hot: A `RedisStore` (for `AsyncTieredStore` an `AsyncRedisStore`) with its own prefix. Its TTL is the
                lifetime of a copy, whether or not the copy is read. During that time hot may return an item that others
                changed in cold, or that has expired there. So give it a TTL.
            cold: Any other LangGraph store, such as a `PostgresStore` after its `setup()`. It decides which values can
                be stored, and returns them as JSON. `AsyncTieredStore` calls a blocking store in worker threads.
            on_hot_error: What to do if hot cannot be reached. `"raise"`: raise hot's error. `"bypass"`: reads use cold
                alone, and so do writes that have begun. A new write raises in both cases, and does not reach cold,
                because other processes may still reach hot and read old copies.
            cold_timeout: Seconds for which a read waits for cold, before it raises `ColdTimeout`. Writes wait until
                cold answers. None: reads wait, too. With a limit, a `TieredStore` reads cold on other OS threads, so a
                connection to SQLite needs `check_same_thread=False`.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        super().__init__()
        self._counting = Counting(with_own_errors if on_hot_error == "bypass" else None, WAITS)
        self._check_tiers(hot, cold, BaseStore, "store, such as PostgresStore")
        config.one_of(type(self), "on_hot_error", on_hot_error, "raise", "bypass")
        self.hot: Hot = hot
        """The hot store."""
        self.cold: BaseStore = cold
        """The cold store."""
        self.supports_ttl: bool = cold.supports_ttl
        self.ttl_config: TTLConfig | None = getattr(cold, "ttl_config", None)
        self.index_config: IndexConfig | None = getattr(cold, "index_config", None)
        """The `index` of cold, which searches by meaning."""
        self.embeddings: Embeddings | None = getattr(cold, "embeddings", None)
        """The embedding model of cold."""
        if context_of(hot).values.data_keys is not None:
            raise ValueError(
                f"{type(self).__name__}: hot has encryption=, but cold would keep the items as plain JSON, which it "
                "searches. Leave encryption= out, or use the RedisStore with encryption= without a cold store"
            )
        self._context = StoreTiers(context_of(hot), _ttl_of_copies(hot, self.ttl_config))
        bypasses = on_hot_error == "bypass"
        self._driver = self._driver_class(hot, cold, Direct(cold), bypasses=bypasses, cold_timeout=cold_timeout)

    def __repr__(self) -> str:
        """Return the class, hot, and the class of cold."""
        return f"{type(self).__name__}(hot={self.hot!r}, cold={type(self.cold).__name__})"

    def _run(self, operation: Tiered[T], name: str = "") -> T:
        return self._driver.run(self._counting.call(operation, name))

    def _arun(self, operation: Tiered[T], name: str = "") -> Awaitable[T]:
        return self._driver.arun(self._counting.call(operation, name))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations. All reads see the state before the puts. Of several puts of an item the last one counts.

        Cost: reads take one round trip to hot, or two with a search that hot answers. After a miss they also take one
        call of cold and one or two more round trips. Puts take two round trips to hot and two calls of cold. Deletions
        alone take one call of cold.

        Args:
            ops: `GetOp`, `PutOp`, `SearchOp` and `ListNamespacesOp` of `langgraph.store.base`.

        Returns:
            The results in the order of the operations. Each `Item` has cold's times and no version.

        Raises:
            InvalidNamespaceError: A namespace is not valid. Nothing was sent.
            ValueError: A put has a `ttl` (minutes in cold), but hot has no TTL. Nothing was sent.
            ColdTimeout: Cold does not answer a read.
            Exception: Any error of cold. Cold may have stored the puts nevertheless. Reads of these items go to cold
                until the write intents expire (5 minutes).
        """
        ops = list(ops)
        return self._run(batch(self._context, ops), method_of(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for asyncio."""
        ops = list(ops)
        return await self._arun(batch(self._context, ops), method_of(ops))

    def warm(self, namespace_prefix: tuple[str, ...]) -> bool:
        """Copy all items under a prefix of two labels to hot, so that hot answers searches, too.

        Cost: one call of cold and three round trips to hot. One or two round trips if hot has the copies.

        Args:
            namespace_prefix: Two labels, such as `("memories", "user-1")`.

        Returns:
            True if hot has all items. False if another writer wrote one of them meanwhile, if there are more than
            2,000, or if hot could not store one.
        """
        return self._run(copies.warm(self._context, namespace_prefix))

    async def awarm(self, namespace_prefix: tuple[str, ...]) -> bool:
        """`warm` for asyncio."""
        return await self._arun(copies.warm(self._context, namespace_prefix))

    def stats(self) -> Stats:
        """Return a copy of this process's counts: calls of this store, requests of hot, and copies."""
        copied = CopyStats(**self._context.counts.numbers())
        return replace(self.hot.stats(), operations=self._counting.snapshot(), copies=copied)


def batch(tiers: StoreTiers, ops: list[Op]) -> Tiered[list[Result]]:
    """Check the arguments, and return the operation. Its reads see the state before the puts.

    Raises:
        TypeError, ValueError: An operation is invalid.
    """
    places, reads = tiers.hot_context.places, copies.Reads(ops)
    puts: list[PutOp] = []
    writes: dict[Partition, dict[bytes, PutOp]] = {}
    for position, op in enumerate(ops):
        if isinstance(op, GetOp):
            place = places.of(op.namespace)
            fields = reads.gets.setdefault(place.partition, {})
            fields.setdefault(place.field(places.key(op.key)), []).append(position)
        elif isinstance(op, PutOp):
            place = places.of(op.namespace)
            _check_ttl(tiers, op)
            puts.append(op)
            writes.setdefault(place.partition, {})[place.field(places.key(op.key))] = op
        elif isinstance(op, SearchOp):
            labels, _ = searching.check(op)
            if copies.may_be_hot(op):
                reads.searches[position] = places.of(labels)
            else:
                reads.others.append(position)
        elif isinstance(op, ListNamespacesOp):
            namespaces.check(op)
            reads.others.append(position)
        else:
            raise TypeError(f"{kind_of(op)} is not a store operation: GetOp, PutOp, SearchOp or ListNamespacesOp")
    return _batch(tiers, reads, puts, writes)


def _batch(tiers: StoreTiers, reads: copies.Reads, puts: list[PutOp], writes: Writes) -> Tiered[list[Result]]:
    """Read, then put and delete items.

    Puts take two round trips to hot, a call of cold that writes, and one that reads unless all items are deleted.

    Args:
        tiers: The store.
        reads: The reads of the batch.
        puts: All puts, in order, for cold.
        writes: The last put of each item, by partition and field.
    """
    yield from copies.read_all(tiers, reads)
    if puts:
        begun = yield from _begin(tiers, writes)
        yield ColdCall("batch", (puts,), waits=True)  # if it fails, cold may still store the puts: the intents stay
        items = yield from _read_back(tiers, writes)
        yield from best_effort(tiers, _end(tiers, begun, writes, items))
    return reads.results


def _check_ttl(tiers: StoreTiers, op: PutOp) -> None:
    if op.ttl is None:
        return
    item_ttl(op.ttl)
    if not tiers.ttl:
        raise ValueError(
            f"ttl={shown(op.ttl)}: hot has no TTL, so it might return the item after it expired in cold. Give the "
            "RedisStore a ttl= of at most half of the shortest TTL in cold"
        )


def _ttl_of_copies(hot: RedisStore | AsyncRedisStore, of_cold: TTLConfig | None) -> int:
    """Return the lifetime of copies in milliseconds. 0: they do not expire.

    Raises:
        ValueError: Items of cold expire, and hot would keep copies for longer.
    """
    minutes, cold_minutes = (hot.ttl_config or {}).get("default_ttl"), (of_cold or {}).get("default_ttl")
    if cold_minutes is not None and (minutes is None or minutes > cold_minutes / 2):
        kept = "has no TTL" if minutes is None else f"keeps copies for {minutes:g} minutes"
        raise ValueError(
            f"hot {kept}, and items of cold expire after {cold_minutes:g} minutes without a read. A read that hot "
            "answers does not restart that time: give the RedisStore a ttl= of at most half of it, such as "
            f"timedelta(minutes={cold_minutes / 2:g})"
        )
    return 0 if minutes is None else max(1, round(minutes * 60_000))


# -- writes: hot drops its copies, cold stores the items, hot gets copies of cold's items


class Begun(NamedTuple):
    """A write that has begun: some items of a partition."""

    writer: str
    partition: Partition
    fields: Sequence[bytes]
    change: bytes = b"0"
    left: bytes = b""
    """Number of remaining copies if the partition was complete, else empty."""
    copies: Sequence[Copy] = ()
    """Copies that hot gets at the end of the write."""

    @property
    def with_notes(self) -> Partition:
        """The partition with the keys for scripts of writers."""
        return with_notes(self.partition, writing=True)

    def end(self) -> list[Argument]:
        """Return the arguments of the script that ends the write."""
        return [self.writer, self.change, self.left, *(argument for copy in self.copies for argument in copy)]


def _begin(tiers: StoreTiers, writes: Writes) -> Tiered[list[Begun]]:
    writer, begun = os.urandom(8).hex(), list[Begun]()
    for partition, of_partition in writes.items():
        begun += [Begun(writer, partition, fields) for fields in windows(list(of_partition), MAX_PUTS)]
    try:
        return (yield from copies.ask_each(tiers, [(each.partition, partial(_begun, tiers, each)) for each in begun]))
    except Exception:  # cold got nothing, so each write that began ends without copies
        ends = [each._replace(copies=[Copy(field) for field in each.fields]) for each in begun]
        script = scripts.END_WRITES
        yield from attempt(Batch([Call(script, end.with_notes.keys, (*NO_ANNOUNCEMENT, *end.end())) for end in ends]))
        raise


def _begun(tiers: StoreTiers, begun: Begun) -> Operation[Begun]:
    reply = yield from ask(tiers.hot_context, begun.with_notes, scripts.BEGIN_WRITES, (begun.writer, *begun.fields))
    change, left = reply.values
    return begun._replace(change=change, left=left)


def _read_back(tiers: StoreTiers, writes: Writes) -> Tiered[Items | None]:
    """Read the written items from cold. None if that fails. Then later reads fill hot."""
    puts = [op for of_partition in writes.values() for op in of_partition.values() if op.value is not None]
    if not puts:
        return {}
    gets = [GetOp(tuple(op.namespace), op.key, refresh_ttl=False) for op in puts]
    items, error = yield from attempt(ColdCall("batch", (gets,)))
    if error is not None:
        tiers.counts.errors += 1
        _LOG.warning(
            "items were written to cold, and could not be read back; a later read fills hot: %s", log_text(error)
        )
        return None
    return {(get.namespace, get.key): item for get, item in zip(gets, items, strict=True)}


def _end(tiers: StoreTiers, begun: Sequence[Begun], writes: Writes, items: Items | None) -> Tiered[None]:
    ends = [end for each in begun for end in _with_copies(tiers, each, writes[each.partition], items)]
    stored = None
    with suppress(StoreBusy):
        stored = yield from copies.if_hot_can(_end_all(tiers, ends))
    if stored is None:  # hot is full or its directory refuses the partition, but it can still remove copies
        without = [end._replace(left=b"", copies=[Copy(copy.field) for copy in end.copies]) for end in ends]
        stored = yield from _end_all(tiers, without)
    tiers.counts.fills += sum(stored)
    tiers.counts.refused += sum(1 for end in ends for copy in end.copies if copy.value) - sum(stored)


def _with_copies(tiers: StoreTiers, begun: Begun, ops: Mapping[bytes, PutOp], items: Items | None) -> list[Begun]:
    """Add the copies to the end of a write, and split it by the size of a script's arguments."""
    new_copies, is_whole = [], items is not None
    for field in begun.fields:
        item = items.get((tuple(ops[field].namespace), ops[field].key)) if items else None
        copy = Copy(field) if item is None else copies.copy_of(tiers.hot_context, field, item, _ttl(tiers, ops[field]))
        tiers.counts.refused += copy is None
        is_whole = is_whole and copy is not None
        new_copies.append(copy or Copy(field))
    parts = list(copies.batches(new_copies))
    if not is_whole or len(parts) > 1 or len(begun.fields) < len(ops):
        begun = begun._replace(left=b"")
    return [begun._replace(copies=part) for part in parts]


def _end_all(tiers: StoreTiers, ends: Sequence[Begun]) -> Operation[list[int]]:
    return copies.ask_each(tiers, [(end.partition, partial(_ended, tiers, end)) for end in ends])


def _ended(tiers: StoreTiers, begun: Begun) -> Operation[int]:
    """End a write in hot. Returns the number of stored copies."""
    reply = yield from ask(tiers.hot_context, begun.with_notes, scripts.END_WRITES, begun.end())
    if reply.code != StoreReply.EMPTIED:
        with reading_store(begun.partition.keys[0]):
            return int(reply.values[0])
    yield Call(scripts.WITHDRAW, tiers.hot_context.keyspace.directory, (begun.partition.member, reply.values[0]))
    return 0


def _ttl(tiers: StoreTiers, op: PutOp) -> int:
    """Return the lifetime of a copy in milliseconds.

    It is at most half of the item's lifetime. So reads in the second half reach cold, which restarts the item's TTL.
    """
    return tiers.ttl if op.ttl is None else min(tiers.ttl, max(1, round(op.ttl * 30_000)))


class TieredStore(SyncTiers, TwoTierStore[RedisStore], Block):
    """A `RedisStore` over any other store. Its `a...` methods run in worker threads.

    The store survives a fork if `cold` does. A `PostgresStore` does: the child opens its own connections with the same
    settings.
    """

    _hot_class = RedisStore


class AsyncTieredStore(AsyncTiers, TwoTierStore[AsyncRedisStore], AsyncBlock):
    """An `AsyncRedisStore` over any other store.

    Any number of event loops and OS threads may share it, before and after a fork, if `cold` can be shared as well. An
    `AsyncPostgresStore` is bound to its loop and answers the calls of that loop. Calls from other loops, OS threads and
    children run on a background loop with their own connections to Postgres.
    """

    _hot_class = AsyncRedisStore
