"""Flushes of a thread that others write all the time: they end with an error, unless cold is catching up."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from langgraph.checkpoint.memory import InMemorySaver

from redis_saver import RedisSaver, ThreadBusy, TieredSaver
from redis_saver._common.config import Address
from redis_saver._engine import runner
from redis_saver._engine.replies import FillLeaseReply, IntentReply
from redis_saver._tiered import intents, reading
from redis_saver._tiered import flushing
from redis_saver._tiered.requests import TimeLimited

MAX_REQUESTS = 1000


@pytest.fixture
def tiers() -> Any:
    made = TieredSaver(RedisSaver(redis.Redis()), InMemorySaver(), flusher=False)._context
    made.backlog_count._reported = math.inf  # so nobody asks whether flushing is paused
    return made


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets."""
    moved = SimpleNamespace(now=1000.0, time=lambda: 0.0)
    moved.monotonic = lambda: moved.now
    for module in (flushing, intents, reading):
        monkeypatch.setattr(module, "time", moved)
    return moved


def flushes(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, seconds: float, left: Iterator[int]) -> None:
    """Let each flush take `seconds`, and leave the next number of records."""

    def flush(*_: Any, **__: Any) -> Generator[Any, Any, flushing.Flushed]:
        clock.now += seconds
        yield None
        return flushing.Flushed(next(left), 5, 0, ())

    monkeypatch.setattr(flushing, "flush", flush)


def run(operation: Generator[Any, Any, Any], reply: Any) -> Any:
    """Run an operation with the same reply to each request."""

    def answer(request: Any) -> Any:
        return runner.run(request.make(), answer) if isinstance(request, TimeLimited) else reply

    return runner.run(operation, answer)


def test_a_flush_that_never_catches_up_ends(tiers: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes(monkeypatch, clock, 1, iter([7] * MAX_REQUESTS))
    with pytest.raises(ThreadBusy, match="thread 't'"):
        run(flushing.flush_now(tiers, "t"), None)
    assert run(flushing.flush_what_goes(tiers, "t"), None) is False


def test_a_long_flush_continues_while_it_catches_up(tiers: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes(monkeypatch, clock, 70, iter([400, 350, 300, 20, 0] * 2))
    assert run(flushing.flush_now(tiers, "t"), None) is None
    assert run(flushing.flush_what_goes(tiers, "t"), None) is True
    assert clock.now == 1700


ASKING: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "reader": (lambda tiers: reading._fetch(tiers, Address("t", "", None), {}), FillLeaseReply.BEHIND),
    "writer": (
        lambda tiers: intents.begin_intent(tiers, "t", b"", intents.Written(b"r")),
        (IntentReply.BEHIND, 0, 0, 0),
    ),
    "writer of an old thread": (
        lambda tiers: intents.begin_intent(tiers, "t", b"", intents.Written(b"r")),
        (IntentReply.UNNOTED, 0, 0, 0),
    ),
}


@pytest.mark.parametrize("name", ASKING)
def test_an_operation_ends_if_each_flush_finds_new_writes(
    tiers: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each flush empties the backlog, but others write again each time."""
    flushes(monkeypatch, clock, 1, iter([0] * MAX_REQUESTS))
    operation, reply = ASKING[name]
    with pytest.raises(ThreadBusy, match="thread 't'"):
        run(operation(tiers), reply)
