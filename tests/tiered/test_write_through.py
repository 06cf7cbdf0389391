"""Write-through: a saver on Redis before Postgres."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
import redis
import valkey.asyncio
from tests.support.factories import checkpoint, config, ids
from histories import Accident, History, Killed, Process
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command as Resume
from langgraph.types import interrupt
from tests.support.seeds import seeds_and_slow, targets
from tests.support.servers import Server
from tests.support.tiering import BEHIND, FlakySaver, Tiers, between, named, plain, wait_for_the_dead, written
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import elsewhere

from redis_saver import AsyncTieredSaver, ThreadDamaged, TieredSaver
from redis_saver._tiered import scripts
from redis_saver._common.names import Keyspace
from redis_saver._tiered import context

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async")


async def test_conformance_is_full(tiers: Tiers) -> None:
    @checkpointer_test(name=tiers.target.prefix)
    async def factory() -> AsyncGenerator[Any, None]:
        yield await tiers.saver()

    report = await validate(factory)
    failures = [failure for result in report.results.values() for failure in result.failures or []]
    assert not failures
    assert {name for name, result in report.results.items() if result.passed} == {cap.value for cap in ALL_CAPABILITIES}
    assert report.conformance_level() == "FULL"


@pytest.mark.also_on()
@pytest.mark.parametrize("mode", [{}, BEHIND], ids=["through", "behind"])
async def test_hot_may_have_a_client_of_valkey_py(tiers: Tiers, mode: dict[str, Any]) -> None:
    package: Any = valkey.asyncio if tiers.native_async else valkey
    client = package.Valkey.from_url(tiers.target.url)
    uniform = await tiers.uniform(hot={"client": client}, **mode)
    made = await written(uniform)
    assert await uniform.flush(timeout=30) == 0
    tiers.evict()
    before = plain(await uniform.get_tuple(config()))
    assert before == plain(await (await tiers.uniform()).get_tuple(config())) and len(await uniform.list(config())) == 3
    down = {"client": package.Valkey(port=1)}
    assert plain(await (await tiers.uniform(hot=down, on_hot_error="bypass")).get_tuple(config())) == before
    with pytest.raises(valkey.ConnectionError):
        await (await tiers.uniform(hot=down, **mode)).put_writes(made[-1], [("n", 1)], "task")
    await uniform.delete_thread("thread")
    assert await uniform.flush(timeout=30) == 0
    assert await (await tiers.cold_uniform()).get_tuple(config()) is None
    await client.aclose() if tiers.native_async else client.close()


@pytest.mark.also_on()
async def test_without_a_namespace_a_config_names_the_root_in_cold_too(tiers: Tiers) -> None:
    """LangGraph's savers raise KeyError for such a config."""
    uniform = await tiers.uniform()
    where = await uniform.put(config(ns=None), checkpoint({"n": 1}), {}, {"n": "1"})
    await uniform.put_writes(config(ns=None, checkpoint_id=where["configurable"]["checkpoint_id"]), [("n", 2)], "task")
    tiers.evict()
    assert (await uniform.get_tuple(config(ns=None))).pending_writes == [("task", "n", 2)]


@pytest.mark.parametrize("lost", [("index", "data"), ("index",), ("data",)])
async def test_a_read_restores_an_evicted_thread(tiers: Tiers, lost: tuple[str, ...]) -> None:
    uniform = await tiers.uniform()
    made = await written(uniform)
    before = plain(await uniform.get_tuple(config()))
    assert uniform.saver.stats().tiers.hits == 1
    tiers.evict(*lost)
    other = await tiers.uniform()
    for uniform in (other, other, await tiers.uniform()):
        assert plain(await uniform.get_tuple(config())) == before
    assert (
        other.saver.stats().tiers.misses,
        other.saver.stats().tiers.hits,
        other.saver.stats().tiers.rehydrations,
    ) == (1, 1, 1)
    for old in made[:2]:
        found = await other.get_tuple(old)
        assert found.config == old
        assert plain(await other.get_tuple(old)) == plain(found)
    assert other.saver.stats().tiers.rehydrations == 3
    assert plain(await other.get_tuple(config())) == before
    assert ids(await other.list(config())) == [one["configurable"]["checkpoint_id"] for one in made[::-1]]
    assert await other.get_tuple(config("other")) is None
    assert await other.get_tuple(config("thread", "sub")) is None


