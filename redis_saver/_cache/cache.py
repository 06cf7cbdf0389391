"""`RedisCache` and `AsyncRedisCache`: settings, LangGraph's interface, and its operations."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar, Generic

from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self, TypedDict, TypeVar, Unpack

from redis_saver._cache import entries
from redis_saver._cache.entries import Address, CacheKeyspace, Context, Range, ReadResult
from redis_saver._cache.flights import Flights
from redis_saver._cache.health import Health, OnError
from redis_saver._client import clients
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.base import AsyncBlock, AsyncClient, Block, NeedsAsyncWith, NeedsWith, RedisDriver, SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common import config, times, ttl as ttls
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._engine.counting import Counting, Measured, stats_of
from redis_saver._engine.requests import Batch, Call, Command, Operation, T
from redis_saver._engine.scripts import load
from redis_saver._engine.stats import CacheStats
from redis_saver._serde.serializer import FastSerializer, chosen
from redis_saver._storage.encryption import guarded, replaced
from redis_saver._storage.keys import FIELD, DataKeys
from redis_saver._storage.rewrapping import Holder, Rotates, rotate, status
from redis_saver._storage.sealing import Cipher
from redis_saver.encryption import Encryption, KeyStatus, Rotated
from redis_saver.errors import decoding

SET_ENTRIES = load("cache/set_entries")
SWEEP_ENTRIES = load("cache/sweep_entries")
ClientT = TypeVar("ClientT", bound=SyncClient | AsyncClient)
ValueT = TypeVar("ValueT", default=Any)
"""LangGraph's type variable, with a default, so that a cache needs no type argument."""
CLUSTER_TIMEOUT = 1.0
"""Default of `cluster_timeout`, in seconds. A cache does not wait for a failover."""
SOCKET_TIMEOUT = 1.0
"""Default timeout of a cache's own client, in seconds. A slower cache would be useless."""
ENTRIES_PER_REQUEST = 500
"""Maximum number of entries of one script or MGET, so that other clients get their turn."""
_MAX_FLIGHT = timedelta(days=1)
_UNUSED = 24 * 3600 * 1000
"""Milliseconds after which unused generations expire, once their shard was cleared."""


class CacheSettings(TypedDict, total=False):
    """Settings of a cache, for `from_conn_string`. The constructor of `Cache` explains them."""

    serde: SerializerProtocol | None
    encryption: Encryption | None
    prefix: str
    ttl: timedelta | str | None
    on_error: OnError
    single_flight: timedelta | str | None
    limits: Limits
    require_encryption: bool | None
    strict: bool
    cluster_timeout: float


