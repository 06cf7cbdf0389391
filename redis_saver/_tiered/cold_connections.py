"""Connections to Postgres for other processes and event loops than those of the cold saver that was given.

A connection of psycopg cannot be used in the child of a fork, and an asynchronous one not on another loop. LangGraph's Postgres savers and stores keep theirs in
`conn`. So in a child, and on another loop, a copy of the saver or store is used, with connections made from the same settings (`redis_saver._common.postgres`).
Others are used as they are.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import threading
from typing import Any, TypeVar

from redis_saver._client import loops
from redis_saver._common import forks, postgres

C = TypeVar("C")


class _Renewed:
    """The connections made in this process, each together with the connection that it replaces, by the id of the latter."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[Any, Any]] = {}
        self.ending: list[loops.Ending] = []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, do not touch the parent's connections."""
        forks.keep((self.of, self.ending))
        self.of, self.ending = {}, []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()

    def close(self) -> None:
        """Close the blocking connections at the end of the process. The background loop closes the others."""
        for _, made in self.of.values():
            if not asyncio.iscoroutinefunction(made.close):
                made.close()


_renewed = _Renewed()
atexit.register(_renewed.close)


def renewed(cold: C) -> C:
    """A blocking saver with connections of this process."""
    given: Any = cold.conn  # type: ignore[attr-defined]
    with _renewed.lock:
        if id(given) not in _renewed.of:
            made = (
                postgres.pool_like(given, opened=True)
                if postgres.is_pool(given)
                else type(given).connect(**postgres.settings_of(given))
            )
            _renewed.of[id(given)] = (given, made)
        made = _renewed.of[id(given)][1]
    return _on(cold, conn=made, pipe=None, lock=threading.Lock())


async def arenewed(cold: C) -> C:
    """An asynchronous saver with connections of the background loop. Call it on that loop."""
    given: Any = cold.conn  # type: ignore[attr-defined]
    async with _renewed.alock:
        if id(given) not in _renewed.of:
            if postgres.is_pool(given):
                made = postgres.pool_like(given, opened=False)
                await made.open()
            else:
                made = await type(given).connect(**postgres.settings_of(given))
            _renewed.of[id(given)] = (given, made)
            _renewed.ending.append(loops.Ending(made.close))
        made = _renewed.of[id(given)][1]
    return _on(cold, conn=made, pipe=None, lock=asyncio.Lock(), loop=asyncio.get_running_loop())


def _on(cold: C, **connected: Any) -> C:
    made = copy.copy(cold)
    if postgres.is_known_store(cold):  # when it is collected, it would end what the store that was given still does
        connected.update(_task=None, _ttl_sweeper_thread=None)
    for name, value in connected.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made
