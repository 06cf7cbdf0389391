"""Flushers under failures: full servers, hanging calls, refused records, forks and exits."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis
from langgraph.checkpoint.memory import InMemorySaver

from redis_saver import RedisSaver, TieredSaver
from tests.support.factories import checkpoint, config
from tests.support.growing import until
from tests.support.servers import Server, url_of
from tests.support.tiering import BEHIND, LATEST, VERSIONS, FlakySaver, Tiers
from tests.support.tiering import drained, new, plain, written, only_in_cold

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


def plain_saver(**settings: Any) -> tuple[TieredSaver, Any]:
    """A blocking saver over a real Redis and a saver in memory."""
    client = redis.Redis.from_url(url_of("redis"))
    cold = settings.pop("cold", None) or InMemorySaver()
    prefix = f"flushers-{os.getpid()}-{time.monotonic_ns()}"
    return TieredSaver(RedisSaver(client, prefix=prefix), cold, mode="write-behind", **settings), cold


def put(saver: Any, thread: str) -> Any:
    saver.get_tuple(config(thread))
    made = new()
    return saver.put(config(thread), made, {}, made["channel_versions"])


class Switched(InMemorySaver):
    """A cold saver that can be down."""

    is_down = True

    def put(self, *args: Any) -> Any:
        if self.is_down:
            raise psycopg.OperationalError("down")
        return super().put(*args)


async def test_a_full_server_can_be_drained(target_name: str) -> None:
    """Dirty threads cannot be evicted, clean ones can. Reads, deletions and flushes work."""
    server, cold = Server("--maxmemory", "12mb", "--maxmemory-policy", "volatile-lru"), Switched()
    saver = TieredSaver(RedisSaver(server.client(), ttl=timedelta(hours=1)), cold, **BEHIND)
    written_to: list[Any] = []
    with pytest.raises((redis.exceptions.OutOfMemoryError, psycopg.OperationalError)):
        for number in range(2000):
            saver.get_tuple(config(f"t{number}"))
            one = checkpoint({"n": [os.urandom(20_000)]}, VERSIONS)
            written_to.append(saver.put(config(f"t{number}"), one, {}, VERSIONS))
    cold.is_down = False
    assert len(written_to) > 50
    saver.delete_thread("t0")
    assert saver.get_tuple(written_to[5]) is not None
    assert saver.flush(timeout=60) == 0
    assert saver.get_tuple(config("t0")) is None
    assert all(cold.get_tuple(one) for one in written_to[1:])
    for number in range(20):  # clean threads are evicted
        put(saver, f"new-{number}")
    server.stop()


async def test_a_hanging_cold_call_blocks_no_other_thread(target_name: str) -> None:
    let_go, hangs = threading.Event(), threading.Event()

    class Hangs(InMemorySaver):
        def put(self, where: Any, *args: Any) -> Any:
            if where["configurable"]["thread_id"] == "stuck":
                hangs.set()
                let_go.wait(120)
            return super().put(where, *args)

    saver, cold = plain_saver(cold=Hangs(), flush_interval=0.05)
    put(saver, "stuck")
    await until(hangs.is_set)
    put(saver, "other")
    await until(lambda: cold.get_tuple(config("other")))
    assert cold.get_tuple(config("stuck")) is None
    began = time.monotonic()
    assert saver.close(timeout=0.2) == 1
    assert time.monotonic() - began < 60
    let_go.set()


async def test_a_backlog_drains_when_cold_is_back(target_name: str) -> None:
    """The flusher retries with pauses, without being called."""
    saver, cold = plain_saver(cold=Switched(), flush_interval=0.05)
    made = [put(saver, f"t{number}") for number in range(5)]
    await until(lambda: saver.stats().tiers.refused >= 5)
    assert saver.stats().tiers.flushed == 0
    assert all(saver.get_tuple(one) for one in made)
    cold.is_down = False
    await until(lambda: saver.stats().tiers.flushed == 5, 40)
    assert all(cold.get_tuple(one) for one in made)
    assert saver.close() == 0


async def test_an_unused_saver_is_garbage_collected(target_name: str) -> None:
    saver, cold = plain_saver(flush_interval=0.05)
    clone = saver.with_allowlist([("os", "path")])
    seen = weakref.ref(saver)
    del saver
    gc.collect()
    put(clone, "t")  # a graph may hold only the clone
    await until(lambda: cold.get_tuple(config("t")))
    del clone

    def gone() -> bool:
        gc.collect()
        return seen() is None

    await until(gone)


@pytest.mark.parametrize("flavour", ["async"], indirect=True)
async def test_flushers_call_cold_on_its_running_loop(tiers: Tiers) -> None:
    flaky, asked_on = FlakySaver(await tiers.cold()), list[Any]()

    async def note() -> None:
        asked_on.append(asyncio.get_running_loop())

    flaky.before["put"] = note
    uniform = await tiers.uniform(cold=flaky.wrap(), mode="write-behind", flush_interval=0.05)
    assert uniform.saver.cold.loop is asyncio.get_running_loop()
    await written(uniform)
    await until(lambda: asked_on)
    assert await uniform.saver.aclose() == 0
    assert asked_on == [asyncio.get_running_loop()]
    assert uniform.saver.stats().tiers.worker_errors == 0


async def test_a_forked_child_flushes_on_its_own(target_name: str) -> None:
    """The fork happens while a lock is held and cold is being read."""
    asked = threading.Event()

    class Slow(InMemorySaver):
        def get_tuple(self, where: Any) -> Any:
            if os.getpid() == parent:
                asked.set()
                time.sleep(0.5)
            return super().get_tuple(where)

    parent = os.getpid()
    saver, _ = plain_saver(cold=Slow(), flush_interval=0.05)
    thread = threading.Thread(target=lambda: saver.get_tuple(config("t")))
    thread.start()
    asked.wait(30)
    assert saver._context.flush_queue is not None
    saver._context.flush_queue._lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        put(saver, "t")
        while not saver.stats().tiers.flushed:
            time.sleep(0.02)
        os._exit(7)
    saver._context.flush_queue._lock.release()
    thread.join()
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    saver.close()


async def test_a_refused_record_blocks_no_other_operation(tiers: Tiers) -> None:
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND)
    made = await written(uniform)
    await written(uniform, "healthy")
    await only_in_cold(tiers, uniform)
    await uniform.get_tuple(config())  # fills hot in part
    child = new()
    flaky.poison.add(child["id"])
    stored = await uniform.put(made[-1], child, {}, VERSIONS)
    assert [one.config for one in await uniform.list(config())] == [stored, *made[::-1]]
    assert len(await uniform.list(None)) == 7
    assert [(await uniform.get_tuple(where)).config for where in made] == made
    assert await uniform.get_tuple(config("thread", "sub")) is None
    await uniform.copy_thread("healthy", "copy")
    await uniform.delete_thread("thread")
    await uniform.flush(timeout=2)
    assert await uniform.list(config()) == []


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
async def test_prune_ends_while_a_thread_is_written_continuously(tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    made = await written(uniform)
    stop = threading.Event()

    def write(task: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            uniform.saver.put_writes(made[-1], [("n", number)], f"{task}-{number % 20}")

    writers = [threading.Thread(target=write, args=(f"task{one}",)) for one in range(2)]
    for writer in writers:
        writer.start()
    try:
        await asyncio.wait_for(asyncio.to_thread(uniform.saver.prune, ["thread"]), 30)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    await drained(uniform)
    assert plain(await uniform.get_tuple(config())) == plain(await (await tiers.cold_uniform()).get_tuple(config()))


async def test_a_filled_thread_is_writable_while_cold_is_down(tiers: Tiers) -> None:
    """That includes pending writes before their checkpoint, as with durability="async"."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND)
    made = await written(uniform)
    await only_in_cold(tiers, uniform)
    await uniform.get_tuple(config())
    child = new()
    flaky.fail = {"get_tuple", "put", "put_writes", "list"}
    await uniform.put_writes(config(checkpoint_id=child["id"]), [("n", [1])], "task")
    await uniform.put(made[-1], child, {}, VERSIONS)
    found = await uniform.get_tuple(config())
    assert (found.checkpoint["id"], found.pending_writes) == (child["id"], [("task", "n", [1])])
    flaky.fail = set()
    await drained(uniform)
    assert plain(await (await tiers.cold_uniform()).get_tuple(config())) == plain(found)


