"""Whatever bytes lie in Redis, or in a file: a value or `ThreadDamaged`, in bounded time and memory, and never the end of the process."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hostile
import pytest
import redis
import zstandard
from faces import Face, Target
from hostile import ALLOWED, Endless, attempt, changed_bytes, changed_reply, noted, sealed
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from make import checkpoint, config
from servers import url_of

from redis_saver import (
    ForeignKey,
    LimitExceeded,
    Limits,
    RedisSaver,
    ThreadDamaged,
    UnserializableValue,
    compression,
    frames,
    names,
)
from redis_saver.frames import pack
from redis_saver.limits import Allowance
from redis_saver.names import Keyspace
from redis_saver.parts import digest
from redis_saver.serializer import FastSerializer

MEMORY = 3 * 2**30
"""Bytes of address space that a process may take which reads hostile bytes."""
SECONDS = 10
"""A call that takes longer hangs."""
PREFIX = "hostile"
KEY = b"0123456789abcdef"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zstd": {"compression": "zstd"},
    "encrypted": {},
    "nothing known": {"cache_bytes": 0},
}


def options(kind: str) -> dict[str, Any]:
    found = {"prefix": PREFIX, "limits": Limits(value_bytes=2**24, parts=10_000), **SETTINGS[kind]}
    if kind == "encrypted":
        found["serde"] = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    return found


def furnish(saver: Any, thread: str = "thread", length: int = 3) -> list[dict[str, Any]]:
    """A thread with all there can be: parts of several levels, dicts, snapshots, subgraphs, a fork, writes of all kinds."""
    found: list[dict[str, Any]] = []
    chat: list[Any] = []
    for step in range(length):
        chat += [
            HumanMessage(f"question {step} " + "x" * 700, id=f"h{step}"),
            AIMessage(f"answer {step}", id=f"a{step}"),
        ]
        values: dict[str, Any] = {
            "messages": chat * 3,
            "texts": [f"{number:0100}" for number in range(60 + step)],
            "table": {f"key {number}": "v" * 100 for number in range(40)},
            "long": "words and more words " * 120,
            "n": step,
        }
        if step % 2 == 0:
            values["delta"] = _DeltaSnapshot([f"item {number}" * 30 for number in range(20)])
        versions = {
            **{name: f"{step + 1:032}.0123456789" for name in values},
            "delta": f"{step + 1:032}.0123456789",
            "f": 1.5,
            "i": 7,
        }
        made = checkpoint(values, versions, f"c{step:06}")
        where = config(thread, "", f"c{step - 1:06}" if step else None)
        metadata = {"source": "loop", "step": step, "parents": {}, "run_id": f"run {step}"}
        found.append(saver.put(where, made, metadata, versions))
        saver.put_writes(found[-1], [("delta", ["written"]), ("n", step), ("n", "x" * 2000)], f"task {step}", "path")
        saver.put_writes(found[-1], [("__interrupt__", "why"), ("__error__", "no")], f"task {step}")
    inner = checkpoint({"n": 1, "texts": values["texts"]}, {"n": "1", "texts": "1"}, "c000007")
    saver.put(
        config(thread, "inner:1"),
        inner,
        {"source": "loop", "step": 0, "parents": {"": "c000001"}},
        {"n": "1", "texts": "1"},
    )
    return found


WHERE = config("thread")
CALLS: dict[str, Callable[[Any], Any]] = {
    "get_tuple": lambda saver: saver.get_tuple(WHERE),
    "get_tuple, twice": lambda saver: (saver.get_tuple(config("thread", "", "c000001")), saver.get_tuple(WHERE)),
    "list": lambda saver: list(saver.list(config("thread", None))),
    "list, filter": lambda saver: list(saver.list(WHERE, filter={"step": {"$gte": 1}})),
    "history": lambda saver: saver.get_delta_channel_history(config=WHERE, channels=["delta", "n", "none"]),
    "get_thread": lambda saver: saver.get_thread("thread"),
    "get_thread_ttl": lambda saver: saver.get_thread_ttl("thread"),
    "prune": lambda saver: saver.prune(["thread"], keep_last=1, dry_run=True),
    "list all": lambda saver: list(saver.list(None, limit=5)),
    "put": lambda saver: saver.put(
        config("thread", "", "c000002"),
        checkpoint({"n": 5, "texts": ["t" * 100] * 50}, checkpoint_id="c000009"),
        {"step": 9},
        {"n": "1", "texts": "1"},
    ),
    "prune, copy": lambda saver: (
        saver.copy_thread("thread", "copy"),
        saver.prune(["copy"], keep_last=1),
        saver.delete_for_runs(["run 1"]),
    ),
}


SOUND = ("get_tuple", "get_tuple, twice", "list", "list, filter", "history", "get_thread", "list all")
"""Calls that ask for the same each time."""


@contextmanager
def watched(seconds: int) -> Iterator[None]:
    """Raise `Endless` in what takes longer."""

    def ring(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- whole replies, changed


def record(url: str) -> dict[str, Any]:
    """What a real server answers to each call, for savers of each kind."""
    notes = {}
    with redis.Redis.from_url(url) as raw:
        for kind in SETTINGS:
            for what, call in CALLS.items():
                for key in raw.scan_iter(match=PREFIX + "*"):
                    raw.delete(key)
                with RedisSaver.from_conn_string(url, **options(kind)) as saver:
                    furnish(saver)
                notes[kind, what] = noted(url, options(kind), call)
    return notes


def changed_replies(notes: dict[Any, Any], seed: int, count: int) -> dict[str, int]:
    """Make so many calls, in each of which one reply is changed; answers what came of them.

    Raises:
        AssertionError: One raised what it may not, or went on too long; the message says how to do it again.
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
            # What a command answers by itself, such as SCAN, is no stored bytes.
            which = chance.choice(
                [at for at, (args, _) in enumerate(client.notes) if args[0] in ("EVALSHA", "ZRANGEBYLEX")]
            )
            reply = changed_reply(chance, client.notes[which][1])
            client.begin(which, reply)
            number += 1
            try:
                with watched(SECONDS):
                    outcome = attempt(lambda: CALLS[of[1]](saver))
            except redis.ResponseError as error:
                assert str(error) == "not noted"  # what a changed reply makes the saver ask, nobody has answered
                outcome = "asked for more"
            except BaseException as error:
                raise AssertionError(
                    f"seed {seed}, case {number}, {of}, request {client.notes[which][0][:2]}: {error!r} on {reply!r}"[
                        :3000
                    ]
                ) from error
            came[outcome] = came.get(outcome, 0) + 1
            # A damaged read leaves nothing behind that spoils a sound one. (What a saver knows of a thread changes what it asks.)
            if of[0] == "nothing known" and of[1] in SOUND and number % 5 == 0:
                client.begin(-1, None)
                CALLS[of[1]](saver)
    return came


