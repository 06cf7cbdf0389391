"""Connections to Postgres for other processes and event loops than those of the cold saver that was given.

A connection of psycopg is of no use in the child of a fork, nor an asynchronous one on another loop. LangGraph's Postgres savers keep theirs in `conn`.
There, a copy of the saver takes its place, with connections made from the same settings (`redis_saver._common.postgres`). What another saver would need is not known.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import threading
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._client import loops
from redis_saver._common import forks, postgres

C = TypeVar("C", bound=BaseCheckpointSaver[Any])


class _Renewed:
    """The connections made in this process, each with those in whose place they are, by the id of these."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[Any, Any]] = {}
        self.ending: list[loops.Ending] = []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        forks.keep((self.of, self.ending))
        self.of, self.ending = {}, []
        self.lock, self.alock = threading.Lock(), asyncio.Lock()

    def close(self) -> None:
        """Close the blocking ones, at the end of the process; the others are closed by the background loop."""
        for _, made in self.of.values():
            if not asyncio.iscoroutinefunction(made.close):
                made.close()


_renewed = _Renewed()
atexit.register(_renewed.close)


def renewed(cold: C) -> C:
    """A blocking saver on connections of this process."""
    given: Any = vars(cold)["conn"]
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
    """An asynchronous saver on connections of the background loop, which has to be the running one."""
    given: Any = vars(cold)["conn"]
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
    vars(made).update(connected)
    return made
