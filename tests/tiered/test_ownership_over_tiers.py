"""Ownership over two tiers: hot knows the owner, and a refused writer changes neither tier."""

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
    """`own` of a blocking or async saver."""

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
async def test_a_refused_writer_changes_neither_tier(tiers: Tiers, mode: dict[str, Any]) -> None:
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
                with pytest.raises(NotOwner, match="the second has owned the thread"):
                    await write()
            second = await put(other, new, 3, first)
    for uniform in (one, other):
        if mode:
            await drained(uniform)
    assert await in_cold(tiers) == [second, first]
    assert not [key for key in tiers.target.keys() if key.endswith(b"owner")]


@modes
async def test_cold_never_gets_the_owner_token(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    async with Owning(uniform, run_id="a run") as given:
        given["metadata"]["thread_owner"] = given["configurable"]["thread_owner"]  # LangChain does this
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
async def test_an_evicted_thread_stays_owned(tiers: Tiers, mode: dict[str, Any], is_owner_known: bool) -> None:
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
async def test_both_tiers_list_an_orphaned_thread_until_its_next_run(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform, key = await tiers.uniform(**mode), Keyspace(tiers.target.prefix).owner_key("thread")
    async with Owning(uniform, run_id="a run") as given:
        await put(uniform, given, 1)
        await uniform.put(config("other"), checkpoint({"n": 1}), {}, {"n": "1"})
        await uniform.get_tuple(config())
        record = tiers.target.raw.get(key).split(b" ", 2)
        tiers.target.raw.set(key, b" ".join([record[0], b"1", record[2]]))  # as if its process had died
        assert [one.thread_id for one in await uniform.threads(state="active")] == ["other"]
        (orphan,) = await uniform.threads(state="orphaned")
        assert orphan.thread_id == "thread" and orphan.orphaned and orphan.owner.run_id == "a run"
        async with Owning(uniform):
            assert await uniform.threads(state="orphaned") == []


@modes
async def test_a_deletion_ends_ownership_unless_it_is_required(tiers: Tiers, mode: dict[str, Any]) -> None:
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
async def test_a_copy_onto_a_thread_ends_its_ownership(tiers: Tiers, mode: dict[str, Any]) -> None:
    one, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    await one.put(config("another"), checkpoint({"n": 1}), {}, {"n": "1"})
    async with Owning(one) as given:
        await put(one, given, 1)
        await other.copy_thread("another", "thread")
        with pytest.raises(NotOwner, match="nobody owns"):
            await put(one, given, 2)


@pytest.mark.parametrize("flavour", ["async"])  # both flavours share the operation
async def test_a_deletion_ends_ownership_at_its_start(tiers: Tiers) -> None:
    """Later writes of the old owner are refused. A new owner waits for the deletion and keeps the thread."""
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


@pytest.mark.parametrize("flavour", ["async"])  # both flavours share the operation, played on one event loop
async def test_a_new_owner_waits_for_writes_on_their_way_to_cold(tiers: Tiers) -> None:
    one, other = await tiers.uniform(), await tiers.uniform()
    seen: list[str] = []
    async with Owning(one) as old:
        await one.get_tuple(config())  # like a graph, so hot has the whole thread
        first = await put(one, old, 1)
        took: list[asyncio.Task[Any]] = []

        async def take() -> None:
            owning = Owning(other, on_busy="take")

            async def hold() -> Any:
                new = await owning.__aenter__()
                seen.append("taken")
                return owning, new

            took.append(asyncio.get_running_loop().create_task(hold()))
            for _ in range(200):
                await asyncio.sleep(0.01)
                if b"-" in (tiers.target.raw.get(Keyspace(tiers.target.prefix).owner_key("thread")) or b""):
                    break
            seen.append("written")

        Meanwhile(one.saver.hot, lambda request: take if script_of(request) is scripts.PUT_THROUGH else None)
        second = await put(one, old, 2, first)  # began earlier, so it is not refused
        owning, new = await took[0]
        assert seen == ["written", "taken"]
        assert (await other.get_tuple(config())).checkpoint["id"] == second
        third = await put(other, new, 3, second)
        await owning.__aexit__(None, None, None)
    assert await in_cold(tiers) == [third, second, first]


async def test_a_rollback_removes_the_run_from_both_tiers(tiers: Tiers) -> None:
    one, other = await tiers.uniform(), await tiers.uniform()
    first = await put(one, None, 1)
    async with Owning(one, run_id="a run") as old:
        await put(one, old, 2, first, run_id="a run")
        async with Owning(other, on_busy="rollback") as new:
            assert (await other.get_tuple(config())).checkpoint["id"] == first
            last = await put(other, new, 3, first)
    assert await in_cold(tiers) == [last, first]


@modes
async def test_a_rollback_changes_no_other_thread(tiers: Tiers, mode: dict[str, Any]) -> None:
    """Other threads are a copy, and a thread written by the same run."""
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
async def test_a_rollback_over_another_cold_saver_is_refused(tiers: Tiers, mode: dict[str, Any]) -> None:
    cold = tiers.target.uniform(prefix=f"{tiers.target.prefix}-cold")
    one = await tiers.uniform(cold=cold.saver, **mode)
    async with Owning(one, run_id="a run") as old:
        first = await put(one, old, 1, run_id="a run")
        with pytest.raises(NotImplementedError, match="needs LangGraph's PostgresSaver as cold. Nothing was removed"):
            await Owning(one, on_busy="rollback").__aenter__()
    if mode:
        await drained(one)
    assert ids(await cold.list(config())) == [first]
    assert not tiers.target.raw.exists(keys_of(tiers).intents)


@modes
async def test_a_fork_is_refused_over_two_tiers(tiers: Tiers, mode: dict[str, Any]) -> None:
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


async def test_a_repeated_intent_does_not_block_its_writer(tiers: Tiers) -> None:
    """The client sends the request again after a lost reply."""
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


async def test_waiters_get_a_thread_in_order_of_arrival(tiers: Tiers) -> None:
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
