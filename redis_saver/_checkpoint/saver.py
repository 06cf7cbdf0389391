"""`RedisSaver` and `AsyncRedisSaver`: their settings, LangGraph's interface over one server, and our own methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from copy import copy
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods
from typing_extensions import Self, TypedDict, Unpack

from redis_saver._checkpoint import auditing, checking, copying, delta, listing, pruning, reading, threads, writing
from redis_saver._checkpoint.auditing import ChannelValue, VersionInfo, WriteInfo
from redis_saver._checkpoint.interface import Interface, as_keyed_method, as_method
from redis_saver._checkpoint.ownership import take
from redis_saver._checkpoint.rotating import key_status, rotate_keys
from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._client import aio, base, sync
from redis_saver._common import config as configs, times, ttl as ttls
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._engine import probe
from redis_saver._engine.counting import Counting, Measured, stats_of
from redis_saver._engine.requests import Stream
from redis_saver._engine.stats import Stats
from redis_saver._serde.comparing import ValueCheck
from redis_saver._serde.serializer import FastSerializer, chosen
from redis_saver._storage import compression as compressions
from redis_saver._storage.chunk_cache import CACHE_BYTES, ChunkCache
from redis_saver._storage.context import Context
from redis_saver._storage.encryption import guarded, replaced, unguarded
from redis_saver._storage.keys import DataKeys, skip_counts
from redis_saver.encryption import Encryption, KeyStatus, Rotated

OwnershipRule: TypeAlias = Literal["optional", "required"]
OnFork: TypeAlias = Literal["allow", "raise"]
CheckValues: TypeAlias = Literal["never", "warn", "raise"]


class SaverSettings(TypedDict, total=False):
    """The settings of a saver, for `from_conn_string`. The constructor of `Saver` explains them."""

    serde: SerializerProtocol | None
    encryption: Encryption | None
    prefix: str
    ttl: ttls.TTL
    history: configs.History
    compression: compressions.Compression | None
    cache_bytes: int
    limits: Limits
    require_encryption: bool | None
    strict: bool
    cluster_timeout: float
    require_primary: bool
    min_replicas: int
    replica_timeout: float
    ownership: OwnershipRule
    on_fork: OnFork
    check_values: CheckValues


ClientT = TypeVar("ClientT", base.SyncClient, base.AsyncClient)


class Saver(Interface[ThreadInfo], Generic[ClientT]):
    """A saver on one Redis or Valkey. Every method also has an asyncio form with the prefix `a`."""

    _context: Context
    _driver: base.RedisDriver
    _driver_class: ClassVar[type[Any]]

    def __init__(
        self,
        client: ClientT,
        *,
        serde: SerializerProtocol | None = None,
        encryption: Encryption | None = None,
        prefix: str = "langgraph",
        ttl: ttls.TTL = None,
        history: configs.History = "all",
        compression: compressions.Compression | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = base.CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
        ownership: OwnershipRule = "optional",
        on_fork: OnFork = "allow",
        check_values: CheckValues = "never",
    ) -> None:
        """Use an existing client. The saver does not close it.

        Args:
            client: For `RedisSaver`, a `redis.Redis` (also a Sentinel's `master_for`), a `redis.RedisCluster`, or a
                client of valkey-py. For `AsyncRedisSaver`, one of `redis.asyncio`. `decode_responses=True` is fine.
            serde: The serializer. Default: `FastSerializer`, which writes the bytes of LangGraph's
                `JsonPlusSerializer`. With another serializer, values are stored whole and their versions share no
                chunks. A `JsonPlusSerializer`, also inside an `EncryptedSerializer`, is copied. The copy is safe for
                values that other OS threads change (`docs/changing-state.md`).
            encryption: Encrypts threads with your keys (`redis_saver.encryption`, `docs/encryption.md`). It costs each
                process one more round trip for each thread. None: nothing is encrypted, except by `serde`.
            prefix: The beginning of all keys. Savers with different prefixes share no data.
            ttl: Time after its last write when a thread expires: a `timedelta`, a text such as `"7d"` or `"90m"`, or
                LangGraph's `{"default_ttl": minutes, "refresh_on_read": bool}`. None: threads do not expire.
            history: History limit of a thread: `"all"`, or `{"keep_last": n}` for the newest `n` checkpoints of each
                namespace (1 to 1,000). A put that finds 1.5 times as many, and at least 32 more, prunes the thread
                (`docs/threads.md`). A thread's own `thread_history` takes precedence.
            compression: `"zstd"` compresses chunks, and values and writes of at least a kilobyte (extra `zstd`). Every
                saver reads them, regardless of its own setting.
            cache_bytes: Memory for the last long values that this saver wrote or read, in bytes. Cached values are not
                sent again in either direction. 0 disables the cache.
            limits: Maximum length of names, size of values, and number of channels and writes. More raises
                `LimitExceeded`.
            require_encryption: True: reading a value that is not encrypted raises `PlainValueRefused` before it is
                decoded. None: True if `serde` is an `EncryptedSerializer`, or with `encryption`. Set False while there
                are threads that were written plain, but not with `encryption`.
            strict: True: decode with a `StrictSerializer`. It makes only objects of classes that LangGraph calls safe,
                or that `with_allowlist` names. False: as with LangGraph's serializer, anybody who can write to Redis
                can run code here (`docs/security.md`).
            cluster_timeout: Seconds for which a request to a cluster is repeated while its slot moves or its primary is
                replaced. Then it raises `ClusterMoving`. It is repeated at least once, but never if this is 0. The last
                try may take as long as the client's timeouts allow (`docs/high-availability.md`).
            require_primary: True: reads from a replica raise the client's `ReadOnlyError`, as writes always do. This
                costs no round trip. (A cluster's replicas redirect by themselves.)
            min_replicas: Number of replicas that must confirm a write (WAIT, in the same round trip): checkpoints,
                pending writes, deletions of threads, copies, TTLs. `docs/high-availability.md` helps to choose it.
            replica_timeout: Seconds to wait for the replicas. Then the write raises `ReplicationTimeout`. Keep it below
                the client's `socket_timeout`.
            ownership: Rule for writes without a token while somebody owns the thread (`own`). `"optional"`: they are
                allowed. `"required"`: they raise `NotOwner`, and so do deletions and prunes.
            on_fork: `"raise"`: a run's checkpoint raises `StaleParent` if another run has written a newer one than its
                parent. Deliberate forks are allowed: `update_state`, a run with an explicit `checkpoint_id`, and
                `copy_thread`. `"allow"`: the chain forks, as with LangGraph's savers.
            check_values: For tests and trial runs: each new value and pending write is encoded, decoded and compared by
                type and content before it is written. `"warn"`: what does not come back equal is logged, once for each
                channel and type. `"raise"`: it raises `ValueChanged`. `docs/changing-state.md` lists such values.

        Raises:
            ImportError: The extra for `compression` is not installed.
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        keyspace = Keyspace(prefix)
        configs.one_of(type(self), "ownership", ownership, "optional", "required")
        configs.one_of(type(self), "on_fork", on_fork, "allow", "raise")
        configs.one_of(type(self), "check_values", check_values, "never", "warn", "raise")
        self._driver = self._driver_class(
            client,
            prefix=prefix,
            cluster_timeout=cluster_timeout,
            require_primary=require_primary,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
        )
        if encryption is not None and require_encryption is False:
            raise ValueError(
                "require_encryption=False: a saver with encryption= never reads or writes a plain value. Leave it out. "
                "redis-saver migrate encrypts plain threads"
            )
        serializer = maybe_add_typed_methods(chosen(serde, strict=strict) or FastSerializer())
        self._counting = Counting()
        self._refuses_forks = on_fork == "raise"
        self._context = Context(
            serde=guarded(serializer, False if encryption else require_encryption),
            keyspace=keyspace,
            expiry=ttls.parse(ttl),
            compression=compressions.check(compression, type(self)),
            chunk_cache=ChunkCache(cache_bytes),
            limits=limits,
            keep_last=configs.parse_history(history),
            counted=self._counting.call,
            requires_owner=ownership == "required",
            refuses_forks=self._refuses_forks,
            check_values=None if check_values == "never" else ValueCheck(raises=check_values == "raise"),
            data_keys=None if encryption is None else DataKeys(encryption, keyspace.prefix, "thread"),
        )
        super().__init__()

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer. LangGraph may assign another one."""
        return unguarded(self._context.serde)

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        self._context = self._context._replace(serde=replaced(self._context.serde, serde))

    # -- operations, as `Interface` calls them

    _get_tuple_gen = as_keyed_method(reading.get_tuple)
    _put_gen = as_keyed_method(writing.put, creates=True)
    _put_writes_gen = as_keyed_method(writing.put_writes, creates=True)
    _get_delta_channel_history_gen = as_keyed_method(delta.get_delta_channel_history)
    _new_thread_gen = as_method(threads.new_thread)
    _delete_thread_gen = as_method(threads.delete_thread)
    _delete_for_runs_gen = as_method(pruning.delete_for_runs)
    _copy_thread_gen = as_method(copying.copy_thread)
    _prune_gen = as_method(pruning.prune)
    _stream_threads_gen = as_method(threads.stream_threads)
    _get_thread_gen = as_method(threads.get_thread)
    _get_ttl_gen = as_method(threads.get_ttl)
    _check_gen = as_method(checking.check)
    _expire_gen = as_method(threads.expire)
    _take = as_method(take)

    def _list_checkpoints_gen(self, *arguments: Any) -> Stream[CheckpointTuple]:
        return listing.list_checkpoints(self._context, listing.query(*arguments))

    def __repr__(self) -> str:
        """Return the class, the server without its login, the prefix and the TTL."""
        amount = self._context.expiry.milliseconds
        ttl = "none" if amount is None else times.shown(timedelta(milliseconds=amount))
        return f"{type(self).__name__}({self._driver.server}, prefix={shown(self._context.keyspace.prefix)}, ttl={ttl})"

    async def asetup(self) -> None:
        """Check the server's version, and try what the scripts rely on.

        The trial uses two keys of its own for an instant. It skips what a replica or a user who only reads may not do.
        May be called any number of times. Cost: one round trip more than the version.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2, or something does not work. The message names
                it and the remedy.
        """
        await self._driver.acheck_version()
        await self._driver.arun(probe.check(self._driver.prefix))

    def stats(self) -> Stats:
        """Return a copy of this process's counters. Nothing is sent."""
        return stats_of(Stats, self._counting, *self._measured().sources)

    def _measured(self) -> Measured:
        context, driver = self._context, self._driver
        sources: list[Any] = [driver.traffic, context.chunk_cache]
        sources += skip_counts(context.data_keys)
        return Measured(self._counting, driver.server, "checkpoints", tuple(sources), context.keyspace.thread_of_key)

    # -- queries. A saver over two tiers offers them on its `hot`, at the same cost.

    def writes(self, thread_id: str, *, checkpoint_ns: str | None = None) -> Iterator[WriteInfo]:
        """List the writes of a thread with task, node, channel and size, those of the newest checkpoint first.

        Pending writes name the task and the node. They may be gone, because of a prune or `durability="exit"`. Then a
        write is inferred from the channel's version, and its node from `versions_seen`. `WriteInfo` tells these apart.
        Writes before a checkpoint without a parent are unknown and not listed. A prune, `durability="exit"` and
        `update_state` can make such checkpoints.

        Cost: a round trip for 50 checkpoints, and one for every ten with tasks that a `Send` started. The server sends
        headers and the values with each such `Send`, but no others. Memory holds one page, and a header for each branch
        of the history.

        Args:
            thread_id: The thread. A missing thread has no writes.
            checkpoint_ns: One namespace, empty for the root; None: all.

        Raises:
            ThreadDamaged: A part of the thread is gone or unreadable. Raised by the iterator.
        """
        return self._stream(self._writes(thread_id, checkpoint_ns), "writes")

    def awrites(self, thread_id: str, *, checkpoint_ns: str | None = None) -> AsyncIterator[WriteInfo]:
        """`writes` for asyncio."""
        return self._astream(self._writes(thread_id, checkpoint_ns), "writes")

    def _writes(self, thread_id: str, ns: str | None) -> Generator[Any, Any, None]:
        ns = None if ns is None else configs.name(ns, "checkpoint_ns")
        return auditing.writes(self._context, configs.name(thread_id, "thread_id"), ns)

    def channel_history(self, thread_id: str, channel: str, *, checkpoint_ns: str = "") -> Iterator[VersionInfo]:
        """List the versions of a channel, newest first, with their time, writes, size and shared bytes.

        Cost: a round trip for 20 checkpoints. The server sends headers, sizes and lists of chunks, but no values.
        Memory holds one page and, for each branch of the history, a header with the names of the value's chunks.

        Args:
            thread_id: The thread. A missing thread has no versions.
            channel: The channel.
            checkpoint_ns: The namespace, empty for the root.

        Raises:
            ThreadDamaged: A part of the thread is gone or unreadable. Raised by the iterator.
        """
        return self._stream(self._history(thread_id, channel, checkpoint_ns), "channel_history")

    def achannel_history(self, thread_id: str, channel: str, *, checkpoint_ns: str = "") -> AsyncIterator[VersionInfo]:
        """`channel_history` for asyncio."""
        return self._astream(self._history(thread_id, channel, checkpoint_ns), "channel_history")

    def _history(self, thread_id: str, channel: str, ns: str) -> Generator[Any, Any, None]:
        names = configs.name(channel, "channel"), configs.name(ns, "checkpoint_ns")
        return auditing.channel_history(self._context, configs.name(thread_id, "thread_id"), *names)

    def latest_values(
        self,
        channel: str,
        *,
        thread_ids: Iterable[str] | None = None,
        thread_prefix: str | None = None,
        checkpoint_ns: str = "",
    ) -> Iterator[ChannelValue]:
        """Read one channel of the newest checkpoint of many threads, and no other data.

        Threads without a value in that channel are left out. A `DeltaChannel` has a stored value only if the newest
        checkpoint is a snapshot. Else the result has no value, and `ChannelValue.stored` is False, because a saver does
        not know the channel's reducer.

        Cost: a round trip for each batch of threads; on a cluster, one for each node. The first batch has ten threads.
        Each later one has about 4 MB of values, estimated from those before, and 1 to 200 threads. One batch is in
        memory at a time. A prefix also costs a SCAN of all keys of the server, which may return a thread twice, as in
        `threads()`.

        Args:
            channel: The channel.
            thread_ids: These threads, in this order.
            thread_prefix: All threads whose names begin with this, in any order; `""`: all.
            checkpoint_ns: The namespace, empty for the root.

        Raises:
            TypeError, ValueError: Threads and a prefix are both given, or both missing. Raised by the call itself.
            ThreadDamaged: A thread cannot be read. Raised by the iterator. The message names the thread.
            KeyUnavailable: The key of a thread was destroyed. Unless it is the only one in `thread_ids`, it may be
                skipped (`Encryption.on_unavailable`).
        """
        return self._stream(self._latest(channel, thread_ids, thread_prefix, checkpoint_ns), "latest_values")

    def alatest_values(
        self,
        channel: str,
        *,
        thread_ids: Iterable[str] | None = None,
        thread_prefix: str | None = None,
        checkpoint_ns: str = "",
    ) -> AsyncIterator[ChannelValue]:
        """`latest_values` for asyncio."""
        return self._astream(self._latest(channel, thread_ids, thread_prefix, checkpoint_ns), "latest_values")

    def _latest(
        self, channel: str, thread_ids: Iterable[str] | None, thread_prefix: str | None, ns: str
    ) -> Generator[Any, Any, None]:
        if (thread_ids is None) == (thread_prefix is None):
            raise ValueError('latest_values: write either thread_ids=[...] or thread_prefix="..." ("" for all threads)')
        if thread_prefix is not None and not isinstance(thread_prefix, str):
            raise TypeError(f"thread_prefix={shown(thread_prefix)}: write a str")
        wanted = None if thread_ids is None else configs.names(thread_ids, "thread_id")
        names = configs.name(channel, "channel"), configs.name(ns, "checkpoint_ns")
        return auditing.latest_values(self._context, names[0], wanted, thread_prefix or "", names[1])

    def key_status(self) -> KeyStatus:
        """Count the threads that each key of `encryption` still protects. No key is needed.

        A key may be destroyed when it protects no thread, and if it still protects none `cache_seconds` later. If
        threads are also in a cold tier (`cold_backed`), ask the saver over both tiers.

        Cost: a SCAN over the server's keys and two small lookups per thread, with 500 lookups in a round trip.
        """
        return self._run(key_status(self._context), "key_status")

    async def akey_status(self) -> KeyStatus:
        """`key_status` for asyncio."""
        return await self._arun(key_status(self._context), "key_status")

    def rotate_keys(self, *, data: bool = False, before: datetime | None = None) -> Rotated:
        """Wrap the data keys of all threads by the keys that the provider now chooses, while others use the threads.

        First give all processes a provider that knows the new key and still knows the old one. A thread keeps the name
        that its key was asked for, such as its tenant's, unless `key_for` returns another one. It needs no rotation if
        the provider would choose the same key again. So a rotation that was interrupted can be run again.

        With `data=True`, after a data key was stolen, each thread is encrypted again under a new data key, and replaced
        in one step. It keeps its deadline, its settings and its owner. Another process that uses the thread meanwhile
        reads its new data key and goes on, except that an iterator such as `list` may raise `DecodeError`.

        Cost: that of `key_status`, and two questions to the provider and a round trip for each thread to rotate, and a
        third question for the first thread of each new key: before anything is replaced, that key has to unwrap it.
        With `data=True`, each thread is read and written once, in pages.

        Args:
            data: True to replace the data keys, and to encrypt all data again.
            before: With `data`, only data keys that were made before this `datetime`, which needs a time zone. To
                continue a rotation, give the time when it began. None: the present time.

        Returns:
            The number of threads, and the errors of those that could not be rotated. These may be any errors of the
            provider and of `key_for`. The other threads are rotated nevertheless.

        Raises:
            TypeError, ValueError: An argument is invalid, or the saver has no `encryption`.
        """
        return self._run(rotate_keys(self._context, data=data, before=before), "rotate_keys")

    async def arotate_keys(self, *, data: bool = False, before: datetime | None = None) -> Rotated:
        """`rotate_keys` for asyncio."""
        return await self._arun(rotate_keys(self._context, data=data, before=before), "rotate_keys")


def context_of(saver: Saver[Any]) -> Context:
    """Return a saver's context for its operations. For other modules of this package only."""
    return saver._context  # noqa: SLF001


def with_context(saver: Saver[Any], context: Context) -> Saver[Any]:
    """Return a copy of a saver with another context. For other modules of this package only."""
    made = copy(saver)
    made._context = context  # noqa: SLF001
    return made


def driver_of(saver: Saver[Any]) -> base.RedisDriver:
    """Return a saver's current driver. For other modules of this package only."""
    return saver._driver  # noqa: SLF001


class RedisSaver(Saver[base.SyncClient], base.Block):
    """Checkpoints on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so they never block the event loop. For a service on asyncio,
    `AsyncRedisSaver` needs no worker threads. Any number of OS threads may share a saver and its client. A saver also
    works in a forked child, which makes its own client with the same settings.
    """

    _driver: sync.SyncDriver
    _driver_class = sync.SyncDriver

    def setup(self) -> None:
        """Check the server's version, and try what the scripts rely on.

        The trial uses two keys of its own for an instant. It skips what a replica or a user who only reads may not do.
        May be called any number of times. Cost: one round trip more than the version.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2, or something does not work. The message names
                it and the remedy.
        """
        self._driver.check_version()
        self._driver.run(probe.check(self._driver.prefix))

    @classmethod
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[SaverSettings]
    ) -> AbstractContextManager[Self]:
        """Open a saver with its own client. The end of the `with` closes both.

            with RedisSaver.from_conn_string("redis://localhost:6379", ttl="7d") as saver:
                graph = builder.compile(checkpointer=saver)

        After the block each method raises `Closed`. A service keeps the block open for as long as it runs
        (`docs/service.md`), or makes its own client: `RedisSaver(client)`.

        Args:
            url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service`,
                `redis+cluster://host:port`, or `memory://`. Data in `memory://` are private to this process, and lost
                when it exits. `docs/connections.md` lists all forms.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 2.0}`. The URL
                may also carry them after its `?`.
            settings: The keywords of the constructor.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
        """
        return base.NeedsWith(cls, url, client_options, settings)


class AsyncRedisSaver(Saver[base.AsyncClient], base.AsyncBlock):
    """Checkpoints on plain Redis or Valkey, over an asyncio client.

    It can be built anywhere, even without a running event loop. Any number of event loops and OS threads may share it,
    before and after a fork. Its methods without an `a` work on any OS thread that runs no event loop, such as the
    worker threads of `graph.invoke`. On the OS thread of a running loop they would block the loop, so they raise
    `CalledOnEventLoop`. In a program without asyncio, use `RedisSaver`.
    """

    _driver: aio.AsyncDriver
    _driver_class = aio.AsyncDriver

    async def setup(self) -> None:
        """Do the same as `asetup`."""
        await self.asetup()

    @classmethod
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[SaverSettings]
    ) -> AbstractAsyncContextManager[Self]:
        """Open a saver with its own client. The end of the `async with` closes both.

            async with AsyncRedisSaver.from_conn_string("redis://localhost:6379", ttl="7d") as saver:
                graph = builder.compile(checkpointer=saver)

        The arguments are those of `RedisSaver.from_conn_string`.
        """
        return base.NeedsAsyncWith(cls, url, client_options, settings)
