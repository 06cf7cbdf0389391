"""`search="server"`: the server's vector index finds candidates.

Most tests need a server with the module, and are skipped without one. The last ones check the errors of other servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis
from tests.support.acl import acl_rule
from tests.support.counting import Counted
from tests.support.embedding import DIMS, Model, best, score, vector
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import PutOp
from tests.support.seeds import seeds
from tests.support.servers import TARGETS, has_modules
from tests.support.stores import check_partition, import_items, later, members
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, Meanwhile

from redis_saver import DecodeError, IndexNotBuilt, RedisStore, UnsupportedServer
from redis_saver._cli.main import main
from redis_saver._common.store_names import StoreKeyspace, document_keys
from redis_saver._store import scripts
from redis_saver._engine.requests import Call
from redis_saver._store import server_search
from redis_saver._store.writing import StoredItem

pytestmark = pytest.mark.plain("the server cannot search in vectors that are sealed")

NS = ("memories", "user-1")
FRUIT = ["apple pie", "apple tart", "pear cake", "plum jam", "apple juice", "zero", "zero too"]
WHY = "no server with vector search: REDIS_SAVER_STACK_URL, or redis-stack-server on the PATH, or its wheel"
MARKS = pytest.mark.skipif(not has_modules(), reason=WHY)
HERE = pytest.mark.parametrize("target_name", [pytest.param("search", marks=MARKS)])
ANYWHERE = pytest.mark.parametrize("target_name", [name for name in TARGETS if name not in ("cluster", "lua54")])


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def plain(target: Target, model: Model) -> Uniform:
    """A store that compares vectors in the process."""
    return target.store(index=model.index(fields=["text"]))


@pytest.fixture
async def store(target: Target, model: Model) -> Any:
    """A store that uses the server's vector index."""
    made = target.store(index=model.index(fields=["text"], search="server"))
    await made.setup()
    yield made
    for name in target.raw.execute_command("FT._LIST"):
        if name.startswith(target.prefix.encode()):
            target.raw.execute_command("FT.DROPINDEX", name)


def found(items: list[Any]) -> list[tuple[Any, ...]]:
    return [(item.namespace, item.key, item.value, item.version, item.score) for item in items]


async def same(store: Uniform, plain: Uniform, query: str, *prefixes: tuple[str, ...], **more: Any) -> None:
    """Check that both stores return the same pages."""
    for prefix in prefixes or ((), NS[:1], NS, (*NS, "deep")):
        for limit, offset in ((1, 0), (3, 2), (1000, 0)):
            page = {"query": query, "limit": limit, "offset": offset, **more}
            mine, exact = found(await store.search(prefix, **page)), found(await plain.search(prefix, **page))
            assert mine == exact, (prefix, page)


async def furnish(store: Uniform) -> None:
    for text in FRUIT:
        for namespace in (NS, (*NS, "deep"), ("memories", "user-2"), ("memories",), ("others", "x")):
            await store.put(namespace, text, {"text": text, "long": len(text) > 8})
    await store.put(NS, "none", {"long": True})
    await store.put((*NS, "deep"), "not", {"text": "apple pie", "long": True}, index=False)


def check_documents(target: Target, dims: int = DIMS) -> int:
    """Check that exactly the items with vectors have documents, with their vectors and deadlines. Return how many."""
    keyspace, raw = StoreKeyspace(target.prefix), target.raw
    there = {key for key in target.keys() if key.startswith(keyspace.documents)}
    for member in members(target):
        check_partition(target, member)
        partition = keyspace.partition(member)
        vectors = raw.hgetall(partition.keys[4])
        mark = raw.hget(partition.keys[0], "@documents")
        counts = [0]
        for (field, stored), document in zip(vectors.items(), document_keys(partition, list(vectors)), strict=True):
            assert keyspace.item_of(document) == (partition, field)
            rows = np.frombuffer(stored[len(b"%d 5:bytes" % dims) :], "<f4").reshape(-1, dims)
            fields = raw.hgetall(document)
            under = fields.pop(b"under").split(b",")
            assert ("zero" in [one.decode() for one in under]) == (not rows.any(axis=1).all())
            assert fields == {b"v%d" % (at + 1): row.tobytes() for at, row in enumerate(rows) if row.any()}
            deadline = raw.zscore(partition.keys[2], field)
            assert raw.pexpiretime(document) == (-1 if deadline is None else deadline)
            counts.append(len(rows))
            there.remove(document)
        assert not vectors or mark == b"%d %d" % (dims, max(counts)) or int(mark.split()[1]) > max(counts)
    assert not there
    return sum(len(raw.hgetall(keyspace.partition(member).keys[4])) for member in members(target))


