"""Any bytes in Redis or in a file give a value or `ThreadDamaged`, in bounded time and memory, and never a crash."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import hostile
import ormsgpack
import pytest
import redis
from tests.support import seeds
import zstandard
from tests.support.factories import checkpoint, config, put
from tests.support.hostile import OF_STORED_BYTES, PREFIX, SECONDS, WHERE, attempt, changed_bytes, changed_reply
from tests.support.hostile import furnish, noted, sealed, watched
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from tests.support.servers import url_of
from tests.support.uniform import Target, Uniform, encryption

from redis_saver import DecodeError, EncodeError, LimitExceeded, Limits, RedisSaver, ThreadDamaged, TieredSaver
from redis_saver._common import names
from redis_saver._checkpoint import delta, writing
from redis_saver._engine.scripts import FORMAT
from redis_saver.errors import FileDamaged
from redis_saver._common import limits
from redis_saver._common.limits import Allowance
from redis_saver._migrate.engine import migrate
from redis_saver._migrate.files import FRAME, ThreadFile, checksum
from redis_saver._migrate.opening import opened
from redis_saver._common.names import Keyspace
from redis_saver._serde.serializer import FastSerializer
from redis_saver._storage import compression, framing
from redis_saver._storage.chunks import digest
from redis_saver._storage.framing import pack
from redis_saver._tiered import context
from redis_saver._tiered import flushing

MEMORY = 3 * 2**30
"""Maximum address space, in bytes, of a process that reads hostile bytes."""
KEY = b"0123456789abcdef"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zstd": {"compression": "zstd"},
    "encrypted": {},
    "sealed": {"encryption": encryption()},
    "nothing known": {"cache_bytes": 0},
}


def options(kind: str) -> dict[str, Any]:
    found = {"prefix": PREFIX, "limits": Limits(value_bytes=2**24), **SETTINGS[kind]}
    if kind == "encrypted":
        found["serde"] = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    return found


SOUND: dict[str, Callable[[Any], Any]] = {
    "get_tuple": lambda saver: saver.get_tuple(WHERE),
    "get_tuple, twice": lambda saver: (saver.get_tuple(config("thread", "", "c000001")), saver.get_tuple(WHERE)),
    "list": lambda saver: list(saver.list(config("thread", None))),
    "list, filter": lambda saver: list(saver.list(WHERE, filter={"step": {"$gte": 1}})),
    "history": lambda saver: saver.get_delta_channel_history(config=WHERE, channels=["delta", "n", "none"]),
    "get_thread": lambda saver: saver.get_thread("thread"),
    "list all": lambda saver: list(saver.list(None, limit=5)),
    "threads": lambda saver: list(saver.threads(state="active", pinned=False)),
    "audit": lambda saver: (list(saver.writes("thread")), list(saver.channel_history("thread", "texts"))),
    "latest_values": lambda saver: list(saver.latest_values("texts", thread_ids=["thread", "other"])),
    "diff": lambda saver: saver.diff("thread", "c000001"),
    "check": lambda saver: saver.check("thread"),
}
"""Calls whose requests are the same each time."""
AT_2 = config("thread", "", "c000002")
MADE = checkpoint({"n": 5, "texts": ["t" * 100] * 50}, checkpoint_id="c000009")
CALLS: dict[str, Callable[[Any], Any]] = {
    **SOUND,
    "get_thread_ttl": lambda saver: saver.get_thread_ttl("thread"),
    "prune": lambda saver: saver.prune(["thread"], keep_last=1, dry_run=True),
    "expiry": lambda saver: (saver.set_thread_ttl("thread", "1h"), saver.pin("thread"), saver.get_thread_ttl("thread")),
    "put_writes": lambda saver: saver.put_writes(AT_2, [("n", 1), ("__error__", "no")], "task 7"),
    "put": lambda saver: saver.put(AT_2, MADE, {"step": 9}, {"n": "1", "texts": "1"}),
    "prune, copy": lambda saver: (
        saver.copy_thread("thread", "copy"), saver.prune(["copy"], keep_last=1), saver.delete_for_runs(["run 1"])
    ),
}  # fmt: skip


# -- changed replies


def record(url: str) -> dict[str, Any]:
    """Record a real server's replies to each call, for savers of each kind."""
    notes = {}
    with redis.Redis.from_url(url) as raw:
        for kind in SETTINGS:
            raw.delete(*raw.scan_iter(match=PREFIX + "*"), "none")
            with RedisSaver.from_conn_string(url, **options(kind)) as saver:
                furnish(saver)
            furnished = {key: raw.dump(key) for key in raw.scan_iter(match=PREFIX + "*")}
            for what, call in CALLS.items():
                raw.delete(*raw.scan_iter(match=PREFIX + "*"), "none")
                for key, stored in furnished.items():
                    raw.restore(key, 0, stored)
                notes[kind, what] = noted(url, options(kind), call)
    return notes


