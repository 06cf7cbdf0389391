"""Write-through: a saver on Redis before Postgres."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import valkey.asyncio
from histories import Accident, History, Killed, Process
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver import AsyncTieredSaver, TieredSaver
from redis_saver._tiered import context, scripts
from redis_saver._tiered.requests import ColdCall
from redis_saver.encryption import Encryption
from tests.support.factories import checkpoint, config, ids
from tests.support.seeds import seeds_and_slow, targets
from tests.support.servers import Server
from tests.support.tenants import Counting
from tests.support.tiering import BEHIND, VERSIONS, FlakySaver, Tiers, between, both_modes, drained, id_of, only_in_cold
from tests.support.tiering import keys_of, named, new, plain, put_new, wait_for_the_dead, written
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import elsewhere, fails_on

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async")


@pytest.mark.also_on()
@both_modes
async def test_hot_may_have_a_client_of_valkey_py(tiers: Tiers, mode: dict[str, Any]) -> None:
    package: Any = valkey.asyncio if tiers.native_async else valkey
    client = package.Valkey.from_url(tiers.target.url)
    uniform = await tiers.uniform(hot={"client": client}, **mode)
    made = await written(uniform)
    await only_in_cold(tiers, uniform)
    before = plain(await uniform.get_tuple(config()))
    assert before == plain(await (await tiers.uniform()).get_tuple(config())) and len(await uniform.list(config())) == 3
    down = {"client": package.Valkey(port=1)}
    assert plain(await (await tiers.uniform(hot=down, on_hot_error="bypass")).get_tuple(config())) == before
    with pytest.raises(valkey.ConnectionError):
        await (await tiers.uniform(hot=down, **mode)).put_writes(made[-1], [("n", 1)], "task")
    await uniform.delete_thread("thread")
    await drained(uniform)
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
    for each in (other, other, await tiers.uniform()):
        assert plain(await each.get_tuple(config())) == before
    stats = other.saver.stats().tiers
    assert (stats.misses, stats.hits, stats.rehydrations) == (1, 1, 1)
    for old in made[:2]:
        found = await other.get_tuple(old)
        assert found.config == old
        assert plain(await other.get_tuple(old)) == plain(found)
    assert other.saver.stats().tiers.rehydrations == 3
    assert plain(await other.get_tuple(config())) == before
    assert ids(await other.list(config())) == [id_of(one) for one in made[::-1]]
    assert await other.get_tuple(config("other")) is None
    assert await other.get_tuple(config("thread", "sub")) is None


async def test_writes_after_a_fill_are_ordered_by_path(tiers: Tiers) -> None:
    """The paths of the filled writes are no longer known."""
    uniform, control = await tiers.uniform(), tiers.target.uniform(prefix=tiers.target.prefix + "control")
    made = {each: (await written(each))[-1] for each in (uniform, control)}
    tiers.evict()
    await uniform.get_tuple(config())
    for each, last in made.items():
        await each.put_writes(last, [("n", [9])], "task-d", "path-00")
    wanted = (await control.get_tuple(config())).pending_writes
    assert [(await uniform.get_tuple(config())).pending_writes for _ in range(2)] == [wanted] * 2


async def test_a_write_that_cold_refuses_changes_nothing(tiers: Tiers) -> None:
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap())
    made = await written(uniform)
    before = plain(await uniform.get_tuple(config()))
    flaky.fail = {"put", "put_writes"}
    for write in (put_new(uniform, made[-1]), uniform.put_writes(made[-1], [("n", [1])], "task-z")):
        with pytest.raises(psycopg.OperationalError):
            await write
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
    given = made[-1], checkpoint({"n": [9], "whole": 1}, {**VERSIONS, "whole": f"{1:032}.1"}), {"step": 3}, VERSIONS
    with pytest.raises(redis.ConnectionError):  # other processes would not learn of it
        await uniform.put(*given)
    works()
    for each in (uniform, await tiers.cold_uniform()):
        assert plain(await each.get_tuple(config())) == before
    works = tiers.fails(uniform, scripts.PUT_THROUGH)
    stored = await uniform.put(*given)
    works()
    for each in (uniform, await tiers.uniform(), uniform, uniform):
        found = await each.get_tuple(config())
        assert (found.config, found.checkpoint["channel_values"]["n"]) == (stored, [9])
    assert uniform.saver.stats().tiers.bypasses == 3


async def test_a_hot_failure_is_raised_by_default(tiers: Tiers) -> None:
    """If a write fails at its start in hot, cold does not get it either."""
    uniform = await tiers.uniform()
    made = await written(uniform)
    works = tiers.fails(uniform)
    for act in (put_new(uniform, made[-1]), uniform.get_tuple(config()), uniform.list(config())):
        with pytest.raises(redis.ConnectionError):
            await act
    works()
    assert len(await uniform.list(config())) == 3
    child = await put_in_cold(tiers, uniform, made[-1])
    for each in (await tiers.uniform(), uniform):  # cold has it
        assert (await each.get_tuple(config())).checkpoint["id"] == child


async def put_in_cold(tiers: Tiers, uniform: Uniform, parent: Any) -> str:
    """Put a checkpoint that reaches cold, while hot fails. Return its id."""
    works, child = tiers.fails(uniform, scripts.PUT_THROUGH), new()
    with pytest.raises(redis.ConnectionError):
        await uniform.put(parent, child, {}, VERSIONS)
    works()
    return str(child["id"])


async def test_readers_trust_cold_after_a_writer_dies(tiers: Tiers, monkeypatch: Any) -> None:
    uniform = await tiers.uniform()
    child = await put_in_cold(tiers, uniform, (await written(uniform))[-1])
    other = await tiers.uniform()
    for reads, gone, expected in ((2, context.WRITER_GONE, (2, 0, 0)), (3, 0, (3, 1, 2))):
        monkeypatch.setattr(context, "WRITER_GONE", gone)
        for _ in range(reads):
            assert (await other.get_tuple(config())).checkpoint["id"] == child
        stats = other.saver.stats().tiers
        assert (stats.intents, stats.rehydrations, stats.hits) == expected


async def test_a_new_namespace_keeps_the_others_complete_in_hot(tiers: Tiers) -> None:
    """Parallel subgraphs create namespaces without reading them first."""
    uniform = await tiers.uniform()
    made = await written(uniform)
    for ns in ("one:1", "two:2"):
        await put_new(uniform, config(ns=ns))
    before = uniform.saver.stats().tiers
    assert (await uniform.get_tuple(config())).config == made[-1]
    assert (uniform.saver.stats().tiers.hits, uniform.saver.stats().tiers.misses) == (before.hits + 1, before.misses)


@pytest.mark.parametrize("how", ["expired in hot", "deleted in cold"])
async def test_a_put_writes_all_values_if_cold_has_none(tiers: Tiers, how: str) -> None:
    """The thread was never in cold, or hot did not learn that cold has deleted it."""
    uniform, other, cold = await tiers.uniform(), await tiers.uniform(), await tiers.cold_uniform()
    if how == "expired in hot":
        made = await written(tiers.target.uniform())
        tiers.evict()
    else:
        made = await written(uniform)
        works = tiers.fails(other, scripts.ERASE)
        with pytest.raises(redis.ConnectionError):
            await other.delete_thread("thread")
        works()
    child = checkpoint({"n": [9], "whole": {"a": ["x" * 3000, "y"]}}, {**VERSIONS, "whole": f"{1:032}.1"})
    stored = await uniform.put(made[-1], child, {"step": 3}, VERSIONS)
    for each in (uniform, other, cold):
        found = await each.get_tuple(config())
        assert (found.config, found.checkpoint["channel_values"]) == (stored, child["channel_values"])


async def test_a_half_evicted_thread_can_restart_after_an_interrupted_deletion(tiers: Tiers) -> None:
    """A mark in hot says that cold has deleted it, so the thread is not damaged."""
    uniform, other = await tiers.uniform(), await tiers.uniform()
    await written(uniform)
    process = Process(uniform, tiers)
    process.meets(Accident("kill", 3, is_late=False))
    with pytest.raises(Killed):
        await uniform.delete_thread("thread")
    tiers.evict("data")
    stored = await put_new(other)
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


@pytest.mark.encrypted_too
async def test_many_concurrent_misses_read_cold_once(tiers: Tiers) -> None:
    """With encryption, they also ask the provider of keys once."""
    flaky, keys = FlakySaver(await tiers.cold()), Counting()
    hot = {"encryption": Encryption(keys)} if tiers.target.is_encrypted else {}
    await written(await tiers.uniform(hot=hot))
    tiers.evict()
    keys.asked = 0
    uniform = await tiers.uniform(cold=flaky.wrap(), hot={"encryption": Encryption(keys)} if hot else {})
    if tiers.native_async:
        found = await asyncio.gather(*(uniform.get_tuple(config()) for _ in range(100)))
    else:
        with ThreadPoolExecutor(30) as pool:
            found = list(pool.map(lambda _: uniform.saver.get_tuple(config()), range(100)))
    assert all(plain(one) == plain(found[0]) for one in found)
    assert len({id(one.checkpoint["channel_values"]["whole"]) for one in found}) == 100
    assert flaky.calls.count("get_tuple") == 1
    assert keys.asked == bool(hot)


@pytest.mark.parametrize("what", ["put", "put_writes", "delete", "prune", "copy"])
@pytest.mark.by_turns
async def test_a_fill_never_replaces_a_concurrent_change(tiers: Tiers, what: str) -> None:
    flaky, cold = FlakySaver(await tiers.cold()), await tiers.cold_uniform()
    uniform, other = await tiers.uniform(cold=flaky.wrap()), await tiers.uniform()
    made = await written(uniform)
    await written(other, "another")
    tiers.evict()
    act = {
        "put": lambda: put_new(other, made[-1]),
        "put_writes": lambda: other.put_writes(made[-1], [(INTERRUPT, ["newer"])], "task-c", "path-0"),
        "delete": lambda: other.delete_thread("thread"),
        "prune": lambda: other.prune(["thread"]),
        "copy": lambda: other.copy_thread("another", "thread"),
    }[what]
    flaky.after["get_tuple"] = act if tiers.native_async else lambda: elsewhere(act)
    await uniform.get_tuple(config())  # reads what was there before
    for each in (uniform, await tiers.uniform(), uniform):
        assert plain(await each.get_tuple(config())) == plain(await cold.get_tuple(config()))
    if what == "delete":
        assert [key for key in tiers.target.keys() if b"{thread}" in key and not key.endswith(b":lease")] == []


CONCURRENT = ["delete", "prune", "runs", "same write", "other write", "list", "put of an old id", "put of a newer id"]


@pytest.mark.parametrize("where", ["before hot", "before cold"])
@pytest.mark.parametrize("what", [*CONCURRENT, "evicted intents"])
@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("act", ["put", "first put", "put_writes", "put on lost", "put_writes on lost"])
async def test_two_concurrent_operations_leave_hot_as_cold(tiers: Tiers, act: str, what: str, where: str) -> None:
    """After a write with a concurrent operation, hot has only what cold has, however both end."""
    uniform, other, cold = await tiers.uniform(), await tiers.uniform(), await tiers.cold_uniform()
    made = [] if act == "first put" else await written(uniform)
    last, lost, method = made[-1] if made else config(), act.endswith("lost"), act.replace("first ", "").split()[0]
    if not made:
        await uniform.get_tuple(config())
    child = checkpoint({"n": [9]}, {**VERSIONS, **({"whole": f"{1:032}.1"} if made else {})})
    target = last if made else config(checkpoint_id=child["id"])
    old = checkpoint({"n": [0]}, {"n": f"{5:032}.1"}, checkpoint_id="1ef00000-0000-6000-8000-000000000000")
    newer = new(11)

    async def evicted_intents() -> None:
        tiers.target.raw.delete(keys_of(tiers).intents)
        await other.get_tuple(config())

    happens = {
        "delete": lambda: other.delete_thread("thread"),
        "prune": lambda: other.prune(["thread"]),
        "runs": lambda: other.delete_for_runs(["run"]),
        "same write": lambda: other.put_writes(target, [(INTERRUPT, ["other"])], "task-c", "path-0"),
        "other write": lambda: other.put_writes(target, [("n", ["other"])], "task-z", "path-9"),
        "list": lambda: other.list(config()),
        "put of an old id": lambda: other.put(config(), old, {}, old["channel_versions"]),
        "put of a newer id": lambda: other.put(last, newer, {}, newer["channel_versions"]),
        "evicted intents": evicted_intents,
    }[what]
    if where == "before cold":
        flaky = FlakySaver(await tiers.cold())
        uniform = await tiers.uniform(cold=flaky.wrap())
        await uniform.get_tuple(config())
        flaky.before[method] = happens if tiers.native_async else lambda: elsewhere(happens)
    else:
        between(uniform, scripts.PUT_THROUGH if method == "put" else scripts.PUT_WRITES_THROUGH, happens)
    if lost:
        tiers.evict()
    if method == "put_writes":
        await uniform.put_writes(last, [(INTERRUPT, ["mine"])], "task-c", "path-0")
    else:
        await uniform.put(last, child, {"run_id": "run"}, VERSIONS)
    places = [
        *made,
        config(checkpoint_id=child["id"]),
        config(),
        *(config(checkpoint_id=x["id"]) for x in (old, newer)),
    ]
    expected = [(place, plain(await cold.get_tuple(place))) for place in places]
    for each in (await tiers.uniform(), uniform):
        for place, found in (*expected, expected[len(made) + 1]):  # the newest also after the others
            assert plain(await each.get_tuple(place)) == found, place


async def test_a_write_enrolls_a_thread_that_only_hot_has(tiers: Tiers) -> None:
    """The thread is older than the tiers. Cold gets all of it before anything new."""
    alone, uniform, cold = tiers.target.uniform(), await tiers.uniform(), await tiers.cold_uniform()
    made = await written(alone)
    assert plain(await uniform.get_tuple(config())) == plain(await alone.get_tuple(config()))
    assert await cold.get_tuple(config()) is None
    child = checkpoint({"n": [9], "whole": {"a": ["x" * 3000, "y"]}}, {**VERSIONS, "whole": f"{1:032}.1"})
    stored = await uniform.put(made[-1], child, {"step": 3}, VERSIONS)
    listed = [plain(one) for one in await cold.list(config())]
    assert listed == [plain(one) for one in await alone.list(config())]
    assert len(listed) == 4
    tiers.evict()
    found = await uniform.get_tuple(config())
    assert (found.config, found.checkpoint["channel_values"]) == (stored, child["channel_values"])
    assert uniform.saver.stats().tiers.enrolled == 1


async def test_a_failed_enrolling_keeps_the_thread_in_hot(tiers: Tiers, monkeypatch: Any) -> None:
    """Readers trust hot until cold has the whole thread, and it does not expire before."""
    made = await written(tiers.target.uniform(ttl=timedelta(hours=1)))
    flaky, keys = FlakySaver(await tiers.cold()), keys_of(tiers)
    uniform = await tiers.uniform(cold=flaky.wrap())
    before = plain(await uniform.get_tuple(config()))
    flaky.fail = {"put_writes"}
    with pytest.raises(psycopg.OperationalError):
        await put_new(uniform, made[-1])
    monkeypatch.setattr(context, "WRITER_GONE", 0)
    other = await tiers.uniform()
    assert plain(await other.get_tuple(config())) == before
    assert len(await other.list(config())) == 3
    assert [tiers.target.raw.pttl(key) for key in (keys.index_key, keys.data_key, keys.dirty)] == [-1] * 3
    assert await other.flush() == 0
    assert 0 < tiers.target.raw.pttl(keys.index_key) <= 3_600_000
    tiers.evict()
    assert plain(await other.get_tuple(config())) == before


@both_modes
async def test_verify_finds_a_write_that_went_to_cold_directly(tiers: Tiers, mode: dict[str, Any]) -> None:
    """A thread is compared when it is opened. Hot's checkpoints are kept, as cold may lag behind."""
    uniform, cold = await tiers.uniform(**mode, verify="on_open"), await tiers.cold_uniform()
    made = await written(uniform)
    assert (await uniform.get_tuple(config())).config == made[-1]
    assert await uniform.get_tuple(config("thread", "sub")) is None
    for verify in ("on_open", "never"):
        opened = uniform if verify == "on_open" else await tiers.uniform(**mode, verify=verify)
        await opened.get_tuple(config())
        stored = await put_new(cold, made[-1])
        assert (await opened.get_tuple(config())).config != stored
        fresh = await tiers.uniform(**mode, verify="on_open")
        assert (await fresh.get_tuple(config())).config == stored
    assert len(await cold.list(config())) == 5


