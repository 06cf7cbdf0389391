"""Workers forked from a process that has imported everything, so each starts in milliseconds.

A worker calls `serve(line)` of a module for each line that it receives, and answers with lines of JSON.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Say: TypeAlias = Callable[..., None]
PATIENCE = 120
"""Seconds to wait before a test fails."""


class Worker:
    """A worker process and its connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._file = connection, connection.makefile("r")
        self.pid = int(json.loads(self._file.readline())["pid"])
        self.said: list[dict[str, Any]] = []
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.is_working = self.is_dead = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for text in self._file:
            line = json.loads(text)
            if "answer" in line:
                self.is_working = False
                self._answers.put(line)
            else:
                self.said.append(line)
        self._answers.put({"ended": True})

    def tell(self, **line: Any) -> None:
        self.is_working = True
        self._connection.sendall(json.dumps(line).encode() + b"\n")

    def answer(self) -> Any:
        """Result of `serve` for the next line."""
        line = self._answers.get(timeout=PATIENCE)
        assert "answer" in line, "the process has ended"
        return line["answer"]

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and read the rest of the output."""
        if not self.is_dead:
            os.kill(self.pid, signal.SIGKILL)
            self._reader.join(PATIENCE)
            self._connection.close()
        self.is_dead, self.is_working = True, False


class _Nursery:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        here, root = Path(__file__).parent, Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(root)])}
        self._process = subprocess.Popen(
            [sys.executable, str(here / "nursery.py"), str(self._listener.getsockname()[1])],
            stdin=subprocess.PIPE, env=environment, text=True, bufsize=1,
        )  # fmt: skip
        atexit.register(self._process.terminate)

    def worker(self, module: str) -> Worker:
        assert self._process.stdin is not None
        self._process.stdin.write(module + "\n")
        self._listener.settimeout(PATIENCE)
        return Worker(self._listener.accept()[0])


_started: dict[int, _Nursery] = {}


def worker(module: str) -> Worker:
    """Start a worker for a module. The first of a test run takes some seconds."""
    if os.getpid() not in _started:
        _started[os.getpid()] = _Nursery()
    return _started[os.getpid()].worker(module)


def _work(module: str, port: int) -> None:
    serve = import_module(module).serve
    connection = socket.create_connection(("127.0.0.1", port))
    lock = threading.Lock()

    def say(**line: Any) -> None:
        with lock:
            connection.sendall(json.dumps(line).encode() + b"\n")

    say(pid=os.getpid())
    for text in connection.makefile("r"):
        say(answer=serve(json.loads(text), say))


def main(port: int) -> None:
    """Fork a worker for each line of the input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in sys.stdin:
        import_module(module.strip())
        if not os.fork():
            try:
                _work(module.strip(), port)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                time.sleep(0.1)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
