"""Long pending writes of odd shapes, crossed with keys, faults, removals, limits and damage, against a model."""

from __future__ import annotations

import asyncio
import itertools
import operator
from contextlib import nullcontext
from typing import Annotated, Any

import pytest
import valkey
import valkey.asyncio
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.graph import START, StateGraph
from redis.exceptions import ConnectionError as LostConnection
from tests.support import twins
from tests.support.counting import load_scripts
from tests.support.factories import config, ids
from tests.support.proxy import Proxy, proxy, through
from tests.support.raw import check_chunks, check_sound, size, writes_in_chunks
from tests.support.seeds import seeds_and_slow, targets
from tests.support.sharing import fields_of, said, text
from tests.support.tiering import Cold
from tests.support.twins import SHAPES, Draft, Report, Twin, check_stored, number_of
from tests.support.uniform import Target
from tests.support.wrappers import Around, Meanwhile, script_of
from typing_extensions import TypedDict

from redis_saver import ThreadDamaged
from redis_saver._checkpoint import pruning, scripts
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Sleep
from redis_saver._storage import chunks as chunked
from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import KeyUnavailable
from redis_saver.serde import StrictSerializer

ONE = pytest.mark.parametrize("target_name", targets("redis"))
SECRETS = {f"key-{n}": bytes([n]) * 32 for n in range(30)}
KINDS = ["plain", "zstd", "encrypted", "rotated"]


