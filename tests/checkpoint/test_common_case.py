"""The common case has a short way through the scripts: what it runs, and that whatever is otherwise is found, and answered right."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.factories import checkpoint, config
from langgraph.checkpoint.base import INTERRUPT
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, asked, script_of

from redis_saver import ThreadDamaged
from redis_saver._checkpoint import scripts

pytestmark = pytest.mark.also_on(cluster="sync", valkey="async")

MESSAGES = [f"message {number} " * 40 for number in range(60)]


def versioned(number: int) -> str:
    """A version as a saver of ours makes them."""
    return f"{number:032}.{number * 7919:020}"


async def turn(saver: Uniform, where: Any, number: int, **values: Any) -> Any:
    """Put a checkpoint with so many messages, a counter, and a channel that never has a value."""
    values = {"messages": MESSAGES[:number], "n": number, **values}
    versions = {**dict.fromkeys(values, versioned(number)), "empty": versioned(1)}
    made = checkpoint(values, versions, f"{number:06}")
    return await saver.put(where, made, {"source": "loop", "step": number, "parents": {}}, versions)


async def chat(saver: Uniform, length: int = 20) -> Any:
    where = config()
    for number in range(length - 3, length + 1):
        where = await turn(saver, where, number)
    return where


def commands(target: Target) -> dict[str, int]:
    """What scripts called since the last `CONFIG RESETSTAT`."""
    counted = {name[8:]: entry["calls"] for name, entry in target.raw.info("commandstats").items()}
    return {name: calls for name, calls in counted.items() if name not in ("info", "config|resetstat", "config")}


@pytest.fixture
def target_name(request: pytest.FixtureRequest) -> str:
    return "redis"


async def test_what_a_warm_call_runs(target: Target) -> None:
    """One read, the checks, one HSET, one ZADD, the deadlines."""
    saver = target.uniform(ttl="7d")
    where = await chat(saver)
    await saver.put_writes(where, [("n", 1)], "a task")
    await saver.get_tuple(config())
    deadline = {"time": 1, "pexpireat": 2}
    target.raw.config_resetstat()
    where = await turn(saver, where, 21)
    assert commands(target) == {"evalsha": 1, "zscore": 1, "hmget": 1, "hset": 1, "zadd": 1, **deadline}
    target.raw.config_resetstat()
    await saver.put_writes(where, [("messages", MESSAGES[22:23]), ("n", 1)], "a task")
    assert commands(target) == {"evalsha": 1, "zscore": 1, "hmget": 1, "hset": 1, "zadd": 1, **deadline}
    target.raw.config_resetstat()
    found = await saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"messages": MESSAGES[:21], "n": 21}
    assert found.pending_writes == [("a task", "messages", MESSAGES[22:23]), ("a task", "n", 1)]
    assert commands(target) == {"evalsha": 1, "zscore": 1, "hmget": 2, "zrevrangebylex": 1, "zrangebylex": 1}


async def test_a_warm_read_is_sent_no_chunk(target: Target) -> None:
    saver = target.uniform()
    await chat(saver, 60)
    await saver.get_tuple(config())
    before = target.raw.info("stats")["total_net_output_bytes"]
    await saver.get_tuple(config())
    own = target.raw.info("stats")["total_net_output_bytes"]
    assert own - before < 9_000  # most of which is the INFO
    assert len("".join(MESSAGES)) > 20_000


async def test_a_read_of_what_another_saver_put(target: Target) -> None:
    """The newest checkpoint is another one than the reader expects."""
    reader, writer = target.uniform(), target.uniform()
    where = await chat(reader)
    await reader.get_tuple(config())
    await turn(writer, where, 30)
    found = await reader.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"messages": MESSAGES[:30], "n": 30}
    found = await reader.get_tuple(where)
    assert found.checkpoint["channel_values"] == {"messages": MESSAGES[:20], "n": 20}


async def test_an_expected_checkpoint_whose_value_has_other_chunks(target: Target) -> None:
    """The reader knows the checkpoint's table, but not the chunks of its value any more."""
    saver = target.uniform()
    where = await chat(saver)
    older = await saver.get_tuple(config(checkpoint_id="000017"))
    assert older.checkpoint["channel_values"]["n"] == 17
    newest = await saver.get_tuple(config())
    assert newest.checkpoint["channel_values"] == {"messages": MESSAGES[:20], "n": 20}
    assert newest.config == where


