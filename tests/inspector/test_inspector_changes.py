"""Changes of the inspector: each is confirmed first."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import fakeredis
import httpx
import pytest
from langgraph.types import Command

from redis_saver import RedisCache, RedisLLMCache, RedisSaver, RedisStore, inspector
from tests.inspector.test_inspector_pages import page
from tests.support.embedding import MODEL
from tests.support.factories import chain, config, put
from tests.support.inspecting import HOSTILE, browser, builder, check_markup, crawled, embedded, inspected, links
from tests.support.inspecting import make_thread, opened, writer
from tests.support.uniform import Target, Uniform, encryption


class Clicks:
    """Sends the forms of pages, as a browser does."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def send(self, page: str, do: str, **fields: str) -> httpx.Response:
        """Send the form with this button, filled with fields; return the answer."""
        for action, inside in re.findall(r'<form method="post" action="([^"]*)">(.*?)</form>', page, re.DOTALL):
            if f'value="{do}"' in inside:
                found = re.findall(r'<(?:input|button)[^>]* name="([^"]*)"[^>]*?(?: value="([^"]*)")?[ >]', inside)
                data = {unescape(name): unescape(value) for name, value in found} | fields
                return await self.client.post(unescape(action), data={**data, **({} if do == "yes" else {"do": do})})
        raise AssertionError(do)

    async def confirmed(self, url: str, do: str, **fields: str) -> tuple[str, httpx.Response]:
        """Send a form, then confirm; return what the page said, and the last answer."""
        asked = await self.send((await self.client.get(url)).text, do, **fields)
        assert asked.status_code == 200, asked.text
        check_markup(asked.text)
        (effect,) = re.findall(r'<p class="notice interrupted">(.*?)</p>', asked.text, re.DOTALL)
        return unescape(effect), await self.send(asked.text, "yes")


@pytest.mark.parametrize("kind", ["redis", "async", "tiers"])
async def test_each_change_says_what_it_does_and_waits_for_a_click(kind: str) -> None:
    hot, looked_at = inspected(kind)
    saver = looked_at if kind == "tiers" else hot
    await chain(Uniform(saver), "t", 20)
    saver.get_tuple(config("t"))
    async with browser(looked_at, allow_changes=True) as client:
        clicks, url = Clicks(client), "/thread?id=t"
        for do, fields, said in (
            ("pin", {}, "will not expire until it is unpinned. It has 20 checkpoints ("),
            ("unpin", {}, "TTL will count from now"),
            ("ttl", {"ttl": "2h"}, "expire 2h after now"),
            ("ttl", {"ttl": ""}, "The saver's TTL will apply again"),
        ):
            before = saver.get_thread("t")
            await clicks.send((await client.get(url)).text, do, **fields)
            now = saver.get_thread("t")
            assert (now.pinned, now.ttl is None) == (before.pinned, before.ttl is None), "it waits for the click"
            effect, done = await clicks.confirmed(url, do, **fields)
            assert said in effect and done.headers["location"] == "/thread?id=t", do
        if kind != "tiers":  # an InMemorySaver cannot prune like this
            effect, _ = await clicks.confirmed(url, "prune", keep_last="5")
            assert effect.startswith("15 checkpoints (") and saver.get_thread("t").checkpoints == 5
            assert (await clicks.send((await client.get(url)).text, "prune", older_than="x")).status_code == 400
        effect, done = await clicks.confirmed(url, "delete")
        assert "will be deleted for good" in effect and done.headers["location"] == "/"
        assert saver.get_thread("t") is None


async def test_a_copy_ends_at_its_checkpoint(target: Target) -> None:
    """A copy goes on as the thread did then. Checkpoints of subgraphs, forks and values come along."""
    saver = writer(target.url, target.prefix)
    make_thread(saver, "t")
    found = [one for one in saver.list(config("t")) if one.metadata.get("step") == 2]
    where = found[-1].config["configurable"]["checkpoint_id"]
    async with browser(target.uniform().saver, allow_changes=True) as client:
        clicks = Clicks(client)
        url = f"/checkpoint?thread=t&ns=&id={where}"
        effect, done = await clicks.confirmed(url, "copy", to="a <b>")
        assert "to 'a <b>'" in effect and "replaces" not in effect and "id=a+%3Cb%3E" in done.headers["location"]
        effect, _ = await clicks.confirmed(url, "copy", to="a <b>")
        assert "It replaces that thread: " in effect
        page = (await client.get(url)).text
        for wrong in ("", "t"):
            assert (await clicks.send(page, "copy", to=wrong)).status_code == 400
        assert (await clicks.send(page, "copy", to="other", at="0")).status_code == 400
    old = {one.checkpoint["id"]: one for one in saver.list({"configurable": {"thread_id": "t"}})}
    new = {one.checkpoint["id"]: one for one in saver.list({"configurable": {"thread_id": "a <b>"}})}
    assert set(new) == {each for each in old if each <= where} and where in new and len(new) < len(old)
    last = {one.config["configurable"]["checkpoint_ns"]: each for each, one in sorted(new.items())}
    for each, one in new.items():
        assert one.checkpoint == old[each].checkpoint
        assert one.pending_writes == ([] if each in last.values() else old[each].pending_writes)
    assert saver.check("a <b>").sound
    graph = builder.compile(checkpointer=saver)
    graph.invoke(None, config("a <b>"))
    graph.invoke(Command(resume="yes"), config("a <b>"))
    assert graph.get_state(config("a <b>")).next == ()


async def test_hostile_names_are_changed_by_clicks() -> None:
    saver = embedded()
    async with browser(saver, allow_changes=True) as client:
        for name in HOSTILE:
            await put(Uniform(saver), config(name), {"n": 1})
            listed = (await client.get("/")).text
            (url,) = [one for one in links(listed) if one.startswith("/thread?id=")]
            effect, _ = await Clicks(client).confirmed(url, "delete")
            assert "1 checkpoint" in effect and saver.get_thread(name) is None


# -- pages of a store and of caches


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
    hot, saver = inspected(kind)
    store = fill(hot._driver.client)
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
    saver, index = embedded(), {"dims": MODEL.dims, "embed": MODEL, "fields": ["text"]}
    store = fill(saver._driver.client, index=index)
    text = await opened(saver, page("memory", ns="memories.user-7", q="tea"), store=store)
    ((best, score),) = [(one.key, one.score) for one in store.search(("memories", "user-7"), query="tea", limit=1)]
    assert text.index(f">{best}</a>") < text.index(f"{score:.3f}") < text.index(">theme</a>")
    with pytest.raises(TypeError, match="pass a RedisStore"):
        inspector.app(saver, token="x", store=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("has_keys", [False, True])
async def test_an_encrypted_store_shows_values_only_with_keys(has_keys: bool) -> None:
    raw = fakeredis.FakeRedis(version=(7,))
    fill(raw, encryption=encryption())
    saver = RedisSaver(raw, encryption=encryption() if has_keys else None)
    text, item = await opened(saver, SEVEN, page("item", ns="memories.user-7", key="likes"))
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
