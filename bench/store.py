"""Stores side by side, in one run, as microseconds a call and as ratios: `python -m bench.store`.

    --stores memory,redis_saver,postgres   some of them
    --holding                              how long one call of ours holds the server (SLOWLOG)

Each store has its own server on this machine, over a local connection; `sqlite` is a file of this process. Calls are made in turns, so that all stores see
the same machine. A time is the median of a call's.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from statistics import median
from typing import Any, TypeAlias

import redis
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from bench.servers import folder, postgres_server, redis_server
from redis_saver import RedisStore

SIZES = (100, 1_000, 10_000)
OURS = "redis_saver"


def value(number: int) -> dict[str, Any]:
    """A memory, as agents keep them."""
    text = f"memory number {number} of a user who likes tea"
    return {"text": text, "n": number, "kind": "abc"[number % 3], "meta": {"score": number / 7, "tags": ["x", "y"]}}


def opened(name: str, stack: ExitStack, index: Any = None) -> BaseStore:
    if name == "memory":
        return InMemoryStore(index=index)
    if name in (OURS, f"{OURS} cold"):
        cache = {"cache_bytes": 0} if name.endswith("cold") else {}
        return stack.enter_context(
            RedisStore.from_conn_string(stack.enter_context(redis_server()), index=index, **cache)
        )
    if name == "valkey":
        client = import_module("valkey").Valkey.from_url(stack.enter_context(redis_server()))
        stack.callback(client.close)
        made: BaseStore = import_module("langgraph_checkpoint_aws").ValkeyStore(client)
        return made
    if name == "sqlite":
        kind = import_module("langgraph.store.sqlite").SqliteStore
        store = stack.enter_context(kind.from_conn_string(f"{stack.enter_context(folder())}/store.sqlite", index=index))
    else:
        kind = import_module("langgraph.store.postgres").PostgresStore
        store = stack.enter_context(kind.from_conn_string(stack.enter_context(postgres_server()), index=index))
    store.setup()
    return store  # type: ignore[no-any-return]


def calls(store: BaseStore) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """What is called, how often, and the call."""
    turn = itertools.count()

    def key() -> str:
        return f"k{next(turn) % 1000}"

    users = [("m", f"user-{number}") for number in range(100)]
    known = ("m", "1000")
    yield "get", 500, lambda: store.get(known, key())
    yield "put", 500, lambda: store.put(("m", "put"), key(), value(next(turn)))
    yield "batch of 100 gets", 30, lambda: store.batch([GetOp(known, key()) for _ in range(100)])
    yield "batch of 100 puts", 30, lambda: store.batch([PutOp(("m", "put"), key(), value(1)) for _ in range(100)])
    yield "batch of 100 gets of 100 users", 20, lambda: store.batch([GetOp(ns, "k") for ns in users])
    yield "batch of 100 puts of 100 users", 20, lambda: store.batch([PutOp(ns, "k", value(1)) for ns in users])
    for size in SIZES:
        ns, times = ("m", str(size)), 30 if size < 10_000 else 10
        yield f"search of {size:,}, the newest 10", times, lambda ns=ns: store.search(ns)
        yield f"search of {size:,}, the newest 100", times, lambda ns=ns: store.search(ns, limit=100)
        yield f"search of {size:,}, filter, 10 of a third", times, lambda ns=ns: store.search(ns, filter={"kind": "a"})
        yield f"search of {size:,}, filter, none", times, lambda ns=ns: store.search(ns, filter={"kind": "z"})


def furnish(store: BaseStore) -> None:
    for size in SIZES:
        for start in range(0, size, 500):
            store.batch([PutOp(("m", str(size)), f"k{n}", value(n)) for n in range(start, min(size, start + 500))])


Calls: TypeAlias = Callable[[BaseStore], Iterator[tuple[str, int, Callable[[], object]]]]


def compare(names: list[str], furnish: Callable[[BaseStore], None], calls: Calls, index: Any = None) -> None:
    with ExitStack() as stack:
        stores = {name: opened(name, stack, index) for name in names}
        for store in stores.values():
            furnish(store)
        print(f"{'microseconds a call (times ours)':44}", *(f"{name:>22}" for name in names))
        for rows in zip(*(calls(store) for store in stores.values()), strict=True):
            found: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(rows[0][1]):
                for name, (_, _, call) in zip(names, rows, strict=True):
                    began = time.perf_counter()
                    call()
                    found[name].append(time.perf_counter() - began)
            times = {name: median(each) * 1e6 for name, each in found.items()}
            ours = times.get(OURS, 0) or 1
            print(f"{rows[0][0]:44}", *(f"{one:>13,.0f} {one / ours:>7.2f}x" for one in times.values()), flush=True)


def hold() -> None:
    """The longest command of each call, by the server's own clock."""
    with redis_server() as url, redis.Redis.from_url(url) as client:
        store, cold = RedisStore(client), RedisStore(client, cache_bytes=0)
        for size in (100, 1_000, 10_000, 100_000):
            ns, deep = ("m", str(size)), ("d", str(size), "deep")
            ops = [PutOp(ns, f"k{number}", value(number)) for number in range(size)]
            rows: list[tuple[str, Callable[[], object]]] = [
                ("batch of so many puts", lambda ops=ops: store.batch(ops)),
                ("the same again", lambda ops=ops: store.batch(ops)),
                ("search, the newest 10", lambda ns=ns: store.search(ns)),
                ("search, 10 in the middle", lambda ns=ns, size=size: store.search(ns, offset=size // 2)),
                ("search, a filter, all for the first time", lambda ns=ns: cold.search(ns, filter={"kind": "z"})),
                ("search, a deeper prefix that has none", lambda ns=ns: store.search((*ns, "none"))),
                ("delete_namespace", lambda ns=ns: store.delete_namespace(ns)),
            ]
            deeper = [PutOp(deep, f"k{number}", value(number)) for number in range(size)]
            rows.append(("batch of so many puts below a partition", lambda deeper=deeper: store.batch(deeper)))
            rows.append(("delete_namespace of these", lambda deep=deep: store.delete_namespace(deep)))
            for what, call in rows:
                client.config_set("slowlog-max-len", 10_000)
                client.config_set("slowlog-log-slower-than", 0)
                client.slowlog_reset()
                call()
                client.config_set("slowlog-log-slower-than", -1)
                longest = max(entry["duration"] for entry in client.slowlog_get(10_000)) / 1000
                print(f"{what:45} {size:>8,} {longest:>9.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store")
    parser.add_argument("--stores", default=f"memory,{OURS},{OURS} cold,sqlite,postgres,valkey")
    parser.add_argument("--holding", action="store_true")
    said = parser.parse_args()
    if said.holding:
        hold()
    else:
        compare(said.stores.split(","), furnish, calls)


if __name__ == "__main__":
    sys.exit(main())
