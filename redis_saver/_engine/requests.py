"""Requests of an operation to its driver.

An operation is a generator. It yields requests, receives their replies, and does no I/O itself. So one operation serves
sync and async callers, and encodes requests next to the code that decodes their replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from redis_saver._engine.scripts import Script

KEYS_PER_SCAN = 1000
T = TypeVar("T")
R = TypeVar("R")
"""A request: a `Request`, or over two tiers also one of `redis_saver/_tiered/requests.py`."""
Argument: TypeAlias = bytes | str | int


class Call(NamedTuple):
    """Run a script whose keys are in one cluster slot. Reply: what the script returns."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[Argument]


class Command(NamedTuple):
    """Send one command, whose second argument is a key unless `keys` has some. Reply: the command's."""

    arguments: Sequence[Argument]
    keys: Sequence[bytes] = ()
    """Our keys. If one has the wrong type, the error names it."""


class Batch(NamedTuple):
    """Requests about different threads, which may share a round trip. Reply: the list of their replies."""

    requests: Sequence[Call | Command]


class Scan(NamedTuple):
    """Do one step of SCAN. A key may come twice.

    Reply: the position for the next step (None at the end), and a list of keys.
    """

    pattern: bytes
    position: Any


class ToEach(NamedTuple):
    """Send a command without a key to every primary. Reply: a dict of their replies by name, `""` without a cluster."""

    arguments: Sequence[Argument]


class Sleep(NamedTuple):
    """Wait. Reply: None."""

    seconds: float


class Ask(NamedTuple):
    """Ask the provider of keys. Reply: its answer."""

    ask: Callable[..., Any]
    aask: Callable[..., Awaitable[Any]]
    """`ask` for asyncio."""
    arguments: Sequence[Any]


class AskAll(NamedTuple):
    """Ask the provider of keys several questions, some at the same time. Reply: a list of its answers and errors."""

    questions: Sequence[Ask]


class Page(Generic[T]):
    """Results of an operation that streams. Reply: None."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items


Request: TypeAlias = Call | Command | Batch | Scan | ToEach | Sleep | Ask | AskAll


@overload
def key_of(request: Call | Command) -> bytes: ...
@overload
def key_of(request: Call | Command | Batch) -> bytes | None: ...
def key_of(request: Call | Command | Batch) -> bytes | None:
    """Return a key of the thread that a request is about. It decides the cluster slot. None for an empty batch."""
    if isinstance(request, Batch):
        return key_of(request.requests[0]) if request.requests else None
    return request.keys[0] if request.keys else request.arguments[1]  # type: ignore[return-value]


Operation: TypeAlias = Generator[Request, Any, T]
"""An operation with one result, T."""
Stream: TypeAlias = Generator["Request | Page[T]", Any, None]
"""An operation with many results."""
