"""With encryption, no place decodes stored bytes before it knows that they are ours: nothing makes a planted object.

Cold has a test of its own: `tests/tiered/test_guarded_cold.py`.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.outputs import Generation
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.checkpoint.sqlite import SqliteSaver
from tests.support.calls import CALLS
from tests.support.caching import cache_of, llm_cache_of
from tests.support.embedding import DIMS, Model
from tests.support.factories import config, put
from tests.support.marking import TRUSTING, Marker, made
from tests.support.stores import members
from tests.support.uniform import Target, Uniform, encryption

from redis_saver import DecodeError, RedisSaver, RedisSaverError
from redis_saver._common.names import Keyspace
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._migrate import langgraph_dev
from redis_saver.errors import EndpointError
from redis_saver.migrate import migrate, migrate_items, opened, opened_store

pytestmark = [pytest.mark.plain("each test sets encryption= itself"), pytest.mark.also_on()]


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


def trusting(**options: Any) -> dict[str, Any]:
    """Return settings whose serializer would make each planted object."""
    return {"serde": JsonPlusSerializer(**TRUSTING), **options}


async def threaded(uniform: Uniform, text: str = "planted") -> dict[str, Any]:
    """Put two checkpoints that have objects wherever they can. Return the newer one's config."""
    where, long = config(), [Marker(f"{text} {number}" * 99) for number in range(9)]
    for number in ("1", "2"):
        values = {"n": Marker(text), "long": [*long, number]}
        versions = dict.fromkeys(values, number)
        metadata = {"source": "loop", "step": int(number), "mine": Marker(text)}
        where = await put(uniform, where, values, checkpoint_id=number, versions=versions, metadata=metadata)
        await uniform.put_writes(where, [("n", Marker(text)), ("n", "text")], "task")
        await uniform.put_writes(where, [(INTERRUPT, [Marker(text)])], "task")
    return where


MORE: dict[str, Callable[[Any, Any], Any]] = {
    "get_tuple of the older": lambda uniform, where: uniform.get_tuple(config(checkpoint_id="1")),
    "channel_history": lambda uniform, where: uniform.channel_history("thread", "long"),
    "diff": lambda uniform, where: uniform.diff("thread", "1", "2"),
    "prune": lambda uniform, where: uniform.prune(["thread"], dry_run=True),
}
READING = {name: call for name, call in {**CALLS, **MORE}.items() if not name.startswith(("delete", "set"))}


def disguised(stored: bytes) -> bytes:
    """Return a plain record that says that it is sealed."""
    return stored.replace(b"7:msgpack", b"11:msgpack+siv")


@pytest.mark.parametrize("disguise", [bytes, disguised], ids=["plain", "disguised"])
@pytest.mark.by_turns
async def test_a_plain_record_in_an_encrypted_thread_makes_nothing(target: Target, disguise: Any) -> None:
    """Each field of a plain thread, in turn, at its place in an encrypted one."""
    key = Keyspace(target.prefix).keys("thread").data_key
    await threaded(target.uniform(**trusting()))
    plain = target.raw.hgetall(key)
    target.raw.delete(*target.keys())
    where = await threaded(target.uniform(**trusting(encryption=encryption())), "own")
    sealed, refused = {name: target.raw.dump(name) for name in target.keys()}, 0
    made.clear()
    client = target.client()
    for field in (field for field, stored in plain.items() if b"planted" in stored):
        for call in READING.values():
            target.raw.delete(*target.keys())
            for each, stored in sealed.items():
                target.raw.restore(each, 0, stored)
            target.raw.hset(key, field, disguise(plain[field]))
            uniform = target.uniform(client=client, **trusting(encryption=encryption()))
            try:
                await call(uniform, where)
            except RedisSaverError as error:
                refused += isinstance(error, DecodeError)
    assert made and not [text for text in made if text.startswith("planted")]
    assert refused > 20


@pytest.mark.by_turns
async def test_a_plain_thread_makes_nothing(target: Target) -> None:
    where = await threaded(target.uniform(**trusting()))
    made.clear()
    for name, call in READING.items():
        uniform = target.uniform(**trusting(encryption=encryption()))
        try:
            await call(uniform, where)
        except RedisSaverError:
            assert name not in ("threads", "get_thread", "get_thread_ttl", "key_status", "rotate_keys")
        assert made == [], name
    assert await target.uniform(**trusting()).get_tuple(where) and made, "without encryption they are made"


