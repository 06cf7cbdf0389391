"""Servers of commands: their URLs, the savers over them, and for `flush` whether they answer."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol
from redis import exceptions as redis_errors

from redis_saver._cache.cache import RedisCache
from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.saver import RedisSaver, context_of, driver_of
from redis_saver._cli import screen
from redis_saver._client import clients, urls
from redis_saver._common.display import printable, shown
from redis_saver._engine.requests import Call, Operation
from redis_saver._inspector.memory import Memory
from redis_saver._inspector.source import Source
from redis_saver._migrate.opening import CONNECTING, is_encrypted, needs, opened, opened_store, serializer
from redis_saver._migrate.savers import our_prefixes
from redis_saver._serde.serializer import StrictSerializer
from redis_saver._storage.context import Context
from redis_saver._store import store as stores
from redis_saver._tiered.saver import TieredSaver
from redis_saver.encryption import Encryption
from redis_saver.errors import EndpointError, KeyConflict, ThreadNotFound


def redis_url(url: str | None) -> str:
    """Check the URL of a server of Redis or Valkey.

    Raises:
        EndpointError: The URL is missing, or not that of such a server.
    """
    if not url:
        raise EndpointError("write --redis URL, or set REDIS_URL in the environment")
    refuse_embedded(url)
    if url.partition(":")[0] not in urls.SCHEMES:
        forms = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        raise EndpointError(f"--redis {urls.without_login(url)} is not the URL of a server: write {forms}")
    return url


def postgres_url(url: str | None) -> str | None:
    """Check the URL of a cold tier, if there is one.

    Raises:
        EndpointError: The URL is not that of Postgres.
    """
    if url and url.partition(":")[0] not in ("postgresql", "postgres"):
        form = "postgresql://user@host/database"
        raise EndpointError(f"--postgres {urls.without_login(url)} is not the URL of a database: write {form}")
    return url


def refuse_embedded(url: str) -> None:
    """Refuse `memory:` URLs.

    Raises:
        EndpointError: The URL is that of an embedded server.
    """
    if url.startswith("memory:"):
        raise EndpointError(f"{url}: an embedded server ends with this command. Name a server: redis://host:6379")


class Savers(NamedTuple):
    """The savers of a command."""

    saver: Any
    """The saver over both tiers if Postgres was named, otherwise `hot`."""
    hot: RedisSaver
    """The saver over Redis."""
    endpoints: Sequence[Any]
    """Redis, and Postgres if it was named, as sources of threads."""

    @property
    def source(self) -> Source:
        """Reader of the saver's data. Its reads move no deadline, and copy nothing to hot."""
        return Source(self.saver)

    def thread(self, name: str) -> Any:
        """Return the information about a thread.

        Raises:
            ThreadNotFound: There is no such thread. The message names the prefixes that have threads.
        """
        try:
            return self.source.thread(name)
        except ThreadNotFound as error:
            own, there = context_of(self.hot).keyspace.prefix, our_prefixes(driver_of(self.hot), _SECONDS)
            others = ", ".join(shown(prefix) for prefix, _ in there.most_common(_PREFIXES) if prefix != own)
            hint = f"; there are threads under {others}: add --prefix" if others else ""
            raise ThreadNotFound(f"{error}. The prefix is {shown(own)}{hint}") from None

    @property
    def has_cold(self) -> bool:
        """True if Postgres was named."""
        return len(self.endpoints) > 1

    def refuse_cold_backed(self, name: str, done: str) -> None:
        """Refuse to change a thread in Redis alone if a cold tier would undo that.

        Raises:
            EndpointError: The thread is also in a cold tier, but --postgres is missing.
        """
        if not self.has_cold and driver_of(self.hot).run(_is_cold_backed(context_of(self.hot), name)):
            raise EndpointError(
                f"thread {shown(name)} is also in a cold tier, so it must be {done} there, too. Nothing was {done}. "
                "Name the tier with --postgres URL. If it is gone, or is not Postgres, do this in Python"
            )


def _is_cold_backed(context: Context, name: str) -> Operation[bool]:
    try:
        (value,) = yield Call(scripts.READ_FIELDS, (context.keyspace.keys(name).data_key,), (1, "@cold_backed"))
    except KeyConflict:  # it is no thread; the command that changes it reports that
        return False
    return value is not None


_PREFIXES, _SECONDS = 6, 2.0
"""Maximum number of prefixes that an error names, and of seconds to look for them."""
_CONNECTIONS = 4
"""Maximum number of a command's connections to Postgres in use."""


class Servers(NamedTuple):
    """URLs of a command's servers, unchecked, the prefix of its keys, and the keys of encrypted threads."""

    url: str | None
    postgres: str | None
    prefix: str
    encryption: Encryption | None = None

    @contextmanager
    def savers(self, *, readable: bool = True, require_encryption: bool = False) -> Iterator[Savers]:
        """Open the savers.

        Args:
            readable: True to make objects of classes that LangGraph calls safe. If False, objects stay packed, so
                copies are the same byte for byte.
            require_encryption: True to report values without encryption, if there is a key.

        Raises:
            EndpointError: A URL is invalid, or a server cannot be reached, or Postgres fails.
        """
        url, postgres = redis_url(self.url), postgres_url(self.postgres)
        with ExitStack() as stack:
            options: Any = {
                "require_encryption": require_encryption and (is_encrypted() or self.encryption is not None)
            }
            source = opened(url, target=False, prefix=self.prefix, encryption=self.encryption, **options)
            endpoint = stack.enter_context(source)
            hot = endpoint.saver
            if readable:
                hot.serde = _readable_serializer()
            if not postgres:
                yield Savers(hot, hot, [endpoint])
                return
            cold = stack.enter_context(opened(postgres, target=False))
            # A pool survives outages, and a connection on which a call hangs would not close.
            saver = stack.enter_context(closing(Cold(postgres, _CONNECTIONS, setup=False))).saver
            saver.serde = hot.serde if readable else cold.saver.serde
            try:
                yield Savers(TieredSaver(hot, saver), hot, [endpoint, cold])
            except cold.failures as error:
                no_table = getattr(error, "sqlstate", "") == "42P01"
                remedy = ". LangGraph's tables are missing: check that it is the right database" if no_table else ""
                raise EndpointError(f"--postgres: {printable(str(error))}{remedy}") from error

    @contextmanager
    def memory(self) -> Iterator[Memory]:
        """Open the store and the cache in Redis.

        Raises:
            EndpointError: The URL is invalid, or the server cannot be reached.
        """
        url = redis_url(self.url)
        with opened_store(url, target=False, prefix=self.prefix, encryption=self.encryption) as endpoint:
            driver: Any = stores.driver_of(endpoint.store)
            stores.use_values(endpoint.store, serde=_readable_serializer())
            yield Memory(endpoint.store, RedisCache(driver.client, prefix=self.prefix))


def _readable_serializer() -> SerializerProtocol:
    """Return a serializer that makes objects only of safe classes, and decrypts if there is a key."""
    logging.getLogger("langgraph").addHandler(logging.NullHandler())  # it would log all other classes
    return serializer(StrictSerializer())


# -- flush

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
