"""`redis-saver flush` as a process, between a real Redis and a real Postgres that come and go."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import programs
from tests.support.commands import ROOT, run_python
import psycopg
import pytest
from tests.support.cases import case
from tests.support.factories import checkpoint, config
from langgraph.checkpoint.postgres import PostgresSaver
from tests.support.proxy import Proxy
from tests.support.servers import Server, new_database
from tests.support.tiering import plain, written
from tests.support.uniform import Uniform

from bench.servers import free_port
from redis_saver import RedisSaver, TieredSaver
from redis_saver._cli import flushing
from redis_saver._cli.main import main
from redis_saver._common.names import Keyspace
from redis_saver import TierStats

pytestmark = pytest.mark.xdist_group("flush")
_numbers = itertools.count()
LEFT = r"(\d+) records are left"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


class Place:
    """A Redis prefix and a Postgres database of one test, with a writer that does not flush."""

    def __init__(self, server: Server, postgres: str) -> None:
        number = next(_numbers)
        self.redis, self.keys = server.url, f"flush{os.getpid()}-{number}"
        self.postgres = new_database(postgres)
        self.raw = server.client()
        self._made = [
            PostgresSaver.from_conn_string(self.postgres),
            RedisSaver.from_conn_string(self.redis, prefix=self.keys),
        ]
        self.cold, self.hot = [one.__enter__() for one in self._made]
        self.cold.setup()
        self.uniform = Uniform(self.writer())

    def writer(self) -> TieredSaver:
        return TieredSaver(self.hot, self.cold, mode="write-behind", flusher=False)

    def close(self) -> None:
        for one in self._made:
            one.__exit__(None, None, None)

    def left(self) -> int:
        """Return the number of records that cold lacks."""
        return sum(self.raw.zcard(key) for key in self.raw.scan_iter(Keyspace(self.keys).dirty_pattern))

    def thread(self, name: str = "thread") -> list[Any]:
        return [plain(one) for one in self.cold.list(config(name))]

    def options(self, *more: str) -> list[str]:
        return ["--redis", self.redis, "--postgres", self.postgres, "--prefix", self.keys, *more]

    def once(self, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run("--once", *self.options(*more), **environment)


@pytest.fixture
def place(server: Server, postgres: str) -> Iterator[Place]:
    made = Place(server, postgres)
    yield made
    made.close()


def environment_of(more: dict[str, str]) -> dict[str, str]:
    named = ("REDIS_URL", "POSTGRES_URL", "DATABASE_URL", "LANGGRAPH_AES_KEY")
    kept = {name: value for name, value in os.environ.items() if name not in named}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "redis_saver", "flush", *options)
    return programs.run(*command, environment=environment_of(environment), folder=ROOT)


def keep_lines(stream: Any, to: list[str]) -> None:
    """Keep the lines of a stream as they come."""
    for line in stream:
        to.append(line)


class Running:
    """A running flusher process."""

    def __init__(self, *options: str, **environment: str) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        (out, to_out), (err, to_err) = (map(open, os.pipe(), "rw") for _ in range(2))
        with to_out, to_err:
            self.process = programs.Program(
                "-m", "redis_saver", "flush", *options,
                environment=environment_of(environment), folder=ROOT, out=to_out, err=to_err,
            )  # fmt: skip
        self._readers = [
            threading.Thread(target=keep_lines, args=pair, daemon=True) for pair in ((out, self.out), (err, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def said(self, text: str, times: int = 1) -> None:
        """Wait until a text is in its output."""
        until(lambda: len(re.findall(text, self.text)) >= times, lambda: f"{text!r} is not in {self.text}")

    @property
    def text(self) -> str:
        return "".join([*self.out, *self.err])

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        for reader in self._readers:
            reader.join(10)
        return code

    @property
    def flushed(self) -> int:
        found = re.findall(r"flushed (\d+)", self.text)
        return int(found[-1]) if found else 0


@contextmanager
def running(*options: str, **environment: str) -> Iterator[Running]:
    made = Running(*options, **environment)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait(60)


def until(holds: Callable[[], bool], why: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


async def test_once_flushes_all_records(place: Place) -> None:
    for name in ("thread", "another"):
        await written(place.uniform, name)
    await place.uniform.get_tuple(config("gone"))
    done = place.once()
    assert (done.returncode, done.stderr) == (0, "")
    assert "flushed 12, set aside 0" in done.stdout
    assert done.stdout.splitlines()[-1] == "flush: ended: nothing is left"
    assert place.left() == 0
    assert len(place.thread()) == len(place.thread("another")) == 3
    assert place.thread() == [plain(one) for one in place.hot.list(config())]
    await place.uniform.delete_thread("thread")
    done = run_python("-m", "redis_saver", "flush", "--once", *place.options("--quiet"), environment=environment_of({}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (place.thread(), len(place.thread("another"))) == ([], 3)


async def test_the_environment_provides_urls(place: Place) -> None:
    for names in (("REDIS_URL", "POSTGRES_URL"), ("REDIS_URL", "DATABASE_URL")):
        await written(place.uniform, names[1])
        urls = dict(zip(names, (place.redis, place.postgres), strict=True))
        done = run("--once", "--prefix", place.keys, **urls)
        assert done.returncode == 0, done.stderr
        assert len(place.thread(names[1])) == 3
    both = {"REDIS_URL": place.redis, "POSTGRES_URL": place.postgres, "DATABASE_URL": "mysql://elsewhere"}
    assert run("--once", "--prefix", place.keys, **both).returncode == 0


async def test_cold_history_latest_writes_only_the_newest_checkpoint(place: Place) -> None:
    await written(place.uniform)
    assert place.once("--cold-history", "latest").returncode == 0
    assert len(place.thread()) == 1


@pytest.mark.parametrize("key", [None, "0123456789abcdef"])
async def test_the_flusher_needs_no_classes(place: Place, key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import make_dataclass

    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    order = make_dataclass("Order", [("number", int)])
    order.__module__ = __name__
    monkeypatch.setattr(sys.modules[__name__], "Order", order, raising=False)
    environment = {}
    if key:
        monkeypatch.setenv("LANGGRAPH_AES_KEY", key)
        place.hot.serde = place.cold.serde = EncryptedSerializer.from_pycryptodome_aes()
        place.uniform = Uniform(place.writer())
        environment = {"LANGGRAPH_AES_KEY": key}
    await place.uniform.get_tuple(config())
    one = checkpoint({"order": order(7), "n": [1]}, {"order": f"{1:032}.1", "n": f"{1:032}.1"})
    where = await place.uniform.put(config(), one, {}, one["channel_versions"])
    await place.uniform.put_writes(where, [("order", order(8))], "task")
    done = place.once(**environment)
    assert (done.returncode, done.stderr) == (0, "")
    found = place.cold.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"order": order(7), "n": [1]}
    assert found.pending_writes == [("task", "order", order(8))]
    with psycopg.connect(place.postgres) as connection:
        (kind,) = connection.execute("SELECT DISTINCT type FROM checkpoint_blobs").fetchone()
    assert kind == ("msgpack+aes" if key else "msgpack")


async def test_a_signal_stops_the_flusher_after_the_last_record(place: Place) -> None:
    """It also flushes records that arrive while it runs."""
    await written(place.uniform)
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(*place.options("--interval", "0.2", "--timeout", "30")) as flusher:
            flusher.said("from redis://")
            until(lambda: place.left() == 0)
            await written(place.uniform, f"during-{number}")
            until(lambda: place.left() == 0)
            await written(place.uniform, f"last-{number}")
            assert flusher.stop(number) == 0
            assert flusher.out[-1] == "flush: ended: nothing is left\n"
            assert flusher.err == []
            assert flusher.flushed in (12, 18)
        assert len(place.thread(f"last-{number}")) == 3


async def test_a_pause_stops_the_flusher_until_it_is_resumed(place: Place, capsys: Any) -> None:
    of_redis = ["--redis", place.redis, "--prefix", place.keys]
    assert main(["flush", "--pause", "--for", "30m", *of_redis]) == 0, "Postgres may be away"
    assert f"flush: paused for 30m, in all processes with prefix '{place.keys}'" in capsys.readouterr().out
    await written(place.uniform)
    assert main(["flush", "--once", *place.options()]) == 1, "it does not wait for the end of the pause"
    said = capsys.readouterr()
    assert re.search(r"6 records are left in Redis.*; flushing is paused for another \d+ s: --resume", said.err)
    assert main(["doctor", *of_redis]) in (0, 1)
    assert "flushing is paused for another" in " ".join(capsys.readouterr().out.split())
    with running(*place.options()) as flusher:
        flusher.said("backlog 6 records of 1 threads, .*, paused")
        assert place.left() == 6 and not place.thread()
        assert main(["flush", "--resume", *of_redis]) == 0
        assert "flush: goes on" in capsys.readouterr().out
        until(lambda: not place.left())
        assert flusher.stop() == 0 and len(place.thread()) == 3


async def test_two_flushers_share_the_work(place: Place) -> None:
    """Each record is flushed once."""
    with running(*place.options("--interval", "0.1")) as one, running(*place.options("--interval", "0.1")) as other:
        for each in (one, other):
            each.said("from redis://")
        total = 0
        deadline = time.monotonic() + 120
        while not (one.flushed and other.flushed):
            assert time.monotonic() < deadline, one.text + other.text
            for _ in range(10):
                await written(place.uniform, f"thread-{total}")
                total += 6
            until(lambda: place.left() == 0)
        assert (one.stop(), other.stop()) == (0, 0), one.text + other.text
        assert one.flushed + other.flushed == total
    with psycopg.connect(place.postgres) as connection:
        assert connection.execute("SELECT count(*) FROM checkpoints").fetchone() == (total // 2,)


async def test_a_record_that_cold_refuses_is_set_aside(place: Place) -> None:
    """The exit code reports it, and the other records are flushed."""
    await written(place.uniform)
    await place.uniform.get_tuple(config("bad"))
    bad = checkpoint({"text": "x"}, {"text": f"{1:032}.1"})
    # Postgres keeps metadata as JSON, which has no NUL.
    await place.uniform.put(config("bad"), bad, {"note": ["\x00"]}, bad["channel_versions"])
    began = time.monotonic()
    done = place.once()
    assert time.monotonic() - began < 60  # without waiting for the time limit
    assert done.returncode == 1
    assert re.search(LEFT, done.stderr)[1] == "1"
    assert "set aside 1, last error: " in done.stdout
    assert len(place.thread()) == 3
    with running(*place.options("--timeout", "1")) as flusher:
        flusher.said("set aside 1")
        assert flusher.stop() == 1
    assert re.search(LEFT, "".join(flusher.err))[1] == "1"


@pytest.mark.parametrize("once", [True, False])
async def test_the_flusher_warns_while_it_is_stuck(place: Place, once: bool, tmp_path: Path) -> None:
    """Postgres answers, but its tables are locked."""
    await written(place.uniform)
    (tmp_path / "start.py").write_text(
        "from redis_saver._cli import flushing, main; flushing.STUCK_AFTER = 2; raise SystemExit(main.main())"
    )
    options = [*(["--once"] if once else []), *place.options("--timeout", "60")]
    with psycopg.connect(place.postgres) as locking:
        locking.execute("LOCK TABLE checkpoints, checkpoint_blobs, checkpoint_writes IN ACCESS EXCLUSIVE MODE")
        errors, to_errors = map(open, os.pipe(), "rw")
        with to_errors, open(os.devnull, "wb") as nowhere:
            flusher = programs.Program(
                str(tmp_path / "start.py"), "flush", *options,
                environment=environment_of({}), folder=ROOT, out=nowhere, err=to_errors,
            )  # fmt: skip
        line = errors.readline()
        locking.rollback()
    assert re.match(
        r"redis-saver: nothing was flushed for 2 s. 6 records of 1 threads wait, the oldest for \d+ s", line
    )
    if not once:
        until(lambda: place.left() == 0)
        flusher.send_signal(signal.SIGTERM)
    assert flusher.wait(100) == 0
    errors.close()


async def test_the_flusher_retries_until_postgres_comes_back(place: Place) -> None:
    port = int(re.search(r":(\d+)/", place.postgres)[1])
    proxy = Proxy(port)
    url = place.postgres.replace(f":{port}/", f":{proxy.port}/").replace("bench@", "bench:hunter2@")
    await written(place.uniform)
    with running(*place.options("--postgres", url, "--interval", "0.2")) as flusher:
        until(lambda: place.left() == 0)
        listening = proxy.port
        proxy.close()
        await written(place.uniform, "meanwhile")
        flusher.said("retrying until")
        with socket.create_server(("127.0.0.1", listening)) as nobody:
            nobody.settimeout(60)
            for _ in range(5):
                nobody.accept()[0].close()
        assert place.left() == 6
        again = Proxy(port, listening)
        flusher.said("it answers again")
        until(lambda: place.left() == 0)
        await written(place.uniform, "after")
        until(lambda: place.left() == 0)
        assert flusher.stop() == 0
        again.close()
    assert [len(place.thread(name)) for name in ("thread", "meanwhile", "after")] == [3, 3, 3]
    assert flusher.flushed == 18
    assert len(flusher.err) == 2, flusher.err
    assert "hunter2" not in flusher.text


async def test_the_flusher_waits_for_both_servers(place: Place, postgres: str) -> None:
    """It reports if a signal or the time limit ends it before that."""
    ports = [free_port(), free_port()]
    redis_url, url = f"redis://:hunter2@127.0.0.1:{ports[0]}", f"postgresql://bench:hunter2@127.0.0.1:{ports[1]}/flush"
    done = place.once("--redis", redis_url, "--postgres", url, "--timeout", "2s")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 3
    with running("--redis", redis_url, "--postgres", url) as flusher:
        flusher.said("retrying until", 2)
        assert flusher.stop() == 1
    assert "asked to stop" in flusher.err[-1] or "before both" in flusher.err[-1]
    assert "hunter2" not in done.stderr + flusher.text
    proxies = []
    await written(place.uniform)
    with running(*place.options("--redis", f"redis://127.0.0.1:{ports[0]}")) as flusher:
        flusher.said("retrying until")
        proxies.append(Proxy(int(place.redis.rpartition(":")[2]), ports[0]))
        flusher.said("it answers again")
        until(lambda: place.left() == 0)
        proxies.pop().close()
        flusher.said("retrying until", 2)
        assert flusher.stop() == 1
        assert "Redis does not answer" in flusher.err[-1]
    assert len(place.thread()) == 3


async def test_missing_or_old_tables_are_refused(server: Server, empty_database: str) -> None:
    name, url = f"bare{next(_numbers)}", empty_database
    options = ["--redis", server.url, "--postgres", url, "--prefix", name, "--once"]
    done = run(*options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--setup" in done.stderr
    assert run(*options, "--setup").returncode == 0
    assert run(*options).returncode == 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM checkpoint_migrations WHERE v > 3")
    done = run(*options)
    assert (done.returncode, "tables are old" in done.stderr) == (2, True)


def refused(capsys: Any, *options: str) -> str:
    """Run a wrong call in this process, and return its error."""
    assert main(["flush", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "hunter2" not in said.err
    return str(said.err)


def test_errors_that_no_retry_repairs_are_reported_at_once(
    place: Place, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REDIS_URL", "POSTGRES_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "REDIS_URL" in refused(capsys, "--postgres", place.postgres)
    assert "POSTGRES_URL" in refused(capsys, "--redis", place.redis)
    for option, url in (
        ("--redis", "http://user:hunter2@host"),
        ("--redis", "memory://here"),
        ("--redis", "redis://:hunter2@host:port"),
        ("--redis", place.redis + "/99"),
        ("--redis", place.redis.replace("://", "://user:hunter2@")),
        ("--redis", place.redis.replace("redis:", "redis+cluster:")),
        ("--postgres", "mysql://user:hunter2@host/database"),
        ("--postgres", "postgresql://user:hunter2@host:port/database"),
        ("--postgres", "postgresql://user:hunter2@host/database?nonsense=1"),
        ("--postgres", "postgresql://user:hun%zzter2@host/database"),
        ("--postgres", place.postgres.replace("bench@", "nobody:hunter2@")),
        ("--postgres", place.postgres + "_not_there"),
        ("--postgres", place.postgres + "?sslmode=require"),
        ("--prefix", "{braces}"),
        ("--prefix", ""),
    ):
        assert refused(capsys, *place.options(option, url))
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "short")
    assert "LANGGRAPH_AES_KEY" in refused(capsys, *place.options())
    monkeypatch.delenv("LANGGRAPH_AES_KEY")
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    assert "redis-saver[postgres]" in refused(capsys, *place.options())


def test_a_wrong_password_is_refused(place: Place, capsys: Any) -> None:
    guarded = Server("--requirepass", "secret")
    for url in (guarded.url, guarded.url.replace("://", "://:hunter2@")):
        assert refused(capsys, *place.options("--redis", url))
    assert main(["flush", "--once", *place.options("--redis", guarded.url.replace("://", "://:secret@"))]) == 0
    guarded.stop()


INVALID = (
    *("--interval 0", "--interval often", "--interval 0s", "--workers 0", "--timeout -1", "--timeout nan"),
    *("--timeout 10x", "--cold-history some", "--pause --for 25h", "--pause --resume", "--for 1h"),
)


def test_invalid_options_are_refused(capsys: Any) -> None:
    for option in INVALID:
        with case(option), pytest.raises(SystemExit, match="2"):
            main(["flush", "--redis", "redis://127.0.0.1:1", *option.split()])


def test_signal_handlers_are_restored(place: Place, capsys: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert main(["flush", "--once", *place.options()]) == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize("loaded", [False, True])
async def test_metrics_are_exported_if_opentelemetry_is_loaded(place: Place, loaded: bool, tmp_path: Path) -> None:
    """`opentelemetry-instrument redis-saver flush` loads it. The flusher also works without it."""
    await written(place.uniform)
    text = f"""
