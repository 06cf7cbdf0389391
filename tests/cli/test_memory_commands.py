"""Commands that show what agents remember, and what caches hold."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import embed
from langgraph.store.base.embed import EmbeddingsLambda
from langgraph.store.memory import InMemoryStore
from tests.support.embedding import MODEL
from tests.support.servers import url_of
from tests.support.uniform import KEYS, encryption

from redis_saver import RedisCache, RedisLLMCache, RedisStore, TieredStore
from redis_saver._cli.main import main

NODE = ("__pregel_ns_writes", "graph.search", "node")


class Place:
    """The tests' server, with one prefix per test."""

    def __init__(self, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.prefix, self._capsys, self.err = url_of("redis"), prefix, capsys, ""

    def store(self, **options: Any) -> Any:
        return RedisStore.from_conn_string(self.url, prefix=self.prefix, **options)

    def run(self, *words: str, code: int = 0) -> str:
        assert main([*words, "--redis", self.url, "--prefix", self.prefix]) == code, self._capsys.readouterr()
        said = self._capsys.readouterr()
        self.err = said.err
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", re.sub(r"\d+ s ago", "AGO", said.out))
        return re.sub(r"(?<=\S) {2,}", "  ", text)

    def json(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]


@pytest.fixture
def place(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(f"memory-{os.getpid()}-{request.node.name[:20]}", capsys)
    yield made
    with made.store() as store:
        for labels in {each[:1] for each in store.list_namespaces(limit=1000)}:
            store.delete_namespace(labels)
    with RedisCache.from_conn_string(made.url, prefix=made.prefix) as cache:
        cache.clear()
        RedisLLMCache(cache).clear()


def fill(store: Any) -> None:
    for user in ("user-6", "user-7"):
        store.put(("memories", user), "likes", {"text": "tea and milk", "kind": "fact"}, ttl=24 * 60)
        store.put(("memories", user, "deep"), "theme", {"text": "dark", "\x1b": [1]})
    store.put(("company",), "policy", {"text": "zero"})


def test_namespaces_are_a_tree_with_counts_and_the_bytes_that_are_stored(place: Place) -> None:
    with place.store(index={"dims": MODEL.dims, "embed": MODEL, "fields": ["text"]}) as store:
        fill(store)
        client = store._driver.client
        stored = sum(
            sum(len(value) for name, value in client.hgetall(key).items() if name[:1] != b"@")
            for key in client.keys(f"{place.prefix}:store:*")
            if key.endswith((b":items", b":vectors"))
        )
    tree = place.json("items")
    assert [(each["namespace"], each["items"]) for each in tree] == [
        (["company"], 1), (["memories"], 4), (["memories", "user-6"], 2), (["memories", "user-6", "deep"], 1),
        (["memories", "user-7"], 2), (["memories", "user-7", "deep"], 1),
    ]  # fmt: skip
    sizes = {"/".join(each["namespace"]): each["bytes"] for each in tree}
    assert sizes["company"] + sizes["memories"] == stored
    assert sizes["memories"] == 2 * sizes["memories/user-7"] > 4 * sizes["memories/user-7/deep"] > 0
    (row,) = place.json("items", "memories", "user-7", "deep")
    assert row["bytes"] == sizes["memories/user-7/deep"], "an item counts its vectors, too"
    assert place.run("items").splitlines()[0:3] == [
        "namespace  items  bytes", f"company  1  {sizes['company']}", f"memories  4  {sizes['memories']:,}"
    ]  # fmt: skip
    assert "redis-saver items memories user-6 deep" in place.err


def test_what_an_agent_remembers_of_a_user_takes_one_command(place: Place) -> None:
    with place.store() as store:
        fill(store)
    for words in (("memories", "user-7"), ("memories.user-7",)):
        assert re.sub(r"  \d+\n", "  BYTES\n", place.run("items", *words)) == (
            "namespace  key  value  updated  expires  bytes\n"
            f"deep  theme  {json.dumps({'text': 'dark', chr(27): [1]})}  AGO  never  BYTES\n"
            '           likes  {"text": "tea and milk", "kind": "fact"}  AGO  in 23h59m  BYTES\n'
        )
    assert place.err == "2 items\n"
    (fact,) = place.json("items", "memories", "--filter", '{"kind": "fact"}', "--limit", "1")
    assert fact["namespace"][1] == "user-7"
    place.run("items", "user-7", code=1)
    assert place.err == f"no items in user-7 under prefix {place.prefix}. Similar: memories user-7\n"
    said = place.run("item", "memories", "user-7", "likes")
    head = "namespace  memories user-7\nkey  likes\nmade  TIME UTC (AGO)\nchanged  TIME UTC (AGO)\nexpires  in 23h59m\n"
    assert said.startswith(head)
    assert json.loads(said[said.index("{") :]) == {"text": "tea and milk", "kind": "fact"}
    place.run("item", "memories", "user-7", "nope", code=1)


def test_items_are_searched_as_the_store_does_with_scores(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with place.store(index={"dims": MODEL.dims, "embed": MODEL, "fields": ["text"]}) as store:
        fill(store)
        expected = [(one.key, one.score) for one in store.search(("memories",), query="tea cold")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meaning_of_items.py").write_text("from tests.support.embedding import MODEL as embed\n")
    for model in ("tests.support.embedding:MODEL", "meaning_of_items:embed"):
        found = place.json("items", "memories", "--query", "tea cold", "--embed", model)
        assert [(one["key"], one["score"]) for one in found] == expected and expected[0][0] == "likes"
        assert "score" in place.run("items", "memories", "--query", "tea", "--embed", model)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--query", "tea"], "--query needs --embed"),
        (["--embed", "tests.support.embedding:MODEL"], "needs --query"),
        (["--filter", "{"], "no JSON"),
        (["a..b"], "is empty"),
        (["--query", "a", "--embed", "tests.nowhere:x"], "No module named 'tests.nowhere'"),
        (["--query", "a", "--embed", "tests.support.embedding:DIMS"], "--embed 'tests.support.embedding:DIMS': write"),
    ],
)
def test_a_wrong_model_filter_or_namespace_is_named(place: Place, words: list[str], said: str) -> None:
    place.run("items", "memories", *words, code=2)
    assert said in place.err
    assert "--embed '" not in place.err or "MODULE:NAME" in place.err and "openai:" in place.err


def test_a_model_that_is_no_object_of_a_module_is_one_of_a_provider(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def init_embeddings(model: str) -> EmbeddingsLambda:
        asked.append(model)
        return EmbeddingsLambda(MODEL)

    monkeypatch.setattr(embed, "_get_init_embeddings", lambda: init_embeddings)
    with place.store(index={"dims": MODEL.dims, "embed": MODEL, "fields": ["text"]}) as store:
        fill(store)
    models = ["nowhere:text-embedding-3-small", "tests.support.embedding:no_model", "json:large"]
    for model in models:
        assert len(place.json("items", "memories", "--query", "tea", "--embed", model)) == 4
    assert asked == models


@pytest.mark.parametrize("keys", ["none", "others"])
def test_without_keys_an_encrypted_store_shows_names_and_sizes_and_says_so(
    place: Place, keys: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with place.store(encryption=encryption()) as store:
        fill(store)
    words = []
    if keys == "others":
        (tmp_path / "keys").write_text(f"x={b64encode(bytes(32)).decode()}")
        words = ["--keys-file", str(tmp_path / "keys")]
    assert len(place.json("items")) == 6
    rows = place.json("items", "memories", "user-7", *words)
    assert [(row["key"], row["value"]) for row in rows] == [("theme", None), ("likes", None)]
    assert all(row["bytes"] > 80 and row["unreadable"] for row in rows) and rows[1]["expires_at"]
    said = place.run("items", "memories", "user-7", *words)
    assert "tea" not in said and "likes  -  AGO" in said and "shown without values: " in place.err
    assert "\n{" not in place.run("item", "memories", "user-7", "likes", *words) and "without values" in place.err
    place.run("items", "memories", "user-7", "--filter", '{"kind": "fact"}', *words, code=2)
    monkeypatch.setenv("REDIS_SAVER_KEYS", ",".join(f"{name}={b64encode(key).decode()}" for name, key in KEYS.items()))
    assert "tea and milk" in place.run("items", "memories", "user-7")


def test_an_item_is_deleted_after_a_confirmation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.store() as store:
        fill(store)
        words = ("item", "memories", "user-7", "likes", "--delete")
        place.run(*words, code=2)
        assert "add --yes. Nothing was deleted" in place.err
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        for answer, is_left in ((False, True), (True, False)):
            monkeypatch.setattr("typer.confirm", lambda *_, **__: answer)
            place.run(*words)
            assert (store.get(("memories", "user-7"), "likes") is not None) is is_left
        assert place.run("item", "memories", "user-6", "likes", "--delete", "--yes").startswith("deleted: memories")
        assert store.count(()) == 3
        tiered = TieredStore(store, InMemoryStore())
        tiered.put(("copies", "of"), "k", {})
        assert tiered.get(("copies", "of"), "k") is not None
        place.run("item", "copies", "of", "k", "--delete", "--yes", code=2)
        assert "copies of a cold store's" in place.err


def test_caches_are_measured_without_cleared_entries_and_cleared(place: Place) -> None:
    prefix = place.prefix
    place.run("caches", code=1)
    with RedisCache.from_conn_string(place.url, prefix=prefix) as cache:
        cache.set({(NODE, f"k{at}"): ("x" * 90, 3600 if at % 2 else None) for at in range(6)})
        cache.set({(("to*ls",), "\0"): (1, None), ((), "k"): (1, None), (("gone",), "k"): (1, 3600)})
        cache.clear([("gone",)])  # an entry with a TTL stays, invalid, until it expires
        RedisLLMCache(cache).update("hi", "m", [])
        client = cache._driver.client
        node = sum(client.strlen(key) for key in client.keys(f"{prefix}:cache:*:entry:*node*"))
        client.set(f"{prefix}:cache:{{0}}:entry:nonsense", "x")  # another program's
        rows = place.json("caches")
        assert [(row["namespace"], row["entries"]) for row in rows] == [
            ([], 1), (list(NODE), 6), (["to*ls"], 1), (None, 1)
        ]  # fmt: skip
        assert rows[1]["bytes"] == node
        assert f"__pregel_ns_writes graph.search node  6  {node}\n" in place.run("caches")
        place.run("caches", "--clear", code=2)
        place.run("caches", "to*ls", "--clear", code=2)
        assert "Nothing was cleared" in place.err and cache.get([(("to*ls",), "\0")])
        place.run("caches", "to*ls", "--clear", "--yes")
        assert [len(cache.get([(("to*ls",), "\0")])), len(cache.get([((), "k")]))] == [0, 1]
        place.run("caches", "--models", "--clear", "--yes")
        assert [row["namespace"] for row in place.json("caches")] == [[], list(NODE)]
        assert place.json("caches", "--all", "--clear", "--yes") == [{"cleared": 7}]
        place.run("caches", code=1)
        client.delete(f"{prefix}:cache:{{0}}:entry:nonsense")
