"""Shared parts of savers, stores and caches: types of clients, settings of a driver, and `with` blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from typing_extensions import Self

from redis_saver._client import clients
from redis_saver._client.link import Rules
from redis_saver._common import config as configs
from redis_saver._common.display import kind_of
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.counting import Traffic
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import Driver
from redis_saver.errors import ClusterMoving, closed

CLUSTER_TIMEOUT = 20.0
"""Default seconds for which requests to a cluster are retried.

A failover takes one or two seconds more than `cluster-node-timeout`, which is 15 seconds by default.
"""
T = TypeVar("T")
_ONCE = ThrottledLog("redis_saver.client", only_once=True)


class SyncClient(Protocol):
    """A blocking client: `redis.Redis`, `redis.RedisCluster`, a Sentinel's `master_for`, valkey-py's, fakeredis's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""

    def __enter__(self) -> Any:
        """Distinguish it from an asyncio client for type checkers."""


class AsyncClient(Protocol):
    """An asyncio client: `redis.asyncio.Redis`, `RedisCluster`, a Sentinel's `master_for`, valkey-py's, fakeredis's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""

    def aclose(self) -> Awaitable[None]:
        """Distinguish it from a blocking client for type checkers."""


class RedisDriver(Driver[Request]):
    """Driver for one Redis or Valkey server or cluster."""

    is_async: ClassVar[bool]
    """True for an asyncio client."""

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "langgraph",
        cluster_timeout: float = CLUSTER_TIMEOUT,
        require_primary: bool = False,
        min_replicas: int = 0,
        replica_timeout: float = 1.0,
        taker: str = "Saver",
        repeats_late: bool = True,
    ) -> None:
        """Use a client. The caller closes it.

        Args:
            client: A client of redis-py or valkey-py.
            prefix: Beginning of all keys.
            cluster_timeout: Seconds for which a request to a cluster is retried while its slot moves. Then it raises
                `ClusterMoving`.
            require_primary: True to raise an error if the server is a replica.
            min_replicas: Number of replicas that must confirm a write.
            replica_timeout: Seconds to wait for the replicas. Then the write raises `ReplicationTimeout`.
            taker: Owner of the driver, for messages: `Saver`, `Store` or `Cache`.
            repeats_late: True to send each request of a pipeline that timed out again, alone. False to let all fail.

        Raises:
            TypeError, ValueError: An argument is invalid. The message names it, and says why.
        """
        clients.check(client, asynchronous=self.is_async, taker=taker)
        configs.number("cluster_timeout", cluster_timeout, 0)
        configs.number("min_replicas", min_replicas, 0, whole=True)
        configs.number("replica_timeout", replica_timeout, 0.001)
        self.prefix: str = prefix
        """Beginning of all keys."""
        self.server: str = clients.described(client)
        """URL of the server for messages, without login and options."""
        self._what, self._is_closed = f"the {taker.lower()} on {self.server}", False
        if taker != "Cache" and (missing := clients.missing_retry(client)):  # a cache is skipped if its server fails
            _ONCE.warning(
                "%s: its client retries nothing, so a lost reply raises. Calls may be sent again: give %s where the "
                "connections are made (%s, from_url, the pool, master_for)",
                self._what, missing, type(client).__name__,
            )  # fmt: skip
        self.traffic: Traffic = Traffic()
        """Counts of requests, retries and bytes in this process."""
        is_guarded = require_primary and not clients.is_cluster(client)  # a cluster's replica answers MOVED
        guard = ("UNLINK", f"{prefix}:primary") if is_guarded else None
        self._rules = Rules(self.traffic, cluster_timeout, guard, min_replicas, replica_timeout, repeats_late)
        self.failures: tuple[type[Exception], ...] = (*clients.failures_of(client), ClusterMoving)
        """Errors if the server or the network fails. `ClusterMoving` is not an error of valkey-py, so it is added."""

    def check_open(self) -> None:
        """Raise `Closed` if the driver was closed in this process."""
        if self._is_closed:
            raise closed(self._what)

    @abstractmethod
    def check_version(self) -> None:
        """Ask every server for its version.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """

    @abstractmethod
    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""


class Block:
    """`with` block over a blocking saver, store or cache. The client is the caller's, so it closes nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing, because the client is the caller's."""


class AsyncBlock:
    """`async with` block over an asyncio saver, store or cache. The client is the caller's, so it closes nothing."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing, because the client is the caller's."""


class _Unopened(Generic[T]):
    """A saver, store or cache that a `with` block will open from a URL, and close."""

    def __init__(
        self, kind: type[T], url: str, client_options: Mapping[str, Any] | None, settings: Mapping[str, Any]
    ) -> None:
        """Check the type of the URL. Nothing connects yet.

        Args:
            kind: Class to make.
            url: URL of the server.
            client_options: Options of the client.
            settings: Keyword arguments of the class.

        Raises:
            TypeError: `url` is not a str, or the class has no such argument.
        """
        signature(kind).bind(None, **settings)
        self._kind, self._url, self._options, self._settings = kind, url, client_options or {}, settings
        self._opened: list[Any] = []
        if not isinstance(url, str):
            name = kind.__name__
            raise TypeError(f"url: {kind_of(url)}; write {name}.from_conn_string('redis://host') or {name}(client)")

    def _open(self, *, asynchronous: bool) -> T:
        client = clients.connect(self._url, asynchronous=asynchronous, **self._options)
        opened = self._kind(client, **self._settings)  # type: ignore[call-arg]  # as each of ours takes it
        self._opened.append(opened)
        return opened

    def _driver_to_close(self) -> Any:
        return self._opened.pop()._driver  # noqa: SLF001 - the object is of this package

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            """Raise an error that says that the block is missing."""
            if name.startswith("_"):  # `copy` asks before there are attributes
                raise AttributeError(name)
            call = f"{self._kind.__name__}.from_conn_string(url)"
            raise AttributeError(f"{call} has no {name!r}: write `{self._block} {call} as x:`, and use x.{name}")


class NeedsWith(_Unopened[T]):
    """Result of `from_conn_string`, for `with`. Some errors show this name, such as those of `graph.compile`."""

    _block = "with"

    def __enter__(self) -> T:
        """Make the client and the object."""
        return self._open(asynchronous=False)

    def __exit__(self, *_: object) -> None:
        """Close both."""
        self._driver_to_close().close()


class NeedsAsyncWith(_Unopened[T]):
    """Result of `from_conn_string`, for `async with`."""

    _block = "async with"

    async def __aenter__(self) -> T:
        """Make the client and the object."""
        return self._open(asynchronous=True)

    async def __aexit__(self, *_: object) -> None:
        """Close both."""
        await self._driver_to_close().aclose()
