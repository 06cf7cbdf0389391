"""Expiry: all keys of a thread have one deadline, after any operations in any order."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
from tests.support.cases import case
from tests.support.factories import chain, config, put
from langgraph.checkpoint.base import INTERRUPT
from tests.support.uniform import Target, Uniform

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async", valkey="sync", fakeredis="async", lua54="sync")

HOUR = timedelta(hours=1)


def left(target: Target, uniform: Uniform, thread: str = "t") -> int:
    """Milliseconds that a thread has left, or -1 without a deadline. Both keys are read in one millisecond."""
    script = """local a, b, c repeat a = redis.call('PTTL', KEYS[1]) b = redis.call('PTTL', KEYS[2])
                c = redis.call('PTTL', KEYS[1]) until a == c return {a, b}"""
    index, data = target.raw.eval(script, 2, *uniform.saver._context.keyspace.keys(thread))
    assert index == data
    assert index != -2
    return int(index)


async def act(uniform: Uniform, action: str, configs: list[dict[str, Any]]) -> None:
    newest = configs[-1]
    if action == "put":
        configs.append(await put(uniform, newest, {"n": 1}, versions={"n": str(len(configs))}))
    elif action == "put again":
        await put(uniform, config("t"), {"n": 1}, checkpoint_id=newest["configurable"]["checkpoint_id"])
    elif action == "put in another namespace":
        await put(uniform, config("t", "sub"), {"n": 1})
    elif action == "writes":
        await uniform.put_writes(newest, [("n", 1), (INTERRUPT, 2)], f"task{len(configs)}")
    elif action == "writes without a checkpoint":
        await uniform.put_writes(config("t", "", "zz"), [("n", 1)], "task")
    elif action == "prune":
        await uniform.prune(["t"])
    elif action == "copy over":
        await chain(uniform, "source", 2)
        await uniform.copy_thread("source", "t")
        configs[:] = [one.config for one in reversed(await uniform.list(config("t")))]
    elif action == "read":
        assert await uniform.get_tuple(config("t")) is not None
        assert await uniform.list(config("t"))
    elif action == "delete runs":
        await put(uniform, config("t"), {}, metadata={"run_id": "r"})
        await uniform.delete_for_runs(["r"])
    else:
        raise AssertionError(action)


ACTIONS = [
    "put", "put again", "put in another namespace", "writes", "writes without a checkpoint", "prune", "copy over", "read",
    "delete runs",
]  # fmt: skip


@pytest.mark.also_on(cluster="async")
@pytest.mark.parametrize("first", ["put", "writes"])
async def test_every_order_of_operations_leaves_one_deadline(target: Target, first: str) -> None:
    uniform = target.uniform(ttl={"default_ttl": 60, "refresh_on_read": True})
    for order in itertools.permutations(ACTIONS, 2):
        await uniform.delete_thread("t")
        if first == "put":
            configs = await chain(uniform, "t", 2)
        else:
            await uniform.put_writes(config("t", "", "0"), [("n", 1)], "task")
            assert left(target, uniform) > 0
            configs = await chain(uniform, "t", 1)
        for action in order:
            await act(uniform, action, configs)
            remaining = left(target, uniform)
            assert HOUR.total_seconds() * 1000 - 5000 < remaining <= HOUR.total_seconds() * 1000, order


async def test_writes_slide_the_deadline_and_reads_only_if_asked(target: Target) -> None:
    still, sliding = target.uniform(ttl=HOUR), target.uniform(ttl={"default_ttl": 60, "refresh_on_read": True})
    configs = await chain(still, "t", 2)

    async def shortened(change: Any) -> bool:
        """Cut the deadline to a minute. Return True if the change makes it an hour again."""
        script = "local t = redis.call('TIME')[1] + 60 return {redis.call('EXPIREAT', KEYS[1], t), redis.call('EXPIREAT', KEYS[2], t)}"
        target.raw.eval(script, 2, *still.saver._context.keyspace.keys("t"))
        await change
        return left(target, still) > 3_000_000

    reads = [
        lambda uniform: uniform.get_tuple(config("t")),
        lambda uniform: uniform.get_tuple(configs[0]),
        lambda uniform: uniform.list(config("t")),
        lambda uniform: uniform.get_delta_channel_history(config=configs[1], channels=["n"]),
    ]
    for read in reads:
        assert not await shortened(read(still))
        assert await shortened(read(sliding))
    assert await shortened(still.put_writes(configs[1], [("n", 1)], "task"))
    assert await shortened(put(still, configs[1], {"n": 9}))
    assert not await shortened(sliding.threads())
    assert not await shortened(sliding.get_thread_ttl("t"))
    await put(sliding, configs[1], {"n": 5}, versions={"n": "9", "empty": "9"})
    assert not await shortened(sliding.prune(["t"]))


async def test_a_saver_without_ttl_keeps_the_deadline(target: Target) -> None:
    uniform, plain = target.uniform(ttl=HOUR), target.uniform()
    configs = await chain(uniform, "t", 1)
    before = left(target, uniform)
    await put(plain, configs[0], {"n": 2})
    await plain.put_writes(configs[0], [("n", 1)], "task")
    assert before - 5000 < left(target, uniform) <= before
    await chain(plain, "other", 1)
    assert left(target, plain, "other") == -1
    await chain(uniform, "other", 1)
    assert left(target, plain, "other") > 0


async def test_a_thread_keeps_its_own_ttl(target: Target) -> None:
    uniform = target.uniform(ttl=HOUR)
    configs = await chain(uniform, "t", 1)
    assert HOUR - timedelta(seconds=5) < await uniform.get_thread_ttl("t") <= HOUR
    await uniform.set_thread_ttl("t", timedelta(days=7))
    await put(uniform, configs[0], {"n": 2})
    assert await uniform.get_thread_ttl("t") > timedelta(days=6)
    await uniform.set_thread_ttl("t", {"default_ttl": 0.5})
    await put(uniform, configs[0], {"n": 3})
    assert await uniform.get_thread_ttl("t") <= timedelta(seconds=30)
    await uniform.set_thread_ttl("t", None)
    assert await uniform.get_thread_ttl("t") > timedelta(minutes=59)
    plain = target.uniform()
    await plain.set_thread_ttl("t", None)
    assert await plain.get_thread_ttl("t") is None


async def test_pin_stops_expiry_and_unpin_restarts_it(target: Target) -> None:
    uniform = target.uniform(ttl=HOUR)
    configs = await chain(uniform, "t", 1)
    await uniform.pin("t")
    assert await uniform.get_thread_ttl("t") is None
    await put(uniform, configs[0], {"n": 2})
    await put(uniform, config("t", thread_ttl=timedelta(minutes=1)), {"n": 3})
    await uniform.put_writes(configs[0], [("n", 1)], "task")
    assert left(target, uniform) == -1
    assert [info.pinned for info in await uniform.threads()] == [True]
    await uniform.unpin("t")
    assert await uniform.get_thread_ttl("t") > timedelta(minutes=59)
    await uniform.set_thread_ttl("t", timedelta(days=2))
    await uniform.unpin("t")
    assert await uniform.get_thread_ttl("t") > timedelta(days=1)
    await uniform.pin("t")
    await uniform.set_thread_ttl("t", timedelta(days=2))
    assert timedelta(days=1) < await uniform.get_thread_ttl("t") <= timedelta(days=2)


@pytest.mark.parametrize("given", [timedelta(days=2), "2d", {"default_ttl": 2880}])
async def test_a_ttl_in_configurable_is_the_threads_own(target: Target, given: Any) -> None:
    uniform = target.uniform(ttl=HOUR)
    where = await put(uniform, config("t", thread_ttl=given), {"n": 1})
    assert await uniform.get_thread_ttl("t") > timedelta(days=1)
    await put(uniform, where, {"n": 2})
    assert await uniform.get_thread_ttl("t") > timedelta(days=1)
    await uniform.put_writes(config("u", "", "1", thread_ttl=given), [("n", 1)], "task")
    assert await uniform.get_thread_ttl("u") > timedelta(days=1)
    found = await uniform.get_tuple(where)
    assert "thread_ttl" not in found.metadata
    with pytest.raises(TypeError, match="thread_ttl.*unit"):
        await put(uniform, config("v", thread_ttl=60), {"n": 1})
    assert await uniform.get_tuple(config("v")) is None


async def test_an_expired_thread_is_completely_gone(target: Target) -> None:
    uniform = target.uniform(ttl=timedelta(milliseconds=60))
    configs = await chain(uniform, "t", 3)
    await uniform.put_writes(configs[-1], [("n", 1)], "task")
    await asyncio.sleep(0.1)
    assert await uniform.get_tuple(config("t")) is None
    assert await uniform.list(config("t")) == []
    assert await uniform.threads() == []
    assert target.keys() == []


async def test_missing_threads_raise_lookup_error(saver: Uniform) -> None:
    assert await saver.get_thread_ttl("absent") is await saver.get_thread("absent") is None
    for method, arguments in [("set_thread_ttl", (HOUR,)), ("pin", ()), ("unpin", ())]:
        with pytest.raises(LookupError, match="'absent'"):
            await getattr(saver, method)("absent", *arguments)


@pytest.mark.also_on()
async def test_wrong_ttls_are_refused(target: Target) -> None:
    minutes = [("60", "number of minutes"), (True, "number of minutes"), (0, "one millisecond")]
    minutes += [(one, "at most a hundred years") for one in (float("nan"), 1e300, 2e12)]
    durations = timedelta(0), timedelta(microseconds=999), timedelta(seconds=-1)
    cases: list[tuple[Any, type[Exception], str]] = [
        (60, TypeError, "bare int"),
        (1.5, TypeError, "bare float"),
        ("60", ValueError, "write a duration as 7d"),
        ("7 days", ValueError, "ttl='7 days'"),
        ("200000d", ValueError, "hundred years"),
        (timedelta.max, ValueError, "hundred years"),
        ({"default_ttl": 60, "refresh_on_reed": True}, ValueError, "refresh_on_reed"),
        ({"refresh_on_read": 1}, TypeError, "refresh_on_read"),
        *(({"default_ttl": given}, ValueError, said) for given, said in minutes),
        *((duration, ValueError, "one millisecond") for duration in durations),
    ]
    for ttl, error, said in cases:
        with case(ttl), pytest.raises(error, match=said):
            target.uniform(ttl=ttl)


async def test_a_ttl_may_be_a_fraction_of_a_minute(target: Target) -> None:
    uniform = target.uniform(ttl={"default_ttl": 0.25})
    await chain(uniform, "t", 1)
    assert timedelta(seconds=14) < await uniform.get_thread_ttl("t") <= timedelta(seconds=15)
