"""Data keys of threads, partitions and caches: who makes them, who asks for them, and wrong answers of providers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support import factories
from tests.support.caching import cache_of
from tests.support.factories import checkpoint, config
from tests.support.uniform import KEYS, Target, Uniform, encryption

from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.sealing import ID
from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import DecodeError, KeyUnavailable

pytestmark = pytest.mark.plain("each of its tests sets encryption= itself")

WRITERS, READERS = 6, 50
redis_only = pytest.mark.parametrize("target_name", ["redis"])


class Together(Keyset):
    """A keyset that answers only when all writers have asked for a new data key."""

    def __init__(self) -> None:
        super().__init__({"1": b"k" * 32})
        self.barrier = threading.Barrier(WRITERS)

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        self.barrier.wait(10)
        return super().wrap(data_key, context, name)


@pytest.mark.parametrize("flavour", ["sync"])
@redis_only
async def test_writers_of_a_new_thread_agree_on_a_data_key(target: Target) -> None:
    """With a slow provider, each of a run's first calls makes a data key. All but one are dropped."""
    saver = target.uniform(encryption=Encryption(Together())).saver
    saved = checkpoint({"n": 1})
    place = config(checkpoint_id=saved["id"])
    with ThreadPoolExecutor(WRITERS) as threads:
        calls = [threads.submit(saver.put, config(), saved, {}, saved["channel_versions"])]
        calls += [threads.submit(saver.put_writes, place, [("c", n)], f"task-{n}") for n in range(WRITERS - 1)]
        for call in calls:
            call.result()
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"n": 1}
    assert sorted(found.pending_writes) == [(f"task-{n}", "c", n) for n in range(WRITERS - 1)]


# -- one question for all


class Slow(Keyset):
    """A keyset whose `unwrap` counts, and takes a while. `hook` runs within the question of this number."""

    def __init__(self, hook: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(KEYS)
        self.asked, self.hook, self.began = 0, hook, threading.Event()

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.asked += 1
        self.began.set()
        time.sleep(0.1)
        self.hook(self.asked)
        return super().unwrap(wrapped, context)


async def put(uniform: Uniform, values: Any, where: Any = None) -> Any:
    return await factories.put(uniform, where or config(), values)


async def at_once(uniform: Uniform, number: int = READERS) -> list[Any]:
    """Read the thread by so many callers at once. Returns the values or errors."""
    if uniform.native_async:
        found = await asyncio.gather(*(uniform.get_tuple(config()) for _ in range(number)), return_exceptions=True)
    else:
        with ThreadPoolExecutor(number) as threads:
            reads = [threads.submit(uniform.saver.get_tuple, config()) for _ in range(number)]  # type: ignore[union-attr]
            found = [read.exception() or read.result() for read in reads]
    return [each if isinstance(each, BaseException) else each.checkpoint["channel_values"] for each in found]


@redis_only
async def test_concurrent_first_reads_ask_once(target: Target) -> None:
    await put(target.uniform(encryption=encryption()), {"n": 1})
    provider = Slow()
    uniform = target.uniform(encryption=Encryption(provider))
    assert await at_once(uniform) == [{"n": 1}] * READERS
    assert provider.asked == 1
    await put(uniform, {"n": 2})
    assert provider.asked == 1


@pytest.mark.parametrize("flavour", ["async"])
@redis_only
async def test_an_error_of_the_provider_reaches_all_that_wait(target: Target) -> None:
    await put(target.uniform(encryption=encryption()), {"n": 1})
    errors = [ConnectionError("the KMS is down")]

    def fail(_: int) -> None:
        if errors:
            raise errors.pop()

    provider = Slow(fail)
    uniform = target.uniform(encryption=Encryption(provider))
    assert [str(error) for error in await at_once(uniform)] == ["the KMS is down"] * READERS
    assert provider.asked == 1
    assert await at_once(uniform, 2) == [{"n": 1}] * 2
    assert provider.asked == 2


@redis_only
async def test_others_go_on_if_the_first_caller_is_cancelled(target: Target) -> None:
    await put(target.uniform(encryption=encryption()), {"n": 1})

    def interrupt(number: int) -> None:
        if number == 1 and target.flavour == "sync":
            raise KeyboardInterrupt

    provider = Slow(interrupt)
    uniform = target.uniform(encryption=Encryption(provider))
    if uniform.native_async:
        first = asyncio.create_task(uniform.get_tuple(config()))
        await asyncio.to_thread(provider.began.wait, 30)
        others = asyncio.create_task(at_once(uniform, 5))
        await asyncio.sleep(0.02)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        found = await others
    else:
        found = [each for each in await at_once(uniform, 6) if not isinstance(each, KeyboardInterrupt)]
    assert found == [{"n": 1}] * 5
    assert provider.asked == 2


@pytest.mark.parametrize("flavour", ["async"])
@redis_only
async def test_a_cancelled_waiter_leaves_the_others_alone(target: Target) -> None:
    await put(target.uniform(encryption=encryption()), {"n": 1})
    provider = Slow()
    uniform = target.uniform(encryption=Encryption(provider))
    tasks = [asyncio.create_task(uniform.get_tuple(config())) for _ in range(4)]
    await asyncio.to_thread(provider.began.wait, 30)
    tasks[2].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each).__name__ for each in found] == [*["CheckpointTuple"] * 2, "CancelledError", "CheckpointTuple"]
    assert provider.asked == 1


