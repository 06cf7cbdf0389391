"""Calls of stores and caches, replayed with one changed reply."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis
from tests.support.embedding import Model
from tests.support.hostile import Endless, Recorder, Replay, changed_reply
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from redis_saver import Conflict, RedisCache, RedisStore, TieredStore
from redis_saver._store import reading, writing
from redis_saver._store.store import context_of, driver_of
from redis_saver._tiered_store import copies
from redis_saver.errors import RedisSaverError

PREFIX = "hostile"
NS, DEEP = ("memories", "user-1"), ("memories", "user-1", "deep", "er")
LONG = {"text": "words and more words " * 300, "n": 1}
KEYS = [(("nodes", "a"), f"k{number}") for number in range(4)] + [(("other",), "k"), (("other",), "none")]


def furnish(store: Any) -> None:
    """Fill a store with long values, TTLs, deep namespaces and several partitions."""
    store.batch([PutOp(NS, f"k{number}", {"n": number, "text": f"apple {number}"}) for number in range(5)])
    store.put(DEEP, "k", {"n": 1, "text": "pear"}, ttl=100)
    store.put(NS, "long", LONG)
    store.put(("others",), "k", {"n": 2, "text": "plum"}, ttl=100)


def _twice(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda store: (call(store), call(store))


def _moved(store: Any) -> Any:
    """Run the operations of `redis-saver export`, `import` and `forget`."""
    context, run = context_of(store), driver_of(store).run
    partition = context.places.of(NS).partition
    fields = run(reading.list_fields(context, partition))
    for item in run(writing.read_items(context, partition, fields)):
        if isinstance(item, writing.StoredItem):
            try:
                one = writing.as_import(context, item, item.updated_at)
            except InvalidNamespaceError:  # a migration reports such an item and continues
                continue
            run(writing.import_items(context, partition, [one], writing.new_put()))
    return run(copies.holds_copies(context, NS)), run(copies.forget_misses(context, NS))


STORE: dict[str, Callable[[Any], Any]] = {
    "get": _twice(lambda store: (store.get(NS, "k0"), store.get(DEEP, "k"), store.get(NS, "none"))),
    "get, long": _twice(lambda store: store.get(NS, "long")),
    "put": lambda store: (store.put(NS, "k0", {"n": 5}), store.put(("new", "one"), "k", {"n": 5}, ttl=1)),
    "put, long": lambda store: (store.put(NS, "long", LONG), store.put(NS, "long", {**LONG, "n": 2})),
    "put, if_version": lambda store: store.put(NS, "k1", {"n": 5}, if_version=17),
    "delete": lambda store: (store.delete(NS, "k1"), store.delete(("others",), "k")),
    "batch": lambda store: store.batch(
        [GetOp(NS, "k0"), GetOp(("others",), "k"), SearchOp(NS), ListNamespacesOp(), PutOp(NS, "k0", {"n": 1})]
    ),
    "search": _twice(lambda store: (store.search(NS, limit=3, offset=1), store.search(DEEP[:3]))),
    "search, filter": _twice(lambda store: store.search(NS, filter={"n": 1})),
    "search, all": _twice(lambda store: (store.search(()), store.search((), filter={"n": 1}))),
    "search, query": _twice(lambda store: (store.search(NS, query="apple"), store.search((), query="pear", limit=2))),
    "namespaces": lambda store: (store.list_namespaces(), store.count(NS), store.sweep_ttl()),
    "delete_namespace": lambda store: (store.delete_namespace(DEEP[:3]), store.delete_namespace(NS[:1])),
    "rebuild": lambda store: store.rebuild_directory(),
    "move": _moved,
}
SERVER: dict[str, Callable[[Any], Any]] = {
    "setup": lambda store: store.setup(),
    "build_index": lambda store: store.build_index(),
    "search": lambda store: (store.search(NS, query="apple", limit=2), store.search((), query="pear", limit=100)),
    "search, filter": lambda store: store.search(NS, query="apple", filter={"n": 1}),
    "put": lambda store: (store.put(NS, "k0", {"text": "plum"}), store.delete(NS, "k1"), store.get(DEEP, "k")),
    "delete_namespace": lambda store: store.delete_namespace(NS),
}
TIERS: dict[str, Callable[[Any], Any]] = {
    "get": _twice(lambda store: (store.get(NS, "k0"), store.get(NS, "none"))),
    "put": lambda store: (store.put(NS, "k0", {"n": 5}), store.put(("new", "one"), "k", {"n": 5})),
    "delete": lambda store: (store.delete(NS, "k0"), store.delete(("others",), "k")),
    "search": _twice(lambda store: store.search(NS)),
    "warm": lambda store: (store.warm(NS), store.search(NS, filter={"text": "apple 1"})),
}
CACHE: dict[str, Callable[[Any], Any]] = {
    "get": lambda cache: cache.get(KEYS),
    "set": lambda cache: cache.set({key: ({"n": 1}, None) for key in KEYS}),
    "clear": lambda cache: (cache.clear([("nodes", "a")]), cache.clear()),
}
CALLS = {
    "store": STORE,
    "vectors": STORE,
    "no memory": STORE,
    "server": SERVER,
    "tiers": TIERS,
    "cache": CACHE,
}


def made(kind: str, client: Any) -> Any:
    """Return the store, the tiers or the cache under test."""
    index = Model().index(fields=["text"])
    if kind == "cache":
        return RedisCache(client, prefix=PREFIX, on_error="raise")
    if kind == "tiers":
        tiers = TieredStore(RedisStore(client, prefix=PREFIX, ttl="1h"), cold := InMemoryStore())
        cold.batch([PutOp(NS, f"k{number}", {"n": number, "text": f"apple {number}"}) for number in range(5)])
        return tiers
    options = {
        "no memory": {"cache_bytes": 0},
        "vectors": {"index": index},
        "server": {"index": {**index, "search": "server"}},
    }
    return RedisStore(client, prefix=PREFIX, **options.get(kind, {}))


def record(url: str, kind: str, what: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Record a call's requests and a real server's replies. The keys with the prefix are deleted first."""
    with redis.Redis.from_url(url) as raw:
        for key in raw.scan_iter(match=PREFIX + "*"):
            raw.delete(key)
        furnished = made(kind, raw)
        if isinstance(furnished, TieredStore):
            furnished.get(NS, "k0")
        elif isinstance(furnished, RedisCache):
            furnished.set({key: ({"n": 1}, 100 if number % 2 else None) for number, key in enumerate(KEYS[:-1])})
        else:
            if kind == "server":
                furnished.setup()
            furnish(furnished)
    with Recorder.from_url(url) as client:
        client.notes = []
        try:
            CALLS[kind][what](made(kind, client))
        except Conflict:
            assert what == "put, if_version"
        return client.notes


