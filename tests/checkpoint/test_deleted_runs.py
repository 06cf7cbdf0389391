"""`delete_for_runs` of a run from which later checkpoints are rebuilt."""

from __future__ import annotations

import numpy
import pytest
from tests.support.factories import config, ids
from tests.support.owning import owning
from tests.support.talking import of_run, state, talk
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import noted

from redis_saver import DecodeError, StillNeeded, ThreadDamaged
from redis_saver._checkpoint.delta import COUNTERS
from redis_saver._engine.requests import Command

pytestmark = [pytest.mark.encrypted_too, pytest.mark.also_on(cluster="async")]


async def test_a_run_in_the_middle_is_refused(saver: Uniform) -> None:
    """Before anything is removed, also in other threads."""
    log = await talk(saver, 4)
    await talk(saver, 3, "plain", is_plain=True)
    before = [ids(await saver.list(config(thread))) for thread in ("thread", "plain")]
    removed, child = (await of_run(saver, 2))[-1], (await of_run(saver, 3))[0]
    for runs in (["run-2"], ["run-2", "run-4"]):
        with pytest.raises(StillNeeded, match="Nothing was removed") as caught:
            await saver.delete_for_runs(runs)
        text = str(caught.value)
        parts = "run 'run-2'", repr(removed), repr(child), "'thread'", "DeltaChannel 'log'"
        assert all(part in text for part in parts)
    assert [ids(await saver.list(config(thread))) for thread in ("thread", "plain")] == before
    assert (await state(saver)).values["log"] == log


async def test_a_graph_with_a_plain_list_needs_it_too(saver: Uniform) -> None:
    """Its first checkpoint has the version of the `DeltaChannel` before, which has no value."""
    await talk(saver, 2)
    log = await talk(saver, 1, first=3, is_plain=True)
    with pytest.raises(StillNeeded, match="run 'run-2'"):
        await saver.delete_for_runs(["run-2"])
    assert (await state(saver)).values["log"] == log
    await saver.delete_for_runs(["run-3"])
    assert (await state(saver)).values["log"] == log[:4]


async def test_damaged_counters_are_a_decode_error(saver: Uniform) -> None:
    """They may be any object that the serializer makes, such as an array, which is neither true nor false."""
    await talk(saver, 1)
    last = await saver.get_tuple(config())
    versions = {**last.checkpoint["channel_versions"], "log": "9" * 33}
    child = {**last.checkpoint, "id": f"2{last.checkpoint['id'][1:]}", "channel_versions": versions}
    damaged = {"run_id": "run-2", COUNTERS: {"log": [numpy.array([1, 2])]}}
    await saver.put(last.config, child, damaged, {"log": versions["log"]})
    with pytest.raises(DecodeError, match="the metadata of thread 'thread'"):
        await saver.delete_for_runs(["run-1"])


ALLOWED = {
    "the newest run": (["run-4"], 3),
    "a run and all later ones": (["run-2", "run-3", "run-4"], 1),
    "all runs": (["run-1", "run-2", "run-3", "run-4"], 0),
    "nobody's run": (["run-5"], 4),
}


@pytest.mark.parametrize("what", ALLOWED)
async def test_runs_that_nothing_needs_are_deleted(saver: Uniform, what: str) -> None:
    runs, left = ALLOWED[what]
    log = await talk(saver, 4)
    await saver.delete_for_runs(runs)
    assert (await state(saver)).values.get("log", []) == log[: 2 * left]
    if left:
        assert (await saver.check("thread")).sound
        assert await talk(saver, 1, first=9) == [*log[: 2 * left], "9", "to 9"]


@pytest.mark.parametrize(("snapshots", "runs"), [(2, ["run-2"]), (4, ["run-1", "run-2"])])
async def test_runs_below_a_snapshot_are_deleted(saver: Uniform, snapshots: int, runs: list[str]) -> None:
    log = await talk(saver, 5, snapshots=snapshots)
    await saver.delete_for_runs(runs)
    assert (await state(saver, snapshots=snapshots)).values["log"] == log
    assert (await saver.check("thread")).sound
    assert await talk(saver, 1, first=9, snapshots=snapshots) == [*log, "9", "to 9"]


async def test_a_run_in_the_middle_of_a_plain_thread_is_deleted(saver: Uniform) -> None:
    """This costs nothing more."""
    log, asked = await talk(saver, 4, is_plain=True), noted(saver.saver)
    await saver.delete_for_runs(["run-2"])
    assert not [one for one, _ in asked if isinstance(one, Command) and one.arguments[0] == "HMGET"]
    assert (await state(saver, is_plain=True)).values["log"] == log
    assert await of_run(saver, 2) == [] and (await saver.check("thread")).sound


@pytest.mark.parametrize("values", [True, False])
async def test_a_forced_deletion_is_found_by_check(saver: Uniform, values: bool, is_encrypted: bool) -> None:
    log, child = await talk(saver, 4), (await of_run(saver, 3))[0]
    parent = (await of_run(saver, 2))[-1]
    await saver.delete_for_runs(["run-2"], force=True)
    (finding,) = (await saver.check("thread", values=values)).findings
    assert (finding.severity, finding.where) == ("error", f"checkpoint {child!r}")
    assert parent in finding.what and "['log']" in finding.what
    if is_encrypted:
        with pytest.raises(ThreadDamaged, match="is gone, which the DeltaChannels"):
            await state(saver)
    else:
        assert (await state(saver)).values["log"] == log[4:]


async def test_a_rollback_in_the_middle_is_refused(target: Target, saver: Uniform) -> None:
    """The run's owner wrote another run after it."""
    await talk(saver, 1)
    async with owning(saver, run_id="run-2"):
        log = await talk(saver, 2, first=2)
        with pytest.raises(StillNeeded, match="run-2"):
            async with owning(target.uniform(), on_busy="rollback"):
                pass
    assert (await state(saver)).values["log"] == log
    assert (await saver.check("thread")).sound