# -- stores


ITEMS = ("memories", "user")


def store_calls(store: Uniform) -> dict[str, Callable[[], Any]]:
    return {
        "get": lambda: store.get(ITEMS, "k"),
        "search": lambda: store.search(ITEMS),
        "search by value": lambda: store.search(ITEMS, filter={"n": 1}),
        "search by text": lambda: store.search(ITEMS, query="text"),
        "put": lambda: store.put(ITEMS, "k", {"text": "new"}, if_version=0),
        "list_namespaces": lambda: store.list_namespaces(),
        "count": lambda: store.count(),
        "key_status": lambda: store.key_status(),
        "rotate_keys": lambda: store.rotate_keys(),
    }


@pytest.mark.parametrize("grafts", [True, False], ids=["plain record", "plain partition"])
@pytest.mark.parametrize("disguise", [bytes, disguised], ids=["plain", "disguised"])
@pytest.mark.by_turns
async def test_a_plain_item_makes_nothing(target: Target, disguise: Any, grafts: bool) -> None:
    index = {"dims": DIMS, "embed": Model(), "fields": ["text"]}
    value = {"text": "a text", "n": 1, "mine": Marker()}
    await target.store(**trusting(), index=index).put(ITEMS, "k", value)
    keys = [key for member in members(target) for key in StoreKeyspace(target.prefix).partition(member).keys]
    plain = {key: target.raw.hgetall(key) for key in keys if target.raw.type(key) == b"hash"}
    if grafts:
        target.raw.delete(*target.keys())
        await target.store(**trusting(), index=index, encryption=encryption()).put(ITEMS, "k", value)
    for key, fields in plain.items():
        for field, stored in fields.items():
            if b"msgpack" in stored or b"bytes" in stored:
                target.raw.hset(key, field, disguise(stored.replace(b"5:bytes", b"7:msgpack")))
    made.clear()
    for name in store_calls(target.store()):
        store = target.store(**trusting(), index=index, encryption=encryption())
        try:
            found = await store_calls(store)[name]()
        except RedisSaverError:
            assert name not in ("list_namespaces", "count", "key_status", "rotate_keys")
        else:
            assert name not in ("get", "search", "search by value"), found
        assert made == [], name


# -- caches


@pytest.mark.parametrize("disguise", [bytes, disguised], ids=["plain", "disguised"])
@pytest.mark.parametrize("has_key", [True, False], ids=["with its data key", "without its data key"])
@pytest.mark.by_turns
async def test_a_plain_entry_of_a_cache_makes_nothing(target: Target, disguise: Any, has_key: bool) -> None:
    name = (("a",), "k")
    plain, sealed = (cache_of(target, **trusting(**more)) for more in ({}, {"encryption": encryption()}))
    answers = [Generation(text="x", generation_info={"mine": Marker()})]
    await plain.set({name: (Marker(), None)})
    await llm_cache_of(plain).update("prompt", "model", answers)
    entries = {key: target.raw.get(key) for key in target.keys() if b":entry:" in key}
    assert len(entries) == 2
    if has_key:
        await sealed.set({name: ("mine", None)})
        await llm_cache_of(sealed).update("prompt", "model", [Generation(text="mine")])
    for key, stored in entries.items():
        target.raw.set(key, disguise(stored))
    made.clear()
    reader = cache_of(target, **trusting(encryption=encryption()))
    assert await reader.get([name]) == {}
    assert await llm_cache_of(reader).lookup("prompt", "model") is None
    assert made == []
    assert reader.stats().errors == 2


# -- files, folders and databases that are read into an encrypted saver or store


def _checkpoint() -> tuple[Any, Any, Any]:
    one: Any = {"v": 4, "id": "1", "ts": "2026-11-21T10:00:00+00:00", "versions_seen": {}}
    return {**one, "channel_values": {"n": [Marker()]}, "channel_versions": {"n": "1"}}, {"step": 1}, {"n": "1"}


def _filled(saver: Any) -> Any:
    saver.delete_thread("thread")
    saver.put(config(), *_checkpoint())
    saver.put_writes(config(checkpoint_id="1"), [("n", Marker()), (INTERRUPT, [Marker()])], "task")
    return saver


