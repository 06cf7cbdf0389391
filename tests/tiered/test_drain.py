"""Cold catches up after any lost request or reply, whoever holds a lease. A drain that fails reports it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import psycopg
import pytest
import redis
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver import BacklogWarning, KeyConflict
from redis_saver._checkpoint import scripts as checkpoint_scripts
from redis_saver._engine.requests import Call
from redis_saver._engine.runner import Driver
from redis_saver._engine.scripts import Script
from redis_saver._tiered import backlog, flush_queue, flushing, scripts, workers
from redis_saver._tiered.requests import ColdCall
from tests.support.counting import load_scripts
from tests.support.factories import config, ids
from tests.support.growing import until
from tests.support.proxy import Proxy, proxy, retrying  # noqa: F401
from tests.support.tiering import BEHIND, LATEST, FlakySaver, Tiers, drained, flushed_until
from tests.support.tiering import id_of, keys_of, new, put_new, written
from tests.support.uniform import Block, Uniform
from tests.support.wrappers import Around, asked, elsewhere, ran, script_of

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)

REPLY, REQUEST = "reply lost", "request lost"
QUICK: dict[str, Any] = {"mode": "write-behind", "flush_interval": 0.02}
SOON = 15.0
"""Seconds: longer than any step here, and shorter than any lease."""


@pytest.fixture
def quick(monkeypatch: Any) -> None:
    monkeypatch.setattr(backlog, "SCAN_INTERVAL", 0.1)


class Queue:
    """Savers that reach Redis through a proxy, with clients that do not retry."""

    def __init__(self, tiers: Tiers, proxy: Proxy) -> None:
        self.tiers, self.proxy = tiers, proxy
        load_scripts(tiers.target.raw)

    async def uniform(self, **settings: Any) -> Uniform:
        target = self.tiers.target
        client = target.elsewhere(self.proxy.url).client(retry=retrying(target.flavour, 0))
        return await self.tiers.uniform(hot={"client": client}, **settings)

    def lose(self, script: Script, how: str) -> None:
        marker = b"EVALSHA\r\n$40\r\n" + script.sha.encode()
        (self.proxy.lose_reply if how == REPLY else self.proxy.drop_request)(marker)

    def held(self) -> list[bytes]:
        """Keys of leases, write intents and backlogs that are left."""
        keys, raw = self.tiers.target.keys(), self.tiers.target.raw
        flushing_now = [key for key in keys if key.endswith(b":flush") and raw.hget(key, "token")]
        return [*flushing_now, *(key for key in keys if key.endswith((b":dirty", b":intents")))]


@pytest.fixture
def beyond(tiers: Tiers, proxy: Proxy) -> Queue:
    return Queue(tiers, proxy)


async def again(act: Callable[[], Awaitable[Any]]) -> Any:
    """Call `act`, and repeat it after a connection error."""
    for _ in range(3):
        with contextlib.suppress(redis.ConnectionError):
            return await act()
    raise AssertionError


async def everything(tiers: Tiers, behind: Uniform, through: Uniform) -> dict[str, set[str]]:
    """Use each script over two tiers once. Return the ids of the checkpoints that cold must have, by thread."""
    expected = defaultdict[str, set[str]](set)
    expected["left"] = set(map(id_of, await written(await tiers.uniform(**BEHIND), "left")))  # by one that is gone

    async def put(uniform: Uniform, where: Any, number: int, **metadata: Any) -> Any:
        made = new(number)
        stored = await again(lambda: uniform.put(where, made, metadata, made["channel_versions"]))
        expected[where["configurable"]["thread_id"]].add(made["id"])
        return stored

    async def settled(thread: str) -> None:
        await until(lambda: not tiers.target.raw.exists(keys_of(tiers, thread).dirty), SOON)

    await put(tiers.target.uniform(), config("old"), 1)
    assert len(await again(lambda: through.list(config("old")))) == 1

    await again(lambda: behind.get_tuple(config("thread")))
    last = await put(behind, config("thread"), 1, run_id="run-1")
    await again(lambda: behind.put_writes(last, [("n", 1), (INTERRUPT, 2)], "task"))
    last = await put(behind, last, 2, run_id="run-2")
    await settled("thread")
    tiers.evict()
    assert (await again(lambda: behind.get_tuple(config("thread")))).config == last
    last = await put(through, last, 3)
    await again(lambda: through.put_writes(last, [("n", 3)], "task"))
    tiers.evict("index")
    assert (await again(lambda: through.get_tuple(config("thread")))).config == last
    tiers.evict()
    last = await put(through, last, 4)  # hot lacks the parent

    for uniform, thread in ((behind, "deleted"), (through, "erased")):
        await put(uniform, config(thread), 1)
        await again(lambda uniform=uniform, thread=thread: uniform.delete_thread(thread))
        expected[thread].clear()
    one = await put(behind, config("run"), 1, run_id="run-8")
    await put(behind, one, 2, run_id="run-9")
    await settled("run")
    await again(lambda: behind.delete_for_runs(["run-9"]))
    expected["run"] = {id_of(one)}
    return expected


USED = {
    name: value
    for name, value in {**vars(checkpoint_scripts), **vars(scripts)}.items()
    if isinstance(value, Script)
    and name.lower() in """get begin_intent end_intent enroll repair put_through put_writes_through put_behind put_writes_behind
    put_tombstone erase claim ack backlog_stats publish report_backlog publish_backlog fill_lease fill has_runs""".split()
}  # fmt: skip


@pytest.mark.parametrize(
    ("flavour", "how"),
    [
        ("sync", REPLY),
        ("async", REQUEST),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("async", REPLY), ("sync", REQUEST))),
    ],
    indirect=["flavour"],
)
@pytest.mark.parametrize("name", USED)
async def test_cold_catches_up_after_any_lost_message(beyond: Queue, quick: None, name: str, how: str) -> None:
    """The caller repeats its call, no other process acts, and nothing stays held."""
    behind, through = await beyond.uniform(**QUICK), await beyond.uniform()
    cold = await beyond.tiers.cold_uniform()
    beyond.lose(USED[name], how)
    expected = await everything(beyond.tiers, behind, through)

    async def is_there() -> bool:
        if beyond.proxy.lost != 1 or beyond.held():
            return False
        found = {thread: set(ids(await cold.list(config(thread)))) for thread in expected}
        return found == expected

    try:
        await until(is_there, SOON)
    finally:
        await behind.close(10.0)


# -- claims


async def done(tiers: Tiers, uniform: Uniform, operation: Any, fails: Any = None) -> Any:
    """Run an operation. Calls of the script `fails` raise an error."""
    answer: Any = None
    failure: Any = None
    while True:
        try:
            request = operation.throw(failure) if failure else operation.send(answer)
        except StopIteration as end:
            return end.value
        called = [getattr(one, "script", None) for one in getattr(request, "requests", [request])]
        failure = redis.ConnectionError("on purpose") if fails and fails in called else None
        try:
            answer = None if failure else await asked(uniform, request)
        except psycopg.OperationalError as error:
            failure = error


async def flushed(tiers: Tiers, uniform: Uniform, **how: Any) -> Any:
    return await done(tiers, uniform, flushing.flush(uniform.saver._context, "thread"), **how)


async def stopped(tiers: Tiers, uniform: Uniform, script: Any = None) -> Any:
    """A flush that ran until after `script`, or, without one, until before its first call of cold."""
    operation = flushing.flush(uniform.saver._context, "thread")
    request = next(operation)
    while script is not None or not isinstance(request, ColdCall):
        answer = await asked(uniform, request)
        if script is not None and script_of(request) is script:
            break
        request = operation.send(answer)
    return operation


async def test_a_flusher_stopped_before_cold_resumes_its_claim(tiers: Tiers) -> None:
    """Like a cancelled task, it cannot release its claim. Other processes wait until the lease expires."""
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await written(uniform)
    (await stopped(tiers, uniform, scripts.CLAIM)).close()
    assert await flushed(tiers, other) is None
    done = await flushed(tiers, uniform)
    assert (done.brought, done.left, list(done.failed)) == (6, 0, [])


async def test_a_flusher_stopped_during_a_cold_call_waits_for_the_lease(tiers: Tiers) -> None:
    """The call of cold may still be running, with an unknown result."""
    uniform = await tiers.uniform(**BEHIND)
    await written(uniform)
    (await stopped(tiers, uniform)).close()
    assert await flushed(tiers, uniform) is None
    tiers.later(flushing.FLUSH_LEASE)
    assert (await flushed(tiers, uniform)).left == 0


async def test_two_workers_of_a_process_never_share_a_claim(tiers: Tiers) -> None:
    """Nor does a forked child share the claim of its parent."""
    uniform = await tiers.uniform(**BEHIND)
    await written(uniform)
    (await stopped(tiers, uniform, scripts.CLAIM)).close()
    goes_on = await stopped(tiers, uniform, scripts.CLAIM)
    assert await flushed(tiers, uniform) is None
    goes_on.close()
    leases = uniform.saver._context.leases
    kept = dict(leases._tokens)
    leases._tokens.after_fork()
    assert await flushed(tiers, uniform) is None
    for key, token in kept.items():
        leases.keep(key, token)
    assert (await flushed(tiers, uniform)).left == 0


async def test_a_failed_ack_releases_the_claim(tiers: Tiers) -> None:
    """Cold may have half of the thread. The next flusher learns that, and coalesces nothing."""
    uniform, other, cold = await tiers.uniform(**LATEST), await tiers.uniform(**LATEST), await tiers.cold_uniform()
    made = await written(uniform)
    with pytest.raises(redis.ConnectionError):
        await flushed(tiers, uniform, fails=scripts.ACK)
    assert (await flushed(tiers, other)).coalesced == 0
    assert [one.config for one in await cold.list(config())] == made[::-1]


async def test_a_claim_with_nothing_due_is_released(tiers: Tiers) -> None:
    """All records were set aside when the holder asked again."""
    flaky = FlakySaver(await tiers.cold())
    uniform, other = await tiers.uniform(cold=flaky.wrap(), **BEHIND), await tiers.uniform(**BEHIND)
    await uniform.get_tuple(config())
    await put_new(uniform)
    flaky.fail = {"put"}
    assert (await flushed(tiers, uniform)).left == 1
    (await stopped(tiers, other, scripts.CLAIM)).close()  # nothing is due
    tiers.later(3000)
    (await stopped(tiers, uniform, scripts.CLAIM)).close()
    tiers.later(-3000)
    assert (await flushed(tiers, uniform)).left == 1
    tiers.later(3000)
    assert (await flushed(tiers, other)).left == 0


async def test_a_claim_blocked_by_a_writer_is_released(tiers: Tiers) -> None:
    """The flusher resumes its claim and finds the write intent of another process."""
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await written(uniform)
    (await stopped(tiers, uniform, scripts.CLAIM)).close()
    seconds, micros = tiers.target.raw.time()
    intent = b"%015d-" % (seconds * 1000 + micros // 1000) + b"*" * 16 + b"writer"
    tiers.target.raw.zadd(keys_of(tiers).intents, {intent: 0})
    assert await flushed(tiers, uniform) is None
    tiers.target.raw.zrem(keys_of(tiers).intents, intent)
    assert (await flushed(tiers, other)).left == 0


@pytest.mark.parametrize("ack", ["arrives", "is lost"])
async def test_older_writes_of_a_late_flusher_are_repaired(tiers: Tiers, ack: str) -> None:
    """A lost acknowledgement is repeated, so the flusher learns that it was late, and may have damaged cold."""
    uniform, other, cold = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    last = (await written(uniform))[-1]
    late = await stopped(tiers, uniform)
    tiers.later(flushing.FLUSH_LEASE)
    await other.put_writes(last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(other)
    request, loses = late.send(None), ack == "is lost"
    with pytest.raises(StopIteration):
        while True:
            if script_of(request) is scripts.ACK and loses:
                loses, request = False, late.throw(redis.ConnectionError("on purpose"))
            else:
                request = late.send(await asked(uniform, request))
    assert ("task-c", INTERRUPT, ["wait"]) in (await cold.get_tuple(config())).pending_writes
    assert tiers.target.raw.zcard(keys_of(tiers).dirty) > 0
    await drained(other)
    assert ("task-c", INTERRUPT, ["newer"]) in (await cold.get_tuple(config())).pending_writes
    assert (await cold.get_tuple(config())).pending_writes == (await other.get_tuple(config())).pending_writes


# -- scans of all keys


async def looked(tiers: Tiers, uniform: Uniform, **how: Any) -> Any:
    return await done(tiers, uniform, workers.scan_in_turn(uniform.saver._context), **how)


@pytest.mark.parametrize(
    "fails", [scripts.PUBLISH, scripts.REPORT_BACKLOG, scripts.BACKLOG_STATS, scripts.PUBLISH_BACKLOG]
)
async def test_a_failed_scan_blocks_no_other_scanner(tiers: Tiers, fails: Any) -> None:
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await written(uniform)
    with pytest.raises(redis.ConnectionError):
        await looked(tiers, uniform, fails=fails)
    assert await looked(tiers, other) == ["thread"]
    assert await looked(tiers, uniform) == []  # the lease allows no second scan at once
    tiers.later(3_600_000)
    assert await looked(tiers, uniform) == ["thread"]


async def test_a_stopped_scanner_resumes_its_scan(tiers: Tiers) -> None:
    """Another process takes over when the lease expires."""
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await written(uniform)
    operation = workers.scan_in_turn(uniform.saver._context)
    await asked(uniform, next(operation))
    operation.close()
    assert await looked(tiers, other) == []
    assert await looked(tiers, uniform) == ["thread"]
    tiers.later(backlog.SCAN_LEASE)
    operation = workers.scan_in_turn(uniform.saver._context)
    await asked(uniform, next(operation))
    tiers.later(backlog.SCAN_LEASE)
    assert await looked(tiers, other) == ["thread"]


async def test_a_long_scan_renews_its_lease(tiers: Tiers, monkeypatch: Any) -> None:
    monkeypatch.setattr(backlog, "SCAN_LEASE", -1)
    uniform = await tiers.uniform(**BEHIND)
    await written(uniform)
    operation, sent = uniform.saver._context.backlog_count.scan(renews_lease=True), list[Any]()
    request = operation.send(await asked(uniform, next(operation)))  # the first request reads the count
    sent.append(request)
    assert getattr(request, "arguments", ())[:1] == ("PEXPIRE",)
    operation.close()


def test_documented_limits_match_the_constants(target_name: str) -> None:
    assert flush_queue.MAX_BACKOFF >= flushing.MAX_PAUSE
    assert flush_queue.CATCH_UP == flush_queue.MAX_BACKOFF + backlog.SCAN_INTERVAL == 15
    assert flush_queue.TAKE_OVER * 1000 == max(flushing.FLUSH_LEASE, backlog.SCAN_LEASE) == 30_000


# -- write intents


async def test_a_write_that_fails_before_cold_removes_its_intent(tiers: Tiers) -> None:
    """Cold got nothing, so readers still trust hot."""
    uniform, other = await tiers.uniform(), await tiers.uniform()
    last = (await written(uniform))[-1]

    def reply_is_lost(request: Any) -> Any:
        reply = yield request
        if script_of(request) is scripts.BEGIN_INTENT:
            raise redis.ConnectionError("on purpose")
        return reply

    Around(uniform.saver.hot, reply_is_lost)
    with pytest.raises(redis.ConnectionError):
        await uniform.put_writes(last, [("n", 1)], "task")
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    assert (await other.get_tuple(config())).config == last
    assert other.saver.stats().tiers.intents == 0


async def test_a_failed_run_deletion_leaves_no_intent(tiers: Tiers) -> None:
    """The run is in two threads, and another program overwrote a key of the second."""
    uniform, index = await tiers.uniform(**BEHIND), keys_of(tiers, "two").index_key
    for thread in ("one", "two"):
        await uniform.get_tuple(config(thread))
        await put_new(uniform, config(thread), run_id="run")
    await drained(uniform)
    tiers.target.raw.delete(index)
    tiers.target.raw.set(index, "somebody else's")
    with pytest.raises(KeyConflict):
        await uniform.delete_for_runs(["run"])
    assert not tiers.target.raw.exists(keys_of(tiers, "one").intents)


# -- drains


class Down(InMemorySaver):
    """A cold saver whose calls all fail from the first write on, while `is_down`."""

    is_down, was_written = True, False

    def answer(self, name: str, *args: Any) -> Any:
        self.was_written |= name != "get_tuple"
        if self.is_down and self.was_written:
            raise psycopg.OperationalError("no\nserver here")
        return getattr(super(), name)(*args)

    def get_tuple(self, *args: Any) -> Any:
        return self.answer("get_tuple", *args)

    def put(self, *args: Any) -> Any:
        return self.answer("put", *args)

    def put_writes(self, *args: Any) -> Any:
        return self.answer("put_writes", *args)


async def test_leaving_a_with_block_warns_about_a_backlog(tiers: Tiers, caplog: Any) -> None:
    """The warning and the log give its size. An error that ends the block is raised unchanged."""
    caplog.set_level(logging.WARNING, "redis_saver")

    async def leave(thread: str, error: Exception | None = None) -> None:
        uniform = await tiers.uniform(cold=Down(), **QUICK)
        saver, name = uniform.saver, "aclose" if tiers.native_async else "close"
        setattr(saver, name, partial(getattr(saver, name), 0.2))

        async def act() -> None:
            await written(uniform, thread)
            if error:
                raise error

        if tiers.native_async:
            async with saver:
                await act()
        else:
            with saver:
                await act()

    with pytest.warns(BacklogWarning, match=r"6 records of 1 threads .*OperationalError: no server here") as caught:
        await leave("one")
    assert [one.filename for one in caught if one.category is BacklogWarning] == [__file__]
    assert [one.levelname for one in caplog.records if "6 records of 1 threads" in one.getMessage()] == ["WARNING"]
    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError):
        warnings.simplefilter("error")
        await leave("two", ZeroDivisionError())
    assert "12 records of 2 threads" in caplog.text


async def test_leaving_a_with_block_is_silent_after_a_full_flush(tiers: Tiers, caplog: Any) -> None:
    uniform = await tiers.uniform(**QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with Block(uniform.saver, tiers.native_async):
            await written(uniform)
    assert caplog.records == []


@pytest.mark.parametrize("elsewhere_too", [False, True], ids=["here", "on another loop"])
async def test_blocks_of_a_saver_without_a_flusher_flush_nothing(tiers: Tiers, elsewhere_too: bool) -> None:
    """Also an inner block, after which the saver stays open, and one of a clone."""
    uniform = await tiers.uniform(**BEHIND)
    clone = uniform.saver.with_allowlist([("some", "Type")])

    async def inner(of: Any = clone) -> None:
        async with Block(of, tiers.native_async):
            pass

    async with Block(uniform.saver, tiers.native_async):
        async with Block(uniform.saver, tiers.native_async):
            await written(uniform)
        await asyncio.to_thread(asyncio.run, inner()) if elsewhere_too else await inner()
        await inner(uniform.saver)
        assert await (await tiers.cold_uniform()).get_tuple(config()) is None
        assert await Uniform(clone).get_tuple(config()), "it is open"
    assert await (await tiers.cold_uniform()).get_tuple(config()) is None


@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["end", "error"])
async def test_leaving_a_with_block_without_hot_raises_and_logs(tiers: Tiers, caplog: Any, error: Any) -> None:
    uniform = await tiers.uniform(**QUICK)
    with pytest.raises(redis.ConnectionError if error is None else ZeroDivisionError):
        async with Block(uniform.saver, tiers.native_async):
            tiers.fails(uniform)
            if error:
                raise error
    assert ("it is not known whether cold has everything" in caplog.text) == (error is not None)


async def test_an_outage_is_logged_once_and_so_is_its_end(tiers: Tiers, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "redis_saver")
    cold = Down()
    uniform = await tiers.uniform(cold=cold, **BEHIND)
    for thread in range(4):
        await written(uniform, f"{thread}")
    for failures in (1, 2, 3):
        assert await flushed_until(uniform, lambda _: uniform.saver.stats().tiers.unreachable >= failures) > 0  # noqa: B023
    assert (uniform.saver.stats().tiers.refused, uniform.saver.stats().tiers.set_aside) == (0, 0)
    assert [one.getMessage() for one in caplog.records] == [
        "the flusher does not reach both servers, and keeps trying: OperationalError: no server here"
    ]
    caplog.clear()
    cold.is_down = False
    await drained(uniform)
    assert [one.getMessage() for one in caplog.records] == ["the flusher reaches both servers again"]


async def test_a_broken_connection_does_not_count_as_refusal(tiers: Tiers, caplog: Any) -> None:
    """Cold answers on another connection, so the flusher repeats the record at once."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND)
    await written(uniform)

    async def breaks() -> None:
        raise psycopg.OperationalError("the connection is lost")

    flaky.before["put"] = breaks if tiers.native_async else lambda: elsewhere(breaks)
    await drained(uniform)
    stats = uniform.saver.stats().tiers
    assert not flaky.before and (stats.refused, stats.unreachable, stats.set_aside) == (0, 0, 0)
    assert caplog.records == []


