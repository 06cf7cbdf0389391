"""`check` over two tiers: checks a thread in hot, and compares it with cold. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, get_serializable_checkpoint_metadata

from redis_saver._checkpoint import checking, scripts
from redis_saver._checkpoint.checking import CheckReport, Findings, Inventory, State, describe
from redis_saver._checkpoint.comparing import difference, record
from redis_saver._checkpoint.reading import BYTES_PER_PAGE
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common import config, names
from redis_saver._engine.requests import Call
from redis_saver._storage import codec
from redis_saver._tiered.context import Tiers, newest_of
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver.errors import LimitExceeded, ThreadDamaged

_OUTSIDE = (
    "somebody wrote to one of the two, and not through a TieredSaver. If cold is right, UNLINK the two keys of the "
    "thread, and the next read fills Redis from cold; if Redis is right, delete the thread in cold, and copy it with "
    "redis-saver migrate"
)
_LACKS = (
    "somebody removed it there, or wrote to Redis, and not through a TieredSaver; redis-saver migrate from Redis to "
    "cold copies it"
)


def check(tiers: Tiers, thread: str, *, values: bool) -> Tiered[CheckReport]:
    """`check` what hot has. If cold should have all of it, compare each checkpoint with cold's.

    Raises:
        ThreadNotFound: Hot does not have the thread.
        ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
    """
    return (yield from checking.check(tiers.hot, thread, values=values, compare=partial(_compare, tiers, thread)))


def _compare(tiers: Tiers, thread: str, now: State, held: Inventory, findings: Findings) -> Tiered[int]:
    """Compare what both have. Cold may still lack something, and hot may have more than cold: neither is an error."""
    if now.lacking or not now.has_cold:
        return 0
    newest: dict[str, str] = {}
    for ns, checkpoint_id in held.headers:
        newest[ns] = max(newest.get(ns, ""), checkpoint_id)
    for ns, checkpoint_id in newest.items():
        if now.is_whole or newest_of(ns) in held.marks:
            there = yield ColdCall("get_tuple", ({"configurable": {"thread_id": thread, "checkpoint_ns": ns}},))
            if there is not None and (other := there.checkpoint["id"]) > checkpoint_id:
                text = f"it is the newest here, and cold has a newer one, {other!r}"
                findings.add("error", describe(names.checkpoint(ns, checkpoint_id)), text, _OUTSIDE)
    compared = 0
    for key in held.headers:
        compared += yield from _compare_checkpoint(tiers, thread, key, now, findings)
    return compared


def _compare_checkpoint(tiers: Tiers, thread: str, key: CheckpointKey, now: State, findings: Findings) -> Tiered[int]:
    """Compare a checkpoint. Returns 1 if it could be compared. A write in hot while cold is read is no finding."""
    described = describe(names.checkpoint(*key))
    try:
        stored, here = yield from _read(tiers, thread, key)
    except (ThreadDamaged, LimitExceeded) as error:
        findings.add("warning", described, f"it could not be compared with cold: {error}", "repair it here first")
        return 0
    there = yield ColdCall("get_tuple", (config.to_config(thread, *key),))
    if there is None:
        if not now.has_gaps:
            findings.add("error", described, "cold does not have it", _LACKS)
    elif here and (what := difference(record(here, {}), record(there, {}), _as_stored)):
        again, _ = yield from _read(tiers, thread, key)
        if again == stored:
            findings.add("error", described, f"cold has it with something else: {what}", _OUTSIDE)
    return 1


def _read(tiers: Tiers, thread: str, key: CheckpointKey) -> Tiered[tuple[Any, CheckpointTuple | None]]:
    """Return a checkpoint as hot stores it, and decoded."""
    wanted = (BYTES_PER_PAGE, names.component(key[0]), names.component(key[1]))
    flat, stored = yield Call(scripts.GET_MANY, tiers.hot.keyspace.keys(thread), wanted)
    here = stored and codec.decode_tuple(tiers.hot, thread, stored, codec.as_chunks(tiers.hot, flat, thread))
    return stored, here or None


def _as_stored(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON, without `writes`: some savers store them in this form."""
    serializable = get_serializable_checkpoint_metadata({}, metadata)  # type: ignore[arg-type]
    return json.dumps(serializable, sort_keys=True, default=repr)
