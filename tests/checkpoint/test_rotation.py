"""Rotation of keys: of those that wrap data keys, and of data keys, while others use the threads."""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
import redis
from langgraph.checkpoint.base import INTERRUPT
from langgraph.checkpoint.postgres import PostgresSaver
from tests.support.cases import case
from tests.support.factories import checkpoint, config
from tests.support.hostile import furnish
from tests.support.raw import check_sound, stored_chunks
from tests.support.servers import Server
from tests.support.sharing import fields_of, key_of, texts
from tests.support.uniform import Target, Uniform, shared
from tests.support.wrappers import Around, Meanwhile, script_of

from redis_saver import RedisCache, RedisSaver, RedisStore, TieredSaver
from redis_saver._checkpoint import scripts
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.sealing import ID
from redis_saver.encryption import Encryption, Keyset, KeyStatus, Rotated
from redis_saver.errors import KeyUnavailable, NotOwner

NAMES = ("old", "new", "acme/1", "acme/2")
SECRETS = {name: os.urandom(32) for name in NAMES}


def keys(*names: str, **options: Any) -> Encryption:
    return Encryption(Keyset({name: SECRETS[name] for name in names}), **options)


def by_tenant(thread: str, _config: Any) -> str | None:
    return "acme" if thread.startswith("acme") else None


def blocking(target: Target, encryption: Encryption | None, **settings: Any) -> RedisSaver:
    return RedisSaver(shared(target.url), prefix=target.prefix, encryption=encryption, **settings)


def filled(target: Target, thread: str = "thread", encryption: Encryption | None = None, **settings: Any) -> None:
    """Make a thread of all kinds of data, with a history limit of its own."""
    saver = blocking(target, encryption, **settings)
    furnish(saver, thread)
    last = saver.get_tuple(config(thread))
    assert last is not None
    place: Any = config(thread, "", last.checkpoint["id"])
    place["configurable"]["thread_history"] = {"keep_last": 50}
    made = checkpoint({"texts": texts(200)}, {"texts": "9"}, "c000009")
    saver.put(place, made, {"source": "loop", "step": 9, "run_id": "run 9"}, {"texts": "9"})


async def contents(uniform: Uniform, thread: str = "thread") -> list[str]:
    return [repr(saved) for saved in await uniform.list(config(thread))]


def another(target: Target, *names: str) -> Uniform:
    """Another process's saver, with these keys."""
    return target.uniform(encryption=keys(*names))


async def test_status_counts_threads_by_key(target: Target) -> None:
    for thread, encryption in {
        "a": keys("old"), "b": keys("old"), "c": keys("new"), "acme": keys("new", "acme/2", key_for=by_tenant), "p": None,
    }.items():  # fmt: skip
        filled(target, thread, encryption)
    target.raw.set(f"{target.prefix}:{{foreign}}:data", "of another program")
    status = await target.uniform().key_status()
    assert status == KeyStatus({"acme/2": 1, "new": 1, "old": 2}, 1, status.failed)
    assert list(status.failed) == ["foreign"]


async def test_a_key_is_wrapped_by_the_newest_of_its_name(target: Target) -> None:
    filled(target, "a", keys("old"))
    filled(target, "acme", keys("old", "acme/1", key_for=by_tenant))
    filled(target, "plain")
    before = {thread: fields_of(target, thread) for thread in ("a", "acme", "plain")}
    saver = another(target, "new", "old", "acme/2", "acme/1")  # like a command, it has no key_for
    assert await saver.rotate_keys() == Rotated(2, 0, 1, {})
    assert await saver.rotate_keys() == Rotated(0, 2, 1, {})
    assert (await saver.key_status()).threads == {"acme/2": 1, "new": 1}
    for thread, fields in before.items():
        after = fields_of(target, thread)
        assert after.pop(b"@key", b"")[:ID] == fields.pop(b"@key", b"")[:ID]
        assert after == fields
    assert len(await contents(another(target, "new"), "a")) == 4
    assert len(await contents(another(target, "acme/2"), "acme")) == 4
    with pytest.raises(KeyUnavailable, match=r"'acme'.*'acme/2'.*Add that key"):
        await another(target, "new", "acme/1").get_tuple(config("acme"))


