"""Histories of `DeltaChannel`s: what a process remembers shortens them and changes no result.

The script trusts what a process knows below a checkpoint unless something was rewritten or added there since. One test
breaks each condition alone. Random histories of several processes are compared with `InMemorySaver`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest
from tests.support.counting import Traffic, size
from tests.support.factories import chain, checkpoint, config, put
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT, _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from tests.support.talking import joined
from tests.support.seeds import seeds, seeds_and_slow, targets
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, Meanwhile, noted, script_of

from bench.history import message
from redis_saver import DecodeError
from redis_saver._checkpoint import delta, reading
from redis_saver._checkpoint import scripts
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.requests import Call
from redis_saver._serde.serializer import FastSerializer

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async")
OTHER_LUA = pytest.mark.also_on(cluster="sync", redis62="async", fakeredis="sync", lua54="async")
"""Servers whose Lua differs, for tests of the script's conditions."""

CHANNELS = ("log", "files", "plain")


class Process:
    """A saver as if in its own process, and how often the server confirmed what it knew."""

    def __init__(self, target: Target, **options: Any) -> None:
        self.uniform, self.believed = target.uniform(**options), 0
        Around(self.uniform.saver, self._counted)

    def _counted(self, request: Any) -> Any:
        reply = yield request
        if script_of(request) is scripts.HISTORY and isinstance(reply, list):
            self.believed += sum(one[3] > 0 for one in reply[3:])
        return reply

    async def history(self, where: dict[str, Any], *channels: str) -> Any:
        asked = list(channels or CHANNELS)
        return dict(await self.uniform.get_delta_channel_history(config=where, channels=asked))

    async def is_believed(self, where: dict[str, Any], *channels: str) -> bool:
        """True if the server confirms what the process knows below a checkpoint."""
        before = self.believed
        await self.history(where, *channels)
        return self.believed > before


def logged(history: Any, channel: str = "log") -> list[Any]:
    return [write[2] for write in history[channel]["writes"]]


# -- one test for each condition of a known point


class Talk:
    """Eight checkpoints, each with a write, and a snapshot in the second. One process knows the history."""

    def __init__(self, target: Target) -> None:
        self.target, self.knows, self.other = target, Process(target), Process(target).uniform
        self.configs: list[dict[str, Any]] = []

    async def begin(self, thread: str = "thread", said: str = "") -> None:
        self.configs = await self.put(thread, said)
        await self.knows.history(self.configs[-1])
        assert await self.knows.is_believed(self.configs[-1])

    async def put(self, thread: str, said: str) -> list[dict[str, Any]]:
        configs: list[dict[str, Any]] = []
        for number in range(8):
            parent = configs[-1] if configs else config(thread)
            configs.append(await self.put_one(number, parent))
            await self.other.put_writes(configs[-1], [("log", f"{said}{number}")], f"task-{number}")
        return configs

    async def put_one(self, number: int, parent: dict[str, Any], snapshot: str = "snapshot") -> Any:
        versions = {"log": f"{number + 1:032}.0.123456789{number}"}
        values = {"log": _DeltaSnapshot([snapshot])} if number == 1 else {}
        made = checkpoint(values, versions, f"{number:04}")
        return await self.other.put(parent, made, {"step": number, "run_id": f"run-{number}"}, versions)

    async def write(self, number: int, *said: str, task: str = "another") -> None:
        await self.other.put_writes(self.configs[number], [("log", one) for one in said], task)

    async def check(self, *, is_believed: bool) -> Any:
        """Check that a child's history is right, and whether the server confirmed what the process knew."""
        last = self.configs[-1]["configurable"]
        versions = {"log": f"{9:032}.0.99999999"}
        following = await put(self.other, self.configs[-1], {}, checkpoint_id="0009", versions=versions)
        before, expected = self.knows.believed, await Process(self.target).history(following)
        assert last["checkpoint_id"] == "0007"
        assert await self.knows.history(following) == expected
        assert (self.knows.believed > before) == is_believed
        assert await self.knows.is_believed(following), "after a new read the history is known again"
        return expected


@pytest.fixture
async def talk(target: Target) -> Talk:
    made = Talk(target)
    await made.begin()
    return made


async def sent_again(talk: Talk) -> None:
    await talk.write(3, "another", task="task-3")
    await talk.put_one(3, talk.configs[2])


async def added_value(talk: Talk) -> None:
    versions = {"log": f"{5:032}.0.1234567894"}
    made = checkpoint({"log": _DeltaSnapshot(["later"])}, versions, "0004")
    await talk.other.put(talk.configs[3], made, {"step": 4, "run_id": "run-4"}, versions)


async def added_after_a_removal(talk: Talk) -> None:
    """The numbers of checkpoints and of tasks with writes stay the same."""
    await talk.other.delete_for_runs(["run-4"])
    late = await put(talk.other, talk.configs[2], {}, checkpoint_id="0003a")
    await talk.other.put_writes(late, [("log", "elsewhere")], "task")


async def recreated(talk: Talk) -> None:
    await talk.other.delete_thread("thread")
    await talk.put("thread", "anew ")


