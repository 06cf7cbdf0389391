"""Rollback over two tiers: hot removes the run at once, and the flusher removes its checkpoints from cold later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from tests.support.factories import checkpoint, config, ids
from test_ownership_over_tiers import Owning, in_cold, put
from tests.support.tiering import BEHIND, Tiers, between, drained, keys_of, stalled
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, script_of

from redis_saver._common.names import Keyspace
from redis_saver._tiered import scripts
from redis_saver._tiered import context
from redis_saver._tiered import flushing
from redis_saver._tiered.requests import ColdCall
from redis_saver.errors import NotOwner

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


def noted(tiers: Tiers) -> set[bytes]:
    """The kinds of records in the backlog."""
    return {member[:1] for member in tiers.target.raw.zrange(keys_of(tiers).dirty, 0, -1)}


class Story:
    """A thread with a checkpoint of no run, and two checkpoints of a run whose owner is replaced."""

    def __init__(self, tiers: Tiers, uniform: Uniform) -> None:
        self.tiers, self.uniform = tiers, uniform
        self.old: Any = None
        self.first, self.gone = "", list[str]()

    async def begin(self, **metadata: Any) -> Any:
        await self.uniform.get_tuple(config())
        self.first = await put(self.uniform, None, 1)
        owning = Owning(self.uniform, run_id="a run")
        self.old = await owning.__aenter__()
        self.gone.append(await put(self.uniform, self.old, 2, self.first, run_id="a run"))
        self.gone.append(await put(self.uniform, self.old, 3, self.gone[0], run_id="a run"))
        return owning


@contextlib.asynccontextmanager
async def story(tiers: Tiers, uniform: Uniform) -> AsyncIterator[Story]:
    made = Story(tiers, uniform)
    owning = await made.begin()
    try:
        yield made
    finally:
        await owning.__aexit__(None, None, None)


@contextlib.contextmanager
def locked(tiers: Tiers) -> Iterator[None]:
    """Lock the tables of Postgres in another session, which blocks all queries."""
    with psycopg.connect(tiers.url) as connection:
        connection.execute("LOCK TABLE checkpoints, checkpoint_writes, checkpoint_blobs IN ACCESS EXCLUSIVE MODE")
        yield


def fail_cold(uniform: Uniform) -> list[str]:
    """Let each call of cold fail from now on. Return the list of their names."""
    calls: list[str] = []

    def failing(request: Any) -> Any:
        if isinstance(request, ColdCall):
            calls.append(request.method)
            raise psycopg.OperationalError("on purpose")
        return (yield request)

    Around(uniform.saver, failing)
    return calls


async def test_a_rollback_needs_no_cold_if_hot_is_complete(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        calls = fail_cold(other)
        async with Owning(other, on_busy="rollback") as new:
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first
            assert await other.get_tuple(config(checkpoint_id=told.gone[0])) is None
            assert ids(await other.list(config())) == [told.first]
            last = await put(other, new, 4, told.first)
        assert calls == []
        assert noted(tiers) == {b"c", b"r"}
        assert set(await in_cold(tiers)) == {told.first, *told.gone}
        await drained(one)
    assert await in_cold(tiers) == [last, told.first]
    assert not tiers.target.raw.exists(keys_of(tiers).dirty)


async def test_the_first_run_of_a_thread_is_rolled_back_without_cold(tiers: Tiers) -> None:
    """Hot is empty after that, and knows that it is complete."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await one.get_tuple(config())
    async with Owning(one, run_id="a run") as old:
        await put(one, old, 1, run_id="a run")
        await drained(one)
        calls = fail_cold(other)
        async with Owning(other, on_busy="rollback") as new:
            assert await other.get_tuple(config()) is None
            last = await put(other, new, 2)
        async with Owning(other) as newer:
            newest = await put(other, newer, 3, last)
        assert calls == []
    await drained(one)
    assert await in_cold(tiers) == [newest, last]