class Cache(Rotates, BaseCache[ValueT], Generic[ClientT, ValueT]):
    """A cache on one Redis or Valkey."""

    serde: SerializerProtocol = FastSerializer(pickle_fallback=False)
    _driver: RedisDriver
    _driver_class: ClassVar[type[Any]]

    def __init__(
        self,
        client: ClientT,
        *,
        serde: SerializerProtocol | None = None,
        encryption: Encryption | None = None,
        prefix: str = "langgraph",
        ttl: timedelta | str | None = None,
        on_error: OnError = "skip",
        single_flight: timedelta | str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = CLUSTER_TIMEOUT,
    ) -> None:
        """Use your own client, which savers may share. The cache does not close it.

        Args:
            client: `RedisCache` takes a `redis.Redis` (also a Sentinel's `master_for`), a `redis.RedisCluster`, or
                valkey-py's clients. `AsyncRedisCache` takes those of `redis.asyncio`. `decode_responses=True` is fine.
            serde: Serializer of values. Default: `FastSerializer`, which writes the bytes of `JsonPlusSerializer`.
            encryption: Encrypts values with a data key of this prefix (`docs/encryption.md`). An entry that it does not
                open is a miss, and counts as an error. Each process reads the data key once per `cache_seconds`, in one
                more round trip. None: nothing is encrypted, except by `serde`.
            prefix: Beginning of all keys. Caches with different prefixes are separate. A saver may use the same prefix.
            ttl: TTL of an entry that is set without its own: a `timedelta`, or a text such as `"7d"` or `"90m"`.
                Default: no deadline.
            on_error: `"skip"` treats a failing server, or provider of keys, as an empty cache: `get` finds nothing,
                and `set` stores nothing. Failures are counted (`stats()`), and logged once per outage
                (`redis_saver.cache`).
                `"raise"` raises the client's error. `clear` always raises it.
            single_flight: Maximum time to compute a missing entry. One caller computes it. Other callers of this cache
                in this process wait until it is stored (`docs/cache.md`). None: nobody waits.
            limits: `name_bytes` limits labels and keys, `value_bytes` values. Larger ones raise `LimitExceeded`.
            require_encryption: True to refuse values that are not encrypted. Reading one counts as an error, and does
                not decode it. Default: True if `serde` is an `EncryptedSerializer`.
            strict: Decode with a `StrictSerializer`, as savers do.
            cluster_timeout: Seconds for which a request to a cluster is retried while its slot moves or its primary is
                replaced.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        config.one_of(type(self), "on_error", on_error, "skip", "raise")
        super().__init__(serde=chosen(serde, strict=strict))
        self._counting = Counting()
        self._driver = self._driver_class(
            client, prefix=prefix, cluster_timeout=cluster_timeout, taker="Cache", repeats_late=False
        )
        self._context = Context(
            serde=guarded(self.serde, require_encryption),
            keyspace=CacheKeyspace(prefix),
            ttl=ttls.parse(ttl, refresh_allowed=False).milliseconds,
            limits=limits,
            data_keys=None if encryption is None else DataKeys(encryption, prefix, "cache"),
        )
        self._flights = None if single_flight is None else Flights(_seconds(single_flight))
        replies: type[Exception] = clients.exceptions_of(client).ResponseError
        self._health = Health(self._driver.server, on_error, self._driver.failures, replies)

    def __repr__(self) -> str:
        """Return the class, the server without its login, the prefix and the default TTL."""
        milliseconds = self._context.ttl
        ttl = "none" if milliseconds is None else times.shown(timedelta(milliseconds=milliseconds))
        return f"{type(self).__name__}({self._driver.server}, prefix={shown(self._context.keyspace.prefix)}, ttl={ttl})"

    async def asetup(self) -> None:
        """Check that the server can be reached, and its version. Changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        await self._driver.acheck_version()

    def stats(self) -> CacheStats:
        """Return the counts of this cache in this process."""
        return stats_of(CacheStats, self._counting, *self._measured().sources)

    def _measured(self) -> Measured:
        return Measured(self._counting, self._driver.server, "entries", (self._driver.traffic, self._health.counts))

    def _run(self, operation: Operation[T], name: str) -> T:
        return self._driver.run(self._counting.call(operation, name))

    async def _arun(self, operation: Operation[T], name: str) -> T:
        return await self._driver.arun(self._counting.call(operation, name))

    def _key_status_gen(self) -> Operation[KeyStatus]:
        return status("cache", [Holder("", (self._context.keyspace.data_key,))])

    def _rotate_keys_gen(self) -> Operation[Rotated]:
        return rotate(self._context.data_keys, [Holder("", (self._context.keyspace.data_key,))])

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """Read entries.

        Cost: one round trip (per node of a cluster); none without keys. With `single_flight`, a waiting caller needs
        up to one more each time that another caller stores something.

        Args:
            keys: Pairs of a namespace (a tuple of str) and a key. Any characters are fine.

        Returns:
            The values of the entries that are there, in the order of `keys`.

        Raises:
            TypeError, LimitExceeded: A name is invalid.
            DecodeError, PlainValueRefused, UnsupportedFormat, KeyConflict, KeyUnavailable: With `on_error="raise"`: an
                entry was stored with other settings, or by another program.
        """
        names = entries.names(self._context, keys)
        return self._driver.run(self._counting.call(self._get(names))) if names else {}

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """`get` for asyncio."""
        names = entries.names(self._context, keys)
        if not names:
            return {}
        # Single flight waits, and sets a context variable of this task, so it cannot run in a worker thread.
        run = self._driver.arun if self._flights is None else self._driver.arun_sleeping
        return await run(self._counting.call(self._get(names)))

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Store entries.

        All are encoded before the first is sent. Up to 500 entries of a namespace are stored atomically.

        Cost: one round trip (per node of a cluster), or none without entries. Every 64th new entry without a TTL in a
        shard costs a second round trip.

        Args:
            pairs: Value and TTL of each entry by its name. The TTL is in seconds, or None for the cache's own TTL.

        Raises:
            TypeError, ValueError: A name or TTL is invalid.
            EncodeError: The serializer cannot encode a value. Nothing was stored.
            LimitExceeded: A name or value is too large. Nothing was stored.
            KeyConflict: With `on_error="raise"`: another program uses a key of the cache.
        """
        if pairs:
            self._driver.run(self._counting.call(self._set(pairs)))

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """`set` for asyncio."""
        if pairs:
            await self._driver.arun(self._counting.call(self._set(pairs)))

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Clear namespaces.

        Each namespace is cleared atomically: a `get` finds all of its entries, or none. Entries that are set while
        `clear` runs may stay.

        Cost: one round trip (per node of a cluster) makes all entries invalid. Entries without a TTL are then removed,
        in two round trips per 500 entries of a namespace, or of a shard if everything is cleared. Entries with a TTL
        take memory until they expire.

        Args:
            namespaces: The namespaces to clear, without their children. Default: all of this prefix, except models'
                answers.

        Raises:
            Exception: The client's own error if the server fails, even with `on_error="skip"`. A silent failure would
                leave old values valid. Calling again is safe.
        """
        if namespaces is None or namespaces:
            checked = entries.namespaces(self._context, namespaces)
            self._driver.run(self._counting.call(self._clear(checked)))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """`clear` for asyncio."""
        if namespaces is None or namespaces:
            checked = entries.namespaces(self._context, namespaces)
            await self._driver.arun(self._counting.call(self._clear(checked)))

    def _get(self, names: Sequence[FullKey]) -> Operation[dict[FullKey, Any]]:
        self._driver.check_open()  # also while a failing server is skipped
        addresses = [self._context.keyspace.address(name) for name in names]
        flights, counts = self._flights, self._health.counts
        result = yield from (self._read(addresses) if flights is None else flights.get(addresses, self._read))
        result = result or ReadResult()
        counts.hits += len(result.values)
        counts.misses += len(names) - len(result.values)
        counts.waits += result.waits
        for error in result.unreadable.values():
            self._health.unreadable(error)
        return {name: result.values[name] for name in names if name in result.values}

    def _read(self, addresses: Sequence[Address]) -> Operation[ReadResult | None]:
        """Read entries. Returns None if the server fails."""
        return self._health.guarded("get", self._mget(addresses))

    def _mget(self, addresses: Sequence[Address]) -> Operation[ReadResult]:
        """Read entries by one MGET per shard, all in one round trip per node."""
        context, result = self._context, ReadResult()
        if (data_keys := context.data_keys) is not None:
            context = context._replace(cipher=(yield from self._cipher(data_keys)))
        groups = [
            (shard, list(dict.fromkeys(address.generation for address in group)), group)
            for shard, group in _by_shard(addresses)
        ]
        requests = [
            Command(("MGET", context.keyspace.generations[shard], *generations, *(address.entry for address in group)))
            for shard, generations, group in groups
        ]
        replies = (yield Batch(requests)) if len(requests) > 1 else [(yield requests[0])]
        for (_, generations, group), (of_shard, *values) in zip(groups, replies, strict=True):
            if of_shard is None:
                continue
            of_namespace = dict(zip(generations, values, strict=False))
            for address, raw in zip(group, values[len(generations) :], strict=True):
                if raw is not None and (generation := of_namespace[address.generation]) is not None:
                    result.take(context, address.name, raw, generation + of_shard)
        if data_keys is not None and result.unreadable:  # perhaps there is another data key
            yield from data_keys.load("", context.keyspace.data_key, context.cipher)
        return result

    def _cipher(self, data_keys: DataKeys) -> Operation[Cipher]:
        """Return the cipher of this cache. Make a data key if there is none."""
        key = self._context.keyspace.data_key
        while (cipher := (yield from data_keys.load("", key))) is None:
            made = yield from data_keys.make("", None)
            made.until = 0.0  # so `load` reads which one is stored, as another process may be first
            yield Command(("HSETNX", key, FIELD, made.argument), (key,))
        return cipher

    def _set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> Operation[None]:
        self._driver.check_open()
        context = self._context
        checked = entries.pairs(context, pairs)
        addresses = [context.keyspace.address(name) for name, _, _ in checked]
        try:
            encoded = {name: (ttl, entries.encode(context, name, value)) for name, ttl, value in checked}
            if (yield from self._health.guarded("set", self._store(addresses, encoded))):
                self._health.counts.sets += len(encoded)
        finally:
            if self._flights is not None:
                self._flights.end(addresses)

    def _store(
        self, addresses: Sequence[Address], encoded: Mapping[FullKey, tuple[int | bytes, bytes]]
    ) -> Operation[bool]:
        """Store encoded entries. Returns True, because None means that the server failed."""
        keyspace, fresh = self._context.keyspace, os.urandom(entries.GENERATION)
        data_keys = self._context.data_keys
        cipher = None if data_keys is None else (yield from self._cipher(data_keys))
        calls, shards = list[Call](), list[int]()
        for shard, group in _by_shard(addresses):
            keys = [keyspace.generations[shard], keyspace.indexes[shard]]
            arguments: list[bytes | int] = [fresh, entries.FORMAT]
            for address in group:
                keys += (address.generation, address.entry)
                ttl, stored = encoded[address.name]
                sealed = stored if cipher is None else cipher.seal_value(address.entry, stored)
                arguments += (address.member, ttl, sealed)
            calls.append(Call(SET_ENTRIES, keys, arguments))
            shards.append(shard)
        replies = (yield Batch(calls)) if len(calls) > 1 else [(yield calls[0])]
        sampled = [(shard, _members(keyspace, shard, reply)) for shard, reply in zip(shards, replies, strict=True)]
        if sweeps := [_sweep(keyspace, shard, members) for shard, members in sampled if members]:
            yield Batch(sweeps)
        return True

    def _clear(self, namespaces: Sequence[Namespace] | None) -> Operation[None]:
        """Make the entries invalid, then remove those without a TTL, page by page."""
        keyspace = self._context.keyspace
        ranges = keyspace.ranges(namespaces)
        unlinks = [Command(("UNLINK", part.generation)) for part in ranges]
        replies = yield Batch([*unlinks, *(_page(keyspace, part, part.low) for part in ranges)])
        pages = list(zip(ranges, replies[len(ranges) :], strict=True))
        while pages := [(part, members) for part, members in pages if members]:
            requests: list[Call | Command] = [_sweep(keyspace, part.shard, members) for part, members in pages]
            if namespaces is None:
                # The generations of namespaces whose entries had no TTL have no deadline either.
                unused = {keyspace.listed(part.shard, member)[0] for part, members in pages for member in members}
                requests += [Command(("PEXPIRE", key, _UNUSED)) for key in unused]
            following = [_page(keyspace, part, b"(" + members[-1]) for part, members in pages]
            replies = yield Batch([*requests, *following])
            pages = [(part, page) for (part, _), page in zip(pages, replies[len(requests) :], strict=True)]

    def _in_room(self, room: bytes, serde: SerializerProtocol) -> Self:
        """Return a cache with other keys and another serializer, which shares the driver and the counts."""
        other = copy.copy(self)
        other.serde = serde
        keyspace = CacheKeyspace(self._context.keyspace.prefix, room)
        serde = replaced(self._context.serde, serde)
        other._context = self._context._replace(keyspace=keyspace, serde=serde)  # noqa: SLF001
        return other


