"""Encryption over two tiers: cold stores envelopes, and each is opened at its place."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Annotated, Any

import pytest
import redis
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from redis_saver import DecodeError, PlainValueRefused, RedisSaverError
from redis_saver._engine.requests import Ask
from redis_saver._storage.envelopes import HEAD, MAGIC
from redis_saver.encryption import ColdSerializer, Encryption, Keyset, KeyStatus, Rotated
from tests.support import programs
from tests.support.factories import chain, checkpoint, config, ids, put
from tests.support.talking import call_graph, joined
from tests.support.tiering import (
    BEHIND,
    TABLES,
    OpenedCold,
    Tiers,
    both_modes,
    drained,
    id_of,
    is_encrypted,  # noqa: F401
    plain,
    written,
)
from tests.support.uniform import KEYS, Uniform, encryption
from tests.support.wrappers import fails_on

pytestmark = [pytest.mark.plain("all of its savers encrypt"), pytest.mark.also_on(cluster="sync")]
MARKER = "a secret of the user"
NEW = {"new": b"n" * 32}


class State(TypedDict):
    log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=3)]
    text: str
    number: int


def graph(saver: Any) -> Any:
    def speak(state: State) -> Any:
        return {"log": [f"{MARKER} {state['number']}"], "text": MARKER, "number": state["number"] + 1}

    def ask(state: State) -> Any:
        return {"text": interrupt({"question": MARKER}) + state["text"]}

    builder = StateGraph(State)
    builder.add_node("speak", speak).add_node("ask", ask)
    builder.add_edge(START, "speak").add_edge("speak", "ask")
    return builder.compile(checkpointer=saver)


async def run(uniform: Uniform, turns: int = 4, **configurable: Any) -> Any:
    """Run a graph, and return its state."""
    where = {**config(**configurable), "metadata": {"user": MARKER}}
    for number in range(turns):
        for given in ({"log": [f"{MARKER} in"], "number": number}, Command(resume=MARKER)):
            await call_graph(graph(uniform.saver), "invoke", given, where)
    return await state(uniform)


async def state(uniform: Uniform, thread: str = "thread") -> Any:
    return await call_graph(graph(uniform.saver), "get_state", config(thread))


async def history(uniform: Uniform) -> list[Any]:
    return [one.values for one in await call_graph(graph(uniform.saver), "get_state_history", config())]


def rows(tiers: Tiers) -> list[bytes]:
    """Return all that both servers have."""
    found, raw = list[bytes](), tiers.target.raw
    for key in tiers.target.keys():
        if raw.type(key) == b"hash":
            found += [part for pair in raw.hgetall(key).items() for part in pair]
        found.append(key)
    stored = [row for table in TABLES.split(", ") for row in tiers.sql(f"SELECT * FROM {table}")]
    return found + [part if isinstance(part, bytes) else repr(part).encode() for row in stored for part in row]


@both_modes
@pytest.mark.parametrize("memory", [False, True], ids=["postgres", "memory"])
async def test_a_graph_runs_and_no_server_has_its_text(tiers: Tiers, mode: dict[str, Any], memory: bool) -> None:
    cold = InMemorySaver() if memory else None
    uniform = await tiers.uniform(**mode, cold=cold)
    before, all_before = await run(uniform), await history(uniform)
    assert len(before.values["log"]) == 8
    await drained(uniform)
    stored = rows(tiers) if cold is None else [repr((cold.blobs, cold.writes, dict(cold.storage))).encode()]
    assert not [part for part in stored if MARKER.encode() in part]
    assert [part for part in stored if b"envelope" in part]
    tiers.evict()
    other = await tiers.uniform(**mode, cold=cold)
    assert (await state(other)).values == before.values
    assert (await state(other)).metadata["user"] == MARKER
    assert await history(other) == all_before
    assert (await run(other, 1)).values["log"][:8] == before.values["log"]
    await drained(other)
    if cold is None:
        report = await other.check("thread")
        assert not report.findings and report.compared


async def test_reads_go_on_while_hot_fails(tiers: Tiers) -> None:
    uniform, other = [await tiers.uniform(on_hot_error="bypass") for _ in range(2)]
    made = await written(uniform)
    before = [await uniform.get_tuple(each) for each in made]
    for each in (uniform, other):  # the provider of keys answers
        fails_on(each.saver.hot, lambda request: not isinstance(request, Ask), redis.ConnectionError("on purpose"))
        assert [plain(await each.get_tuple(where)) for where in made] == [plain(one) for one in before]
        assert ids(await each.list(config())) == ids(before)[::-1]


MOVES = {
    "value of another version": "UPDATE checkpoint_blobs SET blob = (SELECT blob FROM checkpoint_blobs WHERE thread_id "
    "= 'thread' AND channel = 'n' ORDER BY version LIMIT 1) WHERE channel = 'n'",
    "value of another channel": "UPDATE checkpoint_blobs SET blob = (SELECT blob FROM checkpoint_blobs WHERE thread_id "
    "= 'thread' AND channel = 'whole') WHERE channel = 'n'",
    "value of another thread": "UPDATE checkpoint_blobs a SET blob = b.blob FROM checkpoint_blobs b WHERE a.thread_id "
    "= 'thread' AND b.thread_id = 'other' AND a.channel = b.channel AND a.version = b.version",
    "value that is gone": "DELETE FROM checkpoint_blobs WHERE channel = 'whole'",
    "write of another task": "UPDATE checkpoint_writes SET blob = (SELECT blob FROM checkpoint_writes WHERE thread_id "
    "= 'thread' AND task_id = 'task-a') WHERE task_id = 'task-b' AND channel = 'n'",
    "write that is gone": "DELETE FROM checkpoint_writes WHERE task_id = 'task-b' AND channel = 'n'",
    "write twice": "INSERT INTO checkpoint_writes SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, 7, channel, "
    "type, blob, task_path FROM checkpoint_writes WHERE task_id = 'task-a'",
    "metadata of another checkpoint": "UPDATE checkpoints SET metadata = (SELECT metadata FROM checkpoints WHERE "
    "thread_id = 'thread' AND parent_checkpoint_id IS NULL)",
    "another parent": "UPDATE checkpoints SET parent_checkpoint_id = 'x' WHERE parent_checkpoint_id IS NOT NULL",
    "plain metadata": f"UPDATE checkpoints SET metadata = metadata - '{HEAD}'",
    "plain write": "UPDATE checkpoint_writes SET type = 'null', blob = ''",
    "plain value": "UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{channel_values,n}', '1')",
    "cut value": "UPDATE checkpoint_blobs SET blob = substr(blob, 1, length(blob) - 1), type = 'bytes'",
}


@pytest.mark.also_on()
@pytest.mark.by_turns
@pytest.mark.parametrize("what", MOVES)
async def test_a_row_that_was_moved_is_refused(tiers: Tiers, what: str) -> None:
    uniform, other = await tiers.uniform(), await tiers.uniform()
    made = await written(uniform)
    await written(uniform, "other")
    columns = "(thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path)"
    tiers.sql(MOVES[what].replace("checkpoint_writes SELECT", f"checkpoint_writes {columns} SELECT"))
    if what == "plain value":
        tiers.sql("DELETE FROM checkpoint_blobs WHERE channel = 'n'")
    tiers.evict()
    error = PlainValueRefused if what.startswith("plain") else DecodeError
    for read in (other.get_tuple(made[-1]), other.list(config())):
        with pytest.raises(error, match="in cold") as caught:
            await read
        assert "xxx" not in str(caught.value)


async def test_a_history_lacks_no_ancestor(tiers: Tiers) -> None:
    uniform, where = await tiers.uniform(), config()
    for number in range(1, 4):
        versions = {"log": f"{number:032}.1"}
        values = {"log": _DeltaSnapshot([MARKER])} if number == 1 else {}
        metadata = {"counters_since_delta_snapshot": {"log": (number - 1, number - 1)}}
        where = await uniform.put(where, checkpoint(values, versions), metadata, versions)
        await uniform.put_writes(where, [("log", [number])], f"task-{number}")
    tiers.evict()
    query: dict[str, Any] = {"config": where, "channels": ["log"]}
    found = (await (await tiers.uniform()).get_delta_channel_history(**query))["log"]
    assert found["seed"] == _DeltaSnapshot([MARKER])
    assert found["writes"] == [("task-1", "log", [1]), ("task-2", "log", [2])]
    tiers.sql("DELETE FROM checkpoints WHERE parent_checkpoint_id IS NULL")
    tiers.evict()
    with pytest.raises(DecodeError, match="is gone, which the DeltaChannels"):
        await (await tiers.uniform()).get_delta_channel_history(**query)


@pytest.mark.parametrize("target_name", ["redis"], indirect=True)
@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_flusher_needs_the_keys(tiers: Tiers, tmp_path: Path) -> None:
    uniform = await tiers.uniform(**BEHIND)
    made = await written(uniform)
    given = ["--redis", tiers.target.url, "--postgres", tiers.url, "--prefix", tiers.target.prefix]
    for code, keys in enumerate((KEYS, {})):
        names = " ".join(f"{name}={base64.b64encode(key).decode()}" for name, key in keys.items())
        await uniform.put_writes(made[-1], [("n", [code])], f"task-{code}")
        command = ["-m", "redis_saver", "flush", *given, "--once", "--timeout", "6"]
        environment = {**os.environ, **({"REDIS_SAVER_KEYS": names} if keys else {})}
        done = programs.run(*command, environment=environment, folder=tmp_path)
        assert done.returncode == code, done.stderr
        assert keys or "IsEncrypted" in done.stderr
    await drained(uniform)
    before = plain(await uniform.get_tuple(made[-1]))
    tiers.evict()
    assert plain(await (await tiers.uniform(**BEHIND)).get_tuple(made[-1])) == before


@both_modes
async def test_whole_threads_are_changed(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    made = await written(uniform)
    await chain(uniform, "runs", 3, run_id="run-1")
    await uniform.copy_thread("thread", "copy")
    await drained(uniform)
    copied, original = await uniform.get_tuple(config("copy")), await uniform.get_tuple(config())
    assert copied.checkpoint == original.checkpoint and copied.pending_writes == original.pending_writes
    assert (await uniform.prune(["copy"])).checkpoints == 2
    assert len(await uniform.list(config("copy"))) == 1 and len(await uniform.list(config())) == 3
    await uniform.delete_for_runs(["run-1"])
    assert await uniform.list(config("runs")) == []
    assert ids(await uniform.list(config(), filter={"step": 1})) == [id_of(made[1])]
    assert not (await uniform.check("thread")).findings
    await uniform.delete_thread("thread")
    await drained(uniform)
    assert await (await tiers.uniform(**mode)).get_tuple(config()) is None


@pytest.mark.parametrize("evicts", [False, True])
async def test_a_saver_without_keys_refuses(tiers: Tiers, evicts: bool) -> None:
    made = await written(await tiers.uniform())
    if evicts:
        tiers.evict()
    with pytest.raises(RedisSaverError, match="encrypted"):
        await (await tiers.uniform(hot={"encryption": None})).get_tuple(made[-1])


@both_modes
@pytest.mark.parametrize("evicts", [False, True])
async def test_a_plain_thread_is_refused(tiers: Tiers, mode: dict[str, Any], evicts: bool) -> None:
    older, encrypting = (
        await tiers.uniform(**mode, hot={"encryption": None}),
        [await tiers.uniform(**mode) for _ in range(3)],
    )
    made = await written(older)
    await drained(older)
    before = plain(await older.get_tuple(config()))
    if evicts:
        tiers.evict()
    with pytest.raises(PlainValueRefused):
        await encrypting[0].get_tuple(made[-1])
    if not evicts:  # else hot does not know the thread, and a graph reads it before it writes
        for write in (
            put(encrypting[1], made[-1], {"n": 1}),
            encrypting[2].put_writes(made[-1], [("n", 1)], "another"),
        ):
            with pytest.raises(RedisSaverError, match="not encrypted|data key"):
                await write
    assert plain(await older.get_tuple(config())) == before


@pytest.mark.parametrize("flavour", ["sync"])
async def test_postgres_alone_is_read_with_the_keys(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    made, before = await written(uniform), await run(uniform, thread="graph") and await uniform.get_tuple(config())
    serde = ColdSerializer(Keyset(KEYS), prefix=tiers.target.prefix)
    with PostgresSaver.from_conn_string(tiers.url) as cold:
        cold.serde = serde
        found = cold.get_tuple(made[-1])
        assert found is not None and plain(found) == plain(before)
        assert serde.open(found.metadata) == before.metadata
        assert graph(cold).get_state(config("graph")).values == (await state(uniform, "graph")).values
        with pytest.raises(NotImplementedError):
            cold.put_writes(made[-1], [("n", [1])], "task")  # type: ignore[arg-type]


async def test_a_thread_keeps_the_name_of_its_key(tiers: Tiers) -> None:
    """After hot lost it, and in a copy: or the tenant's key could not be destroyed."""

    def key_for(_: str, where: Any) -> str | None:
        return where and where["configurable"].get("tenant")

    uniform, other, third, last = [
        await tiers.uniform(hot={"encryption": encryption(key_for=key_for)}) for _ in range(4)
    ]
    await put(uniform, config(tenant="tenant"), {"n": 1})
    await put(uniform, config("plain"), {"n": 1})
    tiers.evict()
    for thread in ("thread", "plain"):
        await other.get_tuple(config(thread))
    status = await Uniform(other.saver.hot).key_status()
    assert sorted(status.threads.items()) == [("2026-11", 1), ("tenant", 1)]
    await third.copy_thread("thread", "copy")
    assert (await OpenedCold(last.saver).get_tuple(config("copy"))).checkpoint["channel_values"] == {"n": 1}
    wrapped = tiers.sql("SELECT blob FROM checkpoint_blobs WHERE thread_id = 'copy'")
    assert all(MAGIC in blob and b"6:tenant" in blob and b"2026-11" not in blob for (blob,) in wrapped)


