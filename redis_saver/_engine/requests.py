"""Requests of an operation to its driver.

An operation is a generator: it yields requests, is sent their replies, and does no I/O of its own. So each one is
written once for sync and async, and encoding stands beside decoding.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from redis_saver._engine.scripts import Script

KEYS_PER_SCAN = 1000
T = TypeVar("T")
R = TypeVar("R")
"""A request that an operation yields: a `Request`; over two tiers also others (`redis_saver/_tiered/requests.py`)."""
Argument: TypeAlias = bytes | str | int


class Call(NamedTuple):
    """Run a script on the keys of one thread. Reply: what the script returns."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[Argument]


class Command(NamedTuple):
    """Send one command, whose first argument is its name and whose second is a key. Reply: the command's."""

    arguments: Sequence[Argument]
    keys: Sequence[bytes] = ()
    """If it is one of ours: what an error names where the key has another type."""


class Batch(NamedTuple):
    """Requests about different threads that may travel together. Reply: the list of their replies."""

    requests: Sequence[Call | Command]


class Scan(NamedTuple):
    """Do one step of SCAN. A key may come twice.

    Reply: the position to go on from (None at the end), and a list of keys.
    """

    pattern: bytes
    position: Any


class Sleep(NamedTuple):
    """Wait. Reply: None."""

    seconds: float


class Page(Generic[T]):
    """Results that are ready, from an operation that streams. Reply: None."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items


Request: TypeAlias = Call | Command | Batch | Scan | Sleep


@overload
def key_of(request: Call | Command) -> bytes: ...
@overload
def key_of(request: Call | Command | Batch) -> bytes | None: ...
def key_of(request: Call | Command | Batch) -> bytes | None:
    """A key of the thread that a request is about, which gives its cluster slot; None for an empty batch."""
    if isinstance(request, Batch):
        return key_of(request.requests[0]) if request.requests else None
    return request.keys[0] if isinstance(request, Call) else request.arguments[1]  # type: ignore[return-value]


Operation: TypeAlias = Generator[Request, Any, T]
"""An operation with one result, T."""
Stream: TypeAlias = Generator["Request | Page[T]", Any, None]
"""An operation with many results."""
