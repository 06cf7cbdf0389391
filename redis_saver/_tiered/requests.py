"""What operations over two tiers ask for, beside the requests of hot."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis_saver._engine.requests import Call, Command, Page, Request, T
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
    """A request that may fail. Reply: a `Outcome`."""

    request: ColdCall | Call | Command


class Outcome(NamedTuple):
    """What came of a request."""

    reply: Any
    error: Exception | None


class Sleep(NamedTuple):
    """Wait. Reply: None."""

    seconds: float


class SingleFlight(NamedTuple):
    """Something that all who ask for it at the same time wait for together. Reply: its result to the first, None to the others."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


TieredRequest: TypeAlias = "Request | ColdCall | Attempt | Sleep | SingleFlight"
Tiered: TypeAlias = Generator[TieredRequest, Any, T]
TieredStream: TypeAlias = Generator["TieredRequest | Page[T]", Any, None]


class HotFailed(RedisSaverError):
    """Hot failed, and is to be bypassed; else its own error is raised instead."""
