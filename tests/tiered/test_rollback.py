"""Rollback over two tiers: hot removes the run at once, and the flusher removes its checkpoints from cold later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import psycopg
import pytest
from test_ownership_over_tiers import in_cold, put

from redis_saver._tiered import context, flushing, scripts
from redis_saver._tiered.requests import ColdCall
from redis_saver.errors import NotOwner
from tests.support.factories import checkpoint, config, ids
from tests.support.owning import set_lease
from tests.support.tiering import BEHIND, TABLES, Tiers, between, drained, keys_of, locked, put_new, stalled
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, fails_on, requests_of, script_of

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


def kinds_of_records(tiers: Tiers) -> set[bytes]:
    """The kinds of records in the backlog."""
    return {member[:1] for member in tiers.target.raw.zrange(keys_of(tiers).dirty, 0, -1)}


class Story(NamedTuple):
    """A thread with a checkpoint of no run, and two checkpoints of a run whose owner is replaced."""

    first: str
    gone: list[str]


@contextlib.asynccontextmanager
async def story(
    tiers: Tiers, *, is_flushed: bool = True, **options: Any
) -> AsyncIterator[tuple[Story, Uniform, Uniform]]:
    """Return the thread, a saver that owns it, and another one."""
    one, other = [await tiers.uniform(**BEHIND, **options) for _ in range(2)]
    await one.get_tuple(config())
    first = await put(one, None, 1)
    async with one.own(run_id="a run") as old:
        gone = [await put(one, old, 2, first, run_id="a run")]
        gone.append(await put(one, old, 3, gone[0], run_id="a run"))
        if is_flushed:
            await drained(one)
        yield Story(first, gone), one, other


def fail_cold(uniform: Uniform) -> list[str]:
    """Let each call of cold fail from now on. Return the list of their names."""
    fails_on(uniform.saver, lambda request: isinstance(request, ColdCall), psycopg.OperationalError("on purpose"))
    return requests_of(uniform.saver, lambda request: request.method if isinstance(request, ColdCall) else None)


async def test_a_rollback_needs_no_cold_if_hot_is_complete(tiers: Tiers) -> None:
    async with story(tiers) as (told, one, other):
        calls = fail_cold(other)
        async with other.own(on_busy="rollback") as new:
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first
            assert await other.get_tuple(config(checkpoint_id=told.gone[0])) is None
            assert ids(await other.list(config())) == [told.first]
            last = await put(other, new, 4, told.first)
        assert calls == []
        assert kinds_of_records(tiers) == {b"c", b"r"}
        assert set(await in_cold(tiers)) == {told.first, *told.gone}
        await drained(one)
    assert await in_cold(tiers) == [last, told.first]
    assert not tiers.target.raw.exists(keys_of(tiers).dirty)


async def test_the_first_run_of_a_thread_is_rolled_back_without_cold(tiers: Tiers) -> None:
    """Hot is empty after that, and knows that it is complete."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await one.get_tuple(config())
    async with one.own(run_id="a run") as old:
        await put(one, old, 1, run_id="a run")
        await drained(one)
        calls = fail_cold(other)
        async with other.own(on_busy="rollback") as new:
            assert await other.get_tuple(config()) is None
            last = await put(other, new, 2)
        async with other.own() as newer:
            newest = await put(other, newer, 3, last)
        assert calls == []
    await drained(one)
    assert await in_cold(tiers) == [newest, last]