OLD = [str(number) for number in range(1, 8)]
CHANGES: dict[str, tuple[Callable[[Talk], Awaitable[Any]], bool, str | None, list[str]]] = {
    "none": (lambda talk: asyncio.sleep(0), True, "snapshot", OLD),
    "writes on it": (lambda talk: talk.write(7, "more"), True, "snapshot", [*OLD[:6], "more", "7"]),
    "a late write of another task": (lambda talk: talk.write(3, "late"), False, "snapshot", ["1", "2", "late", *OLD[2:]]),
    "more writes of a known task, so that only the rewrite mark shows it": (
        lambda talk: talk.write(3, "3", "more", task="task-3"), False, "snapshot", [*OLD[:3], "more", *OLD[3:]],
    ),
    "writes and a checkpoint sent again": (sent_again, True, "snapshot", OLD),
    "another parent": (lambda talk: talk.put_one(5, talk.configs[2]), False, "snapshot", ["1", "2", "5", "6", "7"]),
    "an overwritten value, with the same header": (
        lambda talk: talk.put_one(1, talk.configs[0], "another"), False, "another", OLD,
    ),
    "a value added to a checkpoint": (added_value, False, "later", OLD[3:]),
    "a checkpoint added after a removal": (added_after_a_removal, False, None, ["5", "6", "7"]),
    "a recreated thread": (recreated, False, "snapshot", [f"anew {number}" for number in OLD]),
}  # fmt: skip
"""By change of a known history: what changes it, if the history is still believed, and its seed and writes then."""


@OTHER_LUA
@pytest.mark.parametrize("change", CHANGES)
async def test_changes_of_a_known_history_are_noticed(talk: Talk, change: str) -> None:
    act, is_believed, seed, writes = CHANGES[change]
    await act(talk)
    found = await talk.check(is_believed=is_believed)
    assert logged(found) == writes
    assert found["log"].get("seed") == (_DeltaSnapshot([seed]) if seed else None)


@pytest.mark.parametrize("copies", [1, 2])
async def test_a_copy_over_a_thread_is_noticed(talk: Talk, copies: int) -> None:
    """A copy over another copy is noticed too."""
    for number in range(copies):
        if number:
            assert not await talk.knows.is_believed(talk.configs[-1])
        await talk.put(f"source-{number}", f"copied {number} ")
        await talk.other.copy_thread(f"source-{number}", "thread")
    found = await talk.check(is_believed=False)
    assert logged(found) == [f"copied {copies - 1} {number}" for number in range(1, 8)]


async def test_a_thread_recreated_by_writes_is_noticed(talk: Talk) -> None:
    """A task's writes may come before its checkpoint."""
    for said in ("once ", "again "):
        await talk.other.delete_thread("thread")
        await talk.other.put_writes(talk.configs[0], [("log", "first")], "task-0")
        await talk.put("thread", said)
        assert logged(await talk.knows.history(talk.configs[-1]))[0] == f"{said}1"
    await talk.check(is_believed=True)


async def test_a_parent_that_arrives_late_is_noticed(target: Target) -> None:
    """A history that ends at a missing parent depends on all older data."""
    knows, other = Process(target), Process(target).uniform
    later = [await put(other, config("thread", "", "0002"), {}, checkpoint_id="0003", versions={})]
    later.append(await put(other, later[0], {}, checkpoint_id="0004", versions={}))
    await other.put_writes(config("thread", "", "0001"), [("log", 1)], "task")
    assert logged(await knows.history(later[1])) == []
    assert await knows.is_believed(later[1])
    await put(other, config("thread", "", "0001"), {}, checkpoint_id="0002", versions={})
    assert not await knows.is_believed(later[1])
    await put(other, config(), {}, checkpoint_id="0001", versions={})
    assert logged(await knows.history(later[1])) == [1]


async def test_writes_to_ancestors_with_unordered_ids_are_noticed(target: Target) -> None:
    """With an id from a slow clock, the last ancestor does not have the lowest id."""
    knows, other = Process(target), Process(target).uniform
    parent = await put(other, config(), {}, checkpoint_id="0005", versions={})
    behind = await put(other, parent, {}, checkpoint_id="0002", versions={})
    child = await put(other, behind, {}, checkpoint_id="0009", versions={})
    for number, late in enumerate((behind, parent)):
        await knows.history(child)
        assert await knows.is_believed(child)
        await other.put_writes(late, [("log", number)], f"task-{number}")
        assert not await knows.is_believed(child)
    assert logged(await knows.history(child)) == [1, 0]


async def test_a_checkpoint_with_an_id_below_its_parents_is_not_remembered(target: Target) -> None:
    """Writes to its parent, which has a greater id, could not be counted."""
    knows, other = Process(target), Process(target).uniform
    parent = await put(other, config(), {}, checkpoint_id="0005", versions={})
    behind = await put(other, parent, {}, checkpoint_id="0002", versions={})
    await knows.history(behind)
    await other.put_writes(parent, [("log", 1)], "task")
    assert not await knows.is_believed(behind)
    assert logged(await knows.history(behind)) == [1]


