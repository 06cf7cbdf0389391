"""The two servers of a process that only flushes: opened by their URLs, and asked whether they can be reached.

What another try may repair is told (`trouble`); what it cannot repair, as a wrong password, is raised (`Refused`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
)

from redis_saver._checkpoint.saver import driver_of
from redis_saver._checkpoint.sync import RedisSaver
from redis_saver._client import clients, urls
from redis_saver._common.display import printable
from redis_saver._common.names import Keyspace
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.errors import RedisSaverError

CONNECTING = 5
"""Seconds in which a server has to take a connection, unless its URL says otherwise."""
ANSWERING = 10
"""Seconds in which Redis has to answer, and in which a connection to Postgres has to be had, unless the URL says otherwise."""

_NOT_YOURS = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError, NoPermissionError)
_WRONG_REDIS = re.compile(r"DB index|invalid password|Cluster mode is not enabled|cluster support disabled")
_WRONG_POSTGRES = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
    r"|is not permitted to log in|does not support SSL|Servname not supported"
)
"""A refused connection has no SQLSTATE in psycopg. A server that speaks another language than English is tried again."""
_NOT_THERE = ("42P01", "3F000")
_NOT_ALLOWED = ("28000", "28P01", "3D000", "42501")
_LIVELY = {
    "connect_timeout": CONNECTING,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Options of libpq, so that a host that is gone without a word does not keep the flusher."""


class Refused(RedisSaverError):
    """A URL, a login, a package or a table is wrong: another try would not help."""


class Reachable(Protocol):
    """One of the two."""

    name: str
    """Which it is, without a password."""

    def trouble(self) -> str | None:
        """Why it cannot be used just now; None where it can.

        Raises:
            RedisSaverError: Trying again would not help.
        """


class Hot:
    """Redis."""

    def __init__(self, url: str, keys: str) -> None:
        """Look at the URL; nothing is sent.

        Args:
            url: As `RedisSaver.from_conn_string` takes it, but not `memory://`.
            keys: The beginning of all keys.

        Raises:
            Refused: The URL or the beginning of the keys makes no sense.
        """
        self.name: str = urls.without_login(url)
        self._url, self._keys = url, keys
        if url.startswith("memory:"):
            raise Refused(f"{self.name}: the embedded server is its process's own; its savers flush by themselves")
        try:
            Keyspace(keys)
        except ValueError as error:
            raise Refused(f"--keys: {error}") from error
        self._saver: RedisSaver | None = None

    @property
    def saver(self) -> RedisSaver:
        """The saver; there when the server was reached once."""
        if self._saver is None:
            raise RuntimeError("not reached yet")
        return self._saver

    def trouble(self) -> str | None:
        """As `Reachable`."""
        try:
            if self._saver is None:
                self._saver = RedisSaver(self._connect(), prefix=self._keys, serde=opaque_if_encrypted())
            self._saver.setup()
        except (RedisError, RedisClusterException, OSError) as error:
            said = self._said(error)
            if any(isinstance(one, _NOT_YOURS) or _WRONG_REDIS.search(str(one)) for one in _causes(error)):
                raise Refused(f"{self.name}: {said}") from urls.cause_of(error, self._url)
            return said
        return None

    def _connect(self) -> Any:
        timeouts = {"socket_timeout": float(ANSWERING)}
        if not self._url.startswith("unix:"):
            timeouts["socket_connect_timeout"] = float(CONNECTING)
        options = {name: seconds for name, seconds in timeouts.items() if f"{name}=" not in self._url}
        try:
            return clients.connect(self._url, asynchronous=False, **options)
        except ValueError as error:
            raise Refused(self._said(error)) from None

    def _said(self, error: Exception) -> str:
        return printable(urls.without_password(str(error) or type(error).__name__, self._url))

    def close(self) -> None:
        """Close the client, if there is one."""
        if self._saver is not None:
            driver: Any = driver_of(self._saver)
            driver.close()


