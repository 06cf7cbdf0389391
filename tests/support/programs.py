"""Python programs that start in milliseconds, each forked from a process with the common imports.

A program gets the arguments, environment, folder, output, signals and exit code of `python -m MODULE` or `python FILE`,
but its imports are done already. So each command also has tests that start it as users do. Only those can show that it
starts without a module.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

PRELOADED = (
    "asyncio", "langgraph.checkpoint.postgres.aio", "langgraph.graph", "psycopg_pool", "redis.asyncio.cluster",
    "redis_saver._cli.flushing", "redis_saver._cli.main",
)  # fmt: skip
_INT = struct.Struct("i")


class Program:
    """A running program, with a process id, signals and an exit code like `subprocess.Popen`."""

    def __init__(
        self, *arguments: str, environment: Mapping[str, str], folder: Path, out: IO[Any], err: IO[Any],
        given: int = subprocess.DEVNULL,
    ) -> None:  # fmt: skip
        """Start `-m MODULE ...` or `FILE ...` with only that environment. With `given=PIPE` it reads from `stdin`."""
        told, tell = os.pipe()
        reads, writes = os.pipe() if given == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        self.stdin = None if writes is None else open(writes, "wb")
        request = json.dumps([arguments, dict(environment), str(folder)]).encode()
        socket.send_fds(_forker(), [_INT.pack(len(request))], [reads, out.fileno(), err.fileno(), tell])
        _forker().sendall(request)
        for each in (tell, reads):
            os.close(each)
        self._told = open(told, "rb", buffering=0)
        self.pid, self.returncode = self._next(), None

    def _next(self) -> int:
        text = self._told.read(_INT.size)
        assert len(text) == _INT.size, "the process that forks has ended"
        return int(_INT.unpack(text)[0])

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(self._next())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(*arguments: str, environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, like `subprocess.run`, but faster."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        program = Program(*arguments, environment=environment, folder=folder, out=out, err=err)
        try:
            code = program.wait(280)
        finally:
            program.kill()
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


_started: dict[int, socket.socket] = {}


def _forker() -> socket.socket:
    """Return the connection to the forking process, which ends when this process does."""
    if os.getpid() not in _started:
        ours, theirs = socket.socketpair()
        here = Path(__file__)
        environment = {**os.environ, "PYTHONPATH": str(here.parents[2])}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(here), str(theirs.fileno())], env=environment, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        _started[os.getpid()] = ours
        atexit.register(process.wait)
        atexit.register(process.terminate)
    return _started[os.getpid()]


def _fork_programs(connection: socket.socket) -> list[str] | None:
    """Fork programs. Returns a program's arguments in its process, or None when the forking process ends."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # ended intermediate processes, which waited for their programs
                pass
        size, files, _, _ = socket.recv_fds(connection, _INT.size, 4)
        if not size:
            return None
        tell = files[-1]
        request = connection.recv(_INT.unpack(size)[0], socket.MSG_WAITALL)
        if not os.fork():
            connection.close()
            if program := os.fork():
                os.write(tell, _INT.pack(program))
                os.write(tell, _INT.pack(os.waitpid(program, 0)[1]))
                os._exit(0)
            for number, each in enumerate(files[:3]):
                os.dup2(each, number)
            for each in files:
                os.close(each)
            sys.stdin, sys.stdout, sys.stderr = (
                open(number, mode, size, stream.encoding, stream.errors, closefd=False)
                for number, mode, size, stream in (
                    (0, "r", -1, sys.stdin),
                    (1, "w", -1, sys.stdout),
                    (2, "w", 1, sys.stderr),
                )
            )  # the old streams remember if they were seekable
            arguments, environment, folder = json.loads(request)
            os.environ.clear()
            os.environ.update(environment)
            warnings._processoptions(filter(None, environment.get("PYTHONWARNINGS", "").split(",")))
            os.chdir(folder)
            return list(arguments)
        for each in files:
            os.close(each)


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    if given := _fork_programs(socket.socket(fileno=int(sys.argv[1]))):
        if given[0] == "-m":
            sys.path[0], sys.argv = os.getcwd(), given[1:]
            runpy.run_module(given[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0], sys.argv = str(Path(given[0]).resolve().parent), given
            runpy.run_path(given[0], run_name="__main__")
