"""`RedisSaver`: the saver over a blocking client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import Self, Unpack

from redis_saver._checkpoint.saver import Saver, SaverSettings
from redis_saver._client.base import Block, NeedsWith, SyncClient
from redis_saver._client.sync import SyncDriver
from redis_saver._common import keywords
from redis_saver._engine.requests import Request
from redis_saver._engine.runner import DriverWrapper


class RedisSaver(Saver[SyncClient], Block):  # type: ignore[misc]  # as `Interface`
    """Checkpoints on plain Redis or Valkey, over a blocking client.

    Its `a...` methods run in worker threads, so the event loop is never blocked. For a service on asyncio, `AsyncRedisSaver` does without
    these. Any number of OS threads may share a saver, as they may share its client. It works before and after a fork: the child makes a
    client of its own, with the same settings.
    """

    _driver: SyncDriver | DriverWrapper[Request]
    _driver_class = SyncDriver

    def setup(self) -> None:
        """Check the server's version. Needs no privileges, changes nothing, may be called any number of times.

        Raises:
            UnsupportedServer: It is older than Redis 6.2 or Valkey 7.2.
        """
        self._driver.check_version()

    @classmethod
    @keywords.checked
    def from_conn_string(
        cls, url: str, *, client_options: Mapping[str, Any] | None = None, **settings: Unpack[SaverSettings]
    ) -> AbstractContextManager[Self]:
        """Open a saver with a client of its own. The end of the `with` closes both.

            with RedisSaver.from_conn_string("redis://localhost:6379", ttl="7d") as saver:
                graph = builder.compile(checkpointer=saver)

        After the block each method raises `Closed`. A service keeps the block open for as long as it runs
        (`docs/service.md`), or makes a client of its own: `RedisSaver(client)`.

        Args:
            url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service`,
                `redis+cluster://host:port`, or `memory://`, whose data only this process has and loses when it exits
                (`docs/connections.md` has all forms).
            client_options: Options of the client, as redis-py names them, such as `{"socket_timeout": 2.0}`. They may
                also stand after the `?` of the URL.
            settings: The keywords of the constructor.

        Raises:
            TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
        """
        return NeedsWith(cls, url, client_options, settings)
