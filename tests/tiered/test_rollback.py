"""Roll-back over two tiers: hot removes the run at once and notes the ids, which the flusher removes in cold whenever it gets there."""

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
    """The kinds of what cold does not have."""
    return {member[:1] for member in tiers.target.raw.zrange(keys_of(tiers).dirty, 0, -1)}


class Story:
    """A thread with a checkpoint of nobody's run, and two of a run whose owner is pushed out."""

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
    """Another session holds a lock, so Postgres answers nothing about checkpoints."""
    with psycopg.connect(tiers.url) as connection:
        connection.execute("LOCK TABLE checkpoints, checkpoint_writes, checkpoint_blobs IN ACCESS EXCLUSIVE MODE")
        yield


def fail_cold(uniform: Uniform) -> list[str]:
    """From now on each call of cold fails; the answer has their names."""
    calls: list[str] = []

    def failing(request: Any) -> Any:
        if isinstance(request, ColdCall):
            calls.append(request.method)
            raise psycopg.OperationalError("on purpose")
        return (yield request)

    Around(uniform.saver, failing)
    return calls


async def test_a_rollback_of_a_thread_that_hot_has_whole_asks_cold_for_nothing(tiers: Tiers) -> None:
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
    """Hot has nothing left then, and knows it."""
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


async def test_nothing_is_left_of_a_thread_whose_only_run_was_rolled_back(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    await one.get_tuple(config())
    async with Owning(one, run_id="a run") as old:
        await put(one, old, 1, run_id="a run")
        async with Owning(other, on_busy="rollback"):
            pass
    await drained(other)
    assert await in_cold(tiers) == []
    assert [key.rpartition(b":")[2] for key in tiers.target.keys()] in ([b"flush"], [b"unflushed", b"flush"])


async def test_a_lock_in_cold_keeps_no_owner_waiting(tiers: Tiers) -> None:
    """The removal waits in Postgres; meanwhile the next owners build on what is left, and it takes nothing of theirs."""
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        with locked(tiers):
            async with Owning(other, on_busy="rollback", run_id="a run") as new:  # the same id once more
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


async def test_a_flusher_that_removes_late_removes_nothing_of_the_next_run(tiers: Tiers) -> None:
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


async def test_a_flusher_that_brings_late_what_was_rolled_back(tiers: Tiers) -> None:
    """It finds out that its claim was taken over; what it brought is removed once more."""
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


async def test_hot_has_a_part_of_the_run_or_nothing(tiers: Tiers) -> None:
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
async def test_a_reader_does_not_bring_back_what_was_rolled_back(tiers: Tiers, which: str) -> None:
    """It has read cold before, and fills hot after."""
    one, other, reader = [await tiers.uniform(**BEHIND) for _ in range(3)]
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict()
        new = Owning(other, on_busy="rollback")

        async def meanwhile() -> None:
            await new.__aenter__()

        between(reader, scripts.FILL, meanwhile)
        where = config() if which == "newest" else config(checkpoint_id=told.gone[0])
        found = await reader.get_tuple(where)  # as it was when the reader began
        assert found.checkpoint["id"] == told.gone[which == "newest"]
        assert (await reader.get_tuple(config())).checkpoint["id"] == told.first
        assert await reader.get_tuple(where if which == "by id" else config(checkpoint_id=told.gone[1])) is None
        await new.__aexit__(None, None, None)


async def test_hot_that_changes_meanwhile_is_looked_at_again(tiers: Tiers) -> None:
    """It loses the thread after the roll-back has seen what it has, or gets it back."""
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
async def test_a_writer_that_died_between_the_tiers_is_not_waited_for_twice(tiers: Tiers, is_dirty: bool) -> None:
    """Its intent is gone, and so is what hot had, because cold may know better."""
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


async def test_damage_in_hot_is_repaired_first(tiers: Tiers) -> None:
    one, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    async with story(tiers, one) as told:
        await drained(one)
        tiers.evict("index")
        async with Owning(other, on_busy="rollback"):
            assert (await other.get_tuple(config())).checkpoint["id"] == told.first


async def test_the_request_is_sent_again(tiers: Tiers) -> None:
    """The reply was lost; what the first one did is not undone, nor done to anything else."""
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


async def test_who_lost_the_thread_removes_nothing(tiers: Tiers) -> None:
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


async def test_values_of_the_run_are_removed_and_the_next_run_brings_its_own(tiers: Tiers) -> None:
    """Versions are integers here, as a caller may choose them: the same version comes again with another value."""
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


async def test_what_was_coalesced_gets_to_cold_where_it_is_newest_again(tiers: Tiers) -> None:
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


async def test_list_leaves_out_what_cold_still_has(tiers: Tiers) -> None:
    """Hot has a part of the thread, and cold refuses the removal."""
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
    """Cold took longer than the lease to say what it has of the run. When the block begins, the lease lasts."""
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
    """Let the lease run out."""
    key = Keyspace(tiers.target.prefix).owner_key("thread")
    token, _, rest = tiers.target.raw.get(key).split(b" ", 2)
    tiers.target.raw.set(key, b" ".join([token, b"1", rest]), keepttl=True)


@pytest.mark.parametrize("change", ["prune", "delete_for_runs"])
async def test_hot_is_not_given_up_while_it_is_dirty(tiers: Tiers, change: str) -> None:
    """Who changed cold was stopped for so long that others went on, and wrote what cold does not have."""
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
