"""Counts the entries of caches by namespace, for commands and pages."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import NamedTuple

from langgraph.cache.base import Namespace

from redis_saver._cache.entries import FORMAT, GENERATION, CacheKeyspace
from redis_saver._engine.requests import Batch, Command, Operation, Scan


class CacheSize(NamedTuple):
    """Valid entries of a namespace, without its children."""

    entries: int
    bytes: int
    """Stored bytes of the entries."""


def sizes(keyspace: CacheKeyspace, end: float = math.inf) -> Operation[tuple[dict[Namespace, CacheSize], bool]]:
    """Measure the namespaces that have valid entries, until the time `end`. Cleared entries do not count.

    Cost: SCAN of the whole server, and two round trips per page that has entries.

    Returns:
        The sizes by namespace, and True if the time was up.
    """
    found = defaultdict[Namespace, list[int]](lambda: [0, 0])
    position, seen = None, set[int]()
    while True:
        position, keys = yield Scan(keyspace.pattern, position)
        fresh = {key: spot for key in keys if hash(key) not in seen and (spot := keyspace.spot(key)) is not None}
        seen.update(map(hash, fresh))  # SCAN may return a key twice
        spots = list(dict.fromkeys(fresh.values()))
        if fresh:
            stamps = yield Batch(
                [Command(("MGET", spot.generation, keyspace.generations[spot.shard])) for spot in spots]
            )
            current = {spot: FORMAT + b"".join(stamp) for spot, stamp in zip(spots, stamps, strict=True) if all(stamp)}
            heads = [Command(("GETRANGE", key, 0, 2 * GENERATION)) for key in fresh]
            replies = yield Batch([*heads, *(Command(("STRLEN", key)) for key in fresh)])
            for spot, head, size in zip(fresh.values(), replies, replies[len(fresh) :], strict=False):
                if head == current.get(spot):
                    entries = found[spot.namespace]
                    entries[0] += 1
                    entries[1] += size
        if position is None or time.monotonic() >= end:
            return {name: CacheSize(*size) for name, size in sorted(found.items())}, position is not None