def in_a_child(function: str, *arguments: Any, seconds: float) -> Any:
    """What a function of this module answers in a process of its own, which may not take more memory than there should be."""
    program = (
        "import json, resource, sys, pickle, test_hostile_bytes as here\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))\n"
        "found = getattr(here, sys.argv[1])(*pickle.load(sys.stdin.buffer))\n"
        "print(json.dumps(found))\n"
    )
    import pickle

    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, str(Path(here).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, function], input=pickle.dumps(arguments), capture_output=True,
        timeout=seconds, env={**os.environ, "PYTHONPATH": path, "LANGGRAPH_STRICT_MSGPACK": "true"},
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr.decode()[-4000:]}"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def notes() -> dict[str, Any]:
    return record(url_of("redis"))


@pytest.mark.parametrize("seed", [17, None])
def test_a_reply_that_was_changed_is_a_value_or_damage(notes: dict[str, Any], seed: int | None) -> None:
    seed = random.SystemRandom().randrange(10**9) if seed is None else seed
    came = in_a_child("changed_replies", notes, seed, 2000, seconds=120)
    assert came["value"] and came["UndecodableValue"], came


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("part", range(10))
def test_a_million_replies(notes: dict[str, Any], part: int) -> None:
    """`HOSTILE_CASES` sets another number."""
    count = int(os.environ.get("HOSTILE_CASES", "1000000")) // 10
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed {seed}: {in_a_child('changed_replies', notes, seed, count, seconds=3 * 3600)}")