async def test_an_ancestor_of_itself_is_not_remembered(target: Target) -> None:
    knows, other = Process(target), Process(target).uniform
    first = await put(other, config("thread", "", "0002"), {}, checkpoint_id="0001", versions={})
    second = await put(other, first, {}, checkpoint_id="0002", versions={})
    third = await put(other, second, {}, checkpoint_id="0003", versions={})
    await other.put_writes(first, [("log", 1)], "task")
    for _ in range(2):
        assert logged(await knows.history(third)) == [1]
        assert not await knows.is_believed(third)


async def test_a_value_that_another_branch_gives_a_version_is_noticed(target: Target) -> None:
    """Versions of LangGraph's and our savers are unique. Other callers may count up in each branch alike."""
    knows, other = Process(target), Process(target).uniform
    root = await put(other, config(), {}, checkpoint_id="0001", versions={"log": 1})
    child = await put(other, root, {}, checkpoint_id="0002", versions={})
    await knows.history(child)
    await put(other, config(), {"log": ["a value"]}, checkpoint_id="0003", versions={"log": 1})
    assert not await knows.is_believed(child, "log")
    assert (await knows.history(child))["log"]["seed"] == ["a value"]


async def test_special_writes_are_not_remembered(talk: Talk) -> None:
    """A newer one replaces an older one."""
    await talk.other.put_writes(talk.configs[3], [(INTERRUPT, "first")], "task-3")
    assert logged(await talk.knows.history(talk.configs[-1], INTERRUPT), INTERRUPT) == ["first"]
    await talk.other.put_writes(talk.configs[3], [(INTERRUPT, "second")], "task-3")
    assert logged(await talk.knows.history(talk.configs[-1], INTERRUPT), INTERRUPT) == ["second"]


async def test_unknown_channels_are_read_to_the_end(talk: Talk) -> None:
    """Known histories of other channels are still used."""
    await talk.other.put_writes(talk.configs[0], [("notes", "n")], "noted")
    await talk.knows.history(talk.configs[-1], "log")
    expected = await Process(talk.target).history(talk.configs[-1], "notes", "log")
    assert await talk.knows.history(talk.configs[-1], "notes", "log") == expected
    assert logged(expected, "notes") == ["n"]


async def test_a_fork_below_the_known_checkpoint_is_read(talk: Talk) -> None:
    fork = await put(talk.other, talk.configs[4], {}, checkpoint_id="0008", versions={"log": f"{9:032}.0.77777777"})
    await talk.other.put_writes(fork, [("log", "fork")], "task")
    child = await put(talk.other, fork, {}, checkpoint_id="0010", versions={"log": f"{9:032}.0.77777777"})
    assert logged(await talk.knows.history(child)) == ["1", "2", "3", "4", "fork"]
    assert await talk.knows.is_believed(child)
    assert await talk.knows.is_believed(talk.configs[-1]), "both branches are known"


async def test_a_returned_history_belongs_to_the_caller(talk: Talk) -> None:
    first = await talk.knows.history(talk.configs[-1])
    expected = await Process(talk.target).history(talk.configs[-1])
    first["log"]["seed"].value.append("changed")
    first["log"]["writes"].clear()
    assert await talk.knows.history(talk.configs[-1]) == expected


async def test_an_ancestor_without_a_name_raises_decode_error(target: Target) -> None:
    """The damage is found even after a repeated ancestor, where the walk ends."""
    saver, spoiled = target.uniform(), target.uniform()
    where = (await chain(saver, "thread", 3))[-1]

    def spoil(request: Any) -> Any:
        reply = yield request
        if script_of(request) is scripts.HISTORY:
            position, chunks, basis, one, *_ = reply
            reply = [position, chunks, basis, one, one, [[], *one[1:]]]
        return reply

    Around(spoiled.saver, spoil)
    with pytest.raises(DecodeError, match=r"ancestors.*ancestor \[\]"):
        await spoiled.get_delta_channel_history(config=where, channels=["log"])


async def answered(process: Process, call: Awaitable[Any]) -> tuple[int, list[int]]:
    """Return the size of the replies during a call, and the number of ancestors in each history."""
    driver, answers = process.uniform.saver._driver, noted(process.uniform.saver)
    await call
    process.uniform.saver._driver = driver
    ancestors = [len(reply[3:]) for request, reply in answers if script_of(request) is scripts.HISTORY]
    return sum(size(reply) for _, reply in answers), ancestors


class Long:
    """A thread with a write to `log` on each checkpoint, and a snapshot in some."""

    def __init__(self, uniform: Uniform) -> None:
        self.uniform, self.where, self.said = uniform, config(), list[Any]()

    async def step(self, count: int = 1, *, kind: Any = None, with_log: bool = True) -> None:
        """Make `count` steps. With `kind`, the last one stores all messages so far as a value of that kind."""
        following = range(len(self.said), len(self.said) + count)
        for number in following:
            versions = {"log": f"{number:032}.0.1234567891"}
            is_stored = kind is not None and number == following[-1]
            made = checkpoint({"log": kind(self.said)} if is_stored else {}, versions, f"{number:06}")
            self.where = await self.uniform.put(self.where, made, {"step": number}, versions)
            self.said = [*self.said, message(number)]
            written = [("log" if with_log else "other", [message(number)])]
            await self.uniform.put_writes(self.where, written, f"task-{number}")


