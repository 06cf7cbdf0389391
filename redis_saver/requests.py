"""What an operation asks of its driver.

An operation is a generator: it yields requests, is sent their replies, and does no I/O of its own. So each one is written
once for sync and async, and encoding stands beside decoding.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from redis_saver.scripts import Script

T = TypeVar("T")
Argument: TypeAlias = bytes | str | int


class Call(NamedTuple):
    """Run a script on the keys of one thread. Reply: what the script returns."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[Argument]


class Command(NamedTuple):
    """Send one command, whose first argument is its name and whose second is a key. Reply: the command's."""

    arguments: Sequence[Argument]


class Batch(NamedTuple):
    """Requests about different threads that may travel together. Reply: the list of their replies."""

    requests: Sequence[Call | Command]


class Replicas(NamedTuple):
    """Wait until replicas have all that was written before. Reply: how many have it, when it is enough or the time is up.

    WAIT counts from the last write of its own connection (https://redis.io/docs/latest/commands/wait/), and a client has many, so a
    key is written in front of it: replicas get writes in order.
    """

    key: bytes
    least: int
    milliseconds: int

    @property
    def commands(self) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
        """What to send, in this order, on one connection."""
        return ("SET", self.key, "", "PX", 1), ("WAIT", self.least, self.milliseconds)


class Scan(NamedTuple):
    """Go on looking for keys. Reply: (where to go on, None at the end; a list of keys). A key may come twice."""

    pattern: bytes
    position: Any


class Page(Generic[T]):
    """Results that are ready, from an operation that streams. Reply: None."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items


Request: TypeAlias = Call | Command | Batch | Scan | Replicas
Operation: TypeAlias = Generator[Request, Any, T]
"""An operation with one result, T."""
Stream: TypeAlias = Generator["Request | Page[T]", Any, None]
"""An operation with many results."""
