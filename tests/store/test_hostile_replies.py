"""Changed replies in stores, tiers and caches: a call returns a value or raises an error of ours.

For savers see `tests/storage/test_hostile_bytes.py`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from redis_saver import Conflict, DecodeError, KeyConflict, KeyMismatch, RedisCache, RedisStore, StoreBusy, StoreDamaged
from redis_saver import TieredStore, UnsupportedFormat
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._store import reading, scripts, writing
from redis_saver._store.reading import list_fields
from redis_saver._store.store import context_of, driver_of
from redis_saver._tiered_store import copies
from redis_saver.errors import KeyMismatch, RedisSaverError
from tests.support import seeds
from tests.support.embedding import Model
from tests.support.methods import NAMESPACE, calls_of
from tests.support.hostile import Endless, Recorder, Replay, changed_reply
from tests.support.seeds import seeds_and_slow, targets, targets_and_slow
from tests.support.servers import has_modules
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

PREFIX = "hostile"
NS, DEEP = NAMESPACE, (*NAMESPACE, "deep", "er")
LONG = {"text": "words and more words " * 300, "n": 1}
KEYS = [(("nodes", "a"), f"k{number}") for number in range(4)] + [(("other",), "k"), (("other",), "none")]


def furnish(store: Any) -> None:
    """Fill a store with long values, TTLs, deep namespaces and several partitions."""
    store.batch([PutOp(NS, f"k{number}", {"n": number, "text": f"apple {number}"}) for number in range(5)])
    store.put(DEEP, "k", {"n": 1, "text": "pear"}, ttl=100)
    store.put(NS, "long", LONG)
    store.put(("others",), "k", {"n": 2, "text": "plum"}, ttl=100)


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


STORE = calls_of(
    RedisStore,
    get=lambda store: (store.get(NS, "k0"), store.get(DEEP, "k"), store.get(NS, "none")),
    get_long=lambda store: store.get(NS, "long"),
    put=lambda store: (store.put(NS, "k0", {"n": 5}, ttl=9), store.put(("new", "one"), "k", {"n": 5}, ttl=1)),
    put_long=lambda store: (store.put(NS, "long", LONG), store.put(NS, "long", {**LONG, "n": 2})),
    put_if_version=lambda store: store.put(NS, "k1", {"n": 5}, if_version=17),
    delete=lambda store: store.delete(NS, "k1"),
    delete_last=lambda store: store.delete(("others",), "k"),
    batch=lambda store: store.batch(
        [GetOp(NS, "k0"), GetOp(("others",), "k"), SearchOp(NS), ListNamespacesOp(), PutOp(NS, "k0", {"n": 1})]
    ),
    search=lambda store: (store.search(NS, limit=3, offset=1), store.search(DEEP[:3])),
    filter=lambda store: store.search(NS, filter={"n": {"$gt": 0}}),
    search_all=lambda store: (store.search(()), store.search((), filter={"n": 1})),
    query=lambda store: (store.search(NS, query="apple"), store.search((), query="pear", filter={"n": {"$gt": 0}})),
    delete_namespace=lambda store: (store.delete_namespace(DEEP[:3]), store.delete_namespace(NS[:1])),
    move=_moved,
)
SERVER: dict[str, Callable[[Any], Any]] = {
    "setup": lambda store: store.setup(),
    "build_index": lambda store: store.build_index(),
    "search": lambda store: (store.search(NS, query="apple", limit=2), store.search((), query="pear", limit=100)),
    "search, filter": lambda store: store.search(NS, query="apple", filter={"n": 1}),
    "put": lambda store: (store.put(NS, "k0", {"text": "plum"}), store.delete(NS, "k1"), store.get(DEEP, "k")),
    "delete_namespace": lambda store: store.delete_namespace(NS),
}
TIERS = calls_of(
    TieredStore,
    "list_namespaces",  # asks cold alone
    put=lambda store: (store.put(NS, "k0", {"n": 5}), store.put(("new", "one"), "k", {"n": 5})),
    delete=lambda store: (store.delete(NS, "k0"), store.delete(("others",), "k")),
    get=lambda store: (store.get(NS, "k0"), store.get(NS, "none")),
    warm=lambda store: (store.warm(NS), store.search(NS, filter={"text": "apple 1"})),
)
CACHE: dict[str, Callable[[Any], Any]] = {
    "get": lambda cache: cache.get(KEYS),
    "set": lambda cache: cache.set({key: ({"n": 1}, None) for key in KEYS}),
    "clear": lambda cache: (cache.clear([("nodes", "a")]), cache.clear()),
}
CALLS = {"store": STORE, "vectors": STORE, "no memory": STORE, "server": SERVER, "tiers": TIERS, "cache": CACHE}


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


def call(kind: str, what: str, thing: Any) -> None:
    """Make a call twice, as the second one may use a local cache."""
    for _ in range(2):
        CALLS[kind][what](thing)


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
            call(kind, what, made(kind, client))
        except Conflict:
            assert what == "put_if_version"
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
                call(kind, what, called)
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


# -- changed replies

OWN_STORES = pytest.mark.plain("its stores are those of hostile_stores.py, without encryption=")
STACK = pytest.mark.skipif(not has_modules(), reason="no server with vector search")
KINDS = [kind for kind in CALLS if kind != "server"]


def noted(url: str, kind: str) -> dict[tuple[str, str], Any]:
    return {(kind, what): record(url, kind, what) for what in CALLS[kind]}


@OWN_STORES
@pytest.mark.random
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_a_changed_reply_gives_a_value_or_our_error(target: Target, kind: str) -> None:
    notes = noted(target.url, kind)
    for seed in (17, seeds.seed()):
        came = changed_replies(notes, seed, 40)
        damaged = came["StoreDamaged"] + came["DecodeError"]
        assert came["value"] and (damaged or kind == "tiers"), came  # the hot tier repairs itself


@OWN_STORES
@STACK
@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["search"])
def test_a_changed_index_reply_gives_a_value_or_our_error(target: Target) -> None:
    came = changed_replies(noted(target.url, "server"), seeds.seed(), 40)
    assert came["value"] and came["StoreDamaged"], came
    for name in target.raw.execute_command("FT._LIST"):
        if name.startswith(PREFIX.encode()):
            target.raw.execute_command("FT.DROPINDEX", name)


@OWN_STORES
@pytest.mark.slow
@pytest.mark.random
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_twenty_thousand_changed_replies_per_call(target: Target, kind: str) -> None:
    seed = seeds.seed()
    print(f"seed {seed}: {changed_replies(noted(target.url, kind), seed, 20_000)}")


def answering(script: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def around(request: Any) -> Any:
        reply = yield request
        return change(reply) if getattr(request, "script", None) is script else reply

    return around


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_record_missing_from_a_reply_raises(store: Uniform, target: Target) -> None:
    await store.put(NS, "a", {"n": 1}, ttl=100)
    await store.put(NS, "b", {"n": 1}, ttl=100)
    Around(store.saver, answering(scripts.GET_ITEMS, lambda reply: reply[:1]))
    with pytest.raises(StoreDamaged, match="the reply has 1 of 2 records"):
        await store.batch([GetOp(NS, "a"), GetOp(NS, "b")])


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
def test_a_listing_without_progress_raises(target: Target) -> None:
    store: Any = target.store().saver
    store.put(NS, "a", {"n": 1})
    Around(store, answering(scripts.LIST_ITEMS, lambda reply: [*reply[:3], 0, *reply[4:]]))
    partition = context_of(store).places.of(NS).partition
    for call in (
        lambda: store.search(NS, filter={"n": 1}),
        lambda: store._driver.run(list_fields(context_of(store), partition)),
        lambda: store.delete_namespace((*NS, "deep")),
    ):
        with pytest.raises(StoreDamaged, match="more are to follow"):
            call()


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_search_of_a_constantly_emptied_partition_raises_busy(store: Uniform, target: Target) -> None:
    await store.put(NS, "a", {"n": 1})
    tokens = itertools.count(1)
    Around(store.saver, answering(scripts.LIST_ITEMS, lambda reply: [b"%d" % next(tokens), *reply[1:3], 0, *reply[4:]]))
    with pytest.raises(StoreBusy, match="emptied"):
        await store.search(NS, filter={"n": 1})
    assert next(tokens) < 20


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.plain("the server cannot search in vectors that are sealed")
def test_delete_namespace_raises_on_a_malformed_field(target: Target) -> None:
    """Another program added the field to the partition's keys."""
    store: Any = target.store(index={"dims": 1, "embed": lambda texts: [[1.0]] * len(texts), "search": "server"}).saver
    store.put(NS, "a", {"text": "x"})
    items, order, *_ = context_of(store).places.of(NS).partition.keys
    target.raw.hset(items, b"\xff", b"1 2 0 0123456789abcdef 7:msgpack\x80")
    target.raw.zadd(order, {b"\xff": 2})
    state = target.raw.hget(items, "@state").split()
    state[3], state[4] = b"2", b"%d" % ((int(state[4]) + 2) % 2**50)
    target.raw.hset(items, "@state", b" ".join(state))
    with pytest.raises(StoreDamaged, match="delete_namespace"):
        store.delete_namespace(NS)


