"""`delete_for_runs` over two tiers, of a run from which later checkpoints are rebuilt."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.support.factories import config, ids
from tests.support.talking import of_run, state, talk
from tests.support.tiering import BEHIND, Tiers, drained, keys_of
from tests.support.uniform import Uniform

from redis_saver import StillNeeded

pytestmark = [pytest.mark.encrypted_too, pytest.mark.also_on()]
MODES = pytest.mark.parametrize("mode", ["write-through", "write-behind"])


async def process(tiers: Tiers, mode: str = "write-through", **options: Any) -> Uniform:
    return await tiers.uniform(**(BEHIND if mode == "write-behind" else {}), **options)


@MODES
@pytest.mark.by_turns
@pytest.mark.parametrize("evicts", [False, True])
async def test_a_run_in_the_middle_is_refused(tiers: Tiers, mode: str, evicts: bool) -> None:
    """Before anything is removed. Others can write the thread afterwards."""
    uniform = await process(tiers, mode)
    log = await talk(uniform, 4)
    await talk(uniform, 3, "plain", is_plain=True)
    before = [ids(await uniform.list(config(thread))) for thread in ("thread", "plain")]
    removed, child = (await of_run(uniform, 2))[-1], (await of_run(uniform, 3))[0]
    if evicts:
        await drained(uniform)
        tiers.evict()
        uniform = await process(tiers, mode)
    with pytest.raises(StillNeeded) as caught:
        await uniform.delete_for_runs(["run-2", "run-4"])
    text = str(caught.value)
    assert all(part in text for part in ("run 'run-2'", repr(removed), repr(child), "'thread'", "DeltaChannel 'log'"))
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    assert [ids(await uniform.list(config(thread))) for thread in ("thread", "plain")] == before
    await uniform.delete_for_runs(["run-4"])
    await drained(uniform)
    tiers.evict()
    other = await process(tiers, mode)
    assert (await state(other)).values["log"] == log[:6]
    assert await talk(other, 1, first=9) == [*log[:6], "9", "to 9"]


@pytest.mark.parametrize("snapshots", [2, 1000])
async def test_runs_that_nothing_needs_are_deleted(tiers: Tiers, snapshots: int) -> None:
    uniform = await process(tiers)
    log, plain = await talk(uniform, 4, snapshots=snapshots), await talk(uniform, 4, "plain", is_plain=True)
    runs = ["run-2"] if snapshots == 2 else ["run-2", "run-3", "run-4"]
    if snapshots != 2:
        plain = plain[:2]
    await uniform.delete_for_runs(runs)
    tiers.evict()
    other = await process(tiers)
    assert (await state(other, snapshots=snapshots)).values["log"] == (log if snapshots == 2 else log[:2])
    assert (await state(other, "plain", is_plain=True)).values["log"] == plain
    assert (await other.check("thread")).sound


async def test_a_forced_deletion_is_found_by_check(tiers: Tiers) -> None:
    """Hot has the newest checkpoint, and cold lacks an ancestor that hot lacks, too."""
    uniform = await process(tiers)
    await talk(uniform, 4)
    child, parent = (await of_run(uniform, 3))[0], (await of_run(uniform, 2))[-1]
    await uniform.delete_for_runs(["run-2"], force=True)
    other = await process(tiers)
    assert await other.get_tuple(config())
    (finding,) = (await other.check("thread")).findings
    assert (finding.severity, finding.where) == ("error", f"checkpoint {child!r} in cold")
    assert parent in finding.what and "['log']" in finding.what


@MODES
@pytest.mark.by_turns
@pytest.mark.parametrize("evicts", [False, True])
async def test_a_rollback_in_the_middle_is_refused(tiers: Tiers, mode: str, evicts: bool) -> None:
    uniform = await process(tiers, mode)
    log = await talk(uniform, 4)
    await drained(uniform)
    if evicts:
        tiers.evict()
    with psycopg.connect(tiers.url) as connection:
        rows = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
    saver = uniform.saver
    held = saver.own("thread", run_id="run-2")
    taken = saver.own("thread", on_busy="rollback")
    if uniform.native_async:
        async with held:
            with pytest.raises(StillNeeded, match="run-2"):
                await taken.__aenter__()
    else:
        with held, pytest.raises(StillNeeded, match="run-2"):
            taken.__enter__()
    await drained(uniform)
    assert (await state(uniform)).values["log"] == log
    with psycopg.connect(tiers.url) as connection:
        assert connection.execute("SELECT count(*) FROM checkpoints").fetchone() == rows
