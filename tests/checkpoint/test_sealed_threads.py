"""Encryption: keys and their errors, data keys of threads, what is written, and what each call costs."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Send
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.calls import CALLS
from tests.support.counting import Counted, load_scripts
from tests.support.factories import chain, checkpoint, config, put
from tests.support.proxy import Proxy, proxy, through
from tests.support.uniform import KEYS, Target, Uniform, encryption
from tests.support.wrappers import Meanwhile

from redis_saver import DecodeError, KeyMismatch, KeyUnavailable, PlainValueRefused, ThreadBusy
from redis_saver._checkpoint import listing
from redis_saver._engine.requests import Call, Command
from redis_saver.encryption import Encryption, KeyContext, KeyProvider, Keyset, WrappedKey
from redis_saver.telemetry import instrument

pytestmark = [pytest.mark.plain("each of its tests sets encryption= itself"), pytest.mark.also_on(cluster="async")]
SECRET = base64.b64encode(bytes(range(100, 132))).decode()
MARKER = "confidential-marker"
LONG = [f"{MARKER} {number} " * 40 for number in range(30)]


def raw_data(target: Target, thread: str = "thread") -> dict[bytes, bytes]:
    return dict(target.raw.hgetall(f"{target.prefix}:{{{thread}}}:data"))


def saver(target: Target, setting: Encryption | None = None, **options: Any) -> Uniform:
    return target.uniform(encryption=setting or encryption(), **options)


# -- keys


def test_keys_are_read_from_the_environment_and_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = f"2026-11={SECRET},tenant/2={SECRET}\n  tenant/1={SECRET.replace('+', '-').replace('/', '_')}"
    monkeypatch.setenv("REDIS_SAVER_KEYS", text)
    (tmp_path / "keys").write_text(text.replace(",", "\n"))
    context = KeyContext("prefix", "thread", "name")
    for keys in (Keyset.from_env(), Keyset.from_file(tmp_path / "keys"), Keyset.parse(text, "text")):
        assert keys.primary == "2026-11"
        for name, key_id in ((None, "2026-11"), ("tenant", "tenant/2"), ("tenant/1", "tenant/1")):
            wrapped = keys.wrap(bytes(32), context, name)
            assert wrapped.key_id == key_id
            assert keys.unwrap(wrapped, context) == bytes(32)


@pytest.mark.parametrize(
    "text",
    ["", SECRET, f"a={SECRET}!", f"={SECRET}", f"a={SECRET[:8]}", f"a={SECRET} b={SECRET[:-3]}é", f"a\0={SECRET}", "a"],
)
def test_errors_about_keys_show_none(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_KEYS", text.replace("\0", "\x01"))
    (tmp_path / "keys").write_text(text)
    for read in (lambda: Keyset.from_env("MY_KEYS"), lambda: Keyset.from_file(tmp_path / "keys")):
        with pytest.raises(ValueError) as error:
            read()
        assert "MY_KEYS" in str(error.value) or str(tmp_path) in str(error.value)
        for shown in (str(error.value), repr(error.value.__cause__)):
            assert SECRET[:8] not in shown
            assert repr(base64.b64decode(SECRET))[2:10] not in shown


def test_the_environment_variable_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_SAVER_KEYS", raising=False)
    with pytest.raises(ValueError, match="REDIS_SAVER_KEYS is not set"):
        Keyset.from_env()


@pytest.mark.parametrize(
    "keys", [None, {}, {"": bytes(32)}, {"a b": bytes(32)}, {"a": b"short"}, {"a": "x" * 32}, {1: bytes(32)}]
)
def test_a_keyset_needs_ids_and_long_keys(keys: Any) -> None:
    with pytest.raises(ValueError, match="Keyset"):
        Keyset(keys)


def test_the_setting_takes_a_provider() -> None:
    with pytest.raises(TypeError, match="write a Keyset"):
        Encryption(KEYS)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="cache_seconds"):
        encryption(cache_seconds=-1)
    for wrong in ("", ["tenant-7"]):
        with pytest.raises(TypeError, match="write a name, or a function"):
            encryption(key_for=wrong)


def test_a_wrapped_key_opens_only_for_its_thread() -> None:
    keys, context = Keyset(KEYS), KeyContext("prefix", "thread", "name")
    wrapped = keys.wrap(bytes(32), context, None)
    for other in (context._replace(prefix="pref"), context._replace(kind="store"), context._replace(name="prefixname")):
        with pytest.raises(ValueError, match="changed or moved"):
            keys.unwrap(wrapped, other)
    with pytest.raises(ValueError, match="changed or moved"):
        keys.unwrap(wrapped._replace(data=wrapped.data[:-1]), context)
    with pytest.raises(KeyUnavailable, match="'lost'"):
        keys.unwrap(wrapped._replace(key_id="lost"), context)
    with pytest.raises(KeyUnavailable, match="no key of the name 'nobody'"):
        keys.wrap(bytes(32), context, "nobody")


# -- threads and their data keys


async def test_each_tenant_has_its_key(target: Target) -> None:
    asked: list[Any] = []

    def key_for(thread: str, where: Any) -> str:
        asked.append((thread, where and where["configurable"]["tenant"]))
        return "tenant" if thread == "theirs" else "2026-11"

    uniform = saver(target, encryption(key_for=key_for))
    for thread in ("theirs", "ours"):
        await put(uniform, config(thread, tenant="some"), {"n": 1})
        await put(uniform, config(thread, tenant="some"), {"n": 1})
    assert asked == [("theirs", "some"), ("ours", "some")]
    theirs = Keyset({"tenant": KEYS["tenant"]})
    assert (await saver(target, Encryption(theirs)).get_tuple(config("theirs"))) is not None
    with pytest.raises(KeyUnavailable, match="'2026-11'"):
        await saver(target, Encryption(theirs)).get_tuple(config("ours"))


async def test_a_saver_uses_the_key_that_key_for_names(target: Target) -> None:
    """It goes on with the thread where another saver began it."""
    uniform = saver(target, encryption(key_for="tenant"))
    where = await put(uniform, config(), {"n": 1})
    assert (await uniform.key_status()).threads == {"tenant": 1}
    await put(saver(target), where, {"n": 2})
    with pytest.raises(KeyUnavailable, match="'tenant'"):
        await saver(target, Encryption(Keyset({"2026-11": KEYS["2026-11"]}))).get_tuple(config())


async def test_an_old_key_still_reads(target: Target) -> None:
    where = await put(saver(target), config(), {"long": LONG})
    rotated = Encryption(Keyset({"2027-01": bytes(32), **KEYS}))
    uniform = saver(target, rotated)
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"long": LONG}
    await put(uniform, where, {"n": 1})
    await put(uniform, config("new"), {"n": 1})
    assert b"2026-11" in raw_data(target)[b"@key"]
    assert b"2027-01" in raw_data(target, "new")[b"@key"]


async def test_without_its_key_a_thread_cannot_be_read(target: Target) -> None:
    where = await put(saver(target), config(), {"n": 1})
    uniform = saver(target, Encryption(Keyset({"2027-01": bytes(32)})))
    for call in calls(uniform, where):
        with pytest.raises(KeyUnavailable, match="cannot be read any more"):
            await call()
    wrong = saver(target, Encryption(Keyset({"2026-11": bytes(32)})))
    with pytest.raises(DecodeError, match="another key has this id"):
        await wrong.get_tuple(config())


NEED_THE_KEY = (
    "get_tuple", "list", "list by metadata", "list all", "history", "writes", "channel_history", "latest_values", "copy_thread",
)  # fmt: skip


def calls(uniform: Uniform, where: Any, *, writes: bool = True) -> list[Callable[[], Any]]:
    """Return calls that need the data key of the thread."""
    names = (*NEED_THE_KEY, *(("put", "put_writes") if writes else ()))
    return [partial(CALLS[name], uniform, where) for name in names]


@pytest.mark.parametrize("is_sealed", [True, False], ids=["plain saver", "plain thread"])
async def test_a_plain_and_an_encrypted_side_refuse_each_other(target: Target, is_sealed: bool) -> None:
    writer, other = (saver(target), target.uniform()) if is_sealed else (target.uniform(), saver(target))
    first = await put(writer, config(), {"n": 1, "long": LONG})
    where = await put(writer, first, {"n": 2, "long": LONG})
    for each in (where, first):
        await writer.put_writes(each, [("n", 1)], "task")
    before, keys = raw_data(target), target.keys()
    for call in calls(other, where):
        with pytest.raises((DecodeError if is_sealed else PlainValueRefused, KeyMismatch), match="encryption="):
            await call()
    assert (raw_data(target), target.keys()) == (before, keys)
    if is_sealed:
        report = await other.check("thread")
        assert not report.sound and "encryption=" in str(report.findings)


async def test_a_thread_that_others_replace_twice_during_a_write(target: Target) -> None:
    """The key of the caller does not match, but it does when the caller reads it again."""
    uniform, data = saver(target), f"{target.prefix}:{{thread}}:data"
    where = await put(uniform, config(), {"n": 1})
    own = target.raw.hget(data, "@key")
    target.raw.hset(data, "@key", bytes([own[0] ^ 1]) + own[1:])

    async def restore() -> None:
        target.raw.hset(data, "@key", own)

    Meanwhile(uniform.saver, lambda request: restore if isinstance(request, Command) else None)
    await uniform.put_writes(where, [("n", 2)], "task")
    assert (await uniform.get_tuple(where)).pending_writes == [("task", "n", 2)]


ANEW: dict[str, tuple[Callable[[Uniform, Any], Any], Callable[[Any], Any], Any]] = {
    "put": (lambda uniform, where: put(uniform, where, {"n": 7, "long": LONG}), bool, True),
    "put_writes": (lambda uniform, where: uniform.put_writes(where, [("n", 7)], "task"), bool, False),
    "get_tuple": (lambda uniform, where: uniform.get_tuple(config()), lambda found: found.checkpoint["id"], None),
    "list": (lambda uniform, where: uniform.list(config()), len, 3),
    "prune": (lambda uniform, where: uniform.prune(["thread"]), lambda found: found.checkpoints, 2),
    "copy_thread": (lambda uniform, where: uniform.copy_thread("thread", "copy"), bool, False),
    "check": (lambda uniform, where: uniform.check("thread"), lambda found: found.findings, ()),
    "diff": (lambda uniform, where: uniform.diff("thread", where["configurable"]["checkpoint_id"]), bool, True),
    "history": (
        lambda uniform, where: uniform.get_delta_channel_history(config=where, channels=["n"]),
        lambda found: found["n"]["seed"], 1,
    ),
    "latest_values": (
        lambda uniform, where: uniform.latest_values("n", thread_ids=["thread"]),
        lambda found: [one.value for one in found], [2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", ANEW)
async def test_a_thread_that_another_process_made_anew(target: Target, method: str) -> None:
    """This process still has the data key, and possibly the chunks, of the thread that was deleted."""
    uniform, other = saver(target), saver(target)
    await put(uniform, config(), {"long": LONG})
    await uniform.get_tuple(config())
    await other.delete_thread("thread")
    where = (await chain(other, "thread", 3))[-1]
    call, result, expected = ANEW[method]
    found = await call(uniform, where)
    assert result(found) == (where["configurable"]["checkpoint_id"] if method == "get_tuple" else expected)
    for reader in (uniform, other, saver(target)):
        assert await reader.get_tuple(config()) is not None
        assert (await reader.check("thread")).sound
    assert len(await uniform.list(config("copy"))) == (3 if method == "copy_thread" else 0)


async def test_a_list_whose_thread_is_replaced_between_two_pages_ends_with_an_error(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin again, as the caller has the first page."""
    monkeypatch.setattr(listing, "CHECKPOINTS_PER_PAGE", 2)
    uniform, other = saver(target), saver(target)
    for number in range(4):
        await put(uniform, config(), {"n": number}, checkpoint_id=str(number))
    pages = list[Any]()

    async def replace() -> None:
        await other.delete_thread("thread")
        await put(other, config(), {"n": 0}, checkpoint_id="0")

    def before(request: Any) -> Any:
        is_page = isinstance(request, Call) and request.script.name == "list"
        pages.extend([request] * is_page)
        return replace if is_page and len(pages) == 2 else None

    Meanwhile(uniform.saver, before)
    with pytest.raises(ThreadBusy, match="thread 'thread' was replaced between two pages of its results"):
        await uniform.list(config())
    assert len(pages) == 2


