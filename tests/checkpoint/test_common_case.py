"""The common case runs few commands, and every other case is noticed and answered correctly."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.factories import checkpoint, config
from tests.support.sharing import key_of
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import asked, noted, script_of

from redis_saver import ThreadDamaged
from redis_saver._checkpoint import scripts

pytestmark = pytest.mark.also_on(cluster="sync", valkey="async")

MESSAGES = [f"message {number} " * 40 for number in range(60)]


def versioned(number: int) -> str:
    """Return a version as our savers make it."""
    return f"{number:032}.{number * 7919:020}"


async def turn(saver: Uniform, where: Any, number: int, **values: Any) -> Any:
    """Put a checkpoint with `number` messages, a counter, and a channel that never has a value."""
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
    """Commands that scripts called since the last `CONFIG RESETSTAT`."""
    counted = {name[8:]: entry["calls"] for name, entry in target.raw.info("commandstats").items()}
    return {name: calls for name, calls in counted.items() if name not in ("info", "config|resetstat", "config")}


def check_budget(target: Target, **budget: int) -> None:
    assert commands(target) == budget, "a budget: save the command, or raise the budget and say in the commit why"


PUT = {"evalsha": 1, "zscore": 1, "hmget": 1, "hset": 1, "zadd": 1}


@pytest.fixture
def target_name() -> str:
    return "redis"


async def test_warm_calls_run_few_commands(target: Target) -> None:
    """A put is one read, one HSET, one ZADD, and the deadlines."""
    saver = target.uniform(ttl="7d")
    where = await chat(saver)
    await saver.put_writes(where, [("n", 1)], "a task")
    await saver.get_tuple(config())
    deadline = {"time": 1, "pexpireat": 2}
    target.raw.config_resetstat()
    where = await turn(saver, where, 21)
    check_budget(target, **PUT, **deadline)
    target.raw.config_resetstat()
    await saver.put_writes(where, [("messages", MESSAGES[22:23]), ("n", 1)], "a task")
    check_budget(target, **PUT, **deadline)
    target.raw.config_resetstat()
    found = await saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"messages": MESSAGES[:21], "n": 21}
    assert found.pending_writes == [("a task", "messages", MESSAGES[22:23]), ("a task", "n", 1)]
    check_budget(target, evalsha=1, zscore=1, hmget=2, zrevrangebylex=1, zrangebylex=1)


async def test_an_expected_checkpoint_is_read_after_its_chunks_were_forgotten(saver: Uniform) -> None:
    """The reader still knows the checkpoint's version table, but no longer the chunks of its value."""
    where = await chat(saver)
    older = await saver.get_tuple(config(checkpoint_id="000017"))
    assert older.checkpoint["channel_values"]["n"] == 17
    newest = await saver.get_tuple(config())
    assert newest.checkpoint["channel_values"] == {"messages": MESSAGES[:20], "n": 20}
    assert newest.config == where


async def test_reading_an_older_checkpoint_does_not_make_the_next_put_dearer(target: Target) -> None:
    sent = []
    for looked_at in ((), ("000017", "000018")):
        saver = target.uniform()
        where = await chat(saver)
        for step in looked_at:
            assert (await saver.get_tuple(config(checkpoint_id=step))).checkpoint["id"] == step
        before = saver.saver.stats().bytes_sent
        target.raw.config_resetstat()
        where = await turn(saver, where, 21)
        check_budget(target, **PUT)
        sent.append(saver.saver.stats().bytes_sent - before)
        assert (await saver.get_tuple(config())).config == where
        await saver.delete_thread(config()["configurable"]["thread_id"])
    # With encryption, each of the two threads has its own data key, so their lists of chunks are cut differently.
    assert abs(sent[0] - sent[1]) <= (200 if target.is_encrypted else 0)


async def test_a_checkpoint_put_again_with_other_versions_is_read_correctly(target: Target) -> None:
    """The reader expects the newest checkpoint, but another version table names its values."""
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


@pytest.mark.parametrize("gone", [b"b\0messages\0", b"b\0n\0", b"c\x00000020\0"])
async def test_a_removed_field_is_damage_to_other_processes(target: Target, gone: bytes) -> None:
    """The process that put the checkpoint returns what it put. All others raise `ThreadDamaged`."""
    saver, other = target.uniform(), target.uniform()
    where = await chat(saver)
    data = key_of(target)
    field = max(field for field in target.raw.hkeys(data) if field.startswith(gone))
    target.raw.hdel(data, field)
    found = await saver.get_tuple(config())
    assert (found.config, found.checkpoint["channel_values"]) == (where, {"messages": MESSAGES[:20], "n": 20})
    with pytest.raises(ThreadDamaged, match="is gone"):
        await other.get_tuple(config())
    assert not (await saver.check("thread")).sound


