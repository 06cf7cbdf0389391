"""Filters of `list` over two tiers: the same answer whichever tier gives it, and each row of cold read once."""

from __future__ import annotations

import operator
import random
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from redis_saver._checkpoint import listing
from redis_saver._tiered import listing as tiered_listing
from tests.support.cases import case
from tests.support.factories import checkpoint, config, ids, late_id
from tests.support.seeds import seeds_and_slow, targets
from tests.support.tiering import BEHIND, Cold, FlakySaver, Tiers, both_modes, drained
from tests.support.uniform import Uniform

pytestmark = pytest.mark.encrypted_too
ON_REDIS = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


class Row(NamedTuple):
    thread: str
    ns: str
    checkpoint_id: str
    metadata: dict[str, Any]


async def stored(savers: list[Any], rows: list[Row]) -> None:
    for thread, ns, checkpoint_id, metadata in rows:
        for saver in savers:
            await saver.put(config(thread, ns), checkpoint({}, {}, checkpoint_id), metadata, {})


class Watched:
    """Notes the filters that cold gets, and the number of rows that it returns."""

    def __init__(self, cold: Any, monkeypatch: Any) -> None:
        self.filters, self.rows = list[Any](), 0
        kind, name = type(cold), "alist" if type(cold).__name__.startswith("Async") else "list"
        method = getattr(kind, name)

        async def awatched(of: Any, *arguments: Any, **options: Any) -> Any:
            self.filters.append(options.get("filter"))
            async for saved in method(of, *arguments, **options):
                self.rows += 1
                yield saved

        def watched(of: Any, *arguments: Any, **options: Any) -> Any:
            self.filters.append(options.get("filter"))
            for saved in method(of, *arguments, **options):
                self.rows += 1
                yield saved

        monkeypatch.setattr(kind, name, awatched if name == "alist" else watched)


FILTERS: list[tuple[dict[str, Any], int]] = [
    ({"step": {"$gte": 1}}, 2),
    ({"absent": None}, 3),
    ({"absent": {"$exists": False}}, 3),
    ({"tags": ["a"]}, 0),
    ({"tags": ["a", "b"]}, 3),
    ({"tags": {"$ne": ["a"]}}, 3),
    ({"nested": {"a": 1}}, 0),
    ({"nested": {"a": 1, "b": [2]}}, 3),
    ({"nothing": None}, 3),
    ({"step": {"$in": [0, 2, "x"]}}, 2),
    ({"step": True}, 1),
    ({"step": 2.0}, 1),
    ({"run_id": "r\0un"}, 0),
    ({"run_id": "run", "step": 2}, 1),
    ({"run_id": "\ud800"}, 0),
    ({"\0": "x"}, 0),
    ({"big": 10**23}, 0),
    ({"big": 2**53 + 1}, 3),
]


