"""Migration of real graphs' threads between all kinds of endpoints, with the command line."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import operator
import os
import pickle
import pty
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from foreign_agents import nested, of
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import INTERRUPT, BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from redis_saver import AsyncRedisSaver, FileDamaged, RedisSaver, TieredSaver
from redis_saver._cli.main import main
from redis_saver._common.display import counted
from redis_saver._migrate import engine as engine_module, files, langgraph_dev
from redis_saver._migrate.engine import with_text_versions
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.migrate import migrate, opened
from tests.support.commands import Ran, run_python
from tests.support.factories import checkpoint, config
from tests.support.seeds import seeds
from tests.support.servers import Server, free_port, new_database, url_of

pytestmark = pytest.mark.xdist_group("migrate")  # so the endpoints with threads are made once
KINDS = ["ours", "postgres", "sqlite", "inmem"]
WAYS = [*((kind, "ours") for kind in KINDS), *(("ours", kind) for kind in KINDS[1:]), ("sqlite", "postgres")]
"""Every kind as a source and as a target. More pairs show nothing new, as a source does not depend on its target."""
HOSTILE = "user-*%_'\"{a}|\\ü\n"
_numbers = itertools.count()


# -- graphs


@dataclass
class Order:
    """A class that the migrating process cannot import."""

    number: int


class Chat(MessagesState):
    orders: Annotated[list[Order], operator.add]


def chat(saver: Any) -> Any:
    def bot(state: Chat) -> dict[str, Any]:
        return {
            "messages": [AIMessage("You said " + state["messages"][-1].text)],
            "orders": [Order(len(state["messages"]))],
        }

    return StateGraph(Chat).add_node(bot).add_edge(START, "bot").compile(checkpointer=saver)


def extend(state: list[str], writes: Any) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]


def delta(saver: Any) -> Any:
    """Parallel tasks, whose writes form a channel in the order of their paths. The first one waits."""
    graph = StateGraph(Delta)
    graph.add_node("a", lambda _: {"log": [f"a {interrupt('a?')}"]})
    for name in ("b", "c"):
        graph.add_node(name, lambda _, name=name: {"log": [name]})
    for name in ("a", "b", "c"):
        graph.add_edge(START, name)
    return graph.compile(checkpointer=saver)


def live(saver: Any) -> None:
    """Run graphs. Two of their threads then wait for an answer."""
    for turn in range(8):
        chat(saver).invoke({"messages": [HumanMessage(f"hello {turn} " * 40)]}, of("user-chat"))
    nested(saver).invoke({"answers": ["start"]}, of("user-nested"))
    nested(saver).invoke(Command(resume="one"), of("user-nested"))
    for turn in range(3):
        delta(saver).invoke({"log": [f"in {turn}"]}, of("user-delta"))
        if turn < 2:
            delta(saver).invoke(Command(resume=str(turn)), of("user-delta"))
    chat(saver).invoke({"messages": [HumanMessage("hostile")]}, of(HOSTILE))
    chat(saver).invoke({"messages": [HumanMessage("other")]}, of("other"))


THREADS = [HOSTILE, "other", "user-chat", "user-delta", "user-nested"]


def go_on(saver: Any) -> None:
    """Continue the graphs, and check their results."""
    said = chat(saver).invoke({"messages": [HumanMessage("again")]}, of("user-chat"))
    assert [message.text for message in said["messages"][-2:]] == ["again", "You said again"]
    assert said["orders"] == [Order(2 * turn + 1) for turn in range(9)]
    answers = nested(saver).invoke(Command(resume="two"), of("user-nested"))["answers"]
    assert answers[1:] == ["start", "before", "one", "two"]
    assert delta(saver).invoke(Command(resume="2"), of("user-delta"))["log"] == [
        item for turn in range(3) for item in (f"in {turn}", f"a {turn}", "b", "c")
    ]
    past = list(delta(saver).get_state_history(of("user-delta")))
    assert past[-1].values.get("log", []) == [] and past[0].values["log"][-3:] == ["a 2", "b", "c"]


def all_of(saver: Any, thread: str) -> list[Any]:
    found = list(saver.list(of(thread)))
    return sorted(found, key=lambda one: (one.checkpoint["id"], one.config["configurable"]["checkpoint_ns"]))


def same(one: Any, other: Any, threads: list[str] = THREADS) -> None:
    """Check that two savers have equal checkpoints, and that graphs read equal states."""
    for thread in threads:
        assert all_of(one, thread) == all_of(other, thread) != []
    for graph, thread in ((delta, "user-delta"), (nested, "user-nested")):
        if thread in threads:
            states = [list(graph(saver).get_state_history(of(thread))) for saver in (one, other)]
            assert states[0] == states[1]


# -- endpoints


class Places:
    """Makes endpoints of each kind, and opens them with LangGraph's serializer."""

    def __init__(self, postgres: str, folder: Path) -> None:
        self.redis = Server("--databases", "1000")
        self.postgres, self.folder = postgres, folder

    def url(self, kind: str) -> str:
        name = f"place{next(_numbers)}"
        if kind == "ours":
            return f"{self.redis.url}/{next(_numbers)}"
        if kind == "postgres":
            return new_database(self.postgres)
        return f"{kind}:{self.folder / name}"

    @contextmanager
    def saver(self, url: str) -> Iterator[BaseCheckpointSaver[Any]]:
        kind, _, path = url.partition(":")
        if kind == "redis":
            with RedisSaver.from_conn_string(url) as ours:
                yield ours
        elif kind == "postgresql":
            with PostgresSaver.from_conn_string(url) as saver:
                saver.setup()
                yield saver
        elif kind == "sqlite":
            with SqliteSaver.from_conn_string(path) as lite:
                yield lite
        else:
            memory = langgraph_dev.load(Path(path), JsonPlusSerializer(), empty_too=True)
            yield memory
            langgraph_dev.save(memory, Path(path))

    def same(self, one: str, other: str, threads: list[str] = THREADS) -> None:
        """Check that two endpoints have equal threads."""
        with self.saver(one) as old, self.saver(other) as new:
            same(old, new, threads)