async def test_a_deleted_thread_is_gone_for_a_process_with_its_key(target: Target) -> None:
    uniform = saver(target)
    where = await put(uniform, config(), {"n": 1})
    await saver(target).delete_thread("thread")
    assert await uniform.get_tuple(config()) is None
    assert await uniform.list(config()) == []
    await uniform.put_writes(where, [("n", 1)], "task")
    await put(uniform, config(), {"n": 2})
    assert (await saver(target).get_tuple(config())).checkpoint["channel_values"] == {"n": 2}


async def test_two_processes_create_a_thread_at_once(target: Target) -> None:
    for write in (
        lambda uniform: put(uniform, config(), {"n": 2, "long": LONG}, checkpoint_id="2"),
        lambda uniform: uniform.put_writes(config(checkpoint_id="1"), [("n", 2)], "task"),
    ):
        uniform, other = saver(target), saver(target)
        begun = []

        def before(request: Any) -> Any:
            if isinstance(request, Call) and not begun:
                begun.append(request)
                return lambda: put(other, config(), {"n": 1, "long": LONG}, checkpoint_id="1")
            return None

        Meanwhile(uniform.saver, before)
        await write(uniform)
        assert begun
        for reader in (uniform, other, saver(target)):
            assert await reader.get_tuple(config(checkpoint_id="1")) is not None
            assert (await reader.check("thread")).sound
        await other.delete_thread("thread")


