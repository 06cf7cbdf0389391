"""prune and delete_for_runs."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.support.factories import chain, checkpoint, config, ids, put
from langgraph.checkpoint.base import INTERRUPT
from langgraph.checkpoint.base.id import UUID, uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import before_each

from redis_saver import Pruned
from redis_saver._checkpoint import pruning
from redis_saver._checkpoint.retention import Retention
from redis_saver._checkpoint import scripts

pytestmark = pytest.mark.also_on(cluster="async", redis62="sync", lua54="sync")


def blobs(target: Target, uniform: Uniform, thread: str = "t") -> set[bytes]:
    data = uniform.saver._context.keyspace.keys(thread).data_key
    return {field for field in target.raw.hgetall(data) if field[:1] == b"b"}


async def test_prune_keeps_the_latest_of_each_namespace(saver: Uniform) -> None:
    root, sub = await chain(saver, "t", 5), await chain(saver, "t", 3, ns="sub|x:1")
    await saver.put_writes(root[-1], [("n", 1), (INTERRUPT, "?")], "task", "path")
    await saver.put_writes(root[0], [("n", 1)], "task")
    before = {one["configurable"]["checkpoint_id"]: await saver.get_tuple(one) for one in (root[-1], sub[-1])}
    done = await saver.prune(["t"])
    assert (done.checkpoints, done.writes, done.blobs) == (6, 1, 6)
    for one in await saver.list(config("t", None)):
        assert one == before.pop(one.checkpoint["id"])._replace(parent_config=None)
    assert not before
    assert await saver.prune(["t"]) == Pruned()


@pytest.mark.parametrize("strategy", ["delete", "keep_latest"])
async def test_a_dry_run_counts_what_prune_removes(saver: Uniform, target: Target, strategy: str) -> None:
    configs = await chain(saver, "t", 3)
    await saver.put_writes(configs[-1], [("n", 1), ("n", 2), (INTERRUPT, 3)], "task")
    (before,) = await saver.threads()
    would = await saver.prune(["t", "absent"], strategy=strategy, dry_run=True)
    assert await saver.threads() == [before] and len(await saver.list(config("t"))) == 3
    assert await saver.prune(["t", "absent"], strategy=strategy) == would
    after = await saver.threads()
    assert before.bytes - sum(one.bytes for one in after) == would.bytes > 0
    if strategy == "delete":
        assert (would.checkpoints, would.writes, would.blobs) == (3, 3, 3)
        assert target.keys() == []


async def test_keep_last_keeps_the_newest(saver: Uniform) -> None:
    configs = await chain(saver, "t", 120)
    assert (await saver.prune(["t"], keep_last=7)).checkpoints == 113
    assert ids(await saver.list(config("t"))) == [one["configurable"]["checkpoint_id"] for one in configs[:-8:-1]]
    assert (await saver.prune(["t"], keep_last=7)).checkpoints == 0


async def test_older_than_removes_old_checkpoints(saver: Uniform) -> None:
    now = datetime.now(timezone.utc)
    for days in (30, 20, 10, 5, 1):
        made = checkpoint({"n": days}, {"n": str(days)}, f"{100 - days:03}")
        made["ts"] = (now - timedelta(days=days)).isoformat()
        await saver.put(config("t"), made, {}, made["channel_versions"])
    assert (await saver.prune(["t"], older_than="999999999d")).checkpoints == 0  # before year 1
    assert (await saver.prune(["t"], older_than=timedelta(days=7), keep_last=4)).checkpoints == 1
    assert (await saver.prune(["t"], older_than=timedelta(days=7))).checkpoints == 2
    assert [one.checkpoint["channel_values"]["n"] for one in await saver.list(config("t"))] == [1, 5]
    assert (await saver.prune(["t"], older_than=timedelta(0))).checkpoints == 1


async def test_a_checkpoint_without_a_valid_time_is_not_older(saver: Uniform) -> None:
    for which in ("1", "2"):
        made = checkpoint({"n": 1}, None, which)
        made["ts"] = "yesterday"
        await saver.put(config("t"), made, {}, {"n": "1"})
    assert (await saver.prune(["t"], older_than=timedelta(days=1))).checkpoints == 0


async def test_values_shared_with_a_kept_fork_are_kept(saver: Uniform, target: Target) -> None:
    """Values that only removed checkpoints had are removed."""
    first = await put(saver, config("t"), {"a": "shared", "b": 1}, versions={"a": "1", "b": "1"}, checkpoint_id="1")
    left = checkpoint({"a": "shared", "b": 2}, {"a": "1", "b": "2"}, "2")
    right = checkpoint({"a": "shared", "b": 3}, {"a": "1", "b": "3"}, "3")
    await saver.put(first, left, {}, {"b": "2"})
    await saver.put(first, right, {}, {"b": "3"})
    done = await saver.prune(["t"])
    assert (done.checkpoints, done.blobs) == (2, 2)
    (kept,) = await saver.list(config("t"))
    assert kept.checkpoint["channel_values"] == {"a": "shared", "b": 3}
    assert len(blobs(target, saver)) == 2


async def test_equal_versions_in_two_namespaces_are_two_values(saver: Uniform) -> None:
    await put(saver, config("t", ""), {"a": "root"}, checkpoint_id="1")
    await put(saver, config("t", "sub"), {"a": "sub"}, checkpoint_id="1")
    await put(saver, config("t", "sub"), {"b": "later"}, checkpoint_id="2")
    await saver.prune(["t"])
    assert (await saver.get_tuple(config("t", ""))).checkpoint["channel_values"] == {"a": "root"}
    assert (await saver.get_tuple(config("t", "sub"))).checkpoint["channel_values"] == {"b": "later"}


async def delta_chain(saver: Uniform, length: int, seed_at: int | None) -> list[dict[str, Any]]:
    """Make a thread with a channel `d` like a `DeltaChannel`'s: writes, and a value at one checkpoint."""
    configs: list[dict[str, Any]] = []
    for step in range(length):
        values: dict[str, Any] = {"n": step}
        if step == seed_at:
            values["d"] = ["seed", step]
        versions = {"d": f"{step:03}", "n": f"{step:03}"}
        parent = configs[-1] if configs else config("t")
        configs.append(await put(saver, parent, values, versions=versions, checkpoint_id=f"{step:03}"))
        await saver.put_writes(configs[-1], [("d", step), ("n", step)], f"task{step}", "path")
    return configs


