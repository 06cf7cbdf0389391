"""The storage format: each thread has its number, older formats are read, and newer ones are refused.

`golden.json` has every kind of stored data in formats 1, 2 (`sends`) and 4 (`sealed`), and data of releases that cut only
between the elements of a value and of its `Send`s. After a change of the format, keep what is there and add the new format:

    PYTHONPATH=.:tests/storage python -m test_storage_format > tests/storage/golden.json
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.calls import CALLS
from tests.support.factories import chain, config, put
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS
from langgraph.types import Send
from tests.support.raw import contents, without_revision
from tests.support.servers import url_of
from tests.support.uniform import Target, Uniform, over
from tests.support.wrappers import ran

from redis_saver import DecodeError, UnsupportedFormat
from redis_saver._engine import scripts
from redis_saver._common.names import Keyspace
from redis_saver._tiered.context import Fills
from redis_saver._tiered import flushing
from redis_saver.encryption import Encryption, KeyContext, KeyProvider, WrappedKey

GOLDEN = Path(__file__).with_name("golden.json")
NEWER = scripts.FORMAT + 1
METADATA = {"source": "loop", "step": 1, "parents": {}, "run_id": "run-1"}


def versions(number: int, *channels: str) -> dict[str, str]:
    return dict.fromkeys(channels, f"{number:032}.{number:020}")


async def store(uniform: Uniform) -> None:
    """Put threads with each kind of stored data."""
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
    values, of_values = {"text": "t" * 900, "none": None}, {"text": 3, "none": 1.5}
    await put(uniform, config("chat", "sub|graph:1"), values, checkpoint_id="1.5", versions=of_values)
    values = {"bytes": b"\0" * 4000, "big": list(range(2000))}
    await put(uniform, config("a {strange} \0name%"), values, checkpoint_id="1")
    await uniform.set_thread_ttl("chat", timedelta(days=30))
    await put(uniform, config("pinned"), {"n": 1}, checkpoint_id="1")
    await uniform.pin("pinned")


async def store_sends(uniform: Uniform) -> None:
    """Put a thread with a `Send` of its state, as a pending write and as a value (format 2)."""
    history = [HumanMessage(f"question {number} " * 20, id=f"h{number}") for number in range(20)]
    state = {"messages": history, "files": {f"file {number}": "x" * 100 for number in range(30)}, "n": 1}
    sends = [Send("node", {"state": state, "item": item}) for item in range(2)]
    first = versions(1, *state)
    where = await put(uniform, config("sends"), {**state}, checkpoint_id="1", versions=first, metadata=METADATA)
    await uniform.put_writes(where, [("n", 2), *((TASKS, send) for send in sends)], "task-1", "path")
    second = {**first, **versions(2, TASKS)}
    await put(uniform, where, {**state, TASKS: sends}, checkpoint_id="2", versions=second)


class Refusing(InMemorySaver):
    """A cold saver that refuses some threads."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def put(self, config: Any, *more: Any, **options: Any) -> Any:
        if config["configurable"]["thread_id"] in self.refused:
            raise ValueError("not this one")
        return super().put(config, *more, **options)


BEHIND: dict[str, Any] = {"mode": "write-behind", "flusher": False}
_last_fill = Fills.of
TIERED = ("dirty", "flushed", "refused", "deleted", "coalesced", "filled", "intent")


