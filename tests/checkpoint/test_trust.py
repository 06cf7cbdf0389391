"""Untrusted bytes in Redis: encrypting savers decode nothing plain, and with `strict=True` no code runs."""

from __future__ import annotations

import json
from typing import Any

import ormsgpack
import pytest
from tests.support.factories import config, put
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.support.raw import contents
from tests.support.sharing import fields_of, key_of
from tests.support.uniform import Target, Uniform
from tests.support.values import KEY, Point

from redis_saver import DecodeError, EncodeError, PlainValueRefused
from redis_saver._storage.encryption import EncryptedOnly
from redis_saver._serde.serializer import FastSerializer, StrictSerializer
from redis_saver._storage import codec, compression, framing

pytestmark = pytest.mark.also_on(cluster="async", fakeredis="sync")

ran: list[str] = []


def run(text: str) -> str:
    """Stand-in for a program that an attacker wants to run."""
    ran.append(text)
    return text


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def calling(function: Any, *arguments: Any) -> bytes:
    """Return msgpack that calls a function when decoded."""
    return ormsgpack.packb(ormsgpack.Ext(1, ormsgpack.packb((function.__module__, function.__name__, arguments))))


HOSTILE = calling(run, "hostile")


def encrypting(**more: Any) -> dict[str, Any]:
    return {"serde": EncryptedSerializer.from_pycryptodome_aes(key=KEY), **more}


async def thread(uniform: Uniform) -> dict[str, Any]:
    """Put two checkpoints with a write to each. Return the newer one's config."""
    parent = await put(uniform, config(), {"n": 1}, checkpoint_id="1", versions={"n": "1"})
    await uniform.put_writes(parent, [("n", "written")], "task")
    where = await put(uniform, parent, {}, checkpoint_id="2", versions={"n": "2"})
    await uniform.put_writes(where, [("n", "written")], "task")
    return where


def change(target: Target, kind: bytes, edit: Any) -> None:
    """Change the stored bytes of every value, header or record of the thread."""
    for field, stored in fields_of(target).items():
        if field[:1] == kind:
            target.raw.hset(key_of(target), field, edit(stored))


def framed(position: int, kind: bytes, data: bytes) -> Any:
    """Return an edit that replaces the type and bytes of a frame in a header or record."""

    def edit(stored: bytes) -> bytes:
        chunks = framing.unpack(stored)
        chunks[position : position + 2] = kind, data
        return framing.pack(chunks)

    return edit


def in_chunks(target: Target) -> Any:
    """Store the chunks of a plain value. Return an edit that replaces a value by its root."""
    messages = [HumanMessage("x" * 900, id=str(n)) for n in range(9)]
    made = codec.encode_value(target.uniform().saver._context, messages, "n")
    assert made.chunks
    target.raw.hset(key_of(target), mapping=dict(made.chunks))
    return lambda _: made.value


