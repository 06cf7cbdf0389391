"""Connections to Postgres for a forked child, and for the background loop.

A psycopg connection cannot be used in a forked child, and an asynchronous one cannot be used on another loop.
LangGraph's Postgres savers and stores keep their connection in `conn`. So in a child, and on another loop, the driver
uses a copy of the saver or store with new connections of the same settings (`_common/postgres.py`). Other savers are
used as they are.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from typing import Any

from redis_saver._client import loops
from redis_saver._common import forks, postgres
from redis_saver._tiered.twins import C, copy_with


class _Connections:
    """Connections made in this process. Each key is the id of a replaced connection, which is kept with the new one."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Keep the parent's connections alive in the child, without using them."""
        forks.keep(self.__dict__.get("made"))
        self.made: dict[int, tuple[Any, Any]] = {}
        self.lock, self.alock = threading.Lock(), asyncio.Lock()

    def close(self) -> None:
        """Close the blocking connections when the process ends. The background loop closes the others."""
        for _, made in self.made.values():
            if not asyncio.iscoroutinefunction(made.close):
                made.close()


_connections = _Connections()
atexit.register(_connections.close)


def renewed(cold: C) -> C:
    """Return a copy of a blocking saver with connections of this process, if these can be made."""
    if not postgres.is_renewable(cold):
        return cold
    connection: Any = cold.conn  # type: ignore[attr-defined]
    with _connections.lock:
        if id(connection) not in _connections.made:
            replacement = (
                postgres.pool_like(connection, opened=True)
                if postgres.is_pool(connection)
                else type(connection).connect(**postgres.settings_of(connection))
            )
            _connections.made[id(connection)] = (connection, replacement)
    return copy_with(cold, conn=_connections.made[id(connection)][1], pipe=None, lock=threading.Lock())


async def arenewed(cold: C) -> C:
    """Return a copy of an asyncio saver with connections of the running loop, which is the background loop."""
    if not postgres.is_renewable(cold):
        return cold
    connection: Any = cold.conn  # type: ignore[attr-defined]
    async with _connections.alock:
        if id(connection) not in _connections.made:
            if postgres.is_pool(connection):
                replacement = postgres.pool_like(connection, opened=False)
                await replacement.open()
            else:
                replacement = await type(connection).connect(**postgres.settings_of(connection))
            _connections.made[id(connection)] = (connection, replacement)
            loops.Ending(replacement.close)
    replacement = _connections.made[id(connection)][1]
    return copy_with(cold, conn=replacement, pipe=None, lock=asyncio.Lock(), loop=asyncio.get_running_loop())