@pytest.mark.parametrize("seed_at", [None, 0, 3, 7])
@pytest.mark.parametrize("keep_last", [1, 2])
@pytest.mark.by_turns
async def test_prune_keeps_the_history_of_a_delta_channel(saver: Uniform, seed_at: int | None, keep_last: int) -> None:
    configs = await delta_chain(saver, 9, seed_at)
    before = [await saver.get_delta_channel_history(config=one, channels=["d"]) for one in configs]
    done = await saver.prune(["t"], keep_last=keep_last)
    needed = min(seed_at if seed_at is not None else 0, 9 - keep_last)
    assert done.checkpoints == needed
    for step, (one, expected) in list(enumerate(zip(configs, before, strict=True)))[-keep_last:]:
        if step == seed_at:
            continue  # has its value itself, and needs no ancestor
        assert await saver.get_delta_channel_history(config=one, channels=["d"]) == expected
    assert await saver.prune(["t"], keep_last=keep_last) == Pruned()


@pytest.mark.parametrize("absent", ["no version", "another version"])
async def test_prune_keeps_a_delta_history_that_the_parent_does_not_need(saver: Uniform, absent: str) -> None:
    """The kept parent has no version of the channel yet, or one without earlier writes."""
    where: Any = config("t")
    for step in range(5):
        versions = {"n": f"{step:03}", "d": f"{step:03}"}
        if absent == "no version" and 0 < step < 4:
            del versions["d"]
        values = {"n": step, **({"d": ["seed"]} if step == 0 else {})}
        where = await put(saver, where, values, versions=versions, checkpoint_id=f"{step:03}")
        if absent == "no version" or step == 3:
            await saver.put_writes(where, [("d", step)], f"task{step}", "path")
    before = await saver.get_delta_channel_history(config=where, channels=["d"])
    await saver.prune(["t"], keep_last=2)
    assert await saver.get_delta_channel_history(config=where, channels=["d"]) == before
    assert "seed" in before["d"]


async def test_an_emptied_channel_needs_no_ancestors(saver: Uniform) -> None:
    """LangGraph's `branch:to:...` channels have a value for one checkpoint only."""
    configs: list[dict[str, Any]] = []
    for step in range(6):
        values = {"n": step, **({"branch": None} if step % 2 else {})}
        versions = {"n": str(step), "branch": str(step)}
        configs.append(await put(saver, configs[-1] if configs else config("t"), values, versions=versions))
        written = [("n", step), *([("branch", None)] if step % 2 == 0 else [])]
        await saver.put_writes(configs[-1], written, "task")
    last = await put(saver, configs[-1], {"n": 9}, versions={"n": "9", "branch": "9"})
    await saver.prune(["t"])
    assert [one.config for one in await saver.list(config("t"))] == [last]


