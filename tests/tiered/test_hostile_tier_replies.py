"""Corrupted replies of hot over two tiers: each results in a value or in damage, and checkpoints stay intact."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.support import seeds
from tests.support.factories import checkpoint, config
from tests.support.hostile import MAX_REQUESTS, OF_STORED_BYTES, PREFIX, SECONDS, WHERE, Endless
from tests.support.hostile import Recorder, Replay, attempt, changed_reply, furnish, watched
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.servers import url_of

from redis_saver import RedisSaver, TieredSaver
from redis_saver._tiered import context
from redis_saver._tiered import workers, flushing


def put(saver: TieredSaver) -> None:
    values = {"n": 5, "texts": ["t" * 100] * 50}
    made = checkpoint(values, checkpoint_id="c000009")
    saver.put(config("thread", "", "c000002"), made, {"step": 9}, made["channel_versions"])


def flush(saver: TieredSaver) -> None:
    put(saver)
    saver._driver.run(flushing.flush(saver._context, "thread", at_once=True))


CALLS: dict[str, Callable[[TieredSaver], Any]] = {
    "get_tuple": lambda saver: (saver.get_tuple(WHERE), saver.get_tuple(config("thread", "", "c000001"))),
    "put": put,
    "put_writes": lambda saver: saver.put_writes(config("thread", "", "c000002"), [("n", 1)], "task 7"),
    "list": lambda saver: list(saver.list(WHERE)),
    "history": lambda saver: saver.get_delta_channel_history(config=WHERE, channels=["delta", "n"]),
    "threads": lambda saver: (list(saver.threads()), saver.get_thread("thread")),
    "flush": flush,
    "scan": lambda saver: saver._driver.run(workers.scan_in_turn(saver._context)),
    "delete_thread": lambda saver: saver.delete_thread("thread"),
    "expiry": lambda saver: (saver.set_thread_ttl("thread", "1h"), saver.unpin("thread")),
}


class Recorded:
    """The replies of a server to one call, and the contents of cold before it."""

    def __init__(self, url: str, mode: Any, state: str, call: Callable[[TieredSaver], Any]) -> None:
        self.mode, self.call = mode, call
        cold = InMemorySaver()
        with redis.Redis.from_url(url) as raw, RedisSaver.from_conn_string(url, prefix=PREFIX) as hot:
            forget(raw)
            furnish(hot if state == "from before" else TieredSaver(hot, cold, mode=mode, flusher=False), length=2)
            if state == "evicted":
                TieredSaver(hot, cold, mode=mode, flusher=False).flush(timeout=30)
                forget(raw)
        self._cold = self._parts(cold)
        with Recorder.from_url(url) as client:
            client.notes = []
            call(TieredSaver(RedisSaver(client, prefix=PREFIX), cold, mode=mode, flusher=False))
            self.client = Replay(client.notes)
        self.numbers = [at for at, (args, _) in enumerate(self.client.notes) if args[0] in OF_STORED_BYTES]
        assert self.numbers, f"{mode}, {state}: no reply to change among {self.client.notes}"

    @staticmethod
    def _parts(cold: InMemorySaver) -> Any:
        return copy.deepcopy([dict(part) for part in (cold.storage, cold.writes, cold.blobs)])

    def saver(self) -> TieredSaver:
        """A saver that replays the replies, with cold as before the call."""
        cold = InMemorySaver()
        for part, kept in zip((cold.storage, cold.writes, cold.blobs), copy.deepcopy(self._cold), strict=True):
            part.update(kept)
        return TieredSaver(RedisSaver(self.client, prefix=PREFIX), cold, mode=self.mode, flusher=False)


def forget(raw: Any) -> None:
    for key in raw.scan_iter(match=PREFIX + "*"):
        raw.delete(key)


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[Any, Recorded]]:
    url = url_of("redis")
    yield {
        (mode, state, what): Recorded(url, mode, state, call)
        for mode in ("write-through", "write-behind")
        for state in ("in both", "evicted", "from before")
        for what, call in CALLS.items()
    }


@pytest.mark.random
@pytest.mark.parametrize("count", [400, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3 * 3600)])])
def test_a_corrupted_reply_of_hot_is_a_value_or_damage(
    recorded: dict[Any, Recorded], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(context, "WRITER_GONE", 200)
    monkeypatch.setattr(flushing, "FLUSH_LEASE", 30)
    warnings.simplefilter("ignore")
    seed, came = seeds.seed(), dict[str, int]()
    chance = random.Random(seed)
    for number in range(count):
        of = chance.choice(list(recorded))
        one, request, reply = recorded[of], None, None
        try:
            which = chance.choice(one.numbers)
            request, reply = one.client.notes[which]
            reply = changed_reply(chance, reply)
            one.client.begin(which, reply)
            with watched(SECONDS):
                outcome = attempt(lambda: one.call(one.saver()))
        except redis.ResponseError as error:
            assert str(error) == "not noted"  # the saver sent a request that was not recorded
            outcome = "asked for more"
        except BaseException as error:
            # The replay answers each claim with the same records, so a reply that some are left never ends.
            if not isinstance(error, Endless) or one.client.asked <= MAX_REQUESTS:
                said = f"seed {seed}, case {number}, {of}, {request and request[:2]}: {error!r} on {reply!r}"
                raise AssertionError(said[:3000]) from error
            outcome = "asked for more"
        came[outcome] = came.get(outcome, 0) + 1
    assert came["value"] and came["DecodeError"], came