def changed_replies(notes: dict[Any, Any], seed: int, count: int) -> dict[str, int]:
    """Make `count` calls, each with one changed reply, and count the outcomes.

    Raises:
        AssertionError: A call raised a wrong error or took too long. The message says how to repeat it.
    """
    warnings.simplefilter("ignore")
    came: dict[str, int] = {}
    chance = random.Random(seed)
    replays = {of: hostile.Replay(noted) for of, noted in notes.items()}
    kinds = list(replays)
    number = 0
    while number < count:
        of = chance.choice(kinds)
        client = replays[of]
        saver = RedisSaver(client, **options(of[0]))
        for _ in range(20):
            which = chance.choice([at for at, (args, _) in enumerate(client.notes) if args[0] in OF_STORED_BYTES])
            reply = changed_reply(chance, client.notes[which][1])
            client.begin(which, reply)
            number += 1
            try:
                with watched(SECONDS):
                    outcome = attempt(lambda: CALLS[of[1]](saver))
            except redis.ResponseError as error:
                assert str(error) == "not noted"  # a changed reply made the saver ask for more than was recorded
                outcome = "asked for more"
            except BaseException as error:
                about = f"seed {seed}, case {number}, {of}, request {client.notes[which][0][:2]}"
                raise AssertionError(f"{about}: {error!r} on {reply!r}"[:3000]) from error
            came[outcome] = came.get(outcome, 0) + 1
            # A damaged read leaves nothing behind that spoils a sound one. (What a saver knows changes its requests.)
            if of[0] == "nothing known" and of[1] in SOUND and number % 5 == 0:
                client.begin(-1, None)
                CALLS[of[1]](saver)
    return came


def in_a_child(function: str, *arguments: Any, seconds: float) -> Any:
    """Return the result of a function of this module, run in a process with limited memory."""
    program = (
        "import json, resource, sys, pickle, test_hostile_bytes as here\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))\n"
        "found = getattr(here, sys.argv[1])(*pickle.load(sys.stdin.buffer))\n"
        "print(json.dumps(found))\n"
    )
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, str(Path(here).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, function], input=pickle.dumps(arguments), capture_output=True,
        timeout=seconds, env={**os.environ, "PYTHONPATH": path, "LANGGRAPH_STRICT_MSGPACK": "true"},
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr.decode()[-4000:]}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def notes() -> dict[str, Any]:
    return record(url_of("redis"))


@pytest.mark.random
@pytest.mark.parametrize("seed", [pytest.param(17, marks=pytest.mark.slow), None])
def test_a_changed_reply_gives_a_value_or_an_error(notes: dict[str, Any], seed: int | None) -> None:
    seed = seeds.seed() if seed is None else seed
    came = in_a_child("changed_replies", notes, seed, 1500, seconds=120)
    assert came["value"] and came["DecodeError"], came


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("part", range(10))
def test_a_million_changed_replies_give_values_or_errors(notes: dict[str, Any], part: int) -> None:
    """`HOSTILE_CASES` sets another number."""
    count = int(os.environ.get("HOSTILE_CASES", "1000000")) // 10
    seed = seeds.seed() + part
    print(f"seed {seed}: {in_a_child('changed_replies', notes, seed, count, seconds=3 * 3600)}")


# -- hostile bytes on real servers


def data_of(target: Target, thread: str = "thread") -> bytes:
    return Keyspace(target.prefix).keys(thread).data_key


def value_field(channel: str, version: str = "1", ns: str = "") -> bytes:
    return names.blob(ns, names.entry(channel, version))


