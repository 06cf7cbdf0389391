"""Counting of calls, requests and bytes. It is always on. `stats.py` declares the numbers.

OS threads count without a lock. CPython switches OS threads only at function calls and backward jumps, so it cannot
interrupt `number += 1`. (On free-threaded builds numbers may be a little too low.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from contextvars import Context
from operator import length_hint
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from redis_saver._common import forks
from redis_saver._common.display import kind_of
from redis_saver._common.logs import ignoring
from redis_saver._engine.requests import Argument, Ask, AskAll, Batch, Call, Command, Page, R, Sleep, T, key_of
from redis_saver._engine.runner import Pump
from redis_saver._engine.stats import BOUNDS, Live, OperationStats, TrafficStats

StatsT = TypeVar("StatsT")
CANCELLED = "cancelled"
"""The kind of error of a call whose caller was stopped by a cancelled task or Ctrl-C."""


Around: TypeAlias = "Callable[[Generator[Any, Any, Any]], Generator[Any, Any, Any]]"
"""Returns an operation that runs another one."""
Ended: TypeAlias = Callable[[float, "str | None", "_Observed"], None]
"""Callback for the end of a call, with its duration in seconds, the kind of its error, and what was noted of it."""
WAITS: Mapping[type[Any], str] = {
    Sleep: "waiting for others", Ask: "the provider of keys", AskAll: "the provider of keys"
}  # fmt: skip
"""Names of what a call waits for, by the class of a request. All others are for Redis."""
Shares: TypeAlias = Sequence[tuple[Context, int]]
"""The requests of a pipeline that several calls share: the context of each request's caller, and its size in bytes."""
SharingObserver: TypeAlias = Callable[[Shares], Callable[[], None]]
"""Observes the start of a shared pipeline, in the context that sends it. Returns the callback for its end."""
Observer: TypeAlias = Callable[[str, bool], Ended]
"""Observes the start of a call, in the caller's context, by its name and whether it streams. Returns the callback for
its end. That of a stream may run in another context."""


class Counting:
    """Counter of the calls of a saver, a store or a cache."""

    def __init__(self, around: Around | None = None, waits: Mapping[type[Any], str] = WAITS) -> None:
        """Start at zero.

        Args:
            around: Each operation runs in it. It may turn the operation's error into the one to count.
            waits: As `WAITS`.
        """
        self._around, self._waits = around, waits
        self.observers: Mapping[object, Observer] = {}
        """They observe every call. Without observers this costs nothing. A key has one observer at a time."""
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, count from zero."""
        self._numbers: dict[str, list[Any]] = {}

    def snapshot(self) -> dict[str, OperationStats]:
        """Return the counts so far."""
        return {name: _stats_of(list(numbers)) for name, numbers in list(self._numbers.items())}

    def call(self, operation: Generator[R, Any, T], name: str = "") -> Generator[R, Any, T]:
        """Count an operation when it ends. Its default name is its generator's without leading underscores."""
        name = name or name_of(operation)
        operation = operation if self._around is None else self._around(operation)
        observed = _Observed(self.observers, name, self._waits) if self.observers else None
        began = perf_counter()
        try:
            result = yield from (operation if observed is None else observed.passing(operation))
        except BaseException as error:
            self._ended(name, perf_counter() - began, observed, error)
            raise
        self._ended(name, perf_counter() - began, observed)
        return result

    def stream(self, operation: Generator[R, Any, None], name: str = "") -> Generator[R, Any, None]:
        """Count an operation that streams, as `call` does for others. Closing the iterator early counts as success."""
        name = name or name_of(operation)
        operation = operation if self._around is None else self._around(operation)
        observed = _Observed(self.observers, name, self._waits, is_stream=True) if self.observers else None
        pump, spent, began = Pump(operation), 0.0, perf_counter()
        try:
            with closing(pump):
                for request in pump:
                    if isinstance(request, Page):
                        spent += perf_counter() - began
                        try:
                            yield request
                        except GeneratorExit:
                            self._ended(name, spent, observed)
                            return
                        began = perf_counter()
                        continue
                    with pump, observed.noting(request) if observed else nullcontext():
                        pump.reply = yield observed.watched(request) if observed else request
        except BaseException as error:
            self._ended(name, spent + perf_counter() - began, observed, error)
            raise
        self._ended(name, spent + perf_counter() - began, observed)

    def _ended(self, name: str, seconds: float, observed: _Observed | None, error: BaseException | None = None) -> None:
        numbers = self._numbers.get(name)
        if numbers is None:
            numbers = self._numbers.setdefault(name, [0, 0.0, *[0] * (len(BOUNDS) + 1)])
        bucket = 2 + bisect_left(BOUNDS, seconds)
        numbers[bucket] += 1
        numbers[1] += seconds
        if error is not None:
            numbers[0] += 1
        if observed is not None:
            observed.ended(seconds, error)


def name_of(operation: Generator[Any, Any, Any]) -> str:
    """Return the name of an operation. It is the name of the method that makes it."""
    name: str = operation.__name__  # type: ignore[attr-defined]  # generators have one, as collections.abc does not say
    return name.lstrip("_")


def _stats_of(numbers: Sequence[Any]) -> OperationStats:
    errors, seconds, *buckets = numbers
    histogram = dict(zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True))
    return OperationStats(sum(buckets), errors, seconds, histogram)


