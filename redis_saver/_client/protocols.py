"""What a saver takes as a client, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class SyncClient(Protocol):
    """A blocking client: `redis.Redis`, `redis.RedisCluster`, a Sentinel's `master_for`, valkey-py's, fakeredis's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""

    def __enter__(self) -> Any:
        """Here to tell it from an asyncio client, which has no such method."""


class AsyncClient(Protocol):
    """An asyncio client: `redis.asyncio.Redis`, `redis.asyncio.RedisCluster`, a Sentinel's `master_for`, valkey-py's, fakeredis's."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command."""

    def aclose(self) -> Awaitable[None]:
        """Here to tell it from a blocking client, which has no such method."""
