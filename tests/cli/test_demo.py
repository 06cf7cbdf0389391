"""The demo command: its output is compared with the data on the server."""

from __future__ import annotations

import io
import os
import re
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from tests.support.commands import run_python
from tests.support.servers import Server, url_of

from redis_saver import RedisSaver, RedisStore
from redis_saver._common import times
from redis_saver._cli.demo import build_agent
from redis_saver._cli.main import main
from redis_saver._client.clients import connect

ROW = re.compile(
    r"^(?P<lane>[├└│─ ]*)(?P<mark>[●◆◇]) (?P<id>[0-9a-f]{6}) +(?P<ran>\w+) +"
    r"(?P<next>\S+) +(?P<bytes>[\d,]+)(?:  (?P<said>.*))?$",
    re.MULTILINE,
)
STATUS = re.compile(r"^(\d+) checkpoints, ([\d,]+) bytes, (\d+) keys, expires in (\w+)(.*)$", re.MULTILINE)

pytestmark = pytest.mark.xdist_group("demo")  # so it runs once on each server


class Run:
    def __init__(self, url: str, *options: str) -> None:
        """Run the demo in this process, and capture its output."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("COLUMNS", "80")
            patch.delenv("FORCE_COLOR", raising=False)
            self.url, self.code = url, main(["demo", "--redis", url, *options])
        self.out, self.err = out.getvalue(), err.getvalue()
        self.sections = re.split(r"^\d  .* ─+$", self.out, flags=re.MULTILINE)[1:]
        self.thread = "".join(re.findall(r"thread_id=(demo-[0-9a-f]{8})\b", self.out))

    def rows(self, section: int) -> list[dict[str, str]]:
        return [match.groupdict() for match in ROW.finditer(self.sections[section - 1])]


@pytest.fixture(scope="module", params=["fakeredis", "redis"])
def told(request: pytest.FixtureRequest) -> Run:
    return Run(url_of(request.param))


@pytest.fixture(scope="module", params=["fakeredis", "redis"])
def kept(request: pytest.FixtureRequest) -> Run:
    return Run(url_of(request.param), "--keep", "--ttl", "2m")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_demo_prints_six_sections(told: Run) -> None:
    assert (told.code, told.err, len(told.sections)) == (0, "", 6)
    assert all("\x1b" not in line and len(line) <= 80 for line in told.out.splitlines())


def test_the_demo_deletes_its_thread(told: Run) -> None:
    assert f"Deleted: 0 keys of {told.thread} are left" in told.out
    with RedisSaver.from_conn_string(told.url) as saver:
        assert list(saver.threads(told.thread)) == []


def test_the_demo_draws_the_growing_tree(told: Run) -> None:
    assert [len(told.rows(section)) for section in (1, 2, 3, 4)] == [8, 3, 2, 18]
    assert told.rows(4)[0]["id"] == told.rows(1)[0]["id"] and told.rows(4)[12]["id"] == told.rows(3)[1]["id"]


def test_the_interrupt_waits_and_is_answered(told: Run) -> None:
    waiting = told.rows(2)[-1]
    assert (waiting["mark"], waiting["next"], waiting["said"]) == ("◆", "tools", "waits: Book TP 531 for 189 EUR?")
    (answered,) = [row for row in told.rows(4) if row["mark"] == "◇"]
    assert answered["id"] == waiting["id"] and answered["said"].startswith("asked: Book TP 531 for 189 EUR?, answ")


def test_a_new_worker_resumes_the_booking(told: Run) -> None:
    before, after = STATUS.findall(told.sections[2])
    assert (before[-1], after[-1]) == (", waits for a human", "")
    assert "human  yes\ntool   TP 531 is booked for 189 EUR\n" in told.sections[2]


def test_the_fork_has_two_branches(told: Run) -> None:
    assert [row["lane"] for row in told.rows(4)] == [""] * 8 + ["├─"] + ["│ "] * 4 + ["└─"] + ["  "] * 4
    first, second = (row["said"] for row in told.rows(4) if row["lane"].endswith("─"))
    assert (first, second) == ("human: Book the first one, please.", "human: And what about Split?")


def test_the_thread_grows_by_at_least_the_writes(told: Run) -> None:
    shown = [(int(checkpoints), number(stored)) for checkpoints, stored, *_ in STATUS.findall(told.out)]
    assert f"bytes={shown[-1][1]}" in told.sections[4]
    assert 0 < sum(number(row["bytes"]) for row in told.rows(4)) < shown[-1][1]
    assert [checkpoints for checkpoints, _ in shown] == [8, 11, 11, 13, 18]
    assert {keys for _, _, keys, *_ in STATUS.findall(told.out)} == {"2"}


def test_the_agent_remembers_in_another_thread(told: Run) -> None:
    booking = r"^\('travellers', '(\w+)'\)  'last booking': {'flight': 'TP 531', 'price': 189}$"
    found = re.search(booking, told.sections[5], re.MULTILINE)
    assert "agent  Welcome back! Last time you booked TP 531." in told.sections[5]
    with RedisStore.from_conn_string(told.url) as store, RedisSaver.from_conn_string(told.url) as saver:
        assert found and store.count(("travellers", found[1])) == 0
        assert list(saver.threads(found[1])) == []


def test_the_ttl_counts_down_until_a_write_restarts_it(told: Run) -> None:
    seconds = [times.parse(left, name="left").total_seconds() for *_, left, _ in STATUS.findall(told.out)]
    assert all(3500 < left < 3600 for left in seconds)
    assert seconds[2] < seconds[1], "nobody wrote for a second"
    assert seconds[3] > seconds[2], "a write starts it again"


def test_keep_leaves_the_thread_as_shown(kept: Run) -> None:
    assert kept.code == 0
    with RedisSaver.from_conn_string(kept.url) as saver:
        (info,) = saver.threads(kept.thread)
        assert info.ttl is not None and timedelta(0) < info.ttl <= timedelta(minutes=2)
        found = list(saver.list({"configurable": {"thread_id": kept.thread}}))
    ids = {each.config["configurable"]["checkpoint_id"][-6:]: each for each in found}
    assert {row["id"] for row in kept.rows(4)} == set(ids)
    for row in kept.rows(4):
        if row["said"] and row["ran"] == "tools":
            said = ids[row["id"]].checkpoint["channel_values"]["messages"][-1].content
            assert row["said"][:30] == f"tool: {said}"[:30]
    parents = Counter(each.parent_config["configurable"]["checkpoint_id"] for each in found if each.parent_config)
    assert Counter(parents.values()) == {1: 15, 2: 1}
    ((fork, _),) = parents.most_common(1)
    assert kept.rows(4)[7]["id"] == fork[-6:], "the branches are drawn under their parent"


def test_keep_prints_how_to_read_the_thread(kept: Run, capsys: pytest.CaptureFixture[str]) -> None:
    if kept.url.startswith("redis:"):
        line = rf"^  redis-saver (\w+) {kept.thread} --redis {re.escape(kept.url)}$"
        named = re.findall(line, kept.out, re.MULTILINE)
        assert named == ["tree", "show", "inspect"]
        for name in named[:2]:
            assert main([name, kept.thread, "--redis", kept.url]) == 0
        assert "Book the first one, please." in capsys.readouterr().out
    else:
        assert f"ends with this process, and so does {kept.thread}" in kept.out


@pytest.mark.parametrize("option", [None, "--no-color"])
def test_a_process_prints_colors_unless_told_otherwise(option: str | None) -> None:
    environment = {**os.environ, "REDIS_URL": url_of("redis"), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    words = ("-m", "redis_saver", "demo", *([option] if option else []))
    done = run_python(*words, environment=environment, is_forked=option is None)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("\x1b[" in done.stdout) == (option is None)
    assert url_of("redis") in done.stdout


BAD = {
    "redis://127.0.0.1:1": "Connection refused",
    "redis+cluster://127.0.0.1:1": "Connection refused",
    "unix:///nowhere": "No such file",
    "redis://me:secret@127.0.0.1:abc": "host:port is missing or invalid",
    "http://me:secret@127.0.0.1": "write redis://",
    "nonsense": "write redis://",
}


def one_line(run: Run, said: str) -> bool:
    return run.code == 2 and run.err.count("\n") == 1 and said in run.err and "secret" not in run.err


@pytest.mark.parametrize("url", BAD)
def test_a_bad_url_gives_a_one_line_error(url: str) -> None:
    assert one_line(run := Run(url), BAD[url]), run.err


@pytest.mark.parametrize("module", ["rich.console", "langgraph.prebuilt", "fakeredis"])
def test_a_missing_package_gives_a_one_line_error(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "redis_saver._cli.demo")
    monkeypatch.setitem(sys.modules, module, None)
    assert one_line(run := Run("memory://"), "pip install 'redis-saver[cli]'"), run.err


def test_a_failure_halfway_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr("redis_saver._cli.demo.time.sleep", lambda _: server.kill())
    assert one_line(run := Run(server.url), "onnection"), run.err
    client = connect("memory://vanishing", asynchronous=False)
    monkeypatch.setattr("redis_saver._cli.demo.time.sleep", lambda _: client.flushall())
    assert one_line(run := Run("memory://vanishing"), "is not there"), run.err


@pytest.mark.parametrize("ttl", ["x", "-1m", "nan", "60", "1s", "999999999999999w"])
def test_an_invalid_ttl_is_refused(ttl: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--ttl", ttl])
    assert "--ttl" in capsys.readouterr().err


def test_the_agent_books_nothing_after_a_no() -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "refused", "traveller": "anna"}}
    with RedisSaver.from_conn_string("memory://") as saver, RedisStore.from_conn_string("memory://") as store:
        agent = build_agent(saver, store)
        for said in ("Which flights go to Split?", "Then book it"):
            agent.invoke({"messages": [HumanMessage(said)]}, config)
        answer = agent.invoke(Command(resume="no"), config)["messages"][-1]
        assert store.search(("travellers",)) == []
    assert answer.content == "not booked, the human said 'no'. Have a good trip!"