async def test_a_rollback_of_the_only_run_leaves_no_thread(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await one.get_tuple(config())
    async with one.own(run_id="a run") as old:
        await put(one, old, 1, run_id="a run")
        async with other.own(on_busy="rollback"):
            pass
    await drained(other)
    assert await in_cold(tiers) == []
    assert [key.rpartition(b":")[2] for key in tiers.target.keys()] in ([b"flush"], [b"unflushed", b"flush"])


async def test_a_lock_in_cold_delays_no_owner(tiers: Tiers) -> None:
    """The removal waits in Postgres. The next owners write meanwhile, and lose nothing to it."""
    async with story(tiers) as (told, _, other):
        with locked(tiers.url, TABLES):
            async with other.own(on_busy="rollback", run_id="a run") as new:  # the same run id again
                assert (await other.get_tuple(config())).checkpoint["id"] == told.first
                flush = other.flush(timeout=30) if other.native_async else asyncio.to_thread(other.saver.flush, 30)
                removing = asyncio.ensure_future(flush)
                fourth = await put(other, new, 4, told.first, run_id="a run")
            async with other.own() as newer:
                fifth = await put(other, newer, 5, fourth)
            assert not removing.done()
        assert await removing == 0
        await drained(other)
    assert await in_cold(tiers) == [fifth, fourth, told.first]


async def test_a_late_removal_keeps_the_next_run(tiers: Tiers) -> None:
    async with story(tiers) as (told, one, other):
        async with other.own(on_busy="rollback", run_id="a run") as new:
            late = await stalled(tiers, one)
            tiers.later(flushing.FLUSH_LEASE)
            last = await put(other, new, 4, told.first, run_id="a run")
            await drained(other)
            await late()
    await drained(other)
    assert await in_cold(tiers) == [last, told.first]


async def test_a_late_flush_of_a_rolled_back_run_is_removed(tiers: Tiers) -> None:
    """The flusher finds that its claim was taken over, and the removal is repeated."""
    async with story(tiers, is_flushed=False) as (told, one, other):
        late = await stalled(tiers, one)
        tiers.later(flushing.FLUSH_LEASE)
        async with other.own(on_busy="rollback") as new:
            last = await put(other, new, 4, told.first)
            await drained(other)
            assert await in_cold(tiers) == [last, told.first]
            await late()
        await drained(other)
    assert await in_cold(tiers) == [last, told.first]


@pytest.mark.parametrize("hot_has", ["nothing", "the newest", "half of it"])
async def test_a_rollback_works_if_hot_has_little_or_nothing(tiers: Tiers, hot_has: str) -> None:
    """Damage in hot is repaired first."""
    async with story(tiers) as (told, one, other):
        tiers.evict(*(["index"] if hot_has == "half of it" else []))
        if hot_has == "the newest":
            assert (await other.get_tuple(config())).checkpoint["id"] == told.gone[1]
        async with other.own(on_busy="rollback") as new:
            assert await one.get_tuple(config(checkpoint_id=told.gone[0])) is None
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first
            last = await put(other, new, 4, told.first)
        await drained(other)
    assert await in_cold(tiers) == [last, told.first]


@pytest.mark.parametrize("which", ["newest", "by id"])
async def test_a_concurrent_fill_does_not_restore_a_rolled_back_run(tiers: Tiers, which: str) -> None:
    """The reader has read cold before the rollback, and fills hot after it."""
    async with story(tiers) as (told, _, other):
        tiers.evict()
        new, reader = other.own(on_busy="rollback"), await tiers.uniform(**BEHIND)
        between(reader, scripts.FILL, new.__aenter__)
        where = config() if which == "newest" else config(checkpoint_id=told.gone[0])
        found = await reader.get_tuple(where)  # as of the start of the read
        assert found.checkpoint["id"] == told.gone[which == "newest"]
        assert (await reader.get_tuple(config())).checkpoint["id"] == told.first
        assert await reader.get_tuple(where if which == "by id" else config(checkpoint_id=told.gone[1])) is None
        await new.__aexit__(None, None, None)


async def test_a_rollback_starts_again_if_hot_changes(tiers: Tiers) -> None:
    """Hot loses the thread after the rollback has read it, or is filled again."""
    async with story(tiers) as (told, one, other):
        third = await tiers.uniform(**BEHIND)

        async def lose() -> None:
            tiers.evict()

        async def fill() -> None:
            await third.get_tuple(config(checkpoint_id=told.gone[0]))

        acts = [lose, fill]
        Meanwhile(
            other.saver.hot, lambda request: acts.pop(0) if acts and script_of(request) is scripts.ROLL_BACK else None
        )
        async with other.own(on_busy="rollback"):
            assert acts == []
            assert await one.get_tuple(config(checkpoint_id=told.gone[0])) is None
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first
    await drained(other)
    assert await in_cold(tiers) == [told.first]


async def test_a_rollback_removes_the_intent_of_a_dead_writer(tiers: Tiers) -> None:
    """Hot drops its copy too, because cold may have newer data."""
    through = await tiers.uniform()
    async with story(tiers) as (told, _, other):
        tiers.evict()
        works = tiers.fails(through, scripts.END_INTENT)
        with pytest.raises(Exception, match="on purpose"):
            await put_new(through, source="loop", step=0)
        works()
        assert tiers.target.raw.exists(keys_of(tiers).intents)
        tiers.later(context.WRITER_GONE)
        async with other.own(on_busy="rollback"):
            assert set(ids(await other.list(config()))).isdisjoint(told.gone)
        assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_a_repeated_rollback_request_changes_nothing_more(tiers: Tiers) -> None:
    """The client repeats it after a lost reply."""
    async with story(tiers, is_flushed=False) as (told, one, other):

        def twice(request: Any) -> Any:
            reply = yield request
            return (yield request) if script_of(request) is scripts.ROLL_BACK else reply

        Around(other.saver.hot, twice)
        async with other.own(on_busy="rollback") as new:
            last = await put(other, new, 4, told.first)
    await drained(other)
    assert await in_cold(tiers) == [last, told.first]


async def test_a_rollback_without_ownership_removes_nothing(tiers: Tiers) -> None:
    async with story(tiers, is_flushed=False) as (told, _, other):
        third = await tiers.uniform(**BEHIND)
        next_one = third.own(on_busy="take")
        between(other, scripts.ROLL_BACK, next_one.__aenter__)
        with pytest.raises(NotOwner):
            await other.own(on_busy="rollback").__aenter__()
        assert ids(await third.list(config())) == [*reversed(told.gone), told.first]
        await next_one.__aexit__(None, None, None)


async def test_values_of_a_rolled_back_run_do_not_outlive_it(tiers: Tiers) -> None:
    """Versions are integers, which a caller may choose. So the next run has the same version with another value."""
    one, other, cold = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.cold_uniform()
    await one.get_tuple(config())

    async def write(uniform: Uniform, owner: Any, number: int, value: str, parent: str | None, run: str) -> str:
        made = checkpoint({"n": [value], "same": ["kept"]}, {"n": number, "same": 1})
        where = config(
            checkpoint_id=parent, **({"thread_owner": owner["configurable"]["thread_owner"]} if owner else {})
        )
        new = {"n": number} if number > 1 else {"n": number, "same": 1}
        await uniform.put(where, made, {"source": "loop", "step": number, "run_id": run}, new)
        return str(made["id"])

    first = await write(one, None, 1, "first", None, "first run")
    async with one.own(run_id="a run") as old:
        await write(one, old, 2, "gone", first, "a run")
        await drained(one)
        async with other.own(on_busy="rollback") as new:
            last = await write(other, new, 2, "stays", first, "new run")
    await drained(other)
    for checkpoint_id, value in ((first, "first"), (last, "stays")):
        found = await cold.get_tuple(config(checkpoint_id=checkpoint_id))
        assert found.checkpoint["channel_values"] == {"n": [value], "same": ["kept"]}


async def test_a_coalesced_checkpoint_reaches_cold_when_newest_again(tiers: Tiers) -> None:
    async with story(tiers, cold_history="latest") as (told, one, other):
        assert await in_cold(tiers) == told.gone[1:]
        async with other.own(on_busy="rollback"):
            pass
        await drained(other)
    assert await in_cold(tiers) == [told.first]
    tiers.evict()
    assert (await one.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}


async def test_list_hides_rolled_back_checkpoints_that_cold_still_has(tiers: Tiers) -> None:
    """Hot has part of the thread, and cold refuses the removal."""
    async with story(tiers) as (told, _, other):
        tiers.evict()
        async with other.own(on_busy="rollback"):
            removes = lambda request: getattr(request, "method", "") == "delete_checkpoints"  # noqa: E731
            fails_on(other.saver, removes, psycopg.OperationalError("on purpose"))
            assert set(await in_cold(tiers)) == {told.first, *told.gone}
            assert ids(await other.list(config(), limit=1)) == [told.first]
            assert ids(await other.list(None)) == [told.first]


async def test_writes_without_a_token_are_refused_after_a_slow_rollback(tiers: Tiers) -> None:
    """Reading the run from cold took longer than the lease, which is renewed when the block begins."""
    required = await tiers.uniform(hot={"ownership": "required"}, **BEHIND)
    async with story(tiers) as (told, _, other):
        tiers.evict()
        is_slow = lambda request: getattr(request, "method", "") == "checkpoints_of_run"  # noqa: E731
        requests_of(other.saver, lambda request: set_lease(tiers.target) if is_slow(request) else None)
        async with other.own(on_busy="rollback"):
            with pytest.raises(NotOwner):
                await put(required, None, 4, told.first)


@pytest.mark.parametrize("change", ["prune", "delete_for_runs"])
async def test_a_change_in_cold_does_not_drop_a_dirty_thread(tiers: Tiers, change: str) -> None:
    """The process that changed cold paused so long that others wrote on, and cold lacks their records."""
    one, other, made = await tiers.uniform(), await tiers.uniform(**BEHIND), list[str]()
    first = await put(one, None, 1, run_id="old run")
    second = await put(one, None, 2, first)

    async def meanwhile() -> None:
        tiers.later(context.WRITER_GONE)
        assert (await other.get_tuple(config())).checkpoint["id"] == second
        made.append(await put(other, None, 3, second))

    between(one, scripts.END_INTENT, meanwhile)
    await (one.prune(["thread"]) if change == "prune" else one.delete_for_runs(["old run"]))
    assert (await other.get_tuple(config())).checkpoint["id"] == made[0]
    await drained(other)
    assert made[0] in await in_cold(tiers)
    tiers.evict()
    assert (await other.get_tuple(config())).checkpoint["id"] == made[0]