class _Observed:
    """A call with observers."""

    def __init__(
        self, observers: Mapping[object, Observer], name: str, waits: Mapping[type[Any], str], is_stream: bool = False
    ) -> None:
        self.key: bytes | None = None
        """The key that the first request is about."""
        self.waited: dict[str, float] = {}
        """Seconds for which the call waited, by what it waited for."""
        self._waits = waits
        self._ends: list[Ended] = []
        for began in observers.values():
            with ignoring("telemetry"):
                self._ends.append(began(name, is_stream))

    @contextmanager
    def noting(self, request: object) -> Iterator[None]:
        """Note the key of the first request, and how long each request takes."""
        if self.key is None and isinstance(request, Call | Command | Batch):
            self.key = key_of(request)
        began, before = perf_counter(), sum(self.waited.values())
        try:
            yield
        finally:
            waited, inside = self._waits.get(type(request), "Redis"), sum(self.waited.values()) - before
            self.waited[waited] = self.waited.get(waited, 0.0) + perf_counter() - began - inside

    def passing(self, operation: Generator[R, Any, T]) -> Generator[R, Any, T]:
        """Pass the operation's requests on, and note them."""
        pump = Pump(operation)
        for request in pump:
            with pump, self.noting(request):
                pump.reply = yield self.watched(request)
        return pump.result

    def watched(self, request: R) -> R:
        """Return a request that notes the requests of its own operation, too (those of `_tiered/requests.py`)."""
        more: dict[str, Any] = {}
        if make := getattr(request, "make", None):
            more["make"] = lambda: self.passing(make())
        elif hasattr(request, "around"):
            more["around"] = self.passing
        return request._replace(**more) if more else request  # type: ignore[attr-defined]

    def ended(self, seconds: float, error: BaseException | None) -> None:
        """Call the callbacks in reverse order of the observers."""
        kind = None if error is None else CANCELLED if isinstance(error, GeneratorExit) else type(error).__name__
        for end in reversed(self._ends):
            with ignoring("telemetry"):
                end(seconds, kind, self)


class Source(Protocol):
    """An object that counts something."""

    kind: ClassVar[str]
    """`Instrument.source` of its numbers."""

    def numbers(self) -> Mapping[str, Any]:
        """Return the current numbers."""


class Measured(NamedTuple):
    """The parts of a saver, a store or a cache that telemetry reads."""

    counting: Counting
    server: str
    """Its server as a URL without login."""
    collection: str
    """`checkpoints`, `items` or `entries`."""
    sources: tuple[Source, ...]
    thread_of: Callable[[bytes], str | None] | None = None
    """Returns the thread that a key belongs to. None if there are no threads."""


def measured(thing: object) -> Measured:
    """Return the parts of one of our savers, stores or caches that telemetry reads.

    Raises:
        TypeError: It is anything else.
    """
    method: Callable[[object], Measured] | None = getattr(type(thing), "_measured", None)
    if method is None:
        raise TypeError(f"this is {kind_of(thing)}: pass a saver, store or cache, such as RedisSaver or TieredSaver")
    return method(thing)


def stats_of(kind: Callable[..., StatsT], counting: Counting, *sources: Source) -> StatsT:
    """Return a copy of all counts."""
    numbers: dict[str, Any] = {}
    for source in sources:
        numbers |= source.numbers()
    return kind(**numbers, operations=counting.snapshot())


class Traffic(Live, TrafficStats):
    """Counts of a driver's requests and bytes."""

    kind = "traffic"

    def __init__(self) -> None:
        """Start at zero, without observers."""
        super().__init__()
        self.observers: Mapping[object, SharingObserver] = {}
        """They observe shared pipelines. A key has one observer at a time."""

    @contextmanager
    def sharing(self, shares: Shares) -> Iterator[None]:
        """Let the observers observe a pipeline that several calls share."""
        ends = []
        for began in self.observers.values():
            with ignoring("telemetry"):
                ends.append(began(shares))
        try:
            yield
        finally:
            for end in reversed(ends):
                with ignoring("telemetry"):
                    end()

    def sending(self, arguments: Sequence[Argument]) -> None:
        """Count a command before it is sent, as its reply may be lost.

        The size in bytes is an estimate: numbers count as nothing, and a character of a str as one byte.
        """
        size = sum(map(length_hint, arguments))
        self.round_trips += 1
        self.bytes_sent += size

    def sending_together(self, commands: Sequence[Sequence[Argument]]) -> None:
        """Count the commands of a pipeline, before it is sent."""
        size = sum([sum(map(length_hint, arguments)) for arguments in commands])
        self.round_trips += 1
        self.bytes_sent += size

    def receive(self, reply: T) -> T:
        """Count a reply, and return it."""
        size = size_of_reply(reply)
        self.bytes_received += size
        return reply


def size_of_reply(reply: Any) -> int:
    """Return the approximate size of a reply in bytes."""
    kind = type(reply)
    if kind is bytes or kind is str:
        return len(reply)
    if kind is not list:
        return 0
    size = 0
    for item in reply:
        kind = type(item)
        if kind is bytes:
            size += len(item)
        elif kind is not int:
            size += size_of_reply(item)
    return size
