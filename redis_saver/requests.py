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


class Scan(NamedTuple):
    """Go on looking for keys. Reply: (where to go on, None at the end; a list of keys). A key may come twice."""

    pattern: bytes
    position: Any


class Page(Generic[T]):
    """Results that are ready, from an operation that streams. Reply: None."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items


Request: TypeAlias = Call | Command | Batch | Scan
Operation: TypeAlias = Generator[Request, Any, T]
"""An operation with one result, T."""
Stream: TypeAlias = Generator["Request | Page[T]", Any, None]
"""An operation with many results."""
