"""The size of the backlog, and its limit over all processes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import valkey
import valkey.asyncio
import valkey.asyncio.cluster
import valkey.cluster

from redis_saver import BacklogFull
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Batch, Scan
from redis_saver._tiered import backlog, scripts, workers
from redis_saver._tiered.flushing import flush_what_goes
from tests.support.factories import checkpoint, config, late_id, put
from tests.support.seeds import seeds
from tests.support.tiering import BEHIND, Tiers, drained
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, fails_on, requests_of, ran, script_of

pytestmark = pytest.mark.parametrize("target_name", ["redis", "cluster"], indirect=True)


def dirty(tiers: Tiers) -> int:
    """Number of records in the backlog, counted key by key."""
    return sum(tiers.target.raw.zcard(key) for key in tiers.target.keys() if key.endswith(b":dirty"))


LIMITED: dict[str, Any] = {**BEHIND, "backlog_timeout": 0}


def counted(tiers: Tiers) -> int:
    """Size of the backlog as hot counts it."""
    stored = tiers.target.raw.hgetall(Keyspace(tiers.target.prefix).unflushed)
    return int(stored.get(b"written", 0)) - int(stored.get(b"flushed", 0))


async def write(uniform: Uniform, thread: str, *numbers: int) -> None:
    for number in numbers:
        one = checkpoint({"n": [number]}, {"n": f"{number:032}.1"}, late_id(number))
        if number == 1:
            await uniform.get_tuple(config(thread))
        await uniform.put(config(thread), one, {"step": number}, one["channel_versions"])


async def scanned(uniform: Uniform) -> None:
    await ran(uniform, uniform.saver._context.backlog_count.scan())


@pytest.mark.parametrize(("limit", "shares", "margin"), [(40, 1000, 0), (40, 20, 4 * 2)])
@pytest.mark.by_turns
async def test_the_backlog_limit_holds_over_all_processes(
    tiers: Tiers, monkeypatch: Any, limit: int, shares: int, margin: int
) -> None:
    monkeypatch.setattr(backlog, "SHARES", shares)
    writers = [await tiers.uniform(**LIMITED, max_backlog=limit) for _ in range(4)]
    full = 0
    for number in range(1, 31):
        for index, writer in enumerate(writers):
            try:
                await write(writer, f"thread{index}", number)
            except BacklogFull:
                full += 1
    assert limit <= dirty(tiers) <= limit + margin
    assert full == 120 - dirty(tiers)
    await drained(writers[0])
    for writer in writers:  # each writer learns that there is room
        await write(writer, "another", 1)


async def test_an_old_scan_does_not_raise_the_limit(tiers: Tiers) -> None:
    """A scan found five records. Since then others wrote, and no process flushed or scanned."""
    one, other = [await tiers.uniform(**LIMITED, max_backlog=10) for _ in range(2)]
    await write(one, "one", *range(1, 6))
    await scanned(other)
    await write(one, "one", *range(6, 11))
    assert other.saver.stats().tiers.backlog == 5
    with pytest.raises(BacklogFull, match="10 records wait"):
        await write(other, "other", 1)


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_parallel_writes_of_a_process_keep_the_limit(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**LIMITED, max_backlog=7)

    def act(number: int) -> bool:
        try:
            asyncio.run(write(uniform, f"t{number}", 1))
        except BacklogFull:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(act, range(40))) == 7
    assert dirty(tiers) == 7


@pytest.mark.parametrize("flavour", ["async"], indirect=True)
async def test_a_flush_by_another_process_unblocks_a_writer(tiers: Tiers) -> None:
    writer, flusher = await tiers.uniform(**BEHIND, max_backlog=3, backlog_timeout=20), await tiers.uniform(**BEHIND)
    await write(writer, "thread", 1, 2, 3)
    waiting = asyncio.create_task(write(writer, "thread", 4))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await drained(flusher)
    await waiting
    assert dirty(tiers) == 1


async def test_few_writes_report_the_backlog(tiers: Tiers) -> None:
    """With the default limit, a writer sends one report per hundred records."""
    uniform = await tiers.uniform(**BEHIND)
    scripts_run = requests_of(uniform.saver.hot, script_of)
    await write(uniform, "thread", *range(1, 102))
    assert scripts_run.count(scripts.REPORT_BACKLOG) == 1


async def test_backlog_full_says_which_process_has_the_error_of_cold(tiers: Tiers) -> None:
    writer = await tiers.uniform(**LIMITED, max_backlog=1)
    await write(writer, "thread", 1)
    with pytest.raises(BacklogFull, match="The flusher's process has the error: .*output of that command"):
        await write(writer, "thread", 2)
    assert writer.saver.stats().tiers.last_error == ""


async def test_a_write_that_goes_to_cold_first_also_waits_for_room(tiers: Tiers) -> None:
    """Hot finds out that it has to only when it would store the write."""
    writer, other = await tiers.uniform(**LIMITED, max_backlog=1), await tiers.uniform(**BEHIND)
    await write(writer, "full", 1)
    with pytest.raises(BacklogFull, match="Nothing was written"):
        await write(writer, "thread", 2)
    assert await other.list(config("thread")) == []
    await write(other, "thread", 2)
    assert other.saver.stats().tiers.written_through == 1


@pytest.mark.parametrize(("slow", "most"), [(1, backlog.SCAN_INTERVAL), (3, 60)])
async def test_a_request_that_hangs_does_not_delay_the_next_scan(tiers: Tiers, slow: int, most: float) -> None:
    """A scan of many keys has many requests, and delays it by 20 times its length."""
    uniform, pages = await tiers.uniform(**BEHIND), [None, *range(slow)]

    def around(request: Any) -> Any:
        if isinstance(request, Scan):
            time.sleep(0.3)
            pages.pop()
            return (pages[-1], [])
        return (yield request)

    Around(uniform.saver, around)
    await ran(uniform, workers.scan_in_turn(uniform.saver._context))
    left = tiers.target.raw.pttl(uniform.saver._context.hot_context.keyspace.scanning) / 1000
    assert (slow - 1) * 6 - 1 < left <= most


async def test_a_write_that_goes_to_cold_after_all_is_no_sign_of_lost_records(tiers: Tiers) -> None:
    """Hot has admitted and counted it. A total that falls would look as if hot had lost its data."""
    uniform = await tiers.uniform(**LIMITED, max_backlog=10)
    await write(uniform, "waits", 1)
    await write(uniform, "another", 2)
    assert uniform.saver.stats().tiers.written_through == 1
    for _ in range(3):
        await ran(uniform, uniform.saver._context.backlog_count.report())
    assert counted(tiers) == dirty(tiers) == 1
    assert uniform.saver._context.backlog_count.suspected is None


async def test_a_scan_repairs_a_lost_count(tiers: Tiers) -> None:
    uniform, other = [await tiers.uniform(**LIMITED, max_backlog=5) for _ in range(2)]
    await write(uniform, "thread", *range(1, 6))
    tiers.target.raw.delete(Keyspace(tiers.target.prefix).unflushed)
    await scanned(other)
    assert counted(tiers) == 5
    with pytest.raises(BacklogFull):
        await write(uniform, "thread", 6)


@pytest.mark.parametrize("package", ["redis", "valkey"])
async def test_records_flushed_after_the_process_scanned_are_subtracted_at_once(tiers: Tiers, package: str) -> None:
    options: list[Any] = [{}, {}]
    if package == "valkey":
        url = tiers.target.url.replace("redis+cluster", "redis").partition(",")[0]
        module: Any = valkey.asyncio if tiers.native_async else valkey
        kind = module.cluster.ValkeyCluster if tiers.target.name == "cluster" else module.Valkey
        options = [{"hot": {"client": kind.from_url(url)}} for _ in "12"]
    writer, flusher = [await tiers.uniform(**one, **BEHIND) for one in options]
    await write(writer, "thread", *range(1, 6))
    await ran(writer, writer.saver._context.backlog_count.report())
    await scanned(flusher)
    await ran(flusher, flush_what_goes(flusher.saver._context, "thread"))
    await write(writer, "thread", 6)
    for process in (writer, flusher):
        await ran(process, process.saver._context.backlog_count.report())
    assert counted(tiers) == dirty(tiers) == flusher.saver.stats().tiers.backlog == 1
    for one in options:
        if client := one.get("hot", {}).get("client"):
            await client.aclose() if tiers.native_async else client.close()


async def test_a_late_reply_does_not_replace_the_scan_of_the_process(tiers: Tiers) -> None:
    """The workers of a flusher report while one of them scans."""
    uniform = await tiers.uniform(**BEHIND)
    await scanned(uniform)
    for thread in ("flushed", "waits"):
        await write(uniform, thread, 1)
    late = Meanwhile(
        uniform.saver.hot,
        lambda _: None,
        lambda request: scan if script_of(request) is scripts.REPORT_BACKLOG else None,
    )

    async def scan() -> None:
        uniform.saver.hot._driver = late.wrapped
        await scanned(uniform)

    await ran(uniform, uniform.saver._context.backlog_count.report())
    assert uniform.saver.stats().tiers.backlog == uniform.saver.stats().tiers.dirty_threads == 2
    await ran(uniform, flush_what_goes(uniform.saver._context, "flushed"))
    await ran(uniform, uniform.saver._context.backlog_count.report())
    assert counted(tiers) == dirty(tiers) == 1


async def test_records_flushed_before_a_scan_are_not_subtracted_after_it(tiers: Tiers) -> None:
    """Hot has removed the record. The process scans before it gets the reply."""
    uniform = await tiers.uniform(**BEHIND)
    for thread in ("flushed", "waits"):
        await write(uniform, thread, 1)
    acked = Meanwhile(
        uniform.saver.hot, lambda _: None, lambda request: scan if script_of(request) is scripts.ACK else None
    )

    async def scan() -> None:
        uniform.saver.hot._driver = acked.wrapped
        await scanned(uniform)

    await ran(uniform, flush_what_goes(uniform.saver._context, "flushed"))
    await ran(uniform, uniform.saver._context.backlog_count.report())
    assert counted(tiers) == dirty(tiers) == 1


async def test_the_records_of_a_thread_from_before_the_tiers_are_counted(tiers: Tiers) -> None:
    await write(tiers.target.uniform(), "old", 1, 2, 3)
    uniform = await tiers.uniform(**BEHIND)
    await write(uniform, "old", 4)
    await ran(uniform, uniform.saver._context.backlog_count.report())
    assert counted(tiers) == dirty(tiers) == 4
    await drained(uniform)
    await ran(uniform, uniform.saver._context.backlog_count.report())
    assert counted(tiers) == 0


@pytest.mark.parametrize("change", ["prune", "delete_for_runs", "rollback"])
async def test_records_that_a_change_of_a_thread_adds_are_counted(tiers: Tiers, change: str) -> None:
    """Cold gets them at once. Otherwise the count would lack as many records of other threads."""
    await write(tiers.target.uniform(), "old", 1, 2, 3)
    uniform, other = [await tiers.uniform(**BEHIND, cold_history="latest") for _ in range(2)]
    await uniform.get_tuple(config("new"))
    async with uniform.own("new", run_id="run") as owned:
        for number in (1, 2, 3):
            await put(uniform, owned, {"n": number}, checkpoint_id=late_id(number), metadata={"run_id": "run"})
        await drained(uniform)
        await write(uniform, "waits", *range(1, 9))
        await ran(uniform, uniform.saver._context.backlog_count.report())
        if change == "rollback":
            async with other.own("new", on_busy="rollback"):
                pass
    if change == "prune":
        await other.prune(["old"], keep_last=3)
    elif change == "delete_for_runs":
        await other.delete_for_runs(["run"])
    else:
        await ran(other, flush_what_goes(other.saver._context, "new"))
    assert dirty(tiers) == 8
    await ran(other, other.saver._context.backlog_count.report())
    assert counted(tiers) == 8


STEPS: dict[str, Any] = {
    "report": lambda request: script_of(request) is scripts.REPORT_BACKLOG,
    "scan": lambda request: isinstance(request, Scan),
    "count": lambda request: isinstance(request, Batch),
    "publish": lambda request: script_of(request) is scripts.PUBLISH_BACKLOG,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.by_turns
async def test_a_scan_that_fails_forgets_no_record(tiers: Tiers, step: str) -> None:
    writer, flusher = [await tiers.uniform(**BEHIND) for _ in range(2)]
    await write(writer, "waits", 1)
    await scanned(flusher)
    await write(flusher, "thread", 1, 2, 3)
    await ran(flusher, flush_what_goes(flusher.saver._context, "thread"))
    await write(flusher, "thread", 4)
    away = [True]
    fails_on(flusher.saver.hot, lambda request: away and STEPS[step](request), redis.ConnectionError("away"))
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            await scanned(flusher)
    away.clear()
    for process in (writer, flusher):
        await ran(process, process.saver._context.backlog_count.report())
    assert counted(tiers) >= dirty(tiers) == 2
    await scanned(flusher)
    assert counted(tiers) == 2 == flusher.saver.stats().tiers.backlog


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_a_child_does_not_report_what_its_parent_wrote(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    await write(uniform, "parent", 1, 2)
    if not (child := os.fork()):
        try:
            uniform.saver.get_tuple(config("child"))
            one = checkpoint({"n": [1]}, {"n": "1"}, late_id(1))
            uniform.saver.put(config("child"), one, {}, {"n": "1"})
            uniform.saver._driver.run(uniform.saver._context.backlog_count.report())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert counted(tiers) == 1
    await ran(uniform, uniform.saver._context.backlog_count.report())
    assert counted(tiers) == dirty(tiers) == 3


@pytest.mark.parametrize("junk", [b"inf", b"nan", b"-inf", b"x", b"1e300"])
@pytest.mark.by_turns
async def test_a_corrupt_count_blocks_no_writer(tiers: Tiers, junk: bytes) -> None:
    uniform, place = await tiers.uniform(**LIMITED, max_backlog=5), Keyspace(tiers.target.prefix).unflushed
    tiers.target.raw.hset(place, mapping={"written": junk, "flushed": junk, "scan": junk})
    await write(uniform, "thread", 1)
    assert counted(tiers) == 1


@pytest.mark.parametrize("seed", seeds(range(6)))
@pytest.mark.by_turns
async def test_the_count_is_never_too_low(tiers: Tiers, seed: int) -> None:
    """Processes write, flush, report and scan in any order, also during a scan, and scan during a flush."""
    chance, written = random.Random(seed), dict.fromkeys(("a", "b", "c"), 0)
    processes = [await tiers.uniform(**BEHIND) for _ in range(3)]

    async def report(process: Uniform) -> None:
        await ran(process, process.saver._context.backlog_count.report())

    async def act(process: Uniform) -> None:
        thread = chance.choice(list(written))
        what = chance.choice(["write", "write", "write", "flush", "report"])
        if what == "write":
            written[thread] += 1
            await write(process, thread, written[thread])
        elif what == "flush":
            await ran(process, flush_what_goes(process.saver._context, thread))
        else:
            await report(process)

    def others_act(_: Any) -> Any:
        others = [one for one in processes if one is not process]
        return (lambda: act(chance.choice(others))) if chance.random() < 0.4 else None

    def some_scan(request: Any) -> Any:
        is_acked = script_of(request) is scripts.ACK and chance.random() < 0.4
        return (lambda: scanned(chance.choice([process, *processes]))) if is_acked else None

    for _ in range(60):
        process = chance.choice(processes)
        here, scans = process.saver.hot, chance.random() < 0.15
        works = here._driver
        Meanwhile(here, others_act if scans else lambda _: None, (lambda _: None) if scans else some_scan)
        await (scanned if scans else act)(process)
        here._driver = works
        unreported = sum(one.saver._context.backlog_count._written for one in processes)
        assert counted(tiers) + unreported >= dirty(tiers)
    for process in processes:
        await report(process)
    await scanned(processes[0])
    assert counted(tiers) == dirty(tiers)


async def test_backlog_statistics_agree_after_a_flush(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    for thread in ("a", "b"):
        await write(uniform, thread, 1)
    await scanned(uniform)
    for thread, left in (("a", 2), ("b", 1)):
        assert (uniform.saver.stats().tiers.backlog, uniform.saver.stats().tiers.dirty_threads) == (left, left)
        await ran(uniform, flush_what_goes(uniform.saver._context, thread))
    stats = uniform.saver.stats().tiers
    assert (stats.backlog, stats.dirty_threads, stats.oldest_seconds, stats.set_aside) == (0, 0, 0, 0)


async def test_between_two_scans_the_dirty_threads_are_those_of_the_last_one(tiers: Tiers) -> None:
    writer, flusher = [await tiers.uniform(**BEHIND) for _ in range(2)]
    threads = [f"t{number}" for number in range(6)]
    for number in (1, 2):
        for thread in threads:
            await write(writer, thread, number)
        await ran(writer, writer.saver._context.backlog_count.report())
        if number == 1:
            await scanned(flusher)
            for thread in threads:
                await ran(flusher, flush_what_goes(flusher.saver._context, thread))
            assert flusher.saver.stats().tiers.dirty_threads == 0
    await ran(flusher, flusher.saver._context.backlog_count.report())
    assert (flusher.saver.stats().tiers.backlog, flusher.saver.stats().tiers.dirty_threads) == (6, 6)
