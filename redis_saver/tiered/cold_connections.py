"""Connections to Postgres for other processes and event loops than those of the cold saver that was given.

A connection of psycopg is of no use in the child of a fork, nor an asynchronous one on another loop. LangGraph's Postgres savers keep theirs in `conn`.
There, a copy of the saver takes its place, with connections made from the same settings. What another saver would need is not known here.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import threading
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver import forks
from redis_saver.client import loops

C = TypeVar("C", bound=BaseCheckpointSaver[Any])

_POOL = (
    "connection_class",
    "kwargs",
    "name",
    "timeout",
    "max_waiting",
    "max_lifetime",
    "max_idle",
    "reconnect_timeout",
    "num_workers",
    "min_size",
    "max_size",
)
_HOOKS = ("configure", "check", "reset", "reconnect_failed")
"""Arguments of a pool that it keeps under their names, and with an underscore in front (psycopg_pool 3.2)."""


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


def is_renewable(cold: BaseCheckpointSaver[Any]) -> bool:
    """Whether this is one of LangGraph's Postgres savers, on a connection or a pool of psycopg."""
    modules = {cls.__module__ for cls in type(cold).__mro__}
    package = type(getattr(cold, "conn", None)).__module__.partition(".")[0]
    return "langgraph.checkpoint.postgres.base" in modules and package in ("psycopg", "psycopg_pool")


def renewed(cold: C) -> C:
    """A blocking saver on connections of this process."""
    given: Any = vars(cold)["conn"]
    with _renewed.lock:
        if id(given) not in _renewed.of:
            made = _pool(given, opened=True) if _is_pool(given) else type(given).connect(**_settings(given))
            _renewed.of[id(given)] = (given, made)
        made = _renewed.of[id(given)][1]
    return _on(cold, conn=made, pipe=None, lock=threading.Lock())


async def arenewed(cold: C) -> C:
    """An asynchronous saver on connections of the background loop, which has to be the running one."""
    given: Any = vars(cold)["conn"]
    async with _renewed.alock:
        if id(given) not in _renewed.of:
            if _is_pool(given):
                made = _pool(given, opened=False)
                await made.open()
            else:
                made = await type(given).connect(**_settings(given))
            _renewed.of[id(given)] = (given, made)
            _renewed.ending.append(loops.Ending(made.close))
        made = _renewed.of[id(given)][1]
    return _on(cold, conn=made, pipe=None, lock=asyncio.Lock(), loop=asyncio.get_running_loop())


def _on(cold: C, **connected: Any) -> C:
    made = copy.copy(cold)
    vars(made).update(connected)
    return made


def _is_pool(conn: Any) -> bool:
    return type(conn).__module__.partition(".")[0] == "psycopg_pool"


def _pool(pool: Any, *, opened: bool) -> Any:
    settings = {name: getattr(pool, name) for name in _POOL}
    hooks = {name: getattr(pool, "_" + name, None) for name in _HOOKS}
    return type(pool)(pool.conninfo, open=opened, **settings, **hooks)


def _settings(conn: Any) -> dict[str, Any]:
    """What opens another connection like this one."""
    return {
        **conn.info.get_parameters(),
        "password": conn.info.password,
        "autocommit": conn.autocommit,
        "prepare_threshold": conn.prepare_threshold,
        "row_factory": conn.row_factory,
    }
