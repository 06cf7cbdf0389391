"""`check`: sound threads have no finding, and each kind of damage is named."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import pytest
import redis
from tests.support.acl import acl_rule
from tests.support.factories import chain, config, late_id, put
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import INTERRUPT
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import RESUME
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from tests.support.raw import contents
from tests.support.servers import Server, url_of
from tests.support.sharing import fields_of, key_of
from tests.support.talking import joined
from tests.support.tiering import FlakySaver, Tiers
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform
from tests.support.values import KEY
from tests.support.wrappers import Around, elsewhere

from redis_saver import AsyncTieredSaver, CheckReport, DecodeError, RedisSaver, ThreadBusy, ThreadDamaged
from redis_saver import ThreadNotFound, TieredSaver
from redis_saver._common import names
from redis_saver._cli.main import main
from redis_saver._engine import requests
from redis_saver._common.names import Keyspace
from redis_saver._storage import framing
from redis_saver._storage.chunks import digest

pytestmark = pytest.mark.also_on(redis62="sync")

LATE = [late_id(number) for number in (1, 2, 3)]
MESSAGES = [HumanMessage(f"{n} {'x' * 600}", id=str(n)) for n in range(12)]


async def lived(uniform: Uniform, one: str = "1", two: str = "2", three: str = "3") -> dict[str, Any]:
    """A thread with two namespaces, a run, values in chunks that two versions share, and writes of both kinds."""
    assert await uniform.get_tuple(config()) is None  # like a graph, so that hot knows that it has the whole thread
    run = {"metadata": {"source": "loop", "step": 1, "parents": {}, "run_id": "run-1"}}
    values = {"n": 1, "m": MESSAGES[:10]}
    first = await put(uniform, config(), values, checkpoint_id=one, versions={"n": "1", "m": "1"}, **run)
    where = await put(uniform, first, {"n": 2, "m": MESSAGES}, checkpoint_id=two, versions={"n": "2", "m": "2"}, **run)
    await put(uniform, config(ns="sub"), {"n": 3}, checkpoint_id=three, versions={"n": "1"}, **run)
    await uniform.put_writes(where, [("n", 4), (INTERRUPT, "?")], "task", "path")
    return where


async def sound(uniform: Uniform, thread: str = "thread", **more: Any) -> CheckReport:
    report: CheckReport = await uniform.check(thread, **more)
    assert report.findings == () and report.sound
    return report


def graph(saver: Any) -> Any:
    """An agent with messages and a delta channel, which is interrupted."""
    log: Any = Annotated[list, DeltaChannel(joined, snapshot_frequency=3)]
    schema: Any = TypedDict("State", {"messages": Annotated[list[AnyMessage], add_messages], "log": log})

    def answer(state: Any) -> Any:
        return {"messages": [AIMessage("a" * 700)], "log": [len(state["messages"])]}

    def ask(_: Any) -> Any:
        return {"messages": [AIMessage(str(interrupt("?")))]}

    builder = StateGraph(schema).add_node("answer", answer).add_node("ask", ask)
    return builder.add_edge(START, "answer").add_edge("answer", "ask").compile(checkpointer=saver)


SETTINGS: dict[str, dict[str, Any]] = {
    "zstd": {"compression": "zstd"},
    "encrypted": {"serde": EncryptedSerializer.from_pycryptodome_aes(key=KEY)},
    "strict": {"strict": True},
    "ttl": {"ttl": timedelta(minutes=5)},
}


async def test_threads_of_graphs_are_sound(saver: Uniform, target: Target) -> None:
    await live_soundly(saver, target)


@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis62"])
@pytest.mark.parametrize("setting", SETTINGS)
async def test_threads_of_graphs_are_sound_with_each_setting(target: Target, setting: str) -> None:
    await live_soundly(target.uniform(**SETTINGS[setting]), target)


async def live_soundly(uniform: Uniform, target: Target) -> None:
    """Run graphs, prune, delete_for_runs, a copy and a put over a checkpoint, and check after each."""
    made = graph(uniform.saver)
    for turn in range(3):
        given, where = {"messages": [HumanMessage("h" * 700)], "log": [turn]}, config("t")
        if uniform.native_async:
            await made.ainvoke(given, where)
        else:
            made.invoke(given, where)
    report = await sound(uniform, "t")
    assert report.checkpoints >= 6 and report.writes
    await uniform.copy_thread("t", "copy")
    await sound(uniform, "copy")
    await uniform.prune(["t"], keep_last=2)
    await sound(uniform, "t")
    await lived(uniform)
    chunks = sum(field[:1] in (b"p", b"z", b"n") for field in fields_of(target))
    assert (await sound(uniform))[1:5] == (3, 5, chunks, 2)
    await put(uniform, config(), {"m": MESSAGES[3:]}, checkpoint_id="1", versions={"m": "3"})
    await sound(uniform)
    await uniform.delete_for_runs(["run-1"])
    await sound(uniform)
    assert (await sound(uniform, values=False)).checkpoints == 1


async def test_a_repeated_version_without_a_value_is_sound(saver: Uniform) -> None:
    """Forks use the same integer versions."""
    first = await put(saver, config(), {"n": 1}, versions={"n": 1}, checkpoint_id="1")
    for which, values in (("2", {"n": 2, "branch": "x"}), ("3", {"n": 3})):
        versions = {"n": int(which), "branch": 2}
        await put(saver, first, values, versions=versions, checkpoint_id=which)
    assert (await saver.check("thread")).findings == ()
    assert (await saver.get_tuple(config())).checkpoint["channel_values"] == {"n": 3}


async def test_members_of_older_releases_for_a_history_limit_are_sound(target: Target) -> None:
    """Before the client ran the trim, limited threads had members for subgraph calls."""
    saver = target.uniform()
    await put(saver, config("t"), {"n": 1}, checkpoint_id="1")
    keys = Keyspace(target.prefix).keys("t")
    target.raw.zadd(keys.index_key, {b"s" + names.component("1") + names.component("agent:task"): 0})
    assert (await saver.check("t")).findings == ()
    await saver.copy_thread("t", "copy")
    assert (await saver.check("copy")).findings == ()
    await saver.prune(["t"], keep_last=1)
    assert (await saver.get_tuple(config("t"))).checkpoint["channel_values"] == {"n": 1}


async def test_a_missing_thread_raises_thread_not_found(saver: Uniform) -> None:
    with pytest.raises(ThreadNotFound, match="'thread'"):
        await saver.check("thread")


# -- damage


def index_of(target: Target) -> bytes:
    return Keyspace(target.prefix).keys("thread").index_key


def fields(target: Target, kind: bytes) -> list[bytes]:
    return sorted(field for field in fields_of(target) if field[:1] == kind)


def edited(kind: bytes, edit: Callable[[bytes], bytes], at: int = 0) -> Callable[[Target], Any]:
    def act(target: Target) -> None:
        field = fields(target, kind)[at]
        target.raw.hset(key_of(target), field, edit(fields_of(target)[field]))

    return act


def removed(kind: bytes, at: int = 0) -> Callable[[Target], Any]:
    return lambda target: target.raw.hdel(key_of(target), fields(target, kind)[at])


def unlisted(member: bytes) -> Callable[[Target], Any]:
    return lambda target: target.raw.zrem(index_of(target), member)


def listed(member: bytes) -> Callable[[Target], Any]:
    return lambda target: target.raw.zadd(index_of(target), {member: 0})


def stored(field: bytes, value: bytes) -> Callable[[Target], Any]:
    return lambda target: target.raw.hset(key_of(target), field, value)


def names_chunk(target: Target) -> bytes:
    header = fields_of(target)[fields(target, b"c")[0]]
    return framing.unpack(header)[3]


def counting(at: int, add: int) -> Callable[[Target], Any]:
    def act(target: Target) -> None:
        state = fields_of(target)[b"@state"].split()
        state[at] = b"%d" % (int(state[at]) + add)
        target.raw.hset(key_of(target), b"@state", b" ".join(state))

    return act


TWO = names.checkpoint("", "2")
WRITES = names.task("", "2", "task")
Damage = Callable[[Target], Any]


def both_expire(data_in: int, index_in: int) -> Damage:
    return lambda target: (target.raw.expire(key_of(target), data_in), target.raw.expire(index_of(target), index_in))


def a_chunk(target: Target) -> bytes:
    return next(field for field in fields(target, b"p") if field != names_chunk(target))


ERRORS: dict[str, tuple[Damage, str]] = {
    "the index is gone": (lambda target: target.raw.unlink(index_of(target)), "thread 'thread': the key .* is gone"),
    "the data are gone": (lambda target: target.raw.unlink(key_of(target)), "thread 'thread': the key .* is gone"),
    "a key of another program": (
        lambda target: (target.raw.unlink(index_of(target)), target.raw.set(index_of(target), "x")),
        "is not a sorted set",
    ),
    "a counter that cannot be read": (stored(b"@state", b"x"), "counters .* cannot be read"),
    "two deadlines": (
        lambda target: target.raw.expire(key_of(target), 1000), r"expires never and its data in \d+ ms"
    ),
    "deadlines apart": (both_expire(1000, 2000), "half of it will be gone"),
    "a header is gone": (removed(b"c"), r"checkpoint '1': the index names it, but it is gone"),
    "a header is cut": (edited(b"c", lambda old: old[:-3]), r"checkpoint '1': it cannot be read: ValueError"),
    "a header is cut to nothing": (edited(b"c", lambda _: b"-3:"), r"checkpoint '1': it cannot be read"),
    "a header has other bytes": (
        edited(b"c", lambda old: framing.pack([*framing.unpack(old)[:10], b"\xc1", *framing.unpack(old)[11:]])),
        r"checkpoint '1': it cannot be read: ",
    ),
    "names are gone": (
        lambda target: target.raw.hdel(key_of(target), names_chunk(target)),
        r"checkpoint '2': the names of its channels are gone",
    ),
    "names are others": (
        lambda target: target.raw.hset(key_of(target), names_chunk(target), b"x\0"),
        r"checkpoint '2': the names of its channels cannot be read",
    ),
    "a value is gone": (removed(b"b", 2), r"checkpoint '1': it has lost the value of channel 'n' in version '1'"),
    "a value is cut": (
        edited(b"b", lambda old: old[:4], 2), r"value of channel 'n' in version '1': it cannot be read"
    ),
    "a value that is no msgpack": (edited(b"b", lambda _: b"7:msgpack\xc1", 2), "value of channel 'n'.*cannot be read"),
    "a root has other bytes": (
        edited(b"b", lambda old: old[:-1] + bytes([old[-1] ^ 1])), r"value of channel 'm'.*root"
    ),
    "a chunk is gone": (
        lambda target: target.raw.hdel(key_of(target), a_chunk(target)),
        r"value of channel 'm' in version '2': 1 of its chunks are gone, one of them is chunk p:",
    ),
    "a chunk has other bytes": (
        lambda target: target.raw.hset(key_of(target), a_chunk(target), b"x"),
        r"chunk p:[0-9a-f]{32}: it cannot be read: ValueError: its bytes do not match the digest in its name: they were changed",
    ),
    "writes are gone": (removed(b"w"), r"writes of task 'task' on checkpoint '2': the index names it"),
    "writes are cut": (
        edited(b"w", lambda old: old[:-2]), r"writes of task 'task' on checkpoint '2': it cannot be read"
    ),
    "a write that is no msgpack": (
        edited(b"w", lambda old: framing.pack([*framing.unpack(old)[:4], b"\xc1"])),
        r"writes of task 'task' on checkpoint '2': it cannot be read",
    ),
    "not in the order by age": (
        unlisted(names.by_age("sub", "3")), r"checkpoint '3' of namespace 'sub'.*leaves it out"
    ),
    "in the order by age alone": (
        listed(names.by_age("sub", "9")), r"checkpoint '9' of namespace 'sub'.*fails"
    ),
}  # fmt: skip
WARNINGS: dict[str, tuple[Damage, str]] = {
    "a checkpoint is not listed": (unlisted(TWO), r"checkpoint '2': .*the index does not name it"),
    "writes are not listed": (unlisted(WRITES + b"-3"), r"special channel -3 on checkpoint '2'.*does not name it"),
    "a run is not listed": (unlisted(names.run("run-1")), r"run 'run-1': .*delete_for_runs\(\) misses it"),
    "a member of others": (listed(b"x\n"), r"field b'x\\n': redis_saver has no such member"),
    "a field of others": (stored(b"x\n", b""), r"field b'x\\n': redis_saver has no such field"),
    "a value nobody has": (
        stored(names.blob("", b"n\0s9"), b"4:null"), r"channel 'n' in version '9': no checkpoint"
    ),
    "a chunk nobody has": (
        stored(b"p" + digest(b"left over"), b"left over"),
        r"chunk p:[0-9a-f]{32}: no value or pending write has it, and @gc_roots does not lead to it",
    ),
    "bytes counted wrong": (counting(2, 1), r"thread 'thread': its counter says \d+ bytes"),
    "values counted wrong": (counting(3, 1), r"says 6 values, and there are 5"),
    "writes counted wrong": (counting(4, -1), r"says 1 pending writes, and there are 2"),
}  # fmt: skip
DAMAGE = {**ERRORS, **WARNINGS}


async def test_check_names_several_faults_at_once(target: Target) -> None:
    uniform = target.uniform()
    await lived(uniform)
    several = "a header is gone", "a chunk is gone", "writes are cut", "not in the order by age", "values counted wrong"
    for what in several:
        DAMAGE[what][0](target)
    report = await uniform.check("thread")
    found = "\n".join(f"{finding.where}: {finding.what}" for finding in report.findings)
    for what in several:
        assert re.search(DAMAGE[what][1].replace("there are 5", "there are"), found), what


@pytest.mark.parametrize("target_name", ["redis62"])
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.by_turns
async def test_check_names_each_kind_of_damage(target: Target, what: str) -> None:
    """A finding has a place and a remedy, and `check` changes nothing."""
    uniform = target.uniform()
    await lived(uniform)
    await sound(uniform)
    damage, said = DAMAGE[what]
    damage(target)
    before = contents(target)
    report = await target.uniform().check("thread")
    found = [finding for finding in report.findings if re.search(said, f"{finding.where}: {finding.what}", re.DOTALL)]
    assert found, report.findings
    assert found[0].severity == ("error" if what in ERRORS else "warning") and found[0].remedy
    assert not report.sound
    assert before == contents(target)


async def test_findings_over_100_are_only_counted(target: Target) -> None:
    await lived(target.uniform())
    for number in range(150):
        listed(b"x%d" % number)(target)
    report = await target.uniform().check("thread")
    assert len(report.findings) == 100 and report.more == 50 and not report.sound


@pytest.mark.plain("it stores plain values")
async def test_plain_values_are_findings_for_an_encrypting_saver(target: Target) -> None:
    """With `values=False` nothing is decoded, so no key is needed."""
    await lived(target.uniform())
    uniform = target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY))
    report = await uniform.check("thread")
    assert len(report.findings) == 3 + 5 + 2
    assert all("it is not encrypted" in finding.what for finding in report.findings)
    await sound(uniform, values=False)


@pytest.mark.plain("it stores a plain write")
async def test_concurrent_writes_are_not_reported_as_damage(target: Target) -> None:
    """An attempt with findings is repeated. If the thread changes during each, `check` raises `ThreadBusy`."""
    uniform = target.uniform()
    await lived(uniform)
    left = [1]

    def around(request: Any) -> Any:
        """Do what `put_writes` does, between the reads of the index and of the data."""
        is_scan = isinstance(request, requests.Command) and request.arguments[::2] == ("HSCAN", 0, 10)
        if is_scan and left and left.pop():
            record = framing.pack([b"0", b"", b"n", b"null", b""])
            form, rev, size, values, writes = map(int, fields_of(target)[b"@state"].split()[:5])
            member = names.task("", "2", f"late {writes}")
            stored(member, record)(target)
            stored(b"@state", b"%d %d %d %d %d" % (form, rev, size + len(record), values, writes + 1))(target)
            listed(member)(target)
        return (yield request)

    Around(uniform.saver, around)
    report = await sound(uniform)
    assert report.writes == 3 and not left
    left.extend([1] * 5)
    with pytest.raises(ThreadBusy, match="'thread'.*5 attempts"):
        await uniform.check("thread")


def damaged(stored: bytes, dice: random.Random) -> bytes:
    """Change, cut out or repeat some bytes."""
    at = dice.randrange(len(stored) + 1)
    return dice.choice(
        (
            lambda: stored[:at],
            lambda: stored[:at] + stored[at + 1 :],
            lambda: stored[:at] + bytes([dice.randrange(256)]) + stored[at + 1 :],
            lambda: stored[:at] + stored[dice.randrange(len(stored) + 1) :],
            lambda: bytes(dice.randrange(256) for _ in range(dice.randrange(40))),
        )
    )()


@pytest.mark.parametrize("target_name", ["redis62"])
@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_thread_that_cannot_be_read_is_never_sound(target: Target) -> None:
    """With random damage, `check` always returns a report."""
    dice = random.Random(seed := int(os.environ.get("CHECK_SEED", "17")))
    cases, unread = int(os.environ.get("CHECK_CASES", "150")), 0
    await lived(target.uniform())
    index, data = index_of(target), key_of(target)
    fields, members = target.raw.hgetall(data), target.raw.zrange(index, 0, -1)
    for case in range(cases):
        for _ in range(dice.randrange(1, 3)):
            name = dice.choice(sorted(fields))
            act = dice.randrange(6)
            if act == 0:
                target.raw.hdel(data, name)
            elif act == 1:
                target.raw.zrem(index, dice.choice(members))
            elif act == 2:
                target.raw.zadd(index, {damaged(dice.choice(members), dice): 0})
            elif act == 3:
                target.raw.hset(data, damaged(name, dice), fields[name])
            else:
                target.raw.hset(data, name, damaged(fields[name], dice))
        uniform = target.uniform()
        report = await uniform.check("thread")
        try:
            for ns in (None, "", "sub"):
                await uniform.list(config(ns=ns))
        except ThreadDamaged as error:
            unread += 1
            assert not report.sound, (seed, case, error)
        target.raw.delete(index, data)
        target.raw.hset(data, mapping=fields)
        target.raw.zadd(index, dict.fromkeys(members, 0))
    assert unread > cases // 5


async def test_a_scan_that_repeats_a_cursor_ends(target: Target) -> None:
    """No server repeats a cursor within a scan. Here the cursors go in circles."""
    follows = {0: 2, 2: 7, 7: 2}

    def stuck(request: Any) -> Any:
        reply = yield request
        is_scan = isinstance(request, requests.Command) and request.arguments[0] == "HSCAN"
        return [follows[request.arguments[2]], []] if is_scan else reply

    await put(target.uniform(), config(), {"a": 1})
    saver = target.uniform()
    Around(saver.saver, stuck)
    with pytest.raises(DecodeError, match="the contents of thread 'thread'.*cursor 2 a second time"):
        await saver.check("thread")


# -- two tiers


async def test_tiers_that_agree_have_no_findings(tiers: Tiers) -> None:
    """Threads were written through, behind, with gaps, and filled. Records that cold lacks are only counted."""
    uniform = await tiers.uniform()
    await lived(uniform, *LATE)
    assert (await sound(uniform)).compared == 3
    behind = await tiers.uniform(mode="write-behind", flusher=False)
    await behind.get_tuple(config("behind"))
    made = await chain(behind, "behind", 3)
    report = await sound(behind, "behind")
    assert report.compared == 0 and report.lacking == 3
    assert await behind.flush() == 0
    assert (await sound(behind, "behind")).compared == 3
    latest = await tiers.uniform(mode="write-behind", flusher=False, cold_history="latest")
    await chain(latest, "latest", 3)
    assert await latest.flush() == 0
    assert (await sound(latest, "latest")).compared == 3
    tiers.evict(thread="behind")
    with pytest.raises(ThreadNotFound):
        await uniform.check("behind")
    assert (await uniform.get_tuple(config("behind"))).config == made[-1]
    assert (await sound(uniform, "behind")).compared == 1


@pytest.mark.plain("what SQL changes in cold does not open")
async def test_differences_between_the_tiers_are_named(tiers: Tiers) -> None:
    """Cold has another value, another parent, nothing, or something newer."""
    uniform, cold = await tiers.uniform(), await tiers.cold_uniform()
    await uniform.get_tuple(config())
    made = await chain(uniform, "thread", 3)
    await uniform.put_writes(made[2], [("n", 1)], "task")
    await sound(uniform)
    with psycopg.connect(tiers.url, autocommit=True) as connection:
        for change, said in (
            ("UPDATE checkpoints SET metadata = '{}'", "cold has a different version: the metadata"),
            ("UPDATE checkpoints SET parent_checkpoint_id = 'x'", "different version: its parent"),
            ("DELETE FROM checkpoint_writes", "different version: .*"),
            ("DELETE FROM checkpoints", "cold does not have it"),
        ):
            connection.execute(f"{change} WHERE checkpoint_id = %s", (made[2]["configurable"]["checkpoint_id"],))
            (finding,) = (await uniform.check("thread")).findings
            assert re.search(said, finding.what) and finding.severity == "error"
            assert made[2]["configurable"]["checkpoint_id"] in finding.where
    newer = await put(cold, config(), {"n": 9})
    findings = (await uniform.check("thread")).findings
    assert any(f"a newer one, {newer['configurable']['checkpoint_id']!r}" in finding.what for finding in findings)


@pytest.mark.parametrize("target_name", ["redis62"])
async def test_writes_during_the_comparison_are_not_reported(tiers: Tiers) -> None:
    """An answer to an interrupt replaces another of equal length, so no counter shows it."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap())
    await uniform.get_tuple(config())
    (stored,) = await chain(uniform, "thread", 1)
    await uniform.put_writes(stored, [(RESUME, "aaa")], "task")
    other = await tiers.uniform()

    async def act() -> None:
        await other.put_writes(stored, [(RESUME, "bbb")], "task")

    await sound(uniform)
    flaky.calls.clear()
    flaky.before["get_tuple"] = act if tiers.native_async else lambda: elsewhere(act)
    assert (await sound(uniform)).compared == 1
    assert not flaky.before and "get_tuple" in flaky.calls