async def test_writes_after_a_fill_are_ordered_by_path(tiers: Tiers) -> None:
    """The paths of the filled writes are no longer known."""
    uniform, control = await tiers.uniform(), tiers.target.uniform(prefix=tiers.target.prefix + "control")
    for each in (uniform, control):
        made = await written(each)
    tiers.evict()
    await uniform.get_tuple(config())
    for each in (uniform, control):
        last = (await each.get_tuple(config())).config
        await each.put_writes(last, [("n", [9])], "task-d", "path-00")
    wanted = (await control.get_tuple(config())).pending_writes
    assert (await uniform.get_tuple(config())).pending_writes == wanted
    assert (await uniform.get_tuple(config())).pending_writes == wanted


async def test_a_write_that_cold_refuses_changes_nothing(tiers: Tiers) -> None:
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap())
    made = await written(uniform)
    before = plain(await uniform.get_tuple(config()))
    flaky.fail = {"put", "put_writes"}
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    with pytest.raises(psycopg.OperationalError):
        await uniform.put(made[-1], new, {}, new["channel_versions"])
    with pytest.raises(psycopg.OperationalError):
        await uniform.put_writes(made[-1], [("n", [1])], "task-z")
    flaky.fail = set()
    for each in (uniform, await tiers.uniform()):
        assert plain(await each.get_tuple(config())) == before
    assert uniform.saver.stats().tiers.intents
    flaky.fail = {"get_tuple"}
    with pytest.raises(psycopg.OperationalError):
        await uniform.get_tuple(config("never there"))


async def test_bypass_goes_on_without_hot(tiers: Tiers) -> None:
    """After that, all processes read cold before they trust hot again."""
    uniform = await tiers.uniform(on_hot_error="bypass")
    made = await written(uniform)
    before = plain(await uniform.get_tuple(config()))
    works = tiers.fails(uniform)
    assert plain(await uniform.get_tuple(config())) == before
    assert len(await uniform.list(config())) == 3
    new = checkpoint({"n": [9], "whole": 1}, {"n": f"{9:032}.1", "whole": f"{1:032}.1"})
    with pytest.raises(redis.ConnectionError):  # other processes would not learn of it
        await uniform.put(made[-1], new, {"step": 3}, {"n": f"{9:032}.1"})
    works()
    for each in (uniform, await tiers.cold_uniform()):
        assert plain(await each.get_tuple(config())) == before
    works = tiers.fails(uniform, scripts.PUT_THROUGH)
    stored = await uniform.put(made[-1], new, {"step": 3}, {"n": f"{9:032}.1"})
    works()
    for each in (uniform, await tiers.uniform(), uniform, uniform):
        found = await each.get_tuple(config())
        assert (found.config, found.checkpoint["channel_values"]["n"]) == (stored, [9])
    assert uniform.saver.stats().tiers.bypasses == 3


async def test_a_half_evicted_thread_that_cold_lacks_is_damaged(tiers: Tiers) -> None:
    """The thread is lost, which is an error instead of an empty thread."""
    await written(tiers.target.uniform())
    uniform = await tiers.uniform(on_hot_error="bypass")
    tiers.evict("index")
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    for act in (
        uniform.get_tuple(config()),
        uniform.put(config(), new, {}, new["channel_versions"]),
        uniform.get_tuple(config()),
    ):
        with pytest.raises(ThreadDamaged):
            await act
    await uniform.delete_thread("thread")
    assert await uniform.get_tuple(config()) is None


async def test_a_hot_failure_is_raised_by_default(tiers: Tiers) -> None:
    """If a write fails at its start in hot, cold does not get it either."""
    uniform = await tiers.uniform()
    made = await written(uniform)
    works = tiers.fails(uniform)
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    for act in (
        uniform.put(made[-1], new, {}, new["channel_versions"]),
        uniform.get_tuple(config()),
        uniform.list(config()),
    ):
        with pytest.raises(redis.ConnectionError):
            await act
    works()
    assert len(await uniform.list(config())) == 3
    works = tiers.fails(uniform, scripts.PUT_THROUGH)
    with pytest.raises(redis.ConnectionError):
        await uniform.put(made[-1], new, {}, new["channel_versions"])
    works()
    for each in (await tiers.uniform(), uniform):  # cold has it
        assert (await each.get_tuple(config())).checkpoint["id"] == new["id"]


