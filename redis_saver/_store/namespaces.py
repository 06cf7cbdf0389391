"""Lists namespaces and partitions, counts, deletes and sweeps their items, and rebuilds the directory."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from langgraph.store.base import ListNamespacesOp, MatchCondition

from redis_saver._common import config
from redis_saver._common.display import shown
from redis_saver._common.names import components
from redis_saver._common.store_names import PARTITION_LABELS, Partition, bounds, member, namespace_and_key
from redis_saver._engine.requests import Call, Command, Operation, Scan
from redis_saver._storage.rewrapping import Holder
from redis_saver._store import scripts
from redis_saver._store.context import StoreContext, check_labels
from redis_saver._store.reading import all_sizes
from redis_saver._store.scripts import announce, ask, together, windows
from redis_saver._store.writing import clean, delete_below
from redis_saver.errors import reading_store

PARTITIONS_PER_CALL = 1000
_MAX_DEPTH = 2**31 - 1
"""Greatest index of an array in Postgres."""


# -- partitions


def partitions(context: StoreContext, labels: Sequence[str]) -> Operation[list[tuple[Partition, bytes]]]:
    """List the partitions with namespaces that begin with these labels, and their tokens. Some may be empty or expired.

    No round trip with two labels or more. Otherwise one per thousand partitions.
    """
    page = yield from partition_page(context, labels)
    result = list(page)
    while len(page) == PARTITIONS_PER_CALL:
        page = yield from partition_page(context, labels, after=page[-1][0])
        result += page
    return result


def partition_page(
    context: StoreContext, labels: Sequence[str], after: Partition | None = None
) -> Operation[list[tuple[Partition, bytes]]]:
    """List up to `PARTITIONS_PER_CALL` of these partitions in order. Only the last page has fewer."""
    if len(labels) >= PARTITION_LABELS:
        return [(context.keyspace.partition(member(tuple(labels[:PARTITION_LABELS]))), b"0")] if after is None else []
    begin, end = bounds(tuple(labels))
    if after is not None:
        begin = b"(" + after.member
    keys = context.keyspace.directory
    reply = yield Call(scripts.LIST_PARTITIONS, keys, (begin, end, PARTITIONS_PER_CALL))
    listed = scripts.checked(scripts.LIST_PARTITIONS, keys[0], reply).values
    with reading_store(keys[0]):
        result = list(zip(map(context.keyspace.partition, listed[::2]), listed[1::2], strict=True))
        if not all(token.isdigit() and len(token) < 18 for _, token in result):
            raise ValueError("a token of the directory is not a number of up to 17 digits")
        if not all(partition.labels and all(partition.labels) for partition, _ in result):
            # Keys without a hash tag would be on several nodes of a cluster.
            raise ValueError("a partition of the directory has no name")
        if after is not None and any(partition.member <= after.member for partition, _ in result):
            raise ValueError("the partitions after one are not greater than it")
        return result


def sum_each(
    context: StoreContext, labels: Sequence[str], make: Callable[[Partition, bytes], Operation[int]]
) -> Operation[int]:
    """Run an operation on each of these partitions and its token, in lockstep. Returns the sum of the results."""
    total = 0
    for window in windows((yield from partitions(context, labels))):
        total += sum((yield from together(context, [make(*listed) for listed in window])))
    return total


def rebuild_directory(context: StoreContext) -> Operation[int]:
    """Rebuild the directory from the partitions' keys. Returns the number of partitions."""
    yield Command(("UNLINK", *context.keyspace.directory))
    members = yield from _stored(context)
    yield from together(context, [announce(context, name) for name in members])
    return len(members)


def key_holders(context: StoreContext) -> Operation[list[Holder]]:
    """Return all partitions as holders of data keys. The directory may lack some, so their keys are scanned."""
    partitions = map(context.keyspace.partition, (yield from _stored(context)))
    return [Holder(partition.name, partition.keys[:1]) for partition in partitions]


def _stored(context: StoreContext) -> Operation[list[bytes]]:
    """Return the members of the directory that partitions have or should have, by SCAN."""
    members, position = dict[bytes, None](), None
    while True:
        position, keys = yield Scan(context.keyspace.pattern, position)
        members |= {name: None for key in keys if (name := context.keyspace.member_of(key)) is not None}
        if position is None:
            return list(members)


# -- namespaces


def check(op: ListNamespacesOp) -> tuple[MatchCondition, ...]:
    """Check the arguments of a listing. Returns its conditions.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """
    for name, number in (("limit", op.limit), ("offset", op.offset)):
        config.number(name, number, 0, whole=True)
    if op.max_depth is not None:
        config.number("max_depth", op.max_depth, 1, whole=True, most=_MAX_DEPTH)
    return tuple(op.match_conditions or ())