# -- results


@HERE
async def test_results_equal_those_of_exact_search(store: Uniform, plain: Uniform, target: Target) -> None:
    await furnish(store)
    for query in ("apple pie", "pear", "zer0"):
        await same(store, plain, query)
        await same(store, plain, query, filter={"long": True})
        await same(store, plain, query, filter={"text": "plum jam"})
    assert await store.search(NS, query="apple", limit=0) == []
    assert await store.search(("nobody", "x"), query="apple") == []
    assert found(await store.search(NS)) == found(await plain.search(NS))
    assert check_documents(target) == 5 * len(FRUIT)


@HERE
@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2"])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_every_distance_and_protocol_gives_exact_results(
    target: Target, model: Model, distance: str, protocol: int
) -> None:
    index = model.index(fields=["text"], distance_type=distance)
    client = target.client(protocol=protocol, decode_responses=protocol == 2)
    store = target.store(index={**index, "search": "server"}, client=client)
    await store.setup()
    await furnish(store)
    plain = target.store(index=index)
    await same(store, plain, "apple tart")
    await same(store, plain, "plum", NS, filter={"long": False})


def texts(kind: str, count: int, seed: int) -> list[str]:
    """Return texts whose vectors are random, or clustered with some duplicates."""
    rng = random.Random(seed)
    if kind == "random":
        return [f"{rng.random()} {number}" for number in range(count)]
    return [f"group{rng.randrange(8)} {rng.randrange(count // 2)}" for _ in range(count)]


@HERE
@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("kind", ["random", "clustered"])
@pytest.mark.parametrize("seed", seeds(range(1)))
async def test_flat_is_exact_on_two_thousand_vectors(
    store: Uniform, plain: Uniform, target: Target, kind: str, seed: int
) -> None:
    rng, some = random.Random(seed), texts(kind, 2000, seed)
    spaces = [NS, (*NS, "deep"), ("memories", "user-2")]
    await store.batch(
        [
            PutOp(spaces[number % 3], f"{number}", {"text": text, "n": number % 7, "m": number % 400})
            for number, text in enumerate(some)
        ]
    )
    for _ in range(6):
        query = rng.choice(some) + rng.choice(["", "x"])
        prefix = rng.choice([(), NS[:1], NS, (*NS, "deep")])
        filter = rng.choice([None, {"n": 3}, {"m": 5}, {"m": -1}])
        for limit in (1, 10, 300):
            page = {"query": query, "filter": filter, "limit": limit, "offset": rng.choice([0, 7])}
            assert found(await store.search(prefix, **page)) == found(await plain.search(prefix, **page)), (seed, page)
    rows = {(spaces[n % 3], f"{n}"): [vector(text)] for n, text in enumerate(some)}
    nearest = await store.search((), query=some[0], limit=10)
    ranked = best("cosine", vector(some[0]), rows, 10)
    assert [item.score for item in nearest] == pytest.approx([one for _, one in ranked], abs=1e-9)


@HERE
@pytest.mark.parametrize("flavour", ["sync"])
async def test_hnsw_finds_80_percent_of_the_nearest_with_exact_scores(target: Target) -> None:
    """Search the ten nearest of 2,000 random vectors of 64 dimensions.

    This is the hardest case, because all are about equally far apart.
    """
    model = Model(64)
    store = target.store(index=model.index(fields=["text"], search="server", algorithm="hnsw"))
    await store.setup()
    some = texts("random", 2000, 1)
    await store.batch([PutOp(NS, text, {"text": text}) for text in some])
    plain, hits = target.store(index=model.index(fields=["text"])), 0
    for query in (f"query {number}" for number in range(20)):
        mine = await store.search(NS, query=query)
        scores = {item.key: score("cosine", vector(query, 64), vector(item.key, 64)) for item in mine}
        assert [item.score for item in mine] == pytest.approx(list(scores.values()), abs=1e-9)
        hits += len(scores.keys() & {item.key for item in await plain.search(NS, query=query)})
    assert hits >= 0.8 * 200


