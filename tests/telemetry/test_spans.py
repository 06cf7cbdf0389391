"""Spans of calls and log lines: which there are, what they contain, and that they have no user data."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.factories import chain, checkpoint, config, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.memory import InMemoryStore
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from redis.asyncio.connection import AbstractConnection
from tests.support.servers import url_of
from tests.support.tiering import flushed_until
from tests.support.uniform import Target, Uniform, over
from tests.support.values import Quoting
from tests.support.wrappers import Around, Meanwhile, fail

from redis_saver import AsyncRedisSaver, AsyncTieredStore, RedisCache, RedisSaver, TieredSaver, TieredStore
from redis_saver._client.clients import connect
from redis_saver._common.logs import SECONDS, ThrottledLog
from redis_saver.encryption import Encryption, Keyset
from redis_saver.telemetry import instrument, log_slow_calls

pytestmark = pytest.mark.parametrize("target_name", ["redis"])
ROOT = Path(__file__).parents[2]


class Spans:
    """A tracer provider, and the spans that ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def take(self) -> list[Any]:
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found


@pytest.fixture
def spans() -> Any:
    made = Spans()
    yield made
    made.provider.shutdown()


async def test_each_call_has_a_span(target: Target, spans: Spans) -> None:
    saver = target.uniform()
    instrument(saver.saver, attributes={"service": "chats"}, tracer_provider=spans.provider)
    where = await put(saver, config("secret-thread"), {"a": "secret-value"})
    await saver.list(where)
    one, other = spans.take()
    assert (one.name, other.name) == ("put checkpoints", "list checkpoints")
    assert one.kind == other.kind == SpanKind.CLIENT
    assert one.status.status_code == StatusCode.UNSET
    assert dict(one.attributes) == {
        "db.system.name": "redis",
        "db.operation.name": "put",
        "db.collection.name": "checkpoints",
        "db.namespace": "0",
        "server.address": "127.0.0.1",
        "server.port": int(target.url.rpartition(":")[2].partition("/")[0]),
        "service": "chats",
    }
    assert "secret" not in one.to_json() + other.to_json()
    assert one.instrumentation_scope.name == "redis_saver"


async def test_spans_of_the_client_are_children_of_the_call(target: Target, spans: Spans) -> None:
    """The caller's own span is the parent of the call, and is current again after it."""
    saver, seen = target.uniform(), list[Any]()
    Meanwhile(saver.saver, lambda _: seen.append(trace.get_current_span().get_span_context()))
    instrument(saver.saver, tracer_provider=spans.provider)
    tracer = spans.provider.get_tracer("test")
    with tracer.start_as_current_span("mine") as mine:
        await saver.get_tuple(config())
        assert trace.get_current_span() is mine
        await saver.list(config())
        assert trace.get_current_span() is mine
    one, stream, _ = spans.take()
    assert one.parent == stream.parent == mine.get_span_context()
    # A stream may continue in another context, so it sets no current span.
    assert seen == [one.context, mine.get_span_context()]


async def test_a_shared_pipeline_has_a_trace_of_its_own(target_name: str, spans: Spans) -> None:
    """Its span and those of its calls link each other. The client's own spans belong to no caller's trace."""
    client = connect(url_of(target_name), asynchronous=True)
    saver, tracer, seen = AsyncRedisSaver(client, prefix="shared"), spans.provider.get_tracer("test"), list[Any]()
    instrument(saver, tracer_provider=spans.provider)
    send = AbstractConnection.send_packed_command

    async def noted(connection: Any, *args: Any, **options: Any) -> None:
        seen.append(trace.get_current_span().get_span_context())
        await send(connection, *args, **options)

    async def request(number: int) -> Any:
        with tracer.start_as_current_span(f"request {number}"):
            return await saver.aget_tuple(config(f"t{number}"))

    await saver.aput(config("t0"), checkpoint({"n": 1}), {}, {"n": "1"})
    spans.take()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", noted)
        write = saver.aput_writes(config("t0", checkpoint_id="x"), [("n", 1)], "task")
        await asyncio.gather(*map(request, range(2)), saver.athreads().__anext__(), write)
        shared, instrumented = spans.take(), saver
        saver = AsyncRedisSaver(client, prefix="shared")
        before = len(seen)
        await asyncio.gather(*map(request, range(2)))
        assert [each.is_valid for each in seen[before:]] == [False], "without spans of ours, the pipeline has no parent"
        saver = instrumented
        spans.take()
    ended = {span.name: span for span in shared}
    batch = ended["BATCH checkpoints"]
    assert batch.parent is None
    assert batch.context in seen
    assert batch.attributes["redis_saver.operations"] == ("get_tuple", "put_writes")
    assert batch.attributes["db.operation.batch.size"] == len(batch.links) == 3
    assert batch.attributes["db.operation.name"] == "BATCH"
    for name in ("get_tuple checkpoints", "put_writes checkpoints"):
        (link,) = ended[name].links
        assert link.context == batch.context
        assert link.attributes["db.operation.batch.size"] == 1
        assert 50 < link.attributes["redis_saver.bytes_sent"] < 500
    await asyncio.gather(*map(request, range(2)))
    assert [span.name for span in spans.take() if span.links][0] == "BATCH get_tuple checkpoints"
    await client.aclose()


