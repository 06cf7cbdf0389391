"""Recipes of docs/deployment.md and docs/workers.md, run unchanged.

Real servers and workers serve many users at once, and are stopped as an operator does it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from jupyter_client.manager import KernelManager
from langgraph.checkpoint.postgres import PostgresSaver
from tests.support.servers import free_port, url_of

from redis_saver import RedisSaver

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("deployment.md", "workers.md"))
PROGRAMS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)

SECONDS = 100.0
"""Time limit for a server to listen, for all workers to answer, or for an exit, on a busy machine."""
USERS = 8
PROBLEMS = (
    "Warning",
    "Traceback",
    "was never",
    "Task was destroyed",
    "exception calling callback",
    "Exception ignored",
)

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
    return arguments if program == "python" else ["-m", program, *arguments]


class Running:
    """A running command of the pages, with its output in a file."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str], *more: str, port: int = 0) -> None:
        self.log, self.port = folder / "log", port
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "dev", *flags_and_arguments(command), *more],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
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
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def post(self, path: str, text: str) -> str:
        url = f"http://127.0.0.1:{self.port}/{path}"
        with urllib.request.urlopen(url, text.encode(), timeout=SECONDS) as reply:
            return str(reply.read(), "utf-8")

    def ended(self) -> str:
        """Wait for a clean exit; return the output."""
        assert self.process.wait(SECONDS) == 0, self.text()
        check_log(self.text(), self.port)
        return self.text()


def check_log(text: str, port: int = 0) -> None:
    expected = not_ours(port)
    lines = [line for line in text.splitlines() if not expected.search(line)]
    assert [line for line in lines if any(problem in line for problem in PROBLEMS)] == [], text


@contextmanager
def running(command: str, folder: Path, environment: dict[str, str], *more: str, port: int = 0) -> Iterator[Running]:
    """Run a server program, stop it as an operator does, and check for a clean exit."""
    program = Running(command, folder, environment, *more, port=port)
    try:
        if port:
            program.until("it listens", program.listens)
        yield program
        program.process.send_signal(signal.SIGTERM)
        program.ended()
    finally:
        if program.process.poll() is None:
            os.killpg(program.process.pid, signal.SIGKILL)
            program.process.wait()


@contextmanager
def gunicorn(command: str, folder: Path, environment: dict[str, str], *more: str) -> Iterator[Running]:
    port = free_port()
    with running(command, folder, environment, "--bind", f"127.0.0.1:{port}", *more, port=port) as server:
        yield server


@contextmanager
def uvicorn(command: str, folder: Path, environment: dict[str, str]) -> Iterator[Running]:
    port = free_port()
    with running(command, folder, environment, "--port", str(port), port=port) as server:
        yield server


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


