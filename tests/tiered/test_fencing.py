"""Flushers that come late: what they do to cold when their claim is over, while others flush, write and delete; and who deletes side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import redis
from tests.support.factories import checkpoint, config
from interleaving import UnderWay
from langgraph.checkpoint.serde.types import INTERRUPT
from tests.support.tiering import (
    BEHIND,
    VERSIONS,
    FlakySaver,
    Tiers,
    between,
    drained,
    keys_of,
    new,
    plain,
    stalled,
    two_runs,
    written,
)
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, script_of

from redis_saver._checkpoint import listing
from redis_saver._tiered import scripts
import tiered_operations as operations
from redis_saver._tiered import context
from redis_saver._tiered import flushing

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


class Stage:
    """Two that flush, one that looks at cold alone; the first is late."""

    def __init__(self, tiers: Tiers, uniform: Uniform, other: Uniform, through: Uniform, cold: Any) -> None:
        self.tiers, self.uniform, self.other, self.through, self.cold = tiers, uniform, other, through, cold
        self.late: Any = None
        self.last: dict[str, Any] = {}

    async def take(self) -> None:
        """The first takes what is dirty, and its claim is over before it gives that to cold."""
        self.late = await stalled(self.tiers, self.uniform)
        self.tiers.target.raw.hset(keys_of(self.tiers).flush, "until", 0)

    async def begin_anew(self, *, late_with: str) -> None:
        """The thread is deleted and written again, all of which cold has; the late one has taken what was there before, or the deletion."""
        await written(self.uniform)
        if late_with == "checkpoints":
            await self.take()
            await self.other.delete_thread("thread")
        else:
            await drained(self.uniform)
            await self.uniform.delete_thread("thread")
            await self.take()
        await drained(self.other)
        self.last = (await written(self.other))[-1]
        await drained(self.other)

    async def fenced_and_flushed(self) -> None:
        await self.late()
        await self.other.flush(timeout=0.3)

    async def newest(self) -> list[Any]:
        """By those who go by hot, by hot alone, by cold alone."""
        uniforms = (self.other, self.through, self.tiers.target.uniform(), self.cold)
        return [plain(await each.get_tuple(config())) for each in uniforms]


@pytest.fixture
async def stage(tiers: Tiers) -> Stage:
    uniforms = [await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.uniform()]
    return Stage(tiers, *uniforms, await tiers.cold_uniform())


@pytest.mark.parametrize("act", ["late", "fenced_and_flushed"])
@pytest.mark.parametrize("kind", ["checkpoint", "writes"])
async def test_it_deletes_what_is_just_being_written_to_cold(stage: Stage, kind: str, act: str) -> None:
    """What somebody writes through is in cold, and not yet in hot."""
    await stage.begin_anew(late_with="deletion")
    meanwhile: Callable[[], Any] = getattr(stage, act)
    if kind == "checkpoint":
        between(stage.through, scripts.PUT_THROUGH, meanwhile)
        stage.last = await stage.through.put(stage.last, new(), {}, VERSIONS)
    else:
        between(stage.through, scripts.PUT_WRITES_THROUGH, meanwhile)
        await stage.through.put_writes(stage.last, [("n", [9]), (INTERRUPT, ["more"])], "task-d")
    await drained(stage.other)
    answers = await stage.newest()
    assert answers == [answers[0]] * 4
    assert answers[0][0] == stage.last["configurable"]
    assert len(answers[0][3]) == (0 if kind == "checkpoint" else 6)
    assert len(await stage.cold.list(config())) == (4 if kind == "checkpoint" else 3)


@pytest.mark.parametrize("then", ["nothing", "begun anew"])
async def test_it_writes_what_another_has_just_deleted_in_cold(stage: Stage, then: str) -> None:
    """Who deletes it there has not said so yet."""
    await written(stage.uniform)
    await stage.take()
    await stage.other.delete_thread("thread")
    if then == "begun anew":
        await written(stage.other)
    between(stage.other, scripts.ACK, stage.late)
    await drained(stage.other)
    answers = await stage.newest()
    assert answers == [answers[0]] * 4
    assert len(await stage.cold.list(config())) == (0 if then == "nothing" else 3)


async def test_it_deletes_what_another_has_just_written_to_cold(stage: Stage) -> None:
    """Hot has the thread from cold, so it is not deleted again: all that is here is written again, with all values."""
    await stage.begin_anew(late_with="deletion")
    stage.tiers.evict()
    before = (await stage.other.get_tuple(config())).checkpoint
    values = {**before["channel_values"], "n": [9]}
    await stage.other.put(stage.last, checkpoint(values, {**before["channel_versions"], **VERSIONS}), {}, VERSIONS)
    between(stage.other, scripts.ACK, stage.late)
    await drained(stage.other)
    assert (await stage.cold.get_tuple(config())).checkpoint["channel_values"] == values


@pytest.mark.parametrize("looks", [False, True])
async def test_it_deletes_the_first_checkpoint_that_somebody_writes_through(stage: Stage, looks: bool) -> None:
    """Hot has nothing of the thread, so only the writer can say that it is to be brought there again."""
    await written(stage.uniform)
    await drained(stage.uniform)
    await stage.uniform.delete_thread("thread")
    await stage.take()
    await drained(stage.other)
    if looks:
        await stage.through.get_tuple(config())
    between(stage.through, scripts.PUT_THROUGH, stage.fenced_and_flushed)
    stored = await stage.through.put(config(), new(), {}, VERSIONS)
    await drained(stage.other)
    for each in (stage.cold, stage.other, stage.through):
        assert (await each.get_tuple(config())).config == stored


async def test_it_writes_what_is_older_while_somebody_writes_that_through(stage: Stage) -> None:
    last = (await written(stage.uniform))[-1]
    await stage.take()
    await drained(stage.other)
    between(stage.through, scripts.PUT_WRITES_THROUGH, stage.fenced_and_flushed)
    await stage.through.put_writes(last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(stage.other)
    for answer in await stage.newest():
        assert [one for one in answer[3] if one[0] == "task-c"] == [("task-c", INTERRUPT, ["newer"])]


@pytest.mark.parametrize("reads", [True, False])
async def test_it_coalesces_nothing_that_it_wrote_over(tiers: Tiers, reads: bool) -> None:
    settings = {**BEHIND, "cold_history": "latest"}
    stage = Stage(tiers, *[await tiers.uniform(**settings) for _ in range(3)], await tiers.cold_uniform())
    last = (await written(stage.uniform))[-1]
    await stage.take()
    if reads:
        await stage.other.get_tuple(config())
    await stage.other.put_writes(last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(stage.other)
    await stage.other.put(last, new(), {}, VERSIONS)
    await stage.late()
    await drained(stage.other)
    assert ("task-c", INTERRUPT, ["newer"]) in (await stage.cold.get_tuple(last)).pending_writes


async def test_the_thread_was_copied_into_meanwhile(stage: Stage) -> None:
    await written(stage.uniform, "source")
    await written(stage.uniform)
    await stage.take()
    await stage.other.delete_thread("thread")
    await drained(stage.other)
    await stage.other.copy_thread("source", "thread")
    await stage.late()
    await drained(stage.other)
    assert (await stage.other.get_tuple(config())).checkpoint == (await stage.cold.get_tuple(config())).checkpoint


@pytest.mark.parametrize("at", ["before", "between"])
async def test_the_thread_is_deleted_through(stage: Stage, at: str) -> None:
    """It does not come back; before the late one goes on, or while."""
    await written(stage.uniform)
    await stage.take()
    await drained(stage.other)
    if at == "between":
        between(stage.through, scripts.ERASE, stage.late)
    await stage.through.delete_thread("thread")
    if at == "before":
        await stage.late()
    await drained(stage.other)
    assert await stage.cold.list(config()) == []
    for each in (stage.uniform, stage.other, stage.through):
        assert await each.get_tuple(config()) is None


async def test_a_write_that_went_past_hot_is_not_deleted(stage: Stage) -> None:
    await stage.begin_anew(late_with="checkpoints")
    bypassing = await stage.tiers.uniform(on_hot_error="bypass")
    stage.tiers.fails(bypassing, scripts.PUT_THROUGH)
    stored = await bypassing.put(stage.last, new(), {}, VERSIONS)
    await stage.late()
    stage.tiers.later(context.WRITER_GONE + 1)
    await drained(stage.other)
    for each in (stage.other, stage.through, stage.cold):
        assert (await each.get_tuple(config())).config == stored


async def test_it_says_so_on_a_full_server(stage: Stage) -> None:
    last = (await written(stage.uniform))[-1]
    await stage.take()
    await stage.other.put_writes(last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(stage.other)
    raw = stage.tiers.target.raw
    raw.config_set("maxmemory", 1)
    try:
        await stage.late()
    finally:
        raw.config_set("maxmemory", 0)
    await drained(stage.other)
    answers = await stage.newest()
    assert answers == [answers[0]] * 4
    assert ("task-c", INTERRUPT, ["newer"]) in answers[0][3]


@pytest.mark.parametrize("then", ["expires", "goes on"])
async def test_it_deletes_what_hot_has_the_newest_of(stage: Stage, then: str) -> None:
    """Cold gets that again, and of what comes next all values."""
    await stage.begin_anew(late_with="deletion")
    stage.tiers.evict()
    before = (await stage.other.get_tuple(config())).checkpoint
    await stage.late()
    await drained(stage.other)
    if then == "expires":
        stage.tiers.evict()
        assert plain(await stage.other.get_tuple(config()))[1] == before
        return
    values = {**before["channel_values"], "n": [9]}
    await stage.through.put(stage.last, checkpoint(values, {**before["channel_versions"], **VERSIONS}), {}, VERSIONS)
    assert (await stage.cold.get_tuple(config())).checkpoint["channel_values"] == values


@pytest.mark.parametrize("what", ["run", "thread", "thread past hot"])
async def test_a_run_is_deleted_beside_another_deletion(tiers: Tiers, what: str) -> None:
    """What the other one deleted in cold is not brought back there from hot, which does not know yet."""
    uniform, other, cold = await tiers.uniform(on_hot_error="bypass"), await tiers.uniform(), await tiers.cold_uniform()
    await two_runs(uniform)

    async def another() -> None:
        await other.delete_for_runs(["run-2"])

    if what == "run":
        between(uniform, scripts.END_INTENT, another)
        await uniform.delete_for_runs(["run-1"])
    elif what == "thread":
        between(uniform, scripts.ERASE, another)
        await uniform.delete_thread("thread")
    else:
        works = tiers.fails(uniform, scripts.ERASE)
        await uniform.delete_thread("thread")
        works()
        await another()
    assert await cold.list(config()) == []


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
@pytest.mark.parametrize("what", ["list", "delete_for_runs"])
async def test_a_deletion_beside_who_brings_all_to_cold(tiers: Tiers, what: str) -> None:
    """What hot had is not in cold again after the deletion: neither a thread from before there were tiers, nor what was coalesced. Between any
    two requests of who brings it."""
    settings = {**BEHIND, "cold_history": "latest"}
    uniform, cold, alone = await tiers.uniform(**settings), await tiers.cold_uniform(), tiers.target.uniform()
    other = await tiers.uniform(**({} if what == "list" else settings))
    at, is_over = 0, list[Any]()
    while not is_over:
        thread = f"thread {at}"
        await two_runs(alone if what == "list" else uniform, thread, of=f"{thread} ")
        await other.flush()
        first, second = {
            "list": lambda: (
                listing.collect(operations.list_checkpoints(uniform.saver._context, config(thread), None, None, None)),
                operations.delete_thread(other.saver._context, thread),
            ),
            "delete_for_runs": lambda: (
                operations.delete_for_runs(uniform.saver._context, [f"{thread} run-1"]),
                operations.delete_for_runs(other.saver._context, [f"{thread} run-2"]),
            ),
        }[what]()
        bringing = UnderWay(uniform.saver, "", first, is_over.append, thread)
        for _ in range(at):
            if not is_over:
                bringing.step()
        has_ended, deleting = bool(is_over), UnderWay(other.saver, "", second, lambda _: None, thread)
        while not deleting.step():
            if deleting.is_waiting:
                bringing.step()
        while not is_over:
            bringing.step()
        await drained(other)
        assert await cold.list(config(thread)) == []
        at += 1
        if not has_ended:
            is_over.clear()
    assert at > 8


@pytest.mark.parametrize("again", ["late", "coalesced"])
async def test_writes_that_were_brought_back_are_not_twice_in_cold(tiers: Tiers, again: str) -> None:
    """Cold does not tell their indexes, and one that stood behind a special one has another there than here."""
    settings = {**BEHIND, "cold_history": "latest"}
    uniform, other, cold = await tiers.uniform(**settings), await tiers.uniform(**settings), await tiers.cold_uniform()
    await uniform.get_tuple(config())
    last = await uniform.put(config(), new(), {"run_id": "run-1"}, VERSIONS)
    await drained(uniform)
    await uniform.put_writes(last, [("n", 1), (INTERRUPT, 2), ("n", 3)], "task")
    if again == "late":
        late = await stalled(tiers, uniform)
        tiers.target.raw.hset(keys_of(tiers).flush, "until", 0)
    await drained(other)
    tiers.evict()
    before = plain(await other.get_tuple(config()))
    assert len(before[3]) == 3
    if again == "late":
        await late()
        await drained(other)
    else:
        following = checkpoint({"n": [10]}, {"n": f"{10:032}.1"})
        for run in ("run-2", "run-3"):
            following = {**following, "id": new()["id"]}
            await other.put(last, following, {"run_id": run}, {"n": f"{10:032}.1"})
        await drained(other)
        for run in ("run-2", "run-3"):
            await other.delete_for_runs([run])
    assert plain(await cold.get_tuple(config())) == before


async def test_a_run_is_deleted_at_the_second_try(tiers: Tiers) -> None:
    """The first one failed while cold got what it had been coalesced."""
    settings = {**BEHIND, "cold_history": "latest"}
    uniform, cold, flaky = await tiers.uniform(**settings), await tiers.cold_uniform(), FlakySaver(await tiers.cold())
    await two_runs(uniform)
    await drained(uniform)
    assert len(await cold.list(config())) == 1
    flaky.fail = {"put"}
    with pytest.raises(psycopg.OperationalError):
        await (await tiers.uniform(cold=flaky.wrap(), **settings)).delete_for_runs(["run-2"])
    await uniform.delete_for_runs(["run-2"])
    assert [one.metadata["run_id"] for one in await cold.list(config())] == ["run-1"]
    assert (await uniform.get_tuple(config())).metadata["run_id"] == "run-1"


async def test_a_deletion_is_repeated_after_the_thread_was_begun_anew(stage: Stage) -> None:
    """As a client does that saw no reply."""
    await written(stage.uniform)
    await drained(stage.uniform)
    made = list[Any]()

    async def begin_anew() -> None:
        await stage.other.get_tuple(config())
        made.append(await stage.other.put(config(), new(), {}, VERSIONS))

    def sent_again(request: Any) -> Any:
        if script_of(request) is scripts.ERASE:
            yield request
        return (yield request)

    acts = iter((None, begin_anew))
    Meanwhile(
        stage.through.saver.hot,
        lambda request: next(acts) if script_of(request) is scripts.ERASE else None,
    )
    Around(stage.through.saver.hot, sent_again)
    await stage.through.delete_thread("thread")
    assert (await stage.other.get_tuple(config())).config == made[0]
    await drained(stage.other)
    assert (await stage.cold.get_tuple(config())).config == made[0]


async def test_a_writer_that_is_gone_keeps_nobody_who_flushes_what_is_flushed(stage: Stage, monkeypatch: Any) -> None:
    monkeypatch.setattr(flushing, "FLUSH_LEASE", 500)
    last = (await written(stage.uniform))[-1]

    async def flushed_and_begins_an_intent() -> None:
        await drained(stage.other)
        dies = await stage.tiers.uniform()
        stage.tiers.fails(dies, scripts.PUT_WRITES_THROUGH)
        with pytest.raises(redis.ConnectionError):
            await dies.put_writes(last, [("n", 1)], "task-y")

    between(stage.through, scripts.CLAIM, flushed_and_begins_an_intent)
    await stage.through.put_writes(last, [("n", 2)], "task-z")
    assert {"task-y", "task-z"} < {write[0] for write in (await stage.cold.get_tuple(config())).pending_writes}


async def test_who_takes_over_says_so_and_who_is_late_too(stage: Stage, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("redis_saver._common.logs.SECONDS", 0.0)
    caplog.set_level("INFO", "redis_saver.tiered")
    await written(stage.uniform)
    await stage.take()
    await drained(stage.other)
    await stage.late()
    said = [
        (record.levelname, record.getMessage().partition(" from ")[0].partition(" and ")[0])
        for record in caplog.records
    ]
    assert said[0] == ("INFO", "the flusher takes over thread 'thread'")
    assert ("WARNING", "this flusher took too long, so another one took over thread 'thread'") in said
