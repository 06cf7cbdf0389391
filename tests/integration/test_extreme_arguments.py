"""Out-of-range numbers, durations and filters, which raise errors that name the argument in every public call."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.cases import case
from tests.support.factories import checkpoint, config, put
from tests.support.store_tiering import StoreTiers
from tests.support.tiering import Tiers
from tests.support.uniform import Target, Uniform

from redis_saver import AsyncTieredSaver, RedisCache, TieredSaver
from redis_saver._common.config import MAX_INT
from redis_saver._common import filters

HUGE = 10**400
UNSPEAKABLE = 10**5000
"""An int with more digits than Python writes."""
THREAD = "thread"


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"a": found}
    return found


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["a"] = [found, found]
    return found


def with_setting(name: str) -> Callable[[Target, Any], Any]:
    async def make(target: Target, value: Any) -> None:
        target.uniform(**{name: value})

    return make


def of_store(name: str) -> Callable[[Target, Any], Any]:
    async def make(target: Target, value: Any) -> None:
        target.store(**{name: value})

    return make


def of_cache(name: str) -> Callable[[Target, Any], Any]:
    async def make(target: Target, value: Any) -> None:
        RedisCache(target.raw, **{name: value})

    return make


def calling(act: Callable[[Uniform, Any], Any]) -> Callable[[Target, Any], Any]:
    async def call(target: Target, value: Any) -> None:
        await act(target.uniform(), value)

    return call


def calling_store(act: Callable[[Uniform, Any], Any]) -> Callable[[Target, Any], Any]:
    async def call(target: Target, value: Any) -> None:
        await act(target.store(), value)

    return call


async def own(target: Target, **options: Any) -> None:
    target.uniform().saver.own(THREAD, **options)


async def set_cache(target: Target, value: Any) -> None:
    RedisCache(target.raw, prefix=target.prefix).set({(("n",), "k"): ("value", value)})


NUMBERS: dict[str, Callable[[Target, Any], Any]] = {
    "ttl": lambda target, value: with_setting("ttl")(target, {"default_ttl": value}),
    "history": lambda target, value: with_setting("history")(target, {"keep_last": value}),
    "cache_bytes": with_setting("cache_bytes"),
    "min_replicas": with_setting("min_replicas"),
    "replica_timeout": with_setting("replica_timeout"),
    "cluster_timeout": with_setting("cluster_timeout"),
    "limit": calling(lambda saver, value: saver.list(config(), limit=value)),
    "keep_last": calling(lambda saver, value: saver.prune([THREAD], keep_last=value)),
    "min_bytes": calling(lambda saver, value: saver.threads(min_bytes=value)),
    "thread_ttl": calling(lambda saver, value: put(saver, config(thread_ttl={"default_ttl": value}))),
    "thread_history": calling(lambda saver, value: put(saver, config(thread_history={"keep_last": value}))),
    "set_thread_ttl: ttl": calling(lambda saver, value: saver.set_thread_ttl(THREAD, {"default_ttl": value})),
    "store: ttl": lambda target, value: of_store("ttl")(target, {"default_ttl": value}),
    "store: cache_bytes": of_store("cache_bytes"),
    "put: ttl": calling_store(lambda store, value: store.put(("n",), "k", {"a": 1}, ttl=value)),
    "put: if_version": calling_store(lambda store, value: store.put(("n",), "k", {"a": 1}, if_version=value)),
    "search: limit": calling_store(lambda store, value: store.search(("n",), limit=value)),
    "search: offset": calling_store(lambda store, value: store.search(("n",), offset=value)),
    "namespaces: limit": calling_store(lambda store, value: store.list_namespaces(limit=value)),
    "namespaces: offset": calling_store(lambda store, value: store.list_namespaces(offset=value)),
    "namespaces: max_depth": calling_store(lambda store, value: store.list_namespaces(max_depth=value)),
    "set: ttl": set_cache,
}
"""Functions that pass a number, by the argument's name; a prefix tells equal names apart."""


BEYOND: dict[str, Any] = {
    "huge": HUGE,
    "-huge": -HUGE,
    "5000 digits": UNSPEAKABLE,
    "-5000 digits": -UNSPEAKABLE,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}


@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_out_of_range_numbers_raise_errors_that_name_the_argument(target: Target) -> None:
    for argument, pass_it in NUMBERS.items():
        for name, number in BEYOND.items():
            with case(argument, name):
                with pytest.raises((TypeError, ValueError), match=rf"\b{argument.rpartition(' ')[2]}\b"):
                    await pass_it(target, number)
                assert target.keys() == []


DURATIONS: dict[str, Callable[[Target, Any], Any]] = {
    "ttl": with_setting("ttl"),
    "lease": lambda target, value: own(target, lease=value),
    "thread_ttl": calling(lambda saver, value: put(saver, config(thread_ttl=value))),
    "set_thread_ttl: ttl": calling(lambda saver, value: saver.set_thread_ttl(THREAD, value)),
    "cache: ttl": of_cache("ttl"),
    "cache: single_flight": of_cache("single_flight"),
    "older_than": calling(lambda saver, value: saver.prune([THREAD], older_than=value)),
    "expires_within": calling(lambda saver, value: saver.threads(expires_within=value)),
    "wait": lambda target, value: own(target, on_busy="wait", wait=value),
}
ANY_LENGTH = ("older_than", "expires_within", "wait")
"""Arguments that accept the longest `timedelta`."""


