"""A cold saver that hangs: reads end after `cold_timeout`, and what hot answers goes on.

No test measures time: while a table is locked, a call without a limit would never end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from redis_saver import ColdTimeout, ThreadBusy
from redis_saver._common.logs import ThrottledLog
from redis_saver._tiered import timeouts
from tests.support.factories import config
from tests.support.growing import until
from tests.support.tiering import BEHIND, DEAD, VERSIONS, Tiers, drained, keys_of, locked
from tests.support.tiering import mark_new, new, plain, put_new, stalled, written
from tests.support.uniform import Block, Uniform

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)
SHORT: dict[str, Any] = {"cold_timeout": 0.3}


async def all_ended(uniform: Uniform, pool: Any) -> None:
    """Wait until no abandoned call is left, and all connections are in the pool."""
    await none_abandoned(uniform)
    await until(lambda: "redis_saver cold" not in [thread.name for thread in threading.enumerate()])
    await until(lambda: pool.get_stats()["pool_available"] == pool.get_stats()["pool_size"])


async def none_abandoned(uniform: Uniform) -> None:
    await until(lambda: uniform.saver._driver._timeouts.abandoned == 0)


def meanwhile(uniform: Uniform, method: str, *arguments: Any) -> asyncio.Future[Any]:
    """Begin a call."""
    if uniform.native_async:
        return asyncio.ensure_future(getattr(uniform, method)(*arguments))
    return asyncio.ensure_future(asyncio.to_thread(getattr(uniform.saver, method), *arguments))


@pytest.mark.encrypted_too
@pytest.mark.parametrize("settings", [{}, {**BEHIND, "flusher": True}], ids=["through", "behind"])
async def test_reads_end_and_what_hot_has_goes_on(tiers: Tiers, settings: Any) -> None:
    other, cold = await tiers.uniform(), await tiers.cold(application_name="hanging")
    uniform = await tiers.uniform(cold=cold, **settings, **SHORT)
    made = await written(other, "in-cold")
    await written(uniform, "hot")
    await drained(uniform)
    tiers.evict(thread="in-cold")
    newest = plain(await other.get_tuple(config("in-cold")))
    tiers.evict(thread="in-cold")
    with locked(tiers.url):
        reads: list[tuple[str, Any]] = [
            ("get_tuple", (config("in-cold"),)),
            ("get_tuple", (made[0],)),
            ("list", (config("in-cold"),)),
            ("list", (None,)),
            ("get_thread", ("in-cold",)),
            ("threads", ()),
            ("copy_thread", ("in-cold", "copy")),
        ]
        for method, arguments in reads:
            with pytest.raises(ColdTimeout, match="cold_timeout") as caught:
                await getattr(uniform, method)(*arguments)
            assert isinstance(caught.value, TimeoutError)
        assert await uniform.get_tuple(config("hot")) is not None
        if settings:
            for _ in range(5):  # the flusher hangs with the first one
                await put_new(uniform, config("hot"))
            assert (await uniform.get_tuple(config("hot"))).checkpoint["channel_values"]["n"] == [9]
            assert len(await uniform.list(config("hot"))) == 8
    assert plain(await uniform.get_tuple(config("in-cold"))) == newest
    count = 8 if settings else 3
    assert len(await uniform.list(config("hot"))) == count
    await drained(uniform)
    await uniform.close()
    assert in_cold(tiers, "hot") == count
    await all_ended(uniform, cold.conn)


def in_cold(tiers: Tiers, thread: str) -> int:
    return int(tiers.sql("SELECT count(*) FROM checkpoints WHERE thread_id = %s", thread)[0][0])


async def test_a_reader_that_needs_a_flush_leaves_it_to_go_on(tiers: Tiers) -> None:
    uniform, through = await tiers.uniform(**BEHIND, **SHORT), await tiers.uniform(**SHORT)
    made = await written(uniform)
    tiers.target.raw.hdel(keys_of(tiers).data_key, "@complete")
    with locked(tiers.url):
        with pytest.raises(ColdTimeout, match="a flush did not end"):
            await uniform.list(config())
        await until(lambda: tiers.target.raw.hexists(keys_of(tiers).flush, "token"))  # on a busy machine it came late
        for call in (  # the first one has the claim
            uniform.list(config()),
            uniform.list(None),
            put_new(through, made[-1]),
            through.put_writes(made[-1], [("n", 1)], "task"),
        ):
            with pytest.raises(ColdTimeout, match="get_tuple did not end"):
                await call
    await none_abandoned(uniform)
    assert in_cold(tiers, "thread") > 0
    assert len(await uniform.list(config())) == 3
    await drained(uniform)


async def test_a_reader_does_not_ask_a_cold_that_is_down_for_each_thread(tiers: Tiers) -> None:
    uniform = await tiers.uniform(cold=await tiers.dead_cold(), **BEHIND)
    for thread in ("one", "another"):
        mark_new(tiers, thread)
        await put_new(uniform, config(thread))
    with pytest.raises(DEAD):
        await uniform.list(None)
    assert uniform.saver.stats().tiers.unreachable == 1


async def test_a_reader_waits_for_others_while_cold_answers(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND, **SHORT)
    await written(uniform)
    tiers.target.raw.hdel(keys_of(tiers).data_key, "@complete")
    go_on = await stalled(tiers, await tiers.uniform(**BEHIND))
    with pytest.raises(ThreadBusy, match=r"for 0\.3 seconds"):
        await uniform.list(config())
    await go_on()
    assert len(await uniform.list(config())) == 3


async def test_a_write_waits(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**SHORT)
    await written(uniform)
    with locked(tiers.url):
        result = meanwhile(uniform, "put", config(), new(), {}, VERSIONS)
        for thread in ("other", "another"):
            with pytest.raises(ColdTimeout):
                await uniform.get_tuple(config(thread))
    assert (await result)["configurable"]["checkpoint_id"]
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"]["n"] == [9]


async def test_who_joined_a_read_that_hangs_does_not_ask_again(tiers: Tiers) -> None:
    uniform = await tiers.uniform(cold_timeout=2.0)
    with locked(tiers.url):
        for result in [meanwhile(uniform, "get_tuple", config()) for _ in range(3)]:
            with pytest.raises(ColdTimeout):
                await result
        assert uniform.saver._driver._timeouts.abandoned <= 1
    assert await uniform.get_tuple(config()) is None


async def test_one_connection_serves_one_call_at_a_time_and_works_afterwards(tiers: Tiers) -> None:
    kind: Any = AsyncPostgresSaver if tiers.native_async else PostgresSaver
    async with Block(kind.from_conn_string(tiers.url), tiers.native_async) as cold:
        uniform = await tiers.uniform(cold=cold, **SHORT)
        made = await written(uniform)
        with locked(tiers.url):
            for thread in ("other", "another"):
                with pytest.raises(ColdTimeout):
                    await uniform.get_tuple(config(thread))
        await none_abandoned(uniform)
        tiers.evict()
        assert (await uniform.get_tuple(config())).config == made[-1]


class Hanging(InMemorySaver):
    """A cold saver whose reads ignore cancellations until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.error, self.calls = threading.Event(), False, 0

    def get_tuple(self, config: Any) -> Any:
        self.calls += 1
        self.go.wait()
        return self.answer(config)

    async def aget_tuple(self, config: Any) -> Any:
        self.calls += 1
        while not self.go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return self.answer(config)

    def answer(self, config: Any) -> Any:
        if self.error:
            raise OSError("late")
        return super().get_tuple(config)