@HERE
async def test_vectors_per_item_limits_the_vectors_of_an_item(target: Target, model: Model) -> None:
    index = model.index(fields=["text", "title", "more[*]"])
    store = target.store(index={**index, "search": "server", "vectors_per_item": 4})
    await store.setup()
    for number, text in enumerate(FRUIT):
        more = FRUIT[: number % 3]
        await store.put(NS, text, {"text": text, "title": FRUIT[-number], "more": more})
    await same(store, target.store(index=index), "pear cake", NS)
    await same(store, target.store(index=index), "apple pie", NS)
    check_documents(target)
    await store.put(NS, "pear cake", {"text": "pear cake"})
    check_documents(target)
    await same(store, target.store(index=index), "apple pie", NS)
    with pytest.raises(ValueError, match="item 'k'.* has 5 texts to embed.*room for 4 vectors.*vectors_per_item"):
        await store.put(NS, "k", {"text": "a", "more": ["b", "c", "d", "e"]})
    fewer = target.store(index=model.index(fields=["text"], search="server"))
    await fewer.setup()
    with pytest.raises(IndexNotBuilt, match="up to 4 vectors each.*room for 1"):
        await fewer.search(NS, query="apple")


@HERE
async def test_items_with_hostile_prefixes_and_names_are_found(target: Target, model: Model) -> None:
    prefix = target.prefix + " *?[x]é\n\"'\\,|@:"
    index = model.index(fields=["text"])
    store = target.store(index={**index, "search": "server"}, prefix=prefix)
    await store.setup()
    plain = target.store(index=index, prefix=prefix)
    labels = ["a", " ", "*", "{", "}", "|", "-@under:", "ä\n\r\t", "\x01", "\ud800", "%2F", "/", ":", "💥", "x" * 300]
    for number, name in enumerate([*labels, "zero", "{x}", "a,b", "?"]):
        await store.put((name, "x"), "k", {"text": f"apple {number}"})
        await store.put(("x", name, name), name, {"text": f"apple {number}"})
    for prefix_of_search in ((), ("x",), ("x", labels[0]), (labels[0], "x"), ("x", "a,b", "a,b"), ("x", "zero")):
        await same(store, plain, "apple 1", prefix_of_search)
    assert len(await store.search((), query="apple", limit=1000)) == 2 * (len(labels) + 4)


@HERE
async def test_a_zero_query_vector_is_refused(store: Uniform) -> None:
    await furnish(store)
    with pytest.raises(ValueError, match="length 0"):
        await store.search(NS, query="zero")


# -- lifetime of documents


@pytest.mark.parametrize("target_name", ["redis"])
async def test_documents_stay_with_vectors_that_stay(target: Target, model: Model, plain: Uniform) -> None:
    """Their deadlines move. Scripts write documents on any server, so this needs no module."""
    index = model.index(fields=["text"], search="server")
    for writer in (target.store(index=index), plain, target.store()):
        store = target.store(index=index)
        await store.batch([PutOp(NS, text, {"text": text}) for text in FRUIT])
        there = check_documents(target)
        for ttl in (5, 9, None):
            await writer.batch([PutOp(NS, text, {"text": "x"}, index=False, ttl=ttl) for text in FRUIT[1:]])
            assert check_documents(target) == there == len(FRUIT)
        await writer.put(NS, FRUIT[2], {}, index=[])
        assert check_documents(target) == there - 1
        await store.delete_namespace(NS)
        assert check_documents(target) == 0


@HERE
async def test_documents_are_removed_with_their_items(store: Uniform, plain: Uniform, target: Target) -> None:
    """The writer is a store with server search, with exact search, or without an index."""
    bare = target.store()
    for writer in (store, plain, bare):
        await furnish(store)
        await writer.put(NS, "apple pie", {"text": "plum"})
        await writer.put(NS, "apple tart", {"text": "apple tart"}, index=[])
        await writer.delete(NS, "pear cake")
        await writer.batch(
            [PutOp(NS, "zero", None), PutOp(NS, "new", {"text": "pear"}), PutOp(NS, "plum jam", {}, ttl=5)]
        )
        check_documents(target)
        await same(store, plain, "pear")
        await writer.put(NS, "pear cake", {"text": "pear cake"}, ttl=5)
        check_documents(target)
        await writer.delete_namespace((*NS, "deep"))
        check_documents(target)
        await same(store, plain, "pear")
        assert await writer.delete_namespace(("memories",)) and await writer.delete_namespace(("others",))
        assert [key for key in target.keys() if not key.endswith(b":retired")] == []


