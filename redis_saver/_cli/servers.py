"""The two servers of `flush`, and whether they can be reached.

If another try may help, `is_up` returns False. If it cannot, as with a wrong password, `is_up` raises.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
)

from redis_saver._checkpoint.saver import RedisSaver, driver_of
from redis_saver._cli import screen
from redis_saver._client import clients, urls
from redis_saver._common.display import printable
from redis_saver._common.names import Keyspace
from redis_saver._migrate.opening import is_encrypted, needs, serializer
from redis_saver.errors import EndpointError

_CONNECTING = 5
"""Seconds to wait for a connection to a server, unless its URL says otherwise."""
_ANSWERING = 10
"""Seconds to wait for a reply of Redis, and for a connection from the pool, unless the URL says otherwise."""
_NOT_YOURS = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError, NoPermissionError)
_WRONG_REDIS = re.compile(r"DB index|invalid password|Cluster mode is not enabled|cluster support disabled")
_WRONG_POSTGRES = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
    r"|is not permitted to log in|does not support SSL|Servname not supported"
)
"""Messages of refused connections, which have no SQLSTATE in psycopg. In other languages the server is tried again."""
_NOT_THERE = ("42P01", "3F000")
_NOT_ALLOWED = ("28000", "28P01", "3D000", "42501")
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_LIVELY = {"connect_timeout": _CONNECTING, **_KEEPALIVE}
"""Options of libpq, so that the flusher does not wait for a host that is gone."""


class Server(ABC):
    """A server that a long-running command watches."""

    why: str = ""
    """Its name, and why it could not be used at the last look. It is empty if it could."""
    _failures: tuple[type[Exception], ...]

    def __init__(self, url: str) -> None:
        self.name: str = urls.without_login(url)
        self._url = url

    def is_up(self) -> bool:
        """Look whether the server can be used, and say on stderr if that has changed.

        Raises:
            EndpointError: A URL, a login, a package or a table is wrong. Another try would not help.
        """
        why, was_up = "", not self.why
        try:
            self._use()
        except self._failures as error:
            why = self._text(error)
            if self._is_final(error):
                raise EndpointError(f"{self.name}: {why}") from urls.cause_of(error, self._url)
        if why and was_up:
            warn(f"{self.name}: {why}; it is tried again until it answers")
        if not why and not was_up:
            warn(f"{self.name}: it answers again")
        self.why = f"{self.name}: {why}" if why else ""
        return not why

    def _text(self, error: Exception) -> str:
        return printable(urls.without_password(str(error) or type(error).__name__, self._url))

    @abstractmethod
    def _use(self) -> None:
        """Use the server once."""

    @abstractmethod
    def _is_final(self, error: Exception) -> bool:
        """True if another try would not help."""


class Hot(Server):
    """Redis."""

    _failures = (RedisError, RedisClusterException, OSError)

    def __init__(self, url: str, prefix: str) -> None:
        """Check the prefix. Nothing is sent.

        Args:
            url: URL as in `RedisSaver.from_conn_string`, except `memory://`.
            prefix: Beginning of all keys.

        Raises:
            EndpointError: The prefix makes no sense.
        """
        super().__init__(url)
        try:
            Keyspace(prefix)
        except ValueError as error:
            raise EndpointError(f"--prefix: {error}") from error
        self._prefix = prefix
        self.saver: Any = None
        """The saver, once the server was reached."""

    def _use(self) -> None:
        if self.saver is None:
            serde = serializer() if is_encrypted() else None
            self.saver = RedisSaver(self._connect(), prefix=self._prefix, serde=serde)
        self.saver.setup()

    def _is_final(self, error: Exception) -> bool:
        return any(isinstance(each, _NOT_YOURS) or _WRONG_REDIS.search(str(each)) for each in _causes(error))

    def _connect(self) -> Any:
        timeouts = {"socket_timeout": float(_ANSWERING)}
        if not self._url.startswith("unix:"):
            timeouts["socket_connect_timeout"] = float(_CONNECTING)
        options = {name: seconds for name, seconds in timeouts.items() if f"{name}=" not in self._url}
        try:
            return clients.connect(self._url, asynchronous=False, **options)
        except ValueError as error:
            raise EndpointError(self._text(error)) from None

    def close(self) -> None:
        """Close the client, if there is one."""
        if self.saver is not None:
            driver: Any = driver_of(self.saver)
            driver.close()


class Cold(Server):
    """Postgres, by LangGraph's `PostgresSaver` over a pool of connections."""

    def __init__(self, url: str, workers: int, *, setup: bool) -> None:
        """Check the URL. Nothing is sent.

        Args:
            url: `postgresql://...`, as libpq reads it.
            workers: Maximum number of connections. Each look whether the server is up makes one more.
            setup: True to create the tables, or bring them up to date. Otherwise they have to exist.

        Raises:
            EndpointError: The URL makes no sense, or a package is missing.
        """
        super().__init__(url)
        self._workers, self._setup = workers, setup
        self._psycopg, self._pools = needs("postgres", "psycopg"), needs("postgres", "psycopg_pool")
        self._postgres = needs("postgres", "langgraph.checkpoint.postgres")
        self._failures = (self._psycopg.Error,)
        try:
            urls.check_postgres(url)
            options = self._psycopg.conninfo.conninfo_to_dict(url)
        except ValueError as error:
            raise EndpointError(str(error)) from error
        except self._psycopg.Error as error:
            raise EndpointError(f"{self.name}: {self._text(error)}") from urls.cause_of(error, self._url)
        self._settings: Any = {name: value for name, value in _LIVELY.items() if name not in options}
        self._settings |= {"autocommit": True, "prepare_threshold": 0, "row_factory": self._psycopg.rows.dict_row}
        self._reached, self._pool = False, None

    @property
    def saver(self) -> Any:
        """A new `PostgresSaver` whose calls do not wait for each other, because each has its own connection."""
        logging.getLogger("psycopg").addHandler(logging.NullHandler())  # `is_up` says it once
        self._pool = self._pools.ConnectionPool(
            self._url,
            min_size=1,
            max_size=self._workers,
            kwargs=self._settings,
            timeout=_ANSWERING,
            reconnect_timeout=_CONNECTING,  # then the next caller starts anew, without growing pauses
            open=True,
        )
        saver = self._postgres.PostgresSaver(self._pool, serde=serializer() if is_encrypted() else None)
        saver.lock = nullcontext()  # with a pool the saver's lock would let one worker work at a time
        return saver

    def _use(self) -> None:
        with self._psycopg.Connection.connect(self._url, **self._settings) as connection:
            if not self._reached:
                self._look_at_tables(connection)
                self._reached = True
            connection.execute("SELECT 1")

    def _is_final(self, error: Any) -> bool:
        return error.sqlstate in _NOT_ALLOWED or bool(error.sqlstate is None and _WRONG_POSTGRES.search(str(error)))

    def _look_at_tables(self, connection: Any) -> None:
        saver = self._postgres.PostgresSaver(connection)
        if self._setup:
            saver.setup()
            return
        remedy = "them with --setup, or with PostgresSaver.setup()"
        try:
            version = connection.execute("SELECT max(v) AS v FROM checkpoint_migrations").fetchone()["v"]
        except self._psycopg.Error as error:
            if error.sqlstate not in _NOT_THERE:
                raise
            raise EndpointError(
                f"{self.name} has none of LangGraph's tables: if this is the right database, create {remedy}"
            ) from error
        if version is None or version < len(saver.MIGRATIONS) - 1:
            raise EndpointError(
                f"{self.name}: LangGraph's tables are of an older version: if this is the right database, "
                f"update {remedy}"
            )

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.close(timeout=1)


def warn(text: str) -> None:
    """Say on stderr what is wrong."""
    screen.note(f"redis-saver: {text}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an error and its causes. The error of a cluster's client has its reason only in its cause."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
