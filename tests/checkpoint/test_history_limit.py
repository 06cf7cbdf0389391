"""History limits: `history=` and `thread_history` bound a thread by puts alone.

Kept checkpoints have the content they have without a limit, and are those that `prune` keeps. Random chats test both.
"""

from __future__ import annotations

import asyncio
import operator
import random
from collections import Counter
from datetime import timedelta
from typing import Annotated, Any

import pytest
from tests.support import raw, sharing
from tests.support.factories import chain, checkpoint, config, ids, put
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import INTERRUPT
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from tests.support.seeds import seeds, targets
from test_delta import Graph, Process
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform

from tests.support.wrappers import before_each

from redis_saver import History
from redis_saver._common import names
from redis_saver._checkpoint import scripts

pytestmark = pytest.mark.also_on(cluster="sync")

SLACK = 32
"""Slack of a small limit."""


def kept(number: int) -> History:
    return {"keep_last": number}


def fields_of(target: Target, thread: str = "t") -> dict[bytes, bytes]:
    return sharing.fields_of(target, thread)


def members_of(target: Target, thread: str = "t") -> list[bytes]:
    found: list[bytes] = target.raw.zrange(names.Keyspace(target.prefix).keys(thread).index_key, 0, -1)
    return found


async def spaces_of(saver: Uniform, thread: str = "t") -> Counter[str]:
    """Count the checkpoints of each namespace."""
    return Counter(one.config["configurable"]["checkpoint_ns"] for one in await saver.list(config(thread, None)))


async def check_sound(saver: Uniform, target: Target) -> None:
    assert (await saver.check("t")).findings == ()
    raw.check_counters(fields_of(target))


# -- which checkpoints are kept


