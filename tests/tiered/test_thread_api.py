"""Threads over two tiers: their tier, retention and expiry in hot."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row

from redis_saver import Pruned, ThreadNotFound
from redis_saver._checkpoint import scripts
from redis_saver._tiered import postgres as statements, thread_info
from redis_saver._tiered.context import WRITER_GONE
from redis_saver._tiered.requests import ColdCall
from tests.support import talking
from tests.support.factories import chain, config, ids, put
from tests.support.growing import until
from tests.support.tiering import BEHIND, LATEST, TABLES, Tiers, both_modes, drained, id_of, keys_of, locked, put_new
from tests.support.tiering import written
from tests.support.uniform import Uniform
from tests.support.wrappers import Meanwhile, script_of

pytestmark = pytest.mark.also_on(cluster="sync", fakeredis="async")

HOUR = timedelta(hours=1)


async def where(uniform: Uniform) -> dict[str, tuple[str, int]]:
    return {one.thread_id: (one.tier, one.lacking) for one in await uniform.threads()}


async def test_threads_tells_the_tier_of_each_thread(tiers: Tiers) -> None:
    through = await tiers.uniform(hot={"ttl": HOUR})
    for thread in ("both", "cold"):
        await written(through, thread)
    tiers.evict(thread="cold")
    behind = await tiers.uniform(hot={"ttl": HOUR}, **BEHIND)
    await written(behind, "hot")
    assert await where(behind) == {"both": ("both", 0), "cold": ("cold", 0), "hot": ("hot", 6)}
    for thread, (tier, lacking) in (await where(behind)).items():
        found = await behind.get_thread(thread)
        assert (found.thread_id, found.tier, found.lacking) == (thread, tier, lacking)
        assert found.interrupted and found.checkpoint_id == (await behind.get_tuple(config(thread))).checkpoint["id"]
        assert found.updated_at == datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
        assert {one.checkpoints for one in (found.hot, found.cold) if one} == {3} == {found.checkpoints}
        assert found.in_cold == {"both": None, "cold": True, "hot": None}[thread], "hot has all of two of them"
        assert found.bytes == sum(one.bytes for one in (found.hot, found.cold) if one) > 0
    brought_back = {"both": ("both", 0), "cold": ("both", 0), "hot": ("hot", 6)}
    assert await where(behind) == brought_back, "by reading"
    await drained(behind)
    assert await where(behind) == dict.fromkeys(brought_back, ("both", 0))
    assert {one.thread_id for one in await behind.threads("")} == {*brought_back}
    assert [one.thread_id for one in await behind.threads("ho")] == ["hot"]
    assert await behind.get_thread("nowhere") is None
    await behind.delete_thread("hot")
    assert await behind.get_thread("hot") is None, "a thread with a tombstone counts as deleted"
    assert set(await where(behind)) == {"both", "cold"}


# PostgresSaver rejects backslashes in channels and tasks, and cannot store NUL or lone surrogates.
NAMES = ["", "*", "{", "}", "a}b{c", "%", "%7D", "%s", "[a-z]", "a", "\n", "\1", "é", "'", ":data", "x" * 300]


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@both_modes
async def test_hostile_names_work_in_both_tiers(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform, made = await tiers.uniform(**mode), dict[str, Any]()
    for number, name in enumerate(NAMES):
        made[name] = await put(uniform, config(name, name), {name or "-": number})
        await uniform.put_writes(made[name], [(name or "-", -number)], name)
    await drained(uniform)
    assert await where(uniform) == dict.fromkeys(NAMES, ("both", 0))
    for name in NAMES:
        tiers.evict(thread=name)
    assert await where(uniform) == dict.fromkeys(NAMES, ("cold", 0))
    for number, name in enumerate(NAMES):
        for _ in range(2):  # from cold, then from hot
            found = await uniform.get_tuple(config(name, name))
            assert found.config == made[name]
            assert found.checkpoint["channel_values"] == {name or "-": number}
            assert found.pending_writes == [(name, name or "-", -number)]
        await uniform.delete_thread(name)
        assert set(await where(uniform)) == set(NAMES[number + 1 :])
    await drained(uniform)
    assert [key for key in tiers.target.keys() if tiers.target.raw.ttl(key) < 0] == []
    assert await (await tiers.cold_uniform()).list(None) == []


async def test_thread_filters_apply_to_both_tiers(tiers: Tiers) -> None:
    through = await tiers.uniform(hot={"ttl": HOUR})
    for name in ("both", "cold", "failed"):
        await written(through, name)
    await through.put_writes(await put(through, config("failed"), {}), [("__error__", "no")], "task")
    for name in ("cold", "failed"):
        tiers.evict(thread=name)
    await through.pin("both")
    behind = await tiers.uniform(hot={"ttl": HOUR}, **BEHIND)
    await written(behind, "dirty")
    assert [one.thread_id for one in await Uniform(behind.saver.hot).threads(dirty=True)] == ["dirty"]
    at_nine = datetime(2026, 11, 21, 9, tzinfo=timezone.utc)
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"dirty": True}, {"dirty"}),
        ({"dirty": False}, {"both", "cold", "failed"}),
        ({"pinned": True}, {"both"}),
        ({"state": "failed"}, {"failed"}),
        ({"state": "interrupted"}, {"both", "cold", "dirty"}),
        ({"state": "active"}, set()),
        ({"min_bytes": 1_000_000}, set()),
        ({"min_bytes": max([one.bytes for one in await behind.threads("both")])}, {"both"}),
        ({"expires_within": "2h"}, set()),
        ({"updated_after": at_nine}, {"both", "cold", "failed", "dirty"}),
        ({"updated_before": at_nine}, set()),
    ]
    for asked, expected in cases:
        assert {one.thread_id for one in await behind.threads(**asked)} == expected, asked
    other = await tiers.uniform(cold=InMemorySaver())
    await written(other, "memory")
    assert {one.thread_id for one in await other.threads("m", state="interrupted")} == {"memory"}
    diff = await behind.diff("cold", (await behind.list(config("cold")))[1].checkpoint["id"])
    assert diff.channels, "hot does not have the thread"


@pytest.mark.also_on(cluster="sync")
async def test_each_thread_is_listed_once(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are in both tiers or in cold alone, over several pages."""
    monkeypatch.setattr(thread_info, "NAMES_PER_PAGE", 40)
    uniform = await tiers.uniform(hot={"ttl": HOUR})
    names = [f"{number:03}" for number in range(90)]
    for name in names:
        await put(uniform, config(name), {"n": 1})
        await uniform.get_tuple(config(name))
    for name in names[::2]:
        tiers.evict(thread=name)
    found = await uniform.threads()
    assert Counter(one.thread_id for one in found) == Counter(names)
    assert Counter(one.tier for one in found) == {"both": 45, "cold": 45}