@HERE
async def test_expired_items_are_not_found_and_reads_restart_ttls(
    store: Uniform, plain: Uniform, target: Target
) -> None:
    for reader in (store, plain):
        for text in FRUIT:
            await store.put(NS, text, {"text": text}, ttl=1)
        await store.put(NS, "stays", {"text": "apple"})
        check_documents(target)
        later(target, 40_000)
        for read in (
            reader.get(NS, "apple pie"),
            reader.search(NS, query="pear cake", limit=1),
            reader.search(NS, filter={"text": "plum jam"}),
            reader.search(NS, limit=2),
        ):
            await read
        later(target, 30_000)
        await same(store, plain, "apple", NS, refresh_ttl=False)
        left = {item.key for item in await store.search(NS, query="apple", refresh_ttl=False)}
        assert left == {"stays", "zero too", "apple pie", "pear cake", "plum jam"}
        # Expired items leave documents behind, whose own deadlines `later` does not move.
        keyspace = StoreKeyspace(target.prefix)
        for key in target.raw.scan_iter(match=keyspace.documents + b"*"):
            _, field = keyspace.item_of(key)
            assert field == b"stays\0" or 0 < target.raw.pttl(key) <= 60_000
        for key in ("apple pie", "zero too"):
            (document,) = document_keys(keyspace.partition(b"memories\0user-1\0"), [key.encode() + b"\0"])
            assert target.raw.pttl(document) > 45_000, "the read moved the document's deadline"
        await store.delete_namespace(NS)
        for key in target.raw.scan_iter(match=keyspace.documents + b"*"):
            target.raw.delete(key)


@HERE
async def test_an_import_updates_the_documents(store: Uniform, plain: Uniform, target: Target) -> None:
    await furnish(store)
    for number, writer in enumerate((store, target.store())):
        key = FRUIT[number]
        item = StoredItem(NS, key, {"text": key}, 10, 20, 0, 0, 0)
        assert await import_items(writer, item, expected=(await store.get(NS, key)).version) == []
        check_documents(target)
    await same(store, plain, "apple")


@HERE
async def test_forget_leaves_no_documents(store: Uniform, target: Target) -> None:
    await furnish(store)
    if store.native_async:
        return
    asked = ["forget", "--redis", target.url, "--store-prefix", target.prefix, "--namespace", ".".join(NS), "--yes"]
    assert await asyncio.to_thread(main, asked) == 0
    check_documents(target)
    assert not [key for key in target.keys() if b"user-1" in key and not key.endswith(b":retired")]


@HERE
async def test_a_put_sent_twice_counts_once(store: Uniform, plain: Uniform, target: Target) -> None:
    def twice(request: Any) -> Any:
        yield request
        return (yield request)

    Around(store.saver, twice)
    await furnish(store)
    other = target.store()
    await store.put(NS, "plum jam", {"text": "pear"})
    await other.put(NS, "plum jam", {"text": "plum"})
    check_documents(target)
    await same(store, plain, "pear")


# -- building the index


@HERE
async def test_setup_and_build_index_cover_earlier_items(target: Target, model: Model, plain: Uniform) -> None:
    """`setup` makes documents along with the index.

    A search in a partition that another store adds later raises until `build_index` has run.
    """
    await furnish(plain)
    await plain.put(NS, "short", {"text": "apple"}, ttl=5)
    store = target.store(index=model.index(fields=["text"], search="server"))
    with pytest.raises(IndexNotBuilt, match="call setup"):
        await store.search(NS, query="apple")
    await store.put(NS, "early", {"text": "apple"})
    await asyncio.gather(store.setup(), store.setup())
    assert check_documents(target) == 5 * len(FRUIT) + 2
    await same(store, plain, "apple pie", refresh_ttl=False)
    await plain.put(("memories", "user-3"), "k", {"text": "apple"})
    with pytest.raises(IndexNotBuilt, match="'user-3'.*build_index"):
        await store.search(("memories", "user-3"), query="apple")
    assert "user-3" not in {item.namespace[-1] for item in await store.search((), query="apple", limit=5)}
    await store.setup()
    assert await store.build_index() == 1 and await store.build_index() == 0
    check_documents(target)
    await same(store, plain, "apple pie", refresh_ttl=False)


