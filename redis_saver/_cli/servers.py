"""Servers of commands: their URLs, and the savers over them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._cache.cache import RedisCache
from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.saver import RedisSaver, context_of, driver_of
from redis_saver._cli.watched import Cold
from redis_saver._client import urls
from redis_saver._common.display import printable, shown
from redis_saver._engine.requests import Call, Operation
from redis_saver._inspector.memory import Memory
from redis_saver._inspector.source import Source
from redis_saver._migrate.opening import is_encrypted, opened, opened_store, serializer
from redis_saver._migrate.savers import our_prefixes
from redis_saver._serde.serializer import StrictSerializer
from redis_saver._storage.context import Context
from redis_saver._store import store as stores
from redis_saver._store.embedding import embedder_of
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

    def lacks_cold(self, name: str) -> bool:
        """True if a thread is also in a cold tier, but Postgres was not named. Cost: one round trip."""
        return not self.has_cold and driver_of(self.hot).run(_is_cold_backed(context_of(self.hot), name))

    def refuse_cold_backed(self, name: str, done: str) -> None:
        """Refuse to change a thread in Redis alone if a cold tier would undo that.

        Raises:
            EndpointError: The thread is also in a cold tier, but --postgres is missing.
        """
        if self.lacks_cold(name):
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
    def memory(self, index: Any = None) -> Iterator[Memory]:
        """Open the store and the cache in Redis. An index can only search.

        Raises:
            EndpointError: The URL is invalid, or the server cannot be reached.
        """
        url = redis_url(self.url)
        with opened_store(url, target=False, prefix=self.prefix, encryption=self.encryption) as endpoint:
            store: Any = endpoint.store
            driver: Any = stores.driver_of(store)
            stores.use_values(store, serde=_readable_serializer())
            store._context = stores.context_of(store)._replace(embedder=embedder_of(index))  # noqa: SLF001
            yield Memory(store, RedisCache(driver.client, prefix=self.prefix))


def _readable_serializer() -> SerializerProtocol:
    """Return a serializer that makes objects only of safe classes, and decrypts if there is a key."""
    logging.getLogger("langgraph").addHandler(logging.NullHandler())  # it would log all other classes
    return serializer(StrictSerializer())
