"""Calls over many threads in two tiers, after the key of one tenant was destroyed."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from redis_saver._client.asking import AT_ONCE
from redis_saver._tiered import listing
from redis_saver.encryption import Encryption
from redis_saver.errors import KeyUnavailable
from tests.support.factories import config, ids, put
from tests.support.tenants import READABLE, THREADS, Counting, keys, threads_of
from tests.support.tiering import BEHIND, Tiers, both_modes, drained
from tests.support.uniform import Uniform

pytestmark = [pytest.mark.plain("each of its tests sets encryption= itself"), pytest.mark.also_on()]


async def filled(tiers: Tiers, options: Any, cold: Any = None, *, drains: bool = True) -> None:
    made = await tiers.uniform(hot={"encryption": keys()}, cold=cold, **options)
    for step in (1, 2):
        for thread in THREADS:
            metadata = {"source": "loop", "step": step, "parents": {}, "run_id": f"run {step}", "mood": step}
            await put(made, config(thread), {"n": thread}, metadata=metadata, versions={"n": f"{step:032}.0"})
    if options and drains:
        await drained(made)


async def without_globex(tiers: Tiers, options: Any, cold: Any = None, **setting: Any) -> Uniform:
    return await tiers.uniform(hot={"encryption": keys("globex", **setting)}, cold=cold, **options)


@pytest.mark.parametrize(
    ("options", "place"),
    [({}, "both"), ({}, "cold"), ({}, "memory"), (BEHIND, "both"), (BEHIND, "dirty")],
    ids=["both", "cold", "memory", "write-behind", "dirty"],
)
async def test_a_list_of_all_threads_skips_those_without_a_key_if_told_so(
    tiers: Tiers, options: Any, place: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(listing, "PER_PAGE", 2)
    cold = InMemorySaver() if place == "memory" else None
    await filled(tiers, options, cold, drains=place != "dirty")
    for thread in THREADS if place == "cold" else ():
        tiers.evict(thread=thread)
    skipping = await without_globex(tiers, options, cold, on_unavailable="skip")
    found = await skipping.list(None)
    assert threads_of(found) == {*READABLE} and len(found) == 8
    for limit in (1, 3, 8, 9):
        assert ids(await skipping.list(None, limit=limit)) == ids(found[:limit])
    assert threads_of(await skipping.list(None, filter={"mood": 2}, limit=4)) == {*READABLE}
    assert {info.thread_id for info in await skipping.threads()} == {*THREADS}
    assert skipping.saver.hot.stats().unavailable
    raising, where = await without_globex(tiers, options, cold), config("globex:1")
    for call in (skipping.get_tuple(where), skipping.list(where), raising.list(None)):
        with pytest.raises(KeyUnavailable, match="globex"):
            await call


async def test_threads_that_only_hot_has_are_enrolled_around_the_shredded_ones(tiers: Tiers) -> None:
    made = tiers.target.uniform(encryption=keys())
    for thread in THREADS:
        await put(made, config(thread), {"n": thread})
    skipping = await without_globex(tiers, {}, on_unavailable="skip")
    assert threads_of(await skipping.list(None)) == {*READABLE}
    assert {info.thread_id for info in await skipping.threads() if info.tier == "both"} == {*READABLE}


@both_modes
async def test_a_prune_and_a_deletion_of_runs_need_no_key_of_cold(tiers: Tiers, mode: Any) -> None:
    await filled(tiers, mode)
    raising = await without_globex(tiers, mode)
    await raising.delete_for_runs(["run 1"])
    assert (await raising.prune(THREADS)).checkpoints == 0
    every = await tiers.uniform(hot={"encryption": keys()}, **mode)
    assert [len(await every.list(config(thread))) for thread in THREADS] == [1] * len(THREADS)


async def test_keys_of_many_rows_of_cold_are_asked_for_at_the_same_time(tiers: Tiers) -> None:
    made = await tiers.uniform(hot={"encryption": keys()})
    for number in range(20):
        await put(made, config(f"acme:{number}"), {"n": number})
        tiers.evict(thread=f"acme:{number}")
    provider = Counting()
    assert len(await (await tiers.uniform(hot={"encryption": Encryption(provider)})).list(None)) == 20
    assert provider.asked == 20
    assert 1 < provider.most <= AT_ONCE
