"""`TieredStore`: over two blocking stores."""

from __future__ import annotations

from redis_saver._client.base import Block
from redis_saver._engine.runner import DriverWrapper
from redis_saver._store.sync import RedisStore
from redis_saver._tiered.drivers import SyncTieredDriver
from redis_saver._tiered.requests import TieredRequest, setup
from redis_saver._tiered_store.store import TwoTierStore


class TieredStore(TwoTierStore[RedisStore], Block):
    """A `RedisStore` in front of any store. Its `a...` methods run in worker threads.

    It works before and after a fork, if `cold` does. A `PostgresStore` does: the child opens its own connections, with
    the same settings.
    """

    _hot_class, _driver_class = RedisStore, SyncTieredDriver
    _driver: SyncTieredDriver | DriverWrapper[TieredRequest]

    def setup(self) -> None:
        """Set up both, as `asetup`."""
        self.hot.setup()
        self._run(setup(self.cold))