def driver_of(cache: Cache[Any, Any]) -> RedisDriver:
    """Return the driver of a cache. For other modules of this package only."""
    return cache._driver  # noqa: SLF001


class RedisCache(Cache[SyncClient, ValueT], Block):
    """LangGraph's cache of the results of nodes and tasks, on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so the event loop is never blocked. A service on asyncio should use
    `AsyncRedisCache`, which needs no worker threads. Any number of OS threads may share a cache, before and after a
    fork.
    """

    _driver: SyncDriver
    _driver_class = SyncDriver

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self._driver.check_version()

    @classmethod
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[CacheSettings]
    ) -> AbstractContextManager[Self]:
        """Open a cache with its own client. The end of the `with` closes both.

            with RedisCache.from_conn_string("redis://localhost:6379", ttl="1d") as cache:
                graph = builder.compile(cache=cache)

        After the block, each method raises `Closed`. The client waits one second for the server (a saver's waits five),
        and does not retry.

        Args:
            url: As that of `RedisSaver.from_conn_string`.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 0.2}`. They may
                also follow the `?` in the URL.
            settings: Keyword arguments of the constructor.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        return NeedsWith(cls, url, _client_options(client_options, asynchronous=False), settings)


class AsyncRedisCache(Cache[AsyncClient, ValueT], AsyncBlock):
    """LangGraph's cache of the results of nodes and tasks, on plain Redis or Valkey, over an asyncio client.

    It can be made without a running event loop. Any number of event loops and OS threads may share it, before and
    after a fork. Its methods without an `a` raise `CalledOnEventLoop` on an OS thread that runs an event loop.
    """

    _driver: AsyncDriver
    _driver_class = AsyncDriver

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
        await self.asetup()

    @classmethod
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[CacheSettings]
    ) -> AbstractAsyncContextManager[Self]:
        """Open a cache with its own client. The end of the `async with` closes both.

            async with AsyncRedisCache.from_conn_string("redis://localhost:6379", ttl="1d") as cache:
                graph = builder.compile(cache=cache)

        The arguments are those of `RedisCache.from_conn_string`.
        """
        return NeedsAsyncWith(cls, url, _client_options(client_options, asynchronous=True), settings)


def _client_options(options: Mapping[str, Any] | None, *, asynchronous: bool) -> dict[str, Any]:
    """Return the options of a cache's own client. By default it does not retry."""
    return {"socket_timeout": SOCKET_TIMEOUT, "retry": clients.retry(0, asynchronous=asynchronous), **(options or {})}


