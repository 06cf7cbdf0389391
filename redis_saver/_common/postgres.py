"""Internals of LangGraph's Postgres savers and stores, and of psycopg's connections, that this package uses.

No other module uses them. If a release after langgraph-checkpoint-postgres 3.2 or psycopg_pool 3.2 changes them, these
functions treat the saver as unknown. Then the package uses only LangGraph's interface.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from decimal import Decimal
from operator import index
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._common.logs import Log

_LOG = Log("redis_saver.common")
_PARAMETERS = (
    *("connection_class", "kwargs", "name", "timeout", "max_waiting", "max_lifetime", "max_idle"),
    *("reconnect_timeout", "num_workers", "min_size", "max_size"),
)
_HOOKS = ("configure", "check", "reset", "reconnect_failed")
"""Arguments that a pool keeps in attributes that begin with an underscore."""
_known: dict[type, bool] = {}


def failures() -> tuple[type[Exception], ...]:
    """Return the base errors of the imported database drivers (psycopg, sqlite3)."""
    return tuple(vars(sys.modules[name])["Error"] for name in ("psycopg", "sqlite3") if name in sys.modules)


def is_known(saver: Any) -> bool:
    """True for a Postgres saver of LangGraph with known internals. The log warns once about unknown ones."""
    kind = type(saver)
    if kind not in _known:
        is_one = any(base.__module__ == "langgraph.checkpoint.postgres.base" for base in kind.__mro__)
        _known[kind] = is_one and callable(getattr(kind, "_cursor", None)) and hasattr(kind, "UPSERT_CHECKPOINTS_SQL")
        if is_one and not _known[kind]:
            _LOG.warning(
                "redis_saver does not know this %s, which has changed since langgraph-checkpoint-postgres 3.2, and "
                "uses only LangGraph's interface: delete_for_runs and prune are the saver's own, threads() returns "
                "less about threads that only Postgres has, and the saver may fail after a fork. Upgrade redis-saver, "
                "or install langgraph-checkpoint-postgres 3.2.",
                kind.__name__,
            )
    return _known[kind]


def has_history(saver: Any) -> bool:
    """True for a known Postgres saver that keeps all checkpoints. The shallow ones keep only the newest."""
    return is_known(saver) and not any(base.__module__.endswith(".shallow") for base in type(saver).__mro__)


def is_text(value: str) -> bool:
    """True if Postgres can store a str: it has no NUL and no lone surrogate."""
    if value.isascii():
        return "\0" not in value
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict as a column of type `jsonb` gives it back: its numbers have no sign of zero and no exponent.

    Raises:
        TypeError, ValueError, RecursionError: It cannot be JSON.
    """
    return json.loads(json.dumps(value), parse_float=_as_numeric)  # type: ignore[no-any-return]


def _as_numeric(text: str) -> float:
    is_whole = "e" in text and index(Decimal(text).as_tuple().exponent) >= 0  # type: ignore[arg-type]
    return int(Decimal(text)) if is_whole else float(text) or 0.0


def cursor(saver: Any) -> Any:
    """Return a context manager for a cursor of a known saver. It takes the saver's connection and lock."""
    return saver._cursor()  # noqa: SLF001


def has_own(saver: BaseCheckpointSaver[Any], method: str) -> bool:
    """True if a saver's class overrides a method of LangGraph's interface."""
    return getattr(type(saver), method) is not getattr(BaseCheckpointSaver, method)


def is_known_store(store: Any) -> bool:
    """True for a Postgres store of LangGraph. It keeps its connections as the savers do."""
    return any(base.__module__ == "langgraph.store.postgres.base" for base in type(store).__mro__)


def is_renewable(cold: Any) -> bool:
    """True if connections with the same settings can replace those of a saver or store."""
    conn = getattr(cold, "conn", None)
    package = type(conn).__module__.partition(".")[0]
    if not (is_known(cold) or is_known_store(cold)) or package not in ("psycopg", "psycopg_pool"):
        return False
    return not is_pool(conn) or all(hasattr(conn, name) for name in _PARAMETERS)


def is_pool(conn: Any) -> bool:
    """True for a pool of connections."""
    return type(conn).__module__.partition(".")[0] == "psycopg_pool"


def pool_like(pool: Any, *, opened: bool) -> Any:
    """Return a pool with the settings of another."""
    settings = {name: getattr(pool, name) for name in _PARAMETERS}
    hooks = {name: getattr(pool, "_" + name, None) for name in _HOOKS}
    return type(pool)(pool.conninfo, open=opened, **settings, **hooks)


def settings_of(conn: Any) -> dict[str, Any]:
    """Return the arguments for another connection like this one."""
    return {
        **conn.info.get_parameters(),
        "password": conn.info.password,
        "autocommit": conn.autocommit,
        "prepare_threshold": conn.prepare_threshold,
        "row_factory": conn.row_factory,
    }
