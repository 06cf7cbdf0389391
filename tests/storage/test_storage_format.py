"""The format of what is stored: it stands in each thread, older data are read, and a newer format is refused whole.

`golden.json` holds every kind of stored thing as format 1 has it. After a change of the format, add a file of the new one and keep this one:

    PYTHONPATH=.:tests/support:tests/storage python -m test_storage_format > tests/storage/golden.json
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from factories import config, put
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from raw import without_revision
from servers import url_of
from uniform import Target, Uniform

from redis_saver import AsyncTieredSaver, TieredSaver, UnsupportedFormat
from redis_saver.engine import scripts
from redis_saver.names import Keyspace

GOLDEN = Path(__file__).with_name("golden.json")
NEWER = scripts.FORMAT + 1
METADATA = {"source": "loop", "step": 1, "parents": {}, "run_id": "run-1"}


def versions(number: int, *channels: str) -> dict[str, str]:
    return dict.fromkeys(channels, f"{number:032}.{number:020}")


async def store(uniform: Uniform) -> None:
    """Threads with each kind of stored thing."""
    history = [
        HumanMessage("Hello " * 40, id="h1"),
        AIMessage("", id="a1", tool_calls=[{"name": "search", "args": {"q": "x" * 300}, "id": "call"}]),
        ToolMessage("found " * 200, tool_call_id="call", id="t1"),
        *(AIMessage(f"answer {number} " * 30, id=f"a{number}") for number in range(2, 12)),
    ]
    where = await put(
        uniform, config("chat"), {"messages": history[:8], "n": 1}, checkpoint_id="1", versions=versions(1, "messages", "n"), metadata=METADATA
    )  # fmt: skip
    await uniform.put_writes(where, [("n", 2), ("messages", history[8])], "task-1", "~__pregel_pull, node")
    await uniform.put_writes(where, [(INTERRUPT, "really?"), (ERROR, "no")], "task-2")
    where = await put(
        uniform, where, {"messages": history, "n": 1}, checkpoint_id="2", versions={**versions(1, "n"), **versions(2, "messages")}, metadata=METADATA
    )  # fmt: skip
    await put(
        uniform,
        config("chat", "sub|graph:1"),
        {"text": "t" * 900, "none": None},
        checkpoint_id="1.5",
        versions={"text": 3, "none": 1.5},
    )
    await put(
        uniform, config("a {strange} \0name%"), {"bytes": b"\0" * 4000, "big": list(range(2000))}, checkpoint_id="1"
    )
    await uniform.set_thread_ttl("chat", timedelta(days=30))
    await put(uniform, config("pinned"), {"n": 1}, checkpoint_id="1")
    await uniform.pin("pinned")


def stored(target: Target) -> dict[str, Any]:
    """All keys, as JSON has them, without what clocks decide."""
    found: dict[str, Any] = {}
    for key in target.keys():
        short = key.removeprefix(target.prefix.encode()).decode("utf-8")
        if target.raw.type(key) == b"hash":
            fields = {field.hex(): value.hex() for field, value in without_revision(target.raw.hgetall(key)).items()}
            found[short] = dict(sorted(fields.items()))
        else:
            found[short] = [member.hex() for member in target.raw.zrange(key, 0, -1)]
    return found


async def told(uniform: Uniform) -> list[CheckpointTuple]:
    return sorted(await uniform.list(None), key=lambda one: str(one.config))


def restore(target: Target, golden: dict[str, Any]) -> None:
    for short, holds in golden.items():
        key = target.prefix.encode() + short.encode()
        if isinstance(holds, dict):
            fields = {bytes.fromhex(field): bytes.fromhex(value) for field, value in holds.items()}
            fields[b"@state"] = b"1 7 " + fields[b"@state"]
            target.raw.hset(key, mapping=fields)
        else:
            target.raw.zadd(key, {bytes.fromhex(member): 0 for member in holds})


async def test_what_is_stored_today_is_what_the_format_says(saver: Uniform, target: Target) -> None:
    await store(saver)
    assert stored(target) == json.loads(GOLDEN.read_text())


async def test_what_was_stored_is_read_and_goes_on(saver: Uniform, target: Target) -> None:
    other = target.uniform(prefix=target.prefix + "-other")
    await store(other)
    restore(target, json.loads(GOLDEN.read_text()))
    assert await told(saver) == await told(other)
    for one in await saver.threads():
        assert (await saver.check(one.thread_id)).sound
        where = (await saver.get_tuple(config(one.thread_id, ""))).config
        await put(saver, where, {"n": 9}, checkpoint_id="9", versions=versions(9, "n"))
        assert (await saver.get_tuple(config(one.thread_id))).checkpoint["channel_values"]["n"] == 9
        assert (await saver.get_thread_ttl(one.thread_id) is None) == (one.thread_id != "chat")


CALLS: dict[str, Callable[[Uniform, dict[str, Any]], Awaitable[Any]]] = {
    "put": lambda uniform, where: put(uniform, where, {"n": 2}),
    "put_writes": lambda uniform, where: uniform.put_writes(where, [("n", 1)], "task"),
    "get_tuple": lambda uniform, where: uniform.get_tuple(config()),
    "get_tuple by id": lambda uniform, where: uniform.get_tuple(where),
    "list": lambda uniform, where: uniform.list(config()),
    "list all": lambda uniform, where: uniform.list(None),
    "history": lambda uniform, where: uniform.get_delta_channel_history(config=where, channels=["n"]),
    "delete_thread": lambda uniform, where: uniform.delete_thread("thread"),
    "delete_for_runs": lambda uniform, where: uniform.delete_for_runs(["run"]),
    "copy_thread": lambda uniform, where: uniform.copy_thread("thread", "other"),
    "copy_thread onto": lambda uniform, where: uniform.copy_thread("sound", "thread"),
    "prune": lambda uniform, where: uniform.prune(["thread"]),
}
OURS: dict[str, Callable[[Uniform, dict[str, Any]], Awaitable[Any]]] = {
    "threads": lambda uniform, where: uniform.threads(),
    "set_thread_ttl": lambda uniform, where: uniform.set_thread_ttl("thread", timedelta(days=1)),
    "get_thread_ttl": lambda uniform, where: uniform.get_thread_ttl("thread"),
    "check": lambda uniform, where: uniform.check("thread"),
}


def everything(target: Target) -> dict[bytes, Any]:
    raw = target.raw
    return {
        key: raw.hgetall(key) if raw.type(key) == b"hash" else raw.zrange(key, 0, -1, withscores=True)
        for key in target.keys()
    }


def make_newer(target: Target) -> None:
    key = Keyspace(target.prefix).keys("thread").data_key
    _, rest = target.raw.hget(key, "@state").split(b" ", 1)
    target.raw.hset(key, "@state", b"%d of a shape that nobody knows today " % NEWER + rest)


async def test_a_newer_format_is_refused_and_left_as_it_is(saver: Uniform, target: Target) -> None:
    where = await put(saver, config(), {"n": 1})
    await put(saver, config("sound"), {"n": 1})
    make_newer(target)
    before = everything(target)
    for name, call in {**CALLS, **OURS}.items():
        with pytest.raises(
            UnsupportedFormat, match=rf"format {NEWER}, .* up to {scripts.FORMAT} .*Upgrade redis-saver"
        ):
            print(name, await call(saver, where))
        assert {key: holds for key, holds in everything(target).items() if key in before} == before, name


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
async def test_a_newer_format_is_refused_over_two_tiers(saver: Uniform, target: Target, mode: str) -> None:
    kind = AsyncTieredSaver if saver.native_async else TieredSaver
    uniform = Uniform(kind(saver.saver, InMemorySaver(), mode=mode, flusher=False))  # type: ignore[arg-type]
    where = await put(uniform, config(), {"n": 1})
    assert await uniform.flush() == 0
    assert await uniform.get_tuple(config())  # hot has it from now on
    make_newer(target)
    data = Keyspace(target.prefix).keys("thread").data_key
    before = target.raw.hgetall(data)
    for name in ("put", "put_writes", "get_tuple", "get_tuple by id", "delete_thread"):
        with pytest.raises(UnsupportedFormat):
            print(name, await CALLS[name](uniform, where))
        assert target.raw.hgetall(data) == before, name


if __name__ == "__main__":

    async def main() -> None:
        target = Target("redis", "sync", url_of("redis"), "golden")
        await store(target.uniform())
        print(json.dumps(stored(target), indent=1))

    asyncio.run(main())
