"""Checkpoints that encrypted tiers put with unchanged values, or a second time: they are read as without encryption."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver

from redis_saver import DecodeError
from tests.support.factories import checkpoint, config, ids
from tests.support.tiering import only_in_cold, FlakySaver, Tiers, both_modes, drained, id_of, plain, put_new, written
from tests.support.tiering import is_encrypted  # noqa: F401

pytestmark = [pytest.mark.plain("all of its savers encrypt"), pytest.mark.also_on()]
V1, V9 = f"{1:032}.1", f"{9:032}.9"


VALUES = {"list": ["a"], "text": "a", "snapshot": _DeltaSnapshot(["a"])}


@both_modes
@pytest.mark.by_turns
@pytest.mark.parametrize("what", VALUES)
async def test_a_value_of_a_version_without_one_is_left_out(tiers: Tiers, mode: dict[str, Any], what: str) -> None:
    """LangGraph puts one if a graph with a plain list continues a thread with a `DeltaChannel`."""
    uniform, values = await tiers.uniform(**mode), {"log": VALUES[what], "n": [1]}
    assert await uniform.get_tuple(config()) is None
    where = await uniform.put(config(), checkpoint({}, {"log": V1}), {"step": 0}, {"log": V1})
    for step in (1, 2):
        made = checkpoint(values, {"log": V1, "n": V1})
        where = await uniform.put(where, made, {"step": step}, {"n": V1} if step == 1 else {})
    await drained(uniform)
    before = ids(await uniform.list(config()))
    tiers.evict()
    other = await tiers.uniform(**mode)
    newest = await other.get_tuple(config())
    assert newest.config == where and newest.checkpoint["channel_values"]["n"] == [1]
    assert newest.checkpoint["channel_values"].get("log", VALUES[what]) == VALUES[what]
    assert ids(await other.list(config())) == before
    await other.copy_thread("thread", "copy")
    await drained(other)
    assert ids(await other.list(config("copy"))) == before
    await other.put(where, checkpoint(values, {"log": V1, "n": V1}), {"step": 3}, {})
    await only_in_cold(tiers, other)
    assert len(await (await tiers.uniform(**mode)).list(config())) == 4


@pytest.mark.parametrize("knows", ["put", "read"])
async def test_an_unchanged_value_that_was_removed_is_noticed(tiers: Tiers, knows: str) -> None:
    uniform, reader, other = [await tiers.uniform() for _ in range(3)]
    last = (await written(uniform))[-1]
    if knows == "read":
        tiers.evict()
        found = (await reader.get_tuple(config())).checkpoint
        child = checkpoint({**found["channel_values"], "n": [9]}, {**found["channel_versions"], "n": V9})
        last = await reader.put(last, child, {"step": 3}, {"n": V9})
    tiers.sql("DELETE FROM checkpoint_blobs WHERE channel = 'whole'")
    tiers.evict()
    with pytest.raises(DecodeError, match=r"the values of its channels \['whole'\] are gone"):
        await other.get_tuple(last)


AGAIN = {
    "by its writer": [],
    "by a process that read it": ["get_tuple"],
    "by a process that listed it": ["list"],
    "after hot lost it": ["evict", "get_tuple"],
    "after hot lost it, unread": ["evict"],
}


@both_modes
@pytest.mark.by_turns
@pytest.mark.parametrize("parent", ["none", "another"])
@pytest.mark.parametrize("who", AGAIN)
async def test_a_checkpoint_that_is_put_again_keeps_its_parent(
    tiers: Tiers, mode: dict[str, Any], parent: str, who: str
) -> None:
    """As PostgresSaver keeps it. Services put the newest checkpoint again to add metadata."""
    uniform = await tiers.uniform(**mode)
    made = await written(uniform)
    await drained(uniform)
    last = (await uniform.get_tuple(config())).checkpoint
    if who != "by its writer":
        uniform = await tiers.uniform(**mode)
    for step in AGAIN[who]:
        if step == "evict":
            tiers.evict()
        else:
            assert await getattr(uniform, step)(config())
    where = config() if parent == "none" or who == "after hot lost it, unread" else made[0]
    for step in (7, 8):
        await uniform.put(where, last, {"source": "loop", "step": step, "reviewed": True}, {})
        other, reader = [await tiers.uniform(**mode) for _ in range(2)]
        for each in (uniform, other, reader):
            if each is reader:
                await only_in_cold(tiers, uniform)
            found = await each.get_tuple(config())
            assert found.parent_config == made[1] and found.metadata["step"] == step
        assert plain(found)[1] == last and len(found.pending_writes) == 4
        assert ids(await reader.list(config())) == [id_of(one) for one in reversed(made)]
        assert (await reader.get_tuple(made[1])).parent_config == made[0]


@both_modes
async def test_postgres_stops_while_it_is_asked_for_the_first_parent(tiers: Tiers, mode: dict[str, Any]) -> None:
    """The put raises, or stays in the backlog. Put or flushed again, the checkpoint keeps its parent."""
    uniform, flaky = await tiers.uniform(**mode), FlakySaver(await tiers.cold())
    made = await written(uniform)
    await drained(uniform)
    last = (await uniform.get_tuple(config())).checkpoint
    other = await tiers.uniform(**mode, cold=flaky.wrap())
    flaky.fail.add("get_tuple")
    again: Any = config(), last, {"source": "loop", "step": 7}, {}
    with nullcontext() if mode else pytest.raises(psycopg.OperationalError, match="on purpose"):
        await other.put(*again)
        assert await other.flush(timeout=0.3) == 1
    assert flaky.calls and {*flaky.calls} == {"get_tuple"}
    flaky.fail.clear()
    if not mode:
        await other.put(*again)
    await only_in_cold(tiers, other)
    found = await (await tiers.uniform(**mode)).get_tuple(config())
    assert (found.parent_config, found.metadata["step"], plain(found)[1]) == (made[1], 7, last)


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_other_savers_replace_the_parent(tiers: Tiers, kind: str) -> None:
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        cold = InMemorySaver() if kind == "memory" else sqlite
        uniform = await tiers.uniform(cold=cold)
        made = await written(uniform)
        last = (await uniform.get_tuple(config())).checkpoint
        for where, parent in ((config(), None), (made[0], made[0])):
            await uniform.put(where, last, {"step": 7}, {})
            tiers.evict()
            found = await (await tiers.uniform(cold=cold)).get_tuple(config())
            assert (found.parent_config, found.checkpoint) == (parent, last)


@pytest.mark.parametrize("who", ["its writer", "another"])
async def test_a_checkpoint_put_after_its_deletion_gets_a_new_parent(tiers: Tiers, who: str) -> None:
    uniform, other = await tiers.uniform(), await tiers.uniform()
    made = await written(uniform)
    last = (await uniform.get_tuple(config())).checkpoint
    await (other if who == "another" else uniform).delete_thread("thread")
    if who == "another":
        assert await uniform.get_tuple(config()) is None
    await uniform.put(made[0], last, {"step": 7}, last["channel_versions"])
    tiers.evict()
    assert (await (await tiers.uniform()).get_tuple(config())).parent_config == made[0]


@both_modes
async def test_ordinary_puts_ask_cold_nothing_more(tiers: Tiers, mode: dict[str, Any]) -> None:
    """The first put of a thread, and of a subgraph's namespace, those that follow, and the same put again."""
    flaky = FlakySaver(await tiers.cold())
    uniform, other = [await tiers.uniform(**mode, cold=flaky.wrap()) for _ in range(2)]
    await written(uniform)
    for ns in ("sub:1", "sub:2"):
        where = config("thread", ns)
        assert await uniform.get_tuple(where) is None
        for number in (1, 2):
            where = await put_new(uniform, where, number)
    await drained(uniform)
    flaky.calls.clear()
    assert (await other.get_tuple(config("thread", "sub:2"))).config == where
    made = checkpoint({"n": [7]}, {"n": f"{7:032}.1"})
    for times in (1, 2):
        await other.put(where, made, {"step": 7}, made["channel_versions"])
        await drained(other)
        assert flaky.calls == ["put"] * times
