"""What `stats()` and the metrics tell while cold hangs, and after hot lost the backlog."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from redis_saver import RedisSaver, TieredSaver
from redis_saver._cli.main import main
from redis_saver._common.names import Keyspace
from redis_saver._tiered import backlog, counts as live_counts, workers
from redis_saver._tiered.counts import LiveTiers
from redis_saver._tiered.flushing import flush_what_goes
from tests.support.factories import config
from tests.support.growing import until
from tests.support.servers import Server
from tests.support.tiering import BEHIND, TABLES, VERSIONS, Tiers, drained, keys_of, locked, new, put_new
from tests.support.uniform import Uniform
from tests.support.wrappers import ran

REDIS = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


@REDIS
@pytest.mark.also_on()
async def test_the_age_grows_while_all_workers_hang_in_a_locked_table(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan waits for no worker: six threads are dirty, and each of the four workers hangs."""
    monkeypatch.setattr(backlog, "SCAN_INTERVAL", 0.1)
    monkeypatch.setattr(live_counts, "HANGS_AFTER", 0.5)
    uniform = await tiers.uniform(mode="write-behind", flush_interval=0.1)
    threads = [f"t{number}" for number in range(6)]
    for thread in threads:
        await uniform.get_tuple(config(thread))
    scans, seen = set[bytes](), list[float]()
    with locked(tiers.url, TABLES):
        for thread in threads:
            await put_new(uniform, config(thread))

        def has_grown() -> bool:
            stats = uniform.saver.stats().tiers
            seen.append(stats.oldest_seconds)
            scans.add(tiers.target.raw.hget(Keyspace(tiers.target.prefix).unflushed, "scanned") or b"")
            assert stats.flushed == 0
            known = stats.dirty_threads == 6 and stats.seconds_since_scan is not None
            return bool(known and stats.oldest_seconds > 2 and len(scans) > 4)

        await until(has_grown, 60)
        assert max(seen) == seen[-1], "the age never falls while nothing is flushed"
        await until(lambda: uniform.saver.stats().tiers.unreachable >= 2)
        assert re.match(r"ColdTimeout: cold has not answered a flush for \d+ s", uniform.saver.stats().tiers.last_error)
    await until(lambda: uniform.saver.stats().tiers.flushed == 6, 60)
    await uniform.close()
    assert uniform.saver.stats().tiers.oldest_seconds == 0


