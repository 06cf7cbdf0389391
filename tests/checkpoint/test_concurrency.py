"""Concurrent writers, prune and copy_thread on one thread: acknowledged writes are kept, and all data is whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from tests.support.factories import config, ids
from tests.support.factories import put as put_new
from tests.support.growing import Step, grow, keys, name, outcome, together, values
from tests.support.proxy import Proxy, proxy, through
from tests.support.raw import check_sound, without_revision
from tests.support.uniform import Target, Uniform

from redis_saver import Pruned, ThreadBusy
from redis_saver._common import names
from redis_saver._checkpoint import pruning, scripts

WRITERS = 64


@pytest.fixture(params=["redis", "cluster"])
def target_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- concurrent writers


@pytest.mark.parametrize("spread", [1, WRITERS], ids=["one thread", "many threads"])
async def test_all_concurrent_puts_are_stored(target: Target, spread: int) -> None:
    uniform = target.uniform()

    async def write(number: int) -> None:
        thread = f"thread {number % spread}"
        await grow(uniform, number, thread=thread)
        await uniform.put_writes(config(thread, checkpoint_id=name(number)), [("n", number)], "task")

    await together(uniform, *(write(number) for number in range(1, WRITERS + 1)))
    for number in range(1, WRITERS + 1):
        found = await uniform.get_tuple(config(f"thread {number % spread}", checkpoint_id=name(number)))
        assert found.checkpoint["channel_values"] == values(number)
        assert found.pending_writes == [("task", "n", number)]
    listed = [one for thread in range(spread) for one in ids(await uniform.list(config(f"thread {thread}")))]
    assert sorted(listed) == [name(number) for number in range(1, WRITERS + 1)]
    for thread in range(spread):
        check_sound(target, f"thread {thread}")


@pytest.mark.parametrize("target_name", ["redis"])
async def test_concurrent_put_and_put_writes_are_both_kept(target: Target) -> None:
    uniform = target.uniform()
    for number in range(1, 31):
        where = config(checkpoint_id=name(number))
        jobs = [
            grow(uniform, number, number - 1 or None),
            uniform.put_writes(where, [("n", number), ("__interrupt__", number)], "task a"),
            uniform.put_writes(where, [("n", -number)], "task b"),
        ]
        random.Random(number).shuffle(jobs)
        await together(uniform, *jobs)
        found = await uniform.get_tuple(config())
        assert found.checkpoint["channel_values"] == values(number)
        expected = [("task a", "__interrupt__", number), ("task a", "n", number), ("task b", "n", -number)]
        assert found.pending_writes == expected
    assert len(await uniform.list(config())) == 30
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_put_during_delete_thread_is_whole_or_gone(target: Target) -> None:
    uniform = target.uniform()
    for number in range(2, 42, 2):
        await grow(uniform, number)
        jobs = [grow(uniform, number + 1, number), uniform.delete_thread("thread")]
        random.Random(number).shuffle(jobs)
        await together(uniform, *jobs)
        found = await uniform.get_tuple(config())
        if found is None:
            assert target.keys() == []
        else:
            assert found.checkpoint["channel_values"] == values(number + 1)
            check_sound(target)


# -- prune and writers


@pytest.mark.parametrize("target_name", ["redis"])
async def test_forks_put_during_prune_are_whole(target: Target) -> None:
    uniform, forkers, turns = target.uniform(), 3, 15
    await grow(uniform, 1)
    constants, acknowledged, done = {1: 1}, [1], []

    async def fork(forker: int) -> None:
        chance = random.Random(forker)
        try:
            for turn in range(turns):
                number, parent = 2 + forker + forkers * turn, chance.choice(acknowledged)
                constants[number] = number if chance.random() < 0.3 else constants[parent]
                await grow(uniform, number, parent, constant=constants[number])
                acknowledged.append(number)
                for old in chance.sample(acknowledged, min(5, len(acknowledged))):
                    await check(old)
        finally:
            done.append(forker)

    async def check(number: int) -> None:
        found = await uniform.get_tuple(config(checkpoint_id=name(number)))
        if found is not None:
            assert found.checkpoint["channel_values"] == values(number, constants[number])

    async def prune() -> None:
        while len(done) < forkers:
            assert isinstance(await outcome(uniform.prune(["thread"])), Pruned | ThreadBusy)

    await together(uniform, prune(), *(fork(forker) for forker in range(forkers)))
    newest = max(acknowledged)
    check_sound(target)
    assert newest == 1 + forkers * turns
    for number in acknowledged:
        await check(number)
    await uniform.prune(["thread"])
    assert ids(await uniform.list(config())) == [name(newest)]
    await check(newest)
    check_sound(target)


CONSTANTS = {1: 1, 2: 2, 3: 2, 4: 1, 5: 2}


async def plant(uniform: Uniform, thread: str) -> None:
    """Make a chain of three, a fork from its root, and a subgraph. Only 2 and 3 share a value."""
    for number, parent in ((1, None), (2, 1), (3, 2), (4, 1)):
        await grow(uniform, number, parent, thread=thread, constant=CONSTANTS[number])
    await grow(uniform, 2, thread=thread, ns="sub|1")
    await uniform.put_writes(config(thread, checkpoint_id=name(3)), [("n", 3)], "task")


async def check_values(target: Target, thread: str) -> list[str]:
    """Check that a thread is sound and its checkpoints have their values. Return the ids of the root's."""
    uniform = target.uniform()
    if target.raw.exists(*keys(target, thread).values()):
        check_sound(target, thread)
        members = target.raw.zrange(keys(target, thread)["index"], 0, -1)
        written = {names.checkpoint(*names.components(member[1:])[:2]) for member in members if member[:1] == b"w"}
        assert written <= set(members), "writes of a removed checkpoint are left"
    found = await uniform.list(config(thread))
    for one in found:
        number = int(one.checkpoint["id"][1:])
        assert one.checkpoint["channel_values"] in (values(number, CONSTANTS[number]), {"n": "again"})
    return ids(found)


