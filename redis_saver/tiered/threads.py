"""Changing threads as a whole: in cold, and hot gives them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from redis_saver import config, names
from redis_saver.checkpoint import listing
from redis_saver.engine import scripts
from redis_saver.engine.requests import Call
from redis_saver.tiered import write_behind
from redis_saver.tiered.cold_calls import calls_for
from redis_saver.tiered.context import Tiers
from redis_saver.tiered.intents import ALL, Intent, begin_intent, change, end, erased, given_up
from redis_saver.tiered.leases import release
from redis_saver.tiered.reading import list_checkpoints
from redis_saver.tiered.requests import ColdCall, Tiered


def delete_thread(tiers: Tiers, thread: str) -> Tiered[None]:
    """Delete a thread."""
    if tiers.flush_queue and (yield from write_behind.delete_thread(tiers, tiers.flush_queue, thread)):
        return
    intent = yield from begin_intent(tiers, thread, ALL, need="nothing")
    yield ColdCall("delete_thread", (thread,))
    yield from end(tiers, thread, intent, erased(tiers, thread, intent))


def copy_thread(tiers: Tiers, source: str, target: str) -> Tiered[None]:
    """Make the target what the source is, in cold; hot gives the target up."""
    if source == target:
        return
    stream: Any = list_checkpoints(tiers, {"configurable": {"thread_id": source}}, None, None, None)
    found: list[CheckpointTuple] = yield from listing.collect(stream)
    if not found:
        return
    intent = yield from begin_intent(tiers, target, ALL, need="nothing")
    yield ColdCall("delete_thread", (target,))
    for one in reversed(found):
        yield from calls_for(one, target)
    yield from end(tiers, target, intent, given_up(tiers, target, intent))


def delete_for_runs(tiers: Tiers, run_ids: Sequence[str]) -> Tiered[None]:
    """Delete the checkpoints of some runs in cold; hot gives up the threads in which it has them.

    Raises:
        ThreadBusy: Checkpoints of such a thread were coalesced, and cold could not get them first, as others were writing it all the time.
    """
    members, intents, concerned = [names.run(run) for run in run_ids], list[tuple[str, Intent]](), set[str]()
    for run in run_ids:  # of threads, too, that may be on their way back to hot
        found = yield ColdCall("list", (None,), {"filter": {"run_id": run}})
        concerned.update(config.thread_id(one.config) for one in found)
    for thread in (yield from listing.collect(listing.scan_threads(tiers.hot))):
        if thread not in concerned and (yield Call(scripts.HAS_RUNS, tiers.hot.keyspace.keys(thread), members)):
            concerned.add(thread)
    try:
        for thread in sorted(concerned):
            intent = yield from begin_intent(tiers, thread, ALL, need="all")  # what is left may be what was coalesced
            intents.append((thread, intent))
    except Exception:
        for thread, intent in intents:
            yield release(tiers.hot.keyspace.tier_keys(thread), intent.token)
        raise
    yield ColdCall("delete_for_runs", (run_ids,))
    for thread, intent in intents:
        yield from end(tiers, thread, intent, given_up(tiers, thread, intent))


def prune(tiers: Tiers, thread_ids: Sequence[str], strategy: str) -> Tiered[None]:
    """Prune threads in cold; hot gives them up."""
    yield ColdCall(
        "prune", ([],), {"strategy": strategy}
    )  # so that a saver that cannot says so before anything is done
    for thread in thread_ids:
        if strategy in ("delete", "delete_all"):
            yield from delete_thread(tiers, thread)
            continue
        yield from change(tiers, thread, ColdCall("prune", ([thread],), {"strategy": strategy}))
