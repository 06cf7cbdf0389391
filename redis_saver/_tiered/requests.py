"""The requests that operations over two tiers yield, beside those that hot answers (`redis_saver/_engine/requests.py`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis_saver._engine.requests import Page, Request, T
from redis_saver.errors import RedisSaverError


class ColdCall(NamedTuple):
    """A call of the cold saver, by its method's name without an `a` in front. Reply: what it returns; of `list`, a list."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = {}

    def with_options(self, **more: Any) -> ColdCall:
        """The call with more options."""
        return self._replace(options={**self.options, **more})


class Attempt(NamedTuple):
    """A request that may fail. Reply: an `Outcome`."""

    request: ColdCall | SingleFlight | Request


class Outcome(NamedTuple):
    """The reply to a request, or its error."""

    reply: Any
    error: Exception | None


class SingleFlight(NamedTuple):
    """Work that all who ask for it at the same time wait for together. Reply: its result for the first caller, None for the others."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


TieredRequest: TypeAlias = "Request | ColdCall | Attempt | SingleFlight"
Tiered: TypeAlias = Generator[TieredRequest, Any, T]
TieredStream: TypeAlias = Generator["TieredRequest | Page[T]", Any, None]


def setup(cold: object) -> Tiered[None]:
    """Call `setup` of the saver or store behind, which creates its tables. Some have none."""
    if callable(getattr(cold, "setup", None)):
        yield ColdCall("setup")


class HotFailed(RedisSaverError):
    """Hot failed and may be bypassed. Users never see this: if hot is not bypassed, its own error is raised."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a server refused a write because it is full, also where hot may be bypassed.

    Each client has a class of its own for that, and leaves out the code of the reply.
    """
    if isinstance(error, HotFailed):
        error = error.__cause__ or error
    return type(error).__name__ == "OutOfMemoryError" or str(error).startswith("OOM ")
