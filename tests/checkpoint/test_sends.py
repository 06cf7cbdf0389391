"""`Send`s that carry a state are cut into chunks, shared with the channels that the state comes from.

`tests/storage/test_long_writes.py` has faults, limits, removals and damage of all long writes.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from tests.support.counting import Counted, Traffic, load_scripts
from tests.support.factories import checkpoint, config
from hypothesis import given, settings
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS
from langgraph.types import Send
from tests.support.raw import check_chunks, check_counters, check_sound, size, writes_in_chunks
from tests.support.sharing import fields_of, key_of
from tests.support.tiering import BEHIND, Tiers, drained
from tests.support.uniform import Target, Uniform

from bench import graphs
from redis_saver import DecodeError, Limits, ThreadDamaged
from redis_saver._common.limits import FIXED, Allowance
from redis_saver._serde.fingerprint import EncodedValue
from redis_saver._storage import chunks
from redis_saver._storage.opaque import OpaqueSerializer

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async")

ONE = pytest.mark.parametrize("target_name", ["redis"])


def version(number: int) -> str:
    return f"{number:032}.{number:020}"


def messages(count: int, seed: str = "") -> list[Any]:
    kinds = (HumanMessage, AIMessage)
    return [kinds[n % 2](f"{seed} message {n} " * 30, id=f"{seed}{n}") for n in range(count)]


def tool_call(history: list[Any], number: int = 1) -> Send:
    """Return a `Send` as `create_react_agent` makes it."""
    call = {"name": "search", "args": {"q": f"question {number}"}, "id": f"call-{number}", "type": "tool_call"}
    state = {"messages": history, "remaining_steps": 20 - number}
    return Send("tools", {"__type": "tool_call_with_context", "tool_call": call, "state": state})


def packed(value: Any) -> tuple[str, bytes]:
    return JsonPlusSerializer().dumps_typed(value)


def written(found: Any) -> list[tuple[str, bytes]]:
    """Serialized values of pending writes."""
    return [packed(value) for _, _, value in found.pending_writes]


async def put(uniform: Uniform, parent: Any, number: int, new: Any, old: Any = None, **metadata: Any) -> Any:
    """Put checkpoint `number`. The values in `old` have version 1."""
    versions = {**dict.fromkeys(old or {}, version(1)), **dict.fromkeys(new, version(number))}
    made = checkpoint({**(old or {}), **new}, versions, f"{number:08}")
    about = {"source": "loop", "step": number, "parents": {}, **metadata}
    return await uniform.put(parent, made, about, dict.fromkeys(new, version(number)))


async def stepped(uniform: Uniform, steps: int = 1, count: int = 30, thread: str = "thread") -> list[dict[str, Any]]:
    """Run supersteps of an agent with tools.

    Each has a checkpoint, the model's writes with a `Send`, a checkpoint with the pending `Send`, and its writes.
    """
    where, configs = config(thread), []
    for step in range(steps):
        history = messages(count + 2 * step)
        where = await put(uniform, where, 2 * step + 1, {"messages": history, TASKS: []}, run_id=f"run-{step}")
        answer = messages(count + 2 * step + 1)
        send = tool_call(answer, step)
        await uniform.put_writes(where, [("messages", answer[-1]), (TASKS, send)], f"model-{step}", "path")
        configs.append(where)
        where = await put(uniform, where, 2 * step + 2, {"messages": answer, TASKS: [send]}, run_id=f"run-{step}")
        await uniform.put_writes(where, [("messages", answer[0])], f"tools-{step}", "path")
        configs.append(where)
    return configs


async def check(uniform: Uniform, thread: str = "thread") -> list[str]:
    return [f"{one.where}: {one.what}" for one in (await uniform.check(thread)).findings]


# -- reading


async def test_sends_are_read_as_they_were_put(target: Target, saver: Uniform) -> None:
    configs = await stepped(saver, 3)
    assert writes_in_chunks(fields_of(target))
    check_sound(target)
    check_chunks(target)
    for reader in (saver, target.uniform()):
        found = [await reader.get_tuple(one) for one in configs]
        listed = await reader.list(config("thread"))
        assert sorted(map(str, listed)) == sorted(map(str, found))
        for step in range(3):
            answer = messages(31 + 2 * step)
            assert written(found[2 * step]) == [packed(answer[-1]), packed(tool_call(answer, step))]
            assert packed(found[2 * step + 1].checkpoint["channel_values"][TASKS]) == packed([tool_call(answer, step)])
    assert str(await target.uniform().get_tuple(config("thread"))) == str(await saver.get_tuple(configs[-1]))
    assert await check(saver) == []


SETTINGS: dict[str, dict[str, Any]] = {
    "zstd": {"compression": "zstd"},
    "no cache": {"cache_bytes": 0},
    "another serializer": {"serde": JsonPlusSerializer()},
    "encrypted": {"serde": EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")},
}


@pytest.mark.by_turns
@ONE
@pytest.mark.parametrize("setting", SETTINGS)
async def test_sends_are_read_with_other_settings(target: Target, setting: str) -> None:
    options = SETTINGS[setting]
    saver = target.uniform(**options)
    configs = await stepped(saver, 2)
    is_cut = setting != "encrypted"  # then the bytes of an equal value differ
    assert bool(writes_in_chunks(fields_of(target))) == is_cut
    found = await target.uniform(**options).get_tuple(configs[2])
    assert written(found)[1] == packed(tool_call(messages(33), 1))
    check_sound(target)


# -- costs


async def test_put_writes_of_sends_takes_one_round_trip(target: Target) -> None:
    load_scripts(target.raw)
    client = target.client()
    saver = target.uniform(client=client)
    where = await put(saver, config("thread"), 1, {"messages": messages(30)})
    counted = Counted(client)
    answer = messages(31)
    await saver.put_writes(where, [("messages", answer[-1]), (TASKS, tool_call(answer))], "task")
    await put(saver, where, 2, {"messages": answer, TASKS: [tool_call(answer)]})
    assert counted.take() == ["EVALSHA"] * 2
    # also if the thread does not exist yet; with encryption, it asks once for the data key
    await saver.put_writes(config("new", "", "1"), [(TASKS, tool_call(answer))], "task")
    await saver.put_writes(config("new", "", "1"), [(TASKS, tool_call(answer))], "task")
    assert counted.take() == [*(["HGET"] if target.is_encrypted else []), "EVALSHA", "EVALSHA"]


@ONE
async def test_a_send_costs_little_more_than_its_new_messages(target: Target, saver: Uniform) -> None:
    where = await put(saver, config("thread"), 1, {"messages": messages(400)})
    await saver.put_writes(where, [("n", 1)], "another task")  # the server loads the script
    answer, before, traffic = messages(401), size(fields_of(target)), Traffic(target)
    new = len(packed(answer[-1])[1])
    await saver.put_writes(where, [(TASKS, tool_call(answer))], "task")
    assert size(fields_of(target)) - before < new + 1500
    await put(saver, where, 2, {"messages": answer, TASKS: [tool_call(answer)]})
    assert size(fields_of(target)) - before < new + 2500
    assert traffic.take()[0] < new + 5500


@ONE
async def test_a_fan_out_stores_only_the_differences(target: Target, saver: Uniform) -> None:
    state = {"messages": messages(14), "notes": {f"note {number}": "n" * 100 for number in range(30)}}
    assert len(packed(state)[1]) > 10_000
    where = await put(saver, config("thread"), 1, {**state})
    before, traffic = size(fields_of(target)), Traffic(target)
    sends = [Send("work", {**state, "item": number}) for number in range(100)]
    await saver.put_writes(where, [(TASKS, send) for send in sends], "task")
    await put(saver, where, 2, {TASKS: sends}, state)
    assert size(fields_of(target)) - before < 100 * 600
    assert traffic.take()[0] < 100 * 1200
    found = await target.uniform().get_tuple(where)
    assert written(found) == list(map(packed, sends))


# -- a process with outdated memory


@pytest.mark.parametrize("lost", ["deleted", "pruned", "copied"])
async def test_chunks_that_the_server_lacks_are_sent_again(target: Target, saver: Uniform, lost: str) -> None:
    where = await put(saver, config("thread"), 1, {"messages": messages(30)})
    other = target.uniform()
    if lost == "deleted":
        await other.delete_thread("thread")
    elif lost == "pruned":
        later = await put(other, where, 2, {"messages": messages(9, "other")})
        await other.prune(["thread"], keep_last=1)
        assert not await other.get_tuple(where)
        where = later
    else:
        await put(other, config("other"), 1, {"messages": messages(9, "other")})
        await other.copy_thread("other", "thread")
    answer = messages(31)
    await saver.put_writes(where, [(TASKS, tool_call(answer))], "task")
    await put(saver, where, 3, {"messages": answer, TASKS: [tool_call(answer)]})
    fields = fields_of(target)
    check_chunks(target)
    check_counters(fields)
    if lost != "deleted":
        assert written(await other.get_tuple(where)) == [packed(tool_call(answer))]
    assert await check(saver) == []


async def test_a_write_sent_again_changes_nothing(target: Target, saver: Uniform) -> None:
    where, answer = await put(saver, config("thread"), 1, {"messages": messages(30)}), messages(31)

    async def send(by: Uniform, number: int) -> None:
        await by.put_writes(where, [("n", number), (TASKS, tool_call(answer, number))], "task", "path")

    await send(saver, 1)
    before = fields_of(target)
    await send(saver, 1)
    await send(target.uniform(), 1)
    assert fields_of(target) == before
    await send(target.uniform(), 2)  # another value: the first one stays
    assert fields_of(target) == before
    check_chunks(target, swept=True)


async def test_more_writes_of_a_task_keep_its_first_values(target: Target, saver: Uniform) -> None:
    where, answer = await put(saver, config("thread"), 1, {"messages": messages(30)}), messages(31)
    await saver.put_writes(where, [(TASKS, tool_call(answer, 1))], "task")
    other = target.uniform()
    await other.put_writes(where, [(TASKS, tool_call(messages(40, "lost"), 2)), (TASKS, tool_call(answer, 3))], "task")
    assert written(await saver.get_tuple(where)) == [packed(tool_call(answer, 1)), packed(tool_call(answer, 3))]
    check_chunks(target)  # `@gc_roots` names chunks that were sent but are unused
    await saver.prune(["thread"], keep_last=1)
    check_chunks(target, swept=True)
    assert await check(saver) == []


# -- removing and copying


@pytest.mark.parametrize("keep", [1, 2, 3])
async def test_prune_keeps_exactly_the_chunks_of_kept_writes(target: Target, saver: Uniform, keep: int) -> None:
    configs = await stepped(saver, 3)
    before = [await target.uniform().get_tuple(one) for one in configs]
    await saver.prune(["thread"], keep_last=keep)
    check_sound(target)
    check_chunks(target, swept=True)
    after = [await target.uniform().get_tuple(one) for one in configs]
    assert [one and written(one) for one in after] == [None] * (6 - keep) + [written(one) for one in before[6 - keep :]]
    assert await check(saver) == []


async def test_prune_keeps_early_writes_and_removes_stray_ones(target: Target, saver: Uniform) -> None:
    configs = await stepped(saver, 2)
    early = config("thread", "", "99999999")
    await saver.put_writes(early, [(TASKS, tool_call(messages(20, "early")))], "task")
    await saver.put_writes(config("thread", "", "00000000"), [(TASKS, tool_call(messages(20, "stray")))], "task")
    await saver.prune(["thread"], keep_last=1)
    check_chunks(target, swept=True)
    await put(saver, configs[-1], 99999999, {"n": 1})
    assert written(await target.uniform().get_tuple(early)) == [packed(tool_call(messages(20, "early")))]


# -- histories and damage


@ONE
async def test_a_remembered_history_of_sends_is_complete(target: Target, saver: Uniform) -> None:
    configs = await stepped(saver, 3)
    for _ in range(2):
        history = await saver.get_delta_channel_history(config=configs[-1], channels=[TASKS])
        assert [packed(value) for _, _, value in history[TASKS]["writes"]] == [packed(tool_call(messages(35), 2))]


@pytest.mark.by_turns
@ONE
@pytest.mark.parametrize("root", [b"", b"p", b"n" + b"x" * 16, b"p" + b"x" * 16 + b"1:a1:b" + b"c" * 15, b"z" * 40])
async def test_a_forged_root_of_a_write_raises_an_error(target: Target, saver: Uniform, root: bytes) -> None:
    where = await put(saver, config("thread"), 1, {"n": 1})
    await saver.put_writes(where, [(TASKS, tool_call(messages(30)))], "task")
    data = key_of(target)
    (field,) = [field for field in fields_of(target) if field[:1] == b"w"]
    (stored,) = writes_in_chunks(fields_of(target))
    record = target.raw.hget(data, field)
    head = record.index(b"%d:%b" % (len(stored), stored))
    target.raw.hset(data, field, record[:head] + b"%d:%b" % (len(root), root))
    with pytest.raises((ThreadDamaged, DecodeError)):
        await saver.get_tuple(where)
    assert await check(saver)


# -- two tiers


@ONE
async def test_cold_gets_whole_sends_and_returns_them(target: Target, tiers: Tiers) -> None:
    uniform = await tiers.uniform(**BEHIND)
    assert await uniform.get_tuple(config("thread")) is None
    configs = await stepped(uniform, 2)
    assert writes_in_chunks(fields_of(target))
    await drained(uniform)
    cold = await tiers.cold_uniform()
    wanted = [packed(messages(33)[-1]), packed(tool_call(messages(33), 1))]
    assert written(await cold.get_tuple(configs[2])) == wanted
    tiers.evict()
    again = await tiers.uniform(**BEHIND)
    assert written(await again.get_tuple(configs[2])) == wanted
    assert written(await again.get_tuple(configs[2])) == wanted
    check_chunks(target)


@ONE
async def test_a_fill_that_replaces_writes_notes_their_chunks(target: Target, tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    assert await uniform.get_tuple(config("thread")) is None
    configs = await stepped(uniform, 1)
    await drained(uniform) if uniform.saver.stats().tiers.backlog else None
    target.raw.hdel(key_of(target), "@complete", "@has_latest\0")
    again = await tiers.uniform()
    assert written(await again.get_tuple(config("thread")))
    assert written(await again.get_tuple(configs[0]))[1] == packed(tool_call(messages(31), 0))
    check_chunks(target)


# -- where a Send is cut


ARGUMENTS = st.recursive(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=9), st.binary(max_size=2500), st.floats(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: some * 90),
        st.dictionaries(st.text(max_size=5), inner, max_size=20),
        st.tuples(inner),
        st.sets(st.text(max_size=40), max_size=90),
        st.lists(inner, max_size=3).map(lambda some: Send("inner", some)),
    ),
    max_leaves=20,
)


@settings(max_examples=60)
@given(st.lists(st.builds(Send, st.text(max_size=5), ARGUMENTS), min_size=1, max_size=3), st.booleans())
def test_the_pieces_of_a_send_join_to_its_bytes(some: list[Send], alone: bool) -> None:
    value = some[0] if alone else some
    wanted = packed(value)
    opaque = OpaqueSerializer()
    assert opaque.dumps_typed(opaque.loads_typed(wanted)) == wanted  # a migration makes the same chunks
    stored = chunks.cut(EncodedValue(*wanted), b"p")
    if stored:
        joined = chunks.join(stored.value, stored.chunks, Allowance(Limits(), "a test"))
        assert chunks.typed_bytes(joined) == wanted


def test_a_send_of_very_many_elements_respects_the_chunk_limit() -> None:
    value = [Send("node", {"texts": ["x" * 600] * 60_000})]
    stored = chunks.cut(EncodedValue(*packed(value)), b"p")
    assert stored is not None
    assert sum(len(level.fields) for level in stored.levels) < FIXED["chunks"]


# -- agents


def used(target: Target, agent: str, calls: int) -> tuple[int, int]:
    """Return the bytes that an agent with tools stores and sends in a run: the least of two runs.

    LangGraph sends a task's writes and the put of its superstep concurrently. A put that does not wait for the writes
    sends their chunks again, which depends on timing.
    """
    runs = [used_once(target, agent, calls, f"{agent} {calls} {run}") for run in range(2)]
    return min(stored for stored, _ in runs), min(sent for _, sent in runs)


def used_once(target: Target, agent: str, calls: int, thread: str) -> tuple[int, int]:
    saver = target.uniform().saver
    if agent == "the state":
        graph = graphs.sender(saver, calls)
    else:
        graph = graphs.react(saver, calls, "v1" if agent == "edge" else "v2")
    given, traffic = {"messages": [graphs.question()]}, Traffic(target)
    state = graph.invoke(given, {**config(thread), "recursion_limit": 1000}, durability="sync")
    sent, _ = traffic.take()
    assert len(state["messages"]) == 2 * calls + 2
    check_sound(target, thread)
    return size(fields_of(target, thread)), sent


@ONE
@pytest.mark.parametrize("flavour", ["sync"])
def test_agents_whose_sends_carry_the_state_cost_little_more(target: Target) -> None:
    """The cost is linear in the number of calls, although each `Send` has all messages so far."""
    load_scripts(target.raw)
    agents = "edge", "Send", "the state"
    costs = {agent: [used(target, agent, calls) for calls in (10, 20, 40)] for agent in agents}
    for agent in ("Send", "the state"):
        for mine, edge in zip(costs[agent], costs["edge"], strict=True):
            assert mine[0] < 1.5 * edge[0]
            assert mine[1] < 1.5 * edge[1]
        for what in (0, 1):
            ten, twenty, forty = [cost[what] for cost in costs[agent]]
            assert forty - twenty < 2.5 * (twenty - ten)
