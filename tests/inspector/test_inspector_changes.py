"""Changes of the inspector: each is confirmed first. And the download of a thread."""

from __future__ import annotations

import re
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

import fakeredis
import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from tests.support.factories import chain, config, put
from tests.support.inspecting import HOSTILE, browser, builder, check_markup, links, make_thread, writer
from tests.support.uniform import Target, Uniform

from redis_saver import AsyncRedisSaver, RedisSaver, TieredSaver
from redis_saver._cli.main import main


def embedded() -> RedisSaver:
    return RedisSaver(fakeredis.FakeRedis(version=(7,)))


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
    raw = fakeredis.FakeServer(version=(7,))
    hot = RedisSaver(fakeredis.FakeRedis(server=raw))
    inspected: Any = {
        "redis": lambda: hot, "async": lambda: AsyncRedisSaver(fakeredis.FakeAsyncRedis(server=raw)),
        "tiers": lambda: TieredSaver(hot, InMemorySaver()),
    }[kind]()  # fmt: skip
    saver = inspected if kind == "tiers" else hot
    await chain(Uniform(saver), "t", 20)
    saver.get_tuple(config("t"))
    async with browser(inspected, allow_changes=True) as client:
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
    inspected: Any = target.uniform().saver
    async with browser(inspected, allow_changes=True) as client:
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


async def test_a_thread_is_downloaded_as_import_reads_it(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = writer(target.url, target.prefix)
    make_thread(saver, "t <b>")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others use the common folder
    async with browser(target.uniform().saver) as client:
        (url,) = [one for one in links((await client.get("/thread?id=t+%3Cb%3E")).text) if "/export?" in one]
        answer = await client.get(url)
        assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
        assert (await client.get("/export?thread=nobody")).status_code == 404
    assert not [*tmp_path.iterdir()]
    file = tmp_path / "thread"
    file.write_bytes(answer.content)
    words = ["import", str(file), target.url, "--target-prefix", f"{target.prefix}-copy"]
    assert main(words) == 0
    copy = writer(target.url, f"{target.prefix}-copy")
    wanted = {"configurable": {"thread_id": "t <b>"}}
    assert [one.checkpoint for one in copy.list(wanted)] == [one.checkpoint for one in saver.list(wanted)]
    assert [one.pending_writes for one in copy.list(wanted)] == [one.pending_writes for one in saver.list(wanted)]


async def test_a_file_would_show_masked_values_and_lack_what_only_cold_has() -> None:
    saver = embedded()
    make_thread(saver, "t")
    async with browser(TieredSaver(saver, InMemorySaver())) as client:
        assert (await client.get("/export?thread=t")).status_code == 400
    async with browser(saver, mask=["password"]) as client:
        assert (await client.get("/export?thread=t")).status_code == 400