async def test_readers_trust_cold_after_a_writer_dies(tiers: Tiers, monkeypatch: Any) -> None:
    uniform = await tiers.uniform()
    made = await written(uniform)
    works = tiers.fails(uniform, scripts.PUT_THROUGH)
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    with pytest.raises(redis.ConnectionError):
        await uniform.put(made[-1], new, {}, new["channel_versions"])
    works()
    other = await tiers.uniform()
    for _ in range(2):
        assert (await other.get_tuple(config())).checkpoint["id"] == new["id"]
    assert (other.saver.stats().tiers.intents, other.saver.stats().tiers.rehydrations) == (2, 0)
    monkeypatch.setattr(context, "WRITER_GONE", 0)
    for _ in range(3):
        assert (await other.get_tuple(config())).checkpoint["id"] == new["id"]
    assert (
        other.saver.stats().tiers.intents,
        other.saver.stats().tiers.rehydrations,
        other.saver.stats().tiers.hits,
    ) == (3, 1, 2)


async def test_a_new_namespace_keeps_the_others_complete_in_hot(tiers: Tiers) -> None:
    """Parallel subgraphs create namespaces without reading them first."""
    uniform = await tiers.uniform()
    made = await written(uniform)
    for ns in ("one:1", "two:2"):
        new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
        await uniform.put(config(ns=ns), new, {}, new["channel_versions"])
    before = uniform.saver.stats().tiers
    assert (await uniform.get_tuple(config())).config == made[-1]
    assert (uniform.saver.stats().tiers.hits, uniform.saver.stats().tiers.misses) == (before.hits + 1, before.misses)


async def test_a_run_writes_all_values_after_an_interrupted_deletion(tiers: Tiers) -> None:
    """Cold has nothing of the thread any more, and hot did not learn of that."""
    uniform, other, cold = await tiers.uniform(), await tiers.uniform(), await tiers.cold_uniform()
    before = (await uniform.get_tuple((await written(uniform))[-1])).checkpoint
    works = tiers.fails(other, scripts.ERASE)
    with pytest.raises(redis.ConnectionError):
        await other.delete_thread("thread")
    works()
    versions = {**before["channel_versions"], "n": f"{9:032}.1"}
    new = checkpoint({**before["channel_values"], "n": [9]}, versions)
    stored = await uniform.put(config(checkpoint_id=before["id"]), new, {}, {"n": versions["n"]})
    for each in (uniform, other, cold):
        found = await each.get_tuple(config())
        assert (found.config, found.checkpoint["channel_values"]) == (stored, new["channel_values"])


async def test_a_half_evicted_thread_can_restart_after_an_interrupted_deletion(tiers: Tiers) -> None:
    """A mark in hot says that cold has deleted it, so the thread is not damaged."""
    uniform = await tiers.uniform()
    await written(uniform)
    process = Process(uniform, tiers)
    process.meets(Accident("kill", 3, is_late=False))
    with pytest.raises(Killed):
        await uniform.delete_thread("thread")
    tiers.evict("data")
    other = await tiers.uniform()
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    stored = await other.put(config(), new, {}, new["channel_versions"])
    assert [one.config for one in await other.list(config())] == [stored]
    assert (await other.get_tuple(config())).config == stored


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("at", range(2, 6))
async def test_a_repair_does_not_restore_a_thread_deleted_meanwhile(tiers: Tiers, at: int) -> None:
    uniform, other = await tiers.uniform(), await tiers.uniform()
    await written(uniform)
    tiers.evict("data")
    process = Process(uniform, tiers)
    process.meets(Accident("meanwhile", at, is_late=False), lambda: other.delete_thread("thread"))
    await uniform.get_tuple(config())
    assert process.has_struck
    assert await uniform.get_tuple(config()) is None


async def test_many_concurrent_misses_read_cold_once(tiers: Tiers) -> None:
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap())
    await written(uniform)
    tiers.evict()
    flaky.calls.clear()
    if tiers.native_async:
        found = await asyncio.gather(*(uniform.get_tuple(config()) for _ in range(100)))
    else:
        with ThreadPoolExecutor(30) as pool:
            found = list(pool.map(lambda _: uniform.saver.get_tuple(config()), range(100)))
    assert all(plain(one) == plain(found[0]) for one in found)
    assert len({id(one.checkpoint["channel_values"]["whole"]) for one in found}) == 100
    assert flaky.calls.count("get_tuple") == 1


