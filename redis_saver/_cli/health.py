"""The two servers of the command `flush`: opened by their URLs, and asked whether they can be reached.

If another try may help, `trouble` returns the reason. If it cannot, as with a wrong password, it raises `Refused`.
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
"""Seconds to wait for a connection to a server, unless its URL says otherwise."""
ANSWERING = 10
"""Seconds to wait for an answer of Redis, and for a connection from the pool to Postgres, unless the URL says otherwise."""

_NOT_YOURS = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError, NoPermissionError)
_WRONG_REDIS = re.compile(r"DB index|invalid password|Cluster mode is not enabled|cluster support disabled")
_WRONG_POSTGRES = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
    r"|is not permitted to log in|does not support SSL|Servname not supported"
)
"""Texts of refused connections, which have no SQLSTATE in psycopg. In another language than English they are not recognized, and the server is tried again."""
_NOT_THERE = ("42P01", "3F000")
_NOT_ALLOWED = ("28000", "28P01", "3D000", "42501")
_LIVELY = {
    "connect_timeout": CONNECTING,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Options of libpq, so that the flusher does not wait for a host that is gone without a word."""


class Refused(RedisSaverError):
    """A URL, a login, a package or a table is wrong: another try would not help."""


class Reachable(Protocol):
    """One of the two servers."""

    name: str
    """Its URL without a password, for messages."""

    def trouble(self) -> str | None:
        """Why the server cannot be used now; None if it can.

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
            raise Refused(
                f"{self.name}: only the process of an embedded server can reach it, and its savers flush by themselves. Name a server, such as redis://host:6379"
            )
        try:
            Keyspace(keys)
        except ValueError as error:
            raise Refused(f"--keys: {error}") from error
        self._saver: RedisSaver | None = None

    @property
    def saver(self) -> RedisSaver:
        """The saver. It exists once the server was reached."""
        if self._saver is None:
            raise RuntimeError(f"{self.name} was not reached yet, so there is no saver")
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
            workers: The most connections at once. Each look whether the server is up makes one more.
            setup: Whether to create the tables, or bring them up to date. If not, they have to exist.

        Raises:
            Refused: The URL makes no sense, or a package is missing.
        """
        self.name: str = urls.without_login(url)
        self._url, self._workers, self._setup = url, workers, setup
        if url.partition("://")[0] not in ("postgresql", "postgres"):
            raise Refused(f"{self.name} is not a URL of Postgres: write postgresql://user:password@host/database")
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
        """A `PostgresSaver` whose calls do not wait for one another: each has its own connection."""
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
        saver.lock = (
            _Unlocked()
        )  # the lock is for a single connection; with a pool it would let one worker work at a time
        return saver

    def trouble(self) -> str | None:
        """As `Reachable`. The first time it also checks the tables."""
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
        remedy = "if this is the right database, create them with --setup, or with PostgresSaver.setup()"
        try:
            found = connection.execute("SELECT max(v) AS v FROM checkpoint_migrations").fetchone()["v"]
        except self._psycopg.Error as error:
            if error.sqlstate not in _NOT_THERE:
                raise
            raise Refused(f"{self.name} has none of LangGraph's tables: {remedy}") from error
        if found is None or found < len(saver.MIGRATIONS) - 1:
            raise Refused(
                f"{self.name}: LangGraph's tables are of an older version: if this is the right database, update them with --setup, or with PostgresSaver.setup()"
            )

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
    """If LANGGRAPH_AES_KEY is set: a serializer that reads encrypted values, writes all values encrypted, and leaves objects packed. If not, None.

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
    """An error and its causes. The error of a cluster's client says only in its cause why no node answered."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
