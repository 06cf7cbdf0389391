"""Ownership over two tiers: hot knows the owner, and a refused writer changes neither tier."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from redis_saver._tiered import context, scripts
from redis_saver.errors import NotOwner, StaleParent
from tests.support.factories import checkpoint, config, ids
from tests.support.growing import until
from tests.support.owning import owner_key, server_time, set_lease, waiters_key
from tests.support.tiering import Tiers, both_modes, drained, id_of, keys_of, put_new, only_in_cold
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, script_of

pytestmark = pytest.mark.also_on(cluster="async", valkey="sync")


async def put(uniform: Uniform, given: Any, value: int, parent: str | None = None, **metadata: Any) -> str:
    """Put a checkpoint as the owner who got the config `given`, if any. Return its id."""
    made = checkpoint({"n": value}, {"n": f"{value:032}.{id(object()):020}"})
    owner = {"thread_owner": given["configurable"]["thread_owner"]} if given else {}
    where = config(checkpoint_id=parent, **owner)
    await uniform.put(where, made, {"source": "loop", "step": value, **metadata}, made["channel_versions"])
    return str(made["id"])


async def in_cold(tiers: Tiers) -> list[str]:
    return ids(await (await tiers.cold_uniform()).list(config()))


@both_modes
async def test_a_refused_writer_changes_neither_tier(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    async with one.own(by="the first") as old:
        first = await put(one, old, 1)
        where = config(checkpoint_id=first, **old["configurable"])
        await one.put_writes(where, [("n", 2)], "task")
        async with other.own(on_busy="take", by="the second") as new:
            for write in (put(one, old, 2, first), one.put_writes(where, [("n", 2)], "t")):
                with pytest.raises(NotOwner, match="the second has owned the thread"):
                    await write
            second = await put(other, new, 3, first)
    for uniform in (one, other):
        await drained(uniform)
    assert await in_cold(tiers) == [second, first]
    assert not [key for key in tiers.target.keys() if key.endswith(b"owner")]


@both_modes
async def test_cold_never_gets_the_owner_token(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    async with uniform.own(run_id="a run") as given:
        given["metadata"]["thread_owner"] = given["configurable"]["thread_owner"]  # LangChain does this
        where = {**given, "configurable": {**given["configurable"], "checkpoint_ns": ""}}
        await uniform.put(where, checkpoint({"n": 1}), {}, {"n": "1"})
    await drained(uniform)
    found = await (await tiers.cold_uniform()).get_tuple(config())
    assert "thread_owner" not in found.metadata and found.metadata["run_id"] == "a run"


@both_modes
@pytest.mark.parametrize("is_owner_known", [True, False])
@pytest.mark.by_turns
async def test_an_evicted_thread_stays_owned(tiers: Tiers, mode: dict[str, Any], is_owner_known: bool) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    async with one.own() as old:
        first = await put(one, old, 1)
        await only_in_cold(tiers, one)
        if not is_owner_known:
            tiers.target.raw.delete(owner_key(tiers.target))
            with pytest.raises(NotOwner, match="nobody owns the thread by this token any more"):
                await put(one, old, 2, first)
        async with other.own(on_busy="take") as new:
            tokens = [given["configurable"]["thread_owner"] for given in (old, new)]
            assert int(tokens[0].split("-")[0]) < int(tokens[1].split("-")[0])
            assert (await other.get_tuple(config())).checkpoint["id"] == first
            with pytest.raises(NotOwner):
                await put(one, old, 2, first)
            second = await put(other, new, 2, first)
    await drained(other)
    assert await in_cold(tiers) == [second, first]


@both_modes
async def test_both_tiers_list_an_orphaned_thread_until_its_next_run(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    async with uniform.own(run_id="a run") as given:
        await put(uniform, given, 1)
        await put_new(uniform, config("other"))
        await uniform.get_tuple(config())
        set_lease(tiers.target)
        assert [one.thread_id for one in await uniform.threads(state="active")] == ["other"]
        (orphan,) = await uniform.threads(state="orphaned")
        assert orphan.thread_id == "thread" and orphan.orphaned and orphan.owner.run_id == "a run"
        async with uniform.own():
            assert await uniform.threads(state="orphaned") == []


@both_modes
async def test_a_deletion_ends_ownership_unless_it_is_required(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    required = await tiers.uniform(hot={"ownership": "required"}, **mode)
    async with one.own(by="somebody") as given:
        await put(one, given, 1)
        with pytest.raises(NotOwner, match="somebody"):
            await required.delete_thread("thread")
        assert await one.get_tuple(config()) is not None
        await other.delete_thread("thread")
        assert not tiers.target.raw.exists(owner_key(tiers.target))
        with pytest.raises(NotOwner, match="nobody owns"):
            await put(one, given, 2)


@both_modes
async def test_a_copy_onto_a_thread_ends_its_ownership(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    await put_new(one, config("another"))
    async with one.own() as given:
        await put(one, given, 1)
        await other.copy_thread("another", "thread")
        with pytest.raises(NotOwner, match="nobody owns"):
            await put(one, given, 2)


@pytest.mark.parametrize("flavour", ["async"])  # both flavours share the operation
async def test_a_deletion_ends_ownership_at_its_start(tiers: Tiers) -> None:
    """Later writes of the old owner are refused. A new owner waits for the deletion and keeps the thread."""
    one, other, next_one = await tiers.uniform(), await tiers.uniform(), (await tiers.uniform()).own()
    async with one.own() as old:
        await put(one, old, 1)
        took: list[asyncio.Task[Any]] = []

        async def meanwhile() -> None:
            with pytest.raises(NotOwner, match="nobody owns"):
                await put(one, old, 2)
            took.append(asyncio.create_task(next_one.__aenter__()))
            await until(lambda: tiers.target.raw.exists(owner_key(tiers.target)))

        Meanwhile(other.saver.hot, lambda request: meanwhile if script_of(request) is scripts.ERASE else None)
        await other.delete_thread("thread")
        last = await put(one, await took[0], 3)
        await next_one.__aexit__(None, None, None)
    assert await in_cold(tiers) == [last]


@pytest.mark.parametrize("flavour", ["async"])  # both flavours share the operation, played on one event loop
async def test_a_new_owner_waits_for_writes_on_their_way_to_cold(tiers: Tiers) -> None:
    one, other = await tiers.uniform(), await tiers.uniform()
    seen, took = list[str](), list[asyncio.Task[Any]]()
    async with one.own() as old:
        await one.get_tuple(config())  # like a graph, so hot has the whole thread
        first = await put(one, old, 1)
        taking = other.own(on_busy="take")

        async def hold() -> Any:
            new = await taking.__aenter__()
            seen.append("taken")
            return new

        async def take() -> None:
            took.append(asyncio.create_task(hold()))
            await until(lambda: b"-" in (tiers.target.raw.get(owner_key(tiers.target)) or b""))
            seen.append("written")

        Meanwhile(one.saver.hot, lambda request: take if script_of(request) is scripts.PUT_THROUGH else None)
        second = await put(one, old, 2, first)  # began earlier, so it is not refused
        new = await took[0]
        assert seen == ["written", "taken"]
        assert (await other.get_tuple(config())).checkpoint["id"] == second
        third = await put(other, new, 3, second)
        await taking.__aexit__(None, None, None)
    assert await in_cold(tiers) == [third, second, first]


@both_modes
async def test_a_rollback_removes_the_run_from_both_tiers_but_not_from_other_threads(
    tiers: Tiers, mode: dict[str, Any]
) -> None:
    """Other threads are a copy, and a thread written by the same run."""
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    first = await put(one, None, 1)
    async with one.own(run_id="a run") as old:
        await put(one, old, 2, first, run_id="a run")
        await one.copy_thread("thread", "copy")
        await put_new(one, config("called"), run_id="a run")
        async with other.own(on_busy="rollback") as new:
            assert ids(await other.list(config())) == [first]
            last = await put(other, new, 3, first)
    await drained(other)
    assert await in_cold(tiers) == [last, first]
    for uniform in (other, await tiers.cold_uniform()):
        assert [len(await uniform.list(config(thread))) for thread in ("thread", "copy", "called")] == [2, 2, 1]
    for thread in ("copy", "called"):
        await other.get_tuple(config(thread))
        assert (await other.check(thread)).sound


@both_modes
async def test_a_rollback_over_another_cold_saver_is_refused(tiers: Tiers, mode: dict[str, Any]) -> None:
    cold = tiers.target.uniform(prefix=f"{tiers.target.prefix}-cold")
    one = await tiers.uniform(cold=cold.saver, **mode)
    async with one.own(run_id="a run") as old:
        first = await put(one, old, 1, run_id="a run")
        with pytest.raises(NotImplementedError, match="needs LangGraph's PostgresSaver as cold. The thread was not"):
            await one.own(on_busy="rollback").__aenter__()
        second = await put(one, old, 2, first, run_id="a run")
    await drained(one)
    assert ids(await cold.list(config())) == [second, first]
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


@both_modes
async def test_a_fork_is_refused_over_two_tiers(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(hot={"on_fork": "raise"}, **mode)
    first = await put(uniform, None, 1)
    one, other = await uniform.get_tuple(config()), await uniform.get_tuple(config())
    second = await put_new(uniform, one.config)
    with pytest.raises(StaleParent):
        await put_new(uniform, other.config)
    await drained(uniform)
    assert await in_cold(tiers) == [id_of(second), first]
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_a_repeated_intent_does_not_block_its_writer(tiers: Tiers) -> None:
    """The client sends the request again after a lost reply."""
    uniform = await tiers.uniform(hot={"on_fork": "raise"})
    first, replies = await put(uniform, None, 1), []
    found = await uniform.get_tuple(config())

    def twice(request: Any) -> Any:
        reply = yield request
        if script_of(request) is scripts.BEGIN_INTENT:
            assert (yield request) == reply
            replies.append(reply)
        return reply

    Around(uniform.saver.hot, twice)
    second = await put_new(uniform, found.config)
    assert len(replies) == 1
    assert await in_cold(tiers) == [id_of(second), first]
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_waiters_get_a_thread_in_order_of_arrival(tiers: Tiers) -> None:
    savers = [(await tiers.uniform()).saver for _ in range(2)]
    order: list[int] = []
    queue = waiters_key(tiers.target)

    async def turn(number: int) -> None:
        async with savers[number % 2].own("thread", on_busy="wait", wait="60s"):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    async with savers[0].own("thread"):
        turns, arrived = [], set[bytes]()
        for number in range(4):
            turns.append(asyncio.create_task(turn(number)))
            while len(arrived) <= number:
                await asyncio.sleep(0.005)
                arrived |= {member for member in tiers.target.raw.zrange(queue, 0, -1) if member.startswith(b"arrival")}
    await asyncio.gather(*turns)
    assert order == [0, 0, 1, 1, 2, 2, 3, 3]
    assert not [key for key in tiers.target.keys() if key.endswith((b":owner", b":waiters"))]


# -- writers that died


def left_behind(tiers: Tiers, at: int) -> None:
    """Leave the write intent of a writer that was killed."""
    tiers.target.raw.zadd(keys_of(tiers).intents, {b"%015d-" % at + b"*" * 16 + b"f" * 32: 0})


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_new_owner_does_not_wait_for_a_dead_writer(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    left_behind(tiers, int(server_time(tiers.target)) - context.WRITER_GONE - 1)
    began = time.monotonic()
    async with uniform.own() as given:
        assert time.monotonic() - began < context.WRITER_GONE / 1000 / 2  # a live writer has five minutes
        await put_new(uniform, config(thread_owner=given["configurable"]["thread_owner"]))


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_waiting_owner_renews_its_lease(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "WRITER_GONE", 2000)
    owning, key, seen = ((await tiers.uniform()).own(lease="1s"), owner_key(tiers.target), set())
    left_behind(tiers, int(server_time(tiers.target)))
    took = asyncio.ensure_future(owning.__aenter__())
    while not took.done():
        if record := tiers.target.raw.get(key):
            seen.add(record.split(b" ")[1])
        await asyncio.sleep(0.01)
    assert len(seen) > 2  # renewed several times
    await owning.__aexit__(None, None, None)
    async with (await tiers.uniform()).own(lease="1s"):
        pass


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_waiting_owner_can_lose_the_thread(tiers: Tiers) -> None:
    uniform, key = await tiers.uniform(), owner_key(tiers.target)
    left_behind(tiers, int(server_time(tiers.target)))
    took = asyncio.ensure_future(uniform.own(lease="1s").__aenter__())
    await until(lambda: tiers.target.raw.get(key))
    async with tiers.target.uniform().own(on_busy="take"):
        with pytest.raises(NotOwner):
            await took