async def test_a_tenant_s_key_follows_key_for_and_copies_keep_the_name(target: Target) -> None:
    filled(target, "a", keys("old", "acme/1", key_for=lambda *_: "acme"))
    plain_rule = target.uniform(encryption=keys("old", "acme/1"))
    await plain_rule.copy_thread("a", "b")
    assert (await plain_rule.key_status()).threads == {"acme/1": 2}
    saver = target.uniform(encryption=keys("new", "acme/1", key_for=lambda thread, _: "new" if thread == "a" else None))
    assert await saver.rotate_keys() == Rotated(1, 1, 0, {})
    assert (await saver.key_status()).threads == {"acme/1": 1, "new": 1}


async def test_errors_of_single_threads_are_reported_at_the_end(target: Target) -> None:
    for thread in ("a", "moved", "renamed", "z"):
        filled(target, thread, keys("old", "acme/1"))
    filled(target, "lost", keys("acme/1"))
    key, data = fields_of(target, "a")[b"@key"], f"{target.prefix}:{{%s}}:data"
    target.raw.hset(data % "moved", "@key", key)
    frames = unpack(fields_of(target, "renamed")[b"@key"][ID:])
    forged = fields_of(target, "renamed")[b"@key"][:ID] + pack([*frames[:2], b"acme", frames[3]])
    target.raw.hset(data % "renamed", "@key", forged)
    target.raw.delete(f"{target.prefix}:{{z}}:index")
    for options in ({}, {"data": True}):
        rotated = await another(target, "new", "old").rotate_keys(**options)
        assert (rotated.rotated, sorted(rotated.failed)) == (1, ["lost", "moved", "renamed", "z"])
        assert fields_of(target, "renamed")[b"@key"] == forged
    assert "'old' did not wrap this data key" in rotated.failed["moved"]
    assert "was wrapped by the key 'acme/1'" in rotated.failed["lost"]
    assert "or the stored key was changed" in rotated.failed["renamed"]
    with pytest.raises(ValueError, match="no encryption="):
        await target.uniform(encryption=None).rotate_keys()
    for options in ({"before": datetime.now(timezone.utc)}, {"data": True, "before": datetime.now()}):
        with pytest.raises(TypeError, match="datetime with a tzinfo, and only with data=True"):
            await another(target, "new").rotate_keys(**options)


@pytest.mark.parametrize("compression", [None, "zstd"])
async def test_new_data_keys_keep_everything_else(target: Target, compression: Any) -> None:
    filled(target, "thread", keys("old"), ttl="1h", compression=compression)
    saver = target.uniform(encryption=keys("new", "old"))
    await saver.set_thread_ttl("thread", timedelta(minutes=30))
    await saver.copy_thread("thread", "pinned")
    await saver.pin("pinned")
    fields, expected = fields_of(target), {name: await contents(saver, name) for name in ("thread", "pinned")}
    infos = {name: await saver.get_thread(name) for name in expected}
    began = datetime.now(timezone.utc).replace(microsecond=0)  # data keys know their time in milliseconds
    assert await saver.rotate_keys(data=True) == Rotated(2, 0, 0, {})
    assert await saver.rotate_keys(data=True, before=began) == Rotated(0, 2, 0, {})
    reader = another(target, "new")
    for name in expected:
        assert await contents(reader, name) == expected[name] == await contents(saver, name)
        info = await reader.get_thread(name)
        if not compression:
            check_sound(target, name)
            assert info._replace(ttl=None) == infos[name]._replace(ttl=None)
        assert (await reader.check(name)).findings == ()
        assert (info.ttl is None) == info.pinned == (name == "pinned")
        assert not info.ttl or timedelta(minutes=25) < info.ttl <= infos[name].ttl
    after = fields_of(target)
    assert all(after[name] == fields[name] for name in (b"@ttl", b"@history"))
    same = stored_chunks(fields) & stored_chunks(after)
    assert same and all(fields[name][-1:] == b"\0" for name in same), "only names of channels are stored openly"
    assert not {*fields.values()} & {*after.values()} - {after[name] for name in (*same, b"@ttl", b"@history")} - {b""}
    await reader.delete_for_runs(["run 9"])
    assert await contents(saver) == expected["thread"][1:]


