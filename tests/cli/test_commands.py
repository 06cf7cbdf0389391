"""The commands that look at threads and change them, as people run them: screens, JSON, exit codes, mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from factories import checkpoint, config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import ERROR, INTERRUPT
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from servers import Server, url_of
from typer.main import get_command

from redis_saver import RedisSaver, TieredSaver
from redis_saver._cli import doctor, stats_command, threads_command
from redis_saver._cli.app import app
from redis_saver._cli.main import main

EVIL = "evil\x1b[31m\nname"
ROOT = Path(__file__).parents[2]


class Place:
    """A server of the tests, and a prefix of the test's own."""

    def __init__(self, saver: RedisSaver, url: str, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.saver, self.url, self.prefix, self._capsys = saver, url, prefix, capsys
        self.err = ""

    def put(self, thread: str, number: int, parent: int | None = None, ns: str = "", **values: Any) -> dict[str, Any]:
        """Put a checkpoint whose id and versions are a number."""
        made = checkpoint(values, dict.fromkeys(values, f"{number}"), checkpoint_id=f"{number:03}")
        made["versions_seen"] = {"node": {"n": f"{number}"}}
        where = config(thread, ns, None if parent is None else f"{parent:03}")
        return self.saver.put(where, made, {"source": "loop", "step": number, "parents": {}}, made["channel_versions"])  # type: ignore[return-value]

    def live(self, thread: str = "talk") -> None:
        """A thread with a fork, an interrupt, and a subgraph's call."""
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
        """Run a command; its output, in which what depends on the clock is left out, and two blanks stand between columns."""
        assert main([command, *words, "--redis", self.url, "--prefix", self.prefix]) == code, self._capsys.readouterr()
        said = self._capsys.readouterr()
        self.err = said.err
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said.out + said.err), "a terminal obeys that"
        return re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"(\d+[wdhms]+)+ ago", "AGO", said.out))

    def json(self, command: str, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.run(command, *words, "--json").splitlines()]

    def refused(self, command: str, *words: str) -> str:
        assert self.run(command, *words, code=2) == ""
        assert self.err.count("\n") == 1 and self.err.startswith("redis-saver: "), self.err
        return self.err


@pytest.fixture
def place(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Place]:
    url, prefix = url_of("redis"), f"cli-{os.getpid()}-{request.node.name[:20]}"
    with RedisSaver.from_conn_string(url, prefix=prefix) as saver:
        made = Place(saver, url, prefix, capsys)
        yield made
        for info in saver.threads():
            saver.delete_thread(info.thread_id)


def test_threads_are_shown(place: Place) -> None:
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


def test_a_thread_is_shown(place: Place) -> None:
    place.live()
    size = f"{place.saver.get_thread('talk').bytes:,}"
    head = (
        "thread  talk\nstate  interrupted\nupdated  2026-11-21T10:00:00+00:00 (AGO)\n"
        f"checkpoints 5\nbytes  {size}\nexpires  never\n"
    )
    assert place.run("show", "talk") == head + (
        "checkpoint  004\n  step 4, loop, parent 002\nchannels\n"
        "messages  list  1 elements, the last: human: hi\nn  int  4\n"
        "pending writes\ntask-4  __interrupt__  sure?\n"
    )
    assert "n (str): 'evil\\x1b[31m\\nname'\n" in place.run("show", "talk", "003", "--values")
    assert "n (str): msgpack b'\\xaeevil\\x1b[31m\\nname'\n" in place.run("show", "talk", "003", "--raw")
    assert "inner  int  1" in place.run("show", "talk", "--ns", "sub:1")
    (one,) = place.json("show", "talk", "002")
    assert one["checkpoint"]["channels"]["messages"][1]["content"] == "hello"
    assert (one["checkpoint"]["parent"], one["checkpoint"]["metadata"]["step"]) == ("001", 2)
    assert {write["channel"] for write in one["checkpoint"]["pending_writes"]} == {"n", INTERRUPT}
    (raw,) = place.json("show", "talk", "001", "--raw")
    assert raw["checkpoint"]["channels"]["n"] == {"type": "msgpack", "hex": "01"}
    assert "'nobody' is not there" in place.refused("show", "nobody")
    assert "'009'" in place.refused("show", "talk", "009")
    assert "'elsewhere'" in place.refused("show", "talk", "--ns", "elsewhere")


