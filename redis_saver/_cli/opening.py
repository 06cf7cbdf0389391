"""The savers that commands ask."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._checkpoint.sync import RedisSaver
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._cli.arguments import is_encrypted, postgres_url, redis_url
from redis_saver._cli.health import Cold
from redis_saver._common.display import printable, shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call, Operation
from redis_saver._migrate.opening import opened
from redis_saver._serde.serializer import StrictSerializer
from redis_saver._storage.context import Context
from redis_saver._tiered.all_threads import threads_of, tiered_threads
from redis_saver._tiered.saver import driver_over, tiers_of, with_own_errors
from redis_saver._tiered.sync import TieredSaver
from redis_saver.errors import EndpointError, KeyConflict, ThreadNotFound

_NO_TABLE = "42P01"
_CONNECTIONS = 4
"""To Postgres, for a command that answers several at once."""


@dataclass(frozen=True)
class Savers:
    """What a command asks."""

    saver: Any
    """A saver over two tiers, if Postgres was named; else that of Redis."""
    hot: RedisSaver
    """That of Redis."""
    has_cold: bool
    """Whether Postgres was named."""

    def thread(self, name: str) -> Any:
        """What there is of a thread.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        if (found := self.saver.get_thread(name)) is None:
            raise ThreadNotFound(f"thread {shown(name)} is not there: see whether its name and --prefix are right")
        return found

    def threads(self, asked: ThreadQuery) -> Iterator[Any]:
        """The threads that are looked for, each once, and all that are damaged, as `Damaged`; in front of a cold tier those of both."""
        if self.has_cold:
            return driver_over(self.saver).stream(with_own_errors(tiered_threads(tiers_of(self.saver), asked)))
        return driver_of(self.hot).stream(threads_of(context_of(self.hot), asked))

    def refuse_cold_backed(self, name: str, done: str) -> None:
        """Refuse what would be undone by a cold tier.

        Raises:
            EndpointError: The thread is in a cold tier, too, and none was named.
        """
        if not self.has_cold and driver_of(self.hot).run(_is_cold_backed(context_of(self.hot), name)):
            raise EndpointError(
                f"thread {shown(name)} is in a cold tier, too, and what is {done} in Redis alone comes back from there, or is not all of it. Nothing was "
                f"{done}. Name it with --postgres URL. If there is none any more, or it is another saver, do it in Python"
            )


def _is_cold_backed(context: Context, name: str) -> Operation[bool]:
    try:
        (found,) = yield Call(scripts.READ_FIELDS, (context.keyspace.keys(name).data_key,), (1, "@cold_backed"))
    except KeyConflict:  # it is no thread, and what would change it says so
        return False
    return found is not None


@contextmanager
def opened_savers(
    url: str | None, prefix: str, postgres: str | None = None, *, readable: bool = True, long_running: bool = False
) -> Iterator[Savers]:
    """The savers that URLs name.

    Args:
        url: Of Redis.
        prefix: The beginning of all keys.
        postgres: Of the cold tier, if there is one.
        readable: Whether values become objects, if their classes are among those that LangGraph calls safe. If not, they stay packed, so
            that what is copied is the same byte for byte.
        long_running: Whether the command goes on when Postgres was gone and is back: then it has a pool of connections instead of one.

    Raises:
        EndpointError: A URL is not understood, leads nowhere, or Postgres fails.
    """
    url, postgres = redis_url(url), postgres_url(postgres)
    with ExitStack() as stack:
        hot = stack.enter_context(opened(url, target=False, prefix=prefix)).saver
        if readable:
            hot.serde = readable_serializer()
        if not postgres:
            yield Savers(hot, hot, has_cold=False)
            return
        cold = stack.enter_context(opened(postgres, target=False))
        saver = (
            stack.enter_context(closing(Cold(postgres, _CONNECTIONS, setup=False))).saver
            if long_running
            else cold.saver
        )
        saver.serde = hot.serde
        try:
            yield Savers(TieredSaver(hot, saver), hot, has_cold=True)
        except cold.failures as error:
            raise cold_failed(error) from error


def cold_failed(error: Exception) -> EndpointError:
    """The error for one of Postgres, while a command was at work."""
    remedy = ". It has none of LangGraph's tables: see whether it is the right database"
    return EndpointError(
        f"--postgres: {printable(str(error))}{remedy if getattr(error, 'sqlstate', '') == _NO_TABLE else ''}"
    )


def readable_serializer() -> SerializerProtocol:
    """A serializer that makes objects only of classes that LangGraph calls safe; it decrypts, if the environment has a key."""
    logging.getLogger("langgraph").addHandler(
        logging.NullHandler()
    )  # which says once of each other class that it is none
    serde: SerializerProtocol = StrictSerializer()
    return EncryptedSerializer.from_pycryptodome_aes(serde) if is_encrypted() else serde