@pytest.mark.parametrize("target_name", ["redis"])
async def test_lost_replies_of_the_first_put(target: Target, proxy: Proxy) -> None:
    load_scripts(target.raw)
    for marker in (b"HGET", b"EVALSHA"):
        away = through(proxy, target, retries=1, encryption=encryption())
        proxy.lose_reply(marker)
        await away.put_writes(await put(away, config(), {"n": 1, "long": LONG}), [("n", 1)], "task")
        assert proxy.lost == 1
        saved = await saver(target).get_tuple(config())
        assert saved.checkpoint["channel_values"] == {"n": 1, "long": LONG}
        assert (await saver(target).check("thread")).sound
        await away.delete_thread("thread")


async def test_a_put_that_is_sent_again_has_the_same_bytes(target: Target) -> None:
    uniform, other = saver(target), saver(target)
    made = checkpoint({"n": 1, "long": LONG, "none": None, "empty": b""})
    before: Any = None
    for one in (uniform, other, uniform):
        await one.put(config(), made, {"step": 1}, made["channel_versions"])
        await one.put_writes(config(checkpoint_id=made["id"]), [("n", 1), ("long", LONG), ("__error__", "x")], "task")
        data = {name: stored for name, stored in raw_data(target).items() if name[:1] != b"@"}
        assert before is None or data == before
        before = data
    assert (await other.get_tuple(config())).checkpoint == made