@HERE
async def test_writes_during_setup_get_documents(target: Target, model: Model, plain: Uniform) -> None:
    await plain.batch([PutOp(NS, f"{number}", {"text": f"apple {number}"}) for number in range(450)])
    store, other = target.store(index=model.index(fields=["text"], search="server")), target.store()
    numbers = itertools.count(1)

    def act(request: Any) -> Callable[[], Any] | None:
        if not isinstance(request, Call) or request.script is not scripts.DOCUMENT_ITEMS:
            return None
        number = next(numbers)

        async def write() -> None:
            writer = RedisStore(target.raw, prefix=target.prefix, index=model.index(fields=["text"]))
            writer.put(NS, f"new {number}", {"text": f"pear {number}"})
            writer.put(NS, f"{number}", {"text": "plum"})
            writer.delete(NS, f"{100 + number}")

        return write

    Meanwhile(store.saver, act, act)
    await store.setup()
    assert next(numbers) == 2 * 5 + 1
    check_documents(target)
    await same(store, plain, "pear 3", NS)
    await other.delete_namespace(NS)
    check_documents(target)


@HERE
async def test_setup_can_be_repeated_after_a_crash(target: Target, model: Model, plain: Uniform) -> None:
    """`setup` makes the index last, so an index means that all documents exist."""
    await furnish(plain)
    for dies_at in range(1, 8):
        store = target.store(index=model.index(fields=["text"], search="server"))
        requests = iter(range(1, 1000))

        def die(request: Any, dies_at: int = dies_at, requests: Any = requests) -> Any:
            if next(requests) == dies_at:
                raise ConnectionError("dies")
            return (yield request)

        Around(store.saver, die)
        with contextlib.suppress(ConnectionError):
            await store.setup()
        again = target.store(index=model.index(fields=["text"], search="server"))
        with contextlib.suppress(IndexNotBuilt):
            assert len(await again.search((), query="apple", limit=100, refresh_ttl=False)) == 5 * len(FRUIT) + 2
    await target.store(index=model.index(fields=["text"], search="server")).setup()
    check_documents(target)


@HERE
async def test_setup_restores_a_dropped_index_and_its_documents(store: Uniform, plain: Uniform, target: Target) -> None:
    """Follow the steps of docs/store-search.md."""
    await furnish(store)
    (name,) = (one for one in target.raw.execute_command("FT._LIST") if one.startswith(target.prefix.encode()))
    target.raw.execute_command("FT.DROPINDEX", name, "DD")
    assert not [key for key in target.keys() if b":documents:" in key]
    with pytest.raises(IndexNotBuilt, match="call setup"):
        await store.search(NS, query="apple")
    await store.setup()
    check_documents(target)
    await same(store, plain, "apple")


@HERE
async def test_vectors_of_another_model_are_refused(target: Target, store: Uniform) -> None:
    await furnish(store)
    other = target.store(index=Model(8).index(fields=["text"], search="server"))

    with pytest.raises(DecodeError, match="16 dimensions.*dims.*8.*another model"):
        await other.setup()
    await other.put(NS, "k", {"text": "apple"})
    with pytest.raises(IndexNotBuilt, match="vectors of other dimensions: call build_index"):
        await store.search(NS, query="apple")
    with pytest.raises(DecodeError, match="'k'.* 8 dimensions.*dims.*16.*another model"):
        await store.build_index()
    await other.delete(NS, "k")
    assert await store.build_index() > 0
    check_documents(target)


@HERE
async def test_encrypted_vectors_of_another_store_get_no_documents(
    target: Target, store: Uniform, model: Model
) -> None:
    await furnish(store)
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"x" * 16)
    await target.store(index=model.index(fields=["text"]), serde=serde).put(NS, "secret", {"text": "apple"})
    assert not [key for key in target.keys() if b"secret\0".hex().encode() in key]
    with pytest.raises(IndexNotBuilt, match="build_index"):
        await store.search(NS, query="apple")
    with pytest.raises(DecodeError, match="'secret'"):
        await store.build_index()


# -- costs and rights


