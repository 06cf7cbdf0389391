"""What `RedisSaver` and `AsyncRedisSaver` share: the settings, LangGraph's interface over one server, and what we do beyond it with threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver import config as configs
from redis_saver import ttl as ttls
from redis_saver.checkpoint import checking, listing, operations, pruning, threads
from redis_saver.checkpoint.checking import CheckReport
from redis_saver.checkpoint.interface import Interface, Operations
from redis_saver.checkpoint.pruning import Pruned
from redis_saver.checkpoint.retention import retention
from redis_saver.checkpoint.threads import ThreadInfo
from redis_saver.client import clusters
from redis_saver.client.base import RedisDriver
from redis_saver.engine.requests import Operation, Request
from redis_saver.engine.runner import DriverWrapper
from redis_saver.limits import Limits
from redis_saver.names import Keyspace
from redis_saver.serde.serializer import FastSerializer, StrictSerializer, safe
from redis_saver.storage import compression as compressions
from redis_saver.storage import encryption
from redis_saver.storage.chunk_cache import CACHE_BYTES, ChunkCache
from redis_saver.ttl import TTL


class Saver(Interface):
    """A saver on one Redis or Valkey. Every method has a twin with an `a` in front, for asyncio."""

    serde: SerializerProtocol = FastSerializer()
    driver: RedisDriver | DriverWrapper[Request]
    """What talks to the server."""
    _driver_class: ClassVar[type[Any]]
    _operations: ClassVar[Operations] = operations

    def __init__(
        self,
        client: Any,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: ttls.TTL = None,
        compression: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        require_encryption: bool | None = None,
        strict: bool = False,
        cluster_timeout: float = clusters.CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
    ) -> None:
        """Use a client, which stays the caller's: it is not closed here.

        Args:
            client: A `redis.Redis` (a Sentinel's `master_for` too), a `redis.RedisCluster`, or valkey-py's twins; for an
                `AsyncRedisSaver` those of `redis.asyncio`. With `decode_responses=True` too.
            serde: Turns values into bytes; by default `FastSerializer`, which gives the bytes of LangGraph's
                `JsonPlusSerializer`. With another one, values are stored whole: no version shares chunks with the next. A
                `JsonPlusSerializer`, and an `EncryptedSerializer` around one, is copied, and made to bear that a graph changes a
                value in another OS thread while it is stored (`docs/changing-state.md`).
            prefix: The beginning of all keys. Savers with different prefixes see nothing of each other.
            ttl: When threads expire after their last write: a `timedelta`, or LangGraph's
                `{"default_ttl": minutes, "refresh_on_read": bool}`. None: they do not.
            compression: `"zstd"` compresses values and writes of a kilobyte and more, and the chunks of long values (extra
                `zstd`). Every saver reads them, whatever its own setting.
            cache_bytes: How much of the last values it wrote or read a saver may remember, so that neither is sent again
                what it knows to be the same. 0: nothing.
            limits: How large names, values and numbers of things may be; more raises `LimitExceeded`.
            require_encryption: Whether a value that is not encrypted is refused, on reading (`PlainValueRefused`, before it is decoded) and
                on writing. None: where `serde` is an `EncryptedSerializer`. False is for the time in which threads that were written
                plain are still read.
            strict: Decode with a `StrictSerializer`: no class is imported or called but those that LangGraph calls safe, and those
                given to `with_allowlist`. False: as LangGraph does, whoever can write to Redis can have code run
                (`docs/security.md`).
            cluster_timeout: Seconds that a request to a cluster is repeated while its slot moves or its primary is replaced, before
                `ClusterMoving` is raised. No try begins later; one takes as long as the client lets it (`docs/high-availability.md`).
            require_primary: Whether reading from a server that is a replica, or was made one, raises the client's `ReadOnlyError`, as writing does in any
                case. Where sentinels name the primary, the client then asks them anew. No round trip; nodes of a cluster refuse that by themselves.
            min_replicas: How many replicas must have what is written before that is acknowledged (WAIT, in the same round trip): checkpoints, pending
                writes, deletions of threads, copies, TTLs. 0: none. `docs/high-availability.md` says how many.
            replica_timeout: Seconds that they may take, before the write raises `ReplicationTimeout`; less than the client's `socket_timeout`.

        Raises:
            ImportError: `compression` without its extra.
            TypeError, ValueError: An argument makes no sense; the message says which and why.
        """
        self.keyspace = Keyspace(prefix)
        self.driver = self._driver_class(
            client,
            prefix=prefix,
            cluster_timeout=cluster_timeout,
            require_primary=require_primary,
            min_replicas=min_replicas,
            replica_timeout=replica_timeout,
        )
        if strict:
            if serde is not None:
                raise ValueError(
                    f"strict=True chooses the serializer, and serde={serde!r} was given, too: leave one out. To encrypt strictly, pass "
                    "serde=EncryptedSerializer.from_pycryptodome_aes(redis_saver.serde.serializer.StrictSerializer())"
                )
            serde = StrictSerializer()
        super().__init__(serde=None if serde is None else safe(serde))
        self.require_encryption = encryption.check(require_encryption, self.serde)
        self.compression = compressions.check(compression)
        self.chunk_cache = ChunkCache(cache_bytes)
        self.limits = limits
        self.expiry = ttls.parse(ttl)

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self.driver.check_version()

    async def asetup(self) -> None:
        """`setup` for asyncio."""
        await self.driver.acheck_version()

    # -- threads

    def prune(  # type: ignore[override]  # the base class returns nothing, which is all its callers rely on
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove old checkpoints of some threads, with their writes and with the values nothing refers to any more.

        What is kept is what `PostgresSaver.prune` (3.2) keeps. The namespace of a subgraph's call goes with the root checkpoint that the
        call started from: so calls that are finished go, and the call that an interrupt waits in stays. The namespace of a subgraph with
        `checkpointer=True` is kept like the root's. A kept checkpoint whose parent goes has no parent (`parent_config` is None).

        What is kept stays whole: its values, its pending writes, and the ancestors a `DeltaChannel` is rebuilt from, which stay in the list.

        Args:
            thread_ids: The threads. Those that do not exist, and an empty list, change nothing.
            strategy: `"keep_latest"` keeps the newest checkpoint of each namespace; `"delete"` removes the threads
                (`"delete_all"` too, which is what LangGraph's Agent Server says).
            keep_last: Keep this many of each namespace instead of one.
            older_than: Remove only what is older (by the checkpoint's `ts`); the newest of a namespace stays in any case.
            dry_run: Remove nothing, and return what would be removed.

        Returns:
            How many checkpoints, writes, values (blobs) and bytes were removed, over all threads. Too low where the client
            had to send a step again after a lost reply.

        Raises:
            ValueError: An unknown strategy, or arguments that contradict each other. Nothing was removed.
            ThreadBusy: A thread was written to during each of many attempts; what was removed so far is whole checkpoints.
        """
        kept = retention(strategy, keep_last, older_than)
        return self._run(pruning.prune(self, configs.names(thread_ids, "thread_id"), kept, dry_run))

    async def aprune(  # type: ignore[override]  # as prune
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """`prune` for asyncio."""
        kept = retention(strategy, keep_last, older_than)
        return await self._arun(pruning.prune(self, configs.names(thread_ids, "thread_id"), kept, dry_run))

    def threads(self, prefix: str = "") -> Iterator[ThreadInfo]:
        """The threads there are, in no order, found with SCAN while the iterator is drawn from.

        Holds one page of SCAN in memory. As SCAN may, it can name a thread twice while the server resizes its tables.

        Args:
            prefix: Only threads whose name begins so.

        Raises:
            ThreadDamaged, KeyConflict: A thread cannot be read, while iterating; the message names it.
        """
        return self._stream(threads.describe(self, listing.scan_threads(self), prefix))

    def athreads(self, prefix: str = "") -> AsyncIterator[ThreadInfo]:
        """`threads` for asyncio."""
        return self._astream(threads.describe(self, listing.scan_threads(self), prefix))

    def get_thread(self, thread_id: str) -> ThreadInfo | None:
        """One thread, as `threads()` tells of it, in one round trip; None where there is no such thread."""
        return self._run(threads.get_thread(self, configs.name(thread_id, "thread_id")))

    async def aget_thread(self, thread_id: str) -> ThreadInfo | None:
        """`get_thread` for asyncio."""
        return await self._arun(threads.get_thread(self, configs.name(thread_id, "thread_id")))

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
            ThreadBusy: Something seemed to be wrong in each of some attempts, and the thread was written to during each.
        """
        return self._run(checking.check(self, configs.name(thread_id, "thread_id"), values=values))

    async def acheck(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """`check` for asyncio."""
        return await self._arun(checking.check(self, configs.name(thread_id, "thread_id"), values=values))

    # -- when a thread expires

    def get_thread_ttl(self, thread_id: str) -> timedelta | None:
        """The time a thread has left; None where it does not expire.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        return self._run(threads.expire(self, configs.name(thread_id, "thread_id"), "get"))

    async def aget_thread_ttl(self, thread_id: str) -> timedelta | None:
        """`get_thread_ttl` for asyncio."""
        return await self._arun(threads.expire(self, configs.name(thread_id, "thread_id"), "get"))

    def set_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """Give a thread a TTL of its own: it expires so long after now, and after each write from now on. Ends a pin.

        Args:
            thread_id: The thread.
            ttl: A `timedelta` or `{"default_ttl": minutes}`; None goes back to the saver's TTL.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        return self._run(self._set_thread_ttl(thread_id, ttl))

    async def aset_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """`set_thread_ttl` for asyncio."""
        return await self._arun(self._set_thread_ttl(thread_id, ttl))

    def _set_thread_ttl(self, thread_id: str, ttl: TTL) -> Operation[None]:
        own = ttls.parse(ttl, refresh_allowed=False).milliseconds
        yield from threads.expire(self, configs.name(thread_id, "thread_id"), "clear" if own is None else "set", own)

    def pin(self, thread_id: str) -> None:
        """Keep a thread until `unpin`, whatever TTL its saver, or a later `configurable["thread_ttl"]`, has.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(threads.expire(self, configs.name(thread_id, "thread_id"), "pin"))

    async def apin(self, thread_id: str) -> None:
        """`pin` for asyncio."""
        await self._arun(threads.expire(self, configs.name(thread_id, "thread_id"), "pin"))

    def unpin(self, thread_id: str) -> None:
        """End a pin: the saver's TTL counts from now; without one the thread stays. Not pinned: nothing happens.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(threads.expire(self, configs.name(thread_id, "thread_id"), "unpin"))

    async def aunpin(self, thread_id: str) -> None:
        """`unpin` for asyncio."""
        await self._arun(threads.expire(self, configs.name(thread_id, "thread_id"), "unpin"))