class Cold:
    """Postgres, by LangGraph's `PostgresSaver` over a pool of connections."""

    def __init__(self, url: str, workers: int, *, setup: bool) -> None:
        """Look at the URL; nothing is sent.

        Args:
            url: `postgresql://...`, as libpq reads it.
            workers: How many connections there may be at once; one more is made for each look whether the server is there.
            setup: Whether to make the tables, or bring them up to date; else they have to be there.

        Raises:
            Refused: The URL makes no sense, or a package is missing.
        """
        self.name: str = urls.without_login(url)
        self._url, self._workers, self._setup = url, workers, setup
        if url.partition("://")[0] not in ("postgresql", "postgres"):
            raise Refused(f"{self.name} is no URL of Postgres: write postgresql://user:password@host/database")
        try:
            self._psycopg, self._pools = import_module("psycopg"), import_module("psycopg_pool")
            self._postgres = import_module("langgraph.checkpoint.postgres")
        except ImportError as error:
            raise Refused(f"this needs more packages: pip install 'redis-saver[postgres]' ({error})") from error
        try:
            urls.check_postgres(url)
            given = self._psycopg.conninfo.conninfo_to_dict(url)
        except ValueError as error:
            raise Refused(str(error)) from error
        except self._psycopg.Error as error:
            raise Refused(f"{self.name}: {self._said(error)}") from urls.cause_of(error, self._url)
        self._settings: Any = {
            **{name: value for name, value in _LIVELY.items() if name not in given},
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": self._psycopg.rows.dict_row,
        }
        self._reached, self._pool = False, None

    @property
    def saver(self) -> Any:
        """A `PostgresSaver` whose calls do not wait for each other: each has a connection of its own."""
        logging.getLogger("psycopg").addHandler(logging.NullHandler())  # who asks `trouble` says it once
        self._pool = self._pools.ConnectionPool(
            self._url,
            min_size=1,
            max_size=self._workers,
            kwargs=self._settings,
            timeout=ANSWERING,
            reconnect_timeout=CONNECTING,  # after that, whoever asks for a connection begins anew, without growing pauses
            open=True,
        )
        saver = self._postgres.PostgresSaver(self._pool, serde=opaque_if_encrypted())
        saver.lock = _Unlocked()  # it is for a single connection, and would keep all but one worker waiting
        return saver

    def trouble(self) -> str | None:
        """As `Reachable`. The first time the tables are looked at, too."""
        try:
            with self._psycopg.Connection.connect(self._url, **self._settings) as connection:
                if not self._reached:
                    self._look_at_tables(connection)
                    self._reached = True
                connection.execute("SELECT 1")
        except self._psycopg.Error as error:
            said = self._said(error)
            if error.sqlstate in _NOT_ALLOWED or (error.sqlstate is None and _WRONG_POSTGRES.search(str(error))):
                raise Refused(f"{self.name}: {said}") from urls.cause_of(error, self._url)
            return said
        return None

    def _look_at_tables(self, connection: Any) -> None:
        saver = self._postgres.PostgresSaver(connection)
        if self._setup:
            saver.setup()
            return
        remedy = "with --setup they are made (if that is the database that is meant), or by PostgresSaver.setup()"
        try:
            found = connection.execute("SELECT max(v) AS v FROM checkpoint_migrations").fetchone()["v"]
        except self._psycopg.Error as error:
            if error.sqlstate not in _NOT_THERE:
                raise
            raise Refused(f"{self.name}: LangGraph's tables are not there: {remedy}") from error
        if found is None or found < len(saver.MIGRATIONS) - 1:
            raise Refused(f"{self.name}: LangGraph's tables are those of an older version: {remedy}")

    def _said(self, error: Exception) -> str:
        return printable(urls.without_password(str(error) or type(error).__name__, self._url))

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.close(timeout=1)


class _Unlocked:
    """A lock that locks nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def opaque_if_encrypted() -> EncryptedSerializer | None:
    """With LANGGRAPH_AES_KEY set: what is encrypted is read, and all is written encrypted; no class is needed. Else a saver's own.

    Raises:
        Refused: The key makes no sense, or a package is missing.
    """
    if "LANGGRAPH_AES_KEY" not in os.environ:
        return None
    try:
        return EncryptedSerializer.from_pycryptodome_aes(OpaqueSerializer())
    except (ImportError, ValueError) as error:
        raise Refused(f"LANGGRAPH_AES_KEY: {error}") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it came of: a client of a cluster says why no node answered in the cause alone."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