ZSTD = compression.MARK + b"msgpack"
PLANTED: dict[str, Any] = {
    "a value": lambda target: (b"b", lambda _: framing.pack([b"msgpack"]) + HOSTILE),
    "a compressed value": lambda target: (b"b", lambda _: framing.pack([ZSTD]) + compression.compress(HOSTILE)),
    "a value in chunks": lambda target: (b"b", in_chunks(target)),
    "nothing": lambda target: (b"b", lambda _: framing.pack([b"null"])),
    "bytes": lambda target: (b"b", lambda _: framing.pack([b"bytes"]) + b"x"),
    "the rest of a checkpoint": lambda target: (b"c", framed(9, b"msgpack", HOSTILE)),
    "metadata": lambda target: (b"c", framed(11, b"msgpack", HOSTILE)),
    "a write": lambda target: (b"w", framed(3, b"msgpack", HOSTILE)),
    "a compressed write": lambda target: (b"w", framed(3, ZSTD, compression.compress(HOSTILE))),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.by_turns
@pytest.mark.plain("encryption= refuses require_encryption=False")
async def test_an_encrypting_saver_decodes_nothing_plain(target: Target, what: str) -> None:
    """The error says what and where, and comes before anything is decoded."""
    where = await thread(target.uniform(**encrypting()))
    change(target, *PLANTED[what](target))
    uniform = target.uniform(**encrypting())
    history = {"config": where, "channels": ["n"]}
    reads: list[Any] = [lambda: uniform.get_tuple(config(checkpoint_id="1")), lambda: uniform.list(config())]
    if what not in ("the rest of a checkpoint", "metadata"):  # a history does not read those
        reads.append(lambda: uniform.get_delta_channel_history(**history))
    if what == "metadata":
        reads += [lambda: uniform.list(config(), filter={"step": 1}), lambda: uniform.copy_thread("thread", "copy")]
    for read in reads:
        said = "it is not encrypted.*'thread'|'thread'.*it is not encrypted"
        with pytest.raises(PlainValueRefused, match=said) as error:
            await read()
        assert isinstance(error.value, DecodeError)
        assert str(error.value).count("cannot decode") == 1
    assert ran == []
    trusting = target.uniform(**encrypting(require_encryption=False))
    if what in ("nothing", "bytes", "a value in chunks"):
        assert await trusting.get_tuple(config(checkpoint_id="1")) is not None
    else:
        try:
            await trusting.get_tuple(config(checkpoint_id="1"))
        except DecodeError:  # it is no checkpoint, but was decoded
            pass
        assert set(ran) == {"hostile"}, "without require_encryption it is decoded, and runs"


@pytest.mark.plain("encryption= seals whatever the serializer gives")
async def test_a_serializer_that_encrypts_only_some_values_is_refused(target: Target) -> None:
    """With `require_encryption=True`, no serializer can write a plain value."""

    class Half(EncryptedSerializer):
        def dumps_typed(self, value: Any) -> tuple[str, bytes]:
            return self.serde.dumps_typed(value) if value == "plain" else super().dumps_typed(value)

    half = Half(EncryptedSerializer.from_pycryptodome_aes(key=KEY).cipher)
    uniform = target.uniform(serde=half, require_encryption=True)
    where = await put(uniform, config(), {"n": "x"})
    before = contents(target)
    with pytest.raises(EncodeError, match="did not encrypt"):
        await put(uniform, where, {"n": "plain"}, versions={"n": "2"})
    with pytest.raises(EncodeError, match="did not encrypt"):
        await uniform.put_writes(where, [("n", "plain")], "task")
    assert contents(target) == before


@pytest.mark.plain("encryption= implies require_encryption=True")
async def test_contradictory_settings_are_refused(target: Target) -> None:
    for serde in (None, FastSerializer(), JsonPlusSerializer()):
        with pytest.raises(ValueError, match="names no cipher.*EncryptedSerializer"):
            target.uniform(serde=serde, require_encryption=True)
    with pytest.raises(TypeError, match="require_encryption='yes'"):
        target.uniform(require_encryption="yes")
    with pytest.raises(ValueError, match=r"strict=True.*EncryptedSerializer.*StrictSerializer"):
        target.uniform(strict=True, serde=FastSerializer())
    assert not isinstance(target.uniform().saver._context.serde, EncryptedOnly)
    assert isinstance(target.uniform(**encrypting()).saver._context.serde, EncryptedOnly)
    assert isinstance(target.uniform(**encrypting()).saver.with_allowlist([("a", "B")])._context.serde, EncryptedOnly)


# -- strict


@pytest.mark.plain("it stores plain values")
async def test_strict_runs_no_code(target: Target) -> None:
    """A value that calls a function when decoded comes back as its data. A plain saver runs the function."""
    await thread(target.uniform())
    change(target, b"b", lambda _: framing.pack([b"msgpack"]) + HOSTILE)
    strict = target.uniform(strict=True)
    found = await strict.get_tuple(config(checkpoint_id="1"))
    assert found.checkpoint["channel_values"] == {"n": ["hostile"]}
    assert ran == []
    await target.uniform().get_tuple(config(checkpoint_id="1"))
    assert ran == ["hostile"]
    made = {"lc": 1, "type": "constructor", "id": ["langchain_core", "prompts", "PromptTemplate"], "kwargs": {}}
    for kind, data in ((b"pickle", b"cos\nsystem\n(S'true'\ntR."), (b"json", json.dumps(made).encode())):
        change(target, b"b", lambda _, kind=kind, data=data: framing.pack([kind]) + data)
        with pytest.raises(DecodeError):
            await strict.get_tuple(config(checkpoint_id="1"))
    change(target, b"b", lambda _: framing.pack([b"json"]) + b'{"a": [1]}')
    assert (await strict.get_tuple(config(checkpoint_id="1"))).checkpoint["channel_values"] == {"n": {"a": [1]}}


async def test_strict_reads_messages_and_allowed_classes(target: Target) -> None:
    """Messages come back as without it. A user's class comes back only if it is allowed."""
    messages = [HumanMessage(f"{n} {'x' * 900}", id=str(n)) for n in range(9)]
    strict = target.uniform(strict=True)
    where = await put(strict, config(), {"messages": messages, "point": Point(1)})
    assert any(field[:1] == b"p" for field, _ in fields_of(target).items())
    found = await strict.get_tuple(where)
    point = {"x": 1, "label": "MARKER of a dataclass", "inner": None}
    assert found.checkpoint["channel_values"] == {"messages": messages, "point": point}
    allowing = Uniform(strict.saver.with_allowlist([(Point.__module__, "Point")]))  # type: ignore[arg-type]
    assert (await allowing.get_tuple(where)).checkpoint["channel_values"]["point"] == Point(1)
    both = target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(StrictSerializer(), key=KEY))
    where = await put(both, config("both"), {"n": Point(1)})
    assert (await both.get_tuple(where)).checkpoint["channel_values"]["n"]["x"] == 1
