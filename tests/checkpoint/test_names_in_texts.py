"""User-supplied names in error texts, logs and on the terminal are printable and short."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.factories import config, put
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.growing import outcome
from tests.support.servers import TARGETS, releases, url_of
from tests.support.tiering import flushed_until
from tests.support.uniform import Target, Uniform

from redis_saver import KeyConflict, Limits, NotOwner, RedisSaver, StoreDamaged, ThreadDamaged, TieredSaver
from redis_saver import UnsupportedFormat
from redis_saver._cli.main import main
from redis_saver._client import clients
from redis_saver._common import display, names
from redis_saver._common.names import Keyspace
from redis_saver.errors import RedisSaverError

HOSTILE = {
    "lines": "one\n2026-11-23 CRITICAL root: forged\r\nthree",
    "escape": "\x1b[31m\x1b]0;title\x07\x9b2J",
    "direction": "abc\u202egnp.exe\u2066\u200b",
    "zero": "a\x00b\x7f",
    "separators": "a\u2028b\u2029c\x85d",
    "long": "x" * 500_000,
    "long and hostile": "\n\x1b" * 250_000,
    "surrogate": "a\ud800b\udfff",
    "braces": "{0.__class__} %s %(name)s {",
}
MAX_TEXT = 6_000


def is_fit(text: str) -> bool:
    """True if the text is one printable line of limited length."""
    return text.isprintable() and len(text) <= MAX_TEXT


class Unserializable:
    def __reduce__(self) -> Any:
        raise TypeError("no \n\x1b[31m " + "y" * 500_000)


class Cold(InMemorySaver):
    """A cold saver that refuses pending writes with an error text that forges log lines."""

    def put_writes(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no\n\x1b[31m" + "z" * 500_000)


def texts_of(do: Callable[[], Any]) -> list[str]:
    """Return the text of the raised error, and of our errors among its causes."""
    with pytest.raises((RedisSaverError, ValueError, TypeError)) as caught:
        do()
    error: BaseException | None = caught.value
    found = [str(error)]
    while error := error.__cause__:
        found += [str(error)] * isinstance(error, RedisSaverError)
    return found


@pytest.fixture(params=HOSTILE)
def name(request: pytest.FixtureRequest) -> str:
    return HOSTILE[request.param]


def a_saver(**settings: Any) -> RedisSaver:
    client = clients.connect(f"memory://{uuid4()}", asynchronous=False)
    return RedisSaver(client, limits=Limits(name_bytes=2**21), **settings)


def test_errors_show_names_safely(name: str) -> None:
    """Names that are too long, missing threads, failed encoding or decoding, and wrong settings."""
    saver, here, client = a_saver(), config(name), clients.connect("memory://", asynchronous=False)
    of_channel = lambda value: asyncio.run(put(Uniform(saver), config("t"), {name: value}))  # noqa: E731
    found: list[str] = []
    for do in (
        lambda: saver.pin(name),
        lambda: saver.unpin(name),
        lambda: of_channel(Unserializable()),
        lambda: saver.put_writes(config("t", "", "1"), [(name, Unserializable())], "task"),
        lambda: saver.get_tuple(config("t", [name], 1, x=name)),
        lambda: list(saver.list(None, filter={name: {"$" + name: 1}})),
        lambda: saver.prune([name], strategy=name),
        lambda: RedisSaver(client, compression=name),
        lambda: RedisSaver(client, limits=Limits(channels=name)),
        lambda: RedisSaver(client, ttl={name: 1}),
    ):
        found += texts_of(do)
    small = RedisSaver(client, limits=Limits(name_bytes=4))
    found += texts_of(lambda: asyncio.run(put(Uniform(small), here, {"n": 1})))
    assert all(map(is_fit, found)), found


def test_a_long_name_is_shortened_to_its_beginning_end_and_length() -> None:
    assert display.shown("a" + "x" * 300 + "z") == f"'a{'x' * 99}'...'{'x' * 49}z' (302 characters)"
    assert display.shown(b"a" + b"x" * 300) == f"b'a{'x' * 99}'...b'{'x' * 50}' (301 bytes)"


def test_errors_about_stored_data_show_names_safely(name: str) -> None:
    client = clients.connect(f"memory://{uuid4()}", asynchronous=False)
    saver = RedisSaver(client, limits=Limits(name_bytes=2**21), cache_bytes=0)
    asyncio.run(put(Uniform(saver), config(name), {name: {"v": 1}}))
    index, data = sorted(client.keys("*"), key=lambda key: client.type(key) != b"zset")
    kept = client.hgetall(data)
    found: list[str] = []
    for field in kept:
        client.hset(data, field, b"\xff\x1b\n" * 20)
        try:
            saver.get_tuple(config(name))
        except RedisSaverError as error:
            found.append(str(error))
        client.hset(data, field, kept[field])
    client.delete(index)
    found += texts_of(lambda: saver.get_tuple(config(name)))
    client.set(index, "of another program")
    found += texts_of(lambda: saver.get_tuple(config(name)))
    assert len(found) > 3 and all(map(is_fit, found)), found


def test_logs_and_stats_of_two_tiers_show_names_safely(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Both have cold's reasons for refusing records."""
    saver, name = TieredSaver(a_saver(), Cold(), mode="write-behind", flush_interval=60), name[:200]
    with caplog.at_level(logging.DEBUG, "redis_saver"):
        where = asyncio.run(put(Uniform(saver), config(name), {"n": 1}))
        saver.put_writes(where, [("n", 1)], name)
        asyncio.run(put(Uniform(saver), where, {"n": 2}))  # cold takes that, also if a claim ends early
        asyncio.run(flushed_until(Uniform(saver), lambda _: "cold refused a record of thread" in caplog.text))
        said = [saver.stats().tiers.last_error or ""]
        saver.close(timeout=0.1)
    said += [record.getMessage() for record in caplog.records]
    assert any("cold refused a record of thread" in text for text in said) and len(said) > 2
    assert all(map(is_fit, said)), said


