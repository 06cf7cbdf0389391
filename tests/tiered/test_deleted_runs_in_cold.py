"""`delete_for_runs` over two tiers, of a run from which later checkpoints are rebuilt."""

from __future__ import annotations

from typing import Any

import pytest

from redis_saver import StillNeeded
from tests.support.factories import config, ids
from tests.support.talking import of_run, state, talk
from tests.support.tiering import Tiers, both_modes, drained, keys_of, only_in_cold

pytestmark = [pytest.mark.encrypted_too, pytest.mark.also_on()]


@both_modes
@pytest.mark.by_turns
@pytest.mark.parametrize("evicts", [False, True])
async def test_a_run_in_the_middle_is_refused(tiers: Tiers, mode: dict[str, Any], evicts: bool) -> None:
    """Before anything is removed. Others can write the thread afterwards."""
    uniform, reader, other = [await tiers.uniform(**mode) for _ in range(3)]
    log = await talk(uniform, 4)
    await talk(uniform, 3, "plain", is_plain=True)
    before = [ids(await uniform.list(config(thread))) for thread in ("thread", "plain")]
    removed, child = (await of_run(uniform, 2))[-1], (await of_run(uniform, 3))[0]
    if evicts:
        await only_in_cold(tiers, uniform)
        uniform = reader
    with pytest.raises(StillNeeded) as caught:
        await uniform.delete_for_runs(["run-2", "run-4"])
    text = str(caught.value)
    assert all(part in text for part in ("run 'run-2'", repr(removed), repr(child), "'thread'", "DeltaChannel 'log'"))
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    assert [ids(await uniform.list(config(thread))) for thread in ("thread", "plain")] == before
    await uniform.delete_for_runs(["run-4"])
    await only_in_cold(tiers, uniform)
    assert (await state(other)).values["log"] == log[:6]
    assert await talk(other, 1, first=9) == [*log[:6], "9", "to 9"]


@pytest.mark.parametrize(("snapshots", "runs", "left"), [(2, ["run-2"], 8), (1000, ["run-2", "run-3", "run-4"], 2)])
async def test_runs_that_nothing_needs_are_deleted(tiers: Tiers, snapshots: int, runs: list[str], left: int) -> None:
    uniform, other = await tiers.uniform(), await tiers.uniform()
    log, plain = await talk(uniform, 4, snapshots=snapshots), await talk(uniform, 4, "plain", is_plain=True)
    await uniform.delete_for_runs(runs)
    tiers.evict()
    assert (await state(other, snapshots=snapshots)).values["log"] == log[:left]
    assert (await state(other, "plain", is_plain=True)).values["log"] == plain[:left]
    assert (await other.check("thread")).sound


@pytest.mark.plain("it replaces cold")
async def test_hot_drops_what_a_cold_saver_removed_before_it_refused_the_rest(tiers: Tiers, monkeypatch: Any) -> None:
    """A `RedisSaver` does that if somebody writes it between its plan and the removal."""
    cold = tiers.target.uniform(prefix=f"{tiers.target.prefix}-cold")
    uniform = await tiers.uniform(cold=cold.saver)
    for thread in ("first", "second"):
        await talk(uniform, 2, thread)

    def refuse() -> None:
        raise StillNeeded("second")

    def delete(_: Any) -> None:
        cold.saver.delete_thread("first")
        refuse()

    async def adelete(_: Any) -> None:
        await cold.saver.adelete_thread("first")
        refuse()

    monkeypatch.setattr(cold.saver, "delete_for_runs", delete, raising=False)
    monkeypatch.setattr(cold.saver, "adelete_for_runs", adelete, raising=False)
    with pytest.raises(StillNeeded, match="second"):
        await uniform.delete_for_runs(["run-2"])
    assert await uniform.get_tuple(config("first")) is None
    assert await uniform.list(config("second"))
    assert not any(tiers.target.raw.exists(keys_of(tiers, thread).intents) for thread in ("first", "second"))


@both_modes
async def test_force_reaches_a_saver_on_redis_as_cold(tiers: Tiers, mode: dict[str, Any]) -> None:
    cold = tiers.target.uniform(prefix=f"{tiers.target.prefix}-cold")
    uniform = await tiers.uniform(cold=cold.saver, **mode)
    await talk(uniform, 3)
    with pytest.raises(StillNeeded, match="force=True"):
        await uniform.delete_for_runs(["run-2"])
    assert await of_run(uniform, 2)
    await uniform.delete_for_runs(["run-2"], force=True)
    assert not await of_run(uniform, 2)
    await drained(uniform)
    assert not await of_run(cold, 2)
    assert await of_run(uniform, 3)


async def test_a_forced_deletion_is_found_by_check(tiers: Tiers) -> None:
    """Hot has the newest checkpoint, and cold lacks an ancestor that hot lacks, too."""
    uniform = await tiers.uniform()
    await talk(uniform, 4)
    child, parent = (await of_run(uniform, 3))[0], (await of_run(uniform, 2))[-1]
    await uniform.delete_for_runs(["run-2"], force=True)
    other = await tiers.uniform()
    assert await other.get_tuple(config())
    (finding,) = (await other.check("thread")).findings
    assert (finding.severity, finding.where) == ("error", f"checkpoint {child!r} in cold")
    assert parent in finding.what and "['log']" in finding.what


@both_modes
@pytest.mark.by_turns
@pytest.mark.parametrize("evicts", [False, True])
async def test_a_rollback_in_the_middle_is_refused(tiers: Tiers, mode: dict[str, Any], evicts: bool) -> None:
    uniform = await tiers.uniform(**mode)
    log = await talk(uniform, 4)
    await drained(uniform)
    if evicts:
        tiers.evict()
    rows = tiers.sql("SELECT count(*) FROM checkpoints")
    async with uniform.own(run_id="run-2"):
        with pytest.raises(StillNeeded, match="run-2"):
            await uniform.own(on_busy="rollback").__aenter__()
    await drained(uniform)
    assert (await state(uniform)).values["log"] == log
    assert tiers.sql("SELECT count(*) FROM checkpoints") == rows