async def test_another_cold_saver_is_read_through_its_interface(tiers: Tiers) -> None:
    uniform = await tiers.uniform(cold=InMemorySaver())
    for thread in ("both", "cold"):
        await written(uniform, thread)
    tiers.evict(thread="cold")
    assert await where(uniform) == {"both": ("both", 0), "cold": ("cold", 0)}
    found = await uniform.get_thread("cold")
    assert (found.cold.checkpoints, found.cold.bytes, found.hot, found.interrupted) == (3, 0, None, True)
    assert await uniform.get_thread("nowhere") is None
    for more in ({"keep_last": 2}, {"older_than": "1d"}, {"dry_run": True}):
        with pytest.raises(NotImplementedError, match="Postgres"):
            await uniform.prune(["both"], **more)
    await uniform.prune(["both"], strategy="delete")
    assert await where(uniform) == {"cold": ("cold", 0)}


@both_modes
async def test_thread_ttls_apply_to_hot(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(hot={"ttl": HOUR}, **mode)
    await written(uniform)
    if mode:
        assert await uniform.get_thread_ttl("thread") is None, "it is dirty"
    await uniform.set_thread_ttl("thread", "2h")
    if mode:
        assert await uniform.get_thread_ttl("thread") is None, "and does not expire before cold has it"
        await drained(uniform)
    assert HOUR < await uniform.get_thread_ttl("thread") <= 2 * HOUR
    await uniform.pin("thread")
    found = await uniform.get_thread("thread")
    assert (await uniform.get_thread_ttl("thread"), found.ttl, found.pinned) == (None, None, True)
    await uniform.unpin("thread")
    assert timedelta(0) < await uniform.get_thread_ttl("thread") <= HOUR


async def test_pin_fills_a_thread_that_only_cold_has(tiers: Tiers) -> None:
    uniform = await tiers.uniform(hot={"ttl": HOUR})
    await written(uniform)
    await chain(uniform, "inner", 2, ns="sub:1")
    for thread in ("thread", "inner"):
        tiers.evict(thread=thread)
        await uniform.unpin(thread)
        await uniform.set_thread_ttl(thread, None)
        assert (await uniform.get_thread(thread)).tier == "cold", "a thread that only cold has stays there"
        assert await uniform.get_thread_ttl(thread) is None
        await uniform.pin(thread)
        found = await uniform.get_thread(thread)
        assert (found.tier, found.pinned) == ("both", True)
    for method, arguments in (("pin", ()), ("unpin", ()), ("set_thread_ttl", ("1h",))):
        with pytest.raises(ThreadNotFound, match="'nowhere'"):
            await getattr(uniform, method)("nowhere", *arguments)


@both_modes
async def test_prune_removes_the_same_checkpoints_from_both_tiers(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(hot={"ttl": HOUR}, **mode)
    made = await chain(uniform, "thread", 8)
    await uniform.put_writes(made[0], [("n", 1)], "task")
    await drained(uniform)
    would = await uniform.prune(["thread", "nowhere"], keep_last=3, dry_run=True)
    assert (would.checkpoints, would.writes) == (5, 1) and would.bytes > 0
    assert len(await uniform.list(config())) == 8
    assert await uniform.prune(["thread", "nowhere"], keep_last=3) == would
    for saver in (uniform, await tiers.uniform(), await tiers.cold_uniform()):
        found = await saver.list(config())
        assert ids(found) == [id_of(one) for one in made[:-4:-1]]
        assert [one.parent_config is None for one in found] == [False, False, True]
        assert [one.checkpoint["channel_values"] for one in found] == [{"n": 7}, {"n": 6}, {"n": 5}]
    assert (await uniform.prune(["thread"], older_than="36500d")) == Pruned()
    assert (await uniform.prune(["thread"], older_than=timedelta(0), keep_last=2)).checkpoints == 1
    assert (await uniform.prune(["thread"])).checkpoints == 1
    would = await uniform.prune(["thread"], strategy="delete", dry_run=True)
    assert would.checkpoints == 1 and await uniform.get_tuple(config()) is not None
    assert await uniform.prune(["thread"], strategy="delete") == would
    assert await uniform.get_tuple(config()) is None


@both_modes
async def test_hot_keeps_a_thread_that_a_prune_does_not_change(tiers: Tiers, mode: dict[str, Any]) -> None:
    """Else a nightly prune of all threads would empty hot. Forgetting a parent that was gone before is a change."""
    uniform = await tiers.uniform(**mode)
    await chain(uniform, "thread", 3)
    await drained(uniform)
    assert await uniform.get_tuple(config()), "hot is filled"

    async def stays(pruned: Pruned) -> bool:
        is_there = bool(tiers.target.raw.exists(keys_of(tiers).index_key))
        assert not tiers.target.raw.exists(keys_of(tiers).intents)
        assert await uniform.get_tuple(config()), "hot is filled again"
        assert tiers.target.raw.exists(keys_of(tiers).index_key)
        return is_there

    assert await stays(await uniform.prune(["thread"], keep_last=3))
    assert not await stays(await uniform.prune(["thread"], keep_last=2))
    assert await stays(await uniform.prune(["thread"], keep_last=2))
    tiers.sql("UPDATE checkpoints SET parent_checkpoint_id = 'gone' WHERE parent_checkpoint_id IS NULL RETURNING 1")
    assert not await stays(await uniform.prune(["thread"], keep_last=2))


async def test_a_prune_removes_coalesced_checkpoints_which_only_hot_has(tiers: Tiers) -> None:
    """Also if it changes nothing in cold, which has two checkpoints of a fork. Without one, a parent is forgotten."""
    uniform = await tiers.uniform(**LATEST)
    await uniform.get_tuple(config())
    first = await put_new(uniform, config(), 1)
    await drained(uniform)
    second = await put_new(uniform, first, 2)
    await put_new(uniform, second, 3)
    await put_new(uniform, first, 4)
    await drained(uniform)
    assert len(await uniform.list(config())) == 4
    assert await uniform.prune(["thread"], keep_last=2) == Pruned()
    assert await uniform.get_tuple(second) is None
    assert len(await uniform.list(config())) == 2 == len(await (await tiers.uniform()).list(config()))
    assert await uniform.get_tuple(config()), "hot is filled again"
    assert await uniform.prune(["thread"], keep_last=2) == Pruned()
    assert tiers.target.raw.exists(keys_of(tiers).index_key), "now cold has all"


BETWEEN = ["put before", "put after", "evict before", "evict after", "fail before", "fail after"]


@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("last", [2, 3], ids=["changed", "unchanged"])
@pytest.mark.parametrize("mode", [{}, BEHIND, LATEST], ids=["write-through", "write-behind", "latest"])
@pytest.mark.by_turns
@pytest.mark.also_on()
async def test_what_happens_during_a_prune_leaves_no_intent_and_no_old_copy(
    tiers: Tiers, mode: dict[str, Any], last: int, what: str
) -> None:
    """Around the call of cold another process writes, hot loses the thread, or Postgres is away, maybe after it."""
    uniform, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    await uniform.get_tuple(config())
    where = (await chain(uniform, "thread", 3))[-1]
    await drained(uniform)
    await other.get_tuple(config())
    does, when = what.split()

    async def act() -> None:
        once.clear()
        if does == "put":
            await put_new(other, where)
        elif does == "evict":
            tiers.evict()
        else:
            raise psycopg.OperationalError("on purpose")

    def at(of: str) -> Any:
        return lambda one: act if of in once and isinstance(one, ColdCall) and one.method == "prune_thread" else None

    once = [when]
    Meanwhile(uniform.saver, at("before"), at("after"))
    with pytest.raises(psycopg.OperationalError) if does == "fail" else nullcontext():
        await uniform.prune(["thread"], keep_last=last)
    await uniform.prune(["thread"], keep_last=last)  # finds nothing to do if the first one reached cold
    await drained(other)
    expected = ids(await (await tiers.cold_uniform()).list(config()))
    assert len(expected) <= last or does == "put"
    for saver in (uniform, other, await tiers.uniform(**mode)):
        assert ids(await saver.list(config())) == expected
        assert (await saver.get_tuple(config())).checkpoint["id"] == expected[0]
    tiers.later(WRITER_GONE)
    await (await tiers.uniform(**mode)).get_tuple(config())
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    for saver in (uniform, other, await tiers.uniform(**mode)):
        assert ids(await saver.list(config())) == expected
    assert (await uniform.check("thread")).sound


@pytest.mark.also_on()
@pytest.mark.parametrize("flavour", ["async"])
async def test_a_cancelled_prune_leaves_no_intent_and_no_old_copy(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    await chain(uniform, "thread", 3)
    await uniform.get_tuple(config())
    with locked(tiers.url, TABLES):
        pruning = asyncio.ensure_future(uniform.saver.aprune(["thread"], keep_last=2))
        await until(lambda: tiers.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
        pruning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pruning
    expected = ids(await (await tiers.cold_uniform()).list(config()))
    tiers.later(WRITER_GONE)
    for saver in (uniform, await tiers.uniform()):
        await saver.get_tuple(config())
        assert ids(await saver.list(config())) == expected
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_a_prune_that_conflicts_with_another_is_repeated(tiers: Tiers) -> None:
    """Else Postgres refuses the one that waited for the other's rows, or that ended in a deadlock with it."""
    uniform = await tiers.uniform()
    await chain(uniform, "thread", 4)
    with psycopg.connect(tiers.url) as other:
        other.execute("DELETE FROM checkpoints WHERE metadata ->> 'step' = '0'")
        pruning = asyncio.ensure_future(uniform.saver.aprune(["thread"]))
        await until(lambda: tiers.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
    assert (await pruning).checkpoints == 2
    assert len(await uniform.list(config())) == 1


async def test_statements_in_a_pipeline_return_their_rows(tiers: Tiers) -> None:
    """A saver may be in psycopg's pipeline mode, and so may a connection that a cancelled call gave back to a pool."""
    await chain(await tiers.cold_uniform(), "thread", 2)
    options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    counts = ("count_thread", "task_paths")
    if tiers.native_async:
        aconnection = await psycopg.AsyncConnection.connect(tiers.url, **options)
        async with aconnection, aconnection.pipeline() as apipe:
            asaver = AsyncPostgresSaver(aconnection, pipe=apipe)
            found = [await of("thread") for of in map(partial(statements.amethod_of, asaver), counts) if of]
    else:
        with psycopg.Connection.connect(tiers.url, **options) as connection, connection.pipeline() as pipe:
            saver = PostgresSaver(connection, pipe=pipe)
            found = [of("thread") for of in map(partial(statements.method_of, saver), counts) if of]
    assert found[0].checkpoints == 2 and len(found[1]) == 0


async def test_prune_clears_a_parent_that_was_deleted_before(tiers: Tiers) -> None:
    """`PostgresSaver.prune` does the same."""
    uniform, cold = await tiers.uniform(), await tiers.cold_uniform()
    for thread in ("ours", "theirs"):
        gone = await put_new(uniform, config(thread), 1, run_id="gone")
        await put_new(uniform, gone, 2)
    await uniform.delete_for_runs(["gone"])
    assert (await uniform.prune(["ours"])).checkpoints == 0
    await cold.prune(["theirs"])
    for saver, thread in ((uniform, "ours"), (cold, "ours"), (cold, "theirs")):
        assert [one.parent_config for one in await saver.list(config(thread))] == [None]


async def test_prune_flushes_the_backlog_first(tiers: Tiers) -> None:
    uniform = await tiers.uniform(hot={"ttl": HOUR}, **BEHIND)
    made = await chain(uniform, "thread", 5)
    assert (await uniform.prune(["thread"], keep_last=2)).checkpoints == 3
    assert ids(await (await tiers.cold_uniform()).list(config())) == [id_of(one) for one in made[:-3:-1]]


async def test_prune_keeps_values_that_are_still_used(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    await written(uniform)
    before = await uniform.get_tuple(config())
    assert (await uniform.prune(["thread"])).checkpoints == 2
    tiers.evict()
    after = await uniform.get_tuple(config())
    assert after.checkpoint == before.checkpoint and len(after.pending_writes) == len(before.pending_writes)
    assert (await uniform.check("thread")).sound


async def test_prune_refuses_a_delta_channel_before_removing_anything(tiers: Tiers, monkeypatch: Any) -> None:
    uniform = await tiers.uniform()
    await chain(uniform, "plain", 3)
    log = await talking.talk(uniform, 3, "delta")
    with pytest.raises(NotImplementedError, match="'delta' uses a DeltaChannel"):
        await uniform.prune(["plain", "delta"], keep_last=1)
    assert len(await uniform.list(config("plain"))) == 3
    assert tiers.target.raw.zcard(keys_of(tiers, "delta").intents) == 0

    def none(_: Any) -> Any:
        return []
        yield

    monkeypatch.setitem(statements.METHODS, "threads_with_delta_channels", none)
    with pytest.raises(NotImplementedError, match="'delta' uses a DeltaChannel"):
        await uniform.prune(["delta"])  # as if the thread began to use one after the first check
    assert tiers.target.raw.zcard(keys_of(tiers, "delta").intents) == 0
    assert (await talking.state(uniform, "delta")).values["log"] == log


async def test_set_thread_ttl_works_on_a_thread_written_meanwhile(tiers: Tiers) -> None:
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    acts = [lambda: written(other)]
    is_it = lambda request: script_of(request) is scripts.SET_TTL  # noqa: E731
    Meanwhile(uniform.saver.hot, lambda _: None, lambda request: acts.pop() if acts and is_it(request) else None)
    await uniform.set_thread_ttl("thread", HOUR)
    assert not acts and await where(uniform) == {"thread": ("hot", 6)}