@pytest.mark.parametrize("flavour", ["async"])
@redis_only
async def test_no_loop_waits_for_the_question_of_another_one(target: Target) -> None:
    """The other loop may end before its question is answered."""
    await put(target.uniform(encryption=encryption()), {"n": 1})
    provider = Slow()
    uniform = target.uniform(encryption=Encryption(provider))
    await uniform.get_tuple(config("another"))  # so the first loop is this one
    reading = asyncio.create_task(uniform.get_tuple(config()))
    await asyncio.to_thread(provider.began.wait, 30)

    def elsewhere() -> Any:  # this loop stands still meanwhile
        return asyncio.run(uniform.saver.aget_tuple(config()))  # type: ignore[union-attr]

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(elsewhere).result(30).checkpoint["channel_values"] == {"n": 1}
    assert (await reading).checkpoint["channel_values"] == {"n": 1}
    assert provider.asked == 2


@pytest.mark.parametrize("flavour", ["sync"])
@redis_only
async def test_a_child_asks_for_itself(target: Target) -> None:
    """A fork while another OS thread of the parent asks."""
    await put(target.uniform(encryption=encryption()), {"n": 1})
    answered = threading.Event()
    parent = os.getpid()
    provider = Slow(lambda _: os.getpid() != parent or answered.wait(30))
    saver = target.uniform(encryption=Encryption(provider)).saver
    reader = threading.Thread(target=saver.get_tuple, args=(config(),))
    reader.start()
    assert provider.began.wait(30)
    if (child := os.fork()) == 0:
        os._exit(0 if saver.get_tuple(config()).checkpoint["channel_values"] == {"n": 1} else 1)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    answered.set()
    reader.join()
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0)


# -- wrong answers


class Confused(Keyset):
    """A keyset with a cache that goes by the context, so it returns the data key that a thread had before."""

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.before = dict[KeyContext, bytes]()

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        return self.before.setdefault(context, super().unwrap(wrapped, context))


async def test_another_data_key_than_was_wrapped_is_refused_before_anything_is_written(target: Target) -> None:
    provider = Confused()
    for values in ({"n": 1}, {"n": 2}):
        await put(target.uniform(encryption=encryption()), values)
        if values == {"n": 1}:
            await target.uniform(encryption=Encryption(provider)).get_tuple(config())
            await target.uniform(encryption=encryption()).delete_thread("thread")
    before = target.raw.hgetall(f"{target.prefix}:{{thread}}:data")
    uniform = target.uniform(encryption=Encryption(provider))
    saved = checkpoint({"n": 3})
    for call in (
        lambda: uniform.put(config(), saved, {}, saved["channel_versions"]),
        lambda: uniform.put_writes(config(checkpoint_id=saved["id"]), [("n", 4)], "task"),
        lambda: uniform.get_tuple(config()),
    ):
        with pytest.raises(DecodeError, match=r"'thread'.*another data key than the one that it wrapped.*not used"):
            await call()
    assert target.raw.hgetall(f"{target.prefix}:{{thread}}:data") == before
    assert "another data key" in (await uniform.rotate_keys()).failed["thread"]
    assert (await target.uniform(encryption=encryption()).get_tuple(config())).checkpoint["channel_values"] == {"n": 2}


@redis_only
async def test_stores_and_caches_refuse_another_data_key(target: Target) -> None:
    class Wrong(Keyset):
        def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
            return super().unwrap(wrapped, context)[::-1]

    wrong, entry = Encryption(Wrong(KEYS)), (("a",), "k")
    await target.store(encryption=encryption()).put(("a", "b"), "k", {"n": 1})
    await cache_of(target, encryption=encryption()).set({entry: (1, None)})
    with pytest.raises(DecodeError, match=r"store 'a/b'.*another data key"):
        await target.store(encryption=wrong).put(("a", "b"), "k", {"n": 2})
    with pytest.raises(DecodeError, match="cache.*another data key"):
        await cache_of(target, encryption=wrong, on_error="raise").set({entry: (2, None)})
    assert (await target.store(encryption=encryption()).get(("a", "b"), "k")).value == {"n": 1}
    assert await cache_of(target, encryption=encryption(), on_error="raise").get([entry]) == {entry: 1}


@pytest.mark.parametrize("flavour", ["sync"])
@redis_only
async def test_a_wrong_reply_of_wrap_is_refused(target: Target) -> None:
    class Wrong(Keyset):
        def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> Any:
            return super().wrap(data_key, context, name).data

    with pytest.raises(TypeError, match="returned a bytes; return a WrappedKey"):
        await put(target.uniform(encryption=Encryption(Wrong(KEYS))), {"n": 1})
    assert not target.keys()