class LongLived(Keyset):
    """The keys of a process that learns of new ones in time, and wraps with the newest."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(SECRETS)
        self.names = names

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        return super().wrap(data_key, context, name or self.names[0])


class Savers:
    """Savers of one kind, each as in its own process. Those of the kind `rotated` have the keys of the moment."""

    def __init__(self, target: Target, kind: str) -> None:
        self.target, self.kind, self.names, self.client = target, kind, ["key-0"], target.client()

    def new(self, keys: Any = None, **more: Any) -> Any:
        return self.target.uniform(**{"client": self.client, **self.options(keys), **more})

    def options(self, keys: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = {"compression": "zstd"} if self.kind in ("zstd", "rotated") else {}
        if self.kind in ("encrypted", "rotated"):
            found["encryption"] = Encryption(keys or Keyset({each: SECRETS[each] for each in self.names}))
        return found

    async def rotate(self, writers: list[Any], *, data: bool, retires: bool) -> None:
        """Rotate to a new key. Others are retired when no process can have them in memory (docs/encryption.md)."""
        self.names.insert(0, f"key-{int(self.names[0][4:]) + 1}")
        done = await self.new().rotate_keys(data=data)
        assert (done.rotated, done.failed) == (int(bool(self.target.keys())), {})
        if retires:
            writers[:] = [self.new(LongLived(self.names)) for _ in writers]
            del self.names[1:]


async def step(twin: Twin, savers: Savers, writers: list[Any]) -> None:
    """Make one superstep: writes, some of them early or again, a put that shares them, and something in between."""
    chance, target = twin.chance, savers.target
    uniform, other = chance.sample([*writers, savers.new()], 2)
    twin.edit()
    if twin.number and twin.numbers():
        for _ in range(chance.choice([1, 1, 2])):
            await twin.write(uniform, *twin.some_writes(), task=chance.choice(["", "", "again"]))
    if chance.random() < 0.2:
        await twin.write(other, *twin.some_writes(), number=twin.number + 1)
    between = chance.choice(["nothing"] * 6 + ["flush", "prune", "delete", "runs", "rotate", "rotate", "copy"])
    numbers = twin.numbers()
    if between == "flush":
        target.raw.script_flush()
    elif between == "prune" and numbers:
        keep = chance.choice([1, 2, 4])
        await other.prune([twin.thread], keep_last=keep)
        twin.forget(lambda number: number not in numbers[:keep], prunes=True)
        if fields := fields_of(target, twin.thread):
            assert b"@gc_roots" not in fields
            check_sound(target, twin.thread)
    elif between == "delete":
        await other.delete_thread(twin.thread)
        twin.model.delete_thread(twin.thread)
        assert not fields_of(target, twin.thread)
    elif between == "runs":
        run = chance.choice(numbers or [0]) // 2
        await other.delete_for_runs([f"run {run}"])
        twin.forget(lambda number: number // 2 == run)
    elif between == "rotate" and savers.kind == "rotated":
        await savers.rotate(writers, data=chance.random() < 0.5, retires=chance.random() < 0.5)
    elif between == "copy":
        await other.copy_thread(twin.thread, "copy")
        await twin.check(savers.new(), thread="copy", each=False)
        if numbers:
            check_sound(target, "copy")
        await other.delete_thread("copy")
    elif between == "nothing" or not numbers:
        numbers = twin.numbers()
        parent = chance.choice([*numbers[:1] * 3, *numbers]) if numbers else 0
        await twin.put(uniform, parent, **{chance.choice("ab"): twin.value() for _ in range(chance.choice([1, 2]))})


async def play(savers: Savers, seed: object, length: int = 16, **options: Any) -> tuple[Twin, list[Any]]:
    """Make supersteps, and check all that is read and stored after each. Return the thread, and savers that know it."""
    twin, writers = Twin((savers.kind, seed)), [savers.new(LongLived(savers.names), **options) for _ in range(2)]
    for _ in range(length):
        await step(twin, savers, writers)
        await twin.check(savers.new(), each=False)
        check_stored(savers.target)
    await twin.check(savers.new(), *writers)
    return twin, writers


@pytest.mark.random
@pytest.mark.by_turns
@ONE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds_and_slow(range(2), range(2, 60)))
async def test_random_shapes_match_the_model(target: Target, kind: str, seed: int) -> None:
    savers = Savers(target, kind)
    twin, _ = await play(savers, seed)
    if kind in ("encrypted", "rotated"):
        await twin.put(savers.new(), 0, a=twin.value())
        stored = fields_of(target, twin.thread)
        dropped = savers.new(Keyset({"key-29": SECRETS["key-29"]}))
        write = dropped.put_writes(twin.where(twin.number), twin.some_writes(), "task")
        for call in (dropped.get_tuple(twin.where()), dropped.list(config(twin.thread)), write):
            with pytest.raises(KeyUnavailable):
                await call
        assert fields_of(target, twin.thread) == stored


@pytest.mark.random
@pytest.mark.parametrize("package", ["redis-py", "valkey-py"])
@pytest.mark.parametrize("target_name", targets("redis", "cluster"))
@pytest.mark.by_turns
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 10)))
async def test_random_shapes_through_other_clients(target: Target, package: str, seed: int) -> None:
    port, options = int(target.url.rpartition(":")[2]), {}
    if package == "valkey-py":
        module: Any = valkey.asyncio if target.flavour == "async" else valkey
        kind = module.ValkeyCluster if target.name == "cluster" else module.Valkey
        options = {"client": kind(host="127.0.0.1", port=port)}
        target._clients += options.values()
    await play(Savers(target, "rotated"), seed, 12, **options)


# -- classes


@ONE
@pytest.mark.by_turns
@pytest.mark.parametrize("shape", ["model", "dataclass"])
@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "the class is gone"])
async def test_a_reader_without_the_class_gets_plain_data(
    target: Target, shape: str, is_strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What LangGraph decodes, for a long write as for a short one, and for the value that shares its chunks."""
    savers, twin = Savers(target, "rotated"), Twin(shape)
    values = {"short": SHAPES[shape](["s", "t"]), "long": SHAPES[shape](twin.texts)}
    stored = {channel: said(value) for channel, value in values.items()}
    await twin.put(savers.new(), n=1)
    await twin.write(savers.new(), *values.items())
    await twin.put(savers.new(), long=values["long"])
    assert len(writes_in_chunks(fields_of(target))) == 1
    allowed = StrictSerializer().with_msgpack_allowlist([Report, Draft])
    await twin.check(savers.new(serde=allowed))
    if not is_strict:
        monkeypatch.delattr(twins, type(values["long"]).__name__)
    theirs = JsonPlusSerializer(**({"allowed_msgpack_modules": None} if is_strict else {}))
    expected = {channel: theirs.loads_typed(each) for channel, each in stored.items()}
    reader = savers.new(strict=is_strict)
    writes = (await reader.get_tuple(twin.where(1))).pending_writes
    assert {channel: value for _, channel, value in writes} == expected
    assert (await reader.get_tuple(twin.where())).checkpoint["channel_values"]["long"] == expected["long"]
    assert type(expected["short"]) is type(expected["long"]) is dict


