"""Calls over many threads or partitions after the key of one tenant was destroyed, and their questions for keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import SearchOp
from tests.support.factories import config, put
from tests.support.tenants import READABLE, SECRETS, TENANTS, THREADS, Counting, keys, threads_of
from tests.support.uniform import Target, Uniform

from redis_saver._client.asking import AT_ONCE
from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import DecodeError, KeyUnavailable

pytestmark = [pytest.mark.plain("each of its tests sets encryption= itself"), pytest.mark.also_on(cluster="async")]


async def filled(target: Target, **options: Any) -> Uniform:
    """Three tenants with two threads each, and each thread with two checkpoints. Returns a process without a key."""
    made = target.uniform(encryption=keys())
    for step in (1, 2):
        for thread in THREADS:
            metadata = {"source": "loop", "step": step, "parents": {}, "run_id": f"run {step}"}
            await put(made, config(thread), {"n": thread}, metadata=metadata, versions={"n": f"{step:032}.0"})
    return target.uniform(encryption=keys("globex", **options))


CALLS: dict[str, Callable[[Uniform], Any]] = {
    "list": lambda saver: saver.list(None),
    "list with a filter": lambda saver: saver.list(None, filter={"step": 2}),
    "latest_values of a prefix": lambda saver: saver.latest_values("n", thread_prefix=""),
    "latest_values of threads": lambda saver: saver.latest_values("n", thread_ids=THREADS),
    "prune": lambda saver: saver.prune(THREADS),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_over_many_threads_skips_those_without_a_key_if_told_so(
    target: Target, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    saver = await filled(target, on_unavailable="skip")
    caplog.set_level(logging.WARNING, "redis_saver.storage")
    answer = await CALLS[call](saver)
    if call.startswith("list"):
        assert threads_of(answer) == {*READABLE}
        assert len(answer) == (4 if "filter" in call else 8)
    elif call == "prune":
        assert answer.checkpoints == 4
    else:
        assert sorted(value.thread_id for value in answer) == READABLE
    assert saver.saver.stats().unavailable == 2
    # other tests of this process may have logged the same line within ten seconds
    for line in caplog.messages:
        assert line.startswith("a call skipped 2 threads, because the keys are unavailable: 'globex:")


@pytest.mark.parametrize("call", CALLS)
async def test_by_default_such_a_call_raises(target: Target, call: str) -> None:
    saver = await filled(target)
    with pytest.raises(KeyUnavailable, match="globex"):
        await CALLS[call](saver)
    assert saver.saver.stats().unavailable == 0


async def test_the_shredded_thread_itself_raises_all_the_same(target: Target) -> None:
    saver = await filled(target, on_unavailable="skip")
    for asked in (
        lambda: saver.get_tuple(config("globex:1")),
        lambda: saver.list(config("globex:1")),
        lambda: saver.latest_values("n", thread_ids=["globex:1"]),
        lambda: saver.prune(["globex:1"]),
        lambda: saver.check("globex:1"),
        lambda: saver.copy_thread("globex:1", "acme:1"),
    ):
        with pytest.raises(KeyUnavailable, match="globex"):
            await asked()
    assert {info.thread_id for info in await saver.threads()} == {*THREADS}, "descriptions need no key"
    assert (await saver.key_status()).threads == {"acme": 2, "globex": 2, "initech": 2}
    await saver.delete_thread("globex:1")


async def test_a_limit_counts_only_what_is_listed(target: Target) -> None:
    saver = await filled(target, on_unavailable="skip")
    every = await saver.list(None)
    for limit in range(1, 9):
        assert await saver.list(None, limit=limit) == every[:limit]
    of_step = [one for one in every if one.metadata["step"] == 1]
    assert await saver.list(None, limit=3, filter={"step": 1}) == of_step[:3]


async def test_damage_is_never_skipped(target: Target) -> None:
    saver = await filled(target, on_unavailable="skip")
    key = f"{target.prefix}:{{acme:1}}:data"
    for field, value in target.raw.hgetall(key).items():
        if field[:1] == b"c":
            target.raw.hset(key, field, value[:-1] + bytes([value[-1] ^ 1]))
    with pytest.raises(DecodeError, match="acme:1"):
        await saver.list(None)


async def test_a_failing_provider_is_never_skipped(target: Target) -> None:
    class Failing(Keyset):
        def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
            if context.name == "acme:2":
                raise ConnectionError("no answer")
            return super().unwrap(wrapped, context)

    await filled(target)
    saver = target.uniform(encryption=Encryption(Failing(SECRETS), on_unavailable="skip"))
    with pytest.raises(ConnectionError, match="no answer"):
        await saver.list(None)


def test_the_setting_takes_two_words() -> None:
    with pytest.raises(ValueError, match="on_unavailable='ignore': write 'raise' or 'skip'"):
        keys(on_unavailable="ignore")


@pytest.mark.parametrize("skips", [True, False])
async def test_runs_are_deleted_in_all_threads_that_have_a_key(target: Target, skips: bool) -> None:
    saver = await filled(target, on_unavailable="skip" if skips else "raise")
    if skips:
        await saver.delete_for_runs(["run 1"])
        assert saver.saver.stats().unavailable == 2
    else:
        with pytest.raises(KeyUnavailable, match="'globex:"):
            await saver.delete_for_runs(["run 1"])
    every = target.uniform(encryption=keys())
    left = {thread: len(await every.list(config(thread))) for thread in THREADS}
    assert left == {thread: 1 if thread in READABLE else 2 for thread in THREADS}


# -- a store

NAMESPACES = [(tenant, f"user-{number}") for tenant in TENANTS for number in (1, 2)]


async def store(target: Target, **options: Any) -> Uniform:
    made = target.store(encryption=keys())
    for namespace in NAMESPACES:
        await made.put(namespace, "key", {"text": "-".join(namespace)})
    return target.store(encryption=keys("globex", **options))


@pytest.mark.parametrize("options", [{}, {"filter": {"text": {"$gt": ""}}}])
async def test_a_search_over_partitions_skips_those_without_a_key_if_told_so(target: Target, options: Any) -> None:
    skipping = await store(target, on_unavailable="skip")
    found = await skipping.search((), limit=100, **options)
    assert sorted(item.namespace for item in found) == [each for each in NAMESPACES if each[0] != "globex"]
    assert skipping.saver.stats().unavailable == 2
    assert await skipping.search(("globex",)) == []
    assert [len(one) for one in await skipping.batch([SearchOp((), limit=100), SearchOp(("acme",))])] == [4, 2]
    assert sorted(await skipping.list_namespaces()) == sorted(NAMESPACES), "names need no key"
    assert await skipping.count(()) == 6
    for asked in (lambda: skipping.search(("globex", "user-1")), lambda: skipping.get(("globex", "user-1"), "key")):
        with pytest.raises(KeyUnavailable, match="globex"):
            await asked()
    raising = target.store(encryption=keys("globex"))
    with pytest.raises(KeyUnavailable, match="globex"):
        await raising.search((), **options)


# -- questions for keys


async def test_keys_of_many_threads_are_asked_for_at_the_same_time(target: Target) -> None:
    """A short list asks for no other keys."""
    made = target.uniform(encryption=keys())
    for number in range(40):
        await put(made, config(f"acme:{number}"), {"n": number}, metadata={"source": "loop", "step": 2})
    for call in ("list", "list with a filter", "latest_values of a prefix"):
        provider = Counting()
        assert len(await CALLS[call](target.uniform(encryption=Encryption(provider)))) == 40
        assert provider.asked == 40 and 1 < provider.most <= AT_ONCE, call
    for options in ({"limit": 3}, {"limit": 3, "filter": {"step": 2}}):
        provider = Counting()
        assert len(await target.uniform(encryption=Encryption(provider)).list(None, **options)) == 3
        assert provider.asked == 3
