"""Processes that run one graph on one thread: its history stays one chain despite kills, pauses and lost messages."""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import pytest
from rivals import FAULTS, FAULTS_OF_TIERS, Place, Rivals

from tests.support.seeds import seeds
from tests.support.servers import Server
from tests.support.uniform import Target

pytestmark = [pytest.mark.parametrize("target_name", ["redis"]), pytest.mark.parametrize("flavour", ["sync"])]

LONG = (*FAULTS, *FAULTS, "stop_long")
"""Faults that include stops longer than the lease."""


def played(place: Place, seed: int, count: int, faults: int, **options: Any) -> Any:
    """Run `count` processes, blocking and async, and return the counts."""
    chance = random.Random(seed)
    some = chance.choices(["wait", "take", "raise", "rollback"], k=count)
    mixed = chance.choice([*([one] * count for one in ("wait", "take", "rollback")), some])
    on_busy, of = options.pop("on_busy", None) or mixed, options.pop("of", FAULTS)
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
def test_concurrent_owners_leave_one_chain(target: Target, seed: int, count: int) -> None:
    happened = played(Place(target.url, target.raw, target.prefix), seed, count, 4)
    assert happened["took"] >= count
    assert happened["effects committed"] >= 5


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds([3]))
def test_rivals_without_owners_do_not_fork(target: Target, seed: int) -> None:
    place = Place(target.url, target.raw, target.prefix)
    happened = played(place, seed, 4, 3, on_busy=[None] * 4, options={"on_fork": "raise"})
    assert happened["checkpoints"] >= 5  # more depends on the speed of the machine


OVER_TIERS = tuple(fault for fault in FAULTS if fault != "kill")
"""Faults without kills, as others wait for a killed writer."""


@pytest.mark.random
@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
@pytest.mark.parametrize(
    ("kind", "seed"), [*(("owners", seed) for seed in seeds([4])), *(("rollbacks", seed) for seed in seeds([5]))]
)
def test_concurrent_owners_over_two_tiers_leave_one_chain(
    target: Target, database: str, mode: str, kind: str, seed: int
) -> None:
    place = Place(target.url, target.raw, target.prefix, database, mode)
    if kind == "rollbacks":
        assert played(place, seed, 5, 6, **ROLLING_BACK)["took"] >= 4
    else:
        of = (*OVER_TIERS, "forget") if mode == "write-through" else OVER_TIERS
        assert played(place, seed, 3, 4, of=of)["took"] >= 3


ROLLING_BACK: dict[str, Any] = {
    "on_busy": ["rollback", "rollback", "wait", "rollback", "probe"],
    "options": {"ownership": "required", "ttl": {"default_ttl": 60}},
    "of": ("kill", "kill", "stop", "lose", "drop", "delay", "cut", *FAULTS_OF_TIERS),
}


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds([2000]))
@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
def test_many_concurrent_rollbacks_over_two_tiers_leave_one_chain(
    target: Target, database: str, mode: str, seed: int, capfd: Any
) -> None:
    # It may be killed, as all it has answered is on the disk.
    server, total = Server("--appendonly", "yes", "--appendfsync", "always"), Counter[str]()
    place = Place(server.url, server.client(), target.prefix, database, mode, server)
    of = (*ROLLING_BACK["of"], "kill_hot")
    kinds = [ROLLING_BACK | {"of": of}, ROLLING_BACK | {"of": (*of, "stop_long", "jump"), "on_busy": ["rollback"] * 4}]
    for number in range(150):
        more = kinds[number % 2]
        total += played(place, seed + number, len(more["on_busy"]), 10, **more)
        with capfd.disabled():
            print(mode, number + 1, dict(total), file=sys.stderr, flush=True)
        if number >= 59 and min(total["rolled back"], total["probes of owned threads"]) > 30:
            break
    server.stop()
    assert min(total["rolled back"], total["probes of owned threads"]) > 30, total


KINDS: dict[str, dict[str, Any]] = {
    "owned": {"runs": 300, "of": LONG},
    "unowned": {"runs": 100, "of": LONG, "on_busy": [None], "options": {"on_fork": "raise"}},
    "write-through": {"runs": 60, "of": (*LONG, "forget")},
    "write-behind": {"runs": 60, "of": LONG},
}


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds([1000]))
@pytest.mark.parametrize("kind", KINDS)
def test_many_concurrent_runs_leave_one_chain(target: Target, request: Any, kind: str, seed: int, capfd: Any) -> None:
    total, more = Counter[str](), dict(KINDS[kind])
    over = (request.getfixturevalue("database"), kind) if kind.startswith("write") else ()
    place = Place(target.url, target.raw, target.prefix, *over)
    for number in range(more.pop("runs")):
        count = 2 + 3 * (number % 2)
        given = {**more, **({"on_busy": more["on_busy"] * count} if "on_busy" in more else {})}
        total += played(place, seed + number, count, 5, **given)
        if number % 20 == 19:
            with capfd.disabled():
                print(kind, number + 1, dict(total), file=sys.stderr, flush=True)
