"""What the operations of a cache know of it, and what callers pass to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._cache.keys import CacheKeyspace, FullKey, Namespace
from redis_saver._common import limits as limiting
from redis_saver._common.display import shown
from redis_saver._common.limits import Limits

_MAX_SECONDS = 100 * 365 * 24 * 3600


class Context(NamedTuple):
    """A cache, as its operations see it."""

    serde: SerializerProtocol
    keyspace: CacheKeyspace
    ttl: int | None
    """Milliseconds that an entry lives for which no other TTL is given; None: it has no deadline."""
    require_encryption: bool
    limits: Limits


def names(context: Context, keys: Sequence[FullKey]) -> list[FullKey]:
    """The entries that a caller asks for, each once.

    Raises:
        TypeError: It is no sequence of pairs of a namespace and a key.
        LimitExceeded: A label or key is too long.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys={shown(keys)}: pass a list of pairs (namespace, key), such as [(('label',), 'key')]")
    return list(dict.fromkeys(name(context, one) for one in keys))


def name(context: Context, given: FullKey) -> FullKey:
    """The name of one entry.

    Raises:
        TypeError, LimitExceeded: As `names`.
    """
    if type(given) is not tuple and (isinstance(given, (str, bytes)) or not isinstance(given, Sequence)):
        raise _no_name(given)
    if len(given) != 2:
        raise _no_name(given)
    labels, key = given
    if not isinstance(key, str):
        raise TypeError(f"key={shown(given)}: its key {shown(key)} is a {type(key).__name__}, and has to be a str")
    limiting.check_name(context.limits, key, "a cache's key")
    is_known = type(labels) is tuple and context.keyspace.is_known(labels)
    return (labels if is_known else namespace(context, labels)), key


def _no_name(given: object) -> TypeError:
    return TypeError(f"key={shown(given)}: an entry is named by a pair (namespace, key), such as (('label',), 'key')")


def namespace(context: Context, given: Namespace) -> Namespace:
    """A namespace.

    Raises:
        TypeError: It is no sequence of str.
        LimitExceeded: A label is too long.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise TypeError(f"namespace={shown(given)}: a namespace is a tuple of str, such as ('label',)")
    for label in given:
        if not isinstance(label, str):
            raise TypeError(f"namespace={shown(given)}: its label {shown(label)} is no str")
        limiting.check_name(context.limits, label, "a cache's namespace")
    return tuple(given)


def namespaces(context: Context, given: Sequence[Namespace] | None) -> list[Namespace] | None:
    """Namespaces to clear.

    Raises:
        TypeError, LimitExceeded: As `namespace`.
    """
    if given is None:
        return None
    if isinstance(given, (str, bytes)):
        raise TypeError(f"namespaces={shown(given)}: pass a list of namespaces, such as [('label',)]; None clears all")
    return [namespace(context, one) for one in given]


def pairs(context: Context, given: Mapping[FullKey, tuple[Any, int | None]]) -> list[tuple[FullKey, Any, int | None]]:
    """Entries to store: name, value, TTL in milliseconds or None.

    Raises:
        TypeError, ValueError, LimitExceeded: A name or a TTL makes no sense.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"pairs={shown(given)}: pass a dict of {{(namespace, key): (value, ttl)}}")
    found = []
    for key, pair in given.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"the entry {shown(key)} has no pair (value, ttl); write None as ttl for the cache's own")
        found.append((name(context, key), pair[0], _milliseconds(key, pair[1], context.ttl)))
    return found


def _milliseconds(key: FullKey, ttl: object, default: int | None) -> int | None:
    if ttl is None:
        return default
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"the entry {shown(key)} has the ttl {shown(ttl)}: a TTL is a number of seconds, or None")
    if not 0.001 <= ttl <= _MAX_SECONDS:
        raise ValueError(
            f"the entry {shown(key)} has the ttl {shown(ttl)}: a TTL lies between 0.001 seconds and a hundred years. "
            "To keep a node out of the cache, give it no cache_policy"
        )
    return round(ttl * 1000)
