"""The compared stores, and the calls made to them: `python -m bench --only store`.

`python -m bench.store` prints how long one call of our store blocks the server (SLOWLOG).

Each store has its own server on this machine; `sqlite` is a file. `tiered` is our store over Postgres.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any, TypeAlias

import redis
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from bench.servers import Unavailable, folder, modules_server, postgres_server, redis_server
from redis_saver import RedisStore, TieredStore

SIZES = (100, 1_000, 10_000)
OURS = "redis_saver"
LANGGRAPH_REDIS = "langgraph.store.redis"
STORES = ("memory", OURS, f"{OURS} cold", "tiered", "sqlite", "postgres", "valkey", LANGGRAPH_REDIS)
Check: TypeAlias = Callable[[Any], bool]


def value(number: int) -> dict[str, Any]:
    """Return a memory as agents keep them."""
    text = f"memory number {number} of a user who likes tea"
    return {"text": text, "n": number, "kind": "abc"[number % 3], "meta": {"score": number / 7, "tags": ["x", "y"]}}


@dataclass
class StoreContestant:
    """A store that takes part."""

    name: str
    store: BaseStore
    only: tuple[str, ...] = ()
    rest: Callable[[], object] = lambda: None


@contextmanager
def opening(
    names: Sequence[str], index: Any, absent: dict[str, str], urls: Mapping[str, str | None]
) -> Iterator[list[StoreContestant]]:
    """Open the stores that can run here, and note why others cannot.

    At the end, delete their items on the user's servers.
    """
    with ExitStack() as stack:
        found = []
        for name in names:
            said = name if index is None else f"{name} with vectors"
            try:
                store = opened(name, stack, index, urls)
            except (Unavailable, ImportError) as reason:
                absent[said] = str(reason)
            except Exception as error:
                absent[said] = f"{type(error).__name__}: {error}".partition("\n")[0]
            else:
                found.append(StoreContestant(name, store))
                if name in urls:
                    stack.callback(clear, store)
        yield found


def clear(store: BaseStore) -> None:
    """Delete the items of `furnish` and of the calls."""
    with suppress(Exception):
        for namespace in store.list_namespaces(prefix=("m",), limit=10_000):
            for _ in range(100):
                if not (items := store.search(tuple(namespace), limit=500)):
                    break
                store.batch([PutOp(tuple(item.namespace), item.key, None) for item in items])


def opened(name: str, stack: ExitStack, index: Any = None, urls: Mapping[str, str | None] = {}) -> BaseStore:
    """Open a store on its own server, or on the server of its URL."""
    if name == "memory":
        return InMemoryStore(index=index)
    if name == "tiered":
        hot = opened(OURS, stack, index)
        return TieredStore(hot, opened("postgres", stack, index, urls))  # type: ignore[arg-type]
    if name == LANGGRAPH_REDIS:
        url = urls.get(name) or stack.enter_context(modules_server())
        theirs: BaseStore = import_module(name).RedisStore(stack.enter_context(redis.Redis.from_url(url)), index=index)
        theirs.setup()  # type: ignore[attr-defined]
        return theirs
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
        url = urls.get("postgres") or stack.enter_context(postgres_server())
        store = stack.enter_context(kind.from_conn_string(url, index=index))
    store.setup()
    return store  # type: ignore[no-any-return]


def many(count: int) -> Check:
    return lambda found: len(found) == count


def calls(
    store: BaseStore, sizes: Sequence[int] = SIZES
) -> Iterator[tuple[str, int, Callable[[], object], Check | None]]:
    """Yield each call: its name, its repetitions, the function, and a check of the result."""
    turn, most = itertools.count(), max(size for size in sizes if size <= 1_000)

    def key() -> str:
        return f"k{next(turn) % most}"

    def all_there(found: Any) -> bool:
        return all(item is not None and item.value["kind"] in "abc" for item in found)

    users, known = [("m", f"user-{number}") for number in range(100)], ("m", str(most))
    yield "get", 500, lambda: store.get(known, key()), lambda found: all_there([found])
    yield "put", 500, lambda: store.put(("m", "put"), key(), value(next(turn))), None
    yield "batch of 100 gets", 30, lambda: store.batch([GetOp(known, key()) for _ in range(100)]), all_there
    yield "batch of 100 puts", 30, lambda: store.batch([PutOp(("m", "put"), key(), value(1)) for _ in range(100)]), None
    yield "batch of 100 puts of 100 users", 20, lambda: store.batch([PutOp(ns, "k", value(1)) for ns in users]), None
    yield "batch of 100 gets of 100 users", 20, lambda: store.batch([GetOp(ns, "k") for ns in users]), all_there
    for size in sizes:
        ns, times, third = ("m", str(size)), 30 if size < 10_000 else 10, (size + 2) // 3
        of_a, of_z = {"kind": "a"}, {"kind": "z"}
        yield f"search of {size:,}, the newest 10", times, lambda ns=ns: store.search(ns), many(min(size, 10))
        yield (
            f"search of {size:,}, the newest 100",
            times,
            lambda ns=ns: store.search(ns, limit=100),
            many(min(size, 100)),
        )
        yield (
            f"search of {size:,}, filter, 10 of a third",
            times,
            lambda ns=ns: store.search(ns, filter=of_a),
            many(min(third, 10)),
        )
        yield f"search of {size:,}, filter, none", times, lambda ns=ns: store.search(ns, filter=of_z), many(0)


def furnish(store: BaseStore, sizes: Sequence[int] = SIZES) -> None:
    for size in sizes:
        for start in range(0, size, 500):
            store.batch([PutOp(("m", str(size)), f"k{n}", value(n)) for n in range(start, min(size, start + 500))])


Calls: TypeAlias = Callable[[BaseStore], Iterator[tuple[Any, ...]]]


def compare(names: list[str], furnish: Callable[[BaseStore], None], calls: Calls, index: Any = None) -> None:
    with ExitStack() as stack:
        stores = {name: opened(name, stack, index) for name in names}
        for store in stores.values():
            furnish(store)
        print(f"{'microseconds a call (times ours)':44}", *(f"{name:>22}" for name in names))
        for rows in zip(*(calls(store) for store in stores.values()), strict=True):
            found: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(rows[0][1]):
                for name, (_, _, call, *_) in zip(names, rows, strict=True):
                    began = time.perf_counter()
                    call()
                    found[name].append(time.perf_counter() - began)
            times = {name: median(each) * 1e6 for name, each in found.items()}
            ours = times.get(OURS, 0) or 1
            print(f"{rows[0][0]:44}", *(f"{one:>13,.0f} {one / ours:>7.2f}x" for one in times.values()), flush=True)


def hold() -> None:
    """Print the longest command of each call, by the server's clock."""
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


if __name__ == "__main__":
    hold()