async def test_a_rollback_of_the_only_run_leaves_no_thread(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await one.get_tuple(config())
    async with Owning(one, run_id="a run") as old:
        await put(one, old, 1, run_id="a run")
        async with Owning(other, on_busy="rollback"):
            pass
    await drained(other)
    assert await in_cold(tiers) == []
    assert [key.rpartition(b":")[2] for key in tiers.target.keys()] in ([b"flush"], [b"unflushed", b"flush"])


async def test_a_lock_in_cold_delays_no_owner(tiers: Tiers) -> None:
    """The removal waits in Postgres. The next owners write meanwhile, and lose nothing to it."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        with locked(tiers):
            async with Owning(other, on_busy="rollback", run_id="a run") as new:  # the same run id again
                assert (await other.get_tuple(config())).checkpoint["id"] == told.first
                flush = other.flush(timeout=30) if other.native_async else asyncio.to_thread(other.saver.flush, 30)
                removing = asyncio.ensure_future(flush)
                fourth = await put(other, new, 4, told.first, run_id="a run")
            async with Owning(other) as newer:
                fifth = await put(other, newer, 5, fourth)
            assert not removing.done()
        assert await removing == 0
        await drained(other)
    assert await in_cold(tiers) == [fifth, fourth, told.first]


async def test_a_late_removal_keeps_the_next_run(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        async with Owning(other, on_busy="rollback", run_id="a run") as new:
            late = await stalled(tiers, one)
            tiers.later(flushing.FLUSH_LEASE)
            last = await put(other, new, 4, told.first, run_id="a run")
            await drained(other)
            await late()
    await drained(other)
    assert await in_cold(tiers) == [last, told.first]


async def test_a_late_flush_of_a_rolled_back_run_is_removed(tiers: Tiers) -> None:
    """The flusher finds that its claim was taken over, and the removal is repeated."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        late = await stalled(tiers, one)
        tiers.later(flushing.FLUSH_LEASE)
        async with Owning(other, on_busy="rollback") as new:
            last = await put(other, new, 4, told.first)
            await drained(other)
            assert await in_cold(tiers) == [last, told.first]
            await late()
        await drained(other)
    assert await in_cold(tiers) == [last, told.first]


async def test_a_rollback_works_if_hot_has_little_or_nothing(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    for has_newest in (False, True):
        async with story(tiers, one) as told:
            await drained(one)
            tiers.evict()
            if has_newest:
                assert (await other.get_tuple(config())).checkpoint["id"] == told.gone[1]
            async with Owning(other, on_busy="rollback") as new:
                assert await one.get_tuple(config(checkpoint_id=told.gone[0])) is None
                assert (await other.get_tuple(config())).checkpoint["id"] == told.first
                last = await put(other, new, 4, told.first)
            await drained(other)
        assert await in_cold(tiers) == [last, told.first]
        await one.delete_thread("thread")
        await drained(one)


@pytest.mark.parametrize("which", ["newest", "by id"])
async def test_a_concurrent_fill_does_not_restore_a_rolled_back_run(tiers: Tiers, which: str) -> None:
    """The reader has read cold before the rollback, and fills hot after it."""
    one, other, reader = [await tiers.uniform(**BEHIND) for _ in range(3)]
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict()
        new = Owning(other, on_busy="rollback")

        async def meanwhile() -> None:
            await new.__aenter__()

        between(reader, scripts.FILL, meanwhile)
        where = config() if which == "newest" else config(checkpoint_id=told.gone[0])
        found = await reader.get_tuple(where)  # as of the start of the read
        assert found.checkpoint["id"] == told.gone[which == "newest"]
        assert (await reader.get_tuple(config())).checkpoint["id"] == told.first
        assert await reader.get_tuple(where if which == "by id" else config(checkpoint_id=told.gone[1])) is None
        await new.__aexit__(None, None, None)


async def test_a_rollback_starts_again_if_hot_changes(tiers: Tiers) -> None:
    """Hot loses the thread after the rollback has read it, or is filled again."""
    one, other, third = [await tiers.uniform(**BEHIND) for _ in range(3)]
    async with story(tiers, one) as told:
        await drained(one)

        async def lose() -> None:
            tiers.evict()

        async def fill() -> None:
            await third.get_tuple(config(checkpoint_id=told.gone[0]))

        acts = [lose, fill]
        Meanwhile(
            other.saver.hot, lambda request: acts.pop(0) if acts and script_of(request) is scripts.ROLL_BACK else None
        )
        async with Owning(other, on_busy="rollback"):
            assert acts == []
            assert await one.get_tuple(config(checkpoint_id=told.gone[0])) is None
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first
    await drained(other)
    assert await in_cold(tiers) == [told.first]


@pytest.mark.parametrize("is_dirty", [True, False])
async def test_a_rollback_removes_the_intent_of_a_dead_writer(tiers: Tiers, is_dirty: bool) -> None:
    """Hot drops its copy too, because cold may have newer data."""
    one, other, through = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.uniform()
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict()
        works = tiers.fails(through, scripts.END_INTENT)
        with pytest.raises(Exception, match="on purpose"):
            await through.put(config(), checkpoint({"n": 1}, {"n": "1"}), {"source": "loop", "step": 0}, {"n": "1"})
        works()
        assert tiers.target.raw.exists(keys_of(tiers).intents)
        tiers.later(context.WRITER_GONE)
        async with Owning(other, on_busy="rollback"):
            assert set(ids(await other.list(config()))).isdisjoint(told.gone)
        assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_a_rollback_repairs_damage_in_hot_first(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict("index")
        async with Owning(other, on_busy="rollback"):
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first


async def test_a_repeated_rollback_request_changes_nothing_more(tiers: Tiers) -> None:
    """The client repeats it after a lost reply."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:

        def twice(request: Any) -> Any:
            reply = yield request
            return (yield request) if script_of(request) is scripts.ROLL_BACK else reply

        Around(other.saver.hot, twice)
        async with Owning(other, on_busy="rollback") as new:
            last = await put(other, new, 4, told.first)
    await drained(other)
    assert await in_cold(tiers) == [last, told.first]


async def test_a_rollback_without_ownership_removes_nothing(tiers: Tiers) -> None:
    one, other, third = [await tiers.uniform(**BEHIND) for _ in range(3)]
    async with story(tiers, one) as told:
        next_one = Owning(third, on_busy="take")

        async def take() -> None:
            await next_one.__aenter__()

        between(other, scripts.ROLL_BACK, take)
        with pytest.raises(NotOwner):
            await Owning(other, on_busy="rollback").__aenter__()
        assert ids(await third.list(config())) == [*reversed(told.gone), told.first]
        await next_one.__aexit__(None, None, None)


async def test_values_of_a_rolled_back_run_do_not_outlive_it(tiers: Tiers) -> None:
    """Versions are integers, which a caller may choose. So the next run has the same version with another value."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await one.get_tuple(config())

    async def write(uniform: Uniform, owner: Any, number: int, value: str, parent: str | None, run: str) -> str:
        made = checkpoint({"n": [value], "same": ["kept"]}, {"n": number, "same": 1})
        where = config(**({"checkpoint_id": parent} if parent else {}), **owner)
        new = {"n": number} if number > 1 else {"n": number, "same": 1}
        await uniform.put(where, made, {"source": "loop", "step": number, "run_id": run}, new)
        return str(made["id"])

    first = await write(one, {}, 1, "first", None, "first run")
    async with Owning(one, run_id="a run") as old:
        token = {"thread_owner": old["configurable"]["thread_owner"]}
        await write(one, token, 2, "gone", first, "a run")
        await drained(one)
        async with Owning(other, on_busy="rollback") as new:
            token = {"thread_owner": new["configurable"]["thread_owner"]}
            last = await write(other, token, 2, "stays", first, "new run")
    await drained(other)
    cold = await tiers.cold_uniform()
    for checkpoint_id, value in ((first, "first"), (last, "stays")):
        found = await cold.get_tuple(config(checkpoint_id=checkpoint_id))
        assert found.checkpoint["channel_values"] == {"n": [value], "same": ["kept"]}


async def test_a_coalesced_checkpoint_reaches_cold_when_newest_again(tiers: Tiers) -> None:
    one, other = [await tiers.uniform(**BEHIND, cold_history="latest") for _ in range(2)]
    async with story(tiers, one) as told:
        await drained(one)
        assert await in_cold(tiers) == told.gone[1:]
        async with Owning(other, on_busy="rollback"):
            pass
        await drained(other)
    assert await in_cold(tiers) == [told.first]
    tiers.evict()
    assert (await one.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}


async def test_list_hides_rolled_back_checkpoints_that_cold_still_has(tiers: Tiers) -> None:
    """Hot has part of the thread, and cold refuses the removal."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict()
        async with Owning(other, on_busy="rollback"):

            def refusing(request: Any) -> Any:
                if isinstance(request, ColdCall) and request.method == "delete_checkpoints":
                    raise psycopg.OperationalError("on purpose")
                return (yield request)

            Around(other.saver, refusing)
            assert set(await in_cold(tiers)) == {told.first, *told.gone}
            assert ids(await other.list(config(), limit=1)) == [told.first]
            assert ids(await other.list(None)) == [told.first]


async def test_writes_without_a_token_are_refused_after_a_slow_rollback(tiers: Tiers) -> None:
    """Reading the run from cold took longer than the lease, which is renewed when the block begins."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    required = Uniform(type(one.saver)(tiers.target.uniform(ownership="required").saver, one.saver.cold, **BEHIND))
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict()

        def slow(request: Any) -> Any:
            if isinstance(request, ColdCall) and request.method == "checkpoints_of_run":
                lapse(tiers)
            return (yield request)

        Around(other.saver, slow)
        async with Owning(other, on_busy="rollback"):
            with pytest.raises(NotOwner):
                await put(required, None, 4, told.first)


def lapse(tiers: Tiers) -> None:
    """Let the owner's lease expire."""
    key = Keyspace(tiers.target.prefix).owner_key("thread")
    token, _, rest = tiers.target.raw.get(key).split(b" ", 2)
    tiers.target.raw.set(key, b" ".join([token, b"1", rest]), keepttl=True)


@pytest.mark.parametrize("change", ["prune", "delete_for_runs"])
async def test_a_change_in_cold_does_not_drop_a_dirty_thread(tiers: Tiers, change: str) -> None:
    """The process that changed cold paused so long that others wrote on, and cold lacks their records."""
    one, other = await tiers.uniform(), await tiers.uniform(**BEHIND)
    first = await put(one, None, 1, run_id="old run")
    second = await put(one, None, 2, first)
    made: list[str] = []

    async def meanwhile() -> None:
        tiers.later(context.WRITER_GONE)
        assert (await other.get_tuple(config())).checkpoint["id"] == second
        made.append(await put(other, None, 3, second))

    between(one, scripts.END_INTENT, meanwhile)
    if change == "prune":
        await one.prune(["thread"])
    else:
        await one.delete_for_runs(["old run"])
    assert (await other.get_tuple(config())).checkpoint["id"] == made[0]
    await drained(other)
    assert made[0] in await in_cold(tiers)
    tiers.evict()
    assert (await other.get_tuple(config())).checkpoint["id"] == made[0]