def _changed(chance: random.Random, args: tuple[Any, ...], reply: Any) -> Any:
    """Change a part of a reply. In a plain command's reply only bytes change, as its structure is not stored data."""
    while True:
        new = changed_reply(chance, reply)
        if args[0] in ("EVALSHA", "FT.SEARCH", "FT.INFO") or (
            isinstance(new, list) and [type(one) for one in new] == [type(one) for one in reply]
        ):
            return new


def _goes_on(reply: Any) -> bool:
    """True if the reply says that more items have expired. If every reply says so, a call never ends."""
    first = reply[0] if isinstance(reply, list) and reply else reply
    return isinstance(first, int) and first != 0


def changed_replies(notes: dict[tuple[str, str], list[Any]], seed: int, count: int) -> Counter[str]:
    """Make each call `count` times with one changed reply, and count the outcomes.

    Raises:
        AssertionError: A call raised an error that is not ours, or did not end. The message says how to repeat it.
    """
    came: Counter[str] = Counter()
    for (kind, what), noted in notes.items():
        chance, client = random.Random(f"{seed} {kind} {what}"), Replay(noted)
        changeable = [
            number
            for number, (args, _) in enumerate(noted)
            if args[0] not in ("HELLO", "SCAN", "EXISTS", "UNLINK", "PEXPIRE")
        ]
        for number in range(count):
            if number % 10 == 0:  # kept for ten calls, so its memory may hold a changed reply
                called = made(kind, client)
            which = chance.choice(changeable)
            reply = _changed(chance, *noted[which])
            client.begin(which, reply)
            try:
                CALLS[kind][what](called)
                outcome = "value"
            except (RedisSaverError, redis.ResponseError, Endless) as error:
                outcome = type(error).__name__
                if isinstance(error, redis.ResponseError):
                    assert str(error) == "not noted"  # a request that was not recorded has no reply
                if isinstance(error, Endless):
                    assert _goes_on(reply), (seed, kind, what, number, reply)
            except BaseException as error:
                case = f"seed {seed}, {kind}, {what}, number {number}, {noted[which][0][:2]}"
                raise AssertionError(f"{case}: {error!r} on {reply!r}"[:3000]) from error
            came[outcome] += 1
    return came