@ON_REDIS
@both_modes
@pytest.mark.by_turns
async def test_each_tier_gives_the_same_answer(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    assert await uniform.get_tuple(config()) is None
    given = {"run_id": "r\0un", "tags": ["a", "b"], "nested": {"a": 1, "b": [2]}, "nothing": None, "big": 2**53 + 1}
    await stored([uniform], [Row("thread", "", late_id(step), {"step": step, **given}) for step in range(3)])
    for state in ("dirty", "flushed", "only in cold"):
        await in_state(tiers, uniform, state, "thread")
        for filter, expected in FILTERS:
            with case(state, filter):
                assert len(await uniform.list(config(), filter=filter)) == expected
                assert len(await uniform.list(config(), filter=filter, limit=1)) == min(1, expected)


async def in_state(tiers: Tiers, uniform: Uniform, state: str, *threads: str) -> None:
    if state == "flushed":
        await drained(uniform)
    for thread in threads if state == "only in cold" else ():
        tiers.evict(thread=thread)


@ON_REDIS
async def test_cold_is_given_what_it_understands_alike(tiers: Tiers, monkeypatch: Any) -> None:
    uniform = await tiers.uniform()
    watched = Watched(uniform.saver.cold, monkeypatch)
    alike = {"run_id": "run", "step": -2}
    others: dict[str, Any] = {
        "source": "l\0",
        "parents": {},
        "a": 1,
        "b": 0,
        "c": True,
        "d": 2**60,
        "e": 1.5,
        "f": None,
    }
    assert await uniform.list(config(), filter={**alike, "mine": "x", **others, "g": {"$eq": 5}}) == []
    assert watched.filters == [alike if tiers.target.is_encrypted else {**alike, "mine": "x"}]


@ON_REDIS
async def test_metadata_that_cold_does_not_have_yet_decide(tiers: Tiers) -> None:
    """Cold refuses a checkpoint that was put again."""
    flaky = FlakySaver(await tiers.cold())
    uniform = await tiers.uniform(cold=flaky.wrap(), **BEHIND)
    assert await uniform.get_tuple(config()) is None
    rows = [Row("thread", "", late_id(n), {"mood": 1}) for n in range(3)]
    await stored([uniform], rows)
    await drained(uniform)
    flaky.fail.add("put")
    await stored([uniform], [rows[1]._replace(metadata={"mood": 2})])
    for mood, expected in ((1, 2), (2, 1), ({"$gt": 0}, 3)):
        for where in (config(), None):
            with case(mood, where):
                assert len(await uniform.list(where, filter={"mood": mood})) == expected


@ON_REDIS
async def test_a_run_is_deleted_by_an_id_with_nul(tiers: Tiers) -> None:
    """LangGraph stores it without, and Postgres refuses a filter with NUL."""
    uniform = await tiers.uniform()
    await stored([uniform], [Row("thread", "", late_id(n), {"run_id": f"r\0x{n}"}) for n in range(2)])
    await uniform.delete_for_runs(["r\0x1"])
    assert ids(await uniform.list(config())) == [late_id(0)]


@ON_REDIS
@pytest.mark.parametrize("ns", ["", None])
async def test_each_row_of_cold_is_read_once(tiers: Tiers, monkeypatch: Any, ns: str | None) -> None:
    """If a list has several namespaces, each page begins with the last row of the page before: another may have its id."""
    monkeypatch.setattr(tiered_listing, "PER_PAGE", 10)
    uniform = await tiers.uniform()
    watched = Watched(uniform.saver.cold, monkeypatch)
    await stored([uniform], [Row("thread", "", late_id(n), {"step": n, "third": n % 3}) for n in range(60)])
    watched.rows = 0
    found = await uniform.list(config(ns=ns), filter={"third": {"$eq": 0}})
    assert ids(found) == [late_id(n) for n in reversed(range(0, 60, 3))]
    assert watched.rows == (60 if ns == "" else 60 + 6)
    watched.rows = 0
    assert ids(await uniform.list(config(ns=ns), filter={"third": {"$lt": 1}}, limit=3)) == ids(found)[:3]
    assert watched.rows < 20
    watched.rows = 0
    assert len(await uniform.list(config(ns=ns), filter={"step": 30}, limit=1)) == watched.rows == 1


@ON_REDIS
async def test_a_cold_saver_with_another_order_is_asked_for_more(tiers: Tiers, monkeypatch: Any) -> None:
    uniform = await tiers.uniform(cold=InMemorySaver())
    rows = [Row(thread, "", late_id(n), {"step": n, "third": n % 3}) for thread in "ba" for n in range(30)]
    await stored([uniform], rows)
    for limit, expected in ((None, 20), (1, 1), (7, 7), (20, 20), (21, 20)):
        assert len(await uniform.list(None, filter={"third": 0}, limit=limit)) == expected
    limits, ask = list[Any](), InMemorySaver.list
    monkeypatch.setattr(InMemorySaver, "list", lambda *a, **o: limits.append((o["filter"], o["limit"])) or ask(*a, **o))
    assert len(await uniform.list(config("a"), filter={"step": {"$lt": 25}}, limit=2)) == 2
    assert limits == [(None, 2), (None, 4), (None, 8)]


# -- random filters

COMPARE = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
KEYS = ["step", "run_id", "a", "b", "ä"]


def some_value(chance: random.Random, depth: int = 1) -> Any:
    """Make a value that JSON keeps. Numbers and texts collide often."""
    scalars = [None, True, False, 0, 1, 2, -1, 2**53, 2**60 + 1, 0.5, 1.0, 2.0, -0.0, 1e16, "", "1", "x", "é", "x\0"]
    if depth and chance.random() < 0.3:
        parts = [some_value(chance, depth - 1) for _ in range(chance.randrange(3))]
        parts = [part.replace("\0", "") if isinstance(part, str) else part for part in parts]  # Postgres refuses NULs
        return parts if chance.random() < 0.5 else dict(zip("ab", parts, strict=False))
    return chance.choice(scalars)


def some_filter(chance: random.Random, rows: list[Row]) -> dict[str, Any]:
    def wanted(key: str) -> Any:
        there = [row.metadata[key] for row in rows if key in row.metadata]
        return chance.choice(there) if there and chance.random() < 0.7 else some_value(chance)

    def condition(key: str) -> Any:
        if chance.random() < 0.5:
            return wanted(key)
        operands = {name: wanted(key) for name in ("$eq", "$ne", *COMPARE)}
        operands |= {name: [wanted(key) for _ in range(chance.randrange(3))] for name in ("$in", "$nin")}
        operands["$exists"] = chance.random() < 0.5
        return {name: operands[name] for name in chance.sample([*operands], chance.choice([1, 1, 2]))}

    return {key: condition(key) for key in chance.sample(KEYS, chance.choice([1, 1, 2]))}


def holds(metadata: dict[str, Any], key: str, name: str, operand: Any) -> bool:
    value = metadata.get(key)
    if name in COMPARE:
        try:
            return bool(COMPARE[name](value, operand))
        except TypeError:
            return False
    return {
        "$eq": lambda: value == operand,
        "$ne": lambda: value != operand,
        "$in": lambda: value in operand,
        "$nin": lambda: value not in operand,
        "$exists": lambda: (key in metadata) == operand,
    }[name]()


def expected(memory: InMemorySaver, where: Any, filter: dict[str, Any], before: Any) -> list[str]:
    """Return the ids of what matches, newest first. `InMemorySaver` takes operators for values."""
    plain = {key: wanted for key, wanted in filter.items() if not has_operators(wanted)}
    tests = [(key, *test) for key, wanted in filter.items() if key not in plain for test in wanted.items()]
    listed = memory.list(where, filter=plain, before=before)
    return sorted(ids([one for one in listed if all(holds(dict(one.metadata), *test) for test in tests)]), reverse=True)


def has_operators(wanted: Any) -> bool:
    return isinstance(wanted, dict) and any(name.startswith("$") for name in wanted)


async def compare(savers: dict[str, Uniform], memory: InMemorySaver, rows: list[Row], chance: random.Random) -> int:
    """Ask all savers the same questions. Returns the number of matches."""
    matches = 0
    wheres = [config(thread, ns) for thread in ("one", "two") for ns in ("", "sub", None)]
    for where in (*wheres, *(wheres[number % 6] for number in range(12)), *[None] * 6):
        filter, limit = some_filter(chance, rows), chance.choice([None, None, 1, 2, 5])
        before = config("x", "", chance.choice(rows).checkpoint_id) if chance.random() < 0.3 else None
        wanted = expected(memory, where, filter, before)
        matches += len(wanted)
        for name, saver in savers.items():
            with case(name, where, filter, before, limit):
                found = await saver.list(where, filter=filter, before=before, limit=limit)
                assert ids(found) == wanted[:limit]
                assert len({tuple(one.config["configurable"].values()) for one in found}) == len(found)
    return matches


@both_modes
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("seed", seeds_and_slow(range(2), range(2, 40)))
@pytest.mark.by_turns
async def test_random_filters_match_the_model(tiers: Tiers, mode: dict[str, Any], seed: int, monkeypatch: Any) -> None:
    """Redis alone, both modes, dirty and flushed, and cold alone answer as `InMemorySaver`."""
    for module, page in ((listing, "HEADERS_PER_PAGE"), (tiered_listing, "PER_PAGE")):
        monkeypatch.setattr(module, page, 3)
    chance, memory, matches = random.Random(f"{seed} {mode}"), InMemorySaver(), 0
    alone, tiered = tiers.target.uniform(prefix=f"{tiers.target.prefix}-alone"), await tiers.uniform(**mode)
    rows = dict[tuple[str, str, str], Row]()
    for number in range(24):
        metadata = {key: some_value(chance) for key in chance.sample(KEYS, chance.randrange(5))}
        place = chance.choice(["one", "two"]), chance.choice(["", "sub"]), late_id(number - chance.choice([0, 0, 0, 1]))
        rows.setdefault(place, Row(*place, metadata))
    for thread in ("one", "two"):
        assert await tiered.get_tuple(config(thread)) is None
    await stored([alone, tiered, Cold(memory, native_async=False)], [*rows.values()])
    for state in ("dirty", "flushed", "only in cold"):
        await in_state(tiers, tiered, state, "one", "two")
        savers = {"tiered": tiered, **({"alone": alone} if state == "dirty" else {})}  # its own state never changes
        with case(state):
            matches += await compare(savers, memory, [*rows.values()], chance)
    assert matches > 20
