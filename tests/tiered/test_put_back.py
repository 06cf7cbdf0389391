"""What an attacker without keys puts back, hides or clears in an encrypted thread, in Redis or in rows of Postgres."""

from __future__ import annotations

import itertools
import random
import sys
from functools import partial
from typing import Annotated, Any

import psycopg
import pytest
import valkey
import valkey.asyncio
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from redis_saver import DecodeError
from redis_saver._common.names import Keyspace
from redis_saver._storage import sealing
from redis_saver._storage.framing import pack, unpack
from tests.support import seeds
from tests.support.factories import config
from tests.support.talking import call_graph
from tests.support.tiering import BEHIND, FlakySaver, Tiers, both_modes, drained, plain, put_new
from tests.support.tiering import is_encrypted  # noqa: F401
from tests.support.uniform import Uniform

pytestmark = pytest.mark.plain("all of its savers encrypt")
PLACES: dict[str, Any] = {"redis": None, "write-through": {}, "write-behind": BEHIND}
WHERE = pytest.mark.parametrize("where", PLACES)
"""Redis alone, or the rows of Postgres after hot has lost the thread."""
NULL_TASK = "00000000-0000-0000-0000-000000000000"


class State(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(lambda log, updates: sum(updates, log), snapshot_frequency=100)]
    answers: list[str]


class Question(BaseModel):
    text: str


def question(number: int) -> Any:
    return f"question {number}"


def graph(saver: Any) -> Any:
    """A graph that asks three questions in one task, with a parallel task that writes to a `DeltaChannel`."""
    builder = StateGraph(State)
    builder.add_node("ask", lambda _: {"answers": [interrupt(question(number)) for number in (1, 2, 3)]})
    builder.add_node("note", lambda _: {"log": ["noted"]})
    builder.add_node("end", lambda _: {"log": ["ended"]})
    builder.add_edge(START, "ask").add_edge(START, "note").add_edge("ask", "end").add_edge("note", "end")
    return builder.compile(checkpointer=saver)


class Thread:
    """A thread of one kind of saver, and the stored records that an attacker can change."""

    def __init__(self, tiers: Tiers, where: str, client: Any = None) -> None:
        self.tiers, self.where, self.client, self.raw = tiers, where, client, tiers.target.raw
        self.is_alone, self.keys = where == "redis", Keyspace(tiers.target.prefix).keys("thread")

    async def process(self) -> Uniform:
        """A saver of another process."""
        if self.is_alone:
            return self.tiers.target.uniform(client=self.client)
        return await self.tiers.uniform(**PLACES[self.where])

    async def lost(self) -> Uniform:
        """A saver of another process, which reads what was changed."""
        if not self.is_alone:
            self.tiers.evict()
        return await self.process()

    async def invoke(self, uniform: Uniform, *given: Any) -> Any:
        for one in given:
            result = await call_graph(graph(uniform.saver), "invoke", one, config())
            await self.drained(uniform)
        return result

    async def drained(self, uniform: Uniform) -> None:
        if not self.is_alone:
            await drained(uniform)

    async def question(self, uniform: Uniform) -> str:
        return (await call_graph(graph(uniform.saver), "get_state", config())).interrupts[0].value

    def special(self) -> dict[Any, Any]:
        """Return the stored `__interrupt__` (-3) and `__resume__` (-4) of the task that asks."""
        if self.is_alone:
            return {
                int(field[-2:]): (field, stored)
                for field, stored in self.raw.hgetall(self.keys.data_key).items()
                if field[:1] == b"w" and field[-2:] in (b"-3", b"-4") and NULL_TASK.encode() not in field
            }
        query = "SELECT idx, type, blob, task_id FROM checkpoint_writes WHERE idx IN (-3, -4) AND task_id <> %s"
        return {row[0]: row for row in self.tiers.sql(query, NULL_TASK)}

    def put_back(self, records: dict[Any, Any]) -> None:
        for index, record in records.items():
            if self.is_alone:
                self.raw.hset(self.keys.data_key, *record)
                self.raw.zadd(self.keys.index_key, {record[0]: 0})
            else:
                change = "UPDATE checkpoint_writes SET type = %s, blob = %s WHERE task_id = %s AND idx = %s"
                self.tiers.sql(change, *record[1:], index)

    def remove(self, index: int) -> None:
        if self.is_alone:
            field, _ = self.special()[index]
            self.raw.hdel(self.keys.data_key, field)
            self.raw.zrem(self.keys.index_key, field)
        else:
            self.tiers.sql("DELETE FROM checkpoint_writes WHERE idx = %s AND task_id <> %s", index, NULL_TASK)

    def hide_writes(self, channel: str) -> None:
        """Remove all writes of the tasks that wrote to a channel."""
        if self.is_alone:
            name, fields = b"%d:%b" % (len(channel), channel.encode()), self.raw.hgetall(self.keys.data_key)
            self.raw.zrem(self.keys.index_key, *[one for one in fields if one[:1] == b"w" and name in fields[one]])
        else:
            tasks = "SELECT task_id FROM checkpoint_writes WHERE channel = %s"
            self.tiers.sql(f"DELETE FROM checkpoint_writes WHERE task_id IN ({tasks})", channel)