@pytest.mark.parametrize("what", ["put", "put_writes", "delete", "prune", "copy"])
@pytest.mark.by_turns
async def test_a_fill_never_replaces_a_concurrent_change(tiers: Tiers, what: str) -> None:
    flaky = FlakySaver(await tiers.cold())
    uniform, other = await tiers.uniform(cold=flaky.wrap()), await tiers.uniform()
    made = await written(uniform)
    await written(other, "another")
    tiers.evict()
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    acts = {
        "put": lambda: other.put(made[-1], new, {}, new["channel_versions"]),
        "put_writes": lambda: other.put_writes(made[-1], [(INTERRUPT, ["newer"])], "task-c", "path-0"),
        "delete": lambda: other.delete_thread("thread"),
        "prune": lambda: other.prune(["thread"]),
        "copy": lambda: other.copy_thread("another", "thread"),
    }
    if tiers.native_async:
        flaky.after["get_tuple"] = acts[what]
    else:
        flaky.after["get_tuple"] = lambda: elsewhere(acts[what])
    await uniform.get_tuple(config())  # reads what was there before
    cold = await tiers.cold_uniform()
    for each in (uniform, await tiers.uniform(), uniform):
        assert plain(await each.get_tuple(config())) == plain(await cold.get_tuple(config()))
    if what == "delete":
        assert [key for key in tiers.target.keys() if b"{thread}" in key and not key.endswith(b":lease")] == []


@pytest.mark.parametrize("where", [scripts.PUT_THROUGH, "before cold"], ids=["before hot", "before cold"])
@pytest.mark.parametrize(
    "what",
    [
        "delete",
        "prune",
        "runs",
        "same write",
        "other write",
        "list",
        "put of an old id",
        "put of a newer id",
        "evicted intents",
    ],
)
@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("act", ["put", "first put", "put_writes", "put on lost", "put_writes on lost"])
async def test_two_concurrent_operations_leave_hot_as_cold(tiers: Tiers, act: str, what: str, where: Any) -> None:
    """After a write with a concurrent operation, hot has only what cold has, however both end."""
    uniform, other, cold = await tiers.uniform(), await tiers.uniform(), await tiers.cold_uniform()
    made = [] if act == "first put" else await written(uniform)
    if not made:
        await uniform.get_tuple(config())
    last = made[-1] if made else config()
    if act.endswith("lost"):
        tiers.evict()
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1", **({"whole": f"{1:032}.1"} if made else {})})
    write = ("task-c", "path-0")
    target = last if made else config(checkpoint_id=new["id"])
    old = checkpoint({"n": [0]}, {"n": f"{5:032}.1"}, checkpoint_id="1ef00000-0000-6000-8000-000000000000")

    newer = checkpoint({"n": [1]}, {"n": f"{11:032}.1"})

    async def evicted_intents() -> None:
        tiers.target.raw.delete(Keyspace(tiers.target.prefix).tier_keys("thread").intents)
        await other.get_tuple(config())

    happens = {
        "delete": lambda: other.delete_thread("thread"),
        "prune": lambda: other.prune(["thread"]),
        "runs": lambda: other.delete_for_runs(["run"]),
        "same write": lambda: other.put_writes(target, [(INTERRUPT, ["other"])], *write),
        "other write": lambda: other.put_writes(target, [("n", ["other"])], "task-z", "path-9"),
        "list": lambda: other.list(config()),
        "put of an old id": lambda: other.put(config(), old, {}, old["channel_versions"]),
        "put of a newer id": lambda: other.put(last, newer, {}, newer["channel_versions"]),
        "evicted intents": evicted_intents,
    }[what]
    script = where
    if where == "before cold":
        flaky = FlakySaver(await tiers.cold())
        uniform = await tiers.uniform(cold=flaky.wrap())
        await uniform.get_tuple(config())
        if act.endswith("lost"):
            tiers.evict()
        flaky.before[act.split()[-1] if act == "first put" else act.split()[0]] = (
            happens if tiers.native_async else (lambda: elsewhere(happens))
        )
    else:
        script = scripts.PUT_WRITES_THROUGH if where is scripts.PUT_THROUGH and act.startswith("put_writes") else where
        between(uniform, script, happens)
    if act.startswith("put_writes"):
        await uniform.put_writes(last, [(INTERRUPT, ["mine"])], *write)
    else:
        await uniform.put(last, new, {"run_id": "run"}, {"n": f"{9:032}.1"})
    for each in (await tiers.uniform(), uniform):
        for place in (
            *made,
            config(checkpoint_id=new["id"]),
            config(),
            config(checkpoint_id=old["id"]),
            config(checkpoint_id=newer["id"]),
            config(),
        ):
            assert plain(await each.get_tuple(place)) == plain(await cold.get_tuple(place)), place


