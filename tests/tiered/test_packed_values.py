"""Packed bytes move between the tiers: whoever reads, others get what was put, and Postgres keeps its bytes."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT, _DeltaSnapshot
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from redis_saver._tiered import scripts
from tests.support.factories import checkpoint, config
from tests.support.talking import call_graph
from tests.support.tiering import BEHIND, TABLES, Tiers, between, both_modes, drained, keys_of, plain
from tests.support.uniform import Uniform

pytestmark = pytest.mark.also_on(cluster="sync")
KEY = b"k" * 32


class Place(BaseModel):
    name: str


class Loud(BaseModel):
    """Its validator adds a mark each time."""

    text: str

    @field_validator("text")
    @classmethod
    def louder(cls, text: str) -> str:
        return f"{text}!"


@contextmanager
def without_classes() -> Iterator[None]:
    """As in a process of an older release."""
    module, classes = sys.modules[__name__], {"Place": Place, "Loud": Loud}
    for name in classes:
        delattr(module, name)
    try:
        yield
    finally:
        vars(module).update(classes)


STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)
READERS: dict[str, tuple[Callable[[], Any], dict[str, Any], Any]] = {
    "lacks the classes": (without_classes, {}, None),
    "is strict": (nullcontext, {"strict": True}, STRICT),
    "validates again": (nullcontext, {}, None),
}


async def reader_of(tiers: Tiers, hot: dict[str, Any], serde: Any, **settings: Any) -> Uniform:
    cold = await tiers.cold()
    if serde is not None:
        cold.serde = serde
    return await tiers.uniform(hot=hot, cold=cold, **settings)


async def objects_put(uniform: Uniform) -> list[dict[str, Any]]:
    """Put objects in values, in pending writes, and in the snapshot and the writes of a `DeltaChannel`."""
    await uniform.get_tuple(config())
    first, second = ({"log": f"{number:032}.1", "place": f"{number:032}.1"} for number in (1, 2))
    values = {"log": _DeltaSnapshot([Place(name="snapshot")]), "place": {"at": [Place(name="x"), Loud(text="a")]}}
    parent = await uniform.put(config(), checkpoint(values, first), {"step": 0}, first)
    await uniform.put_writes(parent, [("log", [Place(name="written")]), ("place", Loud(text="b"))], "task-1", "path")
    newest = await uniform.put(parent, checkpoint({"place": Loud(text="c")}, second), {"step": 1}, second)
    await uniform.put_writes(newest, [("place", [Place(name="pending")]), (INTERRUPT, [Loud(text="d")])], "task-2", "p")
    return [parent, newest]


def rows(tiers: Tiers) -> Any:
    return [sorted(tiers.sql(f"SELECT * FROM {table}"), key=repr) for table in TABLES.split(", ")]


async def everything(uniform: Uniform, stored: list[dict[str, Any]]) -> Any:
    history = await uniform.get_delta_channel_history(config=stored[1], channels=["log", "place"])
    return [plain(await uniform.get_tuple(where)) for where in (config(), *stored)], dict(history)


@pytest.mark.encrypted_too
@both_modes
@pytest.mark.parametrize("reader", READERS)
async def test_a_reader_changes_nothing_for_others(tiers: Tiers, mode: dict[str, Any], reader: str) -> None:
    make, hot, serde = READERS[reader]
    worker = await tiers.uniform(**mode)
    stored = await objects_put(worker)
    await drained(worker)
    expected, before = await everything(await tiers.uniform(), stored), rows(tiers)
    assert expected[0][0][1]["channel_values"]["place"].text.startswith("c!")
    for _ in range(2):
        tiers.evict()
        other = await reader_of(tiers, hot, serde, **mode)
        with make():
            await everything(other, stored)
            assert other.saver.stats().tiers.rehydrations > 0
            assert not (await other.check("thread")).findings
            await other.copy_thread("thread", "copy")
            await other.flush()
    fresh = await tiers.uniform(**mode)
    assert await everything(fresh, stored) == expected
    assert fresh.saver.stats().tiers.misses == 0
    assert (await fresh.check("thread")).findings == ()
    copied = [{"configurable": {**where["configurable"], "thread_id": "copy"}} for where in stored]
    of_copy = await everything(await tiers.uniform(), copied)
    assert [one[1] for one in of_copy[0][1:]] == [one[1] for one in expected[0][1:]]
    assert of_copy[1] == expected[1]
    of_thread = [[row for row in table if row[0] == "thread"] for table in rows(tiers)]
    assert of_thread == before


@pytest.mark.plain("its savers encrypt by their serializers")
@pytest.mark.parametrize("encrypts", ["hot", "cold", "both"])
async def test_ciphers_of_serializers_carry_too(tiers: Tiers, encrypts: str) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    hot = {} if encrypts == "cold" else {"serde": serde}

    async def another() -> Uniform:
        return await reader_of(tiers, hot, None if encrypts == "hot" else serde, **BEHIND)

    worker = await another()
    stored = await objects_put(worker)
    with without_classes():
        await drained(await another())
    expected = await everything(await another(), stored)
    tiers.evict()
    with without_classes():
        await everything(await another(), stored)
    fresh = await another()
    assert await everything(fresh, stored) == expected
    assert fresh.saver.stats().tiers.misses == 0


class Own(JsonPlusSerializer):
    """A serializer of the user's."""


