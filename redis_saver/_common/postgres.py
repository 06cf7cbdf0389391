"""What is known of LangGraph's Postgres savers beyond LangGraph's interface, and of psycopg's connections beyond psycopg's.

Nothing else of this package reaches into them. Where one of them is not what it was (langgraph-checkpoint-postgres 3.2, psycopg_pool 3.2), the functions
here say that the saver is not known, and it is used by LangGraph's interface alone.
"""

from __future__ import annotations

import logging
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

_LOG = logging.getLogger("redis_saver")
_PARAMETERS = (
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
"""Arguments of a pool that it keeps under their names, and with an underscore in front."""
_known: dict[type, bool] = {}


def is_known(saver: Any) -> bool:
    """Whether this is one of LangGraph's Postgres savers, and has what is used here."""
    kind = type(saver)
    if kind not in _known:
        is_one = any(base.__module__ == "langgraph.checkpoint.postgres.base" for base in kind.__mro__)
        _known[kind] = is_one and callable(getattr(kind, "_cursor", None)) and hasattr(kind, "UPSERT_CHECKPOINTS_SQL")
        if is_one and not _known[kind]:
            _LOG.warning(
                "%s is not what it was in langgraph-checkpoint-postgres 3.2: delete_for_runs, prune and what is told of threads are up to it, and so is use after a fork. A newer redis-saver "
                "may know this release.",
                kind.__name__,
            )
    return _known[kind]


def has_history(saver: Any) -> bool:
    """Whether this is one of LangGraph's Postgres savers with a row for each checkpoint, which its shallow ones do not have."""
    return is_known(saver) and not any(base.__module__.endswith(".shallow") for base in type(saver).__mro__)


def cursor(saver: Any) -> Any:
    """A context with a cursor of a saver that is known: its connection, and its lock."""
    return saver._cursor()  # noqa: SLF001


def has_own(saver: BaseCheckpointSaver[Any], method: str) -> bool:
    """Whether a saver's class has a method of LangGraph's interface, and not only the interface's, which raises."""
    return getattr(type(saver), method) is not getattr(BaseCheckpointSaver, method)


def is_renewable(saver: BaseCheckpointSaver[Any]) -> bool:
    """Whether other connections with the same settings can take the place of the saver's."""
    conn = getattr(saver, "conn", None)
    if not is_known(saver) or type(conn).__module__.partition(".")[0] not in ("psycopg", "psycopg_pool"):
        return False
    return not is_pool(conn) or all(hasattr(conn, name) for name in _PARAMETERS)


def is_pool(conn: Any) -> bool:
    """Whether this is a pool of connections."""
    return type(conn).__module__.partition(".")[0] == "psycopg_pool"


def pool_like(pool: Any, *, opened: bool) -> Any:
    """A pool with the settings of another."""
    settings = {name: getattr(pool, name) for name in _PARAMETERS}
    hooks = {name: getattr(pool, "_" + name, None) for name in _HOOKS}
    return type(pool)(pool.conninfo, open=opened, **settings, **hooks)


def settings_of(conn: Any) -> dict[str, Any]:
    """What opens another connection like this one."""
    return {
        **conn.info.get_parameters(),
        "password": conn.info.password,
        "autocommit": conn.autocommit,
        "prepare_threshold": conn.prepare_threshold,
        "row_factory": conn.row_factory,
    }