@pytest.mark.parametrize("target_name", ["redis62"])
async def test_checkpoints_that_hot_cannot_read_are_not_compared(tiers: Tiers) -> None:
    """Hot has plain values, and its saver reads only encrypted ones.

    With `values=False`, only the comparison finds that.
    """
    uniform = await tiers.uniform()
    await uniform.get_tuple(config())
    await chain(uniform, "thread", 1)
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    report = await (await tiers.uniform(hot={"serde": serde})).check("thread", values=False)
    assert (report.compared, report.sound) == (0, False)
    assert "it could not be compared with cold" in report.findings[0].what


async def test_wrong_notes_about_cold_are_found(tiers: Tiers) -> None:
    uniform = await tiers.uniform(mode="write-behind", flusher=False)
    await uniform.get_tuple(config())
    await chain(uniform, "thread", 1)
    keys, raw = Keyspace(tiers.target.prefix).tier_keys("thread"), tiers.target.raw
    raw.pexpire(keys.dirty, 100_000)
    assert "but it expires" in (await uniform.check("thread")).findings[0].what
    raw.persist(keys.dirty)
    member = raw.zrange(keys.dirty, 0, 0)[0]
    raw.hset(keys.flush, b"x" + member, b"3 0 no room\n")
    (finding,) = (await uniform.check("thread")).findings
    assert finding.what == r"cold refused it 3 times: 'no room\n'" and finding.severity == "warning"
    raw.delete(keys.flush)
    raw.hdel(keys.data_key, b"@deferred_ttl")
    assert "do not say so" in (await uniform.check("thread")).findings[0].what
    raw.hset(keys.data_key, b"@deferred_ttl", b"")
    raw.delete(keys.dirty)
    assert "but their list is gone" in (await uniform.check("thread")).findings[0].what
    raw.hdel(keys.data_key, b"@deferred_ttl")
    raw.zadd(keys.intents, {b"%015d-" % 1 + b"*" * 16 + b"token": 0})
    report = await tiers.target.uniform().check("thread")
    assert report.findings[0].severity == "info" and report.sound


