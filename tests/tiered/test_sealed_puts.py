"""Checkpoints that encrypted tiers put with unchanged values, or a second time: they are read as without encryption."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.support.factories import checkpoint, config, ids
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from tests.support.tiering import BEHIND, FlakySaver, Tiers, drained, plain, written
from tests.support.uniform import Uniform

from redis_saver import DecodeError

pytestmark = [pytest.mark.plain("all of its savers encrypt"), pytest.mark.also_on()]
MODES = pytest.mark.parametrize("mode", ["write-through", "write-behind"])
V1, V9 = f"{1:032}.1", f"{9:032}.9"


@pytest.fixture
def is_encrypted() -> bool:
    """All savers of these tests encrypt."""
    return True


async def process(tiers: Tiers, mode: str = "write-through", **options: Any) -> Uniform:
    """Return a saver as of another process."""
    return await tiers.uniform(**(BEHIND if mode == "write-behind" else {}), **options)


VALUES = {"list": ["a"], "text": "a", "snapshot": _DeltaSnapshot(["a"])}


@MODES
@pytest.mark.by_turns
@pytest.mark.parametrize("what", VALUES)
async def test_a_value_of_a_version_without_one_is_left_out(tiers: Tiers, mode: str, what: str) -> None:
    """LangGraph puts one if a graph with a plain list continues a thread with a `DeltaChannel`."""
    uniform, values = await process(tiers, mode), {"log": VALUES[what], "n": [1]}
    assert await uniform.get_tuple(config()) is None
    where = await uniform.put(config(), checkpoint({}, {"log": V1}), {"step": 0}, {"log": V1})
    for step in (1, 2):
        made = checkpoint(values, {"log": V1, "n": V1})
        where = await uniform.put(where, made, {"step": step}, {"n": V1} if step == 1 else {})
    await drained(uniform)
    before = [one.checkpoint["id"] for one in await uniform.list(config())]
    tiers.evict()
    other = await process(tiers, mode)
    newest = await other.get_tuple(config())
    assert newest.config == where and newest.checkpoint["channel_values"]["n"] == [1]
    assert newest.checkpoint["channel_values"].get("log", VALUES[what]) == VALUES[what]
    assert ids(await other.list(config())) == before
    await other.copy_thread("thread", "copy")
    await drained(other)
    assert ids(await other.list(config("copy"))) == before
    await other.put(where, checkpoint(values, {"log": V1, "n": V1}), {"step": 3}, {})
    await drained(other)
    tiers.evict()
    assert len(await (await process(tiers, mode)).list(config())) == 4


@pytest.mark.parametrize("knows", ["put", "read"])
async def test_an_unchanged_value_that_was_removed_is_noticed(tiers: Tiers, knows: str) -> None:
    uniform = await process(tiers)
    made = await written(uniform)
    if knows == "read":
        tiers.evict()
        uniform = await process(tiers)
        last = (await uniform.get_tuple(config())).checkpoint
        versions = {**last["channel_versions"], "n": V9}
        child = checkpoint({**last["channel_values"], "n": [9]}, versions)
        made.append(await uniform.put(made[-1], child, {"step": 3}, {"n": V9}))
    with psycopg.connect(tiers.url, autocommit=True) as connection:
        connection.execute("DELETE FROM checkpoint_blobs WHERE channel = 'whole'")
    tiers.evict()
    with pytest.raises(DecodeError, match=r"the values of its channels \['whole'\] are gone"):
        await (await process(tiers)).get_tuple(made[-1])


AGAIN = {
    "by its writer": [],
    "by a process that read it": ["get_tuple"],
    "by a process that listed it": ["list"],
    "after hot lost it": ["evict", "get_tuple"],
    "after hot lost it, unread": ["evict"],
}


@MODES
@pytest.mark.by_turns
@pytest.mark.parametrize("parent", ["none", "another"])
@pytest.mark.parametrize("who", AGAIN)
async def test_a_checkpoint_that_is_put_again_keeps_its_parent(tiers: Tiers, mode: str, parent: str, who: str) -> None:
    """As PostgresSaver keeps it. Services put the newest checkpoint again to add metadata."""
    uniform = await process(tiers, mode)
    made = await written(uniform)
    await drained(uniform)
    last = (await uniform.get_tuple(config())).checkpoint
    if who != "by its writer":
        uniform = await process(tiers, mode)
    for step in AGAIN[who]:
        if step == "evict":
            tiers.evict()
        else:
            assert await getattr(uniform, step)(config())
    where = config() if parent == "none" or who == "after hot lost it, unread" else made[0]
    for step in (7, 8):
        await uniform.put(where, last, {"source": "loop", "step": step, "reviewed": True}, {})
        for each in (uniform, await process(tiers, mode)):
            found = await each.get_tuple(config())
            assert found.parent_config == made[1] and found.metadata["step"] == step
        await drained(uniform)
        tiers.evict()
        other = await process(tiers, mode)
        found = await other.get_tuple(config())
        assert found.parent_config == made[1] and found.metadata["step"] == step
        assert plain(found)[1] == last and len(found.pending_writes) == 4
        assert ids(await other.list(config())) == [one["configurable"]["checkpoint_id"] for one in reversed(made)]
        assert (await other.get_tuple(made[1])).parent_config == made[0]


@MODES
async def test_postgres_stops_while_it_is_asked_for_the_first_parent(tiers: Tiers, mode: str) -> None:
    """The put raises, or stays in the backlog. Put or flushed again, the checkpoint keeps its parent."""
    uniform = await process(tiers, mode)
    made = await written(uniform)
    await drained(uniform)
    last = (await uniform.get_tuple(config())).checkpoint
    flaky = FlakySaver(await tiers.cold())
    other = await process(tiers, mode, cold=flaky.wrap())
    flaky.fail.add("get_tuple")
    again: Any = config(), last, {"source": "loop", "step": 7}, {}
    if mode == "write-through":
        with pytest.raises(psycopg.OperationalError, match="on purpose"):
            await other.put(*again)
    else:
        await other.put(*again)
        assert await other.flush(timeout=0.3) == 1
    assert flaky.calls and {*flaky.calls} == {"get_tuple"}
    flaky.fail.clear()
    if mode == "write-through":
        await other.put(*again)
    await drained(other)
    tiers.evict()
    found = await (await process(tiers, mode)).get_tuple(config())
    assert (found.parent_config, found.metadata["step"], plain(found)[1]) == (made[1], 7, last)


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_other_savers_replace_the_parent(tiers: Tiers, kind: str) -> None:
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        cold = InMemorySaver() if kind == "memory" else sqlite
        uniform = await process(tiers, cold=cold)
        made = await written(uniform)
        last = (await uniform.get_tuple(config())).checkpoint
        for where, parent in ((config(), None), (made[0], made[0])):
            await uniform.put(where, last, {"step": 7}, {})
            tiers.evict()
            found = await (await process(tiers, cold=cold)).get_tuple(config())
            assert (found.parent_config, found.checkpoint) == (parent, last)


@pytest.mark.parametrize("who", ["its writer", "another"])
async def test_a_checkpoint_put_after_its_deletion_gets_a_new_parent(tiers: Tiers, who: str) -> None:
    uniform = await process(tiers)
    made = await written(uniform)
    last = (await uniform.get_tuple(config())).checkpoint
    if who == "another":
        await (await process(tiers)).delete_thread("thread")
        assert await uniform.get_tuple(config()) is None
    else:
        await uniform.delete_thread("thread")
    await uniform.put(made[0], last, {"step": 7}, last["channel_versions"])
    tiers.evict()
    assert (await (await process(tiers)).get_tuple(config())).parent_config == made[0]


@MODES
async def test_ordinary_puts_ask_cold_nothing_more(tiers: Tiers, mode: str) -> None:
    """The first put of a thread, and of a subgraph's namespace, those that follow, and the same put again."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await process(tiers, mode, cold=flaky.wrap())
    await written(uniform)
    for ns in ("sub:1", "sub:2"):
        assert await uniform.get_tuple(config("thread", ns)) is None
        where = config("thread", ns)
        for step in range(2):
            made = checkpoint({"n": [step]}, {"n": f"{step + 1:032}.1"})
            where = await uniform.put(where, made, {"step": step}, made["channel_versions"])
    await drained(uniform)
    flaky.calls.clear()
    other = await process(tiers, mode, cold=flaky.wrap())
    assert (await other.get_tuple(config("thread", "sub:2"))).config == where
    made = checkpoint({"n": [7]}, {"n": f"{7:032}.1"})
    for times in (1, 2):
        await other.put(where, made, {"step": 7}, made["channel_versions"])
        await drained(other)
        assert flaky.calls == ["put"] * times
