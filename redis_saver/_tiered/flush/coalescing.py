"""`cold_history="latest"`: which records cold does not need, because it gets a newer checkpoint of the same burst."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from redis_saver._checkpoint import delta, reading
from redis_saver._common import config, names
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.records import Record
from redis_saver._tiered.requests import HotFailed, Tiered
from redis_saver.errors import RedisSaverError


class Plan(NamedTuple):
    """What to do with a burst."""

    newest: dict[bytes, bytes]
    """The records that cold does not need (checkpoints that are not the newest of their namespace, and their writes). Each is mapped to the
    newest checkpoint, which cold has to get instead."""
    whole: set[str]
    """Namespaces in which nothing is coalesced, because the newest checkpoint needs its ancestors: a `DeltaChannel` is rebuilt from the writes to them."""


def plan(tiers: Tiers, thread: str, records: Sequence[Record]) -> Tiered[Plan]:
    """Plan which of the gathered records to coalesce."""
    of_ns: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.kind == b"c":
            ns, checkpoint_id = record.place
            of_ns[ns].add(checkpoint_id)
    whole = set()
    for ns, ids in of_ns.items():
        if (yield from _needs_ancestors(tiers, thread, ns, max(ids))):
            whole.add(ns)
    newest = dict[bytes, bytes]()
    for record in records:
        ns, checkpoint_id = record.place if record.kind != b"d" else ("", "")
        ids = of_ns[ns] if ns in of_ns and ns not in whole else set()
        if checkpoint_id in ids and checkpoint_id != max(ids):
            newest[record.member] = names.checkpoint(ns, max(ids))
    return Plan(newest, whole)


def _needs_ancestors(tiers: Tiers, thread: str, ns: str, newest: str) -> Tiered[bool]:
    try:
        found = yield from reading.get_tuple(tiers.opaque_hot, config.to_config(thread, ns, newest))
    except HotFailed:
        raise
    except RedisSaverError:  # the flusher reports it when it reads the record
        return True
    return found is None or delta.COUNTERS in found.metadata
