"""Workers that start in milliseconds: each calls `serve` of a module for each line of JSON that it gets.

It answers with lines of JSON, and says others meanwhile.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.programs import Program

Say: TypeAlias = Callable[..., None]
PATIENCE = 120
"""Seconds to wait before a test fails."""


class Worker:
    """A worker process."""

    def __init__(self, module: str) -> None:
        here, (reads, writes) = Path(__file__), os.pipe()
        with open(writes, "wb") as out:
            self.process = Program(
                str(here), module, given=subprocess.PIPE, out=out, err=sys.__stderr__,
                environment=os.environ, folder=here.parents[2],
            )  # fmt: skip
        self.said: list[dict[str, Any]] = []
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.is_working = self.is_dead = False
        self._reader = threading.Thread(target=self._read, args=(reads,), daemon=True)
        self._reader.start()

    def _read(self, reads: int) -> None:
        with open(reads) as output:
            for text in output:
                line = json.loads(text)
                if "answer" in line:
                    self.is_working = False
                    self._answers.put(line)
                else:
                    self.said.append(line)
        self._answers.put({"ended": True})

    def tell(self, **line: Any) -> None:
        assert self.process.stdin is not None
        self.is_working = True
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Result of `serve` for the next line."""
        line = self._answers.get(timeout=PATIENCE)
        assert "answer" in line, "the process has ended"
        return line["answer"]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and read the rest of the output."""
        self.process.kill()
        self._reader.join(PATIENCE)
        self.is_dead, self.is_working = True, False


def main(module: str) -> None:
    """Serve in a worker process."""
    serve, lock = import_module(module).serve, threading.Lock()

    def say(**line: Any) -> None:
        with lock:
            print(json.dumps(line), flush=True)

    for text in sys.stdin:
        say(answer=serve(json.loads(text), say))


if __name__ == "__main__":
    main(sys.argv[1])
