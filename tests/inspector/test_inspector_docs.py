"""The documentation on the inspector's pages, with the anchors that `redis-saver docs` and the alerts name."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from typing import Any
from urllib.parse import urljoin

import fakeredis
import httpx
import pytest
import yaml
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.support.inspecting import TAGS, TOKEN, browser, check_markup, links

from redis_saver import RedisSaver, inspector
from redis_saver._cli.docs import with_urls
from redis_saver._inspector.manual import files, read, sections
from redis_saver._inspector.manual_pages import rendered
from redis_saver._inspector.pages import linked


def saver() -> RedisSaver:
    return RedisSaver(fakeredis.FakeRedis(version=(7,)))


def anchors(page: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'<h\d id="([^"]*)"', page)]


@pytest.mark.parametrize("root", ["", "/inspect"])
async def test_every_page_has_the_anchors_of_the_command_and_links_that_work(root: str) -> None:
    pages = inspector.app(saver(), token=TOKEN)
    service = Starlette(routes=[Mount(root, pages)]) if root else pages
    transport = httpx.ASGITransport(app=service)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        shown = {}
        for name, path in files().items():
            answer = await client.get(f"{root}/docs/{name}")
            assert answer.status_code == 200
            shown[f"{root}/docs/{name}"] = answer.text
            assert anchors(answer.text) == (list(sections(read(path))) if path.suffix == ".md" else [])
        shown[f"{root}/docs"] = (await client.get(f"{root}/docs")).text
    assert "Which page answers your question?" in shown[f"{root}/docs"]
    for url, text in shown.items():
        inside = text[text.index("<article") : text.index("</article>")]
        assert set(re.findall(r"<(\w+)", inside)) <= TAGS | {"article"}
        check_markup(
            re.sub(r"</?article[^>]*>", "", re.sub(r'<a href="https?://[^"]*" rel="noreferrer">', "<a>", text))
        )
        for link in links(inside):
            if not link.startswith("http"):
                path, _, section = urljoin(url, link).partition("#")
                assert path in shown, link
                assert not section or section in anchors(shown[path]), link
    assert sum(len(links(text)) for text in shown.values()) > 400


async def test_each_alert_leads_to_its_section() -> None:
    text = with_urls("alerts.yaml", "https://ops.example.org/inspect/")
    rules = [rule["annotations"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    async with browser(saver(), base="https://ops.example.org", hosts=["ops.example.org"]) as client:
        for rule in rules:
            assert rule["runbook_url"] == rule["runbook"].replace(
                "redis-saver docs ", "https://ops.example.org/inspect/docs/"
            )
            path, _, section = rule["runbook_url"].partition("/inspect")[2].partition("#")
            answer = await client.get(path)
            assert answer.status_code == 200 and section in anchors(answer.text)


async def test_the_pages_need_the_token_and_name_no_other_files() -> None:
    async with browser(saver(), enter=False) as client:
        for path in ("/docs", "/docs/metrics"):
            assert (await client.get(path)).status_code == 403
        entered = await client.get("/docs/metrics", params={"token": TOKEN})
        assert (entered.status_code, entered.headers["location"]) == (303, "/docs/metrics")
    async with browser(saver()) as client:
        for path in ("/docs/nothing", "/docs/..%2Fpyproject.toml", "/docs/%3Cscript%3E", "/docs/api%2Fthreads"):
            answer = await client.get(path)
            assert answer.status_code == 404, path
            assert "<script>" not in answer.text
        assert (await client.get("/docs/metrics.md")).status_code == 200


def test_a_page_is_escaped() -> None:
    text = "# A <script>\n[x](javascript:alert(1)) <b>bold</b> ![i](https://x/y.png) [api](api/threads.md) [here](#a-script)\n"
    html = str(rendered(text, '/"root'))
    assert "<script" not in html and "<b>" not in html and 'href="javascript' not in html
    assert '<h1 id="a-script">' in html and '<a href="#a-script">here</a>' in html and "<a>api</a>" in html
    assert 'href="/&quot;root/docs/metrics"' in rendered("[m](metrics.md)", '/"root')


def test_messages_that_name_a_page_lead_to_it() -> None:
    said = linked("<b> is lost (redis-saver docs operations#persistence). See redis-saver docs servers.", "/inspect")
    assert said == (
        '&lt;b&gt; is lost (<a href="/inspect/docs/operations#persistence">redis-saver docs operations#persistence</a>). '
        'See <a href="/inspect/docs/servers">redis-saver docs servers</a>.'
    )


async def test_findings_lead_to_the_page_that_helps() -> None:
    async with browser(saver()) as client:
        page = (await client.get("/server")).text
    named = Counter[Any](re.findall(r'href="/docs/([\w#-]+)">redis-saver docs \1<', page))
    assert named, page
    assert set(named) <= {
        *files(),
        *(f"{name}#{one}" for name, path in files().items() for one in sections(read(path))),
    }