def test_the_age_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, now = LiveTiers(), [1000.0]
    monkeypatch.setattr(live_counts, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def told(seconds: float = 0) -> tuple[float, float | None]:
        now[0] += seconds
        stats = counts.numbers()
        return counts.oldest_seconds, stats.get("seconds_since_scan")

    assert told() == (0, None)
    counts.set_backlog(1)
    assert told(7) == (7, None), "of the first record that this process knows"
    counts.learn(f"a 2 2 {30_000} 0")
    assert told(5) == (35, 5)
    counts.set_backlog(1)
    assert told(9) == (44, 14), "the oldest may still wait, so its age grows until the next scan"
    assert told(26) == (70, None), "later scans may be missed without a flusher"
    counts.learn(f"b 1 1 {1000} 0", 20)
    assert told() == (21, 20), "the scan is exact"
    assert told(50) == (71, None)
    counts.scans = True
    assert told() == (71, 70)
    counts.set_backlog(0)
    assert told(5) == (76, 75), "a process that scans trusts only a scan"
    counts.learn("c 0 0 0 0")
    assert told(5) == (0, 5)
    counts.scans = False
    counts.learn("d 1 1 2000 1")
    counts.set_backlog(0)
    assert told(5) == (0, 5) and counts.set_aside == 0


@pytest.mark.parametrize("target_name", ["redis", "cluster"], indirect=True)
async def test_a_flush_of_other_records_does_not_lower_the_age(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(live_counts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    writer, flusher = [await tiers.uniform(**BEHIND) for _ in range(2)]
    for thread in ("waits", "flushed"):
        await writer.get_tuple(config(thread))
        await put_new(writer, config(thread))
    await ran(flusher, flusher.saver._context.backlog_count.scan())
    flusher.saver._context.counts.scans = True
    now[0] += 50
    for left in (1, 0):
        await ran(flusher, flush_what_goes(flusher.saver._context, "flushed"))
        stats = flusher.saver.stats().tiers
        assert stats.backlog == left, "it was lowered by a record that the writer has not reported"
        assert 50 <= stats.oldest_seconds < 50 + 60
        await put_new(writer, config("flushed"))
    await drained(flusher)
    assert flusher.saver.stats().tiers.oldest_seconds == 0


class Down(InMemorySaver):
    """A cold saver that cannot be reached."""

    def put(self, *_: Any) -> Any:
        raise psycopg.OperationalError("down")

    def get_tuple(self, where: Any) -> Any:
        if where["configurable"]["thread_id"] == "redis_saver":  # the probe
            raise psycopg.OperationalError("down")


async def test_a_lost_backlog_is_counted_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Redis restarts without its data while cold is down. Two processes flush, and a third one only writes."""
    server = Server()

    def process(**settings: Any) -> TieredSaver:
        hot = RedisSaver.from_conn_string(server.url).__enter__()
        return TieredSaver(hot, Down(), mode="write-behind", flush_interval=0.05, **settings)

    both, writer = (process(), process()), process(flusher=False)
    for thread in range(7):
        writer.get_tuple(config(f"t{thread}"))
        for number in (1, 2):
            made = new(number)
            writer.put(config(f"t{thread}"), made, {}, made["channel_versions"])
    await until(lambda: {saver.stats().tiers.backlog for saver in both} == {14}, 60)
    await until(lambda: any(saver._context.flush_queue.witnesses for saver in both), 60)  # type: ignore[union-attr]
    server.kill()
    server.start()
    await until(lambda: any(saver.stats().tiers.lost_records for saver in both), 60)
    await until(lambda: all(saver._context.backlog_count.suspected is None for saver in both), 60)
    assert sum(saver.stats().tiers.lost_records for saver in both) == 14
    lost = [record for record in caplog.records if "lost its data" in record.getMessage()]
    assert [record.levelno for record in lost] == [logging.WARNING]
    assert "about 14 records that cold did not have, such as those of thread 't" in lost[0].getMessage()
    for saver in both:
        assert saver.close(timeout=1) == 0
        assert saver.stats().tiers.backlog == 0
    server.stop()


async def test_an_outage_of_redis_is_no_error_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert asks to report those. Workers also ask Redis whether flushing is paused."""
    monkeypatch.setattr(backlog, "_PAUSE_AGE", 0.0)
    server, made = Server(), new()
    hot = RedisSaver.from_conn_string(server.url).__enter__()
    saver = TieredSaver(hot, InMemorySaver(), mode="write-behind", flush_interval=0.05)
    saver.pause_flushing(60)
    saver.put(config(saver.new_thread()), made, {}, VERSIONS)
    server.kill()
    await until(lambda: saver._context.flush_queue._outages >= 3, 60)  # type: ignore[union-attr]
    assert saver.stats().tiers.worker_errors == 0 and "ConnectionError" in saver.stats().tiers.last_error
    server.start()
    saver.close(timeout=1)
    server.stop()


async def stepped(uniform: Uniform) -> int:
    """Do what the scanning worker does. Returns the number of lost records so far."""
    context = uniform.saver._context
    await ran(uniform, workers._scan_step(context, context.flush_queue))
    assert context.backlog_count.suspected is None
    return int(uniform.saver.stats().tiers.lost_records)


async def known(tiers: Tiers, records: int = 5) -> tuple[Uniform, Uniform]:
    """Two processes that flush when the test says so. The first one knows of dirty threads."""
    one, other = [await tiers.uniform(**BEHIND) for _ in range(2)]
    for each in (one, other):
        each.saver._context.flush_queue._flushes = True
    for number in range(records):
        await one.get_tuple(config(f"t{number}"))
        await put_new(one, config(f"t{number}"))
    assert await stepped(one) == 0
    assert one.saver._context.flush_queue.witnesses
    return one, other


def forgotten(tiers: Tiers) -> None:
    tiers.target.raw.delete(Keyspace(tiers.target.prefix).unflushed)


def all_gone(tiers: Tiers) -> None:
    tiers.target.raw.delete(*tiers.target.keys())


@REDIS
@pytest.mark.also_on(cluster="sync")
@pytest.mark.parametrize(("how", "count"), [("gone", 5), ("partly", 2), ("older", 2)])
async def test_lost_records_are_about_the_backlog_before_less_what_is_there(
    tiers: Tiers, how: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica that took over may have the count of an earlier time, and all but the last threads."""
    one, other = await known(tiers)
    raw, unflushed = tiers.target.raw, Keyspace(tiers.target.prefix).unflushed
    if how == "gone":
        all_gone(tiers)
    else:
        for number in (3, 4):
            raw.delete(*(key for key in keys_of(tiers, f"t{number}") if raw.exists(key)))
    if how == "partly":
        forgotten(tiers)
    elif how == "older":
        raw.hset(unflushed, "written", 3)
    assert [await stepped(each) for each in (one, other, one)] == [count, 0, count], "counted once"
    for age, severity in ((0, "warning"), (90_000, None)):
        lost, at = raw.hget(unflushed, "lost").split()
        raw.hset(unflushed, "lost", b"%s %d" % (lost, int(at) - age))
        code = main(["doctor", "--redis", tiers.target.url, "--prefix", tiers.target.prefix, "--json"])
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        told = [finding for finding in said if "Redis lost its data" in finding["what"]]
        assert [finding["severity"] for finding in told] == ([severity] if severity else [])
        if told:
            assert f"about {count} records" in told[0]["what"] and code == 1


@REDIS
@pytest.mark.also_on(cluster="async")
@pytest.mark.parametrize(
    "how", ["evicted count", "flushed by another", "deleted", "new process", "expired count", "flushed"]
)
async def test_no_false_alarm(tiers: Tiers, how: str) -> None:
    one, other = await known(tiers)
    if how == "deleted":
        for number in range(5):
            await other.delete_thread(f"t{number}")
    if how in ("flushed by another", "expired count", "deleted"):
        await drained(other)
    elif how == "flushed":
        await drained(one)
    (all_gone if how in ("new process", "flushed") else forgotten)(tiers)
    if how == "expired count":
        assert await stepped(other) == 0
    pair = (await tiers.uniform(**BEHIND), other) if how == "new process" else (one, one)
    assert [await stepped(each) for each in pair] == [0, 0]


@REDIS
async def test_a_failed_comparison_is_repeated(tiers: Tiers) -> None:
    one, _ = await known(tiers)
    all_gone(tiers)
    works, context = tiers.fails(one), one.saver._context
    await ran(one, workers._scan_step(context, context.flush_queue))
    assert one.saver.stats().tiers.last_error.startswith("ConnectionError")
    works()
    assert await stepped(one) == 5