# -- faults


FATES = ["cancelled before", "cancelled after", "reply lost", "client retries"]


@ONE
@pytest.mark.parametrize("again", ["by itself", "by another", "never"])
@pytest.mark.parametrize(
    "flavour,fate", [*itertools.product(["async"], FATES), *itertools.product(["sync"], FATES[2:])]
)
@pytest.mark.parametrize("kind", ["plain", "rotated"])
async def test_writes_that_ended_badly_can_be_repeated(
    target: Target, proxy: Proxy, kind: str, fate: str, again: str
) -> None:
    savers, twin = Savers(target, kind), Twin((kind, fate, again))
    uniform = through(proxy, target, retries=int(fate == "client retries"), **savers.options())
    load_scripts(target.raw)
    await twin.put(uniform, a=SHAPES["list"](twin.texts))
    twin.edit()
    value = SHAPES["messages"]([*twin.texts, text(1, 9000)])
    writing = twin.write(uniform, ("a", value), ("b", SHAPES["model"](twin.texts)), (INTERRUPT, value), task="one")
    if not fate.startswith("cancelled"):
        proxy.lose_reply(b"task one")
        with nullcontext() if fate == "client retries" else pytest.raises(LostConnection):
            await writing
        assert proxy.lost == 1
    else:
        reached = asyncio.Event()

        def around(request: Any) -> Any:
            reply = None if fate == "cancelled before" else (yield request)
            if script_of(request) is scripts.PUT_WRITES and not reached.is_set():
                reached.set()
                yield Sleep(60)
            return (yield request) if fate == "cancelled before" else reply

        Around(uniform.saver, around)
        task = asyncio.create_task(writing)
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    target.raw.script_flush()
    if again != "never":
        writer, known = uniform if again == "by itself" else savers.new(), twin.model.writes.copy()
        await twin.write(writer, ("a", value), ("b", SHAPES["model"](twin.texts)), (INTERRUPT, value), task="one")
        assert twin.model.writes == known
    elif fate == "cancelled before":
        twin.model.writes.clear()
    await twin.check(savers.new())
    check_sound(target)
    await twin.put(uniform, a=value, b=[SHAPES["model"](twin.texts)])
    await twin.check(savers.new(), uniform)
    check_sound(target)


class State(TypedDict):
    log: Annotated[list[Any], operator.add]
    one: Any
    two: Any


@ONE
@pytest.mark.parametrize("kind", ["plain", "rotated"])
async def test_a_fork_shares_chunks_of_writes_of_an_older_checkpoint(target: Target, kind: str) -> None:
    savers, texts = Savers(target, kind), Twin(kind).texts
    builder = StateGraph(State)
    for node in ("one", "two"):

        def act(state: State, node: str = node) -> dict[str, Any]:
            return {"log": [HumanMessage(text((node, len(state["log"])), 4000), id="m")], node: Draft("p", "", texts)}

        builder.add_node(node, act)
    builder.add_edge(START, "one").add_edge(START, "two")
    uniform, model = savers.new(), InMemorySaver()
    graphs = [Cold(builder.compile(checkpointer=each), False) for each in (uniform.saver, model)]
    graphs[0].native_async = uniform.native_async
    histories = []
    for graph in graphs:
        for _ in range(2):
            await graph.invoke({"log": ["in"], "one": {"now": texts}}, config())
        for back in (1, 3):
            past = await graph._drain("get_state_history", (config(),), {})
            fork = await graph.update_state(past[back].config, {"log": [text((0, 1), 4000), texts]}, as_node="one")
            await graph.invoke(None, fork)
        past = await graph._drain("get_state_history", (config(),), {})
        histories.append([(said(each.values), each.next, said(each.metadata)) for each in past])
    assert histories[0] == histories[1] and len(past) == 8
    check_sound(target)


# -- removals