@patch.object(Fills, "of", lambda fills, thread, ns, *_: _last_fill(fills, thread, ns))  # no id is a uuid6 with a time
async def store_tiers(hot: Uniform, cold: Refusing) -> None:
    """Put threads over a cold saver, in each state."""
    behind, latest = over(hot, cold, **BEHIND), over(hot, cold, **BEHIND, cold_history="latest")
    cold.refused = {"refused", "intent"}
    for thread in ("dirty", "flushed", "refused", "deleted", "coalesced"):
        uniform = latest if thread == "coalesced" else behind
        where = config(thread)
        assert await uniform.get_tuple(where) is None
        for number in (1, 2):
            where = await put(uniform, where, {"n": number}, checkpoint_id=f"{number}", versions=versions(number, "n"))
            await uniform.put_writes(where, [("n", number + 1)], "task", "path")
        if thread != "dirty":
            await ran(uniform, flushing.flush(uniform.saver._context, thread, at_once=True))
    await behind.delete_thread("deleted")
    filled = Uniform(cold)  # type: ignore[arg-type]
    where = await put(filled, config("filled"), {"n": 1}, checkpoint_id="1", versions=versions(1, "n"))
    cold.put_writes(where, [("n", 2)], "task", "path")
    assert await behind.get_tuple(config("filled"))
    with pytest.raises(ValueError, match="not this one"):
        await put(over(hot, cold), config("intent"), {"n": 1}, checkpoint_id="1", versions=versions(1, "n"))
    cold.refused = set()


def note(key: bytes, field: bytes, value: bytes) -> bytes:
    """Content of a field of `:flush` or `:lease`, without times and random parts."""
    if field[:1] == b"x":
        tries, _, error = value.split(b" ", 2)
        return tries + b" 0 " + error
    return b"" if field in (b"token", b"until") else value


def stored(target: Target) -> dict[str, Any]:
    """All keys as JSON, without times."""
    found: dict[str, Any] = {}
    for key in target.keys():
        short, kind = key.removeprefix(target.prefix.encode()).decode("utf-8"), target.raw.type(key)
        if kind == b"hash":
            fields = target.raw.hgetall(key)
            if key.endswith(b":data"):
                fields = without_revision(fields)
                told = (field for field in fields if field.startswith((b"@complete", b"@has_latest")))
                fields.update(dict.fromkeys(told, b"1"))  # instead of a fill's token
            else:
                fields = {field: note(key, field, value) for field, value in fields.items()}
            found[short] = {field.hex(): value.hex() for field, value in sorted(fields.items())}
        elif kind == b"zset":
            members = target.raw.zrange(key, 0, -1)
            if key.endswith(b":intents"):
                members = [member[15:32] for member in members]
            found[short] = [member.hex() for member in members]
    return found


async def told(uniform: Uniform) -> list[CheckpointTuple]:
    return sorted(await uniform.list(None), key=lambda one: str(one.config))


def restore(target: Target, golden: dict[str, Any], number: int = 1) -> None:
    """Store the contents of a golden file, in a format."""
    for short, holds in golden.items():
        key = target.prefix.encode() + short.encode()
        if isinstance(holds, dict):
            fields = {bytes.fromhex(field): bytes.fromhex(value) for field, value in holds.items()}
            if b"@state" in fields:
                fields[b"@state"] = b"%d 7 " % number + fields[b"@state"]
                fields[b"@rewritten"] = b"7"
            target.raw.hset(key, mapping=fields)
            continue
        members = [bytes.fromhex(member) for member in holds]
        if short.endswith(":intents"):  # of a dead writer
            members = [b"0" * 15 + member + b"t" * 32 for member in members]
        scores = range(1, len(members) + 1) if short.endswith(":dirty") else [0] * len(members)
        target.raw.zadd(key, dict(zip(members, scores, strict=True)))


def golden(kind: str) -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())[kind]  # type: ignore[no-any-return]


def encrypted() -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


class Unbound(KeyProvider):
    """Wraps nothing, so the golden threads are read under each prefix."""

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        return WrappedKey("unbound", data_key)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        return wrapped.data


def sealed() -> Encryption:
    return Encryption(Unbound())


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "zstd": lambda: {"compression": "zstd"},
    "encrypted": lambda: {"serde": encrypted()},
}
"""Settings of a saver."""