async def test_a_look_at_an_older_checkpoint_leaves_the_next_put_as_cheap(target: Target) -> None:
    sent = []
    for looked_at in ((), ("000017", "000018")):
        saver = target.uniform()
        where = await chat(saver)
        for step in looked_at:
            assert (await saver.get_tuple(config(checkpoint_id=step))).checkpoint["id"] == step
        before = saver.saver.stats().bytes_sent
        target.raw.config_resetstat()
        where = await turn(saver, where, 21)
        assert commands(target) == {"evalsha": 1, "zscore": 1, "hmget": 1, "hset": 1, "zadd": 1}
        sent.append(saver.saver.stats().bytes_sent - before)
        assert (await saver.get_tuple(config())).config == where
        await saver.delete_thread(config()["configurable"]["thread_id"])
    assert sent[0] == sent[1]


async def test_a_checkpoint_that_was_put_again_with_other_versions(target: Target) -> None:
    """What the reader expects is the newest checkpoint, and its values are where another version table says."""
    reader, writer = target.uniform(), target.uniform()
    where = await chat(reader)
    assert (await reader.get_tuple(config())).config == where
    values = {"messages": MESSAGES[30:50], "n": "another", "more": 1}
    versions = dict.fromkeys(values, versioned(99))
    parent = config(checkpoint_id="000019")
    await writer.put(parent, checkpoint(values, versions, "000020"), {"source": "fork"}, versions)
    for _ in range(2):
        found = await reader.get_tuple(config())
        assert found.checkpoint["channel_values"] == values
        assert found.checkpoint["channel_versions"] == versions
        assert found.metadata["source"] == "fork"


async def test_a_thread_of_the_same_name_that_began_anew(target: Target) -> None:
    reader, writer = target.uniform(), target.uniform()
    await chat(reader)
    await reader.get_tuple(config())
    await writer.delete_thread("thread")
    assert await reader.get_tuple(config()) is None
    await writer.put(config(), checkpoint({"n": 0}, {"n": "1"}, "000020"), {}, {"n": "1"})
    assert (await reader.get_tuple(config())).checkpoint["channel_values"] == {"n": 0}


@pytest.mark.parametrize("gone", [b"b\0messages\0", b"b\0n\0", b"c\x00000020\0"])
async def test_a_field_of_a_known_checkpoint_that_somebody_removed(target: Target, gone: bytes) -> None:
    """The process that put the checkpoint answers what it put. All others find the damage."""
    saver, other = target.uniform(), target.uniform()
    where = await chat(saver)
    data = saver.saver._context.keyspace.keys("thread").data_key
    field = max(field for field in target.raw.hkeys(data) if field.startswith(gone))
    target.raw.hdel(data, field)
    found = await saver.get_tuple(config())
    assert (found.config, found.checkpoint["channel_values"]) == (where, {"messages": MESSAGES[:20], "n": 20})
    with pytest.raises(ThreadDamaged, match="is gone"):
        await other.get_tuple(config())
    assert not (await saver.check("thread")).sound


async def test_a_record_of_pending_writes_that_is_gone(target: Target) -> None:
    saver = target.uniform()
    where = await chat(saver)
    await saver.put_writes(where, [("n", 1)], "a task")
    await saver.get_tuple(config())
    data = saver.saver._context.keyspace.keys("thread").data_key
    (record,) = [field for field in target.raw.hkeys(data) if field[:1] == b"w"]
    target.raw.hdel(data, record)
    with pytest.raises(ThreadDamaged, match="pending writes"):
        await saver.get_tuple(config())


async def test_processes_that_put_in_turns(target: Target) -> None:
    """Each put finds the tag of another process, looks at all that it relies on, and takes one round trip."""
    savers = [target.uniform(), target.uniform()]
    where = await chat(savers[0])
    for number in range(21, 31):
        saver = savers[number % 2]
        assert (await saver.get_tuple(config())).config == where
        target.raw.config_resetstat()
        where = await turn(saver, where, number)
        where = await turn(savers[(number + 1) % 2], where, number, n=-number)
        assert commands(target)["evalsha"] == 2
    for saver in savers:
        assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"messages": MESSAGES[:30], "n": -30}
    assert (await savers[0].check("thread")).sound


async def test_namespaces_that_are_put_to_in_turns_keep_the_tag(target: Target) -> None:
    """As the subgraphs of a graph do: what a process knows of one of them holds while it puts to another."""
    saver = target.uniform()
    places = {ns: config(ns=ns) for ns in ("", "a", "b")}
    for number in range(1, 9):
        for ns, where in places.items():
            target.raw.config_resetstat()
            places[ns] = await turn(saver, where, number)
            called = commands(target)
            assert number < 3 or "hexists" not in called, (ns, number, called)
    for ns in places:
        assert (await saver.get_tuple(config(ns=ns))).checkpoint["channel_values"]["messages"] == MESSAGES[:8]
    assert (await saver.check("thread")).sound


