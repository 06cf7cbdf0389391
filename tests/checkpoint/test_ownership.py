"""Ownership: one run at a time writes a thread, and a run whose thread was taken is refused, however late."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, ids
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict
from tests.support.owning import THREAD, epoch, owner_key, owning, server_time, set_lease
from tests.support.uniform import Target, Uniform, called
from tests.support.wrappers import Around, noted

from redis_saver import RedisSaver
from redis_saver._checkpoint import guards
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.names import Keyspace
from redis_saver.errors import NotOwner, StaleParent, UnsupportedFormat

pytestmark = pytest.mark.also_on(cluster="async", redis62="sync", fakeredis="async", lua54="sync")


def at(given: RunnableConfig | None, **where: Any) -> RunnableConfig:
    """A config of the thread, with the token of `given`."""
    mine = config(**where)
    token = (given or {}).get("configurable", {}).get("thread_owner")
    return {"configurable": {**mine["configurable"], **({"thread_owner": token} if token else {})}}


def made_of(value: int) -> Checkpoint:
    return checkpoint({"n": value}, {"n": f"{value:032}.{id(object())}"})


async def put(
    uniform: Uniform, given: RunnableConfig | None, value: int, parent: str | None = None, **more: Any
) -> str:
    made = made_of(value)
    where = at(given, **({"checkpoint_id": parent} if parent else {}))
    await uniform.put(where, made, {"source": "loop", "step": value, **more}, made["channel_versions"])
    return str(made["id"])


async def test_the_owner_writes_and_leaves_no_key(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform) as given:
        assert given["configurable"]["thread_id"] == THREAD
        first = await put(uniform, given, 1)
        await uniform.put_writes(at(given, checkpoint_id=first), [("n", 2)], "task")
        found = await uniform.get_tuple(config())
        assert found.checkpoint["id"] == first
        assert [one[2] for one in found.pending_writes] == [2]
        assert "thread_owner" not in found.metadata
    assert owner_key(target) not in target.keys()
    await put(uniform, None, 2, first)


async def test_a_taken_thread_refuses_its_last_owner_and_changes_nothing(target: Target) -> None:
    one, other = target.uniform(), target.uniform()
    async with owning(one, by="the first", lease="1s") as old:
        first = await put(one, old, 1)
        async with owning(other, on_busy="take", by="the second") as new:
            before = target.raw.hgetall(Keyspace(target.prefix).keys(THREAD).data_key)
            for write in (
                lambda: put(one, old, 2, first),
                lambda: one.put_writes(at(old, checkpoint_id=first), [("n", 2)], "task"),
                lambda: one.put_writes(at(old, checkpoint_id=first), [("__error__", "x")], "task"),
                lambda: one.delete_thread(THREAD),
                lambda: one.prune([THREAD], strategy="delete"),
            ):
                with pytest.raises(
                    NotOwner, match=r"the second has owned the thread since 20.*Nothing was w"
                ) as caught:
                    await write()
                assert "{thread}:owner')" in str(caught.value)
                assert caught.value.by == "the second"
                assert pickle.loads(pickle.dumps(caught.value)).since == caught.value.since
            assert target.raw.hgetall(Keyspace(target.prefix).keys(THREAD).data_key) == before
            second = await put(other, new, 2, first)
            assert epoch(new) > epoch(old)
            with pytest.raises(NotOwner):
                await one.prune([THREAD])
        with pytest.raises(NotOwner, match=r"nobody owns the thread by this token any more \(in .*\{thread\}:owner'\)"):
            await put(one, old, 3, second)
    assert (await one.get_tuple(config())).checkpoint["id"] == second


async def test_a_late_owner_may_write_until_another_takes_the_thread(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform) as given:
        first = await put(uniform, given, 1)
        set_lease(target)
        second = await put(uniform, given, 2, first)
        async with owning(target.uniform()) as other:  # the lease has expired, so `on_busy` is not needed
            await put(target.uniform(), other, 3, second)
            with pytest.raises(NotOwner):
                await put(uniform, given, 4, second)


async def test_a_clock_that_jumps_back_lowers_no_epoch(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform) as old:
        record = target.raw.get(owner_key(target)).split(b" ", 1)
        nonce = record[0].split(b"-")[1]
        ahead = b"%d" % (int(record[0].split(b"-")[0]) + 3_600_000_000)  # taken when the clock was an hour ahead
        target.raw.set(owner_key(target), ahead + b"-" + nonce + b" " + record[1])
        async with owning(target.uniform(), on_busy="take") as new:
            assert epoch(new) == int(ahead) + 1
            first = await put(uniform, new, 1)
            with pytest.raises(NotOwner):
                await put(uniform, old, 2, first)


async def test_attempts_to_own_a_thread_are_counted_with_their_waits(target: Target) -> None:
    uniform = target.uniform()
    async with owning(target.uniform()):
        for options in ({}, {"on_busy": "wait", "wait": "60ms"}):
            with pytest.raises(NotOwner):
                async with owning(uniform, **options):
                    pass
    async with owning(uniform):
        pass
    owned = uniform.saver.stats().operations["own"]
    assert (owned.calls, owned.errors) == (3, 2) and 0.06 <= owned.seconds < 30


async def test_a_busy_thread_raises_not_owner(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform, by="worker 7", run_id="run/7 %-") as given:
        with pytest.raises(NotOwner, match="worker 7 has owned the thread since"):
            async with owning(target.uniform()):
                pass
        with pytest.raises(NotOwner, match=r"worker 7.*\{thread\}:owner"):
            async with owning(target.uniform(), on_busy="wait", wait="50ms"):
                pass
        await put(uniform, given, 1)
    async with owning(target.uniform(), on_busy="wait", wait="0s"):
        pass


async def test_a_waiter_continues_after_the_lease_expired(target: Target) -> None:
    async with owning(target.uniform()) as old:
        uniform = target.uniform()
        set_lease(target, int(server_time(target)) + 200)
        async with owning(uniform, on_busy="wait") as new:
            first = await put(uniform, new, 1)
            with pytest.raises(NotOwner):
                await put(uniform, old, 2, first)


async def test_threads_show_their_owners(target: Target) -> None:
    uniform = target.uniform()
    await put(uniform, None, 1)
    assert (await uniform.get_thread(THREAD)).owner is None
    async with owning(uniform, by="worker 7", run_id="a run", lease="20s") as given:
        owner = (await uniform.get_thread(THREAD)).owner
        assert (owner.by, owner.run_id) == ("worker 7", "a run")
        assert timedelta(seconds=1) < owner.lease_left <= timedelta(seconds=20)
        assert epoch(given) == pytest.approx(owner.since.timestamp() * 1e6, abs=1)
        await uniform.put(config("free"), made_of(1), {}, {"n": "1"})
        assert [one.thread_id for one in await uniform.threads(owned=True)] == [THREAD]
        assert [one.thread_id for one in await uniform.threads(owned=False)] == ["free"]
        set_lease(target)
        assert (await uniform.get_thread(THREAD)).owner.lease_left == timedelta()
        assert [one.thread_id for one in await uniform.threads(owned=True)] == []
    with pytest.raises(TypeError, match="owned='yes'"):
        await uniform.threads(owned="yes")


async def test_a_thread_is_orphaned_while_its_lease_has_ended_without_a_release(target: Target) -> None:
    uniform = target.uniform()
    await put(uniform, None, 1)
    await uniform.put(config("free"), made_of(1), {}, {"n": "1"})

    async def found(state: str) -> list[str]:
        return sorted([one.thread_id for one in await uniform.threads(state=state)])

    async with owning(uniform, run_id="a run", lease="20s") as given:
        assert await found("orphaned") == [] and await found("active") == ["free", THREAD]
        waiting = await put(uniform, given, 2)
        await uniform.put_writes(at(given, checkpoint_id=waiting), [("__interrupt__", 1)], "task")
        set_lease(target, 1500)  # as if the process had died
        assert await found("orphaned") == await found("interrupted") == [THREAD] and await found("active") == ["free"]
        info = await uniform.get_thread(THREAD)
        ended = datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=timezone.utc)
        assert info.orphaned and (info.owner.run_id, info.owner.lease_until) == ("a run", ended)
        async with owning(uniform, on_busy="wait", lease="20s"):  # the next run
            assert await found("orphaned") == []
    assert await found("orphaned") == [] and not (await uniform.get_thread(THREAD)).orphaned


async def test_rollback_removes_what_the_other_run_wrote(target: Target) -> None:
    uniform, other = target.uniform(), target.uniform()
    before = await put(uniform, None, 1)
    async with owning(uniform, run_id="a run") as old:
        lost = await put(uniform, old, 2, before, run_id="a run")
        await uniform.put_writes(at(old, checkpoint_id=lost), [("n", 3)], "task")
        async with owning(other, on_busy="rollback", run_id="another") as new:
            assert (await other.get_tuple(config())).checkpoint["id"] == before
            last = await put(other, new, 3, before)
    assert ids(await uniform.list(config())) == [last, before]


async def test_required_ownership_refuses_all_others(target: Target) -> None:
    uniform = target.uniform(ownership="required")
    first = await put(uniform, None, 1)  # nobody owns it
    await uniform.copy_thread(THREAD, "another")
    async with owning(target.uniform(), by="somebody") as given:
        for write in (
            lambda: put(uniform, None, 2, first),
            lambda: uniform.put_writes(config(checkpoint_id=first), [("n", 2)], "task"),
            lambda: uniform.delete_thread(THREAD),
            lambda: uniform.prune([THREAD], strategy="delete"),
            lambda: uniform.copy_thread("another", THREAD),
        ):
            with pytest.raises(NotOwner, match="somebody"):
                await write()
        second = await put(uniform, given, 2, first)  # the token is a str: any saver writes with it
    assert ids(await uniform.list(config())) == [second, first]


async def test_updates_of_an_owned_thread_need_ownership(target: Target) -> None:
    uniform, other = target.uniform(ownership="required"), target.uniform(ownership="required")
    compiled, theirs = graph(uniform.saver), graph(other.saver)
    where = {"configurable": {"thread_id": THREAD}}
    await run(compiled, uniform, {"n": 0}, where)
    past = (await uniform.list(where))[-2].config

    async def update(config: Any) -> None:
        await called(other, theirs, "update_state", config, {"n": 9}, as_node="one")

    async with owning(uniform, by="the run") as given:
        for change in (
            lambda: update(where),
            lambda: update(past),  # a fork
            lambda: run(theirs, other, None, past),  # time travel
        ):
            with pytest.raises(NotOwner, match="the run has owned the thread since"):
                await change()
        assert await run(compiled, uniform, {"n": 4}, given) == {"n": 6}
        async with owning(other, on_busy="take") as taken:
            await update(taken)
            with pytest.raises(NotOwner):
                await run(compiled, uniform, {"n": 0}, given)
    assert await run(compiled, uniform, None, where) == {"n": 10}


async def test_ownership_that_is_not_required_refuses_nobody(target: Target) -> None:
    uniform = target.uniform()
    async with owning(target.uniform()) as given:
        first = await put(uniform, None, 1)
        await put(target.uniform(), given, 2, first)


async def test_a_deletion_by_others_ends_the_ownership(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform) as given:
        await put(uniform, given, 1)
        await uniform.delete_thread(THREAD)  # inside the block the saver writes as the owner
        assert target.keys() == [owner_key(target)]
        await put(uniform, given, 2)
        await target.uniform().delete_thread(THREAD)
        assert target.keys() == []
        with pytest.raises(NotOwner, match="nobody owns the thread by this token any more"):
            await put(uniform, given, 3)
    assert target.keys() == []


async def test_a_dry_run_or_a_failure_of_a_deletion_ends_no_ownership(target: Target) -> None:
    uniform, data = target.uniform(), Keyspace(target.prefix).keys(THREAD).data_key
    async with owning(uniform) as given:
        first = await put(uniform, given, 1)
        await target.uniform().prune([THREAD], strategy="delete", dry_run=True)
        first = await put(uniform, given, 2, first)
        known = target.raw.hget(data, "@state")
        target.raw.hset(data, "@state", b"9" + known[1:])  # a newer release stored it
        with pytest.raises(UnsupportedFormat):
            await target.uniform().delete_thread(THREAD)
        target.raw.hset(data, "@state", known)
        await put(uniform, given, 3, first)


async def test_a_copy_onto_the_thread_by_others_ends_the_ownership(target: Target) -> None:
    """The checkpoints that the owner would continue from are gone."""
    uniform = target.uniform()
    await uniform.put(config("another"), made_of(1), {}, {"n": "1"})
    async with owning(uniform) as given:
        first = await put(uniform, given, 1)
        await uniform.copy_thread("another", THREAD)  # by the owner
        await put(uniform, given, 2, first)
        code = contextvars.Context()  # as in another process
        await code.run(asyncio.ensure_future, target.uniform().copy_thread("another", THREAD))
        with pytest.raises(NotOwner, match="nobody owns the thread by this token any more"):
            await put(uniform, given, 3)
        assert len(ids(await uniform.list(config()))) == 1


async def test_a_copy_has_no_owner(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform) as given:
        await put(uniform, given, 1)
        await uniform.copy_thread(THREAD, "copy")
    assert not [one for one in target.keys() if one.endswith(b"owner")]


async def test_unused_ownership_costs_no_round_trip_and_no_key(saver: Uniform) -> None:
    await put(saver, None, 0)  # with encryption, it also asks for the data key
    seen = noted(saver.saver)
    first = await put(saver, None, 1)
    assert [len(request.keys) for request, _ in seen] == [2]
    seen.clear()
    async with owning(saver) as given:
        assert len(seen) == 1
        seen.clear()
        await put(saver, given, 2, first)
        assert [len(request.keys) for request, _ in seen] == [3]
        seen.clear()
    assert len(seen) == 1


async def test_a_take_is_sent_again_if_its_reply_is_lost(target: Target) -> None:
    """The lease counts from the second request, as the first may have been long ago."""
    uniform, other = target.uniform(), target.uniform(ownership="required")

    def twice(request: Any) -> Any:
        yield request
        if target.raw.get(owner_key(target)):
            set_lease(target)
        return (yield request)

    Around(uniform.saver, twice)
    async with owning(uniform) as given:
        with pytest.raises(NotOwner):
            await put(other, None, 0)
        first = await put(uniform, given, 1)
        await put(uniform, given, 2, first)
    assert owner_key(target) not in target.keys()


DAMAGED = {
    b"": "nobody",
    b"\xff\x00garbage": "nobody",
    b"1-ab 2 3 - - \r\n-ERR x\x1b[0m": "has owned the thread since 1970",
}


@pytest.mark.parametrize("stored", DAMAGED)
async def test_damaged_bytes_under_the_owners_key_raise_not_owner(target: Target, stored: bytes) -> None:
    uniform, says = target.uniform(), DAMAGED[stored]
    async with owning(uniform) as given:
        target.raw.set(owner_key(target), stored)
        with pytest.raises(NotOwner, match=says) as caught:
            await put(uniform, given, 1)
        assert str(caught.value).isprintable()
    target.raw.unlink(owner_key(target))


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, f"{name}={value!r}") for name, value in (("lease", "10ms"), ("lease", "2d"), ("lease", 30))),
    *(({name: value}, f"{name}={value!r}") for name, value in (("on_busy", "reject"), ("by", 7), ("thread_id", None))),
    ({"wait": "1s"}, "wait='1s' goes with on_busy='wait'"),
    ({"on_busy": "wait", "wait": timedelta(seconds=-1)}, "wait="),
    ({"leese": "1s"}, "unexpected keyword argument 'leese'"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
@pytest.mark.parametrize("target_name", ["fakeredis"])
@pytest.mark.by_turns
async def test_wrong_arguments_are_refused(target: Target, options: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        target.uniform().saver.own(**{"thread_id": THREAD, **options})
    assert target.keys() == []


@pytest.mark.parametrize("token", [7, "", "x", "1-ABC", "12-0123456789abcdef\n"])
@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_invalid_tokens_are_refused(target: Target, token: Any) -> None:
    made = made_of(1)
    given = {"configurable": {"thread_id": THREAD, "thread_owner": token}}
    with pytest.raises((TypeError, ValueError), match="thread_owner.*own"):
        await target.uniform().put(given, made, {}, {})
    assert target.keys() == []


# -- a parent that is not the newest


class State(TypedDict):
    n: int


def graph(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("one", lambda state: {"n": state["n"] + 1})
    builder.add_node("two", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "one").add_edge("one", "two")
    return builder.compile(checkpointer=saver)


async def run(compiled: Any, uniform: Uniform, given: Any, where: Any, **options: Any) -> Any:
    return await called(uniform, compiled, "invoke", given, where, **options)


async def test_two_runs_of_one_thread_do_not_fork_it(target: Target) -> None:
    uniform = target.uniform(on_fork="raise")
    first = await put(uniform, None, 1)
    one, other = await uniform.get_tuple(config()), await uniform.get_tuple(config())
    made, late, metadata = made_of(2), made_of(3), {"source": "loop", "step": 2}
    await uniform.put(one.config, made, metadata, made["channel_versions"])
    with pytest.raises(StaleParent, match=f"the newest checkpoint.*{made['id']}.*Nothing was written"):
        await uniform.put(other.config, late, metadata, late["channel_versions"])
    await uniform.put(one.config, made, metadata, made["channel_versions"])  # sent again
    assert ids(await uniform.list(config())) == [made["id"], first]


async def test_two_first_runs_of_a_thread_do_not_fork_it(target: Target) -> None:
    uniform = target.uniform(on_fork="raise")
    await put(uniform, None, 1, source="input")
    with pytest.raises(StaleParent):
        await put(uniform, None, 2, source="input")


async def test_intended_forks_are_allowed(target: Target) -> None:
    uniform = target.uniform(on_fork="raise")
    compiled, where = graph(uniform.saver), {"configurable": {"thread_id": THREAD}}
    assert await run(compiled, uniform, {"n": 0}, where) == {"n": 2}
    assert await run(compiled, uniform, {"n": 5}, where) == {"n": 7}
    history = [one.config for one in await uniform.list(where)]
    past = history[-2]["configurable"]
    explicit = {"configurable": {"thread_id": THREAD, "checkpoint_ns": "", "checkpoint_id": past["checkpoint_id"]}}
    assert await run(compiled, uniform, None, explicit) == {"n": 2}  # time travel
    found = await uniform.get_tuple(where)
    assert await run(compiled, uniform, {"n": 1}, found.config) == {"n": 3}  # the config of a state
    stale = await uniform.get_tuple(where)
    await run(compiled, uniform, {"n": 2}, where)
    assert await run(compiled, uniform, {"n": 3}, stale.config) == {"n": 5}  # and that of an older one
    await called(uniform, compiled, "update_state", explicit, {"n": 9}, as_node="one")
    assert await run(compiled, uniform, None, where) == {"n": 10}


def in_two_subgraphs(saver: Any) -> Any:
    """Make a graph of two subgraphs, so that a namespace begins in the middle of a run."""
    inner = StateGraph(State).add_node("more", lambda state: {"n": state["n"] + 1}).add_edge(START, "more").compile()
    builder = StateGraph(State).add_node("one", inner).add_node("two", inner)
    return builder.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver)


async def meanwhile(uniform: Uniform, ns: str | None) -> str:
    """Continue from the newest checkpoint, as another process."""
    found = await uniform.get_tuple(config(ns=ns))
    made = checkpoint({"n": 50})
    await uniform.put(found.config, made, {"source": "loop", "step": found.metadata["step"] + 1}, {"n": "1"})
    return str(made["id"])


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.also_on(cluster="sync")
async def test_a_run_is_refused_if_another_run_continued_the_thread(target: Target, is_first: bool) -> None:
    uniform, other = target.uniform(on_fork="raise"), target.uniform()
    compiled = in_two_subgraphs(uniform.saver)
    if not is_first:
        await stepped(compiled, uniform, [])
    seen: list[Any] = []

    async def step(part: Any) -> None:
        if not seen:
            seen.append(await meanwhile(other, ""))

    with pytest.raises(StaleParent):
        await stepped(compiled, uniform, [step])
    assert ids(await uniform.list(config()))[0] == seen[0]


async def stepped(compiled: Any, uniform: Uniform, steps: list[Any]) -> None:
    """Run a graph with actions between its steps. The output of a step is stored before the actions."""
    more: Any = {"stream_mode": "updates", "durability": "sync"}
    if uniform.native_async:
        async for part in compiled.astream({"n": 0}, config(), **more):
            for step in steps:
                await step(part)
        return
    for part in compiled.stream({"n": 0}, config(), **more):
        for step in steps:
            await step(part)


@pytest.mark.also_on(cluster="sync")
async def test_a_namespace_is_tracked_by_its_last_checkpoint(target: Target) -> None:
    uniform, other = target.uniform(on_fork="raise"), target.uniform()
    first, second, late, past = (checkpoint({"n": n}) for n in range(4))
    begun = await uniform.put(config(ns="sub:1"), first, {"source": "input", "step": -1}, {"n": "1"})
    gone_on = await uniform.put(begun, second, {"source": "loop", "step": 0}, {"n": "1"})
    await uniform.put(begun, past, {"source": "fork", "step": 0}, {"n": "1"})  # a fork on purpose
    await meanwhile(other, "sub:1")
    with pytest.raises(StaleParent):
        await uniform.put(gone_on, late, {"source": "loop", "step": 1}, {"n": "1"})
    # The same as if the caller had named the parent.
    explicit = await uniform.put(gone_on, late, {"source": "input", "step": 1}, {"n": "1"})
    assert explicit["configurable"]["checkpoint_id"] == late["id"]


@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_only_the_latest_loops_are_remembered(target: Target, monkeypatch: Any) -> None:
    monkeypatch.setattr(guards, "_begun", BoundedCache(3))
    uniform = target.uniform(on_fork="raise")
    for number in range(5):
        await uniform.put(config(f"t{number}"), checkpoint({"n": 1}), {"source": "input", "step": -1}, {"n": "1"})
    assert [thread for _, thread, _ in guards._begun] == ["t2", "t3", "t4"]


# -- graphs


@pytest.mark.parametrize("on", [{}, {"on_fork": "raise"}, {"ownership": "required", "on_fork": "raise"}])
async def test_a_graph_runs_as_the_owner(target: Target, on: Any) -> None:
    uniform = target.uniform(**on)
    compiled = graph(uniform.saver)
    async with owning(uniform, run_id="the run") as given:
        assert await run(compiled, uniform, {"n": 0}, given) == {"n": 2}
    found = await uniform.list(config())
    assert len(found) == 4
    assert {one.metadata["run_id"] for one in found} == {"the run"}
    assert not [one for one in found if "thread_owner" in one.metadata]


async def test_a_subgraph_and_a_resumed_run_write_as_the_owner(target: Target) -> None:
    uniform = target.uniform(ownership="required", on_fork="raise")
    inner = StateGraph(State)
    inner.add_node("asks", lambda state: {"n": state["n"] + interrupt("how many?")})
    inner.add_edge(START, "asks")
    builder = StateGraph(State)
    builder.add_node("inner", inner.compile()).add_edge(START, "inner")
    compiled = builder.compile(checkpointer=uniform.saver)
    async with owning(uniform) as given:
        await run(compiled, uniform, {"n": 1}, given)
    async with owning(uniform) as given:
        assert await run(compiled, uniform, Command(resume=5), given) == {"n": 6}
        other = {"configurable": {"thread_id": THREAD}}
        code = contextvars.Context()  # as in another process: only the config has the token
        with pytest.raises(NotOwner):
            await code.run(asyncio.ensure_future, run(compiled, uniform, {"n": 1}, other))
        assert await code.run(asyncio.ensure_future, run(compiled, uniform, {"n": 1}, given))


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_run_that_lost_its_thread_starts_no_further_step(target: Target) -> None:
    """This holds with `durability="sync"`."""
    uniform, seen, other = target.uniform(), list[str](), ExitStack()

    def one(state: State) -> State:
        seen.append("one")
        other.enter_context(target.blocking().own(THREAD, on_busy="take"))
        return state

    def two(state: State) -> State:
        seen.append("two")
        return state

    builder = StateGraph(State).add_node("one", one).add_node("two", two)
    compiled = builder.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=uniform.saver)
    with other:
        async with owning(uniform) as given:
            with pytest.raises(NotOwner):
                await run(compiled, uniform, {"n": 0}, given, durability="sync")
        assert seen == ["one"]


async def test_code_that_outlives_the_block_is_no_owner(saver: Uniform) -> None:
    async with owning(saver):
        code = contextvars.copy_context()
    await code.run(asyncio.ensure_future, put(saver, None, 1))


@pytest.mark.parametrize("target_name", ["fakeredis"])
def test_a_block_can_be_entered_only_once(target: Target) -> None:
    saver = target.uniform().saver
    if not isinstance(saver, RedisSaver):
        return
    owned = saver.own(THREAD)
    with owned:
        pass
    with pytest.raises(RuntimeError, match="call own\\(\\) again"), owned:
        pass
