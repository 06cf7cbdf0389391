"""History limits in hot, while cold keeps everything: reads fall back to cold, and a trim keeps the backlog."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.guards import ANYBODY, GuardedScript
from redis_saver._common import names
from redis_saver._storage import codec
from redis_saver._tiered import scripts as tiered_scripts
from tests.support.factories import checkpoint, config, ids
from tests.support.seeds import seeds_and_slow, targets
from tests.support.tiering import BEHIND, LATEST, FlakySaver, Tiers, both_modes, drained, id_of, keys_of, plain, put_new
from tests.support.wrappers import Around, script_of

pytestmark = pytest.mark.also_on(cluster="sync")

HOT: dict[str, Any] = {"hot": {"history": {"keep_last": 3}}}
SHORT: dict[str, Any] = {**HOT, **BEHIND}
MOST = 3 + 32


def in_hot(tiers: Tiers, ns: str = "") -> list[str]:
    """Ids of a namespace in hot, newest first."""
    prefix, members = b"c" + names.component(ns), tiers.target.raw.zrange(keys_of(tiers).index_key, 0, -1)
    return [names.name_of(one[len(prefix) :]) for one in reversed(members) if one.startswith(prefix)]


def marks(tiers: Tiers) -> set[bytes]:
    return {field for field in tiers.target.raw.hkeys(keys_of(tiers).data_key) if field[:1] == b"@"}


class Talk:
    """A thread with a value in chunks, a constant value, and a `DeltaChannel`."""

    def __init__(self, uniform: Any) -> None:
        self.uniform, self.number, self.said = uniform, 0, list[str]()
        self.versions: dict[str, dict[str, str]] = {}
        self.where: dict[str, Any] = {}
        self.puts = Counter[str]()

    async def put(self, ns: str = "", parent: Any = None, **metadata: Any) -> Any:
        self.number += 1
        where = parent or self.where.get(ns) or config("thread", ns)
        before = self.versions.get(where["configurable"].get("checkpoint_id", ""), {})
        self.said.append(f"{self.number} " * 60)
        version = f"{self.number:032}.{self.number:020}"
        values: dict[str, Any] = {"said": list(self.said), "n": self.number}
        new = dict.fromkeys(("said", "n", *(("log",) if before else ())), version)
        self.puts[ns] += 1
        if self.puts[ns] % 9 == 0 and before:
            values["log"] = _DeltaSnapshot([f"until {self.number}"])
        if not before:
            values["first"], new["first"] = self.number, version
        elif "first" in before:
            values["first"] = int(before["first"][:32])
        made = checkpoint(values, {**before, **new}, str(uuid6(clock_seq=-1)))
        self.where[ns] = await self.uniform.put(where, made, {"step": self.number, "parents": {}, **metadata}, new)
        self.versions[made["id"]] = {**before, **new}
        await self.uniform.put_writes(self.where[ns], [("log", [self.number])], f"task {self.number}", "path")
        return self.where[ns]

    async def puts_of(self, count: int) -> list[Any]:
        return [await self.put() for _ in range(count)]


async def same_as_cold(tiers: Tiers, uniform: Any) -> None:
    """Check that a list, the checkpoints in hot, and every third other one with its history are answered as by cold."""
    cold = await tiers.cold_uniform()
    everything = await cold.list(config("thread", None))
    found = {one.checkpoint["id"]: plain(one) for one in await uniform.list(config("thread", None))}
    assert found == {one.checkpoint["id"]: plain(one) for one in everything}
    kept = {*in_hot(tiers), *in_hot(tiers, "memory")}
    for number, one in enumerate(everything):
        if number % 3 == 0 or one.checkpoint["id"] in kept:
            assert plain(await uniform.get_tuple(one.config)) == plain(one)
        if number % 3 == 0 and "log" not in one.checkpoint["channel_values"]:
            query = {"config": one.config, "channels": ["log"]}
            assert await uniform.get_delta_channel_history(**query) == await cold.get_delta_channel_history(**query)


@both_modes
@pytest.mark.by_turns
@pytest.mark.also_on(cluster="sync", redis62="async")
async def test_hot_keeps_fewer_checkpoints_than_cold(tiers: Tiers, mode: dict[str, Any]) -> None:
    flaky = FlakySaver(await tiers.cold())
    talk = await begun(tiers, **HOT, **mode, cold=flaky.wrap())
    uniform = talk.uniform
    for number in range(60):
        await talk.put()
        if number % 5 == 4:
            await talk.put("memory")
        if mode and number % 7 == 6:
            await drained(uniform)
    await drained(uniform)
    await talk.put()
    await drained(uniform)
    assert 3 <= len(in_hot(tiers)) <= MOST + 9, "hot keeps the newest, and those from which the log is rebuilt"
    assert len(in_hot(tiers, "memory")) == 12
    assert b"@complete" not in marks(tiers)
    assert {b"@has_latest" + names.component(ns) for ns in ("", "memory")} <= marks(tiers)
    flaky.calls.clear()
    for ns in ("", "memory"):
        assert (await uniform.get_tuple(config("thread", ns))).config == talk.where[ns]
        await uniform.get_delta_channel_history(config=talk.where[ns], channels=["log"])
    assert flaky.calls == [], "hot alone answers for the newest checkpoint"
    assert (await uniform.check("thread")).findings == ()
    assert len(await (await tiers.cold_uniform()).list(config("thread", None))) == 73
    for each in (uniform, await tiers.uniform(**HOT, **mode)):
        await same_as_cold(tiers, each)
    assert (await uniform.check("thread")).findings == ()


async def begun(tiers: Tiers, **settings: Any) -> Talk:
    talk = Talk(await tiers.uniform(**settings))
    assert await talk.uniform.get_tuple(config()) is None
    return talk


async def test_a_trim_keeps_checkpoints_that_cold_lacks(tiers: Tiers) -> None:
    talk = await begun(tiers, **SHORT)
    await talk.puts_of(50)
    assert len(in_hot(tiers)) == 50
    assert b"@complete" in marks(tiers)
    await drained(talk.uniform)
    await talk.puts_of(20)
    assert len(in_hot(tiers)) <= MOST + 9 + 20
    await drained(talk.uniform)
    await same_as_cold(tiers, talk.uniform)


async def late_write_is_in_cold(tiers: Tiers, uniform: Any, where: Any) -> None:
    """Check that hot has kept a checkpoint, as cold lacked one of its writes, and flushes that."""
    assert id_of(where) in in_hot(tiers)
    await drained(uniform)
    assert ("late", "n", "late") in (await (await tiers.cold_uniform()).get_tuple(where)).pending_writes


async def test_a_trim_keeps_checkpoints_with_unflushed_writes(tiers: Tiers) -> None:
    talk = await begun(tiers, **SHORT)
    configs = await talk.puts_of(18)
    await drained(talk.uniform)
    await talk.uniform.put_writes(configs[4], [("n", "late")], "late", "path")
    await talk.puts_of(30)
    await late_write_is_in_cold(tiers, talk.uniform, configs[4])


async def test_a_trim_keeps_checkpoints_that_get_writes_meanwhile(tiers: Tiers) -> None:
    talk, late = await begun(tiers, **SHORT), 0
    configs = await talk.puts_of(MOST)
    await drained(talk.uniform)

    def around(request: Any) -> Any:
        nonlocal late
        if script_of(request) is scripts.REMOVE and not late:
            late += 1
            member = names.task("", id_of(configs[4]), "late")
            hot, key = talk.uniform.saver.hot._context, b""
            (record,), _ = codec.encode_writes(hot, [("n", "late")], "path")
            if hot.data_keys is not None:
                cipher = hot.data_keys._ciphers["thread"]
                (record,), key = cipher.seal_writes(member, [record]), cipher.argument
            of_checkpoint = b"w" + names.checkpoint("", id_of(configs[4]))[1:]
            arguments = (member, record, 1, "", "", key, "", of_checkpoint)
            yield GuardedScript(tiered_scripts.PUT_WRITES_BEHIND, keys_of(tiers).writing, ANYBODY).call(*arguments)
        return (yield request)

    Around(talk.uniform.saver.hot, around)
    await talk.put()
    assert late == 1
    assert id_of(configs[6]) not in in_hot(tiers), "a checkpoint that nothing needs is removed"
    await late_write_is_in_cold(tiers, talk.uniform, configs[4])


async def test_a_trim_keeps_what_only_hot_has(tiers: Tiers) -> None:
    """The thread is older than the tiers and has its own limit. A process that writes to hot alone never trims it."""
    talk, alone_again, uniform = Talk(tiers.target.uniform()), tiers.target.uniform(), await tiers.uniform(**SHORT)
    await talk.put(parent=config("thread", "", None, thread_history={"keep_last": 3}))
    await talk.puts_of(10)
    talk.uniform = uniform
    for number in range(40):
        await talk.put()
        if number % 5 == 0:
            await drained(uniform)
    await drained(uniform)
    assert len(await (await tiers.cold_uniform()).list(config("thread", None))) == 51
    await same_as_cold(tiers, uniform)
    before, talk.uniform = in_hot(tiers), alone_again
    await talk.puts_of(30)
    assert len(in_hot(tiers)) == len(before) + 30, "a saver that does not know cold must not prune"


async def test_a_trim_agrees_with_a_coalescing_cold(tiers: Tiers) -> None:
    uniform, where = await tiers.uniform(**{**SHORT, **LATEST}), config()
    assert await uniform.get_tuple(config()) is None
    for number in range(60):
        where = await put_new(uniform, where, number)
        if number % 6 == 5:
            await drained(uniform)
    assert len(in_hot(tiers)) <= MOST
    there = set(ids(await uniform.list(config())))
    in_cold = set(ids(await (await tiers.cold_uniform()).list(config())))
    assert there == in_cold | set(in_hot(tiers))
    assert 10 <= len(in_cold) < 20
    for one in there:
        assert (await uniform.get_tuple(config("thread", "", one))).checkpoint["id"] == one
    tiers.evict()
    assert (await uniform.get_tuple(config())).config == where


@both_modes
@pytest.mark.by_turns
async def test_a_trim_removes_old_subgraph_calls_from_hot(tiers: Tiers, mode: dict[str, Any]) -> None:
    talk = await begun(tiers, **HOT, **mode)
    for number in range(32):
        root = await talk.put()
        for _ in range(2):
            await talk.put(f"sub:{number}", parents={"": id_of(root)})
        await drained(talk.uniform)
    members = tiers.target.raw.zrange(keys_of(tiers).index_key, 0, -1)
    called = {one.split(b"\0")[0] for one in members if one.startswith(b"csub")}
    latest = {one for one in marks(tiers) if one.startswith(b"@has_latestsub")}
    assert max(len(called), len(latest)) <= MOST + 9
    assert len(await (await tiers.cold_uniform()).list(config("thread", None))) == 96
    await same_as_cold(tiers, talk.uniform)


@both_modes
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 10)))
@pytest.mark.by_turns
async def test_random_threads_with_a_limit_match_cold(tiers: Tiers, mode: dict[str, Any], seed: int) -> None:
    """Two processes fork from any checkpoint and write late, while hot sometimes loses the thread."""
    chance = random.Random(seed)
    processes = [await tiers.uniform(**HOT, **mode) for _ in range(2)]
    talk = Talk(processes[0])
    configs: dict[str, list[Any]] = {"": [], "memory": []}
    for step in range(120):
        talk.uniform = chance.choice(processes)
        ns = chance.choice(["", "", "memory"])
        parent = chance.choice(configs[ns]) if configs[ns] and chance.random() < 0.1 else None
        if step == 0:
            assert await talk.uniform.get_tuple(config()) is None
        configs[ns].append(await talk.put(ns, parent))
        if chance.random() < 0.1:
            await talk.uniform.put_writes(chance.choice(configs[ns]), [("n", step)], f"late {step}", "path")
        if chance.random() < 0.3:
            await drained(talk.uniform)
        if chance.random() < 0.05 and not mode:
            tiers.evict()
        if chance.random() < 0.1:
            await chance.choice(processes).get_tuple(chance.choice(configs[ns]))
        if step in (39, 79):  # also compared at the end
            await drained(talk.uniform)
            await same_as_cold(tiers, chance.choice(processes))
    await drained(talk.uniform)
    for uniform in processes:
        await same_as_cold(tiers, uniform)
        assert (await uniform.check("thread")).findings == ()