@pytest.mark.parametrize("fails", ["hot", "cold"])
@pytest.mark.parametrize("mode", [{}, BEHIND, {"on_hot_error": "bypass"}], ids=["write-through", "behind", "bypass"])
async def test_verify_trusts_no_thread_that_it_could_not_compare(
    tiers: Tiers, mode: dict[str, Any], fails: str
) -> None:
    """Cold is away, or hot cannot drop the thread."""
    uniform = await tiers.uniform(**mode)
    made = await written(uniform)
    await uniform.get_tuple(config())
    stored = await put_new(await tiers.cold_uniform(), made[-1])
    fresh = await tiers.uniform(**mode, verify="on_open")
    if fails == "hot":
        works = tiers.fails(fresh, scripts.BEGIN_INTENT)
    else:
        fails_on(fresh.saver, lambda one: away and isinstance(one, ColdCall), psycopg.OperationalError("away"))
    away = [True]
    if fails == "hot" and "on_hot_error" in mode:
        assert (await fresh.get_tuple(config())).config == stored, "cold answers"
    else:
        with pytest.raises((redis.ConnectionError, psycopg.OperationalError)):
            await fresh.get_tuple(config())
    away.clear()
    if fails == "hot":
        works()
    assert (await fresh.get_tuple(config())).config == stored


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
    assert all(0 < tiers.target.raw.pttl(key) <= 3_600_000 for key in tiers.target.keys())
    await put_in_cold(tiers, uniform, made[-1])
    (intents,) = [key for key in tiers.target.keys() if key.endswith(b":intents")]
    assert 3_600_000 < tiers.target.raw.pttl(intents) <= 3_600_000 + 30 * 24 * 3_600_000