async def test_a_write_enrolls_a_thread_that_only_hot_has(tiers: Tiers) -> None:
    """The thread is older than the tiers. Cold gets all of it before anything new."""
    alone = tiers.target.uniform()
    made = await written(alone)
    uniform, cold = await tiers.uniform(), await tiers.cold_uniform()
    assert plain(await uniform.get_tuple(config())) == plain(await alone.get_tuple(config()))
    assert await cold.get_tuple(config()) is None
    new = checkpoint({"n": [9], "whole": {"a": ["x" * 3000, "y"]}}, {"n": f"{9:032}.1", "whole": f"{1:032}.1"})
    stored = await uniform.put(made[-1], new, {"step": 3}, {"n": f"{9:032}.1"})
    listed = [plain(one) for one in await cold.list(config())]
    assert listed == [plain(one) for one in await alone.list(config())]
    assert len(listed) == 4
    tiers.evict()
    found = await uniform.get_tuple(config())
    assert found.config == stored
    assert found.checkpoint["channel_values"] == new["channel_values"]
    assert uniform.saver.stats().tiers.enrolled == 1


async def test_a_failed_enrolling_keeps_the_thread_in_hot(tiers: Tiers, monkeypatch: Any) -> None:
    """Readers trust hot until cold has the whole thread, and it does not expire before."""
    made = await written(tiers.target.uniform(ttl=timedelta(hours=1)))
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap())
    before = plain(await uniform.get_tuple(config()))
    flaky.fail = {"put_writes"}
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    with pytest.raises(psycopg.OperationalError):
        await uniform.put(made[-1], new, {}, new["channel_versions"])
    monkeypatch.setattr(context, "WRITER_GONE", 0)
    other = await tiers.uniform()
    assert plain(await other.get_tuple(config())) == before
    assert len(await other.list(config())) == 3
    keys = Keyspace(tiers.target.prefix).tier_keys("thread")
    assert [tiers.target.raw.pttl(key) for key in (keys.index_key, keys.data_key, keys.dirty)] == [-1] * 3
    assert await other.flush() == 0
    assert 0 < tiers.target.raw.pttl(keys.index_key) <= 3_600_000
    tiers.evict()
    assert plain(await other.get_tuple(config())) == before


async def test_list_shows_threads_of_both_tiers(tiers: Tiers) -> None:
    await written(tiers.target.uniform(), "before")
    uniform = await tiers.uniform()
    await written(uniform, "thread")
    tiers.evict()
    found = await uniform.list(None)
    assert {one.config["configurable"]["thread_id"] for one in found} == {"before", "thread"}
    assert len(found) == 6


async def test_the_first_write_to_cold_has_all_channels(tiers: Tiers) -> None:
    """The thread expired in hot and was never in cold."""
    alone = tiers.target.uniform()
    made = await written(alone)
    tiers.evict()
    uniform = await tiers.uniform()
    new = checkpoint({"n": [9], "whole": {"a": 1}}, {"n": f"{9:032}.1", "whole": f"{1:032}.1"})
    await uniform.put(made[-1], new, {"step": 3}, {"n": f"{9:032}.1"})
    for each in (uniform, await tiers.cold_uniform()):
        assert (await each.get_tuple(config())).checkpoint["channel_values"] == new["channel_values"]


async def test_verify_finds_a_write_that_went_to_cold_directly(tiers: Tiers) -> None:
    uniform, cold = await tiers.uniform(), await tiers.cold_uniform()
    made = await written(uniform)
    for mode in ("never", "on_open"):
        opened = await tiers.uniform(verify=mode)
        await opened.get_tuple(config())
        new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
        await cold.put(made[-1], new, {}, new["channel_versions"])
        assert (await opened.get_tuple(config())).checkpoint["id"] != new["id"]
        fresh = await tiers.uniform(verify="on_open")
        assert (await fresh.get_tuple(config())).checkpoint["id"] == new["id"]