# -- random bytes in the keys


OURS = (Conflict, DecodeError, KeyConflict, KeyMismatch, StoreBusy, StoreDamaged, UnsupportedFormat)
BYTES = [
    b"", b" ", b"0", b"-1", b"1e9", b"\0", b"\1", b"\xff", b"nan", b"inf", b"7:msgpack", b"1_0", b"9" * 17, b"9" * 400,
]  # fmt: skip


def mutated(chance: random.Random, raw: bytes) -> bytes:
    position = chance.randrange(len(raw) + 1)
    kind = chance.randrange(5)
    if kind == 0:
        return raw[:position]
    if kind == 1:
        return raw[:position] + chance.choice(BYTES) + raw[position:]
    if kind == 2:
        return raw[:position] + bytes([chance.randrange(256)]) + raw[position + 1 :]
    if kind == 3:
        parts = raw.split(b" ")
        parts[chance.randrange(len(parts))] = chance.choice(BYTES)
        return b" ".join(parts)
    return chance.choice(BYTES)


def damage(chance: random.Random, target: Target) -> str:
    """Change a random key, and return a description of the change."""
    keyspace, raw = StoreKeyspace(target.prefix), target.raw
    items, order, expiring, namespaces, vectors, retired = keyspace.partition("\0".join((*NS, "")).encode()).keys
    key = chance.choice([items, items, items, order, expiring, namespaces, vectors, vectors, *keyspace.directory])
    kind = raw.type(key)
    if kind == b"hash":
        field = chance.choice(sorted(raw.hkeys(key)))
        value = mutated(chance, raw.hget(key, field))
        if chance.random() < 0.3:
            raw.hdel(key, field)
            field = mutated(chance, field)
        raw.hset(key, field, value)
        return f"{key!r} {field!r} {value!r}"
    if kind == b"zset":
        member = chance.choice(raw.zrange(key, 0, -1))
        score = chance.choice([raw.zscore(key, member), 0, -5, 1.5, 1e300, float("inf"), float("-inf")])
        if chance.random() < 0.5:
            raw.zrem(key, member)
            member = mutated(chance, member)
        raw.zadd(key, {member: score})
        return f"{key!r} {member!r} {score!r}"
    return "nothing"


@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", targets_and_slow(("redis",), ("fakeredis",)))
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 2)))
async def test_damaged_bytes_raise_only_our_errors(target: Target, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(25):
        target.raw.unlink(*target.keys(), "none")
        index = Model(2).index(fields=["n"])
        store: Any = target.store(index=index).saver
        furnish(store)
        store.search(NS, filter={"n": 1})
        store.search(NS)
        if chance.random() < 0.5:
            store.search(NS, query="1")
        said = [damage(chance, target) for _ in range(chance.choice([1, 1, 3]))]
        calls = [call for name, call in STORE.items() if name != "delete_namespace"]  # it would end the damage
        chance.shuffle(calls)
        for call in calls:
            try:
                call(chance.choice([store] * 8 + [target.store(index=index).saver, target.store().saver]))
            except OURS:
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}, turn {turn}: {error!r} after {said}") from error