def streaming(port: int, user: str, said: str) -> Any:
    """Begin to stream an answer."""
    url = f"http://127.0.0.1:{port}/{user}/stream"
    request = urllib.request.Request(
        url, json.dumps(said).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    return urllib.request.urlopen(request, timeout=SECONDS)


SLOW = """
import asyncio


async def slow(state: MessagesState) -> dict:
    while state["messages"][0].content == "wait" and not os.path.exists("released"):
        await asyncio.sleep(0.01)
    return {"messages": [AIMessage("two")]}


builder = StateGraph(MessagesState).add_node("bot", lambda _: {"messages": [AIMessage("one ")]}).add_node("slow", slow)
builder.set_entry_point("bot").add_edge("bot", "slow")
"""
"""A graph whose second node waits for a file, if the thread began with "wait"."""


def test_a_streamed_answer_ends_with_its_client_or_its_ownership(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "fastapi_app.py").write_text(PROGRAMS["fastapi_app.py"] + SLOW)
    with (
        uvicorn("uvicorn --workers 2 fastapi_app:app", tmp_path, environment) as server,
        RedisSaver.from_conn_string(environment["REDIS_URL"]) as saver,
    ):

        def stored(user: str) -> list[str]:
            found = saver.get_tuple({"configurable": {"thread_id": user}})
            values = found.checkpoint["channel_values"] if found else {}
            return [message.content for message in values.get("messages", ())]

        def begun(user: str) -> Any:
            """Stream until the first superstep is stored, which is later than its words are sent."""
            reply = streaming(server.port, user, "wait")
            assert reply.read(4) == b"one "
            server.until("the first superstep is stored", lambda: stored(user) == ["wait", "one "])
            return reply

        begun("gone").close()
        with saver.own("gone", on_busy="wait", wait="90s"):  # the node still waits, but its run was cancelled
            assert stored("gone") == ["wait", "one "]
        with begun("taken") as reply:
            with saver.own("taken", on_busy="take"):
                (tmp_path / "released").touch()
                assert reply.read().endswith(b" [stopped: another run took over]")
            assert stored("taken") == ["wait", "one "]


def test_fastapi_resumes_interrupted_runs_on_any_worker(tmp_path: Path, environment: dict[str, str]) -> None:
    """Includes TTLs, errors, and concurrent requests for one thread."""
    with uvicorn("uvicorn --workers 2 fastapi_app:app", tmp_path, environment) as server:

        def asked(method: str, path: str, said: str | None = None) -> Any:
            data = None if said is None else json.dumps(said).encode()
            url = f"http://127.0.0.1:{server.port}/{path}"
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
            with urllib.request.urlopen(request, timeout=SECONDS) as reply:
                return json.loads(reply.read())

        for number in range(USERS):
            user = f"user-{number}"
            assert asked("POST", f"{user}/messages", "hello") == {"answer": "You said: hello"}
            assert asked("POST", f"{user}/messages", "book it") == {"waits_for": ["May I book it?"]}
            found = asked("GET", user)
            assert found["interrupted"] and 7 * 86400 - 60 < found["expires_in"] <= 7 * 86400
            assert asked("POST", f"{user}/approval", "yes") == {"answer": "You said: book it, approved: yes"}
            assert not asked("GET", user)["interrupted"]
            asked("DELETE", user)
            for refused in (("GET", user), ("POST", f"{user}/approval", "yes")):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    asked(*refused)
        with streaming(server.port, "streamed", "hello") as reply:
            assert reply.read() == b"You said: hello"
        assert asked("POST", "vip/messages?vip=true", "hello") == {"answer": "You said: hello"}
        assert asked("GET", "vip")["expires_in"] > 29 * 86400
        with pytest.raises(urllib.error.HTTPError, match="409"):
            asked("POST", "vip/approval", "yes")

        def status(path: str, said: str) -> int:
            try:
                asked("POST", path, said)
            except urllib.error.HTTPError as refused:
                return refused.code
            return 200

        assert asked("POST", "busy/messages", "book it") == {"waits_for": ["May I book it?"]}
        with ThreadPoolExecutor(50) as threads:
            approvals = list(threads.map(lambda _: status("busy/approval", "yes"), range(5)))
            assert sorted(approvals) == [200, 409, 409, 409, 409]
            asked("DELETE", "busy")
            answers = list(threads.map(lambda number: asked("POST", "busy/messages", f"message {number}"), range(50)))
        assert answers == [{"answer": f"You said: message {number}"} for number in range(50)]
        with RedisSaver.from_conn_string(environment["REDIS_URL"]) as saver:
            stored = saver.get_tuple({"configurable": {"thread_id": "busy"}})
            assert stored is not None
            said = [message.content for message in stored.checkpoint["channel_values"]["messages"]]
            assert sorted(said[::2]) == sorted(f"message {number}" for number in range(50))
            assert said[1::2] == [f"You said: {message}" for message in said[::2]]
            assert len(list(saver.list({"configurable": {"thread_id": "busy"}}))) == 50 * 3  # one chain, no forks


def test_every_command_of_the_pages_is_tested_here() -> None:
    here = Path(__file__).read_text()
    assert PROGRAMS
    assert COMMANDS
    assert [command for command in COMMANDS if f'"{command}"' not in here] == []


@pytest.mark.parametrize("workers", ["gthread", "sync"])
def test_flask_views_work_with_gunicorn_preload(workers: str, environment: dict[str, str], tmp_path: Path) -> None:
    command = "gunicorn --preload --workers 2 --threads 4 flask_app:app"
    more = ("--threads", "1") if workers == "sync" else ()  # gunicorn takes another worker class for several threads
    with gunicorn(command, tmp_path, environment, *more) as server:
        Users(server.post, "sync/sync-", "async/async-").speak_to(2)


@needs_gevent
def test_gunicorn_with_greenlets_refuses_asyncio_in_each_view(environment: dict[str, str], tmp_path: Path) -> None:
    """No view hangs, and none of them makes a later one fail otherwise."""
    command, port = "gunicorn --preload --workers 2 --threads 4 flask_app:app", free_port()
    server = Running(
        command,
        tmp_path,
        environment,
        "-k",
        "gevent",
        "--graceful-timeout",
        "2",
        "--bind",
        f"127.0.0.1:{port}",
        port=port,
    )
    try:
        server.until("it listens", server.listens)
        for view in ("sync", "async", "async", "sync"):
            with pytest.raises(urllib.error.HTTPError):
                server.post(f"{view}/user", "hello")
        assert len(re.findall("ThreadsPatched: .*Use RedisSaver", server.text())) == 4
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0, server.text()
    finally:
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()


@pytest.fixture
def empty_database(database: str, environment: dict[str, str]) -> str:
    with PostgresSaver.from_conn_string(database) as cold:
        for user in Users(str, "").turns:
            cold.delete_thread(user)
    environment["POSTGRES_URL"] = database
    return database


def check_cold_has_all(database: str, users: Users) -> None:
    with PostgresSaver.from_conn_string(database) as cold:
        for user, turns in users.turns.items():
            newest = cold.get_tuple({"configurable": {"thread_id": user}})
            assert newest is not None, user
            assert len(newest.checkpoint["channel_values"]["messages"]) == 2 * turns


def test_gunicorn_with_two_tiers_flushes_everything_at_exit(
    empty_database: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with gunicorn("gunicorn --preload --workers 2 --threads 4 tiered_app:app", tmp_path, environment) as server:
        users = Users(server.post, "")
        users.speak_to(2)
    check_cold_has_all(empty_database, users)


def test_uvicorn_workers_continue_each_others_threads(environment: dict[str, str], tmp_path: Path) -> None:
    with uvicorn("uvicorn --workers 2 asgi_app:app", tmp_path, environment) as server:
        Users(server.post, "").speak_to(2)


def test_uvicorn_continues_threads_after_a_reload(environment: dict[str, str], tmp_path: Path) -> None:
    with uvicorn("uvicorn --reload asgi_app:app", tmp_path, environment) as server:
        users = Users(server.post, "")
        users.speak_to(1)
        (tmp_path / "asgi_app.py").touch()
        server.until("it starts anew", lambda: server.text().count("startup complete") == 2)
        users.speak_to(2)


def test_uvicorn_with_two_tiers_flushes_everything_at_exit(
    empty_database: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with uvicorn("uvicorn --workers 2 tiered_asgi_app:app", tmp_path, environment) as server:
        users = Users(server.post, "")
        users.speak_to(2)
    check_cold_has_all(empty_database, users)


def test_django_views_work_under_asgi(environment: dict[str, str], tmp_path: Path) -> None:
    with uvicorn("uvicorn --workers 2 django_app:application", tmp_path, environment) as server:
        Users(server.post, "sync/sync-", "async/async-").speak_to(2)


def test_celery_workers_continue_each_others_threads(environment: dict[str, str], tmp_path: Path) -> None:
    url = environment["REDIS_URL"]
    with Celery("client", broker=url, backend=url, set_as_current=False) as client:

        def ask(user: str, said: str) -> str:
            kind = "answer_async" if user.startswith("async") else "answer"
            return str(client.send_task(f"tasks.{kind}", (user, said)).get(timeout=SECONDS))

        with running("celery --app tasks worker --concurrency 2", tmp_path, environment):
            Users(ask, "sync-", "async-").speak_to(2)


@needs_gevent
def test_celery_workers_with_greenlets_run_blocking_tasks_and_refuse_asyncio(
    environment: dict[str, str], tmp_path: Path
) -> None:
    url, command = environment["REDIS_URL"], "celery --app tasks worker --concurrency 2"
    worker = Running(command, tmp_path, environment, "--pool", "gevent")
    try:
        with Celery("client", broker=url, backend=url, set_as_current=False) as client:
            for turn in (1, 2):
                for user in ("one", "two"):
                    refused = client.send_task("tasks.answer_async", (user, "hello"))
                    with pytest.raises(Exception, match="Use RedisSaver"):
                        refused.get(timeout=SECONDS)
                    answered = client.send_task("tasks.answer", (user, "hello")).get(timeout=SECONDS)
                    assert understood(answered)[0] == f"{turn}: hello"
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(SECONDS) == 0, worker.text()
    finally:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()


@pytest.mark.parametrize("command", ["python pool.py fork", "python pool.py spawn"])
def test_multiprocessing_pools_continue_threads(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    program = Running(command, tmp_path, environment)
    # Under -X dev, asyncio also names slow callbacks on a busy machine.
    answers = [understood(line) for line in program.ended().splitlines() if not line.startswith("Executing <")]
    users = ["parent", *(f"user-{number}" for number in range(20))]
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
def test_a_fork_in_c_raises_unless_python_is_notified(told: str, said: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", FORK_IN_C, environment["REDIS_URL"], told],
        env=environment, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
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
