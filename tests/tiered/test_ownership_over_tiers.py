"""Ownership over two tiers: hot knows who owns a thread, and a writer that is refused has written nothing to cold either."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, ids
from tests.support.tiering import BEHIND, Tiers, drained, keys_of
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, script_of

from redis_saver._common.names import Keyspace
from redis_saver._tiered import scripts
from redis_saver.errors import NotOwner, StaleParent

pytestmark = pytest.mark.also_on(cluster="async", valkey="sync")

MODES: list[dict[str, Any]] = [{}, BEHIND]
modes = pytest.mark.parametrize("mode", MODES, ids=["write-through", "write-behind"])


class Owning:
    """`own` in a saver's flavour."""

    def __init__(self, uniform: Uniform, **options: Any) -> None:
        self.owned, self.is_async = uniform.saver.own("thread", **options), uniform.native_async

    async def __aenter__(self) -> Any:
        return await self.owned.__aenter__() if self.is_async else await asyncio.to_thread(self.owned.__enter__)

    async def __aexit__(self, *error: Any) -> None:
        await (self.owned.__aexit__(*error) if self.is_async else asyncio.to_thread(self.owned.__exit__, *error))


async def put(uniform: Uniform, given: Any, value: int, parent: str | None = None, **metadata: Any) -> str:
    made = checkpoint({"n": value}, {"n": f"{value:032}.{id(object()):020}"})
    where = config(**({"checkpoint_id": parent} if parent else {}))
    if given is not None:
        where["configurable"]["thread_owner"] = given["configurable"]["thread_owner"]
    await uniform.put(where, made, {"source": "loop", "step": value, **metadata}, made["channel_versions"])
    return str(made["id"])


async def in_cold(tiers: Tiers) -> list[str]:
    return ids(await (await tiers.cold_uniform()).list(config()))