async def test_a_refused_record_does_not_count_as_outage(tiers: Tiers, caplog: Any) -> None:
    """Cold answers but refuses every record. Each thread is logged, and no outage."""
    caplog.set_level(logging.WARNING, "redis_saver")
    flaky = FlakySaver(await tiers.cold())
    flaky.fail = {"put"}
    uniform = await tiers.uniform(cold=flaky.wrap(), **QUICK)  # a flush with a short limit may have no time to ask cold
    for thread in range(4):
        await written(uniform, f"{thread}")
    end = time.monotonic() + 30
    while (stats := uniform.saver.stats().tiers).set_aside < 8:
        assert time.monotonic() < end, stats
        await asyncio.sleep(0.02)
    assert stats.unreachable == 0
    assert sorted(one.getMessage().partition(",")[0] for one in caplog.records) == [
        f"cold refused a record of thread '{thread}'" for thread in range(4)
    ]


async def test_a_refused_record_is_set_aside_and_logged_once(tiers: Tiers, caplog: Any) -> None:
    """Its error has a lone surrogate."""
    caplog.set_level(logging.WARNING, "redis_saver")

    class Refuses(InMemorySaver):
        def put_writes(self, *_: Any) -> None:
            raise ValueError("caf\udce9: no such writes")

    uniform = await tiers.uniform(cold=Refuses(), **BEHIND)
    await uniform.get_tuple(config("a\nb"))
    await uniform.put_writes(await put_new(uniform, config("a\nb")), [("n", 1)], "task")
    for brought in (1, 0, 0):
        assert await ran(uniform, workers.flush_some(uniform.saver._context, "a\nb", at_once=True)) == brought
    (message,) = [one.getMessage() for one in caplog.records]
    assert message.startswith("cold refused a record of thread 'a\\nb', which is retried: ValueError: caf")
    assert message.endswith(": no such writes")
    assert await flushed_until(uniform, lambda _: uniform.saver.stats().tiers.set_aside) == 1


