"""Insides of LangGraph's Postgres savers and stores, and of psycopg's connections, that this package uses.

No other module reaches into them. If one of them has changed (since langgraph-checkpoint-postgres 3.2, psycopg_pool
3.2), the functions here say that the saver is not known, and the package uses only LangGraph's interface of it.
"""

from __future__ import annotations

import sys
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._common.logs import Log

_LOG = Log("redis_saver.common")
_PARAMETERS = (
    *("connection_class", "kwargs", "name", "timeout", "max_waiting", "max_lifetime", "max_idle"),
    *("reconnect_timeout", "num_workers", "min_size", "max_size"),
)
_HOOKS = ("configure", "check", "reset", "reconnect_failed")
"""Arguments that a pool keeps in attributes with an underscore in front."""
_known: dict[type, bool] = {}


def failures() -> tuple[type[Exception], ...]:
    """Errors of the loaded database drivers (psycopg, and SQLite's) if a database fails."""
    return tuple(vars(sys.modules[name])["Error"] for name in ("psycopg", "sqlite3") if name in sys.modules)


def is_known(saver: Any) -> bool:
    """True if this is one of LangGraph's Postgres savers, and has what is used here.

    If it is one and has not, the log says so once.
    """
    kind = type(saver)
    if kind not in _known:
        is_one = any(base.__module__ == "langgraph.checkpoint.postgres.base" for base in kind.__mro__)
        _known[kind] = is_one and callable(getattr(kind, "_cursor", None)) and hasattr(kind, "UPSERT_CHECKPOINTS_SQL")
        if is_one and not _known[kind]:
            _LOG.warning(
                "redis_saver does not know this %s, which has changed since langgraph-checkpoint-postgres 3.2. It uses "
                "only LangGraph's interface of it: delete_for_runs and prune are the saver's own, threads() tells less "
                "of what only it has, and it may not be usable after a fork. Upgrade redis-saver, or install "
                "langgraph-checkpoint-postgres 3.2.",
                kind.__name__,
            )
    return _known[kind]


def has_history(saver: Any) -> bool:
    """True if this is one of LangGraph's Postgres savers that keep each checkpoint.

    The shallow ones keep the newest only.
    """
    return is_known(saver) and not any(base.__module__.endswith(".shallow") for base in type(saver).__mro__)


def cursor(saver: Any) -> Any:
    """A context manager for a cursor of a known saver. It takes the saver's connection and its lock."""
    return saver._cursor()  # noqa: SLF001


def has_own(saver: BaseCheckpointSaver[Any], method: str) -> bool:
    """True if a saver's class implements a method of LangGraph's interface. The interface's own raises."""
    return getattr(type(saver), method) is not getattr(BaseCheckpointSaver, method)


def is_known_store(store: Any) -> bool:
    """True if this is one of LangGraph's Postgres stores, which keep their connections as the savers do."""
    return any(base.__module__ == "langgraph.store.postgres.base" for base in type(store).__mro__)


def is_renewable(cold: Any) -> bool:
    """True if the connections of a saver or a store can be replaced by others with the same settings."""
    conn = getattr(cold, "conn", None)
    package = type(conn).__module__.partition(".")[0]
    if not (is_known(cold) or is_known_store(cold)) or package not in ("psycopg", "psycopg_pool"):
        return False
    return not is_pool(conn) or all(hasattr(conn, name) for name in _PARAMETERS)


def is_pool(conn: Any) -> bool:
    """True if this is a pool of connections."""
    return type(conn).__module__.partition(".")[0] == "psycopg_pool"


def pool_like(pool: Any, *, opened: bool) -> Any:
    """A pool with the settings of another."""
    settings = {name: getattr(pool, name) for name in _PARAMETERS}
    hooks = {name: getattr(pool, "_" + name, None) for name in _HOOKS}
    return type(pool)(pool.conninfo, open=opened, **settings, **hooks)


def settings_of(conn: Any) -> dict[str, Any]:
    """The arguments that open another connection like this one."""
    return {
        **conn.info.get_parameters(),
        "password": conn.info.password,
        "autocommit": conn.autocommit,
        "prepare_threshold": conn.prepare_threshold,
        "row_factory": conn.row_factory,
    }