async def test_deletions_leave_no_key_but_leases(tiers: Tiers) -> None:
    uniform, cold = await tiers.uniform(), await tiers.cold_uniform()
    await written(uniform)
    tiers.evict()
    await uniform.get_tuple(config())
    await uniform.copy_thread("thread", "copy")
    assert [plain(one)[1:] for one in await uniform.list(config("copy"))] != []
    await uniform.get_tuple(config("copy"))
    for thread in ("thread", "copy", "never there"):
        await uniform.delete_thread(thread)
        assert await uniform.get_tuple(config(thread)) is None
        assert await cold.get_tuple(config(thread)) is None
    left = tiers.target.keys()
    assert all(key.endswith(b":lease") and 0 < tiers.target.raw.pttl(key) <= context.FILL_LEASE for key in left)


async def test_all_keys_expire_with_their_thread(tiers: Tiers) -> None:
    """Write intents stay longer, as they have to."""
    uniform = await tiers.uniform(hot={"ttl": timedelta(hours=1)})
    made = await written(uniform)
    tiers.evict()
    await uniform.get_tuple(config())
    for key in tiers.target.keys():
        assert 0 < tiers.target.raw.pttl(key) <= 3_600_000
    tiers.fails(uniform, scripts.PUT_THROUGH)
    new = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
    with pytest.raises(redis.ConnectionError):
        await uniform.put(made[-1], new, {}, new["channel_versions"])
    intents = [key for key in tiers.target.keys() if key.endswith(b":intents")]
    assert len(intents) == 1
    assert 3_600_000 < tiers.target.raw.pttl(intents[0]) <= 3_600_000 + 30 * 24 * 3_600_000


async def test_invalid_settings_are_refused(tiers: Tiers) -> None:
    cold = await tiers.cold()
    hot = tiers.target.uniform().saver
    kind = AsyncTieredSaver if tiers.native_async else TieredSaver
    for error, given in (
        (TypeError, (cold, cold)),
        (TypeError, (hot, hot)),
        (TypeError, (hot, None)),
    ):
        with pytest.raises(error):
            kind(*given)
    for name, value in (("on_hot_error", "ignore"), ("verify", True), ("verify", "always")):
        with pytest.raises(ValueError, match=name):
            kind(hot, cold, **{name: value})


@pytest.mark.by_turns
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("seed", seeds_and_slow(range(6), range(6, 30)))
async def test_random_operations_and_faults_match_the_model(tiers: Tiers, seed: int) -> None:
    """Answers agree with InMemorySaver despite evictions, failures of a tier and dead processes."""
    await History(tiers, seed, [{"on_hot_error": "bypass"}, {"on_hot_error": "bypass"}, {}]).run(70)


