"""`RedisStore`: the store over a blocking client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._client.base import Block, NeedsWith, SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper
from redis_saver._store import server_search
from redis_saver._store.store import Store, StoreSettings


class RedisStore(Store[SyncClient], Block):
    """LangGraph's long-term store on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so the event loop is never blocked. A service on asyncio should use
    `AsyncRedisStore`, which needs no worker threads. Any number of OS threads may share a store and its client, before
    and after a fork.
    """

    _driver: SyncDriver | DriverWrapper[Request]
    _driver_class = SyncDriver

    def setup(self) -> None:
        """Check the server's version, and make its own index of vectors, as `asetup` says."""
        self._driver.check_version()
        if self._context.has_documents:
            self._run(server_search.setup(self._context))

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[StoreSettings]
    ) -> AbstractContextManager[Self]:
        """Open a store with a client of its own. The end of the `with` closes both.

            with RedisStore.from_conn_string("redis://localhost:6379", ttl="30d") as store:
                graph = builder.compile(store=store)

        After the block each method raises `Closed`.

        Args:
            url: As that of `RedisSaver.from_conn_string`.
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 2.0}`.
            settings: The keywords of the constructor.

        Raises:
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        return NeedsWith(cls, url, client_options, settings)