async def begin_anew(uniform: Uniform) -> None:
    """Delete the thread and make a new one of that name, with as many puts."""
    await uniform.delete_thread("thread")
    for number, parent in ((1, None), (2, 1), (3, 2), (4, 1), (5, 3)):
        await grow(uniform, number, parent, constant=CONSTANTS[number])


async def copy_anew(uniform: Uniform) -> None:
    await grow(uniform, 5, 3, thread="source", constant=2)
    await uniform.copy_thread("source", "thread")


async def put_again(uniform: Uniform, thread: str) -> None:
    await put_new(uniform, config(thread), {"n": "again"}, versions={"n": "again"}, checkpoint_id=name(2))


def beside(target: Target, step: Step) -> Callable[[], None]:
    """Return a step made by another process."""
    uniform = Uniform(target.blocking())
    return lambda: asyncio.run(step(uniform))  # type: ignore[arg-type]


BESIDE_PRUNE: dict[str, Step] = {
    "a fork": lambda uniform: grow(uniform, 5, 3, constant=2),
    "a checkpoint again": lambda uniform: put_again(uniform, "thread"),
    "writes": lambda uniform: uniform.put_writes(config(checkpoint_id=name(3)), [("n", 3)], "task 3"),
    "another prune": lambda uniform: uniform.prune(["thread"]),
    "delete_for_runs": lambda uniform: uniform.delete_for_runs(["second"]),
    "delete_thread": lambda uniform: uniform.delete_thread("thread"),
    "a new thread of that name": begin_anew,
    "a new copy": copy_anew,
}
KEPT: dict[str, list[int | None]] = {
    **dict.fromkeys(BESIDE_PRUNE, [4]),
    **dict.fromkeys(["a fork", "a new thread of that name", "a new copy"], [5]),
    "delete_for_runs": [2, None],
    "delete_thread": [None],
}
"""Checkpoints that prune may keep then: the newest, or none."""