class Silent(BaseCheckpointSaver[str]):
    """A saver that hands calls to another one, so it is not known what decodes its values."""

    def __init__(self, saver: Any) -> None:
        super().__init__()
        self.saver = saver

    def __getattribute__(self, name: str) -> Any:
        own = name in ("saver", "serde", "with_allowlist", "decodes_only_by_serde") or name.startswith("_")
        return object.__getattribute__(self, name) if own else getattr(self.saver, name)


@pytest.mark.plain("cold has envelopes then, or is refused")
@pytest.mark.parametrize("kind", ["own", "own and memory", "denies", "silent", "redis"])
async def test_a_cold_without_bytes_fills_only_what_was_surely_decoded(tiers: Tiers, kind: str) -> None:
    """Another Redis tells its bytes. Of LangGraph's savers a serializer of one's own, or a subclass, may hide them."""
    cold: Any = InMemorySaver() if kind == "own and memory" else await tiers.cold()
    if kind.startswith("own"):
        cold.serde = Own()
    elif kind == "denies":
        cold = type("Denies", (type(cold),), {"decodes_only_by_serde": False})(cold.conn)
    elif kind == "silent":
        cold = Silent(cold)
    elif kind == "redis":
        cold = tiers.target.uniform(prefix="cold").saver
    worker = await tiers.uniform(cold=cold)
    made = {"text": ["a"], "place": Place(name="b"), "loud": Loud(text="c")}
    stored = {
        name: await worker.put(config(name), checkpoint({"n": value}), {}, {"n": "1"}) for name, value in made.items()
    }
    for with_class, filled in ((without_classes, ["text"]), (nullcontext, ["text", "place"])):
        for name in made:
            tiers.evict(thread=name)
        reader = await tiers.uniform(cold=cold)
        with with_class():
            for where in stored.values():
                assert await reader.get_tuple(where)
                assert await reader.get_delta_channel_history(config=where, channels=["n"])
        expected = {"silent": [], "redis": list(made)}.get(kind, filled)
        assert [name for name in made if tiers.target.raw.exists(keys_of(tiers, name).data_key)] == expected
    fresh = await tiers.uniform(cold=cold)
    for name, value in made.items():
        found = (await fresh.get_tuple(stored[name])).checkpoint["channel_values"]["n"]
        assert found == (value if name != "loud" else Loud(text="c!"))


@pytest.mark.plain("cold has envelopes then")
@pytest.mark.parametrize("kind", ["json", "pickle"])
async def test_a_checkpoint_that_cold_stores_whole_is_read_in_its_old_forms(tiers: Tiers, kind: str) -> None:
    cold = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
    worker = await tiers.uniform(cold=cold)
    where = await worker.put(config(), checkpoint({"n": [1]}), {}, {"n": "1"})
    (checkpoint_id, (stored, *rest)), *_ = cold.storage["thread"][""].items()
    whole = {**cold.serde.loads_typed(stored), "channel_values": {"old": {"a": 1}}}
    encoded = json.dumps(whole).encode() if kind == "json" else pickle.dumps(whole)
    cold.storage["thread"][""][checkpoint_id] = ((kind, encoded), *rest)
    tiers.evict()
    for hits in (0, 1):
        reader = await tiers.uniform(cold=cold)
        assert plain(await reader.get_tuple(where)) == plain(cold.get_tuple(where))
        assert reader.saver.stats().tiers.hits == hits


class Unpackable:
    """A type that is stored as a pickle, with all that has it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unpackable) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.plain("cold has envelopes then")
@both_modes
async def test_pickled_metadata_are_read_and_copied_but_fill_nothing(tiers: Tiers, mode: dict[str, Any]) -> None:
    cold = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
    metadata, value = {"x": Unpackable(1)}, {"n": Unpackable(2)}
    cold.put(config(), checkpoint(value, {"n": "1"}), metadata, {"n": "1"})
    uniform = await tiers.uniform(cold=cold, **mode)
    await uniform.copy_thread("thread", "copy")
    for thread in ("thread", "copy", "thread"):
        found = await uniform.get_tuple(config(thread))
        assert (found.metadata, found.checkpoint["channel_values"]) == (metadata, value)
        (listed,) = await uniform.list(config(thread), filter=metadata)
        assert listed.metadata == metadata
    assert not tiers.target.raw.exists(keys_of(tiers).data_key)


class Trip(TypedDict):
    place: Any
    turns: int


@pytest.mark.encrypted_too
@both_modes
async def test_a_turn_of_an_older_release_keeps_what_it_does_not_change(tiers: Tiers, mode: dict[str, Any]) -> None:
    """Redis loses the thread before the turn, or between its read and its first write."""

    def graph(saver: Any) -> Any:
        builder = StateGraph(Trip).add_node("go", lambda state: {"turns": state["turns"] + 1})
        return builder.add_edge(START, "go").compile(checkpointer=saver)

    async def turn(saver: Any, given: Any) -> None:
        await call_graph(graph(saver), "invoke", given, config())

    async def lose() -> None:
        tiers.evict()

    worker = await tiers.uniform(**mode)
    await turn(worker.saver, {"place": Place(name="x"), "turns": 0})
    for loses_late in (False, True):
        await worker.flush()
        tiers.evict()
        older = await tiers.uniform(**mode)
        if loses_late:
            between(older, scripts.PUT_BEHIND if mode else scripts.BEGIN_INTENT, lose)
        with without_classes():
            await turn(older.saver, {"turns": 5})
            await older.flush()
        for is_lost in (False, True):
            if is_lost:
                tiers.evict()
            values = (await (await tiers.uniform(**mode)).get_tuple(config())).checkpoint["channel_values"]
            assert values["place"] == Place(name="x")
            assert values["turns"] == 6
