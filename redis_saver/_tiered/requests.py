"""The requests that operations over two tiers yield, besides those that hot answers (`_engine/requests.py`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import Self

from redis_saver._engine.requests import Page, R, Request, T
from redis_saver.errors import RedisSaverError


class ColdCall(NamedTuple):
    """A call of the cold saver, by its method's name without the `a`. Reply: its result; for `list`, a list."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = {}

    def with_options(self, **more: Any) -> ColdCall:
        """Return the call with more options."""
        return self._replace(options={**self.options, **more})


class Attempt(NamedTuple):
    """A request that may fail. Reply: an `Outcome`."""

    request: ColdCall | SingleFlight | Request


class Outcome(NamedTuple):
    """The reply to a request, or its error."""

    reply: Any
    error: Exception | None


class SingleFlight(NamedTuple):
    """Work that concurrent callers with one key wait for. Reply: its result for the first caller, else None."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


class Parallel(NamedTuple):
    """Operations that some workers run side by side. Reply: the list of their results so far."""

    take: Callable[[], Tiered[Any] | None]
    """Returns the next operation; None if there is no more."""
    workers: int
    until: float
    """The time (`time.monotonic`) until which the caller waits for the workers."""


TieredRequest: TypeAlias = "Request | ColdCall | Attempt | SingleFlight | Parallel"
Tiered: TypeAlias = Generator[TieredRequest, Any, T]
TieredStream: TypeAlias = Generator["TieredRequest | Page[T]", Any, None]


class HotFailed(RedisSaverError):
    """Hot failed and may be bypassed. Users never see this: if hot is not bypassed, its own error is raised."""


def with_own_errors(operation: Generator[R, Any, T]) -> Generator[R, Any, T]:
    """Run an operation, and raise hot's own error in place of a `HotFailed` that was not bypassed."""
    try:
        return (yield from operation)
    except HotFailed as failed:
        raise (failed.__cause__ or failed) from None


def is_out_of_memory(error: BaseException) -> bool:
    """True if a server refused a write because it is full, also if hot may be bypassed.

    Each client has its own class for this error, and leaves out the reply's code.
    """
    if isinstance(error, HotFailed):
        error = error.__cause__ or error
    return type(error).__name__ == "OutOfMemoryError" or str(error).startswith("OOM ")


def setup(cold: object) -> Tiered[None]:
    """Call `setup` of the saver or store behind, which creates its tables. Some have no such method."""
    if callable(getattr(cold, "setup", None)):
        yield ColdCall("setup")


class capturing:  # noqa: N801 - used like a function
    """A context that keeps the error it ends with, instead of raising it.

    A cold saver may be of any kind, and raise anything. A thread that cannot be flushed must not hold up the others.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None