def test_a_tree_is_drawn(place: Place) -> None:
    place.live()
    assert place.run("tree", "talk") == (
        "root\n"
        "     checkpoint  step  source  ran  pending  created\n"
        "●  001  1  loop  -  2026-11-21 10:00:00\n"
        "◆  002  2  loop  node  interrupted  2026-11-21 10:00:00\n"
        "├─◆  003  3  loop  node  interrupted  2026-11-21 10:00:00\n"
        "└─◆  004  4  loop  node  interrupted  2026-11-21 10:00:00\n"
        "namespace sub:1\n"
        "   checkpoint  step  source  ran  pending  created\n"
        "●  005  5  loop  -  2026-11-21 10:00:00\n"
    ).replace("interrupted   ", "interrupted  ").replace("pending       ", "pending      ").replace(
        "-  2026-11-21 10:00:00\n◆", "-  2026-11-21 10:00:00\n◆"
    )
    assert [one["checkpoint_id"] for one in place.json("tree", "talk", "--ns", "")] == ["001", "002", "003", "004"]
    (one,) = place.json("tree", "talk", "--ns", "sub:1")
    assert (one["checkpoint_ns"], one["parent"], one["pending"]) == ("sub:1", None, [])
    assert place.run("tree", "talk", "--limit", "1").count("\n") == 3 and "--limit" in place.err
    place.put(EVIL, 1, 2, n=1)
    place.put(EVIL, 2, 1, n=1)
    assert [one["checkpoint_id"] for one in place.json("tree", EVIL)] == ["002", "001"], "each other's parent"


def test_what_differs(place: Place) -> None:
    place.live()
    assert place.run("diff", "talk", "001", "002") == ("       what  before  after\nadded  messages.m2  ai: hello\n")
    assert place.run("diff", "talk", "001", "003") == (
        "         what  before  after\nchanged  n  1  'evil\\x1b[31m\\nname'\n"
    )
    assert place.run("diff", "talk", "004") == "no channel differs\n"
    (one,) = place.json("diff", "talk", "001", "002")
    assert one["channels"][0]["changes"][0]["path"] == ["m2"]
    assert "'009'" in place.refused("diff", "talk", "009")