async def test_a_copy_shares_no_header_and_no_writes_with_its_source(target: Target) -> None:
    uniform = saver(target)
    where = await put(uniform, config(), {"n": 1, "long": LONG})
    await uniform.put_writes(where, [("n", 1), ("__error__", "x")], "task")
    await uniform.copy_thread("thread", "copy")
    copied = (await saver(target).get_tuple(config("copy"))).checkpoint
    assert copied == (await saver(target).get_tuple(config())).checkpoint
    source, copy = raw_data(target), raw_data(target, "copy")
    assert source[b"@key"][:16] != copy[b"@key"][:16]
    names = {name for name in source if name[:1] in b"cw"}
    assert len(names) == 3
    for name in [*names, b"@key"]:
        assert source[name] != copy[name]
        target.raw.hset(f"{target.prefix}:{{thread}}:data", name, copy[name])
        with pytest.raises(DecodeError):
            await saver(target).get_tuple(config())
        target.raw.hset(f"{target.prefix}:{{thread}}:data", name, source[name])
    await put(uniform, config("copy"), {"n": 2})
    assert (await saver(target).check("copy")).sound


# -- providers


class Counting(KeyProvider):
    """A provider that counts, and fails on demand."""

    def __init__(self) -> None:
        self.keys, self.calls, self.error = Keyset(KEYS), list[str](), None

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        return self._called("wrap") or self.keys.wrap(data_key, context, name)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        return self._called("unwrap") or self.keys.unwrap(wrapped, context)

    def _called(self, name: str) -> Any:
        self.calls.append(name)
        if self.error:
            raise self.error

    def take(self) -> list[str]:
        taken, self.calls = self.calls, []
        return taken


