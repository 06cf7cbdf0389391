"""copy_thread. See also the names in `test_values.py`, other writers in `test_concurrency.py`, and foreign keys in `test_faults.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.support import raw
from tests.support.factories import chain, config, ids, put
from langgraph.checkpoint.base import INTERRUPT
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

from redis_saver._engine.requests import Call

pytestmark = pytest.mark.also_on(cluster="async", redis62="sync", lua54="sync")


async def test_a_copy_has_all_data_of_its_source(saver: Uniform, target: Target) -> None:
    configs = await chain(saver, "source", 130, thread_id="source", run_id="r")
    await chain(saver, "source", 3, ns="sub")
    await saver.put_writes(configs[3], [("n", 1), (INTERRUPT, "?")], "task", "path")
    await saver.put_writes(config("source", "", "zz"), [("n", 1)], "early")
    await chain(saver, "target", 2)
    await saver.copy_thread("source", "target")
    source, copied = [await saver.list(config(thread, None)) for thread in ("source", "target")]
    assert len(copied) == 133
    for mine, theirs in zip(copied, source, strict=True):
        assert mine.checkpoint == theirs.checkpoint
        assert mine.pending_writes == theirs.pending_writes
        renamed = {"thread_id": "target"} if "thread_id" in theirs.metadata else {}
        assert mine.metadata == {**theirs.metadata, **renamed}
        assert mine.config["configurable"] == {**theirs.config["configurable"], "thread_id": "target"}
        assert (mine.parent_config is None) == (theirs.parent_config is None)
    assert len(target.keys()) == 4
    infos = {info.thread_id: info for info in await saver.threads()}
    assert infos["source"].checkpoints == infos["target"].checkpoints
    data = {thread: target.raw.hgetall(saver.saver._context.keyspace.keys(thread).data_key) for thread in infos}
    for thread, info in infos.items():
        assert info == await saver.get_thread(thread)
        raw.check_counters(data[thread])
        assert info.bytes == raw.counters(data[thread])["bytes"]
    assert data["source"].keys() | {b"@copy"} == data["target"].keys()
    await saver.delete_for_runs(["r"])
    assert len(await saver.list(config("source", None))) == 3
    assert len(await saver.list(config("target", None))) == 133
    await put(saver, config("target", "", "zz"), {"n": 1}, checkpoint_id="zzz")


async def test_a_copy_of_nothing_or_of_itself_changes_nothing(saver: Uniform) -> None:
    await chain(saver, "t", 2)
    before = await saver.list(config("t"))
    await saver.copy_thread("absent", "t")
    await saver.copy_thread("t", "t")
    await saver.copy_thread("absent", "other")
    assert await saver.list(config("t")) == before
    assert await saver.list(config("other")) == []


async def test_a_copy_is_independent_of_its_source(saver: Uniform) -> None:
    configs = await chain(saver, "source", 3)
    await saver.copy_thread("source", "target")
    newest = config("target", "", configs[-1]["configurable"]["checkpoint_id"])
    await put(saver, newest, {"n": "new"}, versions={"n": "9"})
    assert len(await saver.list(config("source"))) == 3
    await saver.delete_thread("source")
    assert len(await saver.list(config("target"))) == 4


@pytest.mark.parametrize(
    ("target_name", "before"),
    [
        *(("redis", 3), ("cluster", "promote")),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("redis", "promote"), ("cluster", 3))),
    ],
)
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("lost", [("index",), ("data",), ("index", "data")])
async def test_a_copy_starts_again_if_its_staged_keys_are_lost(target: Target, lost: Any, before: Any) -> None:
    """After a failover or an eviction during the copy, the target never gets a part of it."""
    uniform = target.uniform()
    await chain(uniform, "source", 700)
    saver = target.blocking()
    seen: Counter[str] = Counter()

    def around(request: Any) -> Any:
        if isinstance(request, Call):
            seen[request.script.name] += 1
            at = "promote" if request.script.name == "promote" else seen["stage"]
            if request.script.name in ("stage", "promote") and at == before and not seen["lost"]:
                seen["lost"] += 1
                staged = [key for key in target.keys() if b"{target}" in key]
                target.raw.unlink(*(key for key in staged if any(f"}}:{kind}.".encode() in key for kind in lost)))
        return (yield request)

    Around(saver, around)
    saver.copy_thread("source", "target")
    assert seen["lost"] == 1
    assert ids(await uniform.list(config("target"))) == ids(await uniform.list(config("source")))
    assert len([key for key in target.keys() if b"{target}" in key]) == 2