async def test_the_span_of_a_failed_call_has_the_error_type(saver: Uniform, spans: Spans) -> None:
    """The error's text is left out."""
    instrument(saver.saver, tracer_provider=spans.provider)
    fail(saver.saver, ConnectionResetError("secret"))
    with pytest.raises(ConnectionResetError):
        await saver.get_tuple(config())
    assert not trace.get_current_span().is_recording()
    (one,) = spans.take()
    assert one.status.status_code == StatusCode.ERROR
    assert one.attributes["error.type"] == "ConnectionResetError"
    assert "secret" not in one.to_json()


@pytest.mark.parametrize("tiers", [False, True])
async def test_threads_are_named_only_on_request(saver: Uniform, spans: Spans, tiers: bool) -> None:
    saver = over(saver, InMemorySaver()) if tiers else saver
    instrument(saver.saver, tracer_provider=spans.provider, thread_ids=True)
    for name in ("a}:b", "", "%", "ä\n"):
        where = await put(saver, config(name), {"a": 1})
        await saver.get_tuple(where)
        await saver.list(where)
        named = [span.attributes["gen_ai.conversation.id"] for span in spans.take()]
        assert named == [name] * 3
    instrument(saver.saver, tracer_provider=spans.provider)
    await saver.get_tuple(where)
    (one,) = spans.take()
    assert "gen_ai.conversation.id" not in one.attributes, "the last call of instrument counts, and there is one span"


async def test_two_providers_both_get_spans(target: Target, spans: Spans) -> None:
    other, saver = Spans(), target.uniform()
    for each in (spans, other):
        instrument(saver.saver, tracer_provider=each.provider)
    instrument(saver.saver)
    await saver.get_tuple(config())
    assert [len(each.take()) for each in (spans, other)] == [1, 1]
    other.provider.shutdown()


async def test_slow_calls_are_logged(saver: Uniform, caplog: pytest.LogCaptureFixture) -> None:
    log_slow_calls(saver.saver, 0)
    where = await put(saver, config("secret"), {"a": "secret"})
    log_slow_calls(saver.saver, 3600)
    await saver.get_tuple(where)
    log_slow_calls(saver.saver, 0, thread_ids=True)
    await saver.get_tuple(config("a\nb"))
    log_slow_calls(saver.saver, None)
    await saver.get_tuple(where)
    assert {record.name for record in caplog.records} == {"redis_saver.telemetry"}
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    put_line, get_line = [
        re.sub(r"T s this process, T s Redis", "T s Redis, T s this process", re.sub(r"\d+\.\d{3} s", "T s", line))
        for line in caplog.messages
    ]
    at, took = f"of checkpoints at {saver.saver._driver.server}", "took T s (T s Redis, T s this process)"
    assert put_line == f"slow: put {at} {took}"
    assert get_line == f"slow: get_tuple {at}, thread 'a\\nb' {took}"