def list_namespaces(context: StoreContext, op: ListNamespacesOp) -> Operation[list[tuple[str, ...]]]:
    """List the namespaces that have items, in order. The call checks the arguments before the operation runs.

    Raises:
        TypeError, ValueError: An argument is invalid.
    """
    conditions = check(op)
    for condition in conditions:
        path = tuple(condition.path) if isinstance(condition.path, str) else condition.path  # as LangGraph's stores do
        check_labels(path, condition.match_type)
        if condition.match_type not in ("prefix", "suffix"):
            raise ValueError(f"match_type={shown(condition.match_type)}: write 'prefix' or 'suffix'")
    return _list_namespaces(context, op, conditions)


def _list_namespaces(
    context: StoreContext, op: ListNamespacesOp, conditions: Sequence[MatchCondition]
) -> Operation[list[tuple[str, ...]]]:
    counts = yield from _counts(context, _literal_prefix(conditions))
    fitting = {name[: op.max_depth] for name in counts if all(_fits(name, condition) for condition in conditions)}
    return sorted(fitting)[op.offset : op.offset + op.limit]


def _literal_prefix(conditions: Sequence[MatchCondition]) -> tuple[str, ...]:
    """Return the longest prefix without wildcards that the conditions require."""
    prefixes = [tuple(condition.path) for condition in conditions if condition.match_type == "prefix"]
    literals = [path[: path.index("*")] if "*" in path else path for path in prefixes]
    return max(literals, key=len, default=())


def _fits(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))


def _counts(context: StoreContext, labels: tuple[str, ...]) -> Operation[dict[tuple[str, ...], int]]:
    """Count the items of each namespace that begins with these labels. Removes empty partitions from the directory."""
    result: dict[tuple[str, ...], int] = {}
    for window in windows((yield from partitions(context, labels))):
        answers = yield from together(context, [_counts_of(context, partition) for partition, _ in window])
        empty = []
        for (partition, token), counts in zip(window, answers, strict=True):
            if counts is None and len(labels) < PARTITION_LABELS:
                empty.append(clean(context, partition, token))
            with reading_store(partition.keys[3]):
                for below, count in (counts or {}).items():
                    result[(*partition.labels, *components(below))] = count
        yield from together(context, empty)
    return {namespace: count for namespace, count in result.items() if namespace[: len(labels)] == labels}


def _counts_of(context: StoreContext, partition: Partition) -> Operation[dict[bytes, int] | None]:
    """Count the items of a partition by the labels below its own. None if there is no such partition.

    One round trip, and one more per thousand namespaces below the partition's own.
    """
    result: dict[bytes, int] = {}
    cursor = b"0"
    while True:
        reply = yield from ask(context, partition, scripts.COUNT_NAMESPACES, (cursor,))
        if not reply.values:
            return result or None
        cursor, result[b""], *counts = reply.values
        with reading_store(partition.keys[3]):
            result.update(zip(counts[::2], map(int, counts[1::2]), strict=True))
        if cursor == b"0":
            return {labels: count for labels, count in result.items() if count}


def count(context: StoreContext, prefix: Any) -> Operation[int]:
    """Count the items of a namespace and its children."""
    return sum((yield from _counts(context, check_labels(prefix, "namespace_prefix"))).values())


class NamespaceSize(NamedTuple):
    """Items of a namespace, without its children."""

    items: int
    bytes: int | None
    """Stored bytes of the items and their vectors. None if the time was up."""


def sizes(context: StoreContext, prefix: Any, end: float = math.inf) -> Operation[dict[tuple[str, ...], NamespaceSize]]:
    """Measure each namespace that begins with these labels, until the time `end`. No key is needed.

    Cost: that of a count, and one round trip per 4,000 items of a partition.
    """
    counts = yield from _counts(context, check_labels(prefix, "namespace_prefix"))
    measured, stored = set[tuple[str, ...]](), Counter[tuple[str, ...]]()
    listed = [
        context.places.of(labels).partition for labels in dict.fromkeys(name[:PARTITION_LABELS] for name in counts)
    ]
    for window in windows(listed):
        if time.monotonic() >= end:
            break
        answers = yield from together(context, [all_sizes(context, partition) for partition in window])
        for partition, answer in zip(window, answers, strict=True):
            measured.add(partition.labels)
            with reading_store(partition.keys[0]):
                for name, size in answer.items():
                    stored[namespace_and_key(partition, name)[0]] += size
    return {
        name: NamespaceSize(count, stored[name] if name[:PARTITION_LABELS] in measured else None)
        for name, count in counts.items()
    }


def delete_namespace(context: StoreContext, prefix: Any) -> Operation[int]:
    """Delete all items of a namespace and its children. Returns the number of deleted items."""
    labels = check_labels(prefix, "namespace_prefix")
    if not labels:
        raise ValueError(
            "namespace_prefix=(): that is the whole store; "
            "delete the namespaces of list_namespaces(max_depth=1) one by one"
        )
    if len(labels) > PARTITION_LABELS:
        place = context.places.of(labels)
        return (yield from delete_below(context, place.partition, place.prefix))
    return (yield from sum_each(context, labels, lambda partition, token: clean(context, partition, token, "all")))


def sweep_ttl(context: StoreContext) -> Operation[int]:
    """Remove expired items of all partitions. Returns the number of removed items."""
    return (yield from sum_each(context, (), lambda partition, token: clean(context, partition, token)))
