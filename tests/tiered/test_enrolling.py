"""Threads that only hot has, or that were coalesced, reach cold while others read, write and delete."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis
import tiered_operations as operations
from interleaving import UnderWay
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver import ThreadBusy
from redis_saver._checkpoint import scripts as checkpoint_scripts
from redis_saver._tiered import context, flushing, scripts
from tests.support.factories import config
from tests.support.tiering import LATEST, VERSIONS, FlakySaver, Tiers, between, drained
from tests.support.tiering import keys_of, new, plain, put_new, two_runs, written

pytestmark = [
    pytest.mark.parametrize("target_name", ["redis"], indirect=True),
    pytest.mark.parametrize("flavour", ["sync"], indirect=True),
]


def going_on(uniform: Any, operation: Any, until: str) -> UnderWay:
    """An operation that has reached a given request."""
    one = UnderWay(uniform.saver, "", operation, lambda _: None, "thread")
    while one.asks != until:
        one.step()
    return one


@pytest.mark.parametrize("until", [f"hot {scripts.CLAIM.name}", "flushes put", "flushes put_writes"])
@pytest.mark.parametrize("act", ["list", "history", "copy"])
async def test_a_thread_is_readable_while_another_process_enrolls_it(tiers: Tiers, act: str, until: str) -> None:
    """Cold has none or half of it."""
    alone, uniform, other = tiers.target.uniform(), await tiers.uniform(), await tiers.uniform()
    made = await written(alone)
    asked = {"config": made[-1], "channels": ["n"]}
    listed, expected = await alone.list(config()), alone.saver.get_delta_channel_history(**asked)

    async def another() -> None:
        going_on(other, operations.put(other.saver._context, made[-1], new(), {}, VERSIONS), until)

    between(uniform, scripts.ENROLL, another)
    if act == "list":
        assert list(map(plain, await uniform.list(config()))) == list(map(plain, listed))
    elif act == "history":
        assert uniform.saver.get_delta_channel_history(**asked) == expected
    else:
        tiers.later(flushing.FLUSH_LEASE)
        await uniform.copy_thread("thread", "copy")
        copied = await (await tiers.cold_uniform()).list(config("copy"))
        assert [one.pending_writes for one in copied] == [one.pending_writes for one in listed]


@pytest.mark.parametrize("what", ["deletion", "write"])
async def test_enrolling_does_not_undo_a_bypassing_write(tiers: Tiers, what: str) -> None:
    """Hot missed the write or deletion, so it sends nothing older to cold."""
    uniform, cold = await tiers.uniform(**LATEST), await tiers.cold_uniform()
    await two_runs(uniform)
    last = (await uniform.get_tuple(config())).config
    await uniform.put_writes(last, [(INTERRUPT, ["older"])], "task")
    await drained(uniform)
    bypass = await tiers.uniform(on_hot_error="bypass")
    tiers.fails(bypass, scripts.ERASE if what == "deletion" else scripts.PUT_WRITES_THROUGH)
    if what == "deletion":
        await bypass.delete_thread("thread")
    else:
        await bypass.put_writes(last, [(INTERRUPT, ["newer"])], "task")
    tiers.later(context.WRITER_GONE + 1)
    await uniform.delete_for_runs(["run-1"])
    for each in (uniform, cold):
        found = await each.get_tuple(config())
        assert found is None if what == "deletion" else found.pending_writes[0][2] == ["newer"]


async def test_a_run_deletion_waits_for_a_concurrent_write(tiers: Tiers) -> None:
    """After the deletion, cold has the checkpoint that it skipped before."""
    uniform, through, cold = await tiers.uniform(**LATEST), await tiers.uniform(), await tiers.cold_uniform()
    await two_runs(uniform)
    await drained(uniform)
    first = (await uniform.list(config()))[-1].config
    last = (await through.get_tuple(config())).config
    writing = going_on(through, operations.put(through.saver._context, last, new(), {}, VERSIONS), "ColdCall put")
    operation = operations.delete_for_runs(uniform.saver._context, ["run-2"])
    deleting = UnderWay(uniform.saver, "", operation, lambda _: None, "thread")
    while not deleting.is_waiting:
        deleting.step()
    for one in (writing, deleting):
        while not one.step():
            pass
    assert (await cold.get_tuple(first)).metadata["run_id"] == "run-1"


async def test_a_run_deletion_is_busy_just_after_a_writer_died(tiers: Tiers, monkeypatch: Any) -> None:
    """The caller has to repeat the deletion. Other writers go on."""
    monkeypatch.setattr(flushing, "FLUSH_LEASE", 500)
    uniform, through, cold = await tiers.uniform(**LATEST), await tiers.uniform(), await tiers.cold_uniform()
    await two_runs(uniform)
    await drained(uniform)
    last = (await uniform.get_tuple(config())).config
    going_on(through, operations.put(through.saver._context, last, new(), {}, VERSIONS), "ColdCall put")
    with pytest.raises(ThreadBusy, match="'thread'"):
        await uniform.delete_for_runs(["run-2"])
    await through.put_writes(last, [("n", 1)], "task")
    assert (await cold.get_tuple(last)).pending_writes == [("task", "n", 1)]
    tiers.later(context.WRITER_GONE + 1)
    await uniform.delete_for_runs(["run-2"])
    assert "run-2" not in [one.metadata.get("run_id") for one in await cold.list(config())]


async def test_a_ttl_removed_during_enrolling_stays_removed(tiers: Tiers) -> None:
    alone, flaky = tiers.target.uniform(), FlakySaver(await tiers.cold())
    await written(alone)
    alone.saver.set_thread_ttl("thread", timedelta(hours=1))
    uniform, flaky.fail = await tiers.uniform(cold=flaky.wrap()), {"put", "put_writes"}
    with pytest.raises(psycopg.OperationalError):
        await uniform.list(config())
    alone.saver.set_thread_ttl("thread", None)
    flaky.fail = set()
    assert await uniform.flush() == 0
    assert tiers.target.raw.pttl(keys_of(tiers).data_key) == -1


async def test_a_list_shows_threads_of_both_tiers_but_no_foreign_key(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    await written(tiers.target.uniform(), "only in hot")
    await written(uniform, "only in cold")
    tiers.evict(thread="only in cold")
    tiers.target.raw.set(keys_of(tiers).index_key, "not ours")
    found = [one.config["configurable"]["thread_id"] for one in await uniform.list(None)]
    assert sorted(found) == ["only in cold"] * 3 + ["only in hot"] * 3


async def test_a_hot_failure_while_enrolling_is_no_refusal(tiers: Tiers) -> None:
    """No record is set aside, and the next try succeeds."""
    made, uniform = await written(tiers.target.uniform()), await tiers.uniform(on_hot_error="bypass")
    works = tiers.fails(uniform, checkpoint_scripts.GET)
    with pytest.raises(redis.ConnectionError):
        await put_new(uniform, made[-1])
    works()
    assert not [field for field in tiers.target.raw.hkeys(keys_of(tiers).flush) if field.startswith(b"x")]
    tiers.later(flushing.FLUSH_LEASE)
    await put_new(uniform, made[-1])
    assert len(await (await tiers.cold_uniform()).list(config())) == 4
