"""Blocks of `own`: what remains after a block ends or fails to begin, and nested blocks."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
import redis
from tests.support.factories import checkpoint, config, ids
from tests.support.owning import THREAD, begin, enter, epoch, owner_key, owning, waiters_key
from tests.support.proxy import Proxy, proxy, through
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, Meanwhile, ran, script_of

from redis_saver._checkpoint import ownership
from redis_saver._client import loops
from redis_saver._checkpoint import scripts
from redis_saver.errors import DecodeError, NotOwner

pytestmark = pytest.mark.also_on(cluster="async", valkey="sync")


async def put(uniform: Uniform, given: Any = None, **metadata: Any) -> str:
    made = checkpoint({"n": 1})
    token = {key: one for key, one in (given or {}).get("configurable", {}).items() if key == "thread_owner"}
    await uniform.put({"configurable": {**config()["configurable"], **token}}, made, metadata, {"n": "1"})
    return str(made["id"])


def failing(uniform: Uniform, script: Any, error: str, *, times: float = math.inf, after: bool = False) -> list[Any]:
    """Let runs of a script fail before or after the server has run it. Returns a list of these runs."""
    failed = list[Any]()

    def around(request: Any) -> Generator[Any, Any, Any]:
        fails = script_of(request) is script and len(failed) < times
        reply = None if fails and not after else (yield request)
        if fails:
            failed.append(reply)
            raise redis.ConnectionError(error)
        return reply

    Around(uniform.saver, around)
    return failed


def answering(uniform: Uniform, script: Any, reply: Any) -> None:
    """Replace the replies to a script."""

    def around(request: Any) -> Generator[Any, Any, Any]:
        found = yield request
        return reply if script_of(request) is script else found

    Around(uniform.saver, around)


async def given_back(target: Target) -> None:
    """Wait until nobody owns the thread, for less time than its lease."""
    end = time.monotonic() + 30
    while target.raw.exists(owner_key(target)):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_a_block_that_lost_its_thread_to_a_nested_block_stays_refused(saver: Uniform) -> None:
    async with owning(saver):
        await put(saver)
        async with AsyncExitStack() as inner:
            await begin(saver, inner, on_busy="take")
            await saver.prune([THREAD])  # as the inner owner
        with pytest.raises(NotOwner):
            await saver.delete_thread(THREAD)
    await saver.delete_thread(THREAD)  # after both blocks


async def test_blocks_may_end_in_any_order(target: Target) -> None:
    uniform = target.uniform(ownership="required")
    async with AsyncExitStack() as second:
        async with owning(uniform):
            await begin(uniform, second, on_busy="take")
        await uniform.delete_thread(THREAD)  # as the second owner
    await put(uniform)
    assert not target.raw.exists(owner_key(target))


async def test_a_thread_is_released_if_the_reply_to_take_is_lost(target: Target) -> None:
    uniform = target.uniform()
    lost = failing(uniform, scripts.TAKE_OWNERSHIP, "the reply is lost", after=True)
    with pytest.raises(redis.ConnectionError):
        async with AsyncExitStack() as stack:
            await begin(uniform, stack, lease="1d")
    assert lost
    await given_back(target)


async def test_a_failed_rollback_releases_the_thread(target: Target) -> None:
    uniform, other = target.uniform(), target.uniform()
    failing(other, scripts.LIST_REFERENCES, "the server is gone")
    async with AsyncExitStack() as stack:
        old = await begin(uniform, stack, run_id="a run", lease="1d")
        await put(uniform, old, run_id="a run")
        with pytest.raises(redis.ConnectionError):
            await begin(other, stack, on_busy="rollback", lease="1d")
        await given_back(target)
        with pytest.raises(NotOwner):
            await put(uniform, old)


@pytest.mark.parametrize("flavour", ["async"])
async def test_cancelling_a_block_while_it_begins_releases_the_thread(target: Target) -> None:
    uniform, taken = target.uniform(), asyncio.Event()

    async def stuck() -> None:
        taken.set()
        await asyncio.Event().wait()

    def after(request: Any) -> Any:
        return stuck if script_of(request) is scripts.TAKE_OWNERSHIP else None

    Meanwhile(uniform.saver, lambda _: None, after)

    async def enter() -> None:
        async with AsyncExitStack() as stack:
            await begin(uniform, stack, lease="1d")

    task = asyncio.create_task(enter())
    await taken.wait()
    assert target.raw.exists(owner_key(target))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await given_back(target)


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("on_busy", ["raise", "wait", "take"])
async def test_a_request_to_take_that_arrives_after_the_release_is_refused(
    target: Target, proxy: Proxy, on_busy: Any
) -> None:
    """The network holds back the request of a run that is cancelled, and lets the release pass."""
    uniform, arrived, released = through(proxy, target), threading.Event(), threading.Event()
    await put(uniform)  # so that the connection is there

    def hold_back() -> None:
        arrived.set()
        assert released.wait(30)

    proxy.before(scripts.TAKE_OWNERSHIP.sha.encode(), hold_back)
    owned = uniform.saver.own(THREAD, lease="1d", on_busy=on_busy)
    entering = asyncio.create_task(owned.__aenter__())
    while not arrived.is_set():
        await asyncio.sleep(0.01)
    nonce = owned._nonce
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    waiters = waiters_key(target)
    while target.raw.zscore(waiters, f"ended {nonce}") is None:
        await asyncio.sleep(0.01)
    released.set()
    other = target.uniform()
    for _ in range(20):
        async with other.saver.own(THREAD):  # the late request came before one of these, or does nothing
            await asyncio.sleep(0.01)
    assert not target.raw.exists(owner_key(target))
    assert 0 < target.raw.pttl(waiters) <= ownership._REFUSED


def test_the_first_block_does_not_wait_for_the_background_loop() -> None:
    """A second caller finds a loop that takes calls, though its OS thread has not begun to run it."""
    background, begin, ran = loops._Background(), threading.Event(), threading.Event()
    run = background._run
    background._run = lambda *given: (begin.wait(30), run(*given))  # type: ignore[method-assign]
    first = background.loop()
    first.call_soon_threadsafe(ran.set)
    assert background.loop() is first
    assert not ran.is_set()
    begin.set()
    assert ran.wait(30)
    background.end()
    assert first.is_closed()


async def test_a_token_on_the_config_of_another_thread_is_ignored(target: Target) -> None:
    uniform = target.uniform()
    other = target.uniform(ownership="required")

    async def copied(saver: Uniform, owned: Any) -> None:
        given = {"configurable": {**owned["configurable"], "thread_id": "other", "checkpoint_ns": ""}}
        await saver.put(given, checkpoint({"n": 1}), {}, {"n": "1"})

    async with owning(uniform) as owned:
        await copied(uniform, owned)
        await put(uniform, owned)
        async with owning(other, "other"):
            await copied(other, owned)  # as the owner of the other thread
        await uniform.delete_thread("other")
    await copied(uniform, owned)  # also after the block
    with pytest.raises(NotOwner, match="another thread's"):
        await put(uniform, {"configurable": {"thread_owner": f"1-{1:016x}"}})


@pytest.mark.parametrize("flavour", ["async"])
async def test_a_block_in_a_cancelled_scope_releases_the_thread(target: Target) -> None:
    """Each `await` at the block's end is cancelled too, as in a streaming response whose client left."""
    uniform = target.uniform()
    with anyio.CancelScope() as scope:
        async with owning(uniform, lease="1d"):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await given_back(target)


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_losing_the_release_request_raises_nothing(target: Target, caplog: Any, lost: str) -> None:
    uniform = target.uniform()
    caplog.set_level(logging.WARNING, "redis_saver.checkpoint")
    failing(uniform, scripts.RELEASE_OWNERSHIP, "lost", after=lost == "reply")
    async with AsyncExitStack() as stack:
        await put(uniform, await begin(uniform, stack))
    assert "so it stays owned until its lease ends: ConnectionError: lost" in caplog.text
    assert target.raw.exists(owner_key(target)) == (lost == "request")
    target.raw.unlink(owner_key(target))