@both_modes
async def test_the_keys_of_rows_are_rotated(tiers: Tiers, mode: dict[str, Any]) -> None:
    """Then everything is read without the old key, also what only Postgres has."""
    uniform = await tiers.uniform(**mode)
    before = await run(uniform)
    await written(uniform, "other")
    await drained(uniform)
    status = await uniform.key_status()
    assert (set(status.rows), status.threads, status.plain) == ({"2026-11"}, {"2026-11": 2}, 0)
    assert tiers.sql("SELECT 1 FROM checkpoint_blobs WHERE type = 'msgpack'"), "snapshots"
    other = await tiers.uniform(**mode, hot={"encryption": Encryption(Keyset({**NEW, **KEYS}))})
    number = status.rows["2026-11"] + 2
    assert await other.rotate_keys() == Rotated(number, 0, 0, {})
    assert await other.rotate_keys() == Rotated(0, number, 0, {})
    assert await other.key_status() == KeyStatus({"new": 2}, 0, {}, rows={"new": number - 2})
    tiers.evict()
    alone = await tiers.uniform(**mode, hot={"encryption": Encryption(Keyset(NEW))})
    assert (await state(alone)).values == before.values
    assert (await state(alone)).metadata["user"] == MARKER
    assert len(await history(alone)) == 4 * 4 and len(await alone.list(config("other"))) == 3
    assert not [part for part in rows(tiers) if b"2026-11" in part and b"envelope" in part]


async def test_rows_that_cannot_be_rotated_are_named(tiers: Tiers) -> None:
    await written(await tiers.uniform())
    await written(await tiers.uniform(hot={"encryption": None}), "plain")
    tiers.sql("UPDATE checkpoint_writes SET blob = substr(blob, 1, 40) WHERE thread_id = 'thread'")
    other = await tiers.uniform(hot={"encryption": Encryption(Keyset({**NEW, **KEYS}))})
    rotated = await other.rotate_keys()
    assert list(rotated.failed) == ["cold thread"] and "in cold" in rotated.failed["cold thread"]
    assert rotated.rotated and rotated.plain
    memory = await tiers.uniform(cold=InMemorySaver())
    for call in (memory.key_status, memory.rotate_keys):
        with pytest.raises(NotImplementedError, match="not LangGraph's Postgres saver"):
            await call()