async def test_a_value_that_came_later_for_a_version_without_one(target: Target) -> None:
    """A checkpoint says nothing of a value; another one stores it at the same version. All readers see it then."""
    saver, other = target.uniform(), target.uniform()
    versions = {"n": "1", "late": "1"}
    await saver.put(config(), checkpoint({"n": 1}, versions, "2"), {}, {"n": "1"})
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}
    await other.put(config(), checkpoint({"n": 1, "late": "it"}, versions, "1"), {}, versions)
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"n": 1, "late": "it"}


async def test_writes_that_are_not_the_first_of_their_task(target: Target) -> None:
    saver = target.uniform()
    where = await chat(saver)
    await saver.put_writes(where, [("n", 1)], "a task")
    await saver.put_writes(where, [("n", 2), ("more", 3)], "a task")
    await saver.put_writes(where, [(INTERRUPT, "?")], "a task")
    await saver.put_writes(where, [(INTERRUPT, "!")], "a task")
    writes = (await saver.get_tuple(config())).pending_writes
    assert sorted(writes) == [("a task", INTERRUPT, "!"), ("a task", "more", 3), ("a task", "n", 1)]
    assert (await saver.check("thread")).sound


async def test_a_checkpoint_that_is_put_again_while_it_is_known(target: Target) -> None:
    """A lost reply: the same put is sent twice, and nothing counts twice."""
    saver = target.uniform()
    where = await chat(saver)
    once = await saver.get_thread("thread")
    await turn(saver, config(checkpoint_id="000019"), 20)
    again = await saver.get_thread("thread")
    assert (once.checkpoints, once.bytes) == (again.checkpoints, again.bytes)
    assert (await saver.get_tuple(config())).config == where
    assert (await saver.check("thread")).sound


async def test_a_put_that_comes_again_after_others_removed_something(target: Target) -> None:
    """Its reply was lost. Another process read behind it, a third one deleted the thread, and then it is sent again."""
    writer, reader = target.uniform(), target.uniform()
    versions, sent = {"n": versioned(1), "kept": versioned(1)}, []
    where = await writer.put(config(ns="a"), checkpoint({"n": 1, "kept": "it"}, versions, "1"), {}, versions)

    def around(request: Any) -> Any:
        sent.append(request)
        return (yield request)

    Around(writer.saver, around)
    await writer.put(config(), checkpoint({"n": 1}, {"n": "1"}, "1"), {}, {"n": "1"})
    assert (await reader.get_tuple(config(ns="a"))).config == where
    await target.uniform().delete_thread("thread")
    (put,) = [request for request in sent if script_of(request) is scripts.PUT]
    await asked(writer, put)
    versions |= {"n": versioned(2)}
    await reader.put(where, checkpoint({"n": 2, "kept": "it"}, versions, "2"), {}, {"n": versioned(2)})
    found = await target.uniform().get_tuple(config(ns="a"))
    assert found.checkpoint["channel_values"] == {"n": 2, "kept": "it"}
    assert (await reader.check("thread")).sound


async def test_a_checkpoint_that_is_too_large_to_be_remembered(target: Target) -> None:
    saver = target.uniform()
    values = {f"channel {number}": "x" * 1000 for number in range(200)}
    versions = dict.fromkeys(values, versioned(1))
    await saver.put(config(), checkpoint(values, versions, "1"), {}, versions)
    data = saver.saver._context.keyspace.keys("thread").data_key
    known = saver.saver._context.chunk_cache.of(data).checkpoints[""]
    assert not known.header and known.size < 50_000
    for _ in range(2):
        assert (await saver.get_tuple(config())).checkpoint["channel_values"] == values


async def test_nothing_is_remembered_without_memory(target: Target) -> None:
    saver = target.uniform(cache_bytes=0)
    await chat(saver)
    data = saver.saver._context.keyspace.keys("thread").data_key
    assert not saver.saver._context.chunk_cache.of(data).checkpoints
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"messages": MESSAGES[:20], "n": 20}


async def test_a_newest_checkpoint_whose_names_were_forgotten_for_those_of_an_older_one(target: Target) -> None:
    saver = target.uniform()
    older = await saver.put(config(), checkpoint({"a": 1}, {"a": "1"}, "1"), {}, {"a": "1"})
    await saver.put(older, checkpoint({"b": 2}, {"b": "2"}, "2"), {}, {"b": "2"})
    for _ in range(2):
        assert (await saver.get_tuple(older)).checkpoint["channel_values"] == {"a": 1}
        assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"b": 2}
        assert (await saver.get_tuple(config(checkpoint_id="2"))).checkpoint["channel_values"] == {"b": 2}
