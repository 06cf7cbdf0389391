"""Write-behind: hot acknowledges a write, and cold gets it later."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import pydantic
import pytest
from histories import Accident, History, Killed, Process
from interleaving import Interleaving
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT, _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command as Resume, interrupt
from typing_extensions import TypedDict

from redis_saver import AsyncTieredSaver, BacklogFull, ReplicationTimeout, ThreadDamaged, TieredSaver
from redis_saver._common.names import Keyspace
from redis_saver._serde.serializer import FastSerializer
from redis_saver._storage.framing import pack
from redis_saver._tiered import backlog, context, flushing, scripts, workers
from tests.support.factories import checkpoint, config, ids
from tests.support.growing import until
from tests.support.seeds import seeds_and_slow, targets
from tests.support.servers import Server
from tests.support.talking import call_graph
from tests.support.tiering import BEHIND, LATEST, VERSIONS, FlakySaver, Tiers
from tests.support.tiering import between, both_histories, drained, only_in_cold
from tests.support.tiering import flushed_until, id_of, keys_of, new, plain, put_new, stalled, written
from tests.support.uniform import Block, Target, Uniform
from tests.support.wrappers import elsewhere, requests_of, ran

pytestmark = pytest.mark.also_on(cluster="async", redis62="sync")


def all_plain(found: list[Any]) -> list[Any]:
    return [plain(one) for one in found]


@pytest.mark.by_turns
@pytest.mark.also_on(cluster="sync", redis62="async")
@pytest.mark.parametrize("settings", [{}, BEHIND, LATEST], ids=["through", "all", "latest"])
async def test_conformance_is_full(tiers: Tiers, settings: dict[str, Any]) -> None:
    made: list[Uniform] = []
    # A longer interval: the tests store several values as one version, and cold may keep the first, hot the last.
    flushing_itself = {**settings, "flusher": True, "flush_interval": 5} if settings else {}

    @checkpointer_test(name=tiers.target.prefix)
    async def factory() -> AsyncGenerator[Any, None]:
        made.append(await tiers.uniform(**flushing_itself))
        yield made[-1].saver

    report = await validate(factory)
    failures = [failure for result in report.results.values() for failure in result.failures or []]
    assert not failures
    assert {name for name, result in report.results.items() if result.passed} == {cap.value for cap in ALL_CAPABILITIES}
    assert report.conformance_level() == "FULL"
    for uniform in made:
        assert await uniform.close() == 0
        assert not uniform.saver.stats().tiers.last_error


async def test_hot_acknowledges_and_cold_gets_the_writes_later(tiers: Tiers) -> None:
    flaky, raw, keys = FlakySaver(await tiers.cold()), tiers.target.raw, keys_of(tiers)
    uniform = await tiers.uniform(cold=flaky.wrap(), hot={"ttl": timedelta(hours=1)}, **BEHIND)
    cold = await tiers.cold_uniform()

    async def seen(saver: Any) -> Any:
        return all_plain(await saver.list(config())), plain(await saver.get_tuple(config()))

    made = await written(uniform)
    assert flaky.calls == ["get_tuple", "list"]  # the first read
    assert await cold.list(config()) == []
    assert [(await uniform.get_tuple(one)).config for one in made] == made
    assert len(await uniform.list(config())) == 3
    assert [raw.pttl(key) for key in (keys.index_key, keys.data_key, keys.dirty)] == [-1] * 3
    assert raw.zcard(keys.dirty) == uniform.saver.stats().tiers.backlog == 6
    assert flaky.calls == ["get_tuple", "list"]
    before = await seen(uniform)
    await drained(uniform)
    assert uniform.saver.stats().tiers.flushed == 6
    assert raw.exists(keys.dirty, keys.intents, keys.lease) == raw.exists(keys.flush) == 0
    assert all(0 < raw.pttl(key) <= 3_600_000 for key in (keys.index_key, keys.data_key))
    assert await seen(cold) == before
    tiers.evict()
    assert await seen(await tiers.uniform(**BEHIND)) == before


async def test_coalescing_skips_checkpoints_with_a_newer_one(tiers: Tiers) -> None:
    uniform, cold = await tiers.uniform(**LATEST), await tiers.cold_uniform()
    made = await written(uniform)
    whole = all_plain(await uniform.list(config()))
    assert await uniform.get_tuple(config("thread", "sub")) is None
    sub = await put_new(uniform, config("thread", "sub"), 1)
    await drained(uniform)
    assert (uniform.saver.stats().tiers.flushed, uniform.saver.stats().tiers.coalesced) == (5, 2)
    assert set(ids(await cold.list(config("thread", None)))) == {id_of(made[-1]), id_of(sub)}
    assert plain(await cold.get_tuple(config())) == whole[0]
    assert all_plain(await uniform.list(config("thread", ""))) == whole  # hot still has them
    new = checkpoint({"n": [9], "whole": {"a": ["x" * 3000, "y"]}}, {**VERSIONS, "whole": f"{1:032}.1"})
    stored = await uniform.put(made[-1], new, {"step": 3}, VERSIONS)
    await only_in_cold(tiers, uniform)
    found = await uniform.get_tuple(config())
    assert found.config == stored
    assert found.checkpoint["channel_values"] == new["channel_values"]  # cold had the unchanged values
    assert len(await uniform.list(config("thread", ""))) == 2


async def test_a_fork_of_a_coalesced_checkpoint_keeps_all_values(tiers: Tiers) -> None:
    """A channel has not changed since a checkpoint that cold never got."""
    uniform, through = await tiers.uniform(**LATEST), await tiers.uniform()
    await uniform.get_tuple(config())
    first, second = ({"n": f"{number:032}.1", "old": f"{number:032}.1"} for number in (1, 2))
    where = await uniform.put(config(), checkpoint({"n": [1], "old": ["o"]}, first), {}, first)
    await uniform.put(where, checkpoint({"n": [2]}, second), {}, second)
    await drained(uniform)
    fork = checkpoint({"n": [3], "old": ["o"]}, {**first, **VERSIONS})
    await through.put(where, fork, {}, VERSIONS)
    for each in (await tiers.cold_uniform(), through):
        assert (await each.get_tuple(config())).checkpoint["channel_values"] == fork["channel_values"]


async def test_deleting_a_run_brings_coalesced_ancestors_to_cold(tiers: Tiers) -> None:
    """Cold gets them before hot drops the thread, so the state before the run remains."""
    uniform = await tiers.uniform(**LATEST)
    await uniform.get_tuple(config())
    where = config()
    for number, run in enumerate(["first", "first", "second", "second"], 1):
        where = await put_new(uniform, where, number, run_id=run)
        await uniform.put_writes(where, [("n", number)], "task")
    await drained(uniform)
    await uniform.delete_for_runs(["second"])
    for each in (uniform, await tiers.cold_uniform()):
        found = await each.get_tuple(config())
        assert found.checkpoint["channel_values"] == {"n": [2]}
        assert found.pending_writes == [("task", "n", 2)]
        assert len(await each.list(config())) == 2


async def test_a_coalescing_list_shows_writes_that_bypassed_hot(tiers: Tiers) -> None:
    """Hot did not learn how the write ended, so list and get_tuple trust cold."""
    uniform, through = await tiers.uniform(**LATEST), await tiers.uniform(on_hot_error="bypass")
    made = await written(uniform)
    await drained(uniform)
    works = tiers.fails(through, scripts.PUT_WRITES_THROUGH)
    await through.put_writes(made[-1], [("n", [9])], "task-x")
    works()
    newest = await uniform.get_tuple(config())
    assert ("task-x", "n", [9]) in newest.pending_writes
    assert [plain((await uniform.list(where))[0]) for where in (config(), None)] == [plain(newest)] * 2
    works = tiers.fails(through, scripts.ERASE)
    await through.delete_thread("thread")
    works()
    assert await uniform.get_tuple(config()) is None
    assert [await uniform.list(where) for where in (config(), None)] == [[], []]


@both_histories
async def test_a_deleted_thread_does_not_come_back(tiers: Tiers, behind: dict[str, Any]) -> None:
    uniform, cold = await tiers.uniform(**behind), await tiers.cold_uniform()
    await written(uniform)
    await drained(uniform)
    await uniform.put_writes((await uniform.get_tuple(config())).config, [("n", [9])], "task-x")
    await uniform.delete_thread("thread")
    assert await cold.get_tuple(config()) is not None
    for each in (uniform, await tiers.uniform(**BEHIND), await tiers.uniform()):
        assert await each.get_tuple(config()) is None
        assert await each.get_tuple(config("thread", "sub")) is None
        assert await each.list(config()) == [] or each is not uniform
    made = await written(uniform)  # restarted before cold has deleted it
    assert len(await uniform.list(config())) == 3
    await drained(uniform)
    assert all(found.config in made for found in await cold.list(config()))
    await uniform.delete_thread("thread")
    await drained(uniform)
    assert await cold.list(config()) == []
    assert [key for key in tiers.target.keys() if b"{thread}" in key and not key.endswith((b":flush", b":lease"))] == []


async def test_hot_works_until_the_backlog_is_full_while_cold_is_down(tiers: Tiers) -> None:
    """When cold is back, it gets the whole backlog."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND, max_backlog=9, backlog_timeout=0.2)
    last = (await written(uniform))[-1]
    flaky.fail = {"get_tuple", "put", "put_writes", "delete_thread", "list"}
    for number in range(10, 13):
        last = await put_new(uniform, last, number)
        assert (await uniform.get_tuple(config())).config == last
    assert len(await uniform.list(config())) == 6
    assert await uniform.get_tuple(config("thread", "other namespace")) is None
    with pytest.raises(psycopg.OperationalError):  # cold may have it
        await uniform.get_tuple(config("another"))
    assert await flushed_until(uniform, lambda _: uniform.saver.stats().tiers.unreachable) == 9
    stats = uniform.saver.stats().tiers
    assert "on purpose" in stats.last_error and (stats.refused, stats.set_aside) == (0, 0)
    before = tiers.target.keys()
    for act in (lambda: put_new(uniform, last, 17), lambda: uniform.put_writes(last, [("n", 1)], "task")):
        with pytest.raises(BacklogFull, match="max_backlog=9"):
            await act()
    assert tiers.target.keys() == before
    assert (await uniform.get_tuple(config())).config == last
    flaky.fail = set()
    await drained(uniform)
    await put_new(uniform, last, 17)
    await drained(uniform)
    assert len(await (await tiers.cold_uniform()).list(config())) == 7


