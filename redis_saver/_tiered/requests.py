"""Requests of operations over two tiers, in addition to those that hot answers (`_engine/requests.py`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis_saver._engine.counting import WAITS as WAITS_FOR_REDIS
from redis_saver._engine.requests import Page, R, Request, T

_WRITES = (
    *("put", "put_writes", "setup", "delete_thread", "delete_for_runs"),
    *("delete_checkpoints", "prune", "prune_thread", "replace_envelopes"),
)
"""Methods of cold that write. A `batch` of a store that writes `waits`."""


class ColdCall(NamedTuple):
    """A call of a method of the cold saver, named without the `a`. Reply: its result. For `list`, a list."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = {}
    is_packed: bool = False
    """True: values stay packed, if they can (`carrying.py`)."""
    is_sealed: bool = False
    """True: the call has envelopes, or no values, and its reply is not opened (`sealing.py`)."""
    around: Callable[[Tiered[Any]], Tiered[Any]] | None = None
    """Runs the operation that seals or opens the values, and notes its requests (`_Observed.watched`)."""
    waits: bool = False
    """True: wait for cold without a limit, as flushers, writes of a store, and reads within a write do."""

    @property
    def is_read(self) -> bool:
        """True for a read of cold by a caller, which has a time limit. Flushers and writes wait."""
        return self.method not in _WRITES and not self.waits


class SingleFlight(NamedTuple):
    """Work shared by concurrent callers with the same key. Reply: the result for the first, None for the others."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


class Parallel(NamedTuple):
    """Operations that several workers run at the same time. Reply: the list of their results so far."""

    take: Callable[[], Tiered[Any] | None]
    """Returns the next operation, or None at the end."""
    workers: int
    until: float
    """Time (`time.monotonic`) until which the caller waits for the workers."""


class TimeLimited(NamedTuple):
    """Work that the caller does not wait for beyond `cold_timeout`. Reply: its result.

    After that the work goes on, and the caller gets a `ColdTimeout`.
    """

    what: str
    make: Callable[[], Tiered[Any]]


TieredRequest: TypeAlias = "Request | ColdCall | SingleFlight | Parallel | TimeLimited"
Tiered: TypeAlias = Generator[TieredRequest, Any, T]
TieredStream: TypeAlias = Generator["TieredRequest | Page[T]", Any, None]


WAITS = {**WAITS_FOR_REDIS, ColdCall: "cold", SingleFlight: "waiting for others"}
"""Names of what a call waits for, by the class of a request."""


class HotFailed(Exception):
    """Hot failed and may be bypassed. Users never see this error: an operation that needs hot raises hot's own.

    It is no `RedisSaverError`, as hot's own is not, so that nobody takes it for an error about one thread.
    """


def attempt(request: TieredRequest) -> Tiered[tuple[Any, Exception | None]]:
    """Send a request that may fail. Returns the reply and None, or None and the error."""
    try:
        return (yield request), None
    except Exception as error:  # noqa: BLE001 - a cold saver may raise anything
        return None, error


def best_effort(tiers: Any, operation: Tiered[Any]) -> Tiered[None]:
    """Run an operation over hot. If hot fails and may be bypassed, ignore that, because cold has the data."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


def with_own_errors(operation: Generator[R, Any, T]) -> Generator[R, Any, T]:
    """Run an operation. A `HotFailed` that it does not bypass becomes hot's own error."""
    try:
        return (yield from operation)
    except HotFailed as failed:
        raise (failed.__cause__ or failed) from None


def is_out_of_memory(error: BaseException) -> bool:
    """True if a server refused a write because it is full. Accepts a `HotFailed`, too.

    Each client has its own class for this error, and removes the code `OOM` from the message.
    """
    if isinstance(error, HotFailed):
        error = error.__cause__ or error
    return type(error).__name__ == "OutOfMemoryError" or str(error).startswith("OOM ")


def newest_in_cold(thread: str) -> ColdCall:
    """Return the call that lists at most one checkpoint of a thread, without its values."""
    return ColdCall("list", ({"configurable": {"thread_id": thread}},), {"limit": 1}, is_sealed=True)


def setup(cold: object) -> Tiered[None]:
    """Call `setup` of the cold saver or store, which creates its tables. Some have no such method."""
    if callable(getattr(cold, "setup", None)):
        yield ColdCall("setup")
