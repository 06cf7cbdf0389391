"""Shared parts of savers, stores and caches: types of clients, settings of a driver, and `with` blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from typing_extensions import Self

from redis_saver._client import clients
from redis_saver._client.link import Rules
from redis_saver._common import config as configs
from redis_saver._common.display import kind_of
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import Driver
from redis_saver._engine.stats import Traffic
from redis_saver.errors import ClusterMoving, closed

CLUSTER_TIMEOUT = 20.0
"""Default seconds for which a request is repeated.

A failover takes `cluster-node-timeout` (by default 15 seconds) and one or two more.
"""
T = TypeVar("T")


class SyncClient(Protocol):
    """A blocking client: `redis.Redis`, `redis.RedisCluster`, a Sentinel's `master_for`, valkey-py's, fakeredis's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""

    def __enter__(self) -> Any:
        """Here to tell it from an asyncio client, which has no such method."""


class AsyncClient(Protocol):
    """An asyncio client: `redis.asyncio.Redis`, `RedisCluster`, a Sentinel's `master_for`, valkey-py's, fakeredis's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""

    def aclose(self) -> Awaitable[None]:
        """Here to tell it from a blocking client, which has no such method."""


class RedisDriver(Driver[Request]):
    """A driver over one Redis or Valkey."""

    is_async: ClassVar[bool]
    """True if the client is one for asyncio."""

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
            client: As a saver takes it.
            prefix: The beginning of all keys.
            cluster_timeout: Seconds for which a request to a cluster is repeated while its slot moves.
                Then the request raises `ClusterMoving`.
            require_primary: Whether reads from a replica raise an error.
            min_replicas: How many replicas must have a write before it is acknowledged.
            replica_timeout: Seconds to wait for them. Then `ReplicationTimeout` is raised.
            taker: Who holds the driver, for messages: a `Saver`, a `Store` or a `Cache`.
            repeats_late: Send the requests of a pipeline that timed out again, each alone. If false, all of them fail.

        Raises:
            TypeError, ValueError: An argument makes no sense; the message says which and why.
        """
        clients.check(client, asynchronous=self.is_async, taker=taker)
        configs.number("cluster_timeout", cluster_timeout, 0)
        configs.number("min_replicas", min_replicas, 0, whole=True)
        configs.number("replica_timeout", replica_timeout, 0.001)
        self.server: str = clients.described(client)
        """The server as a URL without login and options, for messages."""
        self._what, self._is_closed = f"the {taker.lower()} on {self.server}", False
        self.traffic: Traffic = Traffic()
        """Counts of what it sent and received in this process."""
        is_guarded = require_primary and not clients.is_cluster(client)  # a cluster's replica answers MOVED
        guard = ("UNLINK", f"{prefix}:primary") if is_guarded else None
        self._rules = Rules(self.traffic, cluster_timeout, guard, min_replicas, replica_timeout, repeats_late)
        self.failures: tuple[type[Exception], ...] = (*clients.failures_of(client), ClusterMoving)
        """Errors that the client raises when the server or the network fails.

        `ClusterMoving` is an error of redis-py, so with valkey-py it is not among the client's.
        """

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
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
    """A `with` over a blocking saver, store or cache. It closes nothing: the client is the caller's."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing, because the client is the caller's."""


class AsyncBlock:
    """An `async with` over an asyncio saver, store or cache. It closes nothing: the client is the caller's."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing, because the client is the caller's."""


class _Unopened(Generic[T]):
    """A saver, store or cache that a block makes, together with a client, and closes."""

    def __init__(
        self, kind: type[T], url: str, client_options: Mapping[str, Any] | None, settings: Mapping[str, Any]
    ) -> None:
        """Connect nothing yet.

        Args:
            kind: The class to make.
            url: The URL of its client.
            client_options: Options of the client.
            settings: Keywords of the constructor, whose names are known to be right.

        Raises:
            TypeError: `url` is no text.
        """
        self._kind, self._url, self._options, self._settings = kind, url, client_options or {}, settings
        self._opened: list[Any] = []
        if not isinstance(url, str):
            name = kind.__name__
            raise TypeError(
                f"url: {kind_of(url)}; {name}.from_conn_string takes a URL, such as 'redis://localhost:6379'. "
                f"For a client write {name}(client)"
            )

    def _open(self, *, asynchronous: bool) -> T:
        client = clients.connect(self._url, asynchronous=asynchronous, **self._options)
        opened = self._kind(client, **self._settings)  # type: ignore[call-arg]  # as each of ours takes it
        self._opened.append(opened)
        return opened

    def _driver_to_close(self) -> Any:
        return self._opened.pop()._driver  # noqa: SLF001 - the object is of this package

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            """Say that the block is missing."""
            if name.startswith("_"):  # `copy` asks before there is a kind
                raise AttributeError(name)
            call = f"{self._kind.__name__}.from_conn_string(url)"
            raise AttributeError(
                f"{call} has no attribute {name!r}: nothing is open before its block begins. "
                f"Write `{self._block} {call} as opened:`, and use `opened.{name}` in the block"
            )


class NeedsWith(_Unopened[T]):
    """One that blocks. Errors show the name of this class, such as that of a graph that is compiled with it."""

    _block = "with"

    def __enter__(self) -> T:
        """Make the client, and the object over it."""
        return self._open(asynchronous=False)

    def __exit__(self, *_: object) -> None:
        """Close both."""
        self._driver_to_close().close()


class NeedsAsyncWith(_Unopened[T]):
    """One for asyncio."""

    _block = "async with"

    async def __aenter__(self) -> T:
        """Make the client, and the object over it."""
        return self._open(asynchronous=True)

    async def __aexit__(self, *_: object) -> None:
        """Close both."""
        await self._driver_to_close().aclose()
