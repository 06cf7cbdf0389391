"""Late flushers, which write to cold after their lease expired, and concurrent deletions."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import redis
import tiered_operations as operations
from interleaving import UnderWay
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver._checkpoint import listing
from redis_saver._tiered import context, flushing, scripts
from tests.support.factories import checkpoint, config
from tests.support.tiering import BEHIND, LATEST, VERSIONS, FlakySaver, Tiers, between, only_in_cold
from tests.support.tiering import drained, plain, put_new, stalled, two_runs, written
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, Meanwhile, script_of

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


class Stage:
    """Two flushers (the first is late), a write-through process, and a reader of cold alone."""

    def __init__(self, tiers: Tiers, uniform: Uniform, other: Uniform, through: Uniform, cold: Any) -> None:
        self.tiers, self.uniform, self.other, self.through, self.cold = tiers, uniform, other, through, cold
        self.late: Any = None
        self.last: dict[str, Any] = {}

    async def take(self) -> None:
        """The first flusher claims the backlog, and its lease expires before it writes to cold."""
        self.late = await stalled(self.tiers, self.uniform, is_late=True)

    async def begin(self) -> None:
        """The first flusher is late with three checkpoints."""
        self.last = (await written(self.uniform))[-1]
        await self.take()

    async def begin_anew(self, *, late_with: str) -> None:
        """Delete the thread, write it again and flush that. The late flusher has old checkpoints or the deletion."""
        if late_with == "checkpoints":
            await self.begin()
            await self.other.delete_thread("thread")
        else:
            await written(self.uniform)
            await drained(self.uniform)
            await self.uniform.delete_thread("thread")
            await self.take()
        await drained(self.other)
        self.last = (await written(self.other))[-1]
        await drained(self.other)

    async def fenced_and_flushed(self) -> None:
        await self.late()
        await self.other.flush(timeout=0.3)

    async def answers_alike(self) -> Any:
        """Check that the newest checkpoint is the same through both tiers in each mode, in hot, and in cold alone."""
        uniforms = (self.other, self.through, self.tiers.target.uniform(), self.cold)
        answers = [plain(await each.get_tuple(config())) for each in uniforms]
        assert answers == [answers[0]] * 4
        return answers[0]

    async def check_newest(self, stored: Any) -> None:
        for each in (self.other, self.through, self.cold):
            assert (await each.get_tuple(config())).config == stored


@pytest.fixture
async def stage(tiers: Tiers) -> Stage:
    uniforms = [await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND), await tiers.uniform()]
    return Stage(tiers, *uniforms, await tiers.cold_uniform())


@pytest.mark.parametrize("act", ["late", "fenced_and_flushed"])
@pytest.mark.parametrize("kind", ["checkpoint", "writes"])
async def test_a_late_deletion_does_not_lose_a_concurrent_write_through(stage: Stage, kind: str, act: str) -> None:
    """The write is in cold, but not yet in hot."""
    await stage.begin_anew(late_with="deletion")
    if kind == "checkpoint":
        between(stage.through, scripts.PUT_THROUGH, getattr(stage, act))
        stage.last = await put_new(stage.through, stage.last)
    else:
        between(stage.through, scripts.PUT_WRITES_THROUGH, getattr(stage, act))
        await stage.through.put_writes(stage.last, [("n", [9]), (INTERRUPT, ["more"])], "task-d")
    await drained(stage.other)
    place, _, _, writes = await stage.answers_alike()
    assert place == stage.last["configurable"]
    assert (len(writes), len(await stage.cold.list(config()))) == ((0, 4) if kind == "checkpoint" else (6, 3))


@pytest.mark.parametrize("then", ["nothing", "begun anew"])
async def test_a_late_write_does_not_undo_a_deletion_in_cold(stage: Stage, then: str) -> None:
    """The other flusher has deleted the thread in cold, but not acknowledged that."""
    await stage.begin()
    await stage.other.delete_thread("thread")
    if then == "begun anew":
        await written(stage.other)
    between(stage.other, scripts.ACK, stage.late)
    await drained(stage.other)
    await stage.answers_alike()
    assert len(await stage.cold.list(config())) == (0 if then == "nothing" else 3)


async def test_a_late_deletion_does_not_lose_flushed_checkpoints(stage: Stage) -> None:
    """Hot was filled from cold, so the deletion is not repeated. Hot writes all it has again, with all values."""
    await stage.begin_anew(late_with="deletion")
    stage.tiers.evict()
    before = (await stage.other.get_tuple(config())).checkpoint
    values = {**before["channel_values"], "n": [9]}
    await stage.other.put(stage.last, checkpoint(values, {**before["channel_versions"], **VERSIONS}), {}, VERSIONS)
    between(stage.other, scripts.ACK, stage.late)
    await drained(stage.other)
    assert (await stage.cold.get_tuple(config())).checkpoint["channel_values"] == values


@pytest.mark.parametrize("looks", [False, True])
async def test_a_late_deletion_does_not_lose_the_first_write_through(stage: Stage, looks: bool) -> None:
    """Hot has nothing of the thread, so only the writer can restore it."""
    await written(stage.uniform)
    await drained(stage.uniform)
    await stage.uniform.delete_thread("thread")
    await stage.take()
    await drained(stage.other)
    if looks:
        await stage.through.get_tuple(config())
    between(stage.through, scripts.PUT_THROUGH, stage.fenced_and_flushed)
    stored = await put_new(stage.through)
    await drained(stage.other)
    await stage.check_newest(stored)


async def test_a_late_flush_does_not_overwrite_a_newer_write_through(stage: Stage) -> None:
    await stage.begin()
    await drained(stage.other)
    between(stage.through, scripts.PUT_WRITES_THROUGH, stage.fenced_and_flushed)
    await stage.through.put_writes(stage.last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(stage.other)
    writes = (await stage.answers_alike())[3]
    assert [one for one in writes if one[0] == "task-c"] == [("task-c", INTERRUPT, ["newer"])]


@pytest.mark.parametrize("reads", [True, False])
async def test_a_late_flush_does_not_coalesce_overwritten_records(tiers: Tiers, reads: bool) -> None:
    stage = Stage(tiers, *[await tiers.uniform(**LATEST) for _ in range(3)], await tiers.cold_uniform())
    await stage.begin()
    if reads:
        await stage.other.get_tuple(config())
    await stage.other.put_writes(stage.last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(stage.other)
    await put_new(stage.other, stage.last)
    await stage.late()
    await drained(stage.other)
    assert ("task-c", INTERRUPT, ["newer"]) in (await stage.cold.get_tuple(stage.last)).pending_writes


async def test_a_late_flush_does_not_change_a_copied_thread(stage: Stage) -> None:
    await written(stage.uniform, "source")
    await stage.begin()
    await stage.other.delete_thread("thread")
    await drained(stage.other)
    await stage.other.copy_thread("source", "thread")
    await stage.late()
    await drained(stage.other)
    assert (await stage.other.get_tuple(config())).checkpoint == (await stage.cold.get_tuple(config())).checkpoint


@pytest.mark.parametrize("at", ["before", "between"])
async def test_a_late_flush_does_not_undo_a_write_through_deletion(stage: Stage, at: str) -> None:
    """The flusher continues before or during the deletion."""
    await stage.begin()
    await drained(stage.other)
    if at == "between":
        between(stage.through, scripts.ERASE, stage.late)
    await stage.through.delete_thread("thread")
    if at == "before":
        await stage.late()
    await drained(stage.other)
    assert await stage.cold.list(config()) == []
    assert [await each.get_tuple(config()) for each in (stage.uniform, stage.other, stage.through)] == [None] * 3


async def test_a_late_flush_does_not_delete_a_bypassing_write(stage: Stage) -> None:
    await stage.begin_anew(late_with="checkpoints")
    bypassing = await stage.tiers.uniform(on_hot_error="bypass")
    stage.tiers.fails(bypassing, scripts.PUT_THROUGH)
    stored = await put_new(bypassing, stage.last)
    await stage.late()
    stage.tiers.later(context.WRITER_GONE + 1)
    await drained(stage.other)
    await stage.check_newest(stored)


async def test_a_late_flush_is_repaired_on_a_full_server(stage: Stage) -> None:
    await stage.begin()
    await stage.other.put_writes(stage.last, [(INTERRUPT, ["newer"])], "task-c", "path-0")
    await drained(stage.other)
    raw = stage.tiers.target.raw
    raw.config_set("maxmemory", 1)
    try:
        await stage.late()
    finally:
        raw.config_set("maxmemory", 0)
    await drained(stage.other)
    assert ("task-c", INTERRUPT, ["newer"]) in (await stage.answers_alike())[3]


@pytest.mark.parametrize("then", ["expires", "goes on"])
async def test_a_late_deletion_is_repaired_if_hot_has_only_the_newest(stage: Stage, then: str) -> None:
    """Cold gets it again, and later puts write all values."""
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
async def test_a_run_deletion_does_not_undo_a_concurrent_deletion(tiers: Tiers, what: str) -> None:
    """Hot does not yet know what the other process deleted in cold."""
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
        tiers.fails(uniform, scripts.ERASE)
        await uniform.delete_thread("thread")
        await another()
    assert await cold.list(config()) == []


@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
@pytest.mark.parametrize("what", ["list", "delete_for_runs"])
async def test_a_deletion_wins_over_a_concurrent_transfer_to_cold(tiers: Tiers, what: str) -> None:
    """Neither an enrolled thread nor coalesced checkpoints reappear in cold, at whichever request it is deleted."""
    uniform, cold, alone = await tiers.uniform(**LATEST), await tiers.cold_uniform(), tiers.target.uniform()
    other = await tiers.uniform(**({} if what == "list" else LATEST))
    here, there = uniform.saver._context, other.saver._context
    at, is_over = 0, list[Any]()
    while not is_over:
        thread = f"thread {at}"
        await two_runs(alone if what == "list" else uniform, thread, of=f"{thread} ")
        await other.flush()
        if what == "list":
            first = listing.collect(operations.list_checkpoints(here, config(thread), None, None, None))
            second = operations.delete_thread(there, thread)
        else:
            first = operations.delete_for_runs(here, [f"{thread} run-1"])
            second = operations.delete_for_runs(there, [f"{thread} run-2"])
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
async def test_filled_writes_are_not_duplicated_in_cold(tiers: Tiers, again: str) -> None:
    """Cold does not return indexes, so a write after a special one gets another index in hot."""
    uniform, other, cold = await tiers.uniform(**LATEST), await tiers.uniform(**LATEST), await tiers.cold_uniform()
    await uniform.get_tuple(config())
    last = await put_new(uniform, run_id="run-1")
    await drained(uniform)
    await uniform.put_writes(last, [("n", 1), (INTERRUPT, 2), ("n", 3)], "task")
    late = await stalled(tiers, uniform, is_late=True) if again == "late" else None
    await only_in_cold(tiers, other)
    before = plain(await other.get_tuple(config()))
    assert len(before[3]) == 3
    if late:
        await late()
        await drained(other)
    else:
        for run in ("run-2", "run-3"):
            await put_new(other, last, 10, run_id=run)
        await drained(other)
        for run in ("run-2", "run-3"):
            await other.delete_for_runs([run])
    assert plain(await cold.get_tuple(config())) == before


async def test_a_failed_run_deletion_succeeds_at_the_second_try(tiers: Tiers) -> None:
    """The first failed while cold got the coalesced checkpoints."""
    uniform, cold, flaky = await tiers.uniform(**LATEST), await tiers.cold_uniform(), FlakySaver(await tiers.cold())
    await two_runs(uniform)
    await drained(uniform)
    assert len(await cold.list(config())) == 1
    flaky.fail = {"put"}
    with pytest.raises(psycopg.OperationalError):
        await (await tiers.uniform(cold=flaky.wrap(), **LATEST)).delete_for_runs(["run-2"])
    await uniform.delete_for_runs(["run-2"])
    assert [one.metadata["run_id"] for one in await cold.list(config())] == ["run-1"]
    assert (await uniform.get_tuple(config())).metadata["run_id"] == "run-1"


async def test_a_repeated_deletion_keeps_a_restarted_thread(stage: Stage) -> None:
    """The client repeats the deletion because it saw no reply."""
    await written(stage.uniform)
    await drained(stage.uniform)
    made = list[Any]()

    async def begin_anew() -> None:
        await stage.other.get_tuple(config())
        made.append(await put_new(stage.other))

    def sent_again(request: Any) -> Any:
        if script_of(request) is scripts.ERASE:
            yield request
        return (yield request)

    acts = iter((None, begin_anew))
    Meanwhile(stage.through.saver.hot, lambda request: next(acts) if script_of(request) is scripts.ERASE else None)
    Around(stage.through.saver.hot, sent_again)
    await stage.through.delete_thread("thread")
    assert (await stage.other.get_tuple(config())).config == made[0]
    await drained(stage.other)
    assert (await stage.cold.get_tuple(config())).config == made[0]


async def test_a_dead_writer_does_not_block_a_flush(stage: Stage, monkeypatch: Any) -> None:
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


async def test_a_takeover_and_a_late_flush_are_logged(stage: Stage, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("redis_saver._common.logs.SECONDS", 0.0)
    caplog.set_level("INFO", "redis_saver.tiered")
    await stage.begin()
    await drained(stage.other)
    await stage.late()
    said = [(one.levelname, one.getMessage().partition(" from ")[0].partition(" and ")[0]) for one in caplog.records]
    assert said[0] == ("INFO", "the flusher takes over thread 'thread'")
    assert ("WARNING", "this flusher took too long, so another one took over thread 'thread'") in said