async def test_missing_pending_writes_raise_thread_damaged(target: Target) -> None:
    saver = target.uniform()
    where = await chat(saver)
    await saver.put_writes(where, [("n", 1)], "a task")
    await saver.get_tuple(config())
    data = key_of(target)
    (record,) = [field for field in target.raw.hkeys(data) if field[:1] == b"w"]
    target.raw.hdel(data, record)
    with pytest.raises(ThreadDamaged, match="pending writes"):
        await saver.get_tuple(config())


async def test_processes_that_put_in_turns_take_one_round_trip_each(target: Target) -> None:
    """Each put finds another process's tag and checks all that it relies on."""
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


async def test_alternating_namespaces_keep_the_tag(target: Target) -> None:
    """Knowledge of one namespace stays valid while a process puts to another, as with subgraphs."""
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


async def test_readers_see_a_value_stored_later_for_the_same_version(target: Target) -> None:
    """One checkpoint has no value for a version, and another one stores it later."""
    saver, other = target.uniform(), target.uniform()
    versions = {"n": "1", "late": "1"}
    await saver.put(config(), checkpoint({"n": 1}, versions, "2"), {}, {"n": "1"})
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}
    await other.put(config(), checkpoint({"n": 1, "late": "it"}, versions, "1"), {}, versions)
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"n": 1, "late": "it"}


async def test_a_put_sent_twice_counts_once(saver: Uniform) -> None:
    """The reply was lost, so the client sends the put again."""
    where = await chat(saver)
    once = await saver.get_thread("thread")
    await turn(saver, config(checkpoint_id="000019"), 20)
    again = await saver.get_thread("thread")
    assert (once.checkpoints, once.bytes) == (again.checkpoints, again.bytes)
    assert (await saver.get_tuple(config())).config == where
    assert (await saver.check("thread")).sound


async def test_a_put_sent_again_after_a_deletion_leaves_a_sound_thread(target: Target) -> None:
    """The reply is lost. Another process reads, a third deletes the thread, and the put is sent again."""
    writer, reader = target.uniform(), target.uniform()
    versions = {"n": versioned(1), "kept": versioned(1)}
    where = await writer.put(config(ns="a"), checkpoint({"n": 1, "kept": "it"}, versions, "1"), {}, versions)

    sent = noted(writer.saver)
    await writer.put(config(), checkpoint({"n": 1}, {"n": "1"}, "1"), {}, {"n": "1"})
    assert (await reader.get_tuple(config(ns="a"))).config == where
    await target.uniform().delete_thread("thread")
    (put,) = [request for request, _ in sent if script_of(request) is scripts.PUT]
    await asked(writer, put)
    versions |= {"n": versioned(2)}
    await reader.put(where, checkpoint({"n": 2, "kept": "it"}, versions, "2"), {}, {"n": versioned(2)})
    found = await target.uniform().get_tuple(config(ns="a"))
    assert found.checkpoint["channel_values"] == {"n": 2, "kept": "it"}
    assert (await reader.check("thread")).sound


async def test_a_checkpoint_too_large_to_remember_is_read(target: Target) -> None:
    saver = target.uniform()
    values = {f"channel {number}": "x" * 1000 for number in range(200)}
    versions = dict.fromkeys(values, versioned(1))
    await saver.put(config(), checkpoint(values, versions, "1"), {}, versions)
    data = key_of(target)
    known = saver.saver._context.chunk_cache.of(data).checkpoints[""]
    assert not known.header and known.size < 50_000
    for _ in range(2):
        assert (await saver.get_tuple(config())).checkpoint["channel_values"] == values


async def test_nothing_is_remembered_without_a_cache(target: Target) -> None:
    saver = target.uniform(cache_bytes=0)
    await chat(saver)
    data = key_of(target)
    assert not saver.saver._context.chunk_cache.of(data).checkpoints
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"messages": MESSAGES[:20], "n": 20}


async def test_alternating_reads_of_two_checkpoints_return_their_own_values(saver: Uniform) -> None:
    older = await saver.put(config(), checkpoint({"a": 1}, {"a": "1"}, "1"), {}, {"a": "1"})
    await saver.put(older, checkpoint({"b": 2}, {"b": "2"}, "2"), {}, {"b": "2"})
    for _ in range(2):
        assert (await saver.get_tuple(older)).checkpoint["channel_values"] == {"a": 1}
        assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"b": 2}
        assert (await saver.get_tuple(config(checkpoint_id="2"))).checkpoint["channel_values"] == {"b": 2}
