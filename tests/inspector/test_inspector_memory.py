"""The pages of a store and of caches."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import fakeredis
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from tests.inspector.test_inspector_changes import Clicks
from tests.inspector.test_inspector_pages import page
from tests.support.embedding import MODEL
from tests.support.inspecting import HOSTILE, browser, check_markup, crawled, writer
from tests.support.uniform import Target, encryption

from redis_saver import AsyncRedisSaver, RedisCache, RedisLLMCache, RedisSaver, RedisStore, TieredSaver, inspector

SEVEN = page("memory", ns="memories.user-7")


def fill(client: Any, prefix: str = "langgraph", **options: Any) -> RedisStore:
    store = RedisStore(client, prefix=prefix, **options)
    for user in ("user-6", "user-7"):
        store.put(
            ("memories", user), "likes", {"text": f"tea of {user}", "password": "hunter2", "kind": "fact"}, ttl=60
        )
        store.put(("memories", user, "deep"), "theme", {"text": "dark"})
    return store


async def test_all_links_of_the_memory_work_on_every_server(target: Target) -> None:
    client = writer(target.url, target.prefix)._driver.client
    fill(client, target.prefix)
    RedisCache(client, prefix=target.prefix).set({(("tools",), "k"): (1, None)})
    async with browser(target.uniform().saver) as pages:
        found = await crawled(pages, "/memory", limit=30)
    views = {url.partition("?")[0] for url in found}
    assert views >= {"/memory", "/item", "/caches"}
    assert ">1</td>" in found["/caches"] and "tea of user-7" in found[SEVEN]
    for text in found.values():
        check_markup(text)


@pytest.mark.parametrize("kind", ["redis", "async", "tiers"])
async def test_a_page_shows_what_an_agent_remembers_of_a_user(kind: str) -> None:
    raw = fakeredis.FakeServer(version=(7,))
    hot = RedisSaver(fakeredis.FakeRedis(server=raw))
    saver: Any = {
        "redis": lambda: hot, "async": lambda: AsyncRedisSaver(fakeredis.FakeAsyncRedis(server=raw)),
        "tiers": lambda: TieredSaver(hot, InMemorySaver()),
    }[kind]()  # fmt: skip
    store = fill(fakeredis.FakeRedis(server=raw))
    async with browser(saver, allow_changes=True, mask=["pass*"]) as client:
        found = (await client.get(page("memory", find="user-7"))).text
        assert "user-7" in found and "user-6" not in found
        text = unescape((await client.get(SEVEN)).text)
        assert '{"text": "tea of user-7", "password": "masked", "kind": "fact"}' in text
        assert "user-6" not in text and "in 59m" in text and "2 items" in text
        only = (await client.get(page("memory", ns="memories", filter='{"text": "dark"}'))).text
        assert only.count(">theme</a>") == 2 and ">likes</a>" not in only
        for wrong in ({"filter": "{"}, {"q": "tea"}, {"filter": "1"}):
            assert (await client.get(page("memory", ns="memories", **wrong))).status_code == 400
        url = page("item", ns="memories.user-7", key="likes")
        item = unescape((await client.get(url)).text)
        assert '  "password": "masked"' in item and "hunter2" not in item and "in 59m" in item
        clicks = Clicks(client)
        effect, done = await clicks.confirmed(url, "delete")
        assert "deleted for good" in effect and done.headers["location"] == SEVEN
        assert store.get(("memories", "user-7"), "likes") is None and store.count(()) == 3
        assert (await client.get(url)).status_code == 404


async def test_a_search_by_meaning_shows_scores() -> None:
    raw = fakeredis.FakeRedis(version=(7,))
    index: Any = {"dims": MODEL.dims, "embed": MODEL, "fields": ["text"]}
    store = fill(raw, index=index)
    async with browser(RedisSaver(raw), store=store) as client:
        text = (await client.get(page("memory", ns="memories.user-7", q="tea"))).text
    ((best, score),) = [(one.key, one.score) for one in store.search(("memories", "user-7"), query="tea", limit=1)]
    assert text.index(f">{best}</a>") < text.index(f"{score:.3f}") < text.index(">theme</a>")
    with pytest.raises(TypeError, match="pass a RedisStore"):
        inspector.app(RedisSaver(raw), token="x", store=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("has_keys", [False, True])
async def test_an_encrypted_store_shows_values_only_with_keys(has_keys: bool) -> None:
    raw = fakeredis.FakeRedis(version=(7,))
    fill(raw, encryption=encryption())
    async with browser(RedisSaver(raw, encryption=encryption() if has_keys else None)) as client:
        text, item = [(await client.get(url)).text for url in (SEVEN, page("item", ns="memories.user-7", key="likes"))]
    assert ">likes</a>" in text and "Expires" in item
    for each in (text, item):
        assert ("tea of user-7" in each, "without" in each) == (has_keys, not has_keys)


async def test_hostile_names_are_only_text() -> None:
    raw = fakeredis.FakeRedis(version=(7,))
    store, cache = RedisStore(raw), RedisCache(raw)
    names = [name.replace(".", "").replace("\0", "") or "x" for name in HOSTILE]
    for name in names:
        store.put(("m", name, name), name, {"text": name.encode("utf-8", "replace").decode()})
        cache.set({((name,), name): (1, None)})
    async with browser(RedisSaver(raw), allow_changes=True) as client:
        found = await crawled(client, "/memory", limit=80)
        for text in found.values():
            check_markup(text)
        assert sum("/item?" in url for url in found) == len(set(names))


async def test_caches_are_cleared_after_a_confirmation() -> None:
    raw = fakeredis.FakeRedis(version=(7,))
    cache = RedisCache(raw)
    names = [(("a",), "k"), (("b", "\u202e\n"), "k"), ((), "k")]
    cache.set({name: (1, None) for name in names})
    RedisLLMCache(cache).update("hi", "m", [])
    async with browser(RedisSaver(raw), allow_changes=True) as client:
        clicks = Clicks(client)
        what = json.dumps(names[1][0])
        assert (await clicks.send((await client.get("/caches")).text, "all")).status_code == 200
        assert len(cache.get(names)) == 3, "it waits for the click"
        form = re.findall(r'name="form" value="(\w+)"', (await client.get("/caches")).text)[0]
        asked = await client.post("/change", data={"form": form, "do": what})
        assert "1 cached results" in asked.text
        assert (await clicks.send(asked.text, "yes")).headers["location"] == "/caches"
        assert list(cache.get(names)) == [names[0], names[2]]
        await clicks.confirmed("/caches", "null")
        assert RedisLLMCache(cache).lookup("hi", "m") is None and len(cache.get(names)) == 2
        await clicks.confirmed("/caches", "all")
        assert not cache.get(names) and "No cache has an entry" in (await client.get("/caches")).text
        assert (await client.post("/change", data={"form": form, "do": what})).status_code == 400
