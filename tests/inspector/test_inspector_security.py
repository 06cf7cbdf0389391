"""Access to the inspector: tokens, hosts, response headers, changes and read-only users."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from tests.support.acl import ROOT, acl_rule
from tests.support.factories import config, put
from tests.support.inspecting import SECRET, TOKEN, browser, crawled, embedded, make_failed, make_thread, talking
from tests.support.inspecting import writer
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.servers import Server
from tests.support.uniform import Uniform

from redis_saver import AsyncRedisSaver, RedisCache, RedisSaver, RedisStore, TieredSaver, inspector
from redis_saver._client.clients import connect
from redis_saver._inspector.pages import static_file

PAGES = (
    *("/", "/thread?id=t", "/checkpoint?thread=t", "/diff", "/value", "/channel", "/writes"),
    *("/static/style.css", "/none"),
)


@pytest.fixture
def saver() -> RedisSaver:
    return embedded()


@pytest.mark.parametrize("url", PAGES)
async def test_every_page_requires_the_token(saver: RedisSaver, url: str) -> None:
    async with browser(saver, enter=False) as client:
        assert (await client.get(url)).status_code == 403
        assert (await client.get(url, params={"token": "another"})).status_code == 403
        assert (await client.get(url, headers={"cookie": "redis_saver_inspector_00000000=x; =;;"})).status_code == 403
        assert (await client.get(url, headers={"authorization": "Bearer é".encode()})).status_code == 403
        assert (await client.post(url, params={"token": TOKEN})).status_code == 403


async def test_the_token_moves_from_the_url_to_a_cookie(saver: RedisSaver) -> None:
    async with browser(saver, enter=False) as client:
        answer = await client.get("/?prefix=%F0%9F%91%A9&token=" + TOKEN)
        assert answer.status_code == 303 and answer.headers["location"] == "/?prefix=%F0%9F%91%A9"
        assert {"HttpOnly", "SameSite=lax"} <= set(answer.headers["set-cookie"].split("; "))
        assert (await client.get("/")).status_code == 200
        answer = await client.get(f"http://localhost//evil.example/x?token={TOKEN}")
        assert answer.headers["location"] == "/evil.example/x"


async def test_malformed_urls_are_refused(saver: RedisSaver) -> None:
    for enter in (False, True):
        async with browser(saver, enter=enter, allow_changes=True) as client:
            for url in ("/?x=%ff", "/?prefix=%ed%00", "/thread?id=%ff", "/diff?a=%25ff&b=%25ff"):
                answer = await client.get(url)
                assert answer.status_code == (400 if enter or "25" not in url else 403), url
            assert (await client.post("/change?id=%ff", data={})).status_code == 400
            assert (await client.post("/change?id=t", headers={"origin": "http://["}, data={})).status_code == 403


async def test_foreign_cookies_and_non_ascii_tokens_are_accepted(saver: RedisSaver) -> None:
    token = 'ключ; "a"'
    async with browser(saver, token=token, enter=False) as client:
        answer = await client.get("/", params={"token": token})
        pair = answer.headers["set-cookie"].partition(";")[0]
        client.cookies.clear()
        assert "ключ" not in pair and (await client.get("/")).status_code == 403
        assert (await client.get("/", headers={"cookie": f'theirs={{"a": [1]}}; =x; {pair}; b@d=1'})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::2]"])
async def test_an_unknown_host_is_refused(saver: RedisSaver, host: str) -> None:
    async with browser(saver) as client:
        assert (await client.get("/", headers={"host": host})).status_code == 421
        for known in ("localhost:8123", "127.0.0.1", "[::1]:80"):
            assert (await client.get("/", headers={"host": known})).status_code == 200
    async with browser(saver, hosts=["*"]) as client:
        assert (await client.get("/", headers={"host": "any.example"})).status_code == 200


@pytest.mark.parametrize("enter", [True, False])
async def test_every_response_has_the_security_headers(saver: RedisSaver, enter: bool) -> None:
    async with browser(saver, enter=enter) as client:
        for url in PAGES:
            headers = (await client.get(url)).headers
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"] and headers["referrer-policy"] == "same-origin"
            assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"].startswith("no-store" if "static" not in url or not enter else "private")


def test_htmx_is_the_published_file() -> None:
    """`dist/htmx.min.js` of the npm package htmx.org 2.0.10 (license 0BSD)."""
    found = hashlib.sha256(static_file("htmx.min.js")).hexdigest()
    assert found == "71ea67185bfa8c98c39d31717c6fce5d852370fcdfd129db4543774d3145c0de"


def test_the_app_requires_a_token_and_valid_arguments(saver: RedisSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_SAVER_INSPECTOR_TOKEN", raising=False)
    with pytest.raises(ValueError, match="needs a token: write"):
        inspector.app(saver)
    with pytest.raises(ValueError, match="needs a token"):
        inspector.app(saver, token="", allow_changes=True)
    for wrong in ({"hosts": "localhost"}, {"mask": "*"}):
        with pytest.raises(TypeError, match="write a list"):
            inspector.app(saver, token=TOKEN, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pass a RedisSaver"):
        inspector.app(InMemorySaver(), token=TOKEN)
    monkeypatch.setenv("REDIS_SAVER_INSPECTOR_TOKEN", TOKEN)
    inspector.app(saver)


async def test_changes_are_off_by_default(saver: RedisSaver) -> None:
    await put(Uniform(saver), config("t"), {"n": 1})
    async with browser(saver) as client:
        text = (await client.get("/thread?id=t")).text
        assert "read only" in text and 'method="post"' not in text
        assert (await client.post("/change?id=t", data={"do": "delete", "sure": "yes"})).status_code == 404
    assert saver.get_tuple(config("t"))


async def test_changes_require_a_form_of_this_inspector(saver: RedisSaver) -> None:
    await put(Uniform(saver), config("t\n<b>"), {"n": 1})
    async with browser(saver, allow_changes=True) as client:
        url = "/change?id=t%0A%3Cb%3E"
        text = (await client.get("/thread?id=t%0A%3Cb%3E")).text
        form = re.findall(r'name="form" value="([^"]*)"', text)[0]
        assert f'action="{url}"' in text

        async def change(headers: dict[str, str] | None = None, **data: str) -> httpx.Response:
            return await client.post(url, data={"form": form, "sure": "yes", **data}, headers=headers)

        assert (await client.post(url, data={"do": "delete", "sure": "yes"})).status_code == 403
        assert (await change(form="0", do="delete", sure="yes")).status_code == 403
        assert (await change({"origin": "http://evil.example"}, do="pin")).status_code == 403
        assert (await change({"sec-fetch-site": "cross-site"}, do="pin")).status_code == 403
        asked = await change(do="delete", sure="")
        assert asked.status_code == 200 and "1 checkpoint (" in asked.text and (await change(do="x")).status_code == 400
        assert (await change(do="ttl", ttl="soon")).status_code == 400
        assert (await change(do="ttl", ttl="x" * 20_000)).status_code == 413
        assert saver.get_thread("t\n<b>") and not saver.get_thread("t\n<b>").pinned  # type: ignore[union-attr]

        assert (await change({"origin": "http://localhost"}, do="pin")).status_code == 303
        assert saver.get_thread("t\n<b>").pinned  # type: ignore[union-attr]
        assert (await change(do="unpin")).status_code == 303
        assert (await change(do="ttl", ttl="2h")).headers["location"] == "/thread?id=t%0A%3Cb%3E"
        assert timedelta(hours=1) < saver.get_thread_ttl("t\n<b>") <= timedelta(hours=2)  # type: ignore[operator]
        assert (await change(do="delete", sure="yes")).headers["location"] == "/"
        assert saver.get_thread("t\n<b>") is None
        assert (await change(do="pin")).status_code == 404


@pytest.mark.parametrize("kind", [RedisSaver, AsyncRedisSaver, TieredSaver])
async def test_a_read_only_user_suffices_and_nothing_is_written(kind: Any) -> None:
    """The rule is that of docs/queries.md. The saver has `refresh_on_read`, and one thread is owned."""
    server = Server()
    ttl = {"default_ttl": 60, "refresh_on_read": True}
    raw = server.client()
    raw.execute_command(*acl_rule("reader", "docs/queries.md").split())
    client = connect(f"redis://reader:secret@127.0.0.1:{server.port}", asynchronous=kind is AsyncRedisSaver)
    saver = TieredSaver(RedisSaver(client, ttl=ttl), InMemorySaver()) if kind is TieredSaver else kind(client, ttl=ttl)
    with RedisSaver.from_conn_string(server.url, ttl=ttl) as made:
        make_thread(made, "waits")
        make_failed(made, "fails")
        RedisStore(raw).put(("memories", "user-7", "deep"), "likes", {"n": 1})
        RedisCache(raw).set({(("tools",), "k"): (1, None)})
        talking(made).invoke({"messages": [HumanMessage("hi")]}, config("delta"))
        with made.own("waits", by="worker 1", lease="1h"):
            raw.config_resetstat()
            async with browser(saver) as pages:
                found = await crawled(pages)
                assert ">likes</a>" in (await pages.get("/memory?ns=memories.user-7")).text
                assert ">tools</td>" in (await pages.get("/caches")).text
                assert (await pages.get("/item?ns=memories.user-7.deep&key=likes")).status_code == 200
                assert "without a snapshot here" in (await pages.get("/checkpoint?thread=delta")).text
                assert (await pages.get("/newer?id=waits&seen=")).status_code == 286
                assert (await pages.get("/thread?id=waits&q=weather")).status_code == 200
            used = {name.removeprefix("cmdstat_").split("|")[0] for name in raw.info("commandstats")}
    commands = raw.command()
    assert len(found) > 60 and "worker 1" in found["/"] and "worker 1" in found["/thread?id=waits"]
    assert {"evalsha", "scan", "hmget", "get"} <= used
    assert not [name for name in used if "write" in commands[name]["flags"]]
    server.stop()


@contextmanager
def inspecting(*words: str, starter: Sequence[str] = ()) -> Iterator[tuple[str, httpx.Client]]:
    """Run the command by a `starter`, yield the URL that it prints and a client, and end it by a signal."""
    command = [*starter, sys.executable, "-m", "redis_saver", "inspect", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    try:
        assert process.stdout is not None
        with httpx.Client(follow_redirects=True) as client:
            yield process.stdout.readline().strip(), client
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_command_prints_a_url_of_the_thread() -> None:
    server, name = Server(), "наступний & <b>"
    make_thread(writer(server.url), name)
    with inspecting(name, "--redis", server.url, "--mask", "pass*") as (url, client):
        answer = client.get(url)
        assert answer.status_code == 200 and "наступний &amp; &lt;b&gt;" in answer.text
        assert "token" not in str(answer.url)
        newest = client.get(httpx.URL(url).join("/checkpoint"), params={"thread": name}).text
        assert "21 degrees" in newest and f'value str">{SECRET}' in newest, "a value without a masked name is shown"
        assert '<span class="masked">masked' in newest
        assert client.get(httpx.URL(url).join("/"), headers={"host": "evil.example"}).status_code == 421
    server.stop()


def test_the_command_ends_on_a_signal_that_its_parent_ignores() -> None:
    """A shell ignores it for commands in the background."""
    server = Server()
    with inspecting("--redis", server.url, starter=("sh", "-c", 'trap "" INT; exec "$@"', "sh")) as (url, client):
        assert client.get(url).status_code == 200
    server.stop()


def test_the_command_survives_closed_postgres_connections(database: str) -> None:
    server, ending = Server(), "pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'inspected'"
    make_thread(writer(server.url), "waits")
    words = ("--redis", server.url, "--postgres", f"{database}?application_name=inspected")
    with inspecting(*words) as (url, client), psycopg.connect(database, autocommit=True) as other:
        for _ in range(2):
            assert "The cold tier fails" not in client.get(url).text
            assert other.execute(f"SELECT {ending}").fetchall()
            answer = client.get(url)  # this request may be the first to notice
            assert answer.status_code == 200 and "waits" in answer.text
    server.stop()
