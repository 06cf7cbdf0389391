"""The cache keeps its bounds, evicts the oldest items first, and survives OS threads, finalizers and forks."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import pytest

from redis_saver._common.bounded_cache import BoundedCache


def test_too_many_items_evict_the_oldest() -> None:
    cache: BoundedCache[str, int] = BoundedCache(max_items=3)
    for number, key in enumerate("abc"):
        cache.store(key, number)
    cache.store("a", 9)
    cache.renew("b")
    cache.renew("gone")
    cache.store("d", 3)
    assert list(cache.items()) == [("a", 9), ("b", 1), ("d", 3)]


def test_too_many_bytes_evict_the_oldest() -> None:
    cache: BoundedCache[str, int] = BoundedCache(max_bytes=10)
    for key, size in (("a", 4), ("b", 4), ("c", 4)):
        cache.store(key, 0, size)
    assert (list(cache), cache.bytes) == (["b", "c"], 8)
    cache.store("b", 1, 6)
    assert (list(cache), cache.bytes) == (["c", "b"], 10)
    cache.store("c", 1, 11)  # larger than the cache
    assert (list(cache), cache.bytes) == (["b"], 6)
    cache.forget("b")
    cache.forget("b")
    assert (len(cache), cache.bytes) == (0, 0)


def test_an_item_is_taken_once() -> None:
    cache: BoundedCache[int, int] = BoundedCache(max_bytes=100_000)
    for number in range(10_000):
        cache.store(number, number, 5)
    taken: list[list[int | None]] = [[], []]

    def take(results: list[int | None]) -> None:
        for number in range(10_000):
            results.append(cache.take(number))

    threads = [threading.Thread(target=take, args=(results,)) for results in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((one is None) != (other is None) for one, other in zip(*taken, strict=True))
    assert (len(cache), cache.bytes, cache.take(1)) == (0, 0, None)


def test_os_threads_can_share_a_cache() -> None:
    cache: BoundedCache[int, int] = BoundedCache(max_items=50, max_bytes=2000)
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(5000):
                key = rng.randrange(100)
                rng.choice((cache.renew, cache.forget, cache.get))(key)
                cache.store(key, key, rng.randrange(100))
                assert cache.get(key, key) == key
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert len(cache) <= 50
    assert cache.bytes == sum(cache._sizes.values()) <= 2000
    assert cache._sizes.keys() == cache.keys()


class Storing:
    """A value whose finalizer stores another one."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def __del__(self) -> None:
        self.cache.store("from the finalizer", 1, 1)


@pytest.mark.timeout(20)
def test_a_finalizer_may_store_during_a_store() -> None:
    cache: BoundedCache[Any, Any] = BoundedCache(max_items=2)
    for number in range(5):
        cache.store(number, Storing(cache), 1)
    assert len(cache) <= 2
    assert cache.bytes == len(cache)


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_begins_with_an_empty_cache() -> None:
    cache: BoundedCache[str, int] = BoundedCache(max_bytes=100)
    cache.store("a", 1, 10)
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._lock:
            held.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    if (child := os.fork()) == 0:
        empty = not cache and not cache.bytes
        cache.store("b", 2, 10)
        os._exit(0 if empty and dict(cache) == {"b": 2} else 1)
    assert os.waitpid(child, 0)[1] == 0
    leave.set()
    thread.join(10)
    assert dict(cache) == {"a": 1}
