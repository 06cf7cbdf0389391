"""Histories of clients that take, renew, release and write one thread are linearizable, even if replies are lost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from linearizing import UNKNOWN, Event, State, after, is_linearizable
from ownership_clients import Processes, side_by_side, unguarded

from tests.support.proxy import Proxy, proxy, retrying  # noqa: F401
from tests.support.seeds import seeds, targets
from tests.support.uniform import Target, Uniform

CLIENTS, CALLS = 4, 6
"""Number of concurrent clients, and of calls that each makes."""


# -- the checker


def made_of(*told: str) -> list[Event]:
    """Parse calls in order, each as `kind argument result`. Brackets: it begins before the previous call ends."""
    events: list[Event] = []
    for number, one in enumerate(told):
        kind, argument, result = ("" if part == "-" else part.replace("+", " ") for part in one.strip("[]").split(" "))
        begin = number - 1.5 if one.startswith("[") else float(number)
        events.append(Event(begin, inf if result == UNKNOWN else number + 0.4, kind, argument, result))
        if one.startswith("["):
            events[-2] = events[-2]._replace(end=number + 0.2)
    return events


A, B = "take a 1-a", "take b! 2-b"


@pytest.mark.parametrize(
    ("told", "is_right"),
    [
        ([A, "put 1-a+x yes", "read - x", "release 1-a yes", "take b 2-b"], True),
        ([A, "take b busy", "renew 1-a yes", "take a 1-a"], True),
        ([A, B, "put 1-a+x no", "renew 1-a no", "release 1-a no", "put 2-b+y yes", "read - y"], True),
        ([A, "lapse - -", "put 1-a+x yes", "put +y yes", "take b 2-b"], True),
        ([A, B, "[put 1-a+x yes]", "read - x"], True),  # concurrent with the take
        ([A, "take b! unknown", "put 1-a+x no", "take b! 3-b", "put 3-b+y yes"], True),
        ([A, "release 1-a unknown", "put 1-a+x yes", "put 1-a+y no"], True),
        ([A, "delete - no", "lapse - -", "delete - yes", "put 1-a+x no"], True),
        ([A, B, "put 1-a+x yes"], False),
        ([A, B, "put 1-a+x no", "read - x"], False),
        ([A, "take b 2-b"], False),
        ([A, "take b! 1-b"], False),  # the epoch does not grow
        (["take a 5-a", "release 5-a yes", "take b 4-b"], False),
        ([A, "release 1-a yes", "put 1-a+x yes"], False),
        ([A, "put +x yes"], False),
        ([A, "put 1-a+x yes", "read - -"], False),
        ([A, "put 1-a+x unknown", "read - x", "read - -"], False),
        ([A, B, "renew 1-a yes"], False),
        ([A, "lapse - -", "renew 1-a yes", "take b 2-b"], False),
        ([A, "delete - yes"], False),
    ],
)
def test_the_checker_judges_written_histories(told: list[str], is_right: bool) -> None:
    assert is_linearizable(made_of(*told)) is is_right


def right_history(chance: random.Random, length: int) -> list[Event]:
    """Random sequential calls with the model's answers."""
    state, tokens, events = State(), [""], list[Event]()
    for number in range(length):
        kind = chance.choice(["take", "take", "put", "put", "renew", "release", "read", "lapse", "delete"])
        token, nonce = chance.choice([*tokens, state.token]), f"{number:x}"
        argument = {"take": nonce + chance.choice(["", "!"]), "put": f"{token} {number:03}"}.get(kind, token)
        argument = "" if kind in ("read", "lapse", "delete") else argument
        answers = [f"{number + 1}-{nonce}", "busy", "yes", "no", state.newest, ""]
        result = next(one for one in answers if [*after(state, Event(number, number + 0.5, kind, argument, one))])
        events.append(Event(number, number + 0.5, kind, argument, result))
        (state,) = after(state, events[-1])
        tokens += [state.token] if kind == "take" and state.token else []
    return events


def wrong(event: Event, chance: random.Random) -> str:
    """Another result than the only right one."""
    if event.kind == "read":
        return event.result + "0"
    if event.kind == "take":
        return "busy" if event.result != "busy" else f"900-{event.argument.rstrip('!')}"
    return {"yes": "no", "no": "yes"}[event.result]


def test_the_checker_rejects_each_wrong_answer_in_sequential_histories() -> None:
    chance, found = random.Random(1), Counter[str]()
    for _ in range(60):
        history = right_history(chance, 14)
        assert is_linearizable(history)
        for number, event in enumerate(history):
            if event.kind != "lapse":
                mutated = [*history[:number], event._replace(result=wrong(event, chance)), *history[number + 1 :]]
                assert not is_linearizable(mutated), (event, mutated)
                found[event.kind] += 1
    assert set(found) == {"take", "put", "renew", "release", "read", "delete"}


