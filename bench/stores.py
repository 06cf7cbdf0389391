"""Stores of LangGraph side by side: `python -m bench.stores` (`--quick` for a rough answer, `--vectors` for searches by meaning, too).

Each repetition of a case runs all stores, one after the other, beginning with another one each time. A ratio is the median of the ratios
to `RedisStore` within one repetition. Values are some 300 bytes. Processes are warm: each store has answered the same call before.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from typing import Any

import numpy as np
from langgraph.store.base import BaseStore, GetOp, Op, PutOp
from rich.console import Console
from rich.table import Table

from bench import servers
from bench.measuring import settled
from bench.servers import Unavailable

OURS = "RedisStore"
DIMS = 1536
SIZES = (100, 1_000, 10_000)
NAMESPACE = ("memories", "user-1")
Opener = Callable[[ExitStack, Any], BaseStore]


def embed(texts: list[str]) -> list[list[float]]:
    """Vectors that a text always has."""
    seeds = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") for text in texts]
    return [np.random.default_rng(seed).standard_normal(DIMS, np.float32).tolist() for seed in seeds]


def value(number: int) -> dict[str, Any]:
    """A memory; each tenth is about food, and each thousandth is urgent."""
    return {
        "text": f"memory {number} " + "of what was said at length " * 8,
        "topic": "food" if number % 10 == 0 else "work",
        "score": number % 1000,
        "about": {"user": number % 7, "at": "2026-11-24T10:00:00Z"},
    }


def open_ours(stack: ExitStack, index: Any) -> BaseStore:
    import redis

    from redis_saver import RedisStore

    client = redis.Redis.from_url(stack.enter_context(servers.redis_server()))
    stack.callback(client.close)
    return RedisStore(client, index=index)


def open_memory(_: ExitStack, index: Any) -> BaseStore:
    from langgraph.store.memory import InMemoryStore

    return InMemoryStore(index=index)


def open_sqlite(stack: ExitStack, index: Any) -> BaseStore:
    from langgraph.store.sqlite import SqliteStore

    file = f"{stack.enter_context(servers.folder())}/store.sqlite"
    connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    stack.callback(connection.close)
    store = SqliteStore(connection, index=index)
    store.setup()
    return store


def open_postgres(stack: ExitStack, index: Any) -> BaseStore:
    from langgraph.store.postgres import PostgresStore

    url = stack.enter_context(servers.postgres_server())
    store = stack.enter_context(PostgresStore.from_conn_string(url, index=index))
    store.setup()
    return store


def open_valkey(stack: ExitStack, index: Any) -> BaseStore:
    import valkey
    from langgraph_checkpoint_aws import ValkeyStore

    if index is not None:
        raise Unavailable("its vectors need a server with a search module")
    client = valkey.Valkey.from_url(stack.enter_context(servers.redis_server()))
    stack.callback(client.close)
    store: BaseStore = ValkeyStore(client)
    return store


OPENERS: dict[str, Opener] = {
    OURS: open_ours,
    "InMemoryStore": open_memory,
    "SqliteStore": open_sqlite,
    "PostgresStore": open_postgres,
    "ValkeyStore": open_valkey,
}


def fill(store: BaseStore, count: int, *, vectors: bool) -> None:
    """Put so many memories into a namespace of their own."""
    namespace = (*NAMESPACE[:1], f"user-of-{count}")
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        index: Any = ["text"] if vectors else False
        store.batch([PutOp(namespace, f"key-{number}", value(number), index=index) for number in numbers])


def cases(*, vectors: bool) -> Iterator[tuple[str, Callable[[BaseStore, int], object]]]:
    """What is measured. A call takes the store and the number of the repetition, and answers what can be compared."""
    yield "put", lambda store, n: store.put(NAMESPACE, f"key-{n % 50}", value(n), index=False)
    yield "get", lambda store, n: store.get(NAMESPACE, f"key-{n % 50}") is not None
    puts: Callable[[int], list[Op]] = lambda n: [
        PutOp(NAMESPACE, f"key-{i}", value(n + i), index=False) for i in range(100)
    ]
    yield "batch of 100 puts", lambda store, n: len(store.batch(puts(n)))
    yield (
        "batch of 100 gets",
        lambda store, _: sum(
            found is not None for found in store.batch([GetOp(NAMESPACE, f"key-{i}") for i in range(100)])
        ),
    )
    for size in SIZES:
        where = (*NAMESPACE[:1], f"user-of-{size}")
        yield (
            f"search, newest 10 of {size:,}",
            lambda store, _, where=where: [found.key for found in store.search(where, limit=10)],
        )
        wanted = {"topic": "food", "score": {"$gte": 10}}
        yield (
            f"search with a filter, 10 of {size:,}",
            lambda store, _, where=where: [found.key for found in store.search(where, filter=wanted, limit=10)],
        )
        if vectors:
            yield (
                f"search by meaning, 10 of {size:,}",
                lambda store, n, where=where: [
                    found.key for found in store.search(where, query=f"question {n}", limit=10)
                ],
            )


def measure(stores: dict[str, BaseStore], repetitions: int, *, vectors: bool) -> dict[str, dict[str, list[float]]]:
    """Seconds of each repetition by case and store."""
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = list(stores)
    for case, call in cases(vectors=vectors):
        for repetition in range(repetitions + 2):
            first = repetition % len(names)
            for name in names[first:] + names[:first]:
                with settled():
                    start = time.perf_counter()
                    call(stores[name], repetition)
                    seconds = time.perf_counter() - start
                if repetition >= 2:
                    taken[case][name].append(seconds)
    return taken


def show(taken: dict[str, dict[str, list[float]]], names: list[str], console: Console) -> None:
    """Medians in milliseconds, and how many times as long as ours each takes."""
    table = Table(
        title=f"Stores: median milliseconds, and in brackets how many times as long as {OURS}", title_justify="left"
    )
    table.add_column("", min_width=36)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for case, by_name in taken.items():
        cells = []
        for name in names:
            ratio = statistics.median(mine / ours for mine, ours in zip(by_name[name], by_name[OURS], strict=True))
            cells.append(f"{1000 * statistics.median(by_name[name]):.3g} ({ratio:.2f})")
        table.add_row(case, *cells)
    console.print(table)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.stores", description="Stores of LangGraph, side by side.")
    parser.add_argument("--quick", action="store_true", help="a rough answer")
    parser.add_argument("--vectors", action="store_true", help="also search by meaning")
    given = parser.parse_args()
    console = Console(width=160)
    index: Any = {"dims": DIMS, "embed": embed, "fields": ["text"]} if given.vectors else None
    with ExitStack() as stack:
        stores: dict[str, BaseStore] = {}
        for name, opener in OPENERS.items():
            try:
                stores[name] = opener(stack, index)
            except (Unavailable, ImportError) as reason:
                console.print(f"[yellow]{name} does not run: {reason}")
        for store in stores.values():
            for size in SIZES:
                fill(store, size, vectors=given.vectors)
        show(measure(stores, 10 if given.quick else 60, vectors=given.vectors), list(stores), console)


if __name__ == "__main__":
    main()