async def test_a_refused_record_is_set_aside_and_retried(tiers: Tiers) -> None:
    """No other record waits for it."""
    cold, flaky = await tiers.cold_uniform(), FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND)
    made = await written(uniform)
    await written(uniform, "another")
    flaky.poison.add(id_of(made[1]))
    await flushed_until(uniform, lambda left: left == 1)
    stats = uniform.saver.stats().tiers
    assert (stats.set_aside, stats.dirty_threads, stats.backlog) == (1, 1, 1)
    assert "cannot be stored" in stats.last_error
    assert 0 < stats.oldest_seconds < 100
    assert len(await cold.list(config())) == 2
    assert plain(await cold.get_tuple(config())) == plain(await uniform.get_tuple(config()))
    assert len(await cold.list(config("another"))) == 3
    assert tiers.target.raw.pttl(keys_of(tiers).data_key) == -1
    flaky.poison.clear()
    await drained(uniform)
    assert (await cold.get_tuple(made[1])).checkpoint["channel_values"]["n"] == [1]
    assert len(await cold.list(config())) == 3


async def test_a_write_goes_through_if_hot_lacks_the_thread(tiers: Tiers) -> None:
    """Hot looks into cold. If hot still knows too little, the write returns when both tiers have it."""
    uniform, cold, raw = await tiers.uniform(**BEHIND), await tiers.cold_uniform(), tiers.target.raw
    made = await written(uniform)
    await only_in_cold(tiers, uniform)
    new = checkpoint({"n": [9]}, {**VERSIONS, "whole": f"{1:032}.1"})
    stored = await uniform.put(made[-1], new, {}, VERSIONS)  # cold may have early writes of it
    assert (uniform.saver.stats().tiers.written_through, raw.exists(keys_of(tiers).dirty)) == (1, 0)
    await uniform.put_writes(made[-1], [("n", [1])], "task-b2", "path-11")  # hot lacks the paths of its other writes
    assert (uniform.saver.stats().tiers.written_through, raw.exists(keys_of(tiers).dirty)) == (2, 0)
    for each in (uniform, await tiers.uniform(**BEHIND)):
        for place in (config(), stored, *made):
            assert plain(await each.get_tuple(place)) == plain(await cold.get_tuple(place))
    await uniform.put_writes(stored, [("n", [2])], "task-c")  # hot knows enough now
    newer = checkpoint({"n": [10]}, {"n": f"{10:032}.1", "whole": f"{1:032}.1"})
    await uniform.put(stored, newer, {}, {"n": f"{10:032}.1"})  # its id was made while hot had the thread
    assert (uniform.saver.stats().tiers.written_through, raw.zcard(keys_of(tiers).dirty)) == (2, 2)


