"""Splices: they make the value, whatever it is, and are as long as what changed."""

from __future__ import annotations

import random
import re

import pytest
from seeds import seeds

from redis_saver._store.splices import splice

PUT = b"0123456789abcdef"
REGION = re.compile(rb"(\d+) (\d+) (\d+):")


def applied(spliced: bytes, base: bytes) -> bytes:
    """What the script makes of a splice."""
    head = re.match(rb"=(\w+) (\d+) ", spliced)
    assert head and head[1] == PUT and int(head[2]) == len(base)
    at, parts = head.end(), []
    while at < len(spliced):
        region = REGION.match(spliced, at)
        assert region
        start, kept, added = map(int, region.groups())
        assert start + kept <= len(base)
        parts += [base[start : start + kept], spliced[region.end() : region.end() + added]]
        at = region.end() + added
    return b"".join(parts)


def text(chance: random.Random, length: int) -> bytes:
    words = b"the a function returns value none self for in if x y = \n".split(b" ")
    return b" ".join(chance.choice(words) for _ in range(length // 4))


def edited(chance: random.Random, value: bytes) -> bytes:
    start = chance.randrange(len(value) + 1)
    end = min(len(value), start + chance.choice([0, 1, 10, 500, 5000]))
    new = text(chance, chance.choice([0, 5, 60, 600])) if chance.random() < 0.7 else chance.randbytes(20)
    return value[:start] + new + value[end:]


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(range(3)))
def test_a_splice_makes_the_value(seed: int) -> None:
    chance, found = random.Random(seed), 0
    for _ in range(300):
        unit = chance.choice([b"\0", b"ab", b"= 1:" * 3, text(chance, 3000), text(chance, 9000)])
        base = value = unit * (1 if len(unit) > 100 else chance.randrange(3000))
        for _ in range(chance.choice([0, 1, 2, 5, 30])):
            value = edited(chance, value)
        spliced = splice(PUT, base, value)
        if spliced is not None:
            found += 1
            assert applied(spliced, base) == value
            assert 2 * len(spliced) <= len(value)
    assert found > 50


def test_it_is_as_long_as_what_changed() -> None:
    chance = random.Random(1)
    base = text(chance, 100_000)
    edits = {
        "nothing": (base, 40),
        "front and end": (b"z" + base[1:-9] + b"123456789", 40),
        "middle": (base[:50_000] + b"EDITED" + base[50_040:], 60),
        "an insertion": (base[:30_000] + b"q" * 10_000 + base[30_000:], 10_000),
        "a deletion": (base[:30_000] + base[55_000:], 40),
        "twenty places": (b"".join(base[at : at + 5000] + b"EDIT %d" % at for at in range(0, 100_000, 5000)), 20 * 40),
    }
    for name, (value, most) in edits.items():
        spliced = splice(PUT, base, value)
        assert spliced is not None and applied(spliced, base) == value, name
        assert len(spliced) < most + 60, name


def test_what_has_too_little_in_common_is_sent_whole() -> None:
    chance = random.Random(1)
    base = text(chance, 20_000)
    for value in (
        chance.randbytes(20_000),
        base + chance.randbytes(30_000),
        base.replace(b"e", b"ee"),
        chance.randbytes(5),
        b"",
    ):
        assert splice(PUT, base, value) is None
    assert splice(PUT, b"", base) is None
