"""The operations on namespaces: list them, count their items, delete or sweep what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.store.base import ListNamespacesOp, MatchCondition

from redis_saver._common import config as configs
from redis_saver._common.display import shown
from redis_saver._common.names import components
from redis_saver._common.store_names import PARTITION_LABELS
from redis_saver._engine.requests import Operation
from redis_saver._store import directory
from redis_saver._store.calling import together
from redis_saver._store.context import StoreContext
from redis_saver._store.places import check_labels
from redis_saver._store.writing import clean, delete_below
from redis_saver.errors import reading_store

_MAX_DEPTH = 2**31 - 1
"""Postgres takes no greater index of an array."""


def check(op: ListNamespacesOp) -> None:
    """Check the numbers of a listing.

    Raises:
        ValueError: One makes no sense.
    """
    for name, given in (("limit", op.limit), ("offset", op.offset)):
        configs.number(name, given, 0, whole=True)
    if op.max_depth is not None:
        configs.number("max_depth", op.max_depth, 1, whole=True, most=_MAX_DEPTH)


def list_namespaces(context: StoreContext, op: ListNamespacesOp) -> Operation[list[tuple[str, ...]]]:
    """The namespaces that have items, in order. The call itself checks the arguments.

    Raises:
        TypeError, ValueError: An argument makes no sense.
    """
    check(op)
    conditions = tuple(op.match_conditions or ())
    for condition in conditions:
        path = tuple(condition.path) if isinstance(condition.path, str) else condition.path  # as LangGraph's stores do
        check_labels(path, condition.match_type)
        if condition.match_type not in ("prefix", "suffix"):
            raise ValueError(f"match_type={shown(condition.match_type)}: write 'prefix' or 'suffix'")
    return _list_namespaces(context, op, conditions)


def _list_namespaces(
    context: StoreContext, op: ListNamespacesOp, conditions: Sequence[MatchCondition]
) -> Operation[list[tuple[str, ...]]]:
    found = set()
    for namespace, _ in (yield from _counted(context, _literal(conditions))):
        if all(_fits(namespace, condition) for condition in conditions):
            found.add(namespace[: op.max_depth])
    return sorted(found)[op.offset : op.offset + op.limit]


def _literal(conditions: Sequence[MatchCondition]) -> tuple[str, ...]:
    """The labels that all namespaces begin with that fit the conditions, as far as that is easily seen."""
    longest: tuple[str, ...] = ()
    for condition in conditions:
        path = tuple(condition.path)
        if condition.match_type == "prefix":
            literal = path[: path.index("*")] if "*" in path else path
            longest = max(longest, literal, key=len)
    return longest


def _fits(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))


def _counted(context: StoreContext, labels: tuple[str, ...]) -> Operation[list[tuple[tuple[str, ...], int]]]:
    """The namespaces that begin with these labels, and how many items each has."""
    found: list[tuple[tuple[str, ...], int]] = []
    for some in directory.windows((yield from directory.partitions(context, labels))):
        answers = yield from together(context, [directory.counts(context, partition) for partition, _ in some])
        empty = []
        for (partition, token), counts in zip(some, answers, strict=True):
            if counts is None and len(labels) < PARTITION_LABELS:
                empty.append(clean(context, partition, token))
            with reading_store(partition.keys[3]):
                found += [((*partition.labels, *components(below)), number) for below, number in (counts or {}).items()]
        yield from together(context, empty)
    return [(namespace, count) for namespace, count in found if namespace[: len(labels)] == labels]


def count(context: StoreContext, prefix: Any) -> Operation[int]:
    """How many items a namespace and those below it have."""
    labels = check_labels(prefix, "namespace_prefix")
    return _count(context, labels)


def _count(context: StoreContext, labels: tuple[str, ...]) -> Operation[int]:
    return sum(number for _, number in (yield from _counted(context, labels)))


def delete_namespace(context: StoreContext, prefix: Any) -> Operation[int]:
    """Delete all items of a namespace and of those below it. Returns how many."""
    labels = check_labels(prefix, "namespace_prefix")
    if not labels:
        raise ValueError(
            "namespace_prefix=(): that is the whole store; delete the namespaces of list_namespaces(max_depth=1) one by one"
        )
    return _delete_namespace(context, labels)


def _delete_namespace(context: StoreContext, labels: tuple[str, ...]) -> Operation[int]:
    if len(labels) > PARTITION_LABELS:
        place = context.places.of(labels)
        return (yield from delete_below(context, place.partition, place.prefix))
    removed = 0
    for some in directory.windows((yield from directory.partitions(context, labels))):
        removed += sum((yield from together(context, [clean(context, *one, "all") for one in some])))
    return removed


def sweep(context: StoreContext) -> Operation[int]:
    """Remove what has expired in all partitions. Returns how many items went."""
    removed = 0
    for some in directory.windows((yield from directory.partitions(context, ()))):
        removed += sum((yield from together(context, [clean(context, *one) for one in some])))
    return removed