@pytest.fixture(scope="module")
def places(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    made = Places(postgres, tmp_path_factory.mktemp("places"))
    yield made
    made.redis.stop()


@pytest.fixture
def here(places: Places) -> str:
    """URL of an empty Redis database."""
    return places.url("ours")


@pytest.fixture(scope="module")
def lived(places: Places) -> dict[str, str]:
    """URLs of an endpoint of each kind with threads. Tests must not change them."""
    urls = {kind: places.url(kind) for kind in KINDS}
    for url in urls.values():
        with places.saver(url) as saver:
            live(saver)
    return urls


# -- between all kinds of endpoints


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_all_threads_arrive_and_continue(places: Places, lived: dict[str, str], source: str, target: str) -> None:
    there, here = lived[source], places.url(target)
    assert (ran := Ran("migrate", there, here)).all_well
    assert ran.out.startswith("5 threads: 5 copied, 0 completed, 0 there already, 0 conflicts, 0 failed\n")
    places.same(there, here)
    assert (again := Ran("migrate", there, here)).all_well
    said = "5 threads: 0 copied, 0 completed, 5 there already, 0 conflicts, 0 failed\n0 checkpoints"
    assert again.out.startswith(said)
    with places.saver(here) as new:
        go_on(new)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_arrive_by_export_and_import(places: Places, lived: dict[str, str], kind: str, tmp_path: Path) -> None:
    file, here = tmp_path / "threads", places.url(KINDS[KINDS.index(kind) - 1])
    assert Ran("export", lived[kind], str(file)).all_well
    assert Ran("import", str(file), here).all_well
    assert Ran("import", str(file), here).out.startswith("5 threads: 0 copied, 0 completed, 5 there already")
    places.same(lived[kind], here)
    with places.saver(here) as new:
        go_on(new)
    assert oct(file.stat().st_mode & 0o777) == "0o600" and [path.name for path in tmp_path.iterdir()] == ["threads"]


def test_a_file_stores_shared_data_once(tmp_path: Path) -> None:
    saver = InMemorySaver()
    for turn in range(30):
        chat(saver).invoke({"messages": [HumanMessage(f"{turn} " + "x" * 1000)]}, of("t"))
    with opened(f"file:{tmp_path}/f", target=True) as target:
        migrate(saver, target)
    stored = sum(len(data) for _, data in saver.blobs.values())
    assert (tmp_path / "f").stat().st_size < stored / 5


def test_a_migration_needs_no_classes(here: str, places: Places, lived: dict[str, str]) -> None:
    """The command runs in a process that cannot import this module."""
    done = run_python("-m", "redis_saver", "migrate", lived["sqlite"], here, "--thread-prefix", "user-chat")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    places.same(lived["sqlite"], here, ["user-chat"])
    with places.saver(here) as new:
        assert new.get_tuple(of("user-chat")).checkpoint["channel_values"]["orders"][0] == Order(1)


def test_a_move_between_redis_savers_keeps_all_bytes(places: Places, lived: dict[str, str]) -> None:
    """Versions still share their chunks, and the next write compares with the same bytes."""
    here, stored = places.url("ours"), list[dict[bytes, bytes]]()
    assert Ran("migrate", lived["ours"], here).all_well
    for url in (here, lived["ours"]):
        with places.saver(url) as saver:
            fields = saver._driver.client.hgetall(saver._context.keyspace.keys("user-chat").data_key)
        stored.append({key: data for key, data in fields.items() if key[:1] != b"@"})
    assert stored[0] == stored[1]


@pytest.mark.parametrize("where", ["value", "write"])
def test_a_set_from_a_file_arrives_in_a_saver_object(tmp_path: Path, where: str) -> None:
    """A set may have another order than the bytes from which it was read. This one changes it at each read."""
    numbers = {1069, 848, 1652, 621, 1967, 748}
    assert [*numbers] != [*set([*numbers])]
    saver, back, made = InMemorySaver(), InMemorySaver(), checkpoint({"a": numbers if where == "value" else 1})
    stored = saver.put(config(), made, {"step": 1}, made["channel_versions"])
    saver.put_writes(stored, [("a", numbers if where == "write" else 1)], "task")
    with opened(f"file:{tmp_path}/f", target=True) as target:
        assert migrate(saver, target).moved == 1
    with opened(f"file:{tmp_path}/f", target=False) as source:
        assert migrate(source, back).failed == []


def test_migrate_accepts_saver_objects(lived: dict[str, str], places: Places) -> None:
    """One of them is of a class that `migrate` does not know."""

    class Unknown(BaseCheckpointSaver[str]):
        def __init__(self) -> None:
            super().__init__()
            inner = self.inner = InMemorySaver()
            for name in ("list", "get_tuple", "put", "put_writes", "get_next_version", "get_delta_channel_history"):
                setattr(self, name, getattr(inner, name))

    unknown, back = Unknown(), InMemorySaver()
    with places.saver(lived["ours"]) as old:
        report = migrate(old, unknown, sample=100)
        assert (report.moved, report.compared, report.failed) == (5, report.checkpoints, [])
        assert migrate(unknown, back, sample=100).moved == 5
        same(old, back)
        assert migrate(old, back).unchanged == 5
    go_on(back)


async def test_migrate_accepts_async_and_tiered_savers(lived: dict[str, str], places: Places) -> None:
    async with AsyncRedisSaver.from_conn_string(f"memory://asyncio-{next(_numbers)}") as saver:
        with places.saver(lived["inmem"]) as old:
            assert (await asyncio.to_thread(migrate, old, saver)).moved == 5
            assert (await asyncio.to_thread(migrate, old, saver)).unchanged == 5
            back = InMemorySaver()
            assert (await asyncio.to_thread(migrate, saver, back)).moved == 5
            same(old, back)
    with RedisSaver.from_conn_string(f"memory://hot-{next(_numbers)}") as hot:
        tiered = TieredSaver(hot, InMemorySaver())
        assert migrate(back, tiered).moved == 5 and migrate(back, tiered).unchanged == 5
        same(back, tiered)
        go_on(tiered)


# -- repeated runs


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_adds_later_data(places: Places, kind: str) -> None:
    """A thread that waits for a second answer has other writes at the same checkpoint."""
    there, here = places.url(kind), places.url(KINDS[KINDS.index(kind) - 1])
    with places.saver(there) as old:
        nested(old).invoke({"answers": ["start"]}, of("user-nested"))
        chat(old).invoke({"messages": [HumanMessage("hello")]}, of("user-chat"))
    assert Ran("migrate", there, here).all_well
    with places.saver(there) as old:
        nested(old).invoke(Command(resume="one"), of("user-nested"))
        chat(old).invoke({"messages": [HumanMessage("again")]}, of("new"))
    assert Ran("migrate", there, here).out.startswith("3 threads: 1 copied, 1 completed, 1 there already, 0 conflicts")
    with places.saver(there) as old, places.saver(here) as new:
        same(old, new, ["new", "user-chat", "user-nested"])
        assert nested(new).invoke(Command(resume="two"), of("user-nested"))["answers"][-2:] == ["one", "two"]


@pytest.mark.parametrize("kind", [*KINDS, "file"])
def test_the_next_run_completes_an_interrupted_migration(
    places: Places, lived: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruptions come at several points. An incomplete file is deleted."""
    here = places.url(kind)
    for end in (3, 9, 12):
        with pytest.raises(KeyboardInterrupt), opened(lived["inmem"], target=False) as source:
            with opened(here, target=True) as target:
                migrate(source, target, progress=stopping(end))
        if kind == "file":
            assert not Path(here.partition(":")[2]).exists()
    assert (ran := Ran("migrate", lived["inmem"], here)).all_well
    assert (" 0 completed" in ran.out.splitlines()[0]) == (kind == "file")
    if kind != "file":
        places.same(lived["inmem"], here)


def stopping(after: int) -> Callable[[Any], None]:
    calls = itertools.count(1)

    def stop(_: Any) -> None:
        if next(calls) == after:
            raise KeyboardInterrupt

    return stop


def test_the_next_run_completes_a_killed_migration(here: str, places: Places, lived: dict[str, str]) -> None:
    script = (
        "import os, sys; from redis_saver.migrate import migrate, opened\n"
        "with opened(sys.argv[1], target=False) as source, opened(sys.argv[2], target=True) as target:\n"
        "    migrate(source, target, progress=lambda report: report.checkpoints < 20 or os.kill(os.getpid(), 9))\n"
    )
    assert run_python("-c", script, lived["postgres"], here).returncode == -9
    assert (ran := Ran("migrate", lived["postgres"], here)).all_well
    assert " 1 completed" in ran.out
    places.same(lived["postgres"], here)


def test_a_dry_run_writes_nothing(here: str, places: Places, lived: dict[str, str]) -> None:
    ran = Ran("migrate", lived["ours"], here, "--dry-run")
    assert ran.all_well and "5 to be copied" in ran.out
    with places.saver(here) as new:
        assert list(new.threads()) == []


def test_a_thread_prefix_has_no_wildcards(places: Places, lived: dict[str, str]) -> None:
    for prefix, count in (("user-", 4), ("user-*", 1), ("user-_", 0), ("%", 0), ("o", 1)):
        ran = Ran("migrate", lived["sqlite"], places.url("ours"), "--thread-prefix", prefix)
        assert ran.code == 0 and ran.out.startswith(f"{counted(count, 'thread')}: {count} copied")
        assert ran.err == ("" if count else f"no thread's name begins with {prefix!r}\n")


@pytest.mark.parametrize("kind", [*KINDS, "file"])
def test_an_empty_source_is_no_error(places: Places, kind: str) -> None:
    there = places.url(kind)
    if kind == "file":
        assert Ran("export", places.url("ours"), there).all_well
    else:
        with places.saver(there) as saver:
            saver.get_tuple(of("nobody"))
    for target in ("ours", "file"):
        assert Ran("migrate", there, places.url(target)).out.startswith("0 threads: 0 copied")


def test_prefix_and_ttl_options_apply_to_redis(here: str, lived: dict[str, str]) -> None:
    options = ("--target-prefix", "mine", "--ttl", "5m", "--thread-prefix", "other")
    assert Ran("migrate", lived["sqlite"], here, *options).all_well
    with RedisSaver.from_conn_string(here, prefix="mine") as saver:
        assert 290 < saver.get_thread_ttl("other").total_seconds() <= 300
        assert saver.get_thread("user-chat") is None
    assert Ran("migrate", here, here, "--source-prefix", "mine").out.startswith("1 thread: 1 copied")
    with RedisSaver.from_conn_string(here) as saver:
        assert saver.get_thread_ttl("other") is None


# -- conflicts and failures


@pytest.mark.parametrize("kind", KINDS)
def test_a_different_thread_in_the_target_is_a_conflict(places: Places, lived: dict[str, str], kind: str) -> None:
    here = places.url(kind)
    with places.saver(here) as new:
        chat(new).invoke({"messages": [HumanMessage("mine")]}, of("user-chat"))
        before = all_of(new, "user-chat")
    ran = Ran("migrate", lived["inmem"], here)
    assert ran.code == 1 and "1 conflict," in ran.out and "4 copied" in ran.out
    assert ran.err.startswith("conflict: thread 'user-chat': ") and "has 3 checkpoints that" in ran.err
    with places.saver(here) as new:
        assert all_of(new, "user-chat") == before
        nested(new).invoke(Command(resume="two"), of("user-nested"))
    assert "2 conflicts" in Ran("migrate", lived["inmem"], here).out


ABOUT: Any = {"source": "loop", "step": 1, "parents": {}}


def with_one(parent: str | None = None) -> InMemorySaver:
    """A saver with one checkpoint."""
    saver = InMemorySaver()
    saver.put(config("t", "", parent), checkpoint({"n": 1}, {"n": "1"}, "1"), ABOUT, {"n": "1"})
    return saver


def test_writes_or_a_parent_that_only_the_target_has_are_a_conflict() -> None:
    target = with_one()
    target.put_writes(config("t", "", "1"), [("n", 2)], "task")
    report = migrate(with_one(), target)
    assert len(report.conflicts) == 1 and "of task 'task'" in report.conflicts[0]
    assert "the parent of checkpoint '1' is '0'" in migrate(with_one("0"), with_one()).conflicts[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_sample_finds_a_value_that_changed(
    places: Places, lived: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kind, data = super().dumps_typed(obj)
            return kind, data.replace(b"other", b"0ther")

    with places.saver(lived["inmem"]) as source, places.saver(places.url(kind)) as target:
        target.serde = Forgetful()
        report = migrate(source, target, thread_prefix="other", sample=10)
    assert len(report.failed) == 1 and "checkpoint '1f" in report.failed[0] and "differs in" in report.failed[0]
    assert "the value of channel '" in report.failed[0]


def test_threads_that_a_target_cannot_hold_are_reported(places: Places, tmp_path: Path) -> None:
    """Other threads are moved. A file has all of a thread or nothing of it."""
    source = InMemorySaver()
    for thread, metadata, values in (
        ("a", ABOUT, {"n": 1}),
        ("b\0", ABOUT, {"n": 1}),
        ("c", {**ABOUT, "more": Order(1)}, {"n": [1]}),
        ("d", ABOUT, {"n": float("nan")}),
    ):
        source.put(config(thread), checkpoint(values, {"n": "1"}, "1"), metadata, {"n": "1"})
    with opened(places.url("postgres"), target=True) as target:
        report = migrate(source, target)
    assert report.checkpoints == 1 and [said.partition(": ")[0] for said in report.failed] == [
        f"thread {thread!r}" for thread in ("b\0", "c", "d")
    ]
    source.storage["c"][""]["2"] = (("msgpack", b"\xc1"), ("msgpack", b"\x80"), "1")
    with opened(f"file:{tmp_path}/f", target=True) as file:
        report = migrate(source, file)
    assert len(report.failed) == 1 and "thread 'c'" in report.failed[0]
    with opened(f"file:{tmp_path}/f", target=False) as file:
        assert sorted(file.threads()) == ["a", "b\0", "d"]
        assert migrate(file, InMemorySaver(), sample=9).compared == 3


def test_a_damaged_thread_does_not_stop_others(places: Places, lived: dict[str, str]) -> None:
    there = places.url("ours")
    assert Ran("migrate", lived["ours"], there).all_well
    with RedisSaver.from_conn_string(there) as saver:
        saver._driver.client.delete(saver._context.keyspace.keys("other").data_key)
    ran = Ran("migrate", there, places.url("sqlite"))
    assert ran.code == 1 and "4 copied" in ran.out and ran.err.startswith("failed: thread 'other': ")


def test_a_thread_written_during_the_copy_is_reported_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = InMemorySaver(), InMemorySaver()
    chat(source).invoke({"messages": [HumanMessage("hello")]}, of("t"))
    copy = engine_module._Move._copy

    def busy(self: Any, *args: Any) -> None:
        copy(self, *args)
        chat(source).invoke({"messages": [HumanMessage("again")]}, of("t"))

    with monkeypatch.context() as patch:
        patch.setattr(engine_module._Move, "_copy", busy)
        report = migrate(source, target)
    assert "run it again later" in report.failed[0]
    assert migrate(source, target).completed == 1
    same(source, target, ["t"])


# -- versions


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_continues_from_numeric_versions(places: Places, kind: str) -> None:
    class Numbers(InMemorySaver):
        def get_next_version(self, current: Any, channel: None) -> Any:
            return 1 if current is None else current + 1

    source = Numbers()
    live(source)
    with places.saver(places.url(kind)) as target:
        report = migrate(source, target, sample=100)
        assert (report.failed, report.compared) == ([], report.checkpoints)
        go_on(target)
        assert migrate(source, target).conflicts != []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 3])
def test_a_state_that_was_changed_in_place_arrives(places: Places, kind: str, after: int) -> None:
    """`SqliteSaver` then has several values of one version, unlike other savers. An interruption loses none."""

    class State(TypedDict):
        things: dict[str, int]
        steps: Annotated[list[int], operator.add]

    def build(saver: Any) -> Any:
        def change(state: State) -> Any:
            state["things"][str(len(state["steps"]))] = 1
            return {"steps": [1]}

        graph = StateGraph(State).add_node(change).add_edge(START, "change")
        graph.add_node("next", change).add_edge("change", "next")
        return graph.compile(checkpointer=saver)

    there, here = places.url("sqlite"), places.url(kind)
    with places.saver(there) as old:
        build(old).invoke({"things": {}, "steps": []}, of("t"))
        build(old).invoke({"steps": [7]}, of("t"))
        things = [one.checkpoint["channel_values"].get("things") for one in all_of(old, "t")]
        versions = {one.checkpoint["channel_versions"].get("things") for one in all_of(old, "t")}
        assert len({str(thing) for thing in things}) > len(versions)
    with suppress(KeyboardInterrupt), opened(there, target=False) as source, opened(here, target=True) as target:
        migrate(source, target, progress=stopping(after))
    assert Ran("migrate", there, here, "--sample", "100").all_well
    with places.saver(there) as old, places.saver(here) as new:
        assert [one.checkpoint["channel_values"].get("things") for one in all_of(new, "t")] == things
        asked = {"steps": [8]}, of("t")
        assert build(new).invoke(*asked) == build(old).invoke(*asked)
        trails = [[state.next for state in build(saver).get_state_history(of("t"))] for saver in (old, new)]
        assert trails[0] == trails[1]


def test_numeric_versions_keep_their_order_as_text() -> None:
    versions: list[Any] = [1, 1.5, 1.75, 2, 2.05, 2.5, 9, 10, 10.25, 1e3, 2**53, 10**20]
    made = checkpoint({}, {str(place): version for place, version in enumerate(versions)})
    made["versions_seen"] = {"n": {"0": 1, "1": 1.5}}
    one: Any = type("R", (), {"checkpoint": made, "_replace": lambda _, checkpoint: checkpoint})()
    found = with_text_versions(one)
    texts = list(found["channel_versions"].values())
    assert sorted(texts) == texts and len(set(texts)) == len(texts)
    assert found["versions_seen"]["n"] == {"0": texts[0], "1": texts[1]}


# -- files and dumps


@pytest.fixture
def exported(lived: dict[str, str], tmp_path: Path) -> Path:
    assert Ran("export", lived["inmem"], f"{tmp_path}/f").all_well
    return tmp_path / "f"


def refused(path: Path) -> str:
    """Import a file, check that it is refused and nothing is written, and return the error."""
    url, prefix = url_of("redis"), f"refused-{os.getpid()}-{next(_numbers)}"
    ran = Ran("import", str(path), url, "--target-prefix", prefix)
    assert ran.code == 2 and ran.err.count("\n") == 1 and ran.out == "", ran.err
    with RedisSaver.from_conn_string(url, prefix=prefix) as saver:
        assert list(saver.threads()) == []
    return ran.err


def test_a_truncated_or_extended_file_is_refused(exported: Path) -> None:
    whole = exported.read_bytes()
    cuts = [0, 5, 22, 23, 40, len(whole) - 1, *random.Random(1).sample(range(41, len(whole) - 1), 20)]
    for length in cuts:
        exported.write_bytes(whole[:length])
        assert "does not begin with" in (said := refused(exported)) or "is damaged" in said
    for behind in (b"x", _framed(["end", 5, 9], len(whole))):
        exported.write_bytes(whole + behind)
        refused(exported)


def _framed(record: Any, at: int) -> bytes:
    data = files.ormsgpack.packb(record)
    return files.FRAME.pack(len(data), files.checksum(data, at)) + data


def test_a_changed_file_is_refused(exported: Path) -> None:
    whole = exported.read_bytes()
    for place in random.Random(2).sample(range(len(whole)), 30):
        exported.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(exported)


def test_a_repeated_or_missing_record_is_refused(exported: Path) -> None:
    """The records that are left are intact."""
    whole, at = exported.read_bytes(), len(files.ThreadFile.FIRST_LINE)
    while at < len(whole):
        length, _ = files.FRAME.unpack_from(whole, at)
        after = at + files.FRAME.size + length
        if after < len(whole):
            for changed in (whole[:after] + whole[at:], whole[:at] + whole[after:]):
                exported.write_bytes(changed)
                with pytest.raises(FileDamaged):
                    files.ThreadFile.opened(exported, JsonPlusSerializer(), target=False).__enter__()
        at = after


def test_an_unknown_record_is_refused(exported: Path) -> None:
    whole = exported.read_bytes()
    for record in ([], ["news", 1], 7, ["thread"], ["checkpoint", 7]):
        exported.write_bytes(whole[:22] + _framed(record, 22) + whole[22:])
        refused(exported)


def test_an_export_never_replaces_a_file(exported: Path, lived: dict[str, str]) -> None:
    before = exported.read_bytes()
    ran = Ran("export", lived["ours"], str(exported))
    assert ran.code == 2 and "exists already" in ran.err and exported.read_bytes() == before


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("echo this ran",))


@pytest.mark.parametrize("what", [{"t": Evil()}, [1], {"t": {"": 3}}, b"junk"])
def test_a_foreign_pickle_is_refused_and_runs_no_code(
    what: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], places: Places
) -> None:
    langgraph_dev.save(InMemorySaver(), tmp_path)
    (tmp_path / ".langgraph_checkpoint.1.pckl").write_bytes(what if what == b"junk" else pickle.dumps(what, 2))
    assert Ran("migrate", f"inmem:{tmp_path}", places.url("ours")).refused_with("")
    assert "this ran" not in capfd.readouterr().out


def test_persistent_dict_reads_and_writes_our_dumps(places: Places, lived: dict[str, str], tmp_path: Path) -> None:
    from langgraph.checkpoint.memory import PersistentDict

    numbers = itertools.count(1)

    def factory(*args: Any) -> Any:
        made = PersistentDict(*args, filename=str(tmp_path / f".langgraph_checkpoint.{next(numbers)}.pckl"))
        if Path(made.filename).exists():
            made.load()
        return made

    assert Ran("migrate", lived["ours"], f"inmem:{tmp_path}").all_well
    saver = InMemorySaver(factory=factory)
    with places.saver(lived["ours"]) as ours:
        same(ours, saver)
    go_on(saver)
    saver.storage.sync(), saver.writes.sync(), saver.blobs.sync()
    assert Ran("migrate", f"inmem:{tmp_path}", here := places.url("sqlite")).all_well
    with places.saver(here) as lite:
        same(saver, lite)


# -- encryption


def test_encrypted_threads_need_the_key(places: Places, lived: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    here, plain = places.url("ours"), places.url("sqlite")
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    assert Ran("migrate", lived["inmem"], here).all_well
    assert Ran("migrate", lived["inmem"], here).out.startswith("5 threads: 0 copied, 0 completed, 5 there already")
    assert Ran("export", here, f"{places.folder}/encrypted").all_well
    assert b"hello" not in (places.folder / "encrypted").read_bytes()
    monkeypatch.delenv("LANGGRAPH_AES_KEY")
    ran = Ran("migrate", here, plain)
    assert ran.code == 1 and ran.err.count("set LANGGRAPH_AES_KEY") == 5
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "short")
    assert Ran("migrate", here, plain).code == 2


def test_values_of_older_serializers_stay_unchanged() -> None:
    source, target = InMemorySaver(), InMemorySaver()
    chat(source).invoke({"messages": [HumanMessage("hello")]}, of("t"))
    for key in source.blobs:
        if key[2] == "orders":
            source.blobs[key] = ("pickle", b"not looked at")
    with opened("memory://older", target=True) as ours:
        source.serde = target.serde = ours.saver.serde
        assert migrate(source, ours, sample=9).failed == []
        assert migrate(ours, target, sample=9).failed == []
    assert source.blobs.items() >= {key: data for key, data in target.blobs.items()}.items()


def test_json_checkpoints_are_readable_after_a_migration(places: Places) -> None:
    """LangGraph wrote such checkpoints in 2024."""
    there, here = places.url("sqlite"), places.url("ours")
    human = {"lc": 2, "type": "constructor", "id": ["langchain_core", "messages", "human", "HumanMessage"]}
    values = {"messages": [{**human, "kwargs": {"content": "hello"}}], "n": 1}
    made = {**checkpoint(values, {"messages": "1", "n": "2"}, "1"), "v": 1, "pending_sends": []}
    with places.saver(there) as saver:
        for thread, sends in (("t", []), ("sends", [1])):
            saver.put(config(thread), made, {"source": "loop", "step": 1, "parents": {}}, {})
            row = (json.dumps({**made, "pending_sends": sends}).encode(), thread)
            saver.conn.execute("UPDATE checkpoints SET type = 'json', checkpoint = ? WHERE thread_id = ?", row)
        saver.conn.commit()
    ran = Ran("migrate", there, here)
    assert "1 failed" in ran.out and "thread 'sends'" in ran.err and "pending sends" in ran.err
    with places.saver(here) as new:
        found = new.get_tuple(of("t")).checkpoint["channel_values"]
    assert (found["messages"][0].content, type(found["messages"][0]), found["n"]) == ("hello", HumanMessage, 1)


# -- random threads

WORDS = ["a", "b", "c*", "{x}", "ü|:", "\x01y", "z" * 50, "a b", "%25", "\n"]
PATHS = {"t1": "", "t2": "~__pregel_pull, b", "t*3": "~__pregel_pull, a", "00": "~__pregel_push, 1"}


def any_value(draw: random.Random) -> Any:
    sizes = draw.randint(0, 3000), draw.randint(0, 60)
    return draw.choice([
        None, True, -1, 1.5, "x" * sizes[0], b"\0\1", bytearray(b"q"), [None], {}, {"k": [1, {2: 3}]}, uuid4(), (1, 2), {1, 2},
        [{"m": number, "t": "y" * number} for number in range(sizes[1])], HumanMessage("hi " * sizes[1]), Order(7),
        [HumanMessage("q" * (number * 37 % 600), id=str(number)) for number in range(sizes[1])],
    ])  # fmt: skip


def anything(draw: random.Random) -> InMemorySaver:
    """Return a saver with forks, namespaces, channels without values, parallel tasks and hostile names."""
    saver, numbers = InMemorySaver(), itertools.count(1)
    for thread, ns in itertools.product(draw.sample(WORDS, 2), draw.sample(["", "x", "a|b:1", "c*"], 2)):
        done: list[Any] = [(None, {}, {})]
        for step in range(draw.randint(1, 7)):
            parent, versions, values = draw.choice(done[-3:])
            new = {channel: f"{next(numbers):032}.{step}" for channel in draw.sample(WORDS, draw.randint(0, 3))}
            values = {channel: value for channel, value in values.items() if channel not in new}
            values |= {channel: any_value(draw) for channel in new if draw.random() < 0.85}
            made = checkpoint(values, {**versions, **new}, f"1f{next(numbers):010}")
            made["versions_seen"] = {name: {**versions} for name in draw.sample(WORDS, 2)}
            about: Any = {"source": "loop", "step": step, "parents": {}, "more": [1.0, {"z": None}]}
            where = saver.put(config(thread, ns, parent), made, about, new)
            done.append((made["id"], made["channel_versions"], values))
            for task in draw.sample(list(PATHS), draw.randint(0, 3)):
                saver.put_writes(where, [(draw.choice(WORDS), any_value(draw)) for _ in range(3)], task, PATHS[task])
                if draw.random() < 0.4:
                    special = draw.sample([INTERRUPT, "__resume__", "__error__"], 2)
                    saver.put_writes(
                        where, [(name, any_value(draw)) for name in special], task, draw.choice(["", PATHS[task]])
                    )
    return saver


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(range(12)))
def test_random_threads_survive_two_migrations(places: Places, seed: int) -> None:
    """Each migration is interrupted and repeated. Then the threads go back to memory unchanged."""
    draw = random.Random(seed)
    first, back = anything(draw), InMemorySaver()
    urls = [places.url(draw.choice([*KINDS, "file"])) for _ in range(2)]
    with ExitStack() as stack:
        sources: list[Any] = [first]
        for url in urls:
            for stop in draw.sample(range(1, 30), 0 if url.startswith("file") else 3):
                with suppress(KeyboardInterrupt), opened(url, target=True) as target:
                    migrate(sources[-1], target, progress=stopping(stop))
            with opened(url, target=True) as target:
                report = migrate(sources[-1], target, sample=1000)
            assert (report.failed, report.conflicts, report.threads) == ([], [], 2)
            sources.append(stack.enter_context(opened(url, target=False)))
        back.serde = OpaqueSerializer()
        migrate(sources[-1], back)
        back.serde = first.serde
    for thread in first.storage:
        assert all_of(first, thread) == all_of(back, thread) != []


# -- errors and output

WRONG = {
    "redis://me:secret@127.0.0.1:1": "127.0.0.1:1",
    "postgresql://me:secret@127.0.0.1:1/db": "127.0.0.1",
    "postgresql://me:secret@127.0.0.1:abc/db": "abc",
    "postgres://me:secret@[::1/db": "::1",
    "sqlite:/nowhere/at/all": "there is no such file",
    "inmem:/nowhere": "write the folder .langgraph_api",
    "file:/nowhere/file": "No such file",
    "checkpoints.sqlite": "write redis://",
    "mysql://me:secret@host/db": "write redis://",
    "sqlite:": "write redis://",
    "": "write redis://",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_source_gives_a_one_line_error(url: str, places: Places) -> None:
    assert Ran("migrate", url, places.url("ours")).refused_with(WRONG[url])


def test_a_wrong_target_gives_a_one_line_error(lived: dict[str, str], places: Places, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (n)").connection.close()
    forgotten = "ends with this command. Name a server"
    for source, target, said in (
        (lived["ours"], f"redis://127.0.0.1:{free_port()}", ""),
        (lived["ours"], f"sqlite:{tmp_path}/text", ""),
        (lived["ours"], f"sqlite:{tmp_path}/no/folder", ""),
        (lived["ours"], f"file:{tmp_path}/no/folder", ""),
        (lived["ours"], f"postgresql://me:secret@127.0.0.1:{free_port()}/db", ""),
        (places.url("postgres"), places.url("ours"), "relation"),
        (f"sqlite:{tmp_path}/empty.db", places.url("ours"), ""),
        (lived["ours"], "memory://", forgotten),
        ("memory://name", lived["ours"], forgotten),
    ):
        assert Ran("migrate", source, target).refused_with(said)
    assert "only threads in Redis can expire" in Ran("migrate", lived["ours"], f"file:{tmp_path}/f", "--ttl", "5m").err


@pytest.mark.parametrize(("extra", "url"), [("sqlite", "sqlite:x"), ("postgres", "postgresql://host/db")])
def test_the_error_names_a_missing_package(
    extra: str, url: str, monkeypatch: pytest.MonkeyPatch, places: Places
) -> None:
    monkeypatch.setitem(sys.modules, f"langgraph.checkpoint.{extra}", None)
    assert Ran("migrate", places.url("ours"), url).refused_with(f"pip install 'redis-saver[{extra}]'")


@pytest.mark.parametrize("option", [["--sample", "-1"], ["--ttl", "0"], ["--ttl", "x"], ["--sample", "many"]])
def test_invalid_options_are_refused(option: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"), redirect_stderr(io.StringIO()):
        main(["migrate", "redis://a", "redis://b", *option])
    with pytest.raises(ValueError, match="sample=-1"):
        migrate(InMemorySaver(), InMemorySaver(), sample=-1)


def test_a_server_that_dies_gives_a_one_line_error(lived: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    write = engine_module._Move._copy

    def dying(self: Any, *args: Any) -> None:
        write(self, *args)
        server.kill()

    monkeypatch.setattr(engine_module._Move, "_copy", dying)
    assert Ran("migrate", lived["inmem"], server.url).refused_with(server.url)


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_migration_never_changes_its_source(places: Places, tmp_path: Path, mode: str, old: bool) -> None:
    """It does not set up the source's saver. It also reads a file from before tasks had paths."""
    path = tmp_path / "db"
    with places.saver(f"sqlite:{path}") as saver:
        live(saver)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={mode}")
    if old:
        connection.execute("ALTER TABLE writes DROP COLUMN task_path")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert (ran := Ran("migrate", f"sqlite:{path}", here := places.url("inmem"))).all_well and "5 copied" in ran.out
    assert path.read_bytes() == before
    places.same(f"sqlite:{path}", here)


def test_threads_move_to_a_cluster_and_back(places: Places, lived: dict[str, str]) -> None:
    cluster, here = url_of("cluster"), places.url("sqlite")
    keys = f"migrate{os.getpid()}"
    assert Ran("migrate", lived["ours"], cluster, "--target-prefix", keys).all_well
    assert Ran("migrate", cluster, here, "--source-prefix", keys).all_well
    places.same(lived["ours"], here)


def test_a_terminal_shows_a_progress_bar(lived: dict[str, str], places: Places) -> None:
    near, far = pty.openpty()
    words = ("-m", "redis_saver", "migrate", lived["sqlite"], places.url("ours"))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = run_python(*words, environment=environment, capture_output=False, stdout=subprocess.PIPE, stderr=far)
    os.close(far)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(near, 100_000).decode())
    assert done.returncode == 0 and done.stdout.startswith("5 threads: 5 copied")
    assert "5/5 threads" in shown and "checkpoints" in shown


def test_pending_writes_keep_their_paths(places: Places, lived: dict[str, str]) -> None:
    """Later writes then get the right order."""
    here = places.url("inmem")
    assert Ran("migrate", lived["postgres"], here).all_well
    with places.saver(here) as saver:
        written = [write for where, some in saver.writes.items() if where[0] == "user-delta" for write in some.values()]
        (newest,) = saver.list(of("user-delta"), limit=1)
    assert {"~__pregel_pull, a", "~__pregel_pull, b"} <= {write[3] for write in written}
    assert {write[1] for write in newest.pending_writes} >= {"log", INTERRUPT}
