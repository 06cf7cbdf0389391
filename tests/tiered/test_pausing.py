"""A pause of flushing: no process flushes, turns go on, and what needs a flush says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_saver import BacklogWarning, FlushPaused
from redis_saver._common.names import Keyspace
from redis_saver._tiered import backlog
from tests.support.factories import config
from tests.support.growing import until
from tests.support.tiering import BEHIND, Tiers, drained, keys_of, plain, put_new, two_runs, written
from tests.support.uniform import Block

pytestmark = pytest.mark.parametrize("target_name", ["redis", "redis62"], indirect=True)


def unflushed(tiers: Tiers) -> bytes:
    return Keyspace(tiers.target.prefix).unflushed


@pytest.mark.encrypted_too
async def test_a_pause_of_one_process_stops_the_flushers_of_others(tiers: Tiers) -> None:
    operator, uniform = await tiers.uniform(), await tiers.uniform(mode="write-behind", flush_interval=0.05)
    await operator.pause_flushing()
    await uniform.get_tuple(config("other"))  # starts the flusher
    await until(lambda: uniform.saver.stats().tiers.paused_seconds)  # it knows within a second
    await written(uniform)
    await asyncio.sleep(0.5)
    stats = uniform.saver.stats().tiers
    assert stats.flushed == 0 and stats.backlog == 6 and 3500 < stats.paused_seconds <= 3600
    assert tiers.target.raw.zcard(keys_of(tiers).dirty) == 6
    assert len(await uniform.list(config())) == 3, "hot has all of it"
    await operator.resume_flushing()
    await until(lambda: not uniform.saver.stats().tiers.backlog and not tiers.target.raw.exists(keys_of(tiers).dirty))
    assert uniform.saver.stats().tiers.paused_seconds == 0
    await uniform.close()


async def test_what_needs_a_flush_says_paused_or_answers_from_both_tiers(tiers: Tiers, caplog: Any) -> None:
    uniform = await tiers.uniform(**{**BEHIND, "flusher": True, "flush_interval": 600.0})
    through = await tiers.uniform()
    await written(uniform, "flushed")
    await drained(uniform)
    await uniform.pause_flushing(7200)
    await put_new(uniform, config("flushed"))
    made = await written(uniform)
    for thread in ("thread", "flushed"):
        tiers.target.raw.hdel(keys_of(tiers, thread).data_key, "@complete")
    assert len(await uniform.list(config("flushed"))) == 4, "cold lacks one, and hot has it"
    assert len(await uniform.list(config())) == 3
    with pytest.raises(FlushPaused, match=r"paused for another (120m|2h|1h).*resume_flushing\(\)"):
        await put_new(through, made[-1])
    assert await uniform.flush(timeout=600) == 7, "it would wait for the end of the pause"
    assert await uniform.close() == 7 and "flushing is paused for another 7" in caplog.text
    await through.resume_flushing()
    await drained(through)
    await put_new(through, made[-1])


@pytest.mark.parametrize("call", ["prune", "delete_for_runs"])
async def test_turns_go_on_after_a_change_that_the_pause_refused(tiers: Tiers, call: str) -> None:
    uniform = await tiers.uniform(**BEHIND)
    await two_runs(uniform)
    await uniform.pause_flushing(60)
    newest = (await uniform.get_tuple(config())).config
    with pytest.raises(FlushPaused):
        await (uniform.prune(["thread"]) if call == "prune" else uniform.delete_for_runs(["run-2"]))
    await put_new(uniform, newest)
    assert uniform.saver.stats().tiers.written_through == 0


@pytest.mark.parametrize("call", ["put", "put_writes"])
async def test_the_first_write_to_a_thread_from_before_the_tiers_needs_no_flush(tiers: Tiers, call: str) -> None:
    newest = (await written(tiers.target.uniform()))[-1]
    uniform = await tiers.uniform(**BEHIND)
    await uniform.pause_flushing(60)
    await (put_new(uniform, newest) if call == "put" else uniform.put_writes(newest, [("n", 1)], "later"))
    stats = uniform.saver.stats().tiers
    assert (stats.written_through, stats.enrolled) == (0, 1)
    await uniform.resume_flushing()
    await drained(uniform)
    cold, hot = await (await tiers.cold_uniform()).list(config()), await uniform.list(config())
    assert list(map(plain, cold)) == list(map(plain, hot)) and len(hot) == 3 + (call == "put")


@pytest.mark.plain("no values")
async def test_the_end_of_a_block_warns_of_the_pause(tiers: Tiers) -> None:
    uniform = await tiers.uniform(mode="write-behind", flush_interval=600.0)
    with pytest.warns(BacklogWarning, match="flushing is paused"):
        async with Block(uniform.saver, tiers.native_async):
            await uniform.pause_flushing(60)
            await written(uniform)


@pytest.mark.plain("no values")
async def test_a_pause_ends_by_itself_and_outlives_reports(tiers: Tiers) -> None:
    uniform, raw = await tiers.uniform(**BEHIND), tiers.target.raw
    await uniform.pause_flushing(6 * 3600)
    assert raw.pttl(unflushed(tiers)) > 5 * 3600_000
    await written(uniform)
    assert await uniform.flush(timeout=30) == 6, "it reports and scans"
    assert raw.pttl(unflushed(tiers)) > 5 * 3600_000, "a report must not forget the pause"
    seconds, _ = raw.time()
    for broken in ((seconds - 1) * 1000, (seconds + 90_000) * 1000, "nan", "-1", "x" * 50):
        raw.hset(unflushed(tiers), "paused", broken)
        assert await uniform.flush(timeout=30) == 0 == uniform.saver.stats().tiers.paused_seconds, broken
    await uniform.resume_flushing()
    assert 0 < raw.pttl(unflushed(tiers)) <= 6 * 3600_000


@pytest.mark.plain("no values")
@pytest.mark.parametrize("seconds", [0, -1, "60", backlog.LONGEST_PAUSE + 1, float("nan")])
async def test_the_length_is_checked(tiers: Tiers, seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds="):
        await (await tiers.uniform()).pause_flushing(seconds)
    assert not tiers.target.raw.exists(unflushed(tiers))