def _folder(tmp_path: Path, *_: Any) -> str:
    langgraph_dev.save(_filled(InMemorySaver()), tmp_path)
    return f"inmem:{tmp_path}"


def _pickles(tmp_path: Path, *_: Any) -> str:
    """Make a folder that has pickled objects in place of bytes."""
    saver = _filled(InMemorySaver())
    saver.blobs.update(dict.fromkeys(saver.blobs, ("msgpack", Marker())))
    langgraph_dev.save(saver, tmp_path)
    return f"inmem:{tmp_path}"


def _file(tmp_path: Path, *_: Any) -> str:
    url = f"file:{tmp_path / 'threads'}"
    with opened(_folder(tmp_path), target=False) as source, opened(url, target=True) as target:
        assert migrate(source, target).moved == 1
    return url


def _sqlite(tmp_path: Path, *_: Any) -> str:
    with SqliteSaver.from_conn_string(str(tmp_path / "sqlite")) as saver:
        _filled(saver)
    return f"sqlite:{tmp_path / 'sqlite'}"


def _postgres(_: Path, target: Target, database: str) -> str:
    with PostgresSaver.from_conn_string(database) as saver:
        _filled(saver)
    return database


def _redis(_: Path, target: Target, __: str) -> str:
    _filled(RedisSaver(target.raw, prefix="langgraph"))
    return target.url


def _of_aws(_: Path, target: Target, __: str) -> str:
    one, metadata, _versions = _checkpoint()
    kind, data = JsonPlusSerializer().dumps_typed(one)
    fields = {"thread_id": "thread", "checkpoint_id": "1", "parent_checkpoint_id": None, "type": kind}
    coded = {"checkpoint": base64.b64encode(data), "metadata": base64.b64encode(json.dumps(metadata).encode())}
    text = json.dumps({**fields, **{name: part.decode() for name, part in coded.items()}})
    target.raw.set("checkpoint:{thread}::1", text)
    kind, data = JsonPlusSerializer().dumps_typed([Marker()])
    write = {"task_id": "task", "idx": -3, "channel": INTERRUPT, "type": kind, "value": base64.b64encode(data).decode()}
    target.raw.set("writes:{thread}::1", json.dumps([write]))
    return f"langgraph-checkpoint-aws:{target.url}"


SOURCES: dict[str, Any] = {
    "a folder of langgraph dev": _folder,
    "a folder with pickles": _pickles,
    "a file": _file,
    "SQLite": _sqlite,
    "Postgres": _postgres,
    "Redis": _redis,
    "langgraph-checkpoint-aws": _of_aws,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("flavour", ["sync"])
def test_a_migration_makes_nothing(target: Target, database: str, tmp_path: Path, source: str) -> None:
    """Objects are moved packed into an encrypted saver, and a pickle is refused."""
    url = SOURCES[source](tmp_path, target, database)
    made.clear()
    options: Any = {"prefix": target.prefix, "encryption": encryption()}
    with contextlib.ExitStack() as stack:
        into = stack.enter_context(opened(target.url, target=True, **options))
        if source == "a folder with pickles":
            with pytest.raises(EndpointError, match="Marker"):
                stack.enter_context(opened(url, target=False))
        else:
            moved = migrate(stack.enter_context(opened(url, target=False)), into, threads=["thread"])
            assert (moved.moved, moved.failed) == (1, [])
    assert made == []
    if source != "a folder with pickles":
        saved = target.uniform(encryption=encryption()).saver.get_tuple(config())
        assert saved.checkpoint["channel_values"] == {"n": [Marker()]} and made
    target.raw.delete("checkpoint:{thread}::1", "writes:{thread}::1")


@pytest.mark.parametrize("flavour", ["sync"])
def test_a_migration_of_items_makes_nothing(target: Target, tmp_path: Path) -> None:
    target.store().saver.put(ITEMS, "k", {"mine": Marker()})
    made.clear()
    url = f"file:{tmp_path / 'items'}"
    for source, into in ((target.url, url), (url, target.url)):
        ends = (source, ""), (into, "x")
        of_one, of_two = ({"prefix": target.prefix + end} if where != url else {} for where, end in ends)
        with opened_store(source, target=False, **of_one) as one, opened_store(into, target=True, **of_two) as two:
            assert migrate_items(one, two).written == 1
    assert made == []