async def test_both_modes_share_a_thread(tiers: Tiers) -> None:
    behind, through, cold = await tiers.uniform(**BEHIND), await tiers.uniform(), await tiers.cold_uniform()
    made = await written(behind)
    stored = await through.put(made[-1], checkpoint({"n": [9]}, {**VERSIONS, "whole": f"{1:032}.1"}), {}, VERSIONS)
    assert len(await cold.list(config())) == 4
    await behind.put_writes(stored, [("n", [2])], "task-c")
    assert (await through.get_tuple(config())).pending_writes
    await through.put_writes(stored, [("n", [3])], "task-d")
    assert [write[0] for write in (await cold.get_tuple(config())).pending_writes] == ["task-c", "task-d"]
    await behind.put_writes(stored, [("n", [2])], "task-e")
    for act in (
        lambda: through.prune(["thread"]),
        lambda: behind.copy_thread("thread", "copy"),
        lambda: behind.delete_for_runs(["no such run"]),
    ):
        await act()
        for each in (behind, through):
            assert len((await each.get_tuple(config())).pending_writes) == 3
    assert len(await behind.list(config("copy"))) == 1
    await behind.put_writes(stored, [("n", [2])], "task-f")
    await through.delete_thread("thread")
    assert [await each.get_tuple(config()) for each in (behind, through, cold)] == [None] * 3


async def test_a_write_through_saver_flushes_the_backlog_of_others(tiers: Tiers) -> None:
    uniform, through = await tiers.uniform(**BEHIND), await tiers.uniform()
    await written(uniform)
    assert await ran(through, workers.flush_some(through.saver._context, "thread", at_once=True)) == 6
    await written(uniform, "another")
    assert await through.flush(timeout=30) == 0
    assert len(await (await tiers.cold_uniform()).list(None)) == 6


