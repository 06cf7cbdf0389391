"""`AsyncRedisStore`: the store over an asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._client.aio import AsyncDriver
from redis_saver._client.base import AsyncBlock, AsyncClient, NeedsAsyncWith
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper
from redis_saver._store.store import Store, StoreSettings


class AsyncRedisStore(Store[AsyncClient], AsyncBlock):
    """LangGraph's long-term store on plain Redis or Valkey, over an asyncio client.

    Calls that tasks make at the same time share their round trips. Any number of event loops and OS threads may share
    a store, before and after a fork. Its methods without an `a` work on any OS thread that runs no event loop. On the
    OS thread of a running loop they raise `CalledOnEventLoop`.
    """

    _driver: AsyncDriver | DriverWrapper[Request]
    _driver_class = AsyncDriver

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
        await self.asetup()

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[StoreSettings]
    ) -> AbstractAsyncContextManager[Self]:
        """Open a store with a client of its own. The end of the `async with` closes both.

            async with AsyncRedisStore.from_conn_string("redis://localhost:6379", ttl="30d") as store:
                graph = builder.compile(store=store)

        The arguments are those of `RedisStore.from_conn_string`.
        """
        return NeedsAsyncWith(cls, url, client_options, settings)
