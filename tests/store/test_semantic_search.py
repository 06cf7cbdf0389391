"""`search(..., query=)` of a store with an `index`, on every server, sync and async."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import pytest
from tests.support.embedding import DIMS, Model, best, vector
from langchain_core.embeddings import Embeddings
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from tests.support.seeds import seeds, targets_and_slow
from tests.support.stores import check_sound, later
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

from redis_saver import AsyncTieredStore, Conflict, DecodeError, EncodeError, LimitExceeded, Limits, PlainValueRefused
from redis_saver import RedisStore, StoreDamaged, StrictSerializer, TieredStore
from redis_saver._common.store_names import StoreKeyspace

NS = ("memories", "user-1")
MEMBER = b"memories\0user-1\0"
FRUIT = ["apple pie", "apple tart", "pear cake", "plum jam", "apple juice", "zero"]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def store(target: Target, model: Model) -> Uniform:
    return target.store(index=model.index(fields=["text"]))


def found(items: list[Any]) -> list[tuple[str, float | None]]:
    return [(item.key, None if item.score is None else round(item.score, 9)) for item in items]


def wanted(distance: str, query: str, texts: dict[str, list[str]], most: int = 10) -> list[tuple[str, float]]:
    rows = {key: [vector(text) for text in some] for key, some in texts.items()}
    return [(key, round(score, 9)) for key, score in best(distance, vector(query), rows, most)]


async def furnish(store: Uniform, namespace: tuple[str, ...] = NS) -> dict[str, list[str]]:
    for text in FRUIT:
        await store.put(namespace, text, {"text": text, "long": len(text) > 8})
    return {text: [text] for text in FRUIT}


# -- results


async def test_nearest_items_come_first_and_items_without_vectors_last(store: Uniform) -> None:
    texts = await furnish(store)
    await store.put(NS, "b", {"text": "apple"}, index=False)
    await store.put(NS, "a", {"other": "no text"})
    ranked = [*wanted("cosine", "apple pie", texts), ("a", None), ("b", None)]
    everything = await store.search(NS, query="apple pie")
    assert found(everything) == ranked and ranked[0] == ("apple pie", 1.0)
    assert everything[0].value["text"] == "apple pie" and everything[0].version
    for limit in (1, 3, 7):
        pages = [await store.search(NS, query="apple pie", limit=limit, offset=offset) for offset in range(0, 9, limit)]
        assert [one for page in pages for one in found(page)] == ranked
    assert await store.search(NS, query="apple pie", offset=8) == []
    assert await store.search(("memories", "user-2"), query="apple pie") == []


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2"])
async def test_scores_follow_the_distance_type(target: Target, model: Model, distance: str) -> None:
    store = target.store(index=model.index(fields=["text"], distance_type=distance))
    texts = await furnish(store)
    assert found(await store.search(NS, query="pear cake")) == wanted(distance, "pear cake", texts)


async def test_an_items_score_is_that_of_its_nearest_vector(store: Uniform) -> None:
    await store.put(NS, "many", {"parts": [{"t": "apple pie"}, {"t": "pear cake"}]}, index=["parts[*].t"])
    await store.put(NS, "one", {"text": "pear jam"})
    texts = {"many": ["apple pie", "pear cake"], "one": ["pear jam"]}
    assert found(await store.search(NS, query="pear cake")) == wanted("cosine", "pear cake", texts)


async def test_filters_and_namespaces_apply_before_ranking(store: Uniform) -> None:
    texts = await furnish(store)
    deep = await furnish(store, (*NS, "deep"))
    long = {text: [text] for text in FRUIT if len(text) > 8}
    below, ranked_long = (*NS, "deep"), wanted("cosine", "apple", long)
    assert found(await store.search(NS, query="apple", filter={"long": True}, limit=2)) == [ranked_long[0]] * 2
    assert found(await store.search(below, query="apple")) == wanted("cosine", "apple", deep)
    assert found(await store.search(below, query="apple", filter={"long": True})) == ranked_long
    both = [(item.key, item.namespace) for item in await store.search(NS, query="apple", limit=20)]
    ranked = [key for key, _ in wanted("cosine", "apple", texts)]
    assert both == [(key, namespace) for key in ranked for namespace in (NS, below)], "ties are by namespace and key"


async def test_a_query_ranks_items_across_partitions(store: Uniform) -> None:
    texts = {}
    for number in range(12):
        for text in ("apple", "pear", "plum"):
            key = f"{text} {number}"
            texts[key] = [key]
            await store.put(("memories", f"user-{number % 5}"), key, {"text": key, "n": number})
    await store.put(("memories",), "none", {"n": 1})
    await store.put(("others", "x"), "o", {"text": "apple 3"})
    ranked = wanted("cosine", "apple 3", texts, 100)
    assert found(await store.search(("memories",), query="apple 3", limit=100)) == [*ranked, ("none", None)]
    assert found(await store.search(("memories",), query="apple 3", limit=4, offset=3)) == ranked[3:7]
    assert [key for key, _ in found(await store.search((), query="apple 3", limit=2))] == ["apple 3", "o"]
    few = {key: some for key, some in texts.items() if key.endswith(" 7")}
    assert found(await store.search((), query="apple 3", filter={"n": 7})) == wanted("cosine", "apple 3", few)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_index_is_configured_and_shown_as_in_langgraphs_stores(target: Target, model: Model) -> None:
    for index in (
        model.index(fields=["text"]),
        model.index(text_fields=["text"]),
        model.index(text_fields="text"),
        model.index(fields=["text"], text_fields=["text"]),
    ):
        store = target.store(index=index)
        await store.put(NS, "apple", {"text": "apple", "more": "pear"})
        assert found(await store.search(NS, query="apple")) == [("apple", 1.0)]
        made = store.saver
        assert (made.index_config["dims"], made.index_config["fields"]) == (DIMS, ["text"])
        assert made.embeddings.embed_query("apple") == vector("apple")
        kind = TieredStore if isinstance(made, RedisStore) else AsyncTieredStore
        cold = InMemoryStore(index=model.index())
        if "encryption" not in target.settings({}):
            tiers = kind(target.store(ttl="1m").saver, cold)
            assert tiers.index_config is cold.index_config and tiers.embeddings is cold.embeddings
    bare = target.store().saver
    assert bare.index_config is None and bare.embeddings is None
    assert target.store(index=model.index()).saver.index_config["fields"] == ["$"]
    with pytest.raises(ValueError, match="another name of 'fields'"):
        target.store(index=model.index(fields=["text"], text_fields=["title"]))


@pytest.mark.parametrize("target_name", ["redis"])
async def test_query_and_index_are_ignored_without_an_index(target: Target) -> None:
    store = target.store()
    await furnish(store)
    await store.put(NS, "last", {"text": "x"}, index=["text"])
    assert found(await store.search(NS, query="apple")) == found(await store.search(NS)) != []
    assert not target.raw.exists(StoreKeyspace(target.prefix).partition(MEMBER).keys[4])


@pytest.mark.parametrize("target_name", ["redis"])
async def test_results_match_langgraphs_in_memory_store(target: Target, model: Model) -> None:
    mine, theirs = target.store(index=model.index()), InMemoryStore(index=model.index())
    for text in FRUIT:
        await mine.put(NS, text, {"text": text, "tags": [1, {"a": None}]})
        theirs.put(NS, text, {"text": text, "tags": [1, {"a": None}]})
    for query in ("apple", "pear cake", '{"tags": [1, {"a": null}], "text": "apple pie"}'):
        assert found(await mine.search(NS, query=query)) == found(theirs.search(NS, query=query))


# -- lifetime of vectors


async def test_vectors_are_removed_with_their_items(target: Target, store: Uniform) -> None:
    await furnish(store)
    await store.search(NS, query="apple")
    await store.put(NS, "apple pie", {"text": "plum"})
    await store.put(NS, "apple tart", {"text": "apple tart"}, index=[])
    await store.delete(NS, "pear cake")
    texts = {"apple pie": ["plum"], "plum jam": ["plum jam"], "apple juice": ["apple juice"], "zero": ["zero"]}
    ranked = [*wanted("cosine", "apple", texts), ("apple tart", None)]
    other = target.store(index=Model().index(fields=["text"]))
    assert found(await store.search(NS, query="apple")) == ranked == found(await other.search(NS, query="apple"))
    check_sound(target)
    await target.store().put(NS, "plum jam", {"text": "plum jam"})  # a store without an index writes no vectors
    assert (await store.search(NS, query="apple"))[-2:][0].key == "plum jam"
    check_sound(target)
    for text in FRUIT:
        await store.delete(NS, text)
    assert await store.search(NS, query="apple") == []
    assert [key for key in target.keys() if not key.endswith(b":retired")] == []


async def test_index_false_leaves_vectors_as_langgraphs_stores_do(target: Target, store: Uniform, model: Model) -> None:
    theirs = InMemoryStore(index=model.index(fields=["text"]))
    ops = [
        [PutOp(NS, text, {"text": text}) for text in FRUIT],
        [
            PutOp(NS, "apple pie", {"text": "plum"}, index=False),  # the vector of "apple pie" stays
            PutOp(NS, "plum jam", {"used": 1}, index=False),
            PutOp(NS, "plum jam", {"used": 2}, index=False),
            PutOp(NS, "pear cake", None),
            PutOp(NS, "new", {"text": "apple"}, index=False),
        ],
        [PutOp(NS, "pear cake", {"text": "pear cake"}, index=False)],
        [PutOp(NS, "zero", {"text": "zero"}), PutOp(NS, "zero", {"text": "apple"}, index=False)],
        [PutOp(NS, "apple tart", {"text": "plum"}), PutOp(NS, "new", {"text": "pear"})],
    ]
    model.take()
    for some in ops:
        await store.batch(some)
        theirs.batch(some)
        check_sound(target)
        expected = sorted(found(theirs.search(NS, query="apple")), key=lambda one: (-(one[1] or -9), one[0]))
        for reader in (store, target.store(index=Model().index(fields=["text"]))):
            items = found(await reader.search(NS, query="apple"))
            assert sorted(items, key=lambda one: (-(one[1] or -9), one[0])) == expected
    asked = [text for call in model.take() for text in call]
    assert asked.count("plum") == 2, "each store embeds it once, for apple tart"
    assert (await store.get(NS, "apple pie")).value == {"text": "plum"}

    await target.store().put(NS, "apple tart", {"text": "pear"}, index=False, ttl=1)  # a store without an index
    with_ttl = await store.search(NS, query="plum", limit=2, refresh_ttl=False)
    assert {item.key for item in with_ttl} == {"apple tart", "plum jam"} and all(item.score for item in with_ttl)
    current = (await store.get(NS, "apple tart", refresh_ttl=False)).version
    with pytest.raises(Conflict):
        await store.put(NS, "apple tart", {}, index=False, if_version=current - 1)
    await store.put(NS, "apple tart", {"text": "x"}, index=False, if_version=current, ttl=1)
    check_sound(target)
    later(target, 70_000)
    await store.put(NS, "apple tart", {"text": "x"}, index=False)  # a new item: the old vectors have expired
    assert ("apple tart", None) in found(await store.search(NS, query="apple"))
    check_sound(target)


async def test_vectors_expire_with_their_items(target: Target, store: Uniform) -> None:
    await furnish(store)
    await store.put(NS, "short", {"text": "apple apple"}, ttl=1)
    assert "short" in {item.key for item in await store.search(NS, query="apple", refresh_ttl=False)}
    later(target, 70_000)
    assert "short" not in {item.key for item in await store.search(NS, query="apple")}
    check_sound(target)
    await store.batch([PutOp(NS, text, None) for text in FRUIT])
    await store.put(NS, "short", {"text": "apple"}, ttl=1)
    await store.put(NS, "longer", {"text": "pear"}, ttl=2)
    check_sound(target)
    later(target, 50_000)
    assert len(await store.search(NS, query="pear", limit=1)) == 1  # restarts the TTL of the item that it finds
    later(target, 30_000)
    assert [item.key for item in await store.search(NS, query="apple", limit=5)] == ["longer"]
    later(target, 125_000)
    assert await store.search(NS, query="apple") == [] and await store.count(NS) == 0


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_first_vectors_of_a_partition_get_its_deadline(target: Target, store: Uniform) -> None:
    await store.put(NS, "a", {"text": "apple"}, index=False, ttl=5)
    await store.put(NS, "b", {"text": "apple"}, ttl=1)
    check_sound(target)
    await store.put(NS, "b", {"text": "apple"}, index=[], ttl=1)
    await store.put(NS, "a", {"text": "apple"}, ttl=5)
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_search_notices_a_failover_that_lost_an_update(target: Target, store: Uniform) -> None:
    """The number of items stays the same, and the scores are those of the restored vectors."""
    texts = await furnish(store)
    left = {key: target.raw.dump(key) for key in target.keys()}
    await store.put(NS, "plum jam", {"text": "apple pie"})
    assert len([item for item in await store.search(NS, query="apple pie") if item.score == 1.0]) == 2
    for key, dumped in left.items():
        target.raw.restore(key, 0, dumped, replace=True)
    assert found(await store.search(NS, query="apple pie")) == wanted("cosine", "apple pie", texts)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_evicted_vectors_raise_store_damaged(target: Target, store: Uniform) -> None:
    await furnish(store)
    await store.search(NS, query="apple")
    target.raw.delete(StoreKeyspace(target.prefix).partition(MEMBER).keys[4])
    for call in (
        store.search(NS, query="apple"),
        store.search(()),
        store.put(NS, "k", {"text": "x"}),
        store.delete(NS, "zero"),
    ):
        with pytest.raises(StoreDamaged, match="vectors"):
            await call
    assert (await store.get(NS, "apple pie")).value["text"] == "apple pie", "get needs no vectors"
    assert await store.delete_namespace(NS) == len(FRUIT)


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize(
    "stored",
    [b"", b"x", b"16", b"16 ", b"16 5:bytes", b"16 5:bytesabc", b"16 5:bytes" + b"\xff" * 64, b"16 99:b", b"16 4:nullx", b"-1 5:bytes", b"\xff 5:bytes" + b"\0" * 64],
)  # fmt: skip
@pytest.mark.by_turns
async def test_malformed_vectors_raise_decode_error(target: Target, store: Uniform, stored: bytes) -> None:
    await furnish(store)
    key = StoreKeyspace(target.prefix).partition(MEMBER).keys[4]
    target.raw.hset(key, b"plum jam\0", stored)
    if not stored:
        assert (await store.search(NS, query="apple"))[-1].key == "plum jam"
        return
    with pytest.raises(DecodeError, match="the vectors of item 'plum jam'"):
        await store.search(NS, query="apple")
    await store.put(NS, "plum jam", {"text": "plum jam"})
    assert len(await store.search(NS, query="apple")) == len(FRUIT)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_vectors_of_another_model_raise_decode_error(target: Target, store: Uniform) -> None:
    await furnish(store)
    other = target.store(index=Model(8).index(fields=["text"]))
    with pytest.raises(DecodeError, match="16 dimensions.*dims.*8.*another model"):
        await other.search(NS, query="apple")
    assert len(await other.search(NS)) == len(FRUIT), "without a query nothing is compared"


# -- embedding


async def test_a_batch_embeds_each_text_once(store: Uniform, model: Model) -> None:
    await furnish(store)
    model.take()
    ops = [
        SearchOp(NS, query="apple pie", limit=1),
        PutOp(NS, "a", {"text": "superseded"}),
        PutOp(NS, "a", {"text": "apple pie apple"}),
        PutOp(("other", "one"), "b", {"text": "apple pie apple"}),
        PutOp(("other", "one"), "c", {"text": "pear"}, index=False),
        PutOp(NS, "apple juice", None),
        GetOp(NS, "a"),
        SearchOp(NS, query="apple pie", limit=2),
    ]
    results = await store.batch(ops)
    assert sorted(model.take()) == [["apple pie"], ["apple pie apple"]]
    assert found(results[0]) == [("apple pie", 1.0)] and results[6] is None, "reads see the state before the puts"
    assert results[7][0].key == "apple pie"
    assert (await store.search((), query="apple pie apple", limit=2))[1].key == "b"


@pytest.mark.parametrize("target_name", ["redis"])
async def test_paths_choose_the_embedded_texts(target: Target, model: Model) -> None:
    store = target.store(index=model.index(fields=["title", "parts[*].text", "meta.{a,b}"]))
    value = {"title": "t", "parts": [{"text": "p1"}, {"text": "p2"}, {}], "meta": {"a": "ma", "b": 2}, "n": 1}
    await store.put(NS, "k", value)
    assert model.take() == [["t", "p1", "p2", "ma", "2"]]
    await store.put(NS, "k", value, index=["parts[-2].text", "n"])
    assert model.take() == [["p2", "1"]]
    await store.put(NS, "k", {"title": "t", "n": 1}, index=["$"])
    assert model.take() == [['{"n": 1, "title": "t"}']]
    await store.put(NS, "k", value, index=False)
    await store.put(NS, "k", {"other": 1})
    await store.delete(NS, "k")
    assert model.take() == []


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([[1.0] * 3], r"of the shape \(1, 3\), and not \(1, 16\): index\['dims'\]"),
        ([[1.0] * 16] * 2, r"given 1 text, and answered vectors of the shape \(2, 16\)"),
        ([], r"answered vectors of the shape \(0,\)"),
        (None, r"answered vectors of the shape \(\)"),
        (5, r"answered vectors of the shape \(\)"),
        ([None], r"answered vectors of the shape \(1,\)"),
        ([["x"] * 16], "not lists of numbers"),
        ([[1.0] * 16, [1.0] * 3], "have different lengths"),
        ([[[1.0, 2.0]] * 16], r"of the shape \(1, 16, 2\)"),
        ([[1.0] * 15 + [float("nan")]], "NaN or infinity"),
        ([[1e39] + [1.0] * 15], "NaN or infinity"),
        ([[1e20] + [1.0] * 15], "length 1e\\+20"),
        ([[1e-20] + [0.0] * 15], "length 1e-20"),
    ],
)
@pytest.mark.by_turns
async def test_invalid_vectors_are_refused_before_sending(
    target: Target, store: Uniform, model: Model, wrong: Any, said: str
) -> None:
    await furnish(store)
    before = {key: target.raw.dump(key) for key in target.keys()}
    model.wrong = (wrong,)
    with pytest.raises(ValueError, match=said):
        await store.put(NS, "k", {"text": "x"})
    with pytest.raises(ValueError, match=said):
        await store.batch([PutOp(NS, "first", {"n": 1}), PutOp(("other", "one"), "k", {"text": "x"})])
    if isinstance(wrong, list) and len(wrong) == 1:
        with pytest.raises(ValueError, match=said):
            await store.search(NS, query="x")
    assert {key: target.raw.dump(key) for key in target.keys()} == before


@pytest.mark.parametrize("target_name", ["redis"])
async def test_invalid_arguments_are_refused_before_embedding(target: Target, store: Uniform, model: Model) -> None:
    small = target.store(index=model.index(fields=["parts[*]"]), limits=Limits(value_bytes=300))
    for call, error, said in (
        (lambda: store.put(NS, "k", {"text": "x"}, index=True), TypeError, "index=True"),
        (lambda: store.put(NS, "k", {"text": "x"}, index="text"), TypeError, "list of paths"),
        (lambda: store.put(NS, "k", {"text": "x"}, index=[1]), TypeError, "list of paths"),
        (lambda: store.put(("langgraph", "x"), "k", {"text": "x"}), ValueError, "langgraph"),
        (lambda: store.put(NS, "k", {"text": object()}), EncodeError, "cannot encode"),
        (lambda: store.put(NS, "k", {"text": b"x"}, index=["$"]), EncodeError, "the texts of item 'k'.*JSON"),
        (lambda: small.put(NS, "k", {"parts": ["x"] * 5}), LimitExceeded, "the vectors of item 'k' have 320 bytes"),
        (lambda: store.search(NS, query=5), TypeError, "query=5"),
        (lambda: store.search(NS, query="x", filter={"a": {"$near": 1}}), ValueError, "\\$near"),
        (lambda: store.search(NS, query="x", limit=-1), ValueError, "limit=-1"),
        (lambda: store.batch([PutOp(NS, "k", {"text": "x"}), PutOp(NS, "k", 5)]), TypeError, "value=5"),
    ):
        with pytest.raises(error, match=said):
            await call()
    assert model.take() == [] and target.keys() == []


@pytest.mark.parametrize("target_name", ["redis"])
async def test_async_embedding_functions_run_on_the_callers_event_loop(target: Target, model: Model) -> None:
    """The calls of one batch run concurrently. Sync and async stores accept such a function for their async methods."""
    loops, running, most = set(), 0, 0

    async def embed(texts: Any) -> Any:
        nonlocal running, most
        loops.add(asyncio.get_running_loop())
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return model(texts)

    store = target.store(index={"dims": DIMS, "embed": embed, "fields": ["text"]}).saver
    await store.aput(NS, "a", {"text": "apple"})
    await store.abatch([PutOp(NS, "p", {"text": "pear"}), SearchOp(NS, query="apple"), SearchOp(NS, query="pear")])
    assert found(await store.asearch(NS, query="pear")) == wanted("cosine", "pear", {"a": ["apple"], "p": ["pear"]})
    assert loops == {asyncio.get_running_loop()} and most == 3
    with pytest.raises(ValueError, match="async"):
        await asyncio.to_thread(store.put, NS, "b", {"text": "x"})


class Langchains(Embeddings):
    """A model that embeds queries and documents differently."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return vector(text.removeprefix("query: "))