async def test_repeated_writes_keep_their_indexes_in_cold(tiers: Tiers) -> None:
    """Cold has the same rows as after a direct write, so a repetition adds none."""
    uniform, cold = await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    made = await written(uniform)
    mixed = [("a", [1]), (INTERRUPT, ["?"]), ("b", [2]), ("a", [3])]
    await uniform.put_writes(made[-1], mixed, "task-m", "path")
    await drained(uniform)
    before = (await cold.get_tuple(config())).pending_writes
    await cold.put_writes(made[-1], mixed, "task-m", "path")
    assert (await cold.get_tuple(config())).pending_writes == before
    assert (await uniform.get_tuple(config())).pending_writes == before
    assert len([one for one in before if one[0] == "task-m"]) == 4


async def test_other_processes_flush_the_backlog_of_a_dead_one(tiers: Tiers, monkeypatch: Any) -> None:
    """They find it by a scan."""
    monkeypatch.setattr(backlog, "SCAN_INTERVAL", 0.05)
    uniform, cold, threads = await tiers.uniform(**BEHIND), await tiers.cold_uniform(), ("one", "two", "{three}:*")
    for name in threads:
        await written(uniform, name)
    tiers.target.raw.delete(Keyspace(tiers.target.prefix).scanning)
    others = [await tiers.uniform(mode="write-behind", flush_interval=0.05) for _ in range(2)]
    if tiers.native_async:
        for other in others:
            await other.saver.__aenter__()
    unflushed = Keyspace(tiers.target.prefix).unflushed
    await until(lambda: (tiers.target.raw.hget(unflushed, "scan") or b"").split()[1:] == [b"0"] * 4)
    for name in threads:
        assert all_plain(await cold.list(config(name))) == all_plain(await uniform.list(config(name)))
        assert len(await cold.list(config(name))) == 3
    assert sum(other.saver.stats().tiers.flushed for other in others) == 18
    assert [await other.close() for other in others] == [0, 0]


