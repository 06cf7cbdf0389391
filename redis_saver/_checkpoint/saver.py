"""What `RedisSaver` and `AsyncRedisSaver` share: the settings, LangGraph's interface over one server, and what we do beyond it with threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import Self, TypedDict, Unpack

from redis_saver._checkpoint import (
    auditing,
    checking,
    copying,
    delta,
    latest,
    listing,
    pruning,
    reading,
    threads,
    writing,
)
from redis_saver._checkpoint.auditing import VersionInfo, WriteInfo
from redis_saver._checkpoint.checking import CheckReport
from redis_saver._checkpoint.interface import Interface
from redis_saver._checkpoint.latest import ChannelValue
from redis_saver._checkpoint.ownership import Record, Terms, take
from redis_saver._checkpoint.pruning import Pruned
from redis_saver._checkpoint.retention import Retention
from redis_saver._checkpoint.threads import ThreadInfo, ThreadQuery
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
from redis_saver._common import config as configs
from redis_saver._common import keywords, times
from redis_saver._common import ttl as ttls
from redis_saver._common.config import History
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._common.ttl import TTL
from redis_saver._engine.requests import Operation, Request, Stream
from redis_saver._engine.runner import Driver, DriverWrapper
from redis_saver._engine.stats import Counting, Measured, RedisStats
from redis_saver._serde.serializer import FastSerializer, chosen
from redis_saver._storage import compression as compressions
from redis_saver._storage import encryption
from redis_saver._storage.chunk_cache import CACHE_BYTES, ChunkCache
from redis_saver._storage.compression import Compression
from redis_saver._storage.context import Context


class QueryInterface(Interface[ThreadInfo]):
    """What savers on one server share. A saver over two tiers has these questions on its `hot`, where they cost what the docstrings say."""

    @keywords.checked
    def writes(self, thread_id: str, *, checkpoint_ns: str | None = None) -> Iterator[WriteInfo]:
        """Which task of which node wrote which channel, and how large: those that began from the newest checkpoint first.

        What pending writes say is known. Where they are gone (pruned, or run with `durability="exit"`), a write is inferred from the channel's
        version, and the node from `versions_seen`: `WriteInfo` says which is which. What led to a checkpoint without
        a parent (it was pruned, or the thread began with `durability="exit"` or `update_state`) is not known, and left out.

        Cost: a round trip for 50 checkpoints, and one for every ten whose tasks were started by a `Send`. The server sends headers and each such `Send`, and no
        other values. Memory holds a page, and a header for each branch of the history.

        Args:
            thread_id: The thread. One that is not there has no writes.
            checkpoint_ns: One namespace, empty for the root; None: all.

        Raises:
            ThreadDamaged: A part of the thread is gone or unreadable, while iterating.
        """
        return self._stream(self._writes(thread_id, checkpoint_ns), "writes")

    @keywords.checked
    def awrites(self, thread_id: str, *, checkpoint_ns: str | None = None) -> AsyncIterator[WriteInfo]:
        """`writes` for asyncio."""
        return self._astream(self._writes(thread_id, checkpoint_ns), "writes")

    def _writes(self, thread_id: str, ns: str | None) -> Generator[Any, Any, None]:
        ns = None if ns is None else configs.name(ns, "checkpoint_ns")
        return auditing.writes(self._context, configs.name(thread_id, "thread_id"), ns)

    @keywords.checked
    def channel_history(self, thread_id: str, channel: str, *, checkpoint_ns: str = "") -> Iterator[VersionInfo]:
        """The versions of a channel, newest first: when, by which writes, how many bytes, and how many of them it shares with the version before.

        Cost: a round trip for 20 checkpoints. Headers, sizes and lists of chunks are sent, no values. In memory are a page,
        and for each branch of the history a header with the names of the value's chunks.

        Args:
            thread_id: The thread. One that is not there has no versions.
            channel: The channel.
            checkpoint_ns: The namespace; empty for the root.

        Raises:
            ThreadDamaged: A part of the thread is gone or unreadable, while iterating.
        """
        return self._stream(self._history(thread_id, channel, checkpoint_ns), "channel_history")

    @keywords.checked
    def achannel_history(self, thread_id: str, channel: str, *, checkpoint_ns: str = "") -> AsyncIterator[VersionInfo]:
        """`channel_history` for asyncio."""
        return self._astream(self._history(thread_id, channel, checkpoint_ns), "channel_history")

    def _history(self, thread_id: str, channel: str, ns: str) -> Generator[Any, Any, None]:
        names = configs.name(channel, "channel"), configs.name(ns, "checkpoint_ns")
        return auditing.channel_history(self._context, configs.name(thread_id, "thread_id"), *names)

    @keywords.checked
    def latest_values(
        self,
        channel: str,
        *,
        thread_ids: Iterable[str] | None = None,
        thread_prefix: str | None = None,
        checkpoint_ns: str = "",
    ) -> Iterator[ChannelValue]:
        """One channel of the newest checkpoint of many threads; nothing else of them is read.

        Threads without a value in that channel are left out. A `DeltaChannel` has one stored where the newest checkpoint is a snapshot; else it is
        answered without its value, and `ChannelValue.stored` is False: a saver does not know the channel's reducer.

        Cost: a round trip for some threads (on a cluster one for each node), ten at first, then as many as have about 4 MB of values by those that
        were read before, one at least and 200 at the most. These are in memory at once. With a prefix also a look at all keys of the server, which may
        name a thread twice, as `threads()`.

        Args:
            channel: The channel.
            thread_ids: These threads, in this order.
            thread_prefix: All threads whose names begin so, in no order; `""`: all.
            checkpoint_ns: The namespace; empty for the root.

        Raises:
            TypeError, ValueError: Neither threads nor a prefix are given, or both. Raised by the call itself.
            ThreadDamaged: A thread cannot be read, while iterating; the message names it.
        """
        return self._stream(self._latest(channel, thread_ids, thread_prefix, checkpoint_ns), "latest_values")

    @keywords.checked
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
        return latest.latest_values(self._context, names[0], wanted, thread_prefix or "", names[1])


OwnershipRule: TypeAlias = Literal["optional", "required"]
OnFork: TypeAlias = Literal["allow", "raise"]


class SaverSettings(TypedDict, total=False):
    """The settings of a saver, for `from_conn_string`. The constructor of `Saver` explains them."""

    serde: SerializerProtocol | None
    prefix: str
    ttl: TTL
    history: History
    compression: Compression | None
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


ClientT = TypeVar("ClientT", SyncClient, AsyncClient)


class Saver(QueryInterface, Generic[ClientT]):
    """A saver on one Redis or Valkey. Every method also has a form with an `a` in front, for asyncio."""

    serde: SerializerProtocol = FastSerializer()
    _driver: RedisDriver | DriverWrapper[Request]
    _driver_class: ClassVar[type[Any]]

    @keywords.checked
    def __init__(
        self,
        client: ClientT,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: TTL = None,
        history: History = "all",
        compression: Compression | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
        ownership: OwnershipRule = "optional",
        on_fork: OnFork = "allow",
    ) -> None:
        """Use a client of yours. The saver does not close it.

        Args:
            client: `RedisSaver` takes a `redis.Redis` (also a Sentinel's `master_for`), a `redis.RedisCluster`, or valkey-py's clients.
                `AsyncRedisSaver` takes those of `redis.asyncio`. `decode_responses=True` is fine.
            serde: The serializer. Default: `FastSerializer`, which writes the bytes of LangGraph's `JsonPlusSerializer`. With another one,
                values are stored whole: versions share no chunks. A `JsonPlusSerializer`, and an `EncryptedSerializer` around one, is
                copied, and the copy bears values that other OS threads change meanwhile (`docs/changing-state.md`).
            prefix: The beginning of all keys. Savers with different prefixes see nothing of each other.
            ttl: How long after its last write a thread expires: a `timedelta`, a text such as `"7d"` or `"90m"`, or LangGraph's
                `{"default_ttl": minutes, "refresh_on_read": bool}`. None: threads do not expire.
            history: How much a thread keeps of its history, as it is written: `"all"`, or `{"keep_last": n}`, the newest `n` checkpoints of each
                namespace (1 to 1,000). Once there are half as many more, at least 32 more, a put is followed by a
                `prune` of the thread (`docs/threads.md`). A thread's own `thread_history` counts first.
            compression: `"zstd"` compresses chunks, and values and writes of a kilobyte and more (extra `zstd`). Every saver reads them,
                whatever its own setting.
            cache_bytes: Memory for the last long values that this saver wrote or read, in bytes. What is remembered is not sent again,
                in either direction. 0: remember nothing.
            limits: The longest names, the largest values, the most channels and writes. More raises `LimitExceeded`.
            require_encryption: Refuse values that are not encrypted: reading one raises `PlainValueRefused` before it is decoded. None:
                yes, where `serde` is an `EncryptedSerializer`. Set False while threads that were written plain are still read.
            strict: Decode with a `StrictSerializer`: it makes objects only of classes that LangGraph calls safe, and of those given to
                `with_allowlist`. False: as with LangGraph's serializer, whoever can write to Redis can run code here
                (`docs/security.md`).
            cluster_timeout: Seconds for which a request to a cluster is repeated, at least once, while its slot moves or its primary is
                replaced. Then it raises `ClusterMoving`. 0 repeats nothing. The last try may take as long as the client's timeouts allow
                (`docs/high-availability.md`).
            require_primary: Reads from a server that is a replica raise the client's `ReadOnlyError`, as writes do in any case. Costs no
                round trip. (A cluster's replicas redirect by themselves.)
            min_replicas: How many replicas must have a write before it is acknowledged (WAIT, in the same round trip): checkpoints,
                pending writes, deletions of threads, copies, TTLs. `docs/high-availability.md` says how many to choose.
            replica_timeout: Seconds to wait for them. Then the write raises `ReplicationTimeout`. Keep it below the client's
                `socket_timeout`.
            ownership: What becomes of writes without a token while somebody owns the thread (`own`): `"optional"`: they are let through.
                `"required"`: they raise `NotOwner`, also deletions and prunes.
            on_fork: `"raise"`: a run's checkpoint is refused (`StaleParent`) if its parent is not the newest of its namespace any more, because
                another run wrote it meanwhile. What forks on purpose goes through: `update_state`, a run with an explicit `checkpoint_id`,
                `copy_thread`. `"allow"`: as with LangGraph's savers, the chain forks.

        Raises:
            ImportError: `compression` without its extra.
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        keyspace = Keyspace(prefix)
        configs.one_of(type(self), "ownership", ownership, "optional", "required")
        configs.one_of(type(self), "on_fork", on_fork, "allow", "raise")
        self._driver = self._driver_class(
            client,
            prefix=prefix,
            cluster_timeout=cluster_timeout,
            require_primary=require_primary,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
        )
        super().__init__(serde=chosen(serde, strict=strict))
        self._counting = Counting()
        self._current = Context(
            serde=self.serde,
            keyspace=keyspace,
            expiry=ttls.parse(ttl),
            compression=compressions.check(compression, type(self)),
            require_encryption=encryption.check(require_encryption, self.serde),
            chunk_cache=ChunkCache(cache_bytes),
            limits=limits,
            keep_last=configs.parse_history(history),
            counted=self._counting.call,
            requires_owner=ownership == "required",
            refuses_forks=on_fork == "raise",
        )

    @property
    def _context(self) -> Context:
        """The saver as its operations see it; with the serializer it has now, as LangGraph assigns others (`with_allowlist`)."""
        if self._current.serde is not self.serde:
            self._current = self._current._replace(serde=self.serde)
        return self._current

    @property
    def _rules(self) -> Context:
        return self._current

    @property
    def _owner_driver(self) -> Driver[Any]:
        return self._driver

    def _take(self, terms: Terms, nonce: str) -> Operation[Record]:
        return take(self._current, terms, nonce)

    # -- operations, as `Interface` calls them

    def _get_tuple_gen(self, config: RunnableConfig) -> Operation[CheckpointTuple | None]:
        return reading.get_tuple(self._context, config)

    def _put_gen(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Operation[RunnableConfig]:
        return writing.put(self._context, config, checkpoint, metadata, new_versions)

    def _put_writes_gen(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Operation[None]:
        return writing.put_writes(self._context, config, writes, task_id, task_path)

    def _list_checkpoints_gen(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Stream[CheckpointTuple]:
        return listing.list_checkpoints(self._context, listing.query(config, filter, before, limit))

    def _get_delta_channel_history_gen(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Operation[Mapping[str, DeltaChannelHistory]]:
        return delta.get_delta_channel_history(self._context, config, channels)

    def _delete_thread_gen(self, thread_id: str) -> Operation[None]:
        return threads.delete_thread(self._context, thread_id)

    def _delete_for_runs_gen(self, run_ids: Sequence[str]) -> Operation[None]:
        return pruning.delete_for_runs(self._context, run_ids)

    def _copy_thread_gen(self, source: str, target: str) -> Operation[None]:
        return copying.copy_thread(self._context, source, target)

    def _prune_gen(self, thread_ids: Sequence[str], retention: Retention | None, dry_run: bool) -> Operation[Pruned]:
        return pruning.prune(self._context, thread_ids, retention, dry_run)

    def _stream_threads_gen(self, query: ThreadQuery) -> Stream[ThreadInfo]:
        return threads.stream_threads(self._context, query)

    def _get_thread_gen(self, thread_id: str) -> Operation[ThreadInfo | None]:
        return threads.get_thread(self._context, thread_id)

    def _get_ttl_gen(self, thread_id: str) -> Operation[timedelta | None]:
        return threads.get_ttl(self._context, thread_id)

    def _expire_gen(self, thread_id: str, verb: str, ttl: int | None = None) -> Operation[None]:
        return threads.expire(self._context, thread_id, verb, ttl)

    def __repr__(self) -> str:
        """The class, the server without its login, the prefix and the TTL."""
        amount = self._current.expiry.milliseconds
        ttl = "none" if amount is None else times.shown(timedelta(milliseconds=amount))
        return f"{type(self).__name__}({self._driver.server}, prefix={shown(self._current.keyspace.prefix)}, ttl={ttl})"

    async def asetup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        await self._driver.acheck_version()

    def stats(self) -> RedisStats:
        """A copy of what was counted so far, in this process. Nothing is sent."""
        traffic, remembered = self._driver.traffic.numbers(), self._current.chunk_cache.numbers()
        return RedisStats(self._counting.snapshot(), **traffic, **remembered)

    def _measured(self) -> Measured:
        context, driver = self._current, self._driver
        sources = driver.traffic, context.chunk_cache
        return Measured(self._counting, driver.server, "checkpoints", sources, context.keyspace.thread_of_key)

    def check(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """Look whether a thread is whole: headers, digests, references, deadlines and counters. Nothing is written.

        Cost: all of the thread is read once, in pages of about half a megabyte (a longer value is a page by itself), and once more what is in chunks.
        Names and links are held in memory, and one value at a time.

        Args:
            thread_id: The thread.
            values: Whether values, writes and metadata are decoded, too, as a reader does. False: no serializer is needed, and
                what is stored in chunks is read once.

        Returns:
            What was seen; `findings` names what is wrong, where, and how it is repaired.

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
        """
        return self._run(checking.check(self._context, configs.name(thread_id, "thread_id"), values=values))

    async def acheck(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """`check` for asyncio."""
        return await self._arun(checking.check(self._context, configs.name(thread_id, "thread_id"), values=values))


def context_of(saver: Saver[Any]) -> Context:
    """What operations are given of a saver: for packages that run more of them. It is private to users."""
    return saver._context  # noqa: SLF001


def driver_of(saver: Saver[Any]) -> RedisDriver | DriverWrapper[Request]:
    """What runs a saver's operations at this moment, for the same packages."""
    return saver._driver  # noqa: SLF001


class RedisSaver(Saver[SyncClient], Block):  # type: ignore[misc]  # as `Interface`
    """Checkpoints on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so the event loop is never blocked. For a service on asyncio, `AsyncRedisSaver` does without
    these. Any number of OS threads may share a saver, as they may share its client. It works before and after a fork: the child makes a
    client of its own, with the same settings.
    """

    _driver: SyncDriver | DriverWrapper[Request]
    _driver_class = SyncDriver

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self._driver.check_version()

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[SaverSettings]
    ) -> AbstractContextManager[Self]:
        """Open a saver with a client of its own. The end of the `with` closes both.

            with RedisSaver.from_conn_string("redis://localhost:6379", ttl="7d") as saver:
                graph = builder.compile(checkpointer=saver)

        After the block each method raises `Closed`. A service keeps the block open for as long as it runs
        (`docs/service.md`), or makes a client of its own: `RedisSaver(client)`.

        Args:
            url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service`,
                `redis+cluster://host:port`, or `memory://`, whose data only this process has and loses when it exits
                (`docs/connections.md` has all forms).
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 2.0}`. They may
                also stand after the `?` of the URL.
            settings: The keywords of the constructor.

        Raises:
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        return NeedsWith(cls, url, client_options, settings)


class AsyncRedisSaver(Saver[AsyncClient], AsyncBlock):  # type: ignore[misc]  # as `Interface`
    """Checkpoints on plain Redis or Valkey, over an asyncio client.

    Build it anywhere, also where no event loop runs. Any number of event loops and OS threads may share it, before and after a fork. Its
    methods without an `a` work on any OS thread that runs no event loop, such as the worker threads of `graph.invoke`. On the OS thread of a
    running loop they would block that loop, and raise `CalledOnEventLoop`. A program without asyncio does better with `RedisSaver`.
    """

    _driver: AsyncDriver | DriverWrapper[Request]
    _driver_class = AsyncDriver

    async def setup(self) -> None:
        """The same as `asetup`, so await it."""
        await self.asetup()

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[SaverSettings]
    ) -> AbstractAsyncContextManager[Self]:
        """Open a saver with a client of its own. The end of the `async with` closes both.

            async with AsyncRedisSaver.from_conn_string("redis://localhost:6379", ttl="7d") as saver:
                graph = builder.compile(checkpointer=saver)

        The arguments are those of `RedisSaver.from_conn_string`.
        """
        return NeedsAsyncWith(cls, url, client_options, settings)
