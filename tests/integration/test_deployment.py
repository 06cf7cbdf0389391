"""Programs of docs/service.md, docs/deployment.md and docs/workers.md, run unchanged.

Real servers and workers serve many users at once, and are stopped as an operator does it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import redis
from celery import Celery
from jupyter_client.manager import KernelManager
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import MessagesState, StateGraph
from tests.support import programs
from tests.support.factories import config, put
from tests.support.servers import Server, free_port, url_of
from tests.support.uniform import Uniform, encryption

from redis_saver import RedisCache, RedisSaver, RedisStore, TieredSaver
from redis_saver.encryption import Encryption, Keyset

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("service.md", "deployment.md", "workers.md"))
PROGRAMS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)

SECONDS = 100.0
"""Time limit for a server to listen, for all workers to answer, or for an exit, on a busy machine."""
USERS = 8
DEV = {"PYTHONWARNINGS": "default", "PYTHONASYNCIODEBUG": "1"}
"""Environment with the warnings of `-X dev`, for a process that is forked."""
PROBLEMS = ("Warning", "Traceback", "was never", "Task was destroyed", "calling callback", "Exception ignored")

pytestmark = pytest.mark.timeout(400)
needs_gevent = pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")


def not_ours(port: int) -> re.Pattern[str]:
    """Return a pattern of warnings that come from the servers and workers, and not from our code."""
    return re.compile(
        # Python 3.12 and later, for each fork of a process with OS threads. These tests are about such deadlocks.
        r"DeprecationWarning: This process \(pid=\d+\) is multi-threaded, use of fork\(\) may lead to deadlocks"
        # gunicorn's sync workers do not close the socket they listen on. (A client's socket has another port.)
        rf"|ResourceWarning: unclosed <socket\.socket [^>]*laddr=\('127\.0\.0\.1', {port}\)>"
        r"|SecurityWarning: You're running the worker with superuser privileges"  # Celery's, if the tests run as root
        r"|celery/backends/redis\.py:\d+: DeprecationWarning: Call to deprecated setex"
        # The second line of each ResourceWarning.
        r"|ResourceWarning: Enable tracemalloc to get the object allocation traceback"
    )


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Write all programs of the pages into a folder; return an environment for them, with an empty Redis database."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    url = url_of("redis") + "/1"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), "REDIS_URL": url}


def flags_and_arguments(command: str) -> list[str]:
    """Return the arguments of `python -X dev` for a command of the pages."""
    assert command in COMMANDS, f"{command!r} is on no page"
    program, *arguments = shlex.split(command)
    return arguments if program == "python" else ["-m", program.replace("-", "_"), *arguments]


class Running:
    """A running command of the pages, with its output in a file."""

    def __init__(
        self,
        command: str,
        folder: Path,
        environment: dict[str, str],
        *more: str,
        port: int = 0,
        is_forked: bool = False,
    ) -> None:
        """Start it as its users do, or quickly, from a process that has done the imports."""
        self.log, self.port, self.is_forked = folder / f"log-{port}", port, is_forked
        words = [*flags_and_arguments(command), *more]
        with self.log.open("wb") as log:
            self.process: Any = (
                programs.Program(*words, environment=environment | DEV, folder=folder, out=log, err=log)
                if is_forked
                else subprocess.Popen(
                    [sys.executable, "-X", "dev", *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, what: str, is_so: Callable[[], Any]) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + SECONDS
        while not is_so():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text()}"
            assert time.monotonic() < end, f"not in {SECONDS} s: {what}\n{self.text()}"
            time.sleep(0.05)

    def listens(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=SECONDS).close()
        except OSError as error:
            return isinstance(error, urllib.error.HTTPError)
        return True

    def post(self, path: str, text: str) -> str:
        url = f"http://127.0.0.1:{self.port}/{path}"
        with urllib.request.urlopen(url, text.encode(), timeout=SECONDS) as reply:
            return str(reply.read(), "utf-8")

    def ended(self) -> str:
        """Wait for a clean exit; return the output."""
        self.exited()
        check_log(self.text(), self.port)
        return self.text()

    def exited(self) -> None:
        """Wait for an exit. A uvicorn without workers ends by the signal that stopped it, once all is closed."""
        assert self.process.wait(SECONDS) in ((0, -signal.SIGTERM) if self.is_forked else (0,)), self.text()

    def kill(self) -> None:
        """Kill it with its workers, if it runs."""
        if self.process.poll() is None:
            self.process.kill() if self.is_forked else os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def check_log(text: str, port: int = 0) -> None:
    expected = not_ours(port)
    lines = [line for line in text.splitlines() if not expected.search(line)]
    assert [line for line in lines if any(problem in line for problem in PROBLEMS)] == [], text


@contextmanager
def running(
    command: str, folder: Path, environment: dict[str, str], *more: str, is_clean: bool = True, **options: Any
) -> Iterator[Running]:
    """Run a server program, and stop it as an operator does. It must exit without complaints if `is_clean`."""
    program = Running(command, folder, environment, *more, **options)
    try:
        if program.port:
            program.until("it listens", program.listens)
        yield program
        program.process.send_signal(signal.SIGTERM)
        if is_clean:
            program.ended()
        else:
            program.exited()
    finally:
        program.kill()


@contextmanager
def gunicorn(command: str, folder: Path, environment: dict[str, str], *more: str, **options: Any) -> Iterator[Running]:
    port = free_port()
    with running(command, folder, environment, "--bind", f"127.0.0.1:{port}", *more, port=port, **options) as server:
        yield server


@contextmanager
def uvicorn(command: str, folder: Path, environment: dict[str, str], *more: str, **options: Any) -> Iterator[Running]:
    port = free_port()
    with running(command, folder, environment, "--port", str(port), *more, port=port, **options) as server:
        yield server


def one_worker(folder: Path, environment: dict[str, str], **options: Any) -> Any:
    """Run the service with one worker, for tests of what one does."""
    return uvicorn(SERVE, folder, environment, "--workers", "1", is_forked=True, **options)


@contextmanager
def two_of(command: str, folder: Path, environment: dict[str, str]) -> Iterator[Any]:
    """Run two servers with one worker each, instead of one with two. Their `post` takes them by turns."""
    options = (command, folder, environment, "--workers", "1")
    with uvicorn(*options, is_forked=True) as one, uvicorn(*options, is_forked=True) as other:
        turns = itertools.cycle((one, other))
        yield SimpleNamespace(post=lambda path, text: next(turns).post(path, text))


def understood(answer: str) -> tuple[str, int]:
    """Split an answer into the graph's answer and the process id."""
    said, _, process = answer.rpartition(" (process ")
    return said, int(process.rstrip(")\n"))


