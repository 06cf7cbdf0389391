"""LangGraph's Agent Server (`langgraph dev`) with our checkpointer, driven over HTTP as an application drives it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import StateGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from tests.support.factories import checkpoint
from tests.support.servers import free_port, url_of
from typing_extensions import TypedDict

from redis_saver import AsyncRedisSaver, AsyncRedisStore, NotOwner, RedisSaver, RedisStore, UnsupportedServer
from redis_saver._storage.encryption import EncryptedOnly, unguarded
from redis_saver.agent_server import checkpointer, store
from redis_saver._client import clients

pytestmark = pytest.mark.xdist_group("agent")
WHY = "langgraph dev needs Python 3.11"
needs_agent_server = pytest.mark.skipif(sys.version_info < (3, 11), reason=WHY)

OURS = (
    "REDIS_URL", "REDIS_SAVER_PREFIX", "REDIS_SAVER_TTL", "REDIS_SAVER_KEEP_LAST", "REDIS_SAVER_OWNERSHIP",
    "REDIS_SAVER_REFRESH_ON_READ", "REDIS_SAVER_STORE_TTL", "REDIS_SAVER_STORE_REFRESH_ON_READ",
    "REDIS_SAVER_STORE_EMBED", "REDIS_SAVER_STORE_DIMS", "REDIS_SAVER_STORE_FIELDS", "LANGGRAPH_AES_KEY",
    "REDIS_SAVER_KEYS", "REDIS_SAVER_ENCRYPTION",
)  # fmt: skip
KEY = "0123456789abcdef"


# -- the factory and its environment


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which only REDIS_URL is set."""
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REDIS_URL", "memory://")
    return monkeypatch


def set_all(environment: pytest.MonkeyPatch, **settings: str) -> None:
    for name, text in settings.items():
        environment.setenv(name, text)


async def test_the_checkpointer_is_a_plain_saver_by_default(environment: pytest.MonkeyPatch) -> None:
    async with checkpointer() as saver:
        plain = AsyncRedisSaver(clients.connect("memory://", asynchronous=True))
        assert type(saver) is AsyncRedisSaver
        assert saver._context.keyspace.prefix == plain._context.keyspace.prefix
        assert saver._context.expiry == plain._context.expiry
        assert type(saver.serde) is type(plain.serde)


async def test_every_setting_reaches_the_saver(environment: pytest.MonkeyPatch) -> None:
    set_all(environment, REDIS_SAVER_PREFIX="mine", REDIS_SAVER_TTL="90s", REDIS_SAVER_REFRESH_ON_READ="true")
    set_all(environment, REDIS_SAVER_KEEP_LAST="100", LANGGRAPH_AES_KEY=KEY)
    async with checkpointer() as saver:
        assert saver._context.keyspace.prefix == "mine"
        assert saver._context.expiry == (90_000, True)
        assert saver._context.keep_last == 100
        assert isinstance(saver.serde, EncryptedSerializer)
        assert isinstance(saver._context.serde, EncryptedOnly)