@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("kind", [None, list, _DeltaSnapshot])
async def test_a_known_history_of_any_length_is_not_walked(target: Target, kind: Any) -> None:
    """This also holds if it has neither a value nor a write."""
    knows = Process(target)
    long = Long(knows.uniform)
    await long.step(300, kind=kind, with_log=kind is not None)
    await knows.history(long.where)
    for number in range(3):
        await long.step(1 + number)
        _, ancestors = await answered(knows, knows.history(long.where))
        # With encryption the checkpoint itself comes, too, because its header proves which one its parent is.
        assert ancestors == [1 + number + target.is_encrypted]
        assert await answered(knows, knows.history(long.where)) < (500, [])


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_cold_process_reads_a_seed_and_the_writes_since(target: Target) -> None:
    long = Long(target.uniform())
    for _ in range(3):
        await long.step(50, kind=_DeltaSnapshot)
    await long.step(10)
    seed, writes = (len(long.uniform.saver.serde.dumps_typed(some)[1]) for some in (long.said[:149], long.said[149:]))
    received, ancestors = await answered(cold := Process(target), cold.history(long.where, "log"))
    assert ancestors == [10 + target.is_encrypted]
    assert received < 1.2 * (seed + writes)


@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("kinds", [(list, _DeltaSnapshot), (_DeltaSnapshot, list), (_DeltaSnapshot, _DeltaSnapshot)])
@pytest.mark.parametrize("who", ["the same process", "one that read it", "one that knows nothing"])
async def test_values_of_different_kinds_share_chunks(target: Target, kinds: Any, who: str) -> None:
    """A plain channel becomes a `DeltaChannel`, or the reverse."""
    long = Long(target.uniform())
    long.said = [message(number) for number in range(299)]
    await long.step(1, kind=kinds[0])
    before = (await target.uniform().get_thread("thread")).bytes
    if who != "the same process":
        long.uniform = target.uniform()
    if who == "one that read it":
        await long.uniform.get_delta_channel_history(
            config=await put(long.uniform, long.where, {}, checkpoint_id="000299a", versions={}), channels=["log"]
        )
    answers = noted(long.uniform.saver)
    await long.step(1, kind=kinds[1])
    sent = sum(size(list(request.arguments)) for request, _ in answers if isinstance(request, Call))
    stored = (await target.uniform().get_thread("thread")).bytes - before
    whole = len(FastSerializer().dumps_typed(long.said)[1])
    assert stored < whole / 20
    assert sent < whole / (8 if who == "one that knows nothing" else 20)
    found = await target.uniform().get_tuple(config())
    assert found.checkpoint["channel_values"]["log"] == kinds[1](long.said[:-1])


async def test_reading_another_channel_does_not_forget_a_known_snapshot(target: Target) -> None:
    """No history is requested of a channel whose snapshot is in the newest checkpoint."""
    knows = Process(target)
    saver, versions = knows.uniform, {"log": f"{1:032}.0.1234567891"}
    made = checkpoint({"log": _DeltaSnapshot([message(n) for n in range(300)])}, versions, "0001")
    where = await saver.put(config(), made, {"step": 1}, versions)
    await knows.history(where, "files")
    for number in range(2, 5):
        await saver.put_writes(where, [("log", number)], f"task-{number}")
        versions = {"log": f"{number:032}.0.1234567891"}
        where = await put(saver, where, {}, checkpoint_id=f"{number:04}", versions=versions)
        await saver.get_tuple(config())
        if number == 3:
            assert await answered(knows, knows.history(where, "files", "log")) < (3_000, [])
    assert await knows.history(where) == await Process(target).history(where)


class Wrapper(BaseCheckpointSaver[Any]):
    """A wrapper that does not pass on `get_delta_channel_history`, so LangGraph's default reads each ancestor."""

    def __init__(self, saver: Any) -> None:
        super().__init__()
        self._saver = saver

    def get_tuple(self, config: Any) -> Any:
        return self._saver.get_tuple(dict(config))

    async def aget_tuple(self, config: Any) -> Any:
        return await self._saver.aget_tuple(dict(config))