def bomb(size: int) -> bytes:
    """Return a zstd frame that unfolds to `size` zeros, and says so."""
    pressed = zstandard.ZstdCompressor().compressobj(size=size)
    return b"".join([*(pressed.compress(bytes(2**20)) for _ in range(size // 2**20)), pressed.flush()])


@pytest.mark.parametrize("length", hostile.LENGTHS)
def test_an_invalid_length_is_refused_at_once(length: bytes) -> None:
    if length == b"00000003:":
        assert framing.unpack(length + b"abc") == [b"abc"]
        return
    for read in (framing.unpack, framing.first, lambda packed: framing.take(packed, 0, 1)):
        with watched(2), pytest.raises(ValueError):
            read(length + b"abc")


def test_a_zstd_frame_is_not_decompressed_beyond_the_limit() -> None:
    small, allowance = bomb(2**20), Allowance(Limits(value_bytes=2**20), "a thread")
    assert compression.decompress(small, allowance) == bytes(2**20)
    with pytest.raises(LimitExceeded, match="value_bytes"):
        compression.decompress(small, Allowance(Limits(value_bytes=2**20 - 1), "a thread"))
    without_size = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 5000)
    with pytest.raises(ValueError, match="size"):
        compression.decompress(without_size, allowance)


@pytest.mark.parametrize("where", ["value", "write", "chunk"])
async def test_a_small_zstd_frame_does_not_become_gigabytes(saver: Uniform, target: Target, where: str) -> None:
    stored = await put(saver, config(), {"a": "x" * 10, "n": ["t" * 600] * 20})
    await saver.put_writes(stored, [("a", 1)], "task")
    frame = bomb(2**28)
    assert len(frame) < 100_000
    if where == "value":
        target.raw.hset(data_of(target), value_field("a"), pack([b"\xffzstd:bytes"]) + frame)
    elif where == "write":
        record = pack([b"0", b"", b"a", b"\xffzstd:bytes", frame])
        target.raw.hset(data_of(target), names.task("", stored["configurable"]["checkpoint_id"], "task"), record)
    else:
        chunk = digest(b"unknown")
        target.raw.hset(data_of(target), mapping={value_field("n"): sealed(b"z", [chunk]), b"z" + chunk: frame})
    with pytest.raises(LimitExceeded, match=r"value_bytes.*Limits\("):
        await target.uniform().get_tuple(config())


TREES = {"chunks": (1000, 100, 6), "value_bytes": (500_000, 20_000, 1), "depth": (1, 1, 3000)}
"""By limit that it hits: a chunk of so many bytes, so many times in a list, in so many levels of such lists."""


@pytest.mark.parametrize("limit", TREES)
async def test_a_tree_of_chunk_lists_hits_a_limit(saver: Uniform, target: Target, limit: str) -> None:
    """The server reads each chunk once, as does a prune."""
    await put(saver, config(), {"n": ["t" * 600] * 20, "a": 1})
    size, width, levels = TREES[limit]
    below, fields = digest(b"x" * size), {b"p" + digest(b"x" * size): b"x" * size}
    for level in range(levels):
        one = (b"n" if level else b"p") + below * width
        below = digest(one)
        fields[b"n" + below] = one
    target.raw.hset(data_of(target), mapping={**fields, value_field("n"): sealed(b"n", [below])})
    for method in ("get_tuple", "list"):
        with watched(SECONDS), pytest.raises(LimitExceeded, match=limit):
            await getattr(target.uniform(), method)(config())
    with watched(SECONDS):
        await saver.prune(["thread"], keep_last=1)
    await saver.delete_thread("thread")
    assert target.keys() == []


async def test_a_channel_named_twice_raises_thread_damaged(saver: Uniform, target: Target) -> None:
    stored = await put(saver, config(), {"a": "x" * 1000, "b": 1})
    header = names.checkpoint("", stored["configurable"]["checkpoint_id"])
    chunks = framing.unpack(target.raw.hget(data_of(target), header))
    named = b"a\0a\0node\0"
    chunks[3] = b"p" + digest(named)
    chunks[5] = b"\0\0\0\0"
    target.raw.hset(data_of(target), mapping={header: pack(chunks), chunks[3]: named})
    with pytest.raises(ThreadDamaged):
        await target.uniform().get_tuple(config())


def extension(code: int, data: bytes) -> bytes:
    return b"\xc9" + len(data).to_bytes(4, "big") + bytes([code]) + data


def nested(levels: int, lists: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        data = extension(0, b"\x91" * lists + data)
    return data


DEEP = [(20, 1000), (400, 1000), (100, 100), (20_000, 1)]


def read_nested(url: str, prefix: str) -> list[str]:
    """Return the errors for values with nested extensions, which have nested lists."""
    found = []
    settings: Any = {"prefix": prefix, "cache_bytes": 0}  # it does not remember what it put
    with redis.Redis.from_url(url) as raw, RedisSaver.from_conn_string(url, **settings) as saver:
        made = checkpoint({"a": 1})
        saver.put(WHERE, made, {}, made["channel_versions"])
        for levels, lists in DEEP:
            stored = pack([b"msgpack"]) + nested(levels, lists)
            raw.hset(Keyspace(prefix).keys("thread").data_key, value_field("a"), stored)
            with pytest.raises(ThreadDamaged) as raised:
                saver.get_tuple(WHERE)
            found.append(str(raised.value))
    return found


def test_deeply_nested_extensions_do_not_crash_the_process() -> None:
    found = in_a_child("read_nested", url_of("redis"), "deep", seconds=60)
    assert len(found) == len(DEEP)
    assert all(said.startswith("cannot decode the value of channel 'a'") for said in found)


def test_values_nested_as_deep_as_can_be_written_are_read() -> None:
    @dataclasses.dataclass
    class Node:
        below: Any

    Node.__qualname__, globals()["Node"] = "Node", Node
    try:
        value: Any = None
        for _ in range(60):
            value = Node([[{"k": value}]])
        serializer = FastSerializer()
        assert serializer.loads_typed(serializer.dumps_typed(value)) == value
        for _ in range(60):
            for _ in range(150):
                value = [value]
            value = Node(value)
        for encode in (serializer.dumps_typed, serializer.dumps_rest):
            with pytest.raises(TypeError, match="nested more than"):
                encode(value)
        assert serializer.dumps_rest([Node(1), Node(2)]).type == "msgpack"
    finally:
        del globals()["Node"]


async def test_a_value_nested_too_deep_is_refused(saver: Uniform, target: Target) -> None:
    value: Any = None
    for _ in range(3000):
        value = [value]
    with pytest.raises(EncodeError, match="channel 'a'"):
        await put(saver, config(), {"a": value})
    assert target.keys() == []


# -- random changes of stored bytes


DAMAGE: dict[str, Callable[[Any, Any, random.Random], None]] = {
    "a field": lambda raw, keys, chance: change_field(raw, keys.data_key, chance, b""),
    "a header": lambda raw, keys, chance: change_field(raw, keys.data_key, chance, b"c"),
    "a value": lambda raw, keys, chance: change_field(raw, keys.data_key, chance, b"b"),
    "a record of writes": lambda raw, keys, chance: change_field(raw, keys.data_key, chance, b"w"),
    "a counter": lambda raw, keys, chance: change_field(raw, keys.data_key, chance, b"@"),
    "a member": lambda raw, keys, chance: change_member(raw, keys.index_key, chance),
    "its own TTL": lambda raw, keys, chance: raw.hset(
        keys.data_key, b"@ttl", chance.choice([b"x", b"-1", b"1e9", b"9" * 30, b""])
    ),
}


def change_field(raw: Any, data: bytes, chance: random.Random, kind: bytes) -> None:
    fields = [field for field in sorted(raw.hkeys(data)) if field.startswith(kind)]
    field = chance.choice(fields)
    raw.hset(data, field, changed_bytes(chance, raw.hget(data, field)))


def change_member(raw: Any, index: bytes, chance: random.Random) -> None:
    member = chance.choice(raw.zrange(index, 0, -1))
    raw.zadd(index, {changed_bytes(chance, member): 0})
    if chance.random() < 0.5:
        raw.zrem(index, member)


@pytest.mark.random
@pytest.mark.parametrize("target_name", seeds.targets_and_slow(("redis", "redis62"), ("fakeredis",)))
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize(("seed", "rounds"), [(5, 8), (None, 8), pytest.param(None, 400, marks=pytest.mark.slow)])
def test_changed_stored_bytes_give_a_value_or_an_error(target: Target, seed: int | None, rounds: int) -> None:
    seed = seeds.seed() if seed is None else seed
    chance, keys = random.Random(seed), Keyspace(target.prefix).keys("thread")
    warnings.simplefilter("ignore")
    target.uniform().saver.put(config("other"), checkpoint({"n": 1}), {}, {"n": "1"})
    for number in range(rounds):
        target.raw.delete(*keys, *Keyspace(target.prefix).keys("copy"))
        writer = target.uniform().saver
        made = furnish(writer, length=2)
        what = chance.choice(list(DAMAGE))
        for _ in range(chance.choice([1, 1, 3])):
            DAMAGE[what](target.raw, keys, chance)
        saver = chance.choice([target.uniform().saver, writer])
        more_writes = {"writes": lambda saver: saver.put_writes(made[-1], [("n", 1)] * 3, "task 1")}
        for name, call in {**CALLS, **more_writes}.items():
            try:
                with watched(SECONDS):
                    attempt(lambda: call(saver))
            except BaseException as error:
                raise AssertionError(f"seed {seed}, number {number}, {what}, {name}: {error!r}"[:2000]) from error
        assert saver.get_tuple(config("other")) is not None
        # The thread can always be deleted and recreated, except one that a newer release seems to have stored.
        if attempt(lambda: saver.delete_thread("thread")) != "value":
            assert int(target.raw.hget(keys.data_key, "@state").split()[0]) > FORMAT
            target.raw.delete(*keys)
        saver.put(WHERE, checkpoint({"n": 3}), {}, {"n": "1"})
        assert saver.get_tuple(WHERE).checkpoint["channel_values"] == {"n": 3}


async def test_a_script_refuses_damaged_bytes_before_it_writes(saver: Uniform, target: Target) -> None:
    stored = await put(saver, config(), {"a": 1})
    keys = Keyspace(target.prefix).keys("thread")
    for damage in ({b"@ttl": b"soon"}, {b"@deferred_ttl": b"x" * 9}, {b"@state": b"9" * 40 + b" 1 1 1"}):
        target.raw.hset(keys.data_key, mapping=damage)
        before = target.raw.hgetall(keys.data_key), target.raw.zrange(keys.index_key, 0, -1)
        for call in (
            lambda: put(saver, config(), {"a": 2}),
            lambda: saver.put_writes(stored, [("a", 1)], "t"),
            lambda: saver.get_tuple(config()),
        ):
            with pytest.raises(ThreadDamaged, match="delete_thread"):
                await call()
        assert before == (target.raw.hgetall(keys.data_key), target.raw.zrange(keys.index_key, 0, -1))
        target.raw.hdel(keys.data_key, b"@ttl", b"@deferred_ttl")
    target.raw.delete(*keys)
    await put(saver, config(), {"a": 1})
    target.raw.zadd(keys.index_key, {b"c\0\xff": 0})
    with pytest.raises(ThreadDamaged, match="delete_thread"):
        await saver.list(config())


# -- limits


LIMITS = Limits(name_bytes=64, value_bytes=20_000)
FIXED = {"channels": 5, "writes": 4, "chunks": 20, "depth": 32}
BIG = ["x" * 1000] * 25
Call = Callable[[Uniform, Any], Any]


def putting(values: dict[str, Any], *where: str, version: str = "1", which: str | None = None, run: str = "r") -> Call:
    """A put of these values into a thread, by default `t`."""
    versions = dict.fromkeys(values, version)
    made = checkpoint(values, versions, which)
    return lambda uniform, _: uniform.put(config(*(where or "t")), made, {"run_id": run}, versions)


def writing_of(*writes: tuple[str, Any], task: str = "task", path: str = "") -> Call:
    return lambda uniform, where: uniform.put_writes(where, list(writes), task, path)


TOO_MUCH: dict[str, tuple[str, Call]] = {
    "thread": ("name_bytes", putting({"a": 1}, "t" * 65)),
    "namespace": ("name_bytes", putting({"a": 1}, "t", "é" * 33)),
    "checkpoint": ("name_bytes", putting({"a": 1}, which="c" * 65)),
    "parent": ("name_bytes", putting({"a": 1}, "t", "", "c" * 65)),
    "channel": ("name_bytes", putting({"a" * 65: 1})),
    "version": ("name_bytes", putting({"a": 1}, version="1" * 65)),
    "run": ("name_bytes", putting({"a": 1}, run="r" * 65)),
    "channels": ("channels", putting(dict.fromkeys("abcdef", 1))),
    "value": ("value_bytes", putting({"a": "x" * 20_001})),
    "value in chunks": ("value_bytes", putting({"a": BIG})),
    "chunks": ("chunks", putting({"a": [f"{n:0600}" for n in range(25)]})),
    "write": ("value_bytes", writing_of(("a", "x" * 20_001))),
    "write in chunks": ("value_bytes", writing_of(("b", BIG[:9]), ("a", {"in": BIG}))),
    "chunks of a write": ("chunks", writing_of(("a", [f"{n:0600}" for n in range(25)]))),
    "writes": ("writes", writing_of(*[("a", 1)] * 5)),
    "task": ("name_bytes", writing_of(("a", 1), task="t" * 65)),
    "task path": ("name_bytes", writing_of(("a", 1), path="p" * 65)),
    "write's channel": ("name_bytes", writing_of(("a" * 65, 1))),
    "copy": ("name_bytes", lambda uniform, where: uniform.copy_thread("thread", "t" * 65)),
}


@pytest.mark.parametrize("what", TOO_MUCH)
@pytest.mark.parametrize("target_name", ["redis62"])
@pytest.mark.by_turns
async def test_a_call_over_a_limit_is_refused_before_anything_is_sent(
    target: Target, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, call = TOO_MUCH[what]
    small, large = target.uniform(limits=LIMITS), target.uniform()
    where = await put(small, config(), {"a": 1})
    keys, holds = target.keys(), target.raw.hgetall(data_of(target))
    commands = target.raw.info("stats")["total_commands_processed"]
    remedy = r"Store less in one call" if limit in FIXED else rf"limits=Limits\({limit}=\d+\)"
    about = {"value": "the value of channel 'a'", "write": "a write to channel 'a'"}
    begins = about["write" if "write" in what else "value"] if limit in ("value_bytes", "chunks") else ""
    with monkeypatch.context() as lower:
        lower.setattr(limits, "FIXED", FIXED)
        with pytest.raises(LimitExceeded, match=rf"{begins}.*the limit is [0-9,]+\. Nothing was written.*{remedy}"):
            await call(small, where)
    assert target.raw.info("stats")["total_commands_processed"] == commands + 1
    assert (target.keys(), target.raw.hgetall(data_of(target))) == (keys, holds)
    await call(large, where)


@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_fixed_limits_are_enforced(saver: Uniform) -> None:
    """Other tests replace them by lower numbers."""
    stored = await put(saver, config(), {"a": 1})
    with pytest.raises(LimitExceeded, match=r"10,001 writes; the limit is 10,000\..*Store less in one call"):
        await saver.put_writes(stored, [("a", 1)] * 10_001, "task")
    values = {f"c{number}": 1 for number in range(10_001)}
    with pytest.raises(LimitExceeded, match=r"10,001 channels; the limit is 10,000\..*Store less in one call"):
        await put(saver, config(), values)
    with pytest.raises(TypeError, match="channels"):
        Limits(channels=20_000)  # type: ignore[call-arg]


async def test_data_over_a_smaller_limit_is_not_called_damaged(saver: Uniform, target: Target) -> None:
    await put(saver, config(), {"a": [f"{n:0600}" for n in range(30)], "n": 1})
    small = target.uniform(limits=Limits(value_bytes=10_000))
    with pytest.raises(LimitExceeded, match=r"limits=Limits\(value_bytes=") as raised:
        await small.get_tuple(config())
    assert not isinstance(raised.value, ThreadDamaged)
    assert (await target.uniform().get_tuple(config())).checkpoint["channel_values"]["n"] == 1


@pytest.mark.parametrize("wrong", [{"name_bytes": 0}, {"name_bytes": 1.5}, {"value_bytes": True}, {"value_bytes": "1"}])
def test_a_limit_is_a_positive_int(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        Limits(**wrong)


# -- files of threads


def exported(folder: Path) -> bytes:
    """Return the bytes of a file of threads."""
    path = folder / "threads"
    with RedisSaver.from_conn_string("memory://") as saver, opened(f"file:{path}", target=True) as target:
        furnish(saver, "one", length=2)
        furnish(saver, "two", length=1)
        migrate(saver, target)
    return path.read_bytes()


def records_of(data: bytes) -> list[bytes]:
    found, at = [], len(ThreadFile.FIRST_LINE)
    while at < len(data):
        length, _ = FRAME.unpack_from(data, at)
        found.append(data[at + FRAME.size : at + FRAME.size + length])
        at += FRAME.size + length
    return found


def file_of(records: list[bytes]) -> bytes:
    made = ThreadFile.FIRST_LINE
    for one in records:
        made += FRAME.pack(len(one), checksum(one, len(made))) + one
    return made


def tampered(chance: random.Random, record: bytes) -> bytes:
    """Return a record with some bytes or one of its values changed."""
    if chance.random() < 0.4:
        return changed_bytes(chance, record)
    found = ormsgpack.unpackb(record)
    places = [(found, at) for at in range(len(found))]
    for one, at in places:
        inner = one[at]
        if isinstance(inner, dict):
            places += [(inner, key) for key in inner]
        elif isinstance(inner, list):
            places += [(inner, place) for place in range(len(inner))]
    one, at = chance.choice(places)
    others = [None, 0, -1, 10**9, 1.5, float("nan"), "", "x", [], {}, [0] * 5000, b"\xff", True, [["a", 1]]]
    one[at] = chance.choice([*others, {"a": ["msgpack", [0]]}])
    return ormsgpack.packb(found)


def changed_files(data: bytes, folder: str, seed: int, count: int) -> dict[str, int]:
    """Import files with changed bytes, or with changed records and right checksums. Count the outcomes."""
    warnings.simplefilter("ignore")
    chance, records, came = random.Random(seed), records_of(data), dict[str, int]()
    path = Path(folder, f"changed-{os.getpid()}")
    for number in range(count):
        if flipped := chance.random() < 0.3:
            made = changed_bytes(chance, data)
        else:
            some = list(records)
            at = chance.randrange(len(some))
            some[at] = tampered(chance, some[at])
            made = file_of(some)
        path.write_bytes(made)
        try:
            with watched(SECONDS), opened(f"file:{path}", target=False) as source:
                report = migrate(source, InMemorySaver(), sample=1)
                outcome = "failed" if report.failed else "moved"
        except FileDamaged:
            outcome = "FileDamaged"
        except BaseException as error:
            raise AssertionError(f"seed {seed}, number {number}: {error!r}"[:2000]) from error
        assert not (flipped and outcome != "FileDamaged" and made != data), f"seed {seed}, number {number}: not noticed"
        came[outcome] = came.get(outcome, 0) + 1
    return came


@pytest.mark.random
@pytest.mark.parametrize("seed", [pytest.param(3, marks=pytest.mark.slow), None])
def test_a_changed_file_is_imported_or_raises_file_damaged(tmp_path: Path, seed: int | None) -> None:
    seed = seeds.seed() if seed is None else seed
    came = in_a_child("changed_files", exported(tmp_path), str(tmp_path), seed, 150, seconds=120)
    assert came["FileDamaged"] and came["moved"], came


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
def test_twenty_thousand_changed_files_are_imported_or_raise(tmp_path: Path) -> None:
    seed = seeds.seed()
    print(f"seed {seed}: {in_a_child('changed_files', exported(tmp_path), str(tmp_path), seed, 20_000, seconds=3600)}")


@pytest.mark.parametrize("length", [2**31, 2**32 - 1])
def test_a_record_longer_than_its_file_takes_no_memory(tmp_path: Path, length: int) -> None:
    path = tmp_path / "threads"
    path.write_bytes(ThreadFile.FIRST_LINE + FRAME.pack(length, 0) + b"x" * 100)
    tracemalloc.start()
    try:
        with pytest.raises(FileDamaged), opened(f"file:{path}", target=False):
            pass
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# -- two tiers


def change_tiers(raw: Any, keys: Any, chance: random.Random) -> str:
    """Change one of the notes that hot has on a thread over a cold saver."""
    which = chance.choice(["dirty", "flush", "intents", "lease", "data", "index"])
    if which == "dirty":
        some = [b"c\0", b"w\0\0", b"zz", b"", b"c", b"w\0c000000\0\xff\0", b"d", b"c\0a\0b\0c\0", chance.randbytes(9)]
        raw.zadd(keys.dirty, {chance.choice(some): chance.choice([0, 1, -5, 1e300, float("inf")])})
    elif which == "flush":
        set_aside = b"x" + chance.choice(raw.zrange(keys.dirty, 0, -1) or [b"d"])
        field = chance.choice([b"token", b"until", b"deleted", b"late", b"new", set_aside])
        raw.hset(keys.flush, field, chance.choice([b"x", b"", b"9" * 40 + b" 1 e", b"3 4 ", b"-1", b"1e999"]))
    elif which == "intents":
        some = [b"", b"x", b"9" * 60, b"0" * 15 + b"-" + b"*" * 20, chance.randbytes(40)]
        raw.zadd(keys.intents, {chance.choice(some): 0})
    elif which == "lease":
        raw.hset(keys.lease, chance.choice([b"token", b"barrier", b"new"]), b"x")
    elif which == "data":
        fields = [b"@cold_backed", b"@complete", b"@has_latest\0", b"@no_task_path", b"@cold_gaps", b"@deferred_ttl"]
        fields += [b"@flushed_head\0", b"@state"]
        raw.hset(keys.data_key, chance.choice(fields), chance.choice([b"", b"x", b"-3:", b"99:", b"c\xff\0", b"1 2"]))
    else:
        raw.zadd(keys.index_key, {chance.choice([b"c\0", b"w\0", b"c\0x", b"w\0c000000\0", b"i\0"]): 0})
    return which


@pytest.mark.random
@pytest.mark.parametrize("target_name", seeds.targets_and_slow(("redis", "redis62"), ("fakeredis",)))
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("mode", ["write-behind", "write-through"])
@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_changed_notes_of_two_tiers_give_a_value_or_an_error(
    target: Target, mode: Any, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(context, "WRITER_GONE", 200)
    monkeypatch.setattr(flushing, "FLUSH_LEASE", 300)
    seed = seeds.seed()
    chance, keys = random.Random(seed), Keyspace(target.prefix).tier_keys("thread")
    warnings.simplefilter("ignore")
    for number in range(rounds):
        target.raw.delete(*keys)
        saver = TieredSaver(target.uniform().saver, InMemorySaver(), mode=mode, flusher=False)
        made = furnish(saver, length=2)
        what = [change_tiers(target.raw, keys, chance) for _ in range(chance.choice([1, 1, 2]))]
        calls: dict[str, Callable[[], Any]] = {
            "flush": lambda: saver._driver.run(flushing.flush(saver._context, "thread", at_once=True)),
            "get_tuple": lambda: saver.get_tuple(WHERE),
            "put": lambda: saver.put(made[-1], checkpoint({"n": 5}, checkpoint_id="c000009"), {}, {"n": "1"}),
            "put_writes": lambda: saver.put_writes(made[-1], [("n", 1)], "task 9"),
            "list": lambda: list(saver.list(WHERE)),
            "history": lambda: saver.get_delta_channel_history(config=WHERE, channels=["delta"]),
            "flush again": lambda: saver._driver.run(flushing.flush(saver._context, "thread", at_once=True)),
            "delete_thread": lambda: saver.delete_thread("thread"),
        }
        for name, call in calls.items():
            try:
                with watched(SECONDS):
                    attempt(call)
            except BaseException as error:
                raise AssertionError(f"seed {seed}, number {number}, {what}, {name}: {error!r}"[:2000]) from error


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis62"])
def test_a_value_too_large_for_hot_is_only_in_cold(target: Target) -> None:
    cold = InMemorySaver()
    saver = TieredSaver(target.uniform(limits=LIMITS).saver, cold)
    small = saver.put(WHERE, checkpoint({"a": 1}), {}, {"a": "1"})
    made = checkpoint({"a": "x" * 20_001})
    stored = saver.put(small, made, {}, {"a": "1"})
    saver.put_writes(stored, [("a", "x" * 20_001)], "task")
    for _ in range(2):
        found = saver.get_tuple(WHERE)
        assert found.checkpoint["channel_values"] == made["channel_values"]
        assert found.pending_writes == [("task", "a", "x" * 20_001)]
    assert target.uniform().saver.get_tuple(WHERE) is None
    behind = TieredSaver(target.uniform(limits=LIMITS).saver, cold, mode="write-behind", flusher=False)
    with pytest.raises(LimitExceeded):
        behind.put(stored, made, {}, {"a": "1"})


@pytest.mark.parametrize("target_name", ["redis"])
def test_a_request_for_a_value_that_put_lacks_raises_decode_error(target: Target) -> None:
    made = checkpoint({"a": 1}, {"a": "1", "b": "1"})
    operation = writing.put(target.uniform().saver._context, config(), made, {}, made["channel_versions"])
    next(operation)
    with pytest.raises(DecodeError, match="what put answered about thread 'thread'"):
        operation.send([b"", 0, 2])  # then everything is sent
        operation.send([b"", 0, 2])


@pytest.mark.parametrize("target_name", ["redis62"])
async def test_a_page_of_a_history_ends_after_many_bytes(saver: Uniform, target: Target, monkeypatch: Any) -> None:
    monkeypatch.setattr(delta, "BYTES_PER_PAGE", 10_000)
    where = config()
    for step in range(8):
        where = await saver.put(where, checkpoint({"n": step}, {"n": f"{step}", "d": "1"}), {}, {"n": f"{step}"})
        await saver.put_writes(where, [("d", [step])], "a")
        await saver.put_writes(where, [("other", "x" * 1500)] * 10, "b")
    calls = target.raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    found = await saver.get_delta_channel_history(config=config(), channels=["d"])
    assert [value for _, _, value in found["d"]["writes"]] == [[step] for step in range(7)]
    assert 2 <= target.raw.info("commandstats")["cmdstat_evalsha"]["calls"] - calls <= 4
