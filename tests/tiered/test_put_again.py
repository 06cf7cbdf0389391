"""Checkpoint ids that are put a second time over two tiers, while hot loses the thread."""

from __future__ import annotations

import random
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.support.factories import checkpoint, config
from tests.support.seeds import seeds_and_slow, targets
from tests.support.tiering import BEHIND, Tiers, both_modes, drained, keys_of, plain, only_in_cold


@both_modes
async def test_a_repeated_put_replaces_an_older_value_without_its_parent(tiers: Tiers, mode: dict[str, Any]) -> None:
    """Hot lacks the parent, and does not keep the old value."""
    uniform, other = await tiers.uniform(**mode), await tiers.uniform(**mode)
    first = await uniform.put(config(), checkpoint({"n": [1]}, {"n": 1}, "1"), {}, {"n": 1})
    second = await uniform.put(first, checkpoint({"n": [2]}, {"n": 2}, "2"), {}, {"n": 2})
    await uniform.put(second, checkpoint({"n": [3]}, {"n": 3}, "3"), {}, {"n": 3})
    await only_in_cold(tiers, uniform)
    assert await other.get_tuple(config())
    assert await other.get_tuple(second)
    await other.put(first, checkpoint({"n": [4]}, {"n": 4}, "2"), {}, {"n": 4})
    for each in (uniform, other):
        assert (await each.get_tuple(second)).checkpoint["channel_values"] == {"n": [4]}
    await drained(other)
    assert (await (await tiers.cold_uniform()).get_tuple(second)).checkpoint["channel_values"] == {"n": [4]}


async def test_a_repeated_put_replaces_the_last_flushed_checkpoint(tiers: Tiers) -> None:
    """The flusher does not assume that cold already has hot's value."""
    uniform, other = await tiers.uniform(**BEHIND), await tiers.uniform(**BEHIND)
    first = await uniform.put(config(), checkpoint({"n": [1]}, {"n": 1}, "1"), {}, {"n": 1})
    await uniform.put(first, checkpoint({"n": [2]}, {"n": 2}, "2"), {}, {"n": 2})
    await uniform.get_tuple(config())
    for number in (3, 4):
        second = await uniform.put(first, checkpoint({"n": [number]}, {"n": number}, "2"), {}, {"n": number})
        assert tiers.target.raw.zcard(keys_of(tiers).dirty) == 1, "the put went to hot alone"
        await drained(uniform if number == 3 else other)
    assert (await (await tiers.cold_uniform()).get_tuple(second)).checkpoint["channel_values"] == {"n": [4]}


@both_modes
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 40)))
@pytest.mark.by_turns
async def test_random_repeated_puts_match_the_model(tiers: Tiers, mode: dict[str, Any], seed: int) -> None:
    """Each version has one value. An id keeps its parent, whichever is named later, as Postgres keeps the first."""
    chance, model, parents = random.Random(f"{seed} {mode}"), InMemorySaver(), dict[str, Any]()
    uniforms = [await tiers.uniform(**mode) for _ in range(2)]
    for number in range(60):
        uniform, what = chance.choice(uniforms), chance.choice(["put"] * 4 + ["flush", "evict"])
        if what == "put":
            which = chance.choice("123456789")
            parent = parents.setdefault(which, max((one for one in parents if one < which), default=None))
            before = model.get_tuple(config("thread", "", parent)).checkpoint if parent else checkpoint({}, {})
            is_there = await uniform.get_tuple(config("thread", "", which))
            named = chance.choice([parent, *parents, None]) if is_there else parent
            new = {chance.choice("xy"): number}
            values = {**before["channel_values"], **{channel: [number] for channel in new}}
            made = checkpoint(values, {**before["channel_versions"], **new}, which)
            await uniform.put(config("thread", "", named), made, {"step": number}, new)
            model.put(config("thread", "", parent), made, {"step": number}, new)
        else:
            await drained(uniform)
            if what == "evict":
                tiers.evict()
        for which in chance.choice([[None], [None, *parents]]):
            where = config("thread", "", which)
            assert plain(await uniform.get_tuple(where)) == plain(model.get_tuple(where)), (number, which)
