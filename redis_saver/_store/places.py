"""Namespaces and keys as callers pass them: checked, and where their items are."""

from __future__ import annotations

from typing import Any, NamedTuple

from langgraph.store.base import InvalidNamespaceError

from redis_saver._common import limits as limiting
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits
from redis_saver._common.names import MAX_CACHED_NAME, component, components, decode
from redis_saver._common.store_names import PARTITION_LABELS, Partition, StoreKeyspace, member

_MAX_CACHED = 4096


class Place(NamedTuple):
    """Where the items of a namespace are, and of those below it."""

    partition: Partition
    prefix: bytes
    """What their fields begin with: the labels that do not name the partition."""

    def field(self, key: str) -> bytes:
        """The field of an item."""
        return self.prefix + component(key)


class Places:
    """The places of namespaces. Those of short names are remembered, as to check a namespace takes longer than all else of a call."""

    def __init__(self, keyspace: StoreKeyspace, limits: Limits) -> None:
        """Make places of these keys, for names of these lengths."""
        self._keyspace, self._limits = keyspace, limits
        self._known: dict[tuple[str, ...], Place] = {}

    def of(self, namespace: tuple[str, ...]) -> Place:
        """The place of a namespace of at least one label.

        Raises:
            InvalidNamespaceError: It is not a namespace.
        """
        try:
            return self._known[namespace]
        except (KeyError, TypeError):
            pass
        namespace = check_labels(namespace)
        if not namespace:
            raise InvalidNamespaceError("the namespace is empty: an item has a namespace of at least one label")
        for label in namespace:
            limiting.check_name(self._limits, label, "a label of a namespace")
        partition = self._keyspace.partition(member(namespace[:PARTITION_LABELS]))
        place = Place(partition, member(namespace[PARTITION_LABELS:]))
        if sum(map(len, namespace)) <= MAX_CACHED_NAME:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[namespace] = place
        return place

    def to_put(self, namespace: tuple[str, ...]) -> Place:
        """`of`, for an item that is to be stored.

        Raises:
            InvalidNamespaceError: The first label is `langgraph`, which LangGraph keeps for itself.
        """
        place = self.of(namespace)
        if namespace[0] == "langgraph":
            raise InvalidNamespaceError(
                f"the first label of {shown(namespace)} is 'langgraph', which LangGraph keeps for itself"
            )
        return place

    def key(self, key: Any) -> str:
        """Check a key.

        Raises:
            TypeError: It is no str.
        """
        if not isinstance(key, str):
            raise TypeError(f"key={shown(key)}: a key is a str, not a {type(key).__name__}")
        limiting.check_name(self._limits, key, "a key")
        return key


def check_labels(namespace: Any, what: str = "namespace") -> tuple[str, ...]:
    """A namespace, or a part of one, as a tuple of labels.

    Raises:
        InvalidNamespaceError: It is no tuple, or a label is none.
    """
    if not isinstance(namespace, (tuple, list)):
        raise InvalidNamespaceError(
            f"{what}={shown(namespace)}: a namespace is a tuple of labels, such as ('memories', 'user-1')"
        )
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidNamespaceError(
                f"{what}={shown(namespace)}: the label {shown(label)} is a {type(label).__name__}; a label is a str"
            )
        if not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"{what}={shown(namespace)}: the label {shown(label)} is empty, or has a period or NUL in it, which LangGraph allows in no store"
            )
    return tuple(namespace)


def namespace_and_key(partition: Partition, field: bytes) -> tuple[tuple[str, ...], str]:
    """The namespace and the key of an item by its field.

    Raises:
        ValueError: It is no field of an item.
    """
    if field.find(b"\0") == len(field) - 1 and b"\1" not in field:  # most are in the partition's own namespace
        return partition.labels, decode(field[:-1])
    *labels, key = components(field)
    return (*partition.labels, *labels), key