def in_some_order(history: Sequence[Event]) -> bool:
    """Check a history by trying all orders, and all subsets of unknown calls."""
    known = [one for one in history if one.result != UNKNOWN]
    unknown = [one for one in history if one.result == UNKNOWN]
    some_unknown = (itertools.combinations(unknown, count) for count in range(len(unknown) + 1))
    for some in itertools.chain.from_iterable(some_unknown):
        for order in itertools.permutations([*known, *some]):
            states = {State()} if all(a.begin <= b.end for a, b in itertools.combinations(order, 2)) else set[State]()
            for event in order:
                states = {then for state in states for then in after(state, event)}
            if states:
                return True
    return False


def test_the_checker_agrees_with_trying_all_orders() -> None:
    chance, answers = random.Random(2), Counter[bool]()
    for _ in range(150):
        history = []
        for event in right_history(chance, 5):
            others = [UNKNOWN] if event.kind == "lapse" else [UNKNOWN, wrong(event, chance)]
            result = chance.choice([event.result] * 8 + others)
            end = inf if result == UNKNOWN else event.end + chance.choice([0, 1, 2])
            history.append(event._replace(begin=event.begin - chance.choice([0, 1, 2]), end=end, result=result))
        answers[is_linearizable(history)] += 1
        assert is_linearizable(history) == in_some_order(history), history
    assert min(answers.values()) > 20, answers


# -- real servers


class Found(Counter[str]):
    """Counts of calls and answers in linearizable histories."""

    def add(self, history: list[Event]) -> None:
        assert is_linearizable(history), "\n".join(map(str, sorted(history)))
        for event in history:
            told = event.result if event.result in ("yes", "no", "busy", UNKNOWN) else "done"
            self[f"{event.kind} {told}"] += 1
        self["overlaps"] += sum(a.end > b.begin for a, b in itertools.pairwise(sorted(history)))


def savers(target: Target, **options: Any) -> list[Uniform]:
    return [target.uniform(client=target.client(**options), ownership="required") for _ in range(CLIENTS)]


async def played(target: Target, uniforms: list[Uniform], seed: int, number: int) -> list[Event]:
    return await side_by_side(uniforms, target.raw, f"thread {seed} {number}", f"{seed} {number}", CALLS)


def break_something(proxy: Proxy, chance: random.Random) -> None:
    """Lose a reply or a request about the owner."""
    (proxy.lose_reply if chance.random() < 0.6 else proxy.drop_request)(b":owner", chance.randrange(1, 12))


async def play_with_losses(target: Target, proxy: Proxy, seed: int, count: int) -> Found:
    chance, found = random.Random(seed), Found()
    uniforms = savers(target, url=proxy.url, retry=retrying(target.flavour, 0))
    for number in range(count):
        break_something(proxy, chance)
        found.add(await played(target, uniforms, seed, number))
        found["lost"] += proxy.lost
    return found


def play_in_processes(target: Target, proxy: Proxy, seed: int, count: int) -> Found:
    chance, found, processes = random.Random(seed), Found(), Processes(2)
    where = {"url": proxy.url, "raw_url": target.url, "prefix": target.prefix, "flavour": target.flavour}
    for number in range(count):
        break_something(proxy, chance)
        told = {"thread": f"thread {seed} {number}", "seed": f"{seed} {number}", "count": CALLS}
        found.add(processes.history(**where, **told))
        found["lost"] += proxy.lost
    processes.close()
    return found


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds([1]))
async def test_histories_of_one_process_are_linearizable(target: Target, seed: int) -> None:
    uniforms, found = savers(target), Found()
    for number in range(30):
        found.add(await played(target, uniforms, seed, number))
    assert min(found["put yes"], found["put no"], found["take done"], found["take busy"], found["overlaps"]) > 5, found


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds([1]))
@pytest.mark.parametrize("target_name", targets("redis", never=("cluster", "fakeredis")))
async def test_histories_with_lost_messages_are_linearizable(target: Target, proxy: Proxy, seed: int) -> None:
    found = await play_with_losses(target, proxy, seed, 60)
    assert found["lost"] > 20, found
    assert found[f"take {UNKNOWN}"] + found[f"put {UNKNOWN}"] > 10, found


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds([1]))
@pytest.mark.parametrize("target_name", targets("redis", never=("cluster", "fakeredis")))
def test_histories_of_several_processes_are_linearizable(target: Target, proxy: Proxy, seed: int) -> None:
    found = play_in_processes(target, proxy, seed, 40)
    assert min(found["lost"], found["overlaps"]) > 10, found


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_checker_rejects_a_saver_without_ownership_checks(target: Target) -> None:
    uniforms, wrong_ones = savers(target), 0
    for one in uniforms:
        unguarded(one)
    for number in range(20):
        wrong_ones += not is_linearizable(await played(target, uniforms, 1, number))
    assert wrong_ones > 10


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds(range(100, 103)))
@pytest.mark.parametrize("target_name", targets("redis", "redis62", "valkey", never=("cluster", "fakeredis")))
async def test_thousands_of_histories_are_linearizable(target: Target, proxy: Proxy, seed: int) -> None:
    found = await play_with_losses(target, proxy, seed, 500)
    found += play_in_processes(target, proxy, -seed, 500)
    assert found["lost"] > 300, found