REPLACED = "was removed, or an earlier one was put in its place"
GONE = "the pending writes of . tasks of its ancestor .* are gone"


@WHERE
async def test_an_earlier_question_or_answer_raises(tiers: Tiers, where: str) -> None:
    await earlier_ones_raise(Thread(tiers, where))


@pytest.mark.also_on()
async def test_an_earlier_question_or_answer_raises_with_valkey_py(tiers: Tiers) -> None:
    package = valkey.asyncio if tiers.target.flavour == "async" else valkey
    client = package.Valkey.from_url(tiers.target.url)
    await earlier_ones_raise(Thread(tiers, "redis", client))
    await client.aclose() if tiers.target.flavour == "async" else client.close()


async def earlier_ones_raise(thread: Thread) -> None:
    stages = []
    for given in ({"log": []}, Command(resume="no"), Command(resume="yes")):
        await thread.invoke(await thread.process(), given)
        stages.append(thread.special())
    assert [sorted(stage) for stage in stages] == [[-3], [-4, -3], [-4, -3]]
    newest = stages[2]
    changes = [{index: stage[index]} for stage in stages[:2] for index in stage]
    for change in [*changes, *newest]:
        if isinstance(change, dict):
            thread.put_back(change)
        else:
            thread.remove(change)
        uniform = await thread.lost()
        with pytest.raises(DecodeError, match=REPLACED):
            await uniform.get_tuple(config())
        if thread.is_alone:
            assert [one.severity for one in (await uniform.check("thread")).findings if "earlier" in one.what]
        elif isinstance(change, int):
            return  # rows are not put back
        thread.put_back(newest)
    assert await thread.question(await thread.lost()) == "question 3"
    thread.put_back(stages[1])  # all of a call is a roll-back
    assert await thread.question(await thread.lost()) == "question 2"
    thread.put_back(newest)
    result = await thread.invoke(await thread.lost(), Command(resume="so"))
    assert result["answers"] == ["no", "yes", "so"]