async def test_a_failed_slow_call_is_logged_with_its_error(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    cache = RedisCache[Any](connect("memory://", asynchronous=False), on_error="raise")
    log_slow_calls(cache, 0)
    fail(cache, ConnectionResetError("secret"))
    with pytest.raises(ConnectionResetError):
        cache.clear()
    (line,) = caplog.messages
    assert line.startswith("slow: clear of entries at memory:// took ")
    assert line.endswith(" s this process), and ended with ConnectionResetError") or " s Redis), and ended" in line


class SlowKeys(Keyset):
    def wrap(self, *arguments: Any) -> Any:
        time.sleep(0.3)
        return super().wrap(*arguments)


@pytest.mark.parametrize("slow", ["cold", "Redis", "the provider of keys"])
async def test_a_slow_call_over_two_tiers_names_what_was_slow(target: Target, slow: str, caplog: Any) -> None:
    keys = Encryption(SlowKeys({"a": b"k" * 32})) if slow == "the provider of keys" else None
    hot, cold = target.uniform(encryption=keys) if keys else target.uniform(), InMemorySaver()
    saver = over(hot, cold)
    log_slow_calls(saver.saver, 0)
    if slow == "cold":
        for method in ("get_tuple", "put"):
            right = getattr(cold, method)
            setattr(cold, method, lambda *arguments, right=right: (time.sleep(0.3), right(*arguments))[1])
    if slow == "Redis":

        def delayed(request: Any) -> Any:
            time.sleep(0.3)
            return (yield request)

        Around(hot.saver, delayed)
    await saver.get_tuple(config())  # a miss: one reader asks cold and fills hot
    await put(saver, config(), {"a": 1})
    for line in caplog.messages[1:] if keys else caplog.messages:
        assert re.search(rf" took [\d.]+ s \([\d.]+ s {slow}, ", line), line


@pytest.mark.parametrize("seconds", [-1, "1", True])
def test_wrong_thresholds_are_refused(target_name: str, seconds: Any) -> None:
    saver = RedisSaver(connect("memory://", asynchronous=False))
    with pytest.raises((TypeError, ValueError), match="seconds"):
        log_slow_calls(saver, seconds)
    with pytest.raises(TypeError, match="RedisSaver"):
        log_slow_calls(InMemorySaver(), 1.0)  # type: ignore[arg-type]


def test_a_repeated_line_is_throttled(target_name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redis_saver.test")
    now = 100.0
    log = ThrottledLog("redis_saver.test", lambda: now)
    for number in range(3):
        log.warning("a %d", number)
        log.info("b")
    now += SECONDS - 0.01
    log.warning("a %d", 3)
    assert caplog.messages == ["a 0", "b"]
    now += 0.01
    log.warning("a %d", 4)
    log.warning("a %d", 5)
    assert caplog.messages[2:] == ["a 4 (3 more since the last such line)"]


@pytest.fixture
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log each line, even if an earlier test logged it."""
    monkeypatch.setattr("redis_saver._common.logs.SECONDS", 0.0)


async def test_values_sent_again_after_a_loss_are_logged(target: Target, caplog: Any, unthrottled: None) -> None:
    caplog.set_level(logging.INFO, "redis_saver")
    saver = target.uniform()
    texts = {"a": [f"secret text {number} " * 20 for number in range(20)]}
    where = await put(saver, config("t"), texts)
    await target.uniform().delete_thread("t")
    caplog.clear()
    await saver.put(where, checkpoint({**texts, "b": 1}, {"a": "1", "b": "1"}, "2"), {}, {"b": "1"})
    (record,) = [one for one in caplog.records if one.name == "redis_saver.checkpoint"]
    assert record.levelname == "INFO" and "thread 't'" in record.getMessage()
    assert "secret" not in caplog.text


async def test_repairs_of_hot_are_logged_and_counted(target: Target, caplog: Any, unthrottled: None) -> None:
    both = over(target.uniform(), InMemorySaver())
    last = (await chain(both, "t", 2))[-1]
    await both.get_tuple(last)  # fills hot
    assert target.raw.delete(f"{target.prefix}:{{t}}:data") == 1
    assert await both.get_tuple(last)
    assert both.saver.stats().tiers.repairs == 1
    (record,) = [one for one in caplog.records if one.name == "redis_saver.tiered"]
    assert record.levelname == "WARNING" and "thread 't' was damaged in hot" in record.getMessage()


async def test_decode_errors_are_logged_without_the_value(target_name: str, caplog: Any, unthrottled: None) -> None:
    client, cold = connect("memory://", asynchronous=False), InMemorySaver()
    where = await put(Uniform(TieredSaver(RedisSaver(client), cold)), config("t"), {"a": "hunter2"})
    tiers = TieredSaver(RedisSaver(client, serde=Quoting()), cold)
    for _ in range(2):  # fills hot, and reads it
        found = tiers.get_tuple(where)
        assert found and found.checkpoint["channel_values"] == {"a": "hunter2"}
    assert "was damaged in hot" in caplog.text and "(ValueError)" in caplog.text and "hunter2" not in caplog.text


@pytest.mark.parametrize("flavour", ["sync"])
async def test_records_refused_by_cold_are_logged_without_their_data(
    target: Target, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Postgres cites the data in the details of its errors."""
    with PostgresSaver.from_conn_string(database) as cold:
        saver = target.uniform()
        tiers = Uniform(TieredSaver(saver.saver, cold, mode="write-behind", flusher=False))
        good = await put(tiers, config("t"), {"n": 1})
        metadata = {"source": "loop", "step": 1, "parents": {}, "user": "hunter2", "score": float("nan")}
        refused = await put(tiers, good, {"n": 2}, metadata=metadata)
        await put(tiers, refused, {"n": 3})  # a claim that ends early leaves one to take beside that which is refused
        await flushed_until(tiers, lambda _: "cold refused" in caplog.text)
        assert tiers.saver.stats().tiers.last_error == "InvalidTextRepresentation: invalid input syntax for type json"
        tiers.saver.delete_thread("t")
        tiers.saver.flush()
    assert "cold refused a record of thread 't'" in caplog.text and "hunter2" not in caplog.text


async def test_repairs_of_the_hot_store_are_logged(target: Target, caplog: Any, unthrottled: None) -> None:
    kind: Any = AsyncTieredStore if target.flavour == "async" else TieredStore
    store = Uniform(kind(target.store().saver, InMemoryStore()))
    await store.put(("m", "user"), "k", {"a": "secret value"})
    lost = [key for key in target.keys() if key.endswith(b"user}:order")]
    assert target.raw.delete(*lost) == 1
    await store.put(("m", "user"), "l", {"a": 1})
    assert (await store.get(("m", "user"), "k")).value == {"a": "secret value"}
    assert store.saver.stats().copies.repairs == 1
    (record,) = [one for one in caplog.records if one.name == "redis_saver.tiered_store"]
    assert record.levelname == "WARNING" and record.getMessage().startswith("a part of hot was damaged")
    assert "secret value" not in caplog.text


@pytest.mark.parametrize("flavour", ["async"])
async def test_calls_of_a_failed_pipeline_are_sent_alone_and_logged(
    target: Target, caplog: pytest.LogCaptureFixture, unthrottled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "redis_saver.client")
    client = target.client()
    saver = target.uniform(client=client)
    where = await put(saver, config("secret"), {"a": 1})
    before = saver.saver.stats()

    def broken(**options: Any) -> Any:
        raise redis.ConnectionError("Connection closed by server.")

    with monkeypatch.context() as patched:
        patched.setattr(client, "pipeline", broken)
        found = await asyncio.gather(saver.get_tuple(where), saver.get_tuple(where))
    assert all(found)
    assert saver.saver.stats().retries == before.retries + 2
    (line,) = caplog.messages
    assert line == "a pipeline of 2 calls failed; each is sent again: ConnectionError: Connection closed by server."


def test_each_package_has_one_logger_named_in_the_docs(target_name: str) -> None:
    page, found = (ROOT / "docs" / "metrics.md").read_text(), set[str]()
    for path in (ROOT / "redis_saver").rglob("*.py"):
        room = path.relative_to(ROOT / "redis_saver").parts[0].removesuffix(".py").strip("_")
        for node in ast.walk(ast.parse(path.read_text())):
            makers = ("getLogger", "Log", "ThrottledLog", "_getLogger")
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in makers:
                name = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else None
                if name and name.startswith("redis_saver."):
                    assert name == f"redis_saver.{room}", path
                    found.add(name)
    assert found == set(re.findall(r"^\| `(redis_saver\.\w+)` \|", page, re.MULTILINE))


def test_nothing_is_printed_without_a_logging_setup(target_name: str) -> None:
    text = (
        "import fakeredis\nfrom redis_saver import RedisSaver, telemetry\n"
        "saver = RedisSaver(fakeredis.FakeRedis())\ntelemetry.log_slow_calls(saver, 0)\nsaver.delete_thread('a')\n"
    )
    command = [sys.executable, "-c", text]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=True).stderr == ""