def test_who_wrote_what(place: Place) -> None:
    place.live()
    assert place.run("writes", "talk", "--ns", "", "--channel", "n") == (
        "step  node  channel  bytes  task  began from  applied in  namespace\n"
        "   3  ask  n  1  task-1  002  004, 003\n"
        "   2  node?  n  -  -  001  002\n"
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
    assert "'nobody'" in place.refused("writes", "nobody") and "'nobody'" in place.refused("history", "nobody", "n")


def test_deadlines_are_set(place: Place) -> None:
    place.put("a", 1, n=1)
    place.put("b", 1, n=1)
    assert place.run("ttl", "a") == "a expires: never\n"
    assert re.fullmatch(r"a expires: in (2h|1h59m)\n", place.run("ttl", "a", "2h"))
    assert 7190 < place.json("ttl", "a")[0]["ttl"] <= 7200
    assert place.run("pin", "a", "b", "nobody", code=1) == "pinned: a\npinned: b\n"
    assert place.err.startswith("not pinned: nobody: ") and place.err.count("\n") == 1
    assert place.run("ttl", "a") == "a expires: pinned\n"
    assert place.run("unpin", "a", "a") == "unpinned: a\n"
    assert place.run("ttl", "b", "none") == "b expires: never\n"
    assert "'nobody' is not there" in place.refused("ttl", "nobody", "1h")


def test_threads_are_deleted_once_somebody_agrees(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", EVIL):
        place.put(name, 1, n=1)
    assert "say --yes. Nothing was deleted" in place.refused("delete", "a")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, left in ((False, {"a", "b", EVIL}), (True, {"b"})):
        monkeypatch.setattr("typer.confirm", lambda said, answer=answer: answer)
        said = place.run("delete", "a", EVIL)
        assert said.startswith("a: 1 checkpoints, ") and "'evil\\x1b[31m\\nname': 1 checkpoints" in said
        assert {info.thread_id for info in place.saver.threads()} == left
    place.put("half", 1, n=1)
    _raw(place).delete(place.saver._context.keyspace.keys("half").index_key)
    assert place.run("delete", "half", "nobody", "--yes", code=1) == "deleted: half\n"
    assert place.err == "not deleted: nobody: it is not there\n"


def _raw(place: Place) -> Any:
    return redis.Redis.from_url(place.url)


def test_old_checkpoints_are_removed_once_it_is_said(place: Place) -> None:
    for number in range(1, 5):
        place.put("a", number, number - 1 or None, n=number)
        place.put("b", number, number - 1 or None, n=number)
    would = place.run("prune", "--all", "--keep-last", "2")
    assert would.startswith("Nothing was removed. --yes removes 4 checkpoints of 2 threads, ")
    assert place.saver.get_thread("a").checkpoints == 4
    assert place.json("prune", "a", "--older-than", "90000d")[0]["checkpoints"] == 0
    assert place.run("prune", "a", "--yes", "--keep-last", "2").startswith("removed: 2 checkpoints of 1 threads, ")
    found = place.json("prune", "--thread-prefix", "b", "--yes")[0]
    assert (found["checkpoints"], found["threads"], found["dry_run"]) == (3, 1, False)
    assert [place.saver.get_thread(name).checkpoints for name in "ab"] == [2, 1]
    assert "older_than" in place.refused("prune", "a", "--older-than", "soon")
    for words in ([], ["a", "--all"], ["--all", "--thread-prefix", "a"]):
        with pytest.raises(SystemExit, match="2"):
            main(["prune", *words, "--redis", place.url])


def test_a_thread_is_copied(place: Place) -> None:
    place.live()
    size = f"{place.saver.get_thread('talk').bytes:,}"
    assert place.run("copy", "talk", EVIL) == f"copied: 'evil\\x1b[31m\\nname' has 5 checkpoints, {size} bytes\n"
    assert "--replace" in place.refused("copy", "talk", EVIL)
    place.run("copy", "talk", EVIL, "--replace")
    assert "'nobody'" in place.refused("copy", "nobody", "b")
    found = [list(place.saver.list(config(name, None))) for name in ("talk", EVIL)]
    assert [one.checkpoint for one in found[0]] == [one.checkpoint for one in found[1]]


@pytest.mark.parametrize(
    "words", [("delete", "a", "--yes"), ("prune", "a", "--yes"), ("copy", "a", "b"), ("copy", "b", "a", "--replace")]
)
def test_what_a_cold_tier_would_undo_is_refused(place: Place, words: tuple[str, ...]) -> None:
    place.put("a", 1, n=1)
    place.put("b", 1, n=1)
    _raw(place).hset(place.saver._context.keyspace.keys("a").data_key, "@cold_backed", "1")
    place.run(*words, code=2)
    assert "is in a cold tier, too" in place.err and "--postgres URL" in place.err
    assert {info.thread_id for info in place.saver.threads()} == {"a", "b"}


def test_two_tiers(place: Place, database: str) -> None:
    with PostgresSaver.from_conn_string(database) as cold:
        for name in {one.config["configurable"]["thread_id"] for one in cold.list(None)}:  # other tests use it, too
            cold.delete_thread(name)
        tiers = TieredSaver(place.saver, cold)
        for name in ("a", "b"):
            made = checkpoint({"n": 1}, checkpoint_id="001")
            tiers.put(config(name), made, {"source": "input", "step": -1}, made["channel_versions"])
            tiers.get_tuple(config(name))  # which fills hot
        place.saver.delete_thread("b")
        cold_words = ("--postgres", database)
        rows = {one.split()[0]: one.split()[-2:] for one in place.run("threads", *cold_words).splitlines()[1:]}
        assert rows == {"a": ["both", "0"], "b": ["cold", "0"]}
        told = {one["thread_id"]: (one["tier"], one["checkpoints"]) for one in place.json("threads", *cold_words)}
        assert told == {"a": ("both", 1), "b": ("cold", 1)}
        assert "tier  cold, cold lacks 0 records\n" in place.run("show", "b", *cold_words)
        assert "is in a cold tier" in place.refused("delete", "a", "--yes")
        assert place.run("delete", "a", "b", "--yes", *cold_words) == "deleted: a\ndeleted: b\n"
        assert list(cold.list(config("a"))) == [] == list(place.saver.threads())
        place.run("threads", "--postgres", "postgresql://u:secret@127.0.0.1:1/x", code=2)
        assert "127.0.0.1" in place.err and "secret" not in place.err


# -- doctor and stats


def test_a_sound_server(place: Place) -> None:
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


def test_who_owns_threads_is_told(place: Place) -> None:
    place.put("a", 1, n=1)
    with place.saver.own("a", by="worker\x1b[31m 7"):
        assert "worker\\x1b[31m 7" in place.run("threads", "--owned")
        assert "worker" not in place.run("threads", "--free")
        assert re.search(r"^owner +worker.*of the lease left$", place.run("show", "a"), re.MULTILINE)
        assert ("ok", "owners") in {(one["severity"], one["about"]) for one in place.json("doctor")}
        key = place.saver._context.keyspace.owner_key("a")
        raw = place.saver._driver.client
        record = raw.get(key).split(b" ", 2)
        raw.set(key, b" ".join([record[0], b"1", record[2]]))  # the lease ran out long ago
        assert "its lease has run out" in place.run("show", "a")
        assert "(late)" in place.run("threads")
        assert [one["what"] for one in place.json("doctor") if one["about"] == "owners"] == [
            "the leases of 1 owners have run out: a"
        ]


def test_what_is_wrong_is_found_with_its_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    raw, url = server.client(), server.url
    with RedisSaver.from_conn_string(url) as saver:
        place = Place(saver, url, "langgraph", capsys)
        for name in ("a", EVIL):
            place.put(name, 1, n=1)
        raw.delete(saver._context.keyspace.keys(EVIL).index_key)
        behind = TieredSaver(saver, InMemorySaver(), mode="write-behind", flusher=False)
        made = checkpoint({"n": "x"})
        behind.put(config("dirty"), made, {}, made["channel_versions"])
        monkeypatch.setattr(doctor, "_SLOW", 0)
        monkeypatch.setattr(doctor, "_LATE", -1)
        monkeypatch.setattr(doctor, "_FULL", 0)
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
        assert [one["thread_id"] for one in map(json.loads, place.run("threads", "--json", code=1).splitlines())] != []
        assert place.err.startswith("damaged: 'evil\\x1b[31m\\nname': ") and place.err.count("\n") == 1
        assert (place.json("stats")[0]["threads"]["damaged"], place.json("stats")[0]["threads"]["backlog"]) == (1, 1)
        raw.execute_command(
            *"ACL SETUSER narrow on >secret ~langgraph:* +evalsha +eval +scan +exists +hget +hmget +zcard +zrange +time +zscore "
            "+zlexcount +zrangebylex +zrevrangebylex +pttl".split()
        )
        place.url = url.replace("//", "//narrow:secret@")
        rights = {
            one["what"]
            for one in map(json.loads, place.run("doctor", "--json", code=1).splitlines())
            if one["about"] == "rights"
        }
        assert len(rights) == 3 and all("may not ask" in one for one in rights)
        assert re.search("^backlog +1$", place.run("stats"), re.MULTILINE) and "may not ask INFO" in place.err
    server.stop()


@pytest.mark.parametrize("command", ["threads", "stats"])
def test_watching_goes_on_until_it_is_interrupted(place: Place, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("a", 1, n=1)
    pauses = list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    module = threads_command if command == "threads" else stats_command
    monkeypatch.setattr(module.time, "sleep", sleep)
    assert len(place.run(command, "--watch", "--json", code=130).splitlines()) == 2 and pauses == [2, 2]


# -- words, help, processes


def commands() -> dict[str, Any]:
    return get_command(app).commands  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("name", ["", *sorted(commands())])
def test_help_and_the_page_name_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*([name] if name else []), "--help"]) == 0
    said, page = capsys.readouterr().out, (ROOT / "docs" / "commands.md").read_text()
    section = re.search(rf"^#+ .*`{name}`.*?(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL) if name else None
    assert "xit code" in said and (section or not name), name
    for option in (commands()[name] if name else get_command(app)).params:
        for spelled in getattr(option, "opts", ()) if option.param_type_name == "option" else ():
            assert spelled in said
            common = spelled in ("--redis", "--prefix", "--json", "--postgres", "--help", "--ns")
            assert common or not name or spelled in section[0], spelled  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing command"),
        (["thread"], "No such command 'thread'"),
        (["threads", "--state", "waiting"], "'active', 'interrupted', 'failed'"),
        (["threads", "--limit", "0"], "write 1 or more"),
        (["threads", "--updated-after", "soon"], "soon is no time"),
        (["threads", "--expires-within", "soon"], "write a duration"),
        (["show"], "THREAD"),
        (["ttl", "a", "soon"], "write a duration"),
        (["delete", "a", "redis://me:hunter2@host", "--bogus"], "--bogus"),
        (["show", "a", "b", "redis://me:hunter2@host"], "//host"),
    ],
)
def test_words_that_make_no_sense_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and "--help" in err and "hunter2" not in err, err