AT_2, AT_9 = config("thread", "", "c000002"), config("thread", "", "c000009")
NEXT = checkpoint({"n": 1}, {"n": "10"}, "c000010")
WRITES: dict[str, Callable[[Uniform], Any]] = {
    "put": lambda uniform: uniform.put(AT_9, NEXT, {"source": "loop"}, {"n": "10"}),
    "put_writes": lambda uniform: uniform.put_writes(AT_9, [("n", 1)], "task 9"),
    "more writes": lambda uniform: uniform.put_writes(AT_2, [("n", 1), ("n", 2), ("n", 3), ("n", 4)], "task 2"),
    "interrupt of the same size": lambda uniform: uniform.put_writes(AT_2, [(INTERRUPT, "whY")], "task 2"),
    "prune": lambda uniform: uniform.prune(["thread"], keep_last=2),
    "delete": lambda uniform: uniform.delete_thread("thread"),
}


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.by_turns
async def test_what_others_write_meanwhile_is_not_lost(target: Target, write: str) -> None:
    filled(target, "thread", keys("old"))
    saver, writer, expected = another(target, "new", "old"), another(target, "old"), list[str]()
    unchanged = await contents(writer)

    def before(request: Any) -> Any:
        async def act() -> None:
            await WRITES[write](writer)
            expected.append(repr(await contents(writer)))

        return act if script_of(request) is scripts.PROMOTE and not expected else None

    Meanwhile(saver.saver, before)
    assert await saver.rotate_keys(data=True) == Rotated(write != "delete", 0, 0, {})
    reader = another(target, "new")
    assert [repr(await contents(reader))] == expected != [repr(unchanged)]
    if write != "delete":
        assert (await reader.check("thread")).findings == ()


@pytest.mark.parametrize(("target_name", "flavour"), [("redis", "sync")])
async def test_a_thread_that_always_changes_is_busy(target: Target) -> None:
    filled(target, "thread", keys("old"))
    saver, count, key = another(target, "new", "old"), itertools.count(), fields_of(target)[b"@key"]

    def before(request: Any) -> Any:
        async def act() -> None:
            writer = target.uniform(encryption=keys("old"))
            await writer.put_writes(AT_9, [("n", 1)], f"another task {next(count)}")

        return act if script_of(request) is scripts.PROMOTE else None

    Meanwhile(saver.saver, before)
    rotated = await saver.rotate_keys(data=True)
    assert "others wrote to thread 'thread' during each of 20 attempts" in rotated.failed["thread"]
    assert fields_of(target)[b"@key"] == key
    assert len((await another(target, "old").get_tuple(config("thread"))).pending_writes) == 20
    assert len(target.keys()) == 2


async def test_a_lost_reply_changes_nothing(target: Target) -> None:
    filled(target, "thread", keys("old"))
    saver = target.uniform(encryption=keys("new", "old"))
    expected = await contents(saver)

    def twice(request: Any) -> Any:
        if script_of(request) in (scripts.PROMOTE, scripts.STAGE, scripts.DATA_KEY):
            yield request
        return (yield request)

    Around(saver.saver, twice)
    assert await saver.rotate_keys() == Rotated(0, 1, 0, {})  # another process might have done it
    assert await saver.rotate_keys(data=True) == Rotated(1, 0, 0, {})
    assert (await saver.key_status()).threads == {"new": 1}
    assert await contents(another(target, "new")) == expected