@modes
async def test_a_refused_writer_writes_nothing_to_either(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    async with Owning(one, by="the first") as old:
        first = await put(one, old, 1)
        await one.put_writes(
            {"configurable": {**config(checkpoint_id=first)["configurable"], **old["configurable"]}}, [("n", 2)], "task"
        )
        async with Owning(other, on_busy="take", by="the second") as new:
            for write in (
                lambda: put(one, old, 2, first),
                lambda: one.put_writes(
                    {"configurable": {**config(checkpoint_id=first)["configurable"], **old["configurable"]}},
                    [("n", 2)],
                    "t",
                ),
            ):
                with pytest.raises(NotOwner, match="the second owns the thread"):
                    await write()
            second = await put(other, new, 3, first)
    for uniform in (one, other):
        if mode:
            await drained(uniform)
    assert await in_cold(tiers) == [second, first]
    assert not [key for key in tiers.target.keys() if key.endswith(b"owner")]


@modes
async def test_the_token_goes_no_further_than_hot(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    async with Owning(uniform, run_id="a run") as given:
        given["metadata"]["thread_owner"] = given["configurable"]["thread_owner"]  # as LangChain copies texts there
        made = checkpoint({"n": 1})
        await uniform.put(
            {**given, "configurable": {**given["configurable"], "checkpoint_ns": ""}}, made, {}, {"n": "1"}
        )
    if mode:
        await drained(uniform)
    found = await (await tiers.cold_uniform()).get_tuple(config())
    assert "thread_owner" not in found.metadata
    assert found.metadata["run_id"] == "a run"


@modes
@pytest.mark.parametrize("is_owner_known", [True, False])
@pytest.mark.by_turns
async def test_what_hot_forgot_is_owned_all_the_same(tiers: Tiers, mode: dict[str, Any], is_owner_known: bool) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    async with Owning(one) as old:
        first = await put(one, old, 1)
        if mode:
            await drained(one)
        tiers.evict()
        if not is_owner_known:
            tiers.target.raw.delete(Keyspace(tiers.target.prefix).owner_key("thread"))
            with pytest.raises(NotOwner, match="nobody owns the thread by this token any more"):
                await put(one, old, 2, first)
        async with Owning(other, on_busy="take") as new:
            tokens = [given["configurable"]["thread_owner"] for given in (old, new)]
            assert int(tokens[0].split("-")[0]) < int(tokens[1].split("-")[0])
            assert (await other.get_tuple(config())).checkpoint["id"] == first
            with pytest.raises(NotOwner):
                await put(one, old, 2, first)
            second = await put(other, new, 2, first)
    if mode:
        await drained(other)
    assert await in_cold(tiers) == [second, first]


@modes
async def test_deletions(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    owner = Keyspace(tiers.target.prefix).owner_key("thread")
    async with Owning(one, by="somebody") as given:
        await put(one, given, 1)
        required = Uniform(
            type(other.saver)(tiers.target.uniform(ownership="required").saver, other.saver.cold, **mode)
        )
        with pytest.raises(NotOwner, match="somebody"):
            await required.delete_thread("thread")
        assert await one.get_tuple(config()) is not None
        await other.delete_thread("thread")
        assert not tiers.target.raw.exists(owner)
        with pytest.raises(NotOwner, match="nobody owns"):
            await put(one, given, 2)


@modes
async def test_a_copy_onto_the_thread_ends_the_ownership(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    await one.put(config("another"), checkpoint({"n": 1}), {}, {"n": "1"})
    async with Owning(one) as given:
        await put(one, given, 1)
        await other.copy_thread("another", "thread")
        with pytest.raises(NotOwner, match="nobody owns"):
            await put(one, given, 2)


@pytest.mark.parametrize("flavour", ["async"])  # both flavours delete by the same operation
async def test_a_deletion_ends_the_ownership_when_it_begins(tiers: Tiers) -> None:
    """What the owner before writes meanwhile would outlive it; and who takes the thread meanwhile waits, and keeps it."""
    one, other = await tiers.uniform(), await tiers.uniform()
    async with Owning(one) as old:
        await put(one, old, 1)
        took: list[asyncio.Task[Any]] = []
        next_one = Owning(await tiers.uniform())

        async def meanwhile() -> None:
            with pytest.raises(NotOwner, match="nobody owns"):
                await put(one, old, 2)
            took.append(asyncio.create_task(next_one.__aenter__()))
            while not tiers.target.raw.exists(Keyspace(tiers.target.prefix).owner_key("thread")):
                await asyncio.sleep(0.01)

        Meanwhile(other.saver.hot, lambda request: meanwhile if script_of(request) is scripts.ERASE else None)
        await other.delete_thread("thread")
        last = await put(one, await took[0], 3)
        await next_one.__aexit__(None, None, None)
    assert await in_cold(tiers) == [last]


@pytest.mark.parametrize(
    "flavour", ["async"]
)  # both flavours wait by the same operation; this plays it on one event loop
async def test_who_takes_a_thread_waits_for_what_is_on_its_way_to_cold(tiers: Tiers) -> None:
    one, other = await tiers.uniform(), await tiers.uniform()
    seen: list[str] = []
    async with Owning(one) as old:
        await one.get_tuple(config())  # as a graph does, so that hot has all of the thread
        first = await put(one, old, 1)
        took: list[asyncio.Task[Any]] = []

        async def take() -> None:
            owning = Owning(other, on_busy="take")

            async def hold() -> Any:
                new = await owning.__aenter__()
                seen.append("taken")
                return owning, new

            took.append(asyncio.get_running_loop().create_task(hold()))
            for _ in range(200):  # until it has taken the thread
                await asyncio.sleep(0.01)
                if b"-" in (tiers.target.raw.get(Keyspace(tiers.target.prefix).owner_key("thread")) or b""):
                    break
            seen.append("written")

        Meanwhile(one.saver.hot, lambda request: take if script_of(request) is scripts.PUT_THROUGH else None)
        second = await put(one, old, 2, first)  # was begun before, and is not refused
        owning, new = await took[0]
        assert seen == ["written", "taken"]
        assert (await other.get_tuple(config())).checkpoint["id"] == second
        third = await put(other, new, 3, second)
        await owning.__aexit__(None, None, None)
    assert await in_cold(tiers) == [third, second, first]


async def test_rollback_over_two_tiers(tiers: Tiers) -> None:
    one, other = await tiers.uniform(), await tiers.uniform()
    first = await put(one, None, 1)
    async with Owning(one, run_id="a run") as old:
        await put(one, old, 2, first, run_id="a run")
        async with Owning(other, on_busy="rollback") as new:
            assert (await other.get_tuple(config())).checkpoint["id"] == first
            last = await put(other, new, 3, first)
    assert await in_cold(tiers) == [last, first]


@modes
async def test_a_rollback_leaves_other_threads_as_they_are(tiers: Tiers, mode: dict[str, Any]) -> None:
    """A copy, and a thread that the same run wrote."""
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    first = await put(one, None, 1)
    async with Owning(one, run_id="a run") as old:
        await put(one, old, 2, first, run_id="a run")
        await one.copy_thread("thread", "copy")
        await one.put(config("called"), checkpoint({"n": 1}), {"source": "loop", "step": 0, "run_id": "a run"}, {})
        async with Owning(other, on_busy="rollback"):
            assert ids(await other.list(config())) == [first]
    if mode:
        await drained(other)
    for uniform in (other, await tiers.cold_uniform()):
        assert [len(await uniform.list(config(thread))) for thread in ("thread", "copy", "called")] == [1, 2, 1]
    for thread in ("copy", "called"):
        await other.get_tuple(config(thread))
        assert (await other.check(thread)).sound


@modes
async def test_a_rollback_that_would_change_other_threads_is_refused(tiers: Tiers, mode: dict[str, Any]) -> None:
    """A cold saver that is not Postgres removes a run from all threads, or from none."""
    cold = tiers.target.uniform(prefix=f"{tiers.target.prefix}-cold")
    one = await tiers.uniform(cold=cold.saver, **mode)
    async with Owning(one, run_id="a run") as old:
        first = await put(one, old, 1, run_id="a run")
        async with Owning(one, on_busy="rollback", run_id="a run") as old:
            assert await one.list(config()) == []
            first = await put(one, old, 2, run_id="a run")
            await one.copy_thread("thread", "copy")
            with pytest.raises(
                NotImplementedError, match="run 'a run' also has checkpoints in thread 'copy'.*Nothing was removed"
            ):
                await Owning(one, on_busy="rollback").__aenter__()
    if mode:
        await drained(one)
    assert [ids(await cold.list(config(thread))) for thread in ("thread", "copy")] == [[first]] * 2
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


@modes
async def test_two_runs_do_not_fork_a_thread(tiers: Tiers, mode: dict[str, Any]) -> None:
    hot = tiers.target.uniform(on_fork="raise").saver
    made = await tiers.uniform()
    uniform = Uniform(type(made.saver)(hot, made.saver.cold, **mode))
    first = await put(uniform, None, 1)
    one, other = await uniform.get_tuple(config()), await uniform.get_tuple(config())
    second, late = checkpoint({"n": 2}), checkpoint({"n": 3})
    await uniform.put(one.config, second, {"source": "loop", "step": 2}, {"n": "1"})
    with pytest.raises(StaleParent):
        await uniform.put(other.config, late, {"source": "loop", "step": 2}, {"n": "1"})
    if mode:
        await drained(uniform)
    assert await in_cold(tiers) == [second["id"], first]
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_a_writer_does_not_wait_for_its_own_intent(tiers: Tiers) -> None:
    """The reply to the request that began it was lost, so the client sends the request again."""
    hot = tiers.target.uniform(on_fork="raise").saver
    made = await tiers.uniform()
    uniform = Uniform(type(made.saver)(hot, made.saver.cold))
    first = await put(uniform, None, 1)
    found = await uniform.get_tuple(config())
    replies = []

    def twice(request: Any) -> Any:
        reply = yield request
        if script_of(request) is scripts.BEGIN_INTENT:
            again = yield request
            assert again == reply
            replies.append(reply)
        return reply

    Around(hot, twice)
    second = checkpoint({"n": 2})
    await uniform.put(found.config, second, {"source": "loop", "step": 2}, {"n": "1"})
    assert len(replies) == 1
    assert await in_cold(tiers) == [second["id"], first]
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


async def test_waiters_get_a_thread_one_by_one_in_order_of_arrival(tiers: Tiers) -> None:
    savers = [(await tiers.uniform()).saver for _ in range(2)]
    order: list[int] = []
    queue = Keyspace(tiers.target.prefix).owner_keys("thread")[1]

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
