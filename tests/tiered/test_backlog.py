"""The size of the backlog, and its limit over all processes."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, late_id
from tests.support.seeds import seeds
from tests.support.tiering import BEHIND, Tiers, drained
from tests.support.uniform import Uniform
from tests.support.wrappers import Meanwhile, ran, script_of

from redis_saver import BacklogFull
from redis_saver._common.names import Keyspace
from redis_saver._tiered import scripts
from redis_saver._tiered import backlog
from redis_saver._tiered.flushing import flush_what_goes

pytestmark = pytest.mark.parametrize("target_name", ["redis", "cluster"], indirect=True)


def dirty(tiers: Tiers) -> int:
    """Number of records in the backlog, counted key by key."""
    return sum(tiers.target.raw.zcard(key) for key in tiers.target.keys() if key.endswith(b":dirty"))


def counted(tiers: Tiers) -> int:
    """Size of the backlog as hot counts it."""
    stored = tiers.target.raw.hgetall(Keyspace(tiers.target.prefix).unflushed)
    return int(stored.get(b"written", 0)) - int(stored.get(b"flushed", 0))


async def write(uniform: Uniform, thread: str, number: int) -> None:
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
    writers = [await tiers.uniform(**BEHIND, max_backlog=limit, backlog_timeout=0) for _ in range(4)]
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
    one, other = [await tiers.uniform(**BEHIND, max_backlog=10, backlog_timeout=0) for _ in range(2)]
    for number in range(1, 6):
        await write(one, "one", number)
    await scanned(other)
    for number in range(6, 11):
        await write(one, "one", number)
    assert other.saver.stats().tiers.backlog == 5
    with pytest.raises(BacklogFull, match="10 records wait"):
        await write(other, "other", 1)


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_parallel_writes_of_a_process_keep_the_limit(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND, max_backlog=7, backlog_timeout=0)

    def act(number: int) -> bool:
        one = checkpoint({"n": [1]}, {"n": f"{1:032}.1"}, late_id(1))
        uniform.saver.get_tuple(config(f"t{number}"))
        try:
            uniform.saver.put(config(f"t{number}"), one, {}, one["channel_versions"])
        except BacklogFull:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(act, range(40))) == 7
    assert dirty(tiers) == 7


@pytest.mark.parametrize("flavour", ["async"], indirect=True)
async def test_a_flush_by_another_process_unblocks_a_writer(tiers: Tiers) -> None:
    writer = await tiers.uniform(**BEHIND, max_backlog=3, backlog_timeout=20)
    flusher = await tiers.uniform(**BEHIND)
    for number in range(1, 4):
        await write(writer, "thread", number)
    waiting = asyncio.create_task(write(writer, "thread", 4))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await drained(flusher)
    await waiting
    assert dirty(tiers) == 1


async def test_few_writes_report_the_backlog(tiers: Tiers) -> None:
    """With the default limit, a writer sends one report per hundred records."""
    uniform, reports = await tiers.uniform(**BEHIND), list[Any]()
    Meanwhile(
        uniform.saver.hot,
        lambda request: reports.append(request) if script_of(request) is scripts.REPORT_BACKLOG else None,
    )
    for number in range(1, 102):
        await write(uniform, "thread", number)
    assert len(reports) == 1


async def test_a_scan_repairs_a_lost_count(tiers: Tiers) -> None:
    uniform, other = [await tiers.uniform(**BEHIND, max_backlog=5, backlog_timeout=0) for _ in range(2)]
    for number in range(1, 6):
        await write(uniform, "thread", number)
    tiers.target.raw.delete(Keyspace(tiers.target.prefix).unflushed)
    await scanned(other)
    assert counted(tiers) == 5
    with pytest.raises(BacklogFull):
        await write(uniform, "thread", 6)


@pytest.mark.parametrize("junk", [b"inf", b"nan", b"-inf", b"x", b"1e300"])
@pytest.mark.by_turns
async def test_a_corrupt_count_blocks_no_writer(tiers: Tiers, junk: bytes) -> None:
    uniform = await tiers.uniform(**BEHIND, max_backlog=5, backlog_timeout=0)
    tiers.target.raw.hset(
        Keyspace(tiers.target.prefix).unflushed, mapping={"written": junk, "flushed": junk, "scan": junk}
    )
    await write(uniform, "thread", 1)
    assert counted(tiers) == 1


@pytest.mark.parametrize("seed", seeds(range(6)))
@pytest.mark.by_turns
async def test_the_count_is_never_too_low(tiers: Tiers, seed: int) -> None:
    """Processes write, flush, report and scan in any order, also during a scan."""
    chance = random.Random(seed)
    processes = [await tiers.uniform(**BEHIND) for _ in range(3)]
    written = dict.fromkeys(("a", "b", "c"), 0)

    async def act(process: Uniform) -> None:
        thread = chance.choice(list(written))
        what = chance.choice(["write", "write", "write", "flush", "report"])
        if what == "write":
            written[thread] += 1
            await write(process, thread, written[thread])
        elif what == "flush":
            await ran(process, flush_what_goes(process.saver._context, thread))
        else:
            context = process.saver._context
            await ran(process, context.backlog_count.report())

    for _ in range(60):
        process = chance.choice(processes)
        if chance.random() < 0.15:
            others, here = [one for one in processes if one is not process], process.saver.hot
            works = here._driver
            Meanwhile(here, lambda _: (lambda: act(chance.choice(others))) if chance.random() < 0.4 else None)  # noqa: B023
            await scanned(process)
            here._driver = works
        else:
            await act(process)
        unreported = sum(one.saver._context.backlog_count._written for one in processes)
        assert counted(tiers) + unreported >= dirty(tiers)
    for process in processes:
        await ran(process, process.saver._context.backlog_count.report())
    await scanned(processes[0])
    assert counted(tiers) == dirty(tiers)


async def test_backlog_statistics_agree_after_a_flush(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    for thread in ("a", "b"):
        await write(uniform, thread, 1)
    await scanned(uniform)
    assert (uniform.saver.stats().tiers.backlog, uniform.saver.stats().tiers.dirty_threads) == (2, 2)
    await ran(uniform, flush_what_goes(uniform.saver._context, "a"))
    assert (uniform.saver.stats().tiers.backlog, uniform.saver.stats().tiers.dirty_threads) == (1, 1)
    await ran(uniform, flush_what_goes(uniform.saver._context, "b"))
    stats = uniform.saver.stats().tiers
    assert (stats.backlog, stats.dirty_threads, stats.oldest_seconds, stats.set_aside) == (0, 0, 0, 0)
