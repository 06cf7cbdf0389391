"""Random operations of several processes, compared with a model."""

from __future__ import annotations

import pytest
from tests.support.seeds import seeds, seeds_and_slow, targets
from store_model import Play
from tests.support.stores import check_sound
from tests.support.uniform import Target


@pytest.mark.by_turns
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis", "redis62", "cluster", "fakeredis", "valkey"))
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 2)))
async def test_random_operations_match_the_model(target: Target, seed: int) -> None:
    print("seed", seed)
    await Play(target, seed).run(250)
    check_sound(target)


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", targets("redis"))
@pytest.mark.parametrize("seed", seeds(range(10)))
async def test_fifty_thousand_operations_match_the_model(target: Target, seed: int) -> None:
    print("seed", seed)
    play = Play(target, seed)
    for _ in range(50):
        await play.run(100)
        check_sound(target)