@HERE
async def test_calls_take_one_or_two_round_trips(target: Target, model: Model, store: Uniform) -> None:
    await furnish(store)
    client = target.client()
    counted = target.store(client=client, index=model.index(fields=["text"], search="server"))
    trips = Counted(client).trips
    assert await trips(counted.put(NS, "k", {"text": "apple"})) == 1
    assert await trips(counted.put(NS, "k", {"text": "pear"}, ttl=5)) == 1
    assert await trips(counted.get(NS, "k")) == 1
    assert await trips(counted.search(NS, limit=3)) == 2, "a second round trip restarts the TTL"
    assert await trips(counted.search(NS, limit=3, refresh_ttl=False)) == 1
    assert await trips(counted.search(NS, query="apple pie", limit=3, refresh_ttl=False)) == 2
    assert await trips(counted.search((), query="apple pie", limit=3, refresh_ttl=False)) == 2
    assert await trips(counted.delete(NS, "k")) == 1
    assert await trips(counted.setup()) <= 2


@HERE
@pytest.mark.parametrize("flavour", ["sync"])
async def test_the_documented_acl_rules_suffice(target: Target, model: Model) -> None:
    """Use the rules of docs/operations.md.

    The test does not show that each rule is needed, because servers differ in the commands that a right covers.
    """
    raw = target.raw
    for section in ("standalone", "store", "vectors"):
        rule = acl_rule(section).replace("SETUSER checkpoints", f"SETUSER {target.prefix}")
        raw.execute_command(*rule.replace("~langgraph:*", f"~{target.prefix}:*").split())
    url = target.url.replace("://", f"://{target.prefix}:secret@")
    store = target.store(client=target.client(url=url), index=model.index(fields=["text"], search="server"))
    await store.setup()
    await furnish(store)
    assert len(await store.search(NS, query="apple", limit=100)) == 2 * len(FRUIT) + 2
    assert await store.build_index() == 0
    raw.execute_command("ACL", "DELUSER", target.prefix)


# -- refusals


@ANYWHERE
async def test_a_server_without_the_module_is_refused(target: Target, model: Model) -> None:
    store = target.store(index=model.index(fields=["text"], search="server"))
    with pytest.raises(UnsupportedServer, match="no vector search.*leave 'search' out"):
        await store.setup()
    await store.put(NS, "k", {"text": "apple"})
    with pytest.raises(UnsupportedServer, match="no vector search"):
        await store.search(NS, query="apple")
    assert [item.key for item in await store.search(NS)] == ["k"]
    await store.delete(NS, "k")
    assert [key for key in target.keys() if not key.endswith(b":retired")] == []


@pytest.mark.parametrize("target_name", ["cluster"])
async def test_a_cluster_is_refused(target: Target, model: Model) -> None:
    with pytest.raises(ValueError, match="takes no cluster"):
        target.store(index=model.index(search="server"))


@pytest.mark.parametrize(
    ("index", "more", "said"),
    [
        ({"search": "elsewhere"}, {}, "'elsewhere'.*process server"),
        ({"algorithm": "hnsw"}, {}, "algorithm.*'search': 'server'"),
        ({"search": "server", "algorithm": "svs"}, {}, "'svs'.*flat hnsw"),
        ({"search": "server", "vectors_per_item": 0}, {}, "vectors_per_item.*=0"),
        ({"search": "server", "vectors_per_item": 65}, {}, "=65: write an int of at most 64"),
        ({"search": "server"}, {"prefix": "a\0b"}, "NUL"),
        ({"search": "server"}, {"serde": EncryptedSerializer.from_pycryptodome_aes(key=b"x" * 16)}, "bytes\\+aes"),
    ],
)
def test_invalid_index_settings_are_refused(index: Any, more: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RedisStore(redis.Redis(), index={"dims": 3, "embed": len, **index}, **more)


def test_build_index_raises_without_server_search() -> None:
    with pytest.raises(ValueError, match="nothing to build"):
        RedisStore(redis.Redis(port=1)).build_index()


def test_a_partial_reply_raises() -> None:
    reply = {b"results": [], b"warning": [b"Timeout limit was reached"]}
    store = RedisStore(redis.Redis(port=1), index={"dims": 1, "embed": len, "search": "server"})
    operation = server_search.nearest(store._context, NS, np.ones(1), 1, None)
    next(operation)
    with pytest.raises(TimeoutError, match="Timeout limit"):
        operation.send([reply, reply])