@pytest.mark.parametrize("target_name", ["redis"])
async def test_langchain_embeddings_embed_queries_with_embed_query(target: Target) -> None:
    store = target.store(index={"dims": DIMS, "embed": Langchains(), "fields": ["text"]})
    texts = await furnish(store)
    assert found(await store.search(NS, query="query: pear cake")) == wanted("cosine", "pear cake", texts)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_put_sent_twice_counts_once(target: Target, store: Uniform) -> None:
    """This also holds after another client has put the item without vectors."""
    other = target.store()

    def twice(request: Any) -> Any:
        yield request
        return (yield request)

    Around(store.saver, twice)
    texts = await furnish(store)
    check_sound(target)
    versions = {item.key: item.version for item in await store.search(NS, query="apple")}
    await store.put(NS, "zero", {"text": "plum"})
    await other.put(NS, "zero", {"text": "zero"})
    check_sound(target)
    await store.put(NS, "zero", {"text": "zero"})
    after = await store.search(NS, query="apple")
    assert found(after) == wanted("cosine", "apple", texts)
    assert [item.key for item in after if item.version != versions[item.key]] == ["zero"]
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_errors_of_the_embedding_function_reach_the_caller(target: Target) -> None:
    def embed(_: Any) -> Any:
        raise ConnectionError("the model is down")

    store = target.store(index={"dims": DIMS, "embed": embed})
    with pytest.raises(ConnectionError, match="the model is down"):
        await store.put(NS, "a", {"text": "apple"})
    with pytest.raises(ConnectionError, match="the model is down"):
        await store.batch([PutOp(NS, "a", {}, index=False), SearchOp(NS, query="x")])
    assert target.keys() == []


