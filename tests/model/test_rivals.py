"""Processes that run the same graph on the same thread: whatever is killed, stopped, lost and cut off, its history is one chain."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import pytest
from rivals import FAULTS, Place, Rivals
from seeds import seeds
from uniform import Target

pytestmark = [pytest.mark.parametrize("target_name", ["redis"]), pytest.mark.parametrize("flavour", ["sync"])]

LONG = (*FAULTS, *FAULTS, "stop_long")
"""With some stops beyond the lease."""


def played(place: Place, seed: int, count: int, faults: int, **options: Any) -> Any:
    """One run of so many processes, sync and async."""
    chance = random.Random(seed)
    on_busy = options.pop("on_busy", None) or chance.choice(
        [["wait"] * count, ["take"] * count, ["rollback"] * count, chance.choices(["wait", "take", "raise", "rollback"], k=count)]
    )
    of = options.pop("of", FAULTS)
    flavours = chance.choices(["sync", "async"], k=count)
    rivals = Rivals(place, seed, on_busy, flavours, durability=chance.choice(["sync", "async"]), **options)
    try:
        rivals.run(chance.choices(of, k=faults))
        return rivals.check()
    finally:
        rivals.close()


@pytest.mark.random
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("seed", seeds([1, 2]))
def test_rivals(target: Target, seed: int, count: int) -> None:
    happened = played(Place(target.url, target.raw, target.prefix), seed, count, 4)
    print(happened, file=sys.stderr)


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds([1000]))
def test_many(target: Target, seed: int, capfd: Any) -> None:
    total = Counter[str]()
    for number in range(300):
        total += played(Place(target.url, target.raw, target.prefix), seed + number, 2 + 3 * (number % 2), 5, of=LONG)
        if number % 50 == 49:
            with capfd.disabled():
                print(number + 1, dict(total), file=sys.stderr, flush=True)