WRITERS = """
import os, sys
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from langgraph.checkpoint.postgres import PostgresSaver
from tests.support.factories import checkpoint, config
from tests.support.uniform import encryption
from redis_saver import RedisSaver, TieredSaver

def write(redis_url, prefix, url, is_encrypted):
    pool = ConnectionPool(url, min_size=1, open=True, kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row})
    setting = encryption() if is_encrypted else None
    with RedisSaver.from_conn_string(redis_url, prefix=prefix, encryption=setting) as hot:
        saver = TieredSaver(hot, PostgresSaver(pool))
        found = saver.get_tuple(config())
        where, number = (found.config, found.checkpoint["channel_values"]["n"][0]) if found else (config(), 0)
        while True:
            number += 1
            one = checkpoint({"n": [number], "text": ["x" * 5000]}, {"n": f"{number:032}.1", "text": f"{1:032}.1"})
            where = saver.put(where, one, {"step": number}, {"n": f"{number:032}.1", **({"text": f"{1:032}.1"} if number == 1 else {})})
            saver.put_writes(where, [("n", [number])], "task")
            print(number, flush=True)

for _ in sys.stdin:
    if writer := os.fork():
        os.waitpid(writer, 0)
        print("killed", flush=True)
    else:
        print(os.getpid(), flush=True)
        write(*sys.argv[1:])
"""
"""Starts a writer per line of input. Prints its process id, the acknowledged numbers, and "killed" at its end."""


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("flavour", ["sync"])
async def test_killed_writers_lose_no_acknowledged_write(tiers: Tiers) -> None:
    """Both tiers have everything acknowledged, and hot agrees with cold after each kill."""
    chance, acknowledged = random.Random(1), [0]
    cold = await tiers.cold_uniform()
    given = tiers.target.url, tiers.target.prefix, named(tiers.url, tiers.target.prefix)
    arguments = [sys.executable, "-c", WRITERS, *given, "encrypted" if tiers.target.is_encrypted else ""]
    folder = Path(__file__).parents[2]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as writers:
        assert writers.stdin is not None and writers.stdout is not None
        for _ in range(6):
            writers.stdin.write(b"write\n")
            writers.stdin.flush()
            writer = int(writers.stdout.readline())
            for _ in range(chance.randint(1, 40)):
                acknowledged.append(int(writers.stdout.readline()))
            time.sleep(chance.random() / 100)
            os.kill(writer, signal.SIGKILL)
            acknowledged += map(int, iter(writers.stdout.readline, b"killed\n"))
            wait_for_the_dead(tiers.url, tiers.target.prefix)
            found = await (await tiers.uniform()).get_tuple(config())
            assert plain(found) == plain(await cold.get_tuple(config()))
            assert found.checkpoint["channel_values"]["n"][0] in (acknowledged[-1], acknowledged[-1] + 1)
            assert found.checkpoint["channel_values"]["text"] == ["x" * 5000]
    listed = await (await tiers.uniform()).list(config())
    numbers = {one.checkpoint["channel_values"]["n"][0]: one for one in listed}
    assert list(numbers) == sorted(numbers, reverse=True)
    assert all(numbers[number].pending_writes for number in acknowledged[1:])


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_killed_redis_that_restarts_empty_loses_nothing(database: str, flavour: str) -> None:
    server = Server()
    target = Target("own", flavour, server.url, "killed")
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            connection.execute(f"DELETE FROM {table}")
    tiers = Tiers(target, database)
    client = target.client(socket_connect_timeout=1)
    kind = AsyncTieredSaver if tiers.native_async else TieredSaver
    hot = target.uniform(client=client).saver
    uniform = Uniform(kind(hot, await tiers.cold()))
    bypassing = Uniform(kind(hot, await tiers.cold(), on_hot_error="bypass"))
    await written(uniform)
    before = plain(await uniform.get_tuple(config()))
    server.kill()
    with pytest.raises((redis.ConnectionError, OSError)):
        await uniform.get_tuple(config())
    assert plain(await bypassing.get_tuple(config())) == before
    server.start()
    for _ in range(2):
        assert plain(await uniform.get_tuple(config())) == before
    assert uniform.saver.stats().tiers.rehydrations == 1
    await tiers.close()
    await target.close()
    server.stop()


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="interrupt() in asyncio tasks needs Python 3.11, says LangGraph")
async def test_a_graph_resumes_after_evictions_in_hot(tiers: Tiers) -> None:
    def ask(_: State) -> dict[str, Any]:
        return {"messages": [("ai", f"you said {interrupt('sure?')}")]}

    builder = StateGraph(State).add_node("think", lambda _: {"messages": [("ai", "hm")]}).add_node("ask", ask)
    builder.add_edge(START, "think").add_edge("think", "ask")

    async def run(given: Any) -> dict[str, Any]:
        graph = builder.compile(checkpointer=await tiers.saver())
        if tiers.native_async:
            return await graph.ainvoke(given, config(), durability="sync")
        return await asyncio.to_thread(graph.invoke, given, config(), durability="sync")

    for turn in range(3):
        assert "__interrupt__" in await run({"messages": [("human", f"question {turn}")]})
        tiers.evict(*(["index", "data"], ["index"], ["data"])[turn])
        state = await run(Resume(resume=f"yes {turn}"))
        assert [one.content for one in state["messages"][-3:]] == [f"question {turn}", "hm", f"you said yes {turn}"]
        tiers.evict()
    assert len(state["messages"]) == 9
    saver = Uniform(await tiers.saver())
    assert len(await saver.list(config())) == len(await (await tiers.cold_uniform()).list(config())) > 9


async def test_prune_is_refused_if_cold_lacks_it(tiers: Tiers) -> None:
    """The error comes before hot drops anything."""

    class Plain(InMemorySaver):
        prune = BaseCheckpointSaver.prune
        aprune = BaseCheckpointSaver.aprune

    uniform = await tiers.uniform(cold=Plain())
    await written(uniform)
    with pytest.raises(NotImplementedError):
        await uniform.prune(["thread"])
    await uniform.get_tuple(config())
    assert uniform.saver.stats().tiers.hits == 1