@pytest.mark.parametrize(
    "script", [scripts.BACKLOG_STATS, scripts.REPORT_BACKLOG, scripts.PUBLISH_BACKLOG, scripts.CLAIM, scripts.ACK]
)
async def test_a_drain_survives_a_lost_reply(beyond: Queue, script: Any) -> None:
    uniform = await beyond.uniform(**BEHIND)
    await again(lambda: written(uniform))
    beyond.lose(script, REPLY)
    assert await uniform.flush(timeout=10) == 0
    assert beyond.proxy.lost == 1
    assert beyond.held() == []


async def test_a_drain_without_a_deadline_fails_without_hot(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    await written(uniform)
    works = tiers.fails(uniform)
    with pytest.raises(redis.ConnectionError):
        await uniform.flush()
    works()
    await drained(uniform)


# -- errors inside operations


@pytest.mark.parametrize("flavour", ["async"], indirect=True)
async def test_a_cancelled_drain_claims_nothing_more(tiers: Tiers) -> None:
    flaky, begun, go_on = FlakySaver(await tiers.cold()), asyncio.Event(), asyncio.Event()
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND, flush_workers=1)
    for thread in ("one", "two", "three"):
        await uniform.get_tuple(config(thread))
        await put_new(uniform, config(thread))

    async def hang() -> None:
        begun.set()
        await go_on.wait()

    def dirty() -> int:
        return sum(key.endswith(b":dirty") for key in tiers.target.keys())

    flaky.before["put"] = hang
    drain = asyncio.create_task(uniform.flush())
    await begun.wait()
    drain.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drain
    go_on.set()
    await until(lambda: dirty() <= 2)
    await asyncio.sleep(0.1)
    assert dirty() == 2
    await drained(uniform)


@pytest.mark.parametrize("error", [redis.ConnectionError, psycopg.OperationalError, ZeroDivisionError])
async def test_an_operation_can_clean_up_after_any_error(tiers: Tiers, error: type[Exception]) -> None:
    uniform, sent = await tiers.uniform(), list[Any]()

    def operation() -> Any:
        try:
            yield Call(checkpoint_scripts.GET, (), ())
        finally:
            sent.append((yield Call(checkpoint_scripts.HAS_RUNS, (), ())))

    def fails(request: Any) -> Any:
        if request.script is checkpoint_scripts.GET:
            raise error
        return "cleaned up"
        yield

    Around(uniform.saver.hot, fails)
    with pytest.raises(error):
        await ran(uniform, operation())
    assert sent == ["cleaned up"]


async def test_cancelling_a_task_closes_its_operation_at_once(tiers: Tiers) -> None:
    closed_at, begun = list[str](), asyncio.Event()

    def operation() -> Any:
        try:
            yield "anything"
        finally:
            closed_at.append("closed")

    class Hangs(Driver[Any]):
        request: Any = None

        async def arequest(self, _: Any) -> Any:
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(Hangs().arun(operation()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed_at == ["closed"]