@pytest.mark.parametrize("variable", ["REDIS_SAVER_KEYS", "REDIS_SAVER_ENCRYPTION"])
async def test_threads_are_encrypted_with_keys(environment: pytest.MonkeyPatch, variable: str) -> None:
    environment.setenv("LANGGRAPH_AES_KEY", KEY)
    environment.setenv(variable, "new=" + "A" * 44 if variable == "REDIS_SAVER_KEYS" else "LANGGRAPH_AES_KEY")
    async with checkpointer() as saver:
        assert not isinstance(saver.serde, EncryptedSerializer)
        made = checkpoint({"n": 1}, {"n": "1"}, "1")
        await saver.aput({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, made, {}, {"n": "1"})
        key_id = "new" if variable == "REDIS_SAVER_KEYS" else "LANGGRAPH_AES_KEY"
        assert (await saver.akey_status()).threads == {key_id: 1}


@pytest.mark.parametrize("where", ["run_id", "metadata", "configurable", "attempts of one run"])
async def test_a_superseded_run_cannot_write(environment: pytest.MonkeyPatch, where: str) -> None:
    environment.setenv("REDIS_SAVER_OWNERSHIP", "run")
    entered, go_on = asyncio.Event(), asyncio.Event()
    run, attempts = str(uuid4()), itertools.count(1)

    async def node(state: dict[str, int]) -> dict[str, int]:
        if not entered.is_set():
            entered.set()
            await go_on.wait()
        return {"n": state["n"] + 1}

    def given() -> Any:
        config: dict[str, Any] = {"configurable": {"thread_id": "thread"}}
        if where == "run_id":
            return {**config, "run_id": uuid4()}
        if where == "attempts of one run":  # in one process, which may get the run again
            return {**config, "metadata": {"run_id": run, "run_attempt": next(attempts)}}
        return {**config, where: {**config.get(where, {}), "run_id": str(uuid4())}}

    async with checkpointer() as saver:
        builder = StateGraph(TypedDict("State", {"n": int}))  # type: ignore[misc]
        builder.add_node("node", node).set_entry_point("node")
        graph = builder.compile(checkpointer=saver)
        first = asyncio.create_task(graph.ainvoke({"n": 1}, given()))
        await entered.wait()
        goes_on = where == "attempts of one run"  # LangGraph continues from the run's state, and ignores the input
        made = await graph.ainvoke({"n": 5}, given())
        assert made == {"n": 2 if goes_on else 6}
        go_on.set()
        with pytest.raises(NotOwner, match="run .* has owned the thread since"):
            await first
        assert (await graph.aget_state({"configurable": {"thread_id": "thread"}})).values == made
        await graph.aupdate_state({"configurable": {"thread_id": "thread"}}, {"n": 7})  # belongs to no run
        info = await saver.aget_thread("thread")
        assert info.owner.lease_until is None and not info.orphaned, "no one releases it, so it would stay orphaned"


async def test_the_store_is_a_plain_one_by_default(environment: pytest.MonkeyPatch) -> None:
    async with store() as found:
        assert type(found) is AsyncRedisStore
        assert found.ttl_config == {"default_ttl": None, "refresh_on_read": True}


async def test_every_setting_reaches_the_store(environment: pytest.MonkeyPatch) -> None:
    set_all(environment, REDIS_SAVER_PREFIX="mine", REDIS_SAVER_STORE_TTL="90m", LANGGRAPH_AES_KEY=KEY)
    set_all(environment, REDIS_SAVER_STORE_REFRESH_ON_READ="false", REDIS_SAVER_TTL="7d")  # the latter for threads
    async with store() as found:
        assert found.ttl_config == {"default_ttl": 90.0, "refresh_on_read": False}
        assert "prefix='mine'" in repr(found)
        assert isinstance(unguarded(found._context.values.serde), EncryptedSerializer)


async def test_index_settings_reach_the_store(environment: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def ensured(name: str) -> Embeddings:
        made.append(name)
        return DeterministicFakeEmbedding(size=8)

    environment.setattr("redis_saver._store.vectors.ensure_embeddings", ensured)
    set_all(environment, REDIS_SAVER_STORE_EMBED="openai:text-embedding-3-small", REDIS_SAVER_STORE_DIMS="8")
    environment.setenv("REDIS_SAVER_STORE_FIELDS", "text, meta.title")
    async with store() as found:
        await found.aput(("a",), "k", {"text": "apple", "meta": {"title": "fruit"}})
        await found.aput(("a",), "other", {"text": "pear"})
        assert (await found.asearch(("a",), query="fruit"))[0].key == "k"
    assert made == ["openai:text-embedding-3-small"]


@pytest.mark.parametrize(
    "settings",
    [
        {"DIMS": "8"},
        {"FIELDS": "text"},
        {"EMBED": "openai:x"},
        {"EMBED": "openai:x", "DIMS": ""},
        {"EMBED": "openai:x", "DIMS": "-1"},
        {"EMBED": "", "DIMS": "8"},
        {"EMBED": "model", "DIMS": "8"},
        {"EMBED": "openai:x", "DIMS": "8", "FIELDS": "text,"},
    ],
)
async def test_invalid_index_settings_are_refused(environment: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    set_all(environment, **{f"REDIS_SAVER_STORE_{name}": text for name, text in settings.items()})
    with pytest.raises(ValueError, match=r"REDIS_SAVER_STORE_(EMBED|DIMS|FIELDS)"):
        await store().__aenter__()


INVALID = {
    "REDIS_SAVER_OWNERSHIP": ["", "runs", "true"],
    "REDIS_SAVER_TTL": ["", "an hour", "0", "60", "-1m", "nan", "0d", "0.00001ms", "999999d", "60 min"],
    "REDIS_SAVER_KEEP_LAST": ["", "all", "0", "-1", "1001", "1.5", "٣"],
    "REDIS_SAVER_REFRESH_ON_READ": ["", "yes", "1", "on", " true"],
    "REDIS_SAVER_STORE_TTL": ["", "an hour", "60"],
    "REDIS_SAVER_STORE_REFRESH_ON_READ": ["", "an hour", "60"],
    "REDIS_SAVER_ENCRYPTION": ["", "1", "LANGGRAPH_AES_KEY"],
    "REDIS_SAVER_PREFIX": [""],
    "LANGGRAPH_AES_KEY": ["", "short", KEY + "!"],
    "REDIS_URL": [""],
}
SAID = {
    "REDIS_SAVER_ENCRYPTION": "REDIS_SAVER_ENCRYPTION='.*': write LANGGRAPH_AES_KEY, and set that variable",
    "REDIS_SAVER_PREFIX": "prefix=''",
    "LANGGRAPH_AES_KEY": "LANGGRAPH_AES_KEY must be 16, 24, or 32 bytes long",
    "REDIS_URL": r"REDIS_URL is not set.*set it to redis://",
}
"""Errors that do not begin with the setting and its value."""


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in INVALID.items() for text in texts])
async def test_an_invalid_setting_is_refused(environment: pytest.MonkeyPatch, name: str, text: str) -> None:
    environment.setenv(name, text)
    with pytest.raises(ValueError, match=SAID.get(name, f"^{name}={re.escape(repr(text))}: ")):
        await (store if "_STORE_" in name else checkpointer)().__aenter__()


async def test_a_missing_url_is_refused(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("REDIS_URL")
    with pytest.raises(ValueError, match=SAID["REDIS_URL"]):
        await checkpointer().__aenter__()


@pytest.mark.parametrize(("text", "meant"), [("true", True), ("True", True), ("false", False), ("FALSE", False)])
async def test_refresh_on_read_accepts_true_and_false(environment: pytest.MonkeyPatch, text: str, meant: bool) -> None:
    environment.setenv("REDIS_SAVER_REFRESH_ON_READ", text)
    async with checkpointer() as saver:
        assert saver._context.expiry == (None, meant)


async def test_the_server_is_checked_at_startup(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(redis.ConnectionError):
        await checkpointer().__aenter__()
    environment.setenv("REDIS_URL", url_of("redis"))
    environment.setattr(clients, "OLDEST", {"redis": (99, 0), "valkey": (99, 0)})
    with pytest.raises(UnsupportedServer, match=r"needs \w+ 99\.0"):
        await checkpointer().__aenter__()


# -- a server


class AgentServer:
    """`langgraph dev` on tests/integration/agent, in its own folder and offline."""

    def __init__(self, folder: Path, **environment: str) -> None:
        shutil.copytree(
            Path(__file__).parent / "agent", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LANG", "REDIS_", "N_JOBS", "BG_JOB"))}
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        command = [
            sys.executable, "-m", "langgraph_cli", "dev", "--config", "langgraph.json", "--port", str(port),
            "--no-browser", "--no-reload", "--n-jobs-per-worker", "10",
        ]  # fmt: skip
        offline = dict(LANGSMITH_TRACING="false", LANGGRAPH_CLI_NO_ANALYTICS="1", LANGGRAPH_NO_VERSION_CHECK="true")
        settings = {**kept, **offline, "LOG_JSON": "true", "NO_PROXY": "*", **environment}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=settings, stdout=log, stderr=log)

    def wait(self) -> AgentServer:
        """Wait until the server answers."""
        deadline = time.monotonic() + 200
        with httpx.Client(trust_env=False) as client:
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    if client.get(f"{self.url}/ok").status_code == 200:
                        return self
                except httpx.TransportError:
                    time.sleep(0.05)
        self.stop()
        raise AssertionError(f"the Agent Server did not come up: {self.log()}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def complaints(self) -> list[dict[str, Any]]:
        """Return the logged errors, and warnings of methods that the checkpointer lacks."""
        mild = ("debug", "info", "warning")
        return [
            record
            for record in self.records()
            if record["level"] not in mild or "exception" in record or "checkpointer missing" in record["event"]
        ]


class App:
    """An application's client of a server, and our view of its Redis."""

    def __init__(self, server: AgentServer, client: LangGraphClient, saver: RedisSaver) -> None:
        self.server, self.client, self.saver = server, client, saver
        self.raw = redis.Redis.from_url(url_of("redis"))

    async def thread(self, *turns: str) -> str:
        """Create a thread and play some turns; return its id."""
        thread = str((await self.client.threads.create())["thread_id"])
        for text in turns:
            await self.say(thread, text)
        return thread

    async def say(self, thread: str, text: str, **options: Any) -> list[str]:
        """Play a turn; return all messages after it."""
        return contents(await self.client.runs.wait(thread, "chat", input=human(text), **options))

    async def history(self, thread: str, **options: Any) -> list[Any]:
        return list(await self.client.threads.get_history(thread, limit=100, **options))

    async def copy(self, thread: str) -> str:
        copied: Any = await self.client.threads.copy(thread)  # type: ignore[func-returns-value]
        return str(copied["thread_id"])

    async def messages(self, thread: str) -> list[str]:
        state: Any = await self.client.threads.get_state(thread)
        return contents(state["values"])

    def stored(self, thread: str, **options: Any) -> list[Any]:
        """Return the thread's checkpoints in Redis."""
        return list(self.saver.list({"configurable": {"thread_id": thread}}, **options))

    def keys(self, part: str) -> list[bytes]:
        """Return all keys with a part, such as a thread's id, in their name."""
        return list(self.raw.scan_iter(match=f"*{part}*", count=1000))


def human(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def contents(values: Any) -> list[str]:
    return [message["content"] for message in values["messages"]]


def ids(states: list[Any]) -> list[str]:
    return [state["checkpoint"]["checkpoint_id"] for state in states]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.025)
    raise AssertionError("it did not come to that within fifty seconds")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    if sys.version_info < (3, 11):
        pytest.skip(WHY)
    prefix = f"agent{os.getpid()}"
    made = AgentServer(tmp_path_factory.mktemp("agent"), REDIS_URL=url_of("redis"), REDIS_SAVER_PREFIX=prefix)
    try:
        yield made.wait()
    finally:
        made.stop()


@pytest.fixture
async def app(server: AgentServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("NO_PROXY", "*")
    with RedisSaver.from_conn_string(url_of("redis"), prefix=f"agent{os.getpid()}") as saver:
        async with get_client(url=server.url, api_key=None) as client:
            yield App(server, client, saver)


async def test_the_history_matches_the_stored_checkpoints(app: App) -> None:
    thread = await app.thread("one", "two")
    assert await app.say(thread, "three") == ["one", "echo: one", "two", "echo: two", "three", "echo: three"]
    history = await app.history(thread)
    assert ids(history) == [found.config["configurable"]["checkpoint_id"] for found in app.stored(thread)]
    assert [state["metadata"]["step"] for state in history] == list(range(7, -2, -1))
    assert [state["parent_checkpoint"]["checkpoint_id"] for state in history[:-1]] == ids(history)[1:]
    # langgraph_api takes a `before` by POST only in a form that no saver understands (error 500). By GET it works.
    page: dict[str, str | int] = {"before": ids(history)[4], "limit": 2}
    assert ids(await app.client.http.get(f"/threads/{thread}/history", params=page)) == ids(history)[5:7]
    assert ids(await app.history(thread, metadata={"source": "input"})) == ids(history)[2::3]
    middle = await app.client.threads.get_state(thread, checkpoint=history[3]["checkpoint"])
    assert contents(middle["values"]) == ["one", "echo: one", "two", "echo: two"]
    assert len(app.keys(thread)) == 2


async def test_the_inspector_runs_next_to_the_servers_own_routes(app: App) -> None:
    """The inspector is mounted by `http.app` in `langgraph.json`."""
    thread = await app.thread("one")
    async with httpx.AsyncClient(base_url=app.server.url, follow_redirects=True, trust_env=False) as client:
        assert (await client.get("/inspect/")).status_code == 403
        shown = await client.get("/inspect/thread", params={"id": thread, "token": "a-token"})
        assert shown.status_code == 200 and f'href="/inspect/checkpoint?thread={thread}"' in shown.text
        assert "echo: one" in (await client.get("/inspect/checkpoint", params={"thread": thread})).text


async def test_the_store_works_over_http(app: App) -> None:
    items = app.client.store
    for user in ("1", "10", "2"):
        await items.put_item(["users", user], key="profile", value={"name": f"user {user}", "age": int(user)})
    found: Any = await items.get_item(["users", "10"], key="profile")
    assert found["value"] == {"name": "user 10", "age": 10}
    assert [one["namespace"] for one in (await items.search_items(["users", "1"]))["items"]] == [["users", "1"]]
    old = await items.search_items(["users"], filter={"age": {"$gt": 1}}, limit=10)
    assert [one["value"]["age"] for one in old["items"]] == [2, 10]  # newest first
    listed = await items.list_namespaces(prefix=["users"])
    assert listed["namespaces"] == [["users", user] for user in ("1", "10", "2")]
    with RedisStore.from_conn_string(url_of("redis"), prefix=f"agent{os.getpid()}") as ours:
        assert ours.get(("users", "2"), "profile").value == {"name": "user 2", "age": 2}  # type: ignore[union-attr]
        for user in ("1", "10", "2"):
            await items.delete_item(["users", user], key="profile")
        assert ours.search(("users",)) == []
    assert await items.get_item(["users", "2"], key="profile") is None


async def test_a_node_can_use_the_store(app: App) -> None:
    thread = await app.thread("hello")
    assert (await app.say(thread, "remember"))[-1] == "I know 1"
    found: Any = await app.client.store.get_item(["memories", "chat"], key="last")
    assert found["value"] == {"said": "hello"}


async def test_a_run_can_fork_from_an_old_checkpoint(app: App) -> None:
    thread = await app.thread("one", "two")
    before = await app.history(thread)
    after_one = before[3]["checkpoint"]
    assert await app.say(thread, "other", checkpoint=after_one) == ["one", "echo: one", "other", "echo: other"]
    assert await app.messages(thread) == ["one", "echo: one", "other", "echo: other"]
    history = await app.history(thread)
    assert ids(history)[3:] == ids(before)
    assert history[2]["parent_checkpoint"]["checkpoint_id"] == after_one["checkpoint_id"]
    assert history[3]["values"] == before[0]["values"]


async def test_state_updates_apply_to_the_newest_and_to_old_checkpoints(app: App) -> None:
    thread = await app.thread("one")
    before = await app.history(thread)
    updated: Any = await app.client.threads.update_state(thread, {"turns": 40}, as_node="reply")
    state: Any = await app.client.threads.get_state(thread)
    assert updated["checkpoint"]["checkpoint_id"] == state["checkpoint"]["checkpoint_id"]
    assert (state["values"]["turns"], state["metadata"]["source"]) == (40, "update")
    await app.say(thread, "two")
    state = await app.client.threads.get_state(thread)
    assert state["values"]["turns"] == 41
    forked = await app.client.threads.update_state(
        thread, human("edited"), as_node="__start__", checkpoint=before[0]["checkpoint"]
    )
    there = await app.client.threads.get_state(thread, checkpoint=forked["checkpoint"])
    assert (contents(there["values"]), there["next"]) == (["one", "echo: one", "edited"], ["reply"])
    assert contents(await app.client.runs.wait(thread, "chat", checkpoint=forked["checkpoint"]))[-1] == "echo: edited"


async def test_an_interrupted_run_can_be_resumed(app: App) -> None:
    thread = await app.thread("one")
    question = {"question": "sure?"}
    stopped: Any = await app.client.runs.wait(thread, "chat", input=human("ask"))
    assert [interrupt["value"] for interrupt in stopped["__interrupt__"]] == [question]
    state: Any = await app.client.threads.get_state(thread)
    assert state["next"] == ["ask"]
    assert [interrupt["value"] for task in state["tasks"] for interrupt in task["interrupts"]] == [question]
    resumed = await app.client.runs.wait(thread, "chat", command={"resume": "yes"})
    assert contents(resumed) == ["one", "echo: one", "ask", "answer: yes"]
    assert (await app.client.threads.get_state(thread))["next"] == []


async def test_a_copied_thread_is_independent(app: App) -> None:
    source = await app.thread("one", "ask")
    before, stored = await app.history(source), app.stored(source)
    target = await app.copy(source)
    there = await app.history(target)
    assert [(state["values"], state["next"], state["created_at"]) for state in there] == [
        (state["values"], state["next"], state["created_at"]) for state in before
    ]
    assert ids(there) == ids(before)
    assert {state["metadata"]["thread_id"] for state in there} == {target}
    assert {state["checkpoint"]["thread_id"] for state in there} == {target}
    resumed = await app.client.runs.wait(target, "chat", command={"resume": "yes"})
    assert contents(resumed)[-1] == "answer: yes"
    assert await app.history(source) == before
    assert app.stored(source) == stored
    await app.client.threads.delete(source)
    assert app.keys(source) == []
    assert await app.messages(target) == ["one", "echo: one", "ask", "answer: yes"]


async def test_rollback_leaves_no_checkpoint_of_the_run(app: App) -> None:
    thread = await app.thread("one")
    before = await app.history(thread)
    run = await app.client.runs.create(thread, "chat", input=human("slow"))
    of_run = {"run_id": run["run_id"]}
    await until(lambda: len(app.stored(thread, filter=of_run)) == 2)
    assert await app.say(thread, "two", multitask_strategy="rollback") == ["one", "echo: one", "two", "echo: two"]
    assert app.stored(thread, filter=of_run) == []
    history = await app.history(thread)
    assert ids(history)[3:] == ids(before)
    assert history[2]["parent_checkpoint"]["checkpoint_id"] == ids(before)[0]
    assert run["run_id"] not in [one["run_id"] for one in await app.client.runs.list(thread)]


async def test_cancelling_with_rollback_restores_the_thread(app: App) -> None:
    thread = await app.thread("one")
    before, stored = await app.history(thread), app.stored(thread)
    run = await app.client.runs.create(thread, "chat", input=human("slow"))
    await until(lambda: len(app.stored(thread)) == len(stored) + 2)
    await app.client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    await until(lambda: app.stored(thread) == stored)
    assert await app.history(thread) == before


async def test_a_stateless_run_leaves_no_key(app: App) -> None:
    before = set(app.keys(app.saver._context.keyspace.prefix))
    assert contents(await app.client.runs.wait(None, "chat", input=human("one"))) == ["one", "echo: one"]
    assert set(app.keys(app.saver._context.keyspace.prefix)) == before


async def test_prune_deletes_whole_threads(app: App) -> None:
    gone, kept = await asyncio.gather(app.thread("one"), app.thread("two"))
    assert await app.client.threads.prune([gone], strategy="delete") == {"pruned_count": 1}
    assert app.keys(gone) == []
    assert await app.messages(kept) == ["two", "echo: two"]


async def test_pruning_history_works_or_is_refused(app: App) -> None:
    """`langgraph dev` refuses keep_latest without calling the checkpointer; other Agent Servers may support it."""
    thread = await app.thread("one")
    before = await app.history(thread)
    try:
        await app.client.threads.prune([thread], strategy="keep_latest")
    except httpx.HTTPStatusError as refused:
        assert "not supported in in-memory runtime" in refused.response.text
        assert await app.history(thread) == before
    else:
        assert ids(await app.history(thread)) == ids(before)[:1]
    assert await app.say(thread, "two") == ["one", "echo: one", "two", "echo: two"]


async def test_concurrent_threads_stay_separate(app: App) -> None:
    async def chat(number: int) -> list[str]:
        return await app.messages(await app.thread(f"{number}/1", f"{number}/2"))

    chats = await asyncio.gather(*(chat(number) for number in range(20)))
    assert chats == [[f"{n}/1", f"echo: {n}/1", f"{n}/2", f"echo: {n}/2"] for n in range(20)]


def test_the_log_names_our_checkpointer_and_has_no_errors(server: AgentServer) -> None:
    """Last test, so that it sees the log of all tests above."""
    assert "Using custom checkpointer: AsyncRedisSaver" in [record["event"] for record in server.records()]
    assert server.complaints() == []
    assert "Traceback" not in server.log()


# -- servers with other settings


@needs_agent_server
async def test_encryption_and_ttl_work_with_a_loop_per_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"agent-aes{os.getpid()}"
    settings = {"REDIS_URL": url_of("redis"), "REDIS_SAVER_PREFIX": prefix, "LANGGRAPH_AES_KEY": KEY}
    server = AgentServer(tmp_path, **settings, REDIS_SAVER_TTL="90m30s", BG_JOB_ISOLATED_LOOPS="true")
    monkeypatch.setenv("NO_PROXY", "*")
    try:
        server.wait()
        with RedisSaver.from_conn_string(url_of("redis"), prefix=prefix) as saver:
            async with get_client(url=server.url, api_key=None) as client:
                app = App(server, client, saver)
                thread = await app.thread("a secret")
                assert await app.say(thread, "two") == ["a secret", "echo: a secret", "two", "echo: two"]
                keys = app.keys(thread)
                assert len(keys) == 2
                assert timedelta(minutes=90) < saver.get_thread_ttl(thread) <= timedelta(minutes=90.5)  # type: ignore[operator]
                assert all(app.raw.pttl(key) > 0 for key in keys)
                assert b"secret" not in b"".join(app.raw.dump(key) or b"" for key in keys)
                assert server.complaints() == []
    finally:
        server.stop()


@needs_agent_server
def test_a_server_without_a_url_fails_with_the_reason(tmp_path: Path) -> None:
    server = AgentServer(tmp_path)
    try:
        assert server.process.wait(250) != 0
    finally:
        server.stop()
    assert "REDIS_URL is not set" in server.log()


# -- how the Agent Server sees the class

PROGRAM = """
import asyncio, dataclasses, json
from langgraph.checkpoint.base import empty_checkpoint
from langgraph_api._checkpointer import _adapter
from redis_saver import AsyncRedisSaver
from redis_saver.agent_server import checkpointer

THREAD = {"configurable": {"thread_id": "t"}}
START = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

class Own(_adapter._CustomCheckpointerAdapter):
    async def aget_delta_channel_history(self, *, config, channels):
        return "its own"

class Other(_adapter.BaseCheckpointSaver):
    def __init__(self, saver, _):
        self.saver = saver
        super().__init__()

    async def aget_tuple(self, config):
        return await self.saver.aget_tuple(config)

def capabilities(of):
    return _adapter.CheckpointerCapabilities.from_type(of)

async def left_by(strategy):
    async with AsyncRedisSaver.from_conn_string("memory://") as saver:
        adapter, where = adapters(saver, capabilities(type(saver))), START
        for step in range(3):
            where = await adapter.aput(where, empty_checkpoint(), {"source": "loop", "step": step}, {})
        await adapter.aprune(["t"], strategy=strategy)
        found = len([found async for found in adapter.alist(THREAD)])
        await saver.adelete_thread("t")
        return found

async def history(kind, by):
    _adapter._CustomCheckpointerAdapter = kind
    async with (checkpointer() if by == "factory" else AsyncRedisSaver.from_conn_string("memory://")) as saver:
        calls = []
        def called(name):
            inner = getattr(saver, name)
            async def call(*args, **given):
                calls.append(name)
                return await inner(*args, **given)
            setattr(saver, name, call)
        adapter, where = kind(saver, capabilities(type(saver))), START
        for step in range(9):
            where = await saver.aput(where, empty_checkpoint(), {"source": "loop", "step": step}, {})
            await saver.aput_writes(where, [("log", step)], "task")
        called("aget_tuple")
        called("aget_delta_channel_history")
        found = await adapter.aget_delta_channel_history(config=where, channels=["log"])
        return found if isinstance(found, str) else [value for *_, value in found["log"]["writes"]], len(calls)

adapters = _adapter._CustomCheckpointerAdapter
print(json.dumps({
    "capabilities": dataclasses.asdict(capabilities(AsyncRedisSaver)),
    "left": {strategy: asyncio.run(left_by(strategy)) for strategy in ("keep_latest", "delete_all")},
    "histories": [
        asyncio.run(history(*each))
        for each in ((adapters, "hand"), (Own, "factory"), (Other, "factory"), (adapters, "factory"))
    ],
}))
"""


@needs_agent_server
def test_the_agent_servers_adapter_uses_every_capability(environment: pytest.MonkeyPatch) -> None:
    """It runs in a new process, as importing langgraph_api reads its settings and sets up logging.

    The names of strategies come from `langgraph_grpc_common.conversion.checkpoint.prune_strategy_from_proto`. The
    checkpointer patches an adapter that would walk the ancestors for a delta history, and leaves other adapters alone.
    """
    set_all(environment, DATABASE_URI=":memory:", REDIS_URI="fake", LANGGRAPH_RUNTIME_EDITION="inmem")
    set_all(environment, LANGSMITH_TRACING="false", MIGRATIONS_PATH="__inmem")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    seen = said["capabilities"]
    assert {
        f"has_{name}" for name in ("aget_iter", "adelete_thread", "adelete_for_runs", "acopy_thread", "aprune")
    } <= {*seen}
    assert [name for name, value in seen.items() if value is not True] == []
    assert said["left"] == {"keep_latest": 1, "delete_all": 0}
    by_hand, own, other, passed_on = said["histories"]
    assert own == ["its own", 0]
    assert other == by_hand == [[*range(8)], 9]
    assert passed_on == [[*range(8)], 1]
