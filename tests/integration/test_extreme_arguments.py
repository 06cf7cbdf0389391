"""Out-of-range numbers, durations and filters, which raise errors that name the argument in every public call."""

from __future__ import annotations

import inspect
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


NUMBERS: dict[str, Callable[[Target, Any], Any]] = {
    "ttl": lambda target, value: target.uniform(ttl={"default_ttl": value}),
    "history": lambda target, value: target.uniform(history={"keep_last": value}),
    "cache_bytes": lambda target, value: target.uniform(cache_bytes=value),
    "min_replicas": lambda target, value: target.uniform(min_replicas=value),
    "replica_timeout": lambda target, value: target.uniform(replica_timeout=value),
    "cluster_timeout": lambda target, value: target.uniform(cluster_timeout=value),
    "limit": lambda target, value: target.uniform().list(config(), limit=value),
    "keep_last": lambda target, value: target.uniform().prune([THREAD], keep_last=value),
    "min_bytes": lambda target, value: target.uniform().threads(min_bytes=value),
    "thread_ttl": lambda target, value: put(target.uniform(), config(thread_ttl={"default_ttl": value})),
    "thread_history": lambda target, value: put(target.uniform(), config(thread_history={"keep_last": value})),
    "set_thread_ttl: ttl": lambda target, value: target.uniform().set_thread_ttl(THREAD, {"default_ttl": value}),
    "store: ttl": lambda target, value: target.store(ttl={"default_ttl": value}),
    "store: cache_bytes": lambda target, value: target.store(cache_bytes=value),
    "put: ttl": lambda target, value: target.store().put(("n",), "k", {"a": 1}, ttl=value),
    "put: if_version": lambda target, value: target.store().put(("n",), "k", {"a": 1}, if_version=value),
    "search: limit": lambda target, value: target.store().search(("n",), limit=value),
    "search: offset": lambda target, value: target.store().search(("n",), offset=value),
    "namespaces: limit": lambda target, value: target.store().list_namespaces(limit=value),
    "namespaces: offset": lambda target, value: target.store().list_namespaces(offset=value),
    "namespaces: max_depth": lambda target, value: target.store().list_namespaces(max_depth=value),
    "set: ttl": lambda target, value: RedisCache(target.raw, prefix=target.prefix).set({(("n",), "k"): ("v", value)}),
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


DURATIONS: dict[str, Callable[[Target, Any], Any]] = {
    "ttl": lambda target, value: target.uniform(ttl=value),
    "lease": lambda target, value: target.uniform().saver.own(THREAD, lease=value),
    "thread_ttl": lambda target, value: put(target.uniform(), config(thread_ttl=value)),
    "set_thread_ttl: ttl": lambda target, value: target.uniform().set_thread_ttl(THREAD, value),
    "cache: ttl": lambda target, value: RedisCache(target.raw, ttl=value),
    "cache: single_flight": lambda target, value: RedisCache(target.raw, single_flight=value),
    "older_than": lambda target, value: target.uniform().prune([THREAD], older_than=value),
    "expires_within": lambda target, value: target.uniform().threads(expires_within=value),
    "wait": lambda target, value: target.uniform().saver.own(THREAD, on_busy="wait", wait=value),
}
TOO_LONG: dict[str, Any] = {
    "weeks": "9" * 15 + "w",
    "days": "9" * 400 + "d",
    "huge": HUGE,
    "5000 digits": UNSPEAKABLE,
    "nan": math.nan,
}
ANY_LENGTH = ("older_than", "expires_within", "wait")
"""Arguments that accept the longest `timedelta`."""


async def refuses(pass_it: Any, target: Target, argument: str, value: Any) -> None:
    """Check that an argument's value raises an error that names the argument."""
    with pytest.raises((TypeError, ValueError), match=rf"\b{argument.rpartition(' ')[2]}\b"):
        passed = pass_it(target, value)
        if inspect.isawaitable(passed):
            await passed


@pytest.mark.parametrize(
    ("arguments", "values"), [(NUMBERS, BEYOND), (DURATIONS, TOO_LONG)], ids=["number", "duration"]
)
@pytest.mark.parametrize("target_name", ["fakeredis"])
async def test_out_of_range_values_raise_errors_that_name_the_argument(
    target: Target, arguments: Any, values: dict[str, Any]
) -> None:
    for argument, pass_it in arguments.items():
        for name, value in values.items():
            with case(argument, name):
                await refuses(pass_it, target, argument, value)
                assert target.keys() == []


async def test_only_some_durations_accept_the_longest_timedelta(target: Target) -> None:
    await put(target.uniform(), config())
    for argument, pass_it in DURATIONS.items():
        with case(argument):
            if argument not in ANY_LENGTH:
                await refuses(pass_it, target, argument, timedelta.max)
            elif inspect.isawaitable(passed := pass_it(target, timedelta.max)):
                await passed


async def test_the_largest_int_means_no_limit(target: Target) -> None:
    """Like `sys.maxsize` in other interfaces."""
    assert sys.maxsize <= MAX_INT
    saver, store = target.uniform(), target.store()
    await check_largest(saver, store)
    assert (await saver.prune([THREAD], keep_last=MAX_INT)).checkpoints == 0
    assert await saver.threads(min_bytes=MAX_INT) == []


async def check_largest(saver: Uniform, store: Uniform) -> None:
    await put(saver, config())
    await store.put(("n",), "k", {"a": 1})
    await saver.prune([THREAD], keep_last=MAX_INT)
    assert len(await saver.list(config(), limit=MAX_INT)) == 1
    assert len(await store.search(("n",), limit=MAX_INT)) == 1
    assert await store.search(("n",), limit=MAX_INT, offset=MAX_INT) == []
    assert len(await store.list_namespaces(limit=MAX_INT, max_depth=2**31 - 1)) == 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_largest_int_means_no_limit_over_two_tiers(tiers: Tiers, store_tiers: StoreTiers) -> None:
    saver, store = await tiers.uniform(), await store_tiers.store()
    await check_largest(saver, store)
    await saver.prune([THREAD], older_than=timedelta.max)
    assert len(await saver.list(config())) == 1
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


async def refuses_filter(saver: Uniform, store: Uniform, wanted: Any) -> None:
    for search in (
        lambda: saver.list(config(), filter=wanted),
        lambda: saver.list(None, filter=wanted),
        lambda: store.search(("n",), filter=wanted),
    ):
        with pytest.raises(ValueError, match="filter: it is nested more than 100 levels deep, or contains itself"):
            await search()


@pytest.mark.parametrize("target_name", ["fakeredis"])
@pytest.mark.parametrize("name", FILTERS)
async def test_cyclic_and_too_deep_filters_are_refused(target: Target, name: str) -> None:
    saver, store = target.uniform(), target.store()
    await put(saver, config(), metadata={"a": deep(50)})
    await store.put(("n",), "k", {"a": deep(50)})
    await refuses_filter(saver, store, FILTERS[name])
    assert len(await saver.list(config(), filter={"a": deep(50)})) == 1
    assert len(await store.search(("n",), filter={"a": deep(50)})) == 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_cyclic_and_too_deep_filters_are_refused_over_two_tiers(tiers: Tiers, store_tiers: StoreTiers) -> None:
    saver, store = await tiers.uniform(), await store_tiers.store()
    for name in ("contains itself", "deep"):
        await refuses_filter(saver, store, FILTERS[name])


def test_shared_parts_do_not_make_a_filter_deeper() -> None:
    """The filter has 2**50 paths, but each level is visited once."""
    shared: Any = "end"
    for _ in range(50):
        shared = [shared, shared]
    matches = filters.of_metadata({"a": shared})
    assert matches is not None
    assert not matches(checkpoint())  # type: ignore[arg-type]