async def test_the_owner_stays(target: Target) -> None:
    filled(target, "thread", keys("old"))
    saver = blocking(target, keys("old"), ownership="required")
    with saver.own("thread") as owned:
        mine: Any = {"configurable": {**owned["configurable"], "checkpoint_id": "c000009"}}
        assert await another(target, "new", "old").rotate_keys(data=True) == Rotated(1, 0, 0, {})
        with pytest.raises(KeyUnavailable, match="'new'"):
            saver.put_writes(mine, [("n", 1)], "t")
        later = blocking(target, keys("new"), ownership="required")
        later.put_writes(mine, [("n", 1)], "t")
        with pytest.raises(NotOwner):
            later.put_writes(AT_9, [("n", 1)], "other")


@pytest.mark.parametrize(("target_name", "flavour"), [("redis", "async")])
async def test_a_damaged_thread_is_not_replaced(target: Target) -> None:
    filled(target, "thread", keys("old"))
    fields = fields_of(target)
    data = key_of(target)
    chance = sorted(name for name in fields if name[:1] in (b"b", b"c", b"p", b"w") and len(fields[name]) > 40)
    for name in chance[:: max(len(chance) // 8, 1)]:
        for damaged in (fields[name][:-1], fields[name][:-1] + bytes([fields[name][-1] ^ 1]), None):
            target.raw.hset(data, name, damaged) if damaged else target.raw.hdel(data, name)
            with case(name, damaged):
                rotated = await another(target, "old").rotate_keys(data=True)
                assert list(rotated.failed) == ["thread"]
                expected = {**fields, name: damaged}
                assert fields_of(target) == {each: value for each, value in expected.items() if value}
            target.raw.hset(data, name, fields[name])
    assert len(await contents(another(target, "old"))) == 4


# -- under load

STEPS = 60

ROTATING = """
import sys, time, redis
from langgraph.checkpoint.postgres import PostgresSaver
from redis_saver import RedisCache, RedisSaver, RedisStore, TieredSaver
from redis_saver.encryption import Encryption, Keyset

class Slow(Keyset):
    def wrap(self, *arguments):
        time.sleep(0.01)
        return super().wrap(*arguments)

port, keys, what = sys.argv[1:]
client, encryption = redis.Redis(port=int(port)), Encryption(Slow.parse(keys, "keys"))
saver = RedisSaver(client, encryption=encryption)
print("begins", flush=True)
if "postgresql" in what:
    with PostgresSaver.from_conn_string(what) as cold:
        for part in (TieredSaver(saver, cold), RedisStore(client, encryption=encryption), RedisCache(client, encryption=encryption)):
            assert part.rotate_keys().failed == {}
else:
    rotated = saver.rotate_keys(data=what == "data")
    assert all("others wrote" in error for error in rotated.failed.values()), rotated.failed
"""


def rotating(server: Server, what: str, *names: str) -> list[str]:
    """Return a command that wraps data keys slowly.

    Args:
        server: The server.
        what: `keys`, or `data` to encrypt threads again, or the URL of cold to rotate everything.
        names: The keys, the primary key first.
    """
    text = ",".join(f"{name}={base64.b64encode(SECRETS[name]).decode()}" for name in names)
    return [sys.executable, "-c", ROTATING, str(server.port), text, what]


class Writer(threading.Thread):
    """Grows threads with its own saver, like another process."""

    def __init__(self, number: int, make: Callable[[], Any]) -> None:
        super().__init__()
        self.number, self.make, self.stopped = number, make, threading.Event()
        self.heights: dict[str, int] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            saver = self.make()
            for step in range(STEPS):
                for thread in (f"busy {self.number}", f"short {self.number} {step // 10}"):
                    self.grow(saver, thread)
                if self.stopped.wait(0.05):
                    return
        except BaseException as error:
            self.error = error

    def grow(self, saver: Any, thread: str) -> None:
        height = self.heights.get(thread, 0) + 1
        self.put(saver, thread, height)
        self.heights[thread] = height

    def put(self, saver: Any, thread: str, height: int) -> None:
        parent = config(thread, "", f"{height - 1:06}" if height > 1 else None)
        made = checkpoint({"texts": lines(thread, height)}, {"texts": f"{height}"}, f"{height:06}")
        place = saver.put(parent, made, {"source": "loop", "step": height}, {"texts": f"{height}"})
        saver.put_writes(place, [("texts", [thread, height]), (INTERRUPT, height)], "task")
        read = saver.get_tuple(config(thread))
        assert read is not None
        assert read.checkpoint["channel_values"]["texts"] == lines(thread, height)


def lines(thread: str, height: int) -> list[str]:
    return [f"{thread} {number} " + "x" * 60 for number in range(30 + height)]


@pytest.mark.parametrize("kind", ["keys", "data"])
def test_rotation_under_load_survives_a_kill(kind: str) -> None:
    server = Server()
    old = RedisSaver(server.client(), encryption=keys("old"))
    idle = {f"idle {number}": number % 3 + 1 for number in range(60 if kind == "keys" else 20)}
    filler = Writer(0, lambda: old)
    for thread, height in idle.items():
        for _ in range(height):
            filler.grow(old, thread)
    writers = [Writer(number, lambda: RedisSaver(server.client(), encryption=keys("new", "old"))) for number in (1, 2)]
    for writer in writers:
        filler.grow(old, f"busy {writer.number}")
        writer.heights[f"busy {writer.number}"] = 1
        writer.start()
    saver = RedisSaver(server.client(), encryption=keys("new", "old"))
    command = rotating(server, kind, "new", "old")
    try:
        program = subprocess.Popen(command)
        try:
            while old.key_status().threads.get("old", 0) > len(idle) * 3 // 4:
                assert program.poll() is None
                time.sleep(0.01)
        finally:
            program.kill()
            program.wait()
        assert saver.key_status().threads["old"] > 0, "it was killed in the middle"
        assert subprocess.run(command, check=False, timeout=100).returncode == 0
    finally:
        for writer in writers:
            writer.stopped.set()
        for writer in writers:
            writer.join()
    assert [writer.error for writer in writers] == [None, None]
    if "old" in saver.key_status().threads:  # threads that always changed
        assert saver.rotate_keys(data=kind == "data").failed == {}
    status = saver.key_status()
    assert (set(status.threads), status.plain, status.failed) == ({"new"}, 0, {})
    reader = RedisSaver(server.client(), encryption=keys("new"))
    heights = {**idle, **writers[0].heights, **writers[1].heights}
    assert status.threads["new"] == len(heights)
    for thread, height in heights.items():
        saved = list(reader.list(config(thread)))
        assert [one.checkpoint["id"] for one in saved] == [f"{number:06}" for number in range(height, 0, -1)]
        for number, one in zip(range(height, 0, -1), saved, strict=True):
            assert one.checkpoint["channel_values"]["texts"] == lines(thread, number)
            assert one.pending_writes == [("task", INTERRUPT, number), ("task", "texts", [thread, number])]
    staged = [key for key in server.client().keys() if key.count(b".")]
    assert all(server.client().ttl(key) > 0 for key in staged), "what the killed one left expires"
    server.stop()


def grown_under_kills(
    server: Server, kills: int, what: str, writer: type[Writer], make: Callable[..., Any]
) -> dict[str, int]:
    """Kill the server and the command again and again, while it rotates to and fro and clients write.

    Args:
        server: The server (AOF always).
        kills: Number of kills.
        what: What the command rotates.
        writer: The kind of clients.
        make: Makes a client's savers with the keys of these names.

    Returns:
        The acknowledged heights of all threads.
    """
    filler = writer(0, make)
    old, heights = make("old"), filler.heights
    for number in range(60):
        filler.grow(old, f"idle {number}")
    for kill in range(kills):
        names = ("new", "old") if kill % 2 == 0 else ("old", "new")
        program = subprocess.Popen(rotating(server, what, *names), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        writers = [writer(2 * kill + number, lambda: make("new", "old")) for number in (1, 2)]
        for each in writers:
            each.start()
        assert program.stdout is not None and program.stdout.readline() == b"begins\n"
        time.sleep(0.1 + 0.4 * random.random())
        server.kill()
        program.kill()
        program.wait()
        program.stdout.close()
        server.start()
        for each in writers:
            each.stopped.set()
            each.join()
            assert each.error is None or isinstance(each.error, redis.RedisError)
            heights |= each.heights
    return heights


def check_heights(saver: Any, heights: dict[str, int]) -> None:
    """Check that each thread has what was acknowledged."""
    for thread, height in heights.items():
        saved = list(saver.list(config(thread)))
        assert len(saved) in (height, height + 1), "a put whose reply was lost may be there"
        for one in saved:
            assert one.checkpoint["channel_values"]["texts"] == lines(thread, int(one.checkpoint["id"]))


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_rotation_survives_kills_of_the_server(kills: int) -> None:
    server = Server("--appendonly", "yes", "--appendfsync", "always")

    def saver(*names: str) -> RedisSaver:
        return RedisSaver(server.client(), encryption=keys(*names))

    heights = grown_under_kills(server, kills, "keys", Writer, saver)
    assert saver("new", "old").rotate_keys().failed == {}
    assert set(saver("new").key_status().threads) == {"new"}
    check_heights(saver("new"), heights)
    server.stop()


class Everything(NamedTuple):
    """All that rotation covers, as a process uses it."""

    tiers: TieredSaver
    store: RedisStore
    cache: RedisCache[Any]


class WriterOfAll(Writer):
    """Grows a thread over two tiers, an item and an entry of a cache, all of one name."""

    def put(self, saver: Everything, thread: str, height: int) -> None:
        super().put(saver.tiers, thread, height)
        saver.store.put(("items", thread), "item", {"texts": lines(thread, height)})
        saver.cache.set({((thread,), "entry"): (lines(thread, height), None)})


@pytest.mark.slow
def test_rotation_of_all_survives_kills_of_the_server(database: str) -> None:
    """The same for a store, a cache and the rows of cold."""
    server = Server("--appendonly", "yes", "--appendfsync", "always")
    with contextlib.ExitStack() as stack:

        def everything(*names: str) -> Everything:
            cold = stack.enter_context(PostgresSaver.from_conn_string(database))
            client, encryption = server.client(), keys(*names)
            return Everything(
                TieredSaver(RedisSaver(client, encryption=encryption), cold),
                RedisStore(client, encryption=encryption),
                RedisCache(client, encryption=encryption, on_error="raise"),
            )

        heights = grown_under_kills(server, 10, database, WriterOfAll, everything)
        for part in everything("new", "old"):
            assert part.rotate_keys().failed == {}
        reader = everything("new")
        for part, names in zip(reader, (("threads", "rows"), ("partitions",), ("caches",)), strict=True):
            status = part.key_status()
            assert [set(getattr(status, name)) for name in names] == [{"new"}] * len(names)
            assert (status.plain, status.failed) == (0, {})
        check_heights(reader.tiers, heights)
        for thread, height in heights.items():
            item, entry = reader.store.get(("items", thread), "item"), reader.cache.get([((thread,), "entry")])
            possible = [lines(thread, height), lines(thread, height + 1)]
            assert item is not None and item.value["texts"] in possible
            assert entry[(thread,), "entry"] in possible
        server.client().flushall()
        check_heights(reader.tiers, heights)
    server.stop()
