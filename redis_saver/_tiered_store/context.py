"""Settings and counters that operations over two tiers share, and the handling of failures of hot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from redis_saver._common.logs import ThrottledLog, log_text
from redis_saver._common.store_names import Partition
from redis_saver._engine.requests import Command, Operation, Request, T
from redis_saver._engine.stats import Counting, OperationStats
from redis_saver._store.calling import together
from redis_saver._store.context import StoreContext
from redis_saver._store.writing import clean
from redis_saver._tiered.requests import Attempt, HotFailed, Tiered, is_out_of_memory
from redis_saver.errors import StoreDamaged

_LOG = ThrottledLog("redis_saver.tiered_store")


@dataclass
class TieredStoreStats:
    """Counters of what happened between the tiers of a store, in this process."""

    hits: int = 0
    """Gets and searches that hot answered."""
    misses: int = 0
    """Gets and searches that cold answered, because hot did not have everything."""
    fills: int = 0
    """Copies that were stored in hot, after a miss or a write."""
    refused: int = 0
    """Copies that were not stored: somebody else wrote the item, or hot is full, or its serializer or limits refuse the
    value."""
    repairs: int = 0
    """Partitions that hot dropped because a part of them was evicted, and copies that could not be decoded."""
    bypasses: int = 0
    """Reads and writes that went on without hot, because it failed."""
    errors: int = 0
    """Writes that cold has, and that could not be read back. The log has the last reason (`redis_saver.tiered_store`,
    WARNING)."""
    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """Calls by method. `store.hot.stats()` says what they sent to Redis."""


class Counts(TieredStoreStats):
    """Counters while they change. Users get copies (`snapshot`)."""

    kind: ClassVar[str] = "store_tier"

    def numbers(self) -> Mapping[str, Any]:
        """Return the counters."""
        return vars(self)

    def after_fork(self) -> None:
        """Start at zero in a child."""
        vars(self).update(vars(TieredStoreStats()))

    def snapshot(self, counting: Counting) -> TieredStoreStats:
        """Return a copy of the counters, with those of the calls."""
        return replace(TieredStoreStats(), **vars(self) | {"operations": counting.snapshot()})


class StoreTiers:
    """A store over two tiers, as its operations see it."""

    def __init__(self, hot: StoreContext, ttl: int) -> None:
        """Start with counters at zero.

        Args:
            hot: The store in front.
            ttl: Lifetime of a copy there, in milliseconds; 0: until it is evicted or written.
        """
        self.hot: StoreContext = hot
        self.ttl: int = ttl
        self.counts: Counts = Counts()


def ask_each(tiers: StoreTiers, asked: Sequence[tuple[Partition, Callable[[], Operation[T]]]]) -> Operation[list[T]]:
    """Run operations over partitions of hot side by side. Damaged partitions are dropped first, then the directory."""
    try:
        return (yield from together(tiers.hot, [make() for _, make in asked]))
    except StoreDamaged:
        pass
    results = []
    for partition, make in asked:
        results.append((yield from _repaired(tiers, partition, make)))
    return results


def _repaired(tiers: StoreTiers, partition: Partition, make: Callable[[], Operation[T]]) -> Operation[T]:
    try:
        return (yield from make())
    except StoreDamaged as damage:
        _note_repair(tiers, damage)
    try:
        yield from clean(tiers.hot, partition, 0, "all")
        return (yield from make())
    except StoreDamaged as damage:
        _note_repair(tiers, damage)
    yield Command(("UNLINK", *tiers.hot.keyspace.directory))  # no read of hot uses it
    return (yield from make())


def _note_repair(tiers: StoreTiers, damage: StoreDamaged) -> None:
    tiers.counts.repairs += 1
    _LOG.warning("a part of hot was damaged; hot drops it and is filled from cold: %s", log_text(damage))


def best_effort(tiers: StoreTiers, operation: Tiered[Any]) -> Tiered[None]:
    """Run an operation over hot. If hot fails and may be bypassed, give it up: cold has what matters."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


def unless_full(operation: Operation[T]) -> Tiered[T | None]:
    """Run an operation over hot; None if the server is out of memory, for which each client has its own error."""
    resume: Callable[[Any], Request] = operation.send
    value: Any = None
    while True:
        try:
            request = resume(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply, error = yield Attempt(request)
        if error is None:
            resume, value = operation.send, reply
        elif is_out_of_memory(error):
            operation.close()
            return None
        else:
            resume, value = operation.throw, error
