"""Histories of `DeltaChannel`s over two tiers: hot answers alone if it is complete, else cold answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiered_operations as operations
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from redis_saver._checkpoint import scripts
from redis_saver._engine.requests import Call
from redis_saver._tiered import reading as tiered_reading
from redis_saver._tiered.requests import ColdCall
from tests.support.factories import checkpoint, config, late_id
from tests.support.seeds import seeds_and_slow, targets
from tests.support.tiering import BEHIND, FlakySaver, Tiers, both_modes, drained, keys_of, reaches_cold, only_in_cold
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, elsewhere, fails_on, requests_of

pytestmark = pytest.mark.also_on(cluster="sync")


class Talk:
    """A thread with a write to `log` on each checkpoint, some snapshots, and a record of the requests to each tier."""

    def __init__(self, tiers: Tiers, uniform: Uniform) -> None:
        self.uniform, self.where, self.number = uniform, config(), 0
        self.asked = requests_of(uniform.saver, lambda request: "cold" if isinstance(request, ColdCall) else None)
        requests_of(uniform.saver.hot, lambda _: self.asked.append("hot"))

    async def say(self, count: int = 1, *, snapshot: bool = False) -> None:
        """Put `count` checkpoints. A snapshot is one more, before them."""
        for number in range(0 if snapshot else 1, count + 1):
            self.number += 1
            version = {"log": f"{self.number:032}.{self.number:020}"}
            values = {"log": _DeltaSnapshot([f"until {self.number}"])} if number == 0 else {}
            made = checkpoint(values, version, late_id(self.number))
            self.where = await self.uniform.put(self.where, made, {"step": self.number}, version)
            await self.uniform.put_writes(self.where, [("log", [self.number])], f"task-{self.number}", "path")

    async def history(self, uniform: Any = None) -> Any:
        self.asked.clear()
        query: dict[str, Any] = {"config": self.where, "channels": ["log", "absent"]}
        return dict(await (uniform or self.uniform).get_delta_channel_history(**query))

    def expected(self, seed: int | None = None, *, last: int) -> Any:
        found: Any = {"writes": [(f"task-{n}", "log", [n]) for n in range(seed or 1, last + 1)]}
        if seed is not None:
            found["seed"] = _DeltaSnapshot([f"until {seed}"])
        return {"log": found, "absent": {"writes": []}}


NOTHING = {"log": {"writes": []}, "absent": {"writes": []}}


def said(history: Any) -> list[Any]:
    """Return the values of the writes."""
    return [write[2] for write in history["log"]["writes"]]


async def begun(tiers: Tiers, mode: dict[str, Any] | None = None, **options: Any) -> Talk:
    talk = Talk(tiers, await tiers.uniform(**(mode or {}), **options))
    assert await talk.uniform.get_tuple(talk.where) is None
    return talk


@both_modes
@pytest.mark.also_on(cluster="sync", fakeredis="async")
async def test_hot_answers_a_history_in_one_round_trip(tiers: Tiers, mode: dict[str, Any]) -> None:
    talk = await begun(tiers, mode)
    await talk.say(4)
    for _ in range(2):
        assert await talk.history() == talk.expected(last=3)
        assert talk.asked == ["hot"]
    await talk.say(3, snapshot=True)
    assert await talk.history() == talk.expected(5, last=7)
    assert talk.asked == ["hot"]


@both_modes
async def test_cold_is_read_once_for_missing_ancestors(tiers: Tiers, mode: dict[str, Any]) -> None:
    """Hot has the newest checkpoint and all later writes. Each process reads the ancestors from cold once."""
    talk, other = await begun(tiers, mode), await tiers.uniform()
    await talk.say(2)
    await talk.say(3, snapshot=True)
    await only_in_cold(tiers, talk.uniform)
    for uniform in (talk.uniform, other):
        assert (await uniform.get_tuple(config())).config == talk.where
        assert await talk.history(uniform) == talk.expected(3, last=5)
        assert "cold" in talk.asked or uniform is other
    for number in range(1, 3):
        await talk.say()
        assert await talk.history() == talk.expected(3, last=5 + number)
        assert talk.asked == ["hot"]
    assert await talk.history(other) == talk.expected(3, last=7)
    await talk.say(snapshot=True)
    assert await talk.history() == talk.expected(9, last=9)
    assert talk.asked == ["hot"]


async def another(tiers: Tiers, mode: dict[str, Any] | None = None) -> tuple[Uniform, list[str]]:
    """A new process, and the list of its calls to cold."""
    made = await tiers.uniform(**(mode or {}))
    return made, requests_of(made.saver, lambda request: request.method if reaches_cold(tiers, request) else None)


@both_modes
@pytest.mark.by_turns
@pytest.mark.also_on(cluster="sync", fakeredis="async")
async def test_a_history_from_cold_fills_hot(tiers: Tiers, mode: dict[str, Any]) -> None:
    """After that, other processes read hot alone, and the thread is sound."""
    talk = await begun(tiers, mode)
    await talk.say(2)
    await talk.say(45, snapshot=True)
    await only_in_cold(tiers, talk.uniform)
    other, asked = await another(tiers, mode)
    for uniform in (talk.uniform, other):
        assert (await uniform.get_tuple(config())).config == talk.where
        assert await talk.history(uniform) == talk.expected(3, last=47)
    assert asked == []
    report = await other.check("thread")
    assert report.sound, report.findings


@pytest.mark.parametrize(("limit", "value"), [("ANCESTORS_FILLED", 10), ("BYTES_FILLED", 1000)])
async def test_a_history_over_the_limit_does_not_fill_hot(
    tiers: Tiers, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered_reading, limit, value)
    talk = await begun(tiers)
    await talk.say(30, snapshot=True)
    tiers.evict()
    for _ in range(2):
        other, asked = await another(tiers)
        assert await other.get_tuple(config())
        assert await talk.history(other) == talk.expected(1, last=30)
        assert asked.count("list") == 1, "cold is not asked for more than the first page"
    fields = tiers.target.raw.hkeys(keys_of(tiers).data_key)
    assert len([field for field in fields if field[:1] == b"c"]) == 1


@pytest.mark.parametrize("after", [False, True])
async def test_a_write_during_a_fill_ends_the_fill_lease(tiers: Tiers, after: bool) -> None:
    """Hot stores nothing that was read from cold before the write."""
    talk, writer, reader = await begun(tiers), await tiers.uniform(), await tiers.uniform()
    await talk.say(8, snapshot=True)
    tiers.evict()
    assert await reader.get_tuple(config())
    written = list[Any]()

    def meanwhile(request: Any) -> Any:
        is_list = reaches_cold(tiers, request) and request.method == "list"
        if is_list and not after:
            yield from write()
        reply = yield request
        if is_list and after:
            yield from write()
        return reply

    def write() -> Any:
        written.append(config("thread", "", late_id(4)))
        yield from operations.put_writes(writer.saver._context, written[0], [("log", ["late"])], "task-4b", "path")

    Around(reader.saver, meanwhile)
    assert await talk.history(reader) == talk.expected(1, last=8)
    assert len(written) == 1
    expected = await talk.history(await tiers.cold_uniform())
    assert ["late"] in said(expected)
    for one in (reader, await tiers.uniform(), talk.uniform):
        assert await talk.history(one) == expected


LATER: dict[str, tuple[int, list[Any], str]] = {
    "a write to one that hot lacks": (2, [["late"]], "task-2b"),
    "more of a task of one that hot lacks": (2, [[2], ["late"]], "task-2"),
    "a write to one that hot got back": (5, [["late"]], "task-5b"),
}
"""Number of the checkpoint, the values, and the task."""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("what", LATER)
@pytest.mark.by_turns
async def test_a_late_write_invalidates_a_cached_cold_history(tiers: Tiers, what: str, again: bool) -> None:
    talk, other, cold = await begun(tiers), await tiers.uniform(), await tiers.cold_uniform()
    await talk.say(5, snapshot=True)
    tiers.evict()
    assert await talk.uniform.get_tuple(config())
    assert await talk.history() == talk.expected(1, last=5)
    number, values, task = LATER[what]
    for _ in range(2):
        if again:
            assert await other.get_tuple(config("thread", "", late_id(5)))
        writes = [("log", value) for value in values]
        await other.put_writes(config("thread", "", late_id(number)), writes, task, "path")
        await talk.say()
        found = await talk.history(cold)
        assert ["late"] in said(found)
        assert await talk.history() == found


@pytest.mark.by_turns
@both_modes
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 20)))
async def test_random_delta_histories_match_the_model(tiers: Tiers, mode: dict[str, Any], seed: int) -> None:
    """Three processes take turns. Hot sometimes loses the thread and gets some of its checkpoints back."""
    chance, model, ids, believed = random.Random(f"{seed} {mode}"), InMemorySaver(), list[str](), list[int]()
    uniforms = [await tiers.uniform(**mode) for _ in range(3)]

    def is_history(request: Any) -> Any:
        return getattr(request, "method", "") == "get_delta_channel_history" or None

    def of_hot(request: Any) -> Any:
        reply = yield request
        if isinstance(request, Call) and request.script is scripts.HISTORY and isinstance(reply, list):
            believed.extend(one[3] for one in reply[3:] if one[3])
        return reply

    for one in uniforms:
        Around(one.saver.hot, of_hot)
    asked = [requests_of(one.saver, is_history) for one in uniforms]
    for number in range(150):
        uniform = chance.choice(uniforms)
        kind = chance.choices(["put", "write", "late", "evict", "look"], [40, 40, 8, 3, 9])[0]
        which = chance.choice([ids[-1], ids[-1], chance.choice(ids)]) if ids else None
        if kind == "put" or which is None:
            version = {"log": f"{number:032}.{number:020}"}
            values = {"log": _DeltaSnapshot([f"until {number}"])} if chance.random() < 0.15 else {}
            given: Any = (
                config("thread", "", which),
                checkpoint(values, version, late_id(number)),
                {"step": number},
                version,
            )
            await uniform.put(*given)
            model.put(*given)
            ids.append(late_id(number))
        elif kind in ("write", "late"):
            where = config("thread", "", ids[-1] if kind == "write" else chance.choice(ids))
            given = where, [("log", [number])], f"task-{number:04}", f"{number:04}"
            await uniform.put_writes(*given)
            model.put_writes(*given)
        elif kind == "evict":
            for one in uniforms:
                await only_in_cold(tiers, one)
        else:
            await uniform.get_tuple(config("thread", "", chance.choice([None, which])))
        query: Any = {
            "config": config("thread", "", chance.choice([ids[-1], ids[-1], chance.choice(ids)])),
            "channels": ["log"],
        }
        expected = model.get_delta_channel_history(**query)
        for one in chance.sample(uniforms, 2):
            assert dict(await one.get_delta_channel_history(**query)) == expected, number
    assert any(asked) and believed


async def test_deletion_invalidates_a_cached_cold_history(tiers: Tiers) -> None:
    talk, other = await begun(tiers), await tiers.uniform()
    await talk.say(5, snapshot=True)
    before = talk.where
    for _ in range(2):
        tiers.evict()
        assert await talk.uniform.get_tuple(config())
        assert await talk.history() == talk.expected(1, last=5)
        assert "cold" in talk.asked
    await other.delete_thread("thread")
    assert await other.get_tuple(config()) is None
    assert await talk.history() == NOTHING
    talk.where, talk.number = config(), 0
    await talk.say(3)
    talk.where = before
    assert await talk.history() == NOTHING


async def test_a_late_write_after_a_fill_is_ordered_by_path(tiers: Tiers) -> None:
    """One parallel task writes before hot loses the thread, the other after."""
    talk = await begun(tiers)
    await talk.say(0, snapshot=True)
    parallel = talk.where
    await talk.uniform.put_writes(parallel, [("log", ["b"])], "task-b", "path-b")
    tiers.evict()
    assert await talk.uniform.get_tuple(parallel)
    await talk.uniform.put_writes(parallel, [("log", ["a"])], "task-a", "path-a")
    await talk.say()
    for uniform in (talk.uniform, await tiers.uniform(), await tiers.cold_uniform()):
        assert said(await talk.history(uniform)) == [[1], ["a"], ["b"]]


async def test_eviction_invalidates_a_known_history(tiers: Tiers) -> None:
    talk, other, second = await begun(tiers), await tiers.uniform(), config("thread", "", late_id(2))
    await talk.say(3, snapshot=True)
    assert await talk.history() == talk.expected(1, last=3)
    tiers.evict()
    await other.put_writes(second, [("log", ["late"])], "task-2b", "path")
    for where in (talk.where, second, talk.where):
        assert await talk.uniform.get_tuple(where)
    assert said(await talk.history()) == [[1], [2], ["late"], [3]]


async def test_a_pending_write_intent_sends_history_reads_to_cold(tiers: Tiers) -> None:
    """Cold may have writes that hot lacks."""
    flaky, late = FlakySaver(await tiers.cold()), list[Any]()
    talk, writer = await begun(tiers), await tiers.uniform(cold=flaky.wrap())
    await talk.say(3)

    async def ask() -> None:
        late.append(await talk.history())

    flaky.after["put_writes"] = ask if tiers.native_async else lambda: elsewhere(ask)
    await writer.put_writes(config("thread", "", late_id(1)), [("log", ["late"])], "task-1b", "path")
    assert [said(found) for found in (*late, await talk.history())] == [[[1], ["late"], [2]]] * 2


async def test_a_deleted_thread_has_no_history_while_cold_has_it(tiers: Tiers) -> None:
    talk = await begun(tiers, BEHIND)
    await talk.say(3)
    await drained(talk.uniform)
    await talk.uniform.delete_thread("thread")
    assert await talk.history() == NOTHING
    assert talk.asked == ["hot"]


async def test_a_complete_hot_answers_histories_while_cold_is_down(tiers: Tiers) -> None:
    talk, reads = await begun(tiers, BEHIND), ("get_tuple", "get_delta_channel_history")  # encrypted: one by one
    fails_on(talk.uniform.saver, lambda request: getattr(request, "method", "") in reads, ConnectionError("down"))
    await talk.say(3)
    assert await talk.history() == talk.expected(last=2)
    await drained(talk.uniform)
    assert await talk.history() == talk.expected(last=2)
    tiers.evict()
    with pytest.raises(ConnectionError, match="down"):
        await talk.history()


@pytest.mark.parametrize("hot", ["fails", "is damaged"])
async def test_a_history_is_read_from_cold_if_hot_cannot_answer(tiers: Tiers, hot: str) -> None:
    """A read repairs the damage."""
    talk = await begun(tiers, on_hot_error="bypass" if hot == "fails" else "raise")
    await talk.say(3)
    tiers.fails(talk.uniform) if hot == "fails" else tiers.evict("index")
    assert await talk.history() == talk.expected(last=2)
    assert talk.uniform.saver.stats().tiers.bypasses == (hot == "fails")
    assert bool(tiers.target.raw.exists(keys_of(tiers).data_key)) == (hot == "fails")


async def test_a_second_history_read_returns_new_writes_only(tiers: Tiers) -> None:
    """The process remembers the rest, over two tiers as well."""
    talk, replies = await begun(tiers), list[Any]()
    await talk.say(30, snapshot=True)

    def kept(request: Any) -> Any:
        reply = yield request
        if isinstance(request, Call) and isinstance(reply, list):
            replies.append(reply)
        return reply

    Around(talk.uniform.saver.hot, kept)
    chain = int(tiers.target.is_encrypted)  # the checkpoint with the snapshot proves that the chain is whole
    for expected in (30 + chain, 1 + chain):
        replies.clear()
        await talk.uniform.get_delta_channel_history(config=talk.where, channels=["log"])
        assert [len(reply[3:]) for reply in replies] == [expected]
        await talk.say()