# -- the command


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = main(["check", *words])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis", "cluster"])
@pytest.mark.plain("the command has no keys here")
async def test_the_command_reports_each_thread(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--redis", target.url, "--prefix", target.prefix)
    uniform = target.uniform()
    await lived(uniform)
    await chain(uniform, "other\n", 2)
    code, out = ran(capsys, *where, "thread", "other\n")
    assert code == 0
    assert re.fullmatch(r"'thread': sound: 3 checkpoints, 5 values, \d+ chunks, 2 pending writes, [\d,]+ bytes", out[0])
    assert out[1].startswith(r"'other\n': sound: 2 checkpoints") and len(out) == 2
    assert ran(capsys, *where, "--all") == (0, ["2 threads: 2 sound, 0 not"])
    removed(b"c")(target)
    code, out = ran(capsys, *where, "--all")
    assert code == 1 and out[-1] == "2 threads: 1 sound, 1 not"
    assert out[1:3] == [
        "  error: checkpoint '1': the index names it, but it is gone from the data",
        "    restore the thread from a backup, or delete it with delete_thread()",
    ]
    code, out = ran(capsys, *where, "--json", "thread", "nobody")
    assert code == 1
    one, other = map(json.loads, out)
    assert one["thread_id"] == "thread" and not one["sound"] and one["findings"][0]["severity"] == "error"
    assert "is not there" in other["findings"][0]["what"]


async def test_check_all_skips_threads_deleted_meanwhile(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Without `--all`, the thread is reported as missing."""
    where, check = ("--redis", url_of("redis"), "--prefix", "check-ends"), RedisSaver.check

    def after_its_end(saver: RedisSaver, thread: str) -> Any:
        if thread == "gone":
            saver.delete_thread(thread)
        return check(saver, thread)

    with RedisSaver.from_conn_string(url_of("redis"), prefix="check-ends") as saver:
        monkeypatch.setattr(RedisSaver, "check", after_its_end)
        for words, code, said in ((["--all"], 0, "1 thread: 1 sound, 0 not"), (["gone", "t"], 1, "'t': sound")):
            for thread in ("gone", "t"):
                await put(Uniform(saver), config(thread), {"n": 1})
            found = ran(capsys, *where, *words)
            assert found[0] == code and found[1][-1].startswith(said), found
        saver.delete_thread("t")


def test_the_command_exits_with_2_if_it_cannot_run(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert ran(capsys, "--all")[0] == 2
    assert ran(capsys, "--redis", "redis://127.0.0.1:1", "--all")[0] == 2
    for words in ((), ("--all", "thread")):
        with pytest.raises(SystemExit, match="2"):
            main(["check", "--redis", "redis://127.0.0.1:1", *words])


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.plain("the command has no keys here")
async def test_the_command_compares_with_postgres(tiers: Tiers, capsys: pytest.CaptureFixture[str]) -> None:
    await lived(await tiers.uniform(), *LATE)
    where = ("--redis", tiers.target.url, "--prefix", tiers.target.prefix, "--postgres")
    code, out = ran(capsys, *where, tiers.url, "thread")
    assert code == 0 and out[0].endswith(", 3 checkpoints compared with cold")
    with psycopg.connect(tiers.url, autocommit=True) as connection:
        connection.execute("DELETE FROM checkpoints WHERE checkpoint_id = %s", LATE[1:2])
    code, out = ran(capsys, *where, tiers.url, "thread")
    assert code == 1 and "cold does not have it" in out[1]
    assert ran(capsys, *where, tiers.url.rpartition("/")[0] + "/nothing", "thread")[0] == 2


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_read_only_user_can_check(flavour: str) -> None:
    """The rule is that of docs/check.md, and each command in it is needed."""
    server = Server()
    plain = Target("redis", flavour, f"redis://127.0.0.1:{server.port}", "langgraph")
    await lived(plain.uniform(compression="zstd"))
    kind, cold = AsyncTieredSaver if flavour == "async" else TieredSaver, InMemorySaver()
    tiered = Uniform(kind(plain.uniform().saver, cold))
    assert await tiered.get_tuple(config("two")) is None
    await chain(tiered, "two", 1)
    rule = acl_rule("check", "docs/check.md").split()
    server.client().execute_command(*rule)
    server.client().config_resetstat()
    target = Target("redis", flavour, f"redis://checker:secret@127.0.0.1:{server.port}", "langgraph")
    await sound(target.uniform())
    assert (await sound(Uniform(kind(target.uniform().saver, cold)), "two")).compared == 1
    with pytest.raises(ThreadNotFound):
        await target.uniform().check("nobody")
    with RedisSaver.from_conn_string(target.url) as saver:
        assert main(["check", "--redis", target.url, "--all"]) == 0
        with pytest.raises(redis.exceptions.ResponseError, match="can't run this command"):
            saver.delete_thread("thread")
    used = {name.removeprefix("cmdstat_").split("|")[0] for name in server.client().info("commandstats")}
    granted = {word[1:] for word in rule if word.startswith("+")}
    assert granted <= used, f"granted for nothing: {granted - used}"
    await target.close()
    await plain.close()
    server.stop()
