"""A saver's settings: what its operations see of it (`context.Context`). What runs the operations is up to a subclass."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver import config as configs
from redis_saver import expiry
from redis_saver.checkpoint.interface import Interface
from redis_saver.client import clients, clusters
from redis_saver.engine import drivers, scripts
from redis_saver.engine.drivers import R
from redis_saver.engine.requests import Call, Replicated
from redis_saver.errors import ClusterMoving
from redis_saver.limits import Limits
from redis_saver.names import Keyspace
from redis_saver.serde.serializer import FastSerializer, StrictSerializer, safe
from redis_saver.storage import compression as compressions
from redis_saver.storage import encryption
from redis_saver.storage.known import CACHE_BYTES, Known


class Base(Interface):
    """The settings, and the driver as operations need it."""

    serde: SerializerProtocol = FastSerializer()
    asynchronous: ClassVar[bool]
    """Whether the client is one for asyncio."""
    failures: tuple[type[Exception], ...]
    """What the client raises when it fails, apart from what is wrong in this program."""

    def __init__(
        self,
        client: Any,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph",
        ttl: expiry.TTL = None,
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
                `JsonPlusSerializer`. With another one, values are stored whole: no version shares parts with the next. A
                `JsonPlusSerializer`, and an `EncryptedSerializer` around one, is copied, and made to bear that a graph changes a
                value in another OS thread while it is stored (`docs/changing-state.md`).
            prefix: The beginning of all keys. Savers with different prefixes see nothing of each other.
            ttl: When threads expire after their last write: a `timedelta`, or LangGraph's
                `{"default_ttl": minutes, "refresh_on_read": bool}`. None: they do not.
            compression: `"zstd"` compresses values and writes of a kilobyte and more, and the parts of long values (extra
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
        clients.check(client, asynchronous=self.asynchronous)
        configs.number("cluster_timeout", cluster_timeout, 0)
        configs.number("min_replicas", min_replicas, 0, whole=True)
        configs.number("replica_timeout", replica_timeout, 0.001)
        self.cluster_timeout = cluster_timeout
        self.require_primary = require_primary and not clients.is_cluster(client)  # a cluster's replica answers MOVED
        self.min_replicas, self.replica_timeout = min_replicas, replica_timeout
        self.failures = (
            *clients.failures_of(client),
            ClusterMoving,
        )  # valkey-py's errors are not redis-py's, which that one is
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
        self.known = Known(cache_bytes)
        self.limits = limits
        self.keyspace = Keyspace(prefix)
        self.expiry = expiry.parse(ttl)
        self._use(client)

    @abstractmethod
    def _use(self, client: Any) -> None: ...

    def _as_set(self, request: R) -> R | Replicated:
        """A request as the settings want it."""
        if self.require_primary:
            request = drivers.on_primary(request)
        if self.min_replicas and isinstance(request, Call) and request.script in scripts.ACKNOWLEDGED:
            return Replicated(request, self.min_replicas, self.replica_timeout)
        return request
