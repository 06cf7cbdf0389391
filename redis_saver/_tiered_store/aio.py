"""`AsyncTieredStore`: over two stores for asyncio."""

from __future__ import annotations

from redis_saver._client.base import AsyncBlock
from redis_saver._engine.runner import DriverWrapper
from redis_saver._store.aio import AsyncRedisStore
from redis_saver._tiered.drivers import AsyncTieredDriver
from redis_saver._tiered.requests import TieredRequest
from redis_saver._tiered_store.store import TwoTierStore


class AsyncTieredStore(TwoTierStore[AsyncRedisStore], AsyncBlock):
    """An `AsyncRedisStore` in front of any store.

    Any number of event loops and OS threads may share it, before and after a fork, as far as `cold` can be shared. An
    `AsyncPostgresStore` is bound to its loop, and answers the calls of that loop. Calls from other loops, OS threads
    and children run on a loop in the background, with their own connections to Postgres.
    """

    _hot_class, _driver_class = AsyncRedisStore, AsyncTieredDriver
    _driver: AsyncTieredDriver | DriverWrapper[TieredRequest]

    async def setup(self) -> None:
        """Call `asetup`. Await it."""
        await self.asetup()