@pytest.mark.parametrize("url", ["memory://x", "redis://me:secret@127.0.0.1:1", "nonsense", ""])
def test_a_bad_server_is_one_line(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    for command in (["threads"], ["tree", "x"], ["pin", "x"], ["doctor"], ["stats"]):
        assert main([*command, *(["--redis", url] if url else [])]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "secret" not in err, err


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "REDIS_URL": url_of("redis"), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environment}
    env.pop("FORCE_COLOR", None) if "FORCE_COLOR" not in environment else None
    return subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, encoding="utf-8", timeout=120
    )


def test_as_a_process(place: Place) -> None:
    place.live()
    words = ("-m", "redis_saver", "threads", "--prefix", place.prefix)
    done, coloured = process(*words), process(*words, FORCE_COLOR="1")
    assert (done.returncode, coloured.returncode) == (0, 0), done.stderr
    assert "\x1b" not in done.stdout and "\x1b[33minterrupted" in coloured.stdout
    ascii_only = process("-m", "redis_saver", "tree", "talk", "--prefix", place.prefix, PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0 and "?  001" in re.sub(" {2,}", "  ", ascii_only.stdout), ascii_only.stderr
    completed = process(
        "-m", "redis_saver", _REDIS_SAVER_COMPLETE="complete_bash", COMP_WORDS="redis-saver thr", COMP_CWORD="1"
    )
    assert completed.stdout.split() == ["threads"]
    missing = process(
        "-c",
        "import sys; sys.modules['typer'] = None\nfrom redis_saver._cli.main import main\nsys.exit(main(['threads']))",
    )
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1 and "redis-saver[cli]" in missing.stderr
