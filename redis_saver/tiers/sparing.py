"""`cold_history="latest"`: which records cold need not get, as it gets a newer checkpoint of the same burst."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from redis_saver import config, reading
from redis_saver.tiers.model import Record, Tiered, Tiers

_DELTA = "counters_since_delta_snapshot"
"""What LangGraph notes in the metadata of a checkpoint whose `DeltaChannel`s are made of writes to its ancestors."""


def spared(tiers: Tiers, thread: str, records: Sequence[Record]) -> Tiered[set[bytes]]:
    """The members of checkpoints that are not the newest of their namespace, and of their writes.

    Where a `DeltaChannel` of the newest one is rebuilt from its ancestors, none of its namespace is spared.
    """
    of_ns: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.kind == b"c":
            ns, checkpoint_id = record.place
            of_ns[ns].add(checkpoint_id)
    left_out: set[tuple[str, str]] = set()
    for ns, ids in of_ns.items():
        if len(ids) > 1 and not (yield from _needs_ancestors(tiers, thread, ns, max(ids))):
            left_out |= {(ns, one) for one in ids if one != max(ids)}
    return {record.member for record in records if record.kind != b"d" and record.place in left_out}


def _needs_ancestors(tiers: Tiers, thread: str, ns: str, newest: str) -> Tiered[bool]:
    where = config.to_config(thread, ns, newest)
    found = yield from reading.get_tuple(tiers.carrier, where)
    if found is None or _DELTA in found.metadata:
        return True
    checkpoint = found.checkpoint
    lacking = [channel for channel in checkpoint["channel_versions"] if channel not in checkpoint["channel_values"]]
    if not lacking:
        return False
    histories = yield from reading.get_delta_channel_history(tiers.carrier, where, lacking)
    return any(history["writes"] for history in histories.values())