async def test_prune_removes_stray_writes_and_keeps_early_ones(saver: Uniform) -> None:
    await put(saver, config("t"), {"n": 1}, checkpoint_id="5")
    for which in ("3", "5", "7"):
        await saver.put_writes(config("t", "", which), [("n", which)], "task")
    assert (await saver.prune(["t"])).writes == 1
    for which, kept in (("3", 0), ("5", 1), ("7", 1)):
        await put(saver, config("t"), {"n": 1}, checkpoint_id=which)
        assert len((await saver.get_tuple(config("t", "", which))).pending_writes) == kept


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"keep_last": given}, f"keep_last={given}") for given in (0, True)),
    *(({"strategy": "keep_newest"}, "keep_newest"), ({"older_than": 7}, "older_than=7")),
    *(({"strategy": "delete", **more}, "delete") for more in ({"keep_last": 2}, {"older_than": timedelta(1)})),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
@pytest.mark.by_turns
async def test_wrong_arguments_are_refused(saver: Uniform, arguments: Any, said: str) -> None:
    await chain(saver, "t", 2)
    for threads in (["t"], []):
        with pytest.raises((ValueError, TypeError), match=said):
            await saver.prune(threads, **arguments)
    with pytest.raises(TypeError, match="list of"):
        await saver.prune("t")
    assert len(await saver.list(config("t"))) == 2
    assert await saver.prune([]) == Pruned()


async def test_delete_for_runs_removes_the_checkpoints_of_runs(saver: Uniform, target: Target) -> None:
    for thread in ("t", "u"):
        of_a, of_b = {"run_id": "a"}, {"run_id": "b"}
        one = await put(saver, config(thread), {"n": 1}, checkpoint_id="1", metadata=of_a, versions={"n": "1"})
        two = await put(saver, one, {"n": 2}, checkpoint_id="2", metadata=of_b, versions={"n": "2"})
        await saver.put_writes(two, [("n", 1)], "task")
    await put(saver, config("u", "sub"), {"n": 3}, checkpoint_id="3", metadata={"run_id": "b"})
    await put(saver, config("v"), {"n": 3}, checkpoint_id="3", metadata={"run_id": "b"})
    await saver.delete_for_runs(["b", "nobody's"])
    assert ids(await saver.list(None)) == ["1", "1"]
    assert len(target.keys()) == 4
    assert len(blobs(target, saver, "t")) == 1
    await saver.delete_for_runs(["b"])
    await saver.delete_for_runs([])
    with pytest.raises(TypeError, match="list of run_ids"):
        await saver.delete_for_runs("a")
    assert len(await saver.list(None)) == 2
    await saver.delete_for_runs(["a"])
    assert target.keys() == []


async def test_writes_of_a_recent_checkpoint_are_not_strays(saver: Uniform) -> None:
    """Another process may put the older id after the prune."""
    coming, newest = str(uuid6()), str(uuid6())
    long_ago = str(UUID(int=UUID(coming).int - ((2 * 3600 * 10**7 >> 12) << 80), version=6))
    for which in (long_ago, coming):
        await saver.put_writes(config("t", "", which), [("n", 1)], "task")
    await put(saver, config("t"), {"n": 1}, checkpoint_id=newest)
    assert (await saver.prune(["t"])).writes == 1
    for which, kept in ((coming, 1), (long_ago, 0)):
        await put(saver, config("t"), {"n": 1}, checkpoint_id=which)
        assert len((await saver.get_tuple(config("t", "", which))).pending_writes) == kept


@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_dry_run_during_writes_counts_each_checkpoint_once(target: Target) -> None:
    await chain(target.uniform(), "t", 150)
    saver = target.blocking()

    def put_before(removal: int) -> None:
        if removal == 2:
            saver.put(config("t", "sub"), checkpoint({"n": 1}), {}, {"n": "1"})

    before_each(saver, scripts.REMOVE, put_before)
    dry = saver._driver.run(pruning.prune(saver._context, ["t"], Retention(), True))
    assert dry.checkpoints == 149


async def calls(saver: Uniform, length: int, each: int = 2) -> list[str]:
    """Make root checkpoints, each with a subgraph call and one of a subgraph with memory. Return the root ids."""
    root = ids_of(await chain(saver, "t", length))
    for number, one in enumerate(root):
        await chain(saver, "t", each, ns=f"sub:{number}", parents={"": one})
        await chain(saver, "t", 1, ns="memory", parents={"": one})
    await chain(saver, "t", 1, ns="sub:early", parents={"": "not there yet"})
    return root


def ids_of(configs: list[Any]) -> list[str]:
    return [one["configurable"]["checkpoint_id"] for one in configs]


def namespaces(found: list[Any]) -> Counter[str]:
    return Counter(one.config["configurable"]["checkpoint_ns"] for one in found)