@pytest.mark.parametrize("kind", KINDS)
async def test_threads_are_stored_as_the_format_says(target: Target, kind: str) -> None:
    """Zstd releases and ciphertexts differ, so of these only the names are compared."""
    await store(target.uniform(**KINDS[kind]()))
    found, wanted = stored(target), golden(kind)
    if kind == "plain":
        assert found == wanted
    else:
        assert {key: list(holds) for key, holds in found.items()} == {key: list(holds) for key, holds in wanted.items()}


@pytest.mark.parametrize("kind", [*KINDS, "plain, cut by elements"])
async def test_stored_threads_can_be_read_and_continued(target: Target, kind: str) -> None:
    settings = KINDS[kind.split(",")[0]]()
    saver, other = target.uniform(**settings), target.uniform(prefix=target.prefix + "-other")
    await store(other)
    restore(target, golden(kind))
    assert await told(saver) == await told(other)
    await check_continued(saver)


async def check_continued(saver: Uniform) -> None:
    """Check that all threads are sound and can be continued."""
    for one in await saver.threads():
        assert (await saver.check(one.thread_id)).sound
        where = (await saver.get_tuple(config(one.thread_id, ""))).config
        await put(saver, where, {"n": 9}, checkpoint_id="9", versions=versions(9, "n"))
        assert (await saver.get_tuple(config(one.thread_id))).checkpoint["channel_values"]["n"] == 9
        assert (await saver.get_thread_ttl(one.thread_id) is None) == (one.thread_id != "chat")


async def test_encrypted_threads_of_format_4_are_read_and_continued(target: Target) -> None:
    """Their records are of the first rule. An old one does not pass beside those of the second."""
    saver, other = target.uniform(encryption=sealed()), target.uniform(prefix=target.prefix + "-other")
    await store(other)
    restore(target, golden("sealed, format 4"), 4)
    assert await told(saver) == await told(other)
    data = Keyspace(target.prefix).keys("chat").data_key
    question = next(field for field in target.raw.hkeys(data) if field.endswith(b"task-2\0-3"))
    old = target.raw.hget(data, question)
    assert b"11:msgpack+siv" in old and target.raw.hget(data, "@state").startswith(b"4 ")
    where = config("chat", checkpoint_id="1")
    await saver.put_writes(where, [(INTERRUPT, "and this?"), (RESUME, ["yes"])], "task-2")
    assert target.raw.hget(data, "@state").startswith(b"5 ")
    assert ("task-2", INTERRUPT, "and this?") in (await saver.get_tuple(where)).pending_writes
    newest = target.raw.hget(data, question)
    target.raw.hset(data, question, old)
    with pytest.raises(DecodeError, match="an earlier one was put in its place"):
        await saver.get_tuple(where)
    target.raw.hset(data, question, newest)
    await check_continued(saver)


async def test_sends_are_stored_as_format_2_says_and_read(target: Target) -> None:
    saver = target.uniform()
    await store_sends(saver)
    assert stored(target) == golden("sends")
    data = Keyspace(target.prefix).keys("sends").data_key
    assert target.raw.hget(data, "@state").startswith(b"3 ")
    wanted = await told(saver)
    for kind in ("sends", "sends, cut by elements"):
        await saver.delete_thread("sends")
        restore(target, golden(kind), 2)
        assert await told(target.uniform()) == wanted
        assert (await saver.check("sends")).sound


