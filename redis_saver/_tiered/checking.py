"""`check` over two tiers: looks whether a thread in hot is whole, and the same as in cold. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple, get_serializable_checkpoint_metadata

from redis_saver._checkpoint import checking
from redis_saver._checkpoint.checking import CheckReport, State
from redis_saver._checkpoint.comparing import difference, record
from redis_saver._checkpoint.inventory import Findings, Inventory, describe
from redis_saver._checkpoint.reading import BYTES_PER_PAGE
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common import config, names
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call
from redis_saver._storage import codec
from redis_saver._tiered.context import Tiers, newest_of
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver.errors import LimitExceeded, ThreadDamaged

_OUTSIDE = (
    "somebody wrote to one of the two, and not through a TieredSaver. If cold is right, UNLINK the two keys of the thread, and the next read fills Redis "
    "from cold; if Redis is right, delete the thread in cold, and copy it with redis-saver migrate"
)
_LACKS = "somebody removed it there, or wrote to Redis, and not through a TieredSaver; redis-saver migrate from Redis to cold copies it"


def check(tiers: Tiers, thread: str, *, values: bool) -> Tiered[CheckReport]:
    """`check` what hot has. If cold should have all of it, compare each checkpoint with cold's.

    Raises:
        ThreadNotFound: Hot does not have the thread.
        ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
    """
    return (yield from checking.check(tiers.hot, thread, values=values, compare=partial(_compare, tiers, thread)))


def _compare(tiers: Tiers, thread: str, now: State, held: Inventory, found: Findings) -> Tiered[int]:
    """Compare what both have. That cold still lacks something is not wrong; nor is what hot alone has."""
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
                found.add("error", describe(names.checkpoint(ns, checkpoint_id)), text, _OUTSIDE)
    compared = 0
    for place in held.headers:
        compared += yield from _compare_one(tiers, thread, place, now, found)
    return compared


def _compare_one(tiers: Tiers, thread: str, place: CheckpointKey, now: State, found: Findings) -> Tiered[int]:
    """Compare a checkpoint. Returns 1 if it could be compared. It does not count if somebody wrote it in hot while cold was read."""
    where = describe(names.checkpoint(*place))
    try:
        stored, here = yield from _read(tiers, thread, place)
    except (ThreadDamaged, LimitExceeded) as error:
        found.add("warning", where, f"it could not be compared with cold: {error}", "repair it here first")
        return 0
    there = yield ColdCall("get_tuple", (config.to_config(thread, *place),))
    if there is None:
        if not now.has_gaps:
            found.add("error", where, "cold does not have it", _LACKS)
    elif here and (what := difference(record(here, {}), record(there, {}), _as_stored)):
        again, _ = yield from _read(tiers, thread, place)
        if again == stored:
            found.add("error", where, f"cold has it with something else: {what}", _OUTSIDE)
    return 1


def _read(tiers: Tiers, thread: str, place: CheckpointKey) -> Tiered[tuple[Any, CheckpointTuple | None]]:
    """A checkpoint as hot stores it, and decoded."""
    wanted = (BYTES_PER_PAGE, names.component(place[0]), names.component(place[1]))
    flat, stored = yield Call(scripts.GET_MANY, tiers.hot.keyspace.keys(thread), wanted)
    here = stored and codec.decode_tuple(tiers.hot, thread, stored, codec.as_chunks(tiers.hot, flat, thread))
    return stored, here or None


def _as_stored(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON, without `writes`: some savers store them in this form."""
    return json.dumps(get_serializable_checkpoint_metadata({}, metadata), sort_keys=True, default=repr)  # type: ignore[arg-type]