THROUGH: dict[str, Any] = {}
WRONG: list[tuple[dict[str, Any], str, Any]] = [
    *((THROUGH, name, value) for name, value in (("on_hot_error", "ignore"), ("verify", True), ("verify", "always"))),
    *((BEHIND, name, value) for name, value in (("mode", "behind"), ("cold_history", "none"), ("flush_interval", 0))),
    *(
        (BEHIND, name, value)
        for name, value in (("max_backlog", True), ("flush_workers", "4"), ("on_hot_error", "bypass"))
    ),
]


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
async def test_invalid_settings_are_refused(tiers: Tiers) -> None:
    cold, hot = await tiers.cold(), tiers.target.uniform().saver
    kind = AsyncTieredSaver if tiers.native_async else TieredSaver
    for given in ((cold, cold), (hot, hot), (hot, None)):
        with pytest.raises(TypeError):
            kind(*given)
    for mode, name, value in WRONG:
        with pytest.raises(ValueError, match=name):
            kind(hot, cold, **{**mode, name: value})


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
    tiers = Tiers(target, database)
    tiers.sql("DELETE FROM checkpoints; DELETE FROM checkpoint_blobs; DELETE FROM checkpoint_writes")
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


async def test_prune_is_refused_if_cold_lacks_it(tiers: Tiers) -> None:
    """The error comes before hot drops anything."""

    class Plain(InMemorySaver):
        prune = BaseCheckpointSaver.prune
        aprune = BaseCheckpointSaver.aprune

    uniform = await tiers.uniform(cold=Plain())
    await written(uniform)
    with pytest.raises(NotImplementedError, match=r"cold=Plain has no prune\(\)"):
        await uniform.prune(["thread"])
    await uniform.get_tuple(config())
    assert uniform.saver.stats().tiers.hits == 1