def _seconds(single_flight: timedelta | str) -> float:
    span = times.of(single_flight, name="single_flight")
    if not timedelta(milliseconds=10) <= span <= _MAX_FLIGHT:
        raise ValueError(
            f"single_flight={shown(single_flight)}: write the time of the slowest computation, from 10ms to a day, "
            "such as '30s'"
        )
    return span.total_seconds()


def _by_shard(addresses: Iterable[Address]) -> Iterator[tuple[int, list[Address]]]:
    """Yield up to `ENTRIES_PER_REQUEST` entries of one shard at a time, in ascending order of shards."""
    shards: dict[int, list[Address]] = {}
    for address in addresses:
        shards.setdefault(address.shard, []).append(address)
    for shard, group in sorted(shards.items()):
        for start in range(0, len(group), ENTRIES_PER_REQUEST):
            yield shard, group[start : start + ENTRIES_PER_REQUEST]


def _page(keyspace: CacheKeyspace, part: Range, low: bytes) -> Command:
    return Command(("ZRANGEBYLEX", keyspace.indexes[part.shard], low, part.high, "LIMIT", 0, ENTRIES_PER_REQUEST))


def _members(keyspace: CacheKeyspace, shard: int, reply: Any) -> Sequence[bytes]:
    """Check the members of a shard's index that a script answered.

    Raises:
        DecodeError: They are not a list of bytes.
    """
    if not isinstance(reply, list) or not all(isinstance(member, bytes) for member in reply):
        with decoding("the index {!r} of a cache", keyspace.indexes[shard], remedy="clear() makes it anew."):
            raise ValueError(f"the script about it answered {shown(reply)}")
    return reply


def _sweep(keyspace: CacheKeyspace, shard: int, members: Sequence[bytes]) -> Call:
    keys = [keyspace.generations[shard], keyspace.indexes[shard]]
    for member in members:
        keys += keyspace.listed(shard, member)
    return Call(SWEEP_ENTRIES, keys, members)