async def test_older_threads_without_a_rewrite_mark_are_read(saver: Uniform, target: Target) -> None:
    """Without `@rewritten`, histories are read completely each time, until something is rewritten."""
    key = Keyspace(target.prefix).keys("thread").data_key
    configs = await chain(saver, "thread", 5)
    await saver.put_writes(configs[0], [("log", 1)], "task")
    target.raw.hdel(key, "@rewritten")
    for task in (2, 3, 4):
        await saver.put_writes(configs[task], [("log", task)], "task")
        await saver.put_writes(configs[1], [("log", f"late {task}")], f"task-{task}")
        for uniform in (saver, target.uniform()):
            history = await uniform.get_delta_channel_history(config=configs[-1], channels=["log"])
            late = [f"late {before}" for before in range(2, task + 1)]
            assert [write[2] for write in history["log"]["writes"]] == [1, *late, *range(2, min(task, 3) + 1)]
        assert not target.raw.hexists(key, "@rewritten")
        assert not saver.saver._context.chunk_cache.of(key).points.get("")
    await saver.put_writes(configs[0], [("log", 1), ("log", "more")], "task")
    history = await saver.get_delta_channel_history(config=configs[-1], channels=["log"])
    assert [write[2] for write in history["log"]["writes"]][:2] == [1, "more"]
    assert target.raw.hexists(key, "@rewritten")
    assert saver.saver._context.chunk_cache.of(key).points.get("")


async def test_two_tiers_store_what_the_format_says(saver: Uniform, target: Target) -> None:
    await store_tiers(saver, Refusing())
    assert stored(target) == golden("tiers")


async def test_stored_threads_of_two_tiers_are_read_and_flushed(saver: Uniform, target: Target) -> None:
    other, cold = target.uniform(prefix=target.prefix + "-other"), Refusing()
    await store_tiers(other, cold)
    cold_of_other = copy.deepcopy(cold)
    restore(target, golden("tiers"))
    ours, theirs = over(saver, cold, **BEHIND), over(other, cold_of_other, **BEHIND)
    for thread in TIERED:
        assert await ours.get_tuple(config(thread)) == await theirs.get_tuple(config(thread)), thread
        assert (await ours.get_tuple(config(thread)) is None) == (thread in ("deleted", "intent"))
    assert await ours.flush(timeout=20) == await theirs.flush(timeout=20) == 0
    for thread in TIERED:
        assert list(cold.list(config(thread))) == list(cold_of_other.list(config(thread))), thread
        assert await ours.list(config(thread)) == await theirs.list(config(thread)), thread


REFUSED = (
    "put", "put_writes", "get_tuple", "get_tuple by id", "list", "list all", "history", "delete_thread", "delete_for_runs",
    "copy_thread", "prune", "threads", "set_thread_ttl", "get_thread_ttl", "check",
)  # fmt: skip


def make_newer(target: Target) -> None:
    key = Keyspace(target.prefix).keys("thread").data_key
    _, rest = target.raw.hget(key, "@state").split(b" ", 1)
    target.raw.hset(key, "@state", b"%d of a shape that nobody knows today " % NEWER + rest)


async def test_a_newer_format_is_refused_and_left_unchanged(saver: Uniform, target: Target) -> None:
    where = await put(saver, config(), {"n": 1})
    await put(saver, config("sound"), {"n": 1})
    make_newer(target)
    before = contents(target)
    onto = {"a copy onto it": lambda uniform, where: uniform.copy_thread("sound", "thread")}
    for name, call in {**{name: CALLS[name] for name in REFUSED}, **onto}.items():
        said = rf"format {NEWER}, .* up to {scripts.FORMAT} .*Upgrade redis-saver"
        with pytest.raises(UnsupportedFormat, match=said):
            print(name, await call(saver, where))
        assert {key: holds for key, holds in contents(target).items() if key in before} == before, name


@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
async def test_two_tiers_refuse_a_newer_format(saver: Uniform, target: Target, mode: str) -> None:
    uniform = over(saver, Refusing(), mode=mode, flusher=False)
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
        made: dict[str, Any] = {}
        for kind, settings in KINDS.items():
            target = Target("redis", "sync", url_of("redis"), f"golden-{kind}")
            await store(target.uniform(**settings()))
            made[kind] = stored(target)
        for kind, store_kind in (("tiers", lambda hot: store_tiers(hot, Refusing())), ("sends", store_sends)):
            target = Target("redis", "sync", url_of("redis"), f"golden-{kind}")
            await store_kind(target.uniform())
            made[kind] = stored(target)
        print(json.dumps(made, indent=1))

    asyncio.run(main())
