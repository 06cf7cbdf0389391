"""Servers and their folders are gone after a killed run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = {
    "redis": "from tests.support.servers import Server; s = Server(); print(s.process.pid, s.folder, flush=True); input()",
    "postgres": (
        "from bench.servers import Postgres, folder, _unprivileged\n"
        "with folder(_unprivileged()) as place:\n"
        "    p = Postgres(place, _unprivileged()); p.start(); print(p.server.pid, place, flush=True); input()"
    ),
}


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_killed_run_leaves_no_servers(kind: str) -> None:
    root = Path(__file__).parents[2]
    path = str(root)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[kind]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as run:  # fmt: skip
        assert run.stdout is not None
        server, folder = run.stdout.readline().split()
        assert is_running(int(server))
        run.kill()
    for _ in range(200):
        if not is_running(int(server)) and not Path(folder).exists():
            break
        time.sleep(0.05)
    assert not is_running(int(server))
    assert not Path(folder).exists()