import sys
from redis_saver._cli.main import main
if {loaded}:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    from redis_saver._cli import flushing
    end = flushing._Run.end
    def ended(self, *args):
        (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        (found,) = [one for one in scope.metrics if one.name == "redis_saver.tier.flush.records"]
        print([point.value for point in found.data.data_points if "flushed" in point.attributes.values()])
        return end(self, *args)
    flushing._Run.end = ended
else:
    sys.modules["redis_saver.telemetry"] = None
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        sys.modules[name] = None
assert main(["flush", "--once", "--quiet", *{place.options()!r}]) == 0
"""
    (tmp_path / "start.py").write_text(text)
    # Without it, nothing of it may have been imported before.
    done = run_python(str(tmp_path / "start.py"), environment=environment_of({}), is_forked=loaded)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[6]\n" if loaded else "")


def test_lost_records_are_said_and_only_what_nobody_flushes_is_stuck(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process counts what Redis lost, and that may be this command, which has no log."""
    monkeypatch.setattr(flushing, "STUCK_AFTER", 0.0)
    server: Any = SimpleNamespace(why="", url="redis://127.0.0.1")
    run = flushing._Run(server, server, SimpleNamespace(), quiet=True)  # type: ignore[arg-type]

    def said(**stats: Any) -> str:
        run.tell(TierStats(oldest_seconds=9.0, **stats))
        return capsys.readouterr().err

    assert said(backlog=9) == said(backlog=8) == ""  # others flush
    assert "nothing was flushed" in (text := said(backlog=8)) and "pg_locks" in text
    refused = said(backlog=8, set_aside=3, last_error="KeyUnavailable: gone")
    assert "3 are refused again and again; last error: KeyUnavailable: gone" in refused
    assert said(backlog=8, paused_seconds=1.0) == ""
    assert said(backlog=0) == said(backlog=0) == ""  # the age is of the last scan
    server.why = "it does not answer"
    assert said(backlog=8) == ""
    assert "about 5 records that Postgres does not have" in said(lost_records=5)
    assert said(lost_records=5) == ""
    assert "about 2 records" in said(lost_records=7)
