"""What every operation over the two tiers of a store needs to know of it; and how operations over hot fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis_saver._common.logs import ThrottledLog, log_text
from redis_saver._common.store_names import Partition
from redis_saver._engine.requests import Command, Operation, Request, T
from redis_saver._store.calling import together
from redis_saver._store.context import StoreContext
from redis_saver._store.writing import clean
from redis_saver._tiered.requests import Attempt, HotFailed, Tiered, is_out_of_memory
from redis_saver._tiered_store.stats import Counts
from redis_saver.errors import StoreDamaged

_LOG = ThrottledLog("redis_saver.tiered_store")


class StoreTiers:
    """A store over two tiers, as its operations see it."""

    def __init__(self, hot: StoreContext, ttl: int) -> None:
        """Begin with nothing counted.

        Args:
            hot: The store in front.
            ttl: How long copies live there, in milliseconds; 0: until they are evicted or written.
        """
        self.hot: StoreContext = hot
        self.ttl: int = ttl
        self.counts: Counts = Counts()


def ask_each(tiers: StoreTiers, asked: Sequence[tuple[Partition, Callable[[], Operation[T]]]]) -> Operation[list[T]]:
    """Run operations over partitions of hot, side by side. If a part of a partition or of the directory is gone, hot drops the rest of it first."""
    try:
        return (yield from together(tiers.hot, [make() for _, make in asked]))
    except StoreDamaged:
        pass
    results = []
    for partition, make in asked:
        results.append((yield from _repaired(tiers, partition, make)))
    return results


def _repaired(tiers: StoreTiers, partition: Partition, make: Callable[[], Operation[T]]) -> Operation[T]:
    def without_partition() -> Operation[T]:
        return (yield from _or_drop(tiers, make, clean(tiers.hot, partition, 0, "all"), make))

    return (yield from _or_drop(tiers, without_partition, _without_directory(tiers), make))


def _or_drop(
    tiers: StoreTiers, make: Callable[[], Operation[T]], drop: Operation[Any], again: Callable[[], Operation[T]]
) -> Operation[T]:
    """Run an operation over hot. If a part of hot is damaged, drop something and run another one."""
    try:
        return (yield from make())
    except StoreDamaged as damage:
        tiers.counts.repairs += 1
        _LOG.warning("a part of hot was damaged; hot drops it and is filled from cold: %s", log_text(damage))
        yield from drop
        return (yield from again())


def _without_directory(tiers: StoreTiers) -> Operation[None]:
    """Drop the directory of hot, which no read asks."""
    yield Command(("UNLINK", *tiers.hot.keyspace.directory))


def best_effort(tiers: StoreTiers, operation: Tiered[Any]) -> Tiered[None]:
    """Run an operation over hot. If hot fails and may be bypassed, give the operation up, because cold has what matters."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


def unless_full(operation: Operation[T]) -> Tiered[T | None]:
    """Run an operation over hot; None if the server is out of memory, for which each client has an error of its own."""
    go: Callable[[Any], Request] = operation.send
    given: Any = None
    while True:
        try:
            request = go(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply, error = yield Attempt(request)
        if error is None:
            go, given = operation.send, reply
        elif is_out_of_memory(error):
            operation.close()
            return None
        else:
            go, given = operation.throw, error