@pytest.mark.parametrize("number", [1, 5, 100])
async def test_the_newest_checkpoints_are_kept(target: Target, number: int) -> None:
    saver = target.uniform(history=kept(number))
    most = number + max(SLACK, number // 2)
    configs: list[Any] = []
    for length in range(1, most + 60):
        parent = configs[-1] if configs else config("t")
        configs.append(await put(saver, parent, {"n": length}, versions={"n": f"{length:032}.x"}))
        await saver.put_writes(configs[-1], [("n", length)], "task")
        if length % 7 == 0 or length > most:
            found = await saver.get_thread("t")
            assert min(length, number) <= found.checkpoints <= most
    found = await saver.list(config("t"))
    assert [one.config for one in found] == configs[::-1][: len(found)]
    assert [one.checkpoint["channel_values"]["n"] for one in found] == list(range(length, length - len(found), -1))
    assert found[-1].parent_config is None
    assert all(one.parent_config == older.config for one, older in zip(found, found[1:], strict=False))
    assert all(len(one.pending_writes) == 1 for one in found)
    await check_sound(saver, target)
    assert await saver.get_tuple(configs[0]) is None


async def test_without_a_limit_everything_is_kept(saver: Uniform, target: Target) -> None:
    await chain(saver, "t", 60)
    assert (await saver.get_thread("t")).checkpoints == 60
    key = {b"@key"} if target.is_encrypted else set()
    assert {field for field in fields_of(target) if field[:1] == b"@"} == {b"@state", b"@rewritten"} | key


async def test_the_limit_counts_each_namespace(target: Target) -> None:
    saver = target.uniform(history=kept(2))
    await chain(saver, "t", 10)
    await chain(saver, "t", SLACK + 2, ns="memory")
    assert await spaces_of(saver) == {"": 10, "memory": SLACK + 2}, "neither is over the limit"
    await chain(saver, "t", 1, ns="memory")
    assert await spaces_of(saver) == {"": 2, "memory": 2}, "a trim is a prune of the thread"


async def test_the_first_put_trims_a_long_history(target: Target) -> None:
    configs = await chain(target.uniform(), "t", 400)
    saver = target.uniform(history=kept(3))
    configs.append(await put(saver, configs[-1], {"n": -1}, versions={"n": f"{500:032}.x"}))
    assert ids(await saver.list(config("t"))) == [one["configurable"]["checkpoint_id"] for one in configs[:-4:-1]]
    assert (await saver.check("t")).findings == ()


async def test_the_parent_of_a_new_checkpoint_is_kept(target: Target) -> None:
    """One of its tasks may still write."""
    saver = target.uniform(history=kept(1))
    configs = await chain(saver, "t", 40)
    for one in configs[::-1]:
        if (await saver.get_thread("t")).checkpoints < 3:
            break
        await put(saver, one, {"n": 1}, versions={"n": "s"}, metadata={"from": one["configurable"]["checkpoint_id"]})
    for number in range(40):
        found = await saver.list(config("t"))
        parent = found[-1].config
        where = await put(saver, parent, {"n": number}, versions={"n": f"x{number}"})
        assert (await saver.get_tuple(where)).parent_config == parent
        assert await saver.get_tuple(parent) is not None


async def test_values_used_by_kept_checkpoints_are_kept(target: Target) -> None:
    """All checkpoints use the oldest version of one channel. That of another channel is removed."""
    saver = target.uniform(history=kept(2))
    first = await put(saver, config("t"), {"a": ["x" * 100] * 100, "b": "b"}, versions={"a": "1", "b": "1"})
    where = first
    for number in range(2, 60):
        values, versions = {"a": ["x" * 100] * 100, "n": number}, {"a": "1", "n": str(number)}
        where = await saver.put(where, checkpoint(values, versions), {}, {"n": str(number)})
        assert (await saver.get_tuple(where)).checkpoint["channel_values"] == values
    fields = fields_of(target)
    assert names.blob("", names.entry("a", "1")) in fields
    assert names.blob("", names.entry("b", "1")) not in fields
    assert (await saver.check("t")).findings == ()


async def test_savers_with_different_compression_leave_no_unused_chunk(target: Target) -> None:
    savers = [target.uniform(history=kept(2), compression=compression) for compression in (None, "zstd")]
    where: Any = config("t")
    for number in range(160):
        versions = {"said": f"{number:032}.{number:020}"}
        where = await put(savers[number % 2], where, {"said": MESSAGES[number : number + 60]}, versions=versions)
    raw.check_chunks(target, "t")
    await savers[0].prune(["t"])
    raw.check_chunks(target, "t", swept=True)
    raw.check_counters(fields_of(target))


async def test_late_writes_to_a_removed_checkpoint_go_with_the_next_trim(target: Target) -> None:
    """Only a UUID of the last hour may belong to a checkpoint that is still to come."""
    saver = target.uniform(history=kept(2))
    first = await put(saver, config("t"), {"n": 0}, checkpoint_id="0")
    where = await chain_on(saver, first, 40)
    assert await saver.get_tuple(first) is None
    await saver.put_writes(first, [("n", 1)], "late")
    await chain_on(saver, where, 40, 2000)
    assert not [member for member in members_of(target) if member[:1] == b"w"]
    assert (await saver.check("t")).findings == ()


async def chain_on(saver: Uniform, where: Any, length: int, first: int = 1000, **metadata: Any) -> Any:
    for number in range(first, first + length):
        where = await put(saver, where, {"n": number}, versions={"n": f"{number:032}.y"}, metadata=metadata)
    return where


# -- settings


async def test_a_thread_keeps_its_own_limit(target: Target) -> None:
    saver, other = target.uniform(history=kept(5)), target.uniform()
    where = await put(saver, config("t", thread_history={"keep_last": 2}), {"n": 1})
    assert "thread_history" not in (await saver.get_tuple(where)).metadata
    where = await chain_on(other, where, 40)
    assert 2 <= (await saver.get_thread("t")).checkpoints <= 2 + SLACK, "the thread's own limit holds for each saver"
    where = await put(other, {"configurable": {**where["configurable"], "thread_history": "all"}}, {"n": 2})
    assert "thread_history" not in (await saver.get_tuple(where)).metadata
    await chain_on(saver, where, 60, 2000)
    assert (await saver.get_thread("t")).checkpoints > 60, "the thread keeps all, although the saver has a limit"
    assert fields_of(target)[b"@history"] == b"all"
    await saver.copy_thread("t", "copy")
    assert b"@history" not in fields_of(target, "copy")


WRONG: list[tuple[Any, str]] = [
    *((given, "write 'all' or") for given in ("none", 10, {"keep": 10}, {}, {"keep_last": 1, "more": 2})),
    *(({"keep_last": number}, "an int") for number in (True, "10")),
    ({"keep_last": 0}, "keep_last=0: write an int of at least 1"),
    ({"keep_last": 1001}, "keep_last=1001: write an int of at most 1000"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
@pytest.mark.by_turns
async def test_wrong_limits_are_refused_before_anything_is_written(target: Target, given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^history=.*{said}"):
        target.uniform(history=given)
    saver = target.uniform()
    wrong = config("t", "", "1", thread_history=given)
    with pytest.raises(ValueError, match=rf"^configurable\['thread_history'\]=.*{said}"):
        await put(saver, wrong, {"n": 1})
    with pytest.raises(ValueError, match="thread_history"):
        await saver.put_writes(wrong, [("n", 1)], "task")
    assert target.keys() == []


async def test_an_unreadable_stored_limit_is_ignored(target: Target) -> None:
    saver = target.uniform()
    await put(saver, config("t", thread_history={"keep_last": 2}), {"n": 1})
    for garbage in ("", "0", "-1", "nan", "99999", "1e2", "\0"):
        target.raw.hset(names.Keyspace(target.prefix).keys("t").data_key, "@history", garbage)
        await chain(saver, "t", 5)
    assert (await saver.get_thread("t")).checkpoints == 36


# -- subgraphs


async def turn(saver: Uniform, where: Any, number: int, calls: int = 2) -> Any:
    """Put a root checkpoint, subgraph calls with a nested call each, and one of a subgraph with memory."""
    where = await put(saver, where, {"n": number}, versions={"n": f"{number:032}.x"})
    root = {"parents": {"": where["configurable"]["checkpoint_id"]}}
    for call in range(calls):
        ns = f"sub:{number}-{call}"
        await chain(saver, "t", 2, ns=ns, **root)
        sub = await chain(saver, "t", 2, ns=f"{ns}|inner:{number}", **root)
        await saver.put_writes(sub[-1], [("n", 1)], "task")
    await chain(saver, "t", 1, ns="memory", **root)
    return where


async def test_subgraph_calls_are_removed_with_their_root_checkpoint(target: Target) -> None:
    saver, where = target.uniform(history=kept(2)), config("t")
    for number in range(2 + SLACK + 6):
        where = await turn(saver, where, number)
    found = await spaces_of(saver)
    roots = {one.checkpoint["channel_values"]["n"] for one in await saver.list(config("t", ""))}
    assert len(roots) <= 2 + SLACK
    assert found["memory"] <= 2 + SLACK
    assert len(roots) < 2 + SLACK + 6
    calls = {(f"sub:{number}-{call}", number) for number in roots for call in range(2)}
    assert {*found} - {"", "memory"} == {ns for sub, number in calls for ns in (sub, f"{sub}|inner:{number}")}
    await check_sound(saver, target)
    await saver.prune(["t"], keep_last=1)
    assert len(await spaces_of(saver)) == 6


async def test_a_copy_is_trimmed_too(target: Target) -> None:
    saver, where = target.uniform(history=kept(2)), config("t")
    for number in range(10):
        where = await turn(saver, where, number, 1)
    await saver.copy_thread("t", "copy")
    assert (await saver.check("copy")).findings == ()
    where["configurable"]["thread_id"] = "copy"
    await chain_on(saver, where, 40)
    assert {*await spaces_of(saver, "copy")} == {"", "memory"}


# -- random chats, compared with a thread without a limit


class Talk:
    """Apply the same operations to two threads: one with a limit, written by two processes, and one without."""

    def __init__(self, target: Target, seed: int, **options: Any) -> None:
        self.random, self.target = random.Random(seed), target
        self.keep = self.random.choice([1, 2, 3, 8])
        self.savers = [target.uniform(history=kept(self.keep), **options) for _ in range(2)]
        self.twin = target.uniform(**options)
        self.state: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
        """Values and versions by namespace and id."""
        self.written = set[tuple[str, str | None, str]]()
        """Checkpoints with a write to a channel. As in a graph, their children have another version of it."""
        self.said, self.number, self.run = list[str](), 0, 0
        self.again: Any = None

    async def both(self, method: str, ns: str, parent: str | None, *args: Any) -> None:
        saver = self.random.choice(self.savers)
        for uniform, thread in ((saver, "kept"), (self.twin, "full")):
            await getattr(uniform, method)(config(thread, ns, parent), *args)

    async def present(self, ns: str) -> list[str]:
        """Return the ids, newest first. Sometimes a saver lists them, as it remembers what it reads."""
        if self.random.random() < 0.1:
            return ids(await self.savers[0].list(config("kept", ns)))
        begin = b"c%b\0" % ns.encode()
        return [one[len(begin) : -1].decode() for one in members_of(self.target, "kept")[::-1] if one.startswith(begin)]

    def versions(self, *channels: str) -> dict[str, str]:
        self.number += 1
        version = f"{self.number:032}.{self.random.getrandbits(50):020}"
        return dict.fromkeys(channels, version)

    async def put(self, ns: str, **metadata: Any) -> str:
        present = await self.present(ns)
        parent = (present[0] if self.random.random() < 0.85 else self.random.choice(present)) if present else None
        values, versions = self.state.get((ns, parent or ""), ({}, {}))
        values, versions = dict(values), dict(versions)
        changed = [channel for channel in ("messages", "files", "n") if self.random.random() < 0.5]
        changed += [channel for channel in ("log", "branch") if (ns, parent, channel) in self.written]
        is_emptied = "branch" in values and "branch" not in changed and self.random.random() < 0.7
        changed += ["branch"] if is_emptied else []
        new = self.versions(*changed)
        for channel in changed:
            values.pop(channel, None)
            if channel == "messages":
                self.said.append(f"{self.number} " * self.random.randrange(1, 60))
                first = -self.random.randrange(1, 40) if self.random.random() < 0.1 else 0
                values[channel] = self.said[first:]
            elif channel == "files":
                values[channel] = {f"file {number}": "y" * 300 for number in range(self.number % 20)}
            elif channel == "n":
                values[channel] = self.number
            elif channel == "branch" and not is_emptied:
                values[channel] = None
            elif channel == "log" and self.random.random() < 0.15:
                values[channel] = _DeltaSnapshot([f"until {self.number}"])
        which = str(uuid6(clock_seq=-1))
        made = checkpoint(values, {**versions, **new}, which)
        if self.random.random() < 0.2:
            self.run += 1
        about = {"source": "loop", "step": self.number, "run_id": f"run {self.run}", **metadata}
        self.again = ("put", ns, parent, made, about, new)
        await self.both(*self.again)
        self.state[ns, which] = values, {**versions, **new}
        if self.random.random() < 0.7:
            channel = self.random.choice(["log", "log", "branch", "n", INTERRUPT])
            self.written.add((ns, which, channel))
            await self.both("put_writes", ns, which, [(channel, [self.number])], f"task {self.number}", "path")
        return which

    async def step(self) -> None:
        what = self.random.random()
        if what < 0.6:
            await self.put("")
        elif what < 0.75:
            await self.put("memory")
        elif what < 0.85 and (present := await self.present("")):
            ns = f"sub:{self.number}"
            for _ in range(self.random.randrange(1, 4)):
                await self.put(ns, parents={"": present[0]})
        elif what < 0.9 and (present := await self.present("")):
            where = self.random.choice(present)
            await self.both("put_writes", "", where, [("n", self.number)], f"late {self.number}", "path")
        elif what < 0.95 and self.again:
            await self.both(*self.again)
        else:
            other = self.random.choice(["", "memory"])
            await self.savers[1].get_tuple(config("kept", other))

    async def compare(self) -> None:
        """Check that kept checkpoints read as in the twin, and that the newest are kept."""
        full = {place(one): one for one in await self.twin.list(config("full", None))}
        for which, saver in enumerate(self.savers):
            found = await saver.list(config("kept", None))
            there = {place(one) for one in found}
            for number, one in enumerate(found):
                theirs = full[place(one)]
                assert (one.checkpoint, one.metadata, one.pending_writes) == (
                    theirs.checkpoint, theirs.metadata, theirs.pending_writes,
                )  # fmt: skip
                parent = theirs.parent_config and (place(one)[0], theirs.parent_config["configurable"]["checkpoint_id"])
                assert (one.parent_config is None) == (parent not in there)
                if one.parent_config is not None:
                    assert (place(one)[0], one.parent_config["configurable"]["checkpoint_id"]) == parent
                values, versions = one.checkpoint["channel_values"], one.checkpoint["channel_versions"]
                if "log" in versions and "log" not in values and number % 2 == which:
                    mine, whole = [
                        dict(await uniform.get_delta_channel_history(config=each.config, channels=["log"]))
                        for uniform, each in ((saver, one), (self.twin, theirs))
                    ]
                    assert mine == whole, place(one)
        for ns in {ns for ns, _ in full} - {ns for ns, _ in full if ":" in ns}:
            newest = sorted((which for of, which in full if of == ns), reverse=True)[: self.keep]
            assert {(ns, which) for which in newest} <= there
        report = await self.twin.check("kept")
        assert report.findings == ()
        raw.check_counters(fields_of(self.target, "kept"))
        raw.check_chunks(self.target, "kept")

    async def end(self) -> None:
        """Check that `prune` leaves the same of both."""
        await self.savers[0].prune(["kept"], keep_last=self.keep)
        await self.twin.prune(["full"], keep_last=self.keep)
        held = [
            {field: value for field, value in fields_of(self.target, thread).items() if field[:1] != b"@"}
            for thread in ("kept", "full")
        ]
        if self.target.is_encrypted:  # each thread has its own data key, which also names its chunks
            kept, full = ({field for field in fields if field[:1] in (b"c", b"b", b"w")} for fields in held)
            assert kept == full
        elif isinstance(self.twin.saver.serde, EncryptedSerializer):  # ciphertexts of equal values differ
            assert held[0].keys() == held[1].keys()
        else:
            assert held[0] == held[1]
        assert members_of(self.target, "kept") == members_of(self.target, "full")
        assert (await self.twin.check("kept")).findings == ()


def place(one: Any) -> tuple[str, str]:
    where = one.config["configurable"]
    return where["checkpoint_ns"], where["checkpoint_id"]


async def talked(target: Target, seed: int, steps: int, **options: Any) -> None:
    talk = Talk(target, seed, **options)
    await talk.put("")
    for step in range(steps):
        await talk.step()
        if step % 23 == 0:
            await talk.compare()
    await talk.compare()
    await talk.end()


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {}, "zstd": {"compression": "zstd"}, "no cache": {"cache_bytes": 0},
    "encrypted": {"serde": EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)},
}  # fmt: skip
CHATS = [(name, "default", 120) for name in targets("redis", "redis62", "cluster")]
CHATS += [("redis", setting, 70) for setting in SETTINGS if setting != "default"]


@pytest.mark.random
@pytest.mark.by_turns
@pytest.mark.parametrize(("target_name", "setting", "steps"), CHATS)
@pytest.mark.parametrize("seed", seeds(range(1)))
async def test_random_chats_match_a_thread_without_a_limit(target: Target, seed: int, setting: str, steps: int) -> None:
    await talked(target, seed, steps, **SETTINGS[setting])


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("seed", seeds(range(100, 140)))
async def test_many_random_chats_match_a_thread_without_a_limit(target: Target, seed: int) -> None:
    await talked(target, seed, 1000)


# -- a DeltaChannel


def log_of(number: int) -> dict[str, str]:
    return {"log": f"{number:032}.{number:020}"}


async def log_on(saver: Uniform, where: Any, first: int, length: int, every: int) -> Any:
    """Put checkpoints with a write to `log` on each, and a snapshot in some."""
    for number in range(first, first + length):
        values = {"log": _DeltaSnapshot([f"until {number}"])} if number % every == 0 else {}
        made = checkpoint(values, log_of(number), f"{number:08}")
        where = await saver.put(where, made, {"step": number}, log_of(number))
        await saver.put_writes(where, [("log", [number])], f"task-{number}", "path")
    return where


def histories(found: Any) -> Any:
    return dict(found)["log"]


async def test_a_delta_channels_snapshot_and_writes_are_kept(target: Target) -> None:
    saver, where = target.uniform(history=kept(2)), config("t")
    for turn_number in range(12):
        where = await log_on(saver, where, 1 + 10 * turn_number, 10, 50)
        last = 10 * (turn_number + 1)
        seed = last - last % 50 - (50 if last % 50 == 0 else 0)
        found = histories(await target.uniform().get_delta_channel_history(config=where, channels=["log"]))
        assert [write[2] for write in found["writes"]] == [[number] for number in range(seed or 1, last)]
        assert found.get("seed") == (_DeltaSnapshot([f"until {seed}"]) if seed else None)
        assert (await saver.get_thread("t")).checkpoints <= 2 + 50 + 2 * SLACK
    assert (await saver.check("t")).findings == ()


def trims(saver: Uniform) -> int:
    found = saver.saver.stats().operations.get("trim")
    return found.calls if found else 0


async def test_a_delta_channel_without_snapshots_is_kept_and_seldom_checked(target: Target) -> None:
    saver, where = target.uniform(history=kept(2)), config("t")
    looked = []
    for number in range(1, 241):
        where = await log_on(saver, where, number, 1, 1000)
        looked += [number] * (trims(saver) - len(looked))
    assert (await saver.get_thread("t")).checkpoints == 240
    # The last prune comes when the excess has grown by a quarter.
    assert looked == [2 + SLACK + 1 + SLACK * n for n in range(5)] + [203]
    assert fields_of(target)[b"@over_at\0"] == b"203"


async def test_a_trim_that_left_much_is_not_repeated_soon(target: Target) -> None:
    """A snapshot frees most of the history, but the writes since the last one are still over the limit."""
    saver, where = target.uniform(history=kept(1)), config("t")
    where = await log_on(saver, where, 1, 100, 50)
    left = (await saver.get_thread("t")).checkpoints
    where = await log_on(saver, where, 101, 49, 50)
    before = trims(saver)
    where = await log_on(saver, where, 150, 40, 50)
    assert left < 100
    assert trims(saver) - before <= 2
    assert (await saver.get_thread("t")).checkpoints <= 50 + 2 * SLACK


async def test_a_history_left_by_a_failed_trim_is_whole(target: Target) -> None:
    where = await log_on(target.uniform(), config("t"), 1, 300, 7)
    saver = target.uniform(history=kept(2))
    before = {
        one.checkpoint["id"]: (one.checkpoint, histories(await saver.get_delta_channel_history(config=one.config, channels=["log"])))
        for one in await saver.list(config("t"))
        if "log" not in one.checkpoint["channel_values"]
    }  # fmt: skip

    def kill_before(step: int) -> None:
        if step == 3:
            raise ConnectionError("killed")

    before_each(saver.saver, scripts.REMOVE, kill_before)
    await log_on(saver, where, 301, 1, 7)
    found = [one for one in await saver.list(config("t")) if one.checkpoint["id"] in before]
    assert 50 < len(found) < len(before) - 50
    for one in found[::3]:
        history = await saver.get_delta_channel_history(config=one.config, channels=["log"])
        assert (one.checkpoint, histories(history)) == before[one.checkpoint["id"]]


@pytest.mark.by_turns
@pytest.mark.parametrize("target_name", ["redis"])
async def test_known_histories_are_right_after_trims(target: Target) -> None:
    knows, writer = Process(target), target.uniform(history=kept(2))
    where, trimmed = await log_on(writer, config("t"), 1, 45, 20), 0
    for number in range(46, 260):
        await knows.history(where, "log")
        before = (await writer.get_thread("t")).checkpoints
        where = await log_on(writer, where, number, 1, 20)
        trimmed += (await writer.get_thread("t")).checkpoints < before
        found = histories(await knows.history(where, "log"))
        assert found == histories(await target.uniform().get_delta_channel_history(config=where, channels=["log"]))
    assert trimmed >= 4


# -- costs


def turn_of_chat(saver: Any, where: Any, number: int) -> Any:
    """Put two checkpoints of a chat with 100 messages, and the writes between them."""
    versions = {channel: f"{2 * number:032}.{number:020}" for channel in ("messages", "n", "branch")}
    values = {"messages": MESSAGES[number : number + 100], "n": number, "branch": None}
    where = saver.put(where, checkpoint(values, versions), {"step": number, "run_id": f"run {number}"}, versions)
    saver.put_writes(where, [("n", number), ("branch", None)], f"task {number}")
    versions = {**versions, "branch": f"{2 * number + 1:032}.{number:020}"}
    del values["branch"]
    return saver.put(where, checkpoint(values, versions), {"step": number}, {"branch": versions["branch"]})


MESSAGES = [{"type": "human", "id": f"{number:032}", "text": f"{number} words " * 30} for number in range(2100)]


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("flavour", ["sync"])
def test_a_trimmed_thread_keeps_its_size(target: Target) -> None:
    """After each trim that removes chunks, the thread has its usual size and no leftovers."""
    saver, where, sizes, swept = target.uniform(history=kept(10)).saver, config("t"), [], []
    keys = names.Keyspace(target.prefix).keys("t")
    for number in range(600):
        where = turn_of_chat(saver, where, number)
        if number >= 60:
            fields = target.raw.hgetall(keys.data_key)
            sizes.append((len(fields), target.raw.zcard(keys.index_key), sum(map(len, fields.values())),
                          sum(target.raw.memory_usage(key, samples=0) for key in keys)))  # fmt: skip
            if b"@gc_roots" not in fields and len(sizes) > 1 and sizes[-1][1] < sizes[-2][1]:
                swept.append(sizes[-1])
                assert saver.check("t").findings == ()
                saver.copy_thread("t", "copy")
                copied = fields_of(target, "copy")
                assert {field for field in fields.keys() ^ copied.keys() if field[:1] != b"@"} == set()
    assert len(swept) >= 6
    for what, of_each in zip(("members", "bytes", "memory"), list(zip(*swept, strict=True))[1:], strict=True):
        assert max(of_each) <= (1.05 if what == "members" else 1.15) * min(of_each), what
    for what, of_each in zip(("fields", "members", "bytes", "memory"), zip(*sizes, strict=True), strict=True):
        first, last = of_each[:270], of_each[270:]
        # Chunks are removed by some trims only.
        assert max(last) <= (1.05 if what == "members" else 1.5) * max(first), what
        # There are 10 checkpoints, up to 42 with old chunks.
        assert max(last) <= (6 if what == "fields" else 4) * min(first), what


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("flavour", ["sync"])
def test_a_limit_adds_few_commands_per_put(target: Target) -> None:
    """A put takes one round trip, and two counts more than without a limit. Only some puts trim."""
    counts: dict[str, list[int]] = {"all": [], "limited": []}
    calls: dict[str, list[int]] = {"all": [], "limited": []}
    for what, history in (("all", "all"), ("limited", kept(10))):
        saver, where = target.uniform(history=history).saver, config(what)
        for number in range(180):
            target.raw.config_resetstat()
            where = turn_of_chat(saver, where, number)
            stats = {name[8:]: entry["calls"] for name, entry in target.raw.info("commandstats").items()}
            calls[what].append(stats.pop("evalsha"))
            others = ("info", "config", "hello", "client", "script", "eval")
            counts[what].append(sum(calls for name, calls in stats.items() if not name.startswith(others)))
    plain, limited = counts["all"][60:], counts["limited"][60:]
    assert max(plain) <= 20
    without_trim = [count for count, number in zip(limited, calls["limited"][60:], strict=True) if number == 3]
    assert max(without_trim) <= max(plain) + 4, "a put without a prune counts checkpoints twice at most"
    assert sum(limited) <= 3.2 * sum(plain), "a put after a trim checks its chunks, because the trim drops the tag"
    assert max(limited) <= 1200, "the largest trim also removes chunks"
    sweeps = 3 if target.is_encrypted else 2  # the number of chunks depends on their names, which are keyed then
    assert sorted(limited)[-sweeps - 1] <= 220, "any other trim removes 33 checkpoints"
    assert set(calls["all"][60:]) == {3}
    trims = [count - 3 for count in calls["limited"][60:] if count > 3]
    assert len(trims) == 7, "a trim comes after 33 puts, or 17 turns"
    assert max(trims) <= 6, "a trim calls list_references, history, chunk_lists and remove, some repeatedly"
    assert sum(trims) <= 4 * len(trims)


# -- failures


async def test_a_put_sent_twice_changes_nothing(target: Target) -> None:
    saver = target.uniform(history=kept(2))
    where = config("t")
    for number in range(2 * SLACK - 20):
        values, versions = {"said": MESSAGES[: 40 + number], "n": number}, {"said": f"s{number}", "n": f"n{number}"}
        made = checkpoint(values, versions)
        for _ in range(2):
            answer = await saver.put(where, made, {}, versions)
        where = answer
        assert (await target.uniform().get_tuple(where)).checkpoint == made
    await check_sound(saver, target)


async def test_a_process_with_outdated_memory_puts_a_whole_checkpoint(target: Target) -> None:
    """It sends what it takes to be missing, and the server reports the rest."""
    stale, other = target.uniform(history=kept(1)), target.uniform(history=kept(1))
    files, versions = {str(one): MESSAGES[one] for one in range(60)}, {"said": "1", "files": "1"}
    values: Any = {"said": MESSAGES[:200], "files": files}
    where = await stale.put(config("t"), checkpoint(values, versions), {}, versions)
    for number in range(2, 120):
        new = {"said": str(number), "files": str(number)}
        where = await other.put(where, checkpoint({"said": [number] * 900, "files": {}}, new), {}, new)
    assert not [field for field in fields_of(target) if field == names.blob("", names.entry("said", "1"))]
    values = {"said": MESSAGES[:201], "files": files}
    where = await stale.put(where, checkpoint(values, {"said": "x", "files": "1"}), {}, {"said": "x"})
    assert (await other.get_tuple(where)).checkpoint["channel_values"] == values
    assert (await other.check("t")).findings == ()


async def test_an_unreadable_checkpoint_stops_the_trim_but_not_the_put(
    target: Target, caplog: Any, monkeypatch: Any
) -> None:
    """The log, the stats and `check` report it."""
    monkeypatch.setattr("redis_saver._common.logs.SECONDS", 0.0)
    saver = target.uniform(history=kept(2))
    configs = await chain(saver, "t", 15)
    data = names.Keyspace(target.prefix).keys("t").data_key
    damaged = names.checkpoint("", configs[3]["configurable"]["checkpoint_id"])
    sound = target.raw.hget(data, damaged)
    target.raw.hset(data, damaged, b"garbage")
    where = await chain_on(saver, configs[-1], SLACK)
    assert (await saver.get_tuple(where)).checkpoint["channel_values"] == {"n": 1000 + SLACK - 1}
    assert (await saver.get_thread("t")).checkpoints == 15 + SLACK
    assert [finding for finding in (await saver.check("t")).findings if "cannot be read" in finding.what]
    stats = saver.saver.stats().operations["trim"]
    assert (stats.calls, stats.errors) == (1, 1), "a failed trim is not repeated by each put"
    (line,) = [record.getMessage() for record in caplog.records if "history limit" in record.getMessage()]
    assert "thread 't'" in line and "DAMAGED" not in line and "ThreadDamaged" in line
    target.raw.hset(data, damaged, sound)
    await chain_on(saver, where, SLACK, 2000)
    assert (await saver.get_thread("t")).checkpoints < 2 + SLACK, "a later put tries again"


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_disturbed_trim_is_tried_again_with_the_next_put(target: Target) -> None:
    saver, other = target.uniform(history=kept(2)), target.blocking()
    where = await chain_on(saver, config("t"), SLACK + 2)
    disturbed = list[int]()

    def disturb(removal: int) -> None:
        if removal <= 5:
            disturbed.append(removal)
            versions = {"n": str(removal)}
            other.put(config("t", "other"), checkpoint({"n": 1}, versions), {}, versions)

    before_each(saver.saver, scripts.REMOVE, disturb)
    where = await chain_on(saver, where, 1, 2000)
    assert len(disturbed) == 5
    assert len(await saver.list(config("t", ""))) == SLACK + 3
    where = await chain_on(saver, where, 1, 3000)
    assert len(await saver.list(config("t", ""))) == 2
    assert (await saver.check("t")).findings == ()


async def test_a_limit_does_not_change_the_ttl(target: Target) -> None:
    saver = target.uniform(history=kept(2), ttl=timedelta(hours=1))
    await chain(saver, "t", 60)
    for key in target.keys():
        assert 3_590_000 < target.raw.pttl(key) <= 3_600_000
    await saver.delete_thread("t")
    assert target.keys() == []


@pytest.mark.parametrize("flavour", ["async"])
async def test_many_writers_of_one_thread_respect_the_limit(target: Target) -> None:
    """Each continues from the newest checkpoint that it finds."""

    async def write(number: int) -> None:
        saver = target.uniform(history=kept(3))
        for step in range(30):
            found = await saver.get_tuple(config("t"))
            said = found.checkpoint["channel_values"].get("said", []) if found else []
            values = {"said": [*said[-80:], f"{number} {step} " * 30], "n": step}
            version = f"{number:016}{step:016}.{random.getrandbits(60):020}"
            made = checkpoint(values, dict.fromkeys(values, version))
            where = await saver.put(found.config if found else config("t"), made, {}, dict.fromkeys(values, version))
            await saver.put_writes(where, [("n", step)], f"task {number} {step}")

    await asyncio.gather(*(write(number) for number in range(6)))
    assert (await target.uniform().get_thread("t")).checkpoints <= 3 + 3 * SLACK
    saver = target.uniform(history=kept(3))
    await saver.put((await saver.get_tuple(config("t"))).config, checkpoint({}, {}), {}, {})
    assert (await saver.get_thread("t")).checkpoints <= 3 + SLACK, "a put without rivals trims"
    await check_sound(saver, target)


# -- graphs


class Asked(TypedDict):
    said: Annotated[list[str], operator.add]


def asking() -> Any:
    """Make a graph in which each turn a subgraph with memory counts, and another asks a person."""

    def count(state: Asked) -> Any:
        return {"said": [f"{len(state['said'])} counted"]}

    def ask(state: Asked) -> Any:
        return {"said": [f"answered {interrupt('may I?')}"]}

    counter = StateGraph(Asked).add_node("count", count).add_edge(START, "count").compile(checkpointer=True)
    asker = StateGraph(Asked).add_node("ask", ask).add_edge(START, "ask").compile()

    def call_counter(state: Asked) -> Any:
        return {"said": counter.invoke({"said": [state["said"][-1]]})["said"][-1:]}

    def call_asker(state: Asked) -> Any:
        return {"said": asker.invoke({"said": []})["said"]}

    builder: Any = StateGraph(Asked)
    builder.add_node("counter", call_counter)
    builder.add_node("asker", call_asker)
    builder.add_edge(START, "counter")
    builder.add_edge("counter", "asker")
    return builder


@pytest.mark.parametrize("flavour", ["sync"])
def test_an_interrupted_subgraph_is_resumed(target: Target) -> None:
    """Two processes take turns. The results are those of `InMemorySaver`, which keeps all."""
    ours = [asking().compile(checkpointer=target.uniform(history=kept(1)).saver) for _ in range(2)]
    theirs, where = asking().compile(checkpointer=InMemorySaver()), config("t", None)
    for number in range(14):
        for given in ({"said": [f"turn {number}"]}, Command(resume=number)):
            found = ours[number % 2 if isinstance(given, dict) else (number // 3) % 2].invoke(given, where)
            assert found["said"] == theirs.invoke(given, where)["said"]
            mine, whole = ours[0].get_state(where, subgraphs=True), theirs.get_state(where, subgraphs=True)
            assert (mine.values, mine.next, len(mine.tasks)) == (whole.values, whole.next, len(whole.tasks))
            assert [one.interrupts[0].value for one in mine.tasks] == [one.interrupts[0].value for one in whole.tasks]
    saver = target.uniform().saver
    spaces = Counter(one.config["configurable"]["checkpoint_ns"] for one in saver.list(where))
    assert spaces[""] <= 1 + SLACK
    assert spaces["counter"] <= 1 + SLACK
    assert len(spaces) <= 2 + spaces[""]
    assert len(list(theirs.checkpointer.list(where))) > 100
    assert saver.check("t").findings == ()


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.by_turns
async def test_a_delta_chat_with_a_limit_matches_inmemorysaver(target: Target) -> None:
    """It has interrupts, a fork from a kept checkpoint, and two processes."""
    uniforms = [target.uniform(history=kept(1)) for _ in range(2)]
    ours = [Graph(one.saver, asks=True, native_async=one.native_async) for one in uniforms]
    theirs = Graph(InMemorySaver(), asks=True)
    sizes = []
    for number in range(26):
        turn_of = {"messages": [HumanMessage(f"turn {number}", id=f"turn-{number}")]}
        for which, given in ((number % 2, turn_of), (number // 2 % 2, Command(resume=f"yes {number}"))):
            found = await ours[which].call("invoke", given, config())
            expected = await theirs.call("invoke", given, config())
            assert {**found, "__interrupt__": 0} == {**expected, "__interrupt__": 0}
        if number not in (8, 18, 25):
            continue  # rebuilding all states takes longer than the chat
        mine, whole = await ours[0].states(), await theirs.states()
        assert (mine[0].values, mine[0].next) == (whole[0].values, whole[0].next)
        left = iter([(one.values, one.next) for one in whole])
        assert all((one.values, one.next) in left for one in mine), "in the same order"
        if number == 18:
            for graph, states in ((ours[1], mine), (theirs, whole)):
                await graph.call("invoke", {"messages": [HumanMessage("fork", id="fork")]}, states[3].config)
                await graph.call("invoke", Command(resume="forked"), config())
        sizes.append(len(mine))
    done = await uniforms[0].prune(["thread"], keep_last=1)
    # If snapshots never coincide, prune keeps nearly everything, too.
    assert done.checkpoints <= max(2 * SLACK, sizes[-1] // 4)
    assert (await uniforms[0].check("thread")).findings == ()
