"""Histories of `DeltaChannel`s over two tiers: hot answers alone if it is complete, else cold answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, late_id
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from tests.support.seeds import seeds_and_slow, targets
from tests.support.tiering import BEHIND, FlakySaver, Tiers, drained, keys_of, reaches_cold
from tests.support.uniform import Uniform
from tests.support.wrappers import Around

from redis_saver._checkpoint import scripts
from redis_saver._engine.requests import Call
from redis_saver._tiered import writing as tiered_writing
from redis_saver._tiered import reading as tiered_reading
from redis_saver._tiered.requests import ColdCall

pytestmark = pytest.mark.also_on(cluster="sync")

MODES = pytest.mark.parametrize("mode", ["write-through", "write-behind"])


class Talk:
    """A thread with a write to `log` on each checkpoint, some snapshots, and a record of the requests to each tier."""

    def __init__(self, tiers: Tiers, uniform: Uniform) -> None:
        self.tiers, self.uniform, self.asked = tiers, uniform, list[str]()
        self.where, self.number = config(), 0

        def hot(request: Any) -> Any:
            self.asked.append("hot")
            return (yield request)

        def all_of(request: Any) -> Any:
            if isinstance(request, ColdCall):
                self.asked.append("cold")
            return (yield request)

        Around(uniform.saver.hot, hot)
        Around(uniform.saver, all_of)

    async def say(self, count: int = 1, *, snapshot: bool = False) -> None:
        for _ in range(count):
            self.number += 1
            version = {"log": f"{self.number:032}.{self.number:020}"}
            values = {"log": _DeltaSnapshot([f"until {self.number}"])} if snapshot else {}
            made = checkpoint(values, version, late_id(self.number))
            self.where = await self.uniform.put(self.where, made, {"step": self.number}, version)
            await self.uniform.put_writes(self.where, [("log", [self.number])], f"task-{self.number}", "path")

    async def history(self, uniform: Uniform | None = None) -> Any:
        self.asked.clear()
        return dict(
            await (uniform or self.uniform).get_delta_channel_history(config=self.where, channels=["log", "absent"])
        )

    def expected(self, seed: int | None = None, *, last: int) -> Any:
        found: Any = {"writes": [(f"task-{n}", "log", [n]) for n in range(seed or 1, last + 1)]}
        if seed is not None:
            found["seed"] = _DeltaSnapshot([f"until {seed}"])
        return {"log": found, "absent": {"writes": []}}


async def begun(tiers: Tiers, mode: str, **options: Any) -> Talk:
    settings: dict[str, Any] = BEHIND if mode == "write-behind" else {}
    talk = Talk(tiers, await tiers.uniform(**settings, **options))
    assert await talk.uniform.get_tuple(talk.where) is None
    return talk


@MODES
@pytest.mark.also_on(cluster="sync", fakeredis="async")
async def test_hot_answers_a_history_in_one_round_trip(tiers: Tiers, mode: str) -> None:
    talk = await begun(tiers, mode)
    await talk.say(4)
    for _ in range(2):
        assert await talk.history() == talk.expected(last=3)
        assert talk.asked == ["hot"]
    await talk.say(snapshot=True)
    await talk.say(3)
    assert await talk.history() == talk.expected(5, last=7) | {"absent": {"writes": []}}
    assert talk.asked == ["hot"]


@MODES
async def test_cold_is_read_once_for_missing_ancestors(tiers: Tiers, mode: str) -> None:
    """Hot has the newest checkpoint and all later writes. Each process reads the ancestors from cold once."""
    talk = await begun(tiers, mode)
    await talk.say(2)
    await talk.say(snapshot=True)
    await talk.say(3)
    await drained(talk.uniform)
    tiers.evict()
    other = await tiers.uniform()
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
    await talk.say()
    assert await talk.history() == talk.expected(9, last=9)
    assert talk.asked == ["hot"]


async def another(tiers: Tiers, mode: str) -> tuple[Uniform, list[str]]:
    """A new process, and the list of its calls to cold."""
    made, asked = await tiers.uniform(**(BEHIND if mode == "write-behind" else {})), list[str]()

    def of_cold(request: Any) -> Any:
        if reaches_cold(tiers, request):
            asked.append(request.method)
        return (yield request)

    Around(made.saver, of_cold)
    return made, asked


@MODES
@pytest.mark.by_turns
@pytest.mark.also_on(cluster="sync", fakeredis="async")
async def test_a_history_from_cold_fills_hot(tiers: Tiers, mode: str) -> None:
    """After that, other processes read hot alone, and the thread is sound."""
    talk = await begun(tiers, mode)
    await talk.say(2)
    await talk.say(snapshot=True)
    await talk.say(45)
    await drained(talk.uniform)
    tiers.evict()
    assert (await talk.uniform.get_tuple(config())).config == talk.where
    assert await talk.history() == talk.expected(3, last=47)
    other, asked = await another(tiers, mode)
    assert (await other.get_tuple(config())).config == talk.where
    assert await talk.history(other) == talk.expected(3, last=47)
    assert asked == []
    report = await other.check("thread")
    assert report.sound, report.findings


@pytest.mark.parametrize(("limit", "value"), [("ANCESTORS_FILLED", 10), ("BYTES_FILLED", 1000)])
async def test_a_history_over_the_limit_does_not_fill_hot(
    tiers: Tiers, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered_reading, limit, value)
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    await talk.say(30)
    tiers.evict()
    for _ in range(2):
        other, asked = await another(tiers, "write-through")
        assert await other.get_tuple(config())
        assert await talk.history(other) == talk.expected(1, last=30)
        assert asked.count("list") == 1, "cold is not asked for more than the first page"
    fields = tiers.target.raw.hkeys(keys_of(tiers).data_key)
    assert len([field for field in fields if field[:1] == b"c"]) == 1


@pytest.mark.parametrize("after", [False, True])
async def test_a_write_during_a_fill_ends_the_fill_lease(tiers: Tiers, after: bool) -> None:
    """Hot stores nothing that was read from cold before the write."""
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    await talk.say(8)
    tiers.evict()
    writer = await tiers.uniform()
    reader = await tiers.uniform()
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
        where = config("thread", "", late_id(4))
        written.append(where)
        yield from tiered_writing.put_writes(writer.saver._context, where, [("log", ["late"])], "task-4b", "path")

    Around(reader.saver, meanwhile)
    assert await talk.history(reader) == talk.expected(1, last=8)
    assert len(written) == 1
    cold = await tiers.cold_uniform()
    expected = await talk.history(cold)
    assert ["late"] in [one[2] for one in expected["log"]["writes"]]
    for one in (reader, await tiers.uniform(), talk.uniform):
        assert await talk.history(one) == expected


LATER: dict[str, Any] = {
    "a write to one that hot lacks": lambda other: other.put_writes(
        config("thread", "", late_id(2)), [("log", ["late"])], "task-2b", "path"
    ),
    "more of a task of one that hot lacks": lambda other: other.put_writes(
        config("thread", "", late_id(2)), [("log", [2]), ("log", ["late"])], "task-2", "path"
    ),
    "a write to one that hot got back": lambda other: other.put_writes(
        config("thread", "", late_id(5)), [("log", ["late"])], "task-5b", "path"
    ),
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("what", LATER)
@pytest.mark.by_turns
async def test_a_late_write_invalidates_a_cached_cold_history(tiers: Tiers, what: str, again: bool) -> None:
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    await talk.say(5)
    tiers.evict()
    assert await talk.uniform.get_tuple(config())
    assert await talk.history() == talk.expected(1, last=5)
    other = await tiers.uniform()
    for _ in range(2):
        if again:
            assert await other.get_tuple(config("thread", "", late_id(5)))
        await LATER[what](other)
        await talk.say()
        cold = await tiers.cold_uniform()
        found = await talk.history(cold)
        assert ["late"] in [write[2] for write in found["log"]["writes"]]
        assert await talk.history() == found


@pytest.mark.by_turns
@MODES
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 20)))
async def test_random_delta_histories_match_the_model(tiers: Tiers, mode: str, seed: int) -> None:
    """Three processes take turns. Hot sometimes loses the thread and gets some of its checkpoints back."""
    chance, model = random.Random(f"{seed} {mode}"), InMemorySaver()
    settings: dict[str, Any] = BEHIND if mode == "write-behind" else {}
    uniforms, ids, asked = [await tiers.uniform(**settings) for _ in range(3)], list[str](), list[str]()
    believed = list[int]()

    def of_cold(request: Any) -> Any:
        if isinstance(request, ColdCall) and request.method == "get_delta_channel_history":
            asked.append("cold")
        return (yield request)

    def of_hot(request: Any) -> Any:
        reply = yield request
        if isinstance(request, Call) and request.script is scripts.HISTORY and isinstance(reply, list):
            believed.extend(one[3] for one in reply[3:] if one[3])
        return reply

    for one in uniforms:
        Around(one.saver.hot, of_hot)
        Around(one.saver, of_cold)
    for number in range(150):
        uniform = chance.choice(uniforms)
        kind = chance.choices(["put", "write", "late", "evict", "look"], [40, 40, 8, 3, 9])[0]
        which = chance.choice([ids[-1], ids[-1], chance.choice(ids)]) if ids else None
        if kind == "put" or which is None:
            version = {"log": f"{number:032}.{number:020}"}
            values = {"log": _DeltaSnapshot([f"until {number}"])} if chance.random() < 0.15 else {}
            made = checkpoint(values, version, late_id(number))
            for one in (uniform, None):
                given = (config("thread", "", which), made, {"step": number}, version)
                await one.put(*given) if one else model.put(*given)
            ids.append(made["id"])
        elif kind in ("write", "late"):
            where = config("thread", "", ids[-1] if kind == "write" else chance.choice(ids))
            await uniform.put_writes(where, [("log", [number])], f"task-{number:04}", f"{number:04}")
            model.put_writes(where, [("log", [number])], f"task-{number:04}", f"{number:04}")
        elif kind == "evict":
            for one in uniforms:
                await drained(one)
            tiers.evict()
        else:
            await uniform.get_tuple(config("thread", "", chance.choice([None, which])))
        where = config("thread", "", chance.choice([ids[-1], ids[-1], chance.choice(ids)]))
        expected = model.get_delta_channel_history(config=where, channels=["log"])
        for one in chance.sample(uniforms, 2):
            assert dict(await one.get_delta_channel_history(config=where, channels=["log"])) == expected, number
    assert asked
    assert believed


async def test_deletion_invalidates_a_cached_cold_history(tiers: Tiers) -> None:
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    await talk.say(5)
    before = talk.where
    for _ in range(2):
        tiers.evict()
        assert await talk.uniform.get_tuple(config())
        assert await talk.history() == talk.expected(1, last=5)
        assert "cold" in talk.asked
    await (other := await tiers.uniform()).delete_thread("thread")
    assert await other.get_tuple(config()) is None
    assert await talk.history() == {"log": {"writes": []}, "absent": {"writes": []}}
    talk.where, talk.number = config(), 0
    await talk.say(3)
    talk.where = before
    assert await talk.history() == {"log": {"writes": []}, "absent": {"writes": []}}


async def test_a_late_write_after_a_fill_is_ordered_by_path(tiers: Tiers) -> None:
    """One parallel task writes before hot loses the thread, the other after."""
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    parallel = talk.where
    await talk.uniform.put_writes(parallel, [("log", ["b"])], "task-b", "path-b")
    tiers.evict()
    assert await talk.uniform.get_tuple(parallel)
    await talk.uniform.put_writes(parallel, [("log", ["a"])], "task-a", "path-a")
    await talk.say()
    for uniform in (talk.uniform, await tiers.uniform(), await tiers.cold_uniform()):
        found = (await talk.history(uniform))["log"]["writes"]
        assert [write[0] for write in found] == ["task-1", "task-a", "task-b"]


async def test_eviction_invalidates_a_known_history(tiers: Tiers) -> None:
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    await talk.say(3)
    assert await talk.history() == talk.expected(1, last=3)
    before = talk.where
    tiers.evict()
    other = await tiers.uniform()
    await other.put_writes(config("thread", "", late_id(2)), [("log", ["late"])], "task-2b", "path")
    for where in (before, config("thread", "", late_id(2)), before):
        assert await talk.uniform.get_tuple(where)
    found = (await talk.history())["log"]["writes"]
    assert [write[2] for write in found] == [[1], [2], ["late"], [3]]


async def test_a_pending_write_intent_sends_history_reads_to_cold(tiers: Tiers) -> None:
    """Cold may have writes that hot lacks."""
    flaky = FlakySaver(await tiers.cold())
    talk = await begun(tiers, "write-through")
    await talk.say(3)
    late: list[Any] = []

    async def ask() -> None:
        late.append(await talk.history())

    def sync_ask() -> None:
        late.append(dict(talk.uniform.saver.get_delta_channel_history(config=talk.where, channels=["log", "absent"])))

    writer = await tiers.uniform(cold=flaky.wrap())
    flaky.after["put_writes"] = ask if tiers.native_async else sync_ask
    await writer.put_writes(config("thread", "", late_id(1)), [("log", ["late"])], "task-1b", "path")
    for found in (*late, await talk.history()):
        assert [write[2] for write in found["log"]["writes"]] == [[1], ["late"], [2]]
    assert len(late) == 1


async def test_a_deleted_thread_has_no_history_while_cold_has_it(tiers: Tiers) -> None:
    talk = await begun(tiers, "write-behind")
    await talk.say(3)
    await drained(talk.uniform)
    await talk.uniform.delete_thread("thread")
    assert await talk.history() == {"log": {"writes": []}, "absent": {"writes": []}}
    assert talk.asked == ["hot"]


async def test_a_complete_hot_answers_histories_while_cold_is_down(tiers: Tiers) -> None:
    class Down(type(await tiers.cold())):  # type: ignore[misc]
        def __init__(self, saver: Any) -> None:
            self.__dict__.update(saver.__dict__)

        def get_delta_channel_history(self, **_: Any) -> Any:
            raise ConnectionError("down")

        aget_delta_channel_history = get_delta_channel_history

    talk = await begun(tiers, "write-behind", cold=Down(await tiers.cold()))
    await talk.say(3)
    assert await talk.history() == talk.expected(last=2)
    await drained(talk.uniform)
    assert await talk.history() == talk.expected(last=2)
    tiers.evict()
    if tiers.target.is_encrypted:  # then the ancestors are read one by one
        Down.get_tuple = Down.aget_tuple = lambda cold, _: cold.get_delta_channel_history()
    with pytest.raises(ConnectionError, match="down"):
        await talk.history()


async def test_bypass_reads_the_history_from_cold(tiers: Tiers) -> None:
    talk = await begun(tiers, "write-through", on_hot_error="bypass")
    await talk.say(3)
    works = tiers.fails(talk.uniform)
    assert await talk.history() == talk.expected(last=2)
    assert talk.uniform.saver.stats().tiers.bypasses == 1
    works()


async def test_a_history_read_repairs_damage_in_hot(tiers: Tiers) -> None:
    talk = await begun(tiers, "write-through")
    await talk.say(3)
    tiers.evict("index")
    assert await talk.history() == talk.expected(last=2)
    assert not tiers.target.raw.exists(keys_of(tiers).data_key)


async def test_a_second_history_read_returns_new_writes_only(tiers: Tiers) -> None:
    """The process remembers the rest, over two tiers as well."""
    talk = await begun(tiers, "write-through")
    await talk.say(snapshot=True)
    await talk.say(30)
    replies: list[Any] = []

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
        (reply,) = replies
        assert len(reply[3:]) == expected
        await talk.say()
