"""Both tiers give the same types, metadata, order of writes and histories."""

from __future__ import annotations

import math
import random
import struct
from enum import Enum, IntEnum
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME, _DeltaSnapshot

from redis_saver._common.postgres import as_json
from tests.support import seeds
from tests.support.factories import checkpoint, config, ids
from tests.support.tiering import Tiers, both_modes, drained, plain, only_in_cold

pytestmark = pytest.mark.also_on(cluster="sync")


class Color(str, Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 2


class Celsius(float):
    """A type that no serializer knows. Postgres takes it as JSON, and hot goes without the checkpoint."""


SCALARS: dict[str, Any] = {
    "a str Enum": Color.RED,
    "an IntEnum": Level.HIGH,
    "a whole float": 1e16,
    "one": 1.0,
    "minus zero": -0.0,
    "a tiny float": 5e-324,
    "NaN": math.nan,
    "infinity": math.inf,
    "a NUL": "a\0b",
    "a text": "ünder \u2028",
    "an int": 2**62,
    "a bool": True,
    "None": None,
}


def typed(values: dict[str, Any]) -> Any:
    """Return values in a form in which equal numbers of different types differ."""
    return {name: (type(value), repr(value)) for name, value in values.items()}


@pytest.mark.encrypted_too
@both_modes
async def test_scalars_keep_their_types_in_both_tiers(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    await uniform.get_tuple(config())
    versions = {name: f"{number:032}.1" for number, name in enumerate(SCALARS)}
    first = await uniform.put(config(), checkpoint(SCALARS, versions), {"step": 0}, versions)
    new = {"one": f"{99:032}.1"}
    child = checkpoint({**SCALARS, "one": 2.0}, {**versions, **new})  # all others are unchanged
    second = await uniform.put(first, child, {"step": 1}, new)
    await drained(uniform)
    expected = [typed(SCALARS), typed({**SCALARS, "one": 2.0})]
    for is_lost in (False, True):
        if is_lost:
            tiers.evict()
        reader = await tiers.uniform(**mode)
        found = [(await reader.get_tuple(where)).checkpoint["channel_values"] for where in (first, second)]
        assert list(map(typed, found)) == expected
        listed = [saved.checkpoint["channel_values"] for saved in await reader.list(config())]
        assert list(map(typed, reversed(listed))) == expected
        assert not (await reader.check("thread")).findings
    if not tiers.target.is_encrypted:  # LangGraph's own saver reads the rows
        cold = await tiers.cold_uniform()
        assert typed((await cold.get_tuple(second)).checkpoint["channel_values"]) == expected[1]


@pytest.mark.plain("LangGraph's saver wrote the rows")
@both_modes
async def test_rows_from_before_stay_as_cold_gives_them(tiers: Tiers, mode: dict[str, Any]) -> None:
    cold, versions = await tiers.cold_uniform(), {"n": "1", "other": "1"}
    old = await cold.put(config(), checkpoint({"n": 1e16, "other": 1}, versions), {}, versions)
    uniform = await tiers.uniform(**mode)
    saved = await uniform.get_tuple(config())
    assert typed(saved.checkpoint["channel_values"])["n"] == (int, "1" + "0" * 16)
    new = {"other": "2"}
    where = await uniform.put(old, checkpoint({"n": 1e16, "other": 2}, {**versions, **new}), {}, new)
    await only_in_cold(tiers, uniform)
    found = (await (await tiers.uniform(**mode)).get_tuple(where)).checkpoint["channel_values"]
    assert typed(found)["n"] == (int, "1" + "0" * 16)


@pytest.mark.plain("cold takes no JSON")
async def test_a_scalar_that_only_json_takes_is_in_cold_alone(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    await uniform.put(config(), checkpoint({"n": Celsius(1.5)}), {}, {"n": "1"})
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 1.5}


METADATA = {"source": "loop", "step": 1, "parents": {}, "writes": {"a": 1}, "floats": [-0.0, 1e16, 0.1, 1e-7]}
METADATA |= {"keys": {1: "a", None: "b"}, "pair": ("x", [Level.HIGH]), "nul": "a\0b"}
AS_JSON = {"source": "loop", "step": 1, "parents": {}, "floats": [0.0, 10**16, 0.1, 1e-7], "user": "ada", "lang": "en"}
AS_JSON |= {"keys": {"1": "a", "null": "b"}, "pair": ["x", [2]], "nul": "ab"}


@pytest.mark.encrypted_too
@both_modes
async def test_metadata_are_json_in_both_tiers(tiers: Tiers, mode: dict[str, Any]) -> None:
    """With those of the config, and without `writes`."""
    uniform = await tiers.uniform(**mode)
    await uniform.get_tuple(config())
    where = {"configurable": config(user="ada")["configurable"], "metadata": {"lang": "en", "writes": "w"}}
    await uniform.put(where, checkpoint({"n": [1]}), METADATA, {"n": "1"})
    for is_lost in (False, True):
        if is_lost:
            await only_in_cold(tiers, uniform)
        reader = await tiers.uniform(**mode)
        (listed,) = await reader.list(config())
        got = await reader.get_tuple(config())
        assert repr(got.metadata["floats"]) == repr(AS_JSON["floats"])
        assert got.metadata == listed.metadata == AS_JSON


@both_modes
@pytest.mark.plain("the metadata are sealed")
async def test_a_cold_that_merges_no_metadata_gets_them_merged(tiers: Tiers, mode: dict[str, Any]) -> None:
    class NotMerging(InMemorySaver):
        def put(self, where: Any, made: Any, metadata: Any, new: Any) -> Any:
            return super().put({"configurable": where["configurable"]}, made, metadata, new)

    cold = NotMerging()
    uniform = await tiers.uniform(cold=cold, **mode)
    await uniform.get_tuple(config())
    await uniform.put({**config(), "metadata": {"lang": "en"}}, checkpoint({"n": 1}), {1: ["a"]}, {"n": "1"})
    got = (await uniform.get_tuple(config())).metadata
    await only_in_cold(tiers, uniform)
    again = (await (await tiers.uniform(cold=cold, **mode)).get_tuple(config())).metadata
    assert got == again == {1: ["a"], "lang": "en"}


@pytest.mark.random
def test_jsonb_gives_back_what_as_json_says(postgres: str) -> None:
    chosen = random.Random(seeds.seed())
    numbers = [struct.unpack("d", chosen.randbytes(8))[0] for _ in range(500)]
    numbers += [chosen.uniform(-1, 1) * 10.0 ** chosen.randint(-30, 30) for _ in range(500)]
    numbers += [float(chosen.randint(-(10**18), 10**18)) for _ in range(200)] + [0.0, -0.0, 1e16, 1e15, 1e22, 1e-5]
    metadata = {"numbers": [number for number in numbers if math.isfinite(number)]}
    with psycopg.connect(postgres) as connection:
        (stored,) = connection.execute("SELECT %s::jsonb", (psycopg.types.json.Jsonb(metadata),)).fetchone() or ()
    assert repr(as_json(metadata)) == repr(stored)


# -- copies


@both_modes
@pytest.mark.parametrize("kind", ["postgres", "memory"])
async def test_a_copy_keeps_the_order_of_writes(tiers: Tiers, mode: dict[str, Any], kind: str) -> None:
    """Also if hot knows the paths of some tasks only, and cold returns none."""
    cold = InMemorySaver() if kind == "memory" else await tiers.cold()
    uniform = await tiers.uniform(cold=cold, **mode)
    await uniform.get_tuple(config())
    where = await uniform.put(config(), checkpoint({"n": 1}), {}, {"n": "1"})
    for number, path in enumerate(("~b", "a", "00000001", "c")):
        await uniform.put_writes(where, [("n", number), ("m", number)], f"task-{9 - number}", path)
    await uniform.put_writes(where, [(INTERRUPT, ["?"])], "task-9", "a")  # under another path than its other writes
    await only_in_cold(tiers, uniform)
    again = await tiers.uniform(cold=cold, **mode)
    await again.get_tuple(where)  # a fill without the paths
    await again.put_writes(where, [("n", "late")], "task-0", "b")
    await again.put_writes(where, [(RESUME, "!")], "task-9", "a")
    await drained(again)
    await again.copy_thread("thread", "copy")
    one, other = await again.get_tuple(config()), await again.get_tuple(config("copy"))
    assert other.pending_writes == one.pending_writes
    await drained(again)
    tiers.evict(thread="copy")
    assert (await again.get_tuple(config("copy"))).pending_writes == one.pending_writes


# -- a clock that was ahead


@pytest.mark.encrypted_too
@both_modes
async def test_a_history_follows_parents_whatever_their_ids(tiers: Tiers, mode: dict[str, Any]) -> None:
    """A worker's clock was 30 s ahead. Another one continues its checkpoint by id."""
    uniform = await tiers.uniform(**mode)
    await uniform.get_tuple(config())
    made = [str(uuid6()) for _ in range(6)]
    ahead = "ffff0000-0000-6000-8000-000000000000"
    where = config()
    for number, checkpoint_id in enumerate([made[0], made[1], ahead, *made[2:]]):
        version = {"log": f"{number + 1:032}.1"}
        values = {"log": _DeltaSnapshot(["begin"])} if number == 0 else {}
        where = await uniform.put(where, checkpoint(values, version, checkpoint_id), {"step": number}, version)
        await uniform.put_writes(where, [("log", [f"in{number}"])], f"task-{number}", "path")
    await drained(uniform)
    expected = {"seed": _DeltaSnapshot(["begin"]), "writes": [(f"task-{n}", "log", [f"in{n}"]) for n in range(6)]}
    later = "ffff0001-0000-6000-8000-000000000000"
    for target in (where, None):
        if target is None:
            version = {"log": f"{9:032}.1"}
            target = await uniform.put(where, checkpoint({}, version, later), {"step": 9}, version)
            await drained(uniform)
            expected["writes"] = [*expected["writes"], ("task-6", "log", ["in6"])]
        tiers.evict()
        for _ in range(2):
            reader = await tiers.uniform(**mode)
            history = await reader.get_delta_channel_history(config=target, channels=["log"])
            assert history["log"] == expected
            await reader.get_tuple(target)
    assert ids(await reader.list(config()))[0] == later
    assert plain(await reader.get_tuple(config()))