@pytest.mark.parametrize("flavour", ["sync"])
@redis_only
async def test_a_data_key_without_a_seal_is_read(target: Target) -> None:
    """As the first encrypted threads have it."""
    await put(target.uniform(encryption=encryption()), {"n": 1})
    data = f"{target.prefix}:{{thread}}:data"
    stored = target.raw.hget(data, "@key")
    for frames, error in ((2, None), (3, DecodeError)):
        target.raw.hset(data, "@key", stored[:ID] + pack(unpack(stored[ID:])[:frames]))
        reading = target.uniform(encryption=encryption()).get_tuple(config())
        with pytest.raises(error) if error else contextlib.nullcontext():
            assert (await reading).checkpoint["channel_values"] == {"n": 1}


# -- providers that fail while keys are rotated


class Failing(Keyset):
    """A provider whose service fails for some holders, in one of its calls, by an error of its own."""

    def __init__(self, call: str, error: Exception) -> None:
        super().__init__({"new": b"n" * 32, **KEYS})
        self.call, self.error = call, error

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        self._fail("wrap", context)
        return super().wrap(data_key, context, name)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self._fail("unwrap", context)
        return super().unwrap(wrapped, context)

    def _fail(self, call: str, context: KeyContext) -> None:
        if call == self.call and not context.name.endswith("fine"):
            raise self.error


class Throttled(Exception):  # noqa: N818 - as KMS clients call theirs
    """An error of a KMS client, of which this package knows nothing."""


ERRORS: list[tuple[str, Exception]] = [
    *(("unwrap", error) for error in (Throttled("rate"), ConnectionError("no route"), KeyUnavailable("no such key"))),
    *(("wrap", error) for error in (Throttled("rate"), ValueError("unknown"))),
    ("key_for", ZeroDivisionError("division")),
]


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(("call", "error"), ERRORS)
@redis_only
@pytest.mark.by_turns
async def test_a_rotation_goes_on_after_a_provider_s_error(
    target: Target, call: str, error: Exception, data: bool
) -> None:
    threads = ("bad 1", "fine", "bad 2")
    for thread in threads:
        await put(target.uniform(encryption=encryption()), {"n": 1}, config(thread))

    def key_for(thread: str, _: Any) -> None:
        if call == "key_for" and thread != "fine":
            raise error

    uniform = target.uniform(encryption=Encryption(Failing(call, error), key_for=key_for))
    rotated = await uniform.rotate_keys(data=data)
    assert (rotated.rotated, sorted(rotated.failed)) == (1, ["bad 1", "bad 2"])
    assert all(str(error) in text for text in rotated.failed.values())
    for thread in threads:
        found = await target.uniform(encryption=Encryption(Failing("", error))).get_tuple(config(thread))
        assert found.checkpoint["channel_values"] == {"n": 1}


@redis_only
async def test_nothing_is_rotated_to_a_key_that_does_not_unwrap(target: Target) -> None:
    """Such as one that the process may use to encrypt, but not to decrypt."""

    class Rights(Keyset):
        asked = 0

        def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
            self.asked += 1
            if wrapped.key_id == "new" and not may_decrypt:
                raise Throttled("AccessDenied")
            return super().unwrap(wrapped, context)

    for number in range(5):
        await put(target.uniform(encryption=encryption()), {"n": 1}, config(f"thread-{number}"))
    for may_decrypt in (False, True):
        provider = Rights({"new": b"n" * 32, **KEYS})
        rotated = await target.uniform(encryption=Encryption(provider)).rotate_keys()
        assert (rotated.rotated, len(rotated.failed)) == ((5, 0) if may_decrypt else (0, 5))
        status = await target.uniform(encryption=encryption()).key_status()
        assert status.threads == {"new" if may_decrypt else "2026-11": 5}
    assert provider.asked == 5 + 1


@redis_only
async def test_rotations_of_stores_and_caches_go_on_after_a_provider_s_error(target: Target) -> None:
    store, cache = target.store(encryption=encryption()), cache_of(target, encryption=encryption())
    for labels in (("a", "bad"), ("b", "fine")):
        await store.put(labels, "k", {"n": 1})
    await cache.set({(("a",), "k"): (1, None)})
    failing = Encryption(Failing("wrap", Throttled("rate")))
    rotated = await target.store(encryption=failing).rotate_keys()
    assert (rotated.rotated, list(rotated.failed)) == (1, ["store a/bad"])
    rotated = await cache_of(target, encryption=failing).cache.arotate_keys()
    assert (rotated.rotated, list(rotated.failed)) == (0, ["cache"])
    assert "Throttled: rate" in rotated.failed["cache"]


@redis_only
async def test_a_rotation_is_stopped_by_an_interrupt(target: Target) -> None:
    class Interrupted(Keyset):
        def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
            raise KeyboardInterrupt

        async def aunwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
            raise asyncio.CancelledError

    await put(target.uniform(encryption=encryption()), {"n": 1})
    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        await target.uniform(encryption=Encryption(Interrupted({"new": b"n" * 32, **KEYS}))).rotate_keys()