# -- settings


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize(
    ("index", "error", "said"),
    [
        ("text", TypeError, "index='text': write a dict"),
        ({"embed": vector}, ValueError, "dims is missing"),
        ({"dims": 2}, ValueError, "embed is missing"),
        ({"dims": 0, "embed": vector}, ValueError, "dims.*=0"),
        ({"dims": True, "embed": vector}, ValueError, "dims.*=True"),
        ({"dims": 2, "embed": vector, "fields": "text"}, TypeError, "fields.*list of paths"),
        ({"dims": 2, "embed": vector, "distance_type": "l3"}, ValueError, "distance_type.*'l3'.*cosine"),
        ({"dims": 2, "embed": vector, "metric": "l2"}, ValueError, "'metric' is unknown"),
        ({"dims": 2, "embed": "nobody:nothing"}, (ValueError, ImportError), "nobody"),
    ],
)
@pytest.mark.by_turns
def test_invalid_index_settings_are_refused(target: Target, index: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        target.store(index=index)


@pytest.mark.parametrize("target_name", ["redis"])
def test_numpy_is_needed_only_with_an_index(target: Target, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "redis_saver._store.vectors", raising=False)
    target.store()
    with pytest.raises(ImportError, match=r"pip install 'redis-saver\[vectors\]'"):
        target.store(index=model.index())


# -- encryption


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.plain("it gives an item the bytes of another one")
async def test_vectors_are_encrypted_like_values(target: Target, model: Model) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(StrictSerializer(), key=b"k" * 16)
    store = target.store(index=model.index(fields=["text"]), serde=serde)
    texts = await furnish(store)
    assert found(await store.search(NS, query="apple")) == wanted("cosine", "apple", texts)
    raw = b"".join(target.raw.hvals(StoreKeyspace(target.prefix).partition(MEMBER).keys[4]))
    for text in FRUIT[:5]:
        plain = np.array(vector(text), "<f4").tobytes()
        assert not any(plain[at : at + 8] in raw for at in range(0, len(plain), 4))
    await target.store(index=model.index(fields=["text"])).put((*NS, "deep"), "plain", {"text": "apple"})
    items = StoreKeyspace(target.prefix).partition(MEMBER).keys[0]
    target.raw.hset(items, b"deep\0plain\0", target.raw.hget(items, b"zero\0"))
    with pytest.raises(PlainValueRefused, match="the vectors of item 'plain'"):
        await target.store(index=model.index(fields=["text"]), serde=serde).search(NS, query="apple")


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_partition_larger_than_cache_bytes_is_logged_once(
    target: Target, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    store = target.store(index=model.index(fields=["text"]), cache_bytes=2000)
    texts = await furnish(store)
    await store.search(("small", "one"), query="apple")
    assert caplog.messages == []
    for _ in range(3):
        assert found(await store.search(NS, query="apple")) == wanted("cosine", "apple", texts)
    (message,) = caplog.messages
    assert "cache_bytes=2,000 cannot hold" in message


# -- several processes, OS threads


@pytest.mark.by_turns
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets_and_slow(("redis", "cluster"), ("fakeredis",)))
@pytest.mark.parametrize("seed", seeds(range(2)))
async def test_random_operations_match_a_model(target: Target, seed: int) -> None:
    """The stores have stale mirrors, a small cache, or no index. The last one removes vectors by overwriting items."""
    print("seed", seed)
    random = np.random.default_rng(seed)
    words = ["apple", "pear", "plum"]
    namespaces = [NS, (*NS, "deep"), ("memories", "user-2"), ("memories",)]
    index = Model().index(fields=["text", "more[*]"])
    stores = [target.store(index=index), target.store(index=index), target.store(index=index, cache_bytes=3000)]
    plain = target.store()
    model: dict[Any, list[str]] = {}
    for _ in range(60):
        store = stores[random.integers(0, 3)]
        ops = []
        for _ in range(random.integers(0, 5)):
            namespace, key = namespaces[random.integers(0, 4)], f"k{random.integers(0, 12)}"
            texts = [f"{words[random.integers(0, 3)]} {random.integers(0, 9)}" for _ in range(random.integers(0, 3))]
            model.pop((namespace, key), None)
            ops = [op for op in ops if (op.namespace, op.key) != (namespace, key)]
            if random.random() < 0.3:
                ops.append(PutOp(namespace, key, None))
            elif random.random() < 0.1:
                await plain.put(namespace, key, {"text": "x"})
                model[namespace, key] = []
            else:
                value = {"text": texts[0] if texts else None, "more": texts[1:], "n": len(texts)}
                ops.append(PutOp(namespace, key, value))
                model[namespace, key] = texts
        if random.random() < 0.05:
            await store.delete_namespace(NS)
            model = {name: texts for name, texts in model.items() if name[0][:2] != NS}
            ops = [op for op in ops if op.namespace[:2] != NS]
        await store.batch(ops)
        prefix = [NS, (*NS, "deep"), ("memories",), ()][random.integers(0, 4)]
        if random.random() < 0.2:
            await store.search(prefix, filter={"more": []})
        query = f"{words[random.integers(0, 3)]} {random.integers(0, 9)}"
        limit, offset = int(random.integers(0, 20)), int(random.integers(0, 6))
        by = [None, {"n": 1}, {"n": {"$ne": 1}}][random.integers(0, 3)]
        answer = await store.search(prefix, query=query, filter=by, limit=limit, offset=offset)
        within = {name: texts for name, texts in model.items() if name[0][: len(prefix)] == prefix}
        if by is not None:
            within = {name: texts for name, texts in within.items() if (len(texts) == 1) == (by == {"n": 1})}
        rows = {name: [vector(text) for text in texts] for name, texts in within.items()}
        ranked = [name for name, _ in best("cosine", vector(query), rows, 100)]
        unranked = sorted(name for name, texts in within.items() if not texts)
        names = [(item.namespace, item.key) for item in answer]
        assert names[: max(0, len(ranked) - offset)] == ranked[offset : offset + limit]
        rest = names[max(0, len(ranked) - offset) :]
        assert set(rest) <= set(unranked) and len(names) == max(0, min(limit, len(within) - offset))
        versions = [item.version for item in answer if item.score is None]
        assert versions == sorted(versions, reverse=True)
    check_sound(target)


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("flavour", ["sync"])
async def test_os_threads_share_one_store(target: Target, store: Uniform) -> None:
    texts = {}

    def work(number: int) -> None:
        mine: RedisStore = store.saver
        for step in range(12):
            key = f"{number} {step}"
            mine.put(NS, key, {"text": f"apple {key}"})
            assert mine.search(NS, query=f"apple {key}", limit=1)[0].key == key, "the new item is the nearest"
            if step % 3:
                texts[key] = [f"apple {key}"]
            else:
                mine.delete(NS, key)

    await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(6)))
    assert found(await store.search(NS, query="apple", limit=100)) == wanted("cosine", "apple", texts, 100)
    check_sound(target)