class Asynchronous(Counting):
    async def awrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        await asyncio.sleep(0)
        self.calls.append("awrap")
        return self.keys.wrap(data_key, context, name)

    async def aunwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        await asyncio.sleep(0)
        self.calls.append("aunwrap")
        return self.keys.unwrap(wrapped, context)


async def test_a_provider_is_asked_once_for_each_thread_and_process(target: Target) -> None:
    provider = Counting()
    uniform = saver(target, Encryption(provider))
    for thread in ("thread", "other"):
        (where, *_) = await chain(uniform, thread, 5)
        await uniform.put_writes(where, [("n", 1)], "task")
        await uniform.list(config(thread))
    assert provider.take() == ["wrap", "wrap"]
    uniform = saver(target, Encryption(provider))
    for _ in range(3):
        for call in calls(uniform, where):
            await call()
    # Each copy has a data key of its own.
    assert sorted(provider.take()) == ["unwrap"] * 2 + ["wrap"] * 3


async def test_the_provider_is_asked_again_after_a_while(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, now = Counting(), [time.monotonic()]
    monkeypatch.setattr("redis_saver._storage.keys.time.monotonic", lambda: now[0])
    monkeypatch.setattr("redis_saver._storage.sealing.time.monotonic", lambda: now[0])
    uniform = saver(target, Encryption(provider, cache_seconds=60))
    where = await put(uniform, config(), {"n": 1})
    now[0] += 59
    await uniform.get_tuple(config())
    assert provider.take() == ["wrap"]
    now[0] += 2
    for call in calls(uniform, where, writes=True)[:2]:
        await call()
    assert provider.take() == ["unwrap"]
    now[0] += 61
    provider.error = KeyUnavailable("the tenant's key was destroyed")
    for call in calls(uniform, where):
        with pytest.raises(KeyUnavailable, match="destroyed"):
            await call()


async def test_asyncio_uses_the_async_forms_of_a_provider(target: Target) -> None:
    provider = Asynchronous()
    for _ in range(2):
        await put(saver(target, Encryption(provider)), config(), {"n": 1})
    is_async = target.flavour == "async"
    assert provider.take() == (["awrap", "aunwrap"] if is_async else ["wrap", "unwrap"])


async def test_errors_of_a_provider_pass_unchanged(target: Target) -> None:
    where = await put(saver(target), config(), {"n": 1})
    provider = Counting()
    for error in (ConnectionError("KMS is down"), RuntimeError("throttled"), KeyUnavailable("gone")):
        provider.error = error
        uniform = saver(target, Encryption(provider))
        for call in calls(uniform, where):
            with pytest.raises(type(error)) as raised:
                await call()
            assert raised.value is error
        with pytest.raises(type(error)):
            await put(uniform, config("new"), {"n": 1})
    assert not raw_data(target, "new")


# -- costs


@pytest.mark.parametrize("target_name", ["redis"])
async def test_one_more_round_trip_for_each_thread_and_process(target: Target) -> None:
    load_scripts(target.raw)
    for _ in range(2):
        counted = Counted(target.client())
        uniform = saver(target, client=counted.client)
        where = await put(uniform, config(), {"n": 1, "long": LONG})
        assert counted.take() == ["HGET", "EVALSHA"]
        for number in range(3):
            where = await put(uniform, where, {"n": number, "long": [*LONG, "more"]})
            await uniform.put_writes(where, [("n", 1)], "task")
            await uniform.get_tuple(config())
            await uniform.list(config())
            await uniform.get_delta_channel_history(config=where, channels=["n"])
        assert set(counted.take()) == {"EVALSHA"}
        assert len(counted.sent) == 0


# -- what is visible


@pytest.mark.parametrize("target_name", ["redis"])
async def test_nothing_that_was_put_is_visible(target: Target, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    proxy.seen = bytearray()
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    away = through(proxy, target, encryption=encryption())
    instrument(away.saver, tracer_provider=provider)
    values = {"text": MARKER, "long": LONG, "__pregel_tasks": [Send("node", {"long": LONG})]}
    metadata = {"source": "loop", "step": 1, "parents": {}, "note": MARKER}
    first = await put(away, config(), {"n": 1, "long": LONG}, metadata=metadata)
    where = await put(away, first, values, metadata=metadata)
    writes = [("n", MARKER), ("long", LONG), ("__error__", MARKER), ("__pregel_tasks", Send("node", {"long": LONG}))]
    for each in (first, where):
        await away.put_writes(each, writes, "task")
    files = files_of(target)

    errors = list[str]()
    lost = Encryption(Keyset({"2026-11": bytes(32)}))
    others = saver(target), target.uniform(), saver(target, lost)
    for uniform in others:
        instrument(uniform.saver, tracer_provider=provider)
    for uniform in (away, *others):
        errors += [text for call in calls(uniform, where, writes=False) if (text := await error_of(call))]
    key, damaged = f"{target.prefix}:{{thread}}:data", 0
    for name, stored in raw_data(target).items():
        target.raw.hset(key, name, stored[: len(stored) // 2])
        found = [await error_of(call) for call in calls(saver(target), where, writes=False)]
        damaged += any(found)
        errors += found
        target.raw.hset(key, name, stored)
    assert damaged > 10
    shown = {"network": bytes(proxy.seen), "log": caplog.text.encode(), "errors": "".join(errors).encode(), **files}
    shown["hash"] = b"".join(raw_data(target).values())
    finished = spans.get_finished_spans()
    assert not all(span.status.is_ok for span in finished), "errors have spans, too"
    shown["spans"] = "".join(span.to_json() for span in finished).encode()
    for place, data in shown.items():
        assert MARKER.encode() not in data, place
    assert all(b"thread" in shown[place] for place in ("network", "errors", *files))


def files_of(target: Target) -> dict[str, bytes]:
    """Return the contents of the server's RDB and AOF files."""
    server, kept = target.raw, target.raw.config_get("appendonly", "rdbcompression", "save")
    for name, value in {"rdbcompression": "no", "appendonly": "yes"}.items():
        server.config_set(name, value)
    try:
        while any(server.info("persistence")[f"aof_rewrite_{state}"] for state in ("in_progress", "scheduled")):
            time.sleep(0.05)
        server.save()
        folder = Path(server.config_get("dir")["dir"])
        found = [path for path in folder.rglob("*") if path.suffix in (".rdb", ".aof") and path.is_file()]
        return {path.name: path.read_bytes() for path in found if path.stat().st_size > 200}
    finally:
        for name, value in kept.items():
            server.config_set(name, value)


async def error_of(call: Callable[[], Any]) -> str:
    """Return all texts of the error that a call raises, if any."""
    try:
        await call()
    except Exception as error:
        return f"{error!r} {error} {error.__cause__!r} {error.__context__!r}\n"
    return ""