async def test_ancestors_that_are_read_one_by_one_give_one_warning(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_LOG", ThrottledLog("redis_saver.checkpoint", only_once=True))
    saver = target.uniform()
    configs = [await chain(saver, name, 2 * reading.WALK) for name in ("a", "b")]
    for where in (*configs[0], *configs[0][1:-1:2]):  # forwards, and the same one again and again
        await saver.get_tuple(where)
        await saver.get_tuple(where)
        await saver.get_tuple(config("a"))
    await saver.get_delta_channel_history(config=configs[0][-1], channels=["log"])
    assert not caplog.records
    wrapper = Wrapper(saver.saver)
    for _ in range(2):  # two walks at the same time
        asked = [{"config": of[-1], "channels": ["x"]} for of in configs]
        if saver.native_async:
            await asyncio.gather(*(wrapper.aget_delta_channel_history(**each) for each in asked))
        else:
            await asyncio.gather(*(asyncio.to_thread(wrapper.get_delta_channel_history, **each) for each in asked))
    assert [record.name for record in caplog.records] == ["redis_saver.checkpoint"]
    assert "10 ancestors" in caplog.text and "aget_delta_channel_history" in caplog.text
    assert len(reading._walks) <= reading.MAX_WALKS


async def test_many_subgraph_calls_do_not_evict_the_root(talk: Talk) -> None:
    for number in range(20):
        where = await put(talk.other, config("thread", f"node:{number}"), {}, checkpoint_id="0001", versions={})
        await talk.knows.history(where)
    await talk.check(is_believed=True)


BETWEEN: dict[str, Callable[[Uniform, list[dict[str, Any]]], Awaitable[Any]]] = {
    "a late write above": lambda other, configs: other.put_writes(configs[-2], [("log", "late")], "another"),
    "a late write below": lambda other, configs: other.put_writes(configs[2], [("log", "late")], "another"),
    "more of a task": lambda other, configs: other.put_writes(configs[-2], [("log", 1), ("log", "late")], "task"),
}


@OTHER_LUA
@pytest.mark.parametrize("what", BETWEEN)
async def test_changes_between_two_pages_are_not_missed_later(target: Target, monkeypatch: Any, what: str) -> None:
    """The result may be from before or after the change. Later results are right."""
    monkeypatch.setattr(delta, "ANCESTORS_PER_PAGE", 3)
    knows, other, asked = Process(target), Process(target).uniform, 0
    configs = await chain(other, "thread", 10)
    for one in configs:
        await other.put_writes(one, [("log", 1)], "task")

    def before(request: Any) -> Any:
        nonlocal asked
        asked += script_of(request) is scripts.HISTORY
        if asked == 3 and script_of(request) is scripts.HISTORY:
            asked += 1
            return lambda: BETWEEN[what](target.uniform(), configs)
        return None

    Meanwhile(knows.uniform.saver, before)
    await knows.history(configs[-1], "log")
    assert asked > 3
    for _ in range(2):
        expected = await Process(target).history(configs[-1], "log")
        assert await knows.history(configs[-1], "log") == expected
    assert "late" in logged(expected)


# -- graphs


def merged(state: dict[str, Any], writes: Any) -> dict[str, Any]:
    return {name: text for one in (state, *writes) for name, text in one.items()}


_messages: Any = DeltaChannel(joined, snapshot_frequency=50)
_files: Any = DeltaChannel(merged, snapshot_frequency=7)


class State(TypedDict):
    messages: Annotated[list[Any], _messages]
    files: Annotated[dict[str, str], _files]


def agent(*, asks: bool = False) -> Any:
    """Make an agent whose model calls a tool, which writes a file. With `asks`, the tool waits for a person."""

    def model(state: State) -> Any:
        return {"messages": [message(len(state["messages"]))]}

    def tool(state: State) -> Any:
        said = interrupt("may I?") if asks else "yes"
        count = len(state["messages"])
        return {"messages": [message(count)], "files": {f"{count % 5}.md": f"{said} {count} " * 20}}

    builder: Any = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tool")
    return builder


class Graph:
    """A graph over a saver, called in the saver's flavour."""

    def __init__(self, saver: Any, *, asks: bool = False, native_async: bool = False) -> None:
        self.graph, self.native_async = agent(asks=asks).compile(checkpointer=saver), native_async

    async def call(self, method: str, *args: Any) -> Any:
        if self.native_async:
            return await getattr(self.graph, "a" + method)(*args)
        return getattr(self.graph, method)(*args)

    async def turn(self, number: int) -> Any:
        return await self.call("invoke", {"messages": [HumanMessage(f"turn {number}", id=f"turn-{number}")]}, config())

    async def states(self) -> list[Any]:
        """Return all states, newest first, each read with its own call as in time travel."""
        where = config(ns=None)
        if self.native_async:
            listed = [one async for one in self.graph.aget_state_history(where)]
        else:
            listed = list(self.graph.get_state_history(where))
        return [await self.call("get_state", one.config) for one in listed]


async def traffic(target: Target, messages: int, turns: int) -> list[tuple[int, int]]:
    """Return the bytes sent and received in each turn of a chat that begins with `messages` messages."""
    if keys := target.keys():
        target.raw.unlink(*keys)
    uniform = target.uniform()
    graph = Graph(uniform.saver, native_async=uniform.native_async)
    await graph.call("invoke", {"messages": [message(number) for number in range(messages)]}, config())
    for number in range(20):  # beyond its first snapshot
        await graph.turn(number)

    bytes_passed, found = Traffic(target), list[tuple[int, int]]()
    for number in range(turns):
        bytes_passed.take()
        await graph.turn(100 + number)
        found.append(bytes_passed.take())
    state = await graph.call("get_state", config())
    assert len(state.values["messages"]) == messages + 2 + 3 * (20 + turns)
    return found


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("flavour", ["async"])
async def test_a_turn_transfers_only_new_data(target: Target) -> None:
    """The turns include snapshots: two of the messages, and more of the files."""
    few, many = await traffic(target, 100, 34), await traffic(target, 1000, 34)
    mean = [sum(both) / 34 for found in (few, many) for both in zip(*found, strict=True)]
    worst = max(sent + received for sent, received in many)
    print(mean, worst)
    sent_of_few, _, sent, received = mean
    assert received <= (6_000 if target.is_encrypted else 5_000)  # the tag and the type of each sealed record
    assert sent <= 1.3 * sent_of_few
    assert worst <= 60_000


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
@pytest.mark.by_turns
async def test_a_chat_over_two_processes_matches_inmemorysaver(target: Target) -> None:
    """It is interrupted in one, resumed in the other, forked, and continued from old states."""
    uniforms = [target.uniform() for _ in range(2)]
    ours = [Graph(one.saver, asks=True, native_async=one.native_async) for one in uniforms]
    theirs = Graph(InMemorySaver(), asks=True)

    def plain(found: Any) -> Any:
        return {name: value for name, value in found.items() if name != "__interrupt__"}

    async def both(which: int, method: str, *args: Any) -> None:
        """Call one of ours and theirs, and compare the results."""
        found = await ours[which].call(method, *args, config())
        assert plain(found) == plain(await theirs.call(method, *args, config()))

    async def back(which: int, at: int, given: Any) -> None:
        """Continue from an old state."""
        for graph in (ours[which], theirs):
            old = (await graph.states())[at]
            await graph.call("invoke", given, old.config)

    async def compare(*graphs: Graph) -> None:
        expected = [(one.values, one.next) for one in await theirs.states()]
        for graph in graphs:
            assert [(one.values, one.next) for one in await graph.states()] == expected

    for number in range(8):
        await both(number % 2, "invoke", {"messages": [HumanMessage(f"turn {number}", id=f"turn-{number}")]})
        await both((number + number // 4) % 2, "invoke", Command(resume=f"yes {number}"))
    await compare(ours[0])
    await back(0, 9, {"messages": [HumanMessage("a fork", id="fork")]})
    await both(1, "invoke", Command(resume="forked"))
    await compare(ours[1])
    await back(1, 17, None)
    await both(0, "invoke", Command(resume="again"))
    await back(1, 3, {"messages": [AIMessage("another fork", id="fork-2")]})
    await both(1, "invoke", Command(resume="forked again"))
    await compare(*ours, Graph(target.uniform().saver, asks=True, native_async=ours[0].native_async))


# -- random operations


class Model(InMemorySaver):
    """An `InMemorySaver` with the operations that it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied = set[str]()
        """Versions that lost their value, which never happens in LangGraph."""

    def keep(self, thread: str, found: list[Any]) -> None:
        """Remove the checkpoints of a thread that `found` lacks."""
        kept = {(one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]): one.parent_config for one in found}
        held = set()
        for ns, stored in self.storage.get(thread, {}).items():
            for which in list(stored):
                if (ns, which) not in kept:
                    del stored[which]
                    self.writes.pop((thread, ns, which), None)
                    continue
                parent = kept[ns, which]
                stored[which] = (*stored[which][:2], parent and parent["configurable"]["checkpoint_id"])
                versions = self.serde.loads_typed(stored[which][0])["channel_versions"]
                held |= {(thread, ns, *one) for one in versions.items()}
        for place in [place for place in self.blobs if place[0] == thread and place not in held]:
            del self.blobs[place]

    def copy_thread(self, source: str, target: str) -> None:
        self.delete_thread(target)
        for ns, stored in self.storage.get(source, {}).items():
            self.storage[target][ns] = dict(stored)
        for (thread, ns, which), writes in list(self.writes.items()):
            if thread == source:
                self.writes[target, ns, which] = dict(writes)
        for (thread, ns, channel, version), value in list(self.blobs.items()):
            if thread == source:
                self.blobs[target, ns, channel, version] = value

    def ids(self, thread: str, ns: str) -> list[str]:
        return sorted(self.storage.get(thread, {}).get(ns, {}))

    def is_rebuilt(self, thread: str, ns: str, channel: str) -> bool:
        """True if the newest checkpoint's channel has unique versions, each with a write, as in LangGraph."""
        found = self.get_tuple(config(thread, ns))
        if found is None or channel in found.checkpoint["channel_values"]:
            return False
        while channel not in found.checkpoint["channel_values"]:
            parent = self.get_tuple(found.parent_config) if found.parent_config else None
            versions = [one.checkpoint["channel_versions"].get(channel) for one in (found, parent) if one]
            is_written = parent and any(write[1] == channel for write in parent.pending_writes or ())
            is_new = versions[0] != versions[-1]
            if not parent or any(one is None or one in self.emptied or one.endswith(".x") for one in versions):
                return False
            if is_new and not is_written:
                return False
            found = parent
        return True

    def is_below(self, thread: str, ns: str, which: str, ancestor: str | None) -> bool:
        """True if `which` is `ancestor` or one of its ancestors."""
        stored = self.storage[thread][ns]
        while ancestor is not None:
            if ancestor == which:
                return True
            ancestor = stored[ancestor][2] if ancestor in stored else None
        return False


THREADS = ("a", "b")


class Operations:
    """Operations of four processes in turn: three with a cache and one without.

    In some runs one of them compresses, or all have a serializer that encrypts. With `encryption=`, nobody empties a
    value in its version, which would be taken for damage.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self.target, self.chance, self.model, self.number = target, random.Random(seed), Model(), 0
        kind = self.chance.choice(["plain", "some compress", "encrypted"])
        own: list[dict[str, Any]] = [{}, {}, {}, {"cache_bytes": 0}]
        if kind == "some compress":
            own[1]["compression"] = "zstd"
        for one in own if kind == "encrypted" else ():
            one["serde"] = EncryptedSerializer.from_pycryptodome_aes(JsonPlusSerializer(), key=b"0123456789abcdef")
        self.processes = [Process(target, **one) for one in own]
        self.forgetful = self.processes[-1]
        self.snapshots = self.chance.choice([0.03, 0.1, 0.5])
        self.to_come: dict[tuple[str, str], list[str]] = {}

    async def run(self, length: int) -> None:
        kinds = {
            "put": 30, "put_again": 3, "writes": 30, "late_writes": 6, "look": 5, "prune": 1, "runs": 1, "copy": 1, "delete": 0.5, "evict": 0.5,
        }  # fmt: skip
        for self.number in range(1, length + 1):
            kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
            thread, ns = self.chance.choice(THREADS), self.chance.choice(["", "", "sub"])
            await getattr(self, kind)(self.chance.choice(self.processes).uniform, thread, ns)
            await self.compare(thread, ns)

    async def compare(self, thread: str, ns: str) -> None:
        chance = self.chance
        ids = self.model.ids(thread, ns)
        which = chance.choice([None, None, None, *ids[-3:], chance.choice(ids or [None])])
        channels = chance.choice([["log"], ["log", "files"], [*CHANNELS, "absent"], ["files", "log", INTERRUPT]])
        where, process = config(thread, ns, which), chance.choice(self.processes)
        found = await process.history(where, *channels)
        assert found == dict(self.model.get_delta_channel_history(config=where, channels=channels)), where
        for history in found.values():  # the caller changes its result
            for *_, value in history["writes"]:
                value.append("changed")
            seed = history.get("seed")
            value = seed.value if isinstance(seed, _DeltaSnapshot) else seed or []
            value.clear() if isinstance(value, dict) else value.append("changed")

    def some(self, thread: str, ns: str) -> str | None:
        ids = self.model.ids(thread, ns)
        return self.chance.choice([ids[-1]] * 6 + ids[-4:] + [self.chance.choice(ids)]) if ids else None

    def new_id(self, *, is_late: bool = False) -> str:
        """Return the next id, or one from a slow clock."""
        if is_late:
            return f"{self.chance.randrange(self.number):08}.{self.number}"
        return f"{self.number:08}"

    def value(self) -> Any:
        """Return similar lists of messages, short or long enough for chunks, or files. Most are snapshots."""
        length = self.chance.choice([0, 1, 3, 10, 14, 15, 16])
        if self.chance.random() < 0.2:
            return _DeltaSnapshot({f"{n}.md": f"{n} {self.chance.randrange(3)} " * 99 for n in range(length)})
        made = [message(number) for number in range(length)]
        if made and self.chance.random() < 0.3:
            made[self.chance.randrange(length)] = HumanMessage("an edit " * 50, id=f"{self.number}")
        return made if self.chance.random() < 0.2 else _DeltaSnapshot(made)

    def version(self, thread: str, ns: str, channel: str, last: Any) -> Any:
        """Return a unique version, one that other callers might make, or one of theirs again."""
        made = [one[3] for one in self.model.blobs if one[:3] == (thread, ns, channel)]
        others = [one for one in made if one.endswith(".x")]
        kind = self.chance.random()
        if others and kind < 0.1 and not self.target.is_encrypted:
            return self.chance.choice(others)
        if kind < 0.2:
            return f"{self.number:032}.x"
        return self.forgetful.uniform.saver.get_next_version(last if isinstance(last, str) else None, None)

    async def store(self, uniform: Uniform, where: dict[str, Any], made: Any, new: dict[str, Any]) -> None:
        metadata = {"step": self.number, "run_id": f"run-{self.number // 4}"}
        await uniform.put(where, made, metadata, new)
        self.model.put(where, made, metadata, new)

    async def put(self, uniform: Uniform, thread: str, ns: str) -> None:
        chance, waiting = self.chance, self.to_come.setdefault((thread, ns), [])
        parent, made_id = self.some(thread, ns), self.new_id(is_late=chance.random() < 0.1)
        if waiting and chance.random() < 0.3:
            made_id = waiting.pop()  # the missing parent of a stored checkpoint
        elif chance.random() < 0.05:
            parent = f"{max(0, self.number - chance.randrange(1, 9)):08}.late"
            waiting.append(parent)
        elif chance.random() < 0.05:
            parent = None
        if made_id in self.model.ids(thread, ns) or self.model.is_below(thread, ns, made_id, parent):
            return
        found = self.model.get_tuple(config(thread, ns, parent)) if parent else None
        versions = dict(found.checkpoint["channel_versions"]) if found else {}
        values = dict(found.checkpoint["channel_values"]) if found else {}
        written = {write[1] for write in (found.pending_writes or () if found else ())}
        new = {
            channel: self.version(thread, ns, channel, versions.get(channel))
            for channel in CHANNELS
            if chance.random() < (0.9 if channel in written else 0.1)
        }
        values = {channel: value for channel, value in values.items() if channel not in new}
        for channel in new:
            if channel == "plain" or channel not in written or chance.random() < self.snapshots:
                values[channel] = self.value()
        await self.store(uniform, config(thread, ns, parent), checkpoint(values, {**versions, **new}, made_id), new)

    async def put_again(self, uniform: Uniform, thread: str, ns: str) -> None:
        """Put a checkpoint again, maybe with another parent, other values at the same versions, or one more value."""
        chance, which = self.chance, self.some(thread, ns)
        if which is None:
            return
        found = self.model.get_tuple(config(thread, ns, which))
        assert found
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
        other = self.some(thread, ns)
        if chance.random() < 0.4 and not self.model.is_below(thread, ns, which, other):
            parent = other
        versions, values = dict(found.checkpoint["channel_versions"]), dict(found.checkpoint["channel_values"])
        new = {channel: version for channel, version in versions.items() if chance.random() < 0.3}
        for channel in new:
            if chance.random() < 0.7:
                values[channel] = self.value()
            elif channel in values and not self.target.is_encrypted:
                del values[channel]
                self.model.emptied.add(versions[channel])
        await self.store(uniform, config(thread, ns, parent), checkpoint(values, versions, which), new)

    async def writes(self, uniform: Uniform, thread: str, ns: str) -> None:
        ids = self.model.ids(thread, ns)
        await self.write(uniform, config(thread, ns, ids[-1] if ids else self.new_id()), f"task-{self.number}")

    async def late_writes(self, uniform: Uniform, thread: str, ns: str) -> None:
        """Write to an old or missing checkpoint, maybe for a task that has writes already."""
        which = self.some(thread, ns) if self.chance.random() < 0.9 else self.new_id(is_late=True)
        if which is not None:
            await self.write(uniform, config(thread, ns, which), f"late-{self.chance.randrange(2)}")

    async def write(self, uniform: Uniform, where: dict[str, Any], task: str) -> None:
        chance = self.chance
        number = chance.choice([1, 1, 3])
        made = [(chance.choice(CHANNELS), [self.number, "w" * chance.randrange(40)]) for _ in range(number)]
        if chance.random() < 0.1:
            made.append((INTERRUPT, [self.number]))
        path = chance.choice(["", "path"])
        await uniform.put_writes(where, made, task, path)
        self.model.put_writes(where, made, task, path)

    async def look(self, uniform: Uniform, thread: str, ns: str) -> None:
        """Read a checkpoint, as reads are remembered too."""
        where = config(thread, ns, self.some(thread, ns))
        found, expected = await uniform.get_tuple(where), self.model.get_tuple(where)
        assert (found and found.checkpoint["channel_values"]) == (expected and expected.checkpoint["channel_values"])

    async def prune(self, uniform: Uniform, thread: str, _: str) -> None:
        """Prune, and check that the newest checkpoints' channels can still be rebuilt."""
        needed = {}
        for ns in ("", "sub"):
            channels = [channel for channel in CHANNELS if self.model.is_rebuilt(thread, ns, channel)]
            found = self.model.get_delta_channel_history(config=config(thread, ns), channels=channels)
            needed[ns] = {channel: history for channel, history in found.items() if history["writes"]}
        await uniform.prune([thread], keep_last=self.chance.choice([1, 3, 20]))
        for ns, histories in needed.items():
            found = await self.forgetful.history(config(thread, ns))
            assert {channel: found[channel] for channel in histories} == histories
        self.model.keep(thread, await self.forgetful.uniform.list(config(thread, None)))

    async def runs(self, uniform: Uniform, thread: str, _: str) -> None:
        await uniform.delete_for_runs([f"run-{self.chance.randrange(self.number // 4 + 1)}" for _ in range(3)])
        for one in THREADS:
            self.model.keep(one, await self.forgetful.uniform.list(config(one, None)))

    async def copy(self, uniform: Uniform, thread: str, _: str) -> None:
        source = next(one for one in THREADS if one != thread)
        if any(self.model.ids(source, ns) for ns in ("", "sub")):
            await uniform.copy_thread(source, thread)
            self.model.copy_thread(source, thread)

    async def delete(self, uniform: Uniform, thread: str, _: str) -> None:
        await uniform.delete_thread(thread)
        self.model.delete_thread(thread)

    async def evict(self, _: Uniform, thread: str, __: str) -> None:
        self.target.raw.delete(*self.forgetful.uniform.saver._context.keyspace.keys(thread))
        self.model.delete_thread(thread)


@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", targets("redis", "cluster"))
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 2)))
async def test_random_operations_match_inmemorysaver(target: Target, seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(delta, "ANCESTORS_PER_PAGE", (200, 4)[seed % 2])
    operations = Operations(target, seed)
    await operations.run(600)
    assert operations.forgetful.believed == 0
    assert sum(process.believed for process in operations.processes) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(100, 110)))
@pytest.mark.parametrize("target_name", targets("redis"))
async def test_fifty_thousand_random_operations(target: Target, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "ANCESTORS_PER_PAGE", (200, 4)[seed % 2])
    await Operations(target, seed).run(5000)
