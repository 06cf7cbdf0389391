"""The directory: which partitions there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis_saver._common.store_names import PARTITION_LABELS, Partition, bounds, member
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call, Command, Operation, Scan
from redis_saver._store.calling import ask, together
from redis_saver._store.context import StoreContext
from redis_saver.errors import reading_store

PARTITIONS_PER_CALL = 1000


def partitions(context: StoreContext, labels: Sequence[str]) -> Operation[list[tuple[Partition, bytes]]]:
    """The partitions with namespaces that begin with these labels, and their tokens. One may be empty, or have expired.

    No round trip for two labels and more; else one for each thousand partitions.
    """
    if len(labels) >= PARTITION_LABELS:
        return [(context.keyspace.partition(member(tuple(labels[:PARTITION_LABELS]))), b"0")]
    found: list[tuple[Partition, bytes]] = []
    begin, end = bounds(tuple(labels))
    while True:
        flat = yield Call(scripts.LIST_PARTITIONS, context.keyspace.directory, (begin, end, PARTITIONS_PER_CALL))
        with reading_store(context.keyspace.directory[0]):
            found += [(context.keyspace.partition(flat[each]), flat[each + 1]) for each in range(0, len(flat), 2)]
        if len(flat) < 2 * PARTITIONS_PER_CALL:
            return found
        begin = b"(" + flat[-2]


def rebuild(context: StoreContext) -> Operation[int]:
    """Make the directory anew from the partitions' keys. Returns how many there are."""
    yield Command(("UNLINK", *context.keyspace.directory))
    members: set[bytes] = set()
    position = None
    while True:
        position, keys = yield Scan(context.keyspace.pattern, position)
        found = [one for key in keys if (one := context.keyspace.member_of(key)) is not None]
        yield from together(context, [_announce(context, one) for one in found if one not in members])
        members.update(found)
        if position is None:
            return len(members)


def _announce(context: StoreContext, member: bytes) -> Operation[None]:
    yield Call(scripts.ANNOUNCE, context.keyspace.directory, (member, 0, 0))


def windows(found: Sequence[tuple[Partition, bytes]], size: int = 256) -> Iterator[Sequence[tuple[Partition, bytes]]]:
    """Some partitions at a time."""
    for start in range(0, len(found), size):
        yield found[start : start + size]


def counts(context: StoreContext, partition: Partition) -> Operation[dict[bytes, int] | None]:
    """How many items each namespace of a partition has, by the labels below the partition's. None if there is no such partition.

    One round trip; more for each thousand namespaces below the partition's own.
    """
    found: dict[bytes, int] = {}
    cursor = b"0"
    while True:
        reply = yield from ask(context, partition, scripts.COUNT_NAMESPACES, (cursor,))
        if not reply:
            return found or None
        cursor, own, *flat = reply
        with reading_store(partition.keys[3]):
            found.update({flat[each]: int(flat[each + 1]) for each in range(0, len(flat), 2)})
        found[b""] = own
        if cursor in (b"0", 0):
            return {labels: count for labels, count in found.items() if count}
