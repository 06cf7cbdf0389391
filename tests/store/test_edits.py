"""Edits of stored items by OS threads, agents and imports."""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from tests.support.stores import check_sound
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import ran

from redis_saver import Conflict
from redis_saver._store import writing

NS = ("files", "ada")
on_redis = pytest.mark.parametrize("target_name", ["redis"])


def lines(count: int, seed: int = 0) -> str:
    chance = random.Random(seed)
    return "\n".join(f"{number}: {chance.randbytes(20).hex()}" for number in range(count))


def file(text: str, n: int = 0) -> dict[str, Any]:
    return {"content": text, "modified": f"2026-11-25T01:02:03.{n:06}", "n": n}


TEXT = lines(2000)
"""About 90 kB."""


def edited(number: int, text: str = TEXT) -> dict[str, Any]:
    """Return the file with one line changed."""
    return file(text.replace(f"\n{number * 17}: ", f"\nedit {number}: "), number)


async def seen(target: Target, key: str = "f") -> Any:
    """Return the value as a process without a cache reads it."""
    found = await target.store(cache_bytes=0).get(NS, key, refresh_ttl=False)
    return found and found.value


@on_redis
async def test_mutating_a_put_or_returned_value_changes_nothing_stored(target: Target, store: Uniform) -> None:
    given = file(TEXT)
    await store.put(NS, "f", given)
    given["content"] = "changed"
    found = await store.get(NS, "f")
    found.value["content"] = "changed, too"
    assert (await store.get(NS, "f")).value == file(TEXT)


@on_redis
async def test_an_import_may_replace_a_value_under_the_same_timestamp(target: Target, store: Uniform) -> None:
    await store.put(NS, "f", file(TEXT))
    context = store.saver._context
    item = writing.StoredItem(NS, "f", edited(1), 1000, 2000, 0, 0, 10)
    version = (await store.get(NS, "f")).version
    for value in (edited(1), edited(2)):
        one = writing.as_import(context, item._replace(value=value), version)
        assert await ran(store, writing.import_items(context, one.partition, [one], writing.new_put())) == []
        found = await store.get(NS, "f")
        version = found.version
        assert found.value == value and version in (2000, 2001)
    await store.put(NS, "f", edited(3))
    assert await seen(target) == edited(3)


@on_redis
@pytest.mark.parametrize("began_anew", [False, True])
async def test_reads_show_the_new_value_of_a_reused_version(target: Target, store: Uniform, began_anew: bool) -> None:
    """An import can bring back an earlier version. It gives the partition another token, as making it anew does."""
    other = target.store()

    async def bring(value: Any) -> None:
        item = writing.StoredItem(NS, "f", value, 1000, 2000, 0, 0, 10)
        one = writing.as_import(other.saver._context, item, 0)
        assert (
            await ran(other, writing.import_items(other.saver._context, one.partition, [one], writing.new_put())) == []
        )

    await other.put(NS, "other", {"n": 1})
    for number in range(3):
        await bring(edited(number))
        for _ in range(3):
            found = await store.get(NS, "f")
            assert (found.value, found.version) == (edited(number), 2000)
            for query in ({}, {"filter": {"n": number}}):
                values = {item.key: item.value for item in await store.search(NS, **query)}
                assert values["f"] == edited(number)
        await other.delete(NS, "f")
        assert await store.get(NS, "f") is None
        if began_anew:
            await other.delete_namespace(NS)
            await other.put(NS, "other", {"n": 1})


@on_redis
@pytest.mark.parametrize("flavour", ["sync"])
async def test_concurrent_edits_by_compare_and_set_are_all_kept(target: Target) -> None:
    shared, other = target.store().saver, target.store().saver
    shared.put(NS, "f", file(TEXT))

    def edit(number: int) -> None:
        store = shared if number % 3 else other
        for line in range(number * 100, number * 100 + 5):
            while True:
                item = store.get(NS, "f")
                text = item.value["content"].replace(f"\n{line}: ", f"\nby {number} in {line}: ")
                try:
                    store.put(NS, "f", file(text, line), if_version=item.version)
                    break
                except Conflict:
                    continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(edit, range(1, 7)))
    found = (await seen(target))["content"]
    for number in range(1, 7):
        for line in range(number * 100, number * 100 + 5):
            found = found.replace(f"\nby {number} in {line}: ", f"\n{line}: ")
    assert found == TEXT
    check_sound(target)


@on_redis
@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_forked_child_starts_with_an_empty_cache(target: Target) -> None:
    store = target.store().saver
    store.put(NS, "f", file(TEXT))
    store.search(NS)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        known = store.stats().cache_bytes
        ok = store.get(NS, "f").value == file(TEXT)
        store.put(NS, "f", edited(1))
        os.write(write, b"ok" if ok and known == 0 else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 2) == b"ok"
    assert store.get(NS, "f").value == edited(1)


@on_redis
@pytest.mark.skipif(sys.version_info < (3, 11), reason="deepagents needs Python 3.11")
async def test_a_deep_agent_edits_a_long_file(target: Target, store: Uniform) -> None:
    """Edit 90 kB twenty times with a read after each. Results equal those over an `InMemoryStore`."""
    from deepagents.backends import StoreBackend

    ours = StoreBackend(store=store.saver, namespace=lambda _: NS)
    theirs = StoreBackend(store=InMemoryStore(), namespace=lambda _: NS)

    async def both(method: str, *args: Any) -> Any:
        call = getattr(ours, f"a{method}" if store.native_async else method)
        answer = await call("/f.md", *args) if store.native_async else call("/f.md", *args)
        expected = getattr(theirs, method)("/f.md", *args)
        assert (answer.error, getattr(answer, "occurrences", 0)) == (
            expected.error,
            getattr(expected, "occurrences", 0),
        )
        return answer, expected

    await both("write", TEXT)
    for number in range(20):
        await both("edit", f"\n{number * 90}: ", f"\n{number} was edited here: ")
        answer, expected = await both("read", number * 80, 100)
        assert answer.file_data["content"] == expected.file_data["content"]
    check_sound(target)
