"""Connections to the primary of a Sentinel service, which ask the sentinels each time they connect.

redis-py's own connection asks the sentinels when a call takes it from the pool. If it reconnects to retry a call, it
uses the old address (redis-py 6 to 8.1; https://github.com/redis/redis-py/issues/3874). A primary that was stopped, and
came back after a failover, then acknowledges writes that are lost when the sentinels make it a replica.

A URL `redis+sentinel://` uses these classes. For your own client, pass one of them:
`sentinel.master_for("service", connection_class=redis_saver.sentinels.PrimaryConnection)`.
"""

from __future__ import annotations

from typing import Any

import redis.asyncio.sentinel
import redis.sentinel

__all__ = ["AsyncPrimaryConnection", "AsyncSSLPrimaryConnection", "PrimaryConnection", "SSLPrimaryConnection"]


class PrimaryConnection(redis.sentinel.SentinelManagedConnection):
    """A blocking connection to the primary, for `master_for` only."""

    host: str
    port: int

    def _connect_retry(self) -> None:
        if not self._sock:
            self.connect_to((self.host, self.port))  # type: ignore[no-untyped-call]  # `_connect` updates the address

    def _connect(self) -> Any:
        self.host, self.port = self.connection_pool.get_master_address()
        return super()._connect()  # type: ignore[no-untyped-call]


class SSLPrimaryConnection(PrimaryConnection, redis.sentinel.SentinelManagedSSLConnection):
    """`PrimaryConnection` over TLS."""


class AsyncPrimaryConnection(redis.asyncio.sentinel.SentinelManagedConnection):
    """`PrimaryConnection` for asyncio."""

    host: str
    port: int

    async def _connect_retry(self) -> None:
        if not self._reader:
            await self.connect_to((self.host, self.port))  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        self.host, self.port = await self.connection_pool.get_master_address()
        await super()._connect()  # type: ignore[no-untyped-call]


class AsyncSSLPrimaryConnection(AsyncPrimaryConnection, redis.asyncio.sentinel.SentinelManagedSSLConnection):
    """`AsyncPrimaryConnection` over TLS."""


def connection_class(*, asynchronous: bool, tls: bool) -> type[Any]:
    """Return the class of connections to a primary."""
    if asynchronous:
        return AsyncSSLPrimaryConnection if tls else AsyncPrimaryConnection
    return SSLPrimaryConnection if tls else PrimaryConnection