def test_the_command_line_shows_names_safely(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, prefix = url_of("redis"), uuid4().hex
    ours = [url, "--source-prefix", prefix]
    with RedisSaver.from_conn_string(url, prefix=prefix, limits=Limits(name_bytes=2**21)) as saver:
        asyncio.run(put(Uniform(saver), config(name), {"n": 1}))
    handler = "surrogateescape" if "\udfff" not in name else "replace"
    argument = name.replace("\x00", "").encode("utf-8", handler).decode()[:100_000]
    for command in (
        ["export", *ours, str(tmp_path / "file")],
        ["migrate", *ours, f"inmem:{tmp_path}"],
        ["migrate", f"redis://{argument}", f"inmem:{tmp_path}"],
        ["migrate", f"file:{argument}", f"inmem:{tmp_path}"],
        ["migrate", *ours, f"sqlite:{tmp_path}/{argument}/x"],
        ["flush", "--redis", f"redis://{argument}", "--postgres", "postgresql://x"],
        ["demo", "--redis", f"redis://{argument}"],
    ):
        try:
            main(command)
        except ValueError as error:  # raised by the operating system for a zero byte in a path
            raise AssertionError(command) from error
        out, err = capsys.readouterr()
        assert all(map(is_fit, f"{out}\n{err}".split("\n"))), (command[0], out, err)
    with RedisSaver.from_conn_string(url, prefix=prefix) as saver:
        saver.delete_thread(name)


LONG = st.tuples(st.text(min_size=10, max_size=60), st.integers(25, 80)).map(lambda drawn: drawn[0] * drawn[1])


@given(st.text(max_size=50) | LONG, st.sampled_from([display.shown, display.printable]))
def test_displayed_text_is_printable(text: str, show: Callable[[str], str]) -> None:
    said = show(text)
    said.encode()
    assert said.isprintable() and len(said) <= 10 * display.MAX_TEXT
    if show is display.shown and len(text) <= display.MAX_NAME:
        assert eval(said) == text  # a short name can be read back from its text
    assert display.sentence("{!r} and {}", text, "x") == f"{display.shown(text)} and x"


IN_REPLIES = {
    "zero": "a\0b",
    "lines": "a\r\nb",
    "a script": f"a script: {'0' * 40}, on @user_script:1.",
    "Valkey's script": "a script: on @user_script:1.",
    "a place": "@user_script:1: -OOM a",
    "a code": "NOTOWNER 1 WRONGTYPE READONLY a",
    "a traceback": "a\nstack traceback:\nb",
}
"""Names that look like a part of an error reply. Servers cut such a reply at a zero byte, and some at a line break."""


@pytest.mark.parametrize("target_name", [*(name for name in TARGETS if name not in ("cluster", "lua54")), *releases()])
@pytest.mark.parametrize("look", IN_REPLIES)
@pytest.mark.by_turns
async def test_a_name_in_an_error_reply_hides_nothing(target: Target, look: str) -> None:
    name, raw = IN_REPLIES[look], target.raw
    saver, store = target.uniform(cache_bytes=0), target.store()
    newest = await put(saver, config(name), {name: 1}, checkpoint_id=name)
    index, data = Keyspace(target.prefix).keys(name)
    fields = raw.hgetall(data)
    header = b"c" + names.component("") + names.component(name)
    (value,) = (field for field in fields if field.startswith(b"b"))

    async def said(call: Awaitable[Any], kind: type[Exception], text: str) -> None:
        error = await outcome(call)
        assert type(error) is kind, error
        assert re.fullmatch(rf"{text} \(in '.*'\): .*\.", str(error)), error

    async with saver.saver.own(name, by="first") as old, target.uniform().saver.own(name, by=name, on_busy="take"):
        error = await outcome(put(saver, old, {"n": 1}))
    assert type(error) is NotOwner and error.since is not None and "End this run" in str(error)
    assert error.by and display.printable(name).startswith(error.by)
    raw.hdel(data, value)
    await said(saver.get_tuple(newest), ThreadDamaged, "a stored value is gone: .*, of checkpoint .*")
    raw.hset(data, mapping={value: fields[value], header: b"x"})
    await said(saver.get_tuple(newest), ThreadDamaged, "a part cannot be read: checkpoint .*")
    raw.hdel(data, header)
    await said(saver.get_tuple(newest), ThreadDamaged, "a header is gone, that of checkpoint .*")
    raw.hset(data, mapping={header: fields[header], "@state": b"999" + fields[b"@state"]})
    await said(saver.get_tuple(newest), UnsupportedFormat, r"the thread is of format 999\d, and .* up to \d")
    raw.delete(index)
    raw.hset(data, "@state", fields[b"@state"])
    await said(saver.get_tuple(newest), ThreadDamaged, "the key index is gone while data is there")
    raw.set(index, "of another program")
    await said(saver.get_tuple(newest), KeyConflict, "the key index is not a sorted set of redis_saver")
    label = re.sub(r"[.\0]", "", name)  # LangGraph refuses these two
    await store.put((label, "u"), "k", {"n": 1})
    raw.delete(*(key for key in target.keys() if key.endswith(b":order")))
    await said(store.search((label, "u")), StoreDamaged, "the key order is gone, or is not what the state says")
