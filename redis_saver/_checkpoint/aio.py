"""`AsyncRedisSaver`: the saver over an asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._checkpoint.saver import Saver, SaverSettings
from redis_saver._client.aio import AsyncDriver
from redis_saver._client.base import AsyncBlock, AsyncClient, NeedsAsyncWith
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper


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