@WHERE
async def test_an_earlier_question_raises_for_a_reader_without_its_class(
    tiers: Tiers, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, module = Thread(tiers, where), sys.modules[__name__]
    monkeypatch.setattr(module, "question", lambda number: Question(text=f"question {number}"))
    await thread.invoke(await thread.process(), {"log": []})
    first = thread.special()
    await thread.invoke(await thread.process(), Command(resume="no"))
    monkeypatch.delattr(module, "Question")
    assert await thread.question(await thread.lost()) == {"text": "question 2"}
    thread.put_back(first)
    with pytest.raises(DecodeError, match=REPLACED):
        await (await thread.lost()).get_tuple(config())


CALLS: list[list[tuple[str, Any]]] = [
    [("__interrupt__", 1)],
    [("__resume__", 2)],
    [("__interrupt__", 3), ("__resume__", 4)],
    [("__resume__", 5), ("n", 6)],
    [("__interrupt__", 7), ("n", 8)],
    [("__error__", 9), ("__resume__", 10)],
    [("__error__", 11)],
]


@WHERE
@pytest.mark.random
async def test_every_order_of_special_writes_can_be_read(tiers: Tiers, where: str) -> None:
    """No order of honest calls, by several processes, looks like an attack."""
    chance, thread = random.Random(seeds.seed()), Thread(tiers, where)
    processes = [await thread.process() for _ in range(2)]
    several = [chance.choices(range(len(CALLS)), k=5) for _ in range(10)]
    orders = [*itertools.product(range(len(CALLS)), repeat=2), *several]
    made = await put_new(processes[0])
    for number, order in enumerate(orders):
        for call in order:
            await chance.choice(processes).put_writes(made, CALLS[call], f"task-{number}")
    await thread.drained(processes[0])
    before = await processes[0].get_tuple(made)
    assert len({task for task, _, _ in before.pending_writes}) == len(orders)
    after = await (await thread.lost()).get_tuple(made)
    if thread.is_alone:
        assert plain(after) == plain(before)
        assert (await processes[0].check("thread")).sound
    await processes[0].copy_thread("thread", "copy")
    assert len((await processes[0].get_tuple(config("copy"))).pending_writes) == len(after.pending_writes)


@WHERE
async def test_writes_hidden_from_an_ancestor_raise(tiers: Tiers, where: str) -> None:
    """The task that wrote them is missing, from the checkpoint that the header of its child names."""
    thread = Thread(tiers, where)
    uniform = await thread.process()
    await thread.invoke(uniform, *TURN)
    query: dict[str, Any] = {"config": (await uniform.get_tuple(config())).config, "channels": ["log"]}
    assert len((await (await thread.lost()).get_delta_channel_history(**query))["log"]["writes"]) >= 2
    await uniform.copy_thread("thread", "copy")
    thread.hide_writes("log")
    for _ in range(2):
        uniform = await thread.lost()
        for _ in range(2):  # a process that has met the error does not remember the rest
            with pytest.raises(DecodeError, match=GONE):
                await uniform.get_delta_channel_history(**query)
    if thread.is_alone:
        assert any("tasks are gone" in finding.what for finding in (await uniform.check("thread")).findings)


def test_a_removed_task_is_noticed_beside_another_one_that_wrote_the_same_channel() -> None:
    seen = b"".join(sorted(sealing.digests_of([("task-1", "log"), ("task-2", "log")])))
    sealing.check_writes(seen, [("task-1", "log"), ("task-2", "log"), ("task-3", "n")], "id")
    with pytest.raises(ValueError, match="the pending writes of 1 tasks of its ancestor"):
        sealing.check_writes(seen, [("task-1", "log"), ("task-3", "n")], "id")


@both_modes
async def test_a_parent_that_a_row_lacks_is_followed(tiers: Tiers, mode: dict[str, Any]) -> None:
    thread = Thread(tiers, "write-behind" if mode else "write-through")
    uniform = await thread.process()
    await thread.invoke(uniform, *TURN)
    before = await uniform.get_tuple(config())
    tiers.sql("UPDATE checkpoints SET parent_checkpoint_id = NULL")
    uniform = await thread.lost()
    assert plain(await uniform.get_tuple(config())) == plain(before)
    query: dict[str, Any] = {"config": before.config, "channels": ["log"]}
    assert [value for *_, value in (await uniform.get_delta_channel_history(**query))["log"]["writes"]]
    listed = await uniform.list(config())
    assert [saved.parent_config for saved in listed[:-1]] == [saved.config for saved in listed[1:]]
    tiers.sql("UPDATE checkpoints SET parent_checkpoint_id = 'x'")
    with pytest.raises(DecodeError, match="another one was put in its place"):
        await (await thread.lost()).get_tuple(config())


TURN = [{"log": ["in"]}, *(Command(resume=answer) for answer in "abc")]
"""Input of a turn, and the answers to its questions."""


@pytest.mark.parametrize("call", ["get_tuple", "list"])
async def test_postgres_stops_while_it_is_asked_for_a_parent(tiers: Tiers, call: str) -> None:
    """The read raises, and fills hot with nothing. The next one finds the parent."""
    thread, flaky = Thread(tiers, "write-through"), FlakySaver(await tiers.cold())
    await thread.invoke(await thread.process(), {"log": ["in"]})
    before = plain(await (await thread.process()).get_tuple(config()))
    tiers.sql("UPDATE checkpoints SET parent_checkpoint_id = NULL")
    tiers.evict()
    uniform = await tiers.uniform(cold=flaky.wrap())

    async def stop() -> None:
        flaky.fail.add("get_tuple")

    if call == "list":
        await stop()
    else:
        flaky.before["get_tuple"] = stop if uniform.native_async else partial(flaky.fail.add, "get_tuple")
    with pytest.raises(psycopg.OperationalError, match="on purpose"):
        await getattr(uniform, call)(config())
    assert flaky.calls == [call, "get_tuple"]
    assert not tiers.target.raw.exists(thread.keys.data_key)
    flaky.fail.clear()
    assert plain(await uniform.get_tuple(config())) == before


@pytest.mark.parametrize("makes", ["copy", "rotation"])
async def test_a_cleared_parent_stays_sealed_in_a_copy(tiers: Tiers, makes: str) -> None:
    thread = Thread(tiers, "redis")
    uniform = await thread.process()
    await thread.invoke(uniform, {"log": ["in"]})
    newest = (await uniform.get_tuple(config())).config
    data, place = thread.keys.data_key, newest["configurable"]["checkpoint_id"].encode()
    (field,) = [field for field in thread.raw.hgetall(data) if field[:1] == b"c" and place in field]
    frames = unpack(thread.raw.hget(data, field))
    thread.raw.hset(data, field, pack([b"", *frames[1:]]))
    uniform, name = await thread.lost(), "thread"
    if makes == "copy":
        name = "copy"
        await uniform.copy_thread("thread", name)
    else:
        assert (await uniform.rotate_keys(data=True)).rotated == 1
    where = {"configurable": {**newest["configurable"], "thread_id": name}}
    with pytest.raises(DecodeError, match="is gone, which the DeltaChannels"):
        await (await thread.lost()).get_delta_channel_history(config=where, channels=["log"])
