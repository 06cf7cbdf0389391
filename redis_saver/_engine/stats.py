"""Counts of calls and of requests, always on: how often, how long, how many bytes.

OS threads count without a lock. CPython lets another OS thread run only where it calls a function or jumps back, so
nothing comes between reading a number, adding a number that is there already, and storing the sum. (Where several OS
threads do run at once, numbers may be some too low.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import length_hint
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from redis_saver._common import forks
from redis_saver._common.logs import ignoring
from redis_saver._engine.requests import Argument, Batch, Call, Command, Page, R, T, key_of
from redis_saver._engine.runner import Pump

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, each the upper bound of a bucket. A call over a local connection takes 0.1 to 1 milliseconds, one that meets
a failover seconds."""
CANCELLED = "cancelled"
"""The kind of error of a call whose caller was stopped: a cancelled task, or Ctrl-C."""


@dataclass(frozen=True)
class OperationStats:
    """The calls of a method in this process."""

    calls: int = 0
    """Calls that ended, in whatever way."""
    errors: int = 0
    """Calls that raised an error, or were cancelled."""
    seconds: float = 0.0
    """Seconds that all of them took together. The time in which a caller looks at what an iterator gave it is not in
    it."""
    histogram: Mapping[float, int] = field(default_factory=dict)
    """By an upper bound in seconds, how many calls took no longer than that, and longer than the bound before. The last
    bound is infinite."""


@dataclass
class TrafficStats:
    """Traffic between the client and a server."""

    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """The calls by method. A method and its form with an `a` count as one."""
    round_trips: int = 0
    """Commands and pipelines that were sent. A pipeline is one round trip, however many calls share it."""
    retries: int = 0
    """Requests that were sent again, as a slot was moving or a pipeline had failed. What the client repeats by itself
    is not in it."""
    script_loads: int = 0
    """Scripts whose text was sent, as the server did not know them after a start, a failover, or SCRIPT FLUSH."""
    bytes_sent: int = 0
    """Bytes of the keys and arguments that were sent, without those of the protocol, which are some ten for each."""
    bytes_received: int = 0
    """Bytes of the replies, likewise."""


@dataclass
class RedisStats(TrafficStats):
    """Counts of a saver, or a store, on one server in this process."""

    cache_bytes: int = 0
    """Memory that what it remembers takes, about. At most the setting `cache_bytes`."""
    cache_hits: int = 0
    """Of a saver, puts and reads that found something remembered of their thread; of a store, pages and partitions.
    What is remembered is not sent again."""
    cache_misses: int = 0
    """Those that found nothing."""


Ended: TypeAlias = Callable[[float, "str | None", "BaseException | None", "bytes | None"], None]
"""Called when a call has ended, with its seconds, the kind of its error, the error, and its first request's key."""


class Observer(Protocol):
    """Observes every call."""

    def began(self, name: str, *, is_stream: bool) -> Ended:
        """A call of a method begins, in the context of the caller.

        Returns what to call when it has ended; of a stream, maybe in another context.
        """