@pytest.mark.parametrize("serde", [None, EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)], ids=["", "AES"])
async def test_subgraph_calls_are_removed_with_their_root_checkpoint(target: Target, serde: Any) -> None:
    saver = target.uniform(serde=serde)
    await calls(saver, 5)
    await saver.prune(["t"], keep_last=2)
    found = await saver.list(config("t", None))
    assert namespaces(found) == {"": 2, "sub:3": 2, "sub:4": 2, "memory": 2, "sub:early": 1}
    await saver.prune(["t"])
    found = await saver.list(config("t", None))
    assert namespaces(found) == {"": 1, "sub:4": 1, "memory": 1, "sub:early": 1}
    assert all(one.parent_config is None for one in found)
    assert (await saver.check("t")).sound


async def test_subgraph_calls_are_removed_by_the_age_of_their_root(saver: Uniform) -> None:
    """A call's own age does not count."""
    now = datetime.now(timezone.utc)
    root = await calls(saver, 4)
    for one in await saver.list(config("t", "")):
        days = 20 if one.checkpoint["id"] in root[:2] else 1
        made = {**one.checkpoint, "ts": (now - timedelta(days=days)).isoformat()}
        await saver.put(one.parent_config or config("t"), made, one.metadata, {})
    for ns in [*(f"sub:{number}" for number in range(4)), "memory"]:
        for one in await saver.list(config("t", ns)):
            made = {**one.checkpoint, "ts": now.isoformat()}
            await saver.put(one.parent_config or config("t", ns), made, one.metadata, {})
    await saver.prune(["t"], older_than=timedelta(days=7))
    found = namespaces(await saver.list(config("t", None)))
    assert found == {"": 2, "sub:2": 2, "sub:3": 2, "memory": 4, "sub:early": 1}


async def test_the_next_prune_finishes_one_that_died(saver: Uniform, monkeypatch: Any) -> None:
    """A call's namespace is removed before its root checkpoint, which alone shows that the call is over.

    Children forget their parent before it is removed.
    """
    await calls(saver, 6, each=30)
    found = reversed(await saver.list(config("t", None)))
    stay = set({one.config["configurable"]["checkpoint_ns"]: one.checkpoint["id"] for one in found}.values())
    monkeypatch.setattr(pruning, "NAMES_PER_STEP", 9)
    driver = saver.saver._driver

    def kill_before(step: int) -> None:
        if step == limit:
            raise ConnectionError("killed")

    for limit in (2, 5, 9, 14, 20):
        saver.saver._driver = driver
        before_each(saver.saver, scripts.REMOVE, kill_before)
        with pytest.raises(ConnectionError, match="killed"):
            await saver.prune(["t"])
        found = await saver.list(config("t", None))
        there = {(one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]) for one in found}
        for one in found:
            if one.checkpoint["id"] in stay and (parent := one.parent_config) is not None:
                assert (parent["configurable"]["checkpoint_ns"], parent["configurable"]["checkpoint_id"]) in there
        assert (await saver.check("t")).sound
    saver.saver._driver = driver
    await saver.prune(["t"])
    assert namespaces(await saver.list(config("t", None))) == {"": 1, "sub:5": 1, "memory": 1, "sub:early": 1}


async def test_only_a_removed_parent_is_forgotten(saver: Uniform) -> None:
    """This holds for forks too."""
    root = await chain(saver, "t", 3)
    fork = [await put(saver, root[0], {"n": 10 + number}, versions={"n": f"9{number}"}) for number in range(2)]
    await saver.prune(["t"], keep_last=3)
    found = {one.checkpoint["id"]: one.parent_config for one in await saver.list(config("t"))}
    assert found == {ids_of(root)[2]: None, ids_of(fork)[0]: None, ids_of(fork)[1]: None}
    await put(saver, fork[1], {"n": 12}, versions={"n": "93"})
    await saver.prune(["t"], keep_last=2)
    newest, older = await saver.list(config("t"))
    assert (newest.parent_config, older.parent_config) == (older.config, None)


async def test_a_parent_removed_with_its_run_is_forgotten(saver: Uniform) -> None:
    """`PostgresSaver.prune` does the same, even if it removes nothing else."""
    for older in (0, 2):
        where = (await chain(saver, f"t{older}", older))[-1] if older else config(f"t{older}")
        gone = await put(saver, where, {"n": 10}, versions={"n": "91"}, metadata={"run_id": "gone"})
        await put(saver, gone, {"n": 11}, versions={"n": "92"})
        await saver.delete_for_runs(["gone"])
        assert (await saver.prune([f"t{older}"])).checkpoints == older
        (left,) = await saver.list(config(f"t{older}"))
        assert left.checkpoint["channel_values"] == {"n": 11} and left.parent_config is None
        assert (await saver.check(f"t{older}")).sound