@ONE
@pytest.mark.by_turns
@pytest.mark.parametrize("kind", KINDS)
async def test_a_history_limit_removes_what_only_old_writes_need(target: Target, kind: str) -> None:
    savers, twin = Savers(target, kind), Twin(kind)
    uniform = savers.new(history={"keep_last": 2})
    for number in range(40):
        twin.edit()
        await twin.put(uniform, a=twin.value())
        await twin.write(uniform if number % 3 else savers.new(), *twin.some_writes())
        if number % 5 == 0:
            await twin.write(uniform, *twin.some_writes(), number=twin.number + 1)
    left = {number_of(each) for each in ids(await uniform.list(config()))}
    assert 40 in left and len(left) < 36
    twin.forget(lambda number: number not in left, prunes=True)
    await twin.check(savers.new(), uniform)
    check_chunks(target)
    before = size(fields_of(target))
    await uniform.prune(["thread"], keep_last=1)
    twin.forget(lambda number: number != 40, prunes=True)
    await twin.check(savers.new(), uniform)
    check_sound(target)
    assert size(fields_of(target)) < before


@ONE
@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["plain", "rotated"])
@pytest.mark.parametrize("remover", ["prune", "delete_for_runs"])
@pytest.mark.parametrize("position", [1, 2])
async def test_a_removal_spares_chunks_that_writes_name_meanwhile(
    target: Target, kind: str, remover: str, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan, or what is left of it, has them among what nothing needs."""
    monkeypatch.setattr(pruning, "NAMES_PER_STEP", 12)
    savers, twin, calls = Savers(target, kind), Twin((kind, remover)), itertools.count(1)
    writer, other, value = savers.new(), savers.new(), [text(n, 3000) for n in range(4)]
    await twin.put(writer, a=value)
    await twin.put(writer, a=1)

    def before(request: Any) -> Any:
        is_now = script_of(request) is scripts.REMOVE and next(calls) == position
        return (lambda: twin.write(writer, ("a", {"again": value}))) if is_now else None

    Meanwhile(other.saver, before)
    await (other.prune(["thread"], keep_last=1) if remover == "prune" else other.delete_for_runs(["run 0"]))
    twin.forget(lambda number: number == 1, prunes=remover == "prune")
    assert next(calls) > position + 1 and len(writes_in_chunks(fields_of(target))) == 1
    await twin.check(savers.new(), writer)
    check_sound(target)  # before a put sends what is missing
    await twin.put(writer, a=value)
    await twin.check(savers.new(), writer)
    check_sound(target)


# -- damage

DAMAGE: dict[str, Any] = {
    "flipped": lambda stored, other: stored[:-1] + bytes([stored[-1] ^ 1]),
    "cut": lambda stored, other: stored[:-1],
    "empty": lambda stored, other: b"",
    "of another": lambda stored, other: other,
}


@ONE
@pytest.mark.by_turns
@pytest.mark.parametrize("damage", [*DAMAGE, "gone"])
@pytest.mark.parametrize("kind", KINDS)
async def test_damage_of_a_long_write_is_noticed(target: Target, kind: str, damage: str) -> None:
    savers, twin, where = Savers(target, kind), Twin(kind), Keyspace(target.prefix).keys("thread").data_key
    await twin.put(savers.new(), n=1)
    await twin.write(savers.new(), ("a", SHAPES["nested"]([text(n, 2500) for n in range(9)])), ("b", 1))
    stored, reader = fields_of(target), savers.new(cache_bytes=0)
    (root,) = writes_in_chunks(stored)
    chunks = sorted(chunked.reachable([root], stored))
    assert any(field[:1] == b"n" for field in chunks)
    for field, other in zip(chunks, [*chunks[1:], chunks[0]], strict=True):
        damaged = b"" if damage == "gone" else DAMAGE[damage](stored[field], stored[other])
        target.raw.hdel(where, field) if damage == "gone" else target.raw.hset(where, field, damaged)
        for call in (reader.get_tuple(config()), reader.list(config())):
            with pytest.raises(ThreadDamaged):
                await call
        if field in (chunks[0], chunks[-1]):  # as it tries five times
            assert not (await reader.check("thread")).sound
        target.raw.hset(where, field, stored[field])
    (task,) = [field for field in stored if field[:1] == b"w"]
    if damage in ("flipped", "of another"):
        changed = root[:-1] + bytes([root[-1] ^ 1]) if damage == "flipped" else root[::-1]
        target.raw.hset(where, task, stored[task].replace(root, changed))
        with pytest.raises(ThreadDamaged):
            await reader.get_tuple(config())
        target.raw.hset(where, task, stored[task])
    await twin.check(reader)