class Counting:
    """The calls of a saver, a store or a cache while they are counted."""

    def __init__(self) -> None:
        self.observers: tuple[Observer, ...] = ()
        """Each call is announced to them. While there are none, that costs nothing."""
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, begin with zero."""
        self._numbers: dict[str, list[Any]] = {}

    def snapshot(self) -> dict[str, OperationStats]:
        """A copy of the numbers so far."""
        return {name: _stats_of(list(numbers)) for name, numbers in list(self._numbers.items())}

    def call(self, operation: Generator[R, Any, T], name: str = "") -> Generator[R, Any, T]:
        """Return an operation that is counted when it has ended.

        By default its name is that of its generator, without underscores in front.
        """
        name = name or name_of(operation)
        observed = _Observed(self.observers, name) if self.observers else None
        began = perf_counter()
        try:
            result = yield from (operation if observed is None else observed.passing(operation))
        except BaseException as error:
            self._ended(name, perf_counter() - began, observed, error)
            raise
        self._ended(name, perf_counter() - began, observed)
        return result

    def stream(self, operation: Generator[R, Any, None], name: str = "") -> Generator[R, Any, None]:
        """`call` for an operation that streams. Whoever stops to draw from it has made a call that ended well."""
        name = name or name_of(operation)
        observed = _Observed(self.observers, name, is_stream=True) if self.observers else None
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
                    if observed is not None:
                        observed.note(request)
                    with pump:
                        pump.reply = yield request
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
    """Return the name of an operation, which is that of its method."""
    name: str = operation.__name__  # type: ignore[attr-defined]  # generators have one, as collections.abc does not say
    return name.lstrip("_")


def _stats_of(numbers: Sequence[Any]) -> OperationStats:
    errors, seconds, *buckets = numbers
    histogram = dict(zip((*BOUNDS, float("inf")), buckets, strict=True))
    return OperationStats(sum(buckets), errors, seconds, histogram)


class _Observed:
    """A call that somebody wants to know of."""

    def __init__(self, observers: Sequence[Observer], name: str, *, is_stream: bool = False) -> None:
        self._key: bytes | None = None
        self._ends: list[Ended] = []
        for observer in observers:
            with ignoring("telemetry"):
                self._ends.append(observer.began(name, is_stream=is_stream))

    def note(self, request: object) -> None:
        """Note the key that the first request is about."""
        if self._key is None and isinstance(request, Call | Command | Batch):
            self._key = key_of(request)

    def passing(self, operation: Generator[R, Any, T]) -> Generator[R, Any, T]:
        """The operation; its requests are noted."""
        pump = Pump(operation)
        for request in pump:
            self.note(request)
            with pump:
                pump.reply = yield request
        return pump.result

    def ended(self, seconds: float, error: BaseException | None) -> None:
        """Tell that it has ended; those that were told first of its beginning last."""
        kind = None if error is None else CANCELLED if isinstance(error, GeneratorExit) else type(error).__name__
        for end in reversed(self._ends):
            with ignoring("telemetry"):
                end(seconds, kind, error, self._key)


class Source(Protocol):
    """A source of numbers."""

    kind: ClassVar[str]
    """Which numbers (`_telemetry.INSTRUMENTS`)."""

    def numbers(self) -> Mapping[str, Any]:
        """The numbers at this moment."""


class Measured(NamedTuple):
    """The parts of a saver, a store or a cache that telemetry reads."""

    counting: Counting
    server: str
    """Its server as a URL without login."""
    collection: str
    """`checkpoints`, `items` or `entries`."""
    sources: tuple[Source, ...]
    thread_of: Callable[[bytes], str | None] | None = None
    """The thread that has a key; None: it has no threads."""


def measured(thing: object) -> Measured | None:
    """Return what telemetry reads of a saver, a store or a cache of ours; None for anything else."""
    of: Callable[[object], Measured] | None = getattr(type(thing), "_measured", None)
    return None if of is None else of(thing)


class Traffic:
    """Counts of what a driver sends and receives."""

    kind: ClassVar[str] = "traffic"

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, begin with zero."""
        self.round_trips = self.retries = self.loads = self.sent = self.received = 0

    def sending(self, arguments: Sequence[Argument]) -> None:
        """Count a command, before it is sent: if its reply is lost, it was sent all the same.

        The size is about that in bytes. Numbers count nothing, and a character of a text counts as one.
        """
        size = sum(map(length_hint, arguments))
        self.round_trips += 1
        self.sent += size

    def sending_together(self, commands: Sequence[Sequence[Argument]]) -> None:
        """Count the commands of a pipeline, before it is sent."""
        size = sum([sum(map(length_hint, arguments)) for arguments in commands])
        self.round_trips += 1
        self.sent += size

    def receive(self, reply: T) -> T:
        """Count a reply, and return it."""
        size = size_of_reply(reply)
        self.received += size
        return reply

    def numbers(self) -> dict[str, Any]:
        """The fields of `TrafficStats` that it counts."""
        return {
            "round_trips": self.round_trips,
            "retries": self.retries,
            "script_loads": self.loads,
            "bytes_sent": self.sent,
            "bytes_received": self.received,
        }


def size_of_reply(reply: Any) -> int:
    """About how many bytes a reply has."""
    kind = type(reply)
    if kind is bytes or kind is str:
        return len(reply)
    if kind is not list:
        return 0
    size = 0
    for one in reply:
        size += len(one) if type(one) is bytes else size_of_reply(one)
    return size