@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_out_of_range_durations_raise_errors_that_name_the_argument(target: Target) -> None:
    durations = {
        "weeks": "9" * 15 + "w",
        "days": "9" * 400 + "d",
        "huge": HUGE,
        "5000 digits": UNSPEAKABLE,
        "nan": math.nan,
    }
    for argument, pass_it in DURATIONS.items():
        for name, duration in durations.items():
            with case(argument, name):
                with pytest.raises((TypeError, ValueError), match=rf"\b{argument.rpartition(' ')[2]}\b"):
                    await pass_it(target, duration)
                assert target.keys() == []


async def test_only_some_durations_accept_the_longest_timedelta(target: Target) -> None:
    await put(target.uniform(), config())
    for argument, pass_it in DURATIONS.items():
        with case(argument):
            if argument in ANY_LENGTH:
                await pass_it(target, timedelta.max)
                continue
            with pytest.raises(ValueError, match=rf"\b{argument.rpartition(' ')[2]}\b"):
                await pass_it(target, timedelta.max)


async def test_the_largest_int_means_no_limit(target: Target) -> None:
    """Like `sys.maxsize` in other interfaces."""
    assert sys.maxsize <= MAX_INT
    saver, store = target.uniform(), target.store()
    await put(saver, config())
    await store.put(("n",), "k", {"a": 1})
    assert len(await saver.list(config(), limit=MAX_INT)) == 1
    assert (await saver.prune([THREAD], keep_last=MAX_INT)).checkpoints == 0
    assert await saver.threads(min_bytes=MAX_INT) == []
    assert len(await store.search(("n",), limit=MAX_INT)) == 1
    assert await store.search(("n",), limit=MAX_INT, offset=MAX_INT) == []
    assert len(await store.list_namespaces(limit=MAX_INT, max_depth=2**31 - 1)) == 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_largest_int_means_no_limit_over_two_tiers(tiers: Tiers, store_tiers: StoreTiers) -> None:
    saver, store = await tiers.uniform(), await store_tiers.store()
    await put(saver, config())
    await store.put(("n",), "k", {"a": 1})
    assert len(await saver.list(config(), limit=MAX_INT)) == 1
    await saver.prune([THREAD], keep_last=MAX_INT)
    await saver.prune([THREAD], older_than=timedelta.max)
    assert len(await saver.list(config())) == 1
    assert len(await store.search(("n",), limit=MAX_INT)) == 1
    assert await store.search(("n",), limit=MAX_INT, offset=MAX_INT) == []
    assert len(await store.list_namespaces(limit=MAX_INT, max_depth=2**31 - 1)) == 1
    for name, call in (
        ("limit", lambda: saver.list(config(), limit=HUGE)),
        ("keep_last", lambda: saver.prune([THREAD], keep_last=HUGE)),
        ("limit", lambda: store.search(("n",), limit=HUGE)),
        ("offset", lambda: store.search(("n",), offset=HUGE)),
        ("max_depth", lambda: store.list_namespaces(max_depth=HUGE)),
        ("ttl", lambda: store.put(("n",), "k", {"a": 1}, ttl=HUGE)),
    ):
        with pytest.raises(ValueError, match=rf"\b{name}="):
            await call()


@pytest.mark.parametrize("target_name", ["redis"])
async def test_out_of_range_settings_of_a_tiered_saver_are_refused(target: Target) -> None:
    hot, cold = target.uniform().saver, target.uniform().saver
    kind = AsyncTieredSaver if target.flavour == "async" else TieredSaver
    for setting in ("flush_workers", "max_backlog", "flush_interval", "backlog_timeout"):
        for name in ("huge", "5000 digits", "-huge", "nan", "inf"):
            with case(setting, name), pytest.raises(ValueError, match=rf"\b{setting}="):
                kind(hot, cold, mode="write-behind", **{setting: BEYOND[name]})


FILTERS: dict[str, Any] = {
    "contains itself": {"a": cyclic()},
    "deep": {"a": deep(100_000)},
    "deep lists": {"a": [[[deep(98)]]]},
    "in an operator": {"a": {"$eq": cyclic()}},
    "in a list of an operator": {"a": {"$ne": [deep(1000)]}},
}


@pytest.mark.parametrize("target_name", ["fakeredis"])
@pytest.mark.parametrize("name", FILTERS)
async def test_cyclic_and_too_deep_filters_are_refused(target: Target, name: str) -> None:
    saver, store = target.uniform(), target.store()
    await put(saver, config(), metadata={"a": deep(50)})
    await store.put(("n",), "k", {"a": deep(50)})
    for search in (
        lambda: saver.list(config(), filter=FILTERS[name]),
        lambda: saver.list(None, filter=FILTERS[name]),
        lambda: store.search(("n",), filter=FILTERS[name]),
    ):
        with pytest.raises(ValueError, match="filter: it is nested more than 100 levels deep, or contains itself"):
            await search()
    assert len(await saver.list(config(), filter={"a": deep(50)})) == 1
    assert len(await store.search(("n",), filter={"a": deep(50)})) == 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_cyclic_and_too_deep_filters_are_refused_over_two_tiers(tiers: Tiers, store_tiers: StoreTiers) -> None:
    saver, store = await tiers.uniform(), await store_tiers.store()
    for search in (
        lambda: saver.list(config(), filter=FILTERS["contains itself"]),
        lambda: store.search(("n",), filter=FILTERS["deep"]),
    ):
        with pytest.raises(ValueError, match="filter: it is nested"):
            await search()


def test_shared_parts_do_not_make_a_filter_deeper() -> None:
    """The filter has 2**50 paths, but each level is visited once."""
    shared: Any = "end"
    for _ in range(50):
        shared = [shared, shared]
    matches = filters.of_metadata({"a": shared})
    assert matches is not None
    assert not matches(checkpoint())  # type: ignore[arg-type]
