"""Servers that a long-running command watches: Redis, and Postgres over a pool of connections."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from redis import exceptions as redis_errors

from redis_saver._checkpoint.saver import RedisSaver, driver_of
from redis_saver._cli import screen
from redis_saver._client import clients, urls
from redis_saver._common.display import printable
from redis_saver._migrate.opening import CONNECTING, is_encrypted, needs, serializer
from redis_saver.encryption import Encryption
from redis_saver.errors import EndpointError

_ANSWERING = 10
"""Seconds to wait for a connection from the pool."""
_NOT_YOURS = (
    *(redis_errors.AuthenticationError, redis_errors.AuthenticationWrongNumberOfArgsError),
    *(redis_errors.AuthorizationError, redis_errors.NoPermissionError),
)
_WRONG_REDIS = re.compile(r"DB index|invalid password|Cluster mode is not enabled|cluster support disabled")
_WRONG_POSTGRES = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
    r"|is not permitted to log in|does not support SSL|Servname not supported"
)
"""Messages of refused connections, for which psycopg has no SQLSTATE. In other languages, the server is retried."""
_NOT_THERE = ("42P01", "3F000")
_NOT_ALLOWED = ("28000", "28P01", "3D000", "42501")
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_LIVELY = {"connect_timeout": CONNECTING, **_KEEPALIVE}
"""Options with which libpq soon notices that a host is gone."""


class Server(ABC):
    """A server that a long-running command watches."""

    why: str = ""
    """Its name and error at the last check. Empty if it answered."""
    _failures: tuple[type[Exception], ...]

    def __init__(self, url: str) -> None:
        self.name: str = urls.without_login(url)
        self.url: str = url

    def is_up(self) -> bool:
        """Check whether the server answers, and report changes on stderr. If it returns False, a retry may help.

        Raises:
            EndpointError: A URL, a login, a package or a table is wrong, so a retry would not help.
        """
        why, was_up = "", not self.why
        try:
            self._use()
        except self._failures as error:
            why = self._text(error)
            if self._is_final(error):
                raise EndpointError(f"{self.name}: {why}") from urls.cause_of(error, self.url)
        if why and was_up:
            warn(f"{self.name}: {why}; retrying until it answers")
        if not why and not was_up:
            warn(f"{self.name}: it answers again")
        self.why = f"{self.name}: {why}" if why else ""
        return not why

    def _text(self, error: Exception) -> str:
        return printable(urls.without_password(str(error) or type(error).__name__, self.url))

    @abstractmethod
    def _use(self) -> None:
        """Use the server once."""

    @abstractmethod
    def _is_final(self, error: Exception) -> bool:
        """True if a retry would not help."""


class Hot(Server):
    """Redis."""

    _failures = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)

    def __init__(self, url: str, prefix: str, encryption: Encryption | None = None) -> None:
        super().__init__(url)
        self._prefix, self._encryption = prefix, encryption
        self.saver: Any = None
        """The saver, or None until the first check."""

    def _use(self) -> None:
        if self.saver is None:
            self.saver = self._make_saver()
        self.saver.setup()

    def _make_saver(self) -> RedisSaver:
        serde = serializer() if is_encrypted() else None
        try:
            client = clients.connect(self.url, asynchronous=False)
            return RedisSaver(client, prefix=self._prefix, serde=serde, encryption=self._encryption)
        except ValueError as error:
            raise EndpointError(self._text(error)) from None

    def _is_final(self, error: Exception) -> bool:
        return any(isinstance(each, _NOT_YOURS) or _WRONG_REDIS.search(str(each)) for each in _causes(error))

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
            workers: Maximum number of connections in the pool. Each check of the server makes one more.
            setup: True to create or update the tables. If False, they have to exist.

        Raises:
            EndpointError: The URL is invalid, or a package is missing.
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
            raise EndpointError(f"{self.name}: {self._text(error)}") from urls.cause_of(error, self.url)
        self._settings: Any = {name: value for name, value in _LIVELY.items() if name not in options}
        self._settings |= {"autocommit": True, "prepare_threshold": 0, "row_factory": self._psycopg.rows.dict_row}
        self._reached, self._pool = False, None

    @property
    def saver(self) -> Any:
        """A new `PostgresSaver` whose calls run in parallel, each on its own connection."""
        logging.getLogger("psycopg").addHandler(logging.NullHandler())  # `is_up` reports errors once
        self._pool = self._pools.ConnectionPool(
            self.url,
            min_size=1,
            max_size=self._workers,
            kwargs=self._settings,
            timeout=_ANSWERING,
            reconnect_timeout=CONNECTING,  # then the next caller reconnects, without growing pauses
            open=True,
        )
        return self._postgres.PostgresSaver(self._pool, serde=serializer() if is_encrypted() else None)

    def _use(self) -> None:
        with self._psycopg.Connection.connect(self.url, **self._settings) as connection:
            if not self._reached:
                self._check_tables(connection)
                self._reached = True
            connection.execute("SELECT 1")

    def _is_final(self, error: Any) -> bool:
        return error.sqlstate in _NOT_ALLOWED or bool(error.sqlstate is None and _WRONG_POSTGRES.search(str(error)))

    def _check_tables(self, connection: Any) -> None:
        saver = self._postgres.PostgresSaver(connection)
        if self._setup:
            saver.setup()
            return
        remedy = "If it is the right database, create or update them with --setup, or with PostgresSaver.setup()"
        try:
            version = connection.execute("SELECT max(v) AS v FROM checkpoint_migrations").fetchone()["v"]
        except self._psycopg.Error as error:
            if error.sqlstate not in _NOT_THERE:
                raise
            raise EndpointError(f"{self.name} lacks LangGraph's tables. {remedy}") from error
        if version is None or version < len(saver.MIGRATIONS) - 1:
            raise EndpointError(f"{self.name}: LangGraph's tables are old. {remedy}")

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.close(timeout=1)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    screen.note(f"redis-saver: {text}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an error and its causes, because the reason of a cluster client's error is only in its cause."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
