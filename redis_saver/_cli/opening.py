"""The savers that commands ask."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._checkpoint.sync import RedisSaver
from redis_saver._cli.arguments import is_encrypted, needed, refuse_embedded
from redis_saver._common.display import printable, shown
from redis_saver._engine.requests import Command, Operation
from redis_saver._migrate.opening import opened
from redis_saver._serde.serializer import StrictSerializer
from redis_saver._storage.context import Context
from redis_saver._tiered.sync import TieredSaver
from redis_saver.errors import EndpointError, ThreadNotFound


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
    (found,) = yield Command(("HMGET", context.keyspace.keys(name).data_key, "@cold_backed"))
    return found is not None


@contextmanager
def opened_savers(
    url: str | None, prefix: str, postgres: str | None = None, *, readable: bool = True
) -> Iterator[Savers]:
    """The savers that URLs name.

    Args:
        url: Of Redis.
        prefix: The beginning of all keys.
        postgres: Of the cold tier, if there is one.
        readable: Whether values become objects, if their classes are among those that LangGraph calls safe. If not, they stay packed, so
            that what is copied is the same byte for byte.

    Raises:
        EndpointError: A URL is not understood, leads nowhere, or Postgres fails.
    """
    refuse_embedded(url := needed(url))
    with ExitStack() as stack:
        hot = stack.enter_context(opened(url, target=False, prefix=prefix)).saver
        if readable:
            hot.serde = readable_serializer()
        if not postgres:
            yield Savers(hot, hot, has_cold=False)
            return
        cold = stack.enter_context(opened(postgres, target=False))
        cold.saver.serde = hot.serde
        try:
            yield Savers(TieredSaver(hot, cold.saver), hot, has_cold=True)
        except cold.failures as error:
            raise EndpointError(f"--postgres: {printable(str(error))}") from error


def readable_serializer() -> SerializerProtocol:
    """A serializer that makes objects only of classes that LangGraph calls safe; it decrypts, if the environment has a key."""
    logging.getLogger("langgraph").addHandler(
        logging.NullHandler()
    )  # which says once of each other class that it is none
    serde: SerializerProtocol = StrictSerializer()
    return EncryptedSerializer.from_pycryptodome_aes(serde) if is_encrypted() else serde