@pytest.mark.parametrize("anew", ["nobody", "behind", "through"])
async def test_a_fenced_flusher_does_not_restore_a_deleted_thread(tiers: Tiers, anew: str) -> None:
    """Its lease expired, and the thread was deleted in cold before it continued. Perhaps somebody began it anew."""
    uniform, other, cold = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    made, through = await written(uniform), await tiers.uniform()
    go_on = await stalled(tiers, uniform, is_late=True)
    await other.put_writes(made[-1], [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(other)
    await other.delete_thread("thread")
    await drained(other)
    assert await cold.list(config()) == []
    if anew == "behind":
        await other.get_tuple(config())
        await put_new(other)
        await drained(other)
    elif anew == "through":
        stored = await put_new(through)  # hot has nothing of it
    await go_on()
    await drained(other)
    if anew == "through":  # cold may have an old checkpoint again
        assert [(await each.get_tuple(stored)).config for each in (through, other, cold)] == [stored] * 3
        return
    assert len(await cold.list(config())) == (anew != "nobody")
    for each in (uniform, other):
        assert plain(await each.get_tuple(config())) == plain(await cold.get_tuple(config()))


async def test_an_outage_stops_the_queue_with_many_threads(tiers: Tiers) -> None:
    queue = (await tiers.saver(**BEHIND))._context.flush_queue
    for number in range(200):
        queue.after_claim(f"{number}", 0, 1, "OperationalError: down", is_refused=False)
    assert queue.due() is None


async def test_a_fenced_flusher_delays_the_expiry(tiers: Tiers) -> None:
    uniform = await tiers.uniform(hot={"ttl": timedelta(hours=1)}, **BEHIND)
    await written(uniform)
    go_on = await stalled(tiers, uniform, is_late=True)
    await drained(uniform)
    assert (await go_on()).left == 1
    assert [tiers.target.raw.pttl(key) for key in keys_of(tiers)[:2]] == [-1, -1]
    await drained(uniform)
    assert all(0 < tiers.target.raw.pttl(key) <= 3_600_000 for key in keys_of(tiers)[:2])


async def test_a_server_clock_set_back_does_not_block_a_flush(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    await written(uniform)
    now = tiers.target.raw.time()[0] * 1000
    tiers.target.raw.hset(keys_of(tiers).flush, mapping={"token": "of one that is gone", "until": now + 3_660_000})
    await drained(uniform)


async def test_list_waits_for_a_flusher_that_took_over(tiers: Tiers, monkeypatch: Any) -> None:
    """Its own call of cold outlasts the lease, and the new flusher has only begun."""
    monkeypatch.setattr(flushing, "FLUSH_LEASE", 400)
    flaky = FlakySaver(await tiers.cold())
    uniform, other = await tiers.uniform(cold=flaky.wrap(), **BEHIND), await tiers.uniform(**BEHIND)
    made = await written(uniform)
    await only_in_cold(tiers, uniform)
    await uniform.get_tuple(config())
    await uniform.put_writes(await put_new(uniform, made[-1]), [("n", [1])], "task")

    async def too_long() -> None:
        await asyncio.sleep(0.5)
        await stalled(tiers, other)

    flaky.before["put"] = too_long if tiers.native_async else lambda: elsewhere(too_long)
    assert (await uniform.list(config()))[0].pending_writes == [("task", "n", [1])]


async def test_a_fenced_flush_keeps_a_write_of_a_dead_writer(tiers: Tiers, monkeypatch: Any) -> None:
    """The repair of cold must not hide a checkpoint that only cold has."""
    uniform, other, cold = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    made = await written(uniform)
    go_on = await stalled(tiers, uniform, is_late=True)
    await drained(other)
    through = await tiers.uniform(on_hot_error="bypass")
    works = tiers.fails(through, scripts.PUT_THROUGH)
    stored = await put_new(through, made[-1])
    works()
    await go_on()
    assert tiers.target.raw.zcard(keys_of(tiers).dirty) > 0
    monkeypatch.setattr(context, "WRITER_GONE", 0)
    for each in (cold, uniform, through, await tiers.uniform(**BEHIND)):
        assert (await each.get_tuple(config())).config == stored
    await drained(other)
    assert plain(await uniform.get_tuple(config())) == plain(await cold.get_tuple(config()))


async def test_a_fenced_flush_during_conflicting_writes_is_repaired(tiers: Tiers) -> None:
    """Hot must drop the thread after the conflict, but only when the repair of cold has ended."""
    uniform, other, cold = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    made = await written(uniform)
    go_on = await stalled(tiers, uniform, is_late=True)
    await drained(other)
    first, second = await tiers.uniform(), await tiers.uniform()

    async def meanwhile() -> None:
        between(second, scripts.PUT_WRITES_THROUGH, go_on)
        await second.put_writes(made[-1], [(INTERRUPT, ["second"])], "task-y")

    between(first, scripts.PUT_WRITES_THROUGH, meanwhile)
    await first.put_writes(made[-1], [(INTERRUPT, ["first"])], "task-y")
    assert tiers.target.raw.zcard(keys_of(tiers).dirty) > 0
    for each in (uniform, second, other):
        assert plain(await each.get_tuple(config())) == plain(await cold.get_tuple(config()))
    await drained(other)
    assert tiers.target.raw.exists(keys_of(tiers).intents) == 0
    assert plain(await uniform.get_tuple(config())) == plain(await cold.get_tuple(config()))


@both_histories
async def test_a_fenced_flusher_may_end_during_another_flush(tiers: Tiers, behind: dict[str, Any]) -> None:
    """The thread was deleted and restarted. Cold deletes it again, so none of the old checkpoints is left."""
    uniform, other, cold = await tiers.uniform(**behind), await tiers.uniform(**behind), await tiers.cold_uniform()
    await written(uniform)
    late = await stalled(tiers, uniform, is_late=True)
    await other.delete_thread("thread")
    await drained(other)
    last = (await written(other))[-1]
    await drained(other)
    for number in (4, 5):
        before = (await other.get_tuple(last)).checkpoint
        versions = {**before["channel_versions"], "n": f"{number:032}.1"}
        new = checkpoint({**before["channel_values"], "n": [number]}, versions)
        last = await other.put(last, new, {"source": "loop", "step": number, "parents": {}}, {"n": versions["n"]})
        if number == 4:
            at_it = await stalled(tiers, other)
            await late()
            await at_it()
    await drained(other)
    in_cold = {one.checkpoint["id"]: plain(one) for one in await cold.list(config())}
    in_hot = {one.checkpoint["id"]: plain(one) for one in await tiers.target.uniform().list(config())}
    expected = [id_of(last)] if behind is LATEST else list(in_hot)
    assert (len(in_hot), in_cold) == (5, {each: in_hot[each] for each in expected})


async def test_a_dirty_thread_never_expires(tiers: Tiers) -> None:
    options = {"ttl": {"default_ttl": 60, "refresh_on_read": True}}
    uniform = await tiers.uniform(hot=options, **BEHIND)
    hot = Uniform(uniform.saver.hot)
    made = await written(uniform)
    keys = keys_of(tiers)

    def deadline() -> int:
        pipeline = tiers.target.raw.pipeline()
        index, data = pipeline.pttl(keys.index_key).pttl(keys.data_key).execute()
        assert abs(index - data) < 1000  # two reads, one after the other
        return int(index)

    await uniform.get_tuple(config())
    await hot.list(config())
    assert deadline() == -1
    await hot.set_thread_ttl("thread", timedelta(minutes=5))
    assert deadline() == -1
    await drained(uniform)
    assert 0 < deadline() <= 300_000
    await hot.pin("thread")
    await uniform.put_writes(made[-1], [("n", 1)], "task-p")
    await drained(uniform)
    assert deadline() == -1
    await hot.unpin("thread")
    assert 300_000 < deadline() <= 3_600_000
    await uniform.put_writes(made[-1], [("n", 1)], "task-q")
    await hot.unpin("thread")
    assert deadline() == -1
    await drained(uniform)
    assert 0 < deadline() <= 3_600_000


@pytest.mark.parametrize("writer", ["alone", "behind"])
async def test_a_half_evicted_thread_that_cold_lacks_is_damaged_until_deleted(tiers: Tiers, writer: str) -> None:
    """An eviction policy like allkeys-lru allows that. The thread is lost, which is an error, not an empty thread."""
    uniform = await tiers.uniform(**BEHIND) if writer == "behind" else await tiers.uniform(on_hot_error="bypass")
    made = await written(uniform if writer == "behind" else tiers.target.uniform())
    tiers.evict("index")
    for act in (
        lambda: uniform.get_tuple(config()),
        lambda: put_new(uniform),
        lambda: uniform.put_writes(made[-1], [("n", 1)], "task"),
    ):
        for _ in range(2):
            with pytest.raises(ThreadDamaged):
                await act()
    await uniform.delete_thread("thread")
    await drained(uniform)
    assert await uniform.get_tuple(config()) is None


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("lost", ["index", "data"])
@pytest.mark.parametrize("at", range(2, 7))
@pytest.mark.by_turns
async def test_a_repair_keeps_writes_that_arrive_meanwhile(tiers: Tiers, at: int, lost: str) -> None:
    """The other process has repaired the thread before, and its writes are in hot alone."""
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    made, child = await written(uniform), new()
    await drained(uniform)
    tiers.evict(lost)

    async def write() -> None:
        await other.put(made[-1], child, {}, VERSIONS)

    process = Process(uniform, tiers)
    process.meets(Accident("meanwhile", at, is_late=False), write)
    assert (await uniform.get_tuple(config())) is not None
    if not process.has_struck:
        await write()
    for each in (uniform, other):
        assert (await each.get_tuple(config())).checkpoint["id"] == child["id"]
    await drained(uniform)
    assert len(await (await tiers.cold_uniform()).list(config())) == 4


@pytest.mark.parametrize("act", ["write", "list"])
async def test_a_thread_whose_backlog_was_evicted_reaches_cold_as_a_whole(tiers: Tiers, act: str) -> None:
    uniform, cold = await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    made = await written(uniform)
    tiers.target.raw.delete(keys_of(tiers).dirty)
    if act == "write":
        await uniform.put_writes(made[-1], [("n", 1)], "task")
        await drained(uniform)
    else:
        assert len(await uniform.list(config())) == 3
    in_hot = await tiers.target.uniform().list(config())
    assert all_plain(await cold.list(config())) == all_plain(in_hot) and len(in_hot) == 3


async def test_a_damaged_thread_does_not_block_the_flush_of_others(tiers: Tiers) -> None:
    uniform, data = await tiers.uniform(**BEHIND), keys_of(tiers).data_key
    await written(uniform)
    await written(uniform, "another")
    tiers.target.raw.hdel(data, *[field for field in tiers.target.raw.hkeys(data) if field.startswith(b"b")])
    assert await flushed_until(uniform, lambda left: left <= 6) > 0
    assert "ThreadDamaged" in uniform.saver.stats().tiers.last_error
    assert len(await (await tiers.cold_uniform()).list(config("another"))) == 3


@pytest.mark.parametrize(
    "stored", [pack([b"mrgpack"]) + b"\xc0", pack([b"msgpack"]) + b"\xd4\xff\x01"], ids=["type", "extension"]
)
async def test_an_unreadable_value_is_not_copied_to_cold(tiers: Tiers, stored: bytes) -> None:
    """Its type is damaged in hot, or it cannot be packed again."""
    uniform, raw, data = await tiers.uniform(**BEHIND), tiers.target.raw, keys_of(tiers).data_key
    await uniform.get_tuple(config())
    await put_new(uniform)
    (field,) = [field for field in raw.hkeys(data) if field.startswith(b"b")]
    raw.hset(data, field, stored)
    assert await flushed_until(uniform, lambda _: uniform.saver.stats().tiers.last_error) == 1
    error = "PlainValueRefused" if tiers.target.is_encrypted else "DecodeError"
    assert error in uniform.saver.stats().tiers.last_error
    assert await (await tiers.cold_uniform()).list(config()) == []


class Own(pydantic.BaseModel):
    """A class that a strict serializer only builds if it is allowed."""

    text: str


@pytest.mark.plain("cold has encrypted values, with the data key of their thread")
async def test_values_reach_cold_as_unchanged_bytes(tiers: Tiers) -> None:
    """No object is built on the way, and cold has the same rows as in write-through."""
    hot = {"serde": FastSerializer(allowed_msgpack_modules=None)}
    values: dict[str, Any] = {
        "messages": [HumanMessage("hi", id="1"), AIMessage("ho", id="2", tool_calls=[])] * 40,
        "own": Own(text="x"),
        "set": {1, 2},
        "text": "short",
        "none": None,
        "bytes": b"abc",
        "nested": {"a": [Own(text="y"), (1, 2)]},
        "delta": _DeltaSnapshot([HumanMessage("in a snapshot", id="3")]),
    }
    versions = {channel: f"{1:032}.1" for channel in values}
    metadata = {"source": "loop", "step": 1, "parents": {}, "run_id": "r"}
    for thread, mode in (("behind", BEHIND), ("through", {})):
        uniform = await tiers.uniform(hot=hot, **mode)
        await uniform.get_tuple(config(thread))
        one = checkpoint(values, versions, checkpoint_id="1f000000-0000-6000-8000-000000000000")
        where = await uniform.put(config(thread), one, metadata, versions)
        await uniform.put_writes(where, list(values.items()), "task", "path")
    await drained(await tiers.uniform(hot=hot, **BEHIND))
    for table, columns in (
        ("checkpoint_blobs", "channel, version, type, blob"),
        ("checkpoint_writes", "checkpoint_id, task_id, task_path, idx, channel, type, blob"),
        ("checkpoints", "checkpoint_id, parent_checkpoint_id, checkpoint, metadata"),
    ):
        query = f"SELECT {columns} FROM {table} WHERE thread_id = %s ORDER BY 1, 2, 3, 4"
        behind, through = (
            [[str(cell).replace("behind", "through") for cell in row] for row in tiers.sql(query, thread)]
            for thread in ("behind", "through")
        )
        assert behind == through != [], table


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
async def test_closing_flushes_until_the_timeout(tiers: Tiers) -> None:
    uniform = await tiers.uniform(mode="write-behind", flush_interval=60)
    async with Block(uniform.saver, tiers.native_async):
        await written(uniform)
    assert len(await (await tiers.cold_uniform()).list(config())) == 3
    flaky = FlakySaver(await tiers.cold())
    flaky.fail = {"put", "put_writes"}
    uniform = await tiers.uniform(cold=flaky.wrap(), mode="write-behind", flush_interval=0.01)
    await written(uniform, "another")
    began = time.monotonic()
    assert await uniform.close(0.3) == 6
    assert time.monotonic() - began < 5


@pytest.mark.by_turns
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("history", ["all", "latest"])
@pytest.mark.parametrize("seed", seeds_and_slow(range(3), range(3, 20)))
async def test_random_operations_and_faults_match_the_model(tiers: Tiers, seed: int, history: str) -> None:
    """Answers agree with InMemorySaver despite evictions, failures of a tier, and dead writers or flushers."""
    behind = {**BEHIND, "cold_history": history}
    await History(tiers, seed, [behind, behind, {}], history).run(80)


@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
@pytest.mark.parametrize("history", ["all", "latest"])
@pytest.mark.parametrize("seed", seeds_and_slow([0, 1, 111, 131, 134], [*range(2, 10), *range(100, 160)]))
async def test_random_interleavings_keep_both_tiers_right(tiers: Tiers, seed: int, history: str) -> None:
    """Despite late flushers, both tiers have all acknowledged writes and no deleted ones."""
    behind = {**BEHIND, "cold_history": history}
    await Interleaving(tiers, seed, [behind, behind, behind, {}], history).run(800)


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_write_waits_for_replicas(flavour: str) -> None:
    """Too few replicas are an error, although the write is stored."""
    primary = Server("--repl-diskless-sync-delay", "0")
    replica = Server("--replicaof", "127.0.0.1", str(primary.port))
    with primary.client() as client:
        for _ in range(200):
            client.set("ready", 1)
            if client.wait(1, 100):
                break
        target = Target("own", flavour, primary.url, "replicated")
        kind = AsyncTieredSaver if flavour == "async" else TieredSaver
        uniform = Uniform(kind(target.uniform(min_replicas=1, replica_timeout=4).saver, InMemorySaver(), **BEHIND))
        made = await written(uniform)
        other = Target("own", "sync", replica.url, "replicated").uniform()
        assert (await other.get_tuple(config())).config == made[-1]  # the replica has it
        lonely = Uniform(kind(target.uniform(min_replicas=2, replica_timeout=0.1).saver, InMemorySaver(), **BEHIND))
        with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
            await lonely.put_writes(made[-1], [("n", 1)], "task-y")
        assert "task-y" in [write[0] for write in (await uniform.get_tuple(config())).pending_writes]
        assert [key for key in client.keys() if key.endswith(b":replicated")] == []
    await target.close()
    for server in (replica, primary):
        server.stop()


class Notes(TypedDict):
    notes: Annotated[list[str], DeltaChannel(lambda now, new: [*(now or []), *[each for one in new for each in one]])]
    messages: Annotated[list[Any], add_messages]
    step: int


@pytest.mark.skipif(sys.version_info < (3, 11), reason="interrupt() in asyncio tasks needs Python 3.11, says LangGraph")
@pytest.mark.parametrize("settings", [{}, BEHIND, LATEST], ids=["through", "all", "latest"])
@pytest.mark.by_turns
async def test_a_graph_resumes_after_evictions_in_hot(tiers: Tiers, settings: dict[str, Any]) -> None:
    """It has interrupts, and a DeltaChannel, which is rebuilt from the writes of all ancestors."""

    def ask(state: Notes) -> dict[str, Any]:
        answer = interrupt("sure?")
        return {"notes": [f"said {answer}"], "step": state["step"] + 1, "messages": [("ai", f"you said {answer}")]}

    builder = StateGraph(Notes).add_node("think", lambda _: {"notes": ["hm"]}).add_node("ask", ask)
    builder.add_edge(START, "think").add_edge("think", "ask")

    async def run(given: Any) -> dict[str, Any]:
        return await call_graph(
            builder.compile(checkpointer=uniform.saver), "invoke", given, config(), durability="sync"
        )

    wanted: list[str] = []
    for turn in range(4):
        uniform = await tiers.uniform(**settings)
        given = {"notes": [f"question {turn}"], "step": turn, "messages": [("human", f"question {turn}")]}
        assert "__interrupt__" in await run(given)
        if turn % 2 or not settings:
            await drained(uniform)
            tiers.evict(*(["data"], ["index", "data"], ["data"], ["index"])[turn])
        uniform = await tiers.uniform(**settings)
        state = await run(Resume(resume=f"yes {turn}"))
        wanted += [f"question {turn}", "hm", f"said yes {turn}"]
        assert state["notes"] == wanted
        assert [one.content for one in state["messages"][-2:]] == [f"question {turn}", f"you said yes {turn}"]
        await drained(uniform)
        if turn != 2 or not settings:
            tiers.evict()
    assert len(state["messages"]) == 8
    cold = builder.compile(checkpointer=await (tiers.saver() if tiers.target.is_encrypted else tiers.cold()))
    assert (await call_graph(cold, "get_state", config())).values["notes"] == wanted
    count = len(await (await tiers.cold_uniform()).list(config()))
    assert settings is LATEST or len(await (await tiers.uniform()).list(config())) == count > 9


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_write_behind_costs_one_round_trip_per_operation(tiers: Tiers) -> None:
    """A coalescing cold gets one checkpoint per burst."""
    sent: list[Any] = []

    class Counting(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append(query)
            return super().execute(query, *args, **kwargs)

        def executemany(self, query: Any, rows: Any, **kwargs: Any) -> Any:
            given = list(rows)
            sent.extend([query] * len(given))
            return super().executemany(query, given, **kwargs)

    cold = await tiers.cold(cursor_factory=Counting)
    behind = await tiers.saver(cold=cold, **LATEST)
    requests = requests_of(behind.hot)

    def chat(saver: Any, thread: str) -> int:
        where = config(thread)
        assert saver.get_tuple(where) is None
        sent.clear(), requests.clear()
        for number in range(1, 11):
            one = checkpoint({"messages": ["m"] * number}, {"messages": f"{number:032}.1"})
            where = saver.put(where, one, {"step": number}, one["channel_versions"])
            saver.put_writes(where, [("messages", ["m"])], "task")
            assert saver.get_tuple(config(thread)).config == where
        return len(sent)

    alone = chat(cold, "alone")
    assert chat(behind, "both") == 0
    assert len(requests) == (32 if tiers.target.is_encrypted else 30)  # the data key is asked for once, and wrapped
    assert behind.flush() == 0
    assert 4 * len(sent) <= alone


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
async def test_flush_keeps_its_timeout_with_many_threads(tiers: Tiers) -> None:
    """It returns the number of records that are left."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND, flush_workers=1)
    for number in range(12):
        await written(uniform, f"thread-{number}")

    class Slow(dict[str, Any]):
        def pop(self, name: str, default: Any = None) -> Any:
            if name not in ("put", "put_writes"):
                return default
            return lambda: asyncio.sleep(0.15) if tiers.native_async else time.sleep(0.15)

    flaky.before, left = Slow(), 72
    while left == 72:  # the time may be up before it begins
        left = await asyncio.wait_for(uniform.flush(timeout=0.5), 60)  # one claim takes a second, all take eleven
    assert left > 0
    flaky.before = {}
    await drained(uniform)


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("at", range(4, 8))
async def test_a_task_split_by_a_dead_flusher_is_not_coalesced(tiers: Tiers, at: int) -> None:
    uniform = await tiers.uniform(**LATEST)
    await uniform.get_tuple(config())
    stored = await put_new(uniform, number=1)
    await uniform.put_writes(stored, [("n", 1), (INTERRUPT, 2)], "task")
    process = Process(await tiers.uniform(**LATEST), tiers)
    process.meets(Accident("kill", at, is_late=False))
    with contextlib.suppress(Killed):
        await process.run(flushing.flush(process.saver._context, "thread"))
    assert process.has_struck
    tiers.later(flushing.FLUSH_LEASE)
    await put_new(uniform, stored, 2)
    await drained(uniform)
    in_cold = await (await tiers.cold_uniform()).get_tuple(stored)
    assert in_cold is None or len(in_cold.pending_writes) in (0, 2)