@pytest.mark.plain("it replaces cold")
async def test_abandoned_calls_are_bounded_and_then_reads_fail_at_once(
    tiers: Tiers, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(timeouts, "MAX_CALLS", 2)
    monkeypatch.setattr(timeouts, "_LOG", ThrottledLog("redis_saver.tiered"))  # other tests have written to it
    cold = Hanging()
    uniform = await tiers.uniform(cold=cold, **SHORT)
    for thread in ("a", "b"):
        with pytest.raises(ColdTimeout, match="did not end"):
            await uniform.get_tuple(config(thread))
    uniform.saver._driver._timeouts.seconds = 3600.0  # so who waited would wait long
    with pytest.raises(ColdTimeout, match="was not sent, because 2 abandoned calls have not ended"):
        await uniform.get_tuple(config("c"))
    assert cold.calls == 2
    cold.error = True
    with caplog.at_level("INFO", "redis_saver.tiered"):
        cold.go.set()
        await none_abandoned(uniform)
        await until(lambda: "an abandoned call of cold ended: get_tuple" in caplog.text)
    assert "with OSError" in caplog.text
    cold.error = False
    assert await uniform.get_tuple(config("c")) is None


@pytest.mark.plain("it replaces cold")
@pytest.mark.parametrize("flavour", ["async"], indirect=True)  # there, calls are tasks
async def test_calls_of_closed_loops_do_not_count(tiers: Tiers, monkeypatch: Any) -> None:
    monkeypatch.setattr(timeouts, "MAX_CALLS", 2)
    cold = Hanging()
    uniform = await tiers.uniform(cold=cold, **SHORT)

    def times_out() -> None:
        loop = asyncio.new_event_loop()
        with pytest.raises(ColdTimeout, match="did not end"):
            loop.run_until_complete(uniform.saver.aget_tuple(config()))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    for _ in range(3):
        await asyncio.to_thread(times_out)
    cold.go.set()
    assert await uniform.get_tuple(config()) is None


@pytest.mark.plain("it replaces cold")
async def test_an_error_of_cold_and_no_limit(tiers: Tiers) -> None:
    cold = Hanging()
    cold.go.set()
    cold.error = True
    for limit in (None, 30):
        with pytest.raises(OSError, match="late"):
            await (await tiers.uniform(cold=cold, cold_timeout=limit)).get_tuple(config())


class SlowToPrune(InMemorySaver):
    """A cold saver whose `prune` takes longer than the limit of reads."""

    def __init__(self) -> None:
        super().__init__()
        self.pruned = list[list[str]]()

    def prune(self, thread_ids: Any, **_: Any) -> None:
        time.sleep(2 * SHORT["cold_timeout"])
        self.pruned.append(thread_ids)

    async def aprune(self, thread_ids: Any, **_: Any) -> None:
        await asyncio.sleep(2 * SHORT["cold_timeout"])
        self.pruned.append(thread_ids)


@pytest.mark.plain("it replaces cold")
async def test_a_prune_by_cold_has_no_limit(tiers: Tiers) -> None:
    cold = SlowToPrune()
    uniform = await tiers.uniform(cold=cold, **SHORT)
    await written(uniform)
    await uniform.prune(["thread"])
    assert cold.pruned == [[], ["thread"]]


@pytest.mark.parametrize("flavour", ["async"], indirect=True)  # there, tasks are cancelled
async def test_a_cancelled_reader_does_not_wait_for_cold(tiers: Tiers) -> None:
    cold = await tiers.cold(application_name="cancelled")
    uniform = await tiers.uniform(cold=cold, cold_timeout=3600)
    with locked(tiers.url):
        task = asyncio.ensure_future(uniform.saver.aget_tuple(config()))
        await until(lambda: cold.conn.get_stats()["pool_available"] == 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await all_ended(uniform, cold.conn)


@pytest.mark.parametrize("seconds", [0, -1, "1", float("nan")])
async def test_the_limit_is_checked(tiers: Tiers, seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"cold_timeout=.*at least 0\.001"):
        await tiers.uniform(cold_timeout=seconds)