@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("step", BESIDE_PRUNE)
async def test_a_step_between_prunes_plan_and_its_removal_damages_nothing(
    target: Target, proxy: Proxy, step: str
) -> None:
    direct = target.uniform()
    if step == "a new copy":
        await plant(direct, "source")
        await direct.copy_thread("source", "thread")
    else:
        await plant(direct, "thread")
    proxy.before(scripts.REMOVE.sha.encode(), beside(target, BESIDE_PRUNE[step]))
    await through(proxy, target).prune(["thread"])
    assert proxy.waiting == 0
    assert await check_values(target, "thread") in [[name(number)] if number else [] for number in KEPT[step]]


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("operation", ["prune", "delete_for_runs"])
async def test_the_next_removal_finishes_one_that_died_half_way(
    target: Target, proxy: Proxy, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "NAMES_PER_STEP", 100)
    uniform, dying = target.uniform(), through(proxy, target)
    removals: dict[str, Step] = {
        "prune": lambda uniform: uniform.prune(["thread", "warm"]),
        "delete_for_runs": lambda uniform: uniform.delete_for_runs(["third"]),
    }
    for number in (1, 7, 8):
        await grow(uniform, number, thread="warm")
    await removals[operation](uniform)
    await grow(uniform, 1)
    for number in range(10, 50):
        await grow(uniform, number, number - 1 if number > 10 else 1)
        if number > 10:
            await uniform.put_writes(config(checkpoint_id=name(number)), [("n", number)], "task")
    await grow(uniform, 5 if operation == "delete_for_runs" else 50, 49)

    proxy.lose_reply(scripts.REMOVE.sha.encode())
    error = await outcome(removals[operation](dying))
    assert isinstance(error, redis.ConnectionError), error
    left = await uniform.list(config())
    assert 1 < len(left) < 42, "the removal was not interrupted half way"
    await removals[operation](uniform)
    check_sound(target)
    assert ids(await uniform.list(config())) == ([name(50)] if operation == "prune" else [name(5), name(1)])


# -- copy_thread and writers


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_copy_made_during_writes_is_a_whole_chain(target: Target) -> None:
    uniform, done = target.uniform(), []

    async def write() -> None:
        try:
            for number in range(1, 61):
                await grow(uniform, number, number - 1 or None)
                await uniform.put_writes(config(checkpoint_id=name(number)), [("n", number)], "task")
        finally:
            done.append(True)

    async def copy() -> None:
        while True:
            over = bool(done)
            await uniform.copy_thread("thread", "copy")
            found = (await uniform.list(config("copy")))[::-1]
            for number, one in enumerate(found, 1):
                assert one.checkpoint["id"] == name(number)
                assert one.checkpoint["channel_values"] == values(number)
                parent = config("copy", checkpoint_id=name(number - 1)) if number > 1 else None
                assert one.parent_config == parent
                assert one.pending_writes == [("task", "n", number)] or number == len(found)
            if over:
                assert len(found) == 60
                return

    await together(uniform, write(), copy())
    check_sound(target)


BESIDE_COPY: dict[str, Step] = {
    "a fork": lambda uniform: grow(uniform, 5, 3, thread="source", constant=2),
    "a checkpoint again": lambda uniform: put_again(uniform, "source"),
    "writes": lambda uniform: uniform.put_writes(config("source", checkpoint_id=name(3)), [("n", 3)], "task 3"),
    "prune": lambda uniform: uniform.prune(["source"]),
    "delete_for_runs": lambda uniform: uniform.delete_for_runs(["second"]),
    "delete_thread": lambda uniform: uniform.delete_thread("source"),
    "a copy to the same target": lambda uniform: uniform.copy_thread("source", "thread"),
}


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("script", ["READ_FIELDS", "STAGE", "PROMOTE"])
@pytest.mark.parametrize("step", BESIDE_COPY)
@pytest.mark.by_turns
async def test_a_step_between_the_parts_of_a_copy_damages_nothing(
    target: Target, proxy: Proxy, step: str, script: str
) -> None:
    await plant(target.uniform(), "source")
    proxy.before(getattr(scripts, script).sha.encode(), beside(target, BESIDE_COPY[step]))
    await through(proxy, target).copy_thread("source", "thread")
    assert proxy.waiting == 0
    copied, source = await check_values(target, "thread"), await check_values(target, "source")
    assert copied in (source, [name(4), name(3), name(2), name(1)])


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.usefixtures("same_data_keys")
async def test_concurrent_copies_to_one_target_leave_one_of_them(target: Target) -> None:
    uniform = target.uniform()
    await plant(uniform, "first")
    await grow(uniform, 7, thread="second", constant=7)

    async def held(source: str | None = None) -> tuple[Any, Any]:
        """Contents of the target except its name and revision, after a copy of `source` if given."""
        if source:
            await uniform.copy_thread(source, "thread")
        index, data = keys(target).values()
        return target.raw.zrange(index, 0, -1), without_revision(target.raw.hgetall(data))

    expected = await held("first"), await held("second")
    for _ in range(5):
        await together(uniform, *(uniform.copy_thread(source, "thread") for source in ("first", "second") * 8))
        check_sound(target)
        assert await held() in expected
        assert len(target.keys()) == 6
