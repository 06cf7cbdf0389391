"""The directory: which partitions there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis_saver._common.store_names import PARTITION_LABELS, Partition, bounds, member
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call, Command, Operation, Scan
from redis_saver._store.answers import checked
from redis_saver._store.calling import announce, ask, together
from redis_saver._store.context import StoreContext
from redis_saver.errors import reading_store

PARTITIONS_PER_CALL = 1000


def partitions(context: StoreContext, labels: Sequence[str]) -> Operation[list[tuple[Partition, bytes]]]:
    """The partitions with namespaces that begin with these labels, and their tokens. One may be empty, or have expired.

    No round trip for two labels and more; else one for each thousand partitions.
    """
    some = yield from page(context, labels)
    found = list(some)
    while len(some) == PARTITIONS_PER_CALL:
        some = yield from page(context, labels, behind=some[-1][0])
        found += some
    return found


def page(
    context: StoreContext, labels: Sequence[str], behind: Partition | None = None
) -> Operation[list[tuple[Partition, bytes]]]:
    """A thousand of these partitions, in order; those behind one, or the first ones. The last page has fewer."""
    if len(labels) >= PARTITION_LABELS:
        return [(context.keyspace.partition(member(tuple(labels[:PARTITION_LABELS]))), b"0")] if behind is None else []
    begin, end = bounds(tuple(labels))
    if behind is not None:
        begin = b"(" + behind.member
    keys = context.keyspace.directory
    reply = yield Call(scripts.LIST_PARTITIONS, keys, (begin, end, PARTITIONS_PER_CALL))
    flat = checked(scripts.LIST_PARTITIONS, keys[0], reply)
    with reading_store(keys[0]):
        found = [(context.keyspace.partition(flat[each]), flat[each + 1]) for each in range(0, len(flat), 2)]
        if behind is not None and any(one.member <= behind.member for one, _ in found):
            raise ValueError("the partitions behind one are not behind it")
        return found


def rebuild(context: StoreContext) -> Operation[int]:
    """Make the directory anew from the partitions' keys. Returns how many there are."""
    yield Command(("UNLINK", *context.keyspace.directory))
    members: set[bytes] = set()
    position = None
    while True:
        position, keys = yield Scan(context.keyspace.pattern, position)
        found = [one for key in keys if (one := context.keyspace.member_of(key)) is not None]
        yield from together(context, [announce(context, one) for one in found if one not in members])
        members.update(found)
        if position is None:
            return len(members)


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
        cursor, found[b""], *flat = reply
        with reading_store(partition.keys[3]):
            found.update({flat[each]: int(flat[each + 1]) for each in range(0, len(flat), 2)})
        if cursor == b"0":
            return {labels: count for labels, count in found.items() if count}