async def test_a_fork_brings_coalesced_ancestors_to_cold(tiers: Tiers) -> None:
    """A `DeltaChannel` is rebuilt from their writes. LangGraph notes in the metadata that it needs them."""
    uniform, cold = await tiers.uniform(**LATEST), await tiers.cold_uniform()
    await uniform.get_tuple(config())
    where, made = config(), []
    for number in range(1, 5):
        one = checkpoint({"log": ["snapshot"]} if number == 4 else {}, {"log": f"{number:032}.1"})
        needs = {"counters_since_delta_snapshot": {"log": (number, number)}} if number < 4 else {}
        where = await uniform.put(where, one, {"step": number, **needs}, one["channel_versions"])
        await uniform.put_writes(where, [("log", [number])], "task")
        made.append(where)
    await drained(uniform)
    assert len(await cold.list(config())) == 1
    fork = checkpoint({}, {"log": f"{9:032}.1"})
    needs = {"counters_since_delta_snapshot": {"log": (3, 3)}}
    query: Any = {"config": await uniform.put(made[1], fork, needs, fork["channel_versions"]), "channels": ["log"]}
    before = await uniform.get_delta_channel_history(**query)
    await only_in_cold(tiers, uniform)
    assert await uniform.get_delta_channel_history(**query) == before
    assert [write[2] for write in before["log"]["writes"]] == [[1], [2]]


async def test_writers_waiting_for_capacity_hold_no_executor_thread(target_name: str) -> None:
    saver, _ = plain_saver(cold=Switched(), flusher=False, max_backlog=5, backlog_timeout=60)
    made = [put(saver, f"t{number}") for number in range(5)]
    waiting = [asyncio.create_task(saver.aput_writes(made[0], [("n", 1)], f"task{one}")) for one in range(60)]
    await asyncio.sleep(0.1)
    assert await asyncio.wait_for(saver.aget_tuple(made[1]), 30) is not None
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