async def test_a_failed_release_does_not_hide_the_blocks_error(target: Target, caplog: Any) -> None:
    uniform = target.uniform()
    caplog.set_level(logging.WARNING, "redis_saver.checkpoint")
    with pytest.raises(LookupError):
        async with owning(uniform):
            target.raw.unlink(owner_key(target))
            target.raw.rpush(owner_key(target), "of another program")
            raise LookupError
    assert "could not release thread" in caplog.text
    target.raw.unlink(owner_key(target))


# -- renewals


async def renewed(target: Target, since: bytes) -> bytes:
    """Wait until the lease is extended, and return its new end."""
    end = time.monotonic() + 30
    while (until := target.raw.get(owner_key(target)).split(b" ")[1]) == since:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    return bytes(until)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_lease_is_renewed_until_another_owner_takes_the_thread(target: Target, caplog: Any) -> None:
    uniform = target.uniform()
    caplog.set_level(logging.WARNING, "redis_saver.checkpoint")
    failing(uniform, scripts.RENEW_OWNERSHIP, "gone for a while", times=1)
    owned = uniform.saver.own(THREAD, lease="1s")
    async with AsyncExitStack() as stack:
        given = await enter(uniform, stack, owned)
        until = await renewed(target, target.raw.get(owner_key(target)).split(b" ")[1])
        await renewed(target, until)
        assert "was not renewed: ConnectionError: gone for a while" in caplog.text
        assert not owned.is_lost
        await begin(target.uniform(), stack, on_busy="take")
        end = time.monotonic() + 30
        while not owned.is_lost:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert "was taken or deleted by somebody else" in caplog.text
        with pytest.raises(NotOwner):
            await put(uniform, given)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_block_does_not_wait_for_a_hanging_renewal(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """As in a network partition, with a client without a timeout."""
    uniform, answered, hangs = target.uniform(), threading.Event(), 1
    caplog.set_level(logging.WARNING, "redis_saver.checkpoint")

    async def hang() -> None:
        await asyncio.to_thread(answered.wait)

    def before(request: Any) -> Any:
        nonlocal hangs
        if script_of(request) is not scripts.RENEW_OWNERSHIP or not hangs:
            return None
        hangs -= 1
        return hang

    Meanwhile(uniform.saver, before)
    try:
        async with owning(uniform, lease="1s"):
            await renewed(target, target.raw.get(owner_key(target)).split(b" ")[1])
    finally:
        answered.set()
    assert "was not renewed: no answer in 666ms" in caplog.text


# -- damage

DAMAGED = [None, 1, b"x", [], [1], [2, b"1-ab 2 3 - - x"], [1, b"1-ab 2 3 - - of somebody else"], [0, b"1-ab 2 3 - - x"],
           [0, b"1-ab 2 3 - - x", b"1"], [0, b"1-ab 2 3 - - \xff", 1], [1, None]]  # fmt: skip


@pytest.mark.parametrize("target_name", ["fakeredis"])
@pytest.mark.parametrize("reply", DAMAGED, ids=str)
@pytest.mark.by_turns
async def test_a_damaged_reply_to_a_take_raises_decode_error(target: Target, reply: Any) -> None:
    uniform = target.uniform()
    answering(uniform, scripts.TAKE_OWNERSHIP, reply)
    with pytest.raises(DecodeError, match="the owner of thread"):
        async with AsyncExitStack() as stack:
            await begin(uniform, stack, lease="1d")
    await given_back(target)


@pytest.mark.parametrize("target_name", ["fakeredis"])
@pytest.mark.parametrize("reply", [None, b"1", 2, [1]], ids=str)
async def test_a_damaged_reply_to_a_renewal_raises_decode_error(saver: Uniform, reply: Any) -> None:
    rules = saver.saver._rules
    answering(saver, scripts.RENEW_OWNERSHIP, reply)
    answering(saver, scripts.RELEASE_OWNERSHIP, reply)
    for operation in (ownership.renew(rules, THREAD, "1-ab", 1), ownership.release(rules, THREAD, "ab")):
        with pytest.raises(DecodeError, match="the owner of thread"):
            await ran(saver, operation)


@pytest.mark.parametrize("run", ["-", "?", "a b", "\0\ud800", "-1"])
@pytest.mark.by_turns
async def test_a_run_of_any_name_is_rolled_back(target: Target, run: str) -> None:
    uniform, other = target.uniform(), target.uniform()
    before = await put(uniform)
    async with AsyncExitStack() as stack:
        old = await begin(uniform, stack, run_id=run)
        assert (await uniform.get_thread(THREAD)).owner.run_id == run
        await put(uniform, old, run_id=run)
        await begin(other, stack, on_busy="rollback")
        assert ids(await other.list(config())) == [before]


@pytest.mark.parametrize("by", ["@user_script: 1: -READONLY x", "WRONGTYPE x", "DAMAGED x", "\r\n-ERR {} %s"])
@pytest.mark.by_turns
async def test_an_owner_may_be_named_like_an_error(target: Target, by: str) -> None:
    uniform = target.uniform()
    async with AsyncExitStack() as stack:
        old = await begin(uniform, stack, by=by)
        new = await begin(target.uniform(), stack, by=by, on_busy="take")
        with pytest.raises(NotOwner) as caught:
            await put(uniform, old)
        assert str(caught.value).isprintable()
        await put(uniform, new)


async def test_an_owner_always_has_a_name(saver: Uniform) -> None:
    async with owning(saver, by=""):
        await put(saver)
        assert "process" in (await saver.get_thread(THREAD)).owner.by


async def test_an_implausible_epoch_is_not_continued(target: Target) -> None:
    uniform = target.uniform()
    target.raw.set(owner_key(target), b"9999999999999999-%016x 1 1 - - somebody" % 1)
    async with owning(uniform) as given:
        assert epoch(given) < 2**53
        await put(uniform, given)