class Users:
    """Concurrent users, each with a thread (conversation) of their own, who check that the answers are theirs."""

    def __init__(self, ask: Callable[[str, str], str], *kinds: str) -> None:
        self.ask = ask
        self.turns = {f"{kind}user-{number}": 0 for number in range(USERS // len(kinds)) for kind in kinds}
        self.processes: set[int] = set()

    def speak(self, user: str) -> None:
        for _ in range(3):
            self.turns[user] += 1
            said = f"turn {self.turns[user]} of {user}"
            answer, process = understood(self.ask(user, said))
            assert answer == f"{self.turns[user]}: {said}"
            self.processes.add(process)

    def speak_to(self, processes: int) -> None:
        """Let all users speak at once until `processes` processes have answered."""
        end = time.monotonic() + SECONDS
        while True:
            with ThreadPoolExecutor(len(self.turns)) as threads:
                list(threads.map(self.speak, self.turns))
            if len(self.processes) >= processes:
                return
            assert time.monotonic() < end, f"only {self.processes} answered"


# -- the service

CALLERS = {
    "token-of-anna": ("acme", "anna"),
    "token-of-ben": ("acme", "ben"),
    "token-of-gus": ("globex", "gus"),
    "token-of-another-anna": ("globex", "anna"),
}
SHREDDED = {"token-of-ina": ("initech", "ina")}
"""A caller whose tenant has no key."""
SERVE = "uvicorn --workers 2 service:app"
SETUP = "redis-saver flush --once --setup --prefix chats --keys-file keys"
FLUSH = "redis-saver flush --prefix chats --keys-file keys"
INSTALL, MAKE_KEYS, EXPORT, NIGHTLY, PRUNE = (
    next(command for command in COMMANDS if command.startswith(beginning))
    for beginning in (
        "pip install ",
        "for name in primary ",
        "export REDIS_URL=",
        "redis-saver threads --postgres ",
        "redis-saver prune --all ",
    )  # fmt: skip
)
OF_SERVICE = {SERVE, SETUP, FLUSH, INSTALL, MAKE_KEYS, EXPORT, NIGHTLY, PRUNE}
"""Commands of the service. Nobody runs `INSTALL` and `EXPORT`."""


def in_shell(command: str, environment: dict[str, str], folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder, env={**environment, "PATH": path}, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def of_service(database: str, environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return the environment of the service, with new keys and empty tables."""
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            connection.execute(f"DELETE FROM {table}")
    in_shell(MAKE_KEYS, environment, tmp_path)
    return {**environment, "POSTGRES_URL": database, "KEYS_FILE": "keys", "CALLERS": json.dumps(CALLERS | SHREDDED)}


class Client:
    """A user of the service."""

    def __init__(self, port: int, token: str = "token-of-anna") -> None:
        self.port, self.token = port, token

    def request(self, path: str, said: str) -> bytes:
        """Return the bytes of a POST."""
        data = json.dumps(said)
        head = f"POST /{path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.token}"
        return "\r\n".join((*head, "Content-Type: application/json", f"Content-Length: {len(data)}", "", data)).encode()

    def opened(self, method: str, path: str, said: Any = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if said is None else json.dumps(said).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", data, headers, method=method)
        return urllib.request.urlopen(request, timeout=SECONDS)

    def asked(self, method: str, path: str, said: str | None = None) -> Any:
        with self.opened(method, path, said) as reply:
            return json.loads(reply.read() or "null")

    def begin(self) -> str:
        return str(self.asked("POST", "chats"))

    def lines(self, chat: str, said: Any, to: str = "messages") -> list[dict[str, Any]]:
        with self.opened("POST", f"chats/{chat}/{to}", said) as reply:
            return [json.loads(line) for line in reply]

    def status(self, method: str, path: str, said: str | None = None) -> int:
        try:
            with self.opened(method, path, said) as reply:
                reply.read()  # who leaves earlier cancels the run
        except urllib.error.HTTPError as refused:
            assert refused.code != 503 or refused.headers["Retry-After"]
            return refused.code
        return 200


def answered(text: str) -> list[dict[str, Any]]:
    return [{"text": text}, {"end": True}]


def check_asked(answer: list[dict[str, Any]]) -> str:
    """Check that an answer is the question. Returns its id."""
    (question,) = answer[0]["questions"]
    assert (question["value"], answer[1:]) == ("May I book a table?", [{"end": True}])
    return str(question["id"])


def check_conversation(user: Client) -> str:
    """Talk about a home in Lisbon, and book a table. Returns the chat."""
    chat = user.begin()
    assert user.lines(chat, "hello") == answered("It is sunny in somewhere.")
    assert user.lines(chat, "I live in Lisbon") == answered("It is sunny in Lisbon.")
    question = {"id": check_asked(user.lines(chat, "book a table")), "value": "May I book a table?"}
    assert user.asked("GET", f"chats/{chat}")["questions"] == [question]
    assert user.status("POST", f"chats/{chat}/messages", "hello?") == 409
    assert user.lines(chat, {question["id"]: "yes"}, "approval") == answered("book a table: yes")
    assert user.status("POST", f"chats/{chat}/approval", "yes") == 409
    assert user.lines(user.begin(), "hello") == answered("It is sunny in Lisbon.")  # another chat, the same user
    return chat


def test_the_service_answers_its_tenants_on_any_worker(of_service: dict[str, str], tmp_path: Path) -> None:
    in_shell(SETUP, of_service, tmp_path)
    url, keys = of_service["REDIS_URL"], Keyset.from_file(tmp_path / "keys")
    flusher_folder = tmp_path / "flusher"
    flusher_folder.mkdir()
    (flusher_folder / "keys").write_bytes((tmp_path / "keys").read_bytes())
    with (
        uvicorn(SERVE, tmp_path, of_service) as server,
        running(FLUSH, flusher_folder, of_service, is_forked=True) as flusher,
        RedisSaver.from_conn_string(url, prefix="chats", encryption=Encryption(keys)) as saver,
        RedisStore.from_conn_string(url, prefix="chats", encryption=Encryption(keys)) as store,
        PostgresSaver.from_conn_string(of_service["POSTGRES_URL"]) as cold,
    ):
        users = {token: Client(server.port, token) for token in CALLERS}
        chats = {token: check_conversation(user) for token, user in users.items()}

        # each tenant has its own key for chats, items and the cache; nobody reads the chats of others
        assert saver.key_status().threads == {"acme": 4, "globex": 4}
        assert store.key_status().partitions == {"acme": 2, "globex": 2}
        for tenant in ("acme", "globex"):
            with RedisCache.from_conn_string(url, prefix=f"chats-{tenant}", encryption=Encryption(keys)) as cache:
                assert cache.key_status().caches == {tenant: 1}
        for token, user in users.items():
            for other, chat in chats.items():
                found = user.status("GET", f"chats/{chat}")
                assert found == (200 if other == token else 404)
        assert Client(server.port, "of nobody").status("GET", f"chats/{chats['token-of-anna']}") == 401
        assert users["token-of-anna"].status("GET", "health") == 200

        # many at once on one chat
        user, busy = users["token-of-anna"], users["token-of-anna"].begin()
        check_asked(user.lines(busy, "book a table"))
        with ThreadPoolExecutor(20) as threads:
            approvals = [threads.submit(user.status, "POST", f"chats/{busy}/approval", "yes") for _ in range(5)]
            assert sorted(one.result() for one in approvals) == [200, 409, 409, 409, 409]
            assert user.status("DELETE", f"chats/{busy}") == 200
            assert user.status("GET", f"chats/{busy}") == 404
            said = [f"message {number}" for number in range(20)]
            answers = list(threads.map(lambda text: user.lines(busy, text), said))
        assert answers == [answered("It is sunny in Lisbon.")] * 20
        stored = user.asked("GET", f"chats/{busy}")["messages"]
        assert sorted(stored[::2]) == sorted(said) and set(stored[1::2]) == {"It is sunny in Lisbon."}
        checkpoints = saver.list({"configurable": {"thread_id": f"acme:anna:{busy}"}})
        assert len(list(checkpoints)) == 20 * 5  # one chain, no forks

        # the flusher brings all to Postgres, sealed; Redis may lose it
        flusher.until("all is in Postgres", lambda: not any(saver.threads(dirty=True)))
        names = [f"{':'.join(CALLERS[token])}:{chat}" for token, chat in chats.items()]
        for name in names:
            (info,) = [one for one in saver.threads(thread_prefix=name)]
            assert info.ttl is not None and info.ttl.total_seconds() <= 86400
            assert cold.get_tuple({"configurable": {"thread_id": name}}) is not None
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        for token, user in users.items():
            assert user.asked("GET", f"chats/{chats[token]}")["messages"][-1] == "book a table: yes"


@contextmanager
def both_tiers(of_service: dict[str, str], folder: Path) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield hot, cold and the tiered saver of the service, and a small graph over them."""
    sealed = Encryption(Keyset.from_file(folder / "keys"))
    graph = StateGraph(MessagesState).add_node("bot", lambda _: {"messages": [("ai", "hello")]}).set_entry_point("bot")
    with (
        RedisSaver.from_conn_string(of_service["REDIS_URL"], prefix="chats", encryption=sealed) as hot,
        PostgresSaver.from_conn_string(of_service["POSTGRES_URL"]) as cold,
        TieredSaver(hot, cold, mode="write-behind") as saver,
    ):
        yield hot, cold, saver, graph.compile(checkpointer=saver)


def test_the_nightly_prune_bounds_both_tiers(of_service: dict[str, str], tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "acme:anna:long"}}
    with both_tiers(of_service, tmp_path) as (_, cold, saver, graph):
        for _ in range(8):
            graph.invoke({"messages": "hi"}, config)
        saver.flush()
        assert len(list(cold.list(config))) == 24
        graph.invoke({"messages": "hi"}, config)  # prune flushes it, which needs keys
        in_shell(PRUNE, of_service, tmp_path)
        assert [len(list(each.list(config))) for each in (cold, saver)] == [20, 20]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not on the PATH")
def test_the_nightly_job_deletes_old_chats_from_both_tiers(of_service: dict[str, str], tmp_path: Path) -> None:
    configs: Any = [{"configurable": {"thread_id": f"acme:anna:{name}"}} for name in ("one", "two with 'blanks'")]
    with both_tiers(of_service, tmp_path) as (hot, cold, saver, graph):
        for config in configs:
            graph.invoke({"messages": "hi"}, config)
        saver.flush()
        hot.delete_thread("acme:anna:one")  # only Postgres has it
        in_shell(NIGHTLY, of_service, tmp_path)
        assert all(cold.get_tuple(config) for config in configs)
        in_shell(NIGHTLY.replace("90d", "0s"), of_service, tmp_path)
        assert [tier.get_tuple(config) for tier in (hot, cold) for config in configs] == [None] * 4


SLOW = """
import asyncio


async def one(state: State) -> dict:
    if state["messages"][-1].content == "fail":
        raise ValueError("on purpose")
    return {"messages": [AIMessage("one")]}


async def slow(state: State) -> dict:
    while not os.path.exists("released"):
        await asyncio.sleep(0.01)
    return {"messages": [AIMessage("two")]}


builder = StateGraph(State, context_schema=Caller).add_node("one", one).add_node("slow", slow)
builder.set_entry_point("one").add_edge("one", "slow")
"""
"""A graph whose second node waits for a file."""


def test_a_streamed_answer_ends_with_its_client_or_its_ownership(of_service: dict[str, str], tmp_path: Path) -> None:
    """A full backlog ends one, too."""
    bounded = PROGRAMS["service.py"].replace("flusher=False", "flusher=False, max_backlog=60, backlog_timeout=0.1")
    (tmp_path / "service.py").write_text(bounded + SLOW)
    sealed = Encryption(Keyset.from_file(tmp_path / "keys"))
    with (
        one_worker(tmp_path, of_service, is_clean=False) as server,
        RedisSaver.from_conn_string(of_service["REDIS_URL"], prefix="chats", encryption=sealed) as saver,
    ):
        user = Client(server.port)

        def stored(chat: str) -> list[str]:
            config = {"configurable": {"thread_id": f"acme:anna:{chat}"}}
            found = saver.get_tuple(config)
            values = found.checkpoint["channel_values"] if found else {}
            return [message.content for message in values.get("messages", ())]

        def is_waiting(chat: str) -> bool:
            return any(chat.encode() in key for key in saver._driver.client.scan_iter("*:waiters"))

        def begun(chat: str) -> Any:
            """Stream until the first superstep is stored, which is later than its words are sent."""
            reply = user.opened("POST", f"chats/{chat}/messages", "wait")
            assert json.loads(reply.readline()) == {"text": "one"}
            server.until("the first superstep is stored", lambda: stored(chat) == ["wait", "one"])
            return reply

        gone, taken, waits = user.begin(), user.begin(), user.begin()
        with saver.own(f"acme:anna:{waits}"), socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(user.request(f"chats/{waits}/messages", "wait"))
            server.until("it waits", lambda: is_waiting(waits))
        with saver.own(f"acme:anna:{waits}", on_busy="wait", wait="90s"):
            assert stored(waits) in ([], ["wait"], ["wait", "one"])
        begun(gone).close()
        with saver.own(f"acme:anna:{gone}", on_busy="wait", wait="90s"):  # the node still waits, its run was cancelled
            assert stored(gone) == ["wait", "one"]
        with begun(taken) as reply:
            with saver.own(f"acme:anna:{taken}", on_busy="take"):
                (tmp_path / "released").touch()
                assert json.loads(reply.read().splitlines()[-1]) == {"error": "NotOwner"}
            assert stored(taken) == ["wait", "one"]
        assert user.lines(user.begin(), "fail") == [{"error": "ValueError"}]
        full = {"error": "BacklogFull"}
        server.until("the backlog is full", lambda: user.lines(user.begin(), "hello")[-1] == full)


def test_the_service_without_postgres_and_then_without_redis(of_service: dict[str, str], tmp_path: Path) -> None:
    """It starts while Postgres is away. Chats that Redis has go on."""
    redis_server = Server()
    with RedisSaver.from_conn_string(
        redis_server.url, prefix="chats", encryption=encryption(key_for="tenant")
    ) as saver:
        asyncio.run(put(Uniform(saver), config("initech:ina:old"), {"messages": []}))
    away = {**of_service, "REDIS_URL": redis_server.url, "POSTGRES_URL": f"postgresql://127.0.0.1:{free_port()}/none"}
    with one_worker(tmp_path, away, is_clean=False) as server:
        user = Client(server.port)
        chat = check_conversation(user)
        assert user.status("GET", "chats/unknown") == 503
        assert user.status("POST", "chats/unknown/messages", "hello") == 503
        ina = Client(server.port, "token-of-ina")
        assert ina.lines(ina.begin(), "hello")[-1] == {"error": "KeyUnavailable"}
        assert ina.status("GET", "chats/old") == ina.status("POST", "chats/old/messages", "hello") == 503
        redis_server.process.send_signal(signal.SIGSTOP)
        assert user.status("POST", f"chats/{chat}/messages", "hello") == 503, "it hangs"
        redis_server.process.send_signal(signal.SIGCONT)
        redis_server.stop()
        for method, path, said in (("GET", "", None), ("POST", "/messages", "hello"), ("POST", "/approval", "yes")):
            assert user.status(method, f"chats/{chat}{path}", said) == 503
        assert user.status("GET", "health") == user.status("POST", "chats") == 503


def test_the_service_over_redis_alone(of_service: dict[str, str], tmp_path: Path) -> None:
    text = PROGRAMS["service.py"]
    kept = [line for line in text.splitlines(keepends=True) if not re.search("POOL|pool =|with AsyncTieredSaver", line)]
    (saver,) = re.findall(r"saver is `([^`]+)`", PAGE)
    text = "".join(kept).replace("quick, pool:", "quick:").replace("await hot.setup()", f"saver = {saver}")
    indented = text.partition("            app.state.saver")
    body, end, rest = ("            app.state.saver" + indented[2]).partition("            yield\n")
    text = indented[0] + "".join(line.removeprefix("    ") for line in (body + end).splitlines(True)) + rest
    (tmp_path / "service.py").write_text(text)
    with one_worker(tmp_path, {**of_service, "POSTGRES_URL": ""}) as server:
        user = Client(server.port)
        chat = check_conversation(user)
        with RedisSaver.from_conn_string(of_service["REDIS_URL"], prefix="chats") as plain:
            ttl = plain.get_thread_ttl(f"acme:anna:{chat}")
            assert ttl is not None and 89 * 86400 < ttl.total_seconds() <= 90 * 86400
        assert user.status("DELETE", f"chats/{chat}") == 200
        assert user.status("GET", f"chats/{chat}") == 404


def test_every_command_of_the_pages_is_tested_here() -> None:
    here = Path(__file__).read_text()
    assert PROGRAMS
    assert COMMANDS
    assert [command for command in COMMANDS if f'"{command}"' not in here and command not in OF_SERVICE] == []


@pytest.mark.parametrize("workers", ["gthread", "sync"])
def test_flask_views_work_with_gunicorn_preload(workers: str, environment: dict[str, str], tmp_path: Path) -> None:
    command, is_sync = "gunicorn --preload --workers 2 --threads 4 flask_app:app", workers == "sync"
    more = ("--threads", "1") if is_sync else ()  # gunicorn takes another worker class for several threads
    with gunicorn(command, tmp_path, environment, *more, is_forked=is_sync) as server:
        Users(server.post, "sync/sync-", "async/async-").speak_to(2)


@needs_gevent
def test_gunicorn_with_greenlets_refuses_asyncio_in_each_view(environment: dict[str, str], tmp_path: Path) -> None:
    """No view hangs, and none of them makes a later one fail otherwise."""
    command = "gunicorn --preload --workers 2 --threads 4 flask_app:app"
    more = ("-k", "gevent", "--graceful-timeout", "2")
    with gunicorn(command, tmp_path, environment, *more, is_clean=False) as server:
        for view in ("sync", "async", "async", "sync"):
            with pytest.raises(urllib.error.HTTPError):
                server.post(f"{view}/user", "hello")
        assert len(re.findall("ThreadsPatched: .*Use RedisSaver", server.text())) == 4


@pytest.fixture
def empty_database(database: str, environment: dict[str, str]) -> str:
    with PostgresSaver.from_conn_string(database) as cold:
        for user in Users(str, "").turns:
            cold.delete_thread(user)
    environment["POSTGRES_URL"] = database
    return database


@pytest.mark.parametrize(
    ("serve", "command", "kinds"),
    [
        (uvicorn, "uvicorn --workers 2 asgi_app:app", [""]),
        (two_of, "uvicorn --workers 2 django_app:application", ["sync/sync-", "async/async-"]),
    ],
)
def test_uvicorn_workers_continue_each_others_threads(
    serve: Any, command: str, kinds: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    with serve(command, tmp_path, environment) as server:
        Users(server.post, *kinds).speak_to(2)


def test_uvicorn_continues_threads_after_a_reload(environment: dict[str, str], tmp_path: Path) -> None:
    with uvicorn("uvicorn --reload asgi_app:app", tmp_path, environment) as server:
        users = Users(server.post, "")
        users.speak_to(1)
        (tmp_path / "asgi_app.py").touch()
        server.until("it starts anew", lambda: server.text().count("startup complete") == 2)
        users.speak_to(2)


@pytest.mark.parametrize(
    ("serve", "command"),
    [
        (partial(gunicorn, is_forked=True), "gunicorn --preload --workers 2 --threads 4 tiered_app:app"),
        (two_of, "uvicorn --workers 2 tiered_asgi_app:app"),
    ],
)
def test_two_tiers_flush_everything_at_exit(
    serve: Any, command: str, empty_database: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with serve(command, tmp_path, environment) as server:
        users = Users(server.post, "")
        users.speak_to(2)
    with PostgresSaver.from_conn_string(empty_database) as cold:
        for user, turns in users.turns.items():
            newest = cold.get_tuple({"configurable": {"thread_id": user}})
            assert newest is not None, user
            assert len(newest.checkpoint["channel_values"]["messages"]) == 2 * turns


def test_celery_workers_continue_each_others_threads(environment: dict[str, str], tmp_path: Path) -> None:
    url = environment["REDIS_URL"]
    with Celery("client", broker=url, backend=url, set_as_current=False) as client:

        def ask(user: str, said: str) -> str:
            kind = "answer_async" if user.startswith("async") else "answer"
            return str(client.send_task(f"tasks.{kind}", (user, said)).get(timeout=SECONDS))

        with running("celery --app tasks worker --concurrency 2", tmp_path, environment, is_forked=True):
            Users(ask, "sync-", "async-").speak_to(2)


@needs_gevent
def test_celery_workers_with_greenlets_run_blocking_tasks_and_refuse_asyncio(
    environment: dict[str, str], tmp_path: Path
) -> None:
    url, command = environment["REDIS_URL"], "celery --app tasks worker --concurrency 2"
    with (
        running(command, tmp_path, environment, "--pool", "gevent", is_clean=False),
        Celery("client", broker=url, backend=url, set_as_current=False) as client,
    ):
        for turn in (1, 2):
            for user in ("one", "two"):
                refused = client.send_task("tasks.answer_async", (user, "hello"))
                with pytest.raises(Exception, match="Use RedisSaver"):
                    refused.get(timeout=SECONDS)
                answered = client.send_task("tasks.answer", (user, "hello")).get(timeout=SECONDS)
                assert understood(answered)[0] == f"{turn}: hello"


@pytest.mark.parametrize("command", ["python pool.py fork", "python pool.py spawn"])
def test_multiprocessing_pools_continue_threads(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    program = Running(command, tmp_path, environment, is_forked=command.endswith("fork"))
    # Under -X dev, asyncio also names slow callbacks on a busy machine.
    answers = [understood(line) for line in program.ended().splitlines() if not line.startswith("Executing <")]
    users = ["parent", *(f"user-{number}" for number in range(8))]
    assert sorted(said for said, _ in answers) == sorted(
        f"{turn}: {text} from {user}{kind}"
        for turn, text in ((1, "hello"), (2, "thanks"))
        for user in users
        for kind in ("", "-async")
    )
    parent = {process for said, process in answers if "parent" in said}
    children = {process for said, process in answers if "parent" not in said}
    assert parent == {program.process.pid}
    assert children
    assert not parent & children


FORK_IN_C = """
import asyncio, ctypes, os, signal, sys, time
from langgraph.checkpoint.memory import InMemorySaver
import redis, redis.asyncio
from redis_saver import AsyncRedisSaver, AsyncTieredSaver, ForkMissed, RedisSaver, TieredSaver

config = {"configurable": {"thread_id": "user", "checkpoint_ns": ""}}
hot, ahot = RedisSaver(redis.Redis.from_url(sys.argv[1])), AsyncRedisSaver(redis.asyncio.Redis.from_url(sys.argv[1]))
savers = [ahot, TieredSaver(hot, InMemorySaver()), AsyncTieredSaver(ahot, InMemorySaver())]
calls = [lambda saver=saver: saver.get_tuple(config) for saver in savers]
calls += [lambda saver=saver: asyncio.run(saver.aget_tuple(config)) for saver in savers]
before = [call() for call in calls]
if sys.argv[2] == "the child alone":
    fork = lambda: ctypes.PyDLL(None).fork() or ctypes.pythonapi.PyOS_AfterFork_Child()
else:
    fork = ctypes.PyDLL(None).fork
time.sleep(0.3)  # another OS thread amid taking the GIL would leave it locked in the child, for good
if not (child := fork()):
    signal.alarm(20)
    for call in calls:
        try:
            print(call())
        except ForkMissed as error:
            print("ForkMissed")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(("told", "said"), [("nobody", "ForkMissed"), ("the child alone", "None")])
def test_a_fork_in_c_raises_unless_python_is_notified(
    told: str, said: str, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "fork.py").write_text(FORK_IN_C)
    done = programs.run("fork.py", environment["REDIS_URL"], told, environment=environment | DEV, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    check_log(done.stderr)
    assert done.stdout.split() == [said] * 6


def test_the_notebook_runs_in_jupyter(environment: dict[str, str], tmp_path: Path) -> None:
    log, printed = tmp_path / "log", {"stdout": "", "stderr": ""}
    manager = KernelManager(kernel_name="python3", connection_file=str(tmp_path / "kernel.json"))
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv[:] = [sys.executable, "-X", "dev", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    with log.open("wb") as out:
        manager.start_kernel(env=environment, cwd=str(tmp_path), stdout=out, stderr=out)
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(SECONDS)

        def note(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed[message["content"]["name"]] += message["content"]["text"]

        def run(cell: str) -> str:
            printed["stdout"] = ""
            reply = client.execute_interactive(cell, timeout=SECONDS, output_hook=note)
            assert reply["content"]["status"] == "ok", reply["content"]
            return printed["stdout"]

        answers = [understood(line)[0] for line in run(PROGRAMS["notebook.py"]).splitlines()]
        assert answers == ["1: hello", "2: thanks", "3: bye"]
        wrong = "try: async_graph.invoke(*turn('me', 'x'))\nexcept Exception as error: print(type(error).__name__)"
        assert run(wrong) == "CalledOnEventLoop\n"
        client.execute("quit")  # if stopped by a message, ipykernel 7 ends with its own error under -X dev
        manager.provisioner.process.wait(SECONDS)
        client.stop_channels()
        check_log(printed["stderr"] + log.read_text())
    finally:
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
