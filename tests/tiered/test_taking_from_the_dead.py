"""Taking a thread over two tiers waits for writers to cold, up to their time limit, and renews its own lease."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.factories import checkpoint, config
from tests.support.tiering import Tiers, keys_of

from redis_saver._common.names import Keyspace
from redis_saver._tiered import context
from redis_saver.errors import NotOwner

pytestmark = [pytest.mark.parametrize("target_name", ["redis"])]


def now(tiers: Tiers) -> int:
    seconds, micros = tiers.target.raw.time()
    return int(seconds * 1000 + micros // 1000)


def left_behind(tiers: Tiers, at: int) -> None:
    """Leave the write intent of a writer that was killed."""
    tiers.target.raw.zadd(keys_of(tiers).intents, {b"%015d-" % at + b"*" * 16 + b"f" * 32: 0})


async def taken(tiers: Tiers, uniform: Any, **options: Any) -> Any:
    owned = uniform.saver.own("thread", **options)
    given = await (owned.__aenter__() if uniform.native_async else asyncio.to_thread(owned.__enter__))
    return owned, given


async def given_back(uniform: Any, owned: Any) -> None:
    end = (None, None, None)
    await (owned.__aexit__(*end) if uniform.native_async else asyncio.to_thread(owned.__exit__, *end))


async def test_a_new_owner_does_not_wait_for_a_dead_writer(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    left_behind(tiers, now(tiers) - context.WRITER_GONE - 1)
    began = time.monotonic()
    owned, given = await taken(tiers, uniform)
    assert time.monotonic() - began < context.WRITER_GONE / 1000 / 2  # a live writer has five minutes
    made = checkpoint({"n": 1})
    await uniform.put({"configurable": {**config()["configurable"], **given["configurable"]}}, made, {}, {"n": "1"})
    await given_back(uniform, owned)


async def test_a_waiting_owner_renews_its_lease(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "WRITER_GONE", 3000)
    uniform, other = await tiers.uniform(), await tiers.uniform()
    left_behind(tiers, now(tiers))
    key = Keyspace(tiers.target.prefix).owner_key("thread")
    took = asyncio.ensure_future(taken(tiers, uniform, lease="1s"))
    seen = set()
    while not took.done():
        if record := tiers.target.raw.get(key):
            seen.add(record.split(b" ")[1])
        await asyncio.sleep(0.01)
    assert len(seen) > 2  # renewed several times
    await given_back(uniform, took.result()[0])
    owned, _ = await taken(tiers, other, lease="1s")
    await given_back(other, owned)


async def test_a_waiting_owner_can_lose_the_thread(tiers: Tiers) -> None:
    uniform = await tiers.uniform()
    left_behind(tiers, now(tiers))
    key = Keyspace(tiers.target.prefix).owner_key("thread")
    took = asyncio.ensure_future(taken(tiers, uniform, lease="1s"))
    while not tiers.target.raw.get(key):
        await asyncio.sleep(0.01)
    hot = tiers.target.uniform()
    owned, _ = await taken(tiers, hot, on_busy="take")
    with pytest.raises(NotOwner):
        await took
    await given_back(hot, owned)
